"""Runs a plan (`make_executable`) or one kernel (`launch_once`) on the device of this process."""
import numpy as np

from ..device import DEVICE, SIMULATED
from ..device._parameters import constant_type, is_mapped, is_structure
from . import driver, raw
from .device import set_current
from .launch import Argument, Executable, Launch, SimulatedExecutable


_PLANNED, _MOST = {}, 1024  # {(problem, algorithm, device): launches} of recorded calls, which may never run


def plan_ahead(problem, algorithm, device) -> tuple:
    """The algorithm's launches for a problem, kept until `make_executable` asks for them."""
    if len(_PLANNED) >= _MOST:
        _PLANNED.clear()
    launches = _PLANNED[problem, algorithm, device] = algorithm.build(problem, device, algorithm.config)
    return launches


def make_executable(operation, problem, algorithm, device, given=None, called=False):
    """The algorithm's launches for a problem, compiled and loaded (or simulated); `given`: see `front.Operation.parameters`.

    `called`: for a call of a program, not to be measured or checked.
    """
    launches = _PLANNED.pop((problem, algorithm, device), None) or algorithm.build(problem, device, algorithm.config)
    return load(launches, operation.of(problem).parameters(problem, given), device.index, f"{problem} by {algorithm}" if called else None)


def load(launches, parameters, index, title=None):
    """Launches that take these parameters, `Executable`'s, compiled and loaded on a device (or simulated, or on the processor); `title`
    says of a program's own call what it is."""
    if SIMULATED:
        return SimulatedExecutable(launches, parameters, index, title=title)
    if DEVICE == "cpu":
        from .cpu import CpuExecutable
        return CpuExecutable(launches, parameters, index)
    return Executable(launches, parameters, index)


def launch_once(kernel, grid, block, args, shared=0, cluster=(1, 1, 1), cooperative=False, index=0):
    """Compile and run one kernel on NumPy arrays, synchronously, copying them to the device and back, or simulate it: for tests and
    examples.

    Arrays are passed as flat pointers to their storage, a pair of an array and a `TensorMap` or `Im2colMap` as a tensor map of it, Python
    ints as int32, floats as float32, NumPy scalars as their own type, NamedTuples as their annotations say, arrays among their members.
    """
    if DEVICE == "cpu":
        from ..device.cpu import launch
        launch.launch_once(kernel, grid, block, args, shared, cluster, cooperative)
        return
    if SIMULATED:
        from ..device.sim import Map, Pointer
        from ..device.sim.scalars import as_parameter

        def value(a):
            if isinstance(a, np.ndarray):
                return Pointer(a)
            if is_mapped(a):
                return Map(Pointer(a[0]), a[1])
            if is_structure(type(a)):
                a = type(a)(*(Pointer(v) if isinstance(v, np.ndarray) else v for v in a))
            return as_parameter(constant_type(a), a)
        values = list(map(value, args))
        kernel.simulate(grid, block, values, shared=shared, cluster=cluster, cooperative=cooperative)
        return
    set_current(index)
    values, copies = {}, {}

    def argument(a):
        array, spec = a if is_mapped(a) else (a, None)
        if is_structure(type(a)) and any(isinstance(v, np.ndarray) for v in a):
            return Argument(type(a), type(a)(*(argument(v) if isinstance(v, np.ndarray) else v for v in a)))
        if not isinstance(array, np.ndarray):
            return Argument(constant_type(a), a)
        if id(array) not in copies:  # an array may be passed for several arguments
            copies[id(array)] = array, driver.cuMemAlloc(max(array.nbytes, 16))
            host = np.ascontiguousarray(array)  # by address: bfloat16 arrays have no buffer protocol
            driver.cuMemcpyHtoD(copies[id(array)][1], host.ctypes.data, host.nbytes)
        name = str(len(values))
        values[name] = copies[id(array)][1]
        return Argument(array.dtype.name + "*", name) if spec is None else Argument("tensormap", name, spec=spec)
    try:
        arguments, parameters = list(map(argument, args)), [(name, "pointer") for name in values]
        executable = Executable([Launch(kernel, grid, block, tuple(arguments), shared, cluster, cooperative)], parameters, index)
        executable.execute(list(values.values()), 0)
        driver.cuCtxSynchronize()
        for a, address in copies.values():
            back = np.empty(a.shape, a.dtype)
            driver.cuMemcpyDtoH(back.ctypes.data, address, a.nbytes)
            a[...] = back
    finally:
        for _, address in copies.values():
            raw.cuMemFree(address)
