"""Matrix products to measure: named sets of sizes, each with its transpositions and what is fused."""
import functools
from dataclasses import dataclass, replace

from dnnkern.host.products import FP8
from dnnkern.matmul._parse import parse_problem

from ._words import option_words

DTYPES = ("float64", "float32", "float16", "bfloat16", "int8", *FP8)


@dataclass(frozen=True)
class Case:
    """One product: ``y[batch, m, n] = activation(a @ b + c + bias)``; `layout` ("nn", "nt", "tn", "tt"): which operands are transposed."""
    m: int
    n: int
    k: int
    dtype: str = "float32"
    batch: int = 1
    layout: str = "nn"
    bias: bool = False
    residual: bool = False
    activation: str = "identity"
    math: str | None = None
    scales: tuple = ("tensor", "tensor")  # of 8-bit floats
    program: str = ""  # as after --program
    label: str = ""
    op = "matmul"

    @functools.cached_property
    def problem(self):
        """The `MatmulProblem`."""
        options = {"bias": self.bias, "c": self.residual, "activation": self.activation, "math": self.math,
                   "scales": self.dtype in FP8 and ",".join(self.scales), "program": self.program}
        sizes = f"{self.batch}x" * (self.batch > 1) + f"{self.m}x{self.n}x{self.k}"
        return parse_problem([sizes, self.dtype, self.layout, *option_words(options)])

    def call(self, arrays, **keywords):
        """The public function on arrays by name, with `out`; keywords are passed on (`algo`, `allow`)."""
        from dnnkern.matmul import matmul
        return matmul(arrays["a"], arrays["b"], bias=arrays["bias"], c=arrays["c"], transpose_a=self.layout[0] == "t",
                      transpose_b=self.layout[1] == "t",
                      activation=None if self.activation == "identity" else self.activation, math=self.math, scale_a=arrays["scale_a"],
                      scale_b=arrays["scale_b"], out=arrays["y"], **keywords)

    def __str__(self):
        return str(self.problem).removeprefix("matmul ") + (f" ({self.label})" if self.label else "")


def _square():
    return [Case(s, s, s) for s in (256, 512, 1024, 2048, 4096, 8192)]


def _transformer():
    """Linear layers of BERT-large, Llama-3-8B and Llama-3-70B: weights are (out, in)."""
    found = []
    models = (("bert-large", 8192, 1024, 3072, 4096, 4096), ("llama-8b", 2048, 4096, 6144, 28672, 14336),
              ("llama-8b", 4096, 4096, 6144, 28672, 14336), ("llama-70b", 1024, 8192, 10240, 57344, 28672))
    for model, tokens, hidden, qkv, mlp_up, mlp_down in models:
        for part, n, k in (("qkv", qkv, hidden), ("proj", hidden, hidden), ("mlp up", mlp_up, hidden), ("mlp down", hidden, mlp_down)):
            found.append(Case(tokens, n, k, layout="nt", label=f"{model} {part}"))
    return found


def _skinny():
    weights = ((4096, 4096), (14336, 4096), (4096, 14336))
    return [Case(m, n, k, layout="nt") for m in (1, 8, 64) for n, k in weights] + [
        Case(1, 4096, 4096), Case(4096, 1, 4096), Case(128, 128, 65536), Case(128, 128, 65536, layout="tn"), Case(512, 512, 16384)]


def _odd():
    return [Case(127, 127, 127), Case(1000, 1000, 1000), Case(1537, 769, 3001), Case(4095, 4095, 4095), Case(4097, 31, 517),
            Case(1000, 1048, 1004, layout="nt")]


def _batched():
    return [Case(128, 128, 64, batch=256), Case(512, 512, 512, batch=64), Case(1024, 1024, 1024, batch=16),
            Case(512, 512, 64, batch=96, layout="nt", label="attention scores"), Case(512, 64, 512, batch=96, label="attention values")]


def _fused():
    sizes = ((8192, 4096, 1024), (2048, 4096, 4096), (256, 1024, 1024))
    modes = "identity", "relu", "gelu", "gelu_tanh"
    return [Case(m, n, k, layout="nt", bias=True, residual=residual, activation=mode) for m, n, k in sizes
            for mode, residual in (*((mode, False) for mode in modes), ("identity", True))]


def _programs():
    """With the functions of a graph in the kernel: bias and GELU, and a chain of six."""
    sizes = ((4096, 4096, 4096), (8192, 1024, 4096), (32, 12288, 4096))
    return [Case(m, n, k, layout="nt", program=program.format(m=m, n=n)) for m, n, k in sizes for program in
            ("add@{n} gelu", "mul@{n} add@{m}x{n} relu mul@0.5 add@{m}x1 tanh")]


def _scaled():
    """With 8-bit floats: scales by row and column, and by block."""
    return [replace(case, scales=by) for case in _transformer() for by in (("row", "column"), ("block", "block"))]


def _blocks():
    """With 8-bit floats and scales by block, whatever was asked for else: layers of DeepSeek-V3, 4096 tokens and 128."""
    layers = ((2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048))
    return [Case(m, n, k, layout="nt", scales=("block", "block"), label="deepseek-v3") for m in (4096, 128) for n, k in layers]


def _few():
    """Linear layers of one to sixteen rows: Qwen3-4B's and 14B's, Llama-2-7B's, and a small square."""
    weights = ((4096, 4096), (2560, 9728), (9728, 2560), (5120, 5120), (11008, 4096), (2048, 2048))
    return [Case(m, n, k, layout="nt") for m in (1, 2, 4, 8, 16) for n, k in weights]


def _uneven():
    """Sizes that no tile divides, and rows that begin anywhere in a line of 128 bytes."""
    sizes = ((1000, 1000, 1000), (1200, 1000, 1400), (1537, 769, 3001), (1111, 1333, 999), (2025, 1001, 777), (333, 3003, 1501),
             (600, 600, 4000), (2500, 2500, 2500))
    return [Case(m, n, k) for m, n, k in sizes]


def _epilogues():
    """With a bias and a function, of layers of GPT-2, ViT-L, Llama-3-8B and others."""
    sizes = ((16384, 3072, 768), (12608, 4096, 1024), (4096, 8192, 2048), (1024, 4096, 4096), (4096, 4096, 4096))
    return [Case(m, n, k, layout="nt", bias=True, activation=mode) for m, n, k in sizes for mode in ("identity", "relu", "gelu_tanh")]


def _small():
    layers = [Case(64, 10, 784, layout="nt"), Case(128, 512, 784, layout="nt"), Case(32, 1000, 2048)]
    return [Case(s, s, s) for s in (16, 32, 64, 128)] + layers


SETS = {"square": _square, "transformer": _transformer, "skinny": _skinny, "odd": _odd, "batched": _batched, "fused": _fused,
        "programs": _programs, "scaled": _scaled, "blocks": _blocks, "few": _few, "uneven": _uneven, "epilogues": _epilogues,
        "small": _small}


def cases(name, dtypes=("float32",), layouts=(), math=None) -> list[Case]:
    """A set, or "all", in the given dtypes; `layouts` replaces the set's own."""
    if name != "all" and name not in SETS:
        raise ValueError(f"matmul has no set {name!r}; there are {', '.join(SETS)} and all")
    chosen = [case for key, make in SETS.items() if name in (key, "all") for case in make()]
    return _variants(chosen, dtypes, layouts, math)


def parse(text, dtypes=("float32",), layouts=(), math=None) -> list[Case]:
    """A case written ``MxNxK`` or ``BATCHxMxNxK``."""
    try:
        sizes = [int(s) for s in text.split("x")]
        batch, m, n, k = sizes if len(sizes) == 4 else [1] + sizes
    except ValueError:
        raise ValueError(f"--problem {text}: expected MxNxK or BATCHxMxNxK") from None
    return _variants([Case(m, n, k, batch=batch)], dtypes, layouts, math)


def _variants(chosen, dtypes, layouts, math):
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise ValueError(f"matmul has no dtype {dtype!r}; there are {', '.join(DTYPES)}")
    found = [replace(case, dtype=dtype, layout=layout, math=math if dtype == "float32" or math != "tf32" else None,
                     scales=case.scales if dtype in FP8 else Case.scales)
             for dtype in dtypes for case in chosen for layout in (layouts or (case.layout,))]
    return list(dict.fromkeys(found))  # cases that differ in their scales alone are one in other types
