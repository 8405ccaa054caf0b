"""Winograd's transforms F(m, r): their matrices from the points they evaluate at, and device functions of one line made from the matrices.

F(m, r) computes m neighbouring results of a filter of r taps from n = m + r - 1 inputs with n multiplications::

    y = A^T [(G g) * (B^T d)]                      in one dimension, * element by element
    Y = A^T [(G g G^T) * (B^T d B)] A              in two

A filter is a polynomial g, the results those of the product with d at n points: G evaluates at the points, A^T and B^T are the transposes
of evaluation and of interpolation. With the points 0, 1, -1 and infinity all entries are 0, 1, -1 and 1/2, so that small integers stay
exact; with 2 and -2 in addition they have thirds, and rounding is about ten times as large. docs/notes/winograd.md derives them.

Values at a and -a share what is even and what is odd in a; that halves the work of a line. The device functions transform one line of a
local array in place, `step` elements apart.
"""
import functools
import math
from dataclasses import dataclass
from fractions import Fraction

from ...device import device_function
from ...device.unroll import unrolled

POINTS = (0, 1, -1, 2, -2)
"""A transform has the first n - 1 of them and infinity, each with its negative."""


def _polynomial(roots):
    """Coefficients, lowest first, of the product over `roots` of (x - root)."""
    found = [1]
    for root in roots:
        found = [low - root * high for low, high in zip([0, *found], [*found, 0])]
    return found


@functools.cache
def matrices(m, r):
    """(B^T, G, A^T) of F(m, r), each a tuple of rows of fractions."""
    n = m + r - 1
    if n not in (4, 6) or min(m, r) < 1:
        raise ValueError(f"F({m}, {r}): {n} inputs; the points come in pairs, so tiles have 4 or 6")
    points = POINTS[:n - 1]
    data, taps, results = [], [], []
    for a in points:
        others = [b for b in points if b != a]
        divisor = math.prod(a - b for b in others)
        sign = 1 if divisor > 0 else -1
        data.append([sign * c for c in (*_polynomial(others), 0)])
        taps.append([Fraction(a**k, abs(divisor)) for k in range(r)])
        results.append([a**k for k in range(m)])
    data.append(_polynomial(points))
    taps.append([int(k == r - 1) for k in range(r)])
    results.append([int(k == m - 1) for k in range(m)])
    return tuple(tuple(tuple(map(Fraction, row)) for row in rows) for rows in (data, taps, zip(*results)))


def _pairs(n):
    """Rows or columns of a and -a."""
    return [(i, i + 1) for i in range(1, n - 1, 2)]


@functools.cache
def _sum(terms):
    """Device function ``sum(v, at, step)``: factor * v[at + k*step], added up over `terms`, pairs (k, factor)."""
    *before, (k, factor) = terms
    start = _sum(tuple(before)) if before else None
    if start is None and factor == 1:
        @device_function
        def total(v, at, step):
            return v[at + k * step]
    elif start is None:
        @device_function
        def total(v, at, step):
            return factor * v[at + k * step]
    elif factor in (1, -1):
        @device_function
        def total(v, at, step):
            x = v[at + k * step]
            return start(v, at, step) + x if factor == 1 else start(v, at, step) - x
    else:
        @device_function
        def total(v, at, step):
            return start(v, at, step) + factor * v[at + k * step]
    return total


def _row(factors):
    """`_sum` over one row of a matrix."""
    terms = tuple((k, float(factor)) for k, factor in enumerate(factors) if factor)
    if len(terms) == 1 or any(abs(factor) != 2 for _, factor in terms):
        return _sum(terms)
    # the compiler makes 2*x an addition, which no multiply-add takes in: twice the sum needs one, the sum of doubles one a term
    half = _sum(tuple((k, factor / 2) for k, factor in terms))

    @device_function
    def twice(v, at, step):
        return 2 * half(v, at, step)
    return twice


def _stores(parts):
    """Device function that computes all `parts`, then stores them: (i, a row's sum), or (i, the even, the odd part of rows i and i + 1)."""
    (i, first, *odd), rest = parts[0], _stores(parts[1:]) if len(parts) > 1 else None
    second = odd[0] if odd else None

    @device_function
    def line(v, at, step):
        x = first(v, at, step)
        if second is not None:
            y = second(v, at, step)
        if rest is not None:
            rest(v, at, step)
        if second is None:
            v[at + i * step] = x
        else:
            v[at + i * step], v[at + (i + 1) * step] = x + y, x - y
    return line


@functools.cache
def _evaluation(rows):
    """Device function ``line(v, at, step)``: a line times B^T or G, whose rows of a and -a differ in the signs of the odd columns."""
    n = len(rows)
    parts = [(0, _row(rows[0]))]
    for i, j in _pairs(n):
        even, odd = ([c if k % 2 == parity else 0 for k, c in enumerate(rows[i])] for parity in (0, 1))
        if rows[j] != tuple(e - o for e, o in zip(even, odd)):
            raise ValueError(f"rows {i} and {j} are no pair: {rows[i]}, {rows[j]}")
        parts.append((i, _row(even), _row(odd)))
    return _stores([*parts, (n - 1, _row(rows[-1]))])


@functools.cache
def _collection(rows):
    """Device function ``line(v, at, step)``: a line times A^T, whose columns of a and -a differ in the signs of the odd rows."""
    n = len(rows[0])
    parts = []
    for k, row in enumerate(rows):
        factors = list(row)
        for i, j in _pairs(n):
            if row[j] != (-1)**k * row[i]:
                raise ValueError(f"columns {i} and {j} are no pair: {row}")
            factors[i + k % 2], factors[j - k % 2] = row[i], 0
        parts.append((k, _row(factors)))
    store = _stores(parts)

    @device_function
    def line(v, at, step):
        for i in range(1, n - 1, 2):  # the sum of what belongs to a and -a, and their difference
            x, y = v[at + i * step], v[at + (i + 1) * step]
            v[at + i * step], v[at + (i + 1) * step] = x + y, x - y
        store(v, at, step)
    return line


@dataclass(frozen=True)
class Transform:
    """F(m x m, r x r): results and taps along each direction, and the device functions of one line: B^T, G, A^T."""
    m: int
    r: int
    data: object
    filter: object
    result: object

    @property
    def n(self):
        """Inputs along each direction."""
        return self.m + self.r - 1

    def __str__(self):
        return f"F({self.m}x{self.m},{self.r}x{self.r})"


@functools.cache
def transform(m, r) -> Transform:
    """F(m x m, r x r)."""
    data, taps, results = matrices(m, r)
    return Transform(m, r, _evaluation(data), _evaluation(taps), _collection(results))


@functools.cache
def make_square(line, size, columns, rows):
    """Device function ``square(v)``: `line` down the first `columns` columns of the matrix v[i*size + j], then along its first `rows`
    rows."""
    @device_function
    def column(j, v):
        line(v, j, size)

    @device_function
    def row(i, v):
        line(v, i * size, 1)
    all_columns, all_rows = unrolled(columns, column), unrolled(rows, row)

    @device_function
    def square(v):
        all_columns(0, v)
        all_rows(0, v)
    return square
