"""Checks of machine code fail where they should: kernels that are wrong in one way each, on every architecture."""
import pytest
import sass

from dnnkern.device import SIMULATED, cuda, device_function, f32, f64, i32, i64, u32

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

ARCHITECTURES = ["sm_75", "sm_80", "sm_90a", "sm_100a", "sm_120a"]


def of(operation, scalar, arch, count="int32"):
    """Machine code of y[i] = operation(x[i], n)."""
    @cuda.jit(launch_bounds=64)
    def kernel(x, y, n):
        i = i32(cuda.threadIdx.x)
        y[i] = operation(x[i], n)
    return sass.assembled(kernel, (scalar + "*", scalar + "*", count), arch)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("scalar, operation", [
    ("float32", lambda x, n: f32(x * f64(1.5) + f64(n))), ("float32", lambda x, n: f32(f64(x) + f64(n))),
    ("float64", lambda x, n: max(x, f64(n))), ("float64", lambda x, n: f64(i32(x) + n)), ("int32", lambda x, n: i32(f64(x) * f64(n)))],
    ids=["literal", "sum", "maximum", "conversions", "product"])
def test_stray_float64(scalar, operation, arch):
    code = of(device_function(operation), scalar, arch)
    assert code.doubles and not code.divisions and not code.calls


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("scalar, operation", [
    ("int32", lambda x, n: i32(x // n)), ("int32", lambda x, n: i32(x % n)), ("uint32", lambda x, n: u32(x // u32(n))),
    ("int64", lambda x, n: i64(x // i64(n))), ("int64", lambda x, n: i64(x % i64(n))), ("uint16", lambda x, n: x // n),
    ("float32", lambda x, n: f32(x / f32(n))), ("float64", lambda x, n: x / f64(n))],
    ids=["int32", "int32-rest", "uint32", "int64", "int64-rest", "uint16", "float32", "float64"])
def test_divisions(scalar, operation, arch):
    code = of(device_function(operation), scalar, arch, "uint16" if scalar == "uint16" else "int32")
    assert code.divisions and bool(code.doubles) == (scalar == "float64")
    assert not code.calls, "a division's slow path is no function"


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_plain_arithmetic_has_none_of_it(arch):
    code = of(device_function(lambda x, n: f32(x * f32(n) + f32(i32(x) >> 1))), "float32", arch)
    assert not (code.doubles or code.divisions or code.calls or code.slow or code.waits_for_device or code.moved_registers)
    assert (code.stack, code.spilled, code.shared) == (0, 0, 0) and 0 < code.registers <= 32


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_calls_and_stacks(arch):
    @device_function
    def fibonacci(n):
        if n < 2:
            return n
        return i32(fibonacci(i32(n - 1)) + fibonacci(i32(n - 2)))

    @cuda.jit(launch_bounds=64)
    def kernel(x):
        x[0] = fibonacci(x[1])
    code = sass.assembled(kernel, ("int32*",), arch)
    assert code.calls and code.stack
    with pytest.raises(AssertionError):
        sass.machine_code(kernel, ("int32*",), arch)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_spills_and_indexed_arrays(arch):
    def kernel_of(blocks, size):
        @cuda.jit(launch_bounds=(1024, blocks))
        def kernel(x, n):
            values = cuda.local.array(size, f32)
            for k in range(size):
                values[k] = x[i32(k * 1024 + cuda.threadIdx.x)]
            cuda.syncthreads()
            for k in range(size):
                x[i32(k * n + cuda.threadIdx.x)] = values[i32(size - 1 - k)] if n else values[i32(n + k)]
        return kernel
    code = sass.assembled(kernel_of(1, 96), ("float32*", "int32"), arch)
    assert code.spilled or code.stack
    with pytest.raises(AssertionError):
        sass.machine_code(kernel_of(1, 96), ("float32*", "int32"), arch)


def test_fences_of_the_whole_device():
    @cuda.jit(launch_bounds=64)
    def kernel(x):
        x[i32(cuda.threadIdx.x)] = f32(1)
        cuda.threadfence()
        x[i32(64 + cuda.threadIdx.x)] = f32(2)
    assert sass.assembled(kernel, ("float32*",), "sm_90a").waits_for_device


def test_warnings_of_the_linker():
    """A product whose accumulators are touched before it is waited for: ptxas makes each wait."""
    from dnnkern.device.wgmma import descriptor, make_wgmma, make_wgmma_wait, matrix_descriptor
    mma, done, constant = make_wgmma(64, "bfloat16"), make_wgmma_wait(0, 32), matrix_descriptor(16, 1024, 128)

    @cuda.jit(launch_bounds=(128, 1))
    def kernel(out, base):
        acc = cuda.local.array(32, f32)
        for k in range(32):
            acc[k] = f32(0)
        mma(acc, descriptor(constant, base), descriptor(constant, base), i32(1))
        acc[0] = f32(acc[0] + f32(1))
        mma(acc, descriptor(constant, base), descriptor(constant, base), i32(1))
        done(acc)
        for k in range(32):
            out[i32(k * 128 + cuda.threadIdx.x)] = acc[k]
    code = sass.assembled(kernel, ("float32*", "uint32"), "sm_90a")
    assert code.slow, code.report


@pytest.mark.parametrize("dtype", ["bool", "int64", "uint16", "float8_e8m0fnu", "bfloat16"])
def test_the_comparison_of_results_compiles(dtype):
    from dnnkern.host.compare import kernel
    from dnnkern.host.dtypes import STORAGE
    code = sass.assembled(kernel(dtype), (f"{STORAGE[dtype]}*",) * 2 + ("int64", "float64*", "float64*"), "sm_90a")
    assert code.spilled == 0, code.report
