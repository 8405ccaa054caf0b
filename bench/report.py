"""Pictures and pages from JSON lines: ``python -m bench.report FILE... [--png PICTURE]``.

Two panels: each problem's ratio to the peer, and its share of the roof measured in the same run; for the algorithm that was chosen and for
the best. The markdown page is what bench/results/ keeps.
"""
import argparse
import json
import sys

from . import table


def read(paths) -> list:
    """Rows of several files; where a problem was measured more than once by an algorithm and configuration on a device, the last counts."""
    rows = {}
    for path in paths:
        with open(path) as file:
            for line in file:
                row = json.loads(line)
                if "algo" in row:
                    rows[row["machine"]["device"], row["op"], row["problem"], row["algo"], row["config"]] = row
    return list(rows.values())


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
    machine = rows[0]["machine"] if rows else {}
    figure.suptitle(f"{machine.get('device', '')}, {machine.get('date', '')[:10]}, commit {machine.get('commit', '')}", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


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
    parser.add_argument("files", nargs="+", help="JSON lines written by bench --json")
    parser.add_argument("--png", metavar="PICTURE", help="draw ratios and shares of the roof")
    parser.add_argument("--op", help="only this operation")
    args = parser.parse_args(argv)
    rows = [r for r in read(args.files) if args.op in (None, r["op"])]
    print(page(rows), end="")
    if args.png:
        draw(rows, args.png)
    return 0


if __name__ == "__main__":
    sys.exit(main())
