"""Moves and conversions to measure: cases written in the words of the command line."""
from dnnkern.transform.blocks._problem import BLOCK_SCALES, FLOATS, FOUR_BITS
from dnnkern.transform.layout._blocks_problem import BLOCKS
from dnnkern.transform.sample._grid_problem import AFFINES, SAMPLES
from dnnkern.transform._parse import parse_problem
from dnnkern.transform.sample._resample_problem import RESAMPLES

from . import _words


class Case(_words.Case):
    """A problem of the family."""
    parse = staticmethod(parse_problem)

    def call(self, arrays, **keywords):
        """The public function on arrays by name, with `out`; keywords are passed on (`algo`, `allow`)."""
        import dnnkern
        p = self.problem
        if self.op == "transpose":
            return dnnkern.transpose(arrays["x"], p.axes, out=arrays["y"], **keywords)
        if self.op == "cast":
            return dnnkern.cast(arrays["x"], p.y.dtype, scale=0.5 if p.scale else 1.0, out=arrays["y"], **keywords)
        if self.op == "strided_slice":
            return dnnkern.strided_slice(arrays["x"], p.starts, p.stops, p.steps, out=arrays["y"], **keywords)
        if self.op == "concat":
            return dnnkern.concat([arrays[name] for name, _ in p.boxes], p.axis, out=arrays["y"], **keywords)
        if self.op == "pad":
            return dnnkern.pad(arrays["x"], p.pads, mode=p.mode, value=1.0, out=arrays["y"], **keywords)
        if self.op in BLOCK_SCALES:
            keywords.update(axis=p.axis, dtype=FOUR_BITS if p.y.dtype == "uint8" else p.y.dtype)
            if p.quantizes:
                return dnnkern.block_scale_quantize(arrays["x"], p.block, scale_dtype=p.scale.dtype, out=(arrays["y"], arrays["scale"]),
                                                    **keywords)
            return dnnkern.block_scale_dequantize(arrays["x"], arrays["scale"], p.block, out=arrays["y"], **keywords)
        if self.op == "move_rows":
            return dnnkern.move_rows(arrays["x"], *(arrays.get(name) for name in ("source", "target")), out=arrays["y"], **keywords)
        if self.op == "pad_bwd":
            return dnnkern.pad_bwd(arrays["dy"], p.pads, mode=p.mode, out=arrays["dx"], **keywords)
        if self.op == "set_tensor":
            return dnnkern.set_tensor(arrays["x"], 1.0, **keywords)
        if self.op in BLOCKS:
            return getattr(dnnkern, self.op)(arrays["x"], p.block, out=arrays["y"], **keywords)
        if self.op in RESAMPLES:
            wanted, given, result = (p.window, "x", "y") if p.is_forward else (p.x.shape, "dy", "dx")
            return getattr(dnnkern, self.op)(arrays[given], wanted, mode=p.mode, align_corners=p.align_corners, antialias=p.antialias,
                                             layout=p.layout, out=arrays[result], **keywords)
        if self.op in SAMPLES:
            keywords.update(mode=p.mode, padding_mode=p.padding_mode, align_corners=p.align_corners)
            if p.is_forward:
                return dnnkern.grid_sample_fwd(arrays["x"], arrays["grid"], out=arrays["y"], **keywords)
            return dnnkern.grid_sample_bwd(arrays["dy"], arrays["x"], arrays["grid"], out=(arrays["dx"], arrays["dgrid"]), **keywords)
        if self.op in AFFINES:
            keywords["align_corners"] = p.align_corners
            if p.is_forward:
                size = (p.grid.shape[0], 1, *p.grid.shape[1:-1])
                return dnnkern.affine_grid_fwd(arrays["theta"], size, out=arrays["grid"], **keywords)
            return dnnkern.affine_grid_bwd(arrays["dgrid"], out=arrays["dtheta"], **keywords)
        more = dict(stride=p.stride, padding=p.padding, dilation=p.dilation, layout=p.layout, **keywords)
        if self.op == "im2col":
            return dnnkern.im2col(arrays["x"], p.window, out=arrays["columns"], **more)
        return dnnkern.col2im(arrays["columns"], p.x.shape, p.window, out=arrays["x"], **more)


IMAGES = {
    "twice": ("16x256x64x64 {} 128x128 bilinear", "16x256x64x64 {} 128x128 nearest", "32x64x112x112 {} 224x224 bilinear",
              "16x512x32x32 {} 64x64 bilinear corners"),
    "heads": ("8x21x65x65 {} 513x513 bilinear", "4x19x128x256 {} 512x1024 bilinear corners"),
    "smaller": ("64x3x256x256 {} 224x224 bilinear", "32x64x112x112 {} 56x56 bilinear", "32x64x112x112 {} 56x56 nearest"),
    "filters": ("16x64x128x128 {} 256x256 bicubic", "64x3x512x512 {} 224x224 bilinear antialias",
                "64x3x512x512 {} 224x224 bicubic antialias", "32x64x112x112 {} 7x7 area"),
    "volumes": ("2x32x32x64x64 {} 64x128x128 bilinear",), "lines": ("64x256x4000 {} 16000 bilinear",)}
"""Images to resample: feature pyramids, decoders, segmentations, pictures."""

GRIDS = {
    "images": ("32x64x112x112 {} 112x112", "16x256x64x64 {} 64x64 --padding border", "64x3x224x224 {} 224x224 --padding reflection",
               "8x128x100x152 {} 100x152 --corners  # optical flow"),
    "nearest": ("32x64x112x112 {} 112x112 --mode nearest",), "volumes": ("4x16x32x64x64 {} 32x64x64",)}
"""Images to sample at the places of a grid."""


def shapes(op, sets, dtypes, example, layouts=()):
    """Sets of an operation."""
    return _words.Shapes(op, sets, dtypes, example, layouts, case=Case)


def block_scales(op):
    """What the module of an operation on blocks with scales binds: (DTYPES, SETS, cases, parse)."""
    sets = {"mxfp8": ("8192x8192 {} 32", "8192x8192 {} 32 --to float8_e5m2", "8192x8192 {} 32 --axis 0"),
            "nvfp4": ("8192x8192 {} 16 --to float4_e2m1fn_x2",), "small": ("512x4096 {} 32",)}
    made = shapes(op, sets, FLOATS, "8192x8192 {} 32")
    return FLOATS, made.SETS, made.cases, made.parse
