"""Open strings: the one place that takes them apart, and the one that prints them.

    scheme://user:password@host:port,host2:port2/path?option=value&option=value

The URL of a resource, a log, a store or a broker is one. `OpenString.parse` refuses what could be read in two ways,
because a password with a / in it would otherwise become a path, which errors show. Its errors name the scheme and what
is wrong, and quote nothing behind the scheme. `str` and `repr` of an `OpenString` show everything but secrets, `url` is
the whole text, for a driver, and `shown` prints a text from a configuration, whatever it is.

In a user, a password and an option each character that means something in a URL is encoded (%40 for @). The option
`password_env` names the environment variable that holds the password.

`host_and_port` reads an address at which something listens.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote, unquote_plus

from xa.secrets import MASK, hide, is_secret, masked, not_set

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

PASSWORD_ENV: Final = "password_env"  # noqa: S105 — the name of an option
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+._-]{0,60}")
_AUTHORITY: Final = re.compile(r"[^/?#]*")
_HOST: Final = re.compile(r"(?:\[[0-9A-Za-z:.%]+\]|[^\[\]:@\s'\"]*)(?::([0-9]{0,5}))?")
_OPTION: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,60}")
_STRAY: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_HIDDEN: Final = re.compile(r"[\x00-\x1f\x7f]|%00")
_FOREIGN: Final = re.compile(r"[\ud800-\udfff]")
_WORD: Final = re.compile(r"[A-Za-z0-9_./~-]{1,200}")
_OF_FILES: Final = re.compile(r"(?:\w+\+)?(?:file|delta|sqlite)(?:\+\w+)?")
"""Schemes whose path is a file's, which may have any name."""
_MOST_PORTS: Final = 65_535


@dataclass(frozen=True, slots=True, repr=False)
class OpenString:
    """An open string taken apart."""

    scheme: str
    user: str
    password: str | None
    """Decoded, as `user` is; None where there is none."""
    place: str
    """The hosts with their ports, as they were written."""
    path: str
    """With the slash before it, as it was written."""
    options: tuple[tuple[str, str], ...]
    """Name and value, as they were written."""

    @classmethod
    def parse(cls, text: str, environment: Mapping[str, str] | None = None) -> OpenString:
        """ValueError says what is wrong. With an `environment` the open string is one that this process uses: its
        password is that of the variable which the option `password_env` names, and no message shows it from then on,
        even if the server puts it into its error."""
        scheme, separator, rest = text.partition("://")
        if not separator or not _SCHEME.fullmatch(scheme):
            raise ValueError("not a URL: write scheme://…, as in postgresql://orders@db/shop")
        if _HIDDEN.search(rest):
            raise _wrong(scheme, "a control character")
        authority = _AUTHORITY.match(rest)
        who, at, place = (authority[0] if authority else "").rpartition("@")
        path, question, query = rest[len(who) + len(at) + len(place) :].partition("?")
        if "@" in who or any(map(str.isspace, who + place)) or ("@" in path and not _is_file(scheme, at + place)):
            raise _unencoded(scheme)
        if "#" in path and not _is_file(scheme, at + place):
            raise _unencoded(scheme)
        if at and not who.partition(":")[0]:
            raise _wrong(scheme, "a user is expected before the @")
        if not _is_file(scheme, at + place) and _FOREIGN.search(rest):
            raise _wrong(scheme, "octets that are no UTF-8, as a command line and the environment may have them")
        _check_hosts(scheme, place)

        options = tuple(_option(scheme, one) for one in query.split("&") if one) if question else ()
        user, colon, password = who.partition(":")
        made = cls(scheme, _decoded(user), _decoded(password) if colon else None, place, path, options)
        return made if environment is None else made._to_use(environment)

    def _to_use(self, environment: Mapping[str, str]) -> OpenString:
        used = self._with_password(environment)
        for secret in (used.password or "", *(value for name, value in used.decoded if is_secret(name))):
            hide(secret, str(used))
        return used

    def _with_password(self, environment: Mapping[str, str]) -> OpenString:
        name = self.option(PASSWORD_ENV)
        if name is None:
            return self
        if not self.user or self.password is not None:
            raise _wrong(
                self.scheme, f"{PASSWORD_ENV} goes with a user and without a password: {self.scheme}://user@host/…"
            )
        if name not in environment:
            raise _wrong(self.scheme, f"{PASSWORD_ENV}: {not_set(name)}")
        return replace(self.without({PASSWORD_ENV}), password=environment[name])

    def __str__(self) -> str:
        return self._text(MASK, shown=True)

    def __repr__(self) -> str:
        return f"OpenString({self})"

    @property
    def url(self) -> str:
        """The whole text with its secrets, for a driver: encoded so that every driver reads the same in it."""
        password = "" if self.password is None else quote(self.password, safe="", errors="surrogateescape")
        return self._text(password, shown=False)

    def _text(self, password: str, *, shown: bool) -> str:
        user = quote(self.user, safe="", errors="surrogateescape")
        who = f"{user}{'' if self.password is None else f':{password}'}@" if user else ""
        options = [
            f"{name}={MASK if shown and is_secret(name) else _for_drivers(value)}" for name, value in self.options
        ]
        return f"{self.scheme}://{who}{self.place}{self.path}{'?' * bool(options)}{'&'.join(options)}"

    def hosts(self, port: int) -> tuple[tuple[str, int], ...]:
        """The hosts, without brackets and in small letters, each with its port, or `port`."""
        found = []
        for one in self.place.split(","):
            bare, _, digits = one.rpartition(":") if _ends_with_port(one) else (one, "", "")
            found.append((bare.removeprefix("[").removesuffix("]").lower(), int(digits or port)))
        return tuple(found)

    def option(self, name: str) -> str | None:
        """The last value of an option, decoded."""
        return dict(self.decoded).get(name)

    @property
    def decoded(self) -> list[tuple[str, str]]:
        """The options, their values decoded."""
        return [(name, unquote_plus(value)) for name, value in self.options]

    def without(self, names: Container[str]) -> OpenString:
        """The same without these options."""
        return replace(self, options=tuple(one for one in self.options if one[0] not in names))

    def with_options(self, **options: object) -> OpenString:
        """The same, with these options where it has none of their names."""
        there = dict(self.options)
        added = ((name, quote(str(value), safe="")) for name, value in options.items() if name not in there)
        return replace(self, options=(*self.options, *added))

    def as_user(self, user: str, password: str | None) -> OpenString:
        """The same with another user; "": with none."""
        return replace(self, user=user, password=password if user else None)


def shown(text: str) -> str:
    """`text` for people: an open string without its secrets, a plain word as it is, and of anything else, where no one
    can tell what is secret in it, the scheme alone."""
    try:
        return str(OpenString.parse(text))
    except ValueError:
        if _WORD.fullmatch(text):
            return text
        scheme, separator, _ = text.partition("://")
        return f"{scheme}://{MASK}" if separator and _SCHEME.fullmatch(scheme) else MASK


def without_secrets(message: str, typed: Iterable[str]) -> str:
    """A message of `argparse`, which quotes what was typed."""
    values = {one.partition("=")[2] if one.startswith("-") else one for one in typed}
    for one in sorted(values, key=len, reverse=True):
        if any(sign in one for sign in ":@=/"):
            message = message.replace(repr(one), repr(shown(one))).replace(one, shown(one))
    return masked(message)


def option_name(name: str) -> str:
    """The name of an option, for an error that refuses it."""
    return name if _OPTION.fullmatch(name) else MASK


def _option(scheme: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not _OPTION.fullmatch(name):
        raise _wrong(scheme, "options are name=value, with & between them, and & in a value is written as %26")
    return name, value


def _check_hosts(scheme: str, place: str) -> None:
    for number, one in enumerate(place.split(","), 1):
        matched = _HOST.fullmatch(one)
        if matched is None or (matched[1] and not 0 < int(matched[1]) <= _MOST_PORTS):
            raise _wrong(
                scheme,
                f"host {number}: expected host or host:port, [address]:port for IPv6, a port from 1 to {_MOST_PORTS}; "
                "behind a user and a password there is @host",
            )


def _ends_with_port(host: str) -> bool:
    return ":" in host and not host.endswith("]")


def _for_drivers(value: str) -> str:
    """An option's value as every driver reads it: some look for the @ behind a user in the whole text, and libpq quotes
    a value in which there is a space."""
    return quote(_STRAY.sub("%25", value), safe="%/:;,+=*!$()~")


def _is_file(scheme: str, authority: str) -> bool:
    return not authority and _OF_FILES.fullmatch(scheme) is not None


def _decoded(text: str) -> str:
    return unquote(text, errors="surrogateescape")


def _unencoded(scheme: str) -> ValueError:
    return _wrong(
        scheme,
        "a user or password with @, /, ?, # or a space, which has to be encoded (as %40, …): write ${NAME} for it, "
        "which is encoded, or ?password_env=NAME",
    )


def _wrong(scheme: str, what: str) -> ValueError:
    return ValueError(f"{what}, in {scheme}://{MASK}")


def host_and_port(text: str) -> tuple[str, int]:
    """The parts of `host:port` or `[v6 address]:port`; a port alone is on this machine only. ValueError: it is none."""
    host, separator, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if separator else "127.0.0.1"
    if not (port.isascii() and port.isdecimal()) or len(port) > 5 or int(port) > 65535 or not host:
        raise ValueError(f"{text!r}: expected host:port")
    return host, int(port)
