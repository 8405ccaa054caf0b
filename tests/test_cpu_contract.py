"""The contract on the processor: every fourth of the rows that are drawn for a GPU, with its larger problems; with --full all of them."""
import contract
import pytest
import sample


def pytest_generate_tests(metafunc):
    if "pair" in metafunc.fixturenames:
        rows = [row for op in sample.OPS for row in sample.rows(op)[::1 if metafunc.config.getoption("--full") else 4]]
        metafunc.parametrize("pair", [pytest.param(row, id=f"{row.op}-{row.algo}-{row.case}-{k}") for k, row in enumerate(rows)])


def test_contract(pair):
    """Once, as exact integers or as rounded values: repeating is the simulator's and the GPU's."""
    contract.check(*pair.resolve(), only=pair.only, again=False)
