"""What the building blocks compile to, without a GPU: the expected instructions, no double precision, no calls, no local memory."""
import re

import pytest
from sass import assembled, ptx

from dnnkern.device import SIMULATED, cuda, f32, f64, i32, i64, u32

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from dnnkern.device import activation, block, convert, epilogue, fastmath, index, philox, vec, warp  # noqa: E402

ARCHITECTURES = ["sm_75", "sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"]
SCALARS = {"float32": f32, "float64": f64, "int32": i32, "int64": i64, "uint32": u32}


def _ptx(kernel, signature, arch="sm_90a"):
    """The instructions of a kernel, one a line, spaces collapsed; what every kernel here must not have is asserted on the way."""
    body = re.sub(r"[ \t]+", " ", ptx(kernel, signature, arch))
    assert "call" not in body and ".local" not in body, body
    if not any("64" in s and s.startswith("float") for s in signature):
        assert ".f64" not in body, body
    return body


def _copy(load, store, count):
    @cuda.jit(launch_bounds=256)
    def kernel(x, y):
        i = i32(count * (cuda.blockIdx.x * 256 + cuda.threadIdx.x))
        store(y, i, load(x, i))
    return kernel


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("load, store, count, dtype, loaded, stored", [
    ("load4", "store4", 4, "float32", r"ld\.global\.(v4\.[fb]32|v2\.b64)", r"st\.global\.(v4\.[fb]32|v2\.b64)"),
    ("load4", "store4", 4, "uint32", r"ld\.global\.(v4\.[ub]32|v2\.b64)", r"st\.global\.(v4\.[ub]32|v2\.b64)"),
    ("load2", "store2", 2, "float64", r"ld\.global\.v2\.[fb]64", r"st\.global\.v2\.[fb]64"),
    ("load2", "store2", 2, "uint32", r"ld\.global\.(v2\.[ub]32|[ub]64)", r"st\.global\.(v2\.[ub]32|[ub]64)"),
    ("load4_nc", "store4_cs", 4, "uint32", r"ld\.global\.nc\.v4\.b32", r"st\.global\.cs\.v4\.b32"),
    ("load2_nc", "store2_cs", 2, "float64", r"ld\.global\.nc\.v2\.b64", r"st\.global\.cs\.v2\.b64"),
    ("load4_nc", "store4_cs", 4, "uint16", r"ld\.global\.nc\.v4\.b16", r"st\.global\.cs\.v4\.b16"),
    ("load1_nc", "store1_cs", 1, "float32", r"ld\.global\.nc\.b32", r"st\.global\.cs\.b32")])
def test_vector_accesses_are_one_instruction(load, store, count, dtype, loaded, stored, arch):
    text = _ptx(_copy(getattr(vec, load), getattr(vec, store), count), (dtype + "*",) * 2, arch)
    assert len(re.findall(loaded, text)) == 1 and len(re.findall(stored, text)) == 1, text
    assert len(re.findall(r"\bld\.(?!param)", text)) == 1 and len(re.findall(r"\bst\.", text)) == 1, text


def test_predicated_loads_do_not_branch():
    @cuda.jit(launch_bounds=256)
    def kernel(x, y, n):
        i = i32(4 * cuda.threadIdx.x)
        vec.store4(y, i, vec.load4_nc_if(x, i, i < n))
    text = _ptx(kernel, ("float32*", "float32*", "int32"))
    assert re.search(r"@p ld\.global\.nc\.v4\.b32", text) and "bra" not in text


def test_shared_memory_by_index_and_by_address():
    @cuda.jit(launch_bounds=256)
    def kernel(x, y):
        tile = cuda.shared.array(1024, f32, alignment=16)
        t = i32(cuda.threadIdx.x)
        vec.store4(tile, i32(4 * t), vec.load4(x, i32(4 * t)))
        cuda.syncthreads()
        a, b, c, d = vec.load4(tile, i32(1020 - 4 * t))
        e, f, g, h = vec.load_shared_4f32(vec.shared_address(tile, i32(4 * (t ^ 1))))
        vec.store4(y, i32(4 * t), (a + e, b + f, c + g, d + h))
    text = _ptx(kernel, ("float32*", "float32*"))
    assert len(re.findall(r"st\.shared\.v4", text)) == 1 and len(re.findall(r"ld\.shared\.v4", text)) == 2, text
    assert "ld.v4" not in text and "st.v4" not in text


def test_local_arrays_stay_in_registers_and_words_are_unpacked_in_place():
    e = convert.element("bfloat16")
    unpack, pack = e.unpack_chunk, e.pack_chunk

    @cuda.jit(launch_bounds=256)
    def kernel(x, y):
        words, values = cuda.local.array(8, u32), cuda.local.array(16, f32)
        i = i32(8 * cuda.threadIdx.x)
        for k in range(2):
            vec.load4_nc_into(words, 4 * k, vec.as_u32(x), i32(i + 4 * k))
        for k in range(2):
            unpack(values, 8 * k, words, 4 * k)
        for k in range(16):
            values[k] = values[k] * f32(2)
        for k in range(2):
            pack(words, 4 * k, values, 8 * k)
            vec.store4_from(vec.as_u32(y), i32(i + 4 * k), words, 4 * k)
    text = _ptx(kernel, ("uint16*", "uint16*"))
    assert text.count("ld.global.nc.v4.b32") == 2 and len(re.findall(r"st\.global\.v4\.[ub]32", text)) == 2
    assert text.count("cvt.rn.bf16x2.f32") == 8 and len(re.findall(r"\bcvt\.", text)) == 8, text


NARROWING = {  # element type, value per architecture: the instruction, or None for integer arithmetic
    "float16": (("sm_75", "cvt.rn.f16.f32"), ("sm_90a", "cvt.rn.f16.f32")),
    "bfloat16": (("sm_75", None), ("sm_80", "cvt.rn.bf16.f32"), ("sm_90a", "cvt.rn.bf16.f32")),
    "e4m3": (("sm_80", None), ("sm_89", "cvt.rn.satfinite.e4m3x2.f32"), ("sm_90a", "cvt.rn.satfinite.e4m3x2.f32")),
    "e5m2": (("sm_80", None), ("sm_89", "cvt.rn.satfinite.e5m2x2.f32"), ("sm_100a", "cvt.rn.satfinite.e5m2x2.f32")),
    "int8": (("sm_75", "cvt.rni.sat.s8.f32"),), "uint8": (("sm_75", "cvt.rni.sat.u8.f32"),),
}


@pytest.mark.parametrize("name, arch, instruction", [(n, a, i) for n, cases in NARROWING.items() for a, i in cases])
def test_narrowing(name, arch, instruction):
    store, pointer = convert.element(name).store, convert.element(name).pointer

    @cuda.jit(launch_bounds=256)
    def kernel(x, y):
        i = i32(cuda.threadIdx.x)
        store(y, i, x[i])
    text = _ptx(kernel, ("float32*", pointer), arch)
    assert (instruction or "shr.u32") in text
    assert instruction or not re.search(r"cvt\.rn\.(satfinite|bf16)", text)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "e4m3", "e5m2", "int8", "uint8", "float64", "int32"])
def test_conversions_assemble_without_a_stack(name, arch):
    e = convert.element(name)
    unpack, pack, n, T = e.unpack_chunk, e.pack_chunk, e.per_chunk, f64 if e.compute == "float64" else f32

    @cuda.jit(launch_bounds=256)
    def kernel(x, y):
        words, values = cuda.local.array(4, u32), cuda.local.array(n, T)
        i = i32(4 * cuda.threadIdx.x)
        vec.load4_nc_into(words, 0, vec.as_u32(x), i)
        unpack(values, 0, words, 0)
        for k in range(n):
            values[k] = values[k] + T(1)
        pack(words, 0, values, 0)
        vec.store4_from(vec.as_u32(y), i, words, 0)
    code = assembled(kernel, (e.pointer, e.pointer), arch)
    assert (code.stack, code.spilled) == (0, 0) and code.registers <= 40


SINGLE = {"ex2": "ex2.approx.ftz.f32", "lg2": "lg2.approx.ftz.f32", "rcp": "rcp.approx.ftz.f32", "rsqrt": "rsqrt.approx.ftz.f32",
          "sqrt_fast": "sqrt.approx.ftz.f32", "tanh_fast": "tanh.approx.f32", "sin_fast": "sin.approx.ftz.f32",
          "cos_fast": "cos.approx.ftz.f32", "saturate": "cvt.sat.f32.f32", "fabs": "abs.f32"}


@pytest.mark.parametrize("name", SINGLE)
def test_single_instructions(name):
    function = getattr(fastmath, name)

    @cuda.jit(launch_bounds=256)
    def kernel(x, y):
        y[i32(cuda.threadIdx.x)] = function(x[i32(cuda.threadIdx.x)])
    assert _ptx(kernel, ("float32*", "float32*")).count(SINGLE[name]) == 1


@pytest.mark.parametrize("arch, expected", [
    ("sm_75", r"max\.f32.*setp\.nan\.f32"), ("sm_80", r"max\.NaN\.f32"), ("sm_90a", r"max\.NaN\.f32")])
def test_maximum_propagates_nan_in_one_instruction_where_there_is_one(arch, expected):
    @cuda.jit(launch_bounds=256)
    def kernel(x, y):
        i = i32(cuda.threadIdx.x)
        y[i] = fastmath.maximum(x[i], y[i])
    text = _ptx(kernel, ("float32*", "float32*"), arch)
    assert re.search(expected, text) and (arch == "sm_75" or "setp" not in text)


@pytest.mark.parametrize("name", ["exp", "exp2", "log", "log1p", "expm1", "sqrt", "tanh", "tan", "erf", "erfc", "floor", "ceil", "rint"])
def test_accurate_float32_functions_use_no_double(name):
    function = getattr(fastmath, name)

    @cuda.jit(launch_bounds=256)
    def kernel(x, y):
        y[i32(cuda.threadIdx.x)] = function(x[i32(cuda.threadIdx.x)])
    if name == "tan":  # the reduction of huge arguments keeps a table on the stack
        assert "call" not in ptx(kernel, ("float32*", "float32*"))
    else:
        _ptx(kernel, ("float32*", "float32*"))


@pytest.mark.parametrize("mode", activation.PARAMETERS)
def test_activations_and_gradients_of_float32(mode):
    f, g = activation.activation_function(mode), activation.activation_gradient(mode)

    @cuda.jit(launch_bounds=256)
    def kernel(x, dy, y, dx):
        i = i32(cuda.threadIdx.x)
        y[i] = f(x[i])
        dx[i] = g(dy[i], x[i])
    text = _ptx(kernel, ("float32*",) * 4)
    assert "div." not in text


@pytest.mark.parametrize("dtype, shuffles", [("float32", 5), ("int32", 5), ("uint32", 5), ("float64", 10), ("int64", 10)])
def test_warp_reductions(dtype, shuffles):
    @cuda.jit(launch_bounds=256)
    def kernel(x, y):
        i = i32(cuda.threadIdx.x)
        y[i] = warp.reduce_sum(x[i])
    text = _ptx(kernel, (dtype + "*",) * 2)
    assert text.count("shfl.sync.bfly.b32") == shuffles
    assert dtype != "int32" or ".s64" not in text.replace("mul.wide.s64", "").replace("add.s64", "")


@pytest.mark.parametrize("arch, redux, shuffles", [("sm_75", 0, 5), ("sm_80", 1, 0), ("sm_90a", 1, 0)])
def test_redux_is_one_instruction_where_there_is_one(arch, redux, shuffles):
    @cuda.jit(launch_bounds=256)
    def kernel(x, y):
        i = i32(cuda.threadIdx.x)
        y[i] = warp.redux_sum(x[i])
    text = _ptx(kernel, ("int32*", "int32*"), arch)
    assert text.count("redux.sync.add.s32") == redux and text.count("shfl.sync") == shuffles


def test_equal_shuffles_in_two_arms_of_a_branch_are_not_merged():
    @cuda.jit(launch_bounds=256)
    def kernel(x, y):
        i = i32(cuda.threadIdx.x)
        if i & 32:
            y[i] = f32(warp.shuffle_xor(x[i], i32(1)) + f32(1))
        else:
            y[i] = f32(warp.shuffle_xor(x[i], i32(1)) * f32(2))
    assert _ptx(kernel, ("float32*", "float32*")).count("shfl.sync.bfly.b32") == 2


@pytest.mark.parametrize("threads, shuffles", [(256, 8), (96, 5), (1024, 10)])
def test_block_reductions_have_one_barrier(threads, shuffles):
    reduce, size = block.make_block_reduce(block.add, threads), threads // 16

    @cuda.jit(launch_bounds=threads)
    def kernel(x, y):
        scratch = cuda.shared.array(size, f32)
        i = i32(cuda.threadIdx.x)
        y[i] = reduce(x[i], scratch, i32(0))
    text = _ptx(kernel, ("float32*", "float32*"))
    assert len(re.findall(r"(bar|barrier)\.sync", text)) == 1 and text.count("shfl.sync") == shuffles


def test_division_by_invariants_does_not_divide():
    @cuda.jit(launch_bounds=256)
    def kernel(x, y, a0, a1, a2, b0, b1, b2, c0, c1, c2):
        p, q, r, s = index.unflatten4(i32(cuda.threadIdx.x), (a0, a1, a2), (b0, b1, b2), (c0, c1, c2))
        y[i32(p + q + r + s)] = x[i32(p - q - r - s)]
    text = _ptx(kernel, ("float32*", "float32*") + ("uint32",) * 9)
    assert text.count("mul.hi.u32") == 3 and not re.search(r"\b(div|rem)\.", text), text


def test_philox_multiplies_32_bits_wide():
    @cuda.jit(launch_bounds=256)
    def kernel(y, seed):
        i = i32(cuda.threadIdx.x)
        a, b, c, d = philox.philox(seed, i, 0)
        p, q = philox.normal_pair(a, b)
        y[i32(2 * i)] = p
        y[i32(2 * i + 1)] = f32(q + philox.uniform(c) + philox.uniform(d))
    text = _ptx(kernel, ("float32*", "int64"))
    assert text.count("mul.wide.u32") == 20 and "mul.lo.s64" not in text and "sqrt.rn.f32" in text, text


SPECS = [  # spec, parameters read, instructions expected
    (epilogue.EpilogueSpec(), 2, []),
    (epilogue.EpilogueSpec(output="bfloat16"), 2, [r"cvt\.rn\.bf16\.f32"]),
    (epilogue.EpilogueSpec(alpha=True, activation="relu"), 3, [r"mul\.f32", r"max\.NaN\.f32"]),
    (epilogue.EpilogueSpec(bias="column", bias_dtype="bfloat16", output="bfloat16"), 4, [r"ld\.global\.[ub]16"]),
    (epilogue.EpilogueSpec(alpha=True, beta=True, c="float32"), 7, [r"fma\.rn\.f32"]),
    (epilogue.EpilogueSpec(accumulator="int32", output="int32", bias="row", bias_dtype="int32"), 4, [r"add\.s32"]),
    (epilogue.EpilogueSpec(accumulator="int32", output="int8", alpha=True), 3, [r"cvt\.rn\.f32\.s32", r"cvt\.rni\.sat\.s8\.f32"]),
    (epilogue.EpilogueSpec(scales=True, output="e4m3"), 4, [r"cvt\.rn\.satfinite\.e4m3x2\.f32"]),
    (epilogue.EpilogueSpec(scales=("row", "tensor")), 5, [r"ld\.global\.f32"]),
]


@pytest.mark.parametrize("spec, parameters, expected", SPECS)
def test_unused_parts_of_an_epilogue_cost_nothing(spec, parameters, expected):
    finish = epilogue.make_epilogue(spec)

    @cuda.jit(launch_bounds=256)
    def kernel(acc, d, alpha, beta, bias, bias_stride, c, c_rows, c_columns, residual, r_rows, r_columns, scale_a, scale_b, s_rows, s_cols):
        i = i32(cuda.threadIdx.x)
        e = epilogue.AllParams(alpha, beta, bias, bias_stride, c, c_rows, c_columns, residual, r_rows, r_columns, scale_a, scale_b, s_rows,
                               s_cols, ())
        d[i] = finish(acc[i], i32(i >> 4), i32(i & 15), e)
    given = {"residual": "uint8*", "scale_a": "float32*", "scale_b": "float32*", **dict(spec.arguments)}
    types = [given.get(name, "int32") for name in epilogue.AllParams._fields[:-1]]  # but for the program's operands
    text = _ptx(kernel, (spec.accumulator + "*", convert.element(spec.output).pointer, *types))
    assert len(re.findall(r"ld\.param", text)) == parameters, text
    for instruction in expected:
        assert re.search(instruction, text), text
    if spec.compute == "int32":
        assert ".f32" not in text
