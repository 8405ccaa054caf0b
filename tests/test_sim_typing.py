"""Integers of `jit`'s kernels in the simulator: unsigned ones that wrap, and ``config.integers = "checked"``."""
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest

from dnnkern.device import cuda, f32, i32, i64, instruction, jit, u8, u32, u64, wrapping  # noqa: F401 (in expressions)
from dnnkern.device.sim import Misuse, Pointer, config, integers
from dnnkern.device import device_function

N = 7


@pytest.fixture
def checked(monkeypatch):
    """Integers that know their type, signed ones too."""
    monkeypatch.setattr(config, "integers", "checked")


def run(kernel, *args, grid=1, block=1):
    """Arrays as pointers, other arguments as they are; the first array, which holds the results."""
    kernel.simulate(grid, block, [Pointer(a) if isinstance(a, np.ndarray) else a for a in args])
    return args[0]


def results(expression, dtype, **operands):
    """Of an expression in a kernel, as (type's name, value)."""
    found = []
    scope = {**globals(), "found": found}
    names = ", ".join(operands)
    exec(f"def kernel({names}):\n    result = {expression}\n    found.append((type(result).__name__, result))", scope)
    jit(scope["kernel"]).simulate(1, 1, list(operands.values()))
    name, value = found[0]
    assert dtype is None or name == dtype, (expression, name, value)
    return value


U, V, BIG, I = np.uint32(2 ** 32 - 1), np.uint32(5), np.uint64(2 ** 64 - 1), np.int32(2 ** 31 - 1)  # noqa: E741


def test_unsigned_integers_wrap():
    for expression, expected in (("u + 1", 0), ("1 + u", 0), ("u * v", 2 ** 32 - 5), ("v - u", 6), ("2 - v", 2 ** 32 - 3),
                                 ("u << 4", 2 ** 32 - 16), ("-v", 2 ** 32 - 5), ("~v", 2 ** 32 - 6), ("(u + v) >> 1", 2),
                                 ("u // v", 858993459), ("(u + 2) % 7", 1), ("u & 0xF0 | v ^ 1", 0xF4),
                                 ("u32(u + 2) + 3", 4), ("u + u8(2)", 1),
                                 ("u + (v > 3)", 0), ("abs(v) + u", 4)):
        assert results(expression, "uint32", u=U, v=V) == expected, expression
    for expression, expected in (("w + 1", 0), ("w * u", 2 ** 64 - 2 ** 32 + 1), ("u + w", 2 ** 32 - 2),
                                 ("u64(u) * u", (2 ** 32 - 1) ** 2)):
        assert results(expression, "uint64", w=BIG, u=U) == expected, expression


def test_others_are_plain_by_default():
    for expression in ("i * i", "cuda.threadIdx.x + i", "i64(i) << 40", "u + (1 << 40)", "u - (-1)", "i + l"):
        assert type(results(expression, "int", i=I, l=np.int64(5), u=V)) is int
    assert results("f32(u) * 2", "float32", u=V) == 10 and results("u + f32(1)", None, u=V) == 6


def test_kernels_of_cuda_jit_have_plain_integers(checked):
    found = []

    @cuda.jit
    def kernel(x, u):
        found.extend(map(type, (u, x[0], u32(5), u64(5), i32(5), cuda.threadIdx.x)))
    run(kernel, np.zeros(1, np.uint32), U)
    assert set(found) == {int} and not integers.tags


def test_where_types_come_from(checked):
    """Casts, parameters, elements of all kinds of arrays, indices, instructions, atomic operations, other lanes."""
    word = instruction("", ("uint32", "int32"), ("uint32", "float32"), twin=lambda a, b: (a * 3, type(a).__name__ == "int"))

    class Sizes(NamedTuple):
        n: i32
        seed: u32

    found = {}

    @jit
    def kernel(x, y, z, sizes, matrix):
        shared, local, table = cuda.shared.array(4, u32), cuda.local.array(4, i64), cuda.shared.array((2, 2), u8)
        shared[0], local[0], table[1, 1] = 1, 2, 3
        a, b = word(sizes.seed, f32(1))
        z[0] = 3
        old = cuda.atomic.add(z, 0, u32(1))
        values = {"x": x[0], "y": y[0], "seed": sizes.seed, "n": sizes.n, "shared": shared[0], "local": local[0], "table": table[1, 1],
                  "matrix": matrix[0, 1], "a": a, "b": b, "old": old, "thread": cuda.threadIdx.x, "size": cuda.blockDim.y,
                  "grid": cuda.grid(1), "view": x.view(np.int32)[0], "next": (x + 1)[0], "load": x.load(0, 2, 4)[1], "wide": y[0] * u64(2),
                  "lane": cuda.shfl_sync(1, sizes.seed, 0), "product": x[0] * 2, "shift": y[0] << 2}
        found.update({name: type(value).__name__ for name, value in values.items()})
        assert b == 1  # the twin's operands are plain
    arrays = [Pointer(np.ones(8, dtype)) for dtype in (np.uint32, np.uint64, np.uint32)]
    kernel.simulate(1, 1, [*arrays, Sizes(np.int32(1), np.uint32(2)), np.ones((2, 2), np.int64)])
    assert found == {"x": "uint32", "y": "uint64", "seed": "uint32", "n": "int32", "shared": "uint32", "local": "int64", "table": "int32",
                     "matrix": "int64", "a": "uint32", "b": "int32", "old": "uint32", "thread": "int32", "size": "int32", "grid": "int64",
                     "view": "int32", "next": "uint32", "load": "uint32", "wide": "uint64", "lane": "uint32", "product": "uint32",
                     "shift": "uint64"}


def test_checked_results(checked):
    for expression, dtype, expected in (
            ("i - 7", "int32", 2 ** 31 - 8), ("-i - 1", "int32", -2 ** 31), ("i // -2", "int32", -2 ** 30), ("-7 % j", "int32", 1),
            ("~i", "int32", -2 ** 31), ("i << 1", "int32", -2), ("j << 1 >> 1", "int32", 4), ("i - (j > 2)", "int32", 2 ** 31 - 2),
            ("i + l", "int64", 2 ** 31 + 4), ("l * i * 2", "int64", 10 * (2 ** 31 - 1)), ("u + l", "int64", 2 ** 32 + 4),
            ("l - u", "int64", 6 - 2 ** 32), ("i64(i) * 4", "int64", 4 * (2 ** 31 - 1)), ("abs(-i)", "int32", 2 ** 31 - 1),
            ("u & 0xFFFF0000", "uint32", 0xFFFF0000), ("i32(u)", "int32", -1), ("u32(-1)", "uint32", 2 ** 32 - 1)):
        assert results(expression, dtype, i=I, j=np.int32(4), l=np.int64(5), u=U) == expected, expression


@pytest.mark.parametrize("expression, message", [
    ("i + 1", r"int32 2147483647 \+ 1 = 2147483648 overflows at .*undefined on a GPU"), ("x[i * 3 + 1]", r"2147483647 \* 3"),
    ("i32(i * N)", r"\* 7"), ("i * N > 3", r"\* 7"), ("7 if i + j else 8", "overflows"), ("f32(-i - 2)", "int32 -2147483647 - 2"),
    ("i64(i * i)", r"\*"), ("-(-i - 1)", "int32 0 - -2147483648"), ("(i + 1) // 2 < 5", "overflows"), ("min(i + 1, 5)", "overflows"),
    ("word(i + 1)", "overflows"),
    ("i + u", r"int32 \+ uint32 at .*: signed with unsigned; cast one"), ("u * i", r"uint32 \* int32"), ("w & i", "uint64 & int32"),
    ("l - w", "int64 - uint64"), ("i < u", "int32 < uint32"), ("u == i", "uint32 == int32")])
def test_checked_errors(expression, message, checked):
    scope = {**globals(), "word": instruction("", ("int32",), ("int32",), twin=lambda a: a)}
    exec(f"def kernel(x, i, j, u, w, l):\n    x[0] = {expression}", scope)
    with pytest.raises(Misuse, match=message):
        run(jit(scope["kernel"]), np.zeros(4, np.int32), I, np.int32(1), U, BIG, np.int64(1))
    assert not integers.tags


def test_stores_of_what_overflowed(checked):
    """Into each kind of memory: the value would fit a wider one."""
    for dtype in (np.int32, np.int64, np.uint32, np.float32):
        def shared(x, i):
            s = cuda.shared.array(2, dtype)
            s[0] = i * 2

        def matrix(x, i):
            x[0, 1] = i * 2

        def flat(x, i):
            x[1] = i * 2
        for kernel, x in ((shared, Pointer(np.zeros(2, dtype))), (matrix, np.zeros((2, 2), dtype)), (flat, Pointer(np.zeros(2, dtype))),
                          (flat, np.zeros(2, dtype))):
            with pytest.raises(Misuse, match=r"2147483647 \* 2"):
                jit(kernel).simulate(1, 1, [x, I])


def test_errors_name_the_line(checked):
    @device_function
    def helper(a, b):
        c = a * b
        return c

    @jit
    def kernel(x, a):
        y = helper(a, a)
        x[0] = y
    with pytest.raises(Misuse, match=rf"test_sim_typing.py:{helper.__code__.co_firstlineno + 2} in helper: c = a \* b"):
        run(kernel, np.zeros(1, np.int32), I)


def test_wrapping():
    """By default too, where the expression is exact."""
    expression, expected = "wrapping(i * N + 5 - i * i ^ -j)", (2 ** 31 - 1) * 7 + 5 - (2 ** 31 - 1) ** 2 ^ -3
    expected = (expected + 2 ** 31 & 0xFFFFFFFF) - 2 ** 31
    for config.integers in ("checked", "plain"):
        assert results(expression, "int32" if config.integers == "checked" else "int", i=I, j=np.int32(3)) == expected
        assert results("wrapping(i - 1)", None, i=I) == 2 ** 31 - 2 and results("wrapping(u * 3)", "uint32", u=U) == 2 ** 32 - 3


def test_the_environment_asks_for_it():
    code = "from dnnkern.device.sim import config; print(config.integers)"
    for value, said in (("integers", "checked"), ("nan,integers", "checked"), ("", "plain")):
        env = {"PYTHONPATH": ":".join(sys.path), "NUMBA_ENABLE_CUDASIM": "1", "DNNKERN_CHECK": value}
        assert subprocess.run([sys.executable, "-c", code], check=True, env=env, capture_output=True, text=True).stdout == f"{said}\n"
