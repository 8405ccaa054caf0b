"""Every override beside PyTorch's own kernel: values, gradients, dtypes and strides."""
import contextlib

import pytest

torch = pytest.importorskip("torch")

import torch_calls  # noqa: E402
from torch_calls import CALLS, DEVICE, labels, pytorchs, results, tensors  # noqa: E402

import dnnkern.torch  # noqa: E402
from dnnkern import NotSupported  # noqa: E402
from dnnkern.torch._overrides import KEY, _exists  # noqa: E402
from dnnkern.torch._table import selected, table  # noqa: E402

pytestmark = pytest.mark.sized

ENDS = ("batch_norm-frozen", *(("nll_loss-sum", "cross_entropy-one", "embedding", "embedding-padded") if KEY == "CUDA" else ()))
ROUGH = ("hardswish", "hardsigmoid") if KEY == "CUDA" else ()  # there PyTorch's 1/6 is a float32, of float64 too
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}
RUNS = [(call, way, dtype) for call in CALLS
        for way, dtype in (*((way, "float32") for way in call.ways), *(("contiguous", dtype) for dtype in call.dtypes))]


@pytest.fixture(autouse=True)
def alone():
    """Nothing of an earlier test is counted or overridden."""
    dnnkern.torch.disable()
    dnnkern.torch.status(reset=True)
    torch.backends.cudnn.allow_tf32 = False
    yield
    dnnkern.torch.disable()


def assert_same(ours, theirs, name):
    """The same tensor, but for rounding."""
    assert (ours is None) == (theirs is None), name
    if theirs is None:
        return
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, name
    assert ours.stride() == theirs.stride(), f"{name}: strides {ours.stride()}, PyTorch's are {theirs.stride()}"
    if not theirs.is_floating_point():
        assert torch.equal(ours, theirs), name
        return
    part = 1e-7 if name.startswith(ROUGH) and theirs.dtype == torch.float64 else TOLERANCE[theirs.dtype]
    bound = part * max(1.0, theirs.detach().abs().max().item() if theirs.numel() else 1.0)
    assert torch.allclose(ours, theirs, rtol=0, atol=bound, equal_nan=True), f"{name}: {(ours - theirs).abs().max().item()} > {bound}"


def everything(call):
    """All overrides; those of arithmetic, which is of integers too within PyTorch's own gradients, where the call is of them."""
    arithmetic = selected("arithmetic")
    return dnnkern.torch.enabled("all", exclude=() if arithmetic & set(call.ops) else arithmetic, strict=True)


def ran():
    """Operators that this library has computed."""
    return {row.op for row in dnnkern.torch.status(reset=True) if row.ours}


@pytest.mark.parametrize("call, way, dtype", RUNS, ids=lambda value: str(value))
def test_equals_pytorch(call, way, dtype):
    theirs = pytorchs(call, tensors(call, way, dtype))
    with everything(call):
        ours = results(call, tensors(call, way, dtype))
    assert ran() >= set(call.ops)
    assert_all_same(ours, theirs, call)


def assert_all_same(ours, theirs, call):
    """Results and gradients."""
    for kind, mine, other in zip(("result", "gradient"), ours, theirs):
        for i, (x, y) in enumerate(zip(mine, other, strict=True)):
            assert_same(x, y, f"{call}: {kind} {i}")


@pytest.mark.skipif(KEY == "CPU", reason="on a GPU calls like earlier ones are shortened")
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_repeated_calls(call):
    """On other tensors of the same shapes, with the first ones still alive."""
    way = next(way for way in reversed(call.ways) if way != "expanded")  # whose elements cannot be written
    given = [tensors(call, way, "float32") for _ in range(5)]
    for t in given[-1]:
        t.data.mul_(0.5)
    theirs = pytorchs(call, given[-1])
    with everything(call):
        kept = [results(call, some) for some in given]
    assert_all_same(kept[-1], theirs, call)


def outcome(call, of=results):
    """What `results` returns for a first tensor without elements, or what it raises."""
    first, *others = tensors(call, "contiguous", "float32")
    try:
        return of(call, [first.detach()[:0].requires_grad_(), *others]), None
    except (RuntimeError, ValueError, IndexError, AssertionError) as error:
        return None, (type(error), str(error).splitlines()[0])


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_without_elements(call):
    """PyTorch's results, or its errors."""
    if call.id in ENDS:
        pytest.skip("without elements PyTorch's own kernel ends the process, or its use of the GPU")
    theirs, error = outcome(call, pytorchs)
    with dnnkern.torch.enabled("all"):
        ours, mine = outcome(call)
    assert mine == error
    if error is None:
        assert_all_same(ours, theirs, call)


NUMBERS = {"sum": lambda i, x: i + 1, "product": lambda i, x: i * 2.5, "difference": lambda i, x: 2 - i, "quotient": lambda i, x: i / 2,
           "complex": lambda i, x: x + 1j, "large": lambda i, x: x * 1e300, "in-place": lambda i, x: i.clone().add_(3),
           "booleans": lambda i, x: (i > 1) + True, "scaled": lambda i, x: torch.add(i, 2, alpha=3), "comparison": lambda i, x: i.ge(1.5),
           "half": lambda i, x: x.half() > 1e6, "choice": lambda i, x: torch.where(x > 0, x.half(), x)}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_go_back(name):
    """PyTorch promotes as it would have, each call is counted once, and operators that fail say what they said."""
    function, given = NUMBERS[name], (labels(6, classes=4), torch.tensor([1.0, -2.0], device=DEVICE))
    theirs = function(*given)
    with dnnkern.torch.enabled("arithmetic"):
        ours = function(*given)
    assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    left = [row for row in dnnkern.torch.status(reset=True) if not row.ours]
    of_floats = name in ("complex", "large", "half", "choice")  # arithmetic of integers is not counted
    assert bool(left) == of_floats and all(row.calls == 1 for row in left)
    with dnnkern.torch.enabled("arithmetic", strict=True), pytest.raises(NotSupported) if of_floats else contextlib.nullcontext():
        function(*given)
    with pytest.raises(RuntimeError, match="can't be cast") as error:
        given[0].add_(1.5)
    with dnnkern.torch.enabled("arithmetic", strict=True), pytest.raises(RuntimeError) as again:
        given[0].add_(1.5)
    assert str(again.value) == str(error.value)


def test_ctc_loss_of_cudnn():
    """The operator is not there without a GPU; it normalizes, and gives the gradients at once."""
    x = torch.randn(6, 3, 5, generator=torch.Generator().manual_seed(0)).to(KEY.lower()).requires_grad_()
    given = torch.tensor([1, 2, 2, 3, 1, 4], dtype=torch.int32), (6, 5, 2), (2, 1, 3)
    theirs = torch.nn.functional.ctc_loss(x.log_softmax(2), *given, reduction="none", zero_infinity=True)
    loss, gradient = table()["_cudnn_ctc_loss"].function(x.detach(), *given, 0, True, True)
    assert theirs[2] == 0
    assert_same(loss, theirs, "loss")
    assert_same(gradient, torch.autograd.grad(theirs.sum(), x)[0], "gradient")


def test_every_override_is_reached():
    reached = {op for call in CALLS for op in call.ops} | torch_calls.ELSEWHERE
    there = {name for name in table() if _exists(f"aten::{name}", KEY)}
    assert there <= reached, there - reached
