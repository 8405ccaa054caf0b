"""Two records of `machine_code.py` compared: how many kernels are identical, a table of those that are not, and the difference of one."""
import collections
import difflib
import sys

MEASURES = "instructions", "registers", "spilled", "stack", "shared"


def compare(old, new, show=None, markdown=False, file=None):
    """Print what differs; the exit status, 0 if nothing does."""
    file = file or sys.stdout
    for name in ("archs", "only", "versions", "made_by"):
        if old[name] != new[name]:
            print(f"the records' {name} differ: {old[name]} and {new[name]}", file=file)
    both = [name for name in old["rows"] if name in new["rows"]]
    changed = [name for name in both if old["rows"][name]["code"] != new["rows"][name]["code"]]
    moved = [name for name in both if old["rows"][name]["launch"] != new["rows"][name]["launch"]]
    alone = [[name for name in one["rows"] if name not in other["rows"]] for one, other in ((old, new), (new, old))]
    if show is not None:
        return _show(old, new, show, [*changed, *moved], file)
    if changed or moved:
        _table(old, new, changed, moved, markdown, file)
    for one, names, word in ((old, alone[0], "old"), (new, alone[1], "new")):
        for of, count in sorted(collections.Counter(one["rows"][name]["of"] for name in names).items()):
            print(f"only in the {word} record: {count} launches of {of}", file=file)
    for line in failures(new):
        print(line, file=file)
    kernels = [_kernels(old, new, names) for names in (set(both) - set(changed), changed)]
    lost = [{one["rows"][name]["code"] for name in names} for one, names in ((old, alone[0]), (new, alone[1]))]
    print(f"{_title(old)} -> {_title(new)}: {len(kernels[0])} kernels identical, {len(kernels[1])} differ ({len(changed)} launches), "
          f"{len(alone[0])} launches only in the old record and {len(alone[1])} only in the new one, which share {len(lost[0] & lost[1])} "
          f"codes; {len(moved)} are launched otherwise", file=file)
    return int(bool(changed or moved or alone[0] or alone[1]))


def failures(record):
    """What could not be planned or compiled, in words: a line for each algorithm and message."""
    found = collections.Counter((row["of"], record["codes"][row["code"]]["text"]) for row in record["rows"].values())
    return [f"{count} launches of {of} {text}" for (of, text), count in sorted(found.items()) if text.startswith("failed: ")]


def _title(record):
    return record["commit"][:10] + " with changes" * record["dirty"]


def _kernels(old, new, names):
    """{(the old kernel, the new one): a launch} of launches: some have the same kernel."""
    return {(old["rows"][name]["key"], new["rows"][name]["key"]): name for name in names}


def _values(record, name):
    """What a launch's kernel measures, dynamic shared memory with the static."""
    row = record["rows"][name]
    found = [record["codes"][row["code"]][measure] for measure in MEASURES]
    found[-1] += row["shared"]
    return found


def _table(old, new, changed, moved, markdown, file):
    groups = collections.defaultdict(lambda: ([], []))
    for k, names in enumerate((changed, moved)):
        for name in names:
            groups[old["rows"][name]["of"], old["rows"][name]["arch"]][k].append(name)
    rows = []
    for (of, arch), (codes, launches) in groups.items():
        pairs = {name: (_values(old, name), _values(new, name)) for name in _kernels(old, new, codes or launches).values()}
        # spilled registers are the worst that can happen, then a stack, then registers; instructions by their share
        grown = {name: [b[k] - a[k] for k in (2, 3, 1)] + [b[0] / max(a[0], 1)] for name, (a, b) in pairs.items()}
        worst = max(grown, key=grown.get)
        sums = [[sum(pair[side][k] for pair in pairs.values()) for side in (0, 1)] for k in range(len(MEASURES))]
        sums[1] = [pairs[worst][side][1] for side in (0, 1)]
        cells = [str(a) if a == b else f"{a} -> {b}" for a, b in sums]
        rows.append((grown[worst], (of, arch, len(codes) and len(pairs), *cells, len(launches), worst)))
    rows = [row for _, row in sorted(rows, key=lambda row: row[0], reverse=True)]
    columns = "algorithm", "arch", "kernels", *MEASURES, "launched otherwise", "worst"
    if markdown:
        lines = [columns, ["---"] * len(columns), *rows]
        print("\n".join(f"| {' | '.join(map(str, line))} |" for line in lines), end="\n\n", file=file)
    else:
        from dnnkern._table import show
        show(columns, rows, file=file)


def _show(old, new, wanted, names, file):
    name = next((name for name in sorted(names) if wanted in name), None)
    if name is None:
        print(f"no kernel that differs has {wanted!r} in its id", file=file)
        return 1
    lines = []
    for record in (old, new):
        row = record["rows"][name]
        code = record["codes"][row["code"]]
        lines.append([f"kernel {row['kernel']}", *row["launch"].split("; "), *(f"{measure} {code[measure]}" for measure in MEASURES),
                      *code["text"].split("\n")])
    print("\n".join(difflib.unified_diff(*lines, f"{_title(old)} {name}", f"{_title(new)} {name}", lineterm="")), file=file)
    return 1
