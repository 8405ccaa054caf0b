"""`dnnkern.torch.nn` beside PyTorch's modules."""
import copy
import io

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from test_torch_table import alone, assert_same, ran  # noqa: E402, F401 (a fixture)
from torch import nn  # noqa: E402
from torch_calls import DEVICE, labels  # noqa: E402

import dnnkern.torch  # noqa: E402
from dnnkern.torch import functional  # noqa: E402

pytestmark = pytest.mark.sized
ours = dnnkern.torch.nn


class Case:
    """A layer, arguments of its constructor, and a shape of its input."""

    def __init__(self, layer, *given, shape, **more):
        self.layer, self.given, self.more, self.shape = layer, given, more, shape

    def __str__(self):
        return f"{self.layer}-{'-'.join(map(str, [*self.given, *self.more.values(), self.shape]))}".replace(" ", "")

    def both(self, dtype="float32"):
        """PyTorch's module and this library's, of one state."""
        torch.manual_seed(0)
        pair = [getattr(module, self.layer)(*self.given, **self.more) for module in (nn, ours)]
        pair[1].load_state_dict(pair[0].state_dict())
        return [m.to(DEVICE, getattr(torch, dtype)) for m in pair]

    def input(self, dtype="float32"):
        return torch.randn(self.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(DEVICE, getattr(torch, dtype))


IMAGES, ROWS, VOLUMES = (2, 4, 6, 5), (2, 4, 9), (2, 4, 4, 3, 5)
ELEMENTWISE = ("ReLU ReLU6 Hardtanh LeakyReLU ELU CELU SELU GELU SiLU Mish Hardswish Hardsigmoid Sigmoid Tanh Softplus Softsign").split()
IN_PLACE = [name for name in ELEMENTWISE if name not in ("GELU", "Sigmoid", "Tanh", "Softplus", "Softsign")]
CASES = [
    Case("Conv1d", 4, 6, 3, padding=1, shape=ROWS), Case("Conv2d", 4, 6, 3, stride=2, groups=2, bias=False, shape=IMAGES),
    Case("Conv2d", 4, 6, 3, padding="same", padding_mode="reflect", shape=IMAGES), Case("Conv3d", 4, 6, 2, shape=VOLUMES),
    Case("Conv2d", 4, 6, (2, 3), padding="same", shape=IMAGES), Case("Conv2d", 4, 6, 3, padding="valid", dilation=(1, 2), shape=IMAGES[1:]),
    Case("ConvTranspose1d", 4, 6, 3, stride=2, shape=ROWS), Case("ConvTranspose2d", 4, 6, 3, stride=2, output_padding=1, shape=IMAGES),
    Case("ConvTranspose2d", 4, 6, 3, groups=2, dilation=2, shape=IMAGES[1:]), Case("ConvTranspose3d", 4, 6, 2, bias=False, shape=VOLUMES),
    Case("Linear", 6, 7, shape=(2, 3, 6)), Case("Linear", 6, 7, bias=False, shape=(6,)),
    Case("BatchNorm1d", 6, shape=(8, 6)), Case("BatchNorm2d", 4, momentum=None, shape=IMAGES),
    Case("BatchNorm2d", 4, track_running_stats=False, shape=IMAGES), Case("BatchNorm3d", 4, affine=False, shape=VOLUMES),
    Case("InstanceNorm1d", 4, shape=ROWS), Case("InstanceNorm2d", 4, affine=True, shape=IMAGES),
    Case("InstanceNorm3d", 4, track_running_stats=True, shape=VOLUMES), Case("LayerNorm", (6, 5), shape=IMAGES),
    Case("GroupNorm", 2, 4, shape=IMAGES), Case("RMSNorm", (5,), shape=IMAGES),
    Case("MaxPool1d", 3, 2, 1, shape=ROWS), Case("MaxPool2d", 3, stride=2, padding=1, ceil_mode=True, shape=IMAGES),
    Case("MaxPool2d", 2, return_indices=True, shape=IMAGES[1:]), Case("MaxPool3d", 2, shape=VOLUMES),
    Case("AvgPool1d", 3, shape=ROWS), Case("AvgPool2d", 3, 2, 1, count_include_pad=False, shape=IMAGES),
    Case("AvgPool3d", 2, shape=VOLUMES), Case("AdaptiveAvgPool1d", 3, shape=ROWS), Case("AdaptiveAvgPool2d", (None, 3), shape=IMAGES),
    Case("AdaptiveAvgPool3d", 2, shape=VOLUMES),
    Case("AdaptiveMaxPool1d", 3, return_indices=True, shape=ROWS), Case("AdaptiveMaxPool2d", 2, shape=IMAGES[1:]),
    Case("AdaptiveMaxPool3d", 2, shape=VOLUMES),
    Case("LSTM", 4, 5, num_layers=2, bidirectional=True, shape=(3, 2, 4)), Case("RNN", 4, 5, nonlinearity="relu", shape=(3, 2, 4)),
    Case("LSTM", 4, 5, proj_size=3, batch_first=True, shape=(2, 3, 4)), Case("GRU", 4, 5, shape=(3, 2, 4)),
    Case("GRU", 4, 5, bias=False, shape=(3, 4)),
    Case("Softmax", 1, shape=IMAGES), Case("LogSoftmax", -1, shape=(3, 7)), Case("GELU", "tanh", shape=IMAGES),
    *(Case(name, shape=IMAGES) for name in ELEMENTWISE), *(Case(name, inplace=True, shape=IMAGES) for name in IN_PLACE),
    Case("TransformerEncoderLayer", 8, 2, 16, 0.0, batch_first=True, shape=(2, 5, 8))]


def results(module, x, train):
    """Results, gradients and what the module holds afterwards."""
    module.train(train)
    x = x.clone().requires_grad_()
    outs = module(x * 1)  # which a layer may write
    outs = [t for y in (outs if isinstance(outs, tuple) else (outs,)) for t in (y if isinstance(y, tuple) else (y,))]
    weights = torch.Generator().manual_seed(2)
    loss = sum((y * torch.randn(y.shape, generator=weights).to(y)).sum() for y in outs if y.is_floating_point())
    grads = torch.autograd.grad(loss, [x, *module.parameters()])
    return *(y.detach() for y in outs), *grads, *(t.detach().clone() for t in module.state_dict().values())


def compared(pair, x, train, name):
    for i, (mine, theirs) in enumerate(zip(*[results(m, x, train) for m in reversed(pair)], strict=True)):
        assert_same(mine, theirs, f"{name} {i}")


def only_ours():
    """Whatever was counted ran on this library's kernels, and something was."""
    rows = dnnkern.torch.status(reset=True)
    assert rows and not [row for row in rows if not row.ours], rows


@pytest.mark.parametrize("case", CASES, ids=str)
def test_layers_are_pytorchs(case):
    pair, x = case.both(), case.input()
    assert isinstance(pair[1], type(pair[0])) and repr(pair[0]) == repr(pair[1])
    for train in (True, False):
        with torch.backends.cudnn.flags(enabled=not isinstance(pair[0], nn.RNNBase), allow_tf32=False):
            compared(pair, x, train, str(case))
        if not case.layer.startswith("Transformer"):  # whose dropout of 0 is PyTorch's
            only_ours()


@pytest.mark.parametrize("layer", ["Conv2d", "BatchNorm2d", "GroupNorm", "MaxPool2d", "AdaptiveAvgPool2d", "ReLU"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_channels_last(layer, dtype):
    case = next(c for c in CASES if c.layer == layer)
    compared(case.both(dtype), case.input(dtype).to(memory_format=torch.channels_last), True, case)
    only_ours()


@pytest.mark.parametrize("case", [c for c in CASES if not c.layer.startswith(("BatchNorm", "Transformer"))], ids=str)
def test_autocast(case):
    """Results of PyTorch's dtype."""
    pair, x = case.both(), case.input()
    with torch.autocast(DEVICE, torch.bfloat16):
        theirs, mine = (m.train(False)(x) for m in pair)
        found = [m.dtype for m in (mine if isinstance(mine, tuple) else (mine,)) if isinstance(m, torch.Tensor)]
        assert found == [m.dtype for m in (theirs if isinstance(theirs, tuple) else (theirs,)) if isinstance(m, torch.Tensor)]
    if isinstance(theirs, torch.Tensor):
        assert_same(mine, theirs, str(case))


def net(module=ours):
    torch.manual_seed(0)
    return nn.Sequential(module.Conv2d(3, 4, 3, padding="same", padding_mode="circular"), module.BatchNorm2d(4), module.ReLU(inplace=True),
                         module.MaxPool2d(2), module.GroupNorm(2, 4), module.GELU(), nn.Flatten(), module.Linear(36, 8),
                         module.LayerNorm(8), module.Softmax(-1)).to(DEVICE)


X = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(0)).to(DEVICE)


@pytest.mark.parametrize("train", [True, False])
def test_compiled_in_one_graph(train):
    pair = net(nn), net()
    compiled = torch.compile(pair[1], backend="aot_eager", fullgraph=True)
    for _ in range(2):
        mine = results(compiled, X, train)
        only_ours()
        for i, (x, y) in enumerate(zip(mine, results(pair[0], X, train), strict=True)):
            assert_same(x, y, f"compiled {i}")


def test_functorch_and_second_derivatives():
    model = net(ours).double().eval()
    x = X.double()

    def loss(x):
        return (model(x) * torch.linspace(0, 1, 8, device=DEVICE, dtype=torch.float64)).sum()
    per_sample = torch.func.vmap(torch.func.grad(lambda x: loss(x[None])))(x)
    x = x.requires_grad_()
    y, = torch.autograd.grad(loss(x), x, create_graph=True)
    assert_same(y.detach(), per_sample, "per sample")
    mine, = torch.autograd.grad(y.square().sum(), x)
    theirs = net(nn).double().eval()
    z = (theirs(x) * torch.linspace(0, 1, 8, device=DEVICE, dtype=torch.float64)).sum()
    again, = torch.autograd.grad(torch.autograd.grad(z, x, create_graph=True)[0].square().sum(), x)
    assert_same(mine, again, "second")


SMOOTH = "Conv2d ConvTranspose1d Linear BatchNorm2d LayerNorm GroupNorm AvgPool2d AdaptiveAvgPool1d Softmax SiLU LeakyReLU GRU".split()


@pytest.mark.parametrize("case", [c for c in CASES if c.layer in SMOOTH], ids=str)
def test_derivatives_by_differences(case):
    model, x = case.both("float64")[1], case.input("float64").requires_grad_()
    params = list(model.parameters())
    with torch.no_grad():
        for p in params:
            p.add_(0.1)

    def function(x, *_):
        y = model(x * 1)
        return y[0] if isinstance(y, tuple) else y
    with torch.backends.cudnn.flags(enabled=True, deterministic=True):  # second derivatives are PyTorch's
        assert torch.autograd.gradcheck(function, (x, *params), fast_mode=True)
        assert torch.autograd.gradgradcheck(function, (x, *params), fast_mode=True)


def test_fake_tensors_and_export():
    from torch._subclasses.fake_tensor import FakeTensorMode
    model = net().eval()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert model(mode.from_tensor(X)).shape == (4, 8)
    program = torch.export.export(model, (X,))
    assert "dnnkern.linear" in str(program.graph)
    assert_same(program.module()(X), model(X), "exported")


def drawn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE).requires_grad_()


@pytest.mark.parametrize("name, given", {
    "linear": lambda: (drawn(2, 3, 6), drawn(7, 6), drawn(7), drawn(2, 3, 7), "relu"),
    "convolution_fused": lambda: (drawn(2, 4, 6, 5), drawn(4, 4, 3, 3), drawn(4), drawn(2, 4, 6, 5) * 2, [1, 1], [1, 1], [1, 1], 1, "relu"),
    "batch_norm": lambda: (drawn(2, 4, 6, 5), drawn(4), drawn(4) * 2, None, 1e-5, ""),
    "batch_norm_infer": lambda: (drawn(2, 4, 6, 5), drawn(4), None, drawn(2, 4, 6, 5) * 2, *torch.ones(2, 4, device=DEVICE), 1e-5, "relu"),
    "activation": lambda: (drawn(2, 4), "silu"), "activation_by_result": lambda: (drawn(2, 4), "leaky_relu negative_slope=0.2"),
    "native_layer_norm": lambda: (drawn(2, 5), [5], drawn(5), drawn(5) * 2, 1e-5), "_softmax": lambda: (drawn(3, 4), 1, False),
    "max_pool2d_with_indices": lambda: (drawn(2, 4, 6, 4), [2, 2], [2, 2], [0, 0], [1, 1], False)}.items(),
    ids=lambda value: value if isinstance(value, str) else "")
def test_operators_are_what_they_say(name, given):
    """Schema, gradient, fake kernel and traced graphs."""
    found = torch.library.opcheck(getattr(torch.ops.dnnkern, name).default, given())
    assert set(found.values()) == {"SUCCESS"}


def test_copies_and_pickles():
    model = net().eval()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert list(map(type, other)) == list(map(type, model)) and torch.equal(other(X), model(X))


@pytest.mark.parametrize("layer", ["LSTM", "GRU", "RNN"])
def test_packed_sequences(layer):
    pair = Case(layer, 3, 4, bidirectional=True, shape=()).both()
    make, values = torch.Generator().manual_seed(0), []
    sequences = [torch.randn(n, 3, generator=make).to(DEVICE) for n in (3, 5, 1)]
    for module in reversed(pair):
        with torch.backends.cudnn.flags(enabled=False):
            y, last = module(nn.utils.rnn.pack_sequence(sequences, enforce_sorted=False))
            last = last if isinstance(last, tuple) else (last,)
            grads = torch.autograd.grad(y.data.square().sum() + sum(h.sum() for h in last), list(module.parameters()))
        values.append([y.data.detach(), *(h.detach() for h in last), *grads])
        if len(values) == 1:
            only_ours()
    for i, (mine, theirs) in enumerate(zip(*values, strict=True)):
        assert_same(mine, theirs, f"packed {i}")


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_losses(reduction):
    make = torch.Generator().manual_seed(0)
    for shape, target in (((6, 5), labels(6, classes=5)), ((2, 5, 3, 4), labels(2, 3, 4, classes=5))):
        x = torch.randn(shape, generator=make).to(DEVICE)
        weight = torch.rand(5, generator=make).to(DEVICE)
        for name, more in (("CrossEntropyLoss", {"label_smoothing": 0.1, "ignore_index": 1}), ("NLLLoss", {"weight": weight})):
            got = [getattr(m, name)(reduction=reduction, **more) for m in (ours, nn)]
            values = []
            for loss in got:
                given = x.clone().requires_grad_()
                y = loss(given, target)
                values.append((y.detach(), *torch.autograd.grad(y.sum(), given)))
            for mine, theirs in zip(*values):
                assert_same(mine, theirs, name)
    only_ours()


def test_embedding():
    for more in ({}, {"padding_idx": -1, "scale_grad_by_freq": True}):
        pair = [m.Embedding(7, 6, **more).to(DEVICE) for m in (nn, ours)]
        pair[1].load_state_dict(pair[0].state_dict())
        values = []
        for module in pair:
            y = module(labels(2, 9, classes=7))
            values.append((y.detach(), *torch.autograd.grad(y.square().sum(), module.weight)))
        for mine, theirs in zip(*reversed(values)):
            assert_same(mine, theirs, "embedding")
    only_ours()


def test_dropout():
    """Each element is dropped with probability p or divided by 1 - p, in its gradient too; out of training it is the argument."""
    layer, x = ours.Dropout(0.25), torch.ones(4096, device=DEVICE, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    kept = y > 0
    assert 0.7 < kept.float().mean() < 0.8 and torch.equal(y, kept * torch.tensor(4 / 3, device=DEVICE)) and torch.equal(x.grad, y)
    assert layer.eval()(x) is x
    only_ours()


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("train", [True, False])
def test_attention(weights, train):
    torch.manual_seed(0)
    pair = [m.MultiheadAttention(8, 2, batch_first=True, bias=False).to(DEVICE).train(train) for m in (nn, ours)]
    pair[1].load_state_dict(pair[0].state_dict())
    x = torch.randn(2, 5, 8, device=DEVICE)
    mask = torch.ones(5, 5, dtype=torch.bool, device=DEVICE).triu(1)
    values = []
    for module in pair:
        given = x.clone().requires_grad_()
        y, w = module(given, given, given, attn_mask=mask, need_weights=weights)
        grads = torch.autograd.grad(y.square().sum(), [given, *module.parameters()])
        values.append((y.detach(), None if w is None else w.detach(), *grads))
    for mine, theirs in zip(*reversed(values)):
        assert_same(mine, theirs, "attention")
    assert {"linear", "bmm" if weights else "scaled_dot_product_attention"} <= ran()
    with torch.no_grad():  # where PyTorch's has a kernel for the whole layer
        assert_same(pair[1](x, x, x)[0], pair[0](x, x, x)[0], "attention in inference")
    assert {"linear", "bmm"} <= ran()


def test_a_transformer_in_inference():
    torch.manual_seed(0)
    pair = []
    for m in (nn, ours):
        pair.append(m.TransformerEncoder(m.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).to(DEVICE).eval())
    pair[1].load_state_dict(pair[0].state_dict())
    x, padded = torch.randn(2, 5, 8, device=DEVICE), labels(2, 5, classes=5) > 3
    with torch.no_grad():
        theirs, mine = (m(x, src_key_padding_mask=padded) for m in pair)
    assert_same(mine[~padded], theirs[~padded], "transformer")
    assert {"linear", "native_layer_norm"} <= ran()


# ---- what goes to PyTorch

@pytest.mark.parametrize("layer, x, error, text", [
    (lambda: ours.Conv2d(3, 4, 3), (2, 4, 5, 5), RuntimeError, "to have 3 channels, but got 4 channels"),
    (lambda: ours.Linear(4, 5), (2, 3), RuntimeError, "shapes cannot be multiplied"),
    (lambda: ours.BatchNorm2d(3), (2, 3), ValueError, "expected 4D input"),
    (lambda: ours.BatchNorm1d(3), (1, 3), ValueError, "Expected more than 1 value per channel"),
    (lambda: ours.LayerNorm(4), (2, 3), RuntimeError, "Given normalized_shape"),
    (lambda: ours.MaxPool2d(2, padding=2), (1, 4, 4), RuntimeError, "pad should be at most half")])
def test_errors_are_pytorchs(layer, x, error, text):
    with pytest.raises(error, match=text):
        layer().to(DEVICE)(torch.ones(x, device=DEVICE))


def test_what_is_not_ours_is_counted():
    model = ours.Linear(3, 4).to(DEVICE)
    with pytest.raises(RuntimeError):
        model(torch.ones(2, 3, dtype=torch.int64, device=DEVICE))
    y = ours.AvgPool2d(2, divisor_override=-3).to(DEVICE)(torch.ones(1, 1, 4, 4, device=DEVICE))
    assert torch.equal(y, torch.full((1, 1, 2, 2), -4 / 3, device=DEVICE))
    assert {(row.op, row.why) for row in dnnkern.torch.status(reset=True) if not row.ours} == {("avg_pool2d", "divisor_override -3")}


class Tagged(torch.Tensor):
    """A subclass."""


def test_subclasses():
    y = ours.Linear(3, 4).to(DEVICE)(torch.ones(2, 3, device=DEVICE).as_subclass(Tagged))
    assert type(y) is Tagged and not ran()


def test_functions_have_pytorchs_names():
    for name in functional.NAMES:
        function = getattr(functional, name)
        assert function.theirs in (getattr(F, name, None), getattr(torch, name, None)) and name in function.__doc__
