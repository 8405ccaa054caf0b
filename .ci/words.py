"""Words that this project does not use, and what to write instead: the second half of `make lint`.

    python .ci/words.py                 pages, examples and sources that git knows
    python .ci/words.py FILE ...        these, without any ceiling
    python .ci/words.py --record        lowers the ceilings to what is found; they never rise, and a new word's are written by hand

words.txt has the words. A line is `pattern => what to write`, and may end in `unless pattern`: a match that lies
inside a match of the second pattern is fine. Words match in any case, exceptions as they are written.

Pages, examples and the modules that users meet first must be clean. Kernels' sources may have as many of a word as
words_ceiling.txt records; the file goes when they are clean.
"""
import collections
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
CEILINGS = HERE / "words_ceiling.txt"
ENDINGS = (".md", ".py", ".yml", ".cfg")
NOT_READ = ("tests/", "bench/")
CLEAN = re.compile(r"(?!dnnkern/).*|dnnkern/([^/]*|host/.*|demo/.*|cli/.*|(?!device/)[^/]*/__init__)\.py")
SHOWN = 20


def words(path=HERE / "words.txt"):
    """{pattern: (compiled, what to write, compiled exceptions or None)}"""
    found = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        pattern, _, rest = line.partition(" => ")
        write, _, unless = rest.partition(" unless ")
        if not pattern.strip() or not write.strip():
            raise ValueError(f"{path}:{number}: {line!r}; expected 'pattern => what to write'")
        pattern, unless = pattern.strip(), spaced(unless.strip())
        found[pattern] = (re.compile(rf"\b(?:{spaced(pattern)})\b", re.I), write.strip(), re.compile(unless) if unless else None)
    return found


def spaced(pattern):
    """A space of a pattern matches a line's end too, with indentation and a comment's mark; not the end of a paragraph."""
    return pattern.replace(" ", r"(?:[ \t]+|[ \t]*\n[ \t]*(?:#[ \t]*)?)")


def matches(text, listed):
    """(line number, pattern, the word, what to write) of each match."""
    for pattern, (word, write, unless) in listed.items():
        fine = [m.span() for m in unless.finditer(text)] if unless else ()
        for m in word.finditer(text):
            if not any(start <= m.start() and m.end() <= end for start, end in fine):
                yield text.count("\n", 0, m.start()) + 1, pattern, " ".join(m[0].split()), write


def ceilings(path=CEILINGS):
    """{pattern: count} of the kernels' sources"""
    lines = path.read_text().splitlines() if path.exists() else ()
    fields = (line.split(None, 1) for line in lines if line and not line.startswith("#"))
    return {pattern: int(count) for count, pattern in fields}


def record(counts, allowed, path=CEILINGS):
    kept = {pattern: min(counts.get(pattern, 0), most) for pattern, most in allowed.items()} if allowed else counts
    path.write_text("# Most occurrences in kernels' sources, pattern of words.txt. They only fall: python .ci/words.py --record\n"
                    + "".join(f"{count:5} {pattern}\n" for pattern, count in sorted(kept.items()) if count))


def main(arguments):
    listed = words()
    files = [name for name in arguments if name != "--record"]
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    names = files or [name for name in tracked if name.endswith(ENDINGS) and not name.startswith(NOT_READ) and (ROOT / name).exists()]
    bad, kernels = [], collections.defaultdict(list)
    for name in names:
        for number, pattern, word, write in matches((ROOT / name).read_text(), listed):
            found = bad if files or CLEAN.fullmatch(name) else kernels[pattern]
            found.append(f"{name}:{number}: {word}: write {write}")
    if "--record" in arguments:
        record({pattern: len(lines) for pattern, lines in kernels.items()}, ceilings())
    for pattern, lines in kernels.items():
        if len(lines) > (most := ceilings().get(pattern, 0)):
            bad += lines[:SHOWN] + [f"... and {len(lines) - SHOWN} more"] * (len(lines) > SHOWN)
            bad.append(f"kernels: {len(lines)} of '{pattern}'; the ceiling is {most}")
    print(*bad, sep="\n", end="\n" * bool(bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
