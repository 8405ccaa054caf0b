"""The list of planted bugs fits the sources: `make planted` can run every one."""
import planted
import pytest


@pytest.mark.parametrize("bug", planted.BUGS, ids=lambda bug: bug.path.removeprefix("dnnkern/"))
def test_a_bug_can_be_planted(bug):
    compile(bug.applied(), bug.path, "exec")


def test_every_family_has_one():
    from dnnkern import dispatch
    assert set(dispatch.families()) <= {bug.path.split("/")[1] for bug in planted.BUGS}
    assert len(planted.BUGS) >= 30
