"""Rows of matrices, by their numbers in arrays: gather and scatter."""
