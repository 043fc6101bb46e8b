"""BoundedConnection: psycopg's connection, for servers that are slow, or lie.

psycopg bounds how long a connection may take to be made, and no wait after that. Here each operation has a deadline,
which a server that drips octets can't put off, and a reply has a most length. An operation that ends so closes the
connection: nothing else could be done with it, and what the server has carried out is not known. So does a reply to
COMMIT that is the reply to something else.

SCRAM lets the server say how often libpq hashes the password, up to 2,147,483,647 times, which takes most of an hour
and can't be interrupted. So each attempt to connect runs in a thread of its own, which is given up after
`connect_timeout`; while it still computes, there is no other attempt at this address.

Nor does libpq care who asks for the password. Here a server gets it as it is only over TLS that checks its certificate
and name (`sslmode=verify-full`), over a local socket, or if the settings say `require_auth`. Servers that want SCRAM or
md5 never see it.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

import psycopg
from psycopg import pq, waiting
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from sqlalchemy import event

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from psycopg.abc import PQGen, PQGenConn
    from sqlalchemy import Engine

RV = TypeVar("RV")

MAX_REPLY: Final = 64 << 20
"""Octets of a reply that holds records of ours."""
NOT_IN_CLEAR: Final = "!password"
"""libpq's name for every way to log in but the one that sends the password as it is."""
NOT_ASKED: Final = "no pass phrase was given"
"""What libpq tries on a key that is encrypted, in place of asking for its pass phrase."""

_DEFAULT_TIMEOUT_S: Final = 130
"""psycopg's, where the settings have none."""
_POLL_S: Final = 0.1
"""How often an attempt to connect looks whether it was given up."""
_AFTER_COMMIT: Final = frozenset({pq.TransactionStatus.IDLE, pq.TransactionStatus.UNKNOWN})
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

    @classmethod
    def _connect_gen(cls, conninfo: str = "", **named: Any) -> PQGenConn[Self]:
        return _Attempt[Any](super()._connect_gen(conninfo, **named), conninfo).steps()

    def commit(self) -> None:
        super().commit()
        if self.reply_s is not None and self.pgconn.transaction_status not in _AFTER_COMMIT:
            self.pgconn.finish()
            raise psycopg.OperationalError("the server's reply is none to COMMIT; the connection was closed")

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
        except (psycopg.InterfaceError, psycopg.ProgrammingError):
            if self.pgconn.transaction_status == pq.TransactionStatus.ACTIVE:
                self.pgconn.finish()  # the server has begun a COPY on its own, and it has no end
            raise

    def _given_up(self, gen: PQGen[Any], why: str) -> psycopg.OperationalError:
        gen.close()
        self.pgconn.finish()
        return psycopg.OperationalError(f"{why}; the connection was closed")


class _Attempt(Generic[RV]):
    """One attempt to connect, `gen`, in a thread of its own. `steps` waits for it, and gives it up when it ends."""

    _at_work: ClassVar[dict[tuple[Any, ...], threading.Thread]] = {}
    """An address → the attempt that was given up, and goes on."""

    def __init__(self, gen: PQGenConn[RV], conninfo: str) -> None:
        self._gen = gen
        settings = conninfo_to_dict(conninfo)
        timeout_s = int(settings.get("connect_timeout") or 0)
        self._timeout_s = (max(2, timeout_s) if timeout_s > 0 else _DEFAULT_TIMEOUT_S) - 2 * _POLL_S
        self._address = (settings.get("host"), settings.get("hostaddr"), settings.get("port"))
        self._lock = threading.Lock()
        self._given_up = False
        self._result: RV | None = None
        self._error: BaseException | None = None

    def steps(self) -> PQGenConn[RV]:
        earlier = self._at_work.get(self._address)
        if earlier is not None:
            earlier.join(2 * _POLL_S)  # unless it computes, it ends at once
        if earlier is not None and earlier.is_alive():
            raise psycopg.OperationalError(
                "connection failed: the server has asked for so much computing for the proof of the password that "
                "the last attempt is not over yet (iterations of SCRAM)"
            )
        until = time.monotonic() + self._timeout_s
        waits, wakes = socket.socketpair()
        thread = threading.Thread(target=self._run, args=(wakes,), name="xabridge-connect", daemon=True)
        thread.start()

        try:
            while not (yield waits.fileno(), waiting.WAIT_R):
                if time.monotonic() > until:  # psycopg would notice a moment later, and keep this
                    raise psycopg.errors.ConnectionTimeout("connection timeout expired")
        finally:
            with self._lock:
                self._given_up = self._result is None and self._error is None
                if self._given_up:
                    self._at_work[self._address] = thread
            waits.close()
        if self._error is not None:
            raise self._error
        assert self._result is not None  # noqa: S101 — there is one of the two
        return self._result

    def _until_given_up(self) -> PQGenConn[RV]:
        gen = self._gen
        try:
            wait = next(gen)
            while not self._given_up:
                wait = gen.send((yield wait))
        except StopIteration as stop:
            result: RV = stop.value
            return result
        raise psycopg.OperationalError("given up")

    def _run(self, wakes: socket.socket) -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = waiting.wait_conn(self._until_given_up(), _POLL_S)
        except BaseException as raised:  # noqa: BLE001 — it is raised where it is waited for
            error = raised
        with self._lock, wakes:
            self._result, self._error = result, error
            given_up = self._given_up
            if given_up:
                self._at_work.pop(self._address, None)
        if given_up and result is not None:
            result.close()


def bound(engine: Engine, reply_s: float, max_reply: int = MAX_REPLY, *, plain_without_tls: bool = False) -> Engine:
    """Makes the engine's connections bounded ones."""

    def connect(_dialect: object, _record: object, args: list[Any], given: dict[str, Any]) -> BoundedConnection:
        limits: dict[str, Any] = {"reply_s": reply_s, "max_reply": max_reply}
        return BoundedConnection.connect(*args, **limits, plain_without_tls=plain_without_tls, **given)  # type: ignore[misc]  # args has no names

    event.listen(engine, "do_connect", connect)
    return engine


def guarded(settings: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """What libpq is to connect with, so that no server but one that was verified gets the password as it is, and so
    that libpq does not ask at the terminal for the pass phrase of a key. Up to libpq 15 the former can't be asked
    for."""
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
        connected = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, descriptor)  # else it would ask for all three
        try:
            info = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        finally:
            connected.detach()
        return int(_TCP_INFO.unpack(info)[0])
    return 0
