"""What is compiled where there is no GPU: devices of each architecture to plan for, and the problems that stand for all of an algorithm."""
import re

import cases

from dnnkern.dispatch import Device

# A device of each architecture: (capability, multiprocessors, shared memory a block and a multiprocessor).
DEVICES = {"sm_75": ((7, 5), 40, 65536, 65536), "sm_80": ((8, 0), 108, 166912, 167936), "sm_89": ((8, 9), 128, 101376, 102400),
           "sm_90a": ((9, 0), 132, 232448, 233472), "sm_100a": ((10, 0), 148, 232448, 233472), "sm_120a": ((12, 0), 170, 101376, 102400)}
REGISTERS = 65536
DTYPES = ("f64", "f32", "f16", "bf16", "i8", "e4m3", "e5m2")
# Kinds of problems of which each algorithm is compiled, wherever it supports one: packed, edges with everything in the epilogue, strided.
WANTED = ("32x32x32", "epilogue", "strided|misaligned|odd-rows|negative", "gelu|mish", "batch|groups", "long|split",
          "row-|column-|skinny|vector", "scale-row|scale-tensor", "scale-block", "depthwise", "3d|1d", "first-layer|flipped", "s2-p1")


def device(arch):
    """A device to plan for."""
    capability, sms, block, multiprocessor = DEVICES[arch]
    return Device(index=0, name=arch, capability=capability, arch=arch, sms=sms, shared_per_block=block, shared_per_sm=multiprocessor,
                  registers_per_sm=REGISTERS, l2_bytes=40 << 20, clock_hz=1.7e9, bandwidth=2e12, memory=1 << 34)


def representative(op, algorithm, wanted=WANTED):
    """One case a dtype and one a kind of problem, the first that the algorithm supports."""
    able = [c for c in cases.modules()[op].CASES if not c.problem().is_empty and algorithm.reason(c.problem()) is None]
    able += [c for c in getattr(cases.modules()[op], "LARGE", ()) if algorithm.reason(c.problem()) is None]
    chosen = [next((c for c in able if c.id.endswith("-" + dtype)), None) for dtype in DTYPES]
    chosen += [next((c for c in able if re.search(kind, c.id)), None) for kind in wanted]
    return list({c.id: c for c in chosen if c is not None}.values())
