"""The command ``dnnkern pack``: kernels compiled on one machine for others."""
import contextlib
import sys
from pathlib import Path

from ._output import document
from ._parser import program
from ._table import bytes_text, note, progress, say
from .host.paths import check_target

HELP = """Compile the kernels of a set of problems into a kernel pack, a file for other machines: `cache import` serves it there. It has
the choices of algorithms too, for GPUs with as many multiprocessors as that which the kernels are made for. No GPU is
needed; the sets are those of the benches, in a source checkout. An installed distribution serves packs by entry points `dnnkern.packs`:
each is the path of a file, or several, or a function that gives them."""


def add_arguments(add):
    """The options of `pack`, by a parser's ``add_argument``."""
    add("--arch", required=True, metavar="ARCH", help="architectures to compile for, separated by commas: sm_80,sm_90a,sm_100a")
    add("--set", default="common", metavar="NAME", help="the problems of a set of the benches; default: common, all that are usual")
    add("--op", metavar="OP", help="only those of one operation")
    add("--out", required=True, type=Path, metavar="FILE", help="the pack")
    add("--jobs", type=int, metavar="N", help="kernels compiled at once (default: the cores)")


def pack(arguments) -> int:
    """Write a pack; 1 if it lacks kernels that could not be compiled."""
    from ._warm import set_of
    from .host import packs
    from .host.compiler import Job
    from .host.device import described
    from .host.paths import cache_dir
    from .host.compile import versions
    from .warming import compile_jobs
    if arguments.jobs is not None and arguments.jobs < 1:
        raise ValueError(f"pack: --jobs {arguments.jobs}; expected 1 or more")
    check_target("pack", arguments.out, makes_folders=True)
    archs, problems, folder = arguments.arch.split(","), set_of(arguments.set, arguments.op), cache_dir()
    devices = [described(arch) for arch in archs]
    if folder is None:
        raise ValueError("pack: there is no cache directory to compile into; set DNNKERN_CACHE_DIR to a folder that can be written")
    kernels, choices, failed = {}, {}, {}
    for device in devices:
        files = {}
        jobs = [Job(each.op, each, device) for each in problems if not each.is_empty]
        compiled = compile_jobs(jobs, workers=arguments.jobs, files=files, progress=lambda compiled: note(
            f"{device.arch}: {compiled.done + len(compiled.failed)} of {compiled.missing} kernels compiled"))
        failed |= compiled.failed
        for name, key in files.items():
            if name not in compiled.failed and (folder / name).is_file():
                kernels[bytes.fromhex(key)] = (folder / name).read_bytes()
        with progress(f"{device.arch}: choosing algorithms"):
            choices |= choices_of(problems, device)
    note()
    size = packs.write(arguments.out, kernels, choices, archs=archs, set=arguments.set, versions=versions(), sources=sources())
    if arguments.json:
        document("pack", file=str(arguments.out), archs=archs, set=arguments.set, problems=len(problems), kernels=len(kernels), bytes=size,
                 failed=failed)
    say(f"{arguments.out}: {len(kernels)} kernels of {len(problems)} problems for {', '.join(archs)}, {bytes_text(size)}")
    for what, why in failed.items():
        print(f"{program()}: {what}: {why}", file=sys.stderr)
    return int(bool(failed))


def choices_of(problems, device) -> dict:
    """{key: lines} of what is chosen for problems on a device."""
    from .dispatch import NotSupported, line_for_packs
    from .host.chosen import pack_key
    lines = {}
    for problem in problems:
        if not problem.is_empty:
            with contextlib.suppress(NotSupported):
                lines.setdefault(problem.op, {})[line_for_packs(problem, device)] = None
    return {pack_key(op, device): b"\n".join(some) for op, some in lines.items()}


def sources() -> str:
    """Hash of all sources of the package that kernels can be made of."""
    from .host.sources import HOST, PACKAGE, digest
    files = (path for path in sorted(PACKAGE.rglob("*.py")) if not path.relative_to(PACKAGE.parent).as_posix().startswith(HOST))
    return digest(*files)
