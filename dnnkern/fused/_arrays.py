"""What the kernels of this family share: any number of arrays of different types, an element's coordinates, and its offset in each."""
import functools

from ..device import device_function, i32
from ..device._parameters import structure
from ..device.index import divided, divide_remainder, divisor
from ..device.program import element_of
from ..host.launch import Argument


@functools.cache
def struct_of(types):
    """A NamedTuple class of members of these types, of one int32 where there are none."""
    return structure("Members", types or ("int32",))


def struct_argument(types, values):
    """A kernel parameter of these members, which may be `Argument`."""
    kind = struct_of(tuple(types))
    return Argument(kind, kind(*(values or (0,))))


def number_arguments(problem):
    """The kernel parameter of the numbers that are given at each launch."""
    types = problem.scalar_types
    return struct_argument(types.values(), [Argument(kind, name) for name, kind in types.items()])


def pointer_positions(program):
    """Where in the tuple of pointers each addressed array is; indices are in none."""
    found, count = [], 0
    for _, access in program.loads:
        if access in ("matrix", "index"):
            found.append(count)
            count += access == "matrix"
    return (*found, *range(count, count + len(program.stores)))


# ---- where an element is

@functools.cache
def make_coordinates(dims, any_size=False):
    """Device function ``coordinates(index, sizes)``: an element's index along each dimension, the last of which is fastest: int32; with
    `any_size` int64, by divisions. `sizes` is `coordinate_argument`."""
    @device_function
    def coordinates(index, sizes):
        return (index,)
    for d in range(1, dims):
        coordinates = _with_coordinate(coordinates, d, any_size)
    return coordinates


def _with_coordinate(outer, D, any_size):
    A, B, C = 3 * D, 3 * D + 1, 3 * D + 2
    if any_size:
        @device_function
        def coordinates(index, sizes):
            rest, i = divided(index, sizes[D])
            return outer(rest, sizes) + (i,)
    else:
        @device_function
        def coordinates(index, sizes):
            rest, i = divide_remainder(index, (sizes[A], sizes[B], sizes[C]))
            return outer(rest, sizes) + (i,)
    return coordinates


def coordinate_argument(sizes, any_size=False):
    """The kernel parameter `sizes` of `make_coordinates`."""
    values = tuple(sizes) if any_size else tuple(v for n in sizes for v in divisor(n))
    return Argument(f"{'int64' if any_size else 'uint32'}x{len(values)}", values)


@functools.cache
def make_offset(array, arrays, dims):
    """Device function ``offset(coordinates, strides)``: of one of the arrays, in elements. `strides` is `stride_argument`."""
    @device_function
    def offset(at, strides):
        return at[0] * strides[array]
    for d in range(1, dims):
        offset = _with_dimension(offset, d, d * arrays + array)
    return offset


def _with_dimension(outer, D, S):
    @device_function
    def offset(at, strides):
        return outer(at, strides) + at[D] * strides[S]
    return offset


def stride_argument(dims, wide):
    """The kernel parameter `strides` of `make_offset`: of each dimension, of each array."""
    values = tuple(s for d in dims for s in d.strides)
    return Argument(f"int{64 if wide else 32}x{len(values)}", values)


# ---- the tuple of an element's loads

def make_loads(program, of_array, of_number):
    """The device functions, one a load of the program but for constants, in their order: ``of_array(k, dtype, access)`` makes that of array
    k of the form, ``of_number(k, dtype)`` that of number k."""
    found, arrays, numbers = [], 0, 0
    for dtype, access in program.loads:
        if access in ("matrix", "index"):
            found.append(of_array(arrays, dtype, access))
            arrays += 1
        elif access == "value":
            found.append(of_number(numbers, dtype))
            numbers += 1
    return found


def joined(functions):
    """Device function of as many parameters that returns the tuple of what these device functions return; of none of them a 0."""
    found = _first(functions[0]) if functions else _nothing
    for f in functions[1:]:
        found = _and(found, f)
    return found


@device_function
def _nothing(a, b, c):
    return (0,)


def _first(f):
    @device_function
    def one(a, b, c):
        return (f(a, b, c),)
    return one


def _and(before, f):
    @device_function
    def more(a, b, c):
        return before(a, b, c) + (f(a, b, c),)
    return more


# ---- element by element

def make_element_loads(program, addressed, arrays, dims):
    """Device function ``loaded(at, strides, e)``: the tuple of an element's loads, `e` being (pointers, firsts, numbers); `addressed` is
    the program whose loads and stores are all arrays."""
    pointers = pointer_positions(addressed)

    def of_array(k, dtype, access):
        offset, P = make_offset(k, arrays, dims), pointers[k]
        if access == "index":
            @device_function
            def value(at, strides, e):
                return i32(e[1][k] + offset(at, strides))
            return value
        load = element_of(dtype).load

        @device_function
        def value(at, strides, e):
            return load(e[0][P], e[1][k] + offset(at, strides))
        return value

    def of_number(K, dtype):
        @device_function
        def value(at, strides, e):
            return e[2][K]
        return value
    return joined(make_loads(program, of_array, of_number))


def make_element_stores(program, arrays, dims):
    """Device function ``store(values, at, strides, e)``: an element's results."""
    pointers, first, store = pointer_positions(program), arrays - len(program.stores), None
    for j, (_, dtype, _) in enumerate(program.stores):
        k = first + j
        store = _with_store(store, j, element_of(dtype).store, make_offset(k, arrays, dims), pointers[k], k)
    return store


def _with_store(before, J, store, offset, P, K):
    """The stores `before`, and that of result J."""
    if before is None:
        @device_function
        def first(values, at, strides, e):
            store(e[0][P], e[1][K] + offset(at, strides), values[J])
        return first

    @device_function
    def stores(values, at, strides, e):
        before(values, at, strides, e)
        store(e[0][P], e[1][K] + offset(at, strides), values[J])
    return stores


__all__ = ["coordinate_argument", "joined", "make_coordinates", "make_element_loads", "make_element_stores", "make_loads", "make_offset",
           "number_arguments", "pointer_positions", "stride_argument", "struct_argument", "struct_of"]
