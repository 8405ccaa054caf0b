"""Which algorithm the contract runs on which case: a sample with every algorithm, dtype and problem at least once, drawn with a fixed
seed; everything under --full.

In the simulator a plan that takes longer than `MOST_SECONDS`, as `seconds` estimates, is left to a GPU. What may not be left out by it,
`test_the_simulator_runs_every_algorithm` and `test_the_sample_has_every_algorithm_dtype_and_problem` of test_contract.py specify.
"""
import collections
import functools
import hashlib
import random
from dataclasses import asdict, dataclass

import cases
import kept
from contract import device, refusal

import dnnkern
from dnnkern import dispatch
from dnnkern.device import SIMULATED
from dnnkern.dispatch import Note
from dnnkern.host import sources

MOST_SECONDS = 2.0
AGAIN = 3  # problems of an algorithm there, the shortest, on which all is run; of the others, exact and rounded values by turns, once
SEVERAL_SECONDS = 1.0  # that several configurations may take on one problem there
VARIANTS, FURTHER = (2, 1) if SIMULATED else (3, 3)  # configurations, the most promising first, and on how many problems of an algorithm
SEED = 20

OPS = cases.modules()
CASES = {op: {c.id: c for c in (*module.CASES, *(() if SIMULATED else module.LARGE))} for op, module in OPS.items()}


@dataclass(frozen=True)
class Row:
    """One run of the contract: an algorithm in one configuration on one case, and the seconds it takes in the simulator, a guess.

    `only` is what `contract.check` takes; `reason` is why the algorithm refuses the case, where it has to.
    """
    op: str
    algo: str
    case: str
    config: str = ""
    only: str | None = None
    seconds: float = 0.0
    reason: str | None = None

    @property
    def dtype(self):
        return dtype_of(self.case)

    def resolve(self):
        """The algorithm, bound to the configuration, and the case."""
        algorithm, case = next(a for a in dispatch.algorithms(self.op) if a.name == self.algo), CASES[self.op][self.case]
        if self.config:
            algorithm = next(v for v in algorithm.variants(case.problem(), device()) if v.config_text == self.config)
        return algorithm, case


def dtype_of(case_id):
    """The dtype that a case's id ends with."""
    return case_id.split("-")[-1]


def seconds(variant, problem, case):
    """What the simulator takes, a guess: by threads, their shared memory and the elementary steps of an output, fitted to 1650 runs."""
    launches, tensor_core = variant.build(problem, device(), variant.config), Note.TENSOR_CORE in variant.notes
    threads = sum(_volume(k.grid) * _volume(k.block) for k in launches)
    shared = sum(_volume(k.grid) * k.shared for k in launches)
    steps = threads * (case.work / max(1, sum(p.size for p in case.outputs().values())))
    return 1.15e-4 * threads + (9e-7 * shared + 1.6e-6 * steps if tensor_core else 8e-6 * shared + 3.8e-7 * steps)


def _volume(v):
    return v[0] * v[1] * v[2]


@functools.cache
def supported(op):
    """[(algorithm, case, problem)] of all pairs where the algorithm supports the problem."""
    found = []
    for case in CASES[op].values():
        problem = case.problem()
        found += [(a, case, problem) for a in dispatch.algorithms(op) if refusal(a, problem) is None]
    return found


def runs(algorithm, case, problem):
    """[(variant, seconds)] of an algorithm that run here on a problem, the most promising first: those within the simulator's bound."""
    if problem.is_empty:
        return [(algorithm, 0.0)]
    variants = algorithm.variants(problem, device())
    if not SIMULATED:  # of seconds only the order counts there: plans are not built for it
        return [(v, 1e-9 * sum(p.size for p in case.outputs().values())) for v in variants]
    timed = [(v, seconds(v, problem, case)) for v in variants]
    return [(v, s) for v, s in timed if s <= MOST_SECONDS]


def _draw(op):
    """[(variant, case, seconds)]: every problem, with the algorithm that has had the least time so far; every algorithm with every dtype
    it has and at least four problems; and `FURTHER` times several configurations of an algorithm. Else it is the most promising one, in
    the simulator the shortest."""
    pairs = list(supported(op))
    random.Random(SEED).shuffle(pairs)
    able = {}
    for algorithm, case, problem in pairs:
        able.setdefault(case.id, []).append((algorithm, case, problem))
    counts, spent, kinds, chosen, further = collections.Counter(), collections.Counter(), set(), {}, collections.Counter()

    def take(algorithm, case, problem):
        timed = runs(algorithm, case, problem) if (algorithm.name, case.id) not in chosen else ()
        if not timed:
            return False
        shortest = min(timed, key=lambda row: row[1]) if SIMULATED else timed[0]
        some, several = [shortest], list(dict.fromkeys([*timed[:VARIANTS], shortest]))
        if len(several) > 1 and further[algorithm.name] < FURTHER:
            if not SIMULATED or sum(s for _, s in several) <= SEVERAL_SECONDS:
                some = several
                further[algorithm.name] += 1
        chosen[algorithm.name, case.id] = [(v, case, s) for v, s in some]
        counts[algorithm.name] += 1
        spent[algorithm.name] += sum(s for _, s in some)
        kinds.add((algorithm.name, dtype_of(case.id)))
        return True

    for rows in able.values():
        any(take(*row) for row in sorted(rows, key=lambda row: spent[row[0].name]))
    for algorithm, case, problem in pairs:
        if not problem.is_empty and ((algorithm.name, dtype_of(case.id)) not in kinds or counts[algorithm.name] < 4):
            take(algorithm, case, problem)
    order = {name: k for k, name in enumerate(CASES[op])}
    return [row for key in sorted(chosen, key=lambda key: (key[0], order[key[1]])) for row in chosen[key]]


def _thorough(drawn):
    """Which rows of a sample, by number, the simulator runs in every way; those of empty problems, which launch nothing, are none."""
    costs = {}
    for k, (variant, _, cost) in enumerate(drawn):
        if cost:
            costs.setdefault(variant.name, []).append((cost, k))
    return {k for some in costs.values() for _, k in sorted(some)[:AGAIN]}


def _rows(op, full):
    drawn = [(v, case, s) for a, case, p in supported(op) for v, s in runs(a, case, p)] if full else _draw(op)
    thorough, seen, found = _thorough(drawn) if SIMULATED and not full else range(len(drawn)), collections.Counter(), []
    for k, (variant, case, cost) in enumerate(drawn):
        only = None if k in thorough else ("exact", "float")[seen[variant.name] % 2]
        seen[variant.name] += 1
        found.append(Row(op, variant.name, case.id, variant.config_text, only, float(f"{cost:.3g}")))
    return found


def _refused(op, full):
    found = []
    for algorithm in dispatch.algorithms(op):
        seen = set()
        for case in CASES[op].values():
            problem = case.problem()
            reason = refusal(algorithm, problem)
            if reason and not problem.is_empty and (full or reason not in seen):
                seen.add(reason)
                found.append(Row(op, algorithm.name, case.id, reason=reason))
    return found


def rows(op, full=False):
    """The runs of an operation's algorithms. Kept from one collection to the next, as long as nothing changes that they are made of."""
    return _kept(_rows, op, full)


def refused(op, full=False):
    """For each algorithm of an operation a case that it refuses, for each of its reasons."""
    return _kept(_refused, op, full)


def share(number, count):
    """Draw what nobody has kept, beginning where no other of so many processes begins: each finds what the others have drawn."""
    ops = list(OPS)
    first = number * len(ops) // count
    for op in ops[first:] + ops[:first]:
        rows(op)
        refused(op)


def _kept(make, op, full):
    digest = hashlib.sha256(repr((make.__name__, op, full, device())).encode())
    for path in sorted(_files(op)):
        digest.update(path.name.encode() + path.read_bytes())
    return [Row(**row) for row in kept.json_of(f"rows/{op}-{digest.hexdigest()[:24]}", lambda: [asdict(row) for row in make(op, full)])]


def family_of(op):
    """The folder of an operation."""
    return getattr(dnnkern, op).__module__.split(".")[1]


def _files(op):
    """The sources on which an operation's rows rest: all of its family, its cases, and what they import."""
    tests = sources.PACKAGE.parent / "tests"
    family = (sources.PACKAGE / family_of(op)).rglob("*.py")
    return sources.closure(tests / "sample.py", tests / "cases" / f"{op}.py", *family)
