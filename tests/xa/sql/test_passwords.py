"""These tests cover what false servers of MariaDB, MySQL and PostgreSQL get to see of a password, and of files."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psycopg
import pymysql
import pytest

from rm_db import DecidingDatabase, MariaResource, PostgresResource
from tests.false_server import FalseServer, mysql_packet
from xa import Code, ResourceUnavailable, XaError
from xa.sql.psycopg_connection import NOT_IN_CLEAR, BoundedConnection, guarded
from xa.sql.pymysql_connection import BoundedConnection as BoundedPymysql
from xabridge.testing.contract.client import RMID, ScriptedRegistrar

CERTIFICATES = Path(__file__).parents[2] / "interop" / "certificates"
PASSWORD = "marked-pass"  # noqa: S105 — nobody's
SALT = b"12345678" + b"901234567890"

SSL, PLUGIN_AUTH, SECURE = 0x800, 0x80000, 0x8000
CAPABILITIES = 0x200 | SECURE | PLUGIN_AUTH | 0x1 | 0x4 | 0x8 | 0x2000
OK = b"\x00\x00\x00\x02\x00\x00\x00"


def greeting(capabilities: int, plugin: bytes) -> bytes:
    return mysql_packet(
        0,
        b"\x0a8.0.36\x00"
        + struct.pack("<I", 7)
        + SALT[:8]
        + b"\x00"
        + struct.pack("<HBHHB", capabilities & 0xFFFF, 33, 2, capabilities >> 16, 21)
        + bytes(10)
        + SALT[8:]
        + b"\x00"
        + plugin
        + b"\x00",
    )


def mysql(
    *asks: bytes, plugin: bytes = b"mysql_native_password", tls: bool = False
) -> Callable[[FalseServer, socket.socket], None]:
    """A server that greets, and after each answer says one of `asks`."""

    def talk(server: FalseServer, client: socket.socket) -> None:
        client.sendall(greeting(CAPABILITIES | (SSL if tls else 0), plugin))
        number, _ = server.hear_packet(client)
        if not tls:
            log_in(server, client, number)
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATES / "broker.pem", CERTIFICATES / "broker.key")
        with context.wrap_socket(client, server_side=True) as encrypted:
            number, _ = server.hear_packet(encrypted)
            log_in(server, encrypted, number)

    def log_in(server: FalseServer, client: socket.socket, number: int) -> None:
        for ask in asks:
            client.sendall(mysql_packet(number + 1, ask))
            number, _ = server.hear_packet(client)
        client.sendall(mysql_packet(number + 1, OK))
        while True:
            number, _ = server.hear_packet(client)
            client.sendall(mysql_packet(1, OK))

    return talk


def switch(plugin: bytes) -> bytes:
    return b"\xfe" + plugin + b"\x00" + SALT + b"\x00"


KEY = b"\x01-----BEGIN PUBLIC KEY-----\nof the false server\n-----END PUBLIC KEY-----\n"
ASKS = {
    "in clear": mysql(switch(b"mysql_clear_password")),
    "in clear, over TLS of anybody's": mysql(switch(b"mysql_clear_password"), tls=True),
    "by a dialog": mysql(b"\xfedialog\x00\x04Password: "),
    "sha256, over TLS of anybody's": mysql(switch(b"sha256_password"), tls=True),
    "sha256 in the greeting, over TLS of anybody's": mysql(plugin=b"sha256_password", tls=True),
    "sha256 in the greeting": mysql(KEY, plugin=b"sha256_password"),
    "sha256, with a key of its own": mysql(switch(b"sha256_password"), KEY),
    "caching_sha2, over TLS of anybody's": mysql(switch(b"caching_sha2_password"), b"\x01\x04", tls=True),
    "caching_sha2, with a key of its own": mysql(switch(b"caching_sha2_password"), b"\x01\x04", KEY),
    "caching_sha2 in the greeting": mysql(b"\x01\x04", KEY, plugin=b"caching_sha2_password"),
    "the way of before MySQL 4.1": mysql(switch(b"mysql_old_password")),
    "a way that no one knows": mysql(switch(b"what_is_this")),
}


@pytest.mark.parametrize("way", ASKS)
def test_a_false_mysql_gets_no_password(way: str) -> None:
    with FalseServer(ASKS[way]) as server:
        with suppress(pymysql.MySQLError):
            BoundedPymysql(host="127.0.0.1", port=server.port, user="u", password=PASSWORD, connect_timeout=5)
        assert PASSWORD.encode() not in server.heard
        assert not any(len(part) == 256 for part in server.heard.split(b"\x00\x01\x00"))  # nothing encrypted by RSA


@pytest.mark.parametrize("way", ["in clear", "by a dialog", "caching_sha2, with a key of its own"])
@pytest.mark.parametrize("make", [MariaResource, DecidingDatabase])
def test_the_refusal_says_why(way: str, make: Callable[..., MariaResource | DecidingDatabase]) -> None:
    with FalseServer(ASKS[way]) as server:
        url = f"mysql+pymysql://u:{PASSWORD}@127.0.0.1:{server.port}/d"
        with pytest.raises(XaError, match="xa_plain_without_tls") as raised:
            make(ScriptedRegistrar()).open(url, RMID)
        assert raised.value.code is Code.XAER_RMERR
        assert "nothing has shown who it is" in raised.value.message
        checks = make(ScriptedRegistrar()).diagnose(url).checks
        assert any("xa_plain_without_tls" in check.found for check in checks)
        assert PASSWORD.encode() not in server.heard


@pytest.mark.parametrize("make", [MariaResource, DecidingDatabase])
def test_the_open_string_may_allow_it(make: Callable[..., MariaResource | DecidingDatabase]) -> None:
    with FalseServer(ASKS["in clear"]) as server:
        url = f"mysql+pymysql://u:{PASSWORD}@127.0.0.1:{server.port}/d?xa_plain_without_tls=true"
        with suppress(XaError):
            make(ScriptedRegistrar()).open(url, RMID)
        assert PASSWORD.encode() in server.heard


@pytest.mark.parametrize(
    ("settings", "sees"),
    [
        ({"ca": str(CERTIFICATES / "ca.pem")}, True),
        ({"ca": str(CERTIFICATES / "ca.pem"), "check_hostname": False}, False),
        ({"ca": str(CERTIFICATES / "ca.pem"), "verify_mode": False, "check_hostname": False}, False),
    ],
)
def test_a_mysql_that_was_verified_may_see_it(settings: dict[str, object], sees: bool) -> None:
    with FalseServer(mysql(switch(b"mysql_clear_password"), tls=True)) as server:
        with suppress(pymysql.MySQLError):
            BoundedPymysql(
                host="localhost", port=server.port, user="u", password=PASSWORD, ssl=settings, connect_timeout=5
            ).close()
        assert (PASSWORD.encode() in server.heard) is sees


def test_tls_that_was_asked_for_is_not_given_up() -> None:
    with FalseServer(mysql()) as server:
        ca = str(CERTIFICATES / "ca.pem")
        with pytest.raises(XaError, match="SSL is required") as raised:
            MariaResource().open(f"mariadb://u:{PASSWORD}@127.0.0.1:{server.port}/d?ssl_ca={ca}", RMID)
        assert raised.value.code is Code.XAER_RMERR
        assert b"u\x00" not in server.heard


def test_a_file_is_never_sent(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of this machine")

    def talk(server: FalseServer, client: socket.socket) -> None:
        client.sendall(greeting(CAPABILITIES | 0x80, b"mysql_native_password"))
        number, _ = server.hear_packet(client)
        client.sendall(mysql_packet(number + 1, OK))
        while True:
            _, asked = server.hear_packet(client)
            client.sendall(mysql_packet(1, OK if asked.startswith(b"\x03SET") else b"\xfb" + str(secret).encode()))

    with FalseServer(talk) as server:
        url = f"mysql+pymysql://u:x@127.0.0.1:{server.port}/d"
        with pytest.raises(ResourceUnavailable, match=r"understood|gets none"):
            MariaResource().open(url, RMID)
        with pytest.raises(XaError, match="gets none"):
            DecidingDatabase().open(url, RMID)
        assert b"of this machine" not in server.heard
    for make in (MariaResource, DecidingDatabase):
        with pytest.raises(XaError, match="local_infile can't be set") as raised:
            make().open("mysql+pymysql://u:x@127.0.0.1:1/d?local_infile=1", RMID)
        assert raised.value.code is Code.XAER_INVAL


# --- PostgreSQL -------------------------------------------------------------------------------------------------------
def postgres(server: FalseServer, client: socket.socket) -> None:
    """Wants the password as it is."""
    while True:
        length = int.from_bytes(server.hear(client, 4))
        (code,) = struct.unpack(">I", server.hear(client, length - 4)[:4])
        if code == 196_608:
            break
        client.sendall(b"N")  # no TLS, no GSSAPI
    client.sendall(b"R" + struct.pack(">II", 8, 3))
    server.hear(client, 5 + len(PASSWORD))


def test_a_false_postgres_gets_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGREQUIREAUTH", raising=False)
    with FalseServer(postgres) as server:
        url = f"postgresql://u:{PASSWORD}@127.0.0.1:{server.port}/d"
        for make in (PostgresResource, DecidingDatabase):
            with pytest.raises(XaError, match="require_auth=password") as raised:
                make(ScriptedRegistrar()).open(url, RMID)
            assert raised.value.code is Code.XAER_RMERR
        with pytest.raises(psycopg.OperationalError, match="nothing has shown who it is"):
            BoundedConnection.connect(url)
        assert PASSWORD.encode() not in server.heard


@pytest.mark.parametrize("setting", ["xa_plain_without_tls=true", "require_auth=password"])
def test_a_postgres_may_be_allowed_to_see_it(setting: str) -> None:
    with FalseServer(postgres) as server:
        url = f"postgresql://u:{PASSWORD}@127.0.0.1:{server.port}/d?{setting}"
        with pytest.raises(XaError):
            PostgresResource().open(url, RMID)
        assert PASSWORD.encode() in server.heard


@pytest.mark.parametrize(
    ("settings", "environment", "is_guarded"),
    [
        ({"host": "db"}, {}, True),
        ({"host": "db", "sslmode": "require"}, {}, True),
        ({"host": "db", "sslmode": "verify-ca"}, {}, True),
        ({"host": "db", "sslmode": "verify-full"}, {}, False),
        ({"host": "db"}, {"PGSSLMODE": "verify-full"}, False),
        ({"host": "db"}, {"PGREQUIREAUTH": "password"}, False),
        ({"host": "db", "require_auth": "password"}, {}, False),
        ({"host": "/var/run/postgresql"}, {}, False),
        ({"host": "/var/run/postgresql,db"}, {}, True),
        ({"host": "/var/run/postgresql", "hostaddr": "127.0.0.1"}, {}, True),
        ({}, {}, False),
        ({}, {"PGHOST": "db"}, True),
    ],
)
def test_who_may_see_a_password_of_postgres(
    settings: dict[str, str], environment: dict[str, str], is_guarded: bool
) -> None:
    assert (guarded(settings, environment).get("require_auth") == NOT_IN_CLEAR) is is_guarded
