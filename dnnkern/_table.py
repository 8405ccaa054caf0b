"""Tables for people: drawn by rich where it is installed and the output is a terminal, else aligned text."""
import sys


def show(columns, rows, title=None, marked=(), file=None):
    """Print rows of values, None as nothing; columns whose name ends in a unit in brackets, and numbers, are right-aligned.

    `marked` holds the indices of rows that stand out.
    """
    file = file or sys.stdout
    rows = [["" if v is None else str(v) for v in row] for row in rows]
    right = [c.endswith(")") or bool(rows) and all(_is_number(row[i]) for row in rows) for i, c in enumerate(columns)]
    if file.isatty():
        try:
            return _rich(columns, rows, title, marked, right, file)
        except ImportError:
            pass
    widths = [max(len(v) for v in column) for column in zip(columns, *rows)]
    if title:
        print(title, file=file)
    for row in [list(columns), ["-" * w for w in widths], *rows]:
        print("  ".join(v.rjust(w) if r else v.ljust(w) for v, w, r in zip(row, widths, right)).rstrip(), file=file)


def _is_number(text):
    return text.replace(".", "", 1).replace(",", "").isdigit()


def _rich(columns, rows, title, marked, right, file):
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text
    table = Table(title=title, title_justify="left")
    for name, is_right in zip(columns, right):
        table.add_column(name, justify="right" if is_right else "left")
    for i, row in enumerate(rows):
        table.add_row(*(Text(v) for v in row), style="bold green" if i in marked else None)
    Console(file=file).print(table)


def time_text(milliseconds):
    """A duration with three digits and a unit that fits: "4.05 us"."""
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
