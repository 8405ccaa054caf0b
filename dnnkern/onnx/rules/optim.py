"""Steps of optimisers: of all tensors in one launch."""
import math

from .._errors import Refused
from .._table import rule
from .._values import FLOATS
from .pointwise import number, only

TRAINING = "ai.onnx.preview.training"


def _copies(node, tensors, lists):
    """Lists of the tensors, copied but for the gradients, which are the second list: steps are in place."""
    only(tensors, FLOATS)
    n = len(tensors) // lists
    parts = [tensors[k * n:(k + 1) * n] for k in range(lists)]
    return [list(part) if k == 1 else [node.call("cast", t, t.dtype) for t in part] for k, part in enumerate(parts)]


@rule("Adam", (1,), "`adam_step`", domain=TRAINING)
def adam(node, rate, step, *tensors):
    """ONNX adds epsilon to the root before it is corrected, `adam_step` afterwards."""
    rate, step = float(rate.host().reshape(-1)[0]), step.ints()[0]
    alpha, beta = (float(node.attribute(name, default)) for name, default in (("alpha", 0.9), ("beta", 0.999)))
    if step < 1:  # not corrected, as after very many steps
        step = 10 ** 7
        if max(alpha, beta) ** step > 1e-18:
            raise Refused(f"T = 0 with alpha {alpha} and beta {beta}")
    params, grads, m, v = _copies(node, tensors, 4)
    node.call("adam_step", params, grads, m, v, lr=rate, beta1=alpha, beta2=beta, step=step,
              eps=float(node.attribute("epsilon", 1e-6)) / math.sqrt(1 - beta ** step),
              weight_decay=float(node.attribute("norm_coefficient", 0.0)))
    left = 1 - float(node.attribute("norm_coefficient_post", 0.0))
    if left != 1:
        params = [node.call("binary", p, number(node, left, p.dtype), "mul") for p in params]
    return [*params, *m, *v]


@rule("Adagrad", (1,), "`adagrad_step`", domain=TRAINING)
def adagrad(node, rate, step, *tensors):
    """The rate decays with T."""
    rate = float(rate.host().reshape(-1)[0]) / (1 + step.ints()[0] * float(node.attribute("decay_factor", 0.0)))
    params, grads, sums = _copies(node, tensors, 3)
    node.call("adagrad_step", params, grads, sums, lr=rate, eps=float(node.attribute("epsilon", 1e-6)), step=1,
              weight_decay=float(node.attribute("norm_coefficient", 0.0)))
    return [*params, *sums]


@rule("Momentum", (1,), "`sgd_step`", domain=TRAINING)
def momentum(node, rate, step, *tensors):
    """Standard or Nesterov's; beta is 1 at T = 0."""
    beta = float(node.attribute("beta")) if step.ints()[0] > 0 else 1.0
    nesterov = node.attribute("mode") == "nesterov"
    if nesterov and beta != 1 or not 0 <= beta <= 1:
        raise Refused(f"beta {beta} in mode {node.attribute('mode')}")
    params, grads, momenta = _copies(node, tensors, 3)
    node.call("sgd_step", params, grads, momenta, lr=float(rate.host().reshape(-1)[0]), momentum=float(node.attribute("alpha")),
              dampening=1 - beta, nesterov=nesterov, weight_decay=float(node.attribute("norm_coefficient", 0.0)))
    return [*params, *momenta]
