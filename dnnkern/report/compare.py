"""Two sets of results, compared: what became slower by more than times differ where nothing has changed."""
import collections

from .rows import chosen, latest

SPREAD = 0.050
"""What the time of the same kernel differs from run to run: 95 % of the peers' times in bench/results that were measured again differ by
less. It counts where two sets have too few peers in common to see their own."""
LEAST = 0.01
ENOUGH = 20


def sides(paths_or_commits, read, all_rows) -> list:
    """The rows of A and of B: of a file, or of the rows of one commit.

    Parameters
    ----------
    paths_or_commits : two str
    read : function
        The rows of a path; None of what is no file.
    all_rows : function
        Rows of all files, asked where a commit is named.

    Raises
    ------
    ValueError
        What is named is neither.
    """
    found = []
    for name in paths_or_commits:
        rows = read(name)
        if rows is None:
            rows = [r for r in all_rows() if str(r["machine"].get("commit") or "").startswith(name.rstrip("+")) and len(name) >= 4]
            if not rows:
                known = collections.Counter(str(r["machine"].get("commit") or "")[:7] for r in all_rows())
                some = ", ".join(name for name, _ in known.most_common(6) if name)
                raise ValueError(f"report: --compare {name}: neither a file nor a commit of the rows; expected a file, or one of "
                                 f"{some or 'none'}{', ...' * (len(known) > 6)}")
        found.append(rows)
    return found


def compare(before, after, names=("A", "B"), spread=None) -> dict:
    """What B's rows are beside A's.

    An algorithm is slower if its time has grown by more than `spread` of it, and by more than the larger of the two interquartile ranges.
    A call is compared too where another algorithm is chosen: it is then named "before -> after".

    Parameters
    ----------
    before, after : list of dict
        Rows of measured algorithms.
    names : two str
    spread : float, optional
        Default: what 95 % of the peers' times differ by, whose code is the same; `SPREAD` where fewer than `ENOUGH` were measured in both.

    Returns
    -------
    dict
        spread, peers (how many it rests on), compared, slower, faster, wrong (was ok, is not), only_before (how many), only_after.

    Raises
    ------
    ValueError
        No algorithm was measured in both.
    """
    a, b = ({_key(r): r for r in latest(rows)} for rows in (before, after))
    shared = [key for key in a if key in b and not a[key]["is_peer"]]
    drift = sorted(abs(b[key]["time_us"] / a[key]["time_us"] - 1) for key in a
                   if key in b and a[key]["is_peer"] and a[key]["status"] == b[key]["status"] == "ok")
    peers = len(drift) if spread is None and len(drift) >= ENOUGH else 0
    if spread is None:
        spread = max(LEAST, drift[int(0.95 * (len(drift) - 1))]) if peers else SPREAD
    if not shared:
        raise ValueError(f"report: --compare {names[0]} {names[1]}: no algorithm was measured in both on one device; expected rows of the "
                         "same problems")
    calls = [{_key(r)[:3]: r for r in chosen(rows.values())} for rows in (a, b)]
    pairs = [(a[key], b[key], a[key]["algo"], a[key]["config"]) for key in shared]
    for problem, old in calls[0].items():
        new = calls[1].get(problem)
        if new and _key(new) != _key(old):
            pairs.append((old, new, *(old[name] if old[name] == new[name] else f"{old[name] or 'none'} -> {new[name] or 'none'}"
                                      for name in ("algo", "config"))))
    called = {id(r) for rows in calls for r in rows.values()}
    slower, faster, wrong = [], [], []
    for old, new, algo, config in pairs:
        row = {"device": new["machine"]["device"], "op": new["op"], "problem": new["problem"], "algo": algo, "config": config,
               "called": id(old) in called and id(new) in called, "before_us": old["time_us"], "after_us": new["time_us"]}
        if old["status"] == "ok" != new["status"]:
            wrong.append({**row, "status": new["status"]})
        elif old["status"] == new["status"] == "ok":
            row["change"] = new["time_us"] / old["time_us"] - 1
            noise = max(spread * old["time_us"], old.get("iqr_us") or 0.0, new.get("iqr_us") or 0.0)
            row["spread"] = noise / old["time_us"]
            if new["time_us"] - old["time_us"] > noise:
                slower.append(row)
            elif old["time_us"] - new["time_us"] > noise:
                faster.append(row)
    slower.sort(key=lambda r: -r["change"])
    faster.sort(key=lambda r: r["change"])
    mine = [{key for key, r in rows.items() if not r["is_peer"]} for rows in (a, b)]
    return {"before": names[0], "after": names[1], "spread": spread, "peers": peers, "compared": len(pairs), "slower": slower,
            "faster": faster, "wrong": wrong, "only_before": len(mine[0] - mine[1]), "only_after": len(mine[1] - mine[0])}


def _key(row):
    return row["machine"]["device"], row["op"], row["problem"], row["algo"], row["config"]
