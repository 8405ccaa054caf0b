"""Reductions: random problems, every width and split, special values, NumPy's and PyTorch's answers, forms, words, bad input."""
import dataclasses
import importlib
import json

import contract
import labs
import numpy as np
import pytest
from cases import lay, rounded
from cases.argreduce import CASES as ARG_CASES
from cases.argreduce import ArgReduce
from cases.reduce import CASES, INTEGERS, MODES, NAMES, OF_INTEGERS, Reduce
from contract import random_layout, random_problems
from labs import array, host

import dnnkern
from dnnkern import dispatch
from dnnkern.device import SIMULATED
from dnnkern.dispatch import NotSupported
from dnnkern.host.tensor import Tensor
from dnnkern.reduce._columns import Columns
from dnnkern.reduce._parse import FAMILY, SMALL, parse_problem
from dnnkern.reduce._problem import Kept, Reduced, make_form
from dnnkern.reduce._rows import WIDTHS, Rows, loads_of

ALGORITHMS = "naive", "rows", "columns", "two_stage"


def algorithm(op, name):
    return next(a for a in dispatch.algorithms(op) if a.name == name)


# ---- random problems

def _shape(draw, st, least):
    shape, limit = [], 600 if SIMULATED else 10 ** 6
    for _ in range(draw(st.integers(least, 5))):
        shape.append(draw(st.sampled_from([n for n in (1, 2, 3, 5, 8, 16, 37) if n <= limit])))
        limit //= shape[-1]
    return tuple(shape)


def test_random_reductions(request):
    st = pytest.importorskip("hypothesis.strategies")

    def problems(draw):
        shape = _shape(draw, st, 0)
        axes = tuple(sorted(draw(st.sets(st.integers(0, len(shape) - 1))))) if shape else ()
        keepdims = draw(st.booleans())
        left = len(shape) if keepdims else len(shape) - len(axes)
        dtype = draw(st.sampled_from(list(NAMES)))
        return Reduce("random", shape, axes, draw(st.sampled_from(OF_INTEGERS if dtype in INTEGERS else MODES)), dtype, keepdims,
                      {"x": random_layout(draw, st, len(shape)), "y": random_layout(draw, st, left)})
    random_problems(request, problems, 40)


def test_random_extremes(request):
    st = pytest.importorskip("hypothesis.strategies")

    def problems(draw):
        shape = _shape(draw, st, 1)
        axis, keepdims = draw(st.integers(0, len(shape) - 1)), draw(st.booleans())
        left = len(shape) - (not keepdims)
        return ArgReduce("random", shape, axis, draw(st.sampled_from(["min", "max"])), draw(st.sampled_from(list(NAMES))), keepdims,
                         {name: random_layout(draw, st, n) for name, n in (("x", len(shape)), ("value", left), ("index", left))})
    random_problems(request, problems, 30)


# ---- every way to read

def _check(op, name, case, way):
    bound = dataclasses.replace(algorithm(op, name), config=way)
    with contract.registered(bound) as mine:
        contract.check_exact(mine, case)


@pytest.mark.parametrize("width", WIDTHS)
def test_rows_of_any_width(width):
    for op, kind in (("reduce", Reduce), ("argreduce", ArgReduce)):
        even = kind(f"even-{width}", (3, 320), 1, "max", "float16")
        _check(op, "rows", even, Rows(4, False, width))
        odd = kind(f"odd-{width}", (5, 83), 1, "min", "float32", layout={"x": {"misaligned": 3}})
        assert loads_of(odd.problem()) == (4, True)
        _check(op, "rows", odd, Rows(4, True, width))


@pytest.mark.parametrize("across", [1, 2, 8, 32, 64, 256])
def test_blocks_of_columns_of_any_width(across):
    for op, kind in (("reduce", Reduce), ("argreduce", ArgReduce)):
        case = kind(f"columns-{across}", (37, 48), 0, "max", "bfloat16")
        _check(op, "columns", case, Columns(4, across))
        _check(op, "columns", case, Columns(0, across))


@pytest.mark.parametrize("splits", [2, 3, 7])
def test_any_number_of_splits(splits):
    for op, kind in (("reduce", Reduce), ("argreduce", ArgReduce)):
        ragged = kind(f"ragged-{splits}", (2, 4099), 1, "max", "float16", layout={"x": {"misaligned": 3}})
        _check(op, "two_stage", ragged, Rows(4, True, 128, splits))
        _check(op, "two_stage", kind(f"columns-{splits}", (4100, 8), 0, "min", "float16"), Columns(4, 4, splits))


# ---- integers, and results of another type

def whole(y):
    """The values, as integers."""
    labs.synchronize()
    return np.asarray(y.tolist(), np.int64)


@pytest.mark.parametrize("dtype", list(INTEGERS))
def test_integers_are_pytorchs(dtype):
    torch = pytest.importorskip("torch")
    low, high = {"bool": (0, 1), "int64": (-2 ** 52, 2 ** 52)}.get(dtype) or (np.iinfo(dtype).min, np.iinfo(dtype).max)
    x = torch.randint(low, high, (9, 70), generator=torch.Generator().manual_seed(2)).to(getattr(torch, dtype))
    x[0, 3], x[5, 69] = low, high
    mine = array(x.numpy(), dtype)
    for axis in (0, 1):
        wanted = {"add": x.sum(axis), "mul": x.prod(axis), "min": x.amin(axis), "max": x.amax(axis)}
        for mode, want in wanted.items():
            got = whole(dnnkern.reduce(mine, mode, axes=axis))
            np.testing.assert_array_equal(got, want.long().numpy(), err_msg=mode)
            assert str(want.dtype) == "torch." + dnnkern.problem("reduce", x=((9, 70), dtype), mode=mode, axes=axis).y.dtype
        if dtype != "bool":
            value, index = dnnkern.argreduce(mine, "max", axis=axis)
            np.testing.assert_array_equal(whole(value), x.amax(axis).long().numpy())
            np.testing.assert_array_equal(host(index), x.numpy().argmax(axis))


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_integers_wrap(algo):
    shape, axis = ((2, 4100), 1) if algo != "columns" else ((4100, 2), 0)
    x = array(np.full(shape, 2.0 ** 62 + 2.0 ** 22), "int64")
    want = (4100 * (2 ** 62 + 2 ** 22) + 2 ** 63) % 2 ** 64 - 2 ** 63
    assert (whole(dnnkern.reduce(x, "add", axes=axis, algo=algo)) == want).all()
    narrow = (want + 2 ** 31) % 2 ** 32 - 2 ** 31
    assert narrow != want and (whole(dnnkern.reduce(x, "add", axes=axis, algo=algo, out_dtype="int32")) == narrow).all()


def test_largest_magnitudes_of_the_least_integers():
    """They are beyond the largest integer of the type."""
    for dtype in ("int8", "int16", "int32"):
        least = int(np.iinfo(dtype).min)
        x = array(np.full((3, 40), least), dtype)
        assert (host(dnnkern.reduce(x, "amax", axes=1)) == -least).all() and (host(dnnkern.reduce(x, "norm1", axes=1)) == -40 * least).all()


def test_bool_counts_any_and_all():
    x = np.zeros((4, 70), bool)
    x[1, 69], x[2], x[3, 1:] = True, True, True
    for mode, want in (("add", [0, 1, 70, 69]), ("max", [0, 1, 1, 1]), ("min", [0, 0, 1, 0])):
        for algo in ("naive", "rows"):
            np.testing.assert_array_equal(host(dnnkern.reduce(array(x, "bool"), mode, axes=1, algo=algo)), want, err_msg=mode)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_results_of_float32_are_not_rounded_to_16_bits(dtype):
    x = array(np.full((3, 3000), 1.0), dtype)
    x[0, 0] = 2.0 ** -9
    for out in ("float32", np.float32):
        got = dnnkern.reduce(x, "add", axes=1, out_dtype=out)
        assert host(got).tolist() == [2999 + 2.0 ** -9, 3000, 3000]
    y = array(np.zeros(3))
    assert dnnkern.reduce(x, "add", axes=1, out=y) is y and host(y)[2] == 3000


# ---- special values

LENGTHS = {"rows": (2, 100), "naive": (2, 100), "columns": (2, 50), "two_stage": (2, 4100)}


def _reduced(values, mode, algo, dtype="float32", op="reduce"):
    """The result over elements that are 1 apart from these, which stand at both ends and in the middle of a row or column."""
    rows, length = LENGTHS[algo]
    x = np.ones((rows, length))
    for k, v in enumerate(values):
        x[:, (0, length // 2, length - 1)[k % 3]] = v
    x, axis = (np.ascontiguousarray(x.T), 0) if algo == "columns" else (x, 1)
    if op == "argreduce":
        value, index = dnnkern.argreduce(array(x, dtype), mode, axis=axis, algo=algo)
        return host(value)[0], host(index)[0]
    return host(dnnkern.reduce(array(x, dtype), mode, axes=axis, algo=algo))[0]


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_nan_and_infinities(algo, dtype):
    inf, nan, n = np.inf, np.nan, LENGTHS[algo][1]
    for k, mode in enumerate(MODES):
        for place in range(3) if algo != "two_stage" else (k % 3,):
            got = _reduced([1, 1, 1][:place] + [nan], mode, algo, dtype)
            assert np.isnan(got), (mode, place, got)
    assert _reduced([inf], "add", algo, dtype) == inf and np.isnan(_reduced([inf, -inf], "add", algo, dtype))
    assert _reduced([inf, -inf], "max", algo, dtype) == inf and _reduced([inf, -inf], "min", algo, dtype) == -inf
    assert _reduced([-inf], "amax", algo, dtype) == _reduced([-inf], "norm2", algo, dtype) == inf
    assert np.isnan(_reduced([inf, 0], "mul", algo, dtype)) and _reduced([inf, 0], "mul_no_zeros", algo, dtype) == inf
    assert _reduced([inf, -inf], "logsumexp", algo, dtype) == inf
    assert _reduced([inf, inf, 1], "logsumexp", algo, dtype) == inf and np.isnan(_reduced([inf, nan], "logsumexp", algo, dtype))
    tolerance = 1e-5 if dtype == "float32" else 8e-3
    assert abs(_reduced([-inf], "logsumexp", algo, dtype) - (1 + np.log(n - 1))) < tolerance


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_logsumexp_of_anything(algo):
    n = LENGTHS[algo][1]
    assert abs(_reduced([3e38], "logsumexp", algo) / 3e38 - 1) < 1e-6 and abs(_reduced([500, 500], "logsumexp", algo) - 500.6931) < 1e-3
    assert abs(_reduced([-3e38] * 3, "logsumexp", algo) - (1 + np.log(n - 3))) < 1e-5
    shape, axis = ((n, 2), 0) if algo == "columns" else ((2, n), 1)
    low = array(np.full(shape, -np.inf))
    assert host(dnnkern.reduce(low, "logsumexp", axes=axis, algo=algo)).tolist() == [-np.inf, -np.inf]
    assert np.allclose(host(dnnkern.reduce(array(np.full(shape, -900.0)), "logsumexp", axes=axis, algo=algo)), np.log(n) - 900, 1e-6)


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("dtype, sizes", [("float32", (1e38, 1e25, 1e-18, 1e-30, 1e-42)), ("bfloat16", (2.0 ** 126, 2.0 ** -120)),
                                          ("float64", (1e307, 1e200, 1e-160, 1e-300, 1e-320))])
def test_norms_of_any_size(algo, dtype, sizes):
    """Squares of which neither float32 nor float64 holds the sum."""
    n = LENGTHS[algo][1]
    bound = {"float32": 1e-6, "bfloat16": 4e-3, "float64": 1e-14}[dtype]
    shape, axis = ((2, n, 2), 1) if algo == "columns" else ((2, n), 1)
    for size in sizes:
        pattern = np.zeros(n)
        pattern[[0, n // 2]] = 0.75 * size, size
        x = np.repeat(pattern[None, :, None], 2, axis=2).repeat(2, axis=0) if len(shape) == 3 else np.tile(pattern, (2, 1))
        x = rounded(x, dtype)
        got = host(dnnkern.reduce(array(x, dtype), "norm2", axes=axis, algo=algo)).ravel()
        want = np.hypot(*x.reshape(2, n, -1)[0, [0, n // 2], 0])
        assert np.all(abs(got / want - 1) <= max(bound, 2e-3 if size in (1e-42, 1e-320) else 0)), (size, got, want)
    zeros = dnnkern.reduce(array(np.zeros(shape), dtype), "norm2", axes=axis, algo=algo)
    assert not host(zeros).any()


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_which_extreme_is_the_first(algo):
    n, nan, inf = LENGTHS[algo][1], np.nan, np.inf
    places = 0, n // 2, n - 1

    def found(values, mode, dtype="float32"):
        return _reduced(values, mode, algo, dtype, op="argreduce")
    assert found([5, 5, 5], "max") == (5, 0) and found([1, 5, 5], "max") == (5, places[1]) and found([1, 1, 5], "max") == (5, n - 1)
    assert found([1, 1, 0], "min") == (0, n - 1) and found([1, 1, 1], "min", "bfloat16") == (1, 0)
    for mode in ("min", "max"):
        for place in range(3):
            value, index = found([inf, -inf, inf][:place] + [nan] * (3 - place), mode, "float16")
            assert np.isnan(value) and index == places[place], (mode, place, index)
    assert found([-inf, 0, inf], "max") == (inf, n - 1) and found([inf, 0, -inf], "min") == (-inf, n - 1)
    assert found([0.0, -0.0, 0.0], "min") == (0, 0) and found([-0.0, 0.0], "min") == (0, 0)
    for value, mode in ((-inf, "max"), (inf, "min")):
        shape, axis = ((n, 2), 0) if algo == "columns" else ((2, n), 1)
        values, index = dnnkern.argreduce(array(np.full(shape, value)), mode, axis=axis, algo=algo)
        assert host(values).tolist() == [value] * 2 and host(index).tolist() == [0, 0]


def test_over_nothing():
    expected = {"mul": 1, "mul_no_zeros": 1, "min": np.inf, "max": -np.inf, "logsumexp": -np.inf}
    for mode in MODES:
        for shape, axes in (((2, 0), 1), ((0, 2), 0), ((2, 3, 0), (1, 2))):
            got = host(dnnkern.reduce(array(np.zeros(shape), "float16"), mode, axes=axes))
            assert got.tolist() == [expected.get(mode, 0)] * 2, mode
    assert host(dnnkern.reduce(array(np.zeros((4, 0, 3))), "add", axes=1)).shape == (4, 3)


def test_sums_are_not_made_one_after_the_other():
    """2**24 + 1 is no float32: thousands of ones behind 2**24 would be lost."""
    x = np.ones(8192)
    x[0] = 2.0 ** 24
    for algo in ("naive", "rows", "two_stage"):
        got = host(dnnkern.reduce(array(x), "add", algo=algo))
        assert abs(got - (2 ** 24 + 8191)) <= 600, (algo, got)


# ---- others' answers

def _torch(case, x, torch):
    t, dims = torch.from_numpy(x), list(case._axes)
    keep = {"dim": dims, "keepdim": case.keepdims}
    if case.mode in ("mul", "mul_no_zeros"):
        t = torch.where(t == 0, torch.ones_like(t), t) if case.mode == "mul_no_zeros" else t
        for a in sorted(dims, reverse=True):
            t = torch.prod(t, a, keepdim=case.keepdims)
        return t
    return {"add": lambda: torch.sum(t, **keep), "avg": lambda: torch.mean(t, **keep), "min": lambda: torch.amin(t, **keep),
            "max": lambda: torch.amax(t, **keep), "amax": lambda: torch.amax(t.abs(), **keep),
            "norm1": lambda: torch.linalg.vector_norm(t, 1, **keep), "norm2": lambda: torch.linalg.vector_norm(t, 2, **keep),
            "sum_square": lambda: torch.sum(t * t, **keep), "logsumexp": lambda: torch.logsumexp(t, **keep)}[case.mode]()


def test_references_are_pytorchs():
    torch = pytest.importorskip("torch")
    compared = set()
    for case in CASES:
        if case.length and case._axes and case.outputs()["y"].size:
            x = case.values("float")["x"].copy()
            assert np.allclose(case.reference({"x": x})[0]["y"], _torch(case, x, torch).numpy(), 1e-12, 1e-13), case.id
            compared.add(case.mode)
    assert compared == set(MODES)
    for case in ARG_CASES:
        if case.outputs()["value"].size:
            x = case.values("float")["x"].copy()
            value, _ = getattr(torch, case.mode)(torch.from_numpy(x), case.axes, keepdim=case.keepdims)
            assert np.array_equal(case.reference({"x": x})[0]["value"], value.numpy()), case.id


# ---- forms

def test_dimensions_are_folded():
    def form(shape, axes, ordered=False, **more):
        x = Tensor(shape, lay(shape, "float32", **more).strides, "float32")
        left = tuple(n for a, n in enumerate(shape) if a not in axes)
        return make_form(x, axes, Tensor.packed(left, "float32"), None, False, ordered)
    nchw = form((8, 6, 5, 4), (0, 2, 3))
    assert nchw.kept == (Kept(6, 20, 1, 1),) and nchw.reduced == (Reduced(8, 120), Reduced(20, 1))
    everything = form((8, 6, 5, 4), (0, 1, 2, 3), order=(3, 1, 0, 2), flip=(0, 2))
    assert everything.reduced == (Reduced(960, 1),) and everything.outputs == 1 and everything.length == 960
    assert everything.x_first == -(7 * 5 + 4), "walked from the lowest address on"
    backwards = form((5, 7), (1,), ordered=True, flip=(1,))
    assert backwards.reduced == (Reduced(7, -1),) and backwards.x_first == 0, "the order of positions counts"
    rows = form((5, 7), (1,), flip=(0,))
    assert rows.kept == (Kept(5, 7, -1, -1),) and (rows.x_first, rows.y_first) == (-28, 4)
    none = form((3, 1), ())
    assert none.reduced == (Reduced(1, 1),) and none.kept == (Kept(3, 1, 1, 1),)


def test_loads_follow_the_alignment():
    def loads(shape, axes, dtype="float16", **more):
        x = lay(shape, dtype, **more)
        problem = parse_problem(["x".join(map(str, shape)), dtype, "add", ",".join(map(str, axes))], "reduce")
        return loads_of(dataclasses.replace(problem, x=Tensor(x.shape, x.strides, x.dtype, x.alignment)))
    assert loads((4, 64), (1,)) == (4, False) and loads((4, 65), (1,)) == (4, True) and loads((4, 64), (1,), misaligned=3) == (4, True)
    assert loads((4, 12), (1,)) == (2, False) and loads((4, 6), (1,)) == (1, False) and loads((4, 5), (1,)) == (0, False)
    assert loads((4, 3, 8, 8), (0, 2, 3)) == (4, False) and loads((4, 3, 7, 7), (0, 2, 3)) == (0, False)
    assert loads((4, 64), (1,), step=2) == (0, False)


def test_who_is_able():
    for shape, axis, expected in (((64, 4096), 1, {"naive", "rows", "two_stage"}), ((64, 4095), 0, {"columns", "naive", "rows"}),
                                  ((5000, 64), 0, set(ALGORITHMS))):
        for op in ("reduce", "argreduce"):
            problem = parse_problem(["x".join(map(str, shape)), "bf16", "max", str(axis)], op)
            assert {a.name for a in dispatch.algorithms(op) if a.supports(problem) is None} == expected


def test_long_walks_are_divided_by_default():
    for words, name in (("268435456 f32 add", "two_stage"), ("262144x1024 bf16 add 0", "two_stage"),
                        ("65536x4096 bf16 add 1", "rows"), ("64x262144 f16 norm2 0", "columns"),
                        ("64x64x112x112 f16 avg 0,2,3", "two_stage"), ("1048576x16 f32 max 1", "rows")):
        assert dispatch.get_algorithm("reduce", parse_problem(words.split(), "reduce")).name == name, words


# ---- in words, and to measure

@pytest.mark.parametrize("op", ["reduce", "argreduce"])
def test_words_to_measure_need_the_dtype(op):
    shapes = importlib.import_module(f"bench.shapes.{op}")
    with pytest.raises(ValueError, match="{} for the dtype"):
        shapes.parse("3x4 add 1")


@pytest.mark.parametrize("op", ["reduce", "argreduce"])
def test_problems_come_back_from_their_records(op):
    for text in SMALL[op]:
        problem = parse_problem(text.split(), op)
        assert FAMILY[op][2](json.loads(json.dumps(dispatch.problem_record(problem)))) == problem
        with pytest.raises(ValueError, match=f"{op}: not a record"):
            FAMILY[op][2]({"x": 3})


@pytest.mark.parametrize("words, op, message", [
    ("3x4 f32 sum 1", "reduce", "'sum'"), ("3x4 f32 add 1;2", "reduce", "'1;2' is not a list of axes"),
    ("3x4 i8 avg 1", "reduce", "x is int8"), ("3x4 f32 add 2", "reduce", "2 is none of the 2 dimensions"),
    ("3x4 f32 amax 1", "argreduce", "'amax'"),
    ("3x4 f32 max", "argreduce", "axis"), ("3x0 f32 max 1", "argreduce", "has 0 elements")])
def test_words_that_make_no_problem(words, op, message):
    with pytest.raises(ValueError if "int8" not in message else TypeError, match=message):
        parse_problem(words.split(), op)


# ---- bad input

def refused(error, words, function, *args, out=None, **kwargs):
    """The function raises `error`, its name first, with all the words; nothing is written."""
    outs = [labs.guarded(lay(*o)) for o in out or ()]
    given = None if out is None else outs[0].array if len(outs) == 1 else tuple(o.array for o in outs)
    with labs.refuses(error, words, function):
        getattr(dnnkern, function)(*args, out=given, **kwargs)
    labs.synchronize()
    for o in outs:
        o.assert_untouched("out")


X = np.arange(24.0).reshape(2, 3, 4)


def test_bad_modes_and_axes():
    y = (((2, 4), "float32"),)
    refused(ValueError, ["mode='sum'", "'add'", "'logsumexp'"], "reduce", array(X), "sum", out=y)
    refused(ValueError, ["mode='amax'", "'min', 'max'"], "argreduce", array(X), "amax", axis=1)
    refused(ValueError, ["mode=None"], "reduce", array(X), None)
    for axes, error, words in ((3, ValueError, ["axes=3", "3 dimensions"]), ((0, -4), ValueError, ["(0, -4)", "-4"]),
                               ((1, -2), ValueError, ["(1, -2)", "twice"]), (1.0, TypeError, ["1.0"]), ("a", TypeError, ["'a'"]),
                               ((0, None), TypeError, ["None"])):
        refused(error, words, "reduce", array(X), "add", axes=axes, out=y)
    for axis, error in ((3, ValueError), (-4, ValueError), (None, TypeError), ((1,), TypeError), (1.0, TypeError)):
        refused(error, [f"axis={axis!r}"], "argreduce", array(X), "max", axis=axis, out=(((2, 4), "float32"), ((2, 4), "int32")))
    refused(TypeError, ["keepdims=1", "True or False"], "reduce", array(X), "add", keepdims=1)
    refused(ValueError, ["9 dimensions", "8"], "reduce", array(np.ones((1,) * 9)), "add")
    refused(ValueError, ["axis 1 of x has 0 elements", "(3, 0)"], "argreduce", array(np.ones((3, 0))), "min", axis=1)


def test_bad_arrays():
    refused(TypeError, ["x: got list"], "reduce", [1.0], "add")
    refused(TypeError, ["x: got NoneType"], "argreduce", None, "max", axis=0)
    refused(TypeError, ["x is uint32", "float64, float32, float16, bfloat16, int64"], "reduce", array(X, "uint32"), "add")
    refused(TypeError, ["x is uint32"], "argreduce", array(X, "uint32"), "max", axis=0)
    for mode in ("avg", "norm2", "logsumexp"):
        refused(TypeError, ["x is int32", f"mode '{mode}'", "bfloat16"], "reduce", array(X, "int32"), mode, out=(((), "int64"),))
    refused(ValueError, ["out has shape (2, 4)", "(3, 4)"], "reduce", array(X), "add", axes=0, out=(((2, 4), "float32"),))
    flat = (((3, 4), "float32"),)
    refused(ValueError, ["out has shape (3, 4)", "(1, 3, 4)"], "reduce", array(X), "add", axes=0, keepdims=True, out=flat)
    refused(TypeError, ["out is float16", "float32"], "reduce", array(X), "add", out=(((), "float16"),))
    refused(TypeError, ["out is int8", "int64 or int32", "'add'"], "reduce", array(X, "int8"), "add", out=(((), "int8"),))
    refused(TypeError, ["out is int64", "expected int8", "'max'"], "reduce", array(X, "int8"), "max", out=(((), "int64"),))
    refused(TypeError, ["out is float32", "float16"], "reduce", array(X, "float16"), "add", out_dtype="float16", out=(((), "float32"),))
    refused(TypeError, ["out_dtype='float64'", "'float32'"], "reduce", array(X), "add", out_dtype="float64", out=(((), "float32"),))
    refused(TypeError, ["out_dtype='float32'", "'int64', 'int32'"], "reduce", array(X, "int8"), "add", out_dtype="float32")
    refused(TypeError, ["out_dtype=3"], "reduce", array(X, "float16"), "add", out_dtype=3)
    refused(TypeError, ["out_dtype="], "reduce", array(X, "float16"), "add", out_dtype=[])
    refused(TypeError, ["out is float32", "int32"], "argreduce", array(X), "max", axis=0, out=(((3, 4), "float32"), ((3, 4), "float32")))
    refused(ValueError, ["out has 1 arrays", "2 (value, index)"], "argreduce", array(X), "max", axis=0, out=(((3, 4), "float32"),))
    both = array(np.zeros((4, 8)))
    with pytest.raises(ValueError, match="reduce: out partly overlaps x"):
        dnnkern.reduce(both[:, :4], "add", axes=0, out=both[2, 2:6])
    line = array(np.zeros(4))
    with pytest.raises(ValueError, match="reduce: out is the same memory as x; in place it works with nothing"):
        dnnkern.reduce(line, "add", axes=(), out=line)
    shared = labs.guarded(lay((2, 4), "float32", expand=(0,))).array
    with pytest.raises(ValueError, match="reduce: out.*share one address"):
        dnnkern.reduce(array(X), "add", axes=1, out=shared)


def test_forced_algorithms_that_cannot():
    refused(NotSupported, ["'quantum'", "two_stage"], "reduce", array(X), "add", algo="quantum")
    refused(NotSupported, ["'two_stage'", "24 elements", "512"], "reduce", array(X), "add", algo="two_stage", out=(((), "float32"),))
    refused(NotSupported, ["'columns'", "stride 4"], "argreduce", array(X), "max", axis=2, algo="columns")
