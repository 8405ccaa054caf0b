"""What a page draws, from rows of results: plain data that its script reads."""
import collections
import datetime
import os
import statistics

from .. import __version__
from .rows import FIELDS, bound, chosen, date, dtype, family, latest, records, regret, timed

COLUMNS = ("device", "family", "op", "problem", "dtype", "algo", "config", "kind", "status", "unit", "bound", "commit", "date",
           "notes")
"""Columns of texts; each is a list of its texts and one of their indices."""
MEASURES = ("time_us", "iqr_us", "tflops", "gbs", "roof", "ratio", "host_us", "estimate_us", "workspace")
WAYS = "ours", "inductor", "eager"
PROGRAMS = "compile", "torch"
HOSTS = {"us": "µs", "ms": "ms"}
UNKNOWN = "other"


def gather(paths) -> tuple:
    """(all rows, [(path, rows, rows that the page can draw)]) of several files.

    Raises
    ------
    ValueError
        As `rows.records`; or a file is empty, or none has a row that the page can draw.
    """
    rows, files = [], []
    for path in paths:
        found = [row for row in records([path]) if row]
        if not found:
            raise ValueError(f"{path}: no rows of results: the file is empty; expected JSON lines of `dnnkern bench OP --json FILE`")
        files.append((str(path), len(found), sum(map(is_drawn, found))))
        rows += found
    if not any(drawn for *_, drawn in files):
        keys = ", ".join(sorted(map(str, rows[0]))[:6]) if rows else "nothing"
        raise ValueError(f"{files[0][0] if files else 'no file'}: no rows of results: got objects with {keys}; expected JSON lines of "
                         "`dnnkern bench OP --json FILE`")
    return rows, files


def is_drawn(row) -> bool:
    """Whether the page has a chart for a row."""
    return FIELDS <= row.keys() or _has_machine(row) and (_is_program(row) or _is_graph(row) or "overhead" in row or bool(_host_part(row)))


def _has_machine(row):
    return isinstance(row.get("machine"), dict) and isinstance(row["machine"].get("device"), str)


def _is_program(row):
    return (row.get("op") in PROGRAMS and row.get("status") == "ok" and isinstance(row.get("problem"), str)
            and all(_is_time(row.get(f"{way}_ms")) for way in ("ours", "eager")))


def _is_graph(row):
    return (row.get("op") == "graph" and row.get("status") == "ok" and isinstance(row.get("problem"), str)
            and _is_time(row.get("graph_us")))


def _host_part(row):
    """(what, number, unit) of a row of `bench graph` that is of the host, or None."""
    if row.get("op") == "graph" and isinstance(row.get("what"), str):
        return next(((row["what"], row[key], unit) for key, unit in HOSTS.items() if _is_time(row.get(key))), None)


def _is_time(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf")


def short(value, digits=4):
    """A number with few digits, as the page needs it; None of None."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded == int(rounded) else rounded


def commit(row) -> str:
    """The commit of a row, seven digits of it; a "+" after it says that the tree had changes."""
    text = row["machine"].get("commit")
    if not isinstance(text, str) or not text:
        return "unnamed"
    return text[:7] + "+" * text.endswith("+")


def page_data(rows, files=(), compared=None) -> dict:
    """What the page draws.

    Parameters
    ----------
    rows : list of dict
        Of `gather`.
    files : list
        Of `gather`.
    compared : dict, optional
        Of `compare.compare`.
    """
    measured = [row for row in rows if FIELDS <= row.keys()]
    others = [row for row in rows if not FIELDS <= row.keys() and is_drawn(row)]
    kept = latest(measured)
    found = {"dnnkern": __version__, "made": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="minutes"),
             "files": [{"file": os.path.basename(path), "rows": count, "drawn": drawn} for path, count, drawn in files],
             "devices": _devices(measured, others), "rows": _columns(kept), "history": _history(measured),
             "programs": _programs(others), "graphs": _graphs(others), "host": _hosts(others)}
    if compared:
        found["compared"] = compared
    return found


def _devices(measured, others):
    """Of each device what ran there, the one with most rows first."""
    groups = collections.defaultdict(list)
    for row in [*measured, *others]:
        groups[row["machine"]["device"]].append(row)
    found = []
    for name, group in sorted(groups.items(), key=lambda item: (-sum(FIELDS <= r.keys() for r in item[1]), -len(item[1]))):
        dates = sorted(date(r) for r in group)
        newest = max(group, key=date)["machine"]
        commits = {}
        for row in sorted(group, key=date):
            commits.setdefault(commit(row), date(row)[:10])
        rates = collections.defaultdict(list)
        for row in group:
            for unit, rate in (row.get("roofs") or {}).items():
                rates[unit].append(rate)
        clocks, versions = newest.get("clocks") or {}, newest.get("versions") or {}
        found.append({"name": name, "arch": newest.get("arch"), "sms": newest.get("sms"), "driver": clocks.get("driver_version"),
                      "power_limit": clocks.get("power.limit"), "clock": clocks.get("clocks.max.sm"),
                      "versions": {"dnnkern": versions.get("dnnkern"), "PyTorch": newest.get("torch"), **{
                          k: versions[k] for k in ("numba", "numba-cuda", "nvidia-nvjitlink") if versions.get(k)}},
                      "commits": list(commits.items()), "first": dates[0], "last": dates[-1],
                      "roofs": {unit: short(statistics.median(values)) for unit, values in sorted(rates.items())},
                      "rows": sum(FIELDS <= r.keys() for r in group), "other_rows": sum(not FIELDS <= r.keys() for r in group)})
    return found


def unit(row) -> str | None:
    """Which roof of the arithmetic a problem has: its dtype's tensor cores where the run measured them, else those of TF32, or float32's
    multiply-adds."""
    rates = row.get("roofs") or {}
    name = dtype(row["problem"])
    return next((each for each in (name, "tf32", "fma") if each in rates), None)


def _bound(row):
    """`rows.bound`; an empty text where the row lacks what that takes."""
    return bound(row) if row["roof"] and row.get("gbs") and (row.get("roofs") or {}).get("copy") else ""


def run_of(row) -> tuple:
    """What one run of a problem has in common."""
    return row["machine"]["device"], row["op"], row["problem"], date(row)


def regrets(measured) -> dict:
    """{(device, operation, problem): (regret, row that the estimates chose, best row)} of the latest run of each that has them."""
    runs = collections.defaultdict(list)
    for row in measured:
        if row["status"] == "ok":
            runs[run_of(row)].append(row)
    found = {}
    for key, group in sorted(runs.items(), key=lambda item: item[0][-1]):
        if (value := regret(group)) is not None:
            found[key[:3]] = value, next(r for r in timed(group) if r.get("predicted")), timed(group)[0]
    return found


def _columns(kept):
    """The rows of algorithms, by column."""
    kept = sorted(kept, key=lambda r: (r["machine"]["device"], r["op"], r["problem"], r["is_peer"], r["time_us"] or 0.0))
    dispatched, lost = {id(r) for r in chosen(kept)}, regrets(kept)
    texts = {name: [] for name in COLUMNS}
    numbers = {name: [short(row.get(name)) for row in kept] for name in MEASURES}
    numbers["regret"] = []
    for row in kept:
        key = row["machine"]["device"], row["op"], row["problem"]
        value, predicted, _ = lost.get(key, (None, None, None))
        is_chosen = id(row) in dispatched
        numbers["regret"].append(short(value) if predicted is row else None)
        kind = "peer" if row["is_peer"] else "*" * is_chosen + "~" * (predicted is row)
        for name, text in zip(COLUMNS, (key[0], family(row["op"]) or UNKNOWN, row["op"], row["problem"], dtype(row["problem"]) or UNKNOWN,
                                        row["algo"], row["config"], kind, row["status"], unit(row) or "", _bound(row), commit(row),
                                        date(row)[:16], ", ".join(map(str, row.get("notes") or ())))):
            texts[name].append(text)
    return {"count": len(kept), **{name: _coded(values) for name, values in texts.items()}, **numbers}


def _coded(values):
    """Texts as a list of the different ones, and their indices."""
    known = {}
    codes = [known.setdefault(v, len(known)) for v in values]
    return {"texts": list(known), "codes": codes}


def _history(measured):
    """Of each problem whose chosen algorithm was measured in several runs: (device, operation, problem, runs by date), a run as (date,
    commit, algorithm, configuration, microseconds, ratio). Of one commit's runs the last counts."""
    found = collections.defaultdict(dict)
    for row in sorted(measured, key=date):
        if row["chosen"] and not row["is_peer"] and row["status"] == "ok":
            runs = found[row["machine"]["device"], row["op"], row["problem"]]
            runs.pop(commit(row), None)
            runs[commit(row)] = [date(row)[:16], commit(row), row["algo"], row["config"], short(row["time_us"], 5), short(row["ratio"])]
    return [{"device": device, "op": op, "problem": problem, "family": family(op) or UNKNOWN, "dtype": dtype(problem) or UNKNOWN,
             "runs": list(runs.values())} for (device, op, problem), runs in found.items() if len(runs) > 1]


def _newest(rows, key):
    """The newest row of each key, in the order of their first appearance."""
    found = {}
    for row in rows:
        name = key(row)
        if name not in found or date(found[name]) <= date(row):
            found[name] = row
    return list(found.values())


def _where(row):
    return {"device": row["machine"]["device"], "commit": commit(row), "date": date(row)[:16]}


def _programs(others):
    """Whole programs: the newest row of each."""
    found = []
    for row in _newest(filter(_is_program, others), lambda r: (r["machine"]["device"], r["op"], r["problem"], r.get("mode"), r.get("ops"))):
        how = row.get("mode") or (row.get("ops") if row["op"] == "torch" else None)
        times = {way: short(row[f"{way}_ms"]) for way in WAYS if _is_time(row.get(f"{way}_ms"))}
        found.append({**_where(row), "way": "torch.compile backend" if row["op"] == "compile" else "overrides", "how": how or "",
                      "problem": row["problem"], "dtype": dtype(row["problem"]) or UNKNOWN, **times})
    return found


def _graphs(others):
    """Operation graphs: the newest row of each."""
    return [{**_where(row), "problem": row["problem"], "dtype": dtype(row["problem"]) or UNKNOWN, "plan": str(row.get("plan") or ""),
             **{name.replace(".", "_"): short(row[f"{name}_us"]) for name in ("graph", "plain", "torch", "torch.compile")
                if _is_time(row.get(f"{name}_us"))}}
            for row in _newest(filter(_is_graph, others), lambda r: (r["machine"]["device"], r["problem"]))]


def _hosts(others):
    """Times of the host: (device, what, number, unit), the newest of each."""
    found = {}
    for row in sorted(others, key=date):
        if part := _host_part(row):
            _note_host(found, row, *part)
        for table in row.get("overhead") or ():
            for what, value in (table[1].items() if isinstance(table, list) and len(table) == 2 and isinstance(table[1], dict) else ()):
                if isinstance(value, list) and value:
                    value, more = value[0], ", ".join(map(str, value[1:]))
                else:
                    more = ""
                if _is_time(value):
                    _note_host(found, row, what, value, table[0], more)
    return list(found.values())


def _note_host(found, row, what, value, unit_name, more=""):
    microseconds = value * {"s": 1e6, "ms": 1e3}.get(unit_name, 1.0)
    found[row["machine"]["device"], what] = {**_where(row), "what": what, "us": short(microseconds), "more": more}
