"""The garbage collector pauses while families of operations and Numba are imported, and while Numba compiles."""
import contextlib
import gc


@contextlib.contextmanager
def no_collections(stays=False):
    """Within, the garbage collector pauses: compiling makes many objects that stay, and looking through them was a sixth of its time.

    Where everything that is made `stays`, as what imports make does, it counts as old right away: the next collection does not look
    through it either.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            if stays and not gc.get_freeze_count():  # what a program has frozen itself stays so
                gc.freeze()
                gc.unfreeze()  # into the oldest generation
            gc.enable()
