"""Parts of arrays and borders: random problems, PyTorch's results, bits, bad input."""
import labs
import numpy as np
import pytest
from cases import lay
from cases.concat import Concat
from cases.pad import MODES, Pad
from cases.pad_bwd import SHORT, PadGradient
from cases.strided_slice import Slice
from cases.transpose import DTYPES
from contract import random_layout, random_problems
from labs import array, host
from test_transform import refused

import dnnkern
from dnnkern import dispatch
from dnnkern.algorithm import cheapest
from dnnkern.device import SIMULATED
from dnnkern.host.device import Device, current_device
from dnnkern.host.tensor import Tensor
from dnnkern.transform._parse import parse_problem
from dnnkern.host.canonical import Dim
from dnnkern.transform.layout._rows import chunk_count
from dnnkern.transform.layout._slice_problem import make_slice_problem

X = np.arange(24.0).reshape(2, 3, 4)


# ---- random problems

def test_random_slices(request):
    st = pytest.importorskip("hypothesis.strategies")

    def problems(draw):
        rank, shape, limit = draw(st.integers(0, 4)), [], 1500 if SIMULATED else 10 ** 6
        for _ in range(rank):
            shape.append(draw(st.sampled_from([n for n in (1, 2, 3, 5, 8, 17, 40, 90) if n <= limit])))
            limit //= shape[-1]
        ends = st.one_of(st.none(), st.integers(-9, 60))
        slices = tuple(slice(draw(ends), draw(ends), draw(st.sampled_from([None, 1, 1, 2, 3, -1, -2]))) for _ in shape)
        return Slice("random", tuple(shape), slices, draw(st.sampled_from(DTYPES)),
                     {"x": random_layout(draw, st, rank), "y": random_layout(draw, st, rank)})
    random_problems(request, problems, 80)


def test_random_concatenations(request):
    st = pytest.importorskip("hypothesis.strategies")

    def problems(draw):
        rank = draw(st.integers(1, 4))
        shape = tuple(draw(st.sampled_from([1, 2, 3, 8])) for _ in range(rank))
        sizes = tuple(draw(st.lists(st.sampled_from([0, 1, 3, 8, 16, 29]), min_size=1, max_size=4)))
        layout = {f"x{k}": random_layout(draw, st, rank) for k in range(len(sizes))}
        return Concat("random", shape, draw(st.integers(-rank, rank - 1)), sizes, draw(st.sampled_from(DTYPES)),
                      {**layout, "y": random_layout(draw, st, rank)})
    random_problems(request, problems, 40)


# ---- against PyTorch

def test_slices_are_those_of_torch():
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(1).standard_normal((4, 6, 50))
    want = torch.from_numpy(x)[1:, ::2, 3:47:3].flip(1)
    assert np.array_equal(host(dnnkern.strided_slice(array(x, "float64"), (1, 4, 3), (None, None, 47), (1, -2, 3))), want.numpy())


def test_concatenations_are_those_of_torch():
    torch = pytest.importorskip("torch")
    parts = [np.random.default_rng(n).standard_normal((3, n, 5)) for n in (4, 1, 9)]
    want = torch.cat([torch.from_numpy(p) for p in parts], 1)
    assert np.array_equal(host(dnnkern.concat([array(p, "float64") for p in parts], -2)), want.numpy())


# ---- what algorithms see

def test_a_slice_is_a_copy_between_views():
    x = Tensor.packed((8, 10, 12), "float16")
    form = make_slice_problem((x,), None, (2, 9, 0), (6, None, 12), (1, -1, 1), frozenset()).canonical
    assert (form.dims, form.x_first, form.y_first) == ((Dim(4, 120, 120), Dim(10, -12, 12), Dim(12, 1, 1)), 2 * 120 + 9 * 12, 0)
    whole = make_slice_problem((x,), None, (2, 0, 0), (6, None, None), None, frozenset())
    assert whole.canonical.dims == (Dim(480, 1, 1),), "rows that follow each other are one"
    assert whole.bytes == 2 * 480 * 2, "what is left out is not read"


def test_a_launch_takes_eight_arrays():
    problem = parse_problem([",".join(["33x24"] * 19), "f16", "1"], "concat")
    batch, boxes = (next(a for a in dispatch.algorithms("concat") if a.name == name) for name in ("batch", "boxes"))
    device = dispatch.device_of(current_device())
    batch = batch.configured(problem, device)
    first, *_, last = batch.build(problem, device, batch.config)
    assert [sum(a.type == "uint16*" for a in launch.arguments) for launch in (first, last)] == [9, 9]
    assert [a.value for a in last.arguments[:4]] == ["x16", "x17", "x18", "x16"]
    assert len(batch.build(problem, device, batch.config)) == 3 and len(boxes.build(problem, device, None)) == 19
    assert dispatch.get_algorithm("concat", problem).name == "batch", "many small arrays"
    assert dispatch.get_algorithm("concat", parse_problem("8192x16384,8192x16384 f16 1".split(), "concat")).name != "naive"


def test_short_runs_of_a_slice_are_elements_where_they_begin_at_one():
    def form(first):
        return parse_problem(f"6x9x16 f16 :,:,{first}:{first + 8}".split(), "strided_slice").units
    assert form(8).itemsize == 16 and form(8).x_first == 1
    assert form(4).itemsize == 2


def test_stops_and_words_say_the_same_slice():
    for words in (":,3:,1:-1", "::-1,2:0:-1,:", "5:0:-2,-1::-3,0:0", "1:2,::2,7::-1"):
        problem = parse_problem(["6x7x9", "f32", words], "strided_slice")
        again = make_slice_problem((problem.x,), None, problem.starts, problem.stops, problem.steps, frozenset())
        assert again == problem and parse_problem(str(problem).split()[1:], "strided_slice") == problem, words


# ---- bits

@pytest.mark.parametrize("dtype", ["uint8", "int16", "int64", "uint64"])
@pytest.mark.parametrize("algo", ["naive", "rows"])
def test_dtypes_without_arithmetic_are_moved_too(dtype, algo, simulated):
    x = np.random.default_rng(1).integers(0, 2 ** 31, (5, 67)).astype(dtype)
    assert np.array_equal(dnnkern.strided_slice(x, (1, 3), (5, 66), algo=algo), x[1:5, 3:66])
    assert np.array_equal(dnnkern.concat((x[:, :9], x[:, 20:]), 1), np.concatenate((x[:, :9], x[:, 20:]), 1))


def test_nan_payloads_are_kept(simulated):
    bits = np.array([0x7F800001, 0xFFC12345, 0x80000000, 0x00000001] * 40, np.uint32)
    for algo in ("naive", "rows", "copy"):
        assert np.array_equal(dnnkern.strided_slice(bits.view(np.float32), (3,), (150,), algo=algo).view(np.uint32), bits[3:150]), algo


# ---- bad input

def test_bad_slices():
    x, zero = array(X), (0, 0, 0)
    for call, error, words in (((zero, (1, 1)), ValueError, ["stops=(1, 1)", "2 entries", "3 dimensions"]),
                               ((zero, zero, (1, 0, 1)), ValueError, ["steps=(1, 0, 1)", "0"]),
                               ((zero, (1, 1, 1.5)), TypeError, ["stops[2]=1.5"]),
                               ((1, zero), TypeError, ["starts=1"]), ((zero, None), TypeError, ["stops=None"]),
                               ((zero, zero, "abc"), TypeError, ["steps='abc'"])):
        refused(error, words, "strided_slice", x, *call, out=((1, 1, 1), "float32"))
    refused(ValueError, ["out has shape (2, 3, 4)", "(1, 3, 4)"], "strided_slice", x, zero, (1, 9, 9), out=((2, 3, 4), "float32"))
    refused(TypeError, ["out is float16", "float32"], "strided_slice", x, zero, (1, 9, 9), out=((1, 3, 4), "float16"))
    refused(ValueError, ["9 dimensions"], "strided_slice", array(np.ones((1,) * 9)), (0,) * 9, (1,) * 9)
    refused(TypeError, ["x: got NoneType"], "strided_slice", None, (0,), (1,))


def test_bad_concatenations():
    x = array(X)
    for arrays, axis, error, words in (((), 0, ValueError, ["0 entries", "1 to 128"]), ((x,) * 129, 0, ValueError, ["129 entries"]),
                                       (x, 0, TypeError, ["arrays is a", "sequence"]), (None, 0, TypeError, ["NoneType"]),
                                       ((x, None), 0, TypeError, ["arrays[1]", "NoneType"]),
                                       ((x, [1.0]), 0, TypeError, ["arrays[1]", "list"]),
                                       ((x, array(X, "float16")), 0, TypeError, ["arrays[1] is float16", "float32"]),
                                       ((x, array(X[0])), 0, ValueError, ["arrays[1] has shape (3, 4)", "(2, 3, 4)"]),
                                       ((x, array(X[:, :2])), 0, ValueError, ["(2, 2, 4)", "along axis 0"]),
                                       ((x,), 3, ValueError, ["axis 3"]), ((x,), -4, ValueError, ["axis is -4"]),
                                       ((x,), 1.0, TypeError, ["axis=1.0"]),
                                       ((array(np.float64(1)),), 0, ValueError, ["axis 0", "()"])):
        refused(error, words, "concat", arrays, axis, out=((2, 3, 4), "float32"))
    refused(ValueError, ["out has shape (2, 3, 4)", "(4, 3, 4)"], "concat", (x, x), 0, out=((2, 3, 4), "float32"))


def test_results_that_overlap_what_they_are_made_of():
    both = array(np.zeros((4, 8)))
    with pytest.raises(ValueError, match=r"concat: out partly overlaps arrays\[1\]"):
        dnnkern.concat((array(np.zeros((4, 2))), both[:, :2]), 1, out=both[:, 1:5])
    with pytest.raises(ValueError, match="concat: out is the same memory as arrays.0.; in place it works with nothing"):
        dnnkern.concat((both,), 0, out=both)
    with pytest.raises(ValueError, match="strided_slice: out.* x"):
        dnnkern.strided_slice(both, (0, 0), (4, 4), out=both[:, 4:])


# ---- blocks of pixels

def test_blocks_are_those_of_torch_in_another_order():
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(3).standard_normal((2, 12, 3, 5))
    y = host(dnnkern.depth_to_space(array(x, "float64"), 2))
    theirs = torch.from_numpy(x.reshape(2, 2, 2, 3, 3, 5).transpose(0, 3, 1, 2, 4, 5).reshape(2, 12, 3, 5).copy())
    assert np.array_equal(y, torch.nn.functional.pixel_shuffle(theirs, 2).numpy())
    assert np.array_equal(host(dnnkern.space_to_depth(array(y, "float64"), 2)), x)


def test_bad_blocks():
    x = array(np.ones((1, 6, 4, 6)))
    for op, block, error, words in (("depth_to_space", 2, ValueError, ["6 channels", "block**2 = 4"]),
                                    ("space_to_depth", 4, ValueError, ["4 x 6 pixels", "block = 4"]),
                                    ("depth_to_space", 0, ValueError, ["block is 0"]),
                                    ("space_to_depth", 2.0, TypeError, ["block=2.0"])):
        refused(error, words, op, x, block, out=((1, 6, 4, 6), "float32"))
    for op in ("depth_to_space", "space_to_depth"):
        refused(ValueError, ["(2, 3, 4)", "4 dimensions"], op, array(X), 1)
        refused(TypeError, ["x: got NoneType"], op, None, 2)
        refused(ValueError, ["out has shape (1, 6, 4, 5)"], op, x, 1, out=((1, 6, 4, 5), "float32"))


# ---- borders

def random_borders(draw, st):
    """(rank, mode, shape, pads)."""
    rank = draw(st.integers(1, 4))
    mode, shape, limit = draw(st.sampled_from(MODES)), [], 900 if SIMULATED else 10 ** 6
    for _ in range(rank):
        shape.append(draw(st.sampled_from([n for n in (1, 2, 3, 5, 8, 17, 40) if n <= limit])))
        limit //= shape[-1]
    most = [min(n - 1, 9) if mode == "reflect" else 9 if n < 9 else 3 for n in shape]
    return rank, mode, shape, tuple((draw(st.integers(0, m)), draw(st.integers(0, m))) if draw(st.booleans()) else (0, 0) for m in most)


def test_random_gradients_of_borders(request):
    st = pytest.importorskip("hypothesis.strategies")

    def problems(draw):
        rank, mode, shape, pads = random_borders(draw, st)
        return PadGradient("random", tuple(shape), pads, mode, draw(st.sampled_from(sorted(SHORT))),
                           {"dy": random_layout(draw, st, rank), "dx": random_layout(draw, st, rank)})
    random_problems(request, problems, 60)


def test_random_borders(request):
    st = pytest.importorskip("hypothesis.strategies")

    def problems(draw):
        rank, mode, shape, pads = random_borders(draw, st)
        return Pad("random", tuple(shape), pads, mode, draw(st.sampled_from(DTYPES)), 3.0,
                   {"x": random_layout(draw, st, rank), "y": random_layout(draw, st, rank)})
    random_problems(request, problems, 60)


def test_borders_are_those_of_torch():
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(2).standard_normal((2, 3, 5, 7))
    for ours, theirs in (("constant", "constant"), ("edge", "replicate"), ("reflect", "reflect")):
        want = torch.nn.functional.pad(torch.from_numpy(x), (1, 4, 2, 0), theirs)
        assert np.array_equal(host(dnnkern.pad(array(x, "float64"), ((0, 0), (0, 0), (2, 0), (1, 4)), mode=ours)), want.numpy()), ours


@pytest.mark.parametrize("algo", ["naive", "rows"])
def test_gradients_of_borders_are_those_of_torch(algo):
    torch = pytest.importorskip("torch")
    dy = np.random.default_rng(3).standard_normal((2, 3, 9, 26))
    for ours, theirs in (("constant", "constant"), ("edge", "replicate"), ("reflect", "reflect")):
        x = torch.zeros(2, 3, 7, 21, dtype=torch.float64, requires_grad=True)
        torch.nn.functional.pad(x, (1, 4, 2, 0), theirs).backward(torch.from_numpy(dy))
        got = host(dnnkern.pad_bwd(array(dy, "float64"), ((0, 0), (0, 0), (2, 0), (1, 4)), mode=ours, algo=algo))
        assert np.abs(got - x.grad.numpy()).max() < 1e-14, ours


H100 = Device(-1, "H100", (9, 0), "sm_90a", 132, 232448, 233472, 65536, 52428800, 1.98e9, 3352320000000.0, 85017493504, 0.0)


def test_vectors_of_whole_rows_are_compiled_in():
    """Three channels made four are two rows of a vector of 16 bits, four of 8; channels made five, or rows with borders, are not."""
    flat = next(a for a in dispatch.algorithms("pad") if a.name == "flat")

    def rows(words):
        return [(c.chunks, c.staged, c.row, c.listed) for c in flat.configs(parse_problem(words.split(), "pad"), H100)]
    assert rows("2x5x5x3 f16 0,0,0,0:1") == rows("2x5x5x3 e4m3 0,0,0,0:1") == [(1, False, (), False), (4, True, (4, 0, 3), False)]
    assert rows("2x5x5x3 f16 0,0,0,1") == rows("2x5x5x3 f16 0,0,0,1 edge") == [(1, False, (), False), (4, True, (), False)]
    assert rows("2x5x5x3 f16 0,1,1,0:1") == [(1, False, (), False)]
    assert rows("50x200 f16 0,1") == [(2, False, (), False), (2, False, (), True)]


@pytest.mark.parametrize("op, words, algo, config", [
    ("pad", "64x224x224x3 f16 0,0,0,0:1", "flat", "4 vectors, staged"), ("pad", "64x224x224x3 e4m3 0,0,0,0:5", "flat", "4 vectors, staged"),
    ("pad", "64x224x224x3 bf16 0,1,1,0:1", "flat", "1 vector"), ("pad", "64x64x224x224 e4m3 0,0,1,1", "flat", "2 vectors, listed"),
    ("pad", "32x480x64x64 bf16 0,0,1,1 edge", "flat", "2 vectors"),
    ("pad_bwd", "64x64x224x224 bf16 0,0,1,1 edge", "rows", "4 chunks, listed"),
    ("pad_bwd", "16384x4097 f16 0,2:3 edge", "rows", "4 chunks, listed"), ("pad_bwd", "64x256x55x55 bf16 0,0,1,1 edge", "rows", "1 chunk")])
def test_what_was_measured_best_is_chosen(op, words, algo, config):
    """As the rows of h100-weak-spots-pad.jsonl have it."""
    (found, _), = cheapest(dispatch.algorithms(op), parse_problem(words.split(), op), H100)
    assert (found.name, str(found.config)) == (algo, config)


@pytest.mark.parametrize("copies", [3, 9])
def test_rows_shorter_than_a_vector_reach_across_blocks(copies):
    """Parts of several blocks in shared memory, each from another alignment of x."""
    x = np.arange(copies * 1000 * 3).reshape(-1, 3) % 251
    for size, dtype in ((1, "uint8"), (2, "float16")):
        y = host(dnnkern.pad(array(x, dtype), ((0, 0), (size, 1)), value=7.0, algo="flat"))
        assert np.array_equal(y, np.pad(x, ((0, 0), (size, 1)), constant_values=7)), dtype


def test_borders_of_a_value_merge_with_what_is_whole():
    def dims(words):
        return [(d.size, d.before, d.inner) for d in parse_problem(words.split(), "pad").form.dims]
    assert dims("4x5x6x8 f16 0,1,2:1,0") == [(4, 0, 4), (7, 1, 5), (72, 16, 48)]
    assert dims("4x5x6x8 f16 0,1,2:1,0 edge") == [(4, 0, 4), (7, 1, 5), (9, 2, 6), (8, 0, 8)]
    assert dims("4x5x6x8 f16 0,0,0,0 edge") == [(960, 0, 960)] and dims("4x5x6x8 i8 1:3,0,0,0") == [(1920, 240, 960)]


def test_rows_that_begin_at_16_bytes_have_no_chunk_to_spare():
    def chunks(words):
        problem = parse_problem(words.split(), "pad")
        return chunk_count(problem.form, problem.alignment)
    assert chunks("2x5x5x3 f16 0,0,0,0:5") == 50 and chunks("2x5x5x3 f16 0,0,0,0:1") == 100 and chunks("50x11 f16 0,0:5") == 100
    assert chunks("50x11 f16 0,1:5") == 50 * 3, "17 halves, from anywhere"


@pytest.mark.parametrize("algo", ["naive", "rows"])
def test_values_are_rounded_as_casts_are(algo):
    inf, nan = np.inf, np.nan
    for dtype, value, want in (("int8", 2.5, 2), ("int8", 300, 127), ("int8", nan, 0), ("uint8", -1, 0), ("int32", 2.0 ** 40, 2 ** 31 - 1),
                               ("float16", 1e6, inf), ("bfloat16", 1.00390625, 1), ("float8_e4m3fn", -inf, -448), ("float64", 1 / 3, 1 / 3),
                               ("float32", -0.0, 0)):
        x = host(dnnkern.set_tensor(array(np.ones((3, 21)), dtype), value, algo=algo))
        assert (x == want).all(), (dtype, value)
        for way in {algo, "flat"}:
            y = host(dnnkern.pad(array(np.ones((1, 5)), dtype), ((0, 0), (3, 20)), value=value, algo=way))
            assert (y[:, :3] == want).all() and (y[:, 8:] == want).all() and (y[:, 3:8] == 1).all(), (way, dtype, value)
    assert np.isnan(host(dnnkern.set_tensor(array(np.ones(33), "bfloat16"), nan, algo=algo))).all()


@pytest.mark.parametrize("dtype", ["int16", "uint16", "uint32", "int64", "uint64"])
def test_integers_without_arithmetic_have_borders_too(dtype, simulated):
    x = np.arange(7 * 5).reshape(7, 5).astype(dtype)
    value = 40000 if dtype.startswith("u") else -30000
    for algo in ("naive", "rows", "flat"):
        y = dnnkern.pad(x, ((1, 1), (2, 9)), value=value, algo=algo)
        assert y.dtype == x.dtype and np.array_equal(y, np.pad(x, ((1, 1), (2, 9)), constant_values=value)), algo


def test_set_tensor_is_in_place():
    x = array(np.zeros((4, 9)))
    assert dnnkern.set_tensor(x, 2) is x and (host(x) == 2).all()
    y = array(np.zeros((4, 9)))
    assert dnnkern.set_tensor(x, 3, out=y) is y and (host(y) == 3).all() and (host(x) == 2).all()


def test_bad_borders():
    x = array(X)
    none = (0, 0)
    for pads, more, error, words in (((none, none), {}, ValueError, ["2 entries", "3 dimensions"]),
                                     ((1, 1, 1), {}, ValueError, ["pads=(1, 1, 1)", "pair", "3 dimensions"]),
                                     (2, {}, ValueError, ["pads=2", "pair"]), ((none, none, (1, 2, 3)), {}, ValueError, ["pair"]),
                                     ((none, none, (-1, 0)), {}, ValueError, ["pads is -1"]),
                                     ((none, none, (1.0, 0)), {}, TypeError, ["pads[2][0]=1.0"]),
                                     ((none,) * 3, {"mode": "wrap"}, ValueError, ["'wrap'", "'reflect'"]),
                                     (((2, 0), none, none), {"mode": "reflect"}, ValueError, ["3 elements", "axis 0", "(2, 3, 4)"])):
        refused(error, words, "pad", x, pads, out=((2, 3, 4), "float32"), **more)
    refused(ValueError, ["1 elements", "axis 0"], "pad", array(np.ones((0, 3))), ((1, 0), none), mode="edge")
    refused(ValueError, ["out has shape (2, 3, 4)", "(2, 3, 5)"], "pad", x, (none, none, (0, 1)), out=((2, 3, 4), "float32"))
    refused(TypeError, ["x: got NoneType"], "pad", None, ())


def test_bad_arrays_to_fill():
    refused(TypeError, ["got NoneType"], "set_tensor", None, 1.0)
    refused(ValueError, ["out has shape (2, 3)", "(2, 3, 4)"], "set_tensor", array(X), 1.0, out=((2, 3), "float32"))
    shared = labs.guarded(lay((4, 3), "float32", expand=(0,)), np.zeros((4, 3)))
    with pytest.raises(ValueError, match="set_tensor: .*share one address"):
        dnnkern.set_tensor(shared.array, 1.0)
    shared.assert_untouched("x")


def test_arrays_that_cannot_be_written(simulated):
    x = np.zeros(5, np.float32)
    x.flags.writeable = False
    with pytest.raises(TypeError, match="set_tensor: out is a read-only numpy array"):
        dnnkern.set_tensor(x, 1.0)
    with pytest.raises(TypeError, match="set_tensor: x is bool"):
        dnnkern.set_tensor(np.zeros(5, bool), 1.0)
