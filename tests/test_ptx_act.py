"""What functions of single elements compile to: 16-byte accesses, loads before stores, everything in registers, few instructions."""
import pytest

from dnnkern import dispatch
from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from sass import machine_code  # noqa: E402
from test_ptx import device  # noqa: E402

from dnnkern.act._parse import parse_problem  # noqa: E402

TARGET = "sm_90a"


def assembled(op, words, algo, lanes=None):
    """The algorithm's only kernel, for packed arrays, and its configuration."""
    problem, target = parse_problem(words.split(), op), device(TARGET)
    algorithm = next(a for a in dispatch.algorithms(op) if a.name == algo)
    assert algorithm.supports(problem) is None, algorithm.supports(problem)
    variants = algorithm.variants(problem, target)
    bound = variants[0] if lanes is None else next(v for v in variants if v.config.work.lanes == lanes)
    (launch,) = bound.build(problem, target, bound.config)
    return machine_code(launch.kernel, launch.signature, TARGET)


def wide(code, kind):
    """How many accesses of 16 bytes there are."""
    return sum(".128" in name for name in code.opcodes(kind))


def shortest(code):
    """Instructions of a thread all of whose elements exist: all but those between its element loads and stores and the branches round
    them."""
    narrow = [k for k, line in enumerate(code.lines) if line.split()[0].startswith(("LDG.E.U16", "STG.E.U16"))]
    skipped = sum(b - a for a, b in zip(narrow, narrow[1:]) if b - a < 20)
    return len([line for line in code.lines if not line.startswith("NOP")]) - skipped


@pytest.mark.parametrize("op, words, loads, stores", [
    ("activation_fwd", "1048576 bf16 gelu", 2, 2), ("activation_fwd", "1048576 f32 gelu", 1, 1),
    ("activation_fwd", "1048576 f64 relu", 1, 1),
    ("activation_bwd", "1048576 bf16 gelu", 4, 2), ("activation_bwd", "1048576 f16 swish", 4, 2), ("unary", "1048576 f32 exp", 1, 1),
    ("binary", "1048576 1048576 f32 add", 2, 1), ("binary", "1048576 1048576 f16 max", 4, 2), ("binary", "1048576 scalar bf16 mul", 2, 2)])
def test_runs_move_16_bytes(op, words, loads, stores):
    """A chunk a thread, or two of 2-byte types, all loads in flight; beside them the elements at the ends."""
    code = assembled(op, words, "vector", lanes=stores)
    assert (wide(code, "LDG"), wide(code, "STG")) == (loads, stores)
    assert "f64" in words or not code.doubles and code.registers <= 64
    places = [k for k, line in enumerate(code.lines) if ".128" in line.split()[0]]
    assert all("LDG" in code.lines[k] for k in places[:loads]), "a store comes before a load"
    assert not code.divisions


def test_the_gradient_of_a_slope_moves_16_bytes():
    """What the slope's gradient is added up from goes out in 16 bytes beside dx."""
    problem, target = parse_problem("64x256x56x56 bf16 prelu --slope 256x1x1 --slope-gradient".split(), "activation_bwd"), device(TARGET)
    algorithm = next(a for a in dispatch.algorithms("activation_bwd") if a.name == "rows")
    bound = algorithm.configured(problem, target)
    launch = bound.build(problem, target, bound.config)[0]
    code = machine_code(launch.kernel, launch.signature, TARGET)
    rows = bound.config.work.lanes
    assert (wide(code, "LDG"), wide(code, "STG")) == (2 * rows, 3 * rows) and not code.doubles


@pytest.mark.parametrize("op, words", [
    *(("activation_fwd", f"1048576 bf16 {mode}") for mode in ("gelu", "gelu_tanh", "swish", "mish", "tanh", "elu", "softplus")),
    *(("activation_bwd", f"1048576 bf16 {mode}") for mode in ("gelu", "swish", "mish"))])
def test_activations_fit_the_time_of_a_copy(op, words):
    """Instructions an element, of the 16 of a thread: bfloat16 leaves time for about 27 where two arrays move, for 40 where three do."""
    code = assembled(op, words, "vector")
    assert shortest(code) <= (27 if op == "activation_fwd" else 40) * 16, shortest(code) / 16


@pytest.mark.parametrize("words, lanes, loads, stores", [
    ("4096x4096 4096 bf16 add", 4, 4 + 1, 4), ("4096x4096 4096 f32 add", 2, 2 + 1, 2),      # a bias along the rows: once
    ("64x256x56x56 256x1x1 bf16 add", 2, 2, 2), ("4096x4096 4096x1 f32 mul", 4, 4, 4),       # a value a row
    ("4096x4095 4095 bf16 add", 2, 2, 2), ("4096x1 4096 f32 sub", 4, 1, 4)])
def test_rows_move_16_bytes(words, lanes, loads, stores):
    code = assembled("binary", words, "rows", lanes)
    assert (wide(code, "LDG"), wide(code, "STG")) == (loads, stores)
    assert not code.doubles and not code.divisions


@pytest.mark.parametrize("op, algo, words, loads, stores", [
    ("scale_tensor", "vector", "1048576 bf16", 2, 2), ("scale_tensor", "vector", "1048576 f32", 1, 1),
    ("add_tensor", "vector", "1048576 1048576 bf16", 4, 2), ("add_tensor", "rows", "256x1x1 64x256x56x56 f16", 1, 1)])
def test_numbers_are_parameters(op, algo, words, loads, stores):
    code = assembled(op, words, algo, lanes=stores)
    assert (wide(code, "LDG"), wide(code, "STG")) == (loads, stores)
    assert not code.opcodes("LDG.E.128.CONSTANT", "LDG.E.64.CONSTANT") or op == "add_tensor", "x is read where it is written"
    assert not code.doubles and not code.divisions and code.registers <= 64


@pytest.mark.parametrize("op, words, loads, stores", [("glu_fwd", "4096x8192 bf16 swish", 2, 1), ("glu_bwd", "4096x8192 bf16 gelu", 3, 2),
                                                      ("glu_bwd", "64x128x3136 f32 sigmoid --axis 1", 3, 2)])
def test_gated_units_move_16_bytes(op, words, loads, stores):
    for lanes in (1, 2):
        code = assembled(op, words, "rows", lanes)
        assert (wide(code, "LDG"), wide(code, "STG")) == (loads * lanes, stores * lanes)
        assert not code.doubles and not code.divisions


def test_in_place_reads_what_it_writes_by_plain_loads():
    """The read-only path must not see memory that the kernel writes."""
    from dnnkern.act._problem import ActivationProblem
    from dnnkern.device.epilogue import Activation
    from dnnkern.host.tensor import Tensor
    x = Tensor.packed((1 << 20,), "bfloat16")
    algorithm = next(a for a in dispatch.algorithms("activation_fwd") if a.name == "vector")
    for in_place in ((), ("x",)):
        problem = ActivationProblem("activation_fwd", x, x, Activation("relu"), in_place=in_place)
        config = next(c for c in algorithm.configs(problem, device(TARGET)) if c.work.lanes == 2)
        (launch,) = algorithm.build(problem, device(TARGET), config)
        code = machine_code(launch.kernel, launch.signature, TARGET)
        assert any(name.endswith(".CONSTANT") for name in code.opcodes("LDG")) != bool(in_place) and wide(code, "LDG") == 2


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_one_slopes_gradient_is_added_up_on_the_way(dtype):
    """Two accesses of 16 bytes to either array under way, one store for each, and a number for the block."""
    problem, target = parse_problem(f"1048576 {dtype} prelu --slope 1 --slope-gradient".split(), "activation_bwd"), device(TARGET)
    algorithm = next(a for a in dispatch.algorithms("activation_bwd") if a.name == "slope")
    launch, *_ = algorithm.build(problem, target, None)
    code = machine_code(launch.kernel, launch.signature, TARGET)
    assert (wide(code, "LDG"), wide(code, "STG")) == (4, 2) and code.registers <= 64 and not code.divisions
    assert bool(code.doubles) == (dtype == "f64")
