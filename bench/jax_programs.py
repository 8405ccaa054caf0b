"""JAX programs, on this library's kernels and on XLA's own: ``python -m dnnkern bench jax --set conv-norm-relu-train-64``.

The same program takes turns in one process, compiled as it is and under `dnnkern.jax.enabled`. First it has to give XLA's results, and the
same bits twice. Without a GPU programs are small. The share of the device's time that is this library's is what JAX's profiler says of two
steps more.
"""
import argparse
import contextlib
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from dnnkern import _table, dispatch
from dnnkern.device import HOST_MEMORY
from dnnkern.host.paths import plain

from .machine import machine
from .programs import SECONDS, TOLERANCE, TOP, WARM, kernels_of, print_kernels

RATE = 0.05  # of learning
MOST = 256  # steps of a turn


# ---- programs: (step, state, inputs); step: (state, *inputs) -> (state, what is compared)

def conv_norm_relu(small):
    """A training step of convolutions, batch normalisations and ReLUs, channels last, in bfloat16 with parameters in float32."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    n, size, layers = (2, 6, ((3, 4, 8), (1, 8, 16))) if small else (64, 56, ((3, 64, 128), (1, 128, 256), (3, 256, 256), (1, 256, 128)))
    made = np.random.default_rng(0)

    def normal(*shape, scale=1.0):
        return jnp.asarray(scale * made.standard_normal(shape, np.float32))
    state = {"head": normal(layers[-1][2], 10, scale=0.1),
             "layers": [{"filter": normal(k, k, c, out, scale=(2 / (k * k * c)) ** 0.5), "gamma": jnp.ones(out), "beta": jnp.zeros(out)}
                        for k, c, out in layers]}

    def loss(state, x, labels):
        for layer in state["layers"]:
            y = jax.lax.conv_general_dilated(x, layer["filter"].astype(x.dtype), (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            y = y.astype(jnp.float32)
            mean, variance = y.mean((0, 1, 2)), y.var((0, 1, 2))
            x = jax.nn.relu((y - mean) * (layer["gamma"] * jax.lax.rsqrt(variance + 1e-5)) + layer["beta"]).astype(x.dtype)
        scores = jax.nn.log_softmax(x.astype(jnp.float32).mean((1, 2)) @ state["head"])
        return -jnp.take_along_axis(scores, labels[:, None], 1).mean()

    def step(state, x, labels):
        found, gradient = jax.value_and_grad(loss)(state, x, labels)
        return jax.tree.map(lambda p, g: p - RATE * g, state, gradient), found
    return step, state, (normal(n, size, size, layers[0][1]).astype(jnp.bfloat16), jnp.asarray(made.integers(10, size=n)))


def attention(small, implementation=None):
    """The gradients of causal attention in bfloat16; its operands take the place of a state, so that nothing is computed once for all."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    shape, made = (1, 24, 2, 8) if small else (1, 4096, 16, 128), np.random.default_rng(0)
    *state, given = (jnp.asarray(made.standard_normal(shape, np.float32), jnp.bfloat16) for _ in range(4))

    def loss(operands, given):
        return (jax.nn.dot_product_attention(*operands, is_causal=True, implementation=implementation) * given).astype(jnp.float32).sum()

    def step(state, given):
        return state, jnp.stack(jax.grad(loss)(state, given))
    return step, state, (given,)


class Jitted:
    """A program that is compiled ahead in each way, so that the compiled programs live side by side."""

    def __init__(self, make, others=()):
        self.make, self.whos, self.compiled, self.at = make, ("ours", "xla", *([] if HOST_MEMORY else others)), {}, {}

    def on(self, who):
        """The block in which its turns run."""
        return contextlib.nullcontext()

    def results(self, who, steps):
        """What the first steps give: their losses, or an array; and the seconds of compiling and the first step."""
        import jax
        import numpy as np

        import dnnkern.jax
        step, state, inputs = self.make(HOST_MEMORY, *[who] * (who not in ("ours", "xla")))
        jax.block_until_ready((state, inputs))
        began = time.perf_counter()
        if who not in self.compiled:
            with dnnkern.jax.enabled() if who == "ours" else contextlib.nullcontext():
                self.compiled[who] = jax.jit(step, donate_argnums=0).lower(state, *inputs).compile()
        state, value = jax.block_until_ready(self.compiled[who](state, *inputs))
        first, values = time.perf_counter() - began, [value]
        for _ in range(steps - 1 if value.ndim == 0 else 0):
            state, value = self.compiled[who](state, *inputs)
            values.append(value)
        self.at[who] = state, inputs
        return np.stack([np.asarray(v, np.float64) for v in values]), first

    def turn(self, who, steps):
        """(milliseconds a step, of which the host was busy)"""
        import jax
        step, (state, inputs) = self.compiled[who], jax.block_until_ready(self.at[who])
        began = time.perf_counter()
        for _ in range(steps):
            state, value = step(state, *inputs)
        enqueued = time.perf_counter() - began
        jax.block_until_ready((state, value))
        self.at[who] = state, inputs
        return 1e3 * (time.perf_counter() - began) / steps, 1e3 * enqueued / steps


class Keras:
    """The model of the page on Keras, by ``fit``. Its functions are compiled anew whenever operations are replaced or put back, in the part
    of a turn that is not timed."""
    whos = "ours", "xla"

    def __init__(self):
        os.environ.setdefault("KERAS_BACKEND", "jax")
        import keras
        import numpy as np
        if keras.backend.backend() != "jax":
            raise ValueError(f"bench jax: Keras runs on {keras.backend.backend()}; expected the environment variable KERAS_BACKEND=jax")
        self.batch, size = (8, 12) if HOST_MEMORY else (128, 28)
        made = np.random.default_rng(0)
        self.x = made.standard_normal((MOST * self.batch, size, size, 1), np.float32)
        self.y = made.integers(0, 10, MOST * self.batch, np.int32)
        self.models = {}

    def model(self):
        """A new one, always with the same weights."""
        import keras
        keras.utils.set_random_seed(0)
        layers = keras.layers
        model = keras.Sequential([keras.Input(self.x.shape[1:]), layers.Conv2D(32, 3, activation="relu"), layers.MaxPooling2D(),
                                  layers.Flatten(), layers.Dense(10, activation="softmax")])
        model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    def on(self, who):
        """The block in which it runs on this library's kernels, or on XLA's."""
        import dnnkern.jax
        return dnnkern.jax.enabled() if who == "ours" else contextlib.nullcontext()

    def fit(self, model, steps, epochs=1):
        """The loss of each epoch of so many steps."""
        count = steps * self.batch
        return model.fit(self.x[:count], self.y[:count], batch_size=self.batch, epochs=epochs, shuffle=False, verbose=0).history["loss"]

    def results(self, who, steps):
        """The losses of one batch after so many steps, and the seconds of the first."""
        import numpy as np
        with self.on(who):
            model = self.models[who] = self.model()
            began = time.perf_counter()
            losses = self.fit(model, 1)
            first = time.perf_counter() - began
            return np.array(losses + self.fit(model, 1, steps - 1)), first

    def turn(self, who, steps):
        """(milliseconds a step, None): ``fit`` returns when all of it is done."""
        began = time.perf_counter()
        self.fit(self.models[who], steps)
        return 1e3 * (time.perf_counter() - began) / steps, None


SETS = {"conv-norm-relu-train-64": lambda: Jitted(conv_norm_relu), "attention-train-1x4096": lambda: Jitted(attention, ("cudnn",)),
        "keras-train-128": Keras}


# ---- measuring

def parser():
    """The command's arguments."""
    p = argparse.ArgumentParser(prog="python -m dnnkern bench jax", description="Time JAX programs on this library's kernels and on XLA's.")
    p.add_argument("--set", default="all", metavar="NAMES", help=f"programs, with commas: {', '.join(SETS)} (default: all)")
    p.add_argument("--turns", type=int, default=7, metavar="N", help="turns of each, of which the median counts (default 7)")
    p.add_argument("--steps", type=int, default=10, metavar="N", help="steps whose losses are compared (default 10)")
    p.add_argument("--kernels", action="store_true", help="print the kernels that took longest")
    p.add_argument("--raises", action="store_true", help="let what fails raise")
    p.add_argument("--json", metavar="FILE", help="append the rows as JSON lines")
    return p


def kernels(bench, who):
    """[(name, milliseconds a step, calls a step)] of kernels, the longest first, by JAX's profiler."""
    import jax
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            bench.turn(who, 2)
        found = {}
        for path in Path(folder).rglob("*.xplane.pb"):
            for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
                for line in plane.lines if plane.name.startswith("/device:GPU") else ():
                    for event in line.events if line.name.startswith("Stream") else ():
                        ms, calls = found.get(event.name, (0.0, 0))
                        found[event.name] = ms + event.duration_ns / 2e6, calls + 0.5
    return sorted(((name, ms, calls) for name, (ms, calls) in found.items()), key=lambda row: -row[1])


def measured(name, args):
    """A row: results, times, and the share of the device's time that is ours."""
    import jax

    import dnnkern.jax
    row = {"op": "jax", "problem": name, "status": "ok", "jax": jax.__version__, "backend": jax.default_backend()}
    try:
        bench = SETS[name]()
    except ModuleNotFoundError as error:
        return {**row, "status": f"{error.name} is not installed", "missing": error.name}
    theirs, row["xla_first_s"] = bench.results("xla", args.steps)
    size = abs(theirs).max()
    row["xla_spread"] = abs(bench.results("xla", args.steps)[0] - theirs).max() / size
    dnnkern.jax.status(reset=True)
    ours, row["ours_first_s"] = bench.results("ours", args.steps)
    calls = dnnkern.jax.status(reset=True)
    row.update(error=abs(ours - theirs).max() / size, same_bits=bool((bench.results("ours", args.steps)[0] == ours).all()),
               calls={c.op: c.calls for c in calls if c.ours}, back=sorted({f"{c.op}: {c.why}" for c in calls if not c.ours}),
               losses=ours.ravel()[:20].tolist(), xla_losses=theirs.ravel()[:20].tolist())
    if not row["calls"]:
        return {**row, "status": f"nothing ran on this library's kernels: {'; '.join(row['back']) or 'JAX asked for nothing'}"}
    if not row["error"] <= TOLERANCE or not row["same_bits"]:
        what = "two runs give different bits" if row["error"] <= TOLERANCE else f"the results differ by {row['error']:.3g} of the largest"
        return {**row, "status": f"WRONG: {what}"}
    whos = [who for who in bench.whos if who in ("ours", "xla") or other(bench, who, args, row)]
    timed(bench, whos, args, row)
    for who in () if HOST_MEMORY else whos:
        with bench.on(who):
            bench.turn(who, 2)
            try:
                found = kernels(bench, who)
            except Exception as error:  # the profiler's: the times stand without it
                row[f"{who}_profiler"] = f"{type(error).__name__}: {error}"
                continue
        if found:
            row.update(kernels_of(found, who, TOP))
        if args.kernels:
            print_kernels(who, found)
    return row


def other(bench, who, args, row):
    """Whether another way to compute it, which JAX may lack, works here."""
    try:
        row[f"{who}_first_s"] = bench.results(who, args.steps)[1]
    except Exception as error:
        row[f"{who}_status"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        return False
    return True


def timed(bench, whos, args, row):
    """Turns of each, into the row, with the host's time of each operation in ours: (microseconds a call, calls a step)."""
    import dnnkern.jax
    turns = {who: [] for who in whos}
    with bench.on("ours"):
        bench.turn("ours", 2)
        ms = bench.turn("ours", 2 if HOST_MEMORY else 16)[0]
    steps, before = (max(1, min(MOST, round(1e3 * seconds / ms))) for seconds in (SECONDS, WARM))
    for _ in range(args.turns):
        for who, found in turns.items():
            with bench.on(who):
                bench.turn(who, before)
                if who == "ours":
                    dnnkern.jax.status(reset=True)
                found.append(bench.turn(who, steps))
                if who == "ours":
                    row["host_us"] = {c.op: (1e6 * c.seconds / c.calls, c.calls / steps) for c in dnnkern.jax.status() if c.ours}
    for who, found in turns.items():
        row.update({f"{who}_ms": statistics.median(ms for ms, _ in found), f"{who}_turns": [ms for ms, _ in found]})
        if found[0][1] is not None:
            row[f"{who}_host_ms"] = statistics.median(host for _, host in found)
    row.update(steps=steps, **{f"of_{who}": row[f"{who}_ms"] / row["ours_ms"] for who in whos[1:]})


def main(argv) -> int:
    """Measure the programs that the arguments name; 1 if one gave wrong results or failed."""
    args = parser().parse_args(argv)
    names = list(SETS) if args.set == "all" else args.set.split(",")
    for name in names:
        if name not in SETS:
            raise ValueError(f"bench jax: --set {name}; expected all, or of {', '.join(SETS)}")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # this library's workspaces lie beside JAX's memory
    device, rows = dispatch.device_of(dispatch.current_device()), []
    for name in names:
        try:
            row = measured(name, args)
        except Exception as error:
            if args.raises:
                raise
            row = {"op": "jax", "problem": name, "status": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}
        rows.append(row)
        print(f"{name}: {row['status']}", *(f"{what} {row[what]:.3g}" for what in ("error", "share") if what in row), flush=True)
        if args.json:
            with open(args.json, "a", encoding="utf-8") as file:
                file.write(json.dumps(plain({**row, "machine": machine(device)})) + "\n")
    print()
    _table.show(("program", "ours (ms)", "XLA (ms)", "cuDNN (ms)", "x XLA", "x cuDNN", "host, ours", "host, XLA", "share", "first (s)",
                 "XLA's"), [_shown(row) for row in rows])
    return int(any(row["status"] != "ok" and "missing" not in row for row in rows))


def _shown(row):
    def number(key, digits=3):
        return f"{row[key]:.{digits}g}" if row.get(key) is not None else None
    return (row["problem"], *(number(f"{who}_ms", 4) for who in ("ours", "xla", "cudnn")), *(number(key) for key in (
        "of_xla", "of_cudnn", "ours_host_ms", "xla_host_ms", "share", "ours_first_s", "xla_first_s")))
