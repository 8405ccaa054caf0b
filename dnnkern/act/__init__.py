"""Functions of single elements: activations and their gradients, arithmetic, comparisons, gated linear units."""
from ..device.activation import PARAMETERS
from ..dispatch import CHOICE
from ..host.front import Operation, public
from ..host.scalars import flag, integer, ints, number
from ..host.suggest import unknown_keyword
from ._elementwise import BinaryProblem, UnaryProblem, make_binary, make_unary
from ._glu import GluProblem, make_glu
from ._problem import ActivationProblem, make_activation
from ._scaled import AddProblem, ScaleProblem, make_add, make_scale

__all__ = ["ActivationProblem", "AddProblem", "BinaryProblem", "GluProblem", "ScaleProblem", "UnaryProblem", "activation_bwd",
           "activation_fwd", "add_tensor", "binary", "glu_bwd", "glu_fwd", "scale_tensor", "unary"]


ACTIVATION_FWD = Operation("activation_fwd", operands=("x", "slope"), outputs=("y",), in_place=frozenset({"x"}),
                           problem=lambda *call, **more: make_activation("activation_fwd", *call, **more))
_activation_fwd = ACTIVATION_FWD.call
_BACKWARD = {"operands": ("dy", "x", "slope"), "in_place": frozenset({"dy", "x"}),
             "problem": lambda *call, **more: make_activation("activation_bwd", *call, **more)}
ACTIVATION_BWD = Operation("activation_bwd", outputs=("dx", "dslope"), **_BACKWARD)
_with_dslope = ACTIVATION_BWD.call
_activation_bwd = Operation("activation_bwd", outputs=("dx",), **_BACKWARD).call
UNARY = Operation("unary", operands=("x",), outputs=("y",), problem=make_unary, in_place=frozenset({"x"}))
_unary = UNARY.call
BINARY = Operation("binary", operands=("a", "b", "mask"), outputs=("y",), problem=make_binary, in_place=frozenset({"a", "b"}))
_binary = BINARY.call
GLU_FWD = Operation("glu_fwd", operands=("x",), outputs=("y",), problem=lambda *call, **more: make_glu("glu_fwd", *call, **more))
_glu_fwd = GLU_FWD.call
GLU_BWD = Operation("glu_bwd", operands=("dy", "x"), outputs=("dx",), problem=lambda *call, **more: make_glu("glu_bwd", *call, **more))
_glu_bwd = GLU_BWD.call
SCALE_TENSOR = Operation("scale_tensor", operands=("x",), outputs=("y",), scalars=("alpha",), problem=make_scale, in_place=frozenset({"x"}))
_scale_tensor = SCALE_TENSOR.call
ADD_TENSOR = Operation("add_tensor", operands=("a", "c"), outputs=("y",), scalars=("alpha", "beta"), problem=make_add,
                       in_place=frozenset({"c"}))
_add_tensor = ADD_TENSOR.call


@public
def activation_fwd(x, mode, *, slope=None, out=None, workspace=None, stream=None, **parameters):
    """Elementwise activation: ``y = f(x)``.

    Parameters
    ----------
    x : array
        float64, float32, float16 or bfloat16, any shape, arbitrary strides.
    mode : str or Activation
        With its parameters and their defaults:

        ============  ==========================================================================================
        identity      x
        relu          x above `lower_clip` (0), else lower_clip + `negative_slope` (0) times the distance to it; at most `upper_clip`
                      (infinity)
        leaky_relu    x if x > 0 else `negative_slope` (0.01) x
        prelu         x if x > 0 else `slope` x, with an array `slope`
        elu           x if x > 0 else `alpha` (1) (exp(x) - 1)
        selu          `gamma` (1.0507010) (x if x > 0 else `alpha` (1.6732632) (exp(x) - 1))
        celu          x if x > 0 else `alpha` (1) (exp(x / alpha) - 1)
        sigmoid       1 / (1 + exp(-x))
        hard_sigmoid  `alpha` (1/6) x + `beta` (1/2), between 0 and 1
        tanh          tanh(x)
        softplus      log(1 + exp(`beta` x)) / beta, beta being 1 by default
        softsign      x / (1 + abs(x))
        gelu          x (1 + erf(x / sqrt(2))) / 2
        gelu_tanh     x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3))) / 2
        swish, silu   x / (1 + exp(-`beta` x)), beta being 1 by default
        hard_swish    x hard_sigmoid(x)
        mish          x tanh(softplus(x))
        ============  ==========================================================================================
    slope : array
        For prelu: of x's dtype, or float32 with 16-bit x; it broadcasts to x as in NumPy: (C, 1, 1) for channels first.
    out : array
        Output, written and returned; arbitrary strides. May be exactly x; other overlap is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    y : array, of x's framework, shape and dtype
        Computed in float32 (float64 for float64), rounded once. NaN gives NaN, infinity the limit of the function.

    Raises
    ------
    ValueError
        An unknown mode, invalid parameters, a slope that does not broadcast, an `out` of another shape or that partly overlaps an operand.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic. Mirrors cudnnActivationForward and the forward activations among cuDNN's pointwise operations.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> dnnkern.activation_fwd(np.array([-2, 0, 3, 9], np.float32), "relu", upper_clip=6)
    array([0., 0., 3., 6.], dtype=float32)
    >>> dnnkern.activation_fwd(np.array([[-2, 4], [-2, -4]], np.float32), "prelu", slope=np.array([0.5, 0.25], np.float32))
    array([[-1.,  4.],
           [-1., -1.]], dtype=float32)
    """
    parameters, choice = _parted("activation_fwd", parameters)
    return _activation_fwd((x,) if slope is None else (x, slope), out, (mode, parameters), (), workspace, stream, choice)


@public
def activation_bwd(dy, x, mode, *, slope=None, slope_gradient=False, out=None, workspace=None, stream=None, **parameters):
    """The gradient of an activation: ``dx = dy f'(x)``.

    Parameters
    ----------
    dy, x : array
        x is the activation's input; dy of its shape and dtype.
    mode, slope, parameters
        As in `activation_fwd`.
    slope_gradient : bool
        For prelu: return (dx, dslope).
    out : array, or (dx, dslope)
        Output, written and returned; arbitrary strides. dx may be exactly dy or x; other overlap is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    dx : array, of dy's framework, x's shape and dtype
        At a kink the derivative is that of the clipped side; for relu at 0 its slope.
    dslope : array, of the slope's shape and dtype
        With `slope_gradient`: the sum of dy x where x <= 0, over the dimensions in which the slope broadcasts; 0 without elements.
        Accumulated in float32 (float64 for float64), rounded once.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `activation_fwd`.

    Notes
    -----
    Deterministic, dslope too, which needs a workspace of x's size in the compute type. Mirrors cudnnActivationBackward and the
    backward activations among cuDNN's pointwise operations.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x, dy = np.array([-1, 2, 7], np.float32), np.array([10, 20, 30], np.float32)
    >>> dnnkern.activation_bwd(dy, x, "relu", negative_slope=0.5, upper_clip=6)
    array([ 5., 20.,  0.], dtype=float32)
    >>> dnnkern.activation_bwd(dy, x, "prelu", slope=np.array([0.5], np.float32), slope_gradient=True)
    (array([ 5., 20., 30.], dtype=float32), array([-10.], dtype=float32))
    """
    slope_gradient = flag("activation_bwd", "slope_gradient", slope_gradient)
    operands = (dy, x) if slope is None else (dy, x, slope)
    parameters, choice = _parted("activation_bwd", parameters)
    if slope_gradient:
        return _with_dslope(operands, out, (mode, parameters, True), (), workspace, stream, choice)
    return _activation_bwd(operands, out, (mode, parameters), (), workspace, stream, choice)


def _parted(function, keywords):
    """(parameters of an activation, what decides the algorithm)."""
    if not keywords:
        return (), keywords
    choice = {name: keywords.pop(name) for name in CHOICE if name in keywords}
    for name in keywords:
        if not any(name in parameters for parameters in PARAMETERS.values()):
            raise TypeError(unknown_keyword(function, name))
    return tuple([(name, number(function, name, value)) for name, value in keywords.items()]), choice


@public
def unary(x, op, *, axis=None, out=None, workspace=None, stream=None, **choice):
    """Elementwise function of one array.

    Parameters
    ----------
    x : array
        float64, float32, float16, bfloat16, int8, uint8 or int32 (bool too for logical_not), any shape, arbitrary strides.
    op : str
        identity, neg, abs, sqrt, rsqrt (1 / sqrt), reciprocal (1 / x), exp, log, erf, sin, cos, tan, ceil, floor, logical_not, or
        gen_index: the index of each element along `axis`.
    axis : int
        For gen_index only.
    out : array
        Output, written and returned; arbitrary strides. May be exactly x; other overlap is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    y : array, of x's framework and shape
        bool for logical_not, int32 for gen_index, else of x's dtype. Computed in float32 (float64 for float64 and int32) and rounded once,
        integers to nearest, saturating. NaN counts as true.

    Raises
    ------
    ValueError
        An unknown function, an axis that is missing or out of range, an `out` of another shape or that partly overlaps x.
    TypeError, NotSupported
        As `activation_fwd`.

    Notes
    -----
    Deterministic. Mirrors cuDNN's pointwise operations of one tensor.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> dnnkern.unary(np.array([4, 0.25], np.float32), "rsqrt")
    array([0.5, 2. ], dtype=float32)
    >>> dnnkern.unary(np.zeros((2, 3), np.float32), "gen_index", axis=-1)
    array([[0, 1, 2],
           [0, 1, 2]], dtype=int32)
    """
    return _unary((x,), out, (op, ints("unary", "axis", axis)), (), workspace, stream, choice)


@public
def binary(a, b, op, *, mask=None, out=None, workspace=None, stream=None, **choice):
    """Elementwise function of two arrays.

    Parameters
    ----------
    a, b : array
        As in `unary`, of one dtype (bool too for logical functions and binary_select); they broadcast as in NumPy.
    op : str
        add, sub, mul, div, max, min, pow, mod (the remainder with a's sign), atan2, add_square (a + b**2); cmp_eq, cmp_neq, cmp_gt,
        cmp_ge, cmp_lt, cmp_le; logical_and, logical_or; binary_select: a where the mask is true, else b. bias and scale are add and mul.
    mask : array
        For binary_select only: bool or uint8; it broadcasts too.
    out : array
        Output, written and returned; arbitrary strides. May be exactly a or b; other overlap is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    y : array, of a's framework
        bool for comparisons and logical functions, else of the operands' dtype. Computed and rounded as in `unary`. max and min are NaN
        if an operand is; comparisons with NaN are false, except cmp_neq.

    Raises
    ------
    ValueError
        An unknown function, shapes that do not broadcast, an `out` of another shape or that partly overlaps an operand.
    TypeError
        Unsupported dtypes, a mask that is missing or unused, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic. Mirrors cuDNN's pointwise operations of two tensors and BINARY_SELECT, and cudnnOpTensor.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> a, b = np.array([[1, 2], [3, 4]], np.float32), np.array([2, 3], np.float32)
    >>> dnnkern.binary(a, b, "add_square")
    array([[ 5., 11.],
           [ 7., 13.]], dtype=float32)
    >>> dnnkern.binary(a, b, "cmp_gt")
    array([[False, False],
           [ True,  True]])
    """
    return _binary((a, b) if mask is None else (a, b, mask), out, (op,), (), workspace, stream, choice)


@public
def glu_fwd(x, *, axis=-1, gate="sigmoid", out=None, workspace=None, stream=None, **choice):
    """Gated linear unit: ``y = value * f(gate)``; value and gate are the first and the second half of x along an axis.

    Parameters
    ----------
    x : array
        float64, float32, float16 or bfloat16, arbitrary strides; an even extent along the axis.
    axis : int
    gate : "sigmoid", "swish" (also "silu") or "gelu"
        f. SwiGLU is "swish".
    out : array
        Output, written and returned; arbitrary strides. Overlap with x is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    y : array, of x's framework and dtype
        With half of x's extent along the axis. Computed in float32 (float64 for float64), rounded once.

    Raises
    ------
    ValueError
        An odd extent, an axis out of range, an unknown gate, an `out` of another shape or that overlaps x.
    TypeError, NotSupported
        As `activation_fwd`.

    Notes
    -----
    Deterministic. Mirrors `torch.nn.functional.glu` and MIOpen's GLU; the order of the halves is theirs. Shazeer, "GLU variants
    improve transformer" (2020).

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> dnnkern.glu_fwd(np.array([[4, 6, 0, 100]], np.float32))
    array([[2., 6.]], dtype=float32)
    """
    return _glu_fwd((x,), out, (integer("glu_fwd", "axis", axis), gate), (), workspace, stream, choice)


@public
def glu_bwd(dy, x, *, axis=-1, gate="sigmoid", out=None, workspace=None, stream=None, **choice):
    """The gradient of `glu_fwd`: of the halves of x, ``dy f(gate)`` and ``dy value f'(gate)``.

    Parameters
    ----------
    dy : array
        Of the shape of `glu_fwd`'s result and of x's dtype.
    x, axis, gate
        As in `glu_fwd`.
    out : array
        Output, written and returned; arbitrary strides. Overlap with dy or x is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    dx : array, of dy's framework, x's shape and dtype

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `glu_fwd`.

    Notes
    -----
    Deterministic.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> dnnkern.glu_bwd(np.array([[1, 2]], np.float32), np.array([[4, 6, 0, 0]], np.float32))
    array([[0.5, 1. , 1. , 3. ]], dtype=float32)
    """
    return _glu_bwd((dy, x), out, (integer("glu_bwd", "axis", axis), gate), (), workspace, stream, choice)


@public
def scale_tensor(x, alpha, *, out=None, workspace=None, stream=None, **choice):
    """Scale an array in place: ``x *= alpha``.

    Parameters
    ----------
    x : array
        float64, float32, float16, bfloat16, int8, uint8 or int32, any shape, arbitrary strides but 0.
    alpha : float
        Multiplied in float32, or in float64 for float64 and int32.
    out : array
        Written and returned in place of x, with its shape and dtype; arbitrary strides. May be exactly x; other overlap is an
        error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    x : array
        The same object, or `out`. Rounded once, integers to nearest, saturating.

    Raises
    ------
    ValueError
        Elements of x that share an address, an `out` of another shape or that partly overlaps x.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable array.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic. Mirrors cudnnScaleTensor.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x = np.array([1, -2, 3], np.float32)
    >>> dnnkern.scale_tensor(x, 0.5) is x
    True
    >>> x
    array([ 0.5, -1. ,  1.5], dtype=float32)
    """
    return _scale_tensor((x,), x if out is None else out, (), (number("scale_tensor", "alpha", alpha),), workspace, stream, choice)


@public
def add_tensor(a, c, *, alpha=1.0, beta=1.0, out=None, workspace=None, stream=None, **choice):
    """Add an array to another in place: ``c = alpha * a + beta * c``.

    Parameters
    ----------
    a : array
        float64, float32, float16, bfloat16, int8, uint8 or int32, arbitrary strides; it broadcasts to c's shape as in NumPy: (C, 1, 1) is
        a bias of channels first.
    c : array
        Of a's dtype, arbitrary strides but 0.
    alpha, beta : float
        Multiplied in float32, or in float64 for float64 and int32. If beta is 0, c is not read: NaNs in it do not matter.
    out : array
        Written and returned in place of c, with its shape and dtype; arbitrary strides. May be exactly c; other overlap, with a
        too, is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    c : array
        The same object, or `out`. Rounded once, integers to nearest, saturating.

    Raises
    ------
    ValueError
        A shape that does not broadcast to c's, elements of c that share an address, arrays that overlap.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable array.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic. Mirrors cudnnAddTensor.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> c = np.array([[1, 2], [3, 4]], np.float32)
    >>> dnnkern.add_tensor(np.array([10, 20], np.float32), c, beta=2)
    array([[12., 24.],
           [16., 28.]], dtype=float32)
    """
    alpha, beta = number("add_tensor", "alpha", alpha), number("add_tensor", "beta", beta)
    return _add_tensor((a, c), c if out is None else out, (beta != 0,), (alpha, beta), workspace, stream, choice)
