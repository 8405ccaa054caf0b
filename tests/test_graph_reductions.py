"""Reductions of what an anchor computes: in its kernel, by tiles, and a second small one."""
from dataclasses import replace

import contract
import labs
import numpy as np
import pytest
from cases.matmul import Matmul  # noqa: F401
from cases._matmul_reductions import ROUNDING, SEVERAL, ReducedMatmul
from cases._reductions import MODES
from graph_patterns import Both, Patterns, count_launches
from graphs import T, array_of, execute, like, new_graph
from representative import device

import dnnkern.graph as cudnn
from dnnkern import dispatch
from dnnkern.device.pointwise import Function
from dnnkern.device.program import Program, Step
from dnnkern.graph import _engines, _partition
from dnnkern.graph._lower import lower
from dnnkern.graph.ops import OPERATIONS
from dnnkern.host.tensor import Tensor
from dnnkern.matmul import OPERATION, MatmulProblem

M = cudnn.reduction_mode
pattern = Patterns()


def reduced(b, x, mode, *axes):
    """A result that is 1 along these axes, of type FLOAT."""
    dims = [1 if a in axes else n for a, n in enumerate(b.values[x].shape)]
    t = b.node("reduction", lambda v: MODES[mode.name.lower()](v, axes), x, mode).set_dim(dims)
    b.output(t.set_stride([int(np.prod(dims[a + 1:])) for a in range(len(dims))]), dtype=T.FLOAT)


def product(b, m=21, n=24, k=16, batch=2, **more):
    return b.node("matmul", np.matmul, b.input((batch, m, k), **more), b.input((batch, k, n), low=-0.25, high=0.25, **more))


@pattern("matmul", launches=2)
def product_bias_relu_amax(b):
    y = b.relu(b.binary("bias", product(b), b.input((1, 1, 24))))
    reduced(b, y, M.AMAX, 0, 1, 2)
    b.output(b.node("identity", np.asarray, y))


@pattern("matmul", launches=2)
def several_of_what_is_rounded(b):
    y = b.rounded(product(b))
    b.output(y)
    reduced(b, y, M.ADD, 0, 1)
    reduced(b, y, M.MAX, 2)
    reduced(b, y, M.NORM2, 1)
    reduced(b, y, M.AVG, 0, 1, 2)


@pattern("matmul", launches=2)
def of_two_values(b):
    y = product(b)
    z = b.rounded(b.swish(y))
    reduced(b, y, M.MIN, 1)
    reduced(b, z, M.ADD, 1)
    b.output(b.binary("mul", z, b.input((2, 21, 24))))


@pattern("matmul", launches=2)
def of_what_nobody_reads(b):
    reduced(b, product(b), M.AMAX, 1, 2)


@pattern("matmul", "fused_pointwise", launches=3)
def scale_of_the_largest(b):
    y = b.rounded(product(b))
    top = b.node("reduction", lambda v: np.abs(v).max(keepdims=True), y, M.AMAX).set_dim([1, 1, 1]).set_stride([1, 1, 1])
    b.output(y)
    b.output(b.node("mul", np.multiply, top, b.number(0.25, 3)), dtype=T.FLOAT)


@pytest.fixture
def together(monkeypatch):
    """Of all cuts the one of the fewest parts."""
    monkeypatch.setattr(_engines, "cuts", lambda spec: _partition.cuts(spec)[:1])


@pytest.mark.parametrize("name", pattern)
def test_one_kernel_and_a_small_one(name, together):
    pattern.check(name)


def test_nothing_in_between_is_in_the_workspace(together):
    b = Both()
    y = b.rounded(product(b, 40, 48))
    b.output(y)
    reduced(b, y, M.ADD, 0, 1)
    b.graph.build()
    (part,) = b.graph.explain().parts
    assert part.nodes == ("matmul 0", "reduction 1") and part.bytes == 2 * (2 * 40 * 16 + 2 * 16 * 48 + 2 * 40 * 48) + 4 * 48
    (step,), _ = lower(b.graph.spec, _partition.cuts(b.graph.spec)[0], OPERATIONS)
    mma = dispatch.named("matmul", "mma")
    target = device("sm_90a")
    config = mma.configured(step.problem, target).config
    assert mma.workspace(step.problem, target, config) == 4 * 48 * 2 * -(-40 // config.tile.bm)


@pytest.mark.parametrize("name", ["naive", "mma", "wgmma"])
def test_nan_and_infinities(name):
    """Of elements, not of what lies beyond the edges."""
    a, b = np.full((19, 8), -1, np.float16), np.ones((8, 13), np.float16)
    a[3], a[7, 0], b[0, 5] = np.inf, np.nan, 2
    y = np.zeros((19, 13), np.float16)
    outs = [np.full(shape, 7, np.float32) for shape in ((1, 13), (19, 1), (1, 1), (19, 1), (1, 13))]
    reductions = [(0, "max", "rows", "float32"), (0, "min", "columns", "float32"), (0, "amax", "all", "float32"),
                  (0, "add", "columns", "float32"), (0, "max", "rows", "float32")]
    problem = MatmulProblem(*(Tensor.packed(x.shape, x.dtype.name) for x in (a, b, y)), program=Program((), (), (), None, 1, reductions),
                            extras=[Tensor.packed(x.shape, "float32") for x in outs])
    results = [labs.array(x, x.dtype.name) for x in (y, *outs)]
    OPERATION.of(problem).call((*(labs.array(x, x.dtype.name) for x in (a, b)), None, None, None, None), tuple(results), (problem,),
                               (1.0, 1.0), None, None, {"algo": name})
    outs = [labs.host(x) for x in results[1:]]
    with np.errstate(invalid="ignore"):
        v = a.astype(float) @ b
    assert np.isnan(v[7]).all() and np.isinf(v[3]).all()
    np.testing.assert_array_equal(outs[0], v.max(0, keepdims=True))
    np.testing.assert_array_equal(outs[1], v.min(1, keepdims=True))
    np.testing.assert_array_equal(outs[2], [[np.nan]])
    np.testing.assert_array_equal(outs[3], v.sum(1, keepdims=True))


def test_warps_that_share_a_tile():
    """Each has rows of its own to finish, some of those that all of them reduce."""
    case = ReducedMatmul("reduced-slices", 40, 24, 64, "float16", reductions=(*SEVERAL, *ROUNDING), out_dtype="float32")
    algorithm, problem = dispatch.named("matmul", "mma"), case.problem()
    found = [v for v in algorithm.variants(problem, contract.device()) if v.config.tile.slices > 1]
    assert found and all(v.config.ranges == 1 for v in found)
    for v in found[:2]:
        contract.check(v, case, again=False, only="float")


def test_what_is_in_place():
    """wgmma reads c once more when y is stored."""
    a, b, y = tensors()
    problem = MatmulProblem(a, b, y, c=y, in_place=True, program=Program((), (), (), None, 1, [(0, "add", "rows", "float32")]),
                            extras=[Tensor.packed((1, 8), "float32")])
    assert "c is y" in dispatch.named("matmul", "wgmma").reason(problem)
    assert dispatch.named("matmul", "mma").reason(problem) is None
    assert dispatch.named("matmul", "wgmma").reason(replace(problem, in_place=False)) is None


def tensors(m=8, n=8):
    return [Tensor.packed(shape, "float16") for shape in ((m, 4), (4, n), (m, n))]


ROUND = (Step(Function.of("identity"), (0,), None, "int32"),)


@pytest.mark.parametrize("reduction, shape, error, message", [
    ((0, "add", "rows", "float32"), (8, 1), ValueError, r"matmul: y1 has shape \(8, 1\); expected \(1, 8\)"),
    ((0, "add", "rows", "float64"), (1, 8), TypeError, "matmul: y1 is float64, and computed in float32"),
    ((1, "add", "rows", "float32"), (1, 8), TypeError, "matmul: y1 is reduced of int32; expected floats"),
    ((0, "median", "rows", "float32"), (1, 8), ValueError, "program: a reduction by 'median'; expected one of add"),
    ((0, "add", "row", "float32"), (1, 8), ValueError, "program: a reduction over 'row'; expected one of rows"),
    ((0, "add", "rows", "int8"), (1, 8), ValueError, "program: a reduction to 'int8'; expected one of float64"),
    ((9, "add", "rows", "float32"), (1, 8), ValueError, "program: a reduction of value 9; expected 0 to 1")])
def test_bad_input(reduction, shape, error, message):
    with pytest.raises(error, match=message):
        MatmulProblem(*tensors(), program=Program((), ROUND, (), 0, 1, [reduction]), extras=[Tensor.packed(shape, reduction[3])])


def test_who_runs_none_says_so():
    problem = MatmulProblem(*tensors(), program=Program((), (), (), None, 1, [(0, "add", "rows", "float32")]),
                            extras=[Tensor.packed((1, 8), "float32")])
    assert dispatch.named("matmul", "tiled").reason(problem) == "tiled runs no reductions"
    assert Program.of_record(problem.program.record()) == problem.program
    again = problem.program.transposed()
    assert again.reductions == ((0, "add", "columns", "float32"),) and again.transposed() == problem.program


@pytest.mark.parametrize("dims, reason", [([1, 8, 8], "kernels reduce rows, columns or both"), ([2, 1, 1], None), ([1, 8, 1], None)])
def test_what_kernels_reduce(dims, reason):
    graph = new_graph(T.HALF)
    y = graph.matmul(graph.tensor([2, 8, 8], [64, 8, 1]), graph.tensor([2, 8, 8], [64, 8, 1]))
    graph.reduction(y, M.ADD).set_dim(dims).set_stride([dims[1] * dims[2], dims[2], 1]).set_output(True).set_data_type(T.FLOAT)
    graph.build()
    assert (len(_partition.cuts(graph.spec)[0]) == 1) == (reason is None)
    assert reason is None or reason in [why for _, _, why in graph.explain().apart][0]


def test_reads_what_is_reduced():
    """A node that reads a result of the reduction waits for it, though it reads the product too."""
    graph = new_graph(T.HALF)
    x = np.random.default_rng(3).standard_normal((1, 8, 8)).astype(np.float16)
    t = like(graph, x)
    y = graph.matmul(t, t).set_data_type(T.FLOAT)
    top = graph.reduction(y, M.AMAX).set_dim([1, 1, 1]).set_stride([1, 1, 1])
    z = graph.div(y, top).set_output(True).set_data_type(T.FLOAT)
    graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    assert [sorted(n.op for n in part) for part in _partition.cuts(graph.spec)[0]] == [["matmul", "reduction"], ["div"]]
    out = array_of(z)
    execute(graph, {t: x, z: out})
    v = x.astype(float) @ x.astype(float)
    np.testing.assert_allclose(out, v / np.abs(v).max(), rtol=1e-5, atol=1e-6)
    assert count_launches(graph) >= 3
