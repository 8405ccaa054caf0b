"""Parts of a program as graphs: what is built of them, and the calls that run them."""
import functools
import math
import threading
from collections import Counter

import torch

from ... import graph as cudnn
from ...device import HOST_MEMORY, SIMULATED
from ...host.ahead import Compilation
from ...host.compiler import Job
from ...host.paths import cache_dir
from ._draft import DTYPES, Operand

data_type = cudnn.data_type
_SHORT = {"HALF", "BFLOAT16"}
_planned, _lock = {}, threading.Lock()


class Recipe:
    """A part in words: equal parts of programs have equal `key`.

    Parameters
    ----------
    ops : list of Op
    stored : set of Whole
        Results that others read.

    Attributes
    ----------
    inputs : list of Operand
    outputs : list of Whole
    names : {Operand or Whole: str}
        Of the graph's tensors.
    """

    def __init__(self, ops, stored):
        self.ops, self.inputs, self.outputs, self.names = ops, [], [], {}
        self.kinds, self.unrounded, words = {}, set(), []
        made = {w for op in ops for w in op.wholes}
        readers = Counter(o.whole for op in ops for o in op.inputs.values() if self._is_inside(o, made))
        for op in ops:
            words.append(f"{op.method} {op.compute} {sorted(op.attributes.items())}")
            for argument, o in op.inputs.items():
                if isinstance(o, Operand) and not self._is_inside(o, made) and o not in self.names:
                    self.names[o] = f"in{len(self.inputs)}"
                    self.inputs.append(o)
                    words.append(f"{self.names[o]}: {o.dims} {o.strides} {o.whole.dtype} {self.alignment(o)}")
                words.append(f"{argument}={self._name(o)}")
            for w in op.results:
                if w is None:
                    words.append("-")
                    continue
                self.names[w], self.kinds[w] = f"t{len(self.names)}", DTYPES[w.dtype]
                if w in stored:
                    self.outputs.append(w)
                    words.append(f"{self.output_alignment(w)}")
                elif self.kinds[w] in _SHORT and readers[w] == 1:
                    self.unrounded.add(w)
                words.append(f"{self.names[w]}: {w.dims} {w.strides} {self.kinds[w]} {w in stored}")
        self.key = "\n".join(words)

    @staticmethod
    def _is_inside(o, made):
        return isinstance(o, Operand) and o.whole in made and o.is_whole

    def _name(self, o):
        """A tensor's name, or a number."""
        return (self.names.get(o) or self.names[o.whole]) if isinstance(o, Operand) else repr(o)

    @staticmethod
    def alignment(o):
        """Of an operand's address, in bytes, if its memory's is a multiple of 16."""
        return math.gcd(o.first * o.whole.dtype.itemsize, 16)

    @staticmethod
    def output_alignment(w):
        """Of an output's address, likewise."""
        return math.gcd(w.home[1] * w.dtype.itemsize, 16) if w.home else 16

    def graph(self, rounds=False):
        """(graph, {name: tensor}); `rounds`: results of 16 bits that one operation reads are rounded, too."""
        g = cudnn.pygraph(io_data_type=data_type.FLOAT, intermediate_data_type=data_type.FLOAT, compute_data_type=data_type.FLOAT)
        known = {}
        for o in self.inputs:
            t = g.tensor(dim=o.dims, stride=_packed_where_one(o.dims, o.strides), data_type=data_type[DTYPES[o.whole.dtype]],
                         name=self.names[o])
            known[self.names[o]] = t.set_alignment(self.alignment(o))
        for k, op in enumerate(self.ops):
            arguments = {name: known[self._name(o)] if isinstance(o, Operand)
                         else g.tensor_scalar(float(o), cudnn.scalar_type.COMPILE_TIME_CONST).set_data_type(data_type[op.compute])
                         for name, o in op.inputs.items()}
            results = getattr(g, op.method)(**arguments, **op.attributes, compute_data_type=data_type[op.compute], name=str(k))
            for w, t in zip(op.results, results if isinstance(results, list) else [results]):
                if w is not None:
                    t.set_dim(w.dims).set_stride(_packed_where_one(w.dims, w.strides)).set_data_type(
                        data_type["FLOAT" if w in self.unrounded and not rounds else self.kinds[w]])
                    known[self.names[w]] = t.set_name(self.names[w])
                    if w in self.outputs:
                        t.set_output(True).set_alignment(self.output_alignment(w))
        return g, known


def _packed_where_one(dims, strides):
    """Strides as a graph takes them: of dims of extent 1 as if the memory were packed."""
    step = max((n * s for n, s in zip(dims, strides) if n > 1), default=1)
    return [s if n > 1 else step for n, s in zip(dims, strides)]


class Kernels:
    """A recipe's plan for one device, which `compiled` builds."""

    def __init__(self, recipe):
        self.graph, known, self.plan = self._planned(recipe, False)
        if recipe.unrounded and len(self.plan.steps) > 1:  # what lies between kernels takes half as many bytes
            graph, others, plan = self._planned(recipe, True)
            if plan.seconds < self.plan.seconds:
                self.graph, known, self.plan = graph, others, plan
        self.inputs, self.outputs = ([known[recipe.names[x]].get_uid() for x in some] for some in (recipe.inputs, recipe.outputs))
        self.is_built, self.workspace = False, self.plan.workspace

    @staticmethod
    def _planned(recipe, rounds):
        graph, known = recipe.graph(rounds)
        graph.build()
        graph.create_execution_plans([cudnn.heur_mode.A])
        return graph, known, graph._known("torch.compile").first()

    def build(self):
        """Compile what is not compiled, and load it."""
        if not self.is_built:
            self.graph.build_plans()
            self.is_built = True

    def executable(self, in_place):
        """(executable, the positions of its values among those of inputs and outputs) of calls with outputs in the memory of inputs,
        {index of an output: index of an input}."""
        executable, slots = self.plan.executable(frozenset((self.inputs[i], self.outputs[o]) for o, i in in_place.items()), None)
        order = [*self.inputs, *self.outputs]
        return executable, tuple(order.index(uid) for uid in slots.pointers)

    def allows(self, out, given):
        """Whether an output may be an input's memory."""
        return self._hazards.get((self.outputs[out], self.inputs[given]), True)

    @functools.cached_property
    def _hazards(self):
        return {(out, other): same for out, other, same in self.plan.hazards()}


def kernels_of(recipe, device):
    """The recipe's `Kernels` on a device, which equal ones share."""
    key = recipe.key, device
    with _lock:
        found = _planned.get(key)
    if found is None:
        made = Kernels(recipe)
        with _lock:
            found = _planned.setdefault(key, made)
    return found


def compiled(parts):
    """Compile the kernels of parts, those that the cache lacks side by side in another process, and load them."""
    plans = list(dict.fromkeys(part.kernels.plan for part in parts if not part.kernels.is_built))
    if len(plans) > 1 and not SIMULATED and cache_dir() is not None:
        jobs = [Job(step.op, step.problem, plan.device, a.name, a.config) for plan in plans
                for step, a in zip(plan.steps, plan.algorithms) if a is not None]
        lacking = [job for job in jobs if any(kernel.is_missing for kernel in job.kernels())]
        if len(lacking) > 1:
            compilation = Compilation(plans[0].device)
            compilation.compile(lacking)
            compilation.wait()  # what has failed is compiled here, or says why
    for part in parts:
        part.build()


class Part:
    """A call of a part: takes the memory of its inputs and of the concatenations in which outputs lie, returns its outputs, and such
    memory for those.

    Parameters
    ----------
    recipe : Recipe
    results : list of (shape, strides, dtype)
        Of the outputs, as the program has them.
    device : torch.device
    in_place : {int: int}
        Outputs that are written to the memory of inputs, by their indices: these are no longer needed.
    """

    def __init__(self, recipe, results, device, in_place):
        self.recipe, self.results, self.device = recipe, results, device
        self.kernels = kernels_of(recipe, device)
        self.in_place = {o: i for o, i in in_place.items() if self.kernels.allows(o, i)}
        self.copied = {o: i for o, i in in_place.items() if o not in self.in_place}
        self.firsts = [o.first * o.whole.dtype.itemsize for o in recipe.inputs]
        self.odd = [recipe.alignment(o) - 1 for o in recipe.inputs]
        self.nodes = [node for op in recipe.ops for node in op.nodes]
        self.single = len(results) == 1
        at_home = [k for k, w in enumerate(recipe.outputs) if w.home]
        self.homes = {k: (len(recipe.inputs) + n, recipe.outputs[k].home[1]) for n, k in enumerate(at_home)}

    def build(self):
        """Make `call`, which takes the tensors whose memory its inputs are, and returns its output, or a tuple of several."""
        self.kernels.build()
        self.call = self._on_host_memory() if HOST_MEMORY else self._on_gpu()

    def _on_gpu(self):
        """A function of as many tensors as there are inputs, in which nothing is looked up that is known: it is called for each kernel."""
        executable, order = self.kernels.executable(self.in_place)
        inputs, outputs = (range(len(some)) for some in (self.recipe.inputs, self.results))
        tensors = ", ".join(f"t{k}" for k in range(len(inputs) + len(self.homes)))
        lines = [f"def call({tensors}):"]
        lines += [f"    a{k} = t{k}.data_ptr()" + f" + {self.firsts[k]}" * bool(self.firsts[k]) for k in inputs]
        lines.append(f"    if {' or '.join(f'a{k} & {self.odd[k]}' for k in inputs)}:")
        lines.append(f"        return aligned({tensors})")
        given, addresses = {**self.in_place, **{k: slot for k, (slot, _) in self.homes.items()}}, {}
        for k, (shape, strides, dtype) in enumerate(self.results):
            lines.append(f"    y{k} = " + (f"t{given[k]}" if k in given else f"empty({tuple(shape)}, {tuple(strides)}, dtype{k})"))
            addresses[k] = f"y{k}.data_ptr()" + (f" + {self.homes[k][1] * dtype.itemsize}" if k in self.homes else "")
        values = [f"a{k}" for k in inputs] + [addresses[k] for k in outputs]
        values = [values[k] for k in order]
        if self.kernels.workspace:
            lines.append(f"    workspace = empty(({self.kernels.workspace},), (1,), uint8)")
            values.append("workspace.data_ptr()")
        lines.append(f"    execute(({', '.join(values)},), stream({self.device.index}))")
        lines += [f"    t{given}.copy_(y{out})" for out, given in self.copied.items()]
        lines.append(f"    return {', '.join(f'y{k}' for k in outputs)}")
        known = {"__name__": __name__, "execute": executable.execute, "aligned": self._aligned, "uint8": torch.uint8,
                 "empty": torch._C._dynamo.guards._empty_strided_cuda, "stream": torch._C._cuda_getCurrentRawStream,
                 **{f"dtype{k}": dtype for k, (_, _, dtype) in enumerate(self.results)}}
        exec("\n".join(lines), known)
        return known["call"]

    def _aligned(self, *tensors):
        """The call with copies of the inputs that begin elsewhere than the plan takes them to."""
        copies = list(tensors)
        for k, (t, o, mask, first) in enumerate(zip(tensors, self.recipe.inputs, self.odd, self.firsts)):
            if (t.data_ptr() + first) & mask:
                reach = 1 + sum((n - 1) * s for n, s in zip(o.dims, o.strides))
                copies[k] = torch.empty(o.first + reach, dtype=t.dtype, device=t.device)
                copies[k][o.first:].copy_(t.detach().as_strided((reach,), (1,), t.storage_offset() + o.first))
        results = self.call(*copies)
        for out, given in self.in_place.items():
            if copies[given] is not tensors[given]:
                tensors[given].copy_((results,)[0] if self.single else results[out])
        return results

    def _on_host_memory(self):
        kernels, recipe = self.kernels, self.recipe

        def call(*tensors):
            if any((t.data_ptr() + first) & mask for t, first, mask in zip(tensors, self.firsts, self.odd)):
                return self._aligned(*tensors)
            given = {**self.in_place, **{k: slot for k, (slot, _) in self.homes.items()}}
            outputs = [torch.empty_strided(shape, strides, dtype=dtype) if k not in given else tensors[given[k]]
                       for k, (shape, strides, dtype) in enumerate(self.results)]
            pack = {uid: t.detach().as_strided(o.dims, o.strides, t.storage_offset() + o.first)
                    for uid, t, o in zip(kernels.inputs, tensors, recipe.inputs)}
            pack.update(zip(kernels.outputs, outputs))
            for k, (slot, first) in self.homes.items():
                w = recipe.outputs[k]
                pack[kernels.outputs[k]] = tensors[slot].as_strided(w.dims, w.strides, tensors[slot].storage_offset() + first)
            kernels.graph.execute(pack, torch.empty(max(kernels.workspace, 1), dtype=torch.uint8))
            for out, given in self.copied.items():
                tensors[given].copy_(outputs[out])
            return outputs[0] if self.single else tuple(outputs)
        return call
