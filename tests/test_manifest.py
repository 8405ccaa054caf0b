"""The manifest: what is kept of the package's files between processes, and everything that can be wrong with it."""
import importlib
import json
import os
import pathlib
import subprocess
import sys
import warnings

import pytest

import dnnkern
from dnnkern import dispatch, registry
from dnnkern.host import manifest, sources, versions
from dnnkern.host.paths import cache_dir

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A small package, and an empty cache; `package.again()` is another process."""
    class Package:
        folder, cache = tmp_path / "dnnkern", tmp_path / "cache"

        def write(self, name, text=""):
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            self.again()
            return path

        def again(self):
            manifest._open.cache_clear()
            sources.imports.cache_clear()
            sources._content.cache_clear()
            importlib.invalidate_caches()

        @property
        def file(self):
            return next((self.cache / "manifest").glob("*.json"))

    monkeypatch.setenv("DNNKERN_CACHE_DIR", str(Package.cache))
    for module in (manifest, sources, registry):
        monkeypatch.setattr(module, "PACKAGE", Package.folder)
    monkeypatch.setattr(manifest, "SETTLED", -1.0)
    cache_dir.cache_clear()
    made = Package()
    made.write("a.py", "x = 1")
    made.write("below/b.py", "y = 1")
    yield made
    cache_dir.cache_clear()
    made.again()


def test_facts_outlive_the_process(package):
    assert manifest.recall("part", "key") is None
    manifest.remember("part", "key", [1, "two"])
    assert manifest.recall("part", "key") == [1, "two"]
    package.again()
    assert manifest.recall("part", "key") == [1, "two"] and manifest.recall("part", "other") is None


@pytest.mark.parametrize("change", ["grows", "same size", "new", "gone", "moved", "in a folder"])
def test_no_fact_outlives_a_change(package, change):
    manifest.remember("part", "key", 1)
    if change == "grows":
        package.write("a.py", "x = 1000")
    elif change == "same size":
        package.write("a.py", "x = 2")
    elif change == "new":
        package.write("c.py")
    elif change == "gone":
        (package.folder / "a.py").unlink()
    elif change == "moved":
        (package.folder / "a.py").rename(package.folder / "c.py")
    else:
        package.write("below/b.py", "y = 2")
    package.again()
    assert manifest.recall("part", "key") is None
    manifest.remember("part", "key", 2)
    package.again()
    assert manifest.recall("part", "key") == 2


def test_a_change_that_keeps_the_modification_time(package):
    manifest.remember("part", "key", 1)
    path = package.folder / "a.py"
    before = path.stat()
    path.write_text("x = 2")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    package.again()
    assert path.stat().st_mtime_ns == before.st_mtime_ns and manifest.recall("part", "key") is None


def test_what_is_no_source_changes_nothing(package):
    manifest.remember("part", "key", 1)
    for name in ("notes.txt", "__pycache__/a.py", "below/.hidden"):
        package.write(name)
    assert manifest.recall("part", "key") == 1


def test_files_that_have_just_changed_are_not_trusted(package, monkeypatch):
    """Another change of the same size might leave the same times."""
    monkeypatch.setattr(manifest, "SETTLED", 1000.0)
    manifest.remember("part", "key", 1)
    assert manifest.recall("part", "key") is None and not (package.cache / "manifest").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '{"stamp": 1}', '{"parts": {"part": 3}, "stamp": "STAMP"}',
                                  '{"parts": {"part": [1]}, "stamp": "STAMP"}', '{"parts": [], "stamp": "STAMP"}', '{"stamp": "STAMP"}'])
def test_a_broken_manifest(package, text):
    manifest.remember("part", "key", 1)
    package.file.write_text(text.replace("STAMP", manifest._stamp()))
    package.again()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # what is no JSON is removed with a warning
        assert manifest.recall("part", "key") is None
        manifest.remember("part", "key", 2)
    package.again()
    assert manifest.recall("part", "key") == 2


@pytest.mark.parametrize("part", range(9))
def test_a_truncated_manifest(package, part):
    manifest.remember("part", "key", 1)
    data = package.file.read_bytes()
    package.file.write_bytes(data[:len(data) * part // 9])
    package.again()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert manifest.recall("part", "key") is None


def test_the_manifest_of_another_checkout(package, monkeypatch, tmp_path):
    """Its files may be equal, but a name in it would be a file there."""
    manifest.remember("part", "key", 1)
    other = tmp_path / "other" / "dnnkern"
    (tmp_path / "other").mkdir()
    package.folder.rename(other)
    monkeypatch.setattr(manifest, "PACKAGE", other)
    mine = package.file
    package.again()
    assert manifest.recall("part", "key") is None
    manifest.remember("part", "key", 2)
    files = sorted((package.cache / "manifest").glob("*.json"))
    assert len(files) == 2
    next(f for f in files if f != mine).write_bytes(mine.read_bytes())
    package.again()
    assert manifest.recall("part", "key") is None


def test_a_manifest_that_cannot_be_written(package):
    package.cache.mkdir(exist_ok=True)
    (package.cache / "manifest").write_text("")  # a file, where its folder would be: permissions do not stop root
    with pytest.warns(RuntimeWarning, match="could not write"):
        manifest.remember("part", "key", 1)
    assert manifest.recall("part", "key") == 1
    package.again()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert manifest.recall("part", "key") is None


def test_without_a_cache(package, monkeypatch):
    monkeypatch.setattr(manifest, "cache_dir", lambda: None)
    manifest.remember("part", "key", 1)
    assert manifest.recall("part", "key") is None


def test_two_that_write(package):
    manifest.remember("part", "mine", 1)
    path, stamp, parts = manifest._open()
    manifest._open.cache_clear()
    manifest.remember("part", "theirs", 2)
    package.again()
    assert (manifest.recall("part", "mine"), manifest.recall("part", "theirs")) == (1, 2)


def test_a_digest_is_that_of_the_files(package):
    one = package.write("one.py", "from .below import b\n")
    first = sources.digest(one)
    assert first == sources._digest((one,)) and list(json.loads(package.file.read_text())["parts"]["digests"].values()) == [first]
    package.again()
    assert sources.digest(one) == first
    package.write("below/b.py", "y = 3")
    assert sources.digest(one) != first
    package.write("below/b.py", "y = 1")
    assert sources.digest(one) == first


# ---- algorithms by name

TEXT = ("from dnnkern.dispatch import Algorithm\n"
        "ALGORITHM = Algorithm(op='newop', name='{}', supports=None, workspace=None, estimate=None, build=None)\n")


@pytest.fixture
def family(package, monkeypatch):
    """A family of two algorithms, discovered once; `again()` is another process."""
    monkeypatch.setattr(dnnkern, "__path__", [*dnnkern.__path__, str(package.folder)])
    for name in ("_registry", "_discovered", "_family_of"):
        monkeypatch.setattr(registry, name, type(getattr(registry, name))())
    registry._family_of["newop"] = "newfamily"
    for name in ("one", "two"):
        package.write(f"newfamily/newop_{name}.py", TEXT.format(name))
    for name in ("__init__", "_problem"):
        package.write(f"newfamily/{name}.py")
    plain = package.again

    def again():
        plain()
        registry._registry.clear()
        registry._discovered.clear()
        for module in [m for m in sys.modules if m.startswith("dnnkern.newfamily")]:
            del sys.modules[module]
    package.again = again
    assert [a.name for a in dispatch.algorithms("newop")] == ["one", "two"]
    again()
    yield package
    again()


def imported():
    return sorted(m.rpartition(".")[2] for m in sys.modules if m.startswith("dnnkern.newfamily.newop"))


def test_only_the_named_one_is_imported(family):
    one = registry.named("newop", "one")
    assert one.name == "one" and one.source == "dnnkern/newfamily/newop_one.py" and imported() == ["newop_one"]
    assert dispatch.algorithms("newop")[0] is one and imported() == ["newop_one", "newop_two"]


def test_an_unknown_name_is_refused_with_all_names(family):
    with pytest.raises(dnnkern.NotSupported, match="algo='three'; expected one of 'one', 'two'"):
        registry.named("newop", "three")


def test_a_new_file_is_a_new_algorithm(family):
    family.write("newfamily/newop_three.py", TEXT.format("three"))
    assert registry.named("newop", "three").name == "three" and [a.name for a in dispatch.algorithms("newop")] == ["one", "three", "two"]


@pytest.mark.parametrize("name, text, words", [
    ("newop_three", TEXT.format("four"), "newop_three.py holds newop/four; its name must be newop_four.py"),
    ("newop_three", "raise ImportError('it is broken')", "it is broken"), ("newop_three", "", "binds neither ALGORITHM nor ALGORITHMS")])
def test_a_wrong_file_is_found_by_whoever_asks_for_another(family, name, text, words):
    family.write(f"newfamily/{name}.py", text)
    for _ in range(2):
        with pytest.raises(ImportError, match=words):
            registry.named("newop", "one")
        family.again()
    (family.folder / f"newfamily/{name}.py").unlink()
    family.again()
    assert registry.named("newop", "one").name == "one"


def test_two_files_that_bind_the_same_algorithm(family):
    family.write("newfamily/group/__init__.py", "'A group.'")
    family.write("newfamily/group/newop_two.py", TEXT.format("two"))
    with pytest.raises(ValueError, match="newop_two.py and .*newop_two.py both bind newop/two"):
        registry.named("newop", "one")


def test_what_is_unregistered_stays_away(family):
    dispatch.unregister(registry.named("newop", "one"))
    assert [a.name for a in dispatch.algorithms("newop")] == ["two"]
    with pytest.raises(dnnkern.NotSupported, match="algo='one'"):
        registry.named("newop", "one")


def test_of_the_package_itself(tmp_path):
    code = ("import sys, dnnkern.softmax; from dnnkern.host import manifest; from dnnkern.registry import named\n"
            "manifest.SETTLED = 0; named('softmax_fwd', 'naive'); print('dnnkern.softmax.softmax_split' in sys.modules)")
    said = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, env={
        **os.environ, "PYTHONPATH": str(ROOT), "DNNKERN_CACHE_DIR": str(tmp_path)}).stdout.strip() for _ in range(2)]
    assert said == ["True", "False"]


# ---- versions

def test_versions_are_those_of_the_metadata(tmp_path, monkeypatch):
    import importlib.metadata
    for name in ("numba", "numpy", "pytest"):
        assert versions.installed(name) == importlib.metadata.version(name)
    folder = tmp_path / "some_thing-2.0+local.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: some-thing\nVersion: 2.0+local\n\nVersion: 3\n")
    (tmp_path / "older.egg-info").mkdir()
    (tmp_path / "older.egg-info" / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: older\nVersion: 0.5\n")
    (tmp_path / "broken-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    versions._folders.cache_clear()
    try:
        assert (versions.installed("some-thing"), versions.installed("older"), versions.installed("no-such")) == ("2.0+local", "0.5", None)
        assert versions.installed("Some-Thing") == "2.0+local" and versions.installed("broken") is None
        assert set(versions.versions()) >= {"numba", "llvmlite"}
    finally:
        versions._folders.cache_clear()
