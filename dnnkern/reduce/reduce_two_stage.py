"""Many blocks share a result: each writes the state of its part, and a second launch merges the states in a fixed order.

The first launch is that of `rows` or `columns`, whichever fits the layout of x, with every row or column cut into `splits`; the states are
in the workspace, those of neighbouring results next to each other. For few results of very many elements each, up to the sum of a whole
array. There are no atomics, and the second launch reads little.
"""
from ..dispatch import Algorithm
from ._choice import seconds, split_ways
from ._columns import Columns, columns_launch, columns_refusal
from ._rows import rows_launch, rows_refusal
from ._stages import DEPENDENT, finish_launch, workspace_bytes

# Elements of a result below which there is nothing to divide.
LEAST = 512


def supports(problem):
    """Results that are long, and lie as `rows` or `columns` read them."""
    if problem.form.length < LEAST:
        return f"a result has {problem.form.length} elements; expected {LEAST} or more"
    if problem.form.outputs >= 2 ** 26:
        return f"{problem.form.outputs} results; their partial states are counted with 31 bits, expected fewer than 2**26"
    return columns_refusal(problem) and rows_refusal(problem)


def configs(problem, device):
    """Few long parts to many short ones."""
    return split_ways(problem, device)


def workspace(problem, device, config):
    """The partial states."""
    return workspace_bytes(problem, config.splits)


def build(problem, device, config):
    """Two launches."""
    launch, dependent = columns_launch if isinstance(config, Columns) else rows_launch, device.capability >= DEPENDENT
    return launch(problem, config, dependent), finish_launch(problem, config.splits, dependent)


ALGORITHMS = tuple(Algorithm(op=op, name="two_stage", supports=supports, configs=configs, workspace=workspace, estimate=seconds,
                             build=build)
                   for op in ("reduce", "argreduce"))
