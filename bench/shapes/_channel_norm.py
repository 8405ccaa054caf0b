"""Images to normalise by channels: cases written in the words of the command line."""
from dnnkern.host.products import FLOATS
from dnnkern.norm._parse import parse_problem

from . import _words

RESNET = ("64x64x112x112 {}", "64x256x56x56 {}", "64x512x28x28 {}", "64x1024x14x14 {}", "64x2048x7x7 {}")
BATCH = {
    "resnet50": tuple(f"{text} weights=float32" for text in RESNET),
    "fused": ("64x256x56x56 {} weights=float32 relu", "64x256x56x56 {} weights=float32 relu residual",
              "64x2048x7x7 {} weights=float32 relu residual"),
    "sizes": tuple(f"{4 ** k}x256x56x56 {{}} weights=float32" for k in range(5)),
    "mobile": ("64x96x112x112 {} weights=float32", "64x144x56x56 {} weights=float32", "64x1280x7x7 {} weights=float32"),
    "others": ("8x64x16x56x56 {} weights=float32  # video", "32x256x1000 {} weights=float32  # sound", "4096x1024 {} weights=float32",
               "8x17x512x512 {} weights=float32  # odd"),
}
FROZEN = {"frozen": tuple(f"{text} frozen" for text in BATCH["resnet50"] + BATCH["fused"])}
RUNNING = {name: tuple(text.replace("weights=float32", "weights=float32 running") for text in texts) for name, texts in BATCH.items()}
GROUP = {
    "groups": ("64x256x56x56 {} g32", "16x128x128x128 {} g32  # diffusion", "16x512x32x32 {} g32", "64x1024x14x14 {} g32",
               "64x2048x7x7 {} g32"),
    "instances": ("8x64x256x256 {}  # style", "16x128x64x64 {}", "64x2048x7x7 {}"),
    "fused": ("64x256x56x56 {} g32 relu", "16x512x32x32 {} g32 swish  # diffusion"),
    "others": ("8x64x16x56x56 {} g8  # video", "32x256x1000 {} g16  # sound", "8x1000x31x31 {} g8  # odd"),
}


class Case(_words.Case):
    """A problem of the family."""
    parse = staticmethod(parse_problem)

    def call(self, arrays, **keywords):
        """The public function on arrays by name, with `out`; keywords are passed on (`algo`, `allow`)."""
        import dnnkern
        p = self.problem
        named = [name for name, _, _ in p.arrays if not p.is_result(name)]
        split = ({"y", "beta"} if "bwd" in self.op else {"residual"}) & set(named)
        operands = [arrays.get(name) for name in named if name not in split]
        if self.op == "batch_norm_bwd_apply":
            operands.append(arrays["counts"])
            keywords["residual"] = p.dresidual is not None
        if p.groups is None:
            keywords["mode"] = p.mode
        else:
            operands.append(p.groups)
        keywords.update({name: arrays.get(name) for name in split}, layout=p.layout, activation=p.activation)
        if self.op == "batch_norm_bwd":
            keywords.update(residual=p.dresidual is not None, frozen=p.frozen)
        outs = tuple(arrays[name] for name, t, _ in p.arrays if p.is_result(name) and t is not None)
        return getattr(dnnkern, self.op)(*operands, out=outs if len(outs) > 1 else outs[0], **keywords)


def shapes(op):
    """The sets of an operation."""
    sets = GROUP if op.startswith("group") else RUNNING if op == "batch_norm_train_fwd" else BATCH
    if op == "batch_norm_bwd":
        sets = {**sets, **FROZEN}
    return _words.Shapes(op, sets, FLOATS if op.startswith("group") else FLOATS[1:], "64x256x56x56 {} relu", ("nhwc", "nchw"), case=Case)
