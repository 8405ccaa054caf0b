"""What all step functions share: their front end, and the part of their documentation that is the same."""
from ..host.lists import ListOperation
from ._problem import SINGLES, make_step


def make_operation(rule):
    """The front end of a rule's step function."""
    def problem(lists, singles, *flags):
        return make_step(rule.op, lists, singles, flags)
    lists = ("params", "grads", *rule.states, "master")
    return ListOperation(rule.op, lists=lists, written={name for name in lists if name != "grads"}, singles=SINGLES, scalars=rule.numbers,
                         problem=problem)


def missing(function, needed, **lists):
    """TypeError where one of the first `needed` lists is None."""
    for name, some in lists.items():
        if some is None and needed > 0:
            raise TypeError(f"{function}: {name}: got NoneType; expected a list of arrays")
        needed -= 1
