"""Batch, group and instance normalisations in words, for the command line: ``64x256x56x56 bf16 nhwc relu g32``."""
import argparse
import functools

from ..device.activation import MODES as ACTIVATIONS
from ..device.epilogue import Activation
from ..engine.program_words import add_program_argument, with_program
from ..host.tensor import Tensor
from ..host.window import LAYOUTS
from ..host.words import dtype_word, problem_from_record
from ..host.words import sizes_word
from ._batch_problem import (BatchNormGradientProblem, BatchNormInferProblem, BatchNormProblem, make_batch_backward,
                             make_batch_backward_frozen, make_batch_infer, make_batch_train)
from ._channel_problem import MODES, RUNNING, STATISTIC, WEIGHT, WHOLE, channel_axis, gradient_source, shape_of
from ._group_problem import GroupNormGradientProblem, GroupNormProblem, make_group_backward, make_group_forward
from ._parts_problem import BatchNormGradientApplyProblem, BatchNormMergeProblem, make_apply, make_merge

COUNTS = "counts"
FLAGS = ("residual", "running", "frozen")
_KINDS = {"batch_norm_train_fwd": (BatchNormProblem, make_batch_train, {
              "x": WHOLE, "gamma": WEIGHT, "beta": WEIGHT, "running_mean": RUNNING, "running_var": RUNNING, "residual": WHOLE}),
          "batch_norm_infer": (BatchNormInferProblem, make_batch_infer, {
              "x": WHOLE, "gamma": WEIGHT, "beta": WEIGHT, "mean": RUNNING, "var": RUNNING, "residual": WHOLE}),
          "batch_norm_bwd": (BatchNormGradientProblem, make_batch_backward, {
              "dy": WHOLE, "x": WHOLE, "gamma": WEIGHT, "mean": STATISTIC, "rstd": STATISTIC, "y": WHOLE,
              "beta": WEIGHT}),
          "batch_norm_bwd_apply": (BatchNormGradientApplyProblem, make_apply, {
              "dy": WHOLE, "x": WHOLE, "gamma": WEIGHT, "mean": STATISTIC, "rstd": STATISTIC, "dgamma": STATISTIC, "dbeta": STATISTIC,
              "counts": COUNTS, "y": WHOLE, "beta": WEIGHT}),
          "group_norm_fwd": (GroupNormProblem, make_group_forward, {"x": WHOLE, "gamma": WEIGHT, "beta": WEIGHT}),
          "group_norm_bwd": (GroupNormGradientProblem, make_group_backward, {
              "dy": WHOLE, "x": WHOLE, "gamma": WEIGHT, "mean": STATISTIC, "rstd": STATISTIC, "y": WHOLE,
              "beta": WEIGHT})}


def _term(text):
    """(what, value) of a word such as nhwc, relu, residual, g32 or weights=float32."""
    for what, words in (("layout", LAYOUTS), ("mode", MODES), ("activation", ACTIVATIONS), ("flag", FLAGS)):
        found = next((word for word in words if word.lower() == text.lower()), None)
        if found is not None:
            return (found, True) if what == "flag" else (what, found)
    if text.startswith("weights="):
        return "weights", dtype_word(text.removeprefix("weights="))
    if text[:1] == "g" and text[1:].isdigit():
        return "groups", int(text[1:])
    raise argparse.ArgumentTypeError(f"{text!r} is none of nchw, nhwc, g32 (groups), weights=float32, {', '.join((*MODES, *FLAGS))}, "
                                     "an activation")


def add_arguments(op, parser):
    """The words that describe a problem of the operation."""
    groups = "g32 (groups; default: a channel each, instance normalisation)"
    parser.add_argument("shape", type=sizes_word, help="N, C and the spatial extents, in this order for every layout: 64x256x56x56")
    parser.add_argument("dtype", type=dtype_word, help="float32, bf16, ...")
    parser.add_argument("terms", nargs="*", type=_term, help="nhwc, relu, weights=float32 (gamma, beta and given statistics; default: x's "
                        f"dtype), {groups if op.startswith('group') else 'residual, running (statistics), frozen, per_activation'}")
    if op != "batch_norm_bwd_apply":
        add_program_argument(parser)


def make(op, arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes, gamma and beta among them."""
    _, make_it, kinds = _KINDS[op]
    given, grouped = dict(arguments.terms), op.startswith("group")
    wrong = ({"mode", *FLAGS} if grouped else {"groups"} | ({"running"} if op != "batch_norm_train_fwd" else set()) |
             ({"frozen"} if op != "batch_norm_bwd" else set())) & set(given)
    if wrong:
        raise ValueError(f"{op}: has no {', '.join(sorted(wrong))}")
    n, c, *image = (*arguments.shape, 1, 1)[:max(2, len(arguments.shape))]
    layout, mode, groups = given.get("layout", "NCHW"), given.get("mode", "spatial"), given.get("groups", c) if grouped else None
    activation = given.get("activation")
    x = Tensor.packed((n, c, *image) if layout == "NCHW" else (n, *image, c), arguments.dtype)
    weights, wide = given.get("weights", x.dtype), "float64" if x.dtype == "float64" else "float32"
    dtypes = {WHOLE: x.dtype, STATISTIC: wide, WEIGHT: weights, RUNNING: weights}
    there = {"running_mean": "running" in given, "running_var": "running" in given, "residual": "residual" in given}
    if "bwd" in op:
        source = gradient_source(Activation.of(activation))
        there.update(y=source == "y", beta=source == "x")

    def tensor(name, kind):
        if kind == COUNTS:
            return Tensor.packed((1,), "int32")
        return Tensor.packed(shape_of(kind, x, layout, mode, groups), dtypes[kind]) if there.get(name, True) else None
    tensors = tuple(tensor(name, kind) for name, kind in kinds.items())
    more = (mode if groups is None else groups, layout, activation)
    if op.startswith("batch_norm_bwd"):
        more += ("residual" in given,)
        make_it = make_batch_backward_frozen if "frozen" in given else make_it
    problem, channel = make_it(tensors, None, *more, frozenset()), channel_axis(x, layout)
    others = tuple(k for k in range(x.ndim) if k != channel)
    return with_program(problem, getattr(arguments, "program", ()), others, channel, (0, *range(2, x.ndim), 1) if channel > 1 else None)


def from_record(op, record):
    """The problem of a record; ValueError where it is something else."""
    return problem_from_record(_KINDS[op][0], op, record)


def add_merge_arguments(parser):
    """The words that describe a merge."""
    parser.add_argument("shape", type=sizes_word, help="parts and channels: 8x256")
    parser.add_argument("dtype", type=dtype_word, help="float32 or float64")
    parser.add_argument("--running", type=dtype_word, help="dtype of running statistics")


def make_merge_of(arguments):
    """The problem of a merge that parsed words describe: packed arrays, aligned to 16 bytes."""
    a = arguments
    if len(a.shape) != 2:
        raise ValueError(f"batch_norm_merge: a shape of {a.shape}; expected parts x channels")
    means, running = Tensor.packed(a.shape, a.dtype), Tensor.packed(a.shape[1:], a.running) if a.running else None
    return make_merge((means, means, Tensor.packed(a.shape[:1], "int32"), running, running), None, frozenset())


FAMILY = {op: tuple(functools.partial(f, op) for f in (add_arguments, make, from_record)) for op in _KINDS}
FAMILY["batch_norm_merge"] = (add_merge_arguments, make_merge_of,
                              functools.partial(problem_from_record, BatchNormMergeProblem, "batch_norm_merge"))
"""Operation -> what adds its words to a parser, what makes a problem of them, and of a record; the command line reads this."""

_BATCH = ("4x6x5x3 f32 relu residual", "3x16x7 bf16 nhwc weights=float32", "5x10 f16", "3x4x2x3x2 f64", "4x3x5 f32 per_activation")
_GROUP = ("4x6x5x3 f32 relu g2", "3x16x7 bf16 nhwc weights=float32 g4", "5x10 f16 g1", "3x4x2x3x2 f64", "4x16x7 bf16 nhwc swish g4")
_PROGRAMS = "4x6x5x3 f32 --program mul@6x1x1 gelu", "3x16x7 bf16 nhwc --program add@3x16x7 relu mul@0.5"
SMALL = {op: (_GROUP if op.startswith("group") else _BATCH) + _PROGRAMS * (op != "batch_norm_bwd_apply") for op in _KINDS}
SMALL["batch_norm_merge"] = ("2x64 f32", "3x20 f64", "5x33 f32 --running bf16")
"""Problems that ``python -m dnnkern check`` tries."""
