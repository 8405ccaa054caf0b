"""What a kernel looks after itself, as LLVM IR beside `runtime`: its stack.

LLVM has a function of a page or more of local variables call ``@cpu.probe`` before it takes them. Where they do not fit the thread's stack
the kernel ends, before it has touched the next one's.
"""
from .runtime import CAUSE, PROBES, STACK_BITS

_SLACK = 16 << 10  # for functions that do not ask: the runtime's, the C library's, all of less than a page


def _probe(machine):
    """``@cpu.probe``, and the attribute of functions that call it, which the writer gives theirs; none where LLVM makes no such calls."""
    if machine not in PROBES:
        return "attributes #0 = { nounwind }\n"
    return f"""
attributes #0 = {{ nounwind "probe-stack"="cpu.probe" }}
define hidden void @cpu.probe() naked noinline {{
  {PROBES[machine].format(slack=_SLACK, bits=STACK_BITS)}
  unreachable
}}
define internal void @cpu.overflow(i64 %bytes) noinline {{
  %p = call ptr @cpu.at.detail()
  store i64 %bytes, ptr %p
  call void @cpu.end(i32 {CAUSE["overflow"]})
  unreachable
}}
"""


def text(machine):
    """All of it."""
    return _probe(machine)
