"""``conv_general_dilated`` as `conv_fwd`, `conv_bwd_data` or `conv_bwd_filter`.

JAX has one operation for all three: the gradient of the data is a convolution of dilated images, that of the filter one whose filter is as
large as images. Which dimension is the batch, which the channels, is said by numbers, and changes in gradients.
"""
import math

import jax.numpy as jnp
import numpy as np
from jax import lax

from ._refused import Refused, math_of, run


class _Sizes:
    """The sizes of a convolution ``(N, C, in) * (O, I, filter) -> (N, O, out)``, one entry a spatial dimension."""

    def __init__(self, lhs, rhs, result, numbers):
        self.specs = lhs_spec, rhs_spec, out_spec = tuple(numbers)
        self.image, self.filter, self.out = ([a.shape[i] for i in spec[2:]]
                                             for a, spec in ((lhs, lhs_spec), (rhs, rhs_spec), (result, out_spec)))
        self.batch, self.channels = (lhs.shape[i] for i in lhs_spec[:2])
        self.outs = rhs.shape[rhs_spec[0]]
        # What has its channels last in memory stays so.
        self.last = lhs_spec[1] == len(lhs_spec) - 1 or out_spec[1] == len(out_spec) - 1
        self.layout = "NHWC" if self.last else "NCHW"
        self.result = result.shape

    def order(self, first, second, spatial):
        """The order of dimensions that this library has, of a batch, channels and the rest."""
        return (first, *spatial, second) if self.last else (first, second, *spatial)

    def shape(self, first, second, spatial):
        """The same for sizes."""
        return self.order(first, second, spatial)

    def arranged(self, x, spec, swapped=False):
        """An operand as this library has it; swapped: its batch as channels."""
        first, second, *spatial = spec
        return jnp.transpose(x, self.order(*((second, first) if swapped else (first, second)), spatial))

    def as_result(self, y, swapped=False):
        """A result as JAX wants it."""
        first, second, *spatial = self.specs[2]
        return jnp.transpose(y, np.argsort(self.order(*((second, first) if swapped else (first, second)), spatial)))


def convolution(name, lhs, rhs, result, *, window_strides, padding, lhs_dilation, rhs_dilation, dimension_numbers, feature_group_count,
                batch_group_count, precision, preferred_element_type, **_):
    """A function of the operands of ``conv_general_dilated``."""
    if lhs.dtype != rhs.dtype:
        raise Refused(f"dtypes {lhs.dtype} and {rhs.dtype}")
    if not 1 <= len(window_strides) <= 3:
        raise Refused(f"{len(window_strides)} spatial dimensions")
    sizes = _Sizes(lhs, rhs, result, dimension_numbers)
    how = {"layout": sizes.layout, "math": math_of(precision, lhs.dtype)}
    wide = np.dtype(result.dtype) if result.dtype != lhs.dtype else None
    # A filter that is larger than the result is another image: then this is a filter's gradient. Either way it would be right.
    of_filter = batch_group_count > 1 or feature_group_count == 1 and math.prod(sizes.filter) > math.prod(sizes.out)
    is_dilated, is_strided = set(lhs_dilation) != {1}, set(window_strides) != {1}
    if is_dilated and is_strided:
        raise Refused(f"window_strides {window_strides} with lhs_dilation {lhs_dilation}")
    arguments = name, sizes, how, padding, wide
    if of_filter and is_dilated:
        if batch_group_count > 1 or set(rhs_dilation) != {1}:
            raise Refused(f"lhs_dilation {lhs_dilation} with batch_group_count {batch_group_count} and rhs_dilation {rhs_dilation}")
        return _filter_of_transposed(*arguments, lhs_dilation)
    if of_filter:
        return _filter(*arguments, rhs_dilation, window_strides, batch_group_count)
    if is_dilated:
        return _data(*arguments, lhs_dilation, rhs_dilation, feature_group_count)
    return _forward(*arguments, window_strides, rhs_dilation, feature_group_count)


def _cast(y, wide):
    return y if wide is None else y.astype(wide)


def _cropped(padding):
    """(what is cut off images, as `lax.pad` has it, or None; padding that is not negative)."""
    cut = [(min(low, 0), min(high, 0), 0) for low, high in padding]
    return (cut if any(low or high for low, high, _ in cut) else None), tuple((max(low, 0), max(high, 0)) for low, high in padding)


def _crop(x, spec, cut):
    if cut is None:
        return x
    config = [(0, 0, 0)] * x.ndim
    for i, where in enumerate(spec[2:]):
        config[where] = cut[i]
    return lax.pad(x, jnp.zeros((), x.dtype), config)


def _forward(name, sizes, how, padding, wide, stride, dilation, groups):
    cut, padding = _cropped(padding)
    if wide is not None:
        how["out_dtype"] = wide.name
    how |= {"stride": tuple(stride), "dilation": tuple(dilation), "padding": padding, "groups": groups}

    def ours(x, w):
        x, w = sizes.arranged(_crop(x, sizes.specs[0], cut), sizes.specs[0]), sizes.arranged(w, sizes.specs[1])
        return sizes.as_result(run(name, "conv_fwd", {"x": x, "w": w}, **how))
    return ours


def _data(name, sizes, how, padding, wide, stride, dilation, groups):
    """Images dilated by the stride: the gradient of the data, or a transposed convolution. Filters are not reversed here."""
    pads = []
    for (low, _), s, d, n, r, p in zip(padding, stride, dilation, sizes.out, sizes.filter, sizes.image):
        before = d * (r - 1) - low
        after = s * (p - 1) + d * (r - 1) + 1 - n - before
        if before < 0 or after <= -s:
            raise Refused(f"padding {tuple(padding)} with lhs_dilation {tuple(stride)}")
        pads.append((before, max(after, 0)))
    outs = sizes.outs // groups
    how |= {"stride": tuple(stride), "dilation": tuple(dilation), "padding": tuple(pads), "groups": groups, "mode": "convolution",
            "x_shape": sizes.shape(sizes.batch, sizes.outs, sizes.out)}

    def ours(dy, w):
        o, i, *spatial = sizes.specs[1]
        w = jnp.transpose(w, (o, i, *spatial))
        w = w.reshape(groups, outs, *w.shape[1:]).swapaxes(1, 2).reshape(-1, outs, *sizes.filter)
        if sizes.last:
            w = jnp.moveaxis(w, 1, -1)
        return sizes.as_result(_cast(run(name, "conv_bwd_data", {"dy": sizes.arranged(dy, sizes.specs[0]), "w": w}, **how), wide))
    return ours


def _filter(name, sizes, how, padding, wide, stride, dilation, groups):
    """The gradient of the filter: the batch is where the channels are, and the filter is the gradient of the result."""
    pads, kept = [], []
    for (low, high), s, d, n, p, r in zip(padding, stride, dilation, sizes.image, sizes.filter, sizes.out):
        left = n + low + max(high, 0) - d * (r - 1) - 1 - s * (p - 1)  # which no window reaches: less than a stride of it may be there
        kept.append((low, 0 if left < s else high))
        pads.append((max(low, 0), max(high, 0)))
    cut, _ = _cropped(kept)
    how |= {"stride": tuple(stride), "dilation": tuple(dilation), "padding": tuple(pads), "groups": groups,
            "w_shape": sizes.shape(sizes.outs, sizes.batch // groups, sizes.out)}

    def ours(x, dy):
        x = sizes.arranged(_crop(x, sizes.specs[0], cut), sizes.specs[0], swapped=True)
        dy = sizes.arranged(dy, sizes.specs[1], swapped=True)
        return sizes.as_result(_cast(run(name, "conv_bwd_filter", {"x": x, "dy": dy}, **how), wide), swapped=True)
    return ours


def _filter_of_transposed(name, sizes, how, padding, wide, stride):
    """The gradient of a transposed convolution's filter: what is dilated takes the part of the result's gradient."""
    pads = []
    for (low, _), s, n, p, r in zip(padding, stride, sizes.filter, sizes.image, sizes.out):
        before = r - 1 - low
        after = s * (p - 1) + r - before - n
        if before < 0 or after <= -s:
            raise Refused(f"padding {tuple(padding)} with lhs_dilation {tuple(stride)}")
        pads.append((before, max(after, 0)))
    how |= {"stride": tuple(stride), "padding": tuple(pads), "mode": "convolution",
            "w_shape": sizes.shape(sizes.batch, sizes.outs, sizes.out)}

    def ours(dy, x):
        x, dy = sizes.arranged(x, sizes.specs[1], swapped=True), sizes.arranged(dy, sizes.specs[0], swapped=True)
        return sizes.as_result(_cast(run(name, "conv_bwd_filter", {"x": x, "dy": dy}, **how), wide))
    return ours
