"""float32 as three bfloat16: their sum is the number, whatever the strides and lengths are."""
import ml_dtypes
import numpy as np
import pytest
from cases import Place
from cases._sdpa import OPTIONAL, Backward, canonical
from labs import guarded, synchronize

from dnnkern.attention import _pieces
from dnnkern.device import SIMULATED
from dnnkern.host.launch import Executable, SimulatedExecutable

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
