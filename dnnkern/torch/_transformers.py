"""Models of Hugging Face's transformers on this library's kernels: their attention, norms, rotary embeddings, gated layers and loss."""
import functools
import time
import types
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

from .. import NotSupported
from . import _transformers_ops as ops
from ._above import is_pytorchs
from ._convert import Left
from ._rebind import rebound
from ._status import record
from ._table import Refused
from ._tensors import FLOATS, KEY
from ._transformers_register import NAME
from .functional._front import in_dtype
from .functional.gated import ACTIVATIONS, gated
from .functional.rotary import rotated

_PLAIN = {torch.Tensor, nn.Parameter}
_ERRORS = Refused, NotSupported, ValueError, TypeError
_compiling, _clock = torch.compiler.is_compiling, time.perf_counter_ns
_ROPE, _KEY = "apply_rotary_pos_emb", "_dnnkern_left_class"


def _either(op, ours, theirs, *tensors):
    """``ours()``, or ``theirs()`` where this library does not compute it, which is counted with the reason."""
    if _compiling():
        return ours()
    why = None
    x = tensors[0]
    if any(type(t) not in _PLAIN for t in tensors):
        why = "a subclass of tensors"
    elif is_pytorchs():
        why = "under torch.func, or in a second derivative"
    elif any(t.device.type != KEY.lower() for t in tensors) or x.dtype not in FLOATS or not x.numel():
        why = f"{x.dtype}, {x.numel()} elements on {x.device}".removeprefix("torch.")
    else:
        try:
            return ours()
        except _ERRORS as error:
            why = str(error)
    start = _clock()
    result = theirs()
    record(op).refuse(why, _clock() - start)
    return result


# ---- attention, as AttentionInterface calls it

def attention(module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None, sliding_window=None, softcap=None,
              s_aux=None, position_bias=None, **_):
    """(result (B, S, H, E), None). The mask, where there is one, holds causality and windows; without one they are the kernel's."""
    query, key, value = in_dtype([query, key, value])
    rows = query.shape[2]
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    window = sliding_window - 1 if causal and attention_mask is None and sliding_window else -1
    causal = bool(rows > 1 and attention_mask is None and causal)
    if causal and key.shape[2] > rows:  # a static cache that is empty: what follows is not written yet
        key, value = key[:, :, :rows], value[:, :, :rows]
        position_bias = position_bias if position_bias is None else position_bias[..., :rows]
    if position_bias is not None:
        if attention_mask is None:
            attention_mask = position_bias
        elif attention_mask.dtype is torch.bool:
            attention_mask = torch.where(attention_mask, position_bias, torch.finfo(position_bias.dtype).min)
        else:
            attention_mask = position_bias + attention_mask
    if attention_mask is not None and attention_mask.dtype is not torch.bool:
        attention_mask = attention_mask.to(query.dtype)
    sink = None if s_aux is None else s_aux.to(query.dtype)
    options = (query.shape[3] ** -0.5 if scaling is None else float(scaling), causal, window, float(softcap or 0.0), float(dropout))

    def ours():
        seed = torch.empty((), dtype=torch.int64, device=query.device).random_() if dropout else None
        return ops.attention(query, key, value, attention_mask, sink, seed, *options)[0]
    result = _either("attention", ours, lambda: ops.plain_attention(query, key, value, attention_mask, sink, *options), query, key, value)
    return result, None


# ---- modules, which keep their parameters and get a class with another forward

class _Ours:
    """Mixed into the class of a module whose forward is replaced."""

    def __reduce_ex__(self, protocol):
        return _made, (type(self)._dnnkern_kind, getattr(type(self), _KEY), type(self)._dnnkern_option), self.__dict__.copy()


def _made(kind, cls, option):
    made = ours_class(kind, cls, option)
    return made.__new__(made)


@functools.cache
def ours_class(kind, cls, option):
    """The subclass of a module's class whose forward is `kind`'s."""
    forward = {"norm": _norm_forward, "mlp": _mlp_forward, "rope": _rope_forward}[kind](cls, option)
    return type(cls.__name__, (_Ours, cls), {"forward": forward, "_dnnkern_kind": kind, "_dnnkern_option": option, _KEY: cls,
                                             "__module__": cls.__module__, "__qualname__": cls.__qualname__})


def _norm_forward(cls, added):
    """RMS norm; `added` to the weight: Gemma's is 1 + weight, in float32."""
    theirs = cls.forward

    def forward(self, x):
        weight = self.weight
        if not added and weight.dtype is not x.dtype:
            return theirs(self, x)  # whose result has the wider dtype
        eps = self.variance_epsilon if hasattr(self, "variance_epsilon") else self.eps
        return _either("rms_norm", lambda: ops.rms_norm(
            x, added + (weight if weight.dtype is torch.float64 else weight.float()) if added else weight, eps)[0],
            lambda: theirs(self, x), x, weight)
    return functools.update_wrapper(forward, theirs)


def _mlp_forward(cls, function):
    """down(activation(gate(x)) * up(x))."""
    def forward(self, x):
        gate, up = self.gate_proj(x), self.up_proj(x)
        return self.down_proj(_either("gated", lambda: gated(gate, up, function), lambda: self.act_fn(gate) * up, gate, up))
    return functools.update_wrapper(forward, cls.forward)


def _rope_forward(cls, _):
    """The forward of an attention layer as it is, with our rotation."""
    theirs = _innermost(cls.forward).__globals__[_ROPE]

    def rotate(q, k, cos, sin, unsqueeze_dim=1):
        def ours():
            half = cos.shape[-1] // 2  # the other half holds the same angles
            angles = [t[..., :half].unsqueeze(unsqueeze_dim) for t in (cos, sin)]
            return rotated(q, *angles, False, False), rotated(k, *angles, False, False)
        return _either("rope", ours, lambda: theirs(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim), q, k, cos, sin)
    return _rebound_within(cls.forward, {_ROPE: rotate})


def _innermost(function):
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def _rebound_within(function, names):
    """As `rebound`, of a function within decorators."""
    inner = getattr(function, "__wrapped__", None)
    if inner is None:
        return rebound(function, names)
    new = _rebound_within(inner, names)
    cells = [types.CellType(new) if cell.cell_contents is inner else cell for cell in function.__closure__ or ()]
    if all(cell.cell_contents is not new for cell in cells):
        raise Refused("a decorator that does not hold what it decorates")
    copy = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, tuple(cells))
    copy.__kwdefaults__ = function.__kwdefaults__
    return functools.update_wrapper(copy, new)


# ---- what a class computes is asked of it, on a few numbers, so that another version of a name is not mistaken

def _numbers(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def _same(found, expected):
    return isinstance(found, torch.Tensor) and found.shape == expected.shape and torch.allclose(found, expected, atol=1e-4, rtol=1e-4)


def _probe(function):
    """Decorator: the answer is kept; None where a class cannot be asked."""
    @functools.cache
    def ask(subject):
        try:
            with torch.no_grad(), torch.device("cpu"), torch.random.fork_rng(devices=()):
                return function(subject)
        except Exception:  # whatever a class of others raises, it is none that is known
            return None
    return ask


@_probe
def _norm_adds(cls):
    """0 or 1, what an RMS norm adds to its weight; None where it is another norm."""
    norm, x = cls(6), 3 * _numbers(4, 6)
    if {name for name, _ in norm.named_parameters()} != {"weight"} or not (hasattr(norm, "variance_epsilon") or hasattr(norm, "eps")):
        return None
    norm.weight.copy_(_numbers(6))
    eps = norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps
    x[0] *= 1e-3  # where eps counts
    found = norm(x)
    return next((added for added in (0, 1) if _same(found, ops.plain_rms_norm(x, added + norm.weight, eps))), None)


@_probe
def _is_gated(cls):
    """Whether a module is down(act(gate(x)) * up(x)) of its layers."""
    module = cls.__new__(cls)
    nn.Module.__init__(module)
    module.gate_proj, module.up_proj, module.down_proj = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 5)
    module.act_fn, x = torch.tanh, _numbers(3, 4)
    return _same(module(x), module.down_proj(torch.tanh(module.gate_proj(x)) * module.up_proj(x)))


@_probe
def _activation(act):
    """The name of the activation that a module computes."""
    x = torch.linspace(-6, 6, 97)
    found = act(x)
    return next((name for name, function in ACTIVATIONS.items() if torch.allclose(found, function(x), atol=1e-6)), None)


@_probe
def _is_rope(function):
    """Whether a function rotates the halves of rows."""
    q, k, angles = _numbers(2, 3, 5, 8), _numbers(2, 1, 5, 8), _numbers(2, 5, 4)
    cos, sin = (torch.cat([f(angles)] * 2, -1) for f in (torch.cos, torch.sin))

    def rotated(x):
        c, s, (a, b) = cos[:, None, :, :4], sin[:, None, :, :4], x.chunk(2, -1)
        return torch.cat([a * c - b * s, b * c + a * s], -1)
    found = function(q, k, cos, sin)
    return all(map(_same, found, (rotated(q), rotated(k)))) and len(found) == 2


# ---- a whole model

@dataclass(frozen=True)
class Applied:
    """What `apply_to_transformers` did.

    Attributes
    ----------
    replaced : dict
        {name of a module: what of it is this library's now}: "rms norm", "rotary embedding", "gated activation"; of the model itself,
        whose name is "", also "attention" and "loss".
    left : list of Left
        Modules that stay as they were, and why.
    """
    replaced: dict = field(default_factory=dict)
    left: list = field(default_factory=list)

    def __repr__(self):
        parts = [part for text in self.replaced.values() for part in text.split(", ")]
        lines = [f"replaced {', '.join(f'{parts.count(part)} {part}' for part in dict.fromkeys(parts)) or 'nothing'}"]
        return "\n".join(lines + [f"left     {name or 'the model'} ({layer}): {why}" for name, layer, why in self.left])


def causal_lm_loss(logits, labels, vocab_size, num_items_in_batch=None, ignore_index=-100, shift_labels=None, **_):
    """As transformers' ForCausalLMLoss, by one kernel each way."""
    from .functional import cross_entropy
    if shift_labels is None:
        shift_labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    logits, target = logits.float().view(-1, vocab_size), shift_labels.reshape(-1).to(logits.device)
    if num_items_in_batch is None:
        return cross_entropy(logits, target, ignore_index=ignore_index)
    if isinstance(num_items_in_batch, torch.Tensor):
        num_items_in_batch = num_items_in_batch.to(logits.device)
    return cross_entropy(logits, target, ignore_index=ignore_index, reduction="sum") / num_items_in_batch


def apply_to_transformers(model) -> Applied:
    """Give the parts of a model of Hugging Face's transformers to this library, in place: attention, RMS norms, rotary embeddings, gated
    activations and the loss, of the shapes of Llama, Qwen, Mistral and Gemma. Linear layers and embeddings are overrides' or `convert`'s.

    Parameters
    ----------
    model : transformers.PreTrainedModel

    Returns
    -------
    Applied
        What was replaced, and what was left and why.

    Raises
    ------
    TypeError
        `model` is no model of transformers.

    Notes
    -----
    A class is taken by what it computes on a few numbers, not by its name: modules that compute something else are left, and listed.
    Parameters, buffers, names, hooks and state dicts stay; copies and pickles are replaced, too. `restore_transformers` undoes it. Each
    function is computed in float32 for 16 bits and rounded once, where transformers rounds after each of its steps. What a call cannot
    compute goes to the model's own code, and `dnnkern.torch.status` tells why.

    Examples
    --------
    docs/transformers.md has a model. What is none is refused:

    >>> import torch, dnnkern.torch
    >>> dnnkern.torch.apply_to_transformers(torch.nn.Linear(2, 3))
    Traceback (most recent call last):
    TypeError: apply_to_transformers: ...
    """
    try:
        from transformers import PreTrainedModel
        from transformers.loss.loss_utils import ForCausalLMLoss
    except ImportError as error:
        raise TypeError(f"apply_to_transformers: transformers is not installed ({error}); expected a model of it") from None
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"apply_to_transformers: model is a {type(model).__name__}; expected a transformers.PreTrainedModel")
    done, whole = Applied(), []
    for name, module in list(model.named_modules()):
        found = _swap(module)
        if isinstance(found, str):
            done.left.append(Left(name, type(module).__name__, found))
        elif found:
            done.replaced[name] = found[0]
    if not done.replaced:
        done.left.append(Left("", type(model).__name__, "it has no module of a known shape"))
        return done
    state = model.__dict__.setdefault("_dnnkern_restore", {})
    if model.config._attn_implementation != NAME:
        before = model.config._attn_implementation
        try:
            model.set_attn_implementation(NAME)
        except (ValueError, ImportError) as error:
            done.left.append(Left("", type(model).__name__, f"its attention: {error}"))
        if model.config._attn_implementation == NAME:
            state["attention"] = before
            whole.append("attention")
    if "_loss_function" not in model.__dict__ and getattr(model, "loss_type", None) == "ForCausalLM" and (
            model.loss_function is ForCausalLMLoss):
        model.loss_function = state["loss"] = causal_lm_loss
        whole.append("loss")
    if whole:
        return Applied({"": ", ".join(whole), **done.replaced}, done.left)
    return done


def _swap(module):
    """Replace a module's forward: (what is ours,), or why it is left, or None where there is nothing to do."""
    cls = type(module)
    if isinstance(module, _Ours) or cls.__module__.partition(".")[0] == "torch":
        return None
    kind = next((kind for kind, ends in (("norm", "Norm"), ("mlp", "MLP"), ("rope", "Attention")) if cls.__name__.endswith(ends)), None)
    if kind is None:
        return "not a shape that is known" if cls.__name__.endswith(("Experts", "MoeBlock", "Mlp")) else None
    if "forward" in module.__dict__:
        return "its forward was replaced"
    if kind == "norm":
        option = _norm_adds(cls)
        if option is None:
            return "it does not compute x * rsqrt(mean(x * x) + eps) * weight, or * (1 + weight)"
    elif kind == "mlp":
        if not all(isinstance(getattr(module, name, None), nn.Module) for name in ("gate_proj", "up_proj", "down_proj", "act_fn")) or (
                not _is_gated(cls)):
            return "it does not compute down_proj(act_fn(gate_proj(x)) * up_proj(x))"
        option = _activation(module.act_fn)
        if option is None:
            return f"its activation {type(module.act_fn).__name__} is none of {', '.join(ACTIVATIONS)}"
    else:
        inner, option = _innermost(cls.forward), None
        if _ROPE not in getattr(inner, "__code__", cls.__init__.__code__).co_names or not _is_rope(inner.__globals__.get(_ROPE)):
            return "its forward calls no rotation of the halves of rows"
    try:
        module.__class__ = ours_class(kind, cls, option)
    except (Refused, TypeError) as error:
        return str(error)
    return {"norm": "rms norm", "mlp": "gated activation", "rope": "rotary embedding"}[kind],


def restore_transformers(model) -> None:
    """Undo `apply_to_transformers`.

    Parameters
    ----------
    model : torch.nn.Module
        A model that was given to it, or a copy of one, or any other, of which nothing is changed.

    Raises
    ------
    TypeError
        `model` is no module.

    Examples
    --------
    >>> import torch, dnnkern.torch
    >>> dnnkern.torch.restore_transformers(torch.nn.Linear(2, 3))
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"restore_transformers: model is a {type(model).__name__}; expected a torch.nn.Module")
    for module in model.modules():
        if isinstance(module, _Ours):
            module.__class__ = getattr(type(module), _KEY)
    state = model.__dict__.pop("_dnnkern_restore", {})
    if "attention" in state and model.config._attn_implementation == NAME:
        model.set_attn_implementation(state["attention"])
    if model.__dict__.get("_loss_function") is state.get("loss", model):
        del model._loss_function
