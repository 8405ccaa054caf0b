"""Steps in words, for the command line: ``64x3x7x7,64,12*256x256 bf16 --master``."""
from ..host.words import new_words, taken
from ..sketch import problem
from ._norm_problem import OPS as NORMS, norm_dtype
from ._rule import STEPS, rule_of

words, FAMILY, SMALL, parse_problem = new_words()
_ONE = (1,), "float32"


@words(*STEPS, small=("5x100,7 f32", "1030,3 bf16 --master --scaled", "33,9 f16 --narrow", "12 f64"))
def _step(op, shapes, dtype, *, grads=None, states: str = None, narrow=False, master=False, scaled=False, nesterov=False, maximize=False,
          counted=False):
    rule, wide = rule_of(op), dtype if dtype == "float64" or narrow else "float32"
    there = rule.states[:max(rule.needed, 1)] if states is None else filter(None, states.split(","))
    lists = {"params": dtype, "grads": grads or dtype, **dict.fromkeys(there, wide), **({"master": "float32"} if master else {})}
    flags = {"nesterov": nesterov, "maximize": maximize, "step": _ONE if counted else 1, "momentum": 0.5 * ("momenta" in lists)}
    return problem(op, **{name: [(shape, kind) for shape in shapes] for name, kind in lists.items()}, lr=1.0, **taken(op, flags),
                   **dict.fromkeys(("grad_scale", "found_inf") if scaled else (), _ONE))


words(*NORMS, small=("5x100,7 f32", "4100,3 bf16 --scaled", "33,9 f16", "12 f64"))(
    lambda op, shapes, dtype, *, scaled=False: problem(
        op, grads=[(shape, dtype) for shape in shapes], out=((), norm_dtype(dtype)), grad_scale=_ONE if scaled else None,
        found_inf=_ONE if scaled else None, **taken(op, {"max_norm": 1.0})))
