"""The Ampere main loop's shared memory: lanes that are served together want different banks, and elements are where they are looked for."""
import itertools

import pytest

from dnnkern.device import SIMULATED

if not SIMULATED:
    pytest.skip("calls device functions on the host, which the simulator allows", allow_module_level=True)

from dnnkern.engine import ampere_fragments as fragments  # noqa: E402
from dnnkern.matmul import matmul_mma as mma  # noqa: E402
from dnnkern.engine.ampere_fragments import Stored  # noqa: E402
from dnnkern.engine.ampere_loaders import CopyLoader, RegisterLoader  # noqa: E402
from dnnkern.engine.loaders import ALONG_K, ALONG_ROWS  # noqa: E402

SERVED_TOGETHER = {4: 32, 8: 16, 16: 8}  # lanes, by bytes of an access
TILES = {dtype: mma.TILES + mma.TILES_SKINNY for dtype in ("bfloat16", "int8", "tf32")}
TILES["float64"] = mma.TILES_F64 + mma.TILES_F64_SKINNY
# Loads that take twice as long: a stage with too few rows for its lines of k to lie in different banks. (dtype, rows)
TWICE = {("int8", 32), ("int8", 16)}


def _stages():
    for dtype, tiles in TILES.items():
        for tile, order, left, wanted in itertools.product(tiles, (ALONG_K, ALONG_ROWS), (True, False), (1, 2, 4)):
            rows, warp_rows = (tile.bm, tile.warp_m) if left else (tile.bn, tile.warp_n)
            if (order == ALONG_K or wanted == 1) and not (dtype == "int8" and order == ALONG_ROWS and warp_rows < 16):
                yield tile.threads, Stored(dtype, order, rows, warp_rows, tile.depth, left, wanted)


STAGES = list(dict.fromkeys(_stages()))


def wavefronts(addresses, size):
    """How many times the busiest bank is wanted by different words, at worst over the groups of lanes that are served together."""
    worst = 0
    for first in range(0, len(addresses), SERVED_TOGETHER[size]):
        words = {a + b for a in addresses[first:first + SERVED_TOGETHER[size]] for b in range(0, size, 4)}
        banks = [word // 4 % 32 for word in words]
        worst = max(worst, max(map(banks.count, banks)))
    return worst


def reads(stored, row, step, monkeypatch):
    """[(bytes of an access, the lanes' addresses)] of a warp's loads of one step."""
    seen = []

    def recorder(size, values):
        def load(*args):  # ldmatrix(fragment, i, address) or load_shared(address)
            seen.append((size, int(args[-1])))
            return (0,) * values if values > 1 else 0
        return load
    for name, size, values in (("load_shared_u32", 4, 1), ("load_shared_2u32", 8, 2), ("load_shared_4u32", 16, 4),
                               ("load_shared_f64", 8, 1), ("load_shared_2f64", 16, 2), *((f"ldmatrix_x{c}{t}", 16, 0) for c in (2, 4)
                                                                                         for t in ("", "_trans"))):
        monkeypatch.setattr(fragments, name, recorder(size, values))
    origin, load = fragments.make_reader.__wrapped__(stored)
    lanes = []
    for lane in range(32):
        seen.clear()
        load([0] * 512, 0, int(origin(lane, row, 0)), step)
        lanes.append(list(seen))
    return [(size, [calls[k][1] for calls in lanes]) for k, (size, _) in enumerate(lanes[0])]


@pytest.mark.parametrize("dtype", TILES)
def test_loads_of_fragments_are_free_of_bank_conflicts(dtype, monkeypatch):
    for stored in dict.fromkeys(s for _, s in STAGES if s.dtype == dtype):
        for row in range(0, stored.rows, stored.warp_rows):
            for step in range(stored.depth // stored.step_bytes):
                for size, addresses in reads(stored, row, step, monkeypatch):
                    assert all(0 <= a <= stored.bytes - size and a % size == 0 for a in addresses), stored
                    most = 2 if stored.order == ALONG_ROWS and (dtype, stored.rows) in TWICE else 1
                    assert wavefronts(addresses, size) <= most, f"{stored}, rows from {row}, step {step}"


@pytest.mark.parametrize("dtype", TILES)
def test_loads_of_a_warp_cover_its_rows(dtype, monkeypatch):
    for stored in dict.fromkeys(s for _, s in STAGES if s.dtype == dtype):
        whole = set()
        for row in range(0, stored.rows, stored.warp_rows):
            for step in range(stored.depth // stored.step_bytes):
                for size, addresses in reads(stored, row, step, monkeypatch):
                    whole |= {a + b for a in addresses[:16 if stored.warp_rows == 8 and size == 16 else 32] for b in range(0, size, 4)}
        assert whole == set(range(0, stored.bytes, 4)), stored


def _places(share):
    """{offset in the stage: (line, byte in the line)} of all threads' pieces."""
    line, byte, offset, piece = share.functions()
    threads, found = share.step * share.lanes, {}
    for tid in range(threads):
        for n, c in itertools.product(range(share.lines), range(share.pieces)):
            if line(tid, n) < share.stored.lines:
                at = int(piece(offset(tid), n, c))
                assert at not in found
                found[at] = int(line(tid, n)), int(byte(tid, c))
    return found


@pytest.mark.parametrize("dtype", TILES)
def test_loaders_fill_a_stage(dtype):
    for threads, stored in STAGES:
        if stored.dtype != dtype or stored.wanted == 2:
            continue
        for vector in (16, 8, 4):
            if vector < stored.item:
                continue
            share = CopyLoader(stored, threads, vector // stored.item, False).share
            places = _places(share)
            assert sorted(places) == list(range(0, stored.bytes, vector))
            for at, (line, byte) in places.items():
                chunk = byte // 16 ^ stored.phase_of(line)
                assert at == line * stored.line + chunk * 16 + byte % 16
            if vector == 16:
                first = list(places)[::share.lines * share.pieces]  # of each thread, in their order
                assert wavefronts(first[:32], 16) == 1, stored
        if stored.item < 4:
            assert sorted(_places(RegisterLoader(stored, threads, False).share)) == list(range(0, stored.bytes, 4))


def test_what_a_stage_refuses():
    for fields, words in ((("bfloat16", ALONG_K, 48, 16, 64, True), "power of two"),
                          (("bfloat16", ALONG_K, 64, 4, 64, True), "at least 8"),
                          (("float64", ALONG_K, 64, 16, 32, True), "multiple of a step"),
                          (("int8", ALONG_ROWS, 64, 8, 64, False), "16 rows")):
        with pytest.raises(ValueError, match=words):
            Stored(*fields)
