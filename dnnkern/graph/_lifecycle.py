"""From a validated graph to its execution: plans, what is asked of them, runs. The base of `pygraph`."""
import operator

from ._device import DeviceProperties, device_elsewhere
from ._enums import behavior_note, build_plan_policy, heur_mode, knob_type, member, numerical_note
from ._errors import ExecutionFailed, InvalidValue, InvalidVariantPack
from ._handle import get_stream


class Lifecycle:
    """What a graph does after it is described. `spec` is the graph that plans are made of, which later changes do not touch."""

    def __init__(self, handle, kernel_cache, device_property):
        if handle is not None:
            get_stream(handle)
        if kernel_cache is not None:
            from ._kernels import KernelCache
            if not isinstance(kernel_cache, KernelCache):
                raise TypeError(f"pygraph: kernel_cache is {kernel_cache!r}; expected one of create_kernel_cache()")
        if not isinstance(device_property, (DeviceProperties, type(None))):
            raise TypeError(f"pygraph: device_property is {device_property!r}; expected one of create_device_properties()")
        self.handle, self.kernel_cache, self.device_property = handle, kernel_cache, device_property
        self.spec, self._plans, self._modes, self._candidate, self._runners = None, None, (), None, {}
        self._shapes = {}  # {(plan, overrides): runner of the plan for these shapes}
        self._mirrors = {}

    def _validated(self, spec):
        self.spec = spec

    # ---- plans

    def key(self) -> int:
        """A hash of the graph, the same in every process."""
        self._validate_once()
        return (self._spec or self.spec).key()

    def _validate_once(self):
        if self._spec is None and (self.nodes or self.spec is None):
            self.validate()

    def build_operation_graph(self):
        """Lower the validated graph to problems of the library's operations; validates it where `validate` was not called.

        Raises
        ------
        cudnnGraphNotSupportedError
            An operation, or an option of one, that no plan runs.
        """
        from ._engines import Engines, device_here
        from ._log import log_graph
        self._validate_once()
        log_graph(self.spec)
        device = None
        if self.device_property is not None or self.sm_version is not None:
            device = device_elsewhere(self.device_property, self.sm_version, device_here())
        engines = Engines(self.spec, self.kernel_cache, sm_count=self.sm_count, device=device)
        self._engines, self._plans, self._candidate, self._runners, self._shapes = engines, None, None, {}, {}

    def explain(self):
        """Which nodes run in which kernel, by which algorithm, and why others do not: an `Explanation`, which prints as a table; its
        `drawing`, `dot` and `svg` show the graph. Not in cuDNN.

        Examples
        --------
        >>> import dnnkern.graph as cudnn
        >>> graph = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT)
        >>> x = graph.tensor(dim=[1, 4, 4], stride=[16, 4, 1])
        >>> y = graph.relu(graph.matmul(x, x, name="mm"), name="act").set_output(True)
        >>> graph.build()
        >>> [part.nodes for part in graph.explain().parts]
        [('mm', 'act')]
        """
        from ._explain import explain
        self._lowered("explain")
        return explain(self._engines)

    def largest_parts(self, after=None) -> list:
        """Names of the nodes of each part of the cut that joins most, in an order in which the parts can run. Not in cuDNN.

        Parameters
        ----------
        after : {tensor: sequence of tensor}, optional
            Results that are in memory before an input is there: what is made of it runs in another part.
        """
        from ._partition import ALL, joined
        self._validate_once()
        uids = {t.get_uid(): tuple(other.get_uid() for other in others) for t, others in (after or {}).items()}
        return [[node.name for node in part] for part in joined(self.spec, list(self.spec.nodes), None, *ALL, uids)]

    def create_execution_plans(self, modes):
        """Find the plans that there are, the best first.

        Parameters
        ----------
        modes : sequence of heur_mode
            Whose plans there are, those of the first mode first.
            A, and OPENSOURCE: what `autotune` measured, else the plan that is predicted to be the fastest, then one plan for each other
            engine, by predicted time.
            B: the same ranking of more plans, which takes longer: of further cuts, and several configurations of each algorithm.
            FALLBACK: what always works. Every node in kernels of its own by the algorithms that are predicted to be the fastest, then the
            naive ones.
        """
        if not isinstance(modes, (list, tuple)):
            raise TypeError(f"create_execution_plans: modes is {modes!r}; expected a list of heur_mode, such as [heur_mode.A]")
        modes = [member(heur_mode, mode, "create_execution_plans: modes") for mode in modes]
        if not modes:
            raise InvalidValue("create_execution_plans: modes is empty; expected one at least")
        self._lowered("create_execution_plans")
        self._plans = self._engines.plans(modes)
        self._candidate = None

    def create_execution_plan(self, engine_id, knobs):
        """Make the plan of one engine with these knobs, {knob_type: value}; the only plan of the graph, or one more."""
        self._lowered("create_execution_plan")
        made = self._engines.plan(operator.index(engine_id), {member(knob_type, k, "create_execution_plan: knobs"): v
                                                              for k, v in dict(knobs).items()})
        if self._plans is None:
            self._plans = self._engines.plans(())
        self._plans.add(made)

    def get_engine_count(self) -> int:
        """How many engines there are: algorithms for the step of the graph that takes the longest."""
        self._lowered("get_engine_count")
        return self._engines.count

    def get_knobs_for_engine(self, engine) -> list:
        """The knobs of an engine: KERNEL_CFG, which selects the configuration, where it has several."""
        self._lowered("get_knobs_for_engine")
        return self._engines.knobs(operator.index(engine))

    def check_support(self):
        """Raise `cudnnGraphNotSupportedError` unless some plan passes the filters."""
        self._known("check_support").first()

    def build_plans(self, policy=build_plan_policy.HEURISTICS_CHOICE):
        """Compile the first plan, or all (`build_plan_policy.ALL`)."""
        policy = member(build_plan_policy, policy, "build_plans: policy")
        plans = self._known("build_plans")
        self._candidate = plans.first().build()
        if policy is build_plan_policy.ALL:
            for plan in plans.all():
                plan.build()

    def build_plan_at_index(self, index):
        """Compile the plan of an index; it is the one that `execute` runs from now on."""
        self._candidate = self._at(index, "build_plan_at_index").build()

    def build(self, modes=None):
        """Everything up to compiled plans; without modes, `validate` and `build_operation_graph` alone."""
        self.validate()
        self.build_operation_graph()
        if modes is not None:
            self.create_execution_plans(modes)
            self.check_support()
            self.build_plans()

    def autotune(self, variant_pack, workspace, handle=None) -> list:
        """Measure the plans that are built, on these buffers, and make the fastest the one that `execute` runs.

        Plans are afterwards in the order of their times: that of index 0 is the fastest, those that are not built come last. Where every
        plan of the list was built and measured, and no filter is set, the order is kept in the find database: `build` of an equal graph
        takes the fastest plan then, in any process. Nothing is kept in the simulator.

        Parameters
        ----------
        variant_pack : dict
            As `execute`'s. Every plan runs many times; afterwards the results are those of one run of the fastest.
        workspace : array or address
            `get_autotune_workspace_size()` bytes.
        handle : int, optional
            Whose stream the last run is on, as in `execute`. The measurement waits for all of the device's work, and for its own.

        Returns
        -------
        list of Perf
            The plans that were measured, the fastest first: `algo` is the plan's name; one that failed has the reason as `status`.

        Raises
        ------
        InvalidVariantPack
            A result has memory in common with an operand, which a second run would find changed: nothing is launched.
        WorkspaceTooSmall
            For one of the plans: nothing is launched.
        RuntimeError
            No plan is built (`build_plans` with `build_plan_policy.ALL` builds all of them), or none ran.

        Examples
        --------
        >>> import numpy as np, dnnkern.graph as cudnn
        >>> graph = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT)
        >>> x = graph.tensor(dim=[1, 2, 2], stride=[4, 2, 1])
        >>> y = graph.relu(graph.matmul(x, x)).set_output(True)
        >>> graph.build()
        >>> graph.create_execution_plans([cudnn.heur_mode.A])
        >>> graph.build_plans(cudnn.build_plan_policy.ALL)
        >>> pack = {x: np.ones((1, 2, 2), np.float32), y: np.empty((1, 2, 2), np.float32)}
        >>> workspace = np.empty(graph.get_autotune_workspace_size(), np.uint8)
        >>> perfs = graph.autotune(pack, workspace)
        >>> perfs[0].algo == graph.get_plan_name_at_index(0)
        True
        """
        from ._tune import tune
        if not hasattr(variant_pack, "items"):
            raise InvalidVariantPack(f"autotune: got {type(variant_pack).__name__}; expected a dict of buffers by tensor or uid")
        built = self._built("autotune")
        perfs = tune(self._plans, {plan: self._runner(plan) for plan in built}, variant_pack, workspace, self._stream(handle))
        self._candidate = self._plans.all()[0]
        return perfs

    def get_autotune_workspace_size(self) -> int:
        """Bytes of workspace that are enough for every plan that is built."""
        from ._tune import most_workspace
        return most_workspace(self._built("get_autotune_workspace_size"))

    def _built(self, function):
        plans = [plan for plan in self._known(function).all() if plan.is_built]
        if not plans:
            raise ExecutionFailed(f"{function}: no plan of the graph {self.name!r} has been built; call build_plans first")
        return plans

    def _lowered(self, function):
        if getattr(self, "_engines", None) is None:
            raise ExecutionFailed(f"{function}: the graph {self.name!r} has not been lowered; call build_operation_graph first")

    def _known(self, function):
        if self._plans is None:
            raise ExecutionFailed(f"{function}: the graph {self.name!r} has no plans; call create_execution_plans first")
        return self._plans

    def _at(self, index, function):
        plans, index = self._known(function).all(), operator.index(index)
        if not 0 <= index < len(plans):
            raise InvalidValue(f"{function}: index {index} of {len(plans)} plans; expected 0 to {len(plans) - 1}")
        return plans[index]

    # ---- questions

    def get_execution_plan_count(self) -> int:
        """How many plans pass the filters."""
        return len(self._known("get_execution_plan_count").all())

    def get_plan_name_at_index(self, index) -> str:
        """The name of a plan: the algorithms that run, in order."""
        return self._at(index, "get_plan_name_at_index").name

    def _chosen(self, function):
        return self._candidate or self._known(function).first()

    def get_workspace_size(self) -> int:
        """Bytes of workspace that `execute` needs."""
        plan = self._chosen("get_workspace_size")
        return plan.workspace + plan.room

    def get_workspace_size_plan_at_index(self, index) -> int:
        """Bytes of workspace that a plan needs, exactly; with BOOLEAN tensors room for the bytes of those whose buffers may have bits."""
        plan = self._at(index, "get_workspace_size_plan_at_index")
        return plan.workspace + plan.room

    def get_workspace_size_with_copies(self) -> int:
        """Bytes of workspace that are enough for `execute` whatever buffers of results overlap those of operands. Not in cuDNN.

        Where a result is written over an operand that is still needed, and no kernel allows that, the operand is copied to the workspace
        first: the call needs more than `get_workspace_size()`, and says how much if it has less.
        """
        return self._runner(self._chosen("get_workspace_size_with_copies")).most_workspace

    def get_behavior_notes(self) -> list:
        """Behavior notes of the plan that `execute` runs, or would."""
        return self._chosen("get_behavior_notes").behavior_notes

    def get_behavior_notes_for_plan_at_index(self, index) -> list:
        """Behavior notes of a plan."""
        return self._at(index, "get_behavior_notes_for_plan_at_index").behavior_notes

    # ---- filters

    def deselect_engines(self, engine_names):
        """Leave out plans whose names begin with one of these, or that are of an engine of that number ("eng2")."""
        self._known("deselect_engines").without_engines(list(engine_names))

    def deselect_workspace_greater_than(self, workspace):
        """Leave out plans that need more workspace."""
        self._known("deselect_workspace_greater_than").within(operator.index(workspace))

    def select_numeric_notes(self, notes):
        """Keep plans that have all of these notes."""
        self._known("select_numeric_notes").with_notes(_notes(numerical_note, notes, "select_numeric_notes"))

    def deselect_numeric_notes(self, notes):
        """Leave out plans that have any of these notes."""
        self._known("deselect_numeric_notes").without_notes(_notes(numerical_note, notes, "deselect_numeric_notes"))

    def select_behavior_notes(self, notes):
        """Keep plans that have all of these notes."""
        self._known("select_behavior_notes").with_notes(_notes(behavior_note, notes, "select_behavior_notes"))

    def deselect_behavior_notes(self, notes):
        """Leave out plans that have any of these notes."""
        self._known("deselect_behavior_notes").without_notes(_notes(behavior_note, notes, "deselect_behavior_notes"))

    # ---- runs

    def execute(self, tensor_to_device_buffer, workspace, handle=None, override_uids=None, override_shapes=None, override_strides=None):
        """Run the graph. Nothing is checked but that buffers are there, large enough, on the device, and aligned; nothing waits.

        Parameters
        ----------
        tensor_to_device_buffer : dict
            {tensor, uid or name: array, DLPack object or address}; for a tensor passed by value a number in host memory, which is read
            now.
        workspace : array or address
            `get_workspace_size()` bytes on the device; may be None if that is 0. See `get_workspace_size_with_copies`.
        handle : int, optional
            Whose stream is used; default: the graph's, else the current stream of the arrays' framework.
        override_uids : sequence of int, optional
            uids of tensors that have other dims and strides in this call, of a graph with `is_override_shape_enabled`. What is inferred
            of them follows: results whose dims or strides were set have to be among them.
        override_shapes, override_strides : sequence of sequences of int, optional
            Their dims and strides: as many as the graph was built with, strides in the same order, groups of a convolution as many. They
            may need more workspace than `get_workspace_size()`: the call says how much, if it is an address or has less.
        """
        if self._candidate is None:
            raise ExecutionFailed(f"execute: the graph {self.name!r} has not been built; call build first")
        runner = self._runner_of(self._candidate, override_uids, override_shapes, override_strides)
        self._run(runner, tensor_to_device_buffer, workspace, handle)

    def execute_plan_at_index(self, tensor_to_device_buffer, workspace, index, handle=None, override_uids=None, override_shapes=None,
                              override_strides=None):
        """Run a plan that has been built; otherwise as `execute`."""
        plan = self._at(index, "execute_plan_at_index")
        if not plan.is_built:
            raise ExecutionFailed(f"execute_plan_at_index: plan {index} ({plan.name}) has not been built; call build_plan_at_index first")
        runner = self._runner_of(plan, override_uids, override_shapes, override_strides)
        self._run(runner, tensor_to_device_buffer, workspace, handle)

    def _run(self, runner, pack, workspace, handle):
        if not hasattr(pack, "items"):
            raise InvalidVariantPack(f"execute: got {type(pack).__name__}; expected a dict of buffers by tensor or uid")
        runner.call(pack, workspace, self._stream(handle))

    def _runner_of(self, plan, uids, shapes, strides):
        """That of a plan, with overrides that of the plan for these shapes."""
        if uids is None and shapes is None and strides is None:
            return self._runner(plan)
        try:
            key = plan, tuple(uids), tuple(map(tuple, shapes)), tuple(map(tuple, strides))
            found = self._shapes.get(key)
        except TypeError:  # of what is no lists of ints
            key = found = None
        return found or self._runner_of_new(plan, key, uids or (), shapes or (), strides or ())

    def _runner_of_new(self, plan, key, uids, shapes, strides):
        from ._execute import Runner
        from ._override import REMEMBERED, overridden
        if not self.is_override_shape_enabled:
            raise InvalidValue(f"execute: the graph {self.name!r} takes no override_uids; expected pygraph(is_override_shape_enabled=True)")
        found = Runner(overridden(type(self), plan, uids, shapes, strides))
        if len(self._shapes) >= REMEMBERED:
            self._shapes.clear()
        if key is not None:
            self._shapes[key] = found
        return found

    def _stream(self, handle):
        handle = self.handle if handle is None else handle
        return None if handle is None else get_stream(handle)

    def _runner(self, plan):
        found = self._runners.get(plan)
        if found is None:
            from ._execute import Runner
            found = self._runners[plan] = Runner(plan)
        return found

    def populate_cuda_graph(self, handle, variant_pack, workspace, cuda_graph):
        """Add the launches of the plan that `execute` would run, with these buffers, to a CUDA graph; nothing runs.

        Parameters
        ----------
        handle : int or None
            As `execute`'s; its stream is not used.
        variant_pack, workspace
            As `execute`'s, all of which have to stay where they are. Numbers are read now.
        cuda_graph : int or CUgraph
            The handle of a CUDA graph, by its address or as an object of cuda.bindings. The kernels follow each other, the first one
            nothing that is in the graph already; whoever made it instantiates it, or adds it to another one, and destroys it.

        Raises
        ------
        cudnnGraphNotSupportedError
            There is no GPU.
        """
        self._in_cuda_graph("populate", handle, variant_pack, workspace, cuda_graph)

    def update_cuda_graph(self, handle, variant_pack, workspace, cuda_graph):
        """Give the kernels of a CUDA graph that `populate_cuda_graph` has filled other buffers and numbers.

        Arguments are those of `populate_cuda_graph`. The graph may be a copy, as a child node has one. One that was instantiated before has
        its own: cuGraphExecUpdate takes them over.

        Raises
        ------
        RuntimeError
            INVALID_VALUE: the graph has not the kernels that these buffers need, one after the other, and nothing else. Nothing is changed.
        cudnnGraphNotSupportedError
            There is no GPU.
        """
        self._in_cuda_graph("update", handle, variant_pack, workspace, cuda_graph)

    def _in_cuda_graph(self, what, handle, pack, workspace, cuda_graph):
        from ._cuda_graph import fill
        if self._candidate is None:
            raise ExecutionFailed(f"{what}_cuda_graph: the graph {self.name!r} has not been built; call build first")
        if not hasattr(pack, "items"):
            raise InvalidVariantPack(f"{what}_cuda_graph: got {type(pack).__name__}; expected a dict of buffers by tensor or uid")
        self._stream(handle)
        fill(what, self._runner(self._candidate), pack, workspace, cuda_graph)

    # ---- the private methods that NVIDIA's torch operators call

    def _get_variant_pack_uids_sorted(self):
        """uids of the buffers that `_execute_with_ptrs` takes, in its order."""
        return sorted(self._runner(self._chosen("_get_variant_pack_uids_sorted")).pointers)

    def _prepare_variant_pack_template(self):
        """Prepare `_execute_with_ptrs`."""
        self._runner(self._chosen("_prepare_variant_pack_template"))

    def _execute_with_ptrs(self, user_ptrs, workspace, handle=None):
        """Run with addresses, in the order of `_get_variant_pack_uids_sorted`."""
        if self._candidate is None:
            raise ExecutionFailed(f"execute: the graph {self.name!r} has not been built; call build first")
        runner, stream, pointers = self._runner(self._candidate), self._stream(handle), list(user_ptrs)
        if runner.launch_at(pointers, workspace, stream):
            return
        uids, pointers = self._get_variant_pack_uids_sorted(), [operator.index(p) for p in pointers]
        if len(pointers) != len(uids):
            raise InvalidVariantPack(f"_execute_with_ptrs: got {len(pointers)} addresses; expected {len(uids)}, of the uids {uids}")
        runner.run(dict(zip(uids, pointers)), workspace, stream)

    def _execute_with_raw_ptrs(self, ptr_array, num_ptrs, workspace, handle=None):
        """The same with the address of an array of addresses."""
        import ctypes
        values = (ctypes.c_uint64 * operator.index(num_ptrs)).from_address(operator.index(ptr_array))
        self._execute_with_ptrs([int(v) for v in values], workspace, handle)

    # ---- stored graphs

    def serialize(self) -> bytes:
        """The graph and its built plan, to be run by `deserialize` in any process on a device of the same architecture; of a graph with a
        `device_property`, or for a device that is not here, with the machine code of its kernels, so that nothing is compiled there."""
        from ._serial import packed
        if self._candidate is None:
            raise ExecutionFailed(f"serialize: the graph {self.name!r} has not been built; call build first")
        ahead = self.device_property is not None or not self._candidate.device.is_here
        return packed(self._engines, self._candidate, (self.is_override_shape_enabled, self.sm_count), ahead)

    def deserialize(self, *arguments):
        """Take over a serialized graph: ``deserialize(data)`` or ``deserialize(handle, data)``. It can be executed at once, with the uids,
        names or tensors of the graph that was serialized."""
        from ._serial import unpacked
        if len(arguments) not in (1, 2):
            raise TypeError(f"deserialize: got {len(arguments)} arguments; expected (data) or (handle, data)")
        if len(arguments) == 2 and arguments[0] is not None:
            get_stream(arguments[0])
            self.handle = arguments[0]
        spec, plan, engines, options = unpacked(arguments[-1], self.kernel_cache)
        self.is_override_shape_enabled, self.sm_count = options
        self.spec, self._engines, self._candidate, self._runners, self._shapes = spec, engines, plan.build(), {}, {}
        self._plans = engines.plans(())
        self._plans.add(plan)
        self.name = spec.name

    def _deserialized_tensor(self, uid):
        for t in self.spec.tensors if self.spec else ():
            if t.uid == uid:
                from ._tensor import tensor_of
                return self._mirrors.setdefault(uid, tensor_of(self, t))
        raise InvalidValue(f"query_tensor_attributes_of_uid: no tensor of the graph {self.name!r} has uid {uid}")


def _notes(kind, notes, function):
    return [member(kind, note, f"{function}: notes") for note in notes]
