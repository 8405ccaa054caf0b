"""One thread per element, straight from the definition.

Forward, a thread reads the index of its position and the element of that row. Backward, a thread owns an element of the table: it goes
through all indices in order and adds up the gradients of those that are its row. Arbitrary strides, any number of elements; backward reads
all indices for every element.
"""
import functools

from ..device import cuda, jit
from ..device.convert import element
from ..device.index import ceil_div
from ..device.rows import make_row_offsets64, row_arguments64
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ..engine.values import COMPUTE
from ..host.launch import Argument, Launch

COST = constants("embedding/naive")

THREADS = 256
NAN = float("nan")


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """Divisions for each element; backward a load for each index, by every thread."""
    p = problem
    each = COST.element + COST.dimension * len(p.outer)
    if not p.is_forward:
        each = COST.element + p.positions * (COST.position + COST.dimension * max(0, len(p.outer) - 1))
    return LAUNCH + overlap(issue=issue_seconds(p.outputs[0].size, each, device), memory=memory_seconds(p.bytes, device),
                            waits=COST.start + (0.0 if p.is_forward else p.positions * COST.wait))


@functools.cache
def forward(dtype, dims):
    """y[p, c] = weight[indices[p], c], or NaN."""
    load, store, Value = element(dtype).load, element(dtype).store, COMPUTE[element(dtype).compute]
    row_offsets = make_row_offsets64(dims, ("indices", "y"))

    @jit(launch_bounds=THREADS)
    def embedding_fwd_naive(weight, indices, y, per_block, elements, columns, rows, row_step, weight_step, y_step, sizes, strides):
        i = cuda.blockIdx.x * per_block + cuda.threadIdx.x
        if i < elements:
            position = i // columns
            c = i - position * columns
            offsets = row_offsets(position, sizes, strides)
            row, value = indices[offsets.indices], Value(NAN)
            if row >= 0 and row < rows:
                value = load(weight, row * row_step + c * weight_step)
            store(y, offsets.y + c * y_step, value)
    return embedding_fwd_naive


@functools.cache
def backward(dtype, dims, by_frequency):
    """dweight[v, c] = the sum of dy[p, c] over the positions of row v."""
    load, store, Total = element(dtype).load, element(dtype).store, COMPUTE[element(dtype).compute]
    row_offsets = make_row_offsets64(dims, ("indices", "dy"))

    @jit(launch_bounds=THREADS)
    def embedding_bwd_naive(dy, indices, dweight, per_block, elements, columns, positions, padding, row_step, weight_step, dy_step, sizes,
                            strides):
        i = cuda.blockIdx.x * per_block + cuda.threadIdx.x
        if i < elements:
            row = i // columns
            c = i - row * columns
            total, count = Total(0), Total(0)
            if row != padding:
                for position in range(positions):
                    offsets = row_offsets(position, sizes, strides)
                    if indices[offsets.indices] == row:
                        total += load(dy, offsets.dy + c * dy_step)
                        count += Total(1)
            if by_frequency:
                if count > Total(0):
                    total = total / count
            store(dweight, row * row_step + c * weight_step, total)
    return embedding_bwd_naive


def build(problem, device, config):
    """One launch."""
    p, pointer, indices = problem, element(problem.dtype).pointer, Argument(f"{problem.indices.dtype}*", "indices")
    size, (sizes, strides) = p.outputs[0].size, row_arguments64(p.outer, 2)
    walk = (Argument("int64", p.table.strides[0]), Argument("int64", p.table.strides[1]), Argument("int64", p.each.strides[-1]),
            Argument(f"int64x{len(sizes)}", sizes), Argument(f"int64x{len(strides)}", strides))
    numbers = [Argument("int64", n) for n in (THREADS, size, p.columns)]
    if p.is_forward:
        kernel, arguments = forward(p.dtype, len(sizes)), (Argument(pointer, "weight"), indices, Argument(pointer, "y"), *numbers,
                                                           Argument("int64", p.table.shape[0]), *walk)
    else:
        kernel = backward(p.dtype, len(sizes), p.scale_grad_by_freq)
        arguments = (Argument(pointer, "dy"), indices, Argument(pointer, "dweight"), *numbers, Argument("int64", p.positions),
                     Argument("int64", p.padding_idx), *walk)
    return (Launch(kernel, (ceil_div(size, THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHMS = tuple(Algorithm(op=op, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)
                   for op in ("embedding_fwd", "embedding_bwd"))
