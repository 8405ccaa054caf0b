"""``python -m dnnkern run``: unmodified programs, and what is printed and returned."""
import json
import os
import pathlib
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest

torch = pytest.importorskip("torch")

from dnnkern.device import HOST_MEMORY, SIMULATED  # noqa: E402
from dnnkern.torch._devices import cuda_is_cpu  # noqa: E402

pytestmark = pytest.mark.sized

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONV = """import torch
torch.manual_seed(0)
x = torch.randn(1, 3, 24, 24, device='cuda')
conv = torch.nn.Conv2d(3, 64, kernel_size=3, padding=1).cuda()
output = conv(x)
"""
TELL = """
import json, sys
output.square().mean().backward()
torch.cuda.synchronize()
print(json.dumps([output.shape, output.double().mean().item(), conv.weight.grad.double().norm().item(), sys.argv[1:]]))
"""
KERAS = """import keras
keras.utils.set_random_seed(0)
model = keras.models.Sequential([
    keras.layers.Conv2D(32, (3, 3), activation='relu', input_shape=(28, 28, 1)),
    keras.layers.MaxPooling2D((2, 2)), keras.layers.Flatten(),
    keras.layers.Dense(10, activation='softmax')])
model.compile(optimizer='adam', loss='sparse_categorical_crossentropy', metrics=['accuracy'])
import json, numpy as np
x, y = np.random.rand(8, 28, 28, 1).astype('float32'), np.random.randint(0, 10, 8)
losses = model.fit(x, y, batch_size=4, epochs=2, verbose=0).history['loss']
print(json.dumps([losses, model.evaluate(x, y, verbose=0)[0], model.predict(x, verbose=0).sum(0).tolist()]))
"""


def python(*words, cwd=None, **environment):
    """The finished process of a Python with this project, on the device of this one."""
    return subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, cwd=cwd,
                          env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "KERAS_BACKEND": "torch", **environment})


def run(*words, **more):
    return python("-m", "dnnkern", "run", *words, **more)


def kept(cache):
    """The kernels on disk, without what handles a processor's signals."""
    return sorted(path for path in cache.rglob("*.*") if path.suffix in (".o", ".cubin") and not path.name.startswith("signals-"))


def values(process):
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


def assert_close(ours, theirs):
    """Nested lists of equal values, numbers up to rounding."""
    if isinstance(theirs, list):
        assert len(ours) == len(theirs)
        for x, y in zip(ours, theirs):
            assert_close(x, y)
    elif isinstance(theirs, float):
        assert ours == pytest.approx(theirs, rel=1e-4 if HOST_MEMORY else 2e-3, abs=1e-5)  # on a GPU both round to TF32
    else:
        assert ours == theirs


@pytest.mark.always
def test_a_convolution_on_cuda(tmp_path):
    program, plain = tmp_path / "program.py", tmp_path / "plain.py"
    program.write_text(CONV + TELL)
    plain.write_text((CONV + TELL).replace("'cuda'", "'cpu'").replace(".cuda()", ".cpu()").replace("torch.cuda.synchronize()", "")
                     if HOST_MEMORY else CONV + TELL)
    process = run("--report", *(["--simulate"] if HOST_MEMORY else []), program, "--lr", "3")
    assert_close(values(process), values(python(plain, "--lr", "3")))
    rows = [line.split()[:3] for line in process.stderr.splitlines()]
    assert ["convolution", "dnnkern", "1"] in rows and ["convolution_backward", "dnnkern", "1"] in rows
    assert "2 calls of 2 operators ran on its kernels, 0 went back to PyTorch" in process.stderr


def test_devices_that_stand_for_the_processor(tmp_path):
    layer, path, before = torch.nn.Linear(2, 2), tmp_path / "state.pt", (torch.load, torch.nn.Module.to, torch.cuda.set_device)
    torch.save(layer.state_dict(), path)
    with cuda_is_cpu():
        torch.cuda.set_device(0)
        torch.cuda.synchronize()
        places = ["cuda", "cuda:1", 1, torch.device("cuda", 1)]
        x = torch.ones(2)
        found = [made for place in places for made in (
            x.to(place), x.to(device=place), torch.zeros(2, device=place), layer.to(place).weight, layer.to(device=place).weight,
            torch.nn.Linear(2, 2, device=place).weight)]
        found += [torch.load(path, map_location=where)["weight"] for where in ("cuda", torch.device("cuda:0"), {"cpu": "cuda:1"}, None)]
        assert {made.device.type for made in found} == {"cpu"}
        assert layer.to(torch.float64).weight.dtype == x.to(torch.float64).dtype == torch.float64 and x.to(x).dtype == torch.float32
        assert torch.full((2,), 1)[1] == 1
    assert before == (torch.load, torch.nn.Module.to, torch.cuda.set_device)


def test_a_program_that_measures_by_events():
    before = torch.cuda.Event, torch.cuda.current_device
    with cuda_is_cpu():
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with pytest.raises(RuntimeError, match="has not been recorded"):
            begin.elapsed_time(end)
        begin.record()
        time.sleep(0.02)
        end.record(None)
        end.synchronize()
        assert 20 <= begin.elapsed_time(end) < 2000 and end.query()
        torch.cuda.reset_peak_memory_stats()
        from dnnkern.host.device import current_device, device
        assert torch.cuda.current_device() == 0 and torch.cuda.get_device_name(0) == device(current_device()).name
    assert before == (torch.cuda.Event, torch.cuda.current_device)


@pytest.mark.always
@pytest.mark.parametrize("name", ["keras", "tensorflow"])
def test_a_model_of_keras(name, tmp_path):
    if find_spec(name) is None or find_spec("keras") is None:
        pytest.skip(f"{name} is not installed")
    program = tmp_path / "program.py"
    program.write_text(KERAS if name == "keras" else KERAS.replace("import keras\n", "import tensorflow as tf\nkeras = tf.keras\n"))
    process = run("--ops", "all", "--strict", *(["--simulate"] if HOST_MEMORY else []), program)
    assert_close(values(process), values(python(program)))
    assert "0 went back to PyTorch" in process.stderr


def test_a_module_with_arguments(tmp_path):
    (tmp_path / "made.py").write_text("import sys, torch, __main__\nassert __name__ == '__main__'\n"
                                      "print(sys.argv[1:], (torch.ones(2, 3) @ torch.ones(3, 2)).tolist())")
    process = run("-m", "made", "--report", "x", cwd=tmp_path)
    assert process.stdout == "['--report', 'x'] [[3.0, 3.0], [3.0, 3.0]]\n"
    assert "1 calls of 1 operators" in process.stderr if HOST_MEMORY else True


def test_errors_and_exit_codes_are_the_programs(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import sys\nif sys.argv[1:]:\n    sys.exit(int(sys.argv[1]))\nraise KeyError('mine')\n")
    failed = run(program)
    assert failed.returncode == 1 and failed.stderr.splitlines()[:2] == [
        "Traceback (most recent call last):", f'  File "{program}", line 4, in <module>']
    assert "KeyError: 'mine'" in failed.stderr
    assert run(program, 5).returncode == 5 and run(program, 0).returncode == 0


def test_a_program_is_warmed(tmp_path):
    """Forward and backward passes are recorded, and what they need is compiled; then the program compiles nothing."""
    program = tmp_path / "program.py"
    program.write_text("import torch\n" + "x = torch.randn(1, 3, 8, 8, device='cuda')\nconv = torch.nn.Conv2d(3, 4, 3).cuda()\n"
                       "conv(x).square().sum().backward()\nprint(float(conv.weight.grad.abs().sum()) > 0)\n")
    simulate = ["--simulate"] if HOST_MEMORY else []
    cache = {"DNNKERN_CACHE_DIR": str(tmp_path / "cache")}
    warmed = python("-m", "dnnkern", "warm", "--ops", "convolution", *simulate, program, **cache)
    assert warmed.returncode == 0 and warmed.stdout.splitlines()[0] == "False", warmed.stderr
    if not SIMULATED:
        assert " of 3 problems; 0 were in the cache" in warmed.stdout
    before = kept(tmp_path / "cache")
    process = run("--ops", "convolution", *simulate, program, **cache)
    assert process.stdout == "True\n" and "2 calls of 2 operators" in process.stderr
    assert SIMULATED or before and kept(tmp_path / "cache") == before


@pytest.mark.parametrize("words, text", [
    (["--ops", "convolutin", __file__], "enable: ops has 'convolutin', which is no operator"),
    (["--ops", "mm"], "arguments are required: program"),
    (["nowhere.py"], "run: there is no file 'nowhere.py'; expected a program, or -m and the name of a module"),
    ([str(ROOT / "docs")], "run: can't find '__main__' module in "),
    (["-m", "nowhere"], "run: No module named nowhere; expected a program, or -m and"),
    (["--raport", "x.py"], "run: unrecognized arguments: --raport; did you mean '--report'?")])
def test_bad_words(words, text):
    process = run(*words)
    assert process.returncode == 2 and text in process.stderr and process.stderr.count("\n") == 1


@pytest.mark.skipif(not HOST_MEMORY or torch.cuda.is_available(), reason="a GPU")
def test_a_program_that_needs_a_gpu_is_told_of_simulate(tmp_path):
    program = tmp_path / "program.py"
    hint = f"\ndnnkern: PyTorch has no GPU here; to run it on the processor: python -m dnnkern run --simulate {program}\n"
    program.write_text("import torch\ntorch.ones(2, device='cuda')\n")
    failed = run(program)
    assert failed.returncode == 1 and hint in failed.stderr and hint not in run("--simulate", program).stderr
    program.write_text("raise ValueError('another reason')")
    assert hint not in run(program).stderr


def test_bad_words_of_warm():
    process = python("-m", "dnnkern", "warm", "--ops", "mm", "matmul", "2x2x2")
    assert process.returncode == 2 and "warm: --ops is for programs; expected a file, train.py" in process.stderr


def test_without_pytorch(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('none here')")
    process = run(__file__, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert process.returncode == 2 and process.stderr.splitlines() == [
        "python -m dnnkern: run: PyTorch cannot be imported (none here); expected 2.9 or newer: pip install torch"]


@pytest.mark.skipif(not HOST_MEMORY, reason="tensors of TensorFlow may be on the processor only")
def test_tensors_of_tensorflow(tmp_path):
    """In and out of this library's functions by DLPack."""
    if find_spec("tensorflow") is None:
        pytest.skip("tensorflow is not installed")
    program = tmp_path / "program.py"
    program.write_text("import json, dnnkern, tensorflow as tf, torch\n"
                       "x = tf.random.normal((8, 6))\n"
                       "y = torch.from_dlpack(x)\n"
                       "z = tf.experimental.dlpack.from_dlpack(dnnkern.matmul(y, y.T).__dlpack__())\n"
                       "print(json.dumps([float(tf.reduce_max(abs(z - x @ tf.transpose(x)))), isinstance(z, tf.Tensor), "
                       "y.data_ptr() == torch.from_dlpack(x).data_ptr()]))\n")
    difference, *facts = values(python(program))
    assert difference < 1e-5 and facts == [True, True]
