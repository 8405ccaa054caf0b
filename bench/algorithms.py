"""What every algorithm takes on the processor, and the rates that follow: ``DNNKERN_DEVICE=cpu python -m bench.algorithms [--json F]``.

With ``--configs NAMES`` these algorithms alone, in every configuration: what the choice among them is read off.

Every algorithm, in the configuration that it would take, on problems of the demo and larger ones: seconds of CPU to compile, of kernels
that no problem before it has compiled, and of a call, the least of several. A rate of operations and one of bytes are fitted to each
algorithm's calls so that the logarithms of their times are nearest: `dnnkern.host.processor` has them.
"""
import argparse
import itertools
import json
import math
import os
import tempfile
import time

os.environ["DNNKERN_CACHE_DIR"] = tempfile.mkdtemp(prefix="dnnkern-bench-")  # nothing is compiled yet

from dnnkern import dispatch  # noqa: E402
from dnnkern._parser import Parser, family_words  # noqa: E402
from dnnkern.dispatch import operation_of  # noqa: E402
from dnnkern.host.device import device as device_of  # noqa: E402
from dnnkern.host.executable import make_executable  # noqa: E402
from dnnkern.host.operands import Operands  # noqa: E402

from .machine import machine  # noqa: E402

PROBLEMS = """
conv_fwd 64x1x8x8 k32 3x3 p1 f32 nhwc
conv_fwd 64x32x4x4 k64 3x3 p1 f32 nhwc
conv_fwd 1x64x56x56 k64 3x3 p1 f32 nhwc
conv_fwd 1x64x28x28 k64 3x3 p1 bf16 nhwc
conv_bwd_data 64x32x4x4 k64 3x3 p1 f32 nhwc
conv_bwd_data 1x64x28x28 k64 3x3 p1 bf16 nhwc
conv_bwd_filter 64x1x8x8 k32 3x3 p1 f32 nhwc
conv_bwd_filter 64x32x4x4 k64 3x3 p1 f32 nhwc
conv_bwd_filter 1x64x28x28 k64 3x3 p1 bf16 nhwc
batch_norm_train_fwd 64x32x8x8 f32 nhwc
batch_norm_train_fwd 8x64x56x56 f32 nhwc
batch_norm_bwd 64x32x8x8 f32 nhwc
max_pool_fwd 64x32x8x8 f32 2x2 s2 nhwc
max_pool_bwd 64x32x8x8 f32 2x2 s2 nhwc
dropout_fwd 64x256 f32
dropout_bwd 64x256 f32
matmul 64x10x256 f32 nn
matmul 256x10x64 f32 tn
matmul 64x256x10 f32 nt
matmul 256x256x256 f32
matmul 256x256x256 f64
matmul 512x512x512 bf16 nt
matmul 1024x1024x1024 f32
cross_entropy_fwd 64x10 f32
cross_entropy_fwd 512x1000 f32
cross_entropy_bwd 64x10 f32
cross_entropy_bwd 512x1000 f32
reduce 64x10 f32 add 0
reduce 1024x1024 f32 add 1
adamw_step 21482x8 f32
sdpa_fwd 1x4x512x64 f32
sdpa_fwd 1x4x512x64 bf16
sdpa_bwd 1x4x256x64 bf16
softmax_fwd 512x1000 f32
softmax_bwd 512x1000 f32
layer_norm_fwd 1024x1024 f32
layer_norm_bwd 1024x1024 f32
rms_norm_fwd 1024x1024 f32
activation_fwd 1048576 f32 gelu
transpose 1024x1024 f32 1,0
rnn_fwd 8x16 64x64 lstm f32
rnn_bwd_data 8x16 64x64 lstm f32
"""
LONG, SHARE = 2.0, 0.15  # seconds: of a call that is not measured again; that the calls of an algorithm may take
RATES = [10 ** (8 + k / 16) for k in range(49)]


def problem_of(line):
    """(operation, problem) of a line as for ``python -m dnnkern explain``."""
    op, *words = line.split()
    parser = Parser(prog=f"bench.algorithms: {line}")
    add_arguments, make, _ = family_words(parser, op)
    add_arguments(parser)
    return op, make(parser.parse_args(words, argparse.Namespace(op=op)))


def measured(op, problem, device, names=()):
    """[(algorithm, configuration, seconds of CPU to compile, of a call)]: each in its own choice, or those of `names` in every one."""
    operation, found = operation_of(op), []
    with Operands(operation, problem, device, None) as operands:
        for algorithm in dispatch.algorithms(op):
            if algorithm.refusal(problem, device) is not None or names and algorithm.name not in names:
                continue
            for bound in algorithm.variants(problem, device) if names else [algorithm.configured(problem, device)]:
                begun = time.process_time()
                executable = make_executable(operation, problem, bound, device)
                compiling = time.process_time() - begun
                values = operands.values(0, bound.workspace(problem, device, bound.config))
                best, spent = math.inf, 0.0
                while spent < SHARE:
                    begun = time.process_time()
                    executable.execute(values, None)
                    taken = time.process_time() - begun
                    best, spent = min(best, taken), spent + (taken if taken < LONG else SHARE)
                found.append((algorithm.name, bound.config_text, compiling, best))
    return found


def fitted(calls):
    """The rates nearest to calls of (operations, bytes, seconds)."""
    def distance(rates):
        return sum(math.log((operations / rates[0] + nbytes / rates[1]) / seconds) ** 2 for operations, nbytes, seconds in calls)
    return min(itertools.product(RATES, RATES), key=distance)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", help="file that gets a line for each algorithm and problem")
    parser.add_argument("--configs", metavar="NAMES", default="", help="such as blocked,implicit_gemm")
    arguments = parser.parse_args()
    names = [name for name in arguments.configs.split(",") if name]
    device, lines, calls, compiling = device_of(0), [], {}, {}
    problems = {line: problem_of(line) for line in PROBLEMS.strip().split("\n")}
    for line, (op, problem) in problems.items():
        operations, nbytes = getattr(problem, "flops", 0), problem.bytes
        for name, config, compiled, seconds in measured(op, problem, device, names):
            print(f"{line:48} {name:24} {compiled:6.2f} s {1e3 * seconds:10.3f} ms  {config}", flush=True)
            lines.append({"problem": line, "algorithm": name, "compile": compiled, "seconds": seconds, "config": config})
            calls.setdefault((op, name), []).append((operations, nbytes, seconds))
            compiling.setdefault((op, name), []).append(compiled)
    for (op, name), found in () if names else sorted(calls.items(), key=lambda item: item[0][::-1]):
        operations, nbytes = fitted(found)
        print(f'"{op}/{name}": ({operations:.1e}, {nbytes:.1e}, {max(compiling[op, name]):.1f}),')
    if arguments.json:
        with open(arguments.json, "w") as file:
            file.write(json.dumps({"machine": machine(device)}) + "\n")
            file.writelines(json.dumps(each) + "\n" for each in lines)


if __name__ == "__main__":
    main()
