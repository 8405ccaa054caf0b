"""Kernel caches: compiled kernels that graphs of different shapes share, and that are preferred to ones which would have to be compiled."""
import base64
import functools
import hashlib
import json
import threading

from .. import __version__, dispatch
from ..device import HOST_MEMORY
from ..host.compile import content_of, held_by, parsed
from ..host.compiler import Job, kernels_of
from ..host.paths import cache_dir
from ._errors import InvalidValue, cudnnGraphNotSupportedError

FORMAT = 1
WORTH_COMPILING = 4.0  # a kernel is compiled only if it is predicted to take less than one part in so many of a held one's time


class KernelCache:
    """Compiled kernels, by fingerprint: a hash of all that their code depends on, sizes that are arguments of kernels not among it.

    Given to graphs as `pygraph`'s `kernel_cache`, it collects the kernels that their plans are made of. A later graph, of other dims,
    that can run by kernels which are there compiles nothing, unless new ones are predicted to be more than four times as fast. Threads
    may share it.
    """

    def __init__(self):
        self._lock, self._kernels, self._choices = threading.Lock(), {}, {}

    def __len__(self):
        return len(self._kernels)

    def __contains__(self, name):
        return name in self._kernels

    # ---- what compiling asks of it (`host.compile.held_by`)

    def get(self, name, kind):
        """The kernel of a name, or None."""
        found = self._kernels.get(name)
        if isinstance(found, bytes):
            found = self._kernels[name] = parsed(found, kind)
        return found

    def put(self, name, kernel):
        """Keep a kernel."""
        with self._lock:
            self._kernels.setdefault(name, kernel)

    def add(self, contents):
        """Keep kernels, {name: `content_of` it}."""
        for name, content in contents.items():
            self.put(name, content)

    # ---- what plans ask of it

    def collect(self, launches, device, algorithm):
        """Keep the kernels of launches, which are those of an algorithm bound to its configuration."""
        if device.is_simulated:
            return
        with held_by(self):
            for kernel in kernels_of(launches, device):
                if _file_of(kernel) not in self._kernels:
                    kernel.compile()
        with self._lock:
            self._choices[algorithm.op, algorithm.name, algorithm.config_text] = None

    def holds(self, algorithm, problem, device) -> bool:
        """Whether the kernels are there with which an algorithm solves a problem."""
        launches = algorithm.build(problem, device, algorithm.config)
        return not device.is_simulated and all(_file_of(kernel) in self._kernels for kernel in kernels_of(launches, device))

    def preferred(self, algorithm, problem, device, exclude):
        """(algorithm, whether its kernels are there): the given one, or one whose kernels are there if those of the given one are not, and
        it is not predicted to take much longer."""
        if self.holds(algorithm, problem, device):
            return algorithm, True
        found, least = None, WORTH_COMPILING * algorithm.seconds(problem, device)
        for other in self._others(algorithm.op, problem, device, exclude):
            seconds = other.seconds(problem, device)
            if seconds <= least and self.holds(other, problem, device):
                found, least = other, seconds
        return found or algorithm, found is not None

    def _others(self, op, problem, device, exclude):
        """The algorithms of which it has kernels and that can solve a problem, bound to the configurations which they had."""
        with self._lock:
            texts = {}
            for _, name, text in (choice for choice in self._choices if choice[0] == op):
                texts.setdefault(name, []).append(text)
        for algorithm in dispatch.algorithms(op):
            wanted = texts.get(algorithm.name)
            if wanted is None or dispatch.refusal(algorithm, problem, device, exclude=exclude) is not None:
                continue
            configs = [None] if algorithm.configs is None else algorithm.configs(problem, device)
            yield from (bound for bound in map(algorithm.bound_to, configs) if bound.config_text in wanted)

    # ---- for other processes

    def contents(self, names) -> dict:
        """{name: `content_of` the kernel}"""
        with self._lock:
            found = {name: self._kernels[name] for name in names}
        return {name: kernel if isinstance(kernel, bytes) else content_of(kernel) for name, kernel in found.items()}

    def serialize(self) -> str:
        """All that it has as text, for `deserialize` of an empty one in any process."""
        kernels = self.contents(list(self._kernels))
        with self._lock:
            choices = [list(choice) for choice in self._choices]
        body = json.dumps({"kernels": {name: base64.b64encode(content).decode() for name, content in kernels.items()}, "choices": choices})
        return json.dumps({"format": FORMAT, "version": __version__, "sha256": _checksum(body), "body": body})

    def deserialize(self, data):
        """Take over what another one has serialized.

        Raises
        ------
        RuntimeError
            This one has kernels already (INVALID_VALUE); what is given is damaged, or of another version of the library.
        """
        if not isinstance(data, str):
            raise TypeError(f"deserialize: got {type(data).__name__}; expected the text that serialize() returned")
        if self._kernels or self._choices:
            raise InvalidValue(f"deserialize: the kernel cache has {len(self._kernels)} kernels already; expected an empty one")
        try:
            head = json.loads(data)
            if (head["format"], head["version"]) != (FORMAT, __version__):
                raise ValueError(f"format {head['format']} of version {head['version']}; expected format {FORMAT} of version {__version__}")
            if _checksum(head["body"]) != head["sha256"]:
                raise ValueError("its checksum is another")
            body = json.loads(head["body"])
            kernels = {name: base64.b64decode(content, validate=True) for name, content in body["kernels"].items()}
            choices = {(op, name, text): None for op, name, text in body["choices"]}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidValue(f"deserialize: no kernel cache, or a damaged one: {error}") from None
        with self._lock:
            self._kernels.update(kernels)
            self._choices.update(choices)


def create_kernel_cache() -> KernelCache:
    """An empty kernel cache."""
    return KernelCache()


def machine_code(plan) -> dict:
    """The kernels of a plan for a GPU, which need not be here, compiled: {name in the disk cache: `content_of` the kernel}.

    Where kernels run in host memory they are the processor's, or Python: a process of its own compiles them for a GPU.
    """
    jobs = [Job(step.op, step.problem, plan.device, a.name, a.config) for step, a in zip(plan.steps, plan.algorithms) if a is not None]
    if HOST_MEMORY and jobs:
        return _made_elsewhere(jobs, plan)
    holder, names = KernelCache() if plan.kernels is None else plan.kernels, []
    for algorithm, launches in plan.launches():
        holder.collect(launches, plan.device, algorithm)
        names += map(_file_of, kernels_of(launches, plan.device))
    return holder.contents(dict.fromkeys(names))


def _made_elsewhere(jobs, plan):
    from ..host.ahead import Compilation
    folder, files, why = cache_dir(), (), "there is no cache directory, where the process that compiles leaves kernels"
    if folder is not None:
        compilation = Compilation(plan.device)
        compilation.compile(jobs)
        why = "; ".join(f"{name}: {reason}" for name, reason in compilation.wait().failed.items())
        files = compilation.files
    if why:
        raise cudnnGraphNotSupportedError(f"{plan.name}: compiling for {plan.device.arch}: {why}", "GRAPH_EXECUTION_PLAN_CREATION_FAILED")
    return {name: (folder / name).read_bytes() for name in files}


@functools.lru_cache(maxsize=4096)
def _file_of(kernel):
    return kernel.file


def _checksum(text):
    return hashlib.sha256(text.encode()).hexdigest()
