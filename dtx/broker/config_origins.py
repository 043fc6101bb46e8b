"""Where each value of a broker's configuration comes from, for people who wonder at one.

`values_of` lists every setting by its name in the file, without `broker.` in front, with its value as text and its
origin: `--flag`, the file, `queue_defaults` of the file for what a queue has from there, or `default`. No password is
in it.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xa.secrets import masked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from dtx.broker.config import BrokerConfig

DEFAULT: Final = "default"
_APART: Final = frozenset({"settings", "permissions", "origins"})
"""Fields of the configuration that are no settings. Permissions are listed with the users."""


class Value(NamedTuple):
    """One setting."""

    name: str
    text: str
    origin: str


def origins_of(path: Path | None, section: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, str]:
    """The origin of everything that the file's section or a flag says, by the name of the setting."""
    found = dict.fromkeys(_names(section), str(path))
    for name, value in flags.items():
        if value is not None:
            found[name] = "--" + name.replace("_", "-")
    return found


def _names(section: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for name, value in section.items():
        if isinstance(value, dict):
            yield from _names(value, f"{before}{name}.")
        else:
            yield before + name


def values_of(config: BrokerConfig) -> list[Value]:
    """Every setting, by name."""
    origins = config.origins

    def found(made: Any, before: str) -> Iterator[Value]:
        for field in fields(made):
            value, name = getattr(made, field.name), before + field.name
            if name in _APART:
                continue
            if isinstance(value, dict):
                for queue, settings in value.items():
                    yield from found(settings, f"{name}.{queue}.")
            elif is_dataclass(value):
                yield from found(value, f"{name}.")
            else:
                yield Value(name, _text(value), _origin(origins, name))

    return sorted([*found(config, ""), *found(config.settings, "")])


def _origin(origins: Mapping[str, str], name: str) -> str:
    if name in origins:
        return origins[name]
    if name.startswith("queues."):
        default = f"queue_defaults.{name.rpartition('.')[2]}"
        if default in origins:
            return f"{default} in {origins[default]}"
    return DEFAULT


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return masked(str(value))
