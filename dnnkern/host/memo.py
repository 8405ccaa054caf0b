"""What is worked out again and again while algorithms are chosen, remembered until choices change."""
import functools

_caches = []
_age = [0]


def forget():
    """All of it: there is a new algorithm, or a model's numbers have changed."""
    _age[0] += 1
    for cache_clear in _caches:
        cache_clear()


def kept(maxsize):
    """Decorator: `functools.lru_cache` until `forget`."""
    def decorate(function):
        cached = functools.lru_cache(maxsize)(function)
        _caches.append(cached.cache_clear)
        return cached
    return decorate


def remembered(function):
    """``function(thing, *others)`` with its answers kept by `thing` itself, an object with a `__dict__`, until `forget`.

    For facts of a problem: a cache of the function's own would have to hash the whole problem each time.

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
        age, known = thing.__dict__.get(name, _NEVER)
        if age != _age[0]:
            known = {}
            thing.__dict__[name] = _age[0], known
        if others not in known:
            known[others] = function(thing, *others)
        return known[others]
    return answer


_NEVER = None, None
