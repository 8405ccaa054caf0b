"""JAX's operations replaced by `dnnkern.jax.enable`, XLA's interface, and programs in processes of their own: several devices, Keras."""
import ctypes
import doctest
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402
from test_jax import alone, array, assert_close, ran, with_gradients  # noqa: E402, F401 (a fixture)

import dnnkern.jax  # noqa: E402
from dnnkern import dispatch  # noqa: E402
from dnnkern.device import HOST_MEMORY  # noqa: E402
from dnnkern.jax import _xla  # noqa: E402

pytestmark = pytest.mark.sized
ours = dnnkern.jax


def went_back():
    """[(operation, why)] of what JAX compiled."""
    return [(row.op, row.why) for row in ours.status() if not row.ours]


def replaced(f, *operands, eps=1e-11, **how):
    """Values and gradients as JAX's, without and with `enabled`."""
    with jax.default_matmul_precision("highest"):  # on a GPU float32 would be TF32
        expected = with_gradients(lambda *a: f(*a), *operands)
    ours.status(reset=True)
    with ours.enabled(**how):
        found = jax.block_until_ready(with_gradients(lambda *a: f(*a), *operands))
    assert_close(found, expected, eps)
    return ran()


CONVOLUTIONS = [
    dict(), dict(window_strides=(2, 3), padding=((1, 1), (0, 2))), dict(padding="SAME", window_strides=(2, 2)),
    dict(rhs_dilation=(2, 1), padding=((2, 1), (1, 0))), dict(feature_group_count=2, window_strides=(2, 1), padding="SAME"),
    dict(feature_group_count=4), dict(lhs_dilation=(2, 2), padding=((1, 2), (1, 1))), dict(padding=((-1, 0), (0, -1)))]


@pytest.mark.parametrize("numbers", [("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC"), ("NHWC", "OIHW", "NCHW"),
                                     ("CHWN", "IHWO", "CHWN")], ids="-".join)
@pytest.mark.parametrize("how", CONVOLUTIONS, ids=lambda how: "-".join(how) or "plain")
def test_convolution(how, numbers):
    sizes = {"N": 2, "C": 4, "H": 9, "W": 8}, {"O": 8, "I": 4 // how.get("feature_group_count", 1), "H": 3, "W": 2}
    x, w = (array(*[size[letter] for letter in letters]) for size, letters in zip(sizes, numbers))
    assert replaced(lambda x, w: lax.conv_general_dilated(x, w, **{"window_strides": (1, 1), "padding": "VALID", **how},
                                                          dimension_numbers=numbers), x, w)["conv_general_dilated"] == 3
    assert not went_back()


@pytest.mark.parametrize("f, op, shapes", [
    (lambda x, w: lax.conv(x, w, (2,), "SAME"), "conv_general_dilated", [(2, 3, 9), (4, 3, 3)]),
    (lambda x, w: lax.conv(x, w, (2, 1, 1), "SAME"), "conv_general_dilated", [(1, 2, 4, 3, 5), (3, 2, 3, 2, 2)]),
    (jax.vmap(lambda x, w: lax.conv(x, w, (1, 1), "SAME")), "conv_general_dilated", [(2, 1, 2, 4, 4), (2, 3, 2, 3, 3)]),
    (jnp.matmul, "dot_general", [(3, 4), (4, 5)]), (jnp.matmul, "dot_general", [(2, 3, 4), (2, 4, 5)]),
    (lambda a, b: jnp.einsum("bthd,bshd->bhts", a, b), "dot_general", [(2, 5, 3, 4), (2, 6, 3, 4)]),
    (lambda a, b: jnp.einsum("abcd,cde->eab", a, b), "dot_general", [(2, 5, 3, 4), (3, 4, 7)])])
def test_convolutions_and_products(f, op, shapes):
    assert replaced(f, *[array(*shape) for shape in shapes]) == {op: 3}
    assert not went_back()


@pytest.mark.parametrize("window, strides, shape", [
    ((1, 1, 3, 2), (1, 1, 2, 2), (2, 3, 7, 6)), ((1, 3, 2, 1), (1, 2, 2, 1), (2, 7, 6, 3)), ((1, 3, 1), (1, 3, 1), (2, 9, 3)),
    ((1, 1, 2, 2, 1), (1, 1, 2, 2, 1), (2, 2, 5, 4, 3)), ((2, 2, 2), (1, 2, 1), (4, 4, 5))], ids=str)
@pytest.mark.parametrize("padding", ["VALID", "SAME"])
def test_pooling(window, strides, shape, padding):
    x = array(*shape)
    assert replaced(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, window, strides, padding), x) == {
        "reduce_window_max": 1, "select_and_scatter_add": 2}
    assert replaced(lambda x: lax.reduce_window(x, 0.0, lax.add, window, strides, padding), x) == {"reduce_window_sum": 2}


@pytest.mark.parametrize("how", [
    {}, {"is_causal": True}, {"scale": 0.3}, {"local_window_size": (2, 1)}, {"key_value_seq_lengths": jnp.array([3, 7], jnp.int32)},
    {"mask": jnp.arange(7)[None, None, None] < jnp.array([7, 2])[:, None, None, None]}], ids=lambda how: "-".join(how) or "plain")
def test_attention(how):
    q, k, v = array(2, 6, 4, 8, dtype="float32"), array(2, 7, 2, 8, dtype="float32"), array(2, 7, 2, 8, dtype="float32", seed=1)
    assert replaced(lambda *a: jax.nn.dot_product_attention(*a, **how), q, k, v, eps=2e-5) == {"dot_product_attention": 2}


def test_attention_with_a_bias():
    shapes = (2, 6, 4, 8), (2, 7, 4, 8), (2, 7, 4, 8), (1, 4, 6, 7)
    q, k, v, b = (array(*shape, dtype="float32", seed=i) for i, shape in enumerate(shapes))
    assert replaced(lambda q, k, v, b: jax.nn.dot_product_attention(q, k, v, bias=b), q, k, v, b, eps=2e-5) == {"dot_product_attention": 2}


def test_what_goes_back_and_why():
    with ours.enabled():
        a = jnp.arange(6).reshape(2, 3)
        assert (np.asarray(a @ a.T) == [[5, 14], [14, 50]]).all()
        assert_close(jnp.outer(array(3), array(2)), np.outer(array(3), array(2)))
        lax.dot_general(array(3), array(2), (((), ()), ((), ()))).block_until_ready()
        lax.reduce_window(array(2, 3), jnp.inf, lax.min, (1, 2), (1, 1), "VALID").block_until_ready()
    assert sorted(went_back()) == [("dot_general", "an outer product"), ("dot_general", "dtype int64")] and not ran()


def test_enabling_and_disabling():
    f, x = jax.jit(jnp.matmul), array(3, 3)
    f(x, x).block_until_ready()
    assert not ran()
    ours.enable("product")
    f(x, x).block_until_ready()
    lax.conv(x[None, None], x[None, None], (1, 1), "SAME").block_until_ready()
    assert ran() == {"dot_general": 1}
    with ours.enabled(exclude="product"):
        f(x, x).block_until_ready()
    f(x, x).block_until_ready()
    assert ran() == {"dot_general": 2}
    ours.disable()
    ours.disable()
    f(x, x).block_until_ready()
    assert ran() == {"dot_general": 2}
    with pytest.raises(ValueError, match="enable: ops has 'produkt'; did you mean 'product'"):
        ours.enable("produkt")
    with pytest.raises(ValueError, match="enable: exclude has 'nothing'"):
        ours.enable(exclude=["nothing"])
    assert not ours.status(reset=True)[0].why and not ours.status()


def test_the_page():
    page = pathlib.Path(__file__).resolve().parent.parent / "docs" / "jax.md"
    with dispatch.prefer(None):
        found = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert found.attempted == 10 and not found.failed


# ---- XLA's interface

def header():
    found = list(pathlib.Path(jax.ffi.include_dir()).rglob("ffi/api/c_api.h"))
    return found[0].read_text()


def test_functions_of_the_interface():
    """Where the handler looks for them is where the header of this JAX has them."""
    table = re.search(r"struct XLA_FFI_Api {(.*?)};", header(), re.DOTALL)[1]
    names = re.findall(r"_XLA_FFI_API_STRUCT_FIELD\(XLA_FFI_(\w+)\)", table)
    assert [names.index(name) for name in ("Error_Create", "Stream_Get", "DeviceOrdinal_Get")] == [
        _xla._ERROR_CREATE, _xla._STREAM_GET, _xla._DEVICE_ORDINAL_GET]


def test_dtypes_of_the_interface():
    known = {int(number): name for name, number in re.findall(r"XLA_FFI_DataType_(\w+) = (\d+)", header())}
    short = {"bool": "PRED", "bfloat16": "BF16", "float8_e5m2": "F8E5M2", "float8_e4m3fn": "F8E4M3FN"}
    for number, dtype in _xla._DTYPES.items():
        assert known[number] == short.get(dtype, re.sub(r"[a-z]+", lambda word: {"int": "S"}.get(word[0], word[0][0].upper()), dtype))


def test_stream_and_device_of_a_call_on_a_gpu():
    """By an interface made here: the real one's has them on GPUs alone."""
    asked = []

    def answer(number):
        @_xla._Function
        def get(address):
            found = _xla._Get.from_address(address)
            asked.append((found.size, found.context))
            found.found = number
        return get
    functions = {_xla._STREAM_GET: answer(0x7f0012345678), _xla._DEVICE_ORDINAL_GET: answer(3)}
    table = (ctypes.c_void_p * 24)(*[ctypes.cast(functions[i], ctypes.c_void_p).value if i in functions else None for i in range(24)])
    assert _xla._stream(ctypes.addressof(table) - _xla._FUNCTIONS, 77) == (0x7f0012345678, 3)
    assert asked == [(32, 77)] * 2


def test_arrays_of_a_call_on_a_gpu():
    """They are arrays to the front end, of whatever device it has."""
    dims = np.array([4, 5]).tobytes()
    a, b = (_xla._on_gpu(11, address, dims, 0) for address in (0x7f0000001000, 0x7f0000002000))
    assert dnnkern.problem("matmul", a=a, b=b, transpose_b=True) == dnnkern.problem(
        "matmul", a=((4, 5), "float32"), b=((4, 5), "float32"), transpose_b=True)
    with pytest.raises(ValueError, match="matmul: a gives K=5"):
        dnnkern.matmul(a, b)


# ---- other processes

def program(text, *args, **environment):
    """What a program prints; it must end well."""
    done = subprocess.run([sys.executable, "-c", text, *args], capture_output=True, text=True, env=environment_of(**environment))
    assert done.returncode == 0, done.stderr
    return done.stdout


def environment_of(**more):
    """That of another process, which finds what this one does."""
    path = os.pathsep.join(filter(None, (os.path.dirname(os.path.dirname(__file__)), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path, "DNNKERN_PREFER": "naive", **more}


KEPT = """
import sys, jax, jax.numpy as jnp, dnnkern.jax
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
if sys.argv[2] == "later":  # other calls first: what was kept must not depend on the order of a process
    dnnkern.jax.activation_fwd(jnp.ones(3), "tanh")
y = jax.jit(lambda x: dnnkern.jax.softmax_fwd(x, axis=0))(jnp.ones((4, 2)))
print(y.sum(), len(list(__import__("pathlib").Path(sys.argv[1]).iterdir())) > 0)
"""


def test_programs_that_are_kept_on_disk(tmp_path):
    assert program(KEPT, str(tmp_path), "now") == program(KEPT, str(tmp_path), "later") == "2.0 True\n"


SEVERAL = """
import jax, jax.numpy as jnp, numpy as np, dnnkern.jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()), ("d",))
made = np.random.default_rng(0)
x, w = jnp.asarray(made.normal(size=(4, 3)), "float32"), jnp.asarray(made.normal(size=(3, 5)), "float32")
expected, parts = np.asarray(x) @ np.asarray(w), jax.device_put(x, NamedSharding(mesh, P("d")))
dnnkern.jax.enable()
for f in (dnnkern.jax.matmul, jnp.matmul):
    of_parts = jax.shard_map(lambda x, w: f(x, w), mesh=mesh, in_specs=(P("d"), P()), out_specs=P("d"))
    for g in (f, of_parts):
        np.testing.assert_allclose(jax.jit(lambda x, w: g(x, w))(parts, w), expected, rtol=1e-5)
print(sum(row.calls for row in dnnkern.jax.status() if row.ours))
"""


def test_several_devices():
    processor = dict(JAX_PLATFORMS="cpu", DNNKERN_DEVICE="cpu", NUMBA_ENABLE_CUDASIM="0")
    assert program(SEVERAL, XLA_FLAGS="--xla_force_host_platform_device_count=2", **processor) == "8\n"


KERAS = """
import numpy as np, keras
L = keras.layers
keras.utils.set_random_seed(0)
images = keras.Sequential([
    keras.Input((12, 12, 2)), L.Conv2D(8, 3, activation="relu"), L.MaxPooling2D(2), L.BatchNormalization(),
    L.DepthwiseConv2D(3, strides=2, padding="same"), L.Conv2DTranspose(4, 2, strides=2), L.AveragePooling2D(2, padding="same"),
    L.Flatten(), L.Dense(5, activation="softmax")])
words = keras.Input((6,))
h = L.Embedding(11, 8)(words)
h = L.LayerNormalization()(h + L.MultiHeadAttention(2, 4)(h, h, use_causal_mask=True))
text = keras.Model(words, L.Dense(5, activation="softmax")(L.LSTM(5)(h)))
made = np.random.default_rng(0)
x, t, y = made.normal(size=(24, 12, 12, 2)), made.integers(0, 11, (24, 6)), made.integers(0, 5, 24)
for model, x in ((images, x), (text, t)):
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    print(*model.fit(x, y, batch_size=8, epochs=2, verbose=0).history["loss"], model.evaluate(x, y, verbose=0),
          *model.predict(x, verbose=0)[::5].ravel())
"""


def run(tmp_path, text, options=(), **environment):
    """The process of ``python -m dnnkern run``; it must end well."""
    (tmp_path / "program.py").write_text(text)
    done = subprocess.run([sys.executable, "-m", "dnnkern", "run", *options, str(tmp_path / "program.py")], capture_output=True, text=True,
                          env=environment_of(**environment))
    assert done.returncode == 0, done.stderr
    return done


PLAIN = """
import jax, jax.numpy as jnp, numpy as np
a, w = np.arange(6, dtype="float32").reshape(2, 3), np.ones((1, 1, 2, 2), "float32")
print(*jax.jit(jnp.matmul)(a, a.T).ravel(), *jax.lax.conv(a[None, None], w, (1, 1), "VALID").ravel())
print(*(jnp.arange(3) @ a.T.astype("int32")))
"""


@pytest.mark.parametrize("options, rows", [
    ((), ["conv_general_dilated dnnkern 1", "dot_general JAX 1", "dot_general dnnkern 1"]),
    (("--ops", "product", "--exclude", "pool"), ["dot_general JAX 1", "dot_general dnnkern 1"]),
    (("--exclude", "product"), ["conv_general_dilated dnnkern 1"])], ids=" ".join)
def test_a_program_as_it_is(tmp_path, options, rows):
    if options and importlib.util.find_spec("torch"):
        options = *options[:1], options[1] + ",mm", *options[2:]  # names that PyTorch's overrides have
    done = run(tmp_path, PLAIN, options=("--report", *options))
    assert [float(n) for n in done.stdout.split()] == [5, 14, 14, 50, 8, 12, 5, 14]
    assert sorted(" ".join(line.split()[:3]) for line in done.stderr.splitlines() if re.search("^(conv_|dot_)", line)) == rows, done.stderr
    ours, back = (sum(word in row for row in rows) for word in ("dnnkern", "JAX"))
    assert f"dnnkern: {ours} calls of {ours} operators ran on its kernels, {back} went back to JAX" in done.stderr


def test_a_program_and_bad_names(tmp_path):
    if importlib.util.find_spec("torch"):
        pytest.skip("they are PyTorch's overrides' error")
    with pytest.raises(AssertionError, match="enable: ops has 'produkt'; did you mean 'product'"):
        run(tmp_path, PLAIN, options=("--ops", "produkt"))


def test_keras(tmp_path):
    if importlib.util.find_spec("keras") is None:  # importing it would choose a backend
        pytest.skip("keras is not installed")
    ours, theirs = run(tmp_path, KERAS, options=("--report",), KERAS_BACKEND="jax"), program(KERAS, KERAS_BACKEND="jax")
    for found, expected in zip(ours.stdout.splitlines(), theirs.splitlines(), strict=True):
        np.testing.assert_allclose([float(n) for n in found.split()], [float(n) for n in expected.split()],
                                   rtol=1e-4 if HOST_MEMORY else 2e-3, atol=1e-6)  # XLA's products are TF32 on a GPU
    assert re.search(r"^dnnkern: \d{3} calls of 6 operators ran on its kernels, 0 went back to JAX", ours.stderr, re.M), ours.stderr
    assert sorted(line.split()[0] for line in ours.stderr.splitlines() if re.search(r" dnnkern +\d+ ", line)) == [
        "conv_general_dilated", "dot_general", "dot_product_attention", "reduce_window_max", "reduce_window_sum", "select_and_scatter_add"]
