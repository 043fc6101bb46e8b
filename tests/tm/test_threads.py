"""These tests run transactions in many threads over a FileLog, with resource managers that now and then refuse,
disappear and time out.

Every transaction writes a key of its own into both stores. Afterwards the key must be in both or in neither, according
to the outcome that the thread got, and nothing may be left anywhere. XABRIDGE_THREADS_SEED runs another seed.
"""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.tm.shop import Shop
from tm import OutcomeUnknown, RolledBack
from xa import TMREGISTER, TMUSEASYNC, Code, ResourceUnavailable
from xabridge.testing.reference import Fate

if TYPE_CHECKING:
    from pathlib import Path

    from tm import Transaction

SEED = int(os.environ.get("XABRIDGE_THREADS_SEED", "1"))
LONG = os.environ.get("XABRIDGE_LONG") == "all"
FAULTS: list[tuple[str, Code | None, Fate]] = [
    ("work", None, Fate.REQUEST_LOST),
    ("work", Code.XA_RBDEADLOCK, Fate.ARRIVES),
    ("end", None, Fate.REQUEST_LOST),
    ("end", Code.XA_RBTIMEOUT, Fate.ARRIVES),
    ("prepare", Code.XA_RBINTEGRITY, Fate.ARRIVES),
    ("prepare", Code.XAER_RMERR, Fate.ARRIVES),
    ("prepare", None, Fate.REQUEST_LOST),
    ("prepare", None, Fate.REPLY_LOST),
    ("commit", None, Fate.REQUEST_LOST),
    ("commit", None, Fate.REPLY_LOST),
    ("commit", Code.XA_RETRY, Fate.ARRIVES),
    ("rollback", None, Fate.REQUEST_LOST),
    ("rollback", None, Fate.REPLY_LOST),
]


class Crowd:
    """The threads, and what each transaction was told."""

    def __init__(self, shop: Shop, seed: int, threads: int, each: int, names: str) -> None:
        self.shop = shop
        self.seed = seed
        self.threads = threads
        self.each = each
        self.names = names
        self.told: dict[str, str] = {}
        self.failed: list[BaseException] = []

    def run(self) -> None:
        threads = [threading.Thread(target=self._work, args=(number,)) for number in range(self.threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _work(self, number: int) -> None:
        random = Random(f"{self.seed}-{number}")
        try:
            for count in range(self.each):
                key = f"{number}-{count}"
                self.told[key] = self._transaction(random, key)
        except BaseException as error:  # noqa: BLE001 — told to the test
            self.failed.append(error)

    def _transaction(self, random: Random, key: str) -> str:
        tm = self.shop.tm
        tx: Transaction | None = None
        try:
            with tm.begin() as tx:
                for name in random.sample(self.names, len(self.names)):
                    tx[name].write(key, 1)
                    if random.random() < 0.15:
                        self._fault(random, name, tx)
                if random.random() < 0.1:
                    tm.suspend()
                    tm.resume(tx)
                if random.random() < 0.1:
                    tx.set_rollback_only()
                if random.random() < 0.1:
                    raise LookupError(key)  # noqa: TRY301 — what an application does
                if random.random() < 0.2:
                    tx.commit(wait="logged")
        except (RolledBack, LookupError):
            return "rolled back"
        except OutcomeUnknown:
            return "unknown"
        except ResourceUnavailable:  # from the session; the block was rolled back
            return "rolled back"
        assert tx is not None
        return "committed"

    def _fault(self, random: Random, name: str, tx: Transaction) -> None:
        store = self.shop[name]
        verb, answer, fate = random.choice(FAULTS)
        with store.lock:
            store.script.plan(verb, answer, fate, xid=tx.xid(name))


@pytest.mark.parametrize(
    ("threads", "each"), [(16, 4), pytest.param(64, 100 if LONG else 8, marks=pytest.mark.slow)], ids=str
)
@pytest.mark.parametrize(
    ("flags", "decider"),
    [(TMUSEASYNC, False), (0, False), (TMUSEASYNC | TMREGISTER, False), (TMUSEASYNC, True)],
    ids=["overlapped", "one after another", "registers", "decider"],
)
def test_a_crowd(tmp_path: Path, flags: int, threads: int, each: int, *, decider: bool) -> None:
    before = set(threading.enumerate())
    shop = Shop(tmp_path)
    shop.flags["a"] = flags
    if decider:
        shop.add_decider()
    arguments = {} if decider else {"log": shop.log_url}
    tm = shop.open(background=True, recovery_interval_s=0.05, **arguments)
    crowd = Crowd(shop, SEED, threads, each, "".join(shop.stores))
    crowd.run()
    assert not crowd.failed, f"seed {SEED}: {crowd.failed}"
    tm.executor.stop()
    for store in shop.stores.values():
        store.script.clear()
    shop.clock.pass_by(100)
    for _ in range(3):
        report = tm.recover()
    assert report.clean, report
    for key, told in crowd.told.items():
        values = set(shop.values(key).values())
        assert len(values) == 1, f"seed {SEED}: {key} was told {told}, {shop.values(key)}"
        if told != "unknown":
            assert values == {1 if told == "committed" else None}, f"seed {SEED}: {key} was told {told}"
    assert set(Counter(crowd.told.values())) >= {"committed", "rolled back"}
    assert len(crowd.told) == threads * each
    shop.assert_nothing_left()
    gc.collect()
    for client in shop.clients.values():
        assert not client.associated
    for resource in tm.resources.values():
        assert len(resource._lost) <= 1, "threads of control that are gone are forgotten"
    tm.close()
    assert set(threading.enumerate()) <= before
