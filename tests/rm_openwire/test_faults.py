"""These tests provoke what ActiveMQ Classic and ActiveMQ Artemis get wrong, and check the guards against it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from rm_amqp import Message, NoMessage
from rm_openwire import OpenWireResource
from rm_openwire.branch import transaction_id
from rm_openwire.connection import Connector
from rm_openwire.settings import parse
from rm_openwire.wire import Queue, TextMessage, TransactionInfo, TransactionKind
from tests.rm_db.proxy import Proxy
from tests.rm_openwire.client import RMID, Client, new_name, new_xid
from tests.rm_openwire.java_brokers import SOURCES, Artemis, Classic, JavaBroker
from xa import (
    BranchRolledBack,
    Code,
    HeuristicOutcome,
    UnknownBranch,
    XaError,
    XaMisuse,
    Xid,
)
from xa.diagnosis import Health

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("openwire")]  # each starts a broker, or uses the shared ones
CERTIFICATES = SOURCES / "certificates"


@contextmanager
def running(broker: JavaBroker) -> Iterator[JavaBroker]:
    """A broker with settings of its own."""
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()


def ask(url: str, kind: TransactionKind, xid: Xid) -> None:
    """Another client's command."""
    connection = Connector(parse(url)).connect()
    command = TransactionInfo(connection_id=connection.connection_id, transaction_id=transaction_id(xid))
    command.kind = kind.value
    connection.ask(command)
    connection.close()


def test_forget_of_a_prepared_branch_is_refused(client: Client, queue: str) -> None:
    """Classic would roll it back."""
    xid = client.prepared(lambda session: session.send(queue, Message("kept")))
    other = Client(client.url.partition("?")[0])
    with pytest.raises(XaMisuse) as refused:
        other.rm.forget(xid, RMID)
    assert refused.value.code is Code.XAER_PROTO
    assert client.in_doubt() == {xid}
    client.rm.commit(xid, RMID)
    assert client.look(queue) == ["kept"]
    with pytest.raises(UnknownBranch):
        other.rm.forget(xid, RMID)
    other.rm.drop()


def test_what_forget_would_do_to_classic(brokers: Callable[[str], JavaBroker], queue: str) -> None:
    """The reason for the guard: the day that this fails, it can go."""
    broker = brokers("classic")
    client = Client(broker.url)
    xid = client.prepared(lambda session: session.send(queue, Message("lost")))
    assert broker.ask("prepared") == "1"
    ask(broker.url, TransactionKind.FORGET, xid)
    assert client.in_doubt() == set()
    assert client.look(queue) == []
    client.rm.drop()


def test_what_an_operator_completed_at_artemis(brokers: Callable[[str], JavaBroker], queue: str) -> None:
    """It is a hazard, since Artemis does not say over OpenWire how it was completed, and it is there until `forget`: of
    who had the branch, of another process, and of one that comes after the broker was started again."""
    broker = brokers("artemis")
    client = Client(broker.url)
    xids = []
    for operation in ("commit", "rollback", "commit", "rollback", "rollback"):
        xids.append(client.prepared(lambda session: session.send(queue, Message("by hand"))))
        assert broker.ask("prepared") == broker.ask(operation) == "1"
    assert client.look(queue) == ["by hand", "by hand"]
    assert set(client.in_doubt()) == set(xids)

    for number, xid in enumerate(xids):
        if number == 4:
            broker.kill()
            broker.start()
        if number > 1:
            client.rm.drop()
            client = Client(broker.url)
        with pytest.raises(HeuristicOutcome) as told:
            client.rm.commit(xid, RMID)
        assert told.value.code is Code.XA_HEURHAZ
        with pytest.raises(HeuristicOutcome):
            client.rm.rollback(xid, RMID)
        assert client.rm.forget(xid, RMID) is Code.XA_OK
        with pytest.raises(UnknownBranch):
            client.rm.forget(xid, RMID)
    assert client.in_doubt() == set()
    client.rm.drop()


def test_an_old_branch_takes_no_work(client: Client, queue: str) -> None:
    """Artemis would send it outside of the branch once its timer has rolled that back."""
    other = Client(client.url.partition("?")[0], "branch_timeout=0.3")
    xid, session = other.begin()
    session.send(queue, Message("first"))
    time.sleep(0.4)
    with pytest.raises(BranchRolledBack) as told:
        session.send(queue, Message("late"))
    assert told.value.code is Code.XA_RBTIMEOUT
    with pytest.raises(BranchRolledBack):
        other.end(xid)
    other.rm.rollback(xid, RMID)
    assert client.look(queue) == []
    other.rm.drop()


def test_a_branch_that_was_rolled_back_behind_our_back(client: Client, queue: str) -> None:
    """Artemis' timer does so, or an operator: the vote is no."""
    xid, session = client.begin()
    session.send(queue, Message("never"))
    client.end(xid)
    ask(client.url, TransactionKind.ROLLBACK, xid)
    with pytest.raises(BranchRolledBack):
        client.rm.prepare(xid, RMID)
    assert client.look(queue) == []
    assert client.in_doubt() == set()


def test_a_message_of_an_unknown_branch_at_artemis(brokers: Callable[[str], JavaBroker], queue: str) -> None:
    """The reason for `branch_timeout`: it is sent at once. The day that this fails, the guard can go."""
    broker = brokers("artemis")
    connection = Connector(parse(broker.url)).connect()
    message = TextMessage(
        producer_id=connection.producer_id,
        destination=Queue(queue),
        transaction_id=transaction_id(new_xid()),
        message_id=connection.new_message(),
        content=b"\0\0\0\1x",
        persistent=True,
    )
    connection.ask(message)
    connection.close()
    client = Client(broker.url)
    assert client.look(queue) == ["x"]
    client.rm.drop()


@pytest.mark.long  # it is Artemis that does so; what doctor says of it is in the test of TLS
def test_artemis_deletes_a_queue_that_a_prepared_branch_sends_to(tmp_path: Path) -> None:
    """With its own settings it loses the message when it starts again. With auto-delete-queues off, which the other
    tests have, nothing is lost."""
    with running(Artemis(tmp_path, deletes_queues=True)) as broker:
        client = Client(broker.url)
        xid = client.prepared(lambda session: session.send("q", Message("lost")))
        broker.kill()
        broker.start()
        client.rm.drop()
        client = Client(broker.url)
        assert client.in_doubt() == {xid}
        assert client.rm.commit(xid, RMID) is Code.XA_OK
        with client.work() as session, pytest.raises(NoMessage):
            session.receive("q", 0.5)
        client.rm.drop()


def test_a_rollback_does_not_overtake_work(broker: JavaBroker) -> None:
    """A message is under way over a connection that is lost: the branch is rolled back over another one only when the
    broker must have noticed the loss, by the next recovery pass."""
    with Proxy(broker.url) as proxy:
        client = Client(proxy.url, "timeout=2&idle_timeout=1")
        queue = new_name()
        xid, session = client.begin()
        session.send(queue, Message("first"))
        proxy.hold_requests()
        with pytest.raises(XaError) as lost:
            session.send(queue, Message("under way"))
            client.end(xid)

        assert lost.value.code is Code.XAER_RMFAIL
        proxy.cut()
        client.rm.open(client.url, RMID)
        other = Client(proxy.url)
        assert client.in_doubt() == set()
        with suppress(UnknownBranch):
            client.rm.rollback(xid, RMID)
        time.sleep(2.1)
        assert client.in_doubt() == set()
        with pytest.raises(UnknownBranch):  # Classic has rolled it back with the connection
            other.rm.rollback(xid, RMID)
        assert client.look(queue) == []
        client.rm.drop()
        other.rm.drop()


def test_credentials(tmp_path: Path) -> None:
    with running(Classic(tmp_path, user="ada", password="p@ss:w/rd %")) as broker:  # noqa: S106 — made for this test
        quoted = broker.url.replace("openwire://", "openwire://ada:p%40ss%3Aw%2Frd%20%25@")
        client = Client(quoted, "plain_without_tls=true")
        client.put("q", ["x"])
        assert client.look("q") == ["x"]
        checks = {check.subject: check.health for check in client.rm.diagnose(client.url).checks}
        assert checks["encryption"] is Health.WARN
        client.rm.drop()
        wrong = OpenWireResource()
        for who in ("", "ada:wrong@"):
            url = broker.url.replace("openwire://", f"openwire://{who}") + "?plain_without_tls=true"
            with pytest.raises(XaError) as refused:
                wrong.open(url, RMID)
            assert refused.value.code is Code.XAER_RMERR
            assert "wrong" not in str(refused.value)


def test_tls_and_what_doctor_says_of_queues_that_go_by_themselves(tmp_path: Path) -> None:
    """Who is not vouched for is not talked to."""
    store = tmp_path / "broker.p12"
    make = ["openssl", "pkcs12", "-export", "-passout", "pass:changeit", "-out", str(store)]
    make += ["-inkey", str(CERTIFICATES / "broker.key"), "-in", str(CERTIFICATES / "broker.pem")]
    subprocess.run(make, check=True, capture_output=True)
    tls = f";sslEnabled=true;keyStoreType=PKCS12;keyStorePassword=changeit;keyStorePath={store}"

    with running(Artemis(tmp_path, options=tls, deletes_queues=True)) as broker:
        url = broker.url.replace("openwire://127.0.0.1", "openwire+ssl://localhost")
        client = Client(url, f"timeout=10&ca={CERTIFICATES}/ca.pem&idle_timeout=2")
        client.put("q", ["x" * 200_000])
        assert client.look("q") == ["x" * 200_000]
        checks = {check.subject: check for check in client.rm.diagnose(client.url).checks}
        assert checks["queues"].health is Health.WARN
        assert "auto-delete-queues" in checks["queues"].advice
        client.rm.drop()
        stranger = OpenWireResource()
        for wrong in (url, f"{broker.url}?timeout=2"):
            with pytest.raises(XaError) as refused:
                stranger.open(wrong, RMID)
            assert refused.value.code is Code.XAER_RMFAIL


def test_the_next_broker_of_the_list(broker: JavaBroker) -> None:
    client = Client(f"openwire://127.0.0.1:1,{broker.address}/")
    client.put(new_name(), ["x"])
    client.rm.drop()


def test_connections_are_kept_alive(broker: JavaBroker) -> None:
    """The broker closes a connection that is silent for twice as long."""
    client = Client(broker.url, "idle_timeout=0.6")
    queue = new_name()
    xid, session = client.begin()
    session.send(queue, Message("slow"))
    time.sleep(2.5)
    session.send(queue, Message("and steady"))
    client.end(xid)
    client.rm.prepare(xid, RMID)
    client.rm.commit(xid, RMID)
    assert client.look(queue) == ["slow", "and steady"]
    client.rm.drop()
