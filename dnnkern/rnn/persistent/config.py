"""What a persistent layer's kernel is compiled for, and what a block of it needs."""
import functools
from dataclasses import dataclass, replace

from ...device.index import ceil_div
from ...host.dtypes import ITEMSIZE, compute_dtype
from .._spec import GATES

COPY = 16  # bytes of a copy to shared memory
WARP = 32
DEPTH = 2 * COPY  # bytes along k of a step of mma: 16 elements of 16 bits, 8 of TF32
TILE = COPY * WARP  # bytes of 16 rows of R and a step along k: a copy each lane
RING = 64 << 10  # bytes of R that are on their way to a block


@dataclass(frozen=True)
class Config:
    """What a layer's kernel is compiled for.

    Attributes
    ----------
    cell, dtype : str
    mma : bool
        Products on tensor cores; of float32 in TF32.
    back : bool
        A row is a unit's, not a gate's.
    inner : int
        Of a product: forward the size of the state, backward of the gates.
    units, samples : int
        Of a block; units a power of two.
    part : int
        Sequences whose lines are in shared memory at once.
    lines : int
        Rows of a warp; 16 for mma.
    splits : int
        Parts of k, for mma.
    cluster : int
        Blocks that share sequences are a cluster of so many; 0: they meet in global memory.
    single : bool
        A launch is a step, and nobody meets.
    least_threads, before : int
        Of the second product of a step: the block's threads, and the bytes of shared memory before its lines.
    second : Config
        That product, with a projection.
    layers : int
        Forward: so many go side by side, each after the one before. A line is then a state and the state of the layer below.
    """
    cell: str
    dtype: str
    mma: bool
    back: bool
    inner: int
    units: int
    samples: int
    part: int
    lines: int
    splits: int
    cluster: int = 0
    single: bool = False
    least_threads: int = 0
    before: int = 0
    second: "Config | None" = None
    layers: int = 0

    @property
    def compute(self):
        """What is summed in."""
        return compute_dtype(self.dtype)

    @property
    def width(self):
        """Elements of a line from one place."""
        return self.inner // 2 if self.layers else self.inner

    @property
    def is_tf32(self):
        """Whether factors are rounded to TF32."""
        return self.mma and self.dtype == "float32"

    @property
    def rounds_fragments(self):
        """Whether lines are rounded to TF32 as their fragments are loaded, not when they are exchanged: they are results, too, or states
        that the next launch goes on from."""
        return self.is_tf32 and bool(self.layers or self.single)

    @property
    def splits_n(self):
        """Whether GRU's n has a row for the input and one for the state, which r keeps apart."""
        return self.cell == "gru" and bool(self.layers)

    @property
    def rows_a_unit(self):
        return 1 if self.back else GATES[self.cell] + self.splits_n

    @functools.cached_property
    def rows(self):
        """Of a block's product; padded to whole warps."""
        return ceil_div(self.rows_a_unit * self.units, self.lines) * self.lines

    @functools.cached_property
    def warps(self):
        return self.rows // self.lines * self.splits

    @functools.cached_property
    def threads(self):
        return max(WARP * self.warps, self.least_threads)

    @property
    def vector(self):
        """Elements of a copy."""
        return COPY // ITEMSIZE[self.dtype]

    @property
    def depth(self):
        """Elements of a step of mma along k."""
        return DEPTH // ITEMSIZE[self.dtype]

    @property
    def steps(self):
        """Of a warp's part of k: 32 bytes wide for mma; else a load of 16 bytes by each lane."""
        return ceil_div(self.inner, self.depth * self.splits) if self.mma else ceil_div(self.inner, WARP * self.vector)

    @property
    def length(self):
        """Elements of a line in shared memory: all that is multiplied, and for mma 16 bytes, which spare bank conflicts."""
        return self.steps * self.depth * self.splits + self.vector if self.mma else self.steps * WARP * self.vector

    @property
    def pitch(self):
        """Numbers of a row of sums."""
        return self.samples + 1

    @property
    def lines_bytes(self):
        return self.part * self.length * ITEMSIZE[self.dtype]

    @property
    def lines_end(self):
        """Bytes of the lines of all products."""
        return self.second.lines_end if self.second else self.before + self.lines_bytes

    @property
    def sums(self):
        """Numbers in shared memory; of a second product in the place of the first's."""
        return max(self.splits * self.rows * self.pitch, self.second.sums if self.second else 0)

    @property
    def ring(self):
        """For mma: steps of R that are on their way to a warp's fragments at once, 512 bytes each."""
        return min(self.steps, max(1, RING // (TILE * self.warps)))

    @property
    def shared_bytes(self):
        """Dynamic: lines, and before the first step R on its way."""
        rings = [c.ring * c.warps * TILE for c in (self, self.second) if c and c.mma]
        return max(self.lines_end, *rings, 0)

    @property
    def pairs(self):
        """Of a unit and a sequence, of a thread."""
        return ceil_div(self.units * self.samples, self.threads)

    @property
    def held(self):
        """Words, or numbers, of R that a thread has."""
        return 4 * self.steps if self.mma else self.lines * self.steps * self.vector

    @property
    def registers_needed(self):
        """Of a thread: what it holds, sums, a line, cell states and inputs, addresses."""
        size = 2 if self.dtype == "float64" else 1
        product = self.part // 2 + 8 if self.mma else (self.lines + self.steps * self.vector) * size
        held, pairs = (self.held if self.mma else self.held * size), self.pairs * (8 + GATES[self.cell]) * size
        second = self.second.registers_needed - 48 if self.second else 0
        return held + product + pairs + 56 + second

    def __str__(self):
        how = f"mma{' tf32' * self.is_tf32}, k in {self.splits}" if self.mma else f"{self.lines} rows a warp"
        parts = f" by {self.part}" * (self.part < self.samples)
        second = f", then {self.second.units} units, " + str(self.second).split(", ", 2)[2] if self.second else ""
        return f"{self.units} units, {self.samples} sequences{parts}, {how}{second}" + f", clusters of {self.cluster}" * bool(self.cluster)

    def having(self, **changes):
        """With other fields, on which nothing depends that is remembered (rows, warps and threads): `dataclasses.replace` takes ten times
        as long, and hundreds are tried."""
        other = object.__new__(Config)
        other.__dict__.update(self.__dict__, **changes)
        return other

    @property
    def cells(self):
        """The product whose units are the cells'."""
        return self.second if self.second and self.back else self

    def beside(self, back, inner, units):
        """This product and a second one for the same threads, of rows without gates; None if their warps are too few."""
        if self.mma:
            tiles = ceil_div(units, 16)
            lines, splits = 16, min(self.warps // tiles, 1 << (ceil_div(inner, self.depth) - 1).bit_length())
        else:
            lines, splits = max(1, units // self.warps), 1
        if not splits or lines > 16:
            return None
        second = Config("relu", self.dtype, self.mma, back, inner, units, self.samples, self.part, lines, splits,
                        least_threads=self.threads, before=self.lines_bytes)
        return replace(self, second=second)
