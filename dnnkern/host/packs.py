"""Kernel packs: files of compiled kernels and of choices of algorithms, made on one machine for others (``python -m dnnkern pack``,
``cache import``).

::

    MAGIC | length of the header, 4 bytes | SHA-256 of the header | header, JSON | index | entries, each compressed by LZMA

The header says what the pack is of, and has the SHA-256 of the index. The index has for each entry its key, where it lies, and its
SHA-256. So every byte is covered by a hash that is looked at before anything of the pack is used. An entry is a kernel, or the choices of
an operation. The key of a kernel (`compile.pack_key`) has its sources, configuration, parameter types and architecture in it, that of
choices (`chosen.pack_key`) all sources and the kind of device: what was made of other sources is not found.
"""
import bisect
import functools
import hashlib
import json
import lzma
import struct
import warnings
from pathlib import Path

from .paths import cache_dir, write_atomically

MAGIC = b"dnnkern pack 2\n"
ENTRY_POINTS = "dnnkern.packs"
_LENGTH, _ENTRY = struct.Struct("<I"), struct.Struct("<32sQI32s")  # of an entry: key, offset after the index, bytes, SHA-256
_FIXED = len(MAGIC) + _LENGTH.size + 32
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 1 << 20}]


class Broken(ValueError):
    """A file that is no whole pack."""


class Pack:
    """An open pack; `header` is what it is of.

    Parameters
    ----------
    path : Path

    Raises
    ------
    Broken
        With the reason.
    OSError
        It cannot be read.
    """

    def __init__(self, path):
        self.path = path
        with open(path, "rb") as file:
            fixed = file.read(_FIXED)
            if len(fixed) < _FIXED or not fixed.startswith(MAGIC):
                raise Broken("it does not begin as a kernel pack does")
            length, = _LENGTH.unpack_from(fixed, len(MAGIC))
            text = file.read(length)
            if hashlib.sha256(text).digest() != fixed[-32:]:
                raise Broken("its header is cut off, or not what was written")
            self.header = json.loads(text)
            self.index = file.read(self.header["entries"] * _ENTRY.size)
            if hashlib.sha256(self.index).hexdigest() != self.header["index"]:
                raise Broken("its index is cut off, or of another pack")
            self.start = file.tell()
            size = file.seek(0, 2)
        end = self.start + sum(nbytes for _, _, nbytes, _ in self._entries())
        if size != end:
            raise Broken(f"it has {size} bytes; expected {end}")

    def _entries(self):
        return _ENTRY.iter_unpack(self.index)

    def _find(self, key):
        """The entry of a key, or None."""
        size = _ENTRY.size
        at = bisect.bisect_left(range(len(self.index) // size), key, key=lambda k: self.index[k * size:k * size + 32]) * size
        return _ENTRY.unpack_from(self.index, at) if self.index[at:at + 32] == key else None

    def __contains__(self, key):
        return self._find(key) is not None

    def get(self, key) -> bytes | None:
        """What was packed under a key; None for nothing.

        Raises
        ------
        Broken
            It is not what was packed.
        """
        entry = self._find(key)
        if entry is None:
            return None
        with open(self.path, "rb") as file:
            return self._unpacked(file, *entry)

    def _unpacked(self, file, key, offset, nbytes, digest):
        file.seek(self.start + offset)
        packed = file.read(nbytes)
        if hashlib.sha256(packed).digest() != digest:
            raise Broken(f"entry {key.hex()[:16]} is not what was packed")
        return lzma.decompress(packed, lzma.FORMAT_RAW, filters=_FILTERS)

    def check(self):
        """Read all entries.

        Raises
        ------
        Broken
            One is not what was packed.
        """
        with open(self.path, "rb") as file:
            for entry in self._entries():
                self._unpacked(file, *entry)


def write(path, kernels, choices={}, **header):
    """Write a pack.

    Parameters
    ----------
    path : Path
    kernels : {bytes: bytes}
        What to pack, by key.
    choices : {bytes: bytes}
        Lines of choices, by key.
    **header
        What the pack is of.

    Returns
    -------
    int
        Its bytes.
    """
    entries, packed, offset = [], [], 0
    contents = {**kernels, **choices}
    for key in sorted(contents):
        packed.append(lzma.compress(contents[key], lzma.FORMAT_RAW, filters=_FILTERS))
        entries.append(_ENTRY.pack(key, offset, len(packed[-1]), hashlib.sha256(packed[-1]).digest()))
        offset += len(packed[-1])
    index = b"".join(entries)
    text = json.dumps({**header, "kernels": len(kernels), "choices": sum(lines.count(b"\n") + 1 for lines in choices.values()),
                       "entries": len(entries), "index": hashlib.sha256(index).hexdigest()}, sort_keys=True).encode()
    data = b"".join([MAGIC, _LENGTH.pack(len(text)), hashlib.sha256(text).digest(), text, index, *packed])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return len(data)


# ---- what is served

def folder():
    """Where imported packs lie; None where there is no cache directory."""
    found = cache_dir()
    return None if found is None else found / "packs"


def install(path, sources, archs=None) -> Pack:
    """Import a pack: check all of it, and copy it into the cache.

    Parameters
    ----------
    path : Path
    sources : str
        Hash of the sources that kernels are made of here.
    archs : collection of str, optional
        Architectures of the GPUs here; default: any.

    Raises
    ------
    ValueError
        With the reason why the pack is refused.
    OSError
        It cannot be read, or not be copied.
    """
    pack = Pack(path)
    pack.check()
    if pack.header["sources"] != sources:
        raise ValueError(f"it is of dnnkern {pack.header['versions']['dnnkern']} with other sources than these: none of its kernels would "
                         "be used")
    if archs is not None and not set(archs) & set(pack.header["archs"]):
        raise ValueError(f"it is for {', '.join(pack.header['archs'])}; here is {', '.join(sorted(archs))}")
    target = folder()
    if target is None:
        raise ValueError("there is no cache directory to import it into; set DNNKERN_CACHE_DIR to a folder that can be written")
    data = path.read_bytes()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        kept = write_atomically(target / f"{hashlib.sha256(data).hexdigest()[:32]}.pack", data)
    if not kept:
        raise OSError(str(said[-1].message))
    forget()
    return pack


def forget():
    """Look for packs again."""
    _served.cache_clear()


def _imported():
    """Files of the packs that are imported."""
    where = folder()
    return [] if where is None else sorted(where.glob("*.pack"))


def _installed():
    """Files of the packs that installed distributions have."""
    from importlib.metadata import entry_points
    for point in entry_points(group=ENTRY_POINTS):
        try:
            given = point.load()
            given = given() if callable(given) else given
            yield from map(Path, [given] if isinstance(given, (str, Path)) else given)
        except Exception as error:  # of a distribution that is none of ours: it must not end the call
            warnings.warn(f"dnnkern: {point.name} of the entry points {ENTRY_POINTS} has no pack ({type(error).__name__}: {error})",
                          RuntimeWarning, stacklevel=2)


@functools.cache
def _served(paths):
    """The whole ones of the packs that `paths` lists."""
    found = []
    for path in paths():
        try:
            found.append(Pack(path))
        except (OSError, ValueError, KeyError, TypeError) as error:
            _refuse(path, error)
    return found


def _having(key):
    """The packs that have a kernel, with its key; `key()` is it, or None, and is asked for only if there are packs."""
    wanted = None
    for paths in (_imported, _installed):  # to ask for those takes longer
        if packs := _served(paths):
            wanted = wanted or key()
            if wanted is None:
                return
            yield from ((pack, wanted) for pack in packs if wanted in pack)


def _refuse(path, error):
    warnings.warn(f"dnnkern: kernel pack {path} is refused: {error}", RuntimeWarning, stacklevel=2)


def has(key) -> bool:
    """Whether a pack has a kernel; `key()` is its key, or None for a kernel that no pack can have."""
    return next(_having(key), None) is not None


def get(key) -> bytes | None:
    """A kernel of a pack; None where no pack has it. `key` is as for `has`."""
    for pack, wanted in _having(key):
        try:
            return pack.get(wanted)
        except (OSError, Broken) as error:
            _refuse(pack.path, error)
    return None


__all__ = ["Broken", "Pack", "forget", "get", "has", "install", "write"]
