"""The command ``dnnkern onnx``: a model run once, and what became of its nodes."""
import os
import zipfile
from pathlib import Path

import numpy as np

from .._output import document
from .._table import progress, say, show
from ..host.paths import check_target
from ._backend import Model
from ._errors import ModelError


def main(arguments) -> int:
    """Run the model; the exit code."""
    if arguments.seed < 0:
        raise ModelError(f"onnx: got --seed {arguments.seed}; expected 0 or more")
    if arguments.save:
        check_target("onnx", Path(arguments.save), option="--save")
    with progress("reading the model"):
        model = Model(arguments.model, fuse=not arguments.unfused)
    inputs = _inputs(model, arguments)
    with progress("running the model"):
        results = model.run(inputs)
    if arguments.save:
        _save(arguments.save, dict(zip([o.name for o in model.outputs], results)))
    rows = model.report()
    ours = [row for row in rows if row.by == "dnnkern" and row.runs]
    host = [row for row in rows if row.by == "host" and row.runs]
    outputs = [(o.name, *_described(r)) for o, r in zip(model.outputs, results)]
    if arguments.json:
        from ..device import DEVICE
        document("onnx", model=arguments.model, device=DEVICE, opsets={d or "ai.onnx": v for d, v in model.opsets.items()},
                 inputs=[{"name": name, "dtype": x.dtype.name, "shape": list(x.shape)} for name, x in inputs.items()],
                 outputs=[{"name": name, "dtype": dtype, "shape": shape, "finite": finite} for name, dtype, shape, finite in outputs],
                 nodes=[{"name": r.name, "op": r.op, "by": r.by, "calls": list(r.calls), "fused": list(r.fused), "reason": r.reason,
                         "runs": r.runs} for r in rows])
        return 0
    if arguments.report:
        show(("node", "operator", "by", "calls", "fused with", "why"),
             [(r.name, r.op, r.by if r.runs else "not run", ", ".join(r.calls), ", ".join(r.fused), r.reason) for r in rows],
             title=f"{arguments.model}: nodes")
        say("")
    show(("output", "dtype", "shape", "values"), [(name, dtype, None if shape is None else "x".join(map(str, shape)) or "scalar",
                                                   {True: "finite", False: "not all finite", None: None}[finite])
                                                  for name, dtype, shape, finite in outputs], title=f"{arguments.model}: outputs")
    say(f"\n{len(ours)} of {len(ours) + len(host)} nodes ran on this library's kernels, {len(host)} on the host by ONNX's evaluator"
        f"{'' if arguments.report else ' (--report lists them)'}.")
    return 0


def _described(result):
    """(dtype, shape, whether all values are finite) of a result."""
    if not isinstance(result, np.ndarray):
        return "sequence" if isinstance(result, list) else "nothing", None, None
    try:
        finite = bool(np.isfinite(result.astype(np.float64)).all())
    except (TypeError, ValueError):  # strings
        finite = None
    return result.dtype.name, list(result.shape), finite


# ---- inputs

def _inputs(model, arguments):
    """{name: array}: those of a file, others random."""
    given = _read(arguments.inputs) if arguments.inputs else {}
    names = [i.name for i in model.inputs]
    for name in given:
        if name not in names:
            raise ModelError(f"onnx: {arguments.inputs}: got an array {name!r}; expected some of {', '.join(names) or 'none'}")
    dims = _dims(arguments.dim)
    missing = dict.fromkeys(d for i in model.inputs if i.name not in given for d in i.dims or () if isinstance(d, str) and d not in dims)
    if missing:
        raise ModelError(f"onnx: {arguments.model}: got inputs with extents {', '.join(missing)} that the model leaves open; expected "
                         f"{' '.join(f'--dim {d}=NUMBER' for d in missing)}, or arrays (--inputs FILE.npz)")
    rng = np.random.default_rng(arguments.seed)
    return {i.name: given[i.name] if i.name in given else _random(i, dims, rng, arguments.model) for i in model.inputs}


def _random(i, dims, rng, model):
    """Random values: of floats normal ones, of integers 0 and 1."""
    if i.dtype is None or i.dims is None or None in i.dims or i.dtype == "object":
        raise ModelError(f"onnx: {model}: input {i.name!r} is {i.describe()}; expected an array for it (--inputs FILE.npz)")
    from ..host.dtypes import numpy_dtype
    shape = tuple(dims[d] if isinstance(d, str) else d for d in i.dims)
    if i.dtype.startswith(("float", "bfloat")):
        return rng.standard_normal(shape, np.float32).astype(numpy_dtype(i.dtype))
    return rng.integers(0, 2, shape).astype(i.dtype)


def _dims(words):
    """{name: extent} of NAME=NUMBER."""
    found = {}
    for word in words:
        name, _, number = word.rpartition("=")
        if not name or not number.isdigit():
            raise ModelError(f"onnx: got --dim {word}; expected NAME=NUMBER, such as batch=2")
        found[name] = int(number)
    return found


def _read(path):
    """The arrays of an .npz file."""
    try:
        with np.load(path) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, AttributeError, zipfile.BadZipFile) as error:
        why = ("no such file" if not os.path.exists(path) else "it is no zip archive" if os.path.isfile(path) and not
               zipfile.is_zipfile(path) else " ".join(str(error).split()))
        raise ModelError(f"onnx: --inputs {path}: {why}; expected a file of numpy.savez") from None


def _save(path, arrays):
    np.savez(path, **{name: x for name, x in arrays.items() if isinstance(x, np.ndarray)})
