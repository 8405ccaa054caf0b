"""DNNKERN_CHECK=unwritten: results that depend on what nothing has written are found, with their cause; nothing else is."""
import contextlib
import inspect

import numpy as np
import pytest
from labs import array, synchronize

import dnnkern
from dnnkern import dispatch
from dnnkern.device import SIMULATED, cuda, f32, i32
from dnnkern.device.atomic import add_f32
from dnnkern.device.vec import advance
from dnnkern.host import front, lists
from dnnkern.host.check import CheckFailed
from dnnkern.host.launch import Argument, Launch

ROWS, LENGTH = 3, 40
SIZE = ROWS * LENGTH


@pytest.fixture(autouse=True)
def on(monkeypatch):
    """Turn the check on."""
    for module in (front, lists):
        monkeypatch.setattr(module, "CHECKS", frozenset({"unwritten"}))


@contextlib.contextmanager
def registered(op, name="planted", **fields):
    """An algorithm for everything, under `name`."""
    algorithm = dispatch.register(dispatch.Algorithm(op=op, name=name, supports=lambda problem: None, estimate=lambda *_: 1.0,
                                                     **{"workspace": lambda *_: 0, "build": lambda *_: (), **fields}))
    try:
        yield algorithm
    finally:
        dispatch.unregister(algorithm)


def run(kernel, workspace=0, out=None):
    """A kernel (x, y, scratch) as an algorithm of softmax: one block of `SIZE` threads."""
    arguments = Argument("float32*", "x"), Argument("float32*", "y"), Argument("float32*", "workspace")
    plan = (Launch(kernel, (1, 1, 1), (SIZE, 1, 1), arguments),)
    x = array(np.arange(SIZE).reshape(ROWS, LENGTH) - 60.5)
    with registered("softmax_fwd", workspace=lambda *_: workspace, build=lambda *_: plan):
        y = dnnkern.softmax_fwd(x, algo="planted", out=out)
        synchronize()
    return y


def found(kernel, text, workspace=0, line=None):
    """The message about a kernel; it ends with the command that runs the problem again, and in the simulator names the source line."""
    with pytest.raises(CheckFailed, match=text) as info:
        run(kernel, workspace)
    message = str(info.value)
    assert message.startswith("softmax_fwd: ") and "python -m dnnkern check softmax_fwd" in message.split("\n")[-1]
    if line is not None and SIMULATED:
        code, first = inspect.getsourcelines(kernel.py_func)
        number = first + next(k for k, text in enumerate(code) if line in text)
        assert f"test_unwritten.py:{number} in {kernel.py_func.__name__}: {line}" in message, message
    return message


# ---- outputs

@cuda.jit
def skips_the_last(x, y, scratch):
    t = i32(cuda.threadIdx.x)
    if t < SIZE - 1:
        y[t] = x[t]


def test_an_element_that_no_kernel_writes():
    text = rf"1 of {SIZE} elements of y \(float32\[3, 40\]\) is written by no kernel of softmax_fwd/planted, the first y\[2, 39\]"
    found(skips_the_last, text)


def test_an_output_of_the_caller_is_as_new():
    with pytest.raises(CheckFailed, match=r"y\[2, 39\]"):
        run(skips_the_last, out=array(np.zeros((ROWS, LENGTH))))


def test_gaps_of_an_output_are_the_callers():
    wide = array(np.full((ROWS, 2 * LENGTH), 7.0))
    with pytest.raises(CheckFailed, match=r"1 of 120 elements"):
        run(skips_the_last_of_gaps, out=wide[:, ::2])
    gaps = np.asarray(wide if SIMULATED else wide.cpu())[:, 1::2]
    np.testing.assert_array_equal(gaps, 7)


@cuda.jit
def skips_the_last_of_gaps(x, y, scratch):
    t = i32(cuda.threadIdx.x)
    if t < SIZE - 1:
        y[2 * t] = x[t]


@cuda.jit
def adds_to_an_output(x, y, scratch):
    t = i32(cuda.threadIdx.x)
    add_f32(advance(y, t), x[t])


def test_an_addition_to_an_output_that_nobody_zeroed():
    message = found(adds_to_an_output, rf"{SIZE} of {SIZE} elements of y .* depend on what softmax_fwd/planted has not written")
    assert "add_f32(advance(y, t), x[t])" in message if SIMULATED else "y itself" in message


def test_single_results_of_lists_are_outputs():
    text = r"clip_grad_norm: 1 of 1 elements of out \(float32\[\]\) is written by no kernel of clip_grad_norm/planted, the first out\n"
    with registered("clip_grad_norm"), pytest.raises(CheckFailed, match=f"^{text}"):
        dnnkern.clip_grad_norm([array(np.ones(3))], 1.0, algo="planted")


# ---- memory that is read before it is written

@cuda.jit
def reads_the_next_ones_scratch(x, y, scratch):
    t = i32(cuda.threadIdx.x)
    scratch[t] = x[t]
    cuda.syncthreads()
    y[t] = scratch[i32(t + 1)]


def test_workspace():
    message = found(reads_the_next_ones_scratch, r"1 of 120 elements of y .* depends on .*, the first y\[2, 39\]:\n",
                    4 * SIZE + 4, "y[t] = scratch[i32(t + 1)]")
    assert "the workspace" in message or "argument scratch[120]" in message


@cuda.jit
def counts_without_zeros(x, y, scratch):
    t = i32(cuda.threadIdx.x)
    add_f32(scratch, f32(1))
    cuda.syncthreads()
    y[t] = scratch[0]


def test_an_atomic_sum_that_nobody_zeroed():
    found(counts_without_zeros, "depend on what", 4)


@cuda.jit
def asks_a_flag(x, y, scratch):
    t = i32(cuda.threadIdx.x)
    y[t] = x[t] if scratch[t] != f32(0) else f32(1)


def test_a_flag_that_nobody_cleared():
    found(asks_a_flag, "120 of 120", 4 * SIZE, "y[t] = x[t] if scratch[t] != f32(0) else f32(1)")


@pytest.mark.parametrize("take, line", [(max, "value = take(value, tile[i32(t ^ 64)])"), (min, "value = take(value, tile[i32(t ^ 64)])")])
def test_shared_memory(simulated, take, line):
    @cuda.jit
    def reads_the_rest_of_a_tile(x, y, scratch):
        tile = cuda.shared.array(128, f32)
        t = i32(cuda.threadIdx.x)
        tile[t] = x[t]
        cuda.syncthreads()
        value = x[t]
        value = take(value, tile[i32(t ^ 64)])
        y[t] = value
    message = found(reads_the_rest_of_a_tile, r"8 of 120 elements of y .*, the first y\[1, 16\]:\n  shared array tile\[120\]", line=line)
    assert "read by thread (56, 0, 0) of block (0, 0, 0) at" in message


def test_the_line_that_matters_is_named(simulated):
    @cuda.jit
    def reads_twice(x, y, scratch):
        tile = cuda.shared.array(SIZE, f32)
        t = i32(cuda.threadIdx.x)
        dropped = tile[t]
        kept = tile[t]
        y[t] = kept if t == 5 else x[t] if t != -1 else dropped
    found(reads_twice, r"1 of 120 elements .*, the first y\[0, 5\]", line="kept = tile[t]")


@pytest.mark.parametrize("make", [lambda: cuda.local.array(2, f32), lambda: cuda.local.array(2, i32)])
def test_local_arrays(simulated, make):
    @cuda.jit
    def reads_an_empty_array(x, y, scratch):
        t = i32(cuda.threadIdx.x)
        zeros = cuda.local.array(1, f32)
        sums = make()
        zeros[0] = f32(0)
        sums[0] = 1
        y[t] = x[t] + zeros[0] + sums[1]
    with pytest.raises(CheckFailed, match=r"120 of 120 elements (.|\n)*local array of line .*, made at .*make=|local array"):
        run(reads_an_empty_array)


def test_two_memories_at_once(simulated):
    @cuda.jit
    def any_of_two(x, y, scratch):
        t = i32(cuda.threadIdx.x)
        mine = cuda.local.array(1, f32)
        y[t] = x[t] + (f32(1) if mine[0] != f32(0) or scratch[t] != f32(0) else f32(0))
    found(any_of_two, "120 of 120 elements of y .* depend on what .*:\n  memory", 4 * SIZE)


@pytest.mark.parametrize("op, name, call", [
    ("softmax_fwd", "split", lambda algo: dnnkern.softmax_fwd(array(np.ones((1, 600))), algo=algo)),
    ("reduce", "two_stage", lambda algo: dnnkern.reduce(array(np.ones((1, 4100))), "add", axes=1, algo=algo)),
    ("matmul", "split_k", lambda algo: dnnkern.matmul(array(np.ones((2, 64))), array(np.ones((64, 2))), algo=algo)),
    ("grad_norm", "chunks", lambda algo: dnnkern.grad_norm([array(np.ones(3))], algo=algo))])
def test_a_plan_without_its_first_launch(op, name, call):
    whole = next(a for a in dispatch.algorithms(op) if a.name == name)

    def build(problem, device, config):
        launches = whole.configured(problem, device)
        launches = launches.build(problem, device, launches.config)
        assert len(launches) > 1
        return launches[1:]
    with registered(op, build=build, workspace=lambda p, d, _: whole.workspace(p, d, whole.configured(p, d).config), arch=whole.arch):
        with pytest.raises(CheckFailed, match="depend"):
            call("planted")


# ---- what is no finding

def test_what_is_loaded_and_dropped(simulated):
    @cuda.jit
    def drops(x, y, scratch):
        tile = cuda.shared.array(256, f32)
        t = i32(cuda.threadIdx.x)
        tile[t] = x[t]
        cuda.syncthreads()
        beyond = tile[i32(t + 100)] + scratch[t]
        y[t] = beyond if t < 0 else x[t]
    run(drops, 4 * SIZE)


def test_operands_that_are_updated_are_updated_once():
    p, g = [array(np.ones(3))], [array(np.ones(3))]
    dnnkern.sgd_step(p, g, lr=0.25)
    np.testing.assert_array_equal(host(p[0]), 0.75)
    mean, var = array(np.zeros(2)), array(np.ones(2))
    dnnkern.batch_norm_train_fwd(array(np.full((4, 2), 8.0)), array(np.ones(2)), array(np.zeros(2)), mean, var, momentum=0.5)
    np.testing.assert_array_equal(host(mean), 4)


def test_in_place():
    x = array(np.array([1, -2, 3]))
    dnnkern.activation_fwd(x, "relu", out=x)
    np.testing.assert_array_equal(host(x), [1, 0, 3])
    a, c = array(np.eye(4)), array(np.full((4, 4), 2.0))
    dnnkern.matmul(a, a, c=c, beta=3.0, out=c)
    np.testing.assert_array_equal(host(c), 6 + np.eye(4))


def test_rows_that_no_group_has_are_left_as_they_were():
    a, b, offsets = array(np.ones((5, 4))), array(np.ones((1, 4, 8))), array([0, 3], "int32")
    for given in (array([1, 3], "int32"), offsets):
        out = array(np.full((5, 8), 9.0))
        dnnkern.grouped_matmul(a, b, given, out=out)
        first = int(host(given)[0])
        np.testing.assert_array_equal(host(out)[first:3], 4)
        np.testing.assert_array_equal(host(out)[:first], 9)
        np.testing.assert_array_equal(host(out)[3:], 9)
    dnnkern.grouped_matmul(a, b, offsets)
    with registered("grouped_matmul"), pytest.raises(CheckFailed, match=r"24 of 40 elements of y .* the first y\[0, 0\]"):
        dnnkern.grouped_matmul(a, b, offsets, algo="planted")


def test_an_algorithm_that_adds_in_any_order():
    """Not a finding on a GPU, where two runs differ."""
    out = dnnkern.grid_sample_bwd(array(np.random.default_rng(0).random((1, 2, 6, 6))), array(np.ones((1, 2, 5, 5))),
                                  array(np.random.default_rng(1).uniform(-1, 1, (1, 6, 6, 2))), allow=dispatch.Note.NONDETERMINISTIC)
    assert len(out) == 2


# ---- around it

def test_errors_of_a_kernel_say_what_memory_held(simulated):
    @cuda.jit
    def jumps(x, y, scratch):
        table = cuda.shared.array(SIZE, i32)
        y[cuda.threadIdx.x] = x[table[cuda.threadIdx.x]]
    with pytest.raises(RuntimeError, match="argument x: index 2071690107 is read") as info:
        run(jumps)
    notes = "\n".join(getattr(info.value, "__notes__", info.value.args))
    assert "shared array table[0]" in notes and "holds the bytes 0x7b" in notes


def test_beside_the_other_checks(monkeypatch):
    monkeypatch.setattr(front, "CHECKS", frozenset({"nan", "unwritten", "values"}))
    x = array([[1, np.inf]])
    with pytest.raises(CheckFailed, match="output 0 holds 2 values that are not finite, as does x; python -m"):
        dnnkern.softmax_fwd(x)


def host(a):
    """The values of an array of `labs`."""
    return np.asarray(a if SIMULATED else a.cpu())
