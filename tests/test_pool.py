"""Pooling: references against PyTorch's, random problems, NaN and infinities, ties, problems in words, bad input."""
import functools
import itertools
import json

import contract
import labs
import numpy as np
import pytest
from cases import lay
from cases._pool import DTYPES, Pool, adaptive_windows, axis_windows
from labs import array, host

import dnnkern
from dnnkern import dispatch
from dnnkern.dispatch import NotSupported
from dnnkern.host.tensor import Tensor
from dnnkern.host.window import output_extents
from dnnkern.pool._index import make_pixel_of_tap
from dnnkern.pool._parse import FAMILY, SMALL, parse_problem
from dnnkern.pool._problem import OPS, adaptive_window, check_index, make_adaptive_forward, make_forward

ALGORITHMS = sorted({a.name for a in dispatch.algorithms("max_pool_fwd")})


# ---- the references against PyTorch's

WINDOWS = [(3, 2, 1, False), (3, 2, 1, True), (2, 2, 0, True), (2, 3, 1, True), (5, 3, 2, True), (4, 4, 2, False), (3, 1, 1, False)]


@pytest.mark.parametrize("window, stride, padding, ceil_mode", WINDOWS)
@pytest.mark.parametrize("shape", [(1, 2, 11), (2, 3, 8, 9), (1, 2, 5, 6, 7)])
def test_references_are_pytorchs(shape, window, stride, padding, ceil_mode):
    torch = pytest.importorskip("torch")
    import torch.nn.functional as F
    dims, more = len(shape) - 2, dict(stride=stride, padding=padding, ceil_mode=ceil_mode)
    x = np.random.default_rng(1).integers(-3, 4, shape).astype(np.float64)  # ties
    given = torch.from_numpy(x)
    case = Pool("max_pool_fwd", "", shape, window, "float64", **more)
    y, index = case.maxima(x)
    expected, where = getattr(F, f"max_pool{dims}d")(given, window, return_indices=True, **more)
    np.testing.assert_array_equal(y, expected.numpy())
    np.testing.assert_array_equal(index, where.numpy())
    for counting, divisor in ((False, None), (True, None), *([(True, 5)] if dims > 1 else [])):
        case = Pool("avg_pool_fwd", "", shape, window, "float64", count_include_pad=counting, divisor=divisor, **more)
        given = torch.from_numpy(x).requires_grad_()
        last = {} if dims == 1 else {"divisor_override": divisor}
        expected = getattr(F, f"avg_pool{dims}d")(given, window, count_include_pad=counting, **last, **more)
        np.testing.assert_allclose(case.averages(x), expected.detach().numpy(), rtol=1e-13, atol=1e-13)
        dy = np.random.default_rng(2).standard_normal(expected.shape)
        expected.backward(torch.from_numpy(dy))
        np.testing.assert_allclose(case.spread(dy), given.grad.numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape, size", [((2, 3, 13), (5,)), ((2, 3, 7, 10), (3, 4)), ((1, 2, 3, 4), (5, 7)), ((1, 2, 5, 6, 7), (2, 6, 3))])
def test_adaptive_references_are_pytorchs(shape, size):
    torch = pytest.importorskip("torch")
    import torch.nn.functional as F
    dims, x = len(size), np.random.default_rng(1).integers(-3, 4, shape).astype(np.float64)
    case = Pool("max_pool_fwd", "", shape, size, "float64", adaptive=True)
    expected, where = getattr(F, f"adaptive_max_pool{dims}d")(torch.from_numpy(x), size, return_indices=True)
    y, index = case.maxima(x)
    np.testing.assert_array_equal(y, expected.numpy())
    np.testing.assert_array_equal(index, where.numpy())
    expected = getattr(F, f"adaptive_avg_pool{dims}d")(torch.from_numpy(x), size).numpy()
    np.testing.assert_allclose(case.averages(x), expected, rtol=1e-13, atol=1e-13)


def test_places_are_those_of_the_definition():
    sizes = range(1, 9), range(1, 5), range(1, 5), (0, 1, 4), (0, 2, 5), (1, 2), (False, True)
    for n, window, stride, before, after, dilation, ceil_mode in itertools.product(*sizes):
        (count,) = output_extents((n,), (window,), (stride,), ((before, after),), (dilation,), ceil_mode)
        found = axis_windows(n, window, stride, before, after, dilation, ceil_mode)
        assert max(count, 0) == len(found), (n, window, stride, before, after, dilation, ceil_mode)


def test_adaptive_windows_have_their_largest_extent():
    for n, m in itertools.product(range(1, 30), repeat=2):
        assert adaptive_window(n, m) == max(count for _, count in adaptive_windows(n, m))


# ---- what algorithms do

@pytest.mark.parametrize("op", OPS)
def test_random_problems(request, op):
    hypothesis = pytest.importorskip("hypothesis")
    st = hypothesis.strategies
    full = request.config.getoption("--full")

    def problems(draw):
        dims = draw(st.integers(1, 3))
        image = tuple(draw(st.integers(1, (20, 9, 4)[dims - 1])) for _ in range(dims))
        shape = draw(st.integers(1, 2)), draw(st.sampled_from([1, 3, 4, 8])), *image
        more = {"layout": draw(st.sampled_from(["NCHW", "NHWC"])), "index": draw(st.sampled_from(["int32", "int64", None]))}
        where = {name: {"gap": draw(st.sampled_from([0, 0, 1, 8])), "misaligned": draw(st.sampled_from([0, 0, 1]))} for name in "xy"}
        dtype = draw(st.sampled_from(DTYPES))
        if draw(st.booleans()):
            size = tuple(draw(st.integers(1, 6)) for _ in image)
            return Pool(op, "random", shape, size, dtype, adaptive=True, place=where, **more)
        window, stride, dilation = (tuple(draw(st.integers(1, n)) for _ in image) for n in (3, 3, 2))
        padding = tuple((draw(st.integers(0, 2)), max(draw(st.integers(0, 2)), d * (w - 1) + 1 - n)) for n, w, d in
                        zip(image, window, dilation))
        more.update(ceil_mode=draw(st.booleans()), count_include_pad=draw(st.booleans()) and op.startswith("avg"),
                    divisor=draw(st.sampled_from([None, 1, 7])) if op.startswith("avg") else None)
        return Pool(op, "random", shape, window, dtype, stride, padding, dilation, place=where, **more)

    @hypothesis.settings(max_examples=300 if full else 12, deadline=None, derandomize=not full, database=None,
                         suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(st.composite(problems)())
    def check(case):
        problem, values = case.problem(), case.values("float")
        reference, tolerance = case.reference(values)
        for algorithm in dispatch.algorithms(op):
            if contract.refusal(algorithm, problem) is None:
                run = contract.Run(case, algorithm, values, tight=True)
                run.check_memory()
                run.check_values(reference, tolerance)
    check()


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_nan_and_infinities(algo, layout):
    """NaN wins, the first one; of equal ones the first, be they -inf."""
    rng, shape = np.random.default_rng(0), (1, 8, 8, 8)
    x = rng.integers(-2, 3, shape).astype(np.float64)
    for value, share in ((-np.inf, 0.2), (np.inf, 0.05), (np.nan, 0.05)):
        x[rng.random(shape) < share] = value
    x[0, 3], x[0, 4, :, :4] = -np.inf, np.nan
    for window, more in ((3, dict(stride=2, padding=1)), (None, {})):
        y, index = Pool("max_pool_fwd", "", shape, window, **more).maxima(x)
        given = array(x if layout == "NCHW" else np.moveaxis(x, 1, -1))
        try:
            found = dnnkern.max_pool_fwd(given, window, layout=layout, return_index=True, algo=algo, **more)
            plain = dnnkern.max_pool_fwd(given, window, layout=layout, algo=algo, **more)
        except NotSupported:
            continue
        found, where, plain = (a if layout == "NCHW" else np.moveaxis(a, -1, 1) for a in map(host, (*found, plain)))
        np.testing.assert_array_equal(where, index)
        np.testing.assert_array_equal(found, y)
        np.testing.assert_array_equal(plain, y)
    with np.errstate(invalid="ignore"):
        average = Pool("avg_pool_fwd", "", shape, 3, stride=2, padding=1).averages(x)
    try:
        found = host(dnnkern.avg_pool_fwd(given, 3, stride=2, padding=1, layout=layout, algo=algo))
    except NotSupported:
        return
    found = found if layout == "NCHW" else np.moveaxis(found, -1, 1)
    np.testing.assert_allclose(found, average, rtol=1e-6)


def test_an_infinite_gradient_stays_where_it_belongs():
    """A pixel outside an infinite gradient's window gets nothing of it, not even NaN."""
    dy = np.zeros((1, 8, 4, 4))
    dy[0, :, 1, 1] = np.inf
    for layout, algorithm in itertools.product(("NCHW", "NHWC"), dispatch.algorithms("avg_pool_bwd")):
        given, shape = array(dy if layout == "NCHW" else np.moveaxis(dy, 1, -1)), (1, 8, 8, 8)
        try:
            dx = host(dnnkern.avg_pool_bwd(given, shape, 3, stride=2, padding=1, layout=layout, algo=algorithm.name))
        except NotSupported:
            continue
        expected = np.zeros((8, 8))
        expected[1:4, 1:4] = np.inf
        np.testing.assert_array_equal(dx[0, 0] if layout == "NCHW" else dx[0, ..., 0], expected)


def test_results_larger_than_any_memory():
    """Said at once, whatever the window's arithmetic takes."""
    x = array(np.ones((1, 1, 4, 4)), "float32")
    for size, words in ((2 ** 63, "output_size is 9223372036854775808; expected 9223372036854775807 or less"),
                        (2 ** 31 - 1, r"out would have shape \(1, 1, 2147483647, 2147483647\), 18446744056529682436 bytes in all")):
        with pytest.raises(ValueError, match=f"adaptive_avg_pool_fwd: {words}"):
            dnnkern.adaptive_avg_pool_fwd(x, size)
    with pytest.raises(ValueError, match="avg_pool_fwd: out would have shape"):
        dnnkern.avg_pool_fwd(x, 2, padding=2 ** 31 - 1)


def test_even_adaptive_windows_are_ordinary_ones():
    x = Tensor.packed((2, 3, 12, 8), "float32")
    even = make_adaptive_forward("avg_pool_fwd", False, (x,), None, (4, 2), "NCHW", frozenset())
    assert even == make_forward("avg_pool_fwd", False, (x,), None, (3, 4), None, 0, 1, False, False, None, "NCHW", frozenset())
    assert make_adaptive_forward("avg_pool_fwd", False, (x,), None, (5, None), "NCHW", frozenset()).y.shape == (2, 3, 5, 8)


def test_channels_last_in_memory_are_channels_side_by_side():
    """Arrays in channels-first order whose channels are last in memory, as PyTorch's channels_last ones, go the same way as NHWC."""
    x, y = (Tensor((2, 16, n, n), (16 * n * n, 1, 16 * n, 16), "float16") for n in (8, 4))
    channels = next(a for a in dispatch.algorithms("max_pool_fwd") if a.name == "channels")
    assert channels.supports(make_forward("max_pool_fwd", False, (x,), y, 2, None, 0, 1, False, False, None, "NCHW", frozenset())) is None
    packed = make_forward("max_pool_fwd", False, (x,), None, 2, None, 0, 1, False, False, None, "NCHW", frozenset())
    assert "channels are 16 elements apart in y" in channels.supports(packed)


# ---- windows that are compiled in

@pytest.mark.parametrize("window, stride, padding", [(3, 2, 1), (2, 2, 0), (3, 2, 0), (3, 1, 1), ((2, 3), (2, 1), (1, 0)), (2, 3, 0),
                                                     (5, 4, 2)])
@pytest.mark.parametrize("op", ["max_pool_bwd", "avg_pool_bwd"])
@pytest.mark.parametrize("layout, algo, dtype", [("NHWC", "patches", "float32"), ("NHWC", "patches", "bfloat16"),
                                                 ("NCHW", "rows", "float32"), ("NCHW", "rows", "float16")])
def test_gradients_in_every_configuration(op, layout, algo, dtype, window, stride, padding):
    case = Pool(op, "compiled", (2, 8, 11, 16), window, dtype, stride=stride, padding=padding, layout=layout, ceil_mode=window == 2)
    algorithm = next(a for a in dispatch.algorithms(op) if a.name == algo)
    if algorithm.supports(case.problem()) is not None:
        pytest.skip(algorithm.supports(case.problem()))
    for variant in algorithm.variants(case.problem(), contract.device()):
        contract.check(variant, case, again=False, **contract.ONCE)


@pytest.mark.parametrize("taps, columns", [(9, 3), (4, 2), (25, 5), (9, 9), (6, 3), (1, 1), (21, 7)])
def test_a_taps_number_is_its_pixel(taps, columns):
    pixel_of_tap = getattr(make_pixel_of_tap(taps, columns), "py_func", make_pixel_of_tap(taps, columns))
    for t in range(taps):
        assert pixel_of_tap(t, 100, 17, 2) == 100 + t // columns * 17 + t % columns * 2


# ---- in words, and to measure

@pytest.mark.parametrize("op", OPS)
def test_problems_come_back_from_their_records(op):
    for text in SMALL[op]:
        problem = parse_problem(text.split(), op)
        assert FAMILY[op][2](json.loads(json.dumps(dispatch.problem_record(problem)))) == problem
    with pytest.raises(ValueError, match=f"{op}: not a record"):
        FAMILY[op][2]({"x": 3})


def test_an_index_to_measure_on_is_in_the_image():
    for text in ("2x8x9x8 f32 3x3 s2 p1", "1x5x6x6 f64 4x4 adaptive", "1x3x2x2 f32 2x2 s1 p3", "1x3x4x5x6 f32 2x2x2 ceil nhwc",
                 "2x8x9x8 f32 3x3 s2 p1 index64"):
        problem = parse_problem(text.split(), "max_pool_bwd")
        values = np.broadcast_to(problem.operand_values("index"), problem.y.shape)
        assert 0 <= values.min() and values.max() < np.prod(problem.image)
        check_index(problem, {"index": array(values, problem.index.dtype)})
        with pytest.raises(ValueError, match="max_pool_bwd: index holds"):
            check_index(problem, {"index": array(values + np.prod(problem.image), problem.index.dtype)})


@pytest.mark.parametrize("words, op, message", [
    ("2x3x4x4 f32 3x3 q2", "max_pool_fwd", "'q2' is none of s2.*ceil, counting, index, index64, adaptive, .*divisor9"),
    ("2x3x4x4 f32 5x5", "avg_pool_bwd", "spans 5 along h"), ("2x3x4x4 i8 2x2", "max_pool_fwd", "x is int8")])
def test_words_that_make_no_problem(words, op, message):
    with pytest.raises(ValueError if "int8" not in message else TypeError, match=message):
        parse_problem(words.split(), op)


# ---- bad input

PICTURE = np.arange(96.0).reshape(1, 4, 4, 6)


def refused(error, words, function, *args, out=None, **kwargs):
    """The function raises `error`, its name first, with all the words; nothing is written."""
    guarded = out and labs.guarded(lay(*out))
    with labs.refuses(error, words, function):
        getattr(dnnkern, function)(*args, out=guarded and guarded.array, **kwargs)
    if guarded:
        labs.synchronize()
        guarded.assert_untouched("out")


@pytest.mark.parametrize("more, error, words", [
    ({"window": (2, 2, 2)}, ValueError, ["window=(2, 2, 2)", "3 entries", "2 spatial"]),
    ({"window": 0}, ValueError, ["window is 0", "1 or more"]),
    ({"window": 2.0}, TypeError, ["window=2.0"]),
    ({"window": 7}, ValueError, ["window spans 7 along h", "7 taps", "0 + 4 + 0"]),
    ({"window": 3, "dilation": 2}, ValueError, ["window spans 5 along h", "dilation 2"]),
    ({"window": 2, "stride": 0}, ValueError, ["stride is 0"]),
    ({"window": 2, "padding": -1}, ValueError, ["padding is -1"]),
    ({"window": 2, "padding": (1, 2, 3)}, ValueError, ["padding=(1, 2, 3)", "3 entries"]),
    ({"window": 2, "ceil_mode": 1}, TypeError, ["ceil_mode=1"]),
    ({"window": 2, "layout": "NCWH"}, ValueError, ["'NCWH'", "'NCHW', 'NHWC'"])])
def test_bad_windows(more, error, words):
    refused(error, words, "max_pool_fwd", array(PICTURE), **more)
    refused(error, words, "avg_pool_fwd", array(PICTURE), **more)
    dy = array(np.ones((1, 4, 2, 3)))
    refused(error, words, "avg_pool_bwd", dy, (1, 4, 4, 6), **more)
    refused(error, words, "max_pool_bwd", dy, array(np.ones((1, 4, 2, 3)), "int32"), (1, 4, 4, 6), **more)


def test_bad_images():
    dy, index = array(np.ones((1, 4, 2, 3))), array(np.ones((1, 4, 2, 3)), "int32")
    refused(ValueError, ["x has shape (2, 3)", "3, 4 or 5"], "max_pool_fwd", array(np.ones((2, 3))), 1)
    refused(TypeError, ["x: got NoneType"], "avg_pool_fwd", None, 2)
    refused(TypeError, ["x is int32", "float64, float32"], "max_pool_fwd", index, 1)
    refused(TypeError, ["return_index=1"], "max_pool_fwd", array(PICTURE), 2, return_index=1)
    refused(TypeError, ["count_include_pad='no'"], "avg_pool_fwd", array(PICTURE), 2, count_include_pad="no")
    for divisor, error, words in ((0, ValueError, ["divisor is 0", "1 or more"]), (2 ** 31, ValueError, ["divisor is 2147483648"]),
                                  (2.5, TypeError, ["divisor=2.5"])):
        refused(error, words, "avg_pool_fwd", array(PICTURE), 2, divisor=divisor)
        refused(error, words, "avg_pool_bwd", dy, (1, 4, 4, 6), 2, divisor=divisor)
    refused(ValueError, ["x_shape has shape (2, 3)"], "avg_pool_bwd", dy, (2, 3), 1)
    refused(TypeError, ["x_shape is 7"], "avg_pool_bwd", dy, 7, 2)
    refused(ValueError, ["dy has shape (1, 4, 2, 3)", "(1, 4, 2, 2)"], "avg_pool_bwd", dy, (1, 4, 4, 4), 2)
    refused(TypeError, ["index: got NoneType"], "max_pool_bwd", dy, None, (1, 4, 4, 6), 2)
    refused(TypeError, ["index is float32", "int32"], "max_pool_bwd", dy, dy, (1, 4, 4, 6), 2)
    refused(ValueError, ["index has shape (1, 4, 1, 3)", "(1, 4, 2, 3)"], "max_pool_bwd", dy, index[:, :, :1], (1, 4, 4, 6), 2)


@pytest.mark.parametrize("function", ["max_pool_fwd", "adaptive_max_pool_fwd"])
def test_the_type_of_an_index(function):
    """index_dtype's, or that of out's index."""
    x, run = array(PICTURE), getattr(dnnkern, function)
    y, index = run(x, 2, return_index=True)
    given = array(np.zeros(y.shape)), array(np.zeros(y.shape), "int64")
    for more in ({"index_dtype": "int64"}, {"index_dtype": np.int64}, {"out": given}):
        _, found = run(x, 2, return_index=True, **more)
        assert str(found.dtype) == "int64" and np.array_equal(host(found), host(index))
    with pytest.raises(TypeError, match=f"{function}: out, the index, is int64; expected int32"):
        run(x, 2, return_index=True, index_dtype="int32", out=given)
    refused(TypeError, ["index_dtype='int16'", "'int32', 'int64'"], function, x, 2, return_index=True, index_dtype="int16")
    refused(ValueError, ["index_dtype='int64' without return_index=True"], function, x, 2, index_dtype="int64")


@pytest.mark.parametrize("algo", [a.name for a in dispatch.algorithms("max_pool_bwd")])
def test_an_index_beyond_32_bits_has_no_effect(algo):
    for layout, shape in (("NCHW", (1, 8, 4, 8)), ("NHWC", (1, 4, 8, 8))):
        x = array(np.random.default_rng(0).standard_normal(shape))
        y, index = dnnkern.max_pool_fwd(x, 2, layout=layout, return_index=True, index_dtype="int64")
        for more, total in ((0, y.size), (2 ** 32, 0), (-2 ** 32, 0)):
            try:
                dx = dnnkern.max_pool_bwd(array(np.ones(y.shape)), array(host(index) + more, "int64"), shape, 2, layout=layout, algo=algo)
            except NotSupported:
                continue
            assert host(dx).sum() == total


def test_images_beyond_int32():
    """Their index has 64 bits, and only the naive algorithm counts so far."""
    x = Tensor.packed((1, 1, 2 ** 16, 2 ** 16), "float16")
    make = functools.partial(make_forward, "max_pool_fwd")
    more = 2, None, 0, 1, False, False, None, "NCHW", frozenset()
    with pytest.raises(ValueError, match="image of 4294967296 pixels; the int32 index holds fewer"):
        make("int32", (x,), None, *more)
    problem = make("int64", (x,), None, *more)
    assert [a.name for a in dispatch.algorithms("max_pool_fwd") if a.supports(problem) is None] == ["naive"]


def test_bad_adaptive_sizes():
    x = array(PICTURE)
    refused(ValueError, ["output_size is 0"], "adaptive_max_pool_fwd", x, 0)
    refused(ValueError, ["output_size=(1, 2, 3)", "3 entries"], "adaptive_avg_pool_fwd", x, (1, 2, 3))
    refused(TypeError, ["output_size[0]='a'"], "adaptive_avg_pool_fwd", x, ("a", 2))
    refused(ValueError, ["0x4", "needs a pixel"], "adaptive_avg_pool_fwd", array(np.ones((1, 2, 0, 4))), 2)
    refused(ValueError, ["dy has shape (1, 4, 4, 6)", "(1, 4, 5)"], "adaptive_avg_pool_bwd", x, (1, 4, 5))
    refused(ValueError, ["dy has shape (1, 4, 4, 6)", "(1, 3, 4, 6)"], "adaptive_avg_pool_bwd", x, (1, 3, 9, 9))
    refused(TypeError, ["index: got NoneType"], "adaptive_max_pool_bwd", x, None, (1, 4, 9, 9))


def test_bad_outputs():
    x = array(PICTURE)
    refused(ValueError, ["out has shape (1, 4, 2, 2)", "(1, 4, 2, 3)"], "max_pool_fwd", x, 2, out=((1, 4, 2, 2), "float32"))
    refused(TypeError, ["out is float16", "float32"], "avg_pool_fwd", x, 2, out=((1, 4, 2, 3), "float16"))
    refused(ValueError, ["1 arrays", "y, index"], "max_pool_fwd", x, 2, return_index=True, out=((1, 4, 2, 3), "float32"))
    y = array(np.zeros((1, 4, 2, 3)))
    for dtype, expected in ((None, "int32 or int64"), ("int64", "int64"), ("int32", "int32")):
        with pytest.raises(TypeError, match=f"max_pool_fwd: out, the index, is float32; expected {expected}$"):
            dnnkern.max_pool_fwd(x, 2, return_index=True, index_dtype=dtype, out=(y, array(np.zeros((1, 4, 2, 3)))))
    shared = labs.guarded(lay((1, 4, 2, 3), "float32", expand=(1,))).array
    with pytest.raises(ValueError, match="avg_pool_fwd: out.*share one address"):
        dnnkern.avg_pool_fwd(x, 2, out=shared)
    with pytest.raises(ValueError, match="max_pool_fwd: out is the same memory as x; in place it works with nothing"):
        dnnkern.max_pool_fwd(x, 1, out=x)
    refused(NotSupported, ["'quantum'", "channels"], "max_pool_fwd", x, 2, algo="quantum")
