"""What the fused kernels of graphs' plans compile to, for sm_80 and sm_90a: no stack, no local memory, no call, however long the
epilogue."""
import pytest
from sass import assembled

from dnnkern import dispatch
from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from graphs import T, new_graph  # noqa: E402
from test_ptx import device  # noqa: E402

from dnnkern.graph._lower import lower  # noqa: E402
from dnnkern.graph._partition import cuts  # noqa: E402
from dnnkern.graph.ops import OPERATIONS  # noqa: E402
import dnnkern.graph as cudnn  # noqa: E402


def chain(graph, y, length, dims, stride, channels):
    """The first of ten functions: with a vector, a matrix and numbers; what the fourth gives is kept beside, the matrix is read twice."""
    n = len(dims)
    vector = graph.tensor([channels if a == (1 if n == 4 else n - 1) else 1 for a in range(n)], [channels, 1, *[1] * (n - 2)] if n == 4 else
                          [channels] * (n - 1) + [1])
    matrix = graph.tensor(dims, stride)
    half = graph.tensor_scalar(0.5, cudnn.scalar_type.COMPILE_TIME_CONST)
    functions = [lambda v: graph.bias(v, vector), graph.gelu, lambda v: graph.mul(v, half), lambda v: graph.add(v, matrix), graph.relu,
                 lambda v: graph.scale(v, vector), graph.swish, lambda v: graph.add(v, matrix), graph.tanh, lambda v: graph.mul(v, half)]
    for number, function in enumerate(functions[:length], 1):
        y = function(y)
        if number == 4 < length:
            y.set_output(True).set_data_type(T.FLOAT)
    return y.set_output(True)


def product(length):
    graph = new_graph(T.BFLOAT16)
    a, b = graph.tensor([1, 2048, 4096], [2 ** 23, 4096, 1]), graph.tensor([1, 4096, 2048], [2 ** 23, 1, 4096])
    chain(graph, graph.matmul(a, b), length, (1, 2048, 2048), (2 ** 22, 2048, 1), 2048)
    return graph


def convolution(length, channels=256, size=28):
    graph, stride = new_graph(T.HALF), (channels * size * size, 1, channels * size, channels)
    x = graph.tensor([64, channels, size, size], stride)
    w = graph.tensor([channels, channels, 3, 3], [9 * channels, 1, 3 * channels, channels])
    chain(graph, graph.conv_fprop(x, w, padding=[1, 1]), length, (64, channels, size, size), stride, channels)
    return graph


def small_convolution(length):
    return convolution(length, 64, 56)


def pointwise(length):
    graph = new_graph(T.BFLOAT16)
    x = graph.tensor([8192, 4096], [4096, 1])
    chain(graph, graph.neg(x), length, (8192, 4096), (4096, 1), 4096)
    return graph


def fused(graph):
    """The problem of the one step of the graph's first cut."""
    graph.validate()
    (step,), _ = lower(graph.spec, cuts(graph.spec)[0], OPERATIONS)
    assert len(step.nodes) == len(graph.nodes), "all in one kernel"
    return step.problem


def code_of(algorithm, problem, target):
    """Machine code of the kernel that runs the program: the last one."""
    last = algorithm.build(problem, target, algorithm.config)[-1]
    return assembled(last.kernel, last.signature, target.arch)


def check(code, registers):
    assert (code.stack, code.spilled) == (0, 0) and not code.opcodes("LDL", "STL") and not code.calls, code.report
    assert code.registers <= registers, code.registers


# (graph, algorithm, architecture): registers of a thread, whatever the length
KERNELS = {(product, "mma", "sm_80"): 224, (product, "blocked", "sm_80"): 255, (product, "split_k", "sm_80"): 128,
           (product, "wgmma", "sm_90a"): 240, (convolution, "implicit_gemm_mma", "sm_80"): 240,
           (convolution, "implicit_gemm", "sm_80"): 255, (convolution, "implicit_gemm_wgmma", "sm_90a"): 168,
           (small_convolution, "halo_wgmma", "sm_90a"): 128, (pointwise, "rows", "sm_80"): 96, (pointwise, "rows", "sm_90a"): 96}
SLOW = pytest.mark.slow


@pytest.mark.parametrize("length", [pytest.param(3, marks=SLOW), pytest.param(6, marks=SLOW), 10])
@pytest.mark.parametrize("make, name, arch", KERNELS)
def test_chosen_configurations(make, name, arch, length):
    target, problem = device(arch), fused(make(length))
    algorithm = dispatch.named(problem.op, name).configured(problem, target)
    check(code_of(algorithm, problem, target), KERNELS[make, name, arch])


@pytest.mark.slow
@pytest.mark.parametrize("length", [6, 10])
@pytest.mark.parametrize("make, name, arch", [(convolution, "implicit_gemm_wgmma", "sm_90a"), (product, "wgmma", "sm_90a")])
def test_every_configuration_of_the_largest_kernels(make, name, arch, length):
    """Tiles whose registers do not suffice for the program are none of its configurations."""
    target, problem = device(arch), fused(make(length))
    for algorithm in dispatch.named(problem.op, name).variants(problem, target):
        check(code_of(algorithm, problem, target), 240)


@pytest.mark.parametrize("length, spilled", [(1, 32)])
def test_what_is_known_to_spill(length, spilled):
    """A bias alone, whose words ptxas loads ahead beside 128 accumulators: 16 bytes, once a tile, as with `matmul`'s own bias."""
    target, problem = device("sm_80"), fused(product(length))
    code = code_of(dispatch.named("matmul", "mma").configured(problem, target), problem, target)
    assert code.spilled <= spilled and code.stack <= 16
