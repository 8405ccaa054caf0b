"""The record that stands for a tensor map, which the forms of `tma` read."""
import numpy as np

from . import runtime

_RANK = 5  # at most; dimensions are counted from the innermost one on
MAP = runtime.Record("map", [
    "base ptr", f"extents i64 {_RANK}", f"strides i64 {_RANK}", f"counts i32 {_RANK}", f"every i32 {_RANK}", f"lower i32 {_RANK}",
    "rows i32", "width i32", "mask i32", "itemsize i32", "added i32"])  # width: bytes of a row; mask: of pieces that a swizzle exchanges
_FIELDS = {"i32": np.int32, "i64": np.int64, "ptr": np.uint64}
_ADDED = {"float32": 1, "int32": 2, "uint32": 2, "uint64": 3, "bfloat16": 4, "float16": 5}  # what can be added to


def encoded(spec, address) -> bytes:
    """The record of a `host.tensormap` map of the array at an address."""
    spec.check_address(address)
    turned = {"extents": spec.shape, "every": spec.every, "counts": spec.counts, "strides": [s * spec.itemsize for s in spec.strides]}
    if spec.im2col:
        turned["lower"] = 0, *spec.lower, 0
        turned["counts"] = 1, *((n - 1 + up - low) // step + 1 for n, low, up, step in zip(
            spec.shape[1:-1], spec.lower, spec.upper, spec.every[1:-1])), spec.channels
    rows = spec.nbytes // (spec.counts[-1] * spec.itemsize)
    values = {"base": [address], "rows": [rows], "width": [spec.counts[-1] * spec.itemsize], "mask": [max(spec.swizzle // 16 - 1, 0)],
              "itemsize": [spec.itemsize], "added": [_ADDED.get(spec.dtype, 0)], **{name: v[::-1] for name, v in turned.items()}}
    record = np.zeros(MAP.bytes, np.uint8)
    for name, given in values.items():
        data = np.array(given, _FIELDS[MAP.type[name]]).view(np.uint8)
        record[MAP.offset[name]:MAP.offset[name] + len(data)] = data
    return record.tobytes()
