import sys, pytest
sys.path.insert(0, "tests")
from tests.test_attention_tiles import *
@pytest.mark.parametrize("how", [
    dict(b=1, h=1, kv=1, rows=70, keys=100, d=16, e=16, causal=True),
    dict(b=2, h=4, kv=2, rows=140, keys=150, d=24, e=72, causal=True),
    dict(b=1, h=2, kv=1, rows=130, keys=270, d=72, e=8, window=(60, 30), align="bottom_right"),
    dict(b=1, h=1, kv=1, rows=65, keys=81, d=136, e=136),
    dict(b=1, h=1, kv=1, rows=33, keys=100, d=40, e=8, causal=True),
    dict(b=1, h=1, kv=1, rows=70, keys=100, d=256, e=256, causal=True, align="bottom_right"),
], ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_roles(how, dtype):
    from dnnkern.attention.backward import flash_wgmma_roles as m
    h = dict(how)
    case = Backward("roles", *(h.pop(k) for k in ("b", "h", "kv", "rows", "keys", "d", "e")), dtype, **h)
    p = case.problem()
    for variant in m.ALGORITHM.variants(p, contract.device()):
        contract.check(variant, case, **contract.ONCE)
