"""A lean AMQP 1.0 client for benchmarks: frames from its own bytes on a socket, so that the broker is what is measured.

It sends and takes what the benchmark of the broker needs, as a resource manager's client would: local and global
transactions on a control link, posts and retirements under a txn-id, commands with their responses. One connection,
one session. What has to wait is a generator that yields what it waits for; `drive` runs many on one thread, `run` one.
"""

from __future__ import annotations

import selectors
import socket
import struct
from collections import deque
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from dtx.amqp.decoding import decode_from
from dtx.amqp.encoding import encode, encode_list
from dtx.amqp.messages import APPLICATION_PROPERTIES, PROPERTIES, body_value, request_message, value_message
from dtx.amqp.sasl.layer import SASL_HEADER
from dtx.amqp.values import Array, Described, Symbol, Uint, Ulong, Ushort
from dtx.protocol.addresses import COORDINATION as COORDINATION_NODE
from dtx.protocol.capabilities import DISTRIBUTED, LOCAL
from dtx.protocol.commands import CONTROL, COORDINATION, Declare, Discharge, End, Start
from dtx.protocol.commands import Coordination as Command
from dtx.protocol.conditions import STATUS_OF
from dtx.protocol.replies import ACCEPTED, DECLARED, RESULT, TRANSACTIONAL, Recovered, Result, decode_reply
from xa import Code

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from typing import TypeAlias

    from dtx.protocol.replies import Reply
    from xa import Xid

    Waits: TypeAlias = Generator[Callable[[], object], None, Any]
    """Yields what it waits for; to be asked again after everything that the broker sent."""

RECEIVED: Final = 256 * 1024
MAX_FRAME: Final = 1 << 20
WINDOW: Final = 2**31 - 1
DONE: Final = Result(Code.XA_OK)

_HEADER: Final = b"AMQP\x00\x01\x00\x00"
_FRAME: Final = struct.Struct(">IBBH")
_ID: Final = struct.Struct(">BI")
OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
OUTCOME: Final = 0x44
_ENDS: Final = frozenset({DETACH, END, CLOSE})
_OCTETS: Final = tuple(bytes((number,)) for number in range(256))
_NULL, _TRUE, _FALSE, _ZERO = b"\x40", b"\x41", b"\x42", b"\x43"


def _frame(code: int, items: list[bytes], payload: bytes = b"") -> bytes:
    performative = b"\x00\x53" + _OCTETS[code] + encode_list(items)
    return _FRAME.pack(8 + len(performative) + len(payload), 2, 0, 0) + performative + payload


def _encoded(code: int, *items: Any) -> bytes:
    return _frame(code, [encode(item) for item in items])


def plain(user: str, password: str) -> bytes:
    """What a peer sends that authenticates itself with PLAIN."""
    body = b"\x00\x53\x41" + encode_list([encode(Symbol("PLAIN")), encode(f"\0{user}\0{password}".encode())])
    return SASL_HEADER + _FRAME.pack(8 + len(body), 2, 1, 0) + body


def authenticate(peer: socket.socket, user: str, password: str) -> None:
    """Authenticates a connection with PLAIN; ConnectionError: the broker refused, or is gone."""
    peer.sendall(plain(user, password))
    _exactly(peer, len(SASL_HEADER))
    code = 0
    while code != OUTCOME:
        size = int.from_bytes(_exactly(peer, 4), "big")
        frame = _exactly(peer, size - 4)
        code, outcome = frame[6], frame[-1]
    if outcome:
        raise ConnectionError(f"{user} was refused")


def _exactly(peer: socket.socket, size: int) -> bytes:
    octets = b""
    while len(octets) < size:
        received = peer.recv(size - len(octets))
        if not received:
            raise ConnectionError("the broker closed the connection")
        octets += received
    return octets


class Link:
    """One link: `credit` is what may be sent on it, `count` what was."""

    __slots__ = ("count", "credit", "handle", "opened", "parts", "source")

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.credit = 0
        self.count = 0
        self.opened = False
        self.source: Any = None
        self.parts: list[bytes] = []


class Client:
    """One connection with one session, of the user that `login` names with the password, or anonymous. TimeoutError:
    the broker takes or sends nothing for `timeout_s`."""

    def __init__(
        self, host: str, port: int, timeout_s: float | None = None, login: tuple[str, str] | None = None
    ) -> None:
        self.socket = socket.create_connection((host, port), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if login is not None:
            authenticate(self.socket, *login)
        self.messages: deque[int] = deque()
        """The delivery-ids of messages that came."""
        self._output = [
            _HEADER,
            _encoded(OPEN, f"client-{uuid4()}", None, Uint(MAX_FRAME)),  # or it would steal links
            _encoded(BEGIN, None, Uint(0), Uint(WINDOW), Uint(WINDOW)),
        ]

        self._kept = b""
        self._links: dict[str, Link] = {}
        self._theirs: dict[int, Link] = {}
        self._next_id = 0
        self._window = 0
        self._taken = 0
        self._answers: dict[int, Any] = {}
        self._replies: list[bytes] = []
        self._reply_link: Link | None = None

    # -- the wire
    def flush(self) -> None:
        """Sends what there is to send."""
        if self._output:
            octets = b"".join(self._output)
            self._output.clear()
            self.socket.sendall(octets)

    def receive(self) -> None:
        """Takes what the broker sent; waits for something."""
        octets = self.socket.recv(RECEIVED)
        if not octets:
            raise ConnectionError("the broker closed the connection")
        octets = self._kept + octets
        at, end = 8 if octets.startswith(_HEADER) else 0, len(octets)
        while end - at >= 8:
            size = int.from_bytes(octets[at : at + 4], "big")
            if end - at < size:
                break
            if size > 8:
                self._take(octets[at + 10], octets, at + 11, at + size)
            at += size
        self._kept = octets[at:]

    def _take(self, code: int, octets: bytes, start: int, stop: int) -> None:
        decoded, end = decode_from(octets, start, stop)
        if type(decoded) is not list:
            raise ConnectionError(f"the broker sent a performative ({code:#x}) that is no list: {decoded!r}")

        fields: list[Any] = decoded
        if code == DISPOSITION:
            self._disposition(*fields)
        elif code == TRANSFER:
            self._transfer(fields, octets[end:stop])
        elif code == FLOW:
            self._window = (fields[0] or 0) + fields[1]
            if len(fields) > 6 and fields[4] is not None:
                link = self._theirs[fields[4]]
                link.credit = fields[5] + fields[6] - link.count
        elif code == ATTACH:
            link = self._theirs[fields[1]] = self._links[fields[0]]
            link.opened, link.source = True, fields[5] if len(fields) > 5 else None
        elif code == BEGIN:
            self._window = fields[2]
        elif code in _ENDS:
            raise ConnectionError(f"the broker closed something ({code:#x}): {fields}")

    def _disposition(self, receiver: bool, first: int, last: int | None = None, *rest: Any) -> None:
        if receiver:
            for number in range(first, (first if last is None else last) + 1):
                if number in self._answers and len(rest) > 1:
                    self._answers[number] = rest[1]

    def _transfer(self, fields: list[Any], payload: bytes) -> None:
        self._taken += 1
        link = self._theirs[fields[0]]
        if len(fields) > 5 and fields[5]:
            link.parts.append(payload)
        elif link is self._reply_link:
            self._replies.append(b"".join((*link.parts, payload)))
            link.parts.clear()
            self._output.append(_frame(DISPOSITION, [_TRUE, encode(fields[1]), _NULL, _TRUE]))
            self.flow(link, 1)
        else:
            link.parts.clear()
            self.messages.append(fields[1])

    # -- links
    def _attach(self, *, receiver: bool, source: list[Any], target: Described) -> Waits:
        name = f"link-{len(self._links)}"
        link = self._links[name] = Link(len(self._links))
        modes = (None, None, Described(Ulong(0x28), source), target, None, None, None if receiver else Uint(0))
        self._output.append(_encoded(ATTACH, name, Uint(link.handle), receiver, *modes))
        yield lambda: link.opened
        return link

    def control(self) -> Waits:
        """A control link that can start branches."""
        capabilities = Array((Symbol(LOCAL), Symbol(DISTRIBUTED)))
        outcomes = Array((Symbol("amqp:accepted:list"), Symbol("amqp:rejected:list")))
        source = [*[None] * 9, outcomes]
        return self._attach(receiver=False, source=source, target=Described(Ulong(0x30), [capabilities]))

    def sender(self, address: str) -> Waits:
        """A link to a queue."""
        return self._attach(receiver=False, source=[], target=Described(Ulong(0x29), [address]))

    def receiver(self, address: str | None, credit: int) -> Waits:
        """A link from a queue, or from a node made for it."""
        source = [address] if address is not None else [None, None, None, None, True]
        link = yield from self._attach(receiver=True, source=source, target=Described(Ulong(0x29), []))
        if credit:
            self.flow(link, credit)
        return link

    def commands(self) -> Waits:
        """A command channel: its sending link, and the address of the responses."""
        return self.requests(COORDINATION_NODE)

    def requests(self, address: str) -> Waits:
        """A sending link to a node that answers requests, and the address of the responses."""
        self._reply_link = link = yield from self.receiver(None, 100)
        return (yield from self.sender(address)), link.source.value[0]

    def flow(self, link: Link, more: int) -> None:
        """Lets the broker send more on a receiving link."""
        link.credit += more
        session = (self._taken, WINDOW, self._next_id, WINDOW)
        # `count` stays 0 on a receiving link: the credit is what was ever given
        self._output.append(_encoded(FLOW, *map(Uint, (*session, link.handle, link.count, link.credit))))

    # -- deliveries
    def _send(self, link: Link, octets: bytes, settled: bytes, state: bytes) -> int:
        number = self._next_id
        self._next_id += 1
        link.count += 1
        link.credit -= 1
        identity = _ID.pack(0x70, number)
        fields = [b"\x52" + _OCTETS[link.handle], identity, b"\xa0\x04" + identity[1:], _ZERO, settled]
        if state:
            fields += [_FALSE, _NULL, state]
        self._output.append(_frame(TRANSFER, fields, octets))
        return number

    def may_send(self, link: Link) -> bool:
        """Whether link and session allow one more delivery."""
        return link.credit > 0 and self._window > self._next_id

    def post(self, link: Link, octets: bytes, state: bytes = b"") -> None:
        """Sends a message settled, under a transaction or under none."""
        self._send(link, octets, _TRUE, state)

    def retire(self, delivery: int, state: bytes) -> None:
        """Accepts a delivery under a transaction, and settles it."""
        self._output.append(_frame(DISPOSITION, [_TRUE, encode(Uint(delivery)), _NULL, _TRUE, state]))

    def ask(self, link: Link, octets: bytes) -> int:
        """Sends a message unsettled; `answer` has what comes back."""
        number = self._send(link, octets, _FALSE, b"")
        self._answers[number] = None
        return number

    def answer(self, number: int) -> Waits:
        """The state of a message."""
        yield lambda: self._answers[number] is not None
        return self._answers.pop(number)

    # -- transactions
    def declare(self, control: Link) -> int:
        """Asks for a local transaction."""
        return self.ask(control, value_message(CONTROL.encode(Declare())))

    def declared(self, number: int) -> Waits:
        """The txn-id that was declared."""
        state = yield from self.answer(number)
        if state.descriptor != DECLARED:
            raise RuntimeError(f"declare was answered with {state}")
        return state.value[0]

    def discharge(self, control: Link, txn_id: bytes) -> int:
        """Asks for the commit of a local transaction, or the end of an association."""
        return self.ask(control, value_message(CONTROL.encode(Discharge(txn_id))))

    def accepted(self, number: int) -> Waits:
        """Waits until a message is accepted."""
        state = yield from self.answer(number)
        if state.descriptor != ACCEPTED:
            raise RuntimeError(f"answered with {state}")

    def start(self, control: Link, xid: Xid, txn_id: bytes | None = None) -> int:
        """Asks for a new branch; with a txn-id of our own choice work may follow at once."""
        return self.ask(control, value_message(CONTROL.encode(Declare(Start(xid, txn_id=txn_id)))))

    def end_and_prepare(self, control: Link, txn_id: bytes) -> int:
        """Ends the association and prepares the branch, in one exchange."""
        return self.ask(control, value_message(CONTROL.encode(End(txn_id, prepare=True))))

    def voted(self, number: int) -> Waits:
        """Waits for the vote to commit."""
        state = yield from self.answer(number)
        if state != Described(RESULT.code, [Ushort(STATUS_OF[Code.XA_OK])]):
            raise RuntimeError(f"prepare was answered with {state}")

    def command(self, channel: tuple[Link, str], command: Command) -> Waits:
        """A command on the command channel, and its response."""
        link, reply_to = channel
        self.post(link, request_message(COORDINATION.encode(command), reply_to, Ulong(self._next_id)))
        yield lambda: self._replies
        reply: Reply = decode_reply(body_value(self._replies.pop()))
        if not isinstance(reply, Recovered) and reply != DONE:
            raise RuntimeError(f"{command} was answered with {reply}")
        return reply

    def request(self, channel: tuple[Link, str], application_properties: dict[str, Any]) -> Waits:
        """A request that has everything in its application properties, and its response, as octets."""
        link, reply_to = channel
        yield lambda: self.may_send(link)
        properties = Described(Ulong(PROPERTIES), [None, None, None, None, reply_to, Ulong(self._next_id)])
        described = Described(Ulong(APPLICATION_PROPERTIES), dict(application_properties.items()))
        self.post(link, encode(properties) + encode(described) + value_message(_NULL))
        yield lambda: self._replies
        return self._replies.pop()

    def close(self) -> None:
        """Drops the connection."""
        self.socket.close()


def posting(txn_id: bytes) -> bytes:
    """The state of a post."""
    return encode(Described(Ulong(TRANSACTIONAL), [txn_id]))


def accepting(txn_id: bytes) -> bytes:
    """The state of a retirement."""
    return encode(Described(Ulong(TRANSACTIONAL), [txn_id, Described(Ulong(ACCEPTED), [])]))


class RunningGenerator:
    """One generator on its connection."""

    def __init__(self, client: Client, waits: Waits) -> None:
        self.client = client
        self.result: Any = None
        self.ended = False
        self._waits = waits
        self._reached: Callable[[], object] = lambda: True

    def go_on(self) -> bool:
        """Runs as far as it gets; whether it has ended."""
        while not self.ended and self._reached():
            try:
                self._reached = next(self._waits)
            except StopIteration as stop:
                self.result, self.ended = stop.value, True
        self.client.flush()
        return self.ended


def run(client: Client, waits: Waits) -> Any:
    """Runs this to its end; its result. Here the client's timeout holds."""
    running = RunningGenerator(client, waits)
    while not running.go_on():
        client.receive()
    return running.result


def drive(pairs: Iterable[tuple[Client, Waits]]) -> list[Any]:
    """Runs these to their ends, side by side; their results."""
    running = [RunningGenerator(client, waits) for client, waits in pairs]
    with selectors.DefaultSelector() as selector:
        left = 0
        for one in running:
            if not one.go_on():
                selector.register(one.client.socket, selectors.EVENT_READ, one)
                left += 1
        while left:
            for key, _ in selector.select():
                key.data.client.receive()
                if key.data.go_on():
                    selector.unregister(key.fileobj)
                    left -= 1
    return [one.result for one in running]
