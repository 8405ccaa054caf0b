"""Grouped products to measure: the expert layers of mixtures of experts, with rows in groups as a router makes them that chooses at random.
"""
import functools
from dataclasses import dataclass, replace

from dnnkern.host.products import FP8
from dnnkern.matmul._parse import parse_problem

from ._words import option_words

DTYPES = ("float64", "float32", "float16", "bfloat16", "int8", *FP8)


@dataclass(frozen=True)
class Case:
    """One product of `m` rows in `groups` groups; `layout` "nn" or "nt" says whether the matrices are stored transposed."""
    groups: int
    m: int
    n: int
    k: int
    dtype: str = "bfloat16"
    layout: str = "nt"
    bias: bool = False
    activation: str = "identity"
    math: str | None = None
    scales: tuple = ("tensor", "tensor")  # of 8-bit floats
    label: str = ""
    op = "grouped_matmul"

    @functools.cached_property
    def problem(self):
        """The `GroupedMatmulProblem`."""
        options = {"bias": self.bias, "activation": self.activation, "math": self.math,
                   "scales": self.dtype in FP8 and ",".join(self.scales)}
        return parse_problem([f"{self.groups}x{self.m}x{self.n}x{self.k}", self.dtype, self.layout, *option_words(options)], self.op)

    def call(self, arrays, **keywords):
        """The public function on arrays by name, with `out`; keywords are passed on (`algo`, `allow`)."""
        from dnnkern.matmul import grouped_matmul
        return grouped_matmul(arrays["a"], arrays["b"], arrays["group_offsets"], bias=arrays["bias"], transpose_b=self.layout == "nt",
                              activation=None if self.activation == "identity" else self.activation, math=self.math,
                              scale_a=arrays["scale_a"], scale_b=arrays["scale_b"], out=arrays["y"], **keywords)

    def __str__(self):
        return str(self.problem).removeprefix("grouped_matmul ") + (f" ({self.label})" if self.label else "")


# Experts on one GPU, experts a token goes to, hidden size, inner size of an expert.
_MODELS = {"mixtral-8x7b": (8, 2, 4096, 14336), "deepseek-moe-16b": (64, 6, 2048, 1408), "deepseek-v3 a 32nd": (8, 8, 7168, 2048)}


def _layers(tokens):
    found = []
    for model, (groups, chosen, hidden, inner) in _MODELS.items():
        m = tokens * chosen
        found += [Case(groups, m, 2 * inner, hidden, label=f"{model} gate and up"), Case(groups, m, hidden, inner, label=f"{model} down")]
    return found


def _moe():
    """Prefill of 2048 tokens."""
    return _layers(2048)


def _many():
    """Layers of other mixtures, whose experts get some hundred rows: OLMoE's 64 and Qwen3-30B's 128, of 2048 and 4096 tokens."""
    found = []
    for model, (groups, chosen, hidden, inner) in {"olmoe": (64, 8, 2048, 1024), "qwen3-30b": (128, 8, 2048, 768)}.items():
        for tokens in (2048, 4096):
            m = tokens * chosen
            found += [Case(groups, m, 2 * inner, hidden, label=f"{model} gate and up"),
                      Case(groups, m, hidden, inner, label=f"{model} down")]
    return found


def _decode():
    """One token of 64 sequences: a handful of rows a group, so the matrices are what has to be read."""
    return _layers(64)


def _fused():
    return [Case(8, 4096, 14336, 4096, activation=mode, bias=bias, label="mixtral-8x7b up")
            for mode, bias in (("swish", False), ("gelu", True))]


def _scaled():
    """With 8-bit floats: scales by row and column, and by block."""
    return [replace(case, scales=by) for case in _moe() for by in (("row", "column"), ("block", "block"))]


def _small():
    return [Case(4, 64, 64, 64), Case(8, 256, 256, 256), Case(64, 256, 128, 128)]


SETS = {"moe": _moe, "many": _many, "decode": _decode, "fused": _fused, "scaled": _scaled, "small": _small}


def cases(name, dtypes=("bfloat16",), layouts=(), math=None) -> list[Case]:
    """A set, or "all", in the given dtypes; `layouts` replaces the set's own."""
    if name != "all" and name not in SETS:
        raise ValueError(f"grouped_matmul has no set {name!r}; there are {', '.join(SETS)} and all")
    chosen = [case for key, make in SETS.items() if name in (key, "all") for case in make()]
    return _variants(chosen, dtypes, layouts, math)


def parse(text, dtypes=("bfloat16",), layouts=(), math=None) -> list[Case]:
    """A case written ``GxMxNxK``."""
    try:
        groups, m, n, k = (int(s) for s in text.split("x"))
    except ValueError:
        raise ValueError(f"--problem {text}: expected GxMxNxK") from None
    return _variants([Case(groups, m, n, k)], dtypes, layouts, math)


def _variants(chosen, dtypes, layouts, math):
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise ValueError(f"grouped_matmul has no dtype {dtype!r}; there are {', '.join(DTYPES)}")
    for layout in layouts:
        if layout not in ("nn", "nt"):
            raise ValueError(f"grouped_matmul has no layout {layout!r}; there are nn and nt")
    found = [replace(case, dtype=dtype, layout=layout, math=math if dtype == "float32" or math != "tf32" else None,
                     scales=case.scales if dtype in FP8 else Case.scales)
             for dtype in dtypes for case in chosen for layout in (layouts or (case.layout,))]
    return list(dict.fromkeys(found))  # cases that differ in their scales alone are one in other types
