"""The simulator's memory: pointers, arrays, shared and local memory."""
import ml_dtypes
import numpy as np
import pytest

from dnnkern.device.sim import Misuse, Pointer, cuda, current, f32, f64, i16, i32, i64, u8, u16, u32, u64


def run(body, *args, shared=0, block=1):
    """Run the function `body` as a kernel of one block."""
    cuda.jit(body).simulate(1, block, args, shared=shared)


def results(body, *args, **options):
    """What `body` hands to its first parameter."""
    out = []
    cuda.jit(body).simulate(1, 1, (lambda *v: out.append(v), *args), **options)
    return out


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64", "bool"])
def test_element_types(dtype):
    a = np.array([1, 0, 1, 1], dtype)

    def k(say, p):
        for i in range(4):
            say(p[i])
        p[1] = p[0] + p[0] if dtype != "bool" else True
    got = results(k, Pointer(a))
    want = int if a.dtype.kind in "iu" else a.dtype.type
    assert [v for v, in got] == [1, 0, 1, 1] and all(type(v) is want for v, in got)
    assert a[1] == (True if dtype == "bool" else 2)


@pytest.mark.parametrize("dtype, value, stored", [
    ("uint8", 257, 1), ("int8", 200, -56), ("uint32", -1, 0xFFFFFFFF), ("int32", 2 ** 31, -2 ** 31), ("uint16", f32(7.9), 7),
    ("int32", np.float64(-7.9), -7), ("float32", 1 / 3, np.float32(1 / 3)), ("uint64", -1, 2 ** 64 - 1),
    ("int32", np.int64(2 ** 32 + 5), 5), ("float32", np.int32(3), 3), ("bool", 2, True), ("int32", True, 1)])
def test_stores_convert_as_c_does(dtype, value, stored):
    a, b, c = np.zeros(3, dtype), np.zeros((2, 2), dtype), np.zeros((2, 2, 2), dtype)

    def k(p, q, r, s):
        p[1] = value
        q[1, 1] = value
        r[1, 1, 1] = value
        s[0] = value
    d = np.zeros(1, dtype)
    run(k, Pointer(a), b, c, d)
    assert a[1] == b[1, 1] == c[1, 1, 1] == d[0] == stored


def test_pointer_reaches_its_allocation_and_no_more():
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)

    def k(say, p):
        say(p[0], p[5], p[-8], (p + 3)[0], (3 + p)[-1], (p - 8)[0])
    for view in (whole[1:3, 2:], whole[::-1, ::-1][2:, 3:], whole.T[2:, 1:], whole[1:2, 2:3][0, :]):
        flat, at = whole.reshape(-1), (view.ctypes.data - whole.ctypes.data) // 4
        assert results(k, Pointer(view)) == [tuple(flat[at + n] for n in (0, 5, -8, 3, 2, -8))]
    for index in (16, -9, 2 ** 40):
        with pytest.raises(Misuse, match=rf"argument p: index {index} is read, its memory has the indices -8 .. 15 of float32") as e:
            results(lambda say, p: p[index], Pointer(whole[1:3, 2:]))
        assert "thread (0, 0, 0) (warp 0, lane 0) of block (0, 0, 0)" in e.value.__notes__[0]

        def store(p):
            p[index] = f32(1)
        with pytest.raises(Misuse, match=f"argument p: index {index} is written"):
            run(store, Pointer(whole[1:3, 2:]))


def test_pointer_offset_and_dtype():
    a = np.arange(8, dtype=np.uint32)

    def k(say, p, q):
        say(p[0], q[0], q[3])
    assert results(k, Pointer(a, offset=2), Pointer(a, np.uint16, 2)) == [(2, 1, 0)]


def test_pointers_on_the_host():
    a = np.arange(8, dtype=np.uint32)
    p = (Pointer(a[2:]) + 1).view(u16)
    assert p[0] == 3 and p[-6] == 0 and (p + 2)[0] == 4 and (p - 2)[0] == 2 and p.address == Pointer(a).address + 12
    p[2] = 9
    assert a[4] == 9 and results(lambda say, q: say(q[0], q[2]), p) == [(3, 9)]
    nothing = Pointer(np.empty(0, np.float32))
    with pytest.raises(Misuse, match="argument p: index 0 is read"):
        results(lambda say, p: p[0], nothing)


def test_pointer_over_bytes_and_fortran_order():
    data = bytearray(np.arange(8, dtype=np.int32).tobytes())
    assert results(lambda say, p: say(p[-2], p[0], p[5]), Pointer(np.frombuffer(data, np.int32, offset=8))) == [(0, 2, 7)]
    a = np.asfortranarray(np.arange(12, dtype=np.int32).reshape(3, 4))
    assert results(lambda say, p: say(p[0], p[1], p[11]), Pointer(a)) == [(0, 4, 11)]


def _whole():
    return np.arange(1, 121, dtype=np.float32).reshape(4, 5, 6)


def _strided(x, *selection):
    return np.lib.stride_tricks.as_strided(x[selection], (3, 2), (48, 8))


def _mapped(folder, mode):
    path = folder / "numbers"
    path.write_bytes(bytes(8) + _whole().tobytes())
    return np.memmap(path, np.float32, mode, 8, (4, 5, 6))


ARRAYS = {  # an array, whether it may be written, and how many elements of float32 its memory has
    "a permuted result": (lambda _: np.sqrt(_whole().transpose(1, 2, 0)), True, 120),
    "a permuted result, reversed": (lambda _: np.negative(_whole().transpose(2, 0, 1))[::-1, 1:, ::-2], True, 120),
    "fortran order": (lambda _: np.asfortranarray(_whole())[1:, ::2], True, 120),
    "gaps": (lambda _: np.ndarray((3, 2), np.float32, bytearray(200), 16, (48, 8)), True, 50),
    "negative strides": (lambda _: _whole()[::-1, 3:0:-2, ::-1], True, 120),
    "as_strided": (lambda _: _strided(_whole(), 1), True, 120),
    "sliding windows": (lambda _: np.lib.stride_tricks.sliding_window_view(_whole(), 3, axis=1), False, 120),
    "broadcast": (lambda _: np.broadcast_to(_whole()[0, :, :1], (3, 5, 7)), False, 120),
    "no dimensions": (lambda _: np.array(3, np.float32), True, 1),
    "no dimensions, of a larger one": (lambda _: _whole()[2, 1, 3:4].reshape(()), True, 120),
    "nothing": (lambda _: np.empty((3, 0), np.float32), True, 0),
    "nothing of something": (lambda _: _whole()[4:], True, 120),
    "a subclass": (lambda _: _whole().view(cuda.device_array(1).__class__)[::2, 1:], True, 120),
    "bytes": (lambda _: np.frombuffer(_whole().tobytes(), np.float32)[::7], False, 120),
    "a mapped file to read": (lambda folder: _mapped(folder, "r"), False, 122),
    "a mapped file to write": (lambda folder: _mapped(folder, "r+")[::2, :, 1:], True, 122),
    "a mapped file to copy": (lambda folder: _mapped(folder, "c")[1:, ::-1], True, 122)}


@pytest.mark.parametrize("kind", ARRAYS)
def test_any_array_is_its_memory(kind, tmp_path):
    make, writable, count = ARRAYS[kind]
    a = make(tmp_path)
    want = np.array(a)
    p = Pointer(a)
    strides = [s // 4 for s in a.strides]
    assert len(p.buffer.raw) // 4 == p.count == (count if a.size else p.count)
    assert [p[int(np.dot(index, strides))] for index in np.ndindex(*a.shape)] == want.ravel().tolist()

    def k(say, x):
        for index in np.ndindex(*a.shape):
            say(x[index])
            if writable:
                x[index] = x[index] + f32(1)
    assert [v for v, in results(k, a)] == want.ravel().tolist()
    assert (np.asarray(a) == want + writable).all()
    if not p.buffer.raw.flags.writeable:
        with pytest.raises(Misuse, match="read-only"):
            run(lambda x: x.fill(f32(0)), a)


def test_memory_can_be_closed_after_a_launch():
    memory = memoryview(bytearray(64))  # as shared memory has one
    a = np.ndarray(16, np.float32, memory)
    assert results(lambda say, p: say(p[12]), Pointer(a[3:])) == [(0,)]
    del a
    memory.release()  # a BufferError if somebody still looked into it


def test_views_of_one_memory_have_one_address():
    x = np.sqrt(_whole().transpose(1, 2, 0))
    assert Pointer(x[1:]).address - Pointer(x).address == x.strides[0] and Pointer(_strided(x, 1)).address == Pointer(x[1]).address


def test_pointer_views():
    a = np.array([1.0, -2.0, 3.5, 0.0], np.float32)
    bits = a.view(np.uint32).tolist()

    def k(say, p):
        q = (p + 1).view(u32)
        say(q[0], q[1], q[-1], p.view(u16)[5], p.view(u8)[7], p.view(np.uint64)[1], (p + 1).view(u16).view(f32)[1],
            q.address - p.address)
    assert results(k, Pointer(a)) == [(bits[1], bits[2], bits[0], bits[2] >> 16, bits[1] >> 24, bits[2] | bits[3] << 32, f32(3.5), 4)]


def test_misaligned_pointers():
    raw = np.arange(64, dtype=np.uint8)
    half = raw[2:10].view(np.uint16)

    def k(say, p):
        say(p[0], p[-1], p[2])
    assert results(k, Pointer(half)) == [(0x0302, 0x0100, 0x0706)]
    assert results(k, Pointer(raw[4:20].view(np.float32), np.uint32)) == [(0x07060504, 0x03020100, 0x0F0E0D0C)]
    with pytest.raises(Misuse, match="index 0 is read through a pointer to 0x[0-9a-f]*2, which is not aligned to the 4 bytes of"):
        results(k, Pointer(raw[2:10].view(np.float32)))
    with pytest.raises(Misuse, match="argument p: index 1 is read through a pointer"):
        results(lambda say, p: (p + 1).view(u64)[1], Pointer(raw[4:12].view(np.uint16)))


@pytest.mark.parametrize("dtype, storage", [(np.float16, int), (ml_dtypes.bfloat16, int), (ml_dtypes.float8_e4m3fn, int)])
def test_halves_are_unsigned_integers(dtype, storage):
    a = np.array([1.0, -2.0], dtype)

    def k(say, p):
        say(p[1])
        p[0] = p[1]
    (got,), = results(k, Pointer(a))
    assert type(got) is storage and got == a.view(f"u{a.itemsize}")[1] and a[0] == -2


def test_addresses():
    a, b = np.zeros(100, np.float32), np.zeros(1000, np.float64)
    assert Pointer(a).address % 256 == 0 and Pointer(a[3:]).address == Pointer(a).address + 12
    assert not Pointer(a).address <= Pointer(b).address < Pointer(a).address + 400
    got, = results(lambda say, p, q, x: say(p.address, (q + 2).address, x.address, x[3:].address), Pointer(a), Pointer(b), a)
    assert got == (Pointer(a).address, Pointer(b, offset=2).address, Pointer(a).address, Pointer(a[3:]).address)


def test_read_only_arrays():
    a = np.zeros(4, np.float32)
    a.flags.writeable = False

    def k(p, x):
        assert p[0] == x[1] == 0
        p[0] = f32(1)
    with pytest.raises(Misuse, match="argument p is written, but the array it came from is read-only"):
        run(k, Pointer(a), a)


def test_vector_access():
    a = np.arange(16, dtype=np.float32)

    def k(say, p):
        say(*p.load(4, 4, 16), *p.view(u16).load(2, 2, 4), *(p + 2).load(0, 2, 8))
        p.store(8, [f32(-1)] * 4, 16)
        s = cuda.shared.array((4, 4), i32)
        s.store((2, 0), [7, 8, -1, 2 ** 32 + 3], 16)
        say(*s.load((2, 0), 4, 16), *s.load((2, 2), 2, 8))
    assert results(k, Pointer(a)) == [(4, 5, 6, 7, 0, 0x3F80, 2, 3), (7, 8, -1, 3, -1, 3)]
    assert (a[8:12] == -1).all() and a[7] == 7 and a[12] == 12
    for body, text in ((lambda p: p.load(1, 4, 16), "load of 4 elements at argument p: address 0x.*4 is not aligned to 16"),
                       (lambda p: p.store(3, [0] * 2, 8), "store of 2 elements at argument p: address"),
                       (lambda p: p.load(12, 8, 16), "argument p: index 19 is accessed"),
                       (lambda p: cuda.shared.array((4, 4), i32).load((1, 2), 4, 4),
                        "load of 4 elements at shared array .* not inside the last")):
        with pytest.raises(Misuse, match=text):
            run(body, Pointer(a))


def test_numpy_arguments():
    a = np.arange(24, dtype=np.float64).reshape(2, 3, 4)

    def k(say, x, y, z, pair, n, v, w):
        say(x.shape, x.ndim, x.size, len(x), x.dtype == np.float64, x[1, 2, 3], x[-1, 0, -4], y[0, 1], z[1], n, type(v), type(w))
        say(*x[0, 1], *x[1, :, 2], *x[..., 0][1], *y[1, ::2], pair[0][1], pair[1])
        x[0, 0] = 5
        y[1, 0:2] = z[1:3]
        z[0] += 1
    got = results(k, a, a[:, 1, ::-1], a[1, 1], (a[0, 0], 3), np.int64(7), 1.5, np.float32(1))
    assert got[0] == ((2, 3, 4), 3, 24, 2, True, 23, 12, 6, 17, 7, np.float64, np.float32)
    assert got[1] == (4, 5, 6, 7, 14, 18, 22, 12, 16, 20, 19, 17, 1, 3)
    assert (a[0, 0] == 5).all() and a[1, 1].tolist() == [17, 17, 18, 17] and a[0, 1, 3] == 7


@pytest.mark.parametrize("index, text", [
    ((2, 0), r"index \(2, 0\) is outside its shape \(2, 3\)"), ((0, 3), r"index \(0, 3\)"), ((-3, 0), r"index \(-3, 0\)"),
    ((0, 0, 0), "has 2 dimensions, 3 indices"), (2, "index 2 is outside")])
def test_array_bounds(index, text):
    a = np.zeros((2, 3), np.float32)

    def load(x):
        x[index]

    def store(x):
        x[index] = f32(0)

    def load_shared(x):
        s = cuda.shared.array((2, 3), f32)
        s[index]
    for body, name in ((load, "argument x"), (store, "argument x"), (load_shared, "shared array s")):
        with pytest.raises(Misuse, match=f"{name}.*{text}"):
            run(body, a)


def test_shared_memory_is_per_block_and_poisoned():
    def k(say, x):
        s, t = cuda.shared.array(4, f32), cuda.shared.array((2, 8), u32)
        d = cuda.shared.array(0, i16)
        say(s.size, t.shape, d.size, np.isnan(s[3]), t[1, 7], d[9])
        s[3], t[1, 7], d[9] = 1, 2, 3
    out = []
    cuda.jit(k).simulate(3, 1, (lambda *v: out.append(v), 0), shared=20)
    assert out == [(4, (2, 8), 10, True, 0xFFFFFFFF, -1)] * 3


def test_shared_array_identity():
    def make(n):
        @cuda.jit(device=True)
        def scratch(v):
            s = cuda.shared.array(n, i32)
            if v is not None:
                s[0] = v
            return s[0]
        return scratch
    one, other = make(4), make(4)

    def k(say):
        for step in range(2):
            s = cuda.shared.array(4, i32)
            say(s[0])
            s[0] = step
        say(one(7), other(8), one(None), other(None))
    assert results(k) == [(-1,), (0,), (7, 8, 7, 8)]


def test_shared_addresses_and_dynamic_aliasing():
    def k(say):
        d, h = cuda.shared.array(0, f32), cuda.shared.array(0, u16)
        a, b = cuda.shared.array(3, f32), cuda.shared.array(4, f64, alignment=1024)
        say(d.address, h.address, a.address, b.address % 1024, a.address >= d.address + 100, b.address > a.address)
        d[1] = 1
        say(h[3], d[1:].address - d.address, d.size, h.size)
        say(current().block.shared.base, a.dtype == f32, a.itemsize)
    assert results(k, shared=100) == [(0x410, 0x410, 0x480, 0, True, True), (0x3F80, 4, 25, 50), (0x410, True, 4)]


def test_shared_memory_is_limited():
    def k(say):
        cuda.shared.array(232448 // 4, f32)
        say(1)
        cuda.shared.array(1, f32)
    with pytest.raises(Misuse, match="an array of 4 bytes on top of 232448 exceeds a block's 232448"):
        results(k)


@pytest.mark.parametrize("dtype, first", [(i32, -1), (u8, 255), (f32, None), (np.float64, None), ("int16", -1),
                                          (np.dtype("u8"), 2 ** 64 - 1)])
def test_dtypes_of_arrays_and_local_memory(dtype, first):
    class NumbaType:
        name = np.dtype(getattr(dtype, "dtype", dtype) if dtype not in (f32, np.float64) else dtype).name

    def k(say):
        for d in (dtype, NumbaType()):
            x, y, s = cuda.local.array(4, d), cuda.local.array((2, 3), d), cuda.shared.array(5, d)
            say(x[0], y[1, 2], s[4], x.dtype == s.dtype, x.shape, y.shape)
            x[1] = 3
            y[0, 1] = x[1]
            say(x[1], y[0, 1])
    for a, b in zip(*[iter(results(k))] * 2):
        assert all(v == first if first is not None else np.isnan(v) for v in a[:3])
        assert a[3:] == (True, (4,), (2, 3)) and b == (3, 3)


def test_local_memory_wraps_like_the_hardware_and_is_bounded():
    def k(say):
        x = cuda.local.array(2, u32)
        x[0] = 0xFFFFFFFF + 2
        x[1] = -1
        say(x[0], x[1], type(x[0]))
    assert results(k) == [(1, 0xFFFFFFFF, int)]
    for index in (2, -3):
        with pytest.raises(Misuse, match=f"local array x: index {index} is outside its shape"):
            def out_of_range(say):
                x = cuda.local.array(2, u32)
                x[index] = 1
            results(out_of_range)


def test_constant_memory():
    table = np.arange(4, dtype=np.float32)

    def k(say):
        c = cuda.const.array_like(table)
        say(c[2], c.shape)
    assert results(k) == [(2, (4,))]


def test_arrays_of_odd_strides_are_refused():
    record = np.zeros(4, np.dtype([("a", "u1"), ("b", "<f4")]))
    with pytest.raises(Misuse, match="argument x: strides"):
        run(lambda x: None, record["b"])


def test_two_arguments_share_one_memory():
    a = np.arange(8, dtype=np.int64)

    def k(say, p, q, x):
        p[2] = 50
        say(q[0], x[2], q[-2])
    assert results(k, Pointer(a), Pointer(a[2:]), a) == [(50, 50, 0)]


def test_types_from_the_package_agree():
    from dnnkern.device import cuda as public
    assert public is cuda and i64.dtype == np.int64
