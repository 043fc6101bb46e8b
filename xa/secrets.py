"""Passwords in texts: where they come from, and that no one reads them in a message.

`masked` is for a text of somebody else's, such as a driver's error, in which a URL may stand anywhere. The errors of
this product apply it to their messages themselves. An open string as a whole is printed by `xa.open_string` alone.

A server that got a password may put it into its error, where nothing marks it. So `hide` notes the passwords of the
open strings that this process uses, and `masked` replaces these too. They are kept for the whole process, since errors
and lines of a log are made everywhere.
"""

from __future__ import annotations

import json
import os
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, quote_plus

if TYPE_CHECKING:
    from collections.abc import Mapping

MASK: Final = "…"
_SHORTEST: Final = 8
_WORD_ALONE: Final = re.compile(r"[a-z]{1,15}|[0-9.:]{1,15}")
_MOST_HIDDEN: Final = 200
_HIDDEN: Final[dict[str, None]] = {}
"""What was hidden, the latest last."""
_USER: Final = re.compile(r"[^:@/?#\s]*")
_UNCLEAR: Final = re.compile(r"[/?#][^@\s:'\"]*:")
"""What may stand behind a user that holds what ends an authority, so that no one can tell where its password begins."""
_PORT: Final = re.compile(r"\d+(?:[/?#'\")\],;:.\s]|$)")
_WORD: Final = re.compile(r"[^\s'\"]+")
_BARE: Final = re.compile(r"(?<![\w:/.+-])\w[\w.+-]*:/?(?:[\w.+-]*:)?(?!/)")
_BARE_HOST: Final = re.compile(r".*@(?=[\w\[])")
_NAME: Final = r"pass(?:word|wd|phrase)|pwd|secret"
_PARAMETER: Final = re.compile(
    rf"([?&]\w*(?:{_NAME})=)(?:(?!['\"](?:\W|$))[^&\n])*"
    rf"|(\b\w*(?:{_NAME})\s*=\s*)(?:'(?:[^'\\]|\\.)*'?|[^&\s'\"]+)",
    re.IGNORECASE,
)
"""A parameter of a URL, whose value ends at the next one, or of another text."""
_SECRET: Final = re.compile(
    rf"(?:{_NAME}|token|credential|(?:api|access)_?key|odbc_connect)(?!.*_(?:env|queue|file)$)", re.IGNORECASE
)


def is_secret(name: str) -> bool:
    """Whether an option of this name has a secret for its value."""
    return _SECRET.search(name) is not None


def hide(secret: str, beside: str = "") -> None:
    """Lets `masked` replace `secret` from now on, wherever it stands. A short one, a word in small letters, a number
    and one that is part of what is shown `beside` it are not replaced, because messages would lose words of their
    own."""
    if secret in beside or not _is_marked(secret):
        return
    _HIDDEN.pop(secret, None)
    _HIDDEN[secret] = None
    for oldest in tuple(_HIDDEN)[:-_MOST_HIDDEN]:
        _HIDDEN.pop(oldest, None)


def _is_marked(secret: str) -> bool:
    """Whether no one takes it for a word of a message."""
    return len(secret) >= _SHORTEST and _WORD_ALONE.fullmatch(secret) is None


def without(text: str, secret: str) -> str:
    """`text` without a secret that is not hidden, because a stranger may have typed it: what strangers type must not
    blot out the words of others' messages."""
    return _any_of((secret,)).sub(MASK, text) if _is_marked(secret) else text


@lru_cache(maxsize=4)
def _any_of(hidden: tuple[str, ...]) -> re.Pattern[str]:
    """Each secret as it is, and as it stands in a URL, a `repr` or JSON, of which the error of a driver may be a `repr`
    again."""
    forms = set()
    for one in hidden:
        quoted = {quote(one, safe="", errors="surrogateescape"), quote_plus(one, errors="surrogateescape")}
        escaped = {repr(one)[1:-1], json.dumps(one)[1:-1]}
        forms |= {one, *quoted, *escaped, *(repr(again)[1:-1] for again in escaped)}
    return re.compile("|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True)))


def masked(text: str) -> str:
    """`text` with every password in it replaced. It takes time in proportion to the length, whatever a peer put into
    it."""
    hidden = tuple(_HIDDEN)
    if hidden:
        text = _any_of(hidden).sub(MASK, text)
    if "://" in text:
        text = "\n".join(map(_without_authorities, text.split("\n")))
    if "@" in text and ":" in text:
        text = _WORD.sub(_without_bare, text)
    return _PARAMETER.sub(rf"\1\2{MASK}", text) if "=" in text else text


def _without_authorities(line: str) -> str:
    """A password ends at the last @ of the line, since it may hold any character, @ and spaces too. Where there is no
    @, what stands behind the colon is a port, or else a password whose host was left out."""
    last = line.rfind("@")
    pieces: list[str] = []
    done, found = 0, line.find("://")
    while found >= 0:
        begin = found + len("://")
        if line.startswith(MASK, begin):
            found = line.find("://", begin)
            continue
        end = _end_of(_USER, line, begin)
        if line.startswith(":", end) and last > end:
            return f"{''.join(pieces)}{line[done:end]}:{MASK}{line[last:]}"
        if last > end and _UNCLEAR.match(line, end):
            return f"{''.join(pieces)}{line[done:begin]}{MASK}{line[last:]}"

        if line.startswith(":", end) and not _PORT.match(line, end + 1):
            behind = _end_of(_WORD, line, end + 1)
            if behind > end + 1:
                pieces += [line[done:end], f":{MASK}"]
                done = end = behind
        found = line.find("://", end)
    return f"{''.join(pieces)}{line[done:]}"


def _without_bare(word: re.Match[str]) -> str:
    """user:password@host where no :// stands before it."""
    text = word[0]
    begin = _BARE.search(text)
    host = _BARE_HOST.match(text, begin.end()) if begin is not None else None
    return text if begin is None or host is None else f"{text[: begin.end()]}{MASK}@{text[host.end() :]}"


def _end_of(pattern: re.Pattern[str], text: str, begin: int) -> int:
    found = pattern.match(text, begin)
    return begin if found is None else found.end()


_USUAL: Final = re.compile(r"[A-Z_][A-Z0-9_]*")
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def not_set(variable: str, advice: str = "set it for this process") -> str:
    """What to say of an environment variable that is not set. A name in small letters may be the password, which
    somebody wrote in the wrong place."""
    if _USUAL.fullmatch(variable):
        return f"the environment variable {variable} is not set; {advice}"
    return (
        "an environment variable is not set; its name is not shown, because it may be the secret itself: write the "
        f"name of a variable, in capitals, such as SHOP_PASSWORD, and {advice}"
    )


def says_not_set(text: str) -> bool:
    """Whether an error says that an environment variable is not set."""
    return "environment variable" in text and " is not set; " in text


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
    plain_path = scheme.startswith("sqlite") or "+sqlite" in scheme  # a file's name, which is not decoded

    def encoded(part: str, safe: str) -> str:
        return _VARIABLE.sub(lambda found: quote(environment[found[1]], safe=safe), part)

    expanded_path = _VARIABLE.sub(lambda found: environment[found[1]], path) if plain_path else encoded(path, "/")
    scheme = _VARIABLE.sub(lambda found: environment[found[1]], scheme)
    return f"{scheme}{separator}{encoded(before, '')}{slash}{expanded_path}{question}{encoded(query, '')}"
