"""What CUDA graphs save in cached calls of several kernels (`host.graphs`): ``python -m bench.replays``.

Both ways in turn, in one process, on torch tensors: kernel by kernel, and as a graph where the values come often. Microseconds a call,
medians of bursts: "host" is what the host spends, "all" the time until the device is through, of many calls. In the last rows layers of
one shape take turns: 24, each with a graph in the end, and more than are counted, which have none and should cost what they do kernel by
kernel.
Without a GPU the driver's functions do nothing: then the host's time shows what graphs cost, not what they save.
"""
import argparse
import contextlib
import itertools
import statistics
import sys
import time
from unittest import mock

from .cached import layer_calls
from .pretend import pretended_gpu

BURSTS, CALLS, WARM = 9, 400, 2000


def turns(count, real):
    """A batch normalization of so many layers of one shape, in turn."""
    import torch

    import dnnkern
    x, *channels = [torch.ones(shape, device="cuda" if real else "cpu") for shape in ((32, 64, 28, 28), (64,), (64,), (64,), (64,))]
    outs = [dnnkern.batch_norm_train_fwd(x, *channels)[1:] for _ in range(count)]
    y, layers = torch.empty_like(x), itertools.cycle(outs)
    return lambda: dnnkern.batch_norm_train_fwd(x, *channels, out=(y, *next(layers)))


def calls(real):
    """[(name, a call of several kernels)]."""
    from dnnkern.host import graphs
    found = [(name, call) for name, call in layer_calls("torch", real) if "norm" in name]
    return found + [(f"batch_norm_train_fwd, {count} layers in turn, out=", turns(count, real)) for count in (24, 2 * graphs.COUNTED)]


@contextlib.contextmanager
def kernel_by_kernel():
    """Within, nothing is launched as a graph."""
    from dnnkern.host.launch import Executable
    with mock.patch.object(Executable, "replay", Executable.enqueue):
        yield


def times(call, wait):
    """Microseconds (host, all) of a call, of one burst."""
    wait()
    start = time.perf_counter()
    for _ in range(CALLS // 4):
        call()
    host = time.perf_counter() - start
    wait()
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    wait()
    return 4e6 * host / CALLS, 1e6 * (time.perf_counter() - start) / CALLS


def compared(call, wait):
    """(host, all) kernel by kernel, and (host, all) with graphs."""
    from dnnkern import dispatch
    found = [], []
    for _ in range(BURSTS):
        for way, some in zip((kernel_by_kernel, contextlib.nullcontext), found):
            with way():
                dispatch.choices_changed()  # sites are made anew, for this way; plans and their graphs stay
                for _ in range(50 if some else WARM):
                    call()
                some.append(times(call, wait))
    return [[statistics.median(column) for column in zip(*some)] for some in found]


def main(argv=None) -> int:
    """Print a table."""
    from dnnkern.device import DEVICE
    from dnnkern.host import driver
    argparse.ArgumentParser(prog="python -m bench.replays", description="Time calls kernel by kernel and as graphs.").parse_args(argv)
    real = DEVICE == "cuda"
    with contextlib.nullcontext() if real else pretended_gpu():
        print("| call | host before | after | all before | after |\n|---|--:|--:|--:|--:|")
        for name, call in calls(real):
            (host, whole), (host_after, whole_after) = compared(call, driver.cuCtxSynchronize)
            print(f"| {name} | {host:.2f} | {host_after:.2f} | {whole:.2f} | {whole_after:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
