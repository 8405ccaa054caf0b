"""``torch.backends.cudnn.benchmark = True``: a new problem is measured once, and the fastest algorithm taken from then on."""
import torch

from .. import dispatch, problem
from ..preference import RECORDING, value_of
from ._tensors import KEY

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
    unmeasured.discard(function)
    found = problem(function, **{name: value for name, value in arguments.items() if value is not None})
    if not dispatch.measured(found.op, found):
        dispatch.find_algorithms(found.op, found)
