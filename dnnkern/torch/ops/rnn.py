"""Recurrent networks, all steps, layers and directions in one call each way."""
import functools
from typing import Callable, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

import dnnkern

from .._above import counted, define, differentiable, gradients, needs_gradient
from .._table import Refused, aten
from .._tensors import KEY, math_of, one_dtype

_KNOWN = {torch.Tensor, torch.nn.Parameter, FakeTensor, FunctionalTensor}
OPS = {"lstm": "lstm", "gru": "gru", "tanh": "rnn_tanh", "relu": "rnn_relu"}
_KINDS = [f"{name}.{kind}" for name in OPS.values() for kind in ("input", "data")]
_run = {op: counted(lambda *args: _forward(*args), op) for op in _KINDS}
_derive = {op: counted(lambda *args: _backward(*args), f"{op} backward") for op in _KINDS}


class _Fixed(NamedTuple):
    """What of a call is no tensor that has a gradient: the operator, the network (`_spec`), the seed of its dropout, lengths of sequences
    that are not all of the same, and PyTorch's own function of x, the states and the weights."""
    op: str
    network: tuple
    seed: torch.Tensor | None
    lengths: torch.Tensor | None
    again: Callable


@functools.lru_cache(256)
def _spec(cell, x_size, hidden, layers, bidirectional, projection, biases, dropout, dtype, math=None):
    return dnnkern.RnnSpec(cell, x_size, hidden, num_layers=layers, bidirectional=bidirectional, proj_size=projection,
                           bias="double" if biases else "none", dropout=dropout, dtype=dtype, math=math)


def _forward(keep, x, h0, c0, weights, lengths, seed, *network):
    spec = _spec(*network, math_of("rnn", x))
    y, hn, cn, reserve = dnnkern.rnn_fwd(spec, x, h0, c0, weights, lengths=lengths, training=keep, seed=0 if seed is None else seed)
    return [y, hn, *(t if t is not None else x.new_empty(0) for t in (cn, reserve))]


def _fake(op, keep, x, h0, c0, weights, lengths, seed, *network):
    spec, (steps, samples, _) = _spec(*network), x.shape
    return [x.new_empty(shape) for shape in ((steps, samples, spec.output_size), h0.shape, _cells(spec, h0),
                                             (spec.reserve_size(steps, samples) if keep else 0,))]


def _cells(spec, h0):
    """The shape of cell states, or of no elements."""
    return (*h0.shape[:2], spec.hidden_size) if spec.cell == "lstm" else (0,)


def _backward(of_weights, dy, dhn, dcn, x, h0, c0, y, weights, reserve, lengths, *network):
    spec = _spec(*network, math_of("rnn", x))
    reserve = reserve.clone()  # it is written, and there may be another backward pass
    dx, dh0, dc0 = dnnkern.rnn_bwd_data(spec, dy, dhn, dcn, x, h0, c0, y, weights, reserve, lengths=lengths)
    dweights = dnnkern.rnn_bwd_weights(spec, x, h0, y, reserve, lengths=lengths) if of_weights else x.new_empty(0)
    return [dx, dh0, x.new_empty(0) if dc0 is None else dc0, dweights]


def _fake_gradients(op, of_weights, dy, dhn, dcn, x, h0, c0, y, weights, reserve, lengths, *network):
    return [x.new_empty(shape) for shape in (x.shape, h0.shape, _cells(_spec(*network), h0), weights.shape if of_weights else (0,))]


_NETWORK = "str cell, int x_size, int hidden, int layers, bool bidirectional, int projection, bool biases, float dropout, str dtype"
_GIVEN = "Tensor x, Tensor h0, Tensor? c0"
_FOUR = "(Tensor, Tensor, Tensor, Tensor)"
forward = define(f"rnn(str op, bool keep, {_GIVEN}, Tensor weights, Tensor? lengths, Tensor? seed, {_NETWORK}) -> {_FOUR}",
                 lambda op, *args: tuple(_run[op](*args)), lambda *args: tuple(_fake(*args)), None)
backward = define(f"rnn_backward(str op, bool of_weights, Tensor dy, Tensor? dhn, Tensor? dcn, {_GIVEN}, Tensor y, Tensor weights, "
                  f"Tensor reserve, Tensor? lengths, {_NETWORK}) -> {_FOUR}",
                  lambda op, *args: tuple(_derive[op](*args)), lambda *args: tuple(_fake_gradients(*args)), None)


def _keep(ctx, inputs, output):
    _, ctx.keep, x, h0, c0, weights, lengths, _, *ctx.network = inputs
    y, _, _, reserve = output
    ctx.op = inputs[0]
    ctx.save_for_backward(x, h0, c0, y, weights, reserve, lengths)
    ctx.mark_non_differentiable(reserve, *([] if c0 is not None else [output[2]]))
    ctx.set_materialize_grads(False)


def _derived(ctx, dy, dhn, dcn, _):
    x, h0, c0, y, weights, reserve, lengths = ctx.saved_tensors
    if not ctx.keep or torch.is_grad_enabled():
        raise RuntimeError("dnnkern.rnn: a gradient needs keep=True, and has no derivatives itself; expected torch.lstm, gru or rnn_tanh")
    dy = torch.zeros_like(y) if dy is None else dy
    dx, dh0, dc0, dweights = backward(ctx.op, True, dy, dhn, None if c0 is None else dcn, x, h0, c0, y, weights, reserve, lengths,
                                      *ctx.network)
    return None, None, dx, dh0, None if c0 is None else dc0, dweights, *[None] * (len(ctx.network) + 2)


differentiable(forward, _derived, _keep)


def _weights(x, params):
    """In the order of `RnnSpec.matrices`, which is PyTorch's; of another dtype under autocast."""
    return torch.cat([p.reshape(-1) for p in params]).to(x.dtype)


class Rnn(torch.autograd.Function):
    """(y, hn, cn) and gradients by x, the initial states and the weights."""

    @staticmethod
    def forward(ctx, fixed, x, h0, c0, *params):
        weights = _weights(x, params)
        y, hn, cn, reserve = forward(fixed.op, True, x, h0, c0, weights, fixed.lengths, fixed.seed, *fixed.network)
        ctx.save_for_backward(x, h0, c0, y, weights, reserve, *params)
        ctx.fixed = fixed
        ctx.set_materialize_grads(False)
        return y, hn, cn

    @staticmethod
    def backward(ctx, dy, dhn, dcn):
        x, h0, c0, y, weights, reserve, *params = ctx.saved_tensors
        fixed = ctx.fixed
        if torch.is_grad_enabled():
            return None, *_again(fixed, (x, h0, c0, *params), (dy, dhn, None if c0 is None else dcn))
        of_weights = any(ctx.needs_input_grad[4:])
        dy, dcn = torch.zeros_like(y) if dy is None else dy, None if c0 is None else dcn
        dx, dh0, dc0, dweights = backward(fixed.op, of_weights, dy, dhn, dcn, x, h0, c0, y, weights, reserve, fixed.lengths, *fixed.network)
        dparams = [None] * len(params)
        if of_weights:
            parts = dweights.to(params[0].dtype).split([p.numel() for p in params])
            dparams = [part.view(p.shape) for part, p in zip(parts, params)]
        return None, dx, dh0, None if c0 is None else dc0, *dparams


def _again(fixed, tensors, dys):
    """Gradients that can be derived again."""
    if fixed.seed is not None:
        raise RuntimeError("no second derivatives of a recurrent network with dropout; expected dropout=0, or "
                           "dnnkern.torch.enable(exclude=['rnn'])")
    given = [i for i, dy in enumerate(dys) if dy is not None]

    def chosen(*tensors):
        results = fixed.again(*tensors)
        return [results[i] for i in given]
    return gradients(chosen, tensors, [dys[i] for i in given])


def _network(cell, x, batch_sizes, states, params, biases, layers, dropout, train, bidirectional, batch_first=False):
    """The network of a call of PyTorch's. With `batch_sizes` x is a packed sequence, and so is the result."""
    if not _KNOWN.issuperset(map(type, (x, *states, *params))):
        raise Refused("tensors of other classes")
    if KEY == "CPU" and torch.is_autocast_enabled("cpu"):
        raise Refused("autocast on the CPU, which rounds each step's products")
    if KEY == "CUDA" and torch.is_autocast_enabled("cuda"):  # where cuDNN's networks run in float16, whatever autocast's dtype
        x, states = x.to(torch.float16), [state.to(torch.float16) for state in states]
        one_dtype(*params)
    else:
        one_dtype(x, *params)
    h0, c0 = states if cell == "lstm" else (*states, None)
    one_dtype(x, h0, c0)
    if x.dim() != (3 if batch_sizes is None else 2) or h0.dim() != 3 or x.numel() == 0:
        raise Refused(f"x of shape {tuple(x.shape)}, states of {tuple(h0.shape)}")
    hidden, directions = params[1].shape[0] // {"lstm": 4, "gru": 3}.get(cell, 1), 1 + bidirectional
    projected = cell == "lstm" and h0.shape[2] != hidden
    drops = dropout if train and layers > 1 else 0.0
    network = (cell, params[0].shape[1], hidden, layers, bidirectional, h0.shape[2] if projected else 0, biases, drops,
               str(x.dtype).removeprefix("torch."))
    if not all(type(n) is int for p in params for n in p.shape):
        raise Refused("weights of sizes that a compiler does not know yet")
    if [m.shape for m in _spec(*network).matrices] != [tuple(p.shape) for p in params] or x.shape[-1] != network[1]:
        raise Refused("weights of other shapes")
    expected = (layers * directions, int(batch_sizes[0]) if batch_sizes is not None else x.shape[0 if batch_first else 1])
    if tuple(h0.shape[:2]) != expected or c0 is not None and tuple(c0.shape[:2]) != expected:
        raise Refused(f"states of shape {tuple(h0.shape)}")  # PyTorch broadcasts, or says what is wrong
    seed = torch.empty((), dtype=torch.int64, device=x.device).random_() if drops else None
    lengths = None
    if batch_sizes is not None:
        steps, lengths = torch._pad_packed_sequence(x, batch_sizes, False, 0.0, len(batch_sizes))
    else:
        steps = x.transpose(0, 1) if batch_first else x

    def packed(y):
        return y if lengths is None else torch._pack_padded_sequence(y, lengths, False)[0]

    def again(x, h0, c0, *params):
        function, given = getattr(torch, OPS[cell]), (x,) if lengths is None else (packed(x), batch_sizes)
        with torch.backends.cudnn.flags(enabled=False):  # whose gradients have no derivatives
            y, *last = function(*given, (h0, c0) if cell == "lstm" else h0, [p.to(x.dtype) for p in params], biases, layers, dropout, train,
                                bidirectional, *([False] if lengths is None else []))
        return y if lengths is None else torch._pad_packed_sequence(y, batch_sizes, False, 0.0, len(batch_sizes))[0], *last
    fixed = _Fixed(f"{OPS[cell]}.{'input' if lengths is None else 'data'}", network, seed,
                   None if lengths is None else lengths.to(x.device, torch.int32), again)
    if needs_gradient(x, h0, c0, *params):
        y, hn, cn = Rnn.apply(fixed, steps, h0, c0, *params)
    else:
        y, hn, cn, _ = forward(fixed.op, bool(drops), steps, h0, c0, _weights(x, params), fixed.lengths, seed, *network)
    return packed(y.transpose(0, 1) if batch_first else y), hn, *([] if c0 is None else [cn])


def _packed(cell, data, batch_sizes, states, params, *options):
    if type(batch_sizes) is not torch.Tensor or batch_sizes.dim() != 1 or batch_sizes.is_cuda or not batch_sizes.numel():
        raise Refused("batch_sizes of another kind, or a compiler's")
    sizes = batch_sizes.tolist()
    if data.dim() != 2 or sum(sizes) != data.shape[0] or min(sizes) < 1:
        raise Refused(f"data of shape {tuple(data.shape)}")  # PyTorch says what is wrong
    return _network(cell, data, batch_sizes, states, params, *options)


@aten("lstm.input", composite=True)
def lstm(x, states, params, *options):
    """``rnn_fwd`` of an LSTM."""
    return _network("lstm", x, None, states, params, *options)


@aten("gru.input", composite=True)
def gru(x, state, params, *options):
    """``rnn_fwd`` of a GRU."""
    return _network("gru", x, None, [state], params, *options)


@aten("rnn_tanh.input", composite=True)
def rnn_tanh(x, state, params, *options):
    """``rnn_fwd`` with tanh."""
    return _network("tanh", x, None, [state], params, *options)


@aten("rnn_relu.input", composite=True)
def rnn_relu(x, state, params, *options):
    """``rnn_fwd`` with relu."""
    return _network("relu", x, None, [state], params, *options)


@aten("lstm.data", composite=True)
def lstm_of_packed(data, batch_sizes, states, params, *options):
    """`lstm` of a packed sequence."""
    return _packed("lstm", data, batch_sizes, states, params, *options)


@aten("gru.data", composite=True)
def gru_of_packed(data, batch_sizes, state, params, *options):
    """`gru` of a packed sequence."""
    return _packed("gru", data, batch_sizes, [state], params, *options)


@aten("rnn_tanh.data", composite=True)
def rnn_tanh_of_packed(data, batch_sizes, state, params, *options):
    """`rnn_tanh` of a packed sequence."""
    return _packed("tanh", data, batch_sizes, [state], params, *options)


@aten("rnn_relu.data", composite=True)
def rnn_relu_of_packed(data, batch_sizes, state, params, *options):
    """`rnn_relu` of a packed sequence."""
    return _packed("relu", data, batch_sizes, [state], params, *options)
