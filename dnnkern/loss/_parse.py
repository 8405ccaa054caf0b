"""Losses in words, for the command line: ``8192x50257 bf16 --weight --smoothing 0.1``, ``16x21x512x512 f32 --targets soft``; for CTC
``512x32x128 f32 64``: steps, samples, classes, and the most labels."""
from dataclasses import replace

from ..host.tensor import Tensor
from ..host.words import either, new_words

words, FAMILY, SMALL, parse_problem = new_words()
_SMALL = "5x100 f32", "4x9 f64 --reduction sum --targets int32"


@words("nll_loss_fwd", "nll_loss_bwd", small=(*_SMALL, "3x777 bf16 --weight", "2x6x5x8 f16 --reduction none"))
@words("cross_entropy_fwd", "cross_entropy_bwd", small=(*_SMALL, "3x777 bf16 --weight --smoothing 0.1", "2x6x5x8 f16 --targets soft"))
def _classes(op, shape, dtype, *, targets="int64", weight=False, **options):
    """The classes are along axis 1, or the only axis."""
    axis = min(1, len(shape) - 1)
    given = (shape, dtype) if targets == "soft" else (shape[:axis] + shape[axis + 1:], targets)
    return either(op, op.replace("bwd", "fwd"), **{"logits" if "entropy" in op else "logp": (shape, dtype)}, targets=given,
                  weight=(shape[axis:axis + 1], dtype) if weight else None, **options)


@words("mse_loss_fwd", "mse_loss_bwd", small=("5x100 f32", "3x777 bf16 --reduction none", "4099 f16 --reduction sum", "4x9 f64",
                                              "3x77 bf16 --reduction none --short"))
def _mse(op, shape, dtype, *, short=False, **options):
    """With ``--short`` each loss is of x's dtype."""
    found = either(op, "mse_loss_fwd", x=(shape, dtype), target=(shape, dtype), **options)
    name = "loss" if found.is_forward else "dloss"
    return replace(found, **{name: Tensor.packed(getattr(found, name).shape, dtype)}) if short else found


words("ctc_loss_fwd", "ctc_loss_bwd", small=("12x3x7 f32 4", "9x2x33 bf16 3 --blank 5", "5x2x4 f16 3 --zero-infinity --targets int32",
                                             "6x1x5 f64 2 --normalized"))(
    lambda op, shape, dtype, labels, *, targets="int64", **options: either(
        op, "ctc_loss_fwd", logits=(shape, dtype), targets=((*shape[1:2], labels), targets), input_lengths=(shape[1:2], targets),
        target_lengths=(shape[1:2], targets), **options))
