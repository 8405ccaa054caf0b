"""What the Winograd kernels compile to: multiply-adds with little beside them, within the registers that their tiles allow."""
import pytest
from sass import machine_code
from test_ptx import device

from dnnkern import dispatch
from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from dnnkern.conv._parse import parse_problem  # noqa: E402

ARCH = "sm_90a"


def launches(words, op, name, text=""):
    """The launches of the first configuration whose name contains `text`."""
    problem, target = parse_problem(words.split(), op), device(ARCH)
    algorithm = next(a for a in dispatch.algorithms(op) if a.name == name)
    config = next(c for c in algorithm.configs(problem, target) if text in str(c))
    return algorithm.build(problem, target, config)


# problem, direction, tile; which part of the instructions, from the first multiply-add of a step to its last, are multiply-adds
FUSED = [("64x64x56x56 k64 3x3 p1 f32 nchw", "conv_fwd", "64x32x8", 0.80),
         ("64x256x14x14 k256 3x3 p1 f32 nhwc --bias --activation relu", "conv_fwd", "64x32x16", 0.78),
         ("64x512x7x7 k512 3x3 p1 f32 nchw", "conv_bwd_data", "32x64x4", 0.74),
         ("64x256x14x14 k256 3x3 p1 bf16 nhwc", "conv_fwd", "32x32x8", 0.65)]


@pytest.mark.parametrize("words, op, tile, share", FUSED)
def test_a_step_is_multiply_adds(words, op, tile, share):
    launch = launches(words, op, "winograd", tile)[-1]
    code = machine_code(launch.kernel, launch.signature, ARCH)
    threads, blocks = launch.kernel.targetoptions["launch_bounds"]
    assert -(-code.registers // 8) * 8 * threads * blocks <= 65536
    assert (launch.shared + 1024) * blocks <= device(ARCH).shared_per_sm
    products = [k for k, line in enumerate(code.lines) if line.startswith("FFMA")]
    step = code.lines[products[0]:products[-1] + 1]
    bk, bt, bc = map(int, tile.split("x"))
    each = 16 * bk * bt * bc // threads
    assert each <= len(products) <= each + 64, "the loop over channels is one step, its products unrolled"
    assert len(products) / len(step) >= share
    assert not code.opcodes("DADD", "DMUL", "DFMA", "F2F.F64") and not code.doubles
    assert all(".128" in name for name in code.opcodes("LDGSTS")) and code.count("LDGSTS") == 2 * bk * bc * 16 // (4 * threads)
    fragments = [line for line in step if line.startswith("LDS") and "RZ" not in line]  # LDS RZ belongs to the wait for copies
    assert len(fragments) >= each // 16 and all(".128" in line.split()[0] for line in fragments)
    images = [name for name in code.opcodes("LDG") if "CONSTANT" in name]
    assert len(images) == 32, "16 pixels of one channel a thread, before the loop and in it"
    assert sum(line.startswith("BAR") for line in step) == 1


# problem, direction, extent of a tile; multiply-adds, additions and multiplications of its transforms together: filter, image, dy, results
STAGED = [("64x256x14x14 k256 3x3 p1 f32 nchw", "conv_fwd", 6, {"filter": 71, "patches": [180], "results": 100}),
          ("64x256x14x14 k256 5x5 p2 f32 nhwc", "conv_bwd_data", 6, {"filter": 156, "patches": [180], "results": 64}),
          ("64x256x14x14 k256 5x5 p2 bf16 nhwc --bias --activation relu", "conv_fwd", 6,
           {"filter": 156, "patches": [180], "results": 68}),
          ("64x256x14x14 k256 3x3 p1 f16 nchw", "conv_bwd_data", 6, {"filter": 71, "patches": [180], "results": 100}),
          ("64x256x14x14 k256 3x3 p1 f32 nchw", "conv_bwd_filter", 6, {"patches": [180, 117], "results": 81}),
          ("64x256x14x14 k256 3x3 p1 bf16 nhwc", "conv_bwd_filter", 4, {"patches": [32, 17], "results": 28}),
          ("64x256x14x14 k256 5x5 p2 f32 nchw", "conv_bwd_filter", 6, {"patches": [180, 54], "results": 121}),
          ("64x256x14x14 k256 5x5 p2 f16 nhwc", "conv_bwd_filter", 6, {"patches": [180, 54], "results": 121})]


@pytest.mark.parametrize("words, op, extent, most", STAGED)
def test_transforms_stay_in_registers(words, op, extent, most):
    """Every element of a tile is read and written once, all 36 at a time; a transform does no arithmetic beyond what its matrix needs."""
    taps = int(words.split()[2][0])
    results = taps if op == "conv_bwd_filter" else extent - taps + 1
    reads, work = [], {}
    for launch in launches(words, op, "winograd_nonfused", f"{extent}x{extent}"):
        name = launch.kernel.py_func.__name__
        if "winograd" in name:
            name = name.removeprefix("conv_winograd_")
            code = machine_code(launch.kernel, launch.signature, ARCH)
            assert code.registers <= 128 and not code.doubles
            work.setdefault(name, []).append(sum(code.count(f) for f in ("FFMA", "FADD", "FMUL")))
            if name != "results":
                assert code.count("STG") == extent**2
                reads.append(code.count("LDG"))
            else:
                assert code.count("LDG") >= extent**2 and code.count("STG") in (results**2, results)
    assert set(work) == set(most)
    for name, bound in most.items():
        found = work[name][:2]
        assert all(f <= 1.05 * b for f, b in zip(found, bound if isinstance(bound, list) else [bound])), f"{name}: {found}, at most {bound}"
    expected = [taps**2, extent**2] if op != "conv_bwd_filter" else [extent**2, (extent - taps + 1)**2]
    assert reads[:2] == expected


def test_tf32_products_are_on_tensor_cores():
    kernels = [launch.kernel.py_func.__name__ for launch in launches("64x256x14x14 k256 3x3 p1 f32 nhwc --math tf32", "conv_fwd",
                                                                     "winograd_nonfused")]
    assert "matmul_wgmma" in kernels and "matmul_pack" not in kernels, "matrices lie as wgmma reads tf32"
