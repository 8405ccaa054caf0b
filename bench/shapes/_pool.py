"""Windows to measure for pooling: cases written in the words of the command line."""
from dnnkern.pool._parse import parse_problem
from dnnkern.pool._problem import DTYPES

from . import _words

SETS = {
    "networks": ("64x64x112x112 {} 3x3 s2 p1  # ResNet's first", "32x64x224x224 {} 2x2  # VGG", "32x256x56x56 {} 2x2",
                 "32x512x14x14 {} 2x2", "64x96x55x55 {} 3x3 s2  # AlexNet", "32x288x35x35 {} 3x3 s2  # Inception",
                 "32x64x256x256 {} 2x2  # U-Net"),
    "overlapping": ("32x192x28x28 {} 3x3 s1 p1  # Inception", "32x512x13x13 {} 5x5 s1 p2  # SPP", "32x512x13x13 {} 13x13 s1 p6",
                    "64x480x28x28 {} 3x3 s2 ceil"),
    "sizes": tuple(f"{4 ** k}x64x112x112 {{}} 3x3 s2 p1" for k in range(5)),
    "global": ("256x2048x7x7 {} global", "64x1280x7x7 {} global", "32x64x112x112 {} global", "4x3x1024x1024 {} global"),
    "adaptive": ("64x512x13x13 {} 7x7 adaptive", "32x2048x60x60 {} 6x6 adaptive  # pyramid", "64x256x14x14 {} 7x7 adaptive"),
    "others": ("32x64x16384 {} 4 s4", "64x128x16000 {} 3 s2 p1", "8x64x16x56x56 {} 2x2x2",
               "8x64x16x112x112 {} 1x3x3 s1x2x2 p0x1x1  # video")}
TRAINING = tuple(text.replace("  #", " index  #") if "#" in text else text + " index"
                 for text in SETS["networks"] + SETS["overlapping"])
PYTORCH = tuple(text.replace("index", "index64") for text in TRAINING)  # its index is int64


class Case(_words.Case):
    """A problem of the family."""
    parse = staticmethod(parse_problem)

    def call(self, arrays, **keywords):
        """The public function on arrays by name, with `out`; keywords are passed on (`algo`, `allow`)."""
        import dnnkern
        p = self.problem
        function = getattr(dnnkern, ("adaptive_" if p.adaptive else "") + self.op)
        keywords["layout"] = p.layout
        if not p.adaptive:
            keywords.update(stride=p.stride, padding=p.padding, dilation=p.dilation, ceil_mode=p.ceil_mode)
            if not p.is_max:
                keywords.update(count_include_pad=p.count_include_pad, divisor=p.divisor)
        window = (p.spatial(p.y.shape) if p.is_forward else None) if p.adaptive else p.window
        rest = () if window is None else (window,)
        if not p.is_forward:
            given = (arrays["dy"], arrays["index"]) if p.is_max else (arrays["dy"],)
            return function(*given, p.x.shape, *rest, out=arrays["dx"], **keywords)
        if p.index is not None:
            return function(arrays["x"], *rest, return_index=True, out=(arrays["y"], arrays["index"]), **keywords)
        return function(arrays["x"], *rest, out=arrays["y"], **keywords)


def shapes(op):
    """The sets of an operation; of maxima with and without an index, and with int64."""
    sets = SETS
    if op.startswith("max"):
        sets = {**SETS, **({"training": TRAINING} if op == "max_pool_fwd" else {}), "int64": PYTORCH}
    return _words.Shapes(op, sets, DTYPES, "64x64x112x112 {} 3x3 s2 p1", ("nhwc", "nchw"), case=Case)
