"""Programmatic dependent launch: the next grid of a stream starts before this one has ended (griddepcontrol, from sm_90 on)."""
from . import instruction

wait_for_previous_grid = instruction("griddepcontrol.wait;", (), (), twin=lambda: None, memory=True)
launch_dependent_grids = instruction("griddepcontrol.launch_dependents;", (), (), twin=lambda: None, memory=True)
