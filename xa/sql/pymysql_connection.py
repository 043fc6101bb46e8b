"""BoundedConnection: PyMySQL's connection, for servers that are slow, or lie.

PyMySQL bounds how long TCP may take, and no wait after that; it reads whatever length a packet has; it tells the
password to any server that asks; and a reply that is no MySQL ends in any kind of exception. Here

- greeting, TLS, log-in and the first statements together take at most `connect_timeout`,
- with `reply_s` each reply has a deadline, which a server that drips octets can't put off, and a most length,
- a server gets the password in a form that can be read back only if it was verified (TLS that checks certificate and
  host name, or a local socket), or with `plain_without_tls`. A public key that the server sends for that proves
  nothing, so a password that is encrypted with it counts as readable,
- what can't be understood closes the connection, and is a pymysql.OperationalError where there is a deadline.

No file of this machine is ever sent: `local_infile` stays off, and a server that asks for one is refused.
"""

from __future__ import annotations

import io
import math
import os
import socket
import ssl
import struct
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import pymysql
from pymysql.constants import CLIENT, CR
from pymysql.protocol import MysqlPacket
from sqlalchemy import event

from xa.sql.mariadb import encode_password
from xa.tls import refuse_to_ask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

MAX_REPLY: Final = 64 << 20
"""Octets of a reply that holds records of ours."""
MAX_LOGIN: Final = 64 << 10
"""Octets that a server may send until it has let us in."""

UNSAFE: Final = frozenset({"auth_plugin_map", "local_infile"})
"""Arguments of PyMySQL's that are not taken from a URL."""
WHY_UNSAFE: Final = "with local_infile a false server could ask for any file, with auth_plugin_map for the password"

_READABLE: Final = frozenset({b"mysql_clear_password", b"dialog", b"sha256_password"})
"""Ways to log in that send the password so that the other side can read it."""
_KEY_REQUESTS: Final = frozenset({b"\x01", b"\x02"})
"""What asks the server for a public key, with which the password would be encrypted."""
UNREADABLE: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
)
"""What PyMySQL raises for a reply that is none."""


class BoundedConnection(pymysql.connections.Connection):
    """Without settings for TLS in the URL, TLS is used where the server has it, and no certificate is checked. PyMySQL
    would load all certificates of the machine for each connection nevertheless, which takes longer than the rest of
    it."""

    def __init__(
        self,
        *,
        reply_s: float | None = None,
        max_reply: int = MAX_REPLY,
        plain_without_tls: bool = False,
        **settings: Any,
    ) -> None:
        self._plain_without_tls = plain_without_tls
        self._is_encrypted = False
        self._logging_in = False
        self._reply_s: float | None = None
        self._until: float | None = None
        self._max_reply = max_reply
        self._may_come = 0
        encode_password(settings)
        super().__init__(**settings)
        self._reply_s = reply_s

    def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:
        if sslp:
            sslp = {**sslp, "password": sslp.get("password") or refuse_to_ask}
            try:
                made: ssl.SSLContext = super()._create_ssl_ctx(sslp)  # type: ignore[misc]  # the stubs leave it out
            except OSError as error:
                why = f"ssl_ca, ssl_cert or ssl_key can't be used: {error}"
                raise pymysql.OperationalError(CR.CR_SSL_CONNECTION_ERROR, why) from None
            return made
        unchecked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        unchecked.check_hostname = False
        unchecked.verify_mode = ssl.CERT_NONE
        return unchecked

    # --- the password ---------------------------------------------------------------------------------------
    @property
    def may_send_password(self) -> bool:
        """Whether the server may see the password."""
        driver: Any = self
        if self._plain_without_tls or driver.unix_socket:
            return True
        has_tls = bool(driver.ssl and driver.server_capabilities & CLIENT.SSL)
        return has_tls and driver.ctx.verify_mode is ssl.CERT_REQUIRED and driver.ctx.check_hostname

    @property
    def _secure(self) -> bool:
        """PyMySQL's sign that a password may be sent as it is."""
        return self._is_encrypted and self.may_send_password

    @_secure.setter
    def _secure(self, is_encrypted: bool) -> None:
        self._is_encrypted = is_encrypted

    def _refusal(self, how: str) -> pymysql.OperationalError:
        driver: Any = self
        return pymysql.OperationalError(
            CR.CR_AUTH_PLUGIN_ERR,
            f"the server at {driver.host}:{driver.port} wants the password in a form that it can read ({how}), and "
            "nothing has shown who it is. Use TLS that checks its certificate and name (ssl_ca=/path/of/ca.pem in the "
            "URL), or allow it with xa_plain_without_tls=true",
        )

    def _get_server_information(self) -> None:
        driver: Any = self
        self._limit(driver.connect_timeout, MAX_LOGIN)
        super()._get_server_information()  # type: ignore[misc]
        if driver._auth_plugin_name.encode() in _READABLE and not self.may_send_password:
            driver._auth_plugin_name = "mysql_native_password"  # else the password is in the first answer

    def _process_auth(self, plugin_name: bytes, auth_packet: Any, handler: Any = None) -> Any:
        if plugin_name in _READABLE and not self.may_send_password:
            raise self._refusal(plugin_name.decode())
        return super()._process_auth(plugin_name, auth_packet, handler)  # type: ignore[misc]

    def write_packet(self, payload: bytes) -> None:
        if self._logging_in and payload in _KEY_REQUESTS and not self.may_send_password:
            raise self._refusal("encrypted with a key that it sends itself")
        super().write_packet(payload)

    # --- deadlines and lengths ------------------------------------------------------------------------------
    def connect(self, sock: socket.socket | None = None) -> None:
        driver: Any = self
        self._logging_in = True
        try:
            with self._understood():
                super().connect(sock)
        finally:
            self._logging_in = False
            self._until = None
            if driver._sock is not None:
                driver._sock.settimeout(driver._read_timeout)
                driver._current_timeout = driver._read_timeout

    def _limit(self, seconds: float | None, octets: int) -> None:
        self._until = None if seconds is None else time.monotonic() + seconds
        self._may_come = octets

    @contextmanager
    def unlimited(self) -> Iterator[None]:
        """Statements of the application, which may take as long as they like."""
        before, self._reply_s = self._reply_s, None
        try:
            yield
        finally:
            self._reply_s = before

    def interrupt(self) -> None:
        """Breaks the connection while another thread waits for it, which gets an error."""
        driver: Any = self
        with suppress(OSError, AttributeError), socket.socket(fileno=os.dup(driver._sock.fileno())) as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)

    def _execute_command(self, command: int, sql: str | bytes) -> None:
        if not self._logging_in:
            self._check_silent()
            self._limit(self._reply_s, self._max_reply)
        super()._execute_command(command, sql)  # type: ignore[misc]

    def _check_silent(self) -> None:
        """pymysql.OperationalError: the server has sent more than the replies, or the connection broke. What it has
        sent would be taken for the reply to what follows."""
        driver: Any = self
        result = driver._result
        reader = driver._rfile
        if driver._sock is None or not isinstance(reader, io.BufferedReader):
            return  # PyMySQL says so itself; or another reader is in place, which looks itself
        if result is not None and (result.unbuffered_active or result.has_next):
            return  # PyMySQL reads the rest first

        driver._current_timeout = math.nan
        try:
            driver._sock.settimeout(0.0)
            unasked = reader.peek(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        except OSError as error:
            raise self._given_up(f"the connection broke ({error})") from None
        finally:
            if driver._sock is not None:
                driver._sock.settimeout(driver._read_timeout)
        if unasked:
            raise self._given_up("the server's reply came before the request")

    def _left_s(self) -> float:
        """The time for which the socket may be waited for; pymysql.OperationalError: no longer."""
        assert self._until is not None  # noqa: S101 — only then
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise self._given_up("no whole answer in time")
        return left_s

    def _given_up(self, why: str) -> pymysql.OperationalError:
        self._force_close()  # type: ignore[attr-defined]
        return pymysql.OperationalError(CR.CR_SERVER_LOST, f"{why}; the connection was closed")

    def _read_bytes(self, num_bytes: int) -> bytes:
        if self._until is None:
            octets: bytes = super()._read_bytes(num_bytes)  # type: ignore[misc]
            return octets
        self._may_come -= num_bytes
        if self._may_come < 0:
            raise self._given_up("the server sends more than such a reply can have")

        driver: Any = self
        found = bytearray()
        driver._current_timeout = math.nan  # PyMySQL shall not believe that it knows it
        while len(found) < num_bytes:
            try:
                driver._sock.settimeout(self._left_s())
                piece = driver._rfile.read1(num_bytes - len(found)) if driver._rfile.peek(1) else b""
            except OSError as error:
                raise self._given_up(f"no whole answer ({error})") from None
            if not piece:
                raise self._given_up("the server has closed the connection")
            found += piece
        return bytes(found)

    def _write_bytes(self, data: bytes) -> None:
        if self._until is None:
            super()._write_bytes(data)  # type: ignore[misc]
            return
        driver: Any = self
        driver._current_timeout = math.nan
        driver._sock.settimeout(self._left_s())  # also for the TLS handshake, which follows
        try:
            driver._sock.sendall(data)
        except OSError as error:
            driver._force_close()
            raise pymysql.OperationalError(CR.CR_SERVER_GONE_ERROR, f"MySQL server has gone away ({error!r})") from None

    # --- replies that are none ------------------------------------------------------------------------------
    @contextmanager
    def _understood(self) -> Iterator[None]:
        try:
            yield
        except UNREADABLE as error:
            self._force_close()  # type: ignore[attr-defined]
            if self._until is None:
                raise  # by the application's own converter, as far as one knows
            why = f"the server's reply can't be understood: {type(error).__name__}: {error}"
            if "LOAD_LOCAL" in str(error):
                why = "the server asks for a file of this machine (LOAD DATA LOCAL), and gets none"
            raise pymysql.OperationalError(CR.CR_MALFORMED_PACKET, why) from error

    def _read_packet(self, packet_type: type[MysqlPacket] = MysqlPacket) -> Any:
        with self._understood():
            return super()._read_packet(packet_type)  # type: ignore[no-untyped-call]

    def _read_query_result(self, unbuffered: bool = False) -> Any:
        with self._understood():
            return super()._read_query_result(unbuffered)  # type: ignore[misc]


def bound(engine: Engine, reply_s: float, max_reply: int = MAX_REPLY, *, plain_without_tls: bool = False) -> Engine:
    """Makes the engine's connections bounded ones."""

    def connect(_dialect: object, _record: object, args: list[Any], given: dict[str, Any]) -> BoundedConnection:
        limits: dict[str, Any] = {"reply_s": reply_s, "max_reply": max_reply}
        return BoundedConnection(*args, **limits, plain_without_tls=plain_without_tls, **given)

    event.listen(engine, "do_connect", connect)
    return engine
