"""Pooling and resampling of images, forward and backward."""
from ...host.dtypes import compute_dtype
from ...host.products import alike
from ...pool import PoolProblem
from .._enums import data_type, member, padding_mode, resampling_mode
from .._errors import InvalidValue
from .._fuse import chain_of
from .._infer import channels_last
from ._define import OPERATIONS, operation
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


def _takes(spec, node, others, outside):
    """What `Operation.takes` tells: pooling's kernels run any program of their result."""
    if node.attribute("resampling_mode") not in POOLS:
        return f"{node.op} of {node.attribute('resampling_mode')} runs no program"
    if any(uid == node.output("Index") for other in others for _, uid in other.inputs):
        return f"the index of {node.op} is read from memory"
    return None


def _fuse(part):
    """A window's value, and what the nodes after it make of it."""
    x, index = part.input("X"), part.output("Index", always=False)
    x = part.converted(x, x.dtype if x.dtype in FLOATS else "float32")
    chain = chain_of(part, OPERATIONS, part.node.output("Y"), compute_dtype(x.dtype), alike(x.dtype), ((0, *range(2, len(x.shape))), 1))
    _pool_forward(part, x, chain.main, index, chain)


resample.fuse(_fuse, takes=_takes)


def _pool_forward(part, x, y, index, chain=None):
    """One step; an index that nobody reads is not written."""
    kept = index and part.into(index, ("int32",), "int32")
    layout, (a, b, *rest) = images(x, y, *([] if kept is None else [kept]))
    rank, (window, stride, padding, _, _, counts, _) = len(x.shape), _pool(part)
    part.problem(PoolProblem, {"x": a}, {"y": b, "index": rest[0] if rest else None},
                 chain=chain and chain.permuted((0, *range(2, rank), 1) if layout == "NHWC" else range(rank)),
                 op="max_pool_fwd" if part.attribute("resampling_mode") == "MAXPOOL" else "avg_pool_fwd", window=window, stride=stride,
                 padding=padding, dilation=(1,) * (rank - 2), count_include_pad=counts, layout=layout)
    part.done(kept, index)


@resample.lower
def _(part):
    x, y, index = part.input("X"), part.output("Y"), part.output("Index", always=False)
    dtype = _type(x, y)
    x, written = part.converted(x, dtype), part.into(y, (dtype,), dtype)
    mode = part.attribute("resampling_mode")
    if mode in POOLS:
        _pool_forward(part, x, written, index)
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
