"""Pooling and resampling of images, forward and backward."""
from .._enums import data_type, member, padding_mode, resampling_mode
from .._errors import InvalidValue
from .._infer import channels_last
from ._define import operation
from .norm import FLOATS, images
from .product import _ints

POOLS = {"MAXPOOL": "NEG_INF_PAD", "AVGPOOL_EXCLUDE_PADDING": "ZERO_PAD", "AVGPOOL_INCLUDE_PADDING": "ZERO_PAD"}
"""Modes that are pooling -> the padding that they have."""


def _attributes(function, mode, padding, window, stride, pre_padding, post_padding):
    return {"resampling_mode": member(resampling_mode, mode, f"{function}: resampling_mode").name,
            "padding_mode": member(padding_mode, padding, f"{function}: padding_mode").name,
            **{name: _ints(function, name, values) for name, values in (("window", window), ("stride", stride),
                                                                        ("pre_padding", pre_padding), ("post_padding", post_padding))}}


@operation(outputs="Y Index", tag="RESAMPLE")
def resample(input, resampling_mode, padding_mode, window=(), stride=(), pre_padding=(), post_padding=(), generate_index=False):
    """Pool or resample an image (N, C, spatial dims).

    Parameters
    ----------
    resampling_mode : resampling_mode
        MAXPOOL (padding NEG_INF_PAD), AVGPOOL_EXCLUDE_PADDING and AVGPOOL_INCLUDE_PADDING (ZERO_PAD) with their window, stride and
        padding; NEAREST and BILINEAR to the dims that ``set_dim`` gives the result.
    generate_index : bool
        Of MAXPOOL: also return the position of each maximum in the spatial extent, INT32.

    Returns
    -------
    list
        [Y, Index]; None for Index without `generate_index`.
    """
    attributes = _attributes("resample", resampling_mode, padding_mode, window, stride, pre_padding, post_padding)
    if generate_index and attributes["resampling_mode"] != "MAXPOOL":
        raise InvalidValue(f"resample: generate_index with {attributes['resampling_mode']}; expected it with MAXPOOL")
    return {"X": input}, attributes, {} if generate_index else {"Index": None}


@operation(outputs="DX", tag="RESAMPLE_BWD")
def resample_backward(loss, input, resampling_mode, padding_mode, window=(), stride=(), pre_padding=(), post_padding=()):
    """The gradient of `resample`.

    Parameters
    ----------
    loss : tensor
    input : tensor
        The image, or of MAXPOOL the Index that `resample` returned; with an Index the dims of the result must be set (``set_dim``).
    """
    return {"DY": loss, "X": input}, _attributes("resample_backward", resampling_mode, padding_mode, window, stride, pre_padding,
                                                 post_padding)


def _check(node, x, y_port):
    """Complete the attributes for an image of these dims; the dims of the result, None where they have to be set."""
    a, spatial = node.attributes, len(x) - 2
    node.expect(1 <= spatial <= 3, "X", f"dims {x}", "N, C, and one to three spatial dims")
    mode = a["resampling_mode"]
    if mode not in POOLS:
        return None
    if a["padding_mode"] != POOLS[mode] and any((*a["pre_padding"], *a["post_padding"])):
        node.refuse(None, f"{mode} with {a['padding_mode']}; expected {POOLS[mode]}")
    a["stride"] = a["stride"] or a["window"]
    for name in ("pre_padding", "post_padding"):
        a[name] = a[name] or (0,) * spatial
    for name, least in (("window", 1), ("stride", 1), ("pre_padding", 0), ("post_padding", 0)):
        node.expect(len(a[name]) == spatial and all(v >= least for v in a[name]), "X", f"{name} {a[name]}",
                    f"{least} at least for each of {spatial} spatial dims")
    extents = [(n + b + e - w) // s + 1 for n, w, s, b, e in zip(x[2:], a["window"], a["stride"], a["pre_padding"], a["post_padding"])]
    node.expect(min(extents) >= 1, "X", f"windows {a['window']} over {x[2:]}, which give {tuple(extents)}", "1 at least")
    return (*x[:2], *extents)


@resample.infer
def _(node):
    x = node.dim("X")
    y = _check(node, x, "Y")
    node.result("Y", y, channels_last)
    node.expect(node.dim("Y")[:2] == x[:2], "Y", f"dims {node.dim('Y')}", f"{x[:2]} first, as X has")
    node.result("Index", y, channels_last, dtype=data_type.INT32)


@resample_backward.infer
def _(node):
    is_index = node.attributes["resampling_mode"] == "MAXPOOL" and node.inputs["X"]._type is data_type.INT32
    node.attributes["is_index"] = is_index
    if is_index:
        node.expect_dim("X", node.dim("DY"))
    node.result("DX", None if is_index else node.dim("X"), channels_last)
    y = _check(node, node.dim("DX"), "DY")
    if y is not None:
        node.expect_dim("DY", y)


def _pool(part):
    """What the pooling functions take after the shapes."""
    padding = tuple(zip(part.attribute("pre_padding"), part.attribute("post_padding")))
    return (part.attribute("window"), part.attribute("stride"), padding, 1, False,
            part.attribute("resampling_mode") != "AVGPOOL_EXCLUDE_PADDING", None)


def _type(*refs):
    found = {r.dtype for r in refs}
    return next(iter(found)) if len(found) == 1 and found <= set(FLOATS) else "float64" if "float64" in found else "float32"


@resample.lower
def _(part):
    x, y, index = part.input("X"), part.output("Y"), part.output("Index", always=False)
    dtype = _type(x, y)
    x, written = part.converted(x, dtype), part.into(y, (dtype,), dtype)
    mode = part.attribute("resampling_mode")
    if mode in POOLS:
        op = "max_pool_fwd" if mode == "MAXPOOL" else "avg_pool_fwd"
        if op == "max_pool_fwd":
            kept = part.temporary(y.shape, "int32") if index is None else part.into(index, ("int32",), "int32")
            layout, (a, b, c) = images(x, written, kept)
            part.call(op, (a,), (b, c), *_pool(part), layout)
            part.done(kept, index)
        else:
            layout, (a, b) = images(x, written)
            part.call(op, (a,), (b,), *_pool(part), layout)
    else:
        layout, (a, b) = images(x, written)
        part.call("resample_fwd", (a,), (b,), y.shape[2:], mode.lower(), False, layout, False)
    part.done(written, y)


@resample_backward.lower
def _(part):
    dy, dx = part.input("DY"), part.output("DX")
    dtype, mode = _type(dy, dx), part.attribute("resampling_mode")
    dy, written = part.converted(dy, dtype), part.into(dx, (dtype,), dtype)
    if mode == "MAXPOOL":
        index = part.input("X")
        if not part.attribute("is_index"):
            x = part.converted(index, dtype)
            index, again = part.temporary(dy.shape, "int32", dy.tensor.strides), part.temporary(dy.shape, dtype, dy.tensor.strides)
            layout, (a, b, c) = images(x, again, index)
            part.call("max_pool_fwd", (a,), (b, c), *_pool(part), layout)
        layout, (a, b, c) = images(dy, index, written)
        part.call("max_pool_bwd", (a, b), (c,), c.shape, *_pool(part), layout)
    else:
        layout, (a, b) = images(dy, written)
        if mode in POOLS:
            part.call("avg_pool_bwd", (a,), (b,), b.shape, *_pool(part), layout)
        else:
            part.call("resample_bwd", (a,), (b,), b.shape, mode.lower(), False, layout, False)
    part.done(written, dx)
