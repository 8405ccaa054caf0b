"""1x1 filters: a matrix product over pixels, by the algorithms of matmul.

`plan` chooses the product; its launches read the convolution's arrays in place, and matmul's epilogue adds bias, residual or the former
output and applies the activation. With channels last, pixels are the rows of one matrix; with channels first, images are a batch; a stride
is a matrix with a larger row stride, in the directions that have a window for every element of the result. Backward filter with channels
first is one product per image, in the workspace, and their sum in a fixed order.

It is as fast as matmul and wins wherever it applies, but for backward filter with channels first and many channels, where the products of
single images are written and read again.
"""
from dataclasses import dataclass, replace

from ... import dispatch
from ...dispatch import Algorithm, Note
from ...engine.constants import constants
from ...engine.cost import Cost
from ...engine.embed import embedded, priced, scratch_bytes
from ...engine.split_k import sum_launch
from ...host.memo import kept
from .plan import product_of, refusal

COST = constants("conv/pointwise")

MOST = 8      # configurations
VARIANTS = 2  # of them of one algorithm


@dataclass(frozen=True)
class Config:
    """An algorithm of matmul and its configuration."""
    algorithm: str
    config: object

    def __str__(self):
        return self.algorithm + (f" {self.config}" if self.config is not None else "")


def supports(problem):
    """One tap that stays inside the image; no more addends than matmul has."""
    return refusal(problem)


@kept(1024)
def _choices(product, device):
    """The most promising algorithms and configurations for a matrix product."""
    found = []
    for algorithm in dispatch.algorithms("matmul"):
        if dispatch.refusal(algorithm, product, device) is None:
            found += algorithm.variants(product, device)[:VARIANTS]
    return sorted(found, key=lambda a: a.seconds(product, device))[:MOST]


def configs(problem, device):
    """Algorithms of matmul, by its estimates."""
    return [Config(a.name, a.config) for a in _choices(product_of(problem).problem, device)]


def best(problem, device):
    """What matmul would choose."""
    algorithm, _ = priced(product_of(problem).problem, device)[0]
    return Config(algorithm.name, algorithm.config)


def _algorithm(config):
    """The algorithm of matmul that a configuration names, bound to its own."""
    return next(a for a in dispatch.algorithms("matmul") if a.name == config.algorithm).bound_to(config.config)


def workspace(problem, device, config):
    """The products of parts of the pixels, where they are added up, and what matmul's algorithm needs."""
    product = product_of(problem)
    return product.bytes + scratch_bytes(_algorithm(config), product.problem, device)


def estimate(problem, device, config):
    """The product's; a launch that reads what the first wrote."""
    product = product_of(problem)
    cost = _algorithm(config).cost(product.problem, device)
    return cost + Cost(reduction=COST.sum_launch + product.bytes / device.bandwidth) if product.sums else cost


def build(problem, device, config):
    """The launches of matmul's algorithm, then the sum of the parts if there are some."""
    product = product_of(problem)
    launches = embedded(_algorithm(config), product.problem, device, product.places, product.scalars)
    if not product.sums:
        return launches
    total = sum_launch(product.sums, product.ranges, dependent=device.capability >= (9, 0))
    names = dict.fromkeys(("y", "c", "bias", "scale_a", "scale_b"), "w")  # matmul's y is dw
    arguments = tuple(replace(a, value=names.get(a.value, a.value)) if a.is_dynamic else a for a in total.arguments)
    return *launches, replace(total, arguments=arguments)


ALGORITHMS = tuple(Algorithm(op=op, name="pointwise", programs=True, reductions=op != "conv_bwd_filter", supports=supports,
                             workspace=workspace, estimate=estimate, build=build, configs=configs, best=best,
                             notes=Note.TENSOR_CORE) for op in ("conv_fwd", "conv_bwd_data", "conv_bwd_filter"))
