"""The gradients of public functions, by this library's own backward functions.

Each is a `Gradient`. Its functions get ``again(function, {name: array or None}, **static)``, which computes a public function, the arrays
of the call by name, and its other arguments.
"""
from typing import Callable, NamedTuple

import jax.numpy as jnp
import numpy as np

_FROM_RESULT = frozenset({"relu"})  # activations whose derivative follows from their result


class Gradient(NamedTuple):
    """How a function's gradient is computed.

    Attributes
    ----------
    forward : callable(again, a, s) -> (results, kept), or None
        The results as the function has them, and what the gradient needs beside them. None, and where it returns None: the call itself.
    backward : callable(again, a, s, y, dy, kept) -> {name: gradient}
        `y` and `dy` are tuples.
    of : frozenset of str
        The arrays that have gradients.
    also : callable(s) -> set of int
        Results through which gradients flow.
    """
    forward: Callable | None
    backward: Callable
    of: frozenset
    also: Callable


GRADIENTS = {}


def _gradient(function, *of, forward=None, also=lambda s: {0}):
    """Decorate a `backward`."""
    def decorate(backward):
        GRADIENTS[function] = Gradient(forward, backward, frozenset(of), also)
        return backward
    return decorate


def _some(s, *names):
    return {name: s[name] for name in names if name in s}


def _but(s, *names):
    return {name: value for name, value in s.items() if name not in names}


def _summed(dy, shape):
    """The gradient of what broadcasts to dy."""
    lead = dy.ndim - len(shape)
    axes = (*range(lead), *(i + lead for i, n in enumerate(shape) if n == 1 and dy.shape[i + lead] != 1))
    wide = jnp.promote_types(dy.dtype, jnp.float32)
    return jnp.sum(dy, axes, wide).reshape(shape) if axes else dy.reshape(shape)


# ---- convolutions and products: the activation is in the same kernel, but where its derivative needs its argument

def _with_activation(function):
    def forward(again, a, s):
        mode = s.get("activation")
        if mode is None or mode in _FROM_RESULT:
            return None
        z = again(function, a, **_but(s, "activation"))
        return (again("activation_fwd", {"x": z}, mode=mode),), z
    return forward


def _before_activation(again, s, y, dy, kept):
    mode = s.get("activation")
    return dy[0] if mode is None else again("activation_bwd", {"dy": dy[0], "x": y[0] if kept is None else kept}, mode=mode)


_WINDOW = "stride", "padding", "dilation", "groups", "layout"
_CONV = *_WINDOW, "mode", "math", "alpha"


def _conv(again, a, s, y, dy, kept):
    dz, (x, w), how = _before_activation(again, s, y, dy, kept), (a["x"], a["w"]), _some(s, *_CONV)
    found = {"residual": dz}
    dz = dz.astype(x.dtype)
    if "bias" in a:
        found["bias"] = again("conv_bwd_bias", {"dy": dz}, **_some(s, "layout"))
    return found | {"x": again("conv_bwd_data", {"dy": dz, "w": w}, x_shape=x.shape, **how),
                    "w": again("conv_bwd_filter", {"x": x, "dy": dz}, w_shape=w.shape, **how)}


_gradient("conv_fwd", "x", "w", "bias", "residual", forward=_with_activation("conv_fwd"))(_conv)


@_gradient("conv_transpose_fwd", "x", "w", "bias", "residual", forward=_with_activation("conv_transpose_fwd"))
def _transposed(again, a, s, y, dy, kept):
    dz, (x, w), how = _before_activation(again, s, y, dy, kept), (a["x"], a["w"]), _some(s, *_WINDOW, "math", "alpha")
    found = {"residual": dz}
    dz = dz.astype(x.dtype)
    if "bias" in a:
        found["bias"] = again("conv_bwd_bias", {"dy": dz}, **_some(s, "layout"))
    return found | {"x": again("conv_fwd", {"x": dz, "w": w}, **how),
                    "w": again("conv_bwd_filter", {"x": dz, "dy": x}, w_shape=w.shape, **how)}


@_gradient("conv_bwd_data", "dy", "w")
def _conv_bwd_data(again, a, s, y, dy, kept):
    c, how = dy[0], _some(s, *_CONV)
    return {"dy": again("conv_fwd", {"x": c, "w": a["w"]}, **how),
            "w": again("conv_bwd_filter", {"x": c, "dy": a["dy"]}, w_shape=a["w"].shape, **how)}


@_gradient("conv_bwd_filter", "x", "dy")
def _conv_bwd_filter(again, a, s, y, dy, kept):
    c, how = dy[0], _some(s, *_CONV)
    return {"x": again("conv_bwd_data", {"dy": a["dy"], "w": c}, x_shape=a["x"].shape, **how),
            "dy": again("conv_fwd", {"x": a["x"], "w": c}, **how)}


@_gradient("conv_bwd_bias", "dy")
def _conv_bwd_bias(again, a, s, y, dy, kept):
    x = a["dy"]
    where = x.ndim - 1 if s.get("layout", "NCHW") == "NHWC" else 1
    return {"dy": jnp.broadcast_to(dy[0].reshape([-1 if i == where else 1 for i in range(x.ndim)]), x.shape)}


@_gradient("matmul", "a", "b", "bias", "c", forward=_with_activation("matmul"))
def _product(again, a, s, y, dy, kept):
    dz, left, right = _before_activation(again, s, y, dy, kept), a["a"], a["b"]
    found = {name: _summed(dz, a[name].shape) for name in ("bias", "c") if name in a}
    if "c" in found:
        found["c"] = found["c"] * s.get("beta", 1.0)
    how, ta, tb = _some(s, "math", "alpha"), s.get("transpose_a", False), s.get("transpose_b", False)
    dz = dz.astype(left.dtype)
    if right.ndim == 1:
        right, dz, tb = right[:, None], dz[..., None], False
    if left.ndim == 1:
        left, dz, ta = left[None], dz[..., None, :], False
    if right.ndim == 2 and left.ndim > 2 and not ta:  # one product of all rows
        left, dz = left.reshape(-1, left.shape[-1]), dz.reshape(-1, dz.shape[-1])

    def product(p, q, transpose_p, transpose_q):
        return again("matmul", {"a": p, "b": q}, transpose_a=transpose_p, transpose_b=transpose_q, **how)
    da = product(right, dz, tb, True) if ta else product(dz, right, False, not tb)
    db = product(dz, left, True, ta) if tb else product(left, dz, not ta, False)
    return found | {"a": _summed(da, left.shape).reshape(a["a"].shape), "b": _summed(db, right.shape).reshape(a["b"].shape)}


# ---- pooling

def _with_index(function):
    def forward(again, a, s):
        y, index = again(function, a, **{**s, "return_index": True})
        return ((y, index) if s.get("return_index") else (y,)), index
    return forward


_POOL = "window", "stride", "padding", "dilation", "ceil_mode", "layout"


@_gradient("max_pool_fwd", "x", forward=_with_index("max_pool_fwd"))
def _max_pool(again, a, s, y, dy, kept):
    return {"x": again("max_pool_bwd", {"dy": dy[0], "index": kept}, x_shape=a["x"].shape, **_some(s, *_POOL))}


@_gradient("adaptive_max_pool_fwd", "x", forward=_with_index("adaptive_max_pool_fwd"))
def _adaptive_max_pool(again, a, s, y, dy, kept):
    return {"x": again("adaptive_max_pool_bwd", {"dy": dy[0], "index": kept}, x_shape=a["x"].shape, **_some(s, "layout"))}


@_gradient("avg_pool_fwd", "x")
def _avg_pool(again, a, s, y, dy, kept):
    return {"x": again("avg_pool_bwd", {"dy": dy[0]}, x_shape=a["x"].shape, **s)}


@_gradient("avg_pool_bwd", "dy")
def _avg_pool_bwd(again, a, s, y, dy, kept):
    return {"dy": again("avg_pool_fwd", {"x": dy[0]}, **_but(s, "x_shape"))}


@_gradient("adaptive_avg_pool_fwd", "x")
def _adaptive_avg_pool(again, a, s, y, dy, kept):
    return {"x": again("adaptive_avg_pool_bwd", {"dy": dy[0]}, x_shape=a["x"].shape, **_some(s, "layout"))}


# ---- normalisations

def _channel_norm(again, function, a, s, y, dy, **more):
    """Gradients of x, gamma and beta, and of the residual."""
    mode = s.get("activation")
    arrays = {"dy": dy[0], "x": a["x"], "gamma": a.get("gamma"), "mean": y[1], "rstd": y[2]}
    if mode is not None:
        from_result = mode in ("relu", "leaky_relu")
        arrays |= {"y": y[0]} if from_result else {"beta": a["beta"]} if "beta" in a else {}
    found = again(function, arrays, **_some(s, "mode", "layout", "activation", "groups"), **more)
    return dict(zip(("x", "gamma", "beta", "residual"), found))


@_gradient("batch_norm_train_fwd", "x", "gamma", "beta", "residual")
def _batch_norm(again, a, s, y, dy, kept):
    return _channel_norm(again, "batch_norm_bwd", a, s, y, dy, residual="residual" in a)


@_gradient("group_norm_fwd", "x", "gamma", "beta")
def _group_norm(again, a, s, y, dy, kept):
    return _channel_norm(again, "group_norm_bwd", a, s, y, dy)


@_gradient("instance_norm_fwd", "x", "gamma", "beta")
def _instance_norm(again, a, s, y, dy, kept):
    return _channel_norm(again, "instance_norm_bwd", a, s, y, dy)


@_gradient("batch_norm_infer", "x", "gamma", "beta", "residual")
def _frozen_batch_norm(again, a, s, y, dy, kept):
    wide = jnp.promote_types(a["x"].dtype, jnp.float32)
    rstd = 1 / jnp.sqrt(a["var"].astype(wide) + np.asarray(s.get("eps", 1e-5), wide))
    return _channel_norm(again, "batch_norm_bwd", a, s, (y[0], a["mean"].astype(wide), rstd), dy, residual="residual" in a, frozen=True)


def _row_norm(again, function, names, a, s, y, dy, **more):
    saved = dict(zip(names, y[1:]))
    arrays = {"dy": dy[0], "x": y[-1] if "residual" in a else a["x"], "gamma": a.get("gamma"), **saved}
    if "residual" in a:
        arrays["dsummed"] = dy[-1]
    dx, *rest = again(function, arrays, **_some(s, "axis"), **more)
    return {"x": dx, "residual": dx, **dict(zip(("gamma", "beta"), rest))}


def _and_the_sum(last):
    return lambda s: {0, last}


@_gradient("layer_norm_fwd", "x", "gamma", "beta", "residual", also=_and_the_sum(3))
def _layer_norm(again, a, s, y, dy, kept):
    return _row_norm(again, "layer_norm_bwd", ("mean", "rstd"), a, s, y, dy)


@_gradient("rms_norm_fwd", "x", "gamma", "beta", "residual", also=_and_the_sum(2))
def _rms_norm(again, a, s, y, dy, kept):
    return _row_norm(again, "rms_norm_bwd", ("rstd",), a, s, y, dy, has_beta="beta" in a)


@_gradient("lrn_fwd", "x")
def _lrn(again, a, s, y, dy, kept):
    return {"x": again("lrn_bwd", {"dy": dy[0], "x": a["x"], "y": y[0]}, **s)}


# ---- pointwise, softmax, attention, losses

@_gradient("activation_fwd", "x", "slope")
def _activation(again, a, s, y, dy, kept):
    arrays = {"dy": dy[0], **a}
    if "slope" in a:
        return dict(zip(("x", "slope"), again("activation_bwd", arrays, slope_gradient=True, **s)))
    return {"x": again("activation_bwd", arrays, **s)}


@_gradient("glu_fwd", "x")
def _glu(again, a, s, y, dy, kept):
    return {"x": again("glu_bwd", {"dy": dy[0], "x": a["x"]}, **s)}


@_gradient("softmax_fwd", "x")
def _softmax(again, a, s, y, dy, kept):
    return {"x": again("softmax_bwd", {"dy": dy[0], "y": y[0]}, **s)}


@_gradient("dropout_fwd", "x")
def _dropout(again, a, s, y, dy, kept):
    return {"x": again("dropout_bwd", {"dy": dy[0], "mask": y[1]}, **_some(s, "p"))}


@_gradient("embedding_fwd", "weight")
def _embedding(again, a, s, y, dy, kept):
    return {"weight": again("embedding_bwd", {"dy": dy[0], "indices": a["indices"]}, num_embeddings=a["weight"].shape[0])}


def _with_lse(again, a, s):
    o, lse = again("sdpa_fwd", a, **{**s, "return_lse": True})
    return ((o, lse) if s.get("return_lse") else (o,)), lse


@_gradient("sdpa_fwd", "q", "k", "v", "bias", "sink", forward=_with_lse)
def _attention(again, a, s, y, dy, kept):
    arrays = {"do": dy[0], **{name: a[name] for name in ("q", "k", "v")}, "o": y[0], "lse": kept, **_but(a, "q", "k", "v")}
    found = again("sdpa_bwd", arrays, sink_gradient="sink" in a, **_but(s, "return_lse"))
    return dict(zip(("q", "k", "v", *(name for name in ("bias", "sink") if name in a)), found))


@_gradient("rope_fwd", "x")
def _rope(again, a, s, y, dy, kept):
    return {"x": again("rope_bwd", {"dy": dy[0], "cos": a["cos"], "sin": a["sin"]}, **s)}


def _loss(function, *names):
    """The gradient of the first of the arrays; the others go with the loss's to its function."""
    def backward(again, a, s, y, dy, kept):
        arrays = {"dloss": dy[0], **{name: a[name] for name in names}}
        if len(y) > 1:
            arrays["lse"] = y[1]
        return {names[0]: again(function, arrays | _some(a, "weight"), **s)}
    return backward


for _function, _names in {"cross_entropy": ("logits", "targets"), "nll_loss": ("logp", "targets")}.items():
    _gradient(f"{_function}_fwd", _names[0])(_loss(f"{_function}_bwd", *_names))


@_gradient("mse_loss_fwd", "x", "target")
def _mse(again, a, s, y, dy, kept):
    dx = again("mse_loss_bwd", {"dloss": dy[0], **a}, **s)
    return {"x": dx, "target": -dx}


@_gradient("ctc_loss_fwd", "logits")
def _ctc(again, a, s, y, dy, kept):
    return {"logits": again("ctc_loss_bwd", {"dloss": dy[0], **a, "saved": y[1]}, **s)}
