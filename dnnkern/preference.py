"""Which algorithm a program prefers for calls that force none: `dispatch.prefer`, and the environment variable DNNKERN_PREFER.

In the simulator the choice of a GPU is a bad one for most programs: what is fastest there runs many threads that work together, and takes
several times as long to simulate as the simplest algorithm. So calls take what is quick to simulate, unless a preference is given.
"""
import contextlib
import contextvars
import logging
import math
import os

VARIABLE = "DNNKERN_PREFER"
DEVICE = "device"
LONG = 2.0  # seconds of a simulated call that are worth a remark
# A thread of a warpgroup takes the simulator 200 to 400 us, an operation of naive 1 us in products and convolutions, 6 to 11 in
# attention. With 100 operations per thread as the limit, 62 small problems of all families took 23 s; by the quickest algorithm of each
# 22 s, by what an H200 would run 167 s.
FLOPS_OF_A_SIMULATED_THREAD = 100
USED = []
"""Empty until a `block` is first entered: till then no call has to look for a preference. Never emptied, since a context can outlive the
block in which it was copied."""

_context = contextvars.ContextVar(VARIABLE, default=())
of_context = _context.get
"""() -> what a call is remembered under beside all else: () or ((VARIABLE, name),)."""
_remarked = []


def current() -> str | None:
    """The name of the innermost block here, else DNNKERN_PREFER's, else None."""
    for _, name in of_context():
        return name
    return os.environ.get(VARIABLE) or None


@contextlib.contextmanager
def block(name):
    """Within it, calls of this thread (or task) prefer `name`; None ends the preference of a block around it."""
    if not USED:
        USED.append(True)
    token = _context.set(() if name is None else ((VARIABLE, name),))
    try:
        yield
    finally:
        _context.reset(token)


def quick_to_simulate(able, problem, device, workspace_limit):
    """naive, which has no threads that wait for each other; or the algorithm of whole warpgroups, whose products of tiles are one step of
    the simulator each, that has the fewest threads, where they have enough to multiply. None where there is neither."""
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
    """Say once, of a call that took long in the simulator, what could make it quicker."""
    if seconds > LONG and not _remarked:
        _remarked.append(title)
        logging.getLogger("dnnkern.simulator").warning(
            "dnnkern: %s took %.1f s in the simulator. Where algo= is not given, %s (or dispatch.prefer) decides what runs: unset, what is "
            "likely to be quick to simulate; naive, the simplest algorithm; device, what a GPU would choose. This is said once.",
            title, seconds, VARIABLE)


__all__ = ["block", "current", "quick_to_simulate"]
