"""Which ways of reading are worth trying for a problem, and what they should take: the estimates of this family."""
from ..device.index import ceil_div
from ..engine.constants import constants
from ..engine.cost import LAUNCH, Cost, contend, issue_seconds, memory_seconds, overlap, sector_waste
from ..engine.fold import IGNORES_ZEROS
from ._columns import Columns, columns_refusal, words_of
from ._rows import FLIGHT, FLIGHT_OF_ELEMENTS, WIDTHS, Rows, loads_of, per_load, rows_refusal
from ._stages import THREADS, finish_across, finish_threads, workspace_bytes

COST = constants("reduce/ways")


PIECES = (16, 64)       # loads of a thread, where a long walk is split
RESIDENT = 6            # blocks of a multiprocessor
MOST_SPLITS = 1 << 15


def rows_ways(problem):
    """Ways to read rows without splits, the likeliest first."""
    words, ragged = loads_of(problem)
    units = max(1, problem.form.length // per_load(problem, words))
    flight = FLIGHT if words else FLIGHT_OF_ELEMENTS
    best = next((k for k, w in enumerate(WIDTHS) if w * flight >= units), len(WIDTHS) - 1)
    return [Rows(words, ragged, WIDTHS[k]) for k in (best, best - 1, best + 1, best + 2) if 0 <= k < len(WIDTHS)]


def columns_ways(problem):
    """Ways to read columns without splits, the likeliest first."""
    words = words_of(problem)
    groups = ceil_div(problem.form.kept[-1].size, per_load(problem, words))
    most = min(THREADS, 1 << (groups - 1).bit_length())
    tall = 1 << max(0, ceil_div(problem.form.length, FLIGHT) - 1).bit_length()     # threads that the rows keep busy
    best = max(min(32, most), min(most, THREADS // tall if tall < THREADS else 1))
    return [Columns(words, across) for across in dict.fromkeys((best, max(1, min(most, best * 2)), max(1, best // 2)))]


def split_ways(problem, device):
    """Ways to read with splits: pieces of a few lengths, and as many as there is room for at once."""
    found, form = [], problem.form
    if columns_refusal(problem) is None:
        way = columns_ways(problem)[0]
        vector, height = per_load(problem, way.words), THREADS // way.across
        blocks = form.outputs // form.kept[-1].size * ceil_div(form.kept[-1].size, vector * way.across)
        found += [Columns(way.words, way.across, s) for s in _splits(ceil_div(form.length, height), blocks, device)]
    if rows_refusal(problem) is None:
        words, ragged = loads_of(problem)
        units = form.length // per_load(problem, words)
        found += [Rows(words, ragged, THREADS, s) for s in _splits(ceil_div(units, THREADS), form.outputs, device)]
    return [way for way in found if form.outputs * way.splits * 4 < 2 ** 31]


def _splits(loads, blocks, device):
    """Numbers of splits, two at least, for threads that would have so many loads each, in so many blocks."""
    wanted = [ceil_div(loads, piece) for piece in PIECES] + [ceil_div(RESIDENT * device.sms, blocks)]
    return sorted({max(2, min(w, loads // FLIGHT, MOST_SPLITS)) for w in wanted})


def seconds(problem, device, way):
    """Bytes, at a rate that narrow loads, idle threads and few blocks lower; the longest walk of a thread; launches."""
    form, vector = problem.form, per_load(problem, way.words)
    flight = FLIGHT if way.words else FLIGHT_OF_ELEMENTS
    rate = {4: 1.0, 2: COST.words_2, 1: COST.words_1, 0: COST.wide if problem.x.itemsize > 2 else COST.narrow}[way.words]
    if isinstance(way, Columns):
        columns = form.kept[-1].size
        groups, height = ceil_div(columns, vector), THREADS // way.across
        blocks = form.outputs // columns * ceil_div(groups, way.across) * way.splits
        walk = ceil_div(ceil_div(form.length, way.splits), height)
        threads, waste = THREADS, sector_waste(columns * problem.x.itemsize, min(16, columns * problem.x.itemsize))
        used = groups / (ceil_div(groups, way.across) * way.across) * min(1.0, form.length / (way.splits * height))
        end, more = COST.halving * min(8, height), 0.0
        rate = rate if way.words else COST.columns
    else:
        blocks = ceil_div(form.outputs, way.threads // way.width) * way.splits
        walk = ceil_div(max(1, form.length // vector), way.width * way.splits)
        threads, step = way.threads, abs(form.reduced[-1].x)
        most = {4: COST.strided_4, 8: COST.strided_8}.get(problem.x.itemsize, COST.strided)
        waste = min(most, max(1, step)) if step != 1 else 1.0
        units = max(1, form.length // vector)
        used = min(1.0, units / (way.width * way.splits))
        if units > way.width and step == 1:                 # neighbouring threads of different rows
            waste = max(1.0, COST.short_rows - COST.short_rows_bit * way.width.bit_length())
        end = COST.end_block if way.width > 32 else COST.end_warp
        if way.ragged:
            end += COST.latency
        more = min(walk, flight) * COST.load
    per_sm = min(2048 // threads, ceil_div(blocks, device.sms))
    under_way = per_sm * threads * used * min(flight, walk) * max(4 * way.words, problem.x.itemsize)
    busy = min(1.0, under_way / COST.in_flight) * min(1.0, blocks / device.sms)
    waves = ceil_div(blocks, device.sms * (2048 // threads))
    tail = 1 + COST.tail * min(1.0, device.sms * (2048 // threads) / blocks)
    if waves == 1:                                          # some multiprocessors have a block more than others
        tail *= (ceil_div(blocks, device.sms) * device.sms / blocks) ** 0.5 if blocks > device.sms else 1.0
    moved = Cost(memory=memory_seconds(problem.bytes * waste, device) / (rate * max(busy, COST.least_share))).slowed(tail=tail)
    # blocks of one wave wait together; what they wait, and their ends, is hidden by what other waves of rows load
    waits = ceil_div(walk, flight) * COST.latency
    hidden = waves - 1 if isinstance(way, Rows) else 0
    work = issue_seconds(blocks * threads, _thread_instructions(problem, way, walk, flight, vector), device)
    begun = COST.block * blocks / device.sms
    if isinstance(way, Rows):
        busiest = overlap(contend(COST.power_rows, moved, issue=max(work, begun)), waits=waits + hidden * (end + COST.loaded * waits))
    else:                                                   # blocks wait in step, flight after flight, wave after wave
        turn = COST.turn + COST.turn_load * flight * max(1, way.words / 2)
        busiest = contend(COST.power_columns, moved, issue=max(work, begun), waits=waves * ceil_div(walk, flight) * turn)
    cost = LAUNCH + Cost(waves=(waves - hidden) * end + more) + busiest
    if way.splits > 1:
        loads = ceil_div(way.splits * finish_across(form.outputs), finish_threads(form.outputs, way.splits))
        cost += LAUNCH + Cost(reduction=memory_seconds(4 * workspace_bytes(problem, way.splits), device)
                              + COST.latency * (1 + ceil_div(loads, FLIGHT)))
    return cost


def _thread_instructions(problem, way, walk, flight, vector):
    """Of a thread: loads and what becomes of their elements, masked or not loaded at all at the end of a walk, as the mode has it; then
    its states become one, and that of a row, or of each column."""
    fold = problem.fold
    element, merge = COST.element.get(fold, COST.element["add"]), COST.merge.get(fold, COST.merge["add"])
    loads = flight * ceil_div(walk, flight) if fold in IGNORES_ZEROS else walk
    if isinstance(way, Columns):
        height = THREADS // way.across
        merges = vector * (max(0, 5 - (way.across.bit_length() - 1)) + way.across * min(height, 8) / THREADS)
    else:
        states = 1 if fold == "logsumexp" else vector
        merges = states - 1 + way.width.bit_length() - 1 + COST.ragged_merges * way.ragged
    return COST.thread + COST.ragged * getattr(way, "ragged", False) + loads * (COST.access + vector * element) + merge * merges
