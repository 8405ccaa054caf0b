"""Random calls of every public function: arguments that are odd but valid must give what the plain ones give, invalid ones an error that
names the function and the argument, with nothing written.

    NUMBA_ENABLE_CUDASIM=1 python tests/fuzz.py [--calls 100000] [--seed 0] [--op softmax_fwd,...] [--processes 2]

A call starts from a small one of tests/calls.py or of the contract's cases, whose arguments are recorded as the public function gets them.
One of them is replaced: by the same value in other clothes (a NumPy number, a list for a tuple, an array with other strides, a torch
tensor), by an array of another dtype, shape or kind, or by something that it cannot be. The last line is a summary; the exit status is 1
where there are findings. A seed gives the same calls again, whatever the number of processes.
"""
import argparse
import collections
import concurrent.futures
import contextlib
import functools
import inspect
import math
import multiprocessing
import os
import random
import re
import signal
import sys
import traceback
import warnings

if __name__ == "__main__":  # before dnnkern is imported: what was measured here decides nothing
    os.environ["DNNKERN_CACHE_DIR"] = ""

import calls as plain_calls
import cases
import numpy as np
from fuzz_values import NONSENSE, PERHAPS, altered, dressed, torch

import dnnkern
from dnnkern.dispatch import NotSupported, prefer
from dnnkern.host import executable, front, launch
from dnnkern.host.arrays import kind_named

ALLOWED = (ValueError, TypeError, NotSupported)
SECONDS = 20.0  # that a call may take on the host, of which others may have most
SIMULATED_SECONDS = 0.5  # of CPU time, then a valid call that is long in the simulator ends
LARGEST_RESULT = 1 << 24  # bytes; a valid call that wants more is not made
LARGEST = 4000  # elementary steps of a case that is worth repeating
MOST = 8  # cases of an operation
PART = 500  # calls from one seed

MAY_RACE = {("move_rows", "target")}  # rows that go to one place

_SPEC = dnnkern.RnnSpec("lstm", 2, 3, proj_size=2)


def _views(weights):
    return _SPEC.views(weights)


def _pack(named, *, stream=None):
    return _SPEC.pack(named, stream=stream)


OPERATIONS = {name: getattr(dnnkern, name) for name in sorted(plain_calls.CALLS)}
FUNCTIONS = {**OPERATIONS, "RnnSpec": dnnkern.RnnSpec, "RnnSpec.pack": _pack, "RnnSpec.views": _views, "problem": dnnkern.problem,
             "view": dnnkern.view}
PARAMETERS = {name: tuple(p.name for p in inspect.signature(f).parameters.values() if p.kind not in (p.VAR_KEYWORD, p.POSITIONAL_ONLY))
              for name, f in FUNCTIONS.items()}
PARAMETERS["problem"] = ("a", "b", "transpose_b", "activation", "out_dtype", "out")


# Parameters that are written in place, by function.
UPDATED = {"add_tensor": {"c"}, "batch_norm_train_fwd": {"running_mean", "running_var"}, "clip_grad_norm": {"grads", "found_inf"},
           "grad_norm": {"found_inf"}, "rnn_bwd_data": {"reserve"}, "scale_tensor": {"x"}, "set_tensor": {"x"}, "random_fill": {"x"},
           "sdpa_dropout_mask": {"x"},
           **{name: set(PARAMETERS[name]) - {"grads"} for name in PARAMETERS if name.endswith("_step")}}
PACKED = ("weights", "reserve", "mask")  # arrays that may not have other strides
TAIL = ("out", "workspace", "stream", *front.CHOICE)


class Call:
    """A recorded call: the function's name, and the value of each of its parameters that was given."""

    def __init__(self, name, arguments):
        self.name, self.arguments = name, arguments

    def with_(self, parameter, value):
        """The same call with arrays of its own and one argument replaced."""
        return Call(self.name, {**{key: _copy(old) for key, old in self.arguments.items() if key != parameter}, parameter: value})

    def run(self):
        return FUNCTIONS[self.name](*("matmul",) * (self.name == "problem"), **self.arguments)

    @functools.cached_property
    def expected(self):
        """Results and updated arguments of the plain call; None where it is refused."""
        plain = Call(self.name, {key: _copy(value) for key, value in self.arguments.items()})
        try:
            return _everything(plain, plain.run())
        except (NotSupported, Valid):
            return None

    def __str__(self):
        return ", ".join(f"{k}={f'{v.dtype}{v.shape}' if isinstance(v, np.ndarray) else _shown(v)}" for k, v in self.arguments.items())


def _shown(value):
    try:
        return " ".join(f"{value!r:.80}".split())
    except Exception:
        return f"<{type(value).__name__}>"


def _copy(value):
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.copy()
    if type(value) in (list, tuple) and any(isinstance(v, np.ndarray) for v in value):
        return type(value)(map(_copy, value))
    return {key: _copy(v) for key, v in value.items()} if type(value) is dict else value


@contextlib.contextmanager
def recorded():
    """The calls of public functions, in a list; they are not made."""
    found = []

    def record(name, *args, **kwargs):
        bound = inspect.signature(FUNCTIONS[name]).bind(*args, **kwargs).arguments
        bound.update(bound.pop("parameters", {}))
        bound.update(bound.pop("choice", {}))
        found.append(Call(name, {key: value for key, value in bound.items() if key not in TAIL}))
        raise StopIteration  # nothing of the call is needed
    for name in OPERATIONS:
        setattr(dnnkern, name, functools.partial(record, name))
    try:
        yield found
    finally:
        for name, function in OPERATIONS.items():
            setattr(dnnkern, name, function)


def calls_of(module):
    """Plain calls of an operation's smallest cases, of different dtypes and problems."""
    small = []
    for case in module.CASES:
        places = [p for p in case.inputs().values() if p is not None]
        if case.work <= LARGEST and all(p.size for p in places) and not case.in_place() and not (
                any(getattr(case, name, None) for name in ("fused", "made", "reductions", "modifier", "dual", "staged"))):  # no function's
            small.append((case.id.split("-")[-1], case.work, case.id, case))
    small.sort(key=lambda row: row[:3])
    random.Random(module.__name__).shuffle(small)
    found = []
    for *_, case in small[:MOST]:
        values = case.values("float")
        arrays = {name: p and np.ascontiguousarray(values[name]).astype(cases.numpy_dtype(p.dtype)).reshape(p.shape)
                  for name, p in case.inputs().items()}
        with recorded() as calls, contextlib.suppress(StopIteration):
            case.call(arrays, (None,) * len(case.outputs()) if len(case.outputs()) > 1 else None)
        found += calls
    return found


@functools.cache
def able():
    """{function: its plain calls}, the first from tests/calls.py."""
    found = {}
    for name, make in plain_calls.CALLS.items():
        arrays, keywords = make()
        found[name] = [Call(name, {**dict(zip([p for p in PARAMETERS[name] if p not in keywords], arrays)), **keywords})]
    for module in cases.modules().values():
        for call in calls_of(module):
            found[call.name].append(call)
    lstm = {"cell": "lstm", "input_size": 2, "hidden_size": 3, "num_layers": 2, "bidirectional": True, "proj_size": 2, "clip": (-1.0, 2.0)}
    gru = {"cell": "gru", "input_size": 3, "hidden_size": 3, "bias": "none", "input_mode": "skip", "dropout": 0.5, "dtype": "float16"}
    weights, a = np.arange(_SPEC.weight_size, dtype=np.float32), np.arange(6, dtype=np.uint16).reshape(2, 3)
    others = {"RnnSpec": (lstm, gru), "RnnSpec.pack": ({"named": _SPEC.views(weights)},), "RnnSpec.views": ({"weights": weights},),
              "problem": ({"a": ("2x3", "float32"), "b": ((3, 4), "float32"), "activation": "relu"},
                          {"a": np.ones((2, 3), np.float32), "b": np.ones((4, 3), np.float32), "transpose_b": True}),
              "view": ({"a": a, "dtype": "bfloat16"}, {"a": a.astype(np.uint8), "dtype": "float8_e4m3fn"})}
    return {**found, **{name: [Call(name, arguments) for arguments in some] for name, some in others.items()}}


# ---- other values

def perhaps(call, parameter, rng):
    """A value that may be valid or not."""
    present = _copy(call.arguments.get(parameter))
    if parameter == "out" and call.name in OPERATIONS and rng.random() < 0.5 and call.expected is not None:
        results = [r.copy() for r in call.expected["result"] if r is not None]
        one = rng.randrange(len(results))
        results[one] = altered(results[one], rng)
        return results[0] if len(results) == 1 else tuple(results)
    if isinstance(present, np.ndarray) and rng.random() < 0.7:
        return altered(present, rng)
    if type(present) is list and present and isinstance(present[0], np.ndarray) and rng.random() < 0.7:
        one = rng.randrange(len(present))
        return rng.choice((lambda: [*present[:one], altered(present[one], rng), *present[one + 1:]], lambda: present[1:],
                           lambda: [*present, present[0].copy()], lambda: [*present[:-1], None], lambda: iter(present),
                           lambda: [*present, present[0]]))()
    if type(present) is dict and present and rng.random() < 0.7:
        key = rng.choice(list(present))
        return rng.choice((lambda: {**present, key: altered(present[key], rng)}, lambda: {**present, key: rng.choice(NONSENSE)},
                           lambda: {**present, rng.choice(("nonsense", 1, None, (1, 2))): present.pop(key)},
                           lambda: {k: v for k, v in present.items() if k != key}, lambda: list(present.items()), lambda: [*present]))()
    if type(present) in (tuple, list) and present and rng.random() < 0.5:
        one = rng.randrange(len(present))
        return type(present)((*present[:one], rng.choice(PERHAPS + NONSENSE), *present[one + 1:]))
    return rng.choice(PERHAPS)


# ---- one call

class Findings:
    """What was found, by kind and place, the first of each with how to repeat it."""

    def __init__(self):
        self.first, self.counts, self.calls, self.refused = {}, collections.Counter(), 0, 0

    def add(self, kind, call, parameter, value, detail):
        key = kind, call.name, parameter, type(value).__name__
        self.counts[key] += 1
        if key not in self.first:
            value = f"{value.dtype}{value.shape}" if hasattr(value, "dtype") and getattr(value, "shape", ()) != () else _shown(value)
            self.first[key] = f"{kind}: {call.name}({parameter}={value}): {' '.join(str(detail).split())[:600]}\n    from {str(call)[:400]}"

    def update(self, other):
        """What another process has found, too."""
        self.first, self.calls, self.refused = {**other.first, **self.first}, self.calls + other.calls, self.refused + other.refused
        self.counts += other.counts

    def __str__(self):
        return "\n".join([f"{self.counts[key]:5} x {text}" for key, text in sorted(self.first.items())]
                         + [f"{self.calls} calls, {self.refused} refused, {len(self.first)} findings"])


class Valid(Exception):
    """The call is valid, and too large to go on with."""


class _Executable(launch.SimulatedExecutable):
    """Ends after a while."""

    def execute(self, values, stream, **how):
        threads = sum(math.prod((*k.grid, *k.block)) for k in self.launches)
        if threads > 20_000:
            raise Valid
        with limited(signal.ITIMER_PROF, signal.SIGPROF, SIMULATED_SECONDS, Valid):
            super().execute(values, stream, **how)


@contextlib.contextmanager
def limited(timer, number, seconds, error):
    """Raises the error after so many seconds, and again, since what is raised in a callback of the interpreter is lost."""
    def stop(*_):
        raise error(f"took longer than {seconds} s")
    old = signal.signal(number, stop)
    signal.setitimer(timer, seconds, 0.2)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        signal.signal(number, old)


@contextlib.contextmanager
def bounded():
    """Calls that are valid and want much memory or time raise `Valid`."""
    def small(empty):
        def make(shape, dtype, *more):
            if math.prod(shape) * cases.ITEMSIZE.get(dtype, 8) > LARGEST_RESULT:
                raise Valid
            return empty(shape, dtype, *more)
        return make
    kinds = [kind_named("numpy"), *([kind_named("torch")] if torch else ())]
    plain, executable.SimulatedExecutable = executable.SimulatedExecutable, _Executable
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    for kind in kinds:
        kind.empty = small(kind.empty)
    try:
        with warnings.catch_warnings(), prefer("naive"):
            warnings.simplefilter("ignore")
            yield
    finally:
        executable.SimulatedExecutable, sys.unraisablehook = plain, hook
        for kind in kinds:
            del kind.empty


def as_numpy(value):
    """An array as NumPy; what is no array stays."""
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return value
    if hasattr(value, "detach"):
        odd = {torch.bfloat16: "bfloat16", torch.float8_e4m3fn: "float8_e4m3fn", torch.float8_e5m2: "float8_e5m2"}.get(value.dtype)
        bits = {1: torch.uint8, 2: torch.int16}.get(value.element_size())
        value = value.numpy() if odd is None else value.view(bits).numpy().view(cases.numpy_dtype(odd))
    return np.asarray(value)


def _everything(call, result):
    """{"result": results as arrays, parameter: what it holds afterwards}."""
    found = {key: [as_numpy(a) for a in _arrays(value)] for key, value in call.arguments.items() if key in UPDATED.get(call.name, ())}
    some = result if type(result) is tuple else result.values() if type(result) is dict else (result,)
    return {"result": [as_numpy(r) for r in some], **found}


def _arrays(value):
    some = value if type(value) in (list, tuple) else value.values() if type(value) is dict else (value,)
    return [v for v in some if hasattr(v, "detach") or isinstance(v, np.ndarray) and v.dtype != object]


def _bytes(value):
    """The bytes that an argument's arrays hold; of a torch tensor nothing."""
    return [v.tobytes() for v in _arrays(value) if isinstance(v, np.ndarray)]


def _close(e, g):
    """Equal but for the order in which a sum's terms are added, which follows the strides."""
    if not isinstance(e, np.ndarray):
        return str(e) == str(g)
    roundoff = cases.ROUNDOFF.get(e.dtype.name, 0)
    e, g = e.astype(np.float64), g.astype(np.float64)
    finite = np.abs(e[np.isfinite(e)])
    return e.shape == g.shape and np.allclose(e, g, 8 * roundoff, 8 * roundoff * finite.max(initial=0), equal_nan=True)


def try_valid(call, parameter, value, findings):
    """The same result, with an argument in other clothes."""
    if call.expected is None:
        return  # the case forces what is not supported here
    other = call.with_(parameter, value)
    try:
        got = _everything(other, other.run())
    except Valid:
        return
    except Exception as error:
        findings.add("refused though valid", call, parameter, value, f"{type(error).__name__}: {error}")
        return
    for name, arrays in call.expected.items():
        for e, g in zip(arrays, got[name]):
            if (e is None) != (g is None) or e is not None and not _close(e, g):
                findings.add("another result", call, parameter, value, f"{name} differs from that of the plain argument")


def _is_nonsense(value):
    return any(value is v for v in NONSENSE)


def try_any(call, parameter, value, findings):
    """An error that names function and argument, or a result; inputs stay as they are."""
    wild = call.with_(parameter, value)
    before = {key: _bytes(old) for key, old in wild.arguments.items()}
    may_change = {"out", "workspace"}
    try:
        with limited(signal.ITIMER_REAL, signal.SIGALRM, SECONDS, TimeoutError):
            wild.run()
        may_change |= UPDATED.get(call.name, set())
    except Valid:
        return
    except ALLOWED as error:
        findings.refused += 1
        may_change = set()
        message, name = str(error), type(error).__name__
        if not message.startswith(f"{call.name}: ") and not (call.name == "problem" and message.startswith("matmul: ")):
            findings.add("does not begin with the function", call, parameter, value, f"{name}: {message}")
        named = (parameter,) if _is_nonsense(value) else (*PARAMETERS[call.name], *call.arguments)
        if not any(re.search(rf"\b{p}\b", message) for p in named):
            findings.add("does not name the argument", call, parameter, value, f"{name}: {message}")
        if ("\n" in message or len(message) > 600) and not isinstance(error, NotSupported):
            findings.add("is long", call, parameter, value, message)
    except Exception as error:
        if type(error).__name__ == "Race" and (call.name, parameter) in MAY_RACE:
            return
        last = traceback.extract_tb(error.__traceback__)[-1]
        findings.add("escapes", call, parameter, value, f"{type(error).__name__}: {error} at {last.filename}:{last.lineno}")
        return
    else:
        if _is_nonsense(value):
            findings.add("accepted", call, parameter, value, "nonsense gave a result")
    changed = [key for key, old in before.items() if key not in may_change and old != _bytes(wild.arguments[key])]
    if changed:
        findings.add("changed", call, parameter, value, f"{changed} was written")


def one(rng, name, findings):
    """A random call of a function."""
    call, parameter = rng.choice(able()[name]), rng.choice(PARAMETERS[name])
    findings.calls += 1
    kind = rng.random()
    if kind < 0.25 and (value := dressed(call.arguments.get(parameter), rng, parameter in PACKED)) is not None:
        try_valid(call, parameter, value, findings)
    else:
        try_any(call, parameter, rng.choice(NONSENSE) if kind < 0.55 else perhaps(call, parameter, rng), findings)


def fuzz(names, calls, seed):
    """`calls` random calls, of these functions by turns."""
    findings, rng = Findings(), random.Random(seed)
    with bounded():
        for k in range(calls):
            one(rng, names[k % len(names)], findings)
    return findings


def main(words=None):
    parser = argparse.ArgumentParser(description="Random calls of every public function.")
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--op", type=lambda text: text.split(","), default=list(FUNCTIONS), metavar="NAME,NAME", help="public functions")
    parser.add_argument("--processes", type=int, default=1)
    words = parser.parse_args(words)
    if unknown := set(words.op) - set(FUNCTIONS):
        parser.error(f"no public function {', '.join(sorted(unknown))}")
    parts = [(words.op, min(PART, words.calls - first), f"{words.seed}/{first}") for first in range(0, words.calls, PART)]
    findings = Findings()
    with contextlib.ExitStack() as stack:
        run = map
        if words.processes > 1:
            context = multiprocessing.get_context("spawn")
            run = stack.enter_context(concurrent.futures.ProcessPoolExecutor(words.processes, context)).map
        for found in run(fuzz, *zip(*parts)):
            findings.update(found)
    print(findings)
    return 1 if findings.first else 0


if __name__ == "__main__":
    sys.exit(main())
