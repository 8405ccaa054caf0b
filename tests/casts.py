"""Casts of numbers in kernels that say nothing: found by typing the kernels of `machine_code`'s list, removed from the text.

    python tests/casts.py observe FILE [--only REGEX] [--jobs N] [--arch sm_90a,sm_80]    # what each cast is given
    python tests/casts.py list FILE                                                       # those that may go; exits with 1 if there are any
    python tests/casts.py remove FILE                                                     # take them out of the sources

A cast may go if every operation keeps its type without it: its argument has the type already, is a literal that takes the type of the
operand beside it, or is widened beside a wider operand. The machine code is then the same. A line with the comment "wraps" keeps its
casts: kernels of Numba's own jit, whose integers are exact in the simulator, call it. Needs Python 3.11, which knows columns.
"""
import argparse
import ast
import collections
import contextlib
import json
import multiprocessing
import os
import pathlib
import re
import sys

import machine_code
import readable

ROOT = machine_code.ROOT
CASTS = (*readable.CASTS, "f32", "f64")


# ---- what casts are given

@contextlib.contextmanager
def watch(seen):
    """Within, inference adds what it finds to `seen`: {(file, line, column): {use}}.

    A use is (type of the cast, of its argument, the operation that it is an operand of, that one's operands as (type, the same without its
    cast, where the cast is)); the last two are None of a cast by itself.
    """
    from numba.cuda import types
    from numba.cuda.core import bytecode, interpreter, ir, typeinfer

    from dnnkern.device import _numba_typing as typing

    plain_dispatch, plain_unify = interpreter.Interpreter._dispatch, typeinfer.TypeInferer.unify

    def dispatch(self, inst, kws):
        if not hasattr(self, "positions"):
            self.positions = list(self.func_id.code.co_positions())
        line, _, column, _ = self.positions[(inst.offset - bytecode._FIXED_OFFSET) // 2]
        self.loc = ir.Loc(self.loc.filename, line or self.loc.line, column)
        return plain_dispatch(self, inst, kws)

    def shown(t):
        return f"literal {t.literal_value}" if isinstance(t, types.IntegerLiteral) else str(t)

    def unify(self, *args, **kws):
        result = plain_unify(self, *args, **kws)
        if typing._typed_now:
            note(self)
        return result

    def note(infer):
        def type_of(name):
            variable = infer.typevars[getattr(name, "name", name)]
            return variable.getone() if variable.defined else None

        casts = {}  # variable -> (type, argument's, where)
        for c in infer.constraints.constraints:
            if isinstance(c, typeinfer.CallConstraint) and len(c.args) == 1 and isinstance(c.func, str) and isinstance(
                    type_of(c.func), types.NumberClass):
                where = os.path.relpath(c.loc.filename, ROOT), c.loc.line, c.loc.col
                casts[c.target] = shown(type_of(c.target)), shown(type_of(c.args[0].name)), where
                seen[where].add((*casts[c.target][:2], None, None))

        def cast_of(name):
            for _ in range(9):
                if name in casts:
                    return casts[name]
                try:
                    definition = infer.func_ir._definitions[name]
                except KeyError:
                    return None
                if len(definition) != 1 or not isinstance(definition[0], ir.Var):
                    return None
                name = definition[0].name
            return None

        for c in infer.constraints.constraints:
            if not isinstance(c, typeinfer.CallConstraint):
                continue
            function = c.func if callable(c.func) else getattr(type_of(c.func), "typing_key", None)
            if isinstance(function, collections.abc.Hashable) and function in typing._RULES:
                operands = []
                for a in c.args:
                    cast = cast_of(a.name)
                    operands.append((shown(type_of(a.name)), cast and cast[1], cast and cast[2]))
                for _, _, where in operands:
                    if where:
                        cast = next(o for o in operands if o[2] == where)
                        seen[where].add((cast[0], cast[1], function.__name__, tuple(operands)))

    interpreter.Interpreter._dispatch, typeinfer.TypeInferer.unify = dispatch, unify
    try:
        yield
    finally:
        interpreter.Interpreter._dispatch, typeinfer.TypeInferer.unify = plain_dispatch, plain_unify


def observed(op, name, archs):
    """{where: uses} of the casts that the kernels of an algorithm have, and errors of those that do not compile.

    Device functions that another algorithm's kernels have had compiled in this process are not seen again.
    """
    import dnnkern
    from dnnkern.device import _numba_compile
    from dnnkern.host.compile import cache_key
    seen, errors, done = collections.defaultdict(set), {}, set()
    algorithm = next(a for a in dnnkern.dispatch.algorithms(op) if a.name == name)
    with watch(seen):
        for row, arch, launch in machine_code.planned(op, algorithm, archs):
            try:
                if isinstance(launch, Exception):
                    raise launch
                key = cache_key(launch.kernel, launch.signature, arch)
                if key not in done:
                    _numba_compile.lower(launch.kernel, launch.signature, arch)
                done.add(key)
            except Exception as error:
                errors[row] = f"{type(error).__name__}: {error}"[-600:]
    return dict(seen), errors


def _task(arguments):
    return observed(*arguments)


def observe(path, only="", jobs=None, archs=machine_code.ARCHS):
    machine_code.use(ROOT)
    work = [(op, name, archs) for op, name in machine_code.every_algorithm() if re.search(only, f"{op}-{name}")]
    seen, failed = collections.defaultdict(set), {}
    with multiprocessing.get_context("spawn").Pool(jobs or os.cpu_count(), machine_code.use, (ROOT,), maxtasksperchild=8) as pool:
        for found, errors in machine_code.progress(pool.imap_unordered(_task, work), len(work)):
            failed |= errors
            for where, uses in found.items():
                seen[where].update(uses)
        pool.close()
        pool.join()
    path.write_text(json.dumps({"seen": [[where, sorted(uses, key=repr)] for where, uses in sorted(seen.items())], "failed": failed}))
    print(f"{path}: {len(seen)} casts seen; {len(failed)} launches failed")
    for row, error in list(failed.items())[:10]:
        print(" ", row, error)


# ---- which may go

def _type(text):
    from dnnkern.device import _numba_typing as typing
    if text.startswith("literal "):
        return typing.WeakInt(int(text[8:]))
    if text == "float literal":
        return typing.WEAK
    return getattr(typing.types, text, None)


def keeps_type(use, gone):
    """Whether an operation keeps its type without the casts at `gone`."""
    from numba.cuda.core.errors import TypingError

    from dnnkern.device import _numba_typing as typing
    _, _, function, operands = use
    before = [_type(t) for t, _, _ in operands]
    after = [_type(without if where in gone else t) for t, without, where in operands]
    if None in before or None in after:
        return False
    key = next(f for f in typing._RULES if f.__name__ == function)
    try:
        was, now = typing._common(key, before), typing._common(key, after)
        if was is None or was != now or typing._RULES[key](key, before).return_type != typing._RULES[key](key, after).return_type:
            return False
    except TypingError:
        return False
    for (t, without, where), old, new in zip(operands, before, after):
        if where in gone and not loses_nothing(new, old):
            return False
    return True


def loses_nothing(t, cast):
    """Whether all values of a type are kept by a cast."""
    from dnnkern.device import _numba_typing as typing
    types = typing.types
    if t == cast or t == typing.WEAK and isinstance(cast, types.Float):
        return True
    if isinstance(t, types.IntegerLiteral):
        return isinstance(cast, types.Float) and abs(t.literal_value) < 1 << 24 or (
            isinstance(cast, types.Integer) and cast.minval <= t.literal_value <= cast.maxval)
    return isinstance(t, types.Integer) and isinstance(cast, types.Integer) and cast.minval <= t.minval and t.maxval <= cast.maxval


def is_operand(node, parent):
    """Whether a cast is an operand of an operation in the text, not only through a variable."""
    return isinstance(parent, (ast.BinOp, ast.Compare)) or isinstance(parent, ast.AugAssign) and parent.value is node or (
        isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and parent.func.id in ("min", "max") and node in parent.args)


def is_unpacked(node, parent, field):
    """Whether a tuple is only a way to assign several variables."""
    return isinstance(parent, ast.Assign) and field == "value" and isinstance(parent.targets[0], ast.Tuple) and len(
        parent.targets[0].elts) == len(node.elts) and not any(isinstance(t, ast.Starred) for t in parent.targets[0].elts)


def parents(tree):
    return {child: (node, field) for node in ast.walk(tree) for field, value in ast.iter_fields(node)
            for child in (value if isinstance(value, list) else (value,)) if isinstance(child, ast.AST)}


def casts(tree):
    """The casts of one argument, in the order of the text."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CASTS
             and len(node.args) == 1 and not node.keywords and not isinstance(node.args[0], ast.Starred)]
    return sorted(found, key=lambda node: (node.lineno, node.col_offset))


def removable(file, seen):
    """(nodes that may go, why the others stay: a Counter) of a file."""
    text = (ROOT / file).read_text()
    tree, lines = ast.parse(text), text.splitlines()
    above, gone, why = parents(tree), {}, collections.Counter()
    for node in reversed(casts(tree)):  # of i64(n) * i64(k) the first stays
        where = (file, node.lineno, node.col_offset)
        uses = seen.get(where)
        parent = above[node][0]
        name = node.func.id
        if not uses or "# wraps" in lines[node.lineno - 1]:
            why["wraps" if uses else "not compiled"] += 1
            continue
        given = {(t, without) for t, without, _, _ in uses}
        # what is an operand of nothing counts only where it is by itself
        if all(t == without for t, without in given):
            gone[where] = node
        elif name == "i32" and all(t == without or without.startswith("literal ") and loses_nothing(_type(without), _type(t))
                                   for t, without in given) and (not isinstance(parent, ast.Tuple) or is_unpacked(parent, *above[parent])):
            gone[where] = node  # int32 is what a literal is by itself
        elif isinstance(parent, ast.Subscript) and name == "i64" and all(without == "int32" for _, without in given):
            gone[where] = node  # an index is widened in the address
        elif any("bool" in without for _, without in given):
            why["of a bool"] += 1
        elif is_operand(node, parent):
            operations = [use for use in uses if use[2]]
            # casts beside this one that go too
            if operations and all(keeps_type(use, {where} | (gone.keys() & {o[2] for o in use[3]})) for use in operations):
                gone[where] = node
            else:
                why["{}({})".format(name, "|".join(sorted({without if "literal " not in without else "literal"
                                                          for _, without in given})))] += 1
        else:
            why["{}({}) by itself".format(name, "|".join(sorted({without if "literal " not in without else "literal"
                                                                for _, without in given})))] += 1
    return list(gone.values()), why


# ---- the text

_STRENGTH = {ast.BitOr: 1, ast.BitXor: 2, ast.BitAnd: 3, ast.LShift: 4, ast.RShift: 4, ast.Add: 5, ast.Sub: 5, ast.Mult: 6, ast.FloorDiv: 6,
             ast.Mod: 6, ast.Div: 6, ast.MatMult: 6, ast.Pow: 7}


def needs_parentheses(parent, field, node):
    """Whether what a cast held needs parentheses in its place; bits of sums keep theirs."""
    if not isinstance(node, (ast.BinOp, ast.BoolOp, ast.Compare, ast.UnaryOp, ast.IfExp, ast.Lambda)):
        return False
    if isinstance(parent, ast.BinOp):
        if isinstance(node, ast.UnaryOp):
            return field == "right" or isinstance(node.op, ast.Not)
        if not isinstance(node, ast.BinOp):
            return True
        outer, inner = _STRENGTH[type(parent.op)], _STRENGTH[type(node.op)]
        if outer <= 4 or inner <= 4:
            return type(parent.op) is not type(node.op) or field == "right"
        return inner < outer or field == "right" and inner == outer
    if isinstance(parent, (ast.UnaryOp, ast.Starred)) or isinstance(parent, (ast.Attribute, ast.Subscript)) and field == "value":
        return True
    if isinstance(parent, ast.Compare):
        return not isinstance(node, (ast.BinOp, ast.UnaryOp)) or isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    if isinstance(parent, (ast.BoolOp, ast.IfExp)):
        return isinstance(node, (ast.BoolOp, ast.IfExp))
    return False


def without(text, nodes):
    """The text without these casts; those over several lines stay."""
    tree = ast.parse(text)
    above, places = parents(tree), {(n.lineno, n.col_offset) for n in nodes}
    gone = [n for n in casts(tree) if (n.lineno, n.col_offset) in places and n.lineno == n.end_lineno]
    going = set(map(id, gone))
    lines, edits = [line.encode() for line in text.split("\n")], []
    for node in gone:
        parent, field = above[node]
        while id(parent) in going:
            parent, field = above[parent]
        argument = node.args[0]
        if id(argument) in going:
            left = right = b""
        else:
            needed = needs_parentheses(parent, field, argument)
            left, right = (b"(", b")") if needed else (b"", b"")
        # the argument's own parentheses go with the cast's
        edits.append((node.lineno, node.col_offset, argument.col_offset, left))
        edits.append((node.lineno, argument.end_col_offset, node.end_col_offset, right))
    for line, start, end, new in sorted(edits, reverse=True):
        lines[line - 1] = lines[line - 1][:start] + new + lines[line - 1][end:]
    out = b"\n".join(lines).decode()
    same(tree, ast.parse(out), going)
    return out


def same(old, new, going):
    """Raise if a text is another program than the tree without some of its casts."""
    class Without(ast.NodeTransformer):
        def visit_Call(self, node):
            gone = id(node) in going
            self.generic_visit(node)
            return node.args[0] if gone else node
    if ast.dump(Without().visit(old)) != ast.dump(new):
        raise AssertionError("the text is another program")


def count():
    """Casts of integers, outside the simulator."""
    return sum(readable.Checkout(ROOT).casts().values())


def sources():
    return sorted(map(str, readable.Checkout(ROOT).trees))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("observe", "list", "remove"))
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--under", default="dnnkern", help="of files whose path begins so")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--arch", default=",".join(machine_code.ARCHS))
    words = parser.parse_args()
    if words.command == "observe":
        observe(words.file, words.only, words.jobs, words.arch.split(","))
        return 0
    machine_code.use(ROOT)
    seen = {tuple(where): [(*use[:3], use[3] and tuple((o[0], o[1], o[2] and tuple(o[2])) for o in use[3])) for use in uses]
            for where, uses in json.loads(words.file.read_text())["seen"]}
    print(f"{count()} casts of integers before")
    total, found = collections.Counter(), 0
    for file in sources():
        if not file.startswith(words.under):
            continue
        nodes, why = removable(file, seen)
        total += why
        found += len(nodes)
        if nodes and words.command == "list":
            print(f"{file}: {len(nodes)}: lines {' '.join(map(str, sorted({n.lineno for n in nodes})))}"[:200])
        elif nodes:
            path = ROOT / file
            path.write_text(without(path.read_text(), nodes))
    print(f"{found} may go; the others stay:", *(f"\n  {n:6d} {reason}" for reason, n in total.most_common()))
    if words.command == "remove":
        print(f"{count()} casts of integers after")
    return words.command == "list" and found > 0


if __name__ == "__main__":
    sys.exit(main())
