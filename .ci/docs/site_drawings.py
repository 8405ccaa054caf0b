"""Drawings of the site, made from the library's own functions when it is built: which thread holds which element of a fragment.

A cell is "thread.element" and has its thread's colour, so that the elements of one thread are found at a glance. Colours are translucent
and texts have the page's: the drawings are for light and dark pages.
"""
import html

from dnnkern.device import wgmma as wgmma_module
from dnnkern.device.mma import FRAGMENTS
from dnnkern.device.sim.maps import swizzled

LEFT, TOP = 30, 20


def colour(thread):
    """Neighbours differ most: rows of four threads in hue, threads of a row in strength."""
    return f"hsl({thread // 4 * 45 % 360} 75% 50% / {(0.18, 0.32, 0.46, 0.6)[thread % 4]})"


def grid(cells, title, width=36, height=20, rows=None):
    """An SVG of {(row, column): (thread, text)}; `rows` names those that are drawn, a gap where some are left out."""
    rows = sorted({row for row, _ in cells}) if rows is None else rows
    columns = sorted({column for _, column in cells})
    lines, y = [], TOP
    for k, column in enumerate(columns):
        lines.append(f'<text x="{LEFT + (k + 0.5) * width}" y="{TOP - 6}" class="axis">{column}</text>')
    for k, row in enumerate(rows):
        y += 8 if k and row != rows[k - 1] + 1 else 0
        lines.append(f'<text x="{LEFT - 14}" y="{y + height * 0.7}" class="axis">{row}</text>')
        for j, column in enumerate(columns):
            if (row, column) in cells:
                thread, text = cells[row, column]
                lines.append(f'<rect x="{LEFT + j * width}" y="{y}" width="{width - 1}" height="{height - 1}" fill="{colour(thread)}"/>'
                             f'<text x="{LEFT + (j + 0.5) * width}" y="{y + height * 0.7}">{text}</text>')
        y += height
    wide, high = LEFT + len(columns) * width, y + 4
    name = html.escape(title)
    return (f'<figure class="fragment"><svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" '
            f'role="img" aria-label="{name}">{"".join(lines)}</svg><figcaption>{name}</figcaption></figure>')


def chart(title, lines, low, high, ticks, scale=float, mark=None, dot=True):
    """An SVG of (name, (first quartile, median, third quartile), text, class) per line; without `dot` a bar from `low` to the third."""
    left, wide, step = 190, 330, 22
    parts = [f'<text x="0" y="14" class="title">{html.escape(title)}</text>']

    def at(value):
        return left + wide * (scale(min(max(value, low), high)) - scale(low)) / (scale(high) - scale(low))
    bottom = 34 + step * len(lines)
    for value, text in ticks:
        strong = ' class="strong"' if value == mark else ""
        parts.append(f'<line x1="{at(value):.1f}" x2="{at(value):.1f}" y1="26" y2="{bottom}"{strong}/>'
                     f'<text x="{at(value):.1f}" y="{bottom + 14}" class="middle">{html.escape(text)}</text>')
    for k, (name, (first, median, third), text, kind) in enumerate(lines):
        y = 34 + step * k
        start = at(first) if dot else left
        parts.append(f'<text x="{left - 8}" y="{y + 12}" class="end">{html.escape(name)}</text>'
                     f'<rect x="{start:.1f}" y="{y + 3}" width="{max(at(third) - start, 1):.1f}" height="11" class="{kind}"/>')
        if dot:
            parts.append(f'<circle cx="{at(median):.1f}" cy="{y + 8.5}" r="4" class="{kind}"/>')
        parts.append(f'<text x="{left + wide + 10}" y="{y + 12}">{html.escape(text)}</text>')
    width, height = left + wide + 190, bottom + 22
    return (f'<figure class="fragment chart"><svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img" aria-label="{html.escape(title)}">{"".join(parts)}</svg></figure>')


def mma(dtype, m, k, which):
    """A fragment of `device.mma`: acc, a or b."""
    fragment = FRAGMENTS[dtype, int(m), int(k)]
    words = dict(zip(("acc", "a", "b"), fragment.words))
    count = words[which] * (1 if which == "acc" else fragment.per_word)
    held = getattr(fragment, which)
    cells = {held(lane, e): (lane, f"{lane}.{e}") for lane in range(32) for e in range(count)}
    assert len(cells) == 32 * count
    name = {"acc": "accumulators", "a": "A", "b": "B"}[which]
    return grid(cells, f"mma, {dtype}, m{fragment.m} n{fragment.n} k{fragment.k}: {name}, lane.element")


def wgmma(n, *rows):
    """Accumulators of `device.wgmma`, products of `n` columns."""
    n = int(n)
    cells = {wgmma_module.accumulator_place(n, thread, e): (thread, f"{thread}.{e}") for thread in range(128) for e in range(n // 2)}
    assert len(cells) == 64 * n
    return grid(cells, f"wgmma, 64 x {n}: accumulators, thread.element; warps are 16 rows each", 46,
                rows=[row for first in map(int, rows) for row in range(first, first + 2)] or None)


def wgmma_a(dtype, *rows):
    """A of `device.wgmma` from registers, one step of k."""
    per_word = {"bfloat16": 2, "float16": 2, "tf32": 1}.get(dtype, 4)
    cells = {wgmma_module.operand_place(dtype, 1, thread, word, part): (thread, f"{thread}.{word * per_word + part}")
             for thread in range(128) for word in range(4) for part in range(per_word)}
    return grid(cells, f"wgmma, {dtype}: A from registers, one step of k, thread.element", 46,
                rows=[row for first in map(int, rows) for row in range(first, first + 2)] or None)


def ldmatrix(transposed=""):
    """What a lane receives of one 8 x 8 matrix: the first word of an operand of `mma`."""
    held = FRAGMENTS["bfloat16", 16, 16].a
    cells = {held(lane, half)[::-1 if transposed else 1]: (lane, f"{lane}.{half}") for lane in range(32) for half in range(2)}
    return grid(cells, f"ldmatrix{', transposed' * bool(transposed)}: an 8 x 8 matrix of 16-bit elements, lane.half of its word")


def swizzle():
    """Where the eight 16-byte chunks of a 128-byte row are, in the 128-byte swizzle."""
    cells = {}
    for piece, at in enumerate(swizzled(0, 1024, 128)):  # of 16 bytes
        cells[int(at) // 8, int(at) % 8] = 4 * (piece % 8), piece % 8
    return grid(cells, "the 128-byte swizzle: rows of 128 bytes, positions of 16; the number and the colour are the chunk's in its row", 46)
