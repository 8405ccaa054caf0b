"""vmap of the functions that have a dimension for the batch: one call for all of it.

A rule takes the call, its operands with the batch in front of those that have one, which those are, and the batch's size. It returns the
results with the batch in front, or None where there must be one call after the other.
"""
import jax.numpy as jnp


def _static(call, **changed):
    return call._replace(static=tuple(sorted({**dict(call.static), **changed}.items())))


def _given(call, operands):
    return dict(zip(call.arrays, operands))


def _all_batched(x, is_batched, size):
    return x if is_batched else jnp.broadcast_to(x, (size, *x.shape))


def _merging(*names, shapes=(), able=lambda static: True):
    """The batch and the first dimension of these operands become one; `shapes` are parameters that begin with that dimension. Others may
    have no batch."""
    def fold(call, operands, is_batched, size, bind):
        static, batched = dict(call.static), dict(zip(call.arrays, is_batched))
        if not able(static) or any(b for name, b in batched.items() if name not in names) or not size:
            return None
        merged = []
        for name, x in _given(call, operands).items():
            if name in names:
                x = _all_batched(x, batched[name], size)
                if x.ndim < 2:
                    return None
                x = x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])
            merged.append(x)
        changed = {name: (size * static[name][0], *static[name][1:]) for name in shapes}
        results = bind(_static(call, **changed), merged)
        return [y.reshape(size, y.shape[0] // size, *y.shape[1:]) for y in results]
    return fold


def _grouping(images, *, shape=None, result="images"):
    """The batch becomes groups of a convolution: part of the channels of `images`, and of the first dimension of filters and biases.
    `shape` is the parameter that is the result's shape."""
    def fold(call, operands, is_batched, size, bind):
        static, batched = dict(call.static), dict(zip(call.arrays, is_batched))
        if not size:
            return None
        made = []
        for name, x in _given(call, operands).items():
            x = _all_batched(x, batched[name], size)
            axis = _channels(static, x.ndim - 1) if name in images else 0
            x = jnp.moveaxis(x, 0, axis)
            made.append(x.reshape(*x.shape[:axis], size * x.shape[axis + 1], *x.shape[axis + 2:]))
        changed = {"groups": size * static.get("groups", 1)}
        if shape:
            sizes = list(static[shape])
            sizes[_channels(static, len(sizes)) if result == "images" else 0] *= size
            changed[shape] = tuple(sizes)
        y, = bind(_static(call, **changed), made)
        axis = _channels(static, y.ndim) if result == "images" else 0
        return [jnp.moveaxis(y.reshape(*y.shape[:axis], size, y.shape[axis] // size, *y.shape[axis + 1:]), axis, 0)]
    return fold


def _channels(static, rank):
    """The dimension of the channels."""
    return rank - 1 if static.get("layout") == "NHWC" else 1


def _either(*folds):
    def fold(*args):
        return next(filter(None, (f(*args) for f in folds)), None)
    return fold


def _leading(*names, able=lambda static: True):
    """The batch is one more dimension in front of these operands. An `axis` counts from the end then."""
    def fold(call, operands, is_batched, size, bind):
        static, batched = dict(call.static), dict(zip(call.arrays, is_batched))
        given = _given(call, operands)
        if not able(static) or any(b for name, b in batched.items() if name not in names):
            return None
        made = {name: _all_batched(x, batched[name], size) if name in names else x for name, x in given.items()}
        axis = static.get("axis", -1)
        if axis >= 0:
            call = _static(call, axis=axis - made[names[0]].ndim + 1)
        return bind(call, list(made.values()))
    return fold


def _product(call, operands, is_batched, size, bind):
    """Batch dimensions broadcast, those of vmap too."""
    given, batched = _given(call, operands), dict(zip(call.arrays, is_batched))
    a, b = given["a"], given["b"]
    ranks = {name: given[name].ndim - batched[name] for name in ("a", "b")}
    if any(flag for name, flag in batched.items() if name not in ranks) or min(ranks.values()) < 2 or given.keys() - {"a", "b", "bias"}:
        return None
    if given.get("bias", a).ndim > 2 and "bias" in given:
        return None
    rank = max(ranks.values())

    def with_batch(name, x):
        return x.reshape(size, *(1,) * (rank - ranks[name]), *x.shape[1:]) if batched[name] else x
    return bind(call, [with_batch("a", a), with_batch("b", b), *operands[2:]])


def _is_not_packed(static):
    return static.get("layout", "BHSD") != "THD"


def _no_slope_gradient(static):
    return not static.get("slope_gradient")


def _keeps_rows(static):
    return static.get("reduction") == "none"


_QKV = "q", "k", "v", "seq_len_q", "seq_len_kv"
FOLDS = {
    "conv_fwd": _either(_merging("x", "residual"), _grouping(("x", "residual"))),
    "conv_bwd_data": _either(_merging("dy", shapes=("x_shape",)), _grouping(("dy",), shape="x_shape")),
    "conv_bwd_filter": _grouping(("x", "dy"), shape="w_shape", result="filters"),
    "conv_transpose_fwd": _merging("x", "residual"),
    "matmul": _product,
    "max_pool_fwd": _merging("x"),
    "max_pool_bwd": _merging("dy", "index", shapes=("x_shape",)),
    "avg_pool_fwd": _merging("x"),
    "avg_pool_bwd": _merging("dy", shapes=("x_shape",)),
    "adaptive_max_pool_fwd": _merging("x"),
    "adaptive_max_pool_bwd": _merging("dy", "index", shapes=("x_shape",)),
    "adaptive_avg_pool_fwd": _merging("x"),
    "adaptive_avg_pool_bwd": _merging("dy", shapes=("x_shape",)),
    "batch_norm_infer": _merging("x", "residual"),
    "group_norm_fwd": _merging("x"),
    "instance_norm_fwd": _merging("x"),
    "layer_norm_fwd": _leading("x", "residual"),
    "rms_norm_fwd": _leading("x", "residual"),
    "softmax_fwd": _leading("x"),
    "softmax_bwd": _leading("dy", "y"),
    "activation_fwd": _leading("x"),
    "activation_bwd": _leading("dy", "x", able=_no_slope_gradient),
    "glu_fwd": _leading("x"),
    "glu_bwd": _leading("dy", "x"),
    "unary": _leading("x"),
    "sdpa_fwd": _merging(*_QKV, able=_is_not_packed),
    "sdpa_bwd": _merging("do", "o", "lse", *_QKV, able=_is_not_packed),
    "cross_entropy_fwd": _merging("logits", "targets", able=_keeps_rows),
    "cross_entropy_bwd": _merging("dloss", "logits", "targets", "lse", able=_keeps_rows),
}
