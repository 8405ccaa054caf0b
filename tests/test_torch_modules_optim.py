"""`dnnkern.torch.optim` beside PyTorch's optimisers."""
import copy

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from test_torch_optim import parameters, steps  # noqa: E402
from test_torch_table import alone, assert_same, ran  # noqa: E402, F401 (a fixture)
from torch_calls import DEVICE  # noqa: E402

import dnnkern  # noqa: E402
import dnnkern.torch  # noqa: E402

pytestmark = pytest.mark.sized
optim = dnnkern.torch.optim

MADE = {"SGD": {}, "SGD momentum": {"momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1},
        "SGD nesterov": {"momentum": 0.9, "nesterov": True, "maximize": True}, "Adam": {},
        "Adam amsgrad": {"amsgrad": True, "weight_decay": 0.1},
        "Adam betas": {"betas": (0.8, 0.9), "eps": 1e-6, "maximize": True}, "AdamW": {"weight_decay": 0.1},
        "AdamW amsgrad": {"amsgrad": True},
        "RMSprop": {"weight_decay": 0.1}, "RMSprop centered": {"centered": True, "momentum": 0.9}, "Adagrad": {"lr_decay": 0.1},
        "Adagrad start": {"initial_accumulator_value": 0.5, "weight_decay": 0.1, "eps": 1e-6}}
FUSED = [name for name in MADE if not name.startswith("RMSprop") and (DEVICE == "cpu" or not name.startswith("Adagrad"))]


def made(module, name, params, **more):
    return getattr(module, name.split()[0])(params, lr=0.1, **MADE[name], **more)


def assert_states(ours, theirs):
    """State dicts of two optimisers."""
    mine, other = ours.state_dict(), theirs.state_dict()
    assert mine["param_groups"] == other["param_groups"] and mine["state"].keys() == other["state"].keys()
    for index, state in other["state"].items():
        assert list(mine["state"][index]) == list(state)
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                assert_same(mine["state"][index][key], value, key)
            else:
                assert mine["state"][index][key] == value


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("missing", [(), (1,), (0, 2)])
def test_steps_and_states_are_pytorchs(name, missing):
    pair = []
    for module in (optim, torch.optim):
        params = parameters()
        optimizer = made(module, name, params)
        pair.append((optimizer, steps(optimizer, params, missing)))
    (ours, found), (theirs, expected) = pair
    assert isinstance(ours, type(theirs)) and ran() == {type(theirs).__name__.lower().replace("adamw", "adam")}
    for x, y in zip(found, expected):
        assert_same(x, y, name)
    assert_states(ours, theirs)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("name", ["SGD momentum", "AdamW"])
def test_other_dtypes(name, dtype):
    found = []
    for module in (optim, torch.optim):
        params = parameters(dtype)
        found.append(steps(made(module, name, params), params))
    for x, y in zip(*found):
        assert_same(x, y, name)
    assert ran() and not [row for row in dnnkern.torch.status() if not row.ours]


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("fused", [False, True])
def test_a_state_goes_from_either_to_the_other(name, fused):
    if fused and name not in FUSED:
        pytest.skip("PyTorch has no fused step of it")
    more = {"fused": True} if fused else {}
    params, others = parameters(), parameters()
    first, second = made(torch.optim, name, params, **more), made(optim, name, others, **more)
    missing = () if fused and name.startswith("SGD") else (2,)  # of fused ones PyTorch's needs all gradients from the first step on
    steps(first, params, missing), steps(second, others, missing)
    swapped, straight = made(optim, name, params, **more), made(torch.optim, name, others, **more)
    swapped.load_state_dict(copy.deepcopy(first.state_dict()))
    straight.load_state_dict(copy.deepcopy(second.state_dict()))
    for x, y in zip(steps(swapped, params), steps(straight, others)):
        assert_same(x, y, name)
    assert_states(swapped, straight)


def test_groups_schedulers_and_hooks():
    found = []
    for module in (optim, torch.optim):
        params, seen = parameters(), []
        optimizer = module.AdamW([{"params": params[:1], "lr": 0.5}, {"params": params[1:], "weight_decay": 0.0}], lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        optimizer.register_step_post_hook(lambda *_: seen.append(scheduler.get_last_lr()))
        for _ in range(3):
            steps(optimizer, params, count=1)
            scheduler.step()
        loss = optimizer.step(lambda: torch.tensor(2.0))
        found.append((params, seen, loss))
    (mine, ours, loss), (other, theirs, _) = found
    assert ours == theirs and len(ours) == 4 and loss == 2
    for x, y in zip(mine, other):
        assert_same(x, y, "params")


def trained(module, params, name, grads, **more):
    """Steps under a gradient scaler; (parameters, scale, counts of steps)."""
    optimizer, scaler = made(module, name, params, **more), torch.amp.GradScaler(DEVICE, init_scale=4.0, growth_interval=2)
    for grad in grads:
        for p in params:
            p.grad = torch.full_like(p, grad) * scaler.scale(torch.ones((), device=DEVICE))
        scaler.step(optimizer)
        scaler.update()
    return params, scaler.get_scale(), [s["step"].item() for s in optimizer.state.values() if "step" in s]


@pytest.mark.parametrize("name, fused", [*((name, True) for name in FUSED), ("Adam", False), ("RMSprop", False)])
def test_gradient_scalers(name, fused):
    grads = [0.5, 1.0, float("inf"), 2.0, -1.0]
    more = {"fused": True} if fused else {}
    ours, theirs = (trained(module, parameters(), name, grads, **more) for module in (optim, torch.optim))
    assert ours[1:] == theirs[1:] and ran() == {name.split()[0].lower().replace("adamw", "adam")}
    for x, y in zip(ours[0], theirs[0]):
        assert_same(x, y, name)


def test_what_is_not_ours():
    """PyTorch's steps, with the reason."""
    table = torch.nn.Embedding(5, 2, sparse=True).to(DEVICE)
    table(torch.tensor([1, 3], device=DEVICE)).sum().backward()
    optim.SGD(table.parameters(), lr=0.1).step()
    z = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64, device=DEVICE))
    z.grad = torch.ones_like(z)
    optim.Adam([z], lr=0.1).step()
    assert {row.why for row in dnnkern.torch.status() if not row.ours} == {"has_sparse_grad", "has_complex"} and not ran()
    w = torch.ones(2, device=DEVICE, requires_grad=True)
    params = [w.clone()]
    params[0].grad = w * 2
    optim.SGD(params, lr=0.1, differentiable=True).step()
    params[0].sum().backward()
    assert_same(w.grad, torch.full((2,), 0.8, device=DEVICE), "a step's gradient")


def test_versions_are_counted():
    """Autograd notices that a parameter it has kept was updated."""
    params = parameters()
    y = params[0].square().sum()
    steps(optim.Adam(params, lr=0.1), params, count=1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


@pytest.mark.parametrize("call, error, text", [
    (lambda p: optim.Adam(p, lr=-1.0), ValueError, "Invalid learning rate: -1.0"),
    (lambda p: optim.SGD(p, lr=0.1, nesterov=True), ValueError, "Nesterov momentum requires a momentum"),
    (lambda p: optim.LAMB(p, lr=-1.0), ValueError, "LAMB: lr is -1.0; expected 0 or more"),
    (lambda p: optim.Lion(p, betas=(0.9, 1.0)), ValueError, r"Lion: betas is \(0.9, 1.0\); expected two numbers in"),
    (lambda p: optim.LAMB([]), ValueError, "empty parameter list")])
def test_bad_input(call, error, text):
    with pytest.raises(error, match=text):
        call(parameters())


@pytest.mark.parametrize("name", ["LAMB", "Lion"])
def test_optimisers_that_pytorch_does_not_have(name):
    """Their steps are those of the list functions, in NumPy's arrays, also from a state that was saved."""
    params = parameters()
    optimizer = getattr(optim, name)(params, lr=0.1, weight_decay=0.1)
    arrays = [p.detach().cpu().numpy().copy() for p in params]
    states = [[np.zeros_like(a) for a in arrays] for _ in optimizer.states]
    for step in (1, 2, 3):
        if step == 2:
            saved = copy.deepcopy(optimizer.state_dict())
            optimizer = getattr(optim, name)(params, lr=0.3)
            optimizer.load_state_dict(saved)
        found = steps(optimizer, params, count=1)
        grads = [p.grad.cpu().numpy() for p in params]
        more = {"step": step} if name == "LAMB" else {}
        lists = (arrays, grads, *states)
        if DEVICE == "cuda":
            lists = [[torch.from_numpy(a).to(DEVICE) for a in values] for values in lists]
        getattr(dnnkern, f"{name.lower()}_step")(*lists, lr=0.1, weight_decay=0.1, **more)
        arrays, _, *states = [[np.asarray(a.cpu() if DEVICE == "cuda" else a) for a in values] for values in lists]
        for x, y in zip(found, arrays):
            assert_same(x.cpu(), torch.from_numpy(y), name)
