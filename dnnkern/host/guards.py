"""Whether torch tensors still are what they were, shape, strides, dtype, device and all, in one call of C for any number of them.

TorchDynamo guards its compiled functions so. It is no public interface of PyTorch: it is examined before it is first used, and where it is
missing, or overlooks a change that matters, each tensor is described at every call.
"""
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
