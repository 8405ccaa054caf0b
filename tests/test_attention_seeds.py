"""Seeds and offsets of attention's dropout in device memory."""
import contract
import labs
import numpy as np
import pytest
from cases._sdpa import NAMES, Forward
from cases._sdpa_gradient import Backward
from labs import array, host

import dnnkern
from dnnkern import dispatch
from dnnkern.device import SIMULATED

FWD, BWD = dnnkern.sdpa_fwd, dnnkern.sdpa_bwd


def algorithms(case):
    """Names of those that can solve a case."""
    return [a.name for a in dispatch.algorithms(case.op) if contract.refusal(a, case.problem()) is None]


def words(number):
    """An array of one int64."""
    return array([number], "int64")


SEEDED = [kind("seeded", 1, 2, 1, 5, 18, 8, 8, dtype, dropout=0.3, seed=-7, offset=3, **more) for kind in (Forward, Backward)
          for dtype, more in (("float32", {}), ("bfloat16", {"bias": (5, 18), "softcap": 2.0}))]
SEEDED.append(Forward("seeded", 1, 2, 1, 9, 40, 16, 16, "float8_e4m3fn", dropout=0.3, seed=-7, offset=3))


@pytest.mark.parametrize("case, algo", [pytest.param(case, algo, id=f"{case.op}-{NAMES[case.dtype]}-{algo}")
                                        for case in SEEDED for algo in algorithms(case)])
def test_a_seed_or_an_offset_in_memory_draws_what_the_number_draws(case, algo):
    values = case.values("float")
    arrays = {name: None if p is None else labs.guarded(p, values[name]).array for name, p in case.inputs().items()}
    how = {"algo": algo, "allow": dispatch.Note.NONDETERMINISTIC}  # of one tile of keys there is nothing to be added in another order
    wanted = case.call(arrays, **how)
    for given in ({"seed": words(-7)}, {"offset": words(3)}, {"seed": words(-7), "offset": words(3)}):
        for got, want in zip(case.call({**arrays, **given}, **how), wanted, strict=True):
            np.testing.assert_array_equal(host(got), host(want), err_msg=str(list(given)))


def test_calls_of_other_offsets_and_seeds_draw_independently():
    """With all scores alike o says which of eight keys, each with a power of two as its value, are kept."""
    q, k = array(np.zeros((1, 2, 200, 1))), array(np.zeros((1, 2, 8, 1)))
    v = array(np.tile(2.0 ** np.arange(8), (1, 2, 1, 1)).swapaxes(2, 3))
    drawn = [np.unpackbits((host(FWD(q, k, v, dropout=0.5, seed=seed, offset=offset)) * 4).round().astype(np.uint8))
             for seed, offset in ((0, 0), (0, 1), (1, 0), (1, 1), (0, -1))]
    for n, a in enumerate(drawn):
        assert abs(a.mean() - 0.5) < 4 * 0.5 / a.size ** 0.5
        for b in drawn[:n]:
            assert abs((a ^ b).mean() - 0.5) < 4 * 0.5 / a.size ** 0.5


def test_other_numbers_in_memory_draw_anew_without_a_plan():
    from dnnkern.attention import SDPA_FWD
    q, seed = array(np.ones((1, 1, 20, 8))), words(1)
    found = [host(FWD(q, q, q, dropout=0.5, seed=seed, return_lse=True)[0])]
    plans = len(SDPA_FWD.plans), len(SDPA_FWD.calls)
    for number in (2, 1):
        seed[...] = number
        found.append(host(FWD(q, q, q, dropout=0.5, seed=seed, return_lse=True)[0]))
    assert (len(SDPA_FWD.plans), len(SDPA_FWD.calls)) == plans
    assert np.array_equal(found[0], found[2]) and not np.array_equal(found[0], found[1])


@pytest.mark.skipif(SIMULATED, reason="CUDA graphs need a GPU")
def test_a_replayed_graph_draws_anew():
    """Forward and backward of each replay are those of the seed that it finds."""
    import torch
    q, k, v, do = (torch.randn(2, 2, 128, 64, dtype=torch.bfloat16, device="cuda") for _ in range(4))
    seed = torch.tensor([1], device="cuda")

    def step(seed):
        o, lse = FWD(q, k, v, dropout=0.5, seed=seed, return_lse=True)
        return o, *BWD(do, q, k, v, o, lse, dropout=0.5, seed=seed)
    step(seed)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step(seed)
        seed += 1
    for number in (1, 2, 3):
        graph.replay()
        for got, want in zip(found, step(number), strict=True):
            assert torch.equal(got, want)
