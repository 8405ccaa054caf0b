"""Stamps of the clock in a kernel's PTX: when each warp comes to the instructions that wait, copy and multiply, and when it goes on.

The text that NVVM made of a kernel is rewritten; the kernel itself and what is compiled of it otherwise stay as they are. Around each of
these instructions goes

    before      read the clock; is this the first of the lanes that are here?
    after       read the clock again; that lane stores both, and which instruction it was, in the next record of its own

so a record is a stretch of time of a warp. A lane has `capacity` records, in the memory whose address is in the constant `STAMPS` of the
module; what does not fit is counted and dropped. The only register that lives on between two stamps is the number of a lane's records.
The first `blocks` blocks of a grid store, all others execute the same instructions and store nothing.

    memory      HEAD bytes: of each lane of each block, how many records it wanted to write, and its multiprocessor
                then `capacity` records of each lane, RECORD bytes each: clock, clock, site, what the site says more

Two sites are not instructions: a warp begins (`BEGIN`) and ends (`END`). Their records have the low half of the global timer, in
nanoseconds, in place of the second clock, and its high half as what is more: so the clocks of multiprocessors fit together.
"""
import re
from typing import NamedTuple

STAMPS = "dnnkern_stamps"
RECORD, HEAD = 16, 8 << 13
BEGIN, END = 1, 2  # sites; 0 is none
_BITS = 19         # of the number of a lane's records, in a register that has the lane's number above them
THREADS = 1 << 16  # what a barrier's record has beyond its number: how many threads meet there, 0 for all
MOST_LANES = (1 << 32 - _BITS) - 1  # the last number stands for blocks that store nothing
_COUNT = (1 << _BITS) - 1           # where counting ends

# NVVM's version of PTX is newer than what an older ptxas or driver takes; none of what kernels use is newer than this one.
_NEWEST = 8, 8

_NOTHING = "mov.b32 more, 0;"
_ASM = re.compile(r"\t// begin inline asm\n(.*?)\n\t// end inline asm\n", re.DOTALL)
_BARRIER = r"\bbar(?:rier)?(?:\.cta)?\.(?:{}\S*|red\S*\s+%\w+,)\s+(%?\w+)(?:,\s*(?!!?%p)(%?\w+))?"  # number, threads
_KINDS = (  # kind, pattern of a PTX instruction, what it is called
    ("mbarrier", r"mbarrier\.try_wait\S* \w+, \[(%\w+)\]", "mbarrier_wait"),
    ("product", r"wgmma\.commit_group", "issues wgmma"),
    ("products", r"wgmma\.wait_group\S* (\d+)", "wgmma wait"),
    ("copy", r"cp\.async\.bulk\.\S*shared::cluster\.global", "issues a copy"),
    ("store", r"cp\.(?:reduce\.)?async\.bulk\.\S*global\.shared::cta", "issues a store"),
    ("stores", r"cp\.async\.bulk\.wait_group\S* (\d+)", "bulk_wait"),
    ("groups", r"cp\.async\.wait_(?:group|all)\S*", "wait_copies"),
    ("barrier", _BARRIER.format("sync"), "bar.sync"),
    ("arrival", _BARRIER.format("arrive"), "bar.arrive"),
    ("cluster", r"barrier\.cluster\.wait", "cluster barrier"),
    ("grid", r"griddepcontrol\.wait", "wait_for_previous_grid"),
)


class Site(NamedTuple):
    """An instruction that is stamped.

    Attributes
    ----------
    kind : str
        "mbarrier", "product", "products" (the wait for them), "copy", "store", "stores" (the wait), "groups", "barrier", "arrival" (at
        one), "cluster", "grid", "begin" or "end".
    name : str
        As the simulator calls what waits.
    text : str
        What it is more exactly: the shape of a product, the tensor map of a copy.
    pending : int
        Of a wait for products: how many groups may still be in flight.
    """
    kind: str
    name: str
    text: str = ""
    pending: int = 0


def stamped(text, blocks, capacity, name=STAMPS, maps=()) -> tuple:
    """The PTX of a kernel with stamps, and the `Site` of each number. `name` is the constant's; `maps` are what its tensor maps are of."""
    start = text.index("\n{", text.index(".entry ")) + 2
    end = text.index("\n}", start)
    maps, sites = _tensor_maps(text[:end], maps), [None, Site("begin", "begins"), Site("end", "ends")]

    def around(instruction, inside):
        found = _site(inside, maps)
        if found is None:
            return instruction
        site, more = found
        sites.append(site)
        return _before() + instruction + _after(len(sites) - 1, more, capacity, name)

    def plain(line):
        if re.match(r"\t(?:@!?%\w+\s+)?(?:ret|exit);$", line):
            return _at_the_end(capacity, name) + line + "\n"
        return around(line + "\n", line) if line.startswith("\tbar") else line + "\n"

    body, at = [], 0
    whole = text[start:end].lstrip("\n") + "\n"
    for block in _ASM.finditer(whole):
        body += [plain(line) for line in whole[at:block.start()].splitlines()]
        body.append(around(block[0], block[1]))
        at = block.end()
    body += [plain(line) for line in whole[at:].splitlines()]
    head = re.sub(r"(?m)^\.version (\d+)\.(\d+)$", lambda m: ".version {}.{}".format(*min((int(m[1]), int(m[2])), _NEWEST)), text[:start])
    head = re.sub(r"(?m)^\.address_size 64$", f"\\g<0>\n.visible .const .align 8 .u64 {name};", head)
    return head + "\n" + _at_the_start(blocks, capacity, name) + "".join(body) + text[end + 1:], sites


def _site(text, maps):
    """The `Site` of an instruction, or of several in one text, and what makes its record's last number; None of others."""
    for kind, pattern, name in _KINDS:
        found = re.search(pattern, text)
        if found is None:
            continue
        if kind == "product":
            shapes = re.findall(r"wgmma\.mma_async\.sync\.aligned\.(m\w+)\.(\S+)", text)
            return Site(kind, name, f"{shapes[0][0]} {shapes[0][1]}, {len(shapes)} of them" if shapes else ""), _NOTHING
        if kind in ("copy", "store"):
            addresses = re.findall(r"\[(%\w+)[\],]", text)
            what = next((f"tensor map {maps[register]}" for register in addresses if register in maps), "")
            return Site(kind, name, what), f"mov.b32 more, {addresses[-1]};" if kind == "copy" else _NOTHING
        if kind in ("products", "stores"):
            return Site(kind, name + ("_read" if ".read" in found[0] else ""), pending=int(found[1])), _NOTHING
        if kind in ("barrier", "arrival"):
            site = Site(kind, "syncthreads" if found[1] == "0" and kind == "barrier" else name)
            return site, f"mad.lo.u32 more, {found[2] or 0}, {THREADS}, {found[1]};"
        return Site(kind, name), f"mov.b32 more, {found[1]};" if kind == "mbarrier" else _NOTHING
    return None


def _tensor_maps(text, names):
    """{register: of what the tensor map is whose address it has}."""
    parameters = re.findall(r"\.param \.align 64 \.b8 (\w+)\[128\]", text)
    known = {parameter: names[k] if k < len(names) else str(k) for k, parameter in enumerate(parameters)}
    for to, source in re.findall(r"\t(?:mov\.[bu]64|cvta\.param\.u64)\s+(%\w+), (%?\w+);", text):
        if source in known:
            known[to] = known[source]
    return known


def _lines(*lines):
    return "".join(f"\t{line}\n" for line in lines)


def _at_the_start(blocks, capacity, name):
    return _lines(
        ".reg .pred %stamp_leads;", ".reg .b32 %stamp_next, %stamp_begin;",
        "{ .reg .pred first; .reg .b32 block, lane, lanes, a, b;",
        "mov.u32 block, %ctaid.z; mov.u32 a, %nctaid.y; mov.u32 b, %ctaid.y; mad.lo.u32 block, block, a, b;",
        "mov.u32 a, %nctaid.x; mov.u32 b, %ctaid.x; mad.lo.u32 block, block, a, b;",
        "mov.u32 lane, %tid.z; mov.u32 lanes, %ntid.z; mov.u32 a, %ntid.y; mov.u32 b, %tid.y;",
        "mad.lo.u32 lane, lane, a, b; mul.lo.u32 lanes, lanes, a; mov.u32 a, %ntid.x; mov.u32 b, %tid.x;",
        "mad.lo.u32 lane, lane, a, b; mul.lo.u32 lanes, lanes, a;",
        f"mad.lo.u32 lane, block, lanes, lane; shl.b32 lane, lane, {_BITS};",
        f"setp.lt.u32 first, block, {blocks}; selp.b32 %stamp_next, lane, {-1 & 0xFFFFFFFF}, first; }}") + _timed(BEGIN, capacity, name)


def _before():
    return _lines(
        "{ .reg .b32 here, below; activemask.b32 here; mov.u32 below, %lanemask_lt; and.b32 here, here, below;",
        "setp.eq.u32 %stamp_leads, here, 0; mov.u32 %stamp_begin, %clock; }")


def _after(site, more, capacity, name, second="mov.u32 end, %clock;"):
    """`more`: what sets the register of this name, which goes into the record."""
    return _lines(
        f"{{ .reg .pred fits, counts; .reg .b32 end, count, lane, more; .reg .b64 at, base; {second}",
        f"and.b32 count, %stamp_next, {_COUNT}; shr.u32 lane, %stamp_next, {_BITS};",
        f"setp.lt.and.u32 fits, count, {capacity}, %stamp_leads; setp.ne.and.u32 counts, count, {_COUNT}, %stamp_leads;",
        f"mad.lo.u32 lane, lane, {capacity}, count; ld.const.u64 base, [{name}]; mad.wide.u32 at, lane, {RECORD}, base;",
        *([more] if more else []),
        # Two stores, not one of four registers side by side: a kernel that has none to spare would move others to memory.
        f"@fits st.global.v2.b32 [at+{HEAD}], {{%stamp_begin, end}}; @fits st.global.v2.b32 [at+{HEAD + 8}], {{{site}, more}};",
        "@counts add.u32 %stamp_next, %stamp_next, 1; }")


def _timed(site, capacity, name):
    """A record of the clock and the global timer."""
    return _before() + _after(site, "", capacity, name,
                              second=".reg .b64 timer; mov.u64 timer, %globaltimer; mov.b64 {end, more}, timer;")


def _at_the_end(capacity, name):
    """The warp ends; each lane says how many records it wanted to write."""
    return _timed(END, capacity, name) + _lines(
        "{ .reg .pred stores; .reg .b32 count, lane, sm; .reg .b64 at, base; mov.u32 sm, %smid;",
        f"and.b32 count, %stamp_next, {_COUNT}; shr.u32 lane, %stamp_next, {_BITS}; setp.ne.u32 stores, lane, {MOST_LANES};",
        f"ld.const.u64 base, [{name}]; mad.wide.u32 at, lane, 8, base; @stores st.global.v2.b32 [at], {{count, sm}}; }}")
