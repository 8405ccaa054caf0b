"""Pictures of commands in a terminal, for README.md and the pages: ``python .ci/docs/screens.py`` writes docs/explain-light.svg and others.

Each command runs in a terminal of its own, and what it shows is drawn by rich. The demo trains: it takes a minute without a GPU.
"""
import io
import os
import pathlib
import pty
import re
import shlex
import struct
import sys

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.terminal_theme import TerminalTheme

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMANDS = {"explain": ("explain conv_fwd x=64x56x56x64:f16 w=64x3x3x64 padding=1 layout=NHWC activation=relu --arch sm_90a", 118),
            "demo": ("demo --picture build/demo.png", 100)}
"""Name -> (command, columns)."""
_COLOURS = [(40, 44, 52), (207, 34, 46), (17, 99, 41), (125, 78, 0), (9, 105, 218), (130, 80, 223), (27, 124, 131), (110, 119, 129)]
_BRIGHT = [(110, 118, 129), (255, 123, 114), (63, 185, 80), (210, 153, 34), (88, 166, 255), (188, 140, 255), (57, 197, 207),
           (240, 246, 252)]
THEMES = {"light": TerminalTheme((255, 255, 255), (31, 35, 40), _COLOURS, _COLOURS),
          "dark": TerminalTheme((13, 17, 23), (230, 237, 243), _BRIGHT, _BRIGHT)}
# Rich's own, but for its fonts, which come from another host.
SVG = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace("Fira Code", "DejaVu Sans Mono")


def shown(words, columns):
    """What a command leaves on a terminal of so many columns."""
    def run():
        import fcntl
        import termios
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 60, columns, 0, 0))
        os.environ.update(TERM="xterm-256color", COLUMNS=str(columns), PYTHONWARNINGS="ignore", PYTHONPATH=str(ROOT))
        os.execv(sys.executable, [sys.executable, "-m", "dnnkern", *shlex.split(words)])
    process, terminal = pty.fork()
    if not process:
        run()
    found = b""
    while True:
        try:
            part = os.read(terminal, 1 << 16)
        except OSError:  # the end of a terminal on Linux
            break
        if not part:
            break
        found += part
    if os.waitpid(process, 0)[1]:
        raise RuntimeError(f"dnnkern {words} failed:\n{found.decode()}")
    lines = [re.sub(r"^.*\r(?!$)", "", line.rstrip("\r")) for line in found.decode().split("\n")]  # progress is written over
    return [re.sub(r"\x1b\[\d*[A-KJ]", "", line) for line in lines]


def draw(name):
    """Write the pictures of a command."""
    words, columns = COMMANDS[name]
    lines = [f"\x1b[2m$\x1b[0m dnnkern {words}", *shown(words, columns)]
    for theme, colours in THEMES.items():
        console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True, color_system="truecolor")
        for text in AnsiDecoder().decode("\n".join(lines).strip()):
            console.print(text, soft_wrap=True)
        path = ROOT / "docs" / f"{name}-{theme}.svg"
        console.save_svg(str(path), theme=colours, code_format=SVG, unique_id=name, title="")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    for which in sys.argv[1:] or COMMANDS:
        draw(which)
