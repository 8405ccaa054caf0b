"""The demo, at the size of a test: it learns, its losses are float64's, and a network that computes something else is noticed."""
import numpy as np
import pytest

from dnnkern import demo
from dnnkern.demo import network, reference

pytest.importorskip("sklearn")
TINY = demo.Plan(train=32, test=8, hidden=16, batch=16, epochs=3, checked=6)
SEED = 3


@pytest.fixture(scope="module")
def trained():
    data, held_out = demo.load(TINY)
    weights = network.initial_weights(64, TINY.hidden, 10, SEED)
    net, losses, _, _ = demo.train(TINY, data, weights, SEED)
    return data, held_out, weights, net, losses


def test_learns_as_float64_does(trained):
    data, _, weights, _, losses = trained
    assert losses.shape == (6,)
    assert losses[-1] < losses[0]
    assert demo.difference(losses, TINY, data, weights, SEED) < 1e-6


def test_other_weights_are_noticed(trained):
    data, _, weights, _, losses = trained
    moved = [w.copy() for w in weights]
    moved[1][0] += 0.05  # one bias of the first layer
    assert demo.difference(losses, TINY, data, moved, SEED) > demo.TOLERANCE


def test_reports_the_products(trained):
    _, (x, y), _, net, _ = trained
    accuracy = net.accuracy(x, y)
    assert accuracy * len(y) == pytest.approx(round(accuracy * len(y)))
    rows = {name: (str(problem), chosen) for name, problem, chosen, _ in network.choices(net.problems)}
    assert rows["forward 1"][0] == "matmul 16x16x64 float32 nn + bias by column, relu"
    assert rows["gradient w1"][0] == "matmul 64x16x16 float32 tn + c"
    assert all(chosen.chosen and chosen.time_ms > 0 for _, chosen in rows.values())


def test_reference_steps_down_the_slope():
    """A step of the reference, which shares nothing with kernels, goes down the gradient that finite differences give."""
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=s) for s in ((5, 4), (4,), (4, 3), (3,))]
    batch = rng.normal(size=(6, 5)), rng.integers(0, 3, 6)

    def loss(weights):
        return reference.train(weights, [batch], 0.0, 0.0)[0]
    slopes = [np.zeros_like(w) for w in weights]
    for w, slope in zip(weights, slopes):
        for index in np.ndindex(w.shape):
            kept = w[index]
            w[index] = kept + 1e-5
            above = loss(weights)
            w[index] = kept - 1e-5
            slope[index] = (above - loss(weights)) / 2e-5
            w[index] = kept
    rate, momentum = 0.3, 0.5
    losses = reference.train(weights, [batch] * 2, rate, momentum)
    assert losses[1] == pytest.approx(loss([w - rate * s for w, s in zip(weights, slopes)]), abs=1e-8)


@pytest.mark.parametrize("changed, code, word", [(0.0, 0, "ok"), (0.05, 1, "WRONG")])
def test_exit_code(changed, code, word, monkeypatch, capsys, simulated):
    run = reference.train
    monkeypatch.setattr(demo, "SHORT", TINY)
    monkeypatch.setattr(reference, "train", lambda weights, *rest: run([w + changed for w in weights], *rest))
    assert demo.main(["--epochs", "1"]) == code
    out = capsys.readouterr().out
    assert word in out and "simulator" in out and "forward 1" in out


def test_loss_curve(tmp_path, monkeypatch, simulated):
    pytest.importorskip("matplotlib")
    demo._plot(np.array([2.0, 1.0, 0.5]), str(tmp_path / "loss.png"))
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
