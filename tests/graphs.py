"""What the tests of graphs share: building a graph of one operation and running it on NumPy arrays."""
import numpy as np

import dnnkern.graph as cudnn
from dnnkern.device import HOST_MEMORY, cuda
from dnnkern.host.dtypes import numpy_dtype

T = cudnn.data_type
DTYPE = {T.FLOAT: "float32", T.DOUBLE: "float64", T.HALF: "float16", T.BFLOAT16: "bfloat16", T.INT8: "int8", T.INT32: "int32",
         T.UINT8: "uint8", T.BOOLEAN: "bool", T.INT64: "int64", T.FP8_E4M3: "float8_e4m3fn",
         T.FP8_E5M2: "float8_e5m2", T.FP8_E8M0: "float8_e8m0fnu"}


def array_of(t, fill=None):
    """A buffer for a tensor, with its strides; full of NaN unless `fill` is given."""
    dim, stride, dtype = t.get_dim(), t.get_stride(), numpy_dtype(DTYPE[t.get_data_type()])
    size = 1 + sum((n - 1) * s for n, s in zip(dim, stride)) if 0 not in dim else 0
    memory = np.full(max(size, 1) * dtype.itemsize, 0xFF, np.uint8)
    made = np.ndarray(dim, dtype, memory, 0, [s * dtype.itemsize for s in stride])
    if fill is not None:
        made[...] = fill
    return made


def run(graph, inputs, outputs, modes=(cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK)):
    """Build a graph and run it: {tensor: array}, outputs; returns the arrays of the outputs."""
    graph.build(list(modes))
    results = [array_of(t) for t in outputs]
    execute(graph, {**inputs, **dict(zip(outputs, results))})
    return results


def execute(graph, pack, index=None):
    """Run a built graph, or a plan of it, on NumPy arrays, copied to the device and back where that is not the host."""
    size = graph.get_workspace_size() if index is None else graph.get_workspace_size_plan_at_index(index)
    function = graph.execute if index is None else lambda p, w: graph.execute_plan_at_index(p, w, index)
    workspace = np.full(size, 0xFF, np.uint8)
    if HOST_MEMORY:
        function(pack, workspace)
        return
    sent = {}
    for key, array in pack.items():
        by_value = isinstance(key, cudnn.tensor) and key.get_is_pass_by_value()
        if isinstance(array, np.ndarray) and not by_value and id(array) not in sent:
            sent[id(array)] = array, cuda.to_device(whole(array).view(np.uint8))
    moved = {key: sent[id(array)][1] if id(array) in sent else array for key, array in pack.items()}
    function(moved, cuda.to_device(workspace) if size else None)
    for array, device in sent.values():
        whole(array).view(np.uint8)[...] = device.copy_to_host()


def whole(array):
    """The memory from an array's first element to its last, flat, as integers: `as_strided` knows no other types."""
    array = array.view(f"u{array.itemsize}")
    size = 1 + sum((n - 1) * s // array.itemsize for n, s in zip(array.shape, array.strides)) if array.size else 0
    return np.lib.stride_tricks.as_strided(array, (size,), (array.itemsize,))


def apart(b, make):
    """(parts, the reasons why there are no fewer) of the cut that may join most, of a graph that ``make(b)`` describes."""
    from dnnkern.graph._partition import ALL, joined
    make(b)
    b.graph.validate()
    why = {}
    parts = joined(b.graph.spec, list(b.graph.spec.nodes), why, *ALL)
    return len(parts), sorted(set(why.values()))


def new_graph(io=T.FLOAT, intermediate=T.FLOAT, compute=T.FLOAT):
    """A graph with these types."""
    return cudnn.pygraph(io_data_type=io, intermediate_data_type=intermediate, compute_data_type=compute)


def like(graph, array):
    """A tensor like an array of the host, which need not be of a device's."""
    return graph.tensor(array.shape, [s // array.itemsize for s in array.strides], array.dtype)


def channels_last(array):
    """The same values with dim 1 fastest."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)


def close(got, expected, dtype=None, factor=4, scale=None):
    """Assert that values are as exact as their type allows, times a factor."""
    from dnnkern.host.dtypes import ROUNDOFF
    dtype = dtype or got.dtype.name
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    assert got.shape == expected.shape
    scale = np.maximum(np.abs(expected), 1e-3) if scale is None else scale
    bound = factor * max(ROUNDOFF.get(dtype, 0), 2.0 ** -24) * scale
    wrong = ~(np.abs(got - expected) <= bound) & ~(np.isnan(got) & np.isnan(expected)) & (got != expected)
    assert not wrong.any(), (got[wrong][:4], expected[wrong][:4])


def draw(shape, seed, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def linear(m=12, n=10, k=8, name="linear"):
    """relu(a @ b + bias), and its tensors."""
    graph = cudnn.pygraph(name, io_data_type=T.FLOAT, intermediate_data_type=T.FLOAT, compute_data_type=T.FLOAT)
    a, b = graph.tensor([1, m, k], [m * k, k, 1], name="a"), graph.tensor([1, k, n], [k * n, n, 1], name="b")
    bias = graph.tensor([1, m, 1], [m, 1, 1], name="bias")
    y = graph.relu(graph.bias(graph.matmul(a, b, name="mm"), bias, name="add"), name="relu").set_output(True).set_name("y")
    return graph, a, b, bias, y


def values(m=12, n=10, k=8):
    a, b, bias = draw((1, m, k), 1), draw((1, k, n), 2), draw((1, m, 1), 3)
    return a, b, bias, np.maximum(a.astype(float) @ b + bias, 0)
