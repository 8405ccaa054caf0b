"""Kernels compiled ahead, in another process: `compile_jobs` starts it, and reads what it says."""
import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field

from . import pending
from .jobs import THREADS
from .processor import cores
from .sources import PACKAGE

_MAIN = "import sys; sys.path.insert(0, {root!r}); from dnnkern.host.compiler import main; main()"


@dataclass
class Compiled:
    """What has been compiled so far.

    Attributes
    ----------
    kernels : int
        Distinct kernels of all problems; 0 until they are planned.
    missing : int
        Those that the cache had not.
    done : int
        Of these, compiled and kept.
    failed : dict
        What was not compiled, a problem or a kernel's file, and why. A call compiles it itself, or says what is wrong.
    """
    kernels: int = 0
    missing: int = 0
    done: int = 0
    failed: dict = field(default_factory=dict)


class Compilation:
    """A process that compiles the kernels of jobs; it begins to load its compilers at once.

    Parameters
    ----------
    target : Device
        A device that the kernels are for: all jobs are for processors, or all for GPUs.
    progress : callable(Compiled), optional
        Called after every change.

    Attributes
    ----------
    files : dict
        The kernels' files in the cache, each with its key in packs; once they are planned.
    """

    def __init__(self, target, progress=None):
        self.progress, self.compiled, self.jobs, self._left, self._thread = progress, Compiled(), [], None, None
        self.files = {}
        self._process = subprocess.Popen([sys.executable, "-c", _MAIN.format(root=str(PACKAGE.parent))], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, env=_environment(target), start_new_session=True)
        self._send(target)

    def compile(self, jobs, workers=None, kept=0):
        """Compile the kernels of these jobs.

        Parameters
        ----------
        jobs : sequence of compiler.Job
        workers : int, optional
            Processes that compile at once; default: the cores.
        kept : int
            Kernels that are wanted besides, and are in the cache.
        """
        self.jobs, self.compiled.kernels = list(jobs), kept
        what = [self._pickled(job) for job in self.jobs], workers or cores()
        threading.Thread(target=self._send_last, args=(what,), name=f"{THREADS}-jobs", daemon=True).start()

    def _send_last(self, what):
        """In a thread of its own: a pipe takes 64 KB, and the process reads when it has loaded its compilers."""
        self._send(what)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def _send(self, what):
        with contextlib.suppress(BrokenPipeError):  # it has ended; why is on standard error, and `wait` says so
            self._process.stdin.write(pickle.dumps(what))
            self._process.stdin.flush()

    def end(self):
        """End the process, with its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _pickled(self, job):
        try:
            return pickle.dumps(job)
        except (pickle.PicklingError, AttributeError, TypeError):  # what a program has defined in a function
            return b""

    def wait(self) -> Compiled:
        """Until all is done; what happened. A process that is interrupted here ends its compilers, and keeps what they have made."""
        if self._thread is not None:
            self._thread.join()
        else:
            self._read()
        return self.compiled

    def go_on(self):
        """Let it compile while this process goes on: a call that misses a kernel waits for that one, or compiles it."""
        self._thread = threading.Thread(target=self._read, name=f"{THREADS}-ahead", daemon=True)
        self._thread.start()

    def _read(self):
        try:
            for line in self._process.stdout:
                self._heard(json.loads(line))
                if self.progress is not None:
                    self.progress(self.compiled)
            self._process.wait()
        except BaseException:
            self.end()
            raise
        finally:
            self._process.stdout.close()
            pending.withdraw(self._left or ())
            if self._process.returncode:
                why = f"the process that compiles has ended ({self._process.returncode})"
                self.compiled.failed.update(dict.fromkeys(map(_title, self.jobs) if self._left is None else self._left, why))

    def _heard(self, line):
        compiled = self.compiled
        if "planned" in line:
            self._left = dict.fromkeys(line["missing"])
            for name in line["missing"]:
                pending.announce(name, pending.QUEUED)
            self.files = line["planned"]
            compiled.kernels += len(self.files)
            compiled.missing = len(line["missing"])
            compiled.failed.update((_title(self.jobs[number]), why) for number, why in line["refused"])
        elif "started" in line:
            pending.announce(line["started"], pending.STARTED)
        else:
            self._left.pop(line["done"], None)
            pending.withdraw([line["done"]])
            if line["error"] is None:
                compiled.done += 1
            else:
                compiled.failed[line["done"]] = line["error"]


def _title(job):
    return str(job.problem)


def _environment(target):
    """That of the process: its device is of the kind that the kernels are for, which need not be here."""
    found = {name: value for name, value in os.environ.items() if name not in ("DNNKERN_DEVICE", "NUMBA_ENABLE_CUDASIM")}
    return {**found, "DNNKERN_DEVICE": "cpu"} if target.is_processor else {**found, "NUMBA_ENABLE_CUDASIM": "0"}
