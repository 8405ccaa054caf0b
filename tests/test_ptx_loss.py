"""What the kernels of losses compile to: 16-byte accesses, each row read once, no stray float64, nothing in local memory."""
import pytest

from dnnkern import dispatch
from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from sass import assembled  # noqa: E402
from test_ptx import device  # noqa: E402
from test_ptx_transform import accesses  # noqa: E402

from dnnkern.loss._parse import parse_problem  # noqa: E402

VOCABULARY = "8192x50257 bf16"


def variants(op, words, algo, most=2, arch="sm_90a"):
    """(algorithm bound to a configuration, [(name of a kernel, its code, launch), ...]) of the most promising configurations."""
    problem, target = parse_problem(words.split(), op), device(arch)
    algorithm = next(a for a in dispatch.algorithms(op) if a.name == algo)
    assert algorithm.supports(problem) is None
    for variant in algorithm.variants(problem, target)[:most]:
        yield variant, [(launch.kernel.py_func.__name__, assembled(launch.kernel, launch.signature, arch), launch)
                        for launch in variant.build(problem, target, variant.config)]


@pytest.mark.parametrize("op", ["cross_entropy_fwd", "cross_entropy_bwd"])
@pytest.mark.parametrize("words", [VOCABULARY, "4096x128256 f32", "8192x50257 f16 --smoothing 0.1 --weight", "65536x10 f32",
                                   "8192x32000 bf16 --targets soft", "1048576x128 bf16 --smoothing 0.1"])
def test_rows_are_read_by_16_bytes(op, words):
    """Registers are what the configuration promises the multiprocessor; probabilities are read twice backward, all else once."""
    for variant, kernels in variants(op, words, "rows"):
        code = next(code for name, code, _ in kernels if name.endswith("rows"))
        config, times = variant.config, 1 if "soft" not in words else 2 if op.endswith("fwd") else 3
        assert accesses(code, "LDG.").get(128, 0) >= config.registers * times, variant
        assert not code.doubles and not code.divisions
        assert code.registers * config.threads * config.blocks <= 65536, variant
        if op.endswith("bwd"):
            assert accesses(code, "STG")[128] >= config.registers


@pytest.mark.parametrize("op", ["cross_entropy_fwd", "cross_entropy_bwd"])
def test_a_vocabulary_has_many_loads_under_way(op):
    """48 KB in a multiprocessor at least, and few enough instructions for an element: 8 of them a unit, 32 or 64 a turn."""
    for variant, kernels in variants(op, VOCABULARY, "rows"):
        name, code, launch = next(k for k in kernels if k[0].endswith("rows"))
        config = variant.config
        assert config.registers * 16 * config.threads * config.blocks >= 48 << 10, variant
        assert code.count("MUFU.EX2") >= 8 * config.registers
        assert len(code.lines) <= 16 * 8 * config.registers + 420, (variant, len(code.lines))


def test_exponentials_are_two_instructions():
    """A product and a sum in one, and the exponential."""
    _, kernels = next(variants("cross_entropy_fwd", "4096x4096 f32", "rows"))
    code = next(code for name, code, _ in kernels if name.endswith("rows"))
    assert code.count("FFMA") >= 4 * 4 and code.count("MUFU.EX2") >= 4 * 4


@pytest.mark.parametrize("op", ["cross_entropy_fwd", "cross_entropy_bwd"])
@pytest.mark.parametrize("words", ["16x21x512x512 bf16", "8x19x512x1024 f32 --weight --smoothing 0.1", "4x21x128x128 f16 --targets soft"])
def test_columns_are_16_bytes_a_thread(op, words):
    for variant, kernels in variants(op, words, "columns"):
        code = next(code for name, code, _ in kernels if name.endswith("columns"))
        assert accesses(code, "LDG.").get(128, 0) >= variant.config.batch
        assert not code.doubles and not code.divisions
        if op.endswith("bwd"):
            assert accesses(code, "STG") == {128: variant.config.batch}


@pytest.mark.parametrize("op", ["cross_entropy_fwd", "cross_entropy_bwd"])
@pytest.mark.parametrize("words", ["1x1048576 bf16", "3x1048573 f32 --targets soft --weight"])
def test_pieces_of_rows(op, words):
    _, kernels = next(variants(op, words, "split"))
    names = [name for name, _, _ in kernels]
    assert names == (["cross_entropy_fwd_rows", "cross_entropy_fwd_merge", "loss_fold"] if op.endswith("fwd") else
                     ["cross_entropy_aims" if "soft" in words else "loss_weights", "cross_entropy_bwd_rows"])
    for _, code, launch in kernels:
        assert not code.doubles and not code.divisions
    assert max(launch.grid[0] for _, _, launch in kernels) >= 100


@pytest.mark.parametrize("op", ["mse_loss_fwd", "mse_loss_bwd"])
@pytest.mark.parametrize("words", ["16777216 bf16", "16777216 f32 --reduction none", "16777216 f16 --reduction none"])
def test_squared_differences_move_16_bytes(op, words):
    for variant, kernels in variants(op, words, "vector"):
        code = kernels[0][1]
        assert accesses(code, "LDG.")[128] >= 2 * variant.config.count, variant
        assert not code.doubles and not code.divisions
        if op.endswith("bwd") or "none" in words:
            assert accesses(code, "STG")[128] >= variant.config.count


@pytest.mark.parametrize("op", ["ctc_loss_fwd", "ctc_loss_bwd"])
@pytest.mark.parametrize("words", ["512x32x128 f32 64", "512x32x128 bf16 900", "512x4x128 f32 3800", "100x2x40 f64 1000"])
def test_states_stay_in_registers(op, words):
    """Whatever a thread holds; and one barrier a step: as many as steps are computed at once, and one before them."""
    (variant, kernels), = variants(op, words, "block", most=1)
    walk = next(k for k in kernels if k[0].endswith("_block"))
    _, code, launch = walk
    assert code.registers * launch.block[0] <= 65536
    assert bool(code.doubles) == ("f64" in words)
    assert code.count("BAR.SYNC") <= 9


@pytest.mark.parametrize("words, launches", [("8192x50257 bf16", 2), ("1x1048576 f32", 1), ("65536x10 f16 --reduction sum", 1)])
def test_flat_gradients_are_stored_by_16_bytes(words, launches):
    """An aligned store of each of two pieces; a division is a product. Few rows need no launch before."""
    for _, kernels in variants("nll_loss_bwd", words, "flat"):
        name, code, _ = kernels[-1]
        assert name == "nll_loss_bwd_flat" and len(kernels) == launches
        assert accesses(code, "STG")[128] == 2
        assert not code.doubles and not code.divisions and code.registers <= 64
