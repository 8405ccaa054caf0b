"""Steps in words, for the command line: ``64x3x7x7,64,12*256x256 bf16 --master``."""
import inspect

import dnnkern

from ..host.words import Words, dtype_word, shapes_word
from ..sketch import problem
from ._norm_problem import OPS as NORMS
from ._norm_problem import norm_dtype
from ._rule import STEPS, rule_of

words = Words()


@words(*STEPS, small=("5x100,7 f32", "1030,3 bf16 --master --scaled", "33,9 f16 --narrow", "12 f64"))
def _step(op, shapes: shapes_word, dtype, *, grads: dtype_word = None, states: str = None, narrow=False, master=False, scaled=False,
          nesterov=False, maximize=False, counted=False):
    """--states: optional ones, separated by commas: v,momenta; --narrow: states in the parameters' dtype; --master: with float32 master
    weights; --scaled: with grad_scale and found_inf; --counted: with the step number on the device."""
    rule, known = rule_of(op), inspect.signature(getattr(dnnkern, op)).parameters
    there = rule.states[:max(rule.needed, 1)] if states is None else filter(None, states.split(","))
    wide = dtype if dtype == "float64" or narrow else "float32"
    given = {"params": dtype, "grads": grads or dtype, **dict.fromkeys(there, wide), **({"master": "float32"} if master else {})}
    one = ((1,), "float32")
    flags = {"nesterov": nesterov, "maximize": maximize, "step": one if counted else 1, "momentum": 0.5 * ("momenta" in given)}
    return problem(op, **{name: [(shape, kind) for shape in shapes] for name, kind in given.items()}, lr=1.0,
                   **({"grad_scale": one, "found_inf": one} if scaled else {}),
                   **{name: value for name, value in flags.items() if name in known})


@words(*NORMS, small=("5x100,7 f32", "4100,3 bf16 --scaled", "33,9 f16", "12 f64"))
def _norm(op, shapes: shapes_word, dtype, *, scaled=False):
    """--scaled: with grad_scale and found_inf."""
    one = ((1,), "float32") if scaled else None
    return problem(op, grads=[(shape, dtype) for shape in shapes], grad_scale=one, found_inf=one, out=((), norm_dtype(dtype)),
                   **({"max_norm": 1.0} if op == "clip_grad_norm" else {}))


FAMILY, SMALL, parse_problem = words.family, words.small, words.parse
