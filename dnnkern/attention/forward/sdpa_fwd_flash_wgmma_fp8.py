"""`flash_wgmma` for 8-bit floats: values are transposed first, probabilities rounded to e4m3, and a tile's sums accumulated in float32.

    first launch            v -> blocks of 32 keys, each contiguous along the keys (`_transposed`)
    producer (one lane)     tile number -> q; k through TMA, transposed v by bulk copies, tile by tile of keys from the last to the first
    consumers (64 rows)     s = q k' (wgmma) -> softmax in registers -> e4m3, four to a word, as wgmma takes them from there
                            -> a tile's sums = p v (wgmma) -> acc = acc * rescale factor + a tile's sums -> divided, to o

- Probabilities are 2**`RAISED` times as large as in `flash_wgmma`, and what the reference maximum lags behind stays within e4m3's largest
  number, 448: the largest is 2**7 at least, the least that is not zero 2**-16 of it. row_sum is that of the unrounded ones.
- Tensor cores add products of 8-bit floats with some 14 bits, however many there are. So the products of each tile of keys start from zero,
  and threads add them to the others in float32; that also rescales the others where reference maxima have risen, so nothing else has to.
- As there the products of a tile's probabilities run while those of the next one are computed, tiles of keys that no row attends to are
  left out, blocks persist, and take tiles from a counter where those have different numbers of keys.
- A stage of the ring has a tile of keys and the values of the tile before it, which a step multiplies together.
- Results of 8 and 16 bits leave by eight columns of a row a thread (`_store`).
- v may have arbitrary strides: the first launch reads it. What lies past a sequence's last key is zero there.

Source: FlashAttention-3 (Shah et al., 2024) for the order of keys that spares probabilities an exchange between threads; it transposes
values in the kernel.
"""
from dataclasses import dataclass

from ...device import device_function
from ...device.index import LIMIT, ceil_div
from ...device.wgmma import make_wgmma, matrix_descriptor
from ...dispatch import Algorithm, Note
from ...engine.constants import constants
from ...engine.cost import Cost
from ...engine.hopper import ROW
from ...host.products import FP8
from .._flash import WIDEST
from .._fragments import make_pack_bytes, make_single_store, make_store
from .._wgmma import Shape, array_map, read_seconds, refusal, tile_seconds
from . import _collected_config
from ._collected import main_launch
from ._collected_config import fitting
from ._store import make_group_store
from ._transposed import BLOCK, Transposed, transpose_launch

COST, WGMMA = constants("attention/fp8"), constants("attention/wgmma")

SHAPES = tuple((Shape(*shape), parts) for parts, shapes in (
    (1, ((3, 96, 16), (3, 64, 32), (2, 192, 48), (2, 128, 48), (2, 96, 32), (2, 64, 32), (1, 128, 48), (1, 64, 32))),
    (2, ((2, 160, 32), (2, 128, 48), (2, 64, 32), (1, 64, 32))), (4, ((2, 64, 32), (1, 64, 32)))) for shape in shapes)
PROBABILITIES, HALVES = "float8_e4m3fn", ("float16", "bfloat16")
RAISED, SLACK = 7.0, 1.75
"""Levels may lag 2**SLACK behind the largest score: 2**8.75 is 431. More would only spare exchanges between threads: sums are multiplied
anyway."""


@dataclass(frozen=True)
class Config(_collected_config.Config):
    """Of `_collected_config`, for q and k of bytes and values that are transposed."""
    algorithm, pieces, transposed, raised, slack = "flash_wgmma_fp8", 1, True, RAISED, SLACK
    begins, of_bias, box_columns = BLOCK, 80, ROW

    def __post_init__(self):
        super().__post_init__()
        if self.shape.width % BLOCK:
            raise ValueError(f"tile {self.shape}: expected a multiple of {BLOCK} keys")
        if self.parts > 1 and self.e <= 32 * self.parts:
            raise ValueError(f"{self.parts} parts of values of {self.e} elements; expected more than {32 * self.parts}")

    @property
    def steps(self):
        """Of 32 elements of a row of q and k."""
        return ceil_div(self.d, 32)

    @property
    def columns(self):
        """Of the sums: each part has whole groups of 8."""
        return ceil_div(self.e, 8 * self.parts) * 8 * self.parts

    @property
    def words(self):
        """Four probabilities each."""
        return self.shape.width // 8

    @property
    def boxes(self):
        """Boxes of 128 columns of q and k; values come otherwise."""
        return ceil_div(self.d, ROW), 0

    @property
    def q_bytes(self):
        return self.boxes[0] * self.shape.height * ROW

    @property
    def stage(self):
        """Bytes of a tile of k and of one of v."""
        return self.boxes[0] * self.shape.width * ROW, self.shape.width * self.columns

    @property
    def of_values(self):
        return matrix_descriptor(16 * self.columns, 128, 0)

    @property
    def part_bytes(self):
        return 16 * self.columns // self.parts

    def make_products(self):
        """`_collected_config.Config`."""
        s, dtype = self.shape, self.kind.dtype
        q_steps, k_steps = (tuple(step // 4 * (rows * ROW // 16) + step % 4 * 2 for step in range(self.steps))
                            for rows in (s.height, s.width))
        of_scores = make_wgmma(s.width, dtype, steps=self.steps, a_step=q_steps, b_step=k_steps)
        of_sums = make_wgmma(self.columns // self.parts, PROBABILITIES, dtype, steps=s.width // BLOCK, a="registers",
                             b_step=BLOCK * self.columns // 16)

        @device_function
        def multiply_k(scores, q, k):
            of_scores(scores, q, k, 0)

        @device_function
        def multiply_v(sums, words, v):
            of_sums(sums, words, v, 0)
        return multiply_k, multiply_v

    def make_pack(self):
        """`_collected_config.Config`."""
        return make_pack_bytes(self.words)

    def make_store(self):
        """`_collected_config.Config`."""
        if self.grouped:
            return make_group_store(self.out, self.columns, self.e)
        return (make_store if self.out in HALVES else make_single_store)(self.out, self.columns, self.e, self.pairs)


def supports(problem):
    """Rows of q and k that TMA can read, any values, not packed."""
    p = problem
    reason = refusal(p, FP8, ("q", "k"))
    if reason:
        return reason
    if p.amax_s is not None and p.dropout:
        return f"amax_s with dropout {p.dropout:g}: the largest score may be dropped"
    units = Transposed(p, WIDEST, max(s.width for s, _ in SHAPES)).nbytes // 64
    return None if units < LIMIT else f"{units} pieces of v to turn; expected fewer than 2**31"


def configs(problem, device):
    """Shapes whose fragments fit registers and whose rings fit shared memory."""
    return fitting(Config, SHAPES, problem, device)


def transposed_of(problem, config):
    """How the values lie in the workspace."""
    return Transposed(problem, config.columns, config.shape.width)


def workspace(problem, device, config):
    """The transposed values, and the number of the next tile."""
    return transposed_of(problem, config).nbytes + 16


def estimate(problem, device, config):
    """Steps of the busiest block, after v has been read and written; a step as with 16 bits, but for the instructions that add up sums."""
    moved, collected = problem.v.nbytes + transposed_of(problem, config).nbytes, config.shape.height * config.columns / 128
    more = collected + COST.part * (config.parts - 1)
    pack = WGMMA.launch + read_seconds(moved, device)
    return Cost(pack=pack) + COST.share[config.shape.groups] * tile_seconds(problem, config, device, itemsize=1, more=more)


def build(problem, device, config):
    """The launch that transposes v, and that of the kernel."""
    p, s, transposed = problem, config.shape, transposed_of(problem, config)
    q = array_map(p, "q", p.q, s.height)
    maps = q, array_map(p, "k", p.k, s.width), q
    return transpose_launch(transposed), main_launch(p, config, device, maps, transposed.steps, transposed.nbytes)


ALGORITHM = Algorithm(op="sdpa_fwd", name="flash_wgmma_fp8", supports=supports, workspace=workspace, configs=configs, estimate=estimate,
                      build=build, notes=Note.TENSOR_CORE, arch="sm_90a")
