"""The CTC loss: against PyTorch and against all alignments, targets that do not fit, lengths and labels out of range, words, bad input."""
import itertools

import contract
import labs
import numpy as np
import pytest
from cases import lay
from cases._ctc import sample
from cases.ctc_loss_bwd import Backward
from cases.ctc_loss_fwd import Forward
from labs import array, host, refused

import dnnkern
from dnnkern import dispatch
from dnnkern.dispatch import NotSupported
from dnnkern.loss._parse import FAMILY, SMALL, parse_problem

OPS = ("ctc_loss_fwd", "ctc_loss_bwd")
ALGORITHMS = [a.name for a in dispatch.algorithms("ctc_loss_fwd")]
FWD, BWD = dnnkern.ctc_loss_fwd, dnnkern.ctc_loss_bwd


def test_the_reference_is_the_sum_over_all_alignments():
    """Every sequence of classes, its repetitions and then its blanks left out."""
    rng = np.random.default_rng(2)
    for steps, classes, labels in ((4, 3, [1, 2]), (4, 3, [1, 1]), (3, 2, []), (5, 3, [2, 1, 2])):
        x = rng.standard_normal((steps, classes))
        p, total = np.exp(x) / np.exp(x).sum(1, keepdims=True), 0.0
        for path in itertools.product(range(classes), repeat=steps):
            kept = [c for k, c in enumerate(path) if c and (k == 0 or path[k - 1] != c)]
            total += np.prod(p[range(steps), path]) if kept == labels else 0
        np.testing.assert_allclose(sample(x, labels, 0)[0], -np.log(total), rtol=1e-12)


@pytest.mark.parametrize("zero, normalized", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("blank", [0, 3])
def test_torch_agrees_in_both_directions(blank, zero, normalized):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    x, labels = rng.standard_normal((12, 5, 6)), rng.integers(0, 5, (5, 6))
    labels += labels >= blank
    labels[1, 1:3] = labels[1, 0]
    inputs, targets = np.array([12, 12, 9, 3, 0]), np.array([6, 4, 0, 5, 0])
    logits = torch.from_numpy(x).requires_grad_()
    want = torch.nn.functional.ctc_loss(logits if normalized else logits.log_softmax(2), *map(torch.from_numpy, (labels, inputs, targets)),
                                        blank=blank, reduction="none", zero_infinity=zero)
    g = rng.standard_normal(5)
    (want * torch.from_numpy(g)).sum().backward()
    given = array(x, "float64"), *(array(v, "int64") for v in (labels, inputs, targets))
    how = {"blank": blank, "zero_infinity": zero, "normalized": normalized}
    for algo in ALGORITHMS:
        loss, saved = FWD(*given, **how, algo=algo)
        np.testing.assert_allclose(host(loss), want.detach().numpy(), rtol=1e-11, atol=1e-14)
        dx = host(BWD(array(g, "float64"), *given, saved, **how, algo=algo))
        grad = logits.grad.numpy().copy()
        grad[3:, 3] = 0  # PyTorch's NaN reach behind the input of a target that does not fit
        np.testing.assert_allclose(dx, grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_target_that_does_not_fit(algo):
    """Two labels alike need a blank between them: three steps."""
    x, one = array(np.zeros((2, 2, 3))), array([2, 2], "int32")
    given = x, array([[1, 1], [1, 2]], "int32"), one, array([2, 2], "int32")
    loss, saved = FWD(*given, algo=algo)
    assert host(loss)[0] == np.inf and np.isfinite(host(loss)[1])
    dx = host(BWD(array([1, 1]), *given, saved, algo=algo))
    assert np.isnan(dx[:, 0]).all() and np.isfinite(dx[:, 1]).all() and dx[:, 1].any()
    loss, saved = FWD(*given, zero_infinity=True, algo=algo)
    dx = host(BWD(array([1, 1]), *given, saved, zero_infinity=True, algo=algo))
    assert host(loss)[0] == 0 and host(loss)[1] > 0 and not dx[:, 0].any() and dx[:, 1].any()


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("index", ["int32", "int64"])
def test_labels_and_lengths_out_of_range_cost_nan_and_read_nothing(index, algo):
    """The simulator raises on a read outside the arrays."""
    far = 2 ** 31 - 1 if index == "int32" else 2 ** 40
    labels = array([[1, 4], [1, -1], [far, 2], [1, 2], [1, 2], [1, 2], [1, 2], [1, 9]], index)
    inputs, targets = array([5, 5, 5, 6, -1, 5, 5, 5], index), array([2, 2, 2, 2, 2, 3, -far, 1], index)
    x = array(np.random.default_rng(0).standard_normal((5, 8, 4)))
    loss, saved = FWD(x, labels, inputs, targets, algo=algo)
    assert (np.isnan(host(loss)) == [True] * 7 + [False]).all()
    dx = host(BWD(array(np.ones(8)), x, labels, inputs, targets, saved, algo=algo))
    assert np.isnan(dx[:, :7]).all() and np.isfinite(dx[:, 7]).all()


def test_checked_labels_and_lengths_raise_with_their_position(monkeypatch):
    from dnnkern.host import front
    monkeypatch.setattr(front, "CHECKS", frozenset({"values"}))
    x, labels, inputs, targets = np.zeros((5, 2, 4)), [[1, 2], [3, 9]], [5, 5], [2, 1]

    def call(labels=labels, inputs=inputs, targets=targets):
        return FWD(array(x), array(labels, "int64"), array(inputs, "int64"), array(targets, "int64"))
    call()
    for words, how in ((r"input_lengths\[1\] is 6; expected 0 to 5", {"inputs": [5, 6]}),
                       (r"target_lengths\[0\] is -1; expected 0 to 2", {"targets": [-1, 1]}),
                       (r"targets\[1, 1\] is 9; expected a class, 0 to 3, other than blank=0", {"targets": [2, 2]}),
                       (r"targets\[0, 1\] is 0; expected a class", {"labels": [[1, 0], [3, 9]]})):
        with pytest.raises(ValueError, match="ctc_loss_fwd: " + words):
            call(**how)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_values_that_are_not_finite(algo):
    x = np.zeros((4, 4, 3))
    x[1, 0], x[2, 1, 2], x[3, 3, 1] = -np.inf, np.nan, -np.inf
    x[:, 2, 1] = -np.inf  # the label has no probability at all
    given = array(x), array([[1]] * 4, "int64"), array([4] * 4, "int64"), array([1] * 4, "int64")
    loss, saved = FWD(*given, algo=algo)
    loss = host(loss)
    assert np.isnan(loss[:2]).all() and loss[2] == np.inf and np.isfinite(loss[3])
    dx = host(BWD(array(np.ones(4)), *given, saved, algo=algo))
    assert np.isnan(dx[:, :3]).all() and np.isfinite(dx[:, 3]).all()


def test_long_inputs_lose_little():
    """float32 beside float64, 300 steps."""
    rng = np.random.default_rng(4)
    x, labels = rng.standard_normal((300, 1, 8)).astype(np.float32), rng.integers(1, 8, 12)
    loss, _, gradient = sample(x[:, 0].astype(np.float64), labels, 0)
    given = array(x), array([labels], "int64"), array([300], "int64"), array([12], "int64")
    found, saved = FWD(*given, algo="block")
    np.testing.assert_allclose(host(found), loss, rtol=2e-6)
    np.testing.assert_allclose(host(BWD(array([1]), *given, saved, algo="block"))[:, 0], gradient, atol=5e-4)


@pytest.mark.parametrize("kind", [Forward, Backward])
def test_random_problems(kind, request):
    def problems(draw):
        st = pytest.importorskip("hypothesis").strategies
        steps, samples, classes, labels = (draw(st.integers(*r)) for r in ((1, 9), (1, 3), (2, 40), (0, 5)))
        inputs = tuple(draw(st.integers(0, steps)) for _ in range(samples))
        targets = tuple(draw(st.integers(0, labels)) for _ in range(samples))
        ranks = {"logits": 3, "dlogits": 3, "targets": 2, "saved": 3, "loss": 1, "input_lengths": 1, "target_lengths": 1}
        dtype = draw(st.sampled_from(["float64", "float32", "float16", "bfloat16"]))
        return kind("random", (steps, samples, classes), labels, dtype, inputs, targets, draw(st.sampled_from(["int32", "int64"])),
                    draw(st.integers(0, classes - 1)), True, draw(st.booleans()), draw(st.integers(1, 5)),
                    {name: contract.random_layout(draw, st, n) for name, n in ranks.items()})
    contract.random_problems(request, problems, 15)


@pytest.mark.parametrize("op", OPS)
def test_words_and_records(op):
    problem = parse_problem("12x3x7 bf16 4 --blank 2 --zero-infinity --normalized --targets int32".split(), op)
    assert (problem.steps, problem.samples, problem.classes, problem.labels, problem.states) == (12, 3, 7, 4, 9)
    assert (problem.blank, problem.zero_infinity, problem.normalized, problem.targets.dtype) == (2, True, True, "int32")
    assert FAMILY[op][2](dispatch.problem_record(problem)) == problem
    for text in ("4x4 f32 2", "4x4x4 f31 2", "4x4x4 f32", "4x4x0 f32 1", "4x4x4 f32 1 --blank 4"):
        words = text.split()
        with pytest.raises((ValueError, TypeError)):
            parse_problem(words, op)
    for text in SMALL[op]:
        assert parse_problem(text.split(), op).outputs[0].size
    shapes = pytest.importorskip(f"bench.shapes.{op}")
    for case in shapes.cases("all", ("float64", "float32")):
        assert dispatch.get_algorithm(op, case.problem).name == "block"


def test_a_block_holds_thousands_of_labels():
    for words, held in (("9x2x7 f32 500", 1), ("9x2x7 f32 511", 1), ("9x2x7 f32 512", 2), ("9x2x7 f64 512", 4), ("9x2x7 f32 4094", 8)):
        problem = parse_problem(words.split(), "ctc_loss_fwd")
        assert dispatch.get_algorithm("ctc_loss_fwd", problem, algo="block").build(problem, contract.device(), None)[1].block[0] * held \
            >= problem.states
    with pytest.raises(NotSupported, match="8191 states; a block holds 8190"):
        dispatch.get_algorithm("ctc_loss_fwd", parse_problem("9x2x7 f32 4095".split(), "ctc_loss_fwd"), algo="block")


# ---- bad input

def test_operands():
    x, labels, lengths = array(np.ones((5, 2, 4))), array(np.ones((2, 3)), "int64"), array(np.ones(2), "int64")
    one, saved = array(np.ones(2)), array(np.ones((2, 5, 8)))
    refused(TypeError, ["targets: ", "NoneType"], FWD, x, None, lengths, lengths)
    refused(TypeError, ["logits is int32"], FWD, array(np.ones((5, 2, 4)), "int32"), labels, lengths, lengths)
    refused(ValueError, ["(5, 2)", "(T, N, C)"], FWD, array(np.ones((5, 2))), labels, lengths, lengths)
    refused(ValueError, ["targets (6,)", "(N, L)"], FWD, x, array(np.ones(6), "int64"), lengths, lengths)
    refused(ValueError, ["targets has shape (3, 3)", "N=2"], FWD, x, array(np.ones((3, 3)), "int64"), lengths, lengths)
    refused(TypeError, ["input_lengths is float32", "int32 or int64"], FWD, x, labels, one, lengths)
    refused(ValueError, ["target_lengths has shape (3,)", "(2,)"], FWD, x, labels, lengths, array(np.ones(3), "int64"))
    refused(ValueError, ["no class"], FWD, array(np.ones((5, 2, 0))), labels, lengths, lengths)
    refused(ValueError, ["blank=4", "0 to 3"], FWD, x, labels, lengths, lengths, blank=4)
    refused(TypeError, ["blank=0.5"], FWD, x, labels, lengths, lengths, blank=0.5)
    refused(TypeError, ["zero_infinity=1"], FWD, x, labels, lengths, lengths, zero_infinity=1)
    refused(TypeError, ["normalized=1"], FWD, x, labels, lengths, lengths, normalized=1)
    refused(ValueError, ["saved has shape (2, 5, 8)", "(2, 5, 7)"], BWD, one, x, labels, lengths, lengths, saved, normalized=True)
    refused(ValueError, ["saved has shape (2, 5, 7)", "(2, 5, 8)"], BWD, one, x, labels, lengths, lengths, array(np.ones((2, 5, 7))))
    refused(TypeError, ["dloss is float16", "float32"], BWD, array(np.ones(2), "float16"), x, labels, lengths, lengths, saved)
    refused(ValueError, ["out has 1 arrays", "loss, saved"], FWD, x, labels, lengths, lengths, out=one)
    refused(ValueError, ["same memory as logits"], BWD, one, x, labels, lengths, lengths, saved, out=x)
    shared = labs.guarded(lay((5, 2, 4), "float32", expand=(0,))).array
    refused(ValueError, ["share one address"], BWD, one, x, labels, lengths, lengths, saved, out=shared)
    refused(NotSupported, ["algo='fast'", "naive"], FWD, x, labels, lengths, lengths, algo="fast")
