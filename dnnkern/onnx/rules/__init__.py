"""Operators of ONNX by family: each function computes one or several by this library's calls."""
