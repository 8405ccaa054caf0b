"""Recurrent networks of one layer."""
import numpy as np

from .._errors import Refused
from .._table import rule
from .._values import FLOATS, Value
from .pointwise import only

ORDER = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
"""This library's gates among ONNX's: LSTM i, f, g, o among i, o, f, c; GRU r, z, n among z, r, h."""
USUAL = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


@rule("LSTM GRU RNN", (7, 14, 22), "`rnn_fwd`")
def recurrent(node, x, w, r, bias=None, lengths=None, h0=None, c0=None, peephole=None):
    """All states, the last state, and an LSTM's last cell state.

    A reverse direction alone is the second one of a network of two, whose first has weights of 0.
    """
    only((x, w, r, bias, h0, c0), FLOATS)
    _check(node, peephole)
    batched, reverse = bool(node.attribute("layout", 0)), node.attribute("direction", "forward") == "reverse"
    spec, weights = node.once("weights", (w, r, bias), lambda: _packed(node, x, w, r, bias, reverse))
    steps, samples = x.shape[:2][::-1] if batched else x.shape[:2]
    if lengths is not None:
        lengths = Value(np.asarray(lengths.host(), np.int32))
    h0, c0 = (_initial(node, state, batched, reverse) for state in (h0, c0))
    y, hn, cn, _ = node.call("rnn_fwd", spec, x, h0, c0, weights, lengths=lengths, layout="NTC" if batched else "TNC")
    directions, hidden = 1 + spec.bidirectional, spec.hidden_size
    first, second = (samples, steps) if batched else (steps, samples)
    y = y.reshape(first, second, directions, hidden)
    if reverse:
        y = node.call("strided_slice", y, (None, None, 1, None), (None,) * 4)
        hn, cn = (s if s is None else node.call("strided_slice", s, (1, None, None), (None,) * 3) for s in (hn, cn))
        directions = 1
    if batched:
        hn, cn = (s if s is None or directions == 1 and samples == 1 else node.call("transpose", s, (1, 0, 2)) for s in (hn, cn))
        shape = samples, directions, hidden
    else:
        y = y.reshape(steps, 1, samples, hidden) if directions == 1 else node.call("transpose", y, (0, 2, 1, 3))
        shape = directions, samples, hidden
    return y, hn.reshape(*shape), *([] if cn is None else [cn.reshape(*shape)])


def _check(node, peephole):
    """Refuse what `rnn_fwd` does not compute."""
    directions = 2 if node.attribute("direction", "forward") == "bidirectional" else 1
    cells = [name.lower() for name in node.attribute("activations") or USUAL[node.op] * directions]
    if node.op != "RNN" and cells != [name.lower() for name in USUAL[node.op] * directions] or len(set(cells)) > 1 and node.op == "RNN":
        raise Refused(f"activations {cells}")
    if node.op == "RNN" and cells[0] not in ("tanh", "relu"):
        raise Refused(f"activation {cells[0]}")
    if peephole is not None:
        raise Refused("peepholes")
    if node.attribute("clip"):
        raise Refused("clip, of the gates' inputs")
    if node.attribute("input_forget", 0):
        raise Refused("input_forget")
    if node.op == "GRU" and not node.attribute("linear_before_reset", 0):
        raise Refused("linear_before_reset=0: the reset gate before the product")


def _packed(node, x, w, r, bias, reverse):
    """(RnnSpec, weights) of ONNX's matrices, whose rows of gates are in another order."""
    from ... import RnnSpec
    directions, hidden = w.shape[0], r.shape[2]
    cell = {"LSTM": "lstm", "GRU": "gru"}.get(node.op) or (node.attribute("activations") or ["tanh"])[0].lower()
    spec = RnnSpec(cell, w.shape[2], hidden, bidirectional=directions == 2 or reverse, bias="none" if bias is None else "double",
                   dtype=x.dtype)

    def gates(matrix):
        parts = matrix.reshape(len(ORDER[node.op]), hidden, *matrix.shape[1:])
        return parts[list(ORDER[node.op])].reshape(matrix.shape)
    named = {}
    for d in range(directions):
        suffix = "_l0" + "_reverse" * (d == 1 or reverse)
        named["w_ih" + suffix], named["w_hh" + suffix] = gates(w.host()[d]), gates(r.host()[d])
        if bias is not None:
            half = bias.shape[1] // 2
            named["b_ih" + suffix], named["b_hh" + suffix] = gates(bias.host()[d, :half]), gates(bias.host()[d, half:])
    if reverse:
        named.update({name.removesuffix("_reverse"): np.zeros_like(matrix) for name, matrix in list(named.items())})
    flat = np.concatenate([named[m.name].reshape(-1) for m in spec.matrices])
    return spec, Value(flat)


def _initial(node, state, batched, reverse):
    """Initial states by direction, with those of the direction that a reverse network has besides."""
    if state is None:
        return None
    if batched:
        state = node.call("transpose", state, (1, 0, 2))
    return node.call("concat", [state, state], 0) if reverse else state
