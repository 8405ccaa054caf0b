"""Products of spectra of whole images, in all three directions.

`fft_tiling` with one tile per image: the image is transformed once, nothing overlaps, and its two paddings share the same elements. A
circular correlation of L elements wraps around from the last to the first; so L elements hold an image of H pixels and the larger of its
paddings, and all results are right. They begin at minus the padding, modulo L.

Each pair of channels takes L*L/2 + 2 complex products per image, whatever the filter: for 14x14 and a padding of two, L = 16 and 2.6
multiply-adds per result. Extents are 8, 12, 16, 20, 24, 32, 40, 48, 64, along h and w each the least that fits.

It wins where images are small and filters large; `fft_tiling` wins for large images, and where tiles waste less.

Sources: as `fft_tiling`'s.
"""
from ...dispatch import Algorithm, Note
from .lines import LENGTHS
from .plan import Plan, correlation, least_seconds, products, refusal


def _needs(problem):
    """Elements that a circle has to have along h and w; 1 along h where rows are tiles of their own."""
    c = correlation(problem)
    sides = zip(c.image.extents, c.pads, c.pads_after, c.windows, c.taps)
    needs = tuple(max(size + max(before, after, 0), window, taps) for size, before, after, window, taps in sides)
    return (1, needs[1]) if c.taps[0] == 1 else needs


def supports(problem):
    """Stride, dilation and groups 1, one or two dimensions, float32, padded images of up to 64 pixels along each."""
    if reason := refusal(problem):
        return reason
    needs = _needs(problem)
    if max(needs) > LENGTHS[-1]:
        return f"image and padding take {needs[0]}x{needs[1]} elements; the transforms have up to {LENGTHS[-1]}x{LENGTHS[-1]}"
    return None


def _extents(problem):
    """The least that hold it."""
    return tuple(1 if need == 1 and k == 0 else next(n for n in LENGTHS if n >= need) for k, need in enumerate(_needs(problem)))


def configs(problem, device):
    """The least extents, and what `_fft_plan.products` lists for them."""
    return products(problem, device, _extents(problem), 1)


def workspace(problem, device, config):
    """Spectra of both operands and of the result; of one slice, where there are several."""
    return Plan(problem, config).workspace


def estimate(problem, device, config):
    """Bytes of all spectra, multiply-adds of the products."""
    return Plan(problem, config).seconds(device)


def bound(problem, device):
    """Of those extents."""
    return least_seconds(problem, device, _extents(problem), 1)


def build(problem, device, config):
    """Transforms, products, transforms back; once a slice."""
    return Plan(problem, config).launches()


ALGORITHMS = tuple(Algorithm(op=op, name="fft", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs,
                             bound=bound, notes=Note.FFT, arch="sm_80+") for op in ("conv_fwd", "conv_bwd_data", "conv_bwd_filter"))
