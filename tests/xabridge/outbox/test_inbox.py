"""These tests ask an inbox, in each kind of database."""

from __future__ import annotations

import threading
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Integer, NullPool, create_engine, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from xabridge import Message
from xabridge.outbox import Inbox, Outbox, OutboxStore

if TYPE_CHECKING:
    from xabridge.outbox.inbox import MessageId

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("outbox")]


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
