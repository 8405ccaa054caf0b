"""The layout "channels_last": sizes of NCHW, memory of NHWC. Beside NHWC of permuted views, bit for bit."""
import functools

import numpy as np
import pytest
from bench.pretend import pretended_gpu

import dnnkern
from dnnkern import dispatch
from dnnkern.device import HOST_MEMORY
from dnnkern.host.last import to_first, to_last


def image(*shape, dtype="float32", seed=0):
    """Small integers with channels last, of a shape with channels first."""
    return first(np.random.default_rng(seed).integers(-3, 4, to_last(shape)).astype(dtype))


def first(a):
    return a.transpose(to_first(range(a.ndim)))


def last(a):
    return a.transpose(to_last(range(a.ndim)))


pytestmark = pytest.mark.skipif(not HOST_MEMORY, reason="of NumPy's arrays")

X, W, DY = (2, 4, 5, 3), (6, 4, 2, 2), (2, 6, 4, 2)
CHANNELS = [np.arange(1, 5, dtype=np.float32) for _ in range(2)]
WINDOW = {"window": 2, "stride": 2}
INDEX = functools.partial(dnnkern.max_pool_fwd, return_index=True, **WINDOW)

# Name -> arrays with as many dimensions as the first, other arguments, keywords, index of the argument that is a shape.
CALLS = {
    "conv_fwd": ((X, W), (np.arange(6, dtype=np.float32),), {"residual": DY}, None),
    "conv_bwd_data": ((DY, W), (X,), {}, 0),
    "conv_bwd_filter": ((X, DY), (W,), {}, 0),
    "conv_bwd_bias": ((DY,), (), {}, None),
    "conv_transpose_fwd": ((DY, W), (), {"stride": 2, "output_padding": 1}, None),
    "max_pool_fwd": ((X,), (), {**WINDOW, "return_index": True}, None),
    "avg_pool_fwd": ((X,), (), WINDOW, None),
    "avg_pool_bwd": (((2, 4, 2, 1),), (X,), WINDOW, 0),
    "adaptive_avg_pool_fwd": ((X,), (2,), {}, None),
    "adaptive_max_pool_fwd": ((X,), ((2, 3),), {"return_index": True, "index_dtype": "int64"}, None),
    "batch_norm_train_fwd": ((X,), CHANNELS, {"residual": X}, None),
    "batch_norm_infer": ((X,), CHANNELS + CHANNELS, {}, None),
    "batch_norm_bwd": ((X, X), CHANNELS + CHANNELS[:1], {"residual": True}, None),
    "batch_norm_stats": ((X,), (), {}, None),
    "instance_norm_fwd": ((X,), CHANNELS, {}, None),
    "group_norm_fwd": ((X,), (*CHANNELS, 2), {}, None),
    "lrn_fwd": ((X,), (), {"size": 3}, None),
    "resample_fwd": ((X,), ((4, 7),), {"mode": "bilinear"}, None),
    "resample_bwd": (((2, 4, 4, 7),), (X,), {"mode": "bilinear"}, 0),
}


def results(name, of, layout, shape_of=tuple):
    """What a call returns, each array of its own as `of` views it."""
    shapes, more, keywords, shape = CALLS[name]
    arrays = [of(image(*s, seed=k)) for k, s in enumerate(shapes)]
    keywords = {k: of(image(*v, seed=9)) if k == "residual" and v is not True else v for k, v in keywords.items()}
    more = [shape_of(a) if k == shape else a for k, a in enumerate(more)]
    found = getattr(dnnkern, name)(*arrays, *more, layout=layout, **keywords)
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("name", CALLS)
def test_equals_permuted_views(name):
    with dispatch.prefer("naive"):
        ours = results(name, lambda a: a, "channels_last")
        theirs = results(name, last, "NHWC", to_last)
    for mine, other in zip(ours, theirs, strict=True):
        other = first(other) if other.ndim == 4 else other
        assert mine.strides == other.strides and mine.shape == other.shape and mine.dtype == other.dtype
        assert np.array_equal(mine, other)


def test_gradients_of_maxima():
    with dispatch.prefer("naive"):
        y, index = INDEX(image(*X), layout="channels_last")
        dx = dnnkern.max_pool_bwd(y, index, X, **WINDOW, layout="channels_last")
        y, index = INDEX(last(image(*X)), layout="NHWC")
        other = dnnkern.max_pool_bwd(y, index, to_last(X), **WINDOW, layout="NHWC")
    assert dx.strides == first(other).strides and np.array_equal(dx, first(other))


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 3, 2, 2), (1, 1, 4, 4), (0, 3, 2, 4)], ids=str)
def test_other_images(shape):
    with dispatch.prefer("naive"):
        y = dnnkern.avg_pool_fwd(image(*shape), 1, layout="channels_last")
    assert np.array_equal(y, image(*shape)) and y.strides == first(np.empty(to_last(shape), np.float32)).strides


def test_into_what_is_given():
    """`out` may lie anywhere, and be the operand that a sum is added to."""
    x, w = image(*X), image(*W, seed=1)
    with dispatch.prefer("naive"):
        y = dnnkern.conv_fwd(x, w, layout="channels_last")
        packed = np.empty(DY, np.float32)
        assert dnnkern.conv_fwd(x, w, layout="channels_last", out=packed) is packed and np.array_equal(packed, y)
        twice = y.copy(order="K")
        dnnkern.conv_fwd(x, w, beta=1.0, layout="channels_last", out=twice)
    assert np.array_equal(twice, 2 * y)


def test_arrays_in_any_order_of_memory():
    x, w = image(*X), image(*W, seed=1)
    with dispatch.prefer("naive"):
        y = dnnkern.conv_fwd(np.ascontiguousarray(x), np.ascontiguousarray(w), layout="channels_last")
        assert np.array_equal(y, dnnkern.conv_fwd(x, w, layout="channels_last")) and y.strides == first(last(y).copy()).strides


@pytest.mark.parametrize("call, error, text", [
    (lambda: dnnkern.conv_fwd(image(2, 4, 5, 5), image(6, 3, 2, 2), layout="channels_last"), ValueError,
     r"conv_fwd: w has 3 input channels per group, x gives 4"),
    (lambda: dnnkern.conv_fwd(image(2, 4, 5, 5), image(6, 4, 2, 2), layout="channels_last", out=np.empty((2, 6, 5, 4), np.float32)),
     ValueError, r"\(2, 6, 5, 4\)"),
    (lambda: dnnkern.softmax_fwd(image(2, 3, 4, 4), axis=1, layout="channels_last"), TypeError, "layout"),
    (lambda: dnnkern.im2col(image(2, 3, 4, 4), 2, layout="channels_last"), ValueError, "channels_last"),
    (lambda: dnnkern.avg_pool_fwd(image(3, 4), 2, layout="channels_last"), ValueError, r"x has shape \(3, 4\)")])
def test_bad_input(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_arrays_that_are_always_packed():
    from numba import cuda
    with pytest.raises(TypeError, match="avg_pool_fwd: layout is 'channels_last', and numba arrays are packed; expected layout 'NHWC'"):
        dnnkern.avg_pool_fwd(cuda.to_device(np.ones((1, 3, 4, 4), np.float32)), 2, layout="channels_last")


def test_sites_give_channels_last():
    """On a GPU: of results that a function generated for the call allocates."""
    torch = pytest.importorskip("torch")
    x, w = (torch.ones(s).to(memory_format=torch.channels_last) for s in (X, W))
    with pretended_gpu():
        found = [dnnkern.conv_fwd(x, w, layout="channels_last") for _ in range(4)]
    assert {(tuple(y.shape), y.stride()) for y in found} == {(DY, (48, 1, 12, 6))}
