"""These tests cover a broker that decides: how its tokens are founded and kept, what it refuses, and the work within a
transaction.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dtx.broker.settings import QueueSettings, Settings
from rm_amqp import DecidingBroker, Message, NoMessage
from tests.rm_amqp.decider.deciding import DecidingBrokerHarness, NetworkHarness
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.rm_amqp.foreign import foreign_broker
from xa import (
    TMFAIL,
    TMJOIN,
    TMRESUME,
    TMSUCCESS,
    TMSUSPEND,
    BranchRolledBack,
    Code,
    ResourceError,
    ResourceUnavailable,
    TryAgain,
    XaError,
    XaMisuse,
)
from xa.diagnosis import Health
from xabridge.testing.contract.client import RMID, new_xid
from xabridge.testing.contract.deciding import RECORD, Decider

ATTACH = b"\x00\x53\x12"
COORDINATOR = b"\x00\x53\x30"


def test_every_node_is_asked_for_as_a_queue(harness: DecidingBrokerHarness) -> None:
    """On demand some brokers make topics, which keep nothing for whoever comes later."""
    client = Decider(harness)
    assert isinstance(client.rm, DecidingBroker)
    client.rm.start(xid := new_xid(), RMID)
    session = client.rm.session(RMID)
    session.send(harness.queue, Message("x"))
    list(session.browse(harness.queue))
    with pytest.raises(NoMessage):
        session.receive(harness.queue, 0)
    client.rm.end(xid, RMID, TMSUCCESS)
    assert client.rm.decide(xid, RMID, RECORD) is Code.XA_OK
    sent = bytes(harness.weather[client.rm].sent)
    attaches = sent.split(ATTACH)[1:]
    assert len(attaches) > 15, "queues of tokens and of messages"
    assert all(b"\0\0\0\5queue" in attach for attach in attaches if COORDINATOR not in attach)


# --- tokens ---------------------------------------------------------------------------------------------------------
def test_the_number_of_slots_stays(harness: DecidingBrokerHarness) -> None:
    harness.opened()
    rm = harness.new()
    with pytest.raises(XaMisuse, match="was made with 8") as told:
        rm.open(harness.open_string.replace("slots=8", "slots=4"), RMID)
    assert told.value.code is Code.XAER_INVAL
    rm.open(harness.open_string.replace("&slots=8", ""), RMID)


def test_a_founding_queue_that_holds_something_else(harness: DecidingBrokerHarness) -> None:
    harness.alien(harness.tokens, Message("an order"))
    with pytest.raises(ResourceError, match="is not JSON"):
        harness.opened()
    assert harness.bodies(harness.tokens) == ["an order"]


def test_a_token_that_somebody_took(timeless: NetworkHarness) -> None:
    """Nothing is decided, and nothing is presumed."""
    harness = timeless
    client = Decider(harness)
    xid = client.ended(key := "key")
    message = harness.take(harness.queue_of(xid.gtrid))
    with pytest.raises(BranchRolledBack, match="held by another process, or does not exist"):
        client.decide(xid)
    with pytest.raises(TryAgain):
        client.settle(xid)
    with pytest.raises(TryAgain):
        client.decided()
    assert harness.committed() == set()
    harness.alien(harness.queue_of(xid.gtrid), message)
    assert client.settle(xid) is None
    assert client.decide(again := client.ended(key)) is Code.XA_OK
    assert client.settle(again) == RECORD


def test_a_token_that_somebody_copied(harness: DecidingBrokerHarness) -> None:
    """A copy from before a decision says that there is none: recovery believes neither."""
    client = Decider(harness)
    xid = client.ended("key")
    queue = harness.queue_of(xid.gtrid)
    (before,) = harness.bodies(queue)
    client.decide(xid)
    harness.alien(queue, Message(str(before)))
    for _ in range(2):
        with pytest.raises(ResourceError, match="two tokens"):
            client.settle(xid)
    assert len(harness.bodies(queue)) == 2


def test_what_is_no_token_stays_and_decides_nothing(harness: DecidingBrokerHarness) -> None:
    client = Decider(harness)
    xid = client.ended("key")
    queue = harness.queue_of(xid.gtrid)
    harness.take(queue)
    harness.alien(queue, Message("an order"))
    with pytest.raises(BranchRolledBack, match="is not JSON"):
        client.decide(xid)
    with pytest.raises(ResourceError, match="is not its token"):
        client.settle(xid)
    assert harness.bodies(queue) == ["an order"]
    assert harness.committed() == set()


def test_a_token_of_another_founding(harness: DecidingBrokerHarness) -> None:
    """The founding message was lost: what the tokens say is not thrown away."""
    client = Decider(harness)
    for _ in range(20):
        client.decide(client.ended("key"))
    harness.take(harness.tokens)
    with pytest.raises(ResourceError, match=f"decider {client.rm.decider_id.hex()} uses it"):
        harness.opened()


def test_a_token_that_comes_back_often_is_not_put_away(harness: DecidingBrokerHarness) -> None:
    """Twenty processes in a row die with the same token in their hands; the broker dead-letters at ten."""
    place = harness.queue_of(gtrid := new_xid().gtrid)
    for number in range(20):
        client = harness.using(harness.opened())
        xid = next(xid for xid in iter(new_xid, None) if harness.queue_of(xid.gtrid) == place)
        client.ended(f"key {number}", xid)
        harness.weather[client.rm].strike(xid.gtrid.hex().encode(), before=True)  # type: ignore[index]
        with pytest.raises(BranchRolledBack):
            client.decide(xid)
        harness.crash(client.rm)
    assert len(harness.bodies(place)) == 1
    assert harness.opened().settle(gtrid, RMID) is None


# --- only local transactions --------------------------------------------------------------------------------------
def test_nothing_but_local_transactions_is_asked_for(harness: DecidingBrokerHarness) -> None:
    """The embedded broker has distributed ones: a deciding client neither asks for them, nor names a transaction."""
    client = Decider(harness)
    xid = client.ended("key")
    client.rm.end_decisions([], RMID)
    sent = harness.weather[client.rm].sent  # type: ignore[index]
    assert b"amqp:local-transactions" in sent
    assert b"amqp:distributed-transactions" not in sent
    assert b"$dtx" not in sent
    assert xid.gtrid not in sent
    client.decide(xid)
    assert xid.gtrid.hex().encode() in sent, "in the token"
    assert xid.gtrid not in sent


NO_LOCAL = "has no amqp:local-transactions, which the one that decides needs"
NONE = "amqp:local-transactions for a broker that decides"


@pytest.mark.parametrize(
    ("offers", "ends_session", "told"),
    [(["amqp:distributed-transactions"], False, NO_LOCAL), (None, False, NONE), (None, True, NONE)],
)
def test_a_broker_without_local_transactions(offers: list[str] | None, ends_session: bool, told: str) -> None:
    with foreign_broker(offers, ends_session=ends_session) as address, pytest.raises(ResourceError) as refused:
        DecidingBroker().open(f"decider+amqp://{address}", RMID)
    assert told in str(refused.value)


# --- work -----------------------------------------------------------------------------------------------------------
def test_what_is_sent_is_durable(harness: DecidingBrokerHarness) -> None:
    harness.alien("durable", Message("1"), Message("2", durable=True, priority=7))
    first, second = harness.take("durable"), harness.take("durable")
    assert (first.body, first.durable) == ("1", True)
    assert (second.body, second.durable, second.priority) == ("2", True, 7)


@pytest.mark.parametrize("prefetch", ["", "&prefetch=10"])
@pytest.mark.parametrize("flags", [TMSUCCESS, TMFAIL])
def test_what_was_rolled_back_comes_again(harness: DecidingBrokerHarness, flags: int, prefetch: str) -> None:
    """On the same channel, in its order, counted."""
    harness.open_string += prefetch
    harness.alien(harness.queue, Message("1"), Message("2"), Message("3"))
    rm = harness.opened()
    rm.start(xid := new_xid(), RMID)
    assert [rm.session(RMID).receive(harness.queue, 5).body for _ in range(2)] == ["1", "2"]
    rm.end(xid, RMID, flags)
    rm.rollback(xid, RMID)
    rm.start(xid := new_xid(), RMID)

    messages = [rm.session(RMID).receive(harness.queue, 5) for _ in range(3)]
    assert [message.body for message in messages] == ["1", "2", "3"]
    assert messages[0].delivery_count == 1
    rm.session(RMID).release(messages[2])
    rm.end(xid, RMID, TMSUCCESS)
    rm.decide(xid, RMID, RECORD)
    rm.close("", RMID)
    assert harness.bodies(harness.queue) == ["3"]
    assert harness.left() == []


def test_a_message_that_is_not_taken_rolls_back(tmp_path: Path) -> None:
    settings = Settings(queues={"small": QueueSettings(max_depth=1)})
    broker = EmbeddedBroker(tmp_path, settings=settings)
    try:
        harness = DecidingBrokerHarness(broker, "small")
        rm = harness.opened()
        rm.start(xid := new_xid(), RMID)
        rm.session(RMID).send("other", Message("1"))
        with pytest.raises((BranchRolledBack, ResourceError)):
            for body in ("1", "2", "3"):
                rm.session(RMID).send("small", Message(body))
            rm.end(xid, RMID, TMSUCCESS)

        with pytest.raises(BranchRolledBack):
            rm.decide(xid, RMID, RECORD)
        assert harness.bodies("other") == harness.bodies("small") == []
        assert rm.settle(xid.gtrid, RMID) is None
        harness.close()
    finally:
        broker.stop()


def test_two_branches_of_one_thread_in_turn(harness: DecidingBrokerHarness) -> None:
    rm = harness.opened()
    first, second = new_xid(), new_xid()
    rm.start(first, RMID)
    rm.session(RMID).send(harness.queue, Message("1"))
    rm.end(first, RMID, TMSUSPEND)
    rm.start(second, RMID)
    rm.session(RMID).send(harness.queue, Message("2"))
    rm.end(second, RMID, TMSUCCESS)

    with pytest.raises(XaMisuse):
        rm.decide(first, RMID, RECORD)
    rm.start(first, RMID, TMRESUME)
    rm.session(RMID).send(harness.queue, Message("3"))
    rm.end(first, RMID, TMSUCCESS)
    rm.rollback(second, RMID)
    rm.decide(first, RMID, RECORD)
    assert harness.bodies(harness.queue) == ["1", "3"]


def test_another_thread_goes_on(harness: DecidingBrokerHarness) -> None:
    rm = harness.opened()
    rm.start(xid := new_xid(), RMID)
    rm.session(RMID).send(harness.queue, Message("1"))

    def join() -> None:
        rm.start(xid, RMID, TMJOIN)
        rm.session(RMID).send(harness.queue, Message("2"))
        rm.end(xid, RMID, TMSUCCESS)

    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(XaMisuse, match="at work"):
            pool.submit(join).result()
        rm.end(xid, RMID, TMSUCCESS)
        pool.submit(join).result()
    rm.decide(xid, RMID, RECORD)
    assert harness.bodies(harness.queue) == ["1", "2"]


def test_a_connection_that_is_lost_at_work(harness: DecidingBrokerHarness) -> None:
    rm = harness.opened()
    rm.start(xid := new_xid(), RMID)
    session = rm.session(RMID)
    session.send(harness.queue, Message("1"))
    harness.disconnect(rm)
    with pytest.raises(ResourceUnavailable):
        session.receive(harness.queue, 5)
    with pytest.raises(XaMisuse):
        session.send(harness.queue, Message("2"))
    rm.open(harness.open_string, RMID)
    with pytest.raises(BranchRolledBack):
        rm.decide(xid, RMID, RECORD)
    assert rm.settle(xid.gtrid, RMID) is None
    assert harness.bodies(harness.queue) == []


def test_a_thread_that_is_gone_leaves_nothing(harness: DecidingBrokerHarness) -> None:
    rm = harness.opened()
    xid = new_xid()

    def work() -> None:
        rm.start(xid, RMID)
        rm.session(RMID).send(harness.queue, Message("1"))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    del thread
    with pytest.raises(XaError):
        rm.decide(xid, RMID, RECORD)
    assert harness.bodies(harness.queue) == []


# --- doctor -----------------------------------------------------------------------------------------------------------
def test_what_doctor_says(harness: DecidingBrokerHarness) -> None:
    """It changes nothing."""
    url = harness.open_string
    found = DecidingBroker().diagnose(url)
    assert [(check.health, check.subject) for check in found.checks] == [(Health.OK, "usable"), (Health.OK, "tokens")]
    assert "the first start makes them" in found.checks[1].found
    rm = harness.opened()
    queues = [harness.tokens, *(f"{harness.tokens}.{slot}" for slot in range(9))]
    before = harness.every(queues)

    found = rm.diagnose(url)
    assert f"of decider {rm.decider_id.hex()}" in found.checks[1].found
    assert harness.every(queues) == before
    harness.take(f"{harness.tokens}.3")
    (check,) = rm.diagnose(url).checks[2:]
    assert (check.health, check.subject) == (Health.WARN, "token")
    assert f"{harness.tokens}.3" in check.found
    (check,) = DecidingBroker().diagnose("decider+amqp://127.0.0.1:1/?timeout=1").checks
    assert (check.health, check.subject) == (Health.FAIL, "reachable")
