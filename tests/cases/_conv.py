"""What the cases of the convolutions share: one call in any direction, its data, and the definition in float64.

Arrays are named by their roles in the forward direction: x the image, w the filter, y the result; in a backward direction one of them is
what is computed and another the gradient it is computed from.
"""
import itertools
import math
from dataclasses import dataclass, field, replace

import numpy as np
from activations import ACTIVATIONS

from . import EXACT, LARGEST, RANGE, ROUNDOFF, Case, Place, coherent, lay, rounded, rounding_error, saturated
from ._programs import PROGRAMS

SHORT = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "i8", "int32": "i32", "float8_e4m3fn": "e4m3",
         "float8_e5m2": "e5m2"}
OPERANDS = {"conv_fwd": "xw", "conv_bwd_data": "yw", "conv_bwd_filter": "xy"}
OUTPUT = {"conv_fwd": "y", "conv_bwd_data": "x", "conv_bwd_filter": "w"}
STEP = 2.0**-8  # of finite differences; the operations are linear
# How much larger Winograd's rounding errors are than the definition's, by extent of a tile and taps, or taps of a gradient's filter:
# products of the root sums of squares of the transforms' rows, see docs/notes/winograd.md; test_winograd.py computes them.
WINOGRAD = {("conv_fwd", 4, 3): 1.7, ("conv_fwd", 6, 3): 31.5, ("conv_fwd", 6, 5): 19.8, ("conv_bwd_filter", 4, 3): 2.0,
            ("conv_bwd_filter", 6, 3): 24.2, ("conv_bwd_filter", 6, 5): 45.1}


@dataclass(frozen=True)
class Conv(Case):
    """One call. `size` is (N, C, *spatial) of the image whatever the layout; `lay` has keywords of `lay` by array; `transposed`: the call
    is conv_transpose_fwd, which alone has an epilogue in the direction conv_bwd_data."""
    id: str
    op: str
    size: tuple
    k: int
    filter: tuple
    dtype: str = "float32"
    layout: str = "NCHW"
    stride: object = 1
    padding: object = 0
    dilation: object = 1
    groups: int = 1
    mode: str = "cross_correlation"
    dtype_w: str | None = None
    out_dtype: str | None = None
    bias: bool = False
    bias_dtype: str | None = None
    residual: bool = False
    residual_dtype: str | None = None
    alpha: float = 1.0
    beta: float = 0.0
    activation: str | None = None
    math: str | None = None
    transposed: bool = False
    wide_values: bool = False    # int8: values so large that many int8 results saturate
    program: str | None = None   # one of `PROGRAMS`
    lay: dict = field(default_factory=dict, hash=False)

    # ---- shapes

    @property
    def dims(self):
        return len(self.size) - 2

    def _each(self, value):
        return value if isinstance(value, tuple) else (value,) * self.dims

    @property
    def pads(self):
        padding = self._each(self.padding)
        padding = (padding,) if len(padding) > self.dims else padding
        return tuple(p if isinstance(p, tuple) else (p, p) for p in padding)

    @property
    def extents(self):
        """Of y."""
        rows = zip(self.size[2:], self.filter, self._each(self.stride), self.pads, self._each(self.dilation))
        return tuple((n + sum(p) - d * (r - 1) - 1) // s + 1 for n, r, s, p, d in rows)

    def shape(self, role):
        """In the layout's order."""
        outer, channels, spatial = {"x": (self.size[0], self.size[1], self.size[2:]), "y": (self.size[0], self.k, self.extents),
                                    "w": (self.k, self.size[1] // self.groups, self.filter)}[role]
        return (outer, *spatial, channels) if self.layout == "NHWC" else (outer, channels, *spatial)

    @property
    def output(self):
        return OUTPUT[self.op]

    @property
    def output_dtype(self):
        return self.out_dtype or ("int32" if self.dtype == "int8" else "bfloat16" if self.dtype in LARGEST else self.dtype)

    @property
    def length(self):
        """Of the sums."""
        taps = math.prod(self.filter)
        return {"conv_fwd": self.size[1] // self.groups * taps, "conv_bwd_data": self.k // self.groups * taps,
                "conv_bwd_filter": self.size[0] * math.prod(self.extents)}[self.op]

    def inputs(self):
        first, second = OPERANDS[self.op]
        places = {first: self._place(first, self.shape(first), self.dtype),
                  second: self._place(second, self.shape(second), self.dtype_w or self.dtype)}
        if self.op != "conv_bwd_filter":
            addend = "float32" if self.output_dtype == "int8" or self.output_dtype in LARGEST else self.output_dtype
            channels = self.k if self.op == "conv_fwd" else self.size[1]
            places["bias"] = self._place("bias", (channels,), self.bias_dtype or addend) if self.bias else None
            places["residual"] = self._place("residual", self.shape(self.output), self.residual_dtype or addend) if self.residual else None
        places["prior"] = self.outputs()[self.output] if self.beta else None
        if self.fused:
            shape, last = self.shape(self.output), self.layout == "NHWC"
            channels = shape[-1] if last else shape[1]
            shapes = {"scalar": (1,), "column": (channels,) if last else (channels, *(1,) * self.dims), "matrix": shape,
                      "row": (*shape[:-1], 1) if last else (shape[0], 1, *shape[2:])}
            places |= {name: self._place(name, *reversed(p)) for name, p in self.fused.places(self.output_dtype, shapes.get).items()}
        return places

    @property
    def fused(self):
        return PROGRAMS.get(self.program)

    @property
    def compute(self):
        """Of the program."""
        return "float64" if self.dtype == "float64" else "float32"

    def outputs(self):
        places = {self.output: self._place(self.output, self.shape(self.output), self.output_dtype)}
        for k in range(1, self.fused.sides + 1 if self.fused else 1):
            places[f"y{k}"] = self._place(f"y{k}", self.shape(self.output), self.fused.side_dtype(self.compute))
        return places

    def in_place(self):
        return {self.output: "prior"} if self.beta else {}

    def _place(self, name, shape, dtype) -> Place:
        return lay(shape, dtype, **self.lay.get(name, {}))

    @property
    def work(self):
        return self.outputs()[self.output].size * (self.length + 8)

    # ---- the library's side

    @property
    def output_padding(self):
        rows = zip(self.size[2:], self.extents, self.filter, self._each(self.stride), self.pads, self._each(self.dilation))
        return tuple(n - ((p - 1) * s + d * (r - 1) + 1 - sum(pads)) for n, p, r, s, pads, d in rows)

    def _window(self):
        return self.stride, self.padding, self.dilation, self.groups, self.layout

    def problem(self):
        from dnnkern.host.tensor import Tensor
        plain = self._plain_problem()
        if not self.fused:
            return plain
        tensors, sides = ({name: p and Tensor(p.shape, p.strides, p.dtype, p.alignment) for name, p in places.items()}
                          for places in (self.inputs(), self.outputs()))
        result, *sides = sides.values()
        program, extras = self.fused.problem_parts(self.compute, self.output_dtype, tensors, sides, result.shape)
        return replace(plain, program=program, extras=extras)

    def _plain_problem(self):
        from dnnkern.conv import _calls
        from dnnkern.host.tensor import Tensor

        def tensor(p):
            return p and Tensor(p.shape, p.strides, p.dtype, p.alignment)

        places = {name: tensor(p) for name, p in self.inputs().items()}
        out = tensor(self.outputs()[self.output])
        first, second = OPERANDS[self.op]
        if self.op == "conv_bwd_filter":
            tensors = places["x"], places["y"], places["prior"]
        else:
            tensors = places[first], places[second], places["bias"], places["residual"], places["prior"]
        flags = self.alpha != 1, self.beta != 0
        stride, padding, dilation, groups, layout = self._window()
        if self.op == "conv_fwd":
            return _calls.make_fwd(tensors, out, stride, padding, dilation, groups, layout, self.mode, self.activation, self.math,
                                   self.out_dtype, *flags)
        if self.transposed:
            return _calls.make_transposed(tensors, out, stride, padding, self.output_padding, dilation, groups, layout, self.activation,
                                          self.math, self.out_dtype, *flags)
        make = _calls.make_bwd_data if self.op == "conv_bwd_data" else _calls.make_bwd_filter
        return make(tensors, out, self.shape(self.output), stride, padding, dilation, groups, layout, self.mode, self.math, *flags)

    def call(self, arrays, out=None, **tail):
        import dnnkern
        if self.fused:
            return self.call_problem(arrays, out, (self.alpha, self.beta, *self.fused.numbers), tail)
        stride, padding, dilation, groups, layout = self._window()
        window = dict(stride=stride, padding=padding, dilation=dilation, groups=groups, layout=layout)
        common = dict(alpha=self.alpha, beta=self.beta, math=self.math, out=out[0] if isinstance(out, tuple) else out, **tail)
        first, second = OPERANDS[self.op]
        if self.op == "conv_bwd_data" and not self.transposed:
            return dnnkern.conv_bwd_data(arrays["y"], arrays["w"], self.shape("x"), mode=self.mode, **window, **common)
        if self.op == "conv_bwd_filter":
            return dnnkern.conv_bwd_filter(arrays["x"], arrays["y"], self.shape("w"), mode=self.mode, **window, **common)
        more = dict(residual=arrays["residual"], activation=self.activation, out_dtype=self.out_dtype, **window, **common)
        if self.transposed:
            return dnnkern.conv_transpose_fwd(arrays["y"], arrays["w"], arrays["bias"], output_padding=self.output_padding, **more)
        return dnnkern.conv_fwd(arrays["x"], arrays["w"], arrays["bias"], mode=self.mode, **more)

    # ---- data

    @property
    def exact(self):
        return ACTIVATIONS[self.activation or "identity"][2] and (not self.fused or self.fused.exact)

    @property
    def reached(self):
        """The share of the results that some product is part of: others see padding alone, or no window."""
        share, which = 1.0, {"conv_fwd": 1, "conv_bwd_data": 0, "conv_bwd_filter": 2}[self.op]
        rows = zip(self.size[2:], self.extents, self.filter, self._each(self.stride), self.pads, self._each(self.dilation))
        for n, out, taps, s, pads, d in rows:
            met = {(at, q, r) for q in range(out) for r in range(taps) if 0 <= (at := q * s + r * d - pads[0]) < n}
            share *= len({triple[which] for triple in met}) / max(1, (n, out, taps)[which])
        return share

    @property
    def trivial(self):
        empty = any(p is not None and not p.size for name, p in self.inputs().items() if name in "xwy")
        return (empty or self.reached < 0.2) and not (self.bias or self.residual or self.beta)

    def values(self, mode):
        rng = np.random.default_rng(list(self.id.encode()) + [len(self.op)])
        values = self._exact_values(rng) if mode == "exact" else self._float_values(rng)
        return {name: None if p is None else coherent(values[name], p) for name, p in self.inputs().items()}

    def _exact_values(self, rng):
        """Integers so small that sums of all their products, in any order and split anyhow, are exact in accumulator and output.

        The budget is what the output can hold; a half goes to the products, an eighth each to bias, residual and former output. Where the
        sums are longer than the products' budget, the second operand has as many nonzeros in each as it allows, at random places.
        """
        places, dtypes = self.inputs(), [self.bias_dtype, self.residual_dtype]
        accumulator = {"int8": "int32", "float64": "float64"}.get(self.dtype, "float32")
        budget = min(EXACT[self.output_dtype], EXACT[accumulator], *(EXACT[d] for d in dtypes if d), 2**24)
        products = budget // 2 / max(abs(self.alpha), 1)
        top = 1
        while self.length and (top + 1)**2 * self.length <= products and top < (127 if self.dtype == "int8" else 4):
            top += 1
        if self.wide_values:
            top, products = 8, 2**31
        nonzeros = int(products // top**2)
        first, second = OPERANDS[self.op]
        values = {}
        for name, place in places.items():
            if place is not None and not (self.fused and name in self.fused.names):
                factor = max(abs(self.beta), 1) if name == "prior" else 1
                bound = top if name in (first, second) else max(1, min(int(budget // 8 / factor), 50))
                values[name] = rng.integers(-bound, bound + 1, place.shape).astype(np.float64)
        if self.fused:
            values |= self.fused.exact_values(rng, places)
        if nonzeros < self.length:
            values[second] = self._thinned(rng, values[second], second, nonzeros)
        if self.length > 16:  # results that lean to one side are less often zero
            values[first] = np.where(rng.random(values[first].shape) < 0.25, -np.abs(values[first]), np.abs(values[first]))
        return values

    def _thinned(self, rng, values, role, nonzeros):
        """At most so many nonzeros in what one sum reads of the second operand."""
        a = self._canonical(values, role)
        if self.op == "conv_fwd":
            a = a.reshape(self.k, -1)
        elif self.op == "conv_bwd_filter":
            a = np.moveaxis(a, 1, 0).reshape(self.k, -1)
        else:
            a = np.moveaxis(a.reshape(self.groups, self.k // self.groups, *a.shape[1:]), 2, 1)
            moved, a = a.shape, a.reshape(a.shape[0] * a.shape[1], -1)
        a = np.where(np.argsort(np.argsort(rng.random(a.shape), axis=1), axis=1) < nonzeros, a, 0)
        spatial = self._three(self.extents if role == "y" else self.filter, 1)
        if self.op == "conv_fwd":
            a = a.reshape(self.k, -1, *spatial)
        elif self.op == "conv_bwd_filter":
            a = np.moveaxis(a.reshape(self.k, self.size[0], *spatial), 0, 1)
        else:
            a = np.moveaxis(a.reshape(moved), 1, 2).reshape(self.k, -1, *spatial)
        return self._from_canonical(a, role)

    def _float_values(self, rng):
        """Normal numbers with an offset, scaled so that results are of order 1 to 10 and of both signs."""
        values, (first, second) = self.fused.float_values(rng, self.inputs()) if self.fused else {}, OPERANDS[self.op]
        for name, place in self.inputs().items():
            if place is None or name in values:
                continue
            if place.dtype in RANGE:
                bound = {"float16": 15, "int8": 6}.get(self.output_dtype, 127)
                values[name] = rng.integers(-bound, bound + 1, place.shape).astype(np.float64)
                continue
            x = rng.standard_normal(place.shape)
            if name == first:
                x = (x + 0.5) / max(self.length, 1)**0.5
            elif name == second:
                x = x + (rng.integers(0, 3, place.shape) > 0) - 0.5
            values[name] = rounded(x, place.dtype)
        return values

    # ---- the definition

    def _three(self, values, missing):
        return (missing,) * (3 - self.dims) + tuple(values)

    def _canonical(self, values, role):
        """(outer, channels, d, h, w) from the layout's order."""
        a = np.moveaxis(values, -1, 1) if self.layout == "NHWC" else values
        return a.reshape(*a.shape[:2], *self._three(a.shape[2:], 1))

    def _from_canonical(self, a, role):
        shape = self.shape(role)
        if self.layout == "NHWC":
            a = np.moveaxis(a, 1, -1)
        return a.reshape(shape)

    def linear(self, x=None, w=None, y=None):
        """The sums of products alone, of arrays in the layout's order: of y, of x or of w, whichever is missing."""
        g, pads = self.groups, self._three(self.pads, (0, 0))
        strides, dilations = self._three(self._each(self.stride), 1), self._three(self._each(self.dilation), 1)
        n, c, k = self.size[0], self.size[1], self.k
        image, taps, out = (self._three(v, 1) for v in (self.size[2:], self.filter, self.extents))
        padded = np.zeros((n, c, *(size + sum(p) for size, p in zip(image, pads))))
        inside = (..., *(slice(before, before + size) for (before, _), size in zip(pads, image)))
        if x is not None:
            padded[inside] = self._canonical(x, "x")
        filters = np.zeros((k, c // g, *taps)) if w is None else self._canonical(w, "w")
        result = np.zeros((n, k, *out)) if y is None else self._canonical(y, "y")
        pixels = math.prod(out)
        result = result.reshape(n, g, k // g, pixels)
        for tap in itertools.product(*map(range, taps)):
            seen = (..., *(slice(t * d, t * d + (size - 1) * s + 1, s) for t, d, s, size in zip(tap, dilations, strides, out)))
            at = tuple(size - 1 - t for size, t in zip(taps, tap)) if self.mode == "convolution" else tap
            f = filters[(..., *at)].reshape(g, k // g, c // g)
            if w is None:
                patch = padded[seen].reshape(n, g, c // g, pixels)
                filters[(..., *at)] = np.matmul(result, np.swapaxes(patch, -1, -2)).sum(0).reshape(k, c // g)
            elif x is None:
                padded[seen] += np.matmul(np.swapaxes(f, -1, -2), result).reshape(padded[seen].shape)
            else:
                result += np.matmul(f, padded[seen].reshape(n, g, c // g, pixels))
        if w is None:
            return self._from_canonical(filters, "w")
        return self._from_canonical(padded[inside] if x is None else result.reshape(n, k, *out), "x" if x is None else "y")

    def reference(self, values, tensor_cores=False):
        first, second = OPERANDS[self.op]
        product = self.linear(**{first: values[first], second: values[second]})
        magnitude = self.linear(**{first: np.abs(values[first]), second: np.abs(values[second])})
        accumulator = ROUNDOFF["float64" if self.dtype == "float64" else "float32"]
        # any order of summation, errors of random sign
        error = 0.0 if self.dtype == "int8" else accumulator * min(self.length, 8 * self.length**0.5)
        if self.math == "tf32" and self.dtype == "float32":
            error += 2 * ROUNDOFF["tf32"]
        if tensor_cores and self.dtype.startswith("float8"):
            error += 4 * 2.0**-13  # four sums of 32 products to each float32 addition, cut off after 13 bits
        if self.math == "fast":
            error *= 10
        z, bound = self.alpha * product, abs(self.alpha) * error * magnitude
        sizes = np.abs(z)
        for factor, addend in ((self.beta, values.get("prior")), (1.0, values.get("residual")), (1.0, self._bias(values))):
            if addend is not None and factor:
                z = z + factor * addend
                sizes = sizes + np.abs(factor * addend)
        plain = self.alpha == 1 and not (self.beta or self.bias or self.residual)
        if not (plain and self.dtype == "int8" and self.output_dtype == "int32"):
            bound = bound + 4 * accumulator * sizes
        function, slope, is_exact = ACTIVATIONS[self.activation or "identity"]
        result = function(z)
        bound = slope * bound
        if not is_exact:
            bound = bound + 8 * accumulator * (1 + np.abs(z))
        results = {self.output: (result, bound)}
        if self.fused:
            results[self.output], sides = self.fused.reference(result, bound, values, accumulator)
            results |= {f"y{k}": side for k, side in enumerate(sides, 1)}
        dtypes = {name: place.dtype for name, place in self.outputs().items()}
        return ({name: saturated(y, dtypes[name]) for name, (y, _) in results.items()},
                {name: bound + rounding_error(y, dtypes[name]) for name, (y, bound) in results.items()})

    def winograd_error(self, values, tile):
        """{output: what transforms of tiles of `tile` x `tile` inputs add to the bound of the error}.

        An element's error is made of all products in its tile, not of its own alone. So the second operand counts with its largest tap, the
        result with the largest magnitude of a neighbour in the tile. Channels' errors have random signs: four times the root of their sum
        of squares.
        """
        first, second = OPERANDS[self.op]
        backward = self.op == "conv_bwd_filter"
        a, b = np.abs(values[first]), self._canonical(np.abs(values[second]), second)
        if backward:
            side = tile - self.filter[0] + 1
            magnitude = self.linear(**{first: a, second: self._from_canonical(_largest_near(b, side - 1), second)})
            sums = self.size[0] * math.prod(-(-e // side) for e in self.extents)
        else:
            spread = np.broadcast_to(b.max((2, 3, 4), keepdims=True), b.shape)
            magnitude = self.linear(**{first: a, second: self._from_canonical(spread, second)})
            sums = values[first].shape[-1 if self.layout == "NHWC" else 1]
        taps = self.filter[0]
        reach = taps if backward else tile - taps
        magnitude = self._from_canonical(_largest_near(self._canonical(magnitude, self.output), reach), self.output)
        unit = ROUNDOFF["float32"] + (2 * ROUNDOFF["tf32"] if self.math == "tf32" and self.dtype == "float32" else 0)
        factor = WINOGRAD["conv_bwd_filter" if backward else "conv_fwd", tile, taps]
        _, slope, _ = ACTIVATIONS[self.activation or "identity"]
        return {self.output: slope * abs(self.alpha) * 4 * factor * unit / sums**0.5 * magnitude}

    def _bias(self, values):
        b = values.get("bias")
        return b if b is None or self.layout == "NHWC" else b.reshape(-1, *(1,) * self.dims)

    # ---- finite differences

    @property
    def gradient(self):
        """For backward cases with a few elements and nothing but the gradient in them."""
        small = self.outputs()[self.output].size <= 64 and self.work <= 10**4
        plain = self.alpha == 1 and not (self.beta or self.bias or self.residual or self.activation)
        return self._differences if self.op != "conv_fwd" and small and plain else None

    def _differences(self, values):
        """d sum(y * dy) / d element, by differences of the forward definition."""
        rng, given, dy = np.random.default_rng(3), dict(values), values["y"]
        given[self.output] = rng.standard_normal(self.shape(self.output))
        analytic = self.linear(**{name: values[name] for name in OPERANDS[self.op]})
        numeric = np.zeros_like(analytic)
        for i in np.ndindex(analytic.shape):
            ends = []
            for sign in (1, -1):
                moved = given[self.output].copy()
                moved[i] += sign * STEP
                ends.append((self.linear(**{**{name: given[name] for name in "xw"}, self.output: moved}) * dy).sum())
            numeric[i] = (ends[0] - ends[1]) / (2 * STEP)
        yield analytic, numeric, 1e-9 * (1 + np.abs(analytic))


def _largest_near(a, reach):
    """The largest of the elements at most `reach` away along h and w."""
    padded = np.pad(a, ((0, 0),) * 3 + ((reach, reach),) * 2)
    return np.lib.stride_tricks.sliding_window_view(padded, (2 * reach + 1,) * 2, (3, 4)).max((-1, -2))


class Table:
    """Cases of one direction, by name; `output` is the array it computes."""

    def __init__(self, op):
        self.op, self.output, self.found = op, OUTPUT[op], []

    def case(self, name, size, k, filter, dtype="float32", **more):
        """Add one; its id ends with its dtype."""
        self.found.append(Conv(f"{name}-{SHORT[dtype]}", self.op, size, k, filter, dtype, **more))


def beyond_int32(case, algo, allow):
    """Small integers, every element checked exactly against sums of products of shifted slices, made on the GPU in float32."""
    import torch
    generator = torch.Generator("cuda").manual_seed(7)

    def integers(role, dtype, thin=1):
        a = torch.empty(case.shape(role), dtype=getattr(torch, dtype), device="cuda")
        for part in a.view(-1).split(1 << 26):
            values = torch.randint(-1, 2, part.shape, generator=generator, device="cuda", dtype=torch.int8)
            if thin > 1:
                values[torch.randint(0, thin, part.shape, generator=generator, device="cuda", dtype=torch.int16) > 0] = 0
            part.copy_(values)
        return a

    first, second = OPERANDS[case.op]
    # A sum over more than 2**28 pixels stays below 2**24 where most of dy is zero.
    given = {first: integers(first, case.dtype), second: integers(second, case.dtype, 64 if case.op == "conv_bwd_filter" else 1)}
    out = torch.full(case.shape(case.output), 99, dtype=getattr(torch, case.output_dtype), device="cuda")
    assert max(a.numel() for a in (*given.values(), out)) > 2**31
    case.call({**given, "bias": None, "residual": None}, out, algo=algo, allow=allow)
    arrays = {**given, case.output: out}
    channels = -1 if case.layout == "NHWC" else 1
    pads, strides = case.pads, case._each(case.stride)
    total = torch.zeros(case.shape("w"), dtype=torch.float64, device="cuda")
    for n in range(case.size[0]):
        x, y = (arrays[role][n].movedim(channels, 0) if channels < 0 else arrays[role][n] for role in "xy")
        w = arrays["w"].movedim(-1, 1) if channels < 0 else arrays["w"]
        args = dict(stride=strides, padding=tuple(before for before, _ in pads), groups=case.groups)
        with torch.backends.cudnn.flags(enabled=False):
            if case.op == "conv_fwd":
                want = torch.nn.functional.conv2d(x[None].float(), w.float(), **args)[0]
                assert torch.equal(y.float(), want), f"{case.id}, {algo}: wrong in image {n}"
            elif case.op == "conv_bwd_data":
                want = torch.nn.functional.conv_transpose2d(y[None].float(), w.float(), **args)[0]
                assert torch.equal(x.float(), want), f"{case.id}, {algo}: wrong in image {n}"
            else:
                want = torch.nn.grad.conv2d_weight(x[None].float(), w.shape, y[None].float(), **args)
                total += (want.movedim(1, -1) if channels < 0 else want).double()
    if case.op == "conv_bwd_filter":
        assert torch.equal(out.double(), total), f"{case.id}, {algo}: wrong"
