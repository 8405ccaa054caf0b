"""Problems of conv_bwd_bias to measure: what the layers of networks write."""
from bench.shapes._conv import LAYERS, Shapes
from dnnkern.conv._parse import parse_problem


def _results(name):
    """Shapes of y, each once."""
    problems = [parse_problem(["float32", *words.split()], "conv_fwd") for words in LAYERS[name]]
    return list(dict.fromkeys("x".join(map(str, p.y.shape)) for p in problems))


_SHAPES = Shapes("conv_bwd_bias")
_SHAPES.layers = {name: _results(name) for name in ("resnet50", "vgg16", "unet", "conv1d", "conv3d")}
SETS = {name: _SHAPES.SETS[name] for name in _SHAPES.layers}
_SHAPES.SETS, DTYPES, cases, parse = SETS, _SHAPES.DTYPES, _SHAPES.cases, _SHAPES.parse
