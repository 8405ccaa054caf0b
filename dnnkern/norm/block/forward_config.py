"""How a group of threads holds a row of layer and RMS normalisation, forward, and what the kernel is compiled for."""
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...device.rows import RowLayout

if TYPE_CHECKING:
    from ...device.program import Program

WARP, THREADS = 32, 128  # threads of a block whose rows have a warp each, or a part of one
RESIDENT = 1024          # threads of a multiprocessor that are enough
LONG = 4                 # functions of a program that need no registers of their own


@dataclass(frozen=True)
class Config:
    """What the kernel is compiled for.

    Attributes
    ----------
    dtype, gamma, beta : str
    layer, scaled, shifted, residual : bool
        Whether there is a mean, gamma, beta, a residual.
    gamma_words, beta_words : int
        Of one load; 0: element by element.
    vector_bytes, unaligned
        As `RowLayout`'s.
    dims : int
        Dimensions besides the row, 1 at least.
    lanes, registers : int
        Threads of a block that hold a row, vectors of each in registers.
    rows : int
        Rows of a group of threads, all loaded before the first is looked at.
    cluster : int
        Blocks that hold a row together.
    shared, shared_per_sm : int
        Vectors of a thread in shared memory; bytes of it that a multiprocessor has.
    result : str
        y's dtype, "" where it is x's.
    program : Program or None
        What becomes of each element before it is rounded.
    wide : bool
        64-bit strides of its operands.
    program_vectors : tuple of Vector
        Those of its operands that are moved by vectors.
    whole : bool
        Lanes of a warp, or fewer, each of which has as many whole vectors of a row.
    """
    dtype: str
    gamma: str
    beta: str
    layer: bool
    scaled: bool
    shifted: bool
    residual: bool
    gamma_words: int
    beta_words: int
    vector_bytes: int
    unaligned: bool
    dims: int
    lanes: int
    registers: int
    rows: int = 1
    cluster: int = 1
    shared: int = 0
    shared_per_sm: int = 0
    result: str = ""
    program: "Program | None" = None
    wide: bool = False
    program_vectors: tuple = ()
    whole: bool = False

    @property
    def threads(self):
        """Of a block."""
        return max(THREADS, self.lanes) if self.lanes <= WARP else self.lanes

    @property
    def layout(self):
        return RowLayout(self.dtype, self.vector_bytes, self.lanes * self.cluster, self.registers, self.shared, self.unaligned,
                         result=self.result)

    @property
    def shared_bytes(self):
        return 16 * self.shared * self.threads

    @property
    def has_single_weights(self):
        """Whether 16-byte vectors meet weights that are loaded one by one."""
        return self.vector_bytes == 16 and (self.scaled and not self.gamma_words or self.shifted and not self.beta_words)

    @property
    def registers_needed(self):
        """Of a thread: packed words, values of a few vectors, addresses, a program's."""
        layout, real = self.layout, 2 if self.dtype == "float64" else 1
        early = (self.scaled + self.shifted) * layout.elements * real * self.registers if self.rows > 1 else 0
        words = (1 + self.residual) * (layout.words * self.rows + 2 * real * layout.edges) + 16 * (self.shared > 0)
        loaded = 0 if self.program is None else real * self._loaded(self.program)
        return -(-min(255, 24 * real + words + layout.elements * real + early + loaded) // 8) * 8

    def _loaded(self, program):
        """A program's: of what it loads beside two weights of the row, and of arrays like x; of many functions."""
        whole = sum(access in ("matrix", "bits") for _, access in program.operands[:program.inputs])
        weights = self.scaled + self.shifted + program.inputs - whole
        return 4 * max(0, weights - 2) + (16 + 4 * whole if whole else 0) + 8 * (len(program.steps) > LONG)

    @property
    def resident(self):
        """Blocks that a multiprocessor's registers allow, a quarter of which has 512 for each lane of a warp, and its shared memory."""
        blocks = 4 * (512 // self.registers_needed) * WARP // self.threads
        return max(1, min(blocks, self.shared_per_sm // (self.shared_bytes + 2048)) if self.shared else blocks)

    @property
    def blocks(self):
        """Resident ones at least: the compiler's bound on registers."""
        return min(RESIDENT // self.threads, self.resident)

    def __str__(self):
        where = f"{self.lanes} threads" + f" x {self.cluster} blocks" * (self.cluster > 1)
        vectors = f"{self.registers}{f' + {self.shared}' * (self.shared > 0)} x {self.vector_bytes} bytes"
        return f"{where}, {vectors}" + f", {self.rows} rows" * (self.rows > 1) + ", unaligned edges" * self.unaligned + (
            f", to {self.result}" * bool(self.result)) + f", {self.program}" * (self.program is not None)
