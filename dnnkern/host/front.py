"""The front end of every public function: from a call to its plan, checks of the arrays themselves, allocation, execution.

A call is looked up under what the arrays say of themselves (shape, strides, dtype, device, misalignment) and the parameters. Only a call
never seen before becomes a problem, is validated, dispatched and compiled.
"""
import functools
import inspect
import math
import threading

from ..device import HOST_MEMORY
from ..device._fork import in_forked_child
from ..dispatch import CHOICE, NotSupported, check_choice, declare, get_algorithm, named, when_choices_change
from ..dispatch import bound as noted
from ..preference import RECORDING, USED, of_context, value_of
from .arrays import KIND_OF_TYPE, kind_of
from .check import CHECKS
from .device import device as device_of
from .device import on_device
from .executable import make_executable
from .last import as_given, is_last
from .repeat import IS_TOLD, repeatable
from .scalars import integer
from .streams import stream_handle
from .tensor import Tensor, share_memory

MISS = object()
"""What a site returns for a call that is not its own."""
FOLLOWERS = []
"""Functions that are told of each call, of any thread: ``f(operation, site or None, operands, out, scalars, results)``."""
_LIMIT = 1 << 16  # raw calls remembered by one operation; beyond it all are bound, and planned, anew
_FORMS = 1 << 12  # forms of one operation's calls that have sites
_SITES = 8  # of one form of a call, the latest first
_ATTEMPTS = 64  # calls of one binding through the general path, each of which is a site's afterwards where there can be one
_LARGEST = 3.4028235677973366e38  # of the doubles that float32 rounds to a finite number
_KEYWORDS = tuple(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default) for name, default in CHOICE.items())


def public(function):
    """Decorate a public function, whose ``**choice`` selects the algorithm: its signature shows the keywords of `dispatch.CHOICE`.

    They are read where a new call is bound, once; most calls give none, and pay for an empty dict.
    """
    signature = inspect.signature(function)
    *given, last = signature.parameters.values()
    function.__signature__ = signature.replace(parameters=[*given, *_KEYWORDS, *([] if last.name == "choice" else [last])])
    return repeatable(function) if IS_TOLD else function


def choice_key(function, choice):
    """The keywords that select the algorithm, as part of a key; 0 is not False. A limit in `choice` becomes an int."""
    if not choice:
        return None
    limit = choice.get("workspace_limit")
    if limit is not None and type(limit) is not int:
        choice["workspace_limit"] = integer(function, "workspace_limit", limit, 0)
    return (*choice.items(), *map(type, choice.values()))


class Bound:
    """A resolved call: its problem, plan, outputs, and the bytes that its operands span.

    `apart` are the pairs of arrays that must not overlap, `apart_at` the addresses at which they last did not. `sites` is how many calls
    have asked for a site, the first one not counted. `viewed` has for each output whether it is made with channels last and viewed with
    channels first.
    """
    __slots__ = ("problem", "algorithm", "executable", "outputs", "viewed", "workspace", "names", "tensors", "extents", "apart",
                 "apart_at", "kind", "device", "sites", "__weakref__")

    def __init__(self, **fields):
        self.sites = -1
        for name, value in fields.items():
            setattr(self, name, value)


class Operation:
    """Front end of one operation.

    Parameters
    ----------
    op : str
    operands : tuple of str
        Names of the input arrays, in the order of `call`'s tuple.
    outputs : tuple of str
        Names of the output arrays in the plan.
    scalars : tuple of str
        Names of the run-time numbers, of the problem's `scalar_type`, or of what its `scalar_types`, {name: type}, says.
    problem : callable(tensors, outs, *parameters, aliases=frozenset) -> problem
        `tensors` are the operands' descriptors, `outs` those of `out` or None, `aliases` the names of operands that are exactly `out`.
        The problem has `outputs` (tensors), `is_empty` and `scalar_type`.
    in_place : frozenset of str
        Operands that may be exactly `out`.
    updates : frozenset of str
        Operands that are written as well; they overlap nothing.
    check_values : callable(problem, {operand: array}), optional
        Raises where arrays of indices hold what they must not; runs before every call under DNNKERN_CHECK=values.
    leaves : callable(problem, {operand: array}), optional
        {output: index of the elements that the operation does not write}, for DNNKERN_CHECK=unwritten.
    function : str, optional
        The public function's name in messages; default: `op`.
    labels : tuple of str, optional
        The operands' names in messages; default: `operands`.
    """

    def __init__(self, op, *, operands, outputs, scalars=(), problem, in_place=frozenset(), updates=frozenset(), check_values=None,
                 leaves=None, function=None, labels=None):
        self.op, self.operands, self.outputs, self.scalars, self.make_problem = op, operands, outputs, scalars, problem
        self.updates, self.leaves = updates, leaves
        self.in_place, self.check_values, self.function = in_place, check_values, function or op
        self.labels = operands if labels is None else labels
        self.calls, self.plans, self.sites, self.fused = {}, {}, {}, {}
        self._unlock()
        in_forked_child(self._unlock)
        declare(self, problem.__module__.split(".")[1])
        when_choices_change(self.calls.clear)
        when_choices_change(self.sites.clear)

    def _unlock(self):
        self.lock = threading.Lock()

    def of(self, problem):
        """The operation with the operands of this problem: itself, unless its operands are lists or a program has some (see
        `engine.programs`). Parameters of its calls are then the problem, of whatever tensors, and nothing else."""
        names = getattr(problem, "extra_names", ())
        if not any(names) and not getattr(problem, "prologues", None) and getattr(problem, "score_mod", None) is None:
            return self
        outputs = getattr(problem, "output_names", None) or self.outputs + names[1]  # which has not those that this one lacks
        fused = self.fused.get((names, outputs))
        if fused is None:
            more, _, scalars = names
            make = functools.update_wrapper(functools.partial(_again, self.operands + more, outputs), self.make_problem)
            fused = _Fused(self.op, operands=self.operands + more, outputs=outputs, scalars=self.scalars + scalars,
                           problem=make, in_place=self.in_place, updates=self.updates - set(getattr(problem, "over", ())),
                           check_values=self.check_values, leaves=self.leaves, function=self.function, labels=self.labels + more)
            fused = self.fused.setdefault((names, outputs), fused)
        return fused

    def forget(self):
        """Drop all cached choices of algorithms."""
        with self.lock:
            self.calls.clear()
            self.sites.clear()
        for fused in self.fused.values():
            fused.forget()

    def call(self, operands, out, parameters, scalars, workspace, stream, choice):
        """Run the operation; returns the output, or the tuple of outputs.

        A call like an earlier one is made by a function generated for such (see `sites`), others by `_call`.

        `parameters` compare equal only where they are the same: what might be 1, 1.0 or True was made one of them by `host.scalars`.
        `choice` are the keywords that `dispatch.check_choice` takes. `operands` are in the order of `self.operands`; None is one that is
        missing, and may be left out at the end of the tuple, which spares each call the look at it.
        """
        form, sites = None, ()
        if workspace is None:
            try:
                form = operands[0].shape, parameters, len(operands), out is None
                if choice:
                    form += choice_key(self.function, choice)
                if USED:
                    form += of_context()
                sites = self.sites.get(form, ())
            except Exception:  # of an array or a parameter that is none: `_call` says which
                form = None
        for site in sites:
            results = site(operands, out, scalars, stream)
            if results is not MISS:
                for follow in FOLLOWERS:
                    follow(self, site, operands, out, scalars, results)
                return results
        for follow in FOLLOWERS:
            follow(self, None, operands, out, scalars, None)
        return self._call(operands, out, parameters, scalars, workspace, stream, choice, form)

    # ---- what happens where there is no site

    def _call(self, operands, out, parameters, scalars, workspace, stream, choice, form):
        outs = ()
        try:
            kind = KIND_OF_TYPE.get(type(operands[0])) or kind_of(operands[0])
            if out is None:
                key = [kind, parameters, choice_key(self.function, choice)]
                addresses = kind.describe_call(key, operands)
            else:
                outs = out if type(out) is tuple and out else (out,)
                key = [kind, parameters, choice_key(self.function, choice), True]
                addresses = kind.describe_call(key, operands + outs)
                for address in addresses[len(operands):]:
                    key.append(addresses.index(address))  # which operand, if any, the output is
        except (TypeError, RuntimeError):  # torch: a sparse tensor has no address
            self._name_the_culprit(operands, outs)
            raise
        if USED:
            key += of_context()
        key = tuple(key)
        try:
            bound = self.calls.get(key)
        except TypeError:  # something in it has no hash, and is nothing that an operation takes: binding says what
            bound = None
        if bound is None:
            bound = self._bind(key, operands, outs, addresses, parameters, stream, choice)
        if workspace is not None:
            room = self._tensor("workspace", workspace)
            if room.nbytes < bound.workspace and choice.get("algo") is None:
                bound = self._bind_within(room.nbytes, key, operands, outs, addresses, parameters, stream, choice)
        kind = bound.kind
        if stream is None:
            stream = kind.stream(bound.device)
        elif type(stream) is not int:
            stream = stream_handle(self.function, stream)
        if bound.apart:
            if addresses != bound.apart_at:
                for i, o, below, above in bound.apart:
                    if -below < addresses[o] - addresses[i] < above:
                        self._overlap(bound, addresses, i, o)
                bound.apart_at = addresses[:]
        if outs:
            results = outs
        else:
            results = tuple([kind.empty(t.shape, t.dtype, bound.device, stream) for t in bound.outputs])
            if bound.viewed:
                results = tuple([kind.to_first(r) if view else r for r, view in zip(results, bound.viewed)])
            addresses += [kind_of(r).describe(r)[1] for r in results]
        executable = bound.executable
        if executable is not None:
            scratch = None
            if bound.workspace:
                if workspace is None:
                    scratch = kind.empty((bound.workspace,), "uint8", bound.device, stream)
                    addresses.append(kind_of(scratch).describe(scratch)[1])
                else:
                    scratch = workspace
                    addresses.append(self._check_workspace(bound, scratch, room, addresses))
            else:
                if workspace is not None:
                    self._check_workspace(bound, workspace, room, addresses)
                addresses.append(0)
            if CHECKS:
                from .checked import Checked
                executable = Checked(CHECKS, self, bound, operands, results, addresses)
            if HOST_MEMORY:
                for name, x in (*(("out", x) for x in outs), *self._updated(operands)):
                    self._check_writable(name, x)
                addresses = self.host_views((*bound.names, "workspace"), (*operands, *results, scratch))
                self._check_range(bound.problem, scalars)
            try:
                executable.execute((*addresses, *scalars), stream)
            except OverflowError:
                self._check_range(bound.problem, scalars)
                raise
        if kind.finishes:
            results = tuple([kind.finish(r, stream) for r in results])
        if bound.sites < _ATTEMPTS and form is not None:
            self._add_site(form, bound, operands, out, outs, addresses)
        return results[0] if len(results) == 1 else results

    def _add_site(self, form, bound, operands, out, outs, addresses):
        """Let a function of their own make calls like this one, from the second on."""
        bound.sites += 1
        if HOST_MEMORY or CHECKS or not bound.sites:
            return
        from .sites import new_site  # a process's first call needs none
        site = new_site(bound, operands, out, outs, addresses, self.sites.get(form, ()), functools.partial(stream_handle, self.function),
                        MISS)
        if site is not None:
            with self.lock:
                if len(self.sites) >= _FORMS:
                    self.sites.clear()
                self.sites[form] = (site, *self.sites.get(form, ())[:_SITES - 1])

    # ---- what happens once for each new call

    def _name_the_culprit(self, operands, outs):
        for name, x in (*zip(self.labels, operands), *(("out", x) for x in outs)):
            if x is not None or name == self.labels[0]:
                self._tensor(name, x)

    def _algorithm(self, problem, device, choice):
        """The algorithm of a call; None if there is nothing to compute."""
        try:
            if problem is not None and not problem.is_empty:
                return get_algorithm(self.op, problem, device=device, **choice)
            if choice.get("algo") is not None:
                named(self.op, choice["algo"])
            return None
        except NotSupported as error:
            if self.function == self.op:
                raise
            raise NotSupported(f"{self.function}: {error}") from None

    def _bind_within(self, nbytes, key, operands, outs, addresses, parameters, stream, choice):
        """The binding of a call whose workspace of so many bytes is too small for the algorithm it would have."""
        key = *key, ("workspace", nbytes)
        limit = choice.get("workspace_limit")
        limit = nbytes if limit is None else min(limit, nbytes)
        return self.calls.get(key) or self._bind(key, operands, outs, addresses, parameters, stream, {**choice, "workspace_limit": limit})

    def _bind(self, key, operands, outs, addresses, parameters, stream, choice):
        check_choice(self.function, **choice)
        if outs and len(outs) != len(self.outputs):
            raise ValueError(f"{self.function}: out has {len(outs)} arrays; expected {len(self.outputs)} ({', '.join(self.outputs)})")
        kind = kind_of(operands[0])
        index = self._one_device(operands, outs)
        tensors = tuple(None if x is None else self._tensor(name, x) for name, x in zip(self.labels, operands))
        out_tensors = tuple(self._tensor("out", x) for x in outs)
        aliases = frozenset(name for name, x, address in zip(self.operands, operands, addresses)
                            if x is not None and address and address in addresses[len(operands):])
        missing = (None,) * (len(self.operands) - len(operands))
        problem = self.make_problem(tensors + missing, (out_tensors if len(self.outputs) > 1 else out_tensors[0]) if outs else None,
                                    *parameters, aliases=aliases)
        outputs, last = problem.outputs, is_last(parameters)
        if last:
            outputs = as_given(outputs, tensors[0].ndim)
        extents = [(0, 0) if t is None else t.extent for t in (*tensors, *outputs)]
        for alias in aliases - self.in_place:
            if tensors[self.operands.index(alias)].size:
                able = [label for name, label in zip(self.operands, self.labels) if name in self.in_place and label != "out"]
                raise ValueError(f"{self.function}: out is the same memory as {self._label(alias)}; in place it works with "
                                 f"{', '.join(able) or 'nothing'}")
        for alias in aliases & self.in_place:
            t = tensors[self.operands.index(alias)]
            if t.size and t not in outputs:
                raise ValueError(f"{self.function}: out begins where {self._label(alias)} does but is {outputs[0]}, "
                                 f"{self._label(alias)} is {t}; in place they must be exactly the same")
        for name, x in (*(("out", x) for x in outs), *self._updated(operands)):
            self._check_writable(name, x)
        kind.bound(problem)
        if last and not outs and kind.to_first is None:
            raise TypeError(f"{self.function}: layout is 'channels_last', and {kind.name} arrays are packed; expected layout 'NHWC'")
        device = device_of(index)
        if not outs and (size := sum(t.nbytes for t in problem.outputs)) > device.memory:
            raise ValueError(f"{self.function}: out would have shape {problem.outputs[0].shape}, {size} bytes in all; the device has "
                             f"{device.memory}")
        noted(problem)
        algorithm = self._algorithm(problem, device, choice)
        if algorithm is None:
            executable, need = None, 0
        else:
            if USED and (recorder := value_of(RECORDING)) is not None:
                fresh = () if outs else range(len(operands), len(operands) + len(self.outputs))
                executable = recorder.executable(self, problem, algorithm, device, choice, fresh)
            else:
                executable = self._executable(problem, algorithm, device, stream, kind, len(operands))
            need = algorithm.workspace(problem, device, algorithm.config)
        bound = Bound(problem=problem, algorithm=algorithm, executable=executable, outputs=problem.outputs, workspace=need,
                      viewed=last and not outs and tuple(t is not o for t, o in zip(outputs, problem.outputs)),
                      names=self.labels[:len(operands)] + ("out",) * len(self.outputs), tensors=(*tensors, *outputs),
                      extents=extents, apart=self._apart(extents, addresses, len(operands)), apart_at=None, kind=kind, device=index)
        with self.lock:
            if len(self.calls) >= _LIMIT:
                self.calls.clear()
                self.plans.clear()
                self.sites.clear()
            self.calls[key] = bound
        return bound

    def _apart(self, extents, addresses, first):
        """(i, o, below, above) for each pair that must not overlap: it does if -below < address[o] - address[i] < above.

        Output number 0 is `first` among the arrays.
        """
        pairs, written = [], [k for k, name in enumerate(self.operands[:first]) if name in self.updates]
        for o in (*written, *range(first, len(addresses))):
            for i in range(first if o < first else o):
                if i == o or i in written and i > o:
                    continue
                same = addresses[i] == addresses[o] and i < first <= o  # exactly the same memory: allowed, or refused already
                if extents[i] != (0, 0) and extents[o] != (0, 0) and not same:
                    pairs.append((i, o, extents[o][1] - extents[i][0], extents[i][1] - extents[o][0]))
        return tuple(pairs)

    def _tensor(self, name, x):
        try:
            return kind_of(x).tensor(x)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{self.function}: {name}: {error}") from None
        except RuntimeError as error:  # torch, of a tensor that is none of the ordinary ones
            raise TypeError(f"{self.function}: {name}: {error}") from None

    def _one_device(self, operands, outs):
        first = None
        for name, x in (*zip(self.labels, operands), *(("out", x) for x in outs)):
            if x is None:
                continue
            self._tensor(name, x)
            index = kind_of(x).device(x)
            if first is None:
                first = index
            elif index != first:
                raise ValueError(f"{self.function}: {name} is on device {index}, {self.labels[0]} on device {first}")
        return first

    def _executable(self, problem, algorithm, device, stream, kind, given):
        key = problem, algorithm, device.index, given
        with self.lock:
            executable = self.plans.get(key)
        if executable is None:
            if not HOST_MEMORY:
                from .memory import is_capturing
                with on_device(device.index):
                    capturing = is_capturing(kind.stream(device.index) if stream is None else stream_handle(self.function, stream))
                if capturing:
                    raise RuntimeError(f"{self.function}: a CUDA graph is being captured and {problem} has no plan yet; call it once "
                                       "before the capture")
            executable = make_executable(self, problem, algorithm, device, given, called=True)
            with self.lock:
                executable = self.plans.setdefault(key, executable)
        return executable

    def parameters(self, problem, given=None):
        """((name, type), ...) of the values that a plan of this operation takes if only the first `given` operands are passed."""
        given = len(self.operands) if given is None else given
        special = getattr(problem, "scalar_types", {})
        return (*((name, "pointer") for name in (*self.operands[:given], *self.outputs, "workspace")),
                *((name, special.get(name, problem.scalar_type)) for name in self.scalars),
                *((name, "null") for name in self.operands[given:]))

    def written_arrays(self, bound, addresses):
        """[(index in `bound.tensors`, name, whether it is uninitialised)] of the arrays that a call writes."""
        given = len(bound.tensors) - len(self.outputs)
        updated = [(k, self.labels[k], False) for k in range(given) if self.operands[k] in self.updates and addresses[k]]
        return updated + [(k, name, addresses[k] not in addresses[:given]) for k, name in enumerate(self.outputs, given)]

    def host_views(self, labels, arrays):
        """In the simulator: the arrays' memory as NumPy; None for missing arrays."""
        views = []
        for label, x in zip(labels, arrays):
            try:
                views.append(None if x is None else kind_of(x).host_view(x))
            except (TypeError, ValueError) as error:
                raise type(error)(f"{self.function}: {label}: {error}") from None
        return views

    def _updated(self, operands):
        return [(label, x) for name, label, x in zip(self.operands, self.labels, operands) if name in self.updates] if self.updates else ()

    def _label(self, operand):
        return self.labels[self.operands.index(operand)]

    # ---- what is checked at every call

    def _overlap(self, bound, addresses, i, o):
        """ValueError if the two arrays share elements, not only an address range."""
        if not share_memory(bound.tensors[i], addresses[i], bound.tensors[o], addresses[o]):
            return
        operands = len(bound.names) - len(self.outputs)
        name = bound.names[i] if i < operands else "another output"
        if o < operands:
            raise ValueError(f"{self.function}: {bound.names[o]}, which is written, overlaps {name}")
        (low_i, high_i), (low_o, high_o) = bound.extents[i], bound.extents[o]
        raise ValueError(f"{self.function}: out partly overlaps {name}: bytes {addresses[o] + low_o:#x} to {addresses[o] + high_o:#x} and "
                         f"{addresses[i] + low_i:#x} to {addresses[i] + high_i:#x}")

    def _check_range(self, problem, scalars):
        """ValueError if a run-time number is finite but overflows float32, in which the problem computes."""
        if problem.scalar_type == "float32":
            for name, value in zip(self.scalars, scalars):
                if _LARGEST < abs(value) < math.inf and name not in getattr(problem, "scalar_types", {}):
                    raise ValueError(f"{self.function}: {name}={value}; expected a number that float32 can hold")

    def _check_writable(self, name, x):
        if x is not None and kind_of(x).read_only(x):
            raise TypeError(f"{self.function}: {name} is a read-only {kind_of(x).name} array, which cannot be written"
                            f"{'; omit out=' if name == 'out' else ''}")

    def _check_workspace(self, bound, workspace, tensor, addresses):
        """Address of the workspace, which `tensor` describes."""
        kind = kind_of(workspace)
        _, address = kind.describe(workspace)
        self._check_writable("workspace", workspace)
        if not tensor.is_packed:
            raise ValueError(f"{self.function}: workspace is {tensor}; expected a packed array")
        if tensor.nbytes < bound.workspace:
            raise ValueError(f"{self.function}: workspace has {tensor.nbytes} bytes, {bound.algorithm} needs {bound.workspace}")
        if bound.workspace and address & 15:
            raise ValueError(f"{self.function}: workspace begins at {address:#x}; expected a multiple of 16")
        for name, start, (low, high) in zip(bound.names, addresses, bound.extents):
            if low != high and bound.workspace and start + low < address + bound.workspace and address < start + high:
                raise ValueError(f"{self.function}: workspace overlaps {name}")
        if kind.device(workspace) != bound.device:
            raise ValueError(f"{self.function}: workspace is on device {kind.device(workspace)}, the operands on device {bound.device}")
        return address


class _Fused(Operation):
    """The operation with a program's operands."""

    def of(self, problem):
        return self


def _again(operands, outputs, tensors, outs, problem, aliases):
    """A problem with the tensors of a call."""
    if outs is None:
        outs = tuple(Tensor.packed(t.shape, t.dtype) for t in problem.outputs)
    elif not isinstance(outs, tuple):
        outs = (outs,)
    return problem.of_tensors({**dict(zip(operands, tensors)), **dict(zip(outputs, outs))})
