"""Choices that are kept from one process to the next."""
import dataclasses
import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from representative import device

import dnnkern
from dnnkern import dispatch, find
from dnnkern.algorithm import Note
from dnnkern.answers import Perf
from dnnkern.device import SIMULATED
from dnnkern.host import chosen, manifest, packs, sources

pytestmark = pytest.mark.skipif(not SIMULATED, reason="what is kept and read again needs no GPU")
HOPPER = device("sm_90a")


def product(m=512, dtype="float16"):
    return dnnkern.problem("matmul", a=(f"{m}x512", dtype), b=("512x512", dtype))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A cache of its own, whose choices are kept as on a GPU."""
    for module in (chosen, dispatch, find):
        monkeypatch.setattr(module, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(chosen, "KEEPS", True)
    monkeypatch.setattr(manifest, "stamp", lambda: "a" * 64)
    another_process()
    yield tmp_path
    another_process()


def another_process():
    """What this one remembers is forgotten."""
    dispatch.forget()
    dispatch.choices_changed()
    chosen.forget()


@pytest.fixture
def asked(monkeypatch):
    """The algorithms that are estimated to be compared."""
    names, every = [], dispatch.cheapest
    monkeypatch.setattr(dispatch, "cheapest", lambda algorithms, *rest, **more: names.append([a.name for a in algorithms])
                        or every(algorithms, *rest, **more))
    return names


def get(problem=None, target=HOPPER, **more):
    return dispatch.get_algorithm("matmul", problem or product(), device=target, **more)


def files(folder):
    return sorted((folder / "chosen").rglob("*.txt"))


def test_the_second_process_asks_nothing(folder, asked):
    first = get()
    assert len(asked) == 1 and [path.name for path in files(folder)] == ["matmul.txt"]
    another_process()
    assert get() == first and str(get()) == str(first) and len(asked) == 1
    assert dispatch.explain("matmul", product(), device=HOPPER)[0].why == "predicted"


def test_every_operation_reads_back_what_it_chose(folder, asked):
    """Configurations come back as they were, whatever they are."""
    import bench.get
    for op in ("conv_fwd", "conv_bwd_filter", "rnn_fwd", "softmax_fwd", "adam_step", "transpose", "sdpa_fwd", "reduce"):
        some = bench.get.problems(op)[1][::6]
        before = [dispatch.get_algorithm(op, problem, device=HOPPER) for problem in some]
        another_process()
        asked.clear()
        again = [dispatch.get_algorithm(op, problem, device=HOPPER) for problem in bench.get.problems(op)[1][::6]]
        assert again == before and [a.config for a in again] == [a.config for a in before] and not asked


@pytest.mark.parametrize("other", [
    {"problem": product(640)}, {"problem": product(dtype="float32")}, {"target": dataclasses.replace(HOPPER, sms=78)},
    {"target": dataclasses.replace(HOPPER, bandwidth=1e12)}, {"allow": Note.NONDETERMINISTIC}, {"exclude": Note.TENSOR_CORE},
    {"workspace_limit": 0}, {"prefer": "persistent"}], ids=["shape", "dtype", "multiprocessors", "bandwidth", "allow", "exclude",
                                                            "workspace", "prefer"])
def test_another_question_has_another_answer(asked, other):
    get()
    another_process()
    get(**other)
    assert len(asked) == 2


def test_sources_that_have_changed_choose_again(folder, asked, monkeypatch):
    get()
    get(product(640))
    monkeypatch.setattr(manifest, "stamp", lambda: "b" * 64)
    another_process()
    get()
    assert len(asked) == 3
    (path,) = files(folder)
    assert path.read_bytes().startswith(b"b" * 64) and len(path.read_bytes().split(b"\n")) == 2  # and the file begins anew


def test_while_files_change_nothing_is_kept(folder, asked, monkeypatch):
    monkeypatch.setattr(manifest, "stamp", lambda: None)
    get()
    assert not files(folder)


def test_a_users_algorithm_competes(folder, asked):
    """Neither is a choice without it taken, nor one with it kept, in any operation: others embed its products."""
    get()
    another_process()
    naive = dispatch.named("matmul", "naive")
    mine = dispatch.register(dataclasses.replace(naive, name="mine", estimate=lambda *_: 1e-12))
    try:
        assert get() is mine and get(product(640)) is mine
    finally:
        dispatch.unregister(mine)
    another_process()
    count = len(asked)
    assert get().name != "mine" and len(asked) == count        # the choice of before
    assert get(product(640)).name != "mine" and len(asked) == count + 1


def test_an_algorithm_that_was_removed_is_not_chosen(asked):
    first = get()
    library = dispatch.named("matmul", first.name)
    another_process()
    dispatch.unregister(library)
    try:
        assert get().name != first.name
    finally:
        dispatch.register(library)
    another_process()
    assert get() == first


def test_a_measurement_wins(folder, asked):
    first = get()
    other = next(a.name for a in dispatch.algorithms("matmul") if a.name != first.name and a.refusal(product(), HOPPER) is None
                 and a.configs is None)
    known = tuple(dispatch.algorithms("matmul"))
    find.store("matmul", product(), HOPPER, known, [Perf(other, "ok", 1.0, 0, True, "exact", Note.NONE)])
    another_process()
    assert get().name == other and dispatch.explain("matmul", product(), device=HOPPER)[0].why == "measured"
    another_process()
    assert get().name == other and dispatch.explain("matmul", product(), device=HOPPER)[0].why == "measured" and len(asked) == 1


# ---- files that are not as they were written

def damaged(path, change):
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize("change", [
    lambda data: b"", lambda data: data[:70], lambda data: data[:-1], lambda data: data[:len(data) // 2], lambda data: b"\0" * len(data),
    lambda data: data.replace(b"wgmma", b"naive"), lambda data: data[1:], lambda data: data + b"\n\n\xff\xfe garbage",
    lambda data: data * 2, lambda data: data.replace(b"\t", b" "), lambda data: data[:80] + bytes([data[80] ^ 1]) + data[81:]],
    ids=range(11))
def test_a_damaged_file_costs_time_alone(folder, asked, change, recwarn):
    first = get()
    (path,) = files(folder)
    damaged(path, change)
    another_process()
    assert get() == first
    another_process()
    count = len(asked)
    assert get() == first and len(asked) == count and not recwarn.list  # and was kept again


def test_every_flipped_byte(folder):
    first = get()
    (path,) = files(folder)
    data = path.read_bytes()
    for k in range(0, len(data), 7):
        path.write_bytes(data[:k] + bytes([data[k] ^ 0x04]) + data[k + 1:])
        another_process()
        assert get() == first


def test_a_line_that_is_right_and_cannot_be(folder, asked, monkeypatch):
    """As of other sources with the same stamp: an algorithm that does not exist, cannot solve it, or has no such configuration."""
    first = get()
    settings = Note.NONE, None, Note.NONE, None, None
    for name, config, source in (("nonsense", "", ""), ("gemv", "", ""), ("wgmma", "7x7", ""), ("naive", "128x128", ""),
                                 ("nonsense", "", "dnnkern/matmul/absent.py"), ("nonsense", "", "dnnkern/matmul/matmul_naive.py")):
        chosen.keep("matmul", HOPPER, chosen.question(product(), *settings), name, "predicted", config, source)
        another_process()
        count = len(asked)
        assert get() == first and len(asked) == count + 1, name


def test_what_cannot_be_written_or_read_is_chosen_anew(folder, asked, recwarn):
    (folder / "chosen").write_text("a file where a folder should be")
    first = get()
    another_process()
    assert get() == first and len(asked) == 2
    (folder / "chosen").unlink()
    get(product(640))
    (path,) = files(folder)
    path.unlink()
    path.mkdir()
    another_process()
    assert get() == first and len(asked) == 4 and not recwarn.list


def test_a_full_disk(folder, asked, monkeypatch, recwarn):
    def full(*_):
        raise OSError(28, "No space left on device")
    get()
    monkeypatch.setattr(os, "write", full)
    first = get(product(640))
    monkeypatch.undo()
    assert first.name and not recwarn.list


def test_a_file_does_not_grow_without_end(folder, monkeypatch):
    monkeypatch.setattr(chosen, "MOST", 2000)
    for m in range(64, 64 * 40, 64):
        get(product(m))
    (path,) = files(folder)
    assert path.stat().st_size < 2200
    another_process()
    assert get(product(64 * 39)).name


def _keep_some(path, which):
    chosen.cache_dir, manifest.stamp, chosen.KEEPS = (lambda: path), (lambda: "a" * 64), True
    for k in range(200):
        chosen.keep("matmul", HOPPER, f"{which * 1000 + k:032d}", "naive", "predicted", "", "here")


def test_two_processes_at_once(folder):
    """Their lines lie side by side; only what both wrote while the file began may be lost."""
    context = multiprocessing.get_context("fork")
    _keep_some(folder, 9)
    workers = [context.Process(target=_keep_some, args=(folder, which)) for which in (1, 2, 3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    chosen.forget()
    for which in (9, 1, 2, 3):
        for k in range(200):
            assert chosen.recall("matmul", HOPPER, f"{which * 1000 + k:032d}") == ("naive", "predicted", "", "here")


_PROCESS = """
import sys
import numpy as np, dnnkern
from dnnkern import dispatch
asked = []
every = dispatch.cheapest
dispatch.cheapest = lambda *a, **k: asked.append(1) or every(*a, **k)
problem = dnnkern.problem("softmax_fwd", x=("64x1000", "float32"))
chosen = dispatch.get_algorithm("softmax_fwd", problem)
folders = {m.split(".")[2] for m in sys.modules if m.startswith("dnnkern.softmax.")}
print(chosen.name, len(asked), chosen.source, *sorted(f for f in folders if not f.startswith("_")))
"""


def test_the_second_process_imports_one_algorithm(tmp_path):
    root = Path(dnnkern.__file__).parents[1]
    environment = {k: v for k, v in os.environ.items() if k not in ("NUMBA_ENABLE_CUDASIM", "DNNKERN_PREFER")}
    environment.update(DNNKERN_CACHE_DIR=str(tmp_path), DNNKERN_DEVICE="cpu", PYTHONPATH=str(root))
    outputs = [subprocess.run([sys.executable, "-c", _PROCESS], capture_output=True, text=True, check=True, env=environment)
               for _ in range(2)]
    (name, first, source, *every), (again, second, same, *few) = (done.stdout.split() for done in outputs)
    if not (tmp_path / "manifest").is_dir():
        pytest.skip("a file of the package changed this moment")
    assert (name, source) == (again, same) and (first, second) == ("1", "0")
    assert len(every) > 2 and len(few) == 1 and few[0] in source


# ---- the choices of a pack

@pytest.fixture
def packed(folder, monkeypatch):
    """A pack of the choices that `get` makes, imported; the cache has no others."""
    made = folder.parent / "made.pack"
    lines = [dispatch.line_for_packs(problem, HOPPER) for problem in (product(), product(640))]
    packs.write(made, {}, {chosen.pack_key("matmul", HOPPER): b"\n".join(lines)}, archs=["sm_90a"], versions={}, sources="these")
    shutil.rmtree(folder / "chosen")
    monkeypatch.setattr(packs, "cache_dir", lambda: folder)
    packs.install(made, "these")
    another_process()
    yield next(folder.rglob("*.pack"))
    packs.forget()


def test_a_packs_choice_is_taken(folder, packed, asked):
    able = [a for a in dispatch.algorithms("matmul") if dispatch.refusal(a, product(), HOPPER) is None]
    (expected, _), *_ = dispatch.cheapest(able, product(), HOPPER, None, choosing=True)
    asked.clear()
    assert get() == expected and get(product(640)) and not asked and not files(folder)
    assert get(product(768)) and len(asked) == 1, "which the pack has not"


@pytest.mark.parametrize("changes, taken", [({"memory": 80 << 30, "bandwidth": 3.35e12, "name": "NVIDIA H100", "index": 1}, True),
                                            ({"sms": 114}, False), ({"arch": "sm_90"}, False)])
def test_it_is_for_devices_of_the_kind(packed, asked, changes, taken):
    get(target=dataclasses.replace(HOPPER, **changes))
    assert len(asked) == (not taken)


def test_it_is_of_the_same_sources_and_of_calls_without_wishes(packed, asked, monkeypatch):
    get(workspace_limit=0)
    assert len(asked) == 1
    shutil.rmtree(packed.parent.parent / "chosen")
    monkeypatch.setattr(sources, "package", lambda: "others")
    another_process()
    get()
    assert len(asked) == 2


def test_the_users_own_choice_comes_first(packed, asked):
    settings = Note.NONE, None, Note.NONE, None, None
    chosen.keep("matmul", HOPPER, chosen.question(product(), *settings), "naive", "measured", "", "dnnkern/matmul/matmul_naive.py")
    another_process()
    assert get().name == "naive" and get(product(640)).name != "naive" and not asked


def test_a_packs_broken_choices_are_made_anew(packed, asked):
    first = get()
    whole = packed.read_bytes()
    packed.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    packs.forget()
    another_process()
    with pytest.warns(RuntimeWarning, match="is refused: entry .* is not what was packed"):
        assert get() == first
    assert len(asked) == 1


@pytest.mark.parametrize("content", [b"", b"\n\n", b"nonsense", bytes(range(256)) * 3])
def test_a_pack_with_other_words(asked, monkeypatch, content):
    """Whose hashes are right."""
    monkeypatch.setattr(packs, "get", lambda key: content)
    assert get() and len(asked) == 1
