"""Recurrent networks in words, for the command line: ``128x64 512x512 lstm f32 --layers 2``: steps by sequences, input by hidden size."""
from ..host.words import Words, like, sizes_word, value_word
from ..sketch import problem
from ._problem import OPS
from ._spec import RnnSpec

words = Words()


@words(*OPS, small=("3x2 4x5 lstm f32", "4x3 3x4 gru bf16 --bidirectional --lengths", "2x3 5x6 lstm f16 --projection 3 --layers 2",
                    "3x2 4x4 tanh f64 --input-mode skip", "3x3 2x4 relu f32 --layout NTC"))
def _rnn(op, steps: sizes_word, sizes: sizes_word, cell: str, dtype, *, layers=1, bidirectional=False, projection=0, bias="double",
         input_mode="linear", dropout=0.0, clip: value_word = None, math: str = None, lengths=False, layout="TNC", training=False):
    """--projection: proj_size; --lengths: sequences have lengths of their own; --training: keep the reserve for the gradients."""
    for name, value in (("steps", steps), ("sizes", sizes)):
        if len(value) != 2:
            raise ValueError(f"{op}: {name} is {'x'.join(map(str, value))}; expected two numbers")
    spec = RnnSpec(cell, *sizes, num_layers=layers, bidirectional=bidirectional, proj_size=projection, bias=bias, input_mode=input_mode,
                   dropout=dropout, clip=clip, dtype=dtype, math=math)
    samples, states = steps[1], layers * spec.directions
    x = (*(steps if layout == "TNC" else steps[::-1]), spec.input_size), dtype
    h0, c0 = (((states, samples, size), dtype) for size in (spec.state_size, spec.hidden_size))
    weights, c0 = ((spec.weight_size,), dtype), c0 if cell == "lstm" else None
    more = {"spec": spec, "layout": layout, "lengths": ((samples,), "int32") if lengths else None}
    forward = problem(OPS[0], x=x, h0=h0, c0=c0, weights=weights, training=op != OPS[0] or training, **more)
    if op == OPS[0]:
        return forward
    given = {"x": x, "h0": h0, "y": like(forward.y), "reserve": like(forward.reserve), **more}
    return problem(op, **given) if op == OPS[2] else problem(op, dy=like(forward.y), dhn=h0, dcn=c0, c0=c0, weights=weights, **given)


FAMILY, SMALL, parse_problem = words.family, words.small, words.parse
