"""Gradients of recurrent networks by the weights: every configuration, of what the choice by estimates would pass by."""
import dataclasses

import contract
import pytest
from cases import rnn_bwd_weights

from dnnkern import dispatch
from dnnkern.rnn.step import weights

(STEP,) = (a for a in dispatch.algorithms("rnn_bwd_weights") if a.name == "step")


@pytest.mark.parametrize("case, configs", [
    ("tf32-lstm-t3n4i8h16-f32", 4), ("tf32-gru-t3n4i8h16-f32", 4), ("tf32-tanh-t3n4i8h16-f32", 4), ("tf32-wide-gru-t2n9i8h36-f32", 1),
    ("two-layers-both-ways-gru-t3n2i3h4-f64", 2), ("two-layers-both-ways-lstm-t3n2i3h4-bf16", 2), ("no-states-lstm-t3n2i3h4-f64", 2),
    ("layers-lstm-t4n3i5h16-f16", 1), ("layers-gru-t3n2i6h8-f32", 2), ("projection-lstm-t3n2i3h5-bf16", 2), ("ntc-relu-t3n2i3h4-f64", 1),
    ("strided-lstm-t3n2i3h4-f32", 2), ("backwards-gru-t3n2i3h4-bf16", 2), ("misaligned-lstm-t2n2i8h8-f16", 2),
    ("bias-single_rec-gru-t2n2i2h3-f64", 2), ("bias-single_input-tanh-t2n2i2h3-f16", 2), ("one-step-gru-t1n1i4h8-f32", 1)])
def test_configurations(case, configs):
    case = next((c for c in rnn_bwd_weights.CASES if c.id == case), None) or pytest.fail([c.id for c in rnn_bwd_weights.CASES])
    found = weights.configs_of(case.problem(), contract.device())
    for config in found:
        contract.check(dataclasses.replace(STEP, config=config), case, **contract.ONCE)
    assert len(found) == configs
