"""What the documented fusions compile to at the sizes of networks (`test_graph_documented`): no stack, spill or call; registers."""
import sys

import pytest
from sass import assembled

from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from test_graph_documented import GRAPHS, Documented, T, launches_of, plan_of, planned, planning  # noqa: E402

REGISTERS = {
    "conv_scale_bias_relu": (168,),
    "scale_bias_relu_conv_genstats": (168, 22),
    "conv_of_fp8_scale_amax": (168, 20),
    "conv_dgrad_drelu": (168,),
    "conv_dgrad_drelu_dbn_weight": (168, 22),
    "conv_dgrad_drelu_dbn_weight_and_coefficients": (168, 22, 24),
    "scale_bias_relu_wgrad": (240, 56),
    "scale_bias_relu_wgrad_of_many_taps": (64, 168, 32),
    "matmul_bias_gelu_with_what_it_is_of": (168,),
    "matmul_of_absolute_values": (168,),
    "matmul_of_int8_and_bfloat16": (168,),
    "matmul_of_fp8_scale_amax": (168, 20),
    "matmul_swiglu": (168,),
    "matmul_of_a_slice": (168,),
    "batchnorm_add_relu": (80, 40, 93),
    "batchnorm_add_relu_mask_of_bits": (80, 40, 104),
    "batchnorm_backward_of_a_mask_of_bits": (94, 32, 114),
    "batchnorm_backward_of_relu_and_addition": (103, 32, 126),
    "batchnorm_inference_relu": (48,),
    "layernorm_add": (56,),
    "layernorm_clamped_relu_mask": (48,),
    "rmsnorm_scale_cast": (40,),
    "zero_centred_layernorm": (48,),
    "adaptive_layernorm_gelu": (48,),
    "causal_attention": (6, 168),
    "attention_with_a_soft_cap": (168,),
    "attention_of_fp8_with_its_largest_magnitudes": (32, 168),
    "softmax_of_primitive_nodes": (79,),
    "matmul_softmax": (168,),
    "matmul_layernorm": (168,),
    "matmul_rmsnorm": (168,),
    "amax_scale_cast": (71,),
    "comparisons_and": (42,),
    "reshape_relu": (17,),
    "transpose_bias": (20,),
}
"""Of each launch, the most."""


@pytest.mark.ptx
@pytest.mark.parametrize("name", GRAPHS)
def test_kernels(name):
    launches, found = planned(name)[-1], []
    for launch in launches:
        code = assembled(launch.kernel, launch.signature, "sm_90a")
        assert (code.stack, code.spilled) == (0, 0) and not code.opcodes("LDL", "STL") and not code.calls, code.report
        found.append(code.registers)
    assert all(a <= b for a, b in zip(found, REGISTERS[name], strict=True)), found


@pytest.mark.ptx
def test_a_program_of_many_nodes():
    """Numba infers the types of a node's functions within those of the node before it: more frames than an interpreter has at first."""
    graph = planning("many")
    b = Documented(graph)
    bias, y = b.input((1, 1, 64), T.FLOAT), graph.matmul(*(b.input((1, 64, 64), T.FLOAT) for _ in range(2)))
    for k in range(30):
        y = graph.abs(y) if k % 2 else graph.add(y, bias)
    b.output(y, T.FLOAT)
    launch, = launches_of(plan_of(graph))
    assert len(graph.explain().parts) == 1
    limit = sys.getrecursionlimit()
    assert assembled(launch.kernel, launch.signature, "sm_90a").spilled == 0 and sys.getrecursionlimit() == limit
