"""Operations that move elements: reshape, transpose, slice, concatenate. Types stay."""
import operator

from .._enums import member, reshape_mode
from .._errors import InvalidValue
from .._infer import by_order, channels_last, row_major
from ._define import operation


def _same_type(node, port="X", result="Y"):
    """The result has the operand's type, whatever the intermediate type is; another is refused."""
    given, out = node.inputs[port]._type, node.outputs[result]
    out._infer("type", given)
    node.expect(out._type is given, result, f"data type {out._type.name}", f"{given.name}, as the input has")


@operation(tag="RESHAPE", tail=False)
def reshape(input, name="", reshape_mode=reshape_mode.VIEW_ONLY):
    """The same elements, in lexicographic order of their indices, in the dims that ``set_dim`` gives the result."""
    from .._enums import reshape_mode as kinds
    return {"X": input}, {"reshape_mode": member(kinds, reshape_mode, "reshape: reshape_mode").name}


@reshape.infer
def _(node):
    dim = node.dim("X")
    _same_type(node)
    node.result("Y", None, channels_last)
    out = node.outputs["Y"]._dim
    node.expect(_volume(out) == _volume(dim), "Y", f"dims {out} of {_volume(out)} elements", f"{_volume(dim)}, as X has (dims {dim})")


def _volume(dim):
    found = 1
    for n in dim:
        found *= n
    return found


@reshape.lower
def _(part):
    x, y = part.input("X"), part.output("Y")
    if x.tensor.is_packed:
        part.copy(x.view(y.shape, row_major(y.shape)), y)
    elif y.tensor.is_packed:
        part.copy(x, y.view(x.shape, row_major(x.shape)))
    else:
        packed = part.temporary(x.shape, x.dtype)
        part.copy(x, packed)
        part.copy(packed.view(y.shape, row_major(y.shape)), y)


@operation(tag="TRANSPOSE")
def transpose(input, permutation):
    """Dims in another order: axis i of the result is axis ``permutation[i]`` of the input."""
    try:
        order = tuple(operator.index(axis) for axis in permutation)
    except TypeError:
        raise TypeError(f"transpose: permutation is {permutation!r}; expected a sequence of ints") from None
    return {"X": input}, {"permutation": order}


@transpose.infer
def _(node):
    dim, stride, order = node.dim("X"), node.stride("X"), node.attributes["permutation"]
    node.expect(sorted(order) == list(range(len(dim))), "X", f"permutation {order}", f"each of {len(dim)} axes once")
    _same_type(node)
    node.result("Y", [dim[a] for a in order], [stride[a] for a in order])


@transpose.lower
def _(part):
    part.copy(part.input("X").permuted(part.attribute("permutation")), part.output("Y"))


@operation(tag="SLICE")
def slice(input, slices):
    """A part of the input: Python slices, one a dim, with positive steps."""
    made = []
    for part in slices:
        if not all(hasattr(part, name) for name in ("start", "stop", "step")):
            raise TypeError(f"slice: slices has {part!r}; expected Python slices")
        made.append((part.start, part.stop, part.step))
    return {"X": input}, {"slices": tuple(made)}


@slice.infer
def _(node):
    import builtins
    dim, stride, slices = node.dim("X"), node.stride("X"), node.attributes["slices"]
    node.expect(len(slices) <= len(dim), "X", f"{len(slices)} slices", f"{len(dim)} at most, one for each dim")
    ranges = []
    for n, (start, stop, step) in zip(dim, (*slices, *((None, None, None),) * (len(dim) - len(slices)))):
        node.expect(step is None or step > 0, "X", f"a step of {step}", "positive ones")
        ranges.append(range(*builtins.slice(start, stop, step).indices(n)))
    node.attributes["slices"] = tuple((r.start, r.stop, r.step) for r in ranges)
    _same_type(node)
    node.result("Y", [len(r) for r in ranges], [s * r.step for s, r in zip(stride, ranges)])


@slice.lower
def _(part):
    x, y = part.input("X"), part.output("Y")
    if not y.tensor.size:
        return
    starts, _, steps = zip(*part.attribute("slices"))
    first = sum(s * start for s, start in zip(x.tensor.strides, starts))
    part.copy(x.view(y.shape, [s * step for s, step in zip(x.tensor.strides, steps)], first), y)


@operation(tag="CONCATENATE", tail=False)
def concatenate(inputs, axis, in_place_index=None, name=""):
    """Tensors one after the other along an axis. Results of other nodes are written where they belong, other tensors copied but that of
    `in_place_index`, which is that part of the result's buffer already: its first element has the address that it has there."""
    inputs = list(inputs)
    if not inputs:
        raise InvalidValue("concatenate: inputs is empty; expected one tensor at least")
    return ({f"X_{k}": t for k, t in enumerate(inputs)},
            {"axis": int(axis), "in_place_index": None if in_place_index is None else operator.index(in_place_index)})


@concatenate.infer
def _(node):
    first, axis = node.dim("X_0"), node.attributes["axis"]
    node.expect(-len(first) <= axis < len(first), "X_0", f"axis {axis} of {len(first)} dims", f"{-len(first)} to {len(first) - 1}")
    axis = node.attributes["axis"] = axis % len(first)
    total = 0
    for port in node.inputs:
        dim = node.dim(port)
        node.expect(len(dim) == len(first) and all(k == axis or n == m for k, (n, m) in enumerate(zip(dim, first))), port, f"dims {dim}",
                    f"{first} but for axis {axis}")
        node.expect(node.inputs[port]._type is node.inputs["X_0"]._type, port, f"data type {node.inputs[port]._type.name}",
                    f"{node.inputs['X_0']._type.name}, as X_0 has")
        total += dim[axis]
    index = node.attributes["in_place_index"]
    node.expect(index is None or 0 <= index < len(node.inputs), "X_0", f"in_place_index {index}", f"0 to {len(node.inputs) - 1}")
    _same_type(node, "X_0")
    dim = (*first[:axis], total, *first[axis + 1:])
    stride = node.stride("X_0")
    node.result("Y", dim, by_order(dim, sorted(range(len(dim)), key=lambda a: (-stride[a], a))))


@concatenate.lower
def _(part):
    """One copy for each tensor that is not there."""
    y, axis, first = part.output("Y"), part.attribute("axis"), 0
    for port, _ in part.node.inputs:
        x = part.input(port)
        there = y.view(x.shape, y.tensor.strides, first * y.tensor.strides[axis])
        if x.tensor.size and (x.buffer, x.offset) != (there.buffer, there.offset):
            part.copy(x, there)
        first += x.shape[axis]
