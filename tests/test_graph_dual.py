"""Two products of one left operand and a program of both, SwiGLU's say, as one kernel."""
from dataclasses import replace

import numpy as np
import pytest
from graph_patterns import Both
from graphs import T, apart, array_of, execute

import dnnkern.graph as cudnn
from dnnkern.device.pointwise import Function
from dnnkern.device.program import Program, Step
from dnnkern.graph import _engines
from dnnkern.graph._partition import cuts
from dnnkern.host.tensor import Tensor
from dnnkern.matmul import MatmulProblem

SHAPE = 2, 33, 40, 24  # batch, rows, k, columns


def products(b, transposed=False, shape=SHAPE):
    """(gate, value) of a `Both`."""
    batch, m, k, n = shape
    x = b.input((batch, m, k))
    order = (lambda w: np.ascontiguousarray(w.swapaxes(1, 2)).swapaxes(1, 2)) if transposed else np.asarray
    return [b.node("matmul", np.matmul, x, b.input((batch, k, n), order=order, low=-0.3, high=0.3)) for _ in range(2)]


def swiglu(b):
    gate, value = products(b, transposed=True)
    b.output(b.binary("mul", b.swish(gate), value))


def geglu_with_biases(b):
    gate, value = (b.binary("bias", p, b.input((1, 1, SHAPE[-1]))) for p in products(b))
    gelu = b.node("gelu_approx_tanh", lambda v: v / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (v + 0.044715 * v ** 3))), gate)
    b.output(b.binary("mul", gelu, value))


def reglu_with_both_stored(b):
    """What a backward pass reads is stored: rounded, and the gate is of what is stored."""
    gate, value = (b.rounded(p) for p in products(b))
    b.output(gate, value, b.binary("mul", b.relu(gate), value))


def value_first(b):
    """Which product is the graph's first does not matter; a residual behind, and a number."""
    value, gate = products(b)
    y = b.binary("mul", b.binary("mul", value, b.swish(gate)), b.number(0.5, 3))
    b.output(b.binary("add", y, b.input((SHAPE[0], SHAPE[1], SHAPE[3]))))


def halves_of_one_weight(b):
    """Views of one tensor, which cost nothing."""
    batch, m, k, n = SHAPE
    x, w = b.input((batch, m, k)), b.input((1, k, 2 * n), low=-0.3, high=0.3)
    gate, value = (b.node("matmul", np.matmul, x, b.node("slice", lambda v, s=s: v[:, :, s], w, [slice(0, 1), slice(0, k), s]))
                   for s in (slice(0, n), slice(n, 2 * n)))
    b.output(b.binary("mul", b.swish(gate), value))


def halves_of_one_product(b):
    """The product of both weights as one tensor, its columns sliced."""
    batch, m, k, n = SHAPE
    both = b.node("matmul", np.matmul, b.input((batch, m, k)), b.input((1, k, 2 * n), low=-0.3, high=0.3))
    gate, value = (b.node("slice", lambda v, s=s: v[:, :, s], both, [slice(0, batch), slice(0, m), s])
                   for s in (slice(0, n), slice(n, 2 * n)))
    b.output(b.binary("mul", b.swish(gate), value))
    return both


def halves_of_a_stored_product(b):
    """The same, and the pre-activations are a result: each half goes to its columns."""
    both = b.rounded(halves_of_one_product(b))
    b.output(both)


PATTERNS = (swiglu, geglu_with_biases, reglu_with_both_stored, value_first, halves_of_one_weight, halves_of_one_product,
            halves_of_a_stored_product)


@pytest.mark.parametrize("together", [True, False], ids=["together", "apart"])
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda f: f.__name__)
def test_values(pattern, together, monkeypatch):
    b = Both()
    pattern(b)
    b.graph.validate()
    found = cuts(b.graph.spec)
    assert len(found[0]) == 1 and len(found[1]) == 2
    monkeypatch.setattr(_engines, "cuts", lambda spec: found[:1] if together else found[1:])
    b.check(["matmul"] if together else None, launches=1 if together else 2)


def test_what_moves():
    """Neither product is written, or the left operand read twice: what `explain` has says so."""
    b = Both()
    swiglu(b)
    b.graph.build()
    report, (batch, m, k, n) = b.graph.explain(), SHAPE
    (part,) = report.parts
    assert part.bytes == 2 * batch * (m * k + 2 * k * n + m * n) and report.workspace == 0 and not report.apart
    assert len(part.nodes) == 4 and "dual" in part.problem


def test_a_gate_is_rounded_where_its_type_says_so():
    """A virtual tensor of half precision rounds, one of FLOAT does not: what is left of it then is not zero."""
    results = []
    for kind in (T.HALF, T.FLOAT):
        b = Both()
        gate, value = products(b)
        rest = b.graph.sub(gate.set_data_type(kind), b.graph.identity(gate).set_data_type(T.HALF))
        y = b.graph.mul(rest, value).set_output(True).set_data_type(T.FLOAT)
        b.graph.build([cudnn.heur_mode.A])
        assert len(b.graph.explain().parts) == 1
        results.append(array_of(y))
        execute(b.graph, {**b.pack, y: results[-1]})
    assert not results[0].any() and results[1].any()


# ---- what is not one kernel

def different_left_operands(b):
    x, y, w, v = (b.input((1, 8, 8)) for _ in range(4))
    b.output(b.binary("mul", b.node("matmul", np.matmul, x, w), b.node("matmul", np.matmul, y, v)))


def different_right_operands(b):
    x, w, v = b.input((2, 8, 8)), b.input((2, 8, 8)), b.input((1, 8, 8))
    b.output(b.binary("mul", b.node("matmul", np.matmul, x, w), b.node("matmul", np.matmul, x, v)))


def three_products(b):
    x, *ws = (b.input((1, 8, 8)) for _ in range(4))
    p, q, r = (b.node("matmul", np.matmul, x, w) for w in ws)
    b.output(b.binary("mul", b.binary("mul", p, q), r))


def one_after_the_other(b):
    x, w = b.input((1, 8, 8)), b.input((1, 8, 8))
    p = b.rounded(b.node("matmul", np.matmul, x, w))
    b.output(b.binary("mul", p, b.node("matmul", np.matmul, x, p)))


def a_reduction_behind(b):
    y = b.binary("mul", *products(b))
    total = b.node("reduction", lambda v: v.sum((1, 2), keepdims=True), y, cudnn.reduction_mode.ADD)
    b.output(y, total.set_dim([SHAPE[0], 1, 1]).set_stride([1, 1, 1]))


def a_made_operand(b):
    x, w, v = (b.input((1, 8, 8)) for _ in range(3))
    x = b.rounded(b.relu(x))
    b.output(b.binary("mul", b.node("matmul", np.matmul, x, w), b.node("matmul", np.matmul, x, v)))


NO_MORE = "a kernel of two products makes no operands and reduces nothing"


@pytest.mark.parametrize("make, parts, reason", [
    (different_left_operands, 2, "two products with different A"),
    (different_right_operands, 2, "two products whose B are no arrays of the same dims and type"),
    (three_products, 2, "a kernel has one product, or two of one left operand"),
    (one_after_the_other, 2, NO_MORE), (a_reduction_behind, 2, NO_MORE),
    (a_made_operand, 2, "what a product makes of its operands is not stored")], ids=lambda v: getattr(v, "__name__", None))
def test_what_stays_apart(make, parts, reason):
    count, reasons = apart(Both(), make)
    assert count == parts and reason in reasons, reasons
    b = Both()
    make(b)
    b.check()


# ---- bad problems

MUL = Program((), (Step(Function.of("mul"), (0, 1)),), accumulators=2)


def problem(**more):
    a, b = Tensor.packed((8, 16), "bfloat16"), Tensor.packed((16, 8), "bfloat16")
    return MatmulProblem(a, b, Tensor.packed((8, 8), "bfloat16"), **{"b_dual": b, "program": MUL, **more})


@pytest.mark.parametrize("more, kind, message", [
    ({"b_dual": Tensor.packed((16, 9), "bfloat16")}, ValueError, r"matmul: b_dual has shape \(16, 9\); expected b's, \(16, 8\)"),
    ({"b_dual": Tensor.packed((16, 8), "float16")}, ValueError, "matmul: b_dual has dtype float16; expected b's, bfloat16"),
    ({"bias": Tensor.packed((8,), "bfloat16"), "scaled": True}, ValueError, "matmul: bias, alpha beside b_dual; expected a program"),
    ({"program": None}, ValueError, "matmul: b_dual without a program"),
    ({"program": Program((), (Step(Function.of("relu"), (0,)),))}, ValueError, "matmul: a program of 1 accumulators; expected 2"),
    ({"b_dual": None}, ValueError, "matmul: a program of 2 accumulators; expected 1"),
    ({"program": replace(MUL, reductions=((2, "add", "all", "float32"),)), "extras": [Tensor.packed((1, 1), "float32")]}, ValueError,
     "matmul: reductions beside b_dual")])
def test_bad_problems(more, kind, message):
    with pytest.raises(kind, match=message):
        problem(**more)


def test_a_problem_is_plain_data():
    import json

    from dnnkern.dispatch import problem_record
    from dnnkern.matmul._parse import FAMILY
    assert FAMILY["matmul"][2](json.loads(json.dumps(problem_record(problem())))) == problem()
    assert str(problem()) == "matmul 8x8x16 bfloat16 nn + dual, program mul" and problem().flops == 4 * 8 * 8 * 16
