"""Charts of the README and of docs/, from rows of results/: ``python -m bench.report --charts docs``.

ratio: each family's problems beside the fastest peer of their run. roof: what share of the machine's rate they reach, of the memory's where
bytes take longer, of the arithmetic units' where operations do. compile: whole PyTorch programs. Each has a light and a dark version.

Of a problem counts what `get_algorithm` answered, measured last. One chart is of one device: the one with most rows, or that of --device.
"""
import collections
from pathlib import Path

from dnnkern.report.rows import bound, chosen, family, quartiles, recorded

# Okabe and Ito's colours, which colour-blind people tell apart; on dark pages their lighter ones.
THEMES = {"light": dict(page="#ffffff", text="#1f2328", faint="#8c959f", colors=("#0072B2", "#D55E00", "#767676")),
          "dark": dict(page="#0d1117", text="#e6edf3", faint="#6e7681", colors=("#56B4E9", "#E69F00", "#9aa0a6"))}
PROGRAMS = {"resnet50-train-64": "ResNet-50, training", "resnet50-infer-256": "ResNet-50, inference",
            "convnext-train-64": "ConvNeXt-T, training", "gpt2-train-16": "GPT-2 small, training",
            "llama-train-1": "a Llama block, training"}
WAYS = {"ours": "dnnkern", "inductor": "Inductor", "eager": "PyTorch as it is"}
SPREAD = "dot: median, bar: middle half of the problems"
LEGEND = 0.25  # inches
STEADY = 1.35  # longest turn over shortest: what a busy host adds is not the program's


def on_device(rows, device=None) -> list:
    """Rows of one device: of the one with most of them if none is named; of the record where it has all families.

    Raises
    ------
    ValueError
        There is no row of it.
    """
    rows = recorded(rows)
    counts = collections.Counter(r["machine"]["device"] for r in rows)
    if not counts or device and device not in counts:
        raise ValueError(f"charts: no rows{f' of {device!r}' * bool(device)}; there are some of {', '.join(counts) or 'no device'}")
    device = device or counts.most_common(1)[0][0]
    return [r for r in rows if r["machine"]["device"] == device]


def ratios(rows) -> dict:
    """{family: the speeds of its problems over that of their fastest peer}, the most problems first."""
    return _by(((family(r["op"]), r["ratio"]) for r in chosen(rows) if r["ratio"]))


def roofs(rows) -> dict:
    """{(family, "memory" or "arithmetic"): shares of the roof}, in the order of `ratios`."""
    found = _by(((family(r["op"]), bound(r)), r["roof"]) for r in chosen(rows) if r["roof"] and r["gbs"] and r["roofs"].get("copy"))
    place = {name: k for k, name in enumerate(ratios(rows))}
    return dict(sorted(found.items(), key=lambda item: (place.get(item[0][0], len(place)), item[0][1] != "memory")))


def _by(pairs):
    found = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def ratio_lines(rows) -> list:
    """(family, its quartiles, text) of each row of the ratio's chart."""
    return [(name, quartiles(values), f"{quartiles(values)[1]:.2f}x, faster in {sum(v > 1 for v in values)} of {len(values)}")
            for name, values in ratios(rows).items()]


def roof_lines(rows) -> list:
    """(family, bound, its quartiles, text) of each row of the roof's chart."""
    return [(name, by, quartiles(values), f"{100 * quartiles(values)[1]:.0f} % of {len(values)}")
            for (name, by), values in roofs(rows).items()]


def programs(rows) -> list:
    """Of each program the latest row whose turns were steady; where none's were, the one least in our favour; as `PROGRAMS` has them, of
    the device that has most of them, and the latest."""
    usable = [r for r in rows if r.get("op") == "compile" and r.get("status") == "ok" and not r.get("mode") and r["problem"] in PROGRAMS
              and all(f"{way}_turns" in r for way in WAYS)]
    devices = collections.defaultdict(list)
    for row in usable:
        devices[row["machine"]["device"]].append(row)
    chosen = max(devices.values(), default=[], key=lambda of: (len({r["problem"] for r in of}), max(r["machine"]["date"] for r in of)))
    found = {}
    for row in sorted(chosen, key=lambda r: r["machine"]["date"]):
        before = found.get(row["problem"])
        if before is None or steady(row) or not steady(before) and _gain(row) < _gain(before):
            found[row["problem"]] = row
    return [found[name] for name in PROGRAMS if name in found]


def _gain(row):
    return min(row["eager_ms"], row["inductor_ms"]) / row["ours_ms"]


def steady(row) -> bool:
    """The turns of each way took about the same time."""
    return all(max(row[f"{way}_turns"]) <= STEADY * min(row[f"{way}_turns"]) for way in WAYS)


def told(rows) -> str:
    """The device, the dates and how many rows: what a picture says under its chart."""
    dates = sorted(r["machine"]["date"][:10] for r in rows)
    span = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    return f"{rows[0]['machine']['device']}, {span}, {len(rows)} rows of bench/results"


def draw(rows, timed, folder, device=None) -> list:
    """Write the charts into a folder; returns their paths.

    Parameters
    ----------
    rows : list
        Of `report.read`.
    timed : list
        Rows of ``bench compile``; without any there is no chart of programs.
    folder : path
    device : str, optional
        Its name, as in the rows.
    """
    paths = []
    rows = on_device(rows, device)
    timed = programs(timed)
    for theme, colours in THEMES.items():
        paths += [_ratio(rows, colours, folder, theme), _roof(rows, colours, folder, theme)]
        if timed:
            paths.append(_compile(timed, colours, folder, theme))
    return paths


def _figure(title, count, look, legend=False):
    from matplotlib.figure import Figure
    figure = Figure(figsize=(8.2, 1.05 + LEGEND * legend + 0.27 * count))
    axis = figure.subplots()
    figure.text(0.01, 1 - 0.25 / figure.get_figheight(), title, fontsize=11, color=look["text"])
    axis.set_facecolor(look["page"])
    axis.tick_params(colors=look["text"], labelsize=9, length=0)
    for side in axis.spines.values():
        side.set_visible(False)
    axis.grid(axis="x", color=look["faint"], alpha=0.35, linewidth=0.6)
    axis.set_axisbelow(True)
    return figure, axis


def _save(figure, axis, names, texts, look, path, foot):
    """Write an SVG whose texts are texts: small, and to be searched."""
    import matplotlib
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.4, -0.6)
    for k, text in enumerate(texts):
        axis.text(1.01, k, text, transform=axis.get_yaxis_transform(), va="center", fontsize=8.5, color=look["text"])
    figure.text(0.01, 0.015, foot, fontsize=8, color=look["faint"])
    height, above = figure.get_figheight(), 0.38 + LEGEND * len(figure.legends)
    figure.subplots_adjust(left=0.215, right=0.74, top=1 - above / height, bottom=0.55 / height)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "dnnkern", "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"]}):
        figure.savefig(path, format="svg", facecolor=look["page"], metadata={"Date": None, "Creator": None})
    return path


def _spread(axis, k, quarter, color, scale=1.0):
    first, median, third = (scale * q for q in quarter)
    axis.plot([first, third], [k, k], color=color, linewidth=6, alpha=0.45, solid_capstyle="butt")
    axis.plot([median], [k], "o", color=color, markersize=6)


def _ratio(rows, look, folder, theme):
    lines = ratio_lines(rows)
    figure, axis = _figure("Speed over the fastest of cuDNN, cuBLAS and PyTorch", len(lines), look)
    axis.set_xscale("log", base=2)
    axis.axvline(1, color=look["text"], linewidth=1)
    for k, (_, quarter, _) in enumerate(lines):
        _spread(axis, k, quarter, look["colors"][0])
    ticks = (0.5, 1, 2, 4, 8)
    axis.set_xlim(0.45, 11)
    axis.set_xticks(ticks, ["half", "as fast", *(f"{t}x" for t in ticks[2:])])
    axis.minorticks_off()
    counted = [r for r in chosen(rows) if r["ratio"]]
    return _save(figure, axis, [line[0] for line in lines], [line[2] for line in lines], look, Path(folder) / f"ratio-{theme}.svg",
                 f"{SPREAD}; {told(counted)}")


def _roof(rows, look, folder, theme):
    lines = roof_lines(rows)
    figure, axis = _figure("Share of the machine's rates, as measured in the same run", len(lines), look, legend=True)
    for k, (_, by, quarter, _) in enumerate(lines):
        _spread(axis, k, quarter, look["colors"][by != "memory"], 100)
    axis.axvline(100, color=look["text"], linewidth=1)
    axis.set_xlim(0, 118)
    axis.set_xticks(range(0, 101, 25), [f"{t} %" for t in range(0, 101, 25)])
    for color, label in zip(look["colors"], ("of the memory's copy rate", "of the arithmetic units' rate (tensor cores, or float32's)")):
        axis.plot([], [], "o", color=color, label=label)
    figure.legend(loc="upper left", bbox_to_anchor=(0, 1 - 0.3 / figure.get_figheight()), ncols=2, frameon=False, labelcolor=look["text"],
                  fontsize=8.5)
    names = [name if k == 0 or lines[k - 1][0] != name else "" for k, (name, *_) in enumerate(lines)]
    counted = [r for r in chosen(rows) if r["roof"]]
    return _save(figure, axis, names, [line[3] for line in lines], look, Path(folder) / f"roof-{theme}.svg", f"{SPREAD}; {told(counted)}")


def _compile(timed, look, folder, theme):
    lines = [(row, way) for row in timed for way in WAYS]
    figure, axis = _figure("PyTorch programs: time of a step; as PyTorch is, it is 1", 0.75 * len(lines), look)
    for k, (row, way) in enumerate(lines):
        axis.barh(k, row[f"{way}_ms"] / row["eager_ms"], height=0.8, color=look["colors"][list(WAYS).index(way)])
    axis.set_xlim(0, 1.02)
    names = [PROGRAMS[row["problem"]] if way == "inductor" else "" for row, way in lines]
    texts = [f"{row[f'{way}_ms']:.3g} ms  {WAYS[way]}" for row, way in lines]
    return _save(figure, axis, names, texts, look, Path(folder) / f"compile-{theme}.svg", told(timed))
