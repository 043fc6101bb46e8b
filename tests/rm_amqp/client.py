"""A resource manager instance with the few steps that the tests take: `MessagingClient` has those of every messaging
resource manager, `Client` is one over AMQP 1.0."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from rm_amqp import AmqpResource, Message, Session
from tests.rm_amqp.network import Network
from xa import TMENDRSCAN, TMFAIL, TMNOFLAGS, TMONEPHASE, TMREGISTER, TMSTARTRSCAN, TMSUCCESS, TMUSEASYNC, Code, Xid
from xabridge.testing.contract.client import ScriptedRegistrar

RMID: Final = 3
_NUMBERS: Final = itertools.count(1)


def new_xid() -> Xid:
    """An xid that no other test has."""
    return Xid(0x7465, f"rm_amqp {os.getpid()} {next(_NUMBERS)}".encode(), b"b")


@contextmanager
def transaction(rm: Any) -> Iterator[Any]:
    """The session of a branch that is committed in one phase at the end."""
    rm.start(xid := new_xid(), RMID)
    yield rm.session(RMID)
    rm.end(xid, RMID, TMSUCCESS)
    rm.commit(xid, RMID, TMONEPHASE)


def put(rm: Any, queue: str, bodies: Iterable[Any]) -> None:
    """Messages that are there."""
    with transaction(rm) as session:
        for body in bodies:
            session.send(queue, body if isinstance(body, Message) else Message(body))


def look(rm: Any, queue: str) -> list[Any]:
    """The bodies of the messages that are available."""
    with transaction(rm) as session:
        return [message.body for message in session.browse(queue)]


def batches(session: Any, queue: str, count: int) -> list[Message]:
    """So many messages, in as many batches as they take: a batch is what has come by then."""
    taken: list[Message] = []
    while len(taken) < count:
        taken += session.receive_batch(queue, count - len(taken), 5)
    return taken


class MessagingClient:
    """One instance, opened."""

    bodies: tuple[Any, ...] = ()
    """What its messages may carry beside what every broker takes (tests/rm_amqp/messaging_suite.py)."""
    fields: dict[str, Any] = {}  # noqa: RUF012 — nobody changes it
    """What its messages have beside what they have everywhere."""
    unsendable: tuple[tuple[Message, str], ...] = ()
    """What it refuses to send, and what it says then."""
    no_addresses: tuple[Any, ...] = ()
    counts_to = 1_000
    """How many deliveries in vain its messages tell."""
    as_sent = False
    """Whether a message has only what its sender has set; else it is durable always, and says where it comes from."""

    def __init__(self, rm: Any, url: str) -> None:
        self.rm = rm
        self.url = url
        assert self.rm.open(self.url, RMID) is Code.XA_OK

    def start(self, flags: int = TMNOFLAGS, xid: Xid | None = None) -> Xid:
        """Associates the thread with a branch."""
        xid = xid or new_xid()
        assert self.rm.start(xid, RMID, flags) is Code.XA_OK
        return xid

    @property
    def session(self) -> Any:
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
        assert isinstance(self.rm.rollback(xid, RMID), Code)

    def prepared(self, work: Callable[[Any], object] = id, xid: Xid | None = None) -> Xid:
        """A branch that is prepared, and what was done under it."""
        xid = self.start(xid=xid)
        work(self.session)
        self.end(xid)
        assert self.rm.prepare(xid, RMID) is Code.XA_OK
        return xid

    @contextmanager
    def work(self, *, two_phase: bool = False) -> Iterator[Any]:
        """The session of a branch that is committed at the end."""
        xid = self.start()
        yield self.session
        self.commit(xid, two_phase=two_phase)

    def put(self, queue: str, bodies: Iterable[Any]) -> None:
        """Messages that are there."""
        put(self.rm, queue, bodies)

    def look(self, queue: str) -> list[Any]:
        """The bodies of the messages that are available."""
        return look(self.rm, queue)

    def take(self, queue: str) -> Message:
        """The next message, taken."""
        with self.work() as session:
            message: Message = session.receive(queue, 5)
        return message

    def in_doubt(self) -> set[Xid]:
        """What is prepared."""
        return set(self.rm.recover(RMID, TMSTARTRSCAN | TMENDRSCAN))


class Client(MessagingClient):
    """One instance over AMQP 1.0, opened."""

    rm: AmqpResource
    as_sent = True
    unsendable = (
        (Message(object()), "body is of type object"),
        (Message(delay=-1), "a delay, or a time"),
        (Message(delay=5, deliver_at=5), "a delay, or a time"),
        (Message(deliver_at=-1), "a delay, or a time"),
    )
    no_addresses = ("queue\0other",)  # proton takes what is behind a NUL for no part of it

    def __init__(
        self, address: str, options: str = "", *, dynamic: bool = False, flags: int | None = None, tls: bool = False
    ) -> None:
        self.registrar = ScriptedRegistrar()
        register = TMREGISTER if dynamic else 0
        rm = AmqpResource(self.registrar, TMUSEASYNC | register if flags is None else flags)
        super().__init__(rm, f"amqp{'s' * tls}://{address}/?{options}".rstrip("?"))

    @property
    def session(self) -> Session:
        return self.rm.session(RMID)


class NetworkClient(MessagingClient):
    """The same over a network in memory, on its clock."""

    def __init__(self, network: Network, options: str = "") -> None:
        super().__init__(network.resource(), f"amqp://here/?timeout=20{options}")
