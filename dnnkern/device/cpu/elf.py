"""Object code of x86-64 in memory, without LLVM, whose import takes longer than all the rest of a first call.

LLVM writes code for memory anywhere: addresses are whole 64-bit words, so that three kinds of relocations are all there is.
"""
import contextlib
import ctypes
import mmap
import platform
import struct

_HEADER, _SECTION, _SYMBOL, _RELOCATION = map(struct.Struct, ("<16sHHIQQQIHHHHHH", "<IIQQQQIIQQ", "<IBBHQQ", "<QQq"))
_MAGIC, _OBJECT, _X86_64 = b"\x7fELF\x02\x01", 1, 62
_BITS, _SYMBOLS, _ADDENDS, _ZEROS, _UNWIND = 1, 2, 4, 8, 0x70000001  # types of sections
_WRITE, _ALLOCATE, _EXECUTE = 1, 2, 4                                # their flags
_ABSOLUTE64, _RELATIVE32, _CALL32, _RELATIVE64 = 1, 2, 4, 24         # kinds of relocations
_PAGE = mmap.PAGESIZE
_ACCESS = {_EXECUTE: 5, 0: 1, _WRITE: 3}  # of mprotect: read and execute, read, read and write


class Unknown(ValueError):
    """Object code that has something which is not provided for."""


class Image:
    """Object code in memory as long as this object lives."""

    def __init__(self, code):
        try:
            self._load(code)
        except Unknown:
            raise
        except (struct.error, IndexError, OSError, ValueError, OverflowError, MemoryError) as error:
            raise Unknown(f"{type(error).__name__}: {error}") from None

    def address(self, name):
        """Address of a function or a global variable; `KeyError` where it has none of this name."""
        return self._symbols[name]

    def _load(self, code):
        ident, kind, machine, _, _, _, at, _, _, _, _, size, count, _ = _HEADER.unpack_from(code)
        if not ident.startswith(_MAGIC) or (kind, machine, size) != (_OBJECT, _X86_64, _SECTION.size) or platform.machine() != "x86_64":
            raise Unknown("no object code of this machine")
        sections = [_SECTION.unpack_from(code, at + k * size) for k in range(count)]
        addresses = self._allocated(code, sections)
        symbols = self._resolved(code, sections, addresses)
        for _, kind, _, _, start, nbytes, _, target, _, _ in sections:
            if kind == _ADDENDS and target in addresses:
                for offset, about, addend in _RELOCATION.iter_unpack(code[start:start + nbytes]):
                    self._relocate(addresses[target] + offset, about & 0xFFFFFFFF, symbols[about >> 32] + addend)
        libc = ctypes.CDLL(None, use_errno=True)
        for first, end, access in self._regions:
            if libc.mprotect(ctypes.c_void_p(self._base + first), ctypes.c_size_t(end - first), access):
                raise OSError(ctypes.get_errno(), "mprotect")

    def _allocated(self, code, sections):
        """{number of a section: its address}; sections of the same access lie together."""
        offsets, self._regions, end = {}, [], 0
        for access in (_EXECUTE, 0, _WRITE):
            begin = end
            for k, (_, kind, flags, _, _, nbytes, _, _, align, _) in enumerate(sections):
                if not flags & _ALLOCATE or kind == _UNWIND or flags & (_EXECUTE | _WRITE) != access:
                    continue
                if kind not in (_BITS, _ZEROS) or flags & ~(_WRITE | _ALLOCATE | _EXECUTE | 0x10000070):
                    raise Unknown(f"a section of type {kind} with flags {flags:#x}")
                offsets[k] = -(-end // max(align, 1)) * max(align, 1)
                end = offsets[k] + nbytes
            end = -(-end // _PAGE) * _PAGE
            if end > begin:
                self._regions.append((begin, end, _ACCESS[access]))
        if any(flags & _ALLOCATE and kind != _UNWIND and k not in offsets for k, (_, kind, flags, *_) in enumerate(sections)):
            raise Unknown("a section that is both written and executed")
        self._memory = mmap.mmap(-1, max(end, _PAGE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # a forked child has its own
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        for k, offset in offsets.items():
            _, kind, _, _, start, nbytes, *_ = sections[k]
            if kind == _BITS:
                if start + nbytes > len(code):
                    raise Unknown("a section that is cut off")
                self._memory[offset:offset + nbytes] = code[start:start + nbytes]
        return {k: self._base + offset for k, offset in offsets.items()}

    def _resolved(self, code, sections, addresses):
        """Addresses of the symbols, by number; the named ones are kept."""
        (_, _, _, _, start, nbytes, names, *_), = (s for s in sections if s[1] == _SYMBOLS)
        texts, found, self._symbols = sections[names], [], {}
        for at, _, _, section, value, _ in _SYMBOL.iter_unpack(code[start:start + nbytes]):
            begin = texts[4] + at
            name = code[begin:code.index(b"\0", begin)].decode() if at else ""
            if section in addresses:
                found.append(addresses[section] + value)
                self._symbols[name] = found[-1]
            else:  # of the process; what belongs to a section that is not loaded is never asked for
                found.append(_external(name) if name and section == 0 else 0)
        return found

    def _relocate(self, at, kind, value):
        offset = at - self._base
        if kind in (_RELATIVE32, _CALL32, _RELATIVE64):
            value -= at
        if kind in (_ABSOLUTE64, _RELATIVE64):
            struct.pack_into("<Q", self._memory, offset, value & (1 << 64) - 1)
        elif kind in (_RELATIVE32, _CALL32):
            struct.pack_into("<i", self._memory, offset, value)  # struct.error where it is out of reach
        else:
            raise Unknown(f"a relocation of kind {kind}")


def _external(name):
    """Address of a function of the C library, or of its mathematical part."""
    for library in (None, "libm.so.6"):
        with contextlib.suppress(OSError, AttributeError):
            return ctypes.cast(getattr(ctypes.CDLL(library), name), ctypes.c_void_p).value
    raise Unknown(f"no function {name!r} in this process")
