"""Files of kernel packs: what is written is read, and whatever is wrong with one is refused before anything of it is used."""
import hashlib
import multiprocessing
import os
import sys
import types
import warnings

import pytest

from dnnkern import __main__ as command
from dnnkern import _pack
from dnnkern.host import packs
from dnnkern.host.paths import cache_dir


def key(k):
    """The key of entry `k`."""
    return hashlib.sha256(str(k).encode()).digest()


KERNELS = {key(k): bytes(range(k)) * (k + 1) for k in range(12)}
CHOICES = {key("matmul"): b"one\ntwo", key("conv_fwd"): b"three"}
CONTENTS = KERNELS | CHOICES
OF = {"archs": ["sm_90a"], "versions": {"dnnkern": "0.1.0"}, "sources": "these"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache directory."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("DNNKERN_CACHE_DIR", str(folder))
    cache_dir.cache_clear()
    packs.forget()
    yield folder
    cache_dir.cache_clear()
    packs.forget()


@pytest.fixture
def path(tmp_path):
    packs.write(tmp_path / "a.pack", KERNELS, CHOICES, **OF)
    return tmp_path / "a.pack"


def test_what_is_packed_is_read(path):
    pack = packs.Pack(path)
    assert {k: pack.get(k) for k in CONTENTS} == CONTENTS and all(k in pack for k in CONTENTS)
    assert key("another") not in pack and pack.get(key("another")) is None and pack.get(b"\xff" * 32) is None
    assert [pack.header[name] for name in ("kernels", "choices", "entries", "archs")] == [12, 3, 14, ["sm_90a"]] and pack.check() is None


def test_an_empty_pack(tmp_path):
    packs.write(tmp_path / "none.pack", {}, **OF)
    assert key(0) not in packs.Pack(tmp_path / "none.pack")


def test_a_flipped_byte_anywhere_is_refused(path):
    """By opening the pack, or by reading the one kernel that it is in; the others are as they were."""
    whole = path.read_bytes()
    start, served = packs.Pack(path).start, 0
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1:])
        with pytest.raises(ValueError):
            packs.install(path, "these")
        if at >= start:
            pack, wrong = packs.Pack(path), 0
            for k, content in CONTENTS.items():
                try:
                    assert pack.get(k) == content
                    served += 1
                except packs.Broken:
                    wrong += 1
            assert wrong == 1
        else:
            with pytest.raises(ValueError):
                packs.Pack(path)
    assert served == (len(whole) - start) * 13


@pytest.mark.parametrize("nbytes", [0, 5, 40, 60, 300, 1100, -1])
def test_a_truncated_pack_is_refused_with_the_reason(path, nbytes):
    path.write_bytes(path.read_bytes()[:nbytes])
    with pytest.raises(packs.Broken, match="begin as a kernel pack|cut off|expected"):
        packs.Pack(path)


def test_more_than_was_written_is_refused(path):
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(packs.Broken, match=r"bytes; expected \d+"):
        packs.Pack(path)


def test_the_index_of_another_pack_is_refused(path, tmp_path):
    other = tmp_path / "b.pack"
    packs.write(other, {k: v + b"!" for k, v in KERNELS.items()}, **OF)
    ours, theirs = packs.Pack(path), packs.Pack(other)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(ours.index, theirs.index))
    with pytest.raises(packs.Broken, match="its index is cut off, or of another pack"):
        packs.Pack(path)


@pytest.mark.parametrize("sources, archs, message", [
    ("others", None, "is of dnnkern 0.1.0 with other sources"), ("these", {"sm_80"}, "it is for sm_90a; here is sm_80")])
def test_a_pack_of_older_sources_or_another_architecture_is_refused(path, cache, sources, archs, message):
    with pytest.raises(ValueError, match=message):
        packs.install(path, sources, archs)
    assert not list(cache.rglob("*.pack")) and packs.get(lambda: key(3)) is None


def test_an_imported_pack_is_served_and_a_broken_one_is_not(path, cache):
    assert packs.get(lambda: pytest.fail("there is no pack")) is None
    packs.install(path, "these", {"sm_80", "sm_90a"})
    path.unlink()
    assert packs.get(lambda: key(5)) == KERNELS[key(5)] and packs.has(lambda: key(5))
    assert packs.get(lambda: key("another")) is None and packs.get(lambda: None) is None and not packs.has(lambda: None)
    copy, = cache.rglob("*.pack")
    whole = copy.read_bytes()
    copy.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    last = max(CONTENTS)
    with pytest.warns(RuntimeWarning, match="is refused: entry .* is not what was packed"):
        assert packs.get(lambda: last) is None
    copy.write_bytes(whole[:80])
    packs.forget()
    with pytest.warns(RuntimeWarning, match="is refused: its header is cut off"):
        assert packs.get(lambda: key(5)) is None


class _Point(types.SimpleNamespace):
    def load(self):
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


def test_installed_distributions_serve_packs(path, monkeypatch):
    def install(*values):
        points = [_Point(name=f"number {k}", value=value) for k, value in enumerate(values)]
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points if group == "dnnkern.packs" else [])
        packs.forget()
    for value in (str(path), path, [path], lambda: [str(path)]):
        install(value)
        assert packs.get(lambda: key(7)) == KERNELS[key(7)]
    install(ImportError("no such module"), path)
    with pytest.warns(RuntimeWarning, match=r"number 0 of the entry points dnnkern.packs has no pack \(ImportError: no such module\)"):
        assert packs.get(lambda: key(7)) == KERNELS[key(7)]


def test_no_folder_to_import_into(path, cache):
    cache.write_text("a file")
    cache_dir.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with pytest.raises(ValueError, match="there is no cache directory to import it into"):
            packs.install(path, "these")


def test_a_disk_that_takes_no_more(path, cache):
    cache_dir()
    (cache / "packs").write_text("no folder")  # root may write anywhere
    with pytest.raises(OSError, match="could not write"):
        packs.install(path, "these")


def _install(path, barrier):
    barrier.wait()
    for _ in range(5):
        packs.install(path, "these")


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_two_processes_import_at_once(path, cache):
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(2)
    both = [context.Process(target=_install, args=(path, barrier)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
    assert [process.exitcode for process in both] == [0, 0]
    assert len(list((cache / "packs").iterdir())) == 1 and packs.get(lambda: key(4)) == KERNELS[key(4)]


# ---- the commands

def test_the_command_imports_refuses_and_shows(path, cache, capsys, monkeypatch):
    monkeypatch.setattr(_pack, "sources", lambda: "these")
    assert command.main(["cache", "import", str(path)]) == 0
    assert capsys.readouterr().out == "12 kernels and 3 choices for sm_90a are imported\n"
    assert command.main(["cache"]) == 0
    assert "imported kernel packs" in (out := capsys.readouterr().out) and str(cache) in out
    path.write_bytes(path.read_bytes()[:99])
    assert command.main(["cache", "import", str(path)]) == 2
    assert "a.pack is refused: its header is cut off" in capsys.readouterr().err
    assert command.main(["cache", "import", "absent.pack"]) == 2 and "absent.pack" in capsys.readouterr().err
    assert command.main(["cache", "import"]) == 2 and "no file is given" in capsys.readouterr().err


@pytest.mark.parametrize("words, message", [
    (("--arch", "sm_1", "--out", "x"), "arch is 'sm_1'"),
    (("--arch", "sm_90a", "--out", "x", "--set", "absent"), "there is no set 'absent'"),
    (("--arch", "sm_90a", "--out", "x", "--jobs", "0"), "--jobs 0")])
def test_words_of_pack_that_make_no_sense(words, message, capsys):
    assert command.main(["pack", *words]) == 2
    assert message in capsys.readouterr().err and not os.path.exists("x")
