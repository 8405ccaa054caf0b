"""Recurrent networks: against PyTorch, weights by name, what lies behind a sequence's end, dropout, words, bad input."""
import dataclasses

import contract
import labs
import numpy as np
import pytest
from cases import lay, numpy_dtype
from cases._rnn import Data, Forward, Weights
from labs import array, host, refused

import dnnkern
from dnnkern import RnnSpec, dispatch, selfcheck
from dnnkern.device import SIMULATED
from dnnkern.dispatch import NotSupported
from dnnkern.host.device import Device
from dnnkern.rnn._parse import FAMILY, SMALL, parse_problem
from dnnkern.rnn._problem import regions
from dnnkern.rnn._spec import BIASES

OPS = ("rnn_fwd", "rnn_bwd_data", "rnn_bwd_weights")
FWD, DATA, WEIGHTS = dnnkern.rnn_fwd, dnnkern.rnn_bwd_data, dnnkern.rnn_bwd_weights
CELLS = ("relu", "tanh", "lstm", "gru")
H200 = Device(index=0, name="H200", capability=(9, 0), arch="sm_90a", sms=132, shared_per_block=232448, shared_per_sm=233472,
              registers_per_sm=65536, l2_bytes=60 << 20, clock_hz=1.98e9, bandwidth=4.8e12, memory=1 << 34)
ALGORITHMS = [a.name for a in dispatch.algorithms("rnn_bwd_weights")]


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def random_spec(draw):
    """Keywords of an RnnSpec that PyTorch has too."""
    cell = CELLS[draw.integers(4)]
    hidden = int(draw.integers(2, 6))
    return cell, int(draw.integers(1, 6)), hidden, {
        "num_layers": int(draw.integers(1, 4)), "bidirectional": bool(draw.integers(2)), "bias": ("double", "none")[draw.integers(2)],
        "proj_size": int(draw.integers(1, hidden)) if cell == "lstm" and draw.integers(2) else 0}


@pytest.mark.parametrize("algo, seed", [("naive", seed) for seed in range(8)] + [("step", seed) for seed in range(8, 13)])
def test_torch_agrees(algo, seed):
    """Outputs, and all gradients, of networks drawn at random, in float64; every second one with lengths of its own."""
    torch = pytest.importorskip("torch")
    draw = np.random.default_rng(seed)
    cell, inputs, hidden, words = random_spec(draw)
    steps, samples, first = int(draw.integers(1, 6)), int(draw.integers(1, 4)), bool(draw.integers(2))
    spec = RnnSpec(cell, inputs, hidden, dtype="float64", **words)
    torch.manual_seed(seed)
    module = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(cell, torch.nn.RNN)
    more = {"nonlinearity": cell} if module is torch.nn.RNN else {"proj_size": spec.proj_size} if cell == "lstm" else {}
    net = module(inputs, hidden, spec.num_layers, bias=spec.bias == "double", bidirectional=spec.bidirectional, batch_first=first,
                 **more).double()
    named = {name: array(p.detach().numpy(), "float64") for name, p in net.named_parameters()}
    weights = spec.pack(named)
    states = spec.num_layers * spec.directions
    x = torch.randn((samples, steps, inputs) if first else (steps, samples, inputs), dtype=torch.float64, requires_grad=True)
    h0 = torch.randn(states, samples, spec.state_size, dtype=torch.float64, requires_grad=True)
    c0 = torch.randn(states, samples, hidden, dtype=torch.float64, requires_grad=True)
    lengths = None
    if seed % 2:
        lengths = draw.integers(1, steps + 1, samples)
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.from_numpy(lengths), batch_first=first, enforce_sorted=False)
        y, last = net(packed, (h0, c0) if cell == "lstm" else h0)
        y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, batch_first=first, total_length=steps)
    else:
        y, last = net(x, (h0, c0) if cell == "lstm" else h0)
    hn, cn = last if cell == "lstm" else (last, None)
    outs = [t for t in (y, hn, cn) if t is not None]
    gradients = [torch.randn_like(t) for t in outs]
    sum((t * g).sum() for t, g in zip(outs, gradients)).backward()

    def ours(t):
        return None if t is None else array(t.detach().numpy(), "float64")
    how = {"layout": "NTC" if first else "TNC", "lengths": None if lengths is None else array(lengths, "int32"), "algo": algo}
    given = ours(x), ours(h0), ours(c0) if cell == "lstm" else None
    found = FWD(spec, *given, weights, training=True, **how)
    for got, want in zip(found, outs):
        np.testing.assert_allclose(host(got), want.detach().numpy(), rtol=1e-11, atol=1e-13)
    dy, dhn, dcn = (*map(ours, gradients), None)[:3]
    slopes = DATA(spec, dy, dhn, dcn, *given, found[0], weights, found[3], **how)
    wanted = [x.grad, h0.grad] + [c0.grad] * (cell == "lstm")
    for got, want in zip(slopes, wanted):
        np.testing.assert_allclose(host(got), want.numpy(), rtol=1e-9, atol=1e-12)
    dweights = spec.views(WEIGHTS(spec, given[0], given[1], found[0], found[3], **how))
    for name, p in net.named_parameters():
        short = name.replace("weight_", "w_").replace("bias_", "b_")
        np.testing.assert_allclose(host(dweights[short]), p.grad.numpy(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("cell, bidirectional", [("tanh", True), ("lstm", False), ("gru", True)])
def test_what_lies_behind_a_sequence_does_not_matter(cell, bidirectional, algo):
    how = {"lengths": array([2, 0, 4, 1], "int32"), "algo": algo}
    spec = RnnSpec(cell, 3, 2, bidirectional=bidirectional)
    weights = array(0.3 * numbers(spec.weight_size))
    x, dy = numbers(4, 4, 3, seed=1), numbers(4, 4, spec.output_size, seed=2)
    behind = np.arange(4)[:, None] >= np.array([2, 0, 4, 1])
    found = []
    for filler in (0.0, np.nan):
        x[behind], dy[behind] = filler, filler
        y, hn, cn, reserve = FWD(spec, array(x), None, None, weights, training=True, **how)
        slopes = DATA(spec, array(dy), None, None, array(x), None, None, y, weights, reserve, **how)
        found.append([host(t) for t in (y, hn, *slopes, WEIGHTS(spec, array(x), None, y, reserve, **how)) if t is not None])
    for a, b in zip(*found):
        assert np.isfinite(a).all() and np.array_equal(a, b)
    assert not found[0][0][behind].any() and not found[0][2][behind].any() and not found[0][1][:, 1].any()


@pytest.mark.parametrize("cell", CELLS)
def test_a_sequence_without_steps_keeps_its_first_states(cell):
    spec = RnnSpec(cell, 2, 3)
    h0, c0 = numbers(1, 2, 3), numbers(1, 2, 3, seed=1) if cell == "lstm" else None
    weights, lengths = array(numbers(spec.weight_size)), array([0, 2], "int32")
    given = array(numbers(2, 2, 2)), array(h0), None if c0 is None else array(c0)
    y, hn, cn, reserve = FWD(spec, *given, weights, lengths=lengths, training=True)
    assert np.array_equal(host(hn)[:, 0], h0.astype(np.float32)[:, 0]) and not host(y)[:, 0].any()
    assert c0 is None or np.array_equal(host(cn)[:, 0], c0.astype(np.float32)[:, 0])
    dhn = numbers(1, 2, 3, seed=2)
    dx, dh0, _ = DATA(spec, array(np.zeros((2, 2, 3))), array(dhn), None, *given, y, weights, reserve, lengths=lengths)
    assert np.array_equal(host(dh0)[:, 0], dhn.astype(np.float32)[:, 0]) and not host(dx)[:, 0].any()


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_lengths_out_of_range_count_as_the_nearest_in_it(algo):
    """In all three passes: nothing past the arrays is read."""
    spec = RnnSpec("gru", 3, 2, bidirectional=True, num_layers=2)
    weights, x, dy = array(0.3 * numbers(spec.weight_size)), array(numbers(4, 3, 3, seed=1)), array(numbers(4, 3, 4, seed=2))
    found = []
    for lengths in ([9, -5, 3], [4, 0, 3]):
        how = {"lengths": array(lengths, "int32"), "algo": algo}
        y, hn, _, reserve = FWD(spec, x, None, None, weights, training=True, **how)
        slopes = DATA(spec, dy, None, None, x, None, None, y, weights, reserve, **how)
        found.append([host(t) for t in (y, hn, *slopes[:2], WEIGHTS(spec, x, None, y, reserve, **how), reserve)])
    for a, b in zip(*found):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_errors_of_16_bit_gradients_are_no_larger_than_those_of_pytorchs_modules(cell, dtype):
    """Of each matrix and bias together, over five networks: single elements, where terms cancel, differ either way."""
    torch = pytest.importorskip("torch")
    spec, module = RnnSpec(cell, 4, 5, dtype=dtype), {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[cell]
    ours, theirs = {}, {}
    for seed in range(5):
        torch.manual_seed(seed)
        net, exact = module(4, 5).to(getattr(torch, dtype)), module(4, 5).double()
        exact.load_state_dict({name: p.double() for name, p in net.state_dict().items()})
        x, dy = (torch.randn(5, 3, n, dtype=torch.float64).to(getattr(torch, dtype)) for n in (4, 5))
        for each, given, slope in ((net, x, dy), (exact, x.double(), dy.double())):
            each(given)[0].backward(slope)
        weights, x, dy = (array(t.detach().double().numpy(), dtype) for t in (torch.cat([p.flatten() for p in net.parameters()]), x, dy))
        y, _, _, reserve = FWD(spec, x, None, None, weights, training=True, algo="naive")
        DATA(spec, dy, None, None, x, None, None, y, weights, reserve, algo="naive")
        found = spec.views(WEIGHTS(spec, x, None, y, reserve, algo="naive"))
        for m, p, true in zip(spec.matrices, net.parameters(), exact.parameters()):
            for errors, got in ((ours, host(found[m.name])), (theirs, p.grad.double().numpy())):
                errors.setdefault(m.name, []).append(((got - true.grad.numpy()) ** 2).mean())
    for name in ours:
        assert np.mean(ours[name]) ** 0.5 <= 1.5 * np.mean(theirs[name]) ** 0.5, name


# ---- random networks

@pytest.mark.parametrize("kind", [Forward, Data, Weights])
@pytest.mark.parametrize("dtype, misaligned", [("float16", 1), ("float16", 4), ("float32", 1), ("bfloat16", 0)])
def test_what_a_reserve_holds_may_lie_anywhere(dtype, misaligned, kind):
    """Its arrays follow each other without gaps, and a layer's input is one of them."""
    words = {"num_layers": 2} if misaligned else {"num_layers": 2, "proj_size": 8}
    case = kind("reserve", "lstm", (8, 8 if misaligned else 9), 3, 1, dtype, tuple(words.items()),
                arrays={"reserve": {"misaligned": misaligned}})
    able = [a for a in dispatch.algorithms(case.op) if contract.refusal(a, case.problem()) is None]
    assert {"naive", "step"} <= {a.name for a in able}
    for algorithm in able:
        contract.check_float(algorithm, case, again=False)


@pytest.mark.parametrize("kind", [Forward, Data, Weights])
def test_random_problems(kind, request):
    """Every option with every other, in every algorithm that can, against the definition in float64."""
    def problems(draw):
        st = pytest.importorskip("hypothesis").strategies
        cell, skip = draw(st.sampled_from(CELLS)), draw(st.integers(0, 3)) == 0
        hidden = draw(st.sampled_from([1, 2, 3, 5, 8, 8, 16]))
        inputs = hidden if skip else draw(st.sampled_from([1, 2, 3, 4, 8]))
        words = {"num_layers": draw(st.integers(1, 3)), "bidirectional": draw(st.booleans()),
                 "bias": draw(st.sampled_from(list(BIASES))), "dropout": draw(st.sampled_from([0.0, 0.0, 0.4])),
                 "input_mode": "skip" if skip else "linear"}
        if cell == "lstm":
            words["clip"] = draw(st.sampled_from([None, None, 0.3]))
            words["proj_size"] = draw(st.sampled_from([0, 0, *(n for n in (1, 2, 4, 8) if n < hidden)]))
        steps, samples = draw(st.integers(0, 4)), draw(st.sampled_from([0, 1, 2, 3, 4, 9]))
        lengths = tuple(draw(st.integers(0, steps)) for _ in range(samples)) if draw(st.booleans()) else None
        arrays = {name: contract.random_layout(draw, st, 3) if draw(st.booleans()) else {}
                  for name in ("x", "y", "h0", "c0", "hn", "cn", "dy", "dhn", "dcn", "dx", "dh0", "dc0")}
        arrays |= {name: {"misaligned": draw(st.sampled_from([0, 0, 0, 1, 4]))} for name in ("weights", "reserve", "dweights")}
        absent = frozenset(name for name in ("h0", "c0", "dhn", "dcn") if draw(st.integers(0, 2)) == 0)
        return kind("random", cell, (inputs, hidden), steps, samples, draw(st.sampled_from(["float64", "float32", "float16", "bfloat16"])),
                    tuple(words.items()), lengths=lengths, layout=draw(st.sampled_from(["TNC", "NTC"])), absent=absent,
                    training=kind is not Forward or draw(st.booleans()), arrays=arrays)
    contract.random_problems(request, problems, 5)


@pytest.mark.parametrize("op", OPS)
def test_operands_to_measure_on_are_what_a_forward_pass_leaves(op, capsys):
    """Else algorithms that rely on it, all but naive, would differ from naive and never be found the fastest."""
    for text in (*(text for text in SMALL[op] if "--lengths" in text), "2x2 4x8 lstm f32 --lengths --layers 2 --dropout 0.5"):
        assert selfcheck.run_problem(parse_problem(text.split(), op)) == 0, capsys.readouterr().out


# ---- bad input

def test_specs():
    for error, words, args, how in (
            (ValueError, ["cell='gruu'", "'gru'"], ("gruu", 3, 4), {}), (ValueError, ["hidden_size is 0"], ("gru", 3, 0), {}),
            (TypeError, ["input_size=2.5"], ("gru", 2.5, 4), {}),
            (ValueError, ["num_layers is 0"], ("gru", 3, 4), {"num_layers": 0}),
            (TypeError, ["bidirectional=1"], ("gru", 3, 4), {"bidirectional": 1}),
            (ValueError, ["proj_size=2 for gru"], ("gru", 3, 4), {"proj_size": 2}),
            (ValueError, ["proj_size=4, hidden_size=4"], ("lstm", 3, 4), {"proj_size": 4}),
            (ValueError, ["bias='some'", "'single_rec'"], ("gru", 3, 4), {"bias": "some"}),
            (ValueError, ["input_size=3, hidden_size=4", "skip"], ("gru", 3, 4), {"input_mode": "skip"}),
            (ValueError, ["dropout=1.0"], ("gru", 3, 4), {"dropout": 1.0}), (TypeError, ["dropout='x'"], ("gru", 3, 4), {"dropout": "x"}),
            (ValueError, ["clip=1.0 for gru"], ("gru", 3, 4), {"clip": 1.0}),
            (ValueError, ["clip=(1, 0)"], ("lstm", 3, 4), {"clip": (1, 0)}),
            (ValueError, ["RnnSpec: math='fast'", "None, 'tf32'"], ("lstm", 3, 4), {"math": "fast"}),
            (TypeError, ["clip='c'"], ("lstm", 3, 4), {"clip": "c"}), (TypeError, ["dtype='int32'"], ("lstm", 3, 4), {"dtype": "int32"})):
        refused(error, words, RnnSpec, *args, **how)
    assert [RnnSpec("gru", 3, 4, dtype=dtype, math="tf32").math for dtype in ("float32", "bfloat16", "float64")] == ["tf32", None, None]


def test_operands():
    spec, plain = RnnSpec("lstm", 3, 4, proj_size=2), RnnSpec("gru", 3, 4)
    x, h0, c0 = (array(np.ones(s)) for s in ((5, 2, 3), (1, 2, 2), (1, 2, 4)))
    weights, lengths = array(np.ones(spec.weight_size)), array([1, 2], "int32")
    state, few = array(np.ones((1, 2, 4))), array(np.ones(plain.weight_size))
    refused(TypeError, ["spec is a str", "RnnSpec"], FWD, "lstm", x, h0, c0, weights)
    refused(TypeError, ["weights", "NoneType"], FWD, spec, x, h0, c0, None)
    refused(ValueError, ["x has shape (5, 2)", "(T, N, 3)"], FWD, spec, array(np.ones((5, 2))), h0, c0, weights)
    refused(ValueError, ["x has shape (5, 2, 4)", "(N, T, 3)"], FWD, spec, array(np.ones((5, 2, 4))), h0, c0, weights, layout="NTC")
    refused(ValueError, ["layout='NCT'"], FWD, spec, x, h0, c0, weights, layout="NCT")
    refused(TypeError, ["x is float64", "float32"], FWD, spec, array(np.ones((5, 2, 3)), "float64"), h0, c0, weights)
    refused(ValueError, ["h0 has shape (1, 2, 4)", "(1, 2, 2)"], FWD, spec, x, c0, c0, weights)
    refused(ValueError, ["c0 has shape (1, 2, 2)", "(1, 2, 4)"], FWD, spec, x, h0, h0, weights)
    refused(ValueError, ["c0 is given", "gru has no cell state"], FWD, plain, x, state, state, few)
    refused(ValueError, [f"weights has shape ({plain.weight_size},)", f"({spec.weight_size},)"], FWD, spec, x, h0, c0, few)
    refused(TypeError, ["lengths is int64", "int32"], FWD, spec, x, h0, c0, weights, lengths=array([1, 2], "int64"))
    refused(ValueError, ["lengths has shape (3,)", "(2,)"], FWD, spec, x, h0, c0, weights, lengths=array([1, 2, 3], "int32"))
    refused(TypeError, ["training=1"], FWD, spec, x, h0, c0, weights, training=1)
    refused(TypeError, ["seed=0.5"], FWD, spec, x, h0, c0, weights, seed=0.5)
    refused(ValueError, ["seed=", "64 bits"], FWD, spec, x, h0, c0, weights, seed=2 ** 64)
    refused(TypeError, ["offset='1'"], FWD, spec, x, h0, c0, weights, offset="1")
    refused(TypeError, ["seed is an array of int32", "one int64"], FWD, spec, x, h0, c0, weights, seed=array([1], "int32"))
    refused(ValueError, ["offset has shape (2,)", "one int64"], FWD, spec, x, h0, c0, weights, offset=array([1, 2], "int64"))
    y, hn, cn, reserve = FWD(spec, x, h0, c0, weights, training=True, lengths=lengths)
    refused(ValueError, ["out has 2 arrays", "y, hn, cn"], FWD, spec, x, h0, c0, weights, out=(y, hn))
    refused(ValueError, ["out (hn) has shape (1, 2, 4)"], FWD, spec, x, h0, c0, weights, out=(y, cn, cn))
    shared = labs.guarded(lay((5, 2, 2), "float32", expand=(0,))).array
    refused(ValueError, ["share one address"], FWD, spec, x, h0, c0, weights, out=(shared, hn, cn))
    refused(NotSupported, ["algo='fast'", "naive"], FWD, spec, x, h0, c0, weights, algo="fast")
    refused(ValueError, ["reserve has shape (3,)"], DATA, spec, y, None, None, x, h0, c0, y, weights, array(np.ones(3)))
    refused(ValueError, ["dy has shape (5, 2, 3)", "(5, 2, 2)"], DATA, spec, x, None, None, x, h0, c0, y, weights, reserve)
    wide, kept = array(np.ones((5, 2, 4))), array(np.ones(regions(plain, 5, 2)[1]))
    refused(ValueError, ["dcn is given"], DATA, plain, wide, None, state, x, None, None, wide, few, kept)
    refused(TypeError, ["reserve", "NoneType"], WEIGHTS, spec, x, h0, y, None)
    refused(ValueError, ["out has shape (3,)"], WEIGHTS, spec, x, h0, y, reserve, out=array(np.ones(3)))


# ---- persistent layers

def test_what_cannot_be_resident_is_refused_with_its_numbers():
    """Neither a hang nor a launch: too many weights for the multiprocessors, or for a cluster's registers."""
    for words, name, numbers_of in (
            ("9x64 2048x2048 lstm f32", "persistent", ["8192 rows of 2048 weights", "132 multiprocessors of 65536"]),
            ("9x64 1024x1024 lstm f16", "cluster", ["4096 rows of 1024 weights", "16 blocks"]),
            ("9x64 1024x1024 lstm f16 --layers 2", "wavefront", ["8192 rows of 2048 weights", "132 multiprocessors of 65536"]),
            ("9x64 64x64 lstm f16 --layers 2 --bidirectional", "wavefront", ["bidirectional", "several layers of one direction"])):
        problem = parse_problem(words.split(), "rnn_fwd")
        with pytest.raises(NotSupported) as caught:
            dispatch.get_algorithm("rnn_fwd", problem, algo=name, device=H200)
        assert all(n in str(caught.value) for n in numbers_of), caught.value
    small = dataclasses.replace(H200, sms=3)
    problem = parse_problem("9x64 256x256 lstm f32".split(), "rnn_fwd")
    assert dispatch.get_algorithm("rnn_fwd", problem, algo="persistent", device=H200).config is not None
    with pytest.raises(NotSupported, match="3 multiprocessors"):
        dispatch.get_algorithm("rnn_fwd", problem, algo="persistent", device=small)
    found = dispatch.get_algorithm("rnn_fwd", problem, algo="persistent", device=H200)
    with pytest.raises(NotSupported, match="blocks wait for each other; H200 runs 3 at once"):
        found.build(problem, small, found.config)


def test_weights_that_copies_cannot_reach():
    """R comes to fragments by copies of 16 bytes; `step` multiplies what is aligned to less."""
    problem = parse_problem("9x8 64x64 lstm f16".split(), "rnn_fwd")
    problem = dataclasses.replace(problem, weights=dataclasses.replace(problem.weights, alignment=8))
    for name in ("persistent", "cluster", "fused_step"):
        with pytest.raises(NotSupported, match="weights aligned to 8 bytes; expected 16"):
            dispatch.get_algorithm("rnn_fwd", problem, algo=name, device=H200)
    assert dispatch.get_algorithm("rnn_fwd", problem, device=H200).name == "step"


def test_dropout_between_layers_is_dropout_fwd():
    """Two layers of dropout 0.5 are two networks with `dropout_fwd` between them."""
    spec, one = RnnSpec("gru", 3, 4, num_layers=2, dropout=0.5), RnnSpec("gru", 3, 4)
    two = RnnSpec("gru", 4, 4)
    weights, x = 0.3 * numbers(spec.weight_size), array(numbers(5, 2, 3, seed=1))
    assert one.weight_size + two.weight_size == spec.weight_size
    first, *_ = FWD(one, x, None, None, array(weights[:one.weight_size]))
    dropped, mask = dnnkern.dropout_fwd(first, 0.5, 9, offset=3)
    want, *_ = FWD(two, dropped, None, None, array(weights[one.weight_size:]))
    got, _, _, reserve = FWD(spec, x, None, None, array(weights), training=True, seed=9, offset=3)
    np.testing.assert_allclose(host(got), host(want), rtol=1e-4, atol=1e-6)
    kept = regions(spec, 5, 2)[0]["kept", 0, 0]
    assert np.array_equal(host(reserve)[kept:kept + 40], np.unpackbits(host(mask).astype(np.uint8), bitorder="little")[:40])
    for other in ({"seed": 10, "offset": 3}, {"seed": 9}):
        assert not np.array_equal(host(FWD(spec, x, None, None, array(weights), training=True, **other)[0]), host(got))
    plain, *_ = FWD(spec, x, None, None, array(weights))
    want, *_ = FWD(two, first, None, None, array(weights[one.weight_size:]))  # inference drops nothing
    np.testing.assert_allclose(host(plain), host(want), rtol=1e-4, atol=1e-6)


@pytest.mark.sized
@pytest.mark.parametrize("algo", [a.name for a in dispatch.algorithms("rnn_fwd")])
def test_a_seed_or_an_offset_in_memory_draws_what_the_number_draws(algo):
    spec = RnnSpec("lstm", 4, 8, num_layers=3, dropout=0.5)
    weights, x = array(0.3 * numbers(spec.weight_size)), array(numbers(5, 2, 4, seed=1))
    try:
        wanted = FWD(spec, x, None, None, weights, training=True, seed=-9, offset=2 ** 40, algo=algo)
    except NotSupported:
        pytest.skip(f"{algo} does not support the problem here")
    seed, offset = array([-9], "int64"), array([2 ** 40], "int64")
    for given in ((seed, 2 ** 40), (-9, offset), (seed, offset)):
        for got, want in zip(FWD(spec, x, None, None, weights, training=True, seed=given[0], offset=given[1], algo=algo), wanted):
            np.testing.assert_array_equal(host(got), host(want))
    seed[...] = 1
    other, *_ = FWD(spec, x, None, None, weights, training=True, seed=seed, offset=offset, algo=algo)
    assert not np.array_equal(host(other), host(wanted[0]))


@pytest.mark.skipif(SIMULATED, reason="CUDA graphs need a GPU")
def test_a_replayed_graph_draws_anew():
    import torch
    spec = RnnSpec("gru", 16, 32, num_layers=3, dropout=0.5)
    weights, x = torch.randn(spec.weight_size, device="cuda") * 0.3, torch.randn(6, 4, 16, device="cuda")
    seed = torch.tensor([1], device="cuda")
    FWD(spec, x, None, None, weights, training=True, seed=seed)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, _, _, reserve = FWD(spec, x, None, None, weights, training=True, seed=seed)
        seed += 1
    for number in (1, 2, 3):
        graph.replay()
        want, _, _, kept = FWD(spec, x, None, None, weights, training=True, seed=number)
        assert torch.equal(y, want) and torch.equal(reserve, kept)


def test_clipped_cell_states_have_no_gradient():
    spec = RnnSpec("lstm", 1, 1, clip=0.25, bias="none")
    x, weights = array(np.full((1, 1, 1), 3)), array(np.ones(8))
    y, _, cn, reserve = FWD(spec, x, None, None, weights, training=True)
    assert host(cn)[0, 0, 0] == 0.25
    c0 = array(np.zeros((1, 1, 1)))
    dx, _, dc0 = DATA(spec, array(np.zeros((1, 1, 1))), None, array(np.ones((1, 1, 1))), x, None, c0, y, weights, reserve)
    assert host(dc0)[0, 0, 0] == 0 and host(dx)[0, 0, 0] == 0


def test_values_that_are_not_finite():
    for cell in CELLS:
        spec = RnnSpec(cell, 2, 3)
        x = numbers(3, 2, 2)
        x[1, 0, 0] = np.nan
        y, hn, *_ = FWD(spec, array(x), None, None, array(0.5 * numbers(spec.weight_size)))
        y = host(y)
        assert np.isfinite(y[0]).all() and np.isnan(y[1:, 0]).all() and np.isfinite(y[:, 1]).all(), cell
        x[1, 0, 0] = np.inf
        weights = np.ones(spec.weight_size)
        y = host(FWD(spec, array(x), None, None, array(weights))[0])
        assert np.isfinite(y[:, 1]).all() and not np.isnan(y).any(), cell  # infinite, or at the end of sigmoid and tanh


def test_matrices_lie_one_behind_the_other():
    spec = RnnSpec("lstm", 3, 5, num_layers=2, bidirectional=True, proj_size=2, bias="single_rec", input_mode="linear")
    first = 0
    for m in spec.matrices:
        assert m.first == first
        first += m.size
    assert spec.weight_size == first
    assert [m.name for m in spec.matrices[:8]] == ["w_ih_l0", "w_hh_l0", "b_hh_l0", "w_hr_l0", "w_ih_l0_reverse", "w_hh_l0_reverse",
                                                   "b_hh_l0_reverse", "w_hr_l0_reverse"]
    assert {m.name: m.shape for m in spec.matrices}["w_ih_l1"] == (20, 4) and spec.matrix("w_hr", 1, 1).shape == (2, 5)
    skip = RnnSpec("gru", 4, 4, num_layers=2, input_mode="skip")
    assert skip.matrix("w_ih", 0, 0) is None and skip.matrix("w_ih", 1, 0).shape == (12, 4)
    assert hash(spec) == hash(RnnSpec("lstm", 3, 5, num_layers=2, bidirectional=True, proj_size=2, bias="single_rec"))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_packing_converts_and_views_name_the_parts(dtype):
    spec = RnnSpec("gru", 3, 4, bidirectional=True, dtype=dtype)
    named = {m.name: numbers(*m.shape, seed=m.first) for m in spec.matrices}
    weights = spec.pack({name: array(v, "float32") for name, v in named.items()})
    found = spec.views(weights)
    assert set(found) == set(named)
    for name, v in named.items():
        np.testing.assert_array_equal(host(found[name]), v.astype(np.float32).astype(numpy_dtype(dtype)).astype(float))
    for words, change in (("missing \\['w_hh_l0'\\]", lambda d: d.pop("w_hh_l0")), ("unknown \\['w_xx'\\]", lambda d: d.update(w_xx=1))):
        wrong = {name: array(v, "float32") for name, v in named.items()}
        change(wrong)
        with pytest.raises(ValueError, match="RnnSpec.pack: .*" + words):
            spec.pack(wrong)
    wrong = {name: array(v, "float32") for name, v in named.items()} | {"b_ih_l0": array(np.ones(5))}
    with pytest.raises(ValueError, match=r"named\['b_ih_l0'\] has shape \(5,\); expected \(12,\)"):
        spec.pack(wrong)
    for bad, words in ((3, "named=3; expected a dictionary"), ({**wrong, "b_ih_l0": 3}, r"named\['b_ih_l0'\]: got int"),
                       ({**wrong, "b_ih_l0": array(np.ones(12), "int32")}, r"named\['b_ih_l0'\] is int32")):
        with pytest.raises(TypeError, match=f"RnnSpec.pack: {words}"):
            spec.pack(bad)
    with pytest.raises(TypeError, match="RnnSpec.pack: stream is 'x'"):
        spec.pack({name: array(v, "float32") for name, v in named.items()}, stream="x")
    with pytest.raises(ValueError, match=r"weights has shape \(3,\); expected \(\d+,\)"):
        spec.views(array(np.ones(3)))
    other = "float64" if dtype == "float32" else "float32"
    with pytest.raises(TypeError, match=f"RnnSpec.views: weights is {other}; expected {dtype}"):
        spec.views(array(np.ones(spec.weight_size), other))
    with pytest.raises(TypeError, match="RnnSpec.views: weights: got list"):
        spec.views([1.0] * spec.weight_size)


def test_checked_lengths_raise_with_their_position(monkeypatch):
    from dnnkern.host import front
    spec = RnnSpec("tanh", 2, 3)
    given = spec, array(np.zeros((4, 3, 2))), None, None, array(np.zeros(spec.weight_size))
    FWD(*given, lengths=array([4, 9, -1], "int32"))  # unchecked it stays inside the arrays
    monkeypatch.setattr(front, "CHECKS", frozenset({"values"}))
    for lengths, words in (([4, 9, 1], r"lengths\[1\] is 9; expected 0 to 4"), ([4, 1, -1], r"lengths\[2\] is -1; expected 0 to 4")):
        with pytest.raises(ValueError, match="rnn_fwd: " + words):
            FWD(*given, lengths=array(lengths, "int32"))


@pytest.mark.parametrize("op", OPS)
def test_words_and_records(op):
    problem = parse_problem("12x3 5x8 lstm bf16 --layers 2 --bidirectional --projection 4 --lengths --clip 2".split(), op)
    assert (problem.steps, problem.samples, problem.spec.output_size, problem.dtype) == (12, 3, 8, "bfloat16")
    assert problem.spec.clip == (-2.0, 2.0) and problem.lengths.shape == (3,)
    assert FAMILY[op][2](dispatch.problem_record(problem)) == problem
    for text in ("4x4 f32 2", "4 4x4 lstm f32", "4x4 4x4 lsstm f32", "4x4 4x4 gru f32 --projection 2", "4x4 4x5 gru f32 --input-mode skip"):
        words = text.split()
        with pytest.raises((ValueError, TypeError)):
            parse_problem(words, op)
    for text in SMALL[op]:
        assert parse_problem(text.split(), op).outputs[0].size
    shapes = pytest.importorskip(f"bench.shapes.{op}")
    for case in shapes.cases("all", ("float32", "float16")):
        if case.problem.steps > 1:
            assert dispatch.get_algorithm(op, case.problem, device=H200).name != "naive", case
