"""The layout of an operand's stage in shared memory, and how a warp reads it as fragments of mma.sync.

A stage is lines of 16-byte chunks. A line is a row with the stage's k (ALONG_K), or a k with all rows (ALONG_ROWS): the operand as it is
in global memory, so that copies are wide and nothing is transposed. Lines are swizzled: chunk c of line l is at ``c ^ phase(l)``. `phase`
takes the bits of l in which the lanes of one access differ, so that an access has no bank conflicts.

Every dtype has the same fragments: a lane (g, t) = (lane / 4, lane % 4) holds the row g of a group of eight rows and, of a step of k, what
belongs to t: two slots of 4 bytes (16-bit types, tf32, 8 bits; a step is 32 bytes) or of 8 (float64; 64 bytes). What differs is the load,
which is chosen so that its words are neighbours in the operand of an mma too and need not be moved:

==========  ==================================  =====================================================================================
            ALONG_K                             ALONG_ROWS
==========  ==================================  =====================================================================================
16 bits     ldmatrix                            ldmatrix.trans
8 bits      ldmatrix                            ldmatrix.trans of pairs of rows, four k of a row put together by prmt
tf32        ldmatrix, then rounded              16 bytes: four rows of one k, then rounded
float64     8 bytes                             left: 16 bytes, two rows of one k; right: 8 bytes
==========  ==================================  =====================================================================================

A load of `spread` rows gives them to as many groups: row g of group T is row ``T // spread * 8 spread + g spread + T % spread`` of the
warp. This permutes the rows, for the epilogue to undo; lanes then hold runs of 2 * `spread` columns of y.
"""
import functools
from dataclasses import dataclass

from ..device import device_function, u32
from ..device.ldmatrix import ldmatrix_x2, ldmatrix_x2_trans, ldmatrix_x4, ldmatrix_x4_trans
from ..device.numeric import permute_bytes, round_tf32
from ..device.vec import load_shared_2f64, load_shared_2u32, load_shared_4u32, load_shared_f64, load_shared_u32
from .loaders import ALONG_K, ALONG_ROWS, log2

ITEMSIZE = {"float16": 2, "bfloat16": 2, "tf32": 4, "int8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "float64": 8}


@dataclass(frozen=True)
class Stored:
    """A stage of one operand.

    Attributes
    ----------
    dtype : str
        As the tensor cores call it, a key of `ITEMSIZE`.
    order : ALONG_K or ALONG_ROWS
    rows, warp_rows : int
        Rows of the stage, and of them those a warp reads; powers of two.
    depth : int
        Bytes of k a row has.
    wanted : int
        Rows a lane would like side by side; ALONG_ROWS the load decides.
    left : bool
        Whether it is the mma's A.
    """
    dtype: str
    order: int
    rows: int
    warp_rows: int
    depth: int
    left: bool
    wanted: int = 1

    def __post_init__(self):
        for name in ("rows", "warp_rows", "depth"):
            if getattr(self, name) & getattr(self, name) - 1:
                raise ValueError(f"{self}: {name} is no power of two")
        if self.warp_rows < 8 or self.depth % self.step_bytes:
            raise ValueError(f"{self}: a warp has {self.warp_rows} rows, at least 8; {self.depth} bytes of k are no multiple of a step's "
                             f"{self.step_bytes}")
        if self.line < 16 or self.item == 1 and self.order == ALONG_ROWS and self.warp_rows < 16:
            raise ValueError(f"{self}: lines have {self.line} bytes, at least 16; bytes along rows are read 16 rows at a time")

    @property
    def item(self):
        return ITEMSIZE[self.dtype]

    @property
    def step_bytes(self):
        """Bytes of k that a step takes."""
        return 64 if self.dtype == "float64" else 32

    @property
    def step(self):
        """Elements of k that a step takes."""
        return self.step_bytes // self.item

    @property
    def k(self):
        """Elements of k in a stage."""
        return self.depth // self.item

    @property
    def lines(self):
        return self.rows if self.order == ALONG_K else self.k

    @property
    def line(self):
        """Bytes of a line."""
        return self.depth if self.order == ALONG_K else self.rows * self.item

    @property
    def bytes(self):
        return self.rows * self.depth

    @property
    def spread(self):
        """Neighbouring rows that a lane holds, one in each of as many groups."""
        most = self.warp_rows // 8
        if self.order == ALONG_ROWS:
            return min({"tf32": 4, "float64": 1 + self.left}.get(self.dtype, 2 if self.item == 1 else 1), most)
        if self.dtype == "float64" or self.depth < 128:  # lines of half a bank line: rows with one in between would share their banks
            return 1
        return min(self.wanted, most)

    @property
    def taps(self):
        """((bit of the line's number, bit of the chunk's), ...) of `phase`."""
        if self.dtype == "float64" or self.dtype == "tf32" and self.order == ALONG_ROWS:  # lanes take 32 bytes of each of four lines
            return {64: ((1, 1),), 32: ()}.get(self.line, ((0, 1), (1, 2)))
        if self.order == ALONG_K:
            first = log2(self.spread)
            return {64: ((1, 0), (2, 1)), 32: ((2, 0),)}.get(self.line, ((first, 0), (first + 1, 1), (first + 2, 2)))
        if self.item == 1:  # a matrix consists of the lines 0, 1, 4, 5, 8, 9, 12, 13
            return {64: ((2, 0), (3, 1)), 32: ((2, 0),), 16: ()}.get(self.line, ((0, 0), (2, 1), (3, 2)))
        return {64: ((1, 0), (2, 1)), 32: ((2, 0),), 16: ()}.get(self.line, ((0, 0), (1, 1), (2, 2)))

    def phase_of(self, line):
        """What chunk numbers of a line are xored with. Host function."""
        return sum((line >> bit & 1) << to for bit, to in self.taps)


@functools.cache
def make_phase(stored):
    """Device function ``phase(line)``, uint32: `Stored.phase_of`."""
    taps = stored.taps + ((0, None),) * (3 - len(stored.taps))
    (b0, c0), (b1, c1), (b2, c2) = ((bit, to or 0) for bit, to in taps)
    m0, m1, m2 = (int(to is not None) for _, to in taps)

    @device_function
    def phase(line):
        return u32(((line >> b0) & m0) << c0) | u32(((line >> b1) & m1) << c1) | u32(((line >> b2) & m2) << c2)
    return phase


def row_in_warp(stored):
    """Device function ``row(group, g)``: where row `g` of a group of eight lies among the warp's rows."""
    P, SHIFT = stored.spread, log2(stored.spread)

    @device_function
    def row(group, g):
        return ((group >> SHIFT) << (SHIFT + 3)) + g * P + (group & (P - 1))
    return row


@functools.cache
def make_reader(stored, units=1):
    """Device functions ``origin(lane, row, step)`` and ``load(fragment, slot, at, step)`` of one operand.

    `origin` is the byte offset in a stage of what the lane reads for a warp whose rows begin at `row` and whose steps of k begin at `step`.
    `load` fills fragment[slot:] with a step of k for all the warp's rows, `at` being the stage's shared address plus the origin. Slot h of
    group T is fragment ``T // 2 * 4 + 2 h + T % 2`` of the left operand, ``2 T + h`` of the right: the order of mma.sync's registers. With
    `units` steps to one instruction the fragments of a tile are that many times as far apart.
    """
    if stored.order == ALONG_ROWS and stored.item >= 4:
        return _words(stored, units)
    if stored.dtype == "float64":
        return _doubles(stored, units)
    return _bytes(stored) if stored.order == ALONG_ROWS and stored.item == 1 else _matrices(stored)


def _index(left, units):
    A, B = 4 * units, 2 * units

    @device_function
    def index(group, slot):
        if left:
            return (group >> 1) * A + 2 * slot + (group & 1)
        return group * B + slot
    return index


def _matrices(stored):
    """ldmatrix: a matrix is eight rows by 16 bytes of k, or, transposed, eight k by eight 16-bit rows."""
    L, STEP, ROWS, along_k, rounded = stored.line, stored.step, stored.warp_rows, stored.order == ALONG_K, stored.dtype == "tf32"
    left = stored.left
    PAIRS, single, WORDS = ROWS // 16, ROWS == 8, max(ROWS // 4, 2)
    phase, row_of = make_phase(stored), row_in_warp(stored)
    load_four, load_two = (ldmatrix_x4, ldmatrix_x2) if along_k else (ldmatrix_x4_trans, ldmatrix_x2_trans)

    @device_function
    def origin(lane, row, step):
        # the matrices of one load, in the order of the registers: of the left operand both groups, then the other half of k
        group, half = ((lane >> 3) & 1, lane >> 4) if left else (lane >> 4, (lane >> 3) & 1)
        if single:
            group = 0
        if along_k:
            line = row + row_of(group, lane & 7)
            return (u32(line * L) + ((u32(half) ^ phase(line)) << 4)) ^ u32(step * 32)
        line = half * 8 + (lane & 7)
        return u32((step * STEP + line) * L) + ((u32((row >> 3) + group) ^ phase(line)) << 4)

    @device_function
    def load(fragment, slot, at, step):
        if along_k:
            at = at ^ u32(step * 32)
        if single:
            load_two(fragment, slot, at if along_k else at + u32(step * STEP * L))
        for i in range(PAIRS):
            if along_k:
                load_four(fragment, slot + 4 * i, at + u32(row_of(2 * i, 0) * L))
            else:
                load_four(fragment, slot + 4 * i, (at ^ u32(32 * i)) + u32(step * STEP * L))
        if rounded:
            for w in range(WORDS):
                fragment[slot + w] = round_tf32(fragment[slot + w])
    return origin, load


def _bytes(stored):
    """ldmatrix.trans of pairs of bytes: a lane gets rows 2g and 2g + 1 of the k 4t and 4t + 1, by the next matrix of 4t + 2 and 4t + 3."""
    L, STEP, GROUPS, left = stored.line, stored.step, stored.warp_rows // 16, stored.left
    phase = make_phase(stored)

    @device_function
    def origin(lane, row, step):
        matrix, r = lane >> 3, lane & 7
        line = (matrix >> 1) * 16 + (matrix & 1) * 2 + (r >> 1) * 4 + (r & 1)
        return u32((step * STEP + line) * L) + ((u32(row >> 4) ^ phase(line)) << 4)

    @device_function
    def load(fragment, slot, at, step):
        for i in range(GROUPS):
            f = slot + 4 * i
            ldmatrix_x4_trans(fragment, f, (at ^ u32(16 * i)) + u32(step * STEP * L))
            even0, odd0 = _rows_of_pairs(fragment[f], fragment[f + 1])
            even1, odd1 = _rows_of_pairs(fragment[f + 2], fragment[f + 3])
            fragment[f], fragment[f + 3] = even0, odd1
            if left:
                fragment[f + 1], fragment[f + 2] = odd0, even1
            else:
                fragment[f + 1], fragment[f + 2] = even1, odd0
    return origin, load


@device_function
def _rows_of_pairs(low, high):
    return permute_bytes(low, high, u32(0x6420)), permute_bytes(low, high, u32(0x7531))


def _words(stored, units):
    """One load for `spread` rows of one k, tf32 or float64: slot h of a step is k = 4h + t."""
    L, STEP, P, item, rounded = stored.line, stored.step, stored.spread, stored.item, stored.dtype == "tf32"
    GROUPS, BYTES = stored.warp_rows // (8 * P), 8 * P * stored.item
    phase, index = make_phase(stored), _index(stored.left, units)
    load_run = {(4, 1): load_shared_u32, (4, 2): load_shared_2u32, (4, 4): load_shared_4u32, (8, 1): load_shared_f64,
                (8, 2): load_shared_2f64}[item, P]

    @device_function
    def origin(lane, row, step):
        line, byte = lane & 3, (row + (lane >> 2) * P) * item
        return u32((step * STEP + line) * L) + ((u32(byte >> 4) ^ phase(line)) << 4) + u32(byte & 15)

    @device_function
    def put(fragment, slot, group, h, value):
        fragment[slot + index(group, h)] = round_tf32(value) if rounded else value

    @device_function
    def load(fragment, slot, at, step):
        for h in range(2):
            for G in range(GROUPS):
                # within 128 bytes places are exchanged, so groups there are reached by xor
                run = load_run((at ^ u32(G * BYTES & 127)) + u32((step * STEP + 4 * h) * L + (G * BYTES & ~127)))
                if P == 1:
                    put(fragment, slot, G, h, run)
                else:
                    for j in range(P):
                        put(fragment, slot, G * P + j, h, run[j])
    return origin, load


def _doubles(stored, units):
    """float64 along k: slot h of a step is k = 4h + t."""
    L, GROUPS = stored.line, stored.warp_rows // 8
    phase, index = make_phase(stored), _index(stored.left, units)

    @device_function
    def origin(lane, row, step):
        line, t = row + (lane >> 2), u32(lane & 3)
        return (u32(line * L) + (((t >> 1) ^ phase(line)) << 4) + ((t & 1) << 3)) ^ u32(step * 64)

    @device_function
    def load(fragment, slot, at, step):
        for h in range(2):
            for group in range(GROUPS):
                fragment[slot + index(group, h)] = load_shared_f64((at ^ u32(step * 64 + h * 32)) + u32(group * 8 * L))
    return origin, load
