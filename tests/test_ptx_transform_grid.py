"""What the kernels of sampled images and affine grids compile to: no calls, no stray float64, pixels of several channels under way."""
import pytest

from dnnkern import dispatch
from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from sass import assembled  # noqa: E402
from test_ptx import device  # noqa: E402

from dnnkern.transform._parse import parse_problem  # noqa: E402


def kernels(op, words, algo):
    """{name: code} of the launches of each of its configurations, and the configuration."""
    problem, target = parse_problem(words.split(), op), device("sm_90a")
    for variant in next(a for a in dispatch.algorithms(op) if a.name == algo).variants(problem, target):
        launches = variant.build(problem, target, variant.config)
        yield variant.config, {k.kernel.py_func.__name__: assembled(k.kernel, k.signature, "sm_90a") for k in launches}


@pytest.mark.parametrize("words", ["32x64x112x112 f32 112x112", "32x64x112x112 f16 112x112 --padding reflection --corners",
                                   "4x16x32x64x64 bf16 32x64x64 --padding border"])
def test_pixels_of_four_channels_are_under_way(words):
    corners = 8 if "32x64x64 " in words else 4
    for _, found in kernels("grid_sample_fwd", words, "pixels"):
        code = found["grid_sample_pixels"]
        assert code.count("LDG") >= 4 * corners and not code.doubles and not code.divisions


@pytest.mark.parametrize("words", ["32x64x112x112 f32 112x112", "32x64x112x112 f16 112x112 --padding reflection --corners",
                                   "4x16x8x8x8 bf16 32x64x64 --padding border"])
def test_a_pixel_in_shared_memory_is_one_load(words):
    corners = 8 if "32x64x64 " in words else 4
    for config, found in kernels("grid_sample_fwd", words, "planes"):
        code = found["grid_sample_planes"]
        assert len(code.opcodes("LDS" + {4: "", 8: ".64", 16: ".128"}[config.unit])) >= corners
        assert not code.doubles and not code.divisions and code.count("LDL") == 0


@pytest.mark.parametrize("words", ["32x64x112x112 f32 112x112", "32x64x112x112 f16 112x112 --padding reflection --corners",
                                   "4x16x32x64x64 bf16 32x64x64 --padding border", "4x16x32x64x64 f64 32x64x64 --padding border"])
def test_a_group_of_channels_is_one_load(words):
    corners = 1 if "nearest" in words else 8 if "32x64x64 " in words else 4
    for config, found in kernels("grid_sample_fwd", words, "packed"):
        code = found["grid_sample_packed"]
        assert len(code.opcodes("LDG.E.128")) == corners and code.count("LDL") == 0
        assert bool(code.doubles) == ("f64" in words) and not code.divisions
        assert code.registers * config.threads * (768 // config.threads) <= 65536


@pytest.mark.parametrize("words", ["32x64x112x112 f32 112x112", "8x128x100x152 bf16 100x152 --padding reflection",
                                   "4x16x32x64x64 f64 32x64x64", "2x40x2000x2000 f16 20x20 --mode nearest --padding border"])
def test_gradients_of_sorted_places(words):
    for config, found in kernels("grid_sample_bwd", words, "cells"):
        assert list(found) == ["grid_sample_locate", "grid_sample_starts", "grid_sample_spread", "grid_sample_order", "grid_sample_cells",
                               "grid_sample_dgrid"]
        for name, code in found.items():
            assert not code.opcodes("RED.", "ATOMG", "ATOM.") and not code.divisions
            assert bool(code.doubles) <= ("f64" in words), "double precision"
        gather, channels = found["grid_sample_cells"], config.share.channels
        assert gather.registers * 256 * (3 if channels <= 16 else 2) <= 65536
        assert gather.count("LDG") >= 2 * channels, "channels of a place one after another"
        assert "nearest" in words or found["grid_sample_dgrid"].count("LDG") >= 5 * min(channels, 2)
        assert found["grid_sample_dgrid"].registers * 128 * 5 <= 65536


def test_channels_that_are_neighbours_are_loaded_together():
    from dataclasses import replace

    from dnnkern.host.tensor import Tensor
    problem, target = parse_problem("32x64x112x112 f16 112x112".split(), "grid_sample_bwd"), device("sm_90a")
    shape, strides = problem.x.shape, (112 * 112 * 64, 1, 112 * 64, 64)
    last = Tensor(shape, strides, "float16")
    problem = replace(problem, x=last, dy=last, dx=last)
    algorithm = next(a for a in dispatch.algorithms("grid_sample_bwd") if a.name == "cells")
    (variant,) = algorithm.variants(problem, target)
    found = {k.kernel.py_func.__name__: assembled(k.kernel, k.signature, "sm_90a") for k in variant.build(problem, target, variant.config)}
    assert found["grid_sample_cells"].opcodes("LDG.E.128", "STG.E.128") and len(found["grid_sample_dgrid"].opcodes("LDG.E.128")) >= 5


@pytest.mark.parametrize("words, launches", [("32x64x112x112 f32 112x112", 3), ("32x64x112x112 bf16 112x112 --padding reflection", 4),
                                             ("4x16x8x8x8 f64 8x8x8", 3), ("4x3x300x300 f32 300x300 --mode nearest", 3)])
def test_additions_return_nothing(words, launches):
    """One for each pixel round a place and channel of a thread, which the thread does not wait for."""
    for config, found in kernels("grid_sample_bwd", words, "atomic"):
        code = found["grid_sample_scatter"]
        assert len(found) == launches and not code.opcodes("ATOM")
        assert code.count("RED") >= config.channels and code.count("RED") % config.channels == 0, "pixels in a loop, or one after another"
        assert bool(code.doubles) == ("f64" in words) and not code.divisions


@pytest.mark.parametrize("op, algo", [("affine_grid_fwd", "places"), ("affine_grid_bwd", "block")])
@pytest.mark.parametrize("words", ["32x64x112x112 f32", "2x3x4x5x6 bf16 --corners"])
def test_affine_grids_need_no_division(op, algo, words):
    for _, found in kernels(op, words, algo):
        for code in found.values():
            assert not code.doubles and not code.divisions
