"""What the kernels of softmax compile to: 16-byte accesses, each row read once, no stray float64, nothing in local memory."""
import pytest

from dnnkern import dispatch
from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

import sass  # noqa: E402
from sass import machine_code  # noqa: E402
from test_ptx import device  # noqa: E402
from test_ptx_transform import accesses, assembled  # noqa: E402

from dnnkern.softmax._parse import parse_problem  # noqa: E402


def variants(op, words, algo, arch="sm_90a"):
    """The problem, and the algorithm bound to each of its configurations."""
    problem = parse_problem(words.split(), op)
    return problem, next(a for a in dispatch.algorithms(op) if a.name == algo).variants(problem, device(arch))


@pytest.mark.parametrize("op, words, algo", [
    ("softmax_fwd", "8192x1024 bf16", "warp"), ("softmax_fwd", "8192x100 f32 --log", "warp"), ("softmax_bwd", "8192x512 bf16", "warp"),
    ("softmax_fwd", "8192x4096 bf16", "block"), ("softmax_bwd", "8192x4096 f32 --log", "block"), ("softmax_bwd", "8192x4096 f16", "block"),
    ("softmax_fwd", "999x65536 bf16", "cluster"), ("softmax_bwd", "999x65536 f32", "cluster")])
def test_rows_are_read_once_by_16_bytes(op, words, algo):
    """Every unit of a thread has one load, and registers are what the configuration promises the multiprocessor."""
    problem, some = variants(op, words, algo)
    for variant in some[:3]:
        code, launch = assembled(problem, algo, config=variant.config)
        config, inputs = variant.config, len(problem.arrays) - 1
        assert accesses(code, "LDG.") == {128: config.registers * inputs}, variant
        assert set(accesses(code, "STG")) == {128}, variant
        assert code.count("LDGSTS") == config.shared and not code.doubles and not code.divisions
        assert code.registers * config.threads * config.blocks <= 65536, variant


@pytest.mark.parametrize("op, words", [("softmax_fwd", "999x65536 bf16"), ("softmax_fwd", "999x65536 f32 --log"),
                                       ("softmax_bwd", "999x65536 bf16"), ("softmax_bwd", "999x32768 f16")])
def test_rings_read_rows_by_bulk_copies(op, words):
    """The first ones, and those of each step; rows come from shared memory twice, and nothing is loaded otherwise."""
    problem, some = variants(op, words, "ring")
    for variant in some[:2]:
        code, launch = assembled(problem, "ring", config=variant.config)
        ring = variant.config.ring
        assert code.count("UBLKCP") >= 2 * ring.inputs * ring.rows and not code.count("LDG")
        stored, shared = accesses(code, "STG")[128], accesses(code, "LDS")[128] // ring.inputs  # of one row of a step, or of all
        assert stored in (ring.units, ring.units * ring.rows) and shared in (ring.units + stored, ring.units * ring.rows + stored), variant
        assert not code.doubles and not code.divisions
        assert -(-code.registers // 8) * 8 * ring.threads * ring.resident <= 65536 and launch.shared == ring.shared_bytes, variant


def test_heads_and_tails_cost_one_element_a_thread():
    problem, (first, *_) = variants("softmax_fwd", "4095x4095 bf16", "block")
    code, _ = assembled(problem, "block", config=first.config)
    assert accesses(code, "LDG") == {128: first.config.registers, 16: 1} == accesses(code, "STG")


def test_longer_rows_wait_in_shared_memory():
    problem, some = variants("softmax_fwd", "999x65536 f32", "cluster")
    config = next(v.config for v in some if v.config.shared and v.config.lanes == 1024)
    assert (config.registers, config.shared, config.shared_bytes) == (4, 12, 196608)
    code, launch = assembled(problem, "cluster", config=config)
    assert code.count("LDGSTS") == 12 and launch.shared == 196608 and code.registers <= 64
    problem, some = variants("softmax_fwd", "999x65536 bf16", "cluster")
    config = next(v.config for v in some if (v.config.lanes, v.config.registers) == (512, 2))
    code, launch = assembled(problem, "cluster", config=config)
    assert (config.shared, config.blocks) == (14, 2) and code.registers <= 64


def test_one_wave_of_barriers():
    """A block synchronises once between load and store."""
    for op in ("softmax_fwd", "softmax_bwd"):
        problem, (first, *_) = variants(op, "4096x4096 f32", "block")
        code, _ = assembled(problem, "block", config=first.config)
        assert code.count("BAR.SYNC") == 1


@pytest.mark.parametrize("op", ["softmax_fwd", "softmax_bwd"])
def test_columns_are_16_bytes_a_thread(op):
    """An axis that fits is read once, a longer one twice."""
    for words, times in (("64x24x1024 bf16 --axis 1", 1), ("8x5000x128 f32 --axis 1", 2)):
        problem, (first, *_) = variants(op, words, "columns")
        code, _ = assembled(problem, "columns", config=first.config)
        inputs = len(problem.arrays) - 1
        assert first.config.whole == (times == 1)
        assert accesses(code, "LDG") == {128: times * inputs * first.config.registers} and set(accesses(code, "STG")) == {128}
        assert not code.doubles and not code.divisions


@pytest.mark.parametrize("op", ["softmax_fwd", "softmax_bwd"])
def test_pieces_of_rows(op):
    problem, (first,) = variants(op, "3x9999999 f16", "split")
    for launch in first.build(problem, device("sm_90a"), first.config):
        code = machine_code(launch.kernel, launch.signature)
        assert 4 <= accesses(code, "LDG")[128] and not code.doubles and not code.divisions


TEN = "mul@4096 gelu mul@0.5 add@8192x4096 relu mul@4096 swish add@8192x4096 tanh mul@0.5"


@pytest.mark.parametrize("words, algo", [
    (f"8192x4096 bf16 --program {TEN}", "block"), (f"8192x4096 f32 --program {TEN}", "ring"),
    ("65536x256 f16 --program mul@65536x256 mul@0.5", "warp"), ("8192x4095 bf16 --program add@4095", "block"),
    ("1024x65536 bf16 --program mul@1024x65536", "ring"), ("1024x65536 f32 --program mul@1024x65536", "cluster"),
    ("3x9999999 f16 --program mul@3x9999999 mul@0.5", "split")])
def test_programs_are_registers(words, algo):
    """Whatever their length: no local memory, no call, nothing spilled, in the configuration that is chosen."""
    problem, (first, *_) = variants("softmax_fwd", words, algo)
    for launch in first.build(problem, device("sm_90a"), first.config):
        code = sass.assembled(launch.kernel, launch.signature, "sm_90a")
        assert (code.stack, code.spilled) == (0, 0) and not code.opcodes("LDL", "STL") and not code.calls, code.report
