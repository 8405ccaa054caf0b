"""The problems of batch, group and instance normalisation: validation, shapes, and the rows that algorithms read.

All of them see an image (N, C, spatial...) or (N, spatial..., C) as dimensions n, g, c and s: images, groups of channels, channels within a
group, and pixels. Each value of `n, g, c, s` belongs to one statistic and one weight; which dimensions those have is all that the
normalisations differ in. Batch normalisation has groups of one channel, instance normalisation too.
"""
import functools

from ..device.convert import element
from ..device.rows import Dim, RowForm, merged
from ..host.choices import one_of
from ..host.dtypes import STORAGE, compute_dtype, numpy_dtype
from ..host.last import CALL_LAYOUTS
from ..host.launch import Argument
from ..host.products import FLOATS, alike
from ..host.tensor import Tensor
from ..host.window import LAYOUTS

MODES = ("spatial", "per_activation")
WHOLE, WEIGHT, STATISTIC, RUNNING = "whole", "weight", "statistic", "running"


def gradient_source(activation):
    """What an activation's gradient is found from: "y", its result; "x", from which its argument is computed anew; None for the identity,
    which needs neither."""
    if activation.mode == "identity":
        return None
    return "y" if activation.mode in ("relu", "leaky_relu") and activation["negative_slope"] >= 0 else "x"


def channel_axis(x, layout):
    """Which dimension of x the channels are."""
    return 1 if layout == "NCHW" else x.ndim - 1


def shape_of(kind, x, layout, mode, groups):
    """Shape of the arrays of a kind."""
    if kind == WHOLE:
        return x.shape
    if groups is not None and kind == STATISTIC:
        return x.shape[0], groups
    return x.shape[1:] if mode == "per_activation" else (x.shape[channel_axis(x, layout)],)


class ChannelNorm:
    """What all five share. `arrays` are (name, tensor or None, kind) in the order of operands, the results last."""
    averages = True
    groups = None
    mode = "spatial"
    frozen = False
    program, extra_strides = None, ()

    def _check(self):
        op, x = self.op, self.x
        if x.dtype not in FLOATS:
            raise TypeError(f"{op}: x is {x.dtype}; expected one of {', '.join(FLOATS)}")
        one_of(op, "layout", self.layout, LAYOUTS)
        if not 2 <= x.ndim <= 5:
            raise ValueError(f"{op}: x has shape {x.shape}; expected 2 to 5 dimensions: images, channels, up to 3 spatial ones")
        if self.groups is None:
            one_of(op, "mode", self.mode, MODES)
        if self.groups is not None and (self.groups < 1 or self.channels % self.groups):
            raise ValueError(f"{op}: groups={self.groups}; expected a divisor of the {self.channels} channels of x {x.shape}")
        if self.averages and self.row_count and not self.row_length:
            raise ValueError(f"{op}: x has shape {x.shape}; expected one value at least for each mean")
        if op != "batch_norm_infer" and self.has_residual and not self.follows_residual(self.activation):
            raise ValueError(f"{op}: activation {self.activation} with a residual; expected relu or leaky_relu of a slope that is not "
                             "negative, whose gradients follow from y: backward has no residual to compute its argument from")
        dtypes = {WHOLE: (x.dtype,), WEIGHT: alike(x.dtype), STATISTIC: (self.compute,), RUNNING: alike(x.dtype)}
        for name, t, kind in self.arrays:
            if t is None:
                continue
            label = f"{name} of out" if self.is_result(name) else name
            allowed = alike(x.dtype) if name == "y" and self.is_result(name) else dtypes[kind]
            if t.dtype not in allowed:
                raise TypeError(f"{op}: {label} is {t.dtype}; expected {' or '.join(allowed)} beside a {x.dtype} x")
            if t.shape != self.shape_of(kind):
                raise ValueError(f"{op}: {label} has shape {t.shape}; expected {self.shape_of(kind)} (x has shape {x.shape}, "
                                 f"layout {self.layout}{'' if self.groups is None else f', {self.groups} groups'})")
            if self.is_result(name) or name.startswith("running"):
                t.check_addresses(op, label)

    @staticmethod
    def follows_residual(activation):
        """Whether an activation may come after an addition: its gradient follows from y."""
        return gradient_source(activation) != "x"

    # ---- dimensions

    def is_result(self, name):
        """Whether an array is an output."""
        return name in self.result_names

    @property
    def channels(self):
        return self.x.shape[channel_axis(self.x, self.layout)]

    def shape_of(self, kind):
        """Shape of the arrays of a kind."""
        return shape_of(kind, self.x, self.layout, self.mode, self.groups)

    @functools.cached_property
    def roles(self):
        """(role, size, axis of x, steps along it) of the canonical dimensions."""
        axis, groups = channel_axis(self.x, self.layout), self.channels if self.groups is None else self.groups
        per = self.channels // max(groups, 1)
        spatial = [("s", n, k, 1) for k, n in enumerate(self.x.shape) if k not in (0, axis)]
        return (("n", self.x.shape[0], 0, 1), ("g", groups, axis, per), ("c", per, axis, 1), *spatial)

    def kept(self, kind):
        """Roles of the dimensions that the arrays of a kind have."""
        if kind == STATISTIC and self.groups is not None:
            return ("n", "g")
        return ("g", "c", "s") if self.mode == "per_activation" else ("g", "c")

    def stride(self, name, role, axis, steps):
        """Element stride of an array along a canonical dimension; 0 where it is missing or has not the dimension."""
        t, kind = next(((t, kind) for given, t, kind in self.arrays if given == name), (None, WHOLE))
        if t is None or kind != WHOLE and role not in self.kept(kind):
            return 0
        if kind == WHOLE:
            return t.strides[axis] * steps
        if self.groups is not None and kind == STATISTIC:
            return t.strides[0 if role == "n" else 1]
        return t.strides[axis - 1 if self.mode == "per_activation" else 0] * steps

    def form(self, kind, names) -> RowForm:
        """Rows of all values that belong to one statistic, or to one weight; strides are those of the arrays named, 0 where an array is
        missing or has not the dimension, then those of the program's operands."""
        row, outer, extras = [], [], len(self.extra_strides)
        for role, size, axis, steps in self.roles:
            # the last array says which dimension is the innermost
            strides = (*self.steps_of_extras(axis, steps), *(self.stride(name, role, axis, steps) for name in names))
            (outer if role in self.kept(kind) else row).append(Dim(size, strides))
        nothing = (Dim(1, (0,) * (extras + len(names))),)
        row, outer = ([Dim(d.size, d.strides[extras:] + d.strides[:extras]) for d in merged(some) or nothing] for some in (row, outer))
        return RowForm(tuple(row), tuple(outer))

    def steps_of_extras(self, axis, steps):
        """Element strides of the program's operands along a canonical dimension."""
        return tuple(strides[axis] * steps for strides in self.extra_strides)

    @property
    def row_length(self):
        """Values of a statistic."""
        return self._volume(False)

    @property
    def row_count(self):
        """Statistics."""
        return self._volume(True)

    def _volume(self, kept):
        count = 1
        for role, size, _, _ in self.roles:
            if (role in self.kept(STATISTIC)) == kept:
                count *= size
        return count

    # ---- what the front end and the benches ask

    @property
    def has_residual(self):
        """Whether an array is added to what is normalised."""
        return self.tensor("residual") is not None or self.tensor("dresidual") is not None

    def tensor(self, name):
        """An array's descriptor; None where it is missing."""
        return next((t for n, t, _ in self.arrays if n == name), None)

    def dtype_of(self, name):
        """An array's dtype, "" where it is missing."""
        t = self.tensor(name)
        return "" if t is None else t.dtype

    def pointer(self, name, instead="x") -> Argument:
        """The kernel parameter of an array; that of another one, which the kernel will not look at, where it is missing."""
        name = instead if self.tensor(name) is None else name
        return Argument(element(self.tensor(name).dtype).pointer, name)

    @property
    def dtype(self):
        return self.x.dtype

    @property
    def result(self):
        """The result y's dtype; "" where it is x's, or y is none."""
        return self.dtype_of("y") if self.is_result("y") and self.dtype_of("y") not in ("", self.dtype) else ""

    @property
    def compute(self):
        """Type of sums and of statistics."""
        return compute_dtype(self.x.dtype)

    @property
    def scalar_type(self):
        return self.compute

    @property
    def outputs(self):
        return tuple(t for name, t, _ in self.arrays if self.is_result(name) and t is not None)

    @property
    def is_empty(self):
        return all(t.size == 0 for t in self.outputs)

    @property
    def flops(self):
        return 8 * self.x.size

    @property
    def bytes(self):
        """Bytes that must move: each distinct element read, each written."""
        return sum(t.nbytes for _, t, _ in self.arrays if t is not None)

    def operand_values(self, name):
        """Variances to measure on are positive."""
        if name not in ("var", "running_var"):
            return None
        import numpy as np
        t = self.tensor(name)
        values = np.linspace(0.5, 2, t.size).reshape(t.shape)
        return values.astype(numpy_dtype(t.dtype)).view(STORAGE[t.dtype])

    def __str__(self):
        words = [f"{self.op} {'x'.join(map(str, self.x.shape))} {self.dtype} {self.layout}"]
        if self.groups is not None:
            words.append(f"groups {self.groups}")
        elif self.mode != "spatial":
            words.append(self.mode)
        words += [f"{name} {t.dtype}" for name, t, kind in self.arrays if kind == WEIGHT and t is not None and not self.is_result(name)]
        words += [word for word, there in (("residual", self.has_residual), ("frozen", self.frozen),
                                           ("running", self.tensor("running_mean") or self.tensor("running_var"))) if there]
        words += [self.activation.mode] * (self.activation.mode != "identity")
        words += [f"to {self.result}"] * bool(self.result)
        words += [f"{name} strides {t.strides}" for name, t, _ in self.arrays if t is not None and not t.is_packed]
        words += [f"program {self.program}"] * (self.program is not None)
        return " ".join(words)


# ---- calls

def backward_operands(dy, x, gamma, mean, rstd, y, beta):
    """The operands of a gradient, without what is missing at their end."""
    return (dy, x, gamma, mean, rstd, y, beta)[:7 if beta is not None else 6 if y is not None else 5]


def for_activation(function, activation, given):
    """(y, beta) that the gradient of an activation needs, None for what it does not look at; an error where they are missing."""
    source = gradient_source(activation)
    check_given(function, given, ("y",) * (source == "y"))
    if source == "x" and given["beta"] is None and given["gamma"] is not None:
        raise TypeError(f"{function}: beta: got NoneType; expected the array given to the forward call (zeros where there was none): the "
                        f"gradient of {activation.mode} needs (x - mean) * rstd * gamma + beta")
    return given["y"] if source == "y" else None, given["beta"] if source == "x" else None


def check_given(function, tensors, needed):
    for name, t in tensors.items():
        if t is None and name in needed:
            raise TypeError(f"{function}: {name}: got NoneType; expected an array")
    x = tensors["x"]
    if x.dtype not in FLOATS:
        raise TypeError(f"{function}: x is {x.dtype}; expected one of {', '.join(FLOATS)}")


def results_of(function, given, outs, names, layout, mode="spatial", groups=None):
    """Tensors of the results: those given, or packed ones as they are by default."""
    x, gamma = given["x"], given["gamma"]
    one_of(function, "layout", layout, CALL_LAYOUTS)
    one_of(function, "mode", mode, MODES)
    if outs is not None:
        return outs if isinstance(outs, tuple) else (outs,)
    if x.ndim < 2:
        raise ValueError(f"{function}: x has shape {x.shape}; expected images and channels at least")
    dtypes = {WHOLE: x.dtype, WEIGHT: x.dtype if gamma is None else gamma.dtype, STATISTIC: compute_dtype(x.dtype)}
    kinds = {"mean": STATISTIC, "rstd": STATISTIC, "dgamma": WEIGHT, "dbeta": WEIGHT}
    kinds = [kinds.get(name, WHOLE) for name in names]
    return tuple(Tensor.packed(shape_of(kind, x, layout, mode, groups), dtypes[kind]) for kind in kinds)
