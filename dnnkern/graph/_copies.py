"""Plans for calls in which a result's buffer overlaps an operand that is still needed: the operand is copied to the workspace first."""
from dataclasses import replace

from .. import dispatch
from ..host.tensor import Tensor
from ._enums import ITEMSIZE
from ._part import Step, known_alignment
from ._plan import LINE, Plan


class Copying(Plan):
    """A plan that begins with copies of operands, and reads these in place of the operands.

    The copies follow what the plan itself has in the workspace: `workspace` is more by their bytes, whatever the others are.
    """

    def __init__(self, plan, uids):
        self.base, self.copied = plan, tuple(sorted(uids))
        copies = [_copy_of(plan.spec.tensor(uid)) for uid in self.copied]
        steps = [replace(step, buffers=tuple((name, (self._moved(buffer), offset)) for name, (buffer, offset) in step.buffers))
                 for step in plan.steps]
        algorithms = [dispatch.get_algorithm(step.op, step.problem, device=plan.device) for step in copies]
        super().__init__(plan.spec, (*copies, *steps), plan.temporaries, (*algorithms, *plan.algorithms), plan.device, plan.engine,
                         plan.kernels)

    def _moved(self, buffer):
        kind, number = buffer
        return ("copy", number) if kind == "tensor" and number in self.copied else buffer

    def _arranged(self):
        count, end = len(self.copied), self.base.workspace
        offsets = {(kind, number + count * (kind == "scratch")): at for (kind, number), at in self.base.offsets.items()}
        for uid in self.copied:
            offsets["copy", uid] = end
            end += -(-bytes_of(self.spec.tensor(uid)) // LINE) * LINE
        return offsets, end


def bytes_of(t):
    """From a tensor's first element to the end of its last."""
    return t.elements * ITEMSIZE[t.dtype]


def _copy_of(t):
    """The step that copies a tensor's bytes, those between its elements too."""
    operation, size = dispatch.operation_of("transpose"), bytes_of(t)
    source = Tensor((size,), (1,), "uint8", known_alignment(t))
    problem = operation.make_problem((source,), Tensor((size,), (1,), "uint8"), (0,), aliases=frozenset())
    names = operation.operands[0], operation.outputs[0]
    return Step(problem, ((names[0], (("tensor", t.uid), 0)), (names[1], (("copy", t.uid), 0))), (), f"copy of tensor {t.name!r}", (), ())
