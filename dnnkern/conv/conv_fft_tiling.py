"""Products of spectra of tiles: overlap-save, in all three directions.

An image is divided into tiles that overlap by the filter less one. Each tile is transformed, multiplied with the transformed filter at each
frequency, summed over channels there, and transformed back; results that wrapped around a tile are discarded. `plan` has the launches: a
transform of each operand (`tiles`), a complex matrix product per frequency (`product`), an inverse transform with the epilogue.

- A tile of L x L with a filter of R x R gives (L - R + 1)**2 results for L*L/2 + 2 complex products: 2 L**2 / (L - R + 1)**2 multiply-adds
  per result and pair of channels instead of R**2. For L = 32: 2.6 for 5x5, 3.0 for 7x7, 4.2 for 11x11.
- The spectra of an image are (L / (L - R + 1))**2 times as large as the image, written once and read once by the products; so it takes some
  hundred channels until the products outweigh them.
- In conv_bwd_filter dy is divided into windows that do not overlap, and the products sum over tiles: one spectrum per filter.
- Filters of one row are transformed along lines only.

It wins for float32 with filters from 5x5 on and many channels. Winograd's tiles are cheaper for 3x3, but are exact to fewer bits; here
rounding grows with the logarithm of the tile (docs/notes/fft.md). `fft` is the same with one tile per image.

Sources: M. Mathieu, M. Henaff, Y. LeCun, arXiv:1312.5851; N. Vasilache et al., arXiv:1412.7580.
"""
from ..dispatch import Algorithm, Note
from .fft.plan import Plan, correlation, least_seconds, products, refusal

SQUARES, LINES = (8, 16, 32), (16, 32, 64)


def _extents(problem):
    """Extents of tiles that hold a filter and some results of it."""
    taps = correlation(problem).taps
    if taps[0] == 1:
        return [(1, n) for n in LINES if taps[1] <= n]
    return [(n, n) for n in SQUARES if max(taps) <= n]


def supports(problem):
    """Stride, dilation and groups 1, one or two dimensions, float32, filters that fit into a tile."""
    if reason := refusal(problem):
        return reason
    if not _extents(problem):
        taps, most = "x".join(map(str, problem.filter[1:])), SQUARES[-1]
        return f"the filter is {taps}; tiles have up to {most}x{most}, lines {LINES[-1]}"
    return None


def configs(problem, device):
    """Extents of tiles, and what `_fft_plan.products` lists for each."""
    return [config for extents in _extents(problem) for config in products(problem, device, extents, 0)]


def workspace(problem, device, config):
    """Spectra of both operands and of the result; of one slice, where there are several."""
    return Plan(problem, config).workspace


def estimate(problem, device, config):
    """Bytes of all spectra, multiply-adds of the products."""
    return Plan(problem, config).seconds(device)


def bound(problem, device):
    """Of the best extents."""
    return min(least_seconds(problem, device, extents, 0) for extents in _extents(problem))


def config_bound(problem, device, config):
    """Of its extents."""
    return least_seconds(problem, device, (config.lh, config.lw), 0)


def build(problem, device, config):
    """Transforms, products, transforms back; once a slice."""
    return Plan(problem, config).launches()


ALGORITHMS = tuple(Algorithm(op=op, name="fft_tiling", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             configs=configs, bound=bound, config_bound=config_bound, notes=Note.FFT, arch="sm_80+")
                   for op in ("conv_fwd", "conv_bwd_data", "conv_bwd_filter"))
