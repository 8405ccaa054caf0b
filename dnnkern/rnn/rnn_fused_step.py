"""One kernel a step: the recurrent product and the cells together.

It is `persistent`'s kernel with one step of a layer for each launch: weights come into registers anew, mostly from the L2, states and cell
states pass through memory, and the end of a launch is the barrier. So any number of blocks will do, and R may be larger than all
registers. Against `step` it spares a launch per step, and writing and reading its sums.
"""
from .persistent.plan import SINGLE, algorithms

ALGORITHMS = algorithms("fused_step", SINGLE, "sm_80+")
