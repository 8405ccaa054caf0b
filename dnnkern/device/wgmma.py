"""Products of a warpgroup on the tensor cores (wgmma, sm_90a): asynchronous, operands in shared memory, sums in registers.

128 threads together, four warps from a multiple of 128 on, multiply A, 64 rows, and B, `n` columns, into float32 or int32 sums that lie
in a local array of each of them::

    mma = make_wgmma(128, "bfloat16")                        # host: 64 x 128 x 64, four steps of 16
    wait = make_wgmma_wait(0, 64)
    K = matrix_descriptor(16, 1024, 128)                     # both operands K-major rows of 128 bytes, swizzled as a tensor map does

    acc = cuda.local.array(64, f32)
    for k in range(stages):
        mbarrier_wait(full, phase)                           # or: plain stores, fence_async, a barrier
        mma(acc, descriptor(K, a), descriptor(K, b), i32(k > 0))
        wait(acc)                                            # before it neither acc may be touched nor the stage be filled again

One call is one block of instructions: it orders the registers, issues the products of all tiles and steps, and closes them into a group.
Groups end in their order. What a wait does not carry it does not hand out: LLVM takes the sums for a result of the call and may read them
before a wait that they do not pass through. Where registers of A are rewritten, a `pin` of what the
new words are made of keeps that behind the wait.

==========================================  ===========================================================================================
make_wgmma(n, dtype, ...)                    host function: ``mma(acc, a, b, accumulate)``, a block
make_wgmma_wait(pending, count)              host function: ``wait(acc)``, hands out acc[:count] unless its product is still under way
matrix_descriptor(leading, stride, swizzle)  host function: how a matrix lies in shared memory
descriptor(constant, address)                that of the matrix at `address`
accumulator_place, operand_place             host functions: which element of the matrix a thread has in which register
==========================================  ===========================================================================================

In shared memory a matrix consists of pieces of 16 bytes. `rows` are rows of A, columns of B; K-major means that k is contiguous in memory.
All offsets are bytes and multiples of 16, a step is 32 bytes of k (16 of k, MN-major):

=========  =======  ======================================  =======================================  ===============================
major      swizzle  contiguous                              stride                                   leading
=========  =======  ======================================  =======================================  ===============================
k          0        16 bytes of k, of 8 rows one by one     to the next 8 rows                       to the next 16 bytes of k
k          s        s bytes of k, rows s bytes apart        to the next 8 rows, often 8 s            not used
mn         0        8 rows (16 bytes), of 8 k one by one    to the next 8 rows                       to the next 8 of k
mn         s        s / 2 rows (s bytes), k s bytes apart   to the next 8 of k, often 8 s            to the next s / 2 rows
=========  =======  ======================================  =======================================  ===============================

A swizzle of s bytes exchanges the pieces of a row: bits 4 to 6 of the address (s = 128; 4 and 5, 64; 4, 32) are xored with bits 7 to 9. It
looks at addresses, not at the matrix: a tile that starts at any row of another one is an addition to `address`, and steps within a row
are, too. Those are `a_step` and `b_step`: 2, 32 bytes, if k is contiguous and swizzled; MN-major 16 rows of k, 2048 bytes for s = 128.

Fragments, for warp w and lane l of the warpgroup: the sums of thread (w, l) are 2 columns of 8, rows 16 w + l / 4 and 8 below::

    acc[4 j + 2 h + e] = D[16 w + 8 h + l / 4, 8 j + 2 (l % 4) + e]              j < n / 8;  h, e < 2

and the words of A, p = 1, 2 or 4 elements each (tf32, 16-bit, 8-bit), of a step of 8 p of k::

    a[2 g + h] = A[16 w + 8 h + l / 4, 4 p g + p (l % 4) + (0 ... p - 1)]        g, h < 2, low bits first

Tiles and steps follow one another: tile t is acc[t n / 2 ...], its step s is a[4 (t steps + s) ...], rows 64 t and on.

Sums are float32; tf32 operands are float32 whose low 13 bits the hardware does not look at. Of fp8 products a GPU keeps fewer bits than
float32 has while it adds them up (about 14); the simulator keeps all. Sums of integers wrap.

In the simulator the sums are NaN until handed out, products read shared memory when they are waited for, and both the data before (a
barrier, and fence_async after plain stores) and their next use must be ordered with that. It adds up in NumPy's order.
"""
import functools

from . import SIMULATED, device_function, u64

if SIMULATED:
    from .sim.wgmma import make_product, make_wait
else:
    from ._intrinsics import array_instruction

    def make_product(n, dtype, b_dtype, steps, tiles, a, majors, a_steps, b_steps, a_tile, fresh):
        text = _text(n, dtype, b_dtype, steps, tiles, a, majors, a_steps, b_steps, a_tile, fresh)
        words = 4 * tiles * (max(a_steps) + 1)
        accumulators = "int32" if "int" in dtype else "float32", tiles * n // 2, "only" if fresh else True
        flag = ("int32",) * (not fresh)
        if a == "shared":
            return array_instruction(text, (accumulators,), ("uint64", "uint64", *flag))
        return array_instruction(text, (accumulators, ("uint32", words, False)), ("uint64", *flag))

    def make_wait(pending, count):
        return array_instruction(f"wgmma.wait_group.sync.aligned {pending};", (("float32 int32", count, True),), (), early=False)


_PTX = {"bfloat16": "bf16", "float16": "f16", "tf32": "tf32", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2", "int8": "s8", "uint8": "u8"}
_DEPTH = {"bfloat16": 16, "float16": 16, "tf32": 8}  # elements of 32 bytes; of the 8-bit types 32
_SWIZZLES = {0: 0, 128: 1, 64: 2, 32: 3}  # the descriptor's code of a swizzle that repeats after so many bytes


def _check(n, dtype, b_dtype, steps, tiles, a, groups, a_major, b_major):
    what = f"make_wgmma: m64n{n}, {dtype}" + f" x {b_dtype}" * (b_dtype != dtype)
    if dtype not in _PTX or b_dtype not in _PTX:
        raise ValueError(f"{what}: dtypes are {', '.join(_PTX)}")
    if dtype != b_dtype and not (_PTX[dtype][0] == _PTX[b_dtype][0] == "e" or {dtype, b_dtype} == {"int8", "uint8"}):
        raise ValueError(f"{what}: only the two kinds of fp8, or int8 and uint8, may be mixed")
    integers = dtype in ("int8", "uint8")
    if n not in range(8, 257, 8) or integers and n > 32 and n % 16:
        raise ValueError(f"{what}: n is a multiple of 8 from 8 to 256{', for integers above 32 a multiple of 16' * integers}")
    if a not in ("shared", "registers") or a_major not in ("k", "mn") or b_major not in ("k", "mn"):
        raise ValueError(f"{what}: a={a!r} is 'shared' or 'registers', a_major={a_major!r} and b_major={b_major!r} are 'k' or 'mn'")
    if "mn" in (a_major, b_major) and _DEPTH.get(dtype) != 16:
        raise ValueError(f"{what}: only 16-bit operands may be MN-major")
    if a == "registers" and a_major != "k":
        raise ValueError(f"{what}: A in registers has no major dimension")
    words = 4 * tiles * groups if a == "registers" else 0
    if steps < 1 or tiles < 1 or tiles * n // 2 + words > 240:
        raise ValueError(f"{what}: {tiles} tiles of {steps} steps take {tiles} * {n} / 2 accumulators and {words} words of A; "
                         "together at most 240 registers")


def _text(n, dtype, b_dtype, steps, tiles, a, majors, a_steps, b_steps, a_tile, fresh):
    """PTX of a block. Its operands: the sums, the same tied, A (words or a descriptor), B, accumulate; fresh: the sums, A, B."""
    count = tiles * n // 2
    groups = max(a_steps) + 1
    words = 4 * tiles * groups if a == "registers" else 1
    at_a = count if fresh else 2 * count
    at_b, flag = at_a + words, "0" if fresh else f"${at_a + words + 1}"
    kind = f"m64n{n}k{_DEPTH.get(dtype, 32)}.{'s32' if 'int' in dtype else 'f32'}.{_PTX[dtype]}.{_PTX[b_dtype]}"
    tail = "" if "int" in dtype else ", 1, 1"
    if _DEPTH.get(dtype) == 16:
        tail += f", {int(majors[0] == 'mn')}" * (a == "shared") + f", {int(majors[1] == 'mn')}"
    lines = ["{ .reg .pred first, later; .reg .b64 da, db;",
             f"setp.ne.b32 first, {flag}, 0; setp.eq.b32 later, 0, 0;", "wgmma.fence.sync.aligned;"]
    for tile in range(tiles):
        acc = ", ".join(f"${tile * n // 2 + k}" for k in range(n // 2))
        for step in range(steps):
            if a == "shared":
                lines.append(f"add.s64 da, ${at_a}, {tile * a_tile + a_steps[step]};")
                left = "da"
            else:
                left = "{" + ", ".join(f"${at_a + 4 * (tile * groups + a_steps[step]) + k}" for k in range(4)) + "}"
            lines.append(f"add.s64 db, ${at_b}, {b_steps[step]};")
            lines.append(f"wgmma.mma_async.sync.aligned.{kind} {{{acc}}}, {left}, db, {'later' if step else 'first'}{tail};")
    return "\n".join(lines + ["wgmma.commit_group.sync.aligned; }"])


@functools.cache
def make_wgmma(n, dtype, b_dtype=None, *, steps=4, tiles=1, a="shared", a_major="k", b_major="k", a_step=2, b_step=2, a_tile=0,
               a_words=None, fresh=False):
    """Device function ``mma(acc, a, b, accumulate)``: acc (+)= A B, as one group of products. Host function.

    `acc` is a local array whose first `tiles` * n / 2 elements are the sums; it starts from zero where `accumulate` is 0. `b` is a
    descriptor, `a` a descriptor or the local array of words.

    Parameters
    ----------
    n : int
        Columns of B: a multiple of 8 up to 256; for integers 8, 24 or a multiple of 16.
    dtype, b_dtype : str
        "bfloat16", "float16", "tf32", "float8_e4m3fn", "float8_e5m2", "int8" or "uint8", of A and, if it is another, of B. The kinds of
        fp8 may be mixed, and those of integers.
    steps, tiles : int
        Steps of 32 bytes of k, and tiles of 64 rows of A, which all meet the same B.
    a : "shared" or "registers"
        Where A is. In registers it is uint32[4 * tiles * steps], unless `a_words` says otherwise, and must be left alone until the wait.
    a_major, b_major : "k" or "mn"
        The contiguous dimension in shared memory; "mn" takes 16-bit types.
    a_step, b_step : int or tuple of int
        What a step adds to a descriptor's address, in units of 16 bytes; or what each adds to that of the first, which is 0, for k that
        goes on in another box.
    a_tile : int
        What a tile adds.
    a_words : tuple of int, optional
        With A in registers which of its groups of four words each step takes, where steps share some; each has its own otherwise.
    fresh : bool
        ``mma(acc, a, b)``: acc = A B. No register keeps what acc was until then; with `accumulate` 0 the compiler cannot know.
    """
    b_dtype = b_dtype or dtype
    a_words = a_words or tuple(range(steps))
    _check(n, dtype, b_dtype, steps, tiles, a, max(a_words, default=0) + 1, a_major, b_major)
    a_steps, b_steps = (step if isinstance(step, tuple) else tuple(step * s for s in range(steps)) for step in (a_step, b_step))
    if a == "registers":
        a_steps = a_words
    if len(a_steps) != steps or len(b_steps) != steps:
        raise ValueError(f"make_wgmma: a_step={a_step}, a_words={a_words}, b_step={b_step} are not for {steps} steps")
    return make_product(n, dtype, b_dtype, steps, tiles, a, (a_major, b_major), a_steps, b_steps, a_tile, fresh=fresh)


@functools.cache
def make_wgmma_wait(pending, count):
    """Device function ``wait(acc)``: all but the latest `pending` groups are done, and acc[:count] may be used if its are. Host function.

    With `count` 0 shared memory is free again, and registers of A, but no sums are handed out.
    """
    if pending not in range(8) or not 0 <= count <= 240:
        raise ValueError(f"make_wgmma_wait: {pending} groups pending (0 to 7), {count} accumulators (0 to 240)")
    return make_wait(pending, count)


@functools.cache
def matrix_descriptor(leading, stride, swizzle):
    """What a descriptor says besides the address: offsets in bytes, the swizzle 0, 32, 64 or 128. Host function."""
    if swizzle not in _SWIZZLES:
        raise ValueError(f"matrix_descriptor: swizzle {swizzle}; it is 0, 32, 64 or 128")
    for name, value in (("leading", leading), ("stride", stride)):
        if value % 16 or not 0 <= value < 2 ** 18:
            raise ValueError(f"matrix_descriptor: {name} {value}; it is a multiple of 16 below 2**18 bytes")
    return leading >> 4 << 16 | stride >> 4 << 32 | _SWIZZLES[swizzle] << 62


@device_function
def descriptor(constant, address):
    """The uint64 descriptor of a matrix at shared address `address`; `constant` is a `matrix_descriptor`."""
    return u64(constant) | ((address & 0x3FFFF) >> 4)


def accumulator_place(n, thread, k):
    """(row, column) of the sum that `thread` of the warpgroup has in acc[k], of products of `n` columns. Integers or arrays of them."""
    tile, k = k // (n // 2), k % (n // 2)
    return 64 * tile + thread // 32 * 16 + k // 2 % 2 * 8 + thread % 32 // 4, k // 4 * 8 + thread % 4 * 2 + k % 2


def operand_place(dtype, steps, thread, word, part):
    """(row, k) of the element of A that `thread` of the warpgroup has in a[word], counted from the low bits on; blocks of `steps` steps."""
    depth = _DEPTH.get(dtype, 32)
    step, k = word // 4, word % 4
    row = step // steps * 64 + thread // 32 * 16 + k % 2 * 8 + thread % 32 // 4
    return row, step % steps * depth + k // 2 * (depth // 2) + thread % 4 * (depth // 8) + part
