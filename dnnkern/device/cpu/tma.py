"""Forms of bulk copies, which are done when they are issued.

A box is copied by rows, the runs of bytes along the innermost dimension, and a row by pieces of 16 bytes, which a swizzle moves. Where a
row lies follows from its number, as digits of its place along the other dimensions: a tile's rows begin at its coordinates, the pixels of
an im2col map at the number of the first one in the box of pixels.
"""
import contextlib

from . import mbarrier, runtime
from .arithmetic import narrow_bfloat16, narrow_half, widen_half
from .forms import FLOAT, I1, I8, I16, I32, I64, POINTER, VOID, form
from .maps import MAP

_VECTOR = 16


class _Box:
    """A map and where in its array a box begins, in a function that is being written."""

    def __init__(self, body, record, inner, origins, first):
        self.body, self.record = body, record
        self.inner, self.origins, self.first = inner, origins, first  # first: number of the first row's digits

    @classmethod
    def of(cls, body, record, coordinates, offsets):
        """A tile at coordinates, or pixels from coordinates on that are read at offsets."""
        box = cls(body, record, body.number(coordinates[0]), [body.number(c) for c in coordinates[1:]], body.number(I32(0)))
        span = 1
        for d, offset in enumerate(offsets, 1):
            lower = box.field("lower", d)
            box.first = box.first + (box.origins[d - 1] - lower) // box.field("every", d) * span
            span = box.field("counts", d) * span
            box.origins[d - 1] = lower + offset
        return box

    def field(self, name, d=0):
        kind = {"i32": I32, "i64": I64, "ptr": POINTER}[MAP.type[name]]
        found = self.body.load_as(self.body.at(self.record, MAP.offset[name] + d * (4 if kind == I32 else 8)), kind)
        return found if kind == POINTER else self.body.number(found)

    def row(self, number):
        """(whether row `number` of the box is in the array, its address if it began at the array's first column)."""
        at, inside, address = number + self.first, self.body.number(I1(1)), self.body.number(self.body.ptrtoint(self.field("base"), I64))
        for d, origin in enumerate(self.origins, 1):
            digit = at
            if d < len(self.origins):
                count = self.field("counts", d)
                digit, at = at % count, at // count
            place = (origin + digit * self.field("every", d)).signed_wide()
            inside = inside & (place < self.field("extents", d))  # as unsigned numbers negative ones are large
            address = address + place * self.field("strides", d)
        return inside, address

    @contextlib.contextmanager
    def pieces(self, shared):
        """What is written in it runs for every piece: (pointer in shared memory, in the array, how many of its bytes lie there)."""
        body, window = self.body, (1 << runtime.WINDOW) - 1
        shared = body.number(shared)
        block, begin = body.remote((shared & ~window).value), (shared & window) >> 4
        itemsize, width, mask = self.field("itemsize"), self.field("width"), self.field("mask")
        start, end = (self.inner * itemsize).signed_wide(), self.field("extents") * itemsize.wide()
        with body.loop(self.field("rows")) as number:
            inside, address = self.row(number)
            with body.loop(width >> 4) as k:
                column = start + k.wide() * _VECTOR
                left = (column >= end).choose(end * 0, end - column)
                left = (left > _VECTOR).choose(left * 0 + _VECTOR, left)
                left = inside.choose(left, 0)
                place = begin + number * (width >> 4) + k
                place = (place ^ ((place >> 3) & mask)).wide() << 4
                yield body.at(block, place.value), body.pointer((address + column).value), left


def _copy(body, to, source, nbytes, whole=None):
    """A piece: all of it by one access; `whole`: what the rest of the target becomes."""
    with body.if_else((nbytes == _VECTOR).value) as (all_of_it, part):
        with all_of_it:
            for k in (0, 8):
                body.store(body.load(body.at(source, k), typ=I64, align=8), body.at(to, k), align=8)
        with part:
            if whole is not None:
                body.check(to, I64(_VECTOR), True)
                body.invoke("llvm.memset.p0.i64", VOID, to, I8(whole), I64(_VECTOR), I1(0))
            body.copy(to, source, nbytes.value)


def _function(body, what, rank, offsets, write):
    """Name of the function ``what(map, shared address, coordinates .., offsets ..)``."""
    def make(body, record, shared, *places):
        box = _Box.of(body, record, places[:rank], places[rank:])
        with box.pieces(shared) as piece:
            write(body, box, *piece)
    return body.helper(f"cpu.tma.{what}.{rank}.{offsets}", VOID, (POINTER, I32, *[I32] * (rank + offsets)), make)


def _loaded(body, box, to, source, nbytes):
    _copy(body, to, source, nbytes, 0)


def _stored(body, box, source, to, nbytes):
    _copy(body, to, source, nbytes)


def _added(body, box, source, to, nbytes):
    added = box.field("added")
    for code, add in _ADDITIONS.items():
        with body.if_then((added == code).value):
            add(body, source, to, nbytes)


def _each(body, source, to, nbytes, kind, add):
    """Add elements one by one: blocks on other threads of the system may do so, too."""
    size = {FLOAT: 4, I32: 4, I64: 8, I16: 2}[kind]
    with body.loop(nbytes // size) as k:
        add(body.at(to, k.value, kind), body.load_as(body.at(source, k.value, kind), kind))


def _atomically(kind, operation):
    def add(body, source, to, nbytes):
        _each(body, source, to, nbytes, kind, lambda at, value: body.atomic_rmw(operation, at, value, "acq_rel"))
    return add


def _exchanging(widen, narrow):
    """Of floats of 16 bits, which no processor adds to memory at once."""
    def add(body, source, to, nbytes):
        def one(at, bits):
            before = body.load_as(at, I16)
            start, again, after = body.block, body.append_basic_block("again"), body.append_basic_block("after")
            body.branch(again)
            body.position_at_end(again)
            seen = body.phi(I16)
            seen.add_incoming(before, start)
            found = body.cmpxchg(at, seen, narrow(body, body.fadd(widen(body, seen), widen(body, bits))), "acq_rel", "acquire")
            seen.add_incoming(body.extract_value(found, 0), body.block)
            body.cbranch(body.extract_value(found, 1), after, again)
            body.position_at_end(after)
        _each(body, source, to, nbytes, I16, one)
    return add


_ADDITIONS = {1: _atomically(FLOAT, "fadd"), 2: _atomically(I32, "add"), 3: _atomically(I64, "add"),
              4: _exchanging(lambda body, bits: body.bitcast(body.shl(body.zext(bits, I32), I32(16)), FLOAT),
                             lambda body, x: body.trunc(narrow_bfloat16(body, x), I16)),
              5: _exchanging(widen_half, narrow_half)}


@form("{ ...cp.async.bulk.tensor.<rank>d.shared::cluster.global.<mode:tile|im2col>.mbarrier::complete_tx::bytes"
      "<multicast:.multicast::cluster|>... [$0], ...")
def load(body, to, tensor_map, barrier, *rest, rank, mode, multicast):
    rank = int(rank)
    offsets = rank - 2 if mode == "im2col" else 0
    record, places = body.pointer(tensor_map), rest[:rank + offsets]
    copy = _function(body, "load", rank, offsets, _loaded)
    nbytes = body.number(body.load_as(body.at(record, MAP.offset["rows"]), I32)) * body.load_as(body.at(record, MAP.offset["width"]), I32)
    if not multicast:
        body.invoke(copy, VOID, record, to, *places)
        mbarrier.landed(body, body.remote(barrier), nbytes)
        return
    mask = body.number(rest[rank + offsets])
    with body.loop(body.word("size")) as block:
        with body.if_then((((mask >> block) & 1) == 1).value):
            body.invoke(copy, VOID, record, mbarrier.mapped(body, to, block), *places)
            mbarrier.landed(body, body.remote(mbarrier.mapped(body, barrier, block)), nbytes)


@form("cp.async.bulk.tensor.<rank>d.global.shared::cta.tile.bulk_group... [$0, {...}], [$1]...;")
def store(body, tensor_map, source, *rest, rank):
    copy = _function(body, "store", int(rank), 0, _stored)
    body.invoke(copy, VOID, body.pointer(tensor_map), source, *rest[:int(rank)])


@form("cp.reduce.async.bulk.tensor.<rank>d.global.shared::cta.add.tile.bulk_group [$0, {...}], [$1];")
def reduce_add(body, tensor_map, source, *coordinates, rank):
    add = _function(body, "add", int(rank), 0, _added)
    body.invoke(add, VOID, body.pointer(tensor_map), source, *coordinates)


@form("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];")
def load_run(body, to, source, nbytes, barrier):
    body.copy(body.remote(to), body.pointer(source), body.zext(nbytes, I64))
    mbarrier.landed(body, body.remote(barrier), nbytes)


@form("cp.async.bulk.global.shared::cta.bulk_group [$0], [$1], $2;")
def store_run(body, to, source, nbytes):
    body.copy(body.pointer(to), body.shared(source), body.zext(nbytes, I64))


@form("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [$0], [$1], $2;")
def add_run(body, to, source, nbytes):
    _atomically(FLOAT, "fadd")(body, body.shared(source), body.pointer(to), body.number(nbytes).wide())


@form("cp.async.bulk.commit_group;", "cp.async.bulk.wait_group<read:|.read> <pending>;", "prefetch.tensormap [$0];")
def nothing(body, *operands, **words):
    """Copies are done."""
