"""The checks of `xabridge doctor` of the table `[outbox]`: its broker can be reached, its database has the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tm.resources import ConfigurationError
from xa import XaError
from xa.configuration import read_file
from xa.diagnosis import Check, Health
from xa.open_string import shown
from xa.secrets import masked
from xa.telemetry.conditions import BEHIND_S, OUTBOX_BEHIND, OUTBOX_SET_ASIDE
from xabridge.operations.diagnosis import SubjectCheck
from xabridge.text import age, several

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xa.telemetry.conditions import Condition
    from xabridge.outbox.config import OutboxConfig

SUBJECT: Final = "outbox"


def examine_outbox(path: str) -> Iterator[SubjectCheck]:
    """What a relay needs; nothing where the file has no such table. It changes nothing."""
    if SUBJECT not in read_file(path).content:
        return
    try:
        from xabridge.outbox.config import OutboxConfig  # noqa: PLC0415 — loads SQLAlchemy

        config = OutboxConfig.read(path)
    except ConfigurationError as error:
        yield SubjectCheck(SUBJECT, Check(Health.FAIL, "configuration", str(error), "correct [outbox]"))
        return
    yield SubjectCheck(SUBJECT, _broker(config))
    yield _database(config)


def _broker(config: OutboxConfig) -> Check:
    from xabridge.outbox.publisher import BrokerAway  # noqa: PLC0415 — as above
    from xabridge.outbox.relay import publisher_for  # noqa: PLC0415

    if config.broker is None:
        return Check(Health.WARN, "broker", "none is named", "outbox.broker, or xabridge outbox relay --broker")
    try:
        publisher = publisher_for(config.broker)
    except (ConfigurationError, XaError, ValueError) as error:
        return Check(Health.FAIL, "broker", masked(str(error)), "correct outbox.broker")

    try:
        publisher.open()
    except BrokerAway as error:
        advice = "start it, or make it reachable from this machine; messages wait in the outbox meanwhile"
        return Check(Health.FAIL, "broker", str(error), advice)
    finally:
        publisher.close()
    return Check(Health.OK, "broker", f"{shown(config.broker)}: the relay can log in")


def _database(config: OutboxConfig) -> SubjectCheck:
    from sqlalchemy import inspect  # noqa: PLC0415 — as above
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415

    from xabridge.outbox.store import OutboxStore  # noqa: PLC0415
    from xabridge.outbox.tables import Tables, TablesError  # noqa: PLC0415

    def checked(health: Health, found: str, advice: str = "", condition: Condition | None = None) -> SubjectCheck:
        return SubjectCheck(SUBJECT, Check(health, "database", found, advice), condition)

    if config.database is None:
        return checked(Health.WARN, "none is named", "outbox.database, or xabridge outbox relay --database")
    try:
        store = OutboxStore.at(config.database, Tables(schema=config.schema))
    except (ConfigurationError, XaError, ValueError) as error:
        return checked(Health.FAIL, masked(str(error)), "correct outbox.database")

    try:
        if not inspect(store.engine).has_table(store.tables.outbox.name, schema=config.schema):
            advice = "the relay makes it, if it may; or: xabridge outbox create"
            return checked(Health.WARN, f"{shown(config.database)}: there is no outbox yet", advice)
        figures = store.figures()
    except TablesError as error:
        return checked(Health.FAIL, str(error), "follow the message")
    except (SQLAlchemyError, XaError) as error:
        said = str(getattr(error, "orig", None) or error).splitlines()[0]
        return checked(Health.FAIL, masked(said), "make it reachable from this machine: outbox.database")
    finally:
        store.close()
    oldest = f", the oldest for {age(figures.oldest_s)}" if figures.waiting else ""
    found = f"{shown(config.database)}: {several(figures.waiting, 'message')} waiting{oldest}"
    if figures.refused:
        advice = "xabridge outbox list --refused"
        return checked(Health.WARN, f"{found}; {figures.refused} set aside", advice, OUTBOX_SET_ASIDE)
    if figures.waiting and (figures.oldest_s or 0.0) > BEHIND_S:
        return checked(Health.WARN, found, "start the relay: xabridge outbox relay", OUTBOX_BEHIND)
    return checked(Health.OK, found)
