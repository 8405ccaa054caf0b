"""Masks by documents in a `score_mod`: found in its program, blocks of others left out, right for numbers in any order."""
import contract
import numpy as np
import pytest
from cases._programs import _program, _step
from cases._sdpa import Forward
from cases._sdpa_gradient import Backward

from dnnkern import dispatch
from dnnkern.device import SIMULATED
from dnnkern.dispatch import Note
from dnnkern.engine import document_blocks
from dnnkern.engine.document_blocks import documents_of

ROWS, COLUMNS, NONE = ("int32", "row"), ("int32", "column"), ("float32", -float("inf"))


@pytest.fixture
def small_blocks(monkeypatch):
    """In the simulator of 32 rows and columns."""
    if SIMULATED:
        monkeypatch.setattr(document_blocks, "LOG_BLOCK", 5)
        monkeypatch.setattr(document_blocks, "BLOCK", 32)


def made(loads, *steps):
    return _program(loads, tuple(_step(mode, *inputs, compute=compute) for mode, inputs, compute in steps))


def test_documents_are_found():
    loads, equal, select = (ROWS, COLUMNS, NONE), ("cmp_eq", (1, 2), "int32"), ("binary_select", (0, 4, 3), "float32")
    assert documents_of(made(loads, equal, ("binary_select", (0, 3, 4), "float32"))) == (0, 1, -np.inf, None, False)
    # masked where numbers differ; given at each launch; -1e9; behind another mask, of which it is a part; compared in float32
    assert documents_of(made(loads, ("cmp_neq", (2, 1), "int32"), ("binary_select", (3, 0, 4), "float32")))[:2] == (0, 1)
    given = (ROWS, COLUMNS, ("float32", "value"))
    assert documents_of(made(given, equal, ("binary_select", (0, 3, 4), "float32"))) == (0, 1, None, 2, False)
    finite = (ROWS, COLUMNS, ("float32", -1e9))
    assert documents_of(made(finite, ("cmp_eq", (1, 2), "float32"), ("binary_select", (0, 3, 4), "float32"))) == (0, 1, -1e9, None, True)
    both = (equal, ("cmp_ge", (1, 2), "int32"), ("logical_and", (5, 4), "int32"), ("binary_select", (0, 3, 6), "float32"))
    assert documents_of(made(loads, *both))[:2] == (0, 1)
    after = (equal, ("binary_select", (0, 3, 4), "float32"), ("cmp_ge", (1, 2), "int32"), ("binary_select", (5, 3, 6), "float32"))
    assert documents_of(made(loads, *after))[:2] == (0, 1)
    # as cuDNN's sample has it: a matrix of ones times the numbers
    ones = (("cmp_le", (2, 2), "int32"), ("mul", (4, 1), "float32"), ("mul", (4, 2), "float32"), ("cmp_eq", (5, 6), "float32"),
            ("binary_select", (0, 3, 7), "float32"))
    rounded = made(loads, *ones)
    assert documents_of(rounded) == (0, 1, -np.inf, None, True)
    # a number that is none of -1e9 and below; one or the other; scores after the mask; of two rows; of floats
    for loads, *steps in (((ROWS, COLUMNS, ("float32", -1e8)), equal, ("binary_select", (0, 3, 4), "float32")),
                          (loads, equal, ("cmp_ge", (1, 2), "int32"), ("logical_or", (4, 5), "int32"),
                           ("binary_select", (0, 3, 6), "float32")),
                          (loads, equal, ("binary_select", (0, 3, 4), "float32"), ("add", (5, 0), "float32")),
                          ((ROWS, ROWS, NONE), equal, ("binary_select", (0, 3, 4), "float32")),
                          (loads, equal, select), ((("float32", "row"), COLUMNS, NONE), ("cmp_eq", (1, 2), "float32"),
                                                   ("binary_select", (0, 3, 4), "float32"))):
        assert documents_of(made(loads, *steps)) is None


def able(case, turn):
    """(algorithm, variant) on tensor cores."""
    for algorithm in dispatch.algorithms(case.op):
        if SIMULATED and algorithm.name.endswith("atomic"):  # its kernel differs in who adds up dq alone
            continue
        if Note.TENSOR_CORE in algorithm.notes and contract.refusal(algorithm, case.problem()) is None:
            found = algorithm.variants(case.problem(), contract.device())
            yield from [found[turn % len(found)]] if SIMULATED else found


@pytest.mark.parametrize("turn, case", list(enumerate([
    Forward("parts", 2, 1, 1, 40, 75, 8, 8, "bfloat16", modifier="parts"),
    Forward("unsorted", 2, 1, 1, 20, 70, 8, 8, "bfloat16", modifier="documents", window=(30, 20)),
    Backward("parts-causal", 1, 2, 1, 75, 75, 8, 8, "float16", modifier="parts", causal=True)]
    + ([] if SIMULATED else [kind("large", 2, 2, 1, 400, 700, 64, 64, "bfloat16", modifier="parts") for kind in (Forward, Backward)]))),
    ids=lambda x: "" if isinstance(x, int) else f"{x.op}-{x.id}")
def test_values(turn, case, small_blocks):
    assert case.problem().documents
    for variant in able(case, turn):
        contract.check(variant, case, **contract.ONCE)


@pytest.mark.parametrize("kind, names", [(Forward, ("k", "v")), (Backward, ("q", "do", "o"))])
def test_blocks_of_others_are_not_read(kind, names, small_blocks):
    """Keys of a document that no query has, queries of one that no key has: NaN there reaches nothing else. Two blocks have no other."""
    n = 2 * document_blocks.BLOCK
    case = kind("nan", 1, 1, 1, *((9, 3 * n) if kind is Forward else (3 * n, 9)), 8, 8, "bfloat16", modifier="parts")
    own, other = ("x0", "x1") if kind is Forward else ("x1", "x0")
    values = {name: x if x is None else x.copy() for name, x in case.values("float").items()}
    values[own][...], values[other][...] = 5, 5
    values[other].reshape(-1)[n:2 * n] = 6  # numbers need not ascend
    values[other].reshape(-1)[2 * n + 3] = 4
    reference, bound = case.reference(values, True)
    for name in names:
        values[name][:, :, n:2 * n] = float("nan")
    found = 0
    for variant in able(case, 0):
        if variant.config is None:  # no tiles: `unfused` multiplies all
            continue
        width = getattr(variant.config, "shape", None) or variant.config.threads
        if n % (width.width if kind is Forward else max(width.width, 1)) == 0:
            found += 1
            with contract.registered(variant) as mine:
                got = contract.Run(case, mine, values).outputs
                for name, y in reference.items():
                    if not (kind is Backward and name == "dq"):
                        contract.assert_within(got[name].read(), y, bound[name], f"{variant}: {name}")
    assert found
