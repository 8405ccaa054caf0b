"""The algorithm preferred by calls that force none: `dispatch.prefer`, and the environment variable DNNKERN_PREFER.

In the simulator the choice of a GPU suits few programs: the fastest algorithms run many cooperating threads and take several times as long
to simulate as the simplest one. So dispatch takes what is quick to simulate, unless there is a preference.
"""
import contextlib
import contextvars
import logging
import math
import os

VARIABLE = "DNNKERN_PREFER"
RECORDING = "recording"  # the variable whose value records the calls of a context (`dnnkern.warming`)
DEVICE = "device"
LONG = 2.0  # seconds of a simulated call that deserve a hint
# A thread of a warpgroup takes the simulator 200 to 400 us, an operation of naive 1 us in products and convolutions, 6 to 11 in
# attention. With 100 operations per thread as the limit, 62 small problems of all families took 23 s; by the quickest algorithm of each
# 22 s, by what an H200 would run 167 s.
FLOPS_OF_A_SIMULATED_THREAD = 100
USED = []
"""Empty until a block of `within` is first entered: until then no call has to look at the context. Never emptied, since a context can
outlive the block in which it was copied."""
OPEN = []
"""The blocks of `within` that have not ended, of all threads."""
FOLLOWERS = []
"""Functions that are called with the context's pairs when a block of `within` begins and when it has ended: they carry them to threads that
work for this one."""

_context = contextvars.ContextVar(VARIABLE, default=())
of_context = _context.get
"""() -> what of the context is part of a cached call's key: pairs of a variable and its value."""
_remarked = []


def current() -> str | None:
    """The name of the innermost block here, else DNNKERN_PREFER's, else None."""
    return value_of(VARIABLE) or os.environ.get(VARIABLE) or None


def value_of(variable):
    """The value that the context has for a variable; None for none."""
    return next((value for name, value in of_context() if name == variable), None)


@contextlib.contextmanager
def block(name):
    """Calls of this thread (or task) in the block prefer `name`; None cancels the preference of an enclosing block."""
    with within(VARIABLE, name):
        yield


@contextlib.contextmanager
def within(variable, value):
    """In the block, the context of this thread (or task) has a value for a variable; None for none."""
    if not USED:
        USED.append(True)
    others = tuple(pair for pair in of_context() if pair[0] != variable)
    token = _context.set(others if value is None else (*others, (variable, value)))
    OPEN.append(token)
    try:
        _follow()
        yield
    finally:
        OPEN.remove(token)
        _context.reset(token)
        _follow()


@contextlib.contextmanager
def context_of(pairs):
    """In the block, the context of this thread has these pairs: those of the thread that it works for."""
    token = _context.set(pairs)
    try:
        yield
    finally:
        _context.reset(token)


def _follow():
    for follower in FOLLOWERS:
        follower(of_context())


def quick_to_simulate(able, problem, device, workspace_limit):
    """naive, whose threads do not wait for each other; or, for larger products, the algorithm of whole warpgroups with the fewest threads:
    its products are one simulator step each. None if there is neither."""
    best = next((a.configured(problem, device, workspace_limit) for a in able if a.name == "naive"), None)
    fewest = getattr(problem, "flops", 0) / FLOPS_OF_A_SIMULATED_THREAD
    for algorithm in able:
        if algorithm.arch == device.arch and "TENSOR_CORE" in algorithm.notes.names:
            algorithm = algorithm.configured(problem, device, workspace_limit)
            threads = sum(math.prod((*launch.grid, *launch.block)) for launch in algorithm.build(problem, device, algorithm.config))
            if threads < fewest:
                best, fewest = algorithm, threads
    return best


def remark(title, seconds):
    """Once, after a call that took long in the simulator, print what could make it quicker."""
    if seconds > LONG and not _remarked:
        _remarked.append(title)
        logging.getLogger("dnnkern.simulator").warning(
            "dnnkern: %s took %.1f s in the simulator. If algo= is not given, %s (or dispatch.prefer) selects what runs: unset, what is "
            "likely to be quick to simulate; naive, the simplest algorithm; device, the choice of a GPU. This hint is printed once.",
            title, seconds, VARIABLE)


__all__ = ["block", "current", "quick_to_simulate"]
