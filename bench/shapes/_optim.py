"""Lists of parameters to step on: cases written in the words of the command line."""
from dnnkern.host.products import FLOATS
from dnnkern.optim._parse import parse_problem

from . import _words


def _resnet50():
    """Its 161 parameters: filters, weights and biases of the normalisations, a matrix and its bias."""
    found, width = ["64x3x7x7", "64", "64"], 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner = 64 << stage
        for block in range(blocks):
            found += [f"{inner}x{width}x1x1", f"{inner}", f"{inner}", f"{inner}x{inner}x3x3", f"{inner}", f"{inner}",
                      f"{4 * inner}x{inner}x1x1", f"{4 * inner}", f"{4 * inner}"]
            if not block:
                found += [f"{4 * inner}x{width}x1x1", f"{4 * inner}", f"{4 * inner}"]
            width = 4 * inner
    return ",".join([*found, "1000x2048", "1000"])


def _transformer(layers, width, vocabulary):
    """Parameters of a decoder: embedding, and in each layer two normalisations, four projections, and a gated pair with its inverse."""
    layer = [f"{2 * layers}*{width}", f"{4 * layers}*{width}x{width}", f"{2 * layers}*{4 * width}x{width}", f"{layers}*{width}x{4 * width}"]
    return ",".join([f"{vocabulary}x{width}", *layer, f"{width}"])


RESNET50, BILLION = _resnet50(), _transformer(16, 2048, 50257)
MIXED = ",".join(f"{10 * (7 - k)}*{9 ** k * 3 + k}" for k in range(1, 7)) + ",90*64x65"
SETS = {"large": ("134217728 {}  # 2**27", "134217728 {} --scaled  # 2**27"), "resnet50": (RESNET50 + " {}  # ResNet-50",),
        "transformer": (BILLION + " {}  # 1.2 billion",), "mixed": (MIXED + " {}  # 300 arrays of mixed sizes",),
        "odd": ("9999991,77,4099x4097 {}",), "small": ("4*64x64,4*64 {}",)}
HALVES = {"master": ("134217728 {} --master  # 2**27", RESNET50 + " {} --master  # ResNet-50", BILLION + " {} --master  # 1.2 billion"),
          "narrow": ("134217728 {} --narrow  # 2**27", RESNET50 + " {} --narrow  # ResNet-50")}


class Case(_words.Case):
    """A problem of the family."""
    parse = staticmethod(parse_problem)

    def call(self, arrays, **keywords):
        """The public function on arrays by name; keywords are passed on (`algo`, `allow`)."""
        import dnnkern
        p = self.problem
        lists = {name: [arrays[f"{name}{k}"] for k in range(p.count)] for name, _ in p.lists}
        more = {name: arrays[name] for name in ("grad_scale", "found_inf") if arrays.get(name) is not None}
        number = {"step": 10} if self.op in ("adam_step", "adamw_step", "adagrad_step", "lamb_step") else {}
        return getattr(dnnkern, self.op)(**lists, lr=1e-3, maximize="maximize" in p.flags, **number, **more, **keywords)


class _Shapes(_words.Shapes):
    """Sets of which some are of 16-bit parameters alone."""

    def _variants(self, texts, dtypes, layouts):
        halves = {text for some in HALVES.values() for text in some}
        found = []
        for dtype in dtypes:
            found += super()._variants([t for t in texts if t not in halves or dtype in ("float16", "bfloat16")], (dtype,), layouts)
        return found


def shapes(op):
    """The sets of an operation."""
    largest = {"amsgrad": ("134217728 {} --states m,v,vmax  # 2**27", RESNET50 + " {} --states m,v,vmax  # ResNet-50")}
    sets = {**SETS, **HALVES, **(largest if op in ("adam_step", "adamw_step") else {})}
    return _Shapes(op, sets, FLOATS, "64x3x7x7,64,12*256x256 {}", case=Case)


class NormCase(_words.Case):
    """Gradients; they are clipped by so much that all are scaled."""
    parse = staticmethod(parse_problem)

    def call(self, arrays, **keywords):
        """The public function on arrays by name; keywords are passed on (`algo`, `allow`)."""
        import dnnkern
        grads = [arrays[f"grads{k}"] for k in range(self.problem.count)]
        more = {name: arrays[name] for name in ("out", "grad_scale", "found_inf") if arrays.get(name) is not None}
        if self.op == "grad_norm":
            return dnnkern.grad_norm(grads, **more, **keywords)
        return dnnkern.clip_grad_norm(grads, 1.0, **more, **keywords)


def norms(op):
    """The sets of norms and clips."""
    return _words.Shapes(op, SETS, FLOATS, "64x3x7x7,64,12*256x256 {}", case=NormCase)
