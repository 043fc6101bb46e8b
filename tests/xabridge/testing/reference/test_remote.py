"""This test serves the reference resource manager and uses it over its socket. tests/crash kills its clients."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import AuthenticationError
from pathlib import Path

import pytest

from xa import TMASYNC, TMSTARTRSCAN, TMSUCCESS, Code, Handle, XaMisuse, Xid
from xa.diagnosis import Health
from xabridge.testing.reference import KeyLocked, ReferenceStore
from xabridge.testing.reference.remote import ReferenceServer, RemoteReference

KEY = b"a key of this test's"
ONE, TWO = Xid(1, b"global", b"one"), Xid(1, b"global", b"two")


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
