"""Host time of overrides in the sequence of a program's step: ``python -m bench.turns --set resnet50-train-64``.

A step of a program of `bench.models` is recorded below autograd: which operators it calls, on what. The calls are then made again in three
ways: each one many times over ("again"); all of them in the program's order ("in turn"); and so that before each one other memory
is read, as much as a processor's second cache holds ("cold"), since in a program much else runs between two calls.

Without a GPU, as on one that is not there (`bench.pretend`), on tensors that nothing reads or writes. On a GPU with ``--gpu``: PyTorch's
own kernels beside ours, and both in the program itself, where launches and allocations are timed too.
"""
import argparse
import collections
import contextlib
import ctypes
import functools
import gc
import json
import statistics
import sys
import time
from unittest import mock

COLD = 4 << 20  # bytes that are read before each call
WAYS = "again", "in turn", "cold"
_STATISTICS = {"native_batch_norm_backward": (5, 6), "native_layer_norm_backward": (3, 4)}
"""Arguments that are float32, where fake tensors for the processor have 16 bits."""
_clock = time.perf_counter_ns


def name_of(function):
    """An operator's name, as the table of overrides has it."""
    return function.name().removeprefix("aten::").removesuffix(".default")


def recorded(program, device):
    """[(operator, arguments, keywords, which tensors need gradients)] of a step, in order. On "cpu" tensors are fake."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode
    calls = []

    class Recorder(TorchDispatchMode):
        """Appends each call."""

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            calls.append((function, args, kwargs or {}, [a.requires_grad for a in args if isinstance(a, torch.Tensor)]))
            return function(*args, **(kwargs or {}))
    with FakeTensorMode(allow_non_fake_inputs=True) if device == "cpu" else contextlib.nullcontext(), Recorder():
        program.step()
    return calls


class Calls:
    """A step's calls of some operators, on tensors of their own: the same one wherever the step had the same one."""

    def __init__(self, step, names, device):
        import torch
        self.torch, self.device, self.made, self.calls, self.kept = torch, device, {}, [], collections.deque(maxlen=24)
        for function, args, kwargs, needed in step:
            if name_of(function) in names:
                needed, wide = iter(needed), _STATISTICS.get(name_of(function), ()) if device == "cpu" else ()
                given = [self._tensor(a, next(needed), k in wide) if isinstance(a, torch.Tensor) else self._value(a)
                         for k, a in enumerate(args)]
                self.calls.append((function, given, {name: self._value(a) for name, a in kwargs.items()}))

    def _value(self, a):
        if isinstance(a, self.torch.Tensor):
            return self._tensor(a, False)
        return [self._value(v) for v in a] if isinstance(a, (list, tuple)) else a

    def _tensor(self, like, needs_gradient, is_wide=False):
        found = self.made.get(id(like))
        if found is None:
            dtype = self.torch.float32 if is_wide else like.dtype
            t = self.torch.empty_strided(like.shape, like.stride(), dtype=dtype, device=self.device)
            if self.device == "cuda" or t.numel() <= 1:  # counts of steps are read; the rest of what is pretended is never touched
                t.zero_()
            found = self.made[id(like)] = self.torch.nn.Parameter(t) if isinstance(like, self.torch.nn.Parameter) else t, like
        if found[0].is_floating_point():
            found[0].requires_grad_(needs_gradient)
        return found[0]

    def fresh(self):
        """The calls, with new gradients for optimisers, as ``zero_grad`` leaves them."""
        for k, (function, args, kwargs) in enumerate(self.calls):
            if isinstance(args[0], list) and "_fused_" in function.name():
                self.kept.append(args[1])
                self.calls[k] = function, [args[0], [self.torch.empty_like(g) for g in args[1]], *args[2:]], kwargs
        return self.calls


def timed(made, wait, again=20, passes=15):
    """{operator: {"calls": how many, way: microseconds}}: means of the least times of calls."""
    import numpy as np
    import torch
    other, rows = np.ones(COLD // 8), [dict.fromkeys(WAYS) for _ in made.calls]

    def turn(before=None):
        found = []
        for function, args, kwargs in made.fresh():
            if before is not None:
                before()
            start = _clock()
            result = function(*args, **kwargs)
            found.append(_clock() - start)
            del result
        wait()
        return found
    with torch._C._AutoDispatchBelowAutograd(), torch.enable_grad():
        for _ in range(20):  # graphs of repeated launches come late
            turn()
        for way, before in (("in turn", None), ("cold", other.sum)):
            for row, times in zip(rows, zip(*[turn(before) for _ in range(passes)])):
                row[way] = min(times)
        for row, (function, args, kwargs) in zip(rows, made.calls):
            times = []
            for _ in range(again):
                start = _clock()
                result = function(*args, **kwargs)
                times.append(_clock() - start)
                del result
            wait()
            row["again"] = min(times)
    of = collections.defaultdict(list)
    for row, (function, *_) in zip(rows, made.calls):
        of[name_of(function)].append(row)
    return {name: {"calls": len(some), **{way: statistics.mean(row[way] for row in some) / 1e3 for way in WAYS}}
            for name, some in of.items()}


@contextlib.contextmanager
def pytorchs_timed(names, key, found):
    """Within, calls of these operators run PyTorch's kernels and are timed: {operator: [calls, nanoseconds]} in `found`."""
    import torch
    library = torch.library.Library("aten", "IMPL")

    def add(name, back):
        counted = found[name] = [0, 0]

        def call(*args, **kwargs):
            start = _clock()
            result = back(*args, **kwargs)
            counted[0] += 1
            counted[1] += _clock() - start
            return result
        library.impl(name, call, key)
    try:
        for name in names:
            add(name, functools.partial(torch.library.get_kernel(f"aten::{name}", key).call_boxed,
                                        torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))))
        yield
    finally:
        library._destroy()


@contextlib.contextmanager
def parts_timed(found):
    """Within, {what: [calls, nanoseconds]} in `found` of launches, of graphs' launches and of tensors that sites make. It has to be entered
    before there are sites."""
    from dnnkern.host import guards, raw

    def watched(what, function):
        counted = found.setdefault(what, [0, 0])

        def call(*args):
            start = _clock()
            result = function(*args)
            counted[0] += 1
            counted[1] += _clock() - start
            return result
        return call
    direct = guards._direct
    with contextlib.ExitStack() as stack:
        for name in ("cuLaunchKernelEx", "cuGraphLaunch", "cuTensorMapEncodeTiled", "cuTensorMapEncodeIm2col"):
            stack.enter_context(mock.patch.dict(vars(raw), {name: watched(name, getattr(raw, name))}))
        stack.enter_context(mock.patch.object(guards, "_direct", lambda *of: direct(*of) and watched("new tensors", direct(*of))))
        yield


def in_the_program(program, names, key, wait, steps=20):
    """{who: {operator: (calls a step, microseconds)}} in the program's own steps, and the parts of ours. `key` is the dispatcher's."""
    import torch

    import dnnkern.torch

    def run(count):
        for _ in range(count):
            program.step()
            wait()
    theirs, parts = {}, {}
    with pytorchs_timed(names, key, theirs):
        run(steps)
        for counted in theirs.values():
            counted[:] = 0, 0
        run(steps)
    # with benchmark on, each convolution would first be measured by all algorithms, and these be compiled
    with parts_timed(parts), torch.backends.cudnn.flags(enabled=True, benchmark=False), dnnkern.torch.enabled():
        run(2 * steps)
        dnnkern.torch.status(reset=True)
        for counted in parts.values():
            counted[:] = 0, 0
        run(steps)
        ours = {row.op: [row.calls, 1e9 * row.seconds] for row in dnnkern.torch.status(reset=True) if row.ours}
    found = {"PyTorch": theirs, "ours": ours, "parts of ours": parts}
    return {who: {what: (calls / steps, ns / calls / 1e3) for what, (calls, ns) in rows.items() if calls} for who, rows in found.items()}


def measured(name, device):
    """{"PyTorch": `timed`, "ours": `timed`, "in the program": ...}, the first and the last on a GPU."""
    import torch

    import dnnkern.torch
    from dnnkern.torch._table import selected, table

    from . import models
    names = [n for n in selected("heavy") if not table()[n].composite]
    program, wait, found = models.made(name, device), torch.cuda.synchronize if device == "cuda" else bool, {}
    if device == "cuda":
        torch.backends.cudnn.benchmark = True
        for _ in range(3):
            program.step()
    step = recorded(program, device)
    used = sorted({name_of(function) for function, *_ in step}.intersection(names))
    if device == "cuda":
        found["in the program"] = in_the_program(program, used, "CUDA", wait)
    made = Calls(step, names, device)
    del step, program
    gc.collect()
    with torch.backends.cudnn.flags(enabled=True, benchmark=device == "cuda"):
        if device == "cuda":
            found["PyTorch"] = timed(made, wait)
    with torch.backends.cudnn.flags(enabled=True, benchmark=False), dnnkern.torch.enabled(strict=True):
        found["ours"] = timed(made, wait)
    return found


def main(argv=None) -> int:
    """Measure, and print."""
    from .pretend import pretended_gpu
    parser = argparse.ArgumentParser(prog="python -m bench.turns", description="Host time of a step's overrides.")
    parser.add_argument("--set", default="resnet50-train-64", metavar="NAME", help="a program of bench.models that trains")
    parser.add_argument("--gpu", action="store_true", help="launch the kernels, on this machine's GPU")
    parser.add_argument("--json", metavar="FILE", help="append the numbers as one JSON line")
    words = parser.parse_args(argv)
    if not words.gpu:
        import torch
        torch.set_num_threads(1)
        libc = ctypes.CDLL(None)  # memory that is freed stays the process's: on a GPU PyTorch keeps it
        libc.mallopt(-4, 0)
        libc.mallopt(-1, -1)
    with contextlib.nullcontext() if words.gpu else pretended_gpu():
        found = measured(words.set, "cuda" if words.gpu else "cpu")
    program = found.get("in the program", {})
    for who in ("PyTorch", "ours"):
        for op, row in found.get(who, {}).items():
            print(f"{who:8}{op:34}{row['calls']:4}", *(f"{way} {row[way]:8.1f}" for way in WAYS),
                  *([f"in the program {program[who][op][1]:8.1f}"] if op in program.get(who, {}) else []))
        if who in found:
            sums = (f"{way} {sum(row['calls'] * row[way] for row in found[who].values()) / 1e3:8.2f}" for way in WAYS)
            print(f"{who:8}{'a step, in ms':38}", *sums)
    for what, (calls, us) in program.get("parts of ours", {}).items():
        print(f"in the program: {calls:7.1f} a step of {what}, {us:.1f} us each")
    if words.json:
        from dnnkern import dispatch

        from .machine import machine
        device = machine(dispatch.device_of(dispatch.current_device()))
        with open(words.json, "a", encoding="utf-8") as file:
            file.write(json.dumps({"op": "host time of overrides in turn", "problem": words.set, "machine": device, **found}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
