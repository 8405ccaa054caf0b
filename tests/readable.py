"""How much a reader of a kernel has to hold in mind, counted in the sources of a checkout.

    python tests/readable.py [FOLDER] [--list KIND]

casts           `i32 u32 i64 u64` of one argument, outside the simulator
subscripts      constants above 2 in kernels and device functions: what is x[7]?
captured        names that a kernel or a device function takes from the functions around it; the most of any
files           of its family with device code that a kernel is made of: those of all functions that it names, and that these name; of an
                algorithm's several kernels, such as the gradients and the sum before them, each is counted by itself; the most of any
private         imports of another family's private modules
lines           of the longest module
"""
import argparse
import ast
import collections
import functools
import pathlib
import symtable
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CASTS = ("i32", "u32", "i64", "u64")
KERNELS, DECORATORS = ("jit",), ("jit", "device_function")
SHARED = ("device", "host", "engine", "demo")  # folders that are no families


def is_device_code(node, decorators=DECORATORS):
    """Whether a function is a kernel or a device function."""
    if not isinstance(node, ast.FunctionDef):
        return False
    names = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
    return any(getattr(d, "id", getattr(d, "attr", None)) in decorators for d in names)


class Checkout:
    """The sources of a package.

    Parameters
    ----------
    root : Path
        The folder that holds it.
    """

    def __init__(self, root):
        self.root = root
        self.trees = {p.relative_to(root): ast.parse(p.read_text()) for p in sorted((root / "dnnkern").rglob("*.py"))
                      if p.relative_to(root).parts[1:3] != ("device", "sim")}

    def device_code(self, tree):
        """The outermost kernels and device functions of a module."""
        found, left = [], [tree]
        while left:
            node = left.pop()
            for child in ast.iter_child_nodes(node):
                if is_device_code(child):
                    found.append(child)
                else:
                    left.append(child)
        return found

    def casts(self):
        """{file: how many}."""
        return collections.Counter({path: sum(
            isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id in CASTS and len(n.args) == 1 for n in ast.walk(tree))
            for path, tree in self.trees.items()})

    def subscripts(self):
        """{file: how many}."""
        return collections.Counter({path: sum(
            isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Constant) and isinstance(n.slice.value, int) and n.slice.value > 2
            for function in self.device_code(tree) for n in ast.walk(function)) for path, tree in self.trees.items()})

    def captured(self):
        """{file:function: how many}."""
        found = collections.Counter()

        def look(table, names, path):
            for child in table.get_children():
                if child.get_type() == "function" and (child.get_name(), child.get_lineno()) in names:
                    found[f"{path}:{child.get_name()}"] = len(child.get_frees())
                else:
                    look(child, names, path)
        for path, tree in self.trees.items():
            functions = self.device_code(tree)
            names = {(f.name, line) for f in functions for line in (f.lineno, *(d.lineno for d in f.decorator_list))}
            if names:
                look(symtable.symtable((self.root / path).read_text(), str(path), "exec"), names, path)
        return found

    def imports(self, path):
        """(name, name there or None for a module, file) of what a module imports from the package's others."""
        package = path.parts[:-1]
        for node in ast.walk(self.trees[path]):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = [*package[:len(package) - node.level + 1], *(node.module.split(".") if node.module else ())]
                for alias in node.names:
                    module, own = self.file([*base, alias.name]), alias.asname or alias.name
                    yield (own, None, module) if module else (own, alias.name, self.file(base))

    def file(self, parts):
        """The file of a module, None where there is none."""
        path = pathlib.Path(*parts)
        return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p in self.trees), None)

    def private(self):
        """{file: how many}."""
        found = collections.Counter()
        for path in self.trees:
            family = path.parts[1]
            if len(path.parts) < 3 or family in SHARED:
                continue
            for _, _, other in self.imports(path):
                if other and len(other.parts) > 2 and other.parts[1] not in (family, *SHARED) and any(
                        part.startswith("_") and part != "__init__.py" for part in other.parts[2:]):
                    found[path] += 1
        return found

    def files(self):
        """{kernel's file:name: how many}."""
        return collections.Counter({
            f"{path}:{kernel.name}": len({where for where, node in self.reached(path, top) if self.device_code(ast.Module([node], []))})
            for path, tree in self.trees.items() if len(path.parts) > 2 and path.parts[1] not in SHARED for top in tree.body
            for kernel in self.device_code(ast.Module([top], [])) if is_device_code(kernel, KERNELS)})

    def reached(self, path, top):
        """(file, definition) of the family that a definition names, and that those name in turn: functions and classes of modules, and
        methods, which are found by their names alone."""
        found, left = set(), [(path, top)]
        while left:
            pair = left.pop()
            if pair not in found:
                found.add(pair)
                left += self.mentioned(*pair)
        return found

    @functools.cache
    def mentioned(self, path, top):
        """(file, definition) of what a definition names."""
        (_, imported), methods, found = self.scope(path), self.methods(path.parts[:2]), set()
        for node in ast.walk(top):
            if isinstance(node, ast.Name):
                found.update(self.definitions(path, node.id))
            elif isinstance(node, ast.Attribute):
                module, name = imported.get(node.value.id, (None, "")) if isinstance(node.value, ast.Name) else (None, "")
                found.update(self.definitions(module, node.attr) if module and name is None else methods[node.attr])
        return [pair for pair in found if pair[0].parts[:2] == path.parts[:2]]

    @functools.cache
    def definitions(self, path, name, most=4):
        """[(file, definition)] of a name of a module, which may have it from others."""
        own, imported = self.scope(path)
        if name in own:
            return [(path, own[name])]
        file, there = imported.get(name, (None, None))
        return self.definitions(file, there, most - 1) if file and there and most else []

    @functools.cache
    def scope(self, path):
        """Of a module {name: definition} and {name: (file, name there or None for a module)} of what it imports."""
        own = {node.name: node for node in self.trees[path].body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        return own, {name: (file, there) for name, there, file in self.imports(path)}

    @functools.cache
    def methods(self, family):
        """{name: [(file, method)]} of a family's classes."""
        found = collections.defaultdict(list)
        for path, tree in self.trees.items():
            if path.parts[:2] == family:
                for node in tree.body:
                    for method in node.body if isinstance(node, ast.ClassDef) else ():
                        if isinstance(method, ast.FunctionDef):
                            found[method.name].append((path, method))
        return found

    def lines(self):
        """{file: how many}."""
        return collections.Counter({path: len((self.root / path).read_text().splitlines()) for path in self.trees})


TOTALS = {"casts": sum, "subscripts": sum, "captured": max, "files": max, "private": sum, "lines": max}


def main():
    parser = argparse.ArgumentParser(description="What a reader of a kernel has to hold in mind.")
    parser.add_argument("folder", nargs="?", default=ROOT, type=pathlib.Path)
    parser.add_argument("--list", choices=TOTALS, help="where")
    words = parser.parse_args()
    checkout = Checkout(words.folder.resolve())
    if words.list:
        print("\n".join(f"{n:6d} {where}" for where, n in getattr(checkout, words.list)().most_common() if n))
    else:
        for kind, total in TOTALS.items():
            print(f"{kind:12}{total(getattr(checkout, kind)().values()):7d}")


if __name__ == "__main__":
    sys.exit(main())
