"""Fourier transforms against NumPy's, their rounding beside the definition's, and what the contract's cases leave out: slices, tiles."""
import dataclasses
import math

import contract
import numpy as np
import pytest
from cases._conv import Conv
from cases._conv_fft import POINTS

from dnnkern import dispatch
from dnnkern.conv.fft import lines as fft
from dnnkern.conv.fft.plan import TILES, Config, Plan, correlation
from dnnkern.conv._parse import parse_problem
from dnnkern.host.device import device

OPS = "conv_fwd", "conv_bwd_data", "conv_bwd_filter"
# Root mean square of the error, divided by that of adding up the definition's 5x5 products in order, for 1, 16 and 256 channels: at most.
MEASURED = {16: (1.8, 0.45, 0.2), 32: (2.1, 0.5, 0.21), 64: (1.9, 0.48, 0.14)}


def transformed(lines, length):
    """Transforms of complex lines [n][...] in float32, by the kernels' function."""
    re, im = list(lines.real.astype(np.float32)), list(lines.imag.astype(np.float32))
    fft.make_fft(length)(re, im)
    order = [fft.place(length, k) for k in range(length)]
    return np.stack([re[k] for k in order]) + 1j * np.stack([im[k] for k in order])


@pytest.mark.parametrize("length", fft.LENGTHS)
def test_lines(length, simulated):
    rng = np.random.default_rng(length)
    x = rng.standard_normal((length, 7)) + 1j * rng.standard_normal((length, 7))
    wanted = np.fft.fft(x.astype(np.complex64), axis=0)
    assert np.abs(transformed(x, length) - wanted).max() < 2.0**-24 * math.log2(length) * np.abs(wanted).max()
    at = fft.make_place(length)
    assert [at(k) for k in range(length)] == [fft.place(length, k) for k in range(length)]


def square(x, length):
    """Transforms along both of the leading axes."""
    x = transformed(x, length)
    return np.swapaxes(transformed(np.swapaxes(x, 0, 1), length), 0, 1)


@pytest.mark.parametrize("length", MEASURED)
def test_float32_beside_the_definition(length, simulated):
    """Errors against float64, of tiles of N(0.5, 1) times 5x5 taps of N(0.2, 1.1), and the contract's bound of them."""
    rng, taps = np.random.default_rng(3), 5
    for channels, most in zip((1, 16, 256), MEASURED[length]):
        many = max(64 // channels, 1)
        d = (rng.standard_normal((length, length, channels, many)) + 0.5).astype(np.float32)
        g = (rng.standard_normal((taps, taps, channels)) + (rng.random((taps, taps, channels)) > 1 / 3) - 0.5).astype(np.float32)
        u = np.zeros((length, length, channels))
        u[:taps, :taps] = g
        v, u = square(d, length).astype(np.complex64), square(u, length).astype(np.complex64)
        sums = np.zeros((length, length, many), np.complex64)
        for c in range(channels):
            sums += v[:, :, c] * u[:, :, c, None].conj()
        kept = length - taps + 1
        mine = (square(sums.conj(), length).real / length**2)[:kept, :kept]
        exact, plain = np.zeros_like(mine, np.float64), np.zeros_like(mine, np.float32)
        for c in range(channels):
            for r, s in np.ndindex(taps, taps):
                seen = d[r:r + kept, s:s + kept, c]
                exact += seen.astype(float) * g[r, s, c]
                plain += seen * g[r, s, c]
        ratio = math.sqrt(((mine - exact)**2).mean() / ((plain - exact)**2).mean())
        assert 0.7 * most <= ratio <= most, f"{channels} channels: {ratio:.2f} times the definition's"
        norms = (np.sqrt((d.astype(float)**2).sum((0, 1))) * np.sqrt((g.astype(float)**2).sum((0, 1)))[:, None]).sum(0)
        bound = 2.0**-24 * (math.log2(POINTS) + math.sqrt(channels)) * norms
        assert 0.0005 < (np.abs(mine - exact) / bound).max() < 0.5


def algorithm(op, name="fft_tiling"):
    return next(a for a in dispatch.algorithms(op) if a.name == name)


def bound_to(op, name, **changes):
    """The algorithm with a configuration of its own."""
    return dataclasses.replace(algorithm(op, name), config=Config(**changes))


SMALL = next(tile for tile in TILES if tile.threads == 32)


@pytest.mark.parametrize("op", OPS)
def test_slices(op, simulated):
    """Tiles 32 at a time: every slice finds its own, and gradients of filters add up."""
    case = Conv("slices", op, (3, 2, 20, 13), 3, (3, 3), padding=1)
    mine = bound_to(op, "fft_tiling", lh=8, lw=8, whole=0, tile=SMALL, group=17, bound=1)
    plan = Plan(case.problem(), mine.config)
    assert plan.slices == 2 and plan.items == 36
    contract.check_float(register(mine), case, again=False)


@pytest.fixture(autouse=True)
def unregistered():
    yield
    while _registered:
        _registered.pop().__exit__(None, None, None)


_registered = []


def register(algorithm):
    """The algorithm under a name of its own until the test ends."""
    manager = contract.registered(algorithm)
    _registered.append(manager)
    return manager.__enter__()


@pytest.mark.parametrize("op", ["conv_fwd", "conv_bwd_filter"])
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_tiles_of_products(op, tile, simulated):
    """Tails along rows, columns and sums, and a last group of fewer frequencies, in every tile."""
    case = Conv(f"products-{tile}", op, (3, 11, 12), 13, (4,), layout="NHWC", padding=1)
    mine = bound_to(op, "fft", lh=1, lw=16, whole=1, tile=tile, group=4, bound=1 << 30)
    contract.check_float(register(mine), case, again=False)


@pytest.mark.parametrize("op, name, extents, size, taps, padding", [
    ("conv_fwd", "fft_tiling", (16, 16), (2, 3, 14, 19), (5, 5), 2),
    ("conv_bwd_filter", "fft_tiling", (16, 16), (1, 2, 14, 9), (5, 5), 2),
    ("conv_fwd", "fft", (12, 20), (1, 3, 10, 17), (4, 5), ((1, 2), (3, 1))), ("conv_bwd_data", "fft", (12, 20), (1, 3, 7, 16), (4, 5), 4),
    ("conv_bwd_filter", "fft", (24, 8), (1, 2, 19, 5), (5, 3), (4, 1)), ("conv_fwd", "fft", (8, 40), (1, 2, 4, 35), (2, 6), (0, 5)),
    ("conv_fwd", "fft_tiling", (1, 32), (2, 3, 3, 45), (1, 7), (1, 3)), ("conv_bwd_data", "fft", (1, 24), (5, 3, 21), (4,), 3),
    ("conv_bwd_filter", "fft_tiling", (1, 32), (1, 3, 3, 45), (1, 7), 1), ("conv_fwd", "fft", (1, 64), (1, 2, 57), (9,), 7),
    ("conv_bwd_filter", "fft", (8, 48), (1, 1, 5, 44), (3, 3), 1)])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_extents(op, name, extents, size, taps, padding, layout, simulated):
    """Transforms of many extents, tiles in both directions, results round the circle, rows that are tiles of their own."""
    case = Conv("extents", op, size, 2, taps, padding=padding, layout=layout)
    assert algorithm(op, name).supports(case.problem()) is None
    if name == "fft":
        assert {(c.lh, c.lw) for c in algorithm(op, name).configs(case.problem(), device())} == {extents}
    mine = bound_to(op, name, lh=extents[0], lw=extents[1], whole=int(name == "fft"), tile=SMALL, group=64, bound=1 << 30)
    contract.check_float(register(mine), case, again=False)


def test_a_small_workspace_is_kept(simulated):
    for op in OPS:
        problem, found = parse_problem("64x256x56x56 k256 5x5 p2 f32".split(), op), algorithm(op)
        need = [found.workspace(problem, device(), c) for c in found.configs(problem, device())]
        assert min(need) < max(need) / 4
        bound = found.configured(problem, device(), min(need))
        assert bound.workspace(problem, device(), bound.config) <= min(need)


def test_counts(simulated):
    """Frequencies, and multiply-adds a result and pair of channels, as docs/notes/fft.md has them."""
    for length, taps, most in ((32, 5, 2.62), (32, 11, 4.25), (16, 5, 3.61)):
        problem = parse_problem(f"1x8x56x56 k8 {taps}x{taps} f32".split(), "conv_fwd")
        plan = Plan(problem, Config(length, length, 0, SMALL, 1, 1 << 30))
        assert plan.frequencies == length**2 // 2 + 2
        assert 4 * plan.frequencies / (length - taps + 1)**2 == pytest.approx(most, abs=0.01)


def test_a_gradient_is_the_same_correlation(simulated):
    problem = parse_problem("2x3x9x8 k5 4x3 p1 f32".split(), "conv_bwd_data")
    c = correlation(problem)
    assert (c.a.name, c.y.name, c.pads, c.pads_after) == ("y", "x", (2, 1), (2, 1))
    assert (c.b.outer, c.b.channels, c.b.first) == (3, 5, 11)
    assert c.b.strides == (12, 36, -3, -1)


@pytest.mark.parametrize("words, reason", [
    ("1x8x8x8 k8 3x3 s2 p1 f32", "stride 2x2"), ("1x8x8x8 k8 3x3 d2 f32", "dilation 2x2"), ("1x8x8x8 k8 3x3 g2 f32", "2 groups"),
    ("1x8x8x8 k8 3x3 f64", "dtype float64"), ("1x8x8x8x8 k8 3x3x3 f32", "three dimensions"), ("1x8x99x99 k8 33x33 f32", "filter is 33x33"),
    ("1x8x99x99 k8 33x33 f32", "99x99"), ("1x8x999 k8 65 f32", "filter is 1x65")])
def test_refusals(words, reason, simulated):
    problem = parse_problem(words.split(), "conv_fwd")
    assert any(reason in algorithm("conv_fwd", name).supports(problem) for name in ("fft", "fft_tiling"))
