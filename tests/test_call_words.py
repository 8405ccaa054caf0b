"""Calls in words: each public function's, read back as the problem that its arguments have, and words that are none."""
import inspect
import json
import os
import shlex
import subprocess
import sys

import numpy as np
import pytest
from calls import CALLS, TAIL, array
from cases import lay
from labs import guarded

import dnnkern
from dnnkern.call_words import problem_of, words_of
from dnnkern.device.activation import Activation
from dnnkern.host.tensor import Tensor
from dnnkern.sketch import function_of, problem


def arguments_of(name):
    """{argument: value} of the function's call."""
    arrays, keywords = CALLS[name]()
    names = [p for p in inspect.signature(function_of(name)).parameters if p not in TAIL and p not in keywords]
    return {**dict(zip(names, arrays)), **keywords}


@pytest.mark.parametrize("name", sorted(CALLS))
def test_every_function(name):
    arguments = arguments_of(name)
    words = words_of(name, arguments)
    assert len(words) <= len(arguments) and all("=" in word for word in words)
    assert problem_of(name, shlex.split(shlex.join(words))) == problem(name, **arguments)


def test_arrays():
    whole, backwards = array(6, 8), guarded(lay((3, 8), "float32", gap=8, flip=(1,))).array  # which torch's views cannot be
    for a in (whole, whole.T, whole[1:4, 2:7], whole[::2, ::3], backwards, whole[:, None]):
        arguments = {"x": a, "axis": 0}
        word, _ = words_of("softmax_fwd", arguments)
        assert problem_of("softmax_fwd", [word, "axis=0"]) == problem("softmax_fwd", **arguments), word
    assert words_of("softmax_fwd", {"x": Tensor((4, 3), (1, 4), "bfloat16", 2)}) == ["x=4x3:bfloat16:1x4@2"]
    assert words_of("mse_loss_bwd", {"dloss": array(), "x": array(3)}) == ["dloss=():float32", "x=3:float32"]


def test_short_words():
    assert problem_of("scale_tensor", ["x=4x3:f32", "alpha=2", "out=x"]) == problem(
        "scale_tensor", x=((4, 3), "float32"), alpha=2, out="x")
    x, w = ("2x4x5x5", "bfloat16"), ("3x4x3x3", "bfloat16")
    assert problem_of("conv_fwd", ["x=2x4x5x5:bf16", "w=3x4x3x3", "padding=1,2", "activation=Activation(relu,upper_clip=6)"]) == problem(
        "conv_fwd", x=x, w=w, padding=(1, 2), activation=Activation("relu", upper_clip=6))
    assert problem_of("conv_fwd", ["x=2x4x5x5:bf16", "w=3x4x3x3", "padding=(1,0),(0,1)"]) == problem(
        "conv_fwd", x=x, w=w, padding=((1, 0), (0, 1)))
    arrays = [("2x3", "float32"), ("2x5", "float32")]
    assert problem_of("concat", ["arrays=[2x3:f32,2x5]", "axis=1"]) == problem("concat", arrays=arrays, axis=1)
    network = ["spec=RnnSpec(lstm,8,16,num_layers=2,clip=(-1,1))", "x=5x3x8:f32", "h0=None", "c0=None", "weights=3840:f32"]
    spec = dnnkern.RnnSpec("lstm", 8, 16, num_layers=2, clip=(-1, 1))
    assert problem_of("rnn_fwd", network) == problem("rnn_fwd", spec=spec, x=("5x3x8", "float32"), h0=None, c0=None,
                                                     weights=((3840,), "float32"))


def test_a_value_that_is_a_default_is_left_out():
    assert words_of("softmax_fwd", {"x": array(3, 4), "axis": -1, "log": False}) == ["x=3x4:float32"]
    assert words_of("softmax_fwd", {"x": array(3, 4), "log": True, "algo": "naive", "stream": 0}) == ["x=3x4:float32", "log=True"]


@pytest.mark.parametrize("words, message", [
    ("x", "'x' is no argument; expected name=value"), ("x=4x3", "the first array has no dtype; expected one, as in x=4x3:float32"),
    ("x=4x3:f31", "x=4x3:f31: unknown dtype 'f31'"), ("x=4x3:f32 x=3:f32", "x is given twice"),
    ("x=", "there is no value"), ("x=4x3:f32:3", "needs 2 strides"), ("x=4x3:f32@3", "alignment 3; expected 1, 2, 4, 8 or 16"),
    ("x=4x3:f32 axis=(1", "')' is missing"), ("x=4x3:f32 axis=1)", "')' follows a value"), ("x=4x3:f32 axis=[1,,2]", "',2]' is no value"),
    ("x=4x3:f32 axs=1", "softmax_fwd has no argument 'axs'; did you mean 'axis'?"), ("axis=1", "softmax_fwd also needs x"),
    ("x=4x3:f32 axis=5", "axis"), ("x=4x3:f32 log=Logarithm(1)", "there is no Logarithm; expected one of Activation, RnnSpec"),
    ("x=4x3:f32 axis={}", "this function takes no program"), ("x=4x3:f32 algo=naive", "algo is not part of a problem")])
def test_words_that_are_none(words, message):
    with pytest.raises((ValueError, TypeError)) as caught:
        problem_of("softmax_fwd", words.split())
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_classes_that_refuse():
    with pytest.raises(ValueError, match=r"^activation_fwd: mode=Activation\(rel\): Activation: mode='rel'; expected one of"):
        problem_of("activation_fwd", ["x=3:f32", "mode=Activation(rel)"])
    with pytest.raises(ValueError, match=r"^fused_pointwise: program=\{\"loads\": 1\}: no program: "):
        problem_of("fused_pointwise", ['program={"loads": 1}', "inputs=[3:f32]"])


CHECKED = """
import sys, numpy as np, dnnkern
bad = np.full((4, 6), np.nan, np.float32)
sys.argv = ["", *sys.argv[1:]]
try:
    {"conv": lambda: dnnkern.conv_fwd(bad[None, None], bad[None, None, :3, :3], padding=((1, 0), (0, 1)), activation="relu"),
     "add": lambda: dnnkern.add_tensor(np.ones((1, 4), np.float32), bad.T, out=bad.T),
     "elu": lambda: dnnkern.activation_fwd(bad, "elu", alpha=0.5)}[sys.argv[1]]()
except ArithmeticError as error:
    print(error)
"""


@pytest.mark.parametrize("what, command", [
    ("conv", "conv_fwd x=1x1x4x6:float32:0x0x6x1 w=1x1x3x3:float32:0x0x6x1 padding=(1,0),(0,1) activation=relu"),
    ("add", "add_tensor a=1x4:float32 c=6x4:float32:1x6 out=c"), ("elu", "activation_fwd x=4x6:float32 mode=elu alpha=0.5")])
def test_what_a_check_prints_runs(what, command, simulated):
    """And it is the problem in which the check found something."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", CHECKED, what], capture_output=True, text=True,
                          env={**os.environ, "DNNKERN_CHECK": "nan"})
    found = shlex.split(done.stdout.strip().split("python -m dnnkern check ")[1])
    at = found.index("--algo")
    assert problem_of(found[0], found[1:at]) == problem_of(command.split()[0], command.split()[1:])
    again = subprocess.run([sys.executable, "-W", "ignore", "-m", "dnnkern", "check", *found], capture_output=True, text=True)
    assert again.returncode == 0 and f"{found[at + 1]} " in again.stdout and "ok" in again.stdout, again.stdout + again.stderr


def test_commands(simulated):
    """The three that take problems, by the call and in short."""
    def said(*words):
        done = subprocess.run([sys.executable, "-W", "ignore", "-m", "dnnkern", *words], capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr
    short = said("explain", "conv_fwd", "2x4x5x5", "k3", "3x3", "p1", "f32", "--json")
    assert said("explain", "conv_fwd", "x=2x4x5x5:f32", "--json", "w=3x4x3x3", "padding=1") == short and short[0] == 0
    code, out, _ = said("explain", "conv_transpose_fwd", "x=2x4x5x5:f32", "w=4x3x3x3")
    assert code == 0 and out.startswith("conv_bwd_data 2x3x7x7 k4 3x3")
    code, out, _ = said("explain", "conv_fwd", "x=64x56x56x64:f16", "w=64x3x3x64", "padding=1", "layout=NHWC", "--arch", "sm_90a", "--json")
    found = json.loads(out)
    assert (code, found["device"], found["algorithms"][0]["name"]) == (0, "NVIDIA H200", found["chosen"]) and "wgmma" in found["chosen"]
    code, _, error = said("explain", "softmax_fwd", "x=3x4:f32", "--arch", "sm_91")
    assert code == 2 and "arch is 'sm_91'; expected one of sm_70" in error
    assert said("warm", "--arch", "sm_90a", "--json", "softmax_fwd", "x=3x4:f32", "axs=1")[2].count("did you mean 'axis'?") == 1
    code, out, error = said("check", "conv_fwd", "x=2x4x5x5:f32", "w=3x4x3x3", "pading=1")
    assert (code, out) == (2, "") and "did you mean 'padding'?" in error and error.count("\n") == 1


def test_numbers():
    assert words_of("activation_fwd", {"x": array(3), "mode": "relu", "upper_clip": np.float32(6), "negative_slope": float("inf")})[2:] == [
        "upper_clip=6.0", "negative_slope=inf"]
