"""How arguments are packed, plans of many launches, and plans in the simulator."""
import contextlib
import ctypes
import struct
from typing import NamedTuple

import numpy as np
import pytest

from dnnkern.device import SIMULATED, cuda, f32, i64
from dnnkern.device._parameters import structure
from dnnkern.host import raw
from dnnkern.host import launch as launch_module
from dnnkern.host.launch import Argument, Launch

simulator = pytest.mark.skipif(not SIMULATED, reason="of the simulator")


class _Executable(launch_module.Executable):
    """Packs, and launches nothing."""

    def __init__(self, launches, parameters, monkeypatch):
        class NoFunction:
            handle = 0

            def __init__(self, *ignored):
                pass
        monkeypatch.setattr(launch_module, "Function", NoFunction)
        monkeypatch.setattr(launch_module, "compile_kernel", lambda *ignored: None)
        monkeypatch.setattr(launch_module, "on_device", lambda index: contextlib.nullcontext())
        super().__init__(launches, parameters, 0)


@cuda.jit(launch_bounds=32)
def _kernel(x):
    x[0] = f32(0)


class _Steps(NamedTuple):
    steps: "int64x2"  # noqa: F821 (a name of several)


class _Sizes(NamedTuple):
    n: i64
    steps: _Steps


def test_what_a_launch_is_given(monkeypatch):
    """The bytes behind cuLaunchKernelEx's parameters: constants, dynamic values, pointers with offsets, tuples as their elements."""
    arguments = (Argument("float32*", "x"), Argument("int32", -7), Argument("float32", "alpha"), Argument("uint8*", "workspace", 48),
                 Argument(_Sizes, _Sizes(1, _Steps((-2, 3)))), Argument("float64", 0.1), Argument("float32*", "x", 16))
    first = Launch(_kernel, (1, 1, 1), (32, 1, 1), arguments)
    second = Launch(_kernel, (7, 2, 1), (64, 1, 1), (Argument("uint8*", "workspace"),), shared=1000, cluster=(2, 1, 1))
    plan = _Executable((first, second), (("x", "pointer"), ("workspace", "pointer"), ("alpha", "float32")), monkeypatch)
    seen = []

    def driver(config, function, parameters, extra):
        c = launch_module._Config.from_address(config)
        count = (7, 1)[len(seen)]
        at = (ctypes.c_void_p * 9).from_address(parameters)
        sizes = ((8, 4, 4, 8, 8, 8, 8, 8, 8), (8,))[len(seen)]
        seen.append((tuple(c.grid), tuple(c.block), c.shared, c.stream, c.count, [ctypes.string_at(at[k], n) for k, n in enumerate(sizes)]))
        return 0 if count else 1

    monkeypatch.setitem(vars(raw), "cuLaunchKernelEx", driver)
    plan.execute((0x1000, 0x2000, 2.5), 0x55)
    grid, block, shared, stream, count, values = seen[0]
    assert (grid, block, shared, stream, count) == ((1, 1, 1), (32, 1, 1), 0, 0x55, 0)
    assert values == [struct.pack("<Q", 0x1000), struct.pack("<i", -7), struct.pack("<f", 2.5), struct.pack("<Q", 0x2030),
                      struct.pack("<q", 1), struct.pack("<q", -2), struct.pack("<q", 3), struct.pack("<d", 0.1), struct.pack("<Q", 0x1010)]
    grid, block, shared, stream, count, values = seen[1]
    assert (grid, block, shared, stream, count, values) == ((7, 2, 1), (64, 1, 1), 1000, 0x55, 1, [struct.pack("<Q", 0x2000)])
    seen.clear()
    plan.execute((0x3000, 0x4000, -1.0), 0)
    assert seen[0][5][0] == struct.pack("<Q", 0x3000) and seen[0][5][3] == struct.pack("<Q", 0x4030) and not seen[0][3]


_Group = structure("_Group", ("float32*", "int64", "uint8*"))


def test_dynamic_members_are_passed_as_arguments_are(monkeypatch):
    """A structure with dynamic members fills the slots of a launch, and moves pointers, as its members would one by one."""
    members = Argument("float32*", "x"), Argument("int64", "n"), Argument("uint8*", "workspace", 48)
    parameters = (("x", "pointer"), ("workspace", "pointer"), ("n", "int64"))
    plain, grouped = (_Executable([Launch(_kernel, (1, 1, 1), (32, 1, 1), arguments)], parameters, monkeypatch)
                      for arguments in (members, (Argument(_Group, _Group(*members)),)))
    assert plain.slots == grouped.slots and plain.shifted == grouped.shifted == [(1, 48)]
    assert grouped.slots == [[0, 16, 24]]
    with pytest.raises(ValueError, match=r"Argument\('float32\*', 'y'\); expected a constant, or one of 'x'"):
        argument = Argument(_Group, _Group(Argument("float32*", "y"), 1, Argument("uint8*", "workspace")))
        _Executable([Launch(_kernel, (1, 1, 1), (32, 1, 1), (argument,))], parameters, monkeypatch)


def test_an_argument_that_no_call_has():
    parameters = ("x", "pointer"), ("workspace", "pointer"), ("alpha", "float32")
    launch = Launch(_kernel, (1, 1, 1), (32, 1, 1), (Argument("float32*", "X"), Argument("float32", "alpha")))
    for plan in (launch_module.SimulatedExecutable, launch_module.Executable):
        with pytest.raises(ValueError, match="Argument\\('float32\\*', 'X'\\); expected a constant, or one of 'x', 'workspace', 'alpha'; "
                                             "did you mean 'x'"):
            plan((launch,), parameters, 0)


def test_pointers_that_are_null_in_every_call(monkeypatch):
    arguments = (Argument("float32*", "c"), Argument("float32*", "x"), Argument("uint8*", "c"))
    launch = Launch(_kernel, (1, 1, 1), (32, 1, 1), arguments)
    plan = _Executable((launch,), (("x", "pointer"), ("alpha", "float32"), ("c", "null")), monkeypatch)
    seen = []

    def driver(config, function, parameters, extra):
        seen.extend(ctypes.string_at(at, 8) for at in (ctypes.c_void_p * 3).from_address(parameters))
        return 0

    monkeypatch.setitem(vars(raw), "cuLaunchKernelEx", driver)
    plan.execute((0x1000, 2.5), 0)
    assert seen == [bytes(8), struct.pack("<Q", 0x1000), bytes(8)]


def test_operands_missing_at_the_end_may_be_left_out(simulated):
    """Both spellings are the same call; each has a plan whose values are counted right."""
    from dnnkern.matmul import OPERATION
    a, workspace = np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros(64, np.uint8)
    b = a.copy()
    want, parameters = a @ a.T, (False, True, None, None, None, False, False)
    for operands in ((a, b), (a, b, None), (a, b, None, None, None, None)):
        for out in (None, np.empty((2, 2), np.float32)):
            y = OPERATION.call(operands, out, parameters, (1.0, 1.0), workspace, None, {})
            assert np.array_equal(y, want)
        with pytest.raises(ValueError, match="out is the same memory as a"):
            OPERATION.call((a, *operands[1:]), a[:, :2], parameters, (1.0, 1.0), None, None, {})
        shifted = np.zeros(10, np.float32)
        moved = (shifted[:6].reshape(2, 3), *operands[1:])
        with pytest.raises(ValueError, match="out partly overlaps a"):
            OPERATION.call(moved, shifted[4:8].reshape(2, 2), parameters, (1.0, 1.0), None, None, {})


def test_launches_that_cannot_be():
    for grid, block, words in (((1, 1, 1), (0, 1, 1), "0 threads"), ((1, 1, 1), (32, 32, 2), "2048 threads"),
                               ((0, 1, 1), (32, 1, 1), "x is 1"),
                               ((1, 65536, 1), (32, 1, 1), "y is 1 to 65535"), ((1, 1, 65536), (32, 1, 1), "z is 1 to 65535"),
                               ((2 ** 31, 1, 1), (32, 1, 1), "x is 1 to 2147483647")):
        with pytest.raises(ValueError, match=words):
            Launch(_kernel, grid, block, ())


def test_offsets_into_a_workspace_in_the_simulator(simulated):
    from dnnkern.host.launch import SimulatedExecutable

    @cuda.jit(launch_bounds=1)
    def kernel(x, y):
        y[0] = x[1]
    scratch = np.arange(64, dtype=np.uint8)
    y = np.zeros(1, np.float32)
    launch = Launch(kernel, (1, 1, 1), (1, 1, 1), (Argument("float32*", "workspace", 16), Argument("float32*", "y")))
    SimulatedExecutable((launch,), (("y", "pointer"), ("workspace", "pointer")), 0).execute((y, scratch), None)
    assert y[0] == scratch[20:24].view(np.float32)[0]
