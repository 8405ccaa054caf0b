"""Problems in words: that they are those of the public functions' calls, and come back from their records."""
import importlib
import inspect
import json

import pytest

import dnnkern
from dnnkern import dispatch
from dnnkern._parser import Parser, family_words, operations

WORDS = {op: importlib.import_module(f"dnnkern.{family}._parse") for op, family in operations().items()}
HALF, WHOLE = "float16", "float32"


def parse(op, text):
    return WORDS[op].parse_problem(text.split(), op)


def test_every_public_operation_has_words():
    assert set(WORDS) == {a.op for a in dispatch.algorithms()}
    for op, words in WORDS.items():
        assert words.SMALL[op] and set(words.SMALL) == set(words.FAMILY)


@pytest.mark.parametrize("op", sorted(WORDS))
def test_records(op):
    """Through JSON, equal and printed the same; what is something else is named."""
    of_record = family_words(Parser(), op)[2]
    for text in WORDS[op].SMALL[op]:
        problem = parse(op, text)
        again = of_record(json.loads(json.dumps(dispatch.problem_record(problem))))
        assert again == problem and hash(again) == hash(problem) and repr(again) == repr(problem) and problem.op == op
    for record in ({}, [1], None, {"nothing": 3}, {"op": "frobnicate"}, {**dispatch.problem_record(problem), "nothing": 1}):
        with pytest.raises(ValueError, match=f"^{op}: not a record"):
            of_record(record)


@pytest.mark.parametrize("op, text, arguments", [
    ("matmul", "5x6x7 f16 tn --bias row --alpha 2 --activation relu",
     {"a": ((7, 5), HALF), "b": ((7, 6), HALF), "bias": ((5, 1), HALF), "transpose_a": True, "alpha": 2.0, "activation": "relu"}),
    ("matmul", "5x6x7 f32 --in-place --beta 0.5",
     {"a": ((5, 7), WHOLE), "b": ((7, 6), WHOLE), "c": ((5, 6), WHOLE), "beta": 0.5, "out": "c"}),
    ("conv_fwd", "2x4x7x8 k6 3x2 s2x1 p0:1x1 f32 nhwc --residual",
     {"x": ((2, 7, 8, 4), WHOLE), "w": ((6, 3, 2, 4), WHOLE), "residual": ((2, 3, 9, 6), WHOLE), "stride": (2, 1),
      "padding": ((0, 1), 1), "layout": "NHWC"}),
    ("conv_bwd_data", "2x4x7x8 k6 3x3 p1 f32",
     {"dy": ((2, 6, 7, 8), WHOLE), "w": ((6, 4, 3, 3), WHOLE), "x_shape": (2, 4, 7, 8), "padding": 1}),
    ("conv_bwd_filter", "2x4x7x8 k6 3x3 f32 g2 --convolution",
     {"x": ((2, 4, 7, 8), WHOLE), "dy": ((2, 6, 5, 6), WHOLE), "w_shape": (6, 2, 3, 3), "groups": 2, "mode": "convolution"}),
    ("sdpa_fwd", "2x4x9x8 f16 --kv-heads 2 --keys 12 --causal --layout bshd --bias heads --lse",
     {"q": ((2, 9, 4, 8), HALF), "k": ((2, 12, 2, 8), HALF), "v": ((2, 12, 2, 8), HALF), "bias": ((1, 4, 9, 12), HALF), "causal": True,
      "layout": "BSHD", "return_lse": True}),
    ("max_pool_bwd", "2x3x9x8 f32 3x3 s2 index64", {"dy": ((2, 3, 4, 3), WHOLE), "index": ((2, 3, 4, 3), "int64"), "x_shape": (2, 3, 9, 8),
                                                    "window": 3, "stride": 2}),
    ("avg_pool_fwd", "2x3x9x8 f32 4 adaptive", {"x": ((2, 3, 9, 8), WHOLE), "output_size": 4}),
    ("cross_entropy_bwd", "4x9 f32 --weight --smoothing 0.1 --ignore 3 --reduction none",
     {"dloss": ((4,), WHOLE), "logits": ((4, 9), WHOLE), "targets": ((4,), "int64"), "lse": ((4,), WHOLE), "weight": ((9,), WHOLE),
      "label_smoothing": 0.1, "ignore_index": 3, "reduction": "none"}),
    ("group_norm_bwd", "2x6x5 f16 g3 gelu weights=f32",
     {"dy": ((2, 6, 5), HALF), "x": ((2, 6, 5), HALF), "gamma": ((6,), WHOLE), "mean": ((2, 3), WHOLE), "rstd": ((2, 3), WHOLE),
      "groups": 3, "activation": "gelu", "beta": ((6,), WHOLE)}),
    ("softmax_bwd", "3x4x5 f32 --axis 1 --log", {"dy": ((3, 4, 5), WHOLE), "y": ((3, 4, 5), WHOLE), "axis": 1, "log": True}),
    ("adamw_step", "3x4,5 f16 --master --maximize",
     {"params": [((3, 4), HALF), ((5,), HALF)], "grads": [((3, 4), HALF), ((5,), HALF)], "lr": 0.1, "step": 2, "maximize": True,
      **{name: [((3, 4), WHOLE), ((5,), WHOLE)] for name in ("m", "v", "master")}}),
    ("col2im", "2x3x9x8 f32 3x2 s2 p1", {"columns": ((2, 18, 25), WHOLE), "x_shape": (2, 3, 9, 8), "window": (3, 2), "stride": 2,
                                         "padding": 1}),
    ("pad_bwd", "3x4 f32 1,0:2 edge", {"dy": ((5, 6), WHOLE), "pads": ((1, 1), (0, 2)), "mode": "edge"}),
    ("strided_slice", "9x8 f32 1:7:2,::-1", {"x": ((9, 8), WHOLE), "starts": (1, None), "stops": (7, None), "steps": (2, -1)})])
def test_words_are_calls(op, text, arguments):
    function = f"adaptive_{op}" if "adaptive" in text else op
    assert parse(op, text) == dnnkern.problem(function, **arguments)


@pytest.mark.parametrize("op", ["softmax_fwd", "reduce", "sdpa_decode", "mse_loss_fwd", "conv_fwd"])
def test_the_functions_parameters_are_options_with_its_words(op):
    """All with a default that are no arrays, and no others of its."""
    parser = Parser()
    family_words(parser, op)[0](parser)
    actions = {action.dest: action for action in parser._actions}
    parameters = inspect.signature(getattr(dnnkern, op)).parameters
    assert not {"out", "workspace", "stream", "algo", "allow", "exclude", "workspace_limit"} & set(actions)
    expected = {"softmax_fwd": {"axis", "log"}, "reduce": {"axes", "keepdims", "out_dtype"}, "mse_loss_fwd": {"reduction"},
                "sdpa_decode": {"scale", "window", "layout", "return_lse"},
                "conv_fwd": {"stride", "padding", "dilation", "groups", "layout", "mode", "activation", "alpha", "beta", "math"}}[op]
    assert expected <= set(actions)
    for name in expected - {"window", "axes"}:
        assert actions[name].default == parameters[name].default, name
    told = {name: action.help for name, action in actions.items() if name in expected}
    doc = " ".join(inspect.getdoc(getattr(dnnkern, op)).split())
    assert all(told.values()) and all(" ".join(text.replace("%%", "%").split()) in doc for text in told.values())


@pytest.mark.parametrize("op, text, message", [
    ("softmax_fwd", "3xx4 f32", "softmax_fwd: argument shape: '3xx4' is not a shape such as"),
    ("softmax_fwd", "3x99999999999999999999 f32", "has a size beyond"),
    ("softmax_bwd", "3x4 f32 --program relu", "softmax_bwd: has no program after its result"),
    ("softmax_fwd", "3x4 f32 --axis 7", "softmax_fwd: axis=7"), ("softmax_fwd", "3x4 q9", "unknown dtype 'q9'"),
    ("concat", "3x4,0*3x4 f32 0", "'0\\*3x4' is not a shape such as 64x256 or 12\\*64x256"),
    ("batch_norm_infer", "3x4 f32 frozen", "batch_norm_infer has no argument 'frozen'"),
    ("max_pool_bwd", "1x2x8x8 f32 2x2 divisor3", "max_pool_bwd has no argument 'divisor'"),
    ("batch_norm_bwd_apply", "4x3x5 f32 --program relu", "batch_norm_bwd_apply: has no program after its result"),
    ("conv_bwd_data", "1x4x8x8 k4 3x3 f32 --bias --convolution", "conv_transpose_fwd flips no filter"),
    ("conv_fwd", "1x4x8x8 3x3 f32", "conv_fwd: k missing; expected 64x64x56x56"),
    ("fused_pointwise", "6x8 bf16", "fused_pointwise: no steps"), ("sdpa_decode", "2x2x3x4 f32 --page 0", "pages of 0 keys"),
    ("adam_step", "3 f32 --states v,w", "adam_step has no argument 'w'")])
def test_words_that_make_no_sense(op, text, message):
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        parse(op, text)
    assert "\n" not in str(caught.value)
