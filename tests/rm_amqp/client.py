"""`Client` is a resource manager instance with the few steps that the tests take."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any, Final

from rm_amqp import AmqpResource, Message, Session
from xa import TMFAIL, TMNOFLAGS, TMONEPHASE, TMREGISTER, TMSUCCESS, TMUSEASYNC, Code, Handle, Xid
from xabridge.testing.contract.client import ScriptedRegistrar

if TYPE_CHECKING:
    from collections.abc import Iterable

RMID: Final = 3
_NUMBERS: Final = itertools.count(1)


def new_xid() -> Xid:
    """An xid that no other test has."""
    return Xid(0x7465, f"rm_amqp {os.getpid()} {next(_NUMBERS)}".encode(), b"b")


class Client:
    """One instance, opened."""

    def __init__(
        self, address: str, options: str = "", *, dynamic: bool = False, flags: int | None = None, tls: bool = False
    ) -> None:
        self.registrar = ScriptedRegistrar()
        register = TMREGISTER if dynamic else 0
        self.rm = AmqpResource(self.registrar, TMUSEASYNC | register if flags is None else flags)
        self.url = f"amqp{'s' * tls}://{address}/?{options}".rstrip("?")
        assert self.rm.open(self.url, RMID) is Code.XA_OK

    def start(self, flags: int = TMNOFLAGS, xid: Xid | None = None) -> Xid:
        """Associates the thread with a branch."""
        xid = xid or new_xid()
        assert self.rm.start(xid, RMID, flags) is Code.XA_OK
        return xid

    @property
    def session(self) -> Session:
        """The thread's session."""
        return self.rm.session(RMID)

    def end(self, xid: Xid, flags: int = TMSUCCESS) -> None:
        """Ends the association."""
        assert self.rm.end(xid, RMID, flags) is Code.XA_OK

    def commit(self, xid: Xid, *, end: bool = True, two_phase: bool = False) -> None:
        """Ends and commits."""
        if end:
            self.end(xid)
        if two_phase:
            assert self.rm.prepare(xid, RMID) is Code.XA_OK
        assert self.rm.commit(xid, RMID, TMNOFLAGS if two_phase else TMONEPHASE) is Code.XA_OK

    def rollback(self, xid: Xid, *, end: bool = True) -> None:
        """Ends with failure, and rolls back."""
        if end:
            self.end(xid, TMFAIL)
        answer = self.rm.rollback(xid, RMID)
        assert not isinstance(answer, Handle)

    def put(self, queue: str, bodies: Iterable[Any]) -> None:
        """Messages that are there."""
        xid = self.start()
        for body in bodies:
            self.session.send(queue, Message(body))
        self.commit(xid)

    def look(self, queue: str) -> list[Any]:
        """The bodies of the messages that are available."""
        xid = self.start()
        found: list[Any] = [message.body for message in self.session.browse(queue)]
        self.commit(xid)
        return found
