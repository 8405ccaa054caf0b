"""Launching kernels in the simulator: decorators, host surface, bad launches, errors, Numba's own programs."""
import gc
import re
import subprocess
import sys

import greenlet
import numpy as np
import pytest

from dnnkern.device.sim import Misuse, Pointer, Race, config, cuda, f32, i32
from dnnkern.device.vec import as_u32, store4


@pytest.fixture(autouse=True)
def settings():
    old = dict(vars(config))
    yield
    vars(config).update(old)


@pytest.fixture(params=("fifo", "lifo", "random"))
def schedule(request):
    config.policy = request.param


def test_numba_is_not_imported():
    code = ("import sys, dnnkern.device.sim as s; s.cuda.jit(lambda: None)[1, 1]()\n"
            "assert not any(m.split('.')[0] == 'numba' for m in sys.modules)")
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path), "NUMBA_ENABLE_CUDASIM": "1"})


def test_jit_forms():
    @cuda.jit
    def bare(x):
        """Doc."""

    @cuda.jit(launch_bounds=(64, 2), max_registers=32, fastmath=True, lineinfo=True, opt=True, lto=True)
    def options(x):
        pass

    @cuda.jit("void(float32[:])")
    def signature(x):
        pass
    assert bare.__name__ == "bare" and bare.__doc__ == "Doc." and bare.targetoptions == {} and bare.py_func.__name__ == "bare"
    assert options.targetoptions["launch_bounds"] == (64, 2) and options.targetoptions["max_registers"] == 32
    for k in (bare, options, signature):
        k[1, 1](np.zeros(1, np.float32))

    @cuda.jit(device=True, forceinline=True)
    def function(v):
        return v + 1
    assert type(function) is type(lambda: 0) and function(1) == 2
    with pytest.raises(Misuse, match="without a launch configuration"):
        bare(1)


def test_ordinary_program_with_device_arrays():
    @cuda.jit
    def saxpy(a, x, y):
        i = cuda.grid(1)
        if i < x.shape[0]:
            y[i] += a * x[i]
    x, y = cuda.to_device(np.arange(100, dtype=np.float32)), cuda.device_array(100, np.float32)
    y.copy_to_device(np.ones(100, np.float32))
    saxpy[4, 32, cuda.stream(), 0](np.float32(2), x, y)
    saxpy.forall(100)(np.float32(1), x, y)
    cuda.synchronize()
    assert (y.copy_to_host() == 3 * np.arange(100) + 1).all()


def test_closure_and_alias_of_cuda():
    def make(n):
        device = cuda

        @device.jit
        def k(x):
            x[device.threadIdx.x] = n
        return k
    x = np.zeros(4, np.int32)
    make(5)[1, 4](x)
    assert (x == 5).all()


def test_environment_sets_the_schedule():
    code = "from dnnkern.device.sim import config; print(config.policy, config.seed)"
    env = {"PYTHONPATH": ":".join(sys.path), "NUMBA_ENABLE_CUDASIM": "1", "DNNKERN_SIM_POLICY": "random", "DNNKERN_SIM_SEED": "7"}
    assert subprocess.run([sys.executable, "-c", code], check=True, env=env, capture_output=True, text=True).stdout == "random 7\n"


@pytest.mark.parametrize("variable, program, words", [
    ("DNNKERN_SIM_POLICY", "dnnkern.device", "DNNKERN_SIM_POLICY='nonsense'; expected one of fifo, lifo, random"),
    ("DNNKERN_SIM_SEED", "dnnkern.device", "DNNKERN_SIM_SEED='nonsense'; expected an integer of 0 or more"),
    ("DNNKERN_DEVICE", "dnnkern.device", "DNNKERN_DEVICE='nonsense'; expected one of cuda, cpu, simulator, or the index of a GPU"),
    ("DNNKERN_CHECK", "dnnkern.matmul(x, x)", "DNNKERN_CHECK='nonsense'; expected bounds, integers, nan, unwritten, values"),
    ("DNNKERN_LOG", "dnnkern.matmul(x, x)", "DNNKERN_LOG='nonsense'; expected dispatch"),
    ("DNNKERN_PREFER", "dnnkern.matmul(x, x)", "DNNKERN_PREFER is 'nonsense', and no algorithm has that name")])
def test_an_environment_that_makes_no_sense(variable, program, words):
    """Each variable is named, with what was got and what there is; what a program does not use does not matter."""
    code = f"""
import numpy as np, dnnkern
x = np.ones((2, 2), np.float32)
try:
    p = dnnkern.problem("matmul", a=x, b=x) if "'matmul'" in {program!r} else None
    {program}
except ValueError as error:
    print(error)
"""
    env = {"PYTHONPATH": ":".join(sys.path), "NUMBA_ENABLE_CUDASIM": "1", variable: "nonsense"}
    said = subprocess.run([sys.executable, "-c", code], check=True, env=env, capture_output=True, text=True).stdout
    assert said.startswith(words) if words else not said


def test_errors_say_where(schedule):
    @cuda.jit
    def k(x):
        if cuda.grid(1) == 101:
            x[0] // 0
            raise ValueError("no")
    with pytest.raises(ValueError, match="no") as e:
        k.simulate(2, 64, [Pointer(np.zeros(1, np.float32))])
    assert any("in kernel k, thread (37, 0, 0) (warp 1, lane 5) of block (1, 0, 0)" in n for n in e.value.__notes__)
    k.simulate(1, 64, [Pointer(np.zeros(1, np.float32))])  # the failed launch has left nothing behind


def test_bad_launches():
    @cuda.jit(launch_bounds=(128, 2))
    def k(x, n):
        pass
    for grid, block, args, options, text in (
            (1, 1025, 2, {}, r"block \(1025, 1, 1\) is outside|1025 threads"), (1, (32, 64), 2, {}, "2048 threads .* exceeds 1024"),
            (1, 129, 2, {}, "129 threads exceeds its launch_bounds of 128"), (1, 32, 1, {}, r"1 arguments given, it takes 2 \(x, n\)"),
            (1, 32, 3, {}, "3 arguments given"), (1, 32, 2, {"shared": 232449}, "232449 bytes .* exceed the 232448"),
            (3, 32, 2, {"cluster": 2}, r"clusters of \(2, 1, 1\) blocks do not divide the grid \(3, 1, 1\)"), (-1, 32, 2, {}, "grid"),
            ((1, 70000), 32, 2, {}, "grid"), (1, (1, 1, 65), 2, {}, "block")):
        with pytest.raises(Misuse, match=text) as e:
            k.simulate(grid, block, [0] * args, **options)
        assert "kernel k" in str(e.value)
    k.simulate(0, 32, [0, 0])
    k.simulate(4, 128, [0, 0], shared=232448, cluster=4)

    @cuda.jit
    def outer():
        k[1, 1](0, 0)
    with pytest.raises(Misuse, match="kernel k is launched from inside a kernel"):
        outer[1, 1]()


def test_no_floating_point_warnings(recwarn):
    @cuda.jit
    def k(x):
        x[0] = f32(3e38) * f32(10) - f32(3e38) * f32(10)
        cuda.syncthreads()
        x[1] = f32(1) / f32(0)
    x = np.zeros(2, np.float32)
    k[1, 3](x) if not config.track_global else k[1, 1](x)
    assert np.isnan(x[0]) and np.isinf(x[1]) and not recwarn.list


def test_missing_name_is_said():
    with pytest.raises(AttributeError, match="no attribute 'to_devise'"):
        cuda.to_devise


def test_failures_name_a_likely_cause(schedule):
    @cuda.jit
    def reads_nothing(out):
        s = cuda.shared.array(64, i32)
        t = cuda.threadIdx.x
        s[t] = t
        out[s[63 - t]] = 1
    with pytest.raises(Misuse, match="argument out: index -1 is written") as e:
        reads_nothing.simulate(1, 64, [Pointer(np.zeros(64, np.int32))])
    assert any("the thread has read shared array s[" in n and "which nothing has written" in n for n in e.value.__notes__)

    @cuda.jit
    def races(n):
        s = cuda.shared.array(64, i32)
        s[cuda.threadIdx.x] = 1
        v = s[63 - cuda.threadIdx.x]
        if cuda.atomic.add(n, 0, 1) == 63:
            raise ValueError(v)
        cuda.syncthreads()
    with pytest.raises(ValueError) as e:
        races.simulate(1, 64, [Pointer(np.zeros(1, np.int32))])
    assert any("and there is a race, perhaps the cause of this: shared array s[" in n and "a syncthreads is missing" in n
               for n in e.value.__notes__)


def test_kernels_may_call_kernels_as_functions():
    @cuda.jit
    def inner(x, i):
        x[i] = 7

    @cuda.jit
    def outer(x):
        inner(x, 1)
    x = np.zeros(2)
    outer[1, 1](x)
    assert x.tolist() == [0, 7]


NUMBA_PROGRAM = '''
import greenlet
import numpy as np
from numba import cuda, float32, int32
from numba.cuda import types
from dnnkern.device.sim import Race, install
install()
install()

@cuda.jit(device=True)
def double(v):
    return v + v

def make(n):
    @cuda.jit(launch_bounds=64)
    def k(x, y, count, right):
        s = cuda.shared.array(n, float32)
        c = cuda.local.array(2, types.int32)
        t = cuda.threadIdx.x
        c[1] = t
        s[t] = double(x[cuda.blockIdx.x * cuda.blockDim.x + c[1]])
        if right:
            cuda.syncthreads()
        y[cuda.grid(1)] = s[n - 1 - t] + cuda.shfl_sync(0xFFFFFFFF, t, 0)
        cuda.atomic.add(count, 0, 1)
    return k

x = np.arange(128, dtype=np.float32)
device, out = cuda.to_device(x), cuda.device_array(128, np.float32)
@cuda.jit
def zero(y):
    y[cuda.grid(1)] = 0
zero[4, 32](out)
count = cuda.to_device(np.zeros(1, np.int32))
make(64)[2, 64](device, out, count, True)
want = np.concatenate([2 * x[63::-1], 2 * x[:63:-1]]) + np.arange(128) // 32 % 2 * 32
got = out.copy_to_host()
assert (got == want).all() and count.copy_to_host()[0] == 128
y = np.zeros(128, np.float32)
zero[4, 32](cuda.InOut(y))
try:
    make(64)[2, 64](device, y, count, False)
except Race as e:
    print(e)
'''


def test_install_into_numba():
    env = {"PYTHONPATH": ":".join(sys.path), "NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run([sys.executable, "-c", NUMBA_PROGRAM], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "shared array s[" in done.stdout and "a syncthreads is missing" in done.stdout


def test_install_needs_numbas_simulator():
    code = "import numba.cuda\nfrom dnnkern.device.sim import Misuse, install\ntry:\n    install()\nexcept Misuse as e:\n    print(e)"
    env = {"PYTHONPATH": ":".join(sys.path), "NUMBA_ENABLE_CUDASIM": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert "set NUMBA_ENABLE_CUDASIM=1 before its first import" in done.stdout, done.stderr


def test_nothing_survives_a_launch():
    def alive():
        gc.collect()
        return sum(isinstance(o, greenlet.greenlet) and not o.dead for o in gc.get_objects())

    @cuda.jit
    def k(x, fail):
        try:
            cuda.syncthreads()
            if fail and cuda.threadIdx.x == 3:
                raise ValueError
            cuda.syncthreads()
        finally:
            cuda.nanosleep(1)
    k.simulate(1, 1, [0, False])  # the thread's own greenlet is made by its first launch, and stays
    before = alive()
    k.simulate(3, 40, [0, False])
    with pytest.raises(ValueError):
        k.simulate(3, 40, [0, True])
    assert alive() == before


def here(text):
    """The numbered line of this file that ends in the comment `text`."""
    number = next(n for n, line in enumerate(open(__file__), 1) if line.rstrip().endswith(f"# {text}"))
    return rf"at .*test_sim_launch\.py:{number} in "


def test_races_name_both_lines(schedule):
    @cuda.jit(device=True)
    def put(tile, i):
        tile[i] = i  # device function that writes

    @cuda.jit
    def neighbours(x, y):
        i = cuda.threadIdx.x
        tile = cuda.shared.array(64, i32)
        put(tile, i)
        y[i] = tile[63 - i]  # reads the neighbour
        x[i] += 1

    @cuda.jit
    def blocks(x, y):
        if cuda.threadIdx.x == 0:
            y[3] = x[0]
            x[0] = x[0] + 1  # writes for all

    @cuda.jit
    def vectors(x, y):
        if cuda.threadIdx.x == 0:
            store4(as_u32(y), i32(4), (1, 2, 3, 4))  # writes four
        if cuda.threadIdx.x == 63:
            x[0] = y[6]  # reads one of four
    x = np.zeros(64, np.int32)
    for kernel, grid, places in ((neighbours, 1, ("reads the neighbour", "device function that writes")),
                                 (vectors, 1, ("writes four", "reads one of four")), (blocks, 2, ("writes for all",) * 2)):
        x[:] = 0
        with pytest.raises(Race) as error:
            kernel.simulate(grid, 64, [Pointer(x), Pointer(np.zeros(64, np.int32))])
        first, *lines = str(error.value).split("\n")[:3]
        assert "nothing orders the two" in first and len(lines) == 2
        assert all(any(re.search(here(place), line) for line in lines) for place in places), lines
        config.lines = False
        with pytest.raises(Race) as error:
            kernel.simulate(grid, 64, [Pointer(x), Pointer(np.zeros(64, np.int32))])
        assert "test_sim_launch" not in str(error.value)
        config.lines = True


def test_the_second_run_begins_with_the_same_memory():
    x = np.zeros(64, np.int32)

    @cuda.jit
    def counts(x):
        x[cuda.threadIdx.x] += 1
        if cuda.threadIdx.x == 5:
            x[6] = 7
    with pytest.raises(Race, match=r"(?s)writes it at .*writes it at|updates|reads it at"):
        counts.simulate(1, 64, [Pointer(x)])
    assert (np.delete(x, 6) == 1).all()
