"""What the kernels that move elements compile to: 16-byte accesses on both sides, as many in flight as they say, none to local memory."""
import pytest

from dnnkern import dispatch
from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from sass import machine_code  # noqa: E402
from test_ptx import device  # noqa: E402

from dnnkern.host.tensor import Tensor  # noqa: E402
from dnnkern.transform._cast_problem import make_cast_problem  # noqa: E402
from dnnkern.transform._parse import parse_problem  # noqa: E402
from dnnkern.transform._problem import make_problem  # noqa: E402
from dnnkern.transform.window._problem import make_col2im_problem, make_im2col_problem  # noqa: E402

ITEMSIZE = {"int8": 1, "bfloat16": 2, "float32": 4, "float64": 8}


def assembled(problem, algo, arch="sm_90a", config=None):
    """The algorithm's only kernel, and its launch."""
    target = device(arch)
    algorithm = next(a for a in dispatch.algorithms(problem.op) if a.name == algo)
    assert algorithm.supports(problem) is None, algorithm.supports(problem)
    config = config or algorithm.configured(problem, target).config
    (launch,) = algorithm.build(problem, target, config)
    return machine_code(launch.kernel, launch.signature, arch), launch


def transposition(shape, axes, dtype, **more):
    return make_problem((Tensor.packed(shape, dtype, **more),), None, axes, frozenset())


def accesses(code, kind):
    """Widths in bits, by how often: {128: 8}; LDG with no width is 32 bits."""
    found = {}
    for name in code.opcodes(kind):
        width = next((int(w) for w in ("128", "64") if f".{w}" in name), 16 if ".U16" in name or ".S16" in name else
                     8 if ".U8" in name or ".S8" in name else 32)
        found[width] = found.get(width, 0) + 1
    return found


@pytest.mark.parametrize("dtype", ITEMSIZE)
def test_tiles_move_16_bytes_everywhere(dtype):
    """V loads of 16 bytes in flight, V stores to and V loads from shared memory."""
    problem = transposition((64, 128, 48, 128), (0, 2, 3, 1), dtype)
    side = 16 // ITEMSIZE[dtype]
    for variant in next(a for a in dispatch.algorithms("transpose") if a.name == "tiled").variants(problem, device("sm_90a"))[:2]:
        code, launch = assembled(problem, "tiled", config=variant.config)
        assert accesses(code, "LDG") == {128: side} and accesses(code, "STS") == {128: side}
        assert set(accesses(code, "LDS")) == set(accesses(code, "STG")) == {128}
        threads = launch.block[0]
        resident = min(65536 // (-(-code.registers // 8) * 8 * threads), 2048 // threads, 233472 // (variant.config.nbytes + 1024))
        assert resident >= variant.config.blocks
        # bytes under way in a multiprocessor: a copy's rate takes 32 KB at least
        assert 16 * side * threads * resident >= 64 << 10, variant


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("shape, axes", [((128, 512, 7, 7), (0, 2, 3, 1)), ((128, 14, 14, 512), (0, 3, 1, 2))])
def test_planes_move_16_bytes_on_both_sides(shape, axes, dtype):
    """Whatever the size of a plane: all loads of a thread, then as many stores; single elements meet shared memory alone."""
    problem = transposition(shape, axes, dtype)
    config = next(a for a in dispatch.algorithms("transpose") if a.name == "planes").configured(problem, device("sm_90a")).config
    code, launch = assembled(problem, "planes", config=config)
    assert accesses(code, "LDG") == accesses(code, "STG") == {128: config.loads}
    chunks, single = ("STS", "LDS") if config.gathers else ("LDS", "STS")
    assert accesses(code, chunks) == {128: config.loads} and accesses(code, single) == {8 * config.itemsize: config.loads * config.side}
    assert code.registers * launch.block[0] * config.blocks <= 65536


@pytest.mark.parametrize("words, op, loads, stores", [
    ("64x3x224x224 f16 16", "space_to_depth", {128: 2}, 64), ("40x3x448x448 f16 64", "space_to_depth", {128: 5}, 128),
    ("128x304x7x7 e4m3 0,2,3,1", "transpose", {128: 4}, 128), ("64x7x7x340 e4m3 0,3,1,2", "transpose", {32: 4}, 32),
    ("64x3x224x224 bf16 16x16 s16", "col2im", {128: 2}, 128)])
def test_boxes_move_vectors_on_both_sides(words, op, loads, stores):
    """All loads of a thread are in flight together; single elements meet shared memory alone, and nothing local memory."""
    problem, algo = parse_problem(words.split(), op), "permuted" if op == "col2im" else "staged"
    code, launch = assembled(problem, algo)
    assert accesses(code, "LDG") == loads and set(accesses(code, "STG")) == {stores}
    single = 8 * problem.x.itemsize
    assert single in accesses(code, "STS") or single in accesses(code, "LDS")
    assert not code.count("LDL") + code.count("STL") and code.registers <= 64
    assert code.registers * launch.block[0] * 4 <= 65536


@pytest.mark.parametrize("dtype, permutations", [("bfloat16", 32), ("int8", 128)])
def test_squares_change_places_in_registers(dtype, permutations):
    """Half an instruction an element."""
    code, _ = assembled(transposition((4096, 4096), (1, 0), dtype), "tiled")
    assert permutations <= code.count("PRMT") <= permutations + 16


@pytest.mark.parametrize("unit, pixels", [(2, 49), (4, 98), (8, 196), (16, 784)])
def test_units_follow_the_alignment(unit, pixels):
    code, _ = assembled(transposition((32, 64, pixels), (0, 2, 1), "float16"), "tiled")
    assert set(accesses(code, "LDG")) == {8 * unit} and set(accesses(code, "STG")) == {128}
    code, _ = assembled(transposition((32, pixels, 64), (0, 2, 1), "float16"), "tiled")
    assert set(accesses(code, "LDG")) == {128} and set(accesses(code, "STG")) == {8 * unit}


def test_rows_and_few_channels_move_16_bytes():
    for algo, problem in (("copy", transposition((32, 512, 16, 64), (0, 2, 1, 3), "float16")),
                          ("few", transposition((64, 3, 224, 224), (0, 2, 3, 1), "float16")),
                          ("few", transposition((64, 224, 224, 4), (0, 3, 1, 2), "int8"))):
        code, _ = assembled(problem, algo)
        assert set(accesses(code, "LDG")) == set(accesses(code, "STG")) == {128}, algo


def test_32_bit_offsets_until_they_do_not_fit():
    small, large = (transposition((n, 64, 4096), (0, 2, 1), "float16") for n in (64, 16384))
    codes = [assembled(problem, "tiled") for problem in (small, large)]
    assert [launch.arguments[-1].type for _, launch in codes] == ["int32x2", "int64x2"]


@pytest.mark.parametrize("dtype", ITEMSIZE)
def test_rows_that_begin_anywhere_move_16_bytes(dtype):
    """Two loads a chunk and one store, beside the accesses of single elements at the ends of rows."""
    single, per = 8 * ITEMSIZE[dtype], 16 // ITEMSIZE[dtype]
    problem = parse_problem(["64x1001x999", dtype, ":,1:,3:-2"], "strided_slice")
    for variant in next(a for a in dispatch.algorithms("strided_slice") if a.name == "rows").variants(problem, device("sm_90a")):
        code, _ = assembled(problem, "rows", config=variant.config)
        n = variant.config.chunks
        wide = {128: n, 64: n + n * per} if single == 64 else {128: 2 * n, single: n * per}  # of a second chunk half is of use, at most
        assert accesses(code, "LDG") == wide and accesses(code, "STG") == {128: 2 * n, single: n * per}
        assert not code.divisions and not code.doubles
        assert code.registers <= 64
    code, _ = assembled(parse_problem(["64x1001x999", dtype, ":,:,::-1"], "strided_slice"), "rows")
    assert accesses(code, "LDG") == {single: per} and accesses(code, "STG") == {128: 1, single: per}


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
@pytest.mark.parametrize("dtype", ITEMSIZE)
def test_borders_move_16_bytes(dtype, mode):
    """x's part as rows that begin anywhere; of a value 16 bytes at once."""
    n, single, per = 2, 8 * ITEMSIZE[dtype], 16 // ITEMSIZE[dtype]
    problem = parse_problem(["32x64x225x225", dtype, "0,0,1,1:2", mode], "pad")
    config = next(a for a in dispatch.algorithms("pad") if a.name == "rows").configs(problem, device("sm_90a"))[0]
    code, _ = assembled(problem, "rows", config=config)
    wide = {128: n, 64: n + n * per} if single == 64 else {128: 2 * n, single: n * per}
    assert accesses(code, "LDG") == wide
    assert accesses(code, "STG") == {128: n * (3 if mode == "constant" else 2), single: n * per}
    assert not code.divisions and (dtype == "float64" or not code.doubles)
    assert code.registers <= 64


@pytest.mark.parametrize("words, staged", [("64x224x224x3 {} 0,0,0,0:1", True), ("64x224x224x3 {} 0,0,0,0:2 edge", True),
                                           ("32x64x225x225 {} 0,0,1,1:2", False), ("32x64x225x225 {} 0,0,1,1:2 reflect", False),
                                           ("32x5x5x3 {} 0,1,2,1", False)])
@pytest.mark.parametrize("dtype", ITEMSIZE)
def test_borders_in_one_run_move_16_bytes(dtype, words, staged):
    """Loads of 16 bytes to shared memory, or of vectors within a row; one store a vector, beside those at the ends of y."""
    problem = parse_problem(words.format(dtype).split(), "pad")
    variants = next(a for a in dispatch.algorithms("pad") if a.name == "flat").variants(problem, device("sm_90a"))
    assert any(v.config.staged for v in variants) == staged
    for config in (v.config for v in variants):
        code, _ = assembled(problem, "flat", config=config)
        wide = {128: config.turns if config.staged else config.chunks * (1 if ITEMSIZE[dtype] == 8 else 2) if config.dense else 0}
        assert accesses(code, "LDG").get(128, 0) == accesses(code, "STS").get(128, 0) + wide[128] * (not config.staged) == wide[128]
        assert accesses(code, "STG")[128] == config.chunks * (1 + (config.dense and not config.listed)) + config.listed
        assert not code.divisions
        assert code.registers <= 64 and (dtype == "float64" or not code.doubles)


@pytest.mark.parametrize("words", ["64x64x224x224 {} 0,0,1,1", "64x224x224x64 {} 0,1,1,0", "4x4x4x4x4x4x4x40 {} 1,1,1,1,1,1,1,1"])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_gradients_of_borders_move_16_bytes(dtype, mode, words):
    """Two loads a chunk and one store where each element has one copy; as many again for the sums, once a block that lists them."""
    problem = parse_problem([*words.format(dtype).split(), mode], "pad_bwd")
    for variant in next(a for a in dispatch.algorithms("pad_bwd") if a.name == "rows").variants(problem, device("sm_90a")):
        code, _ = assembled(problem, "rows", config=variant.config)
        n, loads, listed = variant.config.chunks, 1 if dtype == "float64" else 2, variant.config.listed
        sums = (1 if listed else n) * (mode != "constant") + listed
        assert accesses(code, "LDG")[128] == (n + sums) * loads and accesses(code, "STG")[128] == n + (1 if listed else n)
        assert code.registers <= 65536 // (256 * variant.config.blocks) and (dtype == "float64" or not code.doubles)


@pytest.mark.parametrize("dtype", ITEMSIZE)
def test_a_batch_of_arrays_moves_16_bytes(dtype):
    """As rows do; which array it is costs registers alone."""
    single, per = 8 * ITEMSIZE[dtype], 16 // ITEMSIZE[dtype]
    problem = parse_problem(["64x1000,64x24,64x333,64x77", dtype, "1"], "concat")
    for variant in next(a for a in dispatch.algorithms("concat") if a.name == "batch").variants(problem, device("sm_90a")):
        code, launch = assembled(problem, "batch", config=variant.config)
        n = variant.config.chunks
        wide = {128: n, 64: n + n * per} if single == 64 else {128: 2 * n, single: n * per}
        assert accesses(code, "LDG") == wide and accesses(code, "STG") == {128: 2 * n, single: n * per}
        assert not code.divisions and (dtype == "float64" or not code.doubles)
        assert code.registers <= (80 if dtype == "int8" else 64)


def test_filling_stores_16_bytes():
    code, _ = assembled(parse_problem(["1048577", "float16"], "set_tensor"), "rows")
    assert 128 in accesses(code, "STG") and not code.doubles


def test_aligned_parts_are_plain_copies():
    for text, op, algo in (("64x56x56x96 f16 :,:,:,32:64", "strided_slice", None), ("64x512x28x28,64x512x28x28 f16 1", "concat", "boxes")):
        problem = parse_problem(text.split(), op)
        algorithm = dispatch.get_algorithm(op, problem, algo=algo, device=device("sm_90a"))
        for launch in algorithm.build(problem, device("sm_90a"), algorithm.config):
            code = machine_code(launch.kernel, launch.signature)
            assert set(accesses(code, "LDG")) == set(accesses(code, "STG")) == {128}, op


def window(op, shape, dtype, *parameters):
    problem = make_im2col_problem((Tensor.packed(shape, dtype),), None, *parameters, frozenset())
    return problem if op == "im2col" else make_col2im_problem((problem.columns,), None, shape, *parameters, frozenset())


def test_windows_move_chunks():
    last = window("im2col", (32, 56, 56, 64), "float16", 3, 1, 1, 1, "NHWC")
    code, launch = assembled(last, "tiled")
    assert set(accesses(code, "LDG")) == set(accesses(code, "STG")) == {128}
    first = window("im2col", (32, 64, 56, 56), "float16", 3, 1, 1, 1, "NCHW")
    code, _ = assembled(first, "tiled")
    assert accesses(code, "LDG") == {16: 10} and accesses(code, "STG") == {128: 3}, "10 elements make 3 chunks of 8"
    code, _ = assembled(window("im2col", (32, 224, 224, 3), "float16", 7, 2, 3, 1, "NHWC"), "gather")
    assert accesses(code, "LDG") == {16: 8} and accesses(code, "STG") == {128: 1}
    code, _ = assembled(window("col2im", (32, 56, 56, 64), "float16", 3, 1, 1, 1, "NHWC"), "gather")
    assert accesses(code, "LDG") == {128: 3} and accesses(code, "STG") == {128: 1}, "a row of taps in flight"
    code, _ = assembled(window("col2im", (32, 3, 224, 224), "float16", 7, 2, 3, 1, "NCHW"), "matching")
    assert accesses(code, "LDG") == {16: 16} and accesses(code, "STG") == {64: 1}, "4 taps of 7 for each of 4 pixels"


def test_fast_kernels_do_not_divide():
    for problem, algo in ((window("im2col", (32, 64, 56, 56), "float16", 3, 2, 1, 1, "NCHW"), "tiled"),
                          (window("im2col", (32, 64, 7, 7), "float16", 3, 2, 1, 1, "NCHW"), "gather"),
                          (window("col2im", (32, 64, 56, 56), "float16", 3, 2, 1, 1, "NCHW"), "gather"),
                          (window("col2im", (32, 64, 56, 56), "float16", 3, 2, 1, 1, "NCHW"), "matching"),
                          (transposition((13, 17, 19, 64), (2, 1, 0, 3), "float16"), "copy")):
        code, _ = assembled(problem, algo)
        assert not code.divisions and not code.opcodes("MUFU", "I2F"), algo


@pytest.mark.parametrize("x_dtype, y_dtype, loads, stores", [
    ("float32", "bfloat16", {128: 2}, {128: 1}), ("bfloat16", "float32", {128: 1}, {128: 2}), ("float32", "float8_e5m2", {128: 2}, {64: 1}),
    ("float16", "float8_e4m3fn", {128: 2}, {128: 1}), ("int8", "float32", {64: 1}, {128: 2}), ("float32", "float32", {128: 1}, {128: 1})])
def test_casts_move_runs(x_dtype, y_dtype, loads, stores):
    """Beside the accesses of single elements at the end of a row."""
    problem = make_cast_problem((Tensor.packed((1 << 20,), x_dtype),), None, y_dtype, True, frozenset())
    code, _ = assembled(problem, "vector")
    for kind, wanted in (("LDG", loads), ("STG", stores)):
        found = accesses(code, kind)
        assert all(found.get(width, 0) == count for width, count in wanted.items()), (kind, found)
    assert not code.doubles


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("op, words, loads", [("resample_fwd", "64x64 {} 128x128 bilinear", 4), ("resample_fwd", "64x64 {} 128x128", 1),
                                              ("resample_fwd", "16x32x32 {} 32x64x64 bilinear", 8),
                                              ("resample_bwd", "64x64 {} 128x128 bilinear", 2)])
def test_resampled_images_move_16_bytes(op, words, loads, dtype):
    """Of channels all that a place is made of; of pixels of a row single elements, which are stored together."""
    code, _ = assembled(parse_problem(f"8x64x{words.format(dtype)} nhwc".split(), op), "chunks")
    assert accesses(code, "LDG") == {128: loads} and accesses(code, "STG") == {128: 1}
    assert not code.divisions and (dtype == "float64" or not code.doubles)
    code, _ = assembled(parse_problem(f"8x64x{words.format(dtype)}".split(), op), "chunks")
    if op == "resample_fwd":
        assert accesses(code, "LDG") == {8 * ITEMSIZE[dtype]: loads * 16 // ITEMSIZE[dtype]} and accesses(code, "STG")[128] == 1
    assert not code.divisions and (dtype == "float64" or not code.doubles)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("words, taps", [("16x64x128x128 {} 256x256 bicubic", (4, 4)), ("16x64x64x64 {} 128x128 bilinear", (2, 2)),
                                         ("64x3x512x512 {} 224x224 bicubic antialias", (10, 10)), ("8x64x4000 {} 16000 bicubic", (1, 4))])
def test_tiles_of_planes_keep_weights_and_rows_in_registers(words, taps, dtype):
    """Pixels are loaded 16 bytes at once, several in flight; a row of them is so many loads of shared memory for each column."""
    from sass import assembled as compiled
    problem, target, size = parse_problem(words.format(dtype).split(), "resample_fwd"), device("sm_90a"), ITEMSIZE[dtype]
    algorithm = next(a for a in dispatch.algorithms("resample_fwd") if a.name == "tiles")
    found = {}
    for variant in algorithm.variants(problem, target):
        (launch,) = variant.build(problem, target, variant.config)
        found[launch.kernel] = variant.config, launch
    assert len(found) == (1 if size == 8 else 2 if sum(taps) <= 12 or "512" in words else 1), "one for each number of columns"
    for config, launch in found.values():
        code = compiled(launch.kernel, launch.signature, "sm_90a")
        assert (config.kh, config.kw) == taps and accesses(code, "LDG") == {128: 4}
        ((width, stores),) = accesses(code, "STG").items()  # of one output row, or more in a turn of the loop
        assert width == 8 * config.stored and stores % (config.columns * size // config.stored) == 0
        assert config.stored == size * (1 if size == 8 or "512" in words else 2)
        assert accesses(code, "LDS").get(8 * max(size, 4), 0) >= config.columns * config.kw
        assert (code.stack, code.spilled) == (0, 0) and not code.opcodes("LDL", "STL")
        assert dtype == "float64" or not code.doubles and not code.calls
        assert code.registers * 256 * (2 if sum(taps) * config.columns * max(size, 4) > 128 else 3) <= 65536


@pytest.mark.parametrize("words", ["16x256x64x64 {} 128x128 bilinear", "16x256x64x64 {} 128x128", "32x21x65x65 {} 513x513 bilinear"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_gradients_of_resampled_images_share_their_weights(words, dtype):
    """A load for each of the channels of a place, all under way together."""
    code, _ = assembled(parse_problem(words.format(dtype).split(), "resample_bwd"), "chunks")
    channels = {"3": 11, "1": 16}[words[0]] if dtype != "float64" else {"3": 7, "1": 8}[words[0]]
    ((width, loads),) = accesses(code, "LDG").items()  # of one place, or more in a turn of the loop
    assert width == 8 * ITEMSIZE[dtype] and loads % channels == 0 and accesses(code, "STG") == {width: channels}
    assert code.registers * 256 * 3 <= 65536
    assert not code.divisions and (dtype == "float64" or not code.doubles)


@pytest.mark.parametrize("words, instructions", [("bf16 32", 176), ("f32 32", 176), ("bf16 16 --to float4_e2m1fn_x2", 480)])
def test_scaled_blocks_move_16_bytes(words, instructions):
    """Every array once, in units of a thread's sixteen elements; scales are bytes."""
    for op in ("block_scale_quantize", "block_scale_dequantize"):
        problem = parse_problem(f"4096x4096 {words}".split(), op)
        code, _ = assembled(problem, "lanes")
        wide, narrow = {128: problem.wide.itemsize}, {128 // problem.packed: 1, 8: 1}
        given = (wide, narrow) if problem.quantizes else ({**narrow}, wide)
        assert (accesses(code, "LDG"), accesses(code, "STG")) == given
        assert not (code.stack or code.spilled or code.calls or code.divisions or code.doubles)
        assert code.registers <= 64 and len(code.lines) <= instructions, len(code.lines)
