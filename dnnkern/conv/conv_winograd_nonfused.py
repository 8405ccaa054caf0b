"""Non-fused Winograd: transform to the workspace, one matrix product for each of the 16 or 36 matrices, inverse transform.

    conv_fwd, conv_bwd_data   M[z][tile][k] = sum over c of V[z][tile][c] * U[z][c][k]       F(4x4, 3x3), F(2x2, 5x5)
    conv_bwd_filter           M[z][k][c] = sum over tiles of D[z][tile][k] * V[z][tile][c]    F(3x3, 2x2), F(3x3, 4x4), F(5x5, 2x2)

- U is the transformed filter, V the transformed image, D the transformed dy; one thread transforms one tile and channel (`stages`).
- z counts the products of a tile: 16 of F(3x3, 2x2), 36 of the others. All z are one batched matrix product, by the algorithm of matmul
  that is predicted to be fastest (`engine.embed`): CUDA cores, or with math="tf32" tensor cores.
- Backward filter is a correlation whose taps are dy, in tiles of 2x2 or 4x4, summed over all tiles.
- 16-bit types are widened when they are loaded and rounded when outputs are stored, and nowhere between: transforms amplify rounding
  errors, which stay far below the output's own rounding only in float32.
- V and D have the layout of their images, channels first or last, or the one that the product reads best: `Config.last`.
- Extents of the matrices are multiples of four, padded with zeros, so that all of matmul's vector accesses apply.
- Where V and M exceed a budget, the tiles are processed in slices one after another; a small budget keeps them in the L2.

F(4x4, 3x3) and F(3x3, 4x4) need 4 times fewer multiplications than the definition, F(2x2, 5x5) and F(5x5, 2x2) 2.78 times, F(3x3, 2x2) 2.25
times. Unlike the fused F(2x2, 3x3) it writes and reads V and M once each, so it wins where C and K are large; docs/notes/winograd.md has
the numbers.

Sources: A. Lavin, S. Gray, arXiv:1509.09308; S. Winograd, Arithmetic complexity of computations, SIAM 1980.
"""
import itertools
from dataclasses import dataclass, replace

from ..device.index import ceil_div
from ..dispatch import Algorithm, Note
from ..engine.constants import constants
from ..engine.cost import Cost
from ..engine.embed import Place, choices, cost, embedded, fastest_seconds, scratch_bytes
from ..host.tensor import Tensor
from ..matmul import MatmulProblem
from ._parameters import PlaneStrides
from .winograd.filter import filter_launch
from .winograd.problem import channels_last, correlation, plane_of, refusal, spread, tile_grid
from .winograd.stages import Matrices, Tiles, patch_launch, result_launch
from .winograd.transforms import transform

COST = constants("conv/winograd_nonfused")

BUDGETS = (1 << 29, 1 << 25)
"""Bytes of V and M together: what a device has to spare, and what stays in the L2 beside the image."""
MOST_SLICES = 32
DTYPES = ("float32", "float16", "bfloat16")
TAPS = ((3, 3), (5, 5))
SMALL = 1 << 18  # multiply-adds of a product up to which every algorithm is a candidate


@dataclass(frozen=True)
class Config:
    """Extent of a tile's inputs, whether transformed images have channels last, tiles of a slice, the matmul algorithm."""
    n: int
    last: int
    tiles: int
    product: Algorithm

    def __str__(self):
        text = f"{self.n}x{self.n} {'last' if self.last else 'first'} {self.tiles} tiles {self.product.name}"
        return text + (f" {self.product.config}" if self.product.config else "")


def supports(problem):
    """3x3 and 5x5 filters with stride and dilation 1, one group; float32 and 16-bit types."""
    empty = problem.op == "conv_bwd_filter" and problem.n == 0
    return refusal(problem, TAPS, DTYPES) or ("an empty batch has no tiles" if empty else None)


def _extents(problem):
    """Of a tile's inputs, those for which there is a transform."""
    return (4, 6) if problem.op == "conv_bwd_filter" and problem.filter[1] == 3 else (6,)


def _math(problem):
    """Of the products: they may round to tf32 what was float32, not transforms of 16-bit types."""
    return problem.math if problem.dtype == "float32" else None


def _four(count):
    return ceil_div(count, 4) * 4


class _Images:
    """conv_fwd and conv_bwd_data: the matrices, products and launches for slices of tiles."""

    def __init__(self, problem, n, last):
        self.problem, self.c, self.last = problem, correlation(problem), bool(last)
        taps = problem.filter[1]
        self.transform = transform(n - taps + 1, taps)
        self.grid = tile_grid(self.c.out, self.transform.m)
        self.total = self.c.n * self.grid[0] * self.grid[1]
        self.count = self.transform.n ** 2
        self.padded = _four(self.c.c), _four(self.c.k)
        self.along_k = _math(problem) == "tf32"  # U as Hopper's tensor cores read tf32

    def matrices(self, tiles):
        """V and M, at offset 0."""
        c, (channels, filters) = self.c, self.padded
        return (Matrices(self.count, tiles, channels, self.last),
                Matrices(self.count, tiles, filters, channels_last(c.target_strides)))

    def product(self, tiles, rest=False):
        """The batched product of a slice."""
        (channels, filters), (v, m) = self.padded, self.matrices(tiles)
        u = (channels * filters, 1, channels) if self.along_k else (channels * filters, filters, 1)
        return MatmulProblem(a=Tensor((self.count, tiles, channels), v.strides, "float32"),
                             b=Tensor((self.count, channels, filters), u, "float32"),
                             y=Tensor((self.count, tiles, filters), m.strides, "float32"), math=_math(self.problem))

    def sizes(self, tiles):
        """Bytes of U, V, M."""
        v, m = self.matrices(tiles)
        return 4 * self.count * self.padded[0] * self.padded[1], v.nbytes, m.nbytes

    def bytes_moved(self):
        """By the transforms, of all slices."""
        _, v, m = self.sizes(self.total)
        p = self.problem
        return p.x.nbytes + p.y.nbytes + v + m

    def launches(self, config, device, offsets):
        """The filter's transform, then three steps a slice."""
        p, c, f = self.problem, self.c, self.transform
        at_u, at_v, at_m, scratch = offsets
        problem = self.product(config.tiles)
        v, m = (replace(x, offset=at) for x, at in zip(self.matrices(config.tiles), (at_v, at_m)))
        if self.along_k:  # U is [z][k][c]: the same with its channels exchanged
            exchanged = replace(c, c=c.k, k=c.c, w_strides=c.w_strides._replace(k=c.w_strides.c, c=c.w_strides.k))
            found = [filter_launch(p, exchanged, f, self.padded, at_u)]
        else:
            found = [filter_launch(p, c, f, self.padded[::-1], at_u)]
        places = {"a": Place("workspace", at_v), "b": Place("workspace", at_u), "y": Place("workspace", at_m),
                  "workspace": Place("workspace", scratch)}
        for first in range(0, self.total, config.tiles):
            tiles = Tiles(self.total, self.grid[0] * self.grid[1], self.grid[1], first)
            found.append(patch_launch(p, c.source, (c.image, c.pads, c.source_strides), c.c, f.data, f.n, f.n, f.m, v, tiles))
            found += embedded(config.product, problem, device, places)
            found.append(result_launch(p, c.target, c.k, c.out, c.target_strides, c.residual_strides, f.result, f.n, f.m, m, tiles))
        return tuple(found)


class _Filters:
    """conv_bwd_filter: the image's matrices V, dy's D, and the sums M, to which every slice but the first adds."""

    def __init__(self, problem, n, last):
        taps = problem.filter[1]
        self.problem, self.transform, self.last = problem, transform(taps, n - taps + 1), bool(last)
        self.grid = tile_grid(problem.out[1:], self.transform.r)
        self.total = problem.n * self.grid[0] * self.grid[1]
        self.count = self.transform.n ** 2
        self.padded = _four(problem.c), _four(problem.k)

    def matrices(self, tiles):
        """V, D and M, whose tiles are the filters."""
        channels, filters = self.padded
        return (Matrices(self.count, tiles, channels, self.last), Matrices(self.count, tiles, filters, self.last),
                Matrices(self.count, filters, channels, True))

    def product(self, tiles, rest=False):
        """The batched product of a slice; of another than the first with `rest`."""
        (channels, filters), (v, d, m) = self.padded, self.matrices(tiles)
        y = Tensor((self.count, filters, channels), m.strides, "float32")
        plane, tile, channel = d.strides
        return MatmulProblem(a=Tensor((self.count, filters, tiles), (plane, channel, tile), "float32"),
                             b=Tensor((self.count, tiles, channels), v.strides, "float32"), y=y, c=y if rest else None, in_place=rest,
                             math=_math(self.problem))

    def sizes(self, tiles):
        """Bytes of M, V, D."""
        v, d, m = self.matrices(tiles)
        return m.nbytes, v.nbytes, d.nbytes

    def bytes_moved(self):
        """By the transforms, of all slices."""
        m, v, d = self.sizes(self.total)
        p = self.problem
        return p.x.nbytes + p.y.nbytes + v + d + 2 * m

    def launches(self, config, device, offsets):
        """Three steps a slice, then the inverse transform."""
        p, f = self.problem, self.transform
        at_m, at_v, at_d, scratch = offsets
        v, d, m = (replace(x, offset=at) for x, at in zip(self.matrices(config.tiles), (at_v, at_d, at_m)))
        x, y = plane_of(p.x_strides), plane_of(p.y_strides)
        places = {"a": Place("workspace", at_d), "b": Place("workspace", at_v), "y": Place("workspace", at_m),
                  "workspace": Place("workspace", scratch)}
        found = []
        for first in range(0, self.total, config.tiles):
            tiles = Tiles(self.total, self.grid[0] * self.grid[1], self.grid[1], first)
            found.append(patch_launch(p, "x", (p.image[1:], p.pads_before[1:], x), p.c, f.data, f.n, f.n, f.r, v, tiles))
            found.append(patch_launch(p, "y", (p.out[1:], (0, 0), y), p.k, f.filter, f.r, f.n, f.r, d, tiles))
            more = {"c": places["y"]} if first else {}
            found += embedded(config.product, self.product(config.tiles, first > 0), device, {**places, **more})
        sk, sc, _, sr, ss = p.w_strides
        start = 0
        if p.flip:
            start, sr, ss = (f.m - 1) * (sr + ss), -sr, -ss
        found.append(result_launch(p, "w", p.c, p.filter[1:], PlaneStrides(sk, sc, sr, ss), PlaneStrides(0, 0, 0, 0), f.result, f.n, f.m, m,
                                   Tiles(p.k, 1, 1), start))
        return tuple(found)


def _stages(problem, n, last):
    return (_Filters if problem.op == "conv_bwd_filter" else _Images)(problem, n, last)


def _orders(problem):
    """(whether the images have channels last; the values of `Config.last` worth trying).

    Matrices in the order of their images are written at the rate of memory. Products read best what is contiguous along rows and columns,
    so channels last for backward filter; but tensor cores read tf32 along k.
    """
    image = int(channels_last(plane_of(problem.y_strides if problem.op == "conv_bwd_data" else problem.x_strides)))
    of_filters, tf32 = problem.op == "conv_bwd_filter", _math(problem) == "tf32"
    best = int(of_filters != tf32) if of_filters or tf32 else image
    return image, tuple(dict.fromkeys((best, image)))


def _parts(problem, device, config):
    """(bytes of workspace, offsets of the matrices and of the product's own)."""
    stages = _stages(problem, config.n, config.last)
    products = {stages.product(config.tiles, rest) for rest in (False, stages.total > config.tiles)}
    scratch = max(scratch_bytes(config.product, product, device) for product in products)
    return spread((*stages.sizes(config.tiles), scratch))


def _slicings(problem):
    """For each budget the slices that keep it: (n, last, tiles of a slice, their product)."""
    for n, last, budget in itertools.product(_extents(problem), _orders(problem)[1], BUDGETS):
        stages = _stages(problem, n, last)
        _, *streams = stages.sizes(stages.total)
        slices = min(max(1, ceil_div(sum(streams), budget)), max(1, stages.total // 64), MOST_SLICES if budget != max(BUDGETS) else 2 ** 31)
        tiles = _four(ceil_div(stages.total, slices))
        yield n, last, tiles, stages.product(tiles)


def configs(problem, device):
    """All slicings, with the products of least estimate."""
    return list(dict.fromkeys(Config(*slicing, chosen) for *slicing, product in _slicings(problem)
                              for chosen in choices(product, device, 2 if product.flops > 2 * SMALL else 99)))


def best(problem, device):
    """Of all slicings with the best product."""
    found = (Config(*slicing, choices(product, device)[0]) for *slicing, product in _slicings(problem))
    return min(found, key=lambda config: estimate(problem, device, config))


def workspace(problem, device, config):
    """The matrices of a slice, and what the product needs."""
    return _parts(problem, device, config)[0]


def estimate(problem, device, config):
    """The transforms at the rate of memory, or of the L2 where a slice fits; the products; launches, which few tiles do not fill."""
    stages = _stages(problem, config.n, config.last)
    slices = ceil_div(stages.total, config.tiles)
    _, *streams = stages.sizes(config.tiles)
    in_l2 = COST.l2 if sum(streams) < device.l2_bytes else 1
    image, (best, *_) = _orders(problem)
    product = cost(config.product, stages.product(config.tiles), device).slowed(slower=1.0 if config.last == best else COST.order)
    in_l2 *= 1.0 if config.last == image else COST.image
    return (slices * product + Cost(launch=COST.start + slices * COST.slice,
                                    transform=stages.bytes_moved() / (COST.rate * in_l2 * device.bandwidth)))


def bound(problem, device):
    """The transforms at the best rate, and the products by whatever is fastest; of one slice."""
    (last, *_), rate = _orders(problem)[1], COST.rate * max(1.0, COST.l2) * max(1.0, COST.image)

    def seconds(n):
        stages = _stages(problem, n, last)
        product = stages.product(stages.total)
        work = fastest_seconds("float32", product.math, product.y.size, product.k, 0, device)
        return COST.start + COST.slice + stages.bytes_moved() / (rate * device.bandwidth) + work
    return min(map(seconds, _extents(problem)))


def build(problem, device, config):
    """All launches, one after another on the stream."""
    return _stages(problem, config.n, config.last).launches(config, device, _parts(problem, device, config)[1])


ALGORITHMS = tuple(Algorithm(op=op, name="winograd_nonfused", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             configs=configs, best=best, bound=bound, notes=Note.WINOGRAD | Note.WINOGRAD_TILE_6x6, arch="sm_80+")
                   for op in ("conv_fwd", "conv_bwd_data", "conv_bwd_filter"))
