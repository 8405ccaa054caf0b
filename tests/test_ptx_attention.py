"""What the kernels of attention and of rotary embeddings compile to: 16-byte accesses, no stray float64, nothing in local memory."""
import pytest

from dnnkern import dispatch
from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from sass import assembled as assembled_code, machine_code  # noqa: E402
from test_ptx import device  # noqa: E402
from test_ptx_transform import accesses  # noqa: E402

from dnnkern.attention.backward._dbias import plan_of  # noqa: E402
from dnnkern.attention.backward._dbias_wgmma import config_of  # noqa: E402
from dnnkern.attention._parse import parse_problem  # noqa: E402
from dnnkern.device.index import ceil_div  # noqa: E402


def assembled(op, words, algo, most=1, arch="sm_90a"):
    """(algorithm bound to a configuration, [(name of a kernel, its code, launch), ...]) of the most promising configurations; kernels that
    are the naive algorithm's, too, have no code here."""
    problem, target = parse_problem(words.split(), op), device(arch)
    algorithm = next(a for a in dispatch.algorithms(op) if a.name == algo)
    assert algorithm.supports(problem) is None
    for variant in algorithm.variants(problem, target)[:most]:
        launches = [(launch.kernel.py_func.__name__, launch) for launch in variant.build(problem, target, variant.config)]
        yield variant, [(name, machine_code(launch.kernel, launch.signature, arch) if name.endswith(algo) else None, launch)
                        for name, launch in launches]


@pytest.mark.parametrize("words, loads", [("4x4096x32x128 bf16 --heads-inside --interleaved", 4), ("4x32x4096x128 f16 --angles f32", 6)])
def test_rows_are_turned_16_bytes_at_a_time(words, loads):
    """Two halves of a row, cosines and sines: each once; nothing is divided."""
    (_, [(_, code, _)]), = assembled("rope_fwd", words, "rows")
    assert accesses(code, "LDG") == {128: loads} and accesses(code, "STG") == {128: 2}
    assert not code.doubles and not code.divisions
    assert code.registers <= 64


@pytest.mark.parametrize("words, most", [("4x16x2048x64 f32 --causal", 1), ("4x16x2048x128 bf16 --kv-heads 4 --lse", 1),
                                         ("2x4x512x80 f16 --layout thd --window=100,0 --alibi --sink", 1),
                                         ("2x4x500x33 bf16 --bias full --softcap 3 --dropout 0.1", 1),
                                         ("4x16x2048x64 bf16 --mask pairs", 1)])
def test_scores_stay_in_registers(words, most):
    """Products of 16-byte groups from shared memory, two barriers a tile of keys and one before, nothing is divided."""
    for variant, ((_, code, launch),) in assembled("sdpa_fwd", words, "flash_simt", most):
        threads = variant.config.threads
        loads = [line for line in code.lines if line.startswith("LDS") and "[RZ]" not in line]  # which asynchronous copies leave
        assert len(loads) >= 2 * (threads.rows + threads.columns) and all(line.startswith("LDS.128") for line in loads), variant
        assert code.count("FFMA") >= 4 * threads.rows * threads.columns and not code.doubles, variant
        assert code.count("BAR.SYNC") <= 3, variant
        assert code.registers * threads.count <= 65536 and launch.shared <= 232448
        assert (code.count("LDGSTS") > 0) == ("f32" in words), "aligned rows pass no register"


@pytest.mark.parametrize("words, most", [("4x16x4096x128 bf16 --lse", 3), ("4x32x4096x64 f16 --causal", 3),
                                         ("4x16x2048x256 bf16 --causal --bottom-right", 1), ("2x8x1000x72 f16 --window=100,3 --sink", 1),
                                         ("4x16x2048x192 bf16 --value-size 128 --kv-heads 4", 1),
                                         ("8x16x1024x128 bf16 --layout thd --causal", 3), ("4x16x2048x64 bf16 --bias heads", 3),
                                         ("4x16x2048x64 bf16 --softcap 30 --causal", 2),
                                         ("4x16x2048x64 bf16 --mask pairs", 3), ("4x16x2048x128 f16 --mask keys --causal", 2),
                                         ("2x4x512x256 bf16 --mask full --dropout 0.1 --softcap 3 --causal", 1),
                                         ("2x4x512x64 bf16 --bias full --softcap 3 --dropout 0.1 --alibi", 1)])
def test_scores_never_leave_the_registers_of_wgmma(words, most):
    """Two products a step, before the loop and in it, as asynchronous as they are written; the exponentials and little else."""
    for variant, ((*_, (_, code, launch))) in assembled("sdpa_fwd", words, "flash_wgmma", most):
        config = variant.config
        shape, name = config.shape, "BF16" if config.kind.dtype == "bfloat16" else ""
        products = [f"HGMMA.64x{n}x16.F32" + f".{name}" * (name != "")
                    for n, steps in ((shape.width, config.steps), (config.columns, shape.width // 16)) for _ in range(2 * steps)]
        assert sorted(code.opcodes("HGMMA")) == sorted(products), variant
        assert code.count("USETMAXREG") == 2 and code.registers * launch.block[0] <= 65536 and launch.shared <= 232448
        assert code.count("MUFU.EX2") <= shape.width + 16 or "softcap" in words, variant
        assert not code.doubles and not code.divisions, variant
        stores = (0, 4 * config.boxes[1]) if config.kind.packed else (config.boxes[1], 0)
        assert (code.count("UTMASTG"), accesses(code, "STG").get(128, 0)) == stores, variant
        assert code.count("LDSM") == shape.held * config.steps + shape.width // 8 * config.staged
        assert not (config.staged or config.mask) or not code.count("LDG"), variant
        assert set(code.opcodes("MEMBAR")) <= {"MEMBAR.ALL.CTA"}, variant
        assert code.count("ATOMG") == config.drawn, variant


@pytest.mark.parametrize("op, words, copies", [("sdpa_fwd", "4x16x2048x212 f16 --causal", 3),
                                               ("sdpa_fwd", "2x8x1000x64 bf16 --mask full", 1),
                                               ("sdpa_bwd", "4x16x1024x110 f16 --causal", 4), ("sdpa_bwd", "2x8x512x238 bf16", 4)])
def test_rows_that_tma_cannot_read_are_copied_once(op, words, copies):
    """Before the launches for rows that it can read."""
    problem, target = parse_problem(words.split(), op), device("sm_90a")
    algorithm = next(a for a in dispatch.algorithms(op) if a.name == "flash_wgmma_padded")
    variant = algorithm.variants(problem, target)[0]
    launches = variant.build(problem, target, variant.config)
    for launch in launches[:copies]:
        code = machine_code(launch.kernel, launch.signature)
        assert launch.kernel.py_func.__name__.startswith("transpose") and min(accesses(code, "LDG")) >= 32, "words at least"
        assert min(accesses(code, "STG")) >= 32 and not code.doubles
    others = {argument.value for launch in launches[copies:] for argument in launch.parameters if argument.is_dynamic}
    assert not others & {launch.parameters[0].value for launch in launches[:copies]}, "what has been copied is read in the workspace"
    assert not any(launch.kernel.py_func.__name__.startswith("transpose") for launch in launches[copies:])


@pytest.mark.parametrize("words, most", [("4x16x4096x128 e4m3 --lse --scales", 3), ("4x32x4096x64 e5m2 --causal", 3),
                                         ("4x16x2048x192 e4m3 --value-size 128 --kv-heads 4 --window=1000,0", 1),
                                         ("4x16x2048x256 e4m3 --causal --lse", 2), ("4x16x4096x128 e4m3 --lse --scales --quantized", 2),
                                         ("4x16x4096x64 e5m2 --causal --quantized --out-dtype e5m2", 1),
                                         ("2x8x1000x96 e4m3 --out-dtype f32", 2),
                                         ("2x4x512x64 e4m3 --bias full --softcap 3 --dropout 0.1 --alibi --sink --lengths", 1)])
def test_scores_of_bytes_never_leave_the_registers_of_wgmma(words, most):
    """As with 16 bits, but four probabilities a word, rounded and put together by two instructions."""
    for variant, ((*_, (_, code, launch))) in assembled("sdpa_fwd", words, "flash_wgmma_fp8", most):
        config = variant.config
        shape, name = config.shape, "E4M3" if "e4m3" in words else "E5M2"
        products = [f"QGMMA.64x{n}x32.F32.{left}.{name}" for n, left, steps in (
            (shape.width, name, config.steps), (config.columns // config.parts, "E4M3", shape.width // 32 * config.parts))
            for _ in range(2 * steps)]
        assert sorted(code.opcodes("QGMMA")) == sorted(products), variant
        assert code.count("USETMAXREG") == 2 and code.registers * launch.block[0] <= 65536 and launch.shared <= 232448
        assert code.count("F2FP.SATFINITE.E4M3") == shape.width // 2, variant
        assert "bias" in words or config.out == "float8_e5m2" or not code.count("PRMT"), variant
        assert code.count("MUFU.EX2") <= shape.width + 16 or "softcap" in words, variant
        assert not code.doubles and not code.divisions, variant
        assert code.count("UBLKCP") > 0 and code.opcodes("MEMBAR") in ([], ["MEMBAR.ALL.CTA"]), variant
        assert code.count("ATOMG") == config.drawn, variant
        # a warp's largest magnitudes, once: those of a tile's scores are there anyway, and each sum is compared once
        assert code.count("REDG") == code.count("REDG.E.MAX") == 2 * config.quantized.amax_s, variant


@pytest.mark.parametrize("words, most", [("4x16x2048x64 f32 --lse", 9), ("4x16x2048x128 f32 --causal", 5),
                                         ("2x8x1000x72 f32 --window=100,3 --sink", 1), ("2x4x512x128 f32 --bias full --softcap 3", 2),
                                         ("2x4x512x64 f32 --bias full --softcap 3 --dropout 0.1 --alibi --sink --lengths", 2)])
def test_scores_of_floats_never_leave_the_registers_of_wgmma(words, most):
    """Six times the products of 16 bits; three conversions of two for each two probabilities."""
    for variant, ((_, (_, code, launch))) in assembled("sdpa_fwd", words, "flash_wgmma_bf16x6", most):
        config = variant.config
        shape = config.shape
        products = [f"HGMMA.64x{n}x16.F32.BF16" for n, steps in (
            (shape.width, config.steps), (config.columns // config.parts, shape.width // 16 * config.parts)) for _ in range(2 * 6 * steps)]
        assert sorted(code.opcodes("HGMMA")) == sorted(products), variant
        assert code.count("USETMAXREG") == 2 and code.registers * launch.block[0] <= 65536 and launch.shared <= 232448
        assert code.count("F2FP.BF16") == 3 * 2 * shape.width // 4, variant
        assert code.count("MUFU.EX2") <= shape.width + 16 or "softcap" in words, variant
        assert not code.doubles and not code.divisions, variant
        assert accesses(code, "STG").get(64, 0) == config.columns // 4, "results by two"
        assert code.opcodes("MEMBAR") in ([], ["MEMBAR.ALL.CTA"]) and code.count("ATOMG") == config.drawn, variant


def test_floats_are_split_16_bytes_at_a_time():
    """Eight floats of a thread in two loads, three pieces in three stores, of each of q, k and v."""
    problem, target = parse_problem("4x16x2048x64 f32".split(), "sdpa_fwd"), device("sm_90a")
    algorithm = next(a for a in dispatch.algorithms("sdpa_fwd") if a.name == "flash_wgmma_bf16x6")
    variant = algorithm.variants(problem, target)[0]
    launch = variant.build(problem, target, variant.config)[0]
    code = machine_code(launch.kernel, launch.signature)
    assert accesses(code, "LDG") == {128: 6} and accesses(code, "STG") == {32: 1, 128: 9} and code.count("F2FP.BF16") == 36
    assert code.registers <= 64 and not code.doubles


def test_values_of_bytes_are_turned_by_words():
    """Sixteen rows read by words, four pieces of 16 bytes written."""
    problem, target = parse_problem("4x16x4096x128 e4m3".split(), "sdpa_fwd"), device("sm_90a")
    algorithm = next(a for a in dispatch.algorithms("sdpa_fwd") if a.name == "flash_wgmma_fp8")
    variant = algorithm.variants(problem, target)[0]
    launch = variant.build(problem, target, variant.config)[0]
    code = machine_code(launch.kernel, launch.signature)
    assert accesses(code, "LDG") == {32: 16} and accesses(code, "STG") == {32: 1, 128: 4} and code.count("PRMT") == 32
    assert code.registers <= 64 and not code.doubles


@pytest.mark.parametrize("words", ["4x16x4096x128 bf16 --lse", "4x16x2048x64 f16 --causal --dropout 0.1",
                                   "4x16x4096x128 bf16 --lse --mask full", "4x16x2048x64 f16 --bias heads --mask keys --causal",
                                   "4x16x4096x128 bf16 --lse --ragged", "4x16x4096x128 bf16 --causal --page 64",
                                   "4x16x4096x128 bf16 --block-mask"])
def test_scores_never_leave_the_registers_of_mma(words):
    """Each matrix load of 16 columns serves two products; the left one's serves all columns."""
    (variant, ((_, code, launch),)), = assembled("sdpa_fwd", words, "flash_mma")
    config = variant.config
    width, steps, columns = config.threads.width, config.q.width // 16, config.v.width
    assert code.count("HMMA.16816.F32") == steps * width // 8 + width // 16 * columns // 8
    assert code.count("LDSM.16.M88.4") == steps * (1 + width // 16) and code.count("LDSM.16.MT88.4") == width // 16 * columns // 16
    assert code.count("LDGSTS") > 0 and code.count("BAR.SYNC") <= 3
    assert not [line for line in code.lines if line.startswith(("LDS ", "LDS.", "STS")) and "[RZ]" not in line]
    assert not code.doubles and not code.divisions
    assert code.registers * launch.block[0] * config.threads.blocks <= 65536


@pytest.mark.parametrize("words", ["4x16x4096x128 e4m3 --lse --scales --quantized", "4x16x2048x64 e5m2 --causal --ragged",
                                   "4x16x2048x128 e4m3 --mask pairs --out-dtype e4m3 --quantized"])
def test_bytes_become_float16_on_their_way_to_shared_memory(words):
    """Eight bytes a load, two of them an instruction, sixteen bytes a store; the products are those of float16."""
    variant, kernels = next(assembled("sdpa_fwd", words, "flash_mma"))
    (_, code, launch), config = kernels[-1], variant.config
    width, steps, columns, threads = config.threads.width, config.q.width // 16, config.v.width, config.threads.count
    assert code.count("HMMA.16816.F32") == steps * width // 8 + width // 16 * columns // 8
    loads = (config.threads.height * config.q.width + 2 * width * (config.k.width + config.v.width)) // (8 * threads)
    assert accesses(code, "STS") == {128: loads} and accesses(code, "LDG")[64] >= loads
    assert code.count("F2FP.F16.E4M3.UNPACK_B") == 4 * loads * ("e4m3" in words) and not code.count("LDGSTS")
    assert code.count("REDG.E.MAX") == 2 * config.quantized.amax_s and len(kernels) == 1 + config.quantized.amax_s
    assert not code.doubles and not code.divisions and code.count("BAR.SYNC") <= 3
    assert code.registers * launch.block[0] * config.threads.blocks <= 65536


@pytest.mark.parametrize("words", ["4x16x2048x64 f32 --causal", "4x16x2048x128 bf16 --kv-heads 4",
                                   "2x4x500x33 f16 --bias pairs --softcap 3 --dropout 0.1", "4x16x2048x64 f32 --mask pairs"])
def test_gradients_stay_in_registers(words):
    """Three and four products a tile, two barriers, no atomics."""
    (variant, kernels), = assembled("sdpa_bwd", words, "flash_simt")
    threads, found = variant.config.threads, {name: (code, launch) for name, code, launch in kernels}
    of_bias = ["sdpa_dbias_mma", "sdpa_dbias_sums"] if "bias" in words else []
    assert list(found) == ["sdpa_delta", "sdpa_dq_flash_simt", "sdpa_dkv_flash_simt", *of_bias]
    for name, products in (("sdpa_dq_flash_simt", 3), ("sdpa_dkv_flash_simt", 4)):
        code, launch = found[name]
        assert code.count("LDS.128") >= (products - 1) * (threads.rows + threads.columns)
        assert code.count("BAR.SYNC") <= 2 and not code.doubles and not code.opcodes("RED.", "REDG", "ATOM"), name
        assert code.registers * threads.count <= 65536 and launch.shared <= 232448


@pytest.mark.parametrize("words", ["4x16x2048x128 bf16 --kv-heads 4", "4x16x2048x64 f16 --causal", "4x16x2048x128 f16 --mask pairs",
                                   "2x16x2048x64 bf16 --mask keys --causal --softcap 3", "4x16x2048x128 bf16 --ragged --causal"])
def test_gradients_stay_in_the_registers_of_mma(words):
    """Three and four products a tile; p and ds never pass through memory, nor are there atomics."""
    (variant, kernels), = assembled("sdpa_bwd", words, "flash_mma")
    config = variant.config
    width, d, e = config.threads.width, config.q.width, config.v.width
    for (name, code, launch), products in zip(kernels[1:], (2 * d + e, 2 * d + 2 * e)):
        assert code.count("HMMA.16816.F32") == products * width // 128 and code.count("BAR.SYNC") <= 2, name
        assert not [line for line in code.lines if line.startswith("STS") and not line.startswith("STS [")] and not code.doubles, name
        assert not code.opcodes("RED.", "REDG", "ATOM") and code.registers * launch.block[0] * config.threads.blocks <= 65536, name


@pytest.mark.parametrize("algo, words", [
    ("flash_mma", "4x16x2048x64 bf16 --bias heads"), ("flash_wgmma", "4x16x2048x128 f16 --bias full --causal --alibi"),
    ("flash_mma", "2x4x500x80 bf16 --bias pairs --lengths --alibi --softcap 3 --window=9,9"),
    ("flash_wgmma", "2x4x64x256 f16 --bias pairs --dropout 0.1"), ("flash_mma", "4x16x40x64 bf16 --bias keys"),
    ("flash_mma", "4x16x2048x64 bf16 --bias heads --mask full"),
    ("flash_mma", "2x4x500x80 bf16 --bias pairs --mask pairs --alibi --softcap 3 --dropout 0.1")])
def test_gradients_of_biases_stay_in_registers(algo, words):
    """Two products of a tile, of 32 rows and 48 keys a warp, 32 with every option, each with a barrier, and two more when the tile leaves;
    nothing is added in memory."""
    problem, target = parse_problem(words.split(), "sdpa_bwd"), device("sm_90a")
    variant = next(a for a in dispatch.algorithms("sdpa_bwd") if a.name == algo).variants(problem, target)[0]
    launch = next(x for x in variant.build(problem, target, variant.config) if x.kernel.py_func.__name__ == "sdpa_dbias_mma")
    code, (config, _) = machine_code(launch.kernel, launch.signature), plan_of(problem, 0, target)
    steps = (config.of_x.width + config.of_y.width) // 16
    assert code.count("HMMA.16816.F32") == steps * config.shape.keys // 4 and code.count("BAR.SYNC") == 4
    assert not code.opcodes("RED.", "REDG", "ATOM") and not code.doubles
    assert launch.shared <= 232448 and code.registers * launch.block[0] <= 65536


@pytest.mark.parametrize("algo, words", [
    ("flash_simt", "4x16x2048x64 f32 --bias heads"), ("flash_wgmma_bf16x6", "4x16x2048x64 f32 --bias heads --causal"),
    ("flash_simt", "4x16x2048x128 f32 --bias pairs --mask pairs --alibi --softcap 3 --dropout 0.1"),
    ("flash_simt", "4x16x2048x250 f32 --bias heads")])
def test_gradients_of_biases_in_float32_stay_in_registers(algo, words):
    """Two products of a tile, 16 multiply-adds for eight loads of 16 bytes, between four barriers, and one more when the tile leaves."""
    problem, target = parse_problem(words.split(), "sdpa_bwd"), device("sm_90a")
    variant = next(a for a in dispatch.algorithms("sdpa_bwd") if a.name == algo).variants(problem, target)[0]
    launch = next(x for x in variant.build(problem, target, variant.config) if x.kernel.py_func.__name__ == "sdpa_dbias_simt")
    code, (config, _) = machine_code(launch.kernel, launch.signature), plan_of(problem, 0, target)
    shape = config.shape
    assert code.count("FFMA") >= 2 * 4 * shape.rows * shape.columns and code.count("LDS.128") >= 2 * (shape.rows + shape.columns)
    assert code.count("BAR.SYNC") == 5 and not code.opcodes("RED.", "REDG", "ATOM") and not code.doubles
    assert launch.shared <= 232448 and code.registers * launch.block[0] * shape.blocks <= 65536


@pytest.mark.parametrize("algo", ["flash_mma", "flash_wgmma", "naive"])
def test_the_gradient_of_a_sink_is_a_small_launch(algo):
    """One barrier, no atomics."""
    problem, target = parse_problem("4x16x2048x64 bf16 --causal --sink".split(), "sdpa_bwd"), device("sm_90a")
    variant = next(a for a in dispatch.algorithms("sdpa_bwd") if a.name == algo).variants(problem, target)[0]
    launch = variant.build(problem, target, variant.config)[-1]
    assert launch.kernel.py_func.__name__ == "sdpa_dsink" and launch.grid == (16, 1, 1)
    code = machine_code(launch.kernel, launch.signature)
    assert code.count("BAR.SYNC") == 1 and not code.opcodes("RED.", "REDG", "ATOM") and not code.doubles and code.registers <= 64


def launches_of_a_bias(problem, variant, target):
    if problem.dbias is None:
        return []
    return ["sdpa_dbias_wgmma" if config_of(problem, variant.config.shape.width, target) else "sdpa_dbias_mma"]


@pytest.mark.parametrize("words", ["4x16x2048x64 bf16 --bias heads", "2x16x2048x128 f16 --bias full --causal",
                                   "4x16x2048x192 bf16 --bias pairs --window=100,50 --bottom-right"])
def test_gradients_of_biases_are_multiplied_from_shared_memory(words):
    """Two products of a tile, as asynchronous as they are written; the gradient leaves by TMA, as the bias came."""
    problem, target = parse_problem(words.split(), "sdpa_bwd"), device("sm_90a")
    variant = next(a for a in dispatch.algorithms("sdpa_bwd") if a.name == "flash_wgmma").variants(problem, target)[0]
    launch = variant.build(problem, target, variant.config)[-1]
    code, config = machine_code(launch.kernel, launch.signature), config_of(problem, variant.config.shape.width, target)
    assert code.count("HGMMA") == sum(config.steps) and code.count("LDSM") == code.count("STSM") == config.width // 16
    assert code.count("UTMASTG") == config.width // 64 and not code.opcodes("RED.", "REDG", "ATOM", "STG", "LDG")
    assert not code.doubles
    assert launch.shared <= 232448 and code.registers * launch.block[0] <= 65536


@pytest.mark.parametrize("algo", ["flash_wgmma", "flash_wgmma_atomic"])
@pytest.mark.parametrize("words, most", [("4x16x2048x64 bf16 --bias heads", 3),
                                         ("2x4x512x160 f16 --bias full --alibi --causal --lengths", 1),
                                         ("4x16x4096x128 bf16 --kv-heads 4", 2), ("4x32x4096x64 f16 --causal", 5),
                                         ("4x16x2048x96 bf16 --bottom-right --window=100,0", 1), ("2x4x512x128 f16 --alibi --softcap 3", 1),
                                         ("2x4x512x64 bf16 --bias full --softcap 3 --dropout 0.1 --alibi", 1),
                                         ("4x16x2048x192 bf16 --value-size 128 --causal", 2), ("4x16x2048x160 f16 --window=100,0", 2),
                                         ("2x4x512x192 bf16 --value-size 128 --softcap 3", 1),
                                         ("2x4x512x144 f16 --bias full --dropout 0.1", 1),
                                         ("4x16x2048x64 bf16 --mask pairs", 3), ("4x16x2048x128 f16 --mask full --causal", 1),
                                         ("2x4x512x64 bf16 --mask keys --dropout 0.1 --alibi", 2), ("4x16x2048x160 f16 --mask pairs", 1),
                                         ("8x16x1024x128 bf16 --causal --layout thd", 1), ("8x16x1024x64 bf16 --layout thd", 2),
                                         ("8x16x1024x192 bf16 --value-size 128 --window=100,20 --bottom-right --layout thd", 1)])
def test_gradients_are_multiplied_once_from_registers(words, most, algo):
    """Five products a step, as asynchronous as they are written; ds is the only thing that leaves registers for a product, and what is
    added to dq leaves in bulk. An order of additions takes a fence for each."""
    problem, target = parse_problem(words.split(), "sdpa_bwd"), device("sm_90a")
    algorithm = next(a for a in dispatch.algorithms("sdpa_bwd") if a.name == algo)
    assert algorithm.supports(problem) is None
    for variant in algorithm.variants(problem, target)[:most]:
        config, launches = variant.config, variant.build(problem, target, variant.config)
        names = [launch.kernel.py_func.__name__ for launch in launches]
        assert names == ["sdpa_bwd_preprocess", "sdpa_bwd_flash_wgmma", "sdpa_bwd_dq", *launches_of_a_bias(problem, variant, target)]
        before, code, after = (machine_code(launch.kernel, launch.signature) for launch in launches[:3])
        s, ordered = config.shape, algo == "flash_wgmma"
        boxes = ceil_div(config.boxes[0], s.groups) if config.transposed else 1
        assert code.count("HGMMA") == sum(config.steps) + 2 * (s.width // 16) + boxes * (s.height // 16), variant
        assert code.count("STSM") == s.width // 16 and code.count("USETMAXREG") == 2 and code.count("ATOMG") == 1, variant
        assert code.count("UBLKRED") == 1 and code.count("UBLKCP") >= 1, variant
        assert len(code.opcodes("MEMBAR.ALL.GPU")) == ordered, variant
        assert launches[1].shared <= 232448 and code.registers * s.threads <= 65536
        assert all(not c.doubles and not c.divisions for c in (before, code, after)), variant
        assert accesses(after, "LDG")[64 if config.transposed else 128] >= (8 if config.transposed else 4)


@pytest.mark.parametrize("words, most", [("4x16x2048x192 bf16 --causal", 2), ("4x16x2048x256 f16 --causal", 1),
                                         ("4x16x2048x256 bf16 --mask pairs --causal", 1),
                                         ("2x4x512x256 bf16 --bias full --softcap 3 --dropout 0.1 --alibi", 1)])
def test_gradients_of_the_widest_heads_take_six_products(words, most):
    """Two of them for dv, of which nothing leaves registers but the result."""
    problem, target = parse_problem(words.split(), "sdpa_bwd"), device("sm_90a")
    algorithm = next(a for a in dispatch.algorithms("sdpa_bwd") if a.name == "flash_wgmma")
    for variant in algorithm.variants(problem, target)[:most]:
        config, launches = variant.config, variant.build(problem, target, variant.config)
        of_dv, others = (machine_code(launch.kernel, launch.signature) for launch in launches[1:3])
        (of_q, of_v), s = config.steps, config.shape
        boxes, steps = ceil_div(config.boxes[0], s.groups), config.of_dv.shape.width // 16
        assert of_dv.count("HGMMA") == of_q + steps and others.count("HGMMA") == of_q + of_v + 2 + boxes * (s.height // 16), variant
        assert of_dv.count("STSM") == of_dv.count("UBLKRED") == 0 and others.count("STSM") == 2, variant
        assert all(launch.shared <= 232448 for launch in launches), variant
        assert all(code.registers * launch.block[0] <= 65536 for code, launch in zip((of_dv, others), launches[1:3])), variant


@pytest.mark.parametrize("words", ["4x16x2048x192 bf16 --value-size 128 --causal", "4x16x2048x192 f16 --window=100,20 --bottom-right",
                                   "2x8x512x160 f16 --kv-heads 2"])
def test_gradients_of_wide_heads_are_multiplied_once_from_shared_memory(words):
    """Five products a step, s twice in the code. A word or two of a step may not fit the registers."""
    problem, target = parse_problem(words.split(), "sdpa_bwd"), device("sm_90a")
    variant = next(a for a in dispatch.algorithms("sdpa_bwd") if a.name == "flash_wgmma_roles").variants(problem, target)[0]
    config, launch = variant.config, variant.build(problem, target, variant.config)[1]
    code, s, steps = assembled_code(launch.kernel, launch.signature, "sm_90a"), config.shape, config.shape.own // 16
    (of_q, of_v), of_passing = config.steps, s.width // 16 * sum(config.boxes)
    assert code.count("HGMMA") == 2 * of_q + of_v + of_passing + steps * config.boxes[0] and not code.slow and code.spilled <= 16
    assert launch.cluster == (1, 1, 1) and launch.shared <= 232448 and not code.doubles and not code.divisions


@pytest.mark.parametrize("words", ["4x16x2048x256 bf16 --causal", "4x16x2048x224 bf16 --value-size 128", "2x8x512x200 f16 --kv-heads 2",
                                   "4x16x2048x256 f16 --window=100,20 --bottom-right"])
def test_gradients_of_two_blocks_are_multiplied_once_from_shared_memory(words):
    """Five products a step, two of them of the next step's, too; queries come to both blocks at once, ds goes to the other one by a copy,
    and what is added to dq leaves registers by 16 bytes."""
    problem, target = parse_problem(words.split(), "sdpa_bwd"), device("sm_90a")
    variant = next(a for a in dispatch.algorithms("sdpa_bwd") if a.name == "flash_wgmma_roles").variants(problem, target)[0]
    config, launches = variant.config, variant.build(problem, target, variant.config)
    assert [launch.kernel.py_func.__name__ for launch in launches] == ["sdpa_bwd_preprocess", "sdpa_bwd_flash_wgmma_roles", "sdpa_bwd_dq"]
    code, s, steps = machine_code(launches[1].kernel, launches[1].signature), config.shape, config.shape.own // 16
    of_passing, of_dq = s.width // 16 * sum(config.boxes), 2 * steps * config.dq_boxes
    assert code.count("HGMMA") == 2 * sum(config.steps) + of_passing + of_dq
    assert code.count("LDSM") == 2 * steps and code.count("STSM") == (3 + sum(config.boxes)) * steps
    assert code.count("UBLKCP.S.S") == 1 and code.count("UBLKRED") == 0 and code.count("REDG.E.ADD.F32x4") == 8 * (config.dq_boxes + 1)
    assert launches[1].cluster == (2, 1, 1) and code.count("UTMALDG.4D.MULTICAST") >= sum(config.boxes) // 2
    assert launches[1].shared <= 232448 and code.registers * launches[1].block[0] <= 65536 and not code.doubles and not code.divisions


@pytest.mark.parametrize("words, most", [("4x16x2048x64 f32", 2), ("4x16x2048x64 f32 --causal --kv-heads 4", 2),
                                         ("2x4x512x64 f32 --bias full --softcap 3 --dropout 0.1 --alibi --lengths", 1),
                                         ("4x16x2048x128 f32 --causal", 1)])
def test_gradients_of_floats_take_six_products_of_pieces(words, most):
    """Each of the five is six, of three pieces; ds leaves registers as three."""
    problem, target = parse_problem(words.split(), "sdpa_bwd"), device("sm_90a")
    algorithm = next(a for a in dispatch.algorithms("sdpa_bwd") if a.name == "flash_wgmma_bf16x6")
    variants = algorithm.variants(problem, target)
    assert len(variants) == most
    for variant in variants:
        config, launches = variant.config, variant.build(problem, target, variant.config)
        names = [launch.kernel.py_func.__name__ for launch in launches]
        assert names[:4] == ["sdpa_split", "sdpa_bwd_preprocess", "sdpa_bwd_flash_wgmma", "sdpa_bwd_dq"]
        code, s = machine_code(launches[2].kernel, launches[2].signature), config.shape
        rows, boxes = s.width // 16 * sum(config.boxes), config.boxes[0] if config.transposed else 1
        assert code.count("HGMMA") == 6 * (sum(config.steps) + rows + boxes * (s.height // 16)), variant
        assert code.count("STSM") == 3 * (s.width // 16) and code.count("USETMAXREG") == 2 and code.count("UBLKRED") == 1, variant
        assert launches[2].shared <= 232448 and code.registers * s.threads <= 65536 and not code.doubles, variant


@pytest.mark.parametrize("words", ["64x32x8192x128 bf16 --kv-heads 8 --page 16", "4x16x4096x64 f32",
                                   "8x32x4096x128 f32 --kv-heads 8 --bias heads --lse",
                                   "64x32x8192x128 bf16 --kv-heads 8 --page 64 --cache e4m3 --scales"])
def test_caches_are_read_once_by_16_bytes(words):
    """The keys and values that are under way together, and the queries; the ranges' launch and the merge."""
    for variant, kernels in assembled("sdpa_decode", words, "split_kv"):
        assert [name for name, _, _ in kernels] == ["sdpa_decode_split_kv", "sdpa_decode_merge"] and variant.config.splits > 1
        _, code, launch = kernels[0]
        wide, config = accesses(code, "LDG"), variant.config
        assert wide[128] >= 2 * config.ahead * config.held + config.rows
        assert not code.doubles and not code.divisions
        # bytes under way in a multiprocessor: a copy's rate takes 32 KB at least; of bytes a thread has twice the sums and queries
        resident = min(65536 // (code.registers * launch.block[0]), 16)
        assert 32 * config.ahead * config.held * launch.block[0] * resident >= (32 if "--cache" in words else 48) << 10


@pytest.mark.parametrize("words", ["64x32x8192x128 bf16 --kv-heads 8", "4x64x4096x64 f16 --kv-heads 8 --page 16 --window 128 --sink",
                                   "4x32x4096x128 bf16 --kv-heads 2", "4x16x4096x256 bf16 --kv-heads 8",
                                   "64x32x8192x128 bf16 --kv-heads 8 --page 64 --lse", "16x32x8192x128 bf16 --kv-heads 8 --bias heads",
                                   "16x32x8192x128 f16 --kv-heads 2 --bias full --page 64 --lse --softcap 3"])
def test_caches_go_straight_into_products(words):
    """Keys and values of the first tiles and of the next ones, each 16 bytes of a thread; the queries; a probability's halves. Clusters
    meet when all have begun, and when all have written."""
    (variant, ((_, code, launch), *_)), = assembled("sdpa_decode", words, "split_kv_mma")
    c = variant.config
    tile = c.tiles * (2 * c.k_chunks + 4 * c.v_chunks)
    assert accesses(code, "LDG")[128] == 2 * tile - 4 * c.v_chunks * (not c.overlaps) + c.eights * c.k_chunks
    assert code.count("HMMA.16816") == c.tiles * c.eights * (2 * c.k_chunks + 8 * c.v_chunks) and not code.count("LDSM")
    assert code.count("UCGABAR_ARV") == code.count("BAR.SYNC") - 3 == 2 * c.clustered
    assert not code.doubles and not code.divisions
    line = 64  # elements: 16 keys, their values and the queries of the block that comes, which clusters do not wait for
    assert code.count("CCTL.E.PF2") == (not c.clustered) * (2 * c.tiles * ceil_div(16 * ceil_div(c.d, line), 32) + ceil_div(c.d, line))
    resident = 65536 // (-(-code.registers // 8) * 8 * launch.block[0])
    assert resident >= c.blocks and 16 * tile * launch.block[0] * resident >= 64 << 10, f"{c}: bytes under way in a multiprocessor"


@pytest.mark.parametrize("words", ["32x128x4096x576 bf16 --kv-heads 1 --value-size 512",
                                   "32x64x4096x128 bf16 --kv-heads 1 --page 16 --sink",
                                   "32x16x4096x576 f16 --kv-heads 1 --value-size 512 --page 64 --rows 2 --window 1000 --softcap 3",
                                   "4x64x4096x256 bf16 --kv-heads 1", "32x128x4096x576 bf16 --kv-heads 1 --value-size 512 --lse"])
def test_rows_that_share_a_cache_are_products_of_wgmma(words):
    """Scores of 64 keys before the loop and in it, the first columns' sums in it and behind it; each box is loaded in one place."""
    (variant, ((_, code, launch), *_)), = assembled("sdpa_decode", words, "split_kv_wgmma")
    c = variant.config
    name, ((keys, values), (first, other)) = ".BF16" * (c.kind.dtype == "bfloat16"), (c.boxes, c.columns)
    wanted = [(64, 2 * 4 * keys), (first, 2 * 2 * 2), *[(other, 2 * 2)] * (other > 0)]
    assert sorted(code.opcodes("HGMMA")) == sorted(f"HGMMA.64x{n}x16.F32{name}" for n, count in wanted for _ in range(count))
    rows = c.page or 64
    assert code.count("UTMALDG.4D") == keys * (64 // rows) + 2 * values * (32 // min(rows, 32))
    assert code.count("USETMAXREG") == 2 and (code.count("MUFU.EX2") <= 64 + 16 or "softcap" in words)
    assert launch.block[0] * c.blocks * code.registers <= 65536 and c.blocks * (launch.shared + 1024) <= 228 << 10
    assert not code.doubles and not code.divisions
    assert set(code.opcodes("MEMBAR")) <= {"MEMBAR.ALL.CTA"}


@pytest.mark.parametrize("op, words", [("sdpa_fwd", "2x4x512x320 bf16 --causal"), ("sdpa_bwd", "2x4x512x320 f16 --causal"),
                                       ("sdpa_fwd", "2x4x512x320 f32 --mask pairs --softcap 30"),
                                       ("sdpa_bwd", "2x4x512x320 f32 --bias full --alibi")])
def test_rows_of_scores_pass_through_registers(op, words):
    """What `unfused` launches between products: nothing spilled, as many blocks as hide what loads take."""
    problem, target = parse_problem(words.split(), op), device("sm_90a")
    algorithm = next(a for a in dispatch.algorithms(op) if a.name == "unfused")
    own = [one for one in algorithm.build(problem, target, None) if one.kernel.py_func.__module__.endswith("unfused")]
    assert len(own) == (2 if op == "sdpa_fwd" else 1)
    for launch in own:
        code = machine_code(launch.kernel, launch.signature)
        assert code.registers <= 64 and not code.doubles
