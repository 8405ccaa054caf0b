"""Pointwise programs beside the contract: what is refused, records, numbers of a call, programs drawn at random."""
import dataclasses
import json

import contract
import numpy as np
import pytest
from cases.fused_pointwise import CASES, Fused
from labs import array, host

import dnnkern
from dnnkern import dispatch
from dnnkern.algorithm import problem_record
from dnnkern.device.pointwise import Function
from dnnkern.device.program import Program, Step
from dnnkern.fused import FusedProblem
from dnnkern.fused._parse import FAMILY, parse_problem
from dnnkern.host.tensor import Tensor

ADD, MUL, RELU = map(Function.of, ("add", "mul", "relu"))


def program(loads=(("float32", "matrix"),) * 2, steps=(Step(ADD, (0, 1)),), stores=((2, "float32", "matrix"),), **more):
    return Program(loads, steps, stores, accumulators=0, **more)


def packed(*shape, dtype="float32"):
    return Tensor.packed(shape, dtype)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_records(case):
    problem = case.problem()
    record = json.loads(json.dumps(problem_record(problem)))
    assert FAMILY["fused_pointwise"][2](record) == problem


@pytest.mark.parametrize("changes, error, words", [
    ({"program": Program((("float32", "matrix"),) * 2, (Step(ADD, (1, 2)),), ((3, "float32", "matrix"),))}, ValueError,
     "1 accumulators"),
    ({"program": program((("float32", "matrix"), ("float32", "row")))}, ValueError, "a load by .row."),
    ({"inputs": (packed(4, 6),)}, ValueError, "1 inputs for a program with 2 loads by 'matrix'"),
    ({"outputs": (packed(4, 6), packed(4, 6))}, ValueError, "2 outputs for a program with 1 stores"),
    ({"axes": (0,)}, ValueError, "1 axes for a program with 0 loads by 'index'"),
    ({"inputs": (packed(4, 6), packed(5))}, ValueError, r"x1 has shape \(5,\), which does not broadcast to \(4, 6\)"),
    ({"inputs": (packed(4, 6), packed(6, dtype="float16"))}, TypeError, "x1 is float16, the program has float32 there"),
    ({"outputs": (Tensor((4, 6), (0, 1), "float32"),)}, ValueError, "y0 has shape .* several elements share one address"),
    ({"in_place": ("y0",)}, ValueError, "in_place="),
    ({"outputs": (packed(*(1,) * 9),), "inputs": (packed(1), packed(1))}, ValueError, "expected 8 dimensions at most"),
    ({"program": program(steps=(), stores=()), "outputs": ()}, ValueError, "stores nothing"),
])
def test_what_is_no_problem(changes, error, words):
    valid = {"program": program(), "inputs": (packed(4, 6), packed(6)), "outputs": (packed(4, 6),)}
    assert FusedProblem(**valid)
    with pytest.raises(error, match=f"fused_pointwise: .*{words}"):
        FusedProblem(**{**valid, **changes})


def test_seventeen_arrays():
    many = Program((("float32", "matrix"),) * 16, (Step(ADD, (0, 15)),), ((16, "float32", "matrix"),), accumulators=0)
    with pytest.raises(ValueError, match="16 inputs and 1 outputs; expected at most 16 arrays"):
        FusedProblem(many, (packed(3),) * 16, (packed(3),))


@pytest.mark.parametrize("arguments, keywords, error, words", [
    (("relu", [np.zeros(3, np.float32)]), {}, TypeError, "program is 'relu'; expected a dnnkern.device.program.Program"),
    ((program(), np.zeros(3, np.float32)), {}, TypeError, "inputs is .* expected a list of arrays"),
    ((program(), []), {}, ValueError, "inputs is empty"),
    ((program(), [np.zeros(3, np.float32)]), {}, ValueError, "1 inputs for a program with 2"),
    ((program(), [np.zeros(3, np.float32)] * 2), {"numbers": [1]}, ValueError, "1 numbers for a program with 0 loads by 'value'"),
    ((program(), [np.zeros(3, np.float32), None]), {}, TypeError, r"inputs\[1\]"),
    ((program((("float32", "matrix"), ("int32", "index"))), [np.zeros(3, np.float32)]), {"axes": 1}, ValueError, r"axes=\(1,\)"),
])
def test_calls_that_are_refused(arguments, keywords, error, words, simulated):
    with pytest.raises(error, match=f"fused_pointwise: .*{words}"):
        dnnkern.fused_pointwise(*arguments, **keywords)


def test_numbers_change_without_another_plan():
    scaled = Program((("float32", "matrix"), ("float32", "value")), (Step(MUL, (0, 1)),), ((2, "float32", "matrix"),), accumulators=0)
    x = np.arange(33, dtype=np.float32)
    with dispatch.watch() as problems:
        for factor in (2, -0.5, 3.25):
            np.testing.assert_array_equal(host(dnnkern.fused_pointwise(scaled, [array(x)], numbers=[factor])), x * np.float32(factor))
    assert len(problems) <= 1


def test_both_halves_of_a_rotation_in_place():
    """y0 is x0's memory, which y1 is made of too: right where a thread reads all of an element before it writes."""
    cos, sin = (np.random.default_rng(k).standard_normal((5, 24)).astype(np.float32) for k in (1, 2))
    a, b = np.random.default_rng(3).standard_normal((2, 5, 24)).astype(np.float32)
    neg = Function.of("sub")
    turn = Program((("float32", "matrix"),) * 4, (Step(MUL, (0, 2)), Step(MUL, (1, 3)), Step(neg, (4, 5)), Step(MUL, (1, 2)),
                                                  Step(MUL, (0, 3)), Step(ADD, (7, 8))),
                   ((6, "float32", "matrix"), (9, "float32", "matrix")), accumulators=0)
    for algorithm in dispatch.algorithms("fused_pointwise"):
        x, y = array(a), array(b)
        dnnkern.fused_pointwise(turn, [x, y, array(cos), array(sin)], out=(x, y), algo=algorithm.name)
        np.testing.assert_allclose(host(x), a * cos - b * sin, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(host(y), b * cos + a * sin, rtol=1e-5, atol=1e-6)


def test_an_output_of_another_input_is_refused(simulated):
    x = np.zeros(64, np.float32)
    with pytest.raises(ValueError, match="overlaps"):
        dnnkern.fused_pointwise(program(), [x[:32], x[32:]], out=x[16:48])


def test_words():
    problem = parse_problem("6x8 bf16 mul@8 add@0.5 gelu --keep".split(), "fused_pointwise")
    assert [t.shape for t in problem.inputs] == [(6, 8), (8,)] and len(problem.outputs) == 2
    assert problem.program.loads == (("bfloat16", "matrix"), ("bfloat16", "matrix"), ("bfloat16", 0.5))
    for words, said in (("6x8 bf16 add", "expected a function of the chain"), ("6x8 bf16 relu@8", "relu of 1 values"),
                        ("6x8 bf16 nothing", "nothing"), ("6x8 bf16", "steps")):
        with pytest.raises(ValueError, match=said):
            parse_problem(words.split(), "fused_pointwise")


def test_rows_take_what_lies_in_rows():
    rows = next(a for a in dispatch.algorithms("fused_pointwise") if a.name == "rows")
    strided = dataclasses.replace(parse_problem("6x8 f32 add@6x8".split(), "fused_pointwise"),
                                  inputs=(Tensor((6, 8), (1, 6), "float32"), packed(6, 8)))
    assert "x0 has the stride 6" in rows.supports(strided)
    run = parse_problem("4096 f32 add@4096 relu".split(), "fused_pointwise")
    assert {c.lanes for c in rows.configs(run, contract.device())} == {1, 2, 4}
    assert {c.lanes for c in rows.configs(parse_problem("4095 f32 relu".split(), "fused_pointwise"), contract.device())} == {1}


MODES = {"add": 2, "mul": 2, "sub": 2, "max": 2, "relu": 1, "sigmoid": 1, "abs": 1, "tanh": 1, "neg": 1, "cmp_gt": 2, "binary_select": 3}


def test_random_programs(request):
    def case(draw):
        st = pytest.importorskip("hypothesis").strategies
        shape = tuple(draw(st.lists(st.integers(1, 9), min_size=0, max_size=3)))
        shape += (draw(st.sampled_from([1, 3, 8, 20, 33])),) * draw(st.booleans())
        dtypes = st.sampled_from(["float32", "bfloat16", "float16", "int32"])

        def operand():
            return tuple(n if draw(st.booleans()) else 1 for n in shape)[draw(st.integers(0, len(shape))):]
        given = [(draw(dtypes), operand() if k else shape) for k in range(draw(st.integers(1, 4)))]
        given += [("float32", draw(st.sampled_from([0.5, -2.0, "value"])))] * draw(st.booleans())
        axes = (draw(st.integers(0, len(shape) - 1)),) if shape and draw(st.booleans()) else ()
        given += [("int32", "index")] * len(axes)
        moves = []
        for k in range(draw(st.integers(1, 8))):
            mode = draw(st.sampled_from(sorted(MODES)))
            inputs = tuple(draw(st.integers(0, len(given) + k - 1)) for _ in range(MODES[mode]))
            moves.append((mode, inputs, draw(st.sampled_from([None, None, None, "bfloat16", "float16"]))))
        last = len(given) + len(moves) - 1
        results = tuple((v, draw(st.sampled_from(["float32", "bfloat16", "float64"])))
                        for v in {last, draw(st.integers(0, last))})
        layout = {name: contract.random_layout(draw, st, len(place.shape)) for name, place in
                  Fused("", shape, tuple(given), (), results).inputs().items()}
        layout |= {f"y{k}": contract.random_layout(draw, st, len(shape)) for k in range(len(results))}
        return Fused(f"random-{draw(st.integers(0, 99))}", shape, tuple(given), tuple(moves), results, layout=layout, axes=axes)
    contract.random_problems(request, case, 12)
