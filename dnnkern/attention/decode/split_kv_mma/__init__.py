"""`split_kv` on tensor cores: a warp takes 16 keys at a time straight from the cache into the registers that its products read.

- The rows that share a head of the cache are the eight columns, or sixteen, of both products: scores [key][row] = K q^T, and accumulators
  [element][row] = V^T p, so that a few rows waste nothing, and a row's maximum and factors are in the threads that have its accumulators.
- Which element of a head is which k of an instruction is arbitrary, as long as it is the same for q and K: a thread has 16 bytes of a row,
  which are k of two instructions. Of V it has 16 bytes of each of four keys; pairs of keys share a word after a permutation of bytes.
  Neither passes through shared memory.
- Loads of the next keys replace those of K as soon as the scores are there, and those of V as soon as they are multiplied: a warp always
  has one of the two in flight. (Of heads of more than 128 elements either is loaded when the other is done.) Warps meet once, at the end
  of their range.
- Ranges meet in a second launch, whose blocks begin beside the last ranges where these leave room for them; or, where there are two and a
  block has a multiprocessor or half of one, as a cluster whose blocks write what each merges into the other's shared memory.
- Warps begin with different keys of their ranges and wrap around, so that blocks do not walk in step through caches that are a power of two
  apart.
- A multiprocessor has registers for twelve warps, or eight: as small blocks, for many sequences, each of which is then one range and needs
  no merge, or as large ones, which leave fewer ranges of a long sequence; whichever fills the device in one wave.
- Between a block's last loads and the first ones of the block that takes its place memory would be idle. So a block, done with its keys,
  has the first tiles of that one brought into the L2, and only then meets.
- A probability is the sum of two 16-bit numbers, the second being what the first leaves out: it is as exact as a float32 to 16 bits.

Limited by memory. `kernel` is the kernel, `config` what it is compiled for and what it should take.
"""
from dataclasses import replace

from ....device.index import LIMIT, Divisor, divisor
from ....dispatch import Algorithm, Note
from ....host.launch import Argument, Launch
from ..._parameters import Strides
from .._parameters import (bias_arguments, cache_arguments, lines_of, lse_argument, operand_arguments, page_argument, shape_argument,
                           sink_arguments)
from .._ranges import merge_launch, parts_bytes, refusal
from .config import CHUNK, EIGHT, KEYS, configs, estimate, words_of
from .kernel import kernel

WIDEST = 256
HALVES = ("float16", "bfloat16")


def supports(problem):
    """Halves, rows of whole accesses, and pages of whole tiles."""
    p = problem
    if reason := refusal(p):
        return reason
    if p.dtype not in HALVES:
        return f"{p.dtype}; expected {' or '.join(HALVES)}"
    if p.capacity >= LIMIT // 2:
        return f"{p.capacity} keys of a sequence; expected fewer than 2**30"
    if max(p.d, p.dv) > WIDEST or p.d % CHUNK or p.dv % CHUNK or not p.dv:
        return f"heads of {p.d} and {p.dv} elements; expected multiples of {CHUNK}, {WIDEST} at most"
    if any(t.strides[-1] != 1 for t in (p.q, p.k_cache, p.v_cache)):
        return "the elements of a head are not contiguous"
    if not all(words_of(p)):
        return f"{p.q}, {p.k_cache}, {p.v_cache}; expected rows of whole words of four bytes"
    if p.page_table is not None and p.page % KEYS:
        return f"pages of {p.page} keys; expected multiples of {KEYS}"
    step = max(abs(p.strides(t)[2]) for t in (p.k_cache, p.v_cache))
    if step * KEYS >= LIMIT:
        return f"keys {step} elements apart; expected fewer than 2**27"
    elements = p.batch * p.kv_heads * (p.group * p.rows + 2 * EIGHT) * 2 * max(p.d, p.dv, 1024)
    return None if elements < LIMIT else f"{p.batch} sequences of {p.heads} heads; expected fewer than 2**31 elements of tiles"


def workspace(problem, device, config):
    """What ranges leave, where there are several and a launch of its own merges them."""
    return 0 if config.clustered else parts_bytes(problem, config.parts, config.splits)


def build(problem, device, config):
    """One launch, or two."""
    p, splits = problem, config.splits
    dependent, slots = device.capability >= (9, 0), config.blocks * device.sms
    arguments = (*operand_arguments(p), lse_argument(p), Argument(f"{p.compute}*", "workspace"), Argument("int32*", "seq_len_kv"),
                 Argument("int32*", "page_table"), sink_arguments(p)[0], shape_argument(p, config.rows), page_argument(p),
                 Argument(Divisor, divisor(splits)), Argument("int32", slots),
                 *(Argument(Strides, p.strides(t)) for t in (p.q, p.k_cache, p.v_cache, p.o)), *cache_arguments(p), *bias_arguments(p))
    compiled = config if config.clustered else replace(config, splits=min(splits, 2))
    launch = Launch(kernel(compiled, dependent), (lines_of(p, config.rows) * splits, 1, 1), (config.threads, 1, 1), arguments,
                    config.shared, (splits if config.clustered else 1, 1, 1), dependent=dependent)
    return (launch, merge_launch(p, config.parts, splits, dependent)) if splits > 1 and not config.clustered else (launch,)


ALGORITHM = Algorithm(op="sdpa_decode", name="split_kv_mma", supports=supports, workspace=workspace, configs=configs, estimate=estimate,
                      build=build, notes=Note.TENSOR_CORE, arch="sm_80+")
