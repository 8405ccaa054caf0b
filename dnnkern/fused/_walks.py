"""How `columns` walks over the elements: chunks of neighbouring columns, rows of a thread at a time, threads side by side."""
import functools
import math
from dataclasses import dataclass

from ..device.index import ceil_div
from ..engine.form import Dim, Form
from ..engine.lanes import UNITS, Chunks, chunk_length
from ..host.dtypes import ITEMSIZE
from ._levels import States, types_of
from ._staged import Pass, StagedProgram

THREADS, LANES, MOST_WORDS = 256, (4, 2, 1), 32
MOST_HELD = 160  # registers of a thread, nearly: chunks are halved beyond


@dataclass(frozen=True)
class Walk:
    """How a launch goes through the elements.

    Attributes
    ----------
    staged : StagedProgram
    level : int
        Of the reductions; their number where there is none of these, but results alone.
    chunks : Chunks
        Of columns.
    lanes, across : int
        Rows of a thread at a time; threads side by side, the others of the block divide the rows.
    kept, rows : int
        Dimensions that number the columns, and those that number the rows.
    wide, partly : bool
        64-bit offsets; whether the last chunk of columns may be a part.
    indices : tuple
        Of each array its stride along the columns if it is an index, else None.
    """
    staged: StagedProgram
    level: int
    chunks: Chunks
    lanes: int
    across: int
    kept: int
    rows: int
    wide: bool
    partly: bool
    indices: tuple
    plain = False

    @property
    def step(self) -> Pass:
        return self.staged.passes[self.level]

    @functools.cached_property
    def program(self):
        """What `_moves` asks for: its loads and stores are the arrays."""
        return self.step.moves

    @property
    def dims(self):
        return self.kept + self.rows

    @property
    def arrays(self):
        return len(self.indices)

    @property
    def height(self):
        """Rows of a block at a time, in each lane."""
        return THREADS // self.across

    @functools.cached_property
    def states(self):
        """Of a thread's columns."""
        staged = self.staged
        modes = staged.stages.levels[self.level].modes if self.step.reduced else ()
        return States(modes, staged.compute, self.chunks.elements)

    @functools.cached_property
    def words(self):
        """Of a thread's inputs, nearly."""
        loads = [dtype for dtype, access in self.program.loads if access in ("matrix", "index")]
        return sum((1 if once else self.lanes) * self.chunks.elements * ITEMSIZE[dtype] // 4
                   for dtype, unit, once in zip(loads, self.chunks.units, self.chunks.once) if unit)

    @functools.cached_property
    def registers(self):
        """Of a thread, nearly."""
        wide = 2 if self.staged.compute == "float64" else 1
        columns = sum(self._reads(v) for v in range(len(types_of(self.staged, self.level))))
        return 32 + self.words + wide * (self.states.size + (2 + columns) * self.chunks.elements) + 3 * self.arrays

    def _reads(self, v):
        """Whether an element reads a value of its column, which is a register for each of a thread's."""
        given = [k for k, (_, access) in enumerate(self.step.program.loads) if access == "value"]
        scalars = sum(access == "value" for _, access in self.staged.loads)
        return v >= scalars and any(given[v] in step.inputs for step in self.step.program.steps)

    @property
    def blocks(self):
        """Of a multiprocessor: the compiler's bound on registers."""
        return max(1, min(4, 65536 // (-(-self.registers // 8) * 8 * THREADS)))


def form_of(forms, step):
    """The arrays of a pass; rows before columns."""
    form, kept = forms.form, forms.outer
    arrays = (*step.arrays, *(form.inputs + k for k in step.results))
    dims = [Dim(d.size, tuple(d.strides[k] for k in arrays)) for d in form.dims]
    return Form((*dims[:kept - 1], *dims[kept:], dims[kept - 1]), tuple(form.arrays[k] for k in arrays), len(step.arrays))


def make_column_chunks(form, rows, most):
    """`Chunks` of the last dimension, `most` elements at most: as many as all arrays are aligned to, in every row."""
    multiples = [math.gcd(a.alignment, *(d.strides[k] * a.itemsize for d in form.dims[:-1])) for k, a in enumerate(form.arrays)]
    along = [k for k, (a, s) in enumerate(zip(form.arrays, form.dims[-1].strides)) if s and a.name]
    sizes = [form.arrays[k].itemsize for k in along] or [4]
    least = max(1, 4 // min(sizes))
    length = max(least, min(most, chunk_length(sizes)))
    while length > least and any(multiples[k] % min(16, length * size) for k, size in zip(along, sizes)):
        length //= 2
    units = [next((u for u in UNITS if u > a.itemsize and multiples[k] % u == 0 and u <= length * a.itemsize), a.itemsize)
             if k in along else 0 for k, a in enumerate(form.arrays)]
    once = [all(not d.strides[k] for d in form.dims[-1 - rows:-1]) for k in range(form.inputs)]
    return Chunks(tuple(units), tuple(once), length, 0)


def _across(chunks):
    """Threads side by side: as many as leave the fewest without a column, 32 at most."""
    return min((32, 16, 8, 4, 2, 1), key=lambda n: (ceil_div(chunks, n) * n * 8 // max(chunks, 1), -n))


@functools.lru_cache(maxsize=256)
def walks_of(problem):
    """The `Walk` of each pass: as many columns and rows of a thread as registers hold."""
    forms, found = problem.forms, []
    rows = len(forms.form.dims) - forms.outer
    for level, step in enumerate(problem.program.passes):
        form = form_of(forms, step)
        indices = tuple(None if a.name else s for a, s in zip(form.arrays, form.dims[-1].strides))
        columns, lanes = form.dims[-1].size, LANES if rows == 1 else (1,)
        chunks = (make_column_chunks(form, rows, most) for most in (16, 8, 4, 2, 1))
        walks = [Walk(problem.program, level, some, count, _across(ceil_div(columns, some.elements)), forms.outer, rows, form.is_wide,
                      columns % some.elements > 0, indices) for some in dict.fromkeys(chunks) for count in lanes]
        found.append(next((w for w in walks if w.words <= MOST_WORDS and w.registers <= MOST_HELD), walks[-1]))
    return tuple(found)
