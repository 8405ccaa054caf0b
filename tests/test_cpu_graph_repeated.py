"""Calls of a graph that are like earlier ones: what is launched follows the buffers, and whatever changed is looked at again."""
import pytest

torch = pytest.importorskip("torch")

from cached import Seen, pretended_gpu  # noqa: E402

import dnnkern.graph as cudnn  # noqa: E402
from bench.cached import calls_of  # noqa: E402
from dnnkern.graph import _repeated  # noqa: E402
from dnnkern.graph._errors import WorkspaceTooSmall  # noqa: E402

T = cudnn.data_type
BY_PACK, BY_ADDRESSES = 25, 17  # calls of Python


@pytest.fixture(name="seen")
def seen_fixture(monkeypatch):
    with pretended_gpu():
        yield Seen(monkeypatch)


class Program:
    """y = relu(x + b), of 8x16, once built; with `workspace` x is summed over its rows in another kernel first."""

    def __init__(self, with_workspace=False):
        self.graph = cudnn.pygraph(io_data_type=T.FLOAT, intermediate_data_type=T.FLOAT, compute_data_type=T.FLOAT,
                                   is_override_shape_enabled=True)
        self.x = self.graph.tensor(dim=[1, 8, 16], stride=[128, 16, 1], name="x")
        self.b = self.graph.tensor(dim=[1, 8, 16], stride=[128, 16, 1], name="b")
        x = self.x
        if with_workspace:
            x = self.graph.reduction(x, cudnn.reduction_mode.ADD).set_dim([1, 1, 16]).set_stride([16, 16, 1])
        self.y = self.graph.relu(self.graph.add(x, self.b))
        self.y.set_output(True).set_name("y")
        self.graph.build([cudnn.heur_mode.A])
        self.workspace = torch.empty(self.graph.get_workspace_size(), dtype=torch.uint8)

    def pack(self, x, b, y):
        return {self.x: x, self.b: b, self.y: y}

    def __call__(self, *arrays):
        self.graph.execute(self.pack(*arrays), self.workspace)

    def with_shapes(self, *arrays):
        """The same with the arrays' own shapes, which are (1, rows, 16)."""
        return lambda pack=self.pack(*arrays), uids=[t.get_uid() for t in self.pack(*arrays)]: self.graph.execute(
            pack, self.workspace, override_uids=uids, override_shapes=[a.shape for a in arrays],
            override_strides=[a.stride() for a in arrays])


def three():
    return [torch.zeros(8, 16) for _ in range(3)]


def addresses(arrays):
    return sorted(a.data_ptr() for a in arrays)


def test_later_calls_are_short():
    with pretended_gpu():
        program, arrays = Program(), three()
        pack = program.pack(*arrays)
        pointers = [array.data_ptr() for array in arrays]
        for call, most in ((lambda: program.graph.execute(pack, None), BY_PACK),
                           (lambda: program.graph._execute_with_ptrs(pointers, None), BY_ADDRESSES)):
            call()
            assert calls_of(call) <= most


def test_later_calls_with_other_shapes_are_short():
    with pretended_gpu():
        call = Program().with_shapes(*(torch.zeros(1, 12, 16) for _ in range(3)))
        call()
        assert calls_of(call) <= BY_PACK + 7, "7 of which make the lists"


def test_what_is_launched_follows_the_shapes(seen):
    """By turns: of each shape the call is recognised, and arrays that are too small for theirs are refused."""
    program, launched = Program(), len(seen.values)
    some = {rows: [torch.zeros(1, rows, 16) for _ in range(3)] for rows in (8, 12, 5)}
    for rows in (8, 12, 8, 5, 12, 12):
        program.with_shapes(*some[rows])()
        assert sorted(seen.addresses(3)) == addresses(some[rows])
    program(*some[8])
    assert sorted(seen.addresses(3)) == addresses(some[8]) and len(seen.values) == launched + 7
    small = program.pack(*some[5])
    with pytest.raises(ValueError, match="its buffer has"):
        program.graph.execute(small, None, None, [t.get_uid() for t in small], [(1, 12, 16)] * 3, [(192, 16, 1)] * 3)
    assert len(seen.values) == launched + 7


def test_what_is_launched_follows_the_buffers(seen):
    program, arrays, others = Program(), three(), three()
    program(*arrays)
    for some in (arrays, others, others, arrays, others):
        program(*some)
        assert sorted(seen.addresses(3)) == addresses(some)
    names = {"x": arrays[0], program.b.get_uid(): arrays[1], program.y: arrays[2]}
    program.graph.execute(names, None)
    assert sorted(seen.addresses(3)) == addresses(arrays)


def test_by_addresses(seen):
    program, arrays = Program(), three()
    uids = program.graph._get_variant_pack_uids_sorted()
    pack = {program.x.get_uid(): arrays[0], program.b.get_uid(): arrays[1], program.y.get_uid(): arrays[2]}
    pointers = [pack[uid].data_ptr() for uid in uids]
    program.graph._execute_with_ptrs(pointers, None)
    assert sorted(seen.addresses(3)) == addresses(arrays)
    for wrong in (pointers[:2], [*pointers, pointers[0]], [pointers[0] + 1, *pointers[1:]], [0, *pointers[1:]]):
        with pytest.raises(ValueError):
            program.graph._execute_with_ptrs(wrong, None)


def test_a_workspace_is_part_of_it(seen):
    program, arrays = Program(with_workspace=True), three()
    for _ in range(3):
        program(*arrays)
        assert program.workspace.data_ptr() in seen.values[-1]
    program.workspace = torch.empty_like(program.workspace)
    program(*arrays)
    assert program.workspace.data_ptr() in seen.values[-1]
    for wrong in (None, program.workspace[:-1]):
        with pytest.raises(WorkspaceTooSmall):
            program.graph.execute(program.pack(*arrays), wrong)


@pytest.mark.parametrize("change", ["fewer bytes", "missing", "misaligned", "overlap", "meta", "none"])
def test_what_changed_is_refused(seen, change):
    program, arrays = Program(), three()
    program(*arrays)
    program(*arrays)
    x, b, y = arrays
    space = torch.zeros(300)
    wrong = {"fewer bytes": (x[:7], b, y), "misaligned": (space[1:129].view(8, 16), b, y), "none": (None, b, y),
             "overlap": (space[4:132].view(8, 16), b, space[:128].view(8, 16)), "meta": (x.to("meta"), b, y), "missing": (x, b, y)}[change]
    pack = program.pack(*wrong)
    if change == "missing":
        del pack[program.b]
    launched = len(seen.values)
    if change == "overlap":  # goes through a copy, with a workspace of its own
        with pytest.raises(WorkspaceTooSmall):
            program.graph.execute(pack, None)
    else:
        with pytest.raises(ValueError):
            program.graph.execute(pack, None)
    assert len(seen.values) == launched
    program(*arrays)
    assert sorted(seen.addresses(3)) == addresses(arrays)


def test_other_tensors_with_enough_bytes(seen):
    program = Program()
    program(*three())
    x, b, y = (torch.zeros(130, dtype=torch.int32) for _ in range(3))
    for _ in range(3):
        program(x, b, y)
        assert sorted(seen.addresses(3)) == addresses((x, b, y))


def test_addresses_that_are_remembered_are_bounded(seen, monkeypatch):
    monkeypatch.setattr(_repeated, "_REMEMBERED", 4)
    program, kept = Program(), []
    for _ in range(10):
        kept.append(three())
        program(*kept[-1])
        assert sorted(seen.addresses(3)) == addresses(kept[-1])
    (runner,) = program.graph._runners.values()
    assert 0 < len(runner.repeated.known) <= 4


def test_forms_in_turn_are_learned_less_and_less(seen, monkeypatch):
    made, make_guard = [], _repeated.make_guard
    monkeypatch.setattr(_repeated, "make_guard", lambda tensors: made.append(0) or make_guard(tensors))
    program, first, second = Program(), three(), [torch.zeros(2, 64) for _ in range(3)]
    for _ in range(40):
        program(*first)
        program(*second)
    assert len(made) < 10
