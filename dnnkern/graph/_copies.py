"""Plans for calls whose buffers are not as the steps take them: a result's overlaps an operand that is still needed, or a BOOLEAN tensor's
has one bit per element. What the steps take instead lies in the workspace, and is copied there before them, or from there after; programs
load and store bits themselves where their kernels have them."""
import itertools
from dataclasses import replace

from .. import dispatch
from ..device.pointwise import Function
from ..device.program import Program
from ..device.program import Step as Call
from ..device.program_operands import MEMBERS
from ..fused import FusedProblem
from ..engine.programs import operand_names
from ..host.tensor import Tensor
from ._part import Step, known_alignment
from ._plan import Plan, bytes_of, is_written, lines_of, names_of


class Copying(Plan):
    """A plan with steps before and after that copy tensors to the workspace, or from it; the others take these copies. Bits that all steps
    with the tensor take as such are not copied.

    Copies follow what the plan itself has in the workspace: `workspace` is more by their bytes, whatever the others are.

    Parameters
    ----------
    plan : Plan
    copied : iterable of int
        uids of operands that are copied as they are.
    bits : iterable of int
        uids of BOOLEAN tensors whose buffers have one bit per element, in the order of their memory, the lowest bit of a byte first.
    """

    def __init__(self, plan, copied=(), bits=()):
        self.base, self.copied, self.bits, made = plan, tuple(sorted(copied)), frozenset(bits) | plan.bits, set()
        steps, algorithms = plan.steps, plan.algorithms
        for uid in sorted(bits):
            found = _with_bits(steps, algorithms, uid, plan.device)
            if found:
                steps, algorithms = found
                made.add(uid)
        bits = frozenset(bits) - made
        self._here, of = [("copy", uid) for uid in self.copied] + [("bytes", uid) for uid in sorted(bits)], plan.spec.tensor
        before = [_copy_of(of(uid)) for uid in self.copied] + [_unpacked(of(uid)) for uid in sorted(bits) if not _is_made(plan, uid)]
        after = [_packed(of(uid)) for uid in sorted(bits) if _is_made(plan, uid)]
        self._later = len(before)
        steps = [replace(step, buffers=tuple((name, (self._moved(buffer), offset)) for name, (buffer, offset) in step.buffers))
                 for step in steps]
        first, last = ([dispatch.get_algorithm(step.op, step.problem, device=plan.device) for step in some] for some in (before, after))
        super().__init__(plan.spec, (*before, *steps, *after), plan.temporaries, (*first, *algorithms, *last), plan.device,
                         plan.engine, plan.kernels)
        self.promised = plan.promised

    def _moved(self, buffer):
        kind, number = buffer
        return next((here for here in self._here if kind == "tensor" and here[1] == number), buffer)

    def _arranged(self):
        offsets = {(kind, number + self._later * (kind == "scratch")): at for (kind, number), at in self.base.offsets.items()}
        end = self.base.workspace
        for here in self._here:
            offsets[here], end = end, end + lines_of(self.spec.tensor(here[1]))
        return offsets, end


def _is_made(plan, uid):
    return any(is_written(step, name) for step in plan.steps for name, (buffer, _) in step.buffers if buffer == ("tensor", uid))


def _with_bits(steps, algorithms, uid, device):
    """(steps, algorithms) where all that take a tensor's bytes take its bits, by the same algorithms in the same workspace; or None."""
    found = []
    for step, algorithm in zip(steps, algorithms):
        names = names_of(step, uid) if algorithm else ()
        if names:
            problem = _of_bits(step, names) if algorithm.bits else None
            if problem is None or dispatch.refusal(algorithm, problem, device) is not None:
                return None
            had = algorithm.workspace(step.problem, device, algorithm.config)
            algorithm = _rebound(algorithm, step.problem, problem, device)
            if algorithm is None or algorithm.workspace(problem, device, algorithm.config) != had:
                return None
            step = replace(step, problem=problem)
        found.append((step, algorithm))
    return tuple(zip(*found))


def _rebound(algorithm, problem, other, device):
    """An algorithm with the configuration for another problem that it has for this one, which may have the program itself; None without."""
    if algorithm.config is None:
        return algorithm
    own, others = (list(algorithm.configs(p, device)) for p in (problem, other))
    if len(own) != len(others) or algorithm.config not in own:
        return None
    return algorithm.bound_to(others[own.index(algorithm.config)])


def _of_bits(step, names):
    """A step's problem with some arrays of its program by bits; None where it has them otherwise."""
    program, at = getattr(step.problem, "program", None), {name: offset for name, (_, offset) in step.buffers}
    own = [k for k, name in enumerate(operand_names(program)) if name in names]
    if len(own) < len(names) or any(at[name] or k >= len(program.operands) or program.operands[k] != ("bool", "matrix")
                                    for name, k in zip(names, own)):
        return None
    number, loads = itertools.count(), []
    for dtype, access in program.loads:
        loads.append((dtype, "bits" if access in MEMBERS and next(number) in own else access))
    stores = [(value, dtype, "bits" if program.inputs + k in own else access) for k, (value, dtype, access) in enumerate(program.stores)]
    return replace(step.problem, program=replace(program, loads=loads, stores=stores))


def _copy_of(t):
    """The step that copies a tensor's bytes, those between its elements too."""
    operation, size = dispatch.operation_of("transpose"), bytes_of(t)
    source = Tensor((size,), (1,), "uint8", known_alignment(t))
    problem = operation.make_problem((source,), Tensor((size,), (1,), "uint8"), (0,), aliases=frozenset())
    names = operation.operands[0], operation.outputs[0]
    return Step(problem, ((names[0], (("tensor", t.uid), 0)), (names[1], (("copy", t.uid), 0))), (), f"copy of tensor {t.name!r}", (), ())


# ---- bits: the k-th bit of byte j is element 8 j + k

_EIGHTHS, _BYTE = (("uint8", "matrix"),) * 8, ("uint8", "matrix")
_MUL, _ADD, _FLOOR, _MOD = map(Function.of, ("mul", "add", "floor", "mod"))


def _packed(t):
    """The step that makes bits of bytes, which are 0 or 1: ((b7 * 2 + b6) * 2 + ..) + b0."""
    steps, last = [], 7
    for k in reversed(range(7)):
        steps += Call(_MUL, (last, 8)), Call(_ADD, (9 + len(steps), k))
        last = 8 + len(steps)
    return _bit_step(t, Program((*_EIGHTHS, ("float32", 2.0)), steps, ((last, *_BYTE),), accumulators=0), f"bits of tensor {t.name!r}")


def _unpacked(t):
    """The step that makes bytes of bits: floor(byte / 2**k) mod 2."""
    steps, bits = [], []
    for k in range(8):
        steps += Call(_MUL, (0, 1 + k)), Call(_FLOOR, (10 + len(steps),)), Call(_MOD, (11 + len(steps), 9))
        bits.append((9 + len(steps), *_BYTE))
    loads = (_BYTE, *(("float32", 0.5 ** k) for k in range(8)), ("float32", 2.0))
    return _bit_step(t, Program(loads, steps, bits, accumulators=0), f"bytes of tensor {t.name!r}")


def _bit_step(t, program, label):
    """The step of a program between one array of bytes, 8 of which it has apart, and one of bits."""
    count = t.elements // 8
    apart = [(Tensor((count,), (8,), "uint8", 1 if k else 8), (("bytes", t.uid), k)) for k in range(8)]
    bits = [(Tensor((count,), (1,), "uint8", known_alignment(t)), (("tensor", t.uid), 0))]
    inputs, outputs = (apart, bits) if len(program.stores) == 1 else (bits, apart)
    problem = FusedProblem(program, [tensor for tensor, _ in inputs], [tensor for tensor, _ in outputs])
    return Step(problem, tuple(zip(problem.names, (buffer for _, buffer in (*inputs, *outputs)))), (), label, (), ())
