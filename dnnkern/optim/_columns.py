"""The arrays of a parameter as kernels take them: six columns, of which some are missing, and the numbers of a rule."""
from dataclasses import dataclass

from ..device import device_function, f32, f64
from ..host.launch import Argument
from ._problem import SINGLES
from ._rule import NUMBERS, STATES, rule_of, unprepared

COLUMNS = 3 + STATES
"""Parameter, gradient, the states in the rule's order, master weights."""


@dataclass(frozen=True)
class Kind:
    """What one parameter's update is compiled for: rule, flags, and the dtypes of its columns, None where there is none."""
    op: str
    flags: tuple
    dtypes: tuple
    scaled: bool

    @property
    def compute(self):
        return "float64" if "float64" in self.dtypes else "float32"

    @property
    def scalar(self):
        return {"float32": f32, "float64": f64}[self.compute]

    @property
    def rule(self):
        return rule_of(self.op)

    def prepare(self):
        """``prepare(numbers, step)``: the kernel's eight numbers as those of the rule, by name and in the type of this kind."""
        T, named, COUNT = self.scalar, self.rule.named, len(self.rule.named._fields)
        finish = self.rule.prepare(T) if self.counted else unprepared

        @device_function
        def prepare(numbers, step):
            n0, n1, n2, n3, n4, n5, n6, n7 = numbers
            n = T(n0), T(n1), T(n2), T(n3), T(n4), T(n5), T(n6), T(n7)
            return finish(named(*n[:COUNT]), T(step))
        return prepare

    @property
    def counted(self):
        """Whether the number of the step is on the device."""
        return "counted" in self.flags

    def update(self):
        """The rule's device function."""
        given = tuple(name for name, dtype in zip(self.rule.states, self.dtypes[2:]) if dtype is not None)
        rule = self.rule.make(given, self.flags, self.scalar)
        if "maximize" not in self.flags:
            return rule

        @device_function
        def climb(p, g, a, b, c, n):
            return rule(p, -g, a, b, c, n)
        return climb


def columns_of(problem, k):
    """(name of the operand, tensor) of each column of parameter k, None where there is none."""
    names = [name for name, _ in problem.lists]
    found = []
    for name in ("params", "grads", *problem.rule.states, *(None,) * (STATES - len(problem.rule.states)), "master"):
        found.append((f"{name}{k}", dict(problem.lists)[name][k]) if name in names else None)
    return tuple(found)


def kind_of_columns(problem, columns):
    """The `Kind` of a parameter with these columns."""
    return Kind(problem.op, problem.flags, tuple(c and c[1].dtype for c in columns), problem.grad_scale is not None)


def missing():
    """The kernel parameter of an array that there is none of."""
    return Argument("uint64", 0)


def number_arguments(problem):
    """Kernel parameters grad_scale, found_inf, step, and the numbers of the rule; those that are missing are null, and 0."""
    singles = [missing() if getattr(problem, name) is None else Argument("float32*", name) for name in SINGLES]
    numbers = [Argument(problem.scalar_type, name) for name in problem.rule.numbers]
    return (*singles, *numbers, *[Argument(problem.scalar_type, 0.0)] * (NUMBERS - len(numbers)))
