"""Running a plan: from a variant pack to the values of its executable. Nothing is allocated on the device, and nothing waits."""
from ..device import HOST_MEMORY
from ..host import seeds
from ..host.arrays import KIND_OF_TYPE, kind_of
from ..host.tensor import Tensor, share_memory
from ._arrays import number
from ._enums import DTYPE, ITEMSIZE, bytes_of_elements
from ._copies import Copying
from ._errors import ExecutionFailed, InvalidValue, InvalidVariantPack, WorkspaceTooSmall
from ._plan import bytes_of
from ._repeated import Repeated
from ._tensor import tensor
from ._views import placed

NOTHING = frozenset()


class Runner:
    """What calls of one plan have in common."""

    def __init__(self, plan):
        if not plan.device.is_here:
            raise ExecutionFailed(f"execute: the plan of the graph {plan.spec.name!r} is for {plan.device.name} ({plan.device.arch}), "
                                  "which is not here; serialize it, and deserialize it where there is one")
        self.plan, self.spec = plan, plan.spec
        self.pointers, self.numbers = plan.uids
        self.hazards = plan.hazards()
        self.needs = {uid: self._need(uid) for uid in self.pointers}
        self.results = {uid for uid in self.pointers if self._is_result(uid)}
        self.written = {out for out, *_ in self.hazards} | self.results
        self.names = {}  # {name: uids}
        for t in self.spec.tensors:
            if not t.virtual:
                self.names.setdefault(t.name, []).append(t.uid)
        self.table = [(uid, need, alignment - 1) for uid, (need, alignment) in self.needs.items()]
        index = {uid: k for k, uid in enumerate(self.pointers)}
        self.apart = [(index[out], index[other], -self.needs[out][0], self.needs[other][0]) for out, other, _ in self.hazards]
        self.shared = {}  # {(uid, uid, bytes from one to the other): whether they have an element in common}
        self.others = {}  # {(uids of tensors that are copied first, of those whose buffers have bits): the runner of that plan}
        self.bits = {uid: bytes_of(t) // 8 for uid in self.pointers if (t := self.spec.tensor(uid)).may_be_bits and uid not in plan.bits}
        self.only_bits = frozenset(uid for uid in self.bits if self.spec.tensor(uid).vector)
        self.checked = {}  # {(uid, description of an array): None}, of those that reach far enough
        self.there = [(uid, view) for uid, view in placed(self.spec).items() if not self.spec.tensor(uid).virtual]
        self.repeated = None  # once a call had addresses as its only values
        self.sorted = [sorted(self.pointers).index(uid) for uid in self.pointers]

    def _is_result(self, uid):
        return any(uid == o for node in self.spec.nodes for _, o in node.outputs)

    def _need(self, uid):
        """(bytes that a buffer has to have, alignment of its address); ragged ones hold fewer than their dims say."""
        t = self.spec.tensor(uid)
        return 0 if t.ragged is not None else bytes_of(t) // (8 if uid in self.plan.bits else 1), min(t.alignment, 16)

    def label(self, uid):
        """What messages call a tensor."""
        name = self.spec.tensor(uid).name
        return f"tensor {name!r} (uid {uid})" if name else f"the tensor of uid {uid}"

    def by_uid(self, pack):
        """{uid: buffer} of a pack whose keys are tensors, uids or names; None is no key."""
        found = {}
        for key, buffer in pack.items():
            if type(key) is tensor:
                found[key._uid] = buffer
            elif isinstance(key, str):
                uids = self.names.get(key, ()) if key else ()
                if len(uids) > 1:
                    raise InvalidVariantPack(f"the name {key!r} is that of the tensors of uids {', '.join(map(str, uids))}; expected a "
                                             "name of one tensor, a uid or a tensor")
                found.update(dict.fromkeys(uids, buffer))
            elif key is not None:
                found[key] = buffer
        return found

    def call(self, pack, workspace, stream):
        """Launch with the buffers of {tensor, uid or name: buffer}."""
        launched = None if self.repeated is None else self.repeated.launch(pack, workspace, stream)
        if launched:
            return
        by_uid = self.by_uid(pack)
        self.run(by_uid, workspace, stream)
        if launched is None and self.repeated is not None and self.repeated.is_worth_learning():
            self._learn(pack, by_uid, workspace)

    def launch_at(self, addresses, workspace, stream):
        """Whether addresses, in the order of their uids, are known, and are launched."""
        repeated = self.repeated
        if repeated is None or len(addresses) != len(self.sorted) or repeated.workspace and type(workspace) is not int:
            return False
        more = (workspace,) if repeated.workspace else ()
        return repeated.launch_at((*[addresses[k] for k in self.sorted], *more), 0 if stream is None else stream)

    def _learn(self, pack, by_uid, workspace):
        """Remember the form of a call on torch's tensors."""
        tensors = [by_uid[uid] for uid in self.pointers] + [workspace] * self.repeated.workspace
        kinds = {None if type(t) is int else kind_of(t) for t in tensors}
        keys = {uid: key for key in pack for uid in self.by_uid({key: None})}
        if len(kinds) == 1 and (kind := kinds.pop()) is not None and kind.name == "torch" and len(keys) == len(pack):
            self.repeated.learn(len(pack), tuple(keys[uid] for uid in self.pointers), tensors, kind.current)

    def run(self, pack, workspace, stream):
        """Launch with the buffers of {uid: buffer}."""
        runner, executable, values, stream, addresses = self.prepared(pack, workspace, stream)
        executable.execute(values, stream)
        if addresses is not None and executable.is_steady:
            runner.remember(executable, addresses, values)

    def prepared(self, pack, workspace, stream):
        """Everything of `run` before the launch: (the runner that has the plan, its executable, its values, the stream, the addresses of
        the buffers if the same ones may be launched without being looked at again)."""
        if self.only_bits:
            return self._with(bits=self._of_bits(pack)).prepared(pack, workspace, stream)
        buffers, addresses, checked = [], [], self.checked
        for uid, need, odd in self.table:
            buffer = pack.get(uid)
            if type(buffer) is int:
                address = buffer
            else:
                if buffer is None:
                    self._missing(uid)
                try:
                    description, address = (KIND_OF_TYPE.get(type(buffer)) or kind_of(buffer)).describe(buffer)
                    if (uid, description) not in checked and not self._check(uid, buffer, need, description):
                        return self._with(bits=self._of_bits(pack)).prepared(pack, workspace, stream)
                except (TypeError, RuntimeError) as error:
                    raise InvalidVariantPack(f"{self.label(uid)}: {error}") from None
            if (address & odd or not address) and need:
                self._refuse_address(uid, address)
            buffers.append(buffer)
            addresses.append(address)
        if self.there:
            self._check_there(pack, dict(zip(self.pointers, addresses)))
        if stream is None:
            stream = next((kind_of(b).stream(self.plan.device.index) for b in buffers if type(b) is not int), 0)
        aliases, bound = NOTHING, None
        for out, other, below, above in self.apart:
            if below < addresses[out] - addresses[other] < above:
                aliases, copied = self._aliases(dict(zip(self.pointers, addresses)))
                if copied:
                    return self._with(copied=copied).prepared(pack, workspace, stream)
                break
        if self.plan.bound:
            bound = tuple([self._number(value, "float64", pack) for value in self.plan.bound])
        executable, slots = self.plan.executable(aliases, bound)
        at = dict(zip(self.pointers, buffers if HOST_MEMORY else addresses))
        values = [self._view(uid, at[uid]) for uid in slots.pointers] if HOST_MEMORY else [at[uid] for uid in slots.pointers]
        if self.plan.workspace:
            values.append(self._workspace(workspace))
        if slots.numbers:
            values += [self._number(value, kind, pack) for value, kind in slots.numbers]
        plain = not (HOST_MEMORY or slots.numbers or bound or aliases or self.there)
        return self, executable, values, stream, addresses if plain else None

    def remember(self, executable, addresses, values):
        """Buffers at these addresses may be launched again."""
        if self.repeated is None:
            order = tuple(map(self.pointers.index, self.plan.executable(NOTHING, None)[1].pointers))
            self.repeated = Repeated(executable, order, self.plan.device.index, self.plan.workspace > 0)
        self.repeated.remember((*addresses, *values[len(self.repeated.order):]))

    # ---- buffers

    def _missing(self, uid):
        raise InvalidVariantPack(f"{self.label(uid)} has no buffer in the variant pack; it needs one of {self.needs[uid][0]} bytes"
                                 if uid in self.needs else f"{self.label(uid)}, which is passed by value, is not in the variant pack")

    def _refuse_address(self, uid, address):
        need, alignment = self.needs[uid]
        if not address:
            raise InvalidVariantPack(f"{self.label(uid)}: got a null address; expected a buffer of {need} bytes")
        raise InvalidVariantPack(f"{self.label(uid)}: its buffer begins at {address:#x}; expected a multiple of {alignment} "
                                 "(set_alignment)")

    def _check_there(self, pack, addresses):
        """Operands in place begin where the result has them; those without a buffer are taken to."""
        for uid, view in self.there:
            buffer = pack.get(uid)
            if buffer is None:
                continue
            address = buffer if type(buffer) is int else kind_of(buffer).describe(buffer)[1]
            expected = addresses[view.source] + view.first * ITEMSIZE[self.spec.tensor(uid).dtype]
            if address != expected:
                raise InvalidVariantPack(f"{self.label(uid)}: its buffer begins at {address:#x}; expected {expected:#x}, where "
                                         f"{self.label(view.source)} has it, since it is in place")

    def _check(self, uid, buffer, need, description):
        """Whether a buffer is what the plan takes; False where it has one bit per element, where the plan takes a byte."""
        kind = kind_of(buffer)
        have, bits = kind.tensor(buffer).extent[1], self.bits.get(uid)
        if have < (need if bits is None else bits):
            raise InvalidVariantPack(f"{self.label(uid)}: its buffer has {have} bytes; expected {need} at least"
                                     + f", or {bits} of bits" * (bits is not None))
        if have < need:
            return False
        if kind.device(buffer) != self.plan.device.index:
            raise InvalidVariantPack(f"{self.label(uid)}: its buffer is on device {kind.device(buffer)}; expected device "
                                     f"{self.plan.device.index}")
        if uid in self.written and kind.read_only(buffer):
            raise InvalidVariantPack(f"{self.label(uid)}: its buffer is read-only, and the graph writes it")
        if len(self.checked) > 4096:
            self.checked.clear()
        self.checked[uid, description] = None
        return True

    def _of_bits(self, pack):
        """uids of the BOOLEAN tensors whose buffers have one bit per element."""
        sizes = {uid: kind_of(buffer).tensor(buffer).extent[1] for uid in self.bits
                 if type(buffer := pack.get(uid)) is not int and buffer is not None}
        return self.only_bits | {uid for uid, size in sizes.items() if self.bits[uid] <= size < self.needs[uid][0]}

    def _view(self, uid, buffer):
        """Host memory as NumPy, for the simulator and the processor."""
        if type(buffer) is int:
            from ..device.host_memory import bytes_at
            t = self.spec.tensor(uid)
            return bytes_at(buffer, max(bytes_of_elements(t.dtype, t.elements), 1), None)
        return kind_of(buffer).host_view(buffer)

    def _workspace(self, workspace):
        need, copied = self.plan.workspace, getattr(self.plan, "copied", ())
        why = "get_workspace_size"
        if copied:
            why = (f"{need - self.plan.base.workspace} of them for copies of {', '.join(map(self.label, copied))}, of which a result "
                   "overlaps the buffer; get_workspace_size_with_copies is enough for all such calls")
        elif need > self.plan.promised:
            why = f"for these shapes; the {self.plan.promised} of get_workspace_size are for those that the graph was built with"
        if workspace is None or type(workspace) is int and not workspace:
            raise WorkspaceTooSmall(f"execute: got no workspace; the plan needs {need} bytes ({why})", need)
        if type(workspace) is int:
            if need > self.plan.promised:  # which a program need not know of that has the bytes of get_workspace_size
                raise WorkspaceTooSmall(f"execute: the workspace is an address, of unknown size; expected an array of {need} bytes ({why})",
                                        need)
            if HOST_MEMORY:
                from ..device.host_memory import bytes_at
                return bytes_at(workspace, need, None)
            return workspace
        kind = kind_of(workspace)
        t, address = kind.tensor(workspace), kind.describe(workspace)[1]
        if t.nbytes < need or not t.is_packed:
            raise WorkspaceTooSmall(f"execute: the workspace has {t.nbytes} bytes{' with gaps' * (not t.is_packed)}; the plan needs {need} "
                                    f"bytes ({why})", need)
        if address & 15:
            raise InvalidValue(f"execute: the workspace begins at {address:#x}; expected a multiple of 16")
        if kind.device(workspace) != self.plan.device.index:
            raise InvalidValue(f"execute: the workspace is on device {kind.device(workspace)}; the plan is for {self.plan.device.index}")
        return kind.host_view(workspace) if HOST_MEMORY else address

    def _number(self, value, kind, pack):
        found = self._number_of(value.uid, pack)
        if value.offset is not None:
            return seeds.of_stream(int(found) % 2 ** 64, int(self._number_of(value.offset, pack)) % 2 ** 64)
        found = found * value.factor if value.factor != 1.0 else found
        return float(found) if kind.startswith("float") else int(found) % 2 ** 64 if kind == "uint64" else int(found)

    def _number_of(self, uid, pack):
        t, x = self.spec.tensor(uid), pack.get(uid)
        if x is not None:
            return number(x, t.dtype, self.label(uid))
        if t.value is None:
            self._missing(uid)
        return t.value

    def _aliases(self, addresses):
        """(pairs (input, output) that are exactly the same memory, uids of inputs that overlap an output which is written too early);
        `InvalidVariantPack` where buffers overlap that must not."""
        found, copied = [], set()
        for out, other, same in self.hazards:
            a, b = addresses[out], addresses[other]
            if a == b and same:
                found.append((other, out))
            elif a < b + self.needs[other][0] and b < a + self.needs[out][0] and self.share(out, other, b - a):
                if other in self.written or not self.needs[other][0]:
                    raise InvalidVariantPack(f"{self.label(out)} is written while {self.label(other)} is still needed, and their buffers "
                                             "overlap; expected buffers that are apart")
                copied.add(other)
        return frozenset(found), frozenset(copied)

    def _with(self, copied=NOTHING, bits=NOTHING):
        """The runner of the plan that copies these tensors first, or whose buffers of those have bits."""
        if (copied, bits) not in self.others:
            self.others[copied, bits] = Runner(Copying(self.plan, copied, bits))
        return self.others[copied, bits]

    @property
    def most_workspace(self):
        """Bytes that are enough for whatever overlaps."""
        inputs = frozenset(other for _, other, _ in self.hazards if other not in self.written and self.needs[other][0])
        return self._with(copied=inputs).plan.workspace + self.plan.room

    def share(self, uid, other, distance):
        """Whether two tensors, `distance` bytes apart, have memory in common: halves of rows, say, lie between each other and have none."""
        key = uid, other, distance
        if not self.plan.bits.isdisjoint(key[:2]) or any(self.spec.tensor(u).dtype not in DTYPE for u in key[:2]):
            return True
        if key not in self.shared:
            if len(self.shared) > 4096:
                self.shared.clear()
            a, b = (Tensor(t.dim, t.stride, DTYPE[t.dtype]) for t in map(self.spec.tensor, (uid, other)))
            self.shared[key] = share_memory(a, 1 << 60, b, (1 << 60) + distance)
        return self.shared[key]
