"""The documentation site: its reference has every public name, its links lead somewhere, Python blocks of its pages run."""
import importlib
import importlib.util
import inspect
import json
import os
import pathlib
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import types
from xml.etree import ElementTree

import pytest

from dnnkern.device.mma import FRAGMENTS

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / ".ci" / "docs"))
import site_check  # noqa: E402
import site_names  # noqa: E402

PUBLIC = site_names.public()
NEEDS = {"dnnkern.torch": "torch", "dnnkern.graph.experimental": "torch", "dnnkern.jax": "jax", "dnnkern.keras": "keras"}
ENVIRONMENT = {**{k: v for k, v in os.environ.items() if k != "DNNKERN_PREFER"}, "NUMBA_ENABLE_CUDASIM": "0", "DNNKERN_DEVICE": "cpu",
               "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}


def imported(name, monkeypatch):
    """The module, if what it needs is installed."""
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    for prefix, needed in NEEDS.items():
        if name.startswith(prefix):
            pytest.importorskip(needed)
    return importlib.import_module(name)


@pytest.mark.parametrize("name", PUBLIC)
def test_the_reference_has_the_modules_names(name, monkeypatch):
    """Those of ``__all__``; of modules without it each function and class that the module defines, and nothing that it lacks."""
    names = set(PUBLIC[name])
    assert len(names) == len(PUBLIC[name])
    if name == "dnnkern.device.cpu":  # which other devices do not import
        program = f"import {name} as module; print(all(issubclass(getattr(module, one), Exception) for one in {sorted(names)}))"
        done = subprocess.run([sys.executable, "-c", program], env=ENVIRONMENT, capture_output=True, text=True)
        assert done.stdout == "True\n", done.stderr
        return
    module = imported(name, monkeypatch)
    published = getattr(module, "__all__", None)
    if name in site_names.MORE:
        assert all(hasattr(module, one) for one in names)
    elif published is not None:
        assert names == {one for one in published if not isinstance(getattr(module, one), types.ModuleType)}
    else:
        defined = {one for one, value in vars(module).items() if not one.startswith("_")
                   and (inspect.isfunction(value) or inspect.isclass(value)) and value.__module__ == name}
        assert defined <= names
        assert all(hasattr(module, one) for one in names)


def test_devices_modules_are_all_listed():
    """Those of docs/device.md are the public ones: the others are parts of these."""
    parts = {"atomic", "dot", "grid", "host_memory", "ring", "rows", *(f"program_{one}" for one in (
        "affine", "batches", "levels", "operands", "pairs", "reduction", "results"))}
    files = {p.stem for p in (ROOT / "dnnkern" / "device").glob("[a-z]*.py")}
    assert {*site_names.device_modules()} == files - parts


def test_names_in_pages_exist():
    """Code in a page that begins with the library's name is one."""
    wrong = []
    for path in sorted((ROOT / "docs").glob("*.md")):
        for name in re.findall(r"`(dnnkern(?:\.\w+)+)", re.sub(r"```.*?```", "", path.read_text(), flags=re.S)):
            module, found = name, None
            while found is None and module:
                try:
                    found = importlib.util.find_spec(module)
                except ImportError:
                    pass
                module = module if found else module.rpartition(".")[0]
            rest = name[len(module):].strip(".").split(".")
            members = PUBLIC.get(module, ())
            text = pathlib.Path(found.origin).read_text()
            if not (rest == [""] or rest[0] in members or re.search(rf"\b{rest[0]}\b", text)):
                wrong.append(f"{path.name}: {name}")
    assert wrong == ["guide.md: dnnkern.packs"]  # a group of entry points


def commands():
    """(page, words) of each command of this library in the pages that is whole."""
    found = []
    for path in sorted((ROOT / "docs").glob("*.md")):
        text = path.read_text()
        code = re.findall(r"^```(?:shell)?\n(.*?)^```", text, re.S | re.M)
        code += re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text) + re.findall(r"^    (\S.*)$", text, re.M)
        for line in "\n".join(code).splitlines():
            m = re.match(r"\s*(?:[A-Z_]+=\S+ )*(?:python -m )?dnnkern ([a-z].*)", line)
            if m and not re.search(r"\.\.\.|<|\[op\]|[A-Z]{4}|'\{", m[1]):
                found.append((path.name, tuple(shlex.split(re.sub(r"(\\?\|| #).*", "", m[1])))))
    return sorted(set(found))


def test_commands_of_pages_are_understood(capsys):
    """Their options and problems, by the parsers of the command line; none runs."""
    from dnnkern import __main__ as line
    parser, with_problem = line.make_parser()
    seen = set()
    for page, words in commands():
        if len(words) == 1 or words[0] in ("bench", "demo"):
            assert words[0] in (*line.EXAMPLES, "bench", "demo"), (page, words)
        else:
            arguments = parser.parse_args(list(words))
            if arguments.command in with_problem and arguments.op and "--help" not in words:
                problem = line._parse_problem(with_problem[arguments.command], arguments)
                assert problem.make(problem) is not None, (page, words)
        seen.add(words[0])
    assert seen >= {"run", "explain", "find", "warm", "list", "check", "cache", "pack", "bench"}


def test_every_page_is_in_the_navigation():
    """A page that is added to docs/ must be reachable: mkdocs.yml names it."""
    named = re.findall(r"^ +- (?:[^:\n]+: )?([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert len(named) == len(set(named))
    assert {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")} == {
        name for name in named if not name.startswith("repository/")}


def test_names_of_cudnns_graphs_exist():
    """The left column of docs/from-cudnn.md's table of graphs: what is there is here, but what the page says is not."""
    import dnnkern.graph as cudnn
    page = (ROOT / "docs" / "from-cudnn.md").read_text()
    section = page.split("## The graph API")[1]
    lacking = set(re.findall(r"`(\w+)`", re.search(r"but for(.*?)of `sdpa`", section, re.S)[1]))
    names = {name for row in re.findall(r"^\| ([^|]*) \|", section, re.M) for name in re.findall(r"`(?:cudnn\.)?([a-z]\w+)`", row)}
    assert len(names) > 50 and len(lacking) == 4
    for name in names - {"_backward"} | {f"{n}_backward" for n in ("batchnorm", "layernorm", "adalayernorm", "rmsnorm", "instancenorm")}:
        assert any(hasattr(where, name) for where in (cudnn, cudnn.pygraph, cudnn.tensor)), name
    assert not any(hasattr(where, name) for name in lacking for where in (cudnn, cudnn.pygraph))


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    for needed in ("mkdocs", "material", "mkdocstrings", "jupytext", "latex2mathml"):
        pytest.importorskip(needed)
    folder, before = tmp_path_factory.mktemp("site"), os.times()
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)], cwd=ROOT, env=ENVIRONMENT,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    after = os.times()
    assert after.children_user + after.children_system - before.children_user - before.children_system < 120  # of a processor
    return folder


def test_the_site_is_whole(site):
    assert site_check.problems(site) == []


def test_the_site_has_pages_of_each_kind(site):
    """Formulas, examples with notebooks, tables of rows and drawings are there, in the pages that have them."""
    for path in (ROOT / "examples").glob("*.py"):
        assert (site / "examples" / path.name).read_text() == path.read_text()
        assert (site / "examples" / f"{path.stem}.html").is_file()
        cells = re.findall(r"^# %%", path.read_text(), re.M)
        notebook = site / "examples" / f"{path.stem}.ipynb"
        assert notebook.is_file() == bool(cells)
        assert not cells or abs(len(json.loads(notebook.read_text())["cells"]) - len(cells)) <= 1
    text = (site / "api" / "conv.html").read_text()
    assert 'id="dnnkern.conv_fwd"' in text and "residual" in text
    assert 'href="api/conv.html#dnnkern.conv_fwd"' in (site / "conv.html").read_text()  # code that is a name leads there
    assert "<math" in (site / "numerics.html").read_text() and "$" not in re.sub("<pre.*?</pre>", "", (
        site / "numerics.html").read_text().split("<article")[1].split("</article>")[0], flags=re.S)
    drawn = (site / "fragments.html").read_text().count('<figure class="fragment')
    assert drawn == (ROOT / "docs" / "fragments.md").read_text().count("<!-- site:")
    assert "# doctest" not in (site / "guide.html").read_text()
    # Pages that are opened as files find the index as a script, and a worker that runs there.
    assert "sdpa_decode" in (site / "search" / "search_index.js").read_text()
    assert '<script src="../iframe-worker.js">' in (site / "api" / "conv.html").read_text() and (site / "iframe-worker.js").is_file()
    for path in site.rglob("*.html"):
        assert "<!-- site:" not in path.read_text() or path.name == "site.html"


def test_drawings_are_the_librarys_maps():
    """One matrix of ldmatrix, transposed or not, is drawn by what an operand of mma holds: these are the same."""
    import site_drawings
    from dnnkern.device.ldmatrix import place
    for lane in range(32):
        for half in range(2):
            row, column = place(lane, half)
            assert FRAGMENTS["bfloat16", 16, 16].a(lane, half) == (row, column) == place(lane, half, True)[::-1]
    for text in (site_drawings.mma("bfloat16", 16, 16, "acc"), site_drawings.wgmma(16), site_drawings.swizzle()):
        assert ElementTree.fromstring(text).tag == "figure"
    assert site_drawings.mma("bfloat16", 16, 16, "acc").count(">5.2<") == 1
    assert site_drawings.wgmma(16).count("<rect") == 64 * 16


def test_tables_are_of_the_rows():
    """Numbers of the tables of families and of programs, against the rows themselves."""
    import site_tables
    rows = list(site_tables.measured.records(site_tables.measured.files(site_tables.report.RESULTS)))
    counted = sum(isinstance(r.get("machine"), dict) and r["machine"].get("device") == "NVIDIA H200" for r in rows)
    assert f"| NVIDIA H200 | {counted} |" in site_tables.devices()
    assert "sm_90` | Hopper | H100, H200 | **measured**" in site_tables.architectures()
    assert site_tables.architectures().count("compiled only") == len(site_tables.compiled()) - 1
    table = site_tables.families().splitlines()
    softmax = next(line for line in table if line.startswith("| softmax |")).split(" | ")
    latest, device = {}, table[0].removesuffix(":")
    clean = [r for r in rows if r.get("is_peer") is False and not str(r["machine"]["commit"]).endswith("+")]
    of_sets = [r for r in clean if r.get("set")]  # the record
    if {site_tables.measured.family(r["op"]) for r in of_sets} == set(site_tables.measured.FAMILIES):
        clean = of_sets
    of_ours = [r for r in clean if r["op"].startswith("softmax_") and r["chosen"] and r["status"] == "ok"
               and r["machine"]["device"] == device]
    for r in sorted(of_ours, key=lambda r: r["machine"]["date"]):
        latest[r["op"], r["problem"]] = r["ratio"]
    ratios = [r for r in latest.values() if r]
    assert softmax[1:3] == [str(len(ratios)), f"{statistics.median(ratios):.2f}"]
    assert softmax[5] == f"{sum(r > 1 for r in ratios)} of {len(ratios)}"


PLANTED = {
    "name": ("api/conv.html", 'id="dnnkern.conv_fwd"', 'id="other"', "api/conv.html#dnnkern.conv_fwd does not exist"),
    "link": ("guide.html", 'href="commands.html"', 'href="nothing.html"', "guide.html: nothing.html leads nowhere"),
    "anchor": ("guide.html", 'href="#', 'href="#no-', "no such anchor"),
    "host": ("guide.html", "</body>", '<script src="https://example.org/x.js"></script></body>', "loads https://example.org/x.js"),
    "style": ("guide.html", "</body>", '<link rel="stylesheet" href="//example.org/x.css"></body>', "loads //example.org/x.css"),
    "search": ("search/search_index.json", '"matmul.html', '"other.html', "matmul.html: not in the search index"),
}


@pytest.mark.parametrize("case", PLANTED)
def test_the_check_finds(site, case, tmp_path):
    name, old, new, message = PLANTED[case]
    shutil.copytree(site, tmp_path / "site")
    path = tmp_path / "site" / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    found = site_check.problems(tmp_path / "site")
    assert any(message in one for one in found), found


# ---- programs of pages

def programs():
    """{page: its Python blocks that are no sessions, which its readers run one after the other}"""
    found = {}
    for path in sorted((ROOT / "docs").glob("*.md")):
        blocks = [b for b in re.findall(r"^ *```python\n(.*?)^ *```", path.read_text(), re.S | re.M) if ">>>" not in b]
        if blocks:
            found[path.name] = blocks
    return found


PROGRAMS = programs()
_DIGITS = """import keras, numpy
keras.datasets.mnist.load_data = lambda: ((numpy.zeros((256, 28, 28)), numpy.zeros(256)), None)
"""
# What a reader has and these tests lack: data, a model on disk, several processes.
BEFORE = {"keras.md": 'import os\nos.environ["KERAS_BACKEND"] = "torch"\n' + _DIGITS,
          "jax.md": 'import os\nos.environ["KERAS_BACKEND"] = "jax"\n' + _DIGITS,
          "transformers.md": """import transformers
transformers.LlamaForCausalLM(transformers.LlamaConfig(
    vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1)).save_pretrained("path/of/a/model")
""",
          "onnx.md": """import onnx.parser
onnx.save(onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 21]> '
                                  'net (float[N, 3, H, W] x) => (float[N, 3, 1, 1] y) { y = GlobalAveragePool (x) }'), "resnet.onnx")
""",
          "distributed.md": """import os
os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="localhost", MASTER_PORT="29611")
"""}
SMALLER = {"distributed.md": (('"nccl"', '"gloo"'), ("randn(32,", "randn(2,"), ("(32,)", "(2,)"), ("range(10)", "range(1)"))}
# A last statement where the program itself calls nothing.
AFTER = {"transformers.md": "print(model(input_ids=torch.tensor([[1, 2, 3]]).cuda()).logits.shape)\n"}
ON_OURS = {"torch.md", "keras.md", "distributed.md", "transformers.md"}


@pytest.mark.parametrize("page", PROGRAMS)
def test_program_of_a_page(page, tmp_path):
    """On the processor, as `python -m dnnkern run --simulate` starts it; blocks of a page that need what is not installed are left out."""
    blocks = [b for b in PROGRAMS[page] if importlib.util.find_spec("tensorflow") or "tensorflow" not in b]
    text = BEFORE.get(page, "") + "".join(blocks) + AFTER.get(page, "")
    for name in ("torch", "keras", "jax", "transformers", "onnx"):
        needed = re.search(rf"^ *import .*\b{name}\b", text, re.M) or name == "torch" and page in ON_OURS
        if needed and importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    for old, new in SMALLER.get(page, ()):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "program.py").write_text(text)
    run = ["-m", "dnnkern", "run", "--simulate"] if page in ON_OURS else []
    done = subprocess.run([sys.executable, "-W", "ignore", *run, "program.py"], cwd=tmp_path, env=ENVIRONMENT, capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert page not in ON_OURS or re.search(r"[1-9]\d* calls of \d+ operators ran on its kernels", done.stderr), done.stderr
