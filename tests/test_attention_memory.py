"""Ragged sequences, pages, block masks and dropout masks of attention: bad input, offsets and pages out of range, what is left alone."""
import labs
import numpy as np
import pytest
from cases import lay
from labs import array, host, refused

import dnnkern

FWD, BWD = dnnkern.sdpa_fwd, dnnkern.sdpa_bwd
H, G, D = 2, 1, 8
OFFSETS = np.array([0, 4, 9]) * H * D


def ones(*shape, dtype="float32"):
    return array(np.ones(shape), dtype)


def given(**more):
    """Ragged operands of two sequences of 3 and 5 queries and 2 and 4 keys, in arrays of 9 and 7 rows."""
    found = {"q": ones(9, H, D), "k": ones(7, G, D), "v": ones(7, G, D), "layout": "THD", "seq_len_q": array((3, 5), "int32"),
             "seq_len_kv": array((2, 4), "int32"), "ragged_q": array(OFFSETS, "int64"), "ragged_o": array(OFFSETS, "int64"),
             "ragged_k": array((0, 3 * G * D, 7 * G * D), "int64"), "ragged_v": array((0, 3 * G * D, 7 * G * D), "int64"),
             "max_seq_len_q": 5, "max_seq_len_kv": 4}
    return {**found, **more}


@pytest.mark.parametrize("how, error, words", [
    ({"seq_len_q": None}, ValueError, ["ragged offsets without seq_len_q"]),
    ({"layout": "BSHD"}, ValueError, ["q has shape (9, 2, 8)", "4 dimensions, BSHD"]),
    ({"ragged_q": ("int16", (3,))}, TypeError, ["ragged_q is int16", "int32 or int64"]),
    ({"ragged_k": ("int32", (3,))}, TypeError, ["ragged_k is int32", "the same of all offsets"]),
    ({"ragged_q": ("int64", (2,))}, ValueError, ["ragged_q has shape (2,)", "(3,)"]),
    ({"ragged_lse": ("int64", (3,))}, ValueError, ["ragged_lse without lse"]),
    ({"ragged_k": None}, ValueError, ["k has shape (7, 1, 8)", "4 dimensions, BSHD"]),
    ({"max_seq_len_q": 10}, ValueError, ["max_seq_len_q=10", "q has 9 rows"]),
    ({"max_seq_len_q": -1}, ValueError, ["max_seq_len_q=-1", "a number of queries"]),
    ({"cu_seqlens_q": ("int32", (3,))}, ValueError, ["cu_seqlens_q beside ragged offsets"])])
def test_ragged_input(how, error, words):
    how = {name: ones(*value[1], dtype=value[0]) if isinstance(value, tuple) else value for name, value in how.items()}
    refused(error, words, FWD, **given(**how))


def test_ragged_gradients_have_the_strides_of_their_operands():
    arrays = given()
    q, k, v = (arrays.pop(name) for name in "qkv")
    wide = labs.guarded(lay((9, H, D), "float32", gap=8)).array
    refused(ValueError, ["do has a stride of rows of 32, o of 16", "ragged_o is of both"], BWD, wide, q, k, v, q, ones(2, H, 5), **arrays)


@pytest.mark.parametrize("how, error, words", [
    ({"seq_len_kv": None}, ValueError, ["page_table_k and page_table_v without seq_len_kv"]),
    ({"page_table_k": ("int64", (2, 3))}, TypeError, ["page_table_k is int64", "int32"]),
    ({"page_table_v": ("int32", (3, 3))}, ValueError, ["page_table_v has shape (3, 3)", "B=2"]),
    ({"page_table_v": ("int32", (2, 2))}, ValueError, ["same heads and keys"]),
    ({"max_seq_len_kv": 13}, ValueError, ["max_seq_len_kv=13", "12 keys of k"])])
def test_pages(how, error, words):
    how = {name: ones(*value[1], dtype=value[0]) if isinstance(value, tuple) else value for name, value in how.items()}
    tables = {name: ones(2, 3, dtype="int32") for name in ("page_table_k", "page_table_v")}
    pages = ones(5, G, 4, D)
    refused(error, words, FWD, ones(2, H, 6, D), pages, pages, **{**tables, "seq_len_kv": ones(2, dtype="int32"), **how})


@pytest.mark.parametrize("how, error, words", [
    ({"block_mask": ("uint8", (2, 4, 1, 2))}, ValueError, ["block_mask has shape (2, 4, 1, 2)", "(2, 4, 1, 1)"]),
    ({"block_mask": ("int32", (2, 4, 1, 1))}, TypeError, ["block_mask is int32", "uint8"]),
    ({"dropout_mask": ("float32", (6, 8))}, ValueError, ["dropout_mask has shape (6, 8)", "(2, 4, 6, 7)"]),
    ({"dropout_mask": ("bool", (6, 7))}, TypeError, ["dropout_mask is bool", "float32"]),
    ({"dropout_mask": ("float32", (6, 7)), "dropout": 0.5}, ValueError, ["dropout_mask with dropout=0.5"]),
    ({"dropout_mask": ("float32", (6, 7)), "dropout_scale": "2"}, TypeError, ["dropout_scale='2'"]),
    ({"return_stats": 1}, TypeError, ["return_stats=1"]),
    ({"block_mask": ("uint8", (2, 4, 1, 1)), "algo": "flash_wgmma"}, dnnkern.NotSupported, ["flash_wgmma"])])
def test_masks(how, error, words):
    how = {name: ones(*value[1], dtype=value[0]) if isinstance(value, tuple) else value for name, value in how.items()}
    refused(error, words, FWD, ones(2, 4, 6, 8), ones(2, 2, 7, 8), ones(2, 2, 7, 8), **how)


def test_values_are_checked_on_demand(monkeypatch):
    from dnnkern.host import front
    monkeypatch.setattr(front, "CHECKS", frozenset({"values"}))
    refused(ValueError, ["ragged_q[1] is 96", "a multiple of the stride of rows, 16, from 0 to 64"], FWD,
            **given(ragged_q=array((0, 96, 0), "int64")))
    refused(ValueError, ["ragged_k[0] is 3", "a multiple of the stride of rows, 8, from 0 to 40"], FWD,
            **given(ragged_k=array((3, 8, 0), "int64")))
    table, pages = array(((0, 1), (2, 5)), "int32"), ones(5, G, 4, D)
    for of_keys, words in (((8, 5), ["page_table_k[1, 1] is 5", "a page, 0 to 4"]), ((8, 9), ["seq_len_kv[1] is 9", "0 to 8"])):
        refused(ValueError, words, FWD, ones(2, H, 6, D), pages, pages, page_table_k=table, page_table_v=table,
                seq_len_kv=array(of_keys, "int32"))


@pytest.mark.parametrize("algo", ["naive", "flash_simt", "flash_mma"])
def test_offsets_and_pages_out_of_range_read_nothing_outside(algo):
    """Guards around every array would show a write, the simulator a read."""
    dtype = "float16"
    lies = array((-64, 2 ** 40, 0), "int64")
    arrays = given(q=ones(9, H, D, dtype=dtype), k=ones(7, G, D, dtype=dtype), v=ones(7, G, D, dtype=dtype))
    out = labs.guarded(lay((9, H, D), dtype))
    FWD(**{**arrays, **dict.fromkeys(("ragged_q", "ragged_k", "ragged_v", "ragged_o"), lies)}, out=out.array, algo=algo)
    labs.synchronize()
    out.assert_guards("o")
    table, pages = array(((-5, 1), (2, 2 ** 30)), "int32"), ones(5, G, 4, D, dtype=dtype)
    o = FWD(ones(2, H, 6, D, dtype=dtype), pages, pages, page_table_k=table, page_table_v=table, seq_len_kv=array((8, 7), "int32"),
            algo=algo)
    assert (host(o).astype(float) == 1).all()


@pytest.mark.parametrize("algo", ["naive", "flash_simt"])
def test_rows_past_a_length_are_left_alone(algo):
    """Of ragged arrays; of others they are zero."""
    out, lse = labs.guarded(lay((9, H, D), "float32")), labs.guarded(lay((2, H, 5), "float32"))
    FWD(**given(), out=(out.array, lse.array), return_lse=True, algo=algo)
    labs.synchronize()
    o, sums = out.read(), lse.read()
    assert np.isnan(o[3]).all() and not np.isnan(np.delete(o, 3, 0)).any()
    assert np.isfinite(sums[0, :, :3]).all() and np.isneginf(sums[0, :, 3:]).all() and np.isfinite(sums[1]).all()
