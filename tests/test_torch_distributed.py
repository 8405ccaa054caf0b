"""Two processes on the CPU: `SyncBatchNorm`, and DistributedDataParallel, FSDP2 and tensor parallelism on overrides; what compiled programs
need for several devices."""
import copy
import functools
import tempfile

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from test_torch_table import alone, assert_same  # noqa: E402, F401 (a fixture)
from torch import nn  # noqa: E402

import dnnkern.torch  # noqa: E402
from dnnkern.torch._tensors import KEY  # noqa: E402
from dnnkern.torch.compiler import backend  # noqa: E402
from dnnkern.torch.compiler._before import with_operators  # noqa: E402

pytestmark = pytest.mark.sized
RANKS = 2


def data(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(KEY.lower())


def started(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=RANKS)
    try:
        torch.save((synchronised(rank), parallel(rank), sharded(rank), split(rank)), f"{folder}/{rank}")
    finally:
        dist.destroy_process_group()


@functools.cache
def together():
    """What `synchronised` returns in each of the processes, then `parallel`, `sharded` and `split`."""
    if KEY == "CUDA":
        pytest.skip("of processes without a GPU")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(started, (folder,), RANKS)
        return list(zip(*[torch.load(f"{folder}/{rank}") for rank in range(RANKS)]))


# ---- synchronised batch normalisation: (shape of x, ranks' parts, arguments, memory format)

CASES = {"images": ((6, 4, 3, 5), (4, 2), {}, torch.contiguous_format), "channels-last": ((6, 4, 3, 5), (1, 5), {}, torch.channels_last),
         "rows": ((6, 4), (3, 3), {"momentum": None}, torch.contiguous_format),
         "no-images": ((6, 4, 3, 5), (6, 0), {}, torch.contiguous_format),
         "plain": ((6, 4, 3, 5), (2, 4), {"affine": False, "track_running_stats": False}, torch.contiguous_format)}


def passes(norm, x, dy):
    """Of two steps of training and, with running statistics, one of inference: results and gradients, then the statistics and the
    weights' gradients."""
    found = []
    for training in (True, True, False)[:3 if norm.track_running_stats else 2]:
        norm.train(training)
        given = x.clone().requires_grad_()
        y = norm(given)
        y.backward(dy)
        found += [y.detach(), given.grad]
    sums = [p.grad for p in norm.parameters()]
    return found, [t.clone() for t in norm.buffers()], sums


def arguments(name):
    shape, parts, more, memory_format = CASES[name]
    x, dy = (data(shape, seed) for seed in (0, 1))
    return [t.to(memory_format=memory_format) if len(shape) == 4 else t for t in (x, dy)], parts, more


def weighted(norm):
    with torch.no_grad():
        for i, p in enumerate(norm.parameters()):
            p.copy_(data(p.shape, 2 + i))
    return norm


def synchronised(rank):
    found = {}
    for name in CASES:
        (x, dy), parts, more = arguments(name)
        norm = weighted(dnnkern.torch.nn.SyncBatchNorm(4, **more))
        found[name] = passes(norm, x.split(parts)[rank], dy.split(parts)[rank])
    ours = {row.op for row in dnnkern.torch.status(reset=True) if row.ours}
    return found, ours >= {"sync_batch_norm", "sync_batch_norm backward"}


def test_two_processes_equal_one():
    """Also where one has no images."""
    ranks = together()[0]
    assert all(ours for _, ours in ranks)
    for name in CASES:
        (x, dy), parts, more = arguments(name)
        whole, buffers, sums = passes(weighted((nn.BatchNorm1d if x.dim() == 2 else nn.BatchNorm2d)(4, **more)), x, dy)
        for i, theirs in enumerate(whole):
            mine = torch.cat([found[name][0][i] for found, _ in ranks])
            assert torch.allclose(mine, theirs, atol=2e-5, rtol=0), (name, i)
            for (found, _), part in zip(ranks, theirs.split(parts)):
                assert not part.numel() or found[name][0][i].stride() == part.stride(), (name, i)
        for i, theirs in enumerate(sums):  # which data-parallel training adds
            assert torch.allclose(sum(found[name][2][i] for found, _ in ranks), theirs, atol=1e-4, rtol=0), (name, i)
        for found, _ in ranks:
            for mine, theirs in zip(found[name][1], buffers, strict=True):
                assert_same(mine, theirs, name)


def test_converting():
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Sequential(nn.BatchNorm2d(4), nn.ReLU()), nn.BatchNorm1d(4, affine=False)).eval()
    kept = {name: id(t) for name, t in net.state_dict(keep_vars=True).items()}
    made = dnnkern.torch.nn.SyncBatchNorm.convert_sync_batchnorm(net, "group")
    assert made is net and {name: id(t) for name, t in net.state_dict(keep_vars=True).items()} == kept
    norms = [m for m in net.modules() if isinstance(m, nn.SyncBatchNorm)]
    assert [(type(m), m.training, m.process_group) for m in norms] == [(dnnkern.torch.nn.SyncBatchNorm, False, "group")] * 2
    assert type(dnnkern.torch.nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm2d(4))) is dnnkern.torch.nn.SyncBatchNorm


def test_without_a_group_it_is_batch_normalisation():
    x = data((4, 3, 5, 5))
    ours, theirs = (m.to(x.device) for m in (dnnkern.torch.nn.SyncBatchNorm(3), nn.BatchNorm2d(3)))
    for training in (True, False):
        assert_same(ours.train(training)(x).detach(), theirs.train(training)(x).detach(), "alone")
    for mine, other in zip(ours.buffers(), theirs.buffers()):
        assert_same(mine, other, "running")


@pytest.mark.parametrize("x, text", [
    (torch.ones(3), "expected at least 2D input"), (torch.ones(2, 3, device="meta"), "input is on meta; expected it on c")])
def test_bad_input(x, text):
    with pytest.raises(ValueError, match=text):
        dnnkern.torch.nn.SyncBatchNorm(3)(x)


# ---- data-parallel training of a network that knows nothing of this library

def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5))


def step(net, x, target, optim=torch.optim):
    optimizer = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(net(x), target).backward()
        optimizer.step()
    return [p.detach() for p in net.parameters()]


X, TARGET = data((8, 2, 6, 6)), torch.arange(8) % 5


def parallel(rank):
    x, target = X.chunk(RANKS)[rank], TARGET.chunk(RANKS)[rank]
    with dnnkern.torch.enabled("all", strict=True):
        found = step(nn.parallel.DistributedDataParallel(network()), x, target)
    ran = {row.op for row in dnnkern.torch.status(reset=True) if row.ours}
    net = network()
    dnnkern.torch.convert(net)
    converted = step(nn.parallel.DistributedDataParallel(net), x, target, dnnkern.torch.optim)
    return found, ran, converted, {row.op for row in dnnkern.torch.status(reset=True) if row.ours}


def test_data_parallel_training_on_overrides():
    ranks = together()[1]
    expected = step(network(), X, TARGET)
    for found, ran, converted, ran_converted in ranks:
        assert ran >= {"convolution", "convolution_backward", "max_pool2d_with_indices_backward", "cross_entropy_loss", "addmm", "mm"}
        assert ran_converted >= {"convolution", "linear", "sgd"}
        for mine, again, theirs in zip(found, converted, expected, strict=True):
            assert_same(mine, theirs, "trained")
            assert_same(again, theirs, "converted")


# ---- FSDP2: each rank has a part of every parameter, and gathers a module's before it runs

def sharded(rank):
    """Parameters after the steps, shapes of this rank's parts of them, what ran."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh, net = init_device_mesh("cpu", (RANKS,)), network()
    for layer in (net[0], net[4]):
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    with dnnkern.torch.enabled("heavy", strict=True):
        found = step(net, X.chunk(RANKS)[rank], TARGET.chunk(RANKS)[rank])
    ran = {row.op for row in dnnkern.torch.status(reset=True) if row.ours}
    return [p.full_tensor().clone() for p in found], [tuple(p.to_local().shape) for p in found], ran


def test_sharded_parameters():
    """As one process on the whole batch; each rank keeps a half."""
    expected = step(network(), X, TARGET)
    for found, parts, ran in together()[2]:
        assert ran >= {"convolution", "convolution_backward", "max_pool2d_with_indices_backward", "cross_entropy_loss", "addmm", "mm"}
        for mine, theirs in zip(found, expected, strict=True):
            assert_same(mine, theirs, "sharded")
    shapes = [tuple(p.shape) for p in expected]
    for whole, *halves in zip(shapes, *(parts for _, parts, _ in together()[2]), strict=True):
        assert sum(half[0] for half in halves) == whole[0] and all(half[1:] == whole[1:] for half in halves)


# ---- tensor parallelism: the hidden features of two linear layers are divided among the ranks

SEQUENCE = data((3, 5, 12), 7)


def mlp():
    torch.manual_seed(1)
    return nn.Sequential(nn.LayerNorm(12), nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 12)).to(KEY.lower())


def trained(net):
    """Result, loss and parameters of two steps."""
    optimizer, found = torch.optim.SGD(net.parameters(), lr=0.1), []
    for _ in range(2):
        optimizer.zero_grad()
        y = net(SEQUENCE)
        loss = (y - SEQUENCE).square().mean()
        loss.backward()
        optimizer.step()
        found += [y.detach().clone(), loss.detach().clone()]  # of results that are still on their way
    return found, [p.detach() for p in net.parameters()]


def split(rank):
    """As `trained`, then the parts' shapes and what ran."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    net = parallelize_module(mlp(), init_device_mesh("cpu", (RANKS,)), {"1": ColwiseParallel(), "3": RowwiseParallel()})
    dnnkern.torch.status(reset=True)
    with dnnkern.torch.enabled("all"):
        found, parameters = trained(net)
    ran = {row.op for row in dnnkern.torch.status(reset=True) if row.ours}
    local = [tuple(getattr(p, "to_local", lambda p=p: p)().shape) for p in parameters]
    return found, [p.full_tensor().clone() if hasattr(p, "full_tensor") else p for p in parameters], local, ran


def test_layers_divided_among_ranks():
    found, parameters = trained(mlp())
    for mine, theirs, local, ran in together()[3]:
        assert ran >= {"addmm", "mm", "gelu", "gelu_backward", "native_layer_norm", "native_layer_norm_backward"}, ran
        assert local == [(12,), (12,), (8, 12), (8,), (12, 8), (12,)]
        for name, ours, expected in (("results", mine, found), ("parameters", theirs, parameters)):
            for one, other in zip(ours, expected, strict=True):
                assert_same(one, other, name)


# ---- compiled programs

@pytest.mark.parametrize("dims", (1, 2, 3))
def test_a_graph_whose_code_is_written_at_once(dims):
    """DistributedDataParallel's pieces of a program are: Dynamo's own graphs wait."""
    def program(x):
        return getattr(F, f"adaptive_avg_pool{dims}d")(x, 1)
    x = torch.randn(2, 3, *range(4, 4 + dims), device=KEY.lower())
    made = with_operators(torch.fx.symbolic_trace(program))
    assert "torch" not in made.code.replace("dnnkern_torch", "")
    torch.testing.assert_close(made(x), program(x))


def test_the_second_device():
    """Kernels are planned for the device of the program's tensors, and loaded there."""
    if KEY != "CUDA" or torch.cuda.device_count() < 2:
        pytest.skip("one device")
    model = nn.Sequential(nn.Conv2d(8, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 8), nn.GELU())
    x = torch.randn(4, 8, 8, 8)
    for there in ("cuda:1", "cuda:0"):
        theirs = copy.deepcopy(model).to(there, torch.float64)
        ours = copy.deepcopy(model).to(there)
        expected, found = theirs(x.to(there, torch.float64)), torch.compile(ours, backend=backend, fullgraph=True)(x.to(there))
        expected.square().sum().backward()
        found.square().sum().backward()
        assert found.device == torch.device(there)
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
        for mine, other in zip(ours.parameters(), theirs.parameters()):
            torch.testing.assert_close(mine.grad.double(), other.grad, rtol=1e-3, atol=1e-3)
