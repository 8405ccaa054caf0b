"""Work that leaves its results on disk, done in parallel in forked children: kernels are closures, which cannot be sent to other processes.

A child has one thread, a copy of the caller's: locks that other threads held stay held in it. So only a process with no other thread of
Python than ours forks (those of libraries hold no lock that compiling takes), and not under JAX, which warns of it. Wherever a child fails,
or does not end, its work is simply not there, and who needs the result does it again: nothing is lost but time.
"""
import contextlib
import os
import signal
import struct
import sys
import threading
import time
import warnings

from .processor import cores

TIMEOUT = 120.0  # seconds that a child may take after this process has nothing left to do; then it is ended
_SIGNALS = signal.SIGINT, signal.SIGTERM
THREADS = "dnnkern"  # names of our own threads begin so: they wait for work when this one compiles


def may_fork() -> bool:
    """Whether this process can have children that compile."""
    others = [t for t in threading.enumerate() if t is not threading.current_thread() and not t.name.startswith(THREADS)]
    return sys.platform == "linux" and not others and "jax" not in sys.modules


def forks() -> bool:
    """Whether it can, and there are cores for them."""
    return cores() > 1 and may_fork() and os.getloadavg()[0] < cores() + 0.5  # else a child only takes from this one


def side_by_side(tasks, workers=None):
    """Call all of `tasks`, in as many processes as there are cores, this one among them.

    Parameters
    ----------
    tasks : sequence of callables
        Without arguments. What they return is ignored, and what they raise: they may run in a child.
    workers : int, optional
        Processes; default the cores that this process may use, of a machine that is not busy. One where it cannot fork.
    """
    workers = min(len(tasks), workers or cores()) if (may_fork() if workers else forks()) else 1
    reading, writing = os.pipe()  # the numbers of the tasks: who is free takes the next
    os.write(writing, struct.pack(f"{len(tasks)}H", *range(len(tasks))))
    os.close(writing)
    children = []
    try:
        for _ in range(workers - 1):
            _fork(tasks, reading, children)
        _work(tasks, reading)
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline and not all([_has_ended(child) for child in children]):
            time.sleep(0.002)
    finally:  # after Ctrl-C, too
        os.close(reading)
        for child in children:
            _end(child)


def _work(tasks, reading):
    while number := os.read(reading, 2):
        with contextlib.suppress(Exception):
            tasks[struct.unpack("H", number)[0]]()


def _fork(tasks, reading, children):
    """Start a child that works until nothing is left. It says nothing, and leaves nothing but what it writes to disk."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # none between the fork and what makes a child of it, or one known here
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on, of any other thread: those of NumPy's products
            child = os.fork()
        if not child:
            _live(tasks, reading, before)
        children.append(child)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _live(tasks, reading, mask):
    try:
        for each in _SIGNALS:  # not what the program does then
            signal.signal(each, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        sys.stdout = sys.stderr = open(os.devnull, "w")  # what a program has put there, and what LLVM writes to
        for stream in (1, 2):
            os.dup2(sys.stdout.fileno(), stream)
        _work(tasks, reading)
    finally:
        os._exit(0)


def _has_ended(child):
    """Whether it has; it stays there to be waited for, so that its number is not another process's."""
    with contextlib.suppress(ChildProcessError):  # a program that waits for any child, or for none, has had it
        return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return True


def _end(child):
    with contextlib.suppress(ChildProcessError, ProcessLookupError):
        if not _has_ended(child):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
