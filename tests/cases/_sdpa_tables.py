"""The cases of attention and of its gradient: small ones of every option, large ones for a GPU, and one of more than 2**31 elements."""
from . import LARGEST
from ._cross_entropy import SHORT
from ._score_mods import SCORE_MODS
from ._sdpa import AMAX, FACTORS, NAMES, OPTIONAL, SCALES


def table(kind):
    """The cases of a direction."""
    def case(name, batch, heads, kv_heads, rows, keys, d, e=None, dtype="float32", **more):
        sizes = "x".join(map(str, (batch, heads, rows, keys, d)))
        layout = more.pop("layout", {})
        for way in ("q", "k", "v"):
            if way in layout:
                layout.setdefault("d" + way, layout[way])
        found.append(kind(f"{name}-{sizes}-{NAMES[dtype]}", batch, heads, kv_heads, rows, keys, d, d if e is None else e, dtype,
                          layout=layout, **more))

    found, backward = [], kind.op == "sdpa_bwd"  # of a softmax of one score there is no gradient
    for k, dtype in enumerate(SHORT):
        case("plain", 2, 2, 2, 9, 11, 8, dtype=dtype)
        case("causal", 1, 2, 1, 10, 10, 8, dtype=dtype, causal=True)
        case("causal-bottom", 1, 4, 2, 5, 9, 6, 3, dtype, causal=True, align="bottom_right", order="BSHD")
        case("window", 1, 2, 2, 12, 10, 4, dtype=dtype, window=(3, 2), align=("top_left", "bottom_right")[k % 2])
        case("padded", 3, 2, 2, 7, 9, 4, dtype=dtype, of_rows=(7, 3, 0), of_keys=(9, 5, 4), causal=True, align="bottom_right")
        case("packed", 3, 2, 1, 14, 15, 8, 5, dtype, of_rows=(5, 0, 7), of_keys=(6, 2, 7), order="THD", causal=bool(k % 2))
        case("bias", 2, 2, 2, 6, 9, 4, dtype=dtype, bias=(2, 2, 6, 9), bias_dtype=("float32", "")[k % 2] if k > 1 else "")
        case("alibi-capped", 1, 3, 3, 7, 8, 4, dtype=dtype, alibi=True, softcap=1.5)
        case("dropped", 2, 2, 1, 5, 18, 4, dtype=dtype, dropout=0.3)
        case("sink", 1, 4, 2, 6, 7, 4, dtype=dtype, sink=dtype if k != 2 else "float32", of_sink=True)
        case("mod-" + tuple(SCORE_MODS)[k], 2, 4, 2, 9, 11, 8, dtype=dtype, modifier=tuple(SCORE_MODS)[k], causal=k == 1)
    for n, m in ((1, 1), (1, 65), (63, 64), (64, 63), (65, 129), (127, 1), (129, 64)):
        case("edge", 1, 1, 1, n, m, 2 if n * m > 4000 else 4, 3, ("float32", "bfloat16", "float16")[(n + m) % 3], causal=n == m,
             align="bottom_right" if n < m else "top_left", window=(-1, -1) if n % 2 else (40, 3), trivial=backward and m == 1)
    for d, e in ((1, 1), (3, 17), (16, 8), (17, 33), (40, 24), (64, 64)):
        case("width", 1, 2, 1, 4, 5, d, e, ("float32", "bfloat16")[d % 2])
    for n, m in ((1, 64), (63, 1), (9, 65)):  # rows of 16 bytes, which tensor cores take; more of them in test_attention_tiles.py
        case("halves", 1, 1, 1, n, m, 8, 16 if n == 9 else 8, ("float16", "bfloat16")[n % 2], trivial=backward and m == 1)
    case("halves-padded", 2, 2, 1, 6, 9, 8, dtype="float16", of_rows=(6, 2), of_keys=(0, 7), causal=True, align="bottom_right")
    case("halves-packed", 2, 1, 1, 6, 8, 8, dtype="bfloat16", of_rows=(2, 3), of_keys=(5, 3), order="THD", causal=True)
    case("halves-sink", 1, 2, 1, 9, 7, 8, dtype="bfloat16", sink="float32", window=(3, 0), align="bottom_right", order="BSHD", of_sink=True)
    case("scaled", 1, 2, 2, 6, 7, 4, scale=2.5)
    case("negative-scale", 1, 2, 2, 6, 7, 4, dtype="float64", scale=-0.7)
    case("peaked", 1, 2, 2, 8, 17, 8, large=5.0)
    case("peaked-causal", 1, 1, 1, 20, 20, 8, dtype="bfloat16", large=5.0, causal=True)
    case("sink-and-window", 1, 2, 2, 9, 9, 4, causal=True, window=(2, -1), sink="float32")
    case("sink-padded", 3, 2, 1, 7, 5, 4, dtype="float16", sink="float32", of_rows=(7, 0, 2), of_keys=(5, 5, 0), of_sink=True)
    case("sink-alone", 1, 2, 1, 9, 6, 4, sink="float32", bias=(9, 6), wanted=False, of_sink=True, layout={"dsink": {"step": 2}})
    case("hidden-rows", 1, 2, 2, 9, 4, 4, causal=True, align="bottom_right")
    case("hidden-rows-sink", 1, 2, 2, 9, 4, 4, causal=True, align="bottom_right", sink="float32", dtype="bfloat16", of_sink=True)
    case("hidden-from-all", 2, 1, 1, 3, 4, 4, of_keys=(0, 0), trivial=True)
    case("window-of-itself", 1, 2, 1, 6, 8, 4, window=(0, 0), trivial=backward)
    case("window-forwards", 1, 2, 1, 6, 8, 4, dtype="float16", window=(-1, 1))
    case("bias-of-keys", 2, 2, 2, 5, 7, 4, bias=(2, 1, 1, 7))
    case("bias-of-pairs", 2, 2, 1, 5, 7, 4, dtype="bfloat16", bias=(5, 7), bias_dtype="float32")
    case("bias-of-heads", 2, 3, 3, 4, 6, 4, dtype="float16", bias=(3, 4, 6), causal=True)
    case("bias-of-rows", 2, 2, 2, 5, 7, 4, bias=(1, 2, 5, 1), softcap=2.0)
    case("bias-strided", 1, 2, 2, 5, 7, 4, bias=(1, 2, 5, 7), layout={"bias": {"step": 2, "gap": 1}, "dbias": {"order": (0, 1, 3, 2)}})
    case("bias-of-padded", 2, 2, 2, 5, 7, 4, bias=(1, 2, 5, 7), of_rows=(5, 2), of_keys=(4, 7))
    case("bias-without-gradient", 2, 2, 2, 5, 7, 4, bias=(5, 7), wanted=False)
    for k, dtype in enumerate(SHORT):
        case("masked", 2, 2, 1, 6, 9, 4, dtype=dtype, mask=((2, 2, 6, 9), (6, 9), (2, 1, 1, 9), (1, 2, 6, 1))[k], causal=k == 1)
    case("masked-and-biased", 2, 2, 2, 5, 18, 4, 3, mask=(2, 1, 5, 18), bias=(2, 5, 18), softcap=2.0, sink="float32", of_sink=True)
    case("masked-and-biased", 2, 2, 1, 9, 17, 8, dtype="bfloat16", mask=(2, 1, 9, 17), bias=(1, 2, 9, 17), dropout=0.2, order="BSHD")
    case("masked-padded", 2, 2, 1, 7, 12, 8, dtype="float16", mask=(7, 12), of_rows=(7, 3), of_keys=(5, 12), window=(6, 2), alibi=True,
         align="bottom_right")
    case("masked-strided", 1, 2, 2, 5, 7, 4, mask=(1, 2, 5, 7), layout={"mask": {"step": 2, "gap": 1}})
    case("masked-transposed", 1, 2, 2, 5, 7, 4, dtype="bfloat16", mask=(1, 2, 5, 7), layout={"mask": {"order": (0, 1, 3, 2)}})
    case("masked-rows", 1, 2, 2, 6, 1, 4, mask=(6, 1), trivial=True)
    # rows of 16 bytes of the mask, which come by tiles
    case("masked-tiles", 1, 2, 1, 66, 80, 8, dtype="bfloat16", mask=(2, 66, 80), window=(50, 9))
    case("masked-tiles", 1, 1, 1, 9, 112, 8, 8, "float16", mask=(9, 112), softcap=2.0, dropout=0.2, of_keys=(101,))
    case("masked-keys", 2, 2, 1, 20, 80, 8, dtype="float16", mask=(2, 1, 1, 80), causal=True, align="bottom_right", sink="float32")
    case("keys-padded", 2, 2, 1, 6, 9, 4, of_keys=(9, 2))
    case("rows-padded", 2, 2, 1, 6, 9, 4, of_rows=(6, 2), dtype="bfloat16")
    case("packed-window", 4, 1, 1, 22, 20, 4, of_rows=(1, 9, 0, 10), of_keys=(2, 8, 1, 9), order="THD", window=(3, 1), align="bottom_right")
    case("packed-nothing", 0, 2, 1, 5, 6, 4, of_rows=(), of_keys=(), order="THD", trivial=True)
    case("packed-rows-left", 1, 2, 1, 20, 18, 4, dtype="float16", of_rows=(3,), of_keys=(4,), order="THD", trivial=True)
    case("packed-alibi-dropped", 2, 3, 3, 9, 9, 4, of_rows=(4, 5), of_keys=(4, 5), order="THD", alibi=True, dropout=0.25, sink="float32",
         of_sink=True)
    case("alibi-window", 1, 6, 2, 7, 7, 4, alibi=True, causal=True, window=(4, -1))
    case("alibi-bottom", 1, 2, 2, 5, 9, 4, dtype="float16", alibi=True, align="bottom_right")
    case("dropped-causal", 1, 2, 2, 12, 12, 4, dtype="float64", dropout=0.5, seed=2 ** 63 + 5, causal=True)
    for k, dtype in enumerate(SHORT):
        read = (("seed",), ("offset",), ("seed", "offset"), ("seed",))[k]
        case("dropped-read", 1, 2, 1, 5, 18, 8, dtype=dtype, dropout=0.3, seed=(7, -7)[k % 2], offset=(0, 2 ** 40 + 3, 5, 9)[k], read=read)
    case("dropped-offset", 1, 2, 1, 5, 18, 8, dtype="bfloat16", dropout=0.3, offset=-2)
    case("dropped-read-biased", 1, 2, 2, 9, 17, 8, dtype="float16", bias=(1, 2, 9, 17), dropout=0.2, read=("seed", "offset"), softcap=2.0)
    case("nothing-dropped-read", 1, 1, 1, 4, 5, 4, read=("seed", "offset"))
    case("everything", 2, 4, 2, 6, 10, 6, 5, "bfloat16", bias=(4, 6, 10), alibi=True, softcap=3.0, dropout=0.2, sink="bfloat16",
         of_sink=True, of_rows=(6, 4), of_keys=(7, 10), causal=True, align="bottom_right", window=(6, -1), order="BSHD")
    case("everything", 2, 4, 2, 6, 10, 6, 5, "float64", bias=(2, 1, 6, 10), alibi=True, softcap=3.0, dropout=0.2, sink="float64",
         of_sink=True, of_rows=(5, 6), of_keys=(10, 8), causal=True, align="bottom_right", window=(6, -1))
    for k, dtype in enumerate(SHORT):
        case("ragged", 3, 2, 1, 8, 9, 8, 16, dtype, of_rows=(5, 0, 7), of_keys=(6, 2, 9), order="THD", ragged=("int64", "int32")[k % 2],
             causal=k > 1, align=("top_left", "bottom_right")[k % 2])
    case("ragged-everything", 2, 4, 2, 9, 17, 8, dtype="bfloat16", of_rows=(9, 4), of_keys=(17, 11), order="THD", ragged="int32",
         bias=(1, 4, 9, 17), mask=(2, 1, 9, 17), softcap=2.0, dropout=0.2, sink="float32", of_sink=True, window=(12, 3),
         align="bottom_right", layout={**dict.fromkeys(("q", "o", "do"), {"gap": 8}), "lse": {"order": (1, 0)}, "offsets": {"step": 2}})
    case("ragged-odd", 2, 2, 2, 5, 6, 3, 5, of_rows=(3, 5), of_keys=(6, 1), order="THD", ragged="int64", alibi=True,
         layout={"lengths": {"step": 2}, "v": {"gap": 3}, "lse": {"order": (1, 0)}})
    case("ragged-queries", 2, 2, 1, 6, 9, 8, dtype="float16", of_rows=(6, 2), of_keys=(9, 5), order="THD", ragged="int64",
         dense=("k", "v"), bias=(2, 1, 6, 9) if not backward else None)
    case("ragged-keys", 2, 2, 1, 6, 9, 8, dtype="bfloat16", of_rows=(6, 6), of_keys=(9, 5), order="THD", ragged="int64",
         dense=("q", "o", "lse"))
    case("no-batch", 0, 2, 1, 4, 5, 4)
    case("no-heads", 2, 0, 0, 4, 5, 4, dtype="bfloat16")
    case("no-keys", 1, 2, 1, 4, 0, 4, trivial=True)
    case("no-rows", 1, 2, 1, 0, 5, 4, dtype="float16", trivial=True)
    case("no-values", 1, 2, 1, 4, 5, 4, 0, trivial=backward)
    case("alone", 1, 2, 1, 6, 5, 4, wanted=False, dtype="float16")
    case("strided", 1, 2, 2, 6, 7, 4, layout={"q": {"step": 2}, "k": {"gap": 3}, "v": {"order": (0, 2, 1, 3)}, "o": {"gap": 1},
                                              "lse": {"step": 2}, "do": {"step": 3}})
    case("misaligned", 1, 2, 1, 6, 7, 8, dtype="bfloat16", layout={name: {"misaligned": 1} for name in ("q", "k", "v", "o", "do")})
    case("rows-apart", 1, 2, 1, 6, 7, 8, dtype="float16", layout={name: {"gap": 8} for name in ("q", "k", "v", "o", "do")})
    case("backwards", 1, 2, 2, 6, 7, 4, layout={"q": {"flip": (2, 3)}, "k": {"flip": (2,)}, "v": {"flip": (1,)}, "o": {"flip": (3,)}})
    case("transposed", 1, 2, 2, 6, 7, 4, dtype="float64", layout={name: {"order": (0, 1, 3, 2)} for name in ("q", "k", "v", "o")})
    for k, dtype in enumerate(SHORT):
        case("dropout-mask", 2, 2, 1, 5, 9, 4, dtype=dtype, keep=((2, 2, 5, 9), (5, 9), (2, 1, 1, 9), (1, 2, 5, 1))[k], keep_scale=1.25,
             bias_dtype=("", "", "float32", "")[k], causal=k == 1)
    case("dropout-mask-biased", 2, 2, 2, 5, 9, 4, keep=(2, 1, 5, 9), bias=(2, 5, 9), of_keys=(9, 4), sink="float32", of_sink=True)
    if not backward:
        e4m3, e5m2 = LARGEST
        for k, dtype in enumerate(SHORT):
            case("stats", 2, 4, 2, 6, 9, 8, dtype=dtype, stats=True, wanted=k % 2 == 0, sink=dtype if k > 1 else "", causal=k != 1,
                 align="bottom_right", of_rows=(6, 3), of_keys=(9, 5))
            case("stats-ragged", 2, 2, 1, 6, 9, 8, dtype=dtype, stats=True, of_rows=(6, 2), of_keys=(9, 4), order="THD", ragged="int64")
            case("blocks", 1, 1, 1, 130, 260, 4, dtype=dtype, blocks=True, causal=k == 0, window=(100, 140) if k == 2 else (-1, -1))
        case("stats-capped", 1, 2, 2, 6, 9, 4, stats=True, softcap=2.0, alibi=True, bias=(1, 2, 6, 9))
        case("blocks-and-more", 2, 2, 2, 20, 300, 8, dtype="bfloat16", blocks=True, mask=(20, 300), dropout=0.2, of_keys=(300, 140),
             sink="float32")
        for k, dtype in enumerate(SHORT):
            case("paged", 2, 4, 2, 5, 11, 8, 16, dtype, of_rows=(5, 3), of_keys=(11, 6), page=4, pages=7, table=3,
                 causal=k % 2 == 0, align="bottom_right", order=("BHSD", "BSHD")[k // 2])
            case("paged-ragged", 3, 2, 1, 6, 12, 8, dtype=dtype, of_rows=(4, 6, 1), of_keys=(12, 9, 0), order="THD", ragged="int64",
                 page=3, pages=9, table=4, causal=k > 1, align="bottom_right", wanted=k != 1)
        case("paged-tiles", 1, 1, 1, 20, 70, 16, dtype="bfloat16", of_rows=(18,), of_keys=(67,), page=16, pages=7, table=5, causal=True,
             align="bottom_right")
        case("paged-options", 2, 2, 2, 5, 13, 8, dtype="float16", of_keys=(13, 8), page=2, pages=7, table=8, bias=(2, 1, 5, 13),
             mask=(5, 13), softcap=2.0, sink="float16", dropout=0.2, layout={"k": {"gap": 8}, "table": {"gap": 1}})
        case("paged-bytes", 1, 2, 1, 5, 12, 16, dtype=e4m3, of_keys=(10,), page=4, pages=4, table=3, scales=SCALES)
        case("bytes", 2, 4, 2, 9, 40, 16, dtype=e4m3, scales=SCALES)
        case("bytes", 1, 2, 2, 10, 10, 32, 16, e5m2, causal=True, scales=SCALES[:1], out_dtype="float16")
        for n, m in ((1, 16), (9, 12), (20, 6), (66, 3)):  # of one tile; more of them in test_attention_tiles.py
            case("bytes", 1, 1, 1, n, m, 16, 8, (e4m3, e5m2)[n % 2], causal=n == 9, scales=SCALES[n % 2:])
        case("bytes-padded", 2, 2, 1, 7, 70, 16, dtype=e4m3, of_rows=(7, 3), of_keys=(50, 33), causal=True, align="bottom_right")
        case("bytes-window", 1, 2, 1, 20, 55, 16, 16, e4m3, window=(17, 3), align="bottom_right", order="BSHD", scales=SCALES[1:])
        case("bytes-packed", 2, 2, 1, 12, 15, 8, 5, e5m2, of_rows=(5, 7), of_keys=(6, 9), order="THD", scales=SCALES[2:])
        case("bytes-everything", 2, 4, 2, 6, 40, 16, 8, e4m3, bias=(4, 6, 40), bias_dtype="bfloat16", alibi=True, softcap=3.0, dropout=0.2,
             sink="float32", of_rows=(6, 4), of_keys=(37, 40), causal=True, align="bottom_right", scales=SCALES)
        case("bytes-dropped-read", 1, 2, 1, 9, 40, 16, dtype=e4m3, dropout=0.3, offset=3, read=("seed", "offset"))
        case("bytes-masked", 1, 2, 1, 9, 40, 16, dtype=e4m3, mask=(9, 40), scales=SCALES)
        case("bytes-saturated", 1, 2, 1, 5, 9, 7, 3, e4m3, scales=SCALES, out_dtype=e4m3)
        # rows past the tile's last key and query have the largest probabilities and values where they take part
        whole = FACTORS + AMAX
        case("quantized", 1, 2, 1, 66, 40, 16, dtype=e4m3, scales=SCALES, quantized=whole, out_dtype=e4m3)
        case("quantized-causal", 1, 2, 2, 66, 66, 32, 8, e5m2, causal=True, scales=SCALES, quantized=whole, out_dtype=e5m2)
        case("quantized-padded", 2, 2, 1, 7, 70, 16, dtype=e4m3, of_rows=(7, 3), of_keys=(50, 33), causal=True, align="bottom_right",
             quantized=whole[1:], sink="float32", wanted=False)
        case("quantized-biased", 1, 2, 1, 9, 40, 16, dtype=e4m3, bias=(9, 40), bias_dtype="bfloat16", softcap=3.0,
             quantized=whole[:1] + AMAX)
        case("quantized-dropped", 1, 2, 1, 9, 40, 16, dtype=e4m3, dropout=0.3, quantized=whole, out_dtype="float16")
        case("quantized-dropout-mask", 1, 2, 1, 9, 20, 16, dtype=e5m2, keep=(9, 20), keep_scale=1.5, bias_dtype="float32",
             quantized=AMAX[:1])
        case("quantized-ragged", 2, 2, 1, 6, 9, 8, dtype=e4m3, of_rows=(6, 2), of_keys=(9, 4), order="THD", ragged="int64", scales=SCALES,
             quantized=whole, out_dtype=e4m3)
        case("quantized-paged", 1, 2, 1, 5, 12, 16, dtype=e4m3, of_keys=(10,), page=4, pages=4, table=3, quantized=AMAX[1:])
        case("bytes-strided", 1, 1, 1, 5, 9, 9, 6, e5m2, out_dtype="float32", layout={"q": {"step": 2}, "v": {"flip": (2,)}})
        case("one-key-for-all", 3, 2, 1, 4, 6, 4, layout={"k": {"expand": (0,)}, "v": {"expand": (0,)}})
    return found


def large(kind):
    """Cases for a GPU."""
    found = []
    sizes = (("long", (2, 4, 4, 1000, 1000, 64), {}), ("long-causal", (1, 4, 1, 1024, 1024, 128), {"causal": True}),
             ("long-window", (1, 2, 2, 1500, 1500, 80), {"causal": True, "window": (256, -1)}),
             ("long-cross", (2, 2, 2, 129, 2049, 96), {"causal": True, "align": "bottom_right"}),
             ("long-packed", (4, 4, 2, 1203, 1300, 64), {"of_rows": (1, 500, 0, 700), "of_keys": (64, 401, 63, 750), "order": "THD"}),
             ("wide", (1, 2, 1, 300, 257, 256), {}), ("unlike", (1, 2, 2, 257, 300, 192, 128), {"causal": True}),
             ("long-biased", (2, 2, 1, 257, 385, 64), {"bias": (1, 2, 257, 385), "softcap": 20.0}),
             ("long-bias-tiles", (2, 3, 3, 1000, 1032, 64), {"bias": (1, 3, 1000, 1032), "causal": True}),
             ("long-masked", (2, 4, 2, 700, 900, 128), {"mask": (2, 1, 700, 900)}),
             ("long-masked-biased", (2, 2, 1, 257, 385, 64), {"mask": (257, 385), "bias": (1, 2, 257, 385), "dropout": 0.1}),
             ("long-sink", (2, 4, 2, 700, 900, 128), {"sink": "float32", "of_sink": True, "causal": True}))
    for dtype in SHORT:
        for name, size, more in sizes:
            size = (*size, size[5])[:7]
            of_dtype = {"sink": "float64"} if "sink" in more and dtype == "float64" else {}
            found.append(kind(f"{name}-{'x'.join(map(str, size))}-{SHORT[dtype]}", *size, dtype, **{**more, **of_dtype}))
    for name, size, more in sizes * (kind.op == "sdpa_fwd"):
        size, bias = (*size, size[5])[:7], {"bias_dtype": "float32"} if "bias" in more else {}
        for dtype in LARGEST:
            found.append(kind(f"{name}-{'x'.join(map(str, size))}-{NAMES[dtype]}", *size, dtype, scales=SCALES, **more, **bias))
    return found


def beyond(kind):
    """More than 2**31 elements of q and o."""
    return [kind("many-rows-2**31-bf16", 2 ** 12 + 1, 1, 1, 2 ** 11, 3, 2 ** 8, 2 ** 8, "bfloat16", wanted=False)]


def check_beyond_int32(case, algo, allow):
    """Every element compared with torch's float32 result, some sequences at a time."""
    import torch
    generator = torch.Generator("cuda").manual_seed(7)
    arrays = dict.fromkeys(OPTIONAL)
    for name in ("q", "k", "v"):
        arrays[name] = torch.empty(case.shapes[name], dtype=torch.bfloat16, device="cuda")
        for part in arrays[name].view(-1).split(1 << 26):
            part.copy_(torch.randn(part.shape, generator=generator, device="cuda"))
    assert arrays["q"].numel() > 2 ** 31
    o = case.call(arrays, algo=algo, allow=allow)
    for first in range(0, case.batch, 128):
        q, k, v = (arrays[name][first:first + 128].float() for name in ("q", "k", "v"))
        want = torch.softmax(q @ k.transpose(2, 3) * case.factor, -1) @ v
        torch.testing.assert_close(o[first:first + 128].float(), want, rtol=1e-2, atol=1e-2)
