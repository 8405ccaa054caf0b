"""Facts of a problem that many ask for, worked out once for each problem object."""
import functools


def remembered(function):
    """``function(thing, *others)`` with its answers kept by `thing`, an object with a `__dict__`, as `functools.cached_property` does.

    For what is derived from a problem again and again while an algorithm is chosen: a cache of the function's own would have to hash the
    whole problem each time, and would keep it alive.

    >>> class Square:
    ...     side = 3
    >>> asked = []
    >>> area = remembered(lambda square, times: asked.append(times) or times * square.side ** 2)
    >>> square = Square()
    >>> area(square, 2), area(square, 2), area(square, 1), asked
    (18, 18, 9, [2, 1])
    """
    name = f"{function.__module__}.{function.__qualname__}"

    @functools.wraps(function)
    def answer(thing, *others):
        known = thing.__dict__.get(name)
        if known is None:
            known = thing.__dict__[name] = {}
        if others not in known:
            known[others] = function(thing, *others)
        return known[others]
    return answer
