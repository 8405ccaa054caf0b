"""Dims and strides: one memory view with other dims."""
import math


def in_dims(shape, strides, dims):
    """The strides with which memory of this shape and strides, 0 where it is broadcast, has other dims of as many elements in the same
    order; None where there are none."""
    if tuple(shape) == tuple(dims):
        return tuple(strides)
    if math.prod(shape) != math.prod(dims) or 0 in shape:
        return None
    kept = [(n, s) for n, s in zip(shape, strides) if n != 1]
    found, at = [0] * len(dims), 0
    groups = _groups([n for n, _ in kept], dims)
    for count, axes in groups:
        some = kept[at:at + count]
        at += count
        if any(s != n_next * s_next for (_, s), (n_next, s_next) in zip(some, some[1:])):
            return None
        step = some[-1][1] if some else 0
        for axis in reversed(axes):
            found[axis] = step
            step *= dims[axis]
    return tuple(found)


def _groups(sizes, dims):
    """[(how many of the sizes, axes of the dims)] of the least runs with as many elements; axes of extent 1 are in none."""
    groups, left = [], [k for k, n in enumerate(dims) if n != 1]
    at = 0
    while at < len(sizes) or left:
        count, have = 1, sizes[at]
        axes, need = [left[0]], dims[left[0]]
        left = left[1:]
        while have != need:
            if have < need:
                have *= sizes[at + count]
                count += 1
            else:
                need *= dims[left[0]]
                axes.append(left[0])
                left = left[1:]
        groups.append((count, axes))
        at += count
    return groups


def expanded(shape, strides, to):
    """Strides of memory that is broadcast to a shape."""
    missing = len(to) - len(shape)
    return (0,) * missing + tuple(0 if n == 1 else s for n, s in zip(shape, strides))


def padded(dims, strides, rank):
    """The same memory with dims of extent 1 in front, up to so many."""
    missing = max(rank - len(dims), 0)
    return (1,) * missing + tuple(dims), (0,) * missing + tuple(strides)


def packed_like(dims, strides):
    """Packed strides of dims, in the order of other strides."""
    found, step = [0] * len(dims), 1
    for axis in sorted(range(len(dims)), key=lambda k: (strides[k], -k)):
        found[axis] = step
        step *= dims[axis]
    return tuple(found)


def are_same(dims, strides, others):
    """Whether strides are the same where they matter."""
    return all(n == 1 or s == t for n, s, t in zip(dims, strides, others))
