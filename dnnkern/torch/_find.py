"""``torch.backends.cudnn.benchmark = True``: a new problem is measured once, and the fastest algorithm taken from then on."""
import torch

from .. import dispatch
from ..preference import RECORDING, value_of
from ._tensors import KEY

CLOSE = 1.3  # times the least estimate; of 249 problems that were measured the choice by estimates was slower by more in one
MEASURES = KEY == "CUDA"
"""Without a GPU the switch means as little as it does to PyTorch's own kernels for the CPU."""


def find_once(unmeasured, function, **arguments):
    """Run `find` for the problem of a public function's call, unless the find database has it, and take the name out of `unmeasured`.

    It is left for a later call while a CUDA graph is captured or calls are recorded, and where a preference decides anyway.
    """
    if function not in unmeasured or not MEASURES or value_of(RECORDING) is not None or dispatch.preference() is not None:
        return
    if KEY == "CUDA" and torch.cuda.is_current_stream_capturing():
        return
    from .. import problem
    unmeasured.discard(function)
    found = problem(function, **{name: value for name, value in arguments.items() if value is not None})
    if not dispatch.measured(found.op, found):
        _measure(found)


def _measure(p):
    """`dispatch.find_algorithms` of those that may win, compiled side by side: all of them take minutes to compile for one problem."""
    from .. import find  # programs that never measure need none of this
    from ..host.compiler import Job
    from ..warming import compile_jobs
    device = dispatch.device_of(dispatch.current_device())
    able = sorted(dispatch.candidates(p.op, p, device), key=lambda a: a.seconds(p, device))
    limit = torch.backends.cudnn.benchmark_limit or len(able)
    close = [a for a in able[:limit] if a.seconds(p, device) <= CLOSE * able[0].seconds(p, device)]
    if len(close) == 1:
        return
    reference, operation = dispatch.reference_of(p.op, p, device), dispatch.operation_of(p.op)
    compile_jobs([Job(p.op, p, device, a.name, a.config, ()) for a in (*close, reference)])
    perfs = find.measure(operation, p, close, reference, device)
    if find.STORES and any(perf.status == "ok" for perf in perfs):
        find.store(p.op, p, device, tuple(dispatch.algorithms(p.op)), perfs)
        dispatch.forget(operation)
