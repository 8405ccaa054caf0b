"""A thread's elements of a parameter's arrays: from memory to local arrays and back, for all of its columns at once."""
import functools
from dataclasses import dataclass

from ..device import device_function, f32, f64
from ..device.convert import element
from ..device.groups import make_reader, make_writer
from ..device.vec import advance
from ..host.launch import Argument
from ..host.table import Table
from ._columns import COLUMNS, columns_of, kind_of_columns
from ._tables import POINTERS, address_table, chunk_words

THREADS = 256
ROW = 2 + COLUMNS
"""Words of a parameter in the table: elements, 2 * kind + whether it is aligned, addresses."""


@dataclass(frozen=True)
class Config:
    """Elements a thread."""
    elements: int

    @property
    def chunk(self):
        """Elements of a block."""
        return THREADS * self.elements

    def words(self, dtype):
        """32-bit words of one access."""
        return min(4, self.elements * element(dtype).storage.itemsize // 4)

    def __str__(self):
        return f"{self.elements} elements"


def _chain(steps):
    """A device function that calls all of these with its arguments, in order."""
    @device_function
    def nothing(values, raw, where, first, thread, left):
        return
    for step in steps:
        nothing = _then(nothing, step)
    return nothing


def _then(before, after):
    @device_function
    def both(values, raw, where, first, thread, left):
        before(values, raw, where, first, thread, left)
        after(values, raw, where, first, thread, left)
    return both


def _reads(dtype, j, column, elements, words, offset):
    """Steps that fill values[j * elements:]: loads into the raw buffer from `offset` on, what is made of these, and both one by one."""
    as_pointer, load_one, T = POINTERS[dtype], element(dtype).load, {"float32": f32, "float64": f64}[element(dtype).compute]
    _, _, read, convert = make_reader(dtype, elements, words, constant=False)
    BASE = j * elements

    @device_function
    def fetch(values, raw, where, first, thread, left):
        read(raw, offset, advance(as_pointer(where[column]), first), thread * elements, 1)

    @device_function
    def unpack(values, raw, where, first, thread, left):
        convert(values, BASE, raw, offset)

    @device_function
    def load(values, raw, where, first, thread, left):
        p = advance(as_pointer(where[column]), first)
        for q in range(elements):
            i = thread + q * THREADS
            value = T(0)
            if i < left:
                value = T(load_one(p, i))
            values[BASE + q] = value
    return fetch, unpack, load


def _writes(dtype, j, column, elements, words):
    """Steps that store values[j * elements:]: whole, and one by one."""
    as_pointer, store_one, write = POINTERS[dtype], element(dtype).store, make_writer(dtype, elements, words)
    BASE = j * elements

    @device_function
    def put(values, raw, where, first, thread, left):
        write(advance(as_pointer(where[column]), first), thread * elements, values, BASE)

    @device_function
    def store(values, raw, where, first, thread, left):
        p = advance(as_pointer(where[column]), first)
        for q in range(elements):
            i = thread + q * THREADS
            if i < left:
                store_one(p, i, values[BASE + q])
    return put, store


@functools.cache
def make_moves(config, kind, read, written):
    """Device functions ``step(values, raw, where, first, thread, left)``: (fetch, unpack, load), (put, store), and the words of `raw`.

    `read` are columns, of which number j fills values[j * elements:]; `written` pairs of such a number and the column that gets its values.
    ``where[column]`` is an array's address. fetch and unpack, put: aligned arrays and whole chunks; load, store: any.
    """
    E, reads, offset = config.elements, [], 0
    for j, c in enumerate(read):
        reads.append(_reads(kind.dtypes[c], j, c, E, config.words(kind.dtypes[c]), offset))
        offset += E * element(kind.dtypes[c]).storage.itemsize // 4
    writes = [_writes(kind.dtypes[c], j, c, E, config.words(kind.dtypes[c])) for j, c in written]
    return tuple(_chain(steps) for steps in zip(*reads)), tuple(_chain(steps) for steps in zip(*writes)), offset


def tables_of(problem, config):
    """The kinds of parameters without gaps, the number of their chunks, and the kernel parameters of both tables: a word a chunk, a row of
    `ROW` words a parameter."""
    kinds, rows, names = {}, [], []
    for k in problem.flat:
        columns = columns_of(problem, k)
        number = kinds.setdefault(kind_of_columns(problem, columns), len(kinds))
        aligned = all(t.alignment >= 4 * config.words(t.dtype) for _, t in filter(None, columns))
        rows.append((problem.params[k].size, 2 * number + aligned))
        names.append([c and c[0] for c in columns])
    words = chunk_words([size for size, _ in rows], config.chunk)
    tables = Argument("uint64*", None, spec=Table(words)), Argument("uint64*", None, spec=address_table(rows, names))
    return tuple(kinds), len(words), tables
