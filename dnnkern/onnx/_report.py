"""What became of a model's nodes."""
from typing import NamedTuple


class Row(NamedTuple):
    """A node in a report.

    Attributes
    ----------
    name : str
    op : str
        With its domain, where that is not ONNX's own.
    by : str
        "dnnkern" or "host"; of a node that has not run what the table says.
    calls : tuple of str
        The functions that computed it; of a node that has not run those that the table names.
    fused : tuple of str
        The nodes in whose kernels it ran, or may run.
    reason : str or None
        Why ONNX's evaluator computed it, or would.
    runs : int
    """
    name: str
    op: str
    by: str
    calls: tuple
    fused: tuple
    reason: str | None
    runs: int


def rows_of(program):
    """A `Row` for each node of a program, those of subgraphs included."""
    return [_row(node, group) for node, group in program.rows()]


def _row(node, group):
    op = f"{node.domain}.{node.op}" if node.domain else node.op
    if node.runs:
        on_host = node.on_host == node.runs
        calls, fused = tuple(node.calls), node.fused
        if not on_host and not calls and node.rule is not None:
            calls = (node.rule.by,)
    else:
        on_host = node.rule is None
        calls = () if on_host else (node.rule.by.replace("`", ""),)
        fused = [other for other in group.nodes if other is not node] if group is not None else []
    reason = node.reason if on_host else group.reason if group is not None and node.runs and not node.fused else None
    return Row(node.name, op, "host" if on_host else "dnnkern", () if on_host else calls, tuple(other.name for other in fused), reason,
               node.runs)
