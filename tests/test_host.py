"""Descriptors, dtypes, the adapters of frameworks' arrays, streams, devices."""
import ctypes
import weakref

import numpy as np
import pytest

import dnnkern
from dnnkern.device import HOST_MEMORY, SIMULATED
from dnnkern.host.arrays import View, alignment, kind_of
from dnnkern.host.dtypes import ITEMSIZE, ROUNDOFF, STORAGE, compute_dtype, dtype_name, numpy_dtype
from dnnkern.host.front import stream_handle
from dnnkern.host.tensor import Tensor, packed_strides

try:
    import torch
except ImportError:
    torch = None

simulator = pytest.mark.skipif(not SIMULATED, reason="of the simulator")
with_torch = pytest.mark.skipif(torch is None, reason="torch is not installed")


# ---- Tensor

@pytest.mark.parametrize("shape, strides, extent, nbytes, packed", [
    ((), (), (0, 4), 4, True),
    ((5,), (1,), (0, 20), 20, True),
    ((5,), (-1,), (-16, 4), 20, False),
    ((3, 4), (4, 1), (0, 48), 48, True),
    ((3, 4), (1, 3), (0, 48), 48, False),
    ((3, 4), (-4, -1), (-44, 4), 48, False),
    ((3, 4), (-8, 2), (-64, 28), 48, False),
    ((3, 4), (0, 1), (0, 16), 16, False),
    ((1, 4), (99, 1), (0, 16), 16, True),
    ((0, 4), (4, 1), (0, 0), 0, True),
    ((3, 0), (7, 7), (0, 0), 0, False)])
def test_tensor(shape, strides, extent, nbytes, packed):
    t = Tensor(shape, strides, "float32")
    assert (t.extent, t.nbytes, t.is_packed, t.ndim) == (extent, nbytes, packed, len(shape))
    assert t.size == np.prod(shape, dtype=int)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4), (0, 3), (1, 1)])
def test_packed_strides_are_numpys(shape):
    a = np.empty(shape, np.float64)
    assert Tensor.packed(shape, "float64").is_packed
    if a.size:
        assert tuple(8 * s for s in packed_strides(shape)) == a.strides


def test_tensors_that_cannot_be():
    for arguments, error, words in ((((3,), (1, 1), "float32"), ValueError, "needs 1 strides"),
                                    (((-1,), (1,), "float32"), ValueError, "negative"),
                                    (((3,), (1,), "float31"), TypeError, "float31.*float32")):
        with pytest.raises(error, match=words):
            Tensor(*arguments)


def test_tensor_in_words():
    assert str(Tensor.packed((2, 3), "bfloat16")) == "bfloat16[2, 3]"
    assert str(Tensor((2, 3), (1, 2), "int8", 4)) == "int8[2, 3] strides (1, 2) align 4"


@pytest.mark.parametrize("address, want", [(0, 16), (16, 16), (8, 8), (24, 8), (4, 4), (2, 2), (1, 1), (31, 1), (1 << 40, 16)])
def test_alignment(address, want):
    assert alignment(address) == want


# ---- dtypes

@pytest.mark.parametrize("name", ITEMSIZE)
def test_dtype_names(name):
    d = numpy_dtype(name)
    assert dtype_name(d) == dtype_name(name) == dtype_name(d.type) == name
    assert d.itemsize == ITEMSIZE[name] == ITEMSIZE[STORAGE[name]]
    if torch is not None and hasattr(torch, name):
        assert dtype_name(getattr(torch, name)) == name


def test_aliases_and_unknown_dtypes():
    assert [dtype_name(n) for n in ("bf16", "half", "e4m3", "f64")] == ["bfloat16", "float16", "float8_e4m3fn", "float64"]
    for wrong in ("float31", np.dtype("complex64"), object, 3, None, np.dtype("float32").newbyteorder()):
        if wrong is not None:  # NumPy reads None as float64
            with pytest.raises(TypeError, match="unknown dtype.*float32"):
                dtype_name(wrong)


def test_roundoffs_are_what_rounding_does():
    for name, u in ROUNDOFF.items():
        d = numpy_dtype(name)
        assert float(np.array(1 + 2 * u).astype(d)) == 1 + 2 * u and float(np.array(1 + 0.99 * u).astype(d)) == 1, name


def test_accumulators():
    assert {n: compute_dtype(n) for n in ("float64", "float32", "bfloat16", "float8_e5m2", "int8")} == {
        "float64": "float64", "float32": "float32", "bfloat16": "float32", "float8_e5m2": "float32", "int8": "int32"}


# ---- arrays

class Faked:
    """Any library's array: the interface and nothing else."""

    def __init__(self, array):
        self.array = array
        self.__cuda_array_interface__ = dict(array.__array_interface__, version=3)


@simulator
def test_numpy_in_numpy_out():
    y = dnnkern.matmul(np.ones((2, 3), np.float16), np.ones((3, 2), np.float16))
    assert type(y) is np.ndarray and y.dtype == np.float16 and (y == 3).all()


@simulator
def test_bfloat16_of_ml_dtypes():
    bf16 = numpy_dtype("bfloat16")
    y = dnnkern.matmul(np.full((2, 3), 1.5, bf16), np.ones((3, 2), bf16))
    assert y.dtype == bf16 and (y == 4.5).all()


@simulator
def test_numbas_arrays_in_the_simulator():
    from numba import cuda as numba_cuda
    y = dnnkern.matmul(numba_cuda.to_device(np.ones((2, 3), np.float32)), numba_cuda.to_device(np.ones((3, 2), np.float32)))
    assert type(y).__module__.startswith("numba.cuda.simulator") and (y.copy_to_host() == 3).all()


@simulator
def test_views_of_numbas_arrays():
    from numba import cuda as numba_cuda
    bits = np.full((3, 3), 0x4040, np.uint16)  # 3.0
    a = dnnkern.view(numba_cuda.to_device(bits), "bfloat16")
    assert isinstance(a, View) and (a.shape, a.ndim, a.dtype) == ((3, 3), 2, numpy_dtype("bfloat16"))
    assert kind_of(a).tensor(a) == Tensor.packed((3, 3), "bfloat16", kind_of(a).tensor(a).alignment)
    assert (a.copy_to_host() == 3).all() and "bfloat16" in repr(a)
    assert (dnnkern.matmul(a, a, out_dtype="float32").copy_to_host() == 27).all()
    assert (dnnkern.matmul(a, a).copy_to_host().astype(float) == 27).all()
    again = dnnkern.view(a, "float16")
    assert isinstance(again, View) and not isinstance(again.array, View)


def test_views_that_cannot_be(simulated):
    with pytest.raises(TypeError, match="view: a is float32, of 4 bytes, dtype is bfloat16, of 2"):
        dnnkern.view(np.ones(3, np.float32), "bfloat16")
    with pytest.raises(TypeError, match="view: dtype='float31'"):
        dnnkern.view(np.ones(3, np.float32), "float31")
    with pytest.raises(TypeError, match="view: a: got list"):
        dnnkern.view([1.0], "float32")
    with pytest.raises(TypeError, match="got list"):
        dnnkern.view([1.0], "float32")


def test_a_view_is_the_same_memory(simulated):
    a = np.zeros(4, np.uint16)
    dnnkern.view(a, "float16")[1] = 1.0
    assert a[1] == 0x3C00


@with_torch
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_torch(dtype):
    where = "cpu" if SIMULATED else "cuda"
    a = torch.arange(12, device=where).reshape(3, 4).to(getattr(torch, dtype))
    b = torch.arange(12, device=where).reshape(3, 4).to(getattr(torch, dtype)).T
    y = dnnkern.matmul(a, b)
    assert type(y) is torch.Tensor and y.device == a.device and y.dtype == a.dtype
    assert torch.equal(y.double().cpu(), a.double().cpu() @ b.double().cpu())
    assert kind_of(b).tensor(b).strides == (1, 4)


@with_torch
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_eight_bit_floats_of_torch(dtype):
    where = "cpu" if SIMULATED else "cuda"
    a = torch.arange(-6, 6, device=where).reshape(3, 4).to(getattr(torch, dtype))
    scale = torch.tensor([[2.0], [0.5], [1.0]], device=where)
    y = dnnkern.matmul(a, a, transpose_b=True, scale_a=scale, scale_b=torch.tensor(4.0, device=where))
    assert type(y) is torch.Tensor and y.device == a.device and y.dtype == torch.bfloat16
    assert torch.equal(y.double().cpu(), (4 * scale * (a.double() @ a.double().T)).to(torch.bfloat16).double().cpu())
    z = dnnkern.matmul(a, a, transpose_b=True, alpha=1e5, out_dtype=a.dtype)
    largest = float(torch.finfo(a.dtype).max)
    assert z.dtype == a.dtype and set(z.double().cpu().abs().flatten().tolist()) == {largest}


@simulator
def test_eight_bit_floats_of_ml_dtypes_and_numba():
    from numba import cuda as numba_cuda
    e4m3 = numpy_dtype("float8_e4m3fn")
    a = np.full((2, 3), 1.5, e4m3)
    y = dnnkern.matmul(a, a, transpose_b=True, out_dtype="float8_e5m2")
    assert y.dtype == numpy_dtype("float8_e5m2") and (y.astype(float) == 7).all()  # 6.75 has five bits, e5m2 three, e4m3 four
    viewed = dnnkern.view(numba_cuda.to_device(a.view(np.uint8)), e4m3)
    y = dnnkern.matmul(viewed, viewed, transpose_b=True, out_dtype=e4m3)
    assert y.dtype == e4m3 and (y.copy_to_host().astype(float) == 7).all()


@with_torch
@pytest.mark.filterwarnings("ignore")  # torch's, of what it calls beta, or means to deprecate
def test_torch_tensors_that_cannot_be():
    meta = torch.ones(2, 2, device="meta")
    with pytest.raises(TypeError, match="a: got a torch tensor on meta"):
        dnnkern.matmul(meta, meta)
    sparse = torch.eye(2, device="cpu" if SIMULATED else "cuda").to_sparse()
    with pytest.raises(TypeError, match="matmul: a: .*sparse"):
        dnnkern.matmul(sparse, sparse)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], device=sparse.device)
    with torch._subclasses.FakeTensorMode():
        fake = torch.empty(3, device=sparse.device)
    plain = torch.ones(3, device=sparse.device)
    for wrong, words in ((meta, "on meta"), (sparse, "sparse"), (sparse.to_sparse_csr(), "sparse"), (nested, "nested"),
                         (fake, "without memory"), (plain.to(torch.complex64), "complex64")):
        with pytest.raises((TypeError, ValueError), match=f"activation_fwd: x: .*({words})"):
            dnnkern.activation_fwd(wrong, "relu")
        with pytest.raises((TypeError, ValueError), match=f"activation_fwd: out: .*({words})"):
            dnnkern.activation_fwd(plain, "relu", out=wrong)
        with pytest.raises((TypeError, ValueError), match=rf"sgd_step: grads\[1\]: .*({words})"):
            dnnkern.sgd_step([plain, plain.clone()], [plain.clone(), wrong], lr=0.5)


@with_torch
def test_torch_tensors_whose_memory_holds_their_negatives():
    """A call with one must not be taken for the call with the tensor that it is a view of, which looks the same."""
    z = torch.tensor([1 + 2j, 3 - 4j], device="cpu" if SIMULATED else "cuda")
    plain, negative = z.imag, z.conj().imag
    assert negative.is_neg() and (plain.data_ptr(), plain.stride()) == (negative.data_ptr(), negative.stride())
    for _ in range(2):
        assert dnnkern.activation_fwd(plain, "relu").tolist() == [2, 0]
        with pytest.raises(TypeError, match=r"activation_fwd: x: .*negatives of its values; expected x.resolve_neg\(\)"):
            dnnkern.activation_fwd(negative, "relu")
        with pytest.raises(TypeError, match="activation_fwd: out: .*negatives"):
            dnnkern.activation_fwd(plain.clone(), "relu", out=negative)
        with pytest.raises(TypeError, match=r"sgd_step: grads\[0\]: .*negatives"):
            dnnkern.sgd_step([plain.clone()], [negative], lr=0.5)
    assert dnnkern.activation_fwd(negative.resolve_neg(), "relu").tolist() == [0, 4]


def test_interfaces_are_read(simulated):
    a = np.arange(12, dtype=np.float32).reshape(3, 4)[::-1, ::2]
    face = Faked(a)
    kind = kind_of(face)
    assert kind.name == "interface"
    assert kind.tensor(face) == Tensor((3, 2), (-4, 2), "float32", alignment(a.__array_interface__["data"][0]))
    packed = Faked(np.ones((2, 3), np.int8))
    assert packed.__cuda_array_interface__["strides"] is None and kind.tensor(packed).strides == (3, 1)


def test_dlpack_objects_of_another_device_are_refused():
    class Producer:
        def __dlpack__(self, **options):
            raise AssertionError("must not be asked: the device is wrong")

        def __dlpack_device__(self):
            return kind, 0

    for kind, where in ((10, "on DLPack's device type 10"), (1, "in host memory")):  # ROCm, the CPU
        where = f"{where}; expected an array on a CUDA device"
        if HOST_MEMORY:
            where = ", which is no NumPy array and no torch tensor; without a GPU those alone are arrays: numpy.from_dlpack"
        with pytest.raises(TypeError, match=f"matmul: a: got Producer *{where}"):
            dnnkern.matmul(Producer(), Producer())


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # NumPy's, of its matrices
def test_a_subclass_is_its_framework(simulated):
    class Mine(np.ndarray):
        pass
    a = np.ones((2, 2), np.float32).view(Mine)
    assert (np.asarray(dnnkern.matmul(a, a)) == 2).all()
    matrix = np.matrix(np.ones((2, 2), np.float32))  # slices of it and sums keep two dimensions
    y = dnnkern.reduce(matrix, "add", axes=1)
    assert type(y) is np.ndarray and y.tolist() == [2, 2]


def test_arrays_of_two_frameworks(simulated):
    from numba import cuda as numba_cuda
    ones = np.ones((2, 2), np.float32)
    assert type(dnnkern.matmul(ones, numba_cuda.to_device(ones))) is np.ndarray
    assert type(dnnkern.matmul(numba_cuda.to_device(ones), ones)) is not np.ndarray


def _every_kind():
    """Non-packed arrays, of every framework there is."""
    x = np.arange(-60, 60, dtype=np.float32).reshape(4, 5, 6)
    yield from (("K order", np.negative(x.transpose(1, 2, 0))), ("reversed", x[::-1, 4:0:-2]), ("record", x.view(np.recarray)),
                ("no dimensions", np.array(-2, np.float32)), ("nothing", x[:0]), ("broadcast", np.broadcast_to(x[0], x.shape)),
                ("bytes", np.frombuffer(x.tobytes(), np.float32)[1::2]), ("half", x.astype(np.float16)[:, ::2]),
                ("bfloat16", x.astype(numpy_dtype("bfloat16")).T))
    yield "view", dnnkern.view(x.astype(np.float16).view(np.uint16)[:, ::-2], "float16")
    from numba import cuda as numba_cuda
    yield "numba", numba_cuda.to_device(x)[::2, 1:, ::3]
    yield "numba, viewed", dnnkern.view(numba_cuda.to_device(x.astype(np.float16).view(np.uint16))[1:, ::2], "float16")
    if torch is not None:
        t = torch.from_numpy(x)
        for name, a in (("columns", t[:, ::2]), ("part", t[1:3, 2:5]), ("expanded", t[:1].expand(4, 5, 6)),
                        ("channels_last", t[None].contiguous(memory_format=torch.channels_last)), ("no dimensions", t[1, 2, 3]),
                        ("transposed", t.transpose(0, 2)), ("nothing", t[:, 5:]),
                        ("bfloat16", t.bfloat16()[:, 1::2]), ("parameter", torch.nn.Parameter(t)[1:]),
                        ("viewed", dnnkern.view(t.half().view(torch.int16)[..., 1::2], "float16"))):
            yield f"torch: {name}", a.detach()


@simulator
def test_arrays_of_any_strides_in_and_out():
    def host(a):
        return np.array(kind_of(a).host_view(a)).view(numpy_dtype(kind_of(a).tensor(a).dtype))
    for name, a in _every_kind():
        want = np.maximum(host(a), np.array(0, host(a).dtype))
        assert np.array_equal(host(dnnkern.activation_fwd(a, "relu")), want), name
        writable = not isinstance(a, np.ndarray) or a.flags.writeable
        if writable and 0 not in (s for n, s in zip(a.shape, kind_of(a).tensor(a).strides) if n > 1):
            assert dnnkern.activation_fwd(a, "relu", out=a) is a and np.array_equal(host(a), want), name


@simulator
@with_torch
def test_storages_stay_resizable():
    whole = torch.arange(-6.0, 6)
    dnnkern.activation_fwd(whole[1::2], "relu", out=whole[::2])
    assert whole.tolist() == [0, -5, 0, -3, 0, -1, 1, 1, 3, 3, 5, 5]
    whole.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=r"got a torch tensor of shape \(12,\) without memory: its storage has been resized to 0 bytes"):
        dnnkern.activation_fwd(whole, "relu")


@simulator
def test_masks_are_not_ignored():
    with pytest.raises(TypeError, match=r"activation_fwd: x: got a masked array, whose mask would be ignored; expected a plain one"):
        dnnkern.activation_fwd(np.ma.masked_less(np.ones(3, np.float32), 0), "relu")


# ---- streams

class _Stream:
    def __init__(self, **attributes):
        vars(self).update(attributes)


class _Protocol:
    def __cuda_stream__(self):
        return 0, 77


@pytest.mark.parametrize("stream, want", [(5, 5), (0, 0), (_Protocol(), 77), (_Stream(cuda_stream=6), 6), (_Stream(ptr=8), 8),
                                          (_Stream(handle=9), 9), (_Stream(handle=ctypes.c_void_p(10)), 10),
                                          (_Stream(handle=ctypes.c_void_p(None)), 0)])
def test_stream_handles(stream, want):
    assert stream_handle("f", stream) == want


@pytest.mark.parametrize("name, references", [("cuda_stream", 0), ("ptr", 1), ("handle", 1)])
def test_objects_of_streams_that_may_end_are_kept(name, references):
    """Not PyTorch's, whose C++ does not clear weak references."""
    stream = _Stream(**{name: 12})
    stream_handle("f", stream)
    assert weakref.getweakrefcount(stream) == references


def test_things_that_are_no_streams():
    for wrong in ("default", 1.5, object(), [1]):
        with pytest.raises(TypeError, match="expected an int or a stream of Numba, CuPy, PyTorch or cuda.core"):
            stream_handle("f", wrong)


# ---- devices

def test_architectures_a_device_supports():
    import dataclasses
    from dnnkern.host.device import current_device
    from dnnkern.host.device import device as device_of
    d = dataclasses.replace(device_of(current_device()), capability=(8, 9), arch="sm_89", name="mine")
    archs = "sm_70+", "sm_89+", "sm_90+", "sm_100+", "sm_90a", "sm_89"
    assert [a for a in archs if d.supports(a) is None] == ["sm_70+", "sm_89+", "sm_89"]
    assert "needs sm_90+" in d.supports("sm_90+") and "sm_89" in d.supports("sm_90+") and "exactly sm_90a" in d.supports("sm_90a")


def test_devices_that_do_not_exist():
    from dnnkern.host.device import device as device_of
    with pytest.raises(ValueError, match="99"):
        device_of(99)
