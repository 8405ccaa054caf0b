"""Rows of measurements: tables of them, ratios, regret."""
from dnnkern import _table
from dnnkern.report.rows import geomean, regret, timed

HEAD = ("", "algorithm", "configuration", "time µs", "IQR %", "TFLOP/s", "GB/s", "roof %", "x peer", "host µs", "eager µs", "warm µs",
        "sustained µs", "mJ", "workspace", "notes")
RIGHT = range(3, len(HEAD) - 1)


def by_problem(rows) -> dict:
    """{problem: its rows}, in the order of their first appearance; with the operation in front where there are several."""
    groups, several = {}, len({row["op"] for row in rows}) > 1
    for row in rows:
        groups.setdefault(f"{row['op']} {row['problem']}" if several else row["problem"], []).append(row)
    return groups


def summary(rows, heuristic=False) -> list[str]:
    """Lines under the tables: ratios to the peer and, with `heuristic`, what the estimates cost."""
    groups = by_problem(rows)
    lines = []
    if heuristic:
        found = {}
        for problem, group in groups.items():
            found[problem] = regret(group)
            if found[problem] is not None:
                predicted, best = next(r for r in timed(group) if r["predicted"]), timed(group)[0]
                lines.append(f"regret  {found[problem]:.3f}  {problem}: estimate chose {_name(predicted)} "
                             f"(predicted {predicted['estimate_us']:.4g} µs, took {predicted['time_us']:.4g}), best {_name(best)} "
                             f"{best['time_us']:.4g} µs")
        if any(found.values()):
            values = [v for v in found.values() if v is not None]
            lines.append(f"regret of the estimates, geometric mean: {geomean(values):.3f} over {len(values)} problems, "
                         f"worst {max(values):.3f}")
    best = [timed(g)[0]["ratio"] for g in groups.values() if timed(g)]
    chosen = [r["ratio"] for r in rows if r["chosen"] and r["status"] == "ok"]
    for name, ratios in (("chosen", chosen), ("best", best)):
        if any(ratios):
            ratios = [r for r in ratios if r is not None]
            lines.append(f"{name} over peer (above 1 is faster), geometric mean: {geomean(ratios):.3f} over {len(ratios)} problems")
    failed = [r for r in rows if r["status"] != "ok"]
    lines += [f"{r['problem']}: {_name(r)}: {r['status']}" for r in failed]
    return lines


def _name(row):
    return row["algo"] + (f"[{row['config']}]" if row["config"] else "")


def mark(row) -> str:
    """What was chosen is marked with *, what the estimates alone would choose with ~."""
    return "peer" if row["is_peer"] else ("*" if row["chosen"] else "") + ("~" if row["predicted"] else "")


def roof_lines(roofs) -> list[str]:
    """The measured rates, a line each."""
    return [f"roof {name}: {rate / 1e9:.0f} GB/s" if name == "copy" else f"roof {name}: {rate / 1e12:.1f} TFLOP/s"
            for name, rate in roofs.items()]


def cells(row) -> list[str]:
    """A row's texts under `HEAD`."""
    last = [_table.bytes_text(row["workspace"] or None) or "", ", ".join([",".join(row["notes"]), *row.get("marks", ())]).strip(", ")]
    if row["status"] != "ok":
        word = row["status"].split(":")[0]
        return [mark(row), row["algo"], row["config"], word] + [""] * 10 + last
    return [mark(row), row["algo"], row["config"], f"{row['time_us']:.2f}", f"{100 * row['iqr_us'] / row['time_us']:.1f}",
            _number(row["tflops"], 1), _number(row["gbs"], 0), _number(row["roof"], 1, 100), _number(row["ratio"], 3),
            _number(row["host_us"], 1), _number(row.get("eager_us"), 1), _number(row.get("warm_us"), 2),
            _number(row.get("sustained_us"), 2), _number(row.get("joules"), 2, 1e3), *last]


def _number(value, digits, scale=1):
    return "" if value is None else f"{value * scale:.{digits}f}"


def show(title, rows):
    """Print a problem's table."""
    styles = {k: "red" if r["status"] != "ok" else "dim" if r["is_peer"] else "bold" for k, r in enumerate(rows)
              if r["status"] != "ok" or r["is_peer"] or r["chosen"]}
    _table.show(HEAD, [cells(r) for r in rows], title, right=RIGHT, styles=styles)


def markdown(rows) -> str:
    """One line a problem: what was chosen, the best, and the peer, for a results page."""
    lines = ["| problem | chosen | time µs | TFLOP/s | GB/s | roof % | x peer | best | x peer | regret |",
             "|---|---|--:|--:|--:|--:|--:|---|--:|--:|"]
    for problem, group in by_problem(rows).items():
        ours = timed(group)
        if not ours:
            continue
        best, chosen = ours[0], next((r for r in ours if r["chosen"]), None)
        shown = chosen or best
        lines.append("| " + " | ".join([
            problem, _name(chosen) if chosen else "", f"{shown['time_us']:.2f}", _number(shown["tflops"], 1), _number(shown["gbs"], 0),
            _number(shown["roof"], 1, 100), _number(shown["ratio"], 3), "the same" if best is chosen else _name(best),
            _number(best["ratio"], 3), _number(regret(group), 3)]) + " |")
    return "\n".join(lines)
