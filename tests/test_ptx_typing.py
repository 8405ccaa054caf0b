"""Types of numbers in functions of `jit`: every rule, its errors with their lines, and that other functions keep Numba's types."""
import operator
import re
import threading
from typing import NamedTuple

import pytest
from sass import machine_code, ptx

from dnnkern.device import SIMULATED, cuda, device_function, f32, f64, i32, i64, jit, u32, wrapping

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from numba.cuda import compiler, types  # noqa: E402

from dnnkern.device import _numba_typing  # noqa: E402
from dnnkern.device._numba_compile import _as_device, compile_llvm, kernel_type  # noqa: E402
from dnnkern.device._typed import is_typed, mark  # noqa: E402
from dnnkern.host.compile import cache_key  # noqa: E402

# The operands of the expressions below, by name.
OPERANDS = {"i": types.int32, "u": types.uint32, "l": types.int64, "w": types.uint64, "s": types.int16, "v": types.uint16,
            "y": types.uint8, "f": types.float32, "d": types.float64, "t": types.boolean}
N, BIG, X, TABLE = 4, 1 << 40, 0.5, ((1, 0.5), (3, 0.25))


def returned(expression):
    """Name of the type of an expression in a marked function."""
    names = [name for name in OPERANDS if re.search(rf"\b{name}\b", expression)]
    function = mark(eval(f"lambda {', '.join(names)}: {expression}", globals()))
    with _as_device((9, 0)):
        return str(compiler.compile_cuda(function, None, tuple(OPERANDS[name] for name in names), cc=(9, 0)).signature.return_type)


def test_operators_keep_the_type():
    for sign in "+ - * // % & | ^ << >>".split():
        for name in "iulw":
            assert returned(f"{name} {sign} {name}") == str(OPERANDS[name]), (sign, name)
    for sign in "+ - * / // %".split():
        assert (returned(f"f {sign} f"), returned(f"d {sign} d")) == ("float32", "float64"), sign
    for sign in "< <= > >= == !=".split():
        assert {returned(f"{name} {sign} {name}") for name in "iulwfd"} == {"bool"}, sign
    for function in ("-", "+", "~", "abs"):
        assert [returned(f"{function}({name})") for name in "iul"] == ["int32", "uint32", "int64"], function


@pytest.mark.parametrize("expression, found", [
    ("i + l", "int64"), ("l * u", "int64"), ("u + w", "uint64"), ("l // 3", "int64"), ("i < l", "bool"), ("s + s", "int32"),
    ("v * v", "int32"), ("y << 8", "int32"), ("v + u", "uint32"), ("y | w", "uint64"), ("s + l", "int64"), ("t + t", "int32"),
    ("t & t", "bool"), ("t == t", "bool"), ("t + i", "int32"), ("(i < 3) + u", "uint32"), ("f * t", "float32"), ("i + 4", "int32"),
    ("4 - u", "uint32"), ("u & 0xFFFFFFFF", "uint32"), ("i - 2147483647", "int32"), ("-2147483648 + i", "int32"),
    ("u + 8 * N", "uint32"), ("8 * N - 1 << 2 | u", "uint32"), ("w ^ 0xFFFFFFFFFFFFFFFF", "uint64"),
    ("min(N, 8) + max(2, N) + u", "uint32"), ("N + 1", "Literal[int](5)"), ("BIG + l", "int64"), ("abs(-N) * u", "uint32"),
    ("(N > 3) + i", "int32"), ("1 << u", "uint32"), ("1 << i", "int32"), ("1 << l", "int64"), ("u >> i", "uint32"),
    ("i << u", "int32"), ("i >> l", "int32"), ("l << 40", "int64"), ("u << 31", "uint32"), ("t << 3", "int32"),
    ("N << 38 | l", "int64"), ("(N >> 1) * u", "uint32"), ("min(i, 3)", "int32"), ("max(u, 1)", "uint32"), ("min(i, l)", "int64"),
    ("max(i, 7, i)", "int32"), ("max(f, 0.0)", "float32"), ("min(max(f, 0), 6)", "float32"), ("max(d, 0)", "float64"),
    ("max(f, d)", "float64"), ("f * 0.5", "float32"), ("0.5 - d", "float64"), ("2 * f", "float32"), ("f / 3", "float32"),
    ("X * X * f", "float32"), ("f < 0.1", "bool"), ("-X * f", "float32"), ("(N * X + N) / 3 + f", "float32"), ("f + d", "float64"),
    ("f // 2.0 + f % X", "float32"), ("X * X", "float literal"), ("abs(-X) // max(X, 0.25) + f", "float32"), ("f ** 2", "float32"),
    ("f ** X", "float32"), ("i if t else 7", "int32"), ("0 if t else u", "uint32"), ("1 if t else f", "float32"),
    ("X if t else d", "float64"), ("1 if t else 0", "int32"), ("t if i > 0 else i", "int32"), ("i32(t)", "int32"),
    ("u32(i) + u", "uint32"), ("i64(i) * i", "int64"), ("f32(i) * f", "float32"), ("u32(-1)", "uint32"),
    ("f32(0.5) * X", "float32"), ("f64(f) * X", "float64"), ("(i, u, 0)[1] + 1", "uint32"), ("(i, u, 3)[2] + u", "uint32"),
    ("i + TABLE[0][0]", "int32"), ("f * TABLE[1][1]", "float32"), ("i + TABLE[i][0]", "int32")])
def test_results(expression, found):
    assert returned(expression) == found


@pytest.mark.parametrize("expression, message", [
    ("i + u", r"int32 \+ uint32: signed with unsigned; cast one to say which is meant"),
    ("u * i", r"uint32 \* int32: signed with unsigned"), ("i < u", "int32 < uint32: signed with unsigned"),
    ("u == i", "uint32 == int32"), ("min(i, u)", r"min\(int32, uint32\)"), ("max(i, 3, u)", r"max\(int32, 3, uint32\)"),
    ("w + i", r"uint64 \+ int32"), ("l & w", "int64 & uint64"), ("u + s", r"uint32 \+ int16"), ("i if t else u", "unify"),
    ("i if t else f", "unify"), ("i & 0xFFFFFFFF", "int32 & 4294967295: 4294967295 does not fit int32"),
    ("u + -1", "-1 does not fit uint32"), ("u < -1", "does not fit"), ("BIG * i", "does not fit int32"),
    ("u + (N - 5)", "-1 does not fit uint32"), ("N << 70", "does not fit 64 bits"),
    ("i << 32", "int32 << 32: int32 has the bits 0 to 31"), ("u >> -1", "uint32 >> -1"), ("l << 64", "bits 0 to 63"),
    ("i / i", r"int32 / int32: cast to a float, or use //"), ("7 / i", "7 / int32"), ("N / 8", "4 / 8"),
    ("N // (N - 4)", "4 // 0: "), ("f * i", r"float32 \* int32: cast the integer"), ("0.5 * i", r"float literal \* int32"),
    ("max(f, i)", r"max\(float32, int32\)")])
def test_errors(expression, message):
    with pytest.raises(Exception) as refused:
        returned(expression)
    text = re.sub(r"\x1b\[\d*m", "", str(refused.value))
    assert type(refused.value).__name__ == "TypingError" and re.search(message, text), text


def in_place(a, b):
    a += b
    return a


@pytest.mark.parametrize("name", [name for name in vars(operator) if getattr(operator, "i" + name, None) in _numba_typing._RULES])
def test_operators_in_place(name):
    sign = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%", "lshift": "<<", "rshift": ">>", "xor": "^",
            "truediv": "/"}[name] if name != "and_" else "&"
    scope = {}
    exec(f"def change(a, b):\n    a {sign}= b\n    return a", scope)
    t = types.float32 if name == "truediv" else types.uint32
    with _as_device((9, 0)):
        assert compiler.compile_cuda(mark(scope["change"]), None, (t, t), cc=(9, 0)).signature.return_type == t


# ---- statements

class State(NamedTuple):
    slot: u32
    phase: u32


class Mixed(NamedTuple):
    count: i32
    scale: f32
    at: State


@device_function
def following(state):
    slot = state.slot + 1
    return State(0 if slot == 4 else slot, phase=state.phase ^ 1) if slot > 3 else State(slot, state.phase)


def wide(text):
    """Instructions of 64 bits that are no accesses, addresses or moves."""
    return [line for line in text.splitlines() if re.search(r"[.][sufb]64", line) and not re.search(r"ld\.|st\.|cvta|\.reg|mov", line)]


def test_loops_branches_and_tuples():
    @jit(launch_bounds=64)
    def kernel(x, y, a, b, u):
        total = 0
        for k in range(a):
            total += k * b + 4 - N
        for k in range(3, b, 2):
            total = total - k
        for k in range(N, -1, -1):
            total ^= k
        slot = u32(0)
        while slot < u:
            slot += 8
        for k in range(u):
            slot = slot * 3 + k
        pair = (0, 1)
        for k in range(a):
            pair = (pair[1], pair[0] + k)
        flag = 0
        if a > 3:
            flag = b > 5
        x[0] = total + pair[0] * flag + (7 if a > b else pair[1])
        y[0] = slot
    assert not wide(ptx(kernel, ("int32*", "uint32*", "int32", "int32", "uint32")))


def test_named_tuples_in_loops_and_device_functions():
    @device_function
    def scaled(m, factor):
        return Mixed(m.count * 3, m.scale * factor, following(m.at))

    @jit(launch_bounds=64)
    def kernel(x, y, n, u):
        state, mixed = State(u, u32(1)), Mixed(0, f32(1), State(u32(0), u32(0)))
        for k in range(n):
            state = following(following(state))
            mixed = scaled(Mixed(mixed.count + k, mixed.scale, mixed.at), 0.5)
        slot, phase = state
        x[0] = u32(mixed.count) + slot + phase + mixed.at.slot
        y[0] = mixed.scale
    assert not wide(ptx(kernel, ("uint32*", "float32*", "int32", "uint32")))


def test_arrays_and_one_sign_extension_an_index():
    @jit(launch_bounds=64)
    def kernel(x, y, i, j):
        x[i * 4 + j - 1] = y[i // 3 + j % 5]
    text = ptx(kernel, ("float32*", "float32*", "int32", "int32"))
    assert [line.split()[0] for line in wide(text)] == ["add.s64"] * 2 and text.count("mul.wide.s32") == 2, text

    @jit(launch_bounds=64)
    def arrays(x, n):
        shared, local = cuda.shared.array((N, 8 * N), f32), cuda.local.array(2 * N, i32)
        for k in range(2 * N):
            local[k] = k * n
        shared[n % N, cuda.threadIdx.x & 31] = f32(local[3]) * X if n > 8 else x[local[n & 7]]
        cuda.syncthreads()
        x[cuda.threadIdx.x] = shared[0, cuda.threadIdx.x & 31] * 2
    text = ptx(arrays, ("float32*", "int32"))
    assert ".f64" not in text and not re.search(r"(mul|mad|div|rem)[.\w]*[su]64", text)


def test_float_literals_make_no_doubles():
    @device_function
    def clamp(x, low, high):
        return min(max(x, low), high)

    @jit(launch_bounds=64)
    def kernel(x, n, factor):
        total, count = 0.0, 0
        for k in range(n):
            total += x[k] * 2.1 + 1.3
            count = count + x[k] / 7
        x[0] = clamp(total, -X, 6 * X) + max(count, 0.0) * 2 - factor * (X / 3)
    assert ".f64" not in ptx(kernel, ("float32*", "int32", "float32"))


def test_literals_of_a_call_make_one_specialisation():
    @device_function
    def helper(a, b):
        return a * 2 + b, 0

    @jit(launch_bounds=64)
    def kernel(x, a, u):
        first, zero = helper(a, 3)
        second, _ = helper(a, b=N)
        third, _ = helper(u, u32(8 * N))
        x[zero] = first + second + i32(third + zero)
    compile_llvm(kernel, ("int32*", "int32", "uint32"), "sm_90a")
    assert set(helper.overloads) == {(types.int32, types.int32), (types.uint32, types.uint32)}


def test_machine_code_has_no_wide_arithmetic():
    @jit(launch_bounds=64)
    def kernel(x, n, m):
        i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        if i < n * m:
            x[i] = x[(i % n) * m + i // n] * 0.5
    code = machine_code(kernel, ("float32*", "int32", "int32"))
    assert not code.doubles and len(code.opcodes("IMAD.WIDE")) == 2


def test_wrapping_takes_back_that_nothing_overflows():
    def plain(x, a, b):
        x[0] = a * b + 7 - (a << 2)

    def marked(x, a, b):
        x[0] = wrapping(a * b + 7 - (a << 2))
    found = [compile_llvm(jit(kernel), ("int32*", "int32", "int32"), "sm_90a") for kernel in (plain, marked)]
    assert [text.count(" nsw ") for text in found] == [3, 0]
    for wrong in ("wrapping(l)", "wrapping(f)", "wrapping(w * u)"):
        with pytest.raises(Exception, match="wrapping takes an int32, not"):
            returned(wrong)


def test_errors_name_file_and_line():
    def mixed(x, a, u):
        x[0] = 1
        x[1] = a + u
    line = mixed.__code__.co_firstlineno + 2

    def joined(x, a, u):
        y = a
        if x[0] > 1:
            y = u
        x[1] = y
    for function, at, words in ((mixed, line, "int32 + uint32"), (joined, line + 7, "Cannot unify int32 and uint32 for 'y")):
        with pytest.raises(Exception) as refused:
            compile_llvm(jit(function), ("int32*", "int32", "uint32"), "sm_90a")
        text = re.sub(r"\x1b\[\d*m", "", str(refused.value))
        assert words in text and re.search(rf'{re.escape(__file__)} \({at}\)|test_ptx_typing.py", line {at}\b', text), text


# ---- NamedTuples as parameters

class Window(NamedTuple):
    taps: i32
    steps: "int64x2"  # noqa: F821 (a name of several)


class Pool(NamedTuple):
    n: i32
    count: u32
    scale: f32
    window: Window


FLAT = "int32", "uint32", "float32", "int32", "int64", "int64"


def test_a_named_tuple_is_its_fields():
    """The same instructions as for a parameter a field, which have the same offsets."""
    @jit(launch_bounds=64)
    def named(x, pool):
        for k in range(pool.window.taps):
            x[i64(k) * pool.window.steps[1] + pool.n] = pool.scale * f32(pool.count)
        x[pool.window.steps[0]] = pool.scale

    @jit(launch_bounds=64)
    def unpacked(x, pool):
        n, count, scale, (taps, steps) = pool
        for k in range(taps):
            x[i64(k) * steps[1] + n] = scale * f32(count)
        x[steps[0]] = scale

    @jit(launch_bounds=64)
    def apart(x, n, count, scale, taps, step0, step1):
        for k in range(taps):
            x[i64(k) * step1 + n] = scale * f32(count)
        x[step0] = scale
    expected = ptx(apart, ("float32*", *FLAT))
    assert ptx(named, ("float32*", Pool)) == expected == ptx(unpacked, ("float32*", Pool))
    assert str(kernel_type(Pool)) == "Pool(int32, uint32, float32, Window(int32, UniTuple(int64 x 2)))"


def test_a_parameter_and_what_the_kernel_makes_are_one_type():
    @jit(launch_bounds=64)
    def kernel(y, state, n):
        for k in range(n):
            state = following(state)
        y[0] = state.slot
    assert not wide(ptx(kernel, ("uint32*", State, "int32")))


def test_the_key_of_a_named_tuple_is_its_fields():
    """Neither the bytecode nor the machine's parameters say which field comes first."""
    def key(*given):
        return cache_key(jit(plain), ("float32*", NamedTuple("Other", given)), "sm_90a")
    keys = [key(("a", i32), ("b", i32)), key(("b", i32), ("a", i32)), key(("a", i32), ("b", u32)), key(("a", i32), ("b", "int32x1")),
            key(("a", Window)), key(("a", NamedTuple("Window", [("taps", i32), ("size", "int64x2")])))]  # noqa: F821
    assert len(set(keys)) == len(keys) and key(("a", i32), ("b", i32)) == keys[0] == key(("a", "int32"), ("b", i32))


# ---- who is meant

def plain(x, a, b):
    """Numba's types: 64-bit products, a loop of 64 bits, float64."""
    total = a * b
    for k in range(a):
        total += k * 3
    x[total] = x[a] * 0.5


def llvm(kernel, signature=("float32*", "int32", "int32")):
    """Without the names, which Numba numbers."""
    return re.sub(r"_ZN\w+|plain\$\d+", "name", compile_llvm(kernel, signature, "sm_90a"))


def test_functions_that_are_not_marked_are_as_ever(monkeypatch):
    marked = llvm(jit(plain))
    found = llvm(cuda.jit(plain))
    assert not is_typed(plain) and "mul nsw i32" in marked and "fmul float" in marked
    assert "mul nsw i64" in found and "fmul double" in found and "fmul float" not in found
    monkeypatch.setattr(compiler, "compile_cuda", _numba_typing._plain_compile)
    assert llvm(cuda.jit(plain)) == found


def test_marked_and_others_call_each_other():
    other = cuda.jit(device=True)(lambda a, b: a * b)
    marked = device_function(lambda a, b: a * b)
    through = cuda.jit(device=True)(lambda a, b: marked(a, b))

    @jit(launch_bounds=64)
    def kernel(x, a):
        x[0] = other(a, a) + other(a, 3) + through(a, a) + marked(a, 3)

    @cuda.jit(launch_bounds=64)
    def stock(x, a):
        x[0] = marked(a, a) + a * a
    for each in (kernel, stock):
        compile_llvm(each, ("int64*", "int32"), "sm_90a")
    assert {t.return_type for t in other.nopython_signatures} == {types.int64}
    assert {t.return_type for t in marked.nopython_signatures} == {types.int32}
    assert types.IntegerLiteral(3) in [t.args[1] for t in other.nopython_signatures]  # each literal a specialisation, as Numba has it


def test_numbas_other_target_is_left_alone():
    from numba import njit
    square = njit(lambda a: a * a + 1)
    compile_llvm(jit(plain), ("float32*", "int32", "int32"), "sm_90a")
    square.compile((types.int32,))
    assert square.nopython_signatures[0].return_type == types.int64
    assert type(types.literal(3)) is types.IntegerLiteral and types.maybe_literal(0.5) is None


def test_threads_compile_both_kinds():
    wrong, start = [], threading.Barrier(4)

    def work(marked):
        start.wait()
        for _ in range(3):
            def kernel(x, a, b):
                x[a * b] = 0.5
            text = llvm((jit if marked else cuda.jit)(kernel))
            if ("mul nsw i32" in text) != marked:
                wrong.append(text)
    threads = [threading.Thread(target=work, args=(k % 2 == 0,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_options_and_the_mark():
    def kernel(x, n=3, *, m=4):
        """Words."""
    kernel.note = "kept"
    found = jit(launch_bounds=(128, 2), fastmath=True, lto=False)(kernel)
    assert found.targetoptions["launch_bounds"] == (128, 2) and found.targetoptions["lto"] is False and is_typed(found.py_func)
    copy = found.py_func
    assert copy is not kernel and not is_typed(kernel) and (copy.__doc__, copy.note, copy.__defaults__, copy.__kwdefaults__) == (
        "Words.", "kept", (3,), {"m": 4}) and copy.__qualname__ == kernel.__qualname__
    assert jit(kernel).targetoptions == {}


def test_types_outlive_an_error():
    with pytest.raises(Exception, match="signed with unsigned"):
        returned("i + u")
    assert type(types.literal(3)) is types.IntegerLiteral and kernel_type("int32") == types.int32
    assert returned("i + 1") == "int32" and f64 and i64
