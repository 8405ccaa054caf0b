"""What attention with a `score_mod` compiles to: everything in registers, in the tiles that attention with a soft cap has."""
from dataclasses import replace

import pytest

from dnnkern import dispatch
from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from cases._score_mods import SCORE_MODS  # noqa: E402
from sass import machine_code  # noqa: E402
from test_ptx import device  # noqa: E402

from dnnkern.attention._parse import parse_problem  # noqa: E402
from dnnkern.host.tensor import Tensor  # noqa: E402

B, H, S, D = 4, 16, 4096, 128
MOST = {"sdpa_fwd_flash_wgmma": (168, 5900), "sdpa_bwd_flash_wgmma": (168, 2750), "sdpa_fwd_flash_mma": (208, 2150),
        "sdpa_dq_flash_mma": (208, 1450), "sdpa_dkv_flash_mma": (255, 1750), "document_blocks": (40, 400)}
"""Registers and instructions with a soft cap and a causal mask, where tanh of a tile is there by a polynomial and by libdevice; of the
launch that finds the blocks of documents."""


def modified(op, name):
    """The problem with a modifier, causal."""
    problem = parse_problem(f"{B}x{H}x{S}x{D} bf16 --causal".split(), op)
    sizes, backward = dict(zip("bhij", (B, H, S, S))), op == "sdpa_bwd"
    tensors = {of: Tensor.packed(place.shape, place.dtype) for of, place in SCORE_MODS[name].places(sizes, backward, {}).items()}
    return replace(problem, **SCORE_MODS[name].parts("float32", sizes, tensors, backward))


@pytest.mark.parametrize("name, count", [("capped", 11), ("slopes", 4), ("documents", 5.5)])
def test_estimates_count_what_kernels_have(name, count):
    """Of a score, forward 128x128, beside a causal mask: docs/notes/graph.md has the counts, 10.8, 3.2 and 5.9."""
    assert modified("sdpa_fwd", name).score_instructions == count


@pytest.mark.parametrize("op, algo, name, tile", [
    ("sdpa_fwd", "flash_wgmma", "capped", "128x128 drawn"), ("sdpa_bwd", "flash_wgmma", "capped", "128x64"),
    ("sdpa_fwd", "flash_wgmma", "documents", "128x128 drawn"), ("sdpa_bwd", "flash_wgmma", "slopes", "128x64"),
    ("sdpa_bwd", "flash_wgmma", "documents", "128x64"),
    ("sdpa_fwd", "flash_mma", "capped", "128x64 x1"), ("sdpa_bwd", "flash_mma", "capped", "128x32 x1")])
def test_programs_of_scores_are_registers(op, algo, name, tile):
    """No local memory, nothing spilled, no call; of a tile as wide as without a program."""
    problem, target = modified(op, name), device("sm_90a")
    algorithm = next(a for a in dispatch.algorithms(op) if a.name == algo)
    variant = next(v for v in algorithm.variants(problem, target) if str(v.config) == tile)
    for launch in variant.build(problem, target, variant.config):
        kernel = launch.kernel.py_func.__name__
        if kernel.endswith(algo) or kernel == "document_blocks":
            code = machine_code(launch.kernel, launch.signature, "sm_90a")
            assert (code.stack, code.spilled) == (0, 0) and not code.calls and not code.doubles, code.report
            registers, instructions = MOST[kernel]
            assert code.registers <= registers and len(code.lines) <= instructions, (code.registers, len(code.lines))
