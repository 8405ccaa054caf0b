"""Blocks that take several tiles, one after another, which small problems do not make them do on a device of many multiprocessors."""
from dataclasses import replace

import contract
import numpy as np
import pytest
from cases._conv import Conv

from dnnkern import dispatch
from dnnkern.conv import halo_wgmma as halo
from dnnkern.device import SIMULATED
from dnnkern.host.device import device

DIRECTIONS = "conv_fwd", "conv_bwd_data", "conv_bwd_filter"
CASES = [("small_c", Conv("tiles-nhwc-bf16", op, (2, 3, 9, 40), 40, (3, 3), "bfloat16", layout="NHWC", padding=1)) for op in DIRECTIONS]
CASES += [("small_c", Conv("tiles-f16", op, (3, 2, 8, 24), 16, (5, 4), "float16", stride=(1, 2), padding=2)) for op in DIRECTIONS]
CASES += [("halo_wgmma", Conv("tiles-nhwc", op, (2, 64, 18, 29), 64, (3, 3), "bfloat16", layout="NHWC", padding=1))
          for op in DIRECTIONS[:2]]
CASES += [("halo_wgmma", Conv("tiles-two-blocks-nhwc", DIRECTIONS[0], (1, 72, 20, 25), 40, (2, 3), "float16", layout="NHWC", dilation=2,
                              padding=(3, 0), bias=True, residual=True, activation="relu")),
          ("halo_wgmma", Conv("tiles-3d-nhwc", DIRECTIONS[0], (1, 16, 5, 17, 10), 72, (3, 2, 3), "bfloat16", layout="NHWC", padding=1)),
          ("halo_wgmma", Conv("tiles-3d-nhwc", DIRECTIONS[1], (1, 72, 4, 9, 18), 64, (2, 3, 3), "float16", layout="NHWC", padding=1)),
          ("halo_wgmma", Conv("tiles-few-nhwc", DIRECTIONS[1], (1, 64, 18, 13), 24, (3, 3), "bfloat16", layout="NHWC", padding=1)),
          *(("halo_wgmma", Conv(f"tiles-g{groups}-nhwc", op, (2, 128, 18, 13), 128, (3, 2), dtype, layout="NHWC", padding=1,
                                dilation=(1, 2), groups=groups, mode="convolution" if groups == 4 else "cross_correlation"))
            for op in DIRECTIONS[:2] for groups, dtype in ((2, "float16"), (4, "bfloat16"), (8, "float16"), (64, "bfloat16"))),
          ("grouped", Conv("tiles-g4", DIRECTIONS[2], (7, 16, 8, 5), 16, (3, 3), "float16", layout="NHWC", padding=1, groups=4)),
          ("grouped", Conv("tiles-g16", DIRECTIONS[2], (3, 64, 9, 17), 64, (2, 3), "bfloat16", layout="NHWC", stride=2, groups=4))]


@pytest.mark.skipif(not SIMULATED, reason="only the simulator's device can be made smaller")
@pytest.mark.parametrize("few_multiprocessors", [1], ids=[""], indirect=True)
@pytest.mark.parametrize("name, case", CASES, ids=[f"{name}-{case.op}-{case.id}" for name, case in CASES])
def test_one_block_takes_many_tiles(name, case, few_multiprocessors):
    small, problem = device(), case.problem()
    algorithm = next(a for a in dispatch.algorithms(case.op) if a.name == name)
    tiles = [(v, v.build(problem, small, v.config)[0]) for v in algorithm.variants(problem, small)]
    variant = next(v for v, launch in tiles if next(a.value for a in launch.arguments if a.type == "int32") > launch.grid[0])
    with contract.registered(variant) as mine:
        values = case.values("exact")
        reference, _ = case.reference(values)
        run = contract.Run(case, mine, values)
        run.check_memory()
        run.check_values(reference, {name: np.zeros(()) for name in reference})


@pytest.mark.skipif(not SIMULATED, reason="only the simulator's device can be made smaller")
@pytest.mark.parametrize("few_multiprocessors", [1], ids=[""], indirect=True)
@pytest.mark.parametrize("case, later", [
    (Conv("boxes", DIRECTIONS[0], (1, 64, 18, 21), 64, (3, 3), "bfloat16", layout="NHWC", padding=1, bias=True, residual=True), True),
    (Conv("boxes-3d", DIRECTIONS[0], (1, 16, 3, 17, 10), 24, (2, 3, 3), "float16", layout="NHWC", padding=1, residual=True), False)],
    ids=["nhwc", "3d-nhwc"])
def test_what_is_added_comes_to_boxes_of_its_own(case, later, few_multiprocessors):
    """Loaded with the next tile's pixels, or with its own, for one warpgroup or several; or copied into the stage."""
    problem, values, kinds = case.problem(), case.values("exact"), {}
    reference, _ = case.reference(values)
    for config in halo._fitting(problem, device().shared_per_block):
        body = halo._body(problem, config)
        kinds.setdefault((body.by_ring, body.stages > body.taps[0] * body.blocks, body.consumers == 1), config)
    assert any(by_ring and is_later == later for by_ring, is_later, _ in kinds)
    algorithm = next(a for a in dispatch.algorithms(case.op) if a.name == "halo_wgmma")
    for config in kinds.values():
        with contract.registered(replace(algorithm, config=config)) as mine:
            run = contract.Run(case, mine, values)
            run.check_memory()
            run.check_values(reference, {name: np.zeros(()) for name in reference})
