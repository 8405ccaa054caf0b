"""Matrices of 8 x 8 halves between shared memory and the registers of a warp: what ldmatrix and stmatrix have in common."""
import numpy as np

from . import engine
from .collective import registers, threads_of, together
from .errors import Misuse

ROW = 16  # bytes
_WORD, _HALF = np.dtype(np.uint32), np.dtype(np.uint16)


def _table(place, transposed):
    """Rows and columns [lane, half] from a function (lane, half, transposed) -> (row, column)."""
    table = np.array([[place(lane, half, transposed) for half in range(2)] for lane in range(32)])
    return table[..., 0], table[..., 1]


def _elements(what, addresses, rows, columns):
    """Shared memory, its halves, and the numbers among them of the elements [matrix, lane, half] of matrices with rows at `addresses`."""
    memory = engine.CURRENT.block.shared
    first = np.array(addresses, np.int64) - memory.base
    bad = (np.array(addresses) % ROW != 0) | (first < 0) | (first > memory.used - ROW)
    if bad.any():
        lane = int(bad.argmax())
        raise Misuse(f"{what}: the row of {ROW} bytes at shared address {addresses[lane]:#x}, of lane {lane}, is misaligned or outside the "
                     f"block's {memory.base:#x} .. {memory.base + memory.used:#x}")
    return memory, memory.raw[:memory.size & ~1].view(_HALF), np.ascontiguousarray((first.reshape(-1, 8)[:, rows] >> 1) + columns)


def _words(memory, elements):
    """Log entries of the words that hold `elements`."""
    return (elements >> 1) + memory.code(_WORD)


def load(what, count, place, transposed):
    """Twin of an ldmatrix. A lane has read the words that its elements are in."""
    table = _table(place, transposed)

    def work(values):
        memory, halves, elements = _elements(what, [values[lane][1] for lane in range(8 * count)], *table)
        words = halves[elements].view(_WORD)[..., 0]
        entries = _words(memory, elements if transposed else elements[..., :1])
        for lane, thread in enumerate(threads_of(values)):
            values[lane][0][:] = words[:, lane]
            thread.reads.extend(entries[:, lane].ravel().tolist())
        return True

    def ldmatrix(fragment, i, address):
        together(what, (registers(what, fragment, i, count, _WORD), int(address)), work)
    return ldmatrix


def store(what, count, place, transposed):
    """Twin of an stmatrix. A lane has written its own elements."""
    table = _table(place, transposed)

    def work(values):
        addresses = [values[lane][0] for lane in range(8 * count)]
        memory, halves, elements = _elements(what, addresses, *table)
        if len(set(addresses)) < len(addresses):
            twice = next(a for a in addresses if addresses.count(a) > 1)
            raise Misuse(f"{what}: lanes {[lane for lane, a in enumerate(addresses) if a == twice]} give the same row, at {twice:#x}")
        words = np.array([values[lane][1] for lane in range(32)], _WORD).T  # [matrix, lane]
        halves[elements] = np.ascontiguousarray(words)[..., None].view(_HALF)
        entries = elements + memory.code(_HALF) if transposed else _words(memory, elements[..., :1])
        for lane, thread in enumerate(threads_of(values)):
            thread.writes.extend(entries[:, lane].ravel().tolist())
        return True

    def stmatrix(address, *words):
        if len(words) != count:
            raise TypeError(f"{what} takes {count} words, not {len(words)}")
        together(what, (int(address), [int(w) & 0xFFFFFFFF for w in words]), work)
    return stmatrix
