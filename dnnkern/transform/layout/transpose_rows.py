"""Rows that begin anywhere: 16 bytes of y a thread, whatever they are in x.

The fastest dimension of y is cut at its multiples of 16 bytes, so that all stores but those at the two ends of a row are of 16 bytes. Where
x is contiguous along it too, a chunk is two aligned loads, shifted in registers (`_shift`): of two neighbouring threads the second load of
one is the first of the other, so the L1 has it. Ends of rows, and rows along which x has steps or runs backwards, are gathered by
elements, all of them loaded before the first is stored. `copy` is better where everything is aligned, `tiled` where neighbours of y are far
apart in x.
"""
from ...dispatch import Algorithm
from ...engine.cost import LAUNCH
from ...host.launch import Argument
from .._problem import MOVES
from ._rows import Config, rows_launch, rows_refusal, rows_seconds


def supports(problem):
    """Rows that are contiguous in y."""
    return rows_refusal(problem.canonical, problem.alignments(problem.canonical)[1])


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """Two chunks per thread where a chunk is two loads, and one."""
    form = problem.canonical
    dense = form.dims[-1].x == 1
    return [Config(form.itemsize, None, dense, n, None, len(form.dims), form.is_wide) for n in ((2, 1) if dense else (1,))]


def estimate(problem, device, config):
    """The bytes and the instructions of chunks, of ends of rows, and of gathered elements."""
    form = problem.canonical
    return LAUNCH + rows_seconds(form, problem.alignments(form)[1], config, problem.read_bytes, device)


def build(problem, device, config, source=("x", 0), target=("y", 0)):
    """One launch. `source` and `target` are the names of the two pointers and byte offsets to them."""
    form = problem.canonical
    return (rows_launch(config, device, form, problem.alignments(form)[1], problem.x.extent, (0, form.dims[-1].size),
                        Argument("float32", 0.0), source, target),)


ALGORITHMS = tuple(Algorithm(op=op, name="rows", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs)
                   for op in MOVES)
