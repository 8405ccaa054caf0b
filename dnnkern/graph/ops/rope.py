"""Rotary embeddings."""
from ._define import operation


@operation(tag="ROPE")
def rope(input, freqs, output_scale=None, rope_dim=None):
    """Rotate the first `rope_dim` elements of every head of input (B, H, S, D): element i with element i + rope_dim / 2, by the angle
    `freqs` (S, 1, 1, rope_dim), FLOAT, has for both of them."""
    return {"X": input, "FREQS": freqs}, {"output_scale": None if output_scale is None else float(output_scale),
                                          "rope_dim": None if rope_dim is None else int(rope_dim)}


@operation(outputs="DX", tag="ROPE_BPROP")
def rope_backward(dY, freqs, output_scale=None, rope_dim=None):
    """The gradient of `rope`: rotate back."""
    return {"DY": dY, "FREQS": freqs}, {"output_scale": None if output_scale is None else float(output_scale),
                                        "rope_dim": None if rope_dim is None else int(rope_dim)}


def _infer_rope(node):
    first, result = ("X", "Y") if "X" in node.inputs else ("DY", "DX")
    node.expect_rank(first, 4)
    dim, freqs = node.dim(first), node.dim("FREQS")
    size = node.attributes["rope_dim"] = freqs[-1] if node.attributes["rope_dim"] is None else node.attributes["rope_dim"]
    node.expect(freqs == (dim[2], 1, 1, size), "FREQS", f"dims {freqs}", f"{(dim[2], 1, 1, size)}")
    node.expect(size % 2 == 0 and 0 < size <= dim[3], "FREQS", f"rope_dim {size}", f"an even number up to {dim[3]}")
    if node.attributes["output_scale"] not in (None, 1.0):
        node.refuse(None, f"output_scale {node.attributes['output_scale']}; expected 1")
    node.result(result, dim, node.stride(first))


rope.infer(_infer_rope)
rope_backward.infer(_infer_rope)


@rope.lower
def _(part):
    _lower_rope(part, "rope_fwd", "X", "Y")


@rope_backward.lower
def _(part):
    _lower_rope(part, "rope_bwd", "DY", "DX")


def _lower_rope(part, op, source, result):
    x, y, freqs = part.input(source), part.output(result), part.converted(part.input("FREQS"), "float32")
    dtype = x.dtype if x.dtype == y.dtype and x.dtype in ("float64", "float32", "float16", "bfloat16") else "float32"
    x, written = part.converted(x, dtype), part.into(y, (dtype,), dtype)
    compute = "float64" if dtype == "float64" else "float32"
    pairs = part.attribute("rope_dim") // 2
    angles = part.converted(freqs.view((x.shape[2], pairs), (freqs.tensor.strides[0], freqs.tensor.strides[3])), compute)
    cos, sin = (part.temporary(angles.shape, compute) for _ in range(2))
    part.call("unary", (angles,), (cos,), "cos", None)
    part.call("unary", (angles,), (sin,), "sin", None)
    part.call(op, (x, cos, sin), (written,), False)
    part.done(written, y)
