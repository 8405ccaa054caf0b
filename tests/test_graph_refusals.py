"""Every operation refuses what does not fit: the error names the operation, the node, the port and the tensor."""
import inspect
import math

import pytest
from graphs import new_graph

import dnnkern.graph as cudnn
from dnnkern.graph.ops import OPERATIONS

TRAINING = cudnn.norm_forward_phase.TRAINING
NUMBERS = {"axis": 0, "negative_slope": 0.5}


def tensors(graph):
    """Makes a packed tensor of these dims, called "wrong" where that is said."""
    def made(*dim, name="", **more):
        return graph.tensor(dim, [math.prod(dim[k + 1:]) for k in range(len(dim))], name=name, **more)
    return made


def eps(t):
    return t(1, 1, 1, 1, is_pass_by_value=True)


# Operation -> (a call with one wrong operand, the port). x is (2, 8, 4, 4), weights of channels (1, 8, 1, 1).
WRONG = {
    "adalayernorm": (lambda g, t, x, w, bad: g.adalayernorm(TRAINING, x, bad(3, 8, 1, 1), t(2, 8, 1, 1), eps(t), name="it"), "SCALE"),
    "adalayernorm_backward": (lambda g, t, x, w, bad: g.adalayernorm_backward(bad(2, 8, 4, 3), x, t(2, 8, 4, 4), t(2, 1, 1, 1),
                                                                              t(2, 1, 1, 1), name="it"), "DY"),
    "batchnorm": (lambda g, t, x, w, bad: g.batchnorm(x, bad(1, 7, 1, 1), w, w, w, eps(t), eps(t), name="it"), "SCALE"),
    "batchnorm_backward": (lambda g, t, x, w, bad: g.batchnorm_backward(bad(2, 8, 4, 3), x, w, w, w, name="it"), "DY"),
    "batchnorm_inference": (lambda g, t, x, w, bad: g.batchnorm_inference(x, w, bad(1, 7, 1, 1), w, w, name="it"), "INV_VARIANCE"),
    "block_scale_dequantize": (lambda g, t, x, w, bad: g.block_scale_dequantize(x, bad(2, 8, 4, 3), [2], name="it"), "scale"),
    "block_scale_quantize": (lambda g, t, x, w, bad: g.block_scale_quantize(bad(2, 8, 4, 5), 2, name="it"), "X"),
    "bn_finalize": (lambda g, t, x, w, bad: g.bn_finalize(w, w, bad(1, 7, 1, 1), w, eps(t), eps(t), name="it"), "SCALE"),
    "concatenate": (lambda g, t, x, w, bad: g.concatenate([x, bad(2, 8, 4, 3)], axis=0, name="it"), "X_1"),
    "conv_dgrad": (lambda g, t, x, w, bad: g.conv_dgrad(x, bad(8, 8, 9, 9), name="it").set_dim([2, 8, 4, 4]), "W"),
    "conv_fprop": (lambda g, t, x, w, bad: g.conv_fprop(x, bad(8, 3, 1, 1), name="it"), "W"),
    "conv_wgrad": (lambda g, t, x, w, bad: g.conv_wgrad(x, bad(2, 8, 9, 9), name="it").set_dim([8, 8, 1, 1]), "DY"),
    "dbn_weight": (lambda g, t, x, w, bad: g.dbn_weight(bad(2, 8, 4, 3), x, w, w, w, name="it"), "DY"),
    "genstats": (lambda g, t, x, w, bad: g.genstats(bad(8), name="it"), "X"),
    "groupnorm": (lambda g, t, x, w, bad: g.groupnorm(TRAINING, x, bad(1, 7, 1, 1), w, eps(t), 2, name="it"), "SCALE"),
    "groupnorm_backward": (lambda g, t, x, w, bad: g.groupnorm_backward(bad(2, 8, 4, 3), x, w, t(2, 2, 1, 1), t(2, 2, 1, 1), 2, name="it"),
                           "DY"),
    "instancenorm": (lambda g, t, x, w, bad: g.instancenorm(TRAINING, x, bad(1, 7, 1, 1), w, eps(t), name="it"), "SCALE"),
    "instancenorm_backward": (lambda g, t, x, w, bad: g.instancenorm_backward(bad(2, 8, 4, 3), x, w, t(2, 8, 1, 1), t(2, 8, 1, 1),
                                                                              name="it"), "DY"),
    "layernorm": (lambda g, t, x, w, bad: g.layernorm(TRAINING, x, bad(1, 7, 1, 1), w, eps(t), name="it"), "SCALE"),
    "layernorm_backward": (lambda g, t, x, w, bad: g.layernorm_backward(bad(2, 8, 4, 3), x, t(1, 8, 4, 4), t(2, 1, 1, 1), t(2, 1, 1, 1),
                                                                        name="it"), "DY"),
    "matmul": (lambda g, t, x, w, bad: g.matmul(x, bad(2, 8, 3, 4), name="it"), "B"),
    "moe_grouped_matmul_bwd": (lambda g, t, x, w, bad: g.moe_grouped_matmul_bwd(bad(1, 5, 4), t(1, 6, 4), t(3, 1, 1), name="it"),
                               "DOutput"),
    "moe_grouped_matmul": (lambda g, t, x, w, bad: g.moe_grouped_matmul(t(1, 6, 4), t(2, 4, 4), bad(3, 1, 1), name="it"),
                           "FirstTokenOffset"),
    "reduction": (lambda g, t, x, w, bad: g.reduction(bad(2, 8, 4, 4), cudnn.reduction_mode.ADD, name="it").set_dim([2, 3, 4, 4]), "Y"),
    "resample": (lambda g, t, x, w, bad: g.resample(bad(2, 8, 4, 4), cudnn.resampling_mode.MAXPOOL, cudnn.padding_mode.NEG_INF_PAD, [9, 9],
                                                    name="it"), "X"),
    "resample_backward": (lambda g, t, x, w, bad: g.resample_backward(bad(2, 8, 4, 4), x, cudnn.resampling_mode.AVGPOOL_INCLUDE_PADDING,
                                                                      cudnn.padding_mode.ZERO_PAD, [2, 2], [2, 2], name="it")
                          .set_dim([2, 8, 4, 4]), "DY"),
    "reshape": (lambda g, t, x, w, bad: g.reshape(bad(2, 8, 4, 4), name="it").set_dim([5, 5]), "Y"),
    "rmsnorm": (lambda g, t, x, w, bad: g.rmsnorm(TRAINING, x, bad(1, 7, 1, 1), None, eps(t), name="it"), "SCALE"),
    "rmsnorm_backward": (lambda g, t, x, w, bad: g.rmsnorm_backward(bad(2, 8, 4, 3), x, t(1, 8, 4, 4), t(2, 1, 1, 1), False, name="it"),
                         "DY"),
    "rng": (lambda g, t, x, w, bad: g.rng([4, 4], eps(t), bad(1, 1, 1, 1), cudnn.rng_distribution.UNIFORM, name="it").set_dim([3, 3]), "Y"),
    "rope": (lambda g, t, x, w, bad: g.rope(x, bad(3, 1, 1, 4), name="it"), "FREQS"),
    "rope_backward": (lambda g, t, x, w, bad: g.rope_backward(x, bad(4, 1, 1, 6), name="it"), "FREQS"),
    "sdpa": (lambda g, t, x, w, bad: g.sdpa(x, bad(2, 3, 4, 4), x, is_inference=True, name="it"), "V|K"),
    "sdpa_backward": (lambda g, t, x, w, bad: g.sdpa_backward(x, x, x, x, bad(2, 8, 4, 3), t(2, 8, 4, 1), name="it"), "dO"),
    "sdpa_fp8": (lambda g, t, x, w, bad: g.sdpa_fp8(x, x, x, *[t(1, 1, 1, 1)] * 5, bad(1, 2, 1, 1), is_inference=True, name="it"),
                 "Scale_O"),
    "sdpa_fp8_backward": (lambda g, t, x, w, bad: g.sdpa_fp8_backward(x, x, x, x, bad(2, 8, 4, 4), *[w] * 13, name="it"), "dO"),
    "slice": (lambda g, t, x, w, bad: g.slice(bad(2, 8, 4, 4), [slice(0, 1)] * 5, name="it"), "X"),
    "softmax": (lambda g, t, x, w, bad: g.softmax(bad(2, 8, 4, 4), axis=4, name="it"), "X"),
    "softmax_backward": (lambda g, t, x, w, bad: g.softmax_backward(bad(2, 8, 4, 3), x, name="it"), "DY"),
    "transpose": (lambda g, t, x, w, bad: g.transpose(bad(2, 8, 4, 4), [0, 1, 1, 2], name="it"), "X"),
}


def pointwise(graph, operation, x):
    """A call of a pointwise operation whose result cannot have its dims."""
    needed = [p.name for p in operation.signature.parameters.values() if p.default is inspect.Parameter.empty and p.name != "self"]
    arguments = {name: NUMBERS.get(name, x) for name in needed}
    return getattr(graph, operation.name)(**arguments, name="it").set_dim([2, 8, 4, 3])


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_does_not_fit_is_refused(name):
    graph = new_graph()
    t = tensors(graph)
    x, w = t(2, 8, 4, 4, name="x"), t(1, 8, 1, 1, name="w")
    if name in WRONG:
        make, port = WRONG[name]
        expected = rf"^\w+: {name} node 'it': port ({port})( \(tensor .*\))?: "
        with pytest.raises((ValueError, RuntimeError), match=expected):
            found = make(graph, t, x, w, lambda *dim: t(*dim, name="wrong"))
            (found if not isinstance(found, list) else next(f for f in found if f is not None)).set_output(True)
            graph.validate()
        return
    pointwise(graph, OPERATIONS[name], x).set_output(True)
    with pytest.raises(ValueError, match=rf"^SHAPE_DEDUCTION_FAILED: {name} node 'it': port OUT_0 \(tensor .*\): got dims \(2, 8, 4, 3\)"):
        graph.validate()
