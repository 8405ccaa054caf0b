"""The constants of all cost models, in one table: what an `estimate` needs beside counts of its problem and rates of its device.

A row is one model's. It says where its numbers come from: *fitted* to times measured on a device (the run is a file of bench/results),
*counted* in machine code, or *guessed*: by reasoning, never measured. A fitted row names the command that fits it to runs like that one;
numbers listed as guessed were not part of the fit. Units are seconds, bytes, instructions or cycles, as the row says; rates are shares of
the device's nominal ones.

>>> row = constants("device")
>>> row.launch, row.about.source.kind, row.about.source.device
(2.5e-06, 'fitted', 'NVIDIA H200')
"""
from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """Where numbers come from: "fitted" to a run on a device, "counted" in machine code for an architecture, or "guessed"."""
    kind: str
    device: str = ""
    run: str = ""


@dataclass(frozen=True)
class About:
    """What is known of a row: its name, source and meaning, and which of its numbers were guessed though others were fitted."""
    name: str
    source: Source
    meaning: str
    guessed: tuple = ()

    @property
    def command(self) -> str:
        """What fits the row's numbers; "" where they are not fitted."""
        return f"python -m bench.fit {self.name}" if self.source.kind == "fitted" else ""


class Constants:
    """A row: its numbers as attributes, and what is known of them as `about`."""

    def __init__(self, about, numbers):
        self.about = about
        self.__dict__.update(numbers)

    @property
    def numbers(self) -> dict:
        return {name: value for name, value in vars(self).items() if name != "about"}


TABLE: dict[str, Constants] = {}


def constants(name) -> Constants:
    """The row of a model."""
    return TABLE[name]


def _h200(run):
    return Source("fitted", "NVIDIA H200", f"bench/results/{run}")


def _row(name, source, meaning, guessed=(), **numbers):
    TABLE[name] = Constants(About(name, source, meaning, guessed), numbers)


_COUNTED = Source("counted", "sm_90a")
_GUESSED = Source("guessed")

# ---- what models of several families share

_row("device", _h200("h200-bandwidth.md"),
     "s of a launch of a small kernel; share of nominal bandwidth that a copy has (4.27 of 4.8 TB/s); share of its time by which a "
     "grid of one wave is longer; bytes of an element that is loaded alone as fast as 16 bytes are", ("tail",),
     launch=2.5e-6, copy_rate=0.89, tail=0.5, narrow=5)
_row("ring", _h200("h200-bandwidth.md"),
     "rings of rows: s of the first and last steps, least number of steps that count, s that a step waits, and with 256 threads more; "
     "instructions a row; threads of a multiprocessor that are enough",
     start=2e-6, least_steps=5.0, wait=0.34e-6, wait_256=0.3e-6, row=100, enough=256)

# ---- act

_row("act/elements", _h200("h200-act.jsonl"),
     "instructions: of an element from load to store, of functions with a sum, a bound or a product, of those with one special "
     "function, of gelu, of all others; of a thread, of a dimension of it, of an access", ("other", "thread"),
     light=5, medium=12, heavy=19, other=30, thread=30, dimension=14, access=4)
_row("act/waits", _h200("h200-act.jsonl"),
     "chunks of a thread -> times as long, with heavy functions of 16-bit elements: little is loaded while others compute",
     chunks_1=1.09, chunks_2=1.06, chunks_4=1.0)
_row("act/naive", _GUESSED,
     "instructions of a thread and of a dimension's division",
     thread=30, dimension=70)
_row("act/rows", _h200("h200-act.jsonl"),
     "times as long as counted, and for each chunk of a thread more; blocks of a multiprocessor",
     slower=1.005, slower_chunk=0.01, blocks=8)
_row("act/vector", _h200("h200-act.jsonl"),
     "s that each chunk of a block takes beside its bytes; times as long for each chunk more; blocks of a multiprocessor",
     chunk=2e-7, slower_chunk=0.005, blocks=8)

# ---- dropout, optim

_row("dropout/naive", _GUESSED,
     "instructions of a thread and of a dimension's division",
     thread=50, dimension=70)
_row("dropout/vector", _h200("h200-training.md"),
     "instructions of a thread, a dimension, a call of Philox, an element, an access; blocks of a multiprocessor",
     ("thread", "dimension", "access", "blocks"),
     thread=20, dimension=12, philox=70, element=5, access=4, blocks=6)
_row("optim/naive", _GUESSED,
     "instructions of an element and of a dimension's division",
     thread=80, dimension=70)
_row("optim/chunks", _h200("h200-training.md"),
     "times as long with another number of elements a thread than suits; blocks of a multiprocessor", ("blocks",),
     misfit=1.03, blocks=6)
_row("optim/grads_naive", _GUESSED,
     "instructions of an element and of a dimension's division; s for each turn of the block that adds up",
     thread=40, dimension=70, turn=0.3e-6)

# ---- pool

_row("pool/naive", _GUESSED,
     "instructions of a thread, of a tap; s that a tap waits",
     thread=400, tap=60, latency=5e-7)
_row("pool/fwd_channels", _h200("h200-bandwidth.md"),
     "instructions of a thread, a tap, its channels without and with an index; bytes a clock of the L1; threads of a multiprocessor "
     "that are enough; share of overlapped times that shows; s of a tap where one thread has a million", ("exposed", "enough"),
     thread=80, tap=6, channel=2, channel_index=4, l1=100, enough=512, least_share=1e-3, exposed=0.5, blocks=4, tap_alone=40e-9)
_row("pool/fwd_rows", _h200("h200-bandwidth.md"),
     "instructions of a thread, a load, a tap of an output without and with an index, an output; outputs of ragged rows, times; bytes "
     "a clock of the L1; threads that are enough; share that shows", ("exposed", "enough"),
     thread=150, load=8, tap=1, tap_index=4, output=10, ragged=3, l1=100, enough=512, least_share=1e-3, exposed=0.5, blocks=4)
_row("pool/fwd_global", _h200("h200-bandwidth.md"),
     "instructions of a thread, an access, an element without and with an index; threads that are enough; share that shows",
     ("exposed", "enough"),
     thread=300, access=8, element=2, element_index=5, enough=1024, least_share=1e-3, exposed=0.5, blocks=4)
_row("pool/fwd_global_channels", _h200("h200-bandwidth.md"),
     "instructions of a thread, a load, an element without and with an index; blocks that are enough; share that shows",
     ("exposed", "enough"),
     thread=600, load=10, element=2, element_index=5, enough=2, exposed=0.5, blocks=3)
_row("pool/bwd_channels", _h200("h200-bandwidth.md"),
     "instructions of a thread of a maximum and of an average, a pixel, an output, for each channel and pixel of a maximum and of an "
     "average; bytes a clock of the L1; share that shows", ("exposed",),
     maximum=120, average=220, pixel=8, output=12, maximum_pixel=2, average_pixel=1, l1=100, exposed=0.5, blocks=3)
_row("pool/bwd_rows", _h200("h200-bandwidth.md"),
     "instructions of a thread, a group, a pair of pixel and output of a maximum and of an average, a pixel; pixels of ragged rows, "
     "times; bytes a clock of the L1; share that shows", ("exposed",),
     thread=150, group=10, maximum=3, average=2, pixel=3, ragged=3, l1=100, exposed=0.5, blocks=3)

# ---- reduce

_row("reduce/naive", _GUESSED,
     "instructions of an element, of a dimension's division; cycles of a load, and of an instruction alone",
     thread=30, dimension=70, load=400, alone=2)
_row("reduce/ways", _h200("h200-reduce.jsonl"),
     "share of memory's rate with accesses of 8, 4 bytes, of wide and narrow elements; s that a flight of loads takes; bytes in "
     "flight that memory's rate takes; tail of one wave; s of the end of columns for each halving, of rows of a warp and of more; "
     "bytes fetched over wanted with short rows, strided by 4, 8, other bytes",
     words_2=0.9, words_1=0.7, wide=0.7, narrow=0.4, latency=8e-7, in_flight=32 << 10, tail=0.03, halving=5e-8, end_block=4e-7,
     end_warp=1e-7, short_rows=1.6, short_rows_bit=0.2, strided_4=8.0, strided_8=4.0, strided=16.0, least_share=1e-3)
