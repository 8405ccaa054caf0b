"""Bulk copies between global and shared memory by the tensor memory accelerator (sm_90): one thread issues them, nobody's registers see the
data.

What a tensor map describes travels in boxes, swizzled for the tensor cores on the way if the map says so; what lies outside the array is
read as zero and not written. A load says at an mbarrier that its bytes have landed, a store is waited for by the thread that issued it::

    load, drain = make_tma_load(2), make_bulk_wait(0)                       # host
    ...
    at = tensor_map_address(x)                                             # in the kernel itself
    if t == 0:
        mbarrier_arrive_expect(full, u32(BYTES))                           # of the whole box, the part outside the array too
        load(tile, at, full, i32(column), i32(row))                        # coordinates of the box, innermost first
    mbarrier_wait(full, u32(0))
    ...                                                                    # everybody writes its part of `staging`
    fence_async_shared()                                                   # for each who wrote, then the barrier
    cuda.syncthreads()
    if t == 0:
        tma_store_2d(tensor_map_address(y), staging, i32(column), i32(row))
        bulk_commit()
        drain()                                                            # before the thread returns or `staging` is used again

======================================================  ==========================================================================
tensor_map_address(map)                                  of a kernel parameter of type "tensormap"; only in the kernel itself
prefetch_tensor_map(map)                                 bring it into the cache of maps; once a block, before the first copy
make_tma_load(rank, im2col, multicast, hint)             host function: ``load(to, map, bar, c0, .., [offsets], [mask], [policy])``
tma_load_1d .. 5d, tma_load_im2col_3d .. 5d              those without multicast and hint
make_tma_store(rank, hint)                               host function: ``store(map, source, c0, .., [policy])``
make_tma_reduce_add(rank)                                host function: the same, added to the array: float32, int32, bfloat16, float16
tma_store_1d .. 5d, tma_reduce_add_1d .. 5d
bulk_load(to, source, bytes, bar)                        without a map: multiples of 16 bytes, `source` a `vec.address`
bulk_store(target, source, bytes)
bulk_reduce_add_f32(target, source, bytes)
bulk_commit()                                            the thread's stores since the last call are a group, be it empty
make_bulk_wait(pending)                                  host function: ``wait()`` until all but the latest groups are complete
make_bulk_wait_read(pending)                             host function: until they have read their source, which may be written again
EVICT_NORMAL, EVICT_FIRST, EVICT_LAST                    policies of the L2 cache, for hints
======================================================  ==========================================================================

``im2col``: a map of kind `host.tensormap.Im2colMap`. Coordinates are channel, column, row, .., image of the first pixel, in the map's box
of pixels; the offsets (w, then h, then d) move every pixel that is read, a filter tap times the dilation. ``multicast``: the box is written
at the same offset in every block of the cluster that is in the mask, and the barrier at the same offset in each is told.

A box in shared memory begins at a multiple of 128 bytes, a run of bytes at one of 16. In the array a box begins a multiple of 16 bytes
behind, or before, the beginning of a row: with any other innermost coordinate the instruction is an illegal one. So is a store with a
negative coordinate; only a load's box may begin before the array, and both may reach beyond its end. Stores write pieces of 16 bytes: where
the array's rows are no multiple of that, the piece in which a row ends is written as a whole. The swizzle exchanges such pieces by the bits
7 to 9 of their address: the pattern repeats every 256, 512 or 1024 bytes of shared memory, wherever the box begins.

In the simulator a load lands when somebody waits at its barrier and all else that the phase needs has come, a store reads its source when
its thread waits: the latest moments a GPU may choose. Until then destinations hold 0xFF bytes (NaN). Both are in the order of memory
accesses from their issue until that wait: accesses which nobody ordered after it, plain writes which no fence_async made visible to them, a
source that is written too early, and copies that nobody waits for are errors.
"""
import functools

from . import SIMULATED, instruction

if SIMULATED:
    from .sim import tma as _twins

    def tensor_map_address(tensor_map):
        """The map itself stands for its address."""
        return tensor_map
else:
    from ._intrinsics import tensor_map_address  # noqa: F401
    _twins = None

# as ``createpolicy.fractional`` makes them, for all of an access
EVICT_NORMAL, EVICT_FIRST, EVICT_LAST = 0x1000000000000000, 0x12F0000000000000, 0x14F0000000000000


def _emit(text, operands, twin, *choices):
    """A device function; its twin is the function `twin` of the simulator, or what that makes of `choices`."""
    found = getattr(_twins, twin) if SIMULATED else None
    return instruction(text, (), operands, memory=True, twin=found(*choices) if SIMULATED and choices else found)


def _list(first, count):
    return ", ".join(f"${first + k}" for k in range(count))


def _check_rank(what, rank, least=1):
    if not least <= rank <= 5:
        raise ValueError(f"{what}: rank {rank}; expected {least} to 5")


@functools.cache
def make_tma_load(rank, im2col=False, multicast=False, hint=False):
    """Device function ``load(to, map, bar, c0, .., [offsets], [mask], [policy])`` of one box. Host function."""
    _check_rank("make_tma_load", rank, 3 if im2col else 1)
    operands = ["uint32", "uint64", "uint32"] + ["int32"] * rank
    halves, extra = "", ""
    if im2col:
        names = [f"o{k}" for k in range(rank - 2)]
        halves += "".join(f".reg .b16 {n}; cvt.u16.u32 {n}, ${len(operands) + k}; " for k, n in enumerate(names))
        extra += f", {{{', '.join(names)}}}"
        operands += ["uint32"] * (rank - 2)
    if multicast:
        halves += f".reg .b16 m; cvt.u16.u32 m, ${len(operands)}; "
        extra += ", m"
        operands.append("uint32")
    if hint:
        extra += f", ${len(operands)}"
        operands.append("uint64")
    text = (f"{{ {halves}cp.async.bulk.tensor.{rank}d.shared::cluster.global{'.im2col' if im2col else '.tile'}.mbarrier::complete_tx::bytes"
            f"{'.multicast::cluster' * multicast}{'.L2::cache_hint' * hint} [$0], [$1, {{{_list(3, rank)}}}], [$2]{extra}; }}")
    return _emit(text, tuple(operands), "load", rank, im2col, multicast)


@functools.cache
def make_tma_store(rank, hint=False):
    """Device function ``store(map, source, c0, .., [policy])`` of one box. Host function."""
    _check_rank("make_tma_store", rank)
    text = (f"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group{'.L2::cache_hint' * hint} [$0, {{{_list(2, rank)}}}], [$1]"
            f"{f', ${rank + 2}' * hint};")
    return _emit(text, ("uint64", "uint32") + ("int32",) * rank + ("uint64",) * hint, "store", rank, False)


@functools.cache
def make_tma_reduce_add(rank):
    """Device function ``add(map, source, c0, ..)`` of one box to global memory. Host function."""
    _check_rank("make_tma_reduce_add", rank)
    text = f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.add.tile.bulk_group [$0, {{{_list(2, rank)}}}], [$1];"
    return _emit(text, ("uint64", "uint32") + ("int32",) * rank, "store", rank, True)


tma_load_1d, tma_load_2d, tma_load_3d, tma_load_4d, tma_load_5d = map(make_tma_load, range(1, 6))
tma_load_im2col_3d, tma_load_im2col_4d, tma_load_im2col_5d = (make_tma_load(rank, im2col=True) for rank in (3, 4, 5))
tma_store_1d, tma_store_2d, tma_store_3d, tma_store_4d, tma_store_5d = map(make_tma_store, range(1, 6))
tma_reduce_add_1d, tma_reduce_add_2d, tma_reduce_add_3d, tma_reduce_add_4d, tma_reduce_add_5d = map(make_tma_reduce_add, range(1, 6))

bulk_load = _emit("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];",
                  ("uint32", "uint64", "uint32", "uint32"), "bulk_load")
bulk_store = _emit("cp.async.bulk.global.shared::cta.bulk_group [$0], [$1], $2;", ("uint64", "uint32", "uint32"), "bulk_store")
bulk_reduce_add_f32 = _emit("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [$0], [$1], $2;", ("uint64", "uint32", "uint32"),
                            "bulk_reduce_add_f32")
bulk_commit = _emit("cp.async.bulk.commit_group;", (), "bulk_commit")
prefetch_tensor_map = _emit("prefetch.tensormap [$0];", ("uint64",), "prefetch_tensor_map")


def _make_wait(name, read, pending):
    if pending < 0:
        raise ValueError(f"{name}: {pending} groups")
    return _emit(f"cp.async.bulk.wait_group{'.read' * read} {pending};", (), "bulk_wait", pending, read)


@functools.cache
def make_bulk_wait(pending):
    """Device function that waits until all but the thread's latest `pending` groups are complete. Host function."""
    return _make_wait("make_bulk_wait", False, pending)


@functools.cache
def make_bulk_wait_read(pending):
    """Device function that waits until all but the thread's latest `pending` groups have read their source. Host function."""
    return _make_wait("make_bulk_wait_read", True, pending)
