"""Opens the decision log that a URL names, or looks at it: file:///folder, or a database for SqlLog."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from tm.log.file_log import FileLog
from tm.log.inspection import read_log
from xa.open_string import OpenString, shown

if TYPE_CHECKING:
    from tm.log.contract import DecisionLog
    from tm.log.inspection import LogImage


def open_log(url: str, node: str) -> DecisionLog:
    """The log at `url`, open for `node`; ValueError when the URL names none. LogError: it can't be opened."""
    folder = folder_of(url)
    if folder is not None:
        return FileLog(folder, node)
    from tm.log.sql import SqlLog  # noqa: PLC0415 — loads SQLAlchemy, which a log of files does not need

    return SqlLog(url, node)


def look_at_log(url: str, node: str) -> LogImage:
    """Reads the log of `node` at `url`, also while another process has it open, and changes nothing. Errors as in
    `open_log`."""
    folder = folder_of(url)
    if folder is not None:
        return read_log(folder)
    from tm.log.sql import read_sql_log  # noqa: PLC0415 — as above

    return read_sql_log(url, node)


def folder_of(url: str) -> Path | None:
    """The folder that `url` names, or None when it is a database's."""
    try:
        found = OpenString.parse(url)
    except ValueError as error:
        raise ValueError(f"log {shown(url)!r} is not a URL (file:///folder, or a database's): {error}") from None
    if found.scheme != "file":
        return None
    if found.user or found.place or found.options or "#" in found.path or not found.path:
        raise ValueError(f"log {shown(url)!r}: a folder is named with three slashes, file:///var/lib/xabridge/log")
    return Path(unquote(found.path))
