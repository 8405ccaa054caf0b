"""Calls of PyTorch that reach every entry of `dnnkern.torch`'s table, and ways for their tensors to lie in memory."""
import contextlib
from dataclasses import dataclass
from typing import Callable

import torch
import torch.nn.functional as F

from dnnkern.device import HOST_MEMORY

DEVICE = "cpu" if HOST_MEMORY else "cuda"
PLAIN = "contiguous", "sliced", "expanded", "transposed"
EVERY = *PLAIN, "channels_last"


@dataclass(frozen=True)
class Call:
    """`function` of tensors of these shapes, the first of which lies in memory in several ways; `ops` are the operators that it and its
    gradient reach."""
    id: str
    function: Callable
    shapes: tuple
    ops: tuple
    ways: tuple = EVERY
    dtypes: tuple = ("float64", "float16", "bfloat16")

    def __str__(self):
        return self.id


WITHOUT_HALVES = ("float64",)
HALVES = "float64", "float16", "bfloat16"


def labels(*shape, classes):
    return torch.arange(torch.Size(shape).numel(), device=DEVICE).reshape(shape) % classes


def conv(n, groups=1, **how):
    """A convolution in n dimensions of 4 channels to 6."""
    f = (F.conv1d, F.conv2d, F.conv3d)[n - 1]
    image, window = ((9,), (6, 7), (4, 5, 4))[n - 1], (3, 2, 2)[:n]
    return lambda x, w, b: f(x, w, b, groups=groups, **how), ((2, 4, *image), (6, 4 // groups, *window), (6,))


def transposed(n, groups=1, **how):
    f = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[n - 1]
    image, window = ((5,), (3, 4), (2, 3, 2))[n - 1], (3, 2, 2)[:n]
    return lambda x, w, b: f(x, w, b, groups=groups, **how), ((2, 4, *image), (4, 6 // groups, *window), (6,))


CONV = "convolution", "convolution_backward"


def out(function, shape):
    """A call with ``out=``, which autograd does not take."""
    return lambda *given: function(*[t.detach() for t in given], out=given[0].new_empty(shape, requires_grad=False))


def into_slice(x):
    y = x.new_zeros((2, 3, 4, 9))
    y[..., 2:7] = x
    return y


def norm_of(x, gamma, beta, **how):
    mean, var = torch.zeros_like(gamma), torch.ones_like(gamma)
    return F.batch_norm(x, mean, var, gamma, beta, **how), mean, var


def gradient_of_frozen(x, gamma, beta):
    """Of batch norm with running statistics, as autograd calls it."""
    x, gamma, mean = x.detach(), gamma.detach(), beta.detach()
    return torch.ops.aten.native_batch_norm_backward(x.flip(0), x, gamma, mean, mean.square() + 0.5, None, None, False, 1e-3, [True] * 3)


NATIVE = "native_batch_norm", "native_batch_norm_backward"
BATCH_NORM = NATIVE if HOST_MEMORY else ("cudnn_batch_norm", "cudnn_batch_norm_backward")
LAYER_NORM = "native_layer_norm", "native_layer_norm_backward"
GROUP_NORM = "native_group_norm", "native_group_norm_backward"
CTC = "_ctc_loss", "_ctc_loss_backward"
NLL = "nll_loss_forward", "nll_loss_backward"
AVERAGE = "avg_pool2d", "avg_pool2d_backward"
ADAPTIVE = "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward"
ADAPTIVE_3D = "_adaptive_avg_pool3d", "_adaptive_avg_pool3d_backward"
ADAPTIVE_MAX = "adaptive_max_pool2d", "adaptive_max_pool2d_backward"
EMBEDDING = "embedding", "embedding_dense_backward"
GRID = "grid_sampler_2d", "grid_sampler_2d_backward"
MAX_POOL = "max_pool2d_with_indices", "max_pool2d_with_indices_backward"
MAX_POOL_3D = tuple(name.replace("2d", "3d") for name in MAX_POOL)


def network(cell, layers=1, directions=1, biases=True, batch_first=False, projection=0, samples=2):
    """A recurrent network of 3 steps of 2 samples, 4 numbers to 5, and shapes of x, the states and the weights."""
    gates, states = {"lstm": (4, 2), "gru": (3, 1)}.get(cell, (1, 1))
    state = projection or 5
    weights = []
    for layer in range(layers):
        weights += directions * [(gates * 5, directions * state if layer else 4), (gates * 5, state),
                                 *([(gates * 5,)] * 2 if biases else []), *([(projection, 5)] if projection else [])]

    def run(x, *given, batch_sizes=None):
        hx = given[:states] if cell == "lstm" else given[0]
        first, last = ((x,), (batch_first,)) if batch_sizes is None else ((x, batch_sizes), ())
        return getattr(torch, cell)(*first, hx, given[states:], biases, layers, 0.0, False, directions == 2, *last)
    shapes = (layers * directions, samples, state), *[(layers * directions, samples, 5)] * (states - 1), *weights
    return run, ((samples, 3, 4) if batch_first else (3, samples, 4), *shapes), (f"{cell}.input", f"{cell}.input backward")


def packed(cell, *args, **how):
    """The same of packed sequences, of 3, 2, 2 and 1 steps."""
    run, (_, *states), _ = network(cell, *args, samples=4, **how)
    sizes = torch.tensor([4, 3, 1])

    def of_packed(x, *given):
        return run(x, *given, batch_sizes=sizes)
    return of_packed, ((8, 4), *states), (f"{cell}.data", f"{cell}.data backward")


EIGHT = torch.float8_e4m3fn


def eight(name, kind=EIGHT, rows=False, into=torch.bfloat16, **more):
    """A product of 8-bit floats with scales, by one of its operators; they have no gradients."""
    def run(a, b, bias, scale):
        a, b, scale = a.detach().to(kind), b.detach().to(EIGHT).t(), scale.detach().square()
        scales = (scale[:, None], scale[None]) if rows else (scale[0].clone(), scale[1].clone())  # cuBLASLt takes aligned ones alone
        last = {**more, "out_dtype": into}
        if name.endswith("out"):
            last["out"] = a.new_empty((a.shape[0], b.shape[1]), dtype=into)
        operator = getattr(torch.ops.aten, name.partition(".")[0])
        operator = operator.out if name.endswith("out") else operator.default
        bias = bias.detach().to(into) if into.itemsize == 2 else None
        if "v2" not in name:
            return operator(a, b, *scales, bias=bias, **last)
        how = [int(rows)], [0]
        return operator(a, b, [scales[0]], *how, [scales[1]], *how, bias, **last)
    return run, ((32, 64), (32, 64), (32,), (32,)), (name,)


def ends(*last):
    """Where groups end: one of them is empty."""
    return torch.tensor(last or (4, 4, 12), dtype=torch.int32, device=DEVICE)


def eight_in_groups(a, b, scale_a, scale_b):
    a, b = a.detach().to(EIGHT), b.detach().to(EIGHT).transpose(1, 2)
    return torch.ops.aten._scaled_grouped_mm(a, b, scale_a.detach().square(), scale_b.detach().square(), ends(), out_dtype=torch.bfloat16,
                                             use_fast_accum=True)


CROSS_ENTROPY, ATTENTION, RMS_NORM = ((name, f"{name} backward") for name in (
    "cross_entropy_loss", "scaled_dot_product_attention", "rms_norm"))
ATTEND = F.scaled_dot_product_attention
SCALED = ("contiguous", "transposed") if HOST_MEMORY else ("contiguous",)  # for GPUs PyTorch takes rows of a, columns of b

CALLS = (
    *(Call(f"conv{n}d-{name}", *conv(n, **how), CONV, PLAIN if n == 1 else EVERY) for n, name, how in (
        (1, "plain", {}), (2, "padded", {"padding": 1}), (2, "strided", {"stride": 2, "padding": (1, 0)}), (2, "grouped", {"groups": 2}),
        (2, "dilated", {"dilation": (1, 2)}), (3, "padded", {"padding": 1}))),
    *(Call(f"conv_transpose{n}d-{name}", *transposed(n, **how), CONV, PLAIN if n == 1 else EVERY) for n, name, how in (
        (1, "plain", {}), (2, "strided", {"stride": 2, "output_padding": 1}), (2, "grouped", {"groups": 2, "padding": 1}),
        (3, "plain", {}))),
    Call("conv2d-depthwise", lambda x, w: F.conv2d(x, w, padding=1, groups=4), ((2, 4, 5, 6), (4, 1, 3, 3)), CONV),
    Call("conv2d-1x1", lambda x, w: F.conv2d(x, w), ((2, 4, 5, 6), (8, 4, 1, 1)), CONV),
    Call("conv2d-weight-last", lambda x, w: F.conv2d(x, w.to(memory_format=torch.channels_last)), ((2, 4, 5, 6), (8, 4, 2, 2)), CONV),
    Call("mm", torch.mm, ((5, 6), (6, 7)), ("mm",), PLAIN),
    Call("mm-transposed", lambda a, b: a.t() @ b.t(), ((6, 5), (7, 6)), ("mm",), PLAIN),
    Call("linear", F.linear, ((3, 4, 6), (7, 6), (7,)), ("addmm", "mm"), ("contiguous",)),
    Call("addmm", lambda a, b, c: torch.addmm(c, a, b, beta=0.5, alpha=2), ((5, 6), (6, 7), (5, 7)), ("addmm", "mm"), PLAIN),
    Call("addmm-row", lambda a, b, c: torch.addmm(c, a, b, beta=0.5), ((5, 6), (6, 7), (1, 7)), ("addmm", "mm"), ("contiguous",)),
    Call("addmm-column", lambda a, b, c: torch.addmm(c, a, b), ((5, 6), (6, 7), (5, 1)), ("addmm", "mm"), ("contiguous",)),
    Call("bmm", torch.bmm, ((2, 5, 6), (2, 6, 7)), ("bmm",), PLAIN),
    Call("baddbmm", lambda a, b, c: torch.baddbmm(c, a, b, beta=2, alpha=0.5), ((2, 5, 6), (2, 6, 7), (2, 5, 7)), ("baddbmm", "bmm"),
         PLAIN),
    Call("baddbmm-row", lambda a, b, c: torch.baddbmm(c, a, b), ((2, 5, 6), (2, 6, 7), (7,)), ("baddbmm", "bmm"), ("contiguous",)),
    *(Call(f"scaled-{what}", *eight(name, **how), SCALED, ()) for what, name, how in (
        ("whole", "_scaled_mm", {}), ("rows", "_scaled_mm", {"rows": True}), ("wide", "_scaled_mm", {"into": torch.float32}),
        ("mixed", "_scaled_mm", {"kind": torch.float8_e5m2, "into": torch.float16}), ("out", "_scaled_mm.out", {}),
        ("recipe", "_scaled_mm_v2", {}), ("recipe-rows", "_scaled_mm_v2", {"rows": True}), ("recipe-out", "_scaled_mm_v2.out", {}))),
    *(() if HOST_MEMORY else [Call("scaled-groups", eight_in_groups, ((12, 16), (3, 32, 16), (12,), (3, 32)), ("_scaled_grouped_mm",),
                                   ("contiguous",), ())]),
    *(Call(f"grouped-{what}", f, shapes, ("_grouped_mm",), ("contiguous",), dtypes) for what, dtypes, shapes, f in (
        # twice, since PyTorch's kernel takes no gradient that is expanded
        ("rows", ("float16", "bfloat16"), ((12, 8), (3, 8, 16)), lambda a, b: 2 * torch._grouped_mm(a, b.detach(), offs=ends())),
        ("rows-of-13", ("bfloat16",), ((12, 8), (3, 13, 8)), lambda a, b: torch._grouped_mm(a.detach(), b.detach().mT, offs=ends())),
        # on GPUs they write whole 16 bytes of a group
        ("columns", ("bfloat16",), ((24, 8), (3, 16, 8)), lambda b, a: torch._grouped_mm(a.detach(), b.detach().t(), offs=ends(8, 8, 24))),
        ("batches", ("bfloat16",), ((3, 8, 16), (3, 24, 16)), lambda a, b: 2 * torch._grouped_mm(a, b.mT)))),
    Call("batch_norm", lambda x, g, b: norm_of(x, g, b, training=True, momentum=0.3), ((4, 6, 3, 5), (6,), (6,)), BATCH_NORM,
         dtypes=WITHOUT_HALVES),
    Call("batch_norm-1d", lambda x, g, b: norm_of(x, g, b, training=True), ((8, 6), (6,), (6,)), NATIVE, PLAIN, WITHOUT_HALVES),
    Call("batch_norm-frozen", gradient_of_frozen, ((4, 6, 3, 5), (6,), (6,)), NATIVE[1:],
         ("contiguous", "channels_last")[:1 + HOST_MEMORY], WITHOUT_HALVES),  # on a GPU it is an internal error of PyTorch's (2.11)
    Call("batch_norm-3d", lambda x, g, b: norm_of(x, g, b, training=True), ((2, 6, 2, 3, 2), (6,), (6,)), BATCH_NORM, dtypes=()),
    Call("batch_norm-alone", lambda x: F.batch_norm(x, None, None, training=True), ((4, 6, 3, 5),), NATIVE,
         ("contiguous", "channels_last"), ()),
    Call("layer_norm", lambda x, g, b: F.layer_norm(x, (8,), g, b), ((2, 6, 8), (8,), (8,)), LAYER_NORM,
         PLAIN, WITHOUT_HALVES),
    Call("layer_norm-2d", lambda x: F.layer_norm(x, (6, 8)), ((3, 2, 6, 8),), LAYER_NORM,
         dtypes=WITHOUT_HALVES),
    Call("group_norm", lambda x, g, b: F.group_norm(x, 3, g, b), ((2, 6, 4, 5), (6,), (6,)), GROUP_NORM,
         dtypes=WITHOUT_HALVES),
    Call("max_pool1d", lambda x: F.max_pool1d(x, 3, 2, padding=1), ((2, 3, 9),), MAX_POOL, ("contiguous", "sliced"), ()),
    Call("max_pool2d", lambda x: F.max_pool2d(x, 2), ((2, 3, 6, 8),), MAX_POOL),
    *(Call(f"{op}-alone", lambda x, f=f: f(x.detach(), 2), (shape,), (op,), dtypes=HALVES) for op, f, shape in (
        ("max_pool2d", F.max_pool2d, (2, 3, 6, 8)), ("max_pool3d", F.max_pool3d, (2, 3, 4, 6, 8)))),
    Call("max_pool2d-window", lambda x: F.max_pool2d(x, (3, 2), 2, padding=1, ceil_mode=True, return_indices=True), ((2, 3, 6, 8),),
         MAX_POOL),
    Call("max_pool2d-dilated", lambda x: F.max_pool2d(x, 3, 1, dilation=2), ((3, 6, 8),), MAX_POOL, ("contiguous", "sliced")),
    Call("max_pool3d", lambda x: F.max_pool3d(x, 2, return_indices=True), ((2, 3, 4, 4, 6),), MAX_POOL_3D),
    Call("avg_pool2d", lambda x: F.avg_pool2d(x, 2), ((2, 3, 6, 8),), AVERAGE),
    Call("avg_pool2d-window", lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), ((2, 3, 6, 8),),
         AVERAGE),
    Call("avg_pool2d-divisor", lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=5), ((2, 3, 6, 8),), AVERAGE, dtypes=HALVES),
    Call("avg_pool3d-divisor", lambda x: F.avg_pool3d(x, 2, 1, 1, divisor_override=3), ((2, 3, 4, 4, 6),),
         ("avg_pool3d", "avg_pool3d_backward"), dtypes=()),
    Call("avg_pool3d", lambda x: F.avg_pool3d(x, 2), ((2, 3, 4, 4, 6),), ("avg_pool3d", "avg_pool3d_backward"), dtypes=WITHOUT_HALVES),
    Call("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, (2, 3)), ((2, 3, 5, 8),), ADAPTIVE),
    Call("adaptive_avg_pool3d", lambda x: F.adaptive_avg_pool3d(x, 2), ((2, 3, 5, 4, 3),), ADAPTIVE_3D),
    Call("adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, (2, 3), return_indices=True), ((2, 3, 5, 8),),
         ADAPTIVE_MAX),
    Call("adaptive_max_pool3d", lambda x: F.adaptive_max_pool3d(x, 2, return_indices=True), ((2, 3, 5, 4, 3),),
         ("adaptive_max_pool3d", "adaptive_max_pool3d_backward")),
    *(Call(f"{name}-out", out(f, shape), shapes, (f"{name}.out",), ("contiguous", "transposed"), ()) for name, f, shape, shapes in (
        ("mm", torch.mm, (5, 7), ((5, 6), (6, 7))), ("bmm", torch.bmm, (2, 5, 7), ((2, 5, 6), (2, 6, 7))),
        ("addmm", torch.addmm, (5, 7), ((5, 7), (5, 6), (6, 7))), ("baddbmm", torch.baddbmm, (2, 5, 7), ((2, 5, 7), (2, 5, 6), (2, 6, 7))),
        ("_addmm_activation", torch.ops.aten._addmm_activation.out, (5, 7), ((7,), (5, 6), (6, 7))))),
    Call("addmm_", lambda a, b, c: c.clone().addmm_(a, b, beta=0.5), ((5, 6), (6, 7), (5, 7)), ("addmm_", "mm"), ("contiguous",)),
    Call("baddbmm_", lambda a, b, c: c.clone().baddbmm_(a, b), ((2, 5, 6), (2, 6, 7), (2, 5, 7)), ("baddbmm_", "bmm"), ("contiguous",)),
    *(Call(f"addmm_activation-{gelu}",
           lambda a, b, c, gelu=gelu: torch._addmm_activation(a.detach(), b.detach(), c.detach(), use_gelu=gelu),
           ((7,), (5, 6), (6, 7)), ("_addmm_activation",), ("contiguous", "sliced"), ()) for gelu in (False, True)),
    Call("batch_norm-legit", lambda x, g, b: torch.ops.aten._native_batch_norm_legit(
        x, g, b, torch.zeros_like(g), torch.ones_like(g), True, 0.1, 1e-5), ((4, 6, 3, 5), (6,), (6,)),
        ("_native_batch_norm_legit", "native_batch_norm_backward"), ("contiguous", "channels_last"), ()),
    Call("batch_norm-legit-alone", lambda x, g, b: torch.ops.aten._native_batch_norm_legit.no_stats(x, g, b, True, 0.1, 1e-5),
         ((4, 6, 3, 5), (6,), (6,)), ("_native_batch_norm_legit.no_stats", "native_batch_norm_backward"), ("contiguous",), ()),
    Call("batch_norm-update", lambda x, g, b: torch.ops.aten._batch_norm_with_update(
        x, g, b, torch.zeros_like(g), torch.ones_like(g), 0.1, 1e-5)[:3], ((4, 6, 3, 5), (6,), (6,)),
        ("_batch_norm_with_update", "batch_norm_backward"), ("contiguous", "channels_last"), ()),
    Call("softmax", lambda x: F.softmax(x, 1), ((3, 7, 2, 4),), ("_softmax", "_softmax_backward_data")),
    Call("log_softmax", lambda x: F.log_softmax(x, -1), ((3, 5, 7),), ("_log_softmax", "_log_softmax_backward_data"), PLAIN),
    Call("nll_loss", lambda x: F.nll_loss(x, labels(6, classes=5)), ((6, 5),), NLL, PLAIN),
    Call("nll_loss-none", lambda x: F.nll_loss(x, labels(6, classes=5), reduction="none", ignore_index=2), ((6, 5),),
         NLL, PLAIN),
    Call("nll_loss-weighted", lambda x, w: F.nll_loss(x, labels(6, classes=5), w.detach()), ((6, 5), (5,)), NLL,
         PLAIN),
    Call("nll_loss-sum", lambda x: F.nll_loss(x, labels(classes=5), reduction="sum"), ((5,),), NLL, ("contiguous",)),
    Call("nll_loss2d", lambda x: F.nll_loss(x, labels(2, 3, 4, classes=5)), ((2, 5, 3, 4),), ("nll_loss2d_forward", "nll_loss2d_backward"),
         ("contiguous",)),
    Call("cross_entropy", lambda x: F.cross_entropy(x, labels(6, classes=5)), ((6, 5),), CROSS_ENTROPY, PLAIN),
    Call("cross_entropy-smoothed", lambda x, w: F.cross_entropy(
        x, labels(6, classes=5), w.detach().abs(), ignore_index=2, label_smoothing=0.1, reduction="none"), ((6, 5), (5,)), CROSS_ENTROPY,
         PLAIN),
    Call("cross_entropy-images", lambda x: F.cross_entropy(x, labels(2, 3, 4, classes=5), reduction="sum"), ((2, 5, 3, 4),), CROSS_ENTROPY),
    *(Call(f"cross_entropy-soft-{what}", lambda x, t, w, how=how: F.cross_entropy(
        x, t.detach().square(), **{**how, **({"weight": w.detach().abs()} if "label_smoothing" in how else {})}), (shape, shape, (5,)),
           CROSS_ENTROPY, PLAIN if what == "rows" else EVERY, HALVES) for what, shape, how in (
        ("rows", (6, 5), {}), ("images", (2, 5, 3, 4), {"label_smoothing": 0.1, "reduction": "none"}),
        ("sum", (2, 5, 3, 4), {"reduction": "sum"}))),
    Call("cross_entropy-one", lambda x: F.cross_entropy(x, labels(classes=5)), ((5,),), CROSS_ENTROPY, ("contiguous",), ()),
    Call("ctc_loss", lambda x: F.ctc_loss(x, labels(3, 3, classes=5) + 1, (7, 6, 5), (3, 0, 2)), ((7, 3, 6),), CTC, PLAIN, WITHOUT_HALVES),
    Call("ctc_loss-flat", lambda x: F.ctc_loss(x, labels(5, classes=3), torch.tensor([7, 2, 4]), torch.tensor([1, 3, 1]), 5, "sum", True),
         ((7, 3, 6),), CTC, ("contiguous",), ()),
    Call("ctc_loss-cudnn", lambda x: F.ctc_loss(x, labels(5, classes=3).cpu().int() + 1, (7, 7, 7), (1, 3, 1)), ((7, 3, 6),),
         CTC if HOST_MEMORY else ("_cudnn_ctc_loss",), ("contiguous",), ()),
    Call("attention", ATTEND, ((2, 4, 6, 8),) * 3, ATTENTION),
    Call("attention-causal", lambda q, k, v: ATTEND(q, k, v, is_causal=True, scale=0.3), ((2, 4, 6, 8),) * 3, ATTENTION, ("contiguous",)),
    Call("attention-rows-first", lambda q, k, v: ATTEND(*(t.transpose(1, 2) for t in (q, k, v))), ((2, 6, 4, 8),) * 3, ATTENTION, PLAIN,
         ()),
    Call("attention-mask", lambda q, k, v: ATTEND(q, k, v, attn_mask=labels(6, 3, classes=3) > 0),
         ((2, 4, 6, 8), (2, 4, 3, 8), (2, 4, 3, 5)), ATTENTION, ("contiguous",), ()),
    Call("attention-bias", lambda q, k, v: ATTEND(q, k, v, attn_mask=labels(2, 1, 6, 3, classes=3).to(q)),
         ((2, 4, 6, 8), (2, 4, 3, 8), (2, 4, 3, 8)), ATTENTION, ("contiguous",), ()),
    *(Call(f"attention-bias-{what}", lambda q, k, v, bias: ATTEND(q, k, v, attn_mask=bias),
           ((2, 4, 6, 8), (2, 4, 3, 8), (2, 4, 3, 5), shape), ATTENTION, ("contiguous",), dtypes) for what, shape, dtypes in (
        ("each", (2, 4, 6, 3), HALVES), ("rows", (6, 3), ()), ("heads", (4, 1, 3), ()), ("batches", (2, 1, 1, 3), ("float64",)))),
    Call("attention-groups", lambda q, k, v: ATTEND(q, k, v, enable_gqa=True), ((2, 4, 6, 8), (2, 2, 6, 8), (2, 2, 6, 8)), ATTENTION,
         PLAIN, ()),
    Call("rms_norm", lambda x, g: F.rms_norm(x, (8,), g), ((3, 6, 8), (8,)), RMS_NORM, PLAIN),
    Call("rms_norm-2d", lambda x: F.rms_norm(x, (6, 8), eps=0.1), ((3, 6, 8),), RMS_NORM, PLAIN, ()),
    Call("embedding", lambda w: F.embedding(labels(2, 3, 4, classes=5), w), ((7, 6),), EMBEDDING, PLAIN),
    Call("embedding-padded", lambda w: F.embedding(labels(9, classes=4), w, padding_idx=2, scale_grad_by_freq=True), ((7, 6),), EMBEDDING,
         ("contiguous",), ()),
    Call("sum", lambda x: x.sum((0, -1)), ((2, 3, 4, 5),), ("sum.dim_IntList",)),
    Call("sum-one", lambda x: x.sum(-1), ((2, 3, 4, 5),), ("sum.dim_IntList",), dtypes=()),
    Call("sum-wide", lambda x: x.sum((1, 2), dtype=torch.float32), ((2, 3, 4, 5),), ("sum.dim_IntList",), ("contiguous",),
         ("float16", "bfloat16")),
    Call("sum-of-integers", lambda x: (x.detach() > 0).sum(1) + x.detach().mul(4).to(torch.int32).sum((1,)), ((2, 3, 4, 5),),
         ("sum.dim_IntList",), dtypes=()),
    Call("mean", lambda x: x.mean((2, 3), keepdim=True), ((2, 3, 4, 5),), ("mean.dim",)),
    *(Call(name, f, ((2, 3, 4, 5),), (op,), EVERY, dtypes) for name, op, dtypes, f in (
        ("amax", "amax", HALVES, lambda x: x.amax((1, -1))), ("amax-all", "amax", (), lambda x: x.amax(keepdim=True)),
        ("amin", "amin", (), lambda x: x.amin(2)), ("prod", "prod.dim_int", (), lambda x: x.prod(1)),
        ("norm", "linalg_vector_norm", HALVES, lambda x: torch.linalg.vector_norm(x, dim=(0, 2), keepdim=True)),
        ("norm-1", "linalg_vector_norm", (), lambda x: torch.linalg.vector_norm(x, 1, dim=1)),
        ("norm-inf", "linalg_vector_norm", (), lambda x: torch.linalg.vector_norm(x, float("inf"))),
        ("max-dim", "max.dim", HALVES, lambda x: x.max(1)), ("min-dim", "min.dim", (), lambda x: x.min(-1, keepdim=True)),
        ("argmax", "argmax", HALVES, lambda x: x.detach().argmax(2)), ("argmax-all", "argmax", (), lambda x: x.detach().argmax()),
        ("argmin", "argmin", (), lambda x: x.detach().argmin(0, keepdim=True)))),
    *(Call(name, f, ((2, 3, 4, 5), (3, 1, 5)), tuple(f"{op}.Tensor" for op in ops.split()), EVERY, dtypes) for name, ops, dtypes, f in (
        ("add", "add", HALVES, torch.add), ("add-scaled", "add mul", HALVES, lambda x, y: torch.add(x, y, alpha=0.5)),
        ("add-number", "add", (), lambda x, y: 2 + x + torch.add(y, 1.5, alpha=3)),
        ("sub", "sub", (), lambda x, y: torch.sub(x, y, alpha=2)), ("sub-number", "sub mul", HALVES, lambda x, y: (2 - x) * (y - 1.5)),
        ("mul", "mul", HALVES, torch.mul), ("mul-number", "mul", ("float64",), lambda x, y: 0.1 * x * True),
        ("div", "div add mul", HALVES, lambda x, y: x / (y * y + 0.5) / 3), ("div-number", "mul", (), lambda x, y: 1 / (x * x + 0.5)))),
    *(Call(op, lambda x, y, op=op: getattr(getattr(x.sin(), op)(y), op)(0.5), ((2, 3, 4, 5), (3, 1, 5)), (f"{op}.Tensor",), EVERY, ())
      for op in ("add_", "sub_", "mul_")),
    Call("div_", lambda x, y: x.sin().div_(y.cos()).div_(2), ((2, 3, 4, 5), (3, 1, 5)), ("div_.Tensor",), EVERY, ()),
    Call("comparisons", lambda x, y: tuple(f(x, z) for z in (y, 0.1) for f in (torch.eq, torch.ne, torch.gt, torch.ge, torch.lt, torch.le)),
         ((2, 3, 4, 5), (3, 1, 5)), tuple(f"{op}.{kind}" for op in ("eq", "ne", "gt", "ge", "lt", "le") for kind in ("Tensor", "Scalar")),
         EVERY, HALVES),
    Call("where", lambda x, y: torch.where(y > 0, x.detach(), y.detach()), ((2, 3, 4, 5), (3, 1, 5)), ("where.self",), EVERY, HALVES),
    *(Call(name, getattr(torch, name), ((2, 3, 4, 5),), (name,), dtypes=()) for name in (
        "exp", "neg", "abs", "sin", "cos", "erf", "floor", "ceil", "reciprocal")),
    *(Call(name, lambda x, name=name: getattr(torch, name)(x.square() + 0.5), ((2, 3, 4, 5),), (name, "pow.Tensor_Scalar"),
           dtypes=HALVES) for name in ("log", "sqrt", "rsqrt")),
    *(Call(op, f, ((2, 3, 4, 5), (3, 1, 5)), (op,), EVERY, dtypes) for op, dtypes, f in (
        ("maximum", (), torch.maximum), ("minimum", HALVES, torch.minimum),
        ("atan2", (), lambda x, y: torch.atan2(x.detach(), y.detach())),
        ("addcmul", HALVES, lambda x, y: torch.addcmul(x, y, y, value=0.5)),
        ("addcdiv", (), lambda x, y: torch.addcdiv(x, y, y.square() + 1)))),
    *(Call(name, f, ((2, 3, 4, 5),), (op,), dtypes=HALVES) for name, op, f in (
        ("clamp", "clamp", lambda x: x.clamp(-0.5, 0.25)), ("clamp-low", "clamp", lambda x: x.clamp(min=0)),
        ("clamp-high", "clamp", lambda x: x.clamp(max=0.25)), ("pow-2", "pow.Tensor_Scalar", lambda x: x ** 2),
        ("pow-3", "pow.Tensor_Scalar", lambda x: x ** 3), ("pow-4.5", "pow.Tensor_Scalar", lambda x: (x.square() + 0.5) ** 1.5))),
    *(Call(f"copy-{what}", f, shapes, ("copy_",), ways, dtypes) for what, ways, dtypes, shapes, f in (
        ("clone", EVERY, HALVES, ((2, 3, 4, 5),), lambda x: x.transpose(1, 2).clone(memory_format=torch.contiguous_format)),
        ("contiguous", EVERY, (), ((2, 3, 4, 5),), lambda x: x.permute(3, 1, 0, 2).contiguous()),
        ("reshape", EVERY, (), ((2, 3, 4, 5),), lambda x: x.transpose(0, 2).reshape(4, -1)),
        ("channels-last", PLAIN, HALVES, ((2, 3, 4, 5),), lambda x: x.sin().contiguous(memory_format=torch.channels_last)),
        ("channels-last-3d", PLAIN, (), ((2, 3, 2, 4, 5),), lambda x: x.sin().to(memory_format=torch.channels_last_3d)),
        ("within", EVERY, HALVES, ((2, 3, 4, 5), (2, 4, 3, 5)), lambda x, y: y.sin().transpose(1, 2).copy_(x)),
        ("broadcast", EVERY, (), ((2, 3, 4, 5), (5, 2, 3, 4, 5)), lambda x, y: y.sin().copy_(x)),
        ("slice", EVERY, (), ((2, 3, 4, 5),), into_slice),
        ("integers", EVERY, (), ((2, 3, 4, 5),), lambda x: tuple(
            (4 * x.detach()).to(kind).transpose(1, 3).contiguous() for kind in (torch.int64, torch.int16, torch.uint8))))),
    *(Call(f"cast-{what}", f, ((2, 3, 4, 5),), ("copy_",), EVERY, dtypes) for what, dtypes, f in (
        ("wide", HALVES, lambda x: x.to(torch.float64 if x.dtype is torch.float32 else torch.float32)),
        ("half", ("float64", "bfloat16"), lambda x: x.half()), ("bfloat16", ("float64", "float16"), lambda x: x.bfloat16()),
        ("formats", (), lambda x: x.permute(0, 2, 3, 1).to(torch.bfloat16, memory_format=torch.contiguous_format)),
        ("integers", (), lambda x: tuple((4 * x.detach()).to(kind).float() for kind in (torch.uint8, torch.int8, torch.int32))),
        ("eight", (), lambda x: tuple(x.detach().to(kind).to(torch.bfloat16) for kind in (torch.float8_e4m3fn, torch.float8_e5m2))))),
    Call("cat", lambda x, y: torch.cat([x, y, x], 1), ((2, 3, 4, 5), (2, 1, 4, 5)), ("cat",), dtypes=HALVES),
    Call("cat-formats", lambda x: torch.cat([x, x.sin()], -1), ((2, 3, 4, 5),), ("cat",), dtypes=()),
    *(Call(f"pad-{mode}-{dims}d", lambda x, pads=pads, mode=mode: F.pad(x, pads, mode), (shape,),
           (op,) if op.startswith("constant") else (op, f"{op}_backward"), PLAIN if dims == 1 else EVERY, dtypes)
      for op, mode, dims, shape, pads, dtypes in (
        ("constant_pad_nd", "constant", 2, (2, 3, 4, 5), (1, 2, 0, 3), HALVES), ("constant_pad_nd", "constant", 1, (2, 3, 5), (1, 0), ()),
        ("constant_pad_nd", "constant", 3, (2, 3, 4, 5, 3), (1, -1, -2, 3, 0, -1), ()),
        ("reflection_pad1d", "reflect", 1, (2, 3, 5), (1, 2), ()), ("reflection_pad2d", "reflect", 2, (2, 3, 4, 5), (1, 2, 0, 3), HALVES),
        ("reflection_pad3d", "reflect", 3, (2, 3, 4, 5, 3), (1, 2, 0, 3, 1, 1), ()),
        ("replication_pad1d", "replicate", 1, (2, 3, 5), (1, 2), ()),
        ("replication_pad2d", "replicate", 2, (2, 3, 4, 5), (1, 2, 0, 3), HALVES),
        ("replication_pad3d", "replicate", 3, (2, 3, 4, 5, 3), (1, 2, 0, 3, 1, 1), ()))),
    *(Call(f"grid_sample-{mode}-{padding}", lambda x, grid, mode=mode, padding=padding: F.grid_sample(
        x, grid, mode, padding, align_corners=mode == "nearest"), ((2, 3, 4, 5), (2, 3, 4, 2)), GRID, ways, WITHOUT_HALVES)
      for mode, padding, ways in (
          ("bilinear", "zeros", EVERY), ("nearest", "border", ("contiguous",)), ("bilinear", "reflection", ("contiguous",)))),
    Call("grid_sample-3d", lambda x, grid: F.grid_sample(x, grid, align_corners=False), ((2, 3, 4, 5, 3), (2, 3, 4, 2, 3)),
         tuple(name.replace("2d", "3d") for name in GRID), ("contiguous",), ()),
    *(Call(f"interpolate-{mode}-{dims}d", lambda x, mode=mode, size=size: F.interpolate(x, size, mode=mode), (shape,),
           (name, f"{name}_backward"), PLAIN if dims == 1 else EVERY, dtypes) for name, mode, dims, shape, size, dtypes in (
        ("upsample_nearest1d", "nearest", 1, (2, 3, 5), 7, ()), ("upsample_nearest2d", "nearest", 2, (2, 3, 4, 5), (7, 3), HALVES),
        ("upsample_nearest3d", "nearest", 3, (2, 3, 2, 3, 2), (4, 5, 2), ()),
        ("_upsample_nearest_exact1d", "nearest-exact", 1, (2, 3, 5), 3, ()),
        ("_upsample_nearest_exact2d", "nearest-exact", 2, (2, 3, 4, 5), (7, 3), ()),
        ("_upsample_nearest_exact3d", "nearest-exact", 3, (2, 3, 2, 3, 2), (4, 5, 2), ()),
        ("upsample_linear1d", "linear", 1, (2, 3, 5), 7, ()), ("upsample_bilinear2d", "bilinear", 2, (2, 3, 4, 5), (7, 3), HALVES),
        ("upsample_trilinear3d", "trilinear", 3, (2, 3, 2, 3, 2), (4, 5, 2), ()),
        ("upsample_bicubic2d", "bicubic", 2, (2, 3, 4, 5), (7, 3), HALVES))),
    *(Call(f"interpolate-{mode}-{what}", lambda x, mode=mode, how=how: F.interpolate(x, mode=mode, **how), ((2, 3, 6, 5),),
           (name, f"{name}_backward"), EVERY, ()) for name, mode, what, how in (
        ("upsample_nearest2d", "nearest", "twice", {"scale_factor": 2}),
        ("upsample_bilinear2d", "bilinear", "twice", {"scale_factor": 2.0}),
        ("upsample_bilinear2d", "bilinear", "corners", {"size": (3, 8), "align_corners": True}),
        ("upsample_bicubic2d", "bicubic", "corners", {"size": (3, 8), "align_corners": True}),
        ("_upsample_bilinear2d_aa", "bilinear", "antialias", {"size": (3, 8), "antialias": True}),
        ("_upsample_bicubic2d_aa", "bicubic", "antialias", {"size": (3, 8), "antialias": True}))),
    Call("lstm", *network("lstm"), PLAIN, WITHOUT_HALVES),
    Call("lstm-bidirectional", *network("lstm", 2, 2, batch_first=True), ("contiguous", "sliced"), ()),
    Call("lstm-projection", *network("lstm", biases=False, projection=3), ("contiguous",), ()),
    Call("gru", *network("gru", 2), ("contiguous",), WITHOUT_HALVES),
    Call("rnn_tanh", *network("rnn_tanh"), ("contiguous",), ()),
    Call("rnn_relu", *network("rnn_relu"), ("contiguous",), ()),
    Call("lstm-packed", *packed("lstm", 2, 2), ("contiguous", "sliced", "expanded"), WITHOUT_HALVES),
    *(Call(f"{cell}-packed", *packed(cell), ("contiguous",), ()) for cell in ("gru", "rnn_tanh", "rnn_relu")),
    Call("relu", F.relu, ((2, 3, 4, 5),), ("relu", "threshold_backward")),
    Call("relu_", lambda x: F.relu(x.sin(), inplace=True), ((2, 3, 4, 5),), ("relu_", "threshold_backward")),
    Call("gelu", F.gelu, ((2, 3, 4, 5),), ("gelu", "gelu_backward")),
    Call("gelu-tanh", lambda x: F.gelu(x, approximate="tanh"), ((2, 3, 4, 5),), ("gelu", "gelu_backward"), ("contiguous",)),
    Call("silu", F.silu, ((2, 3, 4, 5),), ("silu", "silu_backward")),
    Call("mish", F.mish, ((2, 3, 4, 5),), ("mish", "mish_backward")),
    *(Call(name, getattr(torch.nn.functional, name), ((2, 3, 4, 5),), (name,)) for name in (
        "hardswish", "hardsigmoid", "leaky_relu", "elu")),
    *(Call(name, getattr(torch, name), ((2, 3, 4, 5),), (name, f"{name}_backward")) for name in ("sigmoid", "tanh")),
)


ELSEWHERE = {"_fused_adam_", "_fused_adamw_", "_fused_sgd_",  # test_torch_optim.py
             "dropout"}  # test_torch_above.py, since it draws other numbers


def lying(x, way):
    """The values of x as a tensor that lies in memory in some way; None if there is no such."""
    if way == "contiguous":
        return x.clone()
    if way == "channels_last":
        return x.clone(memory_format={4: torch.channels_last, 5: torch.channels_last_3d}[x.dim()])
    if way == "sliced":
        wide = x.new_zeros([2 * n + 1 for n in x.shape])
        part = wide[tuple(slice(1, None, 2) for _ in x.shape)]
        return part.copy_(x)
    if way == "transposed":
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if way == "expanded":
        return x[:1].clone().expand(x.shape)
    raise ValueError(way)


def tensors(call, way, dtype, requires_grad=True):
    """Inputs of a call, the same at every time."""
    make = torch.Generator().manual_seed(len(call.id))
    first, *others = (torch.randn(shape, generator=make, dtype=torch.float64).to(getattr(torch, dtype)).to(DEVICE) for shape in call.shapes)
    return [t.requires_grad_(requires_grad) for t in (lying(first, way), *others)]


WRONG_ON_A_GPU = {"avg_pool2d-window", "avg_pool2d-divisor"}  # the gradient of images with channels last forgets the padding (2.11)


def pytorchs(call, given):
    """`results` of PyTorch alone; of recurrent networks without cuDNN, whose gradients are those of training only; on the CPU where its
    kernels for GPUs are wrong."""
    if call.id in WRONG_ON_A_GPU and not HOST_MEMORY:
        return tuple([t.to(DEVICE) for t in some] for some in results(call, [t.detach().cpu().requires_grad_() for t in given]))
    with torch.backends.cudnn.flags(enabled=False) if call.id.startswith(("lstm", "gru", "rnn")) else contextlib.nullcontext():
        return results(call, given)


def results(call, given):
    """(results, gradients): those of a first pass with a gradient that is expanded, of a second with a packed one."""
    outs = call.function(*given)
    outs = outs if isinstance(outs, tuple) else (outs,)
    ours = [y for y in outs if y.requires_grad]
    if not ours:
        return list(outs), []
    grads = list(torch.autograd.grad(sum(y.sum() for y in ours), given, retain_graph=True, allow_unused=True))
    make = torch.Generator().manual_seed(1)
    weights = [torch.randn(y.shape, generator=make).to(y) for y in ours]
    return list(outs), grads + list(torch.autograd.grad(ours, given, weights, allow_unused=True))
