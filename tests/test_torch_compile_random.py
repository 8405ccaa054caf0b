"""Random programs, compiled and as they are, in float64: what runs together, views between, results that several read."""
import random

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from test_torch_table import alone  # noqa: E402, F401 (a fixture)
from torch_calls import DEVICE  # noqa: E402

import dnnkern.torch  # noqa: E402
from dnnkern.torch.compiler import backend  # noqa: E402

pytestmark = pytest.mark.sized

UNARY = (torch.relu, torch.sigmoid, torch.tanh, F.silu, F.gelu, torch.neg, torch.abs, torch.square, lambda x: torch.exp(x * 0.1),
         lambda x: x * 0.5 - 1, lambda x: torch.clamp(x, -0.9, 1.1), lambda x: x.clone(), F.hardswish)
BINARY = (torch.add, torch.mul, torch.sub, torch.maximum, lambda x, y: torch.where(x > y, x, y * 0.5), lambda x, y: x / (y.abs() + 1))
REDUCED = (lambda x, d: x.sum(d, keepdim=True), lambda x, d: x.mean(d, keepdim=True), lambda x, d: x.amax(d, keepdim=True),
           lambda x, d: x.mean(d))


class Program:
    """Steps on values that earlier ones have made; several of them are results."""

    def __init__(self, seed, steps=14):
        self.random = random.Random(seed)
        b, t, c = (self.random.choice((1, 2, 3, 5)) for _ in range(3))
        self.shapes = [(b, t, c), (b, t, c), (c,), (t, c)]
        self.steps = [self._step() for _ in range(steps)]
        self.results = [self.random.randrange(len(self.shapes) - steps, len(self.shapes)) for _ in range(3)]

    def given(self):
        torch.manual_seed(0)
        return [torch.randn(shape, dtype=torch.float64).to(DEVICE).requires_grad_() for shape in self.shapes[:4]]

    def __call__(self, *given):
        values = list(given)
        for function, *of in self.steps:
            values.append(function(*[values[k] for k in of]))
        return tuple(values[k] for k in self.results)

    def _add(self, function, *of):
        """The step, whose result's shape PyTorch tells."""
        self.shapes.append(tuple(function(*[torch.ones(self.shapes[k], dtype=torch.float64) for k in of]).shape))
        return function, *of

    def _step(self):
        pick, known = self.random, range(len(self.shapes))
        one = pick.choice([k for k in known if self.shapes[k]] + [len(self.shapes) - 1] * 3) if self.shapes[-1] else pick.choice(
            [k for k in known if self.shapes[k]])
        shape = self.shapes[one]
        kind = pick.choice(("unary", "unary", "binary", "binary", "binary", "reduced", "product", "softmax", "norm", "view", "view",
                            "joined"))
        if kind == "binary":
            like = [k for k in known if _broadcasts(shape, self.shapes[k])]
            return self._add(pick.choice(BINARY), one, pick.choice(like))
        if kind == "reduced":
            axis, function = pick.randrange(len(shape)), pick.choice(REDUCED)
            return self._add(lambda x: function(x, axis), one)
        if kind == "product" and len(shape) >= 2:
            others = [k for k in known if len(self.shapes[k]) >= 2 and self.shapes[k][-1] == shape[-1]
                      and (len(self.shapes[k]) == 2 or self.shapes[k][:-2] == shape[:-2])]
            return self._add(lambda x, y: x @ y.mT * 0.3, one, pick.choice(others))
        if kind == "softmax":
            axis = pick.randrange(len(shape))
            return self._add(lambda x: x.softmax(axis), one)
        if kind == "norm":
            weight = [k for k in known if self.shapes[k] == shape[-1:]]
            if weight:
                k = pick.choice(weight)
                return self._add(lambda x, w: F.layer_norm(x, x.shape[-1:], w, w * 0.5), one, k)
        if kind == "joined":
            axis, join = pick.randrange(len(shape)), pick.choice((torch.cat, torch.stack) if len(shape) < 4 else (torch.cat,))
            like = pick.choice([k for k in known if self.shapes[k] == shape])
            return self._add(lambda x, y: join([x, y * 2, x], axis)[..., :5], one, like)
        if kind == "view":
            views = [lambda x: x.transpose(0, -1), lambda x: x.flatten(0, -2) if x.dim() > 1 else x[None], lambda x: x[..., ::2],
                     lambda x: x.reshape(-1), lambda x: x[1:] if x.shape[0] > 1 else x[None], lambda x: x.unsqueeze(1)]
            function = pick.choice(views if len(shape) < 4 else views[:4])
            return self._add(function, one)
        return self._add(pick.choice(UNARY), one)


def _broadcasts(a, b):
    """Whether they broadcast, to no more elements than one of them has or few more."""
    try:
        return len(torch.broadcast_shapes(a, b)) <= 4
    except RuntimeError:
        return False


def derived(f, given):
    ys = f(*given)
    total = sum((y * y).mean() for y in ys)
    return [*ys, *torch.autograd.grad(total, given, allow_unused=True)]


@pytest.mark.parametrize("seed", range(16))
def test_random_programs(seed):
    program = Program(seed)
    given = program.given()
    theirs = derived(program, given)
    torch._dynamo.reset()
    run = torch.compile(lambda *given: program(*given), backend=backend, fullgraph=True)
    for k, (ours, y) in enumerate(zip(derived(run, given), theirs, strict=True)):
        assert (ours is None) == (y is None)
        if y is not None:
            scale = max(1.0, y.detach().abs().max().item())
            assert ours.shape == y.shape and torch.allclose(ours, y, rtol=0, atol=1e-9 * scale), (seed, k, (ours - y).abs().max())
    assert dnnkern.torch.explain(run).parts
