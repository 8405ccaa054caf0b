"""`dnnkern.torch.functional` beyond PyTorch's names: values and gradients beside PyTorch's composition, in float64 too."""
import doctest

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from test_torch_operators import drawn, ints  # noqa: E402
from test_torch_table import alone, assert_same, ran  # noqa: E402, F401 (a fixture)
from torch_calls import DEVICE, labels  # noqa: E402

import dnnkern.torch  # noqa: E402
from dnnkern.torch import functional as ours  # noqa: E402
from dnnkern.torch.functional import linear_loss  # noqa: E402
from dnnkern.torch.functional._attention_pytorchs import composition  # noqa: E402

pytestmark = pytest.mark.sized
BOUNDS = {"float64": 1e-10, "float32": 3e-5, "float16": 2e-2, "bfloat16": 1e-1}


def both(mine, theirs, *tensors):
    """Results and gradients of a function of ours, and of PyTorch's of the same tensors in float64."""
    found = []
    for function, wide in ((mine, False), (theirs, True)):
        given = [t.detach().to(torch.float64 if wide else t.dtype).requires_grad_() for t in tensors]
        outs = function(*given)
        outs = [outs] if isinstance(outs, torch.Tensor) else list(outs)
        weights = torch.Generator().manual_seed(3)
        loss = sum((y.double() * torch.randn(y.shape, generator=weights, dtype=torch.float64).to(DEVICE)).sum() for y in outs)
        found.append((outs, torch.autograd.grad(loss, given)))
    return found


def compared(mine, theirs, *tensors, op=None, bound=None):
    """The same, but for rounding, and it ran on this library's kernels."""
    (outs, grads), (outs64, grads64) = both(mine, theirs, *tensors)
    bound = bound or BOUNDS[str(tensors[0].dtype).removeprefix("torch.")]
    for kind, some, others in (("result", outs, outs64), ("gradient", grads, grads64)):
        for i, (x, y) in enumerate(zip(some, others, strict=True)):
            assert torch.equal(x.isnan(), y.isnan())
            worst = (x.double() - y).nan_to_num().abs().max().item()
            assert x.shape == y.shape and worst <= bound * max(1.0, y.nan_to_num().abs().max().item()), f"{kind} {i}: {worst}"
    rows = dnnkern.torch.status(reset=True)
    assert rows and all(row.ours for row in rows), rows
    assert op is None or {op, f"{op} backward"} <= {row.op for row in rows}
    return outs


ENDS = {"relu": F.relu, "silu": F.silu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), None: lambda x: x,
        "leaky_relu negative_slope=0.2": lambda x: F.leaky_relu(x, 0.2)}
EVERY = ["float64", "float32", "float16", "bfloat16"]


@pytest.mark.parametrize("activation", ENDS, ids=str)
@pytest.mark.parametrize("dims, last", [(1, False), (2, False), (2, True), (3, False)])
def test_convolutions(dims, last, activation):
    x, w = drawn(2, 3, *(7, 5, 4)[:dims], dtype="float32"), drawn(4, 3, *(3, 2, 2)[:dims], dtype="float32")
    f = getattr(F, f"conv{dims}d")
    residual = torch.randn_like(f(x, w, stride=2, padding=1))
    x, residual = [t.detach().to(memory_format=torch.channels_last) if last else t for t in (x, residual)]
    y, = compared(lambda x, w, b, r: getattr(ours, f"conv{dims}d")(x, w, b, 2, padding=1, residual=r, activation=activation),
                  lambda x, w, b, r: ENDS[activation](f(x, w, b, 2, padding=1) + r), x, w, drawn(4, dtype="float32"), residual)
    assert not last or y.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", EVERY)
@pytest.mark.parametrize("activation", ["relu", "gelu_tanh"])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(dtype, activation, training):
    wide = "float64" if dtype == "float64" else "float32"
    mean, var = drawn(5, dtype=wide).detach(), drawn(5, dtype=wide).detach().square() + 0.5
    runs = []

    def norm(f, end):
        def run(x, g, b, r):
            kept = [t.to(g.dtype).clone() for t in (mean, var)]
            runs.append(kept)
            return end(f, x, *kept, g, b, training, r)
        return run
    compared(norm(ours.batch_norm, lambda f, *given: f(*given[:-1], residual=given[-1], activation=activation)),
             norm(F.batch_norm, lambda f, *given: ENDS[activation](f(*given[:-1]) + given[-1])),
             drawn(3, 5, 3, 4, dtype=dtype), drawn(5, dtype=wide), drawn(5, dtype=wide), drawn(3, 5, 3, 4, dtype=dtype), op="batch_norm")
    for mine, theirs in zip(*runs):
        assert torch.allclose(mine.double(), theirs, atol=1e-2 if "16" in dtype else 1e-5)


@pytest.mark.parametrize("dtype", EVERY)
@pytest.mark.parametrize("activation", ENDS, ids=str)
def test_linear(dtype, activation):
    compared(lambda x, w, b, r: ours.linear(x, w, b, residual=r, activation=activation),
             lambda x, w, b, r: ENDS[activation](F.linear(x, w, b) + r),
             drawn(2, 3, 7, dtype=dtype), drawn(5, 7, dtype=dtype), drawn(5, dtype=dtype), drawn(2, 3, 5, dtype=dtype),
             bound=None if dtype != "bfloat16" else 0.2)


def half(x):
    return x.chunk(2, -1)


@pytest.mark.parametrize("dtype", EVERY)
def test_gated(dtype):
    gate, up = drawn(3, 2, 7, dtype=dtype), drawn(3, 2, 7, dtype=dtype) * 2
    for name, activation in (("swiglu", F.silu), ("geglu", F.gelu)):
        f = getattr(ours, name)
        compared(f, lambda g, u: activation(g) * u, gate, up, op=None)
        compared(f, lambda x: activation(half(x)[0]) * half(x)[1], drawn(3, 14, dtype=dtype))
        compared(lambda x: f(x, dim=0), lambda x: activation(x[:2]) * x[2:], drawn(4, 5, dtype=dtype))
        compared(lambda x: f(x.transpose(0, 1), dim=1), lambda x: activation(x[:2].t()) * x[2:].t(), drawn(4, 5, dtype=dtype))
    compared(lambda g, u: ours.geglu(g, u, approximate="tanh"), lambda g, u: F.gelu(g, approximate="tanh") * u, gate, up)


def rotated(x, cos, sin, interleaved):
    """By complex numbers."""
    r = cos.shape[-1]
    a, b = (x[..., :2 * r:2], x[..., 1:2 * r:2]) if interleaved else (x[..., :r], x[..., r:2 * r])
    z = torch.complex(a, b) * torch.complex(cos.double(), sin.double())
    pair = torch.view_as_real(z)
    done = pair.flatten(-2) if interleaved else torch.cat(pair.unbind(-1), -1)
    return torch.cat([done, x[..., 2 * r:]], -1)


@pytest.mark.parametrize("dtype", EVERY)
@pytest.mark.parametrize("interleaved", [False, True])
def test_rope(dtype, interleaved):
    angle = torch.arange(5.0, device=DEVICE)[:, None] * torch.tensor([1.0, 0.1, 0.01], device=DEVICE)
    cos, sin = [t.to(torch.float64 if dtype == "float64" else torch.float32) for t in (angle.cos(), angle.sin())]
    compared(lambda x: ours.rope(x, cos, sin, interleaved=interleaved), lambda x: rotated(x, cos, sin, interleaved),
             drawn(2, 3, 5, 7, dtype=dtype))
    x = drawn(2, 5, 3, 6, dtype=dtype)
    y, = compared(lambda x: ours.rope(x.transpose(1, 2), cos, sin, interleaved=interleaved),
                  lambda x: rotated(x.transpose(1, 2), cos, sin, interleaved), x)
    assert y.stride() == x.transpose(1, 2).stride()


@pytest.mark.parametrize("dtype", EVERY)
@pytest.mark.parametrize("shape", [5, (3, 5)])
@pytest.mark.parametrize("only", [None, 0, 1])
def test_residual_norms(dtype, shape, only):
    """Each result's gradient alone, too."""
    wide = "float64" if dtype == "float64" else "float32"
    sizes = (shape,) if isinstance(shape, int) else shape
    x, r, g, b = drawn(2, 3, 5, dtype=dtype), drawn(2, 3, 5, dtype=dtype) * 2, drawn(*sizes, dtype=wide), drawn(*sizes, dtype=wide)

    def chosen(both):
        return both if only is None else both[only]
    if only == 1:
        compared(lambda x, r: ours.residual_layer_norm(x, r, shape, g.detach())[1], lambda x, r: x + r, x, r)
        compared(lambda x, r: ours.residual_rms_norm(x, r, shape)[1], lambda x, r: x + r, x, r)
        return
    compared(lambda x, r, g, b: chosen(ours.residual_layer_norm(x, r, shape, g, b, 1e-3)),
             lambda x, r, g, b: chosen((F.layer_norm(x + r, sizes, g, b, 1e-3), x + r)), x, r, g, b, op="residual_layer_norm")
    compared(lambda x, r, g: chosen(ours.residual_rms_norm(x, r, shape, g, 1e-3)),
             lambda x, r, g: chosen((F.rms_norm(x + r, sizes, g, 1e-3), x + r)), x, r, g, op="residual_rms_norm")


OPTIONS = {"plain": {}, "causal": {"causal": True}, "bottom_right": {"causal": True, "align": "bottom_right", "window": (2, -1)},
           "scale, softcap": {"scale": 0.7, "softcap": 2.0}, "window": {"window": (1, 2)}, "alibi": {"alibi": True, "causal": True},
           "lengths": {"seq_len_q": ints(4, 2), "seq_len_kv": ints(7, 3), "causal": True, "align": "bottom_right"},
           "mask": {"mask": (labels(5, 7, classes=3) > 0)}, "nothing": {"mask": torch.zeros(5, 1, dtype=torch.bool, device=DEVICE)}}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("layout", ["BHSD", "BSHD"])
def test_attention(options, layout):
    q, k, v = drawn(2, 4, 5, 6), drawn(2, 2, 7, 6), drawn(2, 2, 7, 3)
    q, k, v = [t.detach() if layout == "BHSD" else t.detach().transpose(1, 2) for t in (q, k, v)]
    options = {**options, "layout": layout}
    compared(lambda q, k, v: ours.attention(q, k, v, **options), lambda q, k, v: composition(q, k, v, **options), q, k, v, op="attention")
    (o, lse), (o64, lse64) = [f(q, k, v, **options, return_lse=True) for f in (ours.attention, composition)]
    assert torch.allclose(lse, lse64) and torch.allclose(o, o64)


@pytest.mark.parametrize("dtype", EVERY)
def test_attention_is_pytorchs(dtype):
    """Beside PyTorch's own, which knows causal masks, masks and scales."""
    compared(lambda q, k, v: ours.attention(q, k, v, causal=True, scale=0.4),
             lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.4, enable_gqa=True),
             drawn(2, 4, 5, 6, dtype=dtype), drawn(2, 2, 7, 6, dtype=dtype), drawn(2, 2, 7, 6, dtype=dtype), op="attention")


def test_biases_and_sinks():
    compared(lambda q, k, v, b, s: ours.attention(q, k, v, bias=b, sink=s), lambda q, k, v, b, s: composition(q, k, v, bias=b, sink=s),
             drawn(2, 4, 5, 6), drawn(2, 2, 7, 6), drawn(2, 2, 7, 6), drawn(4, 1, 7), drawn(4), op="attention")
    q, k, v, s = drawn(2, 4, 5, 6), drawn(2, 2, 7, 6), drawn(2, 2, 7, 6), torch.full((4,), -50.0, dtype=torch.float64, device=DEVICE)
    assert torch.allclose(ours.attention(q, k, v, sink=s), F.scaled_dot_product_attention(q, k, v, enable_gqa=True))


def test_packed_sequences():
    """Beside each sequence alone."""
    q, k, v = drawn(6, 2, 5), drawn(9, 2, 5), drawn(9, 2, 5)
    at_q, at_k = ints(0, 2, 6), ints(0, 4, 9)

    def apart(q, k, v):
        parts = [composition(*[t[a:b].transpose(0, 1)[None] for t, (a, b) in zip((q, k, v), ends)], causal=True)[0].transpose(0, 1)
                 for ends in (((0, 2), (0, 4), (0, 4)), ((2, 6), (4, 9), (4, 9)))]
        return torch.cat(parts)
    compared(lambda q, k, v: ours.attention(q, k, v, layout="THD", cu_seqlens_q=at_q, cu_seqlens_kv=at_k, causal=True), apart, q, k, v,
             op="attention")


def test_dropout_of_attention():
    """One seed, one mask: the result is linear in values, and its gradient is that mask's."""
    q, k = drawn(1, 2, 4, 6).detach(), drawn(1, 2, 7, 6).detach()
    identity = torch.eye(7, dtype=torch.float64, device=DEVICE).expand(1, 2, 7, 7)
    whole = ours.attention(q, k, identity)
    for seed in (5, torch.tensor(5, device=DEVICE)):
        p = ours.attention(q, k, identity, dropout=0.5, seed=seed)
        kept = p != 0
        assert 0.2 < kept.double().mean() < 0.8 and torch.allclose(p, kept * whole * 2)
        v = drawn(1, 2, 7, 3)
        y = ours.attention(q, k, v, dropout=0.5, seed=seed)
        assert torch.allclose(y, p @ v)
        assert torch.allclose(torch.autograd.grad(y.sum(), v)[0], p.mT.sum(-1, keepdim=True).expand(1, 2, 7, 3))
    drawn_twice = [ours.attention(q, k, identity, dropout=0.5) for _ in range(2)]
    assert not torch.equal(*drawn_twice)
    torch.manual_seed(1)
    first = ours.attention(q, k, identity, dropout=0.5)
    torch.manual_seed(1)
    assert torch.equal(first, ours.attention(q, k, identity, dropout=0.5))


def test_second_derivatives_of_attention():
    q, k, v = drawn(1, 2, 3, 4), drawn(1, 2, 3, 4) * 0.5, drawn(1, 2, 3, 4) * 2
    assert torch.autograd.gradgradcheck(lambda q, k, v: ours.attention(q, k, v, causal=True), (q, k, v), fast_mode=True)
    y = ours.attention(q, k, v, dropout=0.5)
    with pytest.raises(NotImplementedError, match="attention: dropout in second derivatives"):
        torch.autograd.grad(y.sum(), q, create_graph=True)


@pytest.mark.parametrize("layout", ["BHSD", "BSHD"])
def test_decoding(layout):
    """Beside attention to the pages in order."""
    q, length, pages = drawn(2, 4, 1, 6).detach(), ints(5, 8), torch.tensor([[3, 0], [1, 2]], dtype=torch.int32, device=DEVICE)
    k, v = drawn(4, 2, 4, 6).detach(), drawn(4, 2, 4, 3).detach()
    whole = [t[pages.long()].transpose(1, 2).flatten(2, 3) for t in (k, v)]
    theirs = torch.cat([F.scaled_dot_product_attention(q[b:b + 1], *[t[b:b + 1, :, :n] for t in whole], enable_gqa=True)
                        for b, n in enumerate((5, 8))])
    given = q, k, v
    if layout == "BSHD":
        given, theirs, whole = [t.transpose(1, 2) for t in given], theirs.transpose(1, 2), [t.transpose(1, 2) for t in whole]
    mine, lse = ours.attention_decode(*given, length, page_table=pages, layout=layout, return_lse=True)
    assert torch.allclose(mine, theirs) and lse.shape == (2, 4, 1) and ran() == {"attention_decode"}
    options = {"seq_len_kv": length, "causal": True, "align": "bottom_right", "layout": layout, "return_lse": True}
    assert torch.allclose(lse, composition(given[0], *whole, **options)[1])
    with pytest.raises(ValueError, match="attention_decode: an argument needs a gradient"):
        ours.attention_decode(given[0].detach().requires_grad_(), *given[1:], length, page_table=pages, layout=layout)


@pytest.mark.parametrize("dtype", EVERY)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("activation", ["relu", "silu", None])
def test_grouped(dtype, transposed, activation):
    ends = [1, 3, 3, 7]  # a row before the first group, and one after the last

    def apart(a, b, c):
        b = b.mT if transposed else b
        return torch.cat([ENDS[activation](a[first:last] @ b[g] + c[g]) for g, (first, last) in enumerate(zip(ends, ends[1:]))])
    compared(lambda a, b, c: ours.grouped_matmul(a, b, ints(*ends), bias=c, transpose_weight=transposed, activation=activation)[1:7], apart,
             drawn(8, 5, dtype=dtype), drawn(3, 4, 5, dtype=dtype) if transposed else drawn(3, 5, 4, dtype=dtype), drawn(3, 4, dtype=dtype),
             op="grouped_matmul", bound=0.2 if dtype == "bfloat16" else None)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("way", ["rows", "one after the other", "tuples"])
def test_ctc(reduction, normalized, way):
    targets, given, wanted = labels(3, 4, classes=4) + 1, torch.tensor([6, 7, 2]), torch.tensor([4, 2, 3])  # the last is too long
    if way == "tuples":
        given, wanted = tuple(given.tolist()), tuple(wanted.tolist())
    elif way == "one after the other":
        targets = torch.cat([row[:n] for row, n in zip(targets, wanted)])
    for zero in (True, False)[:1 if reduction != "none" else 2]:
        def run(f, x, **more):
            loss = f(x, targets, given, wanted, 0, reduction, zero, **more)
            return loss[:2] if reduction == "none" and not zero else loss
        compared(lambda x: run(ours.ctc_loss, x if not normalized else x.log_softmax(-1), normalized=normalized),
                 lambda x: run(F.ctc_loss, x.log_softmax(-1)), drawn(7, 3, 5), op="ctc_loss")


def test_ctc_of_one_sample():
    compared(lambda x: ours.ctc_loss(x.log_softmax(-1), torch.tensor([1, 2], device=DEVICE), (5,), (2,), reduction="none"),
             lambda x: F.ctc_loss(x.log_softmax(-1), torch.tensor([1, 2], device=DEVICE), (5,), (2,), reduction="none"), drawn(5, 4))
    for f in (ours.ctc_loss, F.ctc_loss):
        with pytest.raises(RuntimeError, match="Expected input_lengths to have value at most"):
            f(torch.zeros(3, 1, 2, device=DEVICE), torch.ones(1, 1, dtype=torch.int64, device=DEVICE), (4,), (1,))


@pytest.mark.parametrize("dtype", EVERY)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("more", ["", "smooth", "weighted", "soft", "no bias"])
def test_linear_cross_entropy(dtype, reduction, more, monkeypatch):
    monkeypatch.setattr(linear_loss, "LEAST", 4)
    x, w, b, target = drawn(11, 6, dtype=dtype), drawn(13, 6, dtype=dtype), drawn(13, dtype=dtype), labels(11, classes=13)
    assert linear_loss.rows_of_chunk(11, 6, 13) == 6
    target[3] = -100
    options = {"reduction": reduction, "ignore_index": -100}
    if more == "smooth":
        options |= {"label_smoothing": 0.2, "ignore_index": 2}
        target[3] = 5
    weight = drawn(13, dtype="float64" if dtype == "float64" else "float32").detach().abs() if more == "weighted" else None
    if more == "soft":
        target = drawn(11, 13, dtype=dtype).detach().softmax(-1)

    def run(x, w, *b):
        return ours.linear_cross_entropy(x, w, target, linear_bias=b[0] if b else None, weight=weight, **options)

    def theirs(x, w, *b):
        return F.cross_entropy(F.linear(x, w, *b), target.double() if more == "soft" else target,
                               weight=None if weight is None else weight.double(), **options)
    compared(run, theirs, x, w, *([] if more == "no bias" else [b]), op=None, bound=0.2 if dtype == "bfloat16" else None)


def test_gradients_of_a_loss_are_scaled_and_kept():
    """Two backward passes, and gradients of some arguments alone."""
    x, w, target = drawn(5, 3), drawn(7, 3), labels(5, classes=7)
    loss = ours.linear_cross_entropy(x, w.detach(), target) * 3
    theirs = F.cross_entropy(x @ w.detach().t(), target) * 3
    expected, = torch.autograd.grad(theirs, x)
    for keep in (True, False):
        assert torch.allclose(torch.autograd.grad(loss, x, retain_graph=keep)[0], expected)
    assert torch.autograd.gradgradcheck(lambda x, w: ours.linear_cross_entropy(x, w, target), (x, w), fast_mode=True)


def test_a_loss_without_its_logits(monkeypatch):
    """No product of a step is larger than a chunk."""
    monkeypatch.setattr(linear_loss, "LEAST", 4)
    n, k, c = 64, 3, 50
    largest = [0]
    kept = dnnkern.matmul

    def measured(*args, **more):
        y = kept(*args, **more)
        largest[0] = max(largest[0], y.numel())
        return y
    monkeypatch.setattr(dnnkern, "matmul", measured)
    x, w = drawn(n, k), drawn(c, k)
    for reduction in ("mean", "none"):
        ours.linear_cross_entropy(x, w, labels(n, classes=c), reduction=reduction).sum().backward()
    assert 0 < largest[0] <= 4 * c


# ---- transforms, autocast, compilers

FILTER, MATRIX = drawn(4, 3, 3, 3, dtype="float32").detach(), drawn(4, 5, dtype="float32").detach()
COS = torch.zeros(2, device=DEVICE)
CALLS = {
    "conv2d": lambda x: ours.conv2d(x, FILTER.to(x.dtype), padding=1, activation="relu"),
    "linear": lambda x: ours.linear(x, MATRIX.to(x.dtype), activation="silu"), "swiglu": lambda x: ours.swiglu(x, x * 2),
    "rope": lambda x: ours.rope(x, COS, COS + 1), "residual_rms_norm": lambda x: ours.residual_rms_norm(x, x * 2, 5)[0],
    "attention": lambda x: ours.attention(x, x * 2, x, causal=True)}


@pytest.mark.parametrize("name", CALLS)
def test_functions_under_transforms(name):
    f, x = CALLS[name], drawn(3, 2, 3, 4, 5, dtype="float32").detach()
    loop = torch.stack([f(one) for one in x])
    dnnkern.torch.status(reset=True)
    assert torch.allclose(torch.vmap(f)(x), loop, atol=1e-5) and ran() >= {{"conv2d": "convolution", "swiglu": "gated"}.get(name, name)}
    one = x[0].clone().requires_grad_()
    expected, = torch.autograd.grad(f(one).square().sum(), one)
    assert torch.allclose(torch.func.grad(lambda x: f(x).square().sum())(x[0]), expected, atol=1e-4)
    compiled = torch.compile(f, backend="aot_eager", fullgraph=True)
    again = x[0].clone().requires_grad_()
    mine, = torch.autograd.grad(compiled(again).square().sum(), again)
    assert torch.allclose(mine, expected, atol=1e-4)
    small = x[0].double().requires_grad_()
    if name in ("swiglu", "residual_rms_norm"):
        assert torch.autograd.gradgradcheck(f, small[:1, :1, :2], fast_mode=True)


COMPILED = {
    **{name: (f, (7, 3, 4, 5)) for name, f in CALLS.items()},
    "batch_norm": (lambda x: ours.batch_norm(x, None, None, training=True, residual=x * 2, activation="relu"), (4, 3, 2)),
    "geglu": (ours.geglu, (3, 6)), "residual_layer_norm": (lambda x: ours.residual_layer_norm(x, x * 2, (3,))[0], (2, 3)),
    "grouped_matmul": (lambda x: ours.grouped_matmul(x, MATRIX.t()[None], (torch.arange(2, device=DEVICE) * x.shape[0]).int()), (4, 5)),
    "ctc_loss": (lambda x: ours.ctc_loss(x, TARGETS.expand(x.shape[1], 2), STEPS.expand(x.shape[1]), STEPS.expand(x.shape[1]),
                                         normalized=False), (5, 7, 4)),
    "linear_cross_entropy": (lambda x: ours.linear_cross_entropy(x, MATRIX, x.argmax(-1).clamp(0, 3)), (6, 5))}
TARGETS, STEPS = torch.tensor([1, 2], device=DEVICE), torch.tensor([2], device=DEVICE)


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_with_dynamic_shapes(name):
    """In one graph for all sizes, of our operators."""
    f, shape = COMPILED[name]
    axis = 1 if name == "ctc_loss" else 0
    graphs = []

    def backend(graph, given):
        from functorch.compile import make_boxed_func
        from torch._dynamo.backends.common import aot_autograd

        def keep(inner, _):
            graphs.append(str(inner.graph))
            return make_boxed_func(inner.forward)
        return aot_autograd(fw_compiler=keep)(graph, given)
    compiled = torch.compile(f, backend=backend, fullgraph=True, dynamic=True)
    for more in (0, 1, 3):
        x = drawn(*[n + more * (d == axis) for d, n in enumerate(shape)], dtype="float32")
        (mine,), (theirs,) = [torch.autograd.grad(g(x).square().sum(), x) for g in (compiled, f)]
        assert torch.allclose(mine, theirs, atol=1e-5)
    assert len(graphs) == 2 and "dnnkern" in graphs[0], graphs


@pytest.mark.parametrize("name", CALLS)
def test_autocast(name):
    x = drawn(2, 3, 4, 5, dtype="float32").detach()
    with torch.autocast(DEVICE, torch.bfloat16):
        y = CALLS[name](x)
    assert y.dtype is (torch.bfloat16 if name in ("conv2d", "linear", "attention") else torch.float32)
    assert torch.allclose(y.float(), CALLS[name](x), atol=0.15 if y.dtype is torch.bfloat16 else 1e-6)


def test_autocast_leaves_biases_and_sinks():
    q, bias, sink = drawn(1, 2, 3, 4, dtype="float32"), drawn(3, 3, dtype="float32"), drawn(2, dtype="float32")
    with torch.autocast(DEVICE, torch.bfloat16):
        y = ours.attention(q, q, q, bias=bias, sink=sink)
    low = q.detach().bfloat16()
    assert torch.equal(y, ours.attention(low, low, low, bias=bias, sink=sink)) and y.dtype is torch.bfloat16
    grads = torch.autograd.grad(y.sum(), (q, bias, sink))
    theirs = torch.autograd.grad(composition(q, q, q, bias=bias, sink=sink).sum(), (q, bias, sink))
    for mine, other in zip(grads, theirs):
        assert mine.dtype is torch.float32 and torch.allclose(mine, other, atol=0.05)


# ---- bad input

def ones(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype, device=DEVICE)


BAD = [
    (lambda: ours.conv2d(ones(1, 1, 3, 3), ones(1, 1, 1, 1), residual=ones(1, 1, 2, 2)), ValueError, "conv2d: .*residual"),
    (lambda: ours.conv2d(ones(1, 1, 3, 3), ones(1, 1, 1, 1), activation="nosuch"), ValueError, "conv2d: activation is 'nosuch'"),
    (lambda: ours.conv1d(ones(1, 1, 3), ones(1, 1, 1), activation=3), TypeError, "conv1d: activation is int"),
    (lambda: ours.linear(ones(2, 3), ones(4, 3), residual=ones(2, 3)), ValueError, r"linear: residual has .*\(2, 3\); expected \(2, 4\)"),
    (lambda: ours.batch_norm(ones(2, 3), None, None, training=True, residual=ones(2, 2)), ValueError, "batch_norm: residual has shape"),
    (lambda: ours.swiglu(ones(2, 3)), ValueError, "swiglu: gate has shape"),
    (lambda: ours.swiglu(ones(2, 3), ones(2, 4)), ValueError, "swiglu: up has shape"),
    (lambda: ours.geglu(ones(2, 4), approximate="x"), ValueError, "geglu: approximate is 'x'"),
    (lambda: ours.swiglu(3), TypeError, "swiglu: the first argument is int"),
    (lambda: ours.rope(ones(2, 4), ones(2, 3), ones(2, 3)), ValueError, "rope: cos has shape"),
    (lambda: ours.residual_layer_norm(ones(2, 3), ones(2, 3), 2), ValueError, "residual_layer_norm: normalized_shape is"),
    (lambda: ours.residual_rms_norm(ones(2, 3), ones(3), 3), ValueError, "residual_rms_norm: residual has shape"),
    (lambda: ours.residual_rms_norm(ones(2, 3), ones(2, 3), 3, ones(2)), ValueError, "residual_rms_norm: weight has shape"),
    (lambda: ours.attention(ones(1, 1, 2, 3), ones(1, 1, 2, 3), ones(1, 1, 2, 3), layout="x"), ValueError, "attention: layout is 'x'"),
    (lambda: ours.attention(ones(1, 2, 3), ones(1, 1, 2, 3), ones(1, 1, 2, 3)), ValueError, "attention: query has shape"),
    (lambda: ours.attention(ones(1, 3, 2, 3), ones(1, 2, 2, 3), ones(1, 2, 2, 3)), ValueError, "attention: .*heads"),
    (lambda: ours.attention(ones(1, 1, 2, 3), ones(1, 1, 2, 3), ones(1, 1, 2, 3), dropout=1.0), ValueError, "attention: dropout is 1.0"),
    (lambda: ours.attention(*[ones(1, 1, 2, 3)] * 3, dropout=0.5, seed=ones(1)), ValueError, "attention: seed is"),
    (lambda: ours.attention(ones(1, 1, 2, 3), ones(1, 1, 2, 3).double(), ones(1, 1, 2, 3)), TypeError, "attention: key is torch.float64"),
    (lambda: ours.grouped_matmul(ones(2, 3), ones(1, 4, 3), ints(0, 2)), ValueError, "grouped_matmul: input has shape"),
    (lambda: ours.grouped_matmul(ones(2, 3), ones(1, 3, 4), ints(0, 2, 2)), ValueError, "grouped_matmul: offsets is"),
    (lambda: ours.grouped_matmul(ones(2, 3), ones(1, 3, 4), ints(0, 2), bias=ones(4)), ValueError, "grouped_matmul: bias has shape"),
    (lambda: ours.linear_cross_entropy(ones(2, 3), ones(4, 2), labels(2, classes=4)), ValueError, "linear_cross_entropy: input has shape"),
    (lambda: ours.linear_cross_entropy(ones(2, 3), ones(4, 3), labels(3, classes=4)), ValueError, "linear_cross_entropy: target has shape"),
    (lambda: ours.linear_cross_entropy(ones(2, 3), ones(4, 3), labels(2, classes=4), reduction="x"), ValueError, "reduction is 'x'"),
    (lambda: ours.linear_cross_entropy(ones(2, 3), ones(4, 3), labels(2, classes=4), label_smoothing=2), ValueError, "smoothing is 2"),
    (lambda: ours.linear_cross_entropy(ones(2, 3), ones(4, 3), ints(1, 2)), TypeError, "target is torch.int32")]


@pytest.mark.parametrize("call, error, text", BAD, ids=[text for _, _, text in BAD])
def test_bad_input(call, error, text):
    with pytest.raises(error, match=text):
        call()
    assert not ran()


def test_what_is_not_ours_is_pytorchs_and_counted():
    x = torch.ones(2, 4, dtype=torch.int64, device=DEVICE)
    mixed = ones(2, 4, dtype=torch.bfloat16)
    for y in (ours.swiglu(mixed, ones(2, 4)), ours.residual_rms_norm(mixed, ones(2, 4), 4)[1],
              ours.batch_norm(mixed, None, None, training=True, residual=ones(2, 4)), ours.linear(mixed, mixed, residual=ones(2, 2))):
        assert y.dtype is torch.float32
    named = {"swiglu", "residual_rms_norm", "batch_norm", "linear"}
    assert {(row.op, row.ours) for row in dnnkern.torch.status(reset=True)} == {(name, False) for name in named}
    assert torch.equal(ours.rope(x.float(), ones(2).requires_grad_(), ones(2)), torch.tensor([[0.0, 0, 2, 2]] * 2, device=DEVICE))
    assert {(row.op, row.ours) for row in dnnkern.torch.status(reset=True)} == {("rope", False)}


@pytest.mark.skipif(DEVICE == "cuda", reason="the examples' tensors are the processor's")
def test_examples_of_docstrings():
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    found = 0
    for name in ours.__all__:
        test = finder._parser.get_doctest(getattr(ours, name).__doc__, {}, name, None, None)
        found += bool(test.examples)
        assert runner.run(test).failed == 0, name
    assert found == 15
