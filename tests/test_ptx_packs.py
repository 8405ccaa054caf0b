"""Kernel packs of real kernels, without a GPU: made by the command, imported, and served in place of the compiler."""
import hashlib

import pytest

import dnnkern
from dnnkern import __main__ as command
from dnnkern import _pack
from dnnkern.device import SIMULATED, _fingerprint, f32, jit
from dnnkern.host import compile as host_compile
from dnnkern.host import chosen, packs
from dnnkern.host.compile import compile_kernel, pack_key
from dnnkern.host.compiler import Job
from dnnkern.host.device import described
from dnnkern.host.paths import cache_dir

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)


def use(folder, monkeypatch):
    """Have this cache directory from now on."""
    monkeypatch.setenv("DNNKERN_CACHE_DIR", str(folder))
    cache_dir.cache_clear()
    packs.forget()


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    """A pack of more than twenty kernels, and the cache where they were compiled."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        folder = tmp_path_factory.mktemp("made")
        use(folder / "cache", monkeypatch)
        assert command.main(["pack", "--arch", "sm_80,sm_90a", "--op", "rope_fwd", "--set", "models", "--out", str(folder / "a.pack")]) == 0
    cache_dir.cache_clear()
    packs.forget()
    return folder / "a.pack", folder / "cache"


@pytest.fixture
def served(pack, tmp_path, monkeypatch):
    """An empty cache into which the pack has been imported; nothing compiles."""
    use(tmp_path, monkeypatch)
    packs.install(pack[0], _pack.sources(), {"sm_90a"})
    monkeypatch.setattr(host_compile, "compile_anew", lambda *_: pytest.fail("compiled"))
    yield tmp_path
    cache_dir.cache_clear()
    packs.forget()


def kernel(arch="sm_90a"):
    problem = dnnkern.problem("rope_fwd", x=("2x32x4096x128", "bfloat16"), cos=("4096x64", "bfloat16"), sin=("4096x64", "bfloat16"))
    return Job(problem.op, problem, described(arch)).kernels()[0]


def test_the_pack_holds_what_was_compiled(pack):
    path, cache = pack
    opened = packs.Pack(path)
    files = {hashlib.sha256(file.read_bytes()).digest() for file in cache.rglob("*.cubin")}
    choices = {chosen.pack_key("rope_fwd", described(arch)) for arch in ("sm_80", "sm_90a")}
    held = [opened.get(entry[0]) for entry in opened._entries() if entry[0] not in choices]
    assert all(key in opened for key in choices) and opened.header["choices"] >= 20
    assert opened.header["kernels"] == len(held) == len(files) >= 20 and {hashlib.sha256(content).digest() for content in held} == files
    assert opened.header["archs"] == ["sm_80", "sm_90a"] and opened.header["versions"]["numba-cuda"]
    assert path.stat().st_size < sum(file.stat().st_size for file in cache.rglob("*.cubin")) / 2


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_packed_kernel_is_not_compiled(pack, served, arch):
    wanted = kernel(arch)
    binary = compile_kernel(wanted.kernel, wanted.signature, arch)
    compiled, = (file for file in pack[1].rglob("*.cubin") if file.read_bytes().endswith(binary.code))
    assert binary.arch == arch and compiled.parent.name == arch and not wanted.is_missing
    assert not list(served.rglob("*.cubin")), "the pack is served from where it is"


def test_the_users_own_compilation_comes_first(pack, served):
    wanted = kernel()
    own = served / wanted.file
    own.parent.mkdir(parents=True)
    own.write_bytes((pack[1] / wanted.file).read_bytes())
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(packs, "get", lambda key: pytest.fail("asked the pack"))
        assert compile_kernel(wanted.kernel, wanted.signature, "sm_90a").code


def test_another_architecture_type_or_source_is_not_found(served, monkeypatch):
    wanted = kernel()
    assert host_compile.is_packed(wanted.kernel, wanted.signature, "sm_90a")
    assert not host_compile.is_packed(wanted.kernel, wanted.signature, "sm_100a")
    assert not host_compile.is_packed(wanted.kernel, ("float64*", *wanted.signature[1:]), "sm_90a")
    monkeypatch.setattr(host_compile, "_sources", lambda files: "others")
    assert not host_compile.is_packed(wanted.kernel, wanted.signature, "sm_90a")


def scaled(factor):
    @jit
    def kernel(x):
        x[0] = f32(x[0] * factor)
    return kernel


def test_the_key_of_a_pack_is_the_kernels_own(monkeypatch):
    key = pack_key(scaled(2), ("float32*",), "sm_80")
    assert key == pack_key(scaled(2), ("float32*",), "sm_80") != pack_key(scaled(3), ("float32*",), "sm_80")
    monkeypatch.setattr(host_compile, "versions", lambda: {"numba": "another"})
    monkeypatch.setattr(_fingerprint, "_code", lambda code: "another Python's")
    assert key == pack_key(scaled(2), ("float32*",), "sm_80"), "neither compilers nor bytecode are in it"


def test_a_function_of_no_file_has_none():
    namespace = {"jit": jit}
    exec("@jit\ndef kernel(x):\n    x[0] = 1", namespace)
    assert pack_key(namespace["kernel"], ("int32*",), "sm_80") is None
