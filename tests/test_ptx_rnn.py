"""What persistent recurrent layers compile to: weights in registers, products of what is in shared memory, nothing in local memory."""
import pytest

from dnnkern import dispatch
from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from sass import machine_code  # noqa: E402
from test_ptx import device  # noqa: E402

from dnnkern.rnn._parse import parse_problem  # noqa: E402


def layer(op, words, algo):
    """The most promising configuration and the code of its layer's kernel."""
    problem, target = parse_problem(words.split(), op), device("sm_90a")
    algorithm = next(a for a in dispatch.algorithms(op) if a.name == algo)
    assert algorithm.refusal(problem, target) is None
    bound = algorithm.variants(problem, target)[0]
    (launch,) = {x.kernel: x for x in bound.build(problem, target, bound.config) if "persistent" in x.kernel.py_func.__name__}.values()
    return bound.config, launch, machine_code(launch.kernel, launch.signature)


@pytest.mark.parametrize("op, words, algo", [
    ("rnn_fwd", "128x64 512x512 lstm f16", "cluster"), ("rnn_fwd", "128x64 512x512 gru bf16 --training", "persistent"),
    ("rnn_fwd", "128x64 512x512 lstm f16 --projection 128", "persistent"),
    ("rnn_bwd_data", "128x64 512x512 lstm f16 --projection 128", "persistent"),
    ("rnn_fwd", "100x1 512x512 lstm f16 --layers 4", "wavefront"),
    ("rnn_fwd", "256x64 1024x1024 lstm f16", "persistent"), ("rnn_bwd_data", "128x64 512x512 lstm bf16", "cluster"),
    ("rnn_fwd", "128x64 512x512 lstm f32 --math tf32", "persistent"), ("rnn_fwd", "50x16 256x256 gru f32 --math tf32", "cluster"),
    ("rnn_bwd_data", "128x64 512x512 lstm f32 --math tf32", "persistent"), ("rnn_fwd", "100x1 512x512 gru f32 --math tf32", "persistent"),
    ("rnn_bwd_data", "256x64 1024x1024 gru f16", "persistent")])
def test_fragments_stay_in_registers(op, words, algo):
    """A step multiplies all of them: as many mma as steps of k and groups of eight sequences, from fragments that were loaded once."""
    config, launch, code = layer(op, words, algo)
    products = [c for c in (config, config.second) if c]
    steps = sum(c.steps for c in products)
    assert config.mma and code.count("HMMA") == steps * config.part // 8
    by_words = config.is_tf32 and config.back  # ldmatrix transposes 16 bits alone
    assert code.count("LDSM") == steps * ((not by_words) + -(-config.part // 16)), "R once, lines of sixteen sequences a step"
    assert code.count("LDGSTS") > steps, "16 bytes of R a lane and step of k, all as far as there is room on their way at once"
    assert config.held <= code.registers and code.registers * config.threads <= 65536
    assert code.count("RED") == (not config.cluster) * len(products), "one thread announces, once a product"
    assert not code.doubles and launch.cooperative != bool(config.cluster)


@pytest.mark.parametrize("op, words, algo", [("rnn_fwd", "128x64 512x512 lstm f32", "persistent"),
                                             ("rnn_fwd", "50x16 256x256 gru f32 --bidirectional", "cluster"),
                                             ("rnn_bwd_data", "50x16 256x256 lstm f32 --bidirectional", "cluster")])
def test_rows_stay_in_registers(op, words, algo):
    """A sequence costs a load of 16 bytes for four numbers of its line, a multiply-add for each number that is held, and a few shuffles."""
    config, launch, code = layer(op, words, algo)
    assert not config.mma and config.held <= code.registers and code.registers * config.threads <= 65536
    assert code.count("FFMA") + code.count("FADD") + code.count("FMUL") >= config.held
    assert sum("LDS.128" in line for line in code.lines) >= config.steps
    assert not code.doubles and code.count("SHFL") >= 5


def test_gradients_by_weights_keep_loads_in_flight():
    """A tile's loads are all on their way before the first is used, and it leaves by 16 bytes; sums have eight loads on their way."""
    problem, target = parse_problem("256x64 1024x1024 lstm f32 --math tf32".split(), "rnn_bwd_weights"), device("sm_90a")
    (algorithm,) = (a for a in dispatch.algorithms("rnn_bwd_weights") if a.name == "step")
    bound = next(a for a in algorithm.variants(problem, target) if a.config.transposed)
    found = {x.kernel.py_func.__name__: machine_code(x.kernel, x.signature) for x in bound.build(problem, target, bound.config)
             if x.kernel.py_func.__name__.startswith("rnn")}
    code = found["rnn_gates_transposed"]
    assert code.registers <= 64 and code.count("LDG") == 16 and any("STG.E.128" in line for line in code.lines)
    assert found["rnn_bias_gradients"].count("LDG") >= 8 and not any(each.doubles for each in found.values())
