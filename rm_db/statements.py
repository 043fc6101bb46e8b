"""The effect of a SQL text on the transaction around it, as far as its words show.

This finds mistakes before they are sent; it is no security boundary. What the words do not show, for example that a
function writes, the database is asked at the vote.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_CACHED_CHARS: Final = 8192


ENDS: Final = 1
"""The text begins, commits, rolls back or prepares a transaction, or a branch (XA); savepoints don't count."""
WRITES: Final = 2
"""Its first statement inserts, updates, deletes or merges; whether any row, its row count tells."""
NOTIFIES: Final = 4
"""It contains NOTIFY or LISTEN, whose effects can't be seen in the transaction before it is prepared."""
DEFINES: Final = 8
"""It holds a statement that commits first where such statements do: data definition and control, administration."""
LINGERS: Final = 16
"""It leaves something in the session that our reset of PostgreSQL sessions does not remove: a named statement, a
library."""
SETS: Final = 32
"""It sets something in the session, or makes a temporary table there."""


_TOKEN: Final = re.compile(
    r"""
      [eE]'[^'\\]*(?:(?:\\.|'')[^'\\]*)*(?:'|\Z)        # string with escapes
    | '[^']*(?:''[^']*)*(?:'|\Z)                        # string
    | "[^"]*(?:""[^"]*)*(?:"|\Z)                        # quoted identifier
    | `[^`]*(?:`|\Z)                                    # quoted identifier, MySQL
    | \$(?P<tag>[^\W\d]\w*|)\$.*?(?:\$(?P=tag)\$|\Z)    # dollar-quoted string
    | --[^\n]*                                          # comment
    | /\*M?!\d*                                           # what only MariaDB and MySQL read, and carry out
    | (?P<comment>/\*)
    | (?P<end>;)
    | (?P<word>[^\W\d][\w$]*)
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT_EDGE: Final = re.compile(r"/\*|\*/")
_SETS_VARIABLE: Final = re.compile(r"into\s+@|:=|get_lock\s*\(", re.IGNORECASE)
"""How a statement of MariaDB that only reads leaves something in the session."""
_NOTIFIES: Final = re.compile(r"notify|listen", re.IGNORECASE)

_ENDS: Final = frozenset({"COMMIT", "END", "ABORT", "BEGIN", "XA"})
_ENDS_WITH: Final = frozenset({("START", "TRANSACTION"), ("PREPARE", "TRANSACTION")})
_WRITES: Final = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE"})
_DEFINES: Final = frozenset(
    {"CREATE", "ALTER", "DROP", "TRUNCATE", "RENAME", "GRANT", "REVOKE", "LOCK", "UNLOCK"}
    | {"FLUSH", "RESET", "INSTALL", "UNINSTALL", "OPTIMIZE", "REPAIR"}
)
_DEFINES_WITH: Final = frozenset({("ANALYZE", "TABLE"), ("CHECK", "TABLE"), ("SET", "PASSWORD")})
_LINGERS: Final = frozenset({"PREPARE", "LOAD"})
_SETS: Final = frozenset({"SET", "PRAGMA", "ATTACH", "DETACH", "USE"})
_TEMPORARY: Final = frozenset({"TEMP", "TEMPORARY"})


def classify(text: str) -> int:
    """The effects of `text`, one statement or several, besides reading: flags of the above."""
    return _classify(text) if len(text) > MAX_CACHED_CHARS else _classify_cached(text)


def _classify(text: str) -> int:
    effects = NOTIFIES if _NOTIFIES.search(text) else 0
    if _SETS_VARIABLE.search(text):
        effects |= SETS

    for index, words in enumerate(_statements(text)):
        first = words[0]
        if (
            first in _ENDS
            or tuple(words[:2]) in _ENDS_WITH
            or (first == "ROLLBACK" and "TO" not in words[1:3] and not _is_savepoint(words))
            or (first == "SET" and "AUTOCOMMIT" in words)  # commits, in MariaDB and MySQL
        ):
            effects |= ENDS
        if index == 0 and first in _WRITES:
            effects |= WRITES
        if first in _DEFINES or tuple(words[:2]) in _DEFINES_WITH:
            effects |= DEFINES
        if first in _LINGERS:
            effects |= LINGERS
        if first in _SETS or (first == "CREATE" and _TEMPORARY & set(words)):
            effects |= SETS
    return effects


def _is_savepoint(words: list[str]) -> bool:
    """SQL Server says ROLLBACK TRANSACTION for savepoints too. Only SQLAlchemy's are let through, because a statement
    there may begin without a semicolon before it."""
    return words[1:2] == ["TRANSACTION"] and words[2:3] != [] and words[2].startswith("SA_SAVEPOINT_")


_classify_cached: Final = lru_cache(maxsize=1024)(_classify)


def _statements(text: str) -> Iterator[list[str]]:
    """The first words of each statement, and all of a SET, in capitals. A CREATE whose body has a BEGIN reaches to the
    text's end."""
    words: list[str] = []
    creates = False
    position = 0

    while (token := _TOKEN.search(text, position)) is not None:
        position = token.end()
        if token["comment"]:
            position = _after_comment(text, position)
        elif token["end"]:
            if words:
                yield words
            words = []
            creates = False
        elif token["word"]:
            word = token["word"].upper()
            if creates and word == "BEGIN":
                break
            if len(words) < 3 or words[0] == "SET":
                words.append(word)
                creates = words[0] == "CREATE"
    if words:
        yield words


def _after_comment(text: str, position: int) -> int:
    """Where the comment ends whose beginning stands before `position`; comments nest."""
    depth = 1
    while depth and (edge := _COMMENT_EDGE.search(text, position)) is not None:
        depth += 1 if edge[0] == "/*" else -1
        position = edge.end()
    return len(text) if depth else position
