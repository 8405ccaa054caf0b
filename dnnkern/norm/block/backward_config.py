"""Which shapes `backward`'s group of threads per row can have, and what limits them: registers of a thread, shared memory of a ring."""
import functools
from dataclasses import dataclass, replace

from ...device.index import ceil_div
from ...device.rows import LIMIT, Dim, RowLayout, RowForm, row_vector
from ...host.dtypes import ITEMSIZE
from .._weights import weight_words

WARP, THREADS = 32, 128  # threads of a block whose rows have a warp each, or a part of one
RESIDENT = 1024          # threads of a multiprocessor that are enough
STATIC = 8192            # bytes of shared memory for everything but the ring, and what the system takes
STAGES, MOST = 4, 4      # steps of a ring at most (one more after a cluster's), vectors of a thread in several rows of a step
KEPT = 112               # registers of a thread up to which it reads the ring once a step
DEPENDENT = (9, 0)       # compute capability from which the second launch is prepared while the first runs


@dataclass(frozen=True)
class Config:
    """What the kernel is compiled for.

    Attributes
    ----------
    dtype, gamma : str
    layer, scaled, shifted : bool
        Whether there is a mean, gamma, dbeta.
    words : int
        Of a load of gamma; 0: element by element.
    vector, dims, lanes, registers, cluster
        As forward.
    rows : int
        Of a step.
    stages : int
        Steps of the ring, the current one too; 0: there is none.
    kept : bool
        What the ring holds is read once a step, not twice.
    lag : int
        Steps between the sums and what they are for: 1 in a cluster with a ring.
    shared_per_sm : int
        Bytes of shared memory of a multiprocessor.
    dependent, added : bool
        `added`: dsummed is added to dx.
    """
    dtype: str
    gamma: str
    layer: bool
    scaled: bool
    shifted: bool
    words: int
    vector_bytes: int
    dims: int
    lanes: int
    registers: int
    rows: int
    stages: int
    kept: bool
    lag: int
    cluster: int
    shared_per_sm: int
    dependent: bool
    added: bool = False

    @property
    def threads(self):
        """Of a block."""
        return THREADS if self.lanes <= WARP else self.lanes

    @property
    def layout(self):
        return RowLayout(self.dtype, self.vector_bytes, self.lanes * self.cluster, self.registers)

    @property
    def stage_bytes(self):
        return 2 * self.rows * self.registers * self.threads * self.vector_bytes

    @property
    def shared_bytes(self):
        return self.stages * self.stage_bytes

    @property
    def sums(self):
        """Of a column: dgamma, and dbeta where it is wanted."""
        return 1 + self.shifted

    @property
    def registers_needed(self):
        """Of a thread: sums, gamma, packed words, values of a vector, addresses."""
        layout, real, vectors = self.layout, 2 if self.dtype == "float64" else 1, self.rows * self.registers
        columns = layout.elements * self.registers * real
        gamma = self.scaled * (columns * ITEMSIZE[self.gamma] // 4 // real if self.words else columns)
        loaded = vectors if self.kept else 2 if self.rows == 1 else 4
        words = layout.vector_words * (2 * loaded + self.added * vectors)
        many = 16 * (self.lanes < self.threads) + 16 * (self.vector_bytes < 16) + 6 * self.rows * real
        many += 32 if self.kept or self.rows > 1 else 26
        return -(-(self.sums * columns + gamma + words + layout.elements * real + many) // 8) * 8

    @property
    def blocks(self):
        """Resident ones: the compiler's bound on registers. A quarter of a multiprocessor has 512 of them for each lane of a warp."""
        warps = 4 * (512 // self.registers_needed)
        return max(1, min(RESIDENT // self.threads, warps * WARP // self.threads, self.shared_per_sm // (self.shared_bytes + STATIC)))

    def __str__(self):
        where = f"{self.lanes} threads" + f" x {self.cluster} blocks" * (self.cluster > 1)
        ring = f", ring of {self.stages}" + " read twice" * (not self.kept) if self.stages else ""
        return f"{where}, {self.registers} x {self.vector_bytes} bytes, {self.rows} rows{ring}"


@functools.lru_cache(maxsize=256)
def layout(problem):
    """(form of dy, x, dx and dsummed alone, bytes of a vector): an element where rows begin or end off 16 bytes, since columns have their
    threads."""
    order = [name for name, _, _ in problem.arrays]
    tensors = {name: t for name in ("dy", "x", "dx", "dsummed") if (t := getattr(problem, name)) is not None}
    at = [order.index(name) for name in tensors]
    form = RowForm(*(tuple(Dim(d.size, tuple(d.strides[k] for k in at)) for d in dims) for dims in (problem.form.row, problem.form.outer)))
    vector_bytes, unaligned = row_vector(form, tuple(tensors.values()))
    return form, problem.x.itemsize if unaligned else vector_bytes


def vectors(problem):
    """Vectors of a row."""
    return ceil_div(problem.form.length, layout(problem)[1] // problem.x.itemsize)


def max_vectors(problem):
    """Vectors of a thread: as many as there are registers for their sums, and for the vectors where these are elements."""
    vector_bytes = layout(problem)[1]
    return max(1, (24 * problem.x.itemsize // vector_bytes if vector_bytes == 16 else 8) // (1 + 2 * (problem.compute == "float64")))


def refusal(problem):
    """What keeps all from a problem; None if nothing does."""
    form = problem.form
    if len(form.row) != 1:
        return f"rows are {len(form.row)} dimensions; expected one that all arrays step evenly through"
    if form.length >= LIMIT or form.rows >= 2 ** 31 - 2 ** 20:
        return f"{form.rows} rows of {form.length} elements; expected fewer than 2**31 - 2**20, of fewer than 2**28"
    return None


def make_configs(problem, device, lanes, registers, cluster=1):
    """The configurations of a problem with this group of threads: one and several rows a step, with a ring where there can be one."""
    form, vector_bytes = layout(problem)
    order, gamma = [name for name, _, _ in problem.arrays], problem.gamma
    words = weight_words(gamma, problem.form.steps[order.index("gamma")], vector_bytes // problem.x.itemsize, False)
    dtype, found = problem.dtype if gamma is None else gamma.dtype, []

    def make(rows, stages, kept):
        return Config(problem.dtype, dtype, problem.op == "layer_norm_bwd", gamma is not None, problem.dbeta is not None, words,
                      vector_bytes, max(1, len(form.outer)) if form.rows else 1, lanes, registers, rows, stages, kept, 0, cluster,
                      device.shared_per_sm, device.capability >= DEPENDENT, problem.dsummed is not None)
    if vector_bytes != 16 or device.capability < (8, 0):
        two = make(2, 0, True)
        return [make(1, 0, True)] + [two] * (two.registers_needed * two.threads <= 65536)
    late = int(cluster > 1)
    for rows in (1, 2, 4):
        base = make(rows, 0, True)
        if late or base.registers_needed > KEPT:
            base = make(rows, 0, False)
        if rows > 1 and rows * registers > MOST or base.registers_needed * base.threads > 65536:
            continue
        for resident in range(base.blocks, 0, -1):
            room = min(device.shared_per_block, device.shared_per_sm // resident) - STATIC
            stages = min(STAGES + late, room // base.stage_bytes)
            if stages >= 3 or resident == 1 and stages == 2:
                found.append(replace(base, stages=stages, lag=int(late and stages > 2)))
                break
    return found or [make(1, 0, True)]
