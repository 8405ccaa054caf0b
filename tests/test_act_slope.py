"""The gradient of prelu's slope beside the contract: no elements, special values, which algorithm adds it up."""
import contract
import numpy as np
from labs import array
from test_act import host

import dnnkern
from dnnkern import dispatch
from dnnkern.act._parse import parse_problem


def test_the_gradient_of_a_slope_without_elements():
    none = array(np.ones((0, 4)))
    dx, dslope = dnnkern.activation_bwd(none, none, "prelu", slope=array(np.ones(4)), slope_gradient=True)
    assert host(dx).shape == (0, 4) and host(dslope).tolist() == [0, 0, 0, 0]
    empty = array(np.ones((3, 0)))
    dx, dslope = dnnkern.activation_bwd(empty, empty, "prelu", slope=array(np.ones(0)), slope_gradient=True)
    assert host(dx).shape == (3, 0) and host(dslope).shape == (0,)


def test_nan_and_infinities_in_the_gradient_of_a_slope():
    x, dy = array([[np.nan, 2.0, -1.0], [1.0, np.inf, -np.inf]]), array([[1.0, np.nan, 2.0], [np.inf, 3.0, 1.0]])
    dx, dslope = dnnkern.activation_bwd(dy, x, "prelu", slope=array([0.5, 0.5, 0.5]), slope_gradient=True)
    np.testing.assert_array_equal(host(dslope), [np.nan, 0, -np.inf])
    np.testing.assert_array_equal(host(dx), [[0.5, np.nan, 1.0], [np.inf, 3.0, 0.5]])


def test_the_gradient_of_a_slope_is_added_up_by_the_best_algorithm():
    """The naive one's is naive, so that it proves the others."""
    words, device = "64x256x56x56 bf16 prelu --slope 256x1x1 --slope-gradient", contract.device()
    problem = parse_problem(words.split(), "activation_bwd")
    for algorithm in dispatch.algorithms("activation_bwd"):
        if algorithm.supports(problem) is None:
            bound = algorithm.configured(problem, device)
            names = [launch.kernel.__name__ for launch in bound.build(problem, device, bound.config)]
            assert ("reduce_naive" in names) == (algorithm.name == "naive") and len(names) >= 3, names
            parts = 4 * 64 * 256 * 56 * 56
            assert parts + 1024 <= bound.workspace(problem, device, bound.config) < parts + 2 ** 22
