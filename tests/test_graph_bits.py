"""Masks of one bit per element: buffers of BOOLEAN tensors with an eighth of their bytes, and tensors whose dims say so; refusals."""
import math

import numpy as np
import pytest
from graphs import T, array_of, channels_last, close, execute, like, new_graph, run
from graph_patterns import Both
from test_graph_patterns_norm import _gradient

import dnnkern.graph as cudnn
from dnnkern import dispatch
from dnnkern.device import HOST_MEMORY
from dnnkern.graph._copies import Copying

A = [cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK]
TRAINING = cudnn.norm_forward_phase.TRAINING


def draw(shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def bits(mask, axis=1):
    """(N, C / 8, ..): bit k of a byte is element 8 j + k along the axis."""
    return np.packbits(mask, axis=axis, bitorder="little")


def masked(shape, io=T.FLOAT, order=np.asarray):
    """A graph with a mask that leaves and is read: x > 0, and x where it holds."""
    graph, x = new_graph(io), order(draw(shape))
    a = like(graph, x).set_name("x")
    mask = graph.cmp_gt(a, graph.tensor_scalar(0.0), name="positive").set_output(True).set_data_type(T.BOOLEAN).set_name("mask")
    y = graph.mul(a, mask, name="gate").set_output(True).set_name("y")
    graph.build(A)
    return graph, x, a, mask, y


@pytest.mark.parametrize("shape, order", [((6, 40), np.asarray), ((3, 16, 4, 5), channels_last)])
def test_a_buffer_of_bits_and_one_of_bytes(shape, order):
    graph, x, a, mask, y = masked(shape, order=order)
    with_bytes, out = array_of(mask), array_of(y)
    execute(graph, {a: x, mask: with_bytes, y: out})
    np.testing.assert_array_equal(with_bytes, x > 0)
    np.testing.assert_array_equal(out, np.where(x > 0, x, 0))
    for _ in range(2):
        with_bits, out = order(np.full((shape[0], shape[1] // 8, *shape[2:]), 0xAA, np.uint8)), array_of(y)
        execute(graph, {a: x, mask: with_bits, y: out})
        np.testing.assert_array_equal(with_bits, bits(x > 0))
        np.testing.assert_array_equal(out, np.where(x > 0, x, 0))


def test_every_byte_goes_both_ways():
    """All 256 values as an input's bits, and as an output's."""
    every = np.arange(256, dtype=np.uint8).reshape(2, 128)
    graph = new_graph()
    given = graph.tensor([2, 1024], [1024, 1], T.BOOLEAN, name="given")
    x = np.ones((2, 1024), np.float32)
    a = like(graph, x)
    y = graph.mul(a, given).set_output(True)
    back = graph.logical_not(graph.logical_not(given)).set_output(True).set_data_type(T.BOOLEAN)
    graph.build(A)
    out, again = array_of(y), np.zeros_like(every)
    execute(graph, {given: every, a: x, y: out, back: again})
    np.testing.assert_array_equal(out, np.unpackbits(every, axis=1, bitorder="little"))
    np.testing.assert_array_equal(again, every)


def test_dims_that_say_so():
    """UINT8 with an eighth of the dims along the fastest one: a mask that is written, and one that is read."""
    x, keep = draw((5, 24)), np.random.default_rng(3).integers(0, 2, (5, 24)).astype(bool)
    graph = new_graph()
    a, given = like(graph, x), graph.tensor([5, 3], [3, 1], T.UINT8, name="given")
    y = graph.mul(a, given, name="gate").set_output(True)
    small = graph.cmp_lt(a, graph.tensor_scalar(0.5), name="small")
    both = graph.logical_and(small, given, name="both").set_output(True).set_data_type(T.UINT8).set_dim([5, 3])
    got = run(graph, {a: x, given: bits(keep)}, [y, both])
    assert both.get_stride() == [3, 1]
    np.testing.assert_array_equal(got[0], np.where(keep, x, 0))
    np.testing.assert_array_equal(got[1], bits((x < 0.5) & keep))
    again = cudnn.pygraph()
    again.deserialize(graph.serialize())
    results = [array_of(y), array_of(both)]
    execute(again, {a.get_uid(): x, given.get_uid(): bits(keep), y.get_uid(): results[0], both.get_uid(): results[1]})
    np.testing.assert_array_equal(results[1], got[1])


def test_batch_norm_addition_relu_and_its_mask():
    """NVIDIA's forward step of residual networks, and the step back that reads the mask."""
    b = Both(T.HALF)
    x, z = (b.input((4, 16, 6, 5), order=channels_last) for _ in range(2))
    y, mean, rstd = b.batchnorm(x, b.weight(16, low=0.5), b.weight(16))[:3]
    total = b.binary("add", y, z)
    b.output(b.relu(total), dtype=T.HALF)
    b.output(mean, rstd, dtype=T.FLOAT)
    mask = b.graph.cmp_gt(total, b.number(0.0), name="mask").set_output(True).set_data_type(T.BOOLEAN)
    packed = channels_last(np.zeros((4, 2, 6, 5), np.uint8))
    b.pack[mask] = packed
    b.check(factor=8)
    want = b.values[total]
    found = np.unpackbits(packed, axis=1, bitorder="little").astype(bool)
    assert np.all((found == (want > 0)) | (np.abs(want) < 1e-5))
    back = Both(T.HALF)
    dy, kept = back.input((4, 16, 6, 5), order=channels_last), channels_last(found)
    given = like(back.graph, kept)
    back.pack[given], back.values[given] = packed, kept.astype(float)
    back.output(back.binary("scale", dy, given), dtype=T.HALF)
    back.check()


# ---- kernels that have bits of their own

def in_middle(shape):
    """Bytes of an image of bits, channels last, and the memory around them."""
    n, c, *pixels = shape
    memory, size = np.full(64 + n * math.prod(pixels) * c // 8, 0xAA, np.uint8), n * math.prod(pixels) * c // 8
    first = 16 + -memory.ctypes.data % 16
    around = memory[:first], memory[first + size:]
    return around, np.moveaxis(memory[first:first + size].reshape(n, *pixels, c // 8), -1, 1)


def steps_of(graph, mask):
    """Those of the plan of calls in which the mask has bits, and what they have in the workspace beside the plan's own."""
    plan = graph._engines.first()
    made = Copying(plan, bits=[mask.get_uid()])
    return [(a.op, a.name) for a in made.algorithms], made.workspace - plan.workspace


def forward(shape, io=T.HALF, prefer="columns"):
    """Batch normalization, an addition, ReLU and its mask of bits."""
    with dispatch.prefer(prefer):
        b = Both(io)
        x, z = (b.input(shape, order=channels_last) for _ in range(2))
        y, *_ = b.batchnorm(x, b.weight(shape[1], low=0.5), b.weight(shape[1]))
        total = b.binary("add", y, z)
        b.output(b.relu(total), dtype=io)
        mask = b.graph.cmp_gt(total, b.number(0.0), name="mask").set_output(True).set_data_type(T.BOOLEAN)
        around, b.pack[mask] = in_middle(shape)
        b.check(factor=8)
        want, found = b.values[total], np.unpackbits(b.pack[mask], axis=1, bitorder="little").astype(bool)
        assert np.all((found == (want > 0)) | (np.abs(want) < 1e-3)) and all(np.all(part == 0xAA) for part in around)
        return steps_of(b.graph, mask)


def backward(shape, io=T.HALF, order=channels_last, prefer="columns", dtype=np.float16):
    """The gradient by that mask, which is stored, and batch normalization's of it."""
    with dispatch.prefer(prefer):
        b = Both(io)
        keep, dy = order(b.random.random(shape) < 0.5), b.input(shape, order=order)
        given = like(b.graph, keep)
        memory = keep if order is np.asarray else np.moveaxis(keep, 1, -1)
        b.values[given], b.pack[given] = keep.astype(float), np.packbits(np.ascontiguousarray(memory).ravel(), bitorder="little")
        b.pack[given] = b.pack[given].reshape(shape[0], shape[1] // 8, *shape[2:])
        other = b.rounded(b.binary("mul", dy, given), dtype)
        _gradient(b, other, b.input(shape, order=order), *(b.weight(shape[1], low=low) for low in (-1, -1, 0.5)))
        b.output(other)
        b.check(factor=8)
        return steps_of(b.graph, given)


@pytest.mark.parametrize("shape, io", [((4, 16, 6, 5), T.HALF), ((3, 24, 3, 5), T.BFLOAT16), ((2, 72, 7, 5), T.HALF)])
def test_batch_norm_stores_bits(shape, io):
    """8 channels of a thread are a byte: no step packs them, none of their bytes is in the workspace, nothing around them is written."""
    assert forward(shape, io) == ([("batch_norm_train_fwd", "columns")], 0)


def test_bits_that_are_of_two_threads_are_packed_by_a_step():
    """A thread has 4 channels of float32."""
    steps, more = forward((2, 8, 7, 3), T.FLOAT)
    assert [op for op, _ in steps] == ["batch_norm_train_fwd", "fused_pointwise"] and more


@pytest.mark.parametrize("shape, io, order, prefer, dtype", [
    ((4, 16, 6, 5), T.HALF, channels_last, "columns", np.float16), ((3, 24, 3, 5), T.FLOAT, channels_last, "columns", np.float32),
    ((2, 16, 3, 5), T.HALF, np.asarray, "planes", np.float16), ((2, 8, 3, 5), T.HALF, channels_last, "naive", np.float16)])
def test_batch_norm_backward_reads_bits(shape, io, order, prefer, dtype):
    """However many channels a thread has."""
    assert backward(shape, io, order, prefer, dtype) == ([("batch_norm_bwd", prefer)], 0)


@pytest.mark.parametrize("method, shape, io", [("layernorm", (5, 64, 1, 1), T.HALF), ("rmsnorm", (3, 80, 1, 1), T.BFLOAT16)])
def test_rows_store_and_read_bits(method, shape, io):
    """A mask of what is stored, and one that gates it; a vector has 8 elements."""
    with dispatch.prefer("block"):
        b = Both(io)
        keep = b.random.random(shape) < 0.5
        gate = like(b.graph, keep)
        b.values[gate], b.pack[gate] = keep.astype(float), bits(keep)
        y, *_ = b.rows(method, b.input(shape), b.weight(shape[1], low=0.5), b.weight(shape[1]))
        gated = b.binary("mul", y, gate)
        b.output(b.binary("add", gated, b.input(shape)), dtype=io)
        mask = b.graph.cmp_gt(y, b.number(0.0), name="mask").set_output(True).set_data_type(T.BOOLEAN)
        b.pack[mask] = np.full((shape[0], shape[1] // 8, 1, 1), 0xAA, np.uint8)
        b.check(factor=8)
        want, found = b.values[y], np.unpackbits(b.pack[mask], axis=1, bitorder="little").astype(bool)
        assert np.all((found == (want > 0)) | (np.abs(want) < 1e-3))
        made = Copying(b.graph._engines.first(), bits=[mask.get_uid(), gate.get_uid()])
        assert [a.name for a in made.algorithms] == ["block"] and made.workspace == made.base.workspace


def test_layer_norm_with_clipped_relu():
    """With `Graph`: arrays in place of tensors, the mask's buffer in the dict of outputs."""
    x = draw((12, 24, 1, 1))
    scale, bias = draw((1, 24, 1, 1), 2), draw((1, 24, 1, 1), 3)
    graph = new_graph()
    a, s, t = (like(graph, array) for array in (x, scale, bias))
    low, high = graph.tensor_scalar(0.0), graph.tensor_scalar(1.0)
    y, mean, rstd = graph.layernorm(TRAINING, a, s, t, graph.tensor_scalar(1e-3), name="LN")
    out = graph.relu(y, lower_clip=0.0, upper_clip=1.0, name="clip").set_output(True)
    low, high = (graph.cmp_gt(out, low), graph.cmp_lt(out, high))
    for side in (low, high):
        side.set_data_type(T.BOOLEAN)
    mask = graph.logical_and(low, high, name="both").set_data_type(T.BOOLEAN).set_output(True)
    mean.set_output(True), rstd.set_output(True)
    packed = np.zeros((12, 3, 1, 1), np.uint8)
    (got, *_) = run(graph, {a: x, s: scale, t: bias, mask: packed}, [out, mean, rstd])
    v = x.astype(float)
    want = (v - v.mean(1, keepdims=True)) / np.sqrt(v.var(1, keepdims=True) + 1e-3) * scale + bias
    close(got, np.clip(want, 0, 1), factor=16, scale=4)
    np.testing.assert_array_equal(packed, bits((got > 0) & (got < 1)))


def test_a_mask_over_what_is_still_needed():
    """Bits in the memory of an operand that a later step reads."""
    if not HOST_MEMORY:
        pytest.skip("buffers of the host")
    graph, x, a, mask, y = masked((6, 40))
    memory, out = x.copy(), array_of(y)
    packed = memory.view(np.uint8).reshape(-1)[:30].reshape(6, 5)
    graph.execute({a: memory, mask: packed, y: out}, np.empty(graph.get_workspace_size_with_copies(), np.uint8))
    np.testing.assert_array_equal(out, np.where(x > 0, x, 0))
    np.testing.assert_array_equal(packed, bits(x > 0))


def test_workspace_has_room_for_the_bytes():
    graph, x, a, mask, y = masked((6, 40))
    assert graph.get_workspace_size() == graph.get_workspace_size_plan_at_index(0) == 256
    graph.deselect_workspace_greater_than(255)
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="no plan"):
        graph.check_support()


@pytest.mark.parametrize("shape, size, message", [((6, 40), 29, "its buffer has 29 bytes; expected 240 at least, or 30 of bits"),
                                                  ((5, 3), 2, "its buffer has 2 bytes; expected 15 at least$")])
def test_buffers_that_are_too_small(shape, size, message):
    graph, x, a, mask, y = masked(shape)
    out = array_of(y)
    with pytest.raises(ValueError, match=r"INVALID_VARIANT_PACK: tensor 'mask' \(uid \d+\): " + message):
        execute(graph, {a: x, mask: np.zeros(size, np.uint8), y: out})
    assert np.isnan(out).all(), "nothing was launched"


@pytest.mark.parametrize("dim, dtype", [([5, 2], T.UINT8), ([5, 3], T.INT8), ([5, 6], T.UINT8)])
def test_dims_that_are_no_eighth(dim, dtype):
    graph = new_graph()
    a = graph.tensor([5, 24], [24, 1])
    graph.cmp_lt(a, graph.tensor_scalar(0.5), name="small").set_output(True).set_data_type(dtype).set_dim(dim)
    with pytest.raises(ValueError, match=rf"cmp_lt node 'small': port OUT_0.*got dims \({dim[0]}, {dim[1]}\); expected \(5, 24\)"):
        graph.validate()


def test_bits_run_along_the_fastest_dim():
    graph = new_graph()
    a = graph.tensor([8, 24], [24, 1])
    graph.cmp_lt(a, graph.tensor_scalar(0.5), name="small").set_output(True).set_data_type(T.UINT8).set_dim([1, 24])
    with pytest.raises(ValueError, match="cmp_lt node 'small': port OUT_0.*got strides .24, 1.; expected 1 of dim 0"):
        graph.validate()


def test_values_have_no_bits():
    """A mask of an eighth of a result that is no truth value."""
    graph = new_graph()
    graph.neg(graph.tensor([5, 24], [24, 1]), name="minus").set_output(True).set_data_type(T.UINT8).set_dim([5, 3])
    with pytest.raises(ValueError, match="neg node 'minus': port OUT_0.*got dims .5, 3."):
        graph.validate()
