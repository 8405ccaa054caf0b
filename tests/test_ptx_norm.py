"""What the kernels of layer and RMS normalisation compile to: rows read once by 16 bytes, one barrier a row, nothing in local memory."""
import pytest

from dnnkern import dispatch
from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

import sass  # noqa: E402
from sass import machine_code  # noqa: E402
from test_ptx import device  # noqa: E402
from test_ptx_transform import accesses  # noqa: E402

from dnnkern.norm._parse import parse_problem  # noqa: E402


def variants(op, words, algo, arch="sm_90a"):
    """The algorithm bound to each of its configurations, the most promising first, and their launches."""
    problem, target = parse_problem(words.split(), op), device(arch)
    algorithm = next(a for a in dispatch.algorithms(op) if a.name == algo)
    assert algorithm.supports(problem) is None
    return [(v.config, v.build(problem, target, v.config)) for v in algorithm.variants(problem, target)]


def assembled(launch, arch="sm_90a"):
    return machine_code(launch.kernel, launch.signature, arch)


@pytest.mark.parametrize("op, words, algo", [
    ("layer_norm_fwd", "99999x128 bf16", "block"), ("layer_norm_fwd", "8192x4096 f32", "block"), ("rms_norm_fwd", "8192x4096 f16", "block"),
    ("layer_norm_fwd", "8192x1024 bf16 --weights float32", "block"), ("rms_norm_fwd", "8192x4096 bf16 --residual", "block"),
    ("layer_norm_fwd", "999x65536 bf16", "cluster"), ("rms_norm_fwd", "999x65536 f32 --residual", "cluster")])
def test_rows_are_read_once_by_16_bytes(op, words, algo):
    for config, (launch,) in variants(op, words, algo)[:1]:
        code = assembled(launch)
        wide = 2 if "float32" in words and "bf16" in words else 1
        weights = (config.scaled + config.shifted) * wide * config.registers
        assert accesses(code, "LDG") == {128: (1 + config.residual) * config.rows * config.registers + weights}, config
        assert accesses(code, "STG")[128] == (1 + config.residual) * config.rows * config.registers
        assert not code.doubles and not code.divisions
        assert code.count("BAR.SYNC") <= 1 or config.cluster > 1
        assert code.registers * config.threads * config.blocks <= 65536, config


def test_heads_and_tails_cost_one_element_a_thread():
    config, (launch,) = variants("layer_norm_fwd", "4095x4095 bf16", "block")[0]
    found = accesses(assembled(launch), "STG")
    assert (found[128], found[16]) == (config.registers, 1)


@pytest.mark.parametrize("op, words, algo", [
    ("layer_norm_bwd", "524288x128 bf16 --dsummed", "block"), ("rms_norm_bwd", "16384x4096 bf16 --dsummed", "block"),
    ("layer_norm_bwd", "8192x8192 f32 --dsummed", "block"), ("layer_norm_bwd", "1024x65536 bf16 --dsummed", "cluster"),
    ("layer_norm_bwd", "64x65536 bf16 --dsummed", "split"), ("rms_norm_bwd", "64x65537 f16 --dsummed", "split")])
def test_dsummed_is_read_once_into_registers(op, words, algo):
    for config, launches in variants(op, words, algo)[:1]:
        for launch in launches:
            code = assembled(launch)
            assert not code.doubles and not code.divisions
        if algo != "split":
            code = assembled(launches[0])
            assert accesses(code, "LDG")[128] >= config.rows * config.registers and accesses(code, "STG")[128] >= config.rows
            assert code.registers * config.threads * config.blocks <= 65536, config


@pytest.mark.parametrize("op, words, algo", [
    ("layer_norm_bwd", "524288x128 bf16", "block"), ("layer_norm_bwd", "65536x1024 f32", "block"),
    ("rms_norm_bwd", "16384x4096 bf16", "block"), ("layer_norm_bwd", "16384x4096 f32", "block"),
    ("layer_norm_bwd", "8192x8192 bf16 --weights float32", "block"), ("layer_norm_bwd", "4096x16384 f32", "cluster"),
    ("layer_norm_bwd", "1024x65536 bf16", "cluster"), ("rms_norm_bwd", "1024x65536 f32 --has-beta", "cluster")])
def test_gradients_read_rows_once_through_the_ring(op, words, algo):
    """x and dy by cp.async of 16 bytes alone, for the first steps of the ring and for one more a step (a cluster's ring keeps the step
    before); one barrier of the block a step."""
    for config, (launch, sums) in variants(op, words, algo)[:1]:
        code = assembled(launch)
        copies = [line for line in code.lines if line.startswith("LDGSTS")]
        assert config.stages >= 3 and len(copies) == 2 * (config.stages - config.lag) * config.rows * config.registers, config
        assert all(".128" in line for line in copies)
        assert set(accesses(code, "LDG")) <= {128, 32}, "gamma, mean and rstd"
        assert accesses(code, "STG")[128] >= config.rows * config.registers
        assert not code.doubles and not code.divisions
        if config.lanes == config.threads and config.cluster == 1:
            assert code.count("BAR.SYNC") == 1
        elif config.cluster > 1:
            assert code.count("SYNCS") >= 4
        assert code.registers * config.threads * config.blocks <= 65536, config
        assert launch.shared == config.shared_bytes and config.blocks * config.shared_bytes <= device("sm_90a").shared_per_sm
        code = assembled(sums)
        assert code.count("LDG") == 8 and not code.doubles


@pytest.mark.parametrize("op, words", [("layer_norm_fwd", "999x65536 bf16"), ("layer_norm_fwd", "999x65536 f32"),
                                       ("rms_norm_fwd", "999x65536 bf16 --weights float32")])
def test_rings_read_rows_by_bulk_copies(op, words):
    """The first ones, and one a row of each step; weights are loaded once, rows come from shared memory twice."""
    for config, (launch,) in variants(op, words, "ring")[:2]:
        code, ring = assembled(launch), config.ring
        wide = 2 if "float32" in words and "bf16" in words else 1
        assert code.count("UBLKCP") >= 2 * ring.rows and not code.count("LDGSTS")
        assert accesses(code, "LDG") == {128: (config.scaled + config.shifted) * wide * ring.units}, config
        stored, shared = accesses(code, "STG")[128], accesses(code, "LDS")[128]  # of one row of a step, or of all, as the compiler likes
        assert stored in (ring.units, ring.units * ring.rows) and shared in (ring.units + stored, ring.units * ring.rows + stored), config
        assert not code.doubles and not code.divisions
        assert -(-code.registers // 8) * 8 * ring.threads * ring.resident <= 65536, config
        assert launch.shared == ring.shared_bytes


def test_before_ampere_rows_come_into_registers():
    config, (launch, _) = variants("layer_norm_bwd", "16384x1024 f32", "block", "sm_75")[0]
    code = assembled(launch, "sm_75")
    assert not config.stages and not code.count("LDGSTS") and not launch.shared
    assert accesses(code, "LDG")[128] == 2 * config.rows * config.registers + config.registers


def test_every_configuration_keeps_to_its_registers():
    """None spills: `machine_code` says so."""
    for words in ("9999x128 bf16", "9999x4096 f32", "999x4095 bf16"):
        for config, (launch, _) in variants("layer_norm_bwd", words, "block"):
            assembled(launch)


@pytest.mark.parametrize("op", ["layer_norm_fwd", "layer_norm_bwd"])
def test_pieces_of_rows(op):
    """16 bytes an access in each of the launches that go through the rows."""
    (_, launches), = variants(op, "64x301056 bf16 --weights float32", "split")
    for launch in launches[:2]:
        code = assembled(launch)
        assert accesses(code, "LDG")[128] >= 4 and not code.doubles and not code.divisions
    assert set(accesses(code, "STG")) <= {128, 32} and accesses(code, "STG")[128] >= 2


@pytest.mark.parametrize("op, words, algo, arrays", [
    ("layer_norm_fwd", "16384x4096 bf16 --program add@16384x4096", "block", 4),
    ("rms_norm_fwd", "16384x4096 f16 --program mul@4096", "block", 3),
    ("layer_norm_fwd", "8x2048x4096 bf16 --axis 2 --program mul@8x1x4096 add@8x1x4096", "block", 5)])
def test_operands_of_programs_are_loaded_as_rows_are(op, words, algo, arrays):
    """By 16 bytes: x, the weights, and what the program reads."""
    config, (launch,) = variants(op, words, algo)[0]
    code = assembled(launch)
    assert accesses(code, "LDG") == {128: arrays * config.registers} and accesses(code, "STG")[128] == config.registers


TEN = "mul@4096 gelu mul@0.5 add@8192x4096 relu mul@4096 swish add@8192x4096 tanh mul@0.5"


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("op, words, algo", [
    ("layer_norm_fwd", f"8192x4096 bf16 --program {TEN}", "block"), ("rms_norm_fwd", f"8192x4096 f32 --program {TEN}", "block"),
    ("layer_norm_fwd", "65536x256 f16 --program add@65536x256 gelu", "block"),
    ("rms_norm_fwd", "8192x4095 bf16 --program add@4095", "block"),
    ("layer_norm_fwd", "8x1024x1152 bf16 --axis 2 --program mul@8x1x1152 add@8x1x1152", "block"),
    ("layer_norm_fwd", "8x1024x4096 bf16 --axis 2 --program mul@8x1x4096 add@8x1x4096", "ring"),
    ("layer_norm_fwd", f"8192x4096 bf16 --program {TEN}", "ring"), ("rms_norm_fwd", f"8192x4096 f32 --program {TEN}", "ring"),
    ("rms_norm_fwd", "1024x65536 bf16 --program add@1024x65536 gelu", "ring"),
    ("layer_norm_fwd", "1024x65536 bf16 --program add@1024x65536 relu", "cluster")])
def test_programs_are_registers(op, words, algo, arch):
    """Whatever their length: no local memory, no call, nothing spilled, in the configuration that is chosen."""
    if algo in ("cluster", "ring") and arch == "sm_80":
        pytest.skip("clusters and bulk copies are Hopper's")
    config, (launch,) = variants(op, words, algo, arch)[0]
    code = sass.assembled(launch.kernel, launch.signature, arch)  # whose shuffles are calls on sm_80
    assert (code.stack, code.spilled) == (0, 0) and not code.opcodes("LDL", "STL") and not code.calls, code.report
    if algo == "ring":
        assert -(-code.registers // 8) * 8 * config.ring.threads * config.ring.resident <= 65536, config
        return
    assert code.registers * config.threads * config.blocks <= 65536, config
    assert accesses(code, "STG")[128] >= config.registers, config
