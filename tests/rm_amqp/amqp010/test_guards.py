"""These tests show what Broker-J does differently from XA, straight on the wire, and that the driver guards against it.

docs/qpid.md says the same in words: where the broker changes, a test here fails, and the page has to change.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any, TypeVar

import pytest

from rm_amqp import Message
from rm_amqp.amqp010.branches import Branch
from rm_amqp.amqp010.channel import Channel, Refused
from rm_amqp.amqp010.driver import QpidDriver, on_wire
from rm_amqp.amqp010.resource import QpidResource
from rm_amqp.amqp010.session import MessageContent
from rm_amqp.amqp010.structs import (
    DeliveryProperties,
    DtxCommit,
    DtxEnd,
    DtxForget,
    DtxGetTimeout,
    DtxPrepare,
    DtxRecover,
    DtxRollback,
    DtxSetTimeout,
    DtxStart,
    GetTimeoutResult,
    MessageProperties,
    MessageTransfer,
    RecoverResult,
    Struct,
    XaResult,
    xids_of,
)
from tests.broker_j import BrokerJ
from tests.rm_amqp.amqp010.client import QpidClient
from tests.rm_amqp.client import RMID, new_xid
from tests.waiting import until
from xa import (
    FORMAT_ID,
    TMJOIN,
    TMSUCCESS,
    TMSUSPEND,
    BranchRolledBack,
    Code,
    ResourceUnavailable,
    ThreadOfControl,
    TryAgain,
    UnknownBranch,
    XaMisuse,
    Xid,
    entered,
)
from xa.diagnosis import Health

PATIENCE_S = 10
T = TypeVar("T", bound="Struct")


class Raw:
    """The broker's own behaviour: commands, as they are."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    def ask(self, command: Any, of: type[T]) -> T:
        """The answer to a command."""
        return self.channel.wait_result(self.channel.send(command), of, time.monotonic() + PATIENCE_S)

    def do(self, command: Any) -> int:
        """The status that a command comes to."""
        return self.ask(command, XaResult).status or 0

    def branch(self, xid: Xid, queue: str, body: bytes) -> None:
        """One that is prepared."""
        self.do(DtxStart(on_wire(xid)))
        self.send(queue, body)
        self.do(DtxEnd(on_wire(xid)))
        assert self.do(DtxPrepare(on_wire(xid))) == 0

    def complete(self, command: Any) -> None:
        """A command that has no answer."""
        self.channel.wait_complete(self.channel.send(command, sync=True), time.monotonic() + PATIENCE_S)

    def refused(self, command: Any) -> int:
        """The code that a command is refused with."""
        with pytest.raises(Refused) as refused:
            self.complete(command)
        self.channel.renew(time.monotonic() + PATIENCE_S)
        return refused.value.code

    def send(self, queue: str, body: bytes) -> None:
        """A message, under the branch that is associated."""
        delivery = DeliveryProperties(routing_key=queue, delivery_mode=2)
        self.channel.send(MessageTransfer("", 0, 0), MessageContent(delivery, MessageProperties(), body))

    def prepared(self) -> list[Xid]:
        """What is in doubt."""
        found = xids_of(self.ask(DtxRecover(), RecoverResult))
        return [Xid(xid.format or 0, xid.global_id or b"", xid.branch_id or b"") for xid in found]

    def timeout(self, xid: Xid) -> int:
        """The seconds that the broker gives a branch."""
        return self.ask(DtxGetTimeout(on_wire(xid)), GetTimeoutResult).timeout or 0


@pytest.fixture
def raw(broker_j: BrokerJ) -> Iterator[Raw]:
    channel = broker_j.connect()
    yield Raw(channel)
    channel.close(time.monotonic() + 2)


@pytest.fixture
def other(broker_j: BrokerJ) -> Iterator[Raw]:
    channel = broker_j.connect()
    yield Raw(channel)
    channel.drop()


# --- rollback-only branches ------------------------------------------------------------------------------------------
def test_broker_j_prepares_the_work_of_a_session_that_died(raw: Raw, other: Raw, broker_j: BrokerJ, queue: str) -> None:
    xid = new_xid()
    other.do(DtxStart(on_wire(xid)))
    other.send(queue, b"half")
    name = other.channel.session_name
    other.channel.flush(time.monotonic() + PATIENCE_S)
    other.channel.wait_complete(other.channel.session.sync(), time.monotonic() + PATIENCE_S)
    other.channel.drop()
    broker_j.wait_until_gone([name])
    assert raw.do(DtxPrepare(on_wire(xid))) == 0, "it should be refused: the session never ended its work"
    assert raw.do(DtxCommit(on_wire(xid))) == 0
    assert broker_j.bodies(queue) == [b"half"]


def test_a_thread_whose_connection_died_fails_the_branch(client: QpidClient, queue: str) -> None:
    xid = client.start()
    client.session.send(queue, Message("whole"))
    second = ThreadOfControl()
    with entered(second):
        client.start(TMJOIN, xid)
        client.session.send(queue, Message("half"))
        work = client.rm._thread().current
        assert work is not None
        work.work.channel.break_off()

    client.end(xid)
    with pytest.raises(XaMisuse):  # the second thread has not ended
        client.rm.prepare(xid, RMID)
    with entered(second), pytest.raises(ResourceUnavailable):
        client.rm.end(xid, RMID, TMSUCCESS)
    with pytest.raises(BranchRolledBack):
        client.rm.prepare(xid, RMID)
    assert client.in_doubt() == set()
    assert client.look(queue) == []


def test_a_branch_that_another_instance_began_is_not_prepared(
    client: QpidClient, broker_j: BrokerJ, queue: str
) -> None:
    """Nobody here knows whether all of its work was done."""
    xid = client.start()
    client.session.send(queue, Message("x"))
    stranger = QpidClient(broker_j.url)
    with pytest.raises(XaMisuse):  # somebody is at work in it
        stranger.rm.prepare(xid, RMID)
    with pytest.raises(XaMisuse):
        stranger.rm.start(xid, RMID, TMJOIN)
    client.end(xid)
    with pytest.raises(UnknownBranch):
        stranger.rm.prepare(xid, RMID)
    with pytest.raises(UnknownBranch):
        client.rm.prepare(xid, RMID)
    assert client.look(queue) == []
    stranger.rm.close("", RMID)


def test_a_loss_that_the_broker_has_not_noticed_yet(client: QpidClient, raw: Raw) -> None:
    """Somebody is at work in the branch, the broker says. It is asked again, and then nothing is known to be wrong."""
    xid = new_xid()
    raw.do(DtxStart(on_wire(xid)))
    client.driver.branches.add(xid, Branch(math.inf, failed=Code.XA_RBCOMMFAIL))
    for verb in (client.rm.rollback, client.rm.prepare):
        with pytest.raises(TryAgain, match="has not noticed yet"):
            verb(xid, RMID)
    raw.do(DtxEnd(on_wire(xid)))
    assert client.rm.rollback(xid, RMID) is Code.XA_OK


# --- joining what is prepared ----------------------------------------------------------------------------------------
@pytest.mark.long  # it is started anew to show what it has lost
def test_broker_j_joins_a_prepared_branch_and_loses_the_work(
    raw: Raw, other: Raw, broker_j: BrokerJ, queue: str
) -> None:
    """It is in the queue after the commit, and not in the store: the next start shows that."""
    xid = new_xid()
    raw.branch(xid, queue, b"before")
    assert other.do(DtxStart(on_wire(xid), join=True)) == 0, "it should be refused: the branch is prepared"
    other.send(queue, b"after")
    other.do(DtxEnd(on_wire(xid)))
    assert raw.do(DtxCommit(on_wire(xid))) == 0
    broker_j.kill()
    broker_j.start()
    assert broker_j.bodies(queue) == [b"before"]


def test_broker_j_prepares_a_branch_that_is_suspended(raw: Raw, client: QpidClient) -> None:
    xid = new_xid()
    raw.do(DtxStart(on_wire(xid)))
    raw.do(DtxEnd(on_wire(xid), suspend=True))
    assert raw.do(DtxPrepare(on_wire(xid))) == 0, "it should be refused: the association has not ended"
    assert raw.do(DtxRollback(on_wire(xid))) == 0
    xid = client.start()
    client.end(xid, TMSUSPEND)
    with entered(ThreadOfControl()), pytest.raises(XaMisuse):
        client.rm.prepare(xid, RMID)
    client.end(xid)
    client.rm.rollback(xid, RMID)


# --- the timer -------------------------------------------------------------------------------------------------------
def test_the_timer_of_broker_j_rolls_back_a_prepared_branch(raw: Raw, broker_j: BrokerJ, queue: str) -> None:
    xid = new_xid()
    raw.do(DtxStart(on_wire(xid)))
    raw.complete(DtxSetTimeout(on_wire(xid), 1))
    raw.send(queue, b"promised")
    raw.do(DtxEnd(on_wire(xid)))
    assert raw.do(DtxPrepare(on_wire(xid))) == 0
    until(lambda: xid not in raw.prepared())
    assert raw.do(DtxCommit(on_wire(xid))) == 2, "rolled back by the timer"
    assert broker_j.bodies(queue) == []


@pytest.mark.parametrize(("seconds", "others"), [(600, 0), (0, 300)], ids=["ours", "somebody else's"])
def test_a_branch_has_a_timer_until_it_is_prepared(broker_j: BrokerJ, raw: Raw, seconds: int, others: int) -> None:
    client = QpidClient(f"{broker_j.url}?branch_timeout={seconds}")
    xid = client.start()
    assert raw.timeout(xid) == seconds
    if others:
        raw.complete(DtxSetTimeout(on_wire(xid), others))
    client.end(xid)
    assert raw.timeout(xid) == seconds + others
    assert client.rm.prepare(xid, RMID) is Code.XA_OK
    assert raw.timeout(xid) == 0
    assert client.rm.commit(xid, RMID) is Code.XA_OK
    client.rm.close("", RMID)


def test_opening_stops_the_timers_of_our_prepared_branches(client: QpidClient, broker_j: BrokerJ, raw: Raw) -> None:
    xids = [Xid(format_id, new_xid().gtrid, b"b") for format_id in (FORMAT_ID, FORMAT_ID + 1)]
    for xid in xids:
        client.prepared(xid=xid)
        raw.complete(DtxSetTimeout(on_wire(xid), 300))
    checks = {check.subject: check for check in QpidResource().diagnose(broker_j.url).checks}
    assert checks["timers"].health is Health.WARN
    assert [raw.timeout(xid) for xid in xids] == [300, 300], "the doctor changes nothing"
    QpidClient(broker_j.url).rm.close("", RMID)
    assert [raw.timeout(xid) for xid in xids] == [0, 300], "another program's branches are its own matter"
    for xid in xids:
        assert client.rm.rollback(xid, RMID) is Code.XA_OK


class Clock:
    """A clock that a test can put forward."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead_s


@pytest.mark.parametrize("when", ["end", "prepare", "commit"])
def test_a_branch_whose_time_is_nearly_over_is_rolled_back(broker_j: BrokerJ, queue: str, when: str) -> None:
    """The broker's timer may be at it, at the same moment as the prepare."""
    clock = Clock()
    client = QpidClient(f"{broker_j.url}?branch_timeout=600&heartbeat=0", QpidDriver(clock))
    client.put(queue, ["x"])
    xid = client.start()
    client.session.receive(queue, 5)
    if when != "end":
        client.end(xid)
    clock.ahead_s = 545

    with pytest.raises(BranchRolledBack) as told:
        if when == "end":
            client.rm.end(xid, RMID, TMSUCCESS)
        elif when == "prepare":
            client.rm.prepare(xid, RMID)
        else:
            client.rm.commit(xid, RMID, 0x40000000)
    assert told.value.code is Code.XA_RBTIMEOUT
    if when == "end":
        with pytest.raises(BranchRolledBack):
            client.rm.prepare(xid, RMID)
    assert client.look(queue) == ["x"]
    client.rm.close("", RMID)


# --- xids ------------------------------------------------------------------------------------------------------------
def test_broker_j_takes_two_format_ids_for_one(raw: Raw, queue: str) -> None:
    xid = new_xid()
    same = Xid(xid.format_id + 1, xid.gtrid, xid.bqual)
    raw.branch(xid, queue, b"x")
    assert raw.do(DtxRollback(on_wire(same))) == 0, "it should not be found"
    assert xid not in raw.prepared()


def test_the_branch_of_another_format_id_is_left_alone(client: QpidClient, broker_j: BrokerJ) -> None:
    xid = client.prepared()
    same = Xid(xid.format_id + 1, xid.gtrid, xid.bqual)
    stranger = QpidClient(broker_j.url)
    for verb in (stranger.rm.commit, stranger.rm.rollback, stranger.rm.prepare, stranger.rm.forget):
        with pytest.raises(UnknownBranch):
            verb(same, RMID)
    assert xid in client.in_doubt()
    assert stranger.rm.commit(xid, RMID) is Code.XA_OK
    stranger.rm.close("", RMID)


# --- forget, heuristics ----------------------------------------------------------------------------------------------
def test_forget_is_refused(client: QpidClient, raw: Raw) -> None:
    """Broker-J completes nothing heuristically, so that there is nothing to forget."""
    xid = client.prepared()
    assert raw.refused(DtxForget(on_wire(xid))) == 409
    with pytest.raises(XaMisuse):
        client.rm.forget(xid, RMID)
    client.rm.rollback(xid, RMID)
    assert raw.refused(DtxForget(on_wire(xid))) == 404
    with pytest.raises(UnknownBranch):
        client.rm.forget(xid, RMID)


# --- what a client that dies leaves ----------------------------------------------------------------------------------
def test_broker_j_lists_no_branch_that_is_not_prepared(client: QpidClient, broker_j: BrokerJ, queue: str) -> None:
    """What ended and was never prepared is freed by its timer only: nothing shows it."""
    client.put(queue, ["x"])
    dying = QpidClient(broker_j.url)
    xid = dying.start()
    dying.session.receive(queue, 5)
    dying.end(xid)
    dying.rm.drop()
    assert xid not in client.in_doubt()
    assert client.look(queue) == []
    assert client.rm.rollback(xid, RMID) is Code.XA_OK
    assert client.look(queue) == ["x"]


# --- restarts, silence -----------------------------------------------------------------------------------------------
def test_a_broker_that_does_not_answer(broker_j: BrokerJ) -> None:
    client = QpidClient(f"{broker_j.url}?timeout=1")
    xid = client.start()
    client.end(xid)
    broker_j.freeze()
    try:
        with pytest.raises(ResourceUnavailable, match="did not answer in time"):
            client.rm.prepare(xid, RMID)
        with pytest.raises(ResourceUnavailable):
            client.rm.open(client.url, RMID)
    finally:
        broker_j.thaw()

    assert client.rm.open(client.url, RMID) is Code.XA_OK
    with pytest.raises(XaMisuse, match="may be"):
        client.rm.prepare(xid, RMID)
    assert client.rm.rollback(xid, RMID) is Code.XA_OK
    assert client.in_doubt() == set()
    client.rm.close("", RMID)


def test_heartbeats_keep_a_thread_that_computes_and_find_a_dead_broker(broker_j: BrokerJ, queue: str) -> None:
    client = QpidClient(f"{broker_j.url}?heartbeat=1&timeout=20")
    with client.work() as session:
        session.send(queue, Message("x"))
        time.sleep(3)  # the broker gives up who says nothing for two seconds
    assert client.look(queue) == ["x"]
    xid = client.start()
    broker_j.freeze()
    try:
        with pytest.raises(ResourceUnavailable, match="not even heartbeats"):
            client.rm.end(xid, RMID, TMSUCCESS)
    finally:
        broker_j.thaw()
    client.rm.drop()


# --- opening ---------------------------------------------------------------------------------------------------------
def test_ways_in(broker_j: BrokerJ) -> None:
    ca = "tests/interop/certificates/ca.pem"
    for url in (
        broker_j.url,
        f"amqp010://{broker_j.address}/default",
        f"amqp010://shop:secret@127.0.0.1:{broker_j.named_port}/",
        f"amqp010s://shop:secret@localhost:{broker_j.tls_port}/?ca={ca}",
        f"amqp010://127.0.0.1:1,{broker_j.address}/",
    ):
        QpidClient(url).rm.close("", RMID)
        assert {check.health for check in QpidResource().diagnose(url).checks} == {Health.OK}


@pytest.mark.parametrize(
    ("where", "code", "told"),
    [
        ("amqp010://{address}/nowhere", Code.XAER_RMERR, "has no virtual host 'nowhere'"),
        ("amqp010://shop:wrong@127.0.0.1:{named}/", Code.XAER_RMERR, "refuses SCRAM-SHA-256 as 'shop'"),
        ("amqp010://127.0.0.1:{named}/", Code.XAER_RMERR, "give a user and password"),
        ("amqp010s://shop:secret@localhost:{tls}/", Code.XAER_RMERR, "TLS: CERTIFICATE_VERIFY_FAILED"),
        ("amqp010://127.0.0.1:1/", Code.XAER_RMFAIL, "can't be reached"),
        ("amqp010://{address}/?branch_timeout=5", Code.XAER_INVAL, "at least 10 seconds"),
        ("amqp010://{address}/?prefetch=5", Code.XAER_INVAL, "there is no such option"),
    ],
)
def test_ways_that_lead_nowhere(broker_j: BrokerJ, where: str, code: Code, told: str) -> None:
    url = where.format(address=broker_j.address, named=broker_j.named_port, tls=broker_j.tls_port)
    rm = QpidResource()
    with pytest.raises(Exception, match=told) as raised:
        rm.open(url, RMID)
    assert getattr(raised.value, "code", None) is code
    assert "secret" not in str(raised.value)
    (check,) = rm.diagnose(url).checks
    assert check.health is Health.FAIL
    assert check.advice


def test_warnings_of_the_doctor(broker_j: BrokerJ) -> None:
    url = f"amqp010://shop:secret@127.0.0.1:{broker_j.named_port}/?branch_timeout=0&plain_without_tls=true"
    checks = {check.subject: check.health for check in QpidResource().diagnose(url).checks}
    assert checks["branch timeout"] is Health.WARN
    assert checks["encryption"] is Health.WARN
