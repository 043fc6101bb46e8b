"""These tests give pipelines a third party's resource manager: what it can do counts, and not whose class it is."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from typing import Any

import pytest

from tm.resources.resource import GROUP, _installed
from xa import FORMAT_ID, TMSUCCESS, Registrar, Xid
from xabridge.pipeline.core import PipelineError
from xabridge.pipeline.core.resources import Resources, broker, send_messages
from xabridge.testing.reference import ReferenceResource, ReferenceStore

STORE = ReferenceStore("post")
XID = Xid(FORMAT_ID, b"global", b"branch")


class Post(ReferenceResource):
    """A broker of somebody else's: its one queue is a value of the reference store."""

    sends_messages = True

    def open(self, open_string: str, rmid: int, flags: int = 0) -> Any:
        assert open_string == "post://office"
        return super().open(STORE.url, rmid, flags)

    def session(self, rmid: int) -> Any:
        return _Sender(super().session(rmid))


class _Sender:
    def __init__(self, session: Any) -> None:
        self._session = session

    def send(self, address: str, message: Any) -> None:
        self._session.append(address, message.encode())


def post(registrar: Registrar) -> Post:
    return Post(STORE, registrar)


def shelf(registrar: Registrar) -> ReferenceResource:
    return ReferenceResource(STORE, registrar)


@pytest.fixture
def resources(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resources]:
    """Those of a process that has both installed."""
    installed = importlib.metadata.EntryPoints(
        importlib.metadata.EntryPoint(made.__name__, f"{__name__}:{made.__name__}", GROUP) for made in (post, shelf)
    )
    monkeypatch.setattr("tm.resources.resource.entry_points", installed.select)
    _installed.cache_clear()
    opened = Resources()
    yield opened
    opened.close()
    _installed.cache_clear()
    STORE.committed.clear()


def test_whatever_sends_messages_in_two_phases_is_a_sink(resources: Resources) -> None:
    resource = resources.get("post", "post://office")
    resource.reopen()
    resource.rm.start(XID, resource.rmid)
    send_messages(resource, "orders", [b"one", b"two"])
    resource.rm.end(XID, resource.rmid, TMSUCCESS)
    resource.rm.prepare(XID, resource.rmid)
    resource.rm.commit(XID, resource.rmid)
    assert STORE.committed["orders"] == (b"one", b"two")
    with pytest.raises(PipelineError, match="only an xabridge broker is read"):
        broker(resource)


def test_what_takes_neither_rows_nor_messages_is_refused(resources: Resources) -> None:
    with pytest.raises(PipelineError, match=r"resources\.shelf: a pipeline works with brokers"):
        resources.get("shelf", "shelf://wall")
