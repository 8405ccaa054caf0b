"""The machine code of a fixed list of problems, recorded and compared: a refactoring changes none of it, and a change shows what it costs.

    python tests/machine_code.py record FILE [--only REGEX] [--one] [--jobs N] [--arch sm_90a,sm_80] [--checkout FOLDER]
    python tests/machine_code.py compare OLD NEW [--markdown] [--show ID]
    python tests/machine_code.py tree [--against COMMIT] [...]    # what `make machine-code` runs

The list has every algorithm of the registry with each dtype and kind of problem that it supports, and some of its configurations, planned
for devices on which nothing was measured. No GPU is needed. `compare` exits with 1 if anything differs. Notes: docs/notes/tests.md.
"""
import argparse
import collections
import hashlib
import importlib.metadata
import json
import lzma
import multiprocessing
import os
import pathlib
import re
import subprocess
import sys
import time
import zlib

import sass
from machine_code_compare import MEASURES, compare, failures

TESTS = pathlib.Path(__file__).resolve().parent
ROOT = TESTS.parent
RECORDS = ROOT / "build" / "machine-code"
TOOLS = ("numba", "numba-cuda", "llvmlite", "nvidia-nvvm", "nvidia-nvjitlink", "cuda-core")
MADE_BY = ("machine_code.py", "representative.py", "sass.py")  # what a record rests on beside the sources that it is of
ARCHS = ("sm_90a", "sm_80")
# Of other architectures one problem of each algorithm: most kernels differ there in their instructions alone.
EVERYTHING = "sm_90a"
CONFIGS = 12  # of so many configurations one is recorded, of fewer too, beside those that are chosen
# Kinds of problems beside those of `representative`: what their epilogues, masks, states and sums are made of.
MORE = ("bias", "residual|beta|-c-|in-place", "relu|sigmoid|tanh", "mask|causal|window", "packed|paged|ragged|lengths",
        "dropped|dropout|amsgrad|master", "recomputed|statistics|soft|weighted", "extra|dsummed|sum")


# ---- the list

def use(checkout):
    """Take dnnkern, and the cases with all that they import, from a checkout; the tools are those beside this file."""
    os.environ["NUMBA_ENABLE_CUDASIM"] = "0"
    for name in [name for name in os.environ if name.startswith("DNNKERN_") and name != "DNNKERN_TESTS_CACHE_DIR"]:
        del os.environ[name]
    sys.path[:0] = [str(checkout / "tests"), str(checkout)]
    import cases
    cases.modules()
    del sys.path[0]


def products(algorithm, target):
    """[(case, configuration)] of products for Hopper's tensor cores, large enough for all tiles: of `wgmma` each in bfloat16."""
    from cases.matmul import Matmul
    operands = (("bfloat16", {"tb": True}), ("float16", {"ta": True}), ("float32", {"tb": True, "math": "tf32"}), ("int8", {"tb": True}),
                ("float8_e4m3fn", {"tb": True}), ("bfloat16", {"bias": "column", "activation": "gelu", "c": "full", "beta": 2.0}))
    found = [Matmul(f"2048x2048x8192-{n}-{dtype}", 2048, 2048, 8192, dtype, **more) for n, (dtype, more) in enumerate(operands)]
    tiles = algorithm.configs(found[0].problem(), target) if algorithm.name == "wgmma" else ()
    return [*((case, None) for case in found if algorithm.refusal(case.problem(), target) is None), *((found[0], tile) for tile in tiles)]


def chosen(op, algorithm, archs=ARCHS, one=False):
    """(architecture, case, configuration, None for the one that is chosen) of what is recorded of an algorithm; `one`: one problem."""
    from representative import WANTED, device, representative
    able = [(case, case.problem()) for case in representative(op, algorithm, WANTED + MORE)]
    for arch in archs:
        target = device(arch)
        some = [(case, problem) for case, problem in able if algorithm.refusal(problem, target) is None]
        if some and (one or arch != EVERYTHING):
            yield arch, some[zlib.crc32(f"{op}/{algorithm.name}".encode()) % len(some)][0], None  # other kinds of other algorithms
            continue
        every = {}
        if algorithm.configs is not None:
            for case, problem in some:
                for config in algorithm.configs(problem, target):
                    every.setdefault(str(config), (case, config))
        yield from ((arch, case, None) for case, _ in some)
        yield from ((arch, *every[name]) for name in sorted(every)[min(CONFIGS, len(every)) // 2::CONFIGS])
        if some and op == "matmul" and "wgmma" in algorithm.name:
            yield from ((arch, *product) for product in products(algorithm, target))


def described(launch):
    """How a kernel is launched, in words."""
    def size(extents):
        return "x".join(map(str, extents))

    def value(a):
        if hasattr(a.spec, "words"):
            positions = a.spec.positions if hasattr(a.spec, "positions") else a.spec.places  # of older commits
            return f"table {zlib.crc32(a.spec.words.tobytes()):08x} {zlib.crc32(positions.tobytes()):08x} {a.spec.names}"
        return f"{a.value} {a.spec}" if a.spec is not None else f"{a.value}"
    how = [f"grid {size(launch.grid)}, block {size(launch.block)}, shared {launch.shared}, cluster {size(launch.cluster)}",
           *(name for name in ("cooperative", "dependent") if getattr(launch, name))]
    return "; ".join([", ".join(how), *(f"{a.type} {value(a)}" + f" + {a.offset}" * bool(a.offset) for a in launch.arguments)])


def planned(op, algorithm, archs=ARCHS, one=False):
    """(id, architecture, launch) of the launches of an algorithm; an exception in place of those that cannot be planned."""
    from representative import device
    try:
        every = list(chosen(op, algorithm, archs, one))
    except Exception as error:  # of what is recorded, whose record goes on
        yield f"{op}-{algorithm.name}", "", error
        return
    for arch, case, config in every:
        name = "-".join(filter(None, (op, algorithm.name, case.id, config and str(config).replace(" ", "_"), arch)))
        try:
            problem, target = case.problem(), device(arch)
            bound = algorithm.configured(problem, target).config if config is None else config
            launches = algorithm.build(problem, target, bound)
        except Exception as error:
            yield name, arch, error
            continue
        for number, launch in enumerate(launches):
            yield f"{name}-{number}", arch, launch


# ---- recording

def measured(launch, arch):
    """What a kernel compiles to: its numbers and its text."""
    code = sass.assembled(launch.kernel, launch.signature, arch)
    listing = list(code.listing)
    while listing and (listing[-1] == "NOP" or listing[-1].endswith(":")):  # up to a boundary
        listing.pop()
    opcodes = collections.Counter(line.split()[0] for line in code.lines)
    del opcodes["NOP"]
    return {"instructions": opcodes.total(), "registers": code.registers, "spilled": code.spilled, "stack": code.stack,
            "shared": code.shared, "opcodes": dict(sorted(opcodes.items())), "text": "\n".join([*listing, *code.data])}


def failed(error):
    """What stands in a record for a kernel that cannot be planned or compiled."""
    return {**dict.fromkeys(MEASURES, 0), "opcodes": {}, "text": f"failed: {type(error).__name__}: {error}"[:2000]}


def recorded(op, name, archs=ARCHS, one=False):
    """{id: row}, {hash: code} of an algorithm; each kernel is compiled once."""
    import dnnkern
    algorithm = next(a for a in dnnkern.dispatch.algorithms(op) if a.name == name)
    family, rows, codes, known = getattr(dnnkern, op).__module__.split(".")[1], {}, {}, {}
    for row, arch, launch in planned(op, algorithm, archs, one):
        made = {"of": f"{family}/{op}-{name}", "arch": arch, "kernel": "", "launch": "", "shared": 0}
        if isinstance(launch, Exception):
            key, code = row, failed(launch)
        else:
            key = sass.part("cache_key")(launch.kernel, launch.signature, arch)
            made |= {"kernel": launch.kernel.py_func.__name__, "launch": described(launch), "shared": launch.shared}
            if key not in known:
                try:
                    known[key] = measured(launch, arch)
                except Exception as error:
                    known[key] = failed(error)
            code = known[key]
        digest = hashlib.sha256(json.dumps(code).encode()).hexdigest()[:16]
        codes[digest] = code
        rows[row] = {**made, "key": key[:16], "code": digest}
    return rows, codes


def _task(arguments):
    return recorded(*arguments)


def every_algorithm():
    """(operation, name) of all that there are, in one order."""
    import cases

    from dnnkern import dispatch
    return [(op, algorithm.name) for op in cases.modules() for algorithm in dispatch.algorithms(op)]


def record(path, checkout=ROOT, archs=ARCHS, only="", jobs=None, one=False):
    """Write the record of a checkout; its head."""
    use(checkout)
    work = [(op, name, archs, one) for op, name in every_algorithm() if re.search(only, f"{op}-{name}")]
    head, rows, codes, started, before = state(checkout), {}, {}, time.time(), sum(os.times()[:4])
    # a process keeps all that it has compiled, 7 MB a kernel
    with multiprocessing.get_context("spawn").Pool(jobs or os.cpu_count(), use, (checkout,), maxtasksperchild=20) as pool:
        for found, texts in progress(pool.imap_unordered(_task, work), len(work)):
            rows.update(found)
            codes.update(texts)
        pool.close()
        pool.join()  # their times are known then
    head |= {"archs": list(archs), "only": only + " one" * one, "kernels": len({row["key"] for row in rows.values()}),
             "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(started)), "cpu_s": round(sum(os.times()[:4]) - before),
             "wall_s": round(time.time() - started)}
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished, whole = path.with_name(f".{path.name}.{os.getpid()}"), {**head, "rows": dict(sorted(rows.items())), "codes": codes}
    with lzma.open(unfinished, "wt", preset=2) as file:
        json.dump(whole, file)
    unfinished.replace(path)
    print("\n".join([*failures(whole), f"{path}: {head['kernels']} kernels in {len(rows)} launches of "
                     f"{len({row['of'] for row in rows.values()})} algorithms; {head['cpu_s']} CPU s, {head['wall_s']} s"]))
    return head


def progress(some, total):
    """A bar over what comes, where somebody watches it."""
    try:
        from tqdm import tqdm
    except ImportError:
        return some
    return tqdm(some, total=total, unit="algorithm", disable=not sys.stderr.isatty())


def state(checkout):
    """What a record is of: commit, changes, and versions of the tools."""
    versions = {"nvdisasm": sass.version(sass.tool("nvdisasm")), "python": sys.version.split()[0]}
    for name in TOOLS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "none"
    made_by = hashlib.sha256(b"".join((TESTS / name).read_bytes() for name in MADE_BY)).hexdigest()[:16]
    try:
        commit, dirty = git("rev-parse", "HEAD", at=checkout), bool(git("status", "--porcelain", at=checkout))
    except subprocess.CalledProcessError:  # a copy without git
        commit, dirty = "unknown", True
    return {"commit": commit, "dirty": dirty, "versions": versions, "made_by": made_by}


def git(*words, at=ROOT):
    return subprocess.run(["git", *words], cwd=at, capture_output=True, text=True, check=True).stdout.strip()


# ---- the commands

def read(path):
    with lzma.open(path, "rt") as file:
        return json.load(file)


def file_of(name):
    """A record's file: itself, or that of a commit."""
    path = pathlib.Path(name)
    return path if path.exists() else RECORDS / f"{git('rev-parse', f'{name}^{{commit}}')}.json.xz"


def is_record_of(path, expected, archs):
    """Whether a file is the whole record of a state, made as it would be made now."""
    if not path.exists():
        return False
    found = read(path)
    return not found["only"] and found["archs"] == list(archs) and all(found[name] == value for name, value in expected.items())


def of_commit(commit, archs, jobs):
    """The record of a commit, made in a checkout of its own unless there is one."""
    from planted import checkout
    commit = git("rev-parse", f"{commit}^{{commit}}")
    path = RECORDS / f"{commit}.json.xz"
    if not is_record_of(path, {**state(ROOT), "commit": commit, "dirty": False}, archs):
        with checkout(commit) as copy:
            subprocess.run([sys.executable, __file__, "record", path, "--checkout", copy, "--arch", ",".join(archs),
                            *(["--jobs", str(jobs)] if jobs else [])], check=True)
    return path


def tree(against, archs, jobs):
    """Record the working tree, unless it is a commit that has been recorded; with `against`, that too. Their files, the older first."""
    now = state(ROOT)
    path = RECORDS / f"{'working-tree' if now['dirty'] else now['commit']}.json.xz"
    older = [of_commit(against, archs, jobs)] if against else []
    if now["dirty"] or not is_record_of(path, now, archs):
        record(path, archs=archs, jobs=jobs)
    return [*older, path]


def main(words=None):
    sys.path.append(str(ROOT))  # where it is not installed
    parser = argparse.ArgumentParser(description="The machine code of a fixed list of problems, recorded and compared.")
    commands = parser.add_subparsers(dest="command", required=True)
    one, two, both = (commands.add_parser(name, help=text) for name, text in (
        ("record", "compile the list and write what it compiles to"), ("compare", "show what differs between two records"),
        ("tree", "record the working tree and compare it with a commit")))
    one.add_argument("file", type=pathlib.Path)
    one.add_argument("--checkout", type=pathlib.Path, default=ROOT, help="whose sources and cases; default: those of this one")
    one.add_argument("--only", default="", metavar="REGEX", help="the algorithms whose operation-name it finds")
    one.add_argument("--one", action="store_true", help=f"one problem of each algorithm for {EVERYTHING} too")
    two.add_argument("old", type=file_of, help="a record's file, or a commit that is recorded in build/machine-code")
    two.add_argument("new", type=file_of)
    both.add_argument("--against", metavar="COMMIT")
    for command in (one, both):
        command.add_argument("--jobs", type=int, help="processes; default: as many as the machine has cores")
        command.add_argument("--arch", default=",".join(ARCHS), help=f"default: {','.join(ARCHS)}")
    for command in (two, both):
        command.add_argument("--markdown", action="store_true", help="the table as a note has it")
        command.add_argument("--show", metavar="ID", help="the first kernel that differs and whose id has this in it")
    words = parser.parse_args(words)
    if words.command == "record":
        record(words.file.resolve(), words.checkout.resolve(), words.arch.split(","), words.only, words.jobs, words.one)
        return 0
    files = [words.old, words.new] if words.command == "compare" else tree(words.against, words.arch.split(","), words.jobs)
    return compare(*map(read, files), words.show, words.markdown) if len(files) == 2 else 0


if __name__ == "__main__":
    sys.exit(main())
