"""Rows that begin anywhere, with borders: 16 bytes of y a thread and chunk, each written once, x's part and the borders in one pass.

The rows are those of `transpose_rows`. A chunk that lies within x is two aligned loads, shifted in registers; one that lies beyond the
borders altogether is the value 16 bytes long, and is not loaded; chunks across a border, or at an end of a row, are gathered by elements.
So `edge` and `reflect` gather what is mirrored, and move the rest as a copy does. Without an x it fills an array.
"""
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH
from ...host.launch import Argument
from ._pad_problem import PADS
from ._rows import Config, chunks_of_row, rows_launch, rows_refusal, rows_seconds

COST = constants("transform/pad_rows")


def supports(problem):
    """Rows that are contiguous in y."""
    return rows_refusal(problem.form, problem.alignment)


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """Two chunks per thread where a chunk is two loads or none, and one."""
    form = problem.form
    dense = form.dims[-1].x == 1 or not problem.read_bytes
    some = (2, 1) if dense else (1,)
    return [Config(form.itemsize, problem.filled, dense, n, problem.mode, len(form.dims), form.is_wide) for n in some]


def estimate(problem, device, config):
    """The bytes and the instructions of chunks, of ends of rows, and of gathered elements, which take longer where there are borders."""
    work = rows_seconds(problem.form, problem.alignment, config, problem.read_bytes, device)
    if problem.read_bytes and chunks_of_row(problem.form, problem.alignment) <= COST.short:
        work = work.slowed(slower={1: COST.one_byte, 2: COST.two_bytes}.get(config.itemsize, 1.0))
    return LAUNCH + work


def build(problem, device, config, source=("x", 0), target=("y", 0), value="value"):
    """One launch."""
    form = problem.form
    last = form.dims[-1]
    return (rows_launch(config, device, form, problem.alignment, problem.x.extent, (last.before, last.inner),
                        Argument(problem.scalar_type, value), source, target),)


ALGORITHMS = tuple(Algorithm(op=op, name="rows", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs)
                   for op in PADS)
