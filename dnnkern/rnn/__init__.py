"""Recurrent networks: relu, tanh, LSTM and GRU, whole sequences through all layers at once, and the gradients."""
from ..host import seeds
from ..host.front import Operation, public
from ..host.scalars import flag
from ._problem import (OPS, RnnDataProblem, RnnProblem, RnnWeightsProblem, check_lengths, make_data, make_forward, make_weights)
from ._spec import RnnSpec

__all__ = ["RnnDataProblem", "RnnProblem", "RnnSpec", "RnnWeightsProblem", "rnn_bwd_data", "rnn_bwd_weights", "rnn_fwd"]


class _ByResults(Operation):
    """An operation whose results depend on the problem: a front end for each set of them."""
    others = {}

    def of(self, problem):
        """The front end with the results of this problem."""
        return self.others[type(self).key(problem)]


class _Forward(_ByResults):
    key = staticmethod(lambda problem: (problem.cn is not None, problem.training))


class _Data(_ByResults):
    key = staticmethod(lambda problem: problem.dc0 is not None)


_FORWARD = {"operands": ("x", "h0", "c0", "weights", "lengths", *seeds.ARRAYS), "scalars": ("seed", "offset"), "problem": make_forward,
            "labels": ("x", "h0", "c0", "weights", "lengths", "seed", "offset"), "check_values": check_lengths}
_DATA = {"operands": ("dy", "dhn", "dcn", "x", "h0", "c0", "y", "weights", "reserve", "lengths"), "problem": make_data,
         "updates": frozenset({"reserve"}), "check_values": check_lengths}
_forwards = {(cell, training): _Forward(OPS[0], outputs=("y", "hn") + ("cn",) * cell + ("reserve",) * training, **_FORWARD)
             for cell in (True, False) for training in (True, False)}
_backwards = {cell: _Data(OPS[1], outputs=("dx", "dh0") + ("dc0",) * cell, **_DATA) for cell in (True, False)}
_Forward.others, _Data.others = _forwards, _backwards
FORWARD, BACKWARD_DATA = _forwards[True, True], _backwards[True]
BACKWARD_WEIGHTS = Operation(OPS[2], operands=("x", "h0", "y", "reserve", "lengths"), outputs=("dweights",), problem=make_weights,
                             check_values=check_lengths)
_weights = BACKWARD_WEIGHTS.call


@public
def rnn_fwd(spec, x, h0, c0, weights, *, lengths=None, layout="TNC", training=False, seed=0, offset=0, out=None, workspace=None,
            stream=None, **choice):
    """Run sequences through a recurrent network.

    Parameters
    ----------
    spec : RnnSpec
        The network; arrays have its dtype.
    x : array (T, N, input_size), or (N, T, input_size) with layout "NTC"
        T steps of N sequences; arbitrary strides. Steps past a sequence's end are not read.
    h0, c0 : array (num_layers * directions, N, state_size) and (..., hidden_size), or None
        Initial states, by layer, then by direction; None: zeros. c0, the cell states, is for LSTM only.
    weights : array (weight_size,)
        Contiguous; see `RnnSpec.matrices`, `RnnSpec.pack`.
    lengths : int32 array (N,), optional
        Steps of each sequence, 0 to T, in any order; default: T. On the device, and not checked before the launch: see Notes.
    layout : "TNC" or "NTC"
    training : bool
        Keep what the gradients need, and apply dropout.
    seed, offset : int, or int64 array of one element
        64 bits, for dropout. An array is on x's device and read by the kernel: a replayed CUDA graph uses a new mask once it has
        changed. The mask after layer l is that of `dropout_fwd` with this seed and ``offset + l`` for an array (T, N, directions *
        state_size): for independent masks use offsets that differ by `num_layers` or more.
    out : tuple (y, hn[, cn][, reserve])
        Written and returned; y and the states have arbitrary strides.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    y : array (T, N, directions * state_size), or (N, T, ...), of x's framework
        States of the last layer at each step; 0 past a sequence's end.
    hn : array, of h0's shape
        States after the last step of each sequence, which for the backward direction is its first step; the initial states if a sequence
        has no steps.
    cn : array of c0's shape, or None
        LSTM only: the cell states there.
    reserve : array (n,), or None
        In training what `rnn_bwd_data` and `rnn_bwd_weights` need.

    Raises
    ------
    ValueError
        Shapes that do not match, a cell state for a cell without one, an unknown layout; a length out of range with DNNKERN_CHECK=values.
    TypeError
        Dtypes other than the spec's, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic. Sums are in float32 (float64 for float64); states are rounded to the dtype at each step, cell states are not. Lengths
    out of range are clamped. Mirrors cudnnRNNForward.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> spec = dnnkern.RnnSpec("relu", 1, 1, bias="none")
    >>> x, weights = np.array([[[1]], [[2]], [[3]]], np.float32), np.array([1, 0.5], np.float32)
    >>> y, hn, cn, reserve = dnnkern.rnn_fwd(spec, x, None, None, weights)
    >>> y[:, 0, 0]
    array([1.  , 2.5 , 4.25], dtype=float32)
    """
    _check_spec(OPS[0], spec)
    training, lstm = flag("rnn_fwd", "training", training), spec.cell == "lstm"
    arrays, words = seeds.split("rnn_fwd", seed, offset)
    results = iter(_forwards[lstm, training].call((x, h0, c0, weights, lengths, *arrays), out, (spec, layout, training), words, workspace,
                                                  stream, choice))
    return next(results), next(results), next(results) if lstm else None, next(results) if training else None


@public
def rnn_bwd_data(spec, dy, dhn, dcn, x, h0, c0, y, weights, reserve, *, lengths=None, layout="TNC", out=None, workspace=None, stream=None,
                 **choice):
    """The gradients of `rnn_fwd` with respect to x and the initial states.

    Parameters
    ----------
    spec, x, h0, c0, weights, lengths, layout
        As passed to `rnn_fwd`.
    dy : array of y's shape
        Steps past a sequence's end are not read.
    dhn, dcn : arrays of hn's and cn's shape, or None
        None: zeros.
    y, reserve : arrays
        As returned by `rnn_fwd` in training, with the same lengths. The reserve is updated: gradients of the gates' pre-activations
        replace the gates, for `rnn_bwd_weights`. For a second backward pass copy it first, as with cuDNN.
    out : tuple (dx, dh0[, dc0])
        Output, written and returned; arbitrary strides.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    dx : array of x's shape, of dy's framework
        0 past a sequence's end.
    dh0 : array of h0's shape
    dc0 : array of c0's shape, or None
        LSTM only.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `rnn_fwd`.

    Notes
    -----
    Deterministic. Mirrors cudnnRNNBackwardData_v8.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> spec = dnnkern.RnnSpec("relu", 1, 1, bias="none")
    >>> x, weights = np.array([[[1]], [[2]], [[3]]], np.float32), np.array([1, 0.5], np.float32)
    >>> y, hn, _, reserve = dnnkern.rnn_fwd(spec, x, None, None, weights, training=True)
    >>> dx, dh0, _ = dnnkern.rnn_bwd_data(spec, np.ones_like(y), None, None, x, None, None, y, weights, reserve)
    >>> dx[:, 0, 0], dh0[0, 0]
    (array([1.75, 1.5 , 1.  ], dtype=float32), array([0.875], dtype=float32))
    >>> dnnkern.rnn_bwd_weights(spec, x, None, y, reserve)
    array([7.75, 4.  ], dtype=float32)
    """
    _check_spec(OPS[1], spec)
    results = _backwards[spec.cell == "lstm"].call((dy, dhn, dcn, x, h0, c0, y, weights, reserve, lengths), out, (spec, layout), (),
                                                   workspace, stream, choice)
    return results if len(results) == 3 else (*results, None)


@public
def rnn_bwd_weights(spec, x, h0, y, reserve, *, lengths=None, layout="TNC", out=None, workspace=None, stream=None, **choice):
    """The gradient of `rnn_fwd` with respect to the weights, after `rnn_bwd_data`.

    Parameters
    ----------
    spec, x, h0, lengths, layout
        As passed to `rnn_fwd`.
    y : array
        As returned by `rnn_fwd`.
    reserve : array
        As `rnn_bwd_data` left it.
    out : array (weight_size,), packed
        Written and returned.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    dweights : array (weight_size,), of x's framework
        Summed over all steps and sequences in float32 (float64 for float64), rounded once; `RnnSpec.views` names its parts. The summed
        gates' gradients are rounded to the dtype in the reserve: an element's error is proportional to the magnitude of the terms of
        its sum, not to the sum.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `rnn_fwd`.

    Notes
    -----
    Deterministic. Mirrors cudnnRNNBackwardWeights_v8; see `rnn_bwd_data` for an example.
    """
    _check_spec(OPS[2], spec)
    return _weights((x, h0, y, reserve, lengths), out, (spec, layout), (), workspace, stream, choice)


def _check_spec(function, spec):
    if not isinstance(spec, RnnSpec):
        raise TypeError(f"{function}: spec is a {type(spec).__name__}; expected an RnnSpec")
