"""What the contract does not reach of `wgmma` and `wgmma_split_k`: which tiles there can be, which operands are copied first, which block
works where, and for how long."""
import collections
import dataclasses
import itertools

import contract
import pytest
from cases.matmul import Matmul
from kit import needs

from dnnkern import dispatch
from dnnkern.device import SIMULATED
from dnnkern.device.epilogue import EpilogueSpec
from dnnkern.device.pointwise import Function
from dnnkern.device.program import Program, Step
from dnnkern.host.device import Device
from dnnkern.host.tensor import Tensor
from dnnkern.engine import hopper as engine
from dnnkern.engine import hopper_addend
from dnnkern.engine.hopper import Tile, make_matrix_loader
from dnnkern.engine.hopper_columns import paired_columns
from dnnkern.engine.hopper_stores import make_boxed_store, staged_addend
from dnnkern.matmul._parse import parse_problem
from dnnkern.matmul._wgmma_cost import InLines
from dnnkern.engine.roles import stored_by_rows
from dnnkern.engine.hopper_plan import (TILES, TIMES_OF_MATRICES, Config, locate_arguments, make_locate, operands_of, product_seconds,
                                        steps_of, tiles_for)

H200 = Device(index=0, name="H200", capability=(9, 0), arch="sm_90a", sms=132, shared_per_block=232448, shared_per_sm=233472,
              registers_per_sm=65536, l2_bytes=50 << 20, clock_hz=1.98e9, bandwidth=4.2e12, memory=1 << 37)
WGMMA, SPLIT = (next(a for a in dispatch.algorithms("matmul") if a.name == name) for name in ("wgmma", "wgmma_split_k"))


def parsed(words):
    return parse_problem(words.split())


# ---- tiles

@pytest.mark.parametrize("sizes, words", [
    (dict(bm=96), "tile of 96 rows; expected 64, 128, 192 or 256"),
    (dict(bn=132), "tile of 132 columns; expected a multiple of 8 up to 256"),
    (dict(bn=264), "tile of 264 columns"),
    (dict(bn=0), "tile of 0 columns"),
    (dict(cluster=3), "3 blocks a cluster, expected 1, 2, 4 or 8"),
    (dict(cluster=16), "16 blocks a cluster"),
    (dict(blocks=3), "3 a multiprocessor, expected 1 or 2"),
    (dict(bn=136, cluster=2), "2 blocks cannot share 136 columns of b evenly in groups of 8"),
    # 2 groups of 64 rows a warpgroup; (65536 - 128 * 40) / 256 = 236, in eights 232
    (dict(bm=256, bn=256), "tile 256x256: a thread keeps 256 sums and needs 24 registers more; 65536 registers for 1 blocks of 384 threads "
                           "leave it 232"),
    # (32768 - 128 * 40) / 256 = 108
    (dict(bn=192, blocks=2), "tile 128x192 2 blocks/SM: a thread keeps 96 sums and needs 24 registers more; 65536 registers for 2 blocks "
                             "of 384 threads leave it 104"),
    # they would do, but the launch gives 768 threads 80 registers each
    (dict(bn=128, blocks=2), r"128 \* 40 \+ 256 \* 104 = 31744 registers are more than the 384 \* 80 = 30720"),
])
def test_tiles_that_cannot_be(sizes, words):
    with pytest.raises(ValueError, match=words):
        Tile(**sizes)


def test_a_tile_that_shared_memory_does_not_hold(monkeypatch):
    """(100 KiB - 1280 bytes of barriers - 2 * 2 * 8192 of results) / (384 * 128 of a stage) = 1.3."""
    monkeypatch.setattr(engine, "SHARED_LIMIT", 100 * 1024)
    with pytest.raises(ValueError, match="tile 128x256: 102400 bytes of shared memory hold 1 blocks with 1 stages of 49152 bytes; the "
                                         "least is 2"):
        Tile(128, 256)


@pytest.mark.parametrize("tile", TIMES_OF_MATRICES, ids=str)
def test_tiles_fit(tile):
    producer, consumer = tile.registers
    assert tile.blocks * 128 * (producer + tile.consumers * consumer) <= H200.registers_per_sm
    assert tile.blocks * (tile.shared + 1024) <= H200.shared_per_sm and tile.shared <= H200.shared_per_block
    assert tile.stages * 16 + 1024 <= engine.BARRIERS, "barriers and what aligning the ring may cost"
    assert tile.boxes % tile.buffers == 0
    assert tile.sharing * tile.groups * 64 == tile.bm and tile.sums * 128 == tile.groups * 64 * tile.bn
    assert tile.stage % 1024 == tile.bm * engine.ROW % 1024 == 0, "every operand begins where the swizzle does"


def test_a_share_of_b_in_whole_boxes():
    """b contiguous along n arrives in boxes of 64 columns, which blocks of a cluster do not share."""
    by_k, by_n = tiles_for("k", "bfloat16"), tiles_for("mn", "bfloat16")
    assert set(by_n) == {t for t in by_k if t.cluster == 1 or t.bn // t.cluster % 64 == 0} and by_k == list(TILES)
    with pytest.raises(ValueError, match="shared in boxes of 64 columns; 96 are no multiple"):
        make_matrix_loader(Tile(128, 192, cluster=2), "bfloat16", "bfloat16", "k", "mn")


def test_sums_of_8_bit_floats_need_twice_the_registers():
    """Those of a step and those of the steps before: 2 * 64 + 32 of 232, but 2 * 128 + 32 of 232 are not there."""
    tiles = tiles_for("k", "float8_e4m3fn", tiles=tuple(TIMES_OF_MATRICES))
    assert Tile(128, 128) in tiles and Tile(128, 256) not in tiles and Tile(256, 128) not in tiles
    assert all(2 * t.sums + 32 <= t.registers[1] for t in tiles)
    assert {c.tile for c in WGMMA.configs(product("float8_e5m2"), H200)} == set(tiles)
    loader = make_matrix_loader(Tile(128, 256), "float8_e4m3fn", "float8_e4m3fn", "k", "k")
    with pytest.raises(ValueError, match="8-bit floats take 256 accumulators of one group and 32 registers; there are 232"):
        engine.make_product(Tile(128, 256), loader, None, None)


@needs(9)
@pytest.mark.parametrize("tile, words", [
    (Tile(128, 64, cluster=2), dict(tb=True)), (Tile(128, 128, cluster=2), dict(ta=True)), (Tile(64, 64, cluster=4), dict(tb=True)),
    (Tile(256, 64), dict(ta=True, tb=True)), (Tile(256, 192), dict(tb=True)), (Tile(128, 192), dict(bias="column", activation="relu")),
    (Tile(64, 64, blocks=2), dict(c="full", beta=2.0)), (Tile(128, 256), dict(tb=True, c="in place")),
    (Tile(256, 128), dict(c="full", bias="column", activation="relu")), (Tile(128, 128, ping_pong=True), dict(tb=True, c="in place")),
    (Tile(64, 256, ping_pong=True), dict(bias="row")), (Tile(64, 64, ping_pong=True), dict(ta=True)),
    (Tile(64, 64, cluster=2, ping_pong=True), dict(tb=True)),
    *((tile, dict(out_dtype="float32", **words)) for tile, words in (  # float32 arrays beside float32 results, through the ring and not
        (Tile(128, 256), dict(tb=True, program="two-inputs")), (Tile(64, 64), dict(program="chain")),
        (Tile(256, 128), dict(c="full", beta=2.0)), (Tile(128, 192), dict(bias="column", program="bias-gelu")),
        (Tile(128, 64, cluster=2), dict(tb=True, c="in place")), (Tile(64, 64, ping_pong=True), dict(program="two-inputs")),
        (Tile(64, 192), dict(tb=True, c="in place", bias="column")),
        (Tile(256, 64), dict(program="chain", c="full", bias="column", bias_dtype="bfloat16"))))], ids=str)
def test_tiles_that_small_products_do_not_get(tile, words, few_multiprocessors):
    """Several tiles, some of them one block's, steps that go round the ring, and edges."""
    case = Matmul(f"{tile}", *(200, 136, 330) if SIMULATED else (3000, 1400, 600), "bfloat16", **words)
    contract.check(dataclasses.replace(WGMMA, config=Config(tile)), case, **contract.ONCE)


@needs(9)
@pytest.mark.parametrize("tile, words", [
    (Tile(128, 256), dict(tb=True)), (Tile(256, 128), dict(alpha=2.0, bias="row", activation="relu")),
    (Tile(64, 64, blocks=2), dict(ta=True)), (Tile(128, 128, ping_pong=True), dict(batch_a=(2,), batch_b=(2,))),
    (Tile(128, 128, cluster=2), dict(tb=True))], ids=str)
@pytest.mark.parametrize("n", [135, 138])
def test_results_that_leave_a_row_at_a_time(tile, words, n, few_multiprocessors):
    """Rows of an odd number of elements, half of which begin between words, or of an even one that is no multiple of 16 bytes."""
    case = Matmul(f"lines-{tile}", 201, n, 301, "bfloat16", **words)
    assert InLines(tile) in WGMMA.configs(case.problem(), H200)
    contract.check(dataclasses.replace(WGMMA, config=InLines(tile)), case, **contract.ONCE)


def test_results_that_cannot_leave_a_row_at_a_time():
    """Those of other widths, those whose epilogue reads another matrix or pairs of columns, and those that TMA writes."""
    for n, words in ((71, dict(c="full")), (71, dict(bias="column")), (71, dict(out_dtype="float32")), (70, dict(program="chain")),
                     (72, {})):
        configs = WGMMA.configs(Matmul("lines", 64, n, 64, "bfloat16", **words).problem(), H200)
        assert configs and not any(isinstance(config, InLines) for config in configs), words
    assert any(isinstance(c, InLines) for c in WGMMA.configs(Matmul("lines", 64, 70, 64, "bfloat16", bias="column").problem(), H200))


def test_long_rows_that_are_copied_begin_at_lines_of_the_l2():
    a, b = operands_of(stored_by_rows(parse_problem("500x300x1001 bf16 nt".split())), None)
    assert a.packed and b.packed and a.bytes == 500 * 1024 * 2 and b.bytes == 300 * 1024 * 2
    assert a.argument(128, 0).spec.strides[1] == 1024 and not a.crosses
    short, _ = operands_of(stored_by_rows(parse_problem("500x300x101 bf16 nt".split())), None)
    assert short.argument(128, 0).spec.strides[1] == 104


def test_an_addend_comes_through_shared_memory_where_it_is_16_bytes_wide():
    spec = EpilogueSpec(c="bfloat16", output="float16")
    c = Tensor.packed((64, 64), "bfloat16")
    both = {"c": (c, (64, 1)), "residual": (c, (72, 1, 64))}
    assert staged_addend(spec, both) == "c"
    assert staged_addend(dataclasses.replace(spec, c=None, residual="bfloat16"), both) == "residual"
    for change, strides in ((dict(output="float32"), (64, 1)), (dict(residual="float16"), (64, 1)), ({}, (1, 64)), ({}, (68, 1)),
                            ({}, (64, 1, 4)), (dict(c=None), (64, 1))):
        assert staged_addend(dataclasses.replace(spec, **change), {"c": (c, strides), "residual": (c, (64, 1))}) is None
    for other in (dataclasses.replace(c, alignment=8), Tensor.packed((64, 64), "float32")):
        assert staged_addend(dataclasses.replace(spec, c=other.dtype), {"c": (other, (64, 1))}) is None


def test_a_float32_addend_comes_through_shared_memory_beside_float32_results():
    """Where the kernel knows of it, and only if the arithmetic is float32."""
    spec, c = EpilogueSpec(c="float32", output="float32"), Tensor.packed((64, 64), "float32")
    assert staged_addend(spec, {"c": (c, (64, 1))}, wide=True) == "c" and staged_addend(spec, {"c": (c, (64, 1))}) is None
    for change, tensor, strides in (({}, c, (66, 1)), ({}, c, (1, 64)), (dict(c="bfloat16"), Tensor.packed((64, 64), "bfloat16"), (64, 1)),
                                    (dict(output="int32"), c, (64, 1)), (dict(accumulator="float64"), c, (64, 1))):
        assert staged_addend(dataclasses.replace(spec, **change), {"c": (tensor, strides)}, wide=True) is None
    add = Function.of("add")
    program = Program((("bfloat16", "matrix"), ("float32", "matrix")), (Step(add, (0, 1)), Step(add, (3, 2))))
    operands = {0: (Tensor.packed((64, 64), "bfloat16"), (64, 1)), 1: (c, (64, 1))}
    assert staged_addend(EpilogueSpec(output="float32", program=program), operands, wide=True) == 1


@pytest.mark.parametrize("tile, itemsize, boxes, stages", [
    (Tile(128, 256), 2, (3, 4), 2), (Tile(128, 256), 4, (3, 8), 3), (Tile(256, 128), 4, (3, 8), 3), (Tile(64, 64), 4, (2, 2), 1),
    (Tile(256, 192), 4, (3, 12), 4)], ids=str)
def test_stages_that_an_addend_takes(tile, itemsize, boxes, stages):
    """Boxes of 64 rows by 128 bytes: of a warpgroup in a stage, in all. A stage more is needed for the next tile's operands."""
    dtype = {2: "bfloat16", 4: "float32"}[itemsize]
    assert (hopper_addend.boxes_of(tile, itemsize), hopper_addend.stages_of(tile, itemsize)) == (boxes, stages)
    assert hopper_addend.fits_ring(tile, Tensor.packed((64, 64), dtype), (64, 1)) == (stages < tile.stages)


def test_a_programs_matrix_comes_through_shared_memory():
    """The first that can, where there is no other addend."""
    add = Function.of("add")
    program = Program((("float32", "matrix"), ("bfloat16", "column"), ("bfloat16", "matrix")),
                      (Step(add, (0, 1)), Step(add, (4, 2)), Step(add, (5, 3))))
    spec = EpilogueSpec(output="float16", program=program)
    c, wide = Tensor.packed((64, 64), "bfloat16"), Tensor.packed((64, 64), "float32")
    operands = {0: (wide, (64, 1)), 1: (c, (0, 1)), 2: (c, (64, 1))}
    assert staged_addend(spec, operands) == 2
    assert staged_addend(spec, {**operands, 2: (c, (1, 64))}) is None
    assert staged_addend(dataclasses.replace(spec, c="bfloat16"), {**operands, "c": (c, (1, 64))}) is None


def test_operands_of_columns_come_in_pairs():
    """Where a pair is one access; as many as there are registers for."""
    bias, add = Tensor.packed((64,), "bfloat16"), Function.of("add")
    spec = EpilogueSpec(bias="column", bias_dtype="bfloat16", output="float16")
    assert paired_columns(spec, {"bias": (bias, (0, 1))}) == paired_columns(spec, {"bias": (bias, (0, 1, 64))}) == ("bias",)
    assert paired_columns(dataclasses.replace(spec, bias="row"), {"bias": (bias, (1, 0))}) == ()
    to_wide = dataclasses.replace(spec, output="float32")
    assert paired_columns(to_wide, {"bias": (bias, (0, 1))}) == ()
    assert paired_columns(to_wide, {"bias": (bias, (0, 1))}, wide=True) == ("bias",)
    assert paired_columns(dataclasses.replace(to_wide, output="int32"), {"bias": (bias, (0, 1))}, wide=True) == ()
    for tensor, strides in ((bias, (0, 2)), (bias, (0, 1, 63)), (dataclasses.replace(bias, alignment=2), (0, 1)),
                            (Tensor.packed((64,), "int32"), (0, 1))):
        assert paired_columns(spec, {"bias": (tensor, strides)}) == ()
    wide = Tensor.packed((64,), "float32")
    program = Program(((wide.dtype, "column"), ("bfloat16", "matrix"), ("bfloat16", "column"), (wide.dtype, "column")),
                      (Step(add, (0, 1)), Step(add, (5, 2)), Step(add, (6, 3)), Step(add, (7, 4))))
    operands = {"bias": (bias, (0, 1)), 0: (wide, (0, 1)), 1: (bias, (64, 1)), 2: (bias, (0, 1)), 3: (wide, (0, 1))}
    assert paired_columns(dataclasses.replace(spec, program=program), operands) == ("bias", 0, 2), "8 + 16 + 8 words; 16 more are too many"
    assert paired_columns(dataclasses.replace(to_wide, program=program), operands, wide=True) == ("bias", 0, 2, 3), "4 + 8 + 4 + 8 words"
    kept = Program((("float32", "column"),), (Step(add, (0, 1)),), ((1, "float32", "matrix"),))
    kept = dataclasses.replace(to_wide, bias=None, program=kept)
    assert paired_columns(kept, {0: (wide, (0, 1)), 1: (wide, (64, 1))}, wide=True) == (0,), "what is stored beside float32 goes singly"


def test_results_leave_in_whole_boxes():
    """Boxes that overlap would be written twice, and where c is y, the second would add what the first has written."""
    assert all(t.bn % 64 == 0 for t in TIMES_OF_MATRICES)
    with pytest.raises(ValueError, match="96 columns are no multiple of the 64 in which results leave"):
        make_boxed_store(Tile(128, 96), parsed("64x64x64 bf16 nt").epilogue)


# ---- which operands are copied

def product(dtype, lies="nt", m=48, n=40, k=64, **more):
    """A problem by its transpositions: "nt" has both operands contiguous along k."""
    return Matmul("", m, n, k, dtype, ta=lies[0] == "t", tb=lies[1] == "t", **more).problem()


READ_IN_PLACE = {
    "bf16 nt": (product("bfloat16"), "k k"),
    "bf16 nn": (product("bfloat16", "nn"), "k mn"),
    "bf16 tt": (product("bfloat16", "tt"), "mn k"),
    "f16 tn": (product("float16", "tn"), "mn mn"),
    "tf32 nt": (product("float32", math="tf32"), "k k"),
    "i8 nt": (product("int8"), "k k"),
    "e4m3 nt": (product("float8_e4m3fn"), "k k"),
    "rows with gaps of 16 bytes": (product("bfloat16", layout={"a": {"gap": 8}, "b": {"gap": 24}}), "k k"),
    "i8 rows with gaps of 16 bytes": (product("int8", layout={"a": {"gap": 16}}), "k k"),
    "k odd, one row": (product("bfloat16", m=1, n=1, k=37), "k k"),  # there is no next row to be misaligned
    "batch": (product("bfloat16", batch_a=(3,), batch_b=(3,)), "k k"),
    "batch whose a is one matrix": (product("bfloat16", batch_a=(1,), batch_b=(3,)), "k k"),
    "batch between the rows": (product("bfloat16", batch_a=(3,), batch_b=(3,), layout={"a": {"order": (1, 0, 2)}}), "k k"),
}


@pytest.mark.parametrize("name", READ_IN_PLACE)
def test_read_in_place(name):
    problem, majors = READ_IN_PLACE[name]
    a, b = operands_of(stored_by_rows(problem), problem.math)
    assert f"{a.major} {b.major}" == majors and not a.packed and not b.packed
    config = WGMMA.configs(problem, H200)[0]
    assert WGMMA.supports(problem) is None and WGMMA.workspace(problem, H200, config) == 0
    (launch,) = WGMMA.build(problem, H200, config)
    assert [x.value for x in launch.arguments[:2]] == ["a", "b"]


PACKED = {
    "rows of 74 bytes": (product("bfloat16", k=37), "ab"),
    "rows of 100 bytes of i8": (product("int8", k=100), "ab"),
    "rows of 8 bytes more than a multiple of 16": (product("float32", k=66, math="tf32"), "ab"),
    "odd gap in a": (product("bfloat16", layout={"a": {"gap": 1}}), "a"),
    "odd gap in b": (product("float16", "nn", layout={"b": {"gap": 3}}), "b"),
    "odd columns of an mn operand": (product("bfloat16", "tt", m=47), "a"),
    "a misaligned": (product("bfloat16", layout={"a": {"misaligned": 1}}), "a"),
    "b misaligned by 8 bytes": (product("bfloat16", layout={"b": {"misaligned": 4}}), "b"),
    "every other element": (product("bfloat16", layout={"b": {"step": 2}}), "b"),
    "rows backwards": (product("bfloat16", layout={"a": {"flip": (0,)}}), "a"),
    "k backwards": (product("bfloat16", layout={"a": {"flip": (1,)}}), "a"),
    "all rows the same": (product("bfloat16", layout={"a": {"expand": (0,)}}), "a"),
    "tf32 nn": (product("float32", "nn", math="tf32"), "b"),
    "tf32 tn": (product("float32", "tn", math="tf32"), "ab"),
    "i8 nn": (product("int8", "nn"), "b"),
    "i8 tt": (product("int8", "tt"), "a"),
    "e5m2 tn": (product("float8_e5m2", "tn"), "ab"),
    "batch of odd matrices": (product("bfloat16", m=3, k=8, batch_a=(3,), batch_b=(3,),
                                      layout={"a": {"order": (1, 0, 2), "gap": 0}, "b": {"gap": 1}}), "b"),
}


@pytest.mark.parametrize("algorithm", [WGMMA, SPLIT], ids=lambda a: a.name)
@pytest.mark.parametrize("name", PACKED)
def test_packed(name, algorithm):
    problem, which = PACKED[name]
    a, b = operands_of(stored_by_rows(problem), problem.math)
    assert "a" * a.packed + "b" * b.packed == which
    for x in (a, b):
        if x.packed:
            lies_along_mn = x.tensor.itemsize == 2 and x.strides[1] == 1 and x.strides[2] != 1
            assert x.major == ("mn" if lies_along_mn else "k"), "a copy that transposes takes twice as long"
            spec = x.argument(64, 0).spec
            assert spec.shape == (x.matrices, *((x.k, x.extent) if lies_along_mn else (x.extent, x.k)))
            assert spec.strides[1] * x.tensor.itemsize % 16 == 0
            assert x.bytes >= x.matrices * spec.shape[1] * spec.strides[1] * x.tensor.itemsize and x.bytes % 256 == 0
    if algorithm.supports(problem) is not None:
        assert algorithm is SPLIT and problem.k * problem.a.itemsize <= 3 * engine.ROW
        return
    config = algorithm.configs(problem, H200)[0]
    launches = algorithm.build(problem, H200, config)
    sums = algorithm.workspace(problem, H200, config) - a.bytes - b.bytes
    assert len(launches) == len(which) + (1 if algorithm is WGMMA else 2) and (sums > 0) == (algorithm is SPLIT)
    assert [x.arguments[0].value for x in launches[:len(which)]] == list(which), "each copy reads its operand"
    maps = {x: argument for x, argument in zip("ab", launches[len(which)].arguments)}
    assert {x for x in "ab" if maps[x].value == "workspace"} == set(which)
    offsets = [x.arguments[1].offset for x in launches[:len(which)]]
    assert offsets == [maps[x].offset for x in which] == [sums, sums + a.bytes][:len(which)], "the product reads what the copies wrote"


@needs(9)
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "float32"])
@pytest.mark.parametrize("k, layout", [(515, {"a": {"gap": 1, "misaligned": 1}, "b": {"gap": 3}}),
                                       (7, {"a": {"misaligned": 3}, "b": {"gap": 2}}), (296, {"a": {"gap": 5}, "b": {"misaligned": 2}})])
def test_rows_that_begin_anywhere_are_copied(dtype, k, layout):
    """Every skew against 16 bytes, rows longer than a warp copies at once, ends in the middle of 16 bytes, several matrices."""
    case = Matmul(f"packed-{dtype}", 9, 6, k, dtype, batch_a=(2,), batch_b=(2,), tb=True, layout=layout,
                  math="tf32" if dtype == "float32" else None)
    launches = WGMMA.build(case.problem(), H200, WGMMA.configs(case.problem(), H200)[0])
    assert "matmul_pack_rows" in [launch.kernel.py_func.__name__ for launch in launches]
    contract.check(WGMMA, case, **contract.ONCE)


@needs(9)
@pytest.mark.parametrize("ta", [False, True])
def test_rows_along_columns_are_copied_as_they_lie(ta):
    """A 16-bit operand whose rows begin anywhere is read along them, whichever dimension they are."""
    layout = {"b": {"gap": 3, "misaligned": 1}}
    case = Matmul("packed-mn-bfloat16", 37, 77, 72, "bfloat16", batch_a=(2,), batch_b=(2,), ta=ta, layout=layout)
    launches = WGMMA.build(case.problem(), H200, WGMMA.configs(case.problem(), H200)[0])
    assert [launch.kernel.py_func.__name__ for launch in launches] == ["matmul_pack_rows"] * (1 + ta) + ["matmul_wgmma"]
    contract.check(WGMMA, case, **contract.ONCE)


def test_copies_cost_time():
    tile = WGMMA.configs(product("bfloat16"), H200)[0]
    in_place, copied = (product("bfloat16", k=4096, layout={"a": {"gap": gap}}) for gap in (8, 1))
    assert WGMMA.estimate(copied, H200, tile) > WGMMA.estimate(in_place, H200, tile)


# ---- batches

@pytest.mark.parametrize("batch_a, batch_b, matrices", [
    ((5,), (1,), (5, 1)), ((1,), (5,), (1, 5)), ((), (5,), (1, 5)), ((5,), (5,), (5, 5)), ((2, 3), (2, 3), (6, 6)),
    ((1, 1), (2, 3), (1, 6)), ((), (), (1, 1))])
@pytest.mark.parametrize("k", [64, 37])
def test_matrices_of_a_batch(batch_a, batch_b, matrices, k):
    """An operand that is the same for the whole batch is one matrix: one map, one copy, matrix 0 for every z."""
    problem = product("bfloat16", batch_a=batch_a, batch_b=batch_b, k=k)
    parts = stored_by_rows(problem)
    pair = operands_of(parts, None)
    assert tuple(x.matrices for x in pair) == matrices
    for x, rows in zip(pair, (problem.m, problem.n)):
        assert x.argument(64, 0).spec.shape == (x.matrices, rows, k) and x.packed == (k == 37)
        assert x.bytes == (-(-x.matrices * rows * 40 * 2 // 256) * 256 if k == 37 else 0)
    tiles, place = locate_arguments(parts, Tile(128, 64), *pair)
    if SIMULATED:
        last = make_locate(Tile(128, 64))(tiles - 1, 0, tuple(argument.value for argument in place))
        assert (last.z_a, last.z_b, last.z) == (matrices[0] - 1, matrices[1] - 1, max(matrices) - 1)


def test_batches_that_do_not_merge():
    words = "2 batch dimensions that do not merge, one is the most"
    assert WGMMA.supports(product("bfloat16", batch_a=(2, 1), batch_b=(1, 3))) == words
    assert SPLIT.supports(product("bfloat16", batch_a=(2, 1), batch_b=(1, 3), k=4096)) == words


# ---- who works where

@pytest.mark.skipif(not SIMULATED, reason="calls a device function")
@pytest.mark.parametrize("m, n, k, batch, tile, ranges", [
    (1, 1, 1, 1, Tile(128, 64), 1), (1000, 1000, 64, 1, Tile(128, 256), 1), (2000, 77, 500, 3, Tile(64, 64), 1),
    (1030, 2500, 64, 2, Tile(128, 208), 1), (1030, 2500, 64, 2, Tile(256, 128, cluster=2), 1),
    (2300, 700, 64, 1, Tile(128, 64, cluster=4), 1), (512, 512, 4096, 1, Tile(128, 128), 8), (100, 300, 1100, 3, Tile(64, 128), 5),
    (1200, 70, 900, 2, Tile(128, 64, cluster=2), 3)])
def test_every_tile_is_somebodys(m, n, k, batch, tile, ranges):
    problem = product("bfloat16", m=m, n=n, k=k, batch_a=(batch,), batch_b=(batch,))
    parts, steps = stored_by_rows(problem), steps_of(k, 2)
    assert ranges == -(-steps // -(-steps // ranges)), "as `configs` has them: no range is empty"
    count, place = locate_arguments(parts, tile, *operands_of(parts, None), ranges)
    locate, place = make_locate(tile), tuple(a.value for a in place)
    found = [locate(t, rank, place) for t in range(count) for rank in range(tile.cluster)]
    # every step of k of every tile of every matrix, once
    work = collections.Counter((w.z, w.row, w.column, step) for w in found for step in range(w.k_begin, w.k_end))
    rows = range(0, -(-m // (tile.bm * tile.cluster)) * tile.bm * tile.cluster, tile.bm)
    assert work == collections.Counter(itertools.product(range(batch), rows, range(0, n, tile.bn), range(steps)))
    assert all(w.k_begin < w.k_end and (w.z_a, w.z_b) == (w.z, w.z) for w in found)
    # where the sums of a slice of k go is nobody else's
    assert len({(w.k_slice, w.z, w.row, w.column) for w in found}) == len(found)
    # blocks of a cluster are neighbours along m and share their columns
    for blocks in zip(*[iter(found)] * tile.cluster):
        assert [b.row - blocks[0].row for b in blocks] == [tile.bm * rank for rank in range(tile.cluster)]
        assert len({b._replace(row=0) for b in blocks}) == 1


@pytest.mark.skipif(not SIMULATED, reason="calls a device function")
def test_neighbours_share_operands():
    """132 blocks at work read a third less of a and b than blocks that go along rows of tiles."""
    problem, tile = product("bfloat16", m=8192, n=8192), Tile(128, 256)
    parts = stored_by_rows(problem)
    _, place = locate_arguments(parts, tile, *operands_of(parts, None))
    locate, place = make_locate(tile), tuple(a.value for a in place)
    found = [locate(t, 0, place) for t in range(H200.sms)]
    read = 128 * len({x.row for x in found}) + 256 * len({x.column for x in found})
    assert 1.5 * read < 128 * -(-H200.sms // 32) + 8192


# ---- for how long

@pytest.mark.parametrize("tile", TIMES_OF_MATRICES, ids=str)
def test_more_work_takes_longer(tile):
    """In steps of k and in tiles; a wave more is dearer than a tile more."""
    problem = parsed("64x64x64 bf16 nt")
    one = [product_seconds(problem, tile, H200, tiles, 64) for tiles in range(1, 4 * H200.sms * tile.blocks)]
    assert all(b >= a for a, b in zip(one, one[1:])) and one[-1] > 2 * one[0]
    slots = H200.sms * tile.blocks
    assert one[slots] - one[slots - 1] > 10 * (one[slots + 1] - one[slots])
    steps = [product_seconds(problem, tile, H200, 100, n) for n in range(1, 200)]
    assert all(b > a for a, b in zip(steps, steps[1:]))


def test_the_estimate_scales():
    """Twice the clock, half the work; a product that memory bounds does not care."""
    fast = Device(**{**{f: getattr(H200, f) for f in H200.__dataclass_fields__}, "clock_hz": 2 * H200.clock_hz})
    problem, tile = parsed("8192x8192x8192 bf16 nt"), Tile(128, 256)
    assert product_seconds(problem, tile, H200, 2048, 128) / product_seconds(problem, tile, fast, 2048, 128) == pytest.approx(2, rel=0.1)
    thin = parsed("64x65536x64 bf16 nt")
    assert product_seconds(thin, tile, H200, 1, 1) >= thin.bytes / H200.bandwidth


def test_no_range_is_empty():
    """Five ranges of six steps would leave the last two without work, and their sums unwritten: three ranges of two are what is built."""
    from dnnkern.matmul.matmul_wgmma_split_k import Config, build
    from dnnkern.host.device import _SIMULATOR as hopper
    product_launch, total = build(parse_problem("64x64x384 bf16 nt".split()), hopper, Config(Tile(64, 64), 5))
    assert product_launch.grid[0] == 3
    assert product_launch.arguments[2].spec.shape == (3, 64, 64)
    assert 3 in [a.value for a in total.arguments] and 5 not in [a.value for a in total.arguments]
