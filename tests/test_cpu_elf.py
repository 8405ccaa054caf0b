"""Object code in memory without LLVM: the same as LLVM puts there, and nothing that is not understood."""
import ctypes
import math
import platform
import random

import pytest

from dnnkern.device.cpu import elf, machine

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors' object code is LLVM's")
TEXT = """
@table = internal constant [2 x ptr] [ptr @twice, ptr @half]
@count = global i64 5
@zeros = global [3000 x i32] zeroinitializer
@text = internal constant [4 x i8] c"abc\\00"
declare float @exp2f(float)
declare i64 @strlen(ptr)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
define internal i64 @twice(i64 %x) {
  %y = mul i64 %x, 2
  ret i64 %y
}
define internal i64 @half(i64 %x) {
  %y = lshr i64 %x, 1
  ret i64 %y
}
define i64 @choose(i64 %which, i64 %x) {
  %at = getelementptr [2 x ptr], ptr @table, i64 0, i64 %which
  %f = load ptr, ptr %at
  %y = call i64 %f(i64 %x)
  %before = load volatile i64, ptr @count
  %after = add i64 %before, 1
  store volatile i64 %after, ptr @count
  ret i64 %y
}
define float @power(float %x) {
  %y = call float @exp2f(float %x)
  ret float %y
}
define i64 @length() {
  %n = call i64 @strlen(ptr @text)
  ret i64 %n
}
define void @fill(i8 %value, i64 %bytes) {
  call void @llvm.memset.p0.i64(ptr @zeros, i8 %value, i64 %bytes, i1 0)
  ret void
}
define double @scaled(double %x) {
  %y = fmul double %x, 0x400921FB54442D18
  ret double %y
}
"""


@pytest.fixture(scope="module")
def code():
    return machine.assemble(TEXT)


def behaves(loaded):
    def function(name, returned, *given):
        return ctypes.CFUNCTYPE(returned, *given)(loaded.function(name))
    choose = function("choose", ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)
    assert [choose(k, 10) for k in (0, 1)] == [20, 5]
    assert ctypes.c_int64.from_address(loaded.variable("count")).value == 7
    assert function("power", ctypes.c_float, ctypes.c_float)(3.0) == 8.0 and function("length", ctypes.c_uint64)() == 3
    zeros = (ctypes.c_uint32 * 3000).from_address(loaded.variable("zeros"))
    assert not any(zeros)
    function("fill", None, ctypes.c_int8, ctypes.c_uint64)(1, 11996)
    assert set(zeros[:2999]) == {0x01010101} and zeros[2999] == 0
    assert function("scaled", ctypes.c_double, ctypes.c_double)(2.0) == 2 * math.pi


def test_functions_variables_and_the_process_own(code):
    first, second = machine.Loaded(code), machine.Loaded(code)
    assert not hasattr(first, "_engine"), "LLVM was asked"
    behaves(first)
    behaves(second)  # with variables of its own


def test_what_it_does_not_know_is_left_to_llvm(code, monkeypatch):
    def refuse(code):
        raise elf.Unknown("of the test")
    monkeypatch.setattr(elf, "Image", refuse)
    loaded = machine.Loaded(code)
    assert hasattr(loaded, "_engine")
    behaves(loaded)


def test_code_may_not_be_written_nor_data_executed(code):
    image = elf.Image(code)
    access = {}
    for line in open("/proc/self/maps"):
        span, kind = line.split()[:2]
        first, end = (int(x, 16) for x in span.split("-"))
        access.update({name: kind for name in ("choose", "count", "zeros") if first <= image.address(name) < end})
    assert access == {"choose": "r-xp", "count": "rw-p", "zeros": "rw-p"}
    with pytest.raises(KeyError):
        image.address("no_such_name")


@pytest.mark.parametrize("text, words", [
    ("declare void @no_such()\ndefine void @f() {\n call void @no_such()\n ret void\n}", "no function 'no_such' in this process"),
    ("@x = thread_local global i32 1", "a section of type")])
def test_what_is_refused(text, words):
    with pytest.raises(elf.Unknown, match=words):
        elf.Image(machine.assemble(text))


def test_code_of_another_machine():
    with pytest.raises(elf.Unknown, match="no object code of this machine"):
        elf.Image(machine.assemble("define void @f() {\n ret void\n}", "aarch64"))


def test_broken_code_is_refused_or_loaded_but_never_more(code):
    """The cache's checksums keep such code away; the loader is careful all the same."""
    rng = random.Random(0)
    for size in range(0, len(code) - 1, 13):
        with pytest.raises(elf.Unknown):
            elf.Image(code[:size])
    refused = 0
    for _ in range(3000):
        changed = bytearray(code)
        at = rng.choice((rng.randrange(64), rng.randrange(len(code))))
        changed[at] ^= 1 << rng.randrange(8)
        try:
            elf.Image(bytes(changed))
        except elf.Unknown:
            refused += 1
    assert refused > 300
