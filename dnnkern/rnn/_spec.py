"""What a recurrent network is: cell, sizes, layers, directions; and where its matrices lie in the one buffer of weights."""
import functools
import math
from dataclasses import dataclass

from ..host.arrays import View, kind_of
from ..host.choices import dtype_of, one_of
from ..host.dtypes import dtype_name
from ..host.products import FLOATS
from ..host.scalars import LARGEST, flag, integer, number, shares, shown

GATES = {"relu": 1, "tanh": 1, "lstm": 4, "gru": 3}
"""Rows of a cell's matrices, in hidden sizes: LSTM has i, f, g, o, GRU r, z, n, in this order."""
SLOTS = {"relu": 1, "tanh": 1, "lstm": 4, "gru": 4}
"""Numbers of a hidden unit and step that a reserve keeps; the fourth of GRU is the recurrent half of n, before r."""
BIASES = {"double": ("b_ih", "b_hh"), "single_input": ("b_ih",), "single_rec": ("b_hh",), "none": ()}
INPUT_MODES = ("linear", "skip")
MATH = (None, "tf32")


@dataclass(frozen=True)
class Matrix:
    """A matrix or a bias in the buffer of weights: its name, where it begins, in elements, and its shape."""
    name: str
    first: int
    shape: tuple

    @property
    def size(self):
        return math.prod(self.shape)


@dataclass(frozen=True, init=False)
class RnnSpec:
    """A recurrent network: everything except its weights and the number and length of the sequences.

    With W, R, b, c the matrices ``w_ih``, ``w_hh`` and biases ``b_ih``, ``b_hh`` of a layer and direction, x its input and h its state::

        relu, tanh   h' = act(W x + b + R h + c)
        lstm         i, f, o = sigmoid(W x + b + R h + c), g = tanh(same); s' = clip(f s + i g); h' = o tanh(s')
        gru          r, z = sigmoid(W x + b + R h + c); n = tanh(W x + b + r (R h + c)); h' = (1 - z) n + z h

    Each gate has its rows of W, R, b, c. With a projection an LSTM's state is ``h' = w_hr (o tanh(s'))``.

    Parameters
    ----------
    cell : "relu", "tanh", "lstm" or "gru"
    input_size, hidden_size : int
        1 or more.
    num_layers : int
        Each layer takes the states of the one before; if bidirectional, of both directions, forward first.
    bidirectional : bool
        A second network runs over the sequences backwards.
    proj_size : int
        LSTM only: size of the state after the projection, below hidden_size; 0: none.
    bias : "double", "single_input", "single_rec" or "none"
        Which of b and c exist.
    input_mode : "linear" or "skip"
        "skip": the first layer has no W, its input is added to each gate; input_size is hidden_size.
    dropout : float
        In [0, 1): in training, elements of the states between layers are dropped with this probability.
    clip : float or (float, float), optional
        LSTM only: bounds of the cell state s'; one number c means (-c, c). The gradient is 0 where they are reached.
    dtype : str
        dtype of all arrays: float64, float32, float16 or bfloat16.
    math : None or "tf32"
        "tf32" lets the factors of float32 products be rounded to TF32, for tensor cores; of other dtypes it means nothing.

    Raises
    ------
    ValueError, TypeError
        Invalid or inconsistent parameters, by name.

    Notes
    -----
    Gates are in the order of cuDNN and PyTorch. Mirrors cudnnSetRNNDescriptor_v8 and `torch.nn.RNN`, `LSTM` and `GRU`.

    Examples
    --------
    >>> import dnnkern
    >>> spec = dnnkern.RnnSpec("gru", 3, 2)
    >>> spec.weight_size
    42
    >>> [(m.name, m.shape) for m in spec.matrices]
    [('w_ih_l0', (6, 3)), ('w_hh_l0', (6, 2)), ('b_ih_l0', (6,)), ('b_hh_l0', (6,))]
    """
    cell: str
    input_size: int
    hidden_size: int
    num_layers: int = 1
    bidirectional: bool = False
    proj_size: int = 0
    bias: str = "double"
    input_mode: str = "linear"
    dropout: float = 0.0
    clip: object = None
    dtype: str = "float32"
    math: str | None = None

    def __init__(self, cell, input_size, hidden_size, *, num_layers=1, bidirectional=False, proj_size=0, bias="double",
                 input_mode="linear", dropout=0.0, clip=None, dtype="float32", math=None):
        def put(name, value):
            object.__setattr__(self, name, value)
        put("cell", one_of("RnnSpec", "cell", cell, GATES))
        put("input_size", integer("RnnSpec", "input_size", input_size, 1, LARGEST))
        put("hidden_size", integer("RnnSpec", "hidden_size", hidden_size, 1, LARGEST))
        put("num_layers", integer("RnnSpec", "num_layers", num_layers, 1, LARGEST))
        put("bidirectional", flag("RnnSpec", "bidirectional", bidirectional))
        put("proj_size", integer("RnnSpec", "proj_size", proj_size, 0, LARGEST))
        put("bias", one_of("RnnSpec", "bias", bias, BIASES))
        put("input_mode", one_of("RnnSpec", "input_mode", input_mode, INPUT_MODES))
        put("dropout", shares("RnnSpec", dropout=dropout)[0])
        put("clip", _bounds(clip))
        put("dtype", dtype_of("RnnSpec", "dtype", dtype, FLOATS))
        one_of("RnnSpec", "math", math, MATH)
        put("math", math if self.dtype == "float32" else None)
        if self.proj_size and cell != "lstm":
            raise ValueError(f"RnnSpec: proj_size={self.proj_size} for {cell}; expected 0: only an LSTM has a projection")
        if self.proj_size >= self.hidden_size:
            raise ValueError(f"RnnSpec: proj_size={self.proj_size}, hidden_size={self.hidden_size}; expected a smaller projection")
        if self.clip is not None and cell != "lstm":
            raise ValueError(f"RnnSpec: clip={clip!r} for {cell}; expected None: only an LSTM has a cell state")
        if input_mode == "skip" and self.input_size != self.hidden_size:
            raise ValueError(f"RnnSpec: input_size={self.input_size}, hidden_size={self.hidden_size}; expected the same with "
                             "input_mode='skip'")

    # ---- sizes

    @property
    def directions(self):
        """1 or 2."""
        return 1 + self.bidirectional

    @property
    def state_size(self):
        """Of h: of the projection, or hidden_size."""
        return self.proj_size or self.hidden_size

    @property
    def output_size(self):
        """Of a layer's result: states of all directions."""
        return self.directions * self.state_size

    @property
    def gates(self):
        """Rows of a matrix, in hidden sizes."""
        return GATES[self.cell]

    @property
    def slots(self):
        """Numbers kept of a hidden unit and step."""
        return SLOTS[self.cell]

    def layer_input(self, layer):
        """Size of a layer's input."""
        return self.output_size if layer else self.input_size

    # ---- what training keeps

    @functools.cached_property
    def reserve_parts(self) -> tuple:
        """((name, layer, direction), elements for each step and sequence) of the arrays in a reserve, in its order."""
        found = []
        sizes = {"gates": self.slots * self.hidden_size, "cells": self.hidden_size * (self.cell == "lstm"),
                 "hidden": self.hidden_size * bool(self.proj_size), "projected": self.proj_size}
        between = {"outputs": self.output_size, "kept": self.output_size * bool(self.dropout)}
        for layer in range(self.num_layers):
            found += [((name, layer, d), size) for d in range(self.directions) for name, size in sizes.items()]
            if layer + 1 < self.num_layers:
                found += [((name, layer, 0), size) for name, size in between.items()]
        return tuple((part, size) for part, size in found if size)

    def reserve_size(self, steps, samples) -> int:
        """Elements of the reserve of so many steps and sequences; the numbers may be a compiler's symbols.

        Examples
        --------
        >>> import dnnkern
        >>> dnnkern.RnnSpec("lstm", 3, 2).reserve_size(5, 4)
        200
        """
        return steps * samples * sum(size for _, size in self.reserve_parts)

    # ---- weights

    @functools.cached_property
    def matrices(self) -> tuple:
        """All matrices and biases, in the order of the buffer, without gaps: by layer, then by direction w_ih, w_hh, b_ih, b_hh, w_hr."""
        found, first, rows = [], 0, self.gates * self.hidden_size
        for layer in range(self.num_layers):
            for suffix in ("", "_reverse")[:self.directions]:
                shapes = {"w_ih": (rows, self.layer_input(layer)), "w_hh": (rows, self.state_size),
                          **dict.fromkeys(BIASES[self.bias], (rows,)), "w_hr": (self.proj_size, self.hidden_size)}
                if layer == 0 and self.input_mode == "skip":
                    del shapes["w_ih"]
                if not self.proj_size:
                    del shapes["w_hr"]
                for name, shape in shapes.items():
                    found.append(Matrix(f"{name}_l{layer}{suffix}", first, shape))
                    first += found[-1].size
        return tuple(found)

    @property
    def weight_size(self) -> int:
        """Elements of the buffer of weights."""
        return self.matrices[-1].first + self.matrices[-1].size

    def matrix(self, name, layer, direction):
        """A matrix by its name, "w_ih", layer and direction; None where there is none."""
        return self._by_name.get(f"{name}_l{layer}" + "_reverse" * direction)

    @functools.cached_property
    def _by_name(self):
        return {m.name: m for m in self.matrices}

    def views(self, weights) -> dict:
        """The matrices and biases in a buffer, by PyTorch's names: ``w_ih_l0``, ``w_hh_l0``, ``b_ih_l0``, ``b_hh_l0``, ``w_hr_l0``,
        and each with ``_reverse``.

        Parameters
        ----------
        weights : array (weight_size,)
            Packed, of any framework.

        Returns
        -------
        dict of str to array
            Of the same framework, in the same memory (JAX: copies).

        Examples
        --------
        >>> import numpy as np, dnnkern
        >>> spec = dnnkern.RnnSpec("tanh", 2, 3, bias="none")
        >>> spec.views(np.arange(15, dtype=np.float32))["w_hh_l0"]
        array([[ 6.,  7.,  8.],
               [ 9., 10., 11.],
               [12., 13., 14.]], dtype=float32)
        """
        try:
            (shape, _, dtype, _), _ = kind_of(weights).describe(weights)
            dtype = dtype_name(dtype)
        except (TypeError, ValueError) as error:
            raise type(error)(f"RnnSpec.views: weights: {error}") from None
        if tuple(shape) != (self.weight_size,):
            raise ValueError(f"RnnSpec.views: weights has shape {tuple(shape)}; expected ({self.weight_size},)")
        if dtype != self.dtype:
            raise TypeError(f"RnnSpec.views: weights is {dtype}; expected {self.dtype}, the spec's dtype")
        return {m.name: _part(weights, m) for m in self.matrices}

    def pack(self, named, *, stream=None):
        """A buffer of weights of the matrices and biases by name.

        Parameters
        ----------
        named : dict of str to array
            What `views` has, and no more; of one framework, arbitrary strides and float dtypes: they are converted to the spec's. PyTorch's
            own names, ``weight_ih_l0`` and ``bias_ih_l0``, will do too, so that a module's ``named_parameters`` can be given.
        stream : as `dnnkern.matmul`'s

        Returns
        -------
        weights : array (weight_size,)
            Of the arrays' framework, of the spec's dtype.

        Raises
        ------
        ValueError
            Names that are missing or too many, shapes.

        Examples
        --------
        >>> import numpy as np, dnnkern
        >>> spec = dnnkern.RnnSpec("tanh", 2, 1, bias="none")
        >>> spec.pack({"weight_ih_l0": np.ones((1, 2), np.float32), "w_hh_l0": np.full((1, 1), 3, np.float32)})
        array([1., 1., 3.], dtype=float32)
        """
        from ..host.front import stream_handle
        from ..transform import cast
        try:
            named = {_short(name): array for name, array in dict(named).items()}
        except (TypeError, ValueError):
            raise TypeError(f"RnnSpec.pack: named={shown(named)}; expected a dictionary of arrays by name") from None
        wanted = [m.name for m in self.matrices]
        if set(named) != set(wanted):
            raise ValueError(f"RnnSpec.pack: named: missing {sorted(set(wanted) - set(named)) or 'nothing'}, unknown "
                             f"{sorted(set(named) - set(wanted), key=str) or 'nothing'}")
        for m in self.matrices:
            try:
                given = kind_of(named[m.name]).tensor(named[m.name])
            except (TypeError, ValueError) as error:
                raise type(error)(f"RnnSpec.pack: named[{m.name!r}]: {error}") from None
            if given.shape != m.shape:
                raise ValueError(f"RnnSpec.pack: named[{m.name!r}] has shape {given.shape}; expected {m.shape}")
            if given.dtype not in FLOATS:
                raise TypeError(f"RnnSpec.pack: named[{m.name!r}] is {given.dtype}; expected one of {', '.join(FLOATS)}")
        first = named[wanted[0]]
        kind = kind_of(first)
        device = kind.device(first)
        stream = kind.stream(device) if stream is None else stream_handle("RnnSpec.pack", stream)
        weights = kind.empty((self.weight_size,), self.dtype, device, stream)
        for m in self.matrices:
            cast(named[m.name], self.dtype, out=_part(weights, m), stream=stream)
        return kind.finish(weights, stream) if kind.finishes else weights

    def __str__(self):
        words = [self.cell, f"{self.input_size}x{self.hidden_size}"]
        words += [f"{self.num_layers} layers"] * (self.num_layers > 1) + ["bidirectional"] * self.bidirectional
        words += [f"projection {self.proj_size}"] * bool(self.proj_size) + [f"bias {self.bias}"] * (self.bias != "double")
        words += ["skip"] * (self.input_mode == "skip") + [f"dropout {self.dropout:g}"] * bool(self.dropout)
        if self.clip:
            words.append(f"clip {self.clip[0]:g} {self.clip[1]:g}")
        return " ".join((*words, self.dtype, *([f"math={self.math}"] * bool(self.math))))


def _part(weights, matrix):
    """A matrix in the buffer, as an array of the buffer's framework."""
    if isinstance(weights, View):
        return View(_part(weights.array, matrix), weights.dtype_name)
    return weights[matrix.first:matrix.first + matrix.size].reshape(matrix.shape)


def _short(name):
    """PyTorch's name of a parameter as a matrix' name."""
    for long, short in (("weight_", "w_"), ("bias_", "b_")):
        if isinstance(name, str) and name.startswith(long):
            return short + name[len(long):]
    return name


def _bounds(clip):
    """(low, high), or None."""
    if clip is None:
        return None
    if isinstance(clip, (tuple, list)):
        if len(clip) != 2:
            raise ValueError(f"RnnSpec: clip={shown(clip)}; expected a number or a pair of numbers")
        low, high = (number("RnnSpec", f"clip[{k}]", v) for k, v in enumerate(clip))
    else:
        high = number("RnnSpec", "clip", clip)
        low = -high
    if not low < high:
        raise ValueError(f"RnnSpec: clip={shown(clip)}; expected a positive number, or a pair whose first is the smaller")
    return low, high
