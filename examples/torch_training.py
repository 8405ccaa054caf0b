# %% [markdown]
# # A PyTorch program that knows nothing of dnnkern
#
# On its kernels, with a table of what ran there:
#
#     python -m dnnkern run --report examples/torch_training.py
#     python -m dnnkern run --report --simulate examples/torch_training.py    # without a GPU

# %%
import sys

import torch
from torch import nn

torch.manual_seed(0)
steps = int(sys.argv[1]) if len(sys.argv) == 2 and sys.argv[1].isdigit() else 5
images, labels = torch.randn(32, 3, 24, 24, device="cuda"), torch.arange(32, device="cuda") % 10
net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                    nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(4),
                    nn.Flatten(), nn.Linear(512, 10)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, fused=True)

# %%
for step in range(steps):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(images), labels)
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.4f}")
