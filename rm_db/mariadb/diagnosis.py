"""The checks of `xabridge doctor` for MariaDB and MySQL in two phases.

It opens a connection of its own. It neither needs nor changes a resource manager that is open.
"""

from __future__ import annotations

import socket
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pymysql

from rm_db.address import Address
from rm_db.mariadb.connection import failure_of
from rm_db.mariadb.database import arguments, unconnected
from rm_db.mariadb.server_facts import ASK_VARIABLES, ServerFacts
from xa import XaError
from xa.diagnosis import Check, Diagnosis, Health, clock_ahead_s, not_opened
from xa.sql.pymysql_connection import BoundedConnection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rm_db.mariadb.connection import Driver


PORT: Final = 3306
GREETING_S: Final = 3.0


def diagnose_mariadb(open_string: str) -> Diagnosis:
    """A database of MariaDB or MySQL in which branches are prepared."""
    try:
        address = Address.parse(open_string)
        settings = arguments(address)
    except XaError as error:
        return not_opened(error)
    silent = _is_silent(settings)
    if silent is not None:
        return Diagnosis((silent,))

    try:
        connection = BoundedConnection(**settings, reply_s=address.reply_s)
    except pymysql.MySQLError as error:
        advice = "correct user, password or database in the URL"
        return not_opened(unconnected(failure_of(error)), "credentials", advice)
    try:
        with connection:
            return Diagnosis(tuple(_checks(connection)), clock_ahead_s(partial(_clock, connection)))
    except pymysql.MySQLError as error:
        advice = "look into the server's log"
        return Diagnosis((Check(Health.FAIL, "reachable", f"it was lost while it was asked: {error}", advice),))


def _is_silent(settings: dict[str, Any]) -> Check | None:
    """The check that fails where a server takes the connection and waits for its client's first word, as PostgreSQL and
    AMQP brokers do. MariaDB and MySQL begin with a greeting."""
    host, port = settings.get("host"), settings.get("port")
    if not host or settings.get("unix_socket"):
        return None
    try:
        connected = socket.create_connection((host, port or PORT), GREETING_S)
    except OSError:
        return None  # the driver finds that, and says it

    with connected:
        try:
            connected.recv(1)
        except TimeoutError:
            found = f"{host}:{port or PORT} says nothing in {GREETING_S:g} s, and MariaDB and MySQL speak first"
            advice = "correct the address in the URL: a server of another kind listens there, or one that hangs"
            return Check(Health.FAIL, "reachable", found, advice)
        except OSError:
            return None
    return None


KEPT: Final = (
    "belongs to its session, and stays prepared when that ends, also by a kill; then any other can complete it"
)
"""What holds of a prepared branch where the server does not detach it."""


def _checks(connection: Driver) -> Iterator[Check]:
    facts = ServerFacts.of({row[0]: row[1] for row in _rows(connection, ASK_VARIABLES.decode("ascii"))})
    ((user, database),) = _rows(connection, "SELECT CURRENT_USER(), DATABASE()")
    named = "no database" if database is None else f"database {database}"
    where = f"{facts.name} at {connection.host}:{connection.port}, {named}, as {user}"
    yield Check(Health.OK, "reachable", where)
    for subject, found, advice in facts.obstacles():
        yield Check(Health.FAIL, subject, found, advice)
    yield _listing(connection, facts)
    for weakness, advice in facts.weaknesses():
        found = f"{weakness}: a crash of the server's machine loses what was prepared"
        yield Check(Health.FAIL, "durability", found, advice)


def _listing(connection: Driver, facts: ServerFacts) -> Check:
    try:
        prepared = len(_rows(connection, "XA RECOVER"))
    except pymysql.MySQLError as error:
        advice = "GRANT XA_RECOVER_ADMIN ON *.* to the user: prepared branches could not be found again"
        return Check(Health.FAIL, "XA RECOVER", str(failure_of(error)), advice)
    kept = "belongs to no session" if facts.detaches else KEPT
    found = "1 branch is prepared" if prepared == 1 else f"{prepared} branches are prepared"
    return Check(Health.OK, "XA RECOVER", f"{found} in the server; a prepared branch {kept}")


def _rows(connection: Driver, statement: str) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def _clock(connection: Driver) -> float:
    ((there,),) = _rows(connection, "SELECT UNIX_TIMESTAMP(SYSDATE(6))")
    return float(there)
