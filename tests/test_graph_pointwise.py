"""Pointwise operations of graphs: values of every mode, types, broadcasting, inference, refusals."""
import math

import numpy as np
import pytest
from graphs import T, array_of, close, execute, like, new_graph, run

import dnnkern.graph as cudnn

erf = np.vectorize(math.erf)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def phi(x):
    return np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def gelu_tanh(x):
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3))) / 2


def slope(f, x, h=1e-6):
    return (f(x + h) - f(x - h)) / (2 * h)


UNARY = {"sqrt": np.sqrt, "erf": erf, "identity": lambda x: x, "exp": np.exp, "log": np.log, "neg": np.negative, "abs": np.abs,
         "ceil": np.ceil, "floor": np.floor, "rsqrt": lambda x: 1 / np.sqrt(x), "reciprocal": lambda x: 1 / x, "sin": np.sin, "cos": np.cos,
         "tan": np.tan, "relu": lambda x: np.maximum(x, 0), "tanh": np.tanh, "sigmoid": sigmoid,
         "elu": lambda x: np.where(x > 0, x, np.expm1(x)), "gelu": lambda x: x * (1 + erf(x / math.sqrt(2))) / 2,
         "gelu_approx_tanh": gelu_tanh, "swish": lambda x: x * sigmoid(x), "softplus": lambda x: np.log1p(np.exp(x)),
         "logical_not": lambda x: x == 0}
POSITIVE = ("sqrt", "log", "rsqrt")
BINARY = {"add": np.add, "mul": np.multiply, "sub": np.subtract, "div": np.divide, "add_square": lambda a, b: a + b * b, "max": np.maximum,
          "min": np.minimum, "mod": np.fmod, "pow": np.power, "bias": np.add, "scale": np.multiply, "cmp_eq": np.equal,
          "cmp_neq": np.not_equal, "cmp_gt": np.greater, "cmp_ge": np.greater_equal, "cmp_lt": np.less, "cmp_le": np.less_equal,
          "logical_and": lambda a, b: (a != 0) & (b != 0), "logical_or": lambda a, b: (a != 0) | (b != 0)}
GRADIENT = {"relu": lambda x: x > 0, "tanh": lambda x: 1 - np.tanh(x) ** 2, "sigmoid": lambda x: sigmoid(x) * (1 - sigmoid(x)),
            "elu": lambda x: np.where(x > 0, 1, np.exp(x)), "gelu": lambda x: (1 + erf(x / math.sqrt(2))) / 2 + x * phi(x),
            "gelu_approx_tanh": lambda x: slope(gelu_tanh, x), "softplus": sigmoid,
            "swish": lambda x: sigmoid(x) * (1 + x * (1 - sigmoid(x)))}


def draw(shape, seed, dtype=np.float32):
    values = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    values[np.abs(values) < 0.05] += 0.25  # away from kinks
    return values


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    x = draw((2, 3, 5), 1)
    x = np.abs(x) + np.float32(0.1) if name in POSITIVE else x
    graph = new_graph()
    t = like(graph, x)
    y = getattr(graph, name)(input=t).set_output(True)
    got, = run(graph, {t: x}, [y])
    assert y.get_dim() == [2, 3, 5] and y.get_stride() == [15, 5, 1] and y.get_data_type() is T.FLOAT
    close(got, UNARY[name](x.astype(np.float64)), factor=16)


@pytest.mark.parametrize("name", BINARY)
def test_binary(name):
    a, b = draw((2, 3, 5), 1), draw((1, 3, 1), 2)
    if name == "pow":
        a = np.abs(a) + np.float32(0.1)
    if name.startswith("cmp"):
        a[0] = b[0]
    graph = new_graph()
    ta, tb = like(graph, a), like(graph, b)
    y = getattr(graph, name)(ta, tb).set_output(True)
    got, = run(graph, {ta: a, tb: b}, [y])
    close(got, BINARY[name](a.astype(np.float64), b.astype(np.float64)), factor=32)


@pytest.mark.parametrize("name", GRADIENT)
def test_gradients(name):
    x, dy = draw((4, 7), 3), draw((4, 7), 4)
    graph = new_graph()
    tx, tdy = like(graph, x), like(graph, dy)
    dx = getattr(graph, f"{name}_backward")(loss=tdy, input=tx).set_output(True)
    got, = run(graph, {tx: x, tdy: dy}, [dx])
    close(got, dy * GRADIENT[name](x.astype(np.float64)), factor=64)


def test_parameters():
    x = draw((4, 9), 5) * 3
    graph = new_graph()
    t = like(graph, x)
    clipped = graph.relu(t, negative_slope=0.5, lower_clip=-1.0, upper_clip=2.0).set_output(True)
    leaky, swish = graph.leaky_relu(t, 0.25).set_output(True), graph.swish(t, swish_beta=2.0).set_output(True)
    leaky_gradient = graph.leaky_relu_backward(t, t, 0.25).set_output(True)
    swish_gradient = graph.swish_backward(t, t, T.FLOAT, 2.0).set_output(True)
    got = run(graph, {t: x}, [clipped, leaky, swish, leaky_gradient, swish_gradient])
    f, d = x.astype(np.float64), sigmoid(2 * x.astype(np.float64))
    close(got[0], np.minimum(np.where(f > -1, f, -1 + 0.5 * (f + 1)), 2))
    close(got[1], np.where(f > 0, f, f / 4))
    close(got[2], f * d, factor=16)
    close(got[3], np.where(f > 0, f, f / 4))
    close(got[4], f * d * (1 + 2 * f * (1 - d)), factor=64)


def test_binary_select_and_gen_index():
    x, a, b = draw((3, 4), 6), draw((3, 4), 7), draw((1, 4), 8)
    graph = new_graph()
    tx, ta, tb = (like(graph, array) for array in (x, a, b))
    mask = graph.cmp_gt(input=tx, comparison=graph.tensor_scalar(0.0))
    chosen = graph.binary_select(input0=ta, input1=tb, mask=mask).set_output(True)
    row = graph.gen_index(tx, axis=0).set_output(True).set_data_type(T.INT32)
    column = graph.gen_index(tx, axis=-1).set_output(True)
    got = run(graph, {tx: x, ta: a, tb: b}, [chosen, row, column])
    np.testing.assert_array_equal(got[0], np.where(x > 0, a, b))
    np.testing.assert_array_equal(got[1], np.indices((3, 4))[0])
    np.testing.assert_array_equal(got[2], np.indices((3, 4))[1])
    assert got[1].dtype == np.int32 and got[2].dtype == np.float32


@pytest.mark.parametrize("kind", [T.HALF, T.BFLOAT16, T.DOUBLE, T.INT32, T.INT8])
def test_types(kind):
    from graphs import DTYPE

    from dnnkern.host.dtypes import numpy_dtype
    dtype = numpy_dtype(DTYPE[kind])
    a = np.arange(-6, 6).reshape(3, 4).astype(dtype)
    b = np.arange(12, 0, -1).reshape(3, 4).astype(dtype)
    graph = new_graph(kind, kind, T.DOUBLE if kind is T.DOUBLE else T.FLOAT)
    ta, tb = like(graph, a), like(graph, b)
    total, mixed = graph.add(ta, tb).set_output(True), graph.div(ta, tb).set_output(True).set_data_type(T.FLOAT)
    got = run(graph, {ta: a, tb: b}, [total, mixed])
    np.testing.assert_array_equal(got[0].astype(float), a.astype(float) + b.astype(float))
    close(got[1], a.astype(float) / b.astype(float))
    assert got[0].dtype == dtype


def test_integers_divided_into_halves_are_not_rounded_to_integers():
    a, b = np.array([[1, 2, 7]], np.int8), np.array([[2, 3, 2]], np.int8)
    graph = new_graph(T.INT8)
    ta, tb = like(graph, a), like(graph, b)
    y = graph.div(ta, tb).set_output(True).set_data_type(T.HALF)
    got, = run(graph, {ta: a, tb: b}, [y])
    np.testing.assert_array_equal(got, (a / b).astype(np.float16))


def test_one_rounding_where_types_are_mixed():
    """A sum of halves that no half holds is exact in a float result."""
    a, b = np.full((1, 8), 2048, np.float16), np.full((1, 8), 1, np.float16)
    graph = new_graph(T.HALF)
    ta, tb = like(graph, a), like(graph, b)
    y = graph.add(ta, tb).set_output(True).set_data_type(T.FLOAT)
    got, = run(graph, {ta: a, tb: b}, [y])
    assert (got == 2049).all()


def test_truth_values_as_booleans():
    """They are one byte each, come out of comparisons, and enter logical operations and sums."""
    a, b = draw((3, 5), 9), draw((3, 5), 10)
    graph = new_graph()
    ta, tb = like(graph, a), like(graph, b)
    first = graph.cmp_gt(ta, tb).set_data_type(T.BOOLEAN)
    second = graph.cmp_gt(ta, graph.neg(tb)).set_data_type(T.BOOLEAN)
    both = graph.logical_and(first, second).set_output(True).set_data_type(T.BOOLEAN)
    count = graph.add(first, second).set_output(True)
    got = run(graph, {ta: a, tb: b}, [both, count])
    assert got[0].dtype == bool
    np.testing.assert_array_equal(got[0], (a > b) & (a > -b))
    np.testing.assert_array_equal(got[1], (a > b).astype(int) + (a > -b))


def test_numbers_by_value_are_read_at_each_call():
    x = draw((2, 6), 11)
    graph = new_graph()
    t, number = like(graph, x), graph.tensor([1, 1], [1, 1], T.FLOAT, is_pass_by_value=True, name="factor")
    y = graph.add(graph.mul(t, number), graph.tensor_scalar(0.5, cudnn.scalar_type.COMPILE_TIME_CONST)).set_output(True)
    assert run(graph, {t: x, number: np.array([[2.0]], np.float32)}, [y])[0][0, 0] == 2 * x[0, 0] + np.float32(0.5)
    got, address = array_of(y), np.array([6.0], np.float32)
    for value in (3.0, np.float32(4), np.array([5.0], np.float32), address.ctypes.data):
        execute(graph, {t: x, number: value, y: got})
        factor = 6.0 if isinstance(value, int) else float(np.ravel(value)[0])
        close(got, x.astype(float) * factor + 0.5, scale=10)
    with pytest.raises(ValueError, match="INVALID_VARIANT_PACK.*'factor'.*passed by value"):
        execute(graph, {t: x, y: got})


# ---- inference


def test_strides_are_those_of_the_first_input_with_the_dims():
    graph = new_graph()
    small, large = graph.tensor([1, 8, 1, 1], [8, 1, 8, 8]), graph.tensor([2, 8, 4, 4], [128, 1, 32, 8])
    y, z = graph.add(small, large), graph.relu(small)
    graph.add(y, z).set_output(True)
    graph.validate()
    assert y.get_dim() == [2, 8, 4, 4] and y.get_stride() == [128, 1, 32, 8] and z.get_dim() == [1, 8, 1, 1]


def test_strides_of_a_virtual_result_have_the_order_of_the_first_input():
    graph = new_graph()
    row, column = graph.tensor([1, 8, 1, 5], [40, 1, 40, 8]), graph.tensor([3, 1, 4, 1], [4, 4, 1, 1])
    y = graph.add(row, column)
    graph.relu(y).set_output(True).set_stride([160, 20, 5, 1])
    graph.validate()
    assert y.get_dim() == [3, 8, 4, 5]
    assert y.get_stride()[1] == 1  # the channels of the first input are the fastest


def test_what_the_caller_sets_wins():
    graph = new_graph()
    x = graph.tensor([1, 3, 1], [3, 1, 1])
    y = graph.relu(x).set_output(True).set_dim([4, 3, 2]).set_stride([6, 1, 3]).set_data_type(T.HALF)
    graph.validate()
    assert (y.get_dim(), y.get_stride(), y.get_data_type()) == ([4, 3, 2], [6, 1, 3], T.HALF)
    values = draw((1, 3, 1), 12)
    got, = run(graph, {x: values}, [y])
    np.testing.assert_array_equal(got, np.broadcast_to(np.maximum(values, 0).astype(np.float16), (4, 3, 2)))


def test_strides_that_cannot_be_deduced():
    graph = new_graph()
    y = graph.add(graph.tensor([1, 8], [8, 1]), graph.tensor([3, 1], [1, 1]))
    y.set_output(True)
    with pytest.raises(ValueError, match=r"SHAPE_DEDUCTION_FAILED: add node '0': port OUT_0.*\(3, 8\)"):
        graph.validate()


@pytest.mark.parametrize("dims", [([2, 3], [4, 3]), ([5], [2, 4])])
def test_dims_that_do_not_broadcast(dims):
    graph = new_graph()
    a, b = (graph.tensor(dim, list(range(len(dim), 0, -1))) for dim in dims)
    graph.add(a, b, name="sum").set_output(True)
    with pytest.raises(ValueError, match="add node 'sum': port IN_0.*expected dims that broadcast"):
        graph.validate()


def test_refusals():
    graph = new_graph()
    x = graph.tensor([2, 4], [4, 1], name="x")
    with pytest.raises(ValueError, match="axis 2 of 2 dims"):
        graph.gen_index(x, axis=2)
        graph.validate()
    graph = new_graph()
    wide = graph.tensor([2, 4], [4, 1], T.INT64, name="x")
    graph.neg(wide, name="minus").set_output(True)
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="neg node 'minus'.*int64"):
        graph.build([cudnn.heur_mode.A])
    with pytest.raises(TypeError, match="leaky_relu node '1': negative_slope"):
        graph.leaky_relu(wide, "half")
