"""Compiling for the processor: object code of another one, Numba's front end made faster."""
import gc
import operator
import re
import struct
import weakref

import pytest
from test_cpu import diverged, reversed_by_barriers

import dnnkern
from dnnkern import dispatch
from dnnkern.device import _collections, _mode, _numba_compile, _numba_speed, cpu, cuda, f32, i32
from dnnkern.device._numba_compile import lower
from dnnkern.device.cpu.switch import SWITCHES
from dnnkern.host.device import device as device_of

# ---- aarch64: what is compiled for it here is complete; that it runs there is not claimed

MACHINES, HEAD = {"x86_64": 62, "aarch64": 183}, b"\x7fELF\x02\x01"  # 64 bits, little-endian
OWN = {"cpu.probe"}
LIBRARY = {"memcpy", "memset", "expf", "exp2f", "logf", "log2f"}


def symbols(code):
    """{name of a global symbol of an ELF object: whether it is defined there}."""
    sections, = struct.unpack_from("<Q", code, 40)
    size, count = struct.unpack_from("<2H", code, 58)
    headers = [struct.unpack_from("<2I4Q2I2Q", code, sections + k * size) for k in range(count)]  # kind is 1, offset 4, bytes 5, link 6
    table = next(h for h in headers if h[1] == 2)
    names, found = headers[table[6]][4], {}
    for at in range(table[4], table[4] + table[5], 24):
        name, info, _, section = struct.unpack_from("<I2BH", code, at)
        if info >> 4:
            found[code[names + name:code.index(b"\0", names + name)].decode()] = section != 0
    return found


def launches(op, name, **words):
    """What an algorithm launches for a problem."""
    problem, device = dnnkern.problem(op, **words), device_of(0)
    algorithm = next(a for a in dispatch.algorithms(op) if a.name == name).configured(problem, device)
    return algorithm.build(problem, device, algorithm.config)


def square(dtype):
    return {"a": ((128, 128), dtype), "b": ((128, 128), dtype)}


KERNELS = {
    "barrier": lambda: [(reversed_by_barriers, ("float32*", "float32*", "int32"))],
    "shuffle": lambda: [(diverged, ("int32*", "int32*", "int32"))],
    **{name: lambda given=given: [(k.kernel, k.signature) for k in launches(*given[:2], **given[2])] for name, given in {
        "matmul-naive": ("matmul", "naive", square("float32")), "matmul-blocked": ("matmul", "blocked", square("float32")),
        "matmul-mma-bfloat16": ("matmul", "mma", square("bfloat16")), "softmax": ("softmax_fwd", "block", {"x": ((8, 4096), "float32")}),
        "cast-bfloat16": ("cast", "vector", {"x": ((64, 128), "float32"), "dtype": "bfloat16"}),
        "cast-from-e4m3": ("cast", "vector", {"x": ((64, 128), "float8_e4m3fn"), "dtype": "float32"}),
        "cast-to-e4m3": ("cast", "vector", {"x": ((64, 128), "float16"), "dtype": "float8_e4m3fn"})}.items()}}


@pytest.mark.parametrize("processor", MACHINES)
@pytest.mark.parametrize("name", KERNELS)
def test_object_code_of_a_processor_is_complete(name, processor):
    for kernel, signature in KERNELS[name]():
        code = cpu.compile_kernel(kernel, signature, processor=processor).code
        assert code.startswith(HEAD) and struct.unpack_from("<H", code, 18) == (MACHINES[processor],)
        found = symbols(code)
        assert found.pop("cpu.run") and {name for name, defined in found.items() if defined} <= OWN, found
        assert found.keys() - OWN <= LIBRARY, found


def word(line):
    """An instruction of aarch64 in 32 bits, of those that the switch has, written anew from the architecture's manual."""
    op, *operands = line.replace(",", " ").replace("[", " ").replace("]", " ").replace("#", " ").split()
    n = [31 if o == "sp" else int(o.lstrip("xd")) for o in operands]
    if op in ("stp", "ldp"):
        vector = operands[0][0] == "d"
        head = (1 if vector else 2) << 30 | 5 << 27 | vector << 26 | 2 << 23 | (op == "ldp") << 22
        return head | n[3] // 8 << 15 | n[1] << 10 | n[2] << 5 | n[0]
    if op in ("add", "sub", "mov"):  # to and from the stack pointer mov is an addition of 0
        return 1 << 31 | (op == "sub") << 30 | 0b100010 << 23 | (n[2] if op != "mov" else 0) << 10 | n[1] << 5 | n[0]
    return 0b1111100100 << 22 | n[1] << 5 | n[0] if op == "str" else 0b1101011001011111 << 16 | 30 << 5


def test_the_switch_of_aarch64():
    """It is kept as words; these are what it means, and where a fiber that was never left begins."""
    pairs = ["x19, x20", "x21, x22", "x23, x24", "x25, x26", "x27, x28", "x29, x30", "d8, d9", "d10, d11", "d12, d13", "d14, d15"]
    lines = ["sub sp, sp, #160", *(f"stp {p}, [sp, #{16 * k}]" for k, p in enumerate(pairs)), "mov x9, sp", "str x9, [x0]", "mov sp, x1",
             *(f"ldp {p}, [sp, #{16 * k}]" for k, p in enumerate(pairs)), "add sp, sp, #160", "ret"]
    code = cpu.compile_kernel(reversed_by_barriers, ("float32*", "float32*", "int32"), processor="aarch64").code
    assert struct.pack(f"<{len(lines)}I", *map(word, lines)) in code
    switch = SWITCHES["aarch64"]
    assert switch.resume == 16 * pairs.index("x29, x30") + 8 and switch.saved == 16 * len(pairs)


def test_aarch64_is_not_chosen_where_nobody_asks(monkeypatch):
    assert _mode.without_processor() is None
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert "this is linux on aarch64, where DNNKERN_DEVICE=cpu tries it" in _mode.without_processor()
    assert _mode.without_processor(asked=True) is None
    monkeypatch.setattr("sys.platform", "darwin")
    assert "DNNKERN_DEVICE" not in _mode.without_processor(asked=True)


def test_a_processor_without_a_switch_is_refused():
    with pytest.raises(cpu.Refused, match="no switch between threads is written for the processor riscv64"):
        cpu.compile_kernel(reversed_by_barriers, ("float32*", "float32*", "int32"), processor="riscv64")


# ---- Numba's front end, of which some is replaced

def make_kernel():
    """A kernel of its own each time: with loops, branches, tuples, a division, and a device function."""
    @cuda.jit(device=True)
    def part(x, k):
        return x * f32(0.5) + k if k % 3 else x / f32(k + 1)

    @cuda.jit
    def sums(x, y, shape):
        total = f32(0)
        for i in range(shape[0]):
            for k in range(cuda.threadIdx.x, shape[1], 32):
                if x[i * shape[1] + k] > 0 and not k & 4:
                    total += part(x[i * shape[1] + k], i32(k))
        y[cuda.threadIdx.x] = -total
    return sums


def lowered():
    modules, _ = lower(make_kernel(), ("float32*", "float32*", "int32x2"), "sm_90a")
    return sorted(line for m in modules for line in re.sub(r"B\d+v\d+|[$]\d+", "", str(m)).splitlines())  # without numbers that count up


@pytest.fixture
def unshared(monkeypatch):
    """Device functions are compiled for each kernel again."""
    monkeypatch.setattr(_numba_compile, "share_functions", lambda kernel: None)


def test_a_faster_front_end_lowers_to_the_same(unshared, monkeypatch):
    ours, calls = lowered(), []
    monkeypatch.setattr(_numba_speed.Function, "get_call_type", _numba_speed._call_type)
    monkeypatch.setattr(_numba_speed.postproc.PostProcessor, "run",
                        lambda *args, **how: (calls.append(1), _numba_speed._post_process(*args, **how)))
    monkeypatch.setattr(_numba_speed.CUDAFlags, "values", lambda flags: {name: getattr(flags, name) for name in flags.options})
    assert lowered() == ours and calls


def test_an_operator_of_numbers_is_typed_once(unshared, monkeypatch):
    plain, found = _numba_speed._call_type, []
    monkeypatch.setattr(_numba_speed, "_typed", {})
    monkeypatch.setattr(_numba_speed, "_call_type", lambda self, *args: found.append(self.key[0]) or plain(self, *args))
    lowered()
    first = [op for op in (operator.add, operator.mul, operator.truediv, operator.mod) if op in found]
    found.clear()
    lowered()
    assert len(first) == 4 and operator.getitem in found and not set(first) & set(found)


def test_the_garbage_collector_pauses_and_goes_on():
    assert gc.isenabled()
    with pytest.raises(ValueError), _collections.no_collections():
        with _collections.no_collections():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise ValueError
    assert gc.isenabled()
    gc.disable()
    try:
        with _collections.no_collections():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.fixture
def unfrozen():
    """What conftest.py has frozen takes part again in what the collector does."""
    gc.unfreeze()
    yield
    gc.freeze()


def test_what_stays_is_old_at_once(unfrozen):
    """Garbage made meanwhile is garbage still."""
    with _collections.no_collections(stays=True):
        kept, cycle = [set()], [set()]
        cycle.append(cycle)
        watched = weakref.ref(cycle[0])
    assert gc.get_freeze_count() == 0 and any(o is kept for o in gc.get_objects(generation=2))
    del cycle
    gc.collect()
    assert watched() is None


def test_what_a_program_has_frozen_stays_so(unfrozen):
    gc.freeze()
    with _collections.no_collections(stays=True):
        pass
    assert gc.get_freeze_count()
