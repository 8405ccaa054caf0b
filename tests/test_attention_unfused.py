"""Attention with its scores in memory: part by part where they are many, chosen where no other algorithm knows the heads."""
import numpy as np
import pytest

import dnnkern
from dnnkern import dispatch
from dnnkern.attention import _unfused
from dnnkern.attention._parse import parse_problem
from dnnkern.attention.backward import sdpa_bwd_unfused
from representative import device

B, H, KV, S, N, D = 2, 4, 2, 5, 7, 8


def arrays(seed):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32) for shape in ((B, H, S, D), (B, KV, N, D), (B, KV, N, D), (B, H, S, D))]


@pytest.mark.parametrize("most, parts", [(10 ** 9, 1), (2 * 2 * 5 * 8 * 4, 2), (1, 4)])
def test_parts(simulated, monkeypatch, most, parts):
    """All heads at once, an image at a time, a head of k at a time: the same numbers, and as many launches as parts have."""
    monkeypatch.setattr(_unfused, "MOST_BYTES", most)
    q, k, v, do = arrays(parts)
    scale = 0.3 + parts / 64  # a problem of its own: plans are remembered
    options = {"causal": True, "scale": scale}
    o, lse = dnnkern.sdpa_fwd(q, k, v, algo="naive", return_lse=True, **options)
    found, of_rows = dnnkern.sdpa_fwd(q, k, v, algo="unfused", return_lse=True, **options)
    np.testing.assert_allclose(found, o, atol=1e-6)
    np.testing.assert_allclose(of_rows, lse, atol=1e-6)
    for got, expected in zip(dnnkern.sdpa_bwd(do, q, k, v, o, lse, algo="unfused", **options),
                             dnnkern.sdpa_bwd(do, q, k, v, o, lse, algo="naive", **options)):
        np.testing.assert_allclose(got, expected, atol=3e-6)
    problem = parse_problem(f"{B}x{H}x{S}x{D} f32 --kv-heads {KV} --keys {N} --causal".split(), "sdpa_fwd")
    assert len(_unfused.parts_of(problem)) == parts
    assert sum(part.matrices for part in _unfused.parts_of(problem)) == B * KV


def test_parts_of_other_alignments_are_not_alike(monkeypatch):
    """Four rows of three 16-bit elements: the second head's do is at another alignment, q and k are not."""
    monkeypatch.setattr(_unfused, "MOST_BYTES", 1)
    problem = parse_problem("1x2x4x64 f16 --keys 8 --value-size 3".split(), "sdpa_bwd")
    first, second = _unfused.parts_of(problem)
    assert _unfused.operand(problem, "do", first)[0].alignment != _unfused.operand(problem, "do", second)[0].alignment
    assert _unfused.alike(problem, ("q", "k"))(first) == _unfused.alike(problem, ("q", "k"))(second)
    assert _unfused.alike(problem, ("q", "k", "do"))(first) != _unfused.alike(problem, ("q", "k", "do"))(second)
    assert "do" in sdpa_bwd_unfused.ARRAYS


@pytest.mark.parametrize("op", ["sdpa_fwd", "sdpa_bwd"])
@pytest.mark.parametrize("words", ["1x1x4096x512 bf16", "1x1x4096x512 f32", "4x9x1985x448 f16 --causal"])
def test_what_no_other_algorithm_knows(op, words):
    """One head of 512 elements over the pixels of an image: a second by `naive`."""
    problem, target = parse_problem(words.split(), op), device("sm_90a")
    by_cost = dispatch.get_algorithm(op, problem, device=target)
    naive = next(a for a in dispatch.algorithms(op) if a.name == "naive")
    assert by_cost.name == "unfused" and 50 * by_cost.seconds(problem, target) < naive.seconds(problem, target)
    assert by_cost.workspace(problem, target, by_cost.config) < 5 * _unfused.MOST_BYTES


def test_keys_that_only_some_rows_see(simulated):
    """A row that sees nothing is 0, its lse -inf; its gradient too."""
    q, k, v, do = arrays(9)
    mask = np.ones((1, 1, S, N), bool)
    mask[:, :, 2] = False
    o, lse = dnnkern.sdpa_fwd(q, k, v, mask=mask, algo="unfused", return_lse=True)
    assert (o[:, :, 2] == 0).all() and np.isneginf(lse[:, :, 2]).all() and np.isfinite(lse[:, :, 1]).all()
    dq, dk, dv = dnnkern.sdpa_bwd(do, q, k, v, o, lse, mask=mask, algo="unfused")
    assert (dq[:, :, 2] == 0).all() and np.isfinite(dk).all() and np.isfinite(dv).all()
