"""What is wrong with a model, and why a node stays ONNX's."""


class ModelError(ValueError):
    """A model, or what it was given, that cannot run; the message, one line, names the file or the node, what was got and what was
    expected."""

    def __init__(self, message):
        super().__init__(" ".join(str(message).split()))


class Refused(Exception):
    """Why this library's functions do not compute a node: ONNX's evaluator does."""
