"""What commands print besides tables: documents of JSON, and nothing where quiet is asked for; streams that end early."""
import contextlib
import json
import math
import os
import sys
import warnings

from . import __version__, _table
from ._parser import program

SCHEMA = 1  # of what `document` prints; docs/commands.md has the fields. It goes up when a field changes or goes, not when one is added.
FAILED, INTERRUPTED, PIPE_CLOSED = 1, 130, 141  # the last two as a shell says of a program that SIGINT or SIGPIPE has ended


def add_outputs(add, as_json=True):
    """The options, by a parser's ``add_argument``."""
    if as_json:
        add("--json", action="store_true", help="print one JSON document instead of tables (docs/commands.md has its fields)")
    add("--quiet", action="store_true", help="print results alone: no remarks, no progress")


def document(command, **fields):
    """Print a command's results as JSON; numbers that are not finite are null."""
    print(json.dumps({"schema": SCHEMA, "dnnkern": __version__, "command": command, **_finite(fields)}, indent=2))


def _finite(value):
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def guarded(run) -> int:
    """The exit code of `run()`, also where a pipe's reader has gone, the disk is full, or Ctrl-C was pressed: one line at most. The
    library's warnings are a line each, without that of its source."""
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # closed by who started this
    python = warnings.formatwarning
    warnings.formatwarning = lambda message, *given, **words: (f"{message}\n" if str(message).startswith("dnnkern: ") else
                                                               python(message, *given, **words))
    try:
        try:
            return run()
        finally:
            warnings.formatwarning = python
            sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as head, has what it wanted
        _abandon(sys.stdout, sys.stderr)
        return PIPE_CLOSED
    except OSError as error:
        _abandon(sys.stdout)
        print(f"{program()}: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        _table.note()
        print(f"{program()}: interrupted", file=sys.stderr)
        return INTERRUPTED


def _abandon(*streams):
    """What a stream still holds goes nowhere: no message at the end of the process."""
    for stream in streams:
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
            continue
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
