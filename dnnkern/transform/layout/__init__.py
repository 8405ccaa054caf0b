"""Elements in another order or array: transpose, concat, slice, pad, depth and space."""
