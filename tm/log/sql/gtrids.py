"""The gtrids of a node in a SqlLog. Each change is one statement, which compares state and epoch, and sets both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import LargeBinary, Select, bindparam, cast, delete, literal, or_, select, text, update
from sqlalchemy.exc import SQLAlchemyError

from tm.log.contract import Decision, DecisionRefused
from tm.log.records import decode_decision
from tm.log.sql.database import octets, values_of
from tm.log.sql.states import GtridState, GtridVerb, sources, target
from tm.log.sql.tables import GTRIDS, NODE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from sqlalchemy import ColumnElement, Connection, Executable

    from tm.log.sql.database import Database

LONGEST_GTRID: Final = 64

_COLUMNS: Final = (GTRIDS.c.gtrid, GTRIDS.c.state, GTRIDS.c.epoch, GTRIDS.c.record)
_ENTRY: Final = select(*_COLUMNS).where(GTRIDS.c.gtrid == bindparam("gtrid"))
_HOLDER: Final = select(NODE.c.epoch, NODE.c.holder).where(NODE.c.node == bindparam("node"))
_DECISIONS: Final = (
    select(GTRIDS.c.gtrid, GTRIDS.c.record)
    .where(GTRIDS.c.node == bindparam("node"), GTRIDS.c.state == GtridState.COMMITTED.value)
    .order_by(GTRIDS.c.changed_at, GTRIDS.c.gtrid)
)
_STORED: Final = [state.value for state in GtridState if state is not GtridState.UNKNOWN]
_UNKNOWN: Final = (
    select(GTRIDS.c.gtrid, GTRIDS.c.state)
    .where(GTRIDS.c.node == bindparam("node"), GTRIDS.c.state.not_in(_STORED))
    .limit(1)
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A gtrid in the log. `decision`: of one that is committed or done."""

    gtrid: bytes
    state: GtridState
    incarnation: int
    decision: Decision | None


class NodeTakenOver(DecisionRefused):
    """The node is in another epoch: another process has it."""


class GtridTable:
    """The rows of `node`, as seen and changed under `epoch`. Errors are SQLAlchemy's, and those that a method names.
    Every change may be made again."""

    def __init__(self, database: Database, node: str, epoch: int) -> None:
        self._database = database
        self._node = node
        self._epoch = epoch
        self._changes = {verb: self._change(verb) for verb in (GtridVerb.BEGIN, GtridVerb.DECIDE, GtridVerb.ABORT)}

    def begin(self, gtrid: bytes) -> None:
        """Makes `gtrid` active. DecisionRefused: it was known, unless it is active under this epoch already."""
        if self._moved(GtridVerb.BEGIN, gtrid, None):
            return
        entry = self._current(gtrid)
        if entry is None or entry.state is not GtridState.ACTIVE or entry.incarnation != self._epoch:
            raise DecisionRefused(
                f"{gtrid.hex()} can't begin: it is {entry.state.value if entry else 'not in the log any more'}"
            )

    def decide(self, gtrid: bytes, record: bytes) -> None:
        """Commits `gtrid` with `record`. DecisionRefused: it was settled otherwise before."""
        if not self._moved(GtridVerb.DECIDE, gtrid, record):
            self._check_decided(gtrid, record)

    def decide_with(self, gtrid: bytes, record: bytes, beside: Callable[[Any], None]) -> None:
        """The same, in one transaction with what `beside` writes on the driver's connection. It is not called where
        `gtrid` is committed already."""
        if not self._moved_with(gtrid, record, beside):
            self._check_decided(gtrid, record)

    def _check_decided(self, gtrid: bytes, record: bytes) -> None:
        """Why a decision had no effect: it was made before, or DecisionRefused."""
        with self._database.engine.connect() as connection:
            row = connection.execute(_ENTRY, {"gtrid": gtrid}).one_or_none()
        if row is not None and row.record == record:
            return
        entry = self._current(gtrid)
        state = entry.state if entry is not None else GtridState.UNKNOWN
        if state is GtridState.ABORTED:
            raise DecisionRefused(f"{gtrid.hex()} can't be decided: it was aborted, because its outcome was presumed")
        raise DecisionRefused(f"{gtrid.hex()} can't be decided: it is {state.value}, with other branches")

    def abort(self, gtrid: bytes) -> GtridState:
        """Makes sure that `gtrid` is not decided any more, unless it is: the state that holds from now on."""
        while not self._moved(GtridVerb.ABORT, gtrid, None):
            entry = self._current(gtrid)
            if entry is not None:  # else it was purged meanwhile
                return entry.state
        return GtridState.ABORTED

    def end(self, gtrids: Collection[bytes], beside: Executable | None = None) -> None:
        """Makes those of `gtrids` done that are committed, and carries out `beside` in the same transaction."""
        statement = (
            update(GTRIDS)
            .where(GTRIDS.c.node == self._node, GTRIDS.c.gtrid.in_(gtrids), _stands(sources(GtridVerb.END)))
            .values(state=target(GtridVerb.END), changed_at=self._database.now())
        )
        with self._database.writing(), self._database.engine.connect() as connection:
            if beside is None:
                connection.execute(statement)
                return
            connection.execute(text("BEGIN IMMEDIATE" if self._database.is_sqlite else "BEGIN"))

            try:
                connection.execute(statement)
                connection.execute(beside)
                connection.execute(text("COMMIT"))
            except BaseException:
                _roll_back(connection)
                raise

    def purge(self, older_than_s: float, below: bytes | None, count: int, keep: Collection[bytes] = ()) -> int:
        """Removes at most `count` gtrids that are done, or aborted under an earlier epoch, so that nothing of
        them can be on its way: those that got there `older_than_s` ago, are less than `below`, and not in `keep`."""
        condition = [
            GTRIDS.c.node == self._node,
            or_(GTRIDS.c.state == GtridState.DONE.value, GTRIDS.c.epoch < self._epoch),
            _stands(sources(GtridVerb.PURGE)),
            GTRIDS.c.changed_at <= self._database.now() - older_than_s,
        ]
        if below is not None:
            condition.append(GTRIDS.c.gtrid < below)
        if keep:
            condition.append(GTRIDS.c.gtrid.not_in(keep))
        some = select(GTRIDS.c.gtrid).where(*condition).limit(count).scalar_subquery()
        with self._database.writing(), self._database.engine.connect() as connection:
            return connection.execute(delete(GTRIDS).where(GTRIDS.c.gtrid.in_(some))).rowcount

    def entry(self, gtrid: bytes) -> Entry | None:
        """The row of `gtrid`."""
        with self._database.engine.connect() as connection:
            row = connection.execute(_ENTRY, {"gtrid": gtrid}).one_or_none()
        with values_of(self._database):
            return None if row is None else _entry(row)

    def entries(self, prefix: bytes, states: Collection[GtridState], after: bytes, count: int) -> Sequence[Entry]:
        """At most `count` gtrids of the node that begin with `prefix`, behind `after`, in their order."""
        statement = self._of_node(states).where(GTRIDS.c.gtrid > after).order_by(GTRIDS.c.gtrid).limit(count)
        if prefix:
            end = prefix + b"\xff" * (LONGEST_GTRID + 1 - len(prefix))
            statement = statement.where(GTRIDS.c.gtrid >= prefix, GTRIDS.c.gtrid <= end)
        with self._database.engine.connect() as connection, values_of(self._database):
            return [_entry(row) for row in connection.execute(statement)]

    def decisions(self) -> Sequence[Decision]:
        """The decisions that have not ended, oldest first."""
        with self._database.engine.connect() as connection, values_of(self._database):
            return [_decision(row) for row in connection.execute(_DECISIONS, {"node": self._node})]

    def check_states(self) -> None:
        """LogDamaged for a state that no log wrote: its row would be in no list of decisions."""
        with self._database.engine.connect() as connection, values_of(self._database):
            for row in connection.execute(_UNKNOWN, {"node": self._node}):
                raise ValueError(f"state {row.state!r} of {octets(row.gtrid).hex()}")

    def check_epoch(self) -> None:
        """NodeTakenOver when the node is in another epoch than this one."""
        with self._database.engine.connect() as connection:
            row = connection.execute(_HOLDER, {"node": self._node}).one_or_none()
        if row is None:
            raise NodeTakenOver(f"node {self._node!r} was removed from {self._database}")
        if row.epoch != self._epoch:
            raise NodeTakenOver(
                f"node {self._node!r} was taken by {row.holder} as incarnation {row.epoch}, this one is {self._epoch}: "
                f"it decides nothing any more; stop it"
            )

    # --- statements -----------------------------------------------------------------------------------------
    def _change(self, verb: GtridVerb) -> Any:
        """INSERT … SELECT from the node's row, if it is in our epoch, and lock it against being taken meanwhile;
        ON CONFLICT, from the states in which the verb is legal, UPDATE."""
        source = (
            select(
                cast(bindparam("gtrid"), LargeBinary),
                NODE.c.node,
                NODE.c.epoch,
                literal(target(verb)),
                cast(bindparam("record"), LargeBinary),
                self._database.now(),
            )
            .where(NODE.c.node == self._node, NODE.c.epoch == self._epoch)
            .with_for_update(read=True)
        )
        names = ("gtrid", "node", "epoch", "state", "record", "changed_at")
        statement = self._database.insert(GTRIDS).from_select(names, source)
        if not sources(verb):
            return statement.on_conflict_do_nothing()

        return statement.on_conflict_do_update(
            index_elements=[GTRIDS.c.gtrid],
            set_={name: statement.excluded[name] for name in ("epoch", "state", "record", "changed_at")},
            where=_stands(sources(verb)),
        )

    def _moved(self, verb: GtridVerb, gtrid: bytes, record: bytes | None) -> bool:
        with self._database.writing(), self._database.engine.connect() as connection:
            changed = connection.execute(
                self._changes[verb], {"gtrid": gtrid, "record": record}, execution_options={"preserve_rowcount": True}
            )
        return changed.rowcount == 1

    def _moved_with(self, gtrid: bytes, record: bytes, beside: Callable[[Any], None]) -> bool:
        """The change to committed, and what `beside` does, in one transaction; whether there was the change. The row
        of the gtrid is changed first, so that no one aborts it or takes the node meanwhile, and what is committed
        already is not done again."""
        with self._database.writing(), self._database.engine.connect() as connection:
            connection.execute(text("BEGIN IMMEDIATE" if self._database.is_sqlite else "BEGIN"))
            try:
                changed = connection.execute(
                    self._changes[GtridVerb.DECIDE],
                    {"gtrid": gtrid, "record": record},
                    execution_options={"preserve_rowcount": True},
                )
                if changed.rowcount == 1:
                    beside(connection.connection.driver_connection)
                    connection.execute(text("SELECT 1"))  # refused where an error was swallowed: COMMIT would roll back
            except BaseException:
                _roll_back(connection)
                raise
            connection.execute(text("COMMIT"))  # the commit point

        return changed.rowcount == 1

    def _current(self, gtrid: bytes) -> Entry | None:
        """Why a change had no effect: the entry of `gtrid`, or NodeTakenOver."""
        self.check_epoch()
        return self.entry(gtrid)

    def _of_node(self, states: Collection[GtridState]) -> Select[Any]:
        return select(*_COLUMNS).where(GTRIDS.c.node == self._node, _stands([state.value for state in states]))


def _roll_back(connection: Connection) -> None:
    """Ends a transaction; a connection on which that fails is closed, which ends it too."""
    try:
        connection.execute(text("ROLLBACK"))
    except SQLAlchemyError:
        connection.invalidate()


def _stands(states: Collection[str]) -> ColumnElement[bool]:
    return or_(*(GTRIDS.c.state == state for state in states))


def _entry(row: Any) -> Entry:
    state = GtridState(row.state)
    decided = state is GtridState.COMMITTED or (state is GtridState.DONE and row.record is not None)
    return Entry(octets(row.gtrid), state, row.epoch, _decision(row) if decided else None)


def _decision(row: Any) -> Decision:
    """That of a committed or done gtrid; ValueError, TypeError for a record that is none, or another one's."""
    decision = decode_decision(octets(row.record))
    if decision.gtrid != octets(row.gtrid):
        raise ValueError(f"the record of {octets(row.gtrid).hex()} is that of {decision.gtrid.hex()}")
    return decision
