"""One launch per layer: recurrent weights stay in the registers of all multiprocessors, steps meet in global memory.

What waits for nothing, the input's products of all steps, is one matrix product before. Then a cooperative launch goes through all steps
(`layer`): a block has some units and some sequences, and a step costs a barrier of the blocks that share its sequences, a copy of
their states from the L2 and its part of the product, instead of two launches and all of R from memory.

With a projection a step has two such barriers: hidden units are exchanged, of which each block makes some elements of h, then these.

It needs all blocks resident at once, one a multiprocessor, and all of R in their registers: `supports` says how much there is.
"""
from .plan import ALL, algorithms

ALGORITHMS = algorithms("persistent", ALL, "sm_80+")
