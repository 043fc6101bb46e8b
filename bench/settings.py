"""The tables of settings in the guides, from where the settings are declared.

    python -m bench.settings

writes them into docs/; `tests/docs/test_tables_of_settings.py` looks whether they are there. A table is found by its
head, and ends where its rows end.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any, Final

from dtx.broker.access.permissions import Rule
from dtx.broker.config import BrokerConfig
from dtx.broker.settings import MEGABYTE, Limits, QueueSettings, Settings, TopicSettings
from tm.config import OTHERS, Configuration
from xa.configuration import settings_of
from xabridge.console.settings import ConsoleSettings
from xabridge.outbox import RelaySettings

DOCS: Final = Path(__file__).parents[1] / "docs"


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a guide: the text of its head, and what declares its rows."""

    page: str
    head: str
    declared: tuple[type[Any], ...]
    others: dict[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The table."""
        rows = [row for one in self.declared for row in _rows(one)]
        rows += [f"| `{name}` | {what} | |" for name, what in self.others.items()]
        text = "\n".join([f"| {self.head} | default |", "|---|---|---|", *rows])
        return text.replace(f"]({self.page}#", "](#")

    def into(self, text: str) -> str:
        """The page with this table in place of its own."""
        lines = text.splitlines()
        first = lines.index(f"| {self.head} | default |")
        after = next((number for number in range(first, len(lines)) if not lines[number].startswith("|")), len(lines))
        return "\n".join([*lines[:first], self.text, *lines[after:]]) + "\n"


def _rows(declared: type[Any]) -> list[str]:
    defaults = {one.name: one.default for one in fields(declared)}
    return [
        f"| `{name}` | {one.help} | {one.unset or _shown(name, defaults[name])} |".replace("|  |", "| |")
        for name, one in settings_of(declared).items()
    ]


def _shown(name: str, value: Any) -> str:
    """A default."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return f'`"{value.value}"`'
    if isinstance(value, str):
        return f"`{value}`" if value else ""
    if value is None:
        return ""
    if name.endswith("_octets") and value >= MEGABYTE:
        return f"{value // MEGABYTE:,} MiB"
    return f"{int(value) if value == int(value) else value:,}"


TABLES: Final = (
    Table("operations.md", "key | means", (Configuration,), OTHERS),
    Table("outbox.md", "setting | means", (RelaySettings,)),
    Table("console.md", "`[console]` | means", (ConsoleSettings,)),
    Table("broker.md", "`[broker]` | means", (BrokerConfig, Settings)),
    Table("broker.md", "`[broker.queue_defaults]` and `[broker.queues.NAME]` | means", (QueueSettings,)),
    Table("broker.md", '`[broker.topics."PATTERN"]` | means', (TopicSettings,)),
    Table("broker.md", "`[broker.permissions.NAME]` | means", (Rule,)),
    Table("broker.md", "`[broker.limits]` | the most", (Limits,)),
)


def main() -> int:
    """Writes every table."""
    for table in TABLES:
        page = DOCS / table.page
        page.write_text(table.into(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
