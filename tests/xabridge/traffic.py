"""`Traffic` is somebody who works with a broker: posts, rejects, and has branches under way and prepared."""

from __future__ import annotations

from contextlib import closing

from rm_amqp import AmqpResource, Message
from xa import TMONEPHASE, TMSUCCESS, Xid
from xabridge.testing.no_transaction import NoTransaction


class Traffic:
    """A client of its own."""

    def __init__(self, open_string: str) -> None:
        self.rm = AmqpResource(NoTransaction())
        self.rm.open(open_string, 1)
        self._number = 0

    def post(self, queue: str, *messages: Message) -> None:
        """Posts in one phase."""
        xid = self._begun()
        for message in messages:
            self.rm.session(1).send(queue, message)
        self._commit(xid)

    def reject(self, queue: str, count: int) -> None:
        """Rejects the first messages, which become dead letters."""
        xid = self._begun()
        for _ in range(count):
            message = self.rm.session(1).receive(queue, timeout_s=20)
            assert message is not None
            self.rm.session(1).reject(message)
        self._commit(xid)

    def work(self, xid: Xid, *, taken_from: str = "", sent_to: str = "") -> None:
        """A branch takes a message, or posts another one, or both. It has not ended."""
        self.rm.start(xid, 1)
        if taken_from:
            assert self.rm.session(1).receive(taken_from, timeout_s=20) is not None
        if sent_to:
            self.rm.session(1).send(sent_to, Message("an invoice"))

    def prepare(self, xid: Xid, taken_from: str, sent_to: str) -> None:
        """A prepared branch takes a message and posts another one."""
        self.work(xid, taken_from=taken_from, sent_to=sent_to)
        self.rm.end(xid, 1, TMSUCCESS)
        self.rm.prepare(xid, 1)

    def close(self) -> None:
        """Disconnects."""
        self.rm.close("", 1)

    def _begun(self) -> Xid:
        self._number += 1
        xid = Xid(1, b"traffic %d" % self._number, b"b")
        self.rm.start(xid, 1)
        return xid

    def _commit(self, xid: Xid) -> None:
        self.rm.end(xid, 1, TMSUCCESS)
        self.rm.commit(xid, 1, TMONEPHASE)


def post(open_string: str, queue: str, *messages: Message) -> None:
    """Somebody posts these and goes."""
    with closing(Traffic(open_string)) as traffic:
        traffic.post(queue, *messages)
