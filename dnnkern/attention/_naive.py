"""What the naive algorithms of attention share: a thread computes `CHUNK` elements of a row of the result, from products of whole rows."""
import functools
from typing import NamedTuple

from ..device import device_function, i32, i64, u32
from ..device.convert import element
from ..device.fastmath import exp
from ..device.index import ceil_div, divided
from ._parameters import Strides
from ._scores import NEG_INF, make_terms

THREADS, CHUNK = 128, 8


def chunks_of(elements):
    """Threads per row of so many elements."""
    return max(1, ceil_div(elements, CHUNK))


class Vector(NamedTuple):
    """A row in memory: where its elements begin, and the stride between them."""
    data: object
    at: i64
    step: i64


@functools.cache
def make_dot(dtype, real, other=None):
    """Device function ``dot(a, b, n)``: the sum of n products of two `Vector`s; b is of `other`, or of a's dtype."""
    load, load_b, T = element(dtype).load, element(other or dtype).load, real

    @device_function
    def dot(a, b, n):
        acc = T(0)
        for c in range(n):
            acc = T(acc + T(load(a.data, a.at + c * a.step)) * T(load_b(b.data, b.at + c * b.step)))
        return acc
    return dot


class Element(NamedTuple):
    """An element in memory."""
    data: object
    at: i64


class Pair(NamedTuple):
    """A query and a key: their head of all sequences', their indices in their sequence, and the key's distance after the query."""
    head: i32
    i: i32
    j: i32
    distance: i32


class Scoring(NamedTuple):
    """What products become scores with: the scale, the cap, the head's ALiBi slope."""
    scale: object
    softcap: object
    slope: object


class Dropout(NamedTuple):
    """The seed of the random words, the threshold that they are compared with, the factor of what is kept; a mask instead, and its
    strides."""
    seed: object
    threshold: u32
    factor: object
    mask: object
    strides: Strides


@functools.cache
def make_gradients(kind):
    """Device function ``gradients(pair, q, k, do, v, bias, mask, lse, delta, sizes, scoring, dropout)`` -> (the derivative of the loss by
    the product of q and k but for `scale`, dS, the derivative by the score, and the probability after dropout) of a `Pair`. q, k, do and v
    are `Vector`s, bias and mask `Element`s."""
    terms, T, KEEP = make_terms(kind), kind.real, bool(kind.dropout_mask)
    dot, load_keep = make_dot(kind.dtype, T), element(kind.dropout_mask or kind.dtype).load

    @device_function
    def gradients(pair, q, k, do, v, bias, mask, lse, delta, sizes, scoring, dropout):
        product = dot(q, k, sizes.d)
        x, derivative = terms.score_and_derivative(product, pair.distance, scoring.slope, bias.data, bias.at, scoring.scale,
                                                   scoring.softcap)
        p, ds, kept = T(0), T(0), T(0)
        if lse != T(NEG_INF) and terms.permits(mask.data, mask.at):
            p = exp(T(x - lse))
            kept = terms.kept(p, dropout.seed, pair.head, pair.i, pair.j, dropout.threshold, dropout.factor)
            dp = terms.kept(dot(do, v, sizes.dv), dropout.seed, pair.head, pair.i, pair.j, dropout.threshold, dropout.factor)
            if KEEP:
                strides, (b, h) = dropout.strides, divided(pair.head, sizes.heads)
                at = b * strides.batch + h * strides.head + pair.i * strides.row + pair.j * strides.column
                share = T(dropout.factor * T(load_keep(dropout.mask, at)))
                kept, dp = T(kept * share), T(dp * share)
            ds = T(p * T(dp - delta))
        return terms.gradient(ds, derivative, bias.data, bias.at), ds, kept
    return gradients
