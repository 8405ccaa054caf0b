"""Names and keywords that were released stay: what tests/public_api.py finds of this tree, and of changes that it must find."""
import os
import subprocess
import sys

import public_api
import pytest

from dnnkern.device import SIMULATED

pytestmark = pytest.mark.skipif(not SIMULATED, reason="host logic")

OLD = """\
def product(a, b, *, alpha=1.0, math=None): ...
class Mode:
    FAST = ...
    SLOW = ...
class Spec:
    def __init__(self, cell, size=1): ...
    def weights(self, layer): ...
LIMIT = ...
"""


def broken(old, new):
    pytest.importorskip("griffe")
    assert old in OLD
    return public_api.broken({"some.module": OLD}, {"some.module": OLD.replace(old, new)})


@pytest.mark.always
def test_no_public_name_or_keyword_has_gone():
    """In a process of its own: overrides of PyTorch and Keras begin when they are imported."""
    pytest.importorskip("griffe")
    environment = os.environ | {"KERAS_BACKEND": "torch"}
    done = subprocess.run([sys.executable, public_api.__file__], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    missing = [line for line in done.stdout.splitlines() if "not compared" in line]
    assert not [line for line in missing if not line.startswith(("dnnkern.torch", "dnnkern.keras", "dnnkern.jax", "dnnkern.onnx"))], missing
    assert done.stdout.splitlines()[-1] == "no public name or keyword has gone"


@pytest.mark.always
def test_type_checkers_read_todays_names():
    for path, written in public_api.stubs().items():
        assert path.read_text() == written, "python tests/public_api.py --stub"


def test_the_snapshot_has_what_releases_promise():
    kept = public_api.sections(public_api.SNAPSHOT.read_text())
    assert tuple(kept) == public_api.MODULES
    assert "def matmul(a, b, *, bias=None, c=None, alpha=1.0, beta=1.0, " in kept["dnnkern"]
    assert "    TENSOR_CORE = ..." in kept["dnnkern"] and "\n    def conv_fprop(self, image, weight, " in kept["dnnkern.graph"]
    assert "def linear_cross_entropy(" in kept["dnnkern.torch.functional"] and "def conv_fwd(" in kept["dnnkern.jax"]
    assert all(kept.values())


@pytest.mark.parametrize("old, new, told", [
    ("def product(", "def products(", "product: Public object was removed"),
    (", alpha=1.0", "", "product(alpha): Parameter was removed"),
    ("math=None", "maths=None", "product(math): Parameter was removed"),
    ("alpha=1.0", "alpha=2.0", "product(alpha): Parameter default was changed: 1.0 -> 2.0"),
    ("alpha=1.0", "alpha", "product(alpha): Parameter is now required"),
    ("a, b, *", "a, b, c, *", "product(c): Parameter was added as required"),
    ("a, b", "b, a", "product(a): Positional parameter was moved"),
    ("a, b, *, alpha", "a, *, b, alpha", "product(b): Parameter kind was changed"),
    ("    SLOW = ...\n", "", "Mode.SLOW: Public object was removed"),
    ("layer", "index", "Spec.weights(layer): Parameter was removed"),
    (", size=1", "", "Spec.__init__(size): Parameter was removed"),
    ("LIMIT = ...\n", "", "LIMIT: Public object was removed"),
])
def test_what_programs_would_notice_is_found(old, new, told):
    lines = broken(old, new)
    assert any(f"some.module.{told}" in line for line in lines), lines


@pytest.mark.parametrize("old, new", [("math=None", "math=None, out=None"), ("LIMIT = ...\n", "LIMIT = ...\ndef more(x): ...\n"),
                                      ("    SLOW = ...\n", "    SLOW = ...\n    MIDDLE = ...\n")])
def test_additions_are_no_fault(old, new):
    assert broken(old, new) == []


def test_a_removed_keyword_fails_the_command(tmp_path, monkeypatch, capsys):
    pytest.importorskip("griffe")
    kept = public_api.SNAPSHOT.read_text()
    changed = tmp_path / "public_api.txt"
    changed.write_text(kept.replace("def transpose(x, axes, *,", "def transpose(x, axes, *, conjugate=False,"))
    monkeypatch.setattr(public_api, "SNAPSHOT", changed)
    monkeypatch.setattr(public_api, "MODULES", ("dnnkern",))
    changed.write_text(changed.read_text().split("# dnnkern.device")[0])
    assert public_api.main([]) == 1
    assert capsys.readouterr().out == "dnnkern.transpose(conjugate): Parameter was removed\n"


@pytest.mark.parametrize("right, wrong, told", [
    ("transpose_b=True", "transpose_c=True", 'Unexpected keyword argument "transpose_c" for "matmul"'),
    ("dnnkern.softmax_fwd(x, axis=1.5)", "dnnkern.softmax_fwd(x, axis=1)", 'Unused "type: ignore" comment')])
def test_the_type_check_finds_what_is_wrong(right, wrong, told, tmp_path):
    pytest.importorskip("mypy")
    root = public_api.HERE.parent
    written = (public_api.HERE / "typed_program.py").read_text()
    assert right in written
    (tmp_path / "program.py").write_text(written.replace(right, wrong))
    done = subprocess.run([sys.executable, "-m", "mypy", "--config-file", str(root / "setup.cfg"), str(tmp_path / "program.py")], cwd=root,
                          capture_output=True, text=True)
    assert done.returncode == 1 and told in done.stdout and "Found 1 error in 1 file" in done.stdout, done.stdout + done.stderr


def test_what_cannot_be_imported_is_kept_when_recorded(tmp_path, monkeypatch):
    changed = tmp_path / "public_api.txt"
    changed.write_text("# dnnkern.gone\ndef f(x): ...\n# dnnkern.dispatch\n")
    monkeypatch.setattr(public_api, "SNAPSHOT", changed)
    monkeypatch.setattr(public_api, "MODULES", ("dnnkern.gone", "dnnkern.dispatch"))
    assert public_api.main(["--record"]) == 0
    expected = {"dnnkern.gone": "def f(x): ...\n", "dnnkern.dispatch": public_api.public("dnnkern.dispatch")}
    assert public_api.sections(changed.read_text()) == expected
