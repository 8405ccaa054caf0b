"""Recurrent networks, all steps, layers and directions in one call each way."""
import functools
from typing import Callable, NamedTuple

import torch

import dnnkern

from .._above import counted, gradients, needs_gradient
from .._table import Refused, aten
from .._tensors import KEY, math_of, one_dtype

_PLAIN = {torch.Tensor, torch.nn.Parameter}
OPS = {"lstm": "lstm", "gru": "gru", "tanh": "rnn_tanh", "relu": "rnn_relu"}
_KINDS = [f"{name}.{kind}" for name in OPS.values() for kind in ("input", "data")]
_run = {op: counted(lambda *args: _forward(*args), op) for op in _KINDS}
_derive = {op: counted(lambda *args: _backward(*args), f"{op} backward") for op in _KINDS}


class _Fixed(NamedTuple):
    """What of a call is no tensor that has a gradient: the operator, the network, the seed of its dropout, lengths of sequences that are
    not all of the same, and PyTorch's own function of x, the states and the weights."""
    op: str
    spec: object  # an RnnSpec
    seed: torch.Tensor | None
    lengths: torch.Tensor | None
    again: Callable


@functools.lru_cache(256)
def _spec(cell, x_size, hidden, layers, bidirectional, projection, biases, dropout, dtype, math):
    return dnnkern.RnnSpec(cell, x_size, hidden, num_layers=layers, bidirectional=bidirectional, proj_size=projection,
                           bias="double" if biases else "none", dropout=dropout, dtype=dtype, math=math)


def _forward(fixed, keep, x, h0, c0, params):
    # In the order of `RnnSpec.matrices`, which is PyTorch's; of another dtype under autocast.
    weights = torch.cat([p.reshape(-1) for p in params]).to(x.dtype)
    y, hn, cn, reserve = dnnkern.rnn_fwd(fixed.spec, x, h0, c0, weights, lengths=fixed.lengths, training=keep,
                                         seed=0 if fixed.seed is None else fixed.seed)
    return y, hn, cn, weights, reserve


def _backward(fixed, dy, dhn, dcn, x, h0, c0, y, weights, reserve, params, of_weights):
    spec, lengths = fixed.spec, fixed.lengths
    reserve = reserve.clone()  # it is written, and there may be another backward pass
    dx, dh0, dc0 = dnnkern.rnn_bwd_data(spec, dy, dhn, dcn, x, h0, c0, y, weights, reserve, lengths=lengths)
    if not of_weights:
        return dx, dh0, dc0, [None] * len(spec.matrices)
    parts = dnnkern.rnn_bwd_weights(spec, x, h0, y, reserve, lengths=lengths).to(params[0].dtype).split([m.size for m in spec.matrices])
    return dx, dh0, dc0, [part.view(m.shape) for part, m in zip(parts, spec.matrices)]


class Rnn(torch.autograd.Function):
    """(y, hn[, cn]) and gradients by x, the initial states and the weights."""

    @staticmethod
    def forward(ctx, fixed, x, h0, c0, *params):
        y, hn, cn, weights, reserve = _run[fixed.op](fixed, True, x, h0, c0, params)
        ctx.save_for_backward(x, h0, c0, y, weights, reserve, *params)
        ctx.fixed = fixed
        ctx.set_materialize_grads(False)
        return (y, hn) if cn is None else (y, hn, cn)

    @staticmethod
    def backward(ctx, dy, dhn, dcn=None):
        x, h0, c0, y, weights, reserve, *params = ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, *_again(ctx.fixed, (x, h0, c0, *params), (dy, dhn, dcn))
        if dy is None:
            dy = torch.zeros_like(y)
        of_weights = any(ctx.needs_input_grad[4:])
        dx, dh0, dc0, dparams = _derive[ctx.fixed.op](ctx.fixed, dy, dhn, dcn, x, h0, c0, y, weights, reserve, params, of_weights)
        return None, dx, dh0, dc0, *dparams


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
    if not _PLAIN.issuperset(map(type, (x, *states, *params))):
        raise Refused("tensors of other classes, or a compiler's")
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
    spec = _spec(cell, x.shape[-1], hidden, layers, bidirectional, h0.shape[2] if projected else 0, biases, drops,
                 str(x.dtype).removeprefix("torch."), math_of("rnn", x))
    if [m.shape for m in spec.matrices] != [tuple(p.shape) for p in params]:
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
    fixed = _Fixed(f"{OPS[cell]}.{'input' if lengths is None else 'data'}", spec, seed,
                   None if lengths is None else lengths.to(x.device, torch.int32), again)
    if needs_gradient(x, h0, c0, *params):
        y, *last = Rnn.apply(fixed, steps, h0, c0, *params)
    else:
        y, hn, cn, *_ = _run[fixed.op](fixed, bool(drops), steps, h0, c0, params)
        last = [hn] if cn is None else [hn, cn]
    return packed(y.transpose(0, 1) if batch_first else y), *last


def _packed(cell, data, batch_sizes, states, params, *options):
    if type(batch_sizes) is not torch.Tensor or batch_sizes.dim() != 1 or batch_sizes.is_cuda or not batch_sizes.numel():
        raise Refused("batch_sizes of another kind")
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
