"""Calls made again and again on PyTorch's tensors compute anew each time, whatever became of the arrays meanwhile.

On a GPU most of them are made by sites and guarded lists (`test_cached` looks at how); in the simulator by the general path.
"""
import itertools

import pytest

import dnnkern
from dnnkern.device import HOST_MEMORY

torch = pytest.importorskip("torch")
DEVICE = "cpu" if HOST_MEMORY else "cuda"
pytestmark = pytest.mark.skipif(not HOST_MEMORY and not torch.cuda.is_available(), reason="torch sees no GPU")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def some(*shape, dtype=torch.float32):
    """Small integers, of which products are exact."""
    return torch.randint(-4, 5, shape).to(DEVICE, dtype)


def test_products():
    """With and without out, the same tensors and others, strides, streams, in place."""
    a, b, y = some(8, 16), some(16, 4), some(8, 4)
    for k in range(8):
        assert dnnkern.matmul(a, b, out=y) is y
        assert torch.equal(y, a @ b)
        assert torch.equal(dnnkern.matmul(a, b), a @ b)
        assert torch.equal(dnnkern.matmul(a, b, c=y, out=y), 2 * (a @ b))
        if k == 3:
            a.data = some(16, 8).t()
        elif k == 5:
            a, b, y = some(8, 16).requires_grad_(), some(4, 16).t(), some(8, 4)
        with torch.no_grad():
            b += 1


def test_many_layers_of_one_shape():
    x, layers = some(4, 8), [some(8, 8) for _ in range(20)]
    for _ in range(4):
        for w in layers:
            assert torch.equal(dnnkern.matmul(x, w), x @ w)


def test_norms():
    x, gamma, beta = (some(*shape) for shape in ((4, 3, 5), (3,), (3,)))
    mean, var = torch.zeros(3, device=DEVICE), torch.ones(3, device=DEVICE)
    want_mean, want_var = mean.clone(), var.clone()
    for k in range(6):
        y, m, r = dnnkern.batch_norm_train_fwd(x, gamma, beta, mean, var)
        want = torch.nn.functional.batch_norm(x, want_mean, want_var, gamma, beta, training=True)
        for ours, theirs in ((y, want), (mean, want_mean), (var, want_var)):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
        x = some(4, 3, 5)


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "set_to_none"])
def test_training(kept):
    """AdamW on parameters whose gradients are new at each step, or stay; a parameter is swapped and one transposed meanwhile."""
    shapes = (6, 5), (7,), (3, 3), (2, 2, 2)
    ours = [some(*shape).requires_grad_() for shape in shapes]
    theirs = [p.detach().clone().requires_grad_() for p in ours]
    m, v = ([torch.zeros_like(p) for p in ours] for _ in range(2))
    optimizer = torch.optim.AdamW(theirs, lr=0.1, weight_decay=0.1)
    grads = [torch.empty_like(p) for p in ours]
    for step in itertools.count(1):
        new = [torch.randn(shape).to(DEVICE) for shape in shapes]
        for g, value in zip(grads, new):
            g.copy_(value)
        for p, value in zip(theirs, new):
            p.grad = value.clone()
        dnnkern.adamw_step(ours, grads if kept else new, m, v, lr=0.1, weight_decay=0.1, step=step)
        optimizer.step()
        for p, q in zip(ours, theirs):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-4)
        if step == 4:
            ours[1].data = ours[1].data.clone()
        elif step == 6:  # the values of another layout
            ours[2].data = ours[2].data.t().contiguous().t()
        elif step == 8:
            m[0].data, v[0].data = m[0].data.clone(), v[0].data.t().contiguous().t()
        elif step == 11:
            break


@pytest.mark.gpu
@pytest.mark.skipif(HOST_MEMORY, reason="needs a GPU")
def test_graphs_of_calls_that_were_made_before():
    """Captured after they have sites, and replayed on other values at the same addresses."""
    a, b, y = some(64, 64), some(64, 64), some(64, 64)
    p, g, mom = ([some(100) for _ in range(3)] for _ in range(3))
    for _ in range(4):
        dnnkern.matmul(a, b, out=y)
        dnnkern.sgd_step(p, g, mom, lr=0.5, momentum=0.5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        z = dnnkern.matmul(a, b)
        dnnkern.matmul(a, b, out=y)
        dnnkern.sgd_step(p, g, mom, lr=0.5, momentum=0.5)
    for _ in range(3):
        a.copy_(some(64, 64))
        before = [(p[k].clone(), mom[k].clone()) for k in range(3)]
        graph.replay()
        assert torch.equal(y, a @ b) and torch.equal(z, y)
        for k, (was, moment) in enumerate(before):
            torch.testing.assert_close(p[k], was - 0.5 * (0.5 * moment + g[k]))
        dnnkern.sgd_step([x.clone() for x in p], g, [x.clone() for x in mom], lr=0.5, momentum=0.5)  # other tables between replays


@pytest.mark.gpu
@pytest.mark.skipif(HOST_MEMORY, reason="needs a GPU")
def test_streams_of_torch():
    """The current one, given ones, and results that are made on them."""
    a, b = some(256, 256), some(256, 256)
    want, streams = a @ b, [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    for k in range(12):
        stream = streams[k % 3]
        with torch.cuda.stream(stream):
            y = dnnkern.matmul(a, b)
            assert torch.equal(y, want)
        z = torch.empty_like(y)
        torch.cuda.synchronize()
        dnnkern.matmul(a, b, out=z, stream=stream if k % 2 else stream.cuda_stream)
        stream.synchronize()
        assert torch.equal(z, want)
        x = dnnkern.matmul(a, b, stream=stream)
        stream.synchronize()
        assert torch.equal(x, want)
