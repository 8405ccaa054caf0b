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
    """Time of `slots` clusters that go through rows as `ring` says (`device.ring`). Steps take the memory's time for all that is under way
    together, the time to issue what they compute, `instructions` a unit of 16 bytes and 100 a row in each warp, and what a block waits
    for; none of them hides another quite, and the first and the last steps hide nothing: rows of 65536
    (bench/results/h200-bandwidth.md)."""
    together = slots * ring.rows
    share = min(1.0, slots * ring.cluster * ring.threads / (256 * device.sms))
    moved = moved_seconds(nbytes, device) * together / (rows * share)
    issue = ring.resident * ring.threads * ring.rows * (ring.units * instructions + 100) / (128 * device.clock_hz)
    wait = 0.34e-6 + 0.3e-6 * ring.threads / 256
    return LAUNCH + 2e-6 + max(5.0, rows / together) * (moved ** 2 + issue ** 2 + wait ** 2) ** 0.5
