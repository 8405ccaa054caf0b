"""Overrides' calls like earlier ones, as on a GPU (`bench.pretend`): nothing is found out again, and all that changed is noticed."""
import pytest
from cached import now, pretended_gpu, seen_fixture, tensors, torch  # noqa: F401 (fixtures)

import dnnkern.torch
from dnnkern import dispatch
from dnnkern.device import SIMULATED
from dnnkern.torch import _overrides, _repeated
from dnnkern.torch._table import nothing
from dnnkern.torch.ops import convolution, norm, product

pytestmark = pytest.mark.skipif(not SIMULATED, reason="host logic, tried where no GPU is used")
CONV = [1, 1], [1, 1], [1, 1], False, [0, 0], 1
ATEN = torch.ops.aten
FUNCTIONS = (product.mm, product.addmm, convolution.convolution, convolution.convolution_backward, norm.batch_norm,
             norm.layer_norm_backward)


@pytest.fixture(autouse=True)
def overridden():
    for function in FUNCTIONS:
        _of(function).forget()
    with dnnkern.torch.enabled(strict=True):
        yield


def _of(function):
    from dnnkern.torch._table import table
    override = next(o for o in table().values() if o.function is function)
    return _repeated.repeated(override.function, override.state)


@pytest.fixture
def entered(monkeypatch):
    """How often overrides themselves have run."""
    found = []
    for of in FUNCTIONS:
        known = _of(of)
        monkeypatch.setattr(known, "function", lambda *args, f=of, **kwargs: found.append(f.__name__) or f(*args, **kwargs))
    return found


def repeat(call, times=5):
    for _ in range(times):
        result = call()
    return result


def test_a_product(seen, entered):
    a, b = tensors((4, 8), (8, 3))
    repeat(lambda: torch.mm(a, b))
    count = len(entered)
    seen.clear()
    others = tensors((4, 8), (8, 3))
    y = torch.mm(*others)
    assert len(entered) == count < 5 and now(seen, *others, y)
    assert y.shape == (4, 3) and not seen.described
    repeat(lambda: torch.mm(tensors((4, 8))[0], tensors((8, 5))[0]))
    assert len(entered) > count, "another width"
    count = len(entered)
    assert torch.mm(*others).shape == (4, 3) and len(entered) == count, "both are known"


def test_images_with_channels_last(seen, entered):
    x, w = (t.to(memory_format=torch.channels_last) for t in tensors((2, 4, 6, 6), (8, 4, 3, 3)))
    first = repeat(lambda: ATEN.convolution(x, w, None, *CONV))
    count = len(entered)
    y = ATEN.convolution(x, w, None, *CONV)
    assert len(entered) == count and y.stride() == first.stride() and y.is_contiguous(memory_format=torch.channels_last)
    assert now(seen, x, w, y)


def test_a_gradient_of_two_calls(seen, entered):
    x, w, dy = tensors((2, 4, 6, 6), (8, 4, 3, 3), (2, 8, 6, 6))

    def call(mask=(True, True, False)):
        return ATEN.convolution_backward(dy, x, w, None, *CONV, list(mask))
    repeat(call)
    count = len(entered)
    seen.clear()
    dx, dw, db = call()
    assert len(entered) == count and db is None and (dx.shape, dw.shape) == (x.shape, w.shape)
    by_data, by_weights = (dy, w, dx), (x, dy, dw)
    assert [values[:3] for values in seen.values[-2:]] == [tuple(t.data_ptr() for t in some) for some in (by_data, by_weights)]
    assert call((True, False, False))[1] is None and len(entered) == count + 1


@pytest.mark.parametrize("change", [
    lambda a: {"stride": [2, 2]}, lambda a: {"groups": 2, "w": torch.ones(8, 2, 3, 3)}, lambda a: {"bias": torch.ones(8)},
    lambda a: {"x": a["x"].to(memory_format=torch.channels_last)}, lambda a: {"x": a["x"].double(), "w": a["w"].double()}])
def test_what_differs_is_not_repeated(seen, entered, change):
    a = {"x": torch.ones(2, 4, 6, 6), "w": torch.ones(8, 4, 3, 3), "bias": None, "stride": [1, 1], "groups": 1}

    def call(x, w, bias, stride, groups):
        return ATEN.convolution(x, w, bias, stride, [1, 1], [1, 1], False, [0, 0], groups)
    repeat(lambda: call(**a))
    count = len(entered)
    call(**a)
    assert len(entered) == count
    other = {**a, **change(a)}
    y = call(**other)
    assert len(entered) == count + 1 and y.dtype == other["x"].dtype
    assert y.is_contiguous(memory_format=torch.channels_last) == other["x"].is_contiguous(memory_format=torch.channels_last)


def test_settings_preferences_and_choices_count(seen, entered):
    x, w = tensors((2, 4, 6, 6), (8, 4, 3, 3))

    def call():
        return ATEN.convolution(x, w, None, *CONV)
    repeat(call)
    count = len(entered)
    with torch.backends.cudnn.flags(enabled=True, benchmark=not torch.backends.cudnn.benchmark):
        call()
    assert len(entered) == count + 1
    with dispatch.prefer("naive"):
        call()
    assert len(entered) == count + 2
    call()
    assert len(entered) == count + 2
    naive = dispatch.named("conv_fwd", "naive")
    dispatch.register(naive.__class__(**{**vars(naive), "name": "mine"}))
    try:
        call()
        assert len(entered) == count + 3, "there may be a better algorithm now"
    finally:
        dispatch.unregister(dispatch.named("conv_fwd", "mine"))


def test_statistics_are_written_once(seen, entered):
    x, gamma, beta, mean, var = tensors((2, 4, 6, 6), (4,), (4,), (4,), (4,))

    def call():
        return ATEN.native_batch_norm(x, gamma, beta, mean, var, True, 0.1, 1e-5)
    repeat(call)
    count = len(entered)
    seen.clear()
    y, *statistics = call()
    assert len(entered) == count and len(seen.values) == 1 and len(statistics) == 2
    assert {t.data_ptr() for t in (x, gamma, beta, mean, var, y, *statistics)} <= set(seen.values[0])


def test_statistics_of_another_shape(seen, entered):
    x, dy, gamma, beta = tensors((3, 4, 8), (3, 4, 8), (8,), (8,))
    mean, rstd = tensors((3, 4, 1), (3, 4, 1))

    def call(mean=mean):
        return ATEN.native_layer_norm_backward(dy, x, [8], mean, rstd, gamma, beta, [True, True, True])
    repeat(call)
    count = len(entered)
    seen.clear()
    assert [tuple(g.shape) for g in call()] == [(3, 4, 8), (8,), (8,)] and len(entered) == count
    assert {t.data_ptr() for t in (dy, x, gamma, mean, rstd)} <= {address for values in seen.values for address in values}
    call(torch.ones(3, 4, 2)[..., :1])
    assert len(entered) == count + 1, "a view of other strides"


def test_an_error_is_the_same(seen):
    a, b = tensors((4, 8), (8, 3))
    repeat(lambda: torch.mm(a, b))
    with pytest.raises(dnnkern.NotSupported, match="PyTorch's kernel ran"):
        torch.mm(torch.ones(4, 8, dtype=torch.int64), torch.ones(8, 3, dtype=torch.int64))
    with pytest.raises(RuntimeError):
        torch.mm(torch.ones(4, 9), b)


def test_layers_in_turn_are_expected(seen, entered, monkeypatch):
    """Groups of layers that are alike, as a network has them, are found without a look at what else there is."""
    gammas, statistics = tensors((4,), (4,)), tensors((4,), (4,))
    small, large = tensors((2, 4, 3, 3), (2, 4, 6, 6))

    def step():
        for x in 3 * (small, small, large):
            y, *_ = ATEN.native_batch_norm(x, *gammas, *statistics, True, 0.1, 1e-5)
            assert y.shape == x.shape and now(seen, x, *gammas, *statistics, y)
    repeat(step)
    looked = []
    follow = _repeated.Repeated._follow
    monkeypatch.setattr(_repeated.Repeated, "_follow", lambda self, *args: looked.append(args) or follow(self, *args))
    count = len(entered)
    step()
    assert not looked and len(entered) == count
    _of(norm.batch_norm).forget()
    step()
    assert len(entered) > count, "what came next is forgotten too"


def test_threads_that_work_for_others_are_asked_inside_of_blocks_alone(seen, monkeypatch):
    asked = []
    monkeypatch.setattr(_overrides, "callers", lambda: asked.append(True))
    a, b = tensors((4, 8), (8, 3))
    with dispatch.prefer("naive"):
        torch.mm(a, b)
    assert asked == [True]
    torch.mm(a, b)
    assert asked == [True]


def test_operators_above_autograd_are_repeated(seen):
    from dnnkern.torch.ops import rms_norm
    x, gamma, dy = tensors((5, 8), (8,), (5, 8))
    x.requires_grad_()

    def call(x):
        y = torch.nn.functional.rms_norm(x, (8,), gamma, 1e-5)
        return y, *torch.autograd.grad(y, x, dy)
    repeat(lambda: call(x), 6)
    known = [_repeated.repeated(f, nothing) for f in (rms_norm._forward, rms_norm._backward)]
    tried = [dict(each.tries) for each in known]
    seen.clear()
    y, dx = call(tensors((5, 8))[0].requires_grad_())
    assert all(each.known for each in known) and [each.tries for each in known] == tried and not seen.described
    assert y.data_ptr() in seen.values[0] and dx.data_ptr() in seen.values[-1]
