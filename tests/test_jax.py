"""`dnnkern.jax`: functions inside of jit, grad and vmap beside JAX's own.

Values and gradients are JAX's in float64, or in a narrower dtype within its rounding. Everything runs on the simplest algorithms: which one
runs is not what is tested here.
"""
import math
import threading

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

import dnnkern.jax  # noqa: E402
from dnnkern import dispatch  # noqa: E402
from dnnkern.jax import _call  # noqa: E402

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
