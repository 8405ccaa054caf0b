"""Registering overrides with PyTorch's dispatcher, and taking them back."""
import contextlib
import functools
import threading
import time
import warnings
from collections import deque
from typing import NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from .. import NotSupported
from ..device._fork import in_forked_child
from ..host.front import MISS
from ..preference import OPEN, USED, context_of, of_context
from ._above import is_pytorchs
from ._context import callers
from ._compiled import compiled_graphs, forget_kernel
from ._repeated import repeated
from ._status import record
from ._table import HEAVY, Refused, selected, table
from ._tensors import KEY

OLDEST = (2, 9)
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, list, tuple, int, float, bool, str, type(None), torch.dtype, torch.device})
# Above autograd compilers trace: a tensor may be one of theirs, without values.
_TRACED = _PLAIN | {FakeTensor, FunctionalTensor}
_ERRORS = Refused, NotSupported, ValueError, TypeError
_ERRORS_ABOVE = *_ERRORS, NotImplementedError  # the dispatcher's, of sparse tensors: they come here, too
_clock = time.perf_counter_ns
# torch.jit.trace records not these but the operators that they call, and shapes have tensors for numbers meanwhile.
_IN_PARTS = frozenset({"convolution"})
_tracing = torch._C._get_tracing_state


class _Request(NamedTuple):
    """One call of `enable`, or a block of `enabled`."""
    names: frozenset
    strict: bool


_base = None  # what `enable` asks for
_blocks = []  # what the blocks of `enabled` ask for, the latest last: each an object of its own
_library = None
# A thread may be in a kernel that another one takes back: what was registered last is kept alive.
_retired = deque(maxlen=1024)


def _unlock():
    global _lock
    _lock = threading.RLock()


_unlock()
in_forked_child(_unlock)


def enable(ops=HEAVY, *, exclude=(), strict=False):
    """Run operators of PyTorch on this library's kernels, in all threads, until `disable`.

    They are overridden for CUDA tensors, or without a GPU for CPU tensors; others stay PyTorch's.

    Parameters
    ----------
    ops : "heavy", "all", or names
        "heavy": operators that take most of a program's time, such as convolutions, matrix products, normalisations, attention. "all":
        activations and pointwise operators too. Names of aten operators ("mm", "convolution_backward") or of groups of them, the files
        of ``dnnkern/torch/ops`` ("product"): a sequence, or one string with commas.
    exclude : names
        Operators or groups that stay PyTorch's.
    strict : bool
        Raise `dnnkern.NotSupported` where a call goes back to PyTorch's kernel, after that kernel has run; what PyTorch itself raises
        stays as it is.

    Raises
    ------
    ValueError
        A name that is neither an operator in the table nor a group.
    RuntimeError
        PyTorch is older than 2.9.

    Notes
    -----
    A second call replaces the first. Graphs that torch.compile keeps on disk are told apart by the overrides above autograd
    (``torch.compiler.config.cache_key_tag``), and compiled functions are compiled anew when those change.

    Examples
    --------
    >>> import torch, dnnkern.torch
    >>> dnnkern.torch.enable()
    >>> conv = torch.nn.Conv2d(3, 8, 3, padding=1)
    >>> y = conv(torch.randn(1, 3, 6, 6)).sum().backward()
    >>> sorted(row.op for row in dnnkern.torch.status(reset=True) if row.ours)
    ['convolution', 'convolution_backward']
    >>> dnnkern.torch.disable()
    """
    global _base
    request = _Request(selected(ops, exclude), bool(strict))
    with _lock:
        before, _base = _base, request
        try:
            _install()
        except BaseException:
            _base = before
            raise


def disable():
    """Give all operators back to PyTorch, those of blocks of `enabled` too."""
    global _base
    with _lock:
        _base = None
        _blocks.clear()
        _install()


@contextlib.contextmanager
def enabled(ops=HEAVY, *, exclude=(), strict=False):
    """`enable` in a block, for all threads; afterwards what was before.

    Parameters
    ----------
    ops, exclude, strict
        As in `enable`.

    Notes
    -----
    Blocks may be nested and may end in any order, also in different threads: the latest that has not ended decides, then `enable`.

    Examples
    --------
    >>> import torch, dnnkern.torch
    >>> with dnnkern.torch.enabled("softmax", strict=True):
    ...     torch.softmax(torch.zeros(2), 0)
    tensor([0.5000, 0.5000])
    """
    request = _Request(selected(ops, exclude), bool(strict))
    with _lock:
        _blocks.append(request)
        try:
            _install()
        except BaseException:
            _leave(request)
            raise
    try:
        yield
    finally:
        with _lock:
            _leave(request)


def _request():
    """The request that holds: of the latest block that has not ended, then that of `enable`; None if there is none."""
    blocks = _blocks[-1:]  # another thread may end a block meanwhile
    return blocks[0] if blocks else _base


def is_overridden(name):
    """Whether calls of an operator come to this library now.

    Parameters
    ----------
    name : str
        An aten operator with its overload: "mm", "mm.out".

    Returns
    -------
    bool

    Examples
    --------
    >>> import dnnkern.torch
    >>> with dnnkern.torch.enabled("product"):
    ...     dnnkern.torch.is_overridden("mm"), dnnkern.torch.is_overridden("convolution")
    (True, False)
    """
    request = _request()
    return request is not None and name in request.names


def _leave(request):
    """End a block; nothing to do if `disable` has."""
    left = [other for other in _blocks if other is not request]
    if len(left) != len(_blocks):
        _blocks[:] = left
        _install()


def _install():
    """Make the dispatcher what the latest request says. If it fails no override remains."""
    global _library
    if _library is not None:
        _library._destroy()
        _library = None
    request = _request()
    overrides = [table()[name] for name in sorted(request.names)] if request else []
    compiled_graphs(o.name for o in overrides if o.composite)
    for override in table().values():
        if override.composite:
            forget_kernel(override.name)
    if not overrides:
        return
    if tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST:
        raise RuntimeError(f"enable: this is PyTorch {torch.__version__}; expected {'.'.join(map(str, OLDEST))} or newer")
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Warning only once for all operators")
            for override in overrides:
                for key in (f"Autograd{KEY}", KEY) if override.composite else (KEY,):
                    _register(library, override, key, request.strict)
    except BaseException:
        library._destroy()
        raise
    _library = library


def _register(library, override, key, strict):
    """Register one override, where PyTorch has the operator."""
    name = f"aten::{override.name}"
    if not _exists(name, key):
        return
    original = torch.library.get_kernel(name, key).call_boxed
    if override.composite:
        library.impl(override.name, _caller_above(override, original, strict), key, with_keyset=True)
    else:  # a kernel of a backend goes nowhere else, and to make an object of the key set is a tenth of what an override costs
        back = functools.partial(original, torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key)))
        caller = _caller_with_numbers if override.numbers else _caller
        library.impl(override.name, caller(override, back, strict), key)
    _retired.append(torch.library.get_kernel(name, key))


def _exists(name, key):
    """Whether PyTorch, as it was built, has a kernel of this operator."""
    try:
        return torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, key)
    except RuntimeError:  # no operator of this name
        return False


class _Within(threading.local):
    """Whether the next call in this thread is PyTorch's."""
    is_back = False


def _untraced(function):
    """The function, which PyTorch's compiler leaves alone with all that it calls. Where a compiled program breaks off its graph operators
    are called as ever, and the compiler looks at what they call in Python. `torch.compiler.disable` would import the compiler."""
    compiler = torch._C._dynamo.eval_frame
    skip = compiler._FrameAction.SKIP
    compiler.set_code_exec_strategy(function.__code__, compiler._FrameExecStrategy(skip, skip))
    return function


def _caller_with_numbers(override, back, strict):
    """`_caller` for an operator that takes numbers for tensors.

    The dispatcher hands kernels tensors that are marked as numbers, functions of Python get numbers instead, and only a call of `torch.ops`
    makes such tensors of them again. So PyTorch's kernel is called from within one, which comes back here.
    Programs have calls everywhere that are none of this library's (`Override.numbers`): they are not counted.
    """
    here = _Within()
    packet, _, overload = override.name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def back_with_numbers(*args, **kwargs):
        if isinstance(args[0], torch.Tensor) and isinstance(args[1], torch.Tensor):
            return back(*args, **kwargs)
        here.is_back = True
        try:
            return operator(*args, **kwargs)
        finally:
            here.is_back = False
    call, is_theirs = _caller(override, back_with_numbers, strict), override.numbers

    def function(*args, **kwargs):
        if here.is_back:
            here.is_back = False
            return back(*args, **kwargs)
        return back_with_numbers(*args, **kwargs) if is_theirs(*args, **kwargs) else call(*args, **kwargs)
    return _untraced(function)


def _caller(override, back, strict):
    """What PyTorch calls for an operator; `back` is its own kernel."""
    function, counts, plain = override.function, record(override.name), _PLAIN.issuperset
    shortened, run, in_parts = None, function, override.name in _IN_PARTS
    if override.state:
        known = repeated(function, override.state)
        shortened, run = known.shortened, known.call

    def call(*args, **kwargs):
        if OPEN and (pairs := callers()):
            with context_of(pairs):
                return call(*args, **kwargs)
        start = _clock()
        try:
            if in_parts and _tracing() is not None:
                raise Refused("torch.jit traces it, and records what PyTorch's calls")
            result = MISS if shortened is None or kwargs or USED and of_context() else shortened(args)
            if result is MISS:
                if not plain(map(type, args)):
                    raise Refused(_foreign(args))
                result = run(*args, **kwargs)
        except _ERRORS as error:
            return _back(override, counts, start, error, strict, back, args, kwargs)
        counts.calls += 1
        counts.nanoseconds += _clock() - start
        return result
    return _untraced(call)


def _caller_above(override, original, strict):
    """The same above autograd, where the operators that it calls count."""
    function, counts, plain = override.function, record(override.name), _TRACED.issuperset

    def call(keyset, *args, **kwargs):
        if is_pytorchs():
            return original(keyset, *args, **kwargs)
        if OPEN and (pairs := callers()):
            with context_of(pairs):
                return call(keyset, *args, **kwargs)
        start = _clock()
        try:
            if not plain(map(type, args)):
                raise Refused(_foreign(args))
            return function(*args, **kwargs)
        except _ERRORS_ABOVE as error:
            return _back(override, counts, start, error, strict, functools.partial(original, keyset), args, kwargs)
    return _untraced(call)


def _back(override, counts, start, error, strict, back, args, kwargs):
    """The result of PyTorch's kernel. Nothing has run yet, and of a call that is wrong PyTorch says what is wrong."""
    result = back(*args, **kwargs)
    counts.refuse(str(error), _clock() - start)
    if strict:
        raise NotSupported(f"{override.name}: PyTorch's kernel ran: {error}") from error
    return result


def _foreign(args):
    found = next(type(a) for a in args if type(a) not in _PLAIN)
    return f"an argument is a {found.__module__}.{found.__qualname__}, no plain tensor"
