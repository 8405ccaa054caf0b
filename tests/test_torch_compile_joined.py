"""Concatenations, and sums of gradients of slices, whose pieces are written where they lie; casts that what makes a result does."""
import copy

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from test_torch_compile import compiled, derived, forgotten, made, on_addresses  # noqa: E402, F401 (fixtures)
from test_torch_table import alone, assert_same  # noqa: E402, F401 (a fixture)
from torch import nn  # noqa: E402
from torch_calls import DEVICE  # noqa: E402

import dnnkern.torch  # noqa: E402
from dnnkern.torch.compiler._backend import _boxed  # noqa: E402
from dnnkern.torch.compiler._joined import moved  # noqa: E402

pytestmark = pytest.mark.sized


class Attention(nn.Module):
    """Attention whose queries, keys and values one product makes: taken apart along an axis of their own, or as runs of columns."""

    def __init__(self, apart, c=32, heads=2):
        super().__init__()
        self.apart, self.heads, self.qkv, self.out = apart, heads, nn.Linear(c, 3 * c), nn.Linear(c, c)

    def forward(self, x):
        b, s, c = x.shape
        y = self.qkv(x)
        if self.apart:
            q, k, v = y.view(b, s, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        else:
            q, k, v = (t.view(b, s, self.heads, c // self.heads).transpose(1, 2) for t in y.split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(b, s, c))


def pieces(x, w):
    """A product with what follows it, columns of what is given, and twice another product."""
    return torch.cat([torch.relu(x @ w), x[..., :3], 2 * (x @ w[:, :5])], -1).sin()


def images(x, w):
    return torch.cat([F.conv2d(x, w, padding=1).relu(), F.conv2d(x, w[:5])], 1) if w.shape[-1] == 1 else torch.cat(
        [F.conv2d(x, w, padding=1).relu(), F.conv2d(x, w[:4], padding=1)], 1).mean((2, 3))


def turned(x, w):
    """Rotary embedding, as programs write it."""
    a, b = x.chunk(2, -1)
    return (x * 2 + torch.cat([-b, a], -1) * 3) @ w


def stacked(x, w):
    return torch.stack([x @ w, (x @ w).tanh(), x.sum(-1, keepdim=True) * w.mean(0)], 1).cos()


def read_twice(x, w):
    """A piece that something else reads, too."""
    y = x @ w
    return torch.cat([y, y * 2], -1) + torch.cat([y * 3, y], -1)


def twice(x, w):
    """One piece at two places."""
    y = x @ w
    return torch.cat([y, x, y], -1)


def transposed(x, w):
    """A concatenation that is copied in another order."""
    y = torch.cat([(x @ w).relu(), (x @ w) * 3], 1)
    return y.transpose(1, 2).contiguous().flatten(1).sin()


def gathered(x, w):
    """Pieces of one tensor: their gradients are added up."""
    a, b, c = x.split((1, 2, 2), 1)
    return (a @ w).sum() + (b * 3 @ w).sin().sum() + c.exp().sum()


def with_a_gap(x, w):
    """Not all of a tensor: the gradient of the rest is 0."""
    return (x[:, :2] @ w).sum() + (x[:, 3:] @ w).sin().sum()


PROGRAMS = {f.__name__: f for f in (pieces, turned, stacked, read_twice, twice, transposed, gathered, with_a_gap)}


def left(run):
    return {found.operator for found in dnnkern.torch.explain(run).left}


def check(f, *given):
    run = compiled(f)
    for k, (x, y) in enumerate(zip(derived(run, *given), derived(f, *given), strict=True)):
        assert_same(x, y, f"result {k}")
    return run


@pytest.mark.parametrize("name", PROGRAMS)
def test_concatenations(name):
    run = check(PROGRAMS[name], made(2, 5, 8), made(8, 8))
    assert not left(run) & {"stack", "select_backward"}


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "channels-last"])
def test_channels(format):
    x, w = (t.contiguous(memory_format=format) for t in (made(2, 3, 6, 5), made(8, 3, 3, 3)))
    check(images, x, w)


@pytest.mark.parametrize("apart", [True, False], ids=["unbind", "split"])
def test_gradients_of_queries_keys_and_values(apart):
    """They lie where one product reads them: nothing is added, filled or copied."""
    net = Attention(apart).to(DEVICE)
    run = compiled(copy.deepcopy(net))
    for k, (x, y) in enumerate(zip(derived(run, made(2, 7, 32)), derived(net, made(2, 7, 32)), strict=True)):
        assert_same(x, y, f"result {k}")
    operators = [name for part in dnnkern.torch.explain(run).parts if part.kind == "backward" for name in part.operators]
    assert left(run) == {"dnnkern.attention", "dnnkern.attention_backward"}
    assert operators.count("add.Tensor") == 1 and "clone" not in operators, operators  # the residual's


@pytest.mark.parametrize("name", ["pieces", "turned", "stacked", "gathered"])
def test_concatenations_on_addresses(name, on_addresses):  # noqa: F811
    check(PROGRAMS[name], made(2, 5, 8), made(8, 8))
    assert on_addresses


def test_attention_on_addresses(on_addresses):  # noqa: F811
    net, x = Attention(True), made(2, 7, 32)
    for k, (a, b) in enumerate(zip(derived(compiled(copy.deepcopy(net)), x), derived(net, x), strict=True)):
        assert_same(a, b, f"result {k}")


@pytest.fixture
def made_of(monkeypatch):
    """Methods of the operations that run together, of each part that is made."""
    from dnnkern.torch.compiler import _emit
    found, recipe = [], _emit.Recipe

    def noted(ops, stored):
        found.append([op.method for op in ops])
        return recipe(ops, stored)
    monkeypatch.setattr(_emit, "Recipe", noted)
    return found


def test_images_after_a_product(made_of):
    """With channels last a product has rows of channels, and the program images: what follows runs in the product's order."""
    x, w, b = made(2, 8, 5, 4).contiguous(memory_format=torch.channels_last), made(8, 8), made(8)

    def f(x, w, b):
        y = F.linear(F.gelu(x.permute(0, 2, 3, 1)), w, b).permute(0, 3, 1, 2)
        return torch.relu(x + y) * b[:, None, None]
    check(f, x, w, b)
    assert ["matmul", "add", "add", "relu"] in [methods[:4] for methods in made_of], made_of


def test_a_cast_is_no_operation(made_of):
    """Mixed precision: a gradient of a weight is made in the weight's type."""
    w, x = made(8, 6).requires_grad_(), made(5, 8, dtype=torch.bfloat16)

    def f(x, w):
        return (x @ w.to(torch.bfloat16)).float().square()
    gradients = [torch.autograd.grad(g(x, w).sum(), w)[0] for g in (compiled(f), f)]
    assert gradients[0].dtype is torch.float32
    assert_same(*(g.to(torch.bfloat16) for g in gradients), "gradient")
    assert made_of[-1][-1] == "matmul"


def test_inputs_are_given_up():
    """As PyTorch's callers expect of a function of a list."""
    given = [made(3), made(3)]
    a, b = given
    assert torch.equal(_boxed(lambda x, y: x + y, a.device)(given), a + b) and given == []


@pytest.mark.parametrize("dims, strides, shape, old, new, expected", [
    ((2, 3), (3, 1), (3, 2), (1, 3), (10, 1), (1, 10)),  # transposed
    ((6,), (1,), (2, 3), (3, 1), (3, 1), (1,)),
    ((6,), (1,), (2, 3), (3, 1), (9, 1), None),  # two axes that are one
    ((2, 3), (3, 1), (6,), (1,), (4,), (12, 4)),
    ((2, 4, 5, 3), (60, 3, 12, 1), (2, 5, 12), (60, 12, 1), (180, 36, 1), (180, 3, 36, 1)),  # heads side by side
    ((2, 1, 3), (3, 0, 1), (2, 3), (3, 1), (7, 2), (7, 0, 2)),
    ((2, 3), (3, 1), (2, 2), (3, 1), (9, 1), None),  # not all of it
    ((2, 3), (0, 1), (2, 3), (0, 1), (9, 1), None),  # broadcast
])
def test_moved(dims, strides, shape, old, new, expected):
    assert moved(dims, strides, shape, old, new) == expected


def test_casts_of_weights_are_one_call():
    """Mixed precision casts all weights in each step; what is no cast of a whole tensor stays a part."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 5)).to(DEVICE)
    other, x, found = copy.deepcopy(net), made(2, 3, 6, 6), []
    run = compiled(other)
    for f, of in ((net, net), (run, other)):
        with torch.autocast(DEVICE, torch.bfloat16):
            y = f(x)
        y.float().square().mean().backward()
        found.append([y, *(p.grad for p in of.parameters())])
    for k, (a, b) in enumerate(zip(*found, strict=True)):
        assert_same(b.to(torch.bfloat16), a.to(torch.bfloat16), f"result {k}")
    reasons = [row.reason for row in dnnkern.torch.explain(run).left if row.operator == "_to_copy"]
    assert reasons == ["casts of what is given, all at once"] * 4  # the images, the filter, the weights and the bias
