"""The constants of all cost models, in one table: what an `estimate` needs beside counts of its problem and rates of its device.

A row is one model's. It says where its numbers come from: *fitted* to times measured on a device (the run is a file of bench/results),
*counted* in machine code, or *guessed*: by reasoning, never measured. A fitted row names the command that fits it to runs like that one;
numbers listed as guessed were not part of the fit. Units are seconds, bytes, instructions or cycles, as the row says; rates are shares of
the device's nominal ones.

>>> row = constants("device")
>>> row.launch, row.about.source.kind, row.about.source.device
(2.5e-06, 'fitted', 'NVIDIA H200')
"""
from . import memory_bound, products
from ._row import TABLE, About, Constants, Source


def constants(name) -> Constants:
    """The row of a model."""
    return TABLE[name]


__all__ = ["TABLE", "About", "Constants", "Source", "constants", "memory_bound", "products"]
