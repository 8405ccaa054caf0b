"""`tensor`: what the caller holds of a tensor of a graph, and sets attributes of until the graph is built."""
import operator

from ._enums import DTYPE, as_data_type, data_type, member, tensor_reordering
from ._errors import InvalidValue
from ._ir import TensorSpec

MOST_DIMENSIONS = 8


class tensor:
    """A tensor of a graph. Setters return the tensor, so that they chain.

    Made by `pygraph.tensor`, `tensor_like`, `tensor_scalar`, and by operations. Two objects are the same tensor only if they are the same
    object; as keys of a variant pack they stand for their uid.
    """

    def __init__(self, graph, name="", producer=None):
        self._graph, self._producer = graph, producer
        self._name, self._dim, self._stride, self._type = name, None, None, data_type.NOT_SET
        self._virtual, self._by_value, self._value, self._constant = producer is not None, False, None, False
        self._uid, self._ragged, self._reordering, self._alignment, self._vector = None, None, tensor_reordering.NONE, 16, None
        self._marked = self._stored = False  # set_output or set_is_virtual was called; what was inferred to be an output
        self._inside = None  # the node that has it inside only
        self._inferred = set()  # attributes that inference has set, which a later one may set anew

    # ---- getters

    def get_name(self):
        """The name; "" if it has none."""
        return self._name

    def get_data_type(self):
        """The type of its elements."""
        return self._type

    def get_dim(self):
        """The dims, as a list; empty until they are set or inferred."""
        return list(self._dim or ())

    def get_stride(self):
        """The strides in elements, as a list; empty until they are set or inferred."""
        return list(self._stride or ())

    def get_is_virtual(self):
        """Whether it is an intermediate result that has no buffer."""
        return self._virtual and not self._stored

    def get_is_pass_by_value(self):
        """Whether it is a number in host memory, read at each execution."""
        return self._by_value

    def get_has_compile_time_constant(self):
        """Whether its value belongs to the graph."""
        return self._constant

    def get_uid(self):
        """The uid; 0 until it is set or assigned at build."""
        return self._uid or 0

    def get_reordering_type(self):
        """The order of elements within blocks."""
        return self._reordering

    def get_alignment(self):
        """Bytes that the address of its buffer must be a multiple of."""
        return self._alignment

    def get_vector_count(self):
        """Elements of a vectorized format; 1 for the others."""
        return self._vector[0] if self._vector else 1

    def get_vector_dimension(self):
        """The dimension that is vectorized; -1 if none is."""
        return self._vector[1] if self._vector else -1

    # ---- setters

    def set_name(self, name):
        """Set the name."""
        if not isinstance(name, str):
            raise TypeError(f"set_name: name is {name!r}; expected a string")
        return self._set("name", name)

    def set_data_type(self, data_type):
        """Set the type: a `data_type`, or a torch or NumPy dtype. A virtual tensor is rounded to it."""
        return self._set("type", as_data_type(data_type, self._what("set_data_type")))

    def set_dim(self, dim):
        """Set the dims."""
        return self._set("dim", sizes(dim, self._what("set_dim"), 0))

    def set_stride(self, stride):
        """Set the strides, in elements."""
        return self._set("stride", sizes(stride, self._what("set_stride"), 0))

    def set_is_virtual(self, is_virtual):
        """Say whether it is an intermediate result that has no buffer."""
        self._marked = True
        return self._set("virtual", bool(is_virtual))

    def set_output(self, is_output):
        """Say whether it is an output, which is stored in a buffer of the variant pack."""
        return self.set_is_virtual(not is_output)

    def set_is_pass_by_value(self, is_pass_by_value):
        """Say whether it is a number in host memory, read at each execution."""
        return self._set("by_value", bool(is_pass_by_value))

    def set_uid(self, uid):
        """Set the uid, by which a variant pack may name it."""
        return self._set("uid", _integer(uid, self._what("set_uid")))

    def set_reordering_type(self, reordering_type):
        """Set the order of elements within blocks."""
        return self._set("reordering", member(tensor_reordering, reordering_type, self._what("set_reordering_type")))

    def set_alignment(self, alignment):
        """Set the bytes that the address of its buffer is a multiple of: a power of two."""
        alignment = _integer(alignment, self._what("set_alignment"))
        if alignment < 1 or alignment & alignment - 1:
            raise InvalidValue(f"{self._what('set_alignment')}: alignment is {alignment}; expected a power of two")
        return self._set("alignment", alignment)

    def set_vector_count_and_dimension(self, vector_count, vector_dimension):
        """Set how many elements of which dimension make one element of a vectorized format."""
        what = self._what("set_vector_count_and_dimension")
        return self._set("vector", (_integer(vector_count, what), _integer(vector_dimension, what)))

    def set_ragged_offset(self, ragged_offset):
        """Set the tensor of the offsets, in elements, at which the batches begin: B + 1 of them, int32 or int64."""
        if not isinstance(ragged_offset, tensor):
            raise TypeError(f"{self._what('set_ragged_offset')}: got {ragged_offset!r}; expected a tensor of the graph")
        self._graph._own(ragged_offset, self._what("set_ragged_offset"))
        return self._set("ragged", ragged_offset)

    def _set(self, attribute, value):
        self._graph._changing(self._what(f"set_{attribute}"))
        setattr(self, "_" + attribute, value)
        self._inferred.discard(attribute)
        return self

    def _what(self, function):
        return f"{function} of tensor {self._label()}"

    def _label(self):
        """What messages call it."""
        return repr(self._name) if self._name else f"of uid {self._uid}" if self._uid else "without a name"

    # ---- inference

    def _infer(self, attribute, value):
        """Set what the caller has not."""
        if attribute in self._inferred or getattr(self, "_" + attribute) in (None, data_type.NOT_SET):
            setattr(self, "_" + attribute, value)
            self._inferred.add(attribute)

    def _forget(self):
        """Drop what was inferred."""
        for attribute in self._inferred:
            setattr(self, "_" + attribute, data_type.NOT_SET if attribute == "type" else None)
        self._inferred.clear()
        self._stored = False

    def _spec(self, uid, uid_of):
        """Its attributes as plain data; UINT8 of vectors of 8 is BOOLEAN, one bit per element."""
        dim, stride, kind = self._dim, self._stride, self._type.name
        if kind == "UINT8" and self._vector and dim and stride:
            dim, kind = in_bits(dim, self._vector[1]), "BOOLEAN"
            stride = tuple(1 if axis == self._vector[1] else 8 * s for axis, s in enumerate(stride))
        return TensorSpec(uid, self._name, dim, stride, kind, self.get_is_virtual(), self._by_value, self._value,
                          self._constant, None if self._ragged is None else uid_of(self._ragged), self._reordering.name, self._alignment,
                          self._vector)

    def __repr__(self):
        from json import dumps
        return dumps({"name": self._name, "uid": self._uid, "data_type": self._type.name, "dim": self.get_dim(),
                      "stride": self.get_stride(), "is_virtual": self.get_is_virtual(), "is_pass_by_value": self._by_value,
                      "pass_by_value": self._value, "reordering_type": self._reordering.name, "alignment": self._alignment})


def tensor_of(graph, spec) -> tensor:
    """A tensor of a graph as it is in a spec, but for its ragged offset."""
    made = tensor(graph, spec.name)
    made._dim, made._stride, made._type, made._uid, made._virtual = spec.dim, spec.stride, data_type[spec.dtype], spec.uid, spec.virtual
    made._by_value, made._value, made._constant, made._alignment = spec.by_value, spec.value, spec.constant, spec.alignment
    made._vector, made._reordering, made._marked = spec.vector, tensor_reordering[spec.reordering], True
    return made


def in_bits(dim, axis):
    """The dims of what has 8 bits along an axis for each of its elements."""
    return tuple(8 * n if k == axis else n for k, n in enumerate(dim))


def sizes(values, what, least):
    """A tuple of up to 8 ints; dims and strides of any sequence."""
    try:
        found = tuple(operator.index(v) for v in values)
    except TypeError:
        raise TypeError(f"{what}: got {values!r}; expected a sequence of ints") from None
    if len(found) > MOST_DIMENSIONS:
        raise InvalidValue(f"{what}: got {len(found)} dims, {found}; expected {MOST_DIMENSIONS} at most")
    if any(v < least for v in found):
        raise InvalidValue(f"{what}: got {found}; expected no negative values")
    return found


def _integer(value, what):
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what}: got {value!r}; expected an int") from None


def library_dtype(spec_dtype):
    """The library's dtype of a `data_type`'s name, or None for those that it has not."""
    return DTYPE.get(spec_dtype)
