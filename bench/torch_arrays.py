"""PyTorch on the operands' memory and on the clock's stream: what the torch peers share. On the processor PyTorch's kernels for that.

ImportError where torch has no such device.
"""
import collections

import torch

from dnnkern.device import HOST_MEMORY, SIMULATED
from dnnkern.host.timing import Contender

if SIMULATED:
    raise ImportError("torch does not run in the simulator")
if not (HOST_MEMORY or torch.cuda.is_available()):
    raise ImportError("torch sees no CUDA device")


def tensors(operands, k) -> dict:
    """Operands and outputs of set k as torch tensors on the same memory; None for a missing one."""
    found = {}
    for name in (*operands.tensors, *operands.outputs):
        array = operands.array(k, name)
        if array is None:
            found[name] = None
            continue
        if HOST_MEMORY:
            tensor = torch.from_numpy(array)
        else:
            tensor = torch.as_tensor(array, device=torch.device("cuda", operands.device.index))
        wanted = getattr(torch, (operands.tensors.get(name) or operands.outputs[name]).dtype)
        found[name] = tensor if tensor.dtype == wanted else tensor.view(wanted)
    return found


def on_clock(clock):
    """Context in which torch works on the clock's stream."""
    return torch.cuda.stream(stream_of(clock))


def stream_of(clock):
    """The clock's stream; None on the processor, which torch's context takes too."""
    return None if HOST_MEMORY else torch.cuda.ExternalStream(clock.stream, device=clock.index)


class TorchContender(Contender):
    """Calls into torch, one for each set, captured with torch's own graphs: its allocator has to know of the capture.

    `captured`: False where a call copies from the host, which a graph cannot; it is then enqueued call by call, and where its kernels are
    short the time is the host's.
    """

    def __init__(self, name, calls, clock, captured=True):
        self.stream = stream_of(clock)
        self.calls, self.captured = calls, captured

        def call(k):
            with torch.cuda.stream(self.stream):
                calls[k]()
        super().__init__(name, call, len(calls))

    def on_stream(self):
        """Context in which torch works on the clock's stream."""
        return torch.cuda.stream(self.stream)

    def enqueue_holding(self, calls):
        """Enqueue calls, of which each result is kept for a turn of the sets: the allocator would give its memory to the next call, which
        would find it in the L2, where ours write to another set's."""
        kept = collections.deque(maxlen=self.sets - 1)
        for k in range(calls):
            kept.append(self.calls[k % self.sets]())

    def capture(self, clock, calls):
        if HOST_MEMORY or not self.captured:
            return lambda: self.enqueue(calls)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            self.enqueue_holding(calls)

        def replay():
            with torch.cuda.stream(self.stream):
                graph.replay()
        return replay
