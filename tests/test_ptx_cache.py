"""The cache of compiled kernels, without a GPU: what its key sees, and its files broken, unwritable or written by several at once."""
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import warnings

import numpy as np
import pytest

from dnnkern.device import SIMULATED, cuda, device_function, f32, f64, fastmath, i32, index, jit
from dnnkern.host import compile as compile_module
from dnnkern.host import sources
from dnnkern.device._fingerprint import Fingerprint, fingerprint
from dnnkern.host.compile import cache_key, compile_kernel
from dnnkern.host.paths import cache_dir

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

SIGNATURE = ("float32*", "int32")
SCALE = 4


def make(factor=2, scalar=f32, bounds=64, helper=None):
    """A kernel whose closure holds its parameters."""
    if helper is None:
        @device_function
        def helper(x):
            return scalar(x)

    @cuda.jit(launch_bounds=bounds)
    def kernel(x, n):
        i = i32(cuda.threadIdx.x)
        if i < n:
            x[i] = f32(helper(x[i]) * scalar(factor))
    return kernel


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache directory."""
    monkeypatch.setenv("DNNKERN_CACHE_DIR", str(tmp_path))
    cache_dir.cache_clear()
    yield tmp_path
    cache_dir.cache_clear()


def key(kernel, signature=SIGNATURE, arch="sm_80"):
    return cache_key(kernel, signature, arch)


def test_equal_kernels_have_equal_keys():
    assert key(make()) == key(make()) and fingerprint(make()) == fingerprint(make())


def test_what_changes_the_code_changes_the_key():
    def plain(x):
        return f32(x)

    def other(x):
        return f32(-x)

    keys = [key(make()), key(make(3)), key(make(2.0)), key(make(True)), key(make(scalar=f64)), key(make(bounds=128)),
            key(make(), arch="sm_90a"), key(make(), ("float32*", "int64")), key(make(helper=device_function(plain))),
            key(make(helper=device_function(other)))]
    assert len(set(keys)) == len(keys)


def test_the_types_of_a_kernel_and_of_what_it_calls():
    def plain(x):
        return f32(x)

    def kernel(x, n):
        x[n] = f32(n)
    keys = [key(decorate(kernel)) for decorate in (cuda.jit, jit)]
    keys += [key(make(helper=decorate(plain))) for decorate in (cuda.jit(device=True, forceinline=True), device_function)]
    assert len(set(keys)) == 4 and key(jit(kernel)) == keys[1]


def test_intrinsics_and_instructions_in_a_closure():
    from dnnkern.device import instruction, vec

    def with_(load):
        @cuda.jit(launch_bounds=32)
        def kernel(x, n):
            x[n] = f32(load(x, n)[0])
        return kernel

    def through(operation):
        @cuda.jit(launch_bounds=32)
        def kernel(x, n):
            x[n] = operation(x[n])
        return kernel

    def emit(text):
        return through(instruction(text, ("float32",), ("float32",), twin=None))

    assert key(with_(vec.load4)) == key(with_(vec.load4)) != key(with_(vec.load2))
    assert key(emit("sin.approx.f32 $0, $1;")) == key(emit("sin.approx.f32 $0, $1;")) != key(emit("cos.approx.f32 $0, $1;"))


def test_defaults_and_globals():
    def make(default):
        @device_function
        def helper(x, y=default):
            return f32(x + y)

        @cuda.jit(launch_bounds=32)
        def kernel(x, n):
            x[n] = helper(x[n])
        return kernel
    assert key(make(f32(1))) == key(make(f32(1))) != key(make(f32(2)))


def test_globals_that_a_kernel_names(monkeypatch):
    """By value, wherever they were computed; also those of a module of the library."""
    @device_function
    def helper(x):
        return f32(x * SCALE + f32(index.ROWS))

    def keys():
        return key(make(helper=helper))
    before = keys()
    monkeypatch.setitem(globals(), "UNUSED", f32(3))
    assert keys() == before
    monkeypatch.setitem(globals(), "SCALE", 5)
    scaled = keys()
    monkeypatch.setattr(index, "ROWS", 6, raising=False)
    assert len({before, scaled, keys()}) == 3


def test_arrays_and_options_of_device_functions():
    def with_(table, **options):
        @cuda.jit(device=True, **options)
        def helper(x):
            return f32(x * f32(table[1999]))
        return key(make(helper=helper))
    table = np.zeros(2000, np.int32)
    again, other = table.copy(), table.copy()
    other[1000] = 1  # where a printed array has dots
    assert with_(table) == with_(again) and len({with_(table), with_(other), with_(table, fastmath=True)}) == 3


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """The package in another directory."""
    root = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(sources.PACKAGE, root / "dnnkern", ignore=shutil.ignore_patterns("__pycache__"))
    return root


@pytest.fixture
def edit(checkout):
    """Edits a file of the checkout for the length of a test."""
    saved = {}

    def edit(name, more):
        path = checkout / "dnnkern" / name
        path.write_text(saved.setdefault(path, path.read_text()) + more)
        sources.imports.cache_clear(), sources._content.cache_clear()
    yield edit
    for path, text in saved.items():
        path.write_text(text)
    sources.imports.cache_clear(), sources._content.cache_clear()


COMMENT = "# a comment\n"
ROW = ["softmax/softmax_ring.py"]  # imports device/ring.py and softmax/rows/_config.py, and these device/mbarrier.py


@pytest.mark.parametrize("name", ["softmax/softmax_ring.py", "softmax/rows/_config.py", "device/ring.py", "device/mbarrier.py",
                                  "device/_mode.py", "device/_numba.py", "device/_numba_compile.py", "device/_numba_typing.py",
                                  "device/__init__.py", "host/compile.py"])
def test_an_edit_of_what_a_kernel_is_made_of_changes_the_key(name, checkout, edit):
    before = source_digest(checkout)
    edit(name, COMMENT)
    assert source_digest(checkout) != before


@pytest.mark.parametrize("name", ["softmax/softmax_columns.py", "softmax/__init__.py", "matmul/matmul_wgmma.py", "matmul/_problem.py",
                                  "device/wgmma.py", "device/sim/engine.py", "host/launch.py", "dispatch.py", "find.py", "__init__.py"])
def test_an_edit_of_anything_else_does_not(name, checkout, edit):
    before = source_digest(checkout)
    edit(name, COMMENT)
    assert source_digest(checkout) == before


def source_digest(checkout):
    """What the key of a kernel in `ROW` has of the sources, with the files that every kernel depends on."""
    return sources.digest(*(checkout / "dnnkern" / name for name in (*ROW, *compile_module.COMPILER)))


def test_another_checkout_has_the_same_digest(checkout):
    assert source_digest(sources.PACKAGE.parent) == source_digest(checkout)


def test_a_kernel_depends_on_the_files_of_what_it_calls(tmp_path):
    """A user's kernel on its file; a kernel of the library on those of the functions that it captures."""
    source = tmp_path / "mine.py"
    keys = []
    for text in ("x[n] = f32(1)", "x[n] = f32(1)  # again"):
        source.write_text(textwrap.dedent(f"""
            from dnnkern.device import cuda, f32
            @cuda.jit(launch_bounds=32)
            def kernel(x, n):
                {text}
        """))
        namespace = {}
        exec(compile(source.read_text(), str(source), "exec"), namespace)
        sources._content.cache_clear()
        compile_module._sources.cache_clear()
        keys.append(key(namespace["kernel"]))
    assert keys[0] != keys[1]
    found = Fingerprint()
    found.of(make(helper=device_function(lambda x: fastmath.exp_fast(x))))
    assert found.files >= {__file__, fastmath.__file__}


def test_keys_are_the_same_in_another_process():
    """A memory address or a counter in a key would make every process compile again."""
    program = ("import test_ptx_cache as t; from dnnkern import dispatch; import test_ptx as p; from cases.matmul import CASES\n"
               "case = next(c for c in CASES if not c.problem().is_empty); device = p.device('sm_80')\n"
               "print(t.key(t.make()), *[t.key(k.kernel, k.signature) for a in dispatch.algorithms('matmul')\n"
               "     if not (a.supports(case.problem()) or device.supports(a.arch))\n"
               "     for b in [a.configured(case.problem(), device)] for k in b.build(case.problem(), device, b.config)])")
    done = [subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True,
                           env=environment() | {"PYTHONHASHSEED": seed}).stdout for seed in ("1", "2")]
    assert done[0] == done[1] and done[0].split()[0] == key(make())


def test_written_once_and_read_again(cache, monkeypatch):
    first = compile_kernel(make(), SIGNATURE, "sm_80")
    files = [p for p in cache.rglob("*") if p.is_file()]
    assert [p.suffix for p in files] == [".cubin"] and first.code[:4] == b"\x7fELF" and first.registers > 0
    monkeypatch.setattr(compile_module, "compile_anew", None)  # a second compilation would raise
    assert compile_kernel(make(), SIGNATURE, "sm_80") == first


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b"not a cubin", lambda b: b[:-1],
                                    lambda b: b[:-9] + bytes([b[-9] ^ 1]) + b[-8:], lambda b: b"{}\n" + b, lambda b: b"\xff\xfe\n" + b,
                                    lambda b: b"[1]\n" + b],
                         ids=["empty", "text", "truncated", "flipped", "no-head", "binary-head", "wrong-head"])
def test_a_broken_file_is_made_again_with_a_warning(cache, damage):
    first = compile_kernel(make(), SIGNATURE, "sm_80")
    path = next(cache.rglob("*.cubin"))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(RuntimeWarning, match="is broken .*compiling it again"):
        assert compile_kernel(make(), SIGNATURE, "sm_80").registers == first.registers
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compile_kernel(make(), SIGNATURE, "sm_80").code[:4] == b"\x7fELF"


def test_a_directory_that_cannot_be_written(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("a file where a directory should be: not even root can write below it")
    monkeypatch.setenv("DNNKERN_CACHE_DIR", str(blocked / "cache"))
    cache_dir.cache_clear()
    with pytest.warns(RuntimeWarning, match="no cache, .*cannot be written"):
        assert compile_kernel(make(), SIGNATURE, "sm_80").code[:4] == b"\x7fELF"
    cache_dir.cache_clear()


def test_a_write_that_fails_is_a_warning(cache):
    compile_module.cache_dir()  # writable so far
    (cache / "cubin").write_text("in the way")
    with pytest.warns(RuntimeWarning, match="could not write|is broken"):
        assert compile_kernel(make(), SIGNATURE, "sm_80").code[:4] == b"\x7fELF"


def environment():
    """That of this process, for one that imports this file."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (os.path.dirname(__file__), os.environ.get("PYTHONPATH"))))}


def test_two_processes_at_once(cache):
    program = ("import test_ptx_cache as t\n"
               "from dnnkern.host.compile import compile_kernel\n"
               "print(*[compile_kernel(t.make(k), t.SIGNATURE, 'sm_80').registers for k in (5, 6, 7)])")
    running = [subprocess.Popen([sys.executable, "-W", "error", "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=environment()) for _ in range(3)]
    done = [p.communicate(timeout=120) for p in running]
    assert len({out for out, _ in done}) == 1 and all(p.returncode == 0 for p in running), done
    files = [p for p in cache.rglob("*") if p.is_file()]
    assert len(files) == 3 and all(p.suffix == ".cubin" for p in files), files


def test_threads_at_once(cache):
    """Each gets its own kernel: the name of another's in a kept file would never be found."""
    start, found = threading.Barrier(6), {}

    def work(k):
        kernel = make(k // 2)  # two threads have the same
        start.wait()
        found[k] = compile_kernel(kernel, SIGNATURE, "sm_80")
    threads = [threading.Thread(target=work, args=(k,)) for k in range(start.parties)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(start.parties))
    for k, binary in found.items():
        assert binary.entry.encode() + b"\0" in binary.code
        kept = compile_kernel(make(k // 2), SIGNATURE, "sm_80")
        assert kept.entry.encode() + b"\0" in kept.code


def test_the_bench_compiles_ahead(cache, tmp_path):
    """The kernels of the chosen problem are in the cache afterwards, and a second time found there."""
    from bench.run import compile_ahead, parser, selected
    from dnnkern.host.device import described
    args = parser().parse_args(["matmul", "--problem", "96x64x64", "--dtype", "bfloat16", "--algo", "tiled,gemv,wgmma", "--configs", "2",
                                "--jobs", "2"])
    work = [(case, None) for _, case in selected(args)]

    def files():
        return {path: path.stat().st_mtime_ns for path in (tmp_path / "cubin").rglob("*.cubin")}
    compile_ahead(args.jobs, described("sm_90a"), work, args).wait()
    made = files()
    assert len(made) >= 3
    compile_ahead(args.jobs, described("sm_90a"), work, args).wait()
    assert files() == made
