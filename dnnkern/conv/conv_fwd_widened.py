"""8-bit floats as float16, which has all of their values: x and w are converted in the workspace, and kernels for 16 bits read the copies.

    x, w  [8 bits] --cast--> workspace [float16] --depthwise, halo_wgmma, ...--> y, with the epilogue

Tensor cores multiply 8-bit floats where a group fills a step, which depthwise convolutions and small groups do not; nor does TMA take
fewer than 16 of them. The copies are exact, products and sums are those of float32. They cost the time of three bytes of memory for each
byte of x, and a launch for each operand. It loses wherever tensor cores take the operands as they are.
"""
from dataclasses import dataclass, replace

from .. import dispatch
from ..algorithm import cheapest
from ..device.index import ceil_div
from ..dispatch import Algorithm, Note
from ..engine.constants import constants
from ..engine.cost import Cost
from ..engine.embed import Place, embedded
from ..engine.moves import cast_launches, cast_seconds
from ..engine.scales import FP8
from ..host.memo import remembered
from ..host.products import FLOATS
from ..host.tensor import Tensor

COST = constants("conv/widened")

KERNELS = ("depthwise", "grouped", "halo_wgmma", "merged_groups", "implicit_gemm_mma", "small_c")
"""Those that read copies: what takes 8 bits needs none, and others round as the definition does not."""
LINE = 256  # bytes that parts of the workspace begin at multiples of


@dataclass(frozen=True)
class Config:
    """The algorithm that reads the copies, and its configuration."""
    name: str
    config: object

    def __str__(self):
        return f"{self.name} {self.config}"


def _copy(tensor):
    """A packed float16 array whose dimensions follow each other in memory as those of another."""
    strides, step = [1] * tensor.ndim, 1
    for axis in sorted(range(tensor.ndim), key=lambda d: (abs(tensor.strides[d]), -d)):
        strides[axis], step = step, step * tensor.shape[axis]
    return Tensor(tensor.shape, tuple(strides), "float16")


@remembered
def widened(problem):
    """The problem whose x and w are the copies."""
    return replace(problem, x=_copy(problem.x), w=_copy(problem.w))


@remembered
def _able(problem):
    """The algorithms that solve it on some device."""
    return tuple(a for a in dispatch.algorithms("conv_fwd") if a.name in KERNELS and a.reason(widened(problem)) is None)


def supports(problem):
    """8-bit floats, whatever one of the kernels supports."""
    p = problem
    if p.dtype not in FP8 or p.w.dtype not in FP8:
        return f"{p.dtype} x {p.w.dtype}; expected two of {', '.join(FP8)}"
    if p.prologue_a is not None:
        return "an image that a program makes; it reads a copy"
    if p.output.dtype not in FLOATS[1:]:
        return f"results of {p.output.dtype}; of float16 they are {', '.join(FLOATS[1:])}"
    if not (p.x.size and p.w.size and p.y.size):
        return "arrays without elements"
    return None if _able(p) else f"none of {', '.join(KERNELS)} solves it in float16"


def fits(problem, device):
    """Why no kernel runs on a device, or None."""
    inner = widened(problem)
    return None if any(a.refusal(inner, device) is None for a in _able(problem)) else f"no kernel for {device.arch}"


def configs(problem, device):
    """The two kernels of least estimate."""
    inner = widened(problem)
    able = [a for a in _able(problem) if a.refusal(inner, device) is None]
    return [Config(a.name, a.config) for a, _ in cheapest(able, inner, device, count=2)]


def _algorithm(config):
    return next(a for a in dispatch.algorithms("conv_fwd") if a.name == config.name).bound_to(config.config)


def _offsets(problem, device, config):
    """(bytes of the kernel's own workspace, which is first, where the copy of x begins, where that of w does, the end)."""
    inner = widened(problem)
    own = ceil_div(_algorithm(config).workspace(inner, device, config.config), LINE) * LINE
    second = own + ceil_div(inner.x.nbytes, LINE) * LINE
    return own, own, second, second + ceil_div(inner.w.nbytes, LINE) * LINE


def workspace(problem, device, config):
    """The kernel's own, and the copies."""
    return _offsets(problem, device, config)[-1]


def bound(problem, device):
    """The copies."""
    inner = widened(problem)
    return float(cast_seconds(problem.x, inner.x, device)) + float(cast_seconds(problem.w, inner.w, device))


def estimate(problem, device, config):
    """The copies, and what the kernel takes."""
    cost = _algorithm(config).estimate(widened(problem), device, config.config)
    return (Cost(pack=bound(problem, device)) + Cost.of(cost)).slowed(slower=COST.slower)


def build(problem, device, config):
    """The copies, and the kernel's launches."""
    p, inner, (_, x, w, _) = problem, widened(problem), _offsets(problem, device, config)
    copies = [launch for name, to, at in (("x", inner.x, x), ("w", inner.w, w))
              for launch in cast_launches(getattr(p, name), to, device, source=(name, 0), target=("workspace", at))]
    names = [name for name in ("y", "bias", "residual") if getattr(p, name) is not None]
    kept = {name: Place(name) for name in names}
    kept.update(x=Place("workspace", x), w=Place("workspace", w), workspace=Place("workspace"))
    return (*copies, *embedded(_algorithm(config), inner, device, kept, ("alpha", "beta")))


ALGORITHM = Algorithm(op="conv_fwd", name="widened", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs, fits=fits, bound=bound, notes=Note.TENSOR_CORE)
