"""SqlLog: the decision log in a database, for containers without a disk and for more processes than one.

A process that opens the log takes the node under a new epoch (`tm.log.sql.node`), and loses it when another process
does the same. Further processes join by naming the epoch. Each change of a gtrid is one statement: it compares and sets
the state, on the condition that the node is still in this epoch (`tm.log.sql.gtrids`, `tm.log.sql.states`). The tables
are in `tm.log.sql.tables`.

When the connection is lost during a change, the same change is tried again for some seconds (`tm.log.sql.retry`): it
had its effect, or has it now, or is refused. When that can't be found out, the outcome is unknown: LogStopped. Before
the log answers anything again, it then aborts the gtrid: the abort has no effect if the gtrid was decided, and
otherwise makes it impossible that it ever is.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import delete, select
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tm.log.contract import (
    Branch,
    Decision,
    DecisionRefused,
    Heuristic,
    LogDamaged,
    LogError,
    LogFull,
    LogMissing,
    LogStopped,
)
from tm.log.incarnations import FIRST, INCARNATION, Incarnations, IncarnationState, IncarnationVerb, trusted, warning_of
from tm.log.inspection import LogImage
from tm.log.records import branch_key, decode_heuristic, encode_decision, encode_heuristic
from tm.log.sql import retry
from tm.log.sql.database import Database, looked_at, octets, values_of
from tm.log.sql.gtrids import Entry, GtridTable, NodeTakenOver
from tm.log.sql.incarnations import IncarnationTable
from tm.log.sql.node import join_node, read_node, renew_lease, take_node
from tm.log.sql.states import GtridState
from tm.log.sql.tables import HEURISTICS
from tm.throttle import WarningThrottle
from xa import check_node
from xa.fork import belongs_to_this_process
from xa.gtrid import INCARNATION_SIZE
from xa.machine import advance
from xa.sql.errors import ErrorKind, explained, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from sqlalchemy import Executable

T = TypeVar("T")

_LOGGER: Final = logging.getLogger(__name__)

LEASE_S: Final = 30.0
KEEP_S: Final = 3600.0
ENDS: Final = 64
"""So many ENDs wait in memory before they are written."""
PURGED: Final = 1000
"""So many rows are removed at once."""
PAGE: Final = 1000


class SqlLog:
    """A `DecisionLog` in the database at `url`, or in one that is open and prepared; what is said of gtrids beyond it
    is for pipelines, which begin and abort explicitly, from several processes.

    Opened by construction: LogLocked when another process has the node, LogError when the database can't hold a
    log. With `epoch` it joins the process that took the node in that; else it takes the node itself, with
    `take_over` at once, and holds it by a lease of `lease_s` that a thread renews. Gtrids that are done are
    removed after `keep_s`; None leaves them to `purge`. `clock` stands in for the database's own.
    """

    def __init__(
        self,
        url: str | Database,
        node: str,
        *,
        epoch: int | None = None,
        take_over: bool = False,
        lease_s: float = LEASE_S,
        keep_s: float | None = KEEP_S,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._node = check_node(node)
        self._lease_s = lease_s
        self._keep_s = keep_s
        self._sleep = sleep
        self._database = Database(url, clock) if isinstance(url, str) else url

        try:
            if isinstance(url, str):
                self._database.prepare()
            if epoch is None:
                self._database.check_pages()
                row = take_node(self._database, node, lease_s, take_over=take_over, sleep=sleep, entropy=entropy)
            else:
                row = join_node(self._database, node, epoch)
            self._known = IncarnationTable(self._database, node)
            self._incarnation = b""
            self._incarnations = Incarnations()
            if epoch is None:
                GtridTable(self._database, node, row.epoch).check_states()
                self._note_opening(row.epoch, entropy(INCARNATION_SIZE))
        except SQLAlchemyError as error:
            self._database.engine.dispose()
            raise _unusable(self._database, "opened", error) from None
        except BaseException:
            self._database.engine.dispose()
            raise

        self._log_id = row.log_id
        self._epoch = row.epoch
        self._gtrids = GtridTable(self._database, node, row.epoch)
        self._mutex = threading.Lock()
        self._unsettled: set[bytes] = set()
        self._ends: list[bytes] = []
        self._floor, self._floor_written = 0, FIRST
        self._stopped: str | None = None
        self._closing = threading.Event()
        self._keeper: threading.Thread | None = None
        self._entropy = entropy
        belongs_to_this_process(self)
        if epoch is None:
            self._keeper = threading.Thread(target=self._keep, name=f"xabridge-lease-{node}", daemon=True)
            self._keeper.start()

    @property
    def node(self) -> str:
        return self._node

    @property
    def log_id(self) -> bytes:
        return self._log_id

    @property
    def epoch(self) -> int:
        """How often the node was taken until this one did: what fences off those before."""
        return self._epoch

    @property
    def incarnation(self) -> bytes:
        # One that joined has none before it is first asked for it: it may never begin a transaction here. Errors are
        # those of `decide`.
        with self._mutex:
            if not self._incarnation:
                drawn = self._entropy(INCARNATION_SIZE)
                self._change("an incarnation", lambda: self._note(drawn, self._epoch))
                self._incarnation = drawn
                self._incarnations = self._read(self._known.read)
            return self._incarnation

    @property
    def incarnations(self) -> Incarnations:
        # Those of other processes that joined the node are not among them.
        known = self._incarnations
        own = {self._incarnation: self._floor} if self._incarnation else {}
        return replace(known, floors={**known.floors, **own})

    def trust(self, incarnation: bytes) -> None:
        standing = trusted(self._incarnations, incarnation)
        self._change("the word for a copy", lambda: self._known.stand(incarnation, standing))
        noted = {**self._incarnations.noted, incarnation: standing}
        self._incarnations = replace(self._incarnations, noted=noted)

    def held(self) -> bool:
        # Another process may have taken the node.
        try:
            self._read(self._gtrids.check_epoch)
        except LogError:
            return False
        return True

    def _note_opening(self, epoch: int, incarnation: bytes) -> None:
        """The three steps of `tm.log.sql.incarnations`."""
        before = self._known.read()
        self._known.succeed(epoch)
        self._note(incarnation, epoch)
        self._known.settle_place(epoch)
        self._incarnation, self._incarnations = incarnation, self._known.read()
        warning = warning_of(self._database, self._incarnations, before.noted)
        if warning is not None:
            _LOGGER.warning("%s", warning)

    def _note(self, incarnation: bytes, epoch: int) -> None:
        if not self._known.note(incarnation, epoch):
            row = read_node(self._database, self._node)
            raise NodeTakenOver(
                f"node {self._node!r} was taken by {row.holder if row else 'no one'} while it was opened"
            )

    def decide(self, decision: Decision) -> None:
        # DecisionRefused also when it was aborted, or another process took the node.
        record = encode_decision(decision)
        self._decide(decision.gtrid, lambda: self._gtrids.decide(decision.gtrid, record))

    def decide_with(self, decision: Decision, beside: Callable[[Any], None]) -> None:
        """Decides in one transaction with what `beside` writes on the driver's connection that it gets: the one is
        durable if and only if the other is. `beside` raises errors of the driver or its own, which undo both, and may
        be called again. Other errors are those of `decide`."""
        record = encode_decision(decision)
        refused: list[Exception] = []

        def write(connection: Any) -> None:
            try:
                beside(connection)
            except Exception as error:
                refused.append(error)
                raise

        self._decide(decision.gtrid, lambda: self._gtrids.decide_with(decision.gtrid, record, write), refused)

    def _decide(self, gtrid: bytes, action: Callable[[], None], harmless: Collection[Exception] = ()) -> None:
        """Carries out a decision. After one of the `harmless` errors it is known that it had no effect."""
        try:
            self._change("a decision", action)
        except LogStopped:
            self._remember(gtrid)
            raise
        except LogError:
            raise
        except BaseException as error:
            if not any(error is one for one in harmless):
                self._remember(gtrid)
            raise

    def end(self, gtrid: bytes) -> None:
        # Written when some have come together, and on closing.
        with self._mutex:
            self._ends.append(gtrid)
            full = len(self._ends) >= ENDS
        if full:
            self._write_ends()

    def note_floor(self, floor: int, incarnation: bytes = b"") -> None:
        # Written with the next ENDs, when the lease is renewed, and on closing; that of a former incarnation at once.
        if not incarnation:
            self._floor = max(self._floor, floor)
            return
        try:
            self._known.note_floor(incarnation, floor)
        except SQLAlchemyError as error:
            _LOGGER.info("the floor of incarnation %s could not be noted: %s", incarnation.hex(), error)
        else:
            with self._mutex:
                known = self._incarnations
                self._incarnations = replace(known, floors={**known.floors, incarnation: floor})

    def note_ceiling(self, ceiling: int) -> None:
        own = self.incarnation

        def noted() -> None:
            if not self._known.note_ceiling(own, ceiling, self._epoch):
                self._gtrids.check_epoch()
                raise DecisionRefused(f"incarnation {own.hex()} was removed from {self._database}")

        self._change("a ceiling", noted)
        with self._mutex:
            known = self._incarnations
            self._incarnations = replace(known, ceilings={**known.ceilings, own: ceiling})

    def note_heuristic(self, heuristic: Heuristic) -> None:
        record = encode_heuristic(heuristic)
        key = branch_key(heuristic.branch)
        insert = self._database.insert(HEURISTICS).values(
            node=self._node, branch=key, record=record, changed_at=self._database.now()
        )
        noting = insert.on_conflict_do_update(
            index_elements=[HEURISTICS.c.node, HEURISTICS.c.branch], set_={"record": insert.excluded.record}
        )
        self._change("a heuristic outcome", lambda: self._execute(noting))

    def drop_heuristic(self, branch: Branch) -> None:
        dropping = delete(HEURISTICS).where(HEURISTICS.c.node == self._node, HEURISTICS.c.branch == branch_key(branch))
        self._change("the end of a heuristic outcome", lambda: self._execute(dropping))

    def decision(self, gtrid: bytes) -> Decision | None:
        entry = self.entry(gtrid)
        with self._mutex:
            ended = gtrid in self._ends
        return entry.decision if entry is not None and entry.state is GtridState.COMMITTED and not ended else None

    def decisions(self) -> Sequence[Decision]:
        # LogStopped also when another process took the node: it resolves them now.
        self._settle()
        decisions = self._read(self._decisions)
        with self._mutex:
            ended = frozenset(self._ends)
        return [decision for decision in decisions if decision.gtrid not in ended]

    def heuristics(self) -> Sequence[Heuristic]:
        return self._read(lambda: read_heuristics(self._database, self._node))

    def close(self) -> None:
        # Ends the lease, so that the node can be taken at once.
        with self._mutex:
            if self._closing.is_set():
                return
            self._closing.set()
        if self._keeper is not None:
            self._keeper.join()
        self._write_ends()
        if self._keeper is not None:
            try:
                self._known.stand(self._incarnation, advance(INCARNATION, IncarnationState.OPEN, IncarnationVerb.CLOSE))
                renew_lease(self._database, self._node, self._epoch, 0.0)
            except SQLAlchemyError as error:
                _LOGGER.warning("the lease of node %s could not be ended: %s", self._node, error)
        self._stop(f"the decision log of node {self._node!r} was closed")
        self._database.engine.dispose()

    def forked(self) -> None:
        # Whatever the parent's threads were doing. The lease and the connections stay the parent's, too.
        self._mutex, self._closing = threading.Lock(), threading.Event()
        self._closing.set()
        self._ends, self._keeper = [], None
        self._stop("this process is a fork of the one that opened the log")

    # --- beyond DecisionLog: gtrids that are begun and aborted explicitly -----------------------------------
    def begin(self, gtrid: bytes) -> None:
        """Makes `gtrid` active. DecisionRefused: it is known already, or another process took the node."""
        self._change("a begin", lambda: self._gtrids.begin(gtrid))

    def abort(self, gtrid: bytes) -> GtridState:
        """The final word on `gtrid`: COMMITTED or DONE when it was decided; else ABORTED, and from now on it
        can't be decided any more. DecisionRefused: another process took the node."""
        return self._change("an abort", lambda: self._gtrids.abort(gtrid))

    def entry(self, gtrid: bytes) -> Entry | None:
        """The entry of `gtrid`; None if the log has none."""
        self._settle()
        return self._read(lambda: self._gtrids.entry(gtrid))

    def entries(
        self,
        prefix: bytes = b"",
        states: Collection[GtridState] = tuple(GtridState),
        after: bytes = b"",
        count: int = PAGE,
    ) -> Sequence[Entry]:
        """A page of the node's gtrids that begin with `prefix`, in their order, from behind `after`."""
        self._settle()
        return self._read(lambda: self._gtrids.entries(prefix, states, after, count))

    def purge(
        self,
        *,
        older_than_s: float = 0.0,
        below: bytes | None = None,
        keep: Collection[bytes] = (),
        count: int = PURGED,
    ) -> int:
        """Removes gtrids of which nothing is on its way any more: done, or aborted by an earlier incarnation,
        since `older_than_s`, less than `below`, and none of `keep`. How many there were, at most `count`."""
        return self._change("a purge", lambda: self._gtrids.purge(older_than_s, below, count, keep))

    def flush(self) -> None:
        """Writes the ENDs that wait in memory."""
        self._write_ends()

    # --- changes and what is unknown of them ----------------------------------------------------------------
    def _remember(self, gtrid: bytes) -> None:
        """Its decision was interrupted: it is settled before an answer is given."""
        with self._mutex:
            self._unsettled.add(gtrid)

    def _settle(self) -> None:
        """Finds out what became of the changes that were broken off. LogStopped: it can't be found out yet."""
        with self._mutex:
            unsettled = list(self._unsettled)
        for gtrid in unsettled:
            try:
                state = self.abort(gtrid).value
            except NodeTakenOver:
                state = "another process's to resolve"
            except (LogFull, DecisionRefused) as error:
                raise LogStopped(str(error)) from error
            _LOGGER.warning("%s: its decision was interrupted; it is %s", gtrid.hex(), state)
            with self._mutex:
                self._unsettled.discard(gtrid)

    def _decisions(self) -> Sequence[Decision]:
        decisions = self._gtrids.decisions()
        self._gtrids.check_epoch()  # after reading: no other process has added one, or resolved one, until here
        return decisions

    def _execute(self, statement: Executable) -> None:
        with self._database.writing(), self._database.engine.connect() as connection:
            connection.execute(statement)

    def _change(self, what: str, action: Callable[[], T]) -> T:
        self._check()
        return retry.change(action, f"{what} in {self._database}", self._sleep)

    def _read(self, action: Callable[[], T]) -> T:
        self._check()
        return retry.read(action, f"reading {self._database}", self._sleep)

    def _write_ends(self) -> None:
        """And the floor, if it was raised."""
        with self._mutex:
            ends, self._ends = self._ends, []
            floor = self._floor
            raised, self._floor_written = floor > self._floor_written, max(floor, self._floor_written)
        if not ends and not raised:
            return
        try:
            self._gtrids.end(ends, self._known.raising(self._incarnation, floor) if raised else None)
        except SQLAlchemyError as error:
            _LOGGER.warning("the end of %d decisions could not be noted: %s", len(ends), error)

    # --- the lease ------------------------------------------------------------------------------------------
    def _keep(self) -> None:
        """The thread that renews the lease, and cleans up while it is at it."""
        throttle = WarningThrottle(time.monotonic)
        while not self._closing.wait(self._lease_s / 3):
            try:
                if not self._renew():
                    _LOGGER.error("node %s was taken by another process; nothing is decided here any more", self._node)
                    return
                throttle.over("lease")
                self._write_ends()
                while self._keep_s is not None and self._gtrids.purge(self._keep_s, None, PURGED) == PURGED:
                    pass
            except SQLAlchemyError as error:
                lasted = throttle.due("lease")
                if lasted is not None:
                    text = "the lease of node %s could not be renewed%s, will try again: %s"
                    _LOGGER.warning(text, self._node, lasted, error)

    def _renew(self) -> bool:
        return renew_lease(self._database, self._node, self._epoch, self._lease_s)

    def _check(self) -> None:
        if self._stopped is not None:
            raise LogStopped(self._stopped)

    def _stop(self, reason: str) -> None:
        self._stopped = reason


def read_heuristics(database: Database, node: str) -> Sequence[Heuristic]:
    """The heuristic outcomes that were noted for `node`, oldest first."""
    statement = select(HEURISTICS.c.record).where(HEURISTICS.c.node == node).order_by(HEURISTICS.c.changed_at)
    with database.engine.connect() as connection, values_of(database):
        return [decode_heuristic(octets(record)) for record in connection.execute(statement).scalars()]


def read_sql_log(url: str, node: str) -> LogImage:
    """The log of `node` as it stands in its database; who holds it is not disturbed. LogMissing when there is none.
    LogError also where it could not be opened, because the database does not force what it commits."""
    with looked_at(url) as database:
        try:
            database.check_forces()
            return _image(database, node)
        except SQLAlchemyError as error:
            raise _unusable(database, "read", error) from None
        finally:
            database.engine.dispose()


def _image(database: Database, node: str) -> LogImage:
    database.check()
    row = read_node(database, node)
    if row is None:
        raise LogMissing(f"{database}: there is no decision log of node {node!r} here")

    database.check_pages()
    gtrids = GtridTable(database, node, row.epoch)
    gtrids.check_states()
    decisions = gtrids.decisions()
    return LogImage(
        node,
        row.log_id,
        row.epoch,
        IncarnationTable(database, node).read(),
        tuple(decisions),
        tuple(read_heuristics(database, node)),
        row.worked_at,
    )


def _unusable(database: Database, what: str, error: SQLAlchemyError) -> LogError:
    """A log that can't be opened or read."""
    if kind_of(error) is ErrorKind.DAMAGED:
        said = str(error.orig if isinstance(error, DBAPIError) else error).strip()
        return LogDamaged(f"{database}: the decision log is damaged: {said}. Restore the log from a copy")
    kind = LogStopped if retry.reaction_to(error) in retry.PASSING else LogError
    return kind(f"{database}: the decision log can't be {what}: {explained(error)}")
