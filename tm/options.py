"""Options: what each setting of a call may be, as a table, and the one check of them.

    OPTIONS = {"workers": WholeNumber(1, 1000), "idle_s": Seconds(), "takes": Choice("message", "batch")}
    check("consumer of orders", OPTIONS, {"workrs": 4})    # ConfigurationError: … did you mean workers?

An error names the setting and its value, says what is expected, and suggests the name, the type or the value that may
have been meant.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from enum import Enum
from math import isfinite
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Any, Final, Protocol

from tm.resources import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_SHOWN: Final = 80
"""Characters of a wrong value that are shown."""


class Option(Protocol):
    """What a setting may be."""

    @property
    def expected(self) -> str:
        """What is expected, for an error."""
        ...

    def fits(self, value: Any) -> bool:
        """Whether it may be `value`."""
        ...

    def meant(self, value: Any) -> Any:
        """What may have been meant with a value that does not fit. What does not fit either is not suggested."""
        ...


@dataclass(frozen=True, slots=True)
class WholeNumber:
    """A whole number."""

    least: int
    most: int

    @property
    def expected(self) -> str:
        return f"{self.least} to {self.most}, a whole number"

    def fits(self, value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and self.least <= value <= self.most

    def meant(self, value: Any) -> Any:
        number = _number(value)
        return int(number) if number is not None and number == int(number) else None


@dataclass(frozen=True, slots=True)
class Seconds:
    """A time, which is more than none."""

    optional: bool = False

    @property
    def expected(self) -> str:
        return "seconds above 0, a number" + (", or None" if self.optional else "")

    def fits(self, value: Any) -> bool:
        if value is None:
            return self.optional
        return _is_number(value) and 0 < value < TIMEOUT_MAX

    def meant(self, value: Any) -> Any:
        return value.total_seconds() if isinstance(value, timedelta) else _number(value)


@dataclass(frozen=True, slots=True)
class Flag:
    """Yes or no."""

    expected: str = "True or False"

    def fits(self, value: Any) -> bool:
        return isinstance(value, bool)

    def meant(self, value: Any) -> Any:
        return bool(value) if isinstance(value, int) and value in (0, 1) else None


@dataclass(frozen=True, slots=True)
class Fraction:
    """A part of something."""

    @property
    def expected(self) -> str:
        return "0 to 1, a number"

    def fits(self, value: Any) -> bool:
        return _is_number(value) and 0 <= value <= 1

    def meant(self, value: Any) -> Any:
        return _number(value)


@dataclass(frozen=True, slots=True)
class Text:
    """Some text; `what` it says."""

    what: str = "text"
    optional: bool = False
    may_be_empty: bool = False

    @property
    def expected(self) -> str:
        return f"{self.what}, a str" + (", or None" if self.optional else "")

    def fits(self, value: Any) -> bool:
        if value is None:
            return self.optional
        return isinstance(value, str) and (self.may_be_empty or bool(value))

    def meant(self, value: Any) -> Any:
        return value.decode(errors="replace") if isinstance(value, bytes) else None


SECONDS: Final = Seconds()


class Choice:
    """One of some words."""

    def __init__(self, *words: str) -> None:
        self.words = words

    @property
    def expected(self) -> str:
        return " or ".join(map(repr, self.words))

    def fits(self, value: Any) -> bool:
        return isinstance(value, str) and value in self.words

    def meant(self, value: Any) -> Any:
        return next(iter(get_close_matches(str(value).lower(), self.words, 1)), None)


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an enumeration."""

    kind: type[Enum]

    @property
    def expected(self) -> str:
        return " or ".join(map(str, self.kind))

    def fits(self, value: Any) -> bool:
        return isinstance(value, self.kind)

    def meant(self, value: Any) -> Any:
        names = self.kind.__members__
        close = get_close_matches(str(value).upper().replace(" ", "_").replace("-", "_"), names, 1)
        return names[close[0]] if close else None


@dataclass(frozen=True, slots=True)
class Errors:
    """A class of exceptions, or a tuple of them."""

    one: bool = True
    """Whether it may be one class, without a tuple around it."""

    @property
    def expected(self) -> str:
        return "classes of exceptions" + ("" if self.one else ", a tuple")

    def fits(self, value: Any) -> bool:
        if not isinstance(value, tuple):
            return self.one and _is_error(value)
        return all(map(_is_error, value))

    def meant(self, value: Any) -> Any:
        if isinstance(value, list | set | frozenset):
            return tuple(value)
        if isinstance(value, BaseException):
            value = type(value)
        return value if self.one else (value,)


def check(whose: str, options: Mapping[str, Option], given: Mapping[str, Any]) -> None:
    """ConfigurationError: a setting is given that there is not, or one that does not fit."""
    for name, value in given.items():
        option = options.get(name)
        if option is None:
            close = get_close_matches(name, options, 1)
            meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(options)}"
            raise ConfigurationError(f"{whose}: {name}: there is no such setting; {meant}")
        if not option.fits(value):
            raise ConfigurationError(f"{whose}: {misfit(name, option, value)}")


def misfit(name: str, option: Option, value: Any) -> str:
    """What is wrong with a value that does not fit, and what may have been meant."""
    meant = option.meant(value)
    suggestion = f"; did you mean {name}={_shown(meant)}?" if meant is not None and option.fits(meant) else ""
    return f"{name} is {_shown(value)}: expected {option.expected}{suggestion}"


def _shown(value: Any) -> str:
    """A value in an error: classes and members by their names."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, type):
        return value.__qualname__
    text = str(value) if isinstance(value, Enum) else repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def _is_error(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: Any) -> float | int | None:
    """The finite number that text, or a number of another kind, says."""
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    if not isfinite(number):
        return None
    return int(number) if number == int(number) else number
