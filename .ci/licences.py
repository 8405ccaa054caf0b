"""The licences of all packages that dnnkern brings, as a table in Markdown:

    python .ci/licences.py [EXTRA ...]      as they are installed here, those of extras too

Fails if a package has a licence that is not allowed. What is not installed here, such as an extra's packages, is left out.
"""
import importlib.metadata
import re
import sys

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# By SPDX, or as packages without an SPDX expression write them.
ALLOWED = {"0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CNRI-Python",
           "ISC", "MIT", "MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Unicode-3.0", "Unlicense", "Zlib",
           "3-Clause BSD License", "Apache 2.0", "Apache 2.0 License", "Apache License 2.0", "Apache Software License", "BSD",
           "BSD License", "ISC License ISCL", "MIT License", "Mozilla Public License 2.0 MPL 2.0", "Python Software Foundation License"}
# The CUDA toolkit's wheels: NVIDIA's terms let programs use and redistribute the libraries, and nothing of them is in a file of ours.
TOOLKIT = re.compile(r"nvidia-.*|cuda-toolkit|cuda-bindings")
TOOLKIT_LICENCES = {"", "LicenseRef-NVIDIA-Proprietary", "LicenseRef-NVIDIA-SOFTWARE-LICENSE", "Other/Proprietary License",
                    "NVIDIA Proprietary Software"}
# Packages whose metadata have no licence, and what their sources say.
KNOWN = {"namex": "Apache-2.0"}


def installed(extras=(), name="dnnkern"):
    """{package: its metadata} of everything that a package and its extras require, itself left out."""
    found, waiting, done = {}, [(name, frozenset(extras))], set()
    while waiting:
        each, extras = waiting.pop()
        if (each, extras) in done:
            continue
        done.add((each, extras))
        try:
            distribution = importlib.metadata.distribution(each)
        except importlib.metadata.PackageNotFoundError:
            continue
        if each != name:
            found[each] = distribution.metadata
        for required in map(Requirement, distribution.requires or ()):
            if not required.marker or any(required.marker.evaluate({"extra": extra}) for extra in extras or {""}):
                waiting.append((canonicalize_name(required.name), frozenset(required.extras)))
    return dict(sorted(found.items()))


def licence(name, metadata) -> str:
    """An SPDX expression, else what its classifiers name, else the first line of its text."""
    classified = [text.rsplit(" :: ", 1)[1] for text in metadata.get_all("Classifier") or () if text.startswith("License ::")]
    return (metadata.get("License-Expression") or " AND ".join(text for text in classified if text != "OSI Approved")
            or (metadata.get("License") or "").strip().split("\n")[0] or KNOWN.get(name, ""))


def allowed(name, text) -> bool:
    """Whether each licence of an expression is, of alternatives too."""
    if TOOLKIT.fullmatch(name) and text in TOOLKIT_LICENCES:
        return True
    return all(part in ALLOWED for part in re.split(" AND | OR ", re.sub("[()]", "", text)))


def main(arguments):
    found = {name: (metadata["Version"], licence(name, metadata)) for name, metadata in installed(arguments).items()}
    lines = [f"| {name} | {version} | {text} |" for name, (version, text) in found.items()]
    print("| package | version | licence |", "|---|---|---|", *lines, sep="\n")
    bad = [f"{name}: {text or 'no licence'}: not among those that are allowed" for name, (_, text) in found.items()
           if not allowed(name, text)]
    print(*bad, sep="\n", end="\n" * bool(bad), file=sys.stderr)
    return 1 if bad or not found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
