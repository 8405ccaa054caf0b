"""Block scaling in graphs: MXFP8, NVFP4, the order F8_128x4, products of what is scaled, and what is refused."""
import numpy as np
import pytest
from cases.block_scale_quantize import Blocks, nearest_e2m1
from graphs import T, array_of, execute, like, new_graph

import dnnkern.graph as cudnn
from dnnkern.host.dtypes import numpy_dtype

BF16, F8_128x4 = numpy_dtype("bfloat16"), cudnn.tensor_reordering.F8_128x4
NAMES = {T.FP8_E4M3: "float8_e4m3fn", T.FP8_E5M2: "float8_e5m2", T.FP4_E2M1: "uint8", T.FP8_E8M0: "float8_e8m0fnu"}


def normal(*shape, dtype=np.float32, seed=3):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 7, (*shape[:-1], 1))).astype(dtype)


def expected(x, block, axis, narrow, scales):
    """(y, scale) in float64; of four bits the bytes."""
    case = Blocks("", x.shape, block, "float32", NAMES[narrow], NAMES[scales], axis)
    found, _ = case.reference({"x": x.astype(float)})
    return found["y"], found["scale"]


def swizzled(scale, rows, columns):
    """Scales (matrices, M, K) as bytes in the order F8_128x4, padded with zeros."""
    padded = np.zeros((len(scale), rows, columns), np.uint8)
    padded[:, :scale.shape[1], :scale.shape[2]] = scale
    out = np.zeros((len(scale), rows * columns), np.uint8)
    for m in range(rows):
        for k in range(columns):
            at = (m // 128 * (columns // 4) + k // 4) * 512 + m % 32 * 16 + m % 128 // 32 * 4 + k % 4
            out[:, at] = padded[:, m, k]
    return out


@pytest.mark.parametrize("axis, transpose", [(None, False), (1, False), (1, True), (-1, True)])
def test_mxfp8(axis, transpose):
    """Blocks along rows and columns; transposed, the results are contiguous along the axis."""
    graph, x = new_graph(T.HALF), normal(2, 64, 32, dtype=BF16)
    tx = like(graph, x)
    y, scale = graph.block_scale_quantize(tx, 32, axis=axis, transpose=transpose)
    y.set_output(True).set_data_type(T.FP8_E5M2)
    scale.set_output(True).set_data_type(T.FP8_E8M0)
    graph.build([cudnn.heur_mode.A])
    axis = 2 if axis is None else axis % 3
    assert scale.get_dim() == [2, 64 // (32 if axis == 1 else 1), 32 // (32 if axis == 2 else 1)]
    assert y.get_stride() == ([64, 1, 128] if axis == 1 and transpose else [2048, 32, 1])
    results = {t: array_of(t) for t in (y, scale)}
    execute(graph, {tx: x, **results})
    for found, wanted in zip(results.values(), expected(x, 32, axis, T.FP8_E5M2, T.FP8_E8M0)):
        assert (found.astype(float) == wanted).all()


def test_nvfp4_between_nodes():
    """ReLU in front, four bits that no buffer holds, back to floats, a sum behind: each kernel's rounding is that of its node."""
    graph, x = new_graph(T.FLOAT), normal(3, 32)
    tx = like(graph, x)
    y, scale = graph.block_scale_quantize(graph.relu(tx), 16)
    y.set_data_type(T.FP4_E2M1)
    scale.set_data_type(T.FP8_E4M3)
    back = graph.block_scale_dequantize(y, scale, [16])
    out = graph.add(back, tx).set_output(True)
    graph.build([cudnn.heur_mode.A])
    assert back.get_data_type() is T.BFLOAT16
    result = array_of(out)
    execute(graph, {tx: x, out: result})
    code, wanted = expected(np.maximum(x, 0), 16, 1, T.FP4_E2M1, T.FP8_E4M3)
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])[np.stack([code.astype(int) & 7, code.astype(int) >> 4 & 7], -1).reshape(3, 32)]
    assert (result == (values * np.repeat(wanted, 16, 1) + x).astype(np.float32)).all()


def product(m, n, k, four_bits):
    """NVIDIA's block scaled product: both operands quantized, scales in the order F8_128x4, the result quantized. (graph, pack, outputs,
    exact product)"""
    block, narrow, kind = (16, T.FP4_E2M1, T.FP8_E4M3) if four_bits else (32, T.FP8_E4M3, T.FP8_E8M0)
    graph, pack, operands = new_graph(T.HALF), {}, []
    columns, rng = -(-k // block // 4) * 4, np.random.default_rng(4)
    for rows, is_a in ((m, True), (n, False)):
        padded = -(-rows // 128) * 128
        dim, stride = ([1, rows, k], [rows * k, k, 1]) if is_a else ([1, k, rows], [rows * k, 1, k])
        t = graph.tensor(dim, stride, narrow)
        sdim, sstride = ([padded, columns], [columns, 1]) if is_a else ([columns, padded], [1, columns])
        s = graph.tensor([1, *sdim], [padded * columns, *sstride], kind, reordering_type=F8_128x4)
        scale = 2.0 ** rng.integers(-2, 3, (1, rows, k // block))
        pack[s] = swizzled(scale.astype(numpy_dtype(NAMES.get(kind, "float8_e4m3fn"))).view(np.uint8), padded, columns)
        values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])[rng.integers(0, 8, (1, rows, k))] * rng.choice([-1, 1], (1, rows, k))
        if four_bits:
            code = nearest_e2m1(values).astype(np.uint8)
            pack[t] = code[..., ::2] | code[..., 1::2] << 4
        else:
            pack[t] = values.astype(numpy_dtype("float8_e4m3fn"))
        operands.append((graph.block_scale_dequantize(t, s, [1, block] if is_a else [block, 1]), values * np.repeat(scale, block, 2)))
    (a, exact_a), (b, exact_b) = operands
    c = graph.matmul(a, b)
    y, scale = graph.block_scale_quantize(c, block, axis=2)
    y.set_output(True).set_data_type(narrow)
    rows, blocks = -(-m // 128) * 128, -(-n // block // 4) * 4
    scale.set_output(True).set_data_type(kind).set_reordering_type(F8_128x4)
    scale.set_dim([1, rows, blocks]).set_stride([rows * blocks, blocks, 1])
    return graph, pack, (y, scale), exact_a @ exact_b.swapaxes(1, 2), (block, narrow, kind, rows, blocks)


@pytest.mark.parametrize("four_bits", [False, True])
def test_block_scaled_products(four_bits):
    """Operands in bfloat16, which is exact: a product of 16-bit operands, and scales that go through the workspace."""
    graph, pack, (y, scale), exact, (block, narrow, kind, rows, blocks) = product(9, 64, 96, four_bits)
    graph.build([cudnn.heur_mode.A])
    result = np.zeros((1, 9, 64 // (2 if four_bits else 1)), np.uint8 if four_bits else numpy_dtype("float8_e4m3fn"))
    scales = np.full((1, rows * blocks), 0xFF, np.uint8)
    execute(graph, {**pack, y: result, scale: scales})
    wanted, by = expected(exact.astype(np.float32), block, 2, narrow, T.FP8_E4M3 if four_bits else kind)
    assert (result.astype(float) == wanted).all()
    assert (scales == swizzled(by.astype(numpy_dtype("float8_e4m3fn" if four_bits else NAMES[kind])).view(np.uint8), rows, blocks)).all()


def test_why_scaled_products_are_cut():
    graph, *_ = product(128, 128, 128, False)
    graph.build([cudnn.heur_mode.A])
    made = graph.explain()
    assert [p.op for p in made.parts if p.op in ("block_scale_quantize", "block_scale_dequantize", "matmul")] == [
        "block_scale_dequantize", "block_scale_dequantize", "matmul", "block_scale_quantize"]
    reasons = [reason for a, b, reason in made.apart if "matmul" in b]
    assert len(reasons) == 2 and all("scales of blocks are neither of rows nor of columns" in reason for reason in reasons)


@pytest.mark.parametrize("kind", [T.FLOAT, T.HALF])
def test_blocks_of_two_dims(kind):
    """128x128 in NVIDIA's sample; elements of 8 bits by float32, and halves by halves."""
    graph, x = new_graph(kind), normal(2, 12, 24).astype(numpy_dtype("float8_e4m3fn") if kind is T.FLOAT else np.float16)
    scale = normal(2, 3, 3, seed=5).astype(np.float32 if kind is T.FLOAT else np.float16)
    tx, ts = like(graph, x), like(graph, scale)
    y = graph.block_scale_dequantize(tx, ts, [4, 8], is_negative_scale=True).set_output(True).set_data_type(kind)
    graph.build([cudnn.heur_mode.A])
    result = array_of(y)
    execute(graph, {tx: x, ts: scale, y: result})
    wanted = x.astype(np.float32) * np.repeat(np.repeat(scale.astype(np.float32), 4, 1), 8, 2)
    assert (result == wanted.astype(result.dtype)).all()


def quantize(graph, narrow=T.FP8_E4M3, kind=T.FP8_E8M0, dim=(4, 64), axis=None, **more):
    y, scale = graph.block_scale_quantize(graph.tensor(dim, [dim[1], 1], T.FLOAT), 32, axis=axis, name="it")
    y.set_output(True).set_data_type(narrow)
    scale.set_output(True).set_data_type(kind)
    for name, value in more.items():
        getattr(scale, f"set_{name}")(value)


@pytest.mark.parametrize("make, text", [
    (lambda g: quantize(g, dim=(4, 65)), r"port X .* got dims \(4, 65\); expected blocks of 32 along axis 1"),
    (lambda g: quantize(g, axis=2), "axis 2 of 2 dims"),
    (lambda g: quantize(g, T.HALF), "port Y .* got data type HALF; expected one of FP8"),
    (lambda g: quantize(g, kind=T.FLOAT), "port scale .* got data type FLOAT; expected FP8_E8M0 or FP8_E4M3"),
    (lambda g: quantize(g, T.FP4_E2M1, dim=(64, 4), axis=0), "expected whole bytes of two elements along axis 0"),
    (lambda g: quantize(g, reordering_type=F8_128x4), r"port scale .* expected \(128, 4\)"),
    (lambda g: g.block_scale_quantize(g.tensor([4, 64], [64, 1], T.FLOAT), 0), "block_size is .*; expected positive ints"),
    (lambda g: g.block_scale_dequantize(g.tensor([4, 64], [64, 1], T.FP8_E4M3), g.tensor([4, 1], [1, 1], T.FP8_E8M0), [32], name="it")
     .set_output(True), r"port scale .* got dims \(4, 1\); expected \(4, 2\)")])
def test_what_is_refused(make, text):
    graph = new_graph()
    with pytest.raises((ValueError, RuntimeError), match=text):
        make(graph)
        graph.build([cudnn.heur_mode.A])
