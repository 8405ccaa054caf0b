"""Control flow: subgraphs run as programs do."""
import numpy as np

from .._errors import Refused
from .._table import rule
from .._values import Value
from .move import sliced


@rule("If", (1, 11, 13, 16, 19, 21, 23, 24, 25), "its branches' nodes")
def branch(node, scope, condition):
    """The branch that the condition, read by the host, selects."""
    program = node.programs["then_branch" if bool(np.asarray(condition.host()).reshape(-1)[0]) else "else_branch"]
    return program.run({}, scope)


@rule("Loop", (1, 11, 13, 16, 19, 21, 23, 24, 25), "its body's nodes, `concat`")
def loop(node, scope, trips, condition, *carried):
    """The body as often as the host says; what each iteration gives besides is concatenated."""
    body, carried, k = node.programs["body"], list(carried), 0
    scans = [[] for _ in body.outputs[1 + len(carried):]]
    goes = condition is None or bool(np.asarray(condition.host()).reshape(-1)[0])
    most = None if trips is None else trips.ints()[0]
    while goes and (most is None or k < most):
        given = dict(zip(body.inputs, (Value(np.array(k, np.int64), is_shape=True), Value(np.array(goes), is_shape=True), *carried)))
        goes, *results = body.run(given, scope)
        goes = bool(np.asarray(goes.host()).reshape(-1)[0])
        carried = results[:len(carried)]
        for scan, value in zip(scans, results[len(carried):]):
            scan.append(value)
        k += 1
    return *carried, *(_stacked(node, scan, 0) for scan in scans)


@rule("Scan", (9, 11, 16, 19, 21, 23, 24, 25), "its body's nodes, `strided_slice`, `concat`")
def scan(node, scope, *given):
    """The body once for each slice of the inputs, with states carried along."""
    body, count = node.programs["body"], node.attribute("num_scan_inputs")
    states, inputs = list(given[:-count]), given[-count:]
    more = len(node.outputs) - len(states)
    axes = [axis % x.ndim for axis, x in zip(node.attribute("scan_input_axes", [0] * count), inputs)]
    backward, reverse = node.attribute("scan_input_directions", [0] * count), node.attribute("scan_output_directions", [0] * more)
    steps, scans = inputs[0].shape[axes[0]], [[] for _ in range(more)]
    for t in range(steps):
        slices = []
        for x, axis, back in zip(inputs, axes, backward):
            at = steps - 1 - t if back else t
            slices.append(sliced(node, x, axis, at, at + 1).reshape(*x.shape[:axis], *x.shape[axis + 1:]))
        results = body.run(dict(zip(body.inputs, (*states, *slices))), scope)
        states = results[:len(states)]
        for made, value in zip(scans, results[len(states):]):
            made.append(value)
    return *states, *(_stacked(node, made[::-1] if back else made, axis)
                      for made, back, axis in zip(scans, reverse, node.attribute("scan_output_axes", [0] * more)))


def _stacked(node, values, axis):
    """Along a new dimension."""
    if not values:
        raise Refused("no iterations, whose results have no shape")
    if any(v.dtype == "bool" for v in values) or len(values) > 128 or all(v.is_shape for v in values):
        return Value(np.stack([v.host() for v in values], axis), is_shape=all(v.is_shape for v in values))
    axis %= values[0].ndim + 1
    return node.call("concat", [v.reshape(*v.shape[:axis], 1, *v.shape[axis:]) for v in values], axis)
