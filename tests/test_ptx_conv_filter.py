"""What filters' gradients on Hopper's tensor cores compile to: sums in registers, loads issued by one lane. No GPU needed."""
import pytest

from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from sass import machine_code  # noqa: E402
from test_ptx import device  # noqa: E402

from dnnkern import dispatch  # noqa: E402
from dnnkern.conv import ConvProblem  # noqa: E402
from dnnkern.host.tensor import Tensor  # noqa: E402

LAYERS = {"c256": (32, (56, 56), 256, 256, (3, 3)), "c64": (64, (56, 56), 64, 64, (3, 3)), "c16": (64, (56, 56), 16, 32, (3, 3)),
          "3d": (4, (16, 56, 56), 64, 128, (3, 3, 3)), "1d": (32, (4096,), 256, 256, (3,)), "unet": (4, (64, 64), 1024, 512, (3, 3)),
          "vgg": (32, (28, 28), 512, 512, (3, 3))}


def problem(layer, dtype="bfloat16"):
    n, image, c, k, filter = LAYERS[layer]
    pads = tuple((r - 1) // 2 for r in filter)
    return ConvProblem("conv_bwd_filter", Tensor.packed((n, *image, c), dtype), Tensor.packed((k, *filter, c), dtype),
                       Tensor.packed((n, *image, k), dtype), padding=pads, layout="NHWC")


@pytest.mark.parametrize("name, layer, config, instruction", [
    ("implicit_gemm_wgmma", "c256", "128x256 64 channels 7 slices", "HGMMA.64x256x16.F32.BF16"),
    ("implicit_gemm_wgmma", "c256", "256x128 64 channels", "HGMMA.64x128x16.F32.BF16"),
    ("implicit_gemm_wgmma", "c64", "64x192 64 channels 44 slices", "HGMMA.64x192x16.F32.BF16"),
    ("implicit_gemm_wgmma", "c16", "64x64 16 channels 44 slices", "HGMMA.64x64x16.F32.BF16"),
    ("implicit_gemm_wgmma", "3d", "128x192 64 channels", "HGMMA.64x192x16.F32.BF16"),
    ("implicit_gemm_wgmma", "1d", "128x128 64 channels", "HGMMA.64x128x16.F32.BF16"),
    ("stream_k", "unet", "128x256 64 channels 132 blocks", "HGMMA.64x256x16.F32.BF16"),
    ("stream_k", "vgg", "128x128 64 channels 132 blocks", "HGMMA.64x128x16.F32.BF16"),
    ("slabs_wgmma", "c64", "3 lines x64", "HGMMA.64x64x16.F32.BF16"),
    ("slabs_wgmma", "3d", "2 lines x128", "HGMMA.64x128x16.F32.BF16"),
    ("slabs_wgmma", "1d", "1 lines x128", "HGMMA.64x128x16.F32.BF16")])
def test_main_loop(name, layer, config, instruction):
    p, target = problem(layer), device("sm_90a")
    algorithm = next(a for a in dispatch.algorithms("conv_bwd_filter") if a.name == name)
    assert algorithm.supports(p) is None
    bound = next(v for v in algorithm.variants(p, target) if str(v.config).startswith(config))
    launch = bound.build(p, target, bound.config)[0]
    got = machine_code(launch.kernel, launch.signature)
    assert {line.split()[0].removesuffix(".gsb0") for line in got.lines if "GMMA" in line} == {instruction}
    assert not got.doubles and not got.waits_for_device
    tile = bound.config.tile
    assert got.registers * tile.threads * tile.blocks <= 65536
    assert got.moved_registers == tile.registers
    # operands of copies are in the registers of the warp: moved there they cost some ten times as much
    assert got.count("UTMALDG") and got.count("R2UR") <= 2 * got.count("UTMALDG")
