"""Versions of installed packages, read from their metadata: `importlib.metadata`, to be imported, takes longer than all else of a key."""
import contextlib
import functools
import os
import sys

# Other packages that have the same: those of CUDA 12.
WHEELS = {"nvidia-nvvm": ("nvidia-cuda-nvcc-cu12",), "nvidia-nvjitlink": ("nvidia-nvjitlink-cu12",)}


def installed(name) -> str | None:
    """Version of a package, of a part of the toolkit whichever wheel it is from; of several wheels all; None of none."""
    return ", ".join(filter(None, map(_version, (name, *WHEELS.get(name, ()))))) or None


@functools.cache
def versions() -> dict:
    """Versions that a cubin, or a measured time, depends on; "system" is a toolkit that did not come as wheels."""
    names = "dnnkern", "numba-cuda", "numba", "llvmlite", "nvidia-nvvm", "nvidia-nvjitlink", "cuda-core"
    return {name: installed(name) or ("source" if name == "dnnkern" else "system") for name in names}


@functools.cache
def _folders():
    """({package: folder of its metadata}, whether no other package can be installed), the first on the path of each."""
    found, all_listed = {}, True
    for entry in dict.fromkeys(sys.path):
        try:
            names = os.listdir(entry or ".")
        except FileNotFoundError:
            continue
        except OSError:  # an archive
            all_listed = False
            continue
        for name in names:
            package, _, kind = name.rpartition(".")
            if kind in ("dist-info", "egg-info", "egg-link"):
                found.setdefault(package.partition("-")[0].replace(".", "_").lower(), os.path.join(entry, name))
    return found, all_listed


def _version(package):
    folders, all_listed = _folders()
    folder = folders.get(package.replace("-", "_").lower())
    if folder is None and all_listed:
        return None
    for part in ("METADATA", "PKG-INFO"):  # of a wheel, of a checkout
        with contextlib.suppress(OSError, TypeError), open(os.path.join(folder, part), encoding="utf-8") as file:
            for line in file:
                if line.startswith("Version:"):
                    return line.partition(":")[2].strip()
    import importlib.metadata
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
