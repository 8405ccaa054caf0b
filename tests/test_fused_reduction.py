"""Programs with reductions beside the contract: what is refused, records, stages, numbers of a call, words."""
import dataclasses
import json

import contract
import numpy as np
import pytest
from cases.fused_reduction import CASES
from labs import array, host

import dnnkern
from dnnkern import dispatch
from dnnkern.algorithm import problem_record
from dnnkern.device.pointwise import Function
from dnnkern.device.program import Program, Step
from dnnkern.fused import FusedReductionProblem, Reduction, StagedProgram
from dnnkern.fused._parse import FAMILY, SMALL, parse_problem
from dnnkern.host.tensor import Tensor

SUB, MUL, DIV, EXP, RSQRT = map(Function.of, ("sub", "mul", "div", "exp", "rsqrt"))


def program(loads=(("float32", "matrix"),), steps=(Reduction("add", 0), Step(SUB, (0, 1))), stores=((2, "float32", "matrix"),)):
    return StagedProgram(loads, steps, stores)


def packed(*shape, dtype="float32"):
    return Tensor.packed(shape, dtype)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_records(case):
    problem = case.problem()
    record = json.loads(json.dumps(problem_record(problem)))
    assert FAMILY["fused_reduction"][2](record) == problem


def test_what_is_no_record():
    for op in FAMILY:
        with pytest.raises(ValueError, match="not a record"):
            FAMILY[op][2]({"program": 1})


@pytest.mark.parametrize("make, error, words", [
    (lambda: Reduction("most", 0), ValueError, "a reduction by 'most'; expected one of add, mul"),
    (lambda: Reduction("add", 0, compute="int32"), TypeError, "a reduction in int32"),
    (lambda: program(loads=(("float32", "column"),)), ValueError, "a load by 'column'"),
    (lambda: program(steps=(Reduction("add", 1),)), ValueError, "takes value 1; expected 0 to 0"),
    (lambda: program(steps=(Step(EXP, (0,)), Step(EXP, (1,)))), ValueError, "no reduction"),
    (lambda: program(stores=()), ValueError, "stores nothing"),
    (lambda: program(stores=((2, "float32", "row"),)), ValueError, "value 2, stored by 'row', is one of each element"),
    (lambda: program(steps=(Reduction("add", 0), Reduction("max", 0, compute="float64"))), TypeError, "in float32 and in float64"),
])
def test_what_is_no_program(make, error, words):
    with pytest.raises(error, match=f"program.*{words}"):
        make()


@pytest.mark.parametrize("changes, error, words", [
    ({"program": Program(accumulators=1)}, TypeError, "program: got Program; expected a StagedProgram"),
    ({"inputs": ()}, ValueError, "0 inputs for a program with 1 loads"),
    ({"outputs": (packed(4, 6),) * 2}, ValueError, "2 outputs for a program with 1 stores"),
    ({"index_axes": (0,)}, ValueError, "1 index_axes for a program with 0 loads by 'index'"),
    ({"axes": (2,)}, ValueError, r"axes=\(2,\) of elements of shape \(4, 6\)"),
    ({"axes": (1, 0)}, ValueError, "ascending"), ({"axes": ()}, ValueError, r"axes=\(\)"),
    ({"inputs": (packed(5, 6),)}, ValueError, r"x0 has shape \(5, 6\), which does not broadcast to \(4, 6\)"),
    ({"inputs": (packed(4, 6, dtype="float16"),)}, TypeError, "x0 is float16, the program has float32 there"),
    ({"outputs": (packed(4, 1),)}, ValueError, r"y0 has shape \(4, 1\); expected \(4, 6\)"),
    ({"outputs": (Tensor((4, 6), (0, 1), "float32"),)}, ValueError, "y0 has shape .* several elements share one address"),
    ({"program": program((("float32", "row"),), (Reduction("add", 0),), ((1, "float32", "row"),))}, ValueError, "no load by 'matrix'"),
])
def test_what_is_no_problem(changes, error, words):
    valid = {"program": program(), "inputs": (packed(4, 6),), "outputs": (packed(4, 6),), "shape": (4, 6), "axes": (1,)}
    assert FusedReductionProblem(**valid)
    with pytest.raises(error, match=f"fused_reduction: .*{words}"):
        FusedReductionProblem(**{**valid, **changes})


@pytest.mark.parametrize("arguments, keywords, error, words", [
    (("relu", [np.zeros((2, 3), np.float32)]), {}, TypeError, "program is 'relu'; expected a dnnkern.fused.StagedProgram"),
    ((program(), np.zeros((2, 3), np.float32)), {}, TypeError, "inputs is .* expected a list of arrays"),
    ((program(), []), {}, ValueError, "inputs is empty"),
    ((program(), [None]), {}, TypeError, r"inputs\[0\]"),
    ((program(), [np.zeros((2, 3), np.float32)]), {"numbers": [1]}, ValueError, "1 numbers for a program with 0 loads by 'value'"),
    ((program(), [np.zeros((2, 3), np.float32)]), {"axes": 2}, ValueError, "axes=2"),
    ((program(), [np.zeros((2, 3), np.float32)]), {"axes": (1, -1)}, ValueError, "name a dimension twice"),
    ((program(), [np.zeros((2, 3), np.float32)]), {"out": np.zeros((2, 1), np.float32)}, ValueError, "out has shape"),
])
def test_calls_that_are_refused(arguments, keywords, error, words, simulated):
    with pytest.raises(error, match=f"fused_reduction: .*{words}"):
        dnnkern.fused_reduction(*arguments, **{"axes": 1, **keywords})


def test_an_output_of_an_input_is_refused(simulated):
    x = np.zeros((4, 8), np.float32)
    with pytest.raises(ValueError, match=r"out is the same memory as inputs\[0\]"):
        dnnkern.fused_reduction(program(), [x], axes=1, out=x)


def test_stages():
    """Of softmax two levels; the division of elements by the sum is one of the row, and a product of elements."""
    softmax = program(steps=(Reduction("max", 0), Step(SUB, (0, 1)), Step(EXP, (2,)), Reduction("add", 3), Step(DIV, (3, 4))),
                      stores=((5, "float32", "matrix"), (4, "float32", "row")))
    found = softmax.stages
    assert [stage.modes for stage in found.levels] == [("max",), ("add",)] and found.start is None
    assert [str(stage.element) for stage in found.levels] == ["copy", "sub+exp"]
    assert [str(stage.row) for stage in found.levels] == ["copy", "reciprocal"] and str(found.final) == "sub+exp+mul"
    assert [kind for _, kind, _ in found.stores] == ["float32"]


def test_numbers_change_without_another_plan():
    scaled = program((("float32", "matrix"), ("float32", "value")), (Reduction("max", 0), Step(MUL, (2, 1)), Step(SUB, (0, 3))),
                     ((4, "float32", "matrix"),))
    x = np.arange(66, dtype=np.float32).reshape(2, 33)
    with dispatch.watch() as problems:
        for factor in (2, -0.5, 3.25):
            want = x - x.max(1, keepdims=True) * np.float32(factor)
            np.testing.assert_array_equal(host(dnnkern.fused_reduction(scaled, [array(x)], axes=1, numbers=[factor])), want)
    assert len(problems) <= 1


@pytest.mark.parametrize("words", SMALL["fused_reduction"])
def test_words(words):
    problem = parse_problem(words.split(), "fused_reduction")
    assert FAMILY["fused_reduction"][2](json.loads(json.dumps(problem_record(problem)))) == problem


@pytest.mark.parametrize("words, said", [("6x8 f32 sub@row-most", "expected a function of two values, and one of add"),
                                         ("6x8 f32 relu@row-max", "expected a function of two values"), ("6x8 f32 relu", "no reduction"),
                                         ("6x8 f32 --only-rows", "no reduction")])
def test_words_that_make_no_sense(words, said):
    with pytest.raises(ValueError, match=said):
        parse_problem(words.split(), "fused_reduction")


def test_parts_of_few_long_rows():
    """A launch for each level and one for the results; few rows are cut into as many parts as fill the device."""
    split = next(a for a in dispatch.algorithms("fused_reduction") if a.name == "split")
    assert "expected 1024 or more" in split.supports(parse_problem("4x1000 f32 abs --rows add".split(), "fused_reduction"))
    softmax = parse_problem("1x4194304 f32 sub@row-max exp div@row-add".split(), "fused_reduction")
    device = contract.device()
    config = split.configs(softmax, device)[0]
    assert config.splits >= device.sms and split.workspace(softmax, device, config) == 8 * config.splits
    launches = split.build(softmax, device, config)
    assert [launch.grid[0] for launch in launches] == [config.splits] * 3
    sums = parse_problem("1x4194304 f32 abs --rows add,amax --only-rows".split(), "fused_reduction")
    assert [launch.grid[0] for launch in split.build(sums, device, split.configs(sums, device)[0])] == [config.splits, 1]


def columns_of(words):
    """(algorithm, problem)"""
    return next(a for a in dispatch.algorithms("fused_reduction") if a.name == "columns"), parse_problem(words.split(), "fused_reduction")


@pytest.mark.parametrize("words, launches, passes", [
    ("6x32x8 f32 sub@row-avg div@row-norm2 mul@8 --axes 0,1", 5, [(1, 0), (1, 0), (0, 1)]),
    ("64x40 bf16 mul@64x40 --rows add,amax --axes 0", 2, [(2, 1)]), ("64x40 f16 abs --rows sum_square --axes 0 --only-rows", 2, [(1, 0)]),
    ("64x40 f32 relu div@row-amax --axes 0", 3, [(1, 0), (0, 1)])])
def test_launches_of_columns(words, launches, passes):
    """(reductions, results) of each walk; nothing of the elements' shape is in the workspace, only states and results of columns."""
    columns, problem = columns_of(words)
    assert [(p.reduced, len(p.results)) for p in problem.program.passes] == passes
    device = contract.device()
    for config in columns.configs(problem, device):
        assert len(columns.build(problem, device, config)) == launches
        numbers = max(config.splits) * max(p.reduced for p in problem.program.passes) + len(problem.program.reductions)
        assert columns.workspace(problem, device, config) <= 2 * 4 * numbers * problem.forms.count


def test_walks_read_only_what_they_need():
    """The second array is no part of the reductions; results that need no reduction are stored by the first walk."""
    add = Function.of("add")
    mixed = StagedProgram((("float32", "matrix"),) * 2, (Reduction("max", 0), Step(SUB, (0, 2)), Step(add, (3, 1)), Step(EXP, (0,))),
                          ((4, "float32", "matrix"), (5, "float16", "matrix")))
    first, last = mixed.passes
    assert (first.arrays, first.reduced, first.results) == ((0,), 1, (1,))
    assert (last.arrays, last.reduced, last.results) == ((0, 1), 0, (0,))
    assert [dtype for _, dtype, _ in first.program.stores] == ["float32", "float16"]


def test_strips_of_columns(simulated):
    """Several strips, the last of which has fewer rows, or none: as in one."""
    columns, problem = columns_of("3x37x19 f32 mul@3x37x19 sub@row-avg exp div@row-logsumexp --rows norm2 --axes 1")
    x, y = (array((np.random.default_rng(k).integers(-8, 9, (3, 37, 19)) / 8).astype(np.float32)) for k in range(2))
    config, found = columns.configs(problem, contract.device())[0], []
    for splits in ((1, 1, 1, 1), (3, 5, 2, 4)):
        with contract.registered(columns.bound_to(dataclasses.replace(config, splits=splits))) as forced:
            found.append([host(r).astype(float) for r in dnnkern.fused_reduction(problem.program, [x, y], axes=1, algo=forced.name)])
    for one, several in zip(*found):
        np.testing.assert_allclose(several, one, rtol=2 ** -20)


def test_columns_refuse():
    assert "one column" in columns_of("6x9 f32 exp --rows add --axes 0,1")[0].supports(columns_of("6x9 f32 exp --rows add --axes 0,1")[1])
    columns, rows = columns_of("6x9 f32 exp --rows add")
    assert "stride 9" in columns.supports(rows)


def test_rows_take_what_the_registers_of_a_block_hold():
    rows = next(a for a in dispatch.algorithms("fused_reduction") if a.name == "rows")

    def reason(words):
        return rows.supports(parse_problem(words.split(), "fused_reduction"))
    assert reason("4x16384 f32 sub@row-max exp div@row-add") is None
    assert "exceed a block's registers" in reason("4x999999 f32 abs --rows add")
    assert "2 dimensions that do not merge" in reason("4x6x9 f32 exp --axes 0,2 --rows add --only-rows")
    assert "stride 9" in reason("6x9 f32 sub@row-avg --axes 0")
    even = rows.configs(parse_problem("8x4096 bf16 sub@row-max exp div@row-add".split(), "fused_reduction"), contract.device())
    assert {c.cover for c in even} == {"even"} and {c.threads * c.lanes * c.chunks.elements for c in even} == {4096}
    odd = rows.configs(parse_problem("8x4095 bf16 sub@row-max exp div@row-add".split(), "fused_reduction"), contract.device())
    assert {c.cover for c in odd} == {"parts"}
