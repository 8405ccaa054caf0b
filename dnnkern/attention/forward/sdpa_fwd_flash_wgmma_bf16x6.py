"""`flash_wgmma` for float32: each number is three bfloat16, each product six of those, with float32 sums on the tensor cores.

    first launch            q, k, v -> three planes each (`_pieces`), in the workspace
    producer (one lane)     tile number -> q; k and v, tile by tile of keys from the last to the first, three planes of each, through TMA
    consumers (64 rows)     s = q k' (wgmma, six products) -> exponentials in registers, float32 -> three bfloat16 each, as wgmma takes them
                            from there -> a tile's sums = p v (wgmma, six products) -> sums = sums * what levels fell + a tile's
                            -> divided, to o

- What the six products leave out is 2**-26 of the product, at most; operands lose nothing. Everything else is computed in float32 as
  elsewhere, so results are as exact as those of multiply-adds in float32.
- Sums begin from zero in each tile, with the smallest of the products: tensor cores may truncate what they add, and so only the last of a
  tile's additions, one for 16 elements, take anything from a sum that counts; tiles are added up by threads (`_collected`).
- Operands may have any strides: the first launch reads them. What lies past a sequence's last key is zero there.
- As with 16 bits the products of a tile's probabilities run while the exponentials of the next one are computed, tiles of keys that no row
  sees are left out, blocks persist, and draw tiles from a counter where those have unlike numbers of keys.

An element that is not finite, or beyond bfloat16's largest number, 3.39e38, makes all rows of its tile NaN which it has a part in.
Bound by tensor cores, at a sixth of their rate. The idea of products in pieces is older than tensor cores (Dekker, 1971); of bfloat16 for
float32: Henry, Tang and Heinecke, 2019. Three pieces and the order of sums: after Ootomo and Yokota, 2022, on what truncation costs.
"""
from dataclasses import dataclass

from ...device.index import ceil_div
from ...device.wgmma import make_wgmma, matrix_descriptor
from ...dispatch import Algorithm, Note
from ...engine.constants import constants
from ...engine.cost import Cost
from ...engine.hopper import ROW
from .._fragments import SLACK, make_single_store, make_split
from .._pieces import PIECES, PRODUCTS, TYPE, countable, moved_bytes, split_launch, splits_of
from .._wgmma import COLUMNS, Shape, read_seconds, refusal, tile_seconds
from . import _collected_config
from ._collected import main_launch
from ._collected_config import fitting

COST, WGMMA = constants("attention/bf16x6"), constants("attention/wgmma")

SHAPES = tuple((Shape(*shape), parts) for parts, shapes in (
    (1, ((2, 96, 48), (2, 80, 48), (2, 64, 32), (3, 32, 16), (2, 48, 32), (2, 32, 16), (1, 64, 32), (1, 48, 32), (1, 32, 16))),
    (2, ((2, 32, 16), (1, 32, 16)))) for shape in shapes)
WIDEST = 128


@dataclass(frozen=True)
class Config(_collected_config.Config):
    """Of `_collected_config`, for planes of bfloat16."""
    algorithm, pieces, transposed, raised, slack = "flash_wgmma_bf16x6", PIECES, False, 0.0, SLACK
    begins, box_columns = 8, COLUMNS

    def __post_init__(self):
        super().__post_init__()
        if self.kind.dropout and self.shape.width % 32:
            raise ValueError(f"tile {self.shape}: with dropout expected a multiple of 32 keys")
        if self.parts > 1 and self.e <= COLUMNS * (self.parts - 1):
            raise ValueError(f"{self.parts} parts of values of {self.e} elements; expected more than {COLUMNS * (self.parts - 1)}")

    @property
    def of_bias(self):
        return 48 + self.shape.width // 2

    @property
    def steps(self):
        """Of 16 elements of a row of q and k."""
        return ceil_div(self.d, 16)

    @property
    def columns(self):
        """Of the sums: e in whole groups of 8, parts in whole boxes."""
        return ceil_div(self.e, 8) * 8 if self.parts == 1 else COLUMNS * self.parts

    @property
    def words(self):
        """Two probabilities each, of each piece."""
        return PIECES * self.shape.width // 4

    @property
    def boxes(self):
        """Boxes of 64 columns of a plane of q and k, and of v."""
        return ceil_div(self.d, COLUMNS), ceil_div(self.e, COLUMNS)

    @property
    def q_bytes(self):
        return PIECES * self.boxes[0] * self.shape.height * ROW

    @property
    def stage(self):
        """Bytes of a tile of k and of one of v."""
        return tuple(PIECES * n * self.shape.width * ROW for n in self.boxes)

    @property
    def of_values(self):
        return matrix_descriptor(self.part_bytes, 1024, 128)

    @property
    def part_bytes(self):
        return self.shape.width * ROW

    def make_products(self):
        """`_collected_config.Config`: a step for each 16 elements of each product of two pieces."""
        s, q_box, k_box = self.shape, self.shape.height * ROW // 16, self.shape.width * ROW // 16
        inner, outer = range(self.steps), range(s.width // 16)
        of_q, of_k = (tuple((pair[side] * self.boxes[0] + step // 4) * box + step % 4 * 2 for pair in PRODUCTS for step in inner)
                      for side, box in ((0, q_box), (1, k_box)))
        return (make_wgmma(s.width, TYPE, steps=len(of_q), a_step=of_q, b_step=of_k, fresh=True),
                make_wgmma(self.columns // self.parts, TYPE, steps=len(PRODUCTS) * len(outer), a="registers", b_major="mn",
                           a_words=tuple(left * len(outer) + step for left, _ in PRODUCTS for step in outer),
                           b_step=tuple(right * self.boxes[1] * k_box + step * 128 for _, right in PRODUCTS for step in outer), fresh=True))

    def make_pack(self):
        """`_collected_config.Config`."""
        return make_split(self.shape.width // 4)

    def make_store(self):
        """`_collected_config.Config`."""
        return make_single_store(self.out, self.columns, self.e, self.pairs)


def supports(problem):
    """float32, any strides, not packed."""
    p = problem
    reason = refusal(p, ("float32",), ())
    if reason:
        return reason
    if max(p.d, p.dv) > WIDEST:
        return f"heads of {p.d} and {p.dv} elements; expected {WIDEST} at most"
    return countable(splits_of(p, "qkv"))


def configs(problem, device):
    """Shapes whose fragments fit registers and whose rings fit shared memory."""
    return fitting(Config, SHAPES, problem, device)


def workspace(problem, device, config):
    """The pieces, and the number of the next tile."""
    return splits_of(problem, "qkv")[-1].end + 16


def estimate(problem, device, config):
    """Steps of the busiest block, after operands have been read and split; a step as with 16 bits, but for six times the products, the
    instructions that split probabilities and add up sums, and tiles of so few keys that reading q takes longer than its products."""
    s = config.shape
    reading = max(COST.reading - s.width // 4, 0) * len(PRODUCTS) * config.steps * s.groups
    more = s.height * (COST.split * s.width + config.columns) / 128 + reading
    split = WGMMA.launch + read_seconds(moved_bytes(splits_of(problem, "qkv")), device)
    return Cost(pack=split) + tile_seconds(problem, config, device, times=len(PRODUCTS), more=more)


def build(problem, device, config):
    """The launch that splits q, k and v, and that of the kernel."""
    splits = splits_of(problem, "qkv")
    counter, height, width = splits[-1].end, config.shape.height, config.shape.width
    maps = tuple(split.map(rows) for split, rows in zip(splits, (height, width, width)))
    return split_launch(splits, counter), main_launch(problem, config, device, maps, (0, 0), counter)


ALGORITHM = Algorithm(op="sdpa_fwd", name="flash_wgmma_bf16x6", supports=supports, workspace=workspace, configs=configs, estimate=estimate,
                      build=build, notes=Note.TENSOR_CORE, arch="sm_90a")
