"""What the cases of all optimisers share: lists of arrays, and the steps themselves, in float64 and from their formulas."""
import math
from dataclasses import dataclass, field

import numpy as np

from . import ROUNDOFF, TINY, Case, coherent, lay, rounded, rounding_error

SHORT = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}
# op -> names of its states
STATES = {"sgd_step": ("momenta",), "adam_step": ("m", "v", "vmax"), "adamw_step": ("m", "v", "vmax"),
          "rmsprop_step": ("v", "means", "momenta"), "adagrad_step": ("sums",), "lion_step": ("m",), "lamb_step": ("m", "v")}
USUAL = {"sgd_step": {"lr": 2.0, "momentum": 0.5, "dampening": 0.5, "weight_decay": 1.0},
         "adam_step": {"lr": 0.1, "beta1": 0.75, "beta2": 0.9, "eps": 1e-3, "weight_decay": 0.1},
         "adamw_step": {"lr": 0.1, "beta1": 0.75, "beta2": 0.9, "eps": 1e-3, "weight_decay": 0.1},
         "rmsprop_step": {"lr": 0.1, "alpha": 0.9, "eps": 1e-3, "momentum": 0.5, "weight_decay": 0.1},
         "adagrad_step": {"lr": 0.1, "lr_decay": 0.1, "eps": 1e-3, "weight_decay": 0.1},
         "lion_step": {"lr": 0.1, "beta1": 0.8, "beta2": 0.9, "weight_decay": 0.1},
         "lamb_step": {"lr": 0.1, "beta1": 0.75, "beta2": 0.9, "eps": 1e-3, "weight_decay": 0.1}}
NUMBERED = ("adam_step", "adamw_step", "adagrad_step", "lamb_step")
POSITIVE = ("v", "vmax", "sums")
OPTIONAL = ("vmax",)
"""States that a case has only where it says so."""


# ---- the steps: of parameter, gradient, states by name, keywords; (parameter, states, magnitude of what was added to the parameter)

def sgd(p, g, s, step, lr, momentum=0.0, dampening=0.0, nesterov=False, weight_decay=0.0, first=False):
    """torch.optim.SGD."""
    g = g + weight_decay * p
    if "momenta" in s:
        s = {"momenta": g if first else momentum * s["momenta"] + (1 - dampening) * g}
        g = g + momentum * s["momenta"] if nesterov else s["momenta"]
    return p - lr * g, s


def adam(p, g, s, step, lr, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0, decoupled=False):
    """Algorithm 1 of Kingma and Ba."""
    if decoupled:
        p = p * (1 - lr * weight_decay)
    else:
        g = g + weight_decay * p
    m = beta1 * s["m"] + (1 - beta1) * g
    square = v = beta2 * s["v"] + (1 - beta2) * g ** 2
    more = {}
    if "vmax" in s:  # Algorithm 2 of Reddi and others
        square = more["vmax"] = np.maximum(s["vmax"], v)
    return p - lr * (m / (1 - beta1 ** step)) / (np.sqrt(square / (1 - beta2 ** step)) + eps), {"m": m, "v": v, **more}


def rmsprop(p, g, s, step, lr, alpha=0.99, eps=1e-8, momentum=0.0, weight_decay=0.0):
    """torch.optim.RMSprop."""
    g = g + weight_decay * p
    new = {"v": alpha * s["v"] + (1 - alpha) * g ** 2}
    square = new["v"]
    if "means" in s:
        new["means"] = alpha * s["means"] + (1 - alpha) * g
        square = square - new["means"] ** 2
    d = g / (np.sqrt(square) + eps)
    if "momenta" in s:
        d = new["momenta"] = momentum * s["momenta"] + d
    return p - lr * d, new


def adagrad(p, g, s, step, lr, lr_decay=0.0, eps=1e-10, weight_decay=0.0):
    """torch.optim.Adagrad."""
    g = g + weight_decay * p
    sums = s["sums"] + g ** 2
    return p - lr / (1 + (step - 1) * lr_decay) * g / (np.sqrt(sums) + eps), {"sums": sums}


def lion(p, g, s, step, lr, beta1=0.9, beta2=0.99, weight_decay=0.0):
    """The authors' program."""
    p = p * (1 - lr * weight_decay)
    return p - lr * np.sign(beta1 * s["m"] + (1 - beta1) * g), {"m": beta2 * s["m"] + (1 - beta2) * g}


def lamb(p, g, s, step, lr, beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=0.0):
    """Algorithm 2 of You and others, phi being the identity."""
    m = beta1 * s["m"] + (1 - beta1) * g
    v = beta2 * s["v"] + (1 - beta2) * g ** 2
    d = (m / (1 - beta1 ** step)) / (np.sqrt(v / (1 - beta2 ** step)) + eps) + weight_decay * p
    norms = np.sqrt((p ** 2).sum()), np.sqrt((d ** 2).sum())
    return p - lr * (norms[0] / norms[1] if all(norms) else 1.0) * d, {"m": m, "v": v}


DEFINITION = {"sgd_step": sgd, "adam_step": adam, "adamw_step": lambda *a, **k: adam(*a, decoupled=True, **k), "rmsprop_step": rmsprop,
              "adagrad_step": adagrad, "lion_step": lion, "lamb_step": lamb}


@dataclass(frozen=True)
class Step(Case):
    """Some calls on lists. `dtypes` are one for each parameter, or one for all; `layout` has keywords of `lay` by operand ("grads1") or
    list ("grads")."""
    id: str
    op: str
    shapes: tuple
    dtypes: tuple = ("float32",)
    grads: str | None = None
    halves: bool = False       # states in the parameters' dtype
    master: bool = False
    scale: float | None = None
    found: float | None = None
    states: tuple | None = None
    more: dict = field(default_factory=dict, hash=False)
    layout: dict = field(default_factory=dict, hash=False)
    steps: int = 1
    counted: float | None = None  # the number of the step, where it is on the device

    @property
    def exact(self):
        """Whether small integers give results without rounding."""
        return self.op == "sgd_step" and self.steps == 1 and not self.more and self.scale in (None, 2.0)

    @property
    def keywords(self):
        keywords = {**USUAL[self.op], **self.more}
        if "momenta" in STATES[self.op] and "momenta" not in self.names:
            for name in ("momentum", "dampening"):
                keywords.pop(name, None)
        return keywords

    @property
    def names(self):
        """The states that are given."""
        return tuple(name for name in STATES[self.op] if name not in OPTIONAL) if self.states is None else self.states

    @property
    def lists(self):
        return ("params", "grads", *self.names, *(("master",) if self.master else ()))

    def dtype(self, name, k):
        """dtype of an operand."""
        dtype = self.dtypes[k % len(self.dtypes)]
        if name == "params" or dtype == "float64":
            return dtype
        if name == "grads":
            return self.grads or dtype
        return dtype if self.halves and name != "master" else "float32"

    def place(self, name, k):
        layout = self.layout.get(f"{name}{k}", self.layout.get(name, {}))
        if name not in ("params", "grads"):
            layout = self.layout.get(f"{name}{k}", self.layout.get(name, self.layout.get(f"params{k}", self.layout.get("params", {}))))
        return lay(self.shapes[k], self.dtype(name, k), **layout)

    def inputs(self):
        found = {f"{name}{k}": self.place(name, k) for name in self.lists for k in range(len(self.shapes))}
        for name, value in (("grad_scale", self.scale), ("found_inf", self.found), ("step", self.counted)):
            if value is not None:
                found[name] = lay((1,) if name == "found_inf" else (), "float32")
        return found

    def outputs(self):
        return {f"new_{name}{k}": self.place(name, k) for name in self.lists if name != "grads" for k in range(len(self.shapes))}

    def in_place(self):
        return {name: name.removeprefix("new_") for name in self.outputs()}

    @property
    def work(self):
        return 40 * sum(map(math.prod, self.shapes)) * self.steps

    def problem(self):
        from dnnkern.host.tensor import Tensor
        from dnnkern.optim._problem import make_step
        tensors = {name: Tensor(p.shape, p.strides, p.dtype, p.alignment) for name, p in self.inputs().items()}
        lists = {name: tuple(tensors[f"{name}{k}"] for k in range(len(self.shapes))) if name in self.lists else None
                 for name in ("params", "grads", *STATES[self.op], "master")}
        flags = tuple(flag for flag in ("nesterov", "first") if self.more.get(flag)) + (("counted",) if self.counted else ()) + (
            ("maximize",) if self.more.get("maximize") else ())
        return make_step(self.op, lists, {name: tensors.get(name) for name in ("grad_scale", "found_inf", "step")}, flags)

    def call(self, arrays, out=None, **tail):
        self.bind(arrays, **tail)()
        return out

    def bind(self, arrays, **tail):
        """The call as a function, whose lists exist already."""
        import dnnkern
        lists = {name: [arrays[f"{name}{k}"] for k in range(len(self.shapes))] for name in self.lists}
        more = {name: arrays[name] for name in ("grad_scale", "found_inf") if name in arrays}
        function, keywords = getattr(dnnkern, self.op), {**lists, **self.keywords, **more, **tail}

        def steps():
            for step in range(1, self.steps + 1):
                number = {"step": arrays["step"] if self.counted else step} if self.op in NUMBERED else {}
                function(**keywords, **number)
        return steps

    def values(self, mode):
        found = {}
        for name, place in self.inputs().items():
            rng, kind = np.random.default_rng([*self.id.encode(), *name.encode()]), name.rstrip("0123456789")
            if kind in ("grad_scale", "found_inf", "step"):
                x = np.full(place.shape, {"grad_scale": self.scale, "found_inf": self.found, "step": self.counted}[kind])
            elif mode == "exact":
                x = rng.integers(-4, 5, place.shape).astype(np.float64) * 2
            elif kind in POSITIVE:
                x = rounded(rng.uniform(16, 20, place.shape), place.dtype)
            else:
                x = rounded(np.clip(rng.standard_normal(place.shape), -2.5, 2.5) + 0.25, place.dtype)
            found[name] = coherent(x, place)
        if self.master:
            for k in range(len(self.shapes)):  # the parameters are not read
                found[f"params{k}"] = rounded(found[f"master{k}"], self.dtype("params", k))
        return found

    def reference(self, values, tensor_cores=False):
        """Bounds are of a few roundings of what each step adds up, and of the storage; those of states are the parameter's too."""
        reference, bound = {}, {}
        for k, shape in enumerate(self.shapes):
            p = values[f"{'master' if self.master else 'params'}{k}"]
            states = {name: values[f"{name}{k}"] for name in self.names}
            keywords = dict(self.keywords)
            g = values[f"grads{k}"] / (self.scale or 1) * (-1 if keywords.pop("maximize", False) else 1)
            size = np.abs(p) + np.abs(g) + sum(np.abs(s) for s in states.values())
            unit, jump = ROUNDOFF["float64" if self.dtype("params", k) == "float64" else "float32"], 0.0
            if not self.found:
                for step in range(1, self.steps + 1):
                    before = p
                    jump = jump + self._jump(g, states, unit)
                    p, states = DEFINITION[self.op](p, g, states, self.counted or step, **keywords)
                    if self.op == "lamb_step" and self.halves and p.size:  # the direction is that of the moments as they are stored
                        jump = jump + 8 * ROUNDOFF.get(self.dtype("m", k), 0) * np.abs(p - before).max()
                    size = np.maximum(size, np.abs(p) + np.abs(before) + sum(np.abs(s) for s in states.values()))
            done = {"params": p, **states, **({"master": p} if self.master else {})}
            for name, value in done.items():
                error = (0 if self.found or self._is_exact(values) else 64 * self.steps * unit * size) + np.zeros(shape)
                error = error + jump * (name in ("params", "master"))
                dtype = self.dtype(name, k)
                if not self.found and dtype not in ("float64", "float32") and error.any():
                    error = error + rounding_error(value, dtype)
                reference[f"new_{name}{k}"] = rounded(value, dtype) if self.found else value
                bound[f"new_{name}{k}"] = error + (TINY[dtype] if error.any() else 0)
        return reference, bound

    def _jump(self, g, states, unit):
        """How far a parameter may go astray where Lion's sign hangs on the last bits."""
        if self.op != "lion_step":
            return 0.0
        parts = self.keywords["beta1"] * states["m"], (1 - self.keywords["beta1"]) * g
        return 2 * self.keywords["lr"] * (np.abs(sum(parts)) <= 16 * self.steps * unit * sum(map(np.abs, parts)))

    def _is_exact(self, values):
        return self.exact and all(np.array_equal(v, np.rint(v)) for v in values.values())


SIZES = ((5, 7), (1030,), (1,), (0,), (2, 3, 4), (64,))


def table(op):
    """The cases of an operation."""
    def case(name, shapes, dtypes="float32", **more):
        dtypes = (dtypes,) if isinstance(dtypes, str) else dtypes
        found.append(Step(f"{name}-{SHORT[dtypes[0]]}", op, shapes, dtypes, **more))

    found = []
    for dtype in SHORT:
        case("lists", SIZES, dtype)
        case("misaligned", ((33,), (6, 8)), dtype, layout={"params": {"misaligned": 1}, "grads1": {"misaligned": 3}})
    for dtype in ("float16", "bfloat16"):
        case("master", ((1100,), (3, 5)), dtype, master=True, scale=2.0, found=0.0)
        case("narrow-states", ((70,), (9,)), dtype, halves=True)
        case("wide-gradients", ((2100,), (9,)), dtype, grads="float32")
    case("mixed", ((40,), (33,), (1025,), (17,), (8,)), ("float32", "bfloat16", "float16", "float32"), scale=2.0)
    case("mixed-with-double", ((40,), (33,), (20,)), ("float64", "bfloat16", "float32"))
    case("chunks", ((1023,), (1024,), (1025,), (2048,)))
    case("narrow-chunks", ((2047,), (2048,), (2049,)), "bfloat16", halves=True)
    case("scalars", ((), (1,), ()))
    case("nothing", ((0,), (4, 0)))
    case("alike-transposed", ((12, 20), (3, 4, 5)), layout={n: {"order": (1, 0)} for n in ("params0", "grads0")})
    case("apart", ((12, 20), (40,)), layout={"grads0": {"order": (1, 0)}})
    case("strided", ((6, 18), (50,)), "bfloat16", layout={"params0": {"gap": 3}, "grads1": {"step": 2}})
    case("all-strided", ((6, 18), (50,)), layout={"params": {"step": 2}})
    case("backwards", ((6, 18), (5,)), layout={"params0": {"flip": (0, 1)}, "grads0": {"flip": (0,)}})
    case("broadcast-gradients", ((6, 18), (30,)), layout={"grads0": {"expand": (0,)}, "grads1": {"expand": (0,)}})
    case("skipped", ((70,), (1030,)), scale=4.0, found=1.0)
    case("skipped-master", ((70,), (1030,)), "bfloat16", master=True, found=math.inf)
    case("scaled", ((1030,), (9,)), scale=1024.0)
    case("ten-steps", ((50,), (3, 4)), steps=10)
    case("ten-steps", ((50,), (3, 4)), "float64", steps=10)
    case("ten-steps-master", ((50,), (3, 4)), "bfloat16", steps=10, master=True)
    if op in NUMBERED:
        for number, dtype in ((1, "float32"), (2, "bfloat16"), (1000, "float64"), (40, "float16")):
            case(f"counted-{number}", ((50,), (1030,)), dtype, counted=float(number), found=0.0)
        case("counted-apart", ((6, 18), (40,)), layout={"grads0": {"order": (1, 0)}}, counted=3.0)
    for dtype in ("float32", "bfloat16"):
        case("maximize", SIZES, dtype, more={"maximize": True}, scale=2.0)
    case("maximize-apart", ((12, 20), (40,)), layout={"grads0": {"order": (1, 0)}}, more={"maximize": True})
    if "vmax" in STATES[op]:
        for dtype in SHORT:
            case("amsgrad", SIZES, dtype, states=STATES[op])
        case("amsgrad-master", ((1100,), (3, 5)), "bfloat16", states=STATES[op], master=True, scale=2.0, found=0.0)
        case("amsgrad-narrow", ((2049,), (9,)), "float16", states=STATES[op], halves=True)
        case("amsgrad-apart", ((6, 18), (50,)), states=STATES[op], layout={"params": {"step": 2}})
        case("amsgrad-counted", ((50,), (1030,)), states=STATES[op], counted=7.0, more={"maximize": True})
        case("amsgrad-ten-steps", ((50,), (3, 4)), "float64", states=STATES[op], steps=10)
        case("amsgrad-skipped", ((70,), (1030,)), states=STATES[op], found=1.0)
    if op == "sgd_step":
        case("plain", SIZES, states=())
        case("plain-master", SIZES, "float16", states=(), master=True)
        case("nesterov", SIZES, more={"nesterov": True, "dampening": 0.0})
        case("first", ((100,), (33,)), more={"first": True})
    if op == "rmsprop_step":
        for states in (("v",), ("v", "means"), ("v", "momenta")):
            case("-".join(("with", *states)), SIZES, states=states)
    return found


def large(op):
    """GPU: lists as networks have them."""
    sizes = ((64, 3, 7, 7), (64,), (256, 64), (512, 512, 3, 3), (1000, 2048), (1000,), (100003,)) + ((128,), (128, 128)) * 40
    return [Step(f"network-{SHORT[d]}", op, sizes, (d,), master=d == "bfloat16") for d in ("float32", "bfloat16")]


def beyond(op):
    """GPU: a parameter of more than 2**31 elements, in 16-bit numbers throughout."""
    states = STATES[op][:1 if op == "rmsprop_step" else 2]
    return [Step("2**31-bf16", op, ((2 ** 31 + 5000,), (7,)), ("bfloat16",), halves=True, states=states)]


def check_beyond_int32(case, algo, allow):
    """All elements are alike, so all results are."""
    import torch
    arrays, values = {}, case.__class__(case.id, case.op, ((4,), (4,)), case.dtypes, halves=True, states=case.states).values("float")
    for name, place in case.inputs().items():
        arrays[name] = torch.full(place.shape, values[name][0], dtype=torch.bfloat16, device="cuda")
    before = {name: a[:1].clone() for name, a in arrays.items()}
    case.call(arrays, algo=algo, allow=allow)
    for name, a in arrays.items():
        assert bool((a == a[0]).all()), f"{case.id}, {algo}: {name}"
        assert name.startswith("grads") or not torch.equal(a[:1], before[name]), f"{case.id}, {algo}: {name} has not changed"
