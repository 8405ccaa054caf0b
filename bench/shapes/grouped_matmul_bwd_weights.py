"""Gradients of the matrices of grouped products to measure: those of the expert layers of `grouped_matmul`."""
import functools
from dataclasses import dataclass, replace

from dnnkern.matmul._parse import parse_problem

from . import grouped_matmul
from ._words import option_words

DTYPES = ("float64", "float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Case:
    """Of `m` rows in `groups` groups."""
    groups: int
    m: int
    n: int
    k: int
    dtype: str = "bfloat16"
    math: str | None = None
    label: str = ""
    op = "grouped_matmul_bwd_weights"

    @functools.cached_property
    def problem(self):
        """The `GroupedWeightsProblem`."""
        return parse_problem([f"{self.groups}x{self.m}x{self.n}x{self.k}", self.dtype, *option_words({"math": self.math})], self.op)

    def call(self, arrays, **keywords):
        """The public function on arrays by name, with `out`; keywords are passed on (`algo`, `allow`)."""
        from dnnkern.matmul import grouped_matmul_bwd_weights
        return grouped_matmul_bwd_weights(arrays["a"], arrays["dy"], arrays["group_offsets"], math=self.math, out=arrays["db"], **keywords)

    def __str__(self):
        return str(self.problem).removeprefix(self.op + " ") + (f" ({self.label})" if self.label else "")


SETS = {name: grouped_matmul.SETS[name] for name in ("moe", "small")}


def cases(name, dtypes=("bfloat16",), layouts=(), math=None) -> list[Case]:
    """A set, or "all", in the given dtypes; there are no layouts."""
    if name != "all" and name not in SETS:
        raise ValueError(f"grouped_matmul_bwd_weights has no set {name!r}; there are {', '.join(SETS)} and all")
    chosen = [case for key, make in SETS.items() if name in (key, "all") for case in make()]
    return _variants([Case(c.groups, c.m, c.n, c.k, label=c.label) for c in chosen], dtypes, layouts, math)


def parse(text, dtypes=("bfloat16",), layouts=(), math=None) -> list[Case]:
    """A case written ``GxMxNxK``."""
    (found,) = grouped_matmul.parse(text)
    return _variants([Case(found.groups, found.m, found.n, found.k)], dtypes, layouts, math)


def _variants(chosen, dtypes, layouts, math):
    for kind, given, known in (("dtype", dtypes, DTYPES), ("layout", layouts, ())):
        for word in given:
            if word not in known:
                raise ValueError(f"grouped_matmul_bwd_weights has no {kind} {word!r}; there are {', '.join(known) or 'none'}")
    return [replace(case, dtype=dtype, math=math if dtype == "float32" or math != "tf32" else None) for dtype in dtypes for case in chosen]
