"""The open string of a broker that speaks AMQP 0-10.

    amqp010://user:password@host:port,host2:port2/virtualhost?timeout=30&branch_timeout=600
    amqp010s://user@host/?password_env=BROKER_PASSWORD&ca=/etc/ssl/broker.pem

The hosts are nodes of one broker, tried in their order. The path names the virtual host; without one it is the broker's
default. Options: see `OPTIONS`. What is not understood is refused with its place.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from dtx.amqp.sasl import ClientPolicy
from rm_amqp.settings import (
    MAX_CHANNELS,
    PORT,
    TLS_PORT,
    count,
    flag,
    plain,
    read_open_string,
    seconds,
    tls_context,
    wrong,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

    from rm_amqp.settings import Broker

MIN_BRANCH_TIMEOUT_S: Final = 10


@dataclass(frozen=True, slots=True)
class Settings010:
    """The settings in an open string. Times in seconds."""

    brokers: tuple[Broker, ...]
    virtual_host: str = ""
    tls: bool = False
    user: str = ""
    password: str = field(default="", repr=False)
    timeout_s: float = 30.0
    connect_timeout_s: float = 10.0
    heartbeat_s: int = 30
    channels: int = 64
    branch_timeout_s: int = 600
    ca: str = ""
    certificate: str = ""
    key: str = ""
    plain_without_tls: bool = False

    @property
    def url(self) -> str:
        """Names the broker, for people."""
        scheme = "amqp010s" if self.tls else "amqp010"
        return f"{scheme}://{','.join(map(str, self.brokers))}/{self.virtual_host}"

    @property
    def policy(self) -> ClientPolicy:
        """How to say who we are."""
        external = bool(self.certificate) and not self.user
        return ClientPolicy(self.user, self.password, external, self.plain_without_tls)

    def tls_context(self) -> ssl.SSLContext | None:
        """How to encrypt; XAER_INVAL where a file can't be used."""
        return tls_context(self.ca, self.certificate, self.key) if self.tls else None


def _branch_timeout(name: str, text: str) -> int:
    value = count(0, 2**31 - 1)(name, text)
    if 0 < value < MIN_BRANCH_TIMEOUT_S:
        raise wrong(f"{name}={text!r}: expected 0 (none), or at least {MIN_BRANCH_TIMEOUT_S} seconds")
    return value


OPTIONS: Final[dict[str, tuple[str, Callable[[str, str], object]]]] = {
    "timeout": ("timeout_s", seconds),  # how long a call may take
    "connect_timeout": ("connect_timeout_s", seconds),  # of that, how long the attempt at one host
    "heartbeat": ("heartbeat_s", count(0, 3600)),  # how often each side says something; 0: never
    "channels": ("channels", count(1, MAX_CHANNELS)),  # how many threads of control can be at work
    "branch_timeout": ("branch_timeout_s", _branch_timeout),  # until a branch must be prepared; 0: none
    "ca": ("ca", plain),  # TLS: who may sign the broker's certificate, PEM
    "cert": ("certificate", plain),  # TLS: our certificate, PEM
    "key": ("key", plain),  # TLS: its key, PEM
    "plain_without_tls": ("plain_without_tls", flag),  # the password may be sent without TLS
}
"""Option → the field of Settings010, and how its text is read. `password_env` names an environment variable."""


def parse(open_string: str, environment: Mapping[str, str] = os.environ) -> Settings010:
    """The settings in an open string; XAER_INVAL says what is wrong with it. No message shows the password."""
    read = read_open_string(open_string, {"amqp010": PORT, "amqp010s": TLS_PORT}, OPTIONS, environment)
    virtual_host = read.path.removeprefix("/")
    if len(virtual_host.encode()) > 255:
        raise wrong("the name of a virtual host has at most 255 octets")
    return Settings010(
        read.brokers,
        virtual_host,
        read.scheme == "amqp010s",
        read.user,
        read.password,
        **read.options,  # type: ignore[arg-type]
    )
