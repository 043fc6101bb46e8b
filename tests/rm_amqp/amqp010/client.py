"""`QpidClient` is a resource manager instance with the few steps that the tests take."""

from __future__ import annotations

import gzip
from typing import Any
from uuid import UUID

from dtx.amqp.values import Described, Timestamp, Uint
from rm_amqp import Message
from rm_amqp.amqp010.driver import QpidDriver
from rm_amqp.amqp010.qpid_session import QpidSession
from rm_amqp.amqp010.resource import QpidResource
from tests.rm_amqp.client import RMID, MessagingClient

UNREADABLE: Any = {"a": object()}


class QpidClient(MessagingClient):
    """One instance over AMQP 0-10, opened."""

    rm: QpidResource
    bodies = (
        {"number": 1, "nested": {"list": [1, "two", 3.0, None, True, b"b", UUID(int=7)]}},
        [1, -1, 2**63, {"a": Uint(3)}, Timestamp(5)],
        [],
    )
    fields = {  # noqa: RUF012 — nobody changes it
        "id": UUID(int=9),
        "correlation_id": 7,
        "annotations": {"x-opt-own": "y"},
        "reply_to_group_id": "r",
        "creation_time": 1_700_000_000.5,
        "content_type": "text/plain; charset=utf-8",
    }
    unsendable = (
        (Message(7), ""),
        (Message(UNREADABLE), ""),
        (Message({1: "a"}), ""),
        (Message([Described(Uint(1), "x")]), ""),
        (Message("x", properties={"qpid.subject": "mine"}), ""),
        (Message("x", annotations={"own": 1}), ""),
        (Message("x", instructions={"x-opt-a": 1}), ""),
        (Message({"a": 1}, content_type="text/plain"), ""),
        (Message("x", subject="s" * 70_000), ""),
        (Message("x", content_type="c" * 300), ""),
        (Message("x", priority=10), "its priority is 10, and at most 9 fits"),
        (Message("x", content_type="amqp/map"), ""),
        (Message(b"x", content_type="amqp-0-10/list"), ""),
        (Message("x", content_encoding="gzip"), ""),
        (Message(gzip.compress(b"x")[:-1], content_encoding="gzip"), ""),
        (Message("x", priority=300), ""),
    )
    no_addresses = ("", "nowhere")
    counts_to = 1

    def __init__(self, url: str, driver: QpidDriver | None = None) -> None:
        super().__init__(QpidResource(None, driver), url)

    @property
    def driver(self) -> QpidDriver:
        """The instance's driver."""
        return self.rm.driver

    @property
    def session(self) -> QpidSession:
        return self.rm.session(RMID)
