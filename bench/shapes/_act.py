"""Functions of single elements to measure: cases written in the words of the command line."""
from dnnkern.act._parse import parse_problem
from dnnkern.host.products import FLOATS

from . import _words

ACTIVATIONS = {
    "large": tuple(f"268435456 {{}} {mode}" for mode in ("gelu", "relu", "swish", "gelu_tanh", "tanh", "sigmoid", "mish")),
    "layers": ("64x256x56x56 {} relu", "32x512x28x28 {} relu upper_clip=6", "8192x14336 {} swish", "4096x11008 {} gelu"),
    "small": ("4096 {} gelu", "1048576 {} gelu", "8388608 {} relu"), "odd": ("268435455 {} gelu", "65537x1023 {} relu"),
    "sizes": tuple(f"{4 ** k} {{}} gelu" for k in range(8, 15)),
    "slopes": ("64x256x56x56 {} prelu --slope 256x1x1", "524288x256 {} prelu --slope 256")}
GRADIENTS = {**ACTIVATIONS, "slope-gradients": tuple(f"{text} --slope-gradient" for text in (
    *ACTIVATIONS["slopes"], "64x56x56x256 {} prelu --slope 256", "134217728 {} prelu --slope 1"))}
GATED = {"large": tuple(f"{rows}x{columns} {{}} {gate}" for gate in ("swish", "gelu", "sigmoid")
                        for rows, columns in ((8192, 28672), (16384, 8192))),
         "channels": ("32x512x56x56 {} sigmoid --axis 1", "64x128x4095 {} sigmoid --axis 1"), "odd": ("16384x8190 {} swish",)}
SETS = {
    "activation_fwd": ACTIVATIONS, "activation_bwd": GRADIENTS, "glu_fwd": GATED, "glu_bwd": GATED,
    "unary": {"large": tuple(f"268435456 {{}} {mode}" for mode in ("exp", "rsqrt", "erf", "log", "sin", "neg", "logical_not")),
              "odd": ("268435455 {} exp",), "index": ("16384x16384 {} gen_index --axis 1",)},
    "binary": {"large": tuple(f"134217728 134217728 {{}} {mode}" for mode in ("add", "mul", "div", "max", "cmp_gt", "add_square")),
               "rows": ("32768x4096 4096 {} add", "524288x256 256 {} add", "32768x4095 4095 {} add", "131072x1000 1000 {} mul"),
               "channels": ("64x256x56x56 256x1x1 {} add", "128x512x7x7 512x1x1 {} add", "32768x4096 32768x1 {} mul"),
               "numbers": ("268435456 scalar {} mul", "16384x1 16384 {} sub"),
               "select": ("134217728 134217728 {} binary_select --mask 134217728", "32768x4096 scalar {} binary_select --mask 4096")},
    "scale_tensor": {"large": ("268435456 {}", "64x256x56x56 {}"), "small": ("4096 {}", "1048576 {}"), "odd": ("268435455 {}",)},
    "add_tensor": {"large": ("134217728 134217728 {}", "64x256x56x56 64x256x56x56 {} --overwrite"),
                   "channels": ("256x1x1 64x256x56x56 {}", "512x1x1 128x512x7x7 {}", "256 524288x256 {}", "4095 32768x4095 {}"),
                   "numbers": ("scalar 268435456 {}",)}}
EXAMPLES = {"scale_tensor": "1048576 {}", "add_tensor": "256x1x1 64x256x56x56 {}",
            "activation_fwd": "1048576 {} gelu", "activation_bwd": "1048576 {} gelu", "unary": "1048576 {} exp",
            "binary": "4096x4096 4096 {} add", "glu_fwd": "4096x8192 {} swish", "glu_bwd": "4096x8192 {} swish"}


class Case(_words.Case):
    """A problem of the family."""
    parse = staticmethod(parse_problem)

    def call(self, arrays, **keywords):
        """The public function on arrays by name, with `out`; keywords are passed on (`algo`, `allow`)."""
        import dnnkern
        p, function = self.problem, getattr(dnnkern, self.op)
        if self.op == "scale_tensor":
            return function(arrays["x"], 1.0, **keywords)
        if self.op == "add_tensor":
            return function(arrays["a"], arrays["c"], beta=1.0 if p.keeps else 0.0, **keywords)
        *given, result = [arrays[name] for name in p.names if name not in ("slope", "mask", "dslope")]
        keywords["out"] = result if p.dslope is None else (result, arrays["dslope"])
        if self.op.startswith("glu"):
            return function(*given, axis=p.axis, gate=p.gate, **keywords)
        if self.op == "unary":
            return function(*given, p.mode, axis=p.axis, **keywords)
        if self.op == "binary":
            return function(*given, p.mode, mask=arrays["mask"], **keywords)
        if p.dslope is not None:
            keywords["slope_gradient"] = True
        return function(*given, p.mode, slope=arrays["slope"], **dict(p.activation.parameters if p.activation else ()), **keywords)


def shapes(op):
    """The sets of an operation."""
    return _words.Shapes(op, SETS[op], FLOATS, EXAMPLES[op], case=Case)
