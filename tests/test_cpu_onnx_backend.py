"""ONNX's own tests of backends (`onnx.backend.test`), on the processor: all cases of operators that the table has.

A part of them by default, with each operator at least once, all with --full. In each case it is also checked who has
computed the nodes: only what `ON_HOST` lists may be ONNX's evaluator's.
"""
import functools
import glob
import os
import re
import warnings
from collections import Counter

import pytest

onnx = pytest.importorskip("onnx")
from onnx.backend.test.loader import load_model_tests  # noqa: E402
from onnx.backend.test.runner import Runner  # noqa: E402

import dnnkern.onnx  # noqa: E402
from dnnkern import dispatch  # noqa: E402
from dnnkern.onnx import _table  # noqa: E402

KINDS = "node", "simple", "pytorch-operator", "pytorch-converted"
EXCEPT = {f"test_bernoulli{name}" for name in ("", "_double", "_seed", "_expanded", "_double_expanded", "_seed_expanded")}
"""What compares the bits of NumPy's generator."""
FEW = 12  # of so many cases one is run, besides the first of each operator
ON_HOST = {
    "Attention": "qk_matmul_output", "GRU": "linear_before_reset=0", "LSTM": "peepholes", "Mod": "Mod with the divisor's sign",
    "Resize": "scales|keep_aspect|nearest_mode|coordinate_transformation_mode|antialias|cubic_coeff_a", "Dropout": "training",
    "GridSample": "grid_sample_fwd: mode='bicubic'",
    "Pad": "mode 'wrap'", "MaxPool": "indices in the order of columns", "Einsum": r"equation '.*\.\.\.", "Cast": " to |saturate=0",
    "CastLike": " to |saturate=0"}
"""Operators whose cases may be ONNX's evaluator's, though their dtypes are ours, and why."""
NOT_OURS = r"computes shapes|(dtype|is|are|x|a|b) (object|u?int\d+|bool|float4\w*|float8\w*)\b"
"""Reasons of any operator: shapes, and dtypes that this library does not compute with."""


def nodes_of(graph):
    """All nodes, those of subgraphs too."""
    for node in graph.node:
        yield node
        for a in node.attribute:
            if a.type == onnx.AttributeProto.GRAPH:
                yield from nodes_of(a.g)


@functools.cache
def cases():
    """{name: (case, model, {(domain, operator, version)})} of the cases whose nodes are all in the table."""
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in KINDS:
            for case in load_model_tests(kind=kind):
                model = case.model or onnx.load(os.path.join(case.model_dir, "model.onnx"))
                opsets = {d.domain: d.version for d in model.opset_import}
                ops = {(n.domain, n.op_type, version(n, opsets)) for n in nodes_of(model.graph)}
                if case.name not in EXCEPT and all(op[1] == "Constant" or _table.rule_of(*op)[0] for op in ops) and not model.functions:
                    found[case.name] = case, model, ops
    return found


def version(node, opsets):
    try:
        return onnx.defs.get_schema(node.op_type, opsets.get(node.domain, 1), node.domain).since_version
    except onnx.defs.SchemaError:
        return None


def family(ops):
    """The module of rules of a case: that of its rarest operator."""
    modules = [_table.RULES[domain, op].function.__module__.rpartition(".")[2] for domain, op, _ in ops if op != "Constant"]
    return max(modules, key=lambda m: (-Counter(modules)[m], m), default="move")


def of_module(module):
    """[(name, (case, model, operators))] of one module of rules."""
    return [(name, found) for name, found in cases().items() if family(found[2]) == module]


def data(case, model):
    """Inputs and expected outputs."""
    if case.data_sets is not None:
        yield from case.data_sets
        return
    for folder in sorted(glob.glob(os.path.join(case.model_dir, "test_data_set_*"))):
        yield tuple([read(f"{folder}/{kind}_{k}.pb", info.type) for k, info in enumerate(infos)
                     if os.path.exists(f"{folder}/{kind}_{k}.pb")] for kind, infos in (("input", model.graph.input),
                                                                                       ("output", model.graph.output)))


def read(path, kind):
    with open(path, "rb") as file:
        text = file.read()
    if kind.HasField("sequence_type"):
        return onnx.numpy_helper.to_list(onnx.SequenceProto.FromString(text))
    return onnx.numpy_helper.to_array(onnx.TensorProto.FromString(text))


def array(x):
    return onnx.numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else x


def check(case, model):
    """Raise unless the results are the expected ones, and the nodes were computed where they should be."""
    prepared = dnnkern.onnx.prepare(model)
    for inputs, expected in data(case, model):
        expected = [array(x) for x in expected]
        found = list(prepared.run([array(x) for x in inputs]))
        Runner.assert_similar_outputs(expected, found, case.rtol, case.atol)
    for row in prepared.report():
        if row.by == "host":
            allowed = NOT_OURS + (f"|{ON_HOST[row.op]}" if row.op in ON_HOST else "")
            assert re.search(allowed, row.reason), f"{row.op} ran on the host: {row.reason}"


@pytest.mark.parametrize("module", _table.MODULES)
def test_cases_of_onnx(module, request):
    chosen, known = [], set()
    for k, (name, (case, model, ops)) in enumerate(of_module(module)):
        if request.config.getoption("--full") or ops - known or k % FEW == 0:
            chosen.append((name, case, model))
        known |= ops
    assert chosen or module == "random"
    failed = {}
    with dispatch.prefer("naive"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, case, model in chosen:
            try:
                check(case, model)
            except Exception as error:
                failed[name] = " ".join(str(error).split())[:300]
    assert not failed, f"{len(failed)} of {len(chosen)}: " + "\n".join(f"{name}: {why}" for name, why in failed.items())


def test_every_operator_of_the_table_has_a_case():
    with_case = {(domain, op) for _, _, ops in cases().values() for domain, op, _ in ops}
    random = {"RandomUniform", "RandomNormal", "RandomUniformLike", "RandomNormalLike", "Bernoulli"}
    assert {op for _, op in _table.loaded().keys() - with_case} == {"GlobalLpPool", *random}, "operators without a case"
    assert len(cases()) >= 1600, len(cases())


def test_the_check_notices_a_wrong_result(monkeypatch):
    case, model, _ = cases()["test_relu"]
    from dnnkern.onnx._node import Node
    call = Node.call
    monkeypatch.setattr(Node, "call", lambda self, *args, **kwargs: call(self, "unary", args[1], "neg"))
    with pytest.raises(AssertionError, match="Not equal"):
        check(case, model)

    def refuse(self, *args, **kwargs):
        raise ValueError("no")
    monkeypatch.setattr(Node, "call", refuse)
    with pytest.raises(AssertionError, match="Relu ran on the host: no"):
        check(case, model)
