"""Batch, group and instance normalisations in words, for the command line: ``64x256x56x56 bf16 --layout NHWC --activation relu``."""
import functools

from ..device.epilogue import PARAMETERS
from ..host.tensor import Tensor
from ..host.words import dtype_word, problem_from_record
from ..host.window import LAYOUTS
from ..transform._parse import sizes_word
from ._batch_problem import (BatchNormGradientProblem, BatchNormInferProblem, BatchNormProblem, make_batch_backward, make_batch_infer,
                             make_batch_train)
from ._channel_problem import MODES, RUNNING, STATISTIC, WEIGHT, WHOLE, shape_of
from ._group_problem import GroupNormGradientProblem, GroupNormProblem, make_group_backward, make_group_forward

_KINDS = {"batch_norm_train_fwd": (BatchNormProblem, make_batch_train, {
              "x": WHOLE, "gamma": WEIGHT, "beta": WEIGHT, "running_mean": RUNNING, "running_var": RUNNING, "residual": WHOLE}),
          "batch_norm_infer": (BatchNormInferProblem, make_batch_infer, {
              "x": WHOLE, "gamma": WEIGHT, "beta": WEIGHT, "mean": RUNNING, "var": RUNNING, "residual": WHOLE}),
          "batch_norm_bwd": (BatchNormGradientProblem, make_batch_backward, {
              "dy": WHOLE, "x": WHOLE, "gamma": WEIGHT, "mean": STATISTIC, "rstd": STATISTIC, "y": WHOLE}),
          "group_norm_fwd": (GroupNormProblem, make_group_forward, {"x": WHOLE, "gamma": WEIGHT, "beta": WEIGHT}),
          "group_norm_bwd": (GroupNormGradientProblem, make_group_backward, {
              "dy": WHOLE, "x": WHOLE, "gamma": WEIGHT, "mean": STATISTIC, "rstd": STATISTIC, "y": WHOLE})}


def add_arguments(op, parser):
    """The words that describe a problem of the operation."""
    parser.add_argument("shape", type=sizes_word, help="N, C and the spatial extents, in this order for every layout: 64x256x56x56")
    parser.add_argument("dtype", type=dtype_word, help="float32, bf16, ...")
    parser.add_argument("--layout", choices=LAYOUTS, default="NCHW")
    parser.add_argument("--weights", type=dtype_word, help="of gamma, beta and given statistics; default: x's dtype")
    parser.add_argument("--activation", choices=tuple(PARAMETERS))
    if op.startswith("group"):
        parser.add_argument("--groups", type=int, help="default: one a channel, which is instance normalisation")
        return
    parser.add_argument("--mode", choices=MODES, default="spatial")
    parser.add_argument("--residual", action="store_true", help="there is one, or its gradient is wanted")
    if op == "batch_norm_train_fwd":
        parser.add_argument("--running", action="store_true", help="with running statistics")


def make(op, arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes, gamma and beta among them."""
    _, make_it, kinds = _KINDS[op]
    n, c, *image = (*arguments.shape, 1, 1)[:max(2, len(arguments.shape))]
    layout, mode, groups = arguments.layout, getattr(arguments, "mode", "spatial"), None
    if op.startswith("group"):
        groups = arguments.groups or c
    x = Tensor.packed((n, c, *image) if layout == "NCHW" else (n, *image, c), arguments.dtype)
    wide = "float64" if x.dtype == "float64" else "float32"
    dtypes = {WHOLE: x.dtype, STATISTIC: wide, WEIGHT: arguments.weights or x.dtype, RUNNING: arguments.weights or x.dtype}
    there = {"running_mean": getattr(arguments, "running", False), "residual": getattr(arguments, "residual", False),
             "y": arguments.activation}
    absent = {name for name, given in there.items() if not given}
    if "running_mean" in absent:
        absent.add("running_var")
    tensors = tuple(None if name in absent else Tensor.packed(shape_of(kind, x, layout, mode, groups), dtypes[kind])
                    for name, kind in kinds.items())
    more = (mode if groups is None else groups, layout, arguments.activation)
    if op == "batch_norm_bwd":
        more += (arguments.residual,)
    return make_it(tensors, None, *more, frozenset())


def from_record(op, record):
    """The problem of a record; ValueError where it is something else."""
    return problem_from_record(_KINDS[op][0], op, record)


FAMILY = {op: tuple(functools.partial(f, op) for f in (add_arguments, make, from_record)) for op in _KINDS}
"""Operation -> what adds its words to a parser, what makes a problem of them, and of a record; the command line reads this."""

_BATCH = ("4x6x5x3 f32 --activation relu --residual", "3x16x7 bf16 --layout NHWC --weights float32", "5x10 f16", "3x4x2x3x2 f64",
          "4x3x5 f32 --mode per_activation")
_GROUP = ("4x6x5x3 f32 --activation relu --groups 2", "3x16x7 bf16 --layout NHWC --weights float32 --groups 4", "5x10 f16 --groups 1",
          "3x4x2x3x2 f64")
SMALL = {op: _GROUP if op.startswith("group") else _BATCH for op in _KINDS}
"""Problems that ``python -m dnnkern check`` tries."""
