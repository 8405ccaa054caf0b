"""A small ResNet, or ResNet-50, on several GPUs, by PyTorch's DistributedDataParallel on this library's kernels:

    torchrun --nproc_per_node 8 examples/train_ddp.py --checkpoint run.pt
    torchrun --nproc_per_node 8 examples/train_ddp.py --checkpoint run.pt --resume
    torchrun --nproc_per_node 2 examples/train_ddp.py --model resnet50 --size 224 --amp --epochs 99 --steps 200 --json rates.jsonl

Ranks use NCCL with a GPU for each, and gloo on the processor where there is no GPU. A rank that dies, ranks that do not answer, and ranks
with different versions end the job with a message. What is particular to this library is in `start` and is one line.
"""
import argparse
import contextlib
import datetime
import json
import os
import pickle
import platform
import signal
import socket
import statistics
import sys
import threading
import time

import numba
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import dnnkern.torch

CLASSES = 10
UNTIMED = 20
"""Steps before those that ``--json`` times: kernels are compiled in the first, and calls that come again are launched as graphs later."""
_LOST = "gloo/transport", "connection closed", "connection reset", "timed out", "nccl error"
"""Words in errors of communication: gloo's are plain RuntimeErrors."""


class Stop(Exception):
    """Ends the job, with a message for whoever started it."""


def parse(words=None):
    """What the command line says."""
    parser = argparse.ArgumentParser(description="Train a ResNet on 1 to 8 GPUs; start it with torchrun.")
    parser.add_argument("--data", choices=("synthetic", "digits"), default="synthetic", help="digits: scikit-learn's, 8x8")
    parser.add_argument("--samples", type=int, default=2048, help="how many of them")
    parser.add_argument("--size", type=int, default=32, help="of synthetic images")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, help="end after so many steps in all, with a checkpoint")
    parser.add_argument("--batch", type=int, default=64, help="samples of a step and rank")
    parser.add_argument("--model", choices=MODELS, default="small", help="a ResNet for small images, or ResNet-50")
    parser.add_argument("--width", type=int, help="channels of the first stage (default 16, of ResNet-50 64)")
    parser.add_argument("--amp", action="store_true", help="bfloat16, as autocast says")
    parser.add_argument("--compile", nargs="?", const="dnnkern", metavar="BACKEND", help="torch.compile, by this library or another")
    parser.add_argument("--benchmark", action="store_true", help="measure the algorithms of convolutions: torch.backends.cudnn.benchmark")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sync-norm", action="store_true", help="batch normalisation over the samples of all ranks")
    parser.add_argument("--ops", default="heavy", help="of dnnkern.torch.enable; none: PyTorch's kernels")
    parser.add_argument("--checkpoint", help="file that is written")
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints; one is also written at the end")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument("--timeout", type=float, default=300, help="seconds after which a rank that does not answer counts as lost")
    parser.add_argument("--json", metavar="FILE", help=f"append a line: samples a second, by the median step after {UNTIMED}")
    plan = parser.parse_args(words)
    plan.width = MODELS[plan.model][0] if plan.width is None else plan.width
    if plan.resume and not plan.checkpoint:
        parser.error("--resume: got no --checkpoint; expected the file to go on from")
    for name in ("samples", "size", "epochs", "batch", "width", "every", "timeout"):
        if not getattr(plan, name) > 0:
            parser.error(f"--{name}: got {getattr(plan, name)}; expected a positive number")
    return plan


# ---- the network and the data

MODELS = {"small": (16, (1, 1, 1)), "resnet50": (64, (3, 4, 6, 3))}
"""Width and blocks of each stage."""


def normed(inputs, outputs, size, stride):
    """A convolution and its normalisation."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """Convolutions beside a shortcut: two of 3x3, or one between two of 1x1, of which the last has four times the channels."""

    def __init__(self, inputs, width, stride, narrow):
        super().__init__()
        self.outputs = 4 * width if narrow else width
        sizes = (width, 1, 1), (width, 3, stride), (self.outputs, 1, 1)
        self.body = nn.ModuleList()
        for size in sizes if narrow else ((width, 3, stride), (width, 3, 1)):
            self.body.append(normed(self.body[-1][0].out_channels if self.body else inputs, *size))
        self.shortcut = nn.Identity() if stride == 1 and inputs == self.outputs else normed(inputs, self.outputs, 1, stride)

    def forward(self, x):
        *first, last = self.body
        y = x
        for layer in first:
            y = F.relu(layer(y), inplace=True)
        return F.relu(last(y) + self.shortcut(x), inplace=True)


def network(channels, model, width, dropout):
    """A ResNet of three stages for small images, or ResNet-50, with as many outputs as ImageNet has classes."""
    layers, large, c = [], model == "resnet50", width
    for stage, blocks in enumerate(MODELS[model][1]):
        for k in range(blocks):
            layers.append(Block(c, width << stage, 2 if stage and not k else 1, narrow=large))
            c = layers[-1].outputs
    stem = [*normed(channels, width, *(7, 2) if large else (3, 1)), nn.ReLU(inplace=True), *[nn.MaxPool2d(3, 2, 1)] * large]
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), nn.Linear(c, 1000 if large else CLASSES)
    return nn.Sequential(*stem, *layers, *head)


def load(plan):
    """(images, labels), the same on every rank."""
    if plan.data == "digits":
        from sklearn.datasets import load_digits
        digits = load_digits()
        images = torch.tensor(digits.images[:plan.samples, None] / 16, dtype=torch.float32)
        return images, torch.tensor(digits.target[:plan.samples])
    rng = np.random.default_rng(plan.seed)
    labels = rng.integers(CLASSES, size=plan.samples)
    shape = 3, plan.size, plan.size
    images = rng.standard_normal((CLASSES, *shape), np.float32)[labels] + rng.standard_normal((plan.samples, *shape), np.float32)
    return torch.tensor(images), torch.tensor(labels)


def batches(plan, epoch, skipped, rank, ranks, device):
    """Indices of this rank's samples for the steps of an epoch, without those that were done before; what does not fill a step on all ranks
    is left out."""
    order = torch.randperm(plan.count, generator=torch.Generator().manual_seed(plan.seed + 1 + epoch)).to(device)
    for step in range(skipped, plan.count // (plan.batch * ranks)):
        yield order[(step * ranks + rank) * plan.batch:][:plan.batch]


# ---- the ranks

def start(plan):
    """Join the other ranks; returns this rank's device."""
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise Stop(f"the environment has no {', '.join(missing)}; expected to be started by torchrun --nproc_per_node N")
    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.is_available():
        local, gpus = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
        if local >= gpus:
            raise Stop(f"this host has {gpus} GPUs; expected one for each rank, and this one is its rank {local}")
        device, backend = torch.device("cuda", local), "cpu:gloo,cuda:nccl"  # gloo carries objects: no GPU waits for them
        torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=plan.timeout))
    check_versions()
    torch.backends.cudnn.benchmark = plan.benchmark
    if plan.ops != "none":
        dnnkern.torch.enable(plan.ops)  # the one line: all that follows is PyTorch's
    return device


def versions():
    """Of what computes on this rank."""
    return {"dnnkern": dnnkern.__version__, "PyTorch": torch.__version__, "Numba": numba.__version__, "CUDA": torch.version.cuda,
            "Python": platform.python_version()}


def check_versions():
    """Ranks of different versions would compute different things, or wait for each other for ever."""
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, versions())
    for name in everyone[0]:
        found = {}
        for rank, theirs in enumerate(everyone):
            found.setdefault(str(theirs.get(name)), []).append(str(rank))
        if len(found) > 1:
            told = "; ".join(f"{version} on rank {', '.join(ranks)}" for version, ranks in found.items())
            raise Stop(f"{name} has different versions: {told}. Expected the same on every rank")


# ---- checkpoints: written beside the file and renamed, the one before is kept

def random_state(device):
    """Of this rank's generators."""
    return {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None}


def save(plan, model, optimizer, at, device):
    """All ranks call it; rank 0 writes. `at` is (epoch, steps of it that are done, steps in all)."""
    states = [None] * dist.get_world_size()
    dist.all_gather_object(states, random_state(device))
    if dist.get_rank() == 0:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "at": at, "random": states,
                 "settings": settings(plan)}
        with open(f"{plan.checkpoint}.writing", "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        if os.path.exists(plan.checkpoint):
            os.replace(plan.checkpoint, f"{plan.checkpoint}.before")
        os.replace(f"{plan.checkpoint}.writing", plan.checkpoint)
    dist.barrier()


def settings(plan):
    """What a run that goes on has to have in common with the one before."""
    return {"ranks": dist.get_world_size(), **{name: getattr(plan, name) for name in (
        "data", "samples", "size", "batch", "model", "width", "amp", "dropout", "seed", "sync_norm")}}


def read(path):
    """(the state of a checkpoint, None), or (None, why there is none)."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        return None, f"{path} does not exist"
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        return None, f"{path} is no whole checkpoint ({str(error).splitlines()[0] if str(error) else type(error).__name__})"
    lacks = {"model", "optimizer", "at", "random", "settings"} - set(state if isinstance(state, dict) else ())
    return (None, f"{path} is no checkpoint of this program: it lacks {', '.join(sorted(lacks))}") if lacks else (state, None)


def find(plan):
    """(state, what was left and why), by rank 0, which has the files."""
    state, why = read(plan.checkpoint)
    if state is None:
        state, also = read(f"{plan.checkpoint}.before")
        if state is None:
            return None, f"--resume: {why}; {also}"
    differ = [f"{name} {mine!r}, in the checkpoint {state['settings'].get(name)!r}" for name, mine in settings(plan).items()
              if state["settings"].get(name) != mine]
    return (None, f"--resume: got {'; '.join(differ)}. Expected the same") if differ else (state, why)


def resume(plan, model, optimizer, device):
    """Take up a checkpoint; returns what `save` was given as `at`."""
    found = [find(plan) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(found, device=torch.device("cpu"))
    state, why = found[0]
    if state is None:
        raise Stop(why)
    if why and dist.get_rank() == 0:
        print(f"{why}: going on from the one before", flush=True)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    mine = state["random"][dist.get_rank()]
    torch.set_rng_state(mine["cpu"])
    if device.type == "cuda" and mine["cuda"] is not None:
        torch.cuda.set_rng_state(mine["cuda"], device)
    return state["at"]


# ---- training

@contextlib.contextmanager
def progress(total, done, text):
    """A bar on rank 0, where tqdm is installed and someone looks; gives a function to call after each step."""
    try:
        from tqdm import tqdm
    except ImportError:
        yield lambda: None
        return
    with tqdm(total=total, initial=done, desc=text, unit="step", disable=None if dist.get_rank() == 0 else True) as bar:
        yield bar.update


def train(plan, device):
    """The steps that are left."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    images, labels = (t.to(device) for t in load(plan))  # where they are small enough, so that no step waits for them
    plan.count = len(labels)
    each = plan.count // (plan.batch * ranks)
    if not each:
        raise Stop(f"{plan.count} samples; expected at least {plan.batch * ranks}, {plan.batch} for each of {ranks} ranks")
    torch.manual_seed(plan.seed)
    net = network(images.shape[1], plan.model, plan.width, plan.dropout)
    if plan.sync_norm:
        net = dnnkern.torch.nn.SyncBatchNorm.convert_sync_batchnorm(net)
    net = net.to(device, memory_format=torch.channels_last)
    if plan.compile:  # the whole network's frame: of a Sequential, `compile()` of the module takes each layer's
        net.forward = torch.compile(net.forward, backend=plan.compile)
    model = nn.parallel.DistributedDataParallel(net, device_ids=[device.index] if device.type == "cuda" else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=plan.rate, momentum=0.9, weight_decay=1e-4, fused=True)
    torch.manual_seed(plan.seed + 1 + rank)
    first, done, steps = resume(plan, model, optimizer, device) if plan.resume else (0, 0, 0)
    last, saved, marks = min(plan.steps or plan.epochs * each, plan.epochs * each), steps, []
    if plan.json and last - steps <= UNTIMED:
        raise Stop(f"--json: {last - steps} steps; expected more than {UNTIMED}, since the first {UNTIMED} are not timed")
    for epoch in range(first, plan.epochs):
        began, before, total = None, steps, 0  # the clock begins after a step: the first of all compiles kernels
        with progress(each, done, f"epoch {epoch + 1}") as advance:
            for indices in batches(plan, epoch, done, rank, ranks, device):
                if steps >= last:
                    break
                x, target = images[indices].to(memory_format=torch.channels_last), labels[indices]
                optimizer.zero_grad()
                with torch.autocast(device.type, torch.bfloat16, enabled=plan.amp):
                    loss = F.cross_entropy(model(x), target)
                loss.backward()
                optimizer.step()
                marks.append(mark(device))
                done, steps, total = done + 1, steps + 1, total + loss.detach()
                advance()
                if began is None:
                    loss.item()  # waits for the GPU
                    began, counted = time.perf_counter(), steps
                if plan.checkpoint and steps % plan.every == 0:
                    save(plan, model, optimizer, (epoch, done, steps), device)
                    saved = steps
        if steps > before:
            report(epoch, total / (steps - before), (steps - counted) * plan.batch * ranks, began)
        if steps >= last:
            break
        done = 0
    if plan.checkpoint and saved != steps:
        save(plan, model, optimizer, (epoch, done, steps), device)
    if plan.json and rank == 0:
        write_rate(plan, marks, device)


def mark(device):
    """A moment: where the GPU's stream is, without waiting for it, or of the processor."""
    if device.type == "cpu":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def write_rate(plan, marks, device):
    """Append a line to the file of ``--json``."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        marks = [marks[0].elapsed_time(moment) / 1e3 for moment in marks]
    seconds = [after - before for before, after in zip(marks, marks[1:])][UNTIMED - 1:]
    step, ranks = statistics.median(seconds), dist.get_world_size()
    row = {"ranks": ranks, "samples_per_s": plan.batch * ranks / step, "step_ms": 1e3 * step, "steps": len(seconds), "model": plan.model,
           "width": plan.width, "size": plan.size, "batch": plan.batch, "dtype": "bfloat16" if plan.amp else "float32", "ops": plan.ops,
           "compile": plan.compile, "benchmark": plan.benchmark, "ours": sum(row.calls for row in dnnkern.torch.status() if row.ours),
           "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu", **versions()}
    with open(plan.json, "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    print(f"{row['samples_per_s']:.1f} samples/s by the median of {len(seconds)} steps", flush=True)


def report(epoch, loss, samples, began):
    """A line on rank 0: the loss is the mean of the epoch's steps and of all ranks."""
    dist.all_reduce(loss)  # which also waits for the GPU
    text = f"epoch {epoch + 1}: loss {loss.item() / dist.get_world_size():.4f}, {samples / (time.perf_counter() - began):.0f} samples/s"
    if dist.get_rank() == 0:
        print(text, flush=True)


def end(rank, text):
    """Leave at once: a process that waits for the others in its destructors would hang."""
    sys.stdout.flush()
    print(f"train_ddp.py: rank {rank}: {text}", file=sys.stderr, flush=True)
    os._exit(1)


def at_sigterm(act):
    """Call a function as soon as torchrun ends this rank, from a thread: the main one may wait in a kernel or for another rank, and
    handlers of Python's run in that."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.detach())
    signal.signal(signal.SIGTERM, lambda *_: None)

    def wait():
        while signal.SIGTERM not in reader.recv(64):
            pass
        act()
    threading.Thread(target=wait, daemon=True).start()


def main():
    """A rank's life."""
    plan, rank = parse(), os.environ.get("RANK", "?")

    at_sigterm(lambda: end(rank, f"ended by SIGTERM, as torchrun does when another rank has failed; {advice(plan)}"))
    try:
        device = start(plan)
        train(plan, device)
        if rank == "0":
            ours = sum(row.calls for row in dnnkern.torch.status() if row.ours)
            print(f"{dist.get_world_size()} ranks on {device.type}; {ours} calls of rank 0 ran on dnnkern's kernels", flush=True)
        dist.barrier()
        dist.destroy_process_group()
    except Stop as error:
        end(rank, str(error))
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or any(word in str(error).lower() for word in _LOST)):
            raise
        end(rank, f"lost the other ranks: one has died, or did not answer within --timeout {plan.timeout:g} s "
                  f"({str(error).splitlines()[0]}); {advice(plan)}")


def advice(plan):
    """What to do next."""
    found = plan.checkpoint and any(os.path.exists(path) for path in (plan.checkpoint, f"{plan.checkpoint}.before"))
    return f"start it again with --resume to go on from {plan.checkpoint}" if found else "there is no checkpoint to go on from"


if __name__ == "__main__":
    main()
