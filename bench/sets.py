"""Named sets of problems over all operations: what ``python -m dnnkern warm --set NAME`` compiles."""
import itertools

from . import shapes

COMMON = "common"
DEMO = "demo"  # what `python -m dnnkern demo` needs
USUAL = ("float32", "float16", "bfloat16")
NARROW = ("int8", "float8_e4m3fn")  # of products, convolutions and attention


def names() -> list:
    """All sets: `COMMON`, `DEMO`, and those that the operations have."""
    return [COMMON, DEMO, *sorted({name for op in shapes.operations() for name in shapes.of(op).SETS})]


def problems(name, op=None) -> list:
    """The problems of a set, each once, of one operation or of all; `COMMON` are all sets of all operations in the usual dtypes, and
    `DEMO`.

    Raises
    ------
    ValueError
        There is no such set.
    """
    operations = shapes.operations() if op is None else [op]
    found = {}
    for each in operations:
        module = shapes.of(each)
        sets = list(module.SETS) if name == COMMON else [name] if name in module.SETS else []
        for one, dtype in itertools.product(sets, [d for d in USUAL + NARROW if d in module.DTYPES]):
            for case in _cases(module, one, dtype):
                found.setdefault((case.op, case.problem))
    if name in (COMMON, DEMO):
        from dnnkern import demo
        for problem in demo.problems():
            if problem.op in operations:
                found.setdefault((problem.op, problem))
    if not found:
        raise ValueError(f"there is no set {name!r}{f' of {op}' * bool(op)}; expected one of {', '.join(names())}")
    return [problem for _, problem in found]


def _cases(module, name, dtype):
    try:
        return module.cases(name, (dtype,), (), None)
    except (TypeError, ValueError):  # a set that is not for this dtype
        return ()
