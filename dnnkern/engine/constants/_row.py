"""What a row of the table is made of."""
from typing import NamedTuple


class Source(NamedTuple):
    """Where numbers come from: "fitted" to a run on a device, "counted" in machine code for an architecture, or "guessed"."""
    kind: str
    device: str = ""
    run: str = ""


class About(NamedTuple):
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


def h200(run):
    return Source("fitted", "NVIDIA H200", f"bench/results/{run}")


def h100(run):
    return Source("fitted", "NVIDIA H100 80GB HBM3", f"bench/results/{run}")


def row(name, source, meaning, guessed=(), **numbers):
    TABLE[name] = Constants(About(name, source, meaning, guessed), numbers)


COUNTED = Source("counted", "sm_90a")
GUESSED = Source("guessed")
