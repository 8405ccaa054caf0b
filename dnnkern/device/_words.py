"""Words that the simulator's reports and the processor's share."""


def listed(numbers, most=8):
    """Ascending numbers as ranges: "0-31, 40, 41", cut off after so many of them."""
    out, first = [], None
    for here, following in zip(numbers, [*numbers[1:], None]):
        first = here if first is None else first
        if following != here + 1:
            out.append(str(first) if first == here else f"{first}-{here}")
            first = None
    return ", ".join(out[:most]) + (", ..." if len(out) > most else "")


def ranges(ids):
    """Thread numbers as words: "thread 3", "34 threads 0-31, 40, 41"."""
    return ("thread " if len(ids) == 1 else f"{len(ids)} threads ") + listed(ids)
