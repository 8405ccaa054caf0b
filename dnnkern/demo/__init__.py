"""``python -m dnnkern demo``: trains a convolutional network on handwritten digits, with nothing but calls of this library.

Two stages of convolution, batch normalisation with ReLU, and max pooling; dropout, a classifier, cross-entropy; AdamW, one launch per step
for all parameters.

It trains on 1437 of scikit-learn's 1797 digits, on a GPU or on the processor; in the simulator it runs a few steps on a few of them. The
first losses must match a float64 run of the same steps in NumPy. Rounding may decide the sign of a value near zero before a ReLU, or which
of two nearly equal pixels is the maximum; from there on the two runs diverge and are no longer compared.
"""
import contextlib
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from .._table import say, show
from ..host.paths import check_target

INTERRUPTED = 130  # exit code after Ctrl-C
TOLERANCE = 1e-4  # of a loss; float32 rounding stays two orders of magnitude below in the compared steps


@dataclass(frozen=True)
class Plan:
    """Sizes of a training run."""
    train: int
    test: int
    channels: tuple
    batch: int
    epochs: int
    checked: int
    rate: float = 2e-3
    decay: float = 1e-2
    dropout: float = 0.25


FULL = Plan(train=1437, test=360, channels=(32, 64), batch=64, epochs=12, checked=22)
SHORT = Plan(train=16, test=8, channels=(4, 8), batch=8, epochs=2, checked=4, rate=2e-2)


def load(plan):
    """8x8 digits with one channel, float32 in [0, 1], and int32 labels: ((x, y) for training, (x, y) for testing), always the same."""
    from sklearn.datasets import load_digits
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x, y = (digits.images[order, :, :, None] / 16).astype(np.float32), digits.target[order].astype(np.int32)
    return (x[:plan.train], y[:plan.train]), (x[-plan.test:], y[-plan.test:])


def batches(x, y, plan, seed):
    """Shuffled batches of every epoch; an incomplete last batch is dropped."""
    rng = np.random.default_rng(seed + 1)
    for _ in range(plan.epochs):
        order = rng.permutation(len(x))[:len(x) // plan.batch * plan.batch]
        for part in order.reshape(-1, plan.batch):
            yield x[part], y[part]


def train(plan, data, weights, seed, framework=None, progress=iter):
    """Train on the device; returns (network, losses of the batches, seconds for the first batch, seconds for the others).

    The kernels of a step are compiled side by side, before the first one; that counts for the first batch. Ctrl-C after that ends the
    training: there are as many losses as batches were trained on.
    """
    from ..device import SIMULATED
    from ..warming import warm
    from .network import Arrays, Network
    arrays = Arrays(framework)
    losses, started, first = [], time.perf_counter(), None
    if not SIMULATED:  # a network that is only recorded: no weight changes, and what its problems are is the other's to say
        x, y = next(batches(*data, plan, seed))
        rehearsal = Network(weights, arrays, plan.batch, plan.rate, plan.decay, plan.dropout, seed)
        warm(rehearsal.train, arrays.put(x), arrays.put(y))
    network = Network(weights, arrays, plan.batch, plan.rate, plan.decay, plan.dropout, seed, plan.checked)
    try:
        for x, y in progress(batches(*data, plan, seed)):
            losses.append(network.train(arrays.put(x), arrays.put(y)))
            if first is None:
                arrays.get(losses[0])
                first = time.perf_counter() - started
    except KeyboardInterrupt:
        if first is None:
            raise
    values = np.array([float(arrays.get(loss)) for loss in losses])
    return network, values, first, time.perf_counter() - started - first


def problems(plan=FULL):
    """What a training step and a test of the network are made of: each problem once, nothing run."""
    from ..preference import RECORDING, within
    from ..warming import Recorder
    from .network import SIDE, Arrays, Network, initial_weights
    arrays, recorder = Arrays(None), Recorder(here=False)
    images = [np.zeros((count, SIDE, SIDE, 1), np.float32) for count in (plan.batch, plan.test)]
    with within(RECORDING, recorder):
        network = Network(initial_weights(plan.channels, 10, 0), arrays, plan.batch, plan.rate, plan.decay, plan.dropout, 0)
        network.train(arrays.put(images[0]), arrays.put(np.zeros(plan.batch, np.int32)))
        network.predict(images[1])
    return [job.problem for job in recorder.jobs]


def difference(losses, chosen, plan, data, weights, seed):
    """(largest difference between the first losses and those of the float64 run of the same steps, how many were compared, in words what
    ended the comparison or None). `chosen` is the network's."""
    from . import reference
    from .network import kept
    given, compared = [b for b, _ in zip(batches(*data, plan, seed), range(min(plan.checked, len(losses))))], []
    wanted = reference.train(weights, given, plan.rate, plan.decay, lambda step, shape: kept(shape, plan.dropout, seed, step), compared)
    count, words = len(given), None
    for step, (ours, by) in enumerate(zip(chosen, compared), 1):
        margin, what = max((_apart(*one, *other) for one, other in zip(ours, by)), key=lambda found: found[0])
        if margin > 0:
            if margin > TOLERANCE:  # no rounding's choice
                return math.inf, step, f"{what} differs in step {step}, by {margin:.1e}"
            count, words = step, f"in step {step} {what} differs, by {margin:.1e}"
            break
    return float(np.abs(losses[:count] - wanted[:count]).max()), count, words


def _apart(positive, which, before, windows):
    """(largest margin by which float64 decides differently, what for) in a stage; (0, "") if all decisions agree."""
    relu = np.abs(before[positive != (before > 0)])
    lost = windows.max(axis=3) - np.take_along_axis(windows, which[:, :, :, None], axis=3)[:, :, :, 0]
    lost = lost[which != windows.argmax(axis=3)]
    return max((relu.max(initial=0), "the sign of a ReLU's argument"), (lost.max(initial=0), "the largest of four pixels"))


def main(argv=()) -> int:
    """Run the demo; 1 if the losses differ from those of the float64 run, 130 if Ctrl-C ended it early."""
    started = time.perf_counter()
    arguments = _parser().parse_args(list(argv))
    if any(getattr(arguments, name) is not None and getattr(arguments, name) < 1 for name in ("epochs", "channels")):
        raise ValueError("demo: --epochs and --channels are 1 or more")
    for option, path in (("--picture", arguments.picture), ("--plot", arguments.plot)):
        if path:
            check_target("demo", Path(path), option=option)
    try:
        import sklearn  # noqa: F401
    except ImportError:
        raise ValueError("demo: scikit-learn, which ships the digits, is missing: pip install 'dnnkern[demo]'") from None
    from ..device import SIMULATED
    from ..host.device import current_device, device
    from . import report
    from .network import initial_weights
    plan = SHORT if SIMULATED and not arguments.full else FULL
    plan = replace(plan, epochs=arguments.epochs or plan.epochs)
    if arguments.channels:
        plan = replace(plan, channels=(arguments.channels, 2 * arguments.channels))
    say(f"dnnkern demo on {'the simulator' if SIMULATED else device(current_device()).name}")
    data, held_out = load(plan)
    layers = " -> ".join(f"conv 3x3 ({c} filters), batch norm, ReLU, max pool 2x2" for c in plan.channels)
    say(f"8x8x1 -> {layers} -> dropout {plan.dropout} -> 10 classes")
    say(f"trained on {plan.train} digits for {plan.epochs} epoch{'s' * (plan.epochs > 1)} in batches of {plan.batch} by AdamW\n")
    weights = initial_weights(plan.channels, 10, arguments.seed)
    steps = plan.epochs * (plan.train // plan.batch)
    network, losses, first, rest = train(plan, data, weights, arguments.seed, arguments.framework,
                                         lambda it: report.progress(it, steps, plan.batch))
    ended = len(losses) < steps
    if ended:
        say(f"Ctrl-C after {len(losses)} of {steps} batches: what follows is of these\n")
    found = network.predict(held_out[0])
    columns = {"dnnkern": _column(losses, first, rest, found, held_out[1], plan)}
    rows, stopped = report.choices(network.problems), ended
    if not ended:
        rows, stopped = report.measure(rows)
    report.show_choices(rows, arguments.table)
    print()
    if not stopped and not arguments.alone:
        with _ended_by_interrupt() as stop:
            columns.update(_beside(plan, data, held_out, weights, arguments.seed))
        stopped = bool(stop)
    report.show_confusion(report.confusion(held_out[1], found))
    print()
    report.show_wrong(*held_out, found)
    if arguments.picture:
        why_not = report.draw(*held_out, found, arguments.picture)
        say(f"no picture: {why_not}" if why_not else f"picture: {arguments.picture}")
    if arguments.plot:
        _plot(losses, arguments.plot)
    print()
    show(("", *columns), list(zip(_LINES, *columns.values())), right=range(1, len(columns) + 1))
    say(f"\nloss {losses[0]:.4f} -> {losses[-1]:.4f}; test accuracy {columns['dnnkern'][-1]} on {plan.test} digits not trained on")
    off, compared, parted = difference(losses, network.chosen, plan, data, weights, arguments.seed)
    good = off <= TOLERANCE
    say(f"the first {compared} losses differ from a float64 run of the same steps by {off:.1e} at most: "
        f"{'ok' if good else 'WRONG'} (allowed {TOLERANCE:.0e}){f'; {parted}' if parted else ''}")
    say(f"wall time {time.perf_counter() - started:.1f} s{', ended by Ctrl-C' * stopped}")
    return 1 if not good else INTERRUPTED if stopped else 0


_LINES = "first batch, with what is compiled", "the other batches", "images a second", "test accuracy"


def _column(losses, first, rest, found, targets, plan):
    """A column of the table of times."""
    more = len(losses) - 1
    return (f"{first:.2f} s", f"{rest:.2f} s" if more else None, f"{more * plan.batch / rest:.0f}" if more else None,
            f"{100 * np.mean(found == targets):.1f} %")


def _beside(plan, data, held_out, weights, seed):
    """The column of the same network in PyTorch, by its own kernels; empty where PyTorch cannot run it."""
    from . import beside
    if not beside.possible():
        return {}
    import torch
    network, losses, first, rest = beside.train(weights, batches(*data, plan, seed), plan, seed)
    column = _column(losses, first, rest, beside.predict(network, held_out[0]), held_out[1], plan)
    return {f"PyTorch {torch.__version__}": column}


@contextlib.contextmanager
def _ended_by_interrupt():
    """Ctrl-C ends the block and nothing else; the list that it gives is then not empty."""
    stop = []
    try:
        yield stop
    except KeyboardInterrupt:
        stop.append(True)


def _parser():
    from .._parser import Parser, program
    parser = Parser(prog=f"{program()} demo", description="Train a convolutional network on scikit-learn's handwritten digits.")
    parser.add_argument("--framework", choices=("numba", "torch", "numpy"),
                        help="whose arrays to use (default: Numba's)")
    parser.add_argument("--epochs", type=int, help="passes over the training digits")
    parser.add_argument("--channels", type=int, help="filters of the first convolution; the second has twice as many")
    parser.add_argument("--full", action="store_true", help="in the simulator: train at full size, which takes hours there")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights and of the order of the digits (default 0)")
    parser.add_argument("--table", action="store_true", help="print all rows of the table of algorithms, not only the longest calls")
    parser.add_argument("--alone", action="store_true", help="without the same network in PyTorch, which runs if it is installed")
    parser.add_argument("--picture", metavar="FILE", help="draw the confusion matrix and wrong digits to this file; needs matplotlib")
    parser.add_argument("--plot", metavar="FILE", help="plot the loss curve to this file; needs matplotlib")
    return parser


def _plot(losses, path):
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("demo: --plot needs matplotlib: pip install 'dnnkern[demo]'") from None
    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    axes.semilogy(losses)
    axes.set(xlabel="batch", ylabel="cross-entropy", title="dnnkern demo")
    figure.savefig(path, dpi=120)
    say(f"loss curve: {path}")


__all__ = ["FULL", "Plan", "SHORT", "TOLERANCE", "batches", "difference", "load", "main", "train"]
