"""More than fits: branches, operations and threads beyond the connections that an instance may have."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING

import pytest

from xa import (
    TMNOWAIT,
    TMONEPHASE,
    TMUSEASYNC,
    Code,
    Handle,
    TryAgain,
    XaMisuse,
)

from .client import RMID, Client, Contract, elsewhere, new_key, new_xid, refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from xa import Xid

    from .harness import Harness

MANY = 45
THREADS = 3
PATIENCE_S = 60


def overlap(client: Client, verb: str, xids: Iterable[Xid]) -> dict[Xid, Code]:
    """Sends the verb for every branch before anything is collected, unless XAER_ASYNC asks to collect first."""
    codes: dict[Xid, Code] = {}
    sent: dict[Xid, Handle] = {}
    for xid in xids:
        while xid not in sent:
            try:
                sent[xid] = client.send(verb, xid)
            except XaMisuse as error:
                assert error.code is Code.XAER_ASYNC, error  # noqa: PT017 — one of two right answers
                assert sent.keys() - codes.keys(), "nothing is outstanding that could be collected"
                collect(client, sent, codes)
    collect(client, sent, codes)
    return codes


def collect(client: Client, sent: dict[Xid, Handle], codes: dict[Xid, Code]) -> None:
    """Hears every operation that was sent, the last one first."""
    for xid in reversed(sent):
        if xid not in codes:
            codes[xid] = client.wait(sent[xid])


class TestCapacity(Contract):
    """An instance with as little room as can be configured, and a transaction manager that does not know how much
    that is. Nothing waits for what its own thread of control holds; and "not now" is never an outcome."""

    @pytest.fixture
    def client(self, harness: Harness) -> Iterator[Client]:
        """A client with little room, closed and seen to have left nothing behind."""
        harness.narrow()
        client = Client(harness, opened=False)
        if not client.rm.flags & TMUSEASYNC:
            pytest.skip("does not offer TMASYNC")
        client.reopen()
        yield client
        client.rm.close("", RMID)
        assert harness.leaks() == []

    @pytest.mark.timeout(PATIENCE_S)
    @pytest.mark.parametrize("verb", ["commit", "rollback"])
    def test_more_branches_than_there_is_room_for(self, client: Client, verb: str) -> None:
        """Every one is carried out, however many are sent before one is collected."""
        keys = {client.prepared(key): key for key in (new_key() for _ in range(MANY))}
        assert set(overlap(client, verb, keys).values()) == {Code.XA_OK}
        assert not keys.keys() & client.in_doubt()
        committed = client.harness.committed()
        assert set(keys.values()) & committed == (set(keys.values()) if verb == "commit" else set())

    @pytest.mark.timeout(PATIENCE_S)
    def test_as_many_prepares_as_branches_could_be_started(self, client: Client) -> None:
        if client.registers:
            pytest.skip("registers itself, and is not asked whether it may wait")
        keys: dict[Xid, str] = {}
        for _ in range(MANY):
            xid, key = new_xid(), new_key()
            try:
                client.start(xid, TMNOWAIT)
            except TryAgain:
                break
            client.write(key)
            client.end(xid)
            keys[xid] = key

        assert keys
        assert set(overlap(client, "prepare", keys).values()) == {Code.XA_OK}
        assert keys.keys() <= client.in_doubt()
        assert set(overlap(client, "commit", keys).values()) == {Code.XA_OK}
        assert set(keys.values()) <= client.harness.committed()

    @pytest.mark.timeout(PATIENCE_S)
    def test_synchronous_calls_while_all_the_room_is_taken(self, client: Client) -> None:
        """The thread whose operations take all the room goes on with what needs no room: commits, rolls back, scans,
        and starts another branch."""
        keys = {client.prepared(key): key for key in (new_key() for _ in range(MANY))}
        *many, committed, rolled_back = keys
        sent: dict[Xid, Handle] = {}
        for xid in many:
            try:
                sent[xid] = client.send("commit", xid)
            except XaMisuse as error:
                assert error.code is Code.XAER_ASYNC  # noqa: PT017 — one of two right answers
                break

        assert client.commit(committed) is Code.XA_OK
        assert client.retrying("rollback", rolled_back) is Code.XA_OK
        assert not {committed, rolled_back} & client.in_doubt()
        another = client.prepared(new_key())
        assert {client.wait(handle) for handle in sent.values()} == {Code.XA_OK}
        for xid in many[len(sent) :]:
            client.commit(xid)
        client.rollback(another)
        assert client.harness.committed() >= {key for xid, key in keys.items() if xid != rolled_back}
        assert keys[rolled_back] not in client.harness.committed()

    @pytest.mark.timeout(PATIENCE_S)
    def test_several_threads_that_send_before_anybody_collects(self, client: Client) -> None:
        """What one thread has not collected yet is not in the way of another."""
        share = MANY // THREADS
        keys = [{client.prepared(key): key for key in (new_key() for _ in range(share))} for _ in range(THREADS)]
        barrier = Barrier(THREADS)

        def work(mine: dict[Xid, str]) -> set[Code]:
            sent: dict[Xid, Handle] = {}
            codes: dict[Xid, Code] = {}
            for xid in mine:
                try:
                    sent[xid] = client.send("commit", xid)
                except XaMisuse as error:
                    assert error.code is Code.XAER_ASYNC  # noqa: PT017 — the other right answer
                    break
            barrier.wait(PATIENCE_S)
            collect(client, sent, codes)
            for xid in mine.keys() - codes.keys():
                codes[xid] = client.commit(xid)
            return set(codes.values())

        with ThreadPoolExecutor(THREADS) as pool:
            results = list(pool.map(work, keys))
        assert results == [{Code.XA_OK}] * THREADS
        assert {key for mine in keys for key in mine.values()} <= client.harness.committed()

    @pytest.mark.timeout(PATIENCE_S)
    def test_not_now_changes_nothing(self, client: Client) -> None:
        """A start that there is no room for is XA_RETRY, and so is that of a thread which has waited as long as it
        may; what is prepared can be finished all the same."""
        if client.registers:
            pytest.skip("registers itself, and is not asked whether it may wait")
        keys = {client.prepared(key): key for key in (new_key() for _ in range(3))}
        started: list[Xid] = []
        refused_one: Xid | None = None
        for _ in range(MANY):
            xid = new_xid()
            with elsewhere():
                try:
                    client.start(xid, TMNOWAIT)
                except TryAgain:
                    refused_one = xid
                    break
                client.end(xid)
                started.append(xid)
        if refused_one is not None:
            with refused(Code.XA_RETRY):
                client.start(refused_one)

        first, second, third = keys
        assert client.commit(first) is Code.XA_OK
        assert client.retrying("rollback", second) is Code.XA_OK
        assert client.wait(client.send("commit", third)) is Code.XA_OK
        for xid in started:
            client.retrying("rollback", xid)
        if refused_one is not None:
            assert client.commit(client.ended(new_key(), refused_one), TMONEPHASE) is Code.XA_OK
        assert {keys[first], keys[third]} <= client.harness.committed()
        assert keys[second] not in client.harness.committed()

    def test_an_operation_that_is_never_collected(self, client: Client) -> None:
        """A thread of control that is gone has left operations behind: others go on, and close says so."""
        keys = {client.prepared(key): key for key in (new_key() for _ in range(MANY))}
        *many, last = keys
        sent = []
        with elsewhere():
            for xid in many:
                try:
                    sent.append(client.send("commit", xid))
                except XaMisuse:
                    break

        assert client.commit(last) is Code.XA_OK
        with refused(Code.XAER_PROTO):
            client.rm.close("", RMID)
        assert {client.wait(handle) for handle in sent} == {Code.XA_OK}
        for xid in many[len(sent) :]:
            client.commit(xid)
        assert set(keys.values()) <= client.harness.committed()
