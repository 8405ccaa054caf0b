"""The public functions for JAX: with its arrays, inside of jit, with gradients where `_gradients` has them."""
import functools
import inspect

import jax
import numpy as np

from ..dispatch import CHOICE
from ..host.suggest import nearest
from ..preference import VARIABLE, within
from ._call import make_call, public
from ._gradients import GRADIENTS
from ._primitive import bind

NAMES = (
    "activation_bwd", "activation_fwd", "adaptive_avg_pool_bwd", "adaptive_avg_pool_fwd", "adaptive_max_pool_bwd", "adaptive_max_pool_fwd",
    "argreduce", "avg_pool_bwd", "avg_pool_fwd", "batch_norm_bwd", "batch_norm_infer", "batch_norm_train_fwd", "binary", "cast",
    "conv_bwd_bias", "conv_bwd_data", "conv_bwd_filter", "conv_fwd", "conv_transpose_fwd", "cross_entropy_bwd", "cross_entropy_fwd",
    "ctc_loss_bwd", "ctc_loss_fwd", "dropout_bwd", "dropout_fwd", "embedding_bwd", "embedding_fwd", "glu_bwd", "glu_fwd",
    "grid_sample_bwd", "grid_sample_fwd", "group_norm_bwd", "group_norm_fwd", "grouped_matmul", "instance_norm_bwd", "instance_norm_fwd",
    "layer_norm_bwd", "layer_norm_fwd", "lrn_bwd", "lrn_fwd", "matmul", "max_pool_bwd", "max_pool_fwd", "mse_loss_bwd", "mse_loss_fwd",
    "nll_loss_bwd", "nll_loss_fwd", "reduce", "resample_bwd", "resample_fwd", "rms_norm_bwd", "rms_norm_fwd", "rope_bwd", "rope_fwd",
    "sdpa_bwd", "sdpa_decode", "sdpa_fwd", "softmax_bwd", "softmax_fwd", "unary")
"""Functions of arrays alone, which write nothing but their results."""
_OF_XLA = frozenset({"out", "workspace", "stream", *CHOICE})
_IN_PLACE = frozenset({"running_mean", "running_var"})


def _is_array(value):
    return isinstance(value, (jax.Array, np.ndarray))


def compute(function, arrays, counted=None, **static):
    """The results of a public function for ``{name: array}`` without None; `counted` is its name in `status`."""
    arrays = {name: jax.numpy.asarray(x) for name, x in arrays.items()}
    call = make_call(function, arrays, static, counted)
    operands = tuple(arrays.values())
    if function not in GRADIENTS:
        results = bind(call, operands)
    else:
        results = _differentiable(call, operands)
        also = GRADIENTS[function].also(static)
        results = tuple(y if i in also else jax.lax.stop_gradient(y) for i, y in enumerate(results))
    return results[0] if len(results) == 1 else results


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _differentiable(call, operands):
    return bind(call, operands)


def _forward(call, operands):
    gradient, given = GRADIENTS[call.function], dict(zip(call.arrays, operands))
    for name, x in given.items():
        if x.perturbed and name not in gradient.of and jax.numpy.issubdtype(x.value.dtype, jax.numpy.floating):
            raise NotImplementedError(f"{call.function}: {name} has no gradient in dnnkern.jax; expected one that none is asked for "
                                      "(jax.lax.stop_gradient)")
    arrays = {name: x.value for name, x in given.items()}
    found = gradient.forward and gradient.forward(functools.partial(_again, call), arrays, dict(call.static))
    results, kept = found or (_differentiable(call, tuple(arrays.values())), None)
    return results, (tuple(arrays.values()), results, kept)


def _again(call, function, arrays, **static):
    """`compute` under the preference that the call was traced with."""
    given = {name: x for name, x in arrays.items() if x is not None}
    missing = {name: None for name, x in arrays.items() if x is None and _signature(function).parameters[name].default is inspect._empty}
    counted = call.counted if call.counted != call.function else None
    with within(VARIABLE, call.prefer):
        return compute(function, given, counted, **static, **missing)


def _backward(call, residuals, dys):
    operands, results, kept = residuals
    arrays = dict(zip(call.arrays, operands))
    dys = tuple(jax.numpy.zeros(y.shape, y.dtype) if isinstance(dy, jax.custom_derivatives.SymbolicZero) else dy
                for y, dy in zip(results, dys))
    found = GRADIENTS[call.function].backward(functools.partial(_again, call), arrays, dict(call.static), results, dys, kept)
    return tuple(_cotangent(x, found.get(name)) for name, x in arrays.items()),


def _cotangent(x, found):
    if not jax.numpy.issubdtype(x.dtype, jax.numpy.floating):
        return np.zeros(x.shape, jax.dtypes.float0)
    return jax.numpy.zeros(x.shape, x.dtype) if found is None else found.astype(x.dtype)


_differentiable.defvjp(_forward, _backward, symbolic_zeros=True)


@functools.cache
def _signature(name):
    signature = inspect.signature(public(name))
    return signature.replace(parameters=[p for p in signature.parameters.values() if p.name not in _OF_XLA and p.name != "choice"])


def _check(name, kwargs):
    """TypeError for arguments that the function has elsewhere."""
    for given in kwargs:
        if given in _OF_XLA:
            raise TypeError(f"{name}: {given} is not an argument in dnnkern.jax: XLA allocates results and has a stream, and "
                            "dnnkern.dispatch.prefer selects algorithms")
        if given in _IN_PLACE and kwargs[given] is not None:
            raise TypeError(f"{name}: {given} would be updated in place, as no array of JAX can be; expected None: the statistics of "
                            "the batch are among the results")


@functools.cache
def function(name):
    """The function of this name for JAX's arrays; AttributeError if there is none."""
    if name not in NAMES:
        raise AttributeError(f"module 'dnnkern.jax' has no attribute {name!r}{nearest(name, NAMES)}")
    signature = _signature(name)

    @functools.wraps(public(name))
    def call(*args, **kwargs):
        _check(name, kwargs)
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from None
        given.update(given.pop("parameters", {}))
        _check(name, given)
        arrays = {key: value for key, value in given.items() if _is_array(value)}
        required = {key for key, p in signature.parameters.items() if p.default is p.empty}
        static = {key: value for key, value in given.items() if key not in arrays and (value is not None or key in required)}
        return compute(name, arrays, **static)
    call.__signature__, call.__module__ = signature, "dnnkern.jax"
    call.__doc__ = f"`dnnkern.{name}` of JAX's arrays, inside of jit, grad and vmap too. Arguments and results are its.\n"
    return call
