"""JAX's primitive of all calls: shapes by this library's checks, XLA's custom call, vmap."""
import functools

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ._batching import FOLDS
from ._call import Call, results_of
from ._xla import PLATFORM, TARGET, register

register()
primitive = Primitive("dnnkern")
primitive.multiple_results = True


def bind(call: Call, operands):
    """The tuple of results."""
    return tuple(primitive.bind(*operands, call=call))


@functools.lru_cache(maxsize=4096)
def _jitted(call):
    return jax.jit(functools.partial(primitive.bind, call=call))


@primitive.def_impl
def _outside_of_jit(*operands, call):
    return _jitted(call)(*operands)


@primitive.def_abstract_eval
def _shapes(*avals, call):
    found = results_of(call, tuple((tuple(a.shape), np.dtype(a.dtype).name) for a in avals))
    return [jax.core.ShapedArray(shape, dtype) for shape, dtype in found]


def _lower(ctx, *operands, call):
    return jax.ffi.ffi_lowering(TARGET)(ctx, *operands, call=call.text())


def _elsewhere(ctx, *operands, call):
    platforms = ", ".join(ctx.module_context.platforms)
    raise NotImplementedError(f"{call.function}: the program is compiled for {platforms}; expected {PLATFORM}, the device of this process "
                              "(DNNKERN_DEVICE)")


mlir.register_lowering(primitive, _elsewhere)
mlir.register_lowering(primitive, _lower, platform=PLATFORM)


def _no_gradient(primals, tangents, *, call):
    raise NotImplementedError(f"{call.function} has no derivative in dnnkern.jax")


def _batched(operands, dims, *, call):
    """vmap: the batch is folded into a dimension that the function has; where it has none, one call after the other."""
    size = next(x.shape[d] for x, d in zip(operands, dims) if d is not None)
    moved = [x if d is None else jax.numpy.moveaxis(x, d, 0) for x, d in zip(operands, dims)]
    is_batched = [d is not None for d in dims]
    fold = FOLDS.get(call.function)
    results = fold(call, moved, is_batched, size, bind) if fold else None
    if results is None:
        each = [x for x, b in zip(moved, is_batched) if b]

        def one(arrays):
            rest = iter(arrays)
            return bind(call, [next(rest) if b else x for x, b in zip(moved, is_batched)])
        results = jax.lax.map(one, each)
    return results, [0] * len(results)


ad.primitive_jvps[primitive] = _no_gradient
batching.primitive_batchers[primitive] = _batched
