"""What the contract does not ask of grouped_matmul: rows without a group, offsets that make no sense, mistakes, and how it is found."""
import dataclasses

import contract
import labs
import numpy as np
import pytest
from cases import lay
from cases.grouped_matmul import GroupedMatmul
from cases.grouped_matmul_bwd_weights import Weights
from test_bad_input import Out, array

import dnnkern
from dnnkern import dispatch
from dnnkern.device import SIMULATED, cuda, i32
from dnnkern.dispatch import NotSupported
from dnnkern.dispatch import operation_of
from dnnkern.host import front
from dnnkern.host.operands import Operands
from dnnkern.matmul import GROUPED, OPERATION, GroupedMatmulProblem
from dnnkern.engine.hopper import Tile
from dnnkern.matmul._groups import group_of, likely_tiles, make_find_tile, most_tiles
from dnnkern.matmul._parse import FAMILY, parse_problem
from dnnkern.matmul._wgmma_cost import InLines
from dnnkern.engine.hopper_plan import Config
from kit import launch

NAMES = [a.name for a in dispatch.algorithms("grouped_matmul")]


def offsets_of(values):
    return labs.guarded(lay((len(values),), "int32"), np.array(values, np.float64)).array


def host(y):
    return np.asarray(y.tolist(), np.float64)


def dtype_for(algorithm):
    """float32, or the dtype that the algorithm takes."""
    device = dispatch.device_of(dispatch.current_device())
    for dtype in ("float32", "bfloat16"):
        problem = GroupedMatmul(f"rows-{dtype}", (8, 12), 16, 16, dtype).problem()
        if dispatch.refusal(next(a for a in dispatch.algorithms("grouped_matmul") if a.name == algorithm), problem, device) is None:
            return dtype
    pytest.skip("not on this device")


# ---- groups that begin anywhere

@pytest.mark.parametrize("algorithm", NAMES)
def test_columns_of_a_that_are_contiguous(algorithm):
    """Tiles begin at any row; a TMA box along rows would have to begin at a multiple of 16 bytes."""
    dtype, offsets = dtype_for(algorithm), (0, 9, 23)
    values = np.arange(24 * 16).reshape(16, 24) % 3 - 1.0, np.arange(2 * 16 * 16).reshape(2, 16, 16) % 5 - 2.0
    a = labs.guarded(lay((16, 24), dtype), values[0])
    b = labs.guarded(lay((2, 16, 16), dtype), values[1])
    y = host(dnnkern.grouped_matmul(a.array.T, b.array, offsets_of(offsets), algo=algorithm))
    for g in range(2):
        rows = slice(offsets[g], offsets[g + 1])
        np.testing.assert_array_equal(y[rows], values[0].T[rows] @ values[1][g])


# ---- rows without a group

@pytest.mark.parametrize("algorithm", NAMES)
@pytest.mark.parametrize("offsets", [(0, 2, 5), (0, 0, 0), (0, 9, 9), (0, 0, 17), (3, 11, 18), (17, 17, 20)])
def test_rows_of_no_group_are_not_written(algorithm, offsets):
    dtype = dtype_for(algorithm)
    a = labs.guarded(lay((20, 16), dtype), np.arange(320).reshape(20, 16) % 3)
    b = labs.guarded(lay((2, 16, 16), dtype), np.arange(512).reshape(2, 16, 16) % 5 - 2)
    y = labs.guarded(lay((20, 16), dtype), np.full((20, 16), 77.0))
    dnnkern.grouped_matmul(a.array, b.array, offsets_of(offsets), out=y.array, algo=algorithm)
    labs.synchronize()
    want = np.full((20, 16), 77.0)
    for g in range(2):
        rows = slice(offsets[g], offsets[g + 1])
        want[rows] = a.read()[rows] @ b.read()[g]
    assert np.array_equal(y.read(), want)
    y.assert_guards("y")


@pytest.mark.parametrize("algorithm", NAMES)
@pytest.mark.parametrize("offsets", [(-5, 3, 2 ** 31 - 1), (3, 7, 6), (-2 ** 31, -7, -1), (20, 90, 90), (9, 0, 20), (2 ** 31 - 1, 0, -3)])
def test_offsets_that_make_no_sense_stay_inside_the_arrays(algorithm, offsets):
    """The simulator raises on any access outside; the guards tell on a GPU."""
    dtype = dtype_for(algorithm)
    a, b = labs.guarded(lay((20, 16), dtype), np.ones((20, 16))), labs.guarded(lay((2, 16, 16), dtype), np.ones((2, 16, 16)))
    y = labs.guarded(lay((20, 16), dtype), np.full((20, 16), 77.0))
    dnnkern.grouped_matmul(a.array, b.array, offsets_of(offsets), out=y.array, algo=algorithm)
    labs.synchronize()
    y.assert_guards("y")
    assert set(np.unique(y.read())) <= {16.0, 77.0}


def test_values_of_offsets_are_checked_on_demand(monkeypatch):
    a, b, out = array((5, 3)), array((2, 3, 4)), Out((5, 4))
    monkeypatch.setattr(front, "CHECKS", frozenset({"values"}))
    for values, words in (((-1, 2, 5), "begins with -1; expected 0 or more"), ((0, 3, 2), r"group_offsets\[2\] is 2, group_offsets\[1\] 3"),
                          ((0, 3, 6), "ends with 6; a has 5 rows")):
        with pytest.raises(ValueError, match="grouped_matmul: .*" + words):
            dnnkern.grouped_matmul(a, b, offsets_of(values), out=out.array)
    labs.synchronize()
    out.guarded.assert_untouched("out")
    for values in ((0, 3, 5), (0, 0, 0), (0, 5, 5), (1, 2, 4)):
        dnnkern.grouped_matmul(a, b, offsets_of(values), out=out.array)


# ---- which group a row or tile has

@pytest.mark.parametrize("sizes", [(3, 0, 17, 1, 30), (0, 0, 0), (1,) * 33, (0,) * 40 + (5,), (16, 32, 0, 1),
                                   (64,) * 3 + (0,) * 31 + (1, 15)])
@pytest.mark.parametrize("tile_rows", [16, 24])
def test_every_row_is_in_one_tile_of_its_group(sizes, tile_rows):
    find_tile, G = make_find_tile(tile_rows), len(sizes)
    starts = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    rows = int(starts[-1]) + 3
    problem = parse_problem(f"{G}x{rows}x1x1 f32".split(), "grouped_matmul")
    tiles = most_tiles(problem, tile_rows)

    @cuda.jit(launch_bounds=32)
    def places(offsets, groups, rows, found, of_row):
        tile = i32(cuda.blockIdx.x)
        group, start, end, number = find_tile(tile, offsets, 1, groups, rows)
        if cuda.threadIdx.x == 31:
            first = i32(start + (tile - number) * tile_rows)
            found[i32(3 * tile)], found[i32(3 * tile + 1)], found[i32(3 * tile + 2)] = group, first if group >= 0 else i32(0), end
        for row in range(i32(cuda.threadIdx.x), rows, i32(32)):
            if cuda.blockIdx.x == 0:
                of_row[i32(row)] = group_of(row, offsets, 1, groups)
    found, of_row = np.full(3 * tiles, -9, np.int32), np.full(rows, -9, np.int32)
    launch(places, tiles, 32, starts, G, rows, found, of_row)
    want = [(g, first, starts[g + 1]) for g in range(G) for first in range(starts[g], starts[g + 1], tile_rows)]
    assert len(want) <= tiles
    assert [tuple(t) for t in found.reshape(-1, 3)] == want + [(-1, 0, 0)] * (tiles - len(want))
    assert of_row.tolist() == [g for g, size in enumerate(sizes) for _ in range(size)] + [G] * 3


@pytest.mark.parametrize("tile", [Tile(256, 128), Tile(128, 64), Tile(64, 192)], ids=str)
@pytest.mark.parametrize("sizes", [(100, 0, 70), (64, 150), (1, 130, 3)])
def test_tiles_that_small_products_do_not_get(tile, sizes):
    """Groups that end in the second half of a tile: of 256 rows, one warpgroup stores the first 64 through TMA, the others by itself."""
    algorithm = dataclasses.replace(next(a for a in dispatch.algorithms("grouped_matmul") if a.name == "wgmma"), config=Config(tile))
    case = GroupedMatmul("tiles-bf16", sizes, 200, 32, "bfloat16", tb=True)
    if contract.refusal(algorithm, case.problem()) is not None:
        pytest.skip("not on this device")
    contract.check(algorithm, case, **contract.ONCE)


# ---- mistakes

@pytest.mark.parametrize("error, words, change", [
    (ValueError, ["a gives K=3", "(5, 3)", "b gives K=7", "(2, 7, 4)"], {"b": ((2, 7, 4),)}),
    (ValueError, ["b gives K=4", "transposed"], {"transpose_b": True}),
    (ValueError, ["a has shape (3,)", "(M, K)"], {"a": ((3,),)}),
    (ValueError, ["b has shape (3, 4)", "(G, K, N)"], {"b": ((3, 4),)}),
    (ValueError, ["group_offsets has shape (2,)", "(3,)", "groups"], {"group_offsets": ((2,), "int32")}),
    (ValueError, ["group_offsets has shape (1, 3)", "(G + 1,)"], {"group_offsets": ((1, 3), "int32")}),
    (TypeError, ["group_offsets is int64", "int32"], {"group_offsets": ((3,), "int64")}),
    (ValueError, ["bias has shape (4,)", "(2, 4)"], {"bias": ((4,),)}),
    (TypeError, ["bias is float64"], {"bias": ((2, 4), "float64")}),
    (TypeError, ["a is float32 and b is float16"], {"b": ((2, 3, 4), "float16")}),
    (TypeError, ["scale_a is for an operand of float8_e4m3fn"], {"scale_a": ((1,),)}),
    (ValueError, ["math='exact'"], {"math": "exact"}),
    (TypeError, ["out is float32", "out_dtype", "bfloat16"], {"out_dtype": "bfloat16"}),
    (TypeError, ["b: got NoneType"], {"b": None}),
    (TypeError, ["group_offsets: got list"], {"group_offsets": [0, 1, 5]}),
    (NotSupported, ["'quantum'", *NAMES], {"algo": "quantum"})])
def test_mistakes(error, words, change):
    arguments = {"a": array((5, 3)), "b": array((2, 3, 4)), "group_offsets": offsets_of((0, 1, 5))}
    arguments.update({name: array(*v) if isinstance(v, tuple) else v for name, v in change.items()})
    out = Out((5, 4))
    with pytest.raises(error) as caught:
        dnnkern.grouped_matmul(arguments.pop("a"), arguments.pop("b"), arguments.pop("group_offsets"), out=out.array, **arguments)
    message = str(caught.value)
    assert message.startswith("grouped_matmul: ") and all(word in message for word in words), message
    labs.synchronize()
    out.guarded.assert_untouched("out")


@pytest.mark.parametrize("shape, words", [((5,), ["(5,)", "one element, (1, 1, 9)"]), ((1, 9), ["(1, 9)", "(1, 1, 9) by column"]),
                                          ((1, 2, 1), ["(1, 2, 1)", "blocks of 128x128"])])
def test_scales_have_a_matrix_a_group(shape, words):
    f8 = "float8_e4m3fn"
    with pytest.raises(ValueError, match="grouped_matmul: scale_b") as caught:
        dnnkern.grouped_matmul(array((5, 16), f8), array((1, 16, 9), f8), offsets_of((0, 5)), scale_b=array(shape))
    assert all(word in str(caught.value) for word in words), caught.value


def test_an_output_that_overlaps_an_operand():
    a, b = array((4, 4)), array((1, 4, 4))
    for out, name in ((a, "a"), (b[0], "b")):
        with pytest.raises(ValueError, match=f"same memory as {name}"):
            dnnkern.grouped_matmul(a, b, offsets_of((0, 4)), out=out)


def test_more_rows_than_offsets_can_count():
    from dnnkern.host.tensor import Tensor
    shapes = ((2 ** 31, 1), "int8"), ((1, 1, 1), "int8"), ((2,), "int32"), ((2 ** 31, 1), "int32")
    with pytest.raises(ValueError, match=r"a has 2147483648 rows; int32 offsets count to 2\*\*31 - 1"):
        GroupedMatmulProblem(*(Tensor.packed(*s) for s in shapes))


# ---- how it is found

def test_the_operations_of_the_folder_are_not_confused():
    for op in FAMILY:
        known = dispatch.algorithms(op)
        assert {a.op for a in known} == {op} and {"naive", "blocked"} <= {a.name for a in known}
        assert all(a.build.__module__ == f"dnnkern.matmul.{op}_{a.name}" for a in known)
    assert operation_of("grouped_matmul") is GROUPED and operation_of("matmul") is OPERATION
    assert set(FAMILY) == {"matmul", "grouped_matmul", "grouped_matmul_bwd_weights"}


def test_offsets_to_measure_on_are_offsets():
    problem = parse_problem("5x100x6x7 f32".split(), "grouped_matmul")
    with Operands(GROUPED, problem, dispatch.device_of(dispatch.current_device())) as operands:
        for slots in operands.sets:
            slot = slots["group_offsets"]
            values = operands.memory.read(slot.block, slot.start, 24).view(np.int32)
            assert values[0] == 0 and values[-1] == 100 and (np.diff(values) > 0).all() and len(set(np.diff(values))) > 1


@pytest.mark.parametrize("words, text", [
    ("8x64x32x16 bf16", "grouped_matmul 8 groups of 64x32x16 bfloat16 nn"),
    ("8x64x32x16 bf16 nt --bias --activation gelu --out-dtype f32",
     "grouped_matmul 8 groups of 64x32x16 bfloat16 nt -> float32 + bias, gelu"),
    ("2x64x32x16 e4m3 nt --dtype-b e5m2 --scales row", "grouped_matmul 2 groups of 64x32x16 float8_e4m3fn x float8_e5m2 nt -> bfloat16"
     " + scales by row and column"),
    ("2x64x32x16 f32 --math tf32 --alpha 2", "grouped_matmul 2 groups of 64x32x16 float32 nn math=tf32")])
def test_problems_in_words(words, text):
    problem = parse_problem(words.split(), "grouped_matmul")
    assert str(problem) == text
    assert FAMILY["grouped_matmul"][2](dispatch.problem_record(problem)) == problem


def test_problems_in_words_that_cannot_be():
    for words, part in (("8x64x32 bf16", "GxMxNxK"), ("8x64x32x16 bf16 tn", "invalid choice: 'tn'"), ("8x64x32x16 q9", "unknown dtype")):
        with pytest.raises(ValueError, match=f"^grouped_matmul: .*{part}"):
            parse_problem(words.split(), "grouped_matmul")
    with pytest.raises(ValueError, match="grouped_matmul: not a record"):
        FAMILY["grouped_matmul"][2]({})


@pytest.mark.skipif(not SIMULATED, reason="NumPy arrays")
@pytest.mark.parametrize("words, keywords", [("3x10x9x16 f32 nt", {"transpose_b": True}), ("3x10x9x16 f32 --bias --activation relu", {
    "bias": (3, 9), "activation": "relu"})])
def test_problems_in_words_are_those_of_calls(words, keywords):
    problem = parse_problem(words.split(), "grouped_matmul")
    arrays = {name: np.ones(shape, np.float32) for name, shape in keywords.items() if isinstance(shape, tuple)}
    GROUPED.forget()
    dnnkern.grouped_matmul(np.ones(problem.a.shape, np.float32), np.ones(problem.b.shape, np.float32), np.zeros(4, np.int32),
                           **{**keywords, **arrays})
    (bound,) = GROUPED.calls.values()
    assert bound.problem == problem


def test_work_is_counted():
    problem = GroupedMatmul("work-f32", (3, 5), 7, 11, bias=True).problem()
    assert problem.flops == 2 * 8 * 7 * 11 and problem.bytes == 4 * (8 * 11 + 2 * 11 * 7 + 3 + 8 * 7 + 2 * 7)
    assert host(dnnkern.grouped_matmul(array((2, 3)), array((1, 3, 4)), offsets_of((0, 2)))).tolist() == [[3.0] * 4] * 2


# ---- gradients of the matrices

def _by_wgmma(tile, case, kind=Config):
    """The algorithm with a tile; the test is skipped where it cannot run."""
    algorithm = dataclasses.replace(next(a for a in dispatch.algorithms(case.op) if a.name == "wgmma"), config=kind(tile))
    if contract.refusal(algorithm, case.problem()) is not None:
        pytest.skip("not on this device")
    return algorithm


@pytest.mark.parametrize("tile, sizes, k, n, more", [
    (Tile(128, 256), (70, 0, 1, 130), 200, 264, {}), (Tile(256, 192), (5, 64, 128), 136, 200, {"dtype": "float16"}),
    (Tile(128, 128, ping_pong=True), (65, 3, 200, 0), 264, 136, {}), (Tile(64, 64, blocks=2), (127, 1), 72, 90, {"out_dtype": "float32"}),
    (Tile(64, 256, ping_pong=True), (9, 100), 80, 257, {"first": 5, "spare": 7}),
    (Tile(128, 192), (66, 63), 77, 101, {"layout": {"a": {"misaligned": 1}, "dy": {"gap": 3}}})], ids=str)
def test_gradients_by_tiles_that_small_ones_do_not_get(tile, sizes, k, n, more):
    """Several steps, of which the last reaches into the next group; operands that are copied, results of every way to y."""
    case = Weights("tiles", sizes, k, n, **{"dtype": "bfloat16", **more})
    contract.check(_by_wgmma(tile, case), case, **contract.ONCE)


@pytest.mark.parametrize("tile, case", [
    (Tile(128, 192), Weights("lines", (66, 3), 130, 201, "bfloat16")),
    (Tile(64, 128, blocks=2), Weights("lines", (9, 70), 77, 130, "float16")),
    (Tile(256, 128), GroupedMatmul("lines", (100, 0, 170), 137, 40, "bfloat16", tb=True)),
    (Tile(128, 128, ping_pong=True), GroupedMatmul("lines", (63, 1, 66), 257, 40, "float16")),
    (Tile(64, 256), GroupedMatmul("lines", (64, 30), 90, 40, "bfloat16", tb=True, bias=True, layout={"y": {"gap": 1}}))], ids=str)
def test_results_that_leave_a_row_at_a_time(tile, case):
    """Rows that begin at any element, the last of a group and of a matrix, and columns that no box of 64 divides."""
    assert InLines(tile) in next(a for a in dispatch.algorithms(case.op) if a.name == "wgmma").configs(case.problem(), contract.device())
    contract.check(_by_wgmma(tile, case, InLines), case, **contract.ONCE)


@pytest.mark.parametrize("tile", [Tile(128, 128), Tile(64, 256, ping_pong=True)], ids=str)
def test_infinities_of_another_group_stay_there(tile):
    """The last step of a group reads rows of the next one, and zeros times infinity would be no number."""
    rng, sizes, k, n = np.random.default_rng(7), (20, 0, 44, 70, 10), 72, 80
    case = Weights("infinities", sizes, k, n, "bfloat16")
    algorithm, starts = _by_wgmma(tile, case), np.cumsum((0, *sizes))
    a, dy = rng.integers(-2, 3, (144, k)).astype(float), rng.integers(-2, 3, (144, n)).astype(float)
    a[64:134], dy[134:] = np.inf, np.nan
    arrays = {name: labs.guarded(lay(x.shape, "bfloat16"), x).array for name, x in (("a", a), ("dy", dy))}
    with contract.registered(algorithm) as mine:
        found = labs.host(case.call({**arrays, "group_offsets": offsets_of(starts)}, algo=mine.name))
    for g in (0, 1, 2):
        rows = slice(starts[g], starts[g + 1])
        np.testing.assert_array_equal(found[g], a[rows].T @ dy[rows])
    assert not np.isfinite(found[3]).all() and np.isnan(found[4]).all()


def test_gradients_take_offsets_of_any_values():
    """What is out of range reads rows that there are, and others that end before they begin give zeros."""
    a, dy = labs.array(np.ones((4, 2))), labs.array(np.ones((4, 3)))
    for algo in ("naive", "blocked"):
        found = labs.host(dnnkern.grouped_matmul_bwd_weights(a, dy, labs.array([-5, 3, 1, 99], "int32"), algo=algo))
        assert found[:, 0, 0].tolist() == [3, 0, 3] and (found == found[:, :1, :1]).all()


@pytest.mark.parametrize("change, error, text", [
    ({"a": (4, 2, 1)}, ValueError, r"a has shape \(4, 2, 1\); expected \(M, K\)"), ({"dy": (5, 3)}, ValueError, "a has 4 rows .* dy 5"),
    ({"group_offsets": (0,)}, ValueError, "one more than there are groups"), ({"math": "exact"}, ValueError, "math='exact'"),
    ({"out_dtype": "int8"}, TypeError, "out_dtype.* is int8"), ({"dtype": "float16"}, TypeError, "a is float16 and dy is float32")])
def test_bad_input_to_gradients(change, error, text):
    shapes = {"a": (4, 2), "dy": (4, 3), "group_offsets": (3,)}
    more = {name: change[name] for name in change if name not in (*shapes, "dtype")}
    dtypes = {"a": change.get("dtype", "float32"), "dy": "float32", "group_offsets": "int32"}
    given = {name: labs.array(np.zeros(change.get(name, shape)), dtypes[name]) for name, shape in shapes.items()}
    with pytest.raises(error, match="^grouped_matmul_bwd_weights: .*" + text):
        dnnkern.grouped_matmul_bwd_weights(**given, **more)


@pytest.mark.parametrize("groups, rows", [(64, 12288), (8, 4096), (128, 16384), (64, 384), (4, 3)])
@pytest.mark.parametrize("bm", [64, 128, 192, 256])
def test_likely_tiles_are_those_of_rows_that_choose_at_random(groups, rows, bm):
    """Within 3 % of what draws need, and at least a tile for each group of rows: empty ones count as if they had one."""
    problem = parse_problem([f"{groups}x{rows}x64x64", "bf16"], "grouped_matmul")
    drawn = np.random.default_rng(3).multinomial(rows, [1 / groups] * groups, size=2000)
    need = np.maximum(-(-drawn // bm), rows >= groups).sum(1).mean()
    assert likely_tiles(problem, bm) == pytest.approx(min(need, most_tiles(problem, bm)), rel=0.03, abs=1)
