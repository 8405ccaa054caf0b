"""Pointwise programs over arrays: chains and DAGs of functions of single elements in one kernel."""
import functools

from ..device.program import Program
from ..host.front import Operation, public
from ..host.scalars import ints, number, shown
from ._problem import FusedProblem, make_fused
from ._reduction_problem import FusedReductionProblem, make_fused_reduction
from ._staged import Reduction, StagedProgram

__all__ = ["FusedProblem", "FusedReductionProblem", "Reduction", "StagedProgram", "fused_pointwise", "fused_reduction"]


class _Fused(Operation):
    """The operation of one array and one result, and those of other numbers: that of a problem has its arrays as operands."""

    def of(self, problem):
        return _operation(len(problem.inputs), len(problem.outputs), problem.scalars)


@functools.cache
def _operation(inputs, outputs, scalars):
    names = tuple(f"x{k}" for k in range(inputs))
    return Operation("fused_pointwise", operands=names, outputs=tuple(f"y{k}" for k in range(outputs)), scalars=scalars, problem=make_fused,
                     in_place=frozenset(names), labels=tuple(f"inputs[{k}]" for k in range(inputs)))


@functools.lru_cache(maxsize=1024)
def _operation_of(program, inputs):
    """The operation of calls with this program and so many arrays."""
    if not inputs:
        raise ValueError("fused_pointwise: inputs is empty; expected an array for each load by 'matrix'")
    if not program.stores:
        raise ValueError("fused_pointwise: program stores nothing; expected a result")
    numbers = sum(access == "value" for _, access in program.loads)
    return _operation(inputs, len(program.stores), tuple(f"s{k}" for k in range(numbers)))


FUSED = _Fused("fused_pointwise", operands=("x0",), outputs=("y0",), problem=make_fused, in_place=frozenset({"x0"}))


class _FusedReduction(Operation):
    """As `_Fused`."""

    def of(self, problem):
        return _reduction_operation(len(problem.inputs), len(problem.outputs), problem.scalars)


@functools.cache
def _reduction_operation(inputs, outputs, scalars):
    return Operation("fused_reduction", operands=tuple(f"x{k}" for k in range(inputs)), outputs=tuple(f"y{k}" for k in range(outputs)),
                     scalars=scalars, problem=make_fused_reduction, labels=tuple(f"inputs[{k}]" for k in range(inputs)))


@functools.lru_cache(maxsize=1024)
def _reduction_operation_of(program, inputs):
    """The operation of calls with this program and so many arrays."""
    if not inputs:
        raise ValueError("fused_reduction: inputs is empty; expected an array for each load by 'matrix' or 'row'")
    numbers = sum(access == "value" for _, access in program.loads)
    return _reduction_operation(inputs, len(program.stores), tuple(f"s{k}" for k in range(numbers)))


REDUCTION = _FusedReduction("fused_reduction", operands=("x0",), outputs=("y0",), problem=make_fused_reduction)


@public
def fused_pointwise(program, inputs, *, numbers=(), axes=(), out=None, workspace=None, stream=None, **choice):
    """A program of pointwise functions, element by element, in one kernel: ``y0, y1, ... = program(x0, x1, ...)``.

    Parameters
    ----------
    program : dnnkern.device.program.Program
        A DAG of functions as data, without accumulators. Each of its loads is an array, by "matrix"; a number that is given at each call,
        by "value"; the position of an element along an axis, by "index"; or a constant. Its stores are the results.
    inputs : sequence of arrays
        The arrays, one a load by "matrix", in their order and of its dtype: 1 to 15. They broadcast to the shape of the results, of up to 8
        dimensions, with arbitrary strides.
    numbers : sequence of float
        The loads by "value", in their order.
    axes : int or sequence of int
        The axes of the loads by "index", in their order; negative ones count from the last axis.
    out : array, or tuple of arrays
        The results, one a store; arbitrary strides. Each may be exactly one of the inputs; other overlap is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    array, or tuple of arrays
        Of the inputs' framework, of the stores' dtypes, and of the shape to which the inputs broadcast. Each function is computed in its
        step's type, and a result is rounded once, where it is stored; integers to nearest, saturating.

    Raises
    ------
    TypeError
        What is no program or no array, an array whose dtype is not the load's.
    ValueError
        Another number of arrays, numbers or axes than the program has; shapes that do not broadcast; an axis out of range; an `out` of
        another shape, or that partly overlaps an input.

    Notes
    -----
    Deterministic. Mirrors a graph of cuDNN's pointwise operations, run by its runtime fusion engine.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> from dnnkern.device.pointwise import Function
    >>> from dnnkern.device.program import Program, Step
    >>> add, relu = Function.of("add"), Function.of("relu")
    >>> program = Program(loads=(("float32", "matrix"), ("float32", "matrix")), steps=(Step(add, (0, 1)), Step(relu, (2,))),
    ...                   stores=((3, "float32", "matrix"),), accumulators=0)
    >>> dnnkern.fused_pointwise(program, [np.array([[1, -2], [3, -4]], np.float32), np.array([1, 1], np.float32)])
    array([[2., 0.],
           [4., 0.]], dtype=float32)
    """
    if not isinstance(program, Program):
        raise TypeError(f"fused_pointwise: program is {shown(program)}; expected a dnnkern.device.program.Program")
    if not isinstance(inputs, (list, tuple)):
        raise TypeError(f"fused_pointwise: inputs is {shown(inputs)}; expected a list of arrays")
    if not isinstance(numbers, (list, tuple)):
        raise TypeError(f"fused_pointwise: numbers is {shown(numbers)}; expected a list of numbers")
    operation = _operation_of(program, len(inputs))
    scalars = ()
    if numbers or operation.scalars:
        scalars = tuple([number("fused_pointwise", f"numbers[{k}]", v) for k, v in enumerate(numbers)])
        if len(scalars) != len(operation.scalars):
            raise ValueError(f"fused_pointwise: {len(scalars)} numbers for a program with {len(operation.scalars)} loads by 'value'")
    axes = ints("fused_pointwise", "axes", axes)
    return operation.call(tuple(inputs), out, (program, axes if type(axes) is tuple else (axes,)), scalars, workspace, stream, choice)


@public
def fused_reduction(program, inputs, *, axes, numbers=(), index_axes=(), out=None, workspace=None, stream=None, **choice):
    """A program of pointwise functions and of reductions along axes: ``y0, y1, ... = program(x0, x1, ...)``.

    Parameters
    ----------
    program : dnnkern.fused.StagedProgram
        A DAG of functions and reductions as data. Each of its loads is an array, by "matrix", or by "row" where it has one element for each
        row; a number that is given at each call, by "value"; the position of an element along an axis, by "index"; or a constant. Its
        stores are the results, by "matrix", or by "row" of values that a row has one of.
    inputs : sequence of arrays
        The arrays, one a load by "matrix" or "row", in their order and of its dtype: 1 to 15. They broadcast to one shape, of up to 8
        dimensions, with arbitrary strides; those of rows have size 1 along `axes`.
    axes : int or sequence of int
        What is reduced; negative ones count from the last axis.
    numbers : sequence of float
        The loads by "value", in their order.
    index_axes : int or sequence of int
        The axes of the loads by "index", in their order.
    out : array, or tuple of arrays
        The results, one a store; arbitrary strides. Overlap with an input is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    array, or tuple of arrays
        Of the inputs' framework, of the stores' dtypes: of the shape to which the inputs broadcast, or by "row" with size 1 along `axes`.
        Each function and each reduction is computed in its step's type, and a result is rounded once, where it is stored; integers to
        nearest, saturating. Over no elements a reduction is what `dnnkern.reduce` says.

    Raises
    ------
    TypeError
        What is no program or no array, an array whose dtype is not the load's.
    ValueError
        Another number of arrays, numbers or axes than the program has; shapes that do not broadcast; an axis out of range or repeated; an
        `out` of another shape, or that overlaps an input.

    Notes
    -----
    Deterministic: the order of sums depends only on the problem and the device; there are no atomics. Mirrors a graph of cuDNN's pointwise
    and reduction operations, run by its runtime fusion engine.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> from dnnkern.device.pointwise import Function
    >>> from dnnkern.device.program import Step
    >>> from dnnkern.fused import Reduction, StagedProgram
    >>> sub, exp, div = (Function.of(mode) for mode in ("sub", "exp", "div"))
    >>> softmax = StagedProgram(loads=(("float32", "matrix"),),
    ...                         steps=(Reduction("max", 0), Step(sub, (0, 1)), Step(exp, (2,)), Reduction("add", 3), Step(div, (3, 4))),
    ...                         stores=((5, "float32", "matrix"), (1, "float32", "row")))
    >>> y, row_max = dnnkern.fused_reduction(softmax, [np.array([[1, 1, 1, 1], [0, 9, 0, 0]], np.float32)], axes=1)
    >>> y[0], row_max
    (array([0.25, 0.25, 0.25, 0.25], dtype=float32), array([[1.],
           [9.]], dtype=float32))
    """
    if not isinstance(program, StagedProgram):
        raise TypeError(f"fused_reduction: program is {shown(program)}; expected a dnnkern.fused.StagedProgram")
    if not isinstance(inputs, (list, tuple)):
        raise TypeError(f"fused_reduction: inputs is {shown(inputs)}; expected a list of arrays")
    if not isinstance(numbers, (list, tuple)):
        raise TypeError(f"fused_reduction: numbers is {shown(numbers)}; expected a list of numbers")
    operation = _reduction_operation_of(program, len(inputs))
    scalars = ()
    if numbers or operation.scalars:
        scalars = tuple([number("fused_reduction", f"numbers[{k}]", v) for k, v in enumerate(numbers)])
        if len(scalars) != len(operation.scalars):
            raise ValueError(f"fused_reduction: {len(scalars)} numbers for a program with {len(operation.scalars)} loads by 'value'")
    axes, index_axes = ints("fused_reduction", "axes", axes), ints("fused_reduction", "index_axes", index_axes)
    parameters = program, axes, index_axes if type(index_axes) is tuple else (index_axes,)
    return operation.call(tuple(inputs), out, parameters, scalars, workspace, stream, choice)
