"""Attention backward: dq, dk, dv, and the gradients of bias and sink."""
