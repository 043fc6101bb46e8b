"""The open string: where the brokers are, who we are, and how long we wait.

    openwire://user:password@host:port,host2:port2/?timeout=30
    openwire+ssl://user@host/?password_env=BROKER_PASSWORD&ca=/etc/ssl/broker.pem

The hosts are those of one broker and its backups, tried in their order. Options: see `OPTIONS`. What is not understood
is refused with its place.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from xa import Code, xa_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from xa import XaError

PORT: Final = 61616
TLS_PORT: Final = 61617
SCHEMES: Final = {"openwire": False, "openwire+ssl": True}
MAX_CONNECTIONS: Final = 1000
MAX_PREFETCH: Final = 5000
MAX_NAME: Final = 200


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
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            if self.certificate:
                context.load_cert_chain(self.certificate, self.key or None)
        except (OSError, ssl.SSLError) as error:
            raise _wrong(f"ca, cert or key can't be used: {error}") from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context


def _wrong(what: str) -> XaError:
    return xa_error(Code.XAER_INVAL, f"open: wrong open string: {what}")


def _seconds(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 86_400:
        raise _wrong(f"{name}={text!r}: expected seconds between 0 and 86400")
    return value


def _count(least: int, most: int) -> Callable[[str, str], int]:
    def read(name: str, text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise _wrong(f"{name}={text!r}: expected a number from {least} to {most}")
        return int(text)

    return read


def _flag(name: str, text: str) -> bool:
    if text not in {"true", "false"}:
        raise _wrong(f"{name}={text!r}: expected true or false")
    return text == "true"


def _plain(_name: str, text: str) -> str:
    return text


def _name(name: str, text: str) -> str:
    if not text or len(text) > MAX_NAME:
        raise _wrong(f"{name}={text[:20]!r}: expected the name of a queue, of 1 to {MAX_NAME} characters")
    return text


OPTIONS: Final[dict[str, tuple[str, Callable[[str, str], object]]]] = {
    "timeout": ("timeout_s", _seconds),
    "connect_timeout": ("connect_timeout_s", _seconds),
    "idle_timeout": ("idle_timeout_s", _seconds),
    "connections": ("connections", _count(1, MAX_CONNECTIONS)),
    "prefetch": ("prefetch", _count(0, MAX_PREFETCH)),
    "branch_timeout": ("branch_timeout_s", _seconds),
    "dead_letter_queue": ("dead_letter_queue", _name),
    "queues_stay": ("queues_stay", _flag),
    "ca": ("ca", _plain),
    "cert": ("certificate", _plain),
    "key": ("key", _plain),
    "plain_without_tls": ("plain_without_tls", _flag),
}
"""Option → the field of Settings, and how its text is read. `password_env` names an environment variable."""


def parse(open_string: str, environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings in an open string; XAER_INVAL says what is wrong with it. No message shows the password."""
    scheme, separator, _ = open_string.partition("://")
    if not separator or scheme not in SCHEMES:
        raise _wrong(f"{scheme[:20]!r} is not a scheme of this resource manager; use openwire:// or openwire+ssl://")
    tls = SCHEMES[scheme]
    try:
        parts = urlsplit(open_string)
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise _wrong(str(error).split("@")[-1]) from None
    if parts.path not in {"", "/"} or parts.fragment:
        raise _wrong(f"{parts.path!r}: there is no path; queues are named in receive and send")
    who, at, where = parts.netloc.rpartition("@")
    user, colon, password = who.partition(":")
    password = unquote(password)
    told: dict[str, object] = {}
    for name, value in pairs:
        if name == "password_env":
            if value not in environment:
                raise _wrong(f"password_env={value}: this environment variable is not set; set it for this process")
            if colon:
                raise _wrong("password_env, and a password as well")
            password = environment[value]
        elif name in OPTIONS:
            attribute, read = OPTIONS[name]
            told[attribute] = read(name, value)
        else:
            raise _wrong(f"{name}: there is no such option; there are {', '.join(sorted([*OPTIONS, 'password_env']))}")
    if at and not user:
        raise _wrong("a user is expected before the @")
    addresses = tuple(_address(text, TLS_PORT if tls else PORT) for text in where.split(","))
    settings = Settings(addresses, tls, unquote(user), password, **told)  # type: ignore[arg-type]
    if settings.password and not settings.tls and not settings.plain_without_tls:
        mend = "use openwire+ssl://, or allow it with plain_without_tls=true"
        raise _wrong(f"a password would be sent as it is, without TLS: {mend}")
    return settings


def _address(text: str, port: int) -> Address:
    host, separator, digits = text.rpartition(":")
    if not separator or text.endswith("]"):
        host, digits = text, str(port)
    bare = host.removeprefix("[").removesuffix("]")
    if not bare or not digits.isdecimal() or not 0 < int(digits) < 65_536 or (":" in bare and bare == host):
        raise _wrong(f"{text!r}: expected host or host:port")
    return Address(bare.lower(), int(digits))
