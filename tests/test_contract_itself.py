"""The contract on algorithms that are broken on purpose: each must be caught. One kernel, a fault a time."""
import contract
import pytest
from cases.matmul import Matmul

from dnnkern import dispatch
from dnnkern.device import SIMULATED, cuda, f32, i32
from dnnkern.device.convert import element
from dnnkern.dispatch import Algorithm, Note, NotSupported
from dnnkern.host.launch import Argument, Launch

THREADS = 32
if SIMULATED:
    from dnnkern.device.sim import SimError
    SIMULATOR = IndexError, SimError
else:
    SIMULATOR = ()
DECLARED = 256  # bytes of workspace


def _kernel(fault, dtype, out_dtype):
    """One thread an output of a packed matmul, through the workspace: word i holds output i where there is room."""
    load, store = element(dtype).load, element(out_dtype).store
    load_out, store_in = element(out_dtype).load, element(dtype).store
    outside = fault == "writes behind the output"
    before = fault == "writes before the output"
    tail = fault == "forgets the last row"
    stale = fault == "adds the output it was given"
    dirty = fault == "adds the workspace it was given"
    greedy = fault == "uses more workspace than it declares"
    mutates = fault == "writes to an input"
    loose = fault == "rounds every partial sum"
    racing = fault == "sums in any order"
    beyond = fault == "reads behind an input"
    short = fault == "leaves out the last product"
    put, get = element("bfloat16").store, element("bfloat16").load

    @cuda.jit(launch_bounds=THREADS)
    def kernel(a, b, y, scratch, M, N, K):
        i = i32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
        m = i32(i // N)
        n = i32(i - m * N)
        if i < M * N:
            acc = f32(0)
            steps = K - 1 if short else K
            for k in range(steps):
                acc = f32(acc + load(a, i32(m * K + k)) * load(b, i32(k * N + n)))
                if loose:
                    put(scratch, i, acc)
                    acc = get(scratch, i)
            if stale:
                acc = f32(acc + load_out(y, i))
            if dirty:
                acc = f32(acc + f32(get(scratch, i32(i & 63))))
            if beyond:
                acc = f32(acc + f32(0) * load(a, i32(M * K + n)))
            if greedy:
                put(scratch, i32(DECLARED // 2 + i), acc)
            if mutates and i == 0:
                store_in(b, i32(K * N - 1), f32(0))
            if not (tail and m == M - 1):
                store(y, i, acc)
            if outside and i == 0:
                store(y, i32(M * N), f32(1))
            if before and i == 0:
                store(y, i32(-1), f32(1))
    if not racing:
        return kernel

    @cuda.jit(launch_bounds=THREADS)
    def split(a, b, y, scratch, M, N, K):
        # a block an output: its threads add their share atomically, in whatever order they come
        total = cuda.shared.array(1, f32)
        t = i32(cuda.threadIdx.x)
        i = i32(cuda.blockIdx.x)
        m = i32(i // N)
        n = i32(i - m * N)
        if t == 0:
            total[0] = f32(0)
        cuda.syncthreads()
        acc = f32(0)
        for k in range(t, K, THREADS):
            acc = f32(acc + load(a, i32(m * K + k)) * load(b, i32(k * N + n)))
        cuda.atomic.add(total, 0, acc)
        cuda.syncthreads()
        if t == 0:
            store(y, i, total[0])
    return split


def broken(fault, notes=Note.NONE):
    """An algorithm for packed operands with one fault, or none."""
    def supports(problem):
        return None if problem.a.is_packed and not problem.batch and not problem.bias and not problem.c else "operands are not packed"

    def build(problem, device, config):
        pointers = [Argument(element(t.dtype).pointer, name) for name, t in (("a", problem.a), ("b", problem.b), ("y", problem.y))]
        sizes = [Argument("int32", v) for v in (problem.m, problem.n, problem.k)]
        outputs = problem.m * problem.n
        blocks = outputs if fault == "sums in any order" else -(-outputs // THREADS)
        return (Launch(_kernel(fault, problem.a.dtype, problem.y.dtype), (blocks, 1, 1), (THREADS, 1, 1),
                       (*pointers, Argument("uint16*", "workspace"), *sizes)),)

    return Algorithm(op="matmul", name=fault.replace(" ", "_"), supports=supports, workspace=lambda problem, device, config: DECLARED,
                     estimate=lambda problem, device, config: 1.0, build=build, notes=notes)


CASE = Matmul("itself-bf16", 9, 7, 65, "bfloat16", out_dtype="float32")
SMALL = Matmul("itself-small-bf16", 9, 7, 65, "bfloat16")


def test_a_correct_algorithm_passes():
    contract.check(broken("no fault"), CASE)
    contract.check(broken("no fault"), SMALL)


@pytest.mark.parametrize("fault, message", [
    ("writes behind the output", "outside the array|IndexError|out of bounds|behind|outside"),
    ("writes before the output", "outside the array|IndexError|out of bounds|before|outside"),
    ("forgets the last row", "elements are wrong"),
    ("adds the output it was given", "elements are wrong"),
    ("adds the workspace it was given", "elements are wrong"),
    ("uses more workspace than it declares", "workspace: .* outside|outside"),
    ("writes to an input", "input b was written|b.454. .* nothing orders"),
    ("reads behind an input", "elements are wrong|outside"),
    ("leaves out the last product", "elements are wrong"),
    ("rounds every partial sum", "elements are wrong")])
def test_caught(fault, message):
    with pytest.raises((AssertionError, *SIMULATOR), match=message):
        contract.check(broken(fault), CASE)


def test_caught_by_the_guards_and_not_only_by_the_simulator():
    """A write into the guard band is inside the allocation: the first run sees it in the bytes, as on a GPU."""
    with pytest.raises(AssertionError, match="output y: 4 bytes outside the array were written, the first at byte 252"):
        with contract.registered(broken("writes behind the output")) as mine:
            contract.check_exact(mine, CASE)


def test_loose_accumulation_is_caught_by_the_float_mode_too():
    with contract.registered(broken("rounds every partial sum")) as mine, pytest.raises(AssertionError, match="elements are wrong"):
        contract.check_float(mine, CASE)
    with contract.registered(broken("rounds every partial sum")) as mine, pytest.raises(AssertionError, match="elements are wrong"):
        contract.check_float(mine, SMALL)


@pytest.mark.skipif(not SIMULATED, reason="a GPU may happen to add in the same order twice")
def test_nondeterminism_without_the_note_is_caught():
    with pytest.raises(AssertionError, match="differs between two runs"):
        contract.check(broken("sums in any order"), CASE)
    contract.check(broken("sums in any order", notes=Note.NONDETERMINISTIC), CASE)


def test_an_algorithm_that_supports_what_it_says_it_does_not():
    """The refusal must come through the public function with the very reason."""
    case = Matmul("itself-refused-f32", 4, 4, 4, "float32")
    with contract.registered(broken("no fault")) as mine:
        with pytest.raises(AssertionError, match="and ran it"):
            contract.check_refusal(mine, case, "some reason")
    refusing = broken("no fault").__class__(**{**vars(broken("no fault")), "supports": lambda problem: "K is 4, at least 8 is needed"})
    with contract.registered(refusing) as mine:
        contract.check_refusal(mine, case, "K is 4, at least 8 is needed")
        with pytest.raises(AssertionError, match="does not say"):
            contract.check_refusal(mine, case, "M is 4")


def test_the_default_choice_never_is_what_must_be_allowed():
    with contract.registered(broken("no fault", notes=Note.NONDETERMINISTIC)) as mine:
        with pytest.raises(NotSupported, match="NONDETERMINISTIC"):
            dispatch.get_algorithm("matmul", CASE.problem(), algo=mine.name)


def test_a_reference_of_zeros_is_noticed():
    class Zeros(Matmul):
        def values(self, mode):
            return {name: v if v is None else 0 * v for name, v in super().values(mode).items()}

    with pytest.raises(AssertionError, match="is zero in"):
        contract.check(broken("no fault"), Zeros("zeros-f32", 9, 7, 5))
