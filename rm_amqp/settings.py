"""The open string: where the brokers are, who we are, and how long we wait.

    amqp://user:password@host:port,host2:port2/?timeout=30&prefetch=100
    amqps://user@host/?password_env=BROKER_PASSWORD&ca=/etc/ssl/broker.pem

The hosts are nodes of one broker, tried in their order. Options: see `OPTIONS`. What is not understood is refused with
its place.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import unquote

from dtx.amqp.sasl import ClientPolicy
from rm_amqp.decider.tokens import MAX_SLOTS
from xa import Code, xa_error
from xa.open_string import PASSWORD_ENV, OpenString, option_name
from xa.tls import client_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

    from xa import XaError

PORT: Final = 5672
TLS_PORT: Final = 5671
MAX_PREFETCH: Final = 5000
MAX_CHANNELS: Final = 1000
MAX_NAME: Final = 200
SERVICE_BUS_IDLE_S: Final = 120.0
"""How long Azure Service Bus may be silent, unless the open string says otherwise: as in Microsoft's sample for JMS."""


@dataclass(frozen=True, slots=True)
class Broker:
    """Where one node of the broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings in an open string. Times in seconds."""

    brokers: tuple[Broker, ...]
    tls: bool = False
    user: str = ""
    password: str = field(default="", repr=False)
    timeout_s: float = 30.0
    connect_timeout_s: float = 10.0
    idle_timeout_s: float = 30.0
    channels: int = 64
    prefetch: int = 0
    ahead: bool = False
    branch_timeout_s: int = 0
    ca: str = ""
    certificate: str = ""
    key: str = ""
    plain_without_tls: bool = False
    token_queue: str = "xabridge.tokens"  # noqa: S105 — the name of a queue
    slots: int = 0
    topic: str = ""

    @property
    def identity(self) -> str:
        """Names the resource: the same branches are found behind equal ones."""
        who = f"{self.user}@" if self.user else ""
        return f"amqp://{who}{','.join(sorted(map(str, self.brokers)))}"

    @property
    def policy(self) -> ClientPolicy:
        """How to say who we are."""
        external = bool(self.certificate) and not self.user
        return ClientPolicy(self.user, self.password, external, self.plain_without_tls)

    def tls_context(self) -> ssl.SSLContext | None:
        """How to encrypt; XAER_INVAL where a file can't be used."""
        return tls_context(self.ca, self.certificate, self.key) if self.tls else None


def tls_context(ca: str, certificate: str, key: str) -> ssl.SSLContext:
    """How to encrypt; XAER_INVAL where a file can't be used."""
    try:
        return client_context(ca or None, certificate or None, key or None)
    except OSError as error:
        raise wrong(f"ca, cert or key can't be used: {error}") from error


def wrong(what: str) -> XaError:
    """XAER_INVAL for an open string."""
    return xa_error(Code.XAER_INVAL, f"open: wrong open string: {what}")


def seconds(name: str, text: str) -> float:
    """The value of an option that is a time."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 86_400:
        raise wrong(f"{name}={text!r}: expected seconds between 0 and 86400")
    return value


_DIGITS: Final = 18
"""Of a number in an open string; int refuses a text of thousands."""


def count(least: int, most: int) -> Callable[[str, str], int]:
    """Reads the value of an option that is a number."""

    def read(name: str, text: str) -> int:
        if not text.isdecimal() or len(text) > _DIGITS or not least <= int(text) <= most:
            raise wrong(f"{name}={text!r}: expected a number from {least} to {most}")
        return int(text)

    return read


def flag(name: str, text: str) -> bool:
    """The value of an option that is on or off."""
    if text not in {"true", "false"}:
        raise wrong(f"{name}={text!r}: expected true or false")
    return text == "true"


def plain(_name: str, text: str) -> str:
    """The value of an option that may be anything."""
    return text


def queue_name(name: str, text: str) -> str:
    """The value of an option that names a queue."""
    if not text or len(text) > MAX_NAME:
        raise wrong(f"{name}={text[:20]!r}: expected a name of 1 to {MAX_NAME} characters")
    return text


OPTIONS: Final[dict[str, tuple[str, Callable[[str, str], object]]]] = {
    "timeout": ("timeout_s", seconds),  # how long a call may take
    "connect_timeout": ("connect_timeout_s", seconds),  # of that, how long the attempt at one host
    "idle_timeout": ("idle_timeout_s", seconds),  # a silent broker is given up after this
    "channels": ("channels", count(1, MAX_CHANNELS)),  # how many threads of control can be at work
    "prefetch": ("prefetch", count(0, MAX_PREFETCH)),  # messages that are sent ahead of their receipt
    "ahead": ("ahead", flag),  # start does not wait; what is wrong with it is raised by work, or end
    "branch_timeout": ("branch_timeout_s", count(0, 2**31)),  # until a branch must be prepared; 0: the broker's
    "ca": ("ca", plain),  # TLS: who may sign the broker's certificate, PEM
    "cert": ("certificate", plain),  # TLS: our certificate, PEM
    "key": ("key", plain),  # TLS: its key, PEM
    "plain_without_tls": ("plain_without_tls", flag),  # the password may be sent without TLS
    "token_queue": ("token_queue", queue_name),  # of a broker that decides: where its tokens are
    "slots": ("slots", count(1, MAX_SLOTS)),  # of a broker that decides: how many tokens are made, at first
    "topic": ("topic", queue_name),  # Azure Service Bus decides: the topic whose subscriptions are the queues
}
"""Option → the field of Settings, and how its text is read. `password_env` names an environment variable."""


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """What an open string says about a broker."""

    scheme: str
    brokers: tuple[Broker, ...]
    path: str
    user: str
    password: str = field(repr=False)
    options: dict[str, object]
    """By the fields of the settings."""


Readers: TypeAlias = "Mapping[str, tuple[str, Callable[[str, str], object]]]"
"""Option → the field of the settings, and how its text is read."""


def read_open_string(
    open_string: str, ports: Mapping[str, int], readers: Readers, environment: Mapping[str, str] | None
) -> BrokerAddress:
    """What an open string says whose scheme is one of `ports`, each with its port; XAER_INVAL says what is wrong with
    it. No message shows the password."""
    try:
        found = OpenString.parse(open_string, environment)
    except ValueError as error:
        raise wrong(str(error)) from None
    # which resource manager of this kind it is stands before the +
    scheme = found.scheme if found.scheme in ports else found.scheme.rpartition("+")[2]
    if scheme not in ports:
        schemes = " or ".join(f"{name}://" for name in ports)
        raise wrong(f"{scheme[:20]!r} is not a scheme of this resource manager; use {schemes}")

    options: dict[str, object] = {}
    for name, value in found.decoded:
        if name not in readers:
            known = ", ".join(sorted([*readers, PASSWORD_ENV]))
            raise wrong(f"{option_name(name)}: there is no such option; there are {known}")
        attribute, read = readers[name]
        options[attribute] = read(name, value)

    brokers = tuple(Broker(host, port) for host, port in found.hosts(ports[scheme]))
    if not all(broker.host for broker in brokers):
        raise wrong("expected host or host:port behind //, and between commas")
    return BrokerAddress(scheme, brokers, unquote(found.path), found.user, found.password or "", options)


def parse(open_string: str, environment: Mapping[str, str] | None = os.environ) -> Settings:
    """The settings in an open string; XAER_INVAL says what is wrong with it. No message shows the password. Without an
    `environment` it is one that somebody typed: see `xa.secrets.without`."""
    read = read_open_string(open_string, {"amqp": PORT, "amqps": TLS_PORT}, OPTIONS, environment)
    if read.path not in {"", "/"}:
        raise wrong("there is no path; queues are named in receive and send")
    if read.options.get("topic"):
        read.options.setdefault("idle_timeout_s", SERVICE_BUS_IDLE_S)
    return Settings(read.brokers, read.scheme == "amqps", read.user, read.password, **read.options)  # type: ignore[arg-type]
