"""Matrix products: biases of batches against PyTorch, their words, corners of algorithms."""
import contract
import numpy as np
import pytest
from cases.matmul import Matmul
from labs import array, host

import dnnkern
from dnnkern import dispatch
from dnnkern.matmul._parse import FAMILY, parse_problem


@pytest.mark.parametrize("shape", [(3, 5, 1), (3, 1, 6), (1, 1, 6), (6,), (2, 1, 5, 1)])
@pytest.mark.parametrize("with_c", [False, True])
def test_torch_agrees_on_biases_of_batches(shape, with_c):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    batch = (2, 3) if len(shape) == 4 else (3,)
    a, b, bias = rng.standard_normal((*batch, 5, 4)), rng.standard_normal((4, 6)), rng.standard_normal(shape)
    c = rng.standard_normal((*batch, 5, 6)) if with_c else None
    y = dnnkern.matmul(array(a, "float64"), array(b, "float64"), bias=array(bias, "float64"), activation="gelu",
                       **({"c": array(c, "float64"), "beta": -2.0} if with_c else {}))
    z = torch.from_numpy(a) @ torch.from_numpy(b) + torch.from_numpy(bias) + (0 if c is None else -2 * torch.from_numpy(c))
    np.testing.assert_allclose(host(y), torch.nn.functional.gelu(z).numpy(), rtol=1e-11, atol=1e-12)


def test_words_of_biases():
    problem = parse_problem("4x16x24x32 bf16 --bias batch-row".split())
    assert problem.bias.shape == (4, 16, 1) and problem.has_batched_bias and "bias by batch and row" in str(problem)
    assert FAMILY["matmul"][2](dispatch.problem_record(problem)) == problem
    assert parse_problem("4x16x24x32 bf16 --bias batch-column".split()).bias.shape == (4, 1, 24)
    both = parse_problem("4x16x24x32 bf16 --bias batch-column --c".split())
    reasons = {a.name: a.supports(both) for a in dispatch.algorithms("matmul")}
    assert reasons.pop("naive") is None and all("bias for each matrix" in reason for reason in reasons.values()), reasons


@pytest.mark.parametrize("name", ["split_k", "wgmma_split_k"])
def test_ranges_of_every_matrix_of_a_batch(name):
    """The partial sums of a range and of a matrix each have their place."""
    case = Matmul("ranges", 5, 8, 520, "float32" if name == "split_k" else "bfloat16", batch_a=(3,), batch_b=(3,))
    contract.check(next(a for a in dispatch.algorithms("matmul") if a.name == name), case, **contract.ONCE)


def test_a_few_rows_of_bytes_that_are_not_packed():
    """Columns of x are gathered byte by byte; of what is past their ends nothing is read."""
    gemv = next(a for a in dispatch.algorithms("matmul") if a.name == "gemv")
    contract.check(gemv, Matmul("gathered", 3, 40, 68, "int8", ta=True, tb=True))
