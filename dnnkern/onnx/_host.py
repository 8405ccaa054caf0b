"""What this library has no call for: a node by ONNX's reference evaluator, on the host."""
import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator


class Evaluator:
    """ONNX's evaluator of one node.

    Parameters
    ----------
    node : Node
    """

    def __init__(self, node):
        self.node, self.exists = node, node.version is not None
        self._prepared = {}

    def run(self, inputs):
        """Results of ``{name: NumPy array, list or None}``, a list with None for those without a name."""
        kinds = tuple((name, x.dtype if isinstance(x, np.ndarray) else None) for name, x in inputs.items())
        if kinds not in self._prepared:
            self._prepared[kinds] = self._evaluator(kinds)
        found = iter(self._prepared[kinds].run(None, inputs))
        return [next(found) if name else None for name in self.node.outputs]

    def _evaluator(self, kinds):
        """Some operators are defined by others, depending on the types of what they get: the graph says them."""
        node = self.node
        inputs = [onnx.ValueInfoProto(name=name) if dtype is None else
                  onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(dtype), None) for name, dtype in kinds]
        graph = onnx.helper.make_graph([node.proto], "node", inputs, [onnx.ValueInfoProto(name=name) for name in node.outputs if name])
        return ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid(*d) for d in node.opsets.items()]))
