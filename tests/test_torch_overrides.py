"""Enabling and disabling, what goes back to PyTorch, and what autograd, vmap, autocast and torch.compile make of overrides."""
import subprocess
import sys
import threading

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from test_torch_table import alone, assert_same, ran  # noqa: E402, F401 (a fixture)
from torch_calls import DEVICE  # noqa: E402

import dnnkern  # noqa: E402
import dnnkern.torch  # noqa: E402
from dnnkern import dispatch, find  # noqa: E402
from dnnkern.device import SIMULATED  # noqa: E402
from dnnkern.torch import _context, _find, _overrides, _tensors  # noqa: E402
from dnnkern.torch._table import selected, table  # noqa: E402
from dnnkern.torch.ops import convolution  # noqa: E402

pytestmark = pytest.mark.sized

A, B = torch.ones(2, 3, device=DEVICE), torch.ones(3, 4, device=DEVICE)


@pytest.fixture(autouse=True)
def quick():
    """The simplest algorithm in the simulator."""
    with dispatch.prefer("naive" if SIMULATED else None):
        yield


def is_ours():
    """Whether a product runs on this library's kernels."""
    torch.mm(A, B)
    return ran() == {"mm"}


# ---- turning on and off

def test_importing_the_package_imports_no_torch():
    code = "import dnnkern, sys; dnnkern.matmul; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_on_and_off():
    assert not is_ours()
    dnnkern.torch.enable("mm")
    assert is_ours()
    dnnkern.torch.enable("mm")
    assert is_ours()
    dnnkern.torch.disable()
    assert not is_ours()
    dnnkern.torch.disable()
    assert not is_ours()


def test_blocks():
    with dnnkern.torch.enabled("mm"):
        assert is_ours()
        with dnnkern.torch.enabled("softmax"):
            assert not is_ours()
        assert is_ours()
        with pytest.raises(ZeroDivisionError), dnnkern.torch.enabled("bmm"):
            1 / 0
        assert is_ours()
    assert not is_ours()


def test_blocks_that_end_out_of_order():
    first, second = dnnkern.torch.enabled("mm"), dnnkern.torch.enabled("softmax")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not is_ours()
    second.__exit__(None, None, None)
    assert not is_ours() and _overrides._library is None
    third = dnnkern.torch.enabled("mm")
    third.__enter__()
    dnnkern.torch.disable()
    assert not is_ours()
    third.__exit__(None, None, None)
    assert not is_ours() and _overrides._library is None


def test_a_block_in_what_is_enabled():
    dnnkern.torch.enable("softmax")
    with dnnkern.torch.enabled("mm"):
        dnnkern.torch.enable("bmm")
        assert is_ours()
    assert not is_ours()
    torch.bmm(A[None], B[None])
    assert ran() == {"bmm"}


def test_threads():
    """Some turn overrides on and off, others compute."""
    failed, stop = [], threading.Event()

    def compute():
        while not stop.is_set():
            if not torch.equal(torch.mm(A, B), torch.full((2, 4), 3.0, device=DEVICE)):
                failed.append("mm")

    def switch():
        for _ in range(30):
            with dnnkern.torch.enabled("product"):
                torch.mm(A, B)
    threads = [threading.Thread(target=f) for f in (compute, compute, switch, switch)]
    for t in threads:
        t.start()
    for t in threads[2:]:
        t.join()
    stop.set()
    for t in threads[:2]:
        t.join()
    assert not failed and _overrides._library is None and ran() == {"mm"} and not is_ours()


def test_what_cannot_be_registered_leaves_nothing(monkeypatch):
    def broken(*_):
        raise RuntimeError("no")
    dnnkern.torch.enable("mm")
    monkeypatch.setattr(_overrides, "_caller", broken)
    with pytest.raises(RuntimeError, match="no"):
        dnnkern.torch.enable("softmax")
    with pytest.raises(RuntimeError, match="no"), dnnkern.torch.enabled("bmm"):
        pass
    assert _overrides._library is None and not is_ours()


def test_an_old_pytorch(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.8.1")
    with pytest.raises(RuntimeError, match="this is PyTorch 2.8.1; expected 2.9 or newer"):
        dnnkern.torch.enable()
    assert _overrides._library is None


# ---- what is selected

def test_selection():
    assert selected("all") == table().keys()
    assert {"mm", "convolution", "_fused_adam_"} <= selected("heavy") < selected("all") and "relu" not in selected("heavy")
    assert selected("mm") == {"mm", "mm.out"} and selected("mm.out") == {"mm.out"}
    assert selected(["norm", "mm"]) == selected("norm,mm") == selected("norm") | selected("mm")
    assert selected("all", exclude="product") == selected("all") - selected("product")


@pytest.mark.parametrize("call, error, text", [
    (lambda: dnnkern.torch.enable("convolutin"), ValueError, "'convolutin', which is no operator .*; did you mean 'convolution'"),
    (lambda: dnnkern.torch.enable("all", exclude=["nothing"]), ValueError, "exclude has 'nothing'"),
    (lambda: dnnkern.torch.enable(7), TypeError, "ops is 7; expected 'heavy', 'all', or names")])
def test_bad_names(call, error, text):
    with pytest.raises(error, match=text):
        call()
    assert _overrides._library is None


# ---- what goes back

def test_what_is_not_ours_goes_back_with_its_reason():
    with dnnkern.torch.enabled("mm"):
        y = torch.mm(A.int().cpu(), B.int().cpu()) if DEVICE == "cpu" else torch.mm(A.to(torch.complex64), B.to(torch.complex64))
    assert y.shape == (2, 4) and y.dtype in (torch.int32, torch.complex64)
    row, = dnnkern.torch.status()
    assert (row.op, row.ours, row.why, row.calls) == ("mm", False, f"dtype {str(y.dtype)[6:]}", 1) and row.seconds > 0


def test_strict():
    with dnnkern.torch.enabled("mm", strict=True), pytest.raises(dnnkern.NotSupported, match="mm: PyTorch's kernel ran: dtype complex64"):
        torch.mm(A.to(torch.complex64), B.to(torch.complex64))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("call", [
    lambda: torch.mm(A, A), lambda: torch.addmm(A, A, B), lambda: F.conv2d(A[None, None], B[None]), lambda: torch.mm(A, B.double()),
    lambda: F.conv2d(A[None, None], torch.ones(1, 2, 2, 2, device=DEVICE)), lambda: F.max_pool2d(A[None], 2, padding=2),
    lambda: F.conv2d(A[None, None], torch.ones(1, 1, 2, 2, device=DEVICE), padding=-1), lambda: F.layer_norm(A, (4,)),
    lambda: torch.mm(A, B, out=torch.empty(2, 4, dtype=torch.int64, device=DEVICE)), lambda: torch.softmax(A, 3),
    lambda: F.conv2d(A[None, None], torch.ones(1, 1, 4, 4, device=DEVICE)), lambda: F.max_pool2d(A[None], 5),
    lambda: F.cross_entropy(A, torch.zeros(2, dtype=torch.int32, device=DEVICE))])
def test_errors_are_pytorchs(call, strict):
    with pytest.raises((RuntimeError, IndexError, ValueError)) as theirs:
        call()
    with dnnkern.torch.enabled("all", strict=strict), pytest.raises(theirs.type) as ours:
        call()
    assert str(ours.value) == str(theirs.value) and not isinstance(ours.value, dnnkern.NotSupported)


@pytest.mark.skipif(DEVICE == "cuda", reason="on a GPU a kernel's assertion ends the program")
def test_an_index_out_of_range_is_pytorchs_error():
    with dnnkern.torch.enabled():
        with pytest.raises(IndexError, match="Target 7 is out of bounds"):
            F.nll_loss(A, torch.tensor([0, 7]))
        with pytest.raises(IndexError, match="index out of range"):
            F.embedding(torch.tensor([0, 7]), A)


@pytest.mark.parametrize("how, why", [
    ({"scale_factor": 1.3}, "the scale 1.3 of 5 pixels to 6"),
    ({"scale_factor": 0.7, "mode": "bilinear"}, "the scale 0.7 of 5 pixels to 3"),
    ({"size": (5, 82)}, "2 pixels to 82: PyTorch rounds positions")])
def test_pixels_that_pytorch_finds_elsewhere(how, why):
    x = torch.arange(10.0, device=DEVICE).reshape(1, 1, 5, 2)
    theirs = F.interpolate(x, **how)
    with dnnkern.torch.enabled("upsampling"):
        assert torch.equal(F.interpolate(x, **how), theirs)
    assert [row.why for row in dnnkern.torch.status()] == [why]


class Tagged(torch.Tensor):
    """A subclass without ways of its own."""


def test_tensors_of_other_kinds():
    """Of subclasses, sparse, quantised, meta, fake: PyTorch's results."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    with dnnkern.torch.enabled("all"):
        y = torch.mm(A.as_subclass(Tagged), B)
        assert type(y) is Tagged and torch.equal(y.as_subclass(torch.Tensor), torch.mm(A, B))
        assert {row.why for row in dnnkern.torch.status() if not row.ours} == {
            "an argument is a test_torch_overrides.Tagged, no plain tensor"}
        assert torch.equal(torch.mm(A.to_sparse(), B), torch.mm(A, B))
        assert torch.mm(A.to("meta"), B.to("meta")).shape == (2, 4)
        with FakeTensorMode() as mode:
            y = torch.mm(mode.from_tensor(A), mode.from_tensor(B))
            assert y.shape == (2, 4) and type(y).__name__ == "FakeTensor"


def test_tensors_resized_to_nothing():
    a = A.clone()
    with dnnkern.torch.enabled("mm"):
        torch.mm(a, B)
        size = a.untyped_storage().nbytes()
        a.untyped_storage().resize_(0)
        a.untyped_storage().resize_(size)
        a.fill_(1)
        assert torch.equal(torch.mm(a, B), torch.full((2, 4), 3.0, device=DEVICE))


def test_nan_and_infinity():
    x = torch.tensor([[float("nan"), 1], [float("inf"), -float("inf")]], device=DEVICE)

    def calls():
        return (F.relu(x), F.max_pool2d(x[None], 2), x @ x, F.softmax(x, 1), x.clamp(0, 2), x.clamp(min=0), x.clamp(max=0),
                torch.maximum(x, x.t()), torch.minimum(x, x.t()), x.exp(), x.sqrt(), x ** 2, x ** 0.7, x.amax(0), x.amin(1), x.argmax(1))
    theirs = calls()
    with dnnkern.torch.enabled("all", strict=True):
        ours = calls()
    for a, b in zip(ours, theirs):
        assert torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())


# ---- PyTorch's switches

def step(transposed=False):
    """A convolution and its gradients."""
    x, w = (torch.ones(s, device=DEVICE, requires_grad=True) for s in ((1, 2, 4, 4), (2, 2, 2, 2)))
    (F.conv_transpose2d if transposed else F.conv2d)(x, w).sum().backward()


@pytest.fixture
def problems_measured(monkeypatch):
    """Problems that are measured, as on a GPU, but among the simplest algorithms only."""
    problems, measure = [], _find._measure

    def record(problem):
        problems.append(problem)
        measure(problem)
    monkeypatch.delenv("DNNKERN_PREFER", raising=False)
    monkeypatch.setattr(_find, "MEASURES", True)
    monkeypatch.setattr(_find, "_measure", record)
    monkeypatch.setattr(_find, "CLOSE", float("inf"))
    monkeypatch.setattr(dispatch, "candidates", lambda op, problem, device, **limits: [
        a.configured(problem, device) for a in dispatch.algorithms(op) if a.name in ("naive", "implicit_gemm") and not a.reason(problem)])
    monkeypatch.setattr(convolution, "_known", {})
    with dispatch.prefer(None):
        yield problems


def test_threads_that_work_for_another_have_its_context(monkeypatch):
    """As autograd's on a GPU, to which PyTorch hands what is stashed; without a reference of its own in 2.11, so it is kept here."""
    found, stashed, nothing = [], lambda: torch._C._get_obj_in_tls(_context._NAME), _context.Holder()
    nothing.pairs = ()
    monkeypatch.setattr(dnnkern, "matmul", lambda a, b, **options: found.append(dispatch.preference()) or a.new_empty(2, 2))
    monkeypatch.delenv("DNNKERN_PREFER", raising=False)

    def work(holder):
        _context._KEPT.extend((holder, holder))
        torch._C._stash_obj_in_tls(_context._NAME, holder)
        torch.mm(torch.ones(2, 2, device=DEVICE), torch.ones(2, 2, device=DEVICE))
    with dnnkern.torch.enabled("mm"):
        with dispatch.prefer("naive"):
            holder = stashed()
            assert _context._KEPT.count(holder) == 2, "one reference is PyTorch's to drop"
            for _ in range(8):
                with dispatch.prefer("naive"):
                    assert stashed() is holder
            run_in_a_thread(work, holder)
            run_in_a_thread(work, nothing)
        run_in_a_thread(work, holder)
    assert found == ["naive", None, None]


def run_in_a_thread(function, *args):
    thread = threading.Thread(target=function, args=args)
    thread.start()
    thread.join()


def test_benchmark_measures_a_new_problem_once(problems_measured):
    with dnnkern.torch.enabled(strict=True):
        step()
        assert not problems_measured
        with torch.backends.cudnn.flags(enabled=True, benchmark=True):
            step()
            assert [p.op for p in problems_measured] == ["conv_fwd", "conv_bwd_data", "conv_bwd_filter"]
            step()
        assert len(problems_measured) == 3
        if not SIMULATED:
            for problem in problems_measured:
                times = dispatch.measured(problem.op, problem)
                assert times.keys() == {"naive", "implicit_gemm"}
                assert dispatch.get_algorithm(problem.op, problem).name == min(times, key=times.get)
            convolution._known.clear()  # as in another process: the database has it
            with torch.backends.cudnn.flags(enabled=True, benchmark=True):
                step()
            assert len(problems_measured) == 3


def test_benchmark_measures_what_may_win(problems_measured, monkeypatch):
    measured, measure = [], find.measure
    monkeypatch.setattr(find, "measure", lambda operation, problem, candidates, *more: measured.append(
        (problem, candidates)) or measure(operation, problem, candidates, *more))
    monkeypatch.setattr(dispatch, "measured", lambda *given: {})
    monkeypatch.setattr(_find, "CLOSE", 1.0)
    with dnnkern.torch.enabled(strict=True), torch.backends.cudnn.flags(enabled=True, benchmark=True):
        step()
    assert len(problems_measured) == 3 and not measured, "one alone needs no measurement"


def test_benchmark_of_transposed_convolutions(problems_measured):
    with dnnkern.torch.enabled(strict=True), torch.backends.cudnn.flags(enabled=True, benchmark=True):
        step(transposed=True)
    assert [p.op for p in problems_measured] == ["conv_bwd_data", "conv_fwd", "conv_bwd_filter"]


def test_benchmark_measures_nothing_where_nothing_is_chosen(problems_measured):
    with dnnkern.torch.enabled(strict=True), torch.backends.cudnn.flags(enabled=True, benchmark=True):
        with dispatch.prefer("naive"):
            step()
        with dnnkern.recording():
            step()
    assert not problems_measured


@pytest.mark.skipif(DEVICE == "cuda", reason="without a GPU")
def test_benchmark_means_nothing_to_the_processor(monkeypatch):
    monkeypatch.setattr(_find, "_measure", lambda *ignored: pytest.fail("measured"))
    monkeypatch.setattr(convolution, "_known", {})
    with dnnkern.torch.enabled(strict=True), torch.backends.cudnn.flags(enabled=True, benchmark=True):
        step()
    assert ran() == {"convolution", "convolution_backward"}


@pytest.mark.parametrize("deterministic", [False, True])
def test_results_are_bitwise_the_same(deterministic):
    """Whatever PyTorch is asked for; gradients that are sums over an index among them."""
    def gradients():
        make = torch.Generator().manual_seed(0)
        x, w, table = (torch.randn(s, generator=make).to(DEVICE).requires_grad_() for s in ((3, 4, 6, 6), (4, 4, 3, 3), (5, 8)))
        index = torch.arange(64, device=DEVICE) % 5
        y = F.max_pool2d(F.conv2d(x, w, padding=1), 3, 1).sum() + F.embedding(index, table).square().sum()
        return torch.autograd.grad(y + F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1), align_corners=False).sum(), (x, w, table))
    torch.use_deterministic_algorithms(deterministic, warn_only=True)  # PyTorch has no such gradient of grid_sample on a GPU
    try:
        with dnnkern.torch.enabled(strict=True), torch.backends.cudnn.flags(enabled=True, deterministic=deterministic):
            first, second = gradients(), gradients()
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert {row.op for row in dnnkern.torch.status() if not row.ours} == set()


# ---- beneath autograd, functorch, autocast, torch.compile

def test_second_derivatives():
    make = torch.Generator().manual_seed(0)
    x, w = (torch.randn(shape, generator=make, dtype=torch.float64).to(DEVICE).requires_grad_() for shape in ((1, 2, 4, 4), (2, 2, 2, 2)))
    with dnnkern.torch.enabled("convolution,convolution_backward", strict=True):
        assert torch.autograd.gradgradcheck(lambda x, w: F.conv2d(x, w, padding=1), (x, w), fast_mode=True)
    assert ran() == {"convolution", "convolution_backward"}


@pytest.mark.parametrize("name, call", {
    "transposed": lambda x: F.conv_transpose2d(x, x[:, :, :2, :2].sin(), stride=2), "softmax": lambda x: F.softmax(x, 1),
    "layer_norm": lambda x: F.layer_norm(x, (4,)), "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "max_pool": lambda x: F.max_pool2d(x, 2), "avg_pool": lambda x: F.avg_pool2d(x, 2), "bmm": lambda x: torch.bmm(x[0], x[0]),
    "gelu": F.gelu, "silu": F.silu}.items(), ids=lambda value: value if isinstance(value, str) else "")
def test_second_derivatives_of_others(name, call):
    x = torch.randn((2, 2, 4, 4), generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(DEVICE).requires_grad_()
    with dnnkern.torch.enabled("all", exclude="arithmetic", strict=name != "batch_norm"):
        assert torch.autograd.gradcheck(call, x, fast_mode=True)
        assert torch.autograd.gradgradcheck(call, x, fast_mode=True)


def test_vmap_and_gradients_per_sample():
    x, w = torch.randn(3, 1, 2, 5, 5, device=DEVICE), torch.randn(2, 2, 3, 3, device=DEVICE)

    def loss(w, x):
        return F.conv2d(x, w).square().sum()
    theirs = torch.func.vmap(torch.func.grad(loss), (None, 0))(w, x)
    with dnnkern.torch.enabled(strict=True):
        ours = torch.func.vmap(torch.func.grad(loss), (None, 0))(w, x)
    assert ran() == {"convolution", "convolution_backward"}
    assert_same(ours, theirs, "per sample")


def test_autocast():
    with torch.autocast(DEVICE, torch.bfloat16):
        theirs = torch.mm(A, B)
        with dnnkern.torch.enabled(strict=True):
            ours = torch.mm(A, B)
    assert ran() == {"mm"} and ours.dtype == torch.bfloat16
    assert_same(ours, theirs, "mm")


def test_checkpoint():
    from torch.utils.checkpoint import checkpoint
    a = A.clone().requires_grad_()
    with dnnkern.torch.enabled(strict=True):
        checkpoint(lambda a: torch.mm(a, B).sin().sum(), a, use_reentrant=False).backward()
    assert {row.op: row.calls for row in dnnkern.torch.status()} == {"mm": 3}
    assert_same(a.grad, torch.cos(torch.mm(A, B)) @ B.t(), "gradient")


def test_compiled_graphs_reach_overrides_and_leave_them():
    function = torch.compile(lambda a, b: torch.mm(a, b) + 1, backend="aot_eager", fullgraph=True)
    expected = function(A, B)
    with dnnkern.torch.enabled("mm", strict=True):
        assert torch.equal(function(A, B), expected) and ran() == {"mm"}
    assert torch.equal(function(A, B), expected) and not ran()


def product_in_parts(a):
    for _ in range(2):
        with torch.autograd.set_detect_anomaly(False):  # no graph goes on from within a block in a loop
            a = torch.mm(a, B)[:, :3]
            torch._dynamo.graph_break()
    return a


def test_the_compiler_leaves_alone_what_runs_outside_of_its_graphs():
    network = torch.nn.GRU(3, 4).to(DEVICE)
    for function, op in (product_in_parts, "mm"), (lambda a: network(a)[0].detach(), "gru.input"):
        expected = function(A)
        with dnnkern.torch.enabled("mm,rnn", strict=True):
            torch._dynamo.utils.counters.clear()
            assert_same(torch.compile(function, backend="aot_eager")(A[:, :]), expected, op)
            assert op in ran() and torch._dynamo.utils.counters["frames"]["total"] <= 3


def test_traced_by_jit():
    network = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 2), torch.nn.MaxPool2d(2), torch.nn.Softmax(1)).to(DEVICE)
    x, larger = (torch.ones(n, 1, n, n, device=DEVICE) for n in (3, 5))
    with dnnkern.torch.enabled("all"):
        traced = torch.jit.trace(network, x, check_trace=False)
        assert [row.why for row in dnnkern.torch.status(reset=True) if row.op == "convolution"] == [
            "torch.jit traces it, and records what PyTorch's calls"]
        assert_same(traced(larger), network(larger), "traced")


@pytest.mark.skipif(DEVICE == "cuda", reason="without a GPU")
def test_on_a_forked_childs_side():
    import multiprocessing
    with dnnkern.torch.enabled("mm", strict=True):
        assert is_ours()
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.apply(is_ours)


@pytest.mark.parametrize("operator", ["conv", "matmul", "rnn"])
def test_how_float32_may_be_computed(operator, monkeypatch):
    """What a GPU's overrides ask, for each of the operators that do."""
    monkeypatch.setattr(_tensors, "HOST_MEMORY", False)
    of = getattr(torch.backends.cuda if operator == "matmul" else torch.backends.cudnn, operator)
    before = of.fp32_precision
    try:
        for word, math in (("tf32", "tf32"), ("ieee", None)):
            of.fp32_precision = word
            assert _tensors.math_of(operator, torch.ones(2)) == math
            assert _tensors.math_of(operator, torch.ones(2, dtype=torch.float16)) is None
    finally:
        of.fp32_precision = before
    if operator != "matmul":
        for allowed in (True, False):
            with torch.backends.cudnn.flags(enabled=True, allow_tf32=allowed):
                assert _tensors.math_of(operator, torch.ones(2)) == ("tf32" if allowed else None)
