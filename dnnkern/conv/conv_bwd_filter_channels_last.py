"""Backward filter with channels first: x and dy are transposed to the workspace, and kernels for channels last read the copies.

    x  [n, c, h, w] --transpose--> workspace [n, h, w, c] --+
    dy [n, k, p, q] --transpose--> workspace [n, p, q, k] --+--wgmma, split-K--> dw, in its own order or by a transposition more

Both operands of the product are read along pixels where channels come first, and the pixels of a tap begin anywhere, where neither TMA nor
wgmma can begin. Copying costs what x and dy take to be read and written, most of it in the L2. What is channels last already is not copied,
unless its channels are no multiple of eight: pixels of the copy are aligned.
Large filters, whose elements would be written one by one, taps apart, are made with channels last, too, and transposed.

It wins with 32 channels and more, whose products take longer than the copies. It loses to `implicit_gemm` and `im2col_gemm` with small
images, by its launches.
"""
import functools
from dataclasses import dataclass, replace

from ..device.index import ceil_div
from ..dispatch import Algorithm, Note
from ..engine.constants import constants
from ..engine.cost import Cost
from ..engine.embed import fastest_seconds
from ..engine.moves import transpose_launches, transpose_seconds
from ..host.memo import remembered
from ..host.tensor import Tensor
from . import conv_bwd_filter_implicit_gemm_wgmma as implicit_gemm_wgmma
from . import conv_bwd_filter_stream_k as stream_k
from . import slabs_wgmma
from ._geometry import Shape, shape_of, sizes_of
from .grouped import backward_filter as grouped

COST = constants("conv/channels_last")

KERNELS = {m.ALGORITHM.name: m.ALGORITHM for m in (implicit_gemm_wgmma, stream_k, slabs_wgmma, grouped)}
MOST = 3       # configurations of each
LINE = 16      # bytes that a part of the workspace is aligned to
VECTOR = 8     # elements of 16 bytes
PER_LINE = 64  # and of a line of the L2


@dataclass(frozen=True)
class Config:
    """The algorithm that reads the copies, its configuration, and whether dw is transposed from a copy."""
    name: str
    config: object
    filter: bool = False

    def __str__(self):
        return f"{self.name} {self.config}" + ", filter" * self.filter


def _pitch(channels):
    """Elements from one pixel of a copy to the next: multiples of 16 bytes, which TMA takes; those of other numbers of channels begin at
    lines of the L2, or divide one."""
    if channels % VECTOR == 0:
        return channels
    return ceil_div(channels, PER_LINE) * PER_LINE if channels > PER_LINE else max(VECTOR, 1 << (channels - 1).bit_length())


def _last(tensor, layout):
    """An array of the same dimensions whose channels are innermost, packed but for the ends of its pixels."""
    outer, channels, spatial = shape_of(tensor.shape, layout)
    inner = (*Tensor.packed((outer, *spatial, _pitch(channels)), tensor.dtype).strides[:-1], 1)
    return Tensor(tensor.shape, sizes_of(Shape(inner[0], inner[-1], inner[1:-1]), layout), tensor.dtype)


@remembered
def _copies(problem, filter=False):
    """{name: its copy} of x and dy, where channels are not contiguous, and of dw if `filter`."""
    p, strides = problem, {"x": problem.x_strides, "y": problem.y_strides}

    def is_read(name):
        """Whether TMA reads an array as it lies."""
        n, c, *spatial = strides[name]
        extents = p.n, *(p.image if name == "x" else p.out)
        return c == 1 and getattr(p, name).alignment >= 16 and not any(
            s % VECTOR for size, s in zip(extents, (n, *spatial)) if size > 1)
    names = [name for name in "xy" if not is_read(name)]
    return {name: _last(getattr(p, name), p.layout) for name in names + ["w"] * filter}


@remembered
def _inner(problem, filter=False):
    """The problem with the copies in place of the arrays."""
    return replace(problem, **_copies(problem, filter))


def _filters(problem):
    """Whether dw may be a copy: both where its channels are apart, and it is not added to."""
    p = problem
    return (False, True) if p.w_strides[1] != 1 and p.taps > 1 and p.c_group > 1 and not p.beta else (False,)


def supports(problem):
    """Whatever one of the kernels supports, with something to copy."""
    p = problem
    if p.dtype not in ("float16", "bfloat16"):
        return f"dtype {p.dtype}: the tensor cores transpose 16-bit operands only"
    if p.prologue_a is not None:
        return "an image that a program makes; it reads a copy"
    if not (p.x.size and p.y.size and p.w.size):
        return "arrays without elements"
    if not _copies(p):
        return "channels are contiguous already, and pixels aligned"
    reasons = [f"{name}: {a.supports(_inner(p))}" for name, a in KERNELS.items()]
    return None if _able(p) else "; ".join(reasons)


@remembered
def _able(problem, filter=False):
    return tuple(name for name, a in KERNELS.items() if a.supports(_inner(problem, filter)) is None)


def configs(problem, device):
    """The best of each kernel by its estimate."""
    found = []
    for filter in _filters(problem):
        inner = _inner(problem, filter)
        for name in _able(problem, filter):
            some = KERNELS[name].configs(inner, device)
            found += [Config(name, c, filter) for c in sorted(some, key=lambda c: KERNELS[name].estimate(inner, device, c))[:MOST]]
    return found


def _nbytes(tensor):
    return ceil_div(tensor.extent[1], LINE) * LINE


def _sums(problem, device, config):
    """Bytes of the kernel's own workspace, which is first."""
    return ceil_div(KERNELS[config.name].workspace(_inner(problem, config.filter), device, config.config), LINE) * LINE


def workspace(problem, device, config):
    """The kernel's own, and the copies."""
    return _sums(problem, device, config) + sum(map(_nbytes, _copies(problem, config.filter).values()))


@functools.lru_cache(maxsize=256)
def _seconds(tensor, copy, device):
    return transpose_seconds(tensor, copy, tuple(range(tensor.ndim)), device)


def bound(problem, device):
    """The copies of x and dy, and the products by whatever is fastest."""
    p = problem
    copies = sum(float(_seconds(getattr(p, name), copy, device)) for name, copy in _copies(p).items())
    return copies + fastest_seconds(p.dtype, p.math, p.k_group * p.c * p.taps, p.pixels, 0, device)


def estimate(problem, device, config):
    """The copies, and what the kernel takes; elements of dw that are stored one by one."""
    p, copies = problem, 0.0
    for name, copy in _copies(p, config.filter).items():
        pair = (copy, p.w) if name == "w" else (getattr(p, name), copy)
        copies += float(_seconds(*pair, device))
    apart = 0.0 if config.filter or p.w_strides[1] == 1 else COST.apart * p.w.size
    cost = Cost(pack=copies, reduction=apart) + Cost.of(KERNELS[config.name].estimate(_inner(p, config.filter), device, config.config))
    return cost.slowed(slower=COST.padded) if p.c % VECTOR or p.k % VECTOR else cost


def build(problem, device, config):
    """The copies, the kernel's launches, whose arrays are in the workspace, and dw from its copy."""
    p, at, launches, after, offsets = problem, _sums(problem, device, config), [], (), {}
    for name, copy in _copies(p, config.filter).items():
        order, here = tuple(range(copy.ndim)), ("workspace", at)
        if name == "w":
            after = transpose_launches(copy, p.w, order, device, here, (name, 0))
        else:
            launches += transpose_launches(getattr(p, name), copy, order, device, (name, 0), here)
        offsets[name], at = at, at + _nbytes(copy)

    def moved(a):
        offset = offsets.get(a.value) if a.is_dynamic else None
        return a if offset is None else replace(a, value="workspace", offset=a.offset + offset)
    inner = KERNELS[config.name].build(_inner(p, config.filter), device, config.config)
    return (*launches, *(replace(n, arguments=tuple(map(moved, n.arguments))) for n in inner), *after)


ALGORITHM = Algorithm(op="conv_bwd_filter", name="channels_last", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs, bound=bound, notes=Note.TENSOR_CORE, arch="sm_90a")
