"""What a cached call on torch's tensors keeps from the last one, and what makes its results."""
import functools
import math

import pytest
from cached import abc_fixture, now, product, seen_fixture, tensors, torch  # noqa: F401 (fixtures)

from dnnkern.device import SIMULATED
from dnnkern.host import guards

pytestmark = pytest.mark.skipif(not SIMULATED, reason="host logic, tried where no GPU is used")


# ---- values that are in the frame already

def test_zeros_of_both_signs_are_numbers_of_their_own(abc, seen):
    for alpha in (0.0, -0.0, 0.0, -0.0):
        for _ in range(3):
            product(*abc, alpha=alpha)
            assert math.copysign(1, seen.values[-1][-2]) == math.copysign(1, alpha)


class Packing:
    """`Executable.pack` of the site of a product that is made for the second time now; `then` is called once a call's values are packed."""

    def __init__(self, arrays):
        from dnnkern.matmul import OPERATION
        product(*arrays)
        (bound,) = OPERATION.calls.values()
        self.pack, self.count, self.then = bound.executable.pack, 0, None
        bound.executable.pack = self
        for _ in range(3):
            product(*arrays)

    def __call__(self, *values):
        self.pack(*values)
        self.count += 1
        then, self.then = self.then, None
        if then is not None:
            then()


def test_the_same_values_are_packed_once(seen):
    found, others = (tensors((4, 8), (8, 3), (4, 3)) for _ in range(2))
    packing = Packing(found)
    before = packing.count
    for _ in range(3):
        product(*found)
        assert now(seen, *found)
    assert packing.count == before
    for arrays in (others, found):
        product(*arrays)
        assert now(seen, *arrays)
    assert packing.count == before + 2


def test_an_interrupt_while_values_are_packed(seen):
    """The next call launches its own values, whichever of the two it is."""
    def interrupt():
        raise KeyboardInterrupt
    found, others = (tensors((4, 8), (8, 3), (4, 3)) for _ in range(2))
    packing = Packing(found)
    for arrays in (found, others):
        product(*found)
        packing.then = interrupt
        with pytest.raises(KeyboardInterrupt):
            product(*others)
        product(*arrays)
        assert now(seen, *arrays)


def test_a_call_while_values_are_packed(seen):
    """By a finalizer, say: what the frame holds then is the inner call's."""
    found, others = (tensors((4, 8), (8, 3), (4, 3)) for _ in range(2))
    packing = Packing(found)
    for first in (found, others):
        product(*found)
        packing.then = lambda: product(*found)
        product(*others)
        for arrays in (first, others, found):
            product(*arrays)
            assert now(seen, *arrays)


# ---- new tensors: PyTorch's quick way, where it does what `torch.empty_strided` does

@pytest.fixture(autouse=True)
def forget():
    guards._direct.cache_clear()
    yield
    guards._direct.cache_clear()


@pytest.mark.parametrize("shape, strides", [((), ()), ((2, 3), (3, 1)), ((4, 0), (1, 1))])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8", "float64"])
def test_allocators_are_quick_and_alike(shape, strides, dtype):
    make = guards.make_allocator("cpu", 0, shape, strides, dtype)
    assert make.func is not torch.empty_strided
    one, other, plain = make(), make(), torch.empty_strided(shape, strides, dtype=getattr(torch, dtype))
    assert guards._said(one) == guards._said(plain) and (one.data_ptr() != other.data_ptr() or not one.numel())


@pytest.mark.parametrize("wrong", [None, lambda shape, strides, dtype: torch.empty(shape, dtype=dtype).requires_grad_(),
                                   lambda shape, strides, dtype: torch.zeros((*shape, 1), dtype=dtype),
                                   lambda shape, strides: torch.zeros(shape)])
def test_allocators_are_plain_where_the_quick_way_is_missing_or_another(monkeypatch, wrong):
    from torch._C._dynamo import guards as theirs
    if wrong is None:
        monkeypatch.delattr(theirs, "_empty_strided_cpu")
    else:
        monkeypatch.setattr(theirs, "_empty_strided_cpu", wrong)
    make = guards.make_allocator("cpu", 0, (2, 3), (3, 1), "float32")
    assert make.func is torch.empty_strided and make().shape == (2, 3)


def test_an_allocator_of_one_device_among_several(monkeypatch):
    """The quick way allocates on the current one."""
    made, current = [], [1]
    monkeypatch.setattr(guards, "_direct", functools.cache(lambda where, device, dtype: lambda *given: made.append(given)))
    monkeypatch.setattr(torch, "empty_strided", lambda *given, **how: how["device"])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: current[0], raising=False)
    make = guards.make_allocator("cuda", 1, (2,), (1,), "float32")
    assert make() is None and made == [((2,), (1,), torch.float32)]
    current[0] = 0
    assert make() == torch.device("cuda", 1) and len(made) == 1
