"""What a release consists of: the checks of .ci/distribution.py and .ci/licences.py, and what they must find."""
import configparser
import email
import fnmatch
import importlib.util
import io
import pathlib
import re
import tarfile
import zipfile

import pytest

import dnnkern
from dnnkern.device import SIMULATED

pytestmark = pytest.mark.skipif(not SIMULATED, reason="host logic")

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONFIG = configparser.ConfigParser()
CONFIG.read(ROOT / "setup.cfg")


def program(name):
    specification = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


distribution, licences = program("distribution"), program("licences")

FILES = {"dnnkern/__init__.py": b"x = 1\n", "dnnkern/py.typed": b"", "dnnkern/report/page.js": b"draw()\n"}
EXTRAS = "".join(f"Provides-Extra: {extra}\n" for extra in CONFIG["options.extras_require"])
METADATA = f"Version: 0.1.0\nLicense-Expression: Apache-2.0\nRequires-Python: {CONFIG['options']['python_requires']}\n{EXTRAS}"
INFO = {f"dnnkern-0.1.0.dist-info/{name}": b"" for name in distribution.WHEEL_INFO} | {
    "dnnkern-0.1.0.dist-info/METADATA": METADATA.encode(), "dnnkern-0.1.0.dist-info/WHEEL": b"Tag: py3-none-any\n"}
SOURCES = {name: b"" for name in distribution.SDIST_FILES | distribution.EGG_INFO}


@pytest.fixture
def found(tmp_path, monkeypatch):
    """found(wheel, sdist): the faults of such files, where the checkout has FILES."""
    monkeypatch.setattr(distribution, "package", lambda: {name: distribution.digest(data) for name, data in FILES.items()})

    def found(wheel, sdist):
        with zipfile.ZipFile(tmp_path / "dnnkern-0.1.0-py3-none-any.whl", "w") as file:
            for name, data in wheel.items():
                file.writestr(name, data)
        with tarfile.open(tmp_path / "dnnkern-0.1.0.tar.gz", "w:gz") as file:
            for name, data in sdist.items():
                member = tarfile.TarInfo(f"dnnkern-0.1.0/{name}")
                member.size = len(data)
                file.addfile(member, io.BytesIO(data))
        return distribution.faults(tmp_path)
    return found


def without(files, name):
    return {each: data for each, data in files.items() if each != name}


def test_a_wheel_and_an_sdist_as_they_should_be(found):
    assert found(FILES | INFO, FILES | SOURCES) == []


@pytest.mark.parametrize("wheel, sdist, expected", [
    (without(FILES, "dnnkern/py.typed") | INFO, FILES | SOURCES, ["wheel: lacks dnnkern/py.typed"]),
    (FILES | INFO, without(FILES, "dnnkern/report/page.js") | SOURCES, ["sdist: lacks dnnkern/report/page.js"]),
    (FILES | INFO | {"tests/test_act.py": b""}, FILES | SOURCES, ["wheel: should not have tests/test_act.py"]),
    (FILES | INFO | {"dnnkern/old.py": b""}, FILES | SOURCES, ["wheel: should not have dnnkern/old.py"]),
    (FILES | INFO, FILES | SOURCES | {"tests/test_act.py": b""}, ["sdist: should not have tests/test_act.py"]),
    (FILES | INFO | {"dnnkern/__init__.py": b"x = 2\n"}, FILES | SOURCES, ["wheel: dnnkern/__init__.py is not the checkout's"]),
    (FILES | without(INFO, "dnnkern-0.1.0.dist-info/licenses/LICENSE"), FILES | SOURCES,
     ["wheel: lacks dnnkern-0.1.0.dist-info/licenses/LICENSE"]),
    (FILES | INFO, FILES | without(SOURCES, "CITATION.cff"), ["sdist: lacks CITATION.cff"]),
    (FILES | INFO | {"dnnkern-0.1.0.dist-info/METADATA": METADATA.replace("Version: 0.1.0", "Version: 0.2.0").encode()}, FILES | SOURCES,
     ["wheel: Version is 0.2.0, not 0.1.0"]),
    (FILES | INFO | {"dnnkern-0.1.0.dist-info/METADATA": METADATA.replace("Provides-Extra: jax\n", "").encode()}, FILES | SOURCES,
     ["wheel: other extras than setup.cfg: ['jax']"]),
    (FILES | INFO | {"dnnkern-0.1.0.dist-info/WHEEL": b"Tag: cp311-cp311-linux_x86_64\n"}, FILES | SOURCES,
     ["wheel: tags are ['cp311-cp311-linux_x86_64']"]),
])
def test_what_is_wrong_with_them_is_found(found, wheel, sdist, expected):
    assert found(wheel, sdist) == expected


def test_an_empty_folder_is_no_release(tmp_path):
    assert distribution.faults(tmp_path) == [f"{tmp_path}: 0 wheels and 0 sdists; expected one of each"]


@pytest.mark.always
def test_setup_cfg_names_all_package_data():
    """Before a wheel is built: whatever is no module has a pattern, and every pattern a file."""
    data = [pathlib.PurePath(name) for name in distribution.package() if not name.endswith(".py")]
    patterns = {(package, pattern.strip()) for package, text in CONFIG["options.package_data"].items() for pattern in text.split(",")}
    covered = {(path, each) for path in data for each in patterns
               if each[0] == ".".join(path.parent.parts) and fnmatch.fnmatch(path.name, each[1])}
    assert {path for path, _ in covered} == set(data) and {each for _, each in covered} == patterns
    assert {"dnnkern/py.typed", "dnnkern/__init__.pyi", "dnnkern/report/page.css", "dnnkern/report/page.js"} <= set(map(str, data))


def test_extras_are_those_of_the_docs():
    assert {"torch", "jax", "keras", "onnx", "report", "cu12", "cu13", "test", "lint"} <= set(CONFIG["options.extras_require"])


def test_the_citation_is_of_this_version():
    text = (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^version: (.*)$", text, re.M)[1] == dnnkern.__version__
    assert re.search(r"^license: (.*)$", text, re.M)[1] == CONFIG["metadata"]["license_expression"]
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)[1].strip(",") == dnnkern.__version__


@pytest.mark.always
def test_licences_of_what_is_installed_here():
    found = licences.installed(CONFIG["options.extras_require"])
    assert {"numba", "numpy", "greenlet", "pytest"} <= set(found)
    assert {name for name, metadata in found.items() if not licences.allowed(name, licences.licence(name, metadata))} == set()


@pytest.mark.parametrize("name, metadata, text, fine", [
    ("a", "License-Expression: MIT AND (Apache-2.0 OR BSD-2-Clause)\nLicense: GPL", "MIT AND (Apache-2.0 OR BSD-2-Clause)", True),
    ("a", "License: MIT License\nClassifier: License :: OSI Approved :: GNU General Public License v3 (GPLv3)",
     "GNU General Public License v3 (GPLv3)", False),
    ("a", "Classifier: License :: OSI Approved\nLicense: BSD", "BSD", True),
    ("a", "License-Expression: MIT AND GPL-3.0-only", "MIT AND GPL-3.0-only", False),
    ("a", "License-Expression: LicenseRef-NVIDIA-Proprietary", "LicenseRef-NVIDIA-Proprietary", False),
    ("nvidia-nvvm", "License-Expression: LicenseRef-NVIDIA-Proprietary", "LicenseRef-NVIDIA-Proprietary", True),
    ("nvidia-nvvm", "License: GPL", "GPL", False),
    ("a", "Name: a", "", False),
    ("namex", "Name: namex", "Apache-2.0", True),
])
def test_a_licence_and_whether_it_is_allowed(name, metadata, text, fine):
    found = licences.licence(name, email.message_from_string(metadata))
    assert found == text and licences.allowed(name, found) == fine


def test_licences_fail_on_one_that_is_not_allowed(monkeypatch, capsys):
    monkeypatch.setattr(licences, "installed", lambda extras: {"a": email.message_from_string("Version: 1\nLicense: AGPL")})
    assert licences.main([]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == "| a | 1 | AGPL |" and said.err == "a: AGPL: not among those that are allowed\n"
