"""Imports found by reading sources are those that Python's own parser finds."""
import ast
import graphlib
import pathlib
import textwrap

import pytest
import readable

from dnnkern.host import sources

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILES = sorted(p for folder in ("dnnkern", "tests", "bench") for p in (ROOT / folder).rglob("*.py"))


def file_of(top, name):
    for at in (root.joinpath(*name) for root in (top, ROOT)):
        for file in (at.with_suffix(".py"), at / "__init__.py"):
            if file.is_file():
                return file
    return None


def parsed(path):
    """The reference: module names from the syntax tree, as files."""
    top = path.parent
    while (top / "__init__.py").is_file():
        top = top.parent
    package, found = path.parent.relative_to(top).parts, set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = list(package[:len(package) - node.level + 1]) if node.level else []
            base += node.module.split(".") if node.module else []
            names = [base + [alias.name] for alias in node.names]
            if any(file_of(top, name) is None for name in names):
                names.append(base)  # a name, not a module: bound by the package's own file
        else:
            continue
        for name in filter(None, names):
            if sources.PACKAGE in path.parents and name[0] != "dnnkern":
                continue  # the command line's, of a checkout; nothing else of the package may
            found.add(file_of(top, name))
    return found - {path, None}


def test_every_file_of_the_project():
    assert len(FILES) > 500
    for path in FILES:
        missing, more = parsed(path) - sources.imports(path), sources.imports(path) - parsed(path)
        assert not missing, f"{path} imports {sorted(missing)}, which are not found"
        # an example in a docstring does no harm
        assert not more or '"""' in path.read_text(), f"{path} does not import {sorted(more)}"


def test_a_tree_of_files(tmp_path):
    for name, text in {"top.py": "import one, pack.two as two  # import pack.no\n",
                       "one.py": "def f():\n    from pack import (\n  deep,  # why\n )\n",
                       "pack/__init__.py": "x = 1", "pack/two.py": "from . import deep, x\nfrom .deep import y\n",
                       "pack/deep.py": "import os\n", "pack/no.py": "import top\n"}.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    found = sources.distances(frozenset({tmp_path / "top.py"}))
    names = {p.relative_to(tmp_path).as_posix(): d for p, d in found.items()}
    assert names == {"top.py": 0, "one.py": 1, "pack/two.py": 1, "pack/__init__.py": 2, "pack/deep.py": 2}


@pytest.mark.parametrize("algorithm, inside, outside", [
    ("matmul/matmul_wgmma.py", "device/wgmma.py", "matmul/matmul_mma.py"),
    ("softmax/softmax_naive.py", "device/convert.py", "device/wgmma.py")])
def test_what_an_algorithm_is_made_of(algorithm, inside, outside):
    closure = sources.closure(sources.PACKAGE / algorithm)
    assert sources.PACKAGE / inside in closure and sources.PACKAGE / outside not in closure


def test_no_module_imports_itself():
    """Not through others either; imports inside functions count."""
    files = sorted(sources.PACKAGE.rglob("*.py"))
    order = graphlib.TopologicalSorter({path: sources.imports(path) for path in files})
    try:
        order.prepare()
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(str(path.relative_to(sources.PACKAGE)) for path in reversed(error.args[1])))


# What a reader of a kernel has to hold in mind (readable.py, docs/notes/readable.md): lower a number where a change makes it fall; new
# kernels may bring casts, up to the 2,000 of that page.
MOST = {"casts": 1695, "subscripts": 28, "captured": 39, "files": 6, "private": 0, "lines": 500}


@pytest.fixture(scope="module")
def checkout():
    return readable.Checkout(readable.ROOT)


@pytest.mark.parametrize("kind", MOST)
def test_sources_become_no_harder_to_read(kind, checkout):
    found = getattr(checkout, kind)()
    assert readable.TOTALS[kind](found.values()) <= MOST[kind], found.most_common(5)


def test_counting(tmp_path):
    """A kernel that captures two names, has two casts and a tuple read by number, in a family that reads another's module; of its own
    family's two modules with device code it takes one, which takes a method of a class in a third."""
    for name, text in {"one/_problem.py": "x = 1\n", "one/one_naive.py": CODE, "one/_more.py": HELPER.replace("f(x)", "unused(x)"),
                       "one/_index.py": "def make_index(tiles):\n" + indented(HELPER + "g = tiles.size\n"),
                       "one/_tiles.py": "class Tiles:\n    def size(self):\n" + indented(indented(HELPER)),
                       "two/_helper.py": HELPER, "device/sim/a.py": "i32(1)\n"}.items():
        path = tmp_path / "dnnkern" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    counted = readable.Checkout(tmp_path)
    totals = {kind: total(getattr(counted, kind)().values()) for kind, total in readable.TOTALS.items()}
    assert totals == {"casts": 2, "subscripts": 1, "captured": 2, "files": 3, "private": 1, "lines": len(CODE.splitlines())}


HELPER = "@device_function\ndef f(x):\n    return x\n"


def indented(code):
    return textwrap.indent(code, "    ")


CODE = """from ..two._helper import f
from . import _index, _more
from ._problem import x

ALGORITHM = x


def kernel(ROWS, COLUMNS):
    index = _index.make_index(ROWS)

    @jit(launch_bounds=32)
    def naive(a, shape):
        for i in range(ROWS):
            a[i32(i)] = f(shape[3]) + shape[2] * COLUMNS + i64(i)
    return naive
"""
