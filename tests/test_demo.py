"""The demo, at the size of a test: it learns, its losses are float64's, and a network that computes something else is noticed."""
import numpy as np
import pytest

import dnnkern
from dnnkern import demo
from dnnkern.demo import network, reference

pytest.importorskip("sklearn")
TINY = demo.Plan(train=8, test=4, channels=(2, 4), batch=4, epochs=2, checked=4, rate=2e-2)
SEED = 3


@pytest.fixture(scope="module")
def trained():
    data, held_out = demo.load(TINY)
    weights = network.initial_weights(TINY.channels, 10, SEED)
    net, losses, _, _ = demo.train(TINY, data, weights, SEED)
    return data, held_out, weights, net, losses


@pytest.mark.sized
def test_learns_as_float64_does(trained):
    data, _, weights, net, losses = trained
    assert losses.shape == (4,)
    assert losses[2:].mean() < losses[:2].mean()
    off, compared, parted = demo.difference(losses, net.chosen, TINY, data, weights, SEED)
    assert off < 1e-5 and compared == 4 and parted is None
    for moved, w in zip(net.weights, weights):
        assert np.abs(net.arrays.get(moved) - w).max() > 0


def test_its_problems_are_known_ahead(trained):
    net = trained[-2]
    net.accuracy(*trained[1])
    assert set(demo.problems(TINY)) == set(net.problems.values())


@pytest.mark.sized
def test_other_weights_are_noticed(trained):
    data, _, weights, net, losses = trained
    for k in (1, 5, 7):  # gamma, beta, the classifier's bias
        moved = [w.copy() for w in weights]
        moved[k][0] += 0.05
        assert demo.difference(losses, net.chosen, TINY, data, moved, SEED)[0] > demo.TOLERANCE


@pytest.mark.sized
@pytest.mark.parametrize("amount, good", [(1e-6, True), (1e-2, False)])
@pytest.mark.parametrize("what", ["ReLU", "pixels"])
def test_comparing_ends_where_rounding_decides(trained, monkeypatch, what, amount, good):
    """As if float64 had found another value by so much: the losses up to there count, unless no rounding is as large."""
    data, _, weights, net, losses = trained
    run = reference.train

    def moved(*arguments):
        wanted, compared = run(*arguments), arguments[-1]
        before, windows = compared[2][1]
        if what == "ReLU":
            at = tuple(np.argwhere(net.chosen[2][1][0])[0])
            before[at] = -amount
        else:
            at = tuple(np.argwhere(windows.max(axis=3) > 0)[0])
            which = net.chosen[2][1][1][at]
            windows[(*at[:3], (which + 1) % 4, at[3])] = windows[(*at[:3], which, at[3])] + amount
        return wanted
    monkeypatch.setattr(reference, "train", moved)
    off, compared, parted = demo.difference(losses, net.chosen, TINY, data, weights, SEED)
    assert compared == 3 and what in parted and "step 3" in parted and (off < 1e-5 if good else off > demo.TOLERANCE)


@pytest.mark.sized
def test_another_dropout_is_noticed(trained):
    data, _, weights, _, losses = trained
    assert demo.difference(losses, trained[3].chosen, TINY, data, weights, SEED)[0] < demo.TOLERANCE
    given = [b for b, _ in zip(demo.batches(*data, TINY, SEED), range(TINY.checked))]
    other = reference.train(weights, given, TINY.rate, TINY.decay, lambda step, shape: network.kept(shape, TINY.dropout, SEED + 1, step))
    assert np.abs(losses - other).max() > demo.TOLERANCE


@pytest.mark.sized
def test_reports_every_operation(trained):
    _, (x, y), _, net, _ = trained
    accuracy = net.accuracy(x, y)
    assert accuracy * len(y) == pytest.approx(round(accuracy * len(y)))
    rows = {name: (str(problem), chosen) for name, problem, chosen, _ in network.choices(net.problems)}
    assert rows["conv1"][0] == "conv_fwd 4x1x8x8 k2 3x3 s1 p1 float32 NHWC"
    assert rows["conv2 dx"][0] == "conv_bwd_data 4x2x4x4 k4 3x3 s1 p1 float32 NHWC"
    assert rows["norm1"][0] == "batch_norm_train_fwd 4x8x8x2 float32 NHWC gamma float32 beta float32 running relu"
    assert rows["pool2 dx"][0] == "max_pool_bwd 4x4x4x4 float32 NHWC window 2x2 stride 2"
    assert rows["classifier dw"][0] == "matmul 16x10x4 float32 tn"
    assert rows["step"][0].startswith("adamw_step 8 arrays")
    assert {"dropout", "loss", "loss dx", "classifier db", "conv1 dw", "norm2 (test)"} < set(rows) and "conv1 dx" not in rows
    assert all(chosen.chosen and chosen.time_ms > 0 and chosen.why == "predicted" for _, chosen in rows.values())


def test_reports_why_an_algorithm_was_chosen(monkeypatch, simulated):
    monkeypatch.delenv("DNNKERN_PREFER")
    problem = dnnkern.problem("conv_fwd", x=((4, 8, 8, 1), "float32"), w=((2, 3, 3, 1), "float32"), padding=1, layout="NHWC")
    (_, _, chosen, _), = network.choices({"conv1": problem})
    assert chosen.why == "quick to simulate" and chosen.algo == "naive"


@pytest.mark.sized
def test_gradients_of_the_whole_network_are_torchs():
    """At a rate of zero nothing moves, and the gradients stay; torch differentiates in float64."""
    torch = pytest.importorskip("torch")
    rng, batch = np.random.default_rng(1), 3
    weights = network.initial_weights((2, 3), 10, SEED)
    weights = [w if w.ndim > 1 else (w + rng.normal(0, 0.1, w.shape)).astype(np.float32) for w in weights]
    x, targets = rng.random((batch, 8, 8, 1), np.float32), np.array([7, 2, 2], np.int32)
    arrays = network.Arrays()
    net = network.Network(weights, arrays, batch, 0.0, 0.0, 0.5, SEED)
    loss = net.train(arrays.put(x), arrays.put(targets))

    leaves = [torch.from_numpy(w).double().requires_grad_() for w in weights]
    a = torch.from_numpy(x).double().permute(0, 3, 1, 2)
    for w, gamma, beta in (leaves[:3], leaves[3:6]):
        a = torch.nn.functional.conv2d(a, w.permute(0, 3, 1, 2), padding=1)
        a = torch.relu(torch.nn.functional.batch_norm(a, None, None, gamma, beta, training=True, eps=network.EPS))
        a = torch.nn.functional.max_pool2d(a, 2)
    rows = a.permute(0, 2, 3, 1).reshape(batch, -1)
    logits = rows * torch.from_numpy(network.kept(tuple(rows.shape), 0.5, SEED, 1)) @ leaves[6] + leaves[7]
    wanted_loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(targets).long())
    wanted_loss.backward()
    assert float(arrays.get(loss)) == pytest.approx(wanted_loss.item(), abs=1e-5)
    for leaf, found in zip(leaves, net.gradients):
        wanted = leaf.grad.numpy()
        assert np.abs(wanted).max() > 1e-3
        np.testing.assert_allclose(arrays.get(found), wanted, atol=2e-5 * np.abs(wanted).max())


def test_reference_has_the_slopes_of_finite_differences():
    """The reference shares nothing with kernels; its gradients are the differences of its losses."""
    rng = np.random.default_rng(0)
    weights = [w.astype(np.float64) for w in network.initial_weights((2, 3), 4, 0)]
    weights = [w if w.ndim > 1 else w + rng.normal(0, 0.1, w.shape) for w in weights]
    batch, kept = (rng.random((3, 8, 8, 1)), rng.integers(0, 4, 3)), rng.integers(0, 2, (3, 12)) * 2.0
    _, gradients = reference.loss_and_gradients(weights, *batch, kept)
    for w, gradient in zip(weights, gradients):
        for index in rng.permutation(list(np.ndindex(w.shape)))[:20]:
            index, losses = tuple(index), []
            before = w[index]
            for moved in (1e-6, -1e-6):
                w[index] = before + moved
                losses.append(reference.loss_and_gradients(weights, *batch, kept)[0])
            w[index] = before
            assert gradient[index] == pytest.approx((losses[0] - losses[1]) / 2e-6, abs=1e-7)


def test_reference_steps_as_torchs_adamw():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    weights = network.initial_weights((2, 3), 4, 0)
    batch = rng.random((3, 8, 8, 1)), rng.integers(0, 4, 3)
    losses = reference.train(weights, [batch] * 3, 0.1, 0.3)
    leaves = [torch.from_numpy(w.astype(np.float64)).requires_grad_() for w in weights]
    step = torch.optim.AdamW(leaves, lr=0.1, weight_decay=0.3)
    for loss in losses:
        value, gradients = reference.loss_and_gradients([leaf.detach().numpy() for leaf in leaves], *batch)
        assert loss == pytest.approx(value, abs=1e-10)
        for leaf, gradient in zip(leaves, gradients):
            leaf.grad = torch.from_numpy(gradient)
        step.step()


@pytest.mark.parametrize("changed, code, word", [(0.0, 0, "ok"), (0.05, 1, "WRONG")])
def test_exit_code(changed, code, word, monkeypatch, capsys, simulated):
    run = reference.train
    monkeypatch.setattr(demo, "SHORT", TINY)
    monkeypatch.setattr(reference, "train", lambda weights, *rest: run([*weights[:7], weights[7] + changed * np.arange(10)], *rest))
    assert demo.main(["--epochs", "1"]) == code
    out = capsys.readouterr().out
    assert word in out and "simulator" in out and "conv1 dw" in out


def test_loss_curve(tmp_path, monkeypatch, simulated):
    pytest.importorskip("matplotlib")
    demo._plot(np.array([2.0, 1.0, 0.5]), str(tmp_path / "loss.png"))
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
