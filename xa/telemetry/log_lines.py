"""Log lines as text or as JSON, one event on one line, whatever a peer put into it.

    write_lines("json", logging.INFO)             # what a command does once
    logger.warning("%s: %s is gone", tx, name, extra=about(transaction=tx, queue=name))

The words of an event are the same in both. What it is about stands beside them in fields, whose names are FIELDS. As
JSON, a line is an object with `time`, `level`, `logger`, `msg`, the fields, and `error` with the traceback, if there is
one. As text, a field is shown behind the words where they don't have it already. Control characters, line ends and
marks that change the direction of writing are escaped. Passwords in URLs are left out. Lines of a traceback are
indented, so that none can pass for an event.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from xa.printable import printable
from xa.secrets import masked

if TYPE_CHECKING:
    from collections.abc import Mapping

TEXT: Final = "text"
JSON: Final = "json"
FORMATS: Final = (TEXT, JSON)
FIELDS: Final = ("transaction", "branch", "message", "queue", "resource", "connection", "user")
KEY: Final = "xabridge_fields"
"""The attribute of a record that has them. A record has an attribute `message` of its own."""
LONGEST: Final = 16_384
"""The characters of a line's words, or of a field; a peer may choose some of them."""


def about(
    *,
    transaction: object = None,
    branch: object = None,
    message: object = None,
    queue: str | None = None,
    resource: str | None = None,
    connection: object = None,
    user: object = None,
) -> dict[str, Any]:
    """What an event is about, as `extra` of a call of a logger. They become text when the line is written."""
    values = (transaction, branch, message, queue, resource, connection, user)
    return {KEY: {name: value for name, value in zip(FIELDS, values, strict=True) if value is not None}}


def fields_of(record: logging.LogRecord) -> dict[str, str]:
    """What a record is about."""
    fields: Mapping[str, object] = getattr(record, KEY, {})
    return {name: str(value) for name, value in fields.items()}


class TextLines(logging.Formatter):
    """Lines for people; `named`: with the name of the logger. `process`: with its number among several."""

    def __init__(self, *, named: bool = False, process: int | None = None) -> None:
        super().__init__()
        self._named = named
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        words = printable(masked(record.getMessage()), LONGEST)
        fields = {name: printable(value, LONGEST) for name, value in fields_of(record).items()}
        more = " ".join(f"{name}={value}" for name, value in fields.items() if value not in words)
        name = f"{record.name} " if self._named else ""
        process = "" if self._process is None else f"process {self._process} "
        line = f"{self.formatTime(record)} {record.levelname} {process}{name}{words}" + (f" [{more}]" if more else "")
        error = self._error(record)
        return line if not error else line + "".join(f"\n  {printable(one, LONGEST)}" for one in error.splitlines())

    def _error(self, record: logging.LogRecord) -> str:
        texts = [self.formatException(record.exc_info)] if record.exc_info else []
        if record.stack_info:
            texts.append(self.formatStack(record.stack_info))
        return masked("\n".join(texts))


class JsonLines(TextLines):
    """Lines for programs."""

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, str | int] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "msg": masked(record.getMessage())[:LONGEST],
        }
        said |= {name: value[:LONGEST] for name, value in fields_of(record).items()}
        if self._process is not None:
            said["process"] = self._process
        error = self._error(record)
        if error:
            said["error"] = error
        return json.dumps(said).replace("\x7f", "\\u007f")  # the only control character that JSON leaves as it is


def lines(log_format: str, *, named: bool = False, process: int | None = None) -> logging.Formatter:
    """The formatter of one of FORMATS."""
    kind = JsonLines if log_format == JSON else TextLines
    return kind(named=named, process=process)


def write_lines(
    log_format: str, level: int | str, *, named: bool = False, process: int | None = None
) -> logging.Handler:
    """Has the process's log written to stderr by the handler that is returned, unless somebody has said already how."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(lines(log_format, named=named, process=process))
    logging.basicConfig(level=level, handlers=[handler])
    return handler


def line(log_format: str, words: str, *, plain: str, level: int = logging.INFO) -> str:
    """A line that a command says outside of its log: `plain`, or where lines are JSON, `words` as one of them."""
    if log_format != JSON:
        return plain + "\n"
    return JsonLines().format(logging.LogRecord("xabridge", level, "", 0, words, (), None)) + "\n"
