"""Preferences: what `prefer` and DNNKERN_PREFER make calls take, and what the simulator takes by itself."""
import contextvars
import dataclasses
import logging
import sys
import threading

import numpy as np
import pytest
from cases import Place
from labs import guarded

import dnnkern
from dnnkern import dispatch, preference
from dnnkern.dispatch import Note, NotSupported, prefer
from dnnkern.dispatch import operation_of
from dnnkern.host.device import current_device
from dnnkern.host.device import device as device_of


def arrays(*shapes):
    return [guarded(Place(shape, "float32", tuple(np.cumprod((1, *shape[:0:-1]))[::-1].tolist())), np.ones(shape)).array
            for shape in shapes]


def product():
    return dnnkern.problem("matmul", a=("32x24", "float32"), b=("24x16", "float32"))


def chosen(problem=None, **limits):
    problem = problem or product()
    return dispatch.get_algorithm(problem.op, problem, **limits).name


@pytest.fixture
def unset(monkeypatch):
    """No preference, as a user's program begins."""
    monkeypatch.delenv(preference.VARIABLE, raising=False)


@pytest.fixture
def ran(unset):
    """The algorithms of the calls that an operation remembers, in order."""
    def names(op):
        return [bound.algorithm.name for bound in operation_of(op).calls.values()]
    dispatch.choices_changed()
    yield names
    dispatch.choices_changed()


# ---- choices

@pytest.mark.parametrize("op, arguments, name", [
    ("conv_fwd", {"x": ("4x8x10x10", "f32"), "w": ("16x8x3x3", "f32"), "padding": 1}, "naive"),
    ("conv_fwd", {"x": ("2x8x8x16", "bf16"), "w": ("32x3x3x16", "bf16"), "padding": 1, "layout": "NHWC"}, "implicit_gemm_wgmma"),
    ("conv_fwd", {"x": ("1x5x6x16", "bf16"), "w": ("8x1x1x16", "bf16"), "layout": "NHWC"}, "naive"),
    ("matmul", {"a": ("64x64", "bf16"), "b": ("64x64", "bf16")}, "wgmma"),
    ("matmul", {"a": ("500x8x8", "bf16"), "b": ("500x8x8", "bf16")}, "naive"),
    ("softmax_fwd", {"x": ("32x100", "f32")}, "naive"),
    ("sdpa_fwd", {"q": ("1x2x64x64", "bf16"), "k": ("1x2x64x64", "bf16"), "v": ("1x2x64x64", "bf16")}, "flash_wgmma"),
    ("adamw_step", {**{k: [("33x9", "f32")] for k in ("params", "grads", "m", "v")}, "lr": 0.1, "step": 1}, "naive")])
def test_by_itself_the_simulator_takes_what_is_quick_to_simulate(op, arguments, name, unset, simulated):
    assert chosen(dnnkern.problem(op, **arguments)) == name


def test_every_operation_has_something_quick(unset, simulated):
    """Never only what the GPU would choose: naive, or whole warpgroups."""
    import cases
    for op, module in cases.modules().items():
        for case in module.CASES[::9]:
            if not (problem := case.problem()).is_empty:
                algorithm = dispatch.get_algorithm(op, problem)
                assert algorithm.name == "naive" or algorithm.arch == "sm_90a", (op, case.id)


def test_the_choice_for_a_device_that_is_not_simulated_is_its_own(unset, simulated):
    with prefer("device"):
        wanted = chosen()
    assert wanted != "naive"
    assert chosen(device=dataclasses.replace(device_of(0), name="NVIDIA H200")) == wanted


def test_a_name_is_taken_wherever_it_can_be(unset):
    doubles = dnnkern.problem("matmul", a=("8x8", "float64"), b=("8x8", "float64"))  # which tensor cores do not multiply
    usual = chosen(), chosen(doubles)
    with prefer("tiled"):
        assert chosen() == chosen(doubles) == "tiled"
    with prefer("wgmma"):
        assert chosen(doubles) == usual[1]
    assert (chosen(), chosen(doubles)) == usual


def test_a_preference_keeps_within_the_limits_of_the_call(unset):
    naive = next(a for a in dispatch.algorithms("matmul") if a.name == "naive")
    hungry = dispatch.register(dataclasses.replace(naive, name="hungry", workspace=lambda problem, device, config: 64))
    racing = dispatch.register(dataclasses.replace(naive, name="racing", notes=Note.NONDETERMINISTIC))
    try:
        with prefer("hungry"):
            assert chosen() == "hungry" and chosen(workspace_limit=64) == "hungry" and chosen(workspace_limit=63) != "hungry"
        with prefer("racing"):
            assert chosen() != "racing" and chosen(allow=Note.NONDETERMINISTIC) == "racing"
    finally:
        dispatch.unregister(hungry)
        dispatch.unregister(racing)


def test_algo_comes_first(unset):
    with prefer("naive"):
        assert chosen(algo="tiled") == "tiled"
        with pytest.raises(NotSupported, match="algo='nonsense'"):
            chosen(algo="nonsense")


def test_explain_marks_the_preferred_one(unset):
    for name in ("naive", "tiled"):
        with prefer(name):
            rows = dispatch.explain("matmul", product())
            assert [r.algo for r in rows if r.chosen] == [name] and rows[0].algo == name


def test_the_innermost_one_counts_until_its_end(unset):
    default = chosen()
    with prefer("tiled"):
        with prefer("naive"):
            assert chosen() == "naive"
            with prefer(None):
                assert chosen() == default
        assert chosen() == "tiled"
        with pytest.raises(RuntimeError), prefer("naive"):
            raise RuntimeError
        assert chosen() == "tiled"
    assert chosen() == default


def test_the_environment_variable(monkeypatch):
    monkeypatch.setenv("DNNKERN_PREFER", "tiled")
    assert chosen() == "tiled"
    with prefer("naive"):
        assert chosen() == "naive"
        with prefer(None):
            assert chosen() == "tiled"
    monkeypatch.setenv("DNNKERN_PREFER", "winograf")
    with pytest.raises(ValueError, match="DNNKERN_PREFER is 'winograf', and no algorithm has that name; did you mean 'winograd'"):
        chosen()


@pytest.mark.parametrize("name, error, words", [
    ("niave", ValueError, "prefer: name is 'niave', and no algorithm has that name; did you mean 'naive'"),
    ("", ValueError, "name is '', and no algorithm"), (7, TypeError, "name is 7; expected the name of an algorithm, 'device' or None")])
def test_names_that_there_are_not(name, error, words):
    with pytest.raises(error, match=words), prefer(name):
        pytest.fail("the block was entered")


# ---- calls, which are remembered

def test_a_call_is_remembered_with_its_preference(ran):
    a, b = arrays((32, 24), (24, 16))
    default = chosen()
    for _ in range(2):
        dnnkern.matmul(a, b)
        for name in ("naive", "tiled"):
            with prefer(name):
                dnnkern.matmul(a, b)
                dnnkern.matmul(a, b, algo="naive")
    assert sorted(ran("matmul")) == sorted([default, "naive", "tiled", "naive", "naive"])


def test_calls_on_lists_too(ran):
    p, g = arrays((6, 7), (6, 7))
    with prefer("chunks"):
        dnnkern.sgd_step([p], [g], lr=0.1)
    for _ in range(2):
        with prefer("naive"):
            dnnkern.sgd_step([p], [g], lr=0.1)
    assert ran("sgd_step") == ["chunks", "naive"]


def test_a_call_with_an_operand_less_is_another_one(ran):
    """What is remembered beside a preference must not be taken for an operand."""
    a, b, c = arrays((32, 24), (24, 16), (32, 16))
    with prefer("naive"):
        dnnkern.matmul(a, b)
        with_c = dnnkern.matmul(a, b, c=c)
        dnnkern.matmul(a, b)
    assert float(with_c[0, 0]) == 25 and ran("matmul") == ["naive", "naive"]


def test_a_thread_has_its_own(ran):
    a, b = arrays((32, 24), (24, 16))
    default, inside, looked, names = chosen(), threading.Event(), threading.Event(), []

    def other():
        inside.wait(10)
        names.append(chosen())
        with prefer("tiled"):
            names.append(chosen())
            dnnkern.matmul(a, b)
        looked.set()

    thread = threading.Thread(target=other)
    thread.start()
    with prefer("naive"):
        inside.set()
        looked.wait(60)
        dnnkern.matmul(a, b)
    thread.join()
    if not getattr(sys.flags, "thread_inherit_context", 0):  # Python 3.14 can pass it on to threads
        assert names == [default, "tiled"]
    assert ran("matmul") == ["tiled", "naive"]


def test_a_context_that_outlives_its_block(ran):
    a, b = arrays((32, 24), (24, 16))
    with prefer("tiled"):
        context = contextvars.copy_context()
    dnnkern.matmul(a, b)
    context.run(dnnkern.matmul, a, b)
    assert ran("matmul")[1] == "tiled" and ran("matmul")[0] == chosen()


def test_the_log_says_that_it_was_preferred(unset, monkeypatch, caplog):
    monkeypatch.setenv("DNNKERN_LOG", "dispatch")
    dispatch.choices_changed()
    with caplog.at_level(logging.INFO, "dnnkern.dispatch"), prefer("naive"):
        chosen()
    assert "matmul/naive (preferred" in caplog.text


# ---- the remark

def test_a_long_call_is_remarked_on_once(unset, monkeypatch, caplog, simulated):
    monkeypatch.setattr(preference, "LONG", 0.0)
    monkeypatch.setattr(preference, "_remarked", [])
    dispatch.choices_changed()
    with caplog.at_level(logging.WARNING, "dnnkern.simulator"):
        dispatch.find_algorithms("softmax_fwd", dnnkern.problem("softmax_fwd", x=("2x3", "f32")), save=False)
        assert not caplog.records, "nobody called it: it was measured"
        for _ in range(2):
            dnnkern.softmax_fwd(np.zeros((2, 3), np.float32))
    (record,) = caplog.records
    assert "softmax_fwd 2x3 float32 axis 1 by softmax_fwd/naive took 0.0 s" in record.getMessage()
    assert "DNNKERN_PREFER" in record.getMessage() and "device" in record.getMessage()


def test_a_quick_call_is_not(unset, monkeypatch, caplog, simulated):
    monkeypatch.setattr(preference, "_remarked", [])
    dnnkern.softmax_fwd(np.zeros((2, 3), np.float32))
    assert not caplog.records


def test_the_current_device_is_simulated_here(simulated):
    assert device_of(current_device()).is_simulated
