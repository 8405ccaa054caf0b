"""How the benches' graphs are cut: ``python -m dnnkern bench graph --explain sm_90a``, for which nothing is compiled or run; ``--regret``,
which measures all plans of each cut."""
import json
import statistics

from dnnkern import _table

from .graph_build import planned_for


def show(cases, arch):
    """Print the `Explanation` of each case's graph for the largest device of an architecture."""
    import dnnkern.graph as cudnn
    with planned_for(cudnn.create_device_properties(arch)):
        for case in cases:
            graph, _ = case.graph(case.arrays("meta"))
            print(f"{graph.explain()}\n")


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
