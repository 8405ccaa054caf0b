"""Access logs: emptied at every synchronisation."""


def meet_block(block):
    for t in block.threads:
        t.reads.clear()
        t.writes.clear()


def exit(thread):
    thread.reads.clear()
    thread.writes.clear()


def meet_warp(threads):
    for t in threads:
        t.reads.clear()
        t.writes.clear()


def atomic(thread, buffer, byte, entry):
    pass


def fence(thread, device):
    pass


def meet_grid(launch):
    for block in launch.blocks:
        meet_block(block)
