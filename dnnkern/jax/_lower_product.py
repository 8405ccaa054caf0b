"""``dot_general`` as `matmul`."""
import math

import jax.numpy as jnp
import numpy as np

from ._refused import Refused, math_of, run


def product(name, a, b, result, *, dimension_numbers, precision, preferred_element_type, **_):
    """A function of the operands of ``dot_general``."""
    (contract_a, contract_b), (batch_a, batch_b) = dimension_numbers
    if not contract_a:
        raise Refused("an outer product")
    if a.dtype != b.dtype:
        raise Refused(f"dtypes {a.dtype} and {b.dtype}")
    how = {"math": math_of(precision, a.dtype)}
    if result.dtype != a.dtype:
        how["out_dtype"] = np.dtype(result.dtype).name
    matrix_a, transposed_a = _matrices(a.shape, batch_a, contract_a)
    matrix_b, transposed_b = _matrices(b.shape, batch_b, contract_b)

    def ours(a, b):
        y = run(name, "matmul", {"a": matrix_a(a), "b": matrix_b(b)}, transpose_a=transposed_a, transpose_b=not transposed_b, **how)
        return y.reshape(result.shape)
    return ours


def _matrices(shape, batch, contract):
    """(function to matrices of the free and the contracted dimensions, whether those are (contracted, free))."""
    free = tuple(i for i in range(len(shape)) if i not in (*batch, *contract))
    rows, columns = ((math.prod(shape[i] for i in part)) for part in (free, contract))
    first = (*batch, *free, *contract)
    second = (*batch, *contract, *free)
    transposed = second == tuple(range(len(shape))) != first
    order = second if transposed else first
    lead = tuple(shape[i] for i in batch)

    def matrices(x):
        return jnp.transpose(x, order).reshape(*lead, *((columns, rows) if transposed else (rows, columns)))
    return matrices, transposed
