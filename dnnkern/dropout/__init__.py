"""Dropout: elements set to zero at random, and the gradient, which remembers them as one bit each; arrays of random numbers."""
from ..engine.dropout_bits import drawn
from ..host import seeds
from ..host.choices import one_of
from ..host.front import Operation, public
from ..host.scalars import number, shares
from ._problem import DropoutGradientProblem, DropoutProblem, make_backward, make_forward
from ._random_problem import DISTRIBUTIONS, RandomProblem, make_random

__all__ = ["DropoutGradientProblem", "DropoutProblem", "RandomProblem", "dropout_bwd", "dropout_fwd", "random_fill"]

FORWARD = Operation("dropout_fwd", operands=("x", *seeds.ARRAYS), outputs=("y", "mask"), labels=("x", "seed", "offset"),
                    scalars=("seed", "offset", "threshold", "factor"), problem=make_forward, in_place=frozenset({"x"}))
_forward = FORWARD.call
BACKWARD = Operation("dropout_bwd", operands=("dy", "mask"), outputs=("dx",), scalars=("factor",), problem=make_backward,
                     in_place=frozenset({"dy"}))
_backward = BACKWARD.call
RANDOM = Operation("random_fill", operands=("x", *seeds.ARRAYS), outputs=("y",), labels=("x", "seed", "offset"),
                   scalars=("seed", "offset", "first", "second"), problem=make_random, in_place=frozenset({"x"}))
_random = RANDOM.call


@public
def dropout_fwd(x, p, seed, *, offset=0, out=None, workspace=None, stream=None, **choice):
    """Dropout: zero each element with probability p and divide the others by 1 - p: ``y = keep * x / (1 - p)``.

    Parameters
    ----------
    x : array
        float64, float32, float16 or bfloat16; at most eight dimensions, arbitrary strides.
    p : float
        In [0, 1). Rounded to a multiple of 2**-16 below 1.
    seed, offset : int, or int64 array of one element
        64 bits. An array is on x's device and read by the kernel: a replayed CUDA graph uses a new mask once it has changed. The
        mask is a function of seed, offset and an element's position in x, in the order of its dimensions: for independent masks use
        different offsets.
    out : tuple (y, mask)
        Written and returned. y has arbitrary strides and may be exactly x; mask is contiguous.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    y : array, of x's framework
        Contiguous, unless `out` is given. Multiplied by ``1 / (1 - p)`` in float32 (float64 for float64) and rounded once; dropped
        elements are 0 even if they were NaN or infinite.
    mask : uint8 array (ceil(x.size / 8),)
        Element i of x is kept if bit ``i % 8`` of ``mask[i // 8]`` is set, as in `numpy.packbits` with ``bitorder="little"``. Bits past the
        last element are 0.

    Raises
    ------
    ValueError
        A probability outside [0, 1), a seed or an offset of more than 64 bits, an `out` of another shape or that partly overlaps x.
    TypeError
        Unsupported dtypes, a seed or offset that is neither an integer nor an int64 array, objects that are not device arrays, an immutable
        `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic: the same mask from every algorithm, launch and device, and in the simulator; `dnnkern.device.philox` generates four words
    per eight elements. Mirrors cudnnDropoutForward, and the Philox dropout of cuDNN's and oneDNN's graphs.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> y, mask = dnnkern.dropout_fwd(np.arange(1, 11, dtype=np.float32), 0.5, seed=7)
    >>> y
    array([ 0.,  4.,  6.,  8., 10.,  0., 14.,  0., 18.,  0.], dtype=float32)
    >>> np.unpackbits(mask, bitorder="little")[:10]
    array([0, 1, 1, 1, 1, 0, 1, 0, 1, 0], dtype=uint8)
    """
    threshold, factor = drawn(*shares("dropout_fwd", p=p))
    arrays, words = seeds.split("dropout_fwd", seed, offset)
    return _forward((x, *arrays), out, (), (*words, threshold, factor), workspace, stream, choice)


@public
def dropout_bwd(dy, mask, p, *, out=None, workspace=None, stream=None, **choice):
    """The gradient of `dropout_fwd`: ``dx = keep * dy / (1 - p)``.

    Parameters
    ----------
    dy : array
        Gradient of the result; dtypes and strides as in `dropout_fwd`.
    mask : uint8 array (ceil(dy.size / 8),), packed
        As returned by `dropout_fwd`.
    p : float
        As passed to `dropout_fwd`.
    out : array of dy's shape and dtype
        Output, written and returned; arbitrary strides. May be exactly dy.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    dx : array, of dy's framework
        Packed, unless `out` is given; computed as `dropout_fwd` does.

    Raises
    ------
    ValueError
        A probability outside [0, 1), a mask of another length, an `out` of another shape or that partly overlaps an operand.
    TypeError, NotSupported
        As `dropout_fwd`.

    Notes
    -----
    Deterministic. Mirrors cudnnDropoutBackward.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> dnnkern.dropout_bwd(np.ones(5, np.float32), np.array([0b10110], np.uint8), 0.5)
    array([0., 2., 2., 0., 2.], dtype=float32)
    """
    _, factor = drawn(*shares("dropout_bwd", p=p))
    return _backward((dy, mask), out, (), (factor,), workspace, stream, choice)


@public
def random_fill(x, distribution, seed, *, offset=0, low=0.0, high=1.0, mean=0.0, std=1.0, p=0.5, out=None, workspace=None, stream=None,
                **choice):
    """Fill an array with random numbers, in place.

    Parameters
    ----------
    x : array
        float64, float32, float16 or bfloat16; at most eight dimensions, arbitrary strides but 0.
    distribution : "uniform", "normal" or "bernoulli"
        Uniform in (low, high]; normal, of mean `mean` and standard deviation `std`; or 1 with probability `p`, else 0.
    seed, offset : int, or int64 array of one element
        As in `dropout_fwd`: a number is a function of seed, offset and the element's position in x, in the order of its dimensions.
    low, high, mean, std, p : float
        Of the distribution that has them; p is met to a multiple of 2**-24 below it.
    out : array
        Written and returned instead of x, with its shape and dtype; arbitrary strides. May be exactly x; other overlap is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    x : array
        The same object, or `out`. Computed in float32, from 24 random bits, and rounded once: of a uniform number `low` may be the result
        of that rounding.

    Raises
    ------
    ValueError
        An unknown distribution, a `high` below `low`, a negative `std`, a probability outside [0, 1], a seed or an offset of more than 64
        bits, elements of x that share an address, an `out` of another shape or that partly overlaps x.
    TypeError
        Unsupported dtypes, a seed or offset that is neither an integer nor an int64 array, objects that are not device arrays, an immutable
        array.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic: the same float32 from every algorithm, launch and device, and in the simulator. Element i has word ``i % 4`` of number
    `offset` of the subsequence ``i // 4`` of `dnnkern.device.philox` under the key `seed`; of normal numbers words 0 and 1, and 2 and 3,
    make a pair each, by Box and Muller's method. Mirrors the operation RNG of cuDNN's graphs.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x = np.empty(5, np.float32)
    >>> dnnkern.random_fill(x, "uniform", seed=7).round(4)
    array([0.9546, 0.7502, 0.1142, 0.0857, 0.495 ], dtype=float32)
    >>> dnnkern.random_fill(x, "normal", seed=7, mean=10) is x
    True
    """
    name = "random_fill"
    given = {key: number(name, key, value) for key, value in (("low", low), ("high", high), ("mean", mean), ("std", std), ("p", p))}
    if not given["high"] >= given["low"]:
        raise ValueError(f"{name}: high={high} with low={low}; expected it as large at least")
    if not given["std"] >= 0:
        raise ValueError(f"{name}: std={std}; expected 0 at least")
    if not 0 <= given["p"] <= 1:
        raise ValueError(f"{name}: p={p}; expected 0 to 1")
    numbers = numbers_of(one_of(name, "distribution", distribution, DISTRIBUTIONS), **given)
    arrays, words = seeds.split(name, seed, offset)
    return _random((x, *arrays), x if out is None else out, (distribution,), (*words, *numbers), workspace, stream, choice)


def numbers_of(distribution, low=0.0, high=1.0, mean=0.0, std=1.0, p=0.5):
    """The scalars `first` and `second` of a distribution."""
    return {"normal": (mean, std), "bernoulli": (p, 0.0)}.get(distribution, (low, high - low))
