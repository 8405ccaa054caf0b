"""Grouped products of mixtures of experts, their gradients, and random numbers."""
import operator

from ...dropout import RandomProblem, numbers_of
from ...host.products import FLOATS
from .._enums import data_type, member, moe_grouped_matmul_mode, rng_distribution
from .._errors import InvalidValue
from .._fuse import Arithmetic
from .._infer import by_order, row_major
from .._tensor import sizes
from ._define import operation
from .product import alike, target


@operation(outputs="Output", tag="MOE_GROUPED_MATMUL")
def moe_grouped_matmul(token, weight, first_token_offset, token_index=None, token_ks=None, mode=moe_grouped_matmul_mode.NONE,
                       compute_data_type=data_type.FLOAT, top_k=0, name=""):
    """Rows of tokens (1, T, K) times the weight of their expert, of (E, K, N).

    Parameters
    ----------
    first_token_offset : tensor
        (E, 1, 1) INT32: where each expert's rows begin; the last expert's end with the rows. (B * E, 1, 1): those of each of B samples.
    token_index, token_ks : tensor
        (1, rows, 1) INT32: the token of a row, and which of its `top_k` experts' it is.
    mode : moe_grouped_matmul_mode
        NONE: rows are the tokens. GATHER: row r is token ``token_index[r]``. SCATTER: the product of row r is row ``token_index[r] * top_k
        + token_ks[r]`` of the result.

    Returns
    -------
    tensor
        (1, rows, N)
    """
    return ({"Token": token, "Weight": weight, "FirstTokenOffset": first_token_offset, "TokenIndex": token_index, "TokenKs": token_ks},
            {"mode": member(moe_grouped_matmul_mode, mode, "moe_grouped_matmul: mode").name, "top_k": operator.index(top_k)})


@moe_grouped_matmul.infer
def _(node):
    for port in ("Token", "Weight", "FirstTokenOffset"):
        node.expect_rank(port, 3)
    token, weight = node.dim("Token"), node.dim("Weight")
    node.expect(token[0] == 1 and token[2] == weight[1], "Token", f"dims {token}", f"(1, T, {weight[1]}), K as Weight's {weight}")
    offsets = node.dim("FirstTokenOffset")
    samples = offsets[0] // max(weight[0], 1)
    node.expect(offsets[1:] == (1, 1) and offsets[0] == weight[0] * samples and (samples or not weight[0]), "FirstTokenOffset",
                f"dims {offsets}", f"({weight[0]}, 1, 1), or so many for each of several samples")
    node.result("Output", (1, _routed_rows(node, token[1]), weight[2]), row_major)


def _routed_rows(node, tokens):
    """How many rows the groups have together, after a look at what routes them."""
    mode = node.attributes["mode"]
    needed = {"NONE": (), "GATHER": ("TokenIndex",), "SCATTER": ("TokenIndex", "TokenKs")}[mode]
    for port in needed:
        node.expect(node.inputs.get(port) is not None, port, "none", f"a tensor (1, rows, 1) with mode {mode}")
        node.expect_rank(port, 3)
    rows = node.dim("TokenIndex")[1] if mode == "GATHER" else tokens
    for port in needed:
        node.expect_dim(port, (1, rows, 1))
        node.expect(node.inputs[port]._type is data_type.INT32, port, f"data type {node.inputs[port]._type.name}", "INT32")
    if mode == "SCATTER":
        node.expect(node.attributes["top_k"] >= 1, "TokenKs", f"top_k {node.attributes['top_k']}", "1 at least with mode SCATTER")
    return rows


@moe_grouped_matmul.lower
def _(part):
    """The offsets get the entry that closes them; rows are gathered before the product, or scattered after it. Each sample is a product:
    its own rows lie beside each other."""
    token, weight = alike(part, part.input("Token"), part.input("Weight"))
    written, out = target(part, "Output", token.dtype)
    experts, mode = weight.shape[0], part.attribute("mode")
    rows, results = map(_matrix, (token, written))
    if mode == "GATHER":
        rows = _gathered(part, rows, _indices(part, "TokenIndex"))
    made = part.temporary(results.shape, results.dtype) if mode == "SCATTER" else results
    offsets = _closed(part, rows.shape[0])
    for sample in range((offsets.shape[0] - 1) // max(experts, 1)):
        own = offsets.view((experts + 1,), (1,), sample * experts)
        part.call("grouped_matmul", (rows, weight, own, None, None, None), (made,), False, None, None, None, False, scalars=(1.0,))
    if mode == "SCATTER":
        part.call("move_rows", (made, None, _scattered(part, rows.shape[0])), (results,), None)
    part.done(written, out)


def _matrix(ref):
    """(1, rows, elements) as rows."""
    return ref.view(ref.shape[1:], ref.tensor.strides[1:])


def _indices(part, port):
    """(1, rows, 1) as a vector."""
    ref = part.input(port)
    return ref.view(ref.shape[1:2], ref.tensor.strides[1:2])


def _gathered(part, rows, index):
    """A copy of the rows of these numbers."""
    found = part.temporary((index.shape[0], rows.shape[1]), rows.dtype)
    part.call("move_rows", (rows, index, None), (found,), None)
    return found


def _scattered(part, count):
    """The numbers of the rows that SCATTER writes: ``token_index * top_k + token_ks``."""
    to = part.temporary((1, count, 1), "int32")
    do = Arithmetic(part, "float64", to.shape)  # exact
    do.store(to, do("add", do("mul", do.of("TokenIndex"), do.constant(part.attribute("top_k"))), do.of("TokenKs")))
    do.done()
    return to.view((count,), (1,))


def _closed(part, rows):
    """The offsets with the entry that closes them."""
    first = part.input("FirstTokenOffset")
    if first.dtype != "int32":
        part.refuse("FirstTokenOffset", first.dtype, "int32")
    groups = first.shape[0]
    offsets = part.temporary((groups + 1,), "int32")
    part.copy(first.view((groups,), (first.tensor.strides[0],)), offsets.view((groups,), (1,)))
    part.fill(offsets.view((1,), (1,), groups), float(rows))
    return offsets


@operation(outputs="DWeight", tag="MOE_GROUPED_MATMUL_BWD")
def moe_grouped_matmul_bwd(doutput, token, first_token_offset, compute_data_type=data_type.FLOAT, name="", token_index=None, token_ks=None,
                           mode=moe_grouped_matmul_mode.NONE, top_k=0):
    """The gradient of `moe_grouped_matmul`'s weights. That of its tokens is `moe_grouped_matmul` of `doutput` with the weights
    transposed.

    Parameters
    ----------
    doutput : tensor
        (1, rows, N), as the forward's result.
    token, first_token_offset, token_index, token_ks, mode, top_k
        As the forward has them; cuDNN's operation has the first two, and mode NONE alone.

    Returns
    -------
    tensor
        (E, K, N), with K fastest unless strides are set; of offsets of several samples, each sample's own (B * E, K, N). Zeros of an expert
        without rows.
    """
    return ({"DOutput": doutput, "Token": token, "FirstTokenOffset": first_token_offset, "TokenIndex": token_index, "TokenKs": token_ks},
            {"mode": member(moe_grouped_matmul_mode, mode, "moe_grouped_matmul_bwd: mode").name, "top_k": operator.index(top_k)})


@moe_grouped_matmul_bwd.infer
def _(node):
    for port in ("DOutput", "Token", "FirstTokenOffset"):
        node.expect_rank(port, 3)
    token, dout, offsets = node.dim("Token"), node.dim("DOutput"), node.dim("FirstTokenOffset")
    node.expect(token[0] == 1, "Token", f"dims {token}", "(1, T, K)")
    node.expect(offsets[1:] == (1, 1), "FirstTokenOffset", f"dims {offsets}", "(experts, 1, 1)")
    node.expect_dim("DOutput", (1, _routed_rows(node, token[1]), dout[2]))
    node.result("DWeight", (offsets[0], token[2], dout[2]), lambda dim: by_order(dim, (0, 2, 1)))


@moe_grouped_matmul_bwd.lower
def _(part):
    """The rows that the forward scattered are gathered, and so are those that it gathered."""
    token, dout = alike(part, part.input("Token"), part.input("DOutput"))
    if token.dtype not in FLOATS:
        part.refuse("Token", token.dtype, f"one of {', '.join(FLOATS)}")
    (rows, dout), mode = map(_matrix, (token, dout)), part.attribute("mode")
    if mode == "GATHER":
        rows = _gathered(part, rows, _indices(part, "TokenIndex"))
    if mode == "SCATTER":
        dout = _gathered(part, dout, _scattered(part, rows.shape[0]))
    written, out = target(part, "DWeight", token.dtype)
    part.call("grouped_matmul_bwd_weights", (rows, dout, _closed(part, rows.shape[0])), (written,), None, None)
    part.done(written, out)


@operation(tag="RNG")
def rng(dim, seed, offset, distribution, bernoulli_probability=0.5, uniform_minimum=0.0, uniform_maximum=1.0, normal_mean=0.0,
        normal_standard_deviation=1.0):
    """Random numbers by Philox, as `dnnkern.random_fill` makes them.

    Parameters
    ----------
    dim : sequence of int
    seed, offset : tensor
        One INT64, passed by value or on the device.
    distribution : rng_distribution
        BERNOULLI: 1 with the probability, else 0; UNIFORM: above the minimum, up to the maximum; NORMAL.
    """
    found = member(rng_distribution, distribution, "rng: distribution").name
    numbers = {name: float(value) for name, value in (
        ("p", bernoulli_probability), ("low", uniform_minimum), ("high", uniform_maximum), ("mean", normal_mean),
        ("std", normal_standard_deviation))}
    if not 0 <= numbers["p"] <= 1:
        raise InvalidValue(f"rng: bernoulli_probability is {bernoulli_probability!r}; expected 0 to 1")
    if not numbers["low"] <= numbers["high"]:
        raise InvalidValue(f"rng: uniform_maximum is {uniform_maximum!r}; expected uniform_minimum, {uniform_minimum!r}, at least")
    if not numbers["std"] >= 0:
        raise InvalidValue(f"rng: normal_standard_deviation is {normal_standard_deviation!r}; expected 0 at least")
    used = {"BERNOULLI": ("p",), "UNIFORM": ("low", "high"), "NORMAL": ("mean", "std")}[found]
    return ({"Seed": seed, "Offset": offset},
            {"dim": sizes(dim, "rng: dim", 0), "distribution": found, **{name: numbers[name] for name in used}})


@rng.infer
def _(node):
    node.result("Y", node.attributes["dim"], row_major)


@rng.lower
def _(part):
    """The array that is filled is not read."""
    y, distribution = part.output("Y"), part.attribute("distribution").lower()
    written, arrays, words = part.into(y, FLOATS, "float32"), [], []
    for port in ("Seed", "Offset"):
        by_value = part.spec_of(port).by_value
        arrays.append(None if by_value else part.input(port).view((1,), (1,)))
        words.append(part.integer(port) if by_value else 0)
    numbers = numbers_of(distribution, **{k: v for k, v in part.node.attributes if k not in ("dim", "distribution")})
    part.problem(RandomProblem, dict(zip(("seed_array", "offset_array"), arrays)), {"x": written, "y": written},
                 dict(zip(("seed", "offset", "first", "second"), (*words, *numbers))), distribution=distribution)
    part.done(written, y)
