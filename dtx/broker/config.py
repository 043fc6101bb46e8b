"""The broker's configuration: the section `[broker]` of a TOML file, and flags that override it.

    [broker]                                     the settings of BrokerConfig and of Settings
    listen = ["127.0.0.1:5672"]
    store = "sqlite:///broker.db"
    [broker.limits]                              those of Limits
    [broker.queue_defaults]                      those of QueueSettings
    [broker.queues.orders]                       the same, for one queue
    [broker.topics."prices.#"]                   those of TopicSettings, for the topics that the pattern fits
    [broker.permissions.NAME]                    those of Rule

`configured_values` lists every setting by its name in the file, without `broker.` in front, with its value as text and
its origin: `--flag`, the file, `queue_defaults` of the file for what a queue has from there, or `default`. No password
is in it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from dtx.broker.access.permissions import Permissions
from dtx.broker.settings import Limits, QueueSettings, Settings, TopicSettings, WhenFull
from xa.configuration import (
    DEFAULT,
    FILE,
    FLAG,
    TEXT,
    Kind,
    Section,
    a,
    choice,
    read_file,
    setting,
    settings_of,
    values_of,
)
from xa.open_string import host_and_port
from xa.telemetry.log_lines import FORMATS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from xa.configuration import Value

DEFAULT_LISTEN: Final = "127.0.0.1:5672"
DEFAULT_STORE: Final = "sqlite:///xabridge-broker.db"
TABLES: Final = ("limits", "queue_defaults", "queues", "topics", "permissions")


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen. Port 0 is any that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """`host:port`, `[v6 address]:port` or a port alone; ValueError for anything else."""
        return cls(*host_and_port(text))


def _addresses(value: Any) -> tuple[Address, ...]:
    return tuple(Address.parse(a(str, one)) for one in ([value] if isinstance(value, str) else a(list, value)))


ADDRESS: Final = Kind("host:port, a text", lambda value: Address.parse(a(str, value)))
ADDRESSES: Final = Kind("host:port, or a list of them", _addresses)


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Everything that a broker is started with."""

    listen: tuple[Address, ...] = setting(
        (), ADDRESSES, "host and port, or a list of them", unset=f"`{DEFAULT_LISTEN}` if it listens nowhere else"
    )
    listen_tls: tuple[Address, ...] = setting((), ADDRESSES, "the same with TLS", unset="nowhere")
    store: str = setting(DEFAULT_STORE, TEXT, "the URL of the message store", secret=True)
    certificate: Path | None = setting(None, FILE, "the broker's certificate for TLS, a PEM file")
    key: Path | None = setting(None, FILE, "the key of the certificate, a PEM file")
    client_ca: Path | None = setting(None, FILE, "who signs certificates of clients, a PEM file")
    users: Path | None = setting(None, FILE, "the file of users", unset="no passwords")
    anonymous: bool = setting(False, FLAG, "peers that do not authenticate are served")
    plain_without_tls: bool = setting(False, FLAG, "passwords may come in the clear, without TLS")
    standby: bool = setting(
        False, FLAG, "the broker waits while another one has the [store](broker.md#one-that-stands-by)"
    )
    http: Address | None = setting(
        None,
        ADDRESS,
        "where `/live`, `/ready` and `/metrics` are answered over HTTP, to everybody who can connect: "
        "[health and metrics](broker.md#health-and-metrics)",
        unset="nowhere",
    )
    telemetry: bool = setting(False, FLAG, "metrics also through the process's OpenTelemetry providers")
    log_format: str = setting(FORMATS[0], choice(*FORMATS), "log lines as `text` or `json`: [logs](operations.md#logs)")
    settings: Settings = field(default_factory=Settings)
    permissions: Permissions | None = None
    origins: Mapping[str, str] = field(default_factory=dict)
    """Where what is not a default comes from (`dtx.broker.config`)."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Every host that is listened at."""
        return tuple(address.host for address in self.listen + self.listen_tls)


def load(path: Path | None, overrides: Mapping[str, Any]) -> BrokerConfig:
    """The configuration in the file, if there is one, with what the flags say; ConfigurationError says what is
    wrong."""
    file = Section({}, environment=os.environ) if path is None else read_file(path)
    section = file.table("broker", overrides)
    rules = section.table("permissions")

    defaults = _queue(section.table("queue_defaults"), QueueSettings())
    settings = section.read(
        Settings,
        beside={*settings_of(BrokerConfig), *TABLES},
        limits=section.table("limits").read(Limits),
        queues={name: _queue(queue, defaults) for name, queue in section.table("queues").tables()},
        queue_defaults=defaults,
        topics={pattern: topic.read(TopicSettings) for pattern, topic in section.table("topics").tables()},
    )
    config = section.read(
        BrokerConfig,
        beside={*settings_of(Settings), *TABLES},
        settings=settings,
        permissions=Permissions.from_section(rules) if "permissions" in section.content else None,
        origins=section.origins(),
    )

    if not config.listen and not config.listen_tls:
        config = replace(config, listen=(Address.parse(DEFAULT_LISTEN),))
    if bool(config.certificate) != bool(config.key):
        raise section.wrong("key" if config.certificate else "certificate", "certificate and key are given together")
    if config.listen_tls and config.certificate is None:
        raise section.wrong("listen_tls", "TLS needs a certificate and its key")
    return config


def _queue(section: Section, base: QueueSettings) -> QueueSettings:
    settings = section.read(QueueSettings, base)
    if settings.when_full is WhenFull.DEAD_LETTER and not settings.dead_letter:
        raise section.wrong("when_full", "the queue has no dead letters (dead_letter is empty)")
    return settings


def configured_values(config: BrokerConfig) -> list[Value]:
    """Every setting, by name."""
    settings, origins = config.settings, config.origins
    found = [
        *values_of(config, origins),
        *values_of(settings, origins),
        *values_of(settings.limits, origins, "limits."),
        *values_of(settings.queue_defaults, origins, "queue_defaults."),
    ]
    for name, queue in settings.queues.items():
        found += _of_a_queue(values_of(queue, origins, f"queues.{name}."), origins)
    for pattern, topic in settings.topics.items():
        found += values_of(topic, origins, f"topics.{pattern}.")
    return sorted(found)


def _of_a_queue(values: Iterator[Value], origins: Mapping[str, str]) -> Iterator[Value]:
    for value in values:
        default = f"queue_defaults.{value.name.rpartition('.')[2]}"
        inherited = value.origin == DEFAULT and default in origins
        yield value._replace(origin=f"{default} in {origins[default]}") if inherited else value
