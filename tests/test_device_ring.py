"""Rings of rows: many steps of few blocks, in every algorithm that is one."""
import dataclasses

import cases
import contract
import pytest

from dnnkern import dispatch
from dnnkern.device.index import ceil_div
from dnnkern.device.ring import FLIGHT, LEAST, STATIC, Ring, rings
from dnnkern.host.dtypes import ITEMSIZE

CASES = (("layer_norm_fwd", (15, 1200), "bfloat16"), ("layer_norm_fwd", (13, 1024), "float32"), ("rms_norm_fwd", (14, 700), "float32"),
         ("softmax_fwd", (15, 1200), "bfloat16"), ("softmax_fwd", (13, 1024), "float32"), ("softmax_bwd", (14, 700), "float32"),
         ("softmax_bwd", (13, 1024), "float16"))


@pytest.mark.parametrize("few_multiprocessors", [1], indirect=True)
@pytest.mark.parametrize("cluster", [2, 4])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("op, shape, dtype", CASES)
def test_rings_go_round(op, shape, dtype, rows, cluster, few_multiprocessors):
    """Blocks with equal shares of a row, with a smaller last one, and with a thread's last unit missing; an odd last step of rows."""
    case = next(c for c in cases.modules()[op].CASES if c.id.startswith("rows"))
    case = dataclasses.replace(case, shape=shape, dtype=dtype, **({"extra": False, "around": 3.0} if "norm" in op else {}))
    algorithm, count = next(a for a in dispatch.algorithms(op) if a.name == "ring"), shape[1] * ITEMSIZE[dtype] // 16
    units = ceil_div(ceil_div(count, cluster), 128)
    ring = Ring(128, units, 2 if op == "softmax_bwd" else 1, rows, 4, cluster, 1, units * 128 * cluster == count)
    config = dataclasses.replace(algorithm.configured(case.problem(), contract.device()).config, ring=ring)
    contract.check(dataclasses.replace(algorithm, config=config), case, again=False, **contract.ONCE)


def test_rings_that_fit():
    """Two of an H200's rings of a multiprocessor fit where they say so, and keep it busy; every thread of a whole one has its units."""
    device = contract.device()
    for count, inputs in ((8192, 1), (8192, 2), (16384, 1), (1024, 1), (4097, 2)):
        found = rings(4096, count, inputs, device)
        assert found
        for ring in found:
            assert ring.resident * (ring.shared_bytes + STATIC) <= device.shared_per_sm and ring.shared_bytes <= device.shared_per_block
            assert ring.stages == LEAST or (ring.stages - 2) * ring.stage_bytes * ring.resident >= FLIGHT
            assert ring.threads * ring.units * ring.cluster >= count
            assert ring.whole == (ring.threads * ring.units * ring.cluster == count)
