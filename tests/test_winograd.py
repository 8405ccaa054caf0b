"""Winograd's transforms against the definition, in fractions and in float32, and what the contract's cases leave out: slices."""
import dataclasses
import math
from fractions import Fraction

import cases
import contract
import numpy as np
import pytest
from cases._conv import WINOGRAD

from dnnkern import dispatch
from dnnkern.conv import _winograd as winograd
from dnnkern.conv._parse import parse_problem
from dnnkern.dispatch import Note
from dnnkern.host.device import device

TRANSFORMS = {"F(2x2,3x3)": (winograd.F2X3, ("conv_fwd", 4, 3)), "F(4x4,3x3)": (winograd.F4X3, ("conv_fwd", 6, 3)),
              "F(2x2,5x5)": (winograd.F2X5, ("conv_fwd", 6, 5)), "F(3x3,2x2)": (winograd.F3X2, ("conv_bwd_filter", 4, 3)),
              "F(3x3,4x4)": (winograd.F3X4, ("conv_bwd_filter", 6, 3))}
# Root mean square of the error, divided by that of adding up the definition's products in order, for 1, 16 and 256 channels: at most.
MEASURED = {"F(2x2,3x3)": (2.1, 0.9, 0.5), "F(4x4,3x3)": (11.5, 4.6, 1.5), "F(2x2,5x5)": (9.0, 2.6, 0.7), "F(3x3,2x2)": (2.5, 1.3, 0.8),
            "F(3x3,4x4)": (9.5, 3.4, 0.9)}
CHANNELS = (1, 16, 256)


def matrix(line, inputs, outputs):
    """The matrix of a transform of a line, in fractions."""
    columns = []
    for k in range(inputs):
        v = np.zeros(max(inputs, outputs), np.float32)
        v[k] = 1
        line(v, 0, 1)
        columns.append([Fraction(float(x)).limit_denominator(24) for x in v[:outputs]])
    return np.array(columns, object).T


def matrices(t):
    """B^T, G and A^T."""
    return matrix(t.data, t.n, t.n), matrix(t.filter, t.r, t.n), matrix(t.result, t.n, t.m)


@pytest.fixture(params=TRANSFORMS)
def name(request, simulated):
    return request.param


def test_fractions(name):
    t, _ = TRANSFORMS[name]
    B, G, A = matrices(t)
    rng = np.random.default_rng(1)
    d, g = (rng.integers(-9, 10, (size, size)).astype(object) for size in (t.n, t.r))
    y = A.dot(G.dot(g).dot(G.T) * B.dot(d).dot(B.T)).dot(A.T)
    for i in range(t.m):
        for j in range(t.m):
            assert y[i, j] == (d[i:i + t.r, j:j + t.r] * g).sum()
    exact = all(x.denominator & x.denominator - 1 == 0 for x in G.flat)
    assert exact == (t.n == 4), "the contract takes 4x4 tiles to be exact on small integers, 6x6 tiles not"


def test_the_factor_of_the_bound(name):
    t, key = TRANSFORMS[name]
    B, G, A = (np.array(x, float) for x in matrices(t))
    squares = (A**2 * (G**2).sum(1) * (B**2).sum(1)).sum(1).max() / t.r
    assert abs(squares - WINOGRAD[key]) < 0.06


def square(line, v, columns, rows):
    """A transform of many matrices [n][n][...] at once, in the kernels' order."""
    def along(lines):
        values = list(lines.copy())
        line(values, 0, 1)
        lines[...] = values
    for j in range(columns):
        along(v[:, j])
    for i in range(rows):
        along(v[i])


def test_float32_beside_the_definition(name):
    """Errors against float64, of many tiles of N(0.5, 1) times N(0.2, 1.1), and the contract's bound of them."""
    t, key = TRANSFORMS[name]
    rng = np.random.default_rng(2)
    for channels, most in zip(CHANNELS, MEASURED[name]):
        many = max(8192 // channels, 400)
        d = (rng.standard_normal((t.n, t.n, channels, many)) + 0.5).astype(np.float32)
        g = (rng.standard_normal((t.r, t.r, channels, many)) + (rng.random((t.r, t.r, channels, many)) > 1 / 3) - 0.5).astype(np.float32)
        v, u = d.copy(), np.zeros_like(d)
        u[:t.r, :t.r] = g
        square(t.data, v, t.n, t.n)
        square(t.filter, u, t.r, t.n)
        sums = np.zeros((t.n, t.n, many), np.float32)
        for c in range(channels):
            sums += u[:, :, c] * v[:, :, c]
        square(t.result, sums, t.n, t.m)
        errors, largest = [], np.zeros(many)
        magnitudes = np.zeros((t.m, t.m, many))
        for i in range(t.m):
            for j in range(t.m):
                seen = d[i:i + t.r, j:j + t.r].astype(float)
                exact, plain = (seen * g).sum((0, 1, 2)), np.zeros(many, np.float32)
                for c in range(channels):
                    for tap in np.ndindex(t.r, t.r):
                        plain += d[i + tap[0], j + tap[1], c] * g[(*tap, c)]
                errors.append((sums[i, j] - exact, plain - exact))
                magnitudes[i, j] = np.abs(seen * g).sum((0, 1, 2))
                largest = np.maximum(largest, (np.abs(seen).sum((0, 1)) * np.abs(g).max((0, 1))).sum(0))
        mine, plain = (np.array([e[k] for e in errors]) for k in (0, 1))
        ratio = math.sqrt((mine**2).mean() / (plain**2).mean())
        assert 0.6 * most <= ratio <= most, f"{channels} channels: {ratio:.2f} times the definition's"
        length = channels * t.r**2
        bound = 2.0**-24 * (min(length, 8 * length**0.5) * magnitudes.reshape(-1, many) + 4 * WINOGRAD[key] / channels**0.5 * largest)
        worst = (np.abs(mine) / bound).max()
        assert 0.005 < worst < 0.6, f"{channels} channels: {worst:.3f} of the bound"


def algorithm(op, name="winograd_nonfused"):
    return next(a for a in dispatch.algorithms(op) if a.name == name)


def case_of(op, text):
    return next(c for c in cases.modules()[op].CASES if c.id == text)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("op, n, text", [
    ("conv_fwd", 6, "2x5x7x6-k7-3x3-p1-f32"), ("conv_fwd", 6, "edge-nhwc-2x4x9x6-k5-3x3-p1-f32"),
    ("conv_bwd_data", 6, "5x5-1x4x7x7-k4-p2-f32"), ("conv_bwd_filter", 6, "edge-1x3x17x14-k2-3x3-p1-f32"),
    ("conv_bwd_filter", 4, "2x5x7x6-k7-3x3-p1-f32"), ("conv_bwd_filter", 4, "edge-nhwc-2x4x9x6-k5-3x3-p1-f32"),
    ("conv_bwd_filter", 4, "epilogue-alpha-beta-1x4x5x5-k6-3x3-f32")])
def test_slices(op, n, text, last, simulated):
    """Tiles four at a time, in both orders of the matrices: every step finds its own, and gradients of filters add up; with tiles of 4x4
    inputs exactly."""
    case, found = case_of(op, text), algorithm(op)
    problem = case.problem()
    config = next(c for c in found.configs(problem, device()) if c.n == n and c.product.name == "naive")
    config = dataclasses.replace(config, tiles=4, last=last)
    launches = found.build(problem, device(), config)
    assert sum("patches" in launch.kernel.py_func.__name__ for launch in launches) >= 2
    notes = Note.WINOGRAD | (Note.WINOGRAD_TILE_4x4 if n == 4 else Note.WINOGRAD_TILE_6x6)
    contract.check(dataclasses.replace(found, config=config, notes=notes), case)


def test_a_small_workspace_is_kept(simulated):
    for op in ("conv_fwd", "conv_bwd_filter"):
        problem, found = parse_problem("32x256x56x56 k256 3x3 p1 f32 nchw".split(), op), algorithm(op)
        need = [found.workspace(problem, device(), c) for c in found.configs(problem, device())]
        assert min(need) < max(need) / 4
        bound = found.configured(problem, device(), min(need))
        assert bound.workspace(problem, device(), bound.config) <= min(need)


@pytest.mark.parametrize("words, reason", [
    ("1x8x8x8 k8 3x3 s2 p1 f32", "stride 2x2"), ("1x8x8x8 k8 3x3 d2 f32", "dilation 2x2"), ("1x8x8x8 k8 3x3 g2 f32", "2 groups"),
    ("1x8x8x8 k8 7x7 f32", "the filter is 7x7"), ("1x8x8x8 k8 3x3 f64", "dtype float64"), ("1x8x8x8x8 k8 3x3x3 f32", "three dimensions"),
    ("1x8x8 k8 3 f32", "the filter is 1x3")])
def test_refusals(words, reason, simulated):
    problem = parse_problem(words.split(), "conv_fwd")
    for name in ("winograd", "winograd_nonfused"):
        assert reason in algorithm("conv_fwd", name).supports(problem)


def test_16_bit_types_are_for_the_fused_form(simulated):
    problem = parse_problem("1x8x8x8 k8 3x3 p1 bf16".split(), "conv_fwd")
    assert algorithm("conv_fwd", "winograd").supports(problem) is None
    assert "dtype bfloat16" in algorithm("conv_fwd").supports(problem)
