"""Control flow: subgraphs run as programs do."""
import numpy as np

from .._table import rule
from .._values import Value


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
    return *carried, *(_stacked(node, scan) for scan in scans)


def _stacked(node, values):
    """Along a new first dimension."""
    if not values:
        return Value(np.zeros(0, np.float32))
    if any(v.dtype == "bool" for v in values) or len(values) > 128 or all(v.is_shape for v in values):
        return Value(np.stack([v.host() for v in values]), is_shape=all(v.is_shape for v in values))
    return node.call("concat", [v.reshape(1, *v.shape) for v in values], 0)
