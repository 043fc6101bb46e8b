"""These tests fill the outbox in every way: by connections and sessions, in branches, and beyond its limit. They ask an
inbox, too, in each kind of database.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Integer, MetaData, NullPool, create_engine, func, make_url, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from tests.postgres import Postgres
from tests.xabridge.outbox.conftest import MemoryBroker
from tm import ResourceConfig
from xa import XaMisuse
from xabridge import Message, RolledBack, TransactionManager
from xabridge.outbox import Inbox, Outbox, OutboxFull, OutboxStore, Relay, Tables, TablesError
from xabridge.outbox.inbox import MessageId
from xabridge.testing.contract.client import case
from xabridge.testing.mariadb import MariaDB

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("outbox")]


def sent(store: OutboxStore) -> list[object]:
    """What a relay sends now."""
    broker = MemoryBroker()
    Relay(store, broker).run_once()
    return sorted(broker.bodies, key=str)


def test_by_a_connection_a_session_and_a_statement(store: OutboxStore) -> None:
    outbox = Outbox()
    with store.engine.begin() as connection:
        assert len(outbox.put(connection, "orders", Message(1))) == 36
        assert outbox.put(connection, "orders", Message(2, id="order-2")) == "order-2"
        connection.execute(outbox.insertion("orders", Message(3)))
    with Session(store.engine) as session, session.begin():
        outbox.put(session, "orders", Message(4))
    assert sent(store) == [1, 2, 3, 4]


def test_a_branch_that_decides(url: str, store: OutboxStore) -> None:
    outbox, inbox = Outbox(), Inbox("billing")
    with TransactionManager("node-1", resources={"shop": ResourceConfig(url, "decider")}, background=False) as tm:
        with tm.begin() as tx:
            outbox.put(tx["shop"], "orders", Message("core"))
            outbox.put(tx["shop"].orm, "orders", Message("orm"))
            assert inbox.is_new(tx["shop"], "m-1")
            assert not inbox.is_new(tx["shop"], "m-1")
            assert not inbox.is_new(tx["shop"].orm, "m-1")
        with tm.begin() as tx:
            assert not inbox.is_new(tx["shop"], "m-1")
            assert inbox.is_new(tx["shop"].orm, "m-2")
        with pytest.raises(RuntimeError), tm.begin() as tx:
            outbox.put(tx["shop"], "orders", Message("never"))
            raise RuntimeError
    assert sent(store) == ["core", "orm"]


def test_a_branch_in_two_phases_shows_its_messages_when_it_is_committed(postgres: Postgres, tmp_path: Path) -> None:
    first, second = postgres.create_database(), postgres.create_database()
    store = OutboxStore.at(first)
    store.open()
    with TransactionManager(
        "node-1", f"file://{tmp_path}/log", {"shop": first, "other": second}, background=False
    ) as tm:
        with tm.begin() as tx:
            tx["other"].execute(text("CREATE TABLE t (n integer)"))
            Outbox().put(tx["shop"], "orders", Message("both"))
            assert Inbox("c").is_new(tx["shop"], "m-1")

        with pytest.raises(RolledBack), tm.begin() as tx:
            Outbox().put(tx["shop"], "orders", Message("neither"))
            with suppress(Exception):  # swallowed, as applications do
                tx["other"].execute(text("SELECT wrong"))
    assert sent(store) == ["both"]
    store.close()


def test_asyncio(postgres: Postgres) -> None:
    database = postgres.create_database()
    store = OutboxStore.at(database)
    store.open()

    async def work() -> None:
        outbox, inbox = Outbox(), Inbox("c")
        engine = create_async_engine(make_url(database).set(drivername="postgresql+psycopg"))
        async with engine.begin() as connection:
            await outbox.put_async(connection, "orders", Message(1))
            assert await inbox.is_new_async(connection, "m-1")
            assert not await inbox.is_new_async(connection, "m-1")

        async with AsyncSession(engine) as session, session.begin():
            await outbox.put_all_async(session, "orders", [Message(2), Message(3)])
            assert not await inbox.is_new_async(session, "m-1")
        await engine.dispose()
        with TransactionManager(
            "node-1", resources={"shop": ResourceConfig(database, "decider")}, background=False
        ) as tm:
            async with tm.begin() as tx:
                await outbox.put_async(tx["shop"].asyncio, "orders", Message(4))
                await outbox.put_async(tx["shop"].asyncio.orm, "orders", Message(5))
                assert await inbox.is_new_async(tx["shop"].asyncio, "m-2")
                assert not await inbox.is_new_async(tx["shop"].asyncio.orm, "m-2")

    asyncio.run(work())
    assert sent(store) == [1, 2, 3, 4, 5]
    store.close()


def test_a_limit(store: OutboxStore) -> None:
    outbox = Outbox(limit=3)
    for n in range(3):
        with store.engine.begin() as connection:
            outbox.put(connection, "orders", Message(n))
    with (
        store.engine.begin() as connection,
        pytest.raises(OutboxFull, match="3 messages are in the outbox, and at most 3"),
    ):
        outbox.put(connection, "orders", Message(4))
    with store.engine.begin() as connection, pytest.raises(OutboxFull):
        Outbox(limit=4).put_all(connection, "orders", [Message(4), Message(5)])
    assert sent(store) == [0, 1, 2]
    with store.engine.begin() as connection:
        outbox.put_all(connection, "orders", [Message(n) for n in range(3)])


CAN_NOT_BE_KEPT: list[tuple[Any, Any, Any, str]] = [
    (Message(1, id=7), "orders", None, "characters"),
    (Message(1, id=""), "orders", None, "characters"),
    (Message(1, id="x" * 256), "orders", None, "characters"),
    (Message(1), "", None, "characters"),
    (Message(1), "q" * 256, None, "characters"),
    (Message(1), "orders", "", "characters"),
    (Message(1), "orders", "k" * 256, "characters"),
    (Message(1), "orders", 5, "has to be a text"),
    (Message(1), "orders", b"x", "has to be a text"),
    (Message(1), None, None, "has to be a text"),
    (Message(1), 5, None, "has to be a text"),
    (Message(object()), "orders", None, r"\S"),
]


def test_what_can_not_be_kept() -> None:
    for message, to, key, told in CAN_NOT_BE_KEPT:
        with case(message, to, key), pytest.raises((ValueError, XaMisuse), match=told):
            Outbox().insertion(to, message, key=key)


def test_the_callers_message_stays_as_it_is() -> None:
    message = Message(1)
    Outbox().insertion("orders", message)
    assert (message.id, message.durable) == (None, False)


def test_the_tables_in_an_applications_metadata(tmp_path: Path) -> None:
    metadata = MetaData()
    tables = Tables(metadata)
    assert Tables(metadata).outbox is tables.outbox
    of_app = MetaData(schema="app")
    assert Tables(of_app).outbox is Tables(of_app, "app").outbox
    assert Tables(of_app).outbox.schema == "app"
    engine = create_engine(f"sqlite:///{tmp_path}/app.db")
    metadata.create_all(engine)
    engine.dispose()
    store = OutboxStore.at(f"sqlite:///{tmp_path}/app.db")
    store.open()  # fills the lanes
    with store.engine.begin() as connection:
        Outbox(tables).put(connection, "orders", Message(1))
    assert sent(store) == [1]
    store.close()


@pytest.fixture(params=["postgres", "mariadb"])
def user(request: pytest.FixtureRequest) -> Iterator[Callable[..., OutboxStore]]:
    """Makes a user with these rights and no other, in a database with an outbox; the outbox as that user sees it."""
    mariadb: MariaDB | None = None
    if request.param == "postgres":
        database = request.getfixturevalue("postgres").create_database()
    else:
        mariadb = request.getfixturevalue("mariadb")
        database = mariadb.create_database()
    name = make_url(database).database
    admin = OutboxStore.at(database)
    admin.open()
    made = [admin]

    def make(*rights: str) -> OutboxStore:
        user = f"u{uuid.uuid4().hex[:12]}"
        if mariadb is not None:
            mariadb.admin(
                f"CREATE USER {user}@'127.0.0.1' IDENTIFIED BY 'secret'",
                *(f"GRANT {right.replace(' ON ', f' ON {name}.')} TO {user}@'127.0.0.1'" for right in rights),
            )
        else:
            with admin.engine.begin() as connection:
                connection.execute(text(f"CREATE ROLE {user} LOGIN"))
                for right in rights:
                    connection.execute(text(f"GRANT {right} TO {user}"))
        url = make_url(database).set(username=user, password="secret")  # noqa: S106 — of a server for this test
        made.append(OutboxStore.at(url.render_as_string(hide_password=False)))
        return made[-1]

    yield make
    for store in made:
        store.close()


def test_the_rights_that_are_needed(user: Callable[..., OutboxStore]) -> None:
    application = user("INSERT ON xabridge_outbox").engine
    with application.begin() as connection:
        Outbox().put(connection, "orders", Message(1))
        connection.execute(Outbox().insertion("orders", Message(2)))
    with Session(application) as session, session.begin():
        Outbox().put_all(session, "orders", [Message(3), Message(4)])
    with user("SELECT, INSERT ON xabridge_inbox").engine.begin() as connection:
        assert Inbox("c").is_new(connection, "m-1")
        assert not Inbox("c").is_new(connection, "m-1")
    every = "SELECT, INSERT, UPDATE, DELETE ON"
    relay = user(f"{every} xabridge_outbox", f"{every} xabridge_outbox_lane")
    assert sent(relay) == [1, 2, 3, 4]
    with pytest.raises(TablesError):
        user(f"{every} xabridge_outbox").open()


# --- the inbox -------------------------------------------------------------------------------------------------------
def ask(store: OutboxStore, inbox: Inbox, message_id: MessageId) -> bool:
    with store.engine.begin() as connection:
        return inbox.is_new(connection, message_id)


CONSUMERS_AND_IDS: list[tuple[str, MessageId]] = [
    ("billing", "m-1"),
    ("shipping", "m-1"),
    # what a collation takes for the same
    *((name, one) for name in ("a", "A", "a ") for one in ("m", "M", "m ", "ḿ", 7, "7", b"7", uuid.UUID(int=7))),
    # what is the same when it is written one behind the other
    ("ab", "c"),
    ("a", "bc"),
    ("a", "sbc"),
    # longer than a column, and with a NUL
    ("c", "x" * 5000 + "1"),
    ("c", "x" * 5000 + "2"),
    ("c", "a\0"),
    ("c", "a\ufffd"),
]


def test_a_message_is_new_once_for_each_consumer(store: OutboxStore) -> None:
    assert [ask(store, Inbox(name), one) for name, one in CONSUMERS_AND_IDS] == [True] * len(CONSUMERS_AND_IDS)
    assert [ask(store, Inbox(name), one) for name, one in CONSUMERS_AND_IDS] == [False] * len(CONSUMERS_AND_IDS)


def test_a_rolled_back_message_is_new_again(store: OutboxStore) -> None:
    with store.engine.connect() as connection, connection.begin() as transaction:
        assert Inbox("c").is_new(connection, "m")
        transaction.rollback()
    assert ask(store, Inbox("c"), "m")


def test_one_waits_for_the_other_that_handles_the_same_message(store: OutboxStore) -> None:
    answers: list[bool] = []
    with store.engine.begin() as connection:
        assert Inbox("c").is_new(connection, "m")
        second = threading.Thread(target=lambda: answers.append(ask(store, Inbox("c"), "m")))
        second.start()
        second.join(0.1)
        assert answers == []
    second.join(30)
    assert answers == [False]


def test_old_rows_are_deleted(store: OutboxStore) -> None:
    now = [1000.0]
    inbox = Inbox("c", clock=lambda: now[0])
    for n in range(5):
        ask(store, inbox, n)
    now[0] += 100
    ask(store, inbox, "young")
    assert inbox.delete_old(store.engine, 50.0) == 5
    with store.engine.begin() as connection:
        assert connection.execute(select(func.count()).select_from(store.tables.inbox)).scalar_one() == 1


def test_a_message_without_an_id(store: OutboxStore) -> None:
    for none in (None, "", b""):
        with store.engine.begin() as connection, pytest.raises(ValueError, match="has no id"):
            Inbox("c").is_new(connection, none)


class Base(DeclarativeBase):
    pass


class Bill(Base):
    __tablename__ = "bill"
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)


def test_an_error_of_the_applications_own_objects_is_no_copy(store: OutboxStore) -> None:
    Base.metadata.create_all(store.engine)
    for _ in range(2):  # the second time the bill is there
        with Session(store.engine) as session, suppress(IntegrityError), session.begin():
            session.add(Bill(number=1))
            assert Inbox("c").is_new(session, str(uuid.uuid4()))


def test_a_session_with_a_database_for_each_table(store: OutboxStore) -> None:
    with Session(binds=dict.fromkeys(store.tables.all, store.engine)) as session, session.begin():
        assert Inbox("c", store.tables).is_new(session, "m")
        Outbox(store.tables).put(session, "orders", Message(1))


def test_autocommit_is_refused(url: str, store: OutboxStore) -> None:
    """The message would count as handled before it is, and would leave whatever comes after it."""
    whole = create_engine(store.engine.url, isolation_level="AUTOCOMMIT")
    inbox, outbox = Inbox("c"), Outbox()
    with (
        whole.connect() as first,
        store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as second,
        store.engine.execution_options(isolation_level="AUTOCOMMIT").connect() as third,
        Session(whole) as session,
    ):
        made: list[Any] = [first, second, third, session, scoped_session(sessionmaker(whole))]
        if not url.startswith("sqlite"):
            own = create_engine(store.engine.url, connect_args={"autocommit": True}, poolclass=NullPool)
            made.append(own.connect())

        for where in made:
            with pytest.raises(ValueError, match="autocommit"):
                inbox.is_new(where, "m")
            with pytest.raises(ValueError, match="autocommit"):
                outbox.put(where, "orders", Message(1))
            with pytest.raises(ValueError, match="autocommit"):
                outbox.put_all(where, "orders", [Message(1)])
        with whole.connect().execution_options(isolation_level="SERIALIZABLE") as serializable:
            assert inbox.is_new(serializable, "m")
            serializable.commit()
        for where in made:
            where.close()

    whole.dispose()
    assert store.figures().waiting == 0
    assert not ask(store, inbox, "m")
