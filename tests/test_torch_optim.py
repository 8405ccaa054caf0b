"""PyTorch's fused optimisers on this library's kernels."""
import copy

import pytest

torch = pytest.importorskip("torch")

from test_torch_table import alone, assert_same, ran  # noqa: E402, F401 (a fixture)
from torch_calls import DEVICE  # noqa: E402

import dnnkern.torch  # noqa: E402

pytestmark = pytest.mark.sized

MADE = {"adam": (torch.optim.Adam, {"lr": 0.1}, "_fused_adam_"),
        "adam-amsgrad": (torch.optim.Adam, {"lr": 0.1, "amsgrad": True, "weight_decay": 0.1}, "_fused_adam_"),
        "adamw": (torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.1}, "_fused_adamw_"),
        "adamw-maximize": (torch.optim.AdamW, {"lr": 0.1, "maximize": True}, "_fused_adamw_"),
        "sgd": (torch.optim.SGD, {"lr": 0.1}, "_fused_sgd_"),
        "sgd-nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, "_fused_sgd_"),
        "sgd-dampening": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}, "_fused_sgd_")}


def parameters(dtype="float32"):
    make = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=make).to(DEVICE, getattr(torch, dtype))) for shape in ((3, 5), (7,), (2, 3, 2))]


def steps(optimizer, params, missing=(), count=3):
    """Some steps; `missing` is whose first gradient comes a step later."""
    make = torch.Generator().manual_seed(1)
    for step in range(count):
        for i, p in enumerate(params):
            grad = torch.randn(p.shape, generator=make).to(p)
            p.grad = None if step == 0 and i in missing else grad
        optimizer.step()
    return [p.detach().clone() for p in params]


@pytest.mark.parametrize("name, missing", [*((name, ()) for name in MADE), ("adam", (1,)), ("adam-amsgrad", (0, 1)), ("sgd", (1,))])
def test_steps_are_pytorchs(name, missing):
    make, options, op = MADE[name]
    theirs, ours = parameters(), parameters()
    expected = steps(make(theirs, fused=True, **options), theirs, missing)
    with dnnkern.torch.enabled("optim", strict=True):
        found = steps(make(ours, fused=True, **options), ours, missing)
    assert ran() == {op}
    for x, y in zip(found, expected):
        assert_same(x, y, name)


def test_a_step_that_ends_early_is_not_made_again(monkeypatch):
    """Of two groups the first has been updated when the second fails: PyTorch's kernel would update it once more."""
    params, calls, adam_step = parameters(), [], dnnkern.adam_step

    def fails_later(*args, **more):
        calls.append(args)
        if len(calls) == 3:
            raise ValueError("no more")
        return adam_step(*args, **more)
    monkeypatch.setattr(dnnkern, "adam_step", fails_later)
    optimizer = torch.optim.Adam(params, lr=0.1, fused=True)
    with dnnkern.torch.enabled("optim"):
        steps(optimizer, params, (1,), 1)
        before = [p.detach().clone() for p in params]
        for p in params:
            p.grad = torch.ones_like(p)
        with pytest.raises(RuntimeError, match="after 1 of its groups of parameters: no more"):
            optimizer.step()
    assert len(calls) == 3
    assert sum(torch.equal(p, b) for p, b in zip(params, before)) == 1, "the second group, of one parameter, is as it was"


def test_a_state_goes_on_from_pytorchs_steps():
    params, others = parameters(), parameters()
    optimizer, other = (torch.optim.AdamW(p, fused=True) for p in (params, others))
    steps(optimizer, params, (2,)), steps(other, others, (2,))
    restored = torch.optim.AdamW(params, fused=True)
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    with dnnkern.torch.enabled("optim", strict=True):
        found = steps(restored, params)
    for x, y in zip(found, steps(other, others)):
        assert_same(x, y, "adamw")


def test_gradients_to_be_divided_go_back():
    params, scale = parameters(), torch.full((), 4.0, device=DEVICE)
    with dnnkern.torch.enabled("optim"), torch.no_grad():
        torch._fused_sgd_([p.data for p in params], [torch.ones_like(p) for p in params], [], weight_decay=0.0, momentum=0.0, lr=0.5,
                          dampening=0.0, nesterov=False, maximize=False, is_first_step=False, grad_scale=scale)
    assert [row.why for row in dnnkern.torch.status()] == ["grad_scale: PyTorch's kernel also divides the gradients in place"]
    for p, before in zip(params, parameters()):
        assert_same(p.detach(), before.detach() - 0.125, "sgd")
