"""Programs of pointwise functions in an anchor's kernel: what a problem knows of their operands, and the kernel parameter with these.

A problem with `program` has its operands in `extras`, tensors in the order of `Program.operands`: those that are read are the operands
"x0" and on of its operation, those that are stored the outputs "y1" and on, with the results of its reductions after them. A number that
is given at each launch is a scalar of its name, its tensor has no dimensions; an index is in no memory, its tensor's strides say what it
counts.
"""
import functools
from dataclasses import fields, replace
from typing import NamedTuple

from ..device.program_operands import MEMBERS, has_strides, loaded_type, operands_class
from ..host.dtypes import STORAGE
from ..host.launch import Argument


class Steps(NamedTuple):
    """Element strides of an operand along the rows, the columns, and each dimension of the batch of an anchor."""
    row: int
    column: int
    batch: tuple = ()

    def transposed(self):
        """The same where rows are the columns."""
        return Steps(self.column, self.row, self.batch)


class Reduced(NamedTuple):
    """A reduction of a program's value: the output's name, mode, over what, dtype, whether each matrix of a batch has results of its own,
    and the `Steps` of these; `rows`: (size, step) of the dimensions that rows are, where these are several."""
    name: str
    mode: str
    over: str
    dtype: str
    by_matrix: bool
    steps: Steps
    rows: tuple = ()

    def transposed(self):
        """The same where rows are the columns."""
        from ..device.program import TRANSPOSED
        return self._replace(over=TRANSPOSED.get(self.over, self.over), steps=self.steps.transposed())


@functools.cache
def operand_names(program):
    """The name of each of a program's operands, and of its reductions' results after them; none without one."""
    if program is None:
        return ()
    inputs = program.inputs
    return tuple(f"x{k}" if k < inputs else f"y{k - inputs + 1}" for k in range(len(program.operands) + len(program.reductions)))


def _named(program, accesses, stored=False):
    """Names of the operands that are read, or those that are stored, by these accesses."""
    names = list(zip(operand_names(program), program.operands))
    return tuple(name for name, (_, access) in (names[program.inputs:] if stored else names[:program.inputs]) if access in accesses)


IN_MEMORY = tuple(access for access, members in MEMBERS.items() if "pointer" in members)


@functools.cache
def names_beside(program):
    """(operands, outputs, scalars) that an operation has more for a program."""
    if program is None:
        return ((),) * 3
    reduced = operand_names(program)[len(program.operands):]
    return _named(program, IN_MEMORY), _named(program, IN_MEMORY, True) + reduced, _named(program, ("value",))


class WithProgram:
    """What a problem with the fields `program` and `extras` is to its operation; a mixin. `accumulators`: how many values the kernel gives
    to its program."""
    accumulators = 1

    @functools.cached_property
    def extra_names(self):
        """(operands, outputs, scalars) that its operation has more for the program."""
        return () if self.program is None else names_beside(self.program)

    @functools.cached_property
    def scalar_types(self):
        """{scalar: type} of the program's."""
        p = self.program
        return {} if p is None else {name: loaded_type(dtype) for name, (dtype, access) in zip(operand_names(p), p.operands)
                                     if access == "value"}

    @functools.cached_property
    def extra_tensors(self):
        """{name: tensor} of the program's operands that are in memory."""
        if self.program is None:
            return {}
        accesses = [by for _, by in self.program.operands] + ["matrix"] * len(self.program.reductions)
        return {name: t for name, t, by in zip(operand_names(self.program), self.extras, accesses) if by in IN_MEMORY}

    @property
    def side_outputs(self):
        """The tensors that the program stores, and its reductions' results."""
        return () if self.program is None else self.extras[self.program.inputs:]

    def __getattr__(self, name):
        if name[:1] in ("x", "y", "a", "b") and name[1:].isdecimal() and name in self.extra_tensors:
            return self.extra_tensors[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def of_tensors(self, tensors, **more):
        """The same problem with other tensors, {name: tensor}: those of a call's arrays; `more` are fields."""
        own = {f.name for f in fields(self)}
        extras = tuple(tensors.get(name, t) for name, t in zip(operand_names(self.program), self.extras))
        return replace(self, extras=extras, **more, **{name: t for name, t in tensors.items() if name in own})

    @property
    def reductions(self):
        """The program's; none without one."""
        return () if self.program is None else self.program.reductions

    def reduced(self, rows, columns, steps):
        """The `Reduced` of each of the program's reductions, where `rows` and `columns` are axes of the result and `steps` are those of all
        extras."""
        count = len(self.reductions)
        return tuple(Reduced(name, mode, over, dtype, any(n != 1 for d, n in enumerate(t.shape) if d not in (*rows, *columns)), of)
                     for name, (_, mode, over, dtype), t, of in zip(operand_names(self.program)[-count:], self.reductions,
                                                                    self.extras[-count:], steps[-count:])) if count else ()

    def check_reductions(self, op, shape, rows, columns, compute):
        """Raise unless the last extras are the results of the program's reductions of a result of this shape, whose axes `rows` and
        `columns` are the matrices', and which is computed in the type `compute`."""
        p = self.program
        for (value, _, over, dtype), name, t in zip(self.reductions, operand_names(p)[len(p.operands):], self.extras[len(p.operands):]):
            if p.types(compute)[value] not in ("float32", "float64"):
                raise TypeError(f"{op}: {name} is reduced of {p.types(compute)[value]}; expected floats")
            if (p.reduced_type(compute) == "float64") != (dtype == "float64"):
                raise TypeError(f"{op}: {name} is {dtype}, and computed in {p.reduced_type(compute)}; expected float64 of float64 alone")
            goes = {"rows": rows, "columns": columns, "all": (*rows, *columns)}[over]
            kept = tuple(1 if d in goes else n for d, n in enumerate(shape))
            whole = tuple(n if d in (*rows, *columns) else 1 for d, n in enumerate(kept))
            if t.shape not in (kept, whole):
                raise ValueError(f"{op}: {name} has shape {t.shape}; expected {kept}" + f" or {whole}" * (whole != kept))
            if 0 in shape:
                raise ValueError(f"{op}: {name} is of a result of shape {shape}, which has no elements")
            t.check_addresses(op, name)

    def check_program(self, op, shape, columns=()):
        """Raise unless the extras are what the program reads and stores beside a result of this shape, whose axes `columns` its rows lie
        along."""
        p = self.program
        if p is None:
            if self.extras:
                raise ValueError(f"{op}: {len(self.extras)} extras without a program")
            return
        from ..device.program import Program
        if not isinstance(p, Program):
            raise TypeError(f"{op}: program: got {type(p).__name__}; expected a Program")
        if p.row_steps and not columns:
            raise ValueError(f"{op}: program {p} reduces rows of a result of shape {shape}; expected none but of a product")
        if p.accumulators != self.accumulators:
            raise ValueError(f"{op}: a program of {p.accumulators} accumulators; expected {self.accumulators}")
        if len(self.extras) != len(operand_names(p)):
            raise ValueError(f"{op}: {len(self.extras)} extras; the program has {len(operand_names(p))} operands")
        wanted = (*(dtype for dtype, _ in p.operands), *(dtype for *_, dtype in p.reductions))
        of_row = tuple(1 if d in columns else n for d, n in enumerate(shape))
        for k, (name, dtype, t) in enumerate(zip(operand_names(p), wanted, self.extras)):
            if t.dtype != dtype:
                raise TypeError(f"{op}: {name} is {t.dtype}; the program has {dtype}")
            if k >= len(p.operands):
                continue  # see `check_reductions`
            if k >= p.inputs:
                by_row = p.operands[k][1] == "row"
                if t.shape != (of_row if by_row else shape):
                    whole = f"one element of each row, {of_row}" if by_row else f"the result's, {shape}"
                    raise ValueError(f"{op}: {name} has shape {t.shape}; expected {whole}")
                t.check_addresses(op, name)
            elif len(t.shape) > len(shape) or any(n not in (1, m) for n, m in zip(t.shape[::-1], shape[::-1])):
                raise ValueError(f"{op}: {name} has shape {t.shape}, which does not broadcast to the result's {shape}")


class WithPrologues(WithProgram):
    """What a problem with the fields `prologue_a` and `prologue_b` as well is to its operation, see `engine.prologues`; a mixin. A problem
    without one of them, or without a scale, has None as the class's attribute."""
    prologue_b = scale_a = scale_b = None

    @functools.cached_property
    def prologues(self):
        """{"a" or "b": Prologue} of the operands that have one."""
        return {of: p for of in ("a", "b") if (p := getattr(self, f"prologue_{of}")) is not None}

    @functools.cached_property
    def dtype_a(self):
        """What products take of a."""
        return self.a.dtype if self.prologue_a is None else self.prologue_a.dtype

    @functools.cached_property
    def dtype_b(self):
        """What products take of b."""
        return self.b.dtype if self.prologue_b is None else self.prologue_b.dtype

    def _made(self, accesses):
        """{name: (dtype, tensor)} of the prologues' operands that are read by these accesses."""
        return {name: (dtype, t) for of, p in self.prologues.items()
                for name, (dtype, by), t in zip(p.names(of), p.program.operands, p.extras) if by in accesses}

    @functools.cached_property
    def extra_names(self):
        """As `WithProgram`'s, the prologues' after the program's."""
        operands, outputs, scalars = WithProgram.extra_names.func(self) or ((), (), ())
        return (*operands, *self._made(IN_MEMORY)), outputs, (*scalars, *self._made(("value",)))

    @functools.cached_property
    def scalar_types(self):
        """{scalar: type} of the program's and the prologues'."""
        return {**WithProgram.scalar_types.func(self), **{name: loaded_type(dtype) for name, (dtype, _) in self._made(("value",)).items()}}

    @functools.cached_property
    def extra_tensors(self):
        """{name: tensor} of all their operands that are in memory."""
        return {**WithProgram.extra_tensors.func(self), **{name: t for name, (_, t) in self._made(IN_MEMORY).items()}}

    def of_tensors(self, tensors, **more):
        """The same problem with other tensors, {name: tensor}: those of a call's arrays."""
        made = {f"prologue_{of}": replace(p, extras=tuple(tensors.get(name, t) for name, t in zip(p.names(of), p.extras)))
                for of, p in self.prologues.items()}
        return super().of_tensors(tensors, **made, **more)

    def operand(self, of):
        """Operand "a" or "b" as products take it: with its own address and strides, and the prologue's dtype."""
        t = getattr(self, of)
        return t if of not in self.prologues else replace(t, dtype=self.prologues[of].dtype)

    def check_prologues(self, op):
        """Raise unless the prologues are some."""
        for of, p in self.prologues.items():
            if not hasattr(p, "check"):
                raise TypeError(f"{op}: prologue_{of}: got {type(p).__name__}; expected a Prologue")
            t = getattr(self, of)
            if getattr(self, f"scale_{of}") is not None:
                raise ValueError(f"{op}: scale_{of} beside prologue_{of}; the program has to scale")
            strides = [self._along(of, broadcast_strides(e, t.shape)) if e.ndim <= t.ndim else ((0, 0), ()) for e in p.extras]
            p.check(op, of, t, [Steps(*matrix, batch) for matrix, batch in strides])

    def _along(self, of, strides):
        """((along the operand's rows, columns), along its batch dimensions) of strides along its dimensions."""
        t, transposed = getattr(self, of), getattr(self, f"transpose_{of}")
        if t.ndim == 1:
            return ((0, strides[0]) if of == "a" else (strides[0], 0)), ()
        matrix = strides[-2:][::-1] if transposed else strides[-2:]
        return tuple(matrix), tuple(strides[:-2])

    @functools.cached_property
    def _prologue_strides(self):
        """{"a" or "b": [((rows, columns), batch dimensions of y)]} of their operands."""
        rank = len(self.batch_shape)

        def along(of, t):
            matrix, batch = self._along(of, broadcast_strides(t, getattr(self, of).shape))
            return matrix, (0,) * (rank - len(batch)) + batch
        return {of: [along(of, t) for t in p.extras] for of, p in self.prologues.items()}

    @functools.cached_property
    def prologue_batches(self):
        """Strides of all prologues' operands along each batch dimension of y, a's first."""
        return tuple(batch for of in self._prologue_strides for _, batch in self._prologue_strides[of])

    def prologue_steps(self, of):
        """(`Steps` of each of its prologue's operands, their strides along the dimensions of `batch`)."""
        before = len(self.extras) + (len(self.prologue_a.extras) if of == "b" and self.prologue_a is not None else 0)
        steps = [Steps(*matrix) for matrix, _ in self._prologue_strides[of]]
        return steps, [tuple(d.extras[before + k] for d in self.batch) for k in range(len(steps))]


class WithRowProgram(WithProgram):
    """The same of an operation on rows of x, for each element of the result of x's shape; a mixin. `joint_form` is the `RowForm` of the
    arrays and, after these, of the program's operands."""

    def check_row_program(self, row):
        """Raise unless the extras are what the program reads and stores; `row` are the axes of a row."""
        object.__setattr__(self, "extras", tuple(self.extras))
        self.check_program(self.op, self.x.shape)
        for name, (_, access), s in zip(operand_names(self.program) if self.program else (), getattr(self.program, "operands", ()),
                                        self.extra_strides):
            of_rows, of_columns = (max((abs(v) for d, v in enumerate(s) if (d in row) == inside), default=0) for inside in (False, True))
            check_access(self.op, name, access, Steps(of_rows, of_columns))

    @property
    def outputs(self):
        return (*super().outputs, *self.side_outputs)

    @property
    def bytes(self):
        bits = _named(self.program, ("bits",)) + _named(self.program, ("bits",), True) if self.program else ()
        return super().bytes + sum(-(-t.nbytes // 8) if name in bits else t.nbytes for name, t in self.extra_tensors.items())

    @functools.cached_property
    def extra_strides(self):
        """Element strides of the program's operands along x's dimensions."""
        return tuple(broadcast_strides(t, self.x.shape) for t in self.extras)

    @property
    def wide(self):
        """Whether offsets in the program's operands need 64 bits."""
        return reaches_far(self.extra_strides, self.x.shape)

    @property
    def row_refusal(self):
        """Why `operands_argument` cannot be made, or None."""
        dims = self.joint_form.outer
        if self.program is not None and len(dims) > 1:
            return f"rows along {len(dims)} dimensions beside a program; expected one that all its operands step evenly through"
        return None

    def _extra_steps(self, form, strides_of):
        count = len(form.row[0].strides)
        return [strides_of(k) for k in range(count - len(self.extras), count)]

    @functools.cached_property
    def row_steps(self):
        """The `Steps` of the program's operands, where the elements of rows step evenly through each; of rows along several dimensions a
        batch has those along these."""
        form = self.joint_form

        def steps_of(k):
            along = tuple(d.strides[k] for d in form.outer)
            return Steps(0, form.row[0].strides[k], along) if len(along) > 1 else Steps(sum(along), form.row[0].strides[k])
        return self._extra_steps(form, steps_of)

    def operands_argument(self):
        """The kernel parameter with the program's operands. Where rows are along several dimensions the kernel moves them along these."""
        form = self.joint_form
        return operands_argument(self, self.row_steps, form.rows, form.length, len(form.outer) if len(form.outer) > 1 else 0)

    def element_arguments(self, form=None):
        """Kernel parameters: the sizes of all dimensions, those of a row last, and the operands, moved by `make_placed` to an element; of
        `joint_form`, or of another form with the operands' strides at its end."""
        form = form or self.joint_form
        dims = form.outer + form.row
        steps = self._extra_steps(form, lambda k: Steps(0, 0, tuple(d.strides[k] for d in dims)))
        sizes = Argument(f"int64x{len(dims)}", tuple(d.size for d in dims)) if self.program else NOTHING
        return sizes, operands_argument(self, steps, 1, 1, len(dims))

    @property
    def element_dims(self):
        """How many those are; 0 without a program."""
        return len(self.joint_form.outer + self.joint_form.row) if self.program else 0


def reaches_far(all_strides, shape):
    """Whether offsets in some array of this shape need 64 bits; `all_strides` are those of each, in elements."""
    return any(sum(abs(s) * (n - 1) for s, n in zip(strides, shape) if n) >= 2 ** 31 for strides in all_strides)


def check_functions(op, name, program, accumulators):
    """Raise unless a field is a program of so many accumulators that stores and reduces nothing."""
    from ..device.program import Program
    if not isinstance(program, Program):
        raise TypeError(f"{op}: {name}: got {type(program).__name__}; expected a Program")
    if program.accumulators != accumulators or program.stores or program.reductions:
        raise ValueError(f"{op}: {name}: a program of {program.accumulators} accumulators, {len(program.stores)} stores and "
                         f"{len(program.reductions)} reductions; expected {accumulators} and none")


def check_access(op, name, access, steps):
    """Raise where an operand varies along what its access does not name."""
    along = {"scalar": (0, 0, 0), "value": (0, 0, 0), "row": (1, 0, 1), "column": (0, 1, 1)}.get(access, (1, 1, 1))
    for what, allowed, varies in zip(("rows", "columns", "the batch"), along, (steps.row, steps.column, any(steps.batch))):
        if varies and not allowed:
            raise ValueError(f"{op}: {name} is read by {access}, and varies along {what}: strides {tuple(steps)}")


def broadcast_strides(t, shape):
    """Element strides of a tensor along a shape that it broadcasts to."""
    return (0,) * (len(shape) - t.ndim) + tuple(0 if n == 1 else s for n, s in zip(t.shape, t.strides))


def numbered_operands(problem, all_steps):
    """{number: (tensor, its strides along rows, columns and the batch)} of a program's operands."""
    return {k: (t, (steps.row, steps.column, *steps.batch)) for k, (t, steps) in enumerate(zip(problem.extras, all_steps))}


def read_operands(problem, parts):
    """The same with "c" and "bias": all that a product's epilogue reads, of its problem and its parts (`engine.roles`)."""
    return {"c": (problem.addend, parts.c_strides + tuple(four[2] for _, four in parts.batch)),
            "bias": (problem.bias, (0, parts.bias_stride)), **numbered_operands(problem, parts.operand_steps)}


def program_argument(parts, dims=0):
    """The kernel parameter with the operands of ``parts.epilogue.program``, where `parts` has `m`, `n` and `operand_steps` as well."""
    return operands_argument(parts.epilogue, parts.operand_steps, parts.m, parts.n, dims) if parts.epilogue.program else NOTHING


def operands_argument(spec, all_steps, rows, columns, dims=0):
    """The kernel parameter with the operands of ``spec.program``, whose `Steps` are given, beside a result of so many rows and columns; one
    without members where there is no program. The kernel moves them along `dims` dimensions of a batch (see `make_placed`)."""
    program = spec.program
    if program is None:
        return NOTHING
    return members_argument(program, operand_names(program), all_steps, spec.wide, dims, (rows, columns))


def members_argument(program, names, all_steps, wide, dims, bounds=(), more=()):
    """The same of operands with these names; `bounds`: the rows and columns, for a program that stores; `more`: members at the end."""
    stride = "int64" if wide else "int32"
    members = [Argument("int32", n) for n in bounds] if program.stores else []
    for name, (dtype, access), steps in zip(names, program.operands, all_steps):
        if access == "value":
            members.append(Argument(loaded_type(dtype), name))
        elif access != "index":
            members.append(Argument(STORAGE[dtype] + "*", name))
        values = {"row": steps[:1], "column": steps[1:2], "matrix": steps[:2], "bits": (*steps[:2], 0),
                  "index": (*steps[:2], 0)}.get(access, ())
        batch = (steps.batch or (0,) * dims) if has_strides(access) else ()
        members += [Argument(stride, v) for v in (*values, *batch)]
    members += more
    kind = operands_class(tuple(a.type for a in members))
    return Argument(kind, kind(*members))


NOTHING = Argument(operands_class(()), operands_class(())())
"""The parameter of kernels without a program."""
