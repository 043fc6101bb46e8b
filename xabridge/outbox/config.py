"""The table `[outbox]` of xabridge.toml: which database and broker the relay and the commands work with.

[outbox]
database = "shop"                                   # a name from [resources], or a URL
broker   = "amqp091://relay@rabbit/?password_env=RABBIT_PASSWORD"
batch    = 100                                      # and the other settings of `RelaySettings`
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tm import ConfigurationError, ResourceConfig, configuration_from
from xa.open_string import shown
from xa.secrets import expanded, not_set
from xabridge.outbox.relay import RelaySettings

if TYPE_CHECKING:
    from collections.abc import Mapping

_TEXTS: Final = ("database", "broker", "schema")
_NUMBERS: Final[dict[str, type[int | float]]] = {
    "batch": int,
    "poll_s": float,
    "timeout_s": float,
    "max_attempts": int,
}


@dataclass(frozen=True, slots=True)
class OutboxConfig:
    """The settings. `database` and `broker` are URLs; None: the table does not say."""

    database: str | None = field(default=None, repr=False)
    broker: str | None = field(default=None, repr=False)
    schema: str | None = None
    relay: RelaySettings = field(default_factory=RelaySettings)
    telemetry: bool = False
    log_format: str = "text"

    @classmethod
    def read(cls, path: str | Path, environment: Mapping[str, str] = os.environ) -> OutboxConfig:
        """ConfigurationError says what is wrong with the file."""
        configuration = configuration_from(path, environment)
        table = tomllib.loads(Path(path).read_text(encoding="utf-8")).get("outbox", {})
        if not isinstance(table, dict):
            raise ConfigurationError(f"{path}: outbox: expected a table: [outbox]")
        unknown = sorted(table.keys() - {*_TEXTS, *_NUMBERS})
        if unknown:
            known = ", ".join(sorted({*_TEXTS, *_NUMBERS}))
            raise ConfigurationError(f"{path}: outbox.{unknown[0]}: unknown key; known are {known}")
        texts: dict[str, str | None] = {}
        for key in _TEXTS:
            value = table.get(key)
            if value is not None and not isinstance(value, str):
                raise ConfigurationError(f"{path}: outbox.{key}: expected text, not {value!r}")
            texts[key] = _url(path, key, value, configuration.resources, environment)

        try:
            relay = RelaySettings(**{key: _number(key, table[key]) for key in _NUMBERS if key in table})
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"{path}: outbox: {error}") from error
        return cls(**texts, relay=relay, telemetry=configuration.telemetry, log_format=configuration.log_format)


def _number(key: str, value: Any) -> Any:
    kind = _NUMBERS[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or (kind is int and not isinstance(value, int)):
        raise ValueError(f"{key} is {'a whole number' if kind is int else 'seconds'}, not {value!r}")
    return kind(value)


def _url(
    path: str | Path,
    key: str,
    value: str | None,
    resources: Mapping[str, str | ResourceConfig],
    environment: Mapping[str, str],
) -> str | None:
    """The URL: that of the resource, where the value is a resource's name."""
    if value is None or key == "schema":
        return value
    resource = resources.get(value)
    if resource is not None:
        return resource.url if isinstance(resource, ResourceConfig) else resource
    if "://" not in value and "$" not in value:
        raise ConfigurationError(
            f"{path}: outbox.{key}: {shown(value)!r} is neither a URL nor one of [resources]: "
            f"{', '.join(sorted(resources))}"
        )
    try:
        return expanded(value, environment)
    except KeyError as error:
        raise ConfigurationError(f"{path}: outbox.{key}: {not_set(error.args[0])}") from None
