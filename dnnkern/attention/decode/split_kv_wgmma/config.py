"""What the kernel of `split_kv_wgmma` is compiled for, the layout of its shared memory, and into how many ranges keys are cut."""
from dataclasses import dataclass, replace

from ....device.groups import access_words
from ....device.index import ceil_div
from ....device.registers import check_register_budget
from ....engine.hopper import ROW, SHARED_LIMIT
from ..._fragments import stored_in_pairs
from ..._parameters import Kind
from ..._wgmma import ALIGNMENT, COLUMNS
from .._parameters import decode_kind, lines_of
from .._ranges import Parts

HEIGHT, WIDTH, PIECE = 64, 64, 32  # rows of a tile, keys of a step, keys of a piece of their values
BOX, SLICE = WIDTH * ROW, PIECE * ROW  # bytes of 64 columns of keys, and of a piece of the values
CHUNK = 8  # elements in 16 bytes
GROUP_COLUMNS, MOST_OF_TWO = 256, 192  # of the sums that a warpgroup has registers for, and one of two blocks' before it claims more
FACTORS, BARRIERS = 4 * HEIGHT, 1024  # bytes that a warpgroup tells the other of rows; of these and the barriers
MOST_SLOTS = 20  # of a ring


@dataclass(frozen=True)
class Config:
    """The options and sizes of heads; keys that lie in one box of a page, 0 without pages; whether there is a window, whether scores are
    more than scaled products, 32-bit words of an access to q, whether results are stored by two; into how many ranges the keys are
    cut, and whether lse is an output."""
    kind: Kind
    d: int
    e: int
    page: int
    windowed: bool
    adjusted: bool
    words: int
    pairs: bool
    splits: int
    lse: bool

    def __post_init__(self):
        keep, take = self.registers
        check_register_budget(self.threads, ((128, keep), (128 * self.groups, take)), self.blocks)

    @property
    def boxes(self):
        """Boxes of 64 columns of q and k, and of v."""
        return ceil_div(self.d, COLUMNS), ceil_div(self.e, COLUMNS)

    @property
    def columns(self):
        """Of the sums that the first warpgroup has, and the second: 0, there is none."""
        first = self.e if self.e <= GROUP_COLUMNS else ceil_div(self.boxes[1], 2) * COLUMNS
        return first, self.e - first

    @property
    def groups(self):
        """Warpgroups that multiply."""
        return 1 + (self.columns[1] > 0)

    @property
    def threads(self):
        return 128 * (1 + self.groups)

    @property
    def registers(self):
        """(of a producer thread, of a consumer thread)."""
        return {(1, 1): (40, 240), (1, 2): (40, 216), (2, 1): (40, 232)}[self.groups, self.blocks]

    @property
    def stage(self):
        """Bytes of a piece of the values."""
        return self.boxes[1] * SLICE

    @property
    def places(self):
        """Bytes before the tile of probabilities that the second warpgroup reads, the boxes of keys, the pieces of values, and the rest."""
        keys, values = self.rings
        p = self.boxes[0] * BOX
        k = p + BOX * (self.groups > 1)
        return p, k, k + keys * BOX, k + keys * BOX + values * self.stage

    def _fitting(self, blocks):
        """(boxes of keys, pieces of values) that so many blocks of a multiprocessor have memory for, tiles of both as often."""
        fixed = ALIGNMENT + BARRIERS + self.boxes[0] * BOX + BOX * (self.groups > 1)
        rest = SHARED_LIMIT // blocks - 1024 * (blocks > 1) - fixed
        values = min(max(rest * self.boxes[1] // sum(self.boxes) // self.stage, 2), MOST_SLOTS)
        return min((rest - values * self.stage) // BOX, MOST_SLOTS), values

    @property
    def blocks(self):
        """Of a multiprocessor: two, where these have memory for a tile, and an instruction the registers for its sums."""
        return 1 + (self.e <= MOST_OF_TWO and self._fitting(2)[0] >= self.boxes[0])

    @property
    def rings(self):
        """Boxes of keys and pieces of values in shared memory, two of either at least."""
        return self._fitting(self.blocks)

    @property
    def shared(self):
        """Dynamic shared memory, bytes."""
        return self.places[3] + BARRIERS + ALIGNMENT

    @property
    def parts(self):
        """What its ranges leave."""
        return Parts(self.kind, HEIGHT, self.e, self.e, self.lse)

    def __str__(self):
        return f"{self.splits} ranges"


def words_of(problem):
    """32-bit words of an access to q."""
    return access_words(problem.q, CHUNK, problem.strides(problem.q)[:-1])


def configs(problem, device):
    """One range, and as many as make half a wave of the blocks that fit the device, or whole ones."""
    p, bent = problem, problem.softcap > 0 or not 2.0 ** -60 < problem.scale < 2.0 ** 60
    page = min(p.page, WIDTH) if p.page_table is not None else 0
    whole = Config(decode_kind(p), p.d, p.dv, page, p.left >= 0, bent, words_of(p), stored_in_pairs(p, p.o), 1,
                   p.lse is not None)
    slots, lines, most = whole.blocks * device.sms, lines_of(p, HEIGHT), max(1, min(1024, p.seen // (2 * WIDTH)))
    counts = {1} | {min(most, splits) for halves in (1, 2, 4, 8) if (splits := slots * halves // (2 * lines))}
    return [replace(whole, splits=splits) for splits in sorted(counts)]
