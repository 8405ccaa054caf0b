"""The executable of a call under DNNKERN_CHECK (see `check`)."""
from .check import check_indices, check_outputs
from .unwritten import check_unwritten


class Checked:
    """Wraps the executable of a call with the checks in `checks`.

    `results` are the arrays that it writes, `addresses` those of operands and outputs, in the order of `bound.tensors`.
    """

    def __init__(self, checks, operation, bound, operands, results, addresses):
        self.checks, self.operation, self.bound = checks, operation, bound
        self.operands, self.results, self.addresses = operands, results, addresses

    def execute(self, values, stream):
        """Check the operands, run, check the results."""
        if "values" in self.checks and self.operation.check_values is not None:
            check_indices(self.operation, self.bound, self.operands, stream)
        if "unwritten" in self.checks:
            check_unwritten(self, values, stream)
        else:
            self.bound.executable.execute(values, stream)
        if "nan" in self.checks:
            check_outputs(self.bound, self.operands, self.results, stream)
