"""The public names of the library, found without a framework or Numba: what the reference of the site must have.

`public()` gives each namespace's names. tests/test_site.py compares them with what the imported modules have, site_check.py with the site.
"""
import ast
import functools
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "dnnkern"

FUNCTIONAL = tuple("""
adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d attention
attention_decode avg_pool1d avg_pool2d avg_pool3d batch_norm bmm celu conv1d conv2d conv3d conv_transpose1d conv_transpose2d
conv_transpose3d cross_entropy ctc_loss dropout elu embedding geglu gelu group_norm grouped_matmul gru hardsigmoid hardswish hardtanh
instance_norm layer_norm leaky_relu linear linear_cross_entropy log_softmax lstm max_pool1d max_pool2d max_pool3d mish nll_loss relu relu6
residual_layer_norm residual_rms_norm rms_norm rnn_relu rnn_tanh rope scaled_dot_product_attention selu sigmoid silu softmax softplus
softsign swiglu tanh""".split())
"""Those of dnnkern.torch.functional, most of which are made in loops over PyTorch's: not to be read from the sources."""
# Other names that the pages tell of: (module, name) by namespace.
MORE = {"dnnkern.dispatch": (), "dnnkern.device.sim": ("Pointer", "config", "Race", "Misuse"),
        "dnnkern.device.cpu": ("Fault", "Deadlock", "BadAccess", "StackOverflow")}


@functools.cache
def constant(path, name):
    """The literal that a module of the package assigns to a name; a call of `split` on a literal is one too."""
    for node in ast.parse((PACKAGE / path).read_text()).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            value = node.value
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "split":
                return ast.literal_eval(value.func.value).split()
            return ast.literal_eval(value)
    raise LookupError(f"dnnkern/{path}: no {name}")


def lazy():
    """{name: module} of the package's own names, and {name: module} of the graph's."""
    import dnnkern
    import dnnkern.graph
    return dnnkern._NAMES, {name: f"dnnkern.graph.{module}" for name, module in dnnkern.graph._NAMES.items()}


def device_modules():
    """The modules that docs/device.md lists."""
    table = (ROOT / "docs" / "device.md").read_text().split("## Modules")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `device")]
    return [name for row in rows for name in re.findall(r"`device\.(\w+)`", row)]


def members(path):
    """Public functions, classes and constants that a module defines, in its order."""
    found = {}

    def visit(body):
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found[node.name] = None
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    for name in target.elts if isinstance(target, ast.Tuple) else (target,):
                        if isinstance(name, ast.Name):
                            found[name.id] = None
            elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
                visit(node.body)
                visit(node.orelse)
    visit(ast.parse((PACKAGE / path).read_text()).body)
    return [name for name in found if not name.startswith("_")]


def all_of(path):
    """A literal ``__all__``; the starred part of a concatenation is left out."""
    for node in ast.parse((PACKAGE / path).read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__":
            return [e.value for e in node.value.elts if isinstance(e, ast.Constant)]
    raise LookupError(f"dnnkern/{path}: no __all__")


@functools.cache
def public():
    """{namespace: its public names}"""
    own, graph = lazy()
    found = {
        "dnnkern": sorted(own),
        "dnnkern.dispatch": all_of("dispatch.py"),
        "dnnkern.find": all_of("find.py"),
        "dnnkern.graph": [*graph, "backend_version", "backend_version_string", "get_last_error_string"],
        "dnnkern.graph.experimental.ops": all_of("graph/experimental/ops/__init__.py"),
        "dnnkern.torch": sorted({*constant("torch/__init__.py", "_LAZY"), *all_of("torch/__init__.py")}),
        "dnnkern.torch.functional": list(FUNCTIONAL),
        "dnnkern.torch.nn": [*sorted([*constant("torch/nn.py", "_NAMES"), "SyncBatchNorm"]), "LAYERS", "BACK"],
        "dnnkern.torch.optim": all_of("torch/optim.py"),
        "dnnkern.jax": [*all_of("jax/__init__.py"), *constant("jax/_functions.py", "NAMES")],
        "dnnkern.keras": all_of("keras/__init__.py"),
        "dnnkern.device": all_of("device/__init__.py"),
    }
    for name in device_modules():
        found[f"dnnkern.device.{name}"] = members(f"device/{name}.py")
    return found | {module: list(names) for module, names in MORE.items() if names}
