"""Models of transformers on this library's kernels, beside the same models on PyTorch's: tiny ones with random weights."""
import copy
import pickle
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from test_examples import ENVIRONMENT, ROOT  # noqa: E402
from test_torch_table import alone, ran  # noqa: E402, F401 (a fixture)
from torch import nn  # noqa: E402

import dnnkern.torch  # noqa: E402
from dnnkern.torch._tensors import KEY  # noqa: E402
from dnnkern.torch.functional.gated import ACTIVATIONS, gated  # noqa: E402
from dnnkern.torch.functional.rotary import rotated  # noqa: E402

pytestmark = pytest.mark.sized
DEVICE = KEY.lower()
SIZES = {"vocab_size": 37, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
HEADS = {"head_dim": 8}
SHAPES = {
    "llama": ("Llama", {}), "llama-bias": ("Llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1}),
    "qwen2": ("Qwen2", {}), "qwen3": ("Qwen3", HEADS), "mistral": ("Mistral", {**HEADS, "sliding_window": 5}),
    "gemma": ("Gemma", HEADS), "gemma2": ("Gemma2", {**HEADS, "sliding_window": 5, "query_pre_attn_scalar": 8}),
    "gemma3": ("Gemma3Text", {**HEADS, "sliding_window": 5, "query_pre_attn_scalar": 8})}
OURS = {"attention", "rms_norm", "rope", "gated", "cross_entropy_loss"}


def made(name, attention="eager", **more):
    """A model, always with the same weights; norms' are not 1."""
    family, own = SHAPES[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **own, **more}, attn_implementation=attention)
    cls = getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")
    model = cls(config).to(DEVICE)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 1:
                p.add_(torch.randn(p.shape).to(DEVICE), alpha=0.2)
            else:
                p.mul_(3)
    return model


def batch(padded=True):
    """Tokens, a mask with padding on the left and on the right, labels that leave out the padding."""
    tokens = torch.randint(3, SIZES["vocab_size"], (3, 11), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(tokens)
    if padded:
        mask[1, :4] = 0
        mask[2, 8:] = 0
    labels = tokens.masked_fill(mask == 0, -100)
    if padded:
        labels[1, 4] = -100  # what padding would predict
    return {name: t.to(DEVICE) for name, t in (("input_ids", tokens), ("attention_mask", mask), ("labels", labels))}


def passed(model, given):
    """(logits where there is no padding, loss, {parameter: gradient})."""
    model.zero_grad()
    out = model(**given)
    out.loss.backward()
    return out.logits[given["attention_mask"] == 1].detach(), out.loss.detach(), {n: p.grad for n, p in model.named_parameters()}


def assert_near(ours, theirs, bound=2e-5):
    for mine, other, name in ((ours[0], theirs[0], "logits"), (ours[1], theirs[1], "loss"), *(
            (ours[2][n], theirs[2][n], n) for n in theirs[2])):
        assert mine.dtype == other.dtype and mine.shape == other.shape, name
        limit = bound * max(1.0, other.abs().max().item())
        assert (mine - other).abs().max().item() <= limit, (name, (mine - other).abs().max().item(), limit)


@pytest.mark.parametrize("padded", [False, True], ids=("whole", "padded"))
@pytest.mark.parametrize("name", SHAPES)
def test_a_training_step(name, padded):
    """Logits, loss and every gradient, in training, beside the model's own code in float32."""
    theirs, ours, given = made(name).train(), made(name).train(), batch(padded)
    done = dnnkern.torch.apply_to_transformers(ours)
    layers = SIZES["num_hidden_layers"]
    kinds = list(done.replaced.values())
    assert kinds.count("rotary embedding") == kinds.count("gated activation") == layers and done.replaced[""] == "attention, loss", done
    assert kinds.count("rms norm") >= 2 * layers + 1 and not done.left, done
    expected = passed(theirs, given)
    dnnkern.torch.status(reset=True)
    found = passed(ours, given)
    rows = dnnkern.torch.status(reset=True)
    assert {row.op for row in rows if row.ours} >= OURS | {"attention backward", "rms_norm backward", "gated backward"}
    assert not [row for row in rows if not row.ours], rows
    assert_near(found, expected)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_attention_alone(name):
    """attn_implementation="dnnkern" of a model that is otherwise its own."""
    theirs, ours, given = made(name), made(name, "dnnkern"), batch()
    expected = passed(theirs, given)
    dnnkern.torch.status(reset=True)
    found = passed(ours, given)
    assert {(row.op, row.ours) for row in dnnkern.torch.status(reset=True)} == {("attention", True), ("attention backward", True)}
    assert_near(found, expected)


@pytest.mark.parametrize("name, cache", [("llama", None), ("llama", "static"), ("mistral", None), ("gemma3", None)])
def test_generation(name, cache):
    """With a cache, past the window, of prompts with padding on the left: the same tokens."""
    theirs, ours, given = made(name).eval(), made(name).eval(), batch(False)
    given = {"input_ids": given["input_ids"], "attention_mask": given["attention_mask"].clone()}
    given["attention_mask"][1, :4] = 0
    dnnkern.torch.apply_to_transformers(ours)
    options = {"max_new_tokens": 12, "do_sample": False, "use_cache": True, "eos_token_id": None, "pad_token_id": 0,
               "cache_implementation": cache, "disable_compile": True}
    expected = theirs.generate(**given, **options)
    dnnkern.torch.status(reset=True)
    found = ours.generate(**given, **options)
    assert ran() >= {"attention", "rms_norm", "rope", "gated"}
    assert torch.equal(found, expected)
    assert len(set(found[:, 11:].flatten().tolist())) > 3  # not one token again and again


def test_bfloat16():
    """No further from float64 than the model's own code in bfloat16 is, but for a tenth."""
    given = batch(False)
    exact = passed(made("gemma").double(), given)
    theirs, ours = made("gemma").bfloat16(), made("gemma").bfloat16()
    dnnkern.torch.apply_to_transformers(ours)
    errors = [(passed(model, given)[0].double() - exact[0]).square().mean().sqrt().item() for model in (ours, theirs)]
    assert errors[0] <= 1.1 * errors[1], errors
    assert {row.op for row in dnnkern.torch.status() if row.ours} >= OURS


def test_autocast():
    """No further from float32 than the model's own code under autocast, but for a half."""
    given, results = batch(), []
    exact = passed(made("llama"), given)
    for applied in (True, False):
        model = made("llama", "sdpa")
        if applied:
            dnnkern.torch.apply_to_transformers(model)
        dnnkern.torch.status(reset=True)
        with torch.autocast(DEVICE, torch.bfloat16):
            results.append(passed(model, given))
        rows = dnnkern.torch.status(reset=True)
        assert all(row.ours for row in rows) and {row.op for row in rows} >= (OURS if applied else set()), rows
    for name in exact[2]:
        ours, theirs = ((found[2][name] - exact[2][name]).norm() for found in results)
        assert ours <= 1.5 * theirs + 1e-6, (name, ours, theirs)
    ours, theirs = ((found[1] - exact[1]).abs().item() for found in results)
    assert ours < 1e-2 and results[0][1].dtype is torch.float32, (ours, theirs)


def test_checkpointed_layers():
    """Layers that run again in the backward pass."""
    theirs, ours, given = made("qwen3").train(), made("qwen3").train(), batch()
    dnnkern.torch.apply_to_transformers(ours)
    ours.gradient_checkpointing_enable()
    expected = passed(theirs, given)
    dnnkern.torch.status(reset=True)
    found = passed(ours, given)
    calls = {row.op: row.calls for row in dnnkern.torch.status() if row.ours}
    assert calls["attention"] == 2 * calls["attention backward"] == 2 * SIZES["num_hidden_layers"]
    assert_near(found, expected)


def test_under_functional_transforms():
    """Gradients by torch.func are PyTorch's, counted with the reason, and right."""
    mlp = made("llama").model.layers[0].mlp
    x = torch.randn(2, 3, SIZES["hidden_size"], device=DEVICE)
    weights = {name: p.detach() for name, p in mlp.named_parameters()}
    mlp(x).square().sum().backward()
    model = made("llama")
    dnnkern.torch.apply_to_transformers(model)
    dnnkern.torch.status(reset=True)
    found = torch.func.grad(lambda w: torch.func.functional_call(model.model.layers[0].mlp, w, (x,)).square().sum())(weights)
    assert [(row.op, row.ours, row.why) for row in dnnkern.torch.status(reset=True)] == [
        ("gated", False, "under torch.func, or in a second derivative")]
    for name, p in mlp.named_parameters():
        assert (found[name] - p.grad).abs().max() <= 2e-5 * p.grad.abs().max(), name


@pytest.mark.parametrize("first, second", [("dnnkern.torch", "transformers.modeling_utils"),
                                           ("transformers.modeling_utils", "dnnkern.torch")])
def test_attention_is_registered(first, second):
    """Whichever is imported first; dnnkern.torch imports nothing of transformers."""
    code = f"import importlib.util, sys, {first}\n" \
           "assert 'transformers' not in sys.modules or 'transformers.modeling_utils' in sys.modules\n" \
           "importlib.util.find_spec('transformers.modeling_utils')\n" \
           f"import {second}\nfrom transformers.masking_utils import AttentionMaskInterface\n" \
           "from transformers import AttentionInterface\n" \
           "assert 'dnnkern' in AttentionInterface() and 'dnnkern' in AttentionMaskInterface()\n" \
           "assert not [f for f in sys.meta_path if type(f).__name__ == '_WithTransformers']"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=ENVIRONMENT, timeout=200)
    assert done.returncode == 0, done.stderr


def test_restore_and_copies():
    model, given = made("llama", "sdpa"), batch()
    before, expected = {name: type(m) for name, m in model.named_modules()}, passed(model, given)
    forward = model.loss_function
    dnnkern.torch.apply_to_transformers(model)
    again = dnnkern.torch.apply_to_transformers(model)  # finds nothing more
    assert not again.replaced
    assert all(isinstance(m, before[name]) for name, m in model.named_modules())
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        dnnkern.torch.status(reset=True)
        assert_near(passed(copied, given), expected)
        assert ran() >= OURS
        dnnkern.torch.restore_transformers(copied)
        assert {name: type(m) for name, m in copied.named_modules()} == before
    dnnkern.torch.restore_transformers(model)
    assert {name: type(m) for name, m in model.named_modules()} == before
    assert model.config._attn_implementation == "sdpa" and model.loss_function is forward
    dnnkern.torch.status(reset=True)
    found = passed(model, given)
    assert not ran() and torch.equal(found[0], expected[0])
    assert model.state_dict().keys() == made("llama").state_dict().keys()


def test_unknown_shapes_are_left_and_listed():
    config = transformers.GPT2Config(vocab_size=37, n_embd=16, n_layer=1, n_head=2)
    model = transformers.GPT2LMHeadModel(config)
    before = {name: type(m) for name, m in model.named_modules()}
    done = dnnkern.torch.apply_to_transformers(model)
    assert not done.replaced and {name: type(m) for name, m in model.named_modules()} == before
    assert ("", "GPT2LMHeadModel", "it has no module of a known shape") in done.left
    assert any(left.layer == "GPT2Attention" and "no rotation" in left.why for left in done.left), done
    assert "left     the model (GPT2LMHeadModel): it has no module" in repr(done)


def test_a_norm_that_computes_something_else():
    """Though its name and its parameters are a norm's; one forward that was replaced; an activation that is not known."""
    model, given = made("llama"), batch()

    class OtherRMSNorm(type(model.model.norm)):
        def forward(self, x):
            return 2 * super().forward(x)
    model.model.norm.__class__ = OtherRMSNorm
    norm = model.model.layers[0].input_layernorm
    norm.forward = norm.forward
    model.model.layers[1].mlp.act_fn = nn.Tanh()
    expected = passed(model, given)
    done = dnnkern.torch.apply_to_transformers(model)
    told = {left.name: left.why for left in done.left}
    assert "does not compute" in told["model.norm"] and told["model.layers.0.input_layernorm"] == "its forward was replaced"
    assert told["model.layers.1.mlp"] == "its activation Tanh is none of swish, gelu, gelu_tanh" and len(told) == 3
    assert_near(passed(model, given), expected)


@pytest.mark.parametrize("model, text", [
    (nn.Linear(2, 3), "apply_to_transformers: model is a Linear; expected a transformers.PreTrainedModel"),
    (None, "apply_to_transformers: model is a NoneType; expected")])
def test_bad_models(model, text):
    with pytest.raises(TypeError, match=text):
        dnnkern.torch.apply_to_transformers(model)


def test_restoring_what_is_no_module():
    with pytest.raises(TypeError, match="restore_transformers: model is a int; expected a torch.nn.Module"):
        dnnkern.torch.restore_transformers(3)


# ---- attention as models call it, beside the definition in float64

def layer(causal=True):
    module = nn.Module()
    module.is_causal = causal
    return module


def reference(q, k, v, allowed, bias, sink, scale, softcap):
    """(B, S, H, E) of float64."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * scale
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    weights = torch.exp(scores + bias) * allowed
    total = weights.sum(-1, keepdim=True) + (0 if sink is None else torch.exp(sink)[:, None, None])
    return torch.einsum("bhqk,bhkd->bqhd", weights / total, v)


CALLS = {
    "causal": {}, "whole": {"causal": False}, "decode": {"rows": 1}, "decode-window": {"rows": 1, "sliding_window": 3},
    "window": {"sliding_window": 3, "keys": 7}, "softcap": {"softcap": 1.5}, "sinks": {"s_aux": True},
    "mask": {"mask": "bool"}, "bias": {"mask": "float"}, "position-bias": {"position_bias": True}, "static-cache": {"keys": 12},
    "all": {"mask": "bool", "softcap": 2.0, "s_aux": True, "position_bias": True, "scaling": 0.3}}


@pytest.mark.parametrize("name", CALLS)
def test_attention_of_a_layer(name):
    case = {"rows": 7, "keys": 7 if CALLS[name].get("rows") != 1 else 9, "causal": True, **CALLS[name]}
    rows, keys, causal = case.pop("rows"), case.pop("keys"), case.pop("causal")
    generator = torch.Generator().manual_seed(3)

    def random(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(DEVICE)
    tensors = {"q": random(2, 6, rows, 8), "k": random(2, 3, keys, 8), "v": random(2, 3, keys, 5)}
    at = torch.arange(rows, device=DEVICE)[:, None] + (keys - rows if rows == 1 else 0)
    key = torch.arange(keys, device=DEVICE)
    allowed = (key <= at if causal else key >= 0) & (key > at - case.get("sliding_window", keys))
    bias, mask = torch.zeros((), dtype=torch.float64, device=DEVICE), case.pop("mask", None)
    if mask == "bool":
        mask = allowed = torch.rand((2, 1, rows, keys), generator=generator).to(DEVICE) < 0.7
        mask = allowed = allowed | (key == 0)
    elif mask == "float":
        tensors["mask"], allowed = random(2, 1, rows, keys), torch.ones_like(allowed)
    if case.pop("position_bias", None):
        tensors["position_bias"] = random(1, 6, rows, keys)
    if case.pop("s_aux", None):
        tensors["s_aux"] = random(6)
    for dtype, bound in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
        one = {n: t.clone().to(dtype).requires_grad_() for n, t in tensors.items()}
        other = {n: t.clone().requires_grad_() for n, t in tensors.items()}
        dnnkern.torch.status(reset=True)
        out, weights = transformers.AttentionInterface()["dnnkern"](
            layer(causal), one["q"], one["k"], one["v"], one.get("mask", mask), **case,
            **{n: one[n] for n in ("s_aux", "position_bias") if n in one})
        expected = reference(other["q"], other["k"], other["v"], allowed, other.get("mask", bias) + other.get("position_bias", bias),
                             other.get("s_aux"), case.get("scaling", 8 ** -0.5), case.get("softcap"))
        dy = random(*expected.shape)
        out.backward(dy.to(dtype))
        expected.backward(dy)
        rows_ = dnnkern.torch.status(reset=True)
        assert {(row.op, row.ours) for row in rows_} == {("attention", True), ("attention backward", True)}, rows_
        assert weights is None and out.is_contiguous() and (out - expected).abs().max() < bound
        for n in one:
            assert (one[n].grad - other[n].grad).abs().max() < 10 * bound, n


def test_dropout_of_attention():
    """The probabilities that are kept are divided by their share; the mean of many equals no dropout; gradients have the same mask."""
    q, k, v = (torch.zeros(64, 2, 4, 8, device=DEVICE) for _ in range(3))
    v += 1
    v.requires_grad_()
    torch.manual_seed(0)
    out, _ = transformers.AttentionInterface()["dnnkern"](layer(False), q, k, v, None, dropout=0.25)
    kept = out.detach() * 3  # of four keys, each with 1/4 / 3/4
    assert (kept - kept.round()).abs().max() < 1e-4 and abs(out.mean().item() - 1) < 0.05 and out.std() > 0.1
    out.sum().backward()
    assert torch.allclose(v.grad.sum((1, 2)).sum(), out.sum(), rtol=1e-4)
    assert {row.op for row in dnnkern.torch.status(reset=True) if row.ours} == {"attention", "attention backward"}


def test_second_derivatives():
    """By PyTorch's formulas."""
    q, k, v = (torch.randn(1, 2, 3, 4, dtype=torch.float64, device=DEVICE, requires_grad=True) for _ in range(3))
    from dnnkern.torch import _transformers_ops as ops

    def attend(q, k, v):
        return ops.attention(q, k, v, None, None, None, 0.5, True, -1, 2.0, 0.0)[0]
    gate, up, gamma = q.reshape(6, 4), k.reshape(6, 4), v.reshape(-1)[:4]
    assert torch.autograd.gradcheck(attend, (q, k, v)) and torch.autograd.gradgradcheck(attend, (q, k, v))
    for function in ACTIVATIONS:
        assert torch.autograd.gradgradcheck(lambda a, b, f=function: gated(a, b, f), (gate, up))
    assert torch.autograd.gradgradcheck(lambda x, g: ops.rms_norm(x, g, 1e-5)[0], (gate, gamma))
    angles = torch.randn(6, 2, dtype=torch.float64, device=DEVICE)
    assert torch.autograd.gradgradcheck(lambda x: rotated(x, angles.cos(), angles.sin(), False, False), (gate,))


def test_compiled():
    """Dynamo and AOTAutograd trace the operators: one graph, the same values."""
    model, given = made("llama"), batch(False)
    expected = passed(model, given)
    dnnkern.torch.apply_to_transformers(model)
    torch._dynamo.reset()
    graphs = []

    def seen(graph, inputs):
        graphs.extend(str(n.target) for n in graph.graph.nodes if "dnnkern" in str(n.target))
        return graph
    compiled = torch.compile(model.model.layers[0].mlp, backend=seen)
    x = torch.randn(2, 3, SIZES["hidden_size"], device=DEVICE)
    assert torch.allclose(compiled(x), model.model.layers[0].mlp(x), atol=1e-5) and graphs == ["dnnkern.gated.default"]
    model.compile(backend="aot_eager")
    assert_near(passed(model, given), expected)
    torch._dynamo.reset()
