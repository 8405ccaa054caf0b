"""PyTorch's resampling: channels last are a view of channels first, for which it has kernels of its own in two dimensions."""
import torch

MODES = {"nearest": "upsample_nearest{}d", "nearest-exact": "_upsample_nearest_exact{}d"}
BILINEAR = "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"


def name_of(p):
    """PyTorch's operation; None where it has none of its own."""
    dims = len(p.window)
    if p.mode in MODES:
        return MODES[p.mode].format(dims)
    if p.mode == "bilinear" and not p.antialias:
        return BILINEAR[dims - 1]
    if p.mode == "area" or dims != 2:
        return None
    return f"_upsample_{p.mode}2d_aa" if p.antialias else "upsample_bicubic2d"


def first(t, p):
    """A view with channels first."""
    return t if p.layout == "NCHW" else t.movedim(-1, 1)


def bind(p, t):
    """The call on tensors by name."""
    dims = len(p.window)
    name, corners = name_of(p), () if p.mode in MODES else (p.align_corners,)
    scales = (None,) * dims
    if p.is_forward:
        function, x, y = getattr(torch.ops.aten, name).out, first(t["x"], p), first(t["y"], p)
        return lambda: function(x, p.window, *corners, *scales, out=y)
    function = getattr(torch.ops.aten, f"{name}_backward").grad_input
    dy, dx = first(t["dy"], p), first(t["dx"], p)
    return lambda: function(dy, p.window, dx.shape, *corners, *scales, grad_input=dx)
