"""Recurrent layers whose blocks stay for a whole sequence and wait for each other."""
import dataclasses

import contract
import numpy as np
import pytest
from cases import rnn_bwd_data, rnn_fwd
from labs import array, host

import dnnkern
from dnnkern import RnnSpec, dispatch
from dnnkern.rnn._parse import parse_problem
from dnnkern.rnn.persistent import plan as _persistent_plan


PROJECTIONS = [(rnn_fwd, "wide-projection-lstm-t3n3i5h32-f16", 8, 8), (rnn_fwd, "wide-projection-lstm-t3n2i4h16-f32", 4, 4),
               (rnn_fwd, "wide-projection-lstm-t3n3i5h32-f16", 16, 8), (rnn_bwd_data, "wide-projection-lstm-t3n3i5h32-f16", 8, 8),
               (rnn_bwd_data, "wide-projection-lstm-t3n2i4h16-f32", 4, 4), (rnn_bwd_data, "wide-projection-lstm-t3n2i4h16-f32", 2, 4)]


@pytest.mark.parametrize("name", ["persistent", "cluster", "fused_step"])
@pytest.mark.parametrize("module, case, units, samples", PROJECTIONS + [
    (rnn_fwd, "whole-units-lstm-t3n3i3h8-f32", 2, 4), (rnn_fwd, "whole-units-gru-t3n3i3h8-bf16", 2, 8),
    (rnn_fwd, "wide-gru-t2n5i16h32-f32", 8, 8), (rnn_fwd, "whole-units-relu-t3n3i3h8-f64", 4, 4),
    (rnn_fwd, "wide-lstm-t2n3i8h40-f16", 32, 8), (rnn_bwd_data, "wide-lstm-t2n3i8h40-f16", 32, 8),
    (rnn_bwd_data, "wide-gru-t2n3i8h16-bf16", 8, 8), (rnn_bwd_data, "whole-units-gru-t3n3i3h8-f32", 4, 4),
    (rnn_bwd_data, "wide-gru-t2n5i16h32-f32", 8, 4), (rnn_fwd, "tf32-lstm-t3n4i8h16-f32", 8, 8), (rnn_fwd, "tf32-gru-t3n4i8h16-f32", 4, 8),
    (rnn_bwd_data, "tf32-lstm-t3n4i8h16-f32", 4, 8), (rnn_bwd_data, "tf32-gru-t3n4i8h16-f32", 8, 8),
    (rnn_bwd_data, "tf32-tanh-t3n4i8h16-f32", 8, 8), (rnn_fwd, "tf32-wide-gru-t2n9i8h36-f32", 16, 16),
    (rnn_bwd_data, "tf32-wide-gru-t2n9i8h36-f32", 16, 16), (rnn_fwd, "tf32-projection-lstm-t2n4i8h16-f32", 8, 8),
    (rnn_bwd_data, "tf32-projection-lstm-t2n4i8h16-f32", 4, 8)])
def test_blocks_pass_lines_on(name, module, case, units, samples):
    """Several blocks share a sequence's units, some have sequences of their own, or bring them by parts: a read before the barrier is a
    race that the simulator finds."""
    case = next(c for c in module.CASES if c.id == case)
    problem, algorithm = case.problem(), next(a for a in dispatch.algorithms(case.op) if a.name == name)
    if name == "fused_step" and problem.spec.proj_size:
        assert "expected none" in algorithm.refusal(problem, contract.device())
        return
    found = [c for c in _persistent_plan.shapes(_persistent_plan.sizes_of(problem)) if (c.units, c.samples) == (units, samples)]
    found = [c for c in found if _persistent_plan.holds(c, contract.device())]
    for config in dict.fromkeys((found[0], found[-1])):
        across = _persistent_plan.blocks(problem, config)[0]
        assert across > 1
        config = dataclasses.replace(config, cluster=across if name == "cluster" else 0, single=name == "fused_step")
        contract.check(dataclasses.replace(algorithm, config=config), case, **contract.ONCE)


@pytest.mark.parametrize("name", ["persistent", "fused_step"])
@pytest.mark.parametrize("module, case", [(rnn_fwd, "whole-units-lstm-t3n3i3h8-f32"), (rnn_bwd_data, "whole-units-gru-t3n3i3h8-f32")])
@pytest.mark.parametrize("seed", [1, 2])
def test_blocks_wait_for_each_other_in_any_order(name, module, case, seed, monkeypatch, simulated):
    """One that does not wait for all others may find them done, when they take turns: not when it is at random whose turn it is."""
    from dnnkern.device.sim import config
    monkeypatch.setattr(config, "policy", "random")
    monkeypatch.setattr(config, "seed", seed)
    case = next(c for c in module.CASES if c.id == case)
    problem, algorithm = case.problem(), next(a for a in dispatch.algorithms(case.op) if a.name == name)
    shapes = [c for c in _persistent_plan.shapes(_persistent_plan.sizes_of(problem)) if _persistent_plan.holds(c, contract.device())]
    shape = next(c for c in shapes if _persistent_plan.blocks(problem, c)[0] > 1)
    shape = dataclasses.replace(shape, cluster=0, single=name == "fused_step")
    contract.check(dataclasses.replace(algorithm, config=shape), case, **contract.ONCE)


@pytest.mark.parametrize("case, units, samples", [("layers-lstm-t4n3i5h16-f16", 8, 8), ("layers-gru-t3n2i6h8-f32", 4, 4),
                                                  ("layers-gru-t3n2i4h16-inference-bf16", 8, 8)])
def test_layers_wait_for_the_one_below(case, units, samples):
    """Blocks of several layers, whose results pass from one to the next while both are under way."""
    case = next(c for c in rnn_fwd.CASES if c.id == case)
    problem, algorithm = case.problem(), next(a for a in dispatch.algorithms(case.op) if a.name == "wavefront")
    found = _persistent_plan.shapes(_persistent_plan.sizes_of(problem), problem.spec.num_layers)
    found = [c for c in found if (c.units, c.samples) == (units, samples)]
    found = [c for c in found if _persistent_plan.holds(c, contract.device())]
    for config in dict.fromkeys((found[0], found[-1])):
        assert _persistent_plan.blocks(problem, config)[::2] == (2, problem.spec.num_layers)
        contract.check(dataclasses.replace(algorithm, config=config), case, **contract.ONCE)


@pytest.mark.parametrize("name", ["persistent", "cluster", "fused_step"])
def test_factors_are_rounded_to_tf32(name):
    """To nearest: weights, and a state where it is multiplied, not where it is a result."""
    u = 2.0 ** -10  # what TF32 keeps of 1 + u
    spec, w = RnnSpec("relu", 1, 8, bias="none", math="tf32"), 1 + 27.75 * u
    weights = spec.pack({"w_ih_l0": array(np.zeros((8, 1))), "w_hh_l0": array(w * np.eye(8))})
    x, h0 = array(np.zeros((3, 2, 1))), array(np.ones((1, 2, 8)))
    chosen = dispatch.get_algorithm("rnn_fwd", dnnkern.problem("rnn_fwd", spec=spec, x=x, h0=h0, c0=None, weights=weights), algo=name)
    assert "mma tf32" in str(chosen.config)
    y = host(dnnkern.rnn_fwd(spec, x, h0, None, weights, algo=name)[0])
    states = 1 + 28 * u, (1 + 28 * u) ** 2, (1 + 28 * u) * (1 + 57 * u)  # the second is 1 + 56 u + 0.77 u
    assert np.array_equal(y, np.broadcast_to(np.reshape(states, (3, 1, 1)), y.shape).astype(np.float32))


def test_weights_that_copies_cannot_reach_are_not_rounded():
    """TF32 allows fragments, which need copies of 16 bytes; CUDA cores take weights as they lie."""
    for alignment in (4, 16):
        problem = parse_problem("9x8 64x64 gru f32 --math tf32".split(), "rnn_bwd_data")
        problem = dataclasses.replace(problem, weights=dataclasses.replace(problem.weights, alignment=alignment))
        found = tuple(_persistent_plan.shapes(_persistent_plan.sizes_of(problem)))
        assert found and any(c.is_tf32 for c in found) == (alignment == 16)
