"""Sampled images and affine grids: PyTorch's results, random problems, coordinates that are not finite, rough grids, words, bad input."""
import numpy as np
import pytest
from cases._grid import SampleBackward, SampleForward
from cases._resample import SHORT
from contract import ALLOW, Run, device, random_layout, random_problems, refusal, registered
from labs import array, elsewhere, host, refused

import dnnkern
from dnnkern import dispatch
from dnnkern.transform._parse import FAMILY, SMALL, parse_problem

SAMPLES, AFFINES = ("grid_sample_fwd", "grid_sample_bwd"), ("affine_grid_fwd", "affine_grid_bwd")
FWD, BWD = dnnkern.grid_sample_fwd, dnnkern.grid_sample_bwd


def names(op):
    """Of the algorithms of an operation."""
    return [a.name for a in dispatch.algorithms(op)]


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("image, size", [((4, 5), (3, 6)), ((1, 3), (2, 2)), ((3, 2, 4), (2, 3, 2))])
def test_samples_and_gradients_are_those_of_torch(image, size, mode, padding, corners):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    x = torch.from_numpy(rng.standard_normal((2, 4, *image))).requires_grad_()
    grid = torch.from_numpy(rng.uniform(-2.5, 2.5, (2, *size, len(size)))).requires_grad_()
    y = torch.nn.functional.grid_sample(x, grid, mode, padding, corners)
    dy, how = rng.standard_normal(y.shape), {"mode": mode, "padding_mode": padding, "align_corners": corners}
    y.backward(torch.from_numpy(dy))
    given = array(x.detach().numpy(), "float64"), array(grid.detach().numpy(), "float64")
    for algo in names("grid_sample_fwd"):
        np.testing.assert_allclose(host(FWD(*given, algo=algo, **how)), y.detach().numpy(), atol=1e-12, err_msg=algo)
    for algo in names("grid_sample_bwd"):
        dx, dgrid = BWD(array(dy, "float64"), *given, algo=algo, allow=ALLOW, **how)
        np.testing.assert_allclose(host(dx), x.grad.numpy(), atol=1e-12, err_msg=algo)
        np.testing.assert_allclose(host(dgrid), grid.grad.numpy(), atol=1e-12, err_msg=algo)


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (2, 1, 3, 2, 4), (3, 1, 2, 7)])
def test_affine_grids_are_those_of_torch(size, corners):
    torch = pytest.importorskip("torch")
    rng, dims = np.random.default_rng(4), len(size) - 2
    theta = torch.from_numpy(rng.standard_normal((size[0], dims, dims + 1))).requires_grad_()
    grid = torch.nn.functional.affine_grid(theta, size, align_corners=corners)
    dgrid = rng.standard_normal(grid.shape)
    grid.backward(torch.from_numpy(dgrid))
    for algo in names("affine_grid_fwd"):
        ours = dnnkern.affine_grid_fwd(array(theta.detach().numpy(), "float64"), size, align_corners=corners, algo=algo)
        np.testing.assert_allclose(host(ours), grid.detach().numpy(), atol=1e-13, err_msg=algo)
    for algo in names("affine_grid_bwd"):
        ours = dnnkern.affine_grid_bwd(array(dgrid, "float64"), align_corners=corners, algo=algo)
        np.testing.assert_allclose(host(ours), theta.grad.numpy(), atol=1e-12, err_msg=algo)


@pytest.mark.parametrize("kind", [SampleForward, SampleBackward])
def test_random_samples(request, kind):
    def problems(draw):
        st = pytest.importorskip("hypothesis").strategies
        dims = draw(st.sampled_from([2, 2, 3]))
        shape = draw(st.integers(1, 2)), draw(st.integers(1, 5)), *(draw(st.integers(1, 7 if dims == 2 else 3)) for _ in range(dims))
        size = tuple(draw(st.integers(1, 5 if dims == 2 else 2)) for _ in range(dims))
        rank = {**dict.fromkeys(("x", "y", "dy", "dx"), dims + 2), **dict.fromkeys(("grid", "dgrid"), dims + 2)}
        return kind("random", shape, size, draw(st.sampled_from(list(SHORT))), "bilinear",
                    draw(st.sampled_from(["zeros", "border", "reflection"])), draw(st.booleans()), "",
                    {name: random_layout(draw, st, n) for name, n in rank.items()})
    random_problems(request, problems, 12)


@pytest.mark.parametrize("algo", names("grid_sample_fwd"))
def test_coordinates_that_are_not_finite_read_nothing(algo):
    """The simulator raises on a read outside the arrays."""
    x, far = np.tile(np.arange(1.0, 7).reshape(1, 1, 2, 3), (1, 4, 1, 1)), [np.nan, np.inf, -np.inf, 1e30, -1e30, 3e9]
    grid = np.array([[[[v, 0] for v in far], [[0, v] for v in far]]])
    assert not host(FWD(array(x), array(grid), algo=algo)).any()
    border = host(FWD(array(x), array(grid), padding_mode="border", algo=algo))[0, 0]
    np.testing.assert_array_equal(border[0], [2.5, 4.5, 2.5, 4.5, 2.5, 4.5])
    np.testing.assert_array_equal(border[1], [2, 5, 2, 5, 2, 5])
    for how in ({"mode": "nearest"}, {"mode": "nearest", "padding_mode": "border"}, {"padding_mode": "reflection"}):
        y = host(FWD(array(x), array(grid), algo=algo, **how))
        assert ((y == 0) | (y >= 1) & (y <= 6)).all()


@pytest.mark.parametrize("algo", names("grid_sample_bwd"))
def test_gradients_where_coordinates_are_not_finite(algo):
    grid = np.full((1, 3, 5, 2), np.nan)
    grid[0, 1, 2] = 0
    dx, dgrid = BWD(array(np.ones((1, 2, 3, 5))), array(np.ones((1, 2, 4, 4))), array(grid), algo=algo, allow=ALLOW)
    dx, dgrid = host(dx), host(dgrid)
    np.testing.assert_array_equal(dx[0, 0], np.pad(np.full((2, 2), 0.25), 1))
    assert not dgrid.any()


def test_pixels_that_are_not_finite_stay_where_they_are():
    x = np.ones((1, 4, 4, 4))
    x[0, :, 1, 1] = np.inf
    for algo in names("grid_sample_fwd"):
        y = host(FWD(array(x), array([[[[-0.25, -0.25], [0.75, 0.75]]]]), algo=algo))
        assert y[0, 0, 0, 0] == np.inf and y[0, 0, 0, 1] == 1


def test_a_grid_that_leads_everywhere_to_one_pixel():
    """More places than a list has room for at once, and in rows of their own."""
    case = SampleBackward("one-pixel-f32", (1, 2, 17, 18), (20, 33), padding="border", wide=0.01)
    values = case.values("float")
    reference, tolerance = case.reference(values)
    for algorithm in dispatch.algorithms("grid_sample_bwd"):
        if refusal(algorithm, case.problem()) is None and algorithm.name != "naive":
            run = Run(case, algorithm, values)
            run.check_memory()
            run.check_values(reference, tolerance)


LAST = {name: {"order": (0, 2, 3, 1)} for name in ("x", "dx", "dy")}
LISTS = [
    SampleBackward("several-parts-and-buckets-f32", (1, 3, 13, 17), (33, 37)),
    SampleBackward("several-images-in-two-rows-f64", (2, 1, 2, 130), (9, 13), "float64", corners=True, wide=1.1),
    SampleBackward("piles-at-the-border-bf16", (1, 5, 6, 5), (25, 26), "bfloat16", padding="border", wide=20.0),
    SampleBackward("piles-channels-last-f16", (1, 16, 5, 4), (25, 26), "float16", padding="border", wide=20.0, layout=LAST),
    SampleBackward("piles-odd-channels-last-f32", (1, 5, 5, 4), (25, 26), padding="border", wide=20.0, layout=LAST),
    SampleBackward("many-odd-channels-last-f32", (1, 37, 3, 3), (3, 5), padding="reflection", layout=LAST),
    SampleBackward("piles-in-a-volume-f64", (1, 3, 3, 2, 4), (12, 11, 10), "float64", padding="border", wide=20.0),
    SampleBackward("piles-at-the-nearest-f32", (1, 2, 4, 7), (25, 26), mode="nearest", padding="border", wide=20.0),
    SampleBackward("all-outside-f32", (1, 2, 4, 5), (5, 7), wide=0.0),
    SampleBackward("more-channels-than-a-turn-f32", (1, 70, 2, 3), (4, 3))]
"""Lists of every length, of tiles that are cut, in each of the ways that threads share channels."""


def outside(case, values):
    """Places that all lie outside, for a case of width 0."""
    return values if case.wide else {**values, "grid": values["grid"] + 3}


@pytest.mark.parametrize("case", LISTS, ids=lambda case: case.id)
def test_gradients_of_lists_of_every_length(case):
    """The second run in another order of threads, with another one's numbers in the workspace: not a bit changes."""
    values = outside(case, case.values("float"))
    (reference, tolerance), (algorithm,) = case.reference(values), [a for a in dispatch.algorithms(case.op) if a.name == "cells"]
    for variant in algorithm.variants(case.problem(), device()):
        with registered(variant) as mine:
            run = Run(case, mine, values)
            run.check_memory()
            run.check_values(reference, tolerance)
            with elsewhere() as stream:
                again = Run(case, mine, values, dirt=np.full(7, 0x55, np.uint8), stream=stream)
            assert all((run.raw()[name] == again.raw()[name]).all() for name in ("dx", "dgrid"))
    assert case.wide or not any(v.any() for v in reference.values())


def test_images_with_too_many_cells_are_refused():
    algorithm = next(a for a in dispatch.algorithms("grid_sample_bwd") if a.name == "cells")
    assert "16777216" in refusal(algorithm, parse_problem("1x1x4100x4100 f32 2x2".split(), "grid_sample_bwd"))
    assert refusal(algorithm, parse_problem("1x1x4000x4000 f32 2x2".split(), "grid_sample_bwd")) is None


@pytest.mark.parametrize("op", SAMPLES + AFFINES)
def test_words_and_records(op):
    words = "2x3x5x6 bf16 4x7 --mode nearest --padding border --corners" if op in SAMPLES else "2x3x5x6 bf16 --corners"
    problem = parse_problem(words.split(), op)
    assert problem.align_corners and problem.dims == 2 and problem.compute == "float32"
    assert FAMILY[op][2](dispatch.problem_record(problem)) == problem
    for text in ("2x3x5 f32 4x7", "2x3x5x6 f31 4x7", "2x3x5x6 int8 4x7") if op in SAMPLES else ("2x3x5 f32", "2x3x5x6 int8"):
        with pytest.raises((ValueError, TypeError)):
            parse_problem(text.split(), op)
    for text in SMALL[op]:
        assert parse_problem(text.split(), op).outputs[0].size
    shapes = pytest.importorskip(f"bench.shapes.{op}")
    for case in shapes.cases("all", ("float64", "float16")):
        if len(case.problem.outputs[0].shape) == 4:
            assert dispatch.get_algorithm(op, case.problem).name != "naive"


def test_bad_samples():
    x, grid, dy = array(np.ones((1, 2, 3, 4))), array(np.zeros((1, 5, 6, 2))), array(np.ones((1, 2, 5, 6)))
    refused(TypeError, ["grid: ", "NoneType"], FWD, x, None)
    refused(TypeError, ["x is int32"], FWD, array(np.ones((1, 2, 3, 4)), "int32"), grid)
    refused(TypeError, ["grid is float16", "float32"], FWD, x, array(np.zeros((1, 5, 6, 2)), "float16"))
    refused(ValueError, ["x has shape (2, 3, 4)"], FWD, array(np.ones((2, 3, 4))), grid)
    refused(ValueError, ["grid has shape (2, 5, 6, 2)", "(1, H, W, 2)"], FWD, x, array(np.zeros((2, 5, 6, 2))))
    refused(ValueError, ["grid has shape (1, 5, 6, 3)"], FWD, x, array(np.zeros((1, 5, 6, 3))))
    refused(ValueError, ["no pixels"], FWD, array(np.ones((1, 2, 0, 4))), grid)
    refused(ValueError, ["mode='bicubic'", "'nearest'"], FWD, x, grid, mode="bicubic")
    refused(ValueError, ["padding_mode='wrap'", "'reflection'"], FWD, x, grid, padding_mode="wrap")
    refused(TypeError, ["align_corners=1"], FWD, x, grid, align_corners=1)
    refused(ValueError, ["dy has shape (1, 2, 6, 5)", "(1, 2, 5, 6)"], BWD, array(np.ones((1, 2, 6, 5))), x, grid)
    refused(TypeError, ["dy is float16", "float32"], BWD, array(np.ones((1, 2, 5, 6)), "float16"), x, grid)
    refused(ValueError, ["out has 1 arrays", "dx, dgrid"], BWD, dy, x, grid, out=x)
    refused(ValueError, ["same memory as x"], FWD, x, array(np.zeros((1, 3, 4, 2))), out=x)


def test_bad_grids():
    theta, fwd, bwd = array(np.ones((2, 2, 3))), dnnkern.affine_grid_fwd, dnnkern.affine_grid_bwd
    refused(TypeError, ["theta: ", "NoneType"], fwd, None, (2, 1, 3, 4))
    refused(ValueError, ["(3, 4)", "(N, C, H, W)"], fwd, theta, (3, 4))
    refused(ValueError, ["theta has shape (2, 2, 3)", "(3, 2, 3)"], fwd, theta, (3, 1, 3, 4))
    refused(ValueError, ["theta has shape (2, 2, 3)", "(2, 3, 4)"], fwd, theta, (2, 1, 3, 4, 5))
    refused(TypeError, ["size is 4"], fwd, theta, 4)
    refused(TypeError, ["theta is int32"], fwd, array(np.ones((2, 2, 3)), "int32"), (2, 1, 3, 4))
    refused(TypeError, ["align_corners='yes'"], fwd, theta, (2, 1, 3, 4), align_corners="yes")
    refused(ValueError, ["out has shape (2, 3, 4, 1)", "(2, 3, 4, 2)"], fwd, theta, (2, 1, 3, 4), out=array(np.ones((2, 3, 4, 1))))
    refused(ValueError, ["dgrid has shape (2, 3, 4, 3)"], bwd, array(np.ones((2, 3, 4, 3))))
    refused(TypeError, ["dgrid is int32"], bwd, array(np.ones((2, 3, 4, 2)), "int32"))
