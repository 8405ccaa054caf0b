"""Casts of numbers that say nothing (casts.py): none in the textbook kernels, and the tool finds those that are planted."""
import ast
import collections
import textwrap

import casts
import pytest

from dnnkern import dispatch

pytestmark = pytest.mark.ptx
# What newcomers read first. All kernels are looked at by `python tests/casts.py observe` and `list`, which takes a while.
TEXTBOOK = "matmul-tiled", "conv_fwd-naive", "softmax_fwd-naive", "max_pool_fwd-naive", "transpose-naive"


@pytest.mark.parametrize("algorithm", TEXTBOOK)
def test_no_cast_says_nothing(algorithm):
    op, name = algorithm.split("-")
    seen, errors = casts.observed(op, name, ("sm_90a",))
    assert not errors
    source = next(a.source for a in dispatch.algorithms(op) if a.name == name)
    files = [file for file in casts.sources() if file == source or source.endswith("__init__.py") and file.startswith(source[:-11])]
    assert files
    found = [f"{file}:{node.lineno}: {ast.unparse(node)}" for file in files for node in casts.removable(file, seen)[0]]
    assert not found


FUNCTION = '''
from dnnkern.device import cuda, i32, i64, jit, u32

@jit
def kernel(x, y, n, stride):
    i = i32(cuda.blockIdx.x) * 256 + i32(cuda.threadIdx.x)      # both are int32
    lane = u32(cuda.laneid)                                     # says that it is unsigned
    phase = u32(lane + u32(1)) & u32(3)                         # uint32, literals beside one
    if i < n:
        y[i64(i) * stride] = x[i64(i) * i64(n)] + x[i32(phase)]     # the first is widened by stride, the second by the other
'''
STAYS = ["u32(cuda.laneid)", "i64(i)", "i32(phase)"]


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A file with casts, and what they are given where `stride` is int64."""
    monkeypatch.setattr(casts, "ROOT", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "casts_planted.py").write_text(textwrap.dedent(FUNCTION))
    from casts_planted import kernel

    from dnnkern.device import _numba_compile
    seen = collections.defaultdict(set)
    with casts.watch(seen):
        _numba_compile.lower(kernel, ("float32*", "float32*", "int32", "int64"), "sm_90a")
    yield "casts_planted.py", seen


def test_casts_that_say_nothing_are_found(planted):
    file, seen = planted
    text = (casts.ROOT / file).read_text()
    nodes, _ = casts.removable(file, seen)
    left = casts.without(text, nodes)
    assert [ast.unparse(node) for node in casts.casts(ast.parse(left))] == STAYS
    assert "i = cuda.blockIdx.x * 256 + cuda.threadIdx.x " in left and "phase = (lane + 1) & 3 " in left
    assert "y[i * stride] = x[i64(i) * n] + x[i32(phase)]" in left


def test_a_cast_that_no_kernel_has_compiled_stays(planted):
    file, _ = planted
    assert casts.removable(file, {})[0] == []


@pytest.mark.parametrize("before, after", [
    ("a * i32(b + c)", "a * (b + c)"), ("i32(b + c) * a", "(b + c) * a"), ("a - i32(b - c)", "a - (b - c)"),
    ("i32(b - c) - a", "b - c - a"),
    ("u32(a << 3) + b", "(a << 3) + b"), ("f(i32(a + b))", "f(a + b)"), ("-i32(a + b)", "-(a + b)"), ("x[i32(a + b)]", "x[a + b]"),
    ("i32(i32(a) * b) + c", "a * b + c"), ("i32(a) if b else i32(c)", "a if b else c"), ("i32((a + b) * c) & 3", "(a + b) * c & 3")])
def test_what_is_left_is_the_same_program(before, after):
    """Parentheses come where they are needed; `without` itself compares the trees."""
    left = casts.without(before, casts.casts(ast.parse(before)))
    assert ast.dump(ast.parse(left)) == ast.dump(ast.parse(after))
