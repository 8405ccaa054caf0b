"""What a caller can get wrong: the error says what was got and what was expected, and nothing is written.

What looks wrong and is not, works.
"""
import os
import subprocess
import sys

import contract
import labs
import numpy as np
import pytest
from cases import Place, lay, numpy_dtype
from cases.matmul import Matmul

import dnnkern
from dnnkern import dispatch
from dnnkern.device import SIMULATED
from dnnkern.device._mode import driver_devices
from dnnkern.dispatch import Algorithm, Note, NotSupported
from dnnkern.host import arrays as arrays_module


def array(shape, dtype="float32", values=1, **layout):
    """An array of this process's kind."""
    place = lay(shape, dtype, **layout)
    return labs.guarded(place, np.broadcast_to(np.float64(values), shape)).array


class Out:
    """A poisoned output that must stay so."""

    def __init__(self, shape, dtype="float32", **layout):
        self.guarded = labs.guarded(lay(shape, dtype, **layout))
        self.array = self.guarded.array


def refused(error, words, *args, out=None, **kwargs):
    """matmul raises `error`, whose message has all the words, and `out` is as it was."""
    if isinstance(out, Out):
        kwargs["out"] = out.array
    elif out is not None:
        kwargs["out"] = out
    with labs.refuses(error, words, "matmul"):
        dnnkern.matmul(*args, **kwargs)
    if isinstance(out, Out):
        labs.synchronize()
        out.guarded.assert_untouched("out")


# ---- shapes

@pytest.mark.parametrize("a, b, options, words", [
    ((3, 4), (5, 6), {}, ["K=4", "(3, 4)", "K=5", "(5, 6)"]),
    ((3, 4), (4, 6), {"transpose_a": True}, ["K=3", "transposed", "K=4"]),
    ((2, 3, 4), (3, 4, 6), {}, ["(2,)", "(3,)", "broadcast"]),
    ((4,), (5, 6), {}, ["K=4", "(4,)", "K=5"]),
    ((4,), (4, 3), {"transpose_a": True}, ["transpose_a", "(4,)", "matrix"]),
    ((3, 4), (4,), {"transpose_b": True}, ["transpose_b", "(4,)", "matrix"]),
    ((), (4,), {}, ["a has no dimensions"]),
    ((4,), (), {}, ["b has no dimensions"])])
def test_operand_shapes(a, b, options, words):
    refused(ValueError, words, array(a), array(b), **options)


@pytest.mark.parametrize("shape", [(3, 1, 6), (2, 3, 6), (2, 1, 1), (2, 2, 1, 6), (2, 6)])
def test_biases_of_batches(shape):
    out = Out((2, 3, 6))
    refused(ValueError, [f"bias has shape {shape}", "(6,)", "for each matrix of the batch (2,)"], array((2, 3, 4)), array((4, 6)), out=out,
            bias=array(shape))


@pytest.mark.parametrize("options, words", [
    ({"out": (3, 5)}, ["out has shape (3, 5)", "(3, 6)"]),
    ({"out": (1, 3, 6)}, ["out has shape (1, 3, 6)", "(3, 6)"]),
    ({"bias": (5,)}, ["bias has shape (5,)", "(6,)", "(3, 1)"]),
    ({"bias": (3, 6)}, ["bias has shape (3, 6)"]),
    ({"bias": ()}, ["bias has shape ()"]),
    ({"bias": (2, 1, 6)}, ["bias has shape (2, 1, 6)", "(1, 6) by column"]),
    ({"c": (3, 5)}, ["c has shape (3, 5)", "(3, 6)"]),
    ({"c": (2, 3, 6)}, ["c has shape (2, 3, 6)", "(3, 6)"])])
def test_other_shapes(options, words):
    out = Out(options.pop("out", (3, 6)))
    refused(ValueError, words, array((3, 4)), array((4, 6)), out=out, **{name: array(shape) for name, shape in options.items()})


def test_an_output_whose_elements_share_an_address():
    refused(ValueError, ["share one address", "(0, 1)"], array((3, 4)), array((4, 6)), out=Out((3, 6), expand=(0,)))


# ---- dtypes and values

def test_dtypes():
    f32, out = array((4, 4)), Out((4, 4))
    refused(TypeError, ["a is float32", "b is float16", "same"], f32, array((4, 4), "float16"), out=out)
    refused(TypeError, ["a is int32", "float64, float32, float16, bfloat16, int8"], array((4, 4), "int32"), array((4, 4), "int32"), out=out)
    refused(TypeError, ["int8", "float32", "out_dtype"], f32, f32, out=Out((4, 4), "int8"), out_dtype="float32")
    refused(TypeError, ["out (or out_dtype) is float64", "float32", "float32, float16, bfloat16"], f32, f32, out=Out((4, 4), "float64"))
    refused(TypeError, ["out is float32", "float16"], f32, f32, out=out, out_dtype="float16")
    refused(TypeError, ["bias is int8", "expected"], f32, f32, out=out, bias=array((4,), "int8"))
    refused(TypeError, ["c is float64", "expected"], f32, f32, out=out, c=array((4, 4), "float64"))


def test_dtypes_of_eight_bit_floats():
    e4m3, e5m2, f32 = array((4, 4), "float8_e4m3fn"), array((4, 4), "float8_e5m2"), array((4, 4))
    refused(TypeError, ["a is float8_e4m3fn", "b is bfloat16", "same"], e4m3, array((4, 4), "bfloat16"))
    refused(TypeError, ["a is float32", "b is float8_e5m2"], f32, e5m2)
    refused(TypeError, ["out (or out_dtype) is float64", "float8_e5m2", "bfloat16, float32, float16"], e5m2, e4m3, out_dtype="float64")
    refused(TypeError, ["out (or out_dtype) is float8_e4m3fn", "float32"], f32, f32, out=Out((4, 4), "float8_e4m3fn"))
    refused(TypeError, ["bias is float8_e4m3fn", "float32"], e4m3, e4m3, bias=array((4,), "float8_e4m3fn"))
    refused(TypeError, ["c is float8_e5m2", "float32"], e4m3, e4m3, c=e5m2, out=Out((4, 4), "bfloat16"))


@pytest.mark.parametrize("name, shape, words", [
    ("scale_a", (3,), ["(3,)", "one element", "(6, 1) by row", "(6, 3) by blocks of 128 along k"]),
    ("scale_a", (1, 6), ["(1, 6)", "(6, 1)"]),
    ("scale_a", (6, 2), ["(6, 2)", "(6, 3)"]),
    ("scale_a", (6, 3, 1), ["(6, 3, 1)"]),
    ("scale_a", (1, 1, 1), ["(1, 1, 1)", "one element"]),
    ("scale_a", (0,), ["(0,)"]),
    ("scale_b", (200,), ["(200,)", "(1, 200) by column", "(3, 2) by blocks of 128x128"]),
    ("scale_b", (200, 1), ["(200, 1)", "(1, 200)"]),
    ("scale_b", (2, 3), ["(2, 3)", "(3, 2)"]),
    ("scale_b", (1, 2), ["(1, 2)", "(3, 2)"])])
def test_scales_of_wrong_shapes(name, shape, words):
    a, b = array((6, 300), "float8_e4m3fn"), array((300, 200), "float8_e4m3fn")
    refused(ValueError, [name, *words], a, b, out=Out((6, 200), "bfloat16"), **{name: array(shape)})


def test_scales_of_wrong_dtypes():
    f8, f32 = array((4, 4), "float8_e4m3fn"), array((4, 4))
    refused(TypeError, ["scale_a is float16", "float32"], f8, f8, scale_a=array((1,), "float16"))
    refused(TypeError, ["scale_b is float64", "float32"], f8, f8, scale_b=array((1, 4), "float64"))
    refused(TypeError, ["scale_b is for an operand of float8_e4m3fn or float8_e5m2", "b is float32"], f32, f32, scale_b=array((1,)))
    refused(TypeError, ["scale_a: got float"], f8, f8, scale_a=2.0)


def test_a_dtype_that_does_not_exist():
    with pytest.raises(TypeError, match="'float31'.*float32"):
        dnnkern.matmul(array((4, 4)), array((4, 4)), out_dtype="float31")


def test_values_of_keywords():
    f32, out = array((4, 4)), Out((4, 4))
    refused(ValueError, ["math='exact'", "None, 'tf32', 'fast'"], f32, f32, out=out, math="exact")
    refused(TypeError, ["allow=1", "Note"], f32, f32, out=out, allow=1)
    with pytest.raises(ValueError, match="'rely'.*relu"):
        dnnkern.matmul(f32, f32, out=out.array, activation="rely")
    out.guarded.assert_untouched("out")


def test_streams():
    out = Out((4, 4))
    with pytest.raises(TypeError, match="stream is 'default'.*expected an int"):
        dnnkern.matmul(array((4, 4)), array((4, 4)), out=out.array, stream="default")
    out.guarded.assert_untouched("out")


@pytest.mark.parametrize("value, got", [([[1.0, 2.0]], "list"), (1.5, "float"), (np.float32(2), "float32"), ("a", "str"),
                                        (object(), "object")])
def test_things_that_are_no_arrays(value, got):
    f32, out = array((2, 2)), Out((2, 2))
    for name in ("a", "b", "bias", "c"):
        operands = {"a": f32, "b": f32, name: value}
        refused(TypeError, [f"{name}: got {got}", "expected a device array"], operands.pop("a"), operands.pop("b"), out=out, **operands)
    refused(TypeError, ["out: got " + got], f32, f32, out=value)
    refused(TypeError, ["a: got NoneType"], None, f32, out=out)
    refused(TypeError, ["b: got NoneType"], f32, None, out=out)


def test_a_byte_order_that_is_not_the_machines(simulated):
    swapped = np.ones((4, 4), np.dtype("float32").newbyteorder())
    refused(TypeError, ["a", "dtype('>f4')"], swapped, array((4, 4)), out=Out((4, 4)))


def test_elements_that_are_not_aligned_to_their_size(simulated):
    raw = np.zeros(256, np.uint8)
    odd = np.ndarray((4, 4), np.float32, raw, 2)
    refused(ValueError, ["a", "aligned"], odd, array((4, 4)), out=Out((4, 4)))
    between = np.ndarray((4, 4), np.float32, raw, 0, (18, 4))
    refused(ValueError, ["a", "18"], between, array((4, 4)), out=Out((4, 4)))


def test_negative_sizes_cannot_be_described():
    from dnnkern.host.tensor import Tensor
    with pytest.raises(ValueError, match=r"no negative sizes.*\(3, -1\)"):
        Tensor((3, -1), (1, 1), "float32")


# ---- memory

@pytest.fixture
def buffer():
    """128 floats, of which a, b and out may take their pieces; returns (piece, check)."""
    guarded = labs.guarded(lay((128,), "float32"), np.arange(128.0))

    def piece(first, shape, **layout):
        p = lay(shape, "float32", **layout)
        if SIMULATED:
            return np.lib.stride_tricks.as_strided(guarded.array[first:], shape, [4 * s for s in p.strides])
        return guarded.array.as_strided(shape, p.strides, guarded.array.storage_offset() + first)
    return piece, lambda: guarded.assert_untouched("the buffer")


@pytest.mark.parametrize("first", [1, 4, 15, 17, 31])
def test_an_output_that_partly_overlaps_an_operand(buffer, first):
    piece, unchanged = buffer
    own = array((4, 4))
    at = piece(16, (4, 4))
    for name, arguments in (("a", (at, own, {})), ("b", (own, at, {})), ("c", (own, own, {"c": at}))):
        refused(ValueError, ["out partly overlaps " + name, "bytes 0x"], *arguments[:2], out=piece(first, (4, 4)), **arguments[2])
    unchanged()


def test_an_output_that_is_an_operand(buffer):
    piece, unchanged = buffer
    own, at = array((4, 4)), piece(16, (4, 4))
    refused(ValueError, ["same memory as a", "c"], at, own, out=piece(16, (4, 4)))
    refused(ValueError, ["same memory as b"], own, at, out=at)
    refused(ValueError, ["out begins where c does", "exactly the same"], own, own, c=piece(16, (4,)), out=at)
    refused(ValueError, ["out begins where c does", "strides"], own, own, c=piece(16, (4, 4), order=(1, 0)), out=at)
    unchanged()


def test_neighbours_do_not_overlap(buffer):
    piece, _ = buffer
    a, b, out = piece(0, (4, 4)), piece(16, (4, 4)), piece(32, (4, 4))
    want = np.asarray(a.tolist()) @ np.asarray(b.tolist())
    dnnkern.matmul(a, b, out=out)
    assert np.array_equal(np.asarray(out.tolist()), want)


def test_interleaved_arrays_do_not_overlap():
    """Their ranges of memory do; their elements do not."""
    both = array((4, 8))
    odd, even = both[:, 1::2], both[:, ::2]
    want = np.asarray(odd.tolist()) @ np.full((4, 4), 2)
    twos = array((4, 4))
    twos[:] = 2
    dnnkern.matmul(odd, twos, out=even)
    assert np.array_equal(np.asarray(even.tolist()), want)
    refused(ValueError, ["out partly overlaps a"], odd, twos, out=both[:, 2:6])


def test_the_overlap_is_checked_on_every_call(buffer):
    """The second call is described like the first but lies elsewhere."""
    piece, _ = buffer
    a, b = piece(0, (4, 4)), array((4, 4))
    dnnkern.matmul(a, b, out=piece(16, (4, 4)))
    refused(ValueError, ["out partly overlaps a"], a, b, out=piece(12, (4, 4)))


@pytest.fixture
def needy():
    """An algorithm that declares 1000 bytes of workspace; it must never be built."""
    def build(problem, device, config):
        raise AssertionError("built")
    algorithm = Algorithm(op="matmul", name="needy", supports=lambda problem: None, workspace=lambda problem, device, config: 1000,
                          estimate=lambda problem, device, config: 1.0, build=lambda problem, device, config: ())
    with contract.registered(algorithm) as mine:
        yield mine.name


@pytest.mark.parametrize("place, words", [
    (Place((999,), "uint8", (1,)), ["999 bytes", "needs 1000"]),
    (Place((124,), "float64", (1,)), ["992 bytes", "needs 1000"]),
    (Place((2000,), "uint8", (2,)), ["strides", "packed"]),
    (Place((1000, 2), "uint8", (0, 1)), ["packed"]),
    (Place((1000,), "uint8", (1,), 8), ["begins at", "multiple of 16"])])
def test_workspaces(needy, place, words):
    out = Out((4, 4))
    refused(ValueError, ["workspace", *words], array((4, 4)), array((4, 4)), out=out, algo=needy, workspace=labs.guarded(place).array)


def test_a_workspace_that_is_no_array(needy):
    refused(TypeError, ["workspace", "bytearray"], array((4, 4)), array((4, 4)), out=Out((4, 4)), algo=needy, workspace=bytearray(2000))


def test_a_workspace_that_overlaps_an_operand(needy):
    shared = labs.guarded(Place((1000,), "uint8", (1,))).array
    if SIMULATED:
        a = shared[:64].view(np.float32).reshape(4, 4)
    else:
        import torch
        a = shared[:64].view(torch.float32).reshape(4, 4)
    refused(ValueError, ["workspace", "overlaps a"], a, array((4, 4)), out=Out((4, 4)), algo=needy, workspace=shared)


def test_a_read_only_workspace(needy, simulated):
    workspace = labs.guarded(Place((1000,), "uint8", (1,))).array
    workspace.flags.writeable = False
    refused(TypeError, ["workspace is a read-only numpy array"], array((4, 4)), array((4, 4)), out=Out((4, 4)), algo=needy,
            workspace=workspace)
    ones = [np.ones(4, np.float32) for _ in range(4)]
    with pytest.raises(TypeError, match="adamw_step: workspace is a read-only numpy array"):
        dnnkern.adamw_step(*([x] for x in ones), lr=0.1, step=1, workspace=workspace)


def test_enough_workspace_of_another_dtype(needy):
    workspace = labs.guarded(Place((125,), "float64", (1,))).array
    dnnkern.matmul(array((4, 4)), array((4, 4)), out=array((4, 4)), algo=needy, workspace=workspace)


# ---- algorithms

def test_a_forced_algorithm_that_does_not_exist():
    out = Out((4, 4))
    refused(NotSupported, ["'quantum'", *[a.name for a in dispatch.algorithms("matmul")]], array((4, 4)), array((4, 4)), out=out,
            algo="quantum")


def test_a_forced_algorithm_that_cannot_or_may_not(needy):
    refusing = Algorithm(op="matmul", name="refusing", supports=lambda problem: f"K is {problem.k}, at least 64 is needed",
                         workspace=lambda *a: 0, estimate=lambda *a: 1.0, build=lambda *a: ())
    with contract.registered(refusing) as mine:
        refused(NotSupported, [repr(mine.name), "K is 4, at least 64 is needed", "4x4x4"], array((4, 4)), array((4, 4)), out=Out((4, 4)),
                algo=mine.name)
    racing = Algorithm(op="matmul", name="racing", supports=lambda problem: None, workspace=lambda *a: 0, estimate=lambda *a: 1.0,
                       build=lambda *a: (), notes=Note.NONDETERMINISTIC)
    with contract.registered(racing) as mine:
        refused(NotSupported, [repr(mine.name), "NONDETERMINISTIC", "allow="], array((4, 4)), array((4, 4)), out=Out((4, 4)),
                algo=mine.name)
    old = Algorithm(op="matmul", name="old", supports=lambda problem: None, workspace=lambda *a: 0, estimate=lambda *a: 1.0,
                    build=lambda *a: (), arch="sm_70a")
    with contract.registered(old) as mine:
        refused(NotSupported, ["sm_70a"], array((4, 4)), array((4, 4)), out=Out((4, 4)), algo=mine.name)


# ---- where arrays live

def test_a_host_array_on_a_gpu(on_gpu):
    refused(TypeError, ["NumPy", "host", "expected a device array"], np.ones((4, 4), np.float32), array((4, 4)), out=Out((4, 4)))
    refused(TypeError, ["b:", "host"], array((4, 4)), np.ones((4, 4), np.float32), out=Out((4, 4)))
    import torch
    refused(TypeError, ["b:", "cpu"], array((4, 4)), torch.ones(4, 4), out=Out((4, 4)))


def test_a_host_array_where_the_adapter_is_told_of_a_gpu(monkeypatch):
    monkeypatch.setattr(arrays_module, "HOST_MEMORY", False)
    with pytest.raises(TypeError, match="NumPy array, which lives on the host; expected a device array"):
        arrays_module.kind_named("numpy").tensor(np.ones(3, np.float32))


def test_arrays_of_two_devices(monkeypatch):
    a, b, out = array((4, 4)), array((4, 5)), Out((4, 5))
    kind = type(arrays_module.kind_of(a))
    monkeypatch.setattr(kind, "device", lambda self, x: int(x is b))
    refused(ValueError, ["b is on device 1", "a on device 0"], a, b, out=out)
    monkeypatch.setattr(kind, "device", lambda self, x: int(x is out.array))
    refused(ValueError, ["out is on device 1", "a on device 0"], a, b, out=out)


def test_an_output_that_cannot_be_written(monkeypatch):
    out = Out((4, 4))
    monkeypatch.setattr(type(arrays_module.kind_of(out.array)), "read_only", lambda self, a: a is out.array)
    refused(TypeError, ["out is a", "cannot be written"], array((4, 4)), array((4, 4)), out=out)


def test_a_read_only_output(simulated):
    out = Out((4, 4))
    out.array.flags.writeable = False
    refused(TypeError, ["out is a read-only numpy array", "cannot be written"], array((4, 4)), array((4, 4)), out=out)


# ---- what looks wrong and works

@pytest.mark.parametrize("case", [
    Matmul("zero-m-f32", 0, 3, 4), Matmul("zero-n-f32", 3, 0, 4), Matmul("zero-k-f32", 3, 4, 0),
    Matmul("zero-batch-f32", 3, 4, 5, batch_a=(0,)),
    Matmul("all-zero-f32", 0, 0, 0), Matmul("one-1x1x1-f32", 1, 1, 1),
    Matmul("odd-f32", 5, 6, 7, layout={x: {"misaligned": 3, "gap": 1, "step": 3} for x in "aby"}),
    Matmul("backwards-f64", 5, 6, 7, "float64", layout={x: {"flip": (0, 1)} for x in "aby"})], ids=lambda case: case.id)
def test_unusual_arrays_work(case):
    values = case.values("exact")
    run = contract.Run(case, dispatch.get_algorithm("matmul", case.problem()) if not case.problem().is_empty
                       else dispatch.algorithms("matmul")[0], values)
    run.check_memory()
    reference, _ = case.reference(values)
    run.check_values(reference, {"y": np.zeros(())})


def test_zero_sizes_return_an_array():
    y = dnnkern.matmul(array((0, 4)), array((4, 3)))
    assert tuple(y.shape) == (0, 3)
    y = dnnkern.matmul(array((2, 0)), array((0, 3)), bias=array((3,), values=5))
    assert np.array_equal(np.asarray(y.tolist()), np.full((2, 3), 5.0))


def test_infinities_and_nan_come_through():
    values = np.ones((4, 4))
    values[0, 0], values[1, 1] = np.inf, np.nan
    a = labs.guarded(lay((4, 4), "float32"), values).array
    y = np.asarray(dnnkern.matmul(a, array((4, 4)), activation="relu").tolist())
    assert np.isinf(y[0]).all() and np.isnan(y[1]).all() and (y[2:] == 4).all()


def test_beta_of_zero_does_not_read_c():
    c = labs.guarded(lay((4, 4), "float32"), np.full((4, 4), np.nan)).array
    y = np.asarray(dnnkern.matmul(array((4, 4)), array((4, 4)), c=c, beta=0.0).tolist())
    assert (y == 4).all()


def test_the_next_call_after_an_error_works():
    a, b = array((4, 4)), array((4, 4))
    with pytest.raises(ValueError):
        dnnkern.matmul(a, array((5, 4)))
    assert np.asarray(dnnkern.matmul(a, b).tolist()).tolist() == [[4.0] * 4] * 4


# ---- where there is no GPU

def _python(program, **environment):
    env = {k: v for k, v in os.environ.items() if k not in ("NUMBA_ENABLE_CUDASIM", "DNNKERN_DEVICE")} | environment
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, timeout=120)


PROGRAM = """
import numpy as np, dnnkern
print(dnnkern.matmul(np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)).sum())
"""


@pytest.mark.skipif(driver_devices() > 0, reason="there is a GPU")
def test_no_gpu_and_no_switch(simulated):
    done = _python(PROGRAM)
    assert done.returncode == 0 and done.stdout == "12.0\n", done
    lines = [line for line in done.stderr.splitlines() if "Warning" in line]
    assert len(lines) == 1 and "no CUDA device found, kernels run on the processor (DNNKERN_DEVICE=cpu asks for it" in lines[0], done.stderr
    assert lines[0].startswith("<string>:3: ")  # the program's line


@pytest.mark.parametrize("switch", [{"NUMBA_ENABLE_CUDASIM": "1"}, {"DNNKERN_DEVICE": "simulator"}, {"DNNKERN_DEVICE": "cpu"},
                                    {"DNNKERN_DEVICE": "cpu", "NUMBA_ENABLE_CUDASIM": "0"}])
def test_the_switch_silences_it(switch, simulated):
    done = _python(PROGRAM, **switch)
    assert (done.returncode, done.stdout, done.stderr) == (0, "12.0\n", "")


WHICH = "import dnnkern.device as d; from dnnkern.host.device import current_device; current_device(); print(d.DEVICE, d.HOST_MEMORY)"


@pytest.mark.parametrize("switch, before, said", [
    ({"NUMBA_ENABLE_CUDASIM": "1"}, "", "simulator True"), ({"DNNKERN_DEVICE": "cpu"}, "import numba.cuda", "cpu True"),
    ({"NUMBA_ENABLE_CUDASIM": "1"}, "import numba.cuda", "simulator True"), ({"DNNKERN_DEVICE": "0"}, "", "cpu True"),
    ({"DNNKERN_DEVICE": "0", "NUMBA_ENABLE_CUDASIM": "1"}, "", "simulator True"),
    ({"NUMBA_ENABLE_CUDASIM": "1"}, "import numba.cuda, os; del os.environ['NUMBA_ENABLE_CUDASIM']", "simulator True"),
    ({"DNNKERN_DEVICE": "gpu"}, "", "ValueError: DNNKERN_DEVICE='gpu'; expected one of cuda, cpu, simulator, or the index of a GPU"),
    ({"DNNKERN_DEVICE": "-1"}, "", "ValueError: DNNKERN_DEVICE='-1'; expected one of"),
    ({"DNNKERN_DEVICE": "7"}, "", "ValueError: DNNKERN_DEVICE=7; expected a device from 0 to 0"),
    ({"DNNKERN_DEVICE": "cuda"}, "", "ValueError: DNNKERN_DEVICE=cuda, and the CUDA driver sees no device"),
    ({"DNNKERN_DEVICE": "cpu", "NUMBA_ENABLE_CUDASIM": "1"}, "", "ValueError: DNNKERN_DEVICE=cpu and NUMBA_ENABLE_CUDASIM=1 contradict"),
    ({"DNNKERN_DEVICE": "simulator", "NUMBA_ENABLE_CUDASIM": "0"}, "", "ValueError: DNNKERN_DEVICE=simulator and NUMBA_ENABLE_CUDASIM=0"),
    ({"DNNKERN_DEVICE": "simulator"}, "import numba.cuda", "ImportError: numba.cuda was imported for the hardware before dnnkern, and "
     "DNNKERN_DEVICE=simulator asks for simulator"),
    ({"NUMBA_ENABLE_CUDASIM": "1"}, "import numba.cuda, os; os.environ['NUMBA_ENABLE_CUDASIM'] = '0'",
     "ImportError: numba.cuda was imported as the simulator before dnnkern, and NUMBA_ENABLE_CUDASIM=0 asks for cuda"),
    ({"DNNKERN_DEVICE": "cpu"}, "import platform; platform.machine = lambda: 'riscv64'", "ValueError: DNNKERN_DEVICE=cpu: the processor's "
     "runtime is tried out on Linux on x86_64, and this is linux on riscv64; expected simulator on this machine"),
    ({}, "import platform; platform.machine = lambda: 'riscv64'", "simulator True"),
    ({}, "import platform; platform.machine = lambda: 'aarch64'", "simulator True"),
    ({"DNNKERN_DEVICE": "cpu"}, "import platform; platform.machine = lambda: 'aarch64'", "cpu True"),
    ({"DNNKERN_DEVICE": "cpu"}, "import os, dnnkern.device; os.environ['DNNKERN_DEVICE'] = 'simulator'",
     "ValueError: DNNKERN_DEVICE=simulator, and this process runs on cpu: the variable is read once")])
@pytest.mark.skipif(driver_devices() > 0, reason="there is a GPU")
def test_which_device(switch, before, said, simulated):
    done = _python(f"{before}\n{WHICH}", **switch)
    assert (done.stdout if done.returncode == 0 else done.stderr.splitlines()[-1]).startswith(said), done


@pytest.mark.skipif(driver_devices() > 0, reason="there is a GPU")
def test_numba_imported_for_hardware_first(simulated):
    done = _python("import numba.cuda, warnings; warnings.simplefilter('ignore')\n" + PROGRAM)
    assert (done.returncode, done.stdout) == (0, "12.0\n"), done.stderr


def test_importing_the_package_imports_no_numba():
    done = _python("import sys, dnnkern; print([m for m in ('numba', 'numpy', 'cuda') if m in sys.modules])")
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_values_fit_the_dtypes_the_tests_use():
    assert {numpy_dtype(name).name for name in ("float16", "bfloat16")} == {"float16", "bfloat16"}
