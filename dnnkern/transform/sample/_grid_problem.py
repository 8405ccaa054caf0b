"""The problems of sampling images at the positions of a grid, and of grids that are affine maps, with their gradients.

An image of two dimensions is one of three whose depth is 1: canonical strides are those of (n, c, d, h, w), and a grid's last dimension
names w, then h, then d.
"""
from dataclasses import dataclass

from ...host.canonical import check_output, sizes_text
from ...host.choices import one_of
from ...host.dtypes import compute_dtype
from ...host.products import FLOATS
from ...host.scalars import flag
from ...host.tensor import Tensor
from ...host.window import check_shape

SAMPLES, AFFINES = ("grid_sample_fwd", "grid_sample_bwd"), ("affine_grid_fwd", "affine_grid_bwd")
SAMPLE_MODES, PADDINGS = ("bilinear", "nearest"), ("zeros", "border", "reflection")


class _Sample:
    """What both directions of grid_sample share."""

    def _check(self):
        op, x, grid = self.op, self.x, self.grid
        one_of(op, "mode", self.mode, SAMPLE_MODES)
        one_of(op, "padding_mode", self.padding_mode, PADDINGS)
        flag(op, "align_corners", self.align_corners)
        if x.dtype not in FLOATS:
            raise TypeError(f"{op}: x is {x.dtype}; expected one of {', '.join(FLOATS)}")
        if x.ndim not in (4, 5):
            raise ValueError(f"{op}: x has shape {x.shape}; expected (N, C, H, W) or (N, C, D, H, W)")
        if grid.dtype not in (x.dtype, self.compute):
            raise TypeError(f"{op}: grid is {grid.dtype}, x is {x.dtype}; expected {x.dtype}"
                            + f" or {self.compute}" * (self.compute != x.dtype))
        dims = x.ndim - 2
        if grid.ndim != x.ndim or grid.shape[0] != x.shape[0] or grid.shape[-1] != dims:
            raise ValueError(f"{op}: grid has shape {grid.shape}, x {x.shape}; expected ({x.shape[0]}, {'D, ' * (dims == 3)}H, W, {dims})")
        if 0 in x.shape[2:]:
            raise ValueError(f"{op}: x has shape {x.shape}, no pixels to sample")
        wanted = (*x.shape[:2], *grid.shape[1:-1])
        if self.is_forward:
            check_output(op, self.y, wanted, x.dtype)
            return
        if self.dy.dtype != x.dtype:
            raise TypeError(f"{op}: dy is {self.dy.dtype}, x is {x.dtype}; expected the same dtype")
        if self.dy.shape != wanted:
            raise ValueError(f"{op}: dy has shape {self.dy.shape}; expected {wanted}")
        check_output(op, self.dx, x.shape, x.dtype)
        check_output(op, self.dgrid, grid.shape, grid.dtype)

    @property
    def is_forward(self):
        return self.op == SAMPLES[0]

    @property
    def dims(self):
        """Spatial dimensions."""
        return self.x.ndim - 2

    @property
    def channels(self):
        return self.x.shape[1]

    @property
    def image(self):
        """(D, H, W) of the image."""
        return (1,) * (3 - self.dims) + self.x.shape[2:]

    @property
    def out(self):
        """(D, H, W) of the grid."""
        return (1,) * (3 - self.dims) + self.grid.shape[1:-1]

    @property
    def compute(self):
        """What is computed in."""
        return compute_dtype(self.x.dtype)

    @property
    def scalar_type(self):
        return self.compute

    flops = 0

    def strides_of(self, t):
        """Element strides of an image along (n, c, d, h, w)."""
        return (*t.strides[:2], *(0,) * (3 - self.dims), *t.strides[2:])

    def grid_strides(self, t):
        """Element strides of a grid along (n, d, h, w, coordinate)."""
        return (t.strides[0], *(0,) * (3 - self.dims), *t.strides[1:])

    @property
    def is_empty(self):
        return not any(t.size for t in self.outputs)

    @property
    def is_wide(self):
        """Whether an element's offset in an array, counted in words of up to 4 bytes, does not fit 32 bits."""
        arrays = (self.x, self.grid, *self.outputs, *(() if self.is_forward else (self.dy,)))
        return any(max(map(abs, t.extent)) // min(t.itemsize, 4) >= 2 ** 31 for t in arrays)

    def operand_values(self, name):
        """A grid that is an affine map, a little turned."""
        if name != "grid":
            return None
        import numpy as np
        n, *out, dims = self.grid.shape
        positions = np.stack(np.meshgrid(*(np.linspace(-1, 1, k, dtype=np.float32) for k in out), indexing="ij")[::-1], -1)
        turn = np.eye(dims, dtype=np.float32) * np.float32(0.9)
        turn[0, 1], turn[1, 0] = -0.3, 0.3
        from ...host.dtypes import STORAGE, numpy_dtype
        values = (positions @ turn.T).astype(numpy_dtype(self.grid.dtype))
        return np.broadcast_to(values, self.grid.shape).view(STORAGE[self.grid.dtype]) if n else None

    def __str__(self):
        named = (("x", self.x), ("grid", self.grid), *zip(("y",) if self.is_forward else ("dx", "dgrid"), self.outputs))
        strided = "".join(f" {name} strides {t.strides}" for name, t in named if not t.is_packed)
        corners = " align_corners" * self.align_corners
        return (f"{self.op} {sizes_text(self.x.shape)} {self.x.dtype} at {sizes_text(self.grid.shape[1:-1])} {self.mode} "
                f"{self.padding_mode}{corners}{strided}")


@dataclass(frozen=True)
class GridSampleProblem(_Sample):
    """``y[n, c, p, q]``: the image x at the position that ``grid[n, p, q]`` names.

    Attributes
    ----------
    x, grid, y : Tensor
    mode, padding_mode : str
    align_corners : bool
    """
    x: Tensor
    grid: Tensor
    y: Tensor
    mode: str = "bilinear"
    padding_mode: str = "zeros"
    align_corners: bool = False
    op = "grid_sample_fwd"

    def __post_init__(self):
        self._check()

    @property
    def outputs(self):
        return (self.y,)

    @property
    def bytes(self):
        """Bytes that must move: each distinct element read, each written."""
        return self.x.nbytes + self.grid.nbytes + self.y.nbytes


@dataclass(frozen=True)
class GridSampleGradientProblem(_Sample):
    """The gradients of `GridSampleProblem` by its image and by its grid.

    Attributes
    ----------
    dy, x, grid, dx, dgrid : Tensor
    mode, padding_mode : str
    align_corners : bool
    """
    dy: Tensor
    x: Tensor
    grid: Tensor
    dx: Tensor
    dgrid: Tensor
    mode: str = "bilinear"
    padding_mode: str = "zeros"
    align_corners: bool = False
    op = "grid_sample_bwd"

    def __post_init__(self):
        self._check()

    @property
    def outputs(self):
        return self.dx, self.dgrid

    @property
    def bytes(self):
        """Bytes that must move: each distinct element read, each written."""
        return sum(t.nbytes for t in (self.dy, self.x, self.grid, self.dx, self.dgrid))


def _present(op, names, tensors):
    for name, t in zip(names, tensors):
        if t is None:
            raise TypeError(f"{op}: {name}: got NoneType; expected an array")


def make_sample(tensors, out, mode, padding_mode, align_corners, aliases):
    """`GridSampleProblem` of a call."""
    x, grid = tensors
    _present(SAMPLES[0], ("x", "grid"), tensors)
    y = out if out is not None else Tensor.packed((*x.shape[:2], *grid.shape[1:-1]), x.dtype)
    return GridSampleProblem(x, grid, y, mode, padding_mode, align_corners)


def make_sample_gradient(tensors, out, mode, padding_mode, align_corners, aliases):
    """`GridSampleGradientProblem` of a call; `out` is (dx, dgrid)."""
    _present(SAMPLES[1], ("dy", "x", "grid"), tensors)
    dy, x, grid = tensors
    dx, dgrid = out if out is not None else (Tensor.packed(x.shape, x.dtype), Tensor.packed(grid.shape, grid.dtype))
    return GridSampleGradientProblem(dy, x, grid, dx, dgrid, mode, padding_mode, align_corners)


# ---- affine grids

@dataclass(frozen=True)
class AffineGridProblem:
    """``grid[n, p, q] = theta[n] @ (x, y, 1)``, x and y being the positions of a grid from -1 to 1, or the gradient of theta.

    Attributes
    ----------
    op : "affine_grid_fwd" or "affine_grid_bwd"
    theta : Tensor
        (N, dims, dims + 1), or its gradient.
    grid : Tensor
        (N, spatial..., dims), or its gradient.
    align_corners : bool
    """
    op: str
    theta: Tensor
    grid: Tensor
    align_corners: bool = False

    def __post_init__(self):
        op, theta, grid = self.op, self.theta, self.grid
        one_of("AffineGridProblem", "op", op, AFFINES)
        given, name = (theta, "theta") if self.is_forward else (grid, "dgrid")
        if given.dtype not in FLOATS:
            raise TypeError(f"{op}: {name} is {given.dtype}; expected one of {', '.join(FLOATS)}")
        flag(op, "align_corners", self.align_corners)
        if self.is_forward:
            check_output(op, grid, (theta.shape[0], *grid.shape[1:-1], self.dims), theta.dtype)
        else:
            check_output(op, theta, (grid.shape[0], self.dims, self.dims + 1), grid.dtype)

    @property
    def is_forward(self):
        return self.op == AFFINES[0]

    @property
    def dims(self):
        """Spatial dimensions."""
        return self.grid.ndim - 2

    @property
    def out(self):
        """(D, H, W) of the grid."""
        return (1,) * (3 - self.dims) + self.grid.shape[1:-1]

    @property
    def positions(self):
        """Of one grid."""
        return self.out[0] * self.out[1] * self.out[2]

    @property
    def compute(self):
        """What is computed in."""
        return compute_dtype(self.theta.dtype)

    @property
    def scalar_type(self):
        return self.compute

    flops = 0

    @property
    def dgrid(self):
        return self.grid

    @property
    def bases(self):
        """(step, first) of the positions along d, h, w: position i lies at ``first + i * step``."""
        found = []
        for n in self.out:
            if self.align_corners:
                found += [2 / (n - 1), -1.0] if n > 1 else [0.0, 0.0]
            else:
                found += [2 / n, 1 / n - 1] if n else [0.0, 0.0]
        return tuple(found)

    @property
    def grid_strides(self):
        """Element strides of the grid along (n, d, h, w, coordinate)."""
        return (self.grid.strides[0], *(0,) * (3 - self.dims), *self.grid.strides[1:])

    @property
    def outputs(self):
        return (self.grid,) if self.is_forward else (self.theta,)

    @property
    def is_empty(self):
        return self.outputs[0].size == 0

    @property
    def bytes(self):
        """Bytes that must move: each distinct element read, each written."""
        return self.theta.nbytes + self.grid.nbytes

    def __str__(self):
        strided = "".join(f" {name} strides {t.strides}" for name, t in (("theta", self.theta), ("grid", self.grid)) if not t.is_packed)
        return f"{self.op} {sizes_text(self.grid.shape[:-1])} {self.theta.dtype}{' align_corners' * self.align_corners}{strided}"


def make_affine(tensors, out, size, align_corners, aliases):
    """`AffineGridProblem` of a forward call; `size` is the shape (N, C, spatial...) of the images to be sampled."""
    op = AFFINES[0]
    (theta,) = tensors
    _present(op, ("theta",), tensors)
    size = check_shape(op, "size", size)
    if len(size) not in (4, 5):
        raise ValueError(f"{op}: size={size}; expected (N, C, H, W) or (N, C, D, H, W)")
    dims = len(size) - 2
    if theta.shape != (size[0], dims, dims + 1):
        raise ValueError(f"{op}: theta has shape {theta.shape}; expected {(size[0], dims, dims + 1)} for size={size}")
    return AffineGridProblem(op, theta, out if out is not None else Tensor.packed((size[0], *size[2:], dims), theta.dtype), align_corners)


def make_affine_gradient(tensors, out, align_corners, aliases):
    """`AffineGridProblem` of a backward call."""
    op = AFFINES[1]
    (dgrid,) = tensors
    _present(op, ("dgrid",), tensors)
    if dgrid.ndim not in (4, 5) or dgrid.shape[-1] != dgrid.ndim - 2:
        raise ValueError(f"{op}: dgrid has shape {dgrid.shape}; expected (N, H, W, 2) or (N, D, H, W, 3)")
    dims = dgrid.ndim - 2
    dtheta = out if out is not None else Tensor.packed((dgrid.shape[0], dims, dims + 1), dgrid.dtype)
    return AffineGridProblem(op, dtheta, dgrid, align_corners)
