"""Graphs on the processor: random ones, by the algorithms that are chosen there, which take far less time than in the simulator."""
import pytest
from test_graph_random import Random, check


@pytest.mark.parametrize("seed", range(1000, 1160))
def test_random_graphs(seed):
    made = Random(seed)
    check(made, made.graph)
