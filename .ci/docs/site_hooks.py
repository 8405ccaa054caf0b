"""MkDocs' hooks of the site: pages that are made when it is built, links out of docs/, formulas.

- Reference: a page for each family and namespace, from `site_names`.
- Examples: a page, a notebook and the program of each file of examples/.
- Files of the checkout that pages link to are part of the site, under repository/.
- ``<!-- site: words -->`` in a page becomes what `site_tables` and `site_drawings` have of that name.
- ``$...$`` and ``$$...$$`` become MathML, which browsers show without a script or a font of the site's.
- Code in a page that is a public name leads to its entry in the reference.
"""
import html
import inspect
import logging
import os
import pathlib
import posixpath
import re
import sys

import jupytext
import latex2mathml.converter
from mkdocs.structure.files import File

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
os.environ.setdefault("DNNKERN_DEVICE", "simulator")  # nothing runs: no context on a GPU, no warning without one
import site_drawings  # noqa: E402
import site_names  # noqa: E402
import site_tables  # noqa: E402

ROOT = HERE.parents[1]
LINK = re.compile(r"(?<!\!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
FENCE = re.compile(r"^( *)(```+|~~~+)(.*?)\n(.*?)^\1\2 *$", re.M | re.S)
FAMILIES = {"matmul": "Matrix products", "conv": "Convolution", "attention": "Attention", "rnn": "Recurrent networks",
            "norm": "Normalisation", "softmax": "Softmax", "pool": "Pooling", "act": "Activations and pointwise operations",
            "fused": "Pointwise programs", "loss": "Losses", "optim": "Optimisers", "reduce": "Reductions", "dropout": "Dropout",
            "embedding": "Embeddings", "transform": "Transforms"}
GROUPS = {"torch": "PyTorch", "torch-functional": "dnnkern.torch.functional", "torch-nn": "dnnkern.torch.nn",
          "torch-optim": "dnnkern.torch.optim", "jax": "JAX", "keras": "Keras"}
_origins = {}  # page of the site -> file of the checkout it is made of


class _NotAName(logging.Filter):
    """Griffe cannot read the names that dnnkern.jax takes from a tuple; `site_names` can."""

    def filter(self, record):
        return "Unsupported item in dnnkern.jax.__all__" not in record.getMessage()


for _name in ("griffe", "mkdocs.plugins.griffe", "mkdocs.plugins.mkdocstrings"):
    logging.getLogger(_name).addFilter(_NotAName())


# ---- the reference

def reference():
    """{page: (title, Markdown)}, in the order of the navigation; a page's folder is its section."""
    public, (own, _), pages = site_names.public(), site_names.lazy(), {}
    for family, title in FAMILIES.items():
        names = [name for name in public["dnnkern"] if own[name] == f"dnnkern.{family}"]
        pages[f"api/{family}.md"] = title, entries("dnnkern", names, f"Semantics and algorithms: [{title}](../{family}.md).")
    left = [name for name in public["dnnkern"] if own[name].removeprefix("dnnkern.") not in FAMILIES]
    pages["api/dispatch.md"] = "Dispatch, recording, errors", "\n".join((
        entries("dnnkern", left, "How algorithms are chosen: [guide](../guide.md)."),
        entries("dnnkern.dispatch", [n for n in public["dnnkern.dispatch"] if n not in left], "## dnnkern.dispatch", 3),
        entries("dnnkern.find", public["dnnkern.find"], "## dnnkern.find", 3)))
    graph = public["dnnkern.graph"]
    large = ["pygraph", "tensor"]
    pages["api/graph.md"] = "Operation graph", entries(
        "dnnkern.graph", [n for n in graph if n not in (*large, *enums())],
        "`import dnnkern.graph as cudnn`: [operation graph](../graph.md).")
    pages["api/pygraph.md"] = "pygraph and tensor", entries(
        "dnnkern.graph", large, "A graph's operations are methods of `pygraph`.", members=True)
    pages["api/graph-enums.md"] = "Enumerations of graphs", entries("dnnkern.graph", enums(), "Members are named as cuDNN's.")
    pages["api/graph-operators.md"] = "Graphs as PyTorch operators", entries(
        "dnnkern.graph.experimental.ops", public["dnnkern.graph.experimental.ops"],
        "Importing `dnnkern.graph.experimental.ops` imports PyTorch.")
    for name, title in GROUPS.items():
        module = "dnnkern." + name.replace("-", ".")
        page = {"torch": "PyTorch", "jax": "JAX", "keras": "Keras"}.get(name)
        first = f"How programs use it: [{page}](../{name}.md)." if page else "More: [PyTorch](../torch.md)."
        names = [n for n in public[module] if n not in ("functional", "nn", "optim")]
        pages[f"api/{name}.md"] = title, entries(module, names, first)
    pages["api/device.md"] = "dnnkern.device", entries(
        "dnnkern.device", public["dnnkern.device"], "How kernels are written: [dnnkern.device](../device.md).")
    for module, names in public.items():
        if module.startswith("dnnkern.device."):
            name = module.removeprefix("dnnkern.device.")
            intro = f"::: {module}\n    options:\n      show_root_heading: false\n      show_root_toc_entry: false\n      members: []\n"
            pages[f"api/device/{name}.md"] = f"device.{name}", entries(module, names, intro)
    return pages


def enums():
    return [name for name, module in site_names.lazy()[1].items() if module.endswith("._enums")]


def entries(module, names, first, level=2, members=False):
    lines = [first, ""]
    for name in names:
        lines += [f"::: {module}.{name}", "    options:", f"      heading_level: {level}"]
        lines += ["      inherited_members: true", "      summary: true"] if members else []
        lines += ["      show_if_no_docstring: true"] if name == "Note" else []  # its flags have names that say all
        lines.append("")
    return "\n".join(lines)


def overview(pages):
    """The first page of the reference: every name of the package, by page."""
    lines = ["# API reference", "", "Every public name, from its docstring. What all functions have in common: [guide](../guide.md).", ""]
    for path, (title, text) in pages.items():
        names = re.findall(r"^::: (\S+)", text, re.M)
        shown = ", ".join(f"[`{name.rsplit('.', 1)[1]}`][{name}]" for name in names if name not in site_names.public())
        lines += [f"**[{title}]({path.removeprefix('api/')})**: {shown}", ""]
    return "\n".join(lines)


# ---- examples

def examples(config):
    """(files, navigation) of examples/."""
    files, navigation = [], []
    if (ROOT / "examples" / "README.md").is_file():
        files.append(File.generated(config, "examples/index.md", content=(ROOT / "examples" / "README.md").read_text()))
        _origins["examples/index.md"] = "examples/README.md"
        navigation.append("examples/index.md")
    for path in sorted((ROOT / "examples").glob("*.py")):
        text, name = path.read_text(), path.stem
        cells = re.search(r"^# %%", text, re.M) is not None
        notebook = jupytext.reads(text, fmt="py:percent" if cells else "py:light") if cells else None
        if cells:
            body = jupytext.writes(notebook, fmt="md")
            body = re.sub(r"\A---\n.*?\n---\n", "", body, flags=re.S).strip()
            title = (re.search(r"^# (.+)$", re.sub(FENCE, "", body), re.M) or re.search(r"()", name))[1] or name
            body = re.sub(rf"^# {re.escape(title)}\n", "", body, count=1, flags=re.M)
            files.append(File.generated(config, f"examples/{name}.ipynb", content=jupytext.writes(notebook, fmt="ipynb")))
        else:
            document, code = re.match(r'"""(.*?)"""\n(.*)', text, re.S).groups()
            title = path.name
            body = f"{inspect.cleandoc(document)}\n\n```python\n{code.strip()}\n```"
        links = [f"[Program]({name}.py)" + "{ .md-button }"] + ([f"[Notebook]({name}.ipynb)" + "{ .md-button }"] if cells else [])
        files.append(File.generated(config, f"examples/{name}.py", content=text))
        files.append(File.generated(config, f"examples/{name}.md", content=f"# {title}\n\n{' '.join(links)}\n\n{body}\n"))
        _origins[f"examples/{name}.md"] = f"examples/{name}.py"
        navigation.append({title: f"examples/{name}.md"})
    return files, navigation


# ---- files of the checkout

def origin(uri):
    """The file of the checkout that a page of the site is made of."""
    return _origins.get(uri) or (f"docs/{uri}" if not uri.startswith("api/") else uri)


def site_path(path):
    """Where the site has a file of the checkout."""
    if path.startswith("docs/"):
        return path[5:]
    if path.startswith("examples/") and path.endswith(".py"):
        return path[:-3] + ".md"
    if path == "examples/README.md":
        return "examples/index.md"
    return f"repository/{path}"


def targets(text, of):
    """Files of the checkout outside docs/ that the Markdown `text` of the file `of` links to."""
    for m in LINK.finditer(FENCE.sub("", text)):
        if m[2] and "://" not in m[2] and not m[2].startswith("mailto:"):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(of), m[2]))
            if not path.startswith(("docs/", "examples/", "..")) and (ROOT / path).is_file():
                yield path


def linked(config, files):
    """Files outside docs/ that pages link to, and those that these link to."""
    front = [(f"docs/{f.src_uri}", (ROOT / "docs" / f.src_uri).read_text()) for f in files.documentation_pages()]
    front += [("CHANGELOG.md", ""), ("CONTRIBUTING.md", "")]
    found = ["CHANGELOG.md", "CONTRIBUTING.md"]
    while front:
        of, text = front.pop()
        for path in targets(text or (ROOT / of).read_text(), of):
            if path not in found:
                found.append(path)
                if path.endswith(".md"):
                    front.append((path, (ROOT / path).read_text()))
    for path in found:
        _origins[site_path(path)] = path
        content = (ROOT / path).read_bytes()
        yield File.generated(config, site_path(path), content=content if not path.endswith(".md") else content.decode())


# ---- MkDocs' events

def on_files(files, config):
    for file in linked(config, list(files) and files):
        files.append(file)
    made, navigation = examples(config)
    for file in made:
        files.append(file)
    pages = reference()
    files.append(File.generated(config, "api/index.md", content=overview(pages)))
    for path, (title, text) in pages.items():
        files.append(File.generated(config, path, content=f"# {title}\n\n{text}"))
    of_device = ["api/device.md", *({title: path} for path, (title, _) in pages.items() if path.startswith("api/device/"))]
    api = ["api/index.md", *({title: path} for path, (title, _) in pages.items() if not path.startswith("api/device")),
           {"dnnkern.device": of_device}]
    insert(config.nav, "examples/", navigation)
    insert(config.nav, "api/", api)
    return files


def insert(nav, name, pages):
    """Put pages where the navigation has a folder's name."""
    for entry in nav:
        if isinstance(entry, dict):
            for title, value in entry.items():
                if value == name:
                    entry[title] = pages
                elif isinstance(value, list):
                    insert(value, name, pages)


def on_page_markdown(markdown, page, config, files):
    uri = page.file.src_uri
    kept = []

    def keep(m):
        indent, mark, info, body = m.groups()
        if info.strip() == "python" and re.search(r"^ *>>> ", body, re.M):
            info, body = "pycon", re.sub(r" +# doctest:.*", "", body)
        kept.append(f"{indent}{mark}{info}\n{body}{indent}{mark}")
        return f"\0{len(kept) - 1}\0"

    def led(m):
        text, path, anchor = m[1], m[2], m[3] or ""
        if not path or "://" in path or path.startswith("mailto:") or uri.startswith("api/"):
            return m[0]
        of = posixpath.normpath(posixpath.join(posixpath.dirname(origin(uri)), path))
        if not files.get_file_from_path(site_path(of)):
            return m[0] if files.get_file_from_path(posixpath.normpath(posixpath.join(posixpath.dirname(uri), path))) else text
        return f"[{text}]({posixpath.relpath(site_path(of), posixpath.dirname(uri) or '.')}{anchor})"
    markdown = FENCE.sub(keep, markdown)
    family = uri.removesuffix(".md")
    if family in FAMILIES and (table := site_tables.progression(family)):
        markdown += f"\n\n## Measured, from naive to fast\n\n{table}\n\nEvery problem: [performance](performance.md#every-problem).\n"
    markdown = re.sub(r"^<!-- site: (\w+)(.*?) -->$", made, markdown, flags=re.M)
    markdown = LINK.sub(led, markdown)
    markdown = re.sub(r"<picture>\s*<source[^>]*?srcset=\"([^\"]+)\">\s*<img src=\"([^\"]+)\" alt=\"([^\"]*)\"[^>]*>\s*</picture>",
                      r"![\3](\2#only-light) ![\3](\1#only-dark)", markdown)
    if not uri.startswith("api/"):  # [a][b] is no reference there, but an element or a citation
        markdown = re.sub(r"`[^`]*`|\[(?=[^\[\]]*\]\[(?!dnnkern))", lambda m: m[0] if m[0] != "[" else "\\[", markdown)
    markdown = formulas(markdown)
    return re.sub("\0(\\d+)\0", lambda m: kept[int(m[1])], markdown)


def made(m):
    name, words = m[1], m[2].split()
    function = getattr(site_tables, name, None) or getattr(site_drawings, name)
    return f"\n\n{function(*words)}\n\n"


def formulas(markdown):
    """TeX as MathML; inline code is left alone."""
    def one(display):
        def convert(m):
            return m[0] if m[1] is None else latex2mathml.converter.convert(m[1], display=display)
        return convert
    markdown = re.sub(r"`[^`]*`|\$\$(.+?)\$\$", one("block"), markdown, flags=re.S)
    return re.sub(r"`[^`]*`|(?<![\w$\\])\$(?=\S)([^$\n]+?)(?<=\S)\$(?!\w)", one("inline"), markdown)


def on_page_content(content, **_):
    """Names of the reference lead there; those without a dot if they have an underscore, which no other word has."""
    def signature(m):  # one that is but the name again
        return "" if re.fullmatch(r"\s*\w+\s*", html.unescape(re.sub(r"<[^>]+>", "", m[0]))) else m[0]
    content = re.sub(r'<div class="[^"]*\bdoc-signature\b[^"]*">.*?</div>', signature, content, flags=re.S)
    public = site_names.public()
    found = {f"{module}.{name}": f"{module}.{name}" for module, names in public.items() for name in names}
    found |= {f"device.{name}": f"dnnkern.device.{name}" for name in public["dnnkern.device"]}
    found |= {name: f"dnnkern.{name}" for name in public["dnnkern"] if "_" in name}

    def led(m):
        name = html.unescape(m[2]) if m[2] else None
        return f'<autoref identifier="{found[name]}"><code>{m[2]}</code></autoref>' if name in found else m[0]
    return re.sub(r"(<a\b.*?</a>|<h[1-6].*?</h[1-6]>|<pre.*?</pre>)|<code>([\w.]+)</code>", led, content, flags=re.S)
