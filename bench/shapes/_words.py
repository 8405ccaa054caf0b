"""Problems to measure in the words of the command line, and named sets of them."""
import functools
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One problem of an operation; `words` are those of ``python -m dnnkern explain``. A family says how they are parsed, and the call."""
    op: str
    words: str
    label: str = ""

    @functools.cached_property
    def problem(self):
        return self.parse(self.words.split(), self.op)

    def __str__(self):
        return str(self.problem).removeprefix(self.op + " ") + (f" ({self.label})" if self.label else "")


@functools.cache
def _made(kind, *of):
    """A case, always the same object: its problem is made once."""
    return kind(*of)


def option_words(options):
    """The words of options by name; what is True is a flag, what is False, empty or the identity is left out."""
    return [word for name, value in options.items() if value and value != "identity"
            for word in (f"--{name}", *(() if value is True else value.split()))]


class Shapes:
    """Named sets of an operation: {name: texts}, each with "{}" for the dtype and an optional label after "#"; `case` makes a case of
    an operation, words and a label."""

    def __init__(self, op, sets, dtypes, example, layouts=(), *, case):
        self.op, self.SETS, self.DTYPES, self.example, self.layouts, self.case = op, sets, dtypes, example, layouts, case

    def cases(self, name, dtypes=("float32",), layouts=(), math=None) -> list:
        """A set, or "all", in the given dtypes and layouts."""
        if name != "all" and name not in self.SETS:
            raise ValueError(f"{self.op} has no set {name!r}; there are {', '.join(self.SETS)} and all")
        texts = [text for key, some in self.SETS.items() if name in (key, "all") for text in some]
        return self._variants(texts, dtypes, layouts)

    def parse(self, text, dtypes=("float32",), layouts=(), math=None) -> list:
        """A case in words, "{}" standing for the dtype."""
        if "{}" not in text:
            raise ValueError(f"--problem {text}: expected words with {{}} for the dtype, such as {self.example!r}")
        return self._variants([text], dtypes, layouts)

    def _variants(self, texts, dtypes, layouts):
        for kind, given, known in (("dtype", dtypes, self.DTYPES), ("layout", layouts, self.layouts)):
            for word in given:
                if word not in known:
                    raise ValueError(f"{self.op} has no {kind} {word!r}; there are {', '.join(known) or 'none'}")
        found = []
        for dtype in dtypes:
            for text in texts:
                words, _, label = (part.strip() for part in text.partition("#"))
                for layout in layouts or self.layouts or ("",):
                    before, option, after = words.format(dtype).partition(" --")  # an option takes all words after it
                    found.append(_made(self.case, self.op, f"{before} {layout}".strip() + option + after, label))
        return list(dict.fromkeys(found))
