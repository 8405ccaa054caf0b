# %% [markdown]
# # From a cuDNN program to dnnkern, line by line
#
# First cuDNN's legacy interface: descriptors, a choice of an algorithm, a workspace, a call. Then its graphs.
#
#     python examples/from_cudnn.py
#
# ## Descriptors
#
# cuDNN describes each operand, then the convolution, then asks for the size of the result:
#
# ```c
# cudnnCreateTensorDescriptor(&input_descriptor);
# cudnnSetTensor4dDescriptor(input_descriptor, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, 3, 224, 224);
# cudnnCreateFilterDescriptor(&kernel_descriptor);
# cudnnSetFilter4dDescriptor(kernel_descriptor, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, 64, 3, 3, 3);
# cudnnCreateConvolutionDescriptor(&convolution_descriptor);
# cudnnSetConvolution2dDescriptor(convolution_descriptor, 1, 1, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT);
# cudnnGetConvolution2dForwardOutputDim(convolution_descriptor, input_descriptor, kernel_descriptor, &n, &k, &h, &w);
# ```
#
# Here arrays describe themselves, and the parameters of the convolution are keywords: padding 1, stride 1, dilation 1. There is no handle,
# and nothing to destroy. A problem is what the descriptors are together, without any data:

# %%
import numpy as np

import dnnkern
from dnnkern import Note, dispatch
from dnnkern.device import DEVICE, cuda

shapes = {"x": ((1, 3, 224, 224), "float32"), "w": ((64, 3, 3, 3), "float32")}
problem = dnnkern.problem("conv_fwd", **shapes, stride=1, padding=1, dilation=1, mode="cross_correlation", layout="NCHW")
print("problem:", problem)
print("result:", problem.y.shape)

# %% [markdown]
# ## The algorithm
#
# ```c
# cudnnGetConvolutionForwardAlgorithm(handle, input_descriptor, kernel_descriptor, convolution_descriptor, output_descriptor,
#                                     CUDNN_CONVOLUTION_FWD_PREFER_FASTEST, /* memoryLimitInBytes */ 0, &algorithm);
# printf("%d\n", algorithm);
# ```
#
# `get_algorithm` is that call: it predicts and measures nothing. With PREFER_FASTEST cuDNN does not read the limit. The other two
# preferences are limits here: SPECIFY_WORKSPACE_LIMIT is `workspace_limit=` bytes, NO_WORKSPACE is `workspace_limit=0`. With
# `prefer="device"` the simulator answers as an H200 would. The processor answers for itself, and adds a 300th of the time to compile.

# %%
for preference, limits in (("PREFER_FASTEST", {}), ("NO_WORKSPACE", {"workspace_limit": 0})):
    print(f"{preference}: {dispatch.get_algorithm('conv_fwd', problem, prefer='device', **limits).name}")

# %% [markdown]
# ## The workspace
#
# ```c
# cudnnGetConvolutionForwardWorkspaceSize(handle, input_descriptor, kernel_descriptor, convolution_descriptor, output_descriptor, algorithm,
#                                         &bytes);
# ```
#
# `explain` has it, and every algorithm's: the first one is the choice. A call allocates its workspace if it is not given one.

# %%
for candidate in dispatch.explain("conv_fwd", problem, prefer="device"):
    print(f"{candidate.algo:20}", candidate.reason or f"{candidate.time_ms:.3f} ms predicted, {candidate.memory} bytes")

# %% [markdown]
# ## The call
#
# ```c
# cudnnConvolutionForward(handle, &alpha, input_descriptor, d_input, kernel_descriptor, d_kernel, convolution_descriptor, algorithm,
#                         d_workspace, bytes, &beta, output_descriptor, d_output);
# ```
#
# `alpha`, `beta`, `workspace` and `out` are keywords with defaults; `algo=` forces an algorithm. Bias and activation, which are
# `cudnnConvolutionBiasActivationForward` there, are arguments of the same function. The call itself is on 12x12 pixels, so that the
# simulator runs it in seconds.

# %%
rng = np.random.default_rng(0)
X, W = rng.standard_normal((1, 3, 12, 12)).astype(np.float32), rng.standard_normal((64, 3, 3, 3)).astype(np.float32)
x, w, y = cuda.to_device(X), cuda.to_device(W), cuda.to_device(np.empty((1, 64, 12, 12), np.float32))
dnnkern.conv_fwd(x, w, padding=1, workspace_limit=0, out=y)

padded = np.pad(X.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))  # the definition, in float64
windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
expected = np.einsum("nchwrs,kcrs->nkhw", windows, W, optimize=True)
print(f"legacy, on {DEVICE}: largest error against float64: {np.abs(y.copy_to_host() - expected).max():.1e}")

# %% [markdown]
# `cudnnConvolutionBackwardData` and `cudnnConvolutionBackwardFilter` are `conv_bwd_data` and `conv_bwd_filter`. Choices that are not
# reproducible bit by bit are made only with `allow=Note.NONDETERMINISTIC`; `exclude=` has other notes of cuDNN's, such as its math types:

# %%
y = dnnkern.conv_fwd(x, w, padding=1, exclude=Note.TENSOR_CORE | Note.WINOGRAD | Note.FFT)
print(f"without tensor cores, Winograd and FFT: {np.abs(y.copy_to_host() - expected).max():.1e}")

# %% [markdown]
# ## The graph
#
# A program of cuDNN's Python package needs another import, and nothing else:
#
# ```python
# import cudnn                      # before
# import dnnkern.graph as cudnn     # after
# ```
#
# As with cuDNN, results have channels last unless their strides are set, and buffers are not compared with the graph's shapes.

# %%
import dnnkern.graph as cudnn

handle = cudnn.create_handle()
graph = cudnn.pygraph(name="layer", handle=handle, io_data_type=cudnn.data_type.FLOAT, intermediate_data_type=cudnn.data_type.FLOAT,
                      compute_data_type=cudnn.data_type.FLOAT)
image = graph.tensor(name="image", dim=X.shape, stride=[s // 4 for s in X.strides])
weight = graph.tensor(name="weight", dim=W.shape, stride=[s // 4 for s in W.strides])
convolved = graph.conv_fprop(image=image, weight=weight, padding=[1, 1], stride=[1, 1], dilation=[1, 1], name="conv")
result = graph.relu(convolved, name="relu").set_output(True).set_dim([1, 64, 12, 12]).set_stride([64 * 144, 144, 12, 1])
graph.validate()
graph.build_operation_graph()
graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
graph.check_support()
graph.build_plans()

workspace = cuda.to_device(np.empty(max(graph.get_workspace_size(), 1), np.uint8))
y = cuda.to_device(np.empty((1, 64, 12, 12), np.float32))
graph.execute({image: x, weight: w, result: y}, workspace, handle=handle)
print(graph.explain())
print(f"graph, on {DEVICE}: largest error against float64: {np.abs(y.copy_to_host() - np.maximum(expected, 0)).max():.1e}")
