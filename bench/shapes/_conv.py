"""Convolutions to measure: layers of networks, in the words of the command line; the operations' own files choose among them."""
import functools
from dataclasses import dataclass, replace

from dnnkern.conv._parse import parse_problem
from dnnkern.host.products import FLOATS, INPUTS

LAYOUTS = ("NCHW", "NHWC")


@dataclass(frozen=True)
class Case:
    """One convolution: `words` as after ``python -m dnnkern explain``, without dtype and layout. `transposed`: the call is
    conv_transpose_fwd."""
    op: str
    words: str
    dtype: str = "float32"
    layout: str = "NHWC"
    math: str | None = None
    transposed: bool = False
    label: str = ""

    @functools.cached_property
    def problem(self):
        """The `ConvProblem`, or `ConvBiasProblem`."""
        return parse_problem([self.dtype, self.layout, *self.words.split(), *(("--math", self.math) if self.math else ())], self.op)

    def call(self, arrays, **keywords):
        """The public function on arrays by name, with the output among them; keywords are passed on (`algo`, `allow`)."""
        import dnnkern
        p = self.problem
        if self.op == "conv_bwd_bias":
            return dnnkern.conv_bwd_bias(arrays["dy"], layout=p.layout, out=arrays["db"], **keywords)
        window = dict(stride=p.stride, padding=p.padding, dilation=p.dilation, groups=p.groups, layout=p.layout, math=p.math, **keywords)
        if self.op == "conv_bwd_filter":
            return dnnkern.conv_bwd_filter(arrays["x"], arrays["y"], p.w.shape, mode=p.mode, out=arrays["w"], **window)
        fused = dict(residual=arrays["residual"], activation=p.activation)
        if self.transposed:
            rest = [n - ((size - 1) * s + d * (r - 1) + 1 - sum(pads)) for n, size, s, d, r, pads in
                    zip(p.image[-p.spatial_dims:], p.out[-p.spatial_dims:], p.stride, p.dilation, p.filter[-p.spatial_dims:], p.padding)]
            return dnnkern.conv_transpose_fwd(arrays["y"], arrays["w"], arrays["bias"], output_padding=tuple(rest), out=arrays["x"],
                                              **fused, **window)
        if self.op == "conv_bwd_data":
            return dnnkern.conv_bwd_data(arrays["y"], arrays["w"], p.x.shape, mode=p.mode, out=arrays["x"], **window)
        return dnnkern.conv_fwd(arrays["x"], arrays["w"], arrays["bias"], mode=p.mode, out=arrays["y"], **fused, **window)

    def __str__(self):
        return str(self.problem).removeprefix(f"{self.op} ") + (f" ({self.label})" if self.label else "")


def _resnet50(n=64):
    """Every distinct layer of ResNet-50 for 224x224 images; the stride is in the 3x3 layers."""
    found = [f"{n}x3x224x224 k64 7x7 s2 p3"]
    entered, size = 64, 56
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        out = size // stride
        found += [f"{n}x{entered}x{size}x{size} k{width} 1x1", f"{n}x{width}x{size}x{size} k{width} 3x3 s{stride} p1",
                  f"{n}x{width}x{out}x{out} k{4 * width} 1x1",
                  f"{n}x{entered}x{size}x{size} k{4 * width} 1x1" + (f" s{stride}" if stride > 1 else ""),
                  f"{n}x{4 * width}x{out}x{out} k{width} 1x1"]
        if stride > 1:
            found.append(f"{n}x{width}x{out}x{out} k{width} 3x3 p1")
        entered, size = 4 * width, out
    return list(dict.fromkeys(found))


_VGG = ((64, 224, 64), (64, 112, 128), (128, 112, 128), (128, 56, 256), (256, 56, 256), (256, 28, 512), (512, 28, 512), (512, 14, 512))
_UNET = ((64, 512, 64), (64, 256, 128), (128, 256, 128), (128, 128, 256), (256, 64, 512), (512, 32, 1024), (1024, 32, 1024),
         (1024, 64, 512), (512, 128, 256), (256, 256, 128), (128, 512, 64))


def _layers_3x3(n, layers):
    return [f"{n}x{c}x{s}x{s} k{k} 3x3 p1" for c, s, k in layers]


LAYERS = {
    "resnet50": _resnet50(),
    "vgg16": ["32x3x224x224 k64 3x3 p1"] + _layers_3x3(32, _VGG),
    "unet": ["4x3x512x512 k64 3x3 p1"] + _layers_3x3(4, _UNET) + ["4x64x512x512 k2 1x1"],
    # ResNet, MobileNet, ConvNeXt, a vision transformer's patches
    "first_layer": ["64x3x224x224 k64 7x7 s2 p3", "64x3x224x224 k32 3x3 s2 p1", "64x3x224x224 k96 4x4 s4", "64x3x224x224 k768 16x16 s16"],
    # MobileNetV2, EfficientNet, ConvNeXt
    "depthwise": ["64x144x56x56 k144 3x3 p1 g144", "64x144x56x56 k144 3x3 s2 p1 g144", "64x32x112x112 k32 3x3 p1 g32",
                  "64x384x14x14 k384 3x3 p1 g384", "64x960x7x7 k960 3x3 p1 g960", "64x240x28x28 k240 5x5 p2 g240",
                  "64x96x56x56 k96 7x7 p3 g96", "64x768x7x7 k768 7x7 p3 g768"],
    # 128 channels, and ResNeXt-50's
    "grouped": ["64x128x56x56 k128 3x3 p1 g32", "64x256x28x28 k256 3x3 p1 g32", "64x512x14x14 k512 3x3 p1 g32",
                "64x1024x7x7 k1024 3x3 p1 g32", "64x256x56x56 k256 3x3 s2 p1 g32"],
    "float32_3x3": _layers_3x3(32, ((64, 56, 64), (128, 28, 128), (256, 14, 256), (512, 7, 512), (64, 224, 64), (256, 56, 256),
                                    (512, 28, 512))),
    "dilated": ["8x256x64x64 k256 3x3 p2 d2", "8x512x64x64 k256 3x3 p12 d12"],
    "conv1d": ["32x256x4096 k256 3 p1", "32x512x2048 k512 3 s2", "32x80x3000 k512 3 p1", "32x512x1500 k512 5 p2"],
    "conv3d": ["4x64x16x56x56 k64 3x3x3 p1", "4x128x8x28x28 k128 3x3x3 p1", "4x3x16x112x112 k64 3x7x7 s1x2x2 p1x3x3",
               "2x32x64x64x64 k32 3x3x3 p1"],
    # the result of the transposed convolution is the image here: 28x28 to 56x56, and a U-Net's and a generator's
    "transposed": ["32x64x56x56 k128 4x4 s2 p1", "4x64x512x512 k128 2x2 s2", "4x512x64x64 k1024 2x2 s2", "64x128x32x32 k256 4x4 s2 p1"],
    "causal_depthwise": ["8x2048x4096 k2048 4 p3:0 g2048", "1x4096x8192 k4096 4 p3:0 g4096", "64x1536x128 k1536 4 p3:0 g1536"],
    "small": ["1x64x14x14 k64 3x3 p1", "2x32x16x16 k32 1x1", "1x3x32x32 k16 5x5 p2"],
}
FIRST = ("float32_3x3", "causal_depthwise", "small")  # sets whose own layout is channels first
_FUSED = [f"{words} {extra}" for words in ("64x64x56x56 k64 3x3 p1", "64x64x56x56 k256 1x1", "64x256x14x14 k256 3x3 p1",
                                           "64x512x7x7 k512 3x3 p1") for extra in
          ("--bias", "--bias --activation relu", "--bias --residual --activation relu")]
_FUSED += ["64x144x56x56 k144 3x3 p1 g144 --bias --activation relu", "8x2048x4096 k2048 4 p3:0 g2048 --bias --activation swish"]
_PROGRAMS = [f"{n}x{c}x{s}x{s} k{c} 3x3 p1 --program mul@{c}x1x1 add@{c}x1x1 relu add@{n}x{c}x{s}x{s}"
             for n, c, s in ((64, 64, 56), (64, 256, 28))]


class Shapes:
    """What the benches ask of an operation's module: `SETS`, `DTYPES`, `cases` and `parse`."""

    def __init__(self, op):
        self.op, self.DTYPES = op, INPUTS if op == "conv_fwd" else FLOATS
        self.layers = {name: words for name, words in LAYERS.items() if op == "conv_bwd_data" or name != "transposed"}
        if op == "conv_fwd":
            self.layers.update(fused=_FUSED, programs=_PROGRAMS)
        self.SETS = {name: functools.partial(self._set, name) for name in self.layers}

    def _set(self, name):
        layout = "NCHW" if name in FIRST else "NHWC"
        return [Case(self.op, words, layout=layout, transposed=name == "transposed", label=name) for words in self.layers[name]]

    def cases(self, name, dtypes=("float32",), layouts=(), math=None) -> list[Case]:
        """A set, or "all", in the given dtypes; `layouts` replaces the set's own."""
        if name != "all" and name not in self.SETS:
            raise ValueError(f"{self.op} has no set {name!r}; there are {', '.join(self.SETS)} and all")
        chosen = [case for key, make in self.SETS.items() if name in (key, "all") for case in make()]
        return self._variants(chosen, dtypes, layouts, math)

    def parse(self, text, dtypes=("float32",), layouts=(), math=None) -> list[Case]:
        """A case written as for ``explain``, without layout and dtype, for which "{}" may stand: ``64x64x56x56 k64 3x3 p1``."""
        found = self._variants([Case(self.op, " ".join(text.replace("{}", " ").split()))], dtypes, layouts, math)
        for case in found:
            case.problem  # parsed, or refused, here
        return found

    def _variants(self, chosen, dtypes, layouts, math):
        for dtype in dtypes:
            if dtype not in self.DTYPES:
                raise ValueError(f"{self.op} has no dtype {dtype!r}; there are {', '.join(self.DTYPES)}")
        layouts = tuple(layout.upper() for layout in layouts)
        for layout in layouts:
            if layout not in LAYOUTS:
                raise ValueError(f"{self.op} has no layout {layout!r}; there are {' and '.join(LAYOUTS)}")
        return [replace(case, dtype=dtype, layout=layout, math=math if dtype == "float32" or math != "tf32" else None)
                for dtype in dtypes for case in chosen for layout in (layouts or (case.layout,))]
