"""Matrix products: biases of batches against PyTorch, their words, corners of algorithms."""
import dataclasses
import json

import contract
import numpy as np
import pytest
from cases.matmul import Matmul
from labs import array, host

import dnnkern
from dnnkern import dispatch
from dnnkern.device import SIMULATED
from dnnkern.host.tensor import Tensor
from dnnkern.matmul._parse import FAMILY, parse_problem


@pytest.mark.parametrize("shape", [(3, 5, 1), (3, 1, 6), (1, 1, 6), (6,), (2, 1, 5, 1)])
@pytest.mark.parametrize("with_c", [False, True])
def test_torch_agrees_on_biases_of_batches(shape, with_c):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    batch = (2, 3) if len(shape) == 4 else (3,)
    a, b, bias = rng.standard_normal((*batch, 5, 4)), rng.standard_normal((4, 6)), rng.standard_normal(shape)
    c = rng.standard_normal((*batch, 5, 6)) if with_c else None
    y = dnnkern.matmul(array(a, "float64"), array(b, "float64"), bias=array(bias, "float64"), activation="gelu",
                       **({"c": array(c, "float64"), "beta": -2.0} if with_c else {}))
    z = torch.from_numpy(a) @ torch.from_numpy(b) + torch.from_numpy(bias) + (0 if c is None else -2 * torch.from_numpy(c))
    np.testing.assert_allclose(host(y), torch.nn.functional.gelu(z).numpy(), rtol=1e-11, atol=1e-12)


def test_words_of_biases():
    problem = parse_problem("4x16x24x32 bf16 --bias batch-row".split())
    assert problem.bias.shape == (4, 16, 1) and problem.has_batched_bias and "bias by batch and row" in str(problem)
    assert FAMILY["matmul"][2](dispatch.problem_record(problem)) == problem
    assert parse_problem("4x16x24x32 bf16 --bias batch-column".split()).bias.shape == (4, 1, 24)
    both = parse_problem("4x16x24x32 bf16 --bias batch-column --c".split())
    reasons = {a.name: a.supports(both) for a in dispatch.algorithms("matmul") if not a.dual or a.name == "naive"}
    assert reasons.pop("naive") is None and all("bias for each matrix" in reason for reason in reasons.values()), reasons


@pytest.mark.parametrize("name", ["split_k", "wgmma_split_k"])
def test_ranges_of_every_matrix_of_a_batch(name):
    """The partial sums of a range and of a matrix each have their place."""
    case = Matmul("ranges", 5, 8, 520, "float32" if name == "split_k" else "bfloat16", batch_a=(3,), batch_b=(3,))
    contract.check(next(a for a in dispatch.algorithms("matmul") if a.name == name), case, **contract.ONCE)


@pytest.mark.parametrize("ranges, words", [
    (2, dict(program="two-inputs")), (3, dict(out_dtype="bfloat16", program="chain")), (8, dict(c="full", beta=2.0, bias="column")),
    (70, dict(c="in place", bias="column", ta=True, program="bias-gelu")), (9, dict(n=27, c="full", bias="column", program="two-inputs")),
    (2, dict(c="full", c_dtype="float16", bias="column", bias_dtype="bfloat16", layout={"c": {"gap": 3}}))], ids=str)
def test_what_is_added_to_the_sums_of_ranges(ranges, words):
    """Each number of threads that share ranges, one turn and several; operands that come in groups of columns, and those that cannot."""
    from dnnkern.engine.split_k import RangesConfig
    from dnnkern.matmul.matmul_split_k import ALGORITHM, TILES
    words = {"n": 28, **words}
    case = Matmul(f"{ranges} {words}", 9, words.pop("n"), 32 * ranges, "float32", **words)
    contract.check(dataclasses.replace(ALGORITHM, config=RangesConfig(TILES[2], ranges)), case, **contract.ONCE)


def test_what_comes_in_groups_of_columns():
    """One access for four of them: aligned, beside each other, and none beyond a row's end."""
    from dnnkern.device.epilogue import EpilogueSpec
    from dnnkern.device.pointwise import Function
    from dnnkern.device.program import Program, Step
    from dnnkern.engine.sum_operands import loaded_ahead, make_ahead
    add = Function.of("add")
    loads = ("float32", "matrix"), ("bfloat16", "column"), ("float32", "row"), ("int8", "matrix")
    program = Program(loads, tuple(Step(add, (0 if k == 0 else 4 + k, 1 + k)) for k in range(4)))
    spec = EpilogueSpec(c="float16", bias="column", bias_dtype="float32", output="bfloat16", program=program)
    wide, short = Tensor.packed((64, 64), "float32"), Tensor.packed((64, 64), "bfloat16")
    operands = {"c": (Tensor.packed((64, 64), "float16"), (64, 1, 4096)), "bias": (wide, (0, 1)), 0: (wide, (64, 1)), 1: (short, (0, 1)),
                2: (wide, (1, 0)), 3: (Tensor.packed((64, 64), "int8"), (64, 1))}
    assert loaded_ahead(spec, operands, 64) == ("c", "bias", 0, 1) and loaded_ahead(spec, operands, 62) == ()
    assert make_ahead(spec, ("c", "bias", 0, 1))[0] == 2 + 4 + 4 + 2 and make_ahead(spec, ())[0] == 1
    for strides in ((66, 1), (64, 2), (64, 1, 2)):
        assert loaded_ahead(spec, {**operands, 0: (wide, strides)}, 64) == ("c", "bias", 1)
    assert loaded_ahead(spec, {**operands, 0: (dataclasses.replace(wide, alignment=8), (64, 1))}, 64) == ("c", "bias", 1)
    assert loaded_ahead(EpilogueSpec(c="float32", accumulator="float64", output="float64"), {"c": (wide, (64, 1))}, 64) == ()


def test_a_few_rows_of_bytes_that_are_not_packed():
    """Columns of x are gathered byte by byte; of what is past their ends nothing is read."""
    gemv = next(a for a in dispatch.algorithms("matmul") if a.name == "gemv")
    contract.check(gemv, Matmul("gathered", 3, 40, 68, "int8", ta=True, tb=True))


# ---- programs

def _program_problem(name="chain", **more):
    return Matmul("", 48, 40, 64, "bfloat16", program=name, **more).problem()


def test_the_operation_of_a_program():
    """Its operands, side outputs and numbers are those of the plain operation and the program's."""
    from dnnkern.matmul import OPERATION
    problem = _program_problem()
    fused = OPERATION.of(problem)
    assert fused.operands == (*OPERATION.operands, "x0", "x1", "x2") and fused.outputs == ("y", "y1") and fused.scalars == OPERATION.scalars
    assert OPERATION.of(problem) is fused is fused.of(problem) and OPERATION.of(_program_problem(None)) is OPERATION
    assert problem.x1 == problem.extras[1] and problem.outputs == (problem.y, problem.extras[3])
    triangle = OPERATION.of(_program_problem("triangle"))
    assert triangle.operands[-1] == "x3" and triangle.scalars == ("alpha", "beta", "x2") and triangle.outputs == ("y",)
    with pytest.raises(AttributeError, match="no attribute 'x9'"):
        problem.x9


def test_a_program_in_words_records_and_bytes():
    problem, plain = _program_problem(), _program_problem(None)
    assert str(problem) == f"{plain} + program mul+add+mul+max+add+neg"
    record = json.loads(json.dumps(dispatch.problem_record(problem)))
    assert FAMILY["matmul"][2](record) == problem
    assert problem.bytes == plain.bytes + sum(t.nbytes for t in problem.extras)
    device = contract.device()
    for algorithm in dispatch.algorithms("matmul"):
        if algorithm.refusal(problem, device) is None:
            bound = algorithm.configured(problem, device)
            assert bound.seconds(problem, device) >= bound.seconds(plain, device), bound


def test_a_program_is_one_launch_more_than_nothing():
    """No algorithm takes a launch more than without one."""
    problem, plain = _program_problem(), _program_problem(None)
    device = contract.device()
    for algorithm in dispatch.algorithms("matmul"):
        if algorithm.refusal(problem, device) is None:
            bound = algorithm.configured(plain, device)
            assert len(bound.build(problem, device, bound.config)) == len(bound.build(plain, device, bound.config)), algorithm


@pytest.mark.skipif(SIMULATED, reason="the simulator measures nothing")
@pytest.mark.parametrize("name", ["chain", "triangle"])
def test_measured_with_a_program(name):
    """What is measured has the program's operands, side outputs and numbers."""
    found = dispatch.find_algorithms("matmul", _program_problem(name), save=False)
    assert found[0].time_ms > 0


@pytest.mark.parametrize("place, tensor, error, message", [
    (0, Tensor.packed((1, 40), "float16"), TypeError, "matmul: x0 is float16; the program has float32"),
    (0, Tensor.packed((1, 39), "float32"), ValueError, r"matmul: x0 has shape \(1, 39\), which does not broadcast"),
    (0, Tensor.packed((48, 1), "float32"), ValueError, "matmul: x0 is read by column, and varies along rows"),
    (3, Tensor.packed((48, 1), "float32"), ValueError, r"matmul: y1 has shape \(48, 1\); expected the result's"),
    (3, Tensor((48, 40), (0, 1), "float32"), ValueError, "matmul: y1 has .* several elements share one address")])
def test_extras_that_do_not_fit(place, tensor, error, message):
    problem = _program_problem()
    extras = list(problem.extras)
    extras[place] = tensor
    with pytest.raises(error, match=message):
        dataclasses.replace(problem, extras=tuple(extras))


@pytest.mark.parametrize("change, error, message", [
    ({"extras": ()}, ValueError, "matmul: 0 extras; the program has 4 operands"),
    ({"program": None}, ValueError, "matmul: 4 extras without a program"),
    ({"program": "relu"}, TypeError, "matmul: program: got str; expected a Program")])
def test_programs_that_do_not_fit(change, error, message):
    with pytest.raises(error, match=message):
        dataclasses.replace(_program_problem(), **change)


@pytest.mark.parametrize("words, chosen", [
    ("1x4096x4096 bf16 nt", "gemv"), ("4x4096x4096 bf16 nt", "mma"), ("8x4096x4096 bf16 nt", "mma"), ("8x14336x4096 bf16 nt", "mma"),
    ("1537x769x3001 f32", "split_k_packed"), ("4095x4095x4095 f32", "blocked[128x256x8 t16x8 s4]"),
    ("1000x1000x1000 f16", "wgmma[128x128 cluster 2]"), ("8192x8192x8192 e4m3 nt", "wgmma[128x192]"),
    ("8192x4096x1024 bf16 nt --bias --activation gelu_tanh", "wgmma[128x192 ping-pong]"),
    ("8192x4096x1024 bf16 nt --bias --c", "wgmma[128x256 cluster 2]"),
    ("4096x4096x4096 bf16 nt --bias --activation relu", "wgmma[128x256]")])
def test_what_was_measured_as_the_best_is_chosen(words, chosen):
    """On an H200, by the estimates alone."""
    from dnnkern.host.device import _SIMULATOR
    problem = parse_problem(words.split())
    able = [a for a in dispatch.algorithms("matmul") if a.refusal(problem, _SIMULATOR) is None]
    best = min((v for a in able for v in a.variants(problem, _SIMULATOR)), key=lambda v: v.seconds(problem, _SIMULATOR))
    assert chosen in (best.name, f"{best.name}[{best.config_text}]")
