"""Parser: the arguments of a command. Its errors quote what was typed without the passwords in it."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any, NoReturn

from xa.open_string import shown
from xa.secrets import masked

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Parser(ArgumentParser):
    """A parser, and that of its subcommands."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._typed: list[str] = []

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]  # argparse has overloads
        self._typed = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        for typed in sorted(_with_values(self._typed), key=len, reverse=True):
            message = message.replace(repr(typed), repr(shown(typed))).replace(typed, shown(typed))
        super().error(masked(message))


def _with_values(typed: Iterable[str]) -> set[str]:
    """The arguments that may hold a password, those behind the = of a flag too."""
    values = [one.partition("=")[2] if one.startswith("-") else one for one in typed]
    return {one for one in values if any(sign in one for sign in ":@=/")}
