"""Check that an installed dnnkern is served by kernel packs: python .ci/served.py dist/*.pack

The packs are imported into an empty cache; then the kernels of `dnnkern demo`, which all sets have, come from them, and none is
compiled. The package must be an installed one, not the checkout's.
"""
import os
import sys
import tempfile
from pathlib import Path

os.environ["DNNKERN_DEVICE"] = "cpu"


def missing(pack) -> list:
    """Problems of the demo, with kernels that the pack lacks."""
    from dnnkern import demo, dispatch
    from dnnkern.__main__ import main
    from dnnkern.host.compile import is_packed
    from dnnkern.host.device import described
    if main(["cache", "import", str(pack)]):
        raise SystemExit(f"{pack} cannot be imported")
    arch = pack.stem.rpartition("-")[2]
    device, lacking = described(arch), []
    for problem in demo.problems():
        algorithm = dispatch.get_algorithm(problem.op, problem, device=device)
        for launch in algorithm.build(problem, device, algorithm.config):
            if not is_packed(launch.kernel, launch.signature, arch):
                lacking.append(f"{problem} by {algorithm}")
    return lacking


def main(names):
    """1 if a pack lacks a kernel."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DNNKERN_CACHE_DIR"] = folder
        import dnnkern
        if not Path(dnnkern.__file__).is_relative_to(sys.prefix):
            raise SystemExit(f"{dnnkern.__file__} is not installed in {sys.prefix}")
        found = {name: missing(Path(name)) for name in names}
    for name, lacking in found.items():
        print(f"{name}: the wheel {'would compile ' + ', '.join(lacking) if lacking else 'compiles no kernel of the demo'}")
    return int(not found or any(found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
