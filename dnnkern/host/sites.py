"""Sites: functions generated for calls that were made before, which take the place of `front.Operation`'s general path.

A site belongs to a binding. It says `MISS` unless the arrays are what they were when the call was bound, but for where they lie; where they
do not overlap, and are aligned as they were, it launches. Everything else, errors among it, is the general path's. The source is one for
each form of a call: which operands there are, which of them are the same object, what `out` is, which pairs must not overlap. For
``matmul(a, b, out=y)`` on torch tensors it is::

    def site(operands, out, scalars, stream):
        x0, x1 = operands
        if not guard(x0, x1, out):
            return MISS
        p0 = x0.data_ptr()
        p1 = x1.data_ptr()
        p2 = out.data_ptr()
        at = (p0, p1, p2)
        s0, s1 = scalars
        try:
            frame = local.frame
        except AttributeError:
            frame = local.frame = new_frame()
        if frame.at != at or frame.s0 is not s0 or frame.s1 is not s1:
            if (not (p0 and p1 and p2) or (p0 | p1 | p2) & 15 or -below0 < p2 - p0 < above0 or -below1 < p2 - p1 < above1) \\
                    and (p0, p1, p2) not in known:
                return MISS
            frame.at = None
            try:
                pack(frame.storage, 0, p0, p1, p2, 0, s0, s1)
            except OverflowError:
                return MISS
            if frame.at is None:
                frame.s0 = s0
                frame.s1 = s1
                frame.at = at
        if stream is None:
            stream = current(device)
        elif type(stream) is not int:
            stream = handle(stream)
        enqueue(frame, stream)
        return out

What the thread's frame holds is launched again where addresses and numbers are those of the call before. Numbers are compared by identity:
0.0 equals -0.0. While the frame is filled `frame.at` is None: an interrupt, or a call within it (a finalizer's), leaves nothing that is
taken for something else.
"""
import functools
import threading
from dataclasses import dataclass

from .dtypes import STORAGE, numpy_dtype
from .launch import Executable
from .memory import numba_array, numba_classes
from .tensor import Tensor

_COMPARED = 4  # pairs of arrays whose overlap is looked for at each call: to find addresses among those known is a look into much memory
_REMEMBERED = 256  # addresses of a site that have been looked at: layers of the same shapes, and allocators that go in circles


class Framework:
    """How sites look at arrays of a framework: pieces of source, and the values that they name."""
    stream = "0"
    """The handle of the current stream of `device`."""

    def referenced(self, arrays):
        """Of arrays whether their memory is reached through a reference; empty where none can be."""
        return ()

    def values(self, kind, arrays):
        """{name: value} of what `match` names for arrays like these; None where calls on them have no sites."""
        raise NotImplementedError

    def match(self, names, referenced):
        """Whether the arrays of these names are like those of `values`, but for their addresses."""
        raise NotImplementedError

    def accepts(self, values, arrays):
        """`match`, of arrays."""
        raise NotImplementedError

    def address(self, name, referenced=False):
        """An array's address."""
        raise NotImplementedError

    def allocator(self, kind, t, device):
        """A function that makes an array like a tensor on the current stream; None where `address` does not hold for it."""
        raise NotImplementedError


class Torch(Framework):
    """PyTorch's own tensors, where there are guards."""
    stream = "current(device)"

    def values(self, kind, arrays):
        guard = kind.guard(arrays)
        return guard and {"guard": guard, "current": kind.current}

    def match(self, names, referenced):
        return f"guard({', '.join(names)})"

    def accepts(self, values, arrays):
        return values["guard"](*arrays)

    def address(self, name, referenced=False):
        return f"{name}.data_ptr()"

    def allocator(self, kind, t, device):
        from .guards import make_allocator
        return make_allocator(kind.where, device, t.shape, t.strides, t.dtype)


class Numba(Framework):
    """Numba's device arrays, whose attributes Python has at hand. Those that Numba allocates, and their slices, have a reference to their
    memory, with the address among its attributes; to ask it for what the memory has is a call of Python."""

    def referenced(self, arrays):
        *_, reference, _, _ = numba_classes()
        return tuple(type(getattr(a, "gpu_data", None)) is reference for a in arrays)

    def values(self, kind, arrays):
        plain, pointer, reference, address, _ = numba_classes()
        if not all(type(a) is plain and type(a.gpu_data) in (pointer, reference) and type(a.gpu_data.device_pointer) is address
                   for a in arrays):
            return None
        values = {"plain": plain, "pointer": pointer, "reference": reference}
        for k, a in enumerate(arrays):
            values[f"shape{k}"], values[f"strides{k}"], values[f"dtype{k}"] = a.shape, a.strides, a.dtype
            values[f"context{k}"] = a.gpu_data.context
        return values

    def match(self, names, referenced):
        each = ("type({x}) is plain and {x}.shape == shape{k} and {x}.strides == strides{k} "
                "and ({x}.dtype is dtype{k} or {x}.dtype == dtype{k}) "
                "and type({x}.gpu_data) is {kind} and {x}.gpu_data.{memory} is context{k}")
        memory = {True: ("reference", "_view.context"), False: ("pointer", "context")}
        return " and ".join(each.format(x=x, k=k, kind=memory[indirect][0], memory=memory[indirect][1])
                            for k, (x, indirect) in enumerate(zip(names, referenced)))

    def accepts(self, values, arrays):
        return all(type(x) is values["plain"] and x.shape == values[f"shape{k}"] and x.strides == values[f"strides{k}"]
                   and x.dtype == values[f"dtype{k}"] and x.gpu_data.context is values[f"context{k}"] for k, x in enumerate(arrays))

    def address(self, name, referenced=False):
        return f"{name}.gpu_data.device_ctypes_pointer.value" if referenced else f"int({name}.gpu_data.device_pointer)"

    def allocator(self, kind, t, device):
        if STORAGE[t.dtype] == t.dtype or t.dtype == "float16":  # others come back as views
            return functools.partial(numba_array, t.shape, numpy_dtype(t.dtype), device, 0)


FRAMEWORKS = {"torch": Torch(), "numba": Numba()}
"""By `Kind.name`."""


@dataclass(frozen=True)
class Form:
    """What the source of a site depends on. Arrays are numbered, operands first.

    Attributes
    ----------
    framework : str
    operands : tuple of (int or None)
        Of each operand the first one that is the same object, most often itself; None where it is missing.
    outs : tuple of int
        The same of what `out` has; empty where it is not given.
    is_tuple : bool
        Whether `out` is a tuple.
    results : int
        How many outputs are made.
    pairs : tuple of (int, int)
        Arrays that must not overlap.
    is_aligned : bool
        Whether every array is aligned to 16 bytes.
    has_workspace : bool
    scalars : int
        How many run-time numbers there are.
    is_steady : bool
        Whether the plan is; otherwise `Executable.execute` does the rest.
    mapped : tuple of int
        Indices of the values of which a steady plan takes tensor maps.
    shifted : tuple of int
        Indices of the values of which a steady plan takes pointers at an offset.
    referenced : tuple of bool
        `Framework.referenced` of the arrays that are none of those before them.
    """
    framework: str
    operands: tuple
    outs: tuple
    is_tuple: bool
    results: int
    pairs: tuple
    is_aligned: bool
    has_workspace: bool
    scalars: int
    is_steady: bool
    mapped: tuple
    shifted: tuple
    referenced: tuple

    @property
    def names(self):
        """The variables of the arrays."""
        outs = [f"y{k}" for k in range(len(self.outs))] if self.is_tuple else ["out"] * len(self.outs)
        return [*(f"x{k}" for k in range(len(self.operands))), *outs]

    @property
    def first(self):
        """Of each array the first one that is the same object."""
        return self.operands + self.outs

    @property
    def own(self):
        """Numbers of the arrays that are none of those before them."""
        return [k for k, first in enumerate(self.first) if first == k]


def new_site(bound, operands, out, outs, addresses, sites, handle, MISS):
    """A site of a binding for calls like this one, which the general path has made. None where there can be none, or one of `sites` has
    come to know these addresses: arrays whose ranges overlap but whose elements do not are for the general path to judge.

    ``handle(stream)`` makes a handle of a stream's object; MISS is what a site returns for a call that is not its own.
    """
    kind, plan, arrays, count = bound.kind, bound.executable, (*operands, *outs), len(operands)
    given = [k for k, a in enumerate(arrays) if a is not None]
    if not isinstance(plan, Executable) or kind.name not in FRAMEWORKS:
        return None
    if any(bound.extents[k] == (0, 0) or not addresses[k] for k in given):
        return None
    if any(addresses[o] == addresses[k] and arrays[o] is not arrays[k] for o in given if o >= count for k in given):
        return None  # in place by another object, which the next one may not be
    first = tuple(None if a is None else next(i for i in given if arrays[i] is a) for a in arrays)
    own = [k for k, same in enumerate(first) if same == k]
    framework, own_arrays, at = FRAMEWORKS[kind.name], [arrays[k] for k in own], tuple(addresses[k] for k in own)
    low = [addresses[k] & -addresses[k] & 15 for k in own]
    form = Form(framework=kind.name, operands=first[:count], outs=first[count:], is_tuple=type(out) is tuple,
                results=0 if outs else len(bound.outputs), pairs=tuple((first[i], first[o]) for i, o, *_ in bound.apart),
                is_aligned=not any(low), has_workspace=bool(bound.workspace),
                scalars=len(plan.parameters) - plan.pointers, is_steady=plan.is_steady, mapped=plan.mapped if plan.is_steady else (),
                shifted=tuple(position for position, _ in plan.shifted) if plan.is_steady else (),
                referenced=framework.referenced(own_arrays))
    for site in sites:
        if site.bound is bound and site.form == form and framework.accepts(site.values, own_arrays):
            _remember(site.values["known"], at)
            return None
    values = framework.values(kind, own_arrays)
    if values is None:
        return None
    if plan.is_steady:
        values.update(local=threading.local(), new_frame=plan.new_frame, pack=plan.pack,
                      enqueue=plan.replay if plan.is_replayed else plan.enqueue)
        values.update({f"offset{k}": offset for k, (_, offset) in enumerate(plan.shifted)})
    else:
        values["execute"] = plan.execute
    values.update(device=bound.device, MISS=MISS, known={at}, remember=_remember, handle=handle)
    for k, (_, _, below, above) in enumerate(bound.apart):
        values[f"below{k}"], values[f"above{k}"] = below, above
    for k, bit in zip(own, low):
        values[f"mask{k}"], values[f"low{k}"] = (2 * bit - 1, bit) if bit else (15, 0)
    for k in range(form.results):
        values[f"empty{k}"] = framework.allocator(kind, bound.tensors[count + k], bound.device)
    if form.has_workspace:
        values["scratch"] = framework.allocator(kind, Tensor.packed((bound.workspace,), "uint8"), bound.device)
    if None in values.values():
        return None
    site = _maker(form, tuple(values))(**values)
    site.bound, site.form, site.values = bound, form, values
    return site


def _remember(known, at):
    """Add addresses to the known ones, whose number is bounded."""
    if len(known) >= _REMEMBERED:
        known.clear()
    known.add(at)


@functools.cache
def _maker(form, names):
    """A function that makes a site of this form, of the values that have these names in its source."""
    lines = [f"def make({', '.join(names)}):", "    def site(operands, out, scalars, stream):",
             *(f"        {line}" for line in source(form)), "    return site"]
    found = {}
    exec(compile("\n".join(lines), f"<{form}>", "exec"), found)
    return found["make"]


def source(form):
    """The lines of a site."""
    framework, names, own = FRAMEWORKS[form.framework], form.names, form.own
    pointers = [f"p{k}" for k in own]
    yield f"{''.join(f'{name}, ' for name in names[:len(form.operands)])}= operands"
    if form.is_tuple:
        yield f"if type(out) is not tuple or len(out) != {len(form.outs)}:"
        yield "    return MISS"
        yield f"{''.join(f'{name}, ' for name in names[len(form.operands):])}= out"
    unlike = [f"{name} is not {'None' if first is None else names[first]}"
              for k, (name, first) in enumerate(zip(names, form.first)) if first != k]
    if form.results or form.has_workspace:
        unlike.append("stream is not None")  # memory would be another stream's
    yield f"if {' or '.join([*unlike, f'not ({framework.match([names[k] for k in own], form.referenced)})'])}:"
    yield "    return MISS"
    found = [framework.address(names[k], *form.referenced[i:i + 1]) for i, k in enumerate(own)]
    made = [(f"r{k}", f"q{k}", f"empty{k}") for k in range(form.results)] + [("w", "room", "scratch")] * form.has_workspace
    is_repeatable, at = form.is_steady and not made, f"({''.join(f'{p}, ' for p in pointers)})"
    yield from (f"{p} = {address}" for p, address in zip(pointers, found))
    misaligned = f"({' | '.join(pointers)}) & 15" if form.is_aligned else " or ".join(f"p{k} & mask{k} != low{k}" for k in own)
    none = f"not ({' and '.join(pointers)})"
    overlap = [f"-below{k} < p{o} - p{i} < above{k}" for k, (i, o) in enumerate(form.pairs)]
    wrong = " or ".join([none, misaligned, *overlap])
    look = [f"if ({wrong}) and {at} not in known:", "    return MISS"]
    if is_repeatable or len(overlap) > _COMPARED:
        yield f"at = {at}"
    if len(overlap) > _COMPARED:
        look = ["if at not in known:", f"    if {wrong}:", "        return MISS", "    remember(known, at)"]
    find_stream = ["if stream is None:", f"    stream = {framework.stream}", "elif type(stream) is not int:", "    stream = handle(stream)"]
    numbers = [f"s{k}" for k in range(form.scalars)]
    values = ["0" if first is None else f"p{first}" for first in form.first]
    values += [f"q{k}" for k in range(form.results)] + ["room" if form.has_workspace else "0"]
    shifted = [f"{values[position]} + offset{k}" for k, position in enumerate(form.shifted)]
    given = f"{''.join(f'{value}, ' for value in values)}*scalars"
    fill = f"pack(frame.storage, 0, {', '.join([*values, *numbers, *shifted])})" if form.is_steady else f"execute(({given}), stream)"
    fill = ["try:", f"    {fill}", "except OverflowError:", "    return MISS"]
    if form.is_steady:
        if numbers:
            yield f"{''.join(f'{n}, ' for n in numbers)}= scalars"
        yield from ("try:", "    frame = local.frame", "except AttributeError:", "    frame = local.frame = new_frame()")
        if form.mapped:
            fill.append(f"{''.join(f'm{k}, ' for k in range(len(form.mapped)))}= frame.maps")
        for k, position in enumerate(form.mapped):
            fill += [f"if m{k}.address != {values[position]}:", f"    m{k}.set({values[position]})"]
    if is_repeatable:
        yield f"if {' or '.join(['frame.at != at', *(f'frame.{n} is not {n}' for n in numbers)])}:"
        yield from (f"    {line}" for line in (*look, "frame.at = None", *fill, "if frame.at is None:"))
        yield from (f"        frame.{name} = {name}" for name in (*numbers, "at"))
        yield from find_stream
    else:
        yield from (*look, *find_stream)
        for name, pointer, make in made:
            yield f"{name} = {make}()"
            yield f"{pointer} = {framework.address(name)}"
        yield from fill
    if form.is_steady:
        yield "enqueue(frame, stream)"
    yield f"return {'out' if form.outs else ', '.join(f'r{k}' for k in range(form.results))}"
