"""Cases of block_scale_dequantize."""
from .block_scale_quantize import Blocks, block_cases, large_cases

CASES, LARGE = block_cases("block_scale_dequantize"), large_cases("block_scale_dequantize")
CASES += [Blocks(f"{scales}-scales-4x96-f32", (4, 96), 32, "float32", narrow, scales, op="block_scale_dequantize")
          for scales, narrow in (("float32", "float8_e4m3fn"), ("float16", "uint8"), ("bfloat16", "float8_e5m2"))]
