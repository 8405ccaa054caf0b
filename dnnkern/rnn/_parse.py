"""Recurrent networks in words, for the command line: ``128x64 512x512 lstm f32 --layers 2``: steps by sequences, input by hidden size."""
from ..host.words import check_sizes, either, new_words, sizes_word
from ._problem import OPS
from ._spec import BIASES, GATES, INPUT_MODES, RnnSpec

words, FAMILY, SMALL, parse_problem = new_words(
    cell={"choices": tuple(GATES)}, bias={"choices": tuple(BIASES)}, input_mode={"choices": INPUT_MODES})


@words(*OPS, small=("3x2 4x5 lstm f32", "4x3 3x4 gru bf16 --bidirectional --lengths", "2x3 5x6 lstm f16 --projection 3 --layers 2",
                    "3x2 4x4 tanh f64 --input-mode skip", "3x3 2x4 relu f32 --layout NTC"))
def _rnn(op, sequences: sizes_word, sizes: sizes_word, cell, dtype, *, layers=1, bidirectional=False, projection=0, bias="double",
         input_mode="linear", dropout=0.0, clip=None, math=None, lengths=False, layout="TNC", training=False):
    check_sizes(op, sequences, "steps x sequences")
    check_sizes(op, sizes, "input x hidden size")
    spec = RnnSpec(cell, *sizes, num_layers=layers, bidirectional=bidirectional, proj_size=projection, bias=bias, input_mode=input_mode,
                   dropout=dropout, clip=clip, dtype=dtype, math=math)
    h0, c0 = (((layers * spec.directions, sequences[1], size), dtype) for size in (spec.state_size, spec.hidden_size))
    return either(op, OPS[0], spec=spec, x=((*(sequences if layout == "TNC" else sequences[::-1]), spec.input_size), dtype), h0=h0,
                  c0=c0 if cell == "lstm" else None, weights=((spec.weight_size,), dtype), layout=layout,
                  lengths=((sequences[1],), "int32") if lengths else None, training=op != OPS[0] or training)
