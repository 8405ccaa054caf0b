"""The two tables through which a kernel finds hundreds of arrays: the chunk of each block, and where the arrays are."""
import numpy as np

from ..device import device_function, i32, u32
from ..device.vec import as_f32, as_f64, as_u16
from ..host.table import Table

MOST_CHUNKS = 2 ** 31 - 1
POINTERS = {"float32": as_f32, "float64": as_f64, "float16": as_u16, "bfloat16": as_u16}
"""What makes a pointer of an address, by dtype."""


@device_function
def unpack(word):
    """(lower half as int32, upper half as uint32) of a word of a table."""
    return i32(u32(word)), u32(word >> 32)


def chunk_words(sizes, chunk):
    """One word for each chunk of arrays of these sizes: which array, and in the upper half which chunk of it."""
    counts = -(-np.array(sizes, np.int64) // chunk)
    which = np.repeat(np.arange(len(counts)), counts)
    return (which + (np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts) << 32)).astype(np.uint64)


def address_table(rows, columns):
    """The `Table` of rows of constant words, a list each, followed by the addresses of a list of operands' names, or None."""
    width = len(rows[0]) + len(columns[0])
    words, positions, names = np.zeros((len(rows), width), np.uint64), [], []
    for i, (row, some) in enumerate(zip(rows, columns)):
        words[i, :len(row)] = row
        for c, name in enumerate(some):
            if name is not None:
                positions.append(i * width + len(row) + c)
                names.append(name)
    return Table(words.reshape(-1), np.array(positions, np.int64), tuple(names))
