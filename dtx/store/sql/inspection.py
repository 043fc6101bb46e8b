"""A look at a store from outside, which takes no lock and changes nothing: what is in doubt, since when, and whether
the store fits together.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import case, create_engine, func, literal, or_, select, text
from sqlalchemy.exc import SQLAlchemyError

from dtx.store.contract import CHUNK, NUMBERS_PER_OPENING, StoreDamaged, StoreError
from dtx.store.sql.backup import COPY
from dtx.store.sql.database import ACCESS, OPENING_FAILURES, store_url
from dtx.store.sql.restoration import RestoredFromSql
from dtx.store.sql.sqlite import check_files, check_kinds
from dtx.store.sql.tables import (
    CHUNKS,
    MESSAGE,
    METADATA,
    PAYLOAD,
    SHARE,
    check_tables,
    count_of_openings,
    is_of_other_type,
)
from xa.open_string import shown
from xa.printable import printable
from xa.sql import postgres, sqlite
from xa.sql.errors import ErrorKind, explained, is_no_database, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from sqlalchemy import Column, ColumnElement, Connection, Engine, FromClause

    from dtx.store.contract import Restored
    from xa import Code, Xid

REPLY_S: Final = 60.0
"""How long PostgreSQL may take to answer a statement."""
END_MS: Final = 253_370_764_800_000
"""The beginning of the year 9999: no time is later."""
AT_ONCE: Final = 500
"""Messages that one statement asks for."""
_TIMES: Final = ("mark", "moment")
"""The broker's records of times."""


@dataclass(frozen=True, slots=True)
class HeldMessages:
    """Messages that a branch holds: `sends` them to a queue, or takes them from it."""

    queue: str
    count: int
    sends: bool


@dataclass(frozen=True, slots=True)
class BranchImage:
    """A branch in doubt: prepared, or with the `outcome` of who completed it on its own."""

    xid: Xid
    owner: str
    prepared_ms: int
    outcome: Code | None
    holds: tuple[HeldMessages, ...]


@dataclass(frozen=True, slots=True)
class StoreImage:
    """A store at one moment. `copied_ms`: when this copy was made, where it is one that has not been opened since;
    `last_ms`: the latest time that the store has noted, at most a second before its last change; 0: none. `faults` say
    what does not fit together."""

    openings: int
    branches: tuple[BranchImage, ...]
    copied_ms: int | None
    last_ms: int
    faults: tuple[str, ...]


def look_at_store(url: str, rehearse: Callable[[Restored], object]) -> StoreImage:
    """The store at `url`. `rehearse` does with its contents what a broker does that starts with them, so that what
    would be refused then is refused here. StoreError: there is none, it can't be read, or no broker would start with
    it."""
    try:
        with _engine(url) as engine:
            return _looked_at(engine, url, rehearse)
    except (LookupError, OverflowError, TypeError, ValueError) as error:
        why = printable(f"{type(error).__name__}: {error}", 200)
        raise StoreDamaged(f"the store {shown(url)}: a row is damaged ({why}); take another copy") from error
    except OPENING_FAILURES as error:
        raise _unreadable(url, error) from None
    except OSError as error:
        raise StoreError(f"the store {shown(url)} can't be read: {error}. {ACCESS}") from None


def _looked_at(engine: Engine, url: str, rehearse: Callable[[Restored], object]) -> StoreImage:
    """Everything that a start reads, as it is at one moment; then the files of a store in SQLite, page by page."""

    def refusal(error: Exception) -> StoreError:
        if kind_of(error) is not ErrorKind.DAMAGED or engine.dialect.name != "sqlite" or is_no_database(error):
            return _unreadable(url, error)
        return StoreDamaged(f"{_unreadable(url, error)}; {_damaged(engine)}")

    try:
        with engine.connect() as connection:
            _fix_moment(connection)
            if not check_tables(connection):
                raise StoreError(f"there is no store in {shown(url)}")
            openings = count_of_openings(connection)
            restored = RestoredFromSql(connection, (openings + 1) * NUMBERS_PER_OPENING, refusal)
            rehearse(restored)
            image = _image(connection, restored, openings)
        return replace(image, faults=(*_damaged_pages(engine), *image.faults))
    except OPENING_FAILURES as error:
        raise refusal(error) from None


def _unreadable(url: str, error: Exception) -> StoreError:
    of_kind = StoreDamaged if kind_of(error) is ErrorKind.DAMAGED else StoreError
    return of_kind(f"the store {shown(url)} can't be read: {explained(error)}")


def _fix_moment(connection: Connection) -> None:
    """Has all that is read from now on be of one moment, whatever a broker writes meanwhile. It holds up no one."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN")
    else:
        connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)


@contextmanager
def _engine(url: str) -> Iterator[Engine]:
    parsed = store_url(url)
    if parsed.get_backend_name() == "postgresql":
        from xa.sql import psycopg_connection  # noqa: PLC0415 — loads psycopg, which others don't need

        wait_s = {"connect_timeout": parsed.query.get("connect_timeout", 10)}
        engine = create_engine(parsed.set(drivername=postgres.DRIVER), connect_args=wait_s)
        with _disposed(psycopg_connection.bound(engine, REPLY_S)) as bound:
            yield bound
        return
    if parsed.get_backend_name() != "sqlite":
        raise StoreError(f"{shown(url)!r} is not the URL of a store: sqlite:///path or postgresql://…")
    path = Path(str(parsed.database)).absolute()
    check_kinds(path)
    check_files(path)
    if not path.is_file():
        raise StoreError(f"there is no store {path}")
    with sqlite.looked_at(parsed) as readable, _disposed(create_engine(readable)) as engine:
        sqlite.check_schemas(engine)
        yield engine


@contextmanager
def _disposed(engine: Engine) -> Iterator[Engine]:
    try:
        yield engine
    finally:
        engine.dispose()


def _image(connection: Connection, restored: Restored, openings: int) -> StoreImage:
    copied: list[int] = []
    noted: list[int] = []
    for record in restored.records:
        if record.kind not in {COPY, *_TIMES}:
            continue
        *of, at_ms = map(int, record.text.split())
        if record.kind != COPY:
            noted.append(at_ms)
        elif of == [openings]:
            copied.append(at_ms)

    branches = tuple(_branches(connection, restored))
    times = [*noted, *copied, *(branch.prepared_ms for branch in branches)]
    if times and not 0 <= min(times) <= max(times) < END_MS:
        raise ValueError("a time is none")
    last_ms = max([*noted, *(branch.prepared_ms for branch in branches)], default=0)
    return StoreImage(openings, branches, max(copied, default=None), last_ms, tuple(_faults(connection)))


def _branches(connection: Connection, restored: Restored) -> Iterator[BranchImage]:
    name_of = {queue.number: queue.name for queue in restored.queues}
    queue_of = _queues_of(connection, (one.message for branch in restored.branches for one in branch.dequeues))
    for branch in restored.branches:
        takes = (queue_of[one.message] for one in branch.dequeues if one.message in queue_of)
        counts = Counter((False, name_of[queue]) for queue in takes)
        counts.update((True, name_of[post.queue]) for post in branch.enqueues)
        holds = tuple(HeldMessages(queue, count, sends) for (sends, queue), count in sorted(counts.items()))
        yield BranchImage(branch.xid, branch.owner, branch.prepared_ms, branch.outcome, holds)


def _queues_of(connection: Connection, messages: Iterable[int]) -> dict[int, int]:
    """The queues of those messages that are there."""
    found: dict[int, int] = {}
    numbers = iter(messages)
    while some := list(islice(numbers, AT_ONCE)):
        chosen = select(MESSAGE.c.number, MESSAGE.c.queue).where(MESSAGE.c.number.in_(some))
        found.update((number, queue) for number, queue in connection.execute(chosen))
    return found


def _damaged_pages(engine: Engine) -> Iterator[str]:
    """What is wrong with the pages of a file: those of tables and indexes, and those that are not used, which a start
    does not read and a change will."""
    if engine.dialect.name != "sqlite":
        return
    with engine.connect() as connection:
        result = connection.execute(text("PRAGMA integrity_check(1)")).scalars().all()
    if result != ["ok"]:
        yield f"{_damaged(engine)}: {printable(result[0], 200)}"


def _damaged(engine: Engine) -> str:
    """Which tables of a file are damaged, in words."""
    damaged = [table.name for table in METADATA.sorted_tables if not _is_whole(engine, table.name)]
    if not damaged:
        return "the file is damaged, in no table that is known"
    return f"the file is damaged in {'the table' if len(damaged) == 1 else 'the tables'} {', '.join(damaged)}"


def _is_whole(engine: Engine, table: str) -> bool:
    try:
        with engine.connect() as connection:
            return connection.execute(text(f"PRAGMA integrity_check({table})")).scalars().all() == ["ok"]
    except SQLAlchemyError:
        return False


def _faults(connection: Connection) -> Iterator[str]:
    """What a store that a broker has written never has, and a start does not look for."""

    def of_other_type(*columns: Column[Any]) -> ColumnElement[int]:
        return func.sum(case((or_(*(is_of_other_type(one, connection.dialect) for one in columns)), 1), else_=0))

    payloads = select(
        PAYLOAD.c.message,
        func.sum(func.length(PAYLOAD.c.data)).label("size"),
        of_other_type(PAYLOAD.c.data).label("of_other_type"),
        literal(0).label("missing"),
    )
    pieces = select(
        CHUNKS.c.message,
        func.sum(func.length(CHUNKS.c.data)).label("size"),
        of_other_type(CHUNKS.c.data, CHUNKS.c.number).label("of_other_type"),
        (func.abs(func.min(CHUNKS.c.number)) + func.abs(func.max(CHUNKS.c.number) + 1 - func.count())).label("missing"),
    )
    shared = MESSAGE.outerjoin(SHARE, SHARE.c.message == MESSAGE.c.number)
    stored_as = func.coalesce(SHARE.c.payload, MESSAGE.c.number)
    faults: list[tuple[FromClause, ColumnElement[bool], str]] = []
    for stored, key, is_of in (
        (payloads, PAYLOAD.c.message, MESSAGE.c.size <= CHUNK),
        (pieces, CHUNKS.c.message, MESSAGE.c.size > CHUNK),
    ):
        one = stored.group_by(key).subquery()
        both = shared.outerjoin(one, one.c.message == stored_as)
        faults.append((both, is_of & one.c.size.is_(None), "have no payload"))
        faults.append((both, is_of & (one.c.of_other_type > 0), "have a payload of another type"))
        faults.append((both, is_of & (one.c.size != MESSAGE.c.size), "have a payload of another size than is noted"))
        faults.append((both, is_of & (one.c.missing != 0), "lack a piece of their payload"))
    left = MESSAGE.c.size - CHUNKS.c.number * CHUNK
    piece = shared.join(CHUNKS, CHUNKS.c.message == stored_as)
    of_size = func.length(CHUNKS.c.data) == case((left > CHUNK, CHUNK), else_=left)
    faults.append((piece, (MESSAGE.c.size > CHUNK) & ~of_size, "have a piece of another size than it should have"))

    for of, condition, what in faults:
        count = func.count(MESSAGE.c.number.distinct())
        found = int(connection.execute(select(count).select_from(of).where(condition)).scalar_one())
        if found:
            yield f"{found} messages {what}"

    of_one = PAYLOAD.outerjoin(MESSAGE, MESSAGE.c.number == PAYLOAD.c.message)
    orphans = of_one.outerjoin(SHARE, SHARE.c.payload == PAYLOAD.c.message)
    unused = MESSAGE.c.number.is_(None) & SHARE.c.message.is_(None)
    not_there = SHARE.outerjoin(MESSAGE, MESSAGE.c.number == SHARE.c.message)
    for of, condition, what in (
        (orphans, unused, "payloads are of no message"),
        (not_there, MESSAGE.c.number.is_(None), "shares of a payload are of no message"),
    ):
        found = int(connection.execute(select(func.count()).select_from(of).where(condition)).scalar_one())
        if found:
            yield f"{found} {what}"
