"""Fourier transforms of a line in a thread's registers; two real lines are one complex line.

`make_fft` is for two local arrays, real and imaginary parts, indexed by constants alone. A length is a product of two radices, R1 * R2::

    n = R2*n1 + n2, k = k1 + R1*k2:    X[k] = sum over n2 of w_R2^(n2 k2) * w_L^(n2 k1) * sum over n1 of w_R1^(n1 k1) * x[n]

in place, so X[k] ends at R2*k1 + k2, which is `place(length, k)`; permutations of registers are free. Twiddle factors are constants of the
instructions. The inverse, times the length, is the same function with the two arrays exchanged.

Two real lines a and b are one complex line z = a + ib, with A = (Z[f] + conj Z[L-f]) / 2 and B = (Z[f] - conj Z[L-f]) / 2i. A[0] and A[L/2]
are real and share one complex number, so a real line of L has L/2 of them.
"""
import functools
import math

from ...device import device_function, f32
from ...device.unroll import unrolled

RADICES = {8: (2, 4), 12: (3, 4), 16: (4, 4), 20: (5, 4), 24: (3, 8), 32: (4, 8), 40: (5, 8), 48: (6, 8), 64: (8, 8)}
"""Length -> (R1, R2)."""
LENGTHS = tuple(RADICES)
HALF3, HALF_ROOT3 = -0.5, math.sqrt(0.75)
C51, C52, S51, S52 = (f(2 * math.pi * k / 5) for f in (math.cos, math.sin) for k in (1, 2))
ROOT = math.sqrt(0.5)


@device_function
def fft2(re, im, at, step):
    """Two points, `step` elements apart, in place and in order; as all of these."""
    b = at + step
    r, i = re[at] - re[b], im[at] - im[b]
    re[at], im[at] = re[at] + re[b], im[at] + im[b]
    re[b], im[b] = r, i


@device_function
def fft3(re, im, at, step):
    """Three points."""
    b, c = at + step, at + 2 * step
    pr, pi = re[b] + re[c], im[b] + im[c]
    mr, mi = f32(HALF_ROOT3) * f32(re[b] - re[c]), f32(HALF_ROOT3) * f32(im[b] - im[c])
    tr, ti = re[at] + f32(HALF3) * pr, im[at] + f32(HALF3) * pi
    re[at], im[at] = re[at] + pr, im[at] + pi
    re[b], im[b] = tr + mi, ti - mr
    re[c], im[c] = tr - mi, ti + mr


@device_function
def fft4(re, im, at, step):
    """Four points."""
    b, c, d = at + step, at + 2 * step, at + 3 * step
    pr, pi, mr, mi = re[at] + re[c], im[at] + im[c], re[at] - re[c], im[at] - im[c]
    qr, qi, nr, ni = re[b] + re[d], im[b] + im[d], re[b] - re[d], im[b] - im[d]
    re[at], im[at], re[c], im[c] = pr + qr, pi + qi, pr - qr, pi - qi
    re[b], im[b], re[d], im[d] = mr + ni, mi - nr, mr - ni, mi + nr


@device_function
def fft5(re, im, at, step):
    """Five points."""
    b, c, d, e = at + step, at + 2 * step, at + 3 * step, at + 4 * step
    pr, pi, mr, mi = re[b] + re[e], im[b] + im[e], re[b] - re[e], im[b] - im[e]
    qr, qi, nr, ni = re[c] + re[d], im[c] + im[d], re[c] - re[d], im[c] - im[d]
    ur, ui = re[at] + C51 * pr + C52 * qr, im[at] + C51 * pi + C52 * qi
    vr, vi = re[at] + C52 * pr + C51 * qr, im[at] + C52 * pi + C51 * qi
    sr, si = S51 * mr + S52 * nr, S51 * mi + S52 * ni
    tr, ti = S52 * mr - S51 * nr, S52 * mi - S51 * ni
    re[at], im[at] = re[at] + pr + qr, im[at] + pi + qi
    re[b], im[b], re[e], im[e] = ur + si, ui - sr, ur - si, ui + sr
    re[c], im[c], re[d], im[d] = vr + ti, vi - tr, vr - ti, vi + tr


@device_function
def fft6(re, im, at, step):
    """Six points: 3 by 2, whose twiddle factors come to nothing for n = 3 n1 + 2 n2 and k = 3 k1 + 4 k2 modulo 6."""
    a, b, c, d, e, f = at, at + step, at + 2 * step, at + 3 * step, at + 4 * step, at + 5 * step
    ar, ai, br, bi = re[a] + re[d], im[a] + im[d], re[a] - re[d], im[a] - im[d]
    cr, ci, dr, di = re[c] + re[f], im[c] + im[f], re[c] - re[f], im[c] - im[f]
    er, ei, gr, gi = re[e] + re[b], im[e] + im[b], re[e] - re[b], im[e] - im[b]
    pr, pi, qr, qi = cr + er, ci + ei, dr + gr, di + gi
    mr, mi = f32(HALF_ROOT3) * f32(cr - er), f32(HALF_ROOT3) * f32(ci - ei)
    nr, ni = f32(HALF_ROOT3) * f32(dr - gr), f32(HALF_ROOT3) * f32(di - gi)
    tr, ti, ur, ui = ar + f32(HALF3) * pr, ai + f32(HALF3) * pi, br + f32(HALF3) * qr, bi + f32(HALF3) * qi
    re[a], im[a], re[e], im[e], re[c], im[c] = ar + pr, ai + pi, tr + mi, ti - mr, tr - mi, ti + mr
    re[d], im[d], re[b], im[b], re[f], im[f] = br + qr, bi + qi, ur + ni, ui - nr, ur - ni, ui + nr


@device_function
def fft8(re, im, at, step):
    """Eight points: four of sums, four of differences times their twiddle factors."""
    for n in range(4):
        a, b = at + n * step, at + (n + 4) * step
        r, i = re[a] - re[b], im[a] - im[b]
        re[a], im[a] = re[a] + re[b], im[a] + im[b]
        re[b], im[b] = r, i
    b, c, d = at + 5 * step, at + 6 * step, at + 7 * step
    r, i = re[b], im[b]
    re[b], im[b] = ROOT * (r + i), ROOT * (i - r)
    r, i = re[c], im[c]
    re[c], im[c] = i, -r
    r, i = re[d], im[d]
    re[d], im[d] = ROOT * (i - r), -ROOT * (r + i)
    fft4(re, im, at, step)
    fft4(re, im, at + 4 * step, step)
    # even results are in the first half, odd ones in the second
    a1, a2, a3 = at + step, at + 2 * step, at + 3 * step
    a4, a5, a6 = at + 4 * step, at + 5 * step, at + 6 * step
    r, i = re[a1], im[a1]
    re[a1], im[a1] = re[a4], im[a4]
    re[a4], im[a4] = re[a2], im[a2]
    re[a2], im[a2] = r, i
    r, i = re[a3], im[a3]
    re[a3], im[a3] = re[a5], im[a5]
    re[a5], im[a5] = re[a6], im[a6]
    re[a6], im[a6] = r, i


SMALL = {2: fft2, 3: fft3, 4: fft4, 5: fft5, 6: fft6, 8: fft8}


def place(length, k):
    """Index of element k of a transform in the arrays. Host function."""
    first, second = RADICES[length]
    return second * (k % first) + k // first


@functools.cache
def make_place(length):
    """`place` as a device function of a constant; a quotient by multiplication, which is exact for lengths up to 64."""
    first, second = RADICES[length]
    multiplier = -(-1024 // first)

    @device_function
    def at(k):
        quotient = (k * multiplier) >> 10
        return second * (k - first * quotient) + quotient
    return at


@functools.cache
def make_fft(length):
    """Device function ``fft(re, im)``: a transform in place, X[k] = sum of x[n] exp(-2 pi i n k / length), ending at `place`."""
    R1, R2 = RADICES[length]
    first, second = SMALL[R1], SMALL[R2]

    def twiddle(n2, k1):
        """Multiply element (k1, n2) by its twiddle factor."""
        angle = 2 * math.pi * n2 * k1 / length
        c, s, at = math.cos(angle), math.sin(angle), R2 * k1 + n2

        @device_function
        def multiply(re, im):
            r, i = re[at], im[at]
            re[at], im[at] = c * r + s * i, c * i - s * r
        return multiply

    def chain(parts):
        if len(parts) == 1:
            return parts[0]
        head, tail = chain(parts[:len(parts) // 2]), chain(parts[len(parts) // 2:])

        @device_function
        def both(re, im):
            head(re, im)
            tail(re, im)
        return both
    twiddles = chain([twiddle(n2, k1) for n2 in range(1, R2) for k1 in range(1, R1)])

    @device_function
    def columns(n2, s):
        re, im = s
        first(re, im, n2, R2)

    @device_function
    def rows(k1, s):
        re, im = s
        second(re, im, k1 * R2, 1)
    all_columns, all_rows = unrolled(R2, columns), unrolled(R1, rows)

    @device_function
    def fft(re, im):
        all_columns(0, (re, im))
        twiddles(re, im)
        all_rows(0, (re, im))
    return fft
