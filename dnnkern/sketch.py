"""`problem`: the problem of a call, from its arrays or only their shapes and dtypes; nothing is allocated or run."""
import functools
import importlib
import inspect
import itertools
import re

from . import dispatch
from .host.arrays import KIND_OF_TYPE, Kind, kind_of
from .host.dtypes import dtype_name
from .host.scalars import shown
from .host.suggest import nearest
from .host.tensor import Tensor

_SIZES = re.compile(r"\d+(x\d+)*")
_addresses = itertools.count(1 << 56, 1 << 12)  # fake addresses, where no array is, aligned to 16 bytes
_NOT_OF_A_PROBLEM = frozenset({"workspace", "stream", "algo", "allow", "workspace_limit", "exclude"})


class Sketch:
    """Stands for an array in a call that is only described."""

    def __init__(self, tensor, address):
        self.tensor, self.address = tensor, address
        self.shape, self.dtype = tensor.shape, tensor.dtype


class _Described(BaseException):  # not an Exception, which callers may catch
    """Carries the problem of a call."""


class _SketchKind(Kind):
    name = "sketch"

    def describe(self, a):
        t = a.tensor
        return (t.shape, t.strides, t.dtype, t.alignment), a.address

    def tensor(self, a):
        return a.tensor

    def device(self, a):
        return 0

    def empty(self, shape, dtype, device, stream):
        return Sketch(Tensor.packed(shape, dtype), next(_addresses))

    def bound(self, problem):
        raise _Described(problem)


KIND_OF_TYPE[Sketch] = _SketchKind()


def problem(op, /, **arguments):
    """The problem of a call, for `dispatch.explain`, `find_algorithms` and `get_algorithm`.

    Parameters
    ----------
    op : str
        A public function: "conv_fwd", "matmul", ...
    **arguments
        The function's arguments, all by keyword. An array may also be a pair of a shape and a dtype, contiguous and aligned:
        ``("64x64x56x56", "bfloat16")`` or ``((64, 64, 56, 56), "bfloat16")``. Lists of arrays are lists of either. `out` may also be the
        name of the operand that is updated in place. Factors such as alpha matter only if they are not neutral.

    Returns
    -------
    problem
        A frozen dataclass of the function's family with all shapes, strides and dtypes; `problem.op` is the operation whose algorithms
        solve it (for conv_transpose_fwd, conv_bwd_data).

    Raises
    ------
    ValueError
        Unknown function; or what the function itself raises.
    TypeError
        Unknown or missing arguments; those that specify how a call runs, not what it computes (algo, workspace, ...); or what the function
        itself raises.

    Examples
    --------
    >>> import dnnkern
    >>> problem = dnnkern.problem("conv_fwd", x=("64x64x56x56", "bfloat16"), w=("64x64x3x3", "bfloat16"), padding=1)
    >>> print(problem)
    conv_fwd 64x64x56x56 k64 3x3 s1 p1 bfloat16 NCHW
    >>> [c.chosen for c in dnnkern.dispatch.explain(problem.op, problem)][:2]
    [True, False]
    """
    function = function_of(op)
    _check_names(op, arguments, inspect.signature(function).parameters)
    drawn = {}
    given = {name: _sketched(op, name, value, drawn) for name, value in arguments.items()}
    if isinstance(given.get("out"), str):
        if not isinstance(given.get(given["out"]), Sketch):
            raise ValueError(f"problem: {op}: out is {shown(given['out'])}; expected an array, a shape with a dtype, or the name of an "
                             "operand")
        given["out"] = given[given["out"]]
    try:
        function(**given)
    except _Described as found:
        return found.args[0]
    raise ValueError(f"problem: {op}: the lists are empty")


@functools.cache
def _functions():
    """The public functions that have problems, by name."""
    from . import _NAMES
    families = {f"dnnkern.{family}" for family in dispatch.families()}
    return frozenset(name for name, module in _NAMES.items() if module in families and name[0].islower())


def function_of(op):
    """The public function of this name, if it has problems; ValueError otherwise."""
    from . import _NAMES
    if not isinstance(op, str) or op not in _functions():
        known = _functions()
        raise ValueError(f"problem: unknown function {shown(op)}{nearest(op, known) or '; expected one of ' + ', '.join(sorted(known))}")
    return getattr(importlib.import_module(_NAMES[op]), op)


def _check_names(op, arguments, parameters):
    more = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name in arguments:
        if name in _NOT_OF_A_PROBLEM:
            raise TypeError(f"problem: {name} is not part of a problem: it specifies how a call of {op} runs, not what it computes")
        if name not in parameters and not more:
            known = [p for p in parameters if p not in _NOT_OF_A_PROBLEM]
            raise TypeError(f"problem: {op} has no argument {name!r}{nearest(name, known)} (it takes {', '.join(known)})")
    missing = [name for name, p in parameters.items() if p.default is p.empty and name not in arguments and p.kind is not p.VAR_KEYWORD]
    if missing:
        raise TypeError(f"problem: {op} also needs {' and '.join(missing)}")


def _sketched(op, name, value, drawn, depth=2):
    """The argument with sketches in place of arrays, within `depth` lists. `drawn` holds those made of arrays, by address."""
    if _is_shape_and_dtype(value):
        shape, dtype = value
        shape = tuple(map(int, shape.split("x"))) if isinstance(shape, str) else tuple(shape)
        try:
            return Sketch(Tensor.packed(shape, dtype_name(dtype)), next(_addresses))
        except (TypeError, ValueError) as error:
            raise type(error)(f"problem: {op}: {name}: {error}") from None
    if isinstance(value, Tensor):
        return Sketch(value, next(_addresses) + value.alignment % 16)
    if isinstance(value, str) and "x" in value and _SIZES.fullmatch(value):
        raise TypeError(f"problem: {op}: {name} is {value!r}; expected the dtype too: ({value!r}, 'float32')")
    if type(value) in (list, tuple) and depth:
        return type(value)(_sketched(op, f"{name}[{k}]", v, drawn, depth - 1) for k, v in enumerate(value))
    try:
        kind = kind_of(value)
    except TypeError:
        return value
    try:
        tensor, (_, address) = kind.tensor(value), kind.describe(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"problem: {op}: {name}: {error}") from None
    return drawn.setdefault((address, tensor), Sketch(tensor, address))


def _is_shape_and_dtype(value):
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    shape, dtype = value
    if isinstance(shape, str):
        return _SIZES.fullmatch(shape) is not None
    return isinstance(shape, (tuple, list)) and all(isinstance(n, int) for n in shape) and not isinstance(dtype, (int, tuple, list))


__all__ = ["problem"]
