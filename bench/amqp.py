"""A lean AMQP client for benchmarks: proton's engine on a blocking socket, one connection, no reactor.

It sends and takes what the benchmark of the broker needs, as a resource manager's client would: local and
global transactions on a control link, posts and retirements under a txn-id, commands with their responses.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Final

from cproton_ffi import ffi, lib  # type: ignore[import-not-found]

from dtx.protocol.codec import decode
from dtx.protocol.commands import CONTROL, COORDINATION, Declare, Discharge, End, Start
from dtx.protocol.commands import Coordination as Command
from dtx.protocol.links import COORDINATION as COORDINATION_NODE
from dtx.protocol.links import DISTRIBUTED, LOCAL
from dtx.protocol.messages import body_value, request_message, value_message
from dtx.protocol.replies import ACCEPTED, DECLARED, RESULT, TRANSACTIONAL, Recovered, Result, decode_reply
from dtx.protocol.values import Ulong
from dtx.resource.engine import open_delivery, put_symbols, receive, remote_state, send, set_state, text
from dtx.resource.outcomes import TAKEN_OCTETS, transactional_state
from xa import Code

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.protocol.replies import Reply
    from xa import Xid

RECEIVED: Final = 256 * 1024
DONE: Final = Result(Code.XA_OK)


class Client:
    """One connection with one session."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = lib.pn_connection()
        self._transport = lib.pn_transport()
        self._collector = lib.pn_collector()
        lib.pn_transport_set_max_frame(self._transport, 65_536)
        lib.pn_connection_set_container(self._connection, b"bench")
        lib.pn_connection_collect(self._connection, self._collector)
        lib.pn_transport_bind(self._transport, self._connection)
        self._output = ffi.new("char[]", 1 << 20)
        lib.pn_connection_open(self._connection)
        self._session = lib.pn_session(self._connection)
        lib.pn_session_set_incoming_capacity(self._session, 64 << 20)
        lib.pn_session_open(self._session)
        self._tag = 0
        self._links = 0
        self._answered: dict[Any, tuple[int, bytes | None]] = {}
        self.messages: list[tuple[Any, bytes]] = []
        self._replies: list[bytes] = []
        self._reply_link: Any = None

    # -- the wire
    def flush(self) -> None:
        """Sends what there is to send."""
        while (pending := lib.pn_transport_pending(self._transport)) > 0:
            count = lib.pn_transport_peek(self._transport, self._output, min(pending, 1 << 20))
            self._socket.sendall(ffi.buffer(self._output, count))
            lib.pn_transport_pop(self._transport, count)

    def until(self, reached: Callable[[], object]) -> None:
        """Sends and receives until `reached` is true."""
        while not reached():
            self.flush()
            octets = self._socket.recv(RECEIVED)
            if not octets:
                raise ConnectionError("the broker closed the connection")
            source, taken = ffi.from_buffer(octets), 0
            while taken < len(octets):
                taken += lib.pn_transport_push(self._transport, source + taken, len(octets) - taken)
                self._events()

    def _events(self) -> None:
        while (event := lib.pn_collector_peek(self._collector)) != ffi.NULL:
            kind = lib.pn_event_type(event)
            if kind == lib.PN_DELIVERY:
                self._delivery(lib.pn_event_delivery(event))
            elif kind in {lib.PN_LINK_REMOTE_CLOSE, lib.PN_SESSION_REMOTE_CLOSE, lib.PN_CONNECTION_REMOTE_CLOSE}:
                raise ConnectionError(f"the broker closed something: {self._condition(event, kind)}")
            lib.pn_collector_pop(self._collector)

    def _condition(self, event: Any, kind: int) -> str:
        condition = lib.pn_connection_remote_condition(self._connection)
        if kind == lib.PN_LINK_REMOTE_CLOSE:
            condition = lib.pn_link_remote_condition(lib.pn_event_link(event))
        return text(lib.pn_condition_get_description(condition))

    def _delivery(self, delivery: Any) -> None:
        link = lib.pn_delivery_link(delivery)
        if lib.pn_link_is_sender(link):
            state = lib.pn_delivery_remote_state(delivery)
            if state and delivery in self._answered:
                fields = remote_state(delivery) if state != ACCEPTED else None
                self._answered[delivery] = state, fields
                lib.pn_delivery_settle(delivery)
        elif lib.pn_delivery_readable(delivery) and not lib.pn_delivery_partial(delivery):
            octets = receive(link, lib.pn_delivery_pending(delivery))
            lib.pn_link_advance(link)
            if link == self._reply_link:
                self._replies.append(octets)
                lib.pn_delivery_settle(delivery)
                lib.pn_link_flow(link, 1)
            else:
                self.messages.append((delivery, octets))

    # -- links
    def _name(self) -> bytes:
        self._links += 1
        return f"link-{self._links}".encode()

    def _opened(self, link: Any) -> Any:
        lib.pn_link_open(link)
        self.until(lambda: lib.pn_link_state(link) & lib.PN_REMOTE_ACTIVE)
        return link

    def control(self) -> Any:
        """A control link that can start branches."""
        link = lib.pn_sender(self._session, self._name())
        lib.pn_terminus_set_type(lib.pn_link_target(link), lib.PN_COORDINATOR)
        put_symbols(lib.pn_terminus_capabilities(lib.pn_link_target(link)), (LOCAL, DISTRIBUTED))
        put_symbols(lib.pn_terminus_outcomes(lib.pn_link_source(link)), ("amqp:accepted:list", "amqp:rejected:list"))
        return self._opened(link)

    def sender(self, address: str) -> Any:
        """A link to a queue."""
        link = lib.pn_sender(self._session, self._name())
        lib.pn_terminus_set_address(lib.pn_link_target(link), address.encode())
        return self._opened(link)

    def receiver(self, address: str, credit: int) -> Any:
        """A link from a queue."""
        link = lib.pn_receiver(self._session, self._name())
        lib.pn_terminus_set_address(lib.pn_link_source(link), address.encode())
        lib.pn_link_flow(link, credit)
        return self._opened(link)

    def commands(self) -> tuple[Any, str]:
        """A command channel: its sending link, and the address of the responses."""
        link = lib.pn_receiver(self._session, self._name())
        lib.pn_terminus_set_dynamic(lib.pn_link_source(link), True)
        lib.pn_link_flow(link, 100)
        self._reply_link = self._opened(link)
        reply_to = text(lib.pn_terminus_get_address(lib.pn_link_remote_source(link)))
        return self.sender(COORDINATION_NODE), reply_to

    # -- deliveries
    def _open_delivery(self, link: Any) -> Any:
        self._tag += 1
        return open_delivery(link, self._tag.to_bytes(8, "big"))

    def post(self, link: Any, octets: bytes, state: bytes | None) -> None:
        """Sends a message settled, under a transaction or under none."""
        delivery = self._open_delivery(link)
        if state is not None:
            set_state(delivery, TRANSACTIONAL, state)
        send(link, octets)
        lib.pn_link_advance(link)
        lib.pn_delivery_settle(delivery)

    def retire(self, delivery: Any, state: bytes) -> None:
        """Accepts a delivery under a transaction, and settles it."""
        set_state(delivery, TRANSACTIONAL, state)
        lib.pn_delivery_settle(delivery)

    def ask(self, link: Any, octets: bytes) -> Any:
        """Sends a message unsettled; `answer` has what comes back."""
        delivery = self._open_delivery(link)
        self._answered[delivery] = 0, None
        send(link, octets)
        lib.pn_link_advance(link)
        return delivery

    def answer(self, delivery: Any) -> tuple[int, bytes | None]:
        """Waits for the state of a message."""
        self.until(lambda: self._answered[delivery][0])
        return self._answered.pop(delivery)

    # -- transactions
    def declare(self, control: Any) -> Any:
        """Asks for a local transaction."""
        return self.ask(control, value_message(CONTROL.encode(Declare())))

    def declared(self, delivery: Any) -> bytes:
        """The txn-id that was declared."""
        state, fields = self.answer(delivery)
        if state != DECLARED or fields is None:
            raise RuntimeError(f"declare was answered with state {state:#x}: {fields!r}")
        return fields[fields.index(0xA0) + 2 :]

    def discharge(self, control: Any, txn_id: bytes) -> Any:
        """Asks for the commit of a local transaction, or the end of an association."""
        return self.ask(control, value_message(CONTROL.encode(Discharge(txn_id))))

    def accepted(self, delivery: Any) -> None:
        """Waits until a message is accepted."""
        state, fields = self.answer(delivery)
        if state != ACCEPTED:
            raise RuntimeError(f"answered with state {state:#x}: {fields!r}")

    def start(self, control: Any, xid: Xid, txn_id: bytes | None = None) -> Any:
        """Asks for a new branch; with a txn-id of our own choice work may follow at once."""
        return self.ask(control, value_message(CONTROL.encode(Declare(Start(xid, txn_id=txn_id)))))

    def end_and_prepare(self, control: Any, txn_id: bytes) -> Any:
        """Ends the association and prepares the branch, in one exchange."""
        return self.ask(control, value_message(CONTROL.encode(End(txn_id, prepare=True))))

    def voted(self, delivery: Any) -> None:
        """Waits for the vote to commit."""
        state, fields = self.answer(delivery)
        if state != RESULT.code or fields is None or RESULT.from_wire(decode(fields)).code is not Code.XA_OK:
            raise RuntimeError(f"prepare was answered with state {state:#x}: {fields!r}")

    def command(self, channel: tuple[Any, str], command: Command) -> Reply:
        """A command on the command channel, and its response."""
        link, reply_to = channel
        self.post(link, request_message(COORDINATION.encode(command), reply_to, Ulong(self._tag)), None)
        self.until(lambda: self._replies)
        reply = decode_reply(body_value(self._replies.pop()))
        if not isinstance(reply, Recovered) and reply != DONE:
            raise RuntimeError(f"{command} was answered with {reply}")
        return reply

    # -- credit
    def credit(self, link: Any) -> int:
        """What a sending link may send."""
        return int(lib.pn_link_credit(link))

    def flow(self, link: Any, more: int) -> None:
        """Lets the broker send more on a receiving link."""
        lib.pn_link_flow(link, more)

    def close(self) -> None:
        """Drops the connection."""
        self._socket.close()


def posting(txn_id: bytes) -> bytes:
    """The state of a post."""
    return transactional_state(txn_id)


def accepting(txn_id: bytes) -> bytes:
    """The state of a retirement."""
    return transactional_state(txn_id, TAKEN_OCTETS)
