"""A look at a store from outside, which takes no lock and changes nothing: what is in doubt, since when, and whether
the store fits together.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import create_engine, func, select, text
from sqlalchemy.exc import SQLAlchemyError

from dtx.store.contract import CHUNK, PENDING, StoreDamaged, StoreError
from dtx.store.sql.backup import COPY
from dtx.store.sql.database import store_url
from dtx.store.sql.tables import BRANCH, CHUNKS, MESSAGE, META, METADATA, PAYLOAD, QUEUE, RECORD, WORK, check_version
from xa import Code, Xid
from xa.open_string import shown
from xa.printable import printable
from xa.sql import postgres, sqlite
from xa.sql.errors import ErrorKind, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, Engine

REPLY_S: Final = 60.0
"""How long PostgreSQL may take to answer a statement."""
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


def look_at_store(url: str) -> StoreImage:
    """The store at `url`. StoreError: there is none, or it can't be read."""
    try:
        with _engine(url) as engine:
            return _looked_at(engine, url)
    except (LookupError, OverflowError, TypeError, ValueError) as error:
        why = printable(f"{type(error).__name__}: {error}", 200)
        raise StoreDamaged(f"the store {shown(url)}: a row is damaged ({why}); take another copy") from error
    except SQLAlchemyError as error:
        raise StoreError(f"the store {shown(url)} can't be read: {getattr(error, 'orig', error)}") from None


def _looked_at(engine: Engine, url: str) -> StoreImage:
    try:
        with engine.connect() as connection:
            if not check_version(connection):
                raise StoreError(f"there is no store in {shown(url)}")
            return _image(connection)
    except SQLAlchemyError as error:
        if kind_of(error) is not ErrorKind.DAMAGED:
            raise
        why = f"the store {shown(url)} can't be read: {getattr(error, 'orig', error)}"
        raise StoreDamaged(f"{why}; {_damaged(engine)}") from None


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


def _image(connection: Connection) -> StoreImage:
    openings = int(connection.execute(select(META.c.value).where(META.c.name == "openings")).scalar_one())
    copied: list[int] = []
    noted: list[int] = []
    chosen = select(RECORD.c.kind, RECORD.c.text).where(RECORD.c.kind.in_((COPY, *_TIMES)))
    for kind, text_of_record in connection.execute(chosen):
        *of, at_ms = map(int, text_of_record.split())
        if kind != COPY:
            noted.append(at_ms)
        elif of == [openings]:
            copied.append(at_ms)
    branches = tuple(_branches(connection))
    last_ms = max([*noted, *(branch.prepared_ms for branch in branches)], default=0)
    return StoreImage(openings, branches, max(copied, default=None), last_ms, tuple(_faults(connection)))


def _branches(connection: Connection) -> Iterator[BranchImage]:
    held: dict[int, list[HeldMessages]] = {}
    sends = WORK.c.outcome.is_(None)
    messages = WORK.join(MESSAGE, WORK.c.message == MESSAGE.c.number).join(QUEUE, MESSAGE.c.queue == QUEUE.c.number)
    columns = WORK.c.branch, sends, QUEUE.c.name
    work = select(*columns, func.count()).select_from(messages).group_by(*columns).order_by(*columns)
    for branch, to, queue, count in connection.execute(work):
        held.setdefault(branch, []).append(HeldMessages(queue, count, bool(to)))

    chosen = select(
        BRANCH.c.number, BRANCH.c.format_id, BRANCH.c.gtrid, BRANCH.c.bqual, BRANCH.c.owner, BRANCH.c.prepared_ms,
        BRANCH.c.outcome,
    )  # fmt: skip
    for number, format_id, gtrid, bqual, owner, prepared_ms, outcome in connection.execute(chosen.order_by("number")):
        code = None if outcome is None else Code(outcome)
        yield BranchImage(
            Xid(format_id, bytes(gtrid), bytes(bqual)), owner, prepared_ms, code, tuple(held.get(number, ()))
        )


def _damaged(engine: Engine) -> str:
    """Which tables of a file are damaged, in words."""
    damaged = [table.name for table in METADATA.sorted_tables if not _is_whole(engine, table.name)]
    if not damaged:
        return "the file is damaged, in no table that is known"
    return f"the file is damaged in {'the table' if len(damaged) == 1 else 'the tables'} {', '.join(damaged)}"


def _is_whole(engine: Engine, table: str) -> bool:
    try:
        with engine.connect() as connection:
            return connection.execute(text(f"PRAGMA quick_check({table})")).scalars().all() == ["ok"]
    except SQLAlchemyError:
        return False


def _faults(connection: Connection) -> Iterator[str]:
    """What a store that a broker has written never has."""
    if connection.dialect.name == "sqlite":
        result = connection.execute(text("PRAGMA quick_check(1)")).scalars().all()
        if result != ["ok"]:
            yield f"{_damaged(connection.engine)}: {printable(result[0], 200)}"
            return

    def count(condition: Any, *of: Any) -> int:
        return int(connection.execute(select(func.count()).select_from(*of).where(condition)).scalar_one())

    messages, queues = select(MESSAGE.c.number), select(QUEUE.c.number)
    for found, what in (
        (count(WORK.c.message.not_in(messages), WORK), "messages of branches are missing"),
        (count(WORK.c.branch.not_in(select(BRANCH.c.number)), WORK), "messages are held by branches that are missing"),
        (
            count((MESSAGE.c.position != PENDING) & MESSAGE.c.queue.not_in(queues), MESSAGE),
            "messages are in queues that are missing",
        ),
        (
            count((MESSAGE.c.size <= CHUNK) & MESSAGE.c.number.not_in(select(PAYLOAD.c.message)), MESSAGE),
            "messages have no payload",
        ),
        (
            count((MESSAGE.c.size > CHUNK) & MESSAGE.c.number.not_in(select(CHUNKS.c.message)), MESSAGE),
            "large messages have no payload",
        ),
    ):
        if found:
            yield f"{found} {what}"
