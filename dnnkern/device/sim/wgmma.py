"""Tensor cores of a warpgroup: the twin of `dnnkern.device.wgmma`.

A `Product` is one block of wgmma instructions with its commit; the n-th block of every thread of a warpgroup must be the same one. It
starts when the last of the 128 threads has issued it: the order of its reads is checked then, with what the threads knew when they issued
it. It is computed when all of them wait for it, as late as a GPU may, in one multiplication. A `Chain` is the use of one accumulator from
its first product to the wait that hands it out; in between the array holds POISON, which reads as NaN and which no arithmetic leaves as
it is.
"""
from collections import deque
from functools import lru_cache

import numpy as np

from . import engine, order, proxy, trace
from .arrays import Nobody, Vector
from .errors import Misuse

POISON = 0x7FA5A5A5  # a signalling NaN: whatever is computed from it is another one
THREADS = 128


@lru_cache(maxsize=4096)
def pieces(descriptor, rows, mn):
    """Where an operand's 16-byte pieces are, as address // 16: [rows, 2] of a K-major one, [k, rows // 8] of an MN-major one."""
    if descriptor & ~0xC00E_3FFF_3FFF_3FFF:
        raise Misuse(f"wgmma: descriptor {descriptor:#018x} has bits set between its fields: an address of more than 18 bits, or a step "
                     "that has carried out of it")
    start, leading, stride = (descriptor >> shift & 0x3FFF for shift in (0, 16, 32))
    pitch = (1, 8, 4, 2)[descriptor >> 62]  # pieces that the swizzle permutes among themselves: a row of the tile
    if mn:
        k, piece = np.arange(16)[:, None], np.arange(rows // 8)
        if pitch == 1:
            offset = piece * stride + k // 8 * leading + k % 8
        else:
            offset = piece // pitch * leading + piece % pitch + k // 8 * stride + k % 8 * pitch
        run = min(rows // 8, pitch)
    else:
        row, piece = np.arange(rows)[:, None], np.arange(2)
        offset = row // 8 * stride + row % 8 * pitch + piece * (leading if pitch == 1 else 1)
        run = 2
    if pitch > 1 and start % pitch + run > pitch:
        raise Misuse(f"wgmma: the operand at {start * 16:#x} needs {run * 16} bytes of a row, but of the {pitch * 16} within which its "
                     f"swizzle moves them {(pitch - start % pitch) * 16} are left")
    place = start + offset
    if pitch > 1:
        place ^= (place >> 3) - (descriptor >> 49 & 7) & pitch - 1
    return place


class Spec:
    """What kind of block: the parameters of `make_wgmma`."""

    def __init__(self, n, dtype, b_dtype, steps, tiles, a, majors, a_steps, b_steps, a_tile):
        self.n, self.dtypes, self.steps, self.tiles = n, (dtype, b_dtype), steps, tiles
        self.registers, self.majors, self.moves = a == "registers", tuple(m == "mn" for m in majors), (a_steps, b_steps, a_tile)
        self.count, self.words = tiles * n // 2, 4 * tiles * (max(a_steps) + 1)
        self.integer = "int" in dtype
        self.accumulators = np.dtype(np.int32 if self.integer else np.float32)
        self.name = f"wgmma m64n{n} {dtype}" + f" x {b_dtype}" * (b_dtype != dtype)

    @lru_cache(maxsize=1024)
    def operands(self, a, b):
        """Pieces of A, [tile, step, ...] (None from registers), of B, [step, ...], and all of them once."""
        a_steps, b_steps, a_tile = self.moves
        right = np.stack([pieces(b + s, self.n, self.majors[1]) for s in b_steps])
        left = None if self.registers else np.stack([
            np.stack([pieces(a + t * a_tile + s, 64, self.majors[0]) for s in a_steps]) for t in range(self.tiles)])
        return left, right, np.unique(right if left is None else np.append(left, right))

    def multiply(self, words, left, right):
        """[128, count] what each thread gets of the product, given A's words or pieces and B's pieces, as bytes."""
        if self.registers:
            a = _values(words, self.dtypes[0])
            a = a.reshape(4, 8, 4, self.tiles, self.words // self.tiles // 4, 2, 2, -1)
            a = a[:, :, :, :, self.moves[0]]  # [warp, row, column, tile, step, half k, half rows, element]
            a = a.transpose(3, 0, 6, 1, 4, 5, 2, 7).reshape(64 * self.tiles, -1)
        else:
            a = np.concatenate([_matrix(tile, self.dtypes[0], self.majors[0]) for tile in left])
        b = _matrix(right, self.dtypes[1], self.majors[1])
        rows = 64  # at a time: so few that BLAS does not wake other threads, which takes milliseconds on a machine that is busy
        while rows > 1 and rows * b.size > 1 << 18:
            rows //= 2
        product = a.reshape(-1, rows, a.shape[1]) @ b.T
        parts = product.reshape(self.tiles, 4, 2, 8, self.n // 8, 4, 2)  # [tile, warp, half, row, 8 columns, pair of columns, column]
        return parts.transpose(1, 3, 5, 0, 4, 2, 6).reshape(THREADS, self.count)


def _matrix(found, dtype, mn):
    """[rows, k] of an operand from its pieces' bytes, [step, rows, 2, 16] or [step, 16, rows // 8, 16]."""
    if mn:
        found = found.view(np.uint16).transpose(2, 3, 0, 1)
        return _values(found.reshape(found.shape[0] * 8, -1), dtype)
    found = found.transpose(1, 0, 2, 3)
    return _values(found.reshape(len(found), -1), dtype)


@lru_cache(maxsize=None)
def _fp8(dtype):
    import ml_dtypes
    return np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, dtype)).astype(np.float32)


def _values(bits, dtype):
    """The numbers that bits of an operand are; integers as float64, in which their sums are exact."""
    if dtype == "bfloat16":
        return (bits.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if dtype == "float16":
        return bits.view(np.float16).astype(np.float32)
    if dtype == "tf32":
        return (bits.view(np.uint32) & 0xFFFFE000).view(np.float32)
    if dtype in ("int8", "uint8"):
        return bits.view(dtype).astype(np.float64)
    return _fp8(dtype)[bits.view(np.uint8)]


class Chain:
    """An accumulator of a warpgroup under way, by thread: the array, its values at first (bytes); `value` is what is in the registers."""
    __slots__ = "count", "arrays", "initial", "value", "pending", "untouched"

    def __init__(self, count):
        self.count, self.arrays, self.initial, self.value, self.pending = count, [None] * THREADS, [None] * THREADS, None, 0
        self.untouched = np.full(count, POISON, np.uint32).tobytes()

    def check(self, thread):
        """The thread has left its part alone."""
        array = self.arrays[thread.tid & 127]
        if array.tobytes() != self.untouched:
            raise Misuse(f"wgmma: thread {thread.tid} wrote accumulator {int((array != POISON).argmax())} while the tensor cores were at "
                         "it: the wait that hands it out must come first")


class Product:
    """One block: `key` says what all threads must agree on."""
    __slots__ = "key", "chain", "words", "arrived", "clocks", "time"

    def __init__(self, key):
        self.key, self.chain, self.words, self.arrived, self.clocks, self.time = key, None, [], 0, {}, 0


class Warpgroup:
    """128 threads of a block, the products they have issued and not waited for, oldest first: number `done` is the first of them."""

    def __init__(self, block, number):
        self.threads = block.threads[THREADS * number:THREADS * (number + 1)]
        if len(self.threads) < THREADS:
            raise Misuse(f"wgmma: a warpgroup has {THREADS} threads; the block of {block.n} has {len(self.threads)} from thread "
                         f"{THREADS * number} on")
        self.block, self.number, self.name = block, number, f"warpgroup {number}"
        self.slot = proxy.agent(block, f"a product of {self.name}", f"a wgmma wait of {self.name} is missing between them")
        self.issued, self.done, self.log = [0] * THREADS, 0, deque()
        self.flying = [{} for _ in range(THREADS)]  # chains by the address of the array
        self.places = [{} for _ in range(THREADS)]
        self.arrived, self.agreed, self.waiters, self.round = 0, None, [], 0
        block.watchers.append(self.leave)

    def leave(self, thread):
        """A thread of the block has returned."""
        if thread.tid >> 7 == self.number and self.issued[thread.tid & 127] > self.done:
            raise Misuse(f"wgmma: thread {thread.tid} returns while products of {self.name} are under way: the last wait is missing")

    def place(self, i, array, dtypes, count):
        """(words, address) of the first elements of a local array of thread `i` of the group."""
        known = self.places[i].get(id(array))
        if known is None or known[2] < count:
            flat = array
            if isinstance(array, Vector) and array.thread is Nobody:
                flat = np.asarray(array.data)
            if not isinstance(flat, np.ndarray) or flat.ndim != 1 or flat.dtype not in dtypes or len(flat) < count:
                raise Misuse(f"wgmma: expected a local array of at least {count} {' or '.join(map(str, dtypes))}, got "
                             f"{array.dtype} {tuple(array.shape)}")
            flat = flat[:count].view(np.uint32)
            known = self.places[i][id(array)] = flat, flat.__array_interface__["data"][0], count, array
        return known

    def issue(self, thread, spec, acc, a, b, accumulate):
        i = thread.tid & 127
        key = spec, 0 if spec.registers else int(a), int(b), accumulate != 0
        k = self.issued[i] - self.done
        if k == len(self.log):
            self.log.append(Product(key))
        product = self.log[k]
        if product.key != key:
            raise Misuse(f"{self.name} diverged: as its block number {self.issued[i]} thread {thread.tid} issues {_show(key)}, others "
                         f"{_show(product.key)}")
        self.issued[i] += 1
        array, address, _, _ = self.place(i, acc, (spec.accumulators,), spec.count)
        array = array[:spec.count]
        chain = self.flying[i].get(address)
        fresh = chain is None
        if product.chain is None:
            product.chain = Chain(spec.count) if fresh else chain
            product.chain.pending += 1
        if chain is not product.chain and not (fresh and product.chain.arrays[i] is None) or product.chain.count != spec.count:
            raise Misuse(f"{self.name} diverged: in block number {self.issued[i] - 1} thread {thread.tid} has another accumulator than "
                         "others, or one of another size under way")
        if fresh:
            chain = self.flying[i][address] = product.chain
            chain.arrays[i], chain.initial[i] = array, array.tobytes()
            array.fill(POISON)
        else:
            chain.check(thread)
        if spec.registers:
            words = self.place(i, a, (np.dtype(np.uint32),), spec.words)[0][:spec.words]
            product.words.append((i, words, words.tobytes()))
        product.clocks[id(thread.clock)] = thread.clock
        product.arrived += 1
        if product.arrived == THREADS:
            self.start(product)

    def start(self, product):
        """All threads have issued the product: it reads shared memory from now on, until it is waited for."""
        spec, a, b, _ = product.key
        block = self.block
        memory = block.shared
        every = spec.operands(a, b)[2] - (memory.base >> 4)
        if every[0] < 0 or every[-1] >= memory.used >> 4:
            beyond = every[0] if every[0] < 0 else every[-1]
            raise Misuse(f"{_show(product.key)} reads 16 bytes at {memory.base + 16 * beyond:#x}, outside the block's {memory.base:#x} .. "
                         f"{memory.base + memory.used:#x}")
        order.examine(block, self.threads)
        access = proxy.Access(block, self.slot, list(product.clocks.values()))
        access.read(every)
        product.time = access.time
        if trace.SCHEDULE is not None:
            trace.SCHEDULE.begins(self, product, _show(product.key), spec.n * spec.tiles * len(spec.moves[1]))

    def wait(self, thread, pending, count, acc):
        i = thread.tid & 127
        upto = self.issued[i] - pending
        if upto > self.done:
            if self.arrived and self.agreed != (upto, self.issued[i]):
                raise Misuse(f"{self.name} diverged: thread {thread.tid} waits for block {upto} of the {self.issued[i]} it has issued, "
                             f"others for block {self.agreed[0]} of {self.agreed[1]}")
            self.agreed = upto, self.issued[i]
            self.arrived += 1
            if self.arrived == THREADS:
                self.retire(upto)
                self.arrived, self.round = 0, self.round + 1
                engine.wake(self.waiters)
            else:
                now = self.round
                while self.round == now:
                    engine.park(self.waiters, lambda: f"wgmma wait: {self.arrived} of the {THREADS} threads of {self.name} arrived")
        if count and self.flying[i]:
            self.hand_out(thread, count, acc)

    def hand_out(self, thread, count, acc):
        """Fill what the first `count` elements of `acc` were accumulators of, if that is done."""
        i = thread.tid & 127
        first = self.place(i, acc, (np.dtype(np.float32), np.dtype(np.int32)), count)[1]
        for address, chain in list(self.flying[i].items()):
            if address + 4 * chain.count <= first or address >= first + 4 * count or chain.pending:
                continue
            if address < first or address + 4 * chain.count > first + 4 * count:
                raise Misuse(f"wgmma wait: {count} accumulators are handed out, the product has {chain.count}; the others could be read "
                             "too early")
            chain.check(thread)
            chain.arrays[i][:] = chain.value[i]
            del self.flying[i][address]

    def retire(self, upto):
        """All threads wait for the products before number `upto`."""
        order.examine(self.block, self.threads)
        memory = self.block.shared
        lines, time = memory.raw[:len(memory.raw) & -16].reshape(-1, 16), 0
        while self.done < upto:
            product = self.log.popleft()
            self.done += 1
            if trace.SCHEDULE is not None:
                trace.SCHEDULE.ends(self, product, engine.CURRENT)
            spec, a, b, accumulate = product.key
            words = self.left(product) if spec.registers else None
            left, right, every = spec.operands(a, b)
            shift = memory.base >> 4
            self.check_written(product, every - shift, lines)
            value = spec.multiply(words, None if left is None else lines[left - shift], lines[right - shift])
            chain, time = product.chain, product.time
            if accumulate:
                before = chain.value
                if before is None:
                    before = np.frombuffer(b"".join(chain.initial), spec.accumulators).reshape(THREADS, spec.count)
                value = value + before.view(spec.accumulators)
            if spec.integer:
                value = value.astype(np.int64).astype(np.int32)  # sums wrap
            chain.value = value.view(np.uint32)
            chain.pending -= 1
            engine.STATS["wgmma"] += 1
        proxy.learn(self.block, self.threads, self.slot, time)

    def left(self, product):
        """[128, words] of A from registers, which nobody may have touched."""
        words = [None] * THREADS
        for i, array, before in product.words:
            if array.tobytes() != before:
                raise Misuse(f"wgmma: thread {self.threads[i].tid} wrote registers of A before the wait for the product that reads them")
            words[i] = before
        return np.frombuffer(b"".join(words), np.uint32).reshape(THREADS, -1)

    def check_written(self, product, every, lines):
        shadow = order.shadow_of(self.block.shared)
        if shadow is None:
            return
        nothing = every[(lines[every] == self.block.shared.nothing).all(1)]
        if len(nothing):
            cells, _ = shadow.cells(nothing, nothing, 4)
            never = shadow.written[cells].reshape(len(nothing), -1).max(1) == 0
            if never.any():
                place = self.block.shared.describe(16 * int(nothing[never.argmax()]))
                raise Misuse(f"{_show(product.key)} reads {place}, which nothing has written")


def _show(key):
    spec, a, b, accumulate = key
    left = "registers" if spec.registers else f"{a:#x}"
    return f"{spec.name} (A {left}, B {b:#x}, {'accumulating' if accumulate else 'from zero'})"


def _warpgroup(thread):
    groups = thread.block.__dict__.setdefault("warpgroups", {})
    group = groups.get(thread.tid >> 7)
    if group is None:
        group = groups[thread.tid >> 7] = Warpgroup(thread.block, thread.tid >> 7)
    return group


def make_product(*parameters, fresh):
    """Twin of the function that `make_wgmma` makes."""
    spec = Spec(*parameters)

    def mma(acc, a, b, accumulate):
        thread = engine.CURRENT
        _warpgroup(thread).issue(thread, spec, acc, a, b, accumulate)
    return (lambda acc, a, b: mma(acc, a, b, 0)) if fresh else mma


def make_wait(pending, count):
    """Twin of the function that `make_wgmma_wait` makes."""
    def wait(acc):
        thread = engine.CURRENT
        _warpgroup(thread).wait(thread, pending, count, acc)
    return wait
