"""What the demo prints and draws at its end: the confusion matrix, digits that it got wrong, what dispatch chose."""
import contextlib
import sys
import time

import numpy as np

from .. import dispatch, find
from .._table import note, say, show, time_text, width
from ..device import SIMULATED
from ..host.device import current_device, device

ROWS = 8        # of the algorithms' table, unless all are asked for
DRAWN = 12      # digits in the picture
NARROW = 100    # columns of a terminal below which the table is of fewer columns
SHADES, PLAIN = " ░▒▓█", " .:*#"


def confusion(targets, found, classes=10):
    """How often class i was taken for class j: an integer matrix [i, j]."""
    matrix = np.zeros((classes, classes), np.int64)
    np.add.at(matrix, (targets, found), 1)
    return matrix


def show_confusion(matrix):
    """Print it; zeros as dots. 34 columns are enough."""
    say("Confusion matrix: rows are the digits, columns what they were taken for")
    print("    " + "".join(f"{k:3}" for k in range(len(matrix))))
    for k, row in enumerate(matrix):
        print(f"{k:3} " + "".join(f"{n:3}" if n else "  ." for n in row))


def blocks(image, shades=SHADES):
    """An image of values in [0, 1] as lines, two characters a pixel."""
    levels = np.clip(np.rint(image * (len(shades) - 1)), 0, len(shades) - 1).astype(int)
    return ["".join(2 * shades[level] for level in row) for row in levels]


def show_wrong(images, targets, found):
    """Print as many of the digits that it got wrong as fit side by side."""
    wrong = np.flatnonzero(targets != found)
    if not len(wrong):
        say(f"All {len(targets)} digits are right.")
        return
    side = 2 * images.shape[2]
    fit = max(1, ((width(sys.stdout) or 80) + 2) // (side + 2))
    shown = wrong[:fit]
    say(f"{len(wrong)} of {len(targets)} are wrong" + (f"; {len(shown)} of them:" if len(shown) < len(wrong) else ":"))
    drawn = [blocks(images[k, :, :, 0], _shades()) for k in shown]
    print("  ".join(f"{targets[k]}, taken for {found[k]}".ljust(side) for k in shown).rstrip())
    for line in zip(*drawn):
        print("  ".join(line).rstrip())


def _shades():
    """Blocks, where the output can have them."""
    try:
        SHADES.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return PLAIN
    return SHADES


def draw(images, targets, found, path):
    """Write the confusion matrix and some of the digits that it got wrong as a picture; returns why there is none, or None."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "matplotlib is missing: pip install 'dnnkern[demo]'"
    figure = Figure(figsize=(10, 4.6))
    left, right = figure.subfigures(1, 2)
    matrix, axes = confusion(targets, found), left.subplots()
    axes.imshow(np.log1p(matrix), cmap="Blues")
    for (i, j), n in np.ndenumerate(matrix):
        if n:
            axes.text(j, i, n, ha="center", va="center", fontsize=8, color="white" if 2 * np.log1p(n) > np.log1p(matrix.max()) else "black")
    axes.set(xticks=range(10), yticks=range(10), xlabel="taken for", ylabel="digit")
    wrong = np.flatnonzero(targets != found)
    right.suptitle(f"{len(wrong)} of {len(targets)} wrong", fontsize=10)
    for k, cell in zip(wrong, right.subplots(3, DRAWN // 3).flat):
        cell.imshow(images[k, :, :, 0], cmap="gray_r")
        cell.set_title(f"{targets[k]}, taken for {found[k]}", fontsize=7)
    for cell in right.axes:
        cell.set_axis_off()
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:  # no such folder, no such format: no reason to lose the rest of the report
        return str(error)
    return None


# ---- algorithms

def choices(problems):
    """(name, problem, chosen candidate, measured milliseconds or None) of every operation."""
    rows = []
    for name, problem in problems.items():
        op = problem.op
        chosen = next(c for c in dispatch.explain(op, problem) if c.chosen)
        rows.append((name, problem, chosen, dispatch.measured(op, problem).get(chosen.algo)))
    return rows


def measure(rows):
    """`choices` with times where the find database has none: what was chosen runs on random operands of its problem. Ctrl-C ends it, and
    what was measured is kept; (rows, whether it was ended). Not in the simulator, whose times say nothing."""
    rows = list(rows)
    if SIMULATED:
        return rows, False
    try:
        for k, (name, problem, chosen, known) in enumerate(rows):
            if known is None:
                note(f"measuring {k + 1} of {len(rows)}: {name}")
                rows[k] = name, problem, chosen, _milliseconds(problem)
    except KeyboardInterrupt:
        return rows, True
    finally:
        note()
    return rows, False


def _milliseconds(problem):
    with contextlib.suppress(dispatch.NotSupported):
        algorithm = dispatch.get_algorithm(problem.op, problem)
        perf, = find.measure(dispatch.operation_of(problem.op), problem, [algorithm], algorithm, device(current_device()))
        if perf.status == "ok":
            return perf.time_ms
    return None


def show_choices(rows, whole):
    """Print what dispatch chose for each call: all, or those that take longest."""
    shown = rows if whole else sorted(rows, key=lambda row: -(row[3] or row[2].time_ms))[:ROWS]
    title = "What dispatch chose" + ("" if len(shown) == len(rows) else f": the {len(shown)} longest of {len(rows)} calls (all: --table)")
    names = ("operation", "problem", "algorithm", "config", "chosen as", "predicted", "measured")
    cells = [(name, str(problem), chosen.algo, chosen.config or None, chosen.why, time_text(chosen.time_ms), time_text(ms))
             for name, problem, chosen, ms in shown]
    kept = range(len(names)) if (width(sys.stdout) or NARROW) >= NARROW else (0, 2, 5, 6)
    show([names[k] for k in kept], [[row[k] for k in kept] for row in cells], title=title)


# ---- progress

def progress(steps, total, batch):
    """The steps, with a bar on stderr if that is a terminal: of tqdm, else of rich, else a line."""
    if not sys.stderr.isatty():
        return steps
    try:
        from tqdm import tqdm
        return tqdm(steps, total=total, unit=" images", unit_scale=batch, file=sys.stderr, dynamic_ncols=True)
    except ImportError:
        try:
            import rich.progress
        except ImportError:
            return _line(steps, total, batch)
        return _rich(steps, total, batch, rich.progress)


def _rich(steps, total, batch, rich):
    from rich.console import Console
    bar = rich.Progress(rich.BarColumn(), rich.MofNCompleteColumn(), rich.TextColumn("{task.fields[rate]}"), console=Console(stderr=True))
    with bar:
        task, started = bar.add_task("", total=total * batch, rate=""), time.perf_counter()
        for k, step in enumerate(steps, 1):
            yield step
            bar.update(task, completed=k * batch, rate=f"{k * batch / (time.perf_counter() - started):.0f} images/s")


def _line(steps, total, batch):
    started = time.perf_counter()
    try:
        for k, step in enumerate(steps, 1):
            yield step
            note(f"{k * batch} of {total * batch}, {k * batch / (time.perf_counter() - started):.0f} images/s")
    finally:
        note()
