"""Plans: the launches of all parts of a cut in one `Executable`, with one workspace.

Each step's launches name their own operands; here every pointer is moved to where the graph keeps it: a buffer of the variant pack, or a
part of the workspace. What lies in the workspace lives from the first step that takes it to the last, and shares memory with what lives
at other times.
"""
import threading
from dataclasses import replace
from functools import cached_property

from .. import dispatch
from ..algorithm import Note
from ..host.compile import held_by
from ..host.executable import load
from ._enums import behavior_note, bytes_of_elements, numerical_note
from ._errors import cudnnGraphNotSupportedError
from ._part import Value

LINE = 256
REMEMBERED = 32  # executables of a plan
NULL = "null"
_NOTES = {note: Note[note.name] for note in numerical_note if note.name in Note.__members__}


def library_notes(notes):
    """Numerical notes as the library's flags."""
    found = Note.NONE
    for note in notes:
        found |= _NOTES.get(note, Note.NONE)
    return found


class Plan:
    """How a graph runs: its steps, each with the algorithm that solves it.

    Attributes
    ----------
    engine : int
        Which of the graph's engines it is of.
    steps : tuple of Step
    algorithms : tuple of Algorithm
        Bound to their configurations; None for a step without elements.
    workspace : int
        Bytes it needs.
    kernels : KernelCache, optional
        That shares its kernels with other graphs.
    is_held : bool
        Whether nothing has to be compiled, as far as `kernels` knows.
    cut : int
        The number of its cut.
    bits : frozenset of int
        uids of BOOLEAN tensors whose buffers have one bit per element.
    code : {str: bytes} or None
        The kernels of a plan that was made for a device which is not here, and of one that was loaded with them: `host.compile.content_of`
        each, by their names in the disk cache.
    """
    bits = frozenset()
    code = None

    def __init__(self, spec, steps, temporaries, algorithms, device, engine, kernels=None, is_held=False, cut=0):
        self.spec, self.steps, self.temporaries, self.algorithms = spec, steps, temporaries, algorithms
        self.device, self.engine, self.kernels, self.is_held, self.cut = device, engine, kernels, is_held, cut
        self._lock, self._executables, self.is_built = threading.Lock(), {}, False
        self.offsets, self.workspace = self._arranged()
        self.bound = tuple(dict.fromkeys(value for step in steps for _, value in step.bound))

    @property
    def name(self):
        """What runs, step by step."""
        return " | ".join(f"{a.op}_{a.name}" + f"[{a.config_text}]" * bool(a.config_text) for a in self.algorithms if a) or "empty"

    @property
    def record(self):
        """What it is as plain data: of an equal graph `_record.plan_of` makes the same of it."""
        steps = [None if a is None else {"op": a.op, "algorithm": a.name, "config": a.config_text} for a in self.algorithms]
        return {"cut": self.cut, "engine": self.engine, "steps": steps}

    @property
    def identity(self):
        """Equal for plans of one graph that are the same."""
        return self.cut, tuple(a and (a.op, a.name, a.config_text) for a in self.algorithms)

    @property
    def seconds(self):
        """The predicted time."""
        return sum(a.seconds(step.problem, self.device) for step, a in zip(self.steps, self.algorithms) if a)

    @property
    def notes(self):
        """Flags of all its algorithms."""
        found = Note.NONE
        for a in self.algorithms:
            found |= a.notes if a else Note.NONE
        return found

    @property
    def numerical_notes(self):
        """cuDNN's words for them."""
        return [note for note, flag in _NOTES.items() if flag & self.notes]

    @property
    def behavior_notes(self):
        """Every kernel is compiled for the device at hand, and may be one of a CUDA graph."""
        return [behavior_note.RUNTIME_COMPILATION, behavior_note.SUPPORTS_CUDA_GRAPH_NATIVE_API]

    # ---- workspace

    def _arranged(self):
        """({buffer in the workspace: offset}, bytes)"""
        spans = {}  # buffer: [bytes, first step, last step]
        for k, (step, algorithm) in enumerate(zip(self.steps, self.algorithms)):
            if algorithm is None:
                continue
            for _, (buffer, _) in step.buffers:
                size = self._bytes_in_workspace(buffer)
                if size is not None:
                    spans.setdefault(buffer, [size, k, k])[2] = k
            scratch = algorithm.workspace(step.problem, self.device, algorithm.config)
            if scratch:
                spans["scratch", k] = [scratch, k, k]
        placed, end = [], 0
        for buffer, (size, first, last) in sorted(spans.items(), key=lambda item: (-item[1][0], item[1][1])):
            lines, at = in_lines(max(size, 1)), 0
            for start, stop, _ in sorted((o, o + n, b) for b, o, n, f, t in placed if f <= last and first <= t):
                if at + lines <= start:
                    break
                at = max(at, stop)
            placed.append((buffer, at, lines, first, last))
            end = max(end, at + lines)
        return {buffer: at for buffer, at, *_ in placed}, end

    def _bytes_in_workspace(self, buffer):
        kind, number = buffer
        if kind == "temporary":
            return self.temporaries[number].extent[1]
        t = self.spec.tensor(number)
        return bytes_of(t) if t.virtual else None

    @property
    def room(self):
        """Bytes of workspace for calls in which the buffers of BOOLEAN tensors have one bit per element: those tensors' bytes."""
        return sum(lines_of(t) for t in map(self.spec.tensor, self.uids[0]) if t.may_be_bits and t.uid not in self.bits)

    @cached_property
    def promised(self):
        """Bytes that a workspace has which is given as an address: `get_workspace_size()`, of a plan for other shapes that of the plan
        that was built."""
        return self.workspace + self.room

    # ---- launches

    def build(self):
        """Compile it, and load it where its device is here."""
        if self.device.is_here:
            self.executable(frozenset(), None)
        else:
            from ._kernels import machine_code
            self.code = machine_code(self)
        self.is_built = True
        return self

    def executable(self, aliases, bound):
        """(executable, `Slots`) for calls in which these pairs (uid of an input, uid of an output) are the same memory, and the numbers of
        `bound` have these values, None for those that the problems were made with."""
        key = aliases, bound
        found = self._executables.get(key)
        if found is None:
            slots = Slots()
            values = bound and dict(zip(self.bound, bound))
            by_step = self.launches(aliases, values, slots)
            launches = [launch for _, some in by_step for launch in some]
            with held_by(self.kernels):
                executable = load(launches, slots.parameters(bool(self.workspace)), self.device.index,
                                  f"graph {self.spec.name}: {self.name}")
            if self.kernels is not None:
                for algorithm, some in by_step:
                    self.kernels.collect(some, self.device, algorithm)
            with self._lock:
                if len(self._executables) >= REMEMBERED:
                    self._executables.pop(next(iter(self._executables)))
                found = self._executables.setdefault(key, (executable, slots))
        return found

    def launches(self, aliases=frozenset(), bound=None, slots=None):
        """[(algorithm, launches)] of the steps that launch anything, in calls of these `aliases` and numbers, as `executable` has them."""
        slots = slots or Slots()
        return [self._launches(k, aliases, bound, slots) for k, algorithm in enumerate(self.algorithms) if algorithm is not None]

    def _launches(self, k, aliases, bound, slots):
        """(algorithm, launches) of a step."""
        step, algorithm = self.steps[k], self.algorithms[k]
        buffers, scalars, problem = dict(step.buffers), dict(step.scalars), in_place(step, aliases)
        if bound and step.bound:
            problem = replace(problem, **{name: bound[value] for name, value in step.bound})
        if problem is not step.problem and dispatch.refusal(algorithm, problem, self.device) is not None:
            algorithm = dispatch.get_algorithm(step.op, problem, device=self.device)
        scratch = self.offsets.get(("scratch", k))

        def moved(argument):
            if argument.members:
                return replace(argument, value=argument.type(*map(moved, argument.members)))
            if not argument.is_dynamic:
                return argument
            name = argument.value
            if name in scalars:
                value = scalars[name]
                return replace(argument, value=slots.number(value, argument.type) if isinstance(value, Value) else value)
            if name == "workspace" and scratch is not None:
                return replace(argument, value="workspace", offset=argument.offset + scratch)
            if name not in buffers:
                return replace(argument, value=NULL, offset=0)
            buffer, offset = buffers[name]
            if buffer in self.offsets:
                return replace(argument, value="workspace", offset=argument.offset + offset + self.offsets[buffer])
            return replace(argument, value=slots.pointer(buffer[1]), offset=argument.offset + offset)
        return algorithm, [replace(launch, arguments=tuple(map(moved, launch.arguments)))
                           for launch in algorithm.build(problem, self.device, algorithm.config)]

    # ---- what calls have to check

    @property
    def uids(self):
        """uids of the buffers that it takes, and of the numbers."""
        pointers = {n: None for step, a in zip(self.steps, self.algorithms) if a for _, ((kind, n), _) in step.buffers
                    if kind == "tensor" and not self.spec.tensor(n).virtual}
        numbers = {uid: None for step, a in zip(self.steps, self.algorithms) if a for _, v in (*step.scalars, *step.bound)
                   if isinstance(v, Value) for uid in v.uids}
        return list(pointers), list(numbers)

    def hazards(self):
        """[(uid of an output, uid of another buffer, whether they may be exactly the same memory)] of pairs that must not overlap: the
        other is read after, or while, the output is written."""
        written, last = {}, {}
        for k, (step, algorithm) in enumerate(zip(self.steps, self.algorithms)):
            for name, (buffer, _) in step.buffers if algorithm else ():
                kind, uid = buffer
                if kind == "tensor" and not self.spec.tensor(uid).virtual:
                    last[uid] = k
                    if is_written(step, name):
                        written.setdefault(uid, k)
        pairs = []
        for out, k in written.items():
            for other, until in last.items():
                if other == out or other in written and other > out or until < k and other not in written:
                    continue
                same = other not in written and until == k and self._may_be_in_place(k, out, other)
                pairs.append((out, other, same))
        return pairs

    def _may_be_in_place(self, k, out, other):
        step = self.steps[k]
        if set(names_of(step, other)) <= set(over := getattr(step.problem, "over", {})):
            found = {over[name] for name in names_of(step, other)} == set(names_of(step, out))
            a, b = self.spec.tensor(out), self.spec.tensor(other)
            return found and (a.dim, a.dtype) == (b.dim, b.dtype) and _same(a.dim, a.stride, b.stride)
        operands = [getattr(step.problem, name, None) for name in names_of(step, other)]
        operation = dispatch.operation_of(step.op).of(step.problem)
        a, b = self.spec.tensor(out), self.spec.tensor(other)
        return (operation.in_place.issuperset(names_of(step, other)) and isinstance(getattr(step.problem, "in_place", None), (tuple, bool))
                and (a.dim, a.dtype) == (b.dim, b.dtype) and _same(a.dim, a.stride, b.stride)
                and all(t is not None and t.shape == a.dim and _same(a.dim, a.stride, t.strides) for t in operands))


def bytes_of(t):
    """From a tensor's first element to the end of its last."""
    return bytes_of_elements(t.dtype, t.elements)


def in_lines(size):
    """Bytes as the workspace has them."""
    return -(-size // LINE) * LINE


def lines_of(t):
    """A tensor's bytes as the workspace has them."""
    return in_lines(bytes_of(t))


def names_of(step, uid):
    """The operands of a step, by their names in launches, that a buffer of the variant pack is."""
    return [name for name, (buffer, _) in step.buffers if buffer == ("tensor", uid)]


def _same(dim, stride, other):
    """Whether strides are the same where they matter."""
    return all(s == t for n, s, t in zip(dim, stride, other) if n > 1)


def is_written(step, name):
    """Whether an operand of a step, by its name in launches, is written."""
    operation = dispatch.operation_of(step.op).of(step.problem)
    return name in operation.updates or name in operation.outputs


def in_place(step, aliases):
    """The step's problem, in place where these pairs of buffers are the same memory."""
    if not aliases:
        return step.problem
    names = tuple(name for i, o in aliases if any(is_written(step, out) for out in names_of(step, o))
                  for name in names_of(step, i) if not is_written(step, name) and name not in getattr(step.problem, "over", ()))
    if not names:
        return step.problem
    return replace(step.problem, in_place=names if isinstance(step.problem.in_place, tuple) else True)  # of problems with one such operand


class Slots:
    """The values that an executable takes, as launches ask for them: buffers by uid, then the workspace, then numbers."""

    def __init__(self):
        self.pointers, self.numbers = {}, {}

    def pointer(self, uid):
        """The name of a buffer."""
        return self.pointers.setdefault(uid, f"tensor {uid}")

    def number(self, value, kind):
        """The name of a number of a kernel's type."""
        return self.numbers.setdefault((value, kind), f"value {value.uid} {value.offset} times {value.factor} {kind}")

    def parameters(self, workspace):
        """`Executable`'s."""
        return (*((name, "pointer") for name in self.pointers.values()), *(("workspace", "pointer"),) * workspace,
                *((name, kind) for (_, kind), name in self.numbers.items()), (NULL, NULL))


def choose(spec, steps, temporaries, device, engine, exclude=Note.NONE, forced=None, kernels=None, cut=0) -> Plan:
    """A plan of these steps: for each the algorithm of dispatch, or of `forced`, {index of a step: Algorithm}; with `kernels`, a
    `KernelCache`, rather one whose kernels that has."""
    algorithms, is_held = [], kernels is not None
    for k, step in enumerate(steps):
        if step.problem.is_empty:
            algorithms.append(None)
        elif forced and k in forced:
            algorithms.append(forced[k])
        else:
            try:
                algorithm = dispatch.get_algorithm(step.op, step.problem, device=device, exclude=exclude)
            except dispatch.NotSupported as error:
                raise cudnnGraphNotSupportedError(f"{step.node}: {error}") from None
            if kernels is not None:
                algorithm, there = kernels.preferred(algorithm, step.problem, device, exclude)
                is_held = is_held and there
            algorithms.append(algorithm)
    return Plan(spec, steps, temporaries, tuple(algorithms), device, engine, kernels, is_held, cut)
