"""What the kernels of `_collected` are compiled for."""
from dataclasses import dataclass

from ...device.registers import check_register_budget
from ...engine.hopper import SHARED_LIMIT
from .._fragments import stored_in_pairs
from .._modifiers import is_adjusted
from .._parameters import Kind, kind_of, scaled
from .._quantization import Quantized, quantized
from .._wgmma import ALIGNMENT, BARRIERS, MOST_STAGES, Shape, is_uneven, tile_count
from ._store import stored_in_groups


@dataclass(frozen=True)
class Config:
    """The options, o's dtype, sizes of heads, a shape, and in how many parts the columns of a tile's sums are computed, one after the
    other; whether the window has a left and a right bound, whether scores are more than scaled products, whether lse is wanted, whether
    blocks take their tiles from a counter, whether o is stored by pairs; which of q, k and v have a factor, and which factors and maxima
    of `_quantization` there are.

    An algorithm's own says:

    algorithm : str
    pieces : int
        Planes of q and k, which follow one another as images do; of v too, unless it is transposed.
    transposed : bool
        Whether tiles of v are one piece of memory each.
    raised, slack : float
        As `_fragments.make_online_softmax` has them.
    begins : int
        Tiles of keys begin with a multiple of it.
    of_bias : int
        Registers of a thread that a bias takes.
    box_columns : int
        Elements of a box's row.
    columns, words : int
        Of the sums: e in whole groups; registers of a thread that its probabilities take.
    boxes, q_bytes, stage : tuple, int, tuple
        Boxes of a row of q and k and of one of v; bytes of a tile of q, of one of k and one of v.
    of_values, part_bytes : int
        Descriptor of a tile of v without its address, what one part of the columns adds to that.
    make_products() : (multiply_k, multiply_v)
        ``multiply(sums, left, right)``, left operands being a descriptor and words, from zero.
    make_pack(), make_store()
        As in `_fragments`.
    """
    kind: Kind
    out: str
    d: int
    e: int
    shape: Shape
    parts: int
    left: bool
    right: bool
    adjusted: bool
    lse: bool
    drawn: bool
    pairs: bool
    scaled: tuple
    quantized: Quantized
    grouped: bool

    def __post_init__(self):
        s = self.shape
        check_register_budget(s.threads, ((128, s.registers[0]), (128 * s.groups, s.registers[1])))
        if self.live > s.registers[1]:
            raise ValueError(f"tile {s} of heads of {self.d} and {self.e}: a thread needs {self.live} registers, it has {s.registers[1]}")
        if self.stages < 2:
            raise ValueError(f"tile {s} of heads of {self.d} and {self.e}: {SHARED_LIMIT} bytes of shared memory hold {self.stages} "
                             "stages; the least is 2")

    @property
    def live(self):
        """About how many registers a thread needs."""
        sums = self.columns // 2 + self.columns // 2 // self.parts
        more = self.of_bias if self.kind.bias else 24 * (self.adjusted or self.kind.dropout)
        return self.shape.width // 2 + self.words + sums + 32 + more

    @property
    def places(self):
        """Bytes before the ring of k, that of v, and the barriers."""
        v = self.q_bytes + self.stages * self.stage[0]
        return self.q_bytes, v, v + self.stages * self.stage[1]

    @property
    def stages(self):
        return min((SHARED_LIMIT - ALIGNMENT - BARRIERS - self.q_bytes) // sum(self.stage), MOST_STAGES)

    @property
    def shared(self):
        """Dynamic shared memory, bytes."""
        return self.places[2] + BARRIERS + ALIGNMENT

    def __str__(self):
        return str(self.shape) + f" in {self.parts} parts" * (self.parts > 1) + " drawn" * self.drawn


def fitting(config, shapes, problem, device):
    """Configurations of a class, of (shape, parts), whose fragments fit registers and whose rings fit shared memory."""
    p, found = problem, []
    for shape, parts in shapes:
        drawn = is_uneven(p) and tile_count(p, shape.height) > device.sms
        try:
            found.append(config(kind_of(p), p.o.dtype, p.d, p.dv, shape, parts, p.left >= 0, p.right >= 0, is_adjusted(p),
                                p.lse is not None, drawn, stored_in_pairs(p, p.o), scaled(p), quantized(p), stored_in_groups(p, p.o)))
        except ValueError:
            continue
    return found
