"""Calls that were made before, as on a GPU (`bench.pretend`): nothing is described again, and all that has changed is noticed."""
import functools
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from cached import abc_fixture, flat, lists, now, pretended_gpu, product, seen_fixture, step, tensors, torch, warm  # noqa: F401 (fixtures)

import dnnkern
from bench.cached import calls_of, public_arguments
from dnnkern.device import SIMULATED
from dnnkern.host import front, graphs, guards, launch
from dnnkern.host import lists as list_module

pytestmark = pytest.mark.skipif(not SIMULATED, reason="host logic, tried where no GPU is used")


def test_guards_are_used_here():
    assert guards._is_sound()


# ---- calls with a site

def test_a_call_that_was_made_before_is_not_described(abc, seen):
    a, b, y = abc
    assert product(a, b, y) is y
    assert not seen.described and seen.values == [(a.data_ptr(), b.data_ptr(), y.data_ptr(), 0, 1.0, 1.0)]
    others = tensors((4, 8), (8, 3), (4, 3))
    assert product(*others, alpha=1.0) is others[2]
    assert not seen.described and now(seen, *others)


def test_results_are_new_and_the_callers_own(seen):
    a, b = tensors((4, 8), (8, 3))
    results = [product(a, b) for _ in range(5)]
    seen.clear()
    results.append(product(a, b))
    assert not seen.described and now(seen, a, b, results[-1])
    assert len({r.data_ptr() for r in results}) == 6 and all(r.shape == (4, 3) and r.dtype == torch.float32 for r in results)


def test_numbers_of_each_call(abc, seen):
    c = torch.ones(4, 3)
    for _ in range(2):
        for alpha in (2.0, 3.0):
            product(*abc, c=c, alpha=alpha, beta=0.5)
            assert seen.values[-1][-2:] == (alpha, 0.5)
    for _ in range(3):
        with pytest.raises(ValueError, match="matmul: alpha=1e.300; expected a number that float32 can hold"):
            product(*abc, c=c, alpha=1e300, beta=0.5)


@pytest.mark.parametrize("change, words", [
    (lambda t: t.resize_(4, 7), "a gives K="), (lambda t: t.t_(), "a gives K="), (lambda t: t.set_(torch.ones(4, 9)), "a gives K="),
    (lambda t: setattr(t, "data", torch.ones(4, 9)), "a gives K="), (lambda t: t.untyped_storage().resize_(0), "a: got a torch tensor of"),
    (lambda t: setattr(t, "data", torch.ones(4, 8, dtype=torch.float64)), "a is float64")],
    ids=["resize_", "t_", "set_", "data", "storage", "dtype"])
def test_a_change_for_the_worse_is_an_error(abc, seen, change, words):
    a, b, y = abc
    change(a)
    for _ in range(3):
        with pytest.raises((TypeError, ValueError), match=words):
            product(a, b, y)
    assert not seen.values


@pytest.mark.parametrize("change", [lambda t: t.as_strided_((4, 8), (1, 4)), lambda t: setattr(t, "data", torch.ones(8, 4).t()),
                                    lambda t: t.requires_grad_(), lambda t: setattr(t, "data", torch.ones(33)[1:].view(4, 8)),
                                    lambda t: t.set_(torch.ones(4, 16)[:, ::2])],
                         ids=["as_strided_", "data", "requires_grad_", "misaligned", "set_"])
def test_another_description_is_another_plan(abc, seen, change):
    from dnnkern.matmul import OPERATION
    a, b, y = abc
    before = set(OPERATION.calls.values())
    change(a)
    for _ in range(4):
        product(a, b, y)
        assert now(seen, a, b, y)
    new = {(bound.problem.a.strides, bound.problem.a.alignment) for bound in set(OPERATION.calls.values()) - before}
    assert new <= {(a.stride(), a.data_ptr() & -a.data_ptr() if a.data_ptr() & 15 else 16)} and bool(new) != a.requires_grad
    seen.clear()
    product(a, b, y)
    assert not seen.described and now(seen, a, b, y)


def test_what_is_no_tensor_of_torchs_own(abc, seen):
    import numpy as np
    a, b, y = abc

    class Mine(torch.Tensor):
        pass
    for x in (a.as_subclass(Mine), torch.nn.Parameter(a)):
        for _ in range(4):
            product(x, b, y)
            assert now(seen, x, b, y)
    for bad, words in ((None, "a: got NoneType"), (5, "a: got int"), (a.to("meta"), "a: got a torch tensor on meta"),
                       (torch.zeros(4, 8, dtype=torch.complex64).conj().imag, "a: got a torch tensor whose memory holds the negatives"),
                       (np.ones((4, 8), np.float32), "got a NumPy array")):
        with pytest.raises(TypeError, match=words):
            product(bad, b, y)
        with pytest.raises((TypeError, ValueError)):
            product(a, b, bad if bad is not None else 5)
    product(a, b, y)
    assert now(seen, a, b, y)


def test_the_same_object_twice(seen):
    x, y = tensors((4, 4), (4, 4))
    for _ in range(4):
        product(x, x, y)
    seen.clear()
    product(x, x, y)
    assert not seen.described and now(seen, x, x, y)
    z = torch.ones(4, 4)
    product(x, z, y)
    assert now(seen, x, z, y)


def test_in_place_and_beside(seen):
    """One plan where out is c, by identity or by its address, another where it is not."""
    a, b, c, y = tensors((4, 8), (8, 3), (4, 3), (4, 3))
    for _ in range(3):
        for out in (c, y, c.view(4, 3)):
            assert product(a, b, out, c=c) is out
            assert seen.values[-1][3:5] == (c.data_ptr(), out.data_ptr())
    seen.clear()
    for out in (c, y, c.view(4, 3)):
        product(a, b, out, c=c)
        assert seen.values[-1][3:5] == (c.data_ptr(), out.data_ptr())


def test_what_was_in_place_by_another_object_is_looked_at(seen):
    """Of out, which began as a view of c, the next one may be elsewhere, or overlap c."""
    from dnnkern.matmul import OPERATION
    (a, b), memory = tensors((4, 8), (8, 3)), torch.ones(40)
    c = memory[:12].view(4, 3)
    for _ in range(4):
        product(a, b, memory[:12].view(4, 3), c=c)
    (bound,) = OPERATION.calls.values()
    for _ in range(3):
        product(a, b, memory[16:28].view(4, 3), c=c)
        with pytest.raises(ValueError, match="matmul: out partly overlaps c"):
            product(a, b, memory[4:16].view(4, 3), c=c)
        product(a, b, c, c=c)
        product(a, b, memory[:12].view(4, 3), c=c)
        assert seen.values[-1][3:5] == (c.data_ptr(), c.data_ptr())
    assert len(OPERATION.calls) == 2


def test_overlap_is_noticed(abc, seen):
    memory = torch.ones(200)
    a, b = memory[:32].view(4, 8), memory[32:56].view(8, 3)
    for _ in range(3):
        y = memory[56:68].view(4, 3)
        product(a, b, y)
        assert now(seen, a, b, y)
        for bad, name in ((memory[28:40].view(4, 3), "a"), (memory[48:60].view(4, 3), "b")):
            with pytest.raises(ValueError, match=f"matmul: out partly overlaps {name}"):
                product(a, b, bad)
        with pytest.raises(ValueError, match="matmul: out is the same memory as a"):
            product(a, b, a.view(-1)[:12].view(4, 3))


def test_ranges_that_overlap_without_a_common_element(seen):
    """Looked at element by element, once for each place; then known."""
    x, places = torch.ones(4, 8), [torch.ones(4, 16) for _ in range(3)]
    for _ in range(3):
        for memory in places:
            product(memory[:, :8], torch.ones(8, 8), memory[:, 8:])
    seen.clear()
    b = torch.ones(8, 8)
    for memory in places:
        product(memory[:, :8], b, memory[:, 8:])
    for memory in places:
        product(memory[:, :8], b, memory[:, 8:])
        assert now(seen, memory, b, memory[:, 8:])
    assert seen.described <= len(places)
    for memory in places:
        with pytest.raises(ValueError, match="matmul: out partly overlaps a"):
            product(memory[:, :8], b, memory[:, 4:12])
        product(x, b, memory[:, 8:])


def test_streams_and_the_choice(abc, seen, monkeypatch):
    from dnnkern.host import raw
    a, b, y = abc
    streams = []
    monkeypatch.setitem(vars(raw), "cuLaunchKernelEx", lambda config, *_: streams.append(launch._Config.from_address(config).stream) or 0)

    class Stream:
        cuda_stream = 7
    for _ in range(3):
        for stream in (None, 5, Stream(), 9, None):
            product(a, b, y, stream=stream)
    assert streams == [None, 5, 7, 9, None] * 3
    seen.clear()
    product(a, b, y, stream=Stream())
    assert not seen.described
    from dnnkern.matmul import OPERATION
    assert [len(sites) for sites in OPERATION.sites.values()] == [1]
    with pytest.raises(TypeError, match="matmul: stream is 'x'"):
        product(a, b, y, stream="x")
    for _ in range(4):
        product(a, b, y, algo="naive")
    seen.clear()
    product(a, b, y, algo="naive")
    assert not seen.described
    with pytest.raises(dnnkern.dispatch.NotSupported, match="algo='quantum'"):
        product(a, b, y, algo="quantum")


def test_preferences_and_new_measurements_are_obeyed(abc, seen):
    from dnnkern.matmul import OPERATION
    a, b, y = abc
    for _ in range(3):
        with dnnkern.dispatch.prefer("naive"):
            for _ in range(3):
                product(a, b, y)
        product(a, b, y)
    assert {bound.algorithm.name for bound in OPERATION.calls.values()} > {"naive"}
    dnnkern.dispatch.choices_changed()
    assert not OPERATION.sites and not OPERATION.calls
    seen.clear()
    product(a, b, y)
    assert seen.described


def test_a_launch_that_fails_is_not_tried_again(abc, seen, monkeypatch):
    from dnnkern.host import raw
    from dnnkern.host.driver import CudaError
    monkeypatch.setattr(launch, "failed", lambda status: (_ for _ in ()).throw(CudaError(f"status {status}")))
    monkeypatch.setitem(vars(raw), "cuLaunchKernelEx", lambda *_: 700)
    for _ in range(2):
        seen.clear()
        with pytest.raises(CudaError, match="launch failed on device 0: status 700"):
            product(*abc)
        assert len(seen.values) == 1


def test_threads_make_the_same_call_on_arrays_of_their_own(seen):
    def work():
        for k in range(200):
            a, b, y = tensors((4, 8), (8, 3), (4, 3))
            x = product(a, b, y if k % 3 else None)
            assert seen.by_thread[threading.get_ident()][:3] == (a.data_ptr(), b.data_ptr(), x.data_ptr())
        return True
    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(work) for _ in range(4)]
    assert all(d.result() for d in done)


def test_norms_share_one_description(seen):
    """Two launches, three results and arrays that are updated: described by none of the later calls; overlap is looked at."""
    x, gamma, beta, mean, var = tensors((2, 4, 8), (4,), (4,), (4,), (4,))
    for _ in range(3):
        out = dnnkern.batch_norm_train_fwd(x, gamma, beta, mean, var)
    for _ in range(2):
        seen.clear()
        again = dnnkern.batch_norm_train_fwd(x, gamma, beta, mean, var)
        assert not seen.described and now(seen, x, gamma, beta, mean, var, *again)
        dnnkern.batch_norm_train_fwd(x, gamma, beta, mean, var, out=out)
        dnnkern.batch_norm_train_fwd(x, gamma, beta, mean, var, out=out)
        assert now(seen, x, gamma, beta, mean, var, *out)
    for _ in range(2):
        with pytest.raises(ValueError, match="running_var, which is written, overlaps running_mean"):
            dnnkern.batch_norm_train_fwd(x, gamma, beta, mean, mean.view(4), out=out)
        with pytest.raises(ValueError, match="batch_norm_train_fwd: out has 2 arrays; expected 3"):
            dnnkern.batch_norm_train_fwd(x, gamma, beta, mean, var, out=out[:2])
        with pytest.raises(ValueError, match="out partly overlaps another output"):
            dnnkern.batch_norm_train_fwd(x, gamma, beta, mean, var, out=(out[0], out[1], out[1].view(4)))


def test_a_workspace_of_its_own(seen):
    """What a call needs is new memory, unless it is given."""
    a, b, y = tensors((64, 4096), (4096, 64), (64, 64))
    for _ in range(4):
        product(a, b, y, algo="split_k")
    seen.clear()
    product(a, b, y, algo="split_k")
    assert not seen.described and seen.values[-1][3]
    room = torch.zeros(1 << 22, dtype=torch.uint8)
    product(a, b, y, algo="split_k", workspace=room)
    assert seen.values[-1][3] == room.data_ptr()
    with pytest.raises(ValueError, match="matmul: workspace has 16 bytes"):
        product(a, b, y, algo="split_k", workspace=room[:16])


def test_pointers_into_a_workspace(seen):
    """Several launches that share one: what `Seen` looks at."""
    dy, x, gamma, mean, rstd = tensors((32, 64, 28, 28), (32, 64, 28, 28), (64,), (64,), (64,))
    for _ in range(4):
        out = dnnkern.batch_norm_bwd(dy, x, gamma, mean, rstd)
    assert seen.shifted
    seen.clear()
    dnnkern.batch_norm_bwd(dy, x, gamma, mean, rstd)
    for _ in range(3):
        dnnkern.batch_norm_bwd(dy, x, gamma, mean, rstd, out=out)
    seen.clear()
    dnnkern.batch_norm_bwd(dy, x, gamma, mean, rstd, out=out)
    assert not seen.described and seen.shifted


def test_sites_are_few(seen):
    from dnnkern.matmul import OPERATION
    b = torch.ones(8, 3)
    for k in range(30):
        a, y = torch.ones(4, 8 + k)[:, :8], torch.ones(4, 3)
        for _ in range(3):
            product(a, b, y)
    assert [len(sites) for sites in OPERATION.sites.values()] == [front._SITES]
    product(*tensors((4, 8), (8, 3), (4, 3)))


def test_sites_keep_nothing_alive(seen):
    found = tensors((4, 8), (8, 3), (4, 3))
    for _ in range(4):
        product(*found)
    watched = [weakref.ref(t) for t in found]
    del found
    gc.collect()
    assert not any(w() for w in watched)


def test_without_guards_all_calls_are_described(seen, monkeypatch):
    monkeypatch.setattr(guards, "_is_sound", lambda: False)
    a, b, y = tensors((4, 8), (8, 3), (4, 3))
    for _ in range(4):
        product(a, b, y)
        assert now(seen, a, b, y)
    seen.clear()
    product(a, b, y)
    assert seen.described
    a.t_()
    with pytest.raises(ValueError, match="a gives K="):
        product(a, b, y)


def test_checks_look_at_every_call(seen, monkeypatch):
    from dnnkern.matmul import OPERATION
    monkeypatch.setattr(front, "CHECKS", ("nan",))
    checked = []
    monkeypatch.setattr("dnnkern.host.checked.check_outputs", lambda bound, operands, results, stream: checked.append(results))
    found = tensors((4, 8), (8, 3), (4, 3))
    for _ in range(4):
        product(*found)
    assert len(checked) == 4 and not OPERATION.sites


# ---- every public function

MOST_CALLS = 19  # functions of Python or C in a cached call with out=
MORE_CALLS = {"matmul": 10, "activation_bwd": 23, "activation_fwd": 21, "dropout_fwd": 21, "rnn_fwd": 29, "sdpa_fwd": 26,
              "adagrad_step": 35, "adam_step": 46, "adamw_step": 46, "lamb_step": 55, "lion_step": 33, "rmsprop_step": 36, "sgd_step": 35,
              "grad_norm": 36, "clip_grad_norm": 37, "fused_pointwise": 22, "fused_reduction": 25, "max_pool_fwd": 20, "avg_pool_bwd": 20,
              "random_fill": 22, "sdpa_dropout_mask": 22,
              # five more where one launch of a graph takes the place of several
              "batch_norm_bwd": 23, "cross_entropy_bwd": 22, "cross_entropy_fwd": 22, "ctc_loss_bwd": 26, "ctc_loss_fwd": 22,
              "group_norm_bwd": 22, "instance_norm_bwd": 21, "layer_norm_bwd": 21, "nll_loss_bwd": 20, "rms_norm_bwd": 21, "sdpa_bwd": 37}


@pytest.mark.parametrize("name", sorted(public_arguments("torch")))
def test_a_site_gives_what_the_general_path_gives(seen, name):
    """The values of a plan, of the first call and of later ones; nothing is described."""
    given = public_arguments("torch")[name]
    call = functools.partial(getattr(dnnkern, name), **given)
    if not name.endswith("_step"):
        call = functools.partial(call, out=call())
    seen.clear()
    call()
    first = list(seen.values)
    for _ in range(3):
        call()
    seen.clear()
    call()
    assert not seen.described
    assert len(seen.values) == len(first)
    for given, then in zip(seen.values, first):
        assert len(given) == len(then) and sum(a != b for a, b in zip(given, then)) <= 1  # the workspace is another's


@pytest.mark.parametrize("name", sorted(name for name in public_arguments("torch") if not name.endswith("_step")))
def test_results_that_are_allocated_by_a_site(seen, name):
    call = functools.partial(getattr(dnnkern, name), **public_arguments("torch")[name])
    first = call()
    for _ in range(3):
        again = call()
    seen.clear()
    again = call()
    assert not seen.described or name in ("grad_norm", "clip_grad_norm")  # their result is made of what the first gradient is
    first, again = (r if isinstance(r, tuple) else (r,) for r in (first, again))
    assert [(r.shape, r.stride(), r.dtype) for r in first] == [(r.shape, r.stride(), r.dtype) for r in again]


@pytest.mark.parametrize("name", sorted(public_arguments("torch")))
def test_few_functions_are_called(name, monkeypatch):
    """A number that no machine changes; the time of a call goes with it. Where a preference was ever stated, it is one more."""
    for module in (front, list_module):
        monkeypatch.setattr(module, "USED", [])
    with pretended_gpu():
        call = functools.partial(getattr(dnnkern, name), **public_arguments("torch")[name])
        if not name.endswith("_step"):
            call = functools.partial(call, out=call())
        for _ in range(2 + graphs.SIGHTINGS):
            call()
        assert calls_of(call) <= MORE_CALLS.get(name, MOST_CALLS)


def test_as_many_functions_are_called_for_long_lists():
    """In Python; in C it is one an array."""
    with pretended_gpu():
        counts = []
        for count in (50, 100):
            mine = lists(count)
            warm(mine)
            counts.append(calls_of(lambda: step(mine)))
        assert counts[0] == counts[1]


def test_recorded_calls_are_not_run_before_or_after(seen):
    """Nor taken for those that are."""
    a, b, y = tensors((4, 8), (8, 3), (4, 3))
    mine = lists()
    for _ in range(2):
        with dnnkern.recording() as recorded:
            for _ in range(4):
                product(a, b, y)
                product(a, b)
                step(mine)
        assert not seen.values and {job.op for job in recorded.jobs} == {"matmul", "sgd_step"}
        for _ in range(4):
            product(a, b, y)
            assert now(seen, a, b, y)
            step(mine)
            assert seen.addresses(9) == flat(mine)
        seen.clear()
