"""Problems from their records: what `dnnkern.algorithm.problem_record` made of them, as JSON."""
from dataclasses import fields, is_dataclass
from typing import get_args

from ..device.activation import Activation
from ..device.program import Program
from .tensor import Tensor


def problem_of_record(kind, op, record):
    """The problem of this dataclass; ValueError where the record is of something else."""
    try:
        if record.get("op", op) != op:
            raise TypeError(f"one of {record['op']}")
        hints = {field.name: field.type for field in fields(kind)}
        return kind(**{name: _value(value, hints.get(name)) for name, value in record.items()})
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{op}: not a record of a problem: {type(error).__name__}: {error}") from None


def tensor_of_record(record):
    """A tensor's."""
    return Tensor(tuple(record["shape"]), tuple(record["strides"]), record["dtype"], record["alignment"])


def _value(value, hint):
    """A field's: a list is a tuple, a dict what the field's annotation says; programs are not annotated everywhere."""
    if isinstance(value, list):
        return tuple(_value(v, None) for v in value)
    if not isinstance(value, dict):
        return value
    if "strides" in value:
        return tensor_of_record(value)
    kind = next((k for k in (hint, *get_args(hint)) if is_dataclass(k)), Program)
    if kind is Activation:
        return Activation(value["mode"], **{name: float(v) for name, v in value["parameters"]})
    return kind.of_record(value) if hasattr(kind, "of_record") else kind(**value)
