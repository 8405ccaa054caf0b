"""Some of the random calls of fuzz.py, the same ones at every run; and that it finds what it looks for."""
import fuzz
import numpy as np
import pytest

import dnnkern
from dnnkern.device import SIMULATED

pytestmark = pytest.mark.skipif(not SIMULATED, reason="calls of the simulator")

CALLS = 600  # of each function
FAMILIES = {}
for _name, _function in fuzz.FUNCTIONS.items():
    FAMILIES.setdefault(_function.__module__.split(".")[1] if _name in fuzz.OPERATIONS else "others", []).append(_name)


@pytest.mark.parametrize("family", FAMILIES)
def test_random_calls(family):
    names = FAMILIES[family]
    findings = fuzz.fuzz(names, CALLS * len(names), f"test/{family}")
    assert not findings.first, f"\n{findings}"
    assert findings.refused < findings.calls == CALLS * len(names)


def test_every_public_function_is_called_with_arguments_of_its_own():
    """Besides the plain call of each, those of the contract's cases."""
    able = fuzz.able()
    assert able.keys() == fuzz.FUNCTIONS.keys() and sum(map(len, able.values())) > 5 * len(able)
    assert all(call.expected is not None for call in able["softmax_fwd"])


def _accepts(x, axis=-1):
    return dnnkern.softmax_fwd(x)


def _nameless(x, axis=-1):
    raise ValueError("axis is wrong")


def _silent(x, axis=-1):
    raise ValueError("softmax_fwd: something is wrong")


def _long(x, axis=-1):
    raise ValueError(f"softmax_fwd: axis is wrong{'.' * 1000}")


def _escaping(x, axis=-1):
    return {}[axis]


def _writing(x, axis=-1):
    x[...] = 0
    raise ValueError("softmax_fwd: axis is wrong")


@pytest.mark.parametrize("function, kind", [
    (_accepts, "accepted"), (_nameless, "does not begin with the function"), (_silent, "does not name the argument"), (_long, "is long"),
    (_escaping, "escapes"), (_writing, "changed")])
def test_what_is_found_of_invalid_arguments(function, kind, monkeypatch):
    monkeypatch.setitem(fuzz.FUNCTIONS, "softmax_fwd", function)
    call, findings = fuzz.Call("softmax_fwd", {"x": np.ones((2, 3), np.float32), "axis": 1}), fuzz.Findings()
    fuzz.try_any(call, "axis", fuzz.NONSENSE[0], findings)
    assert [key[:3] for key in findings.first] == [(kind, "softmax_fwd", "axis")]
    assert kind in str(findings) and str(findings).endswith("0 calls, 1 refused, 1 findings" if kind not in ("accepted", "escapes")
                                                            else "0 calls, 0 refused, 1 findings")


def test_what_is_found_of_valid_arguments(monkeypatch):
    call, findings = fuzz.Call("softmax_fwd", {"x": np.float32([[0, 0, 0], [0, 1, 2]]), "axis": 1}), fuzz.Findings()
    with fuzz.bounded():
        fuzz.try_valid(call, "axis", np.int64(1), findings)
    assert not findings.first
    monkeypatch.setitem(fuzz.FUNCTIONS, "softmax_fwd", lambda x, axis: dnnkern.softmax_fwd(x[::-1], axis=int(axis)))
    fuzz.try_valid(call, "axis", np.int64(1), findings)
    monkeypatch.setitem(fuzz.FUNCTIONS, "softmax_fwd", _nameless)
    fuzz.try_valid(call, "axis", np.int64(1), findings)
    assert [key[0] for key in findings.first] == ["another result", "refused though valid"]


def test_what_is_long_and_what_hangs(monkeypatch):
    """A valid call that is large or long in the simulator is no finding; time without end on the host is one."""
    findings = fuzz.Findings()
    with fuzz.bounded():
        fuzz.try_any(fuzz.Call("resample_fwd", {"x": np.ones((1, 1, 2), np.float32), "size": 1}), "size", 2 ** 31 - 1, findings)
        fuzz.try_any(fuzz.Call("lrn_fwd", {"x": np.ones((1, 2, 2), np.float32), "size": 1}), "size", 3, findings)
    assert not findings.first and not findings.refused
    monkeypatch.setattr(fuzz, "SECONDS", 0.2)
    monkeypatch.setitem(fuzz.FUNCTIONS, "softmax_fwd", lambda x: sum(1 for _ in iter(int, 1)))
    fuzz.try_any(fuzz.Call("softmax_fwd", {}), "x", 1, findings)
    assert "escapes: softmax_fwd(x=1): TimeoutError: took longer than 0.2 s" in str(findings)


def test_the_command_line(capsys):
    assert fuzz.main(["--calls", "6", "--op", "softmax_fwd,softmax_bwd", "--seed", "3"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("6 calls, ")
    with pytest.raises(SystemExit):
        fuzz.main(["--op", "softmax"])
    assert "no public function softmax" in capsys.readouterr().err
