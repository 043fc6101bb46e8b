"""The open string: where the brokers are, who we are, and how long we wait.

    openwire://user:password@host:port,host2:port2/?timeout=30
    openwire+ssl://user@host/?password_env=BROKER_PASSWORD&ca=/etc/ssl/broker.pem

The hosts are those of one broker and its backups, tried in their order. Options: see `OPTIONS`. What is not understood
is refused with its place.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rm_amqp.settings import Broker, count, flag, plain, queue_name, read_open_string, seconds, tls_context, wrong

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

PORT: Final = 61616
TLS_PORT: Final = 61617
MAX_CONNECTIONS: Final = 1000
MAX_PREFETCH: Final = 5000


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings in an open string. Times in seconds."""

    addresses: tuple[Broker, ...]
    tls: bool = False
    user: str = ""
    password: str = field(default="", repr=False)
    timeout_s: float = 30.0
    connect_timeout_s: float = 10.0
    idle_timeout_s: float = 30.0
    connections: int = 64
    prefetch: int = 0
    branch_timeout_s: float = 240.0
    dead_letter_queue: str = "ActiveMQ.DLQ"
    queues_stay: bool = False
    ca: str = ""
    certificate: str = ""
    key: str = ""
    plain_without_tls: bool = False

    def __str__(self) -> str:
        """The address, without any secret."""
        return f"openwire{'+ssl' * self.tls}://{','.join(map(str, self.addresses))}"

    def tls_context(self) -> ssl.SSLContext | None:
        """How to encrypt; XAER_INVAL where a file can't be used."""
        return tls_context(self.ca, self.certificate, self.key) if self.tls else None


OPTIONS: Final[dict[str, tuple[str, Callable[[str, str], object]]]] = {
    "timeout": ("timeout_s", seconds),
    "connect_timeout": ("connect_timeout_s", seconds),
    "idle_timeout": ("idle_timeout_s", seconds),
    "connections": ("connections", count(1, MAX_CONNECTIONS)),
    "prefetch": ("prefetch", count(0, MAX_PREFETCH)),
    "branch_timeout": ("branch_timeout_s", seconds),
    "dead_letter_queue": ("dead_letter_queue", queue_name),
    "queues_stay": ("queues_stay", flag),
    "ca": ("ca", plain),
    "cert": ("certificate", plain),
    "key": ("key", plain),
    "plain_without_tls": ("plain_without_tls", flag),
}
"""Option → the field of Settings, and how its text is read. `password_env` names an environment variable."""


def parse(open_string: str, environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings in an open string; XAER_INVAL says what is wrong with it. No message shows the password."""
    read = read_open_string(open_string, {"openwire": PORT, "openwire+ssl": TLS_PORT}, OPTIONS, environment)
    if read.path not in {"", "/"}:
        raise wrong("there is no path; queues are named in receive and send")
    tls = read.scheme == "openwire+ssl"
    settings = Settings(read.brokers, tls, read.user, read.password, **read.options)  # type: ignore[arg-type]
    if settings.password and not settings.tls and not settings.plain_without_tls:
        advice = "use openwire+ssl://, or allow it with plain_without_tls=true"
        raise wrong(f"a password would be sent as it is, without TLS: {advice}")
    return settings
