"""Tables of the site that are made when it is built: of the rows of bench/results, and of the algorithms' own declarations."""
import ast
import collections
import functools
import math
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(pathlib.Path(__file__).parent)]
import site_drawings  # noqa: E402
from bench import charts, code, report, table  # noqa: E402

from dnnkern import dispatch  # noqa: E402
from dnnkern.report import rows as measured  # noqa: E402

CARDS = {"sm_75": ("Turing", "T4, RTX 20"), "sm_80": ("Ampere", "A100"), "sm_89": ("Ada", "L4, L40S, RTX 40"),
         "sm_90a": ("Hopper", "H100, H200"), "sm_100a": ("Blackwell", "B200"), "sm_120a": ("Blackwell", "RTX 50")}
PROBLEM_HEAD = "problem", "chosen", "µs", "rate", "of the roof", "x peer", "peer", "in a loop, µs", "marks", "measured"
GRAPH_GROUPS = {"pointwise": "pointwise", "product": "products", "norm": "normalizations", "norm_backward": "normalizations",
                "reduce": "reductions", "shape": "shapes", "attention": "attention", "attention_fp8": "attention", "rope": "attention",
                "quantize": "block scaling", "moe": "experts, random numbers", "resample": "others"}


def markdown(head, rows, right=()):
    """A table; columns whose number is in `right` have numbers."""
    lines = [head, ["--:" if k in right else "---" for k in range(len(head))], *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


@functools.cache
def rows():
    """Rows of algorithms on problems, of all files."""
    return measured.read(measured.files(report.RESULTS))


@functools.cache
def records():
    """All JSON objects with a machine, whatever was measured."""
    return [r for r in measured.records(measured.files(report.RESULTS)) if isinstance(r.get("machine"), dict)]


def dates(found):
    """When they were measured."""
    days = sorted({r["machine"]["date"][:10] for r in found if r["machine"].get("date")})
    return "" if not days else f'<span class="nowrap">{days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"}</span>'


def devices():
    """What the rows of bench/results were measured on."""
    groups = collections.defaultdict(list)
    for row in records():
        if str(row["machine"].get("device", "")).startswith("NVIDIA"):
            groups[row["machine"]["device"]].append(row)
    lines = []
    for name, found in sorted(groups.items(), key=lambda item: -len(item[1])):
        machines = [r["machine"] for r in found]
        clocks = [m["clocks"] for m in machines if isinstance(m.get("clocks"), dict)]
        drivers = sorted({c["driver_version"] for c in clocks if "driver_version" in c})
        torches = sorted({m["torch"] for m in machines if str(m.get("torch", "")).count(".") == 2})
        lines.append((name, len(found), dates(found), ", ".join(drivers), ", ".join(torches)))
    return markdown(("device", "rows", "measured", "driver", "PyTorch beside it"), lines, {1})


def compiled():
    """{architecture: its number} of those that the tests compile for, in tests/representative.py."""
    for node in ast.parse((ROOT / "tests" / "representative.py").read_text()).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "DEVICES":
            return {arch: 10 * major + minor for arch, ((major, minor), *_) in ast.literal_eval(node.value).items()}
    raise LookupError("tests/representative.py: no DEVICES")


def architectures():
    """Of each architecture that the tests compile for: how many algorithms it can run, and whether there are measurements."""
    every = dispatch.algorithms()
    measured = collections.defaultdict(set)
    for row in records():
        if str(row["machine"].get("device", "")).startswith("NVIDIA"):
            measured[row["machine"].get("arch", "sm_90a")].add(row["machine"]["device"])
    lines = []
    for arch, capability in compiled().items():
        able = sum(a.arch == arch or a.arch.endswith("+") and int(a.arch[3:-1]) <= capability for a in every)
        names = ", ".join(sorted(measured.get(arch, ())))
        state = f"**measured**: {names}" if names else "compiled only"
        lines.append((f"`{arch.rstrip('a')}`", *CARDS[arch], state, f"{able} of {len(every)}"))
    return markdown(("architecture", "", "such as", "state", "algorithms for it"), lines, {4})


@functools.cache
def _of_device():
    return charts.on_device(rows())


def families():
    """The charts' numbers: speed over the fastest peer, and shares of the machine's rates."""
    found = _of_device()
    shares = {(name, by): (quarter, text) for name, by, quarter, text in charts.roof_lines(found)}
    lines = []
    for name, quarter, _ in charts.ratio_lines(found):
        own = [r for r in measured.chosen(found) if measured.family(r["op"]) == name and r["ratio"]]
        cells = [f"{100 * shares[name, by][0][1]:.0f} %" if (name, by) in shares else "" for by in ("memory", "arithmetic")]
        faster = sum(r["ratio"] > 1 for r in own)
        lines.append((name, len(own), f"{quarter[1]:.2f}", f"{quarter[0]:.2f} to {quarter[2]:.2f}", f"{min(r['ratio'] for r in own):.2f}",
                      f"{faster} of {len(own)}", *cells, dates(own)))
    head = ("family", "problems", "x peer, median", "middle half", "least", "faster in", "of the copy rate", "of the units' rate",
            "measured")
    return f"{found[0]['machine']['device']}:\n\n" + markdown(head, lines, set(range(1, 8)))


def ratio_chart():
    """Speed over the fastest peer, by family."""
    lines = [(name, quarter, text, "a") for name, quarter, text in charts.ratio_lines(_of_device())]
    return site_drawings.chart("Speed over the fastest of cuDNN, cuBLAS and PyTorch", lines, 0.45, 11,
                               [(0.5, "half"), (1, "as fast"), (2, "2x"), (4, "4x"), (8, "8x")], math.log, 1)


def roof_chart():
    """Shares of the rates of the machine, by family."""
    lines = [(f"{name}, {by}", tuple(100 * q for q in quarter), text, "a" if by == "memory" else "b")
             for name, by, quarter, text in charts.roof_lines(_of_device())]
    return site_drawings.chart("Share of the rate that bounds it, as measured in the same run", lines, 0, 118,
                               [(t, f"{t} %") for t in range(0, 101, 25)], mark=100)


def programs_chart():
    """Times of steps; PyTorch's as it is are 1."""
    lines = []
    for row in charts.programs(list(measured.records(measured.files(report.RESULTS, "*compile*")))):
        for way, kind in zip(charts.WAYS, "abc"):
            share = row[f"{way}_ms"] / row["eager_ms"]
            lines.append((charts.PROGRAMS[row["problem"]] if way == "ours" else "", (share,) * 3,
                          f"{row[f'{way}_ms']:.3g} ms  {charts.WAYS[way]}", kind))
    return site_drawings.chart("Time of a step; as PyTorch is, it is 1", lines, 0, 1, [(t / 4, f"{t / 4:g}") for t in range(5)], dot=False)


def problems(found=None):
    """Every problem of every family, folded; of the charts' device, and of others that the record has. Of rows found, or of all."""
    found = rows() if found is None else found
    first = charts.on_device(found)[0]["machine"]["device"]
    others = dict.fromkeys(r["machine"]["device"] for r in found if r.get("set") and r["machine"]["device"] != first)
    return "\n\n".join(f"**{device}**\n\n{_problems(charts.on_device(found, device))}" for device in (first, *others))


def _problems(found):
    best = {}
    for row in found:
        if row["is_peer"] and row["status"] == "ok":
            key = row["op"], row["problem"]
            best[key] = min(best.get(key, row), row, key=lambda r: r["time_us"])
    groups = collections.defaultdict(list)
    for row in measured.chosen(found):
        groups[measured.family(row["op"])].append(row)
    parts = []
    for name in measured.FAMILIES:
        lines = []
        for row in sorted(groups.get(name, ()), key=lambda r: r["op"]):
            peer = best.get((row["op"], row["problem"]))
            rate = f"{row['tflops']:.4g} TFLOP/s" if measured.bound(row) == "arithmetic" else f"{row['gbs']:.4g} GB/s"
            lines.append((f"`{row['op']}` {row['problem']}", f"`{row['algo']}`", f"{row['time_us']:.4g}", rate,
                          f"{100 * row['roof']:.0f} %" if row["roof"] else "", f"{row['ratio']:.2f}" if row["ratio"] else "",
                          peer["algo"] if peer and row["ratio"] else "", f"{row['eager_us']:.4g}" if row.get("eager_us") else "",
                          ", ".join([*row.get("marks", ()), *["stale"] * code.is_stale(row)]), dates([row])))
        if lines:
            text = markdown(PROBLEM_HEAD, lines, {2, 3, 4, 5, 7})
            body = "\n".join(f"    {line}" for line in text.splitlines())
            parts.append(f'??? note "{name[0].upper()}{name[1:]}: {len(lines)} problems"\n\n{body}')
    return "\n\n".join(parts)


def graph_names():
    """The methods of graphs and of their tensors, each with its entry in the reference."""
    from dnnkern.graph import pygraph, tensor
    from dnnkern.graph.ops import OPERATIONS
    groups = collections.defaultdict(list)
    for name, operation in OPERATIONS.items():
        groups[GRAPH_GROUPS[operation.arguments.__module__.rsplit(".", 1)[1]]].append(name)
    groups["tensors, plans, execution"] = sorted(n for n in dir(pygraph) if not n.startswith("_") and n not in OPERATIONS
                                                 and callable(getattr(pygraph, n)))
    lines = [(kind, ", ".join(f"[`{name}`][dnnkern.graph.pygraph.{name}]" for name in names)) for kind, names in groups.items()]
    named = [n for n in dir(tensor) if not n.startswith("_") and callable(getattr(tensor, n))]
    lines.append(("methods of a tensor", ", ".join(f"[`{name}`][dnnkern.graph.tensor.{name}]" for name in named)))
    return markdown(("group", "methods"), lines)


def programs():
    """Steps of PyTorch's programs: this library's backend, Inductor, PyTorch as it is."""
    lines = []
    for row in charts.programs(list(measured.records(measured.files(report.RESULTS, "*compile*")))):
        lines.append((charts.PROGRAMS[row["problem"]], *(f"{row[f'{way}_ms']:.3g}" for way in charts.WAYS), row["machine"]["device"],
                      row["machine"]["date"][:10]))
    return markdown(("program", *(f"{name}, ms" for name in charts.WAYS.values()), "device", "measured"), lines, {1, 2, 3})


def progression(family):
    """Of each measured operation of a family the table of its algorithms; None if there is none of several."""
    ops = [op for op in dict.fromkeys(a.op for a in dispatch.algorithms()) if _family(op) == family]
    found = [(op, [r for r in _of_device() if r["op"] == op and not r["is_peer"] and r["time_us"] is not None]) for op in ops]
    parts = [f"**`{op}`**, {dates(own)}\n\n{algorithms(op)}" for op, own in found if len({r["algo"] for r in own}) > 1]
    if not parts:
        return None
    device = _of_device()[0]["machine"]["device"]
    first = (f"How far apart the algorithms are, on an {device}: time over the fastest of each problem. Means are over the problems "
             "on which an algorithm was measured, which are not the same for all.")
    return "\n\n".join((first, *parts))


def _family(op):
    return next(a.source for a in dispatch.algorithms(op)).split("/")[1]


def algorithms(op):
    """The geometric means of an operation's algorithms: time over the best of each problem."""
    found = [r for r in _of_device() if r["op"] == op]
    times = collections.defaultdict(list)
    for group in table.by_problem(found).values():
        ours = measured.timed(group)
        for row in {r["algo"]: r for r in reversed(ours)}.values():
            times[row["algo"]].append(row["time_us"] / ours[0]["time_us"])
    lines = [(f"`{name}`", len(values), f"{measured.geomean(values):.2f}", f"{min(values):.2f} to {max(values):.2f}")
             for name, values in sorted(times.items(), key=lambda item: -measured.geomean(item[1]))]
    return markdown(("algorithm", "problems", "time over the best, geometric mean", "from, to"), lines, {1, 2})
