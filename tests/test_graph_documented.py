"""The fused graphs of cuDNN's samples at the sizes of networks: by how many launches a Hopper GPU runs them, what they move, and that
nothing between their nodes is in the workspace. Nothing is compiled or run; `test_graph_patterns` has their values, at small sizes."""
import math
from dataclasses import dataclass

import pytest

import dnnkern.graph as cudnn
from dnnkern.graph._copies import Copying

T = cudnn.data_type
IMAGE, FILTERS, ROWS, HEADS = (64, 256, 28, 28), (256, 256, 3, 3), (1, 8192, 4096), (4, 16, 4096, 128)
ITEM = {T.HALF: 2, T.BFLOAT16: 2, T.FLOAT: 4, T.INT8: 1, T.FP8_E4M3: 1, T.BOOLEAN: 1, T.INT32: 4}
TRAINING, INFERENCE = cudnn.norm_forward_phase.TRAINING, cudnn.norm_forward_phase.INFERENCE


@dataclass
class Documented:
    """A graph that is described: `moved` are bytes of what the caller has, each once; `bits` the masks of one bit per element."""
    graph: object
    moved: int = 0
    bits: tuple = ()

    def input(self, dim, dtype=T.HALF):
        """A tensor of the caller's; images lie channels last."""
        t = self.graph.tensor(dim, strides(dim), dtype)
        self.moved += math.prod(dim) * ITEM[dtype]
        return t

    def packed(self, mask):
        """A mask whose buffer has one bit per element."""
        self.moved -= math.prod(mask.get_dim()) * 7 // 8
        self.bits += (mask,)
        return mask

    def weight(self, channels=256, dtype=T.FLOAT):
        return self.input((1, channels, 1, 1), dtype)

    def number(self, value=1e-3):
        return self.graph.tensor_scalar(value, cudnn.scalar_type.COMPILE_TIME_CONST)

    def output(self, t, dtype=T.HALF, dim=None):
        if dim:
            t.set_dim(dim).set_stride(strides(dim))
        t.set_output(True).set_data_type(dtype)
        self.graph.validate()
        self.moved += math.prod(t.get_dim()) * ITEM[dtype]
        return t

    def scale_bias_relu(self, t, channels=256):
        return self.graph.relu(self.graph.bias(self.graph.scale(t, self.weight(channels)), self.weight(channels)))

    def conv(self, x, filters=FILTERS, dtype=T.HALF):
        return self.graph.conv_fprop(x, self.input(filters, dtype), padding=[filters[2] // 2] * 2)

    def dgrad(self):
        return self.graph.conv_dgrad(self.input(IMAGE), self.input(FILTERS), padding=[1, 1]).set_dim(IMAGE).set_stride(strides(IMAGE))


def strides(dim):
    if len(dim) != 4 or dim == HEADS:
        return [math.prod(dim[k + 1:]) for k in range(len(dim))]
    n, c, h, w = dim
    return [c * h * w, 1, w * c, c]


GRAPHS = {}


def documented(*, launches, ops=1, scratch=0):
    """Of a graph: its launches; its steps; the workspace for partial sums, as a share of what is moved. A hundredth is rows' statistics."""
    def keep(function):
        GRAPHS[function.__name__] = function, launches, ops, scratch
        return function
    return keep


# ---- convolutions

@documented(launches=1)
def conv_scale_bias_relu(b):
    b.output(b.scale_bias_relu(b.conv(b.input(IMAGE))))


@documented(launches=2, scratch=0.1)
def scale_bias_relu_conv_genstats(b):
    x = b.scale_bias_relu(b.input((64, 512, 28, 28)), 512).set_data_type(T.HALF)
    y = b.output(b.conv(x, (128, 512, 1, 1)))
    for t in b.graph.genstats(y):
        b.output(t, T.FLOAT)


@documented(launches=2, scratch=0.1)
def conv_of_fp8_scale_amax(b):
    y = b.graph.mul(b.conv(b.input(IMAGE, T.FP8_E4M3), dtype=T.FP8_E4M3), b.number(0.5))
    b.output(b.graph.reduction(y, cudnn.reduction_mode.AMAX), T.FLOAT, [1, 1, 1, 1])
    b.output(y, T.FP8_E4M3)


@documented(launches=1)
def conv_dgrad_drelu(b):
    b.output(b.graph.relu_backward(b.dgrad(), b.input(IMAGE)))


def dbn_weight_of_dgrad(b, count):
    dz = b.output(b.graph.relu_backward(b.dgrad(), b.input(IMAGE)))
    for t in b.graph.dbn_weight(dz, b.input(IMAGE), b.weight(), b.weight(), b.weight())[:count]:
        b.output(t, T.FLOAT)


@documented(launches=2, scratch=0.1)
def conv_dgrad_drelu_dbn_weight(b):
    dbn_weight_of_dgrad(b, 2)


@documented(launches=3, ops=2, scratch=0.1)
def conv_dgrad_drelu_dbn_weight_and_coefficients(b):
    dbn_weight_of_dgrad(b, 5)


@documented(launches=2, scratch=0.1)
def scale_bias_relu_wgrad(b):
    x = b.scale_bias_relu(b.input((64, 256, 56, 56))).set_data_type(T.HALF)
    b.output(b.graph.conv_wgrad(x, b.input((64, 64, 56, 56))), T.FLOAT, (64, 256, 1, 1))


@documented(launches=3, ops=2, scratch=2.0)  # of a filter of 3x3 nine taps would make the image anew: a kernel in front is faster
def scale_bias_relu_wgrad_of_many_taps(b):
    x = b.scale_bias_relu(b.input(IMAGE)).set_data_type(T.HALF)
    b.output(b.graph.conv_wgrad(x, b.input(IMAGE), padding=[1, 1]), T.FLOAT, FILTERS)


# ---- products

def product(b, a=T.BFLOAT16, of=T.BFLOAT16):
    """Of 4096x4096x4096; weights lie as (n, k)."""
    weights = b.input((1, 4096, 4096), of).set_stride([1 << 24, 1, 4096])
    return b.graph.matmul(b.input((1, 4096, 4096), a), weights)


@documented(launches=1)
def matmul_bias_gelu_with_what_it_is_of(b):
    y = b.output(b.graph.bias(product(b), b.input((1, 1, 4096), T.BFLOAT16)), T.BFLOAT16)
    b.output(b.graph.gelu(y), T.BFLOAT16)


@documented(launches=1)
def matmul_of_absolute_values(b):
    a = b.graph.abs(b.input((1, 4096, 4096), T.BFLOAT16)).set_data_type(T.BFLOAT16)
    b.output(b.graph.matmul(a, b.input((1, 4096, 4096), T.BFLOAT16)), T.BFLOAT16)


@documented(launches=1)
def matmul_of_int8_and_bfloat16(b):
    a = b.graph.identity(b.input((1, 4096, 4096), T.INT8)).set_data_type(T.BFLOAT16)
    b.output(b.graph.matmul(a, b.input((1, 4096, 4096), T.BFLOAT16)), T.BFLOAT16)


@documented(launches=2, scratch=0.1)
def matmul_of_fp8_scale_amax(b):
    y = b.graph.mul(product(b, a=T.FP8_E4M3, of=T.FP8_E4M3), b.number(0.5))
    b.output(b.graph.reduction(y, cudnn.reduction_mode.AMAX), T.FLOAT, [1, 1, 1])
    b.output(y, T.FP8_E4M3)


@documented(launches=1)
def matmul_swiglu(b):
    x = b.input((1, 4096, 4096), T.BFLOAT16)
    gate, up = (b.graph.matmul(x, b.input((1, 4096, 11008), T.BFLOAT16).set_stride([4096 * 11008, 1, 4096])) for _ in range(2))
    b.output(b.graph.mul(b.graph.swish(gate), up), T.BFLOAT16)


@documented(launches=1)
def matmul_of_a_slice(b):
    a = b.graph.slice(b.input((1, 8192, 4096), T.BFLOAT16), [slice(None), slice(0, 4096), slice(None)])
    b.output(b.graph.matmul(a, b.input((1, 4096, 4096), T.BFLOAT16)), T.BFLOAT16)


# ---- normalizations

def batchnorm(b):
    return b.graph.batchnorm(b.input(IMAGE), b.weight(), b.weight(), epsilon=b.number())


@documented(launches=3, scratch=0.1)
def batchnorm_add_relu(b):
    y, *statistics = batchnorm(b)
    b.output(b.graph.relu(b.graph.add(y, b.input(IMAGE))))
    for t in statistics[:2]:
        b.output(t, T.FLOAT)


@documented(launches=3, scratch=0.1)
def batchnorm_add_relu_mask_of_bits(b):
    y, *statistics = batchnorm(b)
    total = b.graph.add(y, b.input(IMAGE))
    b.packed(b.output(b.graph.cmp_gt(total, b.number(0.0)), T.BOOLEAN))
    b.output(b.graph.relu(total))
    for t in statistics[:2]:
        b.output(t, T.FLOAT)


@documented(launches=3, scratch=0.1)
def batchnorm_backward_of_a_mask_of_bits(b):
    dz = b.output(b.graph.mul(b.input(IMAGE), b.packed(b.input(IMAGE, T.BOOLEAN))))
    found = b.graph.batchnorm_backward(dz, b.input(IMAGE), b.weight(), b.weight(), b.weight())
    for t, dtype in zip(found, (T.HALF, T.FLOAT, T.FLOAT)):
        b.output(t, dtype)


@documented(launches=3, scratch=0.1)
def batchnorm_backward_of_relu_and_addition(b):
    dz = b.output(b.graph.relu_backward(b.input(IMAGE), b.input(IMAGE)))
    found = b.graph.batchnorm_backward(dz, b.input(IMAGE), b.weight(), b.weight(), b.weight())
    for t, dtype in zip(found, (T.HALF, T.FLOAT, T.FLOAT)):
        b.output(t, dtype)


@documented(launches=1)
def batchnorm_inference_relu(b):
    b.output(b.graph.relu(b.graph.batchnorm_inference(b.input(IMAGE), *(b.weight() for _ in range(4)))))


def rows(b):
    return b.input((16384, 4096, 1, 1), T.BFLOAT16)


@documented(launches=1)
def layernorm_add(b):
    y, *_ = b.graph.layernorm(INFERENCE, rows(b), b.weight(4096), b.weight(4096), b.number())
    b.output(b.graph.add(y, rows(b)), T.BFLOAT16)


@documented(launches=1)
def layernorm_clamped_relu_mask(b):
    y, *_ = b.graph.layernorm(TRAINING, rows(b), b.weight(4096), b.weight(4096), b.number())
    b.output(b.graph.cmp_gt(y, b.number(0.0)), T.BOOLEAN)
    b.output(b.graph.relu(y, lower_clip=0.0, upper_clip=6.0), T.BFLOAT16)


@documented(launches=1)
def rmsnorm_scale_cast(b):
    y, _ = b.graph.rmsnorm(INFERENCE, rows(b), b.weight(4096), epsilon=b.number())
    b.output(b.graph.mul(y, b.number(16.0)), T.FP8_E4M3)


@documented(launches=1)
def zero_centred_layernorm(b):
    gamma = b.graph.add(b.weight(4096), b.number(1.0))
    y, *_ = b.graph.layernorm(INFERENCE, rows(b), gamma, b.weight(4096), b.number())
    b.output(y, T.BFLOAT16)


@documented(launches=1)
def adaptive_layernorm_gelu(b):
    """Each sample has a scale and a shift; what is between is in registers."""
    x, scale, shift = b.input((16, 1024, 4096), T.BFLOAT16), *(b.input((16, 1, 4096), T.FLOAT) for _ in range(2))
    y, *_ = b.graph.adalayernorm(INFERENCE, x, scale, shift, b.number())
    b.output(b.graph.gelu(y), T.BFLOAT16)


# ---- attention

@documented(launches=2)  # the first sets the counter by which blocks take tiles
def causal_attention(b):
    o, _ = b.graph.sdpa(*(b.input(HEADS, T.BFLOAT16) for _ in range(3)), is_inference=True, attn_scale=0.1, use_causal_mask=True)
    b.output(o, T.BFLOAT16)


@documented(launches=1)
def attention_with_a_soft_cap(b):
    def capped(graph, scores):
        return graph.mul(graph.tanh(graph.mul(scores, b.number(0.05))), b.number(20.0))
    o, _ = b.graph.sdpa(*(b.input(HEADS, T.BFLOAT16) for _ in range(3)), is_inference=True, attn_scale=0.1, score_mod=capped)
    b.output(o, T.BFLOAT16)


@documented(launches=2, scratch=0.26)  # the first turns the values, into the workspace, and sets the largest magnitudes to zero
def attention_of_fp8_with_its_largest_magnitudes(b):
    factors = [b.input((1, 1, 1, 1), T.FLOAT) for _ in range(6)]
    o, stats, *maxima = b.graph.sdpa_fp8(*(b.input(HEADS, T.FP8_E4M3) for _ in range(3)), *factors, attn_scale=0.1, generate_stats=True)
    for t, dtype in ((o, T.FP8_E4M3), (stats, T.FLOAT), *((t, T.FLOAT) for t in maxima)):
        b.output(t, dtype)


# ---- memory bound

def of_rows(b, t, mode, rows=ROWS[1]):
    return b.graph.reduction(t, mode).set_dim([1, rows, 1]).set_stride([rows, 1, 1])


@documented(launches=1)
def softmax_of_primitive_nodes(b):
    x = b.input(ROWS, T.BFLOAT16)
    e = b.graph.exp(b.graph.sub(x, of_rows(b, x, cudnn.reduction_mode.MAX)))
    b.output(b.graph.div(e, of_rows(b, e, cudnn.reduction_mode.ADD)), T.BFLOAT16)


def scores(b, m, n, k):
    return b.graph.matmul(b.input((1, m, k), T.BFLOAT16), b.input((1, k, n), T.BFLOAT16).set_stride([k * n, 1, k]))


@documented(launches=1)
def matmul_softmax(b):
    """A row is in one tile."""
    x = scores(b, 16384, 256, 1024)
    e = b.graph.exp(b.graph.sub(x, of_rows(b, x, cudnn.reduction_mode.MAX, 16384)))
    b.output(b.graph.div(e, of_rows(b, e, cudnn.reduction_mode.ADD, 16384)), T.BFLOAT16)


@documented(launches=1)
def matmul_layernorm(b):
    """With a bias and a residual in front, and the statistics for the gradient."""
    m, n = 65536, 128
    x = b.graph.add(b.graph.add(scores(b, m, n, 512), b.input((1, 1, n), T.BFLOAT16)), b.input((1, m, n), T.BFLOAT16))
    mean = of_rows(b, x, cudnn.reduction_mode.AVG, m)
    d = b.graph.sub(x, mean)
    variance = of_rows(b, b.graph.mul(d, d), cudnn.reduction_mode.AVG, m)
    rstd = b.graph.rsqrt(b.graph.add(variance, b.number()))
    weighted = b.graph.mul(b.graph.mul(d, rstd), b.input((1, 1, n), T.FLOAT))
    b.output(b.graph.add(weighted, b.input((1, 1, n), T.FLOAT)), T.BFLOAT16)
    b.output(mean, T.FLOAT)
    b.output(rstd, T.FLOAT)


@documented(launches=1)
def matmul_rmsnorm(b):
    x = scores(b, 16384, 256, 1024)
    rstd = b.graph.rsqrt(b.graph.add(of_rows(b, b.graph.mul(x, x), cudnn.reduction_mode.AVG, 16384), b.number()))
    b.output(b.graph.mul(b.graph.mul(x, rstd), b.input((1, 1, 256), T.FLOAT)), T.BFLOAT16)


@documented(launches=1)
def amax_scale_cast(b):
    x = b.input(ROWS, T.BFLOAT16)
    top = b.output(of_rows(b, x, cudnn.reduction_mode.AMAX), T.FLOAT)
    b.output(b.graph.div(x, top), T.FP8_E4M3)


@documented(launches=1)
def comparisons_and(b):
    x, y = b.input(ROWS), b.input(ROWS)
    first, second = b.graph.cmp_gt(x, y).set_data_type(T.BOOLEAN), b.graph.cmp_lt(x, b.number(0.5)).set_data_type(T.BOOLEAN)
    b.output(b.graph.logical_and(first, second), T.BOOLEAN)


@documented(launches=1)
def reshape_relu(b):
    y = b.graph.reshape(b.input(ROWS), reshape_mode=cudnn.reshape_mode.LOGICAL).set_dim([1, 4096, 8192]).set_stride([1 << 25, 8192, 1])
    b.output(b.graph.relu(y))


@documented(launches=1)
def transpose_bias(b):
    y = b.graph.transpose(b.input(ROWS), [0, 2, 1])
    b.output(b.graph.bias(y, b.input((1, 1, 8192)))).set_stride([1 << 25, 8192, 1])


def planned(name):
    """(the `Documented` of a name, planned for an H200's architecture; its plan; the plan's launches)"""
    b = Documented(planning(name))
    GRAPHS[name][0](b)
    plan = plan_of(b.graph)
    if b.bits:
        plan = Copying(plan, bits=[mask.get_uid() for mask in b.bits])
    return b, plan, launches_of(plan)


def planning(name):
    """A new graph that is planned for an H200's architecture."""
    return cudnn.pygraph(name, T.HALF, T.FLOAT, T.FLOAT, device_property=cudnn.create_device_properties("sm_90a"))


def plan_of(graph):
    """Plans a graph."""
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A])
    return graph._engines.first()


def launches_of(plan):
    """What a plan launches."""
    return [launch for step, a in zip(plan.steps, plan.algorithms) for launch in a.build(step.problem, plan.device, a.config)]


@pytest.mark.parametrize("name", GRAPHS)
def test_documented(name):
    _, launches, ops, scratch = GRAPHS[name]
    b, plan, built = planned(name)
    found = b.graph.explain()
    assert (len(plan.steps), len(built)) == (ops, launches), found
    assert plan.steps[0].problem.bytes <= 1.01 * b.moved and plan.workspace <= max(scratch, 0.01) * b.moved, (found, b.moved)
