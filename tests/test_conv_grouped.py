"""What filters' gradients of grouped convolutions do with pixels that a product has but the sum has not."""
import contract
import numpy as np
import pytest
from cases._conv import Conv

from dnnkern import dispatch

CASE = Conv("infinite-column", "conv_bwd_filter", (2, 8, 3, 20), 8, (1, 3), "float16", layout="NHWC", groups=2)


def variants():
    """All configurations, by name."""
    algorithm = next(a for a in dispatch.algorithms(CASE.op) if a.name == "grouped")
    return {str(v.config): v for v in algorithm.variants(CASE.problem(), contract.device())}


@pytest.mark.parametrize("name", list(variants()))
def test_an_infinite_pixel_reaches_the_taps_that_see_it(name):
    values = CASE.values("float")
    first = np.arange(20)[:, None] == 0  # where the first tap alone comes; rows end within a product, and the next begins with it
    reference, tolerance = CASE.reference(values | {"x": np.where(first, 0, values["x"])}, True)
    values["x"] = np.where(first, np.inf, values["x"])
    with contract.registered(variants()[name]) as mine:
        run = contract.Run(CASE, mine, values)
    got = run.outputs["w"].read()
    assert not np.isfinite(got[:, :, 0]).any()
    contract.assert_within(got[:, :, 1:], reference["w"][:, :, 1:], np.broadcast_to(tolerance["w"], got.shape)[:, :, 1:], name)
