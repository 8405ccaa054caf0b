"""PyTorch on the operands' memory and on the clock's stream: what the torch peers share. ImportError where torch has no GPU."""
import torch

from dnnkern.host.timing import Contender

if not torch.cuda.is_available():
    raise ImportError("torch sees no CUDA device")


def tensors(operands, k) -> dict:
    """Operands and outputs of set k as torch tensors on the same memory; None for a missing one."""
    found = {}
    for name in (*operands.tensors, *operands.outputs):
        array = operands.array(k, name)
        if array is None:
            found[name] = None
            continue
        tensor = torch.as_tensor(array, device=torch.device("cuda", operands.device.index))
        wanted = getattr(torch, array.tensor.dtype)
        found[name] = tensor if tensor.dtype == wanted else tensor.view(wanted)
    return found


def on_clock(clock):
    """Context in which torch works on the clock's stream."""
    return torch.cuda.stream(torch.cuda.ExternalStream(clock.stream, device=clock.index))


class TorchContender(Contender):
    """Calls into torch, one for each set, captured with torch's own graphs: its allocator has to know of the capture.

    `captured`: False where a call copies from the host, which a graph cannot; it is then enqueued call by call, and where its kernels are
    short the time is the host's.
    """

    def __init__(self, name, calls, clock, captured=True):
        self.stream = torch.cuda.ExternalStream(clock.stream, device=clock.index)
        self.calls, self.captured = calls, captured

        def call(k):
            with torch.cuda.stream(self.stream):
                calls[k]()
        super().__init__(name, call, len(calls))

    def on_stream(self):
        """Context in which torch works on the clock's stream."""
        return torch.cuda.stream(self.stream)

    def capture(self, clock, calls):
        if not self.captured:
            return lambda: self.enqueue(calls)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            for k in range(calls):
                self.calls[k % self.sets]()

        def replay():
            with torch.cuda.stream(self.stream):
                graph.replay()
        return replay
