"""Checks a site that was built: ``python .ci/docs/site_check.py build/docs``.

Every public name has an entry in the inventory, and the entry its anchor; links inside of the site lead to files and anchors; nothing is
loaded from another host; the search index has every page.
"""
import html
import json
import pathlib
import posixpath
import re
import sys
import urllib.parse
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import site_names  # noqa: E402

LOADED = re.compile(r'<(?:script|img|iframe|source|video)\b[^>]*?\b(?:src|srcset)="((?:https?:)?//[^"]+)"'
                    r'|<link\b[^>]*?\brel="(?:stylesheet|preconnect|preload|modulepreload)"[^>]*?\bhref="((?:https?:)?//[^"]+)"'
                    r'|url\((?:\'|")?((?:https?:)?//[^)]+)')


def inventory(site):
    """{name: address in the site}"""
    data = (site / "objects.inv").read_bytes()
    found = {}
    for line in zlib.decompress(data.split(b"zlib.\n", 1)[1]).decode().splitlines():
        name, *_, uri, _ = line.split(" ")
        found[name] = uri[:-1] + name if uri.endswith("$") else uri
    return found


def problems(site) -> list:
    """What is wrong, a line each."""
    site, found = pathlib.Path(site), []
    pages = {path.relative_to(site).as_posix(): path.read_text() for path in sorted(site.rglob("*.html"))}
    anchors = {page: {html.unescape(name) for name in re.findall(r'\sid="([^"]+)"', text)} for page, text in pages.items()}
    names = inventory(site)
    for module, public in site_names.public().items():
        for name in public:
            address = names.get(f"{module}.{name}")
            if address is None:
                found.append(f"{module}.{name}: no entry in the inventory")
                continue
            page, _, anchor = address.partition("#")
            if urllib.parse.unquote(anchor) not in anchors.get(page, ()):
                found.append(f"{module}.{name}: {address} does not exist")
    for page, text in pages.items():
        found += [f"{page}: loads {''.join(m)}" for m in LOADED.findall(text)]
        if page == "404.html":  # its links begin at the server's root
            continue
        for address in set(re.findall(r'\s(?:href|src)="([^"]*)"', text)):
            path, _, anchor = urllib.parse.unquote(html.unescape(address)).partition("#")
            if re.match(r"[a-z]+:|//", path):
                continue
            target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
            if not (site / target).is_file():
                found.append(f"{page}: {address} leads nowhere")
            elif anchor and target in anchors and anchor not in anchors[target] and not anchor.startswith("__"):
                found.append(f"{page}: {address}: no such anchor")
    searched = {entry["location"].partition("#")[0] for entry in json.loads((site / "search" / "search_index.json").read_text())["docs"]}
    searched |= {"404.html", *(["index.html"] if "" in searched else [])}
    found += [f"{page}: not in the search index" for page in pages if page not in searched]
    return found


if __name__ == "__main__":
    wrong = problems(sys.argv[1])
    print(*wrong, sep="\n", file=sys.stderr)
    print(f"{sys.argv[1]}: {len(wrong)} problems")
    sys.exit(bool(wrong))
