"""Training steps of small Keras models: Keras alone, with its functions replaced on PyTorch's kernels, and on this library's.

    python -m bench.keras_steps        # DNNKERN_DEVICE=cuda on a GPU; --json FILE appends the numbers as one JSON line

Models are small, so that the host's time is most of a step; on a GPU a step ends when its loss is there. The three take turns. On the
processor a call of this library costs more than on a GPU, and its kernels run on one core.
"""
import argparse
import contextlib
import json
import os
import statistics
import sys
import time

os.environ.setdefault("KERAS_BACKEND", "torch")
os.environ.setdefault("DNNKERN_DEVICE", "cpu")
TURNS, STEPS, WARM = 9, 16, 20  # of a turn those that count, and those before them: what is repeated becomes shorter


def models():
    """{name: (model, x, y)}"""
    import keras
    import numpy as np
    from keras import layers
    made = np.random.default_rng(0)

    def image(n, size, channels):
        return made.normal(size=(n, size, size, channels)).astype("float32"), made.integers(0, 10, n)
    head = [layers.Flatten(), layers.Dense(10, activation="softmax")]
    block = [layer for _ in range(3) for layer in (layers.Conv2D(16, 3, padding="same", use_bias=False), layers.BatchNormalization(),
                                                   layers.ReLU())]
    tokens = keras.Input((32,), dtype="int32")
    h = layers.Embedding(100, 32)(tokens)
    h = layers.LayerNormalization()(h + layers.MultiHeadAttention(2, 16)(h, h, use_causal_mask=True))
    h = layers.LayerNormalization()(h + layers.Dense(32)(layers.Dense(64, activation="gelu")(h)))
    words = made.integers(0, 100, (8, 32)), made.integers(0, 10, 8)
    rnn = [layers.Embedding(100, 32), layers.LSTM(32), layers.Dense(10, activation="softmax")]
    batch, size = (8, 12) if os.environ["DNNKERN_DEVICE"] == "cpu" else (128, 28)
    return {f"digits of {size}x{size}, {batch}": (keras.Sequential([layers.Conv2D(32, 3, activation="relu"), layers.MaxPooling2D(), *head]),
                                                  *image(batch, size, 1)),
            "batch normalisation": (keras.Sequential([*block, layers.GlobalAveragePooling2D(), layers.Dense(10, activation="softmax")]),
                                    *image(8, 8, 4)),
            "LSTM, 32 steps": (keras.Sequential(rnn), *words),
            "transformer": (keras.Model(tokens, layers.Dense(10, activation="softmax")(layers.GlobalAveragePooling1D()(h))), *words)}


@contextlib.contextmanager
def replaced(overrides):
    """Keras' functions, and PyTorch's operators too if `overrides`."""
    import dnnkern.keras
    import dnnkern.torch
    dnnkern.keras.enable()
    try:
        with dnnkern.torch.enabled() if overrides else contextlib.nullcontext():
            yield
    finally:
        dnnkern.keras.disable()


WAYS = {"Keras": contextlib.nullcontext, "replaced": lambda: replaced(False), "on this library": lambda: replaced(True)}


def measured():
    """{model: {way: milliseconds of a step, the median}}"""
    import torch

    import dnnkern.keras
    dnnkern.keras.disable()
    torch.set_num_threads(1)
    found = {}
    for name, (model, x, y) in models().items():
        model.compile("adam", "sparse_categorical_crossentropy")
        times = {way: [] for way in WAYS}
        for _ in range(TURNS):
            for way, block in WAYS.items():
                with block():
                    for _ in range(WARM):
                        float(model.train_on_batch(x, y))
                    for _ in range(STEPS):
                        started = time.perf_counter()
                        float(model.train_on_batch(x, y))
                        times[way].append(1e3 * (time.perf_counter() - started))
        found[name] = {way: statistics.median(of) for way, of in times.items()}
    return found


def main(argv=None) -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.keras_steps", description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="append the numbers as one JSON line")
    arguments = parser.parse_args(argv)
    found = measured()
    for name, times in found.items():
        print(f"{name:24}", *(f"{way} {milliseconds:.2f} ms" for way, milliseconds in times.items()), sep="  ")
    if arguments.json:
        from dnnkern import dispatch

        from .machine import machine
        with open(arguments.json, "a") as file:
            file.write(json.dumps({"machine": machine(dispatch.device_of(dispatch.current_device())), "keras_steps_ms": found}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
