"""`xabridge completion`: the script that completes the command in bash, zsh or fish, made from the parsers themselves.

    eval "$(xabridge completion bash)"                      # in ~/.bashrc
    xabridge completion zsh > ~/.zfunc/_xabridge            # a folder of $fpath
    xabridge completion fish > ~/.config/fish/completions/xabridge.fish

Where a transaction is named, the shell asks `xabridge recover list --names` for those of ./xabridge.toml.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, Final

import shtab

if TYPE_CHECKING:
    from collections.abc import Iterator

SUMMARY: Final = "print the completion script for a shell"
SHELLS: Final = ("bash", "zsh", "fish")

_NAMES: Final = "xabridge recover list --names 2>/dev/null"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The shell."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "\n".join(line for line in (__doc__ or "").splitlines() if line.startswith("    "))
    parser.add_argument("shell", choices=SHELLS)


def run(arguments: argparse.Namespace) -> int:
    """Prints the script."""
    from xabridge.cli.main import make_parser  # noqa: PLC0415 — which loads this module as one of the subcommands

    parser = make_parser(whole=True)
    for action in _actions(parser):
        completer: Any = _COMPLETERS.get(action.metavar if isinstance(action.metavar, str) else "")
        if completer is not None:
            action.complete = completer  # type: ignore[attr-defined]  # shtab reads this attribute
    sys.stdout.write(shtab.complete(parser, arguments.shell) + "\n")
    return 0


_COMPLETERS: Final[dict[str, Any]] = {
    "FILE": shtab.FILE,
    "FOLDER": shtab.DIRECTORY,
    "XID": shtab.cmd(_NAMES),
}
"""By the metavar of an argument."""


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # noqa: SLF001 — argparse has no public way to them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 — as above
            for subparser in action.choices.values():
                yield from _actions(subparser)
        else:
            yield action
