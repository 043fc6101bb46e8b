"""`QpidClient` is a resource manager instance with the few steps that the tests take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rm_amqp import Message
from rm_amqp.amqp010.resource import QpidResource
from tests.rm_amqp.client import RMID, new_xid
from xa import TMENDRSCAN, TMFAIL, TMNOFLAGS, TMONEPHASE, TMSTARTRSCAN, TMSUCCESS, Code

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rm_amqp.amqp010.driver import QpidDriver
    from rm_amqp.amqp010.qpid_session import QpidSession
    from xa import Xid


class QpidClient:
    """One instance, opened."""

    def __init__(self, url: str, driver: QpidDriver | None = None) -> None:
        self.rm = QpidResource(None, driver)
        self.url = url
        assert self.rm.open(url, RMID) is Code.XA_OK

    @property
    def driver(self) -> QpidDriver:
        """The instance's driver."""
        return self.rm.driver

    @property
    def session(self) -> QpidSession:
        """The thread's session."""
        return self.rm.session(RMID)

    def start(self, flags: int = TMNOFLAGS, xid: Xid | None = None) -> Xid:
        """Associates the thread with a branch."""
        xid = xid or new_xid()
        assert self.rm.start(xid, RMID, flags) is Code.XA_OK
        return xid

    def end(self, xid: Xid, flags: int = TMSUCCESS) -> None:
        """Ends the association."""
        assert self.rm.end(xid, RMID, flags) is Code.XA_OK

    def commit(self, xid: Xid, *, two_phase: bool = False) -> None:
        """Ends and commits."""
        self.end(xid)
        if two_phase:
            assert self.rm.prepare(xid, RMID) is Code.XA_OK
        assert self.rm.commit(xid, RMID, TMNOFLAGS if two_phase else TMONEPHASE) is Code.XA_OK

    def rollback(self, xid: Xid) -> None:
        """Ends with failure, and rolls back."""
        self.end(xid, TMFAIL)
        assert self.rm.rollback(xid, RMID) is Code.XA_OK

    def put(self, queue: str, bodies: Iterable[Any]) -> None:
        """Messages that are there."""
        xid = self.start()
        for body in bodies:
            self.session.send(queue, body if isinstance(body, Message) else Message(body))
        self.commit(xid)

    def look(self, queue: str) -> list[Any]:
        """The bodies of the messages that are available."""
        xid = self.start()
        found: list[Any] = [message.body for message in self.session.browse(queue)]
        self.commit(xid)
        return found

    def take(self, queue: str) -> Message:
        """The next message, taken."""
        xid = self.start()
        message = self.session.receive(queue, 5)
        self.commit(xid)
        return message

    def in_doubt(self) -> set[Xid]:
        """What is prepared."""
        return set(self.rm.recover(RMID, TMSTARTRSCAN | TMENDRSCAN))
