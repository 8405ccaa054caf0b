"""What a forked child has to make anew: locks, since a thread that held one in the parent does not exist in the child."""
import os


def in_forked_child(renew):
    """Call `renew()` in every child that this process forks, before anything else runs there."""
    if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
        os.register_at_fork(after_in_child=renew)
