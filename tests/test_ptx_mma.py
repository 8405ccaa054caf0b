"""What matrix instructions of a warp, clusters and named barriers compile to, down to machine code."""
import re

import pytest
from sass import machine_code, ptx

from dnnkern.device import SIMULATED, cuda, f32, f64, i32, u32

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from numba.core.errors import TypingError  # noqa: E402

from dnnkern.device import barrier, cluster, cp_async, dependent, ldmatrix, stmatrix, vec  # noqa: E402
from dnnkern.device.mma import FRAGMENTS, make_mma  # noqa: E402

CAST = {"float32": f32, "float64": f64, "int32": i32, "uint32": u32}
VARIANTS = [(count, trans) for count in (1, 2, 4) for trans in ("", "_trans")]


def _suffix(count, trans):
    return ("MT88" if trans else "M88") + ("" if count == 1 else f".{count}")


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a", "sm_100a", "sm_120a"])
def test_ldmatrix_is_one_instruction(arch):
    x1, x2, x4, x1_trans, x2_trans, x4_trans = (getattr(ldmatrix, f"ldmatrix_x{c}{t}") for t in ("", "_trans") for c in (1, 2, 4))

    @cuda.jit(launch_bounds=32)
    def kernel(y):
        tile = cuda.shared.array(256, u32, alignment=16)
        fragment = cuda.local.array(14, u32)
        t = i32(cuda.threadIdx.x)
        tile[t] = y[t]
        cuda.syncwarp()
        at = vec.shared_address(tile, i32(4 * t))
        x1(fragment, 0, at)
        x2(fragment, 1, at)
        x4(fragment, 3, at)
        x1_trans(fragment, 7, at)
        x2_trans(fragment, 8, at)
        x4_trans(fragment, 10, at)
        for q in range(14):
            y[i32(14 * t + q)] = fragment[q]
    code = machine_code(kernel, ("uint32*",), arch)
    assert code.opcodes("LDSM") == sorted("LDSM.16." + _suffix(*v) for v in VARIANTS) and not code.opcodes("LDS.", "LDL")


@pytest.mark.parametrize("arch", ["sm_90a", "sm_120a"])
def test_stmatrix_is_one_instruction(arch):
    x1, x2, x4, x1_trans, x2_trans, x4_trans = (getattr(stmatrix, f"stmatrix_x{c}{t}") for t in ("", "_trans") for c in (1, 2, 4))

    @cuda.jit(launch_bounds=32)
    def kernel(y):
        tile = cuda.shared.array(6 * 256, u32, alignment=16)
        t = i32(cuda.threadIdx.x)
        a, b, c, d = vec.load4(y, i32(4 * t))
        at = vec.shared_address(tile, i32(4 * t))
        x1(at, a)
        x2(u32(at + u32(1024)), b, c)
        x4(u32(at + u32(2048)), a, b, c, d)
        x1_trans(u32(at + u32(3072)), d)
        x2_trans(u32(at + u32(4096)), c, a)
        x4_trans(u32(at + u32(5120)), d, c, b, a)
        cuda.syncwarp()
        y[t] = tile[i32(t ^ 1)]
    code = machine_code(kernel, ("uint32*",), arch)
    assert code.opcodes("STSM") == sorted("STSM.16." + _suffix(*v) for v in VARIANTS) and not code.opcodes("STS", "STL")[6:]


OPCODES = {  # dtype, m, k: the machine's instruction and how many it takes, by architecture
    ("bfloat16", 16, 16): {arch: ("HMMA.16816.F32.BF16", 1) for arch in ("sm_80", "sm_90a", "sm_120a")},
    ("float16", 16, 16): {"sm_80": ("HMMA.16816.F32", 1), "sm_90a": ("HMMA.16816.F32", 1)},
    ("tf32", 16, 8): {"sm_80": ("HMMA.1688.F32.TF32", 1), "sm_90a": ("HMMA.1688.F32.TF32", 1)},
    ("int8", 16, 32): {"sm_80": ("IMMA.16832.S8.S8", 1), "sm_90a": ("IMMA.16832.S8.S8", 1)},
    ("uint8", 16, 32): {"sm_80": ("IMMA.16832.U8.U8", 1), "sm_90a": ("IMMA.16832.U8.U8", 1)},
    ("float8_e4m3fn", 16, 32): {"sm_89": ("QMMA.16832.F32.E4M3.E4M3", 1), "sm_90a": ("HMMA.16816.F32", 2)},
    ("float8_e5m2", 16, 32): {"sm_89": ("QMMA.16832.F32.E5M2.E5M2", 1), "sm_90a": ("HMMA.16816.F32", 2)},
    ("float64", 8, 4): {"sm_80": ("DMMA.884", 1), "sm_90a": ("DMMA.8x8x4", 1)},
    ("float64", 16, 4): {"sm_90a": ("DMMA.16x8x4", 1)}, ("float64", 16, 8): {"sm_90a": ("DMMA.16x8x8", 1)},
    ("float64", 16, 16): {"sm_90a": ("DMMA.16x8x16", 1)}}


@pytest.mark.parametrize("key, arch", [(k, a) for k, by_arch in OPCODES.items() for a in by_arch],
                         ids=lambda v: v if isinstance(v, str) else "-".join(map(str, v)))
def test_products_of_register_tiles(key, arch):
    """A loop of 2 x 2 products: one instruction each, accumulators in place."""
    f, (opcode, each) = FRAGMENTS[key], OPCODES[key][arch]
    (nc, na, nb), (tc, ta, tb), mma = f.words, (CAST[s] for s in f.scalars), make_mma(*key)
    size_a, size_b, size_c = 2 * na, 2 * nb, 4 * nc

    @cuda.jit(launch_bounds=32)
    def kernel(x, y, z, steps):
        a, b, acc = cuda.local.array(size_a, ta), cuda.local.array(size_b, tb), cuda.local.array(size_c, tc)
        t = i32(cuda.threadIdx.x)
        for e in range(size_c):
            acc[e] = tc(0)
        for k in range(steps):
            for e in range(size_a):
                a[e] = x[i32((k * size_a + e) * 32 + t)]
            for e in range(size_b):
                b[e] = y[i32((k * size_b + e) * 32 + t)]
            for r in range(2):
                for c in range(2):
                    mma(acc, (2 * r + c) * nc, a, r * na, b, c * nb)
        for e in range(size_c):
            z[i32(e * 32 + t)] = acc[e]
    code = machine_code(kernel, tuple(s + "*" for s in (f.scalars[1], f.scalars[2], f.scalars[0])) + ("int32",), arch)
    products = [line for line in code.lines if re.match("[HIDQ]MMA", line)]
    assert len(products) % (4 * each) == 0 and all(p.startswith(opcode + " ") for p in products), products
    # The result goes where the accumulator was, but for what a loop that ptxas unrolls or pipelines turns about.
    in_place = [p for p in products if (names := re.findall(r"\bR\d+\b", p))[0] == names[3 if len(names) > 3 else -1]]
    assert len(in_place) >= len(products) // 2, products


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_main_loop(arch):
    """Two stages of cp.async, a 64 x 32 tile a warp: every operand by ldmatrix, 32 products to 6 loads, no traffic beside."""
    mma, arrived = make_mma("bfloat16"), cp_async.wait_copies(1)
    rows, columns = 4, 4

    @cuda.jit(launch_bounds=(128, 1))
    def kernel(x, z, steps):
        tile = cuda.shared.array(4096, u32, alignment=128)
        a, b, acc = cuda.local.array(16, u32), cuda.local.array(8, u32), cuda.local.array(64, f32)
        t = i32(cuda.threadIdx.x)
        lane, warp = i32(t % 32), i32(t // 32)
        for e in range(64):
            acc[e] = f32(0)
        at = vec.shared_address(tile, i32(4 * t))
        source = vec.address(x, i32(4 * t))
        from_a = vec.shared_address(tile, i32((lane % 16) * 8 + lane // 16 * 4 + 64 * 8 * warp))
        from_b = vec.shared_address(tile, i32((lane % 8 + lane // 16 * 8) * 8 + lane // 8 % 2 * 4))
        for k in range(steps):
            stage = u32((k & 1) * 8192)
            cp_async.copy_async16(u32(at + u32(8192) - stage), source, 4096 * k, u32(16))
            cp_async.commit_copies()
            for r in range(rows):
                ldmatrix.ldmatrix_x4(a, 4 * r, u32(from_a + stage + u32(512 * r)))
            for c in range(columns // 2):
                ldmatrix.ldmatrix_x4(b, 4 * c, u32(from_b + stage + u32(512 * c)))
            for r in range(rows):
                for c in range(columns):
                    mma(acc, (r * columns + c) * 4, a, 4 * r, b, 2 * c)
            arrived()
            cuda.syncthreads()
        for e in range(64):
            z[i32(e * 128 + t)] = acc[e]
    code = machine_code(kernel, ("uint32*", "float32*", "int32"), arch)
    copies, loads, products = (code.count(o) for o in ("LDGSTS", "LDSM.16.M88.4", "HMMA.16816.F32.BF16"))
    assert products and products == 16 * copies and loads == 6 * copies, (copies, loads, products)
    # ptxas puts loads into the zero register behind the barrier of such a loop; they are its own business.
    others = [line for line in code.lines if re.match(r"(LDS|STS|LDG|LD|ST)(\.\S+)? ", line) and not re.match("LDS RZ|LDSM|LDGSTS", line)]
    assert not others and code.registers <= 168, (others, code.registers)


def test_clusters():
    @cuda.jit(launch_bounds=128)
    def kernel(y):
        tile = cuda.shared.array(128, f32)
        t = i32(cuda.threadIdx.x)
        tile[t] = y[t]
        cluster.cluster_arrive_relaxed()
        rank, size = cluster.cluster_rank(), cluster.cluster_size()
        cluster.cluster_wait()
        at = cluster.remote_address(vec.shared_address(tile, t), i32(size - 1 - rank))
        v = cluster.load_remote_f32(at)
        cluster.cluster_sync()
        cluster.store_remote_u32(at, u32(v))
        cluster.cluster_sync()
        y[t] = tile[t]
    code, text = machine_code(kernel, ("float32*",)), ptx(kernel, ("float32*",))
    assert code.count("UCGABAR_ARV") >= 3 and code.count("UCGABAR_WAIT") >= 3
    assert len(re.findall(r"barrier\.cluster\.arrive\.relaxed;", text)) == 1, "the relaxed arrival has a fence"
    # not aligned, or lanes that come to a barrier apart would count as several warps
    assert len(re.findall(r"barrier\.cluster\.(arrive\.release|wait\.acquire);", text)) == 5
    for instruction, count in (("mapa.shared::cluster.u32", 1), ("ld.shared::cluster.b32", 1), ("st.shared::cluster.b32", 1),
                               ("%cluster_ctarank", 1), ("%cluster_nctarank", 1)):
        assert text.count(instruction) == count, instruction


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_named_barriers(arch):
    """Constants go into the instruction, and the two arms' equal barriers stay two."""
    @cuda.jit(launch_bounds=128)
    def kernel(y):
        tile = cuda.shared.array(128, f32)
        t = i32(cuda.threadIdx.x)
        tile[t] = y[t]
        if t < 64:
            barrier.barrier_arrive(2, 128)
            barrier.barrier_sync(3, 64)
            y[t] = tile[t ^ 1]
        else:
            barrier.barrier_sync(2, 128)
            y[t] = tile[127 - t]
            barrier.barrier_sync(3, 64)
    code = machine_code(kernel, ("float32*",), arch)
    barriers = [re.sub(r"\s+", " ", line) for line in code.lines if line.startswith("BAR.")]
    assert sorted(b.split(" ", 1)[1] for b in barriers) == ["0x2, 0x80", "0x2, 0x80", "0x3, 0x40", "0x3, 0x40"], barriers
    assert code.count("BAR.ARV") == 1 and code.count("BAR.SYNC") == 3


def test_dependent_launches():
    @cuda.jit(launch_bounds=128)
    def kernel(y):
        t = i32(cuda.threadIdx.x)
        dependent.wait_for_previous_grid()
        v = y[t]
        dependent.launch_dependent_grids()
        y[t] = f32(v + f32(1))
    code = machine_code(kernel, ("float32*",))
    order = [name for line in code.lines if (name := line.split()[0].split(".")[0]) in ("ACQBULK", "LDG", "PREEXIT", "STG")]
    assert order == ["ACQBULK", "LDG", "PREEXIT", "STG"]


def test_collectives_in_two_arms_are_not_merged():
    """Nor moved under a condition: they are convergent."""
    mma = make_mma("bfloat16")

    @cuda.jit(launch_bounds=64)
    def kernel(x, y):
        a, b, acc = cuda.local.array(4, u32), cuda.local.array(2, u32), cuda.local.array(4, f32)
        t = i32(cuda.threadIdx.x)
        for e in range(4):
            a[e] = x[i32(t + 64 * e)]
            acc[e] = f32(0)
        for e in range(2):
            b[e] = x[i32(t + 64 * e)]
        if t < 32:
            mma(acc, 0, a, 0, b, 0)
            y[t] = acc[0]
        else:
            mma(acc, 0, a, 0, b, 0)
            y[t] = acc[1]
    code = machine_code(kernel, ("uint32*", "float32*"), "sm_80")
    assert code.count("HMMA") == 2


@pytest.mark.parametrize("types, words", [((f32, f32, u32), "a is a 1-D local array of uint32"),
                                          ((f64, u32, u32), "acc is a 1-D local array of float32")])
def test_operands_of_other_types_are_refused(types, words):
    from dnnkern.device._numba_compile import compile_ptx
    (tc, ta, tb), mma = types, make_mma("bfloat16")

    @cuda.jit(launch_bounds=32)
    def kernel():
        mma(cuda.local.array(4, tc), 0, cuda.local.array(4, ta), 0, cuda.local.array(2, tb), 0)
    with pytest.raises(TypingError, match=words):
        compile_ptx(kernel, (), "sm_80")
