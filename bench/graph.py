"""Operation graphs beside our own plain kernels and PyTorch: ``python -m dnnkern bench graph``.

A case is an anchor, a product or a convolution, and the pointwise functions after it, or these alone. A graph of it is timed only after its
result agreed with PyTorch's in float32. Beside the times are what the host spends on a call, and how long a graph takes to build.
"""
import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dnnkern import _table, dispatch
from dnnkern.device import HOST_MEMORY, SIMULATED
from dnnkern.host.dtypes import ROUNDOFF
from dnnkern.host.paths import plain as plain_data
from dnnkern.host.timing import ROUNDS, Clock, Contender, host_seconds, race

from . import graph_columns, graph_cuts, graph_product_rows, graph_rows, graph_swiglu
from .graph_attention_fp8 import attention_fp8_cases
from .graph_case import Case
from .graph_genstats import genstats_cases
from .graph_norm import norm_cases
from .graph_quantized import quantized_cases
from .graph_wgrad import wgrad_cases
from .machine import machine
from .score_mod import score_mod_cases

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("matmul", "swiglu", "product_rows", "conv", "pointwise", "reduction", "norm", "genstats", "wgrad", "quantized", "attention_fp8",
         "score_mod", "host", "build")
MOST_SETS = 16


def _chains(shape, operand):
    """Of 3, 6 and 10 functions on two and three arrays of the shape, and one that broadcasts to it."""
    array = "x".join(map(str, shape))
    return [chain.format(o=operand, a=array) for chain in (
        "mul@{o} add@{a} relu", "mul@{o} add@{a} gelu mul@0.5 add@{a} sigmoid",
        "mul@{o} add@{a} relu mul@{a} add@0.5 swish mul@0.25 add@{a} abs sqrt")]


def cases(part, dtypes, small=False):
    """The cases of a part."""
    if part == "reduction":
        return graph_rows.cases(dtypes, small) + graph_columns.cases(dtypes, small)
    if part == "swiglu":
        return graph_swiglu.cases(dtypes, small)
    if part == "product_rows":
        return graph_product_rows.cases(dtypes, small)
    if part == "norm":
        return norm_cases(dtypes, small)
    if part == "genstats":
        return genstats_cases(dtypes, small)
    if part == "wgrad":
        return wgrad_cases(dtypes, small)
    if part == "quantized":
        return quantized_cases(dtypes, small)
    if part == "attention_fp8":
        return attention_fp8_cases(dtypes, small)
    if part == "matmul":
        sizes = [(64, 48, 40), (8, 96, 64)] if small else [(4096, 4096, 4096), (8192, 1024, 4096), (8192, 4096, 1024), (32, 12288, 4096)]
        return [Case("matmul", s, f"add@{s[1]}{keep} gelu", dtype) for dtype in dtypes for s in sizes
                for keep in (("", " keep") if small or s[0] > 32 else ("",))]
    if part == "conv":
        sizes = [(2, 16, 8, 8, 16, 3)] if small else [(64, 64, 56, 56, 64, 3), (64, 256, 28, 28, 256, 3)]
        return [Case("conv", s, f"mul@{s[4]}x1x1 add@{s[4]}x1x1 relu add@{s[0]}x{s[4]}x{s[2]}x{s[3]}", dtype)
                for dtype in dtypes for s in sizes]
    if part == "score_mod":
        return score_mod_cases(dtypes, small)
    shapes = [((64, 96), "96")] if small else [((32768, 4096), "4096"), ((64, 256, 56, 56), "256x1x1")]
    return [Case("", shape, chain, dtype) for dtype in dtypes for shape, operand in shapes for chain in _chains(shape, operand)]


class Bench:
    """Measures cases on a device."""

    def __init__(self, device, clock, args, roofs):
        import torch

        import dnnkern.graph as cudnn
        self.device, self.clock, self.args, self.roofs = device, clock, args, roofs
        self.where = "cpu" if HOST_MEMORY else torch.device("cuda", device.index)
        self.handle = cudnn.create_handle()
        cudnn.set_stream(self.handle, clock.stream)
        self.peers, self.missing = ([], {}) if args.no_peers else _peers()

    def row(self, case):
        """What was measured of a case, as plain data."""
        sets = 1 if HOST_MEMORY else max(1, min(MOST_SETS, -(-3 * self.device.l2_bytes // case.bytes)))
        arrays = [case.arrays(self.where) for _ in range(sets)]
        started = time.perf_counter()
        ours, given = case.graph(arrays[0], self.handle)
        built = time.perf_counter() - started
        if self.args.find:
            for step in ours._engines.steps:
                dispatch.find_algorithms(step.op, step.problem)
            ours, given = case.graph(arrays[0], self.handle)
        row = {"op": "graph", "problem": str(case), "plan": ours.get_plan_name_at_index(0), "status": "ok", "sets": sets,
               "build_ms": 1e3 * built, "estimate_us": 1e6 * ours._candidate.seconds, "workspace": ours.get_workspace_size()}
        expected = self._expected(case, arrays[0])
        call = self._call(ours, given, arrays)
        call(0)
        self._wait()
        magnitudes = case.magnitudes({name: t.float() for name, t in arrays[0].items()}) if hasattr(case, "magnitudes") else None
        row["error"] = _error(_results(case, arrays[0]), expected, case.dtype, magnitudes) / getattr(case, "slack", 1)
        if not row["error"] <= 1:
            return {**row, "status": f"WRONG: {row['error']:.3g} of the tolerance"}
        if self.args.regret:
            row.update(graph_cuts.regret(case, arrays[0], self.handle, self.where))
        contenders = [Contender("graph", call, sets)]
        if case.anchor:
            alone, of = case.graph(arrays[0], self.handle, alone=True)
            contenders.append(Contender("plain", self._call(alone, of, arrays), sets))
            row["plain_plan"] = alone.get_plan_name_at_index(0)
        if hasattr(case, "apart"):
            unfused, of = case.apart(arrays[0], self.handle)
            contenders.append(Contender("apart", self._call(unfused, of, arrays), sets))
            row["apart_plan"] = unfused._candidate.name
        contenders += self._peer_contenders(case, arrays, (expected, magnitudes), row)
        for contender in contenders:
            contender.call(0)
        self._wait()
        times = race(contenders, self.clock, rounds=self.args.turns)
        self.clock.release()
        seconds = times["graph"].median
        row.update({f"{name}_us": 1e6 * sample.median for name, sample in times.items()}, turns_us=[1e6 * t for t in times["graph"].times])
        row.update({f"of_{name}": sample.median / seconds for name, sample in times.items() if name != "graph"})
        if case.anchor not in PARTS and self.roofs.get("copy"):
            row["of_copy"] = getattr(case, "moved", case.bytes) / seconds / self.roofs["copy"]
        return row

    def _call(self, graph, given, sets):
        """A function of a set's number that executes the graph on it."""
        import torch
        workspace = torch.empty(graph.get_workspace_size(), dtype=torch.uint8, device=self.where)
        packs = [{t.get_uid(): arrays[name] for t, name in given.items()} for arrays in sets]
        return lambda k: graph.execute(packs[k], workspace, handle=self.handle)

    def _expected(self, case, arrays):
        """PyTorch's result in float32; a tuple where the case has several."""
        import torch
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        result = case.eager()({name: t.float() for name, t in arrays.items()})
        self._wait()
        return result

    def _peer_contenders(self, case, arrays, wanted, row):
        expected, magnitudes = wanted
        found = []
        for peer in getattr(case, "peers", self.peers) if self.peers else ():
            try:
                contender, function = peer.make(case, arrays, self.clock)
                with contender.on_stream():
                    result = function(arrays[0])
                self._wait()
                error = _error(result, expected, case.dtype, magnitudes)
                if error <= 8:  # they round after each function, or after some
                    found.append(contender)
                else:
                    row[f"no_{peer.NAME}"] = f"WRONG: {error:.3g} of the tolerance"
            except Exception as error:  # a library that fails must not hide what ours measure
                row[f"no_{peer.NAME}"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return found

    def _wait(self):
        if not HOST_MEMORY:
            import torch
            torch.cuda.synchronize()
        self.clock.synchronize()


def _peers():
    if SIMULATED:
        return [], {"torch": "it does not run in the simulator"}
    from .peers import peers_of
    return peers_of("graph")


def _results(case, arrays):
    """What the case has computed: of one result the tensor, of several the tuple that its `eager` returns."""
    if getattr(case, "keeps", False):
        return arrays["y"], arrays["kept"]
    return tuple(arrays[name] for name in case.results) if hasattr(case, "results") else arrays["y"]


def _error(got, expected, dtype, magnitudes=None):
    """The root mean square of the error over that of the values, and the largest error of an element, as parts of what rounding allows: 1
    and below is right; of several results the largest. An element's is beside itself and the size of all, or its own of `magnitudes`."""
    if isinstance(expected, tuple):
        return max(_error(*pair, dtype) for pair in zip(got, expected))
    roundoff = max(ROUNDOFF[dtype], 2.0 ** -20)
    if not expected.is_floating_point():  # a mask: the share of elements that rounding turns over
        return float((got != expected).float().mean()) / roundoff
    got = got.float()
    wrong, size = (got - expected).abs(), expected.pow(2).mean().sqrt()
    worst = (wrong / (expected.abs() + (size if magnitudes is None else magnitudes))).max() / (4 * roundoff)
    found = float(max(worst, wrong.pow(2).mean().sqrt() / size / (2 * roundoff)))
    return found if math.isfinite(found) else math.inf


# ---- the host

def host_rows(device):
    """[{"what", "us"}]: wall time of a call of a graph of one kernel, nothing waited for; without a GPU processor time up to the driver,
    whose launches do nothing."""
    from .cached import calls_of, microseconds
    from .pretend import pretended_gpu
    if not HOST_MEMORY:
        return _host_calls(f"cuda:{device.index}", lambda call: {"us": 1e6 * host_seconds(call, _synchronize())})
    if SIMULATED:
        return []
    with pretended_gpu():
        return _host_calls("cpu", lambda call: {"us": microseconds(call), "calls": calls_of(call)})


def _synchronize():
    import torch
    return torch.cuda.synchronize


def _host_calls(where, measured):
    import torch
    case, larger = (Case("matmul", (rows, 128, 64), "add@128 relu", "bfloat16") for rows in (128, 192))
    arrays, others = case.arrays(where), larger.arrays(where)
    graph, given = case.graph(arrays, takes_shapes=True)
    other_pack = {t.get_uid(): others[name] for t, name in given.items()}
    shapes, strides = ([getattr(others[name], of)() for name in given.values()] for of in ("size", "stride"))
    uids = list(other_pack)
    pack = {t.get_uid(): arrays[name] for t, name in given.items()}
    by_tensor = {t: arrays[name] for t, name in given.items()}
    addresses = [pack[uid].data_ptr() for uid in graph._get_variant_pack_uids_sorted()]
    workspace = torch.empty(graph.get_workspace_size(), dtype=torch.uint8, device=where)
    graph._prepare_variant_pack_template()
    a, b, y = arrays["a"][0], arrays["b"][0], arrays["y"][0]
    calls = {"execute, tensors by uid": lambda: graph.execute(pack, workspace),
             "execute, tensors by tensor": lambda: graph.execute(by_tensor, workspace),
             "execute, other shapes": lambda: graph.execute(other_pack, workspace, None, uids, shapes, strides),
             "_execute_with_ptrs, addresses": lambda: graph._execute_with_ptrs(addresses, workspace)}
    if where != "cpu":
        calls["torch.matmul, out="] = lambda: torch.matmul(a, b, out=y)
    return [{"op": "graph", "what": f"host: {name}", **measured(call)} for name, call in calls.items()]


_BUILD = """
import json, sys, time
sys.path.insert(0, {root!r})
import torch, dnnkern.graph as cudnn
from bench.graph import BUILT, Case
where = {where!r}
arrays = [Case(*case).arrays(where) for case in BUILT[{small!r}]]
for name in sys.argv[1:]:
    cache, times = cudnn.create_kernel_cache() if name == "cache" else None, []
    for case, some in zip(BUILT[{small!r}], arrays):
        started = time.perf_counter()
        graph, _ = Case(*case).graph(some, cache=cache)
        times.append(1e3 * (time.perf_counter() - started))
    print(json.dumps([name, times]))
"""
BUILT = {small: [("matmul", (rows, *rest), f"add@{rest[0]} gelu", dtype) for rows in counts]
         for small, counts, rest, dtype in ((False, (4096, 3072, 2048, 5120), (4096, 4096), "bfloat16"),
                                            (True, (64, 48, 80, 96), (64, 32), "float32"))}
"""Graphs whose building is timed: one, and others of other dims."""


def build_rows(small):
    """[{"what", "ms"}]: a process's first build with nothing cached, with its kernels on disk, and later ones of other dims, of kernel
    caches."""
    found = []
    where = "cpu" if HOST_MEMORY else "cuda"
    code = _BUILD.format(root=str(ROOT), where=where, small=small)
    with tempfile.TemporaryDirectory() as folder:
        for what, arguments in (("nothing cached", ["plain"]), ("kernels on disk", ["plain", "cache"])):
            done = subprocess.run([sys.executable, "-W", "ignore", "-c", code, *arguments], capture_output=True, text=True, cwd=ROOT,
                                  env={**os.environ, "DNNKERN_CACHE_DIR": folder})
            if done.returncode:
                raise RuntimeError(f"bench graph: the process that builds failed:\n{done.stderr}")
            times = dict(json.loads(line) for line in done.stdout.splitlines())
            found.append((f"first build of a process, {what}", times["plain"][0]))
            if "cache" in times:
                found.append(("other dims, a kernel cache", statistics.median(times["cache"][1:])))
            else:
                found.append(("other dims, no kernel cache", statistics.median(times["plain"][1:])))
    return [{"op": "graph", "what": f"build: {what}", "ms": ms} for what, ms in found]


# ---- the command

def parser():
    """The command's arguments."""
    p = argparse.ArgumentParser(prog="python -m dnnkern bench graph", description="Time operation graphs beside plain kernels and PyTorch.")
    p.add_argument("--only", default=",".join(PARTS), metavar="PARTS", help=f"of {', '.join(PARTS)}, with commas")
    p.add_argument("--dtype", default="float16,bfloat16", help="with commas (default float16,bfloat16)")
    p.add_argument("--small", action="store_true", help="small cases; the default without a GPU")
    p.add_argument("--find", action="store_true", help="measure each step's algorithms before (find_algorithms), and take the best")
    p.add_argument("--regret", action="store_true", help="measure all plans (autotune), and say how far the estimates' choice is from the "
                   "fastest")
    p.add_argument("--turns", type=int, default=ROUNDS, metavar="N", help=f"timed batches, of which the median counts (default {ROUNDS})")
    p.add_argument("--no-peers", action="store_true", help="dnnkern alone")
    p.add_argument("--json", metavar="FILE", help="append the rows as JSON lines")
    p.add_argument("--explain", metavar="ARCH", help="print how the graphs are cut for the largest device of an architecture, sm_90a; run "
                   "nothing")
    return p


HEAD = ("graph", "plan", "µs", "x plain", "x apart", "x torch", "x compile", "of copy", "build ms")


def main(argv=None) -> int:
    """Measure and print; the exit status: 1 if a result was wrong."""
    args = parser().parse_args(argv)
    unknown = set(args.only.split(",")) - set(PARTS)
    if unknown:
        raise ValueError(f"bench graph: --only has {', '.join(sorted(unknown))}; expected some of {', '.join(PARTS)}")
    small, dtypes, only = args.small or HOST_MEMORY, args.dtype.split(","), args.only.split(",")
    if args.explain:
        graph_cuts.show([case for part in only if part in PARTS[:-2] for case in cases(part, dtypes, args.small)], args.explain)
        return 0
    device = dispatch.device_of(dispatch.current_device())
    record, rows = machine(device), []
    print(f"{device.name}, {device.arch}; commit {record['commit']}")

    def say(found):
        rows.extend(found)
        if args.json:
            with open(args.json, "a") as file:
                file.writelines(json.dumps(plain_data({**row, "machine": record})) + "\n" for row in found)
    with Clock(device.index) as clock:
        roofs = _roofs(device, clock)
        timed = [case for part in only if part in PARTS[:-2] for case in cases(part, dtypes, small)]
        bench = Bench(device, clock, args, roofs) if timed else None
        for name, reason in bench.missing.items() if bench else ():
            print(f"no peer {name}: {reason}")
        for number, case in enumerate(timed, 1):
            _table.note(f"{number} of {len(timed)}: {case}")
            say([bench.row(case)])
    _table.note()
    if "host" in only:
        say(host_rows(device))
    if "build" in only and not SIMULATED:
        say(build_rows(small))
    show(rows)
    return int(any(row.get("status", "ok") != "ok" for row in rows))


def _roofs(device, clock):
    from . import roof
    return roof.measure_roofs(device, clock, ["fma"])


def show(rows):
    """Print rows as tables."""
    def ratio(row, name):
        return f"{row[f'of_{name}']:.3f}" if f"of_{name}" in row else row.get(f"no_{name}", "")[:24] or None
    cases = [row for row in rows if "problem" in row]
    if cases:
        _table.show(HEAD, [(row["problem"], row["plan"], f"{row['graph_us']:.2f}" if "graph_us" in row else row["status"],
                            *(ratio(row, name) for name in ("plain", "apart", "torch", "torch.compile", "copy")), f"{row['build_ms']:.1f}")
                           for row in cases], title="x: time of the peer over the graph's; of copy: bytes a second over a copy's")
    graph_cuts.show_regrets([row for row in rows if "regret" in row])
    for unit, title in (("us", "a call, one kernel"), ("ms", "building")):
        found = [row for row in rows if unit in row]
        if found:
            print()
            _table.show(("what", unit.replace("u", "µ"), "calls of Python"),
                        [(row["what"], f"{row[unit]:.2f}", str(row.get("calls", "")) or None) for row in found], title=title)


if __name__ == "__main__":
    sys.exit(main())
