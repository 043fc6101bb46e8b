"""Opens the decision log that a URL names: file:///folder, or a database for SqlLog."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from tm.log.file import FileLog

if TYPE_CHECKING:
    from tm.log.decision import DecisionLog


def open_log(url: str, node: str) -> DecisionLog:
    """The log at `url`, open for `node`; ValueError when the URL names none. LogError: it can't be opened."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        if parts.netloc or not parts.path:
            raise ValueError(f"log {url!r}: a folder is named with three slashes, file:///var/lib/xabridge/log")
        return FileLog(Path(unquote(parts.path)), node)
    if not parts.scheme:
        raise ValueError(f"log {url!r} is not a URL (file:///folder, or a database's)")
    from tm.log.sql import SqlLog  # noqa: PLC0415 — loads SQLAlchemy, which a log of files does not need

    return SqlLog(url, node)
