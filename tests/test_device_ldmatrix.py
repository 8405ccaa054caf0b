"""Which element of which row each lane gets from shared memory, and what the simulator says of a load that nobody may do."""
import numpy as np
import pytest
from kit import launch

from dnnkern.device import SIMULATED, cuda, i32, u32
from dnnkern.device import ldmatrix
from dnnkern.device.vec import shared_address

VARIANTS = [(count, trans) for count in (1, 2, 4) for trans in ("", "_trans")]
ROWS = 40
WORDS = 4 * ROWS
simulated = pytest.mark.skipif(not SIMULATED, reason="only the simulator notices")


def _kernel(load, count, lanes=32, barrier=True, first=0, skew=0):
    """Kernel: lane l loads the matrix row numbered rows[l], and stores its words at y[4 l]."""
    @cuda.jit(launch_bounds=32)
    def kernel(x, rows, y):
        tile = cuda.shared.array(WORDS, u32, alignment=16)
        fragment = cuda.local.array(6, u32)
        t = i32(cuda.threadIdx.x)
        for k in range(t, WORDS, 32):
            tile[k] = x[k]
        if barrier:
            cuda.syncthreads()
        if t < lanes:
            load(fragment, first, u32(shared_address(tile, i32(4 * rows[t])) + u32(skew)))
            for q in range(count):
                y[i32(4 * t + q)] = fragment[first + q]
    return kernel


def _run(count, trans, **options):
    x = np.arange(8 * ROWS, dtype=np.uint16)
    rows = np.random.default_rng(count).permutation(ROWS)[:32].astype(np.int32)
    y = np.zeros((32, 4), np.uint32)
    launch(_kernel(getattr(ldmatrix, f"ldmatrix_x{count}{trans}"), count, **options), 1, 32, x.view(np.uint32), rows, y)
    return x.reshape(ROWS, 8)[rows].reshape(4, 8, 8), y


@pytest.mark.parametrize("count, trans", VARIANTS)
def test_elements(count, trans):
    """Rows in any order; lane l has row l / 4, columns 2 (l % 4) and one more, of the matrix or its transpose."""
    matrices, y = _run(count, trans, first=1)
    for q in range(count):
        wanted = (matrices[q].T if trans else matrices[q]).reshape(32, 2)
        np.testing.assert_array_equal(y.view(np.uint16).reshape(32, 4, 2)[:, q], wanted)


@pytest.mark.parametrize("transposed", [False, True])
def test_place_says_so(transposed):
    matrix = np.arange(64).reshape(8, 8)
    words = (matrix.T if transposed else matrix).reshape(32, 2)
    assert all(matrix[ldmatrix.place(lane, half, transposed)] == words[lane, half] for lane in range(32) for half in range(2))


def test_lanes_without_a_row_may_give_any_address():
    rows = np.full(32, -100000, np.int32)
    rows[:8] = np.arange(8)
    x, y = np.arange(8 * ROWS, dtype=np.uint16), np.zeros((32, 4), np.uint32)
    launch(_kernel(ldmatrix.ldmatrix_x1, 1), 1, 32, x.view(np.uint32), rows, y)
    np.testing.assert_array_equal(y[:, 0].copy().view(np.uint16), np.arange(64))


@simulated
@pytest.mark.parametrize("count, trans", VARIANTS)
@pytest.mark.parametrize("options, error, text", [
    (dict(skew=8), "Misuse", "misaligned or outside"), (dict(skew=1 << 16), "Misuse", "misaligned or outside"),
    (dict(first=5), "Misuse", r"elements 5 \.\. \d of a local array of 6"), (dict(lanes=31), "Misuse", r"takes all 32"),
    (dict(barrier=False), "Race", r"shared array tile\[\d+\].*syncwarp")])
def test_refused(count, trans, options, error, text):
    from dnnkern.device import sim
    if "first" in options and count == 1:
        options = dict(first=6)
        text = "elements 6"
    with pytest.raises(getattr(sim, error), match=text):
        _run(count, trans, **options)
