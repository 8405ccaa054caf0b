"""What the problems of attention check, and what is checked of the values of arrays on demand."""
import math

import numpy as np

from ..host.products import FP8, OUTPUTS

BLOCK = 128
"""Queries, and keys, of a block of a block mask."""
SCALES = ("scale_q", "scale_k", "scale_v")
"""Factors of 8-bit floating operands, forward."""
FACTORS, AMAX = ("scale_s", "descale_s", "scale_o"), ("amax_s", "amax_o")
"""Factors of their probabilities and of the result; results, largest magnitudes of these."""


def expect(op, name, t, dtypes, shape):
    """Raise unless a tensor, if it is there, has one of these dtypes and this shape."""
    if t is None:
        return
    if t.dtype not in dtypes:
        raise TypeError(f"{op}: {name} is {t.dtype}; expected {' or '.join(dtypes)}")
    if t.shape != tuple(shape):
        raise ValueError(f"{op}: {name} has shape {t.shape}; expected {tuple(shape)}")


def check_number(op, name, value):
    """Raise unless it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{op}: {name}={value!r}; expected a number")
    if not math.isfinite(value):
        raise ValueError(f"{op}: {name}={value!r}; expected a finite number")


def check_beside(problem, name, t):
    """TypeError where a bias or a sink is not of the operands' dtype, or of that which scores are computed in; beside 8-bit floats any of
    16 bits and more."""
    p = problem
    allowed = OUTPUTS[p.dtype][:3] if p.dtype in FP8 else dict.fromkeys((p.dtype, p.compute))
    if t.dtype not in allowed:
        raise TypeError(f"{p.op}: {name} is {t.dtype}; expected {' or '.join(allowed)}")


def check_broadcast(op, name, t, full):
    """Raise unless a bias or a mask, if it is there, broadcasts to batch, heads, rows and keys."""
    if t is not None and (not 2 <= t.ndim <= 4 or any(n not in (1, m) for n, m in zip(t.shape[::-1], full[::-1]))):
        raise ValueError(f"{op}: {name} has shape {t.shape}; expected two to four dimensions that broadcast to {full}")


def check_bias(problem, full):
    """Raise unless a bias, if it is there, may be added to scores of this shape."""
    p, t = problem, problem.bias
    if t is None:
        return
    if t.dtype == "bool":
        raise TypeError(f"{p.op}: bias is bool; expected {p.compute}, or a boolean array as mask=")
    check_beside(p, "bias", t)
    check_broadcast(p.op, "bias", t, full)


def check_block_mask(problem):
    """Raise unless a block mask, if it is there, has a bit for each block of each head."""
    p, t = problem, getattr(problem, "block_mask", None)
    if t is None:
        return
    if p.packed:
        raise ValueError(f"{p.op}: block_mask with packed sequences; expected it with padded or ragged ones")
    blocks = (p.batch, p.heads, -(-p.rows // BLOCK), -(-p.keys // (8 * BLOCK)))
    expect(p.op, "block_mask", t, ("uint8",), blocks)


def broadcast_strides(t):
    """Element strides of a bias, of its gradient, or of a mask, along batch, heads, rows and keys: 0 where it is broadcast."""
    if t is None:
        return 0, 0, 0, 0
    return (0,) * (4 - t.ndim) + tuple(0 if n == 1 else s for n, s in zip(t.shape, t.strides))


def check_sink(problem):
    """Raise unless a sink, if it is there, is a number a head."""
    p, t = problem, problem.sink
    if t is not None:
        check_beside(p, "sink", t)
    if t is not None and t.shape != (p.heads,):
        raise ValueError(f"{p.op}: sink has shape {t.shape}; expected one for each head, ({p.heads},)")


def present(op, names, tensors):
    """TypeError where an operand is None that may not be."""
    for name, t in zip(names, tensors):
        if t is None:
            raise TypeError(f"{op}: {name}: got NoneType; expected an array")


def check_offsets(op, name, offsets, most):
    """ValueError where offsets of packed sequences do not begin with 0, decrease, or point past the end."""
    offsets = offsets.astype(np.int64)
    before = np.concatenate([[0], offsets[:-1]])
    wrong = np.flatnonzero((offsets < before) | (offsets > most) | (np.arange(offsets.size) == 0) & (offsets != 0))
    if wrong.size:
        k = int(wrong[0])
        raise ValueError(f"{op}: {name}[{k}] is {offsets[k]}; expected " + (f"{before[k]} to {most}" if k else "0"))


def check_factors(problem, names):
    """Raise unless factors, those that are there, are one float32 each, of 8-bit floating operands."""
    for name, of in names:
        if (t := getattr(problem, name)) is None:
            continue
        if of.dtype not in FP8:
            raise TypeError(f"{problem.op}: {name} is for operands of {' or '.join(FP8)}, they are {of.dtype}")
        expect(problem.op, name, t, ("float32",), t.shape)
        if t.size != 1:
            raise ValueError(f"{problem.op}: {name} has shape {t.shape}; expected one element")


def check_quantization(problem):
    """Raise unless factors of probabilities and of the result, and their largest magnitudes, are one float32 each, of 8-bit operands."""
    check_factors(problem, ((name, problem.q) for name in (*FACTORS, *AMAX)))
    for name in AMAX:
        if getattr(problem, name) is not None and not problem.o.size:
            raise ValueError(f"{problem.op}: {name} of a result of shape {problem.o.shape}; expected one with elements")


def check_factor_values(problem, arrays):
    """ValueError where a factor is not positive; waits for the device."""
    from ..host.check import to_host
    for name in (*SCALES, *FACTORS):
        if arrays.get(name) is not None and not 0 < (value := to_host(arrays[name]).item()) < math.inf:
            raise ValueError(f"{problem.op}: {name} is {value}; expected a positive number")


def check_ragged(problem, name, offsets, lengths):
    """ValueError where a sequence of a ragged array does not begin with a row, or does not end in the array."""
    array = problem.array(name.removeprefix("ragged_"))
    rows, stride = (array.shape[-1], array.strides[-1]) if array.ndim == 2 else (array.shape[0], array.strides[0])
    first, odd = np.divmod(offsets[:-1].astype(np.int64), max(stride, 1))
    wrong = np.flatnonzero((odd != 0) | (first < 0) | (first + lengths > rows))
    if wrong.size:
        b = int(wrong[0])
        raise ValueError(f"{problem.op}: {name}[{b}] is {offsets[b]}; expected a multiple of the stride of rows, {stride}, from 0 to "
                         f"{max(rows - int(lengths[b]), 0) * stride}")


def check_pages(op, name, table, lengths, size, pages):
    """ValueError where a page that is used is none; `size` are the keys of one."""
    used = np.arange(table.shape[1]) * size < lengths[:, None]
    wrong = np.argwhere(used & ((table < 0) | (table >= pages)))
    if wrong.size:
        b, n = (int(i) for i in wrong[0])
        raise ValueError(f"{op}: {name}[{b}, {n}] is {table[b, n]}; expected a page, 0 to {pages - 1}")


def check_lengths(problem, arrays):
    """ValueError where a length, an offset or a page points beyond its tensor, or a factor is not positive; waits for the device."""
    from ..host.check import to_host
    check_factor_values(problem, arrays)
    for name, most in (("seq_len_q", problem.rows), ("seq_len_kv", problem.keys)):
        if arrays.get(name) is not None:
            lengths = to_host(arrays[name])
            wrong = np.flatnonzero((lengths < 0) | (lengths > most))
            if wrong.size:
                raise ValueError(f"{problem.op}: {name}[{wrong[0]}] is {lengths[wrong[0]]}; expected 0 to {most}")
    for name, most in (("cu_seqlens_q", problem.rows), ("cu_seqlens_kv", problem.keys)):
        if arrays.get(name) is not None:
            check_offsets(problem.op, name, to_host(arrays[name]), most)
    lengths = {name: to_host(arrays[name]).astype(np.int64) for name in ("seq_len_q", "seq_len_kv") if arrays.get(name) is not None}
    for name in problem.ragged_names:
        if arrays.get(name) is not None:
            check_ragged(problem, name, to_host(arrays[name]), lengths["seq_len_kv" if name[-1] in "kv" else "seq_len_q"])
    for name, paged in zip(("page_table_k", "page_table_v"), problem.paged):
        if paged and (size := problem.sizes(getattr(problem, name[-1]))[2]):
            check_pages(problem.op, name, to_host(arrays[name]), lengths["seq_len_kv"], size, getattr(problem, name[-1]).shape[0])
