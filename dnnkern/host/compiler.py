"""The process that compiles the kernels of problems, for another one or for another architecture, into the disk cache.

It is given `Job`s, plans them, and compiles each kernel that is missing in children of its own (`jobs`): it has one thread, so it can fork
whatever the program that wants the kernels has loaded. What it says are lines of JSON: ``{"planned": ..., "missing": ...}`` once, then
``{"started": name}`` and ``{"done": name, "error": ...}`` for each file of the cache.
"""
import functools
import json
import mmap
import os
import pickle
import sys
import tempfile
from typing import NamedTuple

from .compile import is_missing
from .jobs import side_by_side

_SHARE = 16  # jobs that a child plans at once


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

    def chosen(self) -> "Job":
        """The job with its algorithm."""
        if self.algo is not None:
            return self
        from ..dispatch import get_algorithm
        algorithm = get_algorithm(self.op, self.problem, device=self.device, **dict(self.choice))
        return self._replace(algo=algorithm.name, config=algorithm.config)

    def launches(self) -> tuple:
        """Its plan's launches."""
        from ..dispatch import named
        job = self.chosen()
        return named(job.op, job.algo).build(job.problem, job.device, job.config)

    def kernels(self) -> list:
        """Its kernels, each once."""
        return kernels_of(self.launches(), self.device)


class Wanted(NamedTuple):
    """A kernel with the types of its parameters, for a device."""
    kernel: object
    signature: tuple
    device: object

    @property
    def file(self) -> str:
        """Name of its file in the cache."""
        if self.device.is_processor:
            from ..device.cpu.launch import file_of
            return file_of(self.kernel, self.signature)
        from .compile import file_of
        return file_of(self.kernel, self.signature, self.device.arch)

    @property
    def is_missing(self) -> bool:
        """Whether a call would have to compile it."""
        if not is_missing(self.file):
            return False
        from .compile import is_packed
        return self.device.is_processor or not is_packed(self.kernel, self.signature, self.device.arch)

    def compile(self):
        """Compile it into the cache."""
        if self.device.is_processor:
            from ..device.cpu.launch import compile_kernel
            compile_kernel(self.kernel, self.signature)
        else:
            from .compile import compile_kernel
            compile_kernel(self.kernel, self.signature, self.device.arch)

    @property
    def pack_key(self) -> str | None:
        """Its key in packs."""
        from .compile import pack_key
        key = None if self.device.is_processor else pack_key(self.kernel, self.signature, self.device.arch)
        return key and key.hex()


class Planned(NamedTuple):
    """A file of the cache that is wanted: which kernel of which job, its key in packs, whether it is missing."""
    job: Job
    number: int
    pack_key: str | None
    missing: bool

    def compile(self):
        """Compile it."""
        self.job.kernels()[self.number].compile()


def kernels_of(launches, device) -> list:
    """The kernels of launches on a device, each once."""
    return list(dict.fromkeys(Wanted(launch.kernel, launch.signature, device) for launch in launches))


def plan(jobs, workers) -> tuple:
    """({file: Planned}, [(number of a job, why it has no kernels)]). The jobs are pickled one by one; many are planned side by side."""
    shares = [range(start, min(start + _SHARE, len(jobs))) for start in range(0, len(jobs), _SHARE)]
    found, refused = {}, []
    with tempfile.TemporaryDirectory() as folder:
        files = [os.path.join(folder, str(share.start)) for share in shares]
        if len(shares) > 2 and workers > 1:
            side_by_side([functools.partial(_plan_into, file, jobs, share) for file, share in zip(files, shares)], workers)
        for file, share in zip(files, shares):
            try:
                with open(file, "rb") as kept:
                    wanted, why = pickle.load(kept)
            except (OSError, EOFError, pickle.UnpicklingError):  # none was made, or who made it was killed
                wanted, why = _plan(jobs, share)
            for name, one in wanted.items():
                found.setdefault(name, one)
            refused += why
    return found, refused


def _plan(jobs, numbers):
    wanted, refused = {}, []
    for number in numbers:
        try:
            job = pickle.loads(jobs[number]).chosen()
            for k, each in enumerate(job.kernels()):
                if each.file not in wanted:
                    wanted[each.file] = Planned(job, k, each.pack_key, each.is_missing)
        except Exception as error:  # of this job alone: what a program defines or registers is not known here
            refused.append((number, f"{type(error).__name__}: {error}"))
    return wanted, refused


def _plan_into(file, jobs, numbers):
    planned = pickle.dumps(_plan(jobs, numbers))
    with open(file, "wb") as made:
        made.write(planned)


def work(jobs, workers, say):
    """Plan the jobs and compile what is missing; `say` is called with each line."""
    wanted, refused = plan(jobs, workers)
    missing = [name for name, one in wanted.items() if one.missing]
    say({"planned": {name: one.pack_key for name, one in wanted.items()}, "missing": missing, "refused": refused})
    ended = mmap.mmap(-1, len(missing) + 1)  # shared with the children, of which each may be killed
    tasks = [functools.partial(_compile, name, wanted[name], say, ended, number) for number, name in enumerate(missing)]
    side_by_side(tasks, workers)
    for number, task in enumerate(tasks):
        if not ended[number]:
            task()


def _compile(name, one, say, ended, number):
    error = None
    if is_missing(name):  # nobody has made it in the meantime
        say({"started": name})
        try:
            one.compile()
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
