"""These tests ask an inbox, in each kind of database."""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import func, select

from xabridge.outbox import Inbox, OutboxStore

if TYPE_CHECKING:
    from xabridge.outbox.inbox import MessageId

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("outbox")]


def ask(store: OutboxStore, inbox: Inbox, message_id: MessageId) -> bool:
    with store.engine.begin() as connection:
        return inbox.is_new(connection, message_id)


def test_a_message_is_new_once_for_each_consumer(store: OutboxStore) -> None:
    assert ask(store, Inbox("billing"), "m-1")
    assert not ask(store, Inbox("billing"), "m-1")
    assert ask(store, Inbox("shipping"), "m-1")


def test_ids_and_names_that_a_collation_takes_for_the_same_are_not(store: OutboxStore) -> None:
    new = [
        ask(store, Inbox(name), one)
        for name in ("a", "A", "a ")
        for one in ("m", "M", "m ", "ḿ", 7, "7", b"7", uuid.UUID(int=7))
    ]
    assert new == [True] * 24


def test_a_consumer_and_an_id_are_not_confused(store: OutboxStore) -> None:
    assert ask(store, Inbox("ab"), "c")
    assert ask(store, Inbox("a"), "bc")
    assert ask(store, Inbox("a"), "sbc")


def test_ids_longer_than_a_column_differ_in_their_ends(store: OutboxStore) -> None:
    assert ask(store, Inbox("c"), "x" * 5000 + "1")
    assert ask(store, Inbox("c"), "x" * 5000 + "2")
    assert not ask(store, Inbox("c"), "x" * 5000 + "1")


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
        second.join(0.3)
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
    with store.engine.begin() as connection, pytest.raises(ValueError, match="has no id"):
        Inbox("c").is_new(connection, None)
