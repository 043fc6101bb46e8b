"""BoundedConnection: psycopg's connection, for servers that are slow, or lie.

psycopg bounds how long a connection may take to be made, and no wait after that. Here each operation has a deadline,
which a server that drips octets can't put off, and a reply has a most length. An operation that ends so closes the
connection: nothing else could be done with it, and what the server has carried out is not known.

Nor does libpq care who asks for the password. Here a server gets it as it is only over TLS that checks its certificate
and name (`sslmode=verify-full`), over a local socket, or if the settings say `require_auth`. Servers that want SCRAM or
md5 never see it.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from sqlalchemy import event

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from psycopg.abc import PQGen
    from sqlalchemy import Engine

RV = TypeVar("RV")

MAX_REPLY: Final = 64 << 20
"""Octets of a reply that holds records of ours."""
NOT_IN_CLEAR: Final = "!password"
"""libpq's name for every way to log in but the one that sends the password as it is."""
NOT_ASKED: Final = "no pass phrase was given"
"""What libpq tries on a key that is encrypted, in place of asking for its pass phrase."""

_KNOWS_REQUIRE_AUTH: Final = 16_00_00
_OF_PSYCOPG: Final = frozenset({"autocommit", "context", "cursor_factory", "prepare_threshold", "row_factory"})
"""Arguments of `connect` that are not libpq's."""
_TCP_INFO: Final = struct.Struct("@128xQ")
"""Linux: `tcpi_bytes_received` and what is before it."""


class BoundedConnection(psycopg.Connection[Any]):
    """A connection whose operations end after `reply_s`; None: they may take as long as they like."""

    reply_s: float | None = None
    max_reply: int = MAX_REPLY

    @classmethod
    def connect(  # type: ignore[override]  # it takes what psycopg's does, and two arguments more
        cls,
        conninfo: str = "",
        *,
        reply_s: float | None = None,
        max_reply: int = MAX_REPLY,
        plain_without_tls: bool = False,
        **given: Any,
    ) -> Self:
        """A new connection; psycopg.Error. With `plain_without_tls` any server gets the password as it is."""
        of_psycopg = {name: value for name, value in given.items() if name in _OF_PSYCOPG}
        of_libpq = {name: value for name, value in given.items() if name not in _OF_PSYCOPG}
        settings = conninfo_to_dict(conninfo, **of_libpq)
        if not plain_without_tls:
            settings = guarded(settings)
        try:
            connection = super().connect(make_conninfo("", **settings), **of_psycopg)
        except psycopg.OperationalError as error:
            if NOT_IN_CLEAR not in str(error):
                raise
            raise psycopg.OperationalError(
                f"{str(error).strip()}: it would get the password as it is, and nothing has shown who it is. Use "
                "sslmode=verify-full, or allow it with require_auth=password in the URL"
            ) from None
        connection.reply_s, connection.max_reply = reply_s, max_reply
        return connection

    def wait(self, gen: PQGen[RV], *arguments: Any, **named: Any) -> RV:
        if self.reply_s is not None:
            gen = self._bounded(gen, self.reply_s)
        return super().wait(gen, *arguments, **named)

    def _bounded(self, gen: PQGen[RV], reply_s: float) -> PQGen[RV]:
        """The same steps, until the time is over or the server has sent too much."""
        until = time.monotonic() + reply_s
        most: int | None = None
        try:
            wait = next(gen)
            while True:
                ready = yield wait
                if time.monotonic() > until:
                    raise self._given_up(gen, f"no whole answer within {reply_s:g} s")
                if ready:
                    received = received_octets(self.pgconn.socket)
                    most = most or received + self.max_reply
                    if received > most:
                        raise self._given_up(gen, f"the server's reply has more than {self.max_reply} octets")
                wait = gen.send(ready)
        except StopIteration as stop:
            result: RV = stop.value
            return result

    def _given_up(self, gen: PQGen[Any], why: str) -> psycopg.OperationalError:
        gen.close()
        self.pgconn.finish()
        return psycopg.OperationalError(f"{why}; the connection was closed")


def bound(engine: Engine, reply_s: float, max_reply: int = MAX_REPLY, *, plain_without_tls: bool = False) -> Engine:
    """Makes the engine's connections bounded ones."""

    def connect(_dialect: object, _record: object, args: list[Any], given: dict[str, Any]) -> BoundedConnection:
        limits: dict[str, Any] = {"reply_s": reply_s, "max_reply": max_reply}
        return BoundedConnection.connect(*args, **limits, plain_without_tls=plain_without_tls, **given)  # type: ignore[misc]  # args has no names

    event.listen(engine, "do_connect", connect)
    return engine


def guarded(settings: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """What libpq is to connect with, so that no server but one that was verified gets the password as it is, and so
    that nobody is asked at the terminal for the pass phrase of a key. Up to libpq 15 the former can't be asked for."""
    found = dict(settings)
    if "sslkey" in found:
        found.setdefault("sslpassword", NOT_ASKED)
    if pq.version() < _KNOWS_REQUIRE_AUTH or "require_auth" in found or "PGREQUIREAUTH" in environment:
        return found
    verified = found.get("sslmode", environment.get("PGSSLMODE")) == "verify-full"
    if not verified and not _is_local(found, environment):
        found["require_auth"] = NOT_IN_CLEAR
    return found


def _is_local(settings: Mapping[str, Any], environment: Mapping[str, str]) -> bool:
    """Whether only sockets of this machine are named."""
    if settings.get("hostaddr", environment.get("PGHOSTADDR")):
        return False
    hosts = str(settings.get("host", environment.get("PGHOST")) or "/").split(",")
    return all(host.startswith(("/", "@")) for host in hosts)


def received_octets(descriptor: int) -> int:
    """How many octets have arrived on a TCP connection since it was made; 0 where the system does not count them."""
    with suppress(OSError, AttributeError, struct.error):
        connected = socket.socket(fileno=descriptor)
        try:
            info = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        finally:
            connected.detach()
        return int(_TCP_INFO.unpack(info)[0])
    return 0
