"""Programs in the words of the command line: the same that a graph's nodes become."""
import pytest
from graphs import T, new_graph

import dnnkern.graph as cudnn
from dnnkern.algorithm import problem_record
from dnnkern.conv import _parse as conv
from dnnkern.graph._lower import lower
from dnnkern.graph._partition import cuts
from dnnkern.graph.ops import OPERATIONS
from dnnkern.matmul import _parse as matmul


def lowered(graph):
    graph.validate()
    (step,), _ = lower(graph.spec, cuts(graph.spec)[0], OPERATIONS)
    return step.problem


def test_a_product_and_the_same_graph():
    graph = new_graph(T.BFLOAT16)
    a, b = graph.tensor([1, 64, 32], [2048, 32, 1]), graph.tensor([1, 32, 48], [1536, 1, 32])
    row, column = graph.tensor([1, 64, 1], [64, 1, 1]), graph.tensor([1, 1, 48], [48, 48, 1])
    half = graph.tensor_scalar(0.5, cudnn.scalar_type.COMPILE_TIME_CONST)
    y = graph.mul(graph.add(graph.mul(graph.matmul(a, b), column), row), half)
    graph.gelu(graph.add(y, graph.tensor([1, 64, 48], [3072, 48, 1]))).set_output(True)
    words = matmul.parse_problem("64x48x32 bf16 nt --program mul@48 add@64x1 mul@0.5 add@64x48 gelu".split())
    mine, theirs = words.program, lowered(graph).program
    assert mine.steps == theirs.steps and mine.result == theirs.result
    assert [access for _, access in mine.loads] == ["column", "row", 0.5, "matrix"] == [access for _, access in theirs.loads]
    assert [t.shape for t in words.extras] == [(1, 48), (64, 1), (64, 48)]


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_a_convolution(layout):
    """Sizes are N, C and the extents whatever the layout; a vector along an extent is read by the row."""
    text = f"2x8x6x5 k16 3x3 p1 f16 {layout} --program mul@16x1x1 relu add@2x16x6x5 add@6x1"
    problem = conv.parse_problem(text.split())
    assert [access for _, access in problem.program.loads] == ["column", "matrix", "row"]
    order = (0, 2, 3, 1) if layout == "nhwc" else (0, 1, 2, 3)
    for t, sizes in zip(problem.extras, ((1, 16, 1, 1), (2, 16, 6, 5), (1, 1, 6, 1))):
        assert t.shape == tuple(sizes[a] for a in order)
    assert conv.FAMILY["conv_fwd"][2](problem_record(problem)) == problem


@pytest.mark.parametrize("words, message", [
    ("64x64x64 f32 --program add@63", "matmul: 63 does not broadcast to the result's 64x64"),
    ("64x64x64 f32 --program add@2x64x64", "2x64x64 does not broadcast"),
    ("64x64x64 f32 --program add", "'add': add of 2 values; expected a function"),
    ("64x64x64 f32 --program relu@64", "'relu@64': relu of 1 values"),
    ("64x64x64 f32 --program gen_index", "'gen_index'"),
    ("64x64x64 f32 --program twirl", "'twirl'"),
    ("64x64x64 f32 --program", "expected at least one argument")])
def test_words_that_make_no_sense(words, message):
    with pytest.raises(ValueError, match=message):
        matmul.parse_problem(words.split())
