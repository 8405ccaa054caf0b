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
from dnnkern.conv.winograd import transforms as winograd
from dnnkern.conv import conv_winograd_nonfused as winograd_nonfused
from dnnkern.conv._parse import parse_problem
from dnnkern.dispatch import Note
from dnnkern.host.device import device

TRANSFORMS = {"F(2x2,3x3)": ((2, 3), ("conv_fwd", 4, 3)), "F(4x4,3x3)": ((4, 3), ("conv_fwd", 6, 3)),
              "F(2x2,5x5)": ((2, 5), ("conv_fwd", 6, 5)), "F(3x3,2x2)": ((3, 2), ("conv_bwd_filter", 4, 3)),
              "F(3x3,4x4)": ((3, 4), ("conv_bwd_filter", 6, 3)), "F(5x5,2x2)": ((5, 2), ("conv_bwd_filter", 6, 5))}
# Root mean square of the error, divided by that of adding up the definition's products in order, for 1, 16 and 256 channels: at most.
MEASURED = {"F(2x2,3x3)": (2.1, 0.9, 0.5), "F(4x4,3x3)": (11.5, 4.6, 1.5), "F(2x2,5x5)": (9.0, 2.6, 0.7), "F(3x3,2x2)": (2.5, 1.3, 0.8),
            "F(3x3,4x4)": (9.5, 3.4, 0.9), "F(5x5,2x2)": (16.5, 8.0, 3.3)}
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
    """B^T, G and A^T as the device functions compute them."""
    return matrix(t.data, t.n, t.n), matrix(t.filter, t.r, t.n), matrix(t.result, t.n, t.m)


@pytest.fixture(params=TRANSFORMS)
def name(request, simulated):
    return request.param


def test_fractions(name):
    t = winograd.transform(*TRANSFORMS[name][0])
    B, G, A = matrices(t)
    for made, rows in zip((B, G, A), winograd.matrices(t.m, t.r)):
        assert np.array_equal(made, np.array(rows, object))
    rng = np.random.default_rng(1)
    d, g = (rng.integers(-9, 10, (size, size)).astype(object) for size in (t.n, t.r))
    y = A.dot(G.dot(g).dot(G.T) * B.dot(d).dot(B.T)).dot(A.T)
    for i in range(t.m):
        for j in range(t.m):
            assert y[i, j] == (d[i:i + t.r, j:j + t.r] * g).sum()
    exact = all(x.denominator & x.denominator - 1 == 0 for x in G.flat)
    assert exact == (t.n == 4), "the contract takes 4x4 tiles to be exact on small integers, 6x6 tiles not"


def test_the_factor_of_the_bound(name):
    t, key = winograd.transform(*TRANSFORMS[name][0]), TRANSFORMS[name][1]
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


def operands(t, channels, many, dtype="float32"):
    """Inputs N(0.5, 1) and taps N(0.2, 1.1) of many tiles, [i][j][channel][tile]."""
    rng = np.random.default_rng(2)
    d = rng.standard_normal((t.n, t.n, channels, many)) + 0.5
    g = rng.standard_normal((t.r, t.r, channels, many)) + (rng.random((t.r, t.r, channels, many)) > 1 / 3) - 0.5
    return (cases.rounded(x, dtype).astype(np.float32) for x in (d, g))


def results(t, d, g, kept=lambda v: v):
    """[i][j][tile] of transforms and products in float32; `kept` rounds what is transformed."""
    v, u = d.copy(), np.zeros_like(d)
    u[:t.r, :t.r] = g
    square(t.data, v, t.n, t.n)
    square(t.filter, u, t.r, t.n)
    v, u = kept(v), kept(u)
    sums = np.zeros((t.n, t.n, d.shape[-1]), np.float32)
    for c in range(d.shape[2]):
        sums += u[:, :, c] * v[:, :, c]
    square(t.result, sums, t.n, t.m)
    return sums[:t.m, :t.m]


def definition(t, d, g, dtype=float):
    """The same by the definition; in float32 its products are added up in order."""
    y = np.zeros((t.m, t.m, d.shape[-1]), dtype)
    for i, j in np.ndindex(t.m, t.m):
        for c in range(d.shape[2]):
            for r, s in np.ndindex(t.r, t.r):
                y[i, j] += d[i + r, j + s, c].astype(dtype) * g[r, s, c].astype(dtype)
    return y


def rms(x):
    return math.sqrt((x.astype(float)**2).mean())


def test_float32_beside_the_definition(name):
    """Errors against float64, and the contract's bound of them."""
    t, key = winograd.transform(*TRANSFORMS[name][0]), TRANSFORMS[name][1]
    for channels, most in zip(CHANNELS, MEASURED[name]):
        d, g = operands(t, channels, max(8192 // channels, 400))
        exact = definition(t, d, g)
        error = results(t, d, g) - exact
        ratio = rms(error) / rms(definition(t, d, g, np.float32) - exact)
        assert 0.6 * most <= ratio <= most, f"{channels} channels: {ratio:.2f} times the definition's"
        a, b, length = np.abs(d.astype(float)), np.abs(g.astype(float)), channels * t.r**2
        seen = np.lib.stride_tricks.sliding_window_view(a, (t.r, t.r), (0, 1)).sum((-2, -1))  # of a result's own inputs
        largest = (seen * b.max((0, 1))).sum(2).max((0, 1))
        bound = 2.0**-24 * (min(length, 8 * length**0.5) * definition(t, a, b) + 4 * WINOGRAD[key] / channels**0.5 * largest)
        worst = (np.abs(error) / bound).max()
        assert 0.003 < worst < 0.6, f"{channels} channels: {worst:.3f} of the bound"


def as_tf32(v):
    return ((v.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("tile", ["F(4x4,3x3)", "F(2x2,5x5)", "F(3x3,4x4)", "F(5x5,2x2)"])
def test_16_bit_types_are_transformed_in_float32(tile, dtype, simulated):
    """Errors beside that of rounding the result, once: nothing in float32; several times it if what is transformed is 16 bits wide."""
    t = winograd.transform(*TRANSFORMS[tile][0])
    for channels in CHANNELS:
        d, g = operands(t, channels, max(4096 // channels, 100), dtype)
        exact = definition(t, d, g)
        rounding = rms(cases.rounded(exact, dtype) - exact)
        kept = (lambda v: v), as_tf32, lambda v: cases.rounded(v, dtype).astype(np.float32)
        wide, tf32, narrow = (rms(results(t, d, g, k) - exact) / rounding for k in kept)
        assert wide < 0.01 and narrow > 2.4 and tf32 > (2.4 if dtype == "float16" else 0.3)


def algorithm(op, name="winograd_nonfused"):
    return next(a for a in dispatch.algorithms(op) if a.name == name)


def case_of(op, text):
    return next(c for c in cases.modules()[op].CASES if c.id == text)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("op, n, text", [
    ("conv_fwd", 6, "2x5x7x6-k7-3x3-p1-f32"), ("conv_fwd", 6, "edge-nhwc-2x4x9x6-k5-3x3-p1-f32"),
    ("conv_bwd_data", 6, "5x5-1x4x7x7-k4-p2-f32"), ("conv_bwd_filter", 6, "edge-1x3x17x14-k2-3x3-p1-f32"),
    ("conv_bwd_filter", 4, "2x5x7x6-k7-3x3-p1-f32"), ("conv_bwd_filter", 4, "edge-nhwc-2x4x9x6-k5-3x3-p1-f32"),
    ("conv_bwd_filter", 4, "epilogue-alpha-beta-1x4x5x5-k6-3x3-f32"), ("conv_fwd", 6, "5x5-nhwc-2x5x9x6-k7-p2-bf16"),
    ("conv_bwd_data", 6, "flipped-5x5-1x6x8x9-k5-p2x1-f16"), ("conv_bwd_filter", 6, "5x5-1x4x7x7-k4-p2-f32"),
    ("conv_bwd_filter", 6, "flipped-5x5-1x6x8x9-k5-p2x1-f16"), ("conv_bwd_filter", 6, "5x5-beta-nhwc-2x5x7x8-k6-p2-bf16")])
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
    contract.check(dataclasses.replace(found, config=config, notes=notes), case, **contract.ONCE)


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


@pytest.mark.parametrize("op", ["conv_fwd", "conv_bwd_data", "conv_bwd_filter"])
def test_products_of_16_bit_types_are_not_rounded(op, simulated):
    """math="tf32" lets float32 be rounded, and nothing else."""
    for words, math_ in (("4x16x12x12 k16 5x5 p2 f32 --math tf32", "tf32"), ("4x16x12x12 k16 5x5 p2 bf16 --math tf32", None)):
        problem, found = parse_problem(words.split(), op), algorithm(op)
        assert found.supports(problem) is None
        product = winograd_nonfused._stages(problem, 6, 1).product(64)
        assert (product.a.dtype, product.b.dtype, product.y.dtype, product.math) == (*["float32"] * 3, math_)
