"""Convolutions beyond the contract: the directions against each other and PyTorch, the canonical form, words and records, random calls."""
import dataclasses
import json

import contract
import labs
import numpy as np
import pytest
from cases import lay
from cases._conv import Conv
from cases.conv_bwd_bias import BiasGradient

import dnnkern
from dnnkern import dispatch
from dnnkern.conv import ConvProblem
from dnnkern.conv._parse import FAMILY, parse_problem
from dnnkern.device import SIMULATED
from dnnkern.device.epilogue import Activation
from dnnkern.host.tensor import Tensor

GEOMETRIES = [
    dict(size=(2, 4, 7, 6), k=6, filter=(3, 3), padding=1),
    dict(size=(1, 6, 9, 8), k=4, filter=(3, 2), stride=(3, 2), padding=((0, 2), (1, 0)), dilation=(1, 2), groups=2),
    dict(size=(2, 3, 5, 5), k=5, filter=(2, 2), stride=4, padding=3, mode="convolution"),
    dict(size=(1, 6, 14), k=6, filter=(4,), padding=((3, 0),), groups=6),
    dict(size=(1, 2, 4, 5, 3), k=3, filter=(2, 3, 2), padding=1, stride=(1, 2, 1)),
]


def upload(values, dtype="float64"):
    """An array of this process's kind."""
    return labs.guarded(lay(values.shape, dtype), values).array


def download(array):
    """Its values as float64."""
    array = array.cpu() if hasattr(array, "cpu") else array
    return np.asarray(array if isinstance(array, np.ndarray) else array.double(), np.float64)


def zeros(shape, dtype="float32"):
    return upload(np.zeros(shape), dtype)


# ---- the directions against each other

@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: "x".join(map(str, g["size"])))
def test_the_gradients_are_the_adjoints_of_the_forward(geometry, layout):
    """<dy, conv(x, w)> = <conv_bwd_data(dy, w), x> = <conv_bwd_filter(x, dy), w>."""
    case = Conv("adjoint-f64", "conv_fwd", dtype="float64", layout=layout, **geometry)
    rng = np.random.default_rng(1)
    x, w, dy = (rng.standard_normal(case.shape(role)) for role in "xwy")
    keywords = dict(stride=case.stride, padding=case.padding, dilation=case.dilation, groups=case.groups, layout=layout, mode=case.mode)
    y = download(dnnkern.conv_fwd(upload(x), upload(w), **keywords))
    dx = download(dnnkern.conv_bwd_data(upload(dy), upload(w), x.shape, **keywords))
    dw = download(dnnkern.conv_bwd_filter(upload(x), upload(dy), w.shape, **keywords))
    products = (dy * y).sum(), (dx * x).sum(), (dw * w).sum()
    assert abs(products[0]) > 1e-3
    np.testing.assert_allclose(products[1:], products[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", [
    dict(stride=2, padding=1, output_padding=1), dict(stride=(3, 1), padding=(0, 2), dilation=(1, 2), output_padding=(2, 0)),
    dict(stride=2, groups=2, padding=1), dict()], ids=str)
def test_transposed_convolutions_are_pytorchs(options):
    torch = pytest.importorskip("torch")
    rng, groups = np.random.default_rng(2), options.get("groups", 1)
    x, w, b = rng.standard_normal((2, 4, 5, 6)), rng.standard_normal((4, 3, 3, 4)), rng.standard_normal(3 * groups)
    expected = torch.nn.functional.conv_transpose2d(*map(torch.from_numpy, (x, w, b)), **options).numpy()
    got = download(dnnkern.conv_transpose_fwd(upload(x), upload(w), upload(b), **options))
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)
    moved = download(dnnkern.conv_transpose_fwd(*(upload(np.ascontiguousarray(np.moveaxis(a, 1, -1))) for a in (x, w)), upload(b),
                                                layout="NHWC", **options))
    np.testing.assert_allclose(np.moveaxis(moved, -1, 1), got, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_forward_convolutions_are_pytorchs(dims):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(dims)
    x, w, b = rng.standard_normal((2, 4, 7, 6, 5)[:dims + 2]), rng.standard_normal((6, 2, 3, 2, 2)[:dims + 2]), rng.standard_normal(6)
    options = dict(stride=2, padding=(1, 2, 0)[:dims], dilation=(2, 1, 1)[:dims], groups=2)
    function = getattr(torch.nn.functional, f"conv{dims}d")
    expected = function(*map(torch.from_numpy, (x, w, b)), **options).relu().numpy()
    got = download(dnnkern.conv_fwd(*map(upload, (x, w, b)), activation="relu", **options))
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


def test_the_gradient_of_a_bias_in_several_splits():
    """Planes so long that each channel has several blocks, which the contract's sizes do not reach."""
    algorithm = next(a for a in dispatch.algorithms("conv_bwd_bias") if a.name == "two_pass")
    for dtype, layout in (("float32", "NCHW"), ("bfloat16", "NHWC")):
        case = BiasGradient(f"splits-{dtype}", (1, 2, 73, 71), dtype, layout, lay={"dy": {"misaligned": 1}})
        assert algorithm.workspace(case.problem(), contract.device(), None) > 2 * 4
        contract.check(algorithm, case, **contract.ONCE)


# ---- the call

def test_lists_are_taken_for_tuples():
    rng = np.random.default_rng(3)
    x, w = upload(rng.standard_normal((1, 2, 6, 5))), upload(rng.standard_normal((3, 2, 3, 3)))
    y = dnnkern.conv_fwd(x, w, stride=(2, 1), padding=((1, 0), (0, 2)))
    np.testing.assert_array_equal(download(dnnkern.conv_fwd(x, w, stride=[2, 1], padding=[[1, 0], (0, 2)])), download(y))
    np.testing.assert_array_equal(download(dnnkern.conv_fwd(x, w, stride=np.array([2, 1]), padding=[(1, 0), [0, 2]])), download(y))
    dx = dnnkern.conv_bwd_data(y, w, [1, 2, 6, 5], stride=[2, 1], padding=[[1, 0], [0, 2]])
    assert tuple(dx.shape) == (1, 2, 6, 5)


def test_gradients_accumulate_in_place():
    rng = np.random.default_rng(4)
    x, dy = rng.standard_normal((2, 3, 4, 4)), rng.standard_normal((2, 5, 2, 2))
    total = zeros((5, 3, 3, 3), "float64")
    for n in range(2):
        assert dnnkern.conv_bwd_filter(upload(x[n:n + 1]), upload(dy[n:n + 1]), (5, 3, 3, 3), beta=1.0, out=total) is total
    whole = dnnkern.conv_bwd_filter(upload(x), upload(dy), (5, 3, 3, 3))
    np.testing.assert_allclose(download(total), download(whole), rtol=1e-12)


def test_results_of_other_types():
    x, w = upload(np.ones((1, 8, 3, 3)), "int8"), upload(np.ones((2, 8, 3, 3)), "int8")
    assert "int32" in str(dnnkern.conv_fwd(x, w).dtype) and "float16" in str(dnnkern.conv_fwd(x, w, out_dtype="float16").dtype)
    x, dy, out = upload(np.ones((1, 2, 3, 3)), "float16"), upload(np.ones((1, 4, 1, 1)), "float16"), zeros((4, 2, 3, 3))
    assert dnnkern.conv_bwd_filter(x, dy, (4, 2, 3, 3), out=out) is out and download(out).min() == 1


def test_an_empty_batch_gives_zeros():
    x, dy = zeros((0, 2, 4, 4)), zeros((0, 3, 2, 2))
    assert (download(dnnkern.conv_bwd_filter(x, dy, (3, 2, 3, 3))) == 0).all()
    assert (download(dnnkern.conv_bwd_bias(dy)) == np.zeros(3)).all()
    assert tuple(dnnkern.conv_fwd(x, zeros((3, 2, 3, 3))).shape) == (0, 3, 2, 2)
    assert tuple(dnnkern.conv_bwd_data(dy, zeros((3, 2, 3, 3)), (0, 2, 4, 4)).shape) == (0, 2, 4, 4)


# ---- the canonical form

def problem(words, op="conv_fwd"):
    return parse_problem(words.split(), op)


def test_missing_dimensions_lead():
    p = problem("2x6x20 k9 4 s2 p3:0 d2 g3 bf16 nhwc")
    assert (p.n, p.c, p.k, p.groups, p.c_group, p.k_group) == (2, 6, 9, 3, 2, 3)
    assert (p.image, p.filter, p.out) == ((1, 1, 20), (1, 1, 4), (1, 1, 9))
    assert (p.strides, p.dilations, p.pads) == ((1, 1, 2), (1, 1, 2), ((0, 0), (0, 0), (3, 0)))
    assert (p.pads_before, p.pads_after, p.spatial_dims, p.pixels, p.taps) == ((0, 0, 3), (0, 0, 0), 1, 18, 4)
    assert (p.x_strides, p.w_strides, p.y_strides) == ((120, 1, 120, 120, 6), (8, 1, 8, 8, 2), (81, 1, 81, 81, 9))
    assert p.flops == 2 * 18 * 9 * 2 * 4


def test_strides_follow_the_meaning_of_dimensions():
    first, last = problem("2x3x5x7 k4 3x3 f32 nchw"), problem("2x3x5x7 k4 3x3 f32 nhwc")
    assert first.x_strides == (105, 35, 35, 7, 1) and last.x_strides == (105, 1, 105, 21, 3)
    assert first.w_strides == (27, 9, 9, 3, 1) and last.w_strides == (27, 1, 27, 9, 3)
    named = ConvProblem("conv_fwd", Tensor((2, 3, 5, 7), last.x.strides[:1] + (1, 21, 3), "float32"), first.w, first.y)
    assert named.is_packed("x", "NHWC") and not named.is_packed("x", "NCHW") and first.is_packed("x", "NCHW")
    assert problem("2x1x5x7 k4 3x3 f32").is_packed("x", "NHWC"), "one channel lies in both orders"


@pytest.mark.parametrize("op, sizes", [("conv_fwd", (2 * 3 * 4, 6, 4 * 9)), ("conv_bwd_data", (2 * 5 * 8, 4, 6 * 9)),
                                       ("conv_bwd_filter", (6, 4 * 9, 2 * 3 * 4))])
def test_each_direction_is_a_matrix_product(op, sizes):
    p = problem("2x8x5x8 k12 3x3 s2 p1 g2 f16", op)
    assert p.gemm == sizes
    if op != "conv_bwd_data":  # where most taps of a pixel have no window position
        assert p.groups * 2 * np.prod(sizes) == p.flops
    assert p.output is getattr(p, {"conv_fwd": "y", "conv_bwd_data": "x", "conv_bwd_filter": "w"}[op]) and p.outputs == (p.output,)


def test_kinds():
    assert problem("1x8x4x4 k8 1x1 f32").is_pointwise and not problem("1x8x4x4 k8 1x1 s2 f32").is_pointwise
    assert not problem("1x8x4x4 k8 1x1 p1 f32").is_pointwise and not problem("1x8x4x4 k8 3x3 f32").is_pointwise
    assert problem("1x8x4x4 k16 3x3 g8 f32").is_depthwise and not problem("1x1x4x4 k16 3x3 f32").is_depthwise
    assert problem("1x8x4x4 k8 3x3 f32 --convolution").flip and not problem("1x8x4x4 k8 3x3 f32").flip


def test_large_arrays_have_wide_offsets():
    small, large = problem("1x8x4x4 k8 1x1 f16"), problem("1025x8x512x513 k8 1x1 f16")
    assert not small.is_wide and not small.epilogue.wide and large.is_wide and large.epilogue.wide


def test_the_epilogue():
    p = problem("1x8x4x4 k16 1x1 bf16 --bias --residual --activation gelu --alpha 2 --beta 3 --out-dtype float32")
    e = p.epilogue
    assert (e.alpha, e.beta, e.bias, e.bias_dtype, e.c, e.residual, e.activation, e.output, e.accumulator) == (
        True, True, "column", "float32", "float32", "float32", Activation("gelu"), "float32", "float32")
    assert p.in_place and p.prior is p.y and problem("1x8x4x4 k16 1x1 bf16").prior is None
    assert p.bytes == p.x.nbytes + p.w.nbytes + 2 * p.y.nbytes + p.bias.nbytes + p.residual.nbytes


def test_problems_are_values():
    a = ConvProblem("conv_fwd", *(Tensor.packed(s, "float32") for s in ((1, 2, 5, 5), (3, 2, 3, 3), (1, 3, 5, 5))), padding=1)
    b = dataclasses.replace(a, padding=((1, 1), (1, 1)), stride=[1, 1])
    assert a == b and hash(a) == hash(b) and a.padding == ((1, 1), (1, 1))
    with pytest.raises(ValueError, match="op='conv'"):
        dataclasses.replace(a, op="conv")


# ---- words and records

@pytest.mark.parametrize("op, words, text", [
    ("conv_fwd", "64x64x56x56 k64 3x3 s1 p1 f16 nhwc --bias --activation relu", "64x64x56x56 k64 3x3 s1 p1 float16 NHWC + bias, relu"),
    ("conv_fwd", "nchw e4m3 2x3x9 5 k4 --dtype-w e5m2", "2x3x9 k4 5 s1 p0 float8_e4m3fn x float8_e5m2 NCHW -> bfloat16"),
    ("conv_bwd_data", "2x4x5x6x7 k8 1x2x3 s1x2x1 p0x1:0x2 d2 g2 f64 --convolution", "2x4x5x6x7 k8 1x2x3 s1x2x1 p0x1:0x2 d2 g2 float64 NCHW "
     "flipped"),
    ("conv_bwd_filter", "2x4x8x8 k8 3x3 f32 --beta 1 --math tf32", "2x4x8x8 k8 3x3 s1 p0 float32 NCHW + out math=tf32"),
    ("conv_bwd_bias", "2x4x8x8 bf16 nhwc --out-dtype f32", "2x4x8x8 bfloat16 NHWC -> float32")])
def test_words_and_records(op, words, text):
    p = problem(words, op)
    assert str(p) == f"{op} {text}"
    record = json.loads(json.dumps(dispatch.problem_record(p)))
    assert FAMILY[op][2](record) == p


@pytest.mark.parametrize("op, words, operation", [
    ("conv_fwd", "2x4x7x6 k6 3x3 s2x1 p1:0x2 g2 f32 nhwc --bias --residual --activation gelu --alpha 2", "FORWARD"),
    ("conv_fwd", "2x4x9 k6 3 d2 f32 --math tf32 --convolution", "FORWARD"), ("conv_fwd", "2x4x9 k6 3 f32 --beta 0.5", "FORWARD"),
    ("conv_bwd_data", "2x4x7x6 k6 3x3 s2 p1 f32 --beta 2", "BACKWARD_DATA"),
    ("conv_bwd_data", "2x4x8x8 k6 4x4 s2 p1 f32 --bias --activation relu", "TRANSPOSED"),
    ("conv_bwd_filter", "2x4x7x6 k6 3x3 s2 p1 f32 nhwc --alpha 2", "BACKWARD_FILTER"),
    ("conv_bwd_bias", "2x4x7x6 f32 nhwc", "BACKWARD_BIAS")])
def test_problems_in_words_are_those_of_calls(op, words, operation):
    """Else what `find` measures would never be found again."""
    from dnnkern import conv
    p, operation = problem(words, op), getattr(conv, operation)
    arrays = {name: None if getattr(p, name, None) is None else zeros(getattr(p, name).shape) for name in
              ("x", "w", "y", "bias", "residual", "dy")}
    operation.forget()
    if op == "conv_bwd_bias":
        dnnkern.conv_bwd_bias(arrays["dy"], layout=p.layout)
    else:
        window = dict(stride=p.stride, padding=p.padding, dilation=p.dilation, groups=p.groups, layout=p.layout, math=p.math)
        more = dict(alpha=2.0 if p.scaled else 1.0, beta=0.5 if p.beta else 0.0, out=arrays[p.output_name] if p.beta else None, **window)
        fused = dict(residual=arrays["residual"], activation=p.activation)
        if op == "conv_fwd":
            dnnkern.conv_fwd(arrays["x"], arrays["w"], arrays["bias"], mode=p.mode, **fused, **more)
        elif operation is conv.TRANSPOSED:
            dnnkern.conv_transpose_fwd(arrays["y"], arrays["w"], arrays["bias"], **fused, **more)
        elif op == "conv_bwd_data":
            dnnkern.conv_bwd_data(arrays["y"], arrays["w"], p.x.shape, mode=p.mode, **more)
        else:
            dnnkern.conv_bwd_filter(arrays["x"], arrays["y"], p.w.shape, mode=p.mode, **more)
    (bound,) = operation.calls.values()
    assert bound.problem == p


@pytest.mark.parametrize("words, message", [
    ("2x4x8x8 k8 f32", "filter missing"), ("2x4x8x8 3x3 f32", "k missing"), ("2x4x8x8 k8 3 f32", "the filter has 1 extents, the image 2"),
    ("2x4x8x8 k8 3x3 q32", "'q32' is not a word"), ("2x4x8x8 k8 3x3 f32 f16", "'float16' is one dtype too many"),
    ("2x4x8x8 k8 3x3 s1x2x3 f32", "3 entries; expected an int or one entry for each of 2"), ("2x4x8x8 k8 3x3 s0 f32", "stride is 0"),
    ("2x4x8x8 k8 9x3 f32", "spans 9 along h"), ("2x4x8x8 k8 3x3 g3 f32", "4 channels, which 3 groups do not divide"),
    ("2x4x8x99999999999 k8 3x3 f32", "beyond"), ("2x4x8x8 k8 3x3 f32 --frobnicate", "frobnicate")])
def test_words_that_make_no_sense(words, message):
    with pytest.raises(ValueError, match=message) as caught:
        problem(words)
    assert str(caught.value).startswith("conv_fwd: ") and "\n" not in str(caught.value)


def test_records_that_make_no_sense():
    for record in ({}, {"x": 3}, [1], {"op": "conv_bwd_data"}):
        with pytest.raises(ValueError, match="conv_fwd: not a record"):
            FAMILY["conv_fwd"][2](record)


# ---- random calls

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, given, settings, strategies as st  # noqa: E402


@st.composite
def calls(draw):
    """A case that nobody thought of."""
    op, dims = draw(st.sampled_from(["conv_fwd", "conv_bwd_data", "conv_bwd_filter"])), draw(st.integers(1, 3))
    layout, groups = draw(st.sampled_from(["NCHW", "NHWC"])), draw(st.sampled_from([1, 1, 2, 3]))
    taps = tuple(draw(st.integers(1, 3)) for _ in range(dims))
    padding = tuple((draw(st.integers(0, 3)), draw(st.integers(0, 3))) for _ in range(dims))
    dilation, stride = (tuple(draw(st.integers(1, 3)) for _ in range(dims)) for _ in range(2))
    image = tuple(max(d * (r - 1) + 1 - sum(p), 0) + draw(st.integers(0, 5)) for d, r, p in zip(dilation, taps, padding))
    dtype = draw(st.sampled_from(["float64", "float32", "float16", "bfloat16"] + ["int8", "float8_e5m2"] * (op == "conv_fwd")))
    more = dict(beta=draw(st.sampled_from([0.0, 0.0, 1.0, -2.0])), alpha=draw(st.sampled_from([1.0, 1.0, 2.0])))
    more["transposed"] = op == "conv_bwd_data" and all(image) and draw(st.booleans())
    if op == "conv_fwd" or more["transposed"]:
        more.update(bias=draw(st.booleans()), residual=draw(st.booleans()), activation=draw(st.sampled_from([None, "relu", "gelu"])))
    else:
        more["mode"] = draw(st.sampled_from(["cross_correlation", "convolution"]))
    places = {name: {"gap": draw(st.sampled_from([0, 0, 1, 8])), "misaligned": draw(st.sampled_from([0, 0, 1, 5])),
                     "order": tuple(draw(st.permutations(range(dims + 2)))),
                     "flip": tuple(draw(st.sets(st.integers(0, dims + 1), max_size=1)))} for name in "xwy"}
    return Conv(f"random-{dtype}", op, (draw(st.integers(0, 2)), groups * draw(st.sampled_from([1, 2, 8])), *image),
                groups * draw(st.sampled_from([1, 3, 8])), taps, dtype, layout, stride, padding, dilation, groups, lay=places, **more)


def test_random_calls(request):
    full = request.config.getoption("--full")

    @settings(max_examples=400 if full else 25 if SIMULATED else 60, deadline=None, derandomize=not full, database=None,
              suppress_health_check=list(HealthCheck))
    @given(calls())
    def check(case):
        p = case.problem()
        contract.check(dispatch.algorithms(case.op)[0] if p.is_empty else dispatch.get_algorithm(case.op, p), case, **contract.ONCE)
    check()
