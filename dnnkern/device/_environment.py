"""Environment variables that take words or a number: what is none of them is an error that names the variable."""
import os


def words(variable, known) -> frozenset:
    """The words given, separated by commas."""
    given = os.environ.get(variable, "")
    found = frozenset(filter(None, map(str.strip, given.split(","))))
    if found - {*known}:
        raise ValueError(f"{variable}={given!r}; expected {', '.join(known)}{', or several of them with commas' if len(known) > 1 else ''}")
    return found


def checks() -> frozenset:
    """What DNNKERN_CHECK asks for (see `host.check`)."""
    return words("DNNKERN_CHECK", ("bounds", "integers", "nan", "unwritten", "values"))


def word(variable, known, default) -> str:
    """The one word given, or the default where there is none."""
    given = os.environ.get(variable) or default
    if given not in known:
        raise ValueError(f"{variable}={given!r}; expected one of {', '.join(known)}")
    return given


def integer(variable, default=0, least=0) -> int:
    """The number given, or the default where there is none."""
    given = os.environ.get(variable) or default
    try:
        found = int(given)
    except ValueError:
        found = None
    if found is None or found < least:
        raise ValueError(f"{variable}={given!r}; expected an integer of {least} or more")
    return found
