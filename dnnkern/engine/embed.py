"""Matrix products, and whatever else is an operation of its own, as a part of another operation's plan: a convolution's, say.

The operation describes its product as a `MatmulProblem`, whose tensors may be its own arrays or parts of its workspace. `choices` are the
algorithms that solve it, each bound to a configuration, and `embedded` gives the launches of one of them with every pointer moved to where
the operation keeps that operand::

    problem = MatmulProblem(a=Tensor.packed((16, k, c), "float32"), b=..., y=...)
    product = choices(problem, device)[0]
    launches = embedded(product, problem, device, {"a": Place("workspace", 0), "b": Place("workspace", at_b), "y": Place("y"),
                                                   "workspace": Place("workspace", at_scratch)})
"""
from dataclasses import replace
from math import inf
from typing import NamedTuple

from .. import dispatch
from ..algorithm import cheapest
from ..dispatch import Note
from ..host.dtypes import ITEMSIZE
from ..host.memo import kept
from . import ampere_cost, simt_plan
from .constants import constants
from .cost import Cost
from .hopper import ROW
from .hopper_plan import least_tile_seconds, wgmma_dtype

NAIVE, TILED, GEMV = constants("matmul/naive"), constants("matmul/textbook"), constants("matmul/gemv")
SCALARS = ("alpha", "beta")


class Place(NamedTuple):
    """Where an operand lies: the name of a pointer of the outer plan, and bytes behind it. Offsets in a workspace are multiples of 256."""
    name: str
    offset: int = 0


def choices(problem, device, count=1) -> tuple:
    """The deterministic algorithms that solve a problem on a device, bound to their configurations: the `count` of least estimate.

    One of each name at most: a second configuration of the same algorithm differs less than another algorithm does.
    """
    return tuple(algorithm for algorithm, _ in priced(problem, device, count))


@kept(1024)
def priced(problem, device, count=1) -> tuple:
    """`choices`, each with what it is predicted to take: (algorithm, `Cost`)."""
    able = [a for a in dispatch.algorithms(problem.op) if dispatch.refusal(a, problem, device, allow=Note.NONE) is None]
    found = cheapest(able, problem, device, count=count)
    return tuple((algorithm, Cost.of(seconds)) for algorithm, seconds in found)


def scratch_bytes(product, problem, device) -> int:
    """Workspace of a chosen algorithm, in whole lines of 256 bytes."""
    return -(-product.workspace(problem, device, product.config) // 256) * 256


def cost(product, problem, device):
    """What a chosen algorithm is predicted to take."""
    return product.cost(problem, device)


def _least_plain_seconds(dtype, elements, k, device):
    """The least of matmul's `naive`, `tiled` and `gemv`: a launch, and the chain of one element's steps or the work of all."""
    work, steps, itemsize = elements * k / device.sms / device.clock_hz, -(-k // 16), ITEMSIZE[dtype]
    few = 2 * elements * k * getattr(GEMV, dtype, GEMV.bits16) / (GEMV.rate * device.fp32_rate)
    return min(NAIVE.start + max(k * NAIVE.chain / device.clock_hz, 2 * work * itemsize / NAIVE.l1),
               TILED.start + max(steps * TILED.chain / device.clock_hz, TILED.slower * work / 16), GEMV.start + few)


def fastest_seconds(dtype, math, elements, k, nbytes, device) -> float:
    """What a product of so many elements, sums of k products each, of arrays of so many bytes, is predicted to take at least, by whatever
    algorithm of matmul: by tensor cores, whose estimates count the bytes, or by CUDA cores, whose do not all."""
    on_cores = min(simt_plan.least_seconds(dtype, elements, k / 4 if dtype == "int8" else k, device, inf),
                   _least_plain_seconds(dtype, elements, k, device))
    if wgmma_dtype(dtype, math):
        return min(on_cores, least_tile_seconds(elements, k * ITEMSIZE[dtype] / ROW, nbytes, device))
    return min(on_cores, ampere_cost.least_seconds(dtype, 2 * elements * k, nbytes, device)) if dtype == "float64" else on_cores


def embedded(product, problem, device, places, scalars=()) -> tuple:
    """The launches of a chosen algorithm with its operands at `places`.

    Parameters
    ----------
    product : Algorithm
        One of `choices`.
    problem : MatmulProblem
    device : Device
    places : {str: Place}
        Of "a", "b", "y", of "workspace" where the algorithm needs one, and of the addends and scales that the problem has.
    scalars : tuple of str, or {str: float}
        Those of "alpha" and "beta" that are the outer operation's own, or what they are; the others are 1, which a problem that is not
        scaled never reads. And the numbers of a program.
    """
    numbers = scalars if isinstance(scalars, dict) else {}
    absent = [name for name in ("bias", "c", "scale_a", "scale_b") if getattr(problem, name, problem) is None]
    places = {**dict.fromkeys(absent, places["y"]), **places}  # never read, but a launch names them

    def moved(argument):
        if argument.members:
            return replace(argument, value=argument.type(*map(moved, argument.members)))
        if not argument.is_dynamic:
            return argument
        if argument.value in numbers:
            return replace(argument, value=numbers[argument.value])
        if argument.value in scalars or argument.value in SCALARS:
            return argument if argument.value in scalars else replace(argument, value=1.0)
        if argument.value not in places:
            raise ValueError(f"embedded: {product} reads {argument.value!r}, and no place is given for it")
        place = places[argument.value]
        return replace(argument, value=place.name, offset=argument.offset + place.offset)
    return tuple(replace(launch, arguments=tuple(map(moved, launch.arguments)))
                 for launch in product.build(problem, device, product.config))
