"""float32 as three bfloat16: their sum is the number, whatever the strides and lengths are; products of six are as exact as of one."""
import contract
import ml_dtypes
import numpy as np
import pytest
from cases import Place
from cases._sdpa import OPTIONAL, Forward, canonical
from cases._sdpa_gradient import Backward
from labs import array, guarded, host, synchronize

import dnnkern
from dnnkern import dispatch
from dnnkern.attention import _pieces
from dnnkern.device import SIMULATED
from dnnkern.host.launch import Executable, SimulatedExecutable

FLASH = next(a for a in dispatch.algorithms("sdpa_fwd") if a.name == "flash_wgmma_bf16x6")
FORWARD = Forward("exact", 1, 1, 1, 64, 192, 64, 64).problem()
NAMES = ("q", "k", "v", "do")
CASES = [
    Backward("rows", 2, 3, 1, 5, 9, 16, 8, "float32"),
    Backward("odd", 1, 2, 2, 4, 3, 9, 7, "float32", order="BSHD", layout={"q": {"step": 2}, "v": {"gap": 3}, "do": {"gap": 1}}),
    Backward("by-columns", 1, 2, 1, 33, 17, 24, 40, "float32", layout={"k": {"order": (0, 1, 3, 2)}}),
    Backward("padded", 3, 2, 1, 6, 7, 8, 12, "float32", of_rows=(6, 0, 2), of_keys=(3, 7, 0)),
    Backward("packed", 2, 2, 1, 11, 12, 8, 8, "float32", of_rows=(4, 5), of_keys=(7, 2), order="THD"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_the_sum_of_the_pieces_is_the_number(case):
    problem, values, places = case.problem(), case.values("float"), case.inputs()
    rng = np.random.default_rng(3)
    for name in NAMES:  # of all sizes
        values[name] = (values[name] * 2.0 ** rng.integers(-90, 90, values[name].shape)).astype(np.float32)
    splits = _pieces.splits_of(problem, NAMES, begin=32)
    counter = splits[-1].end
    launches = [_pieces.split_launch(splits, counter), _pieces.split_launch(splits[1:2])]
    space = guarded(Place((counter + 4,), "uint8", (1,)), np.full(counter + 4, 0xFF))
    given = {name: places.get(name) and guarded(places[name], values[name]) for name in (*NAMES, *OPTIONAL)}
    parameters = [("workspace", "pointer"), *((name, "pointer" if x else "null") for name, x in given.items())]
    arrays = [x.array for x in (space, *given.values()) if x]
    if SIMULATED:
        SimulatedExecutable(launches, parameters, 0).execute(arrays, 0)
    else:
        Executable(launches, parameters, 0).execute([x.data_ptr() for x in arrays], 0)
        synchronize()
    space.assert_guards("workspace")
    found = space.raw()
    assert (found[:32] == 0xFF).all() and not found[counter:].any()
    for s in splits:
        pieces = found[s.begin:s.end].view(ml_dtypes.bfloat16).astype(np.float64).reshape(_pieces.PIECES, *s.sizes)
        want = np.zeros(s.sizes)
        x = canonical(values[s.name].astype(np.float64), case.order)
        want[..., :x.shape[-1]] = x
        lengths = case.of_keys if s.name in ("k", "v") else case.of_rows
        for b, n in enumerate(lengths or () if not case.packed else ()):
            want[b, :, n:] = 0
        np.testing.assert_array_equal(pieces.sum(0), want)
        for high, low in zip(pieces, pieces[1:]):
            assert (np.abs(low) <= 2.0 ** -8 * np.abs(high)).all()


@pytest.mark.skipif(contract.refusal(FLASH, FORWARD) is not None, reason="Hopper's")
def test_attention_is_as_exact_as_with_multiply_adds():
    """Without any of the six products, the least of which are 2**-17 of the whole, the error is ten times as large."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, n, 64)).astype(np.float32) for n in (64, 192, 192))
    scores = q[0, 0].astype(np.float64) @ k[0, 0].T.astype(np.float64) / 8
    weights = np.exp(scores - scores.max(1, keepdims=True))
    want = weights / weights.sum(1, keepdims=True) @ v[0, 0].astype(np.float64)
    given = tuple(array(x) for x in (q, k, v))
    six, one = (np.sqrt(np.mean((host(dnnkern.sdpa_fwd(*given, algo=algo))[0, 0] - want) ** 2)) for algo in (FLASH.name, "flash_simt"))
    assert six < 4 * one
