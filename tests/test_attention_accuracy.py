"""How far 16-bit gradients of attention may be from those of the unrounded network: the error model that `sdpa_bwd` states."""
import contract
import numpy as np
import pytest
from cases import ROUNDOFF
from cases._sdpa_gradient import Backward

from dnnkern import dispatch
from dnnkern.dispatch import Note


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_the_rounding_of_o_costs(dtype):
    """The bound of `sdpa_bwd`'s notes where scores saturate: gradients from o as it is given are right to a rounding, but o was rounded.

    Of a row whose softmax is all but one key's, the gradients by q and k are differences of numbers that o gives to its rounding only.
    """
    case = Backward("saturated", 1, 4, 4, 3, 6, 8, 8, dtype, large=4.0)
    values, u = case.values("float"), ROUNDOFF[dtype]
    (o, _), *_ = case.forward(values)
    given, tolerance = case.reference(values)
    true = {name: value for name, (value, _) in case.gradients({**values, "o": o}).items()}
    q, k, do = (values[name] for name in ("q", "k", "do"))
    p = np.exp(q @ k.swapaxes(2, 3) * case.factor - values["lse"][..., None])
    lost = u * np.abs(do * o).sum(3, keepdims=True) * abs(case.factor)
    bound = {"dq": lost * (p @ np.abs(k)), "dk": (p * lost).swapaxes(2, 3) @ np.abs(q), "dv": 0.0}
    for name in ("dq", "dk"):
        assert (np.abs(given[name] - true[name]) > 4 * tolerance[name]).any(), f"{name}: the rounding of o does not show"
        contract.assert_within(given[name], true[name], bound[name], name)
    for algorithm in (a for a in dispatch.algorithms(case.op) if contract.refusal(a, case.problem()) is None):
        _, tolerance = case.reference(values, Note.TENSOR_CORE in algorithm.notes)
        with contract.registered(algorithm) as mine:
            contract.Run(case, mine, values).check_values(true, {k: tolerance[k] + bound[k] for k in true})
