"""`dnnkern.device.program`: DAGs of pointwise functions against float64, on the simulator and the processor; what is none is refused."""
import dataclasses
import json

import ml_dtypes
import numpy as np
import pytest
from kit import launch

from dnnkern.device import cuda, f32, i32
from dnnkern.device.convert import element
from dnnkern.device.pointwise import Function
from dnnkern.device.program import Program, Step, make_narrow, make_program, member_types
from dnnkern.device.program_operands import MEMBERS, has_strides, operands_class
from dnnkern.device.program_batches import make_placed

M, N, B = 5, 7, 3
BFLOAT16 = ml_dtypes.bfloat16
STORAGE = {"float16": np.uint16, "bfloat16": np.uint16, "float8_e4m3fn": np.uint8, "float8_e5m2": np.uint8, "bool": np.uint8}
NUMPY = {"bfloat16": BFLOAT16, "float8_e4m3fn": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2}


def of(mode, *inputs, round_to=None, compute="float32", **parameters):
    return Step(Function.of(mode, **parameters), inputs, round_to, compute)


def words(array):
    return array.view(STORAGE.get(array.dtype.name, array.dtype))


def numpy_dtype(name):
    return np.dtype(NUMPY.get(name, name))


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def run(program, accumulators, operands, output="float32", wide=False, shape=(M, N), threads=64):
    """The result of a program for every (m, n), of arrays of accumulators; `operands` are arrays and ints, member by member."""
    accumulator = accumulators[0].dtype.name if accumulators else "float32"
    apply = make_program(program, accumulator, numpy_dtype(output).itemsize <= 2)
    narrow = make_narrow(program.types(accumulator)[program.result], output)
    ONE, columns = len(accumulators) == 1, shape[1]

    @cuda.jit(launch_bounds=threads)
    def kernel(a, b, y, count, e):
        t = i32(i32(cuda.blockIdx.x) * threads + i32(cuda.threadIdx.x))
        if t < count:
            m = i32(t // columns)
            n = i32(t - i32(m * columns))
            if ONE:
                y[t] = narrow(apply(a[t], m, n, e))
            else:
                y[t] = narrow(apply((a[t], b[t]), m, n, e))
    y = np.zeros(shape, numpy_dtype(output))
    a = accumulators[0] if accumulators else np.zeros(shape, np.float32)
    b = accumulators[-1] if accumulators else a
    e = operands_class(member_types(program, wide))(*shape[:2] * bool(program.stores), *operands)
    launch(kernel, -(-y.size // threads), threads, a.ravel(), b.ravel(), words(y).ravel(), y.size, e)
    return y.astype(np.float64)


@pytest.mark.parametrize("wide", [False, True])
def test_accesses(rng, wide):
    acc, scalar, row, column = (rng.standard_normal(s).astype(np.float32) for s in ((M, N), 1, 2 * M, N))
    matrix = rng.standard_normal((N, M)).astype(np.float16)
    loads = (("float32", "scalar"), ("float32", "value"), ("float32", "row"), ("bfloat16", "column"), ("float16", "matrix"),
             ("int32", "index"), ("float32", 0.5))
    steps, last = (of("add", 0, 1),), 8
    for k in range(2, 8):
        steps, last = (*steps, of("add", last, k)), last + 1
    program = Program(loads, steps)
    column = column.astype(BFLOAT16)
    got = run(program, [acc], (scalar, 1.25, row, 2, words(column), 1, words(matrix), 1, M, 10, 1, -3), wide=wide)
    index = 10 * np.arange(M)[:, None] + np.arange(N) - 3
    expected = (acc.astype(float) + scalar + 1.25 + row[::2, None] + column.astype(float) + matrix.T.astype(float) + index + 0.5)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_bias_gelu_and_a_side_output(rng):
    """The example of the module."""
    from math import erf
    acc, bias = rng.standard_normal((M, N)).astype(np.float32), rng.standard_normal(N).astype(BFLOAT16)
    side = np.zeros((M, N + 2), BFLOAT16)
    program = Program((("bfloat16", "column"),), (of("add", 0, 1, round_to="bfloat16"), of("gelu", 2)), ((2, "bfloat16", "matrix"),))
    got = run(program, [acc], (words(bias), 1, words(side).ravel(), N + 2, 1), "bfloat16")
    total = (acc + bias.astype(np.float32)).astype(BFLOAT16)
    np.testing.assert_array_equal(side[:, :N], total)
    assert not side[:, N:].astype(float).any(), "the columns beside are not written"
    x = total.astype(np.float64)
    np.testing.assert_allclose(got, x * (1 + np.vectorize(erf)(x / 2**0.5)) / 2, rtol=2**-8, atol=1e-6)


def test_types_of_values(rng):
    """Integers, conditions and floats of both widths in one program; what goes to an integer rounds, and saturates."""
    acc = (100 * rng.standard_normal((M, N))).astype(np.float32)
    mask, small = rng.integers(0, 2, (M, N)).astype(bool), rng.integers(-128, 128, M).astype(np.int8)
    held, narrow = np.zeros((M, N), np.float64), np.zeros((M, N), np.int8)
    loads = ("bool", "matrix"), ("int8", "row"), ("int32", "index"), ("int32", 3)
    steps = (of("mod", 3, 4, compute="int32"),       # 5: n % 3
             of("cmp_gt", 5, 2),                     # 6: n % 3 > small, as float32
             of("logical_and", 1, 6),                # 7
             of("binary_select", 0, 2, 7),           # 8: acc or small
             of("mul", 8, 8, compute="float64"),     # 9
             of("neg", 9, compute="float64", round_to="float32"))  # 10
    program = Program(loads, steps, ((9, "float64", "matrix"), (0, "int8", "matrix")))
    got = run(program, [acc], (words(mask).ravel(), N, 1, small, 1, 0, 1, 0, held.ravel(), N, 1, narrow.ravel(), N, 1))
    chosen = np.where(mask & (np.arange(N) % 3 > small[:, None]), acc, small[:, None])
    np.testing.assert_array_equal(held, chosen.astype(float)**2)
    np.testing.assert_array_equal(got, -(held.astype(np.float32)))
    np.testing.assert_array_equal(narrow, np.clip(np.rint(acc), -128, 127))
    assert program.types() == ("float32", *("int32",) * 5, *("float32",) * 3, "float64", "float32")


def test_integers_stay_integers():
    acc = np.arange(M * N, dtype=np.int32).reshape(M, N) + 2**24
    got = run(Program((("int32", 1),), (of("add", 0, 1, compute="int32"),)), [acc], (), "int32")
    np.testing.assert_array_equal(got, acc + 1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8", "int32", "bool"])
@pytest.mark.parametrize("accumulator", ["float32", "float64", "int32"])
def test_rounding(rng, dtype, accumulator):
    x = (20 * rng.standard_normal((M, N))).astype(accumulator)
    got = run(Program((), (of("identity", 0, round_to=dtype, compute=accumulator),)), [x], (), "float64")
    if dtype == "bool":
        expected = (x != 0).astype(float)
    elif dtype in NUMPY or dtype == "float16":
        expected = x.astype(np.float32).astype(numpy_dtype(dtype)).astype(float)
    else:
        expected = np.clip(np.rint(x), np.iinfo(dtype).min, np.iinfo(dtype).max)
    np.testing.assert_array_equal(got, expected)


def test_several_accumulators_and_none(rng):
    a, b = (rng.standard_normal((M, N)).astype(np.float32) for _ in range(2))
    program = Program((("float32", 2),), (of("mul", 0, 2), of("sub", 3, 1)), accumulators=2)
    np.testing.assert_allclose(run(program, [a, b], ()), 2 * a.astype(float) - b, rtol=1e-6, atol=1e-6)
    program = Program((("float32", "matrix"), ("float32", "row")), (of("max", 0, 1),), accumulators=0)
    np.testing.assert_array_equal(run(program, [], (a.ravel(), N, 1, b[:, 0].copy(), 1)), np.maximum(a, b[:, :1]))


def test_elements_beyond_the_matrix_are_not_stored(rng):
    """Tiles clamp what they read, not what they store: of rows and columns beyond the last the accumulators are others."""
    acc, row, side = rng.standard_normal((M, N)).astype(np.float32), rng.standard_normal(M - 2).astype(np.float32), np.zeros((M - 2, N - 1))
    side = side.astype(np.float32)
    program = Program((("float32", "row"),), (of("add", 0, 1),), ((2, "float32", "matrix"),))
    apply = make_program(program)

    @cuda.jit(launch_bounds=64)
    def kernel(a, y, e):
        t = i32(cuda.threadIdx.x)
        if t < M * N:
            m = i32(t // N)
            y[t] = apply(a[t], m, i32(t - i32(m * N)), e)
    y = np.zeros_like(acc)
    e = operands_class(member_types(program))(M - 2, N - 1, row, 1, side.ravel(), N - 1, 1)
    launch(kernel, 1, 64, acc.ravel(), y.ravel(), e)
    np.testing.assert_array_equal(side, acc[:M - 2, :N - 1] + row[:, None])
    np.testing.assert_array_equal(y, acc + row[np.minimum(np.arange(M), M - 3)][:, None])


def test_the_result_may_be_any_value(rng):
    a, side = rng.standard_normal((M, N)).astype(np.float32), np.zeros((M, N), np.float32)
    program = Program((), (of("exp", 0),), ((1, "float32", "matrix"),), result=0)
    np.testing.assert_array_equal(run(program, [a], (side.ravel(), N, 1)), a)
    np.testing.assert_allclose(side, np.exp(a.astype(float)), rtol=1e-6)


@pytest.mark.parametrize("steps", [1, 3, 10, 30])
def test_chains(rng, steps):
    program, expected, operands, acc = chain(steps, rng)
    got = run(program, [acc], operands, "float32")
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def chain(steps, rng):
    """A chain over three arrays of three dtypes; (program, its value, operands, accumulators)."""
    acc, column, row = (rng.standard_normal(s).astype(np.float32) for s in ((M, N), N, M))
    column, matrix = column.astype(BFLOAT16), rng.standard_normal((M, N)).astype(np.float16)
    made, values = [], [acc.astype(float), column.astype(float), matrix.astype(float), row.astype(float)[:, None]]
    for k in range(steps):
        x, last = values[-1] if k else values[0], len(values) - 1 if k else 0
        step, value = [(of("add", last, 1), x + values[1]), (of("sigmoid", last), 1 / (1 + np.exp(-x))),
                       (of("mul", last, 0), x * values[0]), (of("max", last, 3), np.maximum(x, values[3])),
                       (of("add", last, 2), x + values[2])][k % 5]
        made.append(step)
        values.append(value)
    program = Program((("bfloat16", "column"), ("float16", "matrix"), ("float32", "row")), made)
    return program, values[-1], (words(column), 1, words(matrix).ravel(), N, 1, row, 1), acc


@pytest.mark.parametrize("dims", [1, 2])
def test_operands_of_a_batch(dims):
    """Each matrix of a batch finds its own rows, columns, matrices and indices; a scalar and a value are of all."""
    sizes = (B, 2)[:dims]
    count = int(np.prod(sizes))
    loads = (*(("float32", access) for access in ("scalar", "value", "row", "column", "matrix")), ("int32", "index"))
    steps = [of("add", 0, 1)]
    for k in range(2, 7):
        steps.append(of("add", 6 + len(steps), k))
    program = Program(loads, steps, ((6, "int32", "matrix"),))
    whole, apply = make_placed(program, dims), make_program(program)
    types = ["int32", "int32"]
    for _, access in program.operands:
        types += [{"pointer": "float32*", "number": "float32", "stride": "int32"}[m] for m in MEMBERS[access]]
        types += ["int32"] * dims * has_strides(access)
    types[-3 - dims] = "int32*"
    Operands = operands_class(tuple(types))

    @cuda.jit(launch_bounds=64)
    def kernel(y, sizes0, sizes1, count, e):
        t = i32(cuda.threadIdx.x) + 64 * i32(cuda.blockIdx.x)
        if t < count:
            z = i32(t // (M * N))
            m, n = i32(i32(t % (M * N)) // N), i32(t % N)
            y[t] = apply(f32(0), m, n, whole(e, z, (sizes0, sizes1)))
    rng = np.random.default_rng(1)
    row, column, matrix = (rng.standard_normal(sizes + s).astype(np.float32) for s in ((M,), (N,), (M, N)))
    index = np.zeros(sizes + (M, N), np.int32)

    def steps_of(a, last):
        return tuple(s // a.itemsize for s in a.strides[:dims]) if last else ()
    along = tuple(1 if d == dims - 1 else 0 for d in range(dims))  # the index along the last dimension of the batch
    e = Operands(M, N, np.float32([0.5]), 0.25, row.ravel(), 1, *steps_of(row, True), column.ravel(), 1, *steps_of(column, True),
                 matrix.ravel(), N, 1, *steps_of(matrix, True), 0, 0, 0, *along, index.ravel(), N, 1, *steps_of(index, True))
    y = np.zeros(count * M * N, np.float32)
    launch(kernel, -(-y.size // 64), 64, y, np.int64(sizes[0]), np.int64(sizes[-1]), y.size, e)
    last = np.broadcast_to(np.arange(sizes[-1])[:, None, None], sizes + (M, N))
    expected = 0.75 + row[..., None] + column[..., None, :] + matrix + last
    np.testing.assert_allclose(y.reshape(sizes + (M, N)), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(index, last)


def test_plain_data():
    program = Program((("bfloat16", "column"), ("float32", 0.5)), (of("relu", 0, upper_clip=6), of("mul", 3, 1, round_to="float16")),
                      ((3, "float32", "matrix"),))
    assert Program.of_record(json.loads(json.dumps(program.record()))) == program
    assert hash(Program.of_record(program.record())) == hash(program)
    assert str(program) == "relu+mul" and program.result == 4
    assert program.operands == (("bfloat16", "column"), ("float32", "matrix")) and program.inputs == 1
    assert program.transposed().loads[0] == ("bfloat16", "row") and program.transposed().transposed() == program
    assert dataclasses.replace(program, result=3).result == 3


@pytest.mark.parametrize("make, error, message", [
    (lambda: Program((("float32", "rows"),)), ValueError, "a load by 'rows'; expected one of scalar, value, row"),
    (lambda: Program((("complex64", "row"),)), TypeError, "a load is 'complex64'; expected one of float64"),
    (lambda: Program((("float32", "index"),)), TypeError, "an index of float32; expected int32"),
    (lambda: Program((), (of("add", 0, 1),)), ValueError, "add takes value 1; expected 0 to 0"),
    (lambda: Program((), (of("exp", -1),)), ValueError, "exp takes value -1; expected 0 to 0"),
    (lambda: Program((), (), ((2, "float32", "matrix"),)), ValueError, "a store of value 2; expected 0 to 0"),
    (lambda: Program((), (), ((0, "float32", "row"),)), ValueError, "a store by 'row'; expected 'matrix' or 'bits'"),
    (lambda: Program((("uint8", "bits"),)), TypeError, "a load of bits of uint8; expected bool"),
    (lambda: Program((), (), ((0, "int8", "bits"),)), TypeError, "a store of bits of int8; expected bool"),
    (lambda: Program((), (), result=1), ValueError, "the result is value 1; expected 0 to 0"),
    (lambda: of("add", 0), ValueError, "add of 1 values; expected 2"),
    (lambda: of("exp", 0, compute="int32"), TypeError, "exp of int32; expected one of identity"),
    (lambda: of("exp", 0, round_to="int4"), TypeError, "round_to is 'int4'; expected one of float64"),
    (lambda: Step(Function("scale_tensor", "scale"), (0,)), ValueError, "scale_tensor scale is no step")])
def test_what_is_no_program(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_elements_of_all_dtypes():
    """A load and a store of each dtype that programs have."""
    from dnnkern.device.program_operands import DTYPES
    for dtype in DTYPES:
        x = np.array([[0, 1, 1, 0]], numpy_dtype(dtype))
        side = np.zeros_like(x)
        program = Program(((dtype, "matrix"),), (), ((1, dtype, "matrix"),))
        got = run(program, [np.zeros((1, 4), np.float32)], (words(x).ravel(), 4, 1, words(side).ravel(), 4, 1), shape=(1, 4))
        np.testing.assert_array_equal(got, x.astype(float))
        np.testing.assert_array_equal(side.astype(float), x.astype(float))
        assert element(dtype, "int32" if dtype in ("int8", "uint8", "int16", "int32", "bool") else None).pointer


def test_a_hash_stays_in_its_process():
    """Where text hashes otherwise, a program that came from another process is found all the same."""
    import os
    import pickle
    import subprocess
    import sys
    program = Program((("bfloat16", "column"),), (of("add", 0, 1),))
    hash(program)
    code = "import pickle, sys; from dnnkern.device.program import Program; p = pickle.loads(sys.stdin.buffer.read()); " \
           "q = Program.of_record(p.record()); assert {q: 1}[p] == 1 and hash(p) == hash(q)"
    subprocess.run([sys.executable, "-c", code], input=pickle.dumps(program), check=True, env={**os.environ, "PYTHONHASHSEED": "12345"})
