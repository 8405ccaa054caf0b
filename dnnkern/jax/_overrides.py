"""Replacing what JAX compiles its operations to, and putting it back."""
import contextlib
import threading

import jax
import numpy as np
from jax._src.interpreters import mlir
from jax._src.lax import convolution, lax, windowed_reductions

from .. import NotSupported
from ..host.suggest import nearest
from . import _lower_attention, _lower_convolution, _lower_pool, _lower_product
from ._refused import Refused
from ._status import record
from ._xla import PLATFORM

_ERRORS = Refused, NotSupported, ValueError, TypeError
_GROUPS = {
    "convolution": ((convolution.conv_general_dilated_p, _lower_convolution.convolution),),
    "product": ((lax.dot_general_p, _lower_product.product),),
    "pool": ((windowed_reductions.reduce_window_max_p, _lower_pool.maximum), (windowed_reductions.reduce_window_sum_p, _lower_pool.total),
             (windowed_reductions.select_and_scatter_add_p, _lower_pool.maximum_gradient)),
    "attention": (),
}
_lock = threading.RLock()
_theirs = {}  # primitive -> JAX's own entry, where it had one for the platform
_groups = frozenset()


def enable(ops=tuple(_GROUPS), *, exclude=()):
    """Compile operations of JAX to this library's kernels, in all threads, until `disable`.

    Programs are compiled anew: what is compiled already is forgotten (``jax.clear_caches``). Operations on another platform than that of
    this library's device stay JAX's, and so does what it cannot compute: `status` says why.

    Parameters
    ----------
    ops : names
        Some of "convolution", "product" (``dot_general``), "pool" (``reduce_window`` of maxima and sums, and the gradient of maxima) and
        "attention" (`jax.nn.dot_product_attention`): a sequence, or one string with commas. Default: all.
    exclude : names
        Those that stay JAX's.

    Raises
    ------
    ValueError
        An unknown name.

    Notes
    -----
    A second call replaces the first.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, dnnkern.jax
    >>> dnnkern.jax.enable()
    >>> y = jax.jit(jnp.dot)(jnp.ones((2, 3)), jnp.ones((3, 4))).block_until_ready()
    >>> [row.op for row in dnnkern.jax.status(reset=True) if row.ours]
    ['dot_general']
    >>> dnnkern.jax.disable()
    """
    _install(_names("ops", ops) - _names("exclude", exclude))


def enable_for_run(ops, exclude, others):
    """`enable` by the words of ``python -m dnnkern run``: "heavy" and "all" are all groups; with `others` names that are none may be
    PyTorch's."""
    ops = set(filter(None, ops.replace(" ", "").split(",")))
    if ops & {"heavy", "all"}:
        ops = set(_GROUPS)
    enable(ops & _GROUPS.keys() if others else ops, exclude=_GROUPS.keys() & set(exclude) if others else exclude)


def disable():
    """Compile all operations as JAX does."""
    _install(frozenset())


@contextlib.contextmanager
def enabled(ops=tuple(_GROUPS), *, exclude=()):
    """`enable` in a block, after which it is as before.

    Examples
    --------
    >>> import jax.numpy as jnp, dnnkern.jax
    >>> with dnnkern.jax.enabled("product"):
    ...     y = jnp.dot(jnp.ones(3), jnp.ones((3, 2))).block_until_ready()
    >>> print(y)
    [3. 3.]
    """
    before = _groups
    enable(ops, exclude=exclude)
    try:
        yield
    finally:
        _install(before)


def _names(argument, names):
    names = frozenset(filter(None, names.replace(" ", "").split(",")) if isinstance(names, str) else names)
    for name in sorted(names - _GROUPS.keys(), key=str):
        raise ValueError(f"enable: {argument} has {name!r}{nearest(str(name), _GROUPS)}; expected some of {', '.join(_GROUPS)}")
    return names


def _install(groups):
    """Make JAX compile what these groups say."""
    global _groups
    with _lock:
        for primitive, entry in _theirs.items():
            rules = mlir._platform_specific_lowerings[PLATFORM]
            if entry is None:
                rules.pop(primitive, None)
            else:
                rules[primitive] = entry
        _theirs.clear()
        for group in sorted(groups):
            for primitive, choose in _GROUPS[group]:
                _replace(primitive, choose)
        _lower_attention.install("attention" in groups)
        _groups = groups
        jax.clear_caches()


def _replace(primitive, choose):
    special = mlir._platform_specific_lowerings[PLATFORM].get(primitive)
    _theirs[primitive] = special
    back = (special or mlir._lowerings[primitive]).rule

    def lower(ctx, *operands, **params):
        try:
            ours = _chosen(primitive.name, choose, ctx, params)
        except _ERRORS as error:
            record(primitive.name).refuse(str(error))
            return back(ctx, *operands, **params)
        return mlir.lower_fun(ours, multiple_results=False)(ctx, *operands)
    mlir.register_lowering(primitive, lower, platform=PLATFORM)


def _chosen(name, choose, ctx, params):
    """A function of the operands, whose result this library computes; one of `_ERRORS` if it cannot."""
    avals, (result,) = ctx.avals_in, ctx.avals_out
    for aval in (*avals, result):
        if not all(isinstance(n, int) for n in aval.shape):
            raise Refused(f"shape {aval.shape}")
        if np.dtype(aval.dtype).name not in ("float32", "float64", "float16", "bfloat16"):
            raise Refused(f"dtype {np.dtype(aval.dtype).name}")
        if 0 in aval.shape:
            raise Refused("no elements")
    ours = choose(name, *avals, result, **params)
    made = jax.eval_shape(ours, *[jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals])  # by this library's own checks
    if (made.shape, made.dtype) != (result.shape, result.dtype):
        raise Refused(f"result {result.str_short()}")
    return ours
