"""Records of machine code: what the same sources, renamed ones and changed ones make of them, and what a comparison says."""
import collections
import copy
import dataclasses
import io
import shutil
import subprocess
import sys
import types

import cases
import machine_code
import parts
import pytest
from machine_code_compare import compare
from representative import device

from dnnkern import dispatch
from dnnkern.device import SIMULATED
from dnnkern.host import sources

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

# Branches, a division that is a function of ptxas's, a predicate, a table of constants.
SOURCE = '''
import numpy as np
from dnnkern.device import cuda, device_function, f32, i32, i64

TABLE = np.arange(0, 400, 10, dtype=np.int32)


@device_function
def helper(x, n):
    return f32(x * f32(3) + f32(TABLE[n]))


@cuda.jit(launch_bounds=64)
def kernel(x, n, m):
    i = i64(cuda.threadIdx.x)
    while i < n:
        if i % m == i64(2):
            x[i] = helper(x[i], i32(i // m))
        i += i64(64)
'''
HEAD = {"commit": "0123456789abcdef", "dirty": False, "archs": ["sm_80"], "only": "", "versions": {}, "made_by": ""}


@pytest.fixture(autouse=True)
def nothing_kept(tmp_path, monkeypatch):
    """Each test compiles for itself."""
    monkeypatch.setenv("DNNKERN_TESTS_CACHE_DIR", str(tmp_path / "kept"))


def compiled(tmp_path, source, name="some.py", arch="sm_80"):
    """What is recorded of the kernel in a source file."""
    path, namespace = tmp_path / name, {"__name__": name}
    path.write_text(source)
    exec(compile(source, str(path), "exec"), namespace)
    kernel, = (value for value in namespace.values() if hasattr(value, "py_func") and value.targetoptions.get("launch_bounds"))
    shutil.rmtree(tmp_path / "kept", ignore_errors=True)
    return machine_code.measured(types.SimpleNamespace(kernel=kernel, signature=("float32*", "int64", "int64")), arch)


@pytest.mark.parametrize("arch", machine_code.ARCHS)
def test_the_same_source_has_the_same_code(tmp_path, arch):
    first = compiled(tmp_path, SOURCE, arch=arch)
    assert first == compiled(tmp_path, SOURCE, arch=arch)
    assert first["instructions"] == sum(first["opcodes"].values()) > 50 and first["registers"] > 8 and not first["spilled"]
    lines = first["text"].split("\n")
    assert any(line.startswith("@") for line in lines) and any(line.startswith("CALL") and "$__cuda" in line for line in lines)
    labels = [line for line in lines if line.startswith(".L") and line.endswith(":")]
    assert len(labels) == len(set(labels)) > 2 and "_Z" not in first["text"] and "/*" not in first["text"]


def test_names_do_not_matter(tmp_path):
    other = SOURCE.replace("helper", "another").replace("kernel", "zz_of_its_own").replace("TABLE", "ROWS")
    assert compiled(tmp_path, SOURCE) == compiled(tmp_path, "# moved\n\n" + other, "elsewhere.py")


@pytest.mark.parametrize("before, after", [("f32(3)", "f32(5)"), ("i64(2)", "i64(1)"), ("np.arange(0, 400", "np.arange(10, 410"),
                                           ("while i < n", "while i <= n")])
def test_a_change_is_seen(tmp_path, before, after):
    assert SOURCE.count(before) == 1
    first, second = (compiled(tmp_path, source) for source in (SOURCE, SOURCE.replace(before, after)))
    assert first["text"] != second["text"]


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """One of an algorithm with two launches or more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DNNKERN_TESTS_CACHE_DIR", str(tmp_path_factory.mktemp("kept")))
        rows, codes = machine_code.recorded("mse_loss_fwd", "naive", ("sm_80",))
    return {**HEAD, "rows": rows, "codes": codes}


def said(old, new, **options):
    """(exit status, output) of a comparison."""
    file = io.StringIO()
    return compare(old, new, file=file, **options), file.getvalue()


def test_records_of_the_same_are_identical(record):
    status, text = said(record, copy.deepcopy(record))
    kernels = len({row["key"] for row in record["rows"].values()})
    assert status == 0 and f"{kernels} kernels identical, 0 differ" in text and text.count("\n") == 1


def test_rows_that_are_missing(record):
    fewer = copy.deepcopy(record)
    lost = [fewer["rows"].pop(name) for name in list(fewer["rows"])[:2]]
    status, text = said(record, fewer)
    assert status == 1 and f"only in the old record: 2 launches of {lost[0]['of']}\n" in text
    status, text = said(fewer, record)
    assert status == 1 and f"only in the new record: 2 launches of {lost[0]['of']}\n" in text


def test_what_differs_is_counted_and_shown(record):
    other = copy.deepcopy(record)
    name, row = next(iter(other["rows"].items()))
    code = copy.deepcopy(other["codes"][row["code"]])
    code["instructions"] += 7
    code["spilled"], code["text"] = 48, code["text"].replace("EXIT", "STL [R1], R2\nEXIT", 1)
    other["codes"]["another"] = code
    for each in other["rows"].values():
        if each["key"] == row["key"]:
            each["code"] = "another"
    row["launch"] = row["launch"].replace("grid ", "grid 7", 1)
    status, text = said(record, other)
    assert status == 1 and " 1 differ " in text and "0 -> 48" in text and row["of"] in text and "1 are launched otherwise" in text
    status, text = said(record, other, markdown=True)
    assert status == 1 and any(line.startswith(f"| {row['of']} | sm_80 | 1 |") and "| 0 -> 48 |" in line for line in text.split("\n"))
    status, text = said(record, other, show=name)
    assert status == 1 and "STL [R1], R2\n" in text and "\n+spilled 48\n" in text and "\n+grid 7" in text


def test_what_cannot_be_compiled_is_recorded(monkeypatch):
    def build(problem, device, config):
        raise ValueError("no such tile")
    broken = [dataclasses.replace(a, build=build) for a in dispatch.algorithms("mse_loss_fwd") if a.name == "naive"]
    monkeypatch.setattr(dispatch, "algorithms", lambda op=None: broken)
    rows, codes = machine_code.recorded("mse_loss_fwd", "naive", ("sm_80",))
    assert rows and {code["text"] for code in codes.values()} == {"failed: ValueError: no such tile"}
    broken = {**HEAD, "rows": rows, "codes": codes}
    assert said(broken, broken)[1].startswith(f"{len(rows)} launches of loss/mse_loss_fwd-naive failed: ValueError: no such tile\n")


def test_parts_have_several_places(monkeypatch):
    parts.part.cache_clear()
    monkeypatch.setitem(parts.PLACES, "link", ("dnnkern.none.compile", "dnnkern.host.none", "dnnkern.host.paths", "dnnkern.host.compile"))
    assert parts.part("link").__module__ == "dnnkern.host.compile"
    parts.part.cache_clear()
    monkeypatch.setitem(parts.PLACES, "link", ("dnnkern.none.compile", "dnnkern.host.paths"))
    with pytest.raises(ImportError, match="^link: none of dnnkern.none.compile, dnnkern.host.paths has it"):
        parts.part("link")
    parts.part.cache_clear()


def command(*words):
    return subprocess.run([sys.executable, machine_code.__file__, *map(str, words)], capture_output=True, text=True)


def test_another_checkout(tmp_path):
    """Kernels and cases are those of the checkout that is recorded: here one where a kernel and a case have other names."""
    for name, kernel, case in (("old", "mse_loss_naive", "sum"), ("new", "renamed", "sum-again")):
        root = tmp_path / name
        for part in ("dnnkern", "tests/cases", "tests/activations.py"):
            source = sources.PACKAGE.parent / part
            (root / part).parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(source, root / part) if source.is_dir() else shutil.copy(source, root / part)
        for path, before, after in (("dnnkern/loss/mse_loss_naive.py", "def mse_loss_naive(", f"def {kernel}("),
                                    ("dnnkern/loss/mse_loss_naive.py", "return mse_loss_naive\n", f"return {kernel}\n"),
                                    ("tests/cases/_mse.py", 'case("sum"', f'case("{case}"')):
            text = (root / path).read_text()
            assert text.count(before) == 1
            (root / path).write_text(text.replace(before, after))
        done = command("record", tmp_path / f"{name}.xz", "--checkout", root, "--only", "^mse_loss_fwd-naive$", "--arch", "sm_80",
                       "--jobs", 1)
        assert done.returncode == 0 and "of 1 algorithms;" in done.stdout and "failed" not in done.stdout, done.stdout + done.stderr
    old, new = (machine_code.read(tmp_path / f"{name}.xz") for name in ("old", "new"))
    assert {row["kernel"] for row in new["rows"].values()} == {"renamed", "loss_fold"}
    assert any("sum-again" in name for name in new["rows"]) and not any("sum-again" in name for name in old["rows"])
    done = command("compare", tmp_path / "old.xz", tmp_path / "new.xz")
    assert done.returncode == 1 and " kernels identical, 0 differ" in done.stdout and "0 are launched otherwise" in done.stdout
    assert "2 launches only in the old record and 2 only in the new one, which share 2 codes" in done.stdout
    done = command("compare", tmp_path / "old.xz", tmp_path / "old.xz")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_list():
    """Every algorithm, on each architecture that it has; all launches have one kernel or more."""
    counts = collections.Counter()
    for op in cases.modules():
        for algorithm in dispatch.algorithms(op):
            found = list(machine_code.chosen(op, algorithm))
            assert len({(arch, case.id, str(config)) for arch, case, config in found}) == len(found), algorithm
            assert {arch for arch, *_ in found} == {arch for arch in machine_code.ARCHS if device(arch).supports(algorithm.arch) is None}
            assert algorithm.configs is None or any(config is not None for *_, config in found)
            counts.update(arch for arch, *_ in found)
    assert counts[machine_code.EVERYTHING] > 2000 and min(counts.values()) > 200, counts
