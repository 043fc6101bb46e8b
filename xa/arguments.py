"""Parser: the arguments of a command. Its errors quote what was typed without the passwords in it."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import NoReturn

from xa.secrets import masked


class Parser(ArgumentParser):
    """A parser, and that of its subcommands."""

    def error(self, message: str) -> NoReturn:
        super().error(masked(message))
