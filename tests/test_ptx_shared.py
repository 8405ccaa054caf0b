"""Device functions that makers make anew for each kernel: equal ones are compiled once a process, others never taken for one another."""
import gc
import weakref
from typing import NamedTuple

import pytest

from dnnkern.device import SIMULATED, cuda, device_function, f32, i32, jit
from dnnkern.device._fingerprint import share_functions
from dnnkern.device.unroll import unrolled

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

OFFSET = 1


def make_helper(factor, plain=False):
    def helper(x):
        return x * factor

    return cuda.jit(device=True, forceinline=True)(helper) if plain else device_function(helper)


def make_function(helper, last=0.0):
    @device_function
    def function(x, more=last):
        return helper(x) + more + f32(OFFSET)
    return function


def make_kernel(function):
    @jit
    def kernel(x):
        x[0] = function(x[0])
    return kernel


def shared(*functions):
    """Whether kernels that call these have one and the same function of Numba's in their place."""
    kept = [make_kernel(function) for function in functions]
    for kernel in kept:
        share_functions(kernel)
    first, *others = [function.made for function in functions]
    return all(other is first for other in others)


@pytest.fixture
def compiled(monkeypatch):
    """Names of the functions that Numba compiles."""
    from numba.cuda import compiler
    names, plain = [], compiler.compile_extra

    def compile_extra(**given):
        names.append(given["func"].__name__)
        return plain(**given)
    monkeypatch.setattr(compiler, "compile_extra", compile_extra)
    return names


def test_equal_functions_are_compiled_once(compiled):
    from dnnkern.device._numba_compile import compile_llvm
    kernels = [make_kernel(make_function(make_helper(factor))) for factor in (40.0, 40.0, 50.0)]
    for kernel, expected in zip(kernels, (["function", "helper", "kernel"], ["kernel"], ["function", "helper", "kernel"])):
        compiled.clear()
        compile_llvm(kernel, ("float32*",), "sm_90a")
        assert sorted(compiled) == expected


def test_equal_functions_are_one():
    assert shared(make_helper(2), make_helper(2))
    assert shared(make_function(make_helper(2)), make_function(make_helper(2)))
    inner = make_helper(2), make_helper(2)
    assert shared(*map(make_function, inner)) and inner[0].made is inner[1].made


@pytest.mark.parametrize("one, other", [
    (lambda: make_helper(2), lambda: make_helper(3)), (lambda: make_helper(1), lambda: make_helper(True)),
    (lambda: make_helper(1), lambda: make_helper(1.0)), (lambda: make_helper(0.0), lambda: make_helper(-0.0)),
    (lambda: make_helper(2), lambda: make_helper(2, plain=True)), (lambda: make_helper(2), lambda: make_function(make_helper(2))),
    (lambda: make_function(make_helper(2)), lambda: make_function(make_helper(3))),
    (lambda: make_function(make_helper(2)), lambda: make_function(make_helper(2), 1.0))],
    ids=["number", "bool", "float", "zero", "rules", "function", "helper", "default"])
def test_others_are_not(one, other):
    assert not shared(one(), other())


def test_a_global_that_has_changed_makes_another_function(monkeypatch):
    one = make_function(make_helper(2))
    assert shared(one)
    monkeypatch.setitem(globals(), "OFFSET", 5)
    assert not shared(one, make_function(make_helper(2)))


def make_pair(kind):
    class Pair(NamedTuple):
        first: kind
        second: kind

    @device_function
    def pair(x):
        return Pair(x, x).second
    return pair, Pair


def test_classes_of_the_same_name_are_told_apart():
    (one, first), (other, second) = make_pair("float32"), make_pair("int32")
    assert first.__qualname__ == second.__qualname__ and first._fields == second._fields
    assert not shared(one, other)
    assert not shared(make_helper(first(1, 2)), make_helper(second(1, 2))) and not shared(make_helper(first(1, 2)), make_helper((1, 2)))


def test_a_function_that_is_in_use_stays_what_it_is():
    one, other = make_helper(2), make_helper(2)
    kept = other.made
    assert not shared(one, other) and other.made is kept


def test_nothing_is_kept_alive():
    kernel = make_kernel(make_helper(7))
    share_functions(kernel)
    watched = weakref.ref(kernel)
    del kernel
    gc.collect()
    assert watched() is None


@pytest.mark.parametrize("n, functions", [(1, 0), (2, 1), (3, 2), (4, 1), (8, 2), (16, 2), (31, 5), (64, 3)])
def test_an_unrolled_loop_is_of_few_functions(compiled, n, functions):
    from dnnkern.device._numba_compile import compile_llvm

    @device_function
    def body(k, s):
        s[k] = n  # another function for each n
    run = unrolled(n, body)

    @jit
    def kernel(x):
        run(i32(0), x)
    compile_llvm(kernel, ("int32*",), "sm_90a")
    assert compiled.count("run") == functions
