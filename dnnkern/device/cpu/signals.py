"""A wild access of a kernel ends the kernel, not the process.

One handler of signals, machine code that holds no lock, serves all threads of the system. Each of them has its signal stack at
`runtime.SIGNALS` in its first arena, and Linux tells a handler where that stack is: so it finds the arenas, and by the
stack pointer whether a fiber was running. If one was, the handler leaves in the group's record what happened, and lets the fiber go on as
if it had called the switch to the main stack. If not, it is none of our business, and the handler that was there before gets the signal.
"""
import ctypes
import functools
import hashlib
import signal
from dataclasses import dataclass

from ...host.compile import kept
from . import machine, runtime, switch
from .waits import CAUSE

SIGNALS = signal.SIGSEGV, signal.SIGBUS
_SIGINFO, _ONSTACK, _DISABLE = 4, 0x08000000, 2  # SA_SIGINFO, SA_ONSTACK, SS_DISABLE
_libc = ctypes.CDLL(None, use_errno=True)


class _Action(ctypes.Structure):
    """struct sigaction of glibc and musl, on 64 bits."""
    _fields_ = [("handler", ctypes.c_void_p), ("mask", ctypes.c_uint64 * 16), ("flags", ctypes.c_int), ("restorer", ctypes.c_void_p)]


class _Stack(ctypes.Structure):
    """stack_t."""
    _fields_ = [("at", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]


_ACTION, _COUNT = ctypes.sizeof(_Action), 65


def _text():
    context, group = switch.CONTEXTS[switch.MACHINE], runtime.GROUP_RECORD.offset

    def put(name, kind, value):
        return f"  %g{name} = getelementptr i8, ptr %group, i64 {group[name]}\n  store {kind} {value}, ptr %g{name}\n"

    def change(name, value):
        return f"  %c{name} = getelementptr i8, ptr %context, i64 {context[name]}\n  store i64 {value}, ptr %c{name}\n"
    return f"""
declare i32 @sigaction(i32, ptr, ptr)
declare i32 @raise(i32)
@cpu.before = global [{_COUNT} x [{_ACTION} x i8]] zeroinitializer
{switch.text(switch.MACHINE)}
define void @cpu.signal(i32 %signal, ptr %info, ptr %context) {{
  %pstack = getelementptr i8, ptr %context, i64 16
  %stack = load i64, ptr %pstack
  %psize = getelementptr i8, ptr %context, i64 32
  %size = load i64, ptr %psize
  %offset = and i64 %stack, {(1 << runtime.ARENA_BITS) - 1}
  %placed = icmp eq i64 %offset, {runtime.SIGNALS}
  %sized = icmp eq i64 %size, {runtime.SIGNAL_BYTES}
  %ours = and i1 %placed, %sized
  br i1 %ours, label %look, label %pass
look:
  %base = sub i64 %stack, {runtime.SIGNALS}
  %from = inttoptr i64 %base to ptr
  %group = getelementptr i8, ptr %from, i64 {runtime.GROUP}
  %president = getelementptr i8, ptr %group, i64 {group['resident']}
  %resident = load i32, ptr %president
  %wide = zext i32 %resident to i64
  %bytes = shl i64 %wide, {runtime.ARENA_BITS}
  %ssp = getelementptr i8, ptr %context, i64 {context['sp']}
  %sp = load i64, ptr %ssp
  %far = sub i64 %sp, %base
  %inside = icmp ult i64 %far, %bytes
  br i1 %inside, label %end, label %pass
end:
  %pcode = getelementptr i32, ptr %info, i64 2
  %code = load i32, ptr %pcode
  %plies = getelementptr i8, ptr %info, i64 16
  %lies = load i64, ptr %plies
  %perror = getelementptr i8, ptr %context, i64 {context['error']}
  %error = load i64, ptr %perror
{put("cause", "i32", CAUSE["signal"])}{put("code", "i32", "%code")}{put("culprit", "i64", "%sp")}\
{put("address", "i64", "%lies")}{put("detail", "i64", "%error")}
  %pmain = getelementptr i8, ptr %group, i64 {group['main']}
  %main = load i64, ptr %pmain
  %top = add i64 %stack, {runtime.SIGNAL_BYTES - 64}
  %switch = ptrtoint ptr @cpu.switch to i64
{change("sp", "%top")}{change("pc", "%switch")}{change("first", "%base")}{change("second", "%main")}  ret void
pass:
  %before = getelementptr [{_ACTION} x i8], ptr @cpu.before, i32 %signal
  %handler = load ptr, ptr %before
  %h = ptrtoint ptr %handler to i64
  %none = icmp ule i64 %h, 1 ; SIG_DFL, SIG_IGN
  br i1 %none, label %restore, label %chain
chain:
  call void %handler(i32 %signal, ptr %info, ptr %context)
  ret void
restore: ; what happened happens again
  call i32 @sigaction(i32 %signal, ptr %before, ptr null)
  %default = icmp eq i64 %h, 0
  br i1 %default, label %again, label %out
again: ; also if somebody else has sent the signal
  call i32 @raise(i32 %signal)
  br label %out
out:
  ret void
}}
"""


@dataclass(frozen=True)
class _Handler:
    """Object code of the handler."""
    code: bytes


@functools.cache
def install():
    """Take the signals, once a process and its children; gives the handler, which must live as long."""
    text = _text()
    name = f"cpu/{machine.identity()}/signals-{hashlib.sha256(text.encode()).hexdigest()}.o"
    handler = machine.Loaded(kept(_Handler, lambda: name, lambda: _Handler(machine.assemble(text))).code)
    action = _Action(handler.function("cpu.signal"), flags=_SIGINFO | _ONSTACK)
    for number in SIGNALS:
        _call("sigaction", number, ctypes.byref(action), ctypes.c_void_p(handler.variable("cpu.before") + number * _ACTION))
    return handler


def _call(name, *arguments):
    if getattr(_libc, name)(*arguments):
        raise OSError(ctypes.get_errno(), name)


def enter(base):
    """The running thread of the system has its arenas from `base` on, and handles its signals there."""
    _call("sigaltstack", ctypes.byref(_Stack(base + runtime.SIGNALS, 0, runtime.SIGNAL_BYTES)), None)


def leave(base):
    """These arenas are going; what stack the thread has by now stays if it is another one."""
    found = _Stack()
    _call("sigaltstack", None, ctypes.byref(found))
    if found.at == base + runtime.SIGNALS:
        _call("sigaltstack", ctypes.byref(_Stack(None, _DISABLE, 0)), None)


def guard(arena):
    """No access goes past the stacks of an arena to what lies below them; where the system has no mappings left, some do."""
    _libc.mprotect(ctypes.c_void_p(arena + runtime.GUARD), ctypes.c_size_t(runtime.STACKS - runtime.GUARD), 0)
