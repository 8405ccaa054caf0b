"""Layers of a model given to this library, and back."""
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import nn

from ..host.suggest import nearest
from ._traces import MOST_TENSORS, Rewritten, Untraced, rewritten, rewritten_class, written_class
from .nn import BACK, LAYERS

_MARK = "_dnnkern_converted"  # of layers that `convert` has changed, which their copies and pickles are too
_NOTHING = nn.Identity, nn.Flatten, nn.Unflatten, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict, nn.Sequential


class Left(NamedTuple):
    """A module that stays as it was.

    Attributes
    ----------
    name : str
        As of `torch.nn.Module.named_modules`; "" for the model itself.
    layer : str
        The name of its class.
    why : str
    """
    name: str
    layer: str
    why: str


@dataclass(frozen=True)
class Conversion:
    """What `convert` did.

    Attributes
    ----------
    swapped : dict
        {name of a module: name of its class}, of layers that this library computes now.
    fused : list of (str, str)
        Names of modules whose forward is rewritten, and the chains of neighbours in it that run in one kernel: "conv1 + bn1 + relu".
    left : list of Left
        Layers, and modules with layers in them whose forward is not rewritten, that stay as they were, and why.
    """
    swapped: dict = field(default_factory=dict)
    fused: list = field(default_factory=list)
    left: list = field(default_factory=list)

    def __repr__(self):
        counts = {layer: list(self.swapped.values()).count(layer) for layer in self.swapped.values()}
        lines = [f"swapped {len(self.swapped)} layers: " + ", ".join(f"{n} {layer}" for layer, n in counts.items()) if counts else
                 "swapped no layers"]
        lines += [f"fused   {name or 'the model'}: {chain}" for name, chain in self.fused]
        lines += [f"left    {name or 'the model'} ({layer}): {why}" for name, layer, why in self.left]
        return "\n".join(lines)


def convert(model, layers=None) -> Conversion:
    """Give layers of a model to this library, in place.

    Each layer that has a counterpart in `dnnkern.torch.nn` becomes one, by its class alone: the object, its parameters, buffers, hooks and
    modes stay. Modules in which a convolution or linear layer, batch normalisation, an addition and an activation follow each other get a
    forward that runs them in one kernel: in training the normalisation with what follows it, in inference all of them, with the
    normalisation in the convolution's weights.

    Parameters
    ----------
    model : torch.nn.Module
    layers : names and classes, optional
        Only these: names of modules ("layer1.0.conv1", or "layer1" for all in it), and PyTorch's classes (``torch.nn.Conv2d``); one, or a
        sequence. Default: all.

    Returns
    -------
    Conversion
        What was swapped and fused, and what was left and why.

    Raises
    ------
    TypeError
        `model` is no module, or `layers` has what is no name and no class.
    ValueError
        A name that no module has, or a class without a counterpart.

    Notes
    -----
    State dicts are the same before and after; copies and pickles of a converted model are converted; `restore` undoes it. A layer that is
    also used by other models is converted for them, too. Modules' forwards are traced by torch.fx when they are converted and first
    called; calls with other arguments than tensors, under `torch.func`, and of compiled models have the forwards as they were written, with
    this library's layers. Folded weights are made anew when a weight or a statistic has changed, as its version tells, which changes
    through ``.data`` do not count in.

    Examples
    --------
    >>> import torch, dnnkern.torch
    >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.PReLU())
    >>> dnnkern.torch.convert(net)
    swapped 3 layers: 1 Conv2d, 1 BatchNorm2d, 1 ReLU
    fused   the model: 0 + 1 + 2
    left    3 (PReLU): no counterpart in dnnkern.torch.nn
    >>> before = dnnkern.torch.status(reset=True)
    >>> with torch.no_grad():
    ...     y = net.eval()(torch.zeros(1, 3, 5, 5))
    >>> [(row.op, row.ours, row.calls) for row in dnnkern.torch.status(reset=True)]
    [('convolution', True, 1)]
    >>> dnnkern.torch.restore(net)
    >>> type(net[0]) is torch.nn.Conv2d
    True
    """
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise TypeError(f"convert: model is a {type(model).__name__}; expected a torch.nn.Module that is not scripted")
    wanted, done = _selected(model, layers), Conversion()
    inside = set()  # parts of layers
    for name, module in model.named_modules():
        layer = BACK.get(type(module), type(module))
        if layer in LAYERS and not issubclass(layer, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, nn.TransformerEncoder)):
            inside.update(module.modules())
        if module in inside and layer not in LAYERS or not wanted(name, layer):
            continue
        why = _swap(module)
        if why is None:
            done.swapped[name] = layer.__name__
        elif why:
            done.left.append(Left(name, layer.__name__, why))
            inside.update(module.modules())
    for name, module in model.named_modules():
        if type(module).forward is nn.Module.forward or not module._modules or type(module) in BACK:
            continue
        chains, why = _rewrite(module)
        done.fused.extend((name, chain) for chain in chains)
        if why and any(type(child) in BACK for child in module.children()):
            done.left.append(Left(name, type(module).__name__, why))
    return done


def restore(model) -> None:
    """Undo `convert`: layers and modules have the classes that they had.

    Parameters
    ----------
    model : torch.nn.Module
        A converted model, a copy of one, or any other, of which nothing is changed. Modules of `dnnkern.torch.nn` that `convert` has not
        made stay.

    Raises
    ------
    TypeError
        `model` is no module.

    Examples
    --------
    >>> import torch, dnnkern.torch
    >>> layer = torch.nn.Linear(2, 3)
    >>> conversion = dnnkern.torch.convert(layer)
    >>> dnnkern.torch.restore(layer)
    >>> type(layer) is torch.nn.Linear
    True
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"restore: model is a {type(model).__name__}; expected a torch.nn.Module")
    for module in model.modules():
        if isinstance(module, Rewritten):
            module.__class__ = written_class(module)
        elif module.__dict__.pop(_MARK, False):
            module.__class__ = BACK[type(module)]


def _selected(model, layers):
    """A function that tells of a module's name and PyTorch's class whether it is meant."""
    if layers is None:
        return lambda name, layer: True
    words = [layers] if isinstance(layers, (str, type)) else layers
    try:
        words = list(words)
    except TypeError:
        words = [words]
    names, known = set(), dict(model.named_modules())
    classes = set()
    for word in words:
        if isinstance(word, str):
            if word not in known:
                raise ValueError(f"convert: layers has {word!r}, which is no module of the model{nearest(word, known)}")
            names.add(word)
        elif isinstance(word, type) and issubclass(word, nn.Module):
            if BACK.get(word, word) not in LAYERS:
                raise ValueError(f"convert: layers has {word.__module__}.{word.__qualname__}, which has no counterpart in dnnkern.torch.nn")
            classes.add(BACK.get(word, word))
        else:
            raise TypeError(f"convert: layers has {word!r}; expected names of modules and classes of torch.nn")
    return lambda name, layer: layer in classes or any(name == word or not word or name.startswith(f"{word}.") for word in names)


def _swap(module):
    """Make a layer this library's; None if it was done, else why not, "" where there is nothing to do."""
    layer = type(module)
    if layer in LAYERS:
        if "forward" in module.__dict__:
            return "its forward was replaced"
        module.__class__ = LAYERS[layer]
        module.__dict__[_MARK] = True
        return None
    if layer in BACK or layer in _NOTHING or isinstance(module, Rewritten):
        return ""
    base = next((b for b in layer.__mro__ if b in LAYERS), None)
    if base is not None:
        return f"a subclass of {base.__name__}, which may compute something else"
    if module._modules:
        return ""
    return "no counterpart in dnnkern.torch.nn" if layer.__module__.startswith("torch.nn.") else "not a layer of PyTorch's"


def _rewrite(module):
    """Give a module a forward with chains; (the chains' texts, why there is none or None)."""
    layer = type(module)
    if isinstance(module, Rewritten):
        return [], None
    if layer.__module__.startswith("torch.nn.") and not isinstance(module, nn.Sequential):
        return [], None
    if "forward" in module.__dict__:
        return [], "its forward was replaced"
    taken = _required(layer)
    if not 1 <= taken <= MOST_TENSORS:
        return [], f"its forward takes {taken or 'no'} arguments without defaults"
    module.__class__ = rewritten_class(layer)
    found, why, training = {}, None, module.training
    try:
        for mode in (training, not training):
            module.training = mode
            found.update(dict.fromkeys(rewritten(module, taken)[1]))
    except Untraced as error:
        why = str(error)
    finally:
        module.training = training
        if not found:
            module.__class__ = layer
    return list(found), None if found else why


def _required(layer):
    """How many arguments a forward needs."""
    code, defaults = getattr(layer.forward, "__code__", None), getattr(layer.forward, "__defaults__", None)
    return 0 if code is None else code.co_argcount - 1 - len(defaults or ())
