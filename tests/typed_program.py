"""A program for the type checker, which `make lint` runs: it must find fault with nothing but the lines that say so, and with each of them.

It is not run: tests of values are elsewhere.
"""
from collections.abc import Sequence
from typing import Any

import dnnkern
import dnnkern.graph as cudnn


class Number:
    """As NumPy's scalars are."""

    def __float__(self) -> float:
        return 0.5


def network(x: Any, w: Any, bias: Any, scale: Number) -> Any:
    y = dnnkern.conv_fwd(x, w, bias, stride=2, padding=((1, 1), 0), activation="relu", math="tf32", algo="naive")
    y, mean, rstd = dnnkern.layer_norm_fwd(y, axis=-1, eps=1e-6)
    y = dnnkern.matmul(y, w, alpha=scale, transpose_b=True, allow=dnnkern.Note.TENSOR_CORE | dnnkern.Note.FFT, workspace_limit=1 << 20)
    return dnnkern.activation_fwd(y, "elu", alpha=0.5, out=y)


def recurrent(x: Any, weights: Any) -> Any:
    spec = dnnkern.RnnSpec("lstm", 8, 16, num_layers=2, bidirectional=True)
    return dnnkern.rnn_fwd(spec, x, None, None, weights, training=True)


def chosen(op: str) -> Sequence[str]:
    algorithms = dnnkern.dispatch.algorithms(op)
    try:
        return [algorithm.name for algorithm in algorithms]
    except dnnkern.NotSupported as error:
        return [str(error)]


def graph() -> Any:
    version: int = cudnn.backend_version()
    return version, cudnn.pygraph(name="g")


def wrong(x: Any, w: Any) -> None:
    dnnkern.matmul(x)  # type: ignore[call-arg]
    dnnkern.matmul(x, w, w)  # type: ignore[call-arg]
    dnnkern.matmul(x, w, algorithm="naive")  # type: ignore[call-arg]
    dnnkern.matmul(x, w, alpha="1")  # type: ignore[arg-type]
    dnnkern.softmax_fwd(x, axis=1.5)  # type: ignore[arg-type]
    dnnkern.sdpa_fwd(x, x, x, causal="yes")  # type: ignore[arg-type]
    dnnkern.conv_fwd(x, w, layout=dnnkern.Note.FFT)  # type: ignore[arg-type]
    dnnkern.conv_fwd(x, w, allow="fft")  # type: ignore[arg-type]
    dnnkern.no_such_function(x)  # type: ignore[attr-defined]
    dnnkern.Note.NO_SUCH_NOTE  # type: ignore[attr-defined]
    version: str = cudnn.backend_version()  # type: ignore[assignment]
    print(version)
