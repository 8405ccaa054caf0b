"""Programs as PyTorch's users write them, for ``python -m dnnkern bench torch``: nothing here knows of dnnkern."""
import functools
from typing import Callable, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn


class Program(NamedTuple):
    """A model with what one step of it does.

    Attributes
    ----------
    step : callable
        () -> the loss of a training step, or what a model infers.
    model : nn.Module
    inputs : list of torch.Tensor
        Of a step that trains, which reads them anew each time: samples along the first dim.
    """
    step: Callable
    model: nn.Module
    inputs: list | tuple = ()


def training(model, loss, *inputs, optimizer=None, dtype=torch.bfloat16):
    """A program that trains; `loss`: (model, *inputs) -> a number. Operations run in `dtype` as autocast says; None: in float32."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    inputs, device = list(inputs), inputs[0].device.type

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype or torch.bfloat16, enabled=dtype is not None):
            found = loss(model, *inputs)
        found.backward()
        optimizer.step()
        return found.detach()
    return Program(step, model, inputs)


def classified(model, images, labels):
    """The loss of a classifier."""
    return F.cross_entropy(model(images), labels)


def images_of(n, size, classes, device, dtype=torch.float32):
    """(images, channels last; labels)"""
    x = torch.randn(n, 3, size, size, device=device, dtype=dtype).to(memory_format=torch.channels_last)
    return x, torch.randint(classes, (n,), device=device)


# ---- convolutional networks

class Bottleneck(nn.Module):
    """A block of ResNet-50."""

    def __init__(self, c, width, stride):
        super().__init__()
        out = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(c, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or c != out:
            self.downsample = nn.Sequential(nn.Conv2d(c, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


def resnet(blocks=(3, 4, 6, 3), width=64, classes=1000):
    """ResNet-50, as torchvision's."""
    layers, c = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)], width
    for i, n in enumerate(blocks):
        for k in range(n):
            layers.append(Bottleneck(c, width << i, 2 if i and not k else 1))
            c = 4 * (width << i)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, classes))


class ConvNext(nn.Module):
    """A block of ConvNeXt: a depthwise 7x7 filter, layer norm over channels, two products."""

    def __init__(self, c):
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(c, c, 7, padding=3, groups=c), nn.LayerNorm(c, eps=1e-6)
        self.wide, self.narrow = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)

    def forward(self, x):
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + self.narrow(F.gelu(self.wide(y))).permute(0, 3, 1, 2)


class LastNorm(nn.LayerNorm):
    """Layer norm over the channels of images."""

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def convnext(blocks=(3, 3, 9, 3), width=96, classes=1000):
    """ConvNeXt-T without stochastic depth and scales."""
    layers = [nn.Conv2d(3, width, 4, 4), LastNorm(width, eps=1e-6)]
    for i, n in enumerate(blocks):
        c = width << i
        if i:
            layers += [LastNorm(c // 2, eps=1e-6), nn.Conv2d(c // 2, c, 2, 2)]
        layers += [ConvNext(c) for _ in range(n)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(c, eps=1e-6), nn.Linear(c, classes))


def twice(c, out):
    """Two 3-D convolutions with batch norm."""
    layers = []
    for channels in (c, out):
        layers += [nn.Conv3d(channels, out, 3, padding=1, bias=False), nn.BatchNorm3d(out), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """A 3-D U-Net with batch norm and transposed convolutions."""

    def __init__(self, width=32, depth=4, classes=3):
        super().__init__()
        widths = [width << i for i in range(depth)]
        self.down = nn.ModuleList(twice(1 if not i else c // 2, c) for i, c in enumerate(widths))
        self.grow = nn.ModuleList(nn.ConvTranspose3d(2 * c, c, 2, 2) for c in widths[:-1])
        self.up = nn.ModuleList(twice(2 * c, c) for c in widths[:-1])
        self.last = nn.Conv3d(width, classes, 1)

    def forward(self, x):
        kept = []
        for i, part in enumerate(self.down):
            x = part(F.max_pool3d(x, 2) if i else x)
            kept.append(x)
        for grow, part, other in zip(reversed(self.grow), reversed(self.up), reversed(kept[:-1])):
            x = part(torch.cat([other, grow(x)], 1))
        return self.last(x)


# ---- transformers

class GptBlock(nn.Module):
    """Attention and a perceptron, each after layer norm."""

    def __init__(self, c, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(c), nn.LayerNorm(c)
        self.qkv, self.out, self.wide, self.narrow = nn.Linear(c, 3 * c), nn.Linear(c, c), nn.Linear(c, 4 * c), nn.Linear(4 * c, c)

    def forward(self, x):
        b, s, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, s, c))
        return x + self.narrow(F.gelu(self.wide(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """GPT-2 small."""

    def __init__(self, words=50257, context=1024, c=768, heads=12, blocks=12):
        super().__init__()
        self.words, self.places = nn.Embedding(words, c), nn.Embedding(context, c)
        self.blocks, self.norm = nn.Sequential(*(GptBlock(c, heads) for _ in range(blocks))), nn.LayerNorm(c)
        self.head = nn.Linear(c, words, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


class LlamaBlock(nn.Module):
    """Attention of grouped heads with rotary positions and a gated perceptron, each after RMS norm."""

    def __init__(self, c, heads, groups, wide, context, device=None):
        super().__init__()
        self.heads, self.groups, d = heads, groups, c // heads
        self.norm1, self.norm2 = nn.RMSNorm(c, eps=1e-5), nn.RMSNorm(c, eps=1e-5)
        self.q, self.k, self.v = (nn.Linear(c, n * d, bias=False) for n in (heads, groups, groups))
        self.out = nn.Linear(c, c, bias=False)
        self.gate, self.wide, self.narrow = nn.Linear(c, wide, bias=False), nn.Linear(c, wide, bias=False), nn.Linear(wide, c, bias=False)
        angles = torch.arange(context)[:, None] * 500000.0 ** (-torch.arange(0, d, 2) / d)
        self.register_buffer("cos", torch.cat([angles, angles], 1).cos(), persistent=False)
        self.register_buffer("sin", torch.cat([angles, angles], 1).sin(), persistent=False)

    def turned(self, x):
        a, b = x.chunk(2, -1)
        return (x * self.cos + torch.cat([-b, a], -1) * self.sin).to(x.dtype)

    def forward(self, x):
        b, s, c = x.shape
        y = self.norm1(x)
        q, k, v = (p(y).view(b, s, n, c // self.heads).transpose(1, 2)
                   for p, n in ((self.q, self.heads), (self.k, self.groups), (self.v, self.groups)))
        y = F.scaled_dot_product_attention(self.turned(q), self.turned(k), v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, s, c))
        y = self.norm2(x)
        return x + self.narrow(F.silu(self.gate(y)) * self.wide(y))


class LstmModel(nn.Module):
    """A language model of LSTM layers."""

    def __init__(self, words=10000, c=1024, layers=2):
        super().__init__()
        self.words, self.lstm, self.head = nn.Embedding(words, c), nn.LSTM(c, c, layers), nn.Linear(c, words)

    def forward(self, tokens):
        return self.head(self.lstm(self.words(tokens))[0])


def next_words(model, tokens, following):
    """The loss of a language model."""
    scores = model(tokens)
    return F.cross_entropy(scores.view(-1, scores.shape[-1]), following.reshape(-1))


def tokens_of(shape, words, device):
    """(tokens, those that follow)"""
    return tuple(torch.randint(words, shape, device=device) for _ in range(2))


# ---- what is measured

def resnet_training(device, n, small):
    """A step of ResNet-50 in bfloat16, channels last."""
    model = (resnet((1, 1, 1, 1), 8, 10) if small else resnet()).to(device, memory_format=torch.channels_last)
    return training(model, classified, *images_of(2 if small else n, 64 if small else 224, 10 if small else 1000, device))


def resnet_inference(device, n, small):
    """ResNet-50 in float16, channels last."""
    model = (resnet((1, 1, 1, 1), 8, 10) if small else resnet()).to(device, torch.float16, memory_format=torch.channels_last).eval()
    x, _ = images_of(1 if small else n, 64 if small else 224, 10, device, torch.float16)
    return Program(torch.inference_mode()(lambda: model(x)), model)


def convnext_training(device, n, small):
    """A step of ConvNeXt-T."""
    model = (convnext((1, 1, 1, 1), 8, 10) if small else convnext()).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    images = images_of(2 if small else n, 64 if small else 224, 10 if small else 1000, device)
    return training(model, classified, *images, optimizer=optimizer)


def gpt_training(device, n, small):
    """A step of GPT-2 small over 1024 tokens."""
    sizes = dict(words=101, context=32, c=32, heads=2, blocks=2) if small else {}
    model = Gpt(**sizes).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    shape = (2, 32) if small else (n, 1024)
    return training(model, next_words, *tokens_of(shape, sizes.get("words", 50257), device), optimizer=optimizer)


def llama_training(device, n, small):
    """A step of one block of a Llama of a billion parameters over 4096 tokens."""
    c, heads, groups, wide, s = (64, 4, 2, 96, 32) if small else (2048, 32, 8, 8192, 4096)
    model = LlamaBlock(c, heads, groups, wide, s).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(n, s, c, device=device)
    return training(model, lambda model, x: model(x).float().square().mean(), x, optimizer=optimizer)


def lstm_training(device, n, small, dtype):
    """A step of two LSTM layers of 1024 over 128 tokens."""
    model = (LstmModel(50, 16) if small else LstmModel()).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, fused=True)
    shape = (5, 3) if small else (128, n)
    return training(model, next_words, *tokens_of(shape, 50 if small else 10000, device), optimizer=optimizer, dtype=dtype)


def unet_training(device, n, small):
    """A step of a 3-D U-Net on 96 voxels a side."""
    model, size = (UNet(4, 2) if small else UNet()).to(device), 8 if small else 96
    x = torch.randn(n, 1, size, size, size, device=device)
    return training(model, lambda model, x, t: F.cross_entropy(model(x), t), x, torch.randint(3, (n, size, size, size), device=device))


SETS = {
    "resnet50-train-64": functools.partial(resnet_training, n=64),
    "resnet50-train-256": functools.partial(resnet_training, n=256),
    "resnet50-infer-1": functools.partial(resnet_inference, n=1),
    "resnet50-infer-256": functools.partial(resnet_inference, n=256),
    "convnext-train-64": functools.partial(convnext_training, n=64),
    "gpt2-train-16": functools.partial(gpt_training, n=16),
    "llama-train-1": functools.partial(llama_training, n=1),
    "lstm-train-64": functools.partial(lstm_training, n=64, dtype=torch.bfloat16),
    "lstm-train-64-float32": functools.partial(lstm_training, n=64, dtype=None),
    "unet3d-train-2": functools.partial(unet_training, n=2),
}
"""{name: (device, small) -> Program}; `small` is of the size for a processor."""


def made(name, device, small=False) -> Program:
    """A program, with the same parameters and inputs each time."""
    torch.manual_seed(0)
    return SETS[name](device, small=small)
