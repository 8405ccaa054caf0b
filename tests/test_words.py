"""The word list of `make lint`: .ci/words.py finds words to avoid, and their ceilings only fall."""
import pathlib
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[1] / ".ci"


@pytest.fixture
def words(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import words
    return words


def run(*arguments):
    return subprocess.run([sys.executable, str(FOLDER / "words.py"), *map(str, arguments)], capture_output=True, text=True)


def test_a_planted_word_is_found(tmp_path):
    page = tmp_path / "page.md"
    first, second = " way".join(("under", "")), " what".join(("what is", ""))  # in pieces: this file is checked too
    page.write_text(f"# Title\n\nFine.\n\nThe loads are {first.replace(' ', chr(10))}, and {second} is plain.\n")
    done = run(page)
    assert done.returncode == 1
    assert sorted(done.stdout.splitlines()) == [f"{page}:5: {first}: write in flight", f"{page}:6: {second}: write semantics"]


def test_a_clean_file_passes(tmp_path):
    page = tmp_path / "page.py"
    page.write_text("# Updated in place, with two decimal places; in\n# place of the default. The two halves of x.\n")
    done = run(page)
    assert (done.returncode, done.stdout) == (0, "")


def test_exceptions_cover_only_their_own_match(words):
    listed = words.words()
    found = [(line, word) for line, _, word, _ in words.matches("in place\nthe place\n", listed)]
    assert found == [(2, "place")]


@pytest.mark.parametrize("line", ["word", "word =>", " => write"])
def test_a_bad_line_of_the_list_is_named(words, tmp_path, line):
    path = tmp_path / "words.txt"
    path.write_text(f"# comment\n{line}\n")
    with pytest.raises(ValueError, match="words.txt:2: "):
        words.words(path)


def test_ceilings_fall_and_do_not_rise(words, tmp_path):
    path = tmp_path / "ceiling.txt"
    words.record({"a": 3, "b": 2}, {}, path)
    allowed = words.ceilings(path)
    assert allowed == {"a": 3, "b": 2}
    words.record({"a": 5, "c d": 4}, allowed, path)
    assert words.ceilings(path) == {"a": 3}


@pytest.mark.parametrize("name, clean", [
    ("docs/matmul.md", True), ("docs/notes/cpu.md", True), ("README.md", True), ("dnnkern/find.py", True), ("dnnkern/host/front.py", True),
    ("dnnkern/conv/__init__.py", True), ("dnnkern/conv/conv_naive.py", False), ("dnnkern/conv/winograd/__init__.py", False),
    ("dnnkern/device/__init__.py", False)])
def test_which_files_must_be_clean(words, name, clean):
    assert (words.CLEAN.fullmatch(name) is not None) == clean


def test_every_ceiling_is_of_a_listed_word(words):
    assert set(words.ceilings()) <= set(words.words())
