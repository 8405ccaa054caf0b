"""Random calls of every public function: arguments that are odd but valid must give what the plain ones give, invalid ones an error that
names the function and the argument, with nothing written.

    python tests/fuzz.py [--calls 100000] [--seed 0] [--op softmax_fwd,...]

A call starts from a small case of the contract, whose arguments are recorded as the public function gets them. One of them is replaced:
by the same value in other clothes (a NumPy number, a list for a tuple, an array with other strides, a torch tensor), or by something that
it cannot be.
"""
import argparse
import collections
import contextlib
import inspect
import random
import signal
import sys
import traceback
import warnings

import cases
import ml_dtypes
import numpy as np
import sample

import dnnkern
from dnnkern.dispatch import NotSupported

ALLOWED = (ValueError, TypeError, NotSupported)
SECONDS = 20  # that a call may take
LARGEST = 4000  # elementary steps of a case that is worth repeating


class _Odd:
    """An object that is nothing else."""


def _cycle():
    found = []
    found.append(found)
    return found


# What no argument may be, but for those whose default it is or that take arrays, lists or names.
NONSENSE = ("nonsense", "1", b"1", 1j, {}, {"a": 1}, set(), _Odd(), object, 10 ** 400, np.datetime64("2020-01-01"), np.complex64(1),
            np.array("x"), np.array([1.0, 2.0], object), np.ma.masked_array([1.0], [True]), np.matrix([[1.0]]), _cycle(), lambda: 0,
            range(0), slice(None), Ellipsis)
NUMBERS = (None, -1, 0, 1, 2, 3, 7, 2 ** 31 - 1, 2 ** 31, 2 ** 63, -2 ** 63, 2 ** 64, 1.0, 1.5, -0.5, 0.0, 1e-300, 1e300, float("nan"),
           float("inf"), True, False, np.int8(1), np.uint64(2 ** 63), np.float16(0.5), (), (1,), (1, 1), (1, 1, 1), (-1, -1), (0, 0), [1],
           "", "relu", "NHWC")


class Call:
    """A recorded call: the function, and the value of each of its parameters."""

    def __init__(self, name, function, arguments):
        self.name, self.function, self.arguments = name, function, arguments

    def copied(self):
        """The same with arrays of its own."""
        return Call(self.name, self.function, {key: _copy(value) for key, value in self.arguments.items()})

    def run(self):
        return self.function(**self.arguments)


def _copy(value):
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, (list, tuple)) and not isinstance(value, str) and any(isinstance(v, np.ndarray) for v in value):
        return type(value)(_copy(v) for v in value)
    return value


@contextlib.contextmanager
def recorded(name):
    """The calls of a public function, as {parameter: value}, in a list; they are not made."""
    function, calls = getattr(dnnkern, name), []

    def record(*args, **kwargs):
        bound = inspect.signature(function).bind(*args, **kwargs)
        calls.append(Call(name, function, dict(bound.arguments)))
        raise StopIteration  # nothing of the call is needed
    setattr(dnnkern, name, record)
    try:
        yield calls
    finally:
        setattr(dnnkern, name, function)


def calls_of(op, most=12):
    """Plain calls of an operation from its smallest cases, of different dtypes."""
    found = []
    for case in sorted(sample.CASES[op].values(), key=lambda c: c.work):
        places = [p for p in case.inputs().values() if p is not None]
        if case.work > LARGEST or not all(p.size for p in places) or case.in_place():
            continue
        values = case.values("float")
        arrays = {name: None if p is None else np.ascontiguousarray(values[name]).astype(cases.numpy_dtype(p.dtype)).reshape(p.shape)
                  for name, p in case.inputs().items()}
        with recorded(op) as calls, contextlib.suppress(StopIteration, IndexError):  # some cases need a place for their results
            case.call(arrays, ())
        for call in calls:
            call.arguments.pop("out", None)
        found += calls
    random.Random(op).shuffle(found)
    return found[:most]


# ---- odd but valid

def dressed(value, rng):
    """The same value in other clothes; None where it has no others."""
    if isinstance(value, np.ndarray):
        return rng.choice((_strided, _backwards, _other_order, _expanded_base, _torch))(value)
    if isinstance(value, bool):
        return np.bool_(value)
    if isinstance(value, int):
        able = [make(value) for make in (np.int64, np.int32, np.int16) if np.iinfo(make).min <= value <= np.iinfo(make).max]
        return rng.choice(able or [None])
    if isinstance(value, float):
        return rng.choice((np.float64(value), np.array(value)) + ((np.float32(value),) if float(np.float32(value)) == value else ()))
    if isinstance(value, tuple) and value and all(isinstance(v, int) for v in value):
        return rng.choice((list(value), tuple(np.int64(v) for v in value)))
    return None


def _strided(a):
    wide = np.full((*a.shape[:-1], 2 * a.shape[-1]) if a.ndim else (2,), 77).astype(a.dtype)
    inside = wide[..., ::2] if a.ndim else wide[0:1].reshape(())
    inside[...] = a
    return inside


def _backwards(a):
    return np.ascontiguousarray(a[::-1])[::-1] if a.ndim else a.copy()


def _other_order(a):
    return np.asfortranarray(a)


def _expanded_base(a):
    wide = np.zeros((a.size + 3,), a.dtype)
    wide[1:1 + a.size] = a.reshape(-1)
    return wide[1:1 + a.size].reshape(a.shape)


def _torch(a):
    import torch
    if a.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(a.view(np.int16).copy()).view(torch.bfloat16)
    try:
        return torch.from_numpy(a.copy())
    except TypeError:  # 8-bit floats, unsigned integers
        return a.copy()


def as_numpy(result):
    """Results as a list of arrays of float64, or of what they are."""
    found = []
    for r in result if isinstance(result, tuple) else (result,):
        if hasattr(r, "detach"):
            import torch
            r = (r.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if r.dtype == torch.bfloat16 else r.numpy())
        found.append(None if r is None else np.asarray(r).astype(np.float64))
    return found


# ---- one call

class Findings:
    """What was found, by kind and place, the first of each with how to repeat it."""

    def __init__(self):
        self.first, self.counts, self.calls, self.refused = {}, collections.Counter(), 0, 0

    def add(self, kind, call, parameter, value, detail):
        key = kind, call.name, parameter, type(value).__name__
        self.counts[key] += 1
        if key not in self.first:
            arguments = {k: f"{v.dtype}{v.shape}" if isinstance(v, np.ndarray) else v for k, v in call.arguments.items()}
            self.first[key] = f"{kind}: {call.name}({parameter}={value!r:.80}): {detail}\n    from {arguments!r:.300}"


@contextlib.contextmanager
def limited(seconds):
    """TimeoutError after so many seconds, where a signal can raise it."""
    def stop(*_):
        raise TimeoutError(f"took longer than {seconds} s")
    old = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)


def _same(before, after):
    """Whether an argument's arrays hold the same bytes."""
    return all(np.array_equal(np.frombuffer(a.tobytes(), np.uint8), np.frombuffer(b.tobytes(), np.uint8))
               for a, b in zip(_arrays(before), _arrays(after)))


def _arrays(value):
    return [v for v in (value if isinstance(value, (list, tuple)) else (value,)) if isinstance(v, np.ndarray) and v.dtype != object]


def try_valid(call, parameter, value, findings):
    """The same result, to rounding, with an argument in other clothes."""
    plain, other = call.copied(), call.copied()
    for one in (plain, other):
        one.arguments.setdefault("algo", "naive")
    other.arguments[parameter] = value
    try:
        expected = as_numpy(plain.run())
    except ALLOWED:
        return  # the case forces what naive is not
    try:
        got = as_numpy(other.run())
    except Exception as error:
        findings.add("refused though valid", call, parameter, value, f"{type(error).__name__}: {error}")
        return
    for e, g in zip(expected, got):
        if (e is None) != (g is None) or e is not None and not np.array_equal(e, g, equal_nan=True):
            findings.add("another result", call, parameter, value, "differs from that of the plain argument")


def try_invalid(call, parameter, value, findings):
    """An error that names function and argument, or a result; inputs stay as they are."""
    wild, before = call.copied(), call.copied()
    wild.arguments[parameter] = value
    try:
        with limited(SECONDS):
            wild.run()
    except ALLOWED as error:
        findings.refused += 1
        message = str(error)
        if not message.startswith(call.name):
            findings.add("does not begin with the function", call, parameter, value, f"{type(error).__name__}: {message}")
        elif parameter not in message and not isinstance(call.arguments.get(parameter), np.ndarray):
            findings.add("does not name the argument", call, parameter, value, f"{type(error).__name__}: {message}")
        if "\n" in message and not isinstance(error, NotSupported):
            findings.add("is not one line", call, parameter, value, message)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        findings.add("escapes", call, parameter, value, f"{type(error).__name__}: {error} at {last.filename}:{last.lineno}")
        return
    else:
        if any(value is v for v in NONSENSE):
            findings.add("accepted", call, parameter, value, "nonsense gave a result")
            return
    changed = [key for key, old in before.arguments.items()
               if key != parameter and key not in UPDATED and not _same(old, wild.arguments[key])]
    if changed:
        findings.add("changed", call, parameter, value, f"{changed} was written")


UPDATED = {"running_mean", "running_var", "params", "momenta", "m", "v", "vmax", "squares", "sums", "out", "master", "x", "c", "workspace",
           "grads", "square_avg", "momentum_buffer"}
# Parameters that take anything of a kind: names, arrays or lists.
ANYTHING = {"stream"}


def one(rng, calls, findings):
    """A random call."""
    call = rng.choice(calls)
    findings.calls += 1
    parameters = list(inspect.signature(call.function).parameters)
    parameter = rng.choice([p for p in parameters if p not in ANYTHING])
    present = call.arguments.get(parameter)
    if rng.random() < 0.3 and (value := dressed(present, rng)) is not None:
        return try_valid(call, parameter, value, findings)
    return try_invalid(call, parameter, rng.choice(NONSENSE if rng.random() < 0.6 else NUMBERS), findings)


def fuzz(ops, calls, seed):
    """`calls` random calls of these operations."""
    findings, rng, able = Findings(), random.Random(seed), {op: calls_of(op) for op in ops}
    able = {op: some for op, some in able.items() if some}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(calls):
            one(rng, able[rng.choice(list(able))], findings)
    return findings


def main(words=None):
    parser = argparse.ArgumentParser(description="Random calls of every public function.")
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--op", default=",".join(sample.OPS))
    words = parser.parse_args(words)
    findings = fuzz(words.op.split(","), words.calls, words.seed)
    for key, text in sorted(findings.first.items()):
        print(f"{findings.counts[key]:5} x {text}")
    print(f"{findings.calls} calls, {findings.refused} refused, {len(findings.first)} findings")
    return 1 if findings.first else 0


if __name__ == "__main__":
    sys.exit(main())
