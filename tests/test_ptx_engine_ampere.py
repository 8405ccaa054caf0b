"""What the Ampere main loop compiles to: the instructions meant, no moves between loads and products, every tile within its registers."""
import pytest
from sass import machine_code
from test_ptx import device

from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from dnnkern.matmul import matmul_mma as mma  # noqa: E402
from dnnkern.matmul._parse import parse_problem  # noqa: E402

# dtype and layout: product, loads of fragments (name: how many for one product of a warp tile of 64 x 64, or of 32 x 32 float64)
LOADS = {
    ("bf16", "nt"): ("HMMA.16816.F32.BF16", {"LDSM.16.M88.4": 8 / 32}),
    ("bf16", "nn"): ("HMMA.16816.F32.BF16", {"LDSM.16.M88.4": 4 / 32, "LDSM.16.MT88.4": 4 / 32}),
    ("f16", "tn"): ("HMMA.16816.F32", {"LDSM.16.MT88.4": 8 / 32}),
    ("i8", "nt"): ("IMMA.16832.S8.S8", {"LDSM.16.M88.4": 8 / 32}),
    ("i8", "tn"): ("IMMA.16832.S8.S8", {"LDSM.16.MT88.4": 8 / 32, "PRMT": 1}),
    ("f32", "nt"): ("HMMA.1688.F32.TF32", {"LDSM.16.M88.4": 8 / 32, "FFMA": 1}),
    ("f32", "tn"): ("HMMA.1688.F32.TF32", {"LDS.128": 8 / 32, "FFMA": 1}),
}


def launches(words, arch, text=""):
    """The product launches of every configuration whose name contains `text`, by name; one for each tile."""
    problem, target = parse_problem(words.split()), device(arch)
    configs = {str(c.tile): c for c in mma.configs(problem, target) if c.ranges == 1 and text in str(c)}
    assert configs
    return {name: mma.build(problem, target, c)[0] for name, c in configs.items()}


def assembled(launch, arch):
    return machine_code(launch.kernel, launch.signature, arch)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype, layout", LOADS)
def test_the_loop_is_products_and_their_loads(dtype, layout, arch):
    words = f"4096x4096x4096 {dtype} {layout}" + " --math tf32" * (dtype == "f32")
    (launch,) = launches(words, arch, "128x128x64B w2x2").values()
    code = assembled(launch, arch)
    product, loads = LOADS[dtype, layout]
    products = [k for k, line in enumerate(code.lines) if line.startswith(product)]
    loop = code.lines[products[0]:products[-1] + 1]
    assert len(products) % 64 == 0, "a stage has two steps of k of 32 products"
    for name, each in loads.items():
        found = sum(line.split()[0].startswith(name) for line in loop)
        assert abs(found / len(products) - each) <= each / 2 + 0.01, f"{found} {name} for {len(products)} products, expected {each} for one"
    others = len(loop) - len(products) - sum(line.split()[0].startswith(tuple(loads)) for line in loop)
    assert others <= (2.2 if dtype == "f32" else 1.25) * len(products), f"{others} other instructions beside {len(products)} products"
    copies = code.opcodes("LDGSTS")
    assert len(copies) >= 8 and all("BYPASS" in name and ".128" in name for name in copies) and not code.count("STS")


@pytest.mark.parametrize("arch, shape, product, count", [("sm_80", "m8k4", "DMMA.884", 128), ("sm_90a", "m16k4", "DMMA.16x8x4", 64),
                                                         ("sm_90a", "m16k8", "DMMA.16x8x8", 32)])
def test_float64(arch, shape, product, count):
    (launch,) = launches("4096x4096x4096 f64 nn", arch, f"128x64x128B w2x2 s4 rows {shape}").values()
    code = assembled(launch, arch)
    assert code.count("DMMA") == code.count(product) > 0 and code.count(product) % count == 0
    loop = code.lines[code.lines.index(next(line for line in code.lines if line.startswith(product))):]
    moves = sum(line.startswith(("MOV", "IMAD.MOV")) for line in loop[:300])
    assert not code.count("LDSM") and code.count("LDS.64") >= 48 and moves <= 8, "fragments are loaded where products want them"


@pytest.mark.parametrize("words", [
    "4096x4096x4096 bf16 nn", "8x4096x4096 bf16 nt", "4096x4096x4096 f64 nn", "999x999x999 i8 tn",
    *(pytest.param(words, marks=pytest.mark.slow) for words in (
        "16x4096x4096 bf16 nn", "4096x8x4096 f64 nt", "4096x4096x4096 i8 nn", "8x4096x4096 f32 nt --math tf32", "4095x4093x4091 bf16 nn"))])
def test_every_tile_keeps_to_its_registers(words):
    arch = "sm_90a"
    for name, launch in launches(words, arch).items():
        code = assembled(launch, arch)
        threads, blocks = launch.kernel.targetoptions["launch_bounds"]
        assert -(-code.registers // 8) * 8 * threads * blocks <= 65536, f"{name}: {code.registers} registers"


def test_what_a_tile_refuses():
    from dnnkern.engine.ampere import MmaTile
    for fields, words in (((96, 64), "power of two"), ((64, 64, 64, 8), "at least 16x8"), ((64, 64, 32, 2, 2, 2), "even number"),
                          ((64, 64, 64, 2, 2, 1, 1), "at least 2 stages")):
        with pytest.raises(ValueError, match=words):
            MmaTile(*fields)
