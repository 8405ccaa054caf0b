"""Registers that move between warpgroups: the pool, what can never be met, and the check on the host that says so first."""
import numpy as np
import pytest
from kit import launch

from dnnkern.device import SIMULATED, cuda, f32, i32
from dnnkern.device.registers import check_register_budget, make_register_claim, make_register_release

simulated = pytest.mark.skipif(not SIMULATED, reason="only the simulator notices; a GPU hangs")


def moving(threads, released, claimed, producers=128, bounds=None):
    """Kernel: the first warpgroups give registers, the others take them and keep 64 values each."""
    release, claim = make_register_release(released), make_register_claim(claimed)

    @cuda.jit(launch_bounds=bounds or (threads, 1))
    def kernel(x, y):
        t = i32(cuda.threadIdx.x)
        if t < producers:
            release()
            y[t] = x[t]
        else:
            claim()
            sums = cuda.local.array(64, f32)
            for k in range(64):
                sums[k] = x[i32(t + k)]
            total = f32(0)
            for k in range(64):
                total += sums[63 - k] * f32(k)
            y[t] = total
    return kernel


def run(kernel, threads, **options):
    x, y = np.arange(threads + 64, dtype=np.float32) % 7, np.full(threads, np.nan, np.float32)
    launch(kernel, 1, threads, x, y, **options)
    return x, y


@pytest.mark.parametrize("threads, released, claimed, producers", [
    (256, 40, 232, 128), (384, 40, 232, 128), (384, 24, 240, 128), (384, 96, 200, 128), (512, 32, 160, 128), (512, 24, 232, 256)])
def test_registers_move(threads, released, claimed, producers):
    check_register_budget(threads, ((producers, released), (threads - producers, claimed)))
    x, y = run(moving(threads, released, claimed, producers), threads)
    want = np.lib.stride_tricks.sliding_window_view(x, 64)[:threads] @ np.arange(63, -1, -1)
    want[:producers] = x[:producers]
    assert (y == want).all()


def test_claims_wait_for_releases():
    """The claim comes first and is met when the other warpgroup gives."""
    release, claim = make_register_release(40), make_register_claim(208)

    @cuda.jit(launch_bounds=(256, 2))  # 128 a thread
    def kernel(x, y):
        t = i32(cuda.threadIdx.x)
        if t >= 128:
            release()
        else:
            total = f32(0)
            for k in range(64):
                total += x[i32(t + k)]
            claim()
            y[t] = total
    check_register_budget(256, ((128, 40), (128, 208)), blocks=2)
    x, y = run(kernel, 256)
    assert (y[:128] == np.lib.stride_tricks.sliding_window_view(x, 64)[:128].sum(1)).all()


def test_back_and_forth():
    """What is claimed may be given back and claimed by another."""
    low, high = make_register_release(40), make_register_claim(208)

    @cuda.jit(launch_bounds=(256, 2))
    def kernel(x, y):
        t = i32(cuda.threadIdx.x)
        if t < 128:
            low()
        else:
            high()
        cuda.syncthreads()
        if t >= 128:
            low()
        else:
            high()
        y[t] = x[t]
    x, y = run(kernel, 256)
    assert (y == x[:256]).all()


@pytest.mark.parametrize("threads, shares, blocks, text", [
    (384, ((128, 40), (256, 240)), 1, r"128 \* 40 \+ 256 \* 240 = 66560 registers are more than the 384 \* 168 = 64512 that a launch of"),
    (512, ((128, 40), (384, 160)), 1, r"128 \* 40 \+ 384 \* 160 = 66560 .* 512 \* 128 = 65536"),
    (256, ((128, 40), (128, 232)), 2, r"= 34816 .* 256 \* 128 = 32768 .*2 a multiprocessor"),
    (384, ((128, 40), (128, 232)), 1, "the shares .* are of 256 threads, the block has 384"),
    (384, ((96, 40), (288, 200)), 1, "whole warpgroups of 128"),
    (384, ((128, 20), (256, 232)), 1, "20 registers a thread; it is a multiple of 8 from 24 to 256"),
    (384, ((128, 44), (256, 232)), 1, "44 registers")])
def test_budget_refused_on_the_host(threads, shares, blocks, text):
    with pytest.raises(ValueError, match=text):
        check_register_budget(threads, shares, blocks)


@pytest.mark.parametrize("threads, shares, blocks", [
    (384, ((128, 40), (256, 232)), 1), (384, ((128, 24), (256, 240)), 1), (512, ((128, 32), (384, 160)), 1), (128, ((128, 256),), 1),
    (256, ((128, 40), (128, 216)), 2), (384, ((128, 56), (256, 224)), 1)])
def test_budget_accepted(threads, shares, blocks):
    assert check_register_budget(threads, shares, blocks) is None


@pytest.mark.parametrize("count", [16, 264, 100, 0])
def test_counts_refused(count):
    for make in (make_register_release, make_register_claim):
        with pytest.raises(ValueError, match=f"{make.__name__}: {count} registers a thread"):
            make(count)


@simulated
@pytest.mark.parametrize("threads, released, claimed, text", [
    (384, 40, 240, r"setmaxnreg.inc 240 of warpgroup [12]: it has 168 of the 168 .* claims 128 \* 72 = 9216 more, 7168 are free"),
    (512, 40, 160, r"claims 128 \* 32 = 4096 more, 3072 are free")])
def test_overdrawn_budget_is_a_deadlock(threads, released, claimed, text):
    from dnnkern.device.sim import Deadlock
    with pytest.raises(Deadlock, match=text):
        run(moving(threads, released, claimed), threads)
    with pytest.raises(ValueError, match="would wait for ever"):
        check_register_budget(threads, ((128, released), (threads - 128, claimed)))


@simulated
def test_misuse():
    from dnnkern.device.sim import Deadlock, Misuse
    with pytest.raises(Misuse, match="setmaxnreg.dec 200: warpgroup 0 has 168 registers a thread already"):
        run(moving(384, 200, 232), 384)
    with pytest.raises(Misuse, match=r"others of warpgroup 0 in setmaxnreg\.dec 40: all must execute the same|in setmaxnreg\.inc 232"):
        run(moving(384, 40, 232, producers=96), 384)
    with pytest.raises(Misuse, match="it takes a warpgroup of 128 threads; the block of 192 has 64 from thread 128 on"):
        run(moving(192, 40, 232), 192)
    with pytest.raises(Misuse, match="kernel kernel has launch_bounds 384; without .*ptxas does not know"):
        run(moving(384, 40, 232, bounds=384), 384)
    release = make_register_release(40)

    @cuda.jit(launch_bounds=(128, 1))
    def three_warps(x, y):
        if cuda.threadIdx.x < 96:
            release()
    with pytest.raises(Deadlock, match="96 threads 0-95: setmaxnreg.dec 40 of warpgroup 0: 96 of its 128 threads arrived"):
        run(three_warps, 128)
