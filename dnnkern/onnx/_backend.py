"""ONNX's interface for backends: models and nodes on this library's kernels."""
import contextlib

import onnx
from onnx.backend.base import Backend, BackendRep, namedtupledict

from ..device import DEVICE, HOST_MEMORY, cuda
from ._errors import ModelError
from ._load import Input, checked, parsed
from ._program import Program
from ._report import rows_of
from ._values import as_value


class Model(BackendRep):
    """A model that is ready to run: what `prepare` returns.

    Attributes
    ----------
    inputs, outputs : list of Input
        `name`, `dtype` and `dims` of each; dims are numbers, names or None.
    name : str
    """

    def __init__(self, model, device=None, fuse=True):
        self._on = _index(device)
        proto, self.name, folder = parsed(model)
        try:
            proto, self.opsets = checked(proto, self.name, folder)
            self._make(proto.graph, fuse)
        except ModelError:
            raise
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
            raise ModelError(f"{self.name}: got a damaged model: {error}; expected one that ONNX's tools can read") from error

    def _make(self, graph, fuse):
        known = {tensor.name for tensor in graph.initializer}
        self.inputs = [Input(i) for i in graph.input if i.name not in known]
        self._optional = {i.name: Input(i) for i in graph.input if i.name in known}
        self.outputs = [Input(o) for o in graph.output]
        self.program = Program(graph, self.opsets, fuse)
        if self.program.free:
            raise ModelError(f"{self.name}: nodes read {', '.join(map(repr, self.program.free))}; expected inputs, initializers or results "
                             "of nodes")
        with _placed(self._on):
            self.program.upload()
        self._results = namedtupledict("Outputs", [o.name for o in self.outputs])

    def run(self, inputs, *, numpy=True, **kwargs):
        """Run the model.

        Parameters
        ----------
        inputs : dict of str to array, or sequence of arrays
            By name, or in the graph's order; a model with one input takes the array alone. NumPy arrays, or device arrays of Numba, which
            are not copied.
        numpy : bool
            Results in NumPy; else device arrays, and what the host has computed in NumPy.

        Returns
        -------
        named tuple of arrays
            One for each output of the graph, also by name: ``results["y"]``.

        Raises
        ------
        ModelError
            Inputs of other names, dtypes or shapes than the graph's; a node that cannot be computed: the message names it, what it got and
            why.

        Examples
        --------
        >>> import numpy as np, onnx.parser, dnnkern.onnx
        >>> model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 21]>'
        ...                                 'f (float[N] x) => (float[N] y) { y = Relu(x) }')
        >>> dnnkern.onnx.prepare(model).run(np.array([-1, 2], np.float32)).y
        array([0., 2.], dtype=float32)
        """
        values = self._named(inputs)
        known = {}
        for i in (*self.inputs, *self._optional.values()):
            if i.name in values:
                i.check(values[i.name], known)
        with _placed(self._on):
            results = self.program.run(values)
            results = [r.host() if numpy or r._device is None else r.device() for r in results]
        return self._results(*results)

    def _named(self, inputs):
        """{name: Value} of what was given."""
        expected = [i.name for i in self.inputs]
        if hasattr(inputs, "keys"):
            given = dict(inputs)
        else:
            single = not isinstance(inputs, (list, tuple)) or len(expected) == 1 and self.inputs[0].dtype is None and \
                not (len(inputs) == 1 and isinstance(inputs[0], (list, tuple)))
            inputs = [inputs] if single else inputs
            if len(inputs) > len(expected) + len(self._optional) or len(inputs) < len(expected):
                raise ModelError(f"run: got {len(inputs)} inputs; expected {len(expected)}: "
                                 f"{', '.join(f'{i.name} {i.describe()}' for i in self.inputs) or 'none'}")
            given = dict(zip([*expected, *self._optional], inputs))
        missing = [name for name in expected if name not in given]
        unknown = [name for name in given if name not in expected and name not in self._optional]
        if missing or unknown:
            raise ModelError(f"run: got inputs {', '.join(map(str, given)) or 'none'}; expected {', '.join(expected) or 'none'}")
        return {name: as_value(x) for name, x in given.items()}

    def report(self):
        """What has computed each node: a list of `Row`.

        Before a run it is what the table of operators says; whether a node's dtypes and attributes are computed here is known afterwards.

        Examples
        --------
        >>> import numpy as np, onnx.parser, dnnkern.onnx
        >>> model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 21]>'
        ...                                 'f (float[N] x) => (float[N] y) { a = Relu(x) b = Add(a, x) y = Det(b) }')
        >>> [(row.op, row.by, row.fused) for row in dnnkern.onnx.prepare(model).report()][1:]
        [('Add', 'dnnkern', ('a',)), ('Det', 'host', ())]
        """
        return rows_of(self.program)


class DnnkernBackend(Backend):
    """`onnx.backend.base.Backend` of this library: its methods are the functions of `dnnkern.onnx`."""

    @classmethod
    def prepare(cls, model, device=None, *, fuse=True, **kwargs):
        """Read a model, check it, and put its weights on the device.

        Parameters
        ----------
        model : onnx.ModelProto, bytes or path
            External data lies beside the file.
        device : str, optional
            "CPU", "CUDA" or "CUDA:1"; default: the device of this process (``DNNKERN_DEVICE``).
        fuse : bool
            Let convolutions, products and pointwise nodes run as one graph where they can.

        Returns
        -------
        Model

        Raises
        ------
        ModelError
            A file that is missing or no model, missing external data, an opset, domain or operator that ONNX has not, a graph that
            ONNX's checker refuses; a device other than the process's.
        TypeError
            A model of another type.

        Examples
        --------
        >>> import numpy as np, onnx.parser, dnnkern.onnx
        >>> model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 21]>'
        ...                                 'f (float[2, N] x) => (float[2, 2] y) { t = Transpose(x) y = MatMul(x, t) }')
        >>> prepared = dnnkern.onnx.prepare(model)
        >>> prepared.run({"x": np.array([[1, 2], [3, 4]], np.float32)})["y"]
        array([[ 5., 11.],
               [11., 25.]], dtype=float32)
        """
        return Model(model, device, fuse)

    @classmethod
    def run_model(cls, model, inputs, device=None, **kwargs):
        """Prepare a model and run it once: ``prepare(model, device).run(inputs)``.

        Examples
        --------
        >>> import numpy as np, onnx.parser, dnnkern.onnx
        >>> model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 21]>'
        ...                                 'f (float[N] x) => (float y) { y = ReduceSum <keepdims = 0> (x) }')
        >>> float(dnnkern.onnx.run_model(model, [np.ones(5, np.float32)]).y)
        5.0
        """
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(cls, node, inputs, device=None, outputs_info=None, *, opset_version=None, **kwargs):
        """Run one node.

        Parameters
        ----------
        node : onnx.NodeProto
        inputs : sequence of arrays
            Of the inputs that have names, in their order.
        device : str, optional
            As `prepare`'s.
        outputs_info
            Not needed.
        opset_version : int, optional
            Of the node's domain; default: the newest.

        Returns
        -------
        named tuple of arrays

        Examples
        --------
        >>> import numpy as np, onnx, dnnkern.onnx
        >>> node = onnx.helper.make_node("Softmax", ["x"], ["y"], axis=0)
        >>> dnnkern.onnx.run_node(node, [np.zeros(4, np.float32)]).y
        array([0.25, 0.25, 0.25, 0.25], dtype=float32)
        """
        names = list(dict.fromkeys(name for name in node.input if name))
        if len(inputs) != len(names):
            raise ModelError(f"run_node: got {len(inputs)} inputs; expected {len(names)}: {', '.join(names) or 'none'}")
        graph = onnx.helper.make_graph([node], node.op_type, [onnx.ValueInfoProto(name=name) for name in names],
                                       [onnx.ValueInfoProto(name=name) for name in node.output if name])
        domain = "" if node.domain == "ai.onnx" else node.domain
        newest = onnx.defs.onnx_opset_version() if not domain else 1
        opsets = {domain: opset_version or newest}
        program = Program(graph, opsets)
        with _placed(_index(device)):
            results = [v.host() for v in program.run({name: as_value(x) for name, x in zip(names, inputs)})]
        return namedtupledict("Outputs", program.outputs)(*results)

    @classmethod
    def supports_device(cls, device):
        """Whether this process runs on a device: "CPU" without a GPU, "CUDA" or "CUDA:1" on one.

        Examples
        --------
        >>> import dnnkern.onnx
        >>> dnnkern.onnx.supports_device("CPU"), dnnkern.onnx.supports_device("CUDA")
        (True, False)
        """
        try:
            _index(device)
        except ModelError:
            return False
        return True

    @classmethod
    def is_compatible(cls, model, device=None, **kwargs):
        """Whether `prepare` takes a model.

        Examples
        --------
        >>> import onnx, dnnkern.onnx
        >>> dnnkern.onnx.is_compatible(onnx.ModelProto())
        False
        """
        try:
            cls.prepare(model, device, **kwargs)
        except ModelError:
            return False
        return True


def _placed(index):
    """A block whose arrays are on the device of an index."""
    return cuda.gpus[index] if index and not HOST_MEMORY else contextlib.nullcontext()


def _index(device):
    """The index of a device by ONNX's name; ModelError where this process does not run on it."""
    if device is None:
        return 0
    kind, _, index = str(device).partition(":")
    ours = "CPU" if HOST_MEMORY else "CUDA"
    if kind not in ("CPU", "CUDA") or not (index or "0").isdigit():
        raise ModelError(f"device {device!r}; expected 'CPU', 'CUDA' or 'CUDA:0'")
    count = 1 if HOST_MEMORY else len(cuda.gpus)
    if kind != ours or int(index or 0) >= count:
        raise ModelError(f"device {device!r}; expected {ours!r}, of index {count - 1} at most: this process runs on {DEVICE} "
                         "(DNNKERN_DEVICE)")
    return int(index or 0)
