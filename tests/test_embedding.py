"""Embeddings: against PyTorch, rows out of range, the order of sums, random problems, problems in words, bad input."""
import importlib
import json

import contract
import labs
import numpy as np
import pytest
from cases import lay
from cases._embedding import Backward, Forward
from labs import array, host

import dnnkern
from dnnkern import dispatch
from dnnkern.dispatch import NotSupported
from dnnkern.embedding._parse import FAMILY, SMALL, parse_problem

OPS = ("embedding_fwd", "embedding_bwd")
FWD, BWD = dnnkern.embedding_fwd, dnnkern.embedding_bwd
FORWARD, BACKWARD = ([a.name for a in dispatch.algorithms(op)] for op in OPS)


@pytest.mark.parametrize("padding, by_frequency", [(None, False), (2, False), (-1, True)])
@pytest.mark.parametrize("algo", BACKWARD)
def test_gradients_are_pytorchs(algo, padding, by_frequency):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    weight, indices, dy = rng.standard_normal((7, 6)), rng.integers(0, 7, (9, 8)), rng.standard_normal((9, 8, 6))
    w = torch.from_numpy(weight).requires_grad_()
    y = torch.nn.functional.embedding(torch.from_numpy(indices), w, padding_idx=padding, scale_grad_by_freq=by_frequency)
    y.backward(torch.from_numpy(dy))
    np.testing.assert_array_equal(host(FWD(array(weight, "float64"), array(indices, "int64"))), y.detach().numpy())
    found = BWD(array(dy, "float64"), array(indices, "int64"), 7, padding_idx=padding, scale_grad_by_freq=by_frequency, algo=algo)
    np.testing.assert_allclose(host(found), w.grad.numpy(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("algo", FORWARD)
def test_what_is_no_row_is_nan(algo, dtype, index):
    weight = array(np.arange(24.0).reshape(3, 8), dtype)
    wrong = [2, -1, 3, 0, -2 ** 31, 2 ** 31 - 1] + [2 ** 32, -2 ** 32 + 1] * (index == "int64")
    y = host(FWD(weight, array(np.array(wrong), index), algo=algo)).astype(float)
    np.testing.assert_array_equal(y[[0, 3]], [np.arange(16.0, 24), np.arange(8.0)])
    assert np.isnan(np.delete(y, [0, 3], 0)).all()
    empty = host(FWD(array(np.zeros((0, 8)), dtype), array(np.zeros(2), index), algo=algo)).astype(float)
    assert empty.shape == (2, 8) and np.isnan(empty).all()


@pytest.mark.parametrize("algo", BACKWARD)
def test_what_is_no_row_has_no_effect(algo):
    dy, wrong = np.ones((6, 8)), np.array([1, -1, 3, 2 ** 32, 1, -2 ** 32 + 1])
    dweight = host(BWD(array(dy), array(wrong, "int64"), 3, algo=algo))
    np.testing.assert_array_equal(dweight, np.array([0.0, 2, 0])[:, None] * np.ones(8))


@pytest.mark.parametrize("algo", FORWARD)
def test_rows_are_copied_as_they_are(algo):
    weight = np.array([[np.nan, -0.0, -np.inf, 1e-45]])
    y = host(FWD(array(weight), array(np.zeros(3), "int32"), algo=algo))
    np.testing.assert_array_equal(y, np.repeat(weight.astype(np.float32), 3, 0))
    assert np.signbit(y[:, 1:3]).all()


def in_order(dy, indices, rows, slices):
    """Sums in float32, position by position; of rows of more than `slices` positions slice by slice of the sorted list."""
    order = np.argsort(indices, kind="stable")
    dweight, begin = np.zeros((rows, dy.shape[-1]), np.float32), 0
    for row in range(rows):
        places = order[indices[order] == row]
        cuts = [k for k in range(1, len(places)) if (begin + k) % slices == 0] if len(places) > slices else []
        sums = []
        for part in np.split(places, cuts):
            total = np.zeros(dy.shape[-1], np.float32)
            for place in part:
                total = total + dy[place]
            sums.append(total)
        for total in sums:
            dweight[row] = dweight[row] + total
        begin += len(places)
    return dweight


@pytest.mark.sized
@pytest.mark.parametrize("algo, slices, positions", [("naive", 10 ** 9, 2000), ("sorted", 32, 2000), ("direct", 10 ** 9, 1000)])
@pytest.mark.parametrize("most", [3, 40, 300])
def test_the_order_of_sums(algo, slices, positions, most):
    """2000 positions: slices of 32, two tiles. Rows with no position, some, and many."""
    rng = np.random.default_rng(most)
    indices = np.minimum(rng.exponential(most / 5, positions).astype(int), most - 1)
    dy = rng.standard_normal((positions, 8)).astype(np.float32)
    found = host(BWD(array(dy), array(indices, "int32"), most, algo=algo))
    np.testing.assert_array_equal(found, in_order(dy, indices, most, slices))


def test_randomly(request):
    hypothesis = pytest.importorskip("hypothesis")
    st = hypothesis.strategies
    full = request.config.getoption("--full")

    def problems(draw):
        kind = draw(st.sampled_from([Forward, Backward]))
        rows, columns = draw(st.integers(1, 20)), draw(st.integers(1, 40))
        positions = tuple(draw(st.lists(st.integers(1, 9), max_size=3)))
        names = ("weight", "y") if kind is Forward else ("dy", "dweight")
        where = {name: {"gap": draw(st.sampled_from([0, 0, 1, 8])), "misaligned": draw(st.sampled_from([0, 0, 1, 2]))} for name in names}
        more = {} if kind is Forward else {"padding": draw(st.sampled_from([None, None, 0, -1])), "by_frequency": draw(st.booleans())}
        return kind("random", rows, columns, positions, draw(st.sampled_from(["float64", "float32", "float16", "bfloat16"])),
                    draw(st.sampled_from(["int32", "int64"])), draw(st.sampled_from(["any", "few", "one"])), layout=where, **more)

    @hypothesis.settings(max_examples=300 if full else 25, deadline=None, derandomize=not full, database=None,
                         suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(st.composite(problems)())
    def check(case):
        problem, values = case.problem(), case.values("float")
        reference, tolerance = case.reference(values)
        for algorithm in dispatch.algorithms(case.op):
            if contract.refusal(algorithm, problem) is None:
                run = contract.Run(case, algorithm, values, tight=True)
                run.check_memory()
                run.check_values(reference, tolerance)
    check()


# ---- in words, and to measure

@pytest.mark.parametrize("op", OPS)
def test_what_is_chosen_for_cases_to_measure(op):
    """The fast algorithm but for few positions; indices are rows of the table."""
    for case in importlib.import_module(f"bench.shapes.{op}").cases("all", ("float32", "bfloat16")):
        chosen = dispatch.get_algorithm(op, case.problem, prefer="device").name
        assert chosen in ("rows", "sorted", "direct") or case.problem.positions <= 512, case.problem
        indices = case.problem.operand_values("indices")
        assert indices.shape == case.problem.indices.shape and 0 <= indices.min() and indices.max() < case.problem.table.shape[0]


@pytest.mark.parametrize("op", OPS)
def test_problems_come_back_from_their_records(op):
    for text in SMALL[op]:
        problem = parse_problem(text.split(), op)
        assert FAMILY[op][2](json.loads(json.dumps(dispatch.problem_record(problem)))) == problem
    with pytest.raises(ValueError, match=f"{op}: not a record"):
        FAMILY[op][2]({"x": 3})
    with pytest.raises(ValueError, match="weight has shape \\(5,\\); expected \\(rows, columns\\)"):
        parse_problem("5 f32 3".split(), op)


# ---- bad input

TABLE, INDICES = np.arange(24.0).reshape(3, 8), np.array([2, 0])


def refused(error, words, function, *args, **kwargs):
    """The function raises `error`, its name first, with all the words."""
    with labs.refuses(error, words, function.__name__):
        function(*args, **kwargs)


def test_bad_operands():
    weight, indices, dy = array(TABLE), array(INDICES, "int32"), array(np.ones((2, 8)))
    refused(ValueError, ["weight has shape (24,)", "(rows, columns)"], FWD, array(TABLE.ravel()), indices)
    refused(TypeError, ["weight is int32", "float64, float32"], FWD, indices.reshape(2, 1), indices)
    refused(TypeError, ["indices is float32", "int32 or int64"], FWD, weight, array(INDICES))
    refused(TypeError, ["indices: got NoneType"], FWD, weight, None)
    refused(TypeError, ["dy: got NoneType"], BWD, None, indices, 3)
    refused(ValueError, ["indices has 8 dimensions", "up to 7"], FWD, weight, array(INDICES.reshape(2, *[1] * 7), "int32"))
    refused(ValueError, ["dy has shape (3, 8)", "(2, 8)"], BWD, array(np.ones((3, 8))), indices, 3)
    refused(ValueError, ["dy has no dimensions"], BWD, array(np.ones(())), indices, 3)
    refused(TypeError, ["num_embeddings=2.5"], BWD, dy, indices, 2.5)
    refused(ValueError, ["num_embeddings is -1"], BWD, dy, indices, -1)
    refused(TypeError, ["padding_idx='a'"], BWD, dy, indices, 3, padding_idx="a")
    for row in (3, -4):
        refused(ValueError, [f"padding_idx={row} with num_embeddings=3", "-3 to 2"], BWD, dy, indices, 3, padding_idx=row)
    refused(TypeError, ["scale_grad_by_freq=1"], BWD, dy, indices, 3, scale_grad_by_freq=1)
    refused(NotSupported, ["'quantum'", "rows"], FWD, weight, indices, algo="quantum")


def test_bad_outputs():
    weight, indices, dy = array(TABLE), array(INDICES, "int32"), array(np.ones((2, 8)))
    refused(ValueError, ["out has shape (3, 8)", "(2, 8)"], FWD, weight, indices, out=array(np.zeros((3, 8))))
    refused(TypeError, ["out is float16", "weight is float32"], FWD, weight, indices, out=array(np.zeros((2, 8)), "float16"))
    refused(ValueError, ["out has shape (4, 8)", "(3, 8)"], BWD, dy, indices, 3, out=array(np.zeros((4, 8))))
    refused(TypeError, ["out is float64", "dy is float32"], BWD, dy, indices, 3, out=array(np.zeros((3, 8)), "float64"))
    shared = labs.guarded(lay((2, 8), "float32", expand=(0,))).array
    refused(ValueError, ["out has shape (2, 8)", "share one address"], FWD, weight, indices, out=shared)


def test_values_are_checked_where_asked(monkeypatch):
    from dnnkern.host import check
    monkeypatch.setattr(check, "CHECKS", {"values"})
    weight, indices = array(TABLE), array(np.array([[0, 1], [3, 2]]), "int64")
    from dnnkern.embedding._problem import check_rows, make_forward
    from dnnkern.host.arrays import kind_of
    problem = make_forward((kind_of(weight).tensor(weight), kind_of(indices).tensor(indices)), None, frozenset())
    with pytest.raises(ValueError, match=r"embedding_fwd: indices\[1, 0\] is 3; expected a row of the table, 0 to 2"):
        check_rows(problem, {"indices": indices})
