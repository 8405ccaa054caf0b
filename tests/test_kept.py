"""What is kept between test runs: made once, again where it is damaged or depends on something else, and never more than the limit."""
import os

import kept
import pytest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DNNKERN_TESTS_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_made_once(folder):
    made = []

    def get(name):
        return kept.json_of(name, lambda: made.append(name) or [name, 1, 2.5])
    assert [get("code/a"), get("code/a"), get("text/a")] == [["code/a", 1, 2.5], ["code/a", 1, 2.5], ["text/a", 1, 2.5]]
    assert made == ["code/a", "text/a"]


@pytest.mark.parametrize("damage", [b"", b"text", None])
def test_damaged_ones_are_made_again(folder, damage):
    assert kept.json_of("a", lambda: 1) == 1
    path, = (p for p in folder.rglob("*") if p.is_file())
    path.write_bytes(path.read_bytes()[:-3] if damage is None else damage)
    assert [kept.json_of("a", lambda: 2), kept.json_of("a", lambda: 3)] == [2, 2]


def test_what_cannot_be_made_leaves_nothing(folder):
    with pytest.raises(ZeroDivisionError):
        kept.json_of("a", lambda: 1 / 0)
    assert not [p for p in folder.rglob("*") if p.is_file()]


def test_prune(folder):
    for name, age, size in (("old", 300, 400), ("middle", 200, 500), ("new", 100, 300)):
        (folder / name).write_bytes(bytes(size))
        os.utime(folder / name, (1e9 - age,) * 2)
    kept.prune(1200)
    assert {p.name for p in folder.iterdir()} == {"old", "middle", "new"}
    kept.prune(900)
    assert {p.name for p in folder.iterdir()} == {"middle", "new"}
    kept.prune(0)
    assert not list(folder.iterdir())
