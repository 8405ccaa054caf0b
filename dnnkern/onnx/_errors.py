"""What is wrong with a model, and why a node stays ONNX's."""


class ModelError(ValueError):
    """A model, or what it was given, that cannot run; the message names the file or the node, what was got and what was expected."""


class Refused(Exception):
    """Why this library's functions do not compute a node: ONNX's evaluator does."""
