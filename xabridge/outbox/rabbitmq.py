"""RabbitPublisher: a relay's broker over AMQP 0-9-1, for RabbitMQ 3 and 4, with the client `amqp` (the extra
`rabbitmq`).

    amqp091://user:password@host:port/vhost?password_env=NAME
    amqp091s://user@host/vhost?ca=/etc/ssl/rabbit.pem&cert=…&key=…

The path is the virtual host, percent-encoded; without one it is `/`. A destination is written as RabbitMQ 4 writes
addresses of AMQP 1.0 (version 2), so that it stays the same when the broker is asked over that:

    /queues/NAME                    the queue NAME
    /exchanges/EXCHANGE/KEY         the exchange EXCHANGE, with the routing key KEY
    /exchanges/EXCHANGE             the same with an empty routing key
    NAME                            the queue NAME

NAME, EXCHANGE and KEY are percent-encoded behind a slash. A destination that does not begin with a slash is the queue's
name as it is.

Every message is persistent and mandatory. It has arrived when the broker has confirmed it and has not returned it: a
message that no queue takes is returned, and confirmed nevertheless. If the broker closes the channel, because an
exchange is missing or a message is too long, it does not say which message was the cause: those that were not confirmed
are sent once more, one by one. A connection that a message breaks is treated the same way.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import ssl
import struct
import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from dtx.amqp.values import Timestamp
from xa.extras import install_command
from xa.open_string import OpenString, option_name
from xa.tls import client_context
from xabridge.outbox.publisher import BrokerAway, PublishResult, Refusal

try:
    import amqp
    from amqp import exceptions

    from xabridge.outbox.rabbitmq_connection import BoundedConnection
except ModuleNotFoundError as error:
    raise ValueError(f"amqp091:// needs the client of AMQP 0-9-1: {install_command('rabbitmq')}") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rm_amqp import Message
    from xabridge.outbox.publisher import OutgoingMessage

PORT: Final = 5672
TLS_PORT: Final = 5671
CONNECT_S: Final = 10.0
CLOSE_S: Final = 2.0
KEEP_ALIVE_S: Final = 1.0
"""How long the rest of a frame may be missing: py-amqp asks for it all the time."""
HEARTBEAT_S: Final = 30
MAX_SHORT: Final = 255
"""Octets of a routing key, a name of an exchange, an id."""
OPTIONS: Final = frozenset({"password_env", "ca", "cert", "key", "heartbeat"})
_CONNECTION_FORCED: Final = 320
_LOST: Final = (OSError, exceptions.ConnectionError, exceptions.ConnectionForced)
_MAX_LONG: Final = 1 << 63


class Unsendable(Exception):
    """AMQP 0-9-1 has no form for the message; the message of the exception says why."""


@dataclass(frozen=True, slots=True)
class RabbitDestination:
    """Where a message is published to."""

    exchange: str
    routing_key: str


@dataclass(frozen=True, slots=True)
class RabbitSettings:
    """The settings in an open string."""

    host: str
    user: str
    password: str = field(repr=False)
    virtual_host: str
    tls: ssl.SSLContext | None
    heartbeat_s: int

    @classmethod
    def parse(cls, open_string: str, environment: Mapping[str, str] = os.environ) -> RabbitSettings:
        """ValueError says what is wrong. It shows no password."""
        found = OpenString.parse(open_string, environment)
        options = dict(found.decoded)
        unknown = options.keys() - OPTIONS
        if unknown:
            names = ", ".join(sorted(map(option_name, unknown)))
            raise ValueError(f"{found.scheme}://…: no such option: {names}; there are {', '.join(sorted(OPTIONS))}")
        with_tls = found.scheme == "amqp091s"
        [(host, port), *others] = found.hosts(TLS_PORT if with_tls else PORT)
        if others:
            raise ValueError(f"{found.scheme}://…: expected one host")
        heartbeat = options.get("heartbeat", str(HEARTBEAT_S))
        if not heartbeat.isdecimal():
            raise ValueError(f"{found.scheme}://…: heartbeat={heartbeat!r}: expected whole seconds, 0 for none")

        return cls(
            f"{f'[{host}]' if ':' in host else host or 'localhost'}:{port}",
            found.user or "guest",
            "guest" if found.password is None else found.password,
            unquote(found.path[1:]) or "/",
            _tls_context(options) if with_tls else None,
            int(heartbeat),
        )


def _tls_context(options: Mapping[str, str]) -> ssl.SSLContext:
    try:
        return client_context(options.get("ca") or None, options.get("cert"), options.get("key"))
    except OSError as error:
        raise ValueError(f"ca, cert or key can't be used: {error}") from error


class RabbitPublisher:
    """A `Publisher` for `amqp091://` and `amqp091s://`. `clock` is that of the deadlines."""

    def __init__(
        self, open_string: str, clock: Callable[[], float] = time.monotonic, connect_s: float = CONNECT_S
    ) -> None:
        self._settings = RabbitSettings.parse(open_string)
        self._clock = clock
        self._connect_s = connect_s
        self._connection: BoundedConnection | None = None
        self._channel: Any = None
        self._published = 0
        """On this channel: the delivery tag of the last message."""
        self._wave = _ConfirmBatch((), 1)

    def open(self) -> None:
        if self._connection is not None and self._connection.connected:
            return
        self._drop()
        settings = self._settings
        connection = BoundedConnection(
            settings.host,
            settings.user,
            settings.password,
            login_method="PLAIN",
            virtual_host=settings.virtual_host,
            ssl=settings.tls,
            connect_timeout=self._connect_s,
            clock=self._clock,
            until=self._clock() + self._connect_s,
            heartbeat=settings.heartbeat_s,
            client_properties={"connection_name": "xabridge outbox relay"},
        )

        try:
            connection.connect()
        except (*_LOST, exceptions.AMQPError, ssl.SSLError) as error:
            with contextlib.suppress(Exception):
                connection.collect()
            raise BrokerAway(f"RabbitMQ at {settings.host}: {_said(error)}") from None
        self._connection = connection

    def send(self, messages: Sequence[OutgoingMessage], deadline: float) -> PublishResult:
        sent = PublishResult()
        ready: list[_PreparedMessage] = []
        for message in messages:
            try:
                ready.append(_PreparedMessage(message.number, place(message.destination), properties(message.message)))
            except Unsendable as error:
                sent.refused[message.number] = Refusal(str(error), final=True)
        if not ready:
            return sent
        broken = self._publish(ready, sent, deadline)
        if broken is not None:  # one of these was the cause
            for one in ready:
                if one.number not in sent.confirmed and one.number not in sent.refused and self._still(sent):
                    self._publish_alone(one, sent, deadline)
        return sent

    @staticmethod
    def _still(sent: PublishResult) -> bool:
        """Whether the broker is there, as far as is known."""
        return sent.away is None

    def _publish_alone(self, one: _PreparedMessage, sent: PublishResult, deadline: float) -> None:
        broken = self._publish([one], sent, deadline)
        if broken is not None:
            sent.refused[one.number] = Refusal(broken)

    def _publish(self, ready: Sequence[_PreparedMessage], sent: PublishResult, deadline: float) -> str | None:
        """Publishes, and waits for the confirmations. What the broker said when it closed the channel, or the
        connection, because of one of the messages; None: it did not."""
        try:
            connection = self._opened(deadline)
            self._open_channel(connection)
            wave = self._wave = _ConfirmBatch(ready, self._published + 1)

            for one in ready:
                self._published += 1
                self._channel.basic_publish(
                    one.message, exchange=one.place.exchange, routing_key=one.place.routing_key, mandatory=True
                )

            while wave.is_open:
                left_s = deadline - self._clock()
                if left_s <= 0:
                    raise TimeoutError("did not confirm in time")
                connection.drain_events(timeout=left_s)
        except BrokerAway as error:
            sent.away = str(error)
        except exceptions.ChannelError as error:
            channel, self._channel = self._channel, None
            with contextlib.suppress(*_LOST, exceptions.AMQPError):
                channel.close()  # the client has opened it again
            return _said(error)
        except (struct.error, TypeError, ValueError) as error:  # the client can't write a message
            self._drop()
            return _said(error)
        except (*_LOST, exceptions.AMQPError) as error:
            self._drop()
            code = getattr(error, "reply_code", None) or 0
            if code and code != _CONNECTION_FORCED and not isinstance(error, exceptions.RecoverableConnectionError):
                return _said(error)
            sent.away = f"RabbitMQ at {self._settings.host}: {_said(error)}"
        finally:
            self._wave.note(sent)
            self._wave = _ConfirmBatch((), self._published + 1)
        return None

    def _opened(self, deadline: float) -> BoundedConnection:
        """The connection, which is waited for until then."""
        self.open()
        connection = self._connection
        assert connection is not None  # noqa: S101 — it is open
        connection.wait_until(deadline)
        return connection

    def _open_channel(self, connection: BoundedConnection) -> None:
        """One channel is kept as long as the broker does not close it."""
        if self._channel is None:
            channel = connection.channel()
            channel.events["basic_ack"].add(lambda tag, multiple: self._wave.acked(tag, multiple=multiple))
            channel.events["basic_nack"].add(lambda tag, multiple: self._wave.nacked(tag, multiple=multiple))
            channel.events["basic_return"].add(self._returned)
            channel.confirm_select()
            self._channel, self._published = channel, 0

    def _returned(self, why: Exception, exchange: str, routing_key: str, message: Any) -> None:
        self._wave.returned(why, exchange, routing_key, message)

    def keep_alive(self) -> None:
        connection = self._connection
        if connection is None:
            return
        connection.wait_until(self._clock() + KEEP_ALIVE_S)
        try:
            connection.heartbeat_tick()
            with contextlib.suppress(socket.timeout, BlockingIOError):
                connection.drain_events(timeout=0)
        except (*_LOST, exceptions.AMQPError) as error:
            self._drop()
            raise BrokerAway(f"RabbitMQ at {self._settings.host}: {_said(error)}") from None

    def close(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            connection.wait_until(self._clock() + CLOSE_S)
            with contextlib.suppress(*_LOST, exceptions.AMQPError):
                connection.close()
            with contextlib.suppress(Exception):
                connection.collect()

    def _drop(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.collect()


@dataclass(frozen=True, slots=True)
class _PreparedMessage:
    """A message that can be published."""

    number: int
    place: RabbitDestination
    message: Any


class _ConfirmBatch:
    """What the broker says of messages that are published one after the other on one channel, by their delivery
    tags."""

    def __init__(self, ready: Sequence[_PreparedMessage], first_tag: int) -> None:
        self._open = dict(enumerate(ready, first_tag))
        self._confirmed: set[int] = set()
        self._refused: dict[int, Refusal] = {}

    @property
    def is_open(self) -> bool:
        """Whether something is to be confirmed yet."""
        return bool(self._open)

    def acked(self, tag: int, *, multiple: bool) -> None:
        """The broker has these, or has returned them before."""
        for one in self._taken(tag, multiple=multiple):
            if one.number not in self._refused:
                self._confirmed.add(one.number)

    def nacked(self, tag: int, *, multiple: bool) -> None:
        """The broker could not keep these."""
        for one in self._taken(tag, multiple=multiple):
            self._refused[one.number] = Refusal(
                "the broker could not keep the message (basic.nack): is its queue full?"
            )

    def returned(self, why: Exception, exchange: str, routing_key: str, message: Any) -> None:
        """Notes that no queue takes this one. Its confirmation follows."""
        reason = f"no queue takes it: exchange {exchange!r}, routing key {routing_key!r} ({_said(why)})"
        message_id = message.properties.get("message_id")
        for one in self._open.values():
            if (
                one.place == RabbitDestination(exchange, routing_key)
                and one.message.properties.get("message_id") == message_id
            ):
                self._refused[one.number] = Refusal(reason)

    def _taken(self, tag: int, *, multiple: bool) -> list[_PreparedMessage]:
        tags = [at for at in self._open if at <= tag] if multiple else [tag]
        return [self._open.pop(at) for at in tags if at in self._open]

    def note(self, sent: PublishResult) -> None:
        """Adds what is known."""
        open_numbers = {one.number for one in self._open.values()}
        sent.confirmed |= self._confirmed
        sent.refused.update({number: why for number, why in self._refused.items() if number not in open_numbers})


def place(destination: str) -> RabbitDestination:
    """Where a destination is."""
    if not destination.startswith("/"):
        return _checked(RabbitDestination("", destination))
    kind, *parts = destination[1:].split("/")
    names = [unquote(part) for part in parts]
    if kind == "queues" and len(names) == 1 and names[0]:
        return _checked(RabbitDestination("", names[0]))
    if kind == "exchanges" and len(names) in (1, 2) and names[0]:
        return _checked(RabbitDestination(names[0], names[1] if len(names) == 2 else ""))
    raise Unsendable(
        f"{destination!r} is no destination on RabbitMQ: /queues/NAME, /exchanges/EXCHANGE/KEY, or a queue's name; a "
        "slash in a name is %2F"
    )


def _checked(found: RabbitDestination) -> RabbitDestination:
    for name in (found.exchange, found.routing_key):
        if len(name.encode()) > MAX_SHORT:
            raise Unsendable(f"{name[:20]!r}… is longer than the {MAX_SHORT} octets that AMQP 0-9-1 has for a name")
    return found


def properties(message: Message) -> Any:
    """The message as AMQP 0-9-1 has it; `docs/outbox.md` has the table."""
    body, content_type = _body(message)
    found: dict[str, Any] = {
        "message_id": _short("id", message.id),
        "correlation_id": _short("correlation_id", message.correlation_id),
        "reply_to": _short("reply_to", message.reply_to),
        "type": _short("subject", message.subject),
        "content_type": _short("content_type", message.content_type or content_type),
        "content_encoding": _short("content_encoding", message.content_encoding),
    }
    if message.ttl:
        found["expiration"] = str(round(message.ttl * 1000))
    if message.priority != _DEFAULT_PRIORITY:
        found["priority"] = int(message.priority)
    if message.creation_time:
        if not 0 <= message.creation_time < _MAX_LONG:
            raise Unsendable("the message's creation_time is before 1970, which AMQP 0-9-1 does not have")
        found["timestamp"] = int(message.creation_time)

    if message.properties:
        found["application_headers"] = {
            _header_name(name): _header(name, value) for name, value in message.properties.items()
        }
    known = {name: value for name, value in found.items() if value is not None}
    return amqp.Message(body, delivery_mode=2, **known)


_DEFAULT_PRIORITY: Final = 4


def _body(message: Message) -> tuple[bytes, str | None]:
    body = message.body
    if body is None:
        return b"", None
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body), None
    if isinstance(body, str):
        return str(body).encode(), "text/plain; charset=utf-8"
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode(), "application/json"
    except (TypeError, ValueError) as error:
        raise Unsendable(
            f"over AMQP 0-9-1 a body is octets, text, or what JSON has, and this one is not: {error}"
        ) from None


def _short(name: str, value: object) -> str | None:
    if value is None:
        return None
    text = value.hex() if isinstance(value, bytes) else str(value)
    if len(text.encode()) > MAX_SHORT:
        raise Unsendable(f"the message's {name} is longer than the {MAX_SHORT} octets that AMQP 0-9-1 has for it")
    return text


def _header_name(name: str) -> str:
    return _short("property", name) or ""


def _header(name: str, value: Any) -> Any:
    """A value of a header."""
    if value is None or isinstance(value, bool | bytes):
        return value
    if isinstance(value, Timestamp):
        try:
            return datetime.fromtimestamp(int(value) // 1000, UTC)
        except (ValueError, OverflowError, OSError):  # the client takes datetimes, which have years of four digits
            raise Unsendable(f"the property {name!r} is a time outside of the years 1 to 9999") from None

    if isinstance(value, int):
        if not -_MAX_LONG <= value < _MAX_LONG:
            raise Unsendable(f"the property {name!r} is a number of more than 64 bits")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):  # RabbitMQ closes the connection
            raise Unsendable(f"the property {name!r} is {value}, which is no number")
        return float(value)
    if isinstance(value, str | uuid.UUID):
        return str(value)
    if isinstance(value, dict):
        return {_header_name(str(key)): _header(name, item) for key, item in value.items()}
    if isinstance(value, list):
        return [_header(name, item) for item in value]
    raise Unsendable(f"the property {name!r} is a {type(value).__name__}, which AMQP 0-9-1 does not have")


def _said(error: BaseException) -> str:
    """What the broker, or the network, has said."""
    text = getattr(error, "reply_text", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())
