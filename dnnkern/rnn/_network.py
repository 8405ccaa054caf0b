"""A network layer by layer: where each layer's input, result and kept values lie, and what they need of the workspace."""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ..device import cuda, i64, jit, u32
from ..device.convert import element
from ..device.index import ceil_div
from ..device.philox import make_word
from ..engine.dropout_bits import GROUP, draw, drawn, is_kept
from ..engine.embed import Place
from ..host import seeds
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument, Launch
from ._cells import TYPES

THREADS = 256


class Lines(NamedTuple):
    """An array of (t, n, channel): where it lies, and its element strides."""
    place: Place
    strides: tuple

    def pointer(self, dtype):
        """The kernel parameter."""
        return pointer(self.place, dtype)


def pointer(place, dtype):
    """A pointer to elements of a dtype, as a kernel parameter."""
    return Argument(element(dtype).pointer, place.name, place.offset)


@dataclass(frozen=True)
class Layer:
    """A layer of a forward pass: `output` is dropped out into `dropped`, the next layer's input, where there is that."""
    number: int
    input: Lines
    output: Lines
    dropped: Lines | None


def packed_lines(problem, place, size):
    """(T, N, size), packed."""
    return Lines(place, (problem.samples * size, size, 1))


def forward_layers(problem, plan):
    """The layers of a forward pass, whose results in between lie in the reserve, or without one in the workspace of the plan."""
    p, spec = problem, problem.spec
    nbytes = p.steps * p.samples * spec.output_size * p.x.itemsize
    found, here = [], Lines(Place("x"), p.strides_of(p.x))
    parts = None if p.training or spec.num_layers == 1 else [plan.part(nbytes) for _ in range(min(2, spec.num_layers - 1))]
    dropped = None
    if p.training and spec.dropout and spec.num_layers > 1:
        dropped = packed_lines(p, plan.part(nbytes), spec.output_size)
    for number in range(spec.num_layers):
        if number + 1 == spec.num_layers:
            found.append(Layer(number, here, Lines(Place("y"), p.strides_of(p.y)), None))
            break
        place = Place("reserve", p.region("outputs", number)) if p.training else parts[number % 2]
        output = packed_lines(p, place, spec.output_size)
        found.append(Layer(number, here, output, dropped))
        here = dropped or output
    return found


def outputs_of(problem, layer):
    """A layer's result, in the passes backward."""
    p = problem
    if layer + 1 == p.spec.num_layers:
        return Lines(Place("y"), p.strides_of(p.y))
    return packed_lines(p, Place("reserve", p.region("outputs", layer)), p.spec.output_size)


@functools.cache
def drop_kernel(dtype, seed_array, offset_array):
    """The states between two layers dropped out, and which of them are kept: eight elements a thread, by the words of `dropout_fwd`."""
    e = element(dtype)
    load, store, T = e.load, e.store, TYPES[e.compute]
    seed_of, offset_of = make_word(seed_array), make_word(offset_array)

    @jit(launch_bounds=THREADS)
    def rnn_drop(x, kept, y, elements, seed, offset, layer, threshold, factor):
        from_words, group = cuda.local.array(4, u32), i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if group * GROUP < elements:
            draw(from_words, 0, seed_of(seed), offset_of(offset) + layer, group)
            for k in range(GROUP):
                i = group * GROUP + k
                if i < elements:
                    keep = is_kept(from_words, k, threshold)
                    store(kept, i, T(1) if keep else T(0))
                    store(y, i, T(T(load(x, i)) * factor) if keep else T(0))
    return rnn_drop


def drop_launch(problem, layer):
    """Dropout after a layer of a forward pass: what `dropout_fwd` would do with the offset and the layer's number added to it."""
    p, spec = problem, problem.spec
    elements, (threshold, factor) = p.steps * p.samples * spec.output_size, drawn(spec.dropout)
    arguments = (layer.output.pointer(p.dtype), pointer(Place("reserve", p.region("kept", layer.number)), p.dtype),
                 layer.dropped.pointer(p.dtype), Argument("int64", elements), *seeds.arguments(p), Argument("uint64", layer.number),
                 Argument("uint32", threshold), Argument(p.compute, factor))
    return Launch(drop_kernel(p.dtype, *seeds.reads(p)), (ceil_div(elements, GROUP * THREADS), 1, 1), (THREADS, 1, 1), arguments)


def numbers_bytes(problem, count):
    """Of so many numbers of the type that sums have."""
    return count * ITEMSIZE[problem.compute]


def numbers(place, problem):
    """A pointer to such numbers, as a kernel parameter."""
    return Argument(f"{problem.compute}*", place.name, place.offset)
