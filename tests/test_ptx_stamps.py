"""Stamps of the clock in a kernel's PTX: ptxas takes it, nothing else of the kernel changes, and the clock is read where it should be."""
import functools
import re

import pytest
import sass

from dnnkern import dispatch
from dnnkern.device import SIMULATED, cuda, i32
from dnnkern.host.device import described
from dnnkern.sketch import problem

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from dnnkern.device._stamps import BEGIN, END, THREADS, Site, stamped  # noqa: E402
from dnnkern.device.vec import load4, store4  # noqa: E402
from dnnkern.host import stamps  # noqa: E402

ARCH, BLOCKS, CAPACITY = "sm_90a", 4, 1000


@cuda.jit(launch_bounds=256)
def copy(x, y):
    i = i32(4 * (cuda.blockIdx.x * 256 + cuda.threadIdx.x))
    store4(y, i, load4(x, i))


CALLS = {
    "matmul": ("matmul", "wgmma", dict(a=("4096x4096", "bfloat16"), b=("4096x4096", "bfloat16"))),
    "sdpa_fwd": ("sdpa_fwd", "flash_wgmma", dict.fromkeys("qkv", ("4x16x4096x128", "bfloat16"))),
    "conv_fwd": ("conv_fwd", "halo_wgmma", dict(x=("32x56x56x64", "bfloat16"), w=("64x3x3x64", "bfloat16"), padding=1, layout="NHWC")),
    "softmax": ("softmax_fwd", "block", dict(x=("4096x4096", "float32"))),
}


@functools.cache
def plain(name):
    """The PTX of a kernel."""
    if name == "copy":
        return stamps.ptx_of(copy, ("float32*", "float32*"), ARCH)
    op, algo, arguments = CALLS[name]
    asked, device = problem(op, **arguments), described(ARCH)
    algorithm = dispatch.get_algorithm(asked.op, asked, algo=algo, device=device)
    launch, = algorithm.build(asked, device, algorithm.config)
    return stamps.ptx_of(launch.kernel, launch.signature, ARCH)


@pytest.fixture
def ptxas():
    """Skips where it is not installed."""
    return stamps.assembler() or pytest.skip("ptxas is not installed")


@functools.cache
def machine_code(text):
    code, log = stamps.assemble(text, ARCH)
    return sass.MachineCode(log, tuple(sass.disassembled(code)), ())


@pytest.mark.parametrize("name", [*CALLS, "copy"])
def test_ptxas_takes_it(name, ptxas):
    text, entry = plain(name)
    new, sites = stamped(text, BLOCKS, CAPACITY)
    assert f".entry {entry}(" in new
    before, after = machine_code(text), machine_code(new)
    assert not after.slow, after.report
    assert before.registers <= after.registers <= before.registers + 16 and after.spilled <= 64
    for opcode in ("HGMMA", "UTMALDG", "UTMASTG", "WARPGROUP", "SYNCS.ARRIVE", "BAR.SYNC", "USETMAXREG", "STS", "LDS", "STSM"):
        assert bool(before.count(opcode)) == bool(after.count(opcode)), f"{opcode}; how often, ptxas decides: it unrolls loops"
    assert after.count("STG.E.64") - before.count("STG.E.64") >= 2 * (len(sites) - 1), "two stores of 8 bytes for each site"


@pytest.mark.parametrize("name", [*CALLS, "copy"])
def test_lines_are_added_and_none_is_changed(name):
    text, _ = plain(name)
    new, _ = stamped(text, BLOCKS, CAPACITY)

    def lines(text):
        return [line for line in text.splitlines() if line.strip() and not line.startswith(".version")]
    rest = iter(lines(new))
    assert all(line in rest for line in lines(text)), "in their order"


def test_what_is_stamped():
    """As often as the text has such instructions."""
    for name, kinds in {"matmul": {"mbarrier", "product", "products", "copy", "store", "stores", "barrier", "grid"},
                        "sdpa_fwd": {"mbarrier", "product", "products", "copy", "store", "stores", "barrier", "grid"},
                        "conv_fwd": {"mbarrier", "product", "products", "copy", "barrier"}, "softmax": {"barrier"}, "copy": set()}.items():
        text, _ = plain(name)
        _, sites = stamped(text, BLOCKS, CAPACITY)
        assert sites[0] is None and (sites[BEGIN].kind, sites[END].kind) == ("begin", "end")
        found = [site.kind for site in sites[3:]]
        assert kinds <= set(found), name
        for kind, pattern in (("mbarrier", r"mbarrier\.try_wait"), ("product", r"wgmma\.commit_group"), ("products", r"wgmma\.wait_group"),
                              ("stores", r"cp\.async\.bulk\.wait_group"), ("barrier", r"\bbar\.sync")):
            assert found.count(kind) == len(re.findall(pattern, text)), (name, kind)
    _, sites = stamped(plain("matmul")[0], BLOCKS, CAPACITY, maps=["a", "b"])
    assert {site.text for site in sites[3:] if site.kind == "copy"} == {"tensor map a", "tensor map b"}
    assert {site.text for site in sites[3:] if site.kind == "store"} == {"tensor map 2"}
    assert {site.text for site in sites[3:] if site.kind == "product"} == {"m64n256k16 f32.bf16.bf16, 4 of them"}
    assert {site.pending for site in sites[3:] if site.kind == "products"} == {0, 1}


def test_the_clock_is_read_before_and_after(ptxas):
    """Around each wait for products, with no product between."""
    new, _ = stamped(plain("matmul")[0], BLOCKS, CAPACITY)
    marks = [line for line in machine_code(new).lines if re.search(r"CLOCKLO|DEPBAR\.LE gsb|HGMMA", line)]
    waits = [k for k, line in enumerate(marks) if "DEPBAR" in line]
    assert waits
    for k in waits:
        assert "CLOCKLO" in marks[k - 1] and "CLOCKLO" in marks[k + 1], marks[k - 2:k + 3]


MADE = """.version {version}
.target sm_90a
.address_size 64

.visible .entry kernel(
    .param .align 64 .b8 kernel_param_0[128],
    .param .u64 kernel_param_1
)
{{
    .reg .pred %p<9>;
    .reg .b32 %r<9>;
    .reg .b64 %rd<9>;

    mov.b64 %rd1, kernel_param_0;
    cvta.param.u64 %rd2, %rd1;
{body}
    ret;

}}
"""


def made(version, body):
    """With tabs, as NVVM writes it."""
    return MADE.format(version=version, body=body).replace("\n    ", "\n\t")


ASM = "\t// begin inline asm\n\t{}\n\t// end inline asm\n"


@pytest.mark.parametrize("instruction, site, more", [
    (ASM.format("{ .reg .pred p; again: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%r3], %r4; @p bra done; bra again; "
                "done: }"),
     Site("mbarrier", "mbarrier_wait"), "%r3"),
    (ASM.format("{ cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%rd2, {%r5, %r6}], [%r7]; }"),
     Site("copy", "issues a copy", "tensor map 0"), "%r7"),
    (ASM.format("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd5], %r2, [%r3];"),
     Site("copy", "issues a copy"), "%r3"),
    (ASM.format("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd2, {%r1, %r2}], [%r3];"),
     Site("store", "issues a store", "tensor map 0"), "0"),
    (ASM.format("cp.async.bulk.wait_group.read 1;"), Site("stores", "bulk_wait_read", pending=1), "0"),
    (ASM.format("cp.async.wait_group 2;"), Site("groups", "wait_copies"), "0"),
    (ASM.format("wgmma.wait_group.sync.aligned 1;"), Site("products", "wgmma wait", pending=1), "0"),
    (ASM.format("bar.sync %r1, %r2;"), Site("barrier", "bar.sync"), ("%r1", "%r2")),
    (ASM.format("barrier.sync 2, 64;"), Site("barrier", "bar.sync"), ("2", "64")),
    (ASM.format("bar.red.popc.u32 %r1, 3, %p1;"), Site("barrier", "bar.sync"), ("3", "0")),
    (ASM.format("bar.red.popc.u32 %r1, 3, 96, !%p1;"), Site("barrier", "bar.sync"), ("3", "96")),
    (ASM.format("bar.arrive %r1, %r2;"), Site("arrival", "bar.arrive"), ("%r1", "%r2")),
    ("\tbar.sync \t0;\n", Site("barrier", "syncthreads"), ("0", "0")),
    (ASM.format("barrier.cluster.wait.acquire;"), Site("cluster", "cluster barrier"), "0"),
    (ASM.format("griddepcontrol.wait;"), Site("grid", "wait_for_previous_grid"), "0"),
    (ASM.format("mbarrier.arrive.shared::cta.b64 _, [%r1];"), None, None),
    ("\tbar.warp.sync \t-1;\n", None, None)])
def test_instructions(instruction, site, more, ptxas):
    text = made("9.5", instruction)
    new, sites = stamped(text, BLOCKS, CAPACITY)
    assert sites[3:] == ([] if site is None else [site])
    at = new.index(instruction)
    if site is not None:
        assert "%stamp_begin, %clock;" in new[:at].splitlines()[-1], "the clock is read directly before"
        assert "mov.u32 end, %clock;" in new[at + len(instruction):].splitlines()[0], "and after"
        if site.kind in ("barrier", "arrival"):
            number, threads = more
            expected = f"mad.lo.u32 more, {threads}, {THREADS}, {number};"
        else:
            expected = f"mov.b32 more, {more};"
        assert expected in new[at:] and "{%stamp_begin, end};" in new[at:] and "{3, more};" in new[at:]
    stamps.assemble(new, ARCH)


def test_versions():
    """One that an older ptxas takes; an older one stays."""
    for version, expected in (("9.5", "8.8"), ("8.8", "8.8"), ("8.0", "8.0")):
        assert f".version {expected}\n" in stamped(made(version, ""), BLOCKS, CAPACITY)[0]


def test_what_ptxas_refuses(ptxas):
    with pytest.raises(RuntimeError, match=r"ptxas: (?s:.*)Unknown symbol 'nothing'"):
        stamps.assemble(made("8.0", "\tmov.b32 \t%r1, nothing;"), ARCH)
