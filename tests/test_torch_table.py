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


IMAGES = torch.arange(120.0, device=DEVICE).reshape(2, 3, 4, 5)
PLAIN_COPIES = {
    "bytes": lambda x: x.transpose(1, 2).clone(), "steps of one": lambda x: x[:1].to(memory_format=torch.channels_last)[:, :, :1].clone(),
    "no elements": lambda x: x[:0].transpose(1, 2).contiguous(), "booleans": lambda x: (x > 3).transpose(1, 2).contiguous().float(),
    "complex": lambda x: torch.complex(x, x).transpose(1, 2).conj().clone(memory_format=torch.contiguous_format),
    "truncated": lambda x: (x - 3.7).int(), "8 bits": lambda x: (100 * x).to(torch.float8_e4m3fn).view(torch.uint8),
    "number": lambda x: torch.isfinite(x), "host": lambda x: x.half().cpu().to(DEVICE, torch.float64, non_blocking=True),
    "long": lambda x: (3 * x.long()).half()}
REFUSED_COPIES = {"negative": (lambda x: torch.imag(torch.complex(x, x).conj()).transpose(1, 2).contiguous(), "negative"),
                  "dimensions": (lambda x: x.view(*[1] * 6, *x.shape).transpose(7, 8).contiguous(), "dimensions"),
                  "overlap": (lambda x: (lambda y: y[0, 0, :4, :4].T.copy_(y[0, 0, :, 1:]))(x.clone()), "overlap")}


@pytest.mark.parametrize("name", PLAIN_COPIES)
def test_copies_of_bytes(name):
    """They are PyTorch's, and not counted: programs make some everywhere."""
    theirs = PLAIN_COPIES[name](IMAGES)
    with dnnkern.torch.enabled("copy_", strict=True):
        ours = PLAIN_COPIES[name](IMAGES)
    assert all(row.ours for row in dnnkern.torch.status(reset=True))
    assert_same(ours, theirs, name)


@pytest.mark.parametrize("name", REFUSED_COPIES)
def test_copies_that_go_back(name):
    function, why = REFUSED_COPIES[name]
    theirs = function(IMAGES)
    with dnnkern.torch.enabled("copy_"):
        ours = function(IMAGES)
    assert_same(ours, theirs, why)
    rows = [row for row in dnnkern.torch.status(reset=True) if not row.ours]
    assert len(rows) == 1 and why in rows[0].why and rows[0].calls == 1


@pytest.mark.parametrize("function", [
    lambda x: x.clone()[0].copy_(x), lambda x: x.clone()[:, :1].expand(2, 3, 4, 5).copy_(x), lambda x: x[:1].copy_(x[0, :, :, :4]),
    lambda x: x.view(-1)[:12].view(3, 4).T.copy_(x.view(-1)[4:16].view(4, 3))], ids=["shape", "expanded", "broadcast", "overlap"])
def test_copies_that_are_wrong(function):
    with pytest.raises(RuntimeError) as theirs:
        function(IMAGES)
    with dnnkern.torch.enabled("copy_", strict=True), pytest.raises(RuntimeError) as ours:
        function(IMAGES)
    assert str(ours.value) == str(theirs.value)


def test_copies_have_the_bits_of_pytorchs():
    """Of numbers that halves round, infinities, and numbers below the normal ones."""
    x = torch.cat([torch.randn(4096, dtype=torch.float64) * scale for scale in (1, 1e-6, 1e5, 1e39)]).view(128, 128).to(DEVICE)
    for source in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        for target in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
            given = x.to(source).T
            theirs = given.to(target, memory_format=torch.contiguous_format)
            with dnnkern.torch.enabled("copy_", strict=True):
                assert torch.equal(given.to(target, memory_format=torch.contiguous_format), theirs), (source, target)


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
