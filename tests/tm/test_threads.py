"""These tests run transactions in many threads over a FileLog, with resource managers that now and then refuse,
disappear and time out.

Every transaction writes a key of its own into both stores. Afterwards the key must be in both or in neither, according
to the outcome that the thread got, and nothing may be left anywhere. XABRIDGE_THREADS_SEED runs another seed.
"""

from __future__ import annotations

import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from tests.tm.shop import Shop
from tm import OutcomeUnknown, RolledBack
from xa import TMREGISTER, TMUSEASYNC, Code, ResourceUnavailable
from xabridge.testing.reference import NetworkFault

SEED = int(os.environ.get("XABRIDGE_THREADS_SEED", "1"))
LONG = os.environ.get("XABRIDGE_LONG") == "all"
FAULTS: list[tuple[str, Code | None, NetworkFault]] = [
    ("work", None, NetworkFault.REQUEST_LOST),
    ("work", Code.XA_RBDEADLOCK, NetworkFault.ARRIVES),
    ("end", None, NetworkFault.REQUEST_LOST),
    ("end", Code.XA_RBTIMEOUT, NetworkFault.ARRIVES),
    ("prepare", Code.XA_RBINTEGRITY, NetworkFault.ARRIVES),
    ("prepare", Code.XAER_RMERR, NetworkFault.ARRIVES),
    ("prepare", None, NetworkFault.REQUEST_LOST),
    ("prepare", None, NetworkFault.REPLY_LOST),
    ("commit", None, NetworkFault.REQUEST_LOST),
    ("commit", None, NetworkFault.REPLY_LOST),
    ("commit", Code.XA_RETRY, NetworkFault.ARRIVES),
    ("rollback", None, NetworkFault.REQUEST_LOST),
    ("rollback", None, NetworkFault.REPLY_LOST),
]


def worked(shop: Shop, seed: int, number: int, each: int) -> dict[str, str]:
    """What each transaction of this thread was told."""
    random = Random(f"{seed}-{number}")
    return {key: told(shop, random, key) for key in (f"{number}-{count}" for count in range(each))}


def told(shop: Shop, random: Random, key: str) -> str:
    try:
        with shop.tm.begin() as tx:
            for name in random.sample(list(shop.stores), len(shop.stores)):
                tx[name].write(key, 1)
                if random.random() < 0.15:
                    verb, answer, fate = random.choice(FAULTS)
                    with shop[name].lock:
                        shop[name].script.plan(verb, answer, fate, xid=tx.xid(name))
            if random.random() < 0.1:
                shop.tm.suspend()
                shop.tm.resume(tx)

            if random.random() < 0.1:
                tx.set_rollback_only()
            if random.random() < 0.1:
                raise LookupError(key)  # noqa: TRY301 — what an application does
            if random.random() < 0.2:
                tx.commit(wait="logged")
    except (RolledBack, LookupError, ResourceUnavailable):  # the last from a session: the block was rolled back
        return "rolled back"
    except OutcomeUnknown:
        return "unknown"
    return "committed"


@pytest.mark.parametrize(
    ("threads", "each"), [(8, 4), pytest.param(64, 100 if LONG else 8, marks=pytest.mark.slow)], ids=str
)
@pytest.mark.parametrize(
    ("flags", "decider"),
    [
        pytest.param(TMUSEASYNC, False, id="overlapped"),
        pytest.param(0, False, id="one after another", marks=pytest.mark.slow),
        pytest.param(TMUSEASYNC | TMREGISTER, False, id="registers", marks=pytest.mark.slow),
        pytest.param(TMUSEASYNC, True, id="decider"),
    ],
)
def test_a_crowd(tmp_path: Path, flags: int, threads: int, each: int, *, decider: bool) -> None:
    before = set(threading.enumerate())
    shop = Shop(tmp_path)
    shop.flags["a"] = flags
    if decider:
        shop.add_decider()
    arguments = {} if decider else {"log": shop.log_url}
    tm = shop.open(background=True, recovery_interval_s=0.05, **arguments)
    heard: dict[str, str] = {}
    with ThreadPoolExecutor(threads) as crowd:
        for done in [crowd.submit(worked, shop, SEED, number, each) for number in range(threads)]:
            heard |= done.result(300)

    tm.executor.stop()
    for store in shop.stores.values():
        store.script.clear()
    shop.clock.pass_by(100)
    for _ in range(3):
        report = tm.recover()
    assert report.clean, report

    for key, outcome in heard.items():
        values = set(shop.values(key).values())
        assert len(values) == 1, f"seed {SEED}: {key} was told {outcome}, {shop.values(key)}"
        if outcome != "unknown":
            assert values == {1 if outcome == "committed" else None}, f"seed {SEED}: {key} was told {outcome}"
    assert set(heard.values()) >= {"committed", "rolled back"}
    assert len(heard) == threads * each
    shop.assert_nothing_left()
    gc.collect()
    for client in shop.clients.values():
        assert not client.associated
    for resource in tm.resources.values():
        assert len(resource._lost) <= 1, "threads of control that are gone are forgotten"
    tm.close()
    assert set(threading.enumerate()) <= before
