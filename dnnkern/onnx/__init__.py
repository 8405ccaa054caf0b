"""Models of ONNX on this library's kernels, without the framework that exported them.

`prepare` reads a model and uploads its weights; `Model.run` runs it. `Backend` has these functions as ONNX's tests of backends call them.
It needs the package onnx.
"""
from ._backend import DnnkernBackend, Model
from ._errors import ModelError
from ._report import Row
from ._table import markdown

Backend = DnnkernBackend
prepare, run_model, run_node = DnnkernBackend.prepare, DnnkernBackend.run_model, DnnkernBackend.run_node
supports_device, is_compatible = DnnkernBackend.supports_device, DnnkernBackend.is_compatible

__all__ = ["Backend", "Model", "ModelError", "Row", "is_compatible", "markdown", "prepare", "run_model", "run_node", "supports_device"]
