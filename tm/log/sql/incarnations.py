"""The incarnations of a node in a SqlLog (`tm.log.incarnations`).

A process that has taken a node, under a new epoch:

1. Settles what is open from earlier epochs: no decision is made under those any more. Where the database is not the one
   that it was when the node was taken last, it is a copy, and they are cut.
2. Notes its own incarnation.
3. Notes which database this is. If it dies before that, the next one does the same again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, LargeBinary, String, cast, delete, exists, literal, select, update

from tm.log.incarnations import FIRST, INCARNATION, MOST, Incarnations, IncarnationState, IncarnationVerb
from tm.log.sql.database import octets, values_of
from tm.log.sql.tables import INCARNATIONS, NODE, PLACE
from xa.machine import advance

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Executable, Update

    from tm.log.sql.database import Database


class IncarnationTable:
    """The rows of `node`. Errors are those of SQLAlchemy. Every change may be made again."""

    def __init__(self, database: Database, node: str) -> None:
        self._database = database
        self._node = node

    def read(self) -> Incarnations:
        """The known incarnations."""
        statement = (
            select(INCARNATIONS.c.incarnation, INCARNATIONS.c.standing, INCARNATIONS.c.floor, INCARNATIONS.c.ceiling)
            .where(INCARNATIONS.c.node == self._node)
            .order_by(INCARNATIONS.c.epoch)
        )
        with self._database.engine.connect() as connection, values_of(self._database):
            rows = connection.execute(statement).all()
            noted = {octets(row.incarnation): IncarnationState(row.standing) for row in rows}
            floors = {octets(row.incarnation): int(row.floor) for row in rows}
            ceilings = {octets(row.incarnation): int(row.ceiling) for row in rows}
        return Incarnations(noted, floors, ceilings)

    def succeed(self, epoch: int) -> None:
        """Step 1."""
        place = self._database.place()
        before = select(PLACE.c.place).where(PLACE.c.node == self._node)
        with self._database.engine.connect() as connection:
            known = connection.execute(before).scalar()
        copied = bool(known and place and known != place)
        verb = IncarnationVerb.COPY if copied else IncarnationVerb.SUCCEED
        earlier = INCARNATIONS.c.standing == IncarnationState.OPEN.value, INCARNATIONS.c.epoch < epoch
        self._execute(
            update(INCARNATIONS)
            .where(INCARNATIONS.c.node == self._node, *earlier)
            .values(standing=advance(INCARNATION, IncarnationState.OPEN, verb).value)
        )

        newest = (
            select(INCARNATIONS.c.incarnation)
            .where(INCARNATIONS.c.node == self._node)
            .order_by(INCARNATIONS.c.epoch.desc())
            .limit(MOST - 1)
            .scalar_subquery()
        )
        self._execute(
            delete(INCARNATIONS).where(INCARNATIONS.c.node == self._node, INCARNATIONS.c.incarnation.not_in(newest))
        )

    def note(self, incarnation: bytes, epoch: int) -> bool:
        """Step 2; False when the node is in another epoch by now."""
        first = _text(IncarnationState.OPEN.value), _number(0), _number(FIRST)
        source = select(NODE.c.node, _octets(incarnation), NODE.c.epoch, *first).where(
            NODE.c.node == self._node, NODE.c.epoch == epoch
        )
        names = ["node", "incarnation", "epoch", "standing", "floor", "ceiling"]
        noting = self._database.insert(INCARNATIONS).from_select(names, source)
        self._execute(noting.on_conflict_do_nothing())
        return incarnation in self.read().noted

    def settle_place(self, epoch: int) -> None:
        """Step 3. If the database does not answer, the known state stays."""
        place = self._database.place()
        source = select(NODE.c.node, _text(place)).where(NODE.c.node == self._node, NODE.c.epoch == epoch)
        noting = self._database.insert(PLACE).from_select(["node", "place"], source)
        key = [PLACE.c.node]
        self._execute(
            noting.on_conflict_do_update(index_elements=key, set_={"place": noting.excluded.place})
            if place
            else noting.on_conflict_do_nothing(index_elements=key)
        )

    def stand(self, incarnation: bytes, standing: IncarnationState) -> None:
        """What is known of one from now on."""
        self._execute(
            update(INCARNATIONS)
            .where(INCARNATIONS.c.node == self._node, INCARNATIONS.c.incarnation == incarnation)
            .values(standing=standing.value)
        )

    def note_ceiling(self, incarnation: bytes, ceiling: int, epoch: int) -> bool:
        """False when the node is in another epoch by now."""
        held = exists().where(NODE.c.node == self._node, NODE.c.epoch == epoch)
        noting = (
            update(INCARNATIONS)
            .where(INCARNATIONS.c.node == self._node, INCARNATIONS.c.incarnation == incarnation, held)
            .values(ceiling=ceiling)
        )
        with self._database.writing(), self._database.engine.connect() as connection:
            return connection.execute(noting).rowcount == 1

    def note_floor(self, incarnation: bytes, floor: int) -> None:
        """That of a former one."""
        self._execute(self.raising(incarnation, floor))

    def raising(self, incarnation: bytes, floor: int) -> Update:
        """The statement that notes the floor of one."""
        return (
            update(INCARNATIONS)
            .where(INCARNATIONS.c.node == self._node, INCARNATIONS.c.incarnation == incarnation)
            .values(floor=floor)
        )

    def _execute(self, statement: Executable) -> None:
        with self._database.writing(), self._database.engine.connect() as connection:
            connection.execute(statement)


def _octets(value: bytes) -> ColumnElement[Any]:
    return cast(literal(value), LargeBinary)


def _number(value: int) -> ColumnElement[Any]:
    return cast(literal(value), BigInteger)


def _text(value: str) -> ColumnElement[Any]:
    return cast(literal(value), String)
