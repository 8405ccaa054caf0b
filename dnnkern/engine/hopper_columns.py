"""Operands of an epilogue with an element for each column, a bias say, loaded two at a time beside a fragment of wgmma; those with one
element, a scale, loaded once for a box of results; and side outputs, stored two columns at a time.

A thread has two neighbours of each 8 columns, in all its rows: of 16-bit elements that is one word, at an address a constant away from the
first, where a tile lies inside the matrix.
"""
import functools

from ..device import device_function, u32
from ..device.convert import element
from ..device.numeric import bits_float, float_bits
from ..device.program import positions_of
from ..device.program_operands import handed_over
from ..device.vec import advance, as_u32, load2_into
from .hopper import ROW

MOST_WORDS = 32  # of a thread, for a box of results
_WORDS = "float16", "bfloat16", "float32"


def paired_columns(spec, operands, wide=False):
    """The operands that can be loaded or stored so: "bias", numbers of a program's, side outputs last. Host function.

    `operands` as `hopper_stores.staged_addend` takes them, with the bias; results have 16 or 8 bits, or `wide` are float32, and an even
    number of columns.
    """
    program, per = spec.program, ROW // (8 * element(spec.output).storage.itemsize)
    names = ["bias"] if spec.bias == "column" else []
    if program is not None:
        names += [k for k, (_, access) in enumerate(program.operands[:program.inputs]) if access in ("column", "scalar")]
    if spec.compute != "float32" or per < 8 and not (wide and spec.output == "float32"):
        return ()
    found, words = [], 0
    for name in names:
        if _is_scalar(spec, name):
            more, fits = 1, operands[name][0].dtype in _WORDS
        else:
            more, fits = per * operands[name][0].itemsize // 2, in_pairs(*operands[name])
        if words + more <= MOST_WORDS and fits:
            found.append(name)
            words += more
    if program is not None and program.accumulators and per >= 8:
        types = program.types(spec.compute)
        found += [k for k, (value, dtype, _) in enumerate(program.stores, program.inputs)
                  if dtype in _WORDS and types[value] == "float32" and in_pairs(*operands[k])]
    return tuple(found)


def _is_scalar(spec, name):
    return name != "bias" and spec.program.operands[name][1] == "scalar"


def in_columns(spec, pairs):
    """Of `paired_columns` what is loaded."""
    return handed_over(spec.program, pairs)


def span_of(spec, columns):
    """Bytes of so many columns of results, in whole boxes of 64."""
    return -(-columns // 64) * 64 * element(spec.output).storage.itemsize


def in_pairs(tensor, strides):
    """Whether every second column of an array begins a multiple of two elements after address 0, and the next one follows it."""
    _, column, *others = strides
    return (tensor.dtype in _WORDS and column == 1 and tensor.alignment % (2 * tensor.itemsize) == 0
            and all(s % 2 == 0 for s in others))


def columns_ahead(tile, spec, pairs, columns=None):
    """Whether a thread has the registers to load the pairs of all columns of a tile, or of so many, while the tile's last products are
    computed."""
    words = make_columns(spec, pairs, span_of(spec, columns or tile.bn))[0]
    fits = words <= 64 and tile.sums + words + 40 <= tile.registers[1]
    return bool(in_columns(spec, pairs)) and not (spec.program and spec.program.stores) and fits


@functools.cache
def make_columns_ahead(tile, spec, pairs, epilogue_params):
    """What `make_product` takes as `ahead` to load them; ``epilogue_params(tile, out)`` gives the epilogue's parameters and n."""
    words, read, _ = make_columns(spec, pairs, span_of(spec, tile.bn))

    @device_function
    def load(columns, tile, thread, out):
        e, n = epilogue_params(tile, out)
        read(columns, tile.column, tile.column + (thread & 3) * 2, n, e)
    return words, load


@functools.cache
def make_columns(spec, pairs, width=ROW):
    """(words, device functions `read` and `values`): operands that have an element for each column, `paired_columns`, two at a time.

    ``read(words, start, column, n, e)`` loads what a thread needs for `width` bytes of results, of columns `start` on, whose own
    first is `column`, into the first `words` of a local array; ``values(words, j)`` gives the values of its pair number j: those of
    the first columns, and those of the second, each a tuple with a value for each operand.
    """
    return make_column_words([(_pointer(spec, name), spec.bias_dtype if name == "bias" else spec.program.operands[name][0],
                               _is_scalar(spec, name)) for name in in_columns(spec, pairs)],
                             width // (8 * element(spec.output).storage.itemsize))


def make_column_words(arrays, pairs):
    """The same of so many pairs, of arrays that are (device function pointer(e), dtype, whether they have one element). Host function."""
    count, read, values = 0, None, None
    for pointer, dtype, is_scalar in arrays:
        if is_scalar:
            read, values = _with_number(read, values, pointer, element(dtype).widen, count)
            count += 1
            continue
        per = 2 // element(dtype).per_word
        read, values = _with_pairs(read, values, pointer, element(dtype).unpack, count, pairs, per)
        count += pairs * per
    return count, read, values


def _pointer(spec, name):
    """Device function: the pointer to the bias, or to the program's operand of a number, among an epilogue's parameters."""
    if name == "bias":
        return device_function(lambda e: e.bias)
    AT = positions_of(spec.program)[name]
    return device_function(lambda e: e.extras[AT])


@device_function
def _load_pair(words, k, p, i):
    words[k] = as_u32(p)[i >> 1]


@device_function
def _load_singly(words, k, p, i):
    words[k] = u32(p[i]) | u32(p[i + 1]) << 16


@device_function
def _load_two(words, k, p, i):
    load2_into(words, k, as_u32(p), i)


@device_function
def _load_two_singly(words, k, p, i):
    p = as_u32(p)
    words[k] = p[i]
    words[k + 1] = p[i + 1]


def _with_number(read_before, values_before, pointer, widen, AT):
    """`make_columns`' functions with an operand of one element more, in word `AT`."""
    @device_function
    def read_number(words, start, column, n, e):
        words[AT] = float_bits(widen(pointer(e)[0]))

    @device_function
    def pair(words, j):
        value = bits_float(words[AT])
        return value, value
    return _with(read_before, values_before, read_number, pair)


def _with_pairs(read_before, values_before, pointer, unpack, AT, PAIRS, WORDS):
    """`make_columns`' functions with one operand more: `WORDS` words for each of `PAIRS` pairs, from word `AT` on."""
    load, load_singly = (_load_pair, _load_singly) if WORDS == 1 else (_load_two, _load_two_singly)

    @device_function
    def read_operand(words, start, column, n, e):
        p = pointer(e)
        if start + 8 * PAIRS <= n:
            first = advance(p, column)
            for j in range(PAIRS):
                load(words, AT + j * WORDS, first, 8 * j)
        else:  # NOTE: with the same loads the compiler would make one of both branches, and compute each address
            for j in range(PAIRS):
                load_singly(words, AT + j * WORDS, p, min(column + 8 * j, n - 2))

    @device_function
    def pair(words, j):
        if WORDS == 1:
            return unpack(words[AT + j])
        return unpack(words[AT + 2 * j]), unpack(words[AT + 2 * j + 1])
    return _with(read_before, values_before, read_operand, pair)


def _with(read_before, values_before, read_operand, pair):
    """Both functions with those of an operand after them."""
    if read_before is None:
        @device_function
        def values(words, j):
            low, high = pair(words, j)
            return (low,), (high,)
        return read_operand, values

    @device_function
    def read(words, start, column, n, e):
        read_before(words, start, column, n, e)
        read_operand(words, start, column, n, e)

    @device_function
    def values_of_all(words, j):
        lows, highs = values_before(words, j)
        low, high = pair(words, j)
        return lows + (low,), highs + (high,)
    return read, values_of_all
