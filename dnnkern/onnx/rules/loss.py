"""Losses."""
from .._table import rule
from .._values import FLOATS
from .pointwise import only

NO_INDEX = -(2 ** 31)
"""An index to ignore that no target has."""


@rule("NegativeLogLikelihoodLoss", (12, 13, 22), "`nll_loss_fwd`")
def negative_log_likelihood(node, x, target, weight=None):
    """Of logarithms of probabilities."""
    only((x, weight), FLOATS)
    return node.call("nll_loss_fwd", x, target, weight=weight, ignore_index=node.attribute("ignore_index", NO_INDEX),
                     reduction=node.attribute("reduction", "mean"))


@rule("SoftmaxCrossEntropyLoss", (12, 13), "`cross_entropy_fwd`, `softmax_fwd`")
def cross_entropy(node, x, target, weight=None):
    """Of logits; also their log-softmax."""
    only((x, weight), FLOATS)
    loss, _ = node.call("cross_entropy_fwd", x, target, weight=weight, ignore_index=node.attribute("ignore_index", NO_INDEX),
                        reduction=node.attribute("reduction", "mean"))
    return loss, node.call("softmax_fwd", x, axis=1, log=True) if node.is_wanted(1) else None
