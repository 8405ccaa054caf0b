"""How the benches' graphs are cut: ``python -m dnnkern bench graph --explain sm_90a``, for which nothing is compiled or run; ``--regret``,
which measures all plans of each cut. ``python -m bench.graph_cuts`` prints docs/graph-cuts.md, in the simulator or on a GPU."""
import json
import statistics
import sys

from dnnkern import _table

from .graph_build import planned_for


def explanations(cases, arch):
    """[(case, the `Explanation` of its graph for the largest device of an architecture)]"""
    import dnnkern.graph as cudnn
    with planned_for(cudnn.create_device_properties(arch)):
        return [(case, case.graph(case.arrays("meta"))[0].explain()) for case in cases]


def show(cases, arch):
    """Print them."""
    for _, explanation in explanations(cases, arch):
        print(f"{explanation}\n")


HEAD = """# Cuts of the benches' graphs

What `explain()` says of them for an H200, less what is predicted: the kernels that the estimates choose, and the bytes that this and
the other cuts move. `python -m dnnkern bench graph --explain sm_90a` prints all of it, and needs no GPU; `python -m bench.graph_cuts`
prints this page. Nodes are named by their operation and number; `|` is between kernels.
"""


def page(cases, arch="sm_90a"):
    """docs/graph-cuts.md."""
    text = [HEAD]
    for case, explanation in explanations(cases, arch):
        text += [f"\n## {case}\n", "| nodes | operation | algorithm |", "|---|---|---|"]
        text += [f"| {' + '.join(part.nodes)} | {part.op} | {part.algorithm} |" for part in explanation.parts]
        if len(explanation.cuts) == 1:
            continue
        text += ["\n| cut | kernels | moves |", "|---|--:|--:|"]
        text += [f"| {cut.text.replace('|', chr(92) + '|')}{' (chosen)' * cut.chosen} | {cut.parts} | {_table.bytes_text(cut.bytes)} |"
                 for cut in explanation.cuts]
    return "\n".join(text) + "\n"


def regret(case, arrays, handle, where):
    """What `autotune` measures of a case's graph, of all plans that mode B has, on one set of arrays, as fields of a row: the time of the
    plan that the estimates choose over that of the fastest; of each cut what its steps move and its fastest plan's time."""
    import torch

    import dnnkern.graph as cudnn
    graph, given = case.graph(arrays, handle)
    graph.create_execution_plans([cudnn.heur_mode.B])
    graph.build_plans(cudnn.build_plan_policy.ALL)
    workspace = torch.empty(graph.get_autotune_workspace_size(), dtype=torch.uint8, device=where)
    chosen = graph._engines.estimated().record
    perfs = graph.autotune({t: arrays[name] for t, name in given.items()}, workspace, handle)
    mine, fastest = next(perf for perf in perfs if json.loads(perf.config) == chosen), {}
    for perf in perfs:  # the fastest first
        if perf.status == "ok":
            fastest.setdefault(json.loads(perf.config)["cut"], 1e3 * perf.time_ms)
    return {"regret": mine.time_ms / perfs[0].time_ms, "estimated": mine.algo, "best": perfs[0].algo,
            "plans": [[perf.algo, 1e3 * perf.time_ms if perf.status == "ok" else perf.status] for perf in perfs],
            "cuts": [[cut.text, cut.bytes, fastest[cut.number]] for cut in graph._engines.cuts if cut.number in fastest]}


def show_regrets(rows):
    """Print what `regret` found."""
    if not rows:
        return
    print()
    mean = statistics.geometric_mean(row["regret"] for row in rows)
    _table.show(("graph", "regret", "the estimates' choice", "fastest", "of"),
                [(row["problem"], f"{row['regret']:.3f}", row["estimated"], row["best"], str(len(row["plans"]))) for row in rows],
                title=f"regret: time of the plan that the estimates choose over the fastest's; geometric mean {mean:.3f}")
    for row in rows:
        print()
        _table.show(("cut", "moves", "µs"), [(text, _table.bytes_text(moved), f"{us:.2f}") for text, moved, us in row["cuts"]],
                    title=f"{row['problem']}: the fastest plan of each cut")


def all_cases():
    """Of every part of the bench, bfloat16."""
    from .graph import PARTS, cases
    return [case for part in PARTS[:-2] for case in cases(part, ["bfloat16"])]


if __name__ == "__main__":
    sys.stdout.write(page(all_cases()))
