"""A process that opens a transaction manager and forks then. Its children share its connections and its incarnation,
and have none of its threads: they refuse, and the parent goes on. A child that opens a manager of its own works.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from tests.postgres import Postgres
from tests.programs import output_of
from tests.tm.shop import Shop
from tm import OutcomeUnknown, ProtocolMisuse, Transaction, TransactionError
from tm.global_transaction import HandlerState
from tm.transaction import live_of
from xa import XaError
from xabridge.frameworks.error_responses import response_for
from xabridge.testing.in_process import TestBroker


def test_a_forked_child_refuses_and_its_parent_goes_on(shop: Shop) -> None:
    """It hears that it is a fork, whatever it does with what it inherited; never that something was rolled back, which
    it would try again beside its parent. Nobody is called back there, and its block ends with its own error."""
    called: list[str] = []
    tx = shop.tm.begin()
    shop.write(tx)
    tx.register_synchronization(partial(called.append, "before"), lambda _: called.append("after"))
    name = tx.resources[0]
    session = tx[name]
    uses: dict[str, Callable[[], object]] = {
        "begin": partial(contextvars.Context().run, shop.tm.begin),
        "recover": shop.tm.recover,
        "commit": tx.commit,
        "rollback": tx.rollback,
        "acommit": lambda: asyncio.run(tx.acommit()),
        "arollback": lambda: asyncio.run(tx.arollback()),
        "enlist": lambda: tx.enlist(name),
        "aenlist": lambda: asyncio.run(tx.aenlist(name)),
        "delist": lambda: tx.delist(name),
        "set_rollback_only": tx.set_rollback_only,
        "register_synchronization": lambda: tx.register_synchronization(print),
        "suspend": shop.tm.suspend,
        "block": lambda: _leave(tx, LookupError()),
        "a block without an error": lambda: _leave(tx),
        "a new block": tx.__enter__,
        "a block in a task": lambda: asyncio.run(tx.__aexit__(None, None, None)),
        "a session": lambda: session.write("key", "value"),
    }
    answers: list[int] = []
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        said = {}
        for what, use in uses.items():
            try:
                use()
                said[what] = "done"
            except (TransactionError, XaError, LookupError) as error:
                said[what] = " ".join((f"{type(error).__name__}:", str(error), *getattr(error, "__notes__", ())))
                if what == "commit" and isinstance(error, TransactionError):
                    answers.append(response_for(error)[0])
        os.write(writes, json.dumps([said, called, answers]).encode())
        os._exit(0)

    os.waitpid(child, 0)
    said, called_back, answers = json.loads(os.read(reads, 1 << 16))
    assert answers == [500], "a service does not say that nothing has happened"
    assert {what: words for what, words in said.items() if "a fork of the one" not in words} == {}
    assert said["block"].startswith("LookupError: "), "the child's own error, with a note"
    unknown = {what for what, words in said.items() if words.startswith("InheritedTransaction: ")}
    assert said.keys() - unknown == {"begin", "recover", "block", "a session"}
    assert called_back == []
    tx.commit()
    assert called == ["before", "after"]
    shop.assert_ended(1)


def test_in_a_fork_a_handler_learns_of_the_fork_first(shop: Shop) -> None:
    """What a consumer lends it completes itself; but not in a child, where nothing is known."""
    with shop.tm.begin() as tx:
        live_of(tx).lent = HandlerState.TO_HANDLER
        for use in (tx.commit, tx.rollback, tx.__enter__):
            with pytest.raises(ProtocolMisuse):
                use()

        live_of(tx).lent = HandlerState.TO_HANDLER
        child = os.fork()
        if not child:
            refused = 0
            for use in (tx.commit, tx.rollback, tx.__enter__, partial(tx.__exit__, None, None, None)):
                try:
                    use()
                except OutcomeUnknown:
                    refused += 1
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
        live_of(tx).lent = None
        shop.write(tx)


def _leave(tx: Transaction, error: Exception | None = None) -> None:
    """As a `with` block that the parent has entered is left."""
    tx.__exit__(None if error is None else type(error), error, None)
    if error is not None:
        raise error


PROGRAM = """
import json, os, sys
from sqlalchemy import text
from rm_amqp import Message
from tm import ManagerUnusable, ResourceConfig, TransactionManager, TransactionError
from xa import XaMisuse

log, broker, shop, mode = json.loads(sys.argv[1])


def make():
    return TransactionManager("api-1", log, {"broker": broker, "shop": ResourceConfig(shop, mode)})


def order(tm, number):
    with tm.begin() as tx:
        tx["shop"].execute(text("INSERT INTO orders VALUES (:n)"), {"n": number})
        tx["broker"].send("orders", Message(b"%d" % number))


def refusal(call):
    try:
        call()
    except ManagerUnusable as error:
        return str(error)
    return "not refused"


def insertion(tx):
    try:
        tx["shop"].execute(text("INSERT INTO orders VALUES (99)"))
    except (XaMisuse, TransactionError):
        return "refused"
    return "not refused"


def child(tm, half, number):
    told = [refusal(lambda: order(tm, number)), refusal(tm.recover), refusal(lambda: tm.end_decision(b"x"))]
    told += [refusal(lambda: tm.forget("shop", None))]
    told.append(insertion(half))
    try:
        half.commit()
        told.append("committed")
    except TransactionError:
        told.append("not committed")
    consumer = tm.consumer("orders")(lambda message, tx: None)
    told.append(refusal(consumer.run))
    tm.close()
    if mode == "decider":
        with make() as own:
            order(own, number)
    with open(sys.argv[2] + f"/{number}", "w") as file:
        json.dump(told, file)


tm = make()
order(tm, 0)
half = tm.begin()
if not shop.startswith("sqlite"):  # where one writer excludes all others
    half["shop"].execute(text("INSERT INTO orders VALUES (50)"))
half["broker"].send("orders", Message(b"50"))
for number in (10, 20):
    if os.fork() == 0:
        child(tm, half, number)
        sys.exit(0)  # as a program does that ends
for _ in range(2):
    assert os.wait()[1] == 0
half.commit()
for number in range(1, 5):
    order(tm, number)
tm.close()
"""


def forked(folder: Path, log: str | None, shop: str, mode: str) -> None:
    engine = create_engine(shop.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (number integer PRIMARY KEY)"))
    with TestBroker() as broker:
        output_of(PROGRAM, json.dumps([log, broker.url, shop, mode]), str(folder), timeout=100)
        for number in (10, 20):
            *refusals, statement, across, consumer = json.loads((folder / str(number)).read_text(encoding="utf-8"))
            assert all(told.startswith("this process is a fork of the one that opened") for told in refusals), refusals
            assert "after the fork, in each process" in refusals[0]
            assert statement == "refused"
            assert across == "not committed"
            assert consumer.startswith("this process is a fork"), consumer

        with engine.connect() as connection:
            rows = set(connection.execute(text("SELECT number FROM orders")).scalars())
        engine.dispose()
        own = {10, 20} if mode == "decider" else set()
        assert rows | {50} == {0, 1, 2, 3, 4, 50} | own
        assert broker.available("orders") == len(rows | {50})


HANDLER = """
import os, sys, time
from sqlalchemy import text
from rm_amqp import Message
from tm import ResourceConfig, TransactionManager

broker, shop = sys.argv[1:]
tm = TransactionManager("api-1", None, {"broker": broker, "shop": ResourceConfig(shop, "decider")})


def handle(message, tx):
    tx["shop"].execute(text("INSERT INTO orders VALUES (:number)"), {"number": message.body})
    if message.body == 1:
        child = os.fork()
        if child == 0:
            if way == "raises":
                raise ValueError
            if way == "exits":
                sys.exit(3)
            return
        ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


async def handle_async(message, tx):
    handle(message, tx)


for way in ("returns", "raises", "exits"):
    ended = []
    for handler in (handle, handle_async):
        with tm.begin() as tx:
            tx["shop"].execute(text("UPDATE orders SET number = number + 4"))
            for number in range(4):
                tx["broker"].send("orders", Message(number))
        with tm.consumer("orders", idle_s=0.1, batch=4)(handler) as consumer:
            while consumer.counts.handled < 4:
                assert consumer.health().ok, consumer.health()
                time.sleep(0.001)
    print(way, *ended)
tm.close()
"""


@pytest.mark.slow
def test_a_child_that_leaves_a_handler_ends_and_has_done_nothing(tmp_path: Path) -> None:
    shop = f"sqlite:///{tmp_path}/shop.db"
    engine = create_engine(shop)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (number integer)"))
    with TestBroker() as broker:
        command = [sys.executable, "-c", HANDLER, broker.url, shop]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["returns 0 0", "raises 1 1", "exits 3 3"]
    with engine.connect() as connection:
        numbers = connection.execute(text("SELECT number FROM orders ORDER BY number")).scalars().all()
    engine.dispose()
    assert numbers == list(range(24))


@pytest.mark.parametrize(
    ("log", "shop", "mode"),
    [
        ("none", "sqlite", "decider"),
        ("postgresql", "postgresql", "two-phase"),  # a child leaves a log in a database to its parent
        pytest.param("none", "postgresql", "decider", marks=pytest.mark.long),
        pytest.param("file", "postgresql", "two-phase", marks=pytest.mark.long),
        pytest.param("sqlite", "postgresql", "two-phase", marks=pytest.mark.long),
    ],
)
@pytest.mark.slow
def test_a_child_refuses(tmp_path: Path, postgres: Postgres, log: str, shop: str, mode: str) -> None:
    def url(kind: str) -> str:
        return {"file": f"file://{tmp_path}/log", "sqlite": f"sqlite:///{tmp_path}/data.db"}.get(
            kind
        ) or postgres.create_database()

    forked(tmp_path, None if log == "none" else url(log), url(shop), mode)
