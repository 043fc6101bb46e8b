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
from urllib.parse import parse_qsl, unquote, urlsplit

from rm_amqp.settings import count, flag, plain, queue_name, seconds, tls_context, wrong

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

PORT: Final = 61616
TLS_PORT: Final = 61617
SCHEMES: Final = {"openwire": False, "openwire+ssl": True}
MAX_CONNECTIONS: Final = 1000
MAX_PREFETCH: Final = 5000


@dataclass(frozen=True, slots=True)
class Address:
    """Where one broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings in an open string. Times in seconds."""

    addresses: tuple[Address, ...]
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
    scheme, separator, _ = open_string.partition("://")
    if not separator or scheme not in SCHEMES:
        raise wrong(f"{scheme[:20]!r} is not a scheme of this resource manager; use openwire:// or openwire+ssl://")
    tls = SCHEMES[scheme]
    try:
        parts = urlsplit(open_string)
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise wrong(str(error).split("@")[-1]) from None
    if parts.path not in {"", "/"} or parts.fragment:
        raise wrong(f"{parts.path!r}: there is no path; queues are named in receive and send")
    who, at, where = parts.netloc.rpartition("@")
    user, colon, password = who.partition(":")
    password = unquote(password)
    told: dict[str, object] = {}
    for name, value in pairs:
        if name == "password_env":
            if value not in environment:
                raise wrong(f"password_env={value}: this environment variable is not set; set it for this process")
            if colon:
                raise wrong("password_env, and a password as well")
            password = environment[value]
        elif name in OPTIONS:
            attribute, read = OPTIONS[name]
            told[attribute] = read(name, value)
        else:
            raise wrong(f"{name}: there is no such option; there are {', '.join(sorted([*OPTIONS, 'password_env']))}")
    if at and not user:
        raise wrong("a user is expected before the @")
    addresses = tuple(_address(text, TLS_PORT if tls else PORT) for text in where.split(","))
    settings = Settings(addresses, tls, unquote(user), password, **told)  # type: ignore[arg-type]
    if settings.password and not settings.tls and not settings.plain_without_tls:
        mend = "use openwire+ssl://, or allow it with plain_without_tls=true"
        raise wrong(f"a password would be sent as it is, without TLS: {mend}")
    return settings


def _address(text: str, port: int) -> Address:
    host, separator, digits = text.rpartition(":")
    if not separator or text.endswith("]"):
        host, digits = text, str(port)
    bare = host.removeprefix("[").removesuffix("]")
    if not bare or not digits.isdecimal() or not 0 < int(digits) < 65_536 or (":" in bare and bare == host):
        raise wrong(f"{text!r}: expected host or host:port")
    return Address(bare.lower(), int(digits))
