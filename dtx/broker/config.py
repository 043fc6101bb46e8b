"""The broker's configuration: the section `[broker]` of a TOML file, and flags that override it.

    [broker]
    listen = ["127.0.0.1:5672"]                  listen_tls = ["0.0.0.0:5671"]
    store = "sqlite:///broker.db"                certificate, key, client_ca = files, PEM
    users = "users"                              anonymous = false, plain_without_tls = false, standby = false
    http = "127.0.0.1:9464"                      telemetry = false, log_format = "text"
    create_on_demand = true                      … every field of Settings
    [broker.limits]                              every field of Limits
    [broker.queue_defaults]                      every field of QueueSettings
    [broker.queues.orders]                       as queue_defaults, for one queue
    [broker.permissions.NAME]                    as dtx.broker.access.permissions says

Whatever is not in these tables, or of another type, is refused with its place in the file.

`values_of` lists every setting by its name in the file, without `broker.` in front, with its value as text and its
origin: `--flag`, the file, `queue_defaults` of the file for what a queue has from there, or `default`. No password is
in it.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, get_type_hints

from dtx.broker.access.permissions import Permissions, PermissionsError
from dtx.broker.settings import Limits, QueueSettings, Settings, WhenFull
from xa.open_string import host_and_port
from xa.secrets import expanded, masked, not_set
from xa.telemetry.log_lines import FORMATS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

T = TypeVar("T")
DEFAULT_LISTEN: Final = "127.0.0.1:5672"
DEFAULT_STORE: Final = "sqlite:///xabridge-broker.db"
DEFAULT: Final = "default"
_APART: Final = frozenset({"settings", "permissions", "origins"})
"""Fields of the configuration that are no settings. Permissions are listed with the users."""
_SIMPLE: Final = (bool, int, float, str)
_OWN: Final = frozenset(
    {
        "listen", "listen_tls", "store", "certificate", "key", "client_ca", "users", "anonymous", "plain_without_tls",
        "standby", "http", "telemetry", "log_format",
    }
)  # fmt: skip


class ConfigError(Exception):
    """The configuration is wrong. The message says where, and holds no password."""

    def __init__(self, message: str) -> None:
        super().__init__(masked(message))


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen. Port 0 is any that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """`host:port`, `[v6 address]:port` or a port alone; ConfigError for anything else."""
        try:
            return cls(*host_and_port(text))
        except ValueError as error:
            raise ConfigError(str(error)) from None


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Everything that a broker is started with."""

    listen: tuple[Address, ...] = ()
    listen_tls: tuple[Address, ...] = ()
    store: str = field(default=DEFAULT_STORE, repr=False)
    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    users: Path | None = None
    anonymous: bool = False
    plain_without_tls: bool = False
    standby: bool = False
    """Whether it waits for a store that another process has."""
    http: Address | None = None
    """Where probes and Prometheus are answered."""
    telemetry: bool = False
    log_format: str = "text"
    settings: Settings = field(default_factory=Settings)
    permissions: Permissions | None = None
    origins: Mapping[str, str] = field(default_factory=dict)
    """Where what is not a default comes from (`dtx.broker.config`)."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Every host that is listened at."""
        return tuple(address.host for address in self.listen + self.listen_tls)


def load(path: Path | None, overrides: Mapping[str, Any]) -> BrokerConfig:
    """The configuration in the file, if there is one, with what the flags say; ConfigError says what is
    wrong."""
    section: dict[str, Any] = {}
    if path is not None:
        try:
            section = tomllib.loads(path.read_text(encoding="utf-8")).get("broker", {})
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"{path}: {error}") from error
    if not isinstance(section, dict):
        raise ConfigError("broker: expected a table")

    table = {**section, **{name: value for name, value in overrides.items() if value is not None}}
    config = _read({name: _expanded(value, f"broker.{name}") for name, value in table.items()})
    config = replace(config, origins=_origins_of(path, section, overrides))
    if not config.listen and not config.listen_tls:
        config = replace(config, listen=(Address.parse(DEFAULT_LISTEN),))
    if bool(config.certificate) != bool(config.key):
        raise ConfigError("broker: certificate and key are given together")
    if config.listen_tls and config.certificate is None:
        raise ConfigError("broker.listen_tls: TLS needs a certificate and its key")
    if config.settings.lease_s < 1:
        raise ConfigError("broker.lease_s: at least 1")
    return config


def _expanded(value: Any, where: str) -> Any:
    """`value` with the environment variables in its texts, however deep."""
    if isinstance(value, dict):
        return {key: _expanded(inner, f"{where}.{key}") for key, inner in value.items()}
    if isinstance(value, list):
        return [_expanded(inner, where) for inner in value]
    try:
        return expanded(value) if isinstance(value, str) else value
    except KeyError as error:
        raise ConfigError(f"{where}: {not_set(error.args[0])}") from None


def _read(table: dict[str, Any]) -> BrokerConfig:
    tables = {"limits", "queue_defaults", "queues", "permissions"}
    plain = {name: value for name, value in table.items() if name not in tables | _OWN}
    defaults = _queue(_table(table, "queue_defaults"), "broker.queue_defaults", QueueSettings())
    queues = {
        name: _queue(_named(value, f"broker.queues.{name}"), f"broker.queues.{name}", defaults)
        for name, value in _table(table, "queues").items()
    }
    limits = _fill(Limits, _table(table, "limits"), "broker.limits")
    settings = _fill(Settings, plain, "broker")

    try:
        permissions = Permissions.from_section(table["permissions"]) if "permissions" in table else None
    except PermissionsError as error:
        raise ConfigError(f"broker.permissions: {error}") from error

    return BrokerConfig(
        listen=_addresses(table.get("listen", []), "listen"),
        listen_tls=_addresses(table.get("listen_tls", []), "listen_tls"),
        store=_typed(table.get("store", DEFAULT_STORE), str, "broker.store"),
        certificate=_path(table, "certificate"),
        key=_path(table, "key"),
        client_ca=_path(table, "client_ca"),
        users=_path(table, "users"),
        anonymous=_typed(table.get("anonymous", False), bool, "broker.anonymous"),
        plain_without_tls=_typed(table.get("plain_without_tls", False), bool, "broker.plain_without_tls"),
        standby=_typed(table.get("standby", False), bool, "broker.standby"),
        http=Address.parse(_typed(table["http"], str, "broker.http")) if "http" in table else None,
        telemetry=_typed(table.get("telemetry", False), bool, "broker.telemetry"),
        log_format=_log_format(table.get("log_format", "text")),
        settings=replace(settings, limits=limits, queues=queues, queue_defaults=defaults),
        permissions=permissions,
    )


def _queue(table: dict[str, Any], where: str, base: QueueSettings) -> QueueSettings:
    settings = _fill(QueueSettings, table, where, base)
    if settings.when_full is WhenFull.DEAD_LETTER and not settings.dead_letter:
        raise ConfigError(f"{where}.when_full: the queue has no dead letters (dead_letter is empty)")
    return settings


def _table(table: dict[str, Any], name: str) -> dict[str, Any]:
    return _named(table.get(name, {}), f"broker.{name}")


def _named(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: expected a table, not {value!r}")
    return value


def _addresses(value: Any, name: str) -> tuple[Address, ...]:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise ConfigError(f"broker.{name}: expected a list of host:port")
    return tuple(map(Address.parse, items))


def _path(table: dict[str, Any], name: str) -> Path | None:
    value = table.get(name)
    return None if value is None else Path(_typed(value, str, f"broker.{name}"))


def _log_format(value: Any) -> str:
    if value not in FORMATS:
        raise ConfigError(f"broker.log_format: expected {' or '.join(FORMATS)}, not {value!r}")
    return str(value)


def _typed(value: Any, wanted: type[T], where: str) -> T:
    if type(value) is int and wanted is float:
        value = float(value)
    if issubclass(wanted, StrEnum):
        try:
            return wanted(value)
        except ValueError:
            raise ConfigError(f"{where}: expected one of {', '.join(wanted)}, not {value!r}") from None
    if type(value) is not wanted:
        raise ConfigError(f"{where}: expected {wanted.__name__}, not {value!r}")
    return value


def _fill(make: type[T], table: dict[str, Any], where: str, base: T | None = None) -> T:
    """A dataclass of simple fields from a table; what the table leaves out is as in `base`."""
    hints = get_type_hints(make)
    simple = {one.name: hints[one.name] for one in fields(make) if hints[one.name] in (*_SIMPLE, WhenFull)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, value in table.items():
        if name not in simple:
            raise ConfigError(f"{where}.{name}: there is no such setting")
        values[name] = _typed(value, simple[name], f"{where}.{name}")
        if isinstance(value, int | float) and value < 0:
            raise ConfigError(f"{where}.{name}: {value} is negative")
    return replace(base, **values) if base is not None else make(**values)  # type: ignore[type-var]


# -- where each value comes from
class Value(NamedTuple):
    """One setting."""

    name: str
    text: str
    origin: str


def _origins_of(path: Path | None, section: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, str]:
    """The origin of everything that the file's section or a flag says, by the name of the setting."""
    found = dict.fromkeys(_names_in(section), str(path))
    for name, value in flags.items():
        if value is not None:
            found[name] = "--" + name.replace("_", "-")
    return found


def _names_in(section: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for name, value in section.items():
        if isinstance(value, dict):
            yield from _names_in(value, f"{before}{name}.")
        else:
            yield before + name


def values_of(config: BrokerConfig) -> list[Value]:
    """Every setting, by name."""
    origins = config.origins

    def found(made: Any, before: str) -> Iterator[Value]:
        for one in fields(made):
            value, name = getattr(made, one.name), before + one.name
            if name in _APART:
                continue
            if isinstance(value, dict):
                for queue, settings in value.items():
                    yield from found(settings, f"{name}.{queue}.")
            elif is_dataclass(value):
                yield from found(value, f"{name}.")
            else:
                yield Value(name, _shown(value), _origin(origins, name))

    return sorted([*found(config, ""), *found(config.settings, "")])


def _origin(origins: Mapping[str, str], name: str) -> str:
    if name in origins:
        return origins[name]
    if name.startswith("queues."):
        default = f"queue_defaults.{name.rpartition('.')[2]}"
        if default in origins:
            return f"{default} in {origins[default]}"
    return DEFAULT


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return masked(str(value))
