# %% [markdown]
# # A Keras program that knows nothing of dnnkern
#
# On its kernels, with a table of what ran there:
#
#     python -m dnnkern run --report examples/keras_training.py
#     python -m dnnkern run --report --simulate examples/keras_training.py    # without a GPU
#
# A small convolutional network tells apart horizontal and vertical bars.

# %%
import sys

import keras
import numpy as np

keras.utils.set_random_seed(0)
epochs = int(sys.argv[1]) if len(sys.argv) == 2 and sys.argv[1].isdigit() else 5

rng = np.random.default_rng(0)
labels = rng.integers(0, 2, 512)
images = 0.3 * rng.standard_normal((512, 12, 12, 1)).astype("float32")
for image, label, at in zip(images, labels, rng.integers(0, 12, 512)):
    image[at if label else slice(None), slice(None) if label else at] += 1

# %%
model = keras.Sequential([
    keras.layers.Conv2D(8, 3, padding="same"), keras.layers.BatchNormalization(), keras.layers.ReLU(),
    keras.layers.MaxPooling2D(), keras.layers.Flatten(), keras.layers.Dense(2, activation="softmax")])
model.compile(optimizer=keras.optimizers.Adam(5e-3), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(images[:384], labels[:384], batch_size=64, epochs=epochs, verbose=0)
for epoch, loss in enumerate(history.history["loss"]):
    print(f"epoch {epoch}: loss {loss:.4f}")

# %%
_, accuracy = model.evaluate(images[384:], labels[384:], verbose=0)
print(f"{accuracy:.1%} of 128 other images are recognised")
