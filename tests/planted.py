"""Bugs that the tests must find: each is an edit of one file, and `make planted` runs with each what `make test` would run if that file had
changed, until the first test fails.

    python tests/planted.py [--processes N] [NUMBER or part of a file's name ...]

The full run has all those tests, so it finds what they find.
`test_planted.py` keeps the list applicable.
"""
import argparse
import concurrent.futures
import contextlib
import os
import pathlib
import queue
import re
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
NO_TESTS = pytest.ExitCode.NO_TESTS_COLLECTED


class Bug(NamedTuple):
    """`before`, which the file has once, becomes `after`."""
    path: str
    before: str
    after: str
    what: str

    def applied(self):
        """The file's text with the bug in it."""
        text = (ROOT / self.path).read_text()
        if text.count(self.before) != 1:
            raise ValueError(f"{self.path} has {self.before!r} {text.count(self.before)} times; expected once")
        return text.replace(self.before, self.after)


BUGS = [Bug(f"dnnkern/{path}", *rest) for path, *rest in (
    ("matmul/matmul_split_k.py", "(i64(s) * batch + z) * m * pitch", "(i64(z) * batch + s) * m * pitch",
     "partial sums of a batch in the wrong order"),
    ("engine/ampere.py", "        commit(copies, write)\n        wait()\n        cuda.syncthreads()\n",
     "        commit(copies, write)\n        wait()\n", "no barrier between a stage's readers and its next copies"),
    ("engine/hopper.py", "    pipe.consumer_release(bars, before, thread & READERS)\n                    before, state = state",
     "    pipe.consumer_release(bars, state, thread & READERS)\n                    before, state = state", "the stage in use is released"),
    ("matmul/matmul_gemv.py", "if 4 * w + j < left:", "if 4 * w + j <= left:", "one byte past the end of a row"),
    ("conv/winograd/stages.py", "and w + s < W else", "and w + s <= W else", "a pixel right of the image"),
    ("conv/halo_wgmma/kernel.py", "T - 1 - t, R - 1 - r", "t, R - 1 - r", "the filter is not flipped along depth"),
    ("conv/implicit_gemm_wgmma/made.py", "u32(0xFFFFFFFF) if inside else u32(0)", "u32(0xFFFFFFFF)", "padding is made by a prologue"),
    ("conv/_filter_made.py", "u32(0xFFFFFFFF) if inside else u32(0)", "u32(0xFFFFFFFF)", "padding is made by a prologue in a stage"),
    ("conv/depthwise/rows.py", "if column + k < width:", "if column + k <= width:", "a pixel past the end of a row is written"),
    ("conv/fft/tiles.py", "ok = ok and h < size.kept_h and p < size.p", "ok = ok and h < size.kept_h and p <= size.p",
     "a row past the output"),
    ("conv/_gather/__init__.py", "if 0 <= at and at < extent:", "if 0 < at and at < extent:",
     "the first row of the image is taken for padding"),
    ("conv/direct/kernel.py", "if in_source and d < size.d:", "if in_source and d <= size.d:", "an image below the last one"),
    ("embedding/_sorted.py", "rows_at[r] = carry + earlier", "rows_at[r] = carry", "the rows of a bucket begin where its first one does"),
    ("pool/pool_fwd_rows.py", "(w < axes.w.extent)\n                            if not MAX:",
     "(w <= axes.w.extent)\n                            if not MAX:",
     "elements past the end of a row"),
    ("pool/pool_bwd_channels.py", "covering(w, w + COLUMNS - 1, axes.w)", "covering(w, w, axes.w)",
     "windows of a patch's first column alone"),
    ("norm/block/forward.py", "squares += d * d * slots[3 * k + 2]", "squares += d * d",
     "variances of a cluster's blocks merged without their counts"),
    ("norm/block/backward.py", "done = Rows(row - LAG * stride, groups", "done = Rows(row, groups", "the row of another step"),
    ("norm/lrn_window.py", "at >= 0 and at < channels)", "at > 0 and at < channels)", "the first channel is taken for padding"),
    ("softmax/rows/_kernel.py", "softmax.product(dy_edges[k], y_edges[k])", "softmax.product(dy_edges[k], dy_edges[k])",
     "single elements at the ends of a row"),
    ("softmax/softmax_split.py", "            if lane < count:\n                at = 2 *",
     "            if lane <= count:\n                at = 2 *", "a part of the next row"),
    ("transform/layout/transpose_tiled.py", "if i0 + i < size_i and j0 + j < size_j:", "if i0 + i < size_i:",
     "elements past the end of a row are written"),
    ("transform/sample/resample_chunks.py", "q + v if v < left else q", "q", "every element of a chunk has the first one's weights"),
    ("engine/fold.py", "        n, more = other\n        ratio = T(1) if m == n else T(power(-fabs(T(n - m))))",
     "        n, more = other\n        ratio = T(power(-fabs(T(n - m))))", "two halves of minus infinities make NaN"),
    ("reduce/_warps.py", "_either(inside, before, push(before, value, 0))", "push(before, value, 0)",
     "sums of a tile past the result's edge"),
    ("graph/_fuse.py", "values.steps[-1] = (*last[:2], dtype, last[3])", "values.steps[-1] = last",
     "an intermediate result is not rounded"),
    ("rnn/persistent/forward.py", "meet(counter, u32(step * MEETINGS * blocks))",
     "meet(counter, u32((step - 1) * MEETINGS * blocks))", "blocks do not wait for the others' states"),
    ("rnn/step/weights.py", "split = [(0, 2, 0), (2, 1, NEW_RECURRENT)]", "split = [(0, 2, 0), (2, 1, NEW)]",
     "the gradient of another gate of a GRU"),
    ("dropout/dropout_vector.py", "word = u32(mask[group + (k >> 3)])", "word = u32(mask[group])", "the mask of the first eight"),
    ("loss/cross_entropy_columns.py", "if labels[e] == -1:\n                                    value",
     "if labels[e] == -2:\n                                    value", "targets that are ignored have a gradient"),
    ("loss/ctc_loss_block.py", "blank) != classes_of[k]:\n                        skips[k] = 1\n        for s in range",
     "blank) != -2:\n                        skips[k] = 1\n        for s in range", "the blank between equal labels is skipped"),
    ("optim/optim_chunks.py", "go = found_inf[0] == 0", "go = found_inf[0] >= 0", "a step that had to be skipped"),
    ("act/pointwise_rows.py", "last[k] = row - position + lead if k < left else first[k]", "last[k] = row - position + lead",
     "rows after the last one"),
    ("fused/_arrays.py", "return i32(e[1][k] + offset(at, strides))", "return i32(offset(at, strides))",
     "positions along an axis that is walked backwards"),
    ("engine/lanes.py", "            if first <= n and n < last:", "            if first <= n and n <= last:", "an element past the end"),
    ("attention/_scores.py", "first, most) - first\n", "first, most)\n", "the rows of a packed sequence are counted from the first one"),
    ("attention/backward/flash_wgmma/kernel.py", "if end > tile.key or last < tile.key + HEIGHT:", "if end > tile.key:",
     "no mask at a window's other end"),
    ("attention/forward/_collected.py", "if key < span.full_begin or key + WIDTH > span.full_end:", "if key + WIDTH > span.full_end:",
     "no mask at a window's beginning"),
    ("attention/forward/sdpa_fwd_flash_mma.py", "cuda.syncthreads()  # k has come, v is free", "pass  # k has come, v is free",
     "values are replaced while others read them"),
    ("attention/decode/split_kv_mma/kernel.py", "attends = j + key < span.end", "attends = j + key <= span.end", "a key past the last one"),
    ("attention/backward/_dbias_items.py", "if i < rows and j < keys:", "if i < rows and j <= keys:", "the bias of a key past the last"),
    ("device/philox.py", "if quarter & 2:", "if quarter & 4:", "half of the normal numbers have the wrong sign"),
    ("device/index.py", "(2 * n * multiplier >> 32) >> shift", "(2 * n * multiplier >> 32) >> (shift + 1)", "half of a quotient"),
    ("host/front.py", "            if t.size and t not in outputs:", "            if False and t not in outputs:",
     "in place with another layout is accepted"),
    ("dispatch.py", "if algorithm.notes & OPT_IN & ~allow:", "if algorithm.notes & OPT_IN & allow:",
     "an algorithm that the caller did not allow"),
)]


@contextlib.contextmanager
def checkout(commit="HEAD"):
    """A copy of the project as git has it."""
    with tempfile.TemporaryDirectory(prefix="dnnkern-planted-") as folder:
        copy = pathlib.Path(folder) / "copy"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(copy), commit], cwd=ROOT, check=True)
        try:
            yield copy
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(copy)], cwd=ROOT, check=True)


def run(copy, *words):
    """pytest in the simulator, in the copy."""
    return subprocess.run([sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *words], cwd=copy, capture_output=True,
                          text=True, env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"})


def operations(family):
    """Those of a family."""
    code = ("import sys; from dnnkern import dispatch\n"
            "print(*{a.op for a in dispatch.algorithms() if sys.argv[1] in a.build.__module__.split('.')})")
    return sorted(subprocess.run([sys.executable, "-c", code, family], cwd=ROOT, capture_output=True, text=True, check=True,
                                 env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}).stdout.split())


def caught(copy, bug):
    """The test of the simulator's tier that finds a bug, and its message; None if they all pass. ValueError if it fails without the bug.

    The family's own tests and its rows of the contract come first, since they are likeliest to find it."""
    path = copy / bug.path
    family = path.relative_to(copy).parts[1]
    near = [*sorted(str(p.relative_to(copy)) for p in copy.glob(f"tests/test_{family}*.py")), "tests/test_contract.py",
            "-k", " or ".join(["not test_contract", *operations(family)])]
    sound = path.read_text()
    try:
        path.write_text(bug.applied())
        for files in (near, []):
            result = run(copy, *files, "--select", "--since", "HEAD", "-m", "not gpu and not ptx")
            if result.returncode not in (0, NO_TESTS):
                break
    finally:
        path.write_text(sound)
    found = re.findall(r"^(?:FAILED|ERROR) (.*)", result.stdout, re.MULTILINE)
    if not found:
        return None if result.returncode in (0, NO_TESTS) else (result.stdout + result.stderr)[-300:]
    if run(copy, found[0].split(" - ")[0]).returncode:
        raise ValueError(f"{found[0]} fails without a bug, too")
    return found[0]


def main(words=None):
    parser = argparse.ArgumentParser(description="Bugs that the tests must find.")
    parser.add_argument("--processes", type=int, default=1, help="bugs looked for at the same time")
    parser.add_argument("bugs", nargs="*", help="numbers, or parts of a file's name; default: all")
    words = parser.parse_args(words)
    chosen = [(n, bug) for n, bug in enumerate(BUGS)
              if not words.bugs or str(n) in words.bugs or any(w in bug.path for w in words.bugs if not w.isdigit())]
    copies = queue.SimpleQueue()

    def look_for(n, bug):
        copy, started = copies.get(), time.time()
        try:
            by = caught(copy, bug)
            found, by = by is not None, "MISSED" if by is None else by[:140]
        except ValueError as error:
            found, by = False, str(error)
        finally:
            copies.put(copy)
        print(f"{n:2} {bug.path}: {bug.what}: {by} ({time.time() - started:.0f} s)", flush=True)
        return found

    with contextlib.ExitStack() as stack:
        for _ in range(min(words.processes, len(chosen))):
            copies.put(stack.enter_context(checkout()))
        with concurrent.futures.ThreadPoolExecutor(words.processes) as pool:
            found = sum(pool.map(look_for, *zip(*chosen)))
    print(f"{found} of {len(chosen)} found")
    return found < len(chosen)


if __name__ == "__main__":
    sys.exit(main())
