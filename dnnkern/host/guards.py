"""What PyTorch has for code that it compiles: whether tensors still are what they were, shape, strides, dtype, device and all, in one call
of C for any number of them; new tensors in half the time.

It is no public interface: it is examined before it is first used. Where guards are missing, or overlook a change that matters, each tensor
is described at every call; where tensors come out otherwise, they are made by `torch.empty_strided`.
"""
import contextlib
import functools


def make_guard(tensors):
    """``check(*tensors)``: whether each has the type, shape, strides, dtype, device and kind (sparse, negated) that it has now.
    None where nobody can tell.

    `check` keeps no tensor alive. It says no, too, where one tensor comes twice, where another mode of the thread is on (autocast), and
    where `requires_grad` is another.
    """
    if not _is_sound():
        return None
    return _make(tensors)


def _make(tensors):
    from torch._C._dynamo.guards import TensorGuards
    return TensorGuards(*tensors, dynamic_dims_sizes=[list(t.shape) for t in tensors],
                        dynamic_dims_strides=[list(t.stride()) for t in tensors]).check


@functools.cache
def _is_sound():
    """Whether guards exist, accept what is alike, and notice every change."""
    try:
        import torch
        first, second = torch.zeros(2, 3), torch.zeros(2, 3)
        check = _make([first, second])
        others = [torch.zeros(2, 4), torch.zeros(3, 2).t(), torch.zeros(2, 3, 1), torch.zeros(2, 3, dtype=torch.float64),
                  torch.zeros(2, 3, device="meta"), torch.nn.Parameter(torch.zeros(2, 3)), torch.zeros(2, 3).to_sparse(),
                  torch.zeros(2, 3, dtype=torch.complex64).conj().imag, None]
        strided = torch.zeros(2, 6)[:, ::2]  # as the negated one lies
        sound = (check(first, second) and check(torch.ones(2, 3), torch.ones(2, 3)) and _make([strided])(torch.ones(2, 6)[:, ::2])
                 and not any(check(first, other) for other in others) and not _make([strided])(others[-2]))
        for change in (lambda t: t.t_(), lambda t: t.resize_(2, 2), lambda t: t.as_strided_((2, 3), (0, 1)), lambda t: t.unsqueeze_(0),
                       lambda t: t.set_(torch.zeros(2, 4)), lambda t: setattr(t, "data", torch.zeros(3, 2).t())):
            changed = torch.zeros(2, 3)
            known = check(first, changed)
            change(changed)
            sound = sound and known and not check(first, changed)
        return bool(sound)
    except Exception:  # of a version that has it otherwise
        return False


def make_allocator(where, device, shape, strides, dtype):
    """``make()``: a new tensor on "cuda" or "cpu", on the device of that number."""
    import torch
    dtype = getattr(torch, dtype)
    plain = functools.partial(torch.empty_strided, shape, strides, dtype=dtype, device=torch.device(where, device))
    direct = _direct(where, device, dtype)
    if direct is None:
        return plain
    quick = functools.partial(direct, shape, strides, dtype)
    if where == "cpu" or torch.cuda.device_count() == 1:
        return quick
    current = torch._C._cuda_getDevice  # where the quick one allocates
    return lambda: quick() if current() == device else plain()


@functools.cache
def _direct(where, device, dtype):
    """What makes a tensor without PyTorch's dispatch, ``f(shape, strides, dtype)``, on the current device; None where there is no such
    thing, or what it makes differs."""
    try:
        import torch
        from torch._C._dynamo import guards
        direct, of = getattr(guards, f"_empty_strided_{where}"), torch.device(where, device)
        with torch.cuda.device(device) if where == "cuda" else contextlib.nullcontext():
            for shape, strides in (((2, 3), (3, 1)), ((), ()), ((0, 4), (4, 1)), ((3,), (1,))):
                one, other = direct(shape, strides, dtype), torch.empty_strided(shape, strides, dtype=dtype, device=of)
                if _said(one) != _said(other):
                    return None
        return direct
    except Exception:  # of a version that has it otherwise
        return None


def _said(tensor):
    """What a tensor says of itself."""
    return (type(tensor), tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device, tensor.layout,
            tensor.requires_grad, tensor.is_inference(), tensor.is_neg(), tensor.is_conj(), tensor.untyped_storage().nbytes(),
            tensor.untyped_storage().resizable(), tensor.data_ptr() % 16)
