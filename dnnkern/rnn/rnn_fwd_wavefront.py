"""One launch for all layers of a direction: a layer does a step while the one above does the step before.

As `persistent`, whose kernel it is, with blocks of its own for each layer. All but the first have both matrices of their layer in
registers, the input's and R, and multiply lines of two parts: their own states, and the results of the layer below, for whose
blocks they wait. So the chain is T + L - 1 steps, not L T, and only the first layer's input is a product before it. What it costs is room:
twice the weights, and all layers at once. It is for layers that by themselves leave most multiprocessors idle.
"""
from ._problem import OPS
from .persistent.plan import LAYERS, algorithms

(ALGORITHM,) = algorithms("wavefront", LAYERS, "sm_80+", OPS[:1])
