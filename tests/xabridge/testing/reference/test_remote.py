"""These tests run the reference resource manager in another process: they serve it, use it, and kill its client."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing import AuthenticationError
from typing import TYPE_CHECKING

import pytest

from xa import TMASYNC, TMJOIN, TMSTARTRSCAN, TMSUCCESS, Code, Handle, XaMisuse, Xid
from xa.diagnosis import Health
from xa.tables import BranchState
from xabridge.testing.reference import KeyLocked, ReferenceStore
from xabridge.testing.reference.remote import ReferenceServer, RemoteReference

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.synchronize import Event
    from pathlib import Path

KEY = b"a key of this test's"
ONE, TWO, THREE = (Xid(1, b"global", name) for name in (b"one", b"two", b"three"))
_SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def store() -> ReferenceStore:
    return ReferenceStore("served")


@pytest.fixture
def address(tmp_path: Path, store: ReferenceStore) -> Iterator[str]:
    server = ReferenceServer({"served": store}, str(tmp_path / "socket"), KEY)
    yield str(tmp_path / "socket")
    server.close()


def _opened(address: str) -> RemoteReference:
    remote = RemoteReference(address, KEY, "served")
    remote.open("reference://served", 1)
    return remote


def _work_and_die(address: str, joined: Event | None = None) -> None:
    remote = _opened(address)
    for xid in (ONE, TWO, THREE):
        remote.start(xid, 1)
        remote.session(1).write(xid.bqual.decode(), 1)
        remote.end(xid, 1, TMSUCCESS)
    remote.prepare(ONE, 1)
    if joined is not None:
        joined.wait()
    os.kill(os.getpid(), signal.SIGKILL)


def _until_the_death_is_noticed(store: ReferenceStore, client: RemoteReference) -> None:
    while store.locked_keys.get("two") is not None:  # the server hears of it in a moment
        client.recover(1, TMSTARTRSCAN)


@pytest.mark.slow
@pytest.mark.parametrize("somebody_else_is_there", [False, True])
def test_what_a_killed_client_prepared_stays_and_the_rest_lets_go(
    address: str, store: ReferenceStore, somebody_else_is_there: bool
) -> None:
    """Whether another client connects before the server hears of the death, or after it, is a matter of luck."""
    other = _opened(address) if somebody_else_is_there else None
    child = _SPAWN.Process(target=_work_and_die, args=(address,), daemon=True)
    child.start()
    child.join()
    remote = other or _opened(address)
    _until_the_death_is_noticed(store, remote)
    assert set(store.locked_keys) == {"one"}
    assert store.branches[ONE] is BranchState.S3
    assert remote.commit(ONE, 1) is Code.XA_OK
    assert store.data == {"one": 1}


@pytest.mark.slow
def test_what_another_client_has_joined_stays_when_one_is_killed(address: str, store: ReferenceStore) -> None:
    other = _opened(address)
    joined = _SPAWN.Event()
    child = _SPAWN.Process(target=_work_and_die, args=(address, joined), daemon=True)
    child.start()
    while ONE not in other.recover(1, TMSTARTRSCAN):  # then the rest has been done before
        assert child.is_alive()
    other.start(THREE, 1, TMJOIN)
    other.end(THREE, 1, TMSUCCESS)
    joined.set()
    child.join()
    _until_the_death_is_noticed(store, other)
    assert store.branches[THREE] is BranchState.S2
    assert other.prepare(THREE, 1) is Code.XA_OK
    assert other.commit(THREE, 1) is Code.XA_OK
    assert store.data == {"three": 1}


def test_what_comes_through(address: str, store: ReferenceStore, tmp_path: Path) -> None:
    """Errors as well; who has another key keeps nobody else out."""
    with pytest.raises(AuthenticationError):
        RemoteReference(address, b"another key", "served").open(store.url, 1)
    remote = _opened(address)
    with pytest.raises(XaMisuse) as refused:
        remote.session(1).write("key", 1)
    assert refused.value.code is Code.XAER_PROTO
    remote.start(ONE, 1)
    remote.session(1).write("key", "value")
    assert remote.session(1).read("key") == "value"
    remote.end(ONE, 1, TMSUCCESS)
    handle = remote.prepare(ONE, 1, TMASYNC)
    assert isinstance(handle, Handle)
    assert remote.complete(handle, 1).code is Code.XA_OK
    remote.start(TWO, 1)
    with pytest.raises(KeyLocked):
        remote.session(1).write("key", 2)
    (branch,) = remote.in_doubt(1, TMSTARTRSCAN)
    assert (branch.xid, branch.holdings[0].count) == (ONE, 1)
    assert remote.commit(ONE, 1) is Code.XA_OK
    assert store.data == {"key": "value"}
    assert [check.health for check in remote.diagnose(store.url).checks] == [Health.OK]
    (check,) = RemoteReference(str(tmp_path / "nobody"), KEY, "served").diagnose(store.url).checks
    assert check.health is Health.FAIL
    assert "can't be reached" in check.found
