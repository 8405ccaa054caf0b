"""Attention whose scores lie in memory: products of matrices, which are the library's own (`engine.embed`), and passes over rows between
them. What `unfused` is made of, forward and backward.

Heads are as wide as they like, and products are as fast as matrices of their dtype are multiplied. Scores are written once and read once or
twice; keys that a row does not see are multiplied, too. Heads of a group are rows of one matrix. Where the scores of all heads would take
more than `MOST_BYTES`, heads come part by part.
"""
from typing import NamedTuple

from ..device import device_function, i32, i64
from ..device.index import LIMIT, Divisor, ceil_div, divide_remainder, divisor
from ..engine.constants import constants
from ..engine.embed import Place, fastest_seconds
from ..engine.plan import alignment_at, collapsed
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument
from ..host.products import FLOATS
from ..host.tensor import Tensor
from ._flash import refusal as option_refusal

COST = constants("attention/unfused")

THREADS, LOADS = 128, 4  # of a row; elements of a thread that are loaded together
MOST_BYTES = 1 << 28     # of the scores of a part, unless it is one head of k and v
UNIT = 8                 # elements whose multiples rows of scores take: 16 bytes of 16-bit probabilities


class Part(NamedTuple):
    """First image and first head of k and v of a part, and how many."""
    image: int
    head: int
    images: int
    heads: int

    @property
    def matrices(self):
        return self.images * self.heads


class Rows(NamedTuple):
    """How a block finds its row: rows of a matrix of scores, queries of a head, heads of k and v of the part, the first image and the first
    head of q, heads of q; keys, and elements from a row of scores to the next."""
    matrix: Divisor
    queries: Divisor
    heads: Divisor
    image: i32
    head: i32
    all_heads: i32
    keys: i32
    pitch: i64


@device_function
def find_row(line, rows):
    """(image, head, query) of row number `line` of a part's scores."""
    matrix, row = divide_remainder(line, rows.matrix)
    member, i = divide_remainder(row, rows.queries)
    image, group = divide_remainder(matrix, rows.heads)
    return rows.image + image, rows.head + group * (i32(rows.matrix.d) // i32(rows.queries.d)) + member, i


def refusal(problem, names):
    """Why scores are not kept, or None; `names` are the arrays with rows of queries."""
    p = problem
    if p.dtype not in FLOATS:
        return f"dtype {p.dtype}; expected one of {', '.join(FLOATS)}"
    if reason := option_refusal(p):
        return reason
    if p.packed or p.ragged or p.paged != (False, False) or p.seq_len_q is not None or p.seq_len_kv is not None:
        return "sequences that are packed, ragged, in pages or of several lengths; expected whole ones"
    if not p.batch * p.heads * p.rows * p.keys * p.dv:
        return f"{p.batch} sequences of {p.rows} queries, {p.keys} keys and {p.heads} heads: there are no scores"
    for name in names:
        if p.group > 1 and _row_step(p, name) is None:
            return f"{name}: heads of a group whose rows do not follow each other"
    if max(p.batch * p.heads * p.rows, p.batch * p.heads * p.rows * p.dv, matrix_bytes(p, p.compute)) >= LIMIT:
        return f"scores of {matrix_bytes(p, p.compute)} bytes a head of k; expected fewer than 2**31, rows and results too"
    return None


def _row_step(problem, name):
    """Elements from a query to the next one of a head, and from the last one to the next head's first."""
    p = problem
    _, head, row, _ = p.strides(p.array(name))
    return collapsed((p.group, p.rows), (head, row)) if p.group > 1 else row


def pitch_of(problem):
    """Elements from a row of scores to the next."""
    return ceil_div(problem.keys, UNIT) * UNIT


def matrix_bytes(problem, dtype):
    """Bytes of the scores of a head of k and v."""
    return problem.group * problem.rows * pitch_of(problem) * ITEMSIZE[dtype]


def parts_of(problem) -> list:
    """All heads; or those of an image, as many as fit, but one at least."""
    p, each = problem, matrix_bytes(problem, problem.compute)
    if p.batch * p.kv_heads * each <= MOST_BYTES:
        return [Part(0, 0, p.batch, p.kv_heads)]
    heads = max(1, min(p.kv_heads, MOST_BYTES // each))
    return [Part(b, g, 1, min(heads, p.kv_heads - g)) for b in range(p.batch) for g in range(0, p.kv_heads, heads)]


def operand(problem, name, part):
    """The matrices of a part, and where they are: rows of a group's heads of an array of queries; keys of k, v and their gradients."""
    p, t = problem, problem.array(name)
    (image, head, row, column), (*_, elements) = p.strides(t), p.sizes(t)
    rows, first, item = p.keys, part.head, t.itemsize
    if name in ("q", "do", "dq"):
        row, rows, first = _row_step(p, name), p.group * p.rows, part.head * p.group
        head *= p.group
    shape, strides = (part.images, part.heads, rows, elements), (image, head, row, column)
    before = part.image * image * item, first * p.strides(t)[1] * item
    return Tensor(shape, strides, t.dtype, alignment_at(t.alignment, *before)), Place(name, sum(before))


def scores(problem, part, dtype):
    """The tensor of a part's scores."""
    p, pitch = problem, pitch_of(problem)
    rows = p.group * p.rows
    return Tensor((part.images, part.heads, rows, p.keys), (part.heads * rows * pitch, rows * pitch, pitch, 1), dtype)


def rows_argument(problem, part):
    """Kernel parameter `rows`."""
    p = problem
    return Argument(Rows, Rows(divisor(p.group * p.rows), divisor(p.rows), divisor(part.heads), part.image, part.head * p.group,
                               p.heads, p.keys, pitch_of(p)))


def elements_of(problem, part):
    """Scores of a part."""
    return part.matrices * problem.group * problem.rows * problem.keys


def least_products(problem, device, products):
    """What products take at least: (elements, their sums' lengths) of each."""
    return sum(fastest_seconds(problem.dtype, None, elements, k, 0, device) for elements, k in products)


def alike(problem, names):
    """``kind(part)`` of `Plan.repeat`: parts whose products are the same, of arrays with these names."""
    def kind(part):
        return part.images, part.heads, *(operand(problem, name, part)[0].alignment for name in names)
    return kind
