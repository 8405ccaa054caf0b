"""The command ``dnnkern report``: a page of results, and what became slower."""
import functools
import os
from pathlib import Path

from ._output import FAILED, document
from ._table import bytes_text, progress, say, show
from .host.paths import check_target

HELP = """Make one self-contained HTML page from results: JSON lines that `bench` wrote; in a source checkout, if no file is named, all of
bench/results. With --compare, print what became slower beyond the spread, and end with 1 if something did; a page is then made if --out is
given. The page needs no network; making it needs `pip install dnnkern[report]`."""
RESULTS = Path(__file__).resolve().parent.parent / "bench" / "results"
PAGE = Path("dnnkern-report.html")


def add_arguments(add):
    """The words of the command, by a parser's ``add_argument``."""
    add("files", nargs="*", metavar="FILE", help="results; default: bench/results of a source checkout")
    add("--out", type=Path, metavar="PAGE", help=f"the page (default: {PAGE}, and none with --compare)")
    add("--compare", nargs=2, metavar=("A", "B"), help="two files of results, or two commits of the rows of FILE")
    add("--spread", type=float, metavar="PERCENT", help="of --compare: what times differ by where nothing has changed (default: what "
        "the peers' times do, whose code is the same)")


def main(arguments) -> int:
    """Write the page, or compare; 1 if something is slower."""
    from .report import page
    from .report.data import gather, page_data
    if arguments.spread is not None and (arguments.compare is None or not 0 <= arguments.spread < 1000):
        raise ValueError(f"report: --spread {arguments.spread:g}; expected percent from 0, with --compare A B")
    out = arguments.out or (None if arguments.compare else PAGE)
    if out is not None:
        check_target("report", out)
    with progress("reading results"):
        compared = _compared(arguments) if arguments.compare else None
        paths = _paths(arguments.files or [name for name in arguments.compare or () if os.path.isfile(name)])
        rows, files = gather(paths)
        data = page_data(rows, files, compared)
    with progress("making the page"):
        size = None if out is None else page.write(out, page.page(data, page.vega()))
    found = families(rows)
    if arguments.json:
        document("report", file=out and str(out), bytes=size, files=data["files"], devices=[
            {key: device[key] for key in ("name", "arch", "driver", "first", "last", "rows", "other_rows")} for device in data["devices"]],
            families=found, compared=compared and _for_document(compared))
    elif compared:
        _show_compared(compared)
    elif found:
        show(("device", "family", "problems", "x peer", "faster in", "roof (%)", "regret", "worst"),
             [(f["device"], f["family"], f["problems"], _number(f["ratio"], 2), f["ratio"] and f"{f['faster']} of {f['with_peer']}",
               _number(f["roof"] and 100 * f["roof"], 0), _number(f["regret"], 3), _number(f["worst_regret"], 2)) for f in found])
    if out is not None:
        passed = sum(count - drawn for _, count, drawn in files)
        say(f"\n{out}: {bytes_text(size)}, {sum(drawn for *_, drawn in files)} rows of {len(files)} file{'s' * (len(files) > 1)}"
            + f"; {passed} rows have no chart" * bool(passed))
    return FAILED if compared and (compared["slower"] or compared["wrong"]) else 0


def families(rows) -> list:
    """Of each device and family what the chosen algorithms reach: ratio and regret are geometric means, roof is a median."""
    from .report.data import UNKNOWN, regrets
    from .report.rows import FIELDS, chosen, family, geomean, latest, quartiles
    measured = [row for row in rows if FIELDS <= row.keys()]
    groups, lost = {}, regrets(measured)
    for row in chosen(latest(measured)):
        groups.setdefault((row["machine"]["device"], family(row["op"]) or UNKNOWN), []).append(row)
    found = []
    for (device, name), group in sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1]))):
        ratios, roofs = ([r[key] for r in group if r[key]] for key in ("ratio", "roof"))
        regret = [lost[key][0] for r in group if (key := (device, r["op"], r["problem"])) in lost]
        found.append({"device": device, "family": name, "problems": len(group), "with_peer": len(ratios), "ratio": geomean(ratios),
                      "faster": sum(r > 1 for r in ratios), "roof": quartiles(roofs)[1] if roofs else None, "regret": geomean(regret),
                      "worst_regret": max(regret, default=None)})
    return found


def _paths(named):
    from .report.rows import files
    paths = list(named) or files(RESULTS)
    if not paths:
        raise ValueError("report: no results: no file is named, and there is no source checkout around the package; expected files of "
                         "JSON lines that `dnnkern bench OP --json FILE` wrote")
    for path in paths:
        if not os.path.exists(path):
            raise ValueError(f"report: no such file: {path}; expected a file of results")
        if os.path.isdir(path):
            raise ValueError(f"report: {path} is a folder; expected a file of results")
        if not os.access(path, os.R_OK):
            raise ValueError(f"report: {path} may not be read; expected a file of results")
    return paths


def _compared(arguments):
    from .report.compare import compare, sides
    from .report.data import gather
    from .report.rows import FIELDS

    def measured(paths):
        return [row for row in gather(paths)[0] if FIELDS <= row.keys()]

    def read(name):
        is_path = os.path.exists(name) or os.sep in name or name.endswith((".json", ".jsonl"))
        return measured(_paths([name])) if is_path else None
    before, after = sides(arguments.compare, read, functools.cache(lambda: measured(_paths(arguments.files))))
    return compare(before, after, arguments.compare, None if arguments.spread is None else arguments.spread / 100)


def _for_document(compared):
    """As documents have times."""
    return {name: [{key.replace("_us", "_ms"): value / 1e3 if key.endswith("_us") and value is not None else value
                    for key, value in row.items()} for row in part] if isinstance(part, list) else part for name, part in compared.items()}


def _show_compared(compared):
    """What became slower or wrong, as a table, and the counts."""
    from .report.compare import SPREAD
    rows = [(r["op"], r["problem"], r["algo"], r["config"], "*" if r["called"] else "", f"{r['before_us']:.2f}",
             "" if r["after_us"] is None else f"{r['after_us']:.2f}", f"{100 * r['change']:+.1f}" if "change" in r else r["status"],
             f"{100 * r['spread']:.1f}" if "change" in r else "") for r in [*compared["wrong"], *compared["slower"]]]
    if rows:
        columns = "operation", "problem", "algorithm", "configuration", "chosen", "before (us)", "after (us)", "change (%)", "spread (%)"
        show(columns, rows, title=f"slower in {compared['after']} than in {compared['before']}", right=(5, 6, 7, 8))
    why = (f"95 % of {compared['peers']} peers measured in both differ by less" if compared["peers"] else
           "as given" if compared["spread"] != SPREAD else "the usual, since too few peers were measured in both")
    before, after = compared["before"], compared["after"]
    say("\n" * bool(rows) + f"{len(compared['slower'])} slower, {len(compared['faster'])} faster, {len(compared['wrong'])} wrong of "
        f"{compared['compared']} compared; {compared['only_before']} only in {before}, {compared['only_after']} only in {after}; "
        f"spread {100 * compared['spread']:.1f} %: {why}")


def _number(value, digits):
    return None if value is None else f"{value:.{digits}f}"
