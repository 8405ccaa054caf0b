"""How the benches' cases make their graphs of PyTorch's arrays."""
import contextlib

IO = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BFLOAT16", "float8_e4m3fn": "FP8_E4M3"}
"""dtype -> cuDNN's name of it."""


_PLANNED_FOR = []


@contextlib.contextmanager
def planned_for(device):
    """Within, graphs are planned for the device of these properties, and nothing is compiled."""
    _PLANNED_FOR.append(device)
    try:
        yield
    finally:
        _PLANNED_FOR.pop()


class Making:
    """A graph as it is made: `graph`, and `given`, {tensor: name of its array}. `more`: keywords of pygraph."""

    def __init__(self, case, io, arrays, handle=None, **more):
        import dnnkern.graph as cudnn
        self.cudnn, self.arrays, self.given = cudnn, arrays, {}
        if _PLANNED_FOR:
            more["device_property"] = _PLANNED_FOR[-1]
        self.graph = cudnn.pygraph(str(case), cudnn.data_type[IO[io]], cudnn.data_type.FLOAT, cudnn.data_type.FLOAT, handle=handle, **more)

    def tensor(self, name):
        """A new tensor of the array of a name."""
        t = self.arrays[name]
        made = self.graph.tensor(t.shape, t.stride(), t.dtype, name=name)
        self.given[made] = name
        return made

    def number(self, value):
        """A number that is known when the graph is built."""
        return self.graph.tensor_scalar(value, self.cudnn.scalar_type.COMPILE_TIME_CONST)

    def result(self, t, name="y"):
        """A tensor is written to the array of a name."""
        array = self.arrays[name]
        t.set_output(True).set_data_type(array.dtype).set_dim(array.shape).set_stride(array.stride())
        self.given[t] = name

    def apart(self, is_apart):
        """(the graph, `given`), built by that of its plans with names that `is_apart` takes which is predicted to be the fastest."""
        self.graph.build()
        self.graph.create_execution_plans([self.cudnn.heur_mode.B])
        for index in range(self.graph.get_execution_plan_count()):
            if is_apart(self.graph.get_plan_name_at_index(index).split(" | ")):
                self.graph.build_plan_at_index(index)
                return self.graph, self.given
        raise RuntimeError(f"bench graph: {self.graph.get_name()} has no plan of the parts apart")

    def built(self):
        """(the graph, built, `given`)"""
        if _PLANNED_FOR:
            self.graph.validate()
            self.graph.build_operation_graph()
            self.graph.create_execution_plans([self.cudnn.heur_mode.A])
        else:
            self.graph.build([self.cudnn.heur_mode.A])
        return self.graph, self.given
