"""The checks of `xabridge doctor` for a PostgreSQL database: whether it can be reached and used, and what will stand in
the way.

It opens a connection of its own. It neither needs nor changes a resource manager that is open.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import psycopg

from rm_db.address import DECIDER_PREFIX, Address
from rm_db.postgres.database import MIN_VERSION, conninfo, unconnected
from xa import XaError
from xa.diagnosis import Check, Diagnosis, Health, clock_ahead_s, not_opened
from xa.sql.psycopg_connection import BoundedConnection
from xa.sql.statements import SECONDS_1970

if TYPE_CHECKING:
    from collections.abc import Iterator


FULL: Final = 0.8
"""From this share of max_prepared_transactions in use there is a warning."""

_SETTINGS: Final = """
SELECT current_setting('server_version_num')::int AS version, current_setting('max_prepared_transactions')::int AS most,
       pg_is_in_recovery() AS standby, current_setting('default_transaction_read_only') = 'on' AS read_only,
       current_setting('fsync') = 'on' AS fsync, current_user AS role, session_user AS login,
       current_database() AS database,
       (SELECT count(*) FROM pg_prepared_xacts) AS prepared,
       (SELECT count(*) FROM pg_prepared_xacts p
         WHERE p.database = current_database() AND NOT pg_has_role(current_user, p.owner, 'MEMBER')) AS of_others
"""
_CLOCK: Final = f"SELECT {SECONDS_1970['postgresql']}"


def diagnose_postgres(open_string: str, *, two_phase: bool) -> Diagnosis:
    """A PostgreSQL database; `two_phase` says whether branches are prepared there."""
    try:
        address = Address.parse(open_string.removeprefix(DECIDER_PREFIX))
        connection = BoundedConnection.connect(
            conninfo(address),
            reply_s=address.reply_s,
            plain_without_tls=address.plain_without_tls,
            autocommit=True,
            row_factory=psycopg.rows.namedtuple_row,
        )
    except XaError as error:
        return not_opened(error)
    except psycopg.Error as error:
        advice = "correct user, password or database in the URL, or pg_hba.conf"
        return not_opened(unconnected(str(error).strip()), "credentials", advice)

    try:
        with connection:
            facts: Any = connection.execute(_SETTINGS).fetchone()
            checks = (_reached(facts, connection.info), *_usable(facts, address, two_phase=two_phase))
            return Diagnosis(checks, clock_ahead_s(partial(_clock, connection)))
    except psycopg.Error as error:
        advice = "look into the server's log"
        return Diagnosis((Check(Health.FAIL, "reachable", f"it was lost while it was asked: {error}", advice),))


def _reached(facts: Any, info: psycopg.ConnectionInfo) -> Check:
    version = f"{facts.version // 10000}.{facts.version % 10000}"
    who = facts.role if facts.role == facts.login else f"{facts.login}, acting as {facts.role}"
    found = f"PostgreSQL {version} at {info.host}:{info.port}, database {facts.database}, as {who}"
    if facts.version < MIN_VERSION:
        return Check(Health.FAIL, "reachable", found, f"{MIN_VERSION // 10000} or newer is needed")
    return Check(Health.OK, "reachable", found)


def _usable(facts: Any, address: Address, *, two_phase: bool) -> Iterator[Check]:
    if facts.standby:
        yield Check(Health.FAIL, "writable", "the server is a standby and takes no writes", "name the primary")
    elif facts.read_only:
        advice = f"ALTER ROLE {facts.login} RESET default_transaction_read_only, or in ALTER DATABASE, postgresql.conf"
        yield Check(Health.FAIL, "writable", "default_transaction_read_only is on", advice)
    if not facts.fsync:
        advice = "turn it on: a crash of the server's machine loses what was prepared and decided"
        yield Check(Health.FAIL, "fsync", "fsync is off", advice)
    if two_phase:
        yield _prepared(facts, address)
        if facts.of_others:
            found = f"{facts.of_others} prepared transactions here belong to roles that {facts.role} is no member of"
            advice = "as one of those roles, COMMIT PREPARED or ROLLBACK PREPARED them: they block VACUUM"
            yield Check(Health.WARN, "others", found, advice)


def _prepared(facts: Any, address: Address) -> Check:
    subject = "max_prepared_transactions"
    enough = 2 * address.pool_size
    if facts.most == 0:
        advice = f'set it to at least {enough} (at work, and orphans) and restart PostgreSQL, or use mode = "decider"'
        return Check(Health.FAIL, subject, f"{subject} is 0", advice)
    found = f"{subject} is {facts.most}, {facts.prepared} in use"
    if facts.prepared >= FULL * facts.most:
        return Check(Health.WARN, subject, found, f"resolve what is in doubt, or set it to at least {enough}")
    if facts.most < address.pool_size:
        advice = f"set it to at least {enough}: transactions that may be at work (xa_pool_size): {address.pool_size}"
        return Check(Health.WARN, subject, found, advice)
    return Check(Health.OK, subject, found)


def _clock(connection: psycopg.Connection[Any]) -> float:
    return float(connection.execute(_CLOCK).fetchall()[0][0])
