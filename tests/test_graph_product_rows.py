"""A product, and softmax or a norm of the rows of its result, as one kernel while a row fits a tile."""
from dataclasses import replace

import numpy as np
import pytest
from graph_patterns import Both
from graphs import T, apart
from test_graph_rows import one, reduce, softmax_of, two

from dnnkern import dispatch
from dnnkern.device.pointwise import Function
from dnnkern.device.program import Program, Step
from dnnkern.device.program_reduction import Reduction
from dnnkern.graph import _engines
from dnnkern.graph._partition import cuts
from dnnkern.host.tensor import Tensor
from dnnkern.matmul import MatmulProblem, matmul_wgmma


def product(b, m, n, k, batch=1, transposed=True):
    """A product of order 1; the right operand has k fastest where it is `transposed`."""
    order = (lambda w: np.ascontiguousarray(w.swapaxes(1, 2)).swapaxes(1, 2)) if transposed else np.asarray
    return b.node("matmul", np.matmul, b.input((batch, m, k)), b.input((batch, k, n), order=order))


def softmax(b):
    """Attention-like scores: a scale by value, a mask that is added."""
    m, n = 33, 72
    scores = two(b, "mul", product(b, m, n, 24, batch=2), b.number(0.5, 3))
    b.output(softmax_of(b, two(b, "add", scores, b.input((1, m, n)))))


def softmax_with_its_statistics(b):
    """A router: the probabilities, the largest logit, and the logarithm of the sum."""
    logits = product(b, 37, 40, 19, transposed=False)
    top = reduce(b, "MAX", logits)
    e = one(b, "exp", two(b, "sub", logits, top))
    total = reduce(b, "ADD", e)
    b.output(two(b, "div", e, total))
    b.output(b.node("log", np.log, total), top, dtype=T.FLOAT)


def layer_norm(b, m=35, n=129, k=17):
    """A bias and a residual in front; the sum, the mean and the reciprocal deviation are stored."""
    x = b.rounded(two(b, "add", two(b, "add", product(b, m, n, k, transposed=False), b.input((1, 1, n))), b.input((1, m, n))))
    mean = reduce(b, "AVG", x)
    d = two(b, "sub", x, mean)
    rstd = one(b, "rsqrt", two(b, "add", reduce(b, "AVG", two(b, "mul", d, d)), b.number(1e-3, 3)))
    y = two(b, "add", two(b, "mul", two(b, "mul", d, rstd), b.input((1, 1, n), T.FLOAT)), b.input((1, 1, n), T.FLOAT))
    b.output(x, y)
    b.output(mean, rstd, dtype=T.FLOAT)


def rms_norm(b, m=70, n=64, k=40):
    """Of what is rounded first."""
    x = b.rounded(product(b, m, n, k))
    rstd = one(b, "rsqrt", two(b, "add", reduce(b, "AVG", two(b, "mul", x, x)), b.number(1e-3, 3)))
    b.output(two(b, "mul", two(b, "mul", x, rstd), b.input((1, 1, n), T.FLOAT)))


def scaled_by_the_largest(b):
    """A row of amax, and what is divided by it, gated by a number of each row."""
    x = b.relu(product(b, 40, 48, 16))
    amax = two(b, "max", reduce(b, "AMAX", x), b.number(1e-3, 3))
    b.output(two(b, "mul", two(b, "div", x, amax), b.input((1, 40, 1))))
    b.output(amax, dtype=T.FLOAT)


PATTERNS = softmax, softmax_with_its_statistics, layer_norm, rms_norm, scaled_by_the_largest


@pytest.mark.parametrize("together", [True, False], ids=["together", "apart"])
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda f: f.__name__)
def test_values(pattern, together, monkeypatch):
    b = Both()
    pattern(b)
    b.graph.validate()
    found = cuts(b.graph.spec)
    assert len(found[0]) == 1 and len(found[1]) == 2
    monkeypatch.setattr(_engines, "cuts", lambda spec: found[:1] if together else found[1:])
    b.check(["matmul"] if together else None)


def test_what_moves():
    """The product is in no memory, and no row is read twice."""
    b = Both()
    rms_norm(b)
    b.check(["matmul"], launches=1)
    report = b.graph.explain()
    (part,) = report.parts
    m, n, k = 70, 64, 40
    assert part.bytes == 2 * (m * k + k * n + m * n) + 4 * n and report.workspace == 0 and not report.apart
    assert "avg" in part.problem and len(part.nodes) == 7


# ---- what is not one kernel

def over_rows(b):
    x = product(b, 16, 24, 8)
    b.output(two(b, "sub", x, reduce(b, "MAX", x, 1)))


def over_everything(b):
    x = product(b, 16, 24, 8)
    b.output(two(b, "sub", x, reduce(b, "MAX", x, 1, 2)))


def columns_and_rows(b):
    x = product(b, 16, 24, 8)
    b.output(reduce(b, "ADD", x, 1), dtype=T.FLOAT)
    b.output(two(b, "sub", x, reduce(b, "MAX", x)))


def in_front(b):
    """Of dims that the product has, too."""
    x = b.relu(b.input((1, 16, 16)))
    x = b.rounded(two(b, "sub", x, reduce(b, "MAX", x)))
    b.output(b.relu(b.node("matmul", np.matmul, x, b.input((1, 16, 16)))))


@pytest.mark.parametrize("make, parts, words", [
    (over_rows, 2, "there when the kernel has ended"),
    (over_everything, 2, "there when the kernel has ended"),
    (columns_and_rows, 2, "of columns that others"),
    (in_front, 2, "of no rows that are reduced")], ids=lambda v: getattr(v, "__name__", None))
def test_what_stays_apart(make, parts, words):
    found, reasons = apart(Both(), make)
    assert found == parts and any(words in reason for reason in reasons), (found, reasons)
    b = Both()
    make(b)
    b.check()


def test_a_row_that_no_tile_has_is_cut():
    """More columns than a tile's: the product, and the rows."""
    b = Both()
    rms_norm(b, 24, 300, 8)
    b.check(["matmul", "fused_reduction"])


# ---- the program

SUB = Function.of("sub")


def problem(program, *extras, m=70, n=72, k=24):
    return MatmulProblem(Tensor.packed((m, k), "bfloat16"), Tensor((k, n), (1, k), "bfloat16"), Tensor.packed((m, n), "float32"),
                         program=program, extras=extras)


def test_bad_programs():
    steps = Reduction("max", 0), Step(SUB, (0, 1))
    with pytest.raises(ValueError, match=r"a reduction by 'median'; expected one of"):
        Reduction("median", 0)
    with pytest.raises(ValueError, match=r"a store by 'row'; expected 'matrix' or 'bits', or 'row' after a Reduction"):
        Program((), (Step(SUB, (0, 0)),), ((0, "float32", "row"),))
    with pytest.raises(ValueError, match=r"beside 2 accumulators, 0 reductions; expected 1, 0"):
        Program((), steps, accumulators=2)
    with pytest.raises(ValueError, match=r"beside 1 accumulators, 1 reductions"):
        Program((), steps, reductions=((0, "max", "columns", "float32"),))
    with pytest.raises(ValueError, match=r"reduces rows, which a transposed result does not have"):
        Program((), steps).transposed()
    with pytest.raises(ValueError, match=r"y1 has shape \(70, 72\); expected one element of each row, \(70, 1\)"):
        problem(Program((), steps, ((1, "float32", "row"),)), Tensor.packed((70, 72), "float32"))
    with pytest.raises(ValueError, match=r"program max\+sub reduces rows of a result of shape \(70,\); expected none but of"):
        MatmulProblem(Tensor.packed((70, 24), "bfloat16"), Tensor.packed((24,), "bfloat16"), Tensor.packed((70,), "float32"),
                      program=Program((), steps))


def test_records():
    """Programs as plain data, and back."""
    program = Program((("bfloat16", "column"),), (Reduction("avg", 0, "bfloat16"), Step(SUB, (0, 2))), ((2, "float32", "row"),))
    assert Program.of_record(program.record()) == program


def test_what_takes_it():
    """Algorithms that have whole rows in a tile, of the accumulators' type; none of them without saying so."""
    rows = problem(Program((), (Reduction("max", 0), Step(SUB, (0, 1)))))
    reasons = {a.name: a.reason(rows) for a in dispatch.algorithms("matmul")}
    able = {name for name, reason in reasons.items() if reason is None}
    assert able == {"naive", "wgmma"}
    assert all("reduces no rows" in reason or "runs no program" in reason for name, reason in reasons.items() if name not in able), reasons
    wgmma = dispatch.named("matmul", "wgmma")
    assert "rows of 264 columns that a program reduces" in wgmma.reason(problem(rows.program, n=264))
    of_8_bits = replace(rows, a=Tensor.packed((70, 64), "float8_e4m3fn"), b=Tensor((64, 200), (1, 64), "float8_e4m3fn"),
                        y=Tensor.packed((70, 200), "float32"))
    assert "no tile has the registers" in wgmma.reason(of_8_bits)
    wide = Program((), (Reduction("max", 0, None, "float64"), Step(SUB, (0, 1))))
    assert "expected the accumulators' type" in wgmma.reason(problem(wide))


def test_columns_past_the_last_are_no_part_of_a_row(monkeypatch):
    """A kernel that reduces them too is caught."""
    import contract
    from cases._matmul_rows import rows
    case = next(c for c in rows() if c.id.startswith("rows-plain-softmax-nt"))
    plain = matmul_wgmma.Specialisation
    monkeypatch.setattr(matmul_wgmma, "Specialisation", lambda *fields: plain(*fields[:-1], False))
    with pytest.raises(AssertionError, match=r"y"):
        contract.check(dispatch.named("matmul", "wgmma"), case, only="float")
