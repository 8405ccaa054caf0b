"""Commands that repeat the calls of a program: what checks and logs print."""
import functools
import importlib
import inspect
import json
import shlex
import threading

from ..algorithm import problem_record
from ..device import _environment

CHECKS = _environment.checks()
IS_TOLD = bool(CHECKS or _environment.words("DNNKERN_LOG", ("dispatch",)))
"""Whether commands are printed in this process; otherwise nothing is kept of a call."""
_calls = threading.local()  # `now`: of the public function that runs, (name, signature, positional arguments, keywords)


def repeatable(function):
    """A public function whose calls `command` can write."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args, **keywords):
        before, _calls.now = getattr(_calls, "now", None), (function.__name__, signature, args, keywords)
        try:
            return function(*args, **keywords)
        finally:
            _calls.now = before
    return call


def command(verb, problem) -> str:
    """``dnnkern check`` or the like with the problem: the call that is being made, or, where the problem is not its, a record."""
    try:
        function, signature, args, keywords = _calls.now
        spoken = importlib.import_module("dnnkern.call_words")  # which imports the operations, as these import this
        given = signature.bind(*args, **keywords).arguments
        words = spoken.words_of(function, given | given.pop("parameters", {}))
        if spoken.problem_of(function, words) != problem:
            raise ValueError("another problem")
    except (AttributeError, TypeError, ValueError):  # a graph's, or one that has no words
        function, words = problem.op, [json.dumps(problem_record(problem), separators=(",", ":"))]
    return f"python -m dnnkern {verb} {function} {shlex.join(words)}"
