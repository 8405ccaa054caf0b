"""Scaled dot-product attention and its gradients."""
import math
from types import SimpleNamespace

from ...engine.dropout_bits import drawn
from ...host.products import FLOATS, FP8, OUTPUTS
from .._enums import attention_implementation, data_type, diagonal_alignment, member
from .._errors import InvalidValue
from .._infer import ordered_like, row_major
from .._inner import infer as infer_inner
from .._inner import passes, trace
from .._score_mod import modifiers_of
from .._tensor import tensor
from ._define import OPERATIONS, operation

RAGGED = {"Q": "q", "K": "k", "V": "v", "O": "o", "Stats": "lse", "Max": "score_max", "Sum_exp": "score_sum_exp", "dO": "do", "dQ": "dq",
          "dK": "dk", "dV": "dv"}
"""Ports whose tensors may be ragged: {port: the array's name in launches}."""
TABLES = {"K": "Page_table_K", "V": "Page_table_V"}
ROWS = 2 ** 31 - 1
"""Of a ragged tensor: its memory ends where the caller knows."""


def _options(function, a):
    """({port: tensor}, attributes) of the options that both directions share."""
    if a.generate_stats is not None and a.is_inference is not None or a.generate_stats is None and a.is_inference is None:
        raise InvalidValue(f"{function}: got generate_stats={a.generate_stats!r} and is_inference={a.is_inference!r}; expected exactly one "
                           "of them")
    left, right = a.diagonal_band_left_bound, a.diagonal_band_right_bound
    if a.sliding_window_length is not None:
        if left is not None:
            raise InvalidValue(f"{function}: got sliding_window_length and diagonal_band_left_bound; expected one of them")
        left = a.sliding_window_length
    align = member(diagonal_alignment, a.diagonal_alignment, f"{function}: diagonal_alignment")
    if a.use_causal_mask or a.use_causal_mask_bottom_right:
        right = 0
        align = diagonal_alignment.BOTTOM_RIGHT if a.use_causal_mask_bottom_right else align
    if left is not None and left < 1 or right is not None and right < 0:
        raise InvalidValue(f"{function}: the band has {left} on the left and {right} on the right; expected 1 and 0 at least, or None")
    ports = {"Bias": a.bias, "SEQ_LEN_Q": a.seq_len_q, "SEQ_LEN_KV": a.seq_len_kv, "SINK_TOKEN": a.sink_token}
    if a.use_padding_mask and (a.seq_len_q is None or a.seq_len_kv is None):
        raise InvalidValue(f"{function}: use_padding_mask without seq_len_q and seq_len_kv; expected both")
    if a.score_mod is not None and not a.use_padding_mask:
        if getattr(a, "paged_attention_k_table", None) is None and getattr(a, "paged_attention_v_table", None) is None:
            ports["SEQ_LEN_Q"] = ports["SEQ_LEN_KV"] = None  # the callable's alone
    elif not a.use_padding_mask and (a.seq_len_q is not None or a.seq_len_kv is not None):
        raise InvalidValue(f"{function}: seq_len_q or seq_len_kv without use_padding_mask; expected it")
    attributes = {"alibi": bool(a.use_alibi_mask), "left": -1 if left is None else int(left) - 1,
                  "right": -1 if right is None else int(right), "align": align.name.lower(), "scale": None, "dropout": 0.0}
    if isinstance(a.attn_scale, tensor):
        ports["Attn_scale"] = a.attn_scale
    elif a.attn_scale is not None:
        attributes["scale"] = float(a.attn_scale)
    if a.dropout is not None:
        probability, *words = a.dropout
        if isinstance(probability, tensor):
            ports["Dropout_mask"], ports["Dropout_scale"] = probability, next(iter(words), None)
        elif len(words) == 2:
            attributes["dropout"] = float(probability)
            ports["Seed"], ports["Offset"] = words
        if len(words) not in ((1, 2) if isinstance(probability, tensor) else (2,)) or not all(isinstance(t, tensor) for t in words):
            raise InvalidValue(f"{function}: dropout={a.dropout!r}; expected (probability, seed, offset) or (mask, scale), tensors but for "
                               "the probability")
    if a.rng_dump is not None and "Seed" not in ports:
        raise InvalidValue(f"{function}: rng_dump with dropout={a.dropout!r}; expected (probability, seed, offset), whose mask it is")
    return ports, attributes


def forward_node(function, a, more):
    """What the function of a forward operation returns for its arguments; `more` are input ports of its own."""
    ports, attributes = _options(function, a)
    tables = dict(zip(TABLES.values(), (a.paged_attention_k_table, a.paged_attention_v_table)))
    attributes["max_seq_len_kv"] = int(a.paged_attention_max_seq_len_kv or 0)
    wanted = a.generate_stats if a.generate_stats is not None else not a.is_inference
    made = {"Max": a.score_max, "Sum_exp": a.score_sum_exp, "RNG_DUMP": a.rng_dump}
    return {"Q": a.q, "K": a.k, "V": a.v, **ports, **tables, **more}, attributes, made if wanted else {"Stats": None, **made}


@operation(outputs="O Stats Max Sum_exp RNG_DUMP", given="Max Sum_exp RNG_DUMP", tag="SDPA_FWD")
def sdpa(q, k, v, is_inference=None, attn_scale=None, bias=None, block_mask=None, use_alibi_mask=False, use_padding_mask=False,
         seq_len_q=None, seq_len_kv=None, use_causal_mask=False, use_causal_mask_bottom_right=False, sliding_window_length=None,
         diagonal_alignment=diagonal_alignment.TOP_LEFT, diagonal_band_left_bound=None, diagonal_band_right_bound=None, dropout=None,
         rng_dump=None, paged_attention_k_table=None, paged_attention_v_table=None, paged_attention_max_seq_len_kv=None,
         compute_data_type=data_type.NOT_SET, name="", score_mod=None, generate_stats=None,
         implementation=attention_implementation.AUTO, score_max=None, score_sum_exp=None, sink_token=None, unfuse_fma=False):
    """Scaled dot-product attention of q (B, H, S, D), k and v (B, G, N, ...); G divides H.

    Parameters
    ----------
    generate_stats : bool
        Also return the logarithm of each row's sum of exponentials; or `is_inference`, its opposite: exactly one of the two.
    attn_scale : float or tensor passed by value
        Default: 1.
    use_padding_mask, seq_len_q, seq_len_kv
        Lengths of sequences, (B, 1, 1, 1) int32; rows past a length are zero, of a ragged tensor (`set_ragged_offset`: (B + 1, 1, 1, 1)
        offsets of the sequences, in elements) untouched.
    paged_attention_k_table, paged_attention_v_table : tensor
        k, v are pages, (pages, G, keys of a page, D): those of sequence b are row b of the table (B, 1, pages of a sequence, 1), int32.
    paged_attention_max_seq_len_kv : int
        N, the bound of `seq_len_kv`; default: what the tables have room for.
    diagonal_band_left_bound, diagonal_band_right_bound, diagonal_alignment
        A query attends to keys less than so many to the left, and at most so many to the right, of its own position.
    dropout : (float, tensor, tensor) or (tensor, tensor)
        Probability, seed and offset (int64); or what probabilities are multiplied by, which broadcasts to (B, H, S, N), and a scale.
    rng_dump : tensor
        A tensor of the caller's, (B, H, S, N), that receives the mask of dropout by a probability: 1 where one is kept, else 0, also where
        a query does not attend to the key.
    block_mask : tensor
        A bit for each block of 128 queries and 128 keys, lowest first, (B, H, ceil(S / 128), ceil(N / 1024)), UINT8.
    score_max, score_sum_exp : tensor
        Tensors of the caller's, (B, H, S, 1), FLOAT, that receive the largest score of each row, the sink among them, and the sum of
        exponentials relative to it.
    sink_token : tensor
        A logit of each head, (1, H, 1, 1), in the softmax without a value.
    score_mod : callable(graph, tensor) -> tensor
        Adds pointwise operations to the graph, of the scores after `attn_scale`, (B, H, S, N), FLOAT, and of tensors that broadcast to
        them, and returns what the scores become; `gen_index` of axes 0 to 3 are batch, head, query and key. It runs in attention's kernel.
        A bias is added to what it returns. Without ALiBi, padding or causal mask and band: where it ends with `binary_select` of the
        scores and a constant of -inf, or -1e9, by comparing the indices of queries and keys, that is a band of its own, whose masked tiles
        are skipped, as are those where integers of queries and of keys that are compared for equality cannot be equal. Lengths beside it
        are those of pages.

    Returns
    -------
    list
        [O, Stats]; Stats (B, H, S, 1), FLOAT, is None without `generate_stats`.
    """
    return forward_node("sdpa", SimpleNamespace(**locals()), {"Block_mask": block_mask})


@operation(outputs="dQ dK dV dBias dSINK_TOKEN RNG_DUMP", given="dBias dSINK_TOKEN RNG_DUMP", tag="SDPA_BWD")
def sdpa_backward(q, k, v, o, dO, stats, attn_scale=None, bias=None, dBias=None, use_alibi_mask=False, use_padding_mask=False,
                  seq_len_q=None, seq_len_kv=None, max_total_seq_len_q=None, max_total_seq_len_kv=None, use_causal_mask=False,
                  use_causal_mask_bottom_right=False, sliding_window_length=None,
                  diagonal_alignment=diagonal_alignment.TOP_LEFT, diagonal_band_left_bound=None, diagonal_band_right_bound=None,
                  dropout=None, rng_dump=None, use_deterministic_algorithm=False, compute_data_type=data_type.NOT_SET, name="",
                  score_mod=None, score_mod_bprop=None, sink_token=None, dSink_token=None):
    """The gradients of `sdpa`, deterministic always.

    Parameters
    ----------
    dBias, dSink_token : tensor
        Tensors of the caller's that receive these gradients.
    rng_dump : tensor
        As `sdpa`'s.
    score_mod : callable(graph, tensor) -> tensor
        As `sdpa`'s.
    score_mod_bprop : callable(graph, tensor) -> tensor
        From the derivative by what `score_mod` returned to that by its scores; it may read tensors that `score_mod` was given or has
        computed. Without it they are the same, as of what is added and of masks; any other `score_mod` needs it.

    Returns
    -------
    list
        [dQ, dK, dV]
    """
    a = SimpleNamespace(**locals(), generate_stats=True, is_inference=None)
    ports, attributes = _options("sdpa_backward", a)
    made = {"dBias": dBias, "dSINK_TOKEN": dSink_token, "RNG_DUMP": rng_dump}
    return {"Q": q, "K": k, "V": v, "O": o, "dO": dO, "Stats": stats, **ports}, attributes, made


def _keys(node, port):
    """How many keys K, or V, has for each sequence, and the batch that it has, or None of pages, whose table is checked."""
    dim, table = node.dim(port), TABLES[port]
    if node.inputs.get(table) is None:
        return dim[2], dim[0]
    node.expect_rank(table, 4)
    batch, pages = node.dim("Q")[0], node.dim(table)[2]
    node.expect_dim(table, (batch, 1, pages, 1))
    node.expect("SEQ_LEN_KV" in node.inputs, table, "no seq_len_kv", "use_padding_mask, seq_len_q and seq_len_kv beside pages",
                InvalidValue)
    most = node.attributes["max_seq_len_kv"]
    node.expect(most <= pages * dim[2], table, f"{pages} pages of {dim[2]} keys",
                f"room for paged_attention_max_seq_len_kv={most}", InvalidValue)
    return most or pages * dim[2], None


def _check(node):
    """What both directions ask of q, k, v and the options; (dims of q, of v)."""
    for port in ("Q", "K", "V"):
        node.expect_rank(port, 4)
    q, k, v = (node.dim(port) for port in ("Q", "K", "V"))
    (keys, of_k), (values, of_v) = _keys(node, "K"), _keys(node, "V")
    node.expect({of_k, of_v} <= {q[0], None}, "K", f"batches of {q[0]}, {of_k} and {of_v}", "the same of q, k and v")
    node.expect(k[1] == v[1] and keys == values, "V", f"dims {v}", f"heads and keys as K's {k}")
    node.expect(k[1] and q[1] % k[1] == 0, "K", f"{k[1]} heads", f"a divisor of Q's {q[1]}")
    node.expect(k[3] == q[3], "K", f"{k[3]} elements a head", f"{q[3]}, as Q has")
    for port in ("SEQ_LEN_Q", "SEQ_LEN_KV"):
        if node.inputs.get(port) is not None:
            node.expect_dim(port, (q[0], 1, 1, 1))
    if node.inputs.get("SINK_TOKEN") is not None:
        node.expect_dim("SINK_TOKEN", (1, q[1], 1, 1))
    full = (q[0], q[1], q[2], keys)
    for port in ("Bias", "Dropout_mask"):
        if node.inputs.get(port) is not None:
            dim = node.dim(port)
            node.expect(len(dim) == 4 and all(n in (1, m) for n, m in zip(dim, full)), port, f"dims {dim}",
                        f"some that broadcast to {full}")
    if node.inputs.get("Dropout_scale") is not None:
        dim = node.dim("Dropout_scale")
        node.expect(math.prod(dim) == 1, "Dropout_scale", f"dims {dim}", "one element")
    if node.inputs.get("Block_mask") is not None:
        node.expect_dim("Block_mask", (q[0], q[1], -(-q[2] // 128), -(-keys // 1024)))
    node.result("RNG_DUMP", full, row_major)
    if node.inner is not None:
        infer_inner(node, full, any(node.inputs[port]._type is data_type.DOUBLE for port in "QKV"))
    for port, t in (*node.inputs.items(), *node.outputs.items()):
        if t is not None and t._ragged is not None:
            _check_ragged(node, port, t, q[0])
    return q, v


def _check_ragged(node, port, t, batch):
    """What a tensor with offsets is asked for."""
    offsets = t._ragged._dim
    node.expect(port in RAGGED, port, "a ragged offset", f"one of {', '.join(RAGGED)} only", InvalidValue)
    node.expect(offsets is not None and len(offsets) >= 1 and offsets[0] == batch + 1 and all(n == 1 for n in offsets[1:]), port,
                f"a ragged offset of dims {offsets}", f"{(batch + 1, 1, 1, 1)}")
    if "SEQ_LEN_Q" not in node.inputs:
        node.refuse(port, "a ragged offset without use_padding_mask; expected it, seq_len_q and seq_len_kv")
    if t.get_is_virtual():
        node.refuse(port, "a ragged offset of a virtual tensor; expected one of a tensor with a buffer")


def _callbacks(node, arguments):
    """The callables of `score_mod` and `score_mod_bprop`."""
    functions = {"score_mod": (arguments["score_mod"], "Score"), "score_mod_bprop": (arguments.get("score_mod_bprop"), "dScore")}
    functions = {name: given for name, given in functions.items() if given[0] is not None}
    if not functions:
        return
    if "score_mod" not in functions:
        raise InvalidValue(f"{node}: got score_mod_bprop without score_mod; expected both")
    band = node.attributes["left"] >= 0 or node.attributes["right"] >= 0
    for name, there in (("dBias", arguments.get("dBias") is not None), ("use_alibi_mask", node.attributes["alibi"]),
                        ("use_padding_mask", arguments["use_padding_mask"]), ("a causal mask or a band", band)):
        if there:  # as cuDNN does; what masks, or is added, is part of the callable
            node.refuse(None, f"got score_mod and {name}; expected one of them")
    trace(node, functions)
    taken, given = node.inner.taken, node.inner.given
    if node.operation is sdpa_backward and "dScore" not in given and not passes(node, taken["score_mod"], given["Score"]):
        raise InvalidValue(f"{node}: got score_mod without score_mod_bprop; expected both: what it computes has another derivative than 1")


sdpa.calls(_callbacks)
sdpa_backward.calls(_callbacks)


@sdpa.infer
def infer_forward(node):
    """Of the forward operations."""
    q, v = _check(node)
    o = (*q[:3], v[3])
    node.result("O", o, ordered_like(o, node.stride("Q")))
    for port in ("Stats", "Max", "Sum_exp"):
        node.result(port, (*q[:3], 1), row_major, dtype=data_type.FLOAT)


@sdpa_backward.infer
def _(node):
    q, v = _check(node)
    for port in ("O", "dO"):
        node.expect_dim(port, (*q[:3], v[3]))
    node.expect_dim("Stats", (*q[:3], 1))
    for port in ("Q", "K", "V"):
        node.result(f"d{port}", node.dim(port), ordered_like(node.dim(port), node.stride(port)))
    for port, of in (("dBias", "Bias"), ("dSINK_TOKEN", "SINK_TOKEN")):
        if port in node.outputs:
            node.expect(of in node.inputs, port, f"a tensor without {of}", of)
            node.result(port, node.dim(of), node.stride(of))


def _dropout_mask(part, dtype, compute):
    """(what probabilities are multiplied by, the scale, values that are read at each execution): a scale on the device is part of the
    mask."""
    mask, scale = _beside(part, "Dropout_mask", dtype, compute), part.spec_of("Dropout_scale")
    if mask is None or scale is None:
        return mask, 1.0, {}
    if scale.by_value:
        number = part.number("Dropout_scale")
        return (mask, number, {}) if isinstance(number, float) else (mask, 1.0, {"dropout_scale": number})
    mask, factor = part.converted(mask, compute), part.converted(part.input("Dropout_scale"), compute)
    scaled = part.temporary(mask.shape, compute)
    part.call("binary", (mask, factor.view((1,), (1,)).broadcast(mask.shape)), (scaled,), "mul")
    return scaled, 1.0, {}


def _fields(part, d, dtype, compute):
    """(fields of the problem, optional operands by name, scalars, values that are read at each execution)"""
    attribute = part.attribute
    dropout_mask, dropout_scale, bound = _dropout_mask(part, dtype, compute)
    scale = attribute("scale")
    if part.node.input("Attn_scale") is not None:
        scale = part.number("Attn_scale")
        if not isinstance(scale, float):
            bound, scale = {**bound, "scale": scale}, 1 / math.sqrt(max(d, 1))
    left, right = attribute("left"), attribute("right")
    matters = left >= 0 or right >= 0 or attribute("alibi")
    fields = {"scale": 1.0 if scale is None else scale, "left": left, "right": right, "alibi": attribute("alibi"),
              "align": attribute("align") if matters else "top_left", "dropout": attribute("dropout"), "dropout_scale": dropout_scale}
    operands, scalars = {name: None for name in ("bias", "seq_len_q", "seq_len_kv", "cu_seqlens_q", "cu_seqlens_kv", "sink", "mask")}, {}
    sink = _beside(part, "SINK_TOKEN", dtype, compute)
    operands.update(bias=_beside(part, "Bias", dtype, compute), dropout_mask=dropout_mask,
                    sink=None if sink is None else sink.view((sink.shape[1],), (sink.tensor.strides[1],)))
    for name in ("seq_len_q", "seq_len_kv"):
        lengths = part.input(name.upper())
        operands[name] = None if lengths is None else lengths.view((lengths.shape[0],), (lengths.tensor.strides[0],))
    scalars.update(dict.fromkeys(("seed", "offset"), 0))
    if part.node.input("Seed") is not None:
        arrays, words = _words(part)
        operands.update(arrays)
        scalars.update(words)
    beside = {}, {}
    if part.node.inner is not None:
        more, beside = modifiers_of(part, OPERATIONS)
        fields.update(more)
        if more["score_mod"] is not None:  # the program adds it
            operands["bias"] = None
    return fields, operands, scalars, bound, beside


def _words(part):
    """Dropout's seed and offset: ({name: array of one on the device}, {name: number}). Where both are numbers, kernels take one seed that
    is of both."""
    given = {name: (port, part.spec_of(port)) for name, port in (("seed", "Seed"), ("offset", "Offset"))}
    if all(t.by_value for _, t in given.values()):
        return {}, {"seed": part.stream_seed("Seed", "Offset"), "offset": 0}
    return ({f"{name}_array": part.input(port).view((1,), (1,)) for name, (port, t) in given.items() if not t.by_value},
            {name: part.integer(port) if t.by_value else 0 for name, (port, t) in given.items()})


def _dump(part):
    """The mask of dropout by a probability, where the caller made a tensor for it: a kernel of its own, as attention's store no mask."""
    target = part.output("RNG_DUMP", always=False)
    if target is None:
        return
    from ...attention import DropoutMaskProblem
    threshold, _ = drawn(part.attribute("dropout"))
    arrays, words = _words(part)
    written = part.into(target, FLOATS, "float32")
    part.problem(DropoutMaskProblem, {"seed_array": None, "offset_array": None, **arrays}, {"x": written, "y": written},
                 {**words, "threshold": threshold})
    part.done(written, target)


class _Arrays:
    """The arrays of a node, as the family takes them: (B, heads, rows, elements), or, where some are ragged, these as (rows, heads,
    elements) and the others as (B, rows, heads, elements)."""

    def __init__(self, part):
        self.part = part
        ragged = {port: t for port in RAGGED if (t := part.spec_of(port)) is not None and t.ragged is not None}
        self.layout, self.ragged = "THD" if ragged else "BHSD", ragged
        self.offsets = {f"ragged_{RAGGED[port]}": self._flat(part.memory(part.spec.tensor(t.ragged))) for port, t in ragged.items()}

    @staticmethod
    def _flat(r):
        return r.view(r.shape[:1], r.tensor.strides[:1])

    def rows(self, port, r):
        """An array of rows."""
        if self.layout == "BHSD":
            return r
        if port not in self.ragged:
            return r.permuted((0, 2, 1, 3))
        _, heads, rows, elements = r.tensor.strides
        return r.view((ROWS, r.shape[1], r.shape[3]), (rows, heads, elements))

    def numbers(self, port, r):
        """An array with a number for each row."""
        if r is None or port not in self.ragged:
            return None if r is None else r.view(r.shape[:3], r.tensor.strides[:3])
        return r.view((r.shape[1], ROWS), r.tensor.strides[1:3])

    def most(self, keys):
        """Bounds of the lengths, as fields of a problem."""
        paged = any(self.part.node.input(table) is not None for table in TABLES.values())
        return {"max_seq_len_q": self.part.spec_of("Q").dim[2] if "Q" in self.ragged else 0,
                "max_seq_len_kv": keys if paged or "K" in self.ragged or "V" in self.ragged else 0}

    def converted(self, port, r, dtype):
        """In another type."""
        return self.part.converted(self._convertible(port, r, dtype), dtype)

    def into(self, port, r, dtype):
        """Where a result of this type is written: the array, or what is converted to it."""
        return self.part.into(self._convertible(port, r, dtype), (dtype,), dtype)

    def _convertible(self, port, r, dtype):
        """The array; a ragged one, whose memory ends where the caller knows, has to have the type."""
        if r is not None and r.dtype != dtype and port in self.ragged:
            self.part.refuse(port, f"a ragged tensor of type {r.dtype}", f"{dtype}, as the other tensors")
        return r


def _beside(part, port, dtype, compute):
    """A bias or a sink in a type that kernels take beside q's."""
    r, allowed = part.input(port), OUTPUTS[dtype][:3] if dtype in FP8 else (dtype, compute)
    return r if r is None or r.dtype in allowed else part.converted(r, compute)


@sdpa.lower
def _(part):
    q, k, v, o = *(part.spec_of(port) for port in ("Q", "K", "V")), part.output("O")
    types = {part.dtype(t) for t in (q, k, v)}
    dtype = o.dtype if types == {o.dtype} else "float64" if "float64" in types else "float32"
    lower_forward(part, dtype, dtype)


def lower_forward(part, dtype, o_dtype, factors=(), maxima=()):
    """The step of operands of a type, whose result is of another; 8-bit ones may have factors and maxima, {name in launches: Ref or
    None}."""
    from ...attention import SdpaProblem
    (q, k, v), o, arrays = (part.input(port) for port in ("Q", "K", "V")), part.output("O"), _Arrays(part)
    compute = "float64" if dtype == "float64" else "float32"
    q, k, v = (arrays.converted(port, r, dtype) for port, r in zip("QKV", (q, k, v)))
    fields, operands, scalars, bound, beside = _fields(part, q.shape[3], dtype, compute)
    operands["block_mask"], keys = part.input("Block_mask"), k.shape[2]
    for name, port in zip("kv", TABLES.values()):
        table = part.input(port)
        if table is not None:
            operands[f"page_table_{name}"] = table.view(table.shape[0:4:2], table.tensor.strides[0:4:2])
            keys = part.attribute("max_seq_len_kv") or table.shape[2] * part.input(name.upper()).shape[2]
    written, numbers = arrays.into("O", o, o_dtype), {port: part.output(port, always=False) for port in ("Stats", "Max", "Sum_exp")}
    kept = {port: arrays.into(port, r, compute) for port, r in numbers.items()}
    given = {name: arrays.rows(port, r) for name, port, r in zip("qkv", "QKV", (q, k, v))}
    part.problem(SdpaProblem, {**given, **operands, **arrays.offsets, **dict(factors)},
                 {"o": arrays.rows("O", written), **{RAGGED[port]: arrays.numbers(port, r) for port, r in kept.items()}, **dict(maxima)},
                 scalars, bound=bound, beside=beside, layout=arrays.layout, **arrays.most(keys), **fields)
    part.done(written, o)
    for port, r in numbers.items():
        part.done(kept[port], r)
    _dump(part)


@sdpa_backward.lower
def _(part):
    from ...attention import SdpaGradientProblem
    arrays, names = _Arrays(part), ("dO", "Q", "K", "V", "O")
    refs = [part.input(port) for port in names]
    found = {r.dtype for r in refs}
    (dtype,) = found if len(found) == 1 else ("float64" if "float64" in found else "float32",)
    compute = "float64" if dtype == "float64" else "float32"
    do, q, k, v, o = (arrays.converted(port, r, dtype) for port, r in zip(names, refs))
    stats = arrays.converted("Stats", part.input("Stats"), compute)
    fields, operands, scalars, bound, beside = _fields(part, q.shape[3], dtype, compute)
    results, pending = {"dbias": None, "dsink": None}, []
    for name, port, like in (("dq", "dQ", q), ("dk", "dK", k), ("dv_out", "dV", v), ("dbias", "dBias", operands["bias"]),
                             ("dsink", "dSINK_TOKEN", operands["sink"])):
        target = part.output(port)
        if target is None:
            if name.startswith("db") or name.startswith("ds"):
                continue
            target = part.temporary(like.shape, like.dtype)
        written = arrays.into(port, target, like.dtype)
        pending.append((written, target))
        results[name] = (arrays.rows(port, written) if port in RAGGED else written if name != "dsink"
                         else written.view((written.shape[1],), (written.tensor.strides[1],)))
    given = {RAGGED[port]: arrays.rows(port, r) for port, r in zip(names, (do, q, k, v, o))}
    part.problem(SdpaGradientProblem, {**given, "lse": arrays.numbers("Stats", stats), **operands, **arrays.offsets}, results, scalars,
                 bound=bound, beside=beside, names={"dv_out": "dv"}, layout=arrays.layout, **arrays.most(k.shape[2]), **fields)
    for written, target in pending:
        part.done(written, target)
    _dump(part)
