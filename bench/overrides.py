"""What overrides cost the host: PyTorch's calls on the processor, and the same overridden, with empty functions in place of this library's.

    python -m bench.overrides                              # --json FILE appends the numbers as one JSON line

Both are of one thread, without gradients. PyTorch's times have its kernels in them, of small operands. It needs no GPU.
"""
import argparse
import contextlib
import json
import os
import sys
import time
from unittest import mock

os.environ.setdefault("DNNKERN_DEVICE", "cpu")


def measured():
    """{what: microseconds}"""
    import torch

    import dnnkern.torch
    from .cached import microseconds
    torch.set_num_threads(1)
    a, b, whole = torch.ones(4, 4), torch.ones(4, 4), torch.ones(4, 4, dtype=torch.int64)
    x, w = torch.ones(1, 4, 8, 8), torch.ones(4, 4, 3, 3)
    x_last, w_last = (t.to(memory_format=torch.channels_last) for t in (x, w))
    calls = {"mm": lambda: torch.mm(a, b), "conv2d": lambda: torch.conv2d(x, w, padding=1),
             "conv2d, channels last": lambda: torch.conv2d(x_last, w_last, padding=1),
             "max_pool2d": lambda: torch.max_pool2d(x, 2), "max_pool2d, channels last": lambda: torch.max_pool2d(x_last, 2),
             "batch_norm": lambda: torch.batch_norm(x, weight, weight, None, None, True, 0.1, 1e-5, True),
             "batch_norm, channels last": lambda: torch.batch_norm(x_last, weight, weight, None, None, True, 0.1, 1e-5, True),
             "mm of integers": lambda: torch.mm(whole, whole)}
    y, image = torch.ones(4, 4), torch.ones(1, 4, 8, 8)
    pooled = torch.ones(1, 4, 4, 4), torch.ones(1, 4, 4, 4, dtype=torch.int64)
    normalised, weight = (x, torch.ones(4), torch.ones(4)), torch.ones(4)
    with torch.inference_mode():
        found = {f"{name}: PyTorch": microseconds(call) for name, call in calls.items()}
        with contextlib.ExitStack() as stack:
            for name, result in (("matmul", y), ("conv_fwd", image), ("batch_norm_train_fwd", normalised)):
                stack.enter_context(mock.patch.object(dnnkern, name, lambda *args, result=result, **options: result))
            stack.enter_context(mock.patch.object(
                dnnkern, "max_pool_fwd", lambda *args, return_index=False, **options: pooled if return_index else pooled[0]))
            found["enable, the first time"] = timed(lambda: dnnkern.torch.enable("mm,convolution,pool,norm"))
            found.update({f"{name}: overridden": microseconds(call) for name, call in calls.items()})
            found["enable, later"] = min(timed(dnnkern.torch.enable) for _ in range(15))
            dnnkern.torch.disable()
    return found


def timed(call):
    """Microseconds of one call."""
    started = time.perf_counter()
    call()
    return 1e6 * (time.perf_counter() - started)


def main(argv=None) -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.overrides", description="Measure what overrides cost the host.")
    parser.add_argument("--json", metavar="FILE", help="append the numbers as one JSON line")
    args = parser.parse_args(argv)
    found = measured()
    for what, microseconds in found.items():
        print(f"{what:34}{microseconds:10.1f} us")
    if args.json:
        from dnnkern import dispatch

        from .machine import machine
        record = machine(dispatch.device_of(dispatch.current_device()))
        with open(args.json, "a") as file:
            file.write(json.dumps({"machine": record, "overrides_us": found}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
