"""What the direct convolution compiles to: the filters' elements that all threads read come 16 bytes at a time, sums stay in registers."""
import pytest
from sass import machine_code
from test_ptx import device

from dnnkern import dispatch
from dnnkern.conv._parse import parse_problem


@pytest.mark.parametrize("op", ["conv_fwd", "conv_bwd_data", "conv_bwd_filter"])
def test_filters_are_read_in_groups(op):
    problem, target = parse_problem("64x3x224x224 k64 7x7 s2 p3 f32 nchw".split(), op), device("sm_90a")
    algorithm = next(a for a in dispatch.algorithms(op) if a.name == "direct").configured(problem, target)
    launch = algorithm.build(problem, target, algorithm.config)[0]
    code = machine_code(launch.kernel, launch.signature)
    groups = code.count("LDS.128")
    assert groups >= algorithm.config.filters // 4
    assert code.count("FFMA") == 4 * groups * algorithm.config.pixels
