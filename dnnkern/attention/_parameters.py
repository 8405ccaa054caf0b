"""What the kernels of attention are compiled for, and the parameters that they have in common."""
from dataclasses import dataclass
from typing import NamedTuple

from ..device import f32, f64, i64
from ..device.convert import element
from ..host import seeds
from ..host.launch import Argument
from ._checks import SCALES, broadcast_strides
from ._score_mod import score_mod_argument


class Strides(NamedTuple):
    """Of an array of rows, such as q[batch, head, row, column]; of a bias or a mask rows are queries and columns are keys."""
    batch: i64
    head: i64
    row: i64
    column: i64


class RowStrides(NamedTuple):
    """Of lse[batch, head, row]."""
    batch: i64
    head: i64
    row: i64


class Sequences(NamedTuple):
    """Lengths, or offsets where sequences are packed, of queries and of keys, and the strides of those arrays: what kernels make of
    `sequence_arguments`."""
    rows: object
    keys: object
    row_step: i64
    key_step: i64


@dataclass(frozen=True)
class Kind:
    """What kernels are compiled for, of the options.

    Attributes
    ----------
    dtype : str
        Of q, k and v.
    bias, sink : str
        dtypes; "" for none.
    limits_rows, limits_keys : bool
        Whether there are lengths, packed offsets, of the queries and of the keys.
    packed, bottom, alibi, softcap, dropout, mask : bool
        `bottom`: rows are aligned to the last key, not to the first.
    seed_array, offset_array : bool
        Whether dropout's seed and offset are read from memory.
    ragged : str
        dtype of the offsets of ragged arrays; "" for none.
    paged, block_mask : bool
        Whether keys or values lie in pages; whether blocks of queries and keys are masked.
    dropout_mask : str
        dtype of what probabilities are multiplied by; "" for none.
    score_mod, score_mod_bprop : Program or None
    indices : tuple
        Of their operands (row, column), the strides of small indices, None of others.
    documents : int
        Where the members of a mask by documents begin after the operands; -1 without.
    """
    dtype: str
    bias: str = ""
    sink: str = ""
    limits_rows: bool = False
    limits_keys: bool = False
    packed: bool = False
    bottom: bool = False
    alibi: bool = False
    softcap: bool = False
    dropout: bool = False
    mask: bool = False
    seed_array: bool = False
    offset_array: bool = False
    ragged: str = ""
    paged: bool = False
    block_mask: bool = False
    dropout_mask: str = ""
    score_mod: object = None
    score_mod_bprop: object = None
    indices: tuple = ()
    documents: int = -1

    @property
    def bends(self):
        """Whether the derivative of a score takes the product that it was made of."""
        return self.softcap or self.score_mod_bprop is not None

    @property
    def accesses(self):
        """By what the operands of a score_mod are addressed."""
        return [access for program in (self.score_mod, self.score_mod_bprop) if program is not None for _, access in program.operands]

    @property
    def compute(self):
        return element(self.dtype).compute

    @property
    def real(self):
        """Type to compute with."""
        return f64 if self.compute == "float64" else f32


def kind_of(problem) -> Kind:
    """The kind of a problem."""
    p = problem
    return Kind(p.dtype, p.bias.dtype if p.bias is not None else "", p.sink.dtype if p.sink is not None else "",
                p.packed or p.seq_len_q is not None, p.packed or p.seq_len_kv is not None, p.packed, p.align == "bottom_right", p.alibi,
                p.softcap > 0, p.dropout > 0, p.mask is not None, *seeds.reads(p), p.ragged, p.paged != (False, False),
                getattr(p, "block_mask", None) is not None, p.dropout_mask.dtype if p.dropout_mask is not None else "",
                *p.programs, p.small_indices, len(score_mod_argument(p).value) if p.documents else -1)


def sequence_arguments(problem):
    """Pointers to lengths, or to offsets where sequences are packed, and their steps: `of_rows`, `of_keys`, `row_step`, `key_step`."""
    names = ("cu_seqlens_q", "cu_seqlens_kv") if problem.packed else ("seq_len_q", "seq_len_kv")
    steps = (t.strides[0] if (t := getattr(problem, name)) is not None else 0 for name in names)
    return (*(Argument("int32*", name) for name in names), *(Argument("int64", s) for s in steps))


def number_arguments(problem):
    """Kernel parameters `bounds`, `scale`, `softcap`, `seed`, `offset`, `threshold`, `factor`."""
    p = problem
    return (Argument("int32x2", p.bounds), Argument(p.compute, softmax_scale(p)), Argument(p.compute, p.softcap), *seeds.arguments(p),
            Argument("uint32", p.threshold), Argument(p.compute, p.factor))


def scaled(problem):
    """Which of q, k and v have a factor."""
    return tuple(getattr(problem, name) is not None for name in SCALES)


def scale_arguments():
    """Kernel parameters `scale_q`, `scale_k`, `scale_v`, null where there is none."""
    return tuple(Argument("float32*", name) for name in SCALES)


def softmax_scale(problem):
    """What products are multiplied by: the scale, with a cap as a multiple of it."""
    return problem.scale / problem.softcap if problem.softcap else problem.scale


def added_arguments(problem, blocks_at=None):
    """Kernel parameters `bias`, with a `score_mod` its operands, `bias_strides`, `mask`, `mask_strides`, `sink`, `sink_step`; `blocks_at`
    as of `score_mod_argument`."""
    p, pointer = problem, lambda t: element(t.dtype if t is not None else problem.dtype).pointer
    bias = Argument(pointer(p.bias), "bias") if p.score_mod is None else score_mod_argument(p, blocks_at)
    return (bias, Argument(Strides, broadcast_strides(p.bias)), Argument("uint8*", "mask"),
            Argument(Strides, broadcast_strides(p.mask)), Argument(pointer(p.sink), "sink"),
            Argument("int64", p.sink.strides[0] if p.sink is not None else 0))


def block_mask_arguments(problem):
    """Kernel parameters `block_mask` and `block_strides`."""
    t = problem.block_mask
    return Argument("uint8*", "block_mask"), Argument(Strides, (0, 0, 0, 0) if t is None else t.strides)


def dropout_mask_arguments(problem):
    """Kernel parameters `keep` and `keep_strides`."""
    t = problem.dropout_mask
    return Argument(element((t or problem.q).dtype).pointer, "dropout_mask"), Argument(Strides, broadcast_strides(t))
