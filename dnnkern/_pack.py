"""The commands ``python -m dnnkern pack`` and ``cache``: kernels compiled on one machine for others."""
import contextlib
import sys
from pathlib import Path

from ._parser import program
from ._table import bytes_text, note, say, show

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
        choices |= choices_of(problems, device)
    note()
    size = packs.write(arguments.out, kernels, choices, archs=archs, set=arguments.set, versions=versions(), sources=sources())
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


def cache(arguments) -> int:
    """Import a kernel pack, or show what the cache has."""
    from .host import packs
    from .host.paths import cache_dir
    from .host.sources import package
    if arguments.action == "import":
        if arguments.file is None:
            raise ValueError("cache import: no file is given; expected a kernel pack, as `dnnkern pack` writes")
        try:
            found = packs.install(arguments.file, sources(), _archs_here())
        except (OSError, ValueError) as error:
            raise ValueError(f"cache import: {arguments.file} is refused: {error}") from None
        package()  # which is kept: the first call has not to read all files
        say(f"{found.header['kernels']} kernels and {found.header['choices']} choices for {', '.join(found.header['archs'])} are imported")
        return 0
    folder = cache_dir()
    if folder is None:
        say("There is no cache directory; DNNKERN_CACHE_DIR names one.")
        return 0
    rows = []
    for part, meaning in (("cubin", "kernels for GPUs"), ("cpu", "kernels for the processor"), ("packs", "imported kernel packs"),
                          ("find", "measurements")):
        files = [path for path in (folder / part).rglob("*") if path.is_file()]
        rows.append((part, meaning, len(files), bytes_text(sum(path.stat().st_size for path in files))))
    show(("folder", "what", "files", "size"), rows, title=str(folder), right=(2, 3))
    return 0


def add_cache_arguments(add):
    """The words of `cache`, by a parser's ``add_argument``."""
    add("action", nargs="?", choices=("import",), help="import: check a kernel pack and serve its kernels from now on")
    add("file", nargs="?", type=Path, help="the pack")


def _archs_here():
    """Architectures of the GPUs of this machine; None where there are none."""
    from .device import HOST_MEMORY
    from .host.device import device, device_count
    from .host.driver import CudaError
    try:
        return None if HOST_MEMORY else {device(index).arch for index in range(device_count())}
    except CudaError:  # compilation only: there is no driver
        return None
