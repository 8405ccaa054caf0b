"""Operators that are replaced above autograd: compiled, in inference, under functorch, derived twice."""
import functools
import os
import shutil
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from test_torch_table import alone, assert_same, ran  # noqa: E402, F401 (a fixture)
from torch_calls import ATTENTION, CROSS_ENTROPY, DEVICE, EVERY, RMS_NORM, labels, lying  # noqa: E402

import dnnkern.torch  # noqa: E402
from dnnkern import NotSupported  # noqa: E402

pytestmark = pytest.mark.sized


def made(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype).to(DEVICE).requires_grad_()


def loss(x, q, k, v):
    """All of them."""
    o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F.cross_entropy(x, labels(6, classes=5)) + F.rms_norm(o, (8,)).square().sum()


GIVEN = (6, 5), (2, 4, 6, 8), (2, 4, 6, 8), (2, 4, 6, 8)
OPS = {*CROSS_ENTROPY, *ATTENTION, *RMS_NORM}


def derived(function, given):
    y = function(*given)
    return [y, *torch.autograd.grad(y, given)]


def test_compiled():
    """With and without overrides in turn; each graph has what it was traced with."""
    given = [made(*shape) for shape in GIVEN]
    function = torch.compile(loss, backend="aot_eager", fullgraph=True)
    theirs = derived(function, given)
    assert not ran()
    for _ in range(2):
        with dnnkern.torch.enabled(strict=True):
            ours = derived(function, given)
        assert ran() >= OPS
        for x, y in zip(ours, theirs):
            assert_same(x, y, "compiled")
        derived(function, given)
        assert not ran()


def test_inference():
    given = [made(*shape).detach() for shape in GIVEN]
    theirs = loss(*given)
    with dnnkern.torch.enabled(strict=True), torch.inference_mode():
        ours = loss(*given)
    assert ran() == {CROSS_ENTROPY[0], ATTENTION[0], RMS_NORM[0]}
    assert_same(ours, theirs, "loss")


def test_vmap_and_gradients_per_sample_run_on_their_parts():
    x = made(3, 5).detach()
    f = torch.func.vmap(torch.func.grad(lambda x, t: F.cross_entropy(x[None], t[None])))
    theirs = f(x, labels(3, classes=5))
    with dnnkern.torch.enabled():
        ours = f(x, labels(3, classes=5))
    assert ran() >= {"_log_softmax", "_log_softmax_backward_data"}
    assert_same(ours, theirs, "per sample")


def test_forward_derivatives_are_pytorchs():
    x = made(3, 5).detach()
    with dnnkern.torch.enabled(), torch.autograd.forward_ad.dual_level():
        y = F.cross_entropy(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)), labels(3, classes=5))
        assert torch.autograd.forward_ad.unpack_dual(y).tangent.abs().item() < 1e-6
    assert not ran() & OPS


@pytest.mark.parametrize("function, shape", [
    (lambda x: F.cross_entropy(x, labels(3, classes=5), label_smoothing=0.2), (3, 5)), (lambda x: F.rms_norm(x, (5,), x[0]), (3, 5)),
    (lambda x: F.dropout(x, 0.5) ** 2, (3, 5)), (lambda x: F.max_pool2d(x[None], 2) ** 2, (2, 4)),
    (lambda x: F.scaled_dot_product_attention(*(x[None, None].sin(),) * 3, attn_mask=x @ x.mT), (3, 4))])
def test_second_derivatives(function, shape, monkeypatch):
    from dnnkern.torch.ops import pool
    monkeypatch.setattr(pool, "_LARGE", 0)
    x = made(*shape, dtype=torch.float64)

    def same_draws(x):
        torch.manual_seed(0)
        return function(x)
    with dnnkern.torch.enabled("all", exclude="reduction,arithmetic", strict=True):  # the formulas are of integers and booleans, too
        assert torch.autograd.gradcheck(same_draws, x)
        assert torch.autograd.gradgradcheck(same_draws, x)


POOLS = {"plain": lambda x: F.max_pool2d(x, 2), "dilated": lambda x: F.max_pool2d(x[0], 3, 1, dilation=2),
         "padded": lambda x: F.max_pool2d(x, (3, 2), 2, padding=1, ceil_mode=True), "3d": lambda x: F.max_pool3d(x[:, None], 2)}


@pytest.mark.parametrize("way", EVERY)
@pytest.mark.parametrize("name", POOLS)
def test_maxima_without_indices(name, way, monkeypatch):
    """No index without a gradient; many have one of 32 bits, in compiled graphs too; few are PyTorch's operator with one of 64."""
    from dnnkern.torch.ops import pool
    function, x = POOLS[name], lying(made(2, 3, 6, 8).detach(), way).requires_grad_()
    compiled = torch.compile(lambda x: function(x).square().sum(), backend="aot_eager", fullgraph=True)

    def run():
        y = function(x)
        return [y, *torch.autograd.grad(y.square().sum(), x)]
    theirs, op = run(), "max_pool3d" if name == "3d" else "max_pool2d"
    with dnnkern.torch.enabled("pool", strict=True):
        few = run()
        assert ran() == {f"{op}_with_indices", f"{op}_with_indices_backward"}
        monkeypatch.setattr(pool, "_LARGE", 0)
        many = run()
        if way == "contiguous":
            many += [compiled(x).sqrt().square(), *torch.autograd.grad(compiled(x), x)]
            theirs += [theirs[0].square().sum(), theirs[1]]
        assert ran() == {op, f"{op} backward"}
        few += [function(x.detach())]
        assert ran() == {op}
    for mine, other in (*zip(few, [*theirs[:2], theirs[0]]), *zip(many, theirs)):
        assert_same(mine, other, name)


def test_dropout():
    x = torch.full((100, 100), 2.0, device=DEVICE, requires_grad=True)
    with dnnkern.torch.enabled("dropout", strict=True):
        torch.manual_seed(3)
        y = F.dropout(x, 0.25)
        y.sum().backward()
        other = F.dropout(x, 0.25)
        torch.manual_seed(3)
        assert torch.equal(F.dropout(x, 0.25), y) and not torch.equal(other, y)
    assert ran() == {"dropout", "dropout backward"}
    assert 0.22 < (y == 0).float().mean().item() < 0.28 and torch.equal(y[y != 0], torch.full_like(y[y != 0], 2 / 0.75))
    assert torch.equal(x.grad, y / 2)
    with dnnkern.torch.enabled("dropout"):
        assert torch.equal(F.dropout(x, 0.25, training=False), x)


def test_attention_with_dropout():
    q, k, v = (made(2, 4, 64, 8) for _ in range(3))
    with dnnkern.torch.enabled(strict=True):
        torch.manual_seed(3)
        y, *dqkv = derived(lambda *qkv: F.scaled_dot_product_attention(*qkv, dropout_p=0.5).sum(), [q, k, v])
        torch.manual_seed(3)
        again, *_ = derived(lambda *qkv: F.scaled_dot_product_attention(*qkv, dropout_p=0.5).sum(), [q, k, v])
        with pytest.raises(RuntimeError, match="no second derivatives with dropout"):
            torch.autograd.grad(F.scaled_dot_product_attention(q, k, v, dropout_p=0.5).sum(), q, create_graph=True)
    assert torch.equal(y, again) and all(g.abs().sum() > 0 for g in dqkv)


def test_recurrent_networks():
    """Derived twice, with dropout, in inference, of packed sequences, and where the states have the wrong shape."""
    net, x = torch.nn.LSTM(2, 3, dtype=torch.float64).to(DEVICE), made(2, 1, 2, dtype=torch.float64)
    drops = torch.nn.GRU(4, 5, num_layers=2, dropout=0.5).to(DEVICE)
    with dnnkern.torch.enabled("rnn", strict=True):
        assert torch.autograd.gradgradcheck(lambda x: net(x)[0], x) and torch.autograd.gradgradcheck(lambda x: net(x)[1][1], x)
        torch.manual_seed(3)
        y = drops(made(3, 2, 4))[0]
        y.sum().backward()
        torch.manual_seed(3)
        assert torch.equal(drops(made(3, 2, 4))[0], y) and not torch.equal(drops(made(3, 2, 4))[0], y)
        with pytest.raises(RuntimeError, match="no second derivatives of a recurrent network with dropout"):
            torch.autograd.grad(drops(made(3, 2, 4))[0].sum(), drops.weight_ih_l0, create_graph=True)
        with torch.inference_mode():
            assert not drops.eval()(made(3, 2, 4))[0].isnan().any()
        with pytest.raises(RuntimeError, match="Expected hidden"):
            net(x, (torch.zeros(1, 2, 3, device=DEVICE), torch.zeros(1, 2, 3, device=DEVICE)))
        packed = torch.nn.utils.rnn.pack_sequence([made(3, 4).detach(), made(2, 4).detach()])
        assert drops(packed)[0].data.shape == (5, 5)
    assert ran() >= {"lstm.input", "gru.input", "gru.input backward", "gru.data"}


def networks_traced():
    """A block in which Dynamo traces recurrent networks, which it leaves alone otherwise."""
    import torch._dynamo
    return torch._dynamo.config.patch(allow_rnn=True)


def of_network(net, x):
    """The results of a network, and gradients by x and the weights."""
    y, states = net(x)
    outs = y, *(states if isinstance(states, tuple) else (states,))
    return *outs, *torch.autograd.grad(sum(t.square().sum() for t in outs), [x, *net.parameters()])


@pytest.mark.parametrize("cell, how, dynamic", [
    ("LSTM", {}, False), ("GRU", {"num_layers": 2, "bidirectional": True, "batch_first": True}, True), ("RNN", {"bias": False}, False),
    ("LSTM", {"num_layers": 2, "proj_size": 3}, True)], ids=["lstm", "gru", "rnn", "projection"])
def test_compiled_recurrent_networks(cell, how, dynamic):
    """In one graph, each way: what is kept for the gradients has a size that follows from shapes, of a compiler's symbols too."""
    net = getattr(torch.nn, cell)(4, 5, **how).to(DEVICE)
    given = [made(*shape, 4) for shape in ((3, 2), (5, 6), (5, 4))[:1 + 2 * dynamic]]
    theirs = [of_network(net, x) for x in given]
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    with dnnkern.torch.enabled("rnn", strict=True), networks_traced():
        ours = [of_network(compiled, x) for x in given]
        with torch.no_grad():
            assert_same(compiled(given[0])[0], theirs[0][0], "inference")
    rows = [row for row in dnnkern.torch.status(reset=True) if row.ours]
    assert sorted(row.calls for row in rows) == [len(given), len(given) + 1] and len({row.op.partition(" ")[0] for row in rows}) == 1
    for mine, other in zip(ours, theirs):
        for i, (x, y) in enumerate(zip(mine, other, strict=True)):
            assert_same(x, y, f"{cell} {i}")


def test_a_compiled_network_drops_by_its_seed():
    net, x = torch.nn.GRU(4, 5, num_layers=2, dropout=0.5).to(DEVICE), made(3, 2, 4)
    with dnnkern.torch.enabled("rnn", strict=True), networks_traced():
        compiled, found = torch.compile(net, backend="aot_eager", fullgraph=True), []
        for _ in range(2):
            torch.manual_seed(3)
            found.append(of_network(compiled, x))
        other = of_network(compiled, x)
        torch.manual_seed(3)
        eager = of_network(net, x)
    for one, again, different, same in zip(*found, other, eager):
        assert torch.equal(one, again) and torch.isfinite(one).all()
        assert_same(one, same, "eager")
    assert not torch.equal(found[0][0], other[0])


def test_operators_of_networks_are_what_they_say():
    """Schema, fake kernels and traced graphs."""
    from dnnkern.torch.ops.rnn import backward, forward
    network = "lstm", 4, 5, 2, True, 3, True, 0.0, "float32"
    weights = made(dnnkern.RnnSpec("lstm", 4, 5, num_layers=2, bidirectional=True, proj_size=3).weight_size).detach()
    x, h0, c0, dy = (made(*shape).detach() for shape in ((3, 2, 4), (4, 2, 3), (4, 2, 5), (3, 2, 6)))
    given = "lstm.input", True, x, h0, c0, weights, None, None, *network
    y, _, _, reserve = forward(*given)
    packed = "lstm.data", False, x, h0, None, weights, labels(2, classes=3).int(), None, *network
    gradients = "lstm.input", True, dy, None, c0, x, h0, c0, y, weights, reserve, None, *network
    for function, args in ((forward, given), (forward, packed), (backward, gradients)):
        assert set(torch.library.opcheck(function, args).values()) == {"SUCCESS"}


def test_a_network_between_compiled_graphs():
    """Dynamo leaves recurrent networks to the dispatcher unless it is told otherwise, and looks at the frames of what that calls."""
    net, x = torch.nn.LSTM(4, 5).to(DEVICE), made(3, 2, 4).detach()
    theirs = net(x)[0] * 2
    compiled = torch.compile(lambda x: net(x)[0] * 2, backend="aot_eager")
    with dnnkern.torch.enabled("rnn", strict=True):
        for _ in range(2):
            assert_same(compiled(x), theirs, "between")
            assert ran() == {"lstm.input"}


@pytest.mark.skipif(DEVICE == "cuda", reason="of the CPU")
def test_recurrent_networks_under_autocast():
    net, x = torch.nn.LSTM(2, 3), made(2, 1, 2)
    with torch.autocast("cpu", torch.bfloat16):
        theirs = net(x)[0]
        with dnnkern.torch.enabled("rnn"):
            ours = net(x)[0]
    assert "autocast on the CPU" in dnnkern.torch.status()[0].why
    assert_same(ours, theirs, "autocast")


def test_packed_sequences():
    """Of a module whose samples are not sorted, derived twice; and sizes that are none."""
    lstm = torch.nn.LSTM(3, 4, bidirectional=True).double().to(DEVICE)
    sizes = torch.tensor([3, 2])

    def run(x):
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, [1, 3, 2], enforce_sorted=False)
        y, (h, c) = lstm(packed)
        return torch.nn.utils.rnn.pad_packed_sequence(y)[0], h, c
    x = torch.randn(3, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(DEVICE).requires_grad_()
    theirs = run(x)
    with dnnkern.torch.enabled("rnn", strict=True):
        for mine, other in zip(run(x), theirs, strict=True):
            assert_same(mine, other, "packed")
        assert ran() == {"lstm.data"}
        assert torch.autograd.gradcheck(run, x, fast_mode=True)
        assert torch.autograd.gradgradcheck(run, x, fast_mode=True)
    call = functools.partial(torch.lstm, x[0].detach(), sizes, [t.new_zeros(2, 3, 4) for t in (x, x)], lstm._flat_weights, True, 1, 0.0,
                             False, True)
    with pytest.raises(RuntimeError) as theirs, torch.backends.cudnn.flags(enabled=False):
        call()
    with dnnkern.torch.enabled("rnn", strict=True), pytest.raises(RuntimeError) as ours, torch.backends.cudnn.flags(enabled=False):
        call()
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("call, why", [
    (lambda: F.cross_entropy(made(2, 3), made(2, 3).softmax(1)), "targets that need a gradient"),
    (lambda: F.scaled_dot_product_attention(*(made(4, 6, 8),) * 3), "3-D queries")])
def test_what_goes_back(call, why):
    theirs = call()
    with dnnkern.torch.enabled("cross_entropy,attention,rms_norm"):
        ours = call()
    assert why in dnnkern.torch.status()[0].why
    assert_same(ours, theirs, why)
    with dnnkern.torch.enabled("cross_entropy,attention,rms_norm", strict=True), pytest.raises(NotSupported, match=why):
        call()


@pytest.mark.parametrize("call", [
    lambda: F.cross_entropy(made(2, 3), labels(3, classes=3)), lambda: F.rms_norm(made(4, 6), (4,)),
    lambda: F.scaled_dot_product_attention(made(1, 4, 6, 8), *(made(1, 2, 6, 8),) * 2),
    lambda: F.rms_norm(made(4, 6).to_sparse(), (6,)), lambda: F.cross_entropy(made(2, 3).to_sparse(), labels(2, classes=3))])
def test_errors_are_pytorchs(call):
    with pytest.raises((RuntimeError, ValueError)) as theirs:
        call()
    with dnnkern.torch.enabled(strict=True), pytest.raises(theirs.type) as ours:
        call()
    assert str(ours.value).splitlines()[0] == str(theirs.value).splitlines()[0] and not isinstance(ours.value, NotSupported)


@pytest.mark.skipif(DEVICE == "cuda", reason="on a GPU a kernel's assertion ends the program")
def test_a_target_that_is_no_class_is_pytorchs_error():
    with dnnkern.torch.enabled(), pytest.raises(IndexError, match="Target 7 is out of bounds"):
        F.cross_entropy(made(2, 3), torch.tensor([0, 7]))


def test_the_tag_of_graphs_on_disk():
    config, before = torch.compiler.config, torch.compiler.config.cache_key_tag
    config.cache_key_tag = "mine"
    try:
        with dnnkern.torch.enabled("mm"):
            assert config.cache_key_tag == "mine"
            with dnnkern.torch.enabled("rms_norm"):
                assert config.cache_key_tag.startswith("minednnkern-") and config.cache_key_tag.endswith("-rms_norm")
                with dnnkern.torch.enabled("rms_norm,attention"):
                    assert config.cache_key_tag.endswith("-rms_norm,scaled_dot_product_attention")
            assert config.cache_key_tag == "mine"
    finally:
        config.cache_key_tag = before


IMPORTED = """import sys, torch, dnnkern.torch
before = set(sys.modules)
dnnkern.torch.enable("all")
print(*sorted(set(sys.modules) - before))
"""


def test_what_enabling_imports():
    """The table, and nothing that only some calls need: neither compilers nor programs nor what measures."""
    imported = subprocess.run([sys.executable, "-W", "ignore", "-c", IMPORTED], capture_output=True, text=True, check=True).stdout.split()
    assert {name for name in imported if name.startswith("dnnkern.torch.ops.")} and len(imported) < 60
    assert not [name for name in imported if name.startswith(("torch._dynamo", "torch._inductor", "dnnkern.find", "dnnkern.warming",
                                                              "dnnkern.host.compiler", "dnnkern.device.program", "numba"))]


PROGRAM = """import sys, torch, torch.nn.functional as F, dnnkern.torch
if sys.argv[1] == "on":
    dnnkern.torch.enable("cross_entropy")
function = torch.compile(lambda x, t: F.cross_entropy(x * 2, t), fullgraph=True)
print(float(function(torch.ones(3, 5), torch.tensor([1, 0, 4]))), sum(row.calls for row in dnnkern.torch.status() if row.ours))
"""


def test_the_compiler_is_reset_where_it_has_compiled(monkeypatch):
    import torch._dynamo  # as an optimiser does
    torch._dynamo.reset()
    resets = []
    monkeypatch.setattr(torch._dynamo, "reset", lambda: resets.append(True))
    with dnnkern.torch.enabled("rms_norm"):
        assert not resets
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    with dnnkern.torch.enabled("rms_norm"):
        assert len(resets) == 1
    assert len(resets) == 2


@pytest.mark.skipif(DEVICE == "cuda", reason="without a GPU")
def test_inductors_graph_on_disk_is_of_its_own_overrides(tmp_path):
    if shutil.which("g++") is None:
        pytest.skip("Inductor has no compiler")
    said = [subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM, word], capture_output=True, text=True, check=True,
                           env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}).stdout.split() for word in ("off", "on", "off")]
    assert [calls for _, calls in said] == ["0", "1", "0"] and len({number[:7] for number, _ in said}) == 1
