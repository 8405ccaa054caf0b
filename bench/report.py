"""Pictures and pages from JSON lines: ``python -m bench.report FILE... [--png PICTURE]``, or ``--ladder``, ``--layers``, ``--shares``,
``--charts``.

Two panels: each problem's ratio to the peer, and its share of the roof measured in the same run; for the algorithm that was chosen and for
the best. The markdown page is what bench/results/ keeps. The ladder is one panel: TFLOP/s of every algorithm and of the peers over the
size, for problems that differ in nothing else; with it comes the table of its numbers. The layers are the time of every algorithm, and of
the peers, on each problem; the shares what of the copy rate each reaches, by the bytes of the problem. The charts are the README's, from
all of results/ unless files are named: see charts.py.
"""
import argparse
import sys
from pathlib import Path

from dnnkern.report.rows import files, read, records

from . import charts, table

RESULTS = Path(__file__).parent / "results"


def points(rows) -> list:
    """(problem, chosen row or None, best row) of every problem that has a time."""
    found = []
    for problem, group in table.by_problem(rows).items():
        ours = table.timed(group)
        if ours:
            found.append((problem, next((r for r in ours if r["chosen"]), None), ours[0]))
    return found


def draw(rows, path):
    """Write the picture."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    found = points(rows)
    figure, axes = pyplot.subplots(1, 2, figsize=(13, 1.5 + 0.28 * len(found)), sharey=True)
    places = range(len(found))
    for axis, field, scale, title in ((axes[0], "ratio", 1, "speed over the peer's"), (axes[1], "roof", 100, "% of the measured roof")):
        for which, marker, color in ((2, "o", "tab:gray"), (1, "D", "tab:blue")):
            known = [(p[which][field] * scale, k) for k, p in zip(places, found) if p[which] and p[which][field]]
            axis.plot([x for x, _ in known], [k for _, k in known], marker, color=color, label=("chosen", "best measured")[which - 1])
        axis.axvline(scale, color="black", linewidth=0.8)
        axis.set_title(title)
        axis.grid(axis="x", alpha=0.3)
    axes[0].set_yticks(list(places), [p[0] for p in found], fontsize=8)
    axes[0].invert_yaxis()
    axes[0].legend(fontsize=8)
    _save(figure, rows, path)


def _save(figure, rows, path, what=""):
    from matplotlib import pyplot
    machine = rows[0]["machine"] if rows else {}
    figure.suptitle(f"{what}{machine.get('device', '')}, {machine.get('date', '')[:10]}, commit {machine.get('commit', '')}", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def size_of(row) -> int:
    """Edge of the cube that has as many multiply-adds: N for a product of N x N matrices."""
    return round((row["tflops"] * row["time_us"] * 1e6 / 2) ** (1 / 3))


def kind_of(row) -> str:
    """What a problem is but for its sizes: its dtype, transpositions and what is fused."""
    return row["problem"].partition(" ")[2]


def ladder(rows) -> dict:
    """{algorithm: {size: TFLOP/s of its fastest configuration}}: slowest first, by the largest size each has, then the peers."""
    kinds = sorted({kind_of(r) for r in rows if r["status"] == "ok"})
    if len(kinds) > 1:
        raise ValueError(f"ladder: problems that differ in more than their size: {'; '.join(kinds)}; choose with --only")
    return _rungs(rows, size_of, lambda row: row["tflops"])


def shares(rows) -> dict:
    """{algorithm: {bytes: share of the copy rate that its fastest configuration reaches}}, in the order of `ladder`."""
    return _rungs(rows, lambda row: round(row["gbs"] * row["time_us"] * 1e3), lambda row: row["gbs"] * 1e9 / row["roofs"]["copy"])


def _rungs(rows, place, value):
    rungs = {}
    for row in rows:
        if row["status"] == "ok":
            rung = rungs.setdefault((row["is_peer"], row["algo"]), {})
            rung[place(row)] = max(value(row), rung.get(place(row), 0.0))
    ordered = sorted(rungs, key=lambda key: (key[0], rungs[key][max(rungs[key])]))
    return {f"{name} (peer)" if is_peer else name: dict(sorted(rungs[is_peer, name].items())) for is_peer, name in ordered}


def ladder_table(rungs) -> str:
    """The ladder's numbers, for a page of docs/."""
    sizes = sorted({size for rung in rungs.values() for size in rung})
    lines = ["| TFLOP/s | " + " | ".join(map(str, sizes)) + " |", "|---|" + "--:|" * len(sizes)]
    for name, rung in rungs.items():
        cells = ["" if r is None else f"{r:.{2 if r < 10 else 1 if r < 100 else 0}f}" for r in map(rung.get, sizes)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw_ladder(rows, path):
    """Write the picture of the ladder."""
    rungs = ladder(rows)
    figure, axis = _draw_rungs(rungs)
    sizes = sorted({size for rung in rungs.values() for size in rung})
    axis.set_yscale("log")
    axis.set_xticks(sizes, list(map(str, sizes)))
    axis.set_xlabel("size: N of a product of N x N matrices")
    axis.set_ylabel("TFLOP/s")
    kind = next((kind_of(r) for r in rows if r["status"] == "ok"), "")
    _save(figure, rows, path, f"{rows[0]['op']} {kind}, " if rows else "")


def draw_shares(rows, path):
    """Write the picture of the shares: one operation's."""
    rungs = shares(rows)
    figure, axis = _draw_rungs({name: {size / 2 ** 20: 100 * share for size, share in rung.items()} for name, rung in rungs.items()})
    axis.axhline(100, color="gray", linewidth=0.8)
    sizes = sorted({size / 2 ** 20 for rung in rungs.values() for size in rung})
    axis.set_xticks(sizes, [f"{size:.{1 if size < 10 else 0}f}" for size in sizes])
    axis.set_ylim(0, None)
    axis.set_xlabel("MiB read and written")
    axis.set_ylabel("% of the copy rate")
    _save(figure, rows, path, f"{rows[0]['op']}, largest: {rows[-1]['problem']}\n" if rows else "")


def _draw_rungs(rungs):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axis = pyplot.subplots(figsize=(8, 5.5))
    ours = [name for name in rungs if not name.endswith(" (peer)")]
    for name, rung in rungs.items():
        style = dict(color="black", linestyle="--") if name not in ours else dict(
            color=pyplot.get_cmap("viridis")(ours.index(name) / max(len(ours) - 1, 1) * 0.9))
        axis.plot(list(rung), list(rung.values()), marker="o", markersize=4, label=name, **style)
    axis.set_xscale("log", base=2)
    axis.grid(alpha=0.3)
    handles, labels = axis.get_legend_handles_labels()
    axis.legend(handles[::-1], labels[::-1], fontsize=8)  # the best at the top, as in the picture
    return figure, axis


def layers(rows) -> dict:
    """{algorithm: {problem: its shortest time, in microseconds}}: ours by how often they are the fastest, then the peers."""
    timed, found = [r for r in rows if r["status"] == "ok"], {}
    for row in timed:
        times = found.setdefault((row["is_peer"], row["algo"]), {})
        times[row["problem"]] = min(row["time_us"], times.get(row["problem"], row["time_us"]))
    ours = [times for (is_peer, _), times in found.items() if not is_peer]
    best = {problem: min(t[problem] for t in ours if problem in t) for t in ours for problem in t}
    order = sorted(found, key=lambda key: (key[0], -sum(t == best.get(p) for p, t in found[key].items())))
    return {f"{name} (peer)" if is_peer else name: found[is_peer, name] for is_peer, name in order}


def draw_layers(rows, path):
    """Write the picture of the layers."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    found = layers(rows)
    problems = list(dict.fromkeys(r["problem"] for r in rows if any(r["problem"] in times for times in found.values())))
    figure, axis = pyplot.subplots(figsize=(12, 1.5 + 0.3 * len(problems)))
    colors = iter(pyplot.get_cmap("tab10" if len(found) <= 10 else "tab20").colors)
    for name, times in found.items():
        peer = name.endswith(" (peer)")
        style = dict(color="black", marker="|", markersize=14) if peer else dict(color=next(colors), marker="o", markersize=5)
        shown = [(times[p], k) for k, p in enumerate(problems) if p in times]
        axis.plot([t for t, _ in shown], [k for _, k in shown], linestyle="", label=name, **style)
    axis.set_yticks(range(len(problems)), problems, fontsize=8)
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlabel("microseconds")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    _save(figure, rows, path)


def page(rows) -> str:
    """The results as a markdown page."""
    if not rows:
        return "Nothing was measured.\n"
    machine, roofs = rows[-1]["machine"], rows[-1].get("roofs", {})
    clocks = machine.get("clocks", {})
    head = [f"Device {machine['device']} ({machine['arch']}), {machine['date'][:10]}, commit {machine['commit']}"
            + (f", driver {clocks['driver_version']}, power limit {clocks['power.limit']} W" if clocks else "")
            + (f", torch {machine['torch']}" if machine.get("torch") else "") + "."]
    if roofs:
        texts = [f"{name} {rate / 1e9:.0f} GB/s" if name == "copy" else f"{name} {rate / 1e12:.1f} TFLOP/s" for name, rate in roofs.items()]
        head.append(f"Roofs of the run: {', '.join(texts)}.")
    lines = [f"- {line}" for line in table.summary(rows, heuristic=True) if not line.startswith("regret  ")]
    return "\n".join([" ".join(head), "", table.markdown(rows), "", *lines]) + "\n"


def main(argv=None) -> int:
    """Read, then draw or print."""
    parser = argparse.ArgumentParser(prog="python -m bench.report", description="Draw and print what the benches wrote.")
    parser.add_argument("files", nargs="*", help="JSON lines written by bench --json; --charts alone takes all of bench/results")
    parser.add_argument("--png", metavar="PICTURE", help="draw ratios and shares of the roof")
    parser.add_argument("--ladder", metavar="PICTURE", help="draw TFLOP/s of every algorithm and peer by size, and print them as a table")
    parser.add_argument("--layers", metavar="PICTURE", help="draw the time of every algorithm and peer on each problem")
    parser.add_argument("--shares", metavar="PICTURE", help="draw what every algorithm and peer reaches of the copy rate, by size")
    parser.add_argument("--charts", metavar="FOLDER", help="draw the README's charts into a folder, as SVG")
    parser.add_argument("--device", metavar="NAME", help="of --charts: this device instead of the one with most rows")
    parser.add_argument("--op", help="only this operation")
    parser.add_argument("--only", default="", metavar="WORDS", help="only problems that have all these words, say 'bfloat16 nt'")
    args = parser.parse_args(argv)
    if not args.files and not args.charts:
        parser.error("the following arguments are required: files")
    try:
        if args.charts:
            paths = args.files or files(RESULTS)
            for path in charts.draw(read(paths), list(records(paths)), args.charts, args.device):
                print(path)
            return 0
        return _draw(args)
    except (ValueError, OSError) as error:
        parser.error(str(error))


def _draw(args):
    """What the command asks for, but for the charts."""
    rows = [r for r in read(args.files) if args.op in (None, r["op"]) and set(args.only.split()) <= set(r["problem"].split())]
    print(page(rows), end="")
    if args.png:
        draw(rows, args.png)
    if args.ladder:
        print("\n" + ladder_table(ladder(rows)))
        draw_ladder(rows, args.ladder)
    if args.layers:
        draw_layers(rows, args.layers)
    if args.shares:
        draw_shares(rows, args.shares)
    return 0


if __name__ == "__main__":
    sys.exit(main())
