"""Windows side by side, such as patches of 16x16 pixels: nothing is added up, and the columns are the image in another order.

Where the stride is the window and there is no padding, each pixel has one copy. Element ``[n][c][t, r, s][o, p, q]`` of the columns goes to
pixel ``[n][c][o * T + t][p * R + r][q * S + s]``: a permutation, of which the transposition's `copy` takes rows that stay rows, as with
channels last, and `staged` boxes of several dimensions. `gather` would look at every tap of a window for the one that counts.
"""
import functools
from dataclasses import dataclass

from ...dispatch import Algorithm
from ...host.canonical import Canonical, canonical
from ...host.memo import remembered
from ...host.tensor import Tensor
from .._problem import Moves
from ..layout import transpose_copy, transpose_staged

BY = {"copy": transpose_copy, "staged": transpose_staged}


@dataclass(frozen=True)
class Config:
    """How elements are moved: an algorithm of the transposition, and its configuration."""
    by: str
    config: object

    def __str__(self):
        return f"{self.by}, {self.config}"


@dataclass(frozen=True)
class Permutation(Moves):
    """The columns, x, as an image, y, of windows that touch: extents and strides of both arrays along the same dimensions."""
    x: Tensor
    y: Tensor
    shape: tuple
    x_strides: tuple
    y_strides: tuple
    op = "col2im"

    @functools.cached_property
    def canonical(self) -> Canonical:
        """The elements as they are."""
        return canonical(self.shape, self.x_strides, self.y_strides, self.x.itemsize)


@remembered
def _permutation(problem):
    outs, taps = problem.out, problem.taps
    n, c, tap, pixel = problem.columns_strides
    tap_strides, pixel_strides = ((taps[1] * taps[2], taps[2], 1), (outs[1] * outs[2], outs[2], 1))
    shape, columns, x = (problem.x.shape[0], problem.c), (n, c), problem.x_strides[:2]
    for k, stride in enumerate(problem.x_strides[2:]):
        shape += outs[k], taps[k]
        columns += pixel * pixel_strides[k], tap * tap_strides[k]
        x += stride * taps[k], stride
    return Permutation(problem.columns, problem.x, shape, columns, x)


def supports(problem):
    """Windows that touch and cover the image."""
    for name, (extent, outputs, taps, stride, dilation, before) in zip("dhw", problem.axes):
        if before or extent != outputs * taps or (stride != taps and outputs > 1) or (dilation != 1 and taps > 1):
            return (f"along {name} {outputs} windows of {taps} pixels, stride {stride}, dilation {dilation}, on {extent} pixels after "
                    f"{before} of padding; expected windows side by side that cover the image")
    reasons = [module.supports(_permutation(problem)) for module in BY.values()]
    return "; ".join(reasons) if all(reasons) else None


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """Those of the transpositions that can."""
    moved = _permutation(problem)
    return [Config(name, config) for name, module in BY.items() if module.supports(moved) is None
            for config in module.configs(moved, device)]


def estimate(problem, device, config):
    """That of the transposition."""
    return BY[config.by].estimate(_permutation(problem), device, config.config)


def build(problem, device, config, source=("columns", 0), target=("x", 0)):
    """Its launch. `source` and `target`: the names of the two pointers, and byte offsets to them."""
    return BY[config.by].build(_permutation(problem), device, config.config, source=source, target=target)


ALGORITHM = Algorithm(op="col2im", name="permuted", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs)
