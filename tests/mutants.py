"""Kernels and named ways to break each by one edit of its source: what the tests of the simulator's vigilance share.

A mutant is (text, replacement, what notices it, words of the message); `Wrong` stands for a result that differs.
"""
import inspect
import textwrap

import numpy as np
import pytest

from dnnkern.device.sim import config, cuda


class Wrong(Exception):
    """The kernel ran and its result is not the right one."""


@pytest.fixture(params=["fifo", "lifo", "random"], autouse=True)
def schedule(request):
    """Every test under every policy."""
    old = dict(vars(config))
    config.policy, config.seed, config.spin_limit, config.lines = request.param, 11, 5000, False
    yield
    vars(config).update(old)


def check(function, run):
    """Raise what is wrong with a kernel; `run(kernel)` gives what it computed and what is right."""
    got, want = run(cuda.jit(function))
    if not (np.asarray(got) == want).all():
        raise Wrong


def edited(function, old, new):
    """`function` with one piece of its source replaced."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{source.count(old)} places in {function.__name__} read {old!r}"
    scope = dict(function.__globals__)
    exec(compile(source.replace(old, new), f"<broken {function.__name__}>", "exec"), scope)
    return scope[function.__name__]


def listed(cases):
    """Parameters of a test of every mutant, from a dictionary of kernels to (run, mutants)."""
    pairs = [(f, name) for f, (_, mutants) in cases.items() for name in mutants]
    return pytest.mark.parametrize("function, name", pairs, ids=[f"{f.__name__}: {n}" for f, n in pairs])


def check_broken(cases, function, name):
    """The mutant is noticed, and in these words."""
    run, mutants = cases[function]
    old, new, error, text = mutants[name]
    with pytest.raises(error, match=text):
        check(edited(function, old, new), run)
