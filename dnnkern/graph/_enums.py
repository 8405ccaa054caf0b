"""The enumerations of the Python package `cudnn`, member for member, and what types are called here and elsewhere."""
import enum


def _enum(name, words, doc):
    made = enum.Enum(name, words.split(), module=__name__)
    made.__doc__ = doc
    return made


data_type = _enum("data_type", "FLOAT DOUBLE HALF INT8 INT32 INT8x4 UINT8 UINT8x4 INT8x32 BFLOAT16 INT64 BOOLEAN FP8_E4M3 FP8_E5M2 "
                  "FAST_FLOAT_FOR_FP8 FP8_E8M0 FP4_E2M1 INT4 NOT_SET", "Types of elements and of arithmetic.")
heur_mode = _enum("heur_mode", "A B FALLBACK OPENSOURCE", "Which plans a graph has: A and OPENSOURCE a few, by predicted time; "
                  "B more; FALLBACK what always works.")
build_plan_policy = _enum("build_plan_policy", "HEURISTICS_CHOICE ALL", "Which plans `build_plans` builds: the first, or all.")
convolution_mode = _enum("convolution_mode", "CONVOLUTION CROSS_CORRELATION", "Whether filters are flipped.")
reduction_mode = _enum("reduction_mode", "ADD MUL MIN MAX AMAX AVG NORM1 NORM2 MUL_NO_ZEROS NOT_SET", "What a reduction computes.")
norm_forward_phase = _enum("norm_forward_phase", "INFERENCE TRAINING NOT_SET", "Whether a normalization also returns its statistics.")
tensor_reordering = _enum("tensor_reordering", "NONE INT8x32 F16x16 F8_128x4", "Orders of elements that strides cannot describe.")
reshape_mode = _enum("reshape_mode", "VIEW_ONLY LOGICAL", "Whether a reshape may copy.")
scalar_type = _enum("scalar_type", "RUNTIME_PARAM COMPILE_TIME_CONST", "When the value of a scalar is known.")
diagonal_alignment = _enum("diagonal_alignment", "TOP_LEFT BOTTOM_RIGHT", "The corner at which the diagonal of a mask begins.")
attention_implementation = _enum("attention_implementation", "AUTO COMPOSITE UNIFIED", "A hint that changes nothing here.")
moe_grouped_matmul_mode = _enum("moe_grouped_matmul_mode", "NONE GATHER SCATTER", "How rows of tokens are addressed.")
resampling_mode = _enum("resampling_mode", "AVGPOOL_EXCLUDE_PADDING AVGPOOL_INCLUDE_PADDING BILINEAR NEAREST MAXPOOL",
                        "What `resample` computes of a window.")
padding_mode = _enum("padding_mode", "EDGE_VAL_PAD NEG_INF_PAD ZERO_PAD", "What lies around the input of `resample`.")
rng_distribution = _enum("rng_distribution", "BERNOULLI UNIFORM NORMAL", "What `rng` draws.")
numerical_note = _enum("numerical_note", "TENSOR_CORE DOWN_CONVERT_INPUTS REDUCED_PRECISION_REDUCTION FFT NONDETERMINISTIC WINOGRAD "
                       "WINOGRAD_TILE_4x4 WINOGRAD_TILE_6x6 WINOGRAD_TILE_13x13 STRICT_NAN_PROP", "Properties of a plan's arithmetic.")
behavior_note = _enum("behavior_note", "RUNTIME_COMPILATION REQUIRES_FILTER_INT8x32_REORDER REQUIRES_BIAS_INT8x32_REORDER "
                      "SUPPORTS_CUDA_GRAPH_NATIVE_API CUBLASLT_DEPENDENCY", "Properties of how a plan runs.")
knob_type = _enum("knob_type", "NOT_SET SWIZZLE TILE_SIZE EDGE MULTIPLY SPLIT_K_BUF TILEK STAGES REDUCTION_MODE SPLIT_K_SLC IDX_MODE "
                  "SPECFILT KERNEL_CFG WORKSPACE TILE_CGA_M TILE_CGA_N BLOCK_SIZE OCCUPANCY ARRAY_SIZE_PER_THREAD SPLIT_COLS TILE_ROWS "
                  "TILE_COLS LOAD_SIZE CTA_COUNT STREAM_K SPLIT_P_SLC TILE_M TILE_N WARP_SPEC_CFG",
                  "What a plan of an engine may be made with; engines here have KERNEL_CFG.")

DTYPE = {"FLOAT": "float32", "DOUBLE": "float64", "HALF": "float16", "BFLOAT16": "bfloat16", "INT8": "int8", "INT32": "int32",
         "INT64": "int64", "UINT8": "uint8", "BOOLEAN": "bool", "FP8_E4M3": "float8_e4m3fn", "FP8_E5M2": "float8_e5m2",
         "FP8_E8M0": "float8_e8m0fnu", "FAST_FLOAT_FOR_FP8": "float32"}
"""Name of a `data_type` -> the library's name of the dtype, of those that it has."""
ITEMSIZE = {"FLOAT": 4, "DOUBLE": 8, "HALF": 2, "BFLOAT16": 2, "INT8": 1, "INT32": 4, "INT64": 8, "UINT8": 1, "BOOLEAN": 1, "FP8_E4M3": 1,
            "FP8_E5M2": 1, "FAST_FLOAT_FOR_FP8": 4, "FP8_E8M0": 1, "INT8x4": 4, "UINT8x4": 4, "INT8x32": 32}
"""Bytes of an element."""


def bytes_of_elements(dtype, count):
    """Bytes that so many elements of a type take: of four bits two a byte."""
    return -(-count // 2) if dtype in ("FP4_E2M1", "INT4") else count * ITEMSIZE[dtype]


_NAMED = {**{name: data_type[kind] for kind, name in DTYPE.items() if kind != "FAST_FLOAT_FOR_FP8"}, "float4_e2m1fn_x2": data_type.FP4_E2M1}


def as_data_type(value, what) -> data_type:
    """A type given as a `data_type`, a torch or NumPy dtype, a name, or None; TypeError that begins with `what` where it is none."""
    if isinstance(value, data_type):
        return value
    if value is None:
        return data_type.NOT_SET
    if isinstance(value, str) and value in data_type.__members__:
        return data_type[value]
    text = value if isinstance(value, str) else getattr(value, "__name__", None) or str(value)  # "torch.float16", "float16"
    try:
        return _NAMED[text.rpartition(".")[2]]
    except KeyError:
        raise TypeError(f"{what}: data type {value!r}; expected a data_type, or a torch or NumPy dtype of {', '.join(_NAMED)}") from None


def member(kind, value, what):
    """A member of an enumeration given as itself or by name; TypeError that begins with `what` where it is none."""
    if isinstance(value, kind):
        return value
    if isinstance(value, str) and value in kind.__members__:
        return kind[value]
    raise TypeError(f"{what}: got {value!r}; expected one of {', '.join(f'{kind.__name__}.{name}' for name in kind.__members__)}")
