"""The convolution problem: one class for the three directions, validated, and the canonical form that algorithms read.

Algorithms see three spatial dimensions, missing ones leading with extent 1, and the element strides of every index, whatever the layout::

    y[n, k, o, p, q] = sum over c, t, r, s of x[n, c, o*sd - pd + t*dd, p*sh - ph + r*dh, q*sw - pw + s*dw] * w[k, c, t, r, s]

with c over the channels of k's group. The backward directions are the derivatives of this with respect to x and w.
"""
import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ..device.convert import element
from ..device.epilogue import Activation, EpilogueSpec
from ..device.program import Program
from ..engine.programs import Steps, WithPrologues, broadcast_strides, check_access, operand_names
from ..host.choices import one_of
from ..host.dtypes import compute_dtype
from ..host.launch import Argument
from ..host.products import FLOATS, INPUTS, MATH, check_addend, check_dtypes
from ..host.tensor import Tensor, packed_strides
from ..host.window import check_rank, pad_pairs, per_dimension
from ._geometry import ROLES, check_words, out_extents, positive, shape_of, sizes_of

if TYPE_CHECKING:
    from ..engine.prologues import Prologue

OUTPUT = {"conv_fwd": "y", "conv_bwd_data": "x", "conv_bwd_filter": "w"}
"""Operation -> which of the three arrays it computes."""


class Gemm(NamedTuple):
    """Sizes of the matrix product that each group is: rows, columns, length of the sums."""
    m: int
    n: int
    k: int


@dataclass(frozen=True)
class ConvProblem(WithPrologues):
    """A convolution in one of three directions: everything but the addresses and the values of alpha and beta.

    ``output = program(activation(alpha * conv + beta * output + residual + bias))``.

    Attributes
    ----------
    op : "conv_fwd", "conv_bwd_data" or "conv_bwd_filter"
    x, w, y : Tensor
        Image, filter and result of the forward convolution, or the gradients in their places: x is dx in conv_bwd_data, w is dw in
        conv_bwd_filter, y is dy in both.
    bias : Tensor or None
        One value a channel of the output.
    residual : Tensor or None
        Of the output's shape.
    stride, dilation : tuple of int
        One a spatial dimension; an int is taken for all.
    padding : tuple of (before, after)
        One pair a spatial dimension; ints as in the public functions.
    groups : int
    layout : "NCHW" or "NHWC"
        Order of the dimensions of x and y; w is KCRS or KRSC.
    mode : "cross_correlation" or "convolution"
    activation : Activation
    scaled : bool
        alpha is not 1.
    beta : bool
        beta is not 0: the output's former contents are read.
    math : None, "tf32" or "fast"
    program : Program or None
        What becomes of each element before it is rounded, see `device.program`; rows are pixels (of a filter: all but the input channel),
        columns channels.
    extras : tuple of Tensor
        The program's operands, those that are read broadcasting to the output, see `engine.programs`.
    prologue_a : Prologue or None
        Of conv_fwd and conv_bwd_filter: what each element of x is made of, see `engine.prologues`; rows are pixels, columns channels.
        Padding is zero whatever the program makes of zero.
    """
    op: str
    x: Tensor
    w: Tensor
    y: Tensor
    bias: Tensor | None = None
    residual: Tensor | None = None
    stride: tuple = 1
    padding: tuple = 0
    dilation: tuple = 1
    groups: int = 1
    layout: str = "NCHW"
    mode: str = "cross_correlation"
    activation: Activation = Activation()
    scaled: bool = False
    beta: bool = False
    math: str | None = None
    program: Program | None = None
    extras: tuple = ()
    prologue_a: "Prologue | None" = None

    def __post_init__(self):
        one_of("ConvProblem", "op", self.op, OUTPUT)
        if self.prologue_a is not None and self.op == "conv_bwd_data":
            raise ValueError(f"{self.op}: prologue_a of {self.prologue_a}; expected None, it reads no image")
        self.check_prologues(self.op)
        normal = checked(self, ROLES[self.op])
        for name, value in (*normal.items(), ("extras", tuple(self.extras))):
            object.__setattr__(self, name, value)
        self.check_program(self.op, self.output.shape)
        if self.program is not None:
            for name, (_, access), strides in zip(operand_names(self.program), self.program.operands, self.extra_strides):
                check_access(self.op, name, access, Steps(max(map(abs, (strides[0], *strides[2:]))), strides[1]))
            if self.reductions and self.op == "conv_bwd_filter":
                raise ValueError("conv_bwd_filter: a program with reductions; expected none of a filter's gradient")
            self.check_reductions(self.op, self.output.shape, *self._matrix_axes, self.epilogue.compute)

    @property
    def _matrix_axes(self):
        """The axes of the image or result that are pixels, and the one that is channels."""
        channel = len(self.output.shape) - 1 if self.layout == "NHWC" else 1
        return tuple(d for d in range(len(self.output.shape)) if d != channel), (channel,)

    # ---- sizes

    @functools.cached_property
    def _shapes(self):
        return tuple(shape_of(t.shape, self.layout) for t in (self.x, self.w, self.y))

    @property
    def n(self):
        return self._shapes[0].outer

    @property
    def c(self):
        return self._shapes[0].channels

    @property
    def k(self):
        return self._shapes[1].outer

    @property
    def c_group(self):
        """Channels of x in a group."""
        return self._shapes[1].channels

    @property
    def k_group(self):
        """Channels of y in a group."""
        return self.k // self.groups

    @property
    def spatial_dims(self):
        """1, 2 or 3, as the caller has it."""
        return self.x.ndim - 2

    @functools.cached_property
    def image(self):
        """(D, H, W) of x."""
        return self._three(self._shapes[0].spatial, 1)

    @functools.cached_property
    def filter(self):
        """(T, R, S) of w."""
        return self._three(self._shapes[1].spatial, 1)

    @functools.cached_property
    def out(self):
        """(O, P, Q) of y."""
        return self._three(self._shapes[2].spatial, 1)

    @functools.cached_property
    def strides(self):
        return self._three(self.stride, 1)

    @functools.cached_property
    def dilations(self):
        return self._three(self.dilation, 1)

    @functools.cached_property
    def pads(self):
        """((before, after), ...) along d, h, w."""
        return self._three(self.padding, (0, 0))

    @functools.cached_property
    def pads_before(self):
        return tuple(before for before, _ in self.pads)

    @functools.cached_property
    def pads_after(self):
        return tuple(after for _, after in self.pads)

    @property
    def taps(self):
        """T * R * S."""
        return math.prod(self.filter)

    @property
    def pixels(self):
        """Pixels of all results: N * O * P * Q."""
        return self.n * math.prod(self.out)

    @property
    def flip(self):
        """The filter's taps are read backwards."""
        return self.mode == "convolution"

    @property
    def is_pointwise(self):
        """1x1 without stride or padding: a matrix product over pixels."""
        return self.taps == 1 and self.strides == (1, 1, 1) and not any(map(any, self.pads))

    @property
    def is_depthwise(self):
        """Each group has one channel of x."""
        return self.c_group == 1 and self.groups > 1

    @functools.cached_property
    def gemm(self) -> Gemm:
        """Of each group: pixels by channels, summed over channels and taps; of conv_bwd_filter K by C*T*R*S, summed over pixels."""
        if self.op == "conv_fwd":
            return Gemm(self.pixels, self.k_group, self.c_group * self.taps)
        if self.op == "conv_bwd_data":
            return Gemm(self.n * math.prod(self.image), self.c_group, self.k_group * self.taps)
        return Gemm(self.k_group, self.c_group * self.taps, self.pixels)

    # ---- strides, in elements

    @functools.cached_property
    def x_strides(self):
        """Of x along (n, c, d, h, w)."""
        return self._five(self.x)

    @functools.cached_property
    def w_strides(self):
        """Of w along (k, c, t, r, s); c counts within a group."""
        return self._five(self.w)

    @functools.cached_property
    def y_strides(self):
        """Of y along (n, k, o, p, q)."""
        return self._five(self.y)

    @functools.cached_property
    def output_strides(self):
        """Those of the array that is computed."""
        return self._five(self.output)

    @functools.cached_property
    def residual_strides(self):
        """Of the residual, as `output_strides`; zeros without one."""
        return self._five(self.residual) if self.residual else (0,) * 5

    @property
    def a(self):
        """x, the left operand of the product that conv_fwd is."""
        return self.x

    def _along(self, of, strides):
        """((along pixels, along channels), ()) of strides along x's dimensions; of pixels the largest."""
        outer, channel, *spatial = self._five(Tensor(self.x.shape, strides, self.x.dtype))
        return (max(map(abs, (outer, *spatial))), channel), ()

    @functools.cached_property
    def prologue_strides(self):
        """Element strides of each operand of the prologue along (n, c, d, h, w) of x; 0 where it is broadcast."""
        x, extras = self.x, () if self.prologue_a is None else self.prologue_a.extras
        return tuple(self._five(Tensor(x.shape, broadcast_strides(t, x.shape), t.dtype)) for t in extras)

    @functools.cached_property
    def extra_strides(self):
        """Those of each of the program's operands, as `output_strides`; 0 where it is broadcast."""
        shape = self.output.shape
        return tuple(self._five(Tensor(shape, broadcast_strides(t, shape), t.dtype)) for t in self.extras)

    @property
    def bias_stride(self):
        return self.bias.strides[0] if self.bias else 0

    def is_packed(self, name, layout):
        """Whether x, w, y or residual is contiguous in the order of `layout` ("NCHW": the channel before the spatial
        dimensions, "NHWC": after), whatever layout the caller named it in."""
        t = getattr(self, name)
        here = shape_of(t.shape, self.layout), shape_of(t.strides, self.layout)
        shape, strides = (sizes_of(v, layout) for v in here)
        return all(s == p for n, s, p in zip(shape, strides, packed_strides(shape)) if n > 1)

    def _three(self, values, missing):
        return (missing,) * (3 - len(values)) + tuple(values)

    def _five(self, t):
        """Strides along (outer, channel, d, h, w); a missing dimension has that of its whole neighbour."""
        sizes, strides = shape_of(t.shape, self.layout), shape_of(t.strides, self.layout)
        whole = sizes.spatial[0] * strides.spatial[0]
        return (strides.outer, strides.channels, *self._three(strides.spatial, whole))

    # ---- what is computed

    @property
    def dtype(self):
        """Of the operands. A filter may be another 8-bit float than its image: `w.dtype`."""
        return self.y.dtype if self.op == "conv_bwd_data" else self.dtype_a

    @property
    def output_name(self):
        """ "x", "w" or "y": which array is computed; its name among the launches' arguments."""
        return OUTPUT[self.op]

    @functools.cached_property
    def output(self) -> Tensor:
        return getattr(self, self.output_name)

    @property
    def outputs(self):
        return (self.output, *self.side_outputs)

    @property
    def prior(self):
        """The output again, where beta adds what it held."""
        return self.output if self.beta else None

    @property
    def in_place(self):
        return self.beta

    @property
    def is_empty(self):
        return self.output.size == 0

    @property
    def compute(self):
        """Type of the accumulator."""
        return compute_dtype(self.dtype)

    @property
    def scalar_type(self):
        """Kernel type of alpha and beta."""
        return "float64" if self.epilogue.compute == "float64" else "float32"

    @functools.cached_property
    def epilogue(self) -> EpilogueSpec:
        """The epilogue, for rows that are pixels and columns that are channels; 64-bit offsets where 32 bits could overflow."""
        return EpilogueSpec(alpha=self.scaled, beta=self.beta, bias="column" if self.bias else None,
                            bias_dtype=self.bias.dtype if self.bias else self.output.dtype, c=self.output.dtype if self.beta else None,
                            residual=self.residual.dtype if self.residual else None, activation=self.activation, accumulator=self.compute,
                            output=self.output.dtype, wide=self.is_wide, program=self.program)

    @functools.cached_property
    def is_wide(self):
        """Whether an element offset inside some operand does not fit 32 bits."""
        return any(abs(edge) // t.itemsize >= 2 ** 31 for t in self._tensors for edge in t.extent)

    @functools.cached_property
    def _tensors(self):
        return tuple(t for t in (self.x, self.w, self.y, self.bias, self.residual, *self.extra_tensors.values()) if t)

    @functools.cached_property
    def flops(self):
        return 2 * self.pixels * self.k * self.c_group * self.taps

    @functools.cached_property
    def bytes(self):
        """Bytes that must move at least."""
        return sum(t.nbytes for t in self._tensors) + (self.output.nbytes if self.beta else 0)

    @functools.cached_property
    def reduced_values(self) -> tuple:
        """The `Reduced` of each of the program's reductions, along pixels and channels of a group; of channels each group has its own."""
        if not self.reductions:
            return ()
        columns, sizes = (self.k_group, self.out) if self.op == "conv_fwd" else (self.c_group, self.image)
        steps, found = [Steps(0, s[1], (columns * s[1],)) for s in self.extra_strides], []
        for of, (n, _, *spatial) in zip(self.reduced(*self._matrix_axes, steps), self.extra_strides[-len(self.reductions):]):
            pixels = tuple((size, step) for size, step in zip((self.n, *sizes), (n, *spatial)) if size > 1)
            found.append(of._replace(by_matrix=self.groups > 1 and of.over == "rows", rows=pixels or ((1, 0),)))
        return tuple(found)

    # ---- arguments of launches

    def pointer(self, name) -> Argument:
        """The kernel parameter that points at x, w, y, bias, residual or prior; at the output in place of one that is missing."""
        present = getattr(self, name) is not None and name != "prior"
        t = getattr(self, name) if present else self.output
        return Argument(element(t.dtype).pointer, name if present else self.output_name)

    def epilogue_arguments(self, output_strides=(0, 0), residual_strides=(0, 0)) -> tuple:
        """The ten kernel parameters of the epilogue's tuple: alpha, beta, bias and its stride, the output with its strides by row and
        column, the residual with its own."""
        offset = "int64" if self.is_wide else "int32"
        return (Argument(self.scalar_type, "alpha"), Argument(self.scalar_type, "beta"), self.pointer("bias"),
                Argument(offset, self.bias_stride), self.pointer("prior"), *(Argument(offset, s) for s in output_strides),
                self.pointer("residual"), *(Argument(offset, s) for s in residual_strides))

    def __str__(self):
        def per(values):
            return "x".join(map(str, values[:1] if len(set(values)) == 1 else values))

        sizes = "x".join(map(str, (self.n, self.c, *self._shapes[0].spatial)))
        pads = [str(b) if b == a else f"{b}:{a}" for b, a in self.padding]
        text = f"{self.op} {sizes} k{self.k} {'x'.join(map(str, self._shapes[1].spatial))} s{per(self.stride)} p{per(pads)}"
        text += f" d{per(self.dilation)}" if set(self.dilation) != {1} else ""
        made = self.prologue_a
        text += (f" g{self.groups}" if self.groups > 1 else "") + (f" {self.x.dtype} {made.program} to" if made else "") + f" {self.dtype}"
        text += f" x {self.w.dtype}" if self.op == "conv_fwd" and self.w.dtype != self.dtype else ""
        text += f" {self.layout}" + (f" -> {self.output.dtype}" if self.output.dtype != self.dtype else "")
        parts = (("bias", self.bias), ("residual", self.residual), ("out", self.beta),
                 (self.activation.mode, self.activation.mode != "identity"), (f"program {self.program}", self.program))
        extras = [name for name, present in parts if present]
        return (text + (f" + {', '.join(extras)}" if extras else "") + (" flipped" if self.flip else "")
                + (f" math={self.math}" if self.math else ""))


def checked(p, roles) -> dict:
    """Validate the fields of a problem under the names its function has for them; the fields as they are kept.

    ValueError for shapes and values, TypeError for dtypes.
    """
    f = roles.function
    check_words(f, p.layout, p.mode)
    dims = check_rank(f, roles.x, p.x.shape)
    for name, t in ((roles.w, p.w), (roles.y, p.y)):
        if t.ndim != p.x.ndim:
            raise ValueError(f"{f}: {name} has shape {t.shape}, {roles.x} {p.x.shape}; expected as many dimensions")
    _check_types(p, roles)
    groups = positive(f, "groups", p.groups)
    stride, dilation = per_dimension(f, "stride", p.stride, dims), per_dimension(f, "dilation", p.dilation, dims)
    padding = pad_pairs(f, p.padding, dims)
    x, w, y = (shape_of(t.shape, p.layout) for t in (p.x, p.w, p.y))
    if x.channels % groups:
        raise ValueError(f"{f}: {roles.x} has {x.channels} channels, which {groups} groups do not divide")
    if w.outer % groups:
        raise ValueError(f"{f}: {roles.w} has {w.outer} filters (K), which {groups} groups do not divide")
    if w.channels != x.channels // groups:
        raise ValueError(f"{f}: {roles.w} has {w.channels} input channels per group, {roles.x} gives {x.channels // groups} "
                         f"(C={x.channels}, groups={groups})")
    extents = out_extents(roles, x.spatial, w.spatial, stride, padding, dilation)
    expected = sizes_of(type(x)(x.outer, w.outer, extents), p.layout)
    if p.y.shape != expected:
        raise ValueError(f"{f}: {roles.y} has shape {p.y.shape}; {roles.x} {p.x.shape} and {roles.w} {p.w.shape} give {expected}")
    output = getattr(p, OUTPUT[p.op])
    output.check_addresses(f)
    channels = y.channels if p.op == "conv_fwd" else x.channels
    if p.bias is not None and p.bias.shape != (channels,):
        raise ValueError(f"{f}: bias has shape {p.bias.shape}; expected ({channels},)")
    if p.residual is not None and p.residual.shape != output.shape:
        raise ValueError(f"{f}: residual has shape {p.residual.shape}; expected the output's, {output.shape}")
    return {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}


def _check_types(p, roles):
    f, forward = roles.function, p.op == "conv_fwd"
    operands = {"conv_fwd": "xw", "conv_bwd_data": "yw", "conv_bwd_filter": "xy"}[p.op]
    given = [p.operand("a") if role == "x" else getattr(p, role) for role in operands]
    check_dtypes(f, *given, getattr(p, OUTPUT[p.op]), tuple(getattr(roles, r) for r in operands), INPUTS if forward else FLOATS)
    one_of(f, "math", p.math, MATH)
    for name in ("bias", "residual"):
        if p.op == "conv_bwd_filter" and getattr(p, name) is not None:
            raise ValueError(f"{f}: a {name} makes no sense in a filter's gradient")
        check_addend(f, name, getattr(p, name), given[0].dtype)
