"""One problem measured: every algorithm and peer checked, timed in turns, checked again, and described as rows."""
import copy
import random

from dnnkern import dispatch
from dnnkern._table import note
from dnnkern.device import HOST_MEMORY
from dnnkern.dispatch import candidates, operation_of, reference_of
from dnnkern.find import Trial, set_reference
from dnnkern.host.driver import CudaError
from dnnkern.host.operands import Operands
from dnnkern.host.timing import host_seconds, loop_seconds, race, sustained

from . import code, roof, sensors

CHOSEN = "chosen"  # in place of an algorithm's name: what get_algorithm answers
HOPELESS = 30.0  # what is predicted to be this many times slower than the best is timed only when asked for
LEAST_REST = 0.05  # of a peer without what ours do not: below, its time and that of the part are too near each other


def names_of(args, op) -> set:
    """The names of ``--algo``; ValueError where the operation lacks one of them."""
    names, known = set(filter(None, args.algo.split(","))), [a.name for a in dispatch.algorithms(op)]
    unknown = names - {*known, CHOSEN}
    if unknown:
        raise ValueError(f"bench: {op} has no algorithm {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return names


class ContextLost(RuntimeError):
    """A kernel's fault has ended this process's context: nothing runs in it any more."""


def is_lost(clock) -> bool:
    """Whether nothing runs any more."""
    try:
        clock.synchronize()
    except CudaError:
        return True
    return False


class CaseBench:
    """One case measured.

    Attributes
    ----------
    hopeless : dict
        Of the algorithms left out, by name and configuration: how many times the best one's time they are predicted to take.
    """

    def __init__(self, case, device, clock=None, peers=(), roofs=None, limits=None, readings=None):
        self.case, self.problem, self.operation, self.device = case, case.problem, operation_of(case.op), device
        self.clock, self.peers, self.roofs, self.limits, self.hopeless = clock, peers, roofs or {}, limits or {}, {}
        self.sensors = readings or sensors.NoSensors()

    def trials(self, args, names=None) -> list:
        """What to time, of `names` alone where they are given: of each algorithm the configurations that are predicted to be the fastest,
        what `get_algorithm` answers, and ``--random`` configurations of any algorithm that the estimates think little of, so that a regret
        is not only of what they like."""
        problem, device, named = self.problem, self.device, names_of(args, self.operation.op)
        found = candidates(self.operation.op, problem, device, configurations=args.configs, **self.limits)
        chosen = dispatch.get_algorithm(self.operation.op, problem, device=device, prefer="device", **self.limits)
        self.chosen = self._key(chosen)
        self.estimates = {self._key(a): a.seconds(problem, device) for a in found}
        self.predicted = min(self.estimates, key=self.estimates.get)
        if self.chosen not in self.estimates:
            found.append(chosen)
            self.estimates[self.chosen] = chosen.seconds(problem, device)
        drawn = self._drawn(args.random) if args.random and not named else []
        found += drawn
        drawn = set(map(self._key, drawn))
        if named:
            found = [a for a in found if a.name in named or CHOSEN in named and self._key(a) == self.chosen]
        elif not args.all:
            least = self.estimates[self.predicted]
            self.hopeless = {key: t / least for key, t in self.estimates.items() if t > min(args.within, HOPELESS) * least
                             and key != self.chosen and key not in drawn}
            found = [a for a in found if self._key(a) not in self.hopeless]
        return [Trial(a, problem, device) for a in found if names is None or a.name in names or CHOSEN in names]

    def _drawn(self, count):
        """Configurations drawn from those that are left, always the same of a problem."""
        every = candidates(self.operation.op, self.problem, self.device, configurations=None, **self.limits)
        left = {self._key(a): (a, a.seconds(self.problem, self.device)) for a in every if self._key(a) not in self.estimates}
        least = self.estimates[self.predicted]
        left = {key: pair for key, pair in left.items() if pair[1] <= HOPELESS * least}
        drawn = random.Random(str(self.case)).sample(sorted(left), min(count, len(left)))
        self.estimates.update((key, left[key][1]) for key in drawn)
        return [left[key][0] for key in drawn]

    @staticmethod
    def _key(algorithm):
        return algorithm.name, algorithm.config_text

    def rows(self, args, names=None, timed=True, host="all") -> list:
        """Gate, time, and describe every trial and peer: ours fastest first, then what failed, then the peers.

        Parameters
        ----------
        args : the parsed options
        names : collection of str, optional
            Of these algorithms and peers alone.
        timed : bool
            Whether they are timed once they have passed the gate.
        host : str or None
            Of which algorithms the host's time is measured too, "all" or "chosen". With it come the times of `_more`.
        """
        trials, clock = self.trials(args, names), self.clock
        with Operands(self.operation, self.problem, self.device) as operands:
            reference = reference_of(self.case.op, self.problem, self.device)
            set_reference(self.operation, self.problem, reference, operands, self.device, clock)
            good = []
            for number, trial in enumerate(trials, 1):
                note(f"{self.case}: checking {trial.algorithm.name}, {number} of {len(trials)}")
                if trial.prepare(self.operation, operands, clock):
                    good.append(trial)
                elif is_lost(clock):
                    raise ContextLost(f"{trial.algorithm}: {trial.error}")
            note(f"{self.case}: measuring {len(good)} in turns")
            peers = self._peers(operands, names)
            right = {name: p for name, (p, error) in peers.items() if error is None}
            ours = {t: t.contender(operands, clock) for t in good}
            contenders = [*ours.values(), *(c for p in right.values() for c in (p.contender, p.less) if c is not None)]
            watch = sensors.Watch(self.sensors)
            times = race(contenders, clock, rounds=args.turns, window=args.window, after=watch) if timed else {}
            if timed:
                self._take_off(right, peers, times)
            exact = [name for name, p in right.items() if p.is_exact]
            fastest = min((name for name in exact if name in times), key=lambda name: times[name].median, default=None)
            more = {}
            if timed and host:
                more = self._host_times(operands, good, times, host == "all", args)
                best = [t for t in good if self._key(t.algorithm) == self.chosen] + [fastest] * (fastest is not None)
                every = {**ours, **{name: p.contender for name, p in right.items() if p.less is None}}
                for name in best:
                    if name in every:
                        more.setdefault(_short(name), {}).update(self._more(every[name], args))
            if timed:
                self._check_again(good, right, peers, times, operands)
            marks = self._peers_marks(peers)
            best_peer = min((times[name].median for name in exact if name in times), default=None)
            found = [self._row(t, times.get(t), best_peer, more.get(t.algorithm.name, {}), watch, marks) for t in trials]
            found.sort(key=lambda r: (r["status"] != "ok", r["time_us"] or 0.0))
            return found + [self._peer_row(name, times.get(name), error, more.get(name, {}), watch) for name, (_, error) in peers.items()]

    def _peers(self, operands, names):
        """{name: (Peer, why it is not timed)}."""
        found = {}
        for module in self.peers:
            if names is not None and module.NAME not in names:
                continue
            try:
                peer = module.make(self.case, operands, self.clock)
                if peer is not None:
                    error = operands.wrong(peer.write, peer.tolerance, peer.results)
                    found[module.NAME] = peer, error and f"WRONG: {error}"
            except Exception as error:  # a library that fails must not hide what ours measure
                found[module.NAME] = None, f"{type(error).__name__}: {error}"
        return found

    def _take_off(self, right, peers, times):
        """Of peers the part that ours do not, which was timed beside; where little is left, the difference says nothing, and goes."""
        for name, peer in list(right.items()):
            if peer.less is None:
                continue
            whole, part = times.pop(peer.contender.name), times.pop(peer.less.name)
            rest = whole.less(part.median)
            if rest.median >= LEAST_REST * whole.median:
                times[peer.contender.name] = rest
            else:
                peers[name] = None, f"NO TIME: what is left of {1e6 * whole.median:.4g} us without a part of it is {1e6 * rest.median:.3g}"
                del right[name]

    def _peers_marks(self, peers):
        """What is to be said of a ratio to these peers."""
        kinds = {"WRONG": "wrong", "NO TIME": "not told apart"}
        wrong = [f"{name} {kinds.get(error.split(':')[0].split(' after')[0], 'failed')}" for name, (_, error) in peers.items() if error]
        return wrong + ["no peer"] * (bool(self.peers) and not any(error is None and p.is_exact for p, error in peers.values()))

    def _check_again(self, good, right, peers, times, operands):
        """What has been timed still computes the same; else its time counts for nothing."""
        for trial in good:
            error = operands.wrong(lambda: trial.run(operands, self.clock))
            if error:
                trial.error = f"WRONG after timing: {error}"
                times.pop(trial, None)
        for name, peer in right.items():
            error = operands.wrong(peer.write, peer.tolerance, peer.results)
            if error:
                peers[name] = None, f"WRONG after timing: {error}"
                times.pop(name, None)

    def _more(self, contender, args):
        """Times of another kind, of what was chosen and of the fastest peer: with the operands in the L2, and under sustained load, with
        the energy of a call."""
        warm = copy.copy(contender)
        warm.name, warm.sets = ("warm", contender.name), 1
        found = {"warm_us": 1e6 * race([warm], self.clock, rounds=3, window=args.window)[warm.name].median}
        if args.sustained:
            each, found["joules"] = sustained(contender, self.clock, args.sustained, joules=self.sensors.joules)
            found["sustained_us"] = 1e6 * each
        return found

    def _host_times(self, operands, good, times, every, args):
        """{algorithm or peer: times of the public call by the host's clock}: on torch's tensors, beside torch's own calls, or on Numba
        arrays. `host_us` with nothing waited for; `eager_us`, of what was chosen, of a loop whose end is.

        A program after a product or a convolution is a graph's (`graph.py`): no public function takes one.
        """
        if HOST_MEMORY or getattr(self.problem, "program", None) is not None and self.case.op[:6] != "fused_":
            return {}
        try:
            import torch

            from .torch_arrays import tensors
            arrays, torch_peer = tensors(operands, 0), next((p for p in self.peers if p.NAME == "torch"), None)
            synchronize = torch.cuda.synchronize
        except ImportError:
            from numba import cuda
            arrays = {name: _numba_array(operands, name) for name in (*operands.tensors, *operands.outputs)}
            torch_peer, synchronize = None, cuda.synchronize
        found = {}

        def timed(name, call, seconds, eager):
            host = host_seconds(call, synchronize, device_seconds=seconds, repeats=args.turns, limit=10 * args.window)
            found[name] = {"host_us": host and 1e6 * host}
            if eager:
                found[name]["eager_us"] = 1e6 * loop_seconds(call, synchronize, device_seconds=seconds, limit=4 * args.window)
        for trial in good:
            name = trial.algorithm.name
            if name not in found and (every or name == self.chosen[0]):
                call = self.case.bind(arrays, algo=name, **self.limits) if hasattr(self.case, "bind") else (
                    lambda: self.case.call(arrays, algo=name, **self.limits))
                timed(name, call, times[trial].median, name == self.chosen[0])
        if torch_peer is not None and times.get("torch"):
            timed("torch", torch_peer.plain_call(self.case, arrays), times["torch"].median, True)
        return found

    def _row(self, trial, sample, best_peer, more, watch, marks):
        algorithm = trial.algorithm
        key = self._key(algorithm)
        is_chosen = key == self.chosen
        row = self._numbers(sample, trial.error, trial, watch)
        row["marks"] += marks
        row.update(algo=key[0], config=key[1], is_peer=False, chosen=is_chosen, predicted=key == self.predicted,
                   estimate_us=1e6 * self.estimates[key], workspace=trial.memory,
                   code=code.of(algorithm, self.problem, self.device) if is_chosen else None,
                   notes=algorithm.notes.names + ([] if algorithm.math == "exact" else [algorithm.math]),
                   ratio=best_peer / sample.median if best_peer and sample else None, **_times(more, is_chosen))
        return row

    def _peer_row(self, name, sample, error, more, watch):
        row = self._numbers(sample, error, name, watch)
        row.update(algo=name, config="", is_peer=True, chosen=False, predicted=False, estimate_us=None, workspace=0, code=None, notes=[],
                   ratio=None, **_times(more, True))
        return row

    def _numbers(self, sample, error, name, watch):
        problem = self.problem
        row = {"op": self.operation.op, "problem": str(self.case), "record": dispatch.problem_record(problem), "status": error or "ok"}
        names = ("time_us", "iqr_us", "tflops", "gbs", "roof")
        if sample is None:
            return {**row, **dict.fromkeys(names), "turns_us": (), "turns": 0, "calls": 0, "clocks_mhz": [], "marks": []}
        seconds, floor = sample.median, roof.floor_seconds(problem, self.roofs)
        values = 1e6 * seconds, 1e6 * sample.iqr, problem.flops / seconds / 1e12, problem.bytes / seconds / 1e9, floor and floor / seconds
        return {**row, **dict(zip(names, values)), "turns_us": [1e6 * t for t in sample.times], "turns": len(sample.times),
                "calls": sample.calls, "clocks_mhz": watch.span(name), "marks": watch.marks(name)}


def _short(name):
    return name if isinstance(name, str) else name.algorithm.name


def _times(more, whole):
    """The times beside the device's own; without `whole` the host's alone, which is an algorithm's and of no configuration."""
    return {name: more.get(name) if whole or name == "host_us" else None
            for name in ("host_us", "eager_us", "warm_us", "sustained_us", "joules")}


def _numba_array(operands, name):
    from numba import cuda

    from dnnkern.host.arrays import view
    array = operands.array(0, name)
    return None if array is None else view(cuda.as_cuda_array(array), array.tensor.dtype)
