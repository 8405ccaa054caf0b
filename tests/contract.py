"""The contract every algorithm keeps on every problem it supports; `test_contract.py` states it, `test_contract_itself.py` tries it out."""
import contextlib
import dataclasses
import itertools

import numpy as np
import pytest
from cases import ITEMSIZE, Place, poison
from cases._conv_fft import fft_error
from labs import elsewhere, guarded, synchronize

from dnnkern import dispatch
from dnnkern.device import HOST_MEMORY
from dnnkern.dispatch import Note

ALLOW = Note.NONDETERMINISTIC
ONCE = {"only": "exact"} if HOST_MEMORY else {}
"""For `check` of many configurations: all of it on a GPU, one run in the simulator."""
_names = itertools.count()


def device():
    """The device the tests run on."""
    from dnnkern.host.device import current_device
    from dnnkern.host.device import device as device_of
    return device_of(current_device())


def refusal(algorithm, problem):
    """Why an algorithm cannot solve a problem on this device; None if it can."""
    return algorithm.refusal(problem, device())


@contextlib.contextmanager
def registered(algorithm):
    """The algorithm, with the configuration it may be bound to, under a name of its own: so the public function can be forced to it."""
    mine = dataclasses.replace(algorithm, name=f"{algorithm.name}@{next(_names)}")
    dispatch.register(mine)
    try:
        yield mine
    finally:
        dispatch.unregister(mine)


class Run:
    """One call with watched memory everywhere."""

    def __init__(self, case, algorithm, values, *, tight=False, dirt=None, stream=None):
        problem = case.problem()
        self.case, self.tight = case, tight
        shared = {i: o for o, i in case.in_place().items()}
        self.outputs = {name: guarded(p, values[case.in_place()[name]] if name in case.in_place() else None, tight)
                        for name, p in case.outputs().items()}
        self.inputs = {name: self.outputs[shared[name]] if name in shared else p and guarded(p, values[name], tight)
                       for name, p in case.inputs().items()}
        need = 0 if problem.is_empty else algorithm.workspace(problem, device(), algorithm.configured(problem, device()).config)
        assert isinstance(need, int) and need >= 0, f"{algorithm} declares {need!r} bytes of workspace"
        self.workspace = guarded(Place((need,), "uint8", (1,)), None if dirt is None else np.resize(dirt, need), tight) if need else None
        self._poison_workspace(dirt)
        arrays = {name: x and x.array for name, x in self.inputs.items()}
        out = tuple(x.array for x in self.outputs.values())
        result = case.call(arrays, out if len(out) > 1 else out[0], algo=algorithm.name, allow=ALLOW, stream=stream,
                           workspace=self.workspace and self.workspace.array)
        assert result is out[0] if len(out) == 1 else all(r is o for r, o in zip(result, out)), "the given out is what is returned"
        synchronize()

    def _poison_workspace(self, dirt):
        if self.workspace is None or dirt is not None:
            return
        if isinstance(self.workspace.array, np.ndarray):
            self.workspace.array[...] = poison("float")
        else:
            self.workspace.array.fill_(poison("float"))

    def check_memory(self):
        """Inputs unchanged, nothing written outside outputs and workspace."""
        for name, x in self.inputs.items():
            if x is not None and name not in self.case.in_place().values():
                x.assert_untouched(f"input {name}")
        for name, x in self.outputs.items():
            x.assert_guards(f"output {name}")
        if self.workspace is not None:
            self.workspace.assert_guards("workspace")

    def check_values(self, reference, tolerance):
        """Every element within its bound; NaN is never."""
        for name, x in self.outputs.items():
            assert_within(x.read(), reference[name], tolerance[name], f"{self.case.id}: {name}")

    def raw(self):
        """The outputs' bytes."""
        return {name: x.raw() for name, x in self.outputs.items()}


def assert_within(got, reference, tolerance, what):
    """|got - reference| <= tolerance, element by element."""
    assert got.shape == reference.shape, f"{what}: shape {got.shape}, expected {reference.shape}"
    with np.errstate(invalid="ignore"):
        error = np.where(got == reference, 0.0, np.abs(got - reference))  # equal infinities have no difference
    wrong = ~(error <= tolerance)
    if wrong.any():
        at = tuple(int(v[0]) for v in np.nonzero(wrong)) if got.ndim else ()
        worst = np.nanmax(error / np.maximum(tolerance, 1e-300)) if np.isfinite(error).any() else np.inf
        raise AssertionError(f"{what}: {int(wrong.sum())} of {wrong.size} elements are wrong; the first at {at} is {got[at]!r}, expected "
                             f"{reference[at]!r} within {np.broadcast_to(tolerance, got.shape)[at]:.3g}; worst {worst:.3g} tolerances")


def assert_telling(reference, case):
    """A reference that is mostly zero, or the same everywhere, would prove nothing."""
    for name, y in reference.items():
        if y.size >= 16 and not case.trivial:
            zeros = y.size - np.count_nonzero(y)
            assert zeros <= 0.9 * y.size, f"{case.id}: {name} is zero in {zeros} of {y.size} elements"
            assert np.unique(y).size > 2, f"{case.id}: {name} has {np.unique(y).size} values only"


def check(algorithm, case, again=True, only=None):
    """The whole contract of one algorithm (and configuration) on one case; AssertionError, or the simulator's own error.

    Without `again` the same values are not computed twice: half of the time, but who adds in any order is not found out. With `only`,
    "exact" or "float", there is one run, of exact values with guards or of others without: a quarter of the time.
    """
    with registered(algorithm) as mine:
        if only is not None:
            (check_exact if only == "exact" and case.exact else check_float)(mine, case, again=False)
            return
        if case.exact:
            check_exact(mine, case, again)
        check_float(mine, case, again or not case.exact)


def check_exact(algorithm, case, again=True):
    """Without rounding: equal to the last bit with guards around everything, and once more without them and with dirty workspace.

    Where the algorithm's own constants round, within its bound.
    """
    values = case.values("exact")
    if Note.WINOGRAD_TILE_6x6 in algorithm.notes or Note.FFT in algorithm.notes:  # thirds, roots of unity
        reference, tolerance = bounded(algorithm, case, values)
    else:
        reference, _ = case.reference(values)
        tolerance = {name: np.zeros(()) for name in reference}
    run = Run(case, algorithm, values)
    run.check_memory()
    run.check_values(reference, tolerance)
    if again:
        run = Run(case, algorithm, values, tight=True, dirt=_dirt())
        run.check_memory()
        run.check_values(reference, tolerance)


def check_float(algorithm, case, again=True):
    """With rounding: within the bound of the definition; a second run elsewhere, with dirty workspace, gives the same bytes.

    Without `again` the one run has no guards and dirty workspace: `check_exact` has seen the others.
    """
    values = case.values("float")
    reference, tolerance = bounded(algorithm, case, values)
    assert_telling(reference, case)
    first = Run(case, algorithm, values) if again else Run(case, algorithm, values, tight=True, dirt=_dirt())
    first.check_memory()
    first.check_values(reference, tolerance)
    if not again:
        return
    with elsewhere() as stream:
        second = Run(case, algorithm, values, dirt=_dirt(), stream=stream)
    synchronize()
    second.check_memory()
    second.check_values(reference, tolerance)
    if algorithm.is_deterministic:
        for name, bytes_ in second.raw().items():
            same = np.array_equal(bytes_, first.raw()[name])
            assert same, f"{case.id}: {name} differs between two runs; {algorithm} is not NONDETERMINISTIC"


def bounded(algorithm, case, values):
    """The reference and the bound of a correct result by this algorithm's arithmetic."""
    reference, tolerance = case.reference(values, Note.TENSOR_CORE in algorithm.notes)
    if Note.WINOGRAD in algorithm.notes:
        more = case.winograd_error(values, 6 if Note.WINOGRAD_TILE_6x6 in algorithm.notes else 4)
        tolerance = {name: bound + more[name] for name, bound in tolerance.items()}
    if Note.FFT in algorithm.notes:
        more = fft_error(case, values)
        tolerance = {name: bound + more[name] for name, bound in tolerance.items()}
    return reference, tolerance


def check_refusal(algorithm, case, reason):
    """Forced through the public function, the algorithm refuses by name and with that reason, and nothing is written."""
    values = case.values("exact")
    outputs = {name: guarded(p) for name, p in case.outputs().items()}
    shared = {i: o for o, i in case.in_place().items()}
    inputs = {name: outputs[shared[name]] if name in shared else p and guarded(p, values[name]) for name, p in case.inputs().items()}
    out = tuple(x.array for x in outputs.values())
    try:
        case.call({name: x and x.array for name, x in inputs.items()}, out if len(out) > 1 else out[0], algo=algorithm.name, allow=ALLOW)
    except dispatch.NotSupported as error:
        assert repr(algorithm.name) in str(error) and reason in str(error), f"the refusal {str(error)!r} does not say {reason!r}"
    else:
        raise AssertionError(f"{algorithm} does not support {case.id} ({reason}), and ran it")
    synchronize()
    for name, x in outputs.items():
        x.assert_untouched(f"output {name}")


def _dirt():
    """Bytes as another operation may have left them: no NaN among them, no zeros."""
    return np.random.default_rng(5).integers(1, 127, 4096).astype(np.uint8)


def elements(place):
    """Bytes of an operand's elements."""
    return place.size * ITEMSIZE[place.dtype]


def random_problems(request, problems, examples):
    """Every algorithm on cases that hypothesis draws: `problems(draw)` makes one. Twenty times as many under --full."""
    hypothesis = pytest.importorskip("hypothesis")
    full = request.config.getoption("--full")

    @hypothesis.settings(max_examples=20 * examples if full else examples, deadline=None, derandomize=not full, database=None,
                         suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(hypothesis.strategies.composite(problems)())
    def check_one(case):
        problem = case.problem()
        able = [a for a in dispatch.algorithms(case.op) if problem.is_empty or refusal(a, problem) is None]
        values = case.values("float")
        for algorithm in able[:1] if problem.is_empty else able:
            reference, tolerance = bounded(algorithm, case, values)
            run = Run(case, algorithm, values, tight=True)
            run.check_memory()
            run.check_values(reference, tolerance)
    check_one()


def random_layout(draw, st, ndim):
    """Keywords of `cases.lay`: gaps, steps, misalignment, an order of dimensions, some of them backwards."""
    layout = {"gap": draw(st.sampled_from([0, 0, 0, 1, 8])), "step": draw(st.sampled_from([1, 1, 1, 2])),
              "misaligned": draw(st.sampled_from([0, 0, 1, 4]))}
    if ndim and draw(st.booleans()):
        layout["order"] = tuple(draw(st.permutations(range(ndim))))
        layout["flip"] = tuple(sorted(draw(st.sets(st.integers(0, ndim - 1), max_size=2))))
    return layout
