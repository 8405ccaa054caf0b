"""Grids of places, and images sampled at them: the public functions."""
from ...host.front import Operation, public
from ...host.scalars import flag, ints
from ._grid_problem import make_affine, make_affine_gradient, make_sample, make_sample_gradient

AFFINE_GRID_FWD = Operation("affine_grid_fwd", operands=("theta",), outputs=("grid",), problem=make_affine)
_affine_forward = AFFINE_GRID_FWD.call
AFFINE_GRID_BWD = Operation("affine_grid_bwd", operands=("dgrid",), outputs=("dtheta",), problem=make_affine_gradient)
_affine_backward = AFFINE_GRID_BWD.call
GRID_SAMPLE_FWD = Operation("grid_sample_fwd", operands=("x", "grid"), outputs=("y",), problem=make_sample)
_sample_forward = GRID_SAMPLE_FWD.call
GRID_SAMPLE_BWD = Operation("grid_sample_bwd", operands=("dy", "x", "grid"), outputs=("dx", "dgrid"), problem=make_sample_gradient)
_sample_backward = GRID_SAMPLE_BWD.call


@public
def affine_grid_fwd(theta, size, *, align_corners=False, out=None, workspace=None, stream=None, **choice):
    """A grid of the positions to which an affine map takes each pixel: ``grid[n, p, q] = theta[n] @ (x[q], y[p], 1)``.

    x and y are pixel centres and run from -1 to 1 along the width and the height; with `align_corners` the outermost centres are at -1
    and 1.

    Parameters
    ----------
    theta : array (N, 2, 3), or (N, 3, 4) for images with a depth
        float64, float32, float16 or bfloat16; arbitrary strides.
    size : tuple of int
        (N, C, H, W) or (N, C, D, H, W): the shape of the sampled images; C does not matter.
    align_corners : bool
    out : array
        Output, written and returned; arbitrary strides. Overlap with theta is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    grid : array (N, H, W, 2) or (N, D, H, W, 3), of theta's framework and dtype
        Coordinates along the width first. Computed in float32 (float64 for float64), rounded once.

    Raises
    ------
    ValueError
        A theta that does not match the size, an `out` of another shape or that overlaps theta.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic. Mirrors cudnnSpatialTfGridGeneratorForward, and ``torch.nn.functional.affine_grid``.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> theta = np.array([[[1, 0, 0.5], [0, 1, 0]]], np.float32)
    >>> dnnkern.affine_grid_fwd(theta, (1, 1, 1, 2))
    array([[[[0., 0.],
             [1., 0.]]]], dtype=float32)
    """
    parameters = ints("affine_grid_fwd", "size", size), flag("affine_grid_fwd", "align_corners", align_corners)
    return _affine_forward((theta,), out, parameters, (), workspace, stream, choice)


@public
def affine_grid_bwd(dgrid, *, align_corners=False, out=None, workspace=None, stream=None, **choice):
    """The gradient of `affine_grid_fwd` with respect to theta.

    Parameters
    ----------
    dgrid : array (N, H, W, 2) or (N, D, H, W, 3)
        Gradient of `affine_grid_fwd`'s result.
    align_corners : bool
        As passed to `affine_grid_fwd`.
    out : array
        Output, written and returned; arbitrary strides. Overlap with dgrid is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    dtheta : array (N, 2, 3) or (N, 3, 4), of dgrid's framework and dtype
        Summed in float32 (float64 for float64), rounded once.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `affine_grid_fwd`.

    Notes
    -----
    Deterministic. Mirrors cudnnSpatialTfGridGeneratorBackward.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> dnnkern.affine_grid_bwd(np.ones((1, 2, 2, 2), np.float32))
    array([[[0., 0., 4.],
            [0., 0., 4.]]], dtype=float32)
    """
    return _affine_backward((dgrid,), out, (flag("affine_grid_bwd", "align_corners", align_corners),), (), workspace, stream, choice)


@public
def grid_sample_fwd(x, grid, *, mode="bilinear", padding_mode="zeros", align_corners=False, out=None, workspace=None, stream=None,
                    **choice):
    """Sample images at the positions of a grid: ``y[n, c, p, q]`` is image n, channel c, at ``grid[n, p, q]``.

    Coordinates run from -1 to 1 over the image, the first along the width: from border to border, or with `align_corners` from the centre
    of the first pixel to that of the last.

    Parameters
    ----------
    x : array (N, C, H, W) or (N, C, D, H, W)
        float64, float32, float16 or bfloat16; arbitrary strides.
    grid : array (N, H', W', 2) or (N, D', H', W', 3)
        Of x's dtype, or float32 with 16-bit images.
    mode : "bilinear" or "nearest"
        Interpolate the pixels around the position (trilinear in three dimensions), or take the nearest one, of two the even one.
    padding_mode : "zeros", "border" or "reflection"
        Outside the image: zeros, the border's pixels, or the mirrored image, reflected at the outer edges of its pixels or with
        `align_corners` at their centres.
    align_corners : bool
    out : array
        Output, written and returned; arbitrary strides. Overlap with an operand is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    y : array (N, C, H', W') or (N, C, D', H', W'), of x's framework and dtype
        Computed in float32 (float64 for float64), rounded once. A NaN coordinate is before the image.

    Raises
    ------
    ValueError
        Shapes that do not match, an image without pixels, an unknown mode, an `out` of another shape or that overlaps an operand.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic. No coordinate makes it read outside the image. Mirrors cudnnSpatialTfSamplerForward, and
    ``torch.nn.functional.grid_sample``.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x = np.array([[[[0, 4], [8, 12]]]], np.float32)
    >>> grid = np.array([[[[0, 0], [0.5, -0.5], [-1, -1]]]], np.float32)
    >>> dnnkern.grid_sample_fwd(x, grid)
    array([[[[6., 4., 0.]]]], dtype=float32)
    >>> dnnkern.grid_sample_fwd(x + 8, grid, padding_mode="border")
    array([[[[14., 12.,  8.]]]], dtype=float32)
    """
    parameters = mode, padding_mode, flag("grid_sample_fwd", "align_corners", align_corners)
    return _sample_forward((x, grid), out, parameters, (), workspace, stream, choice)


@public
def grid_sample_bwd(dy, x, grid, *, mode="bilinear", padding_mode="zeros", align_corners=False, out=None, workspace=None, stream=None,
                    **choice):
    """The gradients of `grid_sample_fwd` with respect to the images and the grid.

    Parameters
    ----------
    dy : array (N, C, H', W') or (N, C, D', H', W')
        Gradient of `grid_sample_fwd`'s result, of x's dtype.
    x, grid, mode, padding_mode, align_corners
        As passed to `grid_sample_fwd`.
    out : (dx, dgrid)
        Output, written and returned; arbitrary strides. Overlap with an operand is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    dx : array of x's shape and dtype, of dy's framework
        Each pixel gathers from the samples around it, in an order that depends on the grid; summed in float32 (float64 for float64),
        rounded once.
    dgrid : array of the grid's shape and dtype
        0 with "nearest", and where a coordinate was clamped to the border.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `grid_sample_fwd`.

    Notes
    -----
    Deterministic, which cudnnSpatialTfSamplerBackward is not: without atomics, unless `allow` has `Note.NONDETERMINISTIC`, which admits an
    algorithm whose time does not depend on the grid.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x, grid = np.array([[[[0, 4], [8, 12]]]], np.float32), np.array([[[[0, 0], [0.5, -0.5]]]], np.float32)
    >>> dx, dgrid = dnnkern.grid_sample_bwd(np.ones((1, 1, 1, 2), np.float32), x, grid)
    >>> dx[0, 0], dgrid[0, 0, 0]
    (array([[0.25, 1.25],
           [0.25, 0.25]], dtype=float32), array([4., 8.], dtype=float32))
    """
    parameters = mode, padding_mode, flag("grid_sample_bwd", "align_corners", align_corners)
    return _sample_backward((dy, x, grid), out, parameters, (), workspace, stream, choice)
