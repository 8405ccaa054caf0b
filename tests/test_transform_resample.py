"""Resampled images: random problems, PyTorch's results, places, special values, bad input."""
from fractions import Fraction

import numpy as np
import pytest
from cases._resample import FILTERED, MODES, SHORT, Resample
from cases.resample_bwd import CASES
from contract import Run, device, random_layout, random_problems, registered
from labs import array, host
from test_transform import refused

import dnnkern
from dnnkern import dispatch
from dnnkern.dispatch import NotSupported
from dnnkern.host.tensor import Tensor
from dnnkern.transform.sample import resample_chunks, resample_fwd_tiles
from dnnkern.transform._parse import parse_problem
from dnnkern.transform.sample._resample_problem import make_axis, make_resample
from dnnkern.transform.sample.resample_chunks import _config


@pytest.mark.parametrize("op", ["resample_fwd", "resample_bwd"])
def test_random_images(request, op):
    st = pytest.importorskip("hypothesis.strategies")

    def problems(draw):
        dims = draw(st.integers(1, 3))
        most = (24, 9, 4)[dims - 1]
        shape = draw(st.integers(1, 2)), draw(st.sampled_from([1, 3, 8, 16])), *(draw(st.integers(1, most)) for _ in range(dims))
        size = tuple(draw(st.integers(1, most)) for _ in range(dims))
        mode, corners, antialias = draw(st.sampled_from((*((*mode, False) for mode in MODES), ("nearest-exact", False, False), *FILTERED)))
        names = ("x", "y") if op == "resample_fwd" else ("dx", "dy")
        dtype, layout = draw(st.sampled_from(list(SHORT))), draw(st.sampled_from(["NCHW", "NHWC"]))
        return Resample(op, "random", shape, size, dtype, mode, corners, layout,
                        {name: random_layout(draw, st, dims + 2) for name in names}, antialias)
    random_problems(request, problems, 40)


@pytest.mark.parametrize("image, size", [((7,), (13,)), ((5, 6), (10, 12)), ((9, 4), (4, 1)), ((1, 5), (6, 2)), ((2, 3, 4), (4, 5, 3))])
def test_images_and_gradients_are_those_of_torch(image, size):
    torch = pytest.importorskip("torch")
    rng, dims = np.random.default_rng(6), len(image)
    for mode, corners in MODES:
        name = "nearest" if mode == "nearest" else ("linear", "bilinear", "trilinear")[dims - 1]
        x = torch.from_numpy(rng.standard_normal((2, 4, *image))).requires_grad_()
        y = torch.nn.functional.interpolate(x, size, mode=name, align_corners=None if mode == "nearest" else corners)
        dy = rng.standard_normal(y.shape)
        y.backward(torch.from_numpy(dy))
        more = dict(mode=mode, align_corners=corners)
        tiles = mode == "bilinear" and (dims < 3 or image[0] == size[0])
        for algo in ("naive", "chunks", *("tiles",) * tiles):
            ours = host(dnnkern.resample_fwd(array(x.detach().numpy(), "float64"), size, algo=algo, **more))
            assert np.allclose(ours, y.detach().numpy(), rtol=0, atol=1e-13), (mode, corners, algo)
            if algo == "tiles":
                continue
            ours = host(dnnkern.resample_bwd(array(dy, "float64"), x.shape, algo=algo, **more))
            assert np.allclose(ours, x.grad.numpy(), rtol=0, atol=1e-13), (mode, corners, algo)


@pytest.mark.parametrize("image, size", [((5, 6), (10, 12)), ((9, 4), (4, 2)), ((6, 7), (3, 9)), ((1, 5), (6, 2)), ((7, 8), (7, 3)),
                                         ((5, 5), (5, 5)), ((2, 31), (8, 4))])
@pytest.mark.parametrize("mode, corners, antialias", [("nearest-exact", False, False), *FILTERED])
def test_filters_are_those_of_torch(image, size, mode, corners, antialias):
    """But for results of one pixel in a row, whose antialiased rows PyTorch 2.13 takes for one another on a CPU."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(7)
    x = torch.from_numpy(rng.standard_normal((2, 3, *image))).requires_grad_()
    y = torch.nn.functional.interpolate(x, size, mode=mode, align_corners=corners if mode.startswith("bi") else None, antialias=antialias)
    dy = rng.standard_normal(y.shape)
    y.backward(torch.from_numpy(dy))
    more = dict(mode=mode, align_corners=corners, antialias=antialias)
    for algo in ("naive", *(("chunks",) if mode == "nearest-exact" else ("axes", "tiles"))):
        if algo == "tiles" and max(antialias * 4 * i // o for i, o in zip(image, size)) > 12:
            continue
        ours = host(dnnkern.resample_fwd(array(x.detach().numpy(), "float64"), size, algo=algo, **more))
        assert np.allclose(ours, y.detach().numpy(), rtol=0, atol=1e-12), algo
        if algo == "tiles":
            continue
        ours = host(dnnkern.resample_bwd(array(dy, "float64"), x.shape, algo=algo, **more))
        assert np.allclose(ours, x.grad.numpy(), rtol=0, atol=1e-12), algo


@pytest.mark.parametrize("mode, corners, antialias", FILTERED)
def test_a_constant_image_stays_constant(mode, corners, antialias):
    x = array(np.full((1, 2, 9, 7), 3.0))
    for size in ((4, 21), (9, 7), (1, 1), (20, 3)):
        for algo in ("naive", "axes", "tiles"):
            y = host(dnnkern.resample_fwd(x, size, mode=mode, align_corners=corners, antialias=antialias, algo=algo))
            np.testing.assert_allclose(y, 3.0, rtol=2e-6)


def test_places_are_fractions():
    for inner, outer in ((5, 7), (7, 5), (6, 12), (12, 4), (1, 9), (9, 1)):
        for mode, corners in MODES:
            axis = make_axis(inner, outer, mode, corners)
            for i in range(outer):
                at = {"nearest": Fraction(i * inner, outer), "bilinear": Fraction((2 * i + 1) * inner, 2 * outer) - Fraction(1, 2)}[mode]
                if corners:
                    at = Fraction(i * (inner - 1), outer - 1) if outer > 1 else Fraction(0)
                assert Fraction(i * axis.a + axis.b, axis.d) == at


def test_what_a_thread_takes():
    def config(words, op="resample_fwd"):
        found = _config(parse_problem(words.split(), op))
        return found.channels, found.elements, found.unit
    assert config("2x64x8x8 f16 16x16 bilinear nhwc") == config("2x64x8x8 f16 16x16 nhwc", "resample_bwd") == (True, 8, 16)
    assert config("2x6x8x8 f16 16x16 nhwc") == (True, 2, 4) and config("2x3x8x8 f32 16x16 nhwc") == (True, 1, 4)
    assert config("2x64x8x8 f16 16x16 bilinear") == (False, 8, 16) and config("2x64x8x8 f32 16x17") == (False, 4, 4)
    assert config("2x64x8x8 f32 16x16", "resample_bwd") == (False, 1, 4), "threads are few"
    assert config("32x64x64x64 f16 128x128", "resample_bwd") == (False, 16, 2)
    assert config("8x21x256x256 f32 512x512", "resample_bwd") == (False, 11, 4)
    assert config("32x64x64x64 f64 128x128", "resample_bwd") == (False, 8, 8)
    last = Tensor((2, 64, 8, 8), (64 * 64, 1, 8 * 64, 64), "float16")
    wide = Tensor((2, 64, 16, 16), (256 * 64, 1, 16 * 64, 64), "float16")
    problem = make_resample("resample_fwd", (last,), wide, (16, 16), "bilinear", False, "NCHW", False, frozenset())
    assert _config(problem).channels and _config(problem).unit == 16, "channels are contiguous, whatever the layout is called"


@pytest.mark.parametrize("algo", ["naive", "chunks", "tiles"])
def test_pixels_without_a_share_do_not_count(algo):
    x = np.ones((1, 8, 3, 3))
    x[:, :, 1, 1] = np.inf
    for layout, order in (("NCHW", (0, 1, 2, 3)), ("NHWC", (0, 2, 3, 1)))[:1 if algo == "tiles" else 2]:
        y = host(dnnkern.resample_fwd(array(x.transpose(order)), (5, 5), mode="bilinear", align_corners=True, layout=layout, algo=algo))
        y = y.transpose(np.argsort(order))[0, 3]
        assert np.isinf(y[1:4, 1:4]).all() and (y[0] == 1).all() and (y[:, 0] == 1).all() and not np.isnan(y).any()
        if algo == "tiles":
            continue
        dy = np.ones((1, 8, 5, 5))
        dy[:, :, 0, 0] = np.nan
        dx = host(dnnkern.resample_bwd(array(dy.transpose(order)), np.array(x.shape)[list(order)].tolist(), mode="bilinear",
                                       align_corners=True, layout=layout, algo=algo)).transpose(np.argsort(order))[0, 5]
        assert np.isnan(dx[0, 0]) and np.isnan(dx).sum() == 1, "the corner belongs to one pixel alone"


@pytest.mark.parametrize("algo", ["naive", "axes", "tiles"])
@pytest.mark.parametrize("size", [42, 48])  # 41 / 41 is less than 1 in float32, and 47 / 47 too, where one is made by a reciprocal
def test_pixels_at_a_whole_distance_do_not_count(size, algo):
    """The last place lies on the last pixel: of the cubic's other pixels none has a share."""
    x = np.ones((1, 1, 30))
    x[..., :-1] = np.inf
    y = host(dnnkern.resample_fwd(array(x), (size,), mode="bicubic", align_corners=True, algo=algo))
    assert y[0, 0, -1] == 1 and not np.isfinite(y[0, 0, 1:-1]).any()
    if algo == "tiles":  # whose columns are such too
        column = host(dnnkern.resample_fwd(array(x[..., None]), (size, 1), mode="bicubic", align_corners=True, algo=algo))
        assert column[0, 0, -1, 0] == 1 and not np.isfinite(column[0, 0, 1:-1]).any()
        return
    dy = np.ones((1, 1, size))
    dy[..., -1] = np.nan
    dx = host(dnnkern.resample_bwd(array(dy), x.shape, mode="bicubic", align_corners=True, algo=algo))
    assert np.isnan(dx[0, 0, -1]) and np.isfinite(dx[0, 0, :-1]).all()


def test_bad_images():
    x = array(np.ones((1, 2, 3, 4)))
    for more, error, words in (((5, 6, 7), ValueError, ["size=(5, 6, 7)", "3 entries", "2 spatial"]),
                               ((-1, -1), ValueError, ["size is -1"]),
                               (2.0, TypeError, ["size=2.0"]), ((5, 2.5), TypeError, ["size[1]=2.5"])):
        refused(error, words, "resample_fwd", x, more)
    refused(ValueError, ["mode='cubic'", "'bilinear'"], "resample_fwd", x, 5, mode="cubic")
    for mode in ("nearest", "nearest-exact", "area"):
        refused(ValueError, ["align_corners=True", f"'{mode}'", "'bicubic'"], "resample_fwd", x, 5, mode=mode, align_corners=True)
        refused(ValueError, ["antialias=True", f"'{mode}'", "'bicubic'"], "resample_fwd", x, 5, mode=mode, antialias=True)
    refused(ValueError, ["antialias=True", "align_corners=True"], "resample_fwd", x, 5, mode="bicubic", antialias=True, align_corners=True)
    refused(TypeError, ["antialias=1"], "resample_fwd", x, 5, mode="bicubic", antialias=1)
    refused(NotSupported, ["'chunks'", "'bilinear' with antialias"], "resample_fwd", x, 5, mode="bilinear", antialias=True, algo="chunks")
    refused(NotSupported, ["'axes'", "'nearest'", "'area'"], "resample_fwd", x, 5, algo="axes")
    refused(NotSupported, ["'tiles'", "'nearest'", "'bilinear'"], "resample_fwd", x, 5, algo="tiles")
    refused(NotSupported, ["'tiles'", "x has stride 2 along the width", "expected 1"], "resample_fwd", array(np.ones((1, 3, 4, 2))), 5,
            mode="bicubic", layout="NHWC", algo="tiles")
    refused(NotSupported, ["'tiles'", "depth is 2 and 4", "the same"], "resample_fwd", array(np.ones((1, 1, 2, 3, 4))), (4, 3, 4),
            mode="bicubic", algo="tiles")
    refused(NotSupported, ["'tiles'", "16 pixels", "at most 12"], "resample_fwd", array(np.ones((1, 1, 64, 64))), (64, 4), mode="area",
            algo="tiles")
    refused(ValueError, ["'NCWH'", "'NHWC'"], "resample_fwd", x, 5, layout="NCWH")
    refused(ValueError, ["x has shape (3, 4)", "3, 4 or 5"], "resample_fwd", array(np.ones((3, 4))), 5)
    refused(ValueError, ["(1, 2, 0, 4)", "no pixels"], "resample_fwd", array(np.ones((1, 2, 0, 4))), 5)
    refused(ValueError, ["out has shape (1, 2, 5, 6)", "(1, 2, 5, 5)"], "resample_fwd", x, 5, out=((1, 2, 5, 6), "float32"))
    refused(TypeError, ["out is float16"], "resample_fwd", x, 5, out=((1, 2, 5, 5), "float16"))
    refused(TypeError, ["x is int32"], "resample_fwd", array(np.ones((1, 2, 3, 4)), "int32"), 5)
    refused(TypeError, ["x: got NoneType"], "resample_fwd", None, 5)


def test_bad_gradients():
    dy = array(np.ones((1, 2, 3, 4)))
    refused(ValueError, ["(1, 2, 3, 4)", "(1, 3, 3, 4)"], "resample_bwd", dy, (1, 3, 3, 4))
    refused(ValueError, ["(1, 2, 3, 4)", "(2, 2, 3, 4)"], "resample_bwd", dy, (2, 2, 3, 4))
    refused(ValueError, ["(1, 2, 5)"], "resample_bwd", dy, (1, 2, 5))
    refused(ValueError, ["x_shape has shape (1, 2)"], "resample_bwd", dy, (1, 2))
    refused(TypeError, ["x_shape is 7"], "resample_bwd", dy, 7)
    refused(ValueError, ["out has shape (1, 2, 3, 4)", "(1, 2, 6, 6)"], "resample_bwd", dy, (1, 2, 6, 6), out=((1, 2, 3, 4), "float32"))
    refused(TypeError, ["dy: got NoneType"], "resample_bwd", None, (1, 2, 3, 4))
    refused(TypeError, ["dy is int32"], "resample_bwd", array(np.ones((1, 2, 3, 4)), "int32"), (1, 2, 6, 6))


@pytest.mark.parametrize("case", [c for c in CASES if not c.problem().filter], ids=lambda case: case.id)
def test_gradients_of_channels_that_lie_apart(case, monkeypatch):
    """Chunks of several channels, the last one not whole, as larger images have them."""
    monkeypatch.setattr(resample_chunks, "FEW", 1)
    monkeypatch.setattr(resample_chunks, "MOST_APART", 4)
    algorithm = next(a for a in dispatch.algorithms("resample_bwd") if a.name == "chunks")
    with registered(algorithm) as mine:
        values = case.values("float")
        run = Run(case, mine, values)
        run.check_memory()
        run.check_values(*case.reference(values))


TILED = [Resample("resample_fwd", f"tiles-{name}", *rest) for name, *rest in (
    ("bicubic-twice", (2, 3, 20, 37), (40, 74), "float16", "bicubic"), ("bicubic-wide", (1, 2, 9, 300), (33, 1100), "bfloat16", "bicubic"),
    ("bicubic-corners", (3, 2, 21, 16), (47, 31), "float32", "bicubic", True),
    ("bicubic-skips", (1, 3, 70, 90), (9, 8), "float32", "bicubic"), ("bicubic-float64", (2, 2, 11, 13), (40, 50), "float64", "bicubic"),
    ("bilinear", (5, 3, 19, 24), (50, 57), "float16", "bilinear"), ("line", (2, 40, 60), (150,), "float16", "bicubic"),
    ("bilinear-corners", (2, 3, 33, 40), (12, 21), "float32", "bilinear", True),
    ("area", (2, 2, 45, 80), (13, 20), "float32", "area"), ("area-up", (2, 2, 6, 8), (25, 16), "float16", "area"))]
TILED += [Resample("resample_fwd", f"tiles-{mode}-antialias-{size[1]}", (2, 3, 50, 72), size, "float16", mode, antialias=True)
          for mode, size in (("bilinear", (23, 31)), ("bicubic", (23, 31)), ("bicubic", (70, 90)))]


@pytest.mark.sized
@pytest.mark.parametrize("case", TILED, ids=lambda case: case.id)
def test_tiles(case, monkeypatch):
    """All configurations, with several tiles of a plane and several planes of a block."""
    algorithm, problem, values = dispatch.named("resample_fwd", "tiles"), case.problem(), case.values("float")
    blocks = resample_fwd_tiles._blocks
    for more in (True, False):
        if more:
            monkeypatch.setattr(resample_fwd_tiles, "_blocks", lambda *call: (blocks(*call)[0], 2, 1))
        for variant in algorithm.variants(problem, device()):
            with registered(variant) as mine:
                run = Run(case, mine, values)
                run.check_memory()
                run.check_values(*case.reference(values))
        monkeypatch.undo()
