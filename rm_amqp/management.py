"""ManagementClient: asks the management node of a broker, over a connection of its own.

    with ManagementClient("amqps://operator@broker:5671/?password_env=BROKER_PASSWORD") as management:
        for queue in management.pages("queues", key="name"):
            print(queue["name"], queue["depth"])

It takes the open string of a resource manager. XaError: the broker can't be reached or used. RefusedError: it refused.
docs/broker.md has the operations.
"""

from __future__ import annotations

import os
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from dtx.amqp.composites import WireError
from dtx.amqp.decoding import DecodeError, decode
from dtx.amqp.encoding import encode
from dtx.amqp.messages import APPLICATION_PROPERTIES, PROPERTIES, read_request, value_message
from dtx.amqp.values import Described, Ulong
from dtx.protocol.addresses import MANAGEMENT
from dtx.protocol.conditions import Refusal, RefusedError
from dtx.protocol.replies import decode_reply
from rm_amqp.connection.connector import connect
from rm_amqp.connection.endpoint import Endpoint, until
from rm_amqp.connection.links import Receiver, Sender
from rm_amqp.errors import Cause, ConnectionLost, TimedOut, lost_error
from rm_amqp.settings import parse
from xa import Code, xa_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Self

    from dtx.amqp.values import Map
    from rm_amqp.connection.connection import Connection
    from rm_amqp.settings import Broker

RESPONSES: Final = 10
PAGE: Final = 500
CLOSE_S: Final = 1.0


class ManagementClient:
    """One connection, for one thread."""

    def __init__(self, open_string: str, environment: Mapping[str, str] | None = os.environ) -> None:
        """`environment` as for `rm_amqp.settings.parse`."""
        settings = parse(open_string, environment)
        tls = settings.tls_context()
        container = f"xabridge-operator-{uuid.uuid4()}"

        def endpoint_for(broker: Broker) -> Endpoint:
            return Endpoint(settings, broker, container, time.monotonic, os.urandom, tls)

        self._timeout_s = settings.timeout_s
        self._number = 0
        deadline = time.monotonic() + self._timeout_s
        try:
            self._connection: Connection = connect(settings, deadline, endpoint_for)
        except ConnectionLost as why:
            raise lost_error("open", why) from None
        try:
            self._replies, self._requests = self._connection.run(_attach(self._connection.endpoint, deadline))
        except ConnectionLost as why:
            self._connection.drop()
            raise lost_error("open", why) from None
        except BaseException:
            self._connection.drop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, operation: str, **arguments: Any) -> Any:
        """The answer to a request. `_` in the name of an argument stands for `-`. RefusedError: nothing was done.
        XaError with XAER_RMFAIL: it is unknown whether it was done."""
        self._number += 1
        properties: Map = {"operation": operation}
        for name, value in arguments.items():
            properties[name.replace("_", "-")] = Ulong(value) if type(value) is int else value
        octets = (
            encode(Described(Ulong(PROPERTIES), [None, None, None, None, self._replies.address, Ulong(self._number)]))
            + encode(Described(Ulong(APPLICATION_PROPERTIES), properties))
            + value_message(encode(None))
        )
        deadline = time.monotonic() + self._timeout_s
        try:
            value, body = self._connection.run(self._exchange(octets, deadline))
        except (ConnectionLost, TimedOut) as why:
            raise lost_error(operation, why) from None
        except (WireError, DecodeError) as error:
            raise xa_error(Code.XAER_RMERR, f"{operation}: the broker's answer can't be read: {error}") from None

        if isinstance(value, Described):
            refusal = decode_reply(body)
            if isinstance(refusal, Refusal):
                raise RefusedError(refusal)
        return value

    def pages(self, operation: str, key: str, start: str = "", **arguments: Any) -> Iterator[dict[str, Any]]:
        """Every entry of a list behind `start`, page by page; `key` is the entry's key behind which the next page
        begins."""
        after = start
        while True:
            page = self.ask(operation, after=after, count=PAGE, **arguments)
            yield from page
            if len(page) < PAGE:
                return
            after = str(page[-1][key])

    def close(self) -> None:
        """Closes the connection."""
        with suppress(ConnectionLost, TimedOut):
            self._connection.close(time.monotonic() + CLOSE_S)

    async def _exchange(self, octets: bytes, deadline: float) -> tuple[Any, bytes]:
        endpoint, replies, requests = self._connection.endpoint, self._replies, self._requests
        answer = requests.send(octets)
        if not (await until(endpoint, lambda: answer.there, deadline)):
            raise TimedOut(f"the broker at {endpoint.broker} did not answer in time")
        if answer.refusal is not None:
            raise RefusedError(answer.refusal)
        while True:
            if not (await until(endpoint, lambda: bool(replies.arrived), deadline)):
                raise TimedOut(f"the broker at {endpoint.broker} did not answer in time")
            endpoint.check()
            response = read_request(replies.arrived.popleft().octets)
            replies.flow(1)
            if response.correlation == self._number:  # and not one that came too late
                return decode(response.body), response.body


async def _attach(endpoint: Endpoint, deadline: float) -> tuple[Receiver, Sender]:
    replies = Receiver(endpoint, None, settled=True, name="reply")
    replies.flow(RESPONSES)
    requests = Sender(endpoint, MANAGEMENT)
    for link in (replies, requests):
        if not (await until(endpoint, lambda link=link: link.answered, deadline)):  # type: ignore[misc]
            endpoint.lose("the broker did not answer in time", Cause.UNREACHABLE)
        endpoint.check()
        if link.refusal is not None:
            reason = f"{link.refusal.condition}: {link.refusal.description}"
            endpoint.lose(f"the broker has no management node ({reason})", Cause.UNUSABLE)
            endpoint.check()
    return replies, requests
