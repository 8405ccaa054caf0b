"""What Fourier transforms add to the bound of a convolution's error: it goes by norms of whole images and filters."""
import math

import numpy as np
from activations import ACTIVATIONS

from . import ROUNDOFF
from ._conv import OPERANDS

POINTS = 64 * 64  # of the largest transform


def fft_error(case, values):
    """{output: what the transforms add to the bound of the error}; `values` are the operands.

    A transform of N points has an error of at most some log2 N units in the root of the sum of squares of its elements, whatever the single
    element. In the product of two spectra, transformed back, it is by Cauchy and Schwarz so many units of the product of the norms of image
    and filter, for each element. Sums of q such products, in order, add the root of q.
    """
    norms = {}
    for role in OPERANDS[case.op]:
        a = case._canonical(values[role], role)
        norms[role] = np.sqrt((a * a).sum((2, 3, 4)))
    if case.op == "conv_fwd":
        size, sums = norms["x"] @ norms["w"].T, case.size[1]
    elif case.op == "conv_bwd_data":
        size, sums = norms["y"] @ norms["w"], case.k
    else:
        size, sums = norms["y"].T @ norms["x"], case.size[0]
    spatial = {"x": case.size[2:], "w": case.filter, "y": case.extents}[case.output]
    full = np.broadcast_to(size.reshape(*size.shape, *(1,) * len(spatial)), (*size.shape, *spatial))
    units = math.log2(POINTS) + math.sqrt(sums)
    _, slope, _ = ACTIVATIONS[case.activation or "identity"]
    bound = slope * abs(case.alpha) * ROUNDOFF["float32"] * units * full
    return {case.output: case._from_canonical(np.ascontiguousarray(bound), case.output)}
