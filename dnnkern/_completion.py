"""The command ``dnnkern completion``, and the completion itself: by argcomplete, which asks the program at every TAB."""
from ._parser import operations

SHELLS = "bash", "zsh", "fish", "tcsh", "powershell"
HELP = """Print what makes a shell complete the words of dnnkern, for its startup file: eval "$(dnnkern completion bash)", likewise zsh; of
fish dnnkern completion fish | source. It needs argcomplete."""


def add_arguments(add):
    """The words of the command, by a parser's ``add_argument``."""
    add("shell", choices=SHELLS, help="the shell")


def main(arguments) -> int:
    """Print the script."""
    try:
        import argcomplete
    except ImportError as error:
        raise ValueError(f"completion: argcomplete cannot be imported ({error}): pip install dnnkern[completion]") from None
    print(argcomplete.shellcode(["dnnkern"], shell=arguments.shell))
    return 0


def complete(parser):
    """Answer a shell, which has set _ARGCOMPLETE, and end the process."""
    try:
        import argcomplete
    except ImportError:  # a script of another installation
        raise SystemExit(1) from None
    argcomplete.autocomplete(parser, always_complete_options="long")


def operation_words(prefix, **_):
    """The operations, for argcomplete."""
    return sorted(operations())


def cache_words(prefix, parsed_args, **_):
    """What the actions of `cache` take: parts, or files."""
    from ._cache import PARTS
    if parsed_args.action == "clear":
        return list(PARTS)
    from argcomplete.completers import FilesCompleter
    return FilesCompleter()(prefix) if parsed_args.action == "import" else []


def problem_words(prefix, parsed_args, parser, **_):
    """The options of a problem's words, which a parser of their own reads."""
    from ._words import words_parser
    if not prefix.startswith("-") or parsed_args.op not in operations():
        return []
    words, _, _ = words_parser(parser, parsed_args.command, parsed_args.op)
    return sorted(option for action in words._actions for option in action.option_strings if option.startswith("--"))
