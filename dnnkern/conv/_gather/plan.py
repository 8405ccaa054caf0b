"""How the operands of a gathered product are read: which indices neighbouring threads take, and how many elements one copy."""
from ...device.convert import element
from ...engine.loaders import ALONG_K, ALONG_ROWS
from ...host.launch import Argument
from ...host.memo import remembered


def largest(most, *values):
    """The largest power of two up to `most` that divides all values."""
    while most > 1 and any(v % most for v in values):
        most //= 2
    return most


def linear(dims):
    """(length of the run of neighbouring elements along (size, stride) pairs, innermost first; the strides that end it)."""
    run, rest = 1, []
    for size, stride in dims:
        if size > 1 and (rest or stride != run):
            rest.append(stride)
        elif size > 1:
            run *= size
    return run, rest


def swapped(view):
    """Whether channels become rows: neighbouring results are pixels."""
    return view.problem.op != "conv_bwd_filter" and view.output_channel != 1 and view.problem.output_strides[-1] == 1


def sizes(view, swap):
    """(rows, columns) of the product as it is computed."""
    return (view.columns, view.rows) if swap else (view.rows, view.columns)


def grain_of(view, most):
    """Elements of k that one entry of the table serves: channels of one tap."""
    if not view.channel_inner or view.problem.op == "conv_bwd_filter":
        return 1
    return largest(most, view.channels)


@remembered
def access(view, name, limit):
    """(order, elements of one copy, at most `limit`) of "source" or "plain"."""
    p = view.problem
    tensor = getattr(p, view.source if name == "source" else view.plain)
    limit = largest(limit, tensor.alignment // tensor.itemsize) if tensor.alignment >= tensor.itemsize else 1
    return _plain_access(view, limit) if name == "plain" else _source_access(view, limit)


def _plain_access(view, limit):
    p = view.problem
    taps, base = (view.plain_channel, *view.plain_taps, view.plain_group), view.plain_base
    if view.plain_row == 1:
        return ALONG_ROWS, largest(limit, p.c_group if p.op == "conv_bwd_data" else p.k_group, *taps, base)
    sizes_of_taps = list(zip((a.taps for a in view.axes), view.plain_taps))[::-1]
    if p.op == "conv_bwd_filter":
        run, rest = linear([*((a.pixels, s) for a, s in zip(view.axes[::-1], view.plain_taps[::-1])), (p.n, view.plain_channel)])
    elif p.op == "conv_bwd_data":
        return ALONG_K, 1
    elif view.channel_inner:
        run, rest = linear([(view.channels, view.plain_channel), *sizes_of_taps])
        rest = [*rest, view.channels]  # an entry ends with the tap
    else:
        run, rest = linear([*sizes_of_taps, (view.channels, view.plain_channel)])
    return ALONG_K, largest(limit, run, *rest, view.plain_row, view.plain_group, base)


def _source_access(view, limit):
    p, (outer, channel, *spatial) = view.problem, view.source_strides
    of_filter = p.op == "conv_bwd_filter"
    if channel == 1 and view.channel_inner:
        return ALONG_ROWS if of_filter else ALONG_K, largest(limit, view.channels, outer, *spatial, view.source_group)
    order = ALONG_K if of_filter or channel == 1 else ALONG_ROWS
    if not p.is_pointwise:
        return order, 1
    run, rest = linear([*((a.pixels, s) for a, s in zip(view.axes[::-1], spatial[::-1])), (p.n, outer)])
    return order, largest(limit, run, *rest, channel, view.source_group)


def operand_arguments(view):
    """Pointers to source and plain operand."""
    pointer = element(view.problem.dtype).pointer
    return Argument(pointer, view.source), Argument(pointer, view.plain)
