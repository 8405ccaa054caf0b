"""What programs of pointwise steps compile to: no more registers the longer they are, no stack, no local memory, no call."""
import time

import pytest
from sass import assembled, machine_code, ptx

from dnnkern import dispatch
from dnnkern.device import SIMULATED, cuda, jit

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from test_device_program import chain, of  # noqa: E402
from test_ptx import device  # noqa: E402

from dnnkern.device.program import Program, make_narrow, make_program, member_types  # noqa: E402
from dnnkern.device.program_operands import operands_class  # noqa: E402
from dnnkern.host.compile import compile_anew  # noqa: E402
from dnnkern.matmul._parse import parse_problem  # noqa: E402

LENGTHS = (1, 3, 10, 30)
REGISTERS = 32  # of a thread of an element: two pointers, the operands, two indices


def kernel_of(program, output="bfloat16"):
    """A thread computes one element of packed rows; (kernel, signature)."""
    apply, narrow = make_program(program, short=True), make_narrow(program.types()[program.result], output)

    @jit(launch_bounds=128)
    def kernel(acc, y, columns, e):
        m, n = cuda.blockIdx.y, cuda.blockIdx.x * 128 + cuda.threadIdx.x
        if n < columns:
            y[m * columns + n] = narrow(apply(acc[m * columns + n], m, n, e))
    return kernel, ("float32*", "uint16*", "int32", operands_class(member_types(program)))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("steps", LENGTHS)
def test_chains_stay_in_registers(steps, arch, rng):
    kernel, signature = kernel_of(chain(steps, rng)[0])
    text = ptx(kernel, signature, arch)
    assert "call" not in text and ".local" not in text and ".f64" not in text
    code = machine_code(kernel, signature, arch)
    assert not code.stack and not code.spilled and not code.calls
    assert code.registers <= REGISTERS, code.registers
    assert code.count("LDG") == 1 + {1: 1, 3: 1}.get(steps, 3) and code.count("STG") == 1, "an operand that no step reads is not loaded"


def test_without_steps_nothing_is_left(rng):
    plain, signature = kernel_of(Program())
    assert machine_code(plain, signature).count("LDG") == 1


def test_what_is_not_used_is_not_loaded():
    program = Program((("float32", "row"), ("float32", "column")), (of("add", 0, 2),))
    assert machine_code(*kernel_of(program)).count("LDG") == 2


def test_time_to_compile(rng):
    """Steps nest, and still thirty take no more than a few times as long as ten: linear in their number."""
    seconds = []
    for steps in (10, 30):
        make_program.cache_clear()
        kernel, signature = kernel_of(chain(steps, rng)[0])
        started = time.process_time()
        compile_anew(kernel, signature, "sm_90a")
        seconds.append(time.process_time() - started)
    assert seconds[1] < 1 + 6 * seconds[0], seconds


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("program", ["bias-gelu", "chain"])
@pytest.mark.parametrize("algorithm", ["mma", "tiled", "split_k", "wgmma", "wgmma_split_k"])
def test_a_product_with_a_program_keeps_its_registers(algorithm, program, arch):
    """Of the configuration that is chosen; the side output's dtype is another than the result's."""
    from cases.matmul import Matmul
    target = device(arch)
    able = next(a for a in dispatch.algorithms("matmul") if a.name == algorithm)
    if target.supports(able.arch) is not None:
        return
    problem = Matmul("", 1024, 1024, 4096, "bfloat16", tb=True, program=program).problem()
    chosen = able.configured(problem, target)
    last = chosen.build(problem, target, chosen.config)[-1]
    code = assembled(last.kernel, last.signature, arch)
    assert (code.stack, code.spilled) == (0, 0) and not code.opcodes("LDL", "STL"), code.report


RESIDUAL = "1024x2048x8192 bf16 nt --out-dtype float32 --program add@2048 add@1024x2048"


@pytest.mark.parametrize("algorithm, words, arch", [
    ("wgmma_split_k", RESIDUAL, "sm_90a"), ("wgmma_stream_k", RESIDUAL, "sm_90a"),
    ("mma", "256x256x8192 bf16 nt --out-dtype float32 --program add@256 add@256x256", "sm_80"),
    ("split_k", "512x512x8192 f32 nn --program add@512 add@512x512", "sm_80")])
def test_a_sum_of_ranges_reads_by_vectors(algorithm, words, arch):
    """The ranges, the bias and the matrix; of up to 16 ranges a thread has two: four loads of 16 bytes in all, one after the other."""
    problem, target = parse_problem(words.split()), device(arch)
    able = next(a for a in dispatch.algorithms("matmul") if a.name == algorithm)
    config = min((c for c in able.configs(problem, target) if getattr(c, "ranges", 1) > 1), key=lambda c: c.ranges)
    launch = able.build(problem, target, config)[-1]
    code = assembled(launch.kernel, launch.signature, arch)
    assert {*code.opcodes("LDG")} == {"LDG.E.128"} and code.opcodes("STG") == ["STG.E.128"]
    assert config.ranges > 16 or code.count("LDG") == 4
    assert (code.stack, code.spilled) == (0, 0)


@pytest.mark.parametrize("config", ["128x256", "256x128", "128x192"])
def test_a_float32_residual_comes_by_tma(config):
    """Threads load no element of it, only the bias."""
    problem, target = parse_problem(RESIDUAL.replace("add@2048 ", "").split()), device("sm_90a")
    able = next(a for a in dispatch.algorithms("matmul") if a.name == "wgmma")
    launch, = able.build(problem, target, next(c for c in able.configs(problem, target) if str(c) == config))
    code = assembled(launch.kernel, launch.signature, "sm_90a")
    assert not code.opcodes("LDG", "LDGSTS", "STG") and not code.slow and (code.stack, code.spilled) == (0, 0)


@pytest.mark.parametrize("program", ["two-inputs", "chain"])
@pytest.mark.parametrize("op", ["conv_fwd", "conv_bwd_data"])
@pytest.mark.parametrize("algorithm, arch", [("halo_wgmma", "sm_90a"), ("implicit_gemm_wgmma", "sm_90a"), ("implicit_gemm_mma", "sm_80"),
                                             ("implicit_gemm", "sm_80")])
def test_a_convolution_with_a_program_keeps_its_registers(algorithm, arch, op, program):
    from cases._conv import Conv
    target = device(arch)
    able = next(a for a in dispatch.algorithms(op) if a.name == algorithm)
    problem = Conv("", op, (16, 64, 28, 28), 64, (3, 3), "float16", layout="NHWC", padding=1, program=program).problem()
    chosen = able.configured(problem, target)
    last = chosen.build(problem, target, chosen.config)[-1]
    code = assembled(last.kernel, last.signature, arch)
    assert (code.stack, code.spilled) == (0, 0) and not code.opcodes("LDL", "STL"), code.report


@pytest.fixture
def rng():
    import numpy as np
    return np.random.default_rng(0)
