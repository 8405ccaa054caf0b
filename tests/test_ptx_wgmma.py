"""What products of a warpgroup compile to: in place, in registers, as asynchronous as they are written. No GPU needed."""
import re

import pytest
from sass import machine_code, ptx

from dnnkern.device import SIMULATED, cuda, f32, i32, u32

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from dnnkern.device import convert  # noqa: E402
from dnnkern.device._numba_compile import compile_ptx  # noqa: E402
from dnnkern.device.mbarrier import mbarrier_arrive, mbarrier_arrive_expect, mbarrier_wait  # noqa: E402
from dnnkern.device.registers import check_register_budget, make_register_claim, make_register_release  # noqa: E402
from dnnkern.device.vec import pin, shared_address  # noqa: E402
from dnnkern.device.wgmma import descriptor, make_wgmma, make_wgmma_wait, matrix_descriptor  # noqa: E402

MNEMONICS = {  # of the SASS: the first letter is the kind of data path
    ("bfloat16", None): "HGMMA.64x{n}x16.F32.BF16", ("float16", None): "HGMMA.64x{n}x16.F32", ("tf32", None): "HGMMA.64x{n}x8.F32.TF32",
    ("float8_e4m3fn", None): "QGMMA.64x{n}x32.F32.E4M3.E4M3", ("float8_e5m2", None): "QGMMA.64x{n}x32.F32.E5M2.E5M2",
    ("float8_e5m2", "float8_e4m3fn"): "QGMMA.64x{n}x32.F32.E5M2.E4M3", ("int8", None): "IGMMA.64x{n}x32.S8.S8",
    ("uint8", None): "IGMMA.64x{n}x32.U8.U8", ("uint8", "int8"): "IGMMA.64x{n}x32.U8.S8"}


def main_loop(n, dtype, b_dtype=None, tiles=1, steps=4, a="shared", a_major="k", b_major="k", consumers=1):
    """Kernel: a producer warpgroup and others that multiply stages of shared memory, one behind."""
    count, words, scalar = tiles * n // 2, 4 * tiles * steps, i32 if "int" in dtype else f32
    mma = make_wgmma(n, dtype, b_dtype, tiles=tiles, steps=steps, a=a, a_major=a_major, b_major=b_major, a_tile=512)
    older, done = make_wgmma_wait(1, 0), make_wgmma_wait(0, count)
    threads, registers, constant = 128 * (consumers + 1), a == "registers", matrix_descriptor(16, 1024, 128)
    claimed = {1: 232, 2: 232, 3: 160}[consumers]
    kept = 32 if consumers == 3 else 40
    check_register_budget(threads, ((128, kept), (threads - 128, claimed)))
    release, claim = make_register_release(kept), make_register_claim(claimed)

    @cuda.jit(launch_bounds=(threads, 1))
    def kernel(source, out, stages):
        s = cuda.shared.array(8192, u32, alignment=1024)
        base = shared_address(s, 0)
        full, empty = u32(base + 32000), u32(base + 32008)
        t = i32(cuda.threadIdx.x)
        if t < 128:
            release()
            if t == 0:
                for k in range(stages):
                    mbarrier_wait(empty, u32(k & 1))
                    mbarrier_arrive_expect(full, u32(16384))
        else:
            claim()
            acc = cuda.local.array(count, scalar)
            for k in range(count):
                acc[k] = scalar(0)
            if registers:
                fragment = cuda.local.array(words, u32)
                for k in range(words):
                    fragment[k] = source[i32(t * words + k)]
            for k in range(stages):
                mbarrier_wait(full, u32(k & 1))
                if registers:
                    mma(acc, fragment, descriptor(constant, u32(base + 8192)), i32(1))
                else:
                    mma(acc, descriptor(constant, base), descriptor(constant, u32(base + 8192)), i32(1))
                older(acc)
                mbarrier_arrive(empty)
            done(acc)
            for k in range(count):
                out[i32(k * threads + t)] = acc[k]
    return kernel


def check(n, dtype, b_dtype=None, tiles=1, steps=4, **options):
    kernel = main_loop(n, dtype, b_dtype, tiles, steps, **options)
    out = "int32*" if "int" in dtype else "float32*"
    code = machine_code(kernel, ("uint32*", out, "int32"))
    name = MNEMONICS[dtype, b_dtype].format(n=n)
    products = [line for line in code.lines if "GMMA" in line]
    groups = code.count("WARPGROUP.ARRIVE")
    assert groups == sum(line.endswith("gsb0") for line in products) > 0, "a group is begun and committed once"
    assert [line.split()[0] for line in products] == [name] * (groups * tiles * steps)
    assert code.count("USETMAXREG") == 2
    return code


@pytest.mark.parametrize("a", ["shared", "registers"])
@pytest.mark.parametrize("dtype, b_dtype", MNEMONICS)
def test_types(dtype, b_dtype, a):
    check(64, dtype, b_dtype, a=a)


@pytest.mark.parametrize("dtype, n", [
    ("bfloat16", 8), ("bfloat16", 24), ("float16", 104), ("bfloat16", 192), ("bfloat16", 256), ("tf32", 256), ("int8", 8), ("int8", 24),
    ("int8", 80), ("int8", 256), ("float8_e4m3fn", 216)])
def test_widths(dtype, n):
    check(n, dtype)


@pytest.mark.parametrize("dtype, n, steps, a", [
    ("bfloat16", 128, 4, "shared"), ("bfloat16", 64, 4, "registers"), ("int8", 128, 2, "shared"), ("float8_e4m3fn", 96, 4, "registers")])
def test_two_tiles(dtype, n, steps, a):
    check(n, dtype, tiles=2, steps=steps, a=a)


@pytest.mark.parametrize("majors", [("k", "mn"), ("mn", "k"), ("mn", "mn")])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_majors(dtype, majors):
    code = check(128, dtype, a_major=majors[0], b_major=majors[1])
    flags = "".join(f".tnsp{operand}" for operand, major in zip("AB", majors) if major == "mn")
    assert {re.search(r"gdesc\[\w+\]([^,]*),", line)[1] for line in code.lines if "GMMA" in line} == {flags}


@pytest.mark.parametrize("consumers, n, registers", [(2, 256, 168), (3, 160, 128)])
def test_registers_at_launch(consumers, n, registers):
    assert check(n, "bfloat16", consumers=consumers).registers == registers


def test_accumulators_stay_where_they_are():
    """In the main loop no register is moved between products."""
    lines = check(128, "bfloat16").lines
    at = [k for k, line in enumerate(lines) if "HGMMA" in line]
    sums = {int(r) for k in at for r in re.findall(r"x16\.F32\.BF16 R(\d+)", lines[k])}
    assert len(sums) == 1, "the products of one accumulator are in different registers"
    first = sums.pop()
    mine = {f"R{first + k}" for k in range(64)}
    for line in lines[at[0]:at[-1]]:
        target = re.match(r"(?:MOV|IMAD\.MOV\S*|CS2R) +(R\d+)", line)
        assert not target or target[1] not in mine, line


def test_a_product_of_a_product():
    """S = Q K; P = packed S; O += P V: P is made behind the wait for the O before, because of the pin."""
    scores = make_wgmma(64, "bfloat16")
    weighted = make_wgmma(128, "bfloat16", a="registers", b_major="mn", b_step=128)
    wait_scores, wait_all, held = make_wgmma_wait(1, 32), make_wgmma_wait(0, 64), pin(32)
    k_major, mn_major = matrix_descriptor(16, 1024, 128), matrix_descriptor(8192, 1024, 128)
    pack = convert.element("bfloat16").pack_chunk

    @cuda.jit(launch_bounds=(128, 1))
    def kernel(out, blocks):
        s = cuda.shared.array(12288, u32, alignment=1024)
        base = shared_address(s, 0)
        t = i32(cuda.threadIdx.x)
        score, total = cuda.local.array(32, f32), cuda.local.array(64, f32)
        p = cuda.local.array(16, u32)
        for k in range(64):
            total[k] = f32(0)
        for k in range(16):
            p[k] = u32(0)
        for k in range(blocks):
            weighted(total, p, descriptor(mn_major, u32(base + 16384)), i32(1))
            scores(score, descriptor(k_major, base), descriptor(k_major, u32(base + 8192)), i32(0))
            wait_all(total)
            wait_scores(score)
            held(score)
            for j in range(4):
                pack(p, 4 * j, score, 8 * j)
        wait_all(total)
        for k in range(64):
            out[i32(k * 128 + t)] = total[k]
    text = ptx(kernel, ("float32*", "int32"))
    text = text[text.index("wgmma.fence"):]
    assert text.index("wgmma.wait_group") < text.index("cvt.rn.bf16x2.f32")
    assert {name.split(".")[1] for name in machine_code(kernel, ("float32*", "int32")).opcodes("HGMMA")} == {"64x128x16", "64x64x16"}


def test_refuses_arrays_of_another_type():
    mma, wait = make_wgmma(16, "int8"), make_wgmma_wait(0, 8)

    @cuda.jit(launch_bounds=128)
    def kernel(out):
        acc = cuda.local.array(8, f32)
        mma(acc, 0, 0, 0)
        wait(acc)
        out[0] = acc[0]
    with pytest.raises(Exception, match="expected a 1-D local array of 8 int32, got array"):
        compile_ptx(kernel, ("float32*",), "sm_90a")
