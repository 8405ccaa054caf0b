"""Recurrent networks in words, for the command line: ``128x64 512x512 lstm f32 --layers 2``: steps by sequences, input by hidden size."""
import functools

from ..host.tensor import Tensor
from ..host.words import WordParser, dtype_word, problem_from_record
from ..host.words import sizes_word
from ._problem import LAYOUTS, OPS, RnnDataProblem, RnnProblem, RnnWeightsProblem, make_data, make_forward, make_weights
from ._spec import BIASES, GATES, INPUT_MODES, MATH, RnnSpec

PROBLEMS = {kind.op: kind for kind in (RnnProblem, RnnDataProblem, RnnWeightsProblem)}


def add_arguments(op, parser):
    """The words that describe a recurrent network and its sequences."""
    parser.add_argument("steps", type=sizes_word, help="steps by sequences: 128x64")
    parser.add_argument("sizes", type=sizes_word, help="input by hidden size: 512x512")
    parser.add_argument("cell", choices=tuple(GATES))
    parser.add_argument("dtype", type=dtype_word, help="dtype: float32, bf16, ...")
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--bidirectional", action="store_true")
    parser.add_argument("--projection", type=int, default=0, help="projection size")
    parser.add_argument("--bias", choices=tuple(BIASES), default="double")
    parser.add_argument("--input-mode", choices=INPUT_MODES, default="linear")
    parser.add_argument("--dropout", type=float, default=0.0, help="dropout between layers")
    parser.add_argument("--clip", type=float, help="clip cell states to this bound")
    parser.add_argument("--math", choices=[m for m in MATH if m])
    parser.add_argument("--lengths", action="store_true", help="sequences have lengths of their own")
    parser.add_argument("--layout", choices=LAYOUTS, default="TNC")
    if op == OPS[0]:
        parser.add_argument("--training", action="store_true", help="keep the reserve for the gradients")


def make(op, arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes, first states given."""
    a = arguments
    for name in ("steps", "sizes"):
        if len(getattr(a, name)) != 2:
            raise ValueError(f"{op}: {name} is {'x'.join(map(str, getattr(a, name)))}; expected two numbers")
    spec = RnnSpec(a.cell, *a.sizes, num_layers=a.layers, bidirectional=a.bidirectional, proj_size=a.projection, bias=a.bias,
                   input_mode=a.input_mode, dropout=a.dropout, clip=a.clip, dtype=a.dtype, math=a.math)
    steps, samples = a.steps
    lines, states = (steps, samples) if a.layout == "TNC" else (samples, steps), spec.num_layers * spec.directions

    def packed(*shape):
        return Tensor.packed(shape, spec.dtype)
    x, weights, h0 = packed(*lines, spec.input_size), packed(spec.weight_size), packed(states, samples, spec.state_size)
    c0 = packed(states, samples, spec.hidden_size) if spec.cell == "lstm" else None
    lengths = Tensor.packed((samples,), "int32") if a.lengths else None
    forward = make_forward((x, h0, c0, weights, lengths), None, spec, a.layout, op != OPS[0] or a.training, frozenset())
    if op == OPS[1]:
        given = forward.y, h0, c0, x, h0, c0, forward.y, weights, forward.reserve, lengths
        return make_data(given, None, spec, a.layout, frozenset())
    if op == OPS[2]:
        return make_weights((x, h0, forward.y, forward.reserve, lengths), None, spec, a.layout, frozenset())
    return forward


def from_record(op, record):
    """The problem of a record; ValueError where it is something else."""
    fields = dict(record)
    spec = fields.get("spec")
    if isinstance(spec, dict):
        given = dict(spec)
        try:
            fields["spec"] = RnnSpec(given.pop("cell"), given.pop("input_size"), given.pop("hidden_size"), **given)
        except (KeyError, TypeError) as error:
            raise ValueError(f"{op}: not a record of a problem: {type(error).__name__}: {error}") from None
    return problem_from_record(PROBLEMS[op], op, fields)


FAMILY = {op: (functools.partial(add_arguments, op), functools.partial(make, op), functools.partial(from_record, op)) for op in OPS}
"""Operation -> what adds its words to a parser, what makes a problem of them, and of a record; the command line reads this."""

SMALL = {op: ("3x2 4x5 lstm f32", "4x3 3x4 gru bf16 --bidirectional --lengths", "2x3 5x6 lstm f16 --projection 3 --layers 2",
              "3x2 4x4 tanh f64 --input-mode skip", "3x3 2x4 relu f32 --layout NTC") for op in OPS}
"""Problems that ``python -m dnnkern check`` tries."""


def parse_problem(words, op):
    """The problem of `op` a list of words describes; ValueError in one line where they make no sense.

    >>> print(parse_problem("128x64 512x512 lstm f32 --layers 2".split(), "rnn_fwd"))
    rnn_fwd 128x64 lstm 512x512 2 layers float32 TNC
    """
    parser = WordParser(op, add_help=False)
    FAMILY[op][0](parser)
    return FAMILY[op][1](parser.parse_args(list(words)))
