"""Settings: each is declared once, with its kind, its default and a sentence about it; a file is read by them.

    @dataclass(frozen=True, slots=True)
    class RelaySettings:
        batch: int = setting(100, whole(1, 1000), "how many messages it takes at once")

    file = read_file("xabridge.toml")
    settings = file.table("outbox").read(RelaySettings)

Whatever is wrong is a ConfigurationError with the same words for every part: the file, the whole key, what is expected,
and what is there. `${NAME}` in any text stands for the environment variable NAME, because secrets don't belong into the
file. In a URL its value is encoded, so that a password may hold any character; a URL that is wholly `${NAME}` is taken
as it is. No message shows such a text, or one that is declared to be secret.

`bench.settings` writes the tables of the guides from the declarations.
"""

from __future__ import annotations

import os
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

from xa.open_string import host_and_port, shown
from xa.secrets import expanded, masked, not_set

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from enum import Enum

T = TypeVar("T")
DEFAULT: Final = "default"
"""The origin of a value that neither the file nor a flag says."""
_SETTING: Final = "setting"
_MOST_SHOWN: Final = 80
_TYPES: Final = {bool: "true or false", int: "a whole number", float: "a number", str: "this text", list: "a list"}


class ConfigurationError(Exception):
    """The configuration can't be used. The message names the place and the key, says what to do, and has no
    password."""

    def __init__(self, message: str) -> None:
        super().__init__(masked(message))


# --- kinds ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Kind:
    """The values that a setting may have. `read` makes its value of that in the file; ValueError: it does not fit."""

    expected: str
    read: Callable[[Any], Any]


def a(kind: type, value: Any) -> Any:
    """`value`, if it is exactly of this type; ValueError."""
    if type(value) is not kind:
        raise ValueError(kind)
    return value


TEXT: Final = Kind("text", lambda value: a(str, value))
FLAG: Final = Kind("true or false", lambda value: a(bool, value))
FILE: Final = Kind("the name of a file, a text", lambda value: Path(a(str, value)))


def _address(value: Any) -> Any:
    host_and_port(a(str, value))
    return value


HOST_AND_PORT: Final = Kind("host:port, a text", _address)


def whole(least: int = 0, most: int | None = None) -> Kind:
    """A whole number."""

    def read(value: Any) -> Any:
        if a(int, value) < least or (most is not None and value > most):
            raise ValueError(value)
        return value

    return Kind(f"a whole number, {least} {'or more' if most is None else f'to {most:,}'}", read)


def seconds(least: float | None = None, below: float = TIMEOUT_MAX) -> Kind:
    """A time, above 0 or not less than `least`."""

    def read(value: Any) -> float:
        enough = type(value) in (int, float) and (value > 0 if least is None else value >= least)
        if not enough or value >= below:
            raise ValueError(value)
        return float(value)

    words = "seconds above 0" if least is None else f"seconds, {least:g} or more"
    return Kind(words if below == TIMEOUT_MAX else f"{words} and below {below:,}", read)


def choice(*words: str, of: Callable[[str], Any] = str) -> Kind:
    """One of some words, and what `of` makes of it."""

    def read(value: Any) -> Any:
        if value not in words:
            raise ValueError(value)
        return of(value)

    *before, last = (f'"{word}"' for word in words)
    return Kind(f"{', '.join(before)} or {last}", read)


def member(kind: type[Enum]) -> Kind:
    """A member of an enumeration, by its value."""
    return choice(*(one.value for one in kind), of=kind)


def texts(what: str) -> Kind:
    """A list of texts."""
    return Kind(f"a list of {what}", lambda value: tuple(a(str, one) for one in a(list, value)))


# --- declarations -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Setting:
    """The declaration of a setting. `kind` is None for a table with names of its own, which its part reads. `unset`
    says, for the guides, what holds where the default is no value that a file could have."""

    kind: Kind | None
    help: str
    unset: str = ""
    hidden: bool = False
    """Whether a password may be in it, so that no message shows it."""


def declared(kind: Kind | None, help: str, *, unset: str = "", secret: bool = False) -> dict[str, Setting]:  # noqa: A002
    """The metadata of a dataclass's field that is a setting: of one without a default, which has to be there."""
    return {_SETTING: Setting(kind, help, unset, secret)}


def setting(default: T, kind: Kind | None, help: str, *, unset: str = "", secret: bool = False) -> T:  # noqa: A002
    """A field of a dataclass that is a setting."""
    metadata = declared(kind, help, unset=unset, secret=secret)
    return field(default=default, repr=not secret, metadata=metadata)


def settings_of(kind: type[Any]) -> dict[str, Setting]:
    """The settings that a dataclass declares, by name."""
    return {one.name: one.metadata[_SETTING] for one in fields(kind) if _SETTING in one.metadata}


def check(made: Any) -> None:
    """Checks settings that are given by a call: ValueError where one is not of its kind."""
    for name, one in settings_of(type(made)).items():
        value = getattr(made, name)
        try:
            if one.kind is not None:
                one.kind.read(value)
        except ValueError:
            raise ValueError(f"{name}: {_misfit(one, value)}") from None


def _misfit(one: Setting, value: Any) -> str:
    return f"expected {one.kind.expected if one.kind is not None else ''}, not {_shown(value, secret=one.hidden)}"


def _shown(value: Any, *, secret: bool = False) -> str:
    """A wrong value in a message."""
    text = repr(value)
    if isinstance(value, dict):
        return "a table"
    if "${" in text or (secret and not isinstance(value, str)):
        return _TYPES.get(type(value), "a time")
    if secret:
        return repr(shown(value))
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


# --- reading ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Section:
    """A table of a file, with its place there, and with the flags that go before it. `environment`: None leaves the
    variables as they are. With `later` somebody else puts them in, so that a text with a variable fits any kind."""

    content: Mapping[str, Any] = field(repr=False)
    key: str = ""
    source: str = ""
    environment: Mapping[str, str] | None = field(default=None, repr=False)
    later: bool = False
    flags: Collection[str] = ()

    def wrong(self, key: str, what: str) -> ConfigurationError:
        """The error for the setting `key` of this table."""
        if key in self.flags:
            return ConfigurationError(f"{_flag(key)}: {what}")
        return ConfigurationError(": ".join(filter(None, (self.source, self._full(key), what))))

    def misfit(self, key: str, expected: str) -> ConfigurationError:
        """The error for a setting, which may be secret, whose value is not what is expected."""
        return self.wrong(key, f"expected {expected}, not {_shown(self.content[key], secret=True)}")

    def _full(self, key: str) -> str:
        return ".".join(filter(None, (self.key, key)))

    def refuse_unknown(self, known: Collection[str]) -> None:
        """ConfigurationError: there is a key that is none of these."""
        for key in self.content:
            if key not in known:
                from difflib import get_close_matches  # noqa: PLC0415 — for an error only

                close = get_close_matches(key, known, 1)
                meant = f" (did you mean {close[0]}?)" if close else ""
                raise self.wrong(key, f"unknown key; known are {', '.join(sorted(known))}{meant}")

    def table(self, key: str, flags: Mapping[str, Any] | None = None) -> Section:
        """The table `key` of this one, empty if it is not there, with those of `flags` that are not None."""
        found = self.content.get(key, {})
        if not isinstance(found, dict):
            raise self.misfit(key, "a table")
        given = {name: value for name, value in (flags or {}).items() if value is not None}
        source = "" if key in self.flags else self.source
        return Section({**found, **given}, self._full(key), source, self.environment, self.later, given.keys())

    def tables(self, short: str = "") -> Iterator[tuple[str, Section]]:
        """Every entry of this table, which are tables themselves. A text in place of one is its setting `short`."""
        for key, value in self.content.items():
            if short and isinstance(value, str):
                value = {short: value}  # noqa: PLW2901 — the long form of the same
            entry = Section({key: value}, self.key, self.source, self.environment, self.later)
            yield key, entry.table(key)

    def read(self, made: type[T], base: T | None = None, *, beside: Collection[str] = (), **others: Any) -> T:
        """The settings that the dataclass `made` declares. What is not in the table is as in `base`, or else the
        default. `beside`: the keys of this table that others read; `others`: fields that are made already."""
        known = settings_of(made)
        self.refuse_unknown({*known, *beside})
        its_fields = {one.name: one for one in fields(made)}  # type: ignore[arg-type]
        values = {} if base is None else {name: getattr(base, name) for name in its_fields}

        for name, one in known.items():
            if one.kind is None or name in others:
                continue
            if name in self.content:
                values[name] = self._value(name, one)
            elif its_fields[name].default is MISSING and base is None:
                raise self.wrong(name, f"missing; expected {one.kind.expected}")
        return made(**{**values, **others})

    def _value(self, key: str, one: Setting) -> Any:
        given = self.content[key]
        if self.later and isinstance(given, str) and "${" in given:
            return given
        try:
            return cast("Kind", one.kind).read(self._expanded(given))
        except KeyError as error:
            raise self.wrong(key, not_set(error.args[0])) from None
        except ValueError:
            raise self.wrong(key, _misfit(one, given)) from None

    def _expanded(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._expanded(one) for one in value]
        return expanded(value, self.environment) if isinstance(value, str) and self.environment is not None else value

    def origins(self) -> dict[str, str]:
        """Where the value of each key is from, also of those in tables of this one: the file, or a flag."""
        found = dict.fromkeys(_names_in(self.content), self.source)
        return found | {name: _flag(name) for name in self.flags}


def read_file(path: str | Path, environment: Mapping[str, str] | None = os.environ, *, later: bool = False) -> Section:
    """The file as a table."""
    import tomllib  # noqa: PLC0415 — many import this module for its error only

    path = Path(path)
    try:
        return Section(tomllib.loads(path.read_text(encoding="utf-8")), "", str(path), environment, later=later)
    except FileNotFoundError as error:
        raise ConfigurationError(f"{path}: no such file; write one, or pass --config") from error
    except OSError as error:
        raise ConfigurationError(f"{path}: can't be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also of a number with too many digits, and of what is nested deep
        raise ConfigurationError(f"{path}: not TOML: {error}") from error


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _names_in(table: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _names_in(value, f"{before}{name}.")
        else:
            yield before + name


# --- where each value comes from --------------------------------------------------------------------------------------
class Value(NamedTuple):
    """One setting as it holds, for people."""

    name: str
    text: str
    origin: str


def values_of(made: Any, origins: Mapping[str, str], before: str = "") -> Iterator[Value]:
    """Every setting of `made`, with `before` in front of its name, and no password."""
    for name in settings_of(type(made)):
        yield Value(before + name, _text(getattr(made, name)), origins.get(before + name, DEFAULT))


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, tuple) else masked(str(value))
