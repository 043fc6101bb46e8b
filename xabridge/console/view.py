"""View: what a page answers with, and the templates that make it HTML."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from xabridge.console.charts import sparkline
from xabridge.console.site_watch import key_of
from xabridge.console.template_filters import FILTERS
from xabridge.console.transaction_picture import picture

STATIC: Final = Path(__file__).parent / "static"


@dataclass(frozen=True, slots=True)
class PageView:
    """A page's template and what stands in it."""

    template: str
    context: dict[str, Any] = field(default_factory=dict)
    status: int = 200


@functools.cache
def templates() -> Environment:
    """The templates, which are compiled once in a process."""
    made = Environment(
        loader=PackageLoader("xabridge.console"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, auto_reload=False,
    )  # fmt: skip
    made.filters.update(FILTERS)
    made.globals.update(sparkline=sparkline, picture=picture, key_of=key_of, assets=_digest(), url=address)
    return made


def _digest() -> str:
    digest = hashlib.sha256()
    for file in sorted(STATIC.iterdir()):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def address(path: str, /, **arguments: object) -> str:
    """A path with arguments, each encoded; those that are empty are left out."""
    query = "&".join(
        f"{name}={quote(str(value), safe='')}" for name, value in arguments.items() if value not in {"", None}
    )
    return f"{path}?{query}" if query else path
