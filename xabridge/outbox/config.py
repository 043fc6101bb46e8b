"""The table `[outbox]` of xabridge.toml: which database and broker the relay and the commands work with.

[outbox]
database = "shop"                                   # a name from [resources], or a URL
broker   = "amqp091://relay@rabbit/?password_env=RABBIT_PASSWORD"
batch    = 100                                      # and the other settings of `RelaySettings`
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tm import ResourceConfig
from tm.config import configuration_in
from xa.configuration import TEXT, read_file, setting, settings_of
from xabridge.outbox.relay import RelaySettings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from xa.configuration import Section


@dataclass(frozen=True, slots=True)
class OutboxConfig:
    """The settings. `database` and `broker` are URLs; None: the table does not say."""

    database: str | None = setting(
        None, TEXT, "the outbox's database: a name from `[resources]`, or a URL", secret=True
    )
    broker: str | None = setting(None, TEXT, "the broker: a name from `[resources]`, or a URL", secret=True)
    schema: str | None = setting(None, TEXT, "the schema of the outbox's tables", unset="that of the connection")
    relay: RelaySettings = field(default_factory=RelaySettings)
    telemetry: bool = False
    log_format: str = "text"

    @classmethod
    def read(cls, path: str | Path, environment: Mapping[str, str] = os.environ) -> OutboxConfig:
        """ConfigurationError says what is wrong with the file."""
        file = read_file(path, environment)
        configuration = configuration_in(file)
        section = file.table("outbox")
        found = section.read(
            cls,
            beside=settings_of(RelaySettings),
            relay=section.read(RelaySettings, beside=settings_of(cls)),
            telemetry=configuration.telemetry,
            log_format=configuration.log_format,
        )
        return replace(
            found,
            database=_url(section, "database", found.database, configuration.resources),
            broker=_url(section, "broker", found.broker, configuration.resources),
        )


def _url(section: Section, key: str, value: str | None, resources: Mapping[str, str | ResourceConfig]) -> str | None:
    """The URL: that of the resource, where the value is a resource's name."""
    if value is None or "://" in value:
        return value
    resource = resources.get(value)
    if resource is None:
        raise section.misfit(key, f"a URL, or one of [resources]: {', '.join(sorted(resources))}")
    return resource.url if isinstance(resource, ResourceConfig) else resource
