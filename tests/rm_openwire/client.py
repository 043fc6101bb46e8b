"""`Client` is an OpenWireResource with the few steps that the tests take."""

from __future__ import annotations

import itertools
import os
import time
from typing import Final

from rm_amqp import Message
from rm_openwire import OpenWireResource, Session
from tests.rm_amqp.client import RMID, MessagingClient
from xa import Xid

__all__ = ["RMID", "Client", "new_name", "new_xid"]
_NUMBERS: Final = itertools.count(1)


def new_name(what: str = "queue") -> str:
    """A name that no other test has."""
    return f"{what}-{os.getpid()}-{time.time_ns()}-{next(_NUMBERS)}"


def new_xid() -> Xid:
    """An xid that no other test has."""
    return Xid(0x7465, new_name("rm_openwire").encode()[:64], b"b")


class Client(MessagingClient):
    """One instance over OpenWire, opened."""

    rm: OpenWireResource
    fields = {"content_encoding": "utf-8"}  # noqa: RUF012 — nobody changes it
    unsendable = (
        (Message(7), "int"),
        (Message([1]), "list"),
        (Message({"a": [1]}), "'a' is a list"),
        (Message("x", properties={"a": {}}), "property 'a' is a dict"),
        (Message("x", annotations={"x": 1}), "annotations"),
        (Message("x", user_id=b"u"), "user_id"),
        (Message("x", priority=10), "priority 10"),
        (Message("x", subject="s" * 70_000), "65535"),
        (Message("x", correlation_id=b"c"), "octets"),
        (Message("\ud800"), "surrogates"),
        (Message("x", group_sequence=2**31), "group_sequence 2147483648"),
        (Message("x", subject=5), "subject is text"),  # type: ignore[arg-type]
        (Message("x", group_id=5), "group_id is text"),  # type: ignore[arg-type]
        (Message("x", content_type=5), "content_type is text"),  # type: ignore[arg-type]
        (Message("x", ttl=float("inf")), "infinity"),
        (Message("x", ttl=1e300), "ttl is larger"),
        (Message("x", creation_time=1e30), "creation_time is larger"),
        (Message("x", properties={1: 2}), "1 is no name"),  # type: ignore[dict-item]
        (Message("x", reply_to=5), "address is text"),  # type: ignore[arg-type]
        (Message("x", reply_to=""), "not of 0"),
        (Message("x", properties={"__HDR_MESSAGE_ID": "x"}), "'__HDR_MESSAGE_ID' has the name of a header"),
        (Message("x", properties={"JMSXDeliveryCount": "many"}), "'JMSXDeliveryCount' has the name of a header"),
        (Message("x", properties={"JMSXGroupSeq": "first"}), "'JMSXGroupSeq' has the name of a header"),
    )
    no_addresses = ("", "topic://", "temp-queue://", "q" * 70_000, "\ud800", None, 7)

    def __init__(self, url: str, options: str = "timeout=10") -> None:
        super().__init__(OpenWireResource(), f"{url}?{options}")

    @property
    def session(self) -> Session:
        session: Session = self.rm.session(RMID)
        return session

    def begin(self) -> tuple[Xid, Session]:
        """A branch that the thread is at work in."""
        xid = self.start(xid=new_xid())
        return xid, self.session
