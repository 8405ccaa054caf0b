"""What of the runtime is written for one processor: the switch between fibers, and what faults are told by."""
import platform
from dataclasses import dataclass


@dataclass(frozen=True)
class _Switch:
    """How a processor switches between fibers. `code` saves what the ABI lets a function keep, `saved` bytes on the stack, leaves the stack
    pointer in %save, and goes on where %to was left: at the address that lies `resume` bytes into what it saved."""
    code: str
    saved: int
    resume: int


def _assembly(*lines):
    text = r"\0A".join(lines)
    return f"""{{
  call void asm sideeffect "{text}", "~{{memory}}"()
  unreachable
}}"""


def _words(*words):
    """Machine code as such: llvmlite has a parser of assembly only for the processor that it runs on, and this compiles anywhere."""
    return f"""prologue [{len(words)} x i32] [{", ".join(f"i32 {word}" for word in words)}] {{
  unreachable
}}"""


def _pairs(general, floating):
    """stp or ldp of x19 to x30, and of d8 to d15, from the stack pointer on; the return address, x30, is at 88."""
    pairs = [general | n | n + 1 << 10 for n in range(19, 30, 2)] + [floating | n | n + 1 << 10 for n in range(8, 15, 2)]
    return [pair | 31 << 5 | 2 * k << 15 for k, pair in enumerate(pairs)]


SWITCHES = {
    "x86_64": _Switch(_assembly(
        "pushq %rbp", "pushq %rbx", "pushq %r12", "pushq %r13", "pushq %r14", "pushq %r15", "movq %rsp, (%rdi)", "movq %rsi, %rsp",
        "popq %r15", "popq %r14", "popq %r13", "popq %r12", "popq %rbx", "popq %rbp", "retq"), saved=56, resume=48),
    "aarch64": _Switch(_words(
        0xD10283FF, *_pairs(0xA9000000, 0x6D000000),  # sub sp, sp, 160; stp ...
        0x910003E9, 0xF9000009, 0x9100003F,           # mov x9, sp; str x9, [x0]; mov sp, x1
        *_pairs(0xA9400000, 0x6D400000), 0x910283FF, 0xD65F03C0), saved=160, resume=88)}  # ldp ...; add sp, sp, 160; ret
MACHINE = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
# A function asks whether so many bytes (in %rax) fit the stack, aligned to its size; a naked function, all registers but %r11 stay.
PROBES = {"x86_64": r'call void asm sideeffect "pushq %rcx\0Amovq %rsp, %rcx\0Asubq %rax, %rcx\0Asubq $${slack}, %rcx\0Axorq %rsp, %rcx\0A'
                    r'shrq $${bits}, %rcx\0Apopq %rcx\0Ajne 1f\0Aretq\0A1: movq %rax, %rdi\0Aandq $$-16, %rsp\0Acallq *%r11", '
                    r'"{{r11}},~{{memory}}"(ptr @cpu.overflow)'}
# Where the registers of interrupted code are in a ucontext: stack pointer, program counter, the first two arguments of a function; and a
# word with the bit of it that says that an access was a write.
CONTEXTS = {"x86_64": {"sp": 160, "pc": 168, "first": 104, "second": 112, "error": 192, "write": 2},
            "aarch64": {"sp": 432, "pc": 440, "first": 184, "second": 192, "error": 1000, "write": 64}}


def text(processor):
    """``@cpu.switch(save, to)``."""
    return f"""
define internal void @cpu.switch(ptr %save, ptr %to) naked noinline {SWITCHES[processor].code}"""
