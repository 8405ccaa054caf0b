"""What somebody who wrote a name that there is not may have meant."""
import difflib


def nearest(name, known, count=3) -> str:
    """"; did you mean 'a' or 'b'?", to end a message with; "" where nothing known is like it.

    >>> nearest("sofmax_fwd", ["softmax_fwd", "softmax_bwd", "matmul"])
    "; did you mean 'softmax_fwd' or 'softmax_bwd'?"
    >>> nearest("conv", ["conv_fwd", "im2col"])
    "; did you mean 'conv_fwd'?"
    >>> nearest("x", ["matmul"])
    ''
    """
    text, known = str(name).lower(), sorted(map(str, known))
    begins = sorted((k for k in known if len(text) > 1 and k.lower().startswith(text)), key=len)
    like = [k for k in difflib.get_close_matches(text, known, count, 0.7) if k not in begins]
    found = [repr(k) for k in (*begins, *like)[:count]]
    return f"; did you mean {' or '.join(filter(None, (', '.join(found[:-1]), found[-1])))}?" if found else ""
