"""Programmatic dependent launch: a grid starts while the one before it in the stream still runs (griddepcontrol, from sm_90 on).

::

    wait_for_previous_grid()            until the previous grid has ended and what it wrote is visible; before any access to what it wrote
    launch_dependent_grids()            the next grid may start once all blocks have said so or ended; what it may read is not affected

It takes effect in launches made as dependent (``host.launch.Launch(..., dependent=True)``); in others the first returns at once. A kernel
that is launched so must wait before it touches memory that its predecessor writes, and before it writes memory that its predecessor reads.

In the simulator launches run one after the other, so both do nothing there: a missing wait shows on a GPU only.
"""
from . import instruction


def _nothing():
    """The previous grid has ended."""


wait_for_previous_grid = instruction("griddepcontrol.wait;", (), (), twin=_nothing, memory=True)
launch_dependent_grids = instruction("griddepcontrol.launch_dependents;", (), (), twin=_nothing, memory=True)
