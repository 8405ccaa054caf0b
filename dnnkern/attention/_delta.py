"""sum(do * o) of each row, which the gradients of scores need: some lanes a row, 16 bytes each, whatever the rows' strides."""
import functools

from ..device import cuda, i32, i64
from ..device.convert import element
from ..device.fastmath import fma
from ..device.groups import access_words, make_reader
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.vec import advance
from ..device.warp import add, make_reduce
from ..host.launch import Argument, Launch
from ._scores import kind_of

THREADS, TURNS = 128, 4  # of a block, and rows of a thread


def delta_launch(problem):
    """The launch that leaves them in the workspace, in the order of images, heads and rows."""
    p = problem
    chunk = 16 // p.do.itemsize
    words = tuple(access_words(t, chunk, p.strides(t)[:-1]) if p.strides(t)[-1] == 1 and p.dv % chunk == 0 else 0 for t in (p.do, p.o))
    if not all(words):
        chunk, words = 1, (0, 0)
    lanes = min(32, 1 << (ceil_div(p.dv, chunk) - 1).bit_length()) if p.dv else 1
    per_block = THREADS // lanes * TURNS
    tiles, pointer = ceil_div(p.rows, per_block), element(p.dtype).pointer
    arguments = (Argument(pointer, "do"), Argument(pointer, "o"), Argument(f"{p.compute}*", "workspace"), Argument("int32", p.rows),
                 Argument("int32", p.dv), Argument("uint32x3", divisor(tiles)), Argument("uint32x3", divisor(p.heads)),
                 *(Argument("int64x4", p.strides(t)) for t in (p.do, p.o)))
    kernel = delta_kernel(kind_of(p).real, p.dtype, chunk, words, lanes)
    return Launch(kernel, (tiles * p.images * p.heads, 1, 1), (THREADS, 1, 1), arguments)


@functools.cache
def delta_kernel(T, dtype, chunk, words, lanes):
    """`lanes` threads a row; `words` are the 32-bit words of accesses to do and o, by `chunk` elements."""
    (RAW, LENGTH, fetch, unpack), (RAW_O, LENGTH_O, fetch_o, unpack_o) = (make_reader(dtype, chunk, n) for n in words)
    total, ROWS = make_reduce(add, lanes), THREADS // lanes

    @cuda.jit(launch_bounds=(THREADS, 4))
    def sdpa_delta(do, o, delta, rows, elements, tiles, heads_of, do_strides, o_strides):
        place, tile = divide_remainder(i32(cuda.blockIdx.x), tiles)
        image, h = divide_remainder(place, heads_of)
        lane, line = i32(cuda.threadIdx.x % lanes), i32(cuda.threadIdx.x // lanes)
        of_do = advance(do, i64(i64(image) * do_strides[0] + i64(h) * do_strides[1]))
        of_o = advance(o, i64(i64(image) * o_strides[0] + i64(h) * o_strides[1]))
        raw, raw_o = cuda.local.array(LENGTH, RAW), cuda.local.array(LENGTH_O, RAW_O)
        a, b = cuda.local.array(chunk, T), cuda.local.array(chunk, T)
        for turn in range(TURNS):
            i = i32(i32(i32(tile * TURNS) + turn) * ROWS + line)
            sum_ = T(0)
            for column in range(i32(lane * chunk), elements, lanes * chunk):
                there = i32(i < rows)
                at, at_o = i64(i64(i) * do_strides[2] + column * do_strides[3]), i64(i64(i) * o_strides[2] + column * o_strides[3])
                fetch(raw, 0, advance(of_do, at if there else i64(0)), i32(0), there)
                fetch_o(raw_o, 0, advance(of_o, at_o if there else i64(0)), i32(0), there)
                unpack(a, 0, raw, 0)
                unpack_o(b, 0, raw_o, 0)
                for c in range(chunk):
                    sum_ = fma(a[c], b[c], sum_)
            sum_ = total(sum_)
            if lane == 0 and i < rows:
                delta[i64(i64(place) * i64(rows) + i64(i))] = sum_
    return sdpa_delta
