"""What the kernels of optimisers compile to: accesses of 16 bytes, as many blocks a multiprocessor as they say, nothing in local memory."""
import pytest

from dnnkern import dispatch
from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from sass import machine_code  # noqa: E402
from test_ptx import device  # noqa: E402
from test_ptx_transform import accesses  # noqa: E402

from dnnkern.optim._parse import parse_problem  # noqa: E402


def assembled(op, words, arch="sm_90a", config=None):
    """The kernel of `chunks`, in its first configuration."""
    problem, target = parse_problem(words.split(), op), device(arch)
    algorithm = next(a for a in dispatch.algorithms(op) if a.name == "chunks")
    variant = algorithm.variants(problem, target)[0] if config is None else algorithm.variants(problem, target)[config]
    (launch,) = variant.build(problem, target, variant.config)
    return machine_code(launch.kernel, launch.signature, arch), variant.config


@pytest.mark.parametrize("op, words, loads, stores, blocks", [
    ("adamw_step", "1000000 f32", {128: 4}, {128: 3}, 8), ("sgd_step", "1000000 f32", {128: 3}, {128: 2}, 8),
    ("sgd_step", "1000000 f32 --states ,", {128: 2}, {128: 1}, 8), ("lion_step", "1000000 f32 --scaled", {128: 3}, {128: 2}, 8),
    ("adam_step", "1000000 bf16 --master --scaled", {128: 3}, {128: 3}, 6),
    ("adagrad_step", "200000000 f16 --narrow", {128: 3}, {128: 2}, 3),
    ("adamw_step", "1000000 f32 --states m,v,vmax --maximize", {128: 5}, {128: 4}, 6),
    ("rmsprop_step", "1000000 f32 --states v,means,momenta", {128: 5}, {128: 4}, 6)])
def test_every_array_is_read_and_written_by_16_bytes(op, words, loads, stores, blocks):
    code, config = assembled(op, words)
    assert {w: n for w, n in accesses(code, "LDG").items() if w == 128} == loads
    assert {w: n for w, n in accesses(code, "STG").items() if w == 128} == stores
    assert config.elements == (8 if "narrow" in words else 4)
    assert not code.doubles and not code.divisions
    assert -(-code.registers // 8) * 8 * 256 * blocks <= 65536


@pytest.mark.parametrize("words, config", [("1000000,7 f32", 1), ("1000,7 bf16 --master", 1), ("9 f16 --narrow --scaled", 0)])
def test_nothing_is_spilled(words, config):
    for op in ("adamw_step", "rmsprop_step"):
        assembled(op, words, config=config)
        assembled(op, words, "sm_80", config=config)
    for op, states in (("adamw_step", "m,v,vmax"), ("rmsprop_step", "v,means,momenta")):
        assembled(op, f"{words} --states {states}", config=config)


def test_all_loads_are_under_way_before_the_first_is_waited_for():
    code, _ = assembled("adamw_step", "1000000 bf16 --master")
    names = [line.split()[0] for line in code.lines]
    at = [k for k, name in enumerate(names) if name.startswith("LDG") and (".128" in name or ".64" in name and "CONSTANT" not in name)]
    last = [k for k in at if ".128" in names[k]][-1]
    between = names[[k for k in at if ".128" in names[k]][0]:last]
    assert not any(name.startswith(("FMUL", "FFMA", "FADD", "MUFU")) for name in between), between


@pytest.mark.parametrize("words, loads", [("100000000 f32", 4), ("100000000 bf16 --scaled", 2), ("100000000 f32 --scaled", 4)])
def test_clipping_reads_and_writes_16_bytes(words, loads):
    problem, target = parse_problem(words.split(), "clip_grad_norm"), device("sm_90a")
    algorithm = next(a for a in dispatch.algorithms("clip_grad_norm") if a.name == "chunks")
    first, second = algorithm.build(problem, target, None)
    for launch, stores in ((first, 0), (second, loads)):
        code = machine_code(launch.kernel, launch.signature)
        assert accesses(code, "LDG")[128] == loads and accesses(code, "STG").get(128, 0) == stores
        assert not code.doubles and not code.divisions and code.registers <= 64
    assert first.grid[0] <= 8 * target.sms and algorithm.workspace(problem, target, None) == 8 * first.grid[0]


@pytest.mark.parametrize("words, reads, writes", [("100000000 f32", (4, 3), (2, 1)), ("100000000 bf16 --master --scaled", (3, 3), (2, 1))])
def test_lambs_three_launches(words, reads, writes):
    problem, target = parse_problem(words.split(), "lamb_step"), device("sm_90a")
    algorithm = next(a for a in dispatch.algorithms("lamb_step") if a.name == "chunks")
    first, between, last = algorithm.build(problem, target, None)
    for launch, loads, stores in ((first, reads[0], writes[0]), (last, reads[1], writes[1])):
        code = machine_code(launch.kernel, launch.signature)
        assert accesses(code, "LDG")[128] == loads and accesses(code, "STG")[128] == stores
        assert not code.doubles and not code.divisions and code.registers <= 64
    assert between.grid == (1, 1, 1)
