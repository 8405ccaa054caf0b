"""The problem of moving blocks of pixels to channels, and back: a transposition of arrays whose dimensions are taken apart."""
import functools
from dataclasses import dataclass

from ...host.canonical import Canonical, canonical, check_output
from ...host.choices import one_of
from ...host.tensor import Tensor
from ...host.window import integer
from .._problem import Moves, check_moved

BLOCKS = ("depth_to_space", "space_to_depth")


@dataclass(frozen=True)
class BlocksProblem(Moves):
    """Channel ``(i * block + j) * C + c`` of pixel (h, w) of the deep array is channel c of pixel ``(h * block + i, w * block + j)`` of the
    wide one, which has C channels: all but the addresses.

    Attributes
    ----------
    op : "depth_to_space" (x is deep) or "space_to_depth" (y is deep)
    x, y : Tensor
        (N, C, H, W)
    block : int
    """
    op: str
    x: Tensor
    y: Tensor
    block: int

    def __post_init__(self):
        one_of("BlocksProblem", "op", self.op, BLOCKS)
        check_output(self.op, self.y, blocks_shape(self.op, self.x, self.block), self.x.dtype)

    @functools.cached_property
    def canonical(self) -> Canonical:
        """The elements as they are."""
        b, to_space = self.block, self.op == "depth_to_space"
        deep, wide = (self.x, self.y) if to_space else (self.y, self.x)
        n, c, height, width = wide.shape
        at, channel, down, right = deep.strides
        deep_strides = at, channel, down, channel * c * b, right, channel * c
        at, channel, down, right = wide.strides
        wide_strides = at, channel, down * b, down, right * b, right
        shape = n, c, height // b, b, width // b, b
        x, y = (deep_strides, wide_strides) if to_space else (wide_strides, deep_strides)
        return canonical(shape, x, y, self.x.itemsize)

    @property
    def words(self):
        """In the words of the command line."""
        return str(self.block)


def blocks_shape(op, x, block):
    """The shape of the result; an error where x cannot be taken apart."""
    check_moved(op, x)
    if x.ndim != 4:
        raise ValueError(f"{op}: x has shape {x.shape}; expected 4 dimensions, (N, C, H, W)")
    n, c, h, w = x.shape
    if op == "depth_to_space":
        if c % block ** 2:
            raise ValueError(f"{op}: x has {c} channels (shape {x.shape}); expected a multiple of block**2 = {block ** 2}")
        return n, c // block ** 2, h * block, w * block
    if h % block or w % block:
        raise ValueError(f"{op}: x has {h} x {w} pixels (shape {x.shape}); expected multiples of block = {block}")
    return n, c * block ** 2, h // block, w // block


def make_blocks_problem(op, tensors, out, block, aliases):
    """`BlocksProblem` of a call."""
    (x,) = tensors
    check_moved(op, x)
    block = integer(op, "block", block, 1)
    shape = blocks_shape(op, x, block)
    if out is not None:
        check_output(op, out, shape, x.dtype)
    return BlocksProblem(op, x, out if out is not None else Tensor.packed(shape, x.dtype), block)
