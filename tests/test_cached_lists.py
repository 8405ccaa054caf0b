"""Lists of arrays that were given before, as on a GPU: nothing is described again, and all that has changed is noticed."""
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cached import either_way_fixture, flat, lists, seen_fixture, step, torch, warm  # noqa: F401 (fixtures)

import dnnkern
from dnnkern.device import SIMULATED

pytestmark = pytest.mark.skipif(not SIMULATED, reason="host logic, tried where no GPU is used")


def test_lists_that_stay_are_not_described(seen, either_way):
    mine = lists()
    warm(mine)
    seen.clear()
    step(mine)
    assert not seen.described and seen.values == [(*flat(mine), 0, 0.5, 0.5, 1.0, 0.0)]
    dnnkern.sgd_step(*mine, lr=0.25, momentum=0.5)
    assert not seen.described and seen.values[-1] == (*flat(mine), 0, 0.25, 0.5, 1.0, 0.0)
    step([tuple(some) for some in mine])
    assert not seen.described and seen.addresses(9) == flat(mine)


def test_lists_of_several_frameworks():
    """What is given as NumPy's and as PyTorch's, in one list, again and again."""
    params, grads = [np.ones(5, np.float32), torch.ones(7)], [torch.ones(5), np.ones(7, np.float32)]
    for k in range(1, 5):
        dnnkern.sgd_step(params, grads, lr=0.25)
        assert (params[0] == 1 - k / 4).all() and (params[1] == 1 - k / 4).all()
        assert dnnkern.grad_norm(grads) == pytest.approx(12 ** 0.5)


def test_gradients_of_another_step_are_not_described(seen):
    mine = lists()
    warm(mine)
    seen.clear()
    for _ in range(3):
        mine[1] = [torch.ones(4, 4) for _ in mine[1]]
        step(mine)
        assert not seen.described and seen.addresses(9) == flat(mine)


def test_other_lengths_and_flags_are_other_calls(seen, either_way):
    mine = lists()
    for some in (mine, [part[:2] for part in mine], mine):
        warm(some)
        assert seen.addresses(3 * len(some[0])) == flat(some)
    dnnkern.sgd_step(*mine[:2], lr=0.5)
    assert seen.addresses(6) == flat(mine[:2])
    count = len(seen.values)
    for _ in range(3):
        dnnkern.sgd_step([], [], lr=0.5)
    assert len(seen.values) == count


@pytest.mark.parametrize("where", [0, 1, 2])
def test_a_swapped_data_is_noticed(seen, either_way, where):
    mine = lists()
    warm(mine)
    other = torch.zeros(4, 4)
    mine[where][1].data = other
    step(mine)
    assert seen.addresses(9) == flat(mine) and other.data_ptr() in seen.addresses(9)


@pytest.mark.parametrize("change", [lambda t: setattr(t, "data", t.data.t()), lambda t: t.t_(), lambda t: t.as_strided_((4, 4), (1, 4)),
                                    lambda t: t.transpose_(0, 1)], ids=["data", "t_", "as_strided_", "transpose_"])
def test_other_strides_at_the_same_address_are_noticed(seen, change):
    """Parameters that lie otherwise than their gradients have a launch of their own."""
    mine = lists()
    warm(mine)
    plans = {id(b.executable) for b in dnnkern.optim._sgd.SGD.calls.values()}
    change(mine[0][1])
    for _ in range(3):
        step(mine)
    bound = [b for b in dnnkern.optim._sgd.SGD.calls.values() if id(b.executable) not in plans]
    assert [b.problem.params[1].strides for b in bound] == [(1, 4)]


@pytest.mark.parametrize("change", [lambda t: t.resize_(2, 4), lambda t: t.set_(torch.ones(2, 4)), lambda t: t.unsqueeze_(0),
                                    lambda t: setattr(t, "data", torch.ones(16)), lambda t: t.squeeze_().resize_(4)],
                         ids=["resize_", "set_", "unsqueeze_", "data", "squeeze_"])
def test_other_shapes_are_noticed(seen, change):
    mine = lists()
    warm(mine)
    change(mine[1][2])
    for _ in range(2):
        with pytest.raises(ValueError, match=r"sgd_step: grads\[2\] has shape .*, params\[2\] has \(4, 4\)"):
            step(mine)


def test_another_dtype_is_noticed(seen, either_way):
    mine = lists()
    warm(mine)
    mine[1][0].data = torch.ones(4, 4, dtype=torch.int32)
    with pytest.raises(TypeError, match=r"sgd_step: grads\[0\] is int32"):
        step(mine)


def test_resized_storages_are_noticed(seen, either_way):
    mine = lists(shape=(40, 40))
    warm(mine)
    mine[2][1].untyped_storage().resize_(1 << 20)
    step(mine)
    assert seen.addresses(9) == flat(mine)
    mine[2][1].untyped_storage().resize_(0)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"sgd_step: momenta\[1\]: got a torch tensor of shape \(40, 40\) without memory"):
            step(mine)


def test_a_freed_gradient_is_noticed(seen, either_way):
    mine = lists()
    warm(mine)
    mine[1][1] = None
    with pytest.raises(TypeError, match=r"sgd_step: grads\[1\]: got NoneType"):
        step(mine)
    mine[1][1] = torch.ones(4, 4).to("meta")
    with pytest.raises(TypeError, match=r"sgd_step: grads\[1\]: got a torch tensor on meta"):
        step(mine)
    mine[1][1] = torch.ones(4, 4)
    step(mine)
    assert seen.addresses(9) == flat(mine)


def test_overlap_that_comes_later_is_noticed(seen, either_way):
    mine = lists()
    warm(mine)
    memory = torch.zeros(24)
    mine[0][0].data = memory[:16].view(4, 4)
    mine[2][2].data = memory[8:].view(4, 4)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"sgd_step: momenta\[2\], which is written, overlaps params\[0\]"):
            step(mine)


def test_another_alignment_is_another_plan(seen, either_way):
    mine = lists()
    warm(mine)
    count = len(dnnkern.optim._sgd.SGD.calls)
    mine[1][1] = torch.ones(17)[1:].view(4, 4)
    for _ in range(3):
        step(mine)
        assert seen.addresses(9) == flat(mine)
    assert len(dnnkern.optim._sgd.SGD.calls) == count + 1


def test_parameters_and_tied_gradients(seen, either_way):
    mine = [[torch.nn.Parameter(t) for t in some] if k == 0 else some for k, some in enumerate(lists())]
    warm(mine)
    seen.clear()
    step(mine)
    assert not seen.described and seen.addresses(9) == flat(mine)
    mine[1][1] = mine[1][0]
    for _ in range(3):
        step(mine)
        assert seen.addresses(9) == flat(mine)


def test_nothing_is_kept_alive(seen, either_way):
    mine = lists()
    warm(mine)
    watched = [weakref.ref(t) for some in mine for t in some]
    del mine
    gc.collect()
    assert not any(w() for w in watched)


def test_threads_with_lists_of_their_own(seen, either_way):
    def work():
        mine = lists()
        for k in range(60):
            if k % 20 == 10:
                mine[1] = [torch.ones(4, 4) for _ in mine[1]]
            step(mine, stream=threading.get_ident())
            assert seen.by_thread[threading.get_ident()][:9] == flat(mine)
        return True
    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(work) for _ in range(4)]
    assert all(d.result() for d in done) and len(seen.values) == 240


def test_norms_and_workspaces_of_lists(seen):
    """Two launches and a workspace: memory of its own at every call."""
    grads = [torch.ones(5000) for _ in range(3)]
    out = torch.zeros(())
    for _ in range(3):
        dnnkern.clip_grad_norm(grads, 1.0, out=out)
    seen.clear()
    dnnkern.clip_grad_norm(grads, 0.5, out=out)
    assert not seen.described and seen.addresses(4) == (*flat([grads]), out.data_ptr()) and seen.values[-1][-1] == 0.5
    assert seen.values[-1][4]
    with pytest.raises(ValueError, match="clip_grad_norm: max_norm=1e.300; expected a number that float32 can hold"):
        dnnkern.clip_grad_norm(grads, 1e300, out=out)
