"""The page: one HTML file with its data, its script, and Vega, which draws."""
import base64
import contextlib
import gzip
import html
import json
import os
import re
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPTS = "core.js", "parts.js", "charts.js", "scatter.js", "more.js", "table.js", "page.js"
EXPOSED = "window.vegaEmbed = vegaEmbed;"


def vega() -> str:
    """The source of Vega, Vega-Lite and vega-embed.

    Raises
    ------
    ValueError
        vl_convert, which brings it, cannot be imported.
    """
    try:
        import vl_convert
    except ImportError as error:
        raise ValueError(f"report: vl_convert, which draws the charts, cannot be imported ({error}): pip install dnnkern[report]"
                         ) from None
    return vl_convert.javascript_bundle(EXPOSED)


def page(data, library) -> str:
    """The HTML of the page.

    Parameters
    ----------
    data : dict
        Of `data.page_data`.
    library : str
        Of `vega`.
    """
    names = ", ".join(device["name"] for device in data["devices"])
    parts = {"title": html.escape(f"dnnkern: {names}"), "style": _file("page.css"), "library": _script(library),
             "data": _packed(data),
             "script": _script("\n".join(map(_file, SCRIPTS)))}
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _file("page.html"))


def _packed(data):
    """Compressed, since thousands of rows have the same names."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _file(name):
    return (HERE / name).read_text(encoding="utf-8")


def _script(text):
    """A script's source that does not end the element around it."""
    return re.sub(r"<(?=/script|!--)", r"\\x3c", text, flags=re.IGNORECASE)


def write(path, text) -> int:
    """Write a page, or nothing; returns its bytes.

    Raises
    ------
    ValueError
        The file cannot be written.
    """
    data, temporary = text.encode(), None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = file.name
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except PermissionError as error:
        raise ValueError(f"report: --out {path}: {error.strerror}; expected a file that can be written") from None
    finally:
        if temporary:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
    return len(data)
