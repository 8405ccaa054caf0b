"""The backend of `torch.compile`: from Dynamo's graphs to functions."""
import torch
from functorch.compile import min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._guards import CompileContext, TracingContext

from ._assemble import Assembled
from ._before import with_operators
from ._explain import Program, programs
from ._shaped import is_symbolic, shaped

MODES = None, "default", "reduce-overhead"


def backend(gm, example_inputs, *, mode=None, options=None):
    """Compile a graph of Dynamo's: what ``torch.compile(model, backend="dnnkern")`` calls.

    Forward and backward graphs are those of AOTAutograd, partitioned so that what is cheap is computed again rather than kept. Their nodes
    become operations of `dnnkern.graph`, as many as run together one graph; what these do not know runs on this library's overrides, and
    what they refuse on PyTorch's operators.

    Parameters
    ----------
    gm : torch.fx.GraphModule
    example_inputs : list
    mode : None, "default" or "reduce-overhead"
        The last captures CUDA graphs, on a GPU.
    options : None or {}

    Returns
    -------
    callable

    Raises
    ------
    ValueError
        Another mode, or options.
    """
    if mode not in MODES:
        raise ValueError(f"torch.compile(backend='dnnkern'): mode is {mode!r}; expected one of {', '.join(map(repr, MODES))}")
    if options:
        raise ValueError(f"torch.compile(backend='dnnkern'): options are {options!r}; expected none")
    program = Program(_codes(), CompileContext.current_compile_id())
    programs.append(program)
    captured = mode == "reduce-overhead" and any(isinstance(x, torch.Tensor) and x.is_cuda for x in example_inputs)
    if captured:
        from ._captured import Captured
        capture = Captured()
    else:
        capture = None

    def compiler(kind):
        def compiled(traced, inputs):
            run = _compiled(program, kind, traced)
            return capture(kind, traced, inputs, run) if capture else run
        return compiled
    forward, backward, inference = map(compiler, ("forward", "backward", "inference"))
    make = aot_autograd(fw_compiler=forward, bw_compiler=backward, inference_compiler=inference,
                        partition_fn=min_cut_rematerialization_partition, keep_inference_input_mutations=True)
    return make(with_operators(gm), example_inputs)


def _compiled(program, kind, traced):
    """A traced graph as a function of the list of its inputs."""
    def make(traced):
        made = Assembled(traced)
        program.add(kind, made)
        return _boxed(made.module.forward, made.device)
    return shaped(make, traced) if is_symbolic(traced) else make(traced)


def _boxed(forward, device):
    """The function of a list, which it empties as PyTorch's callers expect, with a GPU as the current one, on which parts allocate."""
    def on_host(inputs):
        given = tuple(inputs)
        inputs.clear()
        return forward(*given)

    def on_gpu(inputs):
        with torch.cuda._DeviceGuard(device.index):
            return on_host(inputs)
    run = on_gpu if device.type == "cuda" else on_host
    run._boxed_call = True
    return run


def _codes():
    """What Dynamo traces."""
    return tuple(getattr(TracingContext.try_get(), "traced_code", None) or ())
