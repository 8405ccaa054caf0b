"""Tensor-core products of a warpgroup (sm_90a): 64 x n tiles accumulated in registers, asynchronously, operands in shared memory."""
import functools

from . import device_function, u64
from ._numba_tensor import array_instruction

_PTX = {"bfloat16": "bf16", "float16": "f16", "tf32": "tf32", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2", "int8": "s8", "uint8": "u8"}
_DEPTH = {"bfloat16": 16, "float16": 16, "tf32": 8}  # elements of 32 bytes; of the 8-bit types 32
_SWIZZLES = {0: 0, 128: 1, 64: 2, 32: 3}  # the descriptor's code of a swizzle that repeats after so many bytes


def _check(n, dtype, b_dtype, steps, tiles, a, a_major, b_major):
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
    words = 4 * tiles * steps if a == "registers" else 0
    if steps < 1 or tiles < 1 or tiles * n // 2 + words > 240:
        raise ValueError(f"{what}: {tiles} tiles of {steps} steps take {tiles} * {n} / 2 accumulators and {words} words of A; "
                         "together at most 240 registers")


def _text(n, dtype, b_dtype, steps, tiles, a, majors, a_step, b_step, a_tile):
    """One block: fence, the products, commit. Operands: accumulators, the same tied, A (words or descriptor), B, accumulate."""
    count = tiles * n // 2
    words = 4 * tiles * steps if a == "registers" else 1
    at_a, at_b, at_flag = 2 * count, 2 * count + words, 2 * count + words + 1
    kind = f"m64n{n}k{_DEPTH.get(dtype, 32)}.{'s32' if 'int' in dtype else 'f32'}.{_PTX[dtype]}.{_PTX[b_dtype]}"
    tail = "" if "int" in dtype else ", 1, 1"
    if _DEPTH.get(dtype) == 16:
        tail += f", {int(majors[0] == 'mn')}" * (a == "shared") + f", {int(majors[1] == 'mn')}"
    lines = ["{ .reg .pred first, later; .reg .b64 da, db;",
             f"setp.ne.b32 first, ${at_flag}, 0; setp.eq.b32 later, 0, 0;", "wgmma.fence.sync.aligned;"]
    for tile in range(tiles):
        acc = ", ".join(f"${tile * n // 2 + k}" for k in range(n // 2))
        for step in range(steps):
            if a == "shared":
                lines.append(f"add.s64 da, ${at_a}, {tile * a_tile + step * a_step};")
                left = "da"
            else:
                left = "{" + ", ".join(f"${at_a + 4 * (tile * steps + step) + k}" for k in range(4)) + "}"
            lines.append(f"add.s64 db, ${at_b}, {step * b_step};")
            lines.append(f"wgmma.mma_async.sync.aligned.{kind} {{{acc}}}, {left}, db, {'later' if step else 'first'}{tail};")
    return "\n".join(lines + ["wgmma.commit_group.sync.aligned; }"])


@functools.cache
def make_wgmma(n, dtype, b_dtype=None, *, steps=4, tiles=1, a="shared", a_major="k", b_major="k", a_step=2, b_step=2, a_tile=0):
    """Device function ``mma(acc, a, b, accumulate)``: acc (+)= A B over `steps` steps of 32 bytes of K, as one committed group."""
    b_dtype = b_dtype or dtype
    _check(n, dtype, b_dtype, steps, tiles, a, a_major, b_major)
    count = tiles * n // 2
    text = _text(n, dtype, b_dtype, steps, tiles, a, (a_major, b_major), a_step, b_step, a_tile)
    accumulators = "int32" if "int" in dtype else "float32", count, True
    if a == "shared":
        return array_instruction(text, (accumulators,), ("uint64", "uint64", "int32"))
    return array_instruction(text, (accumulators, ("uint32", 4 * tiles * steps, False)), ("uint64", "int32"))


@functools.cache
def make_wgmma_wait(pending, count):
    """Device function ``wait(acc)``: at most `pending` of the latest groups are under way; acc[:count] may be read if its are done."""
    if pending not in range(8) or not 0 <= count <= 240:
        raise ValueError(f"make_wgmma_wait: {pending} groups pending (0 to 7), {count} accumulators (0 to 240)")
    return array_instruction(f"wgmma.wait_group.sync.aligned {pending};", (("float32 int32", count, True),), (), early=False)


@functools.cache
def matrix_descriptor(leading, stride, swizzle):
    """What a descriptor says besides its address: offsets in bytes, the swizzle 0, 32, 64 or 128."""
    if swizzle not in _SWIZZLES:
        raise ValueError(f"matrix_descriptor: swizzle {swizzle}; it is 0, 32, 64 or 128")
    for name, value in (("leading", leading), ("stride", stride)):
        if value % 16 or not 0 <= value < 2 ** 18:
            raise ValueError(f"matrix_descriptor: {name} {value}; it is a multiple of 16 below 2**18 bytes")
    return leading >> 4 << 16 | stride >> 4 << 32 | _SWIZZLES[swizzle] << 62


@device_function
def descriptor(constant, address):
    """The uint64 descriptor of a matrix at shared address `address`; `constant` is a `matrix_descriptor`."""
    return u64(constant) | u64((address & 0x3FFFF) >> 4)
