"""The checks of `xabridge doctor` for a broker that speaks OpenWire: whether it can be reached and used, and what its
faults ask of its operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rm_openwire.connection import Connector
from rm_openwire.errors import ConnectionLost, Refused
from rm_openwire.settings import parse
from rm_openwire.wire import DataArrayResponse, TransactionInfo, TransactionKind
from xa import XaError
from xa.diagnosis import Check, Diagnosis, Health, not_opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rm_openwire.connection import Connection
    from rm_openwire.settings import Settings

ARTEMIS_TIMEOUT_S: Final = 300
"""Artemis' transaction-timeout, where its configuration says nothing else."""
MAX_LISTED: Final = 32_767
"""The most branches that an answer to RECOVER can list."""

_ADVICE: Final = "follow the message: credentials or permissions"


def diagnose(open_string: str) -> Diagnosis:
    """The checks of a broker."""
    try:
        settings = parse(open_string)
        connection = Connector(settings).connect()
    except XaError as error:
        return not_opened(error, "usable", _ADVICE, server="broker")
    try:
        return Diagnosis(tuple(_checks(connection, settings)))
    finally:
        connection.close()


def _checks(connection: Connection, settings: Settings) -> Iterator[Check]:
    classic = connection.endpoint.is_classic
    kind = "ActiveMQ Classic" if classic else "ActiveMQ Artemis"
    who = f"as {settings.user}" if settings.user else "without a name"
    version = connection.endpoint.version
    yield Check(Health.OK, "usable", f"{kind} at {connection.address}, OpenWire {version}, {who}")
    yield _in_doubt(connection)
    if settings.password and not settings.tls:
        advice = "use openwire+ssl://, and remove plain_without_tls"
        yield Check(Health.WARN, "encryption", "the password is sent as it is, without TLS", advice)

    if not classic:
        found = f"work is refused {settings.branch_timeout_s:g} s after its branch began"
        yield _queues(settings)
        if settings.branch_timeout_s >= ARTEMIS_TIMEOUT_S:
            advice = (
                f"set branch_timeout below transaction-timeout in broker.xml ({ARTEMIS_TIMEOUT_S} s unless it says "
                "otherwise): what is sent to a branch that Artemis has rolled back is sent outside of it"
            )
            yield Check(Health.WARN, "branch timeout", found, advice)
        else:
            yield Check(Health.OK, "branch timeout", found)


def _queues(settings: Settings) -> Check:
    if settings.queues_stay:
        return Check(Health.OK, "queues", "queues_stay says that the broker deletes none by itself")
    found = "Artemis may delete an empty queue while a prepared branch has messages for it, and lose them"
    advice = (
        "set auto-delete-queues to false in broker.xml, which can't be seen from here, and queues_stay=true in the URL"
    )
    return Check(Health.WARN, "queues", found, advice)


def _in_doubt(connection: Connection) -> Check:
    asked = TransactionInfo(connection_id=connection.connection_id, kind=TransactionKind.RECOVER.value)
    try:
        answer = connection.ask(asked)
    except (ConnectionLost, Refused) as failure:
        advice = "look into the broker's log, and at what the user may do"
        return Check(Health.FAIL, "recovery", f"its branches in doubt can't be listed: {failure}", advice)
    count = len(answer.data or ()) if isinstance(answer, DataArrayResponse) else 0
    found = f"{count} {'branch' if count == 1 else 'branches'} in doubt, of all who use it"
    if count > MAX_LISTED // 2:
        return Check(Health.WARN, "recovery", found, f"resolve them: it can't list more than {MAX_LISTED}")
    return Check(Health.OK, "recovery", found)
