"""Normalisations in words, for the command line: of rows ``8192x4096 bf16 --axis -1 --weights float32``; of channels
``64x256x56x56 bf16 nhwc relu g32``; local response ``64x96x55x55 bf16 nhwc 5``."""
from ..device.activation import MODES as ACTIVATIONS, Activation
from ..engine.program_words import STEPS, with_image_program, with_program
from ..host.tensor import Tensor
from ..host.words import dtype_word, either, image, new_words, of_images, terms
from ..registry import operation_of
from ..sketch import problem
from ._channel_problem import MODES, RUNNING, STATISTIC, WEIGHT, WHOLE, gradient_source, shape_of

words, FAMILY, SMALL, parse_problem = new_words(size=terms(numbers=[("5", "size")]))
_ROWS = ("5x100 f32", "3x77 bf16 --weights float32", "2x5x8 f16 --axis 1", "4x9 f64")
_FORWARD, _BACKWARD = (*_ROWS, "3x24 f16 --residual", "5x100 bf16 --program add@5x100 gelu mul@100"), (*_ROWS, "5x100 bf16 --dsummed")
_BATCH = ("4x6x5x3 f32 relu residual", "3x16x7 bf16 nhwc weights=float32", "5x10 f16", "3x4x2x3x2 f64", "4x3x5 f32 per_activation")
_GROUP = ("4x6x5x3 f32 relu g2", "3x16x7 bf16 nhwc weights=float32 g4", "5x10 f16 g1", "3x4x2x3x2 f64", "4x16x7 bf16 nhwc swish g4")
_PROGRAMS = "4x6x5x3 f32 --program mul@6x1x1 gelu", "3x16x7 bf16 nhwc --program add@3x16x7 relu mul@0.5"
_KINDS = {"x": WHOLE, "dy": WHOLE, "y": WHOLE, "residual": WHOLE, "gamma": WEIGHT, "beta": WEIGHT, "running_mean": RUNNING,
          "running_var": RUNNING, "var": RUNNING, "mean": STATISTIC, "rstd": STATISTIC, "dgamma": STATISTIC, "dbeta": STATISTIC}
_TERMS = terms(numbers=[("g32", "groups")], named={"weights": dtype_word}, **{mode: ("activation", mode) for mode in ACTIVATIONS},
               **{mode: ("mode", mode) for mode in MODES}, **{name: (name, True) for name in ("residual", "running", "frozen")})


@words("layer_norm_fwd", "layer_norm_bwd", "rms_norm_fwd", "rms_norm_bwd", small={
    "layer_norm_fwd": _FORWARD, "layer_norm_bwd": _BACKWARD, "rms_norm_fwd": _FORWARD, "rms_norm_bwd": (*_BACKWARD, "3x24 f16 --has-beta")})
def _rows(op, shape, dtype, *, weights=None, residual=False, dsummed=False, program: STEPS = (), **options):
    axis, x = options["axis"] % len(shape), (shape, dtype)
    arrays = {"x": True, "gamma": True, "beta": op == "layer_norm_fwd", "residual": residual, "dsummed": dsummed}
    given = {name: (shape[axis:], weights or dtype) if _KINDS.get(name) == WEIGHT else x for name, there in arrays.items() if there}
    return with_program(either(op, op.replace("bwd", "fwd"), **given, **options), program, range(axis), range(axis, len(shape)))


@words("batch_norm_train_fwd", "batch_norm_infer", "batch_norm_bwd", "batch_norm_bwd_apply", "group_norm_fwd", "group_norm_bwd", small={
    **dict.fromkeys(("batch_norm_train_fwd", "batch_norm_infer", "batch_norm_bwd"), _BATCH + _PROGRAMS), "batch_norm_bwd_apply": _BATCH,
    **dict.fromkeys(("group_norm_fwd", "group_norm_bwd"), _GROUP + _PROGRAMS)})
def _channels(op, shape, dtype, *terms: _TERMS, program: STEPS = ()):
    given = {"layout": "NCHW", **({"groups": (*shape, 1)[1]} if op.startswith("group") else {}), **dict(terms)}
    weights, labels = given.pop("weights", dtype), operation_of(op).labels
    there = {name: word in given for name in labels if (word := name.partition("_")[0]) in ("running", "residual")}
    given = {name: value for name, value in given.items() if name not in {label.partition("_")[0] for label in there}}
    if "bwd" in op:
        source = gradient_source(Activation.of(given.get("activation")))
        there.update(y=source == "y", beta=source == "x")
    x, kinds = Tensor.packed(image(shape, given["layout"]), dtype), {**_KINDS, **({"mean": RUNNING} if op == "batch_norm_infer" else {})}
    dtypes = {WHOLE: dtype, STATISTIC: "float64" if dtype == "float64" else "float32", WEIGHT: weights, RUNNING: weights}
    arrays = {name: (shape_of(kinds[name], x, given["layout"], given.get("mode", "spatial"), given.get("groups")), dtypes[kinds[name]])
              for name in labels if there.get(name, True) and name != "counts"}
    return with_image_program(problem(op, **arrays, **given, **({"counts": ((1,), "int32")} if "apply" in op else {})), program)


words("batch_norm_merge", small=("2x64 f32", "3x20 f64", "5x33 f32 --running bf16"))(
    lambda op, shape, dtype, *, running=None: problem(
        op, means=(shape, dtype), rstds=(shape, dtype), counts=(shape[:1], "int32"), running_mean=running and (shape[1:], running),
        running_var=running and (shape[1:], running)))
words("lrn_fwd", "lrn_bwd", small=("2x7x5x3 f32", "3x16x7 bf16 nhwc", "2x9x4 f16 nhwc 4", "2x3x2x3x2 f64 3"))(
    lambda op, shape, dtype, *size: of_images(op, "lrn_fwd", shape, dtype, size))
