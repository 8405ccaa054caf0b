"""The process that compiles the kernels of problems, for another one or for another architecture, into the disk cache.

It is given `Job`s, plans them, and compiles each kernel that the cache lacks in children of its own (`jobs`): it has one thread,
so it can fork whatever the program that wants the kernels has loaded. What it says are lines of JSON, one for each thing that happens:
``{"planned": ...}`` once, then ``{"started": name}`` and ``{"done": name, "error": ...}`` for each file of the cache.
"""
import functools
import json
import mmap
import os
import pickle
import sys
from typing import NamedTuple

from .compile import is_missing
from .jobs import side_by_side


class Job(NamedTuple):
    """A problem whose kernels are wanted.

    Attributes
    ----------
    op : str
    problem : problem of that operation
    device : Device
        What they are compiled for.
    algo, config : str and Config, optional
        The algorithm, as dispatch has chosen it; without it `choice` is asked.
    choice : tuple of (str, value)
        What the call said of its choice: algo, allow, ...
    """
    op: str
    problem: object
    device: object
    algo: str | None = None
    config: object = None
    choice: tuple = ()

    def launches(self) -> tuple:
        """Its plan's launches."""
        from ..dispatch import get_algorithm, named
        if self.algo is None:
            algorithm = get_algorithm(self.op, self.problem, device=self.device, **dict(self.choice))
        else:
            algorithm = named(self.op, self.algo)
            algorithm = algorithm if self.config is None else algorithm.bound_to(self.config)
        return algorithm.build(self.problem, self.device, algorithm.config)


def file_and_compile(launch, target):
    """(name of a kernel's file in the cache, function that compiles it)"""
    if target.is_processor:
        from ..device.cpu.launch import compile_kernel, file_of
        given = launch.kernel, launch.signature
    else:
        from .compile import compile_kernel, file_of
        given = launch.kernel, launch.signature, target.arch
    return file_of(*given), functools.partial(compile_kernel, *given)


def plan(jobs) -> tuple:
    """({file: function that compiles it} of all kernels, [(number of a job, why it has none)]); the jobs are pickled one by one."""
    wanted, refused = {}, []
    for number, pickled in enumerate(jobs):
        try:
            job = pickle.loads(pickled)
            wanted.update(file_and_compile(launch, job.device) for launch in job.launches())
        except Exception as error:  # of this job alone: what a program defines or registers is not known here
            refused.append((number, f"{type(error).__name__}: {error}"))
    return wanted, refused


def work(jobs, workers, say):
    """Plan the jobs and compile what is missing; `say` is called with each line."""
    wanted, refused = plan(jobs)
    missing = [name for name in wanted if is_missing(name)]
    say({"planned": len(wanted), "missing": missing, "refused": refused})
    ended = mmap.mmap(-1, len(missing) + 1)  # shared with the children, of which each may be killed
    tasks = [functools.partial(_compile, name, wanted[name], say, ended, number) for number, name in enumerate(missing)]
    side_by_side(tasks, workers)
    for number, task in enumerate(tasks):
        if not ended[number]:
            task()


def _compile(name, compile_it, say, ended, number):
    error = None
    if is_missing(name):  # nobody has made it in the meantime
        say({"started": name})
        try:
            compile_it()
            error = "it could not be kept" if is_missing(name) else None
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
    say({"done": name, "error": error})
    ended[number] = 1


def _say(out, line):
    """Write a line; who wanted the kernels may be gone, and nobody else does."""
    left = memoryview(json.dumps(line).encode() + b"\n")
    try:
        while left:
            left = left[os.write(out, left):]
    except BrokenPipeError:
        os._exit(1)


def _warm_up(target):
    """Compile a kernel that does nothing: what compilers load and set up at their first kernel is there before the children are made."""
    from ..device import i32, jit

    @jit
    def nothing(x):
        x[0] = i32(0)
    if target.is_processor:
        from ..device import cpu
        cpu.compile_kernel(nothing, ("int32*",))
    else:
        from .compile import compile_anew
        compile_anew(nothing, ("int32*",), target.arch)


def main():
    """Do what standard input says: a device, then jobs and workers. Lines go to what was standard output, all else to standard error."""
    out = os.dup(1)
    os.dup2(2, 1)
    _warm_up(pickle.load(sys.stdin.buffer))
    work(*pickle.load(sys.stdin.buffer), functools.partial(_say, out))
