"""Steps in words, for the command line: ``64x3x7x7,64,12*256x256 bf16 --master``."""
import argparse
import functools
import re

from ..host.tensor import Tensor
from ..host.words import WordParser, dtype_word, problem_from_record
from ..host.words import sizes_word
from ._norm_problem import OPS as NORMS
from ._norm_problem import NormProblem, make_norm, norm_dtype
from ._problem import StepProblem, make_step
from ._rule import STEPS, rule_of


def shapes_word(text):
    """Shapes written 64x3x7x7,64,12*256x256: the last one twelve times."""
    found = []
    for word in text.split(","):
        times, star, shape = word.rpartition("*")
        if star and not re.fullmatch(r"[1-9]\d*", times):
            raise argparse.ArgumentTypeError(f"{word!r} is not a shape such as 64x256 or 12*64x256")
        found += [sizes_word(shape)] * int(times or 1)
    return tuple(found)


def tensors_of(shapes, dtype):
    """Packed tensors, aligned to 16 bytes."""
    return tuple(Tensor.packed(shape, dtype) for shape in shapes)


def tensors_of_record(record):
    """Tensors of a list in a record, or None."""
    return None if record is None else tuple(Tensor(tuple(t["shape"]), tuple(t["strides"]), t["dtype"], t["alignment"]) for t in record)


def add_arguments(parser):
    """The words that describe a step."""
    parser.add_argument("shapes", type=shapes_word, help="shapes of the parameters: 64x3x7x7,64,12*256x256 (the last one twelve times)")
    parser.add_argument("dtype", type=dtype_word, help="dtype of the parameters and gradients: float32, bf16, ...")
    parser.add_argument("--grads", type=dtype_word, help="dtype of the gradients, if different")
    parser.add_argument("--states", help="optional states, separated by commas: v,momenta")
    parser.add_argument("--narrow", action="store_true", help="states in the parameters' dtype")
    parser.add_argument("--master", action="store_true", help="with float32 master weights")
    parser.add_argument("--scaled", action="store_true", help="with grad_scale and found_inf")
    parser.add_argument("--nesterov", action="store_true")
    parser.add_argument("--maximize", action="store_true")
    parser.add_argument("--counted", action="store_true", help="with the step number on the device")


def make(op, arguments):
    """The problem that parsed words describe."""
    rule, dtype, one = rule_of(op), arguments.dtype, Tensor.packed((1,), "float32") if arguments.scaled else None
    states = rule.states[:max(rule.needed, 1)] if arguments.states is None else tuple(filter(None, arguments.states.split(",")))
    if unknown := [s for s in states if s not in rule.states]:
        raise ValueError(f"{op}: unknown states {', '.join(unknown)}; expected some of {', '.join(rule.states)}")
    of = functools.partial(tensors_of, arguments.shapes)
    wide = dtype if dtype == "float64" or arguments.narrow else "float32"
    lists = {"params": of(dtype), "grads": of(arguments.grads or dtype), "master": of("float32") if arguments.master else None,
             **{name: of(wide) if name in states else None for name in rule.states}}
    flags = tuple(flag for flag in ("nesterov", "counted", "maximize") if getattr(arguments, flag))
    singles = {"grad_scale": one, "found_inf": one, "step": Tensor.packed((1,), "float32") if arguments.counted else None}
    return make_step(op, lists, singles, flags)


def from_record(op, record):
    """The problem of a record; ValueError where it is something else."""
    def make_it(op, params, grads, states, master, flags, **singles):
        states = tuple((name, tensors_of_record(some)) for name, some in states)
        lists = [tensors_of_record(some) for some in (params, grads, master)]
        return StepProblem(op, *lists[:2], states, lists[2], tuple(flags), **singles)
    return problem_from_record(make_it, op, record)


def add_norm_arguments(parser):
    """The words that describe gradients."""
    parser.add_argument("shapes", type=shapes_word, help="shapes of the gradients: 64x3x7x7,64,12*256x256 (the last one twelve times)")
    parser.add_argument("dtype", type=dtype_word, help="dtype: float32, bf16, ...")
    parser.add_argument("--scaled", action="store_true", help="with grad_scale and found_inf")


def make_norm_words(op, arguments):
    """The problem that parsed words describe."""
    one = Tensor.packed((1,), "float32") if arguments.scaled else None
    singles = {"out": Tensor.packed((), norm_dtype(arguments.dtype)), "grad_scale": one, "found_inf": one}
    return make_norm(op, {"grads": tensors_of(arguments.shapes, arguments.dtype)}, singles)


def norm_from_record(op, record):
    """The problem of a record; ValueError where it is something else."""
    return problem_from_record(lambda op, grads, **singles: NormProblem(op, tensors_of_record(grads), **singles), op, record)


FAMILY = {op: (add_arguments, functools.partial(make, op), functools.partial(from_record, op)) for op in STEPS}
FAMILY.update({op: (add_norm_arguments, functools.partial(make_norm_words, op), functools.partial(norm_from_record, op)) for op in NORMS})
"""Operation -> what adds its words to a parser, what makes a problem of them, and of a record; the command line reads this."""

SMALL = {**{op: ("5x100,7 f32", "1030,3 bf16 --master --scaled", "33,9 f16 --narrow", "12 f64") for op in STEPS},
         **{op: ("5x100,7 f32", "4100,3 bf16 --scaled", "33,9 f16", "12 f64") for op in NORMS}}
"""Problems that ``python -m dnnkern check`` tries."""


def parse_problem(words, op):
    """The problem of `op` a list of words describes; ValueError in one line where they make no sense.

    >>> print(parse_problem("64x3x7x7,64,2*256x256 bf16 --master".split(), "adamw_step"))
    adamw_step 4 arrays of 140544 elements bfloat16/bfloat16/float32/float32/float32 + master
    """
    parser = WordParser(op, add_help=False)
    add_words, make_it, _ = FAMILY[op]
    add_words(parser)
    return make_it(parser.parse_args(list(words)))
