"""`dnnkern.jax`: functions inside of jit, grad and vmap beside JAX's own, and JAX's operations replaced.

Values and gradients are JAX's in float64, or in a narrower dtype within its rounding. Everything runs on the simplest algorithms: which one
runs is not what is tested here.
"""
import ctypes
import doctest
import importlib.util
import math
import os
import pathlib
import re
import subprocess
import sys
import threading

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

import dnnkern.jax  # noqa: E402
from dnnkern import dispatch  # noqa: E402
from dnnkern.jax import _call, _xla  # noqa: E402

pytestmark = pytest.mark.sized
ours = dnnkern.jax
EPS = {"float64": 1e-11, "float32": 2e-5, "float16": 2e-2, "bfloat16": 1e-1}


@pytest.fixture(autouse=True)
def alone():
    """Every test counts from 0, in JAX's wide dtypes, and leaves nothing replaced."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    ours.status(reset=True)
    with dispatch.prefer("naive"):
        yield
    ours.disable()
    jax.config.update("jax_enable_x64", before)


def array(*shape, dtype="float64", seed=0):
    return jnp.asarray(np.random.default_rng([seed, *shape]).normal(size=shape), dtype)


def ran():
    """{operation: calls on this library's kernels}."""
    return {row.op: row.calls for row in ours.status() if row.ours}


def went_back():
    return [(row.op, row.why) for row in ours.status() if not row.ours]


def assert_close(found, expected, eps=1e-11):
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected):
        assert mine.shape == theirs.shape and mine.dtype == theirs.dtype
        mine, theirs = (np.asarray(x, np.float64) for x in (mine, theirs))
        assert np.abs(theirs).max(initial=0) > 0, "nothing to compare"
        np.testing.assert_allclose(mine, theirs, rtol=eps, atol=eps * np.abs(theirs).max())


def with_gradients(f, *operands):
    """f's results, and the gradients of a sum of their squares."""
    def both(*operands):
        y, pull = jax.vjp(f, *operands)
        return y, pull(jax.tree.map(lambda y: y + y, y))
    return jax.jit(both)(*operands)


# ---- functions

def convolution(x, w, b, r, stride=1, padding=((0, 0), (0, 0)), groups=1):
    y = lax.conv_general_dilated(x, w, (stride, stride), padding, feature_group_count=groups)
    return y + b[:, None, None] + r


def normalised(x, axes, eps=1e-5):
    return (x - x.mean(axes, keepdims=True)) / jnp.sqrt(x.var(axes, keepdims=True) + eps)


def channels(g):
    return g[:, None, None]


def attention(q, k, v, bias, causal=False):
    k, v = (jnp.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = jnp.einsum("bhsd,bhtd->bhst", q, k) / math.sqrt(q.shape[-1]) + bias
    s = jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool)), s, -jnp.inf) if causal else s
    return jnp.einsum("bhst,bhtd->bhsd", jax.nn.softmax(s), v)


def rotated(x, cos, sin):
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


TARGETS = jnp.array([1, 0, 2])
_IMAGE, _ROWS = (2, 4, 7, 5), (3, 6)
_CONV = (2, 4, 7, 5), (6, 4, 3, 3), (6,), (2, 6, 4, 3)
_QKV = (2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8), (1, 4, 5, 7)
CASES = {
    "conv": (_CONV, lambda *a: convolution(*a, 2, ((1, 1), (1, 1))), lambda x, w, b, r: ours.conv_fwd(
        x, w, b, stride=2, padding=1, residual=r)),
    "conv, relu": (_CONV, lambda *a: jax.nn.relu(convolution(*a, 2, ((1, 1), (1, 1)))), lambda x, w, b, r: ours.conv_fwd(
        x, w, b, stride=2, padding=1, residual=r, activation="relu")),
    "conv, gelu": (_CONV, lambda *a: jax.nn.gelu(convolution(*a, 2, ((1, 1), (1, 1))), False), lambda x, w, b, r: ours.conv_fwd(
        x, w, b, stride=2, padding=1, residual=r, activation="gelu")),
    "conv, groups": (((2, 4, 7, 5), (6, 2, 3, 2)), lambda x, w: convolution(x, w, jnp.zeros(6), 0, 1, ((2, 1), (0, 1)), 2),
                     lambda x, w: ours.conv_fwd(x, w, padding=((2, 1), (0, 1)), groups=2)),
    "conv, NHWC": (((2, 7, 5, 4), (6, 3, 2, 4)), lambda x, w: lax.conv_general_dilated(
        x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "OHWI", "NHWC")), lambda x, w: ours.conv_fwd(x, w, layout="NHWC")),
    "conv_transpose": (((2, 4, 5, 3), (4, 3, 3, 3)), lambda x, w: lax.conv_transpose(
        x, w, (2, 2), [(1, 2), (1, 2)], dimension_numbers=("NCHW", "OIHW", "NCHW"), transpose_kernel=True),
        lambda x, w: ours.conv_transpose_fwd(x, w, stride=2, padding=1, output_padding=1)),
    "matmul": (((2, 3, 4), (4, 5), (5,), (3, 5)), lambda a, b, c, d: jax.nn.silu(2 * a @ b + 0.5 * d + c),
               lambda a, b, c, d: ours.matmul(a, b, bias=c, c=d, alpha=2.0, beta=0.5, activation="swish")),
    "matmul, transposed": (((4, 3), (2, 5, 4)), lambda a, b: a.T @ b.swapaxes(1, 2),
                           lambda a, b: ours.matmul(a, b, transpose_a=True, transpose_b=True)),
    "matmul, vectors": (((4,), (4, 3), (3,)), lambda a, b, c: a @ b @ c, lambda a, b, c: ours.matmul(ours.matmul(a, b), c)),
    "max_pool": ((_IMAGE,), lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 3, 2), (1, 1, 2, 2), ((0, 0),) * 2 + ((1, 1),) * 2),
                 lambda x: ours.max_pool_fwd(x, (3, 2), stride=2, padding=1)),
    "avg_pool": ((_IMAGE,), lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 1, 3, 2), (1, 1, 3, 2), "VALID") / 6,
                 lambda x: ours.avg_pool_fwd(x, (3, 2))),
    "layer_norm": ((_ROWS, (6,), (6,)), lambda x, g, b: normalised(x, -1) * g + b, lambda x, g, b: ours.layer_norm_fwd(x, g, b)[0]),
    "layer_norm, residual": ((_ROWS, (6,), (6,), _ROWS), lambda x, g, b, r: (normalised(x + r, -1) * g + b, x + r),
                             lambda x, g, b, r: ours.layer_norm_fwd(x, g, b, residual=r)[::3]),
    "rms_norm": ((_ROWS, (6,)), lambda x, g: x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * g,
                 lambda x, g: ours.rms_norm_fwd(x, g)[0]),
    "group_norm": ((_IMAGE, (4,), (4,)), lambda x, g, b: normalised(x.reshape(2, 2, 2, 7, 5), (2, 3, 4)).reshape(
        x.shape) * channels(g) + channels(b), lambda x, g, b: ours.group_norm_fwd(x, g, b, 2)[0]),
    "batch_norm": ((_IMAGE, (4,), (4,), _IMAGE), lambda x, g, b, r: jax.nn.relu(
        normalised(x, (0, 2, 3)) * channels(g) + channels(b) + r),
        lambda x, g, b, r: ours.batch_norm_train_fwd(x, g, b, residual=r, activation="relu")[0]),
    "batch_norm, frozen": ((_IMAGE, (4,), (4,)), lambda x, g, b: x / math.sqrt(2 + 1e-5) * channels(g) + channels(b),
                           lambda x, g, b: ours.batch_norm_infer(x, g, b, jnp.zeros(4), jnp.full(4, 2.0))),
    "softmax": ((_ROWS,), lambda x: jax.nn.softmax(x, 0), lambda x: ours.softmax_fwd(x, axis=0)),
    "log_softmax": ((_ROWS,), jax.nn.log_softmax, lambda x: ours.softmax_fwd(x, log=True)),
    "gelu": ((_ROWS,), lambda x: jax.nn.gelu(x, False), lambda x: ours.activation_fwd(x, "gelu")),
    "elu": ((_ROWS,), lambda x: jax.nn.elu(x, 0.5), lambda x: ours.activation_fwd(x, "elu", alpha=0.5)),
    "prelu": ((_ROWS, (6,)), lambda x, s: jnp.where(x > 0, x, s * x), lambda x, s: ours.activation_fwd(x, "prelu", slope=s)),
    "glu": ((_ROWS,), jax.nn.glu, ours.glu_fwd),
    "sdpa": (_QKV, attention, lambda q, k, v, b: ours.sdpa_fwd(q, k, v, bias=b)),
    "sdpa, causal": (_QKV, lambda *a: attention(*a, causal=True), lambda q, k, v, b: ours.sdpa_fwd(q, k, v, bias=b, causal=True)),
    "rope": (((2, 3, 5, 4),), lambda x: rotated(x, array(5, 2), array(5, 2, seed=1)),
             lambda x: ours.rope_fwd(x, array(5, 2), array(5, 2, seed=1))),
    "cross_entropy": (((3, 5),), lambda x: -(0.9 * jax.nn.log_softmax(x)[jnp.arange(3), TARGETS]
                                             + 0.1 * jax.nn.log_softmax(x).mean(1)).mean(),
                      lambda x: ours.cross_entropy_fwd(x, TARGETS, label_smoothing=0.1)[0]),
    "mse": ((_ROWS, _ROWS), lambda x, y: ((x - y) ** 2).mean(), ours.mse_loss_fwd),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name):
    shapes, theirs, mine = CASES[name]
    operands = [array(*shape, seed=i) for i, shape in enumerate(shapes)]
    assert_close(with_gradients(mine, *operands), with_gradients(theirs, *operands))
    assert sum(ran().values()) > 1  # forward and backward


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["conv, gelu", "matmul", "layer_norm", "sdpa", "batch_norm"])
def test_dtypes(name, dtype):
    shapes, theirs, mine = CASES[name]
    operands = [array(*shape, seed=i).astype(dtype) for i, shape in enumerate(shapes)]
    wide = with_gradients(theirs, *[x.astype("float64") for x in operands])
    assert_close(with_gradients(mine, *operands), jax.tree.map(lambda x: x.astype(dtype), wide), EPS[dtype])


@pytest.mark.parametrize("f, theirs", [(lambda x, w: ours.conv_fwd(x, w, padding=1), lambda x, w: lax.conv(x, w, (1, 1), "SAME")),
                                       (lambda x, w: ours.matmul(x[0, 0], w[0, 0, :, :3].T), lambda x, w: x[0, 0] @ w[0, 0, :, :3].T)])
def test_second_derivatives(f, theirs):
    def second(f):
        return jax.jit(jax.grad(lambda x, w: (jax.grad(lambda x: (f(x, w) ** 3).sum())(x) ** 2).sum(), (0, 1)))
    x, w = array(1, 2, 4, 3), array(2, 2, 3, 3)
    assert_close(second(f)(x, w), second(theirs)(x, w))


def test_what_is_not_asked_for_is_not_computed():
    jax.block_until_ready(jax.jit(jax.grad(lambda w, x: ours.conv_fwd(x, w).sum()))(array(2, 2, 3, 3), array(1, 2, 4, 4)))
    assert "conv_bwd_data" not in ran() and ran()["conv_bwd_filter"] == 1


def test_gradients_flow_through_the_first_result_alone():
    x = array(*_ROWS)
    assert not np.asarray(jax.grad(lambda x: ours.layer_norm_fwd(x)[2].sum())(x)).any()


# ---- vmap

FOLDED = {
    "conv_fwd": (lambda x, w: ours.conv_fwd(x, w, padding=1), (0, None), (2, 3, 2, 4, 4), (3, 2, 3, 3)),
    "conv_bwd_data": (lambda dy, w: ours.conv_bwd_data(dy, w, (3, 2, 4, 4), padding=1), (1, None), (3, 2, 3, 4, 4), (3, 2, 3, 3)),
    "conv_fwd, filters": (lambda x, w, b: ours.conv_fwd(x, w, b, stride=2, groups=2), (0, -1, 0),
                          (2, 3, 4, 5, 4), (6, 2, 3, 3, 2), (2, 6)),
    "conv_fwd, NHWC": (lambda x, w, b, r: ours.conv_fwd(x, w, b, layout="NHWC", residual=r), (None, 0, None, 1),
                       (3, 5, 4, 2), (2, 6, 3, 3, 2), (6,), (3, 2, 3, 2, 6)),
    "conv_bwd_data, filters": (lambda dy, w: ours.conv_bwd_data(dy, w, (3, 4, 4, 2), layout="NHWC"), (0, 0),
                               (2, 3, 2, 2, 5), (2, 5, 3, 3, 2)),
    "conv_bwd_filter": (lambda x, dy: ours.conv_bwd_filter(x, dy, (6, 2, 3, 3), groups=2), (0, 1), (2, 3, 4, 5, 4), (3, 2, 6, 3, 2)),
    "conv_bwd_filter, NHWC": (lambda x, dy: ours.conv_bwd_filter(x, dy, (6, 3, 3, 4), layout="NHWC"), (None, 0),
                              (3, 5, 4, 4), (2, 3, 3, 2, 6)),
    "matmul": (ours.matmul, (0, None), (2, 3, 4), (4, 5)),
    "layer_norm_fwd": (lambda x, g: ours.layer_norm_fwd(x, g, axis=0), (0, None), (2, 4), (4,)),
    "softmax_fwd": (lambda x: ours.softmax_fwd(x, axis=0), 1, (3, 2, 4)),
    "activation_fwd": (lambda x: ours.activation_fwd(x, "tanh"), -1, (3, 2)),
    "max_pool_fwd": (lambda x: ours.max_pool_fwd(x, 2, return_index=True), 0, (2, 2, 3, 4, 4)),
    "avg_pool_fwd": (lambda x: ours.avg_pool_fwd(x, 2), 0, (2, 2, 3, 4, 4)),
    "sdpa_fwd": (lambda q, k, v: ours.sdpa_fwd(q, k, v, return_lse=True), (0, 0, None), (2, 1, 2, 3, 4), (2, 1, 2, 3, 4), (1, 2, 3, 4)),
    "group_norm_fwd": (lambda x, g: ours.group_norm_fwd(x, g, None, 2), (0, None), (2, 2, 4, 3, 3), (4,)),
    "cross_entropy_fwd": (lambda x: ours.cross_entropy_fwd(x, TARGETS, reduction="none"), 0, (2, 3, 4)),
}
ONE_BY_ONE = {
    "conv_bwd_bias": (ours.conv_bwd_bias, 0, (2, 3, 2, 4, 4)),
    "matmul": (ours.matmul, (0, None), (2, 5), (5,)),
    "layer_norm_fwd": (ours.layer_norm_fwd, 0, (2, 3, 4), (2, 4)),
    "batch_norm_train_fwd": (lambda x: ours.batch_norm_train_fwd(x, None, None), 0, (2, 2, 3, 4, 4)),
    "cross_entropy_fwd": (lambda x: ours.cross_entropy_fwd(x, TARGETS), 0, (2, 3, 4)),
}


@pytest.mark.parametrize("calls, table, name", [*((1, FOLDED, name) for name in FOLDED), *((2, ONE_BY_ONE, name) for name in ONE_BY_ONE)])
def test_vmap(calls, table, name):
    f, axes, *shapes = table[name]
    operands = [array(*shape, seed=i) for i, shape in enumerate(shapes)]
    found = jax.block_until_ready(jax.jit(jax.vmap(f, axes))(*operands))
    assert ran() == {name.partition(",")[0]: calls}
    each = axes if isinstance(axes, tuple) else (axes,) * len(shapes)
    apart = [f(*[x if a is None else jnp.take(x, i, a) for x, a in zip(operands, each)]) for i in range(2)]
    assert_close(found, jax.tree.map(lambda *y: jnp.stack(y), *apart))


def test_gradients_of_each_sample():
    w, x = array(3, 2, 3, 3), array(2, 1, 2, 4, 4)

    def gradients(f):
        return jax.jit(jax.vmap(jax.grad(lambda w, x: (f(x, w) ** 2).sum(), (0, 1)), (None, 0)))(w, x)
    assert_close(gradients(ours.conv_fwd), gradients(lambda x, w: lax.conv(x, w, (1, 1), "VALID")))


# ---- bad input

@pytest.mark.parametrize("f, error, message", [
    (lambda x: ours.matmul(x, x), ValueError, r"matmul: a gives K=5 \(shape \(4, 5\)\), b gives K=4"),
    (lambda x: ours.matmul(x, x.T.astype("float32")), TypeError, "matmul: "),
    (lambda x: ours.matmul(x.astype("complex64"), x), TypeError, "complex64"),
    (lambda x: ours.matmul(x, x.T, out=x), TypeError, "matmul: out is not an argument in dnnkern.jax"),
    (lambda x: ours.matmul(x, x.T, algo="naive"), TypeError, "dispatch.prefer selects algorithms"),
    (lambda x: ours.matmul(x), TypeError, "matmul: missing a required argument: 'b'"),
    (lambda x: ours.matmul(x, x.T, activation=object()), TypeError, "matmul: activation is <object"),
    (lambda x: ours.softmax_fwd(x, axis=2), ValueError, "softmax_fwd: axis"),
    (lambda x: ours.batch_norm_train_fwd(x, None, None, x[0], x[0]), TypeError, "running_mean would be updated in place"),
    (lambda x: ours.max_pool_fwd(x[None, None], 9), ValueError, "max_pool_fwd: "),
    (lambda x: jax.grad(lambda x: ours.softmax_bwd(x, x).sum())(x), NotImplementedError, "softmax_bwd has no derivative in dnnkern.jax"),
    (lambda x: jax.grad(lambda w: ours.cross_entropy_fwd(x, jnp.array([0, 1, 2, 3]), weight=w)[0])(x[0]), NotImplementedError,
     "cross_entropy_fwd: weight has no gradient"),
])
@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_bad_input(f, error, message, jit):
    with pytest.raises(error, match=message):
        jit(f)(array(4, 5))
    assert not ran()


def test_forward_mode():
    x = array(4, 5)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(ours.softmax_fwd, (x,), (x,))


def test_a_name_that_there_is_not():
    with pytest.raises(AttributeError, match="module 'dnnkern.jax' has no attribute 'conv_forward'"):
        ours.conv_forward
    with pytest.raises(AttributeError, match="'adam_step'"):
        ours.adam_step


@pytest.mark.parametrize("error", [ValueError("no Köln"), KeyboardInterrupt(), SystemExit(3), MemoryError()])
def test_an_exception_under_the_callback(monkeypatch, error):
    """An error of XLA's, after which all goes on."""
    def fails(*_, **__):
        raise error
    f, x = jax.jit(lambda x: ours.matmul(x, x.T)), array(4, 5)
    monkeypatch.setattr(_call, "public", lambda name: fails)
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"dnnkern.jax: {type(error).__name__}: {error}"):
        jax.block_until_ready(f(x))
    monkeypatch.undo()
    assert_close(f(x), x @ x.T)


def test_donated_buffers():
    f = jax.jit(lambda x: ours.activation_fwd(x, "tanh"), donate_argnums=0)
    x = array(64, 64)
    expected = jnp.tanh(x)
    assert_close(f(x), expected)
    with pytest.raises((ValueError, RuntimeError), match="deleted"):
        ours.matmul(x, x)


def test_no_elements():
    assert ours.matmul(jnp.zeros((0, 3)), jnp.zeros((3, 2))).shape == (0, 2)
    assert not np.asarray(ours.matmul(jnp.zeros((2, 0)), jnp.zeros((0, 3)))).any()


def test_control_flow_and_remat():
    w, x = array(4, 4), array(3, 4)

    def f(product):
        def step(x, _):
            return jnp.tanh(product(x, w)), x.sum()
        return jax.jit(jax.grad(lambda x: lax.scan(jax.checkpoint(step), x, None, length=4)[0].sum()))(x)
    assert_close(f(ours.matmul), f(jnp.matmul))


def test_from_threads():
    f, found = jax.jit(lambda x: ours.softmax_fwd(ours.matmul(x, x))), {}

    def work(i):
        x = array(5, 5, seed=i)
        found[i] = all(np.allclose(f(x), jax.nn.softmax(x @ x)) for _ in range(5))
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == dict.fromkeys(range(4), True)


def test_a_call_as_text():
    call = _call.make_call("pad", ("x",), {"pads": ((1, 2),), "value": -math.inf, "mode": "constant", "n": np.int64(3), "d": jnp.bfloat16})
    assert _call.parsed(call.text().encode()) == call and dict(call.static)["d"] == "bfloat16" and call.prefer == "naive"


# ---- JAX's operations replaced

def replaced(f, *operands, eps=1e-11, **how):
    """Values and gradients as JAX's, without and with `enabled`."""
    expected = with_gradients(lambda *a: f(*a), *operands)
    ours.status(reset=True)
    with ours.enabled(**how):
        found = jax.block_until_ready(with_gradients(lambda *a: f(*a), *operands))
    assert_close(found, expected, eps)
    return ran()


CONVOLUTIONS = [
    dict(), dict(window_strides=(2, 3), padding=((1, 1), (0, 2))), dict(padding="SAME", window_strides=(2, 2)),
    dict(rhs_dilation=(2, 1), padding=((2, 1), (1, 0))), dict(feature_group_count=2, window_strides=(2, 1), padding="SAME"),
    dict(feature_group_count=4), dict(lhs_dilation=(2, 2), padding=((1, 2), (1, 1))), dict(padding=((-1, 0), (0, -1)))]


@pytest.mark.parametrize("numbers", [("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC"), ("NHWC", "OIHW", "NCHW"),
                                     ("CHWN", "IHWO", "CHWN")], ids="-".join)
@pytest.mark.parametrize("how", CONVOLUTIONS, ids=lambda how: "-".join(how) or "plain")
def test_convolution(how, numbers):
    sizes = {"N": 2, "C": 4, "H": 9, "W": 8}, {"O": 8, "I": 4 // how.get("feature_group_count", 1), "H": 3, "W": 2}
    x, w = (array(*[size[letter] for letter in letters]) for size, letters in zip(sizes, numbers))
    assert replaced(lambda x, w: lax.conv_general_dilated(x, w, **{"window_strides": (1, 1), "padding": "VALID", **how},
                                                          dimension_numbers=numbers), x, w)["conv_general_dilated"] == 3
    assert not went_back()


@pytest.mark.parametrize("f, op, shapes", [
    (lambda x, w: lax.conv(x, w, (2,), "SAME"), "conv_general_dilated", [(2, 3, 9), (4, 3, 3)]),
    (lambda x, w: lax.conv(x, w, (2, 1, 1), "SAME"), "conv_general_dilated", [(1, 2, 4, 3, 5), (3, 2, 3, 2, 2)]),
    (jax.vmap(lambda x, w: lax.conv(x, w, (1, 1), "SAME")), "conv_general_dilated", [(2, 1, 2, 4, 4), (2, 3, 2, 3, 3)]),
    (jnp.matmul, "dot_general", [(3, 4), (4, 5)]), (jnp.matmul, "dot_general", [(2, 3, 4), (2, 4, 5)]),
    (lambda a, b: jnp.einsum("bthd,bshd->bhts", a, b), "dot_general", [(2, 5, 3, 4), (2, 6, 3, 4)]),
    (lambda a, b: jnp.einsum("abcd,cde->eab", a, b), "dot_general", [(2, 5, 3, 4), (3, 4, 7)])])
def test_convolutions_and_products(f, op, shapes):
    assert replaced(f, *[array(*shape) for shape in shapes]) == {op: 3}
    assert not went_back()


@pytest.mark.parametrize("window, strides, shape", [
    ((1, 1, 3, 2), (1, 1, 2, 2), (2, 3, 7, 6)), ((1, 3, 2, 1), (1, 2, 2, 1), (2, 7, 6, 3)), ((1, 3, 1), (1, 3, 1), (2, 9, 3)),
    ((1, 1, 2, 2, 1), (1, 1, 2, 2, 1), (2, 2, 5, 4, 3)), ((2, 2, 2), (1, 2, 1), (4, 4, 5))], ids=str)
@pytest.mark.parametrize("padding", ["VALID", "SAME"])
def test_pooling(window, strides, shape, padding):
    x = array(*shape)
    assert replaced(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, window, strides, padding), x) == {
        "reduce_window_max": 1, "select_and_scatter_add": 2}
    assert replaced(lambda x: lax.reduce_window(x, 0.0, lax.add, window, strides, padding), x) == {"reduce_window_sum": 2}


@pytest.mark.parametrize("how", [
    {}, {"is_causal": True}, {"scale": 0.3}, {"local_window_size": (2, 1)}, {"key_value_seq_lengths": jnp.array([3, 7], jnp.int32)},
    {"mask": jnp.arange(7)[None, None, None] < jnp.array([7, 2])[:, None, None, None]}], ids=lambda how: "-".join(how) or "plain")
def test_attention(how):
    q, k, v = array(2, 6, 4, 8, dtype="float32"), array(2, 7, 2, 8, dtype="float32"), array(2, 7, 2, 8, dtype="float32", seed=1)
    assert replaced(lambda *a: jax.nn.dot_product_attention(*a, **how), q, k, v, eps=2e-5) == {"dot_product_attention": 2}


def test_attention_with_a_bias():
    shapes = (2, 6, 4, 8), (2, 7, 4, 8), (2, 7, 4, 8), (1, 4, 6, 7)
    q, k, v, b = (array(*shape, dtype="float32", seed=i) for i, shape in enumerate(shapes))
    assert replaced(lambda q, k, v, b: jax.nn.dot_product_attention(q, k, v, bias=b), q, k, v, b, eps=2e-5) == {"dot_product_attention": 2}


def test_what_goes_back_and_why():
    with ours.enabled():
        a = jnp.arange(6).reshape(2, 3)
        assert (np.asarray(a @ a.T) == [[5, 14], [14, 50]]).all()
        assert_close(jnp.outer(array(3), array(2)), np.outer(array(3), array(2)))
        lax.dot_general(array(3), array(2), (((), ()), ((), ()))).block_until_ready()
        lax.reduce_window(array(2, 3), jnp.inf, lax.min, (1, 2), (1, 1), "VALID").block_until_ready()
    assert sorted(went_back()) == [("dot_general", "an outer product"), ("dot_general", "dtype int64")] and not ran()


def test_enabling_and_disabling():
    f, x = jax.jit(jnp.matmul), array(3, 3)
    f(x, x).block_until_ready()
    assert not ran()
    ours.enable("product")
    f(x, x).block_until_ready()
    lax.conv(x[None, None], x[None, None], (1, 1), "SAME").block_until_ready()
    assert ran() == {"dot_general": 1}
    with ours.enabled(exclude="product"):
        f(x, x).block_until_ready()
    f(x, x).block_until_ready()
    assert ran() == {"dot_general": 2}
    ours.disable()
    ours.disable()
    f(x, x).block_until_ready()
    assert ran() == {"dot_general": 2}
    with pytest.raises(ValueError, match="enable: ops has 'produkt'; did you mean 'product'"):
        ours.enable("produkt")
    with pytest.raises(ValueError, match="enable: exclude has 'nothing'"):
        ours.enable(exclude=["nothing"])
    assert not ours.status(reset=True)[0].why and not ours.status()


def test_the_page():
    page = pathlib.Path(__file__).resolve().parent.parent / "docs" / "jax.md"
    with dispatch.prefer(None):
        found = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert found.attempted == 10 and not found.failed


# ---- XLA's interface

def header():
    found = list(pathlib.Path(jax.ffi.include_dir()).rglob("ffi/api/c_api.h"))
    return found[0].read_text()


def test_functions_of_the_interface():
    """Where the handler looks for them is where the header of this JAX has them."""
    table = re.search(r"struct XLA_FFI_Api {(.*?)};", header(), re.DOTALL)[1]
    names = re.findall(r"_XLA_FFI_API_STRUCT_FIELD\(XLA_FFI_(\w+)\)", table)
    assert [names.index(name) for name in ("Error_Create", "Stream_Get", "DeviceOrdinal_Get")] == [
        _xla._ERROR_CREATE, _xla._STREAM_GET, _xla._DEVICE_ORDINAL_GET]


def test_dtypes_of_the_interface():
    known = {int(number): name for name, number in re.findall(r"XLA_FFI_DataType_(\w+) = (\d+)", header())}
    short = {"bool": "PRED", "bfloat16": "BF16", "float8_e5m2": "F8E5M2", "float8_e4m3fn": "F8E4M3FN"}
    for number, dtype in _xla._DTYPES.items():
        assert known[number] == short.get(dtype, re.sub(r"[a-z]+", lambda word: {"int": "S"}.get(word[0], word[0][0].upper()), dtype))


def test_stream_and_device_of_a_call_on_a_gpu():
    """By an interface made here: the real one's has them on GPUs alone."""
    asked = []

    def answer(number):
        @_xla._Function
        def get(address):
            found = _xla._Get.from_address(address)
            asked.append((found.size, found.context))
            found.found = number
        return get
    functions = {_xla._STREAM_GET: answer(0x7f0012345678), _xla._DEVICE_ORDINAL_GET: answer(3)}
    table = (ctypes.c_void_p * 24)(*[ctypes.cast(functions[i], ctypes.c_void_p).value if i in functions else None for i in range(24)])
    assert _xla._stream(ctypes.addressof(table) - _xla._FUNCTIONS, 77) == (0x7f0012345678, 3)
    assert asked == [(32, 77)] * 2


def test_arrays_of_a_call_on_a_gpu():
    """They are arrays to the front end, of whatever device it has."""
    dims = np.array([4, 5]).tobytes()
    a, b = (_xla._on_gpu(11, address, dims, 0) for address in (0x7f0000001000, 0x7f0000002000))
    assert dnnkern.problem("matmul", a=a, b=b, transpose_b=True) == dnnkern.problem(
        "matmul", a=((4, 5), "float32"), b=((4, 5), "float32"), transpose_b=True)
    with pytest.raises(ValueError, match="matmul: a gives K=5"):
        dnnkern.matmul(a, b)


# ---- other processes

def program(text, *args, **environment):
    """What a program prints; it must end well."""
    tests = os.path.dirname(__file__)
    environment = os.environ | {"PYTHONPATH": os.path.dirname(tests), "DNNKERN_PREFER": "naive", **environment}
    done = subprocess.run([sys.executable, "-c", text, *args], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


KEPT = """
import sys, jax, jax.numpy as jnp, dnnkern.jax
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
if sys.argv[2] == "later":  # other calls first: what was kept must not depend on the order of a process
    dnnkern.jax.activation_fwd(jnp.ones(3), "tanh")
y = jax.jit(lambda x: dnnkern.jax.softmax_fwd(x, axis=0))(jnp.ones((4, 2)))
print(y.sum(), len(list(__import__("pathlib").Path(sys.argv[1]).iterdir())) > 0)
"""


def test_programs_that_are_kept_on_disk(tmp_path):
    assert program(KEPT, str(tmp_path), "now") == program(KEPT, str(tmp_path), "later") == "2.0 True\n"


SEVERAL = """
import jax, jax.numpy as jnp, numpy as np, dnnkern.jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()), ("d",))
made = np.random.default_rng(0)
x, w = jnp.asarray(made.normal(size=(4, 3)), "float32"), jnp.asarray(made.normal(size=(3, 5)), "float32")
expected, parts = np.asarray(x) @ np.asarray(w), jax.device_put(x, NamedSharding(mesh, P("d")))
dnnkern.jax.enable()
for f in (dnnkern.jax.matmul, jnp.matmul):
    of_parts = jax.shard_map(lambda x, w: f(x, w), mesh=mesh, in_specs=(P("d"), P()), out_specs=P("d"))
    for g in (f, of_parts):
        np.testing.assert_allclose(jax.jit(lambda x, w: g(x, w))(parts, w), expected, rtol=1e-5)
print(sum(row.calls for row in dnnkern.jax.status() if row.ours))
"""


def test_several_devices():
    assert program(SEVERAL, XLA_FLAGS="--xla_force_host_platform_device_count=2", JAX_PLATFORMS="cpu") == "8\n"


KERAS = """
import sys, numpy as np, keras
if sys.argv[1] == "ours":
    import dnnkern.jax
    dnnkern.jax.enable()
L = keras.layers
keras.utils.set_random_seed(0)
images = keras.Sequential([
    keras.Input((12, 12, 2)), L.Conv2D(8, 3, activation="relu"), L.MaxPooling2D(2), L.BatchNormalization(),
    L.DepthwiseConv2D(3, strides=2, padding="same"), L.Conv2DTranspose(4, 2, strides=2), L.AveragePooling2D(2, padding="same"),
    L.Flatten(), L.Dense(5, activation="softmax")])
words = keras.Input((6,))
h = L.Embedding(11, 8)(words)
h = L.LayerNormalization()(h + L.MultiHeadAttention(2, 4)(h, h, use_causal_mask=True))
text = keras.Model(words, L.Dense(5, activation="softmax")(L.LSTM(5)(h)))
made = np.random.default_rng(0)
x, t, y = made.normal(size=(24, 12, 12, 2)), made.integers(0, 11, (24, 6)), made.integers(0, 5, 24)
for model, x in ((images, x), (text, t)):
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    print(*model.fit(x, y, batch_size=8, epochs=2, verbose=0).history["loss"], model.evaluate(x, y, verbose=0),
          *model.predict(x, verbose=0)[::5].ravel())
if sys.argv[1] == "ours":
    assert not [row for row in dnnkern.jax.status() if not row.ours], dnnkern.jax.status()
    print(*sorted(row.op for row in dnnkern.jax.status()))
"""


def test_keras():
    if importlib.util.find_spec("keras") is None:  # importing it would choose a backend
        pytest.skip("keras is not installed")
    mine, theirs = (program(KERAS, who, KERAS_BACKEND="jax").splitlines() for who in ("ours", "theirs"))
    for found, expected in zip(mine, theirs):
        np.testing.assert_allclose([float(n) for n in found.split()], [float(n) for n in expected.split()], rtol=1e-4, atol=1e-6)
    assert mine[2].split() == ["conv_general_dilated", "dot_general", "dot_product_attention", "reduce_window_max", "reduce_window_sum",
                               "select_and_scatter_add"]
