"""Keras' layers, losses and models on PyTorch, on this library's kernels: values, gradients and weights beside Keras' own."""
import os

import pytest

torch = pytest.importorskip("torch")
os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras")
if keras.config.backend() != "torch":
    pytest.skip(f"Keras runs on {keras.config.backend()}, not on torch", allow_module_level=True)

import contextlib  # noqa: E402
import functools  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402

import numpy as np  # noqa: E402
from keras_layers import (ATTENTION, BATCH_NORM, CASES, CONV, GROUP_NORM, GRU, LAYER_NORM, LSTM, MAX2, PADDED,  # noqa: E402
                          RMS_NORM)
import test_torch_table  # noqa: E402
from test_torch_table import alone  # noqa: E402, F401 (a fixture)
from torch_calls import DEVICE, EMBEDDING  # noqa: E402

import dnnkern.keras  # noqa: E402
import dnnkern.torch  # noqa: E402

dnnkern.keras.disable()
pytestmark = pytest.mark.sized

TOLERANCE = {"float64": 2e-6, "float32": 2e-5, "mixed_bfloat16": 4e-2, "mixed_float16": 5e-3}


def ran():
    """Operators that this library has computed. Batch normalisation has two names on a GPU: PyTorch chooses by format and dtype."""
    found = test_torch_table.ran()
    return found | {op.replace("native_batch_norm", "cudnn_batch_norm") for op in found}


@contextlib.contextmanager
def ours(*exclude, **options):
    """Keras' functions replaced, and all overrides but some: arithmetic is of integers, too, in Keras' seeds."""
    dnnkern.keras.enable()
    try:
        with dnnkern.torch.enabled("all", exclude=["arithmetic", *exclude], **options):
            yield
    finally:
        dnnkern.keras.disable()


def went_back():
    """{what went back to PyTorch or Keras: why}; counts nothing anew."""
    return {row.op: row.why for row in dnnkern.torch.status() if not row.ours}


def tensors(case, dtype):
    kind = {"float64": torch.float64, "mixed_bfloat16": torch.bfloat16, "mixed_float16": torch.float16}.get(dtype, torch.float32)
    made = torch.Generator().manual_seed(len(case.id))
    return [torch.randn(shape, generator=made, dtype=torch.float64).add(0.5).to(DEVICE, kind).requires_grad_() for shape in case.shapes]


def flat(values):
    return [values] if isinstance(values, torch.Tensor) else list(values)


def outcome(layer, start, given, call):
    """{name: tensor} of two calls with gradients from the same weights: results, gradients, and weights that calls write."""
    layer.set_weights(start)
    found = {}
    for i in range(2):
        ys = flat(layer(*given, **call))
        found.update({f"result {i}.{j}": y.detach() for j, y in enumerate(ys)})
        wanted = [*given, *(w.value for w in layer.trainable_weights)]
        dys = [torch.linspace(-1, 2, y.numel(), dtype=y.dtype, device=y.device).reshape(y.shape) for y in ys]
        found.update({f"gradient {i}.{j}": g for j, g in enumerate(torch.autograd.grad(ys, wanted, dys, allow_unused=True))})
    found.update({w.path: w.value.detach().clone() for w in layer.non_trainable_weights})
    return found


def assert_close(mine, theirs, part):
    """Equal within a part of the largest number of its kind: some gradients are 0 but for rounding."""
    assert mine.keys() == theirs.keys()
    largest = {}
    for name, other in theirs.items():
        kind = name.partition(" ")[0]
        if other is not None:
            largest[kind] = max(largest.get(kind, 1.0), other.double().abs().max().item())
    for name, other in theirs.items():
        one = mine[name]
        assert (one is None) == (other is None), name
        if other is None:
            continue
        assert one.dtype is other.dtype and one.shape == other.shape, name
        difference = (one.double() - other.double()).abs().max().item()
        assert difference <= part * largest[name.partition(" ")[0]], f"{name}: {difference}"


def weights(layer):
    """Weights that none of its initialisers would give: none is 0 or 1."""
    made = np.random.default_rng(1)
    return [made.uniform(0.2, 0.9, w.shape) * (1 if w.ndim < 2 else made.choice([-1, 1], w.shape)) for w in layer.get_weights()]


@pytest.mark.parametrize("case, dtype", [(case, dtype) for case in CASES for dtype in case.dtypes], ids=str)
def test_a_layer(case, dtype):
    layer = case.layer(dtype=dtype, **case.options)
    given = tensors(case, dtype)
    layer(*given, **case.call)  # makes its weights
    start = weights(layer)
    theirs = outcome(layer, start, given, case.call)
    assert not ran()
    with ours():
        mine = outcome(layer, start, given, case.call)
    back = {op: why for op, why in went_back().items() if op in case.ops or op.startswith("keras")}
    assert ran() >= set(case.ops) and not back
    assert_close(mine, theirs, TOLERANCE[dtype])


def test_stateful():
    """States are written before the gradient is computed, which of Keras' layers only its loop over the steps survives."""
    x = torch.randn(3, 5, 4, device=DEVICE)
    layer = keras.layers.LSTM(6, stateful=True)
    layer(x)
    start = weights(layer)
    layer.use_cudnn = False
    layer.reset_state()
    theirs = outcome(layer, start, [x.requires_grad_()], {})
    layer.use_cudnn = "auto"
    layer.reset_state()
    with ours():
        mine = outcome(layer, start, [x], {})
    assert ran() >= {"lstm.input", "lstm.input backward"} and not went_back()
    assert_close(mine, theirs, TOLERANCE["float32"])


L = keras.layers
COMPOSED = [
    (lambda: L.BatchNormalization(), (3, 5, 4), {"training": True, "mask": PADDED}, "BatchNormalization.call", "a mask in training"),
    (lambda: L.BatchNormalization(), (1, 4), {"training": True}, "BatchNormalization.call", "one element per channel"),
    (lambda: L.LayerNormalization(rms_scaling=True), (3, 4), {}, "LayerNormalization.call", "rms_scaling=True"),
    (lambda: L.LayerNormalization(axis=[0, 2]), (3, 5, 4), {}, "LayerNormalization.call", "axis [0, 2] of a 3-D tensor"),
    (lambda: L.LSTM(3, activation="relu"), (3, 5, 4), {}, "LSTM.inner_loop", "activation relu"),
    (lambda: L.LSTM(3, recurrent_activation="hard_sigmoid"), (3, 5, 4), {}, "LSTM.inner_loop", "recurrent_activation hard_sigmoid"),
    (lambda: L.LSTM(3, use_cudnn=False), (3, 5, 4), {}, "LSTM.inner_loop", "use_cudnn=False"),
    (lambda: L.LSTM(3, return_state=True), (3, 5, 4), {"mask": PADDED}, "LSTM.inner_loop", "a mask, and the cell state is wanted"),
    (lambda: L.GRU(3, reset_after=False), (3, 5, 4), {}, "GRU.inner_loop", "reset_after=False"),
    (lambda: L.EinsumDense("abc,dc->abd", (None, 6)), (3, 5, 4), {}, "EinsumDense.call", "equation abc,dc->abd"),
]


@pytest.mark.parametrize("make, shape, call, name, why", COMPOSED, ids=[row[-1] for row in COMPOSED])
def test_what_stays_keras(make, shape, call, name, why):
    """Keras' own result, counted with the reason."""
    layer, x = make(), torch.randn(shape, device=DEVICE).requires_grad_()
    layer(x, **call)
    start = weights(layer)
    theirs = outcome(layer, start, [x], call)
    with ours():
        mine = outcome(layer, start, [x], call)
    assert went_back()[f"keras {name}"] == why
    assert_close(mine, theirs, TOLERANCE["float32"])


class Centred(L.BatchNormalization):
    """Its statistics are not PyTorch's."""

    def _moments(self, inputs, mask):
        mean, variance = super()._moments(inputs, mask)
        return mean * 0, variance


class Scaled(L.Conv2D):
    """So is its convolution."""

    def convolution_op(self, inputs, kernel):
        return super().convolution_op(inputs, kernel * 2)


@pytest.mark.parametrize("make, call", [(Centred, {"training": True}), (lambda: Scaled(3, 2), {})], ids=["batch_norm", "conv"])
def test_subclasses(make, call):
    layer, x = make(), torch.randn(2, 5, 4, 3, device=DEVICE).requires_grad_()
    layer(x, **call)
    start = weights(layer)
    theirs = outcome(layer, start, [x], call)
    with ours():
        mine = outcome(layer, start, [x], call)
    assert "own" in "".join(went_back().values())
    assert_close(mine, theirs, TOLERANCE["float32"])


# ---- losses

LOSSES = {
    "sparse": (keras.losses.SparseCategoricalCrossentropy(), {"nll_loss_forward", "nll_loss_backward"}),
    "sparse-logits": (keras.losses.SparseCategoricalCrossentropy(from_logits=True), {"cross_entropy_loss", "cross_entropy_loss backward"}),
    "categorical-logits": (keras.losses.CategoricalCrossentropy(from_logits=True), {"_log_softmax", "_log_softmax_backward_data"}),
    "mean-squared": (keras.losses.MeanSquaredError(), {"mean.dim"}),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss(name):
    function, expected = LOSSES[name]
    x = torch.randn(6, 5, device=DEVICE).requires_grad_()
    y = x if "logits" in name else x.softmax(1)
    target = torch.arange(6, device=DEVICE) % 5
    target = target if "sparse" in name else torch.nn.functional.one_hot(target, 5).float()

    def results():
        loss = function(target, y)
        return {"result": loss.detach(), "gradient": torch.autograd.grad(loss, x, retain_graph=True)[0]}
    theirs = results()
    with ours():
        mine = results()
    assert ran() >= expected
    assert_close(mine, theirs, TOLERANCE["float32"])


def test_embedding():
    layer = L.Embedding(7, 4)
    words = torch.tensor([[1, 2, -1], [0, 2, 2]], device=DEVICE)
    layer(words)
    start = weights(layer)
    theirs = outcome(layer, start, [], {"inputs": words})
    with ours():
        mine = outcome(layer, start, [], {"inputs": words})
    assert ran() >= set(EMBEDDING)
    assert_close(mine, theirs, TOLERANCE["float32"])


# ---- dropout

def test_dropout():
    """The seed decides; about half the elements stay, doubled; the gradient has the same mask."""
    x = torch.ones(64, 65, device=DEVICE).requires_grad_()

    def dropped(seed):
        layer = L.Dropout(0.5, seed=seed)
        y = [layer(x, training=True) for _ in range(2)]
        return y, torch.autograd.grad(y, x, [torch.ones_like(x)] * 2)[0]
    with ours():
        (first, second), dx = dropped(3)
        assert ran() >= {"dropout", "dropout backward"} and not went_back()
        again, other = dropped(3)[0], dropped(4)[0]
        assert torch.equal(L.Dropout(0.5, seed=3)(x), x)
    assert set(first.unique().tolist()) == {0.0, 2.0} and abs(first.mean().item() - 1) < 0.1
    assert torch.equal(dx, first + second) and not torch.equal(first, second)
    assert torch.equal(first, again[0]) and torch.equal(second, again[1]) and not torch.equal(first, other[0])


def test_dropout_is_keras_own_unless_asked_for():
    x = torch.ones(8, 9, device=DEVICE)
    theirs = L.Dropout(0.5, seed=3)(x, training=True)
    with ours("dropout"):
        mine = L.Dropout(0.5, seed=3)(x, training=True)
    assert torch.equal(mine, theirs) and not went_back()


# ---- models

def images():
    """A network of images, by the functional interface."""
    x = inputs = keras.Input((12, 12, 3))
    for channels in (4, 8):
        x = L.Conv2D(channels, 3, padding="same", use_bias=False)(x)
        x = L.ReLU()(L.BatchNormalization()(x))
        x = L.MaxPooling2D()(x)
    x = L.GlobalAveragePooling2D()(L.GroupNormalization(2)(L.DepthwiseConv2D(3)(x)))
    return keras.Model(inputs, L.Dense(5, activation="softmax")(x))


def words():
    """A network of sequences that end early, as Sequential."""
    return keras.Sequential([L.Embedding(11, 6, mask_zero=True), L.Bidirectional(L.LSTM(5, return_sequences=True)), L.GRU(4),
                             L.Dense(5, activation="softmax")])


@keras.saving.register_keras_serializable()
class Transformer(keras.Model):
    """A block of one, as a subclass."""

    def __init__(self, **options):
        super().__init__(**options)
        self.embedding, self.attention = L.Embedding(11, 8), L.MultiHeadAttention(2, 4)
        self.norms, self.up, self.down = [L.LayerNormalization(), L.RMSNormalization()], L.Dense(12, activation="gelu"), L.Dense(8)
        self.pool, self.head = L.GlobalAveragePooling1D(), L.Dense(5, activation="softmax")

    def call(self, x):
        x = self.embedding(x)
        x = self.norms[0](x + self.attention(x, x, use_causal_mask=True))
        return self.head(self.pool(self.norms[1](x + self.down(self.up(x)))))


def data(name):
    made = np.random.default_rng(0)
    x = made.normal(size=(24, 12, 12, 3)).astype("float32") if name == "images" else made.integers(0, 11, (24, 7)) * (np.arange(7) < 5)
    return x, made.integers(0, 5, 24)


MODELS = {"images": images, "words": words, "transformer": Transformer}
OPS = {"images": {*BATCH_NORM, *GROUP_NORM, *CONV, *MAX2, "mean.dim", "addmm"},
       "words": {*EMBEDDING, *LSTM, *GRU, "addmm"},
       "transformer": {*EMBEDDING, *LAYER_NORM, *RMS_NORM, *ATTENTION, "gelu", "gelu_backward"}}


def predicted(model, x):
    return torch.tensor(model.predict(x, verbose=0).astype("float32"))  # NumPy's bfloat16 is not PyTorch's


def trained(name, path, policy="float32", epochs=2, **how):
    """(losses, numbers) of a model that is trained, evaluated, saved and loaded: predictions, weights."""
    x, y = data(name)
    keras.utils.set_random_seed(0)
    keras.mixed_precision.set_dtype_policy(policy)
    try:
        model = MODELS[name]()
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"], **how)
        fitted = model.fit(x, y, batch_size=8, epochs=epochs, validation_data=(x, y), verbose=0).history
        found = {"losses": torch.tensor([*fitted["loss"], *fitted["val_loss"], model.evaluate(x, y, verbose=0)[0]]),
                 "predictions": predicted(model, x)}
        found.update({f"weights {w.path}": w.value.detach().clone() for w in model.weights})
        model.save(path / "model.keras")
        loaded = keras.models.load_model(path / "model.keras")
        assert torch.equal(predicted(loaded, x), found["predictions"])
        return found
    finally:
        keras.mixed_precision.set_dtype_policy("float32")


@pytest.mark.parametrize("name, policy", [*((name, "float32") for name in MODELS), ("images", "mixed_float16"),
                                          ("transformer", "mixed_bfloat16")])
def test_a_model(name, policy, tmp_path):
    theirs = trained(name, tmp_path, policy)
    with ours():
        mine = trained(name, tmp_path, policy)
    back = went_back()
    assert ran() >= OPS[name] and not [op for op in back if op.startswith("keras") or op in OPS[name]], back
    names = dict(zip(mine, theirs))  # Keras numbers the layers of a process
    assert_close({names[key]: value for key, value in mine.items()}, theirs, {"float32": 1e-4}.get(policy, 5e-2))


def test_run_eagerly(tmp_path):
    theirs = trained("words", tmp_path, epochs=1)
    with ours():
        mine = trained("words", tmp_path, epochs=1, run_eagerly=True)
    names = dict(zip(mine, theirs))
    assert_close({names[key]: value for key, value in mine.items()}, theirs, 1e-4)


@pytest.mark.slow  # PyTorch takes a minute to trace a step of Keras
def test_jit_compile(monkeypatch):
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    x, y = np.random.rand(16, 6, 6, 2), np.random.rand(16, 5)

    def losses(**how):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([L.Conv2D(4, 3), L.BatchNormalization(), L.Flatten(), L.Dense(5), L.LayerNormalization()])
        model.compile("sgd", "mse", **how)
        return torch.tensor(model.fit(x, y, batch_size=8, epochs=2, verbose=0).history["loss"])
    theirs = losses()
    with ours():
        mine = losses(jit_compile=True)
    assert ran() >= {*CONV, *BATCH_NORM, *LAYER_NORM, "addmm"}
    assert torch.allclose(mine, theirs, rtol=1e-4)


# ---- what is replaced

def functions():
    """{name: function} of what this module's table replaces, as Keras has them now."""
    from dnnkern.keras._replace import _find, _table
    return {r.name: _find(r) for r in _table}


def test_replacing_and_putting_back():
    before = functions()
    assert all(row.found and not row.active for row in dnnkern.keras.replaced()), "this version of Keras lacks functions"
    dnnkern.keras.enable()
    replaced = functions()
    dnnkern.keras.enable()
    assert functions() == replaced and all(row.active for row in dnnkern.keras.replaced())
    assert all(replaced[name][2] is not before[name][2] for name in before)
    dnnkern.keras.disable()
    dnnkern.keras.disable()
    assert functions() == before


def test_anothers_replacement_stays(monkeypatch):
    dnnkern.keras.enable()
    mine = keras.layers.Dense.call
    monkeypatch.setattr(keras.layers.Dense, "call", lambda *args, **kwargs: mine(*args, **kwargs))
    theirs = keras.layers.Dense.call
    dnnkern.keras.disable()
    assert keras.layers.Dense.call is theirs


def test_a_keras_without_a_function(monkeypatch):
    """Older versions lack some."""
    monkeypatch.delattr(keras.src.layers, "RMSNormalization")
    monkeypatch.delattr(keras.src.backend.torch.nn, "_transpose_spatial_inputs")
    with ours():
        lacking = [row.name for row in dnnkern.keras.replaced() if not row.found]
        assert sum(row.active for row in dnnkern.keras.replaced()) == len(dnnkern.keras.replaced()) - 2
    assert lacking == ["keras.src.backend.torch.nn._transpose_spatial_inputs", "keras.src.layers.RMSNormalization.call"]


def test_from_two_threads():
    """One trains while another replaces and puts back: each step is right with either."""
    layer, x = L.LSTM(6), torch.randn(3, 5, 4, device=DEVICE)
    expected = layer(x)
    stop = threading.Event()

    def toggle():
        while not stop.is_set():
            dnnkern.keras.enable()
            dnnkern.keras.disable()
    thread = threading.Thread(target=toggle)
    thread.start()
    try:
        for _ in range(20):
            assert torch.allclose(layer(x), expected, atol=1e-5)
    finally:
        stop.set()
        thread.join()
    assert not any(row.active for row in dnnkern.keras.replaced())


def test_another_backend():
    process = subprocess.run([sys.executable, "-c", "import keras; keras.config.backend = lambda: 'jax'; import dnnkern.keras"],
                             capture_output=True, text=True, env=os.environ)
    assert process.returncode == 1
    assert process.stderr.splitlines()[-1] == (
        "ImportError: dnnkern.keras: Keras runs on 'jax'; expected the environment variable KERAS_BACKEND=torch")
