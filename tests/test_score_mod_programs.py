"""What attention's kernels make of the programs of scores: narrower types, affine integers, a tanh apart."""
import numpy as np

from dnnkern.attention._exact_programs import exact
from dnnkern.device.pointwise import Function
from dnnkern.device.program import Program, Step
from dnnkern.device.program_affine import Affine, with_affine
from dnnkern.device.program_levels import parts_of


def test_exact_programs():
    """What a graph computes in float64, of integers and floats, kernels compute in narrower types where the result is the same."""
    def narrowed(most, divisor=20.0):
        made = [("sub", (3, 2), "int32", "float64"), ("mul", (5, 1), "float32", "float64"), ("add", (0, 6), None, "float32"),
                ("div", (7, 4), None, "float32")]
        program = Program((("float32", "row"), ("int32", "index"), ("int32", "index"), ("float32", divisor)),
                          [Step(Function.of(mode), inputs, to, compute) for mode, inputs, to, compute in made])
        return exact(program, (None, (0, most), (0, most)), "float32")
    steps = narrowed(4095).steps
    assert [(s.function.mode, s.compute, s.round_to) for s in steps] == [
        ("sub", "int32", None), ("mul", "float32", None), ("add", "float32", None), ("mul", "float32", None)]
    assert narrowed(4095).loads[-1] == ("float32", float(1 / np.float32(20))) and steps[-1].inputs == (8, 5)
    assert [s.compute for s in narrowed(1 << 25).steps] == ["int32", "float64", "float32", "float32"]  # float32 lacks such integers
    assert narrowed(4095, 0.0).steps[-1].function.mode == "div"


def test_affine_integers():
    """Differences of small indices are numbers that kernels give the program: one of a tile's first score, and a constant step."""
    made = [("sub", (3, 2), "int32"), ("add", (5, 4), "int32"), ("mul", (6, 1), "float32"), ("cmp_ge", (3, 6), "int32"),
            ("binary_select", (0, 7, 8), "float32")]
    program = Program((("float32", "row"), ("int32", "index"), ("int32", "index"), ("int32", 7)),
                      [Step(Function.of(mode), inputs, None, compute) for mode, inputs, compute in made])
    found, affines = with_affine(program, (None, (1, 0), (0, 1)))
    assert affines == (Affine("float32", -1, 1, ((1, -1), (2, 1)), 7), Affine("int32", 0, 1, ((2, 1),), 0),
                       Affine("int32", -1, 1, ((1, -1), (2, 1)), 7))
    assert found.loads[4:] == (("float32", "value"), ("int32", "value"), ("int32", "value"))
    assert [s.inputs for s in found.steps[2:]] == [(5, 1), (6, 7), (0, 10, 11)]
    assert with_affine(program, (None,) * 3) == (program, ())


def test_tanh_apart():
    """A score that is a function of one tanh is computed by that, its derivative too where the argument is the same; nothing else is."""

    def made(loads, *steps, accumulators=1):
        return Program(loads, [Step(Function.of(mode), inputs) for mode, inputs in steps], (), None, accumulators)
    cap, slope = (("float32", 0.05), ("float32", 20.0)), ("float32", "row")
    forward = made((*cap, slope), ("mul", (0, 1)), ("tanh", (4,)), ("mul", (5, 2)), ("add", (6, 3)))
    back = made(cap, ("mul", (1, 2)), ("tanh_backward", (0, 4)), accumulators=2)
    argument, resumed, gradient = parts_of(forward, back)
    assert str(argument) == "mul" and str(resumed) == "mul+add" and str(gradient) == "mul+sub+mul"
    assert argument.operands == resumed.operands == forward.operands
    assert (resumed.steps[0].inputs, gradient.steps[0].inputs) == ((0, 2), (1, 1))
    assert parts_of(forward).gradient is None
    # what else takes the product: a score beside its tanh; two of them; another argument, or an operand's own, backward
    assert parts_of(made(cap, ("tanh", (0,)), ("add", (3, 0)))) is None
    assert parts_of(made(cap, ("tanh", (0,)), ("mul", (0, 1)), ("tanh", (4,)), ("add", (3, 5)))) is None
    assert parts_of(forward, made(cap, ("mul", (1, 3)), ("tanh_backward", (0, 4)), accumulators=2)) is None
    assert parts_of(forward, made(cap, ("mul", (1, 2)), ("tanh_backward", (0, 4)), ("mul", (5, 1)), accumulators=2)) is None
    by_operand = made((("float32", "value"),), ("mul", (0, 1)), ("tanh", (2,)))
    assert parts_of(by_operand) and parts_of(by_operand, made((("float32", "value"),), ("mul", (1, 2)), ("tanh_backward", (0, 3)),
                                                              accumulators=2)) is None
