"""Every operator of `torch.ops.dnnkern` that has a gradient: schema, fake kernel, gradient, traced graphs, and `torch.vmap`."""
import warnings

import pytest

torch = pytest.importorskip("torch")

from test_torch_table import alone  # noqa: E402, F401 (a fixture)
from torch_calls import DEVICE, labels  # noqa: E402

import dnnkern.torch  # noqa: E402
from dnnkern.torch import functional  # noqa: E402, F401 (defines operators)
from dnnkern.torch._table import table  # noqa: E402
from dnnkern.torch.ops import rnn  # noqa: E402

pytestmark = pytest.mark.sized
WITHOUT = {"max_pool2d", "max_pool3d", "sdpa_decode"}
"""Operators without a gradient that are not gradients: maxima without an index are taken where none is asked for."""


def drawn(*shape, dtype="float64"):
    make = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.randn(shape, generator=make, dtype=torch.float64).to(DEVICE, getattr(torch, dtype)).requires_grad_()


def ints(*values):
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def statistics(n):
    return drawn(n).detach(), drawn(n).detach().square() + 0.5


def of_network():
    spec = rnn._spec("lstm", 3, 4, 1, True, 0, True, 0.0, "float64")
    return ("lstm.input", True, drawn(3, 2, 3), drawn(2, 2, 4), drawn(2, 2, 4), drawn(spec.weight_size), None, None, "lstm", 3, 4, 1, True,
            0, True, 0.0, "float64")


def indexed(dims):
    x = drawn(2, 3, *(4, 6, 5)[:dims])
    window = [2] * dims, [2] * dims, [0] * dims, [1] * dims, False, False
    return x, list(x.shape), *window


def of_index(dims):
    x, shape, *window = indexed(dims)
    y, index = getattr(torch.ops.dnnkern, f"max_pool{dims}d_indexed")(x.detach(), shape, *window)
    return torch.randn_like(y).requires_grad_(), index, shape, *window


def attended(**changes):
    given = {"bias": None, "sink": None, "mask": None, "seed": None, "seq_len_q": None, "seq_len_kv": None, "cu_seqlens_q": None,
             "cu_seqlens_kv": None, "scale": None, "causal": True, "align": "bottom_right", "left": 3, "right": -1, "alibi": True,
             "dropout": 0.0, "softcap": 3.0, "layout": "BHSD", **changes}
    return list(given.values())


WINDOW = [2, 2], [2, 1], [1, 0]
SAMPLES = {
    "convolution": lambda: (drawn(2, 4, 6, 5), drawn(6, 2, 3, 2), drawn(6), [1, 2], [1, 0], [1, 1], False, [0, 0], 2),
    "convolution_fused": lambda: (drawn(2, 4, 6, 5), drawn(4, 4, 3, 3), drawn(4), drawn(2, 4, 6, 5), [1, 1], [1, 1], [1, 1], 1, "relu"),
    "linear": lambda: (drawn(2, 3, 6), drawn(7, 6), drawn(7), drawn(2, 3, 7), "leaky_relu negative_slope=0.2"),
    "batch_norm": lambda: (drawn(2, 4, 6, 5), drawn(4), drawn(4), drawn(2, 4, 6, 5), 1e-5, "relu"),
    "batch_norm_infer": lambda: (drawn(2, 4, 6, 5), drawn(4), None, drawn(2, 4, 6, 5), *statistics(4), 1e-5, "relu"),
    "activation": lambda: (drawn(2, 5), "gelu_tanh"), "activation_by_result": lambda: (drawn(2, 5), "leaky_relu negative_slope=0.2"),
    "native_layer_norm": lambda: (drawn(2, 3, 5), [3, 5], drawn(3, 5), drawn(3, 5), 1e-5),
    "native_group_norm": lambda: (drawn(2, 4, 3, 5), drawn(4), drawn(4), 2, 4, 15, 2, 1e-5),
    "_softmax": lambda: (drawn(3, 4, 5), 1, False), "_log_softmax": lambda: (drawn(3, 5), -1, False),
    "bmm": lambda: (drawn(2, 3, 5), drawn(2, 5, 4)), "embedding": lambda: (drawn(7, 5), labels(2, 3, classes=7), -1, False, False),
    "nll_loss_forward": lambda: (drawn(4, 5), labels(4, classes=5), None, 1, -100),
    "nll_loss2d_forward": lambda: (drawn(2, 5, 3, 2), labels(2, 3, 2, classes=5), None, 2, 1),
    "max_pool2d_with_indices": lambda: (drawn(2, 3, 6, 5), *WINDOW, [1, 1], False),
    "max_pool3d_with_indices": lambda: (drawn(1, 2, 4, 5, 4), [2] * 3, [2] * 3, [0] * 3, [1] * 3, False),
    "max_pool2d_indexed": lambda: indexed(2), "max_pool3d_indexed": lambda: indexed(3),
    "max_pool2d_backward": lambda: of_index(2), "max_pool3d_backward": lambda: of_index(3),
    "avg_pool2d": lambda: (drawn(2, 3, 6, 5), *WINDOW, False, False, None),
    "avg_pool3d": lambda: (drawn(1, 2, 4, 5, 4), [2] * 3, [2] * 3, [0] * 3, False, True, None),
    "_adaptive_avg_pool2d": lambda: (drawn(2, 3, 6, 5), [2, 3]), "_adaptive_avg_pool3d": lambda: (drawn(1, 2, 4, 5, 4), [2, 3, 2]),
    "adaptive_max_pool2d": lambda: (drawn(2, 3, 6, 5), [2, 3]), "adaptive_max_pool3d": lambda: (drawn(1, 2, 4, 5, 4), [2, 3, 2]),
    "attention": lambda: (drawn(2, 2, 3, 4), drawn(2, 2, 5, 4), drawn(2, 2, 5, 4), drawn(3, 5), 0.0, None, False, None, 1),
    "cross_entropy": lambda: (drawn(4, 5), labels(4, classes=5), None, 0, -100, 0.1), "rms_norm": lambda: (drawn(3, 5), drawn(5), 1, 1e-5),
    "dropout": lambda: (drawn(40), torch.tensor(3, device=DEVICE), 0.25), "rnn": of_network,
    "gated": lambda: (drawn(3, 5), drawn(3, 5), "swish"), "gated_halves": lambda: (drawn(3, 4, 5), "gelu", 1),
    "rope": lambda: (drawn(2, 3, 5), *(t.detach() for t in (drawn(3, 2), drawn(3, 2))), True, False),
    "residual_layer_norm": lambda: (drawn(3, 2, 5), drawn(3, 2, 5), drawn(5), drawn(5), 1, 1e-5),
    "residual_rms_norm": lambda: (drawn(3, 2, 5), drawn(3, 2, 5), drawn(2, 5), 2, 1e-5),
    "sdpa": lambda: (drawn(2, 4, 3, 5), drawn(2, 2, 7, 5), drawn(2, 2, 7, 3), *attended(bias=drawn(4, 1, 7), sink=drawn(4))),
    "grouped_matmul": lambda: (drawn(6, 5), drawn(3, 5, 4), ints(0, 2, 2, 6), drawn(3, 4), False, ""),
    "ctc_loss": lambda: (drawn(5, 2, 4), labels(2, 2, classes=3) + 1, torch.tensor([5, 4], device=DEVICE),
                         torch.tensor([2, 1], device=DEVICE), 0, True, False),
    "linear_cross_entropy": lambda: (drawn(5, 3), drawn(7, 3), drawn(7), labels(5, classes=7), None, 1, 2, 0.1, True, True, False)}


def names():
    """Operators of this library; those for transformers are there once that is used, and have tests of their own."""
    table()
    found = {name.partition("::")[2] for name in torch._C._dispatch_get_all_op_names() if name.startswith("dnnkern::")}
    return {name for name in found if not name.startswith("transformers_")}


def derivable(name):
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"dnnkern::{name}", "Autograd")


def overload(name):
    return getattr(torch.ops.dnnkern, name).default


def test_every_operator_has_a_sample():
    """Each has a gradient and a sample, or is one of a gradient, or is known not to have one."""
    found = names()
    assert {name for name in found if derivable(name)} == set(SAMPLES)
    left = {name for name in found if not derivable(name) and "backward" not in name and "gradient" not in name}
    twins = {*table()} - WITHOUT  # which gradients call, and are there once one has
    assert left - twins == WITHOUT | {"column_sums"}


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_operators_are_what_they_say(name):
    assert set(torch.library.opcheck(overload(name), SAMPLES[name]()).values()) == {"SUCCESS"}
    assert any(row.ours for row in dnnkern.torch.status(reset=True))


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_derivatives_by_differences(name):
    given = SAMPLES[name]()
    tensors = [t for t in given if isinstance(t, torch.Tensor) and t.requires_grad]

    def function(*values):
        left = iter(values)
        return overload(name)(*[next(left) if isinstance(t, torch.Tensor) and t.requires_grad else t for t in given])
    assert torch.autograd.gradcheck(function, tensors, fast_mode=True)


def vmapped(name, given, batched):
    """The operator over batches of 3 of these arguments."""
    stacked = [torch.stack([t.detach() * s for s in (1.0, 0.5, -0.75)], 1 if t.dim() else 0) if i in batched else
               t.detach() if isinstance(t, torch.Tensor) else t for i, t in enumerate(given)]
    dims = [1 if i in batched and given[i].dim() else 0 if i in batched else None for i in range(len(given))]
    tensors = [i for i, t in enumerate(given) if isinstance(t, torch.Tensor)]

    def function(*values):
        left = iter(values)
        return overload(name)(*[next(left) if i in tensors else t for i, t in enumerate(given)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = torch.vmap(function, in_dims=tuple(dims[i] for i in tensors))(*[stacked[i] for i in tensors])
    loops = [overload(name)(*[t.select(d, k).contiguous() if d is not None else t for t, d in zip(stacked, dims)]) for k in range(3)]
    return found, loops


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_vmap_is_a_loop(name):
    given = SAMPLES[name]()
    several = [i for i, t in enumerate(given) if isinstance(t, torch.Tensor) and t.requires_grad]
    for batched in {tuple(several[:1]), tuple(several)}:
        found, loops = vmapped(name, given, batched)
        found, loops = (found,) if isinstance(found, torch.Tensor) else found, [(y,) if isinstance(y, torch.Tensor) else y for y in loops]
        for i, y in enumerate(found):
            assert torch.allclose(y, torch.stack([results[i] for results in loops]), rtol=1e-10, atol=1e-10), f"{name}: {i} of {batched}"


FOLDED = ("convolution", "convolution_fused", "linear", "batch_norm_infer", "activation", "native_layer_norm", "_softmax", "attention",
          "rms_norm", "gated", "gated_halves", "rope", "residual_layer_norm", "residual_rms_norm", "cross_entropy", "sdpa")


@pytest.mark.parametrize("name", FOLDED)
def test_vmap_of_the_first_tensor_is_one_call(name):
    dnnkern.torch.status(reset=True)
    given = SAMPLES[name]()
    with torch.no_grad():
        torch.vmap(lambda x: overload(name)(x, *given[1:]))(torch.stack([given[0].detach()] * 3))
    assert sum(row.calls for row in dnnkern.torch.status(reset=True)) == 1


def test_vmap_of_lists():
    """The results of one gradient are a list."""
    q, k, v = (t.detach() for t in (drawn(2, 4, 3, 5), drawn(2, 2, 7, 5), drawn(2, 2, 7, 3)))
    o, lse = overload("sdpa")(q, k, v, *attended())
    dys = torch.stack([o, o * 2])
    found = torch.vmap(lambda dy: overload("sdpa_gradients")(dy, q, k, v, o, lse, False, False, *attended()))(dys)
    loop = [overload("sdpa_gradients")(dy, q, k, v, o, lse, False, False, *attended()) for dy in dys]
    assert len(found) == 3
    for i, y in enumerate(found):
        assert torch.allclose(y, torch.stack([one[i] for one in loop]))


def test_vmap_of_nothing():
    with pytest.raises((ValueError, RuntimeError), match="batch"):
        torch.vmap(torch.ops.dnnkern.activation.default, in_dims=(0, None))(torch.ones(0, 2, device=DEVICE), "relu")


def test_a_gradient_through_vmap():
    x, w = drawn(3, 2, 5, dtype="float32"), drawn(4, 5, dtype="float32")
    torch.vmap(lambda x: overload("linear")(x, w, None, None, "relu"))(x).square().sum().backward()
    again = [t.detach().clone().requires_grad_() for t in (x, w)]
    (again[0] @ again[1].t()).relu().square().sum().backward()
    for mine, theirs in zip((x, w), again):
        assert torch.allclose(mine.grad, theirs.grad, rtol=1e-4, atol=1e-4)


LOW = "convolution", "convolution_fused", "linear", "bmm", "attention", "sdpa", "grouped_matmul", "linear_cross_entropy"


@pytest.mark.parametrize("name", LOW)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_autocast(name, dtype):
    """float32 arguments are rounded, float64 ones are not."""
    given = [t.detach().float() if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in SAMPLES[name]()]
    rounded = [t.to(getattr(torch, dtype)) if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in given]
    if name == "sdpa":
        rounded[3:5] = given[3:5]  # bias and sink are added in float32
    with torch.autocast(DEVICE, getattr(torch, dtype)):
        found = overload(name)(*given)
        wide = overload(name)(*SAMPLES[name]())
    theirs = overload(name)(*rounded)
    found, theirs, wide = [y if isinstance(y, torch.Tensor) else y[0] for y in (found, theirs, wide)]
    assert found.dtype is theirs.dtype and torch.equal(found, theirs) and wide.dtype is torch.float64
    assert name == "linear_cross_entropy" or found.dtype is getattr(torch, dtype)
