"""Kernels of images whose pixels lie side by side: a group of threads holds a plane, or a piece of one, in registers.

See `channel_norm_planes`; how rows are held, and their unaligned edges, is `device.rows`'s.
"""
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...device import cuda, device_function, i64, jit, u32
from ...device.activation import Activation, activation_function, activation_gradient
from ...device.convert import element
from ...device.dependent import launch_dependent_grids, wait_for_previous_grid
from ...device.index import divide_remainder
from ...device.rows import RowLayout, make_row
from ...device.unroll import unrolled
from ...device.vec import advance, pin
from .._channel_problem import gradient_source
from .._channel_program import make_functions
from .._moments import make_inverses, make_meeting, make_merge, make_sum

if TYPE_CHECKING:
    from ...device.program import Program

WARPS4 = 128  # threads of a block whose groups are parts of warps


@dataclass(frozen=True)
class Planes:
    """How pieces of planes are held: vectors of `vector_bytes` in registers of `lanes` threads; whether a launch begins before the one
    before it ends; y's dtype, "" where it is x's."""
    dtype: str
    vector_bytes: int
    unaligned: bool
    lanes: int
    registers: int
    dependent: bool = False
    result: str = ""

    @property
    def layout(self):
        return RowLayout(self.dtype, self.vector_bytes, self.lanes, self.registers, 0, self.unaligned, result=self.result)

    @property
    def threads(self):
        return max(WARPS4, self.lanes) if self.lanes <= 32 else self.lanes

    @property
    def groups(self):
        """Of a block."""
        return self.threads // self.lanes

    @property
    def blocks(self):
        """Blocks that a multiprocessor of 65536 registers should hold, where one array is held."""
        return max(1, min(1024 // self.threads, 65536 // (self.threads * (32 + 2 * self.layout.words))))

    def __str__(self):
        return f"{self.lanes} threads, {self.registers} x {self.vector_bytes} bytes" + ", unaligned edges" * self.unaligned + (
            f", to {self.result}" * bool(self.result))


@dataclass(frozen=True)
class Apply:
    """What the elementwise pass is compiled for: dtypes of gamma, beta, mean and of rstd or the variance, "" where there is none; what
    becomes of each element after the activation, and along how many dimensions of values its operands have strides."""
    planes: Planes
    gamma: str
    beta: str
    mean: str
    deviation: str
    variance: bool
    residual: bool
    activation: Activation
    program: "Program | None" = None
    pixels: int = 0

    @property
    def blocks(self):
        """Blocks that a multiprocessor should hold: fewer with a residual or a program, which take registers."""
        return max(1, self.planes.blocks // (1 + (self.residual or self.program is not None)))


@dataclass(frozen=True)
class Gradient:
    """What the kernels of gradients are compiled for: dtypes of gamma and beta, "" where there is none; whether dresidual is written;
    whether the statistics are constants; what becomes of each element of dy first, and along how many dimensions of values its operands
    have strides."""
    planes: Planes
    gamma: str
    residual: bool
    activation: Activation
    beta: str = ""
    frozen: bool = False
    program: "Program | None" = None
    pixels: int = 0


def make_position(planes, reverse=False):
    """Device function ``position(rows, pieces, channels, length, values) -> (image, channel, piece, elements, lane)`` of a group;
    pieces of a plane are neighbours, planes of an image follow. No elements: there is no such row."""
    GROUPS, LANES, LOG, REVERSE = planes.groups, planes.lanes, planes.lanes.bit_length() - 1, reverse

    @device_function
    def position(rows, pieces, channels, length, values):
        thread, block = cuda.threadIdx.x, cuda.blockIdx.x
        if REVERSE:
            block = cuda.gridDim.x - block - 1
        row = block * GROUPS + (thread >> LOG)
        edges, piece = divide_remainder(row if row < rows else 0, pieces)
        image, channel = divide_remainder(edges, channels)
        size = values - piece * length
        if size > length:
            size = length
        return image, channel, piece, size if row < rows else 0, thread & (LANES - 1)
    return position


@functools.cache
def moments_kernel(planes):
    """The mean and the squared distances to it of every piece."""
    layout, position = planes.layout, make_position(planes)
    vec = make_row(layout)
    Real, E, WORDS, EDGE_SLOTS, EDGES = layout.real, layout.elements, layout.words, layout.edge_slots, layout.edges
    REGISTERS, LANES = planes.registers, planes.lanes
    meet, (inverse, _), SCRATCH = make_meeting(make_merge(Real), LANES), make_inverses(Real), max(1, 3 * LANES // 32)
    hold, DEPENDENT, BLOCK, BLOCKS = pin(WORDS), planes.dependent, planes.threads, planes.blocks

    @jit(launch_bounds=(BLOCK, BLOCKS))
    def channel_norm_plane_moments(x, first, second, rows, pieces, channels, length, values, image_step, channel_step, channel_items,
                                   image_items):
        scratch = cuda.shared.array(SCRATCH, Real)
        words, some, edges = cuda.local.array(WORDS, u32), cuda.local.array(E, Real), cuda.local.array(EDGE_SLOTS, Real)
        image, channel, piece, size, lane = position(rows, pieces, channels, length, values)
        x = advance(x, image * image_step + channel * channel_step + piece * length)
        prologue, vectors = vec.split(x, size)
        vec.load(words, x, prologue, vectors, lane, 1)
        vec.load_edges(edges, x, prologue, vectors, size, lane)
        if DEPENDENT:
            launch_dependent_grids()
        a, n = Real(0), Real(0)
        for c in range(REGISTERS):
            vec.unpack(some, words, c)
            for e in range(E):
                a += some[e]
            if lane + c * LANES < vectors:
                n = n + Real(E)
        for k in range(EDGES):
            j = lane + k * LANES
            a += edges[k]
            if (j if j < prologue else j + vectors * E) < size:
                n = n + Real(1)
        a = a * inverse(n) if n > Real(0) else Real(0)
        b = Real(0)
        hold(words)
        for c in range(REGISTERS):
            if lane + c * LANES < vectors:
                vec.unpack(some, words, c)
                for e in range(E):
                    d = some[e] - a
                    b += d * d
        for k in range(EDGES):
            j = lane + k * LANES
            if (j if j < prologue else j + vectors * E) < size:
                d = edges[k] - a
                b += d * d
        a, b, n = meet(a, b, n, scratch)
        if lane == 0 and size > 0:
            at = channel * channel_items + image * image_items + piece
            first[at] = a
            second[at] = b
    return channel_norm_plane_moments


@functools.cache
def apply_kernel(config):
    """y from x, statistics and weights, the last planes first: what was read last is still in the cache."""
    planes = config.planes
    layout, position = planes.layout, make_position(planes, reverse=True)
    vec, act = make_row(layout), activation_function(config.activation, element(planes.dtype).compute)
    Real, E, WORDS, EDGE_SLOTS, EDGES = layout.real, layout.elements, layout.words, layout.edge_slots, layout.edges
    REGISTERS = planes.registers
    RESIDUAL, SCALED, SHIFTED, VARIANCE = config.residual, config.gamma != "", config.beta != "", config.variance
    DEPENDENT, BLOCK, BLOCKS, LANES = planes.dependent and not VARIANCE, planes.threads, config.blocks, planes.lanes
    MORE, MORE_EDGES = WORDS if RESIDUAL else 1, EDGE_SLOTS if RESIDUAL else 1
    load_gamma, load_beta = element(config.gamma or planes.dtype).load, element(config.beta or planes.dtype).load
    load_mean, load_deviation, (_, inverse_root) = element(config.mean).load, element(config.deviation).load, make_inverses(Real)
    PROGRAM = config.program is not None
    function, _, of_values = make_functions(config.program, element(planes.dtype).compute, planes.result or planes.dtype, E, config.pixels)

    @device_function
    def write(c, s):
        """y of a thread's vector c."""
        words, more, some, others, y, prologue, vectors, lane, m, scale, shift, image, first, channel, operands, extents = s
        vec.unpack(some, words, c)
        if RESIDUAL:
            vec.unpack(others, more, c)
        for e in range(E):
            value = (some[e] - m) * scale + shift
            if RESIDUAL:
                value += others[e]
            some[e] = act(value)
        if PROGRAM:
            i = lane + c * LANES
            if i < vectors:
                of_values(0, (some, image, first + prologue + i * E, channel, operands, extents))
        vec.write(y, words, c, some, prologue, vectors, lane, 1)
    write_all = unrolled(REGISTERS, write)

    @jit(launch_bounds=(BLOCK, BLOCKS))
    def channel_norm_plane_apply(x, residual, y, gamma, beta, mean, deviation, eps, rows, pieces, channels, length, values, per,
                                 image_strides, channel_strides, gamma_step, beta_step, mean_strides, deviation_strides, operands,
                                 extents):
        words, more = cuda.local.array(WORDS, u32), cuda.local.array(MORE, u32)
        edges, y_edges = cuda.local.array(EDGE_SLOTS, Real), cuda.local.array(MORE_EDGES, Real)
        some, others = cuda.local.array(E, Real), cuda.local.array(E, Real)
        image, channel, piece, size, lane = position(rows, pieces, channels, length, values)
        begin = i64(piece * length)
        x = advance(x, image * image_strides.x + channel * channel_strides.x + begin)
        y = advance(y, image * image_strides.y + channel * channel_strides.y + begin)
        prologue, vectors = vec.split(x, size)
        vec.load(words, x, prologue, vectors, lane, 1)
        vec.load_edges(edges, x, prologue, vectors, size, lane)
        if RESIDUAL:
            residual = advance(residual, image * image_strides.residual + channel * channel_strides.residual + begin)
            vec.load(more, residual, prologue, vectors, lane, 1)
            vec.load_edges(y_edges, residual, prologue, vectors, size, lane)
        scale, shift = Real(1), Real(0)
        if SCALED:
            scale = Real(load_gamma(gamma, channel * gamma_step))
        if SHIFTED:
            shift = Real(load_beta(beta, channel * beta_step))
        if DEPENDENT:
            wait_for_previous_grid()
        group, _ = divide_remainder(channel, per)
        m = Real(load_mean(mean, image * mean_strides.image + group * mean_strides.group))
        r = Real(load_deviation(deviation, image * deviation_strides.image + group * deviation_strides.group))
        if VARIANCE:
            r = inverse_root(r + eps)
        scale = scale * r
        s = words, more, some, others, y, prologue, vectors, lane, m, scale, shift, image, piece * length, channel, operands, extents
        if PROGRAM:
            write_all(0, s)
        else:
            for c in range(REGISTERS):
                write(c, s)
        for k in range(EDGES):
            value = (edges[k] - m) * scale + shift
            if RESIDUAL:
                value += y_edges[k]
            edges[k] = act(value)
            if PROGRAM:
                j = lane + k * LANES
                i = j if j < prologue else j + vectors * E
                if i < size:
                    edges[k] = function(edges[k], image, piece * length + i, channel, operands, extents)
        vec.write_edges(y, edges, prologue, vectors, size, lane)
    return channel_norm_plane_apply


def _make_past(config):
    """Device functions: ``past(dz, c, prologue, vectors, lane, at)``, the values of a thread's vector c of dy past the program, in place;
    ``past_edge(d, k, prologue, vectors, size, lane, at)``, that of its edge k. Both do nothing without a program; `at` is (image, first
    value, channel, operands, extents)."""
    planes = config.planes
    layout, LANES, PROGRAM = planes.layout, planes.lanes, config.program is not None
    E, compute = layout.elements, element(planes.dtype).compute
    function, _, of_values = make_functions(config.program, compute, compute, E, config.pixels)

    @device_function
    def past(dz, c, prologue, vectors, lane, at):
        if PROGRAM:
            image, first, channel, operands, extents = at
            i = lane + c * LANES
            if i < vectors:
                of_values(0, (dz, image, first + prologue + i * E, channel, operands, extents))

    @device_function
    def past_edge(d, k, prologue, vectors, size, lane, at):
        if PROGRAM:
            image, first, channel, operands, extents = at
            j = lane + k * LANES
            i = j if j < prologue else j + vectors * E
            if i < size:
                return function(d, image, first + i, channel, operands, extents)
        return d
    return past, past_edge


@functools.cache
def sums_kernel(config):
    """``sum(dz)`` and ``sum(dz * (x - mean)) * rstd`` of every piece."""
    planes, source = config.planes, gradient_source(config.activation)
    BY_Y, BY_X, SCALED, SHIFTED = source == "y", source == "x", config.gamma != "", config.beta != ""
    layout, position = planes.layout, make_position(planes)
    vec, gradient = make_row(layout), activation_gradient(config.activation, element(planes.dtype).compute)
    Real, E, WORDS, EDGE_SLOTS, EDGES = layout.real, layout.elements, layout.words, layout.edge_slots, layout.edges
    REGISTERS, LANES = planes.registers, planes.lanes
    meet, SCRATCH = make_meeting(make_sum(Real), LANES), max(1, 3 * LANES // 32)
    DEPENDENT, BLOCK, BLOCKS = planes.dependent, planes.threads, max(1, planes.blocks // 2)
    MORE, MORE_EDGES = WORDS if BY_Y else 1, EDGE_SLOTS if BY_Y else 1
    load_gamma, load_beta = element(config.gamma or planes.dtype).load, element(config.beta or planes.dtype).load
    PROGRAM, (past, past_edge) = config.program is not None, _make_past(config)

    @device_function
    def add_vector(c, s):
        """Add a thread's vector c to its two sums."""
        sums, words, many, more, dz, some, prologue, vectors, lane, m, scale, shift, where = s
        vec.unpack(dz, words, c)
        past(dz, c, prologue, vectors, lane, where)
        if BY_Y:
            vec.unpack(some, more, c)
            for e in range(E):
                dz[e] = Real(gradient(dz[e], some[e]))
        vec.unpack(some, many, c)
        if lane + c * LANES < vectors:
            for e in range(E):
                if BY_X:
                    dz[e] = Real(gradient(dz[e], (some[e] - m) * scale + shift))
                sums[0] += dz[e]
                sums[1] += dz[e] * (some[e] - m)
    add_all = unrolled(REGISTERS, add_vector)

    @jit(launch_bounds=(BLOCK, BLOCKS))
    def channel_norm_plane_sums(dy, x, y, mean, rstd, first, second, rows, pieces, channels, length, values, per,
                                image_strides, channel_strides, mean_strides, rstd_strides, channel_items, image_items,
                                gamma, beta, gamma_step, beta_step, operands, extents):
        scratch = cuda.shared.array(SCRATCH, Real)
        words, many, more = cuda.local.array(WORDS, u32), cuda.local.array(WORDS, u32), cuda.local.array(MORE, u32)
        edges, x_edges = cuda.local.array(EDGE_SLOTS, Real), cuda.local.array(EDGE_SLOTS, Real)
        y_edges = cuda.local.array(MORE_EDGES, Real)
        dz, some = cuda.local.array(E, Real), cuda.local.array(E, Real)
        image, channel, piece, size, lane = position(rows, pieces, channels, length, values)
        begin = i64(piece * length)
        dy = advance(dy, image * image_strides.dy + channel * channel_strides.dy + begin)
        x = advance(x, image * image_strides.x + channel * channel_strides.x + begin)
        prologue, vectors = vec.split(x, size)
        vec.load(words, dy, prologue, vectors, lane, 1)
        vec.load(many, x, prologue, vectors, lane, 1)
        vec.load_edges(edges, dy, prologue, vectors, size, lane)
        vec.load_edges(x_edges, x, prologue, vectors, size, lane)
        if BY_Y:
            y = advance(y, image * image_strides.y + channel * channel_strides.y + begin)
            vec.load(more, y, prologue, vectors, lane, 1)
            vec.load_edges(y_edges, y, prologue, vectors, size, lane)
        if DEPENDENT:
            launch_dependent_grids()
        group, _ = divide_remainder(channel, per)
        m = mean[image * mean_strides.image + group * mean_strides.group]
        r = rstd[image * rstd_strides.image + group * rstd_strides.group]
        scale, shift = r, Real(0)
        if BY_X and SCALED:
            scale = r * load_gamma(gamma, channel * gamma_step)
        if BY_X and SHIFTED:
            shift = Real(load_beta(beta, channel * beta_step))
        sums = cuda.local.array(2, Real)
        sums[0] = Real(0)
        sums[1] = Real(0)
        where = image, piece * length, channel, operands, extents
        s = sums, words, many, more, dz, some, prologue, vectors, lane, m, scale, shift, where
        if PROGRAM:
            add_all(0, s)
        else:
            for c in range(REGISTERS):
                add_vector(c, s)
        a, b, n = sums[0], sums[1], Real(0)
        for k in range(EDGES):
            d = past_edge(edges[k], k, prologue, vectors, size, lane, where)
            if BY_Y:
                d = Real(gradient(d, y_edges[k]))
            if BY_X:
                j = lane + k * LANES
                if (j if j < prologue else j + vectors * E) < size:
                    d = Real(gradient(d, (x_edges[k] - m) * scale + shift))
            a += d
            b += d * (x_edges[k] - m)
        a, b, n = meet(a, b, n, scratch)
        if lane == 0 and size > 0:
            at = channel * channel_items + image * image_items + piece
            first[at] = a
            second[at] = b * r
    return channel_norm_plane_sums


@functools.cache
def gradient_kernel(config):
    """``dx = rstd * (dz * gamma - one - n * two)`` with averages one and two, and ``dresidual = dz``; the last planes first. Of constant
    statistics there are no averages."""
    planes, source, RESIDUAL = config.planes, gradient_source(config.activation), config.residual
    BY_Y, BY_X, SCALED, SHIFTED = source == "y", source == "x", config.gamma != "", config.beta != ""
    layout, position = planes.layout, make_position(planes, reverse=True)
    vec, gradient = make_row(layout), activation_gradient(config.activation, element(planes.dtype).compute)
    Real, E, WORDS, EDGE_SLOTS, EDGES = layout.real, layout.elements, layout.words, layout.edge_slots, layout.edges
    REGISTERS, FROZEN = planes.registers, config.frozen
    DEPENDENT, BLOCK, BLOCKS = planes.dependent, planes.threads, max(1, planes.blocks // 2)
    MORE, MORE_EDGES = WORDS if BY_Y else 1, EDGE_SLOTS if BY_Y else 1
    load_gamma, load_beta = element(config.gamma or planes.dtype).load, element(config.beta or planes.dtype).load
    PROGRAM, (past, past_edge) = config.program is not None, _make_past(config)
    CHANGED = BY_Y or PROGRAM

    @device_function
    def write_vector(c, s):
        """dx and dresidual of a thread's vector c."""
        dx, dresidual, words, many, more, dz, some, prologue, vectors, lane, m, outer, offset, inner, shift, where = s
        vec.unpack(dz, words, c)
        past(dz, c, prologue, vectors, lane, where)
        if BY_Y:
            vec.unpack(some, more, c)
            for e in range(E):
                dz[e] = Real(gradient(dz[e], some[e]))
        if RESIDUAL:
            if CHANGED:
                vec.pack(words, c, dz)
            vec.store(dresidual, words, c, prologue, vectors, lane, 1)
        vec.unpack(some, many, c)
        for e in range(E):
            if BY_X:
                dz[e] = Real(gradient(dz[e], (some[e] - m) * outer + offset))
            some[e] = dz[e] * outer if FROZEN else dz[e] * outer + ((some[e] - m) * inner + shift)
        vec.pack(many, c, some)
        vec.store(dx, many, c, prologue, vectors, lane, 1)
    write_all = unrolled(REGISTERS, write_vector)

    @jit(launch_bounds=(BLOCK, BLOCKS))
    def channel_norm_plane_gradient(dy, x, y, dx, dresidual, gamma, mean, rstd, one, two, rows, pieces, channels, length, values, per,
                                    groups, image_strides, channel_strides, gamma_step, mean_strides, rstd_strides, beta, beta_step,
                                    operands, extents):
        words, many, more = cuda.local.array(WORDS, u32), cuda.local.array(WORDS, u32), cuda.local.array(MORE, u32)
        edges, x_edges = cuda.local.array(EDGE_SLOTS, Real), cuda.local.array(EDGE_SLOTS, Real)
        y_edges = cuda.local.array(MORE_EDGES, Real)
        dz, some = cuda.local.array(E, Real), cuda.local.array(E, Real)
        image, channel, piece, size, lane = position(rows, pieces, channels, length, values)
        begin = i64(piece * length)
        dy = advance(dy, image * image_strides.dy + channel * channel_strides.dy + begin)
        x = advance(x, image * image_strides.x + channel * channel_strides.x + begin)
        dx = advance(dx, image * image_strides.dx + channel * channel_strides.dx + begin)
        dresidual = advance(dresidual, image * image_strides.dresidual + channel * channel_strides.dresidual + begin)
        prologue, vectors = vec.split(x, size)
        vec.load(words, dy, prologue, vectors, lane, 1)
        vec.load(many, x, prologue, vectors, lane, 1)
        vec.load_edges(edges, dy, prologue, vectors, size, lane)
        vec.load_edges(x_edges, x, prologue, vectors, size, lane)
        if BY_Y:
            y = advance(y, image * image_strides.y + channel * channel_strides.y + begin)
            vec.load(more, y, prologue, vectors, lane, 1)
            vec.load_edges(y_edges, y, prologue, vectors, size, lane)
        group, _ = divide_remainder(channel, per)
        m = mean[image * mean_strides.image + group * mean_strides.group]
        r = rstd[image * rstd_strides.image + group * rstd_strides.group]
        outer = r
        if SCALED:
            outer = r * load_gamma(gamma, channel * gamma_step)
        offset = Real(0)
        if SHIFTED:
            offset = Real(load_beta(beta, channel * beta_step))
        if DEPENDENT:
            wait_for_previous_grid()
        at = image * i64(groups) + group
        inner, shift = Real(0), Real(0)
        if not FROZEN:
            inner, shift = Real(-r) * (r * two[at]), Real(-r) * one[at]
        where = image, piece * length, channel, operands, extents
        s = dx, dresidual, words, many, more, dz, some, prologue, vectors, lane, m, outer, offset, inner, shift, where
        if PROGRAM:
            write_all(0, s)
        else:
            for c in range(REGISTERS):
                write_vector(c, s)
        for k in range(EDGES):
            edges[k] = past_edge(edges[k], k, prologue, vectors, size, lane, where)
            if BY_Y:
                edges[k] = Real(gradient(edges[k], y_edges[k]))
            if BY_X:
                edges[k] = Real(gradient(edges[k], (x_edges[k] - m) * outer + offset))
            x_edges[k] = edges[k] * outer if FROZEN else edges[k] * outer + ((x_edges[k] - m) * inner + shift)
        if RESIDUAL:
            vec.store_edges(dresidual, edges, prologue, vectors, size, lane)
        vec.store_edges(dx, x_edges, prologue, vectors, size, lane)
    return channel_norm_plane_gradient
