"""`warm` and `recording`: the kernels of a program, compiled side by side before they are needed."""
import contextlib

from .device import HOST_MEMORY, SIMULATED
from .host import driver
from .host.ahead import Compilation, Compiled
from .host.compiler import Job, kernels_of
from .host.executable import plan_ahead
from .host.paths import cache_dir
from .host.scalars import integer, shown
from .preference import RECORDING, within


class Recorder:
    """The calls that a program has made while it was recorded; none of them has run.

    Parameters
    ----------
    progress : callable, optional
        As `recording` takes it.
    here : bool
        Whether the kernels are wanted for the device of this process.

    Attributes
    ----------
    jobs : list of Job
        Each problem with the algorithm that was chosen for it, once.
    compiled : Compiled or None
        What has become of their kernels, once they are compiled.
    """

    def __init__(self, progress=None, here=True):
        self._jobs, self._kernels, self._lacking, self._progress = {}, {}, [], progress
        self._here = here and not SIMULATED and cache_dir() is not None
        self.compiled = self._compilation = None

    @property
    def jobs(self):
        return list(self._jobs.values())

    def executable(self, operation, problem, algorithm, device, choice, fresh):
        """What stands for the plan of a call; `fresh` are the outputs that the call allocates, by their position among its values."""
        key = operation.op, problem, str(algorithm)
        if key not in self._jobs:
            job = self._jobs[key] = Job(operation.op, problem, device, algorithm.name, algorithm.config, tuple(choice.items()))
            if self._here:
                self._note(job, kernels_of(plan_ahead(problem, algorithm, device), device))
        return _Recorded(problem, fresh, device.index)

    def _note(self, job, kernels):
        """Look which of a job's kernels the cache lacks; from the first one on the process that compiles them gets ready."""
        new = {kernel.file: kernel for kernel in kernels if kernel.file not in self._kernels}
        self._kernels.update((name, kernel.is_missing) for name, kernel in new.items())
        if any(self._kernels[name] for name in new):
            self._lacking.append(job)
            if self._compilation is None:
                self._compilation = Compilation(job.device, self._progress)

    def for_devices(self, devices):
        """The jobs with what dispatch would choose for other devices."""
        return [job._replace(device=device, algo=None, config=None) for device in devices for job in self.jobs]

    def compile(self, wait=True, workers=None):
        """Compile what is missing; a `Compiled`, which goes on changing unless it is waited for."""
        kept = sum(not missing for missing in self._kernels.values())
        if self._compilation is None:
            return Compiled(kernels=kept)
        self._compilation.compile(self._lacking, workers, kept)
        if wait:
            return self._compilation.wait()
        self._compilation.go_on()
        return self._compilation.compiled

    def end(self):
        """Compile nothing."""
        if self._compilation is not None:
            self._compilation.end()


class _Recorded:
    """Stands for a plan: the outputs that a call allocates are zeros, so that a program that reads them finds numbers and valid indices."""

    def __init__(self, problem, fresh, index):
        self.outputs, self.index = dict(zip(fresh, problem.outputs)), index

    def execute(self, values, stream):
        for position, tensor in self.outputs.items():
            if HOST_MEMORY:
                values[position][...] = 0
            elif tensor.nbytes:
                from .host.device import on_device
                with on_device(self.index):
                    driver.cuMemsetD8Async(values[position], 0, tensor.nbytes, stream)


@contextlib.contextmanager
def recording(*, wait=True, workers=None, progress=None):
    """Record a program's calls in the block instead of running them, then compile all their kernels side by side.

    A call in the block is checked and gets its algorithm as ever. Nothing is launched: arrays that it returns are zeros, arrays that it
    would have written in place or as `out` keep their values. It applies to calls of the thread (or task) that enters it.

    Parameters
    ----------
    wait : bool
        Whether to wait for the kernels where the block ends. Otherwise the program goes on, and a call whose kernel is not there waits for
        that one.
    workers : int, optional
        Processes that compile at once; default: the cores that this process may use.
    progress : callable, optional
        Called with a `Compiled` whenever it has changed.

    Yields
    ------
    Recorder
        Its `compiled` says what was done: `kernels`, `missing` of them in the cache, `done`, and what has `failed` with the reason.
        What has failed is compiled by the call that needs it.

    Raises
    ------
    ValueError
        `workers` is less than 1.

    Notes
    -----
    The kernels are compiled by a process of its own, which hands them over in the cache directory (`DNNKERN_CACHE_DIR`); without one
    nothing is compiled ahead. An exception that leaves the block is passed on, and nothing is compiled. The simulator compiles nothing.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x, w = np.ones((2, 8), np.float32), np.ones((8, 4), np.float32)
    >>> with dnnkern.recording() as recorded:
    ...     y = dnnkern.softmax_fwd(dnnkern.matmul(x, w))
    >>> [job.op for job in recorded.jobs]
    ['matmul', 'softmax_fwd']
    """
    if workers is not None:
        integer("recording", "workers", workers, 1)
    recorder = Recorder(progress)
    try:
        with within(RECORDING, recorder):
            yield recorder
    except BaseException:
        recorder.end()
        raise
    recorder.compiled = recorder.compile(wait, workers)


def compile_jobs(jobs, *, workers=None, progress=None, files=None):
    """Compile the kernels of these jobs, all for processors or all for GPUs; a `Compiled`. The dict `files` is given them, as
    `Compilation` has them."""
    if not jobs or jobs[0].device.is_simulated or cache_dir() is None:
        return Compiled()
    compilation = Compilation(jobs[0].device, progress)
    compilation.compile(jobs, workers)
    compiled = compilation.wait()
    if files is not None:
        files.update(compilation.files)
    return compiled


def warm(function, /, *args, **kwargs):
    """Compile all kernels of a call, side by side, without running it: ``recording`` around ``function(*args, **kwargs)``.

    Parameters
    ----------
    function : callable
        Calls functions of this library: one of them, or a training step.
    *args, **kwargs
        Its arguments.

    Returns
    -------
    Compiled
        How many `kernels` the calls have, how many were `missing` in the cache, `done`, and what `failed` and why.

    Raises
    ------
    TypeError
        `function` cannot be called.
    Exception
        What the function raises; nothing is compiled then.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x = np.ones((4, 16), np.float32)
    >>> dnnkern.warm(dnnkern.softmax_fwd, x).failed
    {}
    """
    if not callable(function):
        raise TypeError(f"warm: function is {shown(function)}; expected something to call")
    with recording() as recorded:
        function(*args, **kwargs)
    return recorded.compiled


__all__ = ["recording", "warm"]
