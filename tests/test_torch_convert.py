"""`dnnkern.torch.convert` and `restore`: what is swapped, what runs in one kernel, what is left."""
import copy
import io
import pickle

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from test_torch_table import alone, assert_same, ran  # noqa: E402, F401 (a fixture)
from torch import nn  # noqa: E402
from torch_calls import DEVICE  # noqa: E402

import dnnkern.torch  # noqa: E402
from dnnkern.torch import _traces  # noqa: E402

pytestmark = pytest.mark.sized
ours = dnnkern.torch.nn


class Block(nn.Module):
    """A residual block as torchvision's."""

    def __init__(self, c, k, stride=1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, k, 3, stride, 1, bias=False), nn.BatchNorm2d(k)
        self.conv2, self.bn2 = nn.Conv2d(k, k, 3, 1, 1, bias=False), nn.BatchNorm2d(k)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = nn.Sequential(nn.Conv2d(c, k, 1, stride), nn.BatchNorm2d(k)) if stride != 1 or c != k else None

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class Net(nn.Module):
    """Residual blocks, and a head with a layer that has no counterpart."""

    def __init__(self):
        super().__init__()
        self.stem, self.bn, self.pool = nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), nn.BatchNorm2d(4), nn.MaxPool2d(2)
        self.layers = nn.Sequential(Block(4, 4), Block(4, 8, 2))
        self.pre, self.fc1, self.fc2 = nn.PReLU(), nn.Linear(8, 16), nn.Linear(16, 5)

    def forward(self, x):
        x = self.layers(self.pool(F.relu(self.bn(self.stem(x)))))
        return self.fc2(F.gelu(self.fc1(self.pre(x.mean((2, 3))))))


CHAINS = [("", "stem + bn + relu"), ("", "fc1 + gelu"), ("layers.0", "conv1 + bn1 + relu"), ("layers.0", "conv2 + bn2 + add + relu"),
          ("layers.1", "conv1 + bn1 + relu"), ("layers.1", "conv2 + bn2 + add + relu"), ("layers.1.downsample", "0 + 1")]
X = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0)).to(DEVICE)


def made(make=Net):
    torch.manual_seed(0)
    model = make().to(DEVICE)
    with torch.no_grad():  # statistics and weights that show
        for i, t in enumerate(t for t in model.state_dict().values() if t.dtype.is_floating_point and t.dim() == 1):
            t.add_(torch.linspace(0.1, 0.5, t.numel(), device=DEVICE) * (1 + i % 3))
    return model


def results(model, x, train):
    """Result, gradients and state of one pass."""
    model.train(train)
    x = x.clone().requires_grad_()
    y = model(x)
    weights = torch.linspace(0, 1, y.numel(), device=DEVICE).view(y.shape).to(y.dtype)
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        grads = torch.autograd.grad((y * weights).sum(), [x, *model.parameters()])
    return [y.detach(), *grads, *(t.detach().clone() for t in model.state_dict().values())]


def assert_all_same(ours, theirs, name):
    for i, (x, y) in enumerate(zip(ours, theirs, strict=True)):
        assert_same(x, y, f"{name} {i}")


def calls():
    """{operator: calls}; all by this library."""
    rows = dnnkern.torch.status(reset=True)
    assert not [row for row in rows if not row.ours]
    return {row.op: row.calls for row in rows}


def held(model):
    """Whatever `convert` must not change: objects by name, hooks, modes."""
    modules = [(name, id(m), m.training, len(m._forward_hooks), len(m._backward_hooks)) for name, m in model.named_modules()]
    return [(name, id(t)) for name, t in model.state_dict(keep_vars=True).items()], modules, repr(model)


# ---- swapping and undoing

def test_in_place_and_undone():
    model, plain = made(), made()
    model.fc1.register_forward_hook(lambda *_: None)
    model.layers[0].eval()
    before, attributes = held(model), [dict(vars(m)) for m in model.modules()]
    done = dnnkern.torch.convert(model)
    assert held(model) == before
    assert done.fused == CHAINS and [tuple(left) for left in done.left] == [("pre", "PReLU", "no counterpart in dnnkern.torch.nn")]
    assert len(done.swapped) == 17 and done.swapped["layers.1.downsample.0"] == "Conv2d" and "left    pre (PReLU)" in repr(done)
    assert type(model.layers[0].conv1) is ours.Conv2d and isinstance(model.layers[0], Block) and isinstance(model, Net)
    again = dnnkern.torch.convert(model)
    assert not again.swapped and held(model) == before
    dnnkern.torch.restore(model)
    assert held(model) == before and [dict(vars(m)) for m in model.modules()] == attributes
    assert [type(m) for m in model.modules()] == [type(m) for m in plain.modules()]
    dnnkern.torch.restore(model)
    model.fc1._forward_hooks.clear()
    for train in (True, False):
        for x, y in zip(results(model, X, train), results(plain, X, train), strict=True):
            assert torch.equal(x, y) if DEVICE == "cpu" else torch.allclose(x, y, atol=1e-5)  # some of PyTorch's gradients use atomics


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=["first", "last"])
def test_trained_and_not(memory_format):
    """Between modes, also after weights have changed."""
    model, plain = (made().to(memory_format=memory_format) for _ in range(2))
    x = X.to(memory_format=memory_format)
    dnnkern.torch.convert(model)
    for train in (True, False, True, False):
        assert_all_same(results(model, x, train), results(plain, x, train), f"train {train}")
        with torch.no_grad():
            assert_same(model(x), plain(x), "without gradients")
            for m in (model, plain):
                for p in m.parameters():
                    p.mul_(1.125)


def test_what_runs():
    model = dnnkern_converted()
    with torch.no_grad():
        model(X)
        assert calls() == {"convolution": 6, "max_pool2d_with_indices": 1, "linear": 2}
    results(model, X, True)
    found = calls()
    assert found["batch_norm"] == 6 and found["batch_norm backward"] == 6 and found["activation"] == 1  # gelu's, which needs its argument
    results(model, X, False)
    assert calls()["batch_norm"] == 6


def dnnkern_converted(make=Net):
    model = made(make).eval()
    dnnkern.torch.convert(model)
    return model


def test_folded_weights_follow_their_tensors():
    model, plain = dnnkern_converted(), made().eval()
    with torch.no_grad():
        model(X)
        for change in (lambda m: m.load_state_dict({k: v * 1.5 if v.dtype.is_floating_point else v for k, v in m.state_dict().items()}),
                       lambda m: m.stem.bias.add_(1), lambda m: m.bn.running_mean.add_(1), lambda m: setattr(m.bn, "eps", 0.1),
                       lambda m: setattr(m.bn, "weight", nn.Parameter(torch.full_like(m.bn.weight, 2.0)))):
            change(model), change(plain)
            assert_same(model(X), plain(X), "changed")
    found = []
    for m in (model, plain):
        optimizer = (dnnkern.torch.optim if m is model else torch.optim).SGD(m.parameters(), lr=0.1)
        m.train()(X).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            found.append(m.eval()(X))
    assert_same(*found, "after a step")


@pytest.mark.parametrize("train", [True, False])
def test_autocast(train):
    model, plain = made().train(train), made().train(train)
    dnnkern.torch.convert(model)
    with torch.autocast(DEVICE, torch.bfloat16), torch.no_grad():
        mine, theirs = model(X), plain(X)
    assert mine.dtype == theirs.dtype == torch.bfloat16 and torch.allclose(mine.float(), theirs.float(), atol=0.1)


def test_copies_and_pickles():
    model = dnnkern_converted()
    with torch.no_grad():
        expected = model(X)
        calls()
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)):
            assert torch.equal(other(X), expected) and calls()["convolution"] == 6
            assert not {id(t) for t in other.parameters()} & {id(t) for t in model.parameters()}
            other.stem.weight.zero_()
            assert not torch.equal(other(X), expected) and torch.equal(model(X), expected)
            dnnkern.torch.restore(other)
            assert [type(m) for m in other.modules()] == [type(m) for m in made().modules()]
            calls()


def test_state_dicts():
    model, plain = dnnkern_converted(), made(lambda: nn.Sequential(Net()))[0].eval()
    assert model.load_state_dict(plain.state_dict()) and plain.load_state_dict(model.state_dict())
    dnnkern.torch.convert(plain)
    plain.load_state_dict(model.state_dict(), assign=True)
    with torch.no_grad():
        assert torch.equal(plain(X), model(X))


def test_compiled_and_functional():
    model, plain = dnnkern_converted(), made().eval()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert_all_same(results(compiled, X, False), results(plain, X, False), "compiled")
    params = {name: p.detach() * 1.5 for name, p in model.named_parameters()}
    with torch.no_grad():
        assert_same(torch.func.functional_call(model, params, X), torch.func.functional_call(plain, params, X), "functional")
        assert_same(model(X), plain(X), "after it")
    y = torch.func.vmap(lambda x: model(x[None])[0])(X)
    assert_same(y.detach(), plain(X).detach(), "vmap")
    traced = torch.jit.trace(model, X)
    assert_same(traced(X * 2).detach(), plain(X * 2).detach(), "traced")


# ---- which layers

def test_chosen_layers():
    model = made()
    assert dnnkern.torch.convert(model, "layers.1").swapped.keys() == {
        name for name, m in model.named_modules() if name.startswith("layers.1.") and not m._modules}
    dnnkern.torch.restore(model)
    done = dnnkern.torch.convert(model, [nn.Linear, "bn"])
    assert done.swapped == {"fc1": "Linear", "fc2": "Linear", "bn": "BatchNorm2d"} and not done.left
    assert done.fused == [("", "bn + relu"), ("", "fc1 + gelu")]
    assert dnnkern.torch.convert(model, ours.Conv2d).swapped.keys() == {
        name for name, m in model.named_modules() if isinstance(m, nn.Conv2d)}
    layer = nn.Conv2d(3, 4, 3)
    assert dnnkern.torch.convert(layer).swapped == {"": "Conv2d"} and type(layer) is ours.Conv2d


@pytest.mark.parametrize("model, layers, error, text", [
    ({}, None, TypeError, "convert: model is a dict; expected a torch.nn.Module"),
    (Net, "layer.1", ValueError, "'layer.1', which is no module of the model; did you"),
    (Net, nn.PReLU, ValueError, "torch.nn.modules.activation.PReLU, which has no counterpart"),
    (Net, [3], TypeError, "layers has 3; expected names of modules"), (Net, 3, TypeError, "layers has 3; expected names of modules"),
    (Net, int, TypeError, "expected names of modules and classes")])
def test_bad_input(model, layers, error, text):
    with pytest.raises(error, match=text):
        dnnkern.torch.convert(model() if model is Net else model, layers)


def test_restoring_what_is_no_module():
    with pytest.raises(TypeError, match="restore: model is a list; expected"):
        dnnkern.torch.restore([])


class Other(nn.Conv2d):
    """A subclass."""

    def forward(self, x):
        return super().forward(x) * 2


class Own(nn.Module):
    """No layer of PyTorch's."""

    def forward(self, x):
        return x + 1


def test_what_is_left():
    patched = nn.Linear(3, 3)
    patched.forward = lambda x: x
    model = nn.Sequential(Other(3, 3, 1), Own(), nn.Flatten(), nn.PReLU(), patched, nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)),
                          ours.Linear(3, 3), nn.LazyLinear(2))
    done = dnnkern.torch.convert(model)
    assert {left.name: left.why for left in done.left} == {
        "0": "a subclass of Conv2d, which may compute something else", "1": "not a layer of PyTorch's",
        "3": "no counterpart in dnnkern.torch.nn", "4": "its forward was replaced",
        "5": "a subclass of Linear, which may compute something else", "7": "a subclass of Linear, which may compute something else"}
    assert not done.swapped and repr(done).startswith("swapped no layers")
    dnnkern.torch.restore(model)
    assert type(model[6]) is ours.Linear, "not made by convert"


def test_attention_keeps_its_parts():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1, enable_nested_tensor=False).to(DEVICE).eval()
    x = torch.randn(2, 5, 8, device=DEVICE)
    with torch.no_grad():
        theirs = model(x)
        done = dnnkern.torch.convert(model)
        assert done.swapped["layers.0.self_attn"] == "MultiheadAttention" and "layers.0.self_attn.out_proj" not in done.swapped
        assert not done.left
        assert_same(model(x), theirs, "transformer")
    assert {"scaled_dot_product_attention", "linear", "native_layer_norm"} <= ran()


# ---- chains

class Around(nn.Module):
    """A convolution, normalisation and activation in a forward that may be like anything."""

    def __init__(self, forward):
        super().__init__()
        self.conv, self.bn, self.act, self.drop = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.LeakyReLU(0.2), nn.Dropout(0.5)
        self.fc, self.flag, self.listed, self.written = nn.Linear(8, 8), False, [1], forward

    def forward(self, *given):
        return self.written(self, *given)


def around(forward):
    """A converted module and its like, of a class with this forward."""
    cls = type("Around", (Around,), {"forward": forward})
    pair = []
    for _ in range(2):
        pair.append(made(lambda: cls(None)).eval())
    return pair, dnnkern.torch.convert(pair[0])


def chains(forward):
    return [text for name, text in around(forward)[1].fused]


@pytest.mark.parametrize("forward, expected", [
    (lambda s, x: s.act(s.bn(s.conv(x)) + x), ["conv + bn + add + act"]), (lambda s, x: x + s.conv(x), ["conv + add"]),
    (lambda s, x: torch.tanh(s.fc(x)), ["fc + tanh"]), (lambda s, x: (s.fc(x) + x).relu(), ["fc + add + relu"]),
    (lambda s, x: s.bn(x).relu_(), ["bn + relu_"]), (lambda s, x: s.bn(x), []), (lambda s, x: s.conv(s.bn(x)), []),
    (lambda s, x: s.act(s.drop(s.conv(x))), []), (lambda s, x: torch.add(x, s.conv(x), alpha=2), []),
    (lambda s, x: s.conv(x) + 1, []), (lambda s, x: F.relu(s.act(s.conv(x))), ["conv + act"])])
def test_chains(forward, expected):
    (model, plain), done = around(forward)
    assert [text for _, text in done.fused] == expected
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    with torch.no_grad():
        assert_same(model(x), plain(x), "inference")
    for train in (False, True):
        model.train(train), plain.train(train)
        model.drop.eval(), plain.drop.eval()
        given = [x.clone().requires_grad_() for _ in range(2)]
        ys = [m(g) for m, g in zip((model, plain), given)]
        assert_same(ys[0].detach(), ys[1].detach(), "training")
        grads = [torch.autograd.grad(y.square().sum(), g)[0] for y, g in zip(ys, given)]
        assert_same(*grads, "gradient")


def twice(s, x):
    y = s.conv(x)
    return s.act(s.bn(y)) + y


def into_the_other(s, x):
    y = s.conv(x)
    x = x * 1
    x += y
    return F.relu(x) + x


def written_between(s, x):
    x = x * 1
    y = s.bn(s.conv(x))
    x.mul_(2)
    return s.act(y + x)


def read_first(s, x):
    x = x * 1
    y = s.bn(x)
    x.mul_(2)
    return s.act(y) + x


@pytest.mark.parametrize("forward, expected", [(twice, ["bn + act"]), (into_the_other, []), (written_between, ["bn + add + act"]),
                                               (read_first, [])])
def test_order_matters(forward, expected):
    """Results that others use, and tensors that are written between the parts of a chain."""
    (model, plain), done = around(forward)
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    for train in (True, False):
        with torch.no_grad():
            assert_same(model.train(train)(x), plain.train(train)(x), forward.__name__)
    assert [text for _, text in done.fused] == expected


def shape_decides(s, x):
    return s.act(s.conv(x)) if x.sum() > 0 else x


def counts(s, x):
    s.calls = getattr(s, "calls", 0) + 1
    return s.act(s.conv(x))


def collects(s, x):
    s.listed.append(x)
    return s.act(s.conv(x))


def draws(s, x):
    return s.act(s.conv(x)) if torch.rand(()) < 2 else x


@pytest.mark.parametrize("forward, text", [
    (shape_decides, "its forward is not traced: symbolically traced variables"), (counts, "its forward changes the module"),
    (collects, "its forward changes the module"), (draws, "its forward draws random numbers"),
    (lambda s, *x: s.act(s.conv(*x)), "its forward takes no arguments without defaults")])
def test_forwards_that_stay(forward, text):
    (model, plain), done = around(forward)
    assert not done.fused and len(done.swapped) == 5
    assert [left.why for left in done.left if not left.name][0].startswith(text)
    with torch.no_grad():
        assert_same(model(X), plain(X), "as written")
    assert set(vars(model)) - {"_dnnkern_converted"} == set(vars(plain)) and len(model.listed) == len(plain.listed)


def by_flag(s, x):
    y = s.conv(x)
    return s.act(y) if s.flag or s.listed[0] != 1 else F.relu(y)


def with_option(s, x, mask=None):
    y = s.act(s.conv(x))
    return y if mask is None else y * mask


def by_kind(s, x):
    xs = [x] if isinstance(x, torch.Tensor) else x
    return s.act(s.conv(torch.cat(xs, 1)))


def test_traces_follow_attributes_and_arguments():
    (model, plain), done = around(by_flag)
    assert done.fused == [("", "conv + relu")]
    with torch.no_grad():
        for change in (lambda m: setattr(m, "flag", True), lambda m: setattr(m, "flag", False), lambda m: m.listed.append(2),
                       lambda m: m.listed.insert(0, 3), lambda m: setattr(m, "act", nn.Sigmoid())):
            change(model), change(plain)
            assert_same(model(X), plain(X), "changed")
    (model, plain), done = around(with_option)
    assert done.fused == [("", "conv + act")]
    with torch.no_grad():
        for given in ((X,), (X, X > 0), (X, None)):
            assert_same(model(*given), plain(*given), "arguments")
        assert_same(model(X, mask=X > 0), plain(X, mask=X > 0), "keywords")
    (model, plain), done = around(by_kind)
    assert done.fused == [("", "conv + act")]
    with torch.no_grad():
        assert_same(model(X), plain(X), "a tensor")
        assert_same(model([X]), plain([X]), "a list")


def test_hooks_are_called():
    (model, plain), _ = around(lambda s, x: s.act(s.bn(s.conv(x))))
    for name in ("conv", "bn", "act"):
        seen, handles = [], []
        for m in (model, plain):
            handles.append(getattr(m, name).register_forward_hook(lambda m, args, y: seen.append(y) or y + 1))
        with torch.no_grad():
            assert_same(model(X), plain(X), name)
            assert_same(*seen, name)
        for handle in handles:
            handle.remove()


def test_residuals_of_other_shapes_and_dtypes():
    """They are added as PyTorch does."""
    (model, plain), _ = around(lambda s, x, r: s.act(s.bn(s.conv(x)) + r))
    for r in (X[:, :1], X.double(), X[:1], X.view(-1)[:1]):
        for train in (True, False):
            with torch.no_grad():
                mine, theirs = model.train(train)(X, r), plain.train(train)(X, r)
                assert mine.dtype == theirs.dtype
                assert_same(mine.float(), theirs.float(), "residual")


def test_traces_are_bounded():
    """A module that is never the same is not traced again and again."""
    (model, _), _ = around(lambda s, x: s.act(s.conv(x)))
    with torch.no_grad():
        for i in range(_traces.MOST_TRACES + 4):
            model.flag = i
            model(X)
    assert len(_traces._runs[model]) == _traces.MOST_TRACES
