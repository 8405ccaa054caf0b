"""Tables that fit the terminal, with cells wrapped between words, or a line per cell where no table fits; one line per row if the output is
not a terminal."""
import contextlib
import itertools
import os
import re
import shutil
import signal
import sys
import threading
import time

GAP = "  "
LEAST = 8  # characters of a column that is too wide even with one word per line
STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "1;32"}


def show(columns, rows, title=None, marked=(), right=None, styles=None, file=None):
    """Print rows of values, None as an empty cell; empty columns are left out.

    Parameters
    ----------
    columns : sequence of str
        Their names.
    rows : sequence of sequences
    title : str, optional
    marked : collection of int
        Rows to highlight.
    right : collection of int, optional
        Right-aligned columns; default: those of numbers, and those whose name ends with a unit in parentheses.
    styles : {int: str}, optional
        Styles of other rows, from `STYLES`.
    file : file, optional
        Default: sys.stdout.
    """
    file = file or sys.stdout
    rows = [["" if v is None else str(v) for v in row] for row in rows]
    kept = [i for i, name in enumerate(columns) if not rows or any(row[i] for row in rows)]
    if right is None:
        right = [i for i in kept if columns[i].endswith(")") or rows and all(_is_number(row[i]) for row in rows)]
    table = Lines([columns[i] for i in kept], [[row[i] for i in kept] for row in rows], {kept.index(i) for i in right if i in kept}, file)
    if title:
        say(title, file=file)
    styles = {**(styles or {}), **dict.fromkeys(marked, "green")}
    lines = table.head()
    for k, row in enumerate(rows):
        lines += table.row([row[i] for i in kept], styles.get(k))
    print("\n".join(lines), file=file, flush=True)


class Lines:
    """Formats rows as lines for a file, with widths that fit `rows`; other rows may be formatted too."""

    def __init__(self, columns, rows, right=(), file=None):
        self.columns, self.right, self.file = columns, right, file or sys.stdout
        limit = width(self.file)
        self.widths = _widths([columns, *rows], right, limit)
        self.limit = limit if limit and sum(self.widths) + len(GAP) * (len(columns) - 1) > limit else None  # too narrow for a table
        self.names = min(max(map(len, columns)), (limit or 0) // 3)
        left = limit and limit - sum(self.widths[:-1]) - len(GAP) * (len(columns) - 1)
        self.limits = [*(self.widths[:-1] if limit else [None] * (len(columns) - 1)), left and max(left, self.widths[-1])]

    def head(self):
        """The underlined column names; nothing where each cell has its own."""
        return [] if self.limit else [*self._lines(self.columns), GAP.join("-" * w for w in self.widths)]

    def row(self, values, style=None):
        """A row's lines: several where cells are wrapped."""
        cells = ["" if v is None else str(v) for v in values]
        lines = self._cells(cells) if self.limit else self._lines(cells)
        colour = STYLES.get(style) if coloured(self.file) else None
        return [f"\033[{colour}m{line}\033[0m" for line in lines] if colour else lines

    def _cells(self, cells):
        """A line for each cell, which begins with its column's name, and an empty one."""
        lines = []
        for name, cell in zip(self.columns, cells):
            if not name:
                lines += _wrapped(cell, self.limit) if cell else []
            elif cell:
                named, wrapped = _wrapped(name, self.names), _wrapped(cell, self.limit - self.names - len(GAP))
                lines += [f"{n:<{self.names}}{GAP}{part}".rstrip() for n, part in itertools.zip_longest(named, wrapped, fillvalue="")]
        return [*lines, ""]

    def _lines(self, cells):
        wrapped = itertools.zip_longest(*map(_wrapped, cells, self.limits), fillvalue="")
        return [GAP.join(p.rjust(w) if i in self.right else p.ljust(w) for i, (p, w) in enumerate(zip(parts, self.widths))).rstrip()
                for parts in wrapped]


def width(file) -> int | None:
    """Columns of the terminal, or COLUMNS; None (unlimited) for a pipe or a file."""
    return shutil.get_terminal_size().columns if file.isatty() or os.environ.get("COLUMNS") else None


def coloured(file) -> bool:
    """Whether a file is a terminal that shows colours, and nobody has declined them (https://no-color.org)."""
    return file.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def say(text, file=None):
    """Print a paragraph, wrapped if the output is a terminal; not where `silenced`."""
    if _silent:
        return
    file = file or sys.stdout
    limit = width(file)
    for line in text.split("\n"):
        print("\n".join(_wrapped(line, limit)), file=file, flush=True)


def note(text=""):
    """Show progress on the last line of a terminal, until the next note; without a text, clear it."""
    if sys.stderr.isatty() and not _silent:
        print("\r\033[K" + text[:(width(sys.stderr) or 80) - 1], end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def progress(text):
    """Say on a terminal what takes more than a second, and for how long it has. By a signal, not a thread: with threads, kernels are
    compiled one after the other."""
    if not sys.stderr.isatty() or _silent or threading.current_thread() is not threading.main_thread():
        yield
        return
    started = time.monotonic()
    before = signal.signal(signal.SIGALRM, lambda *_: note(f"{text}, {time.monotonic() - started:.0f} s"))
    signal.setitimer(signal.ITIMER_REAL, 1, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        note()


@contextlib.contextmanager
def silenced(silent):
    """In the block, if `silent`, there are tables alone: no titles, remarks or progress."""
    global _silent
    before, _silent = _silent, silent
    try:
        yield
    finally:
        _silent = before


_silent = False


def _widths(lines, right, limit):
    """Column widths: cells are broken between words as far as the limit requires, and within words if that is not enough."""
    columns = list(zip(*lines))
    widths = [max(map(len, column)) for column in columns]
    words = [max(len(word) for cell in column for word in _words(cell)) for column in columns]
    for least in (words, [w if i in right else min(w, LEAST) for i, w in enumerate(words)]):
        while limit is not None and sum(widths) + len(GAP) * (len(widths) - 1) > limit:
            able = [i for i in range(len(widths)) if widths[i] > least[i]]
            if not able:
                break
            widths[max(able, key=lambda i: widths[i])] -= 1
    return widths


def _words(cell):
    """The words of a cell; a number and its unit are one."""
    return re.findall(r"[\d.]+ [^\s\d,]+(?:,(?=\s|$)|$)|\S+", cell) or [""]


def _wrapped(cell, limit):
    """The cell in lines of at most `limit` characters, None for no limit; longer words are broken."""
    if limit is None or len(cell) <= limit:
        return [cell]
    lines = [""]
    for word in _words(cell):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > limit:
            lines.append("")
        lines[-1] += " " * bool(lines[-1]) + word
        while len(lines[-1]) > limit:
            lines[-1:] = lines[-1][:limit], lines[-1][limit:]
    return lines


def _is_number(text):
    return text.replace(".", "", 1).replace(",", "").isdigit()


def time_text(milliseconds):
    """A duration with three digits and a suitable unit: "4.05 us"."""
    if milliseconds is None:
        return None
    for unit, factor in (("us", 1e3), ("ms", 1.0), ("s", 1e-3)):
        value = milliseconds * factor
        if value < 1000 or unit == "s":
            return f"{value:.3g} {unit}" if value < 100 else f"{value:.0f} {unit}"


def bytes_text(n):
    """Bytes with a binary unit: "20.0 MiB"."""
    if n is None:
        return None
    value = float(n)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{n} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
