"""Reductions of what a convolution computes: in its kernel, and a second small one."""
from dataclasses import replace

import contract
import numpy as np
import pytest
from cases.conv_fwd import Conv  # noqa: F401
from cases._conv_reductions import GENSTATS, SEVERAL, ReducedConv, ReducedMadeConv
from cases._conv_reductions import reductions as cases
from graph_patterns import Both, Patterns, image
from graphs import T, channels_last
from representative import device
from test_graph_patterns import conv, filters
from test_graph_reductions import M, reduced, together  # noqa: F401

import dnnkern.graph as cudnn
from dnnkern import dispatch
from dnnkern.device import SIMULATED
from dnnkern.conv import ConvProblem
from dnnkern.conv._states import states_of
from dnnkern.device.program import Program
from dnnkern.engine.hopper import Tile
from dnnkern.engine.tile_states import keeping
from dnnkern.graph import _partition
from dnnkern.graph._lower import lower
from dnnkern.graph.ops import OPERATIONS
from dnnkern.host.tensor import Tensor

pattern = Patterns()


@pattern("conv_fwd", launches=2)
def bias_relu_amax(b):
    y = b.relu(b.binary("bias", conv(b, image(b), filters(b)), b.weight(6)))
    reduced(b, y, M.AMAX, 0, 1, 2, 3)
    b.output(b.node("identity", np.asarray, y))


@pattern("conv_fwd", launches=2)
def over_pixels_and_over_channels(b):
    y = b.rounded(conv(b, image(b, np.asarray), filters(b, np.asarray)))
    b.output(y)
    reduced(b, y, M.ADD, 0, 2, 3)
    reduced(b, y, M.MAX, 1)


def dgrad(b):
    loss, w = b.input((2, 8, 5, 6), order=channels_last), b.input((8, 8, 3, 3), order=channels_last, low=-0.25, high=0.25)
    dx = b.graph.conv_dgrad(loss, w, padding=[1, 1]).set_dim([2, 8, 5, 6])
    padded = np.pad(b.values[loss], ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    (dx,) = b.known((dx,), [np.einsum("nkhwrs,kcrs->nchw", windows, b.values[w][:, :, ::-1, ::-1])])
    return dx


@pattern("conv_bwd_data", launches=2)
def gradient_and_its_sums(b):
    dx = b.rounded(dgrad(b))
    b.output(dx)
    reduced(b, dx, M.ADD, 0, 2, 3)


@pattern("conv_bwd_data", launches=2)
def gradient_behind_relu_and_sums_of_batchnorm(b):
    """What dbn_weight reduces, of nodes of its own: the sums of dy and of dy times the normalized x."""
    x = b.input((2, 8, 5, 6), order=channels_last)
    dy = b.rounded(b.node("relu_backward", lambda d, v: d * (v > 0), dgrad(b), x))
    b.output(dy)
    centred = b.binary("sub", x, b.weight(8))
    reduced(b, dy, M.ADD, 0, 2, 3)
    reduced(b, b.binary("mul", b.binary("mul", centred, b.weight(8, low=0.5)), dy), M.ADD, 0, 2, 3)


@pytest.mark.parametrize("name", pattern)
def test_one_kernel_and_a_small_one(name, together):  # noqa: F811
    pattern.check(name)


def test_nothing_in_between_is_in_the_workspace(together):  # noqa: F811
    """Neither the image that is made nor its convolution: the states of a block alone."""
    b = Both()
    x = b.rounded(b.relu(b.binary("bias", b.binary("scale", image(b), b.weight(8)), b.weight(8))))
    y = conv(b, x, b.input((16, 8, 3, 3), order=channels_last, low=-0.25, high=0.25)).set_data_type(T.HALF)
    b.output(y)
    for t in b.graph.genstats(y):
        t.set_output(True).set_data_type(T.FLOAT)
    b.graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    (part,) = b.graph.explain().parts
    assert [name.split()[0] for name in part.nodes] == ["conv_fprop", "scale", "bias", "relu", "genstats"]
    (step,), _ = lower(b.graph.spec, _partition.cuts(b.graph.spec)[0], OPERATIONS)
    target, wgmma = device("sm_90a"), dispatch.named("conv_fwd", "implicit_gemm_wgmma")
    config = wgmma.configured(step.problem, target).config
    assert wgmma.workspace(step.problem, target, config) == 2 * 4 * 16
    assert len(wgmma.build(step.problem, target, config)) == 2


def problem(op="conv_fwd", reduction=(0, "add", "rows", "float32"), shape=(1, 1, 1, 8), **more):
    x, w, y = (Tensor.packed(s, "float16") for s in ((1, 4, 4, 8), (8, 3, 3, 8), (1, 4, 4, 8)))
    return ConvProblem(op, x, w, y, padding=1, layout="NHWC", program=Program((), (), (), None, 1, [reduction]),
                       extras=[Tensor.packed(shape, reduction[3])], **more)


@pytest.mark.parametrize("more, error, message", [
    ({"shape": (1, 4, 4, 1)}, ValueError, r"conv_fwd: y1 has shape \(1, 4, 4, 1\); expected \(1, 1, 1, 8\)"),
    ({"shape": (1, 1, 1, 8), "reduction": (0, "max", "columns", "float32")}, ValueError, r"expected \(1, 4, 4, 1\)"),
    ({"reduction": (0, "add", "rows", "float64")}, TypeError, "conv_fwd: y1 is float64, and computed in float32"),
    ({"op": "conv_bwd_filter"}, ValueError, "conv_bwd_filter: a program with reductions; expected none")])
def test_bad_input(more, error, message):
    with pytest.raises(error, match=message):
        problem(**more)


def test_who_runs_none_says_so():
    assert dispatch.named("conv_fwd", "implicit_gemm").reason(problem()) == "implicit_gemm runs no reductions"
    wgmma = dispatch.named("conv_fwd", "implicit_gemm_wgmma")
    assert wgmma.reason(problem()) is None and "beta" in wgmma.reason(replace(problem(), beta=True))
    assert dispatch.named("conv_fwd", "naive").reason(replace(problem(), beta=True)) is None
    strided = next(c for c in cases("conv_bwd_data") if "strided" in c.id).problem()
    assert "reductions of residue classes" in dispatch.named("conv_bwd_data", "implicit_gemm_mma").reason(strided)
    planes = next(c for c in cases("conv_fwd") if "genstats-groups2-1x1-planes" in c.id).problem()
    assert "reductions of 2 groups and of pixels in 2 dimensions" in dispatch.named("conv_fwd", "pointwise").reason(planes)


@pytest.mark.parametrize("few_multiprocessors", [1], indirect=True)
@pytest.mark.parametrize("of, made, consumers", [((*GENSTATS, *SEVERAL), False, 4), (GENSTATS, True, 1)])
def test_warps_keep_their_states_from_tile_to_tile(few_multiprocessors, of, made, consumers):
    """Of several tiles each, some of which reach over the edges."""
    kind, more = (ReducedMadeConv, {"made": "scale-bias-relu"}) if made else (ReducedConv, {})
    case = kind("reduced-kept", "conv_fwd", (1, 16, 9, 18), 24, (2, 1), "float16", "NHWC", padding=((1, 0), (0, 0)), reductions=of, **more)
    halo, target = dispatch.named("conv_fwd", "halo_wgmma"), contract.device()
    found = next(v for v in halo.variants(case.problem(), target) if v.config.consumers >= consumers)
    contract.check(found, case, again=False, only="float")
    main, last = found.build(case.problem(), target, found.config)
    assert last.grid[1] == len(of)
    if not SIMULATED:  # a device of more multiprocessors
        return
    assert main.grid == (1, 1, 1)
    if of == GENSTATS:
        assert found.workspace(case.problem(), target, found.config) == 4 * 24 * 2


MANY = (2, 16, 10, 15), 120, (1, 1), "float16", "NHWC"


@pytest.mark.parametrize("few_multiprocessors", [2], indirect=True)
@pytest.mark.parametrize("name, of, made", [("128x64", (*GENSTATS, *SEVERAL), None), ("128x128 cluster 2", SEVERAL, None),
                                            ("64x256 ping-pong", GENSTATS, None), ("256x64", GENSTATS, "scale-bias-relu")])
def test_blocks_keep_their_states_from_tile_to_tile(few_multiprocessors, name, of, made):
    """As many blocks as have the same columns in all their tiles; warpgroups that take turns, clusters, tiles past the edges."""
    kind, more = (ReducedMadeConv, {"made": made}) if made else (ReducedConv, {})
    case = kind("reduced-kept", "conv_fwd", *MANY, reductions=of, **more)
    wgmma, target = dispatch.named("conv_fwd", "implicit_gemm_wgmma"), contract.device()
    found = next(v for v in wgmma.variants(case.problem(), target) if str(v.config) == name)
    contract.check(found, case, again=False, only="float")
    if SIMULATED and of == GENSTATS:
        blocks = 1 if made else 2
        assert found.workspace(case.problem(), target, found.config) == blocks * 2 * 4 * 120


def test_states_of_blocks():
    """Of 200704 pixels and 256 channels 132 blocks write 0.27 MB, where states of 16 pixels were 25.7; not where waves would be lost."""
    x, w, y = (Tensor.packed(s, "float16") for s in ((64, 56, 56, 64), (256, 1, 1, 64), (64, 56, 56, 256)))
    reductions = [(0, "add", "rows", "float32"), (0, "sum_square", "rows", "float32")]
    p = ConvProblem("conv_fwd", x, w, y, layout="NHWC", program=Program((), (), (), None, 1, reductions),
                    extras=[Tensor.packed((1, 1, 1, 256), "float32")] * 2)
    wgmma, target = dispatch.named("conv_fwd", "implicit_gemm_wgmma"), device("sm_90a")
    assert target.sms == 132
    found = {str(v.config): wgmma.workspace(p, target, v.config) for v in wgmma.variants(p, target)}
    assert found["128x256"] == 132 * 256 * 8 and found["128x64"] == 33 * 256 * 8
    parts, tile = states_of(p), Tile(128, 256)
    assert keeping(parts, tile, 132).row_tiles == 132
    wide = replace(parts, n=256 * 50)  # 100 blocks would take another wave
    assert keeping(wide, tile, 132) is wide
    both = replace(parts, reduced=tuple(of._replace(over="columns") for of in parts.reduced))
    assert keeping(both, tile, 132) is both
