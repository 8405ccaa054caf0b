"""How a tile's sums leave a warpgroup of the Hopper main loop: 64 rows at a time through shared memory and TMA, or straight from registers.

The sums are a fragment of wgmma: thread `t` of the warpgroup holds, of each 8 columns, two in row ``t / 32 * 16 + t % 32 / 4`` and the same
two eight rows below. Everything that touches them is unrolled by calls (`device.unroll`): the compiler does not unroll a loop with an
activation in it, and sums that are indexed by a variable lie in local memory.
"""
import functools

from ..device import cuda, device_function, i64, u32
from ..device.barrier import barrier_sync
from ..device.convert import element
from ..device.cp_async import commit_copies, copy_async16, wait_copies
from ..device.ldmatrix import ldmatrix_x4
from ..device.mbarrier import fence_async_shared
from ..device.numeric import float_bits
from ..device.program import positions_of
from ..device.stmatrix import stmatrix_x4
from ..device.tma import bulk_commit, make_bulk_wait_read, tma_store_3d
from ..device.unroll import unrolled
from ..device.vec import address, advance, as_u32, load_shared_2f32, load_shared_4u32, store4, store_shared_2u32, store_shared_u16
from .constants import constants
from .cost import Cost, issue_seconds
from .functions import EPILOGUE, epilogue_seconds, mode_instructions
from .hopper import GROUP, ROW
from .hopper_addend import make_addend_box
from .hopper_columns import in_columns, make_columns, span_of
from .stores import make_epilogue_of, make_group_store
from .tile_states import WARP_ROWS, Reducing, reduces

ASIDE, PLAIN = constants("engine/hopper_aside"), constants("matmul/wgmma_epilogue")
SHORT = "float16", "bfloat16"


def stores_aside(spec):
    """Whether the epilogue stores more than its result: it is told of the rows and columns beyond the matrix as they are."""
    return spec.program is not None and bool(spec.program.stores)


@functools.cache
def make_fill(spec, staged=None, width=ROW, pairs=(), span=None, apart=0, boxed=None, aside=False):
    """Device function ``fill(acc, j, buffer, r0, r1, column, lane, warp, n, e, columns, first, source)``: 128 bytes of columns of a
    fragment, from acc[j] on. Results of 8 bits are floats.

    The epilogue, and registers to a swizzled box of 64 rows at `buffer`. `r0` and `r1` are what the epilogue is told of the thread's two
    rows, `column` is its first; columns from n on are computed from those below. What is `staged` lies in a box at `source` as
    the results will, which may be the same; `columns` has what `make_columns` has read of
    `pairs` for `span` bytes, from which its pair number `first` is the first. Of 16-bit results rows may be `width` = 64 bytes wide, in the
    swizzle of as many. `apart`, `boxed`, `aside`: see `stores.make_epilogue_of`.
    """
    itemsize = element(spec.output).storage.itemsize
    given = (() if staged is None else (staged,)) + pairs
    epilogue = make_epilogue_of(spec, "packed" if itemsize < 4 else "storage", given, apart, boxed, aside)
    bits, ADDEND, WIDE = u32 if spec.output == "int32" else float_bits, staged is not None, width == ROW
    PAIRS = bool(in_columns(spec, pairs))
    CLAMPED, GIVEN = not stores_aside(spec), ADDEND or PAIRS

    if GIVEN:
        read = None if not ADDEND else load_shared_2f32 if itemsize == 4 else element(_staged_dtype(spec, staged)).unpack
        values = _given_values(read, make_columns(spec, pairs, span or width)[2])

        @device_function
        def word(acc, k, row, column, e, columns, j, addend):
            low, high = values(columns, j, addend)
            return epilogue(acc, k, row, column, e, low, high)

    if itemsize == 2:
        @device_function
        def fill_part(pair, s):
            acc, j, line, chunk0, r0, r1, column, last, e, columns, first, before = s
            ca, cb = column + pair * 16, column + pair * 16 + 8
            if CLAMPED:
                ca, cb = min(ca, last), min(cb, last)
            at = line + u32((pair * 2 + (chunk0 >> 3)) ^ (chunk0 & 7)) * 16
            k, pa, pb = j + pair * 8, first + 2 * pair, first + 2 * pair + 1
            if ADDEND:
                addend = cuda.local.array(4, u32)
                ldmatrix_x4(addend, 0, at - before)
                stmatrix_x4(at, word(acc, k, r0, ca, e, columns, pa, addend[0]), word(acc, k + 2, r1, ca, e, columns, pa, addend[1]),
                            word(acc, k + 4, r0, cb, e, columns, pb, addend[2]), word(acc, k + 6, r1, cb, e, columns, pb, addend[3]))
            elif PAIRS:
                stmatrix_x4(at, word(acc, k, r0, ca, e, columns, pa, 0), word(acc, k + 2, r1, ca, e, columns, pa, 0),
                            word(acc, k + 4, r0, cb, e, columns, pb, 0), word(acc, k + 6, r1, cb, e, columns, pb, 0))
            else:
                stmatrix_x4(at, epilogue(acc, k, r0, ca, e), epilogue(acc, k + 2, r1, ca, e),
                            epilogue(acc, k + 4, r0, cb, e), epilogue(acc, k + 6, r1, cb, e))
        fill_all = unrolled(width // 32, fill_part)

        @device_function
        def fill(acc, j, buffer, r0, r1, column, lane, warp, n, e, columns, first, source):
            line = buffer + u32(warp * 16 + (lane & 15)) * width
            fill_all(0, (acc, j, line, (lane >> 4) * 8 + (lane & 7 if WIDE else lane >> 1 & 3), r0, r1, column, n - 2, e, columns, first,
                         buffer - source))
    elif itemsize == 1:
        @device_function
        def fill_part(block, s):
            acc, j, line, row, r0, r1, column, last, e, columns, first = s
            c = column + block * 8
            if CLAMPED:
                c = min(c, last)
            at, k = line + u32((block >> 1) ^ row) * 16 + u32(block & 1) * 8, j + block * 4
            if PAIRS:
                low, high = word(acc, k, r0, c, e, columns, first + block, 0), word(acc, k + 2, r1, c, e, columns, first + block, 0)
            else:
                low, high = epilogue(acc, k, r0, c, e), epilogue(acc, k + 2, r1, c, e)
            store_shared_u16(at, low)
            store_shared_u16(at + 8 * ROW, high)
        fill_all = unrolled(16, fill_part)

        @device_function
        def fill(acc, j, buffer, r0, r1, column, lane, warp, n, e, columns, first, source):
            line = buffer + u32(warp * 16 + (lane >> 2)) * ROW + u32(lane & 3) * 2
            fill_all(0, (acc, j, line, lane >> 2, r0, r1, column, n - 2, e, columns, first))
    else:
        @device_function
        def fill_part(block, s):
            acc, j, line, inside, lane, r0, r1, column, last, e, columns, first, before = s
            ca, cb = column + block * 8, column + block * 8 + 1
            if CLAMPED:
                ca, cb = min(ca, last), min(cb, last)
            chunk = u32((block * 2 + ((lane >> 1) & 1)) ^ (lane >> 2)) * 16
            at, k = line + chunk + inside, j + block * 4
            if GIVEN:
                a, b = values(columns, first + block, at - before)
                c, d = values(columns, first + block, at - before + 8 * ROW)
                store_shared_2u32(at, bits(epilogue(acc, k, r0, ca, e, a)), bits(epilogue(acc, k + 1, r0, cb, e, b)))
                store_shared_2u32(at + 8 * ROW, bits(epilogue(acc, k + 2, r1, ca, e, c)), bits(epilogue(acc, k + 3, r1, cb, e, d)))
            else:
                store_shared_2u32(at, bits(epilogue(acc, k, r0, ca, e)), bits(epilogue(acc, k + 1, r0, cb, e)))
                store_shared_2u32(at + 8 * ROW, bits(epilogue(acc, k + 2, r1, ca, e)), bits(epilogue(acc, k + 3, r1, cb, e)))
        fill_all = unrolled(4, fill_part)

        @device_function
        def fill(acc, j, buffer, r0, r1, column, lane, warp, n, e, columns, first, source):
            line = buffer + u32(warp * 16 + (lane >> 2)) * ROW  # eight rows on the swizzle is the same again
            fill_all(0, (acc, j, line, u32(lane & 1) * 8, lane, r0, r1, column, n - 1, e, columns, first, buffer - source))
    return fill


def _staged_dtype(spec, staged):
    """Element type of the array that is staged."""
    return spec.c if staged == "c" else spec.residual if staged == "residual" else spec.program.operands[staged][0]


def _given_values(read, pairs):
    """Device function ``values(columns, j, staged)`` of what is given to an epilogue: the staged array's two elements, which a device
    function ``read(staged)`` has from a word or from where they lie, None where nothing is staged, and the columns' pairs."""
    if read is None:
        return device_function(lambda columns, j, staged: pairs(columns, j))
    if pairs is None:
        @device_function
        def values(columns, j, staged):
            low, high = read(staged)
            return (low,), (high,)
        return values

    @device_function
    def values_of_both(columns, j, staged):
        lows, highs = pairs(columns, j)
        low, high = read(staged)
        return (low,) + lows, (high,) + highs
    return values_of_both


def staged_addend(spec, addends, wide=False):
    """The array that `make_boxed_store` can stage: "c", "residual", the number of a program's operand, or None. Host function.

    `addends` has (tensor, element strides along rows, columns and what else moves its pointer) of c, the residual, and the program's
    operands, by these names. `wide`: whether a float32 array can be, beside float32 results.
    """
    if element(spec.output).storage.itemsize != 2 and not (wide and (spec.output, spec.compute) == ("float32", "float32")):
        return None
    dtypes = ("float32",) if spec.output == "float32" else SHORT
    names = [name for name, dtype in (("c", spec.c), ("residual", spec.residual)) if dtype]
    if not names and spec.program is not None:
        names = [k for k, (_, access) in enumerate(spec.program.operands[:spec.program.inputs]) if access == "matrix"]
        return next((k for k in names if _can_be_staged(*addends[k], dtypes)), None)
    return names[0] if len(names) == 1 and _can_be_staged(*addends[names[0]], dtypes) else None


def boxed_output(spec, operands):
    """The number of the program's side output that can leave through boxes, as the result does, which has 16 bits, or None. Host function;
    `operands` as `staged_addend` takes them."""
    program = spec.program
    if program is None or element(spec.output).storage.itemsize != 2 or spec.compute != "float32":
        return None
    types = program.types(spec.compute)
    return next((k for k, (value, _, _) in enumerate(program.stores, program.inputs) if types[value] == "float32"
                 and min(operands[k][1]) > 0 and _can_be_staged(*operands[k])), None)


def _can_be_staged(tensor, strides, dtypes=SHORT):
    """Whether rows of an array are multiples of 16 bytes, of elements of one of these dtypes side by side."""
    row, column, *others = strides
    rows_of_16_bytes = tensor.alignment % 16 == 0 and all(s * tensor.itemsize % 16 == 0 for s in (row, *others))
    return tensor.dtype in dtypes and column == 1 and rows_of_16_bytes


@functools.cache
def make_staged(spec, staged):
    """Device function ``staged_array(e)`` -> (pointer, elements from row to row) of the array that is staged."""
    if staged == "c":
        return device_function(lambda e: (e.c, e.c_row_stride))
    if staged == "residual":
        return device_function(lambda e: (e.residual, e.residual_row_stride))
    AT = positions_of(spec.program)[staged]
    S = AT + 1
    return device_function(lambda e: (e.extras[AT], e.extras[S]))


@functools.cache
def make_fetch(width=ROW):
    """Device function ``fetch(box, r, c, source, inside)``: copy 16 bytes from the address `source`, or zeros where it is not inside.

    They go to piece `c` of row `r` of a box of rows of `width` bytes, as `make_fill` has them.
    """
    WIDE = width == ROW

    @device_function
    def fetch(box, r, c, source, inside):
        swizzle = r & 7 if WIDE else r >> 1 & 3
        copy_async16(box + u32(r * width + (c ^ swizzle) * 16), source, i64(0), u32(16) if inside else u32(0))
    return fetch


@functools.cache
def make_boxed_store(tile, spec, clipped=False, staged=None, pairs=(), by_ring=False, ahead=False, keeps=False, apart=0, boxed=None):
    """Device function ``store(acc, first, y_map, staging, row, column, z, thread, barrier, m, n, e, y, y_row, [stages, group, columns,
    states, own])`` for 64 rows of results.

    Results of 8, 16 or 32 bits, n of them a multiple of 16 bytes: epilogue, registers to swizzled boxes of 128 bytes by 64 rows, TMA to
    y, which clips what lies beyond its edges. Elements beyond m rows and n columns are computed from operands within. With `clipped`
    rows from m on exist and stay as they are: a box that reaches into them is copied by the threads instead, 16 bytes each, to rows of
    `y_row` elements at `y`. With `staged` (`staged_addend`) this array's rows come through the boxes too, 16 bytes a thread and copy, a
    box ahead of their use, or `by_ring` in further stages of the main loop's ring (`hopper_addend`). Otherwise each thread loads it element
    by element. `pairs`: see `paired_columns`; they are in `columns`, if they are loaded `ahead`.
    `keeps`: see `make_reduced_store`. `apart`: see `stores.make_epilogue_of`; `tile` is then the tile of results. `boxed`: the number of a
    side output (`boxed_output`) each of whose boxes follows the result's; `y_map` is then a tuple of both maps, and nothing is `staged`.
    """
    itemsize = element(spec.output).storage.itemsize
    PER, WIDTH = 16 // itemsize, ROW // itemsize
    BLOCKS = WIDTH // 8
    BOXES = tile.bn // WIDTH
    IN_TURN = 1 if boxed is None else 2
    BUFFERS = max(count for count in range(1, tile.buffers + 1) if IN_TURN * BOXES % count == 0)
    if tile.bn % WIDTH:
        raise ValueError(f"tile {tile}: {tile.bn} columns are no multiple of the {WIDTH} in which results leave")
    fill, fill_aside = (None if aside and boxed is None else make_fill(spec, staged, pairs=pairs, apart=apart, boxed=boxed, aside=aside,
                                                                       span=span_of(spec, tile.bn) if ahead else ROW)
                        for aside in (False, True))
    free, ADDS = make_bulk_wait_read(BUFFERS - 1), spec.c is not None and staged != "c"
    STAGED, AHEAD, CLAMPED = staged is not None and not by_ring, BUFFERS > 1, not stores_aside(spec)
    arrive, leave = make_addend_box(tile, itemsize) if by_ring else (None, None)
    staged_array, fetch_piece = make_staged(spec, staged) if STAGED else None, make_fetch()
    all_free, arrived, BOXED = make_bulk_wait_read(0), wait_copies(0), boxed is not None
    (WORDS, read_columns, _), PAIRS = make_columns(spec, pairs), bool(in_columns(spec, pairs))
    after, reduced = make_reduced_store(spec, tile.bn, BLOCKS, keeps and 4 * tile.consumers)

    @device_function
    def copy(buffer, row, column, thread, m, n, y, y_row):
        for part in range(4):
            chunk = part * 128 + thread
            r, c = chunk >> 3, chunk & 7
            if row + r < m and column + c * PER < n:
                words = load_shared_4u32(buffer + u32(r * ROW) + u32((c ^ (r & 7)) * 16))
                store4(as_u32(advance(y, (row + r) * y_row + (column + c * PER))), 0, words)

    @device_function
    def fetch(buffer, row, column, thread, m, n, e):
        """The staged array's part of a box; what lies outside is nothing."""
        addend, pitch = staged_array(e)
        for part in range(4):
            chunk = part * 128 + thread
            r, c = chunk >> 3, chunk & 7
            at = column + c * PER
            fetch_piece(buffer, r, c, address(addend, min(row + r, m - 1) * pitch + min(at, n - PER)), row + r < m and at < n)

    @device_function
    def fetch_ahead(box, row, column, thread, barrier, staging, m, n, e):
        """Box number `box` of the staged array into its buffer, once what was there has been stored."""
        if thread == 0:
            all_free()
        barrier_sync(barrier, u32(128))
        fetch(staging + u32(box % BUFFERS * GROUP), row, column + WIDTH * box, thread, m, n, e)
        commit_copies()

    @device_function
    def store_box(box, s):
        acc, first, y_map, staging, row, column, z, thread, barrier, m, n, e, y, y_row, stages, group, columns, reducing = s
        lane, warp = thread & 31, thread >> 5
        r0 = row + warp * 16 + (lane >> 2)
        c0 = column + (lane & 3) * 2
        start = WIDTH * box
        if ADDS and (column + start >= n or row >= m):
            # nothing to store; what would be added may be y itself, and others write what a clamped index reads
            if thread == 0:
                for _ in range(IN_TURN):
                    bulk_commit()  # counts as a box, or the next one would be written over one that is still read
            return
        buffer = staging + u32(IN_TURN * box % BUFFERS * GROUP)
        if PAIRS and not ahead:
            columns = cuda.local.array(WORDS, u32)
            read_columns(columns, column + start, c0 + start, n, e)
        source = arrive(stages, group * BOXES + box) if by_ring else buffer
        if STAGED:
            if not AHEAD or box == 0:
                fetch_ahead(box, row, column, thread, barrier, staging, m, n, e)
            arrived()
            if AHEAD and box + 1 < BOXES:
                fetch_ahead(box + 1, row, column, thread, barrier, staging, m, n, e)
            else:
                barrier_sync(barrier, u32(128))
        else:
            if thread == 0:
                free()
            barrier_sync(barrier, u32(128))
        last, pair = m - 1, start >> 3 if ahead else 0
        if CLAMPED:
            fill(acc, first + (start >> 1), buffer, min(r0, last), min(r0 + 8, last), c0 + start, lane, warp, n, e, columns, pair, source)
        else:
            fill(acc, first + (start >> 1), buffer, r0, r0 + 8, c0 + start, lane, warp, n, e, columns, pair, source)
        fence_async_shared()  # the fence of all memory waits for the device, see docs/notes/tensor-cores.md
        barrier_sync(barrier, u32(128))
        if by_ring:
            leave(stages, group * BOXES + box, thread)
        if clipped and row + 64 > m:
            copy(buffer, row, column + start, thread, m, n, y, y_row)
            if thread == 0:
                bulk_commit()  # counts as a box, as above
        elif thread == 0:
            tma_store_3d(y_map[0] if BOXED else y_map, buffer, column + start, row, z)
            bulk_commit()
        if BOXED:
            buffer = staging + u32((IN_TURN * box + 1) % BUFFERS * GROUP)
            if thread == 0:
                free()
            barrier_sync(barrier, u32(128))
            fill_aside(acc, first + (start >> 1), buffer, r0, r0 + 8, c0 + start, lane, warp, n, e, columns, pair, buffer)
            fence_async_shared()
            barrier_sync(barrier, u32(128))
            if thread == 0:
                tma_store_3d(y_map[1], buffer, column + start, row, z)
                bulk_commit()
        after(BLOCKS * box + BLOCKS - 1, reducing)
    store_boxes = unrolled(BOXES, store_box)

    @device_function
    def store_all(reducing, s):
        store_boxes(0, s + (reducing,))
    store_reduced = reduced(store_all)

    @device_function
    def store(acc, first, y_map, staging, row, column, z, thread, barrier, m, n, e, y, y_row, stages=None, group=0, columns=None,
              states=None, own=None):
        store_reduced((acc, first, row, column, z, thread, m, n, e, states, own),
                      (acc, first, y_map, staging, row, column, z, thread, barrier, m, n, e, y, y_row, stages, group, columns))
    return store


@functools.cache
def make_reduced_store(spec, bn, blocks, keeps=0):
    """(device function ``after(last, reducing)``, which reduces `blocks` blocks of 8 columns up to number `last`, once they are stored;
    ``around(store)`` -> device function ``stored(of_rows, s)``, which calls ``store(reducing, s)`` with what that needs, of rows `of_rows`:
    (sums, first, row, column, matrix, thread, rows, columns, epilogue's operands, states, what a thread keeps from tile to tile)).
    `keeps`: so many warps do, or none. Without reductions they do nothing.

    After the stores, since ptxas moves a rounding that would be the first to read sums in front of the products' end, and then lets
    products wait for each other.
    """
    if not reduces(spec):
        return device_function(lambda last, reducing: None), lambda store: device_function(lambda of_rows, s: store((), s))
    from ..reduce._warps import CHUNK, make_warp_reductions, rows_of
    OWN, T, begin, chunk, rest, end, *_ = make_warp_reductions(spec, bn, keeps)
    COUNT, LAST, HAS_REST = max(blocks // CHUNK, 1), bn // 8 - 1, bn // 8 % CHUNK != 0
    chunks = unrolled(COUNT, chunk)

    @device_function
    def after(last, reducing):
        if (last + 1) % CHUNK == 0:
            chunks((last + 1) // CHUNK - COUNT, reducing)
        elif HAS_REST and last == LAST:
            rest(reducing)

    def around(store):
        @device_function
        def stored(of_rows, s):
            acc, first, row, column, z, thread, m, n, e, states, own = of_rows
            if not keeps:
                own = cuda.local.array(OWN, T)
            begin((own,))
            rows = rows_of(row + (thread >> 5) * WARP_ROWS, thread & 31, m)
            reducing = acc, first, own, rows, column, thread & 31, Reducing(n, e, z, states)
            store(reducing, s)
            end(reducing)
        return stored
    return after, around


def kept_reductions(spec, bn, warps):
    """`reduce._warps.WarpReductions` of so many warps that keep states, None where there are no reductions."""
    if not reduces(spec):
        return None
    from ..reduce._warps import make_warp_reductions
    return make_warp_reductions(spec, bn, warps)


def kept_states(spec, tile, find):
    """`tile_states.KeptStates` of an `EpilogueSpec` for an `engine.hopper.Tile`; ``find(tile, out)`` -> (matrix, columns, the parameter
    `states`). Host function."""
    from ..reduce._warps import make_kept_states
    return make_kept_states(spec, tile, find)


@functools.cache
def make_direct_store(tile, spec, vector, keeps=False, apart=0):
    """Device function ``store(acc, first, row, column, thread, m, n, e, y, at, y_row, y_column, [z, states, own])`` for 64 rows of any
    results.

    Pairs of columns straight from registers to y at element `at`, each checked against the edges; with `vector` a pair is one store.
    `apart`: as `make_boxed_store`'s.
    """
    COUNT = tile.bn // 8
    pair = make_group_store(spec, 2, vector, apart)
    after, reduced = make_reduced_store(spec, tile.bn, 1, keeps and 4 * tile.consumers)

    @device_function
    def store_columns(j, s):
        acc, first, r0, r1, c0, m, n, y, at0, at1, y_column, e, reducing = s
        c = c0 + j * 8
        if r0 < m:
            pair(acc, first + 4 * j, r0, c, n, y, at0 + c * y_column, y_column, e)
        if r1 < m:
            pair(acc, first + 4 * j + 2, r1, c, n, y, at1 + c * y_column, y_column, e)
        after(j, reducing)
    store_all = unrolled(COUNT, store_columns)

    @device_function
    def store_rows(reducing, s):
        store_all(0, s + (reducing,))
    store_reduced = reduced(store_rows)

    @device_function
    def store(acc, first, row, column, thread, m, n, e, y, at, y_row, y_column, z=0, states=None, own=None):
        lane, warp = thread & 31, thread >> 5
        r0 = row + warp * 16 + (lane >> 2)
        r1 = r0 + 8
        c0 = column + (lane & 3) * 2
        store_reduced((acc, first, row, column, z, thread, m, n, e, states, own),
                      (acc, first, r0, r1, c0, m, n, y, at + r0 * y_row, at + r1 * y_row, y_column, e))
    return store


def aside_seconds(problem, tile, device, by_boxes=1, wide=0):
    """What a program takes that the main loop of a tile does not hide: its functions, and its matrices that threads load and store
    themselves, which are all but as many as go `by_boxes`, where the result does and nothing is reduced, or of a float32 result `wide`,
    which are more than is hidden."""
    if problem.program is None:
        return Cost()
    by_boxes = 0 if problem.program.reductions else by_boxes
    functions = epilogue_seconds(problem, 4 * tile.consumers, device, EPILOGUE.ping_pong if tile.ping_pong else 1.0)
    matrices = [t for (_, access), t in zip(problem.program.operands, problem.extras) if access == "matrix"]
    if problem.y.itemsize == 2:
        boxes, aside = [], matrices[by_boxes:]
    else:
        boxes = [t for t in matrices if t.dtype == problem.y.dtype == "float32"][:wide]
        aside = [t for t in matrices if all(t is not other for other in boxes)]
    seconds = ASIDE.boxes * sum(t.nbytes for t in boxes) + ASIDE.aside * sum(t.nbytes for t in aside)
    return Cost(aside=seconds / device.bandwidth) + functions


def activation_seconds(problem, tile, device):
    """What an activation and c take at the end of tiles. Ping-pong hides a function where a tile's products take longer."""
    steps = problem.k * problem.a.itemsize / ROW
    shown = min(2, PLAIN.ping_pong / steps ** 2) if tile.ping_pong else 1.0
    issue = shown * issue_seconds(problem.y.size, max(0, mode_instructions(problem.activation.mode) - PLAIN.free), device)
    c = 0 if problem.c is None else problem.c.nbytes * (PLAIN.c_ping_pong if tile.ping_pong else PLAIN.c)
    return Cost(issue=issue, aside=c / device.bandwidth)
