"""Copies by the tensor memory accelerator (sm_90): boxes of arrays by tensor maps, and runs of bytes, between global and shared memory."""
import functools

from . import SIMULATED, instruction

if SIMULATED:
    def tensor_map_address(tensor_map):
        """The map itself stands for its address."""
        return tensor_map
else:
    from ._numba_compile import tensor_map_address  # noqa: F401
_twins = None

EVICT_NORMAL, EVICT_FIRST, EVICT_LAST = 0x1000000000000000, 0x12F0000000000000, 0x14F0000000000000
"""Policies of the L2 cache, as ``createpolicy`` makes them."""


def _twin(name, *choices):
    return getattr(_twins, name)(*choices) if _twins else None


def _coordinates(rank, first):
    return ", ".join(f"${first + k}" for k in range(rank))


def _check_rank(what, rank, least=1):
    if not least <= rank <= 5:
        raise ValueError(f"{what}: rank {rank}; expected {least} to 5")


@functools.cache
def make_tma_load(rank, im2col=False, multicast=False, hint=False):
    """Device function that loads one box. Host function."""
    _check_rank("make_tma_load", rank, 3 if im2col else 1)
    mode = ".im2col" if im2col else ".tile"
    operands = ["uint32", "uint64", "uint32"] + ["int32"] * rank
    declared, extra = "", ""
    if im2col:
        names = [f"o{k}" for k in range(rank - 2)]
        declared += "".join(f".reg .b16 {n}; cvt.u16.u32 {n}, ${len(operands) + k}; " for k, n in enumerate(names))
        extra += f", {{{', '.join(names)}}}"
        operands += ["uint32"] * (rank - 2)
    if multicast:
        declared += f".reg .b16 m; cvt.u16.u32 m, ${len(operands)}; "
        extra += ", m"
        operands.append("uint32")
    if hint:
        extra += f", ${len(operands)}"
        operands.append("uint64")
    text = (f"{{ {declared}cp.async.bulk.tensor.{rank}d.shared::cluster.global{mode}.mbarrier::complete_tx::bytes"
            f"{'.multicast::cluster' * multicast}{'.L2::cache_hint' * hint} [$0], [$1, {{{_coordinates(rank, 3)}}}], [$2]{extra}; }}")
    return instruction(text, (), tuple(operands), memory=True, twin=_twin("load", rank, im2col, multicast))


def _outward(rank, hint, op):
    operands = ("uint64", "uint32") + ("int32",) * rank + ("uint64",) * hint
    text = (f"{op[0]}.async.bulk.tensor.{rank}d.global.shared::cta{op[1]}.tile.bulk_group{'.L2::cache_hint' * hint} "
            f"[$0, {{{_coordinates(rank, 2)}}}], [$1]{f', ${rank + 2}' * hint};")
    return instruction(text, (), operands, memory=True, twin=_twin("store", rank, bool(op[1])))


@functools.cache
def make_tma_store(rank, hint=False):
    """Device function that stores one box. Host function."""
    _check_rank("make_tma_store", rank)
    return _outward(rank, hint, ("cp", ""))


@functools.cache
def make_tma_reduce_add(rank):
    """Device function that adds one box to global memory. Host function."""
    _check_rank("make_tma_reduce_add", rank)
    return _outward(rank, False, ("cp.reduce", ".add"))


tma_load_1d, tma_load_2d, tma_load_3d, tma_load_4d, tma_load_5d = (make_tma_load(n) for n in range(1, 6))
tma_load_im2col_3d, tma_load_im2col_4d, tma_load_im2col_5d = (make_tma_load(n, im2col=True) for n in range(3, 6))
tma_store_1d, tma_store_2d, tma_store_3d, tma_store_4d, tma_store_5d = (make_tma_store(n) for n in range(1, 6))
tma_reduce_add_1d, tma_reduce_add_2d, tma_reduce_add_3d, tma_reduce_add_4d, tma_reduce_add_5d = (make_tma_reduce_add(n) for n in range(1, 6))

bulk_load = instruction("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];", (),
                        ("uint32", "uint64", "uint32", "uint32"), memory=True, twin=_twin("bulk_load"))
bulk_store = instruction("cp.async.bulk.global.shared::cta.bulk_group [$0], [$1], $2;", (), ("uint64", "uint32", "uint32"), memory=True,
                         twin=_twin("bulk_store"))
bulk_reduce_add_f32 = instruction("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [$0], [$1], $2;", (),
                                  ("uint64", "uint32", "uint32"), memory=True, twin=_twin("bulk_reduce_add_f32"))
bulk_commit = instruction("cp.async.bulk.commit_group;", (), (), memory=True, twin=_twin("bulk_commit"))


@functools.cache
def make_bulk_wait(pending):
    """Device function that waits until at most `pending` of the thread's latest groups are under way. Host function."""
    return instruction(f"cp.async.bulk.wait_group {pending};", (), (), memory=True, twin=_twin("bulk_wait", pending, False))


@functools.cache
def make_bulk_wait_read(pending):
    """The same, until they have read their source. Host function."""
    return instruction(f"cp.async.bulk.wait_group.read {pending};", (), (), memory=True, twin=_twin("bulk_wait", pending, True))


prefetch_tensor_map = instruction("prefetch.tensormap [$0];", (), ("uint64",), memory=True, twin=lambda tensor_map: None)
"""Bring a map into the descriptor cache; once a block, before the first copy."""
