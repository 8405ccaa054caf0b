"""What mbarriers and bulk copies compile to, down to machine code."""
import pytest
from sass import machine_code, ptx

from dnnkern.device import SIMULATED, cuda, f32, i32, i64, u32

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from dnnkern.device import cluster, device_function, mbarrier, tma, vec  # noqa: E402
from dnnkern.device.tma import make_bulk_wait, make_bulk_wait_read, make_tma_load, make_tma_reduce_add, make_tma_store  # noqa: E402

HOPPER = ["sm_90a", "sm_100a", "sm_120a"]
POLICY = tma.EVICT_FIRST


def barriers(body):
    """Kernel ``(y)`` of what `body(bar, y)` does with the address of a barrier."""
    body = device_function(body)

    @cuda.jit(launch_bounds=128)
    def kernel(y):
        bars = cuda.shared.array(2, i64)
        body(vec.shared_address(bars, 0), y)
    return kernel


BARRIERS = {  # what is called: the PTX, the machine code for sm_90a
    "init": (lambda bar, y: mbarrier.mbarrier_init(bar, u32(3)), "mbarrier.init.shared::cta.b64", "SYNCS.EXCH.64"),
    "fence_init": (lambda bar, y: mbarrier.fence_mbarrier_init(), "fence.mbarrier_init.release.cluster;", None),
    "invalidate": (lambda bar, y: mbarrier.mbarrier_invalidate(bar), "mbarrier.inval.shared::cta.b64", "SYNCS.CCTL.IV"),
    "arrive": (lambda bar, y: mbarrier.mbarrier_arrive(bar), "mbarrier.arrive.shared::cta.b64 _,", "SYNCS.ARRIVE.TRANS64.A1T0"),
    "arrive_count": (lambda bar, y: mbarrier.mbarrier_arrive_count(bar, u32(2)), "mbarrier.arrive.shared::cta.b64 _,",
                     "SYNCS.ARRIVE.TRANS64"),
    "arrive_expect": (lambda bar, y: mbarrier.mbarrier_arrive_expect(bar, u32(64)), "mbarrier.arrive.expect_tx.shared::cta.b64 _,",
                      "SYNCS.ARRIVE.TRANS64"),
    "expect": (lambda bar, y: mbarrier.mbarrier_expect(bar, u32(64)), "mbarrier.expect_tx.relaxed.cta.shared::cta.b64",
               "SYNCS.ARRIVE.TRANS64.RED.A0TR"),
    "arrive_remote": (lambda bar, y: mbarrier.mbarrier_arrive_remote(bar, u32(1)), "mbarrier.arrive.release.cluster.shared::cluster.b64 _,",
                      "SYNCS.ARRIVE.TRANS64.RED.A1T0"),
    "free_remote": (lambda bar, y: mbarrier.mbarrier_free_remote(bar, u32(1)), "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _,",
                    "SYNCS.ARRIVE.TRANS64.RED.A1T0"),
    "store_async": (lambda bar, y: cluster.store_async_f32(cluster.remote_address(u32(bar + u32(8)), u32(1)), f32(1),
                                                           cluster.remote_address(bar, u32(1))),
                    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32", "STAS"),
    "copy_async": (lambda bar, y: cluster.copy_async(cluster.remote_address(u32(bar + u32(16)), u32(1)), u32(bar + u32(16)), u32(16),
                                                     cluster.remote_address(bar, u32(1))),
                   "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes", "UBLKCP"),
    "arrive_copies": (lambda bar, y: mbarrier.mbarrier_arrive_copies(bar), "cp.async.mbarrier.arrive.noinc.shared::cta.b64",
                      "ARRIVES.LDGSTSBAR"),
    "wait": (lambda bar, y: mbarrier.mbarrier_wait(bar, u32(0)), "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64",
             "SYNCS.PHASECHK.TRANS64.TRYWAIT"),
    "wait_cluster": (lambda bar, y: mbarrier.mbarrier_wait_cluster(bar, u32(0)), "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64",
                     "SYNCS.PHASECHK.TRANS64.TRYWAIT"),
    "fence_async": (lambda bar, y: mbarrier.fence_async(), "fence.proxy.async;", "FENCE.VIEW.ASYNC"),
    "fence_async_global": (lambda bar, y: mbarrier.fence_async_global(), "fence.proxy.async.global;", "FENCE.VIEW.ASYNC.G"),
    "fence_async_shared": (lambda bar, y: mbarrier.fence_async_shared(), "fence.proxy.async.shared::cta;", "FENCE.VIEW.ASYNC.S"),
}


@pytest.mark.parametrize("name", BARRIERS)
def test_barriers_are_one_instruction(name):
    body, instruction, sass = BARRIERS[name]
    kernel = barriers(body)
    code, text = machine_code(kernel, ("int32*",)), ptx(kernel, ("int32*",))
    assert text.count(instruction) == 1, text
    assert sass is None or code.count(sass) == 1, code.lines


def test_the_relaxed_arrival_and_the_counted_store_have_no_fence():
    """The other's waits until all of the thread's stores have been performed."""
    fences = {name: machine_code(barriers(BARRIERS[name][0]), ("int32*",)).count("MEMBAR")
              for name in ("arrive_remote", "free_remote", "store_async")}
    assert fences["arrive_remote"] >= 1 and fences["free_remote"] == fences["store_async"] == 0


@pytest.mark.parametrize("arch", ["sm_80"] + HOPPER)
def test_what_ampere_has(arch):
    """Barriers, their arrivals, copies that arrive, and a loop of tests; no result of an arrival is kept."""
    @cuda.jit(launch_bounds=128)
    def kernel(y):
        bars = cuda.shared.array(1, i64)
        bar = vec.shared_address(bars, 0)
        mbarrier.mbarrier_init(bar, u32(128))
        cuda.syncthreads()
        mbarrier.mbarrier_arrive_copies(bar)
        while mbarrier.mbarrier_test(bar, u32(0)) == 0:
            pass
        mbarrier.mbarrier_arrive(bar)
        y[0] = mbarrier.mbarrier_test(bar, u32(1))
    assert ptx(kernel, ("int32*",), arch).count("mbarrier.test_wait.parity") >= 2
    assert machine_code(kernel, ("int32*",), arch)


@pytest.mark.parametrize("arch", HOPPER)
def test_a_wait_is_a_loop_of_its_own(arch):
    """Two waits in a row, in a loop that is unrolled: their labels do not meet, and nothing but the test is in their loops."""
    @cuda.jit(launch_bounds=128)
    def kernel(y):
        bars = cuda.shared.array(2, i64)
        bar = vec.shared_address(bars, 0)
        for k in range(2):
            mbarrier.mbarrier_wait(bar, u32(k))
            mbarrier.mbarrier_wait(u32(bar + u32(8)), u32(k))
        y[0] = i32(1)
    code = machine_code(kernel, ("int32*",), arch)
    assert ptx(kernel, ("int32*",), arch).count("mbarrier.try_wait") in (2, 4)
    assert code.count("SYNCS.PHASECHK.TRANS64.TRYWAIT") >= 2


LOADS = [(rank, im2col, multicast, hint) for rank in range(1, 6) for im2col in (False, True) if not im2col or rank > 2
         for multicast in (False, True) for hint in (False, True)]


def _arguments(rank, im2col, multicast, hint):
    given = [f"i32(n + {k})" for k in range(rank)] + ["u32(n)"] * (rank - 2 if im2col else 0)
    return ", ".join(given + ["u32(3)"] * multicast + ["POLICY"] * hint)


def kernel_of(calls, names):
    """Kernel ``(map, x, n)`` of lines that use `a`, `at`, `bar`, `x`, `n` and the functions in `names`."""
    scope = {"cuda": cuda, "vec": vec, "tma": tma, "i32": i32, "i64": i64, "u32": u32, "POLICY": POLICY, **names}
    exec("def kernel(m, x, n):\n    s, bars = cuda.shared.array(1024, i32, alignment=1024), cuda.shared.array(1, i64)\n"
         "    a, bar, at = vec.shared_address(s, 0), vec.shared_address(bars, 0), tma.tensor_map_address(m)\n    "
         + "\n    ".join(calls), scope)
    return cuda.jit(launch_bounds=32)(scope["kernel"])


SIGNATURE = ("tensormap", "uint32*", "int32")


@pytest.mark.parametrize("kind", LOADS, ids=lambda k: f"{k[0]}d" + "-im2col" * k[1] + "-multicast" * k[2] + "-hint" * k[3])
def test_loads_are_one_instruction(kind):
    rank, im2col, multicast, hint = kind
    kernel = kernel_of([f"load(a, at, bar, {_arguments(*kind)})"], {"load": make_tma_load(*kind)})
    code = machine_code(kernel, SIGNATURE)
    name = f"UTMALDG.{rank}D{'.IM2COL' * im2col}{'.MULTICAST' * multicast}"
    assert code.opcodes("UTMA") == [name], code.lines
    assert any(line.startswith(name + " ") and ("desc[" in line) == hint for line in code.lines)


@pytest.mark.parametrize("rank", range(1, 6))
def test_stores_and_reductions_are_one_instruction(rank):
    plain, hinted = _arguments(rank, False, False, False), _arguments(rank, False, False, True)
    kernel = kernel_of([f"store(at, a, {plain})", f"hinted(at, a, {hinted})", f"add(at, a, {plain})"],
                       {"store": make_tma_store(rank), "hinted": make_tma_store(rank, hint=True), "add": make_tma_reduce_add(rank)})
    code = machine_code(kernel, SIGNATURE)
    assert code.opcodes("UTMA") == [f"UTMAREDG.{rank}D.ADD"] + [f"UTMASTG.{rank}D"] * 2, code.lines
    assert sum("desc[" in line for line in code.lines if line.startswith("UTMASTG")) == 1


def test_bulk_copies_groups_and_waits():
    kernel = kernel_of(["tma.prefetch_tensor_map(at)", "tma.bulk_load(a, vec.address(x, 0), u32(64), bar)",
                        "tma.bulk_store(vec.address(x, 4), a, u32(64))", "tma.bulk_reduce_add_f32(vec.address(x, 8), a, u32(32))",
                        "tma.bulk_commit()", "read()", "done()"], {"read": make_bulk_wait_read(1), "done": make_bulk_wait(0)})
    code, text = machine_code(kernel, SIGNATURE), ptx(kernel, SIGNATURE)
    assert code.opcodes("UBLK") == ["UBLKCP.G.S", "UBLKCP.S.G", "UBLKRED.G.S.ADD.F32.RN"], code.lines
    assert code.count("UTMACCTL.PF") == 1 and code.count("UTMACMDFLUSH") == 1
    assert "cp.async.bulk.wait_group.read 1;" in text and "cp.async.bulk.wait_group 0;" in text
    assert [line for line in code.lines if line.startswith("DEPBAR")], code.lines


@pytest.mark.parametrize("arch", HOPPER[:2])
def test_a_pipeline(arch):
    """Loads into a ring by one thread: coordinates, addresses and parities in registers, the map where the launch has put it."""
    copy = make_tma_load(2)

    @cuda.jit(launch_bounds=128)
    def kernel(m, y, steps):
        ring, bars = cuda.shared.array(4096, i32, alignment=1024), cuda.shared.array(4, i64)
        t, at = i32(cuda.threadIdx.x), tma.tensor_map_address(m)
        full, empty = vec.shared_address(bars, 0), vec.shared_address(bars, 2)
        if t == 0:
            for s in range(2):
                mbarrier.mbarrier_init(u32(full + u32(8 * s)), u32(1))
                mbarrier.mbarrier_init(u32(empty + u32(8 * s)), u32(96))
            mbarrier.fence_mbarrier_init()
        cuda.syncthreads()
        for k in range(steps):
            s, parity = u32(k & 1), u32(i32(k) >> i32(1) & 1)
            if t == 0:
                mbarrier.mbarrier_wait(u32(empty + u32(8) * s), u32(parity ^ u32(1)))
                mbarrier.mbarrier_arrive_expect(u32(full + u32(8) * s), u32(8192))
                copy(u32(vec.shared_address(ring, 0) + u32(8192) * s), at, u32(full + u32(8) * s), 0, i32(64 * k))
            elif t >= 32:
                mbarrier.mbarrier_wait(u32(full + u32(8) * s), parity)
                y[t] += ring[i32(2048 * (k & 1) + t)]
                mbarrier.mbarrier_arrive(u32(empty + u32(8) * s))
    code = machine_code(kernel, ("tensormap", "int32*", "int32"), arch)
    assert code.count("UTMALDG.2D") >= 1 and not code.doubles and not code.divisions
