"""Fit the constants of a cost model to measured times: ``python -m bench.fit ROW [FILE...]``; nothing is measured here, and no GPU needed.

A row of `dnnkern.engine.constants` is a model's numbers. The files are JSON lines that ``python -m dnnkern bench ... --json`` wrote, by
default all of bench/results. Each number of the row is moved in turn to where predictions come nearest to the times (mean square of the
logarithm of predicted over measured), by a factor of two at most: few times do not determine many numbers. Those marked as guessed stay
unless they are named, tables of numbers always. It prints the table's numbers beside the fitted ones; whoever adopts them writes them into
the table, with the file as their source.
"""
import argparse
import math
from pathlib import Path

from dnnkern import dispatch
from dnnkern._parser import Parser, family_words
from dnnkern._table import say, show
from dnnkern.engine.constants import TABLE, constants
from dnnkern.host.device import _SIMULATOR as SIMULATOR
from dnnkern.report.rows import files, records

from .drawn import SET

RESULTS = Path(__file__).resolve().parent / "results"
STEPS = (0.25, 0.1, 0.03, 0.01)  # by how much a number is moved, as long as that helps
MOST = 2.0                       # times the table's number, or a part of it
DEVICE = "NVIDIA H200"           # whose numbers the simulator's device has


class Sample:
    """A measured time, and what predicts it."""

    def __init__(self, algorithm, problem, seconds):
        self.algorithm, self.problem, self.seconds = algorithm, problem, seconds

    def error(self, device):
        """Logarithm of predicted over measured."""
        return math.log(self.algorithm.seconds(self.problem, device) / self.seconds)


def samples(paths, device, ops=None) -> list:
    """The times of our algorithms in the files, of problems and configurations that there still are."""
    found = []
    for row in records(paths):
        if (row.get("status") != "ok" or row.get("is_peer", True) or row["machine"]["device"] != DEVICE or ops and row["op"] not in ops
                or row.get("set") == SET):  # drawn ones show what the fit is worth
            continue
        try:
            problem = family_words(Parser(), row["op"])[2](row["record"])
            algorithm = dispatch.named(row["op"], row["algo"])
        except (ValueError, dispatch.NotSupported):  # of another version
            continue
        if algorithm.refusal(problem, device) is None:
            bound = next((a for a in algorithm.variants(problem, device) if a.config_text == row["config"]), None)
            if bound is not None:
                found.append(Sample(bound, problem, 1e-6 * row["time_us"]))
    return found


def moved(row, name, value):
    """Set a number; what is remembered of estimates is forgotten."""
    setattr(row, name, value)
    dispatch.choices_changed()


def mean_square(found, device):
    """Of the errors; 0 of none."""
    return sum(s.error(device) ** 2 for s in found) / max(len(found), 1)


def dependent(row, found, device, names):
    """The samples that a number of the row has a part in."""
    before, rest = [s.error(device) for s in found], set(range(len(found)))
    for name in names:
        value = getattr(row, name)
        moved(row, name, 1.5 * value)
        rest -= {k for k in rest if found[k].error(device) != before[k]}
        moved(row, name, value)
    return [s for k, s in enumerate(found) if k not in rest]


def fit(row, found, device, names):
    """Move the row's numbers to where they predict the samples best; they stay there."""
    best, table = mean_square(found, device), row.numbers
    for step in STEPS:
        helped = True
        while helped:
            helped = False
            for name in names:
                value = getattr(row, name)
                for candidate in (value * (1 + step), value / (1 + step)):
                    if not 1 / MOST <= candidate / table[name] <= MOST:
                        continue
                    moved(row, name, candidate)
                    if (error := mean_square(found, device)) < best * (1 - 1e-6):
                        best, value, helped = error, candidate, True
                moved(row, name, value)
    return best


def names_of(row, named=()):
    """What is fitted of a row."""
    scalars = [name for name, value in row.numbers.items() if isinstance(value, (int, float)) and value]
    return [n for n in scalars if n in named] if named else [n for n in scalars if n not in row.about.guessed]


def main(argv=None):
    """Fit one row."""
    parser = argparse.ArgumentParser(prog="python -m bench.fit", description=__doc__.split("\n")[0])
    parser.add_argument("row", choices=sorted(TABLE), metavar="ROW", help="such as pool/fwd_channels")
    parser.add_argument("files", nargs="*", metavar="FILE", help="JSON lines of the benches; default: bench/results")
    parser.add_argument("--numbers", default="", metavar="NAMES", help="only these numbers of the row, with commas")
    arguments = parser.parse_args(argv)
    row, device = constants(arguments.row), SIMULATOR
    names = names_of(row, tuple(filter(None, arguments.numbers.split(","))))
    before = row.numbers
    found = samples(arguments.files or files(RESULTS, "h200-*"), device)
    found = dependent(row, found, device, names)
    if not found:
        say(f"{arguments.row}: no time in these files depends on {', '.join(names) or 'it: all of its numbers are guessed'}")
        return 1
    errors = mean_square(found, device) ** 0.5, fit(row, found, device, names) ** 0.5
    after = row.numbers
    for name, value in before.items():
        moved(row, name, value)
    show(("number", "table", "fitted"), [(n, f"{before[n]:.4g}", f"{after[n]:.4g}") for n in names],
         title=f"{arguments.row}: {len(found)} times, {row.about.source.kind} ({row.about.source.run or 'no run'})")
    say(f"\nroot mean square of log(predicted / measured): {errors[0]:.3f} with the table, {errors[1]:.3f} fitted")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
