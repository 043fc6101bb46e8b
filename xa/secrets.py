"""Passwords in URLs: where they come from, and that nobody reads them in a message.

`masked` is the one way in which a text that may hold a URL gets into a message, a log or onto a terminal. The errors of
this product apply it to their messages themselves.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from collections.abc import Mapping

MASK: Final = "…"
PASSWORD_ENV: Final = "password_env"  # noqa: S105 — the name of a parameter
_AUTHORITY: Final = re.compile(r"(://[^:@/?#\s]*):(?:.*@|(?!\d+(?:[/?#'\")\],;:.\s]|$))[^@\s'\"]+)")
"""The user, then a password up to the last @ of the line, since it may hold any character, @ and spaces too. Where
there is no @, what stands behind the colon is a port, or else a password whose host was left out."""
_PARAMETER: Final = re.compile(r"\b((?:password|passwd|pwd)\s*=\s*)(?:'[^']*'|[^&\s'\"]+)", re.IGNORECASE)


_BARE: Final = re.compile(r"(?<![\w:/.+-])(\w[\w.+-]*:/?(?:[\w.+-]*:)?)(?!/)[^\s'\"]*@(?=[\w\[])")
"""user:password@host where no :// stands before it."""
_UNENCODED: Final = re.compile(r"[^:@/?#]*:(?!\d+(?:[/?#]|$))[^@]*(?:[/?#\s].*@|@.*@)")


def check_encoded(url: str) -> None:
    """ValueError: the user or the password of `url` holds a character that has to be encoded there, so that what comes
    behind it would be taken for something else, and shown."""
    _, separator, rest = url.partition("://")
    if separator and _UNENCODED.match(rest):
        raise ValueError(
            "a user or password with @, /, ?, # or a space, which has to be encoded (as %40, …): write ${NAME} for it, "
            f"which is encoded, or ?password_env=NAME, in {masked(url)}"
        )


def masked(text: str) -> str:
    """`text` with every password in it replaced."""
    if "://" in text:
        text = _AUTHORITY.sub(_mask_authority, text)
    if "@" in text and ":" in text:
        text = _BARE.sub(rf"\1{MASK}@", text)
    return _PARAMETER.sub(rf"\1{MASK}", text) if "=" in text else text


def _mask_authority(found: re.Match[str]) -> str:
    return f"{found[1]}:{MASK}{'@' if found[0].endswith('@') else ''}"


def with_password(url: str, environment: Mapping[str, str] = os.environ) -> str:
    """`url` with the password that its parameter `password_env` names put in; ValueError where there is none."""
    check_encoded(url)
    base, _, query = url.partition("?")
    parameters = [one for one in query.split("&") if one]
    named = [one.partition("=")[2] for one in parameters if one.partition("=")[0] == PASSWORD_ENV]
    if not named:
        return url
    name = unquote(named[0])
    password = environment.get(name)
    if password is None:
        raise ValueError(f"{PASSWORD_ENV}={name}: this environment variable is not set; set it for this process")
    scheme, separator, rest = base.partition("://")
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    if not at or not user or ":" in user:
        raise ValueError(f"{PASSWORD_ENV} goes with a user and without a password: {scheme}://user@host/…")
    left = "&".join(one for one in parameters if one.partition("=")[0] != PASSWORD_ENV)
    base = f"{scheme}{separator}{user}:{quote(password, safe='')}@{host}{slash}{path}"
    return f"{base}?{left}" if left else base


_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def expanded(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """`text` with the environment variables in it, ${NAME}. In a URL they are encoded as it demands, so that a password
    may hold any character; a text that is wholly one variable is taken as it is. KeyError: the name of one that is not
    set."""
    whole = _VARIABLE.fullmatch(text)
    if whole is not None:
        return environment[whole[1]]
    scheme, separator, rest = text.partition("://")
    if not separator:
        return _VARIABLE.sub(lambda found: environment[found[1]], text)
    before, slash, path = rest.partition("/")
    path, question, query = path.partition("?")
    plain_path = scheme.startswith("sqlite") or "+sqlite" in scheme  # a file's name, which nobody decodes

    def encoded(part: str, safe: str) -> str:
        return _VARIABLE.sub(lambda found: quote(environment[found[1]], safe=safe), part)

    told = _VARIABLE.sub(lambda found: environment[found[1]], path) if plain_path else encoded(path, "/")
    scheme = _VARIABLE.sub(lambda found: environment[found[1]], scheme)
    return f"{scheme}{separator}{encoded(before, '')}{slash}{told}{question}{encoded(query, '')}"
