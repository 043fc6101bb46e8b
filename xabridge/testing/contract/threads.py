"""One client, several threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from xa import ROLLBACK_CODES, TMMULTIPLE, TMONEPHASE, TMUSEASYNC, Code, Xid

from .client import RMID, Client, Contract, new_key, new_xid, refused

THREADS = 6
ROUNDS = 5
PATIENCE_S = 60


class TestThreads(Contract):
    """Each thread is a thread of control of its own."""

    def test_threads_with_branches_of_their_own(self, client: Client) -> None:
        threads = min(THREADS, client.harness.capabilities.max_prepared)
        barrier = Barrier(threads)

        def work(number: int) -> tuple[set[str], set[str]]:
            kept, dropped = set(), set()
            barrier.wait(PATIENCE_S)
            for turn in range(ROUNDS):
                xid, key = new_xid(), new_key()
                client.start(xid)
                client.write(key)
                client.end(xid)
                if (number + turn) % 3 == 0:
                    client.rollback(xid)
                    dropped.add(key)
                    continue

                kept.add(key)
                if client.rm.flags & TMUSEASYNC:
                    client.send("prepare", xid)
                    assert client.rm.complete(None, RMID, TMMULTIPLE).code is Code.XA_OK
                else:
                    client.prepare(xid)
                assert client.commit(xid) is Code.XA_OK
            return kept, dropped

        with ThreadPoolExecutor(threads) as pool:
            results = [future.result() for future in [pool.submit(work, number) for number in range(threads)]]
        committed = client.harness.committed()
        for kept, dropped in results:
            assert kept <= committed
            assert not dropped & committed

    def test_a_thread_does_not_work_for_anothers_branch(self, client: Client) -> None:
        if client.registers:
            pytest.skip("registers itself: has a session for everybody")
        xid = client.begun(key := new_key())

        def intrude() -> None:
            with refused(Code.XAER_PROTO):
                client.rm.session(RMID)
            with refused(Code.XAER_PROTO):
                client.end(xid)

        with ThreadPoolExecutor(1) as pool:
            pool.submit(intrude).result()
        client.end(xid)
        client.commit(xid, TMONEPHASE)
        assert key in client.harness.committed()

    def test_two_threads_race_to_complete_a_branch(self, client: Client) -> None:
        """One of them does, and the other gets an error that it has ended; the reported outcome is what happened."""
        for _ in range(ROUNDS):
            xid = client.prepared(key := new_key())
            barrier = Barrier(2)

            def finish(verb: str, barrier: Barrier = barrier, xid: Xid = xid) -> Code:
                barrier.wait(PATIENCE_S)
                return client.retrying(verb, xid)

            with ThreadPoolExecutor(2) as pool:
                committed, rolled_back = pool.map(finish, ("commit", "rollback"))
            if committed is Code.XA_OK:
                assert rolled_back is Code.XAER_NOTA
            else:
                assert committed is Code.XAER_NOTA
                assert rolled_back in {Code.XA_OK, *ROLLBACK_CODES}
            assert (key in client.harness.committed()) == (committed is Code.XA_OK)
