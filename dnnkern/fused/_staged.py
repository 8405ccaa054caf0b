"""Programs with reductions: pointwise functions of elements, reductions of rows, functions of their results, and so on, as data.

A row is what is reduced: all elements along some axes. Values are numbered as those of a `Program`: loads, then steps. A value is *full*,
one for each element, or of a *row*: results of reductions, loads by "row", numbers, and functions of these alone. So softmax is::

    program = StagedProgram(loads=(("bfloat16", "matrix"),),
                            steps=(Reduction("max", 0), Step(sub, (0, 1)), Step(exp, (2,)), Reduction("add", 3), Step(div, (3, 4))),
                            stores=((5, "bfloat16", "matrix"),))

A reduction has a *level*: one more than the highest level among what it is made of. Reductions of one level are computed in one pass over
a row. `Stages` are what kernels run: for each level a `Program` of an element, whose results are reduced, and one of the row; at last one
of an element, whose results are stored. Values that two of them need are computed in both.
"""
import functools
import numbers
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

from ..device.pointwise import Function
from ..device.program import Program, Step
from ..device.program_operands import _known, loaded_type, loads_of_record
from ..device.program_reduction import Reduction

ACCESSES = "matrix", "row", "value", "index"
DIV, MUL, RECIPROCAL = map(Function.of, ("div", "mul", "reciprocal"))


class Stage(NamedTuple):
    """One level: ``element`` makes the values that are reduced by ``modes``; of the results, after the row's values so far, ``row`` makes
    the row's further values."""
    element: Program
    modes: tuple
    row: Program


class Stages(NamedTuple):
    """What a kernel runs. Loads of its programs by "value" are the row's values so far, in their order.

    Attributes
    ----------
    given : tuple of str
        Types of the row's values at the beginning: the loads by "value", then those by "row"; at least one.
    start : Program or None
        The row's further values that need no reduction.
    levels : tuple of Stage
    final : Program
        Its stores are the full results.
    stores : tuple of (int, str, str)
        The results of a row: which of the row's values, its type, the dtype that is stored.
    """
    given: tuple
    start: Program | None
    levels: tuple
    final: Program
    stores: tuple


class Pass(NamedTuple):
    """One walk over the elements that reads only what it needs, and stores results of elements as soon as they can be computed.

    Attributes
    ----------
    program : Program
        Its stores are the values that the level reduces, ``reduced`` in number, then results of elements.
    arrays : tuple of int
        Which of the loads by "matrix" and "index" it has.
    reduced : int
    results : tuple of int
        Which of the results of elements it stores.
    """
    program: Program
    arrays: tuple
    reduced: int
    results: tuple

    @property
    def moves(self):
        """The program whose loads and stores are the arrays."""
        return replace(self.program, stores=self.program.stores[self.reduced:])


@dataclass(frozen=True)
class StagedProgram:
    """A DAG of functions and reductions, see the module; plain data, hashable.

    Attributes
    ----------
    loads : tuple of (dtype, access)
        By ``matrix``, an array of elements; ``row``, one of rows; ``value``, a number that is given at each call; ``index``, a position
        along an axis; or a constant.
    steps : tuple of Step or Reduction
    stores : tuple of (value, dtype, access)
        By ``matrix``, or by ``row`` of a row's value.
    """
    loads: tuple
    steps: tuple
    stores: tuple

    def __post_init__(self):
        put = functools.partial(object.__setattr__, self)
        for name in ("loads", "stores"):
            put(name, tuple(map(tuple, getattr(self, name))))
        put("steps", tuple(self.steps))
        for dtype, access in self.loads:
            _known("a load", dtype)
            if access not in ACCESSES and (isinstance(access, (str, bool)) or not isinstance(access, numbers.Real)):
                raise ValueError(f"program: a load by {access!r}; expected one of {', '.join(ACCESSES)}, or a number")
            if access == "index" and dtype != "int32":
                raise TypeError(f"program: an index of {dtype}; expected int32")
        known = len(self.loads)
        for step in self.steps:
            if not isinstance(step, (Step, Reduction)):
                raise TypeError(f"program: a step {step!r}; expected a Step or a Reduction")
            Program._check(step.inputs, known, "a step takes")
            known += 1
        if not self.reductions:
            raise ValueError("program has no reduction; expected one at least")
        if not self.stores:
            raise ValueError("program stores nothing; expected a result")
        for value, dtype, access in self.stores:
            _known("a store", dtype)
            if access not in ("matrix", "row"):
                raise ValueError(f"program: a store by {access!r}; expected 'matrix' or 'row'")
            Program._check((value,), known, "a store of")
            if access == "row" and not self._of_row(value):
                raise ValueError(f"program: value {value}, stored by 'row', is one of each element, or a constant")
        if len({r.compute for r in self.reductions}) > 1:
            raise TypeError("program: reductions in float32 and in float64; expected one type")

    def __hash__(self):
        return self._hash

    @functools.cached_property
    def _hash(self):
        return hash((self.loads, self.steps, self.stores))

    def __reduce__(self):  # hashes are a process's own
        return type(self), (self.loads, self.steps, self.stores)

    @classmethod
    def of_record(cls, record):
        """The program that `dataclasses.asdict` made into plain data, lists for tuples."""
        return cls(loads_of_record(record["loads"]), list(map(Step.of_record, record["steps"])), record["stores"])

    def record(self) -> dict:
        """As plain data."""
        return asdict(self)

    @property
    def reductions(self) -> tuple:
        return tuple(step for step in self.steps if isinstance(step, Reduction))

    @property
    def compute(self) -> str:
        """The type that reductions are computed in."""
        return self.reductions[0].compute

    @functools.cached_property
    def types(self) -> tuple:
        """The type of each value."""
        return (*(loaded_type(dtype) for dtype, _ in self.loads),
                *(loaded_type(s.round_to) if s.round_to else s.compute for s in self.steps))

    @functools.cached_property
    def _places(self) -> tuple:
        """((level, "full", "row" or "constant"), ...) of each value."""
        found = [(0, {"matrix": "full", "index": "full", "row": "row", "value": "row"}.get(access, "constant")) for _, access in self.loads]
        for step in self.steps:
            inputs = [found[i] for i in step.inputs]
            level = max(level for level, _ in inputs)
            kinds = {kind for _, kind in inputs}
            if isinstance(step, Reduction):
                found.append((level + 1, "row"))
            else:
                found.append((level, "full" if "full" in kinds else "row"))
        return tuple(found)

    def _of_row(self, value):
        return self._places[value][1] == "row"

    @functools.cached_property
    def hoisted(self) -> "StagedProgram":
        """The same, with elements multiplied by reciprocals of a row's values instead of divided by these: one division for each row."""
        steps, number, reciprocals, first = [], list(range(len(self.loads))), {}, len(self.loads)
        for v, step in enumerate(self.steps, first):
            inputs = tuple(number[i] for i in step.inputs)
            if isinstance(step, Reduction):
                step = replace(step, value=inputs[0])
            elif step.function == DIV and self._places[v][1] == "full" and self._of_row(step.inputs[1]):
                key = inputs[1], step.compute
                if key not in reciprocals:
                    steps.append(Step(RECIPROCAL, inputs[1:], None, step.compute))
                    reciprocals[key] = first + len(steps) - 1
                step = Step(MUL, (inputs[0], reciprocals[key]), step.round_to, step.compute)
            else:
                step = replace(step, inputs=inputs)
            steps.append(step)
            number.append(first + len(steps) - 1)
        return StagedProgram(self.loads, steps, [(number[v], dtype, access) for v, dtype, access in self.stores])

    @property
    def element_steps(self) -> tuple:
        """Those that kernels compute of each element, without reductions."""
        p = self.hoisted
        return tuple(s for s, (_, kind) in zip(p.steps, p._places[len(p.loads):]) if kind == "full")

    @functools.cached_property
    def stages(self) -> Stages:
        """What a kernel runs."""
        return self.hoisted._stages()

    @functools.cached_property
    def passes(self) -> tuple:
        """A `Pass` for each level, and one for what is left to be stored then, if there is something."""
        return self.hoisted._passes()

    def _passes(self):
        found, matrix = [], [store for store in self.stores if store[2] == "matrix"]
        for level, (rows, _, reduced) in enumerate(self._rows[1:]):
            found.append(self._pass(rows, [self.steps[v - len(self.loads)] for v in reduced], matrix, level))
        rows, new, _ = self._rows[-1]
        last = self._pass(rows + new, [], matrix, len(self._rows) - 1)
        return (*found, last) if last.results else tuple(found)

    def _pass(self, rows, reductions, matrix, level):
        """Of reductions, and of the results of a level."""
        results = [k for k, (v, _, _) in enumerate(matrix) if self._places[v][0] == level]
        wanted = [*(r.value for r in reductions), *(matrix[k][0] for k in results)]
        addressed = [v for v, (_, access) in enumerate(self.loads) if access in ("matrix", "index")]
        used = self._needed(rows, wanted, ())
        arrays = [k for k, v in enumerate(addressed) if v in used]
        arrays = arrays or [next(k for k, v in enumerate(addressed) if self.loads[v][1] == "matrix")]
        dtypes = [*(r.compute for r in reductions), *(matrix[k][1] for k in results)]
        program = self._program(rows, wanted, (), False, dtypes, {addressed[k] for k in arrays})
        return Pass(program, tuple(arrays), len(reductions), tuple(results))

    @functools.cached_property
    def _rows(self):
        """[(the row's values before a level, those that it adds, those of these that are reductions)], of level 0, which has none, on."""
        rows = [v for access in ("value", "row") for v, load in enumerate(self.loads) if load[1] == access] or [None]  # no empty tuple
        found, first = [], len(self.loads)
        for level in range(1 + max(level for level, _ in self._places)):
            new = [v for v in range(first, len(self._places)) if self._places[v] == (level, "row")]
            found.append((rows, new, [v for v in new if isinstance(self.steps[v - first], Reduction)]))
            rows = rows + new
        return found

    def _stages(self):
        levels, start, first = [], None, len(self.loads)
        given = tuple("int32" if v is None else self.types[v] for v in self._rows[0][0])
        for level, (rows, new, reduced) in enumerate(self._rows):
            if not level:
                start = self._program(rows, new, (), True) if new else None
            else:
                step = [self.steps[v - first] for v in reduced]
                element = self._program(rows, [s.value for s in step], (), False, [s.compute for s in step])
                levels.append(Stage(element, tuple(s.mode for s in step), self._program(rows, new, reduced, True)))
            rows = rows + new
        full = [store for store in self.stores if store[2] == "matrix"]
        final = self._program(rows, [v for v, _, _ in full], (), False, [dtype for _, dtype, _ in full])
        stores = tuple((rows.index(v), self.types[v], dtype) for v, dtype, access in self.stores if access == "row")
        return Stages(given, start, tuple(levels), final, stores)

    def _needed(self, rows, wanted, reduced):
        """The values of which these are made, the row's apart."""
        first, needed, stack = len(self.loads), set(), list(wanted)
        while stack:
            v = stack.pop()
            if v not in needed and v not in rows:
                needed.add(v)
                stack += () if v in reduced or v < first else self.steps[v - first].inputs
        return needed

    def _program(self, rows, wanted, reduced, of_row, dtypes=None, only=None):
        """The `Program` that makes values of elements, or `of_row`, of what is loaded and of the row's values; those of reductions that
        were just computed, `reduced`, come after these, yet to be rounded. `only`: the loads of arrays that it has, all if None."""
        first, needed = len(self.loads), self._needed(rows, wanted, reduced)
        loads, number = [], {}
        for v, (dtype, access) in enumerate(self.loads):
            addressed = access in ("matrix", "index") and not of_row and (only is None or v in only)
            if addressed or v in needed and not isinstance(access, str):
                number[v] = len(loads)
                loads.append((dtype, access))
        for v in rows:
            number[v] = len(loads)
            loads.append(("int32" if v is None else self.types[v], "value"))
        raw = {}
        for v in reduced:
            raw[v] = len(loads)
            loads.append((self.compute, "value"))
        steps = []
        for v in sorted(v for v in needed if v >= first):
            step = self.steps[v - first]
            if v not in reduced:
                step = Step(step.function, tuple(number[i] for i in step.inputs), step.round_to, step.compute)
            elif step.round_to:
                step = Step(Function.of("identity"), (raw[v],), step.round_to, self.compute)
            else:
                number[v] = raw[v]
                continue
            number[v] = len(loads) + len(steps)
            steps.append(step)
        dtypes = dtypes or [self.types[v] for v in wanted]
        return Program(loads, steps, [(number[v], dtype, "matrix") for v, dtype in zip(wanted, dtypes)], accumulators=0)

    def __str__(self):
        return "+".join(s.mode if isinstance(s, Reduction) else s.function.mode for s in self.steps)
