"""Losses in words, for the command line: ``8192x50257 bf16 --weight --smoothing 0.1``, ``16x21x512x512 f32 --targets soft``; for CTC
``512x32x128 f32 64``: steps, samples, classes, and the most labels."""
from ..host.words import Words, like
from ..sketch import problem

words = Words()
_ENTROPY = ("5x100 f32", "3x777 bf16 --weight --smoothing 0.1", "2x6x5x8 f16 --targets soft", "4x9 f64 --reduction sum --targets int32")
_NLL = ("5x100 f32", "3x777 bf16 --weight", "2x6x5x8 f16 --reduction none", "4x9 f64 --reduction sum --targets int32")


@words("cross_entropy_fwd", "cross_entropy_bwd", small=_ENTROPY)
def _entropy(op, shape, dtype, *, targets="int64", weight=False, smoothing=0.0, ignore=-100, reduction="mean"):
    """--targets: soft, or the dtype of class indices; --weight: class weights."""
    given = {**_classes(shape, dtype, targets, weight), "logits": (shape, dtype), "label_smoothing": smoothing, "ignore_index": ignore,
             "reduction": reduction}
    forward = problem("cross_entropy_fwd", **given)
    return forward if op == forward.op else problem(op, dloss=like(forward.loss), lse=like(forward.lse), **given)


@words("nll_loss_fwd", "nll_loss_bwd", small=_NLL)
def _nll(op, shape, dtype, *, targets="int64", weight=False, ignore=-100, reduction="mean"):
    """--targets: the dtype of class indices; --weight: class weights."""
    given = {**_classes(shape, dtype, targets, weight), "logp": (shape, dtype), "ignore_index": ignore, "reduction": reduction}
    forward = problem("nll_loss_fwd", **given)
    return forward if op == forward.op else problem(op, dloss=like(forward.loss), **given)


def _classes(shape, dtype, targets, weight):
    """Targets and class weights of scores whose classes are along axis 1, or the only axis."""
    axis = min(1, len(shape) - 1)
    return {"targets": (shape, dtype) if targets == "soft" else (shape[:axis] + shape[axis + 1:], targets),
            "weight": (shape[axis:axis + 1], dtype) if weight else None}


@words("mse_loss_fwd", "mse_loss_bwd", small=("5x100 f32", "3x777 bf16 --reduction none", "4099 f16 --reduction sum", "4x9 f64"))
def _mse(op, shape, dtype, **options):
    given = {"x": (shape, dtype), "target": (shape, dtype), **options}
    forward = problem("mse_loss_fwd", **given)
    return forward if op == forward.op else problem(op, dloss=like(forward.loss), **given)


@words("ctc_loss_fwd", "ctc_loss_bwd", small=("12x3x7 f32 4", "9x2x33 bf16 3 --blank 5", "5x2x4 f16 3 --zero-infinity --targets int32",
                                              "6x1x5 f64 2 --normalized"))
def _ctc(op, shape, dtype, labels: int, *, targets="int64", **options):
    """labels: of the longest target; --targets: dtype of labels and lengths."""
    given = {"logits": (shape, dtype), "targets": ((*shape[1:2], labels), targets), "input_lengths": (shape[1:2], targets),
             "target_lengths": (shape[1:2], targets), **options}
    forward = problem("ctc_loss_fwd", **given)
    return forward if op == forward.op else problem(op, dloss=like(forward.loss), saved=like(forward.saved), **given)


FAMILY, SMALL, parse_problem = words.family, words.small, words.parse
