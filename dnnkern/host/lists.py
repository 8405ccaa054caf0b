"""The front end of operations on lists of arrays: hundreds of them, the same ones at every call.

To describe hundreds of arrays takes longer than many a step on them. So a list is remembered by the identities of its arrays: as long as
they live, lie where they lay, and are what they were (`Kind.guard`), it is what it was. What changed since is described anew, a list at a
time; a call whose lists have other addresses but the same shapes finds its plan again.

Of torch's tensors not even the identities are needed: a guard over all arrays of a call says in one call of C that they are as they were in
an earlier one, be they the same or the gradients of another step, and one pass of addresses where they lie (`_Site`).
"""
import functools
import weakref

import numpy as np

from ..device import HOST_MEMORY
from ..dispatch import check_choice
from ..preference import USED, of_context
from .arrays import alignment, kind_of
from .check import CHECKS
from .front import Operation, choice_key, stream_handle
from .launch import Executable
from .table import REMEMBERED
from .tensor import share_memory

_LIMIT = 1 << 10  # lists remembered by one operation


class _List:
    """A list as of its last use: the addresses of its arrays, the number of its description, and what says whether it still holds."""
    __slots__ = "ids", "addresses", "number", "alive", "watched", "guard", "__weakref__"

    def __init__(self, ids, arrays, addresses, number):
        self.ids, self.addresses, self.number, self.alive = ids, addresses, number, True
        self.guard, kinds = None, {kind_of(a) for a in arrays}
        if len(kinds) > 1:  # of several frameworks: described at each call
            self.alive, self.watched = False, ()
            return
        if kinds:
            self.guard = kinds.pop().guard(arrays)
        try:
            died = functools.partial(_died, weakref.ref(self))
            self.watched = [weakref.ref(a, died) for a in arrays]
        except TypeError:  # an object that nobody can watch
            self.alive = False

    def holds(self, arrays):
        """Whether these arrays, the same objects, are what they were, where they were."""
        return not self.ids or (self.alive and kind_of(arrays[0]).addresses(arrays) == self.addresses
                                and (self.guard is None or self.guard(*arrays)))


def _died(of, _):
    listed = of()
    if listed is not None:
        listed.alive = False


class _Site:
    """What a call on arrays of one kind was bound to, for calls on arrays that are alike: `guard` says so.

    `last` are the addresses of the last call, `known` those that have been looked at of late.
    """
    __slots__ = "guard", "bound", "data_ptr", "last", "known", "low"

    def __init__(self, guard, bound, data_ptr, addresses):
        self.guard, self.bound, self.data_ptr = guard, bound, data_ptr
        self.last, self.known, self.low = None, {}, np.array(addresses, np.int64) & 15

    def where(self, arrays, check):
        """The arrays' addresses, the same tuple for the same ones as before; None where they are not aligned as those of the call that was
        bound, or have no memory. ``check(bound, addresses)`` raises where they overlap."""
        addresses, last = tuple(map(self.data_ptr, arrays)), self.last
        if addresses == last:
            return last
        found = self.known.get(addresses)
        if found is None:
            numbers = np.fromiter(addresses, np.int64, len(addresses))
            if 0 in addresses or not np.array_equal(numbers & 15, self.low):
                return None
            check(self.bound, numbers)
            if len(self.known) >= REMEMBERED:
                self.known.clear()
            found = self.known[addresses] = addresses
        self.last = found
        return found


_SITES = 4  # of one form of a call, the latest first


class _Fixed(Operation):
    """The operation for lists of one length, each array an operand."""

    def _apart(self, extents, addresses, first):
        """Nothing: `ListOperation` looks at all pairs at once."""
        return ()


class ListOperation(Operation):
    """Front end of an operation on lists.

    Parameters
    ----------
    op : str
    lists : tuple of str
        Names of the lists, in the order of `step`'s; the first one is never missing.
    written : frozenset of str
        Lists that are updated in place, and single arrays that are results. They overlap nothing.
    singles : tuple of str
        Names of the arrays that there is one of.
    scalars : tuple of str
        As `Operation`'s.
    problem : callable(lists, singles, *parameters) -> problem
        `lists` are tuples of descriptors by name, `singles` descriptors by name; None for missing ones. The problem has `count`, the length
        of its lists, and `given`, the names of the lists and single arrays that are not missing.
    """

    def __init__(self, op, *, lists, written, singles=(), scalars=(), problem):
        super().__init__(op, operands=(), outputs=(), scalars=scalars, problem=problem)
        self.lists, self.singles, self.written = lists, singles, frozenset(written)
        self.fixed, self.listed, self.numbers, self.reach = {}, {}, {}, weakref.WeakKeyDictionary()

    def of(self, problem):
        """The operation on lists of this problem's length."""
        return self._of(problem.count, problem.given)

    def forget(self):
        super().forget()
        for operation in self.fixed.values():
            operation.forget()

    def step(self, lists, singles, parameters, scalars, workspace, stream, choice):
        """Run the operation on `lists` and `singles`, in the order of their names, None for a missing one."""
        form = None
        if workspace is None and not (HOST_MEMORY or CHECKS):
            arrays, form = self._form(lists, singles, parameters, choice)
            if self._step_again(arrays, form, scalars, stream):
                return
        arrays, key, addresses, lengths = [], [parameters, choice_key(self.function, choice)], [], []
        for name, some in zip(self.lists, lists):
            if some is None:
                key.append(None)
                lengths.append(None)
                continue
            if type(some) is not list and type(some) is not tuple:
                some = self._sequence(name, some)
            ids = tuple(map(id, some))
            listed = self.listed.get(ids)
            if listed is None or not listed.holds(some):
                listed = self._look(name, some, ids)
            key.append(listed.number)
            lengths.append(len(ids))
            arrays += some
            addresses += listed.addresses
        for name, a in zip(self.singles, singles):
            if a is not None:
                description, address = self._describe(name, a)
                key += description, alignment(address)
                arrays.append(a)
                addresses.append(address)
            else:
                key.append(None)
        if USED:
            key += of_context()
        key = tuple(key)
        try:
            bound = self.calls.get(key)
        except TypeError:  # as in `Operation.call`
            bound = None
        if bound is None:
            bound = self._bind_lists(key, lengths, singles, arrays, addresses, parameters, stream, choice)
        if bound is None:
            return
        room = None
        if workspace is not None:
            room = self._tensor("workspace", workspace)
            if room.nbytes < bound.workspace and choice.get("algo") is None:
                fixed = self._of(bound.problem.count, bound.problem.given)
                bound = fixed._bind_within(room.nbytes, key, tuple(arrays), (), addresses, parameters, stream, choice)
        self._run(bound, arrays, addresses, scalars, workspace, room, stream)
        if form is not None:
            self._add_site(form, bound, arrays, addresses)

    # ---- what is as it was

    def _form(self, lists, singles, parameters, choice):
        """All arrays, and what else a call is known by; the latter None where lists are something else."""
        arrays, form = [], [parameters, choice_key(self.function, choice)]
        for some in lists:
            if some is None:
                form.append(None)
            elif type(some) is list or type(some) is tuple:
                arrays += some
                form.append(len(some))
            else:
                return arrays, None
        for a in singles:
            if a is not None:
                arrays.append(a)
            form.append(a is None)
        if USED:
            form += of_context()
        return arrays, tuple(form)

    def _step_again(self, arrays, form, scalars, stream):
        """Run the operation as it was bound before; False where it was not for such arrays."""
        try:
            sites = self.sites.get(form, ())
        except TypeError:  # as in `Operation.call`
            return False
        for site in sites:
            addresses = site.where(arrays, self._check_apart) if site.guard(*arrays) else None
            if addresses is not None:
                break
        else:
            return False
        bound, kind = site.bound, site.bound.kind
        if stream is None:
            stream = kind.stream(bound.device)
        elif type(stream) is not int:
            stream = stream_handle(self.function, stream)
        try:
            if bound.workspace:
                scratch = kind.empty((bound.workspace,), "uint8", bound.device, stream)
                bound.executable.execute((*addresses, site.data_ptr(scratch), *scalars), stream)
            else:
                bound.executable.repeat(addresses, scalars, stream)
        except OverflowError:
            self._check_range(bound.problem, scalars)
            raise
        return True

    def _add_site(self, form, bound, arrays, addresses):
        """Let calls on such arrays be made by `_step_again`, where somebody can tell that they are."""
        bound.sites += 1
        if not isinstance(bound.executable, Executable) or bound.kind.data_ptr is None or bound.sites > _SITES or 0 in addresses:
            return
        guard = bound.kind.guard(arrays) if all(kind_of(a) is bound.kind for a in arrays) else None
        if guard is None or not guard(*arrays):  # one comes twice
            return
        site = _Site(guard, bound, bound.kind.data_ptr, addresses)
        with self.lock:
            if len(self.sites) >= _LIMIT:
                self.sites.clear()
            self.sites[form] = (site, *self.sites.get(form, ())[:_SITES - 1])

    # ---- what is new

    def _sequence(self, name, some):
        if hasattr(some, "__cuda_array_interface__") or hasattr(some, "shape") or not hasattr(some, "__iter__"):
            raise TypeError(f"{self.function}: {name} is a {type(some).__name__}; expected a list of arrays")
        return list(some)

    def _describe(self, name, a):
        try:
            return kind_of(a).describe(a)
        except (TypeError, ValueError, RuntimeError):
            self._tensor(name, a)
            raise

    def _look(self, name, some, ids):
        description, addresses = [], []
        try:
            if any([a is None for a in some]):
                raise TypeError(f"{self.function}: {name} has entries that are None")
            if some:
                description.append(kind_of(some[0]))
                addresses = description[0].describe_call(description, some)
        except (TypeError, ValueError, RuntimeError):
            for k, a in enumerate(some):  # which one it is
                self._tensor(f"{name}[{k}]", a)
            raise
        with self.lock:
            if max(len(self.listed), len(self.numbers)) >= _LIMIT:
                for known in (self.listed, self.numbers, self.calls):
                    known.clear()
            for old in [key for key, listed in self.listed.items() if not listed.alive]:
                del self.listed[old]
            number = self.numbers.setdefault(tuple(description), len(self.numbers))
            listed = self.listed[ids] = _List(ids, some, addresses, number)
        return listed

    def _of(self, count, given):
        fixed = self.fixed.get((count, given))
        if fixed is None:
            names, labels, updates = [], [], []
            for name in given:
                operands = [name] if name in self.singles else [f"{name}{k}" for k in range(count)]
                names += operands
                labels += [name] if name in self.singles else [f"{name}[{k}]" for k in range(count)]
                updates += operands if name in self.written else []
            problem = functools.update_wrapper(functools.partial(self._problem, count, given), self.make_problem)
            fixed = _Fixed(self.op, operands=tuple(names), outputs=(), scalars=self.scalars, labels=tuple(labels),
                           updates=frozenset(updates), problem=problem)
            fixed = self.fixed.setdefault((count, given), fixed)
        return fixed

    def _problem(self, count, given, tensors, out, *parameters, aliases):
        """The problem, of descriptors one after the other."""
        rest, lists, singles = list(tensors), dict.fromkeys(self.lists), dict.fromkeys(self.singles)
        for name in given:
            if name in lists:
                lists[name], rest = tuple(rest[:count]), rest[count:]
            else:
                singles[name], rest = rest[0], rest[1:]
        return self.make_problem(lists, singles, *parameters)

    def _bind_lists(self, key, lengths, singles, arrays, addresses, parameters, stream, choice):
        first, count = self.lists[0], lengths[0]
        if count is None:
            raise TypeError(f"{self.function}: {first}: got NoneType; expected a list of arrays")
        for name, length in zip(self.lists, lengths):
            if length not in (None, count):
                raise ValueError(f"{self.function}: {name} has {length} arrays, {first} has {count}; expected as many")
        check_choice(self.function, **choice)
        if not count:
            return self._algorithm(None, None, choice)
        given = tuple(n for n, some in zip((*self.lists, *self.singles), (*lengths, *singles)) if some is not None)
        fixed = self._of(count, given)
        bound = fixed._bind(key, tuple(arrays), (), addresses, parameters, stream, choice)
        with self.lock:
            self.calls[key] = bound
        return bound

    # ---- what happens at every call

    def _run(self, bound, arrays, addresses, scalars, workspace, room, stream):
        kind = bound.kind
        if stream is None:
            stream = kind.stream(bound.device)
        elif type(stream) is not int:
            stream = stream_handle(self.function, stream)
        if addresses != bound.apart_at:
            self._check_apart(bound, addresses)
            bound.apart_at = addresses
        if bound.executable is None:
            return
        scratch, values, executable = None, addresses, bound.executable
        if workspace is not None:
            self._check_workspace(bound, workspace, room, addresses)
        if bound.workspace:
            scratch = kind.empty((bound.workspace,), "uint8", bound.device, stream) if workspace is None else workspace
        if HOST_MEMORY:
            for label, x in zip(bound.names, arrays):
                if self._is_written(label):
                    self._check_writable(label, x)
            *values, at = self.host_views((*bound.names, "workspace"), (*arrays, scratch))
        else:
            at = 0 if scratch is None else kind_of(scratch).describe(scratch)[1]
        if CHECKS:
            results = [x for label, x in zip(bound.names, arrays) if self._is_written(label)]
            from .checked import Checked
            executable = Checked(CHECKS, self, bound, arrays, results, addresses)
        try:
            if HOST_MEMORY:
                self._check_range(bound.problem, scalars)
            executable.execute((*values, at, *scalars), stream)
        except OverflowError:
            self._check_range(bound.problem, scalars)
            raise

    def written_arrays(self, bound, addresses):
        return [(k, label, label in self.singles) for k, label in enumerate(bound.names) if self._is_written(label)]

    def _is_written(self, label):
        """Of a label such as params[3]."""
        return label.split("[")[0] in self.written

    def _check_apart(self, bound, addresses):
        """ValueError where an array that is written shares memory with another one."""
        reach = self.reach.get(bound)
        if reach is None:
            reach = self.reach[bound] = np.array(bound.extents, np.int64).T
        starts, ends = np.asarray(addresses, np.int64) + reach
        order = np.flatnonzero(ends > starts)
        order = order[np.argsort(starts[order], kind="stable")]
        if (starts[order][1:] >= np.maximum.accumulate(ends[order])[:-1]).all():
            return
        addresses = list(map(int, addresses))
        active = []  # arrays that end after the current one
        for k in order.tolist():
            active = [j for j in active if ends[j] > starts[k]]
            for j in active:
                some = [i for i in (j, k) if self._is_written(bound.names[i])]
                if some and share_memory(bound.tensors[j], addresses[j], bound.tensors[k], addresses[k]):
                    written = bound.names[some[-1]]
                    other = bound.names[j if some[-1] == k else k]
                    same = addresses[j] == addresses[k] and bound.tensors[j] == bound.tensors[k]
                    raise ValueError(f"{self.function}: {written}, which is written, {'is the same memory as' if same else 'overlaps'} "
                                     f"{other}")
            active.append(k)
