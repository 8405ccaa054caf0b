"""How `warp`, `block` and `cluster` hold a row, and what that takes."""
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...device.index import ceil_div
from ...device.rows import LIMIT, RowLayout
from ...engine.constants import constants
from ...engine.cost import LAUNCH, Cost, contend, flight_rate, issue_seconds, memory_seconds, narrow_rate, occupied
from ...engine.cost import overlap, sector_waste, tail

if TYPE_CHECKING:
    from ...device.program import Program

COST = constants("softmax/rows")

RESIDENT = {(7, 5): 1024, (8, 0): 2048}  # threads of a multiprocessor, by compute capability, where not 1536 (8.x, 12.x) or 2048
WAITS = {2: constants("softmax/waits_fwd"), 3: constants("softmax/waits_bwd")}
"""Arrays -> what a block waits for."""
STATIC = 2048     # bytes of shared memory of a block for everything but rows, and what the system takes


@dataclass(frozen=True)
class Config:
    """What a kernel is compiled for.

    Attributes
    ----------
    dtype, log, vector_bytes, unaligned
        As the problem's and `RowLayout`'s.
    dims : int
        Dimensions besides the axis, 1 at least.
    lanes : int
        Threads of a block that hold a row.
    registers, shared : int
        Vectors per thread.
    cluster : int
        Blocks that hold a row together.
    arrays : int
        2 forward, 3 backward.
    resident : int
        Threads that a multiprocessor of the device holds.
    shared_per_sm : int
        Bytes of its shared memory.
    result : str
        The result's dtype, "" where it is the operands'.
    program : Program or None
        Of y.
    wide : bool
        Whether its operands have 64-bit strides.
    """
    dtype: str
    log: bool
    vector_bytes: int
    unaligned: bool
    dims: int
    lanes: int
    registers: int
    shared: int
    cluster: int
    arrays: int
    resident: int
    shared_per_sm: int
    result: str = ""
    program: "Program | None" = None
    wide: bool = False

    @property
    def threads(self):
        """Of a block."""
        return self.lanes if self.lanes > 32 else 128

    @property
    def layout(self):
        return RowLayout(self.dtype, self.vector_bytes, self.lanes * self.cluster, self.registers, self.shared, self.unaligned,
                         pad_lowest=self.arrays == 2, result=self.result)

    @property
    def shared_bytes(self):
        return self.threads * self.shared * 16

    @property
    def registers_needed(self):
        """Of a thread: packed words, values of a few vectors, addresses. The compiler is bound to what this leaves."""
        layout, inputs = self.layout, self.arrays - 1
        real = 2 if self.dtype == "float64" else 1
        values = real * layout.elements * min(self.registers, 4)
        values += 0 if self.program is None else 16 + 4 * real * len(self.program.loads)
        return min(255, (22 if real == 1 else 40) + inputs * (layout.words + 2 * real * layout.edges) + values + 8 * (self.shared > 0))

    @property
    def blocks(self):
        """Resident ones that registers and shared memory allow: the compiler's bound on registers."""
        registers = 65536 // (-(-self.registers_needed // 8) * 8 * self.threads)
        return max(1, min(16, self.resident // self.threads, registers, self.shared_per_sm // (self.shared_bytes + STATIC)))

    def __str__(self):
        where = f"{self.lanes} threads" + (f" x {self.cluster} blocks" if self.cluster > 1 else "")
        vectors = f"{self.registers}{f' + {self.shared}' * (self.shared > 0)} x {self.vector_bytes} bytes"
        return f"{where}, {vectors}" + ", unaligned" * self.unaligned + f", to {self.result}" * bool(self.result) + (
            f", {self.program}" * (self.program is not None))


def refusal(problem, capacity=None, group=""):
    """Why no algorithm that reads rows once can solve a problem, or one whose group of threads holds `capacity` vectors; None if it can."""
    form = problem.form
    if capacity is not None and row_vectors(problem) > capacity:
        return f"rows of {form.length} elements are {row_vectors(problem)} vectors of {problem.vector[0]} bytes; a {group} holds {capacity}"
    if form.length >= LIMIT:
        return f"rows of {form.length} elements; expected fewer than 2**28"
    if form.rows >= 2 ** 31 - 2 ** 20:
        return f"{form.rows} rows; expected fewer than 2**31 - 2**20"
    return problem.row_refusal


def row_vectors(problem):
    """Vectors of a row."""
    vector_bytes, unaligned = problem.vector
    per = vector_bytes // problem.arrays[0].itemsize
    return max(1, problem.form.length // per if unaligned else ceil_div(problem.form.length, per))


def max_vectors(lanes, problem):
    """Vectors that each thread of a block can hold in registers."""
    arrays, wide = len(problem.arrays) - 1, problem.compute == "float64"
    return (4 if lanes == 1024 else 8) // (arrays * (1 + wide))


def make_config(problem, device, lanes, registers, shared=0, cluster=1):
    """The configuration of a problem with this way to hold a row."""
    vector_bytes, unaligned = problem.vector
    resident = RESIDENT.get(device.capability, 1536 if device.capability[0] in (8, 12) else 2048)
    return Config(problem.dtype, problem.log, vector_bytes, unaligned, max(1, len(problem.form.outer)), lanes, registers, shared, cluster,
                  len(problem.arrays), resident, device.shared_per_sm, problem.result, problem.program, problem.wide)


def seconds(problem, device, config):
    """Bytes, or instructions, and the grid's last blocks; or what resident blocks take one after another.

    A warp copies as fast as 32 KB in flight in a multiprocessor let it. A block loads, waits, computes and stores (`WAITS`), while others
    do; so many small ones, and few of a cluster, which begin together, serve best.
    """
    form, itemsize = problem.form, problem.arrays[0].itemsize
    resident = config.blocks
    fill = form.length * itemsize / (config.layout.capacity * itemsize)
    flight = (config.arrays - 1) * (config.registers + config.shared) * config.vector_bytes * config.threads * resident * min(1.0, fill)
    rate = (flight_rate(flight, COST.in_flight) if config.lanes <= 32 else 1.0) * narrow_rate(config.vector_bytes, itemsize)
    strided = max(sector_waste(itemsize, itemsize) if abs(s) > 1 else 1 for s in form.steps)
    grid = ceil_div(form.rows, config.threads // config.lanes) * config.cluster
    each = COST.element_bwd if config.arrays == 3 else COST.element if itemsize > 2 else COST.element_16
    accesses = COST.access * problem.outputs[0].size / (config.vector_bytes / itemsize) + COST.thread * form.rows * config.lanes
    issue = issue_seconds(problem.outputs[0].size * each + accesses / min(1.0, fill), 1, device)
    share = occupied(grid * config.threads, COST.enough, device)
    slower = COST.heads if config.unaligned else 1.0
    parts = config.cluster > 1 and config.shared > 0  # several blocks on a multiprocessor, so that others load while one waits
    if parts:
        slower *= (1 + COST.parts * config.threads / resident) * (COST.parts_16 if itemsize == 2 else 1.0)
    elif config.cluster > 1 and config.arrays == 2:  # all blocks of a cluster begin and end together
        slower *= 1 + COST.cluster * config.cluster
    if config.lanes > 32 and config.arrays == 2 and config.registers == 1 and not config.shared:
        slower *= COST.single
    if config.lanes <= 32:
        slower *= COST.register ** max(0, config.registers - 4)
    work = overlap(memory=memory_seconds(problem.bytes, device) * strided / (rate * share), issue=issue)
    end = tail(grid, resident, device)
    work = work.slowed(tail=(1 + end) / 2 if parts or config.shared > 4 * config.registers else end, slower=slower)  # copies go on
    launch = LAUNCH + Cost(launch=COST.cluster_launch) if config.cluster > 1 else LAUNCH
    if config.lanes > 32 and not parts:
        wait, elements = WAITS[config.arrays], form.length / (config.lanes * config.cluster)
        each = wait.alone + wait.element * elements + wait.thread * config.threads * (1 + (config.shared > 0))
        each += wait.block * config.cluster + wait.cluster_element * elements if config.cluster > 1 else 0
        work = contend(COST.power, work, waits=each * max(1.0, grid / (device.sms * resident)))
    return launch + work.slowed(slower=COST.shared if config.shared and not parts else 1.0)
