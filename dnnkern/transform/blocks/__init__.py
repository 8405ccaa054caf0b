"""Blocks of elements that share a scale: MXFP8, NVFP4 and their like."""
