"""Dependent launches (`device.dependent`) in the machine code: each of their kernels waits, and touches no memory of the grids before it
until then, whatever those are: the launches of another part of a graph's plan, or of a program's."""
import re

import cases
import pytest
from representative import device, representative
from sass import assembled

from dnnkern import dispatch
from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from test_ptx_graph import fused, product  # noqa: E402

WAIT, TRIGGER = "ACQBULK", "PREEXIT"
STORES = "STG", "RED", "ATOM", "ATOMG", "UTMASTG", "UTMAREDG", "UBLKRED", "ST"
ACCESSES = {*STORES, "LDG", "LDGSTS", "UTMALDG", "UBLKCP", "LD"}
# Read what they are given before they wait: the first launch of these algorithms is not dependent, so all before it has ended.
READ_AHEAD = "planes", "columns"  # of normalizations
FEW = [("matmul", "wgmma"), ("matmul", "mma"), ("conv_fwd", "halo_wgmma"), ("sdpa_fwd", "flash_wgmma_bf16x6"), ("reduce", "two_stage"),
       ("batch_norm_train_fwd", "planes"), ("layer_norm_bwd", "cluster"), ("activation_fwd", "vector"), ("activation_bwd", "rows"),
       ("embedding_fwd", "rows"), ("concat", "batch"), ("softmax_fwd", "warp"), ("layer_norm_fwd", "block"), ("mse_loss_fwd", "vector")]


def unpredicated(line):
    return re.sub(r"^@\S+\s+", "", line)


def name_of(line):
    return unpredicated(line).split()[0].split(".")[0]


def successors(listing):
    """For each line the lines that may be next."""
    labels, ends, found = {line[:-1]: k for k, line in enumerate(listing) if line.endswith(":")}, {}, []
    for k, line in enumerate(listing):
        name, target = name_of(line), re.search(r"\.L\w+", unpredicated(line))
        barrier, next_too = re.search(r"\bB\d+", line), line.startswith("@") or re.search(r"^BRA\S* !?U?P\d", line)
        if line.endswith(":") or name not in ("BSSY", "BSYNC", "BRA", "EXIT"):
            found.append([k + 1])
        elif name == "BSSY":
            ends[barrier[0]] = labels[target[0]]
            found.append([k + 1])
        else:
            to = [] if name == "EXIT" else [ends[barrier[0]] if name == "BSYNC" else labels[target[0]]]
            found.append(to + [k + 1] * bool(next_too))
    return found


def before_the_wait(listing):
    """Names of the instructions that a thread may run before it waits."""
    following, known, left = successors(listing), set(), [0]
    while left:
        k = left.pop()
        if k in known or k == len(listing) or name_of(listing[k]) == WAIT:
            continue
        known.add(k)
        left += following[k]
    return {name_of(listing[k]) for k in known}


def check(launches, ahead=False):
    """The dependent ones of an algorithm's launches; how many there are."""
    assert not (ahead and launches[0].dependent)
    for launch in (one for one in launches if one.dependent):
        code = assembled(launch.kernel, launch.signature, "sm_90a")
        early = before_the_wait(code.listing) & ACCESSES
        assert code.count(WAIT) and not early & {*(STORES if ahead else ACCESSES)}, early
        assert not code.calls
    return sum(launch.dependent for launch in launches)


def reads_ahead(op, name):
    """Whether an algorithm's kernels read what they are given before they wait."""
    return "norm" in op and name in READ_AHEAD


def problems(op, algorithm):
    """Those that stand for all of an algorithm, of which it solves some on Hopper."""
    return [case.problem() for case in representative(op, algorithm) if algorithm.refusal(case.problem(), device("sm_90a")) is None]


def launches_of(algorithm, problem):
    target = device("sm_90a")
    return algorithm.build(problem, target, algorithm.configured(problem, target).config)


@pytest.mark.parametrize("op, name", FEW)
def test_kernels_wait_before_they_touch_memory(op, name):
    algorithm = dispatch.named(op, name)
    assert check(launches_of(algorithm, problems(op, algorithm)[0]), reads_ahead(op, name))


@pytest.mark.slow
@pytest.mark.parametrize("op", cases.modules())
def test_all_kernels_wait(op):
    for algorithm in dispatch.algorithms(op):
        for problem in problems(op, algorithm):
            check(launches_of(algorithm, problem), reads_ahead(op, algorithm.name))


def test_with_a_program():
    """Whose operands another part of the plan may have made."""
    assert check(launches_of(dispatch.named("matmul", "wgmma"), fused(product(10)))) == 1


def test_what_is_found():
    listing = ("S2R R0", "@P0 BRA .L1", "LDG.E R2", "EXIT", ".L1:", "BSSY B0, .L2", "@P1 BRA .L3", "ACQBULK", "STG.E R2", "BSYNC B0",
               ".L3:", "BSYNC B0", ".L2:", "RED.E R3", "EXIT")
    assert before_the_wait(listing) & ACCESSES == {"LDG", "RED"}
    assert not before_the_wait((*listing[:2], "ACQBULK", *listing[2:6], "ACQBULK", *listing[6:])) & ACCESSES
