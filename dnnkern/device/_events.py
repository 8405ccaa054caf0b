"""Stretches of time as events of Chrome's trace format, which Perfetto reads: a block is a process, its tracks are threads."""

TRACKS = {"thread": (0, "warp {}"), "products": (1000, "wgmma of warpgroup {}"), "copies": (2000, "copies {}")}


def events(blocks, slices, titles={}) -> list:
    """Events of the format.

    Parameters
    ----------
    blocks : dict of {block: str}
        What each is called.
    slices : iterable of (block, (kind, number), begin, end, text, details)
        `kind` is one of `TRACKS`; "thread" stands for a warp. Times are in microseconds, as the format has them. Of a warp's text what
        comes after ": " is among the details.
    titles : dict of {(block, (kind, number)): str}
        What tracks are called other than `TRACKS` has it.
    """
    numbers, named = {block: k for k, block in enumerate(blocks)}, set()
    found = [{"ph": "M", "name": "process_name", "pid": numbers[block], "args": {"name": name}} for block, name in blocks.items()]
    for block, (kind, number), begin, end, text, details in slices:
        first, title = TRACKS[kind]
        at = {"pid": numbers[block], "tid": first + number}
        if (block, kind, number) not in named:
            named.add((block, kind, number))
            found += [{"ph": "M", "name": "thread_name", **at, "args": {"name": titles.get((block, (kind, number)), title.format(number))}},
                      {"ph": "M", "name": "thread_sort_index", **at, "args": {"sort_index": first + number}}]
        what, _, more = text.partition(": ")
        found.append({"ph": "X", "cat": kind, "name": what if kind == "thread" else text, **at, "ts": begin, "dur": end - begin,
                      "args": details | ({"what": more} if kind == "thread" and more else {})})
    return found


class Lanes:
    """Tracks for what overlaps: each stretch gets the first one that is free."""

    def __init__(self):
        self._busy = []

    def take(self, begin, end) -> int:
        """The number of a track that is free from `begin` on; it is taken until `end`."""
        for k, busy in enumerate(self._busy):
            if busy <= begin:
                self._busy[k] = end
                return k
        self._busy.append(end)
        return len(self._busy) - 1
