"""A small valid call of every public function, and what kind of thing each keyword takes: for tests that are generated for them all."""
import inspect

import labs
import numpy as np
from cases import lay

import dnnkern
from dnnkern.dispatch import CHOICE

TAIL = ("out", "workspace", "stream", *CHOICE)


def array(*shape, dtype="float32", value=1):
    """An array of this process's kind."""
    return labs.guarded(lay(shape, dtype), np.broadcast_to(np.float64(value), shape)).array


def _spec():
    return dnnkern.RnnSpec("lstm", 2, 2)


def _step(states, **keywords):
    return lambda: ([[array(3)] for _ in range(2 + states)], {"lr": 1.0, **keywords})


def _program():
    """``x0 + x1 * axis index``"""
    from dnnkern.device.pointwise import Function
    from dnnkern.device.program import Program, Step
    loads = ("float32", "matrix"), ("float32", "matrix"), ("int32", "index")
    return Program(loads, (Step(Function.of("mul"), (1, 2)), Step(Function.of("add"), (0, 3))), ((4, "float32", "matrix"),), accumulators=0)


def _staged():
    """``x0 - sum(x0) + index``, the sum along the axes."""
    from dnnkern.device.pointwise import Function
    from dnnkern.device.program import Step
    from dnnkern.fused import Reduction, StagedProgram
    steps = Reduction("add", 0), Step(Function.of("sub"), (0, 2)), Step(Function.of("add"), (3, 1))
    return StagedProgram((("float32", "matrix"), ("int32", "index")), steps, ((4, "float32", "matrix"),))


_IMAGE = {"window": 2, "stride": 1, "padding": 1, "dilation": 1}
_ADAM = {"beta1": 0.5, "beta2": 0.5, "eps": 1.0, "weight_decay": 1.0, "step": 1}

# Name -> () -> (arrays, keywords). Numbers, flags and ints are 1 and True wherever that is allowed: 1.0, True and 1 are then all one key.
CALLS = {
    "activation_bwd": lambda: ([array(3), array(3)], {"mode": "elu", "alpha": 1.0}),
    "activation_fwd": lambda: ([array(3)], {"mode": "elu", "alpha": 1.0}),
    "adagrad_step": _step(1, lr_decay=1.0, eps=1.0, weight_decay=1.0, step=1),
    "adam_step": _step(2, **_ADAM),
    "adamw_step": _step(2, **_ADAM),
    "adaptive_avg_pool_bwd": lambda: ([array(1, 1, 1)], {"x_shape": (1, 1, 3)}),
    "adaptive_avg_pool_fwd": lambda: ([array(1, 1, 3)], {"output_size": 1}),
    "adaptive_max_pool_bwd": lambda: ([array(1, 1, 1), array(1, 1, 1, dtype="int32")], {"x_shape": (1, 1, 3)}),
    "adaptive_max_pool_fwd": lambda: ([array(1, 1, 3)], {"output_size": 1, "return_index": True}),
    "add_tensor": lambda: ([array(3), array(3)], {"alpha": 1.0, "beta": 1.0}),
    "affine_grid_bwd": lambda: ([array(1, 2, 2, 2)], {"align_corners": True}),
    "affine_grid_fwd": lambda: ([array(1, 2, 3)], {"size": (1, 1, 2, 2), "align_corners": True}),
    "argreduce": lambda: ([array(2, 3)], {"mode": "max", "axis": 1, "keepdims": True}),
    "avg_pool_bwd": lambda: ([array(1, 1, 4)], {"x_shape": (1, 1, 3), **_IMAGE, "ceil_mode": True, "count_include_pad": True,
                                                "divisor": 3}),
    "avg_pool_fwd": lambda: ([array(1, 1, 3)], {**_IMAGE, "ceil_mode": True, "count_include_pad": True, "divisor": 3}),
    "batch_norm_bwd_apply": lambda: ([array(2, 2, 2), array(2, 2, 2), *[array(2) for _ in range(5)], array(1)], {"residual": True}),
    "batch_norm_bwd_sums": lambda: ([array(2, 2, 2), array(2, 2, 2), *[array(2) for _ in range(3)]], {}),
    "batch_norm_merge": lambda: ([array(2, 3), array(2, 3), array(2)], {"eps": 1.0, "momentum": 1.0}),
    "batch_norm_stats": lambda: ([array(2, 2, 2)], {"eps": 1.0}),
    "batch_norm_bwd": lambda: ([array(2, 2, 2), array(2, 2, 2), *[array(2) for _ in range(3)]], {"residual": True}),
    "batch_norm_infer": lambda: ([array(2, 2, 2), *[array(2) for _ in range(4)]], {"eps": 1.0}),
    "batch_norm_train_fwd": lambda: ([array(2, 2, 2), *[array(2) for _ in range(4)]], {"eps": 1.0, "momentum": 1.0}),
    "binary": lambda: ([array(3), array(3)], {"op": "add"}),
    "block_scale_dequantize": lambda: ([array(2, 4, dtype="uint8", value=0), array(2, 2)],
                                       {"block_size": 4, "axis": 1, "dtype": "float32"}),
    "block_scale_quantize": lambda: ([array(2, 4)], {"block_size": 4, "axis": 1, "dtype": "float8_e4m3fn",
                                                     "scale_dtype": "float8_e8m0fnu"}),
    "cast": lambda: ([array(3)], {"dtype": "float16", "scale": 1.0}),
    "clip_grad_norm": lambda: ([[array(3)]], {"max_norm": 1.0}),
    "col2im": lambda: ([array(1, 2, 4)], {"x_shape": (1, 1, 3), **_IMAGE}),
    "concat": lambda: ([[array(2, 3), array(2, 3)]], {"axis": 1}),
    "conv_bwd_bias": lambda: ([array(1, 2, 3)], {"layout": "NCHW"}),
    "conv_bwd_data": lambda: ([array(1, 1, 2), array(1, 1, 2)],
                              {"x_shape": (1, 1, 3), "stride": 1, "padding": 0, "dilation": 1, "groups": 1, "alpha": 1.0, "beta": 0.0}),
    "conv_bwd_filter": lambda: ([array(1, 1, 3), array(1, 1, 2)],
                                {"w_shape": (1, 1, 2), "stride": 1, "padding": 0, "dilation": 1, "groups": 1, "alpha": 1.0, "beta": 0.0}),
    "conv_fwd": lambda: ([array(1, 1, 3), array(1, 1, 2)],
                         {"stride": 1, "padding": 1, "dilation": 1, "groups": 1, "alpha": 1.0, "beta": 0.0}),
    "conv_transpose_fwd": lambda: ([array(1, 1, 3), array(1, 1, 2)],
                                   {"stride": 1, "padding": 1, "output_padding": 0, "dilation": 1, "groups": 1, "alpha": 1.0, "beta": 0.0}),
    "convert_layout": lambda: ([array(1, 2, 3)], {"source": "NCHW", "target": "NHWC"}),
    "cross_entropy_bwd": lambda: ([array(), array(2, 3), array(2, dtype="int32"), array(2)], {"ignore_index": 1, "label_smoothing": 1.0}),
    "cross_entropy_fwd": lambda: ([array(2, 3), array(2, dtype="int32")], {"ignore_index": 1, "label_smoothing": 1.0}),
    "ctc_loss_bwd": lambda: ([array(1), array(2, 1, 3), array(1, 1, dtype="int32", value=2), array(1, dtype="int32"),
                              array(1, dtype="int32"), array(1, 2, 4)], {"blank": 1, "zero_infinity": True, "normalized": False}),
    "ctc_loss_fwd": lambda: ([array(2, 1, 3), array(1, 1, dtype="int32", value=2), array(1, dtype="int32"), array(1, dtype="int32")],
                             {"blank": 1, "zero_infinity": True, "normalized": False}),
    "depth_to_space": lambda: ([array(1, 1, 2, 2)], {"block": 1}),
    "dropout_bwd": lambda: ([array(3), array(1, dtype="uint8")], {"p": 0.0}),
    "dropout_fwd": lambda: ([array(3)], {"p": 0.0, "seed": 1, "offset": 1}),
    "embedding_bwd": lambda: ([array(2, 3), array(2, dtype="int32")], {"num_embeddings": 2, "padding_idx": 1, "scale_grad_by_freq": True}),
    "embedding_fwd": lambda: ([array(2, 3), array(2, dtype="int32")], {}),
    "fused_pointwise": lambda: ([[array(2, 3), array(3)]], {"program": _program(), "axes": 1}),
    "fused_reduction": lambda: ([[array(2, 3)]], {"program": _staged(), "axes": 1, "index_axes": 1}),
    "glu_bwd": lambda: ([array(2, 1), array(2, 2)], {"axis": 1, "gate": "sigmoid"}),
    "glu_fwd": lambda: ([array(2, 2)], {"axis": 1, "gate": "sigmoid"}),
    "grad_norm": lambda: ([[array(3)]], {}),
    "grid_sample_bwd": lambda: ([array(1, 1, 2, 2), array(1, 1, 2, 2), array(1, 2, 2, 2)], {"align_corners": True}),
    "grid_sample_fwd": lambda: ([array(1, 1, 2, 2), array(1, 2, 2, 2)], {"align_corners": True}),
    "group_norm_bwd": lambda: ([array(1, 2, 2), array(1, 2, 2), array(2), array(1, 1), array(1, 1)], {"groups": 1}),
    "group_norm_fwd": lambda: ([array(1, 2, 2), array(2), array(2)], {"groups": 1, "eps": 1.0}),
    "grouped_matmul_bwd_weights": lambda: ([array(2, 2), array(2, 3), labs.guarded(lay((2,), "int32"), np.array([0.0, 2.0])).array], {}),
    "grouped_matmul": lambda: ([array(2, 2), array(1, 2, 2), labs.guarded(lay((2,), "int32"), np.array([0.0, 2.0])).array],
                               {"alpha": 1.0, "transpose_b": True}),
    "im2col": lambda: ([array(1, 1, 3)], dict(_IMAGE)),
    "instance_norm_bwd": lambda: ([array(1, 2, 2), array(1, 2, 2), array(2), array(1, 2), array(1, 2)], {}),
    "instance_norm_fwd": lambda: ([array(1, 2, 2)], {"eps": 1.0}),
    "lamb_step": _step(2, **_ADAM),
    "layer_norm_bwd": lambda: ([array(2, 3), array(2, 3), array(3), array(2), array(2)], {"axis": 1}),
    "layer_norm_fwd": lambda: ([array(2, 3)], {"axis": 1, "eps": 1.0}),
    "lion_step": _step(1, beta1=0.5, beta2=0.5, weight_decay=1.0),
    "lrn_bwd": lambda: ([array(1, 2, 2) for _ in range(3)], {"size": 1, "alpha": 1.0, "beta": 1.0, "k": 1.0}),
    "lrn_fwd": lambda: ([array(1, 2, 2)], {"size": 1, "alpha": 1.0, "beta": 1.0, "k": 1.0}),
    "matmul": lambda: ([array(2, 2), array(2, 2)], {"alpha": 1.0, "beta": 1.0, "transpose_a": True, "transpose_b": True}),
    "max_pool_bwd": lambda: ([array(1, 1, 4), array(1, 1, 4, dtype="int32")], {"x_shape": (1, 1, 3), **_IMAGE, "ceil_mode": True}),
    "max_pool_fwd": lambda: ([array(1, 1, 3)], {**_IMAGE, "ceil_mode": True, "return_index": True}),
    "mse_loss_bwd": lambda: ([array(), array(3), array(3)], {}),
    "mse_loss_fwd": lambda: ([array(3), array(3)], {}),
    "nll_loss_bwd": lambda: ([array(), array(2, 3), array(2, dtype="int32")], {"ignore_index": 1}),
    "nll_loss_fwd": lambda: ([array(2, 3), array(2, dtype="int32")], {"ignore_index": 1}),
    "pad": lambda: ([array(3)], {"pads": ((1, 1),), "value": 1.0}),
    "pad_bwd": lambda: ([array(5)], {"pads": ((1, 1),)}),
    "reduce": lambda: ([array(2, 3)], {"mode": "add", "axes": 1, "keepdims": True}),
    "resample_bwd": lambda: ([array(1, 1, 4)], {"x_shape": (1, 1, 2), "mode": "bicubic", "align_corners": True, "antialias": False}),
    "resample_fwd": lambda: ([array(1, 1, 2)], {"size": 1, "mode": "bicubic", "align_corners": True, "antialias": False}),
    "rms_norm_bwd": lambda: ([array(2, 3), array(2, 3), array(3), array(2)], {"axis": 1, "has_beta": True}),
    "rms_norm_fwd": lambda: ([array(2, 3)], {"axis": 1, "eps": 1.0}),
    "rmsprop_step": lambda: ([[array(3)] for _ in range(3)],
                             {"momenta": [array(3)], "lr": 1.0, "alpha": 0.5, "eps": 1.0, "momentum": 0.5, "weight_decay": 1.0}),
    "rnn_bwd_data": lambda: ([_spec(), array(1, 1, 2), None, None, array(1, 1, 2), None, None, array(1, 1, 2),
                              array(_spec().weight_size), _reserve()], {}),
    "rnn_bwd_weights": lambda: ([_spec(), array(1, 1, 2), None, array(1, 1, 2), _reserve()], {}),
    "rnn_fwd": lambda: ([_spec(), array(1, 1, 2), None, None, array(_spec().weight_size)], {"training": True, "seed": 1, "offset": 1}),
    "move_rows": lambda: ([array(2, 3), array(1, dtype="int32", value=0), array(1, dtype="int32", value=0)], {"rows": 1}),
    "random_fill": lambda: ([array(3)], {"distribution": "uniform", "seed": 1, "offset": 1, "low": 0.0, "high": 1.0, "mean": 0.0,
                                         "std": 1.0, "p": 0.5}),
    "rope_bwd": lambda: ([array(2, 2), array(2, 1), array(2, 1)], {"interleaved": True}),
    "rope_fwd": lambda: ([array(2, 2), array(2, 1), array(2, 1)], {"interleaved": True}),
    "scale_tensor": lambda: ([array(3)], {"alpha": 1.0}),
    "sdpa_bwd": lambda: ([array(1, 1, 2, 2) for _ in range(5)] + [array(1, 1, 2)],
                         {"scale": 1.0, "causal": True, "window": (1, 1), "alibi": True, "dropout": 0.0, "seed": 1, "offset": 1,
                          "softcap": 1.0}),
    "sdpa_decode": lambda: ([array(1, 1, 2, 2) for _ in range(3)] + [array(1, dtype="int32")],
                            {"scale": 1.0, "window": (1, 1), "softcap": 1.0}),
    "sdpa_dropout_mask": lambda: ([array(1, 1, 2, 2)], {"p": 0.5, "seed": 1, "offset": 1}),
    "sdpa_fwd": lambda: ([array(1, 1, 2, 2) for _ in range(3)],
                         {"scale": 1.0, "causal": True, "window": (1, 1), "alibi": True, "dropout": 0.0, "seed": 1, "offset": 1,
                          "softcap": 1.0, "return_lse": True}),
    "set_tensor": lambda: ([array(3)], {"value": 1.0}),
    "sgd_step": lambda: ([[array(3)] for _ in range(3)], {"lr": 1.0, "momentum": 0.5, "dampening": 0.5, "weight_decay": 1.0}),
    "softmax_bwd": lambda: ([array(2, 3), array(2, 3)], {"axis": 1, "log": True}),
    "softmax_fwd": lambda: ([array(2, 3)], {"axis": 1, "log": True}),
    "space_to_depth": lambda: ([array(1, 1, 2, 2)], {"block": 1}),
    "strided_slice": lambda: ([array(3)], {"starts": (1,), "stops": (2,), "steps": (1,)}),
    "transpose": lambda: ([array(2, 3)], {"axes": (1, 0)}),
    "unary": lambda: ([array(3)], {"op": "neg"}),
}
WITHOUT_OUT = tuple(name for name in CALLS if name.endswith("_step"))

NUMBERS = ("alpha", "beta", "beta1", "beta2", "dampening", "dropout", "eps", "high", "k", "label_smoothing", "low", "lr", "lr_decay",
           "max_norm", "mean", "momentum", "p", "scale", "softcap", "std", "value", "weight_decay")
INTEGERS = ("axis", "blank", "block", "block_size", "divisor", "groups", "ignore_index", "num_embeddings", "offset", "padding_idx", "rows",
            "seed", "step")
FLAGS = ("align_corners", "alibi", "antialias", "bias_gradient", "causal", "ceil_mode", "count_include_pad", "first", "frozen", "has_beta",
         "interleaved", "keepdims", "log", "maximize", "nesterov", "normalized", "return_index", "return_lse", "scale_grad_by_freq",
         "sink_gradient", "slope_gradient", "training", "transpose_a", "transpose_b", "zero_infinity")
INTS = ("axes", "dilation", "index_axes", "output_padding", "output_size", "padding", "pads", "size", "starts", "steps", "stops", "stride",
        "w_shape", "window", "x_shape")
WORDS = ("activation", "align", "distribution", "gate", "layout", "math", "mode", "op", "padding_mode", "reduction", "source", "target")
DTYPES = ("dtype", "index_dtype", "out_dtype", "scale_dtype")
_BY_NAME = {**dict.fromkeys(NUMBERS, "number"), **dict.fromkeys(INTEGERS, "integer"), **dict.fromkeys(FLAGS, "flag"),
            **dict.fromkeys(INTS, "ints"), **dict.fromkeys(WORDS, "word"), **dict.fromkeys(DTYPES, "dtype")}
_OWN = {**{name: {"beta": "array", "mean": "array"} for name in (
            "batch_norm_infer", "batch_norm_train_fwd", "group_norm_bwd", "group_norm_fwd", "instance_norm_bwd", "instance_norm_fwd",
            "layer_norm_bwd", "layer_norm_fwd", "rms_norm_fwd")},
        **dict.fromkeys(("batch_norm_bwd", "batch_norm_bwd_apply", "batch_norm_bwd_sums"),
                        {"residual": "flag", "beta": "array", "mean": "array"}),
        "block_scale_dequantize": {"scale": "array"},
        "lrn_fwd": {"size": "integer"},
        "lrn_bwd": {"size": "integer"},
        "move_rows": {"source": "array", "target": "array"}, "sdpa_fwd": {"k": "array"}, "sdpa_bwd": {"k": "array"},
        "unary": {"axis": "ints"}, "mse_loss_fwd": {"target": "array"}, "mse_loss_bwd": {"target": "array"}}


def _reserve():
    return dnnkern.rnn_fwd(_spec(), array(1, 1, 2), None, None, array(_spec().weight_size), training=True)[3]


def kinds(name) -> dict:
    """{keyword: "number", "integer", "flag", "ints", "word" or "dtype"} of a public function; arrays are left out."""
    function, found = getattr(dnnkern, name), {}
    for parameter in inspect.signature(function).parameters:
        kind = _OWN.get(name, {}).get(parameter, _BY_NAME.get(parameter))
        if kind not in (None, "array") and parameter not in TAIL:
            found[parameter] = kind
    return found


def call(name, given=None, **changes):
    """The call, with some keywords changed; returns its result. `given` are the arrays and keywords to use."""
    arrays, keywords = CALLS[name]() if given is None else given
    keywords = {**keywords, **changes}
    function = getattr(dnnkern, name)
    names = [n for n in inspect.signature(function).parameters if n not in keywords]
    return function(**dict(zip(names, arrays)), **keywords)
