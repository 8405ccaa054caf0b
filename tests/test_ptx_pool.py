"""What pooling compiles to: 16-byte accesses, the taps of a window in flight, no division, nothing in local memory."""
import pytest

from dnnkern import dispatch
from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from sass import machine_code  # noqa: E402
from test_ptx import device  # noqa: E402
from test_ptx_transform import accesses  # noqa: E402

from dnnkern.pool._parse import parse_problem  # noqa: E402


def assembled(op, words, algo, arch="sm_90a"):
    """The algorithm's first kernel in its most promising configuration, its launch and that configuration."""
    problem, target = parse_problem(words.split(), op), device(arch)
    algorithm = next(a for a in dispatch.algorithms(op) if a.name == algo)
    assert algorithm.supports(problem) is None, algorithm.supports(problem)
    config = algorithm.configured(problem, target).config
    launch = algorithm.build(problem, target, config)[0]
    return machine_code(launch.kernel, launch.signature, arch), launch, config


def check_arithmetic(code, words):
    assert not code.divisions
    assert ("f64" in words.split()[1]) == bool(code.doubles)


@pytest.mark.parametrize("words, loads, stores", [
    ("64x64x112x112 bf16 3x3 s2 p1 nhwc index", 9, 3), ("64x64x112x112 f32 3x3 s2 p1 nhwc index", 9, 2),
    ("64x64x112x112 f16 3x3 s2 p1 nhwc", 9, 1), ("64x64x112x112 f64 3x3 s2 p1 nhwc", 9, 1), ("32x256x56x56 bf16 2x2 nhwc index", 4, 3),
    ("64x64x112x112 bf16 3x3 s2 p1 nhwc index64", 9, 5)])
def test_a_windows_taps_are_in_flight(words, loads, stores):
    """Beside the loads that look for a NaN."""
    code, launch, _ = assembled("max_pool_fwd", words, "channels")
    found = accesses(code, "LDG")
    assert set(found) == {128} and loads <= found[128] and ("index" in words or loads == found[128])
    assert accesses(code, "STG") == {128: stores}
    resident = min(65536 // (-(-code.registers // 8) * 8 * launch.block[0]), 8)
    assert resident >= 3 and 16 * loads * 256 * resident >= 48 << 10, "bytes in flight per multiprocessor"
    check_arithmetic(code, words)


@pytest.mark.parametrize("words", ["64x64x112x112 bf16 3x3 s2 p1 nhwc", "64x256x56x56 f32 3x3 s2 p1 nhwc counting ceil",
                                   "64x512x13x13 f16 7x7 adaptive nhwc", "32x512x13x13 f32 5x5 s1 p2 nhwc"])
def test_averages_load_chunks(words):
    code, _, _ = assembled("avg_pool_fwd", words, "channels")
    assert set(accesses(code, "LDG")) == set(accesses(code, "STG")) == {128}
    check_arithmetic(code, words)


@pytest.mark.parametrize("op, words, algo", [
    ("max_pool_fwd", "64x64x112x112 bf16 3x3 s2 p1 nhwc index --program mul@64 add@64 relu add@64x64x56x56 tanh mul@0.5", "channels"),
    ("avg_pool_fwd", "64x64x112x112 f32 3x3 s2 p1 nhwc --program mul@64 add@64 relu", "channels"),
    ("max_pool_fwd", "64x64x112x112 f32 3x3 s2 p1 --program mul@64x1x1 gelu", "elements")])
def test_programs_are_registers(op, words, algo):
    """Of the result of a window: no local memory, no call, no division of an index."""
    words = words.replace("add@64x64x56x56", "add@64x56x56x64")
    code, launch, _ = assembled(op, words, algo)
    assert not (code.stack or code.spilled or code.divisions) and code.registers <= 85
    assert accesses(code, "LDG")[128 if algo == "channels" else 32] >= 9


@pytest.mark.parametrize("op, words, loads, stores", [
    ("max_pool_bwd", "64x64x112x112 bf16 3x3 s2 p1 nhwc", 6, 4), ("avg_pool_bwd", "64x64x112x112 bf16 3x3 s2 p1 nhwc", 2, 4),
    ("max_pool_bwd", "64x64x112x112 f32 3x3 s2 p1 nhwc", 4, 4), ("max_pool_bwd", "64x64x112x112 f32 3x3 s2 p1 nhwc index64", 6, 4),
    ("max_pool_bwd", "64x64x112x112 bf16 3x3 s2 p1 nhwc index64", 10, 4)])
def test_gradients_are_gathered_for_patches(op, words, loads, stores):
    """A row of the outputs that cover a patch of four pixels is in flight."""
    code, launch, config = assembled(op, words, "channels")
    assert (config.rows, config.columns, config.outputs) == (2, 2, 2)
    assert accesses(code, "LDG") == {128: loads} and accesses(code, "STG") == {128: stores}
    assert code.registers <= 80 or loads == 10 and code.registers <= 128, "three blocks a multiprocessor, two with more bytes in flight"
    check_arithmetic(code, words)


@pytest.mark.parametrize("op, words, algo, loads", [
    ("max_pool_bwd", "64x64x112x112 f32 3x3 s2 p1 nhwc", "patches", 8), ("avg_pool_bwd", "32x64x224x224 f16 2x2 nhwc", "patches", 1),
    ("max_pool_bwd", "64x64x112x112 f32 3x3 s2 p1", "rows", 8)])
def test_all_outputs_of_a_patch_are_in_flight(op, words, algo, loads):
    """Of one stride each way: all loads come before the first sum; of rows of 8 pixels most, with three blocks a multiprocessor."""
    problem, target = parse_problem(words.split(), op), device("sm_90a")
    algorithm = next(a for a in dispatch.algorithms(op) if a.name == algo)
    shape = (lambda c: (c.height.pixels, c.width.pixels, c.channels * problem.x.itemsize) == (2, 2, 16)) if algo == "patches" else (
        lambda c: c.height is not None and (c.rows, c.pixels) == (2, 8))
    config = next(v.config for v in algorithm.variants(problem, target) if shape(v.config))
    launch = algorithm.build(problem, target, config)[0]
    code = machine_code(launch.kernel, launch.signature, "sm_90a")
    # of a second vector of a row one output alone is of use
    assert accesses(code, "LDG") == ({128: loads} if algo == "patches" else {128: loads // 2, 32: loads // 2})
    assert accesses(code, "STG") == {128: 4} and code.registers * 256 * config.blocks <= 65536
    names = [line.split()[0] for line in code.lines]
    before = names[:next((k for k, name in enumerate(names) if name.startswith(("FADD", "FSEL"))), len(names))]
    assert sum(name.startswith("LDG") for name in before) >= (loads if algo == "patches" else loads // 2 + 1)


@pytest.mark.parametrize("words, algo, most", [("64x64x112x112 f32 3x3 s2 p1 index nhwc", "channels", 64),
                                               ("64x64x112x112 f32 3x3 s2 p1 index", "rows", 64)])
def test_no_maximum_before_all_taps_are_loaded(words, algo, most):
    """Four blocks a multiprocessor."""
    code, _, _ = assembled("max_pool_fwd", words, algo)
    names = [line.split()[0] for line in code.lines]
    first = names.index(next(n for n in names if n.startswith("FMNMX")))
    assert sum(n.startswith("LDG") for n in names[:first]) == 9
    assert code.registers <= most


@pytest.mark.parametrize("op, words", [
    ("max_pool_fwd", "64x64x112x112 f32 3x3 s2 p1 index"), ("avg_pool_fwd", "64x64x112x112 f32 3x3 s2 p1"),
    ("max_pool_bwd", "64x64x112x112 f32 3x3 s2 p1"), ("avg_pool_bwd", "64x512x13x13 f32 7x7 adaptive")])
def test_elements_do_not_divide(op, words):
    code, _, _ = assembled(op, words, "elements")
    assert set(accesses(code, "LDG")) == {32}
    check_arithmetic(code, words)


def test_channels_that_are_no_chunks():
    """The largest power of two that divides their number, in accesses as wide."""
    for channels, width in ((100, 64), (50, 32)):
        code, _, _ = assembled("avg_pool_fwd", f"8x{channels}x28x28 f16 3x3 s2 p1 nhwc", "channels")
        assert set(accesses(code, "LDG")) == set(accesses(code, "STG")) == {width}


@pytest.mark.parametrize("op, words, widths, stores, instructions", [
    ("max_pool_fwd", "64x64x112x112 bf16 3x3 s2 p1 index", {16, 32, 128}, {128}, 100),
    ("avg_pool_fwd", "64x64x112x112 f32 3x3 s2 p1", {32, 128}, {128}, 100),
    ("max_pool_fwd", "64x256x56x56 f16 2x2", {128}, {64}, 60),
    ("max_pool_bwd", "64x64x112x112 bf16 3x3 s2 p1", {32, 64, 128}, {128}, 26),
    ("avg_pool_bwd", "64x256x56x56 f16 2x2", {64}, {128}, 25)])
def test_rows_are_made_of_few_instructions(op, words, widths, stores, instructions):
    """Stretches in whole groups, but for the words of a group that no window sees, and elements where a NaN is looked for; of each element
    that is written so many instructions."""
    code, _, config = assembled(op, words, "rows")
    assert set(accesses(code, "LDG")) <= widths and set(accesses(code, "STG")) == stores
    made = config.outputs if op.endswith("fwd") else config.rows * config.pixels
    assert len(code.lines) <= instructions * made
    check_arithmetic(code, words)


@pytest.mark.parametrize("words, algo", [("32x64x112x112 bf16 global", "global"), ("32x64x112x112 f32 global index", "global"),
                                         ("32x64x112x112 bf16 global nhwc index", "global_channels"),
                                         ("32x64x112x112 f32 global nhwc", "global_channels")])
def test_whole_images_are_read_in_chunks(words, algo):
    code, launch, _ = assembled("max_pool_fwd", words, algo)
    found = accesses(code, "LDG")
    assert set(found) == {128} and found[128] >= 4, "four loads in flight"
    assert code.registers <= 64
    check_arithmetic(code, words)


@pytest.mark.parametrize("op, words", [("avg_pool_fwd", "32x512x13x13 bf16 13x13 s1 p6"), ("max_pool_fwd", "32x512x13x13 f16 5x5 s1 p2"),
                                       ("max_pool_fwd", "32x512x13x13 f32 5x5 s1 p2 index"), ("avg_pool_fwd", "8x64x20x20 f64 5x5 s1 p2")])
def test_planes_are_read_once(op, words):
    """Eight elements in flight, results stored one by one, and every tap of a window from shared memory; four blocks a multiprocessor."""
    code, launch, _ = assembled(op, words, "planes")
    assert code.count("LDG") == 8 and code.count("STG") == 1 + ("index" in words) and code.count("BAR.SYNC") == 2
    assert code.count("LDS") >= 2 and code.registers <= 64 and launch.block == (256, 1, 1)
    check_arithmetic(code, words)
