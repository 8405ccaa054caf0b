"""Which ways of reading are worth trying for a problem, and what they should take: the estimates of this family."""
from ..device.index import ceil_div
from ..transform._estimate import LAUNCH, moved_seconds, sector_waste
from ._columns import Columns, columns_refusal, words_of
from ._rows import FLIGHT, FLIGHT_OF_ELEMENTS, WIDTHS, Rows, loads_of, per_load, rows_refusal
from ._stages import THREADS, finish_across, finish_threads, workspace_bytes

LATENCY = 8e-7          # of a flight of loads, and what is done with it
IN_FLIGHT = 32 << 10    # bytes under way in a multiprocessor that memory's rate takes
TAIL = 0.03             # of a grid's time, while its last blocks run alone, if all blocks run at once
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
    rate = {4: 1.0, 2: 0.9, 1: 0.7, 0: 0.7 if problem.x.itemsize > 2 else 0.4}[way.words]
    if isinstance(way, Columns):
        columns = form.kept[-1].size
        groups, height = ceil_div(columns, vector), THREADS // way.across
        blocks = form.outputs // columns * ceil_div(groups, way.across) * way.splits
        walk = ceil_div(ceil_div(form.length, way.splits), height)
        threads, waste = THREADS, sector_waste(columns * problem.x.itemsize, min(16, columns * problem.x.itemsize))
        used = groups / (ceil_div(groups, way.across) * way.across) * min(1.0, form.length / (way.splits * height))
        end = 5e-8 * min(8, height)
    else:
        blocks = ceil_div(form.outputs, way.threads // way.width) * way.splits
        walk = ceil_div(max(1, form.length // vector), way.width * way.splits)
        threads, step = way.threads, abs(form.reduced[-1].x)
        waste = min(8.0 if problem.x.itemsize == 4 else 4.0 if problem.x.itemsize == 8 else 16.0, max(1, step)) if step != 1 else 1.0
        units = max(1, form.length // vector)
        used = min(1.0, units / (way.width * way.splits))
        if units > way.width and step == 1:                 # neighbouring threads of different rows
            waste = max(1.0, 1.6 - 0.2 * way.width.bit_length())
        end = 4e-7 if way.width > 32 else 1e-7
        if way.ragged:
            end += LATENCY
    per_sm = min(2048 // threads, ceil_div(blocks, device.sms))
    under_way = per_sm * threads * used * min(flight, walk) * max(4 * way.words, problem.x.itemsize)
    busy = min(1.0, under_way / IN_FLIGHT) * min(1.0, blocks / device.sms)
    waves = ceil_div(blocks, device.sms * (2048 // threads))
    serial = waves * end + ceil_div(walk, flight) * LATENCY
    tail = 1 + TAIL * min(1.0, device.sms * (2048 // threads) / blocks)
    if waves == 1:                                          # some multiprocessors have a block more than others
        tail *= (ceil_div(blocks, device.sms) * device.sms / blocks) ** 0.5 if blocks > device.sms else 1.0
    time = LAUNCH + max(moved_seconds(problem.bytes * waste, device) / (rate * max(busy, 1e-3)) * tail + waves * end, serial)
    if way.splits > 1:
        loads = ceil_div(way.splits * finish_across(form.outputs), finish_threads(form.outputs, way.splits))
        time += LAUNCH + moved_seconds(4 * workspace_bytes(problem, way.splits), device) + LATENCY * (1 + ceil_div(loads, FLIGHT))
    return time
