"""Moving and converting elements: random problems, what the layouts' names mean, special values, launches for other families, bad input."""
import importlib
import json

import contract
import labs
import numpy as np
import pytest
from cases import lay, numpy_dtype
from cases._window import Window
from cases.cast import DTYPES as CASTABLE, Cast
from cases.transpose import DTYPES, Transpose
from contract import random_layout, random_problems
from labs import array, host

import dnnkern
from dnnkern import dispatch
from dnnkern.device import SIMULATED
from dnnkern.dispatch import Algorithm, NotSupported
from dnnkern.host.device import current_device
from dnnkern.host.tensor import Tensor
from dnnkern.host.window import pad_pairs
from dnnkern.engine.moves import col2im_launches, im2col_launches, transpose_launches
from dnnkern.transform._parse import FAMILY, SMALL, parse_problem
from dnnkern.transform._problem import layout_letters, make_layout_problem, make_problem
from dnnkern.host.canonical import Dim, canonical
from dnnkern.transform.layout import transpose_planes
from dnnkern.transform.layout.transpose_planes import Config
from dnnkern.transform.layout.transpose_tiled import TILES, make_chunk_offset


# ---- random problems

def test_random_transpositions(request):
    st = pytest.importorskip("hypothesis.strategies")
    sizes = [1, 1, 2, 2, 3, 4, 5, 8, 16] if SIMULATED else [1, 2, 3, 8, 16, 31, 64]

    def problems(draw):
        rank = draw(st.integers(0, 8))
        shape, limit = [], 500 if SIMULATED else 10 ** 7
        for _ in range(rank):
            shape.append(draw(st.sampled_from([n for n in sizes if n <= limit])))
            limit //= shape[-1]
        return Transpose("random", tuple(shape), tuple(draw(st.permutations(range(rank)))), draw(st.sampled_from(DTYPES)),
                         layout={"x": random_layout(draw, st, rank), "y": random_layout(draw, st, rank)})
    random_problems(request, problems, 40)


@pytest.mark.parametrize("op", ["im2col", "col2im"])
def test_random_windows(request, op):
    st = pytest.importorskip("hypothesis.strategies")

    def problems(draw):
        dims = draw(st.integers(1, 3))
        image = tuple(draw(st.integers(1, (20, 8, 4)[dims - 1])) for _ in range(dims))
        window, stride, dilation = (tuple(draw(st.integers(1, n)) for _ in range(dims)) for n in (3, 3, 2))
        padding = tuple((max(draw(st.integers(0, 2)), d * (w - 1) + 1 - n), draw(st.integers(0, 2)))
                        for n, w, d in zip(image, window, dilation))
        shape = draw(st.integers(1, 2)), draw(st.sampled_from([1, 3, 8, 16])), *image
        layout = draw(st.sampled_from(["NCHW", "NHWC"]))
        return Window(op, "random", shape, window, draw(st.sampled_from(DTYPES)), stride, padding, dilation, layout,
                      {"x": random_layout(draw, st, dims + 2), "columns": random_layout(draw, st, 3 if layout == "NCHW" else 2)})
    random_problems(request, problems, 25)


def test_random_casts(request):
    st = pytest.importorskip("hypothesis.strategies")

    def problems(draw):
        shape = tuple(draw(st.lists(st.integers(1, 12), max_size=3)))
        x_dtype, y_dtype, scale = (draw(st.sampled_from(some)) for some in (CASTABLE, CASTABLE, [1.0, 0.5, 3.0]))
        return Cast("random", shape, x_dtype, y_dtype, scale,
                    {"x": random_layout(draw, st, len(shape)), "y": random_layout(draw, st, len(shape))})
    random_problems(request, problems, 60)


# ---- the canonical form

def test_dimensions_that_stay_together_are_merged():
    nhwc = canonical((8, 5, 6, 7), (7 * 5 * 6, 6, 1, 30), (210, 42, 7, 1), 2)  # NCHW to NHWC: pixels are one dimension
    assert nhwc.dims == (Dim(8, 210, 210), Dim(30, 1, 7), Dim(7, 30, 1))
    assert canonical((4, 5, 6), (30, 6, 1), (30, 6, 1), 4).dims == (Dim(120, 1, 1),)
    assert canonical((), (), (), 4).size == canonical((1, 1), (7, 7), (9, 9), 4).size == 1


def test_walking_backwards_is_walking_forwards_from_the_other_end():
    form = canonical((4, 5), (5, 1), (-5, -1), 4)
    assert (form.dims, form.x_first, form.y_first) == ((Dim(20, -1, 1),), 19, -19)


def test_short_runs_are_elements():
    problem = make_problem((Tensor.packed((6, 9, 8), "float16"),), None, (1, 0, 2), frozenset())
    assert problem.units.itemsize == 16 and problem.units.dims == (Dim(9, 1, 6), Dim(6, 9, 1))
    odd = make_problem((Tensor((6, 9, 8), (73, 8, 1), "float16"),), None, (1, 0, 2), frozenset())
    assert odd.units == odd.canonical, "rows that are no whole number of runs apart"
    low = make_problem((Tensor.packed((6, 9, 8), "float16", alignment=8),), None, (1, 0, 2), frozenset())
    assert low.units.itemsize == 2


def test_large_arrays_take_wide_offsets():
    assert not canonical((2 ** 15, 2 ** 15), (2 ** 15, 1), (1, 2 ** 15), 2).is_wide
    assert canonical((2 ** 16 + 1, 2 ** 15), (2 ** 15, 1), (1, 2 ** 16 + 1), 1).is_wide
    assert canonical((2 ** 15 + 1, 2 ** 15), (2 ** 15, 1), (1, 2 ** 15 + 1), 8).is_wide, "counted in words"


# ---- banks

def _conflicts(addresses, nbytes):
    """Whether lanes that access shared memory together, 128 bytes at a time, meet a bank twice at different addresses."""
    lanes = 128 // max(nbytes, 4)
    for first in range(0, len(addresses), lanes):
        words = {at + k for at in addresses[first:first + lanes] for k in range(0, nbytes, 4)}
        banks = {}
        for word in words:
            banks.setdefault(word // 4 % 32, set()).add(word // 4)
        if any(len(some) > 1 for some in banks.values()):
            return True
    return False


@pytest.mark.parametrize("itemsize, chunks_i, chunks_j", [(size, *tile) for size, tiles in TILES.items() for tile in tiles])
def test_tiles_meet_no_bank_twice(itemsize, chunks_i, chunks_j, simulated):
    side, threads = 16 // itemsize, chunks_i * chunks_j
    place, lanes = make_chunk_offset(side, chunks_j), range(threads)
    assert _conflicts([128 * n for n in range(8)], 16), "a column of chunks that lie plainly"
    every = {place(row, chunk) for row in range(side * chunks_i) for chunk in range(chunks_j)}
    assert every == set(range(0, 16 * side * threads, 16)), "each chunk has a place of its own"
    for t in range(side):
        assert not _conflicts([place(n % chunks_i * side + t, n // chunks_i) for n in lanes], 16)       # columns into the tile
        assert not _conflicts([16 * ((n // chunks_i * side + t) * chunks_i + n % chunks_i) for n in lanes], 16)  # squares out of it
    for unit in {16, 8, 4, itemsize}:
        row = 16 * chunks_j // unit
        for first in range(0, side * 16 // unit * threads, threads):
            at = [place(e // row, e % row * unit >> 4) + e % row * unit % 16 for e in range(first, first + threads)]
            assert not _conflicts(at, unit)                                                             # rows out of it


# ---- planes

@pytest.mark.parametrize("shape, axes", [((3, 40, 7, 7), (0, 2, 3, 1)), ((2, 7, 7, 72), (0, 3, 1, 2)), ((2, 136, 4, 3), (0, 2, 3, 1)),
                                         ((2, 6, 6, 24), (0, 3, 1, 2)), ((24, 16, 3, 3), (2, 3, 0, 1))])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("chunks", [4, 2])
def test_several_planes_a_block(shape, axes, dtype, chunks, monkeypatch):
    """Channels that do not fill the last group, planes of odd and even sizes."""
    monkeypatch.setattr(transpose_planes, "CHUNKS", (chunks,))
    case = Transpose("planes", shape, axes, dtype)
    planes = next(a for a in dispatch.algorithms("transpose") if a.name == "planes")
    (variant,) = planes.variants(case.problem(), contract.device())
    assert variant.config.chunks == chunks
    contract.check(variant, case, again=False, **contract.ONCE)


@pytest.mark.parametrize("itemsize, plane", [(2, 49), (2, 196), (4, 49), (4, 196), (2, 9)])
def test_neighbouring_chunks_of_planes_meet_different_banks(itemsize, plane):
    """The eight lanes that have the chunks of a row read one element each, of banks of their own; two share one at times."""
    config = Config(itemsize, plane, 8, 4, True, 1, False)
    for first in range(0, 16 // itemsize):
        for pixel in (0, plane // 2):
            at = [16 * plane * k + (first * plane + pixel) * itemsize for k in range(8)]
            at = [b + ((b >> 7) << 4) * config.padded for b in at]
            assert len({b // 4 % 32 for b in at}) >= 7 and max(at) < config.nbytes


# ---- names of layouts

def test_generic_names_are_of_any_rank():
    assert [layout_letters(name, n, "source") for name in ("NCHW", "NHWC", "KCRS", "KRSC") for n in (3, 4, 5)] == [
        "NCW", "NCHW", "NCDHW", "NWC", "NHWC", "NDHWC", "KCS", "KCRS", "KCTRS", "KSC", "KRSC", "KTRSC"]
    x = Tensor.packed((2, 3, 4, 5, 6), "float32")
    assert make_layout_problem((x,), None, "NCHW", "NHWC", frozenset()).y.shape == (2, 4, 5, 6, 3)
    assert make_layout_problem((x,), None, "NCDHW", "NHWC", frozenset()).axes == (0, 2, 3, 4, 1)
    assert make_layout_problem((x,), None, "abcde", "edcba", frozenset()).axes == (4, 3, 2, 1, 0)


def test_there_and_back():
    x = np.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5)
    y = dnnkern.convert_layout(array(x), "NCHW", "NHWC")
    assert np.array_equal(host(y), x.transpose(0, 2, 3, 1))
    assert np.array_equal(host(dnnkern.convert_layout(y, "NHWC", "NCHW")), x)


# ---- bits

@pytest.mark.parametrize("dtype", ["uint8", "int64", "uint16", "uint32"])
@pytest.mark.parametrize("algo", ["naive", "copy", "tiled", "few", "staged"])
def test_dtypes_without_arithmetic_are_moved_too(dtype, algo, simulated):
    x = np.random.default_rng(1).integers(0, 2 ** 31, (5, 3, 40)).astype(dtype)
    axes = (1, 0, 2) if algo == "copy" else (0, 2, 1)
    assert np.array_equal(dnnkern.transpose(x, axes, algo=algo), x.transpose(axes))


def test_nan_payloads_and_signs_of_zero_are_kept(simulated):
    bits = np.array([0x7F800001, 0xFFC12345, 0x80000000, 0x00000001] * 20, np.uint32).reshape(8, 10)
    for algo in ("naive", "tiled", "few", "staged"):
        x = bits[:, :3].copy() if algo == "few" else bits
        assert np.array_equal(dnnkern.transpose(x.view(np.float32), (1, 0), algo=algo).view(np.uint32), x.T), algo


@pytest.mark.parametrize("algo", ["naive", "vector"])
def test_what_casts_make_of_special_values(algo):
    def cast(values, x_dtype, y_dtype):
        y = dnnkern.cast(array(values * 20, x_dtype), y_dtype, algo=algo)
        return np.asarray(y.tolist(), np.float64)[:len(values)]

    inf, nan = np.inf, np.nan
    assert cast([inf, -inf, 1e6, -1e6], "float32", "float16").tolist() == [inf, -inf, inf, -inf]
    assert cast([inf, -inf, 449, -1e9], "float32", "float8_e4m3fn").tolist() == [448, -448, 448, -448]
    assert cast([0.5, 1.5, -2.5, 1e9, -inf, nan], "float32", "int8").tolist() == [0, 2, -2, 127, -128, 0]
    assert cast([1e300, -1e300, 2.5, nan], "float64", "int32").tolist() == [2 ** 31 - 1, -2 ** 31, 2, 0]
    assert cast([2 ** 31 - 1, -2 ** 31, 16777217], "int32", "float64").tolist() == [2 ** 31 - 1, -2 ** 31, 16777217]
    assert np.isnan(cast([nan, nan], "float16", "bfloat16")).all() and np.isnan(cast([nan], "float64", "float8_e5m2")).all()
    assert cast([300, -1, 7], "int32", "uint8").tolist() == [255, 0, 7]


@pytest.mark.parametrize("algo", ["naive", "vector"])
def test_float64_is_rounded_once(algo):
    """Just above the middle of two results: rounding to float32 first would land on the middle, and then on the even, lower one."""
    for dtype, bits in (("bfloat16", 8), ("float16", 11), ("float8_e4m3fn", 4)):
        step = 2.0 ** (1 - bits)
        middle, bit = 1 + step / 2, 2.0 ** -40
        values = np.array([middle + bit, middle - bit, middle, middle + step, -middle - bit])
        got = host(dnnkern.cast(array(np.tile(values, 8), "float64"), dtype, algo=algo))[:5]
        assert got.tolist() == [1 + step, 1, 1, 1 + 2 * step, -(1 + step)], dtype


# ---- windows

def test_im2col_and_col2im_are_adjoint():
    rng = np.random.default_rng(3)
    for layout, shape in (("NCHW", (2, 3, 7, 8)), ("NHWC", (2, 7, 8, 3))):
        more = dict(stride=(2, 1), padding=((1, 2), (0, 1)), dilation=(1, 2), layout=layout)
        x = rng.standard_normal(shape)
        columns = host(dnnkern.im2col(array(x, "float64"), (3, 2), **more))
        other = rng.standard_normal(columns.shape)
        back = host(dnnkern.col2im(array(other, "float64"), shape, (3, 2), **more))
        assert abs((columns * other).sum() - (x * back).sum()) < 1e-11 * np.abs(columns * other).sum()


def test_the_order_is_that_of_torch():
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(4).standard_normal((2, 3, 9, 8))
    more = dict(stride=(2, 1), padding=(1, 2), dilation=(2, 1))
    want = torch.nn.functional.unfold(torch.from_numpy(x), (3, 2), **more)
    assert np.array_equal(host(dnnkern.im2col(array(x, "float64"), (3, 2), **more)), want.numpy())
    fold = torch.nn.functional.fold(want, (9, 8), (3, 2), **more)
    assert np.allclose(host(dnnkern.col2im(array(want.numpy(), "float64"), x.shape, (3, 2), **more)), fold.numpy(), 1e-14)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_convolution_is_a_product_with_the_columns(layout):
    """With a KCRS filter for channels first, a KRSC one for channels last, as they lie."""
    rng = np.random.default_rng(5)
    x, w = rng.integers(-3, 4, (2, 3, 6, 5)).astype(float), rng.integers(-3, 4, (4, 3, 3, 2)).astype(float)
    if layout == "NHWC":
        columns = dnnkern.im2col(array(x.transpose(0, 2, 3, 1)), (3, 2), padding=1, layout=layout)
        y = host(dnnkern.matmul(columns, array(w.transpose(0, 2, 3, 1).reshape(4, -1)), transpose_b=True)).reshape(2, 6, 6, 4)
        y = y.transpose(0, 3, 1, 2)
    else:
        columns = dnnkern.im2col(array(x), (3, 2), padding=1)
        y = host(dnnkern.matmul(array(w.reshape(1, 4, -1)), columns)).reshape(2, 4, 6, 6)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    want = sum(np.einsum("kc,nchw->nkhw", w[:, :, r, s], padded[:, :, r:r + 6, s:s + 6]) for r in range(3) for s in range(2))
    assert np.array_equal(y, want)


def test_ways_to_say_padding():
    assert pad_pairs("f", 2, 3) == ((2, 2),) * 3 and pad_pairs("f", ((1, 2),), 1) == ((1, 2),) and pad_pairs("f", [1], 1) == ((1, 1),)
    x = array(np.arange(8.0).reshape(1, 1, 8))
    first = host(dnnkern.im2col(x, 3, padding=(2, 0)))
    assert np.array_equal(first, host(dnnkern.im2col(x, [3], padding=[[2, 0]], stride=[1]))) and first[0, 0, :3].tolist() == [0, 0, 0]


# ---- launches for other families

def _via_workspace(make):
    """An algorithm of transpose that moves x to its workspace and from there to y."""
    def space(problem, device, config):
        return 256 + 4 * problem.x.nbytes

    return Algorithm(op="transpose", name="detour", supports=lambda problem: None, workspace=space, estimate=lambda *_: 1.0, build=make)


def test_transpositions_by_way_of_a_workspace():
    def build(problem, device, config):
        middle = Tensor.packed(problem.x.shape[::-1], problem.x.dtype)
        last, place = problem.x.ndim - 1, ("workspace", 256)
        back = tuple(last - a for a in problem.axes)
        return (transpose_launches(problem.x, middle, range(last, -1, -1), device, ("x", 0), place)
                + transpose_launches(middle, problem.y, back, device, place, ("y", 0)))
    for case in (Transpose("nchw", (2, 24, 5, 8), (0, 2, 3, 1), "float16"), Transpose("odd", (3, 7, 33), (0, 2, 1), "int8"),
                 Transpose("few", (2, 3, 16, 16), (0, 2, 3, 1)), Transpose("strided", (9, 10), (1, 0), layout={"x": {"step": 2}})):
        contract.check(_via_workspace(build), case)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_windows_by_way_of_a_workspace(layout):
    """A window that never overlaps itself: col2im undoes im2col."""
    def build(problem, device, config):
        parameters = (2, 2), (2, 2), ((0, 0), (0, 0)), (1, 1), layout
        n, c, h, w = problem.x.shape if layout == "NCHW" else [problem.x.shape[k] for k in (0, 3, 1, 2)]
        shape = (n, 4 * c, h * w // 4) if layout == "NCHW" else (n * h * w // 4, 4 * c)
        middle, place = Tensor.packed(shape, problem.x.dtype), ("workspace", 256)
        return (im2col_launches(problem.x, middle, *parameters, device, ("x", 0), place)
                + col2im_launches(middle, problem.y, *parameters, device, place, ("y", 0)))
    for dtype in ("float32", "bfloat16"):
        contract.check(_via_workspace(build), Transpose("even", (2, 8, 4, 6) if layout == "NCHW" else (2, 4, 6, 8), (0, 1, 2, 3), dtype))


def test_the_least_estimate_is_what_other_families_get():
    device = dispatch.device_of(current_device())
    x = Tensor.packed((64, 256, 28, 28), "float16")
    problem = make_problem((x,), None, (0, 2, 3, 1), frozenset())
    best = dispatch.get_algorithm("transpose", problem)
    expected = best.build(problem, device, best.config)
    assert transpose_launches(x, problem.y, (0, 2, 3, 1), device, ("x", 0), ("y", 0))[0].grid == expected[0].grid


def test_algorithms_of_an_empty_slice():
    """Whether they support it is known, though there is no element to divide by."""
    problem = parse_problem("8x4710x2928 f32 :,:,0:0".split(), "strided_slice")
    reasons = {a.name: a.reason(problem) for a in dispatch.algorithms("strided_slice")}
    assert reasons["naive"] is None and "rows stay rows" in reasons["staged"]


# ---- in words, and to measure

@pytest.mark.parametrize("op", FAMILY)
def test_words_to_measure_need_the_dtype(op):
    shapes = importlib.import_module(f"bench.shapes.{op}")
    with pytest.raises(ValueError, match="{} for the dtype"):
        shapes.parse("3x4 1,0")


@pytest.mark.parametrize("op", FAMILY)
def test_problems_come_back_from_their_records(op):
    for text in SMALL[op]:
        problem = parse_problem(text.split(), op)
        assert FAMILY[op][2](json.loads(json.dumps(dispatch.problem_record(problem)))) == problem
        with pytest.raises(ValueError, match=f"{op}: not a record"):
            FAMILY[op][2]({"x": 3})


@pytest.mark.parametrize("words, op, message", [
    ("3x4 f32 NCHW", "transpose", "'NCHW' is not a list of axes such as 0,2,3,1, or two layouts such as NCHW:NHWC"),
    ("3xx4 f32 0,1", "transpose", "'3xx4'"),
    ("2x3x4x4 f32 3x3 q2", "im2col", "'q2' is none of s2"), ("2x3x4x4 f32 5x5", "col2im", "does not fit"), ("2x3 f31 f32", "cast", "f31")])
def test_words_that_make_no_problem(words, op, message):
    with pytest.raises(ValueError, match=message):
        parse_problem(words.split(), op)


def test_words_for_windows():
    problem = parse_problem("2x3x9x8 f16 3x2 s2x1 p0:1x2:0 d1x3 nhwc".split(), "im2col")
    assert (problem.x.shape, problem.stride, problem.padding, problem.dilation) == ((2, 9, 8, 3), (2, 1), ((0, 1), (2, 0)), (1, 3))
    assert parse_problem("2x3x9 f16 3 p2:0".split(), "col2im").padding == ((2, 0),)


# ---- bad input

def refused(error, words, function, *args, out=None, **kwargs):
    """The function raises `error`, its name first, with all the words; nothing is written."""
    guarded = out and labs.guarded(lay(*out))
    with labs.refuses(error, words, function):
        getattr(dnnkern, function)(*args, out=guarded and guarded.array, **kwargs)
    if guarded:
        labs.synchronize()
        guarded.assert_untouched("out")


X = np.arange(24.0).reshape(2, 3, 4)
PICTURE = np.arange(96.0).reshape(1, 4, 4, 6)


def test_bad_axes():
    out = (4, 3, 2), "float32"
    for axes, error, words in (((0, 1), ValueError, ["(0, 1)", "3 dimensions"]), ((0, 1, 1), ValueError, ["(0, 1, 1)", "once"]),
                               ((0, 1, 3), ValueError, ["(0, 1, 3)"]), ((0, -4, 1), ValueError, ["-4"]),
                               (1, TypeError, ["1", "3 integers"]),
                               (("N", "C", "W"), TypeError, ["'N'"]), ((0, 1.0, 2), TypeError, ["1.0"]), (None, TypeError, ["None"])):
        refused(error, words, "transpose", array(X), axes, out=out)
    refused(ValueError, ["9 dimensions", "8"], "transpose", array(np.ones((1,) * 9)), tuple(range(9)))


def test_bad_layouts():
    x = array(PICTURE)
    for source, target, error, words in (("NCHW", "NHW", ValueError, ["target='NHW'", "3 letters", "4 dimensions"]),
                                         ("NCHW", "NHHC", ValueError, ["'NHHC'", "twice"]),
                                         ("NCHW", "NHWK", ValueError, ["NCHW", "NHWK", "different"]),
                                         ("NCHW", 3, TypeError, ["target=3", "NHWC"]), ("NC-W", "NHWC", TypeError, ["'NC-W'"])):
        refused(error, words, "convert_layout", x, source, target, out=((1, 4, 6, 4), "float32"))
    refused(ValueError, ["source='NCHW'", "2 dimensions"], "convert_layout", array(np.ones((2, 2))), "NCHW", "NHWC")
    refused(TypeError, ["x: got list"], "convert_layout", [1.0], "N", "N")
    refused(NotSupported, ["'quantum'", "tiled"], "transpose", x, (0, 1, 2, 3), algo="quantum")


def test_bad_outputs():
    refused(ValueError, ["out has shape (2, 3, 4)", "(4, 3, 2)"], "transpose", array(X), (2, 1, 0), out=((2, 3, 4), "float32"))
    refused(TypeError, ["out is float16", "float32"], "transpose", array(X), (2, 1, 0), out=((4, 3, 2), "float16"))
    shared = labs.guarded(lay((4, 3, 2), "float32", expand=(0,))).array
    with pytest.raises(ValueError, match="transpose: out.*share one address"):
        dnnkern.transpose(array(X), (2, 1, 0), out=shared)
    both = array(np.zeros((4, 8)))
    with pytest.raises(ValueError, match="transpose: out.* x"):
        dnnkern.transpose(both[:, :4], (1, 0), out=both[:, 2:6])
    square = array(np.zeros((4, 4)))
    with pytest.raises(ValueError, match="transpose: out is the same memory as x; in place it works with nothing"):
        dnnkern.transpose(square, (1, 0), out=square)
    refused(TypeError, ["out is float16", "dtype asks for bfloat16"], "cast", array(X), "bfloat16", out=((2, 3, 4), "float16"))
    refused(ValueError, ["out has shape (3, 4)", "(2, 3, 4)"], "cast", array(X), "float16", out=((3, 4), "float16"))


def test_dtypes_that_are_not_moved(simulated):
    mask = np.ones((2, 2), bool)
    refused(TypeError, ["x is bool", "int8"], "transpose", mask, (1, 0))
    refused(TypeError, ["x is bool"], "cast", mask, "float32")
    refused(TypeError, ["int64"], "cast", array(X), "int64")
    refused(TypeError, ["dtype", "float31"], "cast", array(X), "float31")
    refused(TypeError, ["columns is int64"], "col2im", np.ones((1, 4, 4), np.int64), (1, 1, 3, 3), 2)
    assert numpy_dtype("bfloat16") == dnnkern.cast(array(X), "bfloat16").dtype


@pytest.mark.parametrize("more, error, words", [
    ({"window": (2, 2, 2)}, ValueError, ["window=(2, 2, 2)", "3 entries", "2 spatial"]),
    ({"window": 0}, ValueError, ["window is 0", "1 or more"]),
    ({"window": 2.0}, TypeError, ["window=2.0"]),
    ({"window": (2, True)}, TypeError, ["window[1]=True"]),
    ({"window": 7}, ValueError, ["window", "(7, 7)", "(4, 6)"]),
    ({"window": 3, "dilation": 2}, ValueError, ["(5, 5)", "dilation (2, 2)", "(4, 6)"]),
    ({"window": 2, "stride": 0}, ValueError, ["stride is 0"]),
    ({"window": 2, "padding": -1}, ValueError, ["padding is -1"]),
    ({"window": 2, "padding": (1, 2, 3)}, ValueError, ["padding=(1, 2, 3)", "3 entries"]),
    ({"window": 2, "padding": ((1, 2, 3), 0)}, ValueError, ["padding", "3 entries"]),
    ({"window": 2, "layout": "NCWH"}, ValueError, ["'NCWH'", "'NCHW', 'NHWC'"])])
def test_bad_windows(more, error, words):
    refused(error, words, "im2col", array(PICTURE), **more)
    refused(error, words, "col2im", array(np.ones((1, 16, 9))), (1, 4, 4, 6), **more)


def test_bad_images():
    refused(ValueError, ["x has shape (2, 3)", "3, 4 or 5"], "im2col", array(np.ones((2, 3))), 1)
    refused(ValueError, ["x_shape has shape (2, 3)"], "col2im", array(np.ones((2, 3))), (2, 3), 1)
    refused(TypeError, ["x_shape is 7"], "col2im", array(np.ones((1, 4, 4))), 7, 2)
    refused(ValueError, ["x_shape is -3"], "col2im", array(np.ones((1, 4, 4))), (1, 1, -3, 3), 2)
    refused(ValueError, ["columns has shape (1, 4, 5)", "(1, 4, 4)"], "col2im", array(np.ones((1, 4, 5))), (1, 1, 3, 3), 2)
    refused(ValueError, ["out has shape (1, 4, 5)", "(1, 4, 4)"], "im2col", array(np.ones((1, 1, 3, 3))), 2, out=((1, 4, 5), "float32"))
    refused(TypeError, ["columns: got NoneType"], "col2im", None, (1, 1, 3, 3), 2)
    refused(TypeError, ["x: got NoneType"], "im2col", None, 2)
