"""Normalisations in words, for the command line: of rows ``8192x4096 bf16 --axis -1 --weights float32``; of channels
``64x256x56x56 bf16 nhwc relu g32``; local response ``64x96x55x55 bf16 nhwc 5``."""
from ..device.activation import MODES as ACTIVATIONS
from ..device.activation import Activation
from ..engine.program_words import STEPS, with_image_program, with_program
from ..host.tensor import Tensor
from ..host.words import Words, dtype_word, image, terms
from ..registry import operation_of
from ..sketch import problem
from ._channel_problem import MODES, RUNNING, STATISTIC, WEIGHT, WHOLE, gradient_source, shape_of

words = Words()


def _wide(dtype):
    return "float64" if dtype == "float64" else "float32"


def _small(*more):
    return ("5x100 f32", "3x77 bf16 --weights float32", "2x5x8 f16 --axis 1", "4x9 f64", *more)


_FORWARD, _BACKWARD = _small("3x24 f16 --residual", "5x100 bf16 --program add@5x100 gelu mul@100"), _small("5x100 bf16 --dsummed")


@words("layer_norm_fwd", "layer_norm_bwd", "rms_norm_fwd", "rms_norm_bwd", small={
    "layer_norm_fwd": _FORWARD, "layer_norm_bwd": _BACKWARD, "rms_norm_fwd": _FORWARD, "rms_norm_bwd": (*_BACKWARD, "3x24 f16 --has-beta")})
def _rows(op, shape, dtype, *, weights: dtype_word = None, residual=False, dsummed=False, program: STEPS = (), **options):
    """--weights: the dtype of gamma and beta, by default x's; --residual: x + residual is normalised, and kept; --dsummed: add the gradient
    of that sum."""
    axis = options["axis"] % len(shape)
    x, weight, statistic = (shape, dtype), (shape[axis:], weights or dtype), (shape[:axis], _wide(dtype))
    known = {"x": x, "dy": x, "gamma": weight, "mean": statistic, "rstd": statistic, **({"beta": weight} if op == "layer_norm_fwd" else {})}
    given = {name: known[name] for name in operation_of(op).labels if name in known}
    given |= {name: x for name, there in (("residual", residual), ("dsummed", dsummed)) if there}
    return with_program(problem(op, **given, **options), program, range(axis), range(axis, len(shape)))


_BATCH = ("4x6x5x3 f32 relu residual", "3x16x7 bf16 nhwc weights=float32", "5x10 f16", "3x4x2x3x2 f64", "4x3x5 f32 per_activation")
_GROUP = ("4x6x5x3 f32 relu g2", "3x16x7 bf16 nhwc weights=float32 g4", "5x10 f16 g1", "3x4x2x3x2 f64", "4x16x7 bf16 nhwc swish g4")
_PROGRAMS = "4x6x5x3 f32 --program mul@6x1x1 gelu", "3x16x7 bf16 nhwc --program add@3x16x7 relu mul@0.5"
_KINDS = {**dict.fromkeys(("x", "dy", "y", "residual"), WHOLE), **dict.fromkeys(("gamma", "beta"), WEIGHT),
          **dict.fromkeys(("running_mean", "running_var"), RUNNING), **dict.fromkeys(("mean", "rstd", "dgamma", "dbeta"), STATISTIC)}
_TERMS = terms(numbers={"groups": r"g(\d+)"}, **{mode: ("activation", mode) for mode in ACTIVATIONS}, **{m: ("mode", m) for m in MODES},
               **{name: (name, True) for name in ("residual", "running", "frozen")})


def _term(text):
    return ("weights", dtype_word(text[8:])) if text.startswith("weights=") else _TERMS(text)


@words("batch_norm_train_fwd", "batch_norm_infer", "batch_norm_bwd", "batch_norm_bwd_apply", "group_norm_fwd", "group_norm_bwd", small={
    **dict.fromkeys(("batch_norm_train_fwd", "batch_norm_infer", "batch_norm_bwd"), _BATCH + _PROGRAMS), "batch_norm_bwd_apply": _BATCH,
    **dict.fromkeys(("group_norm_fwd", "group_norm_bwd"), _GROUP + _PROGRAMS)})
def _channels(op, shape, dtype, *terms: _term, program: STEPS = ()):
    """SHAPE: N, C and the extents, in this order for every layout. TERMS: nhwc, relu, weights=float32 (gamma, beta and given statistics; by
    default x's dtype), g32 (groups; default: a channel each, instance normalisation), residual, running (statistics), frozen,
    per_activation."""
    given = {"layout": "NCHW", **dict(terms)}
    weights, running, mode = given.pop("weights", dtype), given.pop("running", False), given.get("mode", "spatial")
    if op.startswith("group"):
        given.setdefault("groups", (*shape, 1)[1])
    x = Tensor.packed(image(shape, given["layout"]), dtype)
    dtypes = {WHOLE: dtype, STATISTIC: _wide(dtype), WEIGHT: weights, RUNNING: weights}
    kinds = {**_KINDS, **({"mean": RUNNING, "var": RUNNING} if op == "batch_norm_infer" else {})}
    source = gradient_source(Activation.of(given.get("activation"))) if "bwd" in op else None
    for name in operation_of(op).labels:
        there = running if name.startswith("running") else given.get(name, False) if name == "residual" else \
            source == {"y": "y", "beta": "x"}[name] if "bwd" in op and name in ("y", "beta") else True
        if name == "counts":
            given[name] = (1,), "int32"
        elif there:
            given[name] = shape_of(kinds[name], x, given["layout"], mode, given.get("groups")), dtypes[kinds[name]]
    return with_image_program(problem(op, **given), program)


@words("batch_norm_merge", small=("2x64 f32", "3x20 f64", "5x33 f32 --running bf16"))
def _merge(op, shape, dtype, *, running: dtype_word = None):
    """SHAPE: parts and channels; --running: the dtype of running statistics."""
    more = {name: (shape[1:], running) for name in ("running_mean", "running_var") if running}
    return problem(op, means=(shape, dtype), rstds=(shape, dtype), counts=(shape[:1], "int32"), **more)


_SIZE = terms(numbers={"size": r"(\d+)"})


@words("lrn_fwd", "lrn_bwd", small=("2x7x5x3 f32", "3x16x7 bf16 nhwc", "2x9x4 f16 nhwc 4", "2x3x2x3x2 f64 3"))
def _lrn(op, shape, dtype, *terms: _SIZE):
    """TERMS: 5 (channels of a window, the default), nhwc."""
    given = {"layout": "NCHW", **dict(terms)}
    x = image(shape, given["layout"]), dtype
    return problem(op, **dict.fromkeys(operation_of(op).labels, x), **given)


FAMILY, SMALL, parse_problem = words.family, words.small, words.parse
