"""`flash_wgmma_roles`, of one block and of two: sizes that cross the edges of its tiles, and an order of additions."""
import contract
import pytest
from cases._sdpa_gradient import Backward

from dnnkern.attention.backward import flash_wgmma_roles

CASES = [
    Backward("grouped", 1, 2, 1, 66, 136, 72, 24, "bfloat16", causal=True),
    Backward("odd-boxes", 1, 1, 1, 65, 81, 136, 136, "float16"),
    Backward("window", 1, 1, 1, 130, 200, 72, 8, "bfloat16", window=(60, 30), align="bottom_right"),
    Backward("widest", 1, 1, 1, 70, 100, 256, 256, "float16", causal=True, align="bottom_right"),
    Backward("keys-of-nobody", 1, 1, 1, 20, 200, 80, 16, "bfloat16", causal=True, order="BSHD"),
]


def check(case, blocks, monkeypatch):
    monkeypatch.setattr(flash_wgmma_roles, "blocks_of", lambda problem: blocks)
    variants = flash_wgmma_roles.ALGORITHM.variants(case.problem(), contract.device())
    assert [variant.config.shape.blocks for variant in variants] == ([] if case.d <= 64 and blocks == 2 else [blocks])
    for variant in variants:
        contract.check(variant, case, **contract.ONCE)


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_edges_of_tiles(case, blocks, monkeypatch):
    """Rows, keys and columns that end within a tile, a box, and within the keys of the second block."""
    check(case, blocks, monkeypatch)


@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize("blocks", [1, 2])
def test_either_order_of_additions(blocks, down, monkeypatch):
    """From the last keys to the first and the other way round."""
    monkeypatch.setattr(flash_wgmma_roles, "goes_down", lambda problem, config, device: down)
    check(Backward("order", 1, 1, 1, 140, 200, 72, 8, "float16", causal=True), blocks, monkeypatch)


def test_options_that_it_refuses():
    """By name."""
    for word, case in {"bias": Backward("bias", 1, 1, 1, 8, 8, 8, 8, "float16", bias=(1, 1, 8, 8)),
                       "dropout": Backward("dropped", 1, 1, 1, 8, 8, 8, 8, "float16", dropout=0.2),
                       "lengths": Backward("padded", 1, 1, 1, 8, 8, 8, 8, "float16", of_rows=(8,), of_keys=(3,))}.items():
        assert word in flash_wgmma_roles.ALGORITHM.supports(case.problem())
