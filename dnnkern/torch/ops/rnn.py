"""Recurrent networks, all steps, layers and directions in one call each way."""
import functools

import torch

from ... import RnnSpec, rnn_bwd_data, rnn_bwd_weights, rnn_fwd
from .._above import counted, gradients, needs_gradient
from .._table import Refused, aten
from .._tensors import KEY, math_of, one_dtype

_PLAIN = {torch.Tensor, torch.nn.Parameter}
OPS = {"lstm": "lstm.input", "gru": "gru.input", "tanh": "rnn_tanh.input", "relu": "rnn_relu.input"}
_run = {cell: counted(lambda *args: _forward(*args), op) for cell, op in OPS.items()}
_derive = {cell: counted(lambda *args: _backward(*args), f"{op} backward") for cell, op in OPS.items()}


@functools.lru_cache(256)
def _spec(cell, x_size, hidden, layers, bidirectional, projection, biases, dropout, dtype, math):
    return RnnSpec(cell, x_size, hidden, num_layers=layers, bidirectional=bidirectional, proj_size=projection,
                   bias="double" if biases else "none", dropout=dropout, dtype=dtype, math=math)


def _forward(spec, seed, keep, x, h0, c0, params):
    # In the order of `RnnSpec.matrices`, which is PyTorch's; of another dtype under autocast.
    weights = torch.cat([p.reshape(-1) for p in params]).to(x.dtype)
    y, hn, cn, reserve = rnn_fwd(spec, x, h0, c0, weights, training=keep, seed=0 if seed is None else seed)
    return y, hn, cn, weights, reserve


def _backward(spec, dy, dhn, dcn, x, h0, c0, y, weights, reserve, params, of_weights):
    reserve = reserve.clone()  # it is written, and there may be another backward pass
    dx, dh0, dc0 = rnn_bwd_data(spec, dy, dhn, dcn, x, h0, c0, y, weights, reserve)
    if not of_weights:
        return dx, dh0, dc0, [None] * len(spec.matrices)
    parts = rnn_bwd_weights(spec, x, h0, y, reserve).to(params[0].dtype).split([m.size for m in spec.matrices])
    return dx, dh0, dc0, [part.view(m.shape) for part, m in zip(parts, spec.matrices)]


class Rnn(torch.autograd.Function):
    """(y, hn[, cn]) and gradients by x, the initial states and the weights."""

    @staticmethod
    def forward(ctx, cell, spec, seed, again, x, h0, c0, *params):
        y, hn, cn, weights, reserve = _run[cell](spec, seed, True, x, h0, c0, params)
        ctx.save_for_backward(x, h0, c0, y, weights, reserve, *params)
        ctx.fixed = cell, spec, seed, again
        ctx.set_materialize_grads(False)
        return (y, hn) if cn is None else (y, hn, cn)

    @staticmethod
    def backward(ctx, dy, dhn, dcn=None):
        cell, spec, seed, again = ctx.fixed
        x, h0, c0, y, weights, reserve, *params = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *(None,) * 4, *_again(again, seed, (x, h0, c0, *params), (dy, dhn, dcn))
        if dy is None:
            dy = torch.zeros_like(y)
        of_weights = any(ctx.needs_input_grad[7:])
        dx, dh0, dc0, dparams = _derive[cell](spec, dy, dhn, dcn, x, h0, c0, y, weights, reserve, params, of_weights)
        return *(None,) * 4, dx, dh0, dc0, *dparams


def _again(again, seed, tensors, dys):
    """Gradients that can be derived again."""
    if seed is not None:
        raise RuntimeError("no second derivatives of a recurrent network with dropout; expected dropout=0, or "
                           "dnnkern.torch.enable(exclude=['rnn'])")
    given = [i for i, dy in enumerate(dys) if dy is not None]

    def chosen(*tensors):
        results = again(*tensors)
        return [results[i] for i in given]
    return gradients(chosen, tensors, [dys[i] for i in given])


def _network(cell, x, states, params, biases, layers, dropout, train, bidirectional, batch_first):
    """The network of a call of PyTorch's."""
    if not (type(x) in _PLAIN and _PLAIN.issuperset(map(type, (*states, *params)))):
        raise Refused("tensors of other classes, or a compiler's")
    if KEY == "CUDA" and torch.is_autocast_enabled("cuda"):  # where cuDNN's networks run in float16, whatever autocast's dtype
        x, states = x.to(torch.float16), [state.to(torch.float16) for state in states]
        one_dtype(*params)
    else:
        one_dtype(x, *params)
    h0, c0 = states if cell == "lstm" else (*states, None)
    one_dtype(x, h0, c0)
    if x.dim() != 3 or h0.dim() != 3 or x.numel() == 0:
        raise Refused(f"x of shape {tuple(x.shape)}, states of {tuple(h0.shape)}")
    hidden, directions = params[1].shape[0] // {"lstm": 4, "gru": 3}.get(cell, 1), 1 + bidirectional
    projected = cell == "lstm" and h0.shape[2] != hidden
    drops = dropout if train and layers > 1 else 0.0
    spec = _spec(cell, x.shape[2], hidden, layers, bidirectional, h0.shape[2] if projected else 0, biases, drops,
                 str(x.dtype).removeprefix("torch."), math_of("rnn", x))
    if [m.shape for m in spec.matrices] != [tuple(p.shape) for p in params]:
        raise Refused("weights of other shapes")
    expected = (layers * directions, x.shape[0 if batch_first else 1])
    if tuple(h0.shape[:2]) != expected or c0 is not None and tuple(c0.shape[:2]) != expected:
        raise Refused(f"states of shape {tuple(h0.shape)}")  # PyTorch broadcasts, or says what is wrong
    seed = torch.empty((), dtype=torch.int64, device=x.device).random_() if drops else None
    steps = x.transpose(0, 1) if batch_first else x

    def again(x, h0, c0, *params):
        function = getattr(torch, cell if cell in ("lstm", "gru") else f"rnn_{cell}")
        params = [p.to(x.dtype) for p in params]
        with torch.backends.cudnn.flags(enabled=False):  # whose gradients have no derivatives
            return function(x, (h0, c0) if cell == "lstm" else h0, params, biases, layers, dropout, train, bidirectional, False)
    if needs_gradient(x, h0, c0, *params):
        y, *last = Rnn.apply(cell, spec, seed, again, steps, h0, c0, *params)
    else:
        y, hn, cn, *_ = _run[cell](spec, seed, bool(drops), steps, h0, c0, params)
        last = [hn] if cn is None else [hn, cn]
    return y.transpose(0, 1) if batch_first else y, *last


@aten("lstm.input", composite=True)
def lstm(x, states, params, *options):
    """``rnn_fwd`` of an LSTM."""
    return _network("lstm", x, states, params, *options)


@aten("gru.input", composite=True)
def gru(x, state, params, *options):
    """``rnn_fwd`` of a GRU."""
    return _network("gru", x, [state], params, *options)


@aten("rnn_tanh.input", composite=True)
def rnn_tanh(x, state, params, *options):
    """``rnn_fwd`` with tanh."""
    return _network("tanh", x, [state], params, *options)


@aten("rnn_relu.input", composite=True)
def rnn_relu(x, state, params, *options):
    """``rnn_fwd`` with relu."""
    return _network("relu", x, [state], params, *options)
