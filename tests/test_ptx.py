"""What every algorithm compiles to on each architecture it declares, without a GPU: no spills, no stack, no calls, no stray float64."""
import itertools

import cases
import pytest
from representative import DEVICES, REGISTERS, device, representative
from sass import assembled, ptx

from dnnkern import dispatch
from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from dnnkern.matmul._parse import parse_problem  # noqa: E402

# From sm_100 on NVVM takes another dialect, whose optimiser leaves a few small arrays of odd extents in local memory. Nothing was tuned
# there.
OPAQUE_POINTERS = ("sm_100a", "sm_120a")
STATIC_SHARED = 48 * 1024
# Operands of the products of which every tile for Hopper's tensor cores is compiled.
WGMMA = ("bf16 nt", "f16 tn", "f32 nt --math tf32", "i8 nt", "e4m3 nt", "e5m2 nt")


def _rows(full):
    for op in cases.modules():
        for number, algorithm in enumerate(dispatch.algorithms(op)):
            archs = [a for a in DEVICES if device(a).supports(algorithm.arch) is None]
            chosen = representative(op, algorithm)
            rows = itertools.product(chosen, archs)
            if not full:  # once, on an architecture and with a kind of problem that change from algorithm to algorithm
                rows = ((chosen[number % len(chosen)], archs[number % len(archs)]),)
            for case, arch in dict.fromkeys(rows):
                if algorithm.refusal(case.problem(), device(arch)) is None:
                    yield pytest.param(algorithm, case, arch, id=f"{op}-{algorithm.name}-{case.id}-{arch}")


def _tiles(full):
    """Every tile of `wgmma` in bfloat16; of other operands and of `wgmma_split_k` a few each; all of all with --full."""
    target = device("sm_90a")
    for algorithm in dispatch.algorithms("matmul"):
        if algorithm.name not in ("wgmma", "wgmma_split_k"):
            continue
        for j, words in enumerate(WGMMA):
            problem = parse_problem(["2048x2048x8192", *words.split()])
            configs = {c.tile: c for c in algorithm.configs(problem, target)}
            for k, (tile, config) in enumerate(configs.items()):
                if full or algorithm.name == "wgmma" and j == 0 or k % 9 == j:
                    yield pytest.param(algorithm, problem, config, id=f"{algorithm.name}-{tile}-{words}".replace(" ", "-"))


def pytest_generate_tests(metafunc):
    if metafunc.definition.name == "test_every_tile":
        metafunc.parametrize("algorithm, problem, config", list(_tiles(metafunc.config.getoption("--full"))))
    elif "arch" in metafunc.fixturenames:
        metafunc.parametrize("algorithm, case, arch", list(_rows(metafunc.config.getoption("--full"))))


def allows_double(problem):
    """Whether float64 belongs in the kernel: a float64 accumulator, or an int32 one that is scaled in float64 to stay exact."""
    return problem.compute == "float64" or problem.compute == "int32" and problem.epilogue.compute == "float64"


def check(launch, problem, arch):
    """Compile a launch's kernel; its machine code."""
    code = assembled(launch.kernel, launch.signature, arch)
    assert not code.slow, code.slow
    # on sm_120a ptxas makes of a bulk copy a system call, __cuda_syscall_cp_async_bulk_unicast
    is_system_call = arch == "sm_120a" and code.calls and "cp.async.bulk" in ptx(launch.kernel, launch.signature, arch)
    calls = [line for line in code.calls if not (is_system_call and line.startswith("CALL.ABS"))]
    assert not calls, f"a function is called: {calls[:5]}"
    assert allows_double(problem) or not code.doubles, f"float64 in a kernel that needs none: {code.doubles[:5]}"
    assert not code.spilled, code.report
    assert code.stack == 0 or arch in OPAQUE_POINTERS and code.stack <= 512, f"an array in local memory: {code.stack} bytes"
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    # registers are given out eight a thread and 256 a warp
    assert -(-code.registers // 8) * 8 * -(-threads // 32) * 32 <= REGISTERS, (code.registers, threads)
    assert code.shared <= STATIC_SHARED, f"{code.shared} bytes of static shared memory; what is more must be dynamic"
    assert code.shared + launch.shared <= device(arch).shared_per_block, (code.shared, launch.shared)
    return code


def test_what_it_compiles_to(algorithm, case, arch, request):
    """Products between other kernels, which matmul's own rows compile, only with --full."""
    problem, target = case.problem(), device(arch)
    bound = algorithm.configured(problem, target)
    assert bound.workspace(problem, target, bound.config) >= 0
    assert 0 < bound.estimate(problem, target, bound.config) < 1
    launches = bound.build(problem, target, bound.config)
    own = [x for x in launches if not x.kernel.py_func.__name__.startswith("matmul_")]
    launches = launches if request.config.getoption("--full") else own or launches
    for launch in {(launch.kernel, launch.signature, launch.block, launch.shared): launch for launch in launches}.values():
        check(launch, problem, arch)


def test_every_tile(algorithm, problem, config):
    """No tile for Hopper's tensor cores leaves registers, or makes its products wait for each other."""
    target, tile = device("sm_90a"), config.tile
    launch = next(x for x in algorithm.build(problem, target, config) if "wgmma" in x.kernel.py_func.__name__)
    code = check(launch, problem, "sm_90a")
    assert code.opcodes("HGMMA", "IGMMA", "QGMMA") and not code.waits_for_device
    assert code.moved_registers == tile.registers
    # as many blocks a multiprocessor as the tile says; each takes 1024 bytes of shared memory more
    assert code.registers * tile.threads * tile.blocks <= REGISTERS
    assert (launch.shared + 1024) * tile.blocks <= target.shared_per_sm


@pytest.mark.parametrize("name, words", [
    ("128x256", "4096x4096x4096 bf16 nt --bias --activation gelu"), ("256x128 cluster 2", "4096x4096x4096 f16 tn --activation mish"),
    ("64x192", "4096x4096x4096 bf16 nt --bias --activation swish"), ("128x128", "4095x4093x4095 bf16 nn --bias --activation gelu_tanh")])
def test_tiles_with_an_activation(name, words):
    """An epilogue of any length works on sums in registers."""
    problem, target = parse_problem(words.split()), device("sm_90a")
    algorithm = next(a for a in dispatch.algorithms("matmul") if a.name == "wgmma")
    config = next(c for c in algorithm.configs(problem, target) if str(c) == name)
    check(algorithm.build(problem, target, config)[-1], problem, "sm_90a")


def test_every_algorithm_and_architecture_is_compiled(request):
    """Each algorithm on one of the architectures that it has, on some algorithm each; with --full, all on all."""
    full = request.config.getoption("--full")
    rows = [p.values for p in _rows(full)]
    for op in cases.modules():
        for algorithm in dispatch.algorithms(op):
            archs = {arch for a, _, arch in rows if a is algorithm}
            able = {a for a in DEVICES if device(a).supports(algorithm.arch) is None}
            assert archs <= able and len(archs) >= (len(able) if full else 1) > 0, algorithm.arch
    assert {arch for _, _, arch in rows} == set(DEVICES)
