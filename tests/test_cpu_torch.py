"""PyTorch's own kernels for the processor as a second oracle: what dispatch chooses there, at sizes that the simulator does not reach.

PyTorch is called by the benches' peers (`bench/peers`) on the values of the contract's larger cases. Both have to be within the contract's
bound of the definition, so that they differ by twice of it at most.
"""
import dataclasses
import importlib
import math
import types
import weakref

import cases
import contract
import labs
import numpy as np
import pytest
import sample
from cases import Place

from dnnkern import dispatch
from dnnkern.dispatch import operation_of
from dnnkern.host.device import device as device_of
from dnnkern.host.operands import USUAL, Operands
from dnnkern.host.timing import Clock

torch = pytest.importorskip("torch")

from bench import peers, torch_arrays  # noqa: E402
from bench.peers import _torch_attention, _torch_rnn, torch_ctc_loss_bwd  # noqa: E402

SHORT = {"float32": "f32", "bfloat16": "bf16"}
SEVERAL = 2  # cases of an operation and dtype; with --full all
MOST = 8_000_000  # elements of a case

ROUNDS = "PyTorch rounds each step to bfloat16"
ADDS = "PyTorch adds in bfloat16"
LACKS = "PyTorch has no kernel for the processor that takes bfloat16 beside float32"
# Operations that are not compared, or not in a dtype, and why.
EXCEPT = {
    **dict.fromkeys(("batch_norm_bwd_apply", "batch_norm_merge"), "PyTorch has kernels for GPUs alone"),
    "dropout_fwd": "its random numbers are PyTorch's own", "lamb_step": "PyTorch has none", "lion_step": "PyTorch has none",
    **dict.fromkeys(("block_scale_dequantize", "block_scale_quantize"), "PyTorch has no operation for it"),
    "grouped_matmul_bwd_weights": "no peer calls PyTorch's, whose groups are on its GPUs",
    **dict.fromkeys(("fused_pointwise", "fused_reduction"), "the peer has none of these small programs"),
    **dict.fromkeys(("random_fill", "sdpa_dropout_mask"), "its random numbers are its own"),
    "lrn_bwd": "PyTorch's is autograd's of many operations; no peer calls it", "scale_tensor": "the peer multiplies by 1",
    **{(op, "bfloat16"): ROUNDS for op in (
        "adagrad_step", "affine_grid_fwd", "batch_norm_infer", "batch_norm_train_fwd", "clip_grad_norm", "cross_entropy_bwd",
        "cross_entropy_fwd", "glu_bwd", "grad_norm", "grid_sample_fwd", "mse_loss_bwd", "mse_loss_fwd", "rmsprop_step", "rnn_bwd_data",
        "rnn_bwd_weights", "rnn_fwd")},
    **{(op, "bfloat16"): ADDS for op in ("avg_pool_bwd", "col2im", "embedding_bwd", "grid_sample_bwd", "max_pool_bwd", "nll_loss_fwd",
                                         "pad_bwd")},
    **{(op, "bfloat16"): LACKS for op in ("batch_norm_bwd", "ctc_loss_bwd", "ctc_loss_fwd", "group_norm_bwd", "layer_norm_bwd", "lrn_fwd")},
    ("sdpa_bwd", "bfloat16"): "PyTorch's gradients are of its own o, rounded to bfloat16",
    ("sgd_step", "bfloat16"): "PyTorch 2.13's fused step leaves wrong momenta in 16 bits"}
# Results that PyTorch does not give, or not as exactly.
LEFT = {"ctc_loss_fwd": ("saved",), "group_norm_fwd": ("mean", "rstd"), "rnn_bwd_data": ("reserve",), "rnn_fwd": ("reserve",),
        "sdpa_fwd": ("lse",)}
ROUNDED = {"layer_norm_fwd": ("mean", "rstd"), "rms_norm_fwd": ("rstd",)}  # to bfloat16

# Numbers that the peers have built in, `Operands`' own; keywords of the cases.
_STEP = {"lr": USUAL["lr"], "weight_decay": USUAL["weight_decay"]}
_ADAM = {"counted": 1e6, "more": {**_STEP, **{name: USUAL[name] for name in ("beta1", "beta2", "eps")}}}
NUMBERS = {
    **{f"{norm}_norm_{way}": {"eps": USUAL["eps"]} for norm in ("layer", "rms", "group") for way in ("fwd", "bwd")},
    **dict.fromkeys(("batch_norm_train_fwd", "batch_norm_infer", "batch_norm_bwd"), {"eps": USUAL["eps"], "momentum": USUAL["momentum"]}),
    "add_tensor": {"alpha": 1.0, "beta": 1.0}, "lrn_fwd": {"alpha": 1.0, "beta": 1.0, "k": 1.0}, "pad": {"value": 1.0},
    "set_tensor": {"value": 1.0}, "dropout_bwd": {"p": 0.5}, "clip_grad_norm": {"max_norm": 1.0}, "adam_step": _ADAM, "adamw_step": _ADAM,
    "sgd_step": {"more": {**_STEP, "momentum": USUAL["momentum"], "dampening": 0.9}},
    "rmsprop_step": {"states": ("v",), "more": {**_STEP, "alpha": 0.9, "eps": USUAL["eps"], "momentum": 0.0}},
    "adagrad_step": {"more": {**_STEP, "eps": USUAL["eps"], "lr_decay": 0.0}}}
# What the larger cases lack, as changes of the first of them.
_LAYER = {"id": "1x64x56x56-k64-3x3-p1", "size": (1, 64, 56, 56), "k": 64, "filter": (3, 3), "padding": 1, "layout": "NHWC"}
_HEADS = {"id": "1x4x4x512x512x64x64", "batch": 1, "rows": 512, "keys": 512}
_NETWORKS = [{"id": f"{cell}-t16n8i64h64", "cell": cell, "sizes": (64, 64), "steps": 16, "samples": 8} for cell in ("lstm", "gru")]
MORE = {
    "move_rows": tuple({"id": "-".join(by), "shape": (301, 72), "count": n, "rows": n, "by": by}
                       for by, n in ((("source",), 500), (("target",), 301), (("source", "target"), 500))),
    "matmul": ({"id": "256x256x256", "m": 256, "n": 256, "k": 256},),
    **dict.fromkeys(("conv_fwd", "conv_bwd_data", "conv_bwd_filter"), (_LAYER,)),
    **dict.fromkeys(("sdpa_fwd", "sdpa_bwd"), (_HEADS, {**_HEADS, "id": "causal-1x4x4x512x512x64x64", "causal": True})),
    "sdpa_decode": ({"id": "2x8x512x64", "heads": 8, "kv_heads": 8, "lengths": (512, 512), "capacity": 512, "d": 64, "e": 64},),
    **dict.fromkeys(("rnn_fwd", "rnn_bwd_data", "rnn_bwd_weights"), _NETWORKS),
    **dict.fromkeys(("glu_fwd", "glu_bwd"), ({"id": "1000x2056-sigmoid", "mode": "sigmoid"},))}


def comparable(op, dtype):
    """The cases of an operation and dtype, with the numbers that peers have."""
    large = [case for case in cases.modules()[op].LARGE if case.id.endswith(f"-{SHORT[dtype]}")]
    own = [dataclasses.replace(large[0], **{**changes, "id": f"{changes['id']}-{SHORT[dtype]}"}) for changes in MORE.get(op, ())]
    for case in (*own, *large):
        changes = dict(NUMBERS.get(op, {}))
        if op.endswith(("_step", "grad_norm")):
            changes.update(shapes=tuple(shape for shape in case.shapes[:10] if math.prod(shape) <= MOST // 40))
            changes.update({"master": False, "halves": True} if op.endswith("_step") else {"scale": None, "reports": False})
        elif op == "rms_norm_fwd":
            changes.update(missing=("beta",))
        case = dataclasses.replace(case, **changes)
        if sum(p.size for p in (*case.inputs().values(), *case.outputs().values()) if p) <= MOST:
            yield case


# ---- what PyTorch computes

def tensors(case, values):
    """Operands by name."""
    found = {}
    for name, place in case.inputs().items():
        array = place and labs.guarded(place, values[name]).array
        found[name] = array if array is None else torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) if (
            place.dtype == "bfloat16") else torch.from_numpy(array)
    return found


def gradients_of_attention(case, values):
    """Of its own forward pass."""
    p = case.problem()
    if not _torch_attention.masked(p):
        return None
    found = _torch_attention.backward_call(importlib.import_module("bench.peers.torch_sdpa_bwd").BACKENDS, p, tensors(case, values))()
    return {name: y if p.layout == "BHSD" or y is found[3:] else y.transpose(1, 2) for name, y in zip(("dq", "dk", "dv"), found)} | dict(
        zip(("dbias",), found[3:]))


def gradient_of_ctc(case, values):
    """Of its own forward pass."""
    return {"dlogits": torch_ctc_loss_bwd.plain_call_on(case.problem(), tensors(case, values))()}


def gradients_of_rms_norm(case, values):
    """Of its own forward pass: the operator that the peer calls on a GPU has no kernel for the processor."""
    t = tensors(case, values)
    x, gamma = (t[name].requires_grad_() for name in ("x", "gamma"))
    y = torch.nn.functional.rms_norm(x, x.shape[case.start:], gamma, case.eps)
    return dict(zip(("dx", "dgamma"), torch.autograd.grad(y, (x, gamma), t["dy"])))


def gradients_of_networks(case, values):
    """Of its own forward pass, of all that a network is made of."""
    t = {name: torch.tensor(v, dtype=torch.float32) for name, v in case.given("float").items() if name not in ("lengths", "seed", "offset")}
    net = _torch_rnn.Network(case.problem(), {**t, "lengths": None, **({} if case.cell == "lstm" else {"c0": None, "dcn": None})}, False)
    return dict(zip(("dx", "dh0", "dc0", "dweights"), net.gradients()))


OWN = {"sdpa_bwd": gradients_of_attention, "ctc_loss_bwd": gradient_of_ctc, "rms_norm_bwd": gradients_of_rms_norm,
       "rnn_bwd_data": gradients_of_networks, "rnn_bwd_weights": gradients_of_networks}


def by_peer(case, values):
    """{result: float64 array} of a case by the benches' peer; None where it has no such case."""
    problem = case.problem()
    operation, inputs = operation_of(case.op).of(problem), case.inputs()
    given = []
    for name in operation.operands:
        t = getattr(problem, name)
        place = inputs.get(name) or t and Place(t.shape, t.dtype, t.strides)
        given.append(place and labs.guarded(place, values.get(name)).array)
    with Operands(operation_of(case.op), problem, device_of(0), given) as operands, Clock() as clock:
        told = types.SimpleNamespace(op=case.op, problem=problem, call=lambda *_, **__: None, transposed=getattr(case, "transposed", False))
        peer = importlib.import_module(f"bench.peers.torch_{case.op}").make(told, operands, clock)
        if peer is None:
            return None
        operands.set_reference(peer.write)
        names = [n for n in operands.results if peer.results is None or n in peer.results or n in operation.updates]
        return {n: operands.array(0, n).view(cases.numpy_dtype(operands.results[n].dtype)).astype(np.float64) for n in names}


def by_torch(case, values):
    """{result: float64 array}; None where PyTorch has no such case."""
    if case.op not in OWN:
        return by_peer(case, values)
    found = OWN[case.op](case, values)
    return found and {name: y.detach().double().numpy() for name, y in found.items() if y is not None}


# ---- the comparison

def compare(case):
    """Whether PyTorch has the case; then ours are its results."""
    values, problem = case.values("float"), case.problem()
    if case.op in ("grouped_matmul", "sdpa_decode"):  # of which the peers have only what is measured: no rows of any length
        values = {name: v if v is None or problem.operand_values(name) is None else np.broadcast_to(
            np.asarray(problem.operand_values(name), float), v.shape) for name, v in values.items()}
    theirs = by_torch(case, values)
    if theirs is None:
        return False
    with dispatch.prefer(None):
        chosen = dispatch.get_algorithm(case.op, problem, device=device_of(0), allow=contract.ALLOW)
    with contract.registered(chosen) as mine:
        ours = contract.Run(case, mine, values, tight=True)
        _, bound = contract.bounded(mine, case, values)
        # PyTorch's attention rounds probabilities to the dtype of the values, as tensor cores want them.
        _, more = case.reference(values, tensor_cores=True) if case.op.startswith("sdpa") else (None, bound)
    left = LEFT.get(case.op, ()) + (ROUNDED.get(case.op, ()) if case.id.endswith("bf16") else ())
    for name, x in ours.outputs.items():
        if name in left:
            continue
        other = next(theirs[n] for n in (name, case.in_place().get(name), {"norm": "out"}.get(name)) if n in theirs)
        contract.assert_telling({name: other}, case)
        contract.assert_within(x.read(), other, bound[name] + more[name], f"{case.id}, {chosen.name}: {name}, beside PyTorch's")
    return True


PAIRS = [(op, dtype) for op in sample.OPS for dtype in SHORT if op not in EXCEPT and (op, dtype) not in EXCEPT]


@pytest.mark.parametrize("op, dtype", PAIRS)
def test_pytorch_agrees(op, dtype, request):
    wanted = None if request.config.getoption("--full") else SEVERAL
    compared = 0
    for case in comparable(op, dtype):
        compared += compare(case)
        if compared == wanted:
            break
    assert compared, "PyTorch's peer has none of the cases"


def test_every_operation_is_compared_or_it_is_said_why_not():
    with_peer = {op for op in sample.OPS if "torch" in peers.names_of(op)}
    assert {op for op, _ in PAIRS} <= with_peer, "PyTorch has no peer: EXCEPT has to say so"
    assert with_peer & EXCEPT.keys() == {"dropout_fwd", "fused_pointwise", "scale_tensor"}, "a peer that is there is compared"
    assert {op if isinstance(op, str) else op[0] for op in EXCEPT} <= sample.OPS.keys()


def test_results_are_kept_for_a_turn_of_the_sets():
    """As many are alive at once as there are sets, so that no call gets the memory of the one before."""
    alive, most = weakref.WeakSet(), []

    def call(k):
        result = torch.full((4,), float(k))
        alive.add(result)
        most.append(len(alive))
        return result
    for sets in (1, 3):
        contender = torch_arrays.TorchContender("x", [lambda k=k: call(k) for k in range(sets)], None)
        most.clear()
        contender.enqueue_holding(8)
        assert most == [min(k + 1, sets) for k in range(8)] and not alive
