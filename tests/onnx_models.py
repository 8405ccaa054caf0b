"""Models in ONNX's text, with the structure that PyTorch's exporters give a residual network, an encoder, a recurrent network and a U-Net;
random weights."""
import numpy as np
import onnx
import onnx.parser

HEAD = '<ir_version: 10, opset_import: ["": {opset}]>\n'
RESNET = """resnet (float[N, 3, 9, 9] x) => (float[N, 5] y) {
    a = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w0)
    b = BatchNormalization (a, s0, o0, m0, v0)
    c = Relu (b)
    d = MaxPool <kernel_shape = [3, 3], strides = [1, 1], pads = [1, 1, 1, 1]> (c)
    e = Conv <pads = [1, 1, 1, 1]> (d, w1, b1)
    f = Relu (e)
    g = Conv <pads = [1, 1, 1, 1]> (f, w2, b2)
    h = Add (g, d)
    i = Relu (h)
    j = GlobalAveragePool (i)
    k = Flatten (j)
    y = Gemm <transB = 1> (k, w3, b3)
}"""
BERT = """bert (int64[N, S] ids, float[N, 1, 1, S] mask) => (float[N, S, 8] y) {
    e = Gather (words, ids)
    x = Add (e, positions)
    n = LayerNormalization (x, s0, o0)
    q0 = MatMul (n, wq)
    q1 = Add (q0, bq)
    q2 = Reshape (q1, heads)
    q = Transpose <perm = [0, 2, 1, 3]> (q2)
    k0 = MatMul (n, wk)
    k2 = Reshape (k0, heads)
    k = Transpose <perm = [0, 2, 3, 1]> (k2)
    v0 = MatMul (n, wv)
    v2 = Reshape (v0, heads)
    v = Transpose <perm = [0, 2, 1, 3]> (v2)
    s = MatMul (q, k)
    t = Div (s, root)
    u = Add (t, mask)
    p = Softmax <axis = -1> (u)
    o0_ = MatMul (p, v)
    o1 = Transpose <perm = [0, 2, 1, 3]> (o0_)
    o2 = Reshape (o1, joined)
    o3 = MatMul (o2, wo)
    o4 = Add (o3, bo)
    r = Add (o4, n)
    f = MatMul (r, w1)
    g0 = Add (f, b1)
    g1 = Div (g0, half)
    g2 = Erf (g1)
    g3 = Add (g2, one)
    g4 = Mul (g0, g3)
    y = Mul (g4, root)
}"""
LSTM = """lstm (float[4, N, 3] x) => (float[4, N, 2] y, float[1, N, 4] h) {
    a = LSTM <hidden_size = 3, direction = "bidirectional"> (x, w0, r0, b0)
    b = Transpose <perm = [0, 2, 1, 3]> (a)
    c = Reshape (b, both)
    d, h = GRU <hidden_size = 4, linear_before_reset = 1> (c, w1, r1, b1)
    axis = Constant <value_ints = [1]> ()
    e = Squeeze (d, axis)
    f = MatMul (e, w2)
    g = Add (f, b2)
    y = LogSoftmax <axis = -1> (g)
}"""
UNET = """unet (float[N, 2, 6, 8] x) => (float[N, 1, 6, 8] y) {
    a = Conv <pads = [1, 1, 1, 1]> (x, w0, b0)
    b = InstanceNormalization (a, s0, o0)
    c = LeakyRelu <alpha = 0.1> (b)
    d = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (c)
    e = Conv <pads = [1, 1, 1, 1]> (d, w1, b1)
    f = Sigmoid (e)
    g = Mul (e, f)
    h = ConvTranspose <kernel_shape = [2, 2], strides = [2, 2]> (g, w2, b2)
    i = Concat <axis = 1> (h, c)
    j = Resize <mode = "linear", coordinate_transformation_mode = "half_pixel"> (g, , scales)
    k = Concat <axis = 1> (i, j)
    l = Conv (k, w3, b3)
    y = Sigmoid (l)
}"""
SHAPES = {
    "resnet": {"w0": (4, 3, 3, 3), **dict.fromkeys(("s0", "o0", "m0", "v0", "b1", "b2"), (4,)),
               **dict.fromkeys(("w1", "w2"), (4, 4, 3, 3)), "w3": (5, 4), "b3": (5,)},
    "bert": {"words": (11, 8), "positions": (1, 5, 8), "s0": (8,), "o0": (8,), **dict.fromkeys(("wq", "wk", "wv", "wo", "w1"), (8, 8)),
             **dict.fromkeys(("bq", "bo", "b1"), (8,))},
    "lstm": {"w0": (2, 12, 3), "r0": (2, 12, 3), "b0": (2, 24), "w1": (1, 12, 6), "r1": (1, 12, 4), "b1": (1, 24), "w2": (4, 2),
             "b2": (2,)},
    "unet": {"w0": (4, 2, 3, 3), "b0": (4,), "s0": (4,), "o0": (4,), "w1": (6, 4, 3, 3), "b1": (6,), "w2": (6, 3, 2, 2), "b2": (3,),
             "w3": (1, 13, 1, 1), "b3": (1,)}}
CONSTANTS = {
    "bert": {"heads": np.array([0, 0, 2, 4]), "joined": np.array([0, 0, -1]), "root": np.array(2.0), "half": np.array(2 ** 0.5),
             "one": np.array(1.0)},
    "lstm": {"both": np.array([0, 0, -1])}, "unet": {"scales": np.array([1, 1, 2, 2], np.float32)}}
INPUTS = {"resnet": {"x": (2, 3, 9, 9)}, "bert": {"ids": (2, 5), "mask": (2, 1, 1, 5)}, "lstm": {"x": (4, 3, 3)},
          "unet": {"x": (1, 2, 6, 8)}}
TEXTS = {"resnet": RESNET, "bert": BERT, "lstm": LSTM, "unet": UNET}


def parsed(text, opset=21, weights=None, dtype="float32"):
    """A model of ONNX's text, with weights ``{name: array}``; `dtype` replaces its floats."""
    kinds = {"float32": "float", "float64": "double", "float16": "float16", "bfloat16": "bfloat16"}
    model = onnx.parser.parse_model(HEAD.format(opset=opset) + text.replace("float[", kinds[dtype] + "["))
    for name, x in (weights or {}).items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ascontiguousarray(x).reshape(np.shape(x)), name))
    return model


def small(name, dtype="float32"):
    """(model, inputs by name)."""
    rng = np.random.default_rng([20, *name.encode()])
    weights = {key: rng.standard_normal(shape) * 0.4 for key, shape in SHAPES[name].items()}
    weights.update({key: np.abs(weights[key]) + 0.5 for key in weights if key == "v0"})
    weights = {key: x.astype(dtype) for key, x in weights.items()}
    for key, x in CONSTANTS.get(name, {}).items():
        weights[key] = x.astype(dtype) if x.dtype == np.float64 else x
    inputs = {key: rng.integers(0, 11, shape) if key == "ids" else rng.standard_normal(shape).astype(dtype)
              for key, shape in INPUTS[name].items()}
    return parsed(TEXTS[name], weights=weights, dtype=dtype), inputs
