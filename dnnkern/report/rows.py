"""Rows of results: JSON lines that the benches write, read and summed up."""
import functools
import gzip
import json
import math
import re
import statistics

SCHEMA = 1
"""Of the rows: in `machine` of each, where a row has none it is 1. It goes up when a field changes its meaning or goes."""

# Of a measured algorithm.
FIELDS = {"machine", "op", "problem", "algo", "config", "status", "time_us", "is_peer", "chosen", "ratio", "roof"}
TEXTS = "op", "problem", "algo", "config", "status"
NUMBERS = ("time_us", "iqr_us", "tflops", "gbs", "roof", "ratio", "host_us", "estimate_us", "workspace", "warm_us", "eager_us",
           "sustained_us", "joules")
FAMILIES = {
    "matrix products": r"matmul|grouped_matmul.*", "convolution": r"(fused_)?conv_.*|im2col|col2im", "attention": r"sdpa_.*|rope_.*",
    "recurrent networks": r"rnn_.*", "normalisation": r".*norm_(train_)?(fwd|infer|merge)|.*norm_bwd.*|lrn_.*", "softmax": r"softmax_.*",
    "pooling": r"(max|avg)_pool_.*", "losses": r"(cross_entropy|ctc_loss|nll_loss|mse_loss)_.*",
    "reductions": r"reduce|argreduce|fused_reduction",
    "activations, pointwise": r"activation_.*|glu_.*|unary.*|binary|compare|fused_pointwise|(add|scale|set)_tensor|dropout_.*",
    "optimisers": r".*_step|(clip_)?grad_norm", "embedding": r"embedding_.*",
    "moves, casts, resampling": r"transpose|resample_.*|grid_sample_.*|affine_grid_.*|cast|concat|(strided_)?slice.*|pad.*|depth_to_space"
                                r"|space_to_depth|move.*|block_scale_.*|transform.*|layout.*|random_fill"}
DTYPE = re.compile(r"\b(bfloat16|float16|float32|float64|float8_\w+|float4_\w+|u?int\d+)\b")


@functools.cache
def family(op) -> str | None:
    """The family of an operation, as in the table of the README; None of an unknown one."""
    return next((name for name, pattern in FAMILIES.items() if re.fullmatch(pattern, op)), None)


def dtype(problem) -> str | None:
    """The first dtype that a problem's text names.

    >>> dtype("4096x4096x4096 bfloat16 nt -> float32")
    'bfloat16'
    """
    found = DTYPE.search(problem)
    return found and found[0]


def files(folder, pattern="*") -> list:
    """Files of results in a folder, sorted: JSON lines, compressed or not."""
    return sorted((*folder.glob(f"{pattern}.jsonl"), *folder.glob(f"{pattern}.jsonl.gz")))


def opened(path, mode):
    """A file of results, compressed where it ends in ``.gz``."""
    return (gzip.open if str(path).endswith(".gz") else open)(path, mode)


def records(paths):
    """The JSON objects of several files, of whichever bench; what ends in ``.gz`` is compressed.

    Raises
    ------
    ValueError
        A line is no JSON object, or of a later schema than `SCHEMA`: the file and the line are named.
    """
    for path in paths:
        with opened(path, "rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    row = json.loads(line) if line.strip() else {}
                except (ValueError, RecursionError) as error:  # bytes that are no text too
                    cut = number > 1 and not line.endswith(b"\n")  # the bench was killed while it wrote
                    raise ValueError(f"{path}:{number}: no line of results: {'the last line is cut off' if cut else error}; expected a "
                                     f"JSON object{': remove the line to use those before it' if cut else ''}") from None
                if not isinstance(row, dict):
                    raise ValueError(f"{path}:{number}: no line of results: {str(row)[:40]}; expected a JSON object")
                machine = row.get("machine")
                schema = machine.get("schema", SCHEMA) if isinstance(machine, dict) else SCHEMA
                if not isinstance(schema, int) or schema > SCHEMA:
                    raise ValueError(f"{path}:{number}: results of schema {schema}; expected {SCHEMA} at most: a later dnnkern wrote "
                                     f"them, update this one")
                if FIELDS <= row.keys() and (wrong := _wrong(row)):
                    raise ValueError(f"{path}:{number}: {wrong}")
                yield row


def _wrong(row):
    """What is wrong with the fields of a measured algorithm, or None."""
    machine = row["machine"]
    if not isinstance(machine, dict) or not isinstance(machine.get("device"), str):
        return f"machine: got {str(machine)[:40]}; expected an object that names its device"
    for name in TEXTS:
        if not isinstance(row[name], str):
            return f"{name}: got {str(row[name])[:40]}; expected a text"
    for name in NUMBERS:
        value = row.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf):
            return f"{name}: got {str(value)[:40]}; expected a number from 0, or null"
    if row["status"] == "ok" and not row["time_us"]:
        return f"time_us: got {row['time_us']}; expected more than 0, since its status is ok"
    return None


def latest(rows) -> list:
    """Of each measured algorithm, configuration, problem and device the row of the latest run, the last of it. Rows of other benches are
    passed over."""
    found = {}
    for row in rows:
        if FIELDS <= row.keys():
            key = row["machine"]["device"], row["op"], row["problem"], row["algo"], row["config"]
            if key not in found or date(found[key]) <= date(row):
                found[key] = row
    return list(found.values())


def read(paths) -> list:
    """`latest` of several files.

    Raises
    ------
    ValueError
        As `records`.
    """
    return latest(records(paths))


def recorded(rows) -> list:
    """Rows of the record (``bench record``) where it has all families, else all; of trees without changes alone."""
    clean = [r for r in rows if not str(r["machine"].get("commit")).endswith("+")]
    of_sets = [r for r in clean if r.get("set")]
    return of_sets if {family(r["op"]) for r in of_sets} >= set(FAMILIES) else clean


def date(row) -> str:
    """When a row was measured; dates sort as texts do."""
    return str(row["machine"].get("date") or "")


def geomean(values) -> float | None:
    """Geometric mean of positive numbers; None of none."""
    values = [v for v in values if v]
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def quartiles(values) -> tuple:
    """(first quartile, median, third quartile)"""
    return tuple(statistics.quantiles(values, n=4, method="inclusive")) if len(values) > 1 else (values[0],) * 3


def timed(rows) -> list:
    """Rows of ours that have a time, fastest first."""
    return sorted((r for r in rows if r["time_us"] is not None and not r["is_peer"]), key=lambda r: r["time_us"])


def regret(rows) -> float | None:
    """Of one problem's rows: time of the algorithm that the estimates choose over the best time, 1 where they are right; None if either is
    missing."""
    ours = timed(rows)
    predicted = next((r for r in ours if r.get("predicted")), None)
    return predicted["time_us"] / ours[0]["time_us"] if predicted else None


def chosen(rows) -> list:
    """Of each problem and device the row of the algorithm that dispatch chose, of the latest run; ours only, and only those with a time."""
    found = {}
    for row in sorted(rows, key=date):
        if row["chosen"] and not row["is_peer"] and row["status"] == "ok":
            found[row["machine"]["device"], row["op"], row["problem"]] = row
    return list(found.values())


def bound(row) -> str:
    """"memory" if the problem's bytes at the copy rate take longer than its operations at their unit's rate, else "arithmetic"."""
    return "memory" if row["gbs"] * 1e9 / row["roofs"]["copy"] >= row["roof"] * (1 - 1e-6) else "arithmetic"
