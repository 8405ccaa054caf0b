"""The demo, at the size of a test: it learns, its losses are float64's, and a network that computes something else is noticed."""
import numpy as np
import pytest

from dnnkern import demo
from dnnkern.demo import network, reference

pytest.importorskip("sklearn")
TINY = demo.Plan(train=8, test=4, channels=(4, 8), strides=(2, 2), batch=4, epochs=2, checked=4)
SEED = 3


@pytest.fixture(scope="module")
def trained():
    data, held_out = demo.load(TINY)
    weights = network.initial_weights(TINY.channels, TINY.strides, 10, SEED)
    net, losses, _, _ = demo.train(TINY, data, weights, SEED)
    return data, held_out, weights, net, losses


def test_learns_as_float64_does(trained):
    data, _, weights, _, losses = trained
    assert losses.shape == (4,)
    assert losses[-1] < losses[0]
    assert demo.difference(losses, TINY, data, weights, SEED) < 1e-6


def test_other_weights_are_noticed(trained):
    data, _, weights, _, losses = trained
    for k in (1, 3):  # a bias of each convolution
        moved = [w.copy() for w in weights]
        moved[k] += 0.05
        assert demo.difference(losses, TINY, data, moved, SEED) > demo.TOLERANCE


def test_reports_every_operation(trained):
    _, (x, y), _, net, _ = trained
    accuracy = net.accuracy(x, y)
    assert accuracy * len(y) == pytest.approx(round(accuracy * len(y)))
    rows = {name: (str(problem), chosen) for name, problem, chosen, _ in network.choices(net.problems)}
    assert rows["conv1 y"][0] == "conv_fwd 4x1x8x8 k4 3x3 s2 p1 float32 NHWC + bias, relu"
    assert rows["conv2 dx"][0] == "conv_bwd_data 4x4x4x4 k8 3x3 s2 p1 float32 NHWC"
    assert rows["conv1 dw"][0] == "conv_bwd_filter 4x1x8x8 k4 3x3 s2 p1 float32 NHWC + out"
    assert rows["classifier dw"][0] == "matmul 32x10x4 float32 tn + c"
    assert {"conv1 db", "conv2 dw", "conv2 db", "classifier db", "classifier dx"} < set(rows) and "conv1 dx" not in rows
    assert all(chosen.chosen and chosen.time_ms > 0 for _, chosen in rows.values())


@pytest.mark.parametrize("strides", [(2, 2), (1, 2)])
def test_gradients_of_the_whole_network_are_torchs(strides):
    """Without momentum the velocities of a first step are the gradients; torch differentiates in float64."""
    torch = pytest.importorskip("torch")
    rng, batch = np.random.default_rng(1), 2
    weights = network.initial_weights((3, 4), strides, 10, SEED)
    weights = [w if w.ndim > 1 else rng.normal(0, 0.1, w.shape).astype(np.float32) for w in weights]
    x, targets = rng.random((batch, 8, 8, 1), np.float32), np.array([7, 2], np.int32)
    arrays = network.Arrays()
    net = network.Network(weights, arrays, strides, batch, 0.0, 0.0)
    losses = arrays.put(np.zeros(batch, np.float32))
    net.train(arrays.put(x), arrays.put(targets), losses)

    w1, b1, w2, b2, w3, b3 = leaves = [torch.from_numpy(w).double().requires_grad_() for w in weights]
    a = torch.from_numpy(x).double().permute(0, 3, 1, 2)
    for w, b, stride in ((w1, b1, strides[0]), (w2, b2, strides[1])):
        a = torch.relu(torch.nn.functional.conv2d(a, w.permute(0, 3, 1, 2), b, stride, 1))
    logits = a.permute(0, 2, 3, 1).reshape(batch, -1) @ w3 + b3
    loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(targets).long())
    loss.backward()
    assert arrays.get(losses).mean() == pytest.approx(loss.item(), abs=1e-5)
    for leaf, velocity in zip(leaves, net.velocities):
        wanted = leaf.grad.numpy()
        assert np.abs(wanted).max() > 1e-3
        np.testing.assert_allclose(arrays.get(velocity), wanted, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("strides", [(2, 2), (1, 2)])
def test_reference_has_the_slopes_of_finite_differences(strides):
    """The reference shares nothing with kernels; its gradients are the differences of its losses."""
    rng = np.random.default_rng(0)
    weights = [w.astype(np.float64) for w in network.initial_weights((2, 3), strides, 4, 0)]
    weights = [w if w.ndim > 1 else rng.normal(0, 0.1, w.shape) for w in weights]
    batch = rng.random((3, 8, 8, 1)), rng.integers(0, 4, 3)
    _, gradients = reference.loss_and_gradients(weights, strides, *batch)
    for w, gradient in zip(weights, gradients):
        for index in rng.permutation(list(np.ndindex(w.shape)))[:20]:
            index, losses = tuple(index), []
            kept = w[index]
            for moved in (1e-6, -1e-6):
                w[index] = kept + moved
                losses.append(reference.loss_and_gradients(weights, strides, *batch)[0])
            w[index] = kept
            assert gradient[index] == pytest.approx((losses[0] - losses[1]) / 2e-6, abs=1e-8)


def test_reference_steps_with_momentum():
    rng = np.random.default_rng(0)
    weights = network.initial_weights((2, 3), (2, 2), 4, 0)
    batch = rng.random((3, 8, 8, 1)), rng.integers(0, 4, 3)
    losses = reference.train(weights, (2, 2), [batch] * 3, 0.3, 0.5)
    w, v = [a.astype(np.float64) for a in weights], [0.0] * 6
    for loss in losses:
        value, gradients = reference.loss_and_gradients(w, (2, 2), *batch)
        assert loss == pytest.approx(value, abs=1e-12)
        v = [0.5 * a + g for a, g in zip(v, gradients)]
        w = [a - 0.3 * b for a, b in zip(w, v)]


@pytest.mark.parametrize("changed, code, word", [(0.0, 0, "ok"), (0.05, 1, "WRONG")])
def test_exit_code(changed, code, word, monkeypatch, capsys, simulated):
    run = reference.train
    monkeypatch.setattr(demo, "SHORT", TINY)
    monkeypatch.setattr(reference, "train", lambda weights, *rest: run([w + changed for w in weights], *rest))
    assert demo.main(["--epochs", "1"]) == code
    out = capsys.readouterr().out
    assert word in out and "simulator" in out and "conv1 dw" in out


def test_loss_curve(tmp_path, monkeypatch, simulated):
    pytest.importorskip("matplotlib")
    demo._plot(np.array([2.0, 1.0, 0.5]), str(tmp_path / "loss.png"))
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
