"""What the peers of recurrent networks share: PyTorch's, which are cuDNN's, in TF32 or not; on the processor its own, by autograd. What it
keeps for gradients is its own."""
import functools

import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import dnnkern
from bench.peers import Peer
from bench.torch_arrays import TorchContender, tensors
from dnnkern.device import HOST_MEMORY

ATEN = torch.ops.aten
MODULES = {"relu": torch.nn.RNN, "tanh": torch.nn.RNN, "lstm": torch.nn.LSTM, "gru": torch.nn.GRU}
MODES = {"relu": 0, "tanh": 1, "lstm": 2, "gru": 3}  # cuDNN's numbers
TF32 = 2e-2  # error of a result whose products are rounded to TF32


class Network:
    """The network of a problem on one set of tensors; those that a gradient's problem has not are drawn.

    Sequences of several lengths are packed beforehand, as PyTorch wants them. Backward it is the operators that autograd runs: autograd
    itself, on a graph that stays, would copy what the forward pass kept at each call. The processor has no such operators: there it is
    autograd.
    """

    def __init__(self, p, t, tf32):
        self.p, self.tf32, spec = p, tf32, p.spec
        bound, x = spec.hidden_size ** -0.5, t["x"]
        shapes = {"weights": (spec.weight_size,), "dy": (*x.shape[:2], spec.output_size), "h0": p.state_shape(spec.state_size),
                  "c0": p.state_shape(spec.hidden_size), "dhn": p.state_shape(spec.state_size), "dcn": p.state_shape(spec.hidden_size)}
        if spec.cell != "lstm":
            del shapes["c0"], shapes["dcn"]
        self.t = dict(t)
        for name, shape in shapes.items():
            if t.get(name) is None and p.op != "rnn_fwd":
                self.t[name] = torch.empty(shape, dtype=x.dtype, device=x.device).uniform_(-bound, bound)
        self.lengths = None if t["lengths"] is None else t["lengths"].cpu()
        self.first, self.module = p.layout == "NTC", module_of(p, self.t)
        self.x = self.packed(x)

    # ---- sequences of several lengths

    def packed(self, a):
        """Lines of sequences as PyTorch wants them."""
        return a if self.lengths is None else pack_padded_sequence(a, self.lengths, self.first, enforce_sorted=False)

    def padded(self, a):
        """And back."""
        return a if self.lengths is None else pad_packed_sequence(a, self.first, total_length=self.p.steps)[0]

    def states(self, name, order="sorted_indices"):
        """States in the order of packed sequences."""
        a = self.t[name] if isinstance(name, str) else name
        return a if self.lengths is None or a is None else a.index_select(1, getattr(self.x, order))

    # ---- passes

    def forward(self):
        """The module's call: with gradients where it keeps what they need."""
        torch.backends.cudnn.allow_tf32 = self.tf32
        lstm = self.p.spec.cell == "lstm"
        with torch.set_grad_enabled(self.p.training):
            y, last = self.module(self.x, (self.t["h0"], self.t["c0"]) if lstm else self.t["h0"])
        return (y, *last) if lstm else (y, last)

    def keep(self):
        """A forward pass for the next one backward."""
        if not self.t["x"].is_cuda:
            self.graph = self.traced()
            return
        torch.backends.cudnn.allow_tf32 = self.tf32
        spec, sizes = self.p.spec, [] if self.lengths is None else self.x.batch_sizes.tolist()
        lines = (lambda a: a) if self.lengths is None else (lambda a: self.packed(a).data)
        weights = [w.detach() for w in self.module._flat_weights]
        head = lines(self.t["x"]), weights, len(weights) // (spec.num_layers * spec.directions)
        tail = (MODES[spec.cell], spec.hidden_size, spec.proj_size, spec.num_layers, self.first and not sizes, 0.0, True,
                spec.bidirectional, sizes, None)
        h0, c0 = self.states("h0"), self.states("c0") if spec.cell == "lstm" else None
        y, _, _, reserve, buffer = ATEN._cudnn_rnn(*head, None, h0, c0, *tail)
        gradients = lines(self.t["dy"]), self.states("dhn"), self.states("dcn") if c0 is not None else None
        self.kept = (*head, buffer, h0, c0, y, *gradients, *tail, reserve)

    def backward(self, weights):
        """(dx, dh0, dc0, gradients by the weights): cuDNN computes the first three in any case."""
        if not self.t["x"].is_cuda:
            found = list(torch.autograd.grad(*self.graph, retain_graph=True))
            return found.pop(0), found.pop(0), found.pop(0) if self.p.spec.cell == "lstm" else None, found
        torch.backends.cudnn.allow_tf32 = self.tf32
        return ATEN._cudnn_rnn_backward(*self.kept, [True, True, self.kept[5] is not None, weights])

    def traced(self):
        """(results, operands and weights, gradients of the results) of a forward pass that autograd has seen."""
        names = ("x", "h0", "c0")[:3 if self.p.spec.cell == "lstm" else 2]
        x, h0, *c0 = [self.t[name].detach().requires_grad_() for name in names]
        with torch.enable_grad():
            y, last = self.module(self.packed(x), (h0, *c0) if c0 else h0)
            y = self.padded(y)
        gradients = [self.t[name] for name in ("dy", "dhn", "dcn")[:len(names)]]
        return (y, *(last if c0 else (last,))), (x, h0, *c0, *self.module._flat_weights), gradients

    def gradients(self):
        """(dx, dh0, dc0, dweights) as ours are laid out, of its own forward pass."""
        self.keep()
        dx, dh0, dc0, parts = self.backward(True)
        if self.t["x"].is_cuda:  # of packed lines
            dx = self.padded(dx if self.lengths is None else PackedSequence(dx, *self.x[1:]))
            dh0, dc0 = (self.states(a, "unsorted_indices") for a in (dh0, dc0))
        return dx, dh0, dc0, self.p.spec.pack(dict(zip(self.module._flat_weights_names, parts)))

    def agrees(self, bound):
        """Whether all gradients are ours, from the same operands; its own results of the forward pass and ours differ by rounding."""
        t, spec, how = self.t, self.p.spec, {"lengths": self.t["lengths"], "layout": self.p.layout, "algo": "step"}
        given = t["x"], t["h0"], t.get("c0")
        y, _, _, reserve = dnnkern.rnn_fwd(spec, *given, t["weights"], training=True, **how)
        ours = dnnkern.rnn_bwd_data(spec, t["dy"], t["dhn"], t.get("dcn"), *given, y, t["weights"], reserve, **how)
        theirs = self.gradients()
        ours = *ours, dnnkern.rnn_bwd_weights(spec, t["x"], t["h0"], y, reserve, **how)
        self.keep()
        return all((a - b).abs().max() <= bound * b.abs().max() for a, b in zip(theirs, ours) if b is not None)


def module_of(p, t):
    """The network with the weights of these operands."""
    spec = p.spec
    more = {"nonlinearity": spec.cell} if MODULES[spec.cell] is torch.nn.RNN else {}
    if spec.proj_size:
        more["proj_size"] = spec.proj_size
    found = MODULES[spec.cell](spec.input_size, spec.hidden_size, spec.num_layers, bias=spec.bias == "double",
                               bidirectional=spec.bidirectional, batch_first=p.layout == "NTC", device=t["x"].device, dtype=t["x"].dtype,
                               **more)
    parts = spec.views(t["weights"])
    with torch.no_grad():
        for name, parameter in found.named_parameters():
            parameter.copy_(parts[name.replace("weight_", "w_").replace("bias_", "b_")])
    return found


def make_peer(name, tf32, case, operands, clock):
    """The peer of any pass; None where PyTorch has no such network, or sequences without steps, which it has not.

    A gradient is of the peer's own forward pass and cannot be compared with that of random operands: it is compared with ours of one.
    """
    p = case.problem
    spec = p.spec
    if spec.input_mode == "skip" or spec.clip or spec.dropout or spec.bias not in ("double", "none") or (
            tf32 and (spec.dtype != "float32" or HOST_MEMORY)):
        return None
    arrays, weights = [tensors(operands, k) for k in range(len(operands))], p.op == "rnn_bwd_weights"
    if p.lengths is not None and not bool((arrays[0]["lengths"] > 0).all()):
        return None
    nets, bound = [Network(p, t, tf32) for t in arrays], TF32 if tf32 else operands.tolerance(spec.dtype)
    try:
        for net in nets:
            net.forward() if p.op == "rnn_fwd" else net.keep()
        if not HOST_MEMORY:
            torch.cuda.synchronize()
    except RuntimeError:  # a dtype that cuDNN lacks
        return None
    calls = [net.forward if p.op == "rnn_fwd" else functools.partial(net.backward, weights) for net in nets]
    contender = TorchContender(name, calls, clock)
    less = TorchContender(f"{name} by data", [functools.partial(net.backward, False) for net in nets], clock) if weights else None

    def write():
        t = arrays[0]
        with contender.on_stream():
            if p.op != "rnn_fwd":
                if nets[0].agrees(4 * bound):
                    case.call(t)
            else:
                if p.training:
                    case.call(t, algo="step")  # for the reserve
                y, *last = nets[0].forward()
                for result, found in zip(("y", "hn", "cn"), (nets[0].padded(y), *last)):
                    t[result].copy_(found.detach())
        clock.synchronize()
    return Peer(contender, write, bound if tf32 and p.op == "rnn_fwd" else None, less=less, is_exact=not tf32 or spec.math == "tf32")


def host_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    net = Network(case.problem, arrays, False)
    if case.problem.op == "rnn_fwd":
        return net.forward
    net.keep()
    return functools.partial(net.backward, case.problem.op == "rnn_bwd_weights")
