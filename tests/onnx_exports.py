"""Four networks of PyTorch, small, and what PyTorch exports of them: a residual network, a transformer's encoder, a recurrent one, a U-Net.

python tests/onnx_exports.py FOLDER writes them as files.
"""
import io
import pathlib
import sys
import warnings

import torch
from torch import nn
from torch.nn import functional


class Residual(nn.Module):
    """Two blocks, the second with stride 2 and a projection."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.blocks = nn.ModuleList([Block(8, 8, 1), Block(8, 12, 2)])
        self.head = nn.Linear(12, 10)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Block(nn.Module):
    """conv, norm, relu, conv, norm, and the sum with its input."""

    def __init__(self, c, k, stride):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(c, k, 3, stride, 1, bias=False), nn.BatchNorm2d(k), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(k, k, 3, 1, 1, bias=False), nn.BatchNorm2d(k))
        self.shortcut = nn.Sequential(nn.Conv2d(c, k, 1, stride, bias=False), nn.BatchNorm2d(k)) if stride > 1 else nn.Identity()

    def forward(self, x):
        return functional.relu(self.second(self.first(x)) + self.shortcut(x))


class Encoder(nn.Module):
    """Embeddings of tokens, positions and segments, two layers as BERT has them, with a mask, and a pooled output."""

    def __init__(self, d=16, heads=2, words=50):
        super().__init__()
        self.words, self.positions, self.kinds = nn.Embedding(words, d), nn.Embedding(12, d), nn.Embedding(2, d)
        self.norm = nn.LayerNorm(d)
        self.layers = nn.ModuleList([Layer(d, heads) for _ in range(2)])
        self.pooler = nn.Linear(d, d)

    def forward(self, ids, mask, kinds):
        at = torch.arange(ids.shape[1], device=ids.device)[None]
        x = self.norm(self.words(ids) + self.positions(at) + self.kinds(kinds))
        bias = (1 - mask[:, None, None, :].to(x.dtype)) * -1e4
        for layer in self.layers:
            x = layer(x, bias)
        return x, torch.tanh(self.pooler(x[:, 0]))


class Layer(nn.Module):
    """Attention in plain operations, and a feed-forward network."""

    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(d, d) for _ in range(4))
        self.wide, self.narrow = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.norms = nn.ModuleList([nn.LayerNorm(d), nn.LayerNorm(d)])

    def forward(self, x, bias):
        b, s, d = x.shape
        q, k, v = (f(x).view(b, s, self.heads, d // self.heads).transpose(1, 2) for f in (self.q, self.k, self.v))
        p = torch.softmax(q @ k.transpose(-1, -2) / (d // self.heads) ** 0.5 + bias, -1)
        x = self.norms[0](x + self.out((p @ v).transpose(1, 2).reshape(b, s, d)))
        return self.norms[1](x + self.narrow(functional.gelu(self.wide(x))))


class Recurrent(nn.Module):
    """Two layers of LSTM, of which the first goes both ways, and a GRU."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LSTM(5, 8, bidirectional=True), nn.LSTM(16, 6, batch_first=False)
        self.third, self.head = nn.GRU(6, 4), nn.Linear(4, 3)

    def forward(self, x):
        x, _ = self.first(x)
        x, (h, _) = self.second(x)
        x, g = self.third(x)
        return torch.log_softmax(self.head(x), -1), h, g


class Unet(nn.Module):
    """Down, up by a transposed convolution and by resizing, with concatenations across."""

    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList([twice(2, 4), twice(4, 8), twice(8, 16)])
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.across = nn.ModuleList([twice(16, 8), twice(12, 4)])
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x):
        a = self.down[0](x)
        b = self.down[1](functional.max_pool2d(a, 2))
        c = self.down[2](functional.avg_pool2d(b, 2))
        b = self.across[0](torch.cat([self.up(c), b], 1))
        b = functional.interpolate(b, scale_factor=2, mode="bilinear", align_corners=False)
        return torch.sigmoid(self.head(self.across[1](torch.cat([b, a], 1))))


def twice(c, k):
    """Two convolutions with group normalization and SiLU."""
    return nn.Sequential(nn.Conv2d(c, k, 3, padding=1), nn.GroupNorm(2, k), nn.SiLU(), nn.Conv2d(k, k, 3, padding=1), nn.LeakyReLU(0.1))


MODELS = {"resnet": (Residual, lambda: (torch.randn(2, 3, 33, 33),)),
          "bert": (Encoder, lambda: (torch.randint(0, 50, (2, 7)), (torch.arange(7) < torch.tensor([[7], [4]])).long(),
                                     torch.randint(0, 2, (2, 7)))),
          "lstm": (Recurrent, lambda: (torch.randn(6, 3, 5),)),
          "unet": (Unet, lambda: (torch.randn(1, 2, 12, 16),))}
"""Name: (class, a function of inputs)."""


def exported(name, opset=None, **options):
    """(bytes of the model, inputs, PyTorch's results in float64), the latter NumPy arrays."""
    torch.manual_seed(20)
    make, inputs = MODELS[name]
    model, inputs = make().eval(), inputs()
    with torch.no_grad():
        for module in model.modules():  # statistics that do something
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(), module.running_var.uniform_(0.5, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = io.BytesIO()
        program = torch.onnx.export(model, inputs, None, opset_version=opset, verbose=False, **{"dynamo": True, **options})
        program.save(file)
    with torch.no_grad():
        results = model.double()(*(x.double() if x.is_floating_point() else x for x in inputs))
    results = results if isinstance(results, tuple) else (results,)
    return file.getvalue(), [x.numpy() for x in inputs], [y.numpy() for y in results]


if __name__ == "__main__":
    for name in MODELS:
        pathlib.Path(sys.argv[1], f"{name}.onnx").write_bytes(exported(name)[0])
