"""What goes wrong in a graph: the exceptions that the package `cudnn` raises, each with the name of cuDNN's error code.

Unset attributes, shapes that cannot be deduced, names and variant packs are ValueErrors, what no plan can do is a
`cudnnGraphNotSupportedError`, and the rest are RuntimeErrors.
"""


class _Coded:
    code = None

    def __init__(self, message):
        super().__init__(f"{self.code}: {message}")


class AttributeNotSet(_Coded, ValueError):
    """An attribute that cannot be inferred is missing."""
    code = "ATTRIBUTE_NOT_SET"


class ShapeDeductionFailed(_Coded, ValueError):
    """Dims or strides of a result cannot be inferred, or the operands' do not fit."""
    code = "SHAPE_DEDUCTION_FAILED"


class InvalidTensorName(_Coded, ValueError):
    """A name that no tensor has, or that two have."""
    code = "INVALID_TENSOR_NAME"


class InvalidVariantPack(_Coded, ValueError):
    """A buffer is missing, or is not what the graph needs."""
    code = "INVALID_VARIANT_PACK"


class InvalidValue(_Coded, RuntimeError):
    """An argument that makes no sense."""
    code = "INVALID_VALUE"


class WorkspaceTooSmall(InvalidValue):
    """`need` is how many bytes of workspace the call needs."""

    def __init__(self, message, need):
        super().__init__(message)
        self.need = need


class HandleError(_Coded, RuntimeError):
    """A handle that does not exist, or was destroyed."""
    code = "HANDLE_ERROR"


class ExecutionFailed(_Coded, RuntimeError):
    """A graph that cannot be executed, for it has no plan."""
    code = "GRAPH_EXECUTION_FAILED"


class UnsupportedGraphFormat(_Coded, RuntimeError):
    """A serialized graph that is damaged, or was made by another version or for another device."""
    code = "UNSUPPORTED_GRAPH_FORMAT"


def of_node(error, function, node):
    """The same error with the node in place of the function whose arguments were wrong."""
    text = str(error).removeprefix(f"{getattr(error, 'code', '')}: ").removeprefix(f"{function}: ")
    return type(error)(f"{node}: {text}")


class cudnnGraphNotSupportedError(RuntimeError):
    """No plan can do what the graph asks for."""

    def __init__(self, message, code="GRAPH_NOT_SUPPORTED"):
        super().__init__(message if message.startswith(code) else f"{code}: {message}")
