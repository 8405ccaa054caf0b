"""What an epilogue reads beside its accumulators, a group of neighbouring columns by one access each, before the accumulators are there.

An epilogue of one element loads its operands element by element, when it has the sum. A kernel whose threads have groups of neighbours and
wait for memory anyway is faster if all of that is in flight together: `make_ahead` loads the groups into words, and `make_epilogue_ahead`
takes their values from there.
"""
import functools

from ..device import device_function
from ..device.convert import element
from ..device.epilogue import make_epilogue
from ..device.numeric import bits_float
from ..device.program import positions_of
from ..device.vec import advance, as_u32, load2_if_into, load4_if_into

GROUP = 4  # columns
_WORDS = {"float32": 4, "float16": 2, "bfloat16": 2}


def loaded_ahead(spec, operands, columns):
    """Of a result's c, bias and program's operands those that `make_ahead` can load: "c", "bias" and numbers. Host function.

    `operands` has (tensor, element strides along rows, columns and what else moves its pointer) by these names, as `staged_addend` takes
    them.
    """
    if spec.compute != "float32" or spec.is_dual or columns % GROUP:
        return ()
    names = [name for name, some in (("c", spec.c), ("bias", spec.bias == "column")) if some]
    if spec.program is not None:
        names += [k for k, (_, access) in enumerate(spec.program.operands[:spec.program.inputs]) if access in ("matrix", "column")]
    return tuple(name for name in names if _in_groups(*operands[name]))


def _in_groups(tensor, strides):
    """Whether all groups of columns are one access."""
    row, column, *others = strides
    return (tensor.dtype in _WORDS and column == 1 and tensor.alignment % (GROUP * tensor.itemsize) == 0
            and all(stride % GROUP == 0 for stride in (row, *others)))


@functools.cache
def make_ahead(spec, names):
    """(words of a local array, device function ``read(words, row, column, e, ok)``: load the groups of these operands of `loaded_ahead`
    from a column on, or nothing)."""
    words, read, _ = _make_operands(spec, names)
    return max(words, 1), read or device_function(lambda words, row, column, e, ok: None)


@functools.cache
def _make_operands(spec, names):
    """(words, device functions ``read``, as above, and ``values(words, j)``: the tuple of the values of column number j of the groups, a
    constant)."""
    words, read, values = 0, None, None
    for name in names:
        dtype = spec.c if name == "c" else spec.bias_dtype if name == "bias" else spec.program.operands[name][0]
        read, values = _with_operand(read, values, _make_source(spec, name), dtype, words)
        words += _WORDS[dtype]
    return words, read, values


def _make_source(spec, name):
    """Device function ``source(e, row)``: where the operand's elements of a row begin."""
    if name == "c":
        return device_function(lambda e, row: advance(e.c, row * e.c_row_stride))
    if name == "bias":
        return device_function(lambda e, row: e.bias)
    AT = positions_of(spec.program)[name]
    if spec.program.operands[name][1] == "column":
        return device_function(lambda e, row: e.extras[AT])
    S = AT + 1
    return device_function(lambda e, row: advance(e.extras[AT], row * e.extras[S]))


def _with_operand(read_before, values_before, source, dtype, AT):
    """Both functions with those of an operand more, whose words begin with number `AT`."""
    WIDE, unpack = dtype == "float32", element(dtype).unpack

    @device_function
    def read_one(words, row, column, e, ok):
        p = as_u32(advance(source(e, row), column))
        if WIDE:
            load4_if_into(words, AT, p, 0, ok)
        else:
            load2_if_into(words, AT, p, 0, ok)

    @device_function
    def value(words, j):
        if WIDE:
            return bits_float(words[AT + j])
        low, high = unpack(words[AT + (j >> 1)])
        return high if j & 1 else low
    if read_before is None:
        return read_one, device_function(lambda words, j: (value(words, j),))

    @device_function
    def read(words, row, column, e, ok):
        read_before(words, row, column, e, ok)
        read_one(words, row, column, e, ok)
    return read, device_function(lambda words, j: values_before(words, j) + (value(words, j),))


@functools.cache
def make_epilogue_ahead(spec, result, names):
    """Device function ``epilogue(acc, k, m, n, (e, words))``, as `stores.make_epilogue_of`'s, of number k of a group of accumulators; the
    operands `names` were loaded to `words`."""
    epilogue, values = make_epilogue(spec, result, names), _make_operands(spec, names)[2]
    if not names:
        if result == "packed":
            return device_function(lambda acc, k, m, n, s: epilogue(acc[k], acc[k + 1], m, n, s[0]))
        return device_function(lambda acc, k, m, n, s: epilogue(acc[k], m, n, s[0]))
    if result == "packed":
        return device_function(lambda acc, k, m, n, s: epilogue(acc[k], acc[k + 1], m, n, s[0], values(s[1], k), values(s[1], k + 1)))
    return device_function(lambda acc, k, m, n, s: epilogue(acc[k], m, n, s[0], values(s[1], k)))
