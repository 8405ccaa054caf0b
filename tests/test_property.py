"""Random problems through the public function: shapes, strides, transpositions, batches and epilogues that nobody thought of."""
import contract
import labs
import numpy as np
import pytest
from cases import ITEMSIZE
from cases.matmul import Matmul

from dnnkern import dispatch
from dnnkern.device import SIMULATED

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, given, settings, strategies as st  # noqa: E402

SIZES = st.sampled_from([0, 1, 2, 3, 5, 7, 8, 13, 16, 17] if SIMULATED else [0, 1, 2, 7, 16, 31, 32, 33, 65, 100, 129, 257])
EXAMPLES = {"few": 25, "many": 400}


@st.composite
def layouts(draw, ndim):
    """How an operand lies in memory."""
    layout = {"gap": draw(st.sampled_from([0, 0, 1, 3, 8])), "step": draw(st.sampled_from([1, 1, 1, 2])),
              "misaligned": draw(st.sampled_from([0, 0, 1, 2, 5]))}
    if ndim:
        layout["order"] = tuple(draw(st.permutations(range(ndim))))
        layout["flip"] = tuple(sorted(draw(st.sets(st.integers(0, ndim - 1), max_size=2)))) if draw(st.booleans()) else ()
    return layout


@st.composite
def problems(draw):
    batch = draw(st.lists(st.integers(1, 3), max_size=2))
    vectors = draw(st.sampled_from(["", "", "", "a", "b", "ab"]))
    batch_a = () if "a" in vectors else tuple(n if draw(st.booleans()) else 1 for n in batch)[draw(st.integers(0, len(batch))):]
    batch_b = () if "b" in vectors else tuple(n if draw(st.booleans()) else 1 for n in batch)[draw(st.integers(0, len(batch))):]
    rank = len(np.broadcast_shapes(batch_a, batch_b))
    dims = {"a": 1 if "a" in vectors else len(batch_a) + 2, "b": 1 if "b" in vectors else len(batch_b) + 2,
            "y": rank + ("a" not in vectors) + ("b" not in vectors)}
    m, n, k = draw(SIZES), draw(SIZES), draw(SIZES)
    c = draw(st.sampled_from([None, None, "full", "in place"]))
    dtype = draw(st.sampled_from(["float64", "float32", "float16", "bfloat16", "int8", "float8_e4m3fn", "float8_e5m2"]))
    scales = {"dtype_b": draw(st.sampled_from(["float8_e4m3fn", "float8_e5m2"])),
              "scale_a": draw(st.sampled_from([None, "tensor", "number", "row", "block"])),
              "scale_b": draw(st.sampled_from([None, "tensor", "number", "column", "block"]))} if dtype.startswith("float8") else {}
    return Matmul("random-" + dtype, 1 if "a" in vectors else m, 1 if "b" in vectors else n, k, dtype, vectors=vectors, batch_a=batch_a,
                  batch_b=batch_b, ta="a" not in vectors and draw(st.booleans()), tb="b" not in vectors and draw(st.booleans()),
                  bias=draw(st.sampled_from([None, "column", "column2d", "row"])), c=c,
                  alpha=draw(st.sampled_from([1.0, 1.0, 2.0, -1.0])), beta=draw(st.sampled_from([1.0, 0.0, -2.0])),
                  activation=draw(st.sampled_from([None, "relu", "gelu"])),
                  layout={name: draw(layouts(ndim)) for name, ndim in dims.items()}, **scales)


def _check(case):
    modes = ["float"] + ["exact"] * case.exact
    problem = case.problem()
    for mode in modes:
        values = case.values(mode)
        reference, tolerance = case.reference(values)
        algorithm = dispatch.algorithms("matmul")[0] if problem.is_empty else dispatch.get_algorithm("matmul", problem)
        run = contract.Run(case, algorithm, values, tight=mode == "exact")
        run.check_memory()
        run.check_values(reference, tolerance if mode == "float" else {"y": np.zeros(())})
    if case.c != "in place" or case.beta == 0:
        arrays = {name: p and labs.guarded(p, values[name]).array for name, p in case.inputs().items()}
        y = case.call(arrays)
        labs.synchronize()
        got = np.asarray(y.tolist() if not isinstance(y, np.ndarray) and hasattr(y, "tolist") else _host(y), np.float64)
        assert got.reshape(reference["y"].shape).shape == tuple(y.shape)
        contract.assert_within(got.reshape(reference["y"].shape), reference["y"], tolerance["y"], "without out")
        assert ITEMSIZE[case.y_dtype] == y.dtype.itemsize


def _host(y):
    return y.copy_to_host() if hasattr(y, "copy_to_host") else y


def test_random_problems(request):
    full = request.config.getoption("--full")

    @settings(max_examples=EXAMPLES["many" if full else "few"], deadline=None, derandomize=not full, database=None,
              suppress_health_check=list(HealthCheck))
    @given(problems())
    def check(case):
        _check(case)
    check()
