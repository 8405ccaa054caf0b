"""Calls of Keras' layers beside the operators of PyTorch that they have to reach, forward and backward."""
from dataclasses import dataclass
from typing import Callable

import torch
from keras import layers as L
from torch_calls import BATCH_NORM, CONV, DEVICE, GROUP_NORM, LAYER_NORM, RMS_NORM

MAX2, MAX3 = ((f"max_pool{d}d_with_indices", f"max_pool{d}d_with_indices_backward") for d in (2, 3))
AVERAGE2, AVERAGE3 = ((f"avg_pool{d}d", f"avg_pool{d}d_backward") for d in (2, 3))
MEAN = "mean.dim",
DENSE = "addmm", "mm"
LSTM, GRU, TANH, RELU = ((f"{op}.input", f"{op}.input backward") for op in ("lstm", "gru", "rnn_tanh", "rnn_relu"))
ATTENTION = "scaled_dot_product_attention", "scaled_dot_product_attention backward", *DENSE
FROZEN = BATCH_NORM if BATCH_NORM[0] == "native_batch_norm" else ("cudnn_batch_norm", "native_batch_norm_backward")


@dataclass(frozen=True)
class Case:
    """`layer(**options)` makes the layer, `call` are keywords of its call, `shapes` those of its tensors."""
    id: str
    layer: Callable
    options: dict
    shapes: tuple
    ops: tuple
    call: dict
    dtypes: tuple

    def __str__(self):
        return self.id


ALL = "float32", "float64", "mixed_bfloat16", "mixed_float16"
PLAIN = "float32",


def case(id, layer, shapes, ops, dtypes=PLAIN, call=None, **options):
    shapes = shapes if isinstance(shapes[0], tuple) else (shapes,)
    return Case(id, layer, options, shapes, ops, call or {}, dtypes)


def mask(*rows):
    """Steps that are valid, of as many sequences as there are rows."""
    return torch.tensor([[letter == "x" for letter in row] for row in rows], device=DEVICE)


PADDED = mask("xxxx.", "xx...", "xxxxx")
GAPS = mask("x.xx.", ".....", "..x.x")
SEEN = mask("x.xx.", "xx...", "x.x.x")  # of rows that see nothing PyTorch's kernels make different things
TRAIN, INFER = {"training": True}, {"training": False}


def bidirectional(layer, **options):
    def make(dtype):
        return L.Bidirectional(layer(4, dtype=dtype, **options), dtype=dtype)
    return make


CASES = [
    case("conv1d", L.Conv1D, (2, 9, 4), CONV, ALL, filters=6, kernel_size=3),
    case("conv1d-same-strided", L.Conv1D, (2, 9, 4), CONV, filters=6, kernel_size=4, strides=2, padding="same"),
    case("conv1d-causal", L.Conv1D, (2, 9, 4), CONV, filters=6, kernel_size=3, dilation_rate=2, padding="causal", activation="relu"),
    case("conv1d-first", L.Conv1D, (2, 4, 9), CONV, filters=6, kernel_size=3, padding="same", data_format="channels_first"),
    case("conv2d", L.Conv2D, (2, 8, 7, 4), CONV, ALL, filters=6, kernel_size=3, activation="relu"),
    case("conv2d-one-channel", L.Conv2D, (2, 8, 7, 1), CONV, filters=6, kernel_size=3, padding="same"),
    case("conv2d-same-strided", L.Conv2D, (2, 8, 7, 4), CONV, filters=6, kernel_size=(3, 2), strides=2, padding="same"),
    case("conv2d-grouped", L.Conv2D, (2, 8, 7, 4), CONV, filters=6, kernel_size=3, groups=2, dilation_rate=2, padding="same",
         use_bias=False),
    case("conv2d-first", L.Conv2D, (2, 4, 8, 7), CONV, filters=6, kernel_size=3, data_format="channels_first"),
    case("conv3d", L.Conv3D, (2, 4, 5, 4, 3), CONV, filters=4, kernel_size=2, padding="same"),
    case("depthwise1d", L.DepthwiseConv1D, (2, 9, 4), CONV, kernel_size=3, padding="same"),
    case("depthwise2d", L.DepthwiseConv2D, (2, 8, 7, 4), CONV, ALL, kernel_size=3, strides=2, padding="same", depth_multiplier=2),
    case("separable1d", L.SeparableConv1D, (2, 9, 4), CONV, filters=6, kernel_size=3),
    case("separable2d", L.SeparableConv2D, (2, 8, 7, 4), CONV, filters=6, kernel_size=3, padding="same"),
    case("transposed1d", L.Conv1DTranspose, (2, 5, 4), CONV, filters=6, kernel_size=3, strides=2),
    case("transposed2d", L.Conv2DTranspose, (2, 5, 4, 4), CONV, ALL, filters=6, kernel_size=3, strides=2, padding="same"),
    case("transposed3d", L.Conv3DTranspose, (2, 3, 2, 3, 2), CONV, filters=3, kernel_size=2),
    case("max1d", L.MaxPooling1D, (2, 9, 4), MAX2, pool_size=2),
    case("max2d", L.MaxPooling2D, (2, 8, 7, 4), MAX2, ALL, pool_size=2, padding="same"),
    case("max3d", L.MaxPooling3D, (2, 4, 5, 4, 3), MAX3, pool_size=2),
    case("average1d", L.AveragePooling1D, (2, 9, 4), AVERAGE2, pool_size=2),
    case("average2d", L.AveragePooling2D, (2, 8, 7, 4), AVERAGE2, ALL, pool_size=3, strides=2, padding="same"),
    case("average3d", L.AveragePooling3D, (2, 4, 5, 4, 3), AVERAGE3, pool_size=2),
    case("global-average1d", L.GlobalAveragePooling1D, (2, 9, 4), MEAN),
    case("global-average2d", L.GlobalAveragePooling2D, (2, 8, 7, 4), MEAN, keepdims=True),
    case("global-average3d", L.GlobalAveragePooling3D, (2, 4, 5, 4, 3), MEAN),
    case("global-max2d", L.GlobalMaxPooling2D, (2, 8, 7, 4), ()),
    case("batch-norm", L.BatchNormalization, (4, 6, 5, 3), BATCH_NORM, ALL, TRAIN),
    case("batch-norm-2d", L.BatchNormalization, (6, 3), BATCH_NORM, ALL, TRAIN, momentum=0.7, epsilon=1e-2),
    case("batch-norm-3d", L.BatchNormalization, (4, 6, 3), BATCH_NORM, PLAIN, TRAIN, scale=False),
    case("batch-norm-5d", L.BatchNormalization, (2, 3, 4, 3, 5), BATCH_NORM, PLAIN, TRAIN, center=False),
    case("batch-norm-axis1", L.BatchNormalization, (4, 3, 6, 5), BATCH_NORM, PLAIN, TRAIN, axis=1),
    case("batch-norm-axis2", L.BatchNormalization, (4, 6, 3, 5), BATCH_NORM, PLAIN, TRAIN, axis=2),
    case("batch-norm-inference", L.BatchNormalization, (4, 6, 5, 3), FROZEN, ALL, INFER),
    case("batch-norm-frozen", L.BatchNormalization, (4, 6, 5, 3), FROZEN, PLAIN, TRAIN, trainable=False),
    case("batch-norm-masked-inference", L.BatchNormalization, (3, 5, 4), FROZEN, PLAIN, {**INFER, "mask": PADDED}),
    case("layer-norm", L.LayerNormalization, (4, 6, 5), LAYER_NORM, ALL),
    case("layer-norm-axes", L.LayerNormalization, (4, 6, 5), LAYER_NORM, PLAIN, axis=(1, 2), center=False),
    case("rms-norm", L.RMSNormalization, (4, 6, 5), RMS_NORM, ALL),
    case("group-norm", L.GroupNormalization, (2, 5, 4, 6), GROUP_NORM, ALL, groups=3),
    case("group-norm-3d", L.GroupNormalization, (2, 5, 6), GROUP_NORM, PLAIN, groups=2, scale=False),
    case("group-norm-5d", L.GroupNormalization, (2, 3, 4, 3, 6), GROUP_NORM, PLAIN, groups=2),
    case("group-norm-axis1", L.GroupNormalization, (2, 6, 4, 5), GROUP_NORM, PLAIN, groups=2, axis=1),
    case("instance-norm", L.GroupNormalization, (2, 5, 4, 6), GROUP_NORM, PLAIN, groups=-1),
    case("dense", L.Dense, (4, 6), DENSE, ALL, units=5, activation="gelu"),
    case("dense-3d", L.Dense, (4, 3, 6), DENSE, PLAIN, units=5),
    case("dense-without-bias", L.Dense, (4, 6), ("mm",), PLAIN, units=5, use_bias=False),
    case("einsum-dense", L.EinsumDense, (4, 3, 6), DENSE, PLAIN, equation="abc,cde->abde", output_shape=(None, 2, 5), bias_axes="de"),
    case("lstm", L.LSTM, (3, 5, 4), LSTM, ALL, units=6, return_sequences=True),
    case("lstm-last", L.LSTM, (3, 5, 4), LSTM, PLAIN, units=6, go_backwards=True, use_bias=False, return_state=True),
    case("lstm-unrolled", L.LSTM, (3, 5, 4), LSTM, PLAIN, units=6, unroll=True),
    case("lstm-masked", L.LSTM, (3, 5, 4), LSTM, PLAIN, {"mask": PADDED}, units=6),
    case("lstm-gaps", L.LSTM, (3, 5, 4), LSTM, PLAIN, {"mask": GAPS}, units=6, return_sequences=True, go_backwards=True),
    case("gru", L.GRU, (3, 5, 4), GRU, ALL, units=6, return_sequences=True, return_state=True),
    case("gru-without-bias", L.GRU, (3, 5, 4), GRU, PLAIN, units=6, use_bias=False),
    case("gru-gaps", L.GRU, (3, 5, 4), GRU, PLAIN, {"mask": GAPS}, units=6, return_sequences=True, return_state=True),
    case("gru-gaps-zero", L.GRU, (3, 5, 4), GRU, PLAIN, {"mask": GAPS}, units=6, return_sequences=True, zero_output_for_mask=True),
    case("simple-rnn", L.SimpleRNN, (3, 5, 4), TANH, ALL, units=6, return_sequences=True),
    case("simple-rnn-relu", L.SimpleRNN, (3, 5, 4), RELU, PLAIN, {"mask": PADDED}, units=6, activation="relu", return_state=True),
    case("bidirectional-lstm", bidirectional(L.LSTM, return_sequences=True), (3, 5, 4), LSTM),
    case("bidirectional-gru-masked", bidirectional(L.GRU, return_sequences=True), (3, 5, 4), GRU, PLAIN, {"mask": PADDED}),
    case("conv-lstm", L.ConvLSTM2D, (2, 3, 6, 6, 2), CONV, ("float32",), filters=3, kernel_size=3),
    case("attention", L.MultiHeadAttention, ((2, 5, 8), (2, 6, 8)), ATTENTION, ALL, num_heads=2, key_dim=4),
    case("attention-causal", L.MultiHeadAttention, ((2, 5, 8), (2, 5, 8)), ATTENTION, PLAIN, {"use_causal_mask": True}, num_heads=2,
         key_dim=4, value_dim=3),
    case("attention-masked", L.MultiHeadAttention, ((3, 5, 8), (3, 5, 8)), ATTENTION, PLAIN,
         {"attention_mask": SEEN[:, None].expand(3, 5, 5), "use_causal_mask": True}, num_heads=2, key_dim=4),
    case("attention-scores", L.MultiHeadAttention, ((2, 5, 8), (2, 5, 8)), ("_softmax", "_softmax_backward_data", "bmm"), PLAIN,
         {"return_attention_scores": True}, num_heads=2, key_dim=4),
    case("grouped-attention", L.GroupQueryAttention, ((2, 5, 8), (2, 6, 8)), ATTENTION, ALL, head_dim=4, num_query_heads=4,
         num_key_value_heads=2),
    case("activation-softmax", L.Softmax, (4, 6), ("_softmax", "_softmax_backward_data")),
    case("activation-relu", L.ReLU, (4, 6), ("relu", "threshold_backward")),
]
