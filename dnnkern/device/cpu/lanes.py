"""Collectives of the lanes of a warp, as LLVM IR beside `runtime`: shuffles, ballots, reductions.

The warp's record has a slot for each collective in progress, so that lanes that have diverged may be in several at once.
"""
from .waits import KIND

SHUFFLES = {"bfly": "xor i32 %i, %operand", "up": "sub i32 %i, %operand", "down": "add i32 %i, %operand", "idx": "and i32 %operand, 31"}
FOLDS = {"ballot": ("0", "%nonzero = icmp ne i32 %value, 0\n  %mine = select i1 %nonzero, i32 %bit, i32 0\n  %folded = or i32 %sum, %mine"),
         "add": ("0", "%folded = add i32 %sum, %value"),
         "max": (str(-1 << 31), "%c = icmp sgt i32 %value, %sum\n  %folded = select i1 %c, i32 %value, i32 %sum"),
         "min": (str((1 << 31) - 1), "%c = icmp slt i32 %value, %sum\n  %folded = select i1 %c, i32 %value, i32 %sum")}


def _slot():
    """Which slot a collective of some lanes has: that of its lowest lane, unless other lanes, diverged from these, are there."""
    return """
define internal i32 @cpu.slot(i32 %mask, i32 %lowest) noinline {
  %masks = call ptr @cpu.at.masks()
  %arrived = call ptr @cpu.at.arrived()
  br label %search
search:
  %k = phi i32 [0, %0], [%k1, %other]
  %pm = getelementptr i32, ptr %masks, i32 %k
  %m = load i32, ptr %pm
  %pa = getelementptr i32, ptr %arrived, i32 %k
  %a = load i32, ptr %pa
  %same = icmp eq i32 %m, %mask
  %taken = icmp ne i32 %a, 0
  %found = and i1 %same, %taken
  br i1 %found, label %have, label %other
have:
  ret i32 %k
other:
  %k1 = add i32 %k, 1
  %end = icmp eq i32 %k1, 32
  br i1 %end, label %first, label %search
first:
  %f = phi i32 [%lowest, %other], [%f2, %first]
  %pf = getelementptr i32, ptr %arrived, i32 %f
  %af = load i32, ptr %pf
  %free = icmp eq i32 %af, 0
  %f1 = add i32 %f, 1
  %f2 = and i32 %f1, 31
  br i1 %free, label %take, label %first
take:
  %own = icmp eq i32 %f, %lowest
  %away = zext i1 %own to i32
  %more = sub i32 1, %away
  %ps = call ptr @cpu.at.spilled()
  %s = load i32, ptr %ps
  %s1 = add i32 %s, %more
  store i32 %s1, ptr %ps
  ret i32 %f
}
"""


def _collective(kind):
    """``i32 @cpu.collect.KIND(mask, value, operand)``: the last lane to come computes everyone's result, the others wait for it.

    Lanes that have returned are not waited for.
    """
    if kind in SHUFFLES:
        finish = f"""
  br label %each
each:
  %i = phi i32 [0, %finish], [%i1, %each]
  %pi = getelementptr i32, ptr %operands, i32 %i
  %operand = load i32, ptr %pi
  %source = {SHUFFLES[kind]}
  %inside = icmp ult i32 %source, 32
  %from = select i1 %inside, i32 %source, i32 %i
  %pfrom = getelementptr i32, ptr %values, i32 %from
  %new = load i32, ptr %pfrom"""
    else:
        start, fold = FOLDS[kind]
        finish = f"""
  br label %fold
fold:
  %f = phi i32 [0, %finish], [%f1, %fold]
  %sum = phi i32 [{start}, %finish], [%sum1, %fold]
  %pf = getelementptr i32, ptr %values, i32 %f
  %value = load i32, ptr %pf
  %bit = shl i32 1, %f
  %fin = and i32 %bit, %among
  %counts = icmp ne i32 %fin, 0
  {fold}
  %sum1 = select i1 %counts, i32 %folded, i32 %sum
  %f1 = add i32 %f, 1
  %fend = icmp eq i32 %f1, 32
  br i1 %fend, label %deliver, label %fold
deliver:
  br label %each
each:
  %i = phi i32 [0, %deliver], [%i1, %each]
  %new = add i32 %sum1, 0"""
    return f"""
define internal i32 @cpu.collect.{kind}(i32 %mask, i32 %given, i32 %argument) noinline {{
  %lane = call i32 @cpu.get.laneid()
  %masks = call ptr @cpu.at.masks()
  %arrivals = call ptr @cpu.at.arrived()
  %values = call ptr @cpu.at.values()
  %operands = call ptr @cpu.at.operands()
  %results = call ptr @cpu.at.results()
  %meetings = call ptr @cpu.at.meetings()
  %lowest = call i32 @llvm.cttz.i32(i32 %mask, i1 true)
  %pown = getelementptr i32, ptr %arrivals, i32 %lowest
  %aown = load i32, ptr %pown
  %pmown = getelementptr i32, ptr %masks, i32 %lowest
  %mown = load i32, ptr %pmown
  %pspilled = call ptr @cpu.at.spilled()
  %spilled = load i32, ptr %pspilled
  %empty = icmp eq i32 %aown, 0
  %ours = icmp eq i32 %mown, %mask
  %none = icmp eq i32 %spilled, 0
  %fresh = and i1 %empty, %none
  %begun = icmp ne i32 %aown, 0
  %joined = and i1 %begun, %ours
  %quick = or i1 %fresh, %joined
  br i1 %quick, label %come, label %slow
slow:
  %other = call i32 @cpu.slot(i32 %mask, i32 %lowest)
  br label %come
come:
  %slot = phi i32 [%lowest, %0], [%other, %slow]
  %pm = getelementptr i32, ptr %masks, i32 %slot
  store i32 %mask, ptr %pm
  %pv = getelementptr i32, ptr %values, i32 %lane
  store i32 %given, ptr %pv
  %po = getelementptr i32, ptr %operands, i32 %lane
  store i32 %argument, ptr %po
  %pa = getelementptr i32, ptr %arrivals, i32 %slot
  %a = load i32, ptr %pa
  %me = shl i32 1, %lane
  %a1 = or i32 %a, %me
  store i32 %a1, ptr %pa
  %pmeet = getelementptr i32, ptr %meetings, i32 %lane
  %met = load i32, ptr %pmeet
  %palive = call ptr @cpu.at.alive()
  %presult = getelementptr i32, ptr %results, i32 %lane
  br label %check
check:
  %alive = load volatile i32, ptr %palive
  %among = and i32 %mask, %alive
  %there = load volatile i32, ptr %pa
  %here = and i32 %there, %alive
  %all = icmp eq i32 %here, %among
  br i1 %all, label %finish, label %wait
wait:
  %what = zext i32 %mask to i64
  call void @cpu.wait(i32 {KIND["collective"]}, i64 %what)
  %now = load volatile i32, ptr %pmeet
  %same = icmp eq i32 %met, %now
  br i1 %same, label %check, label %out
out:
  %r = load volatile i32, ptr %presult
  ret i32 %r
finish:{finish}
  %ibit = shl i32 1, %i
  %iin = and i32 %ibit, %among
  %takes = icmp ne i32 %iin, 0
  %pr = getelementptr i32, ptr %results, i32 %i
  %old = load i32, ptr %pr
  %result = select i1 %takes, i32 %new, i32 %old
  store i32 %result, ptr %pr
  %pc = getelementptr i32, ptr %meetings, i32 %i
  %count = load i32, ptr %pc
  %once = zext i1 %takes to i32
  %count1 = add i32 %count, %once
  store i32 %count1, ptr %pc
  %i1 = add i32 %i, 1
  %end = icmp eq i32 %i1, 32
  br i1 %end, label %done, label %each
done:
  store i32 0, ptr %pa
  %home = icmp eq i32 %slot, %lowest
  %stay = zext i1 %home to i32
  %less = sub i32 1, %stay
  %s = load i32, ptr %pspilled
  %s1 = sub i32 %s, %less
  store i32 %s1, ptr %pspilled
  call void @cpu.progress()
  br label %out
}}
"""


def text():
    """All of them."""
    return _slot() + "".join(map(_collective, (*SHUFFLES, *FOLDS)))
