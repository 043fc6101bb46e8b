"""Open strings of databases, for SQLAlchemy: `database_url` reads one, and `shown_url` prints it for people."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from xa.open_string import OpenString, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.engine import URL


def database_url(text: str, environment: Mapping[str, str] = os.environ) -> URL:
    """The URL that `text` is, with its password. ValueError says what is wrong, and shows no secret."""
    found = OpenString.parse(text, environment)
    if "sqlite" in found.scheme and (found.place or found.user):
        raise ValueError(f"{found}: a file is named with three slashes, sqlite:///path")
    try:
        return make_url(found.url)
    except (ArgumentError, ValueError):  # which may quote a part of the URL
        raise ValueError(f"{found} is not the URL of a database, such as postgresql://host:5432/name") from None


def shown_url(url: URL) -> str:
    """The URL without its secrets, those among its options included."""
    return shown(url.render_as_string(hide_password=False))
