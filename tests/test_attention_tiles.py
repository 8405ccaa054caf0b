"""Attention on tensor cores: edges of tiles, in every option that moves them, and blocks that take several tiles."""
from dataclasses import replace

import contract
import ml_dtypes
import numpy as np
import pytest
from cases._sdpa import SCALES, Forward
from cases._sdpa_gradient import Backward

from dnnkern import dispatch
from dnnkern.device import SIMULATED
from dnnkern.dispatch import Note
from dnnkern.host import device as host

CASES = [Forward("edges", 1, 1, 1, n, m, 16, e, ("float16", "bfloat16")[n % 2])
         for n, m, e in ((1, 64, 16), (63, 1, 24), (64, 65, 16), (65, 127, 40), (127, 63, 16), (129, 129, 8))]
CASES += [
    Forward("causal", 1, 1, 1, 129, 129, 8, 8, "bfloat16", causal=True),
    Forward("causal-bottom", 1, 2, 2, 9, 140, 8, 8, "float16", causal=True, align="bottom_right", order="BSHD"),
    Forward("hidden-rows", 1, 1, 1, 140, 65, 8, 8, "bfloat16", causal=True, align="bottom_right"),
    Forward("rows-beyond-keys", 1, 1, 1, 140, 65, 8, 8, "bfloat16", causal=True, window=(20, -1)),
    Forward("window", 1, 1, 1, 66, 150, 8, 8, "float16", window=(30, 3)),
    Forward("window-causal", 1, 1, 1, 70, 260, 16, 16, "bfloat16", window=(100, 0), align="bottom_right"),
    Forward("padded", 3, 1, 1, 66, 70, 8, 8, "float16", of_rows=(66, 1, 0), of_keys=(3, 65, 3)),
    Forward("padded-causal", 2, 1, 1, 9, 70, 8, 16, "bfloat16", of_keys=(64, 0), causal=True, align="bottom_right"),
    Forward("sink", 1, 2, 1, 9, 66, 8, 8, "bfloat16", sink="float32", causal=True, window=(40, -1)),
    Forward("peaked", 1, 1, 1, 20, 200, 8, 8, "bfloat16", large=6.0),
    Forward("peaked-causal", 1, 1, 1, 66, 140, 8, 8, "float16", large=6.0, causal=True, align="bottom_right"),
    Forward("wide", 1, 1, 1, 10, 70, 144, 200, "float16"),
    Forward("unlike", 1, 1, 1, 20, 10, 192, 128, "bfloat16"),
    Forward("odd-heads", 1, 1, 1, 66, 20, 9, 7, "bfloat16",
            layout={name: {"gap": 7 if name in "qk" else 1} for name in ("q", "k", "v", "o")}),
    Forward("negative-scale", 1, 2, 1, 20, 70, 8, 8, "bfloat16", scale=-0.4, window=(60, -1)),
    Forward("bias", 1, 2, 1, 9, 70, 8, 8, "bfloat16", bias=(2, 9, 70), bias_dtype="float32", causal=True),
    Forward("bias-tiles", 1, 2, 1, 66, 136, 8, 8, "bfloat16", bias=(2, 66, 136), bias_dtype="float32"),
    Forward("bias-tiles", 2, 1, 1, 130, 72, 8, 16, "float16", bias=(1, 1, 130, 72), causal=True),
    Forward("bias-tiles", 2, 2, 1, 20, 136, 8, 8, "bfloat16", bias=(2, 1, 20, 136), window=(30, 20), align="bottom_right"),
    Forward("bias-tiles", 2, 1, 1, 20, 136, 8, 8, "bfloat16", bias=(20, 136), of_rows=(9, 20), of_keys=(67, 136), softcap=2.0, alibi=True),
    Forward("bias-tiles", 1, 1, 1, 20, 136, 72, 200, "float16", bias=(1, 1, 20, 136), bias_dtype="float32", dropout=0.2, window=(-1, 100)),
    Forward("mask-tiles", 2, 2, 1, 66, 208, 8, 8, "bfloat16", mask=(2, 1, 66, 208), window=(150, 9), align="bottom_right"),
    Forward("mask-tiles", 1, 2, 2, 20, 144, 16, 8, "float16", mask=(20, 144), softcap=2.0, dropout=0.2, of_keys=(131,), causal=True),
    Forward("mask-tiles", 1, 1, 1, 130, 80, 72, 200, "float16", mask=(1, 1, 130, 80), alibi=True),
    Forward("mask-of-keys", 2, 2, 1, 66, 160, 8, 8, "float16", mask=(2, 1, 1, 160), causal=True, align="bottom_right", sink="float32"),
    Forward("bias-of-heads", 1, 2, 1, 20, 70, 8, 8, "float16", bias=(2, 20, 70), layout={"bias": {"gap": 2}}),
    Forward("capped", 1, 1, 1, 20, 140, 8, 8, "bfloat16", softcap=30.0, causal=True, align="bottom_right"),
    Forward("capped-partly", 1, 2, 1, 20, 70, 8, 8, "float16", softcap=4.0, alibi=True),
    Forward("alibi-capped", 1, 3, 3, 20, 70, 8, 8, "float16", alibi=True, softcap=1.5, align="bottom_right", bias=(1, 1, 1, 70)),
    Forward("dropped", 2, 1, 1, 20, 70, 8, 8, "bfloat16", dropout=0.3, seed=2 ** 63 + 5, window=(60, -1), align="bottom_right"),
    Forward("dropped-padded", 2, 1, 1, 20, 70, 8, 8, "float16", dropout=0.2, softcap=2.0, of_rows=(20, 3), of_keys=(7, 70), causal=True,
            align="bottom_right"),
    Forward("packed", 4, 1, 1, 138, 135, 8, 16, "bfloat16", of_rows=(64, 0, 65, 1), of_keys=(65, 1, 63, 0), order="THD"),
    Forward("packed-causal", 3, 1, 1, 147, 143, 8, 8, "float16", of_rows=(129, 17, 1), of_keys=(63, 15, 65), order="THD", causal=True,
            align="bottom_right"),
    Forward("packed-window", 3, 2, 1, 90, 150, 8, 8, "bfloat16", of_rows=(64, 9, 9), of_keys=(65, 9, 67), order="THD", window=(40, 3)),
    Forward("packed-all", 3, 2, 1, 30, 90, 8, 16, "float16", of_rows=(10, 0, 10), of_keys=(66, 3, 10), order="THD", alibi=True,
            softcap=2.0, sink="float32", dropout=0.2, causal=True, align="bottom_right"),
    Forward("packed-odd", 2, 1, 1, 75, 80, 8, 12, "bfloat16", of_rows=(9, 66), of_keys=(70, 10), order="THD", layout={"v": {"gap": 4}}),
    Forward("packed-wide", 2, 1, 1, 70, 70, 72, 136, "float16", of_rows=(60, 9), of_keys=(9, 60), order="THD"),
    Forward("o-strided", 1, 1, 1, 66, 20, 16, 16, "float16", layout={"o": {"step": 2}}),
    Forward("o-in-pairs", 1, 1, 1, 66, 20, 16, 12, "float16", layout={"v": {"gap": 4}}),
]


E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
CASES += [Forward("bytes", 1, 1, 1, n, m, 16, e, (E4M3, E5M2)[n % 2], scales=SCALES[:n % 4], out_dtype=("float16", None)[m % 2])
          for n, m, e in ((1, 64, 16), (63, 1, 24), (64, 65, 16), (65, 127, 40), (127, 63, 16), (129, 129, 8), (10, 230, 128))]
CASES += [
    Forward("bytes-causal", 1, 1, 1, 66, 129, 16, 16, E4M3, causal=True, scales=SCALES),
    Forward("bytes-causal-bottom", 1, 2, 2, 9, 140, 32, 8, E4M3, causal=True, align="bottom_right", order="BSHD"),
    Forward("bytes-hidden-rows", 1, 1, 1, 140, 65, 16, 8, E5M2, causal=True, align="bottom_right"),
    Forward("bytes-window", 1, 1, 1, 66, 150, 16, 8, E4M3, window=(30, 3)),
    Forward("bytes-window-causal", 1, 1, 1, 70, 260, 16, 16, E4M3, window=(101, 0), align="bottom_right", scales=SCALES[1:]),
    Forward("bytes-padded", 3, 1, 1, 66, 70, 16, 16, E4M3, of_rows=(66, 1, 0), of_keys=(3, 65, 3)),
    Forward("bytes-padded-causal", 2, 1, 1, 9, 70, 16, 16, E5M2, of_keys=(64, 0), causal=True, align="bottom_right"),
    Forward("bytes-sink", 1, 2, 1, 9, 66, 16, 16, E4M3, sink="float32", causal=True, window=(40, -1)),
    Forward("bytes-peaked", 1, 1, 1, 20, 300, 16, 16, E4M3, large=4.0),
    Forward("bytes-unlike", 1, 1, 1, 20, 40, 192, 128, E4M3),
    Forward("bytes-wide", 1, 1, 1, 10, 130, 144, 250, E4M3, scales=SCALES[2:]),
    Forward("bytes-to-bytes", 1, 1, 1, 66, 20, 16, 72, E4M3, out_dtype=E4M3),
    Forward("bytes-to-float32", 1, 1, 1, 70, 40, 16, 16, E5M2, out_dtype="float32", causal=True, align="bottom_right"),
    Forward("bytes-odd-values", 1, 2, 1, 9, 40, 16, 7, E4M3, layout={"v": {"step": 2}, "o": {"gap": 1}}),
    Forward("bytes-values-apart", 1, 2, 1, 9, 40, 40, 12, E5M2, layout={"q": {"gap": 8}, "k": {"gap": 8}, "v": {"order": (0, 1, 3, 2)}}),
    Forward("bytes-negative-scale", 1, 2, 1, 20, 70, 16, 8, E4M3, scale=-0.4, scales=SCALES),
    Forward("bytes-bias", 1, 2, 1, 9, 70, 16, 8, E4M3, bias=(2, 9, 70), bias_dtype="float32", causal=True, scales=SCALES),
    Forward("bytes-capped", 1, 2, 2, 20, 70, 16, 8, E4M3, alibi=True, softcap=1.5, align="bottom_right", scales=SCALES),
    Forward("bytes-dropped", 2, 1, 1, 20, 70, 16, 8, E4M3, dropout=0.3, seed=2 ** 63 + 5, of_keys=(7, 70), sink="bfloat16"),
]

CASES += [Forward("floats", 1, 1, 1, n, m, d, e) for n, m, d, e in (
    (1, 96, 16, 16), (63, 1, 9, 7), (64, 97, 24, 16), (65, 161, 16, 40), (129, 130, 8, 8), (10, 70, 72, 128), (20, 40, 128, 96))]
CASES += [
    Forward("floats-causal", 1, 1, 1, 66, 129, 8, 8, causal=True, layout={"o": {"step": 2}}),
    Forward("floats-causal-bottom", 1, 4, 2, 9, 66, 8, 8, causal=True, align="bottom_right", order="BSHD"),
    Forward("floats-hidden-rows", 1, 1, 1, 140, 65, 8, 8, causal=True, align="bottom_right"),
    Forward("floats-window", 1, 1, 1, 66, 200, 12, 8, window=(100, 3), align="bottom_right", layout={"q": {"order": (0, 1, 3, 2)}}),
    Forward("floats-padded", 3, 1, 1, 66, 110, 16, 16, of_rows=(66, 1, 0), of_keys=(3, 97, 3)),
    Forward("floats-padded-causal", 2, 1, 1, 9, 70, 8, 16, of_keys=(64, 0), causal=True, align="bottom_right"),
    Forward("floats-sink", 1, 2, 1, 9, 66, 8, 8, sink="float32", causal=True, window=(40, -1)),
    Forward("floats-peaked", 1, 1, 1, 20, 300, 8, 8, large=6.0),
    Forward("floats-negative-scale", 1, 1, 1, 20, 70, 8, 8, scale=-0.4, window=(60, -1), layout={"k": {"gap": 3}}),
    Forward("floats-bias", 1, 2, 1, 66, 72, 8, 8, bias=(2, 66, 72), causal=True),
    Forward("floats-bias", 1, 1, 1, 20, 40, 100, 120, bias=(20, 40), softcap=2.0),
    Forward("floats-capped", 1, 2, 2, 20, 110, 16, 8, alibi=True, softcap=1.5, align="bottom_right", sink="float32"),
    Forward("floats-dropped", 2, 1, 1, 20, 110, 8, 8, dropout=0.3, seed=2 ** 63 + 5, of_keys=(7, 110)),
]

GRADIENTS = [
    Backward("edges", 1, 1, 1, 65, 66, 8, 24, "bfloat16"),
    Backward("edges", 1, 2, 1, 9, 129, 8, 8, "float16", causal=True, align="bottom_right"),
    Backward("edges", 1, 2, 1, 70, 9, 24, 16, "bfloat16", window=(20, 3)),
    Backward("padded", 2, 1, 1, 40, 70, 8, 8, "float16", of_rows=(40, 3), of_keys=(70, 33), causal=True, align="bottom_right"),
    Backward("packed", 3, 2, 1, 20, 80, 8, 8, "bfloat16", of_rows=(9, 0, 9), of_keys=(66, 2, 7), order="THD", window=(30, -1)),
    Backward("packed-edges", 5, 1, 1, 200, 200, 8, 8, "float16", of_rows=(0, 1, 63, 64, 65),
             of_keys=(65, 64, 63, 1, 0), order="THD"),
    Backward("packed-causal", 3, 1, 1, 76, 160, 8, 8, "bfloat16", of_rows=(9, 0, 65), of_keys=(9, 12, 129), order="THD", causal=True,
             align="bottom_right"),
    Backward("packed-grouped", 2, 2, 1, 36, 82, 8, 8, "float16", of_rows=(9, 24), of_keys=(9, 70), order="THD", causal=True),
    Backward("packed-all", 3, 2, 1, 22, 85, 8, 16, "bfloat16", of_rows=(10, 0, 9), of_keys=(66, 3, 10), order="THD", alibi=True,
             softcap=2.0, sink="float32", dropout=0.2, causal=True, align="bottom_right"),
    Backward("packed-odd", 2, 1, 1, 40, 50, 9, 7, "float16", of_rows=(9, 30), of_keys=(40, 9), order="THD",
             layout={"q": {"gap": 7}, "k": {"gap": 7}, "v": {"gap": 1}, "do": {"gap": 1}, "dq": {"step": 2}}),
    Backward("packed-wide", 2, 1, 1, 30, 50, 192, 128, "float16", of_rows=(9, 20), of_keys=(9, 40), order="THD", causal=True),
    Backward("packed-widest", 2, 1, 1, 30, 30, 200, 136, "bfloat16", of_rows=(9, 20), of_keys=(20, 9), order="THD"),
    Backward("packed-nothing", 0, 1, 1, 5, 140, 8, 8, "float16", of_rows=(), of_keys=(), order="THD", trivial=True),
    Backward("capped", 1, 2, 1, 20, 20, 8, 8, "bfloat16", bias=(2, 20, 20), alibi=True, softcap=2.0, causal=True),
    Backward("bias-tiles", 2, 1, 1, 66, 72, 8, 16, "float16", bias=(1, 1, 66, 72), causal=True),
    Backward("bias-tiles", 1, 1, 1, 130, 40, 16, 8, "bfloat16", bias=(1, 1, 130, 40), window=(60, 20), align="bottom_right"),
    Backward("bias-tiles", 2, 1, 1, 70, 40, 8, 8, "bfloat16", bias=(70, 40), of_rows=(9, 70), of_keys=(40, 33), alibi=True),
    Backward("bias-tiles", 1, 1, 1, 20, 40, 160, 96, "float16", bias=(1, 1, 20, 40), dropout=0.3, scale=-0.3),
    Backward("bias-tiles", 1, 1, 1, 72, 40, 168, 160, "bfloat16", bias=(72, 40), of_rows=(66,)),
    Backward("mask-tiles", 1, 2, 1, 66, 208, 8, 8, "bfloat16", mask=(2, 66, 208), window=(150, 9), align="bottom_right"),
    Backward("mask-tiles", 2, 1, 1, 40, 48, 16, 8, "float16", mask=(40, 48), softcap=2.0, dropout=0.2, of_rows=(40, 9), of_keys=(33, 48)),
    Backward("mask-tiles", 1, 1, 1, 40, 48, 168, 160, "float16", mask=(1, 1, 40, 48), causal=True),
    Backward("mask-of-keys", 2, 2, 1, 20, 80, 8, 8, "float16", mask=(2, 1, 1, 80), causal=True, align="bottom_right", sink="float32",
             of_sink=True),
    Backward("grouped", 1, 4, 2, 9, 66, 8, 16, "bfloat16", causal=True, align="bottom_right", order="BSHD"),
    Backward("long", 1, 1, 1, 200, 9, 16, 8, "float16", window=(100, 50)),
    Backward("dropped", 1, 2, 2, 20, 70, 8, 8, "float16", dropout=0.3, window=(-1, 30)),
    Backward("wide", 1, 1, 1, 20, 33, 128, 112, "bfloat16"),
    Backward("wide-sums", 1, 1, 1, 20, 140, 192, 128, "bfloat16", causal=True, align="bottom_right"),
    Backward("wide-sums", 1, 2, 1, 33, 20, 160, 160, "float16", window=(20, 3), order="BSHD"),
    Backward("wide-sums", 2, 1, 1, 40, 66, 168, 136, "bfloat16", of_rows=(40, 3), of_keys=(33, 66), causal=True),
    Backward("wide-sums", 1, 1, 1, 33, 40, 256, 33, "float16", alibi=True, layout={"v": {"gap": 7}, "do": {"gap": 7}, "dq": {"step": 2}}),
    Backward("wide-sums", 1, 1, 1, 66, 9, 57, 208, "bfloat16", softcap=2.0, layout={"q": {"gap": 7}, "k": {"gap": 7}}),
    Backward("widest-sums", 1, 2, 1, 9, 70, 192, 192, "bfloat16", causal=True, align="bottom_right", order="BSHD"),
    Backward("widest-sums", 2, 1, 1, 20, 40, 256, 256, "float16", of_rows=(20, 3), of_keys=(33, 40), causal=True),
    Backward("widest-sums", 1, 1, 1, 33, 20, 232, 136, "bfloat16", softcap=2.0, window=(20, 3)),
    Backward("widest-sums", 1, 1, 1, 20, 40, 200, 120, "float16", bias=(20, 40), dropout=0.3, softcap=2.0, alibi=True),
    Backward("widest-rows", 1, 1, 1, 66, 20, 192, 136, "bfloat16", causal=True),
    Backward("widest-rows", 1, 1, 1, 72, 20, 168, 160, "float16", dropout=0.3, of_rows=(66,)),
    Backward("wide-sums", 1, 1, 1, 20, 40, 176, 96, "float16", bias=(20, 40), dropout=0.3),
    Backward("strided", 1, 1, 1, 20, 33, 9, 7, "float16", scale=-0.3, layout={"q": {"step": 2}, "dk": {"step": 2}, "do": {"gap": 1}}),
]
GRADIENTS += [Backward("of-floats", *sizes, "float32", **how) for sizes, how in (
    ((1, 1, 1, 65, 66, 16, 24), {}),
    ((1, 1, 1, 66, 130, 8, 64), {"causal": True, "align": "bottom_right"}),
    ((1, 1, 1, 130, 9, 9, 7), {"window": (20, 3), "layout": {"q": {"step": 2}, "dk": {"step": 2}, "do": {"gap": 1}}}),
    ((2, 2, 1, 9, 70, 8, 40), {"of_rows": (9, 3), "of_keys": (33, 70), "order": "BSHD"}),
    ((1, 2, 1, 20, 40, 24, 16), {"bias": (2, 20, 40), "softcap": 2.0, "dropout": 0.3, "alibi": True}),
    ((3, 1, 1, 80, 90, 8, 16), {"of_rows": (9, 0, 66), "of_keys": (7, 2, 76), "order": "THD", "causal": True}),
    ((1, 1, 1, 33, 20, 16, 16), {"bias": (33, 20), "large": 3.0}),
    ((1, 1, 1, 66, 40, 128, 72), {"causal": True}),
    ((2, 1, 1, 40, 70, 40, 128), {"of_rows": (40, 3), "of_keys": (33, 70), "window": (20, 3)}))]

MODIFIED = [  # tanh of a tile at once: by a polynomial, by libdevice, with operands before and after it
    Forward("mod-capped", 1, 2, 1, 20, 70, 8, 8, "bfloat16", modifier="capped", causal=True, scale=0.05),
    Forward("mod-capped-far", 1, 1, 1, 66, 140, 8, 8, "float16", modifier="capped", large=3.0),
    Forward("mod-bent", 2, 2, 1, 20, 70, 8, 8, "bfloat16", modifier="bent"),
    Backward("mod-capped", 1, 2, 1, 20, 70, 8, 8, "bfloat16", modifier="capped", causal=True, scale=0.05),
    Backward("mod-capped-far", 1, 1, 1, 40, 66, 8, 16, "float16", modifier="capped", window=(30, 3)),
    Backward("mod-bent", 2, 1, 1, 20, 70, 8, 8, "bfloat16", modifier="bent")]


BIASES = [  # of the same problem for each bias: tiles of several sizes, all that shares one, ranges of it; tiles through TMA
    Backward("of-heads", 2, 2, 1, 66, 40, 8, 8, "bfloat16", bias=(2, 66, 40), causal=True),
    Backward("wide-tiles", 2, 1, 1, 66, 100, 24, 80, "float16", bias=(66, 100), bias_dtype="float32", window=(30, 20),
             align="bottom_right"),
    Backward("of-pairs", 1, 4, 2, 9, 100, 72, 16, "bfloat16", bias=(9, 100), of_rows=(3,), of_keys=(67,), softcap=2.0, alibi=True,
             order="BSHD"),
    Backward("of-keys", 2, 2, 1, 20, 70, 8, 8, "float16", bias=(2, 1, 1, 70), dropout=0.3, causal=True),
    Backward("of-rows", 1, 2, 1, 70, 20, 8, 8, "float16", bias=(2, 70, 1), sink="float16", scale=-0.3),
    Backward("of-nothing", 2, 2, 2, 20, 70, 8, 8, "bfloat16", bias=(1, 1, 1, 1), sink="bfloat16", of_rows=(20, 3)),
    Backward("by-groups", 2, 1, 1, 40, 70, 8, 136, "bfloat16", bias=(2, 1, 40, 70), causal=True),
    Backward("tiles-of-heads", 2, 2, 1, 130, 40, 8, 24, "bfloat16", bias=(1, 2, 130, 40), causal=True),
    Backward("tiles-of-all", 2, 2, 2, 130, 40, 16, 8, "float16", bias=(130, 40), window=(30, 20), align="bottom_right"),
    Backward("tiles-of-images", 2, 2, 1, 20, 136, 8, 136, "bfloat16", bias=(2, 1, 20, 136)),
    Backward("strided", 2, 1, 1, 20, 40, 9, 7, "float16", bias=(20, 40),
             layout={"q": {"step": 2}, "do": {"gap": 1}, "bias": {"step": 2, "gap": 1}, "dbias": {"order": (1, 0)}}),
]


def check(case, turn, one_of=None):
    """On a GPU every configuration of every algorithm on tensor cores. In the simulator one of each, by turns: of the two of Hopper whose
    kernel differs in who adds up dq alone, one; or one of all whose names begin with `one_of`."""
    problem = case.problem()
    able = [a for a in dispatch.algorithms(case.op) if Note.TENSOR_CORE in a.notes and contract.refusal(a, problem) is None]
    assert able
    if SIMULATED:
        kinds = {}
        for algorithm in able:
            if algorithm.name.startswith(one_of or ""):
                kinds.setdefault(one_of or algorithm.name.removesuffix("_atomic"), []).append(algorithm)
        able = [alike[turn % len(alike)] for alike in kinds.values()]
    for algorithm in able:
        found = algorithm.variants(problem, contract.device())
        for variant in [found[turn % len(found)]] if SIMULATED else found:
            contract.check(variant, case, **contract.ONCE)


@pytest.mark.parametrize("turn, case", list(enumerate(CASES + GRADIENTS + MODIFIED)),
                         ids=lambda x: "" if isinstance(x, int) else f"{x.op}-{x.id}-{x.rows}-{x.keys}")
def test_edges_of_tiles(turn, case):
    check(case, turn)


RANGES = "of-heads", "wide-tiles", "of-keys", "of-rows", "of-nothing", "tiles-of-heads"


@pytest.mark.parametrize("turn, case, few_multiprocessors", [
    (turn, case, count) for turn, case in enumerate(BIASES) for count in (1, 132) if count == 1 or case.id in RANGES or not SIMULATED],
    indirect=["few_multiprocessors"], ids=lambda x: x if isinstance(x, int) else x.id)
def test_gradients_of_biases(turn, case, few_multiprocessors, request):
    """Of large problems, whose blocks go through all that shares a tile, and of small ones, which have ranges of it."""
    from dnnkern.attention.backward import _dbias, _dbias_wgmma
    device, several = contract.device(), request.node.callspec.params["few_multiprocessors"] == 132
    plan = _dbias.plan_of(case.problem(), 0, device)
    by_tiles = case.id.startswith("tiles") and not several
    if SIMULATED and case.id.startswith("tiles"):
        assert (_dbias_wgmma.config_of(case.problem(), 64, device) is not None) == by_tiles
    assert plan is not None
    if several and SIMULATED:
        assert plan[1].parts == plan[1].count
    check(case, turn + several, "flash_wgmma" if by_tiles else "flash")


@pytest.mark.parametrize("turn, case, few_multiprocessors", [
    (turn, case, count) for turn, case in enumerate(BIASES) for count in (1, 132) if count == 1 or case.id in RANGES or not SIMULATED],
    indirect=["few_multiprocessors"], ids=lambda x: x if isinstance(x, int) else x.id)
def test_gradients_of_biases_in_float32(turn, case, few_multiprocessors, request):
    """On CUDA cores, which take lse and deltas from two algorithms."""
    from dnnkern.attention.backward import _dbias
    case = replace(case, dtype="float32", bias_dtype="float32", sink=case.sink and "float32")
    _, work = _dbias.plan_of(case.problem(), 0, contract.device())
    several = request.node.callspec.params["few_multiprocessors"] == 132
    if SIMULATED and several:
        assert work.parts > 1 or work.count == 1
    able = [a for a in dispatch.algorithms(case.op) if a.name.startswith("flash") and contract.refusal(a, case.problem()) is None]
    for algorithm in [able[turn % len(able)]] if SIMULATED else able:
        contract.check(algorithm.variants(case.problem(), contract.device())[0], case, **contract.ONCE)


@pytest.mark.parametrize("words, op, name", [
    ("4x16x2048x64 bf16 --mask pairs", "sdpa_fwd", "flash_wgmma"), ("4x16x2048x64 bf16 --mask keys", "sdpa_bwd", "flash_wgmma"),
    ("4x16x2000x64 bf16 --mask pairs --bias pairs", "sdpa_fwd", "flash_mma"), ("4x16x1001x64 bf16 --mask pairs", "sdpa_fwd",
                                                                               "flash_wgmma_padded"),
    ("4x16x4096x212 f16", "sdpa_fwd", "flash_wgmma_padded"), ("4x16x1024x238 f16 --causal", "sdpa_bwd", "flash_wgmma_padded"),
    ("2x4x128x53 bf16", "sdpa_fwd", "flash_mma")])
def test_what_is_chosen_for_masks_and_rows_that_tma_cannot_read(words, op, name):
    """Copies are worth it where keys are loaded often."""
    from dnnkern.attention._parse import parse_problem
    problem = parse_problem(words.split(), op)
    assert dispatch.get_algorithm(op, problem, device=host._SIMULATOR, prefer="device").name == name


@pytest.mark.parametrize("kind", [Forward, Backward])
def test_a_mask_of_rows_that_tma_cannot_read_is_copied(kind):
    """Its rows are 70 bytes apart; what is copied has no more elements than the mask."""
    from dnnkern.attention._padded import copies_of
    for shape in ((2, 1, 20, 70), (2, 1, 1, 70)):
        case = kind("copied", 2, 2, 1, 20, 70, 8, 8, "float16", mask=shape, causal=True, align="bottom_right")
        copy, = copies_of(case.problem())
        assert (copy.name, copy.made.shape, copy.made.strides[-2]) == ("mask", shape, 80)
        check(case, 0, "flash_wgmma_padded")


def test_a_bias_behind_a_sequence_does_not_reach_its_gradient():
    """NaN there; where it belongs to nothing the gradient is 0."""
    case = Backward("nan", 2, 1, 1, 20, 72, 8, 8, "bfloat16", of_rows=(20, 9), of_keys=(33, 72), bias=(2, 1, 20, 72))
    values = {name: x if x is None else x.copy() for name, x in case.values("float").items()}
    reference, bound = case.reference(values, True)
    values["bias"][0, :, :, 33:], values["bias"][1, :, 9:] = float("nan"), float("nan")
    for algorithm in dispatch.algorithms(case.op):
        if contract.refusal(algorithm, case.problem()) is None:
            with contract.registered(algorithm) as mine:
                got = contract.Run(case, mine, values).outputs["dbias"].read()
                contract.assert_within(got, reference["dbias"], bound["dbias"], f"{algorithm.name}: dbias")


def test_the_gradient_of_a_bias_of_more_tiles_than_can_be_counted(monkeypatch):
    """It is the naive algorithm's, which finds the deltas where it wants them."""
    from dnnkern.attention.backward import _dbias
    monkeypatch.setattr(_dbias, "plan_of", lambda problem, width, device: None)
    check(Backward("uncountable", 2, 2, 1, 20, 9, 8, 8, "bfloat16", bias=(2, 20, 9), of_rows=(9, 20)), 0)


@pytest.mark.parametrize("few_multiprocessors", [1, 2], indirect=True)
@pytest.mark.parametrize("how", [{}, {"causal": True}, {"order": "THD", "of_rows": (3, 67), "of_keys": (6, 34), "causal": True},
                                 {"of_rows": (70, 35), "of_keys": (20, 40), "window": (30, -1)}], ids=str)
def test_blocks_take_many_tiles(how, few_multiprocessors, request):
    """In order, or drawn from a counter."""
    turn = request.node.callspec.indices["few_multiprocessors"] * 3
    check(Forward("tiles", 2, 2, 1, 70, 40, 8, 8, "bfloat16", **how), turn)
    if "order" not in how:  # of packed bytes there is but naive
        check(Forward("tiles", 2, 2, 1, 70, 40, 16, 8, E4M3, **how), turn)


@pytest.mark.parametrize("dtype", ["bfloat16", E4M3])
def test_values_behind_a_sequence_do_not_matter(dtype):
    """Not even where they are NaN; nor do keys there, nor rows."""
    case = Forward("nan", 2, 1, 1, 20, 80, 16, 8, dtype, of_rows=(20, 9), of_keys=(70, 80))
    values = {name: x if x is None else x.copy() for name, x in case.values("float").items()}
    reference, bound = case.reference(values, True)
    for name in ("k", "v"):
        values[name][0, :, 70:] = float("nan")
    values["q"][1, :, 9:] = float("nan")
    for algorithm in dispatch.algorithms(case.op):
        if contract.refusal(algorithm, case.problem()) is None:
            with contract.registered(algorithm) as mine:
                contract.Run(case, mine, values).check_values(reference, bound)


@pytest.mark.parametrize("how", [{}, {"window": (200, 3), "align": "bottom_right"}, {"causal": True, "sink": "float32", "softcap": 300.0}],
                         ids=str)
@pytest.mark.parametrize("factor", [0.0, 0.02, 3.0])
def test_scores_of_bytes_that_rise(factor, how):
    """From the last keys, which come first, to the first: reference maxima rise in each tile, by a little or by far more than exponentials
    can be; or nothing differs."""
    case = Forward("rising", 1, 1, 1, 66, 330, 16, 16, E4M3, scale=1.0, **how)
    values = {name: x if x is None else x.copy() for name, x in case.values("float").items()}
    rise = np.round(np.arange(330)[::-1] / 8) / 2 * factor
    values["q"][:], values["k"][:] = 1, np.array(rise).astype(ml_dtypes.float8_e4m3fn).astype(float)[None, None, :, None]
    reference, bound = case.reference(values, True)
    algorithm = next(a for a in dispatch.algorithms(case.op) if a.name == "flash_wgmma_fp8")
    found = algorithm.variants(case.problem(), contract.device())
    for variant in found[:: 4] if SIMULATED else found:
        with contract.registered(variant) as mine:
            contract.Run(case, mine, values).check_values(reference, bound)


@pytest.mark.gpu
@pytest.mark.parametrize("keys", [2048, 16384])
def test_sums_of_many_bytes(keys):
    """Of values that have one sign: what tensor cores lose by each addition to a sum is lost in one tile, not in all keys."""
    case = Forward("many", 1, 1, 1, 64, keys, 128, 128, E4M3)
    values = {name: x if x is None else x.copy() for name, x in case.values("float").items()}
    values["v"] = (1 + values["v"] / 4).astype(ml_dtypes.float8_e4m3fn).astype(float)
    reference, _ = case.reference(values, True)
    algorithm = next(a for a in dispatch.algorithms(case.op) if a.name == "flash_wgmma_fp8")
    for variant in algorithm.variants(case.problem(), contract.device()):
        with contract.registered(variant) as mine:
            got = contract.Run(case, mine, values).outputs["o"].read()
            assert np.abs(got / reference["o"] - 1).max() < 2 ** -7 and abs((got / reference["o"]).mean() - 1) < 2 ** -9


def test_neighbours_of_a_packed_sequence_do_not_matter():
    """Not even where every row of them is NaN, those behind the last sequence too."""
    case = Forward("nan", 4, 1, 1, 150, 150, 8, 8, "bfloat16", of_rows=(30, 33, 20, 40), of_keys=(33, 30, 0, 67), order="THD", causal=True)
    values = {name: x if x is None else x.copy() for name, x in case.values("float").items()}
    reference, bound = case.reference(values, True)
    for name in ("k", "v"):
        values[name][30 + 3:30 + 33], values[name][130:] = float("nan"), float("inf")
    values["q"][30:63], values["q"][123:] = float("nan"), float("nan")
    others = np.r_[0:30, 63:150]
    for algorithm in dispatch.algorithms(case.op):
        if contract.refusal(algorithm, case.problem()) is None:
            with contract.registered(algorithm) as mine:
                run = contract.Run(case, mine, values)
                for name, axis in (("o", 0), ("lse", 1)):
                    got, wanted, error = (np.take(y, others, axis) for y in (run.outputs[name].read(), reference[name], bound[name]))
                    contract.assert_within(got, wanted, error, f"{algorithm.name}: {name}")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_lies_behind_a_sequence_reaches_no_gradient(dtype):
    """NaN there in every operand."""
    case = Backward("nan", 2, 1, 1, 20, 80, 8, 8, dtype, of_rows=(20, 9), of_keys=(70, 80), bias=(2, 1, 20, 80))
    values = {name: x if x is None else x.copy() for name, x in case.values("float").items()}
    reference, bound = case.reference(values, True)
    for name in ("k", "v"):
        values[name][0, :, 70:] = float("nan")
    for name in ("q", "do", "o", "lse"):
        values[name][1, :, 9:] = float("nan")
    values["bias"][0, :, :, 70:] = values["bias"][1, :, 9:] = float("nan")
    for algorithm in dispatch.algorithms(case.op):
        if contract.refusal(algorithm, case.problem()) is None:
            with contract.registered(algorithm) as mine:
                contract.Run(case, mine, values).check_values(reference, bound)


def test_neighbours_of_a_packed_sequence_reach_no_gradient():
    """Not even where every row of them is NaN, those behind the last sequence too."""
    case = Backward("nan", 4, 1, 1, 150, 150, 8, 8, "bfloat16", of_rows=(30, 33, 20, 40), of_keys=(33, 30, 0, 67), order="THD", causal=True)
    values = {name: x if x is None else x.copy() for name, x in case.values("float").items()}
    reference, bound = case.reference(values, True)
    for name in ("k", "v"):
        values[name][30 + 3:30 + 33], values[name][130:] = float("nan"), float("inf")
    for name in ("q", "do", "o"):
        values[name][30:63], values[name][123:] = float("nan"), float("inf")
    values["lse"][:, 30:63], values["lse"][:, 123:] = float("nan"), float("nan")
    others = {"dq": np.r_[0:30, 63:150], "dk": np.r_[0:33, 63:150], "dv": np.r_[0:33, 63:150]}
    for algorithm in dispatch.algorithms(case.op):
        if contract.refusal(algorithm, case.problem()) is None:
            with contract.registered(algorithm) as mine:
                run = contract.Run(case, mine, values)
                for name, own in others.items():
                    got, wanted, error = (y[own] for y in (run.outputs[name].read(), reference[name], bound[name]))
                    contract.assert_within(got, wanted, error, f"{algorithm.name}: {name}")


@pytest.mark.parametrize("offsets", [(0, 140, 0, 140), (140, 35, 70, 0), (35, 35, 140, 50)])
@pytest.mark.parametrize("name", ["cu_seqlens_q", "cu_seqlens_kv"])
def test_offsets_that_decrease_keep_nobody_waiting(name, offsets, monkeypatch):
    """Their tiles are not those that additions wait for; what comes of it nobody knows, but nothing outside is touched."""
    case = Backward("lies", 3, 1, 1, 140, 140, 8, 8, "float16", of_rows=(40, 50, 50), of_keys=(50, 40, 50), order="THD")
    values = {**case.values("float"), name: np.array(offsets, float)}
    if SIMULATED:
        from dnnkern.device.sim import config
        monkeypatch.setattr(config, "track_global", False)  # rows that two sequences have are written twice
    from dnnkern.attention.backward import flash_wgmma as sdpa_bwd_flash_wgmma
    for variant in sdpa_bwd_flash_wgmma.ALGORITHM.variants(case.problem(), contract.device()):
        with contract.registered(variant) as mine:
            contract.Run(case, mine, values, tight=True).check_memory()


@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize("how", [{"causal": True}, {"window": (60, 30), "align": "bottom_right"},
                                 {"batch": 2, "order": "THD", "of_rows": (60, 80), "of_keys": (100, 97), "causal": True}], ids=str)
def test_either_order_of_additions(how, down, monkeypatch):
    """From the last keys to the first and the other way round: large problems take the one, small ones the other."""
    from dnnkern.attention.backward import flash_wgmma as sdpa_bwd_flash_wgmma
    monkeypatch.setattr(sdpa_bwd_flash_wgmma, "goes_down", lambda problem, config, device: down)
    case = Backward("order", how.get("batch", 1), 1, 1, 140, 200, 8, 8, "float16", **{k: x for k, x in how.items() if k != "batch"})
    problem = case.problem()
    for variant in sdpa_bwd_flash_wgmma.ALGORITHM.variants(problem, contract.device()):
        if SIMULATED and variant.config.shape.height == 64 or not SIMULATED:
            contract.check(variant, case, **contract.ONCE)


@pytest.mark.skipif(not SIMULATED, reason="of the host")
@pytest.mark.parametrize("bottom", [False, True])
@pytest.mark.parametrize("height, width", [(128, 128), (128, 64), (64, 64)])
def test_every_tile_of_keys_is_waited_for_as_often_as_it_comes(height, width, bottom):
    """What a tile of keys adds to dq waits for all behind it that add to the same rows: one that did not come would be waited for forever.
    Tiles that touch a tile of rows follow one another, and `tiles_of` are the first and the last of them."""
    from dnnkern.attention._parameters import Kind
    from dnnkern.attention.backward.flash_wgmma.tiles import make_ranges
    rows_of, tiles_of = make_ranges(Kind("float16", bottom=bottom), height, width)
    for seed in range(400):
        draw = np.random.default_rng((seed, height, width, bottom))
        rows, keys = (int(n) for n in draw.integers(1, 700, 2))
        bounds = tuple(2 ** 30 if draw.random() < 0.4 else int(draw.integers(0, 400)) for _ in range(2))
        ranges = [rows_of(start, rows, keys, bounds) for start in range(0, keys + height, height)]
        for at in range(0, rows, width):
            touching = [n for n, (first, end) in enumerate(ranges) if first <= at < end]
            assert touching == list(range(touching[0], touching[-1] + 1)) if touching else True, (rows, keys, bounds, at)
            assert not touching or tiles_of(at, rows, keys, bounds) == (touching[0], touching[-1]), (rows, keys, bounds, at)
        shift = keys - rows if bottom else 0
        for i in draw.integers(0, rows, 20):  # a row's keys are in tiles that it passes
            for j in range(max(0, i + shift - bounds[0]), min(keys, i + shift + bounds[1] + 1)):
                first, end = ranges[j // height]
                assert first <= i // width * width < end, (rows, keys, bounds, i, j)
