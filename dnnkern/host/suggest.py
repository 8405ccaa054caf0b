"""Suggestions for unknown names."""
import difflib
import inspect

# Other frameworks' words, in lower case, and what may stand for them here: the first that is known.
WORDS = {
    # keywords
    "dim": ("axis", "axes"), "dims": ("axes",), "axis": ("axes",), "axes": ("axis",), "keepdim": ("keepdims",), "is_causal": ("causal",),
    "attn_mask": ("mask", "bias"), "dropout_p": ("dropout",), "kernel_size": ("window",), "epsilon": ("eps",), "learning_rate": ("lr",),
    "pads": ("padding",), "strides": ("stride",), "dilations": ("dilation",), "group": ("groups",), "num_groups": ("groups",),
    "data_format": ("layout",), "sm_scale": ("scale",), "softmax_scale": ("scale",), "temperature": ("scale",), "logit_cap": ("softcap",),
    "return_indices": ("return_index",), "size": ("window",), "negative_slope": ("slope",), "approximate": ("mode",), "betas": ("beta1",),
    "weight": ("gamma", "w"), "bias": ("beta",), "dtype": ("out_dtype",), "prob": ("p",), "rate": ("p",), "algorithm": ("algo",),
    "transa": ("transpose_a",), "transb": ("transpose_b",),
    # modes, reductions, cells, layouts
    "sum": ("add",), "add": ("sum",), "mean": ("avg",), "avg": ("mean",), "average": ("avg", "mean"), "prod": ("mul",), "product": ("mul",),
    "absmax": ("amax",), "l1": ("norm1",), "l2": ("norm2",), "norm": ("norm2",), "batchmean": ("mean",), "linear": ("bilinear", "identity"),
    "zero": ("zeros",), "replicate": ("edge",), "channels_last": ("NHWC",), "channels_first": ("NCHW",), "rnn": ("tanh",),
    "rnn_tanh": ("tanh",), "rnn_relu": ("relu",), "silu": ("swish",), "upper_left": ("top_left",), "lower_right": ("bottom_right",),
    "hardswish": ("hard_swish",), "hardsigmoid": ("hard_sigmoid",), "gelu_approx": ("gelu_tanh",), "convolve": ("convolution",),
}


def nearest(name, known, count=3) -> str:
    """"; did you mean 'a' or 'b'?", to end a message with; "" where nothing known is like it.

    >>> nearest("sofmax_fwd", ["softmax_fwd", "softmax_bwd", "matmul"])
    "; did you mean 'softmax_fwd' or 'softmax_bwd'?"
    >>> nearest("conv", ["conv_fwd", "im2col"])
    "; did you mean 'conv_fwd'?"
    >>> nearest("x", ["matmul"])
    ''
    """
    text, known = name.lower() if isinstance(name, str) else "", sorted(map(str, known))
    begins = sorted((k for k in known if len(text) > 1 and k.lower().startswith(text)), key=len)
    like = [k for k in difflib.get_close_matches(text, known, count, 0.7) if k not in begins]
    found = [repr(k) for k in (*begins, *like)[:count]]
    return f"; did you mean {' or '.join(filter(None, (', '.join(found[:-1]), found[-1])))}?" if found else ""


def meant(name, known) -> str:
    """As `nearest`, and other frameworks' words are known, too.

    >>> meant("dim", ["axis", "log"]), meant("Relu", ["tanh", "relu"])
    ("; did you mean 'axis'?", "; did you mean 'relu'?")
    """
    here = {str(k).lower(): str(k) for k in known}
    words = WORDS.get(name.lower(), ()) if isinstance(name, str) else ()
    found = next((here[word.lower()] for word in words if word.lower() in here), None)
    return f"; did you mean {found!r}?" if found else nearest(name, known, 1)


def unknown_keyword(function, name) -> str:
    """Message for a keyword that a public function does not take."""
    import dnnkern
    known = inspect.signature(getattr(dnnkern, function)).parameters if function in dnnkern.__all__ else {}
    return f"{function}: unexpected keyword argument {name!r}{meant(name, known)}"
