"""Forms of matrix instructions of a warp: each lane shows the others its operands in the warp's part of EXCHANGE and computes its results.

A lane's part is there twice, used in turns: who comes to the next instruction cannot overwrite what another has not read in this one.
"""
from . import runtime
from .arithmetic import BYTES, halves, packed, widen_half
from .forms import DOUBLE, FLOAT, I8, I16, I32, I64, POINTER, form
from .waits import IN_BLOCK

_ALL = I32(0xFFFFFFFF)


class Exchange:
    """One instruction's exchange. `show` the operands, `meet`, then read anybody's with `of`."""

    def __init__(self, body):
        self.body = body
        self.lane = body.field("laneid")
        warp, arena = body.invoke("cpu.warp", POINTER), body.invoke("cpu.arena", POINTER)
        at = body.at(body.at(warp, runtime.WARP.offset["turns"]), self.lane, I32)
        turn = body.load_as(at, I32)
        body.store(body.xor(turn, I32(1)), at)
        number = body.sub(body.ptrtoint(warp, I64), body.add(body.ptrtoint(arena, I64), I64(runtime.WARPS)))
        # Each warp has two turns of 32 lanes.
        offset = body.shl(number, I64(runtime.TURN_BITS + 1 - runtime.WARP_BITS))
        offset = body.add(offset, body.shl(body.zext(turn, I64), I64(runtime.TURN_BITS)))
        self.all = body.at(arena, body.add(offset, I64(runtime.EXCHANGE)))

    def of(self, lane):
        """What a lane shows."""
        return self.body.at(self.all, self.body.shl(self.body.zext(lane, I64), I64(runtime.LANE_BITS)))

    def show(self, values):
        """Show this lane's values, and wait until all have."""
        for k, value in enumerate(values):
            self.body.store(value, self.body.at(self.of(self.lane), k, value.type))
        self.body.collect("ballot", _ALL, I32(0))


@form("ldmatrix.sync.aligned.m8n8.x<count:1|2|4><transposed:|.trans>.shared.b16 ...", waits=IN_BLOCK)
def load_matrices(body, address, count, transposed):
    exchange = Exchange(body)
    exchange.show([address])
    group, inside = body.lshr(exchange.lane, I32(2)), body.and_(exchange.lane, I32(3))

    def row(matrix, number):
        return body.shared(body.load_as(exchange.of(body.add(number, I32(8 * matrix))), I32))
    words = []
    for k in range(int(count)):
        if transposed:
            first = body.shl(inside, I32(1))
            low, high = (body.load_as(body.at(row(k, body.add(first, I32(h))), body.zext(group, I64), I16), I16) for h in range(2))
            words.append(packed(body, low, high))
        else:
            words.append(body.load_as(body.at(row(k, group), body.zext(inside, I64), I32), I32))
    return words


@form("stmatrix.sync.aligned.m8n8.x<count:1|2|4><transposed:|.trans>.shared.b16 ...", waits=IN_BLOCK)
def store_matrices(body, address, *words, count, transposed):
    exchange = Exchange(body)
    exchange.show([address])
    group, inside = body.lshr(exchange.lane, I32(2)), body.and_(exchange.lane, I32(3))

    def row(matrix, number):
        return body.shared(body.load_as(exchange.of(body.add(number, I32(8 * matrix))), I32))
    for k, word in enumerate(words):
        if transposed:
            first = body.shl(inside, I32(1))
            for h, part in enumerate(halves(body, word)):
                body.store(part, body.at(row(k, body.add(first, I32(h))), body.zext(group, I64), I16))
        else:
            body.store(word, body.at(row(k, group), body.zext(inside, I64), I32))


# Elements of an operand in a 32-bit word (a 64-bit one for float64), and how one of them is taken out.
_PER_WORD = {"bf16": 2, "f16": 2, "tf32": 1, "f64": 1, "s8": 4, "u8": 4, "e4m3": 4, "e5m2": 4}
_SUMS = {"f32": FLOAT, "f64": DOUBLE, "s32": I32}


def _elements(body, word, operand):
    if operand == "f64":
        return [word]
    if operand == "tf32":  # the hardware reads the upper 19 bits
        return [body.bitcast(body.and_(word, I32(-0x2000 & 0xFFFFFFFF)), FLOAT)]
    if operand == "bf16":
        return [body.bitcast(bits, FLOAT) for bits in (body.shl(word, I32(16)), body.and_(word, I32(0xFFFF0000)))]
    if operand == "f16":
        return [widen_half(body, part) for part in halves(body, word)]
    if operand in BYTES:
        parts = [body.trunc(body.lshr(word, I32(8 * k)), I16) for k in range(4)]
        return [BYTES[operand].widen(body, body.and_(part, I16(0xFF))) for part in parts]
    widen = body.sext if operand == "s8" else body.zext
    return [widen(body.trunc(body.lshr(word, I32(8 * k)), I8), I32) for k in range(4)]


@form("mma.sync.aligned.m<m>n8k<k>.row.col.<kind:f32|f64|s32>.<operand:bf16|f16|tf32|f64|s8|u8|e4m3|e5m2>...", waits=IN_BLOCK)
def multiply(body, *operands, m, k, kind, operand):
    """The lane's elements of A x B + C: its rows are shown by the lanes of its group of four, its columns by one lane of each group."""
    rows, depth, per = int(m), int(k), _PER_WORD[operand]
    count_a, count_b = rows * depth // 32 // per, depth * 8 // 32 // per
    word, size = (DOUBLE, 8) if operand == "f64" else (I32, 4)
    sums = list(operands[count_a + count_b:])
    exchange = Exchange(body)
    exchange.show(operands[:count_a + count_b])
    group, inside = body.and_(exchange.lane, I32(28)), body.and_(exchange.lane, I32(3))

    def read(lane, number):
        return _elements(body, body.load_as(body.at(exchange.of(lane), size * number), word), operand)
    tall = rows // 8
    for along in range(depth // (4 * per)):
        for quarter in range(4):
            left = [read(body.add(group, I32(quarter)), h + tall * along) for h in range(tall)]
            for column in range(2):
                shown = body.add(body.shl(inside, I32(3)), I32(4 * column + quarter))
                right = read(shown, count_a + along)
                for h in range(tall):
                    e = 2 * h + column
                    for x, y in zip(left[h], right):
                        sums[e] = body.add(sums[e], body.mul(x, y)) if kind == "s32" else body.llvm("fma", x, y, sums[e])
    return sums
