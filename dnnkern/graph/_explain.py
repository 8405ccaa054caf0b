"""`pygraph.explain`: which nodes run together, by what, and why others do not."""
import shutil
import subprocess
from dataclasses import dataclass
from io import StringIO
from math import isfinite

from .._table import bytes_text, show, time_text
from ._partition import ALL, joined, one_by_one
from ._views import views


@dataclass(frozen=True)
class PartReport:
    """One step of the plan.

    Attributes
    ----------
    nodes : tuple of str
        Labels of the nodes that it runs: their names, or operation and number; "mm (2)" is the second of the name "mm".
    op, algorithm, config : str
        The library's operation, the algorithm that was chosen and its configuration; None where nothing is computed.
    problem : str
    seconds : float
        Predicted.
    bytes : int
        That must move: of each operand and result, once.
    workspace : int
        Bytes of its own.
    others : tuple of (str, str)
        (algorithm, why it cannot or its predicted time) of the others.
    """
    nodes: tuple
    op: str
    algorithm: str | None
    config: str
    problem: str
    seconds: float
    bytes: int
    workspace: int
    others: tuple


@dataclass(frozen=True)
class CutReport:
    """One cut of the graph, of those that were tried.

    Attributes
    ----------
    text : str
        The nodes of each part.
    parts : int
        How many there are.
    seconds : float
        Predicted; infinity where a part has no algorithm.
    bytes : int
        That its parts move together: what one writes for another counts twice.
    chosen : bool
    """
    text: str
    parts: int
    seconds: float
    bytes: int
    chosen: bool


@dataclass(frozen=True)
class Explanation:
    """How a graph runs; `print` shows it as a table.

    Attributes
    ----------
    name : str
        Of the graph.
    parts : tuple of PartReport
        In the order in which they run.
    apart : tuple of (str, str, str)
        (node, node that reads its result, why they are in different kernels).
    seconds : float
        Predicted, of all parts.
    workspace : int
        Bytes.
    edges : tuple of (str, str)
        (node, node that reads its result, or a view of it).
    cuts : tuple of CutReport
        The fewest parts first; the last has one node a part.
    """
    name: str
    parts: tuple
    apart: tuple
    seconds: float
    workspace: int
    edges: tuple
    cuts: tuple

    def __str__(self):
        text = StringIO()
        rows = [(k, " + ".join(p.nodes), p.op, p.algorithm or "nothing to do", p.config or None, time_text(1e3 * p.seconds),
                 bytes_text(p.bytes), bytes_text(p.workspace) if p.workspace else None) for k, p in enumerate(self.parts)]
        show(("step", "nodes", "operation", "algorithm", "config", "predicted", "moves", "workspace"), rows, file=text,
             title=f"graph {self.name}: {len(rows)} step{'s' * (len(rows) != 1)}, {time_text(1e3 * self.seconds)} predicted, "
                   f"{bytes_text(self.workspace)} of workspace")
        if self.apart:
            print(file=text)
            show(("node", "its reader", "apart because"), self.apart, file=text)
        if len(self.cuts) > 1:
            print(file=text)
            show(("cut", "parts", "moves", "predicted"),
                 [(c.text + " (chosen)" * c.chosen, c.parts, bytes_text(c.bytes),
                   time_text(1e3 * c.seconds) if isfinite(c.seconds) else "no kernel") for c in self.cuts], file=text)
        return text.getvalue().rstrip()

    def drawing(self) -> str:
        """The parts as boxes of text, in their order."""
        lines = []
        for k, p in enumerate(self.parts):
            title = f" {k}: {p.op} {p.algorithm or ''} "
            width = max(len(title), *(len(n) for n in p.nodes)) + 2
            lines += ["+" + title.center(width, "-") + "+", *(f"| {n:{width - 2}} |" for n in p.nodes), "+" + "-" * width + "+"]
            if k + 1 < len(self.parts):
                lines.append("v".center(width + 2).rstrip())
        return "\n".join(lines)

    def dot(self) -> str:
        """The graph in Graphviz's language, a cluster a part."""
        lines = ["digraph {", "  node [shape=box];"]
        for k, p in enumerate(self.parts):
            lines.append(f'  subgraph cluster_{k} {{ label="{p.op} {p.algorithm or ""}"; {" ".join(map(_quoted, p.nodes))} }}')
        return "\n".join([*lines, *(f"  {_quoted(a)} -> {_quoted(b)};" for a, b in self.edges), "}"])

    def svg(self) -> str:
        """The same as SVG, by Graphviz's `dot`; RuntimeError where that is not installed."""
        program = shutil.which("dot")
        if program is None:
            raise RuntimeError("explain: Graphviz's program dot is not installed; drawing() and dot() need none")
        return subprocess.run([program, "-Tsvg"], input=self.dot(), capture_output=True, text=True, check=True).stdout


def _quoted(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def explain(engines) -> Explanation:
    """That of the plan which the estimates choose."""
    from .. import dispatch
    plan = engines.first()
    spec = plan.spec
    parts = []
    for step, algorithm in zip(plan.steps, plan.algorithms):
        others = () if algorithm is None else tuple(
            (c.algo, c.reason or time_text(c.time_ms)) for c in dispatch.explain(step.op, step.problem, device=plan.device) if not c.chosen)
        parts.append(PartReport(
            tuple(step.nodes), step.op, algorithm and algorithm.name, algorithm.config_text if algorithm else "", str(step.problem),
            algorithm.seconds(step.problem, plan.device) if algorithm else 0.0, step.problem.bytes,
            algorithm.workspace(step.problem, plan.device, algorithm.config) if algorithm else 0, others))
    why, single = {}, [node for (node,) in one_by_one(spec)]
    joined(spec, single, why, *ALL)
    makers, label = {uid: node for node in single for _, uid in node.outputs}, spec.label
    whole = {uid: view.source for uid, view in views(spec).items()}
    edges = dict.fromkeys((label(makers[source]), label(node)) for node in single for _, uid in node.inputs
                          if (source := whole.get(uid, uid)) in makers)
    together = {name: part.nodes for part in parts for name in part.nodes}
    apart = [(label(a), label(b), reason) for (a, b), reason in why.items()]
    reason = "kernels of their own are predicted to take less time" if plan.cut else "no kernel runs them together"
    apart += [(a, b, reason) for a, b in edges
              if together.get(a) != together.get(b) and not any((a, b) == row[:2] for row in apart)]
    cuts = tuple(CutReport(c.text, len(c.steps), c.seconds, c.bytes, c.number == plan.cut)
                 for c in sorted(engines.quick, key=lambda c: c.number))
    return Explanation(spec.name, tuple(parts), tuple(apart), plan.seconds, plan.workspace, tuple(edges), cuts)
