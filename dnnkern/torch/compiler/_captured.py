"""``mode="reduce-overhead"``: forward and backward passes as CUDA graphs, by PyTorch's trees of them."""
from torch._dynamo.backends.cudagraphs import check_for_skip, find_input_mutations, get_device_index, get_stack_traces
from torch._inductor.cudagraph_utils import get_placeholder_info, log_cudagraph_skip_and_bump_counter
from torch._inductor.utils import count_tangents, num_fw_fixed_arguments


class Captured:
    """Wraps the passes of one program. Where the forward pass cannot be captured the backward pass is not, either."""

    def __init__(self, arguments):
        self.arguments, self.is_off = arguments, False

    def __call__(self, kind, traced, inputs, run):
        """The function of a pass, captured at its first calls; itself where that is not possible."""
        from torch._inductor.cudagraph_trees import cudagraphify_impl
        if kind == "backward":
            fixed = count_tangents(traced)
        else:
            fixed = num_fw_fixed_arguments(self.arguments, len(inputs))
        why = "its forward pass is not captured" if self.is_off else check_for_skip(traced, fixed)
        if why:
            self.is_off = True
            log_cudagraph_skip_and_bump_counter(f"skipping cudagraphs due to {why}")
            return run
        captured = cudagraphify_impl(run, inputs, range(fixed), device_index=get_device_index(traced), is_backward=kind == "backward",
                                     is_inference=kind == "inference", stack_traces=get_stack_traces(traced),
                                     placeholders=get_placeholder_info(traced.graph), mutated_input_idxs=find_input_mutations(traced.graph))
        captured._boxed_call = True
        return captured
