"""Check what a release consists of:

    python .ci/distribution.py DIRECTORY    which has one wheel and one sdist

The wheel has each file of dnnkern/ that git knows, byte by byte, its metadata, and nothing else; the sdist that, and what builds it.
`build` makes the wheel from the sdist, which so builds the wheel that the checkout would.
"""
import configparser
import email
import hashlib
import pathlib
import subprocess
import sys
import tarfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
WHEEL_INFO = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt"}
SDIST_FILES = {"CHANGELOG.md", "CITATION.cff", "LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}
EGG_INFO = {f"dnnkern.egg-info/{name}" for name in ("PKG-INFO", "SOURCES.txt", "dependency_links.txt", "entry_points.txt", "requires.txt",
                                                    "top_level.txt")}


def package():
    """{path: digest} of dnnkern's files that git knows or would add."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "dnnkern"], cwd=ROOT,
                            capture_output=True, text=True, check=True).stdout
    return {name: digest((ROOT / name).read_bytes()) for name in sorted(set(listed.split("\0"))) if name and (ROOT / name).is_file()}


def digest(data):
    return hashlib.sha256(data).hexdigest()


def wheel_files(path):
    with zipfile.ZipFile(path) as file:
        return {name: digest(file.read(name)) for name in file.namelist() if not name.endswith("/")}


def sdist_files(path):
    """Without the first folder, which is named as the file is."""
    with tarfile.open(path) as file:
        return {m.name.split("/", 1)[1]: digest(file.extractfile(m).read()) for m in file if m.isfile()}


def differences(what, found, expected, others):
    """Lines about files that lack, differ, or should not be there; of `others` only the names count."""
    lines = [f"{what}: lacks {name}" for name in sorted((expected.keys() | others) - found.keys())]
    lines += [f"{what}: should not have {name}" for name in sorted(found.keys() - expected.keys() - others)]
    changed = sorted(name for name in expected.keys() & found.keys() if found[name] != expected[name])
    return lines + [f"{what}: {name} is not the checkout's" for name in changed]


def metadata_faults(path, name):
    """Of a wheel's metadata, beside setup.cfg."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    with zipfile.ZipFile(path) as file:
        found = email.message_from_bytes(file.read(f"{name}.dist-info/METADATA"))
        tags = email.message_from_bytes(file.read(f"{name}.dist-info/WHEEL")).get_all("Tag")
    expected = {"Version": name.split("-")[1], "License-Expression": config["metadata"]["license_expression"],
                "Requires-Python": config["options"]["python_requires"]}
    lines = [f"wheel: {key} is {found[key]}, not {value}" for key, value in expected.items() if found[key] != value]
    extras = set(config["options.extras_require"])
    if set(found.get_all("Provides-Extra")) != extras:
        lines.append(f"wheel: other extras than setup.cfg: {sorted(extras ^ set(found.get_all('Provides-Extra')))}")
    return lines + [f"wheel: tags are {tags}"] * (tags != ["py3-none-any"])


def faults(folder):
    """Lines about what is wrong with a folder's wheel and sdist."""
    wheels, sdists = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    if len(wheels) != 1 or len(sdists) != 1:
        return [f"{folder}: {len(wheels)} wheels and {len(sdists)} sdists; expected one of each"]
    name, files = "-".join(wheels[0].name.split("-")[:2]), package()
    lines = differences("wheel", wheel_files(wheels[0]), files, {f"{name}.dist-info/{each}" for each in WHEEL_INFO})
    lines += differences("sdist", sdist_files(sdists[0]), files, SDIST_FILES | EGG_INFO)
    if sdists[0].name != f"{name}.tar.gz":
        lines.append(f"{sdists[0].name} is not of {name}")
    return lines + (metadata_faults(wheels[0], name) if f"wheel: lacks {name}.dist-info/METADATA" not in lines else [])


def main(arguments):
    folder = pathlib.Path(arguments[0])
    lines = faults(folder)
    print(*lines or [f"{folder}: wheel and sdist have {len(package())} files of dnnkern, their metadata, and nothing else"], sep="\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
