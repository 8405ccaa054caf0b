"""What the reference shows beyond what Griffe reads from the sources: an extension of it, for mkdocstrings.

Names that modules import lazily or make in loops get an entry; tables, literal blocks and examples of docstrings become Markdown.
"""
import ast
import inspect
import pathlib
import re
import sys

import griffe

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import site_names  # noqa: E402

RULE = re.compile(r" *=+(?: +=+)+ *$")
PRODUCT = re.compile(r"``.*?``|`[^`]*`|(?<=[\w)\]])\*+(?=[\w(\[])|(?<= )\*+(?= )")  # an asterisk that is no emphasis
TYPED = re.compile(r"[\w*, ]+ : ")  # a parameter and its type, which is shown as code
INTEGERS = {"i": "int", "u": "uint", "f": "float"}
SEE_MODULE = "One of a series of names: the beginning of this page has what they do."
DEVICE = {"DEVICE": "What kernels run on: \"cuda\", \"cpu\" or \"simulator\".",
          "HOST_MEMORY": "Whether arrays are NumPy's, in memory of the host: on the processor and in the simulator.",
          "SIMULATED": "Whether kernels run in the simulator.",
          "wrapping": "`wrapping(expression)`: in kernels of `jit`, int32 overflow in the expression is meant, and wraps.",
          "cuda": "`numba.cuda`, or what stands for it without a GPU: `to_device`, `device_array`, streams, events, launches, and in "
                  "kernels `threadIdx`, `blockIdx`, `shared.array`, `syncthreads` and the like."}


class Names(griffe.Extension):
    """The extension."""

    def on_instance(self, *, obj, **_):
        """Each docstring, as it is read."""
        if not obj.is_alias and obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)

    def on_package(self, *, pkg, **_):
        """The names that are missing then."""
        if pkg.name != "dnnkern":
            return
        own, graph = site_names.lazy()
        public = site_names.public()
        # As objects: `dnnkern.matmul` and others are functions that hide the modules which define them.
        aliases(pkg, {name: pkg[f"{module}.{name}".removeprefix("dnnkern.")] for name, module in own.items()})
        aliases(pkg["graph"], {name: f"{module}.{name}" for name, module in graph.items()})
        enums(pkg["graph"], [name for name, module in graph.items() if module.endswith("._enums")])
        lazy = site_names.constant("torch/__init__.py", "_LAZY")
        aliases(pkg["torch"], {name: f"dnnkern.torch{module}.{name}" for name, module in lazy.items()})
        operations(pkg["graph._pygraph"].members["pygraph"])
        of_torch(pkg["torch"], public)
        for name in site_names.constant("jax/_functions.py", "NAMES"):
            describe(pkg["jax"], name, f"`dnnkern.{name}` on arrays of JAX, inside of `jit`, `grad` and `vmap` too: the same arguments and "
                     "results, without `out`, `workspace`, `stream` and the choice of the algorithm.")
        for name in public["dnnkern.device"]:
            if re.fullmatch(r"[iuf]\d+", name):
                describe(pkg["device"], name, f"Cast to {INTEGERS[name[0]]}{name[1:]}: Numba's type where kernels are compiled, a function "
                         "in the simulator.")
            elif name in DEVICE:
                describe(pkg["device"], name, DEVICE[name])
        modules = [name.removeprefix("dnnkern.") for name in public if name.startswith("dnnkern.device.")]
        for module in ("device", *modules):
            for name in public[f"dnnkern.{module}"]:
                documented(pkg[module], name)


def aliases(module, targets):
    for name, target in targets.items():
        module.set_member(name, griffe.Alias(name, target, parent=module))


def docstring(text, parent):
    """One that the sources do not have at that name; those read from sources get the parser from mkdocstrings."""
    return griffe.Docstring(text, lineno=1, parent=parent, parser="numpy", parser_options={
        "warn_unknown_params": False, "warn_missing_types": False, "warnings": False})


def describe(module, name, text, value=None):
    """An entry without a signature; `value` is shown if it is short."""
    made = griffe.Attribute(name, value=value, parent=module)
    made.docstring = docstring(text, made)
    module.set_member(name, made)


def documented(module, name):
    """A docstring for a name that the module describes in its own."""
    found = module.members.get(name)
    try:
        if found is not None and found.docstring:
            return
    except griffe.AliasResolutionError:
        found = None
    text = module.docstring.value if module.docstring else ""
    row = re.search(rf"^\| `?({name}\b[^|]*?)`? \| ([^|]+) \|", text, re.M)
    value = getattr(found, "value", None) if found is not None and found.is_attribute else None
    short = value if value is not None and len(str(value)) < 100 and name.isupper() else None
    constant = "A constant: the beginning of this page has what it is for." if name.isupper() else SEE_MODULE
    if found is not None and found.is_function:
        found.docstring = docstring(row[2] if row else SEE_MODULE, found)
    else:
        describe(module, name, (f"`{row[1]}`: {row[2].strip()}." if row else constant), short)


def enums(module, names):
    from dnnkern.graph import _enums
    for name in names:
        made = getattr(_enums, name)
        describe(module, name, f"{made.__doc__}\n\n" + ", ".join(f"`{member.name}`" for member in made))


def operations(pygraph):
    """The methods of pygraph that its table of operations has."""
    from dnnkern.graph.ops import OPERATIONS
    for name, operation in OPERATIONS.items():
        parameters = griffe.Parameters(*(griffe.Parameter(
            p.name, kind=getattr(griffe.ParameterKind, p.kind.name.lower()), default=None if p.default is p.empty else shown(p.default))
            for p in operation.signature.parameters.values()))
        made = griffe.Function(name, parameters=parameters, parent=pygraph)
        made.docstring = docstring(markdown(operation.doc or "An operation of the graph."), made)
        pygraph.set_member(name, made)


def shown(value):
    return f"{type(value).__name__}.{value.name}" if hasattr(value, "name") and hasattr(type(value), "__members__") else repr(value)


def of_torch(module, public):
    """Functions, layers and optimisers that are made of PyTorch's."""
    functional = module["functional"]
    own = {name: part.members[name] for part in [*functional.members.values()] if not part.is_alias and part.is_module
           for name in part.members if name in public["dnnkern.torch.functional"] and part.members[name].is_function
           and any("public" in str(d.value) for d in part.members[name].decorators)}
    documents = {name: literal(site_names.PACKAGE / "torch" / "functional" / f"{file}.py")
                 for name, file in (("linear", "linear"), ("batch_norm", "norm"), ("ctc_loss", "ctc"))}
    for name in public["dnnkern.torch.functional"]:
        if name in own:
            functional.set_member(name, griffe.Alias(name, own[name], parent=functional))
        else:
            describe(functional, name, markdown(documents.get(name) or f"As `torch.nn.functional.{name}`, on this library's kernels."))
    for name in public["dnnkern.torch.nn"]:
        if name not in ("LAYERS", "BACK", "SyncBatchNorm"):
            describe(module["nn"], name, f"`torch.nn.{name}` on this library's kernels.")
    for name in public["dnnkern.torch.optim"]:
        if not (name in module["optim"].members and module["optim"].members[name].is_class):
            describe(module["optim"], name, f"`torch.optim.{name}` with this library's step on lists.")


def literal(path):
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "_DOC":
            return inspect.cleandoc(node.value.value)
    raise LookupError(f"{path}: no _DOC")


# ---- docstrings

def markdown(text):
    """A docstring in Markdown; its sections stay numpydoc's."""
    lines, made, k = re.sub(r" +# doctest:.*", "", text).splitlines(), [], 0
    examples = next((i for i, line in enumerate(lines[:-1]) if line == "Examples" and set(lines[i + 1]) == {"-"}), len(lines))
    while k < len(lines):
        line = lines[k]
        if RULE.match(line):
            rows, k = table(lines, k)
            made += ["", *rows, ""]
            continue
        if line.startswith(">>> ") and k < examples:
            block, k = taken(lines, k, lambda one: bool(one.strip()))
            made += ["", "```pycon", *block, "```", ""]
            continue
        if line.rstrip().endswith("::") and not line.startswith(" ") and k < examples:
            block, after = taken(lines, k + 1, lambda one: not one.strip() or one.startswith("  "))
            if any(one.strip() for one in block):
                code = inspect.cleandoc("\n" + "\n".join(block)).splitlines()
                made += [line.rstrip()[:-1], "", "```python", *code, "```", ""]
                k = after
                continue
        if line.startswith("- ") and made and made[-1].strip() and not made[-1].startswith(("- ", " ")) and k < examples:
            made.append("")
        made.append(line if k >= examples or TYPED.match(line) or line.count("`") % 2 else PRODUCT.sub(
            lambda m: m[0] if m[0][0] == "`" else m[0].replace("*", r"\*"), line))
        k += 1
    return "\n".join(made)


def taken(lines, k, belongs):
    """(the lines from `k` on that belong, the number of the next)"""
    block = []
    while k < len(lines) and belongs(lines[k]):
        block.append(lines[k])
        k += 1
    return block, k


def table(lines, k):
    """(a table of reStructuredText as one of Markdown, the number of the line after it)"""
    starts = [m.start() for m in re.finditer("=+", lines[k])]
    indent = " " * starts[0]
    rules = [k]
    for number in range(k + 1, len(lines)):
        if RULE.match(lines[number]):
            rules.append(number)
            if number + 1 >= len(lines) or not lines[number + 1].strip():
                break
        elif len(rules) == 1 and not lines[number].strip():
            break
    if len(rules) == 1:
        return lines[k:k + 1], k + 1
    groups = [rows(lines[a + 1:b], starts) for a, b in zip(rules, rules[1:])]
    head = groups[0][0] if len(groups) > 1 else [""] * len(starts)
    body = groups[1] if len(groups) > 1 else groups[0]
    made = [row(head), "|" + " --- |" * len(starts), *map(row, body)]
    return [indent + line for line in made], rules[-1] + 1


def rows(lines, starts):
    """Cells; a line whose first cell is empty goes on with the line before it."""
    found = []
    for line in lines:
        at = [start if not line[start - 1:start].strip() else max(line.find("  ", start), start) for start in starts]
        cells = [line[a:b].strip() for a, b in zip(at, [*at[1:], None])]
        if found and not cells[0]:
            found[-1] = [" ".join(filter(None, pair)) for pair in zip(found[-1], cells)]
        elif any(cells):
            found.append(cells)
    return found


def row(cells):
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
