# %% [markdown]
# # A graph that is called with arrays
#
# A convolution of half-precision, channels-last images, as cuDNN's Python package has it.
#
#     python examples/graph_convolution.py [n c h w k]

# %%
import sys

import torch

import dnnkern.graph as cudnn
from dnnkern.device import DEVICE


def main(n=8, c=64, h=56, w=56, k=32):
    device = "cuda" if DEVICE == "cuda" else "cpu"
    X = torch.randn(n, c, h, w, dtype=torch.float16, device=device).to(memory_format=torch.channels_last)
    W = torch.randn(k, c, 3, 3, dtype=torch.float16, device=device).to(memory_format=torch.channels_last)
    handle = cudnn.create_handle()

    with cudnn.Graph(inputs=["conv2d::image", "conv2d::weight"], outputs=["conv_out"]) as graph:
        Y = graph.conv_fprop(image=X, weight=W, padding=[1, 1], stride=[1, 1], dilation=[1, 1],
                             compute_data_type=cudnn.data_type.FLOAT, name="conv2d")
        Y.set_output(True).set_data_type(cudnn.data_type.HALF).set_name("conv_out")

    y = graph(X, W, handle=handle)
    expected = torch.nn.functional.conv2d(X.double(), W.double(), padding=1)
    print(f"{tuple(y.shape)} {y.dtype}, channels last: {y.is_contiguous(memory_format=torch.channels_last)}, "
          f"largest error over largest value: {(y - expected).abs().max() / expected.abs().max():.1e}")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:] if word.isdigit()))
