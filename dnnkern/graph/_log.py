"""The log of graphs: CUDNN_FRONTEND_LOG_INFO and CUDNN_FRONTEND_LOG_FILE, as the package `cudnn` reads them."""
import os
import sys

from .ops import OPERATIONS


def log_graph(spec):
    """Write a graph as JSON, one line, with cuDNN's tags of nodes, where a log is asked for: to "stdout", "stderr" or the end of a file."""
    level, where = os.environ.get("CUDNN_FRONTEND_LOG_INFO", "0"), os.environ.get("CUDNN_FRONTEND_LOG_FILE", "")
    if level in ("", "0") or not where:
        return
    line = f"[cudnn_frontend] INFO: {spec.to_json(tags=tag_of)}\n"
    if where in ("stdout", "stderr"):
        getattr(sys, where).write(line)
        return
    with open(where, "a", encoding="utf-8") as file:
        file.write(line)


def tag_of(node):
    """cuDNN's tag of a node."""
    tag = OPERATIONS[node.op].tag
    return tag(node) if callable(tag) else tag
