"""The table: operators of ONNX, the versions of them that are known, and the function that computes each by this library's calls."""
import importlib
from typing import NamedTuple

MODULES = ("pointwise", "product", "pool", "norm", "reduce", "move", "select", "resize", "rnn", "attention", "loss", "quantize", "random",
           "optim", "control")
"""Modules of `rules`, which fill the table."""
RULES = {}  # (domain, op) -> Rule


class Rule(NamedTuple):
    """How an operator is computed.

    Attributes
    ----------
    function : callable
        Of the node and its inputs (`Value`s, None for those left out); with subgraphs of the node, a scope and its inputs. Returns the
        results. `Refused`, or an error of this library's functions, where they cannot compute it.
    versions : tuple of int
        The opsets that changed the operator, of those that the function computes.
    by : str
        The functions that compute it, for documents.
    moves : bool
        Whether it only moves values: what moves shapes runs on the host.
    """
    function: object
    versions: tuple
    by: str
    moves: bool


def rule(names, versions, by, moves=False, domain=""):
    """A decorator: the function computes these operators (names separated by spaces) of these versions."""
    def add(function):
        for name in names.split():
            RULES[domain, name] = Rule(function, tuple(versions), by, moves)
        return function
    return add


def loaded():
    """The whole table, {(domain, op): Rule}."""
    for module in MODULES:
        importlib.import_module(f".rules.{module}", __package__)
    return RULES


def rule_of(domain, op, version):
    """(rule or None, why there is none)"""
    found = loaded().get((domain, op))
    if found is None:
        return None, "no call computes it"
    if version not in found.versions:
        known = ", ".join(map(str, found.versions))
        return None, f"{op} of opset {version}; known are those of opsets {known}"
    return found, None


def markdown():
    """The table of operators as documents have it: an operator, its opsets, and the functions that compute it."""
    lines = ["| operator | opsets | by |", "| --- | --- | --- |"]
    for (domain, op), found in sorted(loaded().items(), key=lambda item: (item[0][0], item[0][1].lower())):
        lines.append(f"| {domain + '.' * bool(domain)}{op} | {', '.join(map(str, found.versions))} | {found.by} |")
    return "\n".join(lines)
