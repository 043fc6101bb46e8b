"""`Client` is an OpenWireResource with the few steps that the tests take."""

from __future__ import annotations

import itertools
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from rm_amqp import Message
from rm_openwire import OpenWireResource, Session
from xa import TMENDRSCAN, TMFAIL, TMONEPHASE, TMSTARTRSCAN, TMSUCCESS, Code, Xid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RMID: Final = 3
_NUMBERS: Final = itertools.count(1)


def new_name(what: str = "queue") -> str:
    """A name that no other test has."""
    return f"{what}-{os.getpid()}-{time.time_ns()}-{next(_NUMBERS)}"


def new_xid() -> Xid:
    """An xid that no other test has."""
    return Xid(0x7465, new_name("rm_openwire").encode()[:64], b"b")


class Client:
    """One instance, opened."""

    def __init__(self, url: str, options: str = "timeout=10") -> None:
        self.rm = OpenWireResource()
        self.url = f"{url}?{options}"
        assert self.rm.open(self.url, RMID) is Code.XA_OK

    def begin(self) -> tuple[Xid, Session]:
        """A branch that the thread is at work in."""
        xid = new_xid()
        assert self.rm.start(xid, RMID) is Code.XA_OK
        return xid, self.rm.session(RMID)

    def end(self, xid: Xid) -> None:
        """The work is done."""
        assert self.rm.end(xid, RMID, TMSUCCESS) is Code.XA_OK

    @contextmanager
    def work(self, *, two_phase: bool = True) -> Iterator[Session]:
        """A branch, committed at the end; rolled back by an exception."""
        xid, session = self.begin()
        try:
            yield session
        except BaseException:
            self.rm.end(xid, RMID, TMFAIL)
            self.rm.rollback(xid, RMID)
            raise
        self.end(xid)
        if two_phase and self.rm.prepare(xid, RMID) is Code.XA_RDONLY:
            return
        assert self.rm.commit(xid, RMID, 0 if two_phase else TMONEPHASE) is Code.XA_OK

    def prepared(self, work: Callable[[Session], object]) -> Xid:
        """A branch that is prepared."""
        xid, session = self.begin()
        work(session)
        self.end(xid)
        assert self.rm.prepare(xid, RMID) is Code.XA_OK
        return xid

    def put(self, queue: str, *bodies: Any) -> None:
        """Messages that are there."""
        with self.work() as session:
            for body in bodies:
                session.send(queue, Message(body))

    def look(self, queue: str) -> list[Any]:
        """The bodies of the messages that are available."""
        with self.work() as session:
            return [message.body for message in session.browse(queue)]

    def in_doubt(self) -> list[Xid]:
        """The branches in doubt."""
        return list(self.rm.recover(RMID, TMSTARTRSCAN | TMENDRSCAN))
