"""Where the elements of each lane go in shared memory, and what the simulator says of a store that nobody may do."""
import numpy as np
import pytest
from kit import launch, needs

from dnnkern.device import SIMULATED, cuda, i32, u32
from dnnkern.device import stmatrix
from dnnkern.device.vec import shared_address

pytestmark = needs(9)
VARIANTS = [(count, trans) for count in (1, 2, 4) for trans in ("", "_trans")]
ROWS = 40
WORDS = 4 * ROWS
simulated = pytest.mark.skipif(not SIMULATED, reason="only the simulator notices")


def _kernel(count, trans, lanes=32, barrier=True, skew=0):
    """Kernel: the words x[4 l] ... of lane l are stored to rows whose numbers the lanes give; y is all of them."""
    store = getattr(stmatrix, f"stmatrix_x{count}{trans}")

    def whole(at, x, t):
        if count == 1:
            store(at, x[t])
        elif count == 2:
            store(at, x[t], x[i32(t + 1)])
        else:
            store(at, x[t], x[i32(t + 1)], x[i32(t + 2)], x[i32(t + 3)])
    whole = cuda.jit(device=True, forceinline=True)(whole)

    @cuda.jit(launch_bounds=32)
    def kernel(x, rows, y):
        tile = cuda.shared.array(WORDS, u32, alignment=16)
        t = i32(cuda.threadIdx.x)
        for k in range(t, WORDS, 32):
            tile[k] = u32(0)
        cuda.syncwarp()
        if t < lanes:
            whole(u32(shared_address(tile, i32(4 * rows[t])) + u32(skew)), x, i32(4 * t))
        if barrier:
            cuda.syncwarp()
        for k in range(t, WORDS, 32):
            y[k] = tile[k]
    return kernel


def _run(count, trans, same=False, **options):
    x = np.arange(1, 257, dtype=np.uint16)
    rows = np.random.default_rng(count).permutation(ROWS)[:32].astype(np.int32)
    if same:
        rows[1] = rows[0]
    y = np.full(WORDS, 7, np.uint32)
    launch(_kernel(count, trans, **options), 1, 32, x.view(np.uint32), rows, y)
    return x.reshape(32, 4, 2), rows, y.view(np.uint16).reshape(ROWS, 8)


@pytest.mark.parametrize("count, trans", VARIANTS)
def test_elements(count, trans):
    """Lane l has row l / 4, columns 2 (l % 4) and one more, of the matrix or its transpose; other memory stays."""
    words, rows, y = _run(count, trans)
    wanted = np.zeros((ROWS, 8), np.uint16)
    for q in range(count):
        matrix = words[:, q].reshape(8, 8)
        wanted[rows[8 * q:8 * q + 8]] = matrix.T if trans else matrix
    np.testing.assert_array_equal(y, wanted)


@simulated
@pytest.mark.parametrize("count, trans", VARIANTS)
@pytest.mark.parametrize("options, error, text", [
    (dict(skew=4), "Misuse", "misaligned or outside"), (dict(skew=1 << 16), "Misuse", "misaligned or outside"),
    (dict(same=True), "Misuse", r"lanes \[0, 1\] give the same row"), (dict(lanes=31), "Deadlock", r"lanes \[31\] have not arrived"),
    (dict(barrier=False), "Race", r"shared array tile\[\d+\].*syncwarp")])
def test_refused(count, trans, options, error, text):
    from dnnkern.device import sim
    with pytest.raises(getattr(sim, error), match=text):
        _run(count, trans, **options)
