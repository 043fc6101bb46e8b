"""Scheduler: runs functions at their times, exactly once over all processes and nodes of an application.

A row of the table `xabridge_schedules` holds, for each schedule, when it is due next. A process runs it in one
transaction: it moves the row on, if the row still says what it has read, and calls the function. So of several that
try, one finds the row unchanged; and if that one dies before its decision, neither the row has moved nor has the
function had any effect, and the next one tries. One run makes up for several times at which no process was there.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tm import ConfigurationError, ManagerUnusable, TransactionError
from xa import CarryingOutSql, XaError
from xa.format_version import lacks_version, version_refusal
from xabridge.app.typed_handler import Received

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tm import TransactionManager
    from xabridge.app.schedule import DeclaredSchedule

logger = logging.getLogger("xabridge.schedule")

CREATE: Final = (
    "CREATE TABLE IF NOT EXISTS xabridge_schedules "
    "(name varchar(200) PRIMARY KEY, told varchar(200) NOT NULL, due_ms bigint NOT NULL, version smallint NOT NULL)"
)
VERSION: Final = 2
"""Of the table, in each of its rows."""
_READ: Final = text("SELECT told, due_ms, version FROM xabridge_schedules WHERE name = :name")
_INSERT: Final = text(
    "INSERT INTO xabridge_schedules (name, told, due_ms, version) VALUES (:name, :times, :due_ms, :version)"
)
_MOVE: Final = text(
    "UPDATE xabridge_schedules SET told = :times, due_ms = :due_ms "
    "WHERE name = :name AND told = :old_times AND due_ms = :old_due_ms"
)
LOOK_S: Final = 30.0
"""How long it sleeps at most: another process may have changed a row."""
FIRST_S: Final = 1.0
MOST_S: Final = 60.0
"""The waits after a failure, the first one and the longest."""


class Scheduler:
    """What runs the schedules of one process, in a thread of its own."""

    def __init__(
        self,
        manager: TransactionManager[Any],
        schedules: Sequence[DeclaredSchedule[..., Any]],
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._manager = manager
        self._schedules = schedules
        self._now_s = now_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="xabridge-schedules", daemon=True)
        self._resources = {one.name: one.resource or self._only_database(one) for one in schedules}

    def _only_database(self, schedule: DeclaredSchedule[..., Any]) -> str:
        resources = self._manager.resources.items()
        found = [name for name, resource in resources if isinstance(resource.rm, CarryingOutSql)]
        if len(found) != 1:
            there = f"there are {', '.join(found)}" if found else "there is none"
            raise ConfigurationError(
                f'{schedule.name}: its times are kept in a database, and {there}: say which, resource="…"'
            )
        return found[0]

    # --- the thread -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, timeout_s: float = 30.0) -> None:
        """Finishes what runs, and starts nothing."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        """Each schedule waits for itself: one that fails keeps no other one from its times."""
        failures = dict.fromkeys(self._schedules, 0)
        due = dict.fromkeys(self._schedules, 0.0)
        while not self._stopping.is_set():
            for schedule in self._schedules:
                if due[schedule] <= time.monotonic() and not self._stopping.is_set():
                    wait_s = self._tried(schedule, failures)
                    due[schedule] = time.monotonic() + min(wait_s, LOOK_S)
            self._stopping.wait(max(min(due.values()) - time.monotonic(), 0.0))

    def _tried(self, schedule: DeclaredSchedule[..., Any], failures: dict[DeclaredSchedule[..., Any], int]) -> float:
        """Runs it if it is due; how long to wait until it is looked at again."""
        try:
            wait_s = self.run_if_due(schedule)
        except (Exception, asyncio.CancelledError) as error:
            failures[schedule] += 1
            wait_s = min(FIRST_S * 2.0 ** min(failures[schedule] - 1, 10), MOST_S)
            known = isinstance(error, TransactionError | XaError | ConfigurationError)
            reason = f"{type(error).__name__}: {error}"
            logger.warning(
                "%s: %s; tried again in %.0f s", schedule.name, reason, wait_s, exc_info=None if known else error
            )
            return wait_s
        failures[schedule] = 0
        return wait_s

    # --- one schedule -----------------------------------------------------------------------------------------

    def run_if_due(self, schedule: DeclaredSchedule[..., Any]) -> float:
        """Runs it if it is due and no other process does; returns the time until it is due next. What it fails with is
        raised: nothing has happened then."""
        times, due_ms = self._read(schedule)
        now_ms = int(self._now_s() * 1000)
        if times == schedule.times and due_ms > now_ms:
            return (due_ms - now_ms) / 1000

        next_ms = self._next_ms(schedule)
        row = {"name": schedule.name, "times": schedule.times, "due_ms": next_ms}
        row |= {"old_times": times, "old_due_ms": due_ms}
        changed = times != schedule.times  # the application has other times now: the old one does not count
        due = datetime.fromtimestamp(due_ms / 1000, UTC)
        if schedule.handler.is_async:
            asyncio.run(self._amove_and_call(schedule, row, None if changed else due))
        else:
            self._move_and_call(schedule, row, None if changed else due)
        return (next_ms - now_ms) / 1000

    def _next_ms(self, schedule: DeclaredSchedule[..., Any]) -> int:
        return int(schedule.after(datetime.fromtimestamp(self._now_s(), UTC)).timestamp() * 1000)

    def _move_and_call(self, schedule: DeclaredSchedule[..., Any], row: dict[str, Any], due: datetime | None) -> None:
        with self._manager.begin() as tx:
            if tx[self._resources[schedule.name]].execute(_MOVE, row).rowcount != 1:
                tx.rollback()  # somebody else has it
            elif due is not None:
                schedule.handler(Received(None, due), tx)  # type: ignore[arg-type]  # it needs no message

    async def _amove_and_call(
        self, schedule: DeclaredSchedule[..., Any], row: dict[str, Any], due: datetime | None
    ) -> None:
        async with self._manager.begin() as tx:
            connection = await tx.aenlist(self._resources[schedule.name])
            if (await asyncio.to_thread(connection.execute, _MOVE, row)).rowcount != 1:
                await tx.arollback()
            elif due is not None:
                await schedule.handler(Received(None, due), tx)  # type: ignore[arg-type]  # as above

    def _read(self, schedule: DeclaredSchedule[..., Any]) -> tuple[str, int]:
        """Its row, which is made if there is none."""
        found = self._row(schedule)
        if found is None:
            row = {
                "name": schedule.name,
                "times": schedule.times,
                "due_ms": self._next_ms(schedule),
                "version": VERSION,
            }
            with suppress(SQLAlchemyError, TransactionError), self._manager.begin() as tx:  # somebody may be quicker
                tx[self._resources[schedule.name]].execute(_INSERT, row)
            found = self._row(schedule)
        if found is None:
            raise ManagerUnusable(f"{schedule.name}: its row in xabridge_schedules can't be made")
        return found

    def _row(self, schedule: DeclaredSchedule[..., Any]) -> tuple[str, int] | None:
        resource = self._resources[schedule.name]
        tx = self._manager.begin()
        try:
            row = tx[resource].execute(_READ, {"name": schedule.name}).one_or_none()
        except SQLAlchemyError as error:
            tx.rollback()
            if isinstance(error, DBAPIError) and lacks_version(error.orig):
                raise _other_version(resource, None) from error
            self._create(resource, error)
            return None
        finally:
            if not tx.is_over:
                tx.rollback()

        if row is None:
            return None
        if row[2] != VERSION:
            raise _other_version(resource, row[2])
        return str(row[0]), int(row[1])

    def _create(self, resource: str, why: SQLAlchemyError) -> None:
        """Makes the table. Where that is refused, a person has to."""
        try:
            with self._manager.begin() as tx:
                tx[resource].execute(text(CREATE))
        except (SQLAlchemyError, TransactionError, XaError) as error:
            raise ConfigurationError(
                f"{resource} has no table xabridge_schedules, or it can't be read ({why}), and it can't be made here "
                f"({error}). Make it: {CREATE}"
            ) from error


def _other_version(resource: str, found: int | None) -> ConfigurationError:
    return ConfigurationError(str(version_refusal(f"{resource}: the table xabridge_schedules", found, VERSION)))
