"""``mode="reduce-overhead"``: forward and backward passes as CUDA graphs, by PyTorch's trees of them."""
from torch._dynamo.backends.cudagraphs import find_input_mutations, get_device_index, get_device_node_mapping, get_stack_traces
from torch._guards import TracingContext
from torch._inductor.cudagraph_utils import (check_multiple_devices_or_any_cpu_nodes, get_placeholder_info,
                                             log_cudagraph_skip_and_bump_counter)
from torch._inductor.utils import count_tangents, get_first_incompatible_cudagraph_node


class Captured:
    """Wraps the passes of one program. Where the forward pass cannot be captured the backward pass is not, either."""

    def __init__(self):
        self.is_off = False

    def __call__(self, kind, traced, inputs, run):
        """The function of a pass, captured at its first calls; itself where that is not possible."""
        from torch._inductor.cudagraph_trees import cudagraphify_impl
        static, mutated = _static(kind, traced), find_input_mutations(traced.graph)
        if why := "its forward pass is not captured" if self.is_off else _refusal(traced, mutated - set(static)):
            self.is_off = True
            log_cudagraph_skip_and_bump_counter(f"skipping cudagraphs due to {why}")
            return run
        captured = cudagraphify_impl(run, inputs, static, device_index=get_device_index(traced), is_backward=kind == "backward",
                                     is_inference=kind == "inference", stack_traces=get_stack_traces(traced),
                                     placeholders=get_placeholder_info(traced.graph), mutated_input_idxs=mutated)
        captured._boxed_call = True
        return captured


def _static(kind, traced):
    """Indices of the inputs that lie where they lay: parameters and buffers, and what the forward pass has kept."""
    if kind == "backward":
        return range(count_tangents(traced))
    return TracingContext.get().fw_metadata.static_input_indices


def _refusal(traced, mutated):
    """Why a graph, which writes to these inputs that may lie elsewhere in the next call, is not captured, or None."""
    if mutated:
        return f"inputs that are changed: {', '.join(map(str, sorted(mutated)))}"
    if why := check_multiple_devices_or_any_cpu_nodes(get_device_node_mapping(traced)):
        return why
    node = get_first_incompatible_cudagraph_node(traced)
    return node and f"incompatible op ({node.name})"
