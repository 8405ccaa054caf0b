"""Words for places in a kernel's source, made only when a message needs them."""
import dis


def line(code, offset):
    """The source line of bytecode `offset`."""
    number = next((n for first, last, n in code.co_lines() if first <= offset < last), code.co_firstlineno)
    return f"line {number} of {code.co_name}"


class ArrayName:
    """`kind` of array and the variable to which the call at bytecode `offset` of `code` is assigned, else the call's line."""
    __slots__ = "kind", "code", "offset"

    def __init__(self, kind, code, offset):
        self.kind, self.code, self.offset = kind, code, offset

    def __str__(self):
        following = next((i for i in dis.get_instructions(self.code) if i.offset > self.offset), None)
        if following is not None and following.opname.startswith(("STORE_FAST", "STORE_DEREF")):
            stored = following.argval  # of a fused instruction the names of both halves
            return f"{self.kind} {stored if isinstance(stored, str) else stored[0]}"
        return f"{self.kind} of {line(self.code, self.offset)}"


class PartName:
    """The part of an array that `key` selects."""
    __slots__ = "whole", "key"

    def __init__(self, whole, key):
        self.whole, self.key = whole, key

    def __str__(self):
        return f"{self.whole}[{self.key}]"
