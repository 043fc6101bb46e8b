"""These tests cover the requests of several processes that share a global transaction, and work in bulk."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dtx.protocol.addresses import branch_address
from rm_amqp import Message
from tests.rm_amqp.client import RMID, Client
from tests.rm_amqp.embedded import EmbeddedBroker
from xa import TMSUCCESS, BranchRolledBack, Code, XaError, XaMisuse, Xid


def _octets(*bodies: str) -> list[bytes]:
    return [Message(body).encode() for body in bodies]


def _bodies(messages: list[bytes]) -> list[object]:
    found: list[object] = []
    for octets in messages:
        message = Message.from_octets(octets)
        found.append(message.body)
    return found


def test_an_empty_branch_that_is_prepared_to_be_kept_is_there_until_it_is_finished(client: Client) -> None:
    xid = client.start()
    client.end(xid)
    assert client.rm.prepare_kept(xid, RMID) is Code.XA_OK
    assert xid in client.rm.recover(RMID, 0x01000000 | 0x00800000)
    with pytest.raises(XaMisuse) as again:
        client.rm.start(xid, RMID)
    assert again.value.code is Code.XAER_DUPID
    client.rm.commit(xid, RMID)
    assert xid not in client.rm.prepared(RMID, xid.gtrid)


def test_what_is_fenced_can_be_neither_started_nor_prepared(connect: Callable[..., Client]) -> None:
    late, driver = connect(), connect()
    xid = late.start()
    late.end(xid)
    driver.rm.fence(xid.gtrid, RMID, xid.format_id)
    with pytest.raises(BranchRolledBack):
        late.rm.prepare_kept(xid, RMID)
    with pytest.raises(XaError) as refused:
        late.rm.start(Xid(xid.format_id, xid.gtrid, b"other"), RMID)
    assert refused.value.code is Code.XA_RBOTHER
    driver.rm.fence(xid.gtrid, RMID, xid.format_id)
    driver.rm.lift_fence(xid.gtrid, RMID, xid.format_id)
    driver.rm.lift_fence(xid.gtrid, RMID, xid.format_id)
    again = Xid(xid.format_id, xid.gtrid, b"again")
    late.rm.start(again, RMID)
    late.rollback(again)


def test_prepared_branches_are_found_by_the_beginning_of_their_gtrid(client: Client) -> None:
    ours = [Xid(1, b"pipe-a" + bytes([number]), b"x") for number in range(3)]
    other = Xid(1, b"pipe-b", b"x")
    for xid in (*ours, other):
        client.rm.start(xid, RMID)
        client.rm.end(xid, RMID, TMSUCCESS)
        client.rm.prepare_kept(xid, RMID)
    assert client.rm.prepared(RMID, b"pipe-a") == ours
    assert client.rm.prepared(RMID, b"pipe-") == [*ours, other]
    for xid in (*ours, other):
        client.rm.rollback(xid, RMID)


@pytest.mark.parametrize("restarted", [False, True])
def test_what_was_gathered_is_browsed_in_the_same_order(
    restarted: bool,
    broker: EmbeddedBroker,
    connect: Callable[..., Client],
    queue: str,
) -> None:
    """Also after a broker was started again, and where what was given back stands before what is new."""
    client = connect()
    client.put(queue, [f"{number}" for number in range(30)])
    first = client.start()
    assert _bodies(client.session.gather(queue, 10)) == [f"{number}" for number in range(10)]
    client.rollback(first)
    client.put(f"{queue}-2", [f"other {number}" for number in range(5)])
    xid = client.start()
    gathered = client.session.gather(queue, 12) + client.session.gather(f"{queue}-2", 100)
    gathered += client.session.gather(queue, 100)
    client.end(xid)
    assert client.rm.prepare_kept(xid, RMID) is Code.XA_OK

    if restarted:
        client.rm.drop()
        broker.stop()
        broker.start()
        client = connect()
    browsed = [octets for page in client.rm.retired(xid, RMID, 7) for octets in page]
    assert _bodies(browsed) == _bodies(gathered)
    assert len(gathered) == 35
    client.rm.rollback(xid, RMID)
    assert client.look(queue) == [f"{number}" for number in range(30)]
    assert client.look(f"{queue}-2") == [f"other {number}" for number in range(5)]


@pytest.mark.slow
def test_bulk_takes_no_more_than_asked_and_is_there_with_the_commit(client: Client, queue: str) -> None:
    """Nothing is sent ahead, and what is posted may be more than the credit."""
    bodies = [f"{number}" for number in range(1500)]  # three times the credit
    with client.work() as session:
        session.post(queue, _octets(*bodies))
        assert client.rm.first(queue, RMID) is None
    assert client.rm.first(queue, RMID) is not None
    with client.work() as session:
        assert _bodies(session.gather(queue, 4)) == bodies[:4]
    assert client.look(queue) == bodies[4:]
    with client.work() as session:
        assert _bodies(session.gather(queue, 5000)) == bodies[4:]
        assert session.gather(queue, 4) == []
    assert client.look(queue) == []


def test_a_branch_that_is_not_prepared_can_not_be_read(client: Client, queue: str) -> None:
    xid = client.start()
    with pytest.raises(XaMisuse) as active:
        next(iter(client.rm.retired(xid, RMID)))
    assert active.value.code is Code.XAER_PROTO
    client.rollback(xid)
    with pytest.raises(XaError) as unknown:
        next(iter(client.rm.retired(xid, RMID)))
    assert unknown.value.code is Code.XAER_NOTA
    assert branch_address(xid, "retired").endswith(str(xid))
    client.put(queue, ["still usable"])
    assert client.look(queue) == ["still usable"]


def test_what_is_gathered_by_a_lost_connection_comes_back(
    broker: EmbeddedBroker, connect: Callable[..., Client], queue: str
) -> None:
    lost, other = connect(), connect()
    other.put(queue, "abc")
    lost.start()
    assert len(lost.session.gather(queue, 2)) == 2
    broker.cut(lost.rm.container)
    assert other.look(queue) == ["a", "b", "c"]


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_what_is_gathered_may_be_more_than_the_broker_reads_at_a_time(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path)
    client = Client(broker.address)
    bodies = [f"{number:05}".ljust(200, "x") for number in range(20_000)]  # four times what waits for one peer
    with client.work() as session:
        session.post("much", _octets(*bodies))
    client.rm.drop()
    broker.stop()
    broker.start()  # what was posted has to be read from the store now

    def gather(_: int) -> list[object]:
        one = Client(broker.address)
        with one.work() as session:
            taken = _bodies(session.gather("much", len(bodies) // 2))
        one.rm.drop()
        return taken

    with ThreadPoolExecutor(2) as threads:
        halves = list(threads.map(gather, range(2)))
    assert sorted(map(str, halves[0] + halves[1])) == bodies
    broker.stop()


def test_gathered_messages_that_are_given_back_with_the_branch(connect: Callable[..., Client], queue: str) -> None:
    """Failed ones with their count raised, released ones without, when it commits; none of them when it rolls back."""
    client = connect()
    client.put(queue, "abcdef")
    for rounds in (1, 2):
        xid = client.start()
        assert _bodies(client.session.gather(queue, 5)) == list("abcde")
        client.end(xid)
        with pytest.raises(XaError, match="no place among them"):
            client.rm.prepare_kept(xid, RMID, failed=[5])
        client.rm.prepare_kept(xid, RMID, failed=[1, 3], released=[0])
        assert client.rm.holds(xid.gtrid, RMID) == {xid: 5}
        assert _bodies([octets for page in client.rm.retired(xid, RMID) for octets in page]) == ["c", "e"]
        if rounds == 1:
            client.rm.rollback(xid, RMID)
        else:
            client.rm.commit(xid, RMID)

    with client.work() as session:
        messages = [session.receive(queue, 5) for _ in range(4)]
        assert [(message.body, message.delivery_count) for message in messages] == [
            ("a", 0),
            ("b", 1),
            ("d", 1),
            ("f", 0),
        ]
