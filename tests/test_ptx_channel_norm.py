"""What normalisation by channels compiles to: 16-byte accesses, as many loads under way as promised, no stray float64, no division."""
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


def launches(op, words, algo, arch="sm_90a"):
    """(configuration, [(launch, its code), ...]) of the most promising variant."""
    problem = parse_problem(words.split(), op)
    variant = next(a for a in dispatch.algorithms(op) if a.name == algo).configured(problem, device(arch))
    found = []
    for launch in variant.build(problem, device(arch), variant.config):
        code = machine_code(launch.kernel, launch.signature, arch)
        assert not code.doubles and not code.divisions, launch.kernel
        found.append((launch, code))
    return variant.config, found


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("op, more", [("batch_norm_train_fwd", "running"), ("batch_norm_train_fwd", "relu residual"),
                                      ("group_norm_fwd", "g32")])
def test_columns_forward(dtype, op, more):
    """x is read by eight loads under way, three blocks a multiprocessor, and again by four."""
    config, ((_, moments), (_, merge), (last, apply)) = launches(op, f"64x256x56x56 {dtype} nhwc {more}", "columns")
    assert accesses(moments, "LDG") == {128: 8} and moments.registers * 256 * 3 <= 65536
    both = 2 if "residual" in more else 1
    assert accesses(apply, "LDG")[128] == 8 * both  # the first four are under way before the statistics are there
    assert set(accesses(apply, "STG")) == {128} and apply.count("BAR.SYNC") == 1
    assert apply.registers * 256 * (2 if both == 2 else 4) <= 65536
    assert last.dependent and apply.count("ACQBULK") and moments.count("PREEXIT")
    assert merge.registers <= 64


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("more, arrays", [("", 2), ("relu residual", 3)])
def test_columns_backward(dtype, more, arrays):
    config, ((_, sums), (_, merge), (_, gradient)) = launches("batch_norm_bwd", f"64x256x56x56 {dtype} nhwc {more}", "columns")
    assert accesses(sums, "LDG")[128] == 4 * arrays and sums.registers * 256 * (5 - arrays) <= 65536
    assert accesses(gradient, "LDG")[128] == 8 * arrays and set(accesses(gradient, "STG")) == {128}
    assert gradient.registers <= 128


def test_inference_is_one_launch_of_16_bytes():
    for layout, algo in (("nhwc", "columns"), ("nchw", "planes")):
        config, ((launch, code),) = launches("batch_norm_infer", f"64x256x56x56 f16 {layout} relu", algo)
        assert set(accesses(code, "STG")) == {128} and accesses(code, "LDG")[128] >= 4 and not launch.dependent


@pytest.mark.parametrize("op", ["batch_norm_train_fwd", "group_norm_fwd"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_planes_forward(op, dtype):
    """A plane of 3136 elements is held whole: a load a unit, twice."""
    config, ((_, moments), (_, merge), (_, apply)) = launches(op, f"64x256x56x56 {dtype}{' g32' * (op[0] == 'g')}", "planes")
    assert accesses(moments, "LDG") == {128: config.registers} and accesses(apply, "LDG")[128] == config.registers
    assert accesses(apply, "STG") == {128: config.registers}
    assert moments.registers * config.threads * config.blocks <= 65536


def test_planes_that_begin_anywhere_cost_an_element_or_two_a_thread():
    config, (_, _, (_, apply)) = launches("batch_norm_train_fwd", "64x2048x7x7 f16", "planes")
    assert config.unaligned and accesses(apply, "STG") == {128: config.registers, 16: config.layout.edges}


@pytest.mark.parametrize("words, algo", [("64x256x56x56 bf16 nhwc relu", "columns"), ("64x256x56x56 bf16 relu", "planes")])
def test_gradients_of_groups(words, algo):
    config, found = launches("group_norm_bwd", f"{words} g32", algo)
    assert len(found) == 4 and set(accesses(found[-1][1], "STG")) == {128}


@pytest.mark.parametrize("words, algo", [("64x256x56x56 bf16 nhwc swish", "columns"), ("64x256x56x56 f32 nhwc gelu", "columns"),
                                         ("64x256x56x56 bf16 gelu", "planes"), ("64x256x56x56 f32 swish", "planes")])
def test_an_argument_that_is_computed_anew_is_no_array_to_read(words, algo):
    """dy and x alone, 16 bytes at a time, in no more registers than with y."""
    config, found = launches("group_norm_bwd", f"{words} g32", algo)
    (_, sums), (_, gradient) = found[0], found[-1]
    assert accesses(sums, "LDG")[128] == 8 and sums.registers <= 128
    assert set(accesses(gradient, "STG")) == {128} and gradient.registers <= 128


@pytest.mark.parametrize("words", ["16x512x32x32 bf16 g32 swish", "64x256x56x56 f32 g32 gelu", "64x1024x14x14 f16 g32 mish"])
def test_activations_of_groups_in_registers(words):
    config, ((_, code),) = launches("group_norm_fwd", words, "block")
    assert code.registers * config.planes.threads * config.blocks <= 65536


@pytest.mark.parametrize("words, threads", [("64x256x56x56 bf16 g32", 512), ("64x256x56x56 f32 g32 relu", 1024),
                                            ("64x1024x14x14 f16 g32", 128)])
def test_groups_in_registers_are_read_once(words, threads):
    """Seven units a thread, 1024 threads a multiprocessor; fewer where a unit may have elements of two channels."""
    config, ((_, code),) = launches("group_norm_fwd", words, "block")
    assert config.planes.threads == threads and accesses(code, "LDG")[128] == accesses(code, "STG")[128] == config.planes.registers
    assert code.registers * threads * config.blocks <= 65536


@pytest.mark.parametrize("words", ["64x256x56x56 f32 nhwc g32", "64x256x56x56 bf16 nhwc g32 swish", "8x64x256x256 f32"])
def test_slices_are_read_once(words):
    """By 16 bytes, a part of them to shared memory; the configurations that are likely to be chosen."""
    problem = parse_problem(words.split(), "group_norm_fwd")
    slices = next(a for a in dispatch.algorithms("group_norm_fwd") if a.name == "slices")
    for variant in slices.variants(problem, device("sm_90a"))[:2]:
        (launch,) = variant.build(problem, device("sm_90a"), variant.config)
        code, config = machine_code(launch.kernel, launch.signature, "sm_90a"), variant.config
        assert accesses(code, "LDG.E.128") == {128: config.registers} and code.count("LDGSTS") == config.shared
        assert set(accesses(code, "STG")) == {32, 128} and code.registers * config.lanes * config.blocks <= 65536


@pytest.mark.parametrize("layout, loads, stores", [("nhwc", {128: 1, 32: 2}, {128: 1}), ("nchw", {64: 12}, {64: 8})])
def test_windows_of_channels_are_loaded_once(layout, loads, stores):
    """Of the units beside its own a thread loads no more than the window reaches."""
    _, ((_, code),) = launches("lrn_fwd", f"64x96x56x56 bf16 {layout}", "window")
    assert accesses(code, "LDG") == loads and accesses(code, "STG") == stores
    for size in (5, 9):
        _, ((_, code),) = launches("lrn_bwd", f"64x96x56x56 f32 {layout} {size}", "window")
        assert code.registers <= 168


TEN = "mul@256x1x1 gelu mul@0.5 add@64x256x56x56 relu mul@256x1x1 swish add@64x256x56x56 tanh mul@0.5"


def registers_alone(op, words, algo, arch):
    """[(launch, its code)] of the configuration that is chosen: no local memory, no call, nothing spilled."""
    problem = parse_problem(words.split(), op)
    variant = next(a for a in dispatch.algorithms(op) if a.name == algo).configured(problem, device(arch))
    found = []
    for launch in variant.build(problem, device(arch), variant.config):
        code = sass.assembled(launch.kernel, launch.signature, arch)  # whose shuffles are calls on sm_80
        assert (code.stack, code.spilled) == (0, 0) and not code.opcodes("LDL", "STL") and not code.calls, code.report
        assert -(-code.registers // 8) * 8 * launch.block[0] <= 65536
        found.append((launch, code))
    return found


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("op, words, algo", [
    ("batch_norm_bwd", "64x256x56x56 f16 nhwc residual --program mul@64x256x56x56", "columns"),
    ("batch_norm_bwd", f"64x256x56x56 bf16 nhwc residual relu --program {TEN}", "columns"),
    ("batch_norm_bwd", "64x256x56x56 f16 residual --program mul@64x256x56x56", "planes"),
    ("batch_norm_bwd", f"64x256x56x56 bf16 residual --program {TEN}", "planes"),
    ("batch_norm_bwd", f"64x256x56x56 f32 residual --program {TEN}", "naive"),
    ("group_norm_bwd", "64x256x7x7 bf16 g32 --program add@64x256x7x7 gelu", "planes")])
def test_programs_of_gradients_are_registers(op, words, algo, arch):
    """What becomes of dy first: in both passes over it, results by 16 bytes."""
    (_, sums), *_, (_, gradient) = registers_alone(op, words, algo, arch)
    if algo != "naive":
        assert accesses(gradient, "STG")[128] >= 1 and accesses(sums, "LDG")[128] >= 2


@pytest.mark.parametrize("op, words, loads", [
    ("batch_norm_train_fwd", "64x256x56x56 f16 nhwc --program add@64x256x56x56 relu", 16),
    ("batch_norm_train_fwd", "64x256x56x56 f32 nhwc residual --program mul@256x1x1 add@64x256x56x56", 24),
    ("batch_norm_bwd", "64x256x56x56 bf16 nhwc residual --program mul@64x256x56x56", 24)])
def test_operands_of_programs_are_loaded_as_x_is(op, words, loads):
    """By 16 bytes, with those of all rows in flight, the first before the statistics are there."""
    *_, (_, code) = registers_alone(op, words, "columns", "sm_90a")
    assert accesses(code, "LDG")[128] == loads and set(accesses(code, "STG")) == {128}
    assert code.registers <= 128


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("op, words, algo", [
    ("batch_norm_infer", f"64x256x56x56 f16 nhwc relu --program {TEN}", "columns"),
    ("batch_norm_infer", f"64x256x56x56 bf16 relu residual --program {TEN}", "planes"),
    ("batch_norm_infer", f"64x256x56x56 f32 --program {TEN}", "naive"),
    ("batch_norm_train_fwd", f"64x256x56x56 f32 nhwc residual --program {TEN}", "columns"),
    ("batch_norm_train_fwd", f"64x256x56x56 f16 --program {TEN}", "planes"),
    ("batch_norm_train_fwd", f"64x256x56x56 bf16 --program {TEN}", "naive"),
    ("batch_norm_train_fwd", "64x256x7x7 bf16 --program add@64x256x7x7 gelu", "planes"),
    ("group_norm_fwd", "64x256x28x28 f32 g32 --program " + TEN.replace("x56x56", "x28x28"), "block"),
    ("group_norm_fwd", f"64x256x56x56 f16 --program {TEN}", "block"),
    ("group_norm_fwd", "64x1024x14x14 f16 g32 --program add@64x1024x14x14 relu mul@1024x1x1", "block"),
    ("group_norm_fwd", f"64x256x56x56 f32 g32 --program {TEN}", "shared"),
    ("group_norm_fwd", f"64x256x56x56 bf16 nhwc g32 swish --program {TEN}", "columns")])
def test_programs_are_registers(op, words, algo, arch):
    """Whatever their length: no local memory, no call, nothing spilled, in the configuration that is chosen; results by 16 bytes."""
    problem = parse_problem(words.split(), op)
    variant = next(a for a in dispatch.algorithms(op) if a.name == algo).configured(problem, device(arch))
    launch = variant.build(problem, device(arch), variant.config)[-1]
    code = sass.assembled(launch.kernel, launch.signature, arch)  # whose shuffles are calls on sm_80
    assert (code.stack, code.spilled) == (0, 0) and not code.opcodes("LDL", "STL") and not code.calls, code.report
    if algo != "naive":
        threads = launch.block[0]
        assert -(-code.registers // 8) * 8 * threads <= 65536 and accesses(code, "STG")[128] >= 1, variant.config


@pytest.mark.parametrize("words, accesses_of, words_of", [("64x512x28x28 f16", 128, 4), ("16x256x56x56 bf16 relu running", 128, 4),
                                                          ("8x64x14x14 f16 running", 64, 2), ("4x64x56x56 f32", 128, 4)])
def test_held_channels(words, accesses_of, words_of):
    """x is loaded by four accesses under way, kept, read twice more from shared memory, and written; in registers for two blocks."""
    _, ((launch, code),) = launches("batch_norm_train_fwd", words, "held")
    found = accesses(code, "LDG")
    assert found[accesses_of] == 4 and accesses(code, "STG")[accesses_of] >= 1
    assert code.count("STS") >= 4 * words_of and code.count("LDS") >= 2 * words_of
    assert code.registers <= 48 and launch.dependent and launch.shared > 0
