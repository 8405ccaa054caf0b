"""What moving bytes costs: the terms that the estimates of this family share.

A copy runs at 0.89 of an H200's nominal bandwidth (4.27 of 4.8 TB/s measured); a launch of a small kernel takes 2.5 us.
"""
LAUNCH = 2.5e-6
COPY_RATE = 0.89
SECTOR = 32


def moved_seconds(nbytes, device):
    """Time of `nbytes`, read and written together, at the rate of a copy."""
    return nbytes / (COPY_RATE * device.bandwidth)


def divisions_seconds(elements, instructions, device):
    """Time to issue that many instructions for each element."""
    return elements * instructions / (128 * device.sms * device.clock_hz)


def sector_waste(run, unit):
    """Bytes that memory moves over bytes wanted, for runs of `run` contiguous bytes that begin at multiples of `unit`."""
    sectors = -(-run // SECTOR) if unit >= min(run, 16) else (run + SECTOR - unit) / SECTOR
    return max(1.0, sectors * SECTOR / run)


def tail(blocks, per_multiprocessor, device):
    """How much longer a grid takes than its bytes because its last blocks run alone."""
    return 1 + 0.5 * min(1.0, per_multiprocessor * device.sms / blocks)


def ring_seconds(ring, slots, rows, nbytes, instructions, device):
    """Time of `slots` blocks or clusters that go through rows as `ring` says (`device.ring`): bytes at the rate of a copy, or steps, of
    which there are as many as those with the most rows have: what a step waits for, and the instructions of its units of 16 bytes."""
    steps = -(-rows // (slots * ring.rows))
    share = min(1.0, slots * ring.cluster * ring.threads / (256 * device.sms))
    moved = moved_seconds(nbytes, device) * steps * slots * ring.rows / (rows * share)
    work = ring.rows * ring.units * ring.threads * instructions / (128 * device.clock_hz) * (2 if ring.threads < 512 else 1.4)
    waits = 1.2e-6 + 0.03e-6 * ring.cluster
    return LAUNCH + 2e-6 + max(moved, steps * max(waits + work, work * ring.resident))
