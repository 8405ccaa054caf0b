"""Forms of products of a warpgroup. They are done when the last of its threads has come to one, which does them for all.

Threads show their sums in PRODUCTS, in pairs, and where A is in registers its words: both by number, then by thread. So the 32 lanes of a
warp show 8 rows of 8 columns of the sums, and 8 rows of 16 bytes of A, as they lie in a matrix. Operands are spread out there as float32,
or int32, in panels of 8 rows (of A) or columns (of B): ``panel[row // 8][k][row % 8]``.
"""
import re
from dataclasses import dataclass

from llvmlite import ir

from . import runtime
from .arithmetic import BYTES, widen_half
from .forms import FLOAT, I1, I16, I32, I64, POINTER, VOID, form
from .waits import IN_BLOCK

THREADS, EIGHT, PIECE = 128, 8, 16
WORDS, LEFT, RIGHT = 1 << 18, 1 << 19, 1 << 20  # in a warpgroup's part of PRODUCTS, which begins with the sums
GROUP_BITS = 22                                 # bytes of such a part
_BITS = {"bf16": 16, "f16": 16, "tf32": 32, "s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8}
_INSTRUCTION = re.compile(
    r"(?:add\.s64 da, \$\d+, (?P<a>\d+);\s+)?add\.s64 db, \$\d+, (?P<b>\d+);\s+"
    r"wgmma\.mma_async\.sync\.aligned\.m64n(?P<n>\d+)k\d+\.(?:f32|s32)\.(?P<left>\w+)\.(?P<right>\w+) "
    r"\{\$(?P<sums>\d+),[^}]*\}, (?:da|\{\$(?P<words>\d+)[^}]*\}), db, \w+(?:, 1, 1)?(?P<majors>(?:, [01])*);")


@dataclass(frozen=True)
class Step:
    """One instruction: numbers of its first sum and, from registers, first word of A; what it adds to descriptors; MN-major operands."""
    sums: int
    words: int | None
    a: int
    b: int
    a_mn: bool
    b_mn: bool


class Block:
    """What the text of a block of instructions says."""

    def __init__(self, text, sums):
        found = [match.groupdict() for match in _INSTRUCTION.finditer(text)]
        first = found[0]
        self.n, self.left, self.right = int(first["n"]), first["left"], first["right"]
        self.fresh = "setp.ne.b32 first, 0, 0" in text
        self.number = sums if self.fresh else 2 * sums  # of the first operand after the sums
        self.steps = []
        for match in found:
            majors = [m == "1" for m in match["majors"].replace(",", " ").split()]
            words = None if match["words"] is None else int(match["words"]) - self.number
            a_mn, b_mn = majors if len(majors) == 2 else (False, *majors) if majors else (False, False)
            self.steps.append(Step(int(match["sums"]), words, int(match["a"] or 0), int(match["b"]), a_mn, b_mn))

    @property
    def tiles(self):
        """The steps of each tile of sums."""
        return [[s for s in self.steps if s.sums == first] for first in dict.fromkeys(s.sums for s in self.steps)]


def _depth(operand):
    """Elements of k of a step."""
    return 256 // _BITS[operand]


def _kind(operand):
    return I32 if operand in ("s8", "u8") else FLOAT


def _spread(body, piece, operand):
    """The elements of 16 bytes of an operand as float32 or int32."""
    bits = _BITS[operand]
    vector = body.load(piece, typ=ir.VectorType(ir.IntType(bits), 128 // bits), align=4)
    elements = [body.extract_element(vector, I32(k)) for k in range(128 // bits)]
    if operand == "bf16":
        return [body.bitcast(body.shl(body.zext(e, I32), I32(16)), FLOAT) for e in elements]
    if operand == "f16":
        return [widen_half(body, e) for e in elements]
    if operand == "tf32":  # the hardware reads the upper 19 bits
        return [body.bitcast(body.and_(e, I32(0xFFFFE000)), FLOAT) for e in elements]
    if operand in BYTES:
        return [BYTES[operand].widen(body, body.zext(e, I16)) for e in elements]
    return [(body.sext if operand == "s8" else body.zext)(e, I32) for e in elements]


def _panel(body, operand, mn):
    """Name of ``function(panels, descriptor, rows, first k, elements of k of a panel)``: spreads out an operand of a step."""
    name = f"cpu.wgmma.panel.{operand}.{'mn' if mn else 'k'}"
    return body.helper(name, VOID, (POINTER, I64, I32, I32, I32), lambda inner, *args: _write_panel(inner, operand, mn, *args))


def _write_panel(body, operand, mn, panels, descriptor, rows, first, total):
    kind, depth, (descriptor, rows, first, total) = _kind(operand), _depth(operand), map(body.number, (descriptor, rows, first, total))
    start, leading, stride = ((descriptor >> shift & 0x3FFF).narrow() for shift in (0, 16, 32))
    code, base = (descriptor >> 62).narrow(), (descriptor >> 49 & 7).narrow()
    plain = code == 0
    pitch = plain.choose(code * 0 + 1, (code * 0 + 16) >> code)  # pieces that the swizzle exchanges: a row of the tile

    def piece(offset):
        place = start + offset
        place = place ^ plain.choose(place * 0, ((place >> 3) - base) & (pitch - 1))
        return body.shared((place << 4).value)

    def put(row, k, element):
        at = ((row // EIGHT * total + k) * EIGHT + row % EIGHT).wide()
        body.store(element, body.at(panels, at.value, kind))

    if mn:
        with body.loop(I32(depth)) as k:
            with body.loop(rows // EIGHT) as m:
                exchanged = m // pitch * leading + m % pitch + k // EIGHT * stride + k % EIGHT * pitch
                offset = plain.choose(m * stride + k // EIGHT * leading + k % EIGHT, exchanged)
                for i, element in enumerate(_spread(body, piece(offset), operand)):
                    put(m * EIGHT + i, first + k, element)
    else:
        with body.loop(rows) as row:
            for half in range(2):
                offset = row // EIGHT * stride + row % EIGHT * pitch + (plain.choose(leading, 1) if half else 0)
                for i, element in enumerate(_spread(body, piece(offset), operand)):
                    put(row, first + (half * depth // 2 + i), element)


def _words(body, operand):
    """Name of ``function(panels, words, first k, elements of k of a panel)``: spreads out A of a step from registers."""
    kind, count = _kind(operand), 128 // _BITS[operand]

    def write(inner, panels, words, first, total):
        first, total = inner.number(first), inner.number(total)
        with inner.loop(I32(THREADS // 4)) as each:  # warp, and row of 8
            for half in range(2):
                for rows in range(2):
                    piece = inner.at(words, (each.wide() * PIECE + (2 * half + rows) * 4 * THREADS).value)
                    block = each // EIGHT * 2 + rows
                    for i, element in enumerate(_spread(inner, piece, operand)):
                        at = ((block * total + first + (half * count + i)) * EIGHT + each % EIGHT).wide()
                        inner.store(element, inner.at(panels, at.value, kind))
    return body.helper(f"cpu.wgmma.words.{operand}", VOID, (POINTER, POINTER, I32, I32), write)


def _multiply(body, kind):
    """Name of ``function(sums, left panels, right panels, columns // 8, elements of k, whether the sums begin at zero)``."""
    vector = ir.VectorType(kind, EIGHT)

    def write(inner, sums, left, right, columns, depth, zero):
        depth, zeros = inner.number(depth), ir.Constant(vector, None)
        with inner.loop(columns) as column:
            with inner.loop(I32(EIGHT)) as block:  # 8 rows
                a = inner.at(left, (block * depth * EIGHT).wide().value, kind)
                b = inner.at(right, (column * depth * EIGHT).wide().value, kind)
                tile = ((column * 2 + block % 2) * THREADS + block // 2 * 32).wide() * 8
                rows = [inner.at(sums, (tile + r * 32).value) for r in range(EIGHT)]
                before = [inner.select(zero, zeros, inner.load(row, typ=vector, align=4)) for row in rows]
                for row, total in zip(rows, _accumulated(inner, kind, vector, before, a, b, depth)):
                    inner.store(total, row, align=4)
    return body.helper(f"cpu.wgmma.multiply.{kind}", VOID, (POINTER, POINTER, POINTER, I32, I32, I1), write)


def _accumulated(body, kind, vector, before, a, b, depth):
    """The sums, with the products of 8 rows and 8 columns."""
    start, again, after = body.block, body.append_basic_block("again"), body.append_basic_block("after")
    body.branch(again)
    body.position_at_end(again)
    k = body.phi(I64)
    k.add_incoming(I64(0), start)
    sums = []
    for total in before:
        sums.append(body.phi(vector))
        sums[-1].add_incoming(total, start)
    right = body.load(body.at(b, k, vector), typ=vector, align=4)
    results, any_lane = [], ir.Constant(ir.VectorType(I32, EIGHT), None)
    for row, total in enumerate(sums):
        element = body.load(body.at(body.at(a, k, vector), row, kind), typ=kind)
        left = body.shuffle_vector(body.insert_element(vector(ir.Undefined), element, I32(0)), vector(ir.Undefined), any_lane)
        if kind == I32:
            results.append(body.add(total, body.mul(left, right)))
        else:
            results.append(body.invoke("llvm.fma.v8f32", vector, left, right, total))
        total.add_incoming(results[-1], again)
    later = body.number(k) + 1
    k.add_incoming(later.value, again)
    body.cbranch((later < depth.wide()).value, again, after)
    body.position_at_end(after)
    return results


def _part(body, offset):
    """Pointer into the warpgroup's part of PRODUCTS, and the thread's number in the warpgroup."""
    arena, thread = body.invoke("cpu.arena", POINTER), body.invoke("cpu.thread", POINTER)
    number = (body.number(body.ptrtoint(thread, I64)) - body.ptrtoint(arena, I64)) >> runtime.THREAD_BITS
    part = ((number >> 7) << GROUP_BITS) + runtime.PRODUCTS + offset
    return body.at(arena, part.value), number & THREADS - 1, number >> 7


def _meet(body):
    """Name of ``function(number of the warpgroup)``: true for its last thread to come, which has to `_open`; the others wait for that."""
    def write(inner, group):
        barrier = _barrier(inner, group)
        came = inner.number(inner.load_as(barrier, I32)) + 1
        inner.store(came.value, barrier)
        with inner.if_then((came == THREADS).value):
            inner.ret(I1(1))
        at = inner.at(barrier, 1, I32)
        before = inner.number(inner.load_as(at, I32))
        with inner.waiting("product", group) as until:
            until(inner.number(inner.load_as(at, I32)) != before)
        return I1(0)
    return body.helper("cpu.wgmma.meet", I1, (I64,), write)


def _barrier(body, group):
    return body.at(body.invoke("cpu.at.barriers", POINTER), (body.number(group) + runtime.BARRIERS).value, I64)


def _open(body, group):
    barrier = _barrier(body, group)
    at = body.at(barrier, 1, I32)
    body.store((body.number(body.load_as(at, I32)) + 1).value, at)
    body.store(I32(0), barrier)
    body.invoke("cpu.progress", VOID)


def _product(body, block):
    """Name of ``function(descriptors of A and B, whether the sums begin at zero)``: the whole block, for the last thread to come."""
    def write(inner, a, b, zero):
        sums, *_ = _part(inner, 0)
        left, right = inner.at(sums, LEFT), inner.at(sums, RIGHT)
        kind, tiles, depth = _kind(block.left), block.tiles, _depth(block.left)
        total = I32(depth * len(tiles[0]))
        for s, step in enumerate(tiles[0]):
            b_of_step = (inner.number(b) + step.b).value
            inner.invoke(_panel(inner, block.right, step.b_mn), VOID, right, b_of_step, I32(block.n), I32(s * depth), total)
        for steps in tiles:
            for s, step in enumerate(steps):
                if step.words is None:
                    a_of_step = (inner.number(a) + step.a).value
                    inner.invoke(_panel(inner, block.left, step.a_mn), VOID, left, a_of_step, I32(64), I32(s * depth), total)
                else:
                    words = inner.at(sums, WORDS + step.words * 4 * THREADS)
                    inner.invoke(_words(inner, block.left), VOID, left, words, I32(s * depth), total)
            here = inner.at(sums, steps[0].sums // 2 * 8 * THREADS)
            inner.invoke(_multiply(inner, kind), VOID, here, left, right, I32(block.n // EIGHT), total, zero)
    number = sum(name.startswith("cpu.wgmma.block.") for name in body.module.globals)
    return body.helper(f"cpu.wgmma.block.{number}", VOID, (I64, I64, I1), write)


@form("{ .reg .pred first, later; .reg .b64 da, db;...wgmma.commit_group.sync.aligned; }", waits=IN_BLOCK)
def multiply(body, *operands):
    kinds = body.results
    block = Block(body.text, len(kinds))
    rest = list(operands) if block.fresh else list(operands[len(kinds):])
    given = [] if block.fresh else operands[:len(kinds)]
    zero = I1(1) if block.fresh else body.icmp_unsigned("==", rest.pop(), I32(0))
    b = rest.pop()
    words = [] if block.steps[0].words is None else rest
    a = I64(0) if words else rest[0]
    sums, thread, group = _part(body, 0)
    mine = [body.at(body.at(sums, (thread * 8).value), k // 2 * 8 * THREADS + k % 2 * 4) for k in range(len(kinds))]
    for place, value in zip(mine, given):
        body.store(value, place)
    for k, word in enumerate(words):
        body.store(word, body.at(body.at(sums, (thread * 4).value), WORDS + k * 4 * THREADS))
    with body.if_then(body.invoke(_meet(body), I1, group.value)):
        body.invoke(_product(body, block), VOID, a, b, zero)
        _open(body, group.value)
    return [body.load_as(place, kind) for place, kind in zip(mine, kinds)]


@form("wgmma.wait_group.sync.aligned <pending>;")
def wait(body, *sums, pending):
    """Products are done."""
    return list(sums)
