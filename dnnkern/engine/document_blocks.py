"""Masks by documents: which blocks of a matrix may have an element whose row and column have the same number.

    program     select(.., number of the row == number of the column, at most `MASKED`)
    a launch    of 128 rows and of 128 columns the least and the largest number: where their ranges do not meet no two numbers are equal
    bits        uint32 [image][block of rows][block of columns / 32]: whether they meet

Numbers need not be sorted: what a range has beside its numbers costs blocks that are computed, and masked, element by element. Kernels find
the bits in the tuple of the program's operands, after its members: pointer, words of an image and of a block of rows, the last blocks.
"""
import functools
from typing import NamedTuple

from ..device import cuda, device_function, f32, i32, jit, u32
from ..device.convert import INTEGERS, element
from ..device.index import Divisor, ceil_div, divide_remainder, divisor
from ..device.pointwise import Function
from ..device.program_operands import MEMBERS, loaded_type
from ..device.warp import ballot, redux_max, redux_min
from ..host.launch import Argument, Launch

LOG_BLOCK, WARPS = 7, 32
BLOCK = 1 << LOG_BLOCK
MASKED = -1e9
SELECT, EQUAL, OTHER, AND, SAME, TIMES = map(Function.of, ("binary_select", "cmp_eq", "cmp_neq", "logical_and", "identity", "mul"))
ALWAYS = tuple(map(Function.of, ("cmp_eq", "cmp_le", "cmp_ge")))


class Documents(NamedTuple):
    """Operands by their numbers, of rows and of columns; what masked elements become, a number, or the operand that it is; whether numbers
    are compared in float32, to which equal ones may be rounded."""
    rows: int
    columns: int
    fill: float | None
    fill_operand: int | None
    single: bool


def documents_of(program):
    """The `Documents` of a program's result; None where it has none."""
    loads, first, numbers = {}, program.accumulators + len(program.loads), 0
    for value, load in enumerate(program.loads, program.accumulators):
        loads[value] = load, numbers if load[1] in MEMBERS else None
        numbers += load[1] in MEMBERS

    def step_of(value):
        return program.steps[value - first] if value >= first else None

    def is_one(value):
        """Whether a value is a comparison of integers with themselves."""
        step = step_of(value)
        return (step is not None and step.function in ALWAYS and step.inputs[0] == step.inputs[1]
                and program.types()[step.inputs[0]] == "int32")

    def source(value):
        """(access, (number of the operand, whether in float32)) that a value is, an integer."""
        step, single = step_of(value), False
        while step is not None and step.round_to in (None, "int32"):
            ones = [k for k in range(2) if step.function == TIMES and is_one(step.inputs[k])]
            if not ones and step.function != SAME:
                break
            single = single or step.compute == "float32"
            value = step.inputs[1 - ones[0] if ones else 0]
            step = step_of(value)
        (dtype, access), number = loads.get(value, ((None, None), None))
        return (access, (number, single)) if dtype in INTEGERS else (None, None)

    def fill_of(value):
        """(a number, None) or (None, an operand's number) that masks; None of others."""
        (dtype, access), number = loads.get(value, ((None, "none"), None))
        if access == "value" and loaded_type(dtype) == "float32":
            return None, number
        return (float(access), None) if not isinstance(access, str) and access <= MASKED else None

    def equality(value, function):
        """(rows, columns, whether in float32) of a condition that is one, or has to be one among others."""
        step = step_of(value)
        if step is None:
            return None
        if step.function == AND and function == EQUAL:
            return equality(step.inputs[0], function) or equality(step.inputs[1], function)
        if step.function == SAME:
            return equality(step.inputs[0], function)
        pair = dict(map(source, step.inputs)) if step.function == function else {}
        if {*pair} != {"row", "column"}:
            return None
        (rows, rounded), (columns, too) = pair["row"], pair["column"]
        return rows, columns, step.compute == "float32" or rounded or too

    value = program.result
    while (step := step_of(value)) is not None and step.function in (SELECT, SAME):
        if step.function == SELECT:
            for kept, filled, function in ((0, 1, EQUAL), (1, 0, OTHER)):
                fill, found = fill_of(step.inputs[filled]), equality(step.inputs[2], function)
                if fill is not None and found is not None:
                    return Documents(*found[:2], *fill, found[2])
            kept = [k for k in range(2) if fill_of(step.inputs[1 - k]) is not None]
            if not kept or fill_of(step.inputs[1 - kept[0]])[0] is None:
                return None
            value = step.inputs[kept[0]]
        elif step.round_to is None:
            value = step.inputs[0]
        else:
            return None
    return None


class Blocks(NamedTuple):
    """Of so many images, rows and columns: blocks of rows, words of a block of rows."""
    images: int
    rows: int
    columns: int

    @property
    def lines(self):
        return ceil_div(self.rows, BLOCK)

    @property
    def words(self):
        return ceil_div(self.columns, BLOCK * WARPS)

    @property
    def bytes(self):
        return 4 * self.images * self.lines * self.words

    def members(self, begin):
        """The members of the operands' tuple: bits begin with byte `begin` of the workspace."""
        of_image = self.lines * self.words if self.images > 1 else 0
        return (Argument("uint32*", "workspace", begin), Argument("int32", of_image), Argument("int32", self.words),
                Argument("int32", self.lines - 1), Argument("int32", ceil_div(self.columns, BLOCK) - 1))


def launch(documents, blocks, operands, begin):
    """The launch that sets the bits. `operands`: (dtype, name, `Steps`, images first of the batch) of rows and of columns, (None, name) of
    the fill where it is an operand."""
    rows, columns, fill = operands
    arguments = [Argument(element(dtype).pointer, name) for dtype, name, _ in (rows, columns)]
    arguments += [Argument("int64", step) for step in (rows[2].batch[0], rows[2].row, columns[2].batch[0], columns[2].column)]
    arguments += [Argument("int32", blocks.rows), Argument("int32", blocks.columns), Argument("int32", blocks.words),
                  Argument(Divisor, divisor(blocks.lines)), Argument("float32", documents.fill if fill is None else fill[1]),
                  Argument("uint32*", "workspace", begin)]
    made = kernel(rows[0], columns[0], documents.single)
    return Launch(made, (blocks.images * blocks.lines, 1, 1), (32 * WARPS, 1, 1), tuple(arguments))


@functools.cache
def kernel(of_rows, of_columns, single):
    """A block of rows a block, a block of columns a warp, a word at a time."""
    load_row, load_column, COMPARED = element(of_rows).load, element(of_columns).load, f32 if single else i32

    def make_range(load):
        @device_function
        def range_of(numbers, at, step, first, last, lane):
            low = i32(load(numbers, at + min(first + lane, last) * step))
            high = low
            for k in range(32, BLOCK, 32):
                number = i32(load(numbers, at + min(first + lane + k, last) * step))
                low, high = min(low, number), max(high, number)
            return redux_min(low), redux_max(high)
        return range_of
    range_of_rows, range_of_columns = make_range(load_row), make_range(load_column)

    @jit(launch_bounds=(32 * WARPS, 1))
    def document_blocks(rows, columns, row_image, row_step, column_image, column_step, count, width, words, lines, fill, bits):
        found = cuda.shared.array(WARPS, i32)
        image, line = divide_remainder(cuda.blockIdx.x, lines)
        lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        low, high = range_of_rows(rows, image * row_image, row_step, line * BLOCK, count - 1, lane)
        for word in range(words):
            first, meet = (word * WARPS + warp) * BLOCK, 0
            if first < width:
                least, most = range_of_columns(columns, image * column_image, column_step, first, width - 1, lane)
                if not fill <= f32(MASKED) or (COMPARED(least) <= COMPARED(high) and COMPARED(low) <= COMPARED(most)):
                    meet = 1
            if lane == 0:
                found[warp] = meet
            cuda.syncthreads()
            if warp == 0:
                together = ballot(found[lane] != 0)
                if lane == 0:
                    bits[(image * i32(lines.d) + line) * words + word] = together
            cuda.syncthreads()
    return document_blocks


@functools.cache
def make_is_there(at):
    """Device function ``is_there(operands, image, row, rows, column, columns)``: whether a block that a tile has a part of may have
    elements that are not masked; `at`: of the operands' tuple the first member of `Blocks.members`, -1 without: every tile is there."""
    BITS, IMAGE, LINE, LAST_LINE, LAST = range(at, at + 5)
    if at < 0:
        return device_function(lambda operands, image, row, rows, column, columns: True)

    # NOTE: loops that end early: others are unrolled, and spill in kernels that have no registers left
    @device_function
    def is_there(operands, image, row, rows, column, columns):
        line, last_line = row >> LOG_BLOCK, min((row + (rows - 1)) >> LOG_BLOCK, operands[LAST_LINE])
        found = False
        while line <= last_line and not found:
            block, last = column >> LOG_BLOCK, min((column + (columns - 1)) >> LOG_BLOCK, operands[LAST])
            at = image * operands[IMAGE] + line * operands[LINE]
            while block <= last and not found:
                found = (operands[BITS][at + (block >> 5)] >> u32(block & 31)) & 1 != 0
                block = block + 1
            line = line + 1
        return found
    return is_there


@functools.cache
def make_is_tile_there(at, rows, columns):
    """Device function ``is_tile_there(operands, image, row, column)``: `make_is_there` of tiles of this size that begin at multiples of it:
    one look where they are parts of blocks."""
    is_there, (BITS, IMAGE, LINE) = make_is_there(at), range(at, at + 3)
    if at < 0 or BLOCK % rows or BLOCK % columns:
        return device_function(lambda operands, image, row, column: is_there(operands, image, row, rows, column, columns))

    @device_function
    def is_tile_there(operands, image, row, column):
        word = operands[BITS][image * operands[IMAGE] + (row >> LOG_BLOCK) * operands[LINE] + (column >> LOG_BLOCK + 5)]
        return (word >> u32((column >> LOG_BLOCK) & 31)) & 1 != 0
    return is_tile_there
