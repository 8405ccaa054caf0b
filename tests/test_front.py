"""What all public functions have in common, tried on each of them: the tail, and what their numbers, flags, sizes and words may be."""
import dataclasses
import inspect

import calls
import labs
import numpy as np
import pytest
from calls import CALLS, call, kinds
from cases import lay

import dnnkern
from dnnkern import dispatch
from dnnkern.device import SIMULATED
from dnnkern.dispatch import Note, NotSupported
from dnnkern.host import scalars

pytestmark = pytest.mark.skipif(not SIMULATED, reason="host logic; the simulator's arrays are NumPy's")

FUNCTIONS = {name: getattr(dnnkern, name) for name in dnnkern._NAMES if inspect.isfunction(getattr(dnnkern, name))}
PUBLIC = sorted(name for name, function in FUNCTIONS.items() if "workspace" in inspect.signature(function).parameters)


class Odd:
    """Nothing that anything takes, not even in a message."""

    def __repr__(self):
        raise RuntimeError("nobody shows this")


def _endless():
    some = [1]
    some.append(some)
    return some


HUGE = 10 ** 400
ENDLESS = _endless()
NOBODYS = [None, Odd(), {}, {1: 2}, [], "1x", b"1", 1j, np.array(["a"]), np.ones((2, 2)), object, np.float32, np.datetime64(1, "s")]
LONG = HUGE ** 20  # no text, by Python's limit
BAD = {"number": [*NOBODYS, True, np.True_, "1", np.array([1.0]), (1.0,), np.array(1j), np.array("1"), HUGE, ENDLESS],
       "integer": [*NOBODYS, True, np.True_, 1.0, np.float32(1), "1", (1,), np.array([1.0]), np.array(1.0), LONG, ENDLESS],
       "flag": [*NOBODYS, 1, 0, 1.0, np.int64(1), "True", np.array(True), np.array([True])],
       "ints": [Odd(), {}, {1: 2}, "1", b"1", 1.0, 1j, object, np.int64, True, (True,), (1.0,), [1, 1.0, 1], np.ones(2), (None, Odd()),
                ENDLESS, LONG, (1, LONG)],
       "word": [Odd(), {}, [], ["NCHW"], 1, 1.5, True, b"NCHW", object, np.str_, "no such", "x" * 10_000, "", np.ones(2),
                np.array("NCHW"), LONG, ENDLESS],
       "dtype": [Odd(), {}, [], 1, True, "float31", b"float32", object, np.dtype("float32").newbyteorder(), "", np.int8(1), np.ones(2),
                 LONG, ENDLESS]}


def refused(name, keyword, value, given):
    with pytest.raises((TypeError, ValueError)) as caught:
        call(name, given, **{keyword: value})
    message = str(caught.value)
    assert message.startswith(f"{name}: ") and len(message) < 600, message
    return message


def test_every_public_function_has_a_call_and_a_kind_for_each_keyword():
    assert PUBLIC == sorted(CALLS)
    for name in PUBLIC:
        arrays, keywords = CALLS[name]()
        left = [k for k in keywords if k not in kinds(name) and k not in ("alpha", "lr", "momenta", "program")]
        assert not left, f"{name}: {left}"


# ---- the tail

@pytest.mark.parametrize("name", PUBLIC)
def test_the_tail(name):
    parameters = inspect.signature(getattr(dnnkern, name)).parameters
    tail = [p for p in parameters.values() if p.kind is not p.VAR_KEYWORD][-7 if name not in calls.WITHOUT_OUT else -6:]
    assert [p.name for p in tail] == list(calls.TAIL)[-len(tail):] and all(p.kind is p.KEYWORD_ONLY for p in tail)
    assert {p.name: p.default for p in tail if p.name in dispatch.CHOICE} == dispatch.CHOICE
    for word in ("workspace_limit", "exclude"):
        assert word in getattr(dnnkern, name).__doc__, word


@pytest.mark.parametrize("name", PUBLIC)
def test_the_tail_is_checked(name):
    given = CALLS[name]()
    for keyword, values, words in (("workspace_limit", (-1, 1.0, "1", True, [], {}, 1j), "workspace_limit"),
                                   ("allow", (0, 1, "x", []), "Note"), ("exclude", (0, 1, None, {}), "Note"),
                                   ("algo", (1, b"naive", [], {}), "algo"),
                                   ("stream", ("x", 1.5, [], {}), "stream"), ("workspace", ("x", 1, [], bytearray(9)), "workspace"),
                                   ("aglo", (None,), "'algo'")):
        for value in values:
            assert words in refused(name, keyword, value, given)
    with pytest.raises(NotSupported, match=f"^{name}: .*algo='quantum'"):
        call(name, given, algo="quantum")


@pytest.mark.parametrize("name", PUBLIC)
def test_the_tail_is_obeyed(name):
    """Without notes and without workspace something solves the problem, or the error lists every candidate."""
    with chosen() as taken:
        for limits in ({"exclude": ~Note.NONE}, {"workspace_limit": 0}, {"workspace_limit": np.int64(0), "exclude": ~Note.NONE}):
            try:
                call(name, **limits)
            except NotSupported as error:
                assert all(f"\n  {a.name}: " in str(error) for a in dispatch.algorithms(taken.op)), error
                continue
            algorithm, need = taken[-1]
            assert not need or "workspace_limit" not in limits
            assert not algorithm.notes or "exclude" not in limits


def test_an_algorithm_is_known_even_where_there_is_nothing_to_do():
    empty = calls.array(0, 3)
    for algo in ("quantum", ""):
        for call_it in (lambda: dnnkern.softmax_fwd(empty, algo=algo), lambda: dnnkern.convert_layout(empty, "AB", "BA", algo=algo),
                        lambda: dnnkern.sgd_step([], [], lr=1.0, algo=algo)):
            with pytest.raises(NotSupported, match=f"algo='{algo}'; expected one of .*'naive'"):
                call_it()
    assert dnnkern.softmax_fwd(empty, algo="naive").shape == (0, 3)
    assert dnnkern.sgd_step([], [], lr=1.0, algo="naive") is None


def test_a_limit_of_any_integer_type():
    x = calls.array(2, 3)
    for limit in (np.array(8), np.uint64(8), np.int8(8)):
        assert (dnnkern.softmax_fwd(x, workspace_limit=limit) == dnnkern.softmax_fwd(x, workspace_limit=8)).all()
        lists = [[calls.array(3)], [calls.array(3)]]
        dnnkern.sgd_step(*lists, lr=1.0, workspace_limit=limit)


def test_a_result_that_no_device_can_hold():
    with pytest.raises(ValueError, match="affine_grid_fwd: out would have shape"):
        dnnkern.affine_grid_fwd(calls.array(1, 2, 3), (1, 1, 2 ** 31, 2 ** 31))


def test_a_tensor_without_memory():
    """Cold, and when the same call has been made with one that has memory."""
    torch = pytest.importorskip("torch")
    x = torch.ones(2, 3)
    for _ in range(2):
        with pytest.raises(TypeError, match="softmax_bwd: y: got a torch tensor on meta"):
            dnnkern.softmax_bwd(x, x.to("meta"))
        with pytest.raises(TypeError, match=r"sgd_step: grads\[0\]: got a torch tensor on meta"):
            dnnkern.sgd_step([x], [x.to("meta")], lr=1.0)
        dnnkern.softmax_bwd(x, x)
        dnnkern.sgd_step([x], [torch.ones(2, 3)], lr=1.0)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_workspace_that_is_too_small_is_a_limit(name):
    empty = labs.guarded(lay((0,), "uint8")).array
    with chosen() as taken:
        for _ in range(2):
            try:
                call(name, workspace=empty)
            except NotSupported as error:
                assert "the limit is 0" in str(error)
            else:
                assert taken[-1][1] == 0


class chosen:
    """The algorithms that calls are bound to, and the bytes of workspace that they need."""

    def __enter__(self):
        from dnnkern.host import front
        self.module, self.make = front, front.Bound
        dispatch.choices_changed()
        taken = self.taken = _Taken()

        def make(**fields):
            taken.op = fields["problem"].op
            if fields["algorithm"] is not None:
                taken.append((fields["algorithm"], fields["workspace"]))
            return self.make(**fields)
        front.Bound = make
        return taken

    def __exit__(self, *_):
        self.module.Bound = self.make


class _Taken(list):
    op = None


# ---- numbers, flags, sizes, words

@pytest.mark.parametrize("name", [name for name in PUBLIC if kinds(name)])
def test_bad_values(name):
    """Before and after a call that is valid and has values that compare equal to bad ones."""
    given = CALLS[name]()
    arrays, keywords = given
    for warm in (False, True):
        if warm:
            call(name, given)
        for keyword, kind in kinds(name).items():
            default = inspect.signature(getattr(dnnkern, name)).parameters[keyword].default
            for value in BAD[kind]:
                if value is None and (default is None or kind == "ints"):
                    continue
                message = refused(name, keyword, value, given)
                assert keyword in message, message


SPEC = {"cell": "word", "input_size": "integer", "hidden_size": "integer", "num_layers": "integer", "bidirectional": "flag",
        "proj_size": "integer", "bias": "word", "input_mode": "word", "dropout": "number", "clip": "number", "dtype": "dtype",
        "math": "word"}


@pytest.mark.parametrize("keyword", SPEC)
def test_bad_values_of_a_recurrent_network(keyword):
    given = {"cell": "lstm", "input_size": 2, "hidden_size": 2}
    assert SPEC.keys() == {f.name for f in dataclasses.fields(dnnkern.RnnSpec)}
    for value in BAD[SPEC[keyword]]:
        if value is None and keyword in ("clip", "math"):
            continue
        with pytest.raises((TypeError, ValueError)) as caught:
            dnnkern.RnnSpec(**{**given, keyword: value})
        message = str(caught.value)
        assert message.startswith(f"RnnSpec: {keyword}") and len(message) < 600, message


def test_words_suggest():
    """Another framework's word, or a slip, is answered with the one that is known here; the message begins with the function."""
    x = calls.array(2, 3)
    for call_it, message in (
            (lambda: dnnkern.reduce(x, "sum"), "reduce: mode='sum'; .*; did you mean 'add'"),
            (lambda: dnnkern.reduce(x, "mean"), "reduce: mode='mean'; .*; did you mean 'avg'"),
            (lambda: dnnkern.matmul(x, x, activation="Relu", transpose_b=True), "matmul: activation='Relu'; .*; did you mean 'relu'"),
            (lambda: dnnkern.conv_fwd(calls.array(1, 1, 3), calls.array(1, 1, 2), layout="nhwc"),
             "conv_fwd: layout='nhwc'; expected one of 'NCHW', 'NHWC', 'channels_last'; did you mean 'NHWC'"),
            (lambda: dnnkern.matmul(x, x, transpose_b=True, out_dtype="float31"), "matmul: out_dtype='float31'; .*; did you mean 'float"),
            (lambda: dnnkern.RnnSpec("rnn_tanh", 1, 1), "RnnSpec: cell='rnn_tanh'; .*; did you mean 'tanh'"),
            (lambda: dnnkern.view(x, "float31"), "view: dtype='float31'; .*; did you mean 'float")):
        with pytest.raises((TypeError, ValueError), match=message):
            call_it()
    with pytest.raises(NotSupported, match=r"^matmul: algo='naiv'; .*; did you mean 'naive'"):
        dnnkern.matmul(x, x, transpose_b=True, algo="naiv")
    with pytest.raises(NotSupported, match="^convert_layout: transpose: algo='naiv'"):
        dnnkern.convert_layout(x, "AB", "BA", algo="naiv")


@pytest.mark.parametrize("name", [name for name in PUBLIC if "number" in kinds(name).values()])
def test_numbers_of_any_real_type(name):
    given = CALLS[name]()
    arrays, keywords = given
    for keyword, kind in kinds(name).items():
        if kind == "number" and isinstance(keywords.get(keyword), float):
            value = keywords[keyword]
            for other in (np.float32(value), np.float64(value), np.array(value), np.float16(value)):
                call(name, given, **{keyword: other})


def test_what_is_a_number():
    import fractions

    import ml_dtypes
    torch = pytest.importorskip("torch")
    for value in (1, 1.0, np.int8(1), np.float16(1), ml_dtypes.bfloat16(1), np.array(1, ml_dtypes.bfloat16), fractions.Fraction(1),
                  torch.tensor(1.0), torch.tensor(1, dtype=torch.bfloat16)):
        found = scalars.number("f", "x", value)
        assert type(found) is float and found == 1
    for value in (torch.tensor(True), torch.tensor(1j), torch.tensor([1.0]), torch.empty((), device="meta")):
        with pytest.raises(TypeError, match="f: x="):
            scalars.number("f", "x", value)


def test_numbers_beyond_float32():
    x = calls.array(3)
    for value in (1e39, -1e300):
        with pytest.raises(ValueError, match="scale_tensor: alpha=.*float32"):
            dnnkern.scale_tensor(x, value)
    assert dnnkern.scale_tensor(calls.array(3, dtype="float64"), 1e300)[0] == 1e300
    assert np.isinf(dnnkern.scale_tensor(x, np.inf)).all()
