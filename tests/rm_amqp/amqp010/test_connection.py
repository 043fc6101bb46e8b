"""These tests cover the connection and the session without I/O (the handshake, and what a hostile peer sends), and a
channel over a socket at peers that are no brokers of this kind.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtx.amqp.sasl import ClientPolicy
from rm_amqp.amqp010.connection import Connection, ConnectionState
from rm_amqp.amqp010.frames import PROTOCOL, FrameReader, Segment, write_segments
from rm_amqp.amqp010.resource import QpidResource
from rm_amqp.amqp010.session import Session, SessionState
from rm_amqp.amqp010.structs import (
    Command,
    ConnectionClose,
    ConnectionHeartbeat,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionRedirect,
    ConnectionSecure,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    Control,
    DtxRecover,
    ExecutionException,
    ExecutionResult,
    ExecutionSync,
    MessageReject,
    MessageStop,
    MessageTransfer,
    SessionAttach,
    SessionAttached,
    SessionCommandPoint,
    SessionCompleted,
    SessionDetach,
    SessionDetached,
    SessionFlush,
    SessionKnownCompleted,
    XaResult,
    read_command,
    read_control,
    write_command,
    write_control,
)
from rm_amqp.errors import Cause, ConnectionLost
from xa import Code, XaError

START = ConnectionStart({"product": "test"}, ["ANONYMOUS", "PLAIN"], ["en_US"])
TUNE = ConnectionTune(100, 8192, 0, 120)
OPENED = ConnectionOpenOk()
REDIRECT = ConnectionRedirect("other:5672", [])
REDIRECTED = "redirects to other:5672; put that address into"
NONSENSE = "no AMQP 0-10"


def control(value: Control, channel: int = 0) -> bytes:
    """Its frame."""
    return write_segments(channel, 4096, [(Segment.CONTROL, write_control(value))])


def command(value: Command, *more: tuple[Segment, bytes], sync: bool = False) -> bytes:
    """Its frames."""
    return write_segments(0, 4096, [(Segment.COMMAND, write_command(value, sync=sync)), *more])


def said(connection: Connection) -> list[Control | Command]:
    """What it has written, without the protocol's header."""
    octets = connection.output().removeprefix(PROTOCOL)
    return [
        read_command(found.method)[0] if found.is_command else read_control(found.method)
        for found in FrameReader().feed(octets)
    ]


def new(policy: ClientPolicy | None = None, *, encrypted: bool = False, heartbeat_s: int = 30) -> Connection:
    return Connection(
        policy or ClientPolicy(), "there", "orders", heartbeat_s, encrypted=encrypted, nonce=lambda size: b"n" * size
    )


def opened() -> Connection:
    """One that is open."""
    connection = new()
    connection.receive(PROTOCOL + control(START) + control(TUNE) + control(OPENED))
    connection.output()
    assert connection.is_open
    return connection


def attached() -> tuple[Connection, Session]:
    """One with a session."""
    connection = opened()
    session = connection.attach(b"s")
    connection.receive(control(SessionAttached(b"s")) + control(SessionCommandPoint(0, 0)))
    assert session.state is SessionState.ATTACHED
    connection.output()
    return connection, session


def test_the_handshake() -> None:
    connection = new()
    assert connection.output() == PROTOCOL
    connection.receive(PROTOCOL[:3])
    connection.receive(PROTOCOL[3:] + control(START))
    (start_ok,) = said(connection)
    assert isinstance(start_ok, ConnectionStartOk)
    assert (start_ok.mechanism, start_ok.response) == ("ANONYMOUS", b"")
    connection.receive(control(TUNE))
    tune_ok, open_it = said(connection)
    assert tune_ok == ConnectionTuneOk(100, 8192, 30)
    assert open_it == ConnectionOpen("orders")
    connection.receive(control(OPENED))
    assert connection.is_open
    assert connection.server == {"product": "test"}


def test_a_password_is_not_told_without_tls() -> None:
    policy = ClientPolicy("ada", "secret")
    with pytest.raises(ConnectionLost, match="PLAIN would tell") as lost:
        new(policy).receive(PROTOCOL + control(START))
    assert lost.value.cause is Cause.UNUSABLE
    connection = new(policy, encrypted=True)
    connection.output()
    connection.receive(PROTOCOL + control(START))
    (start_ok,) = said(connection)
    assert isinstance(start_ok, ConnectionStartOk)
    assert (start_ok.mechanism, start_ok.response) == ("PLAIN", b"\0ada\0secret")


def test_a_server_that_does_not_prove_that_it_knows_the_password() -> None:
    """It answers tune in the middle of SCRAM."""
    connection = new(ClientPolicy("ada", "secret"))
    connection.receive(PROTOCOL + control(ConnectionStart({}, ["SCRAM-SHA-256"])))
    with pytest.raises(ConnectionLost, match="did not prove"):
        connection.receive(control(TUNE))
    connection = new(ClientPolicy("ada", "secret"))
    connection.receive(PROTOCOL + control(ConnectionStart({}, ["SCRAM-SHA-256"])))
    with pytest.raises(ConnectionLost, match="does not prove"):
        connection.receive(control(ConnectionSecure(b"r=other,s=QSXCR+Q6sek8bf92,i=4096")))


REFUSALS: dict[str, tuple[list[Control], bytes, str, Cause]] = {
    "a redirect": ([], control(REDIRECT), REDIRECTED, Cause.UNUSABLE),
    "a redirect at the open": ([START, TUNE], control(REDIRECT), REDIRECTED, Cause.UNUSABLE),
    "our name": ([START], control(ConnectionClose(320, "no")), "refuses ANONYMOUS as 'anonymous': no", Cause.UNUSABLE),
    "the host": ([START, TUNE], control(ConnectionClose(402, "no")), "has no virtual host 'orders'", Cause.UNUSABLE),
    "a close": ([START, TUNE, OPENED], control(ConnectionClose(320, "bye\n")), "closed the connection", Cause.LOST),
    "a tune too early": ([], control(TUNE), NONSENSE, Cause.LOST),
    "an open too early": ([], control(OPENED), NONSENSE, Cause.LOST),
    "a second start": ([START], control(START), NONSENSE, Cause.LOST),
    "a session too early": ([], control(SessionAttached(b"s")), NONSENSE, Cause.LOST),
    "frames that are too small": ([START], control(ConnectionTune(1, 100)), NONSENSE, Cause.LOST),
    "a command": ([], command(DtxRecover()), NONSENSE, Cause.LOST),
    "no frame": ([], b"\xff" * 40, NONSENSE, Cause.LOST),
}


@pytest.mark.parametrize(("before", "octets", "told", "cause"), REFUSALS.values(), ids=REFUSALS)
def test_a_handshake_that_leads_nowhere(before: list[Control], octets: bytes, told: str, cause: Cause) -> None:
    connection = new()
    connection.receive(PROTOCOL + b"".join(map(control, before)))
    with pytest.raises(ConnectionLost, match=told) as lost:
        connection.receive(octets)
    assert lost.value.cause is cause
    assert "\n" not in lost.value.message
    assert connection.state is ConnectionState.CLOSED


def test_another_version_is_refused_by_its_name() -> None:
    with pytest.raises(ConnectionLost, match=r"offers AMQP 1\.0\.0") as lost:
        new().receive(b"AMQP\0\1\0\0")
    assert lost.value.cause is Cause.UNUSABLE
    with pytest.raises(ConnectionLost):
        new().receive(b"HTTP/1.1 400")


def test_the_session_is_attached_and_numbered() -> None:
    connection = opened()
    session = connection.attach(b"s")
    assert next(type(each) for each in said(connection)) is SessionAttach
    assert session.send(DtxRecover()) == 0
    assert session.send(DtxRecover(), sync=True) == 1
    connection.receive(control(SessionAttached(b"s")) + control(SessionCommandPoint(0, 0)))
    connection.receive(command(ExecutionResult(1, XaResult(0))))
    assert session.results == {1: XaResult(0)}
    connection.receive(control(SessionCompleted(((0, 1),), timely_reply=True)))
    assert session.outstanding == set()
    assert SessionKnownCompleted(((0, 1),)) in said(connection)


def test_completions_that_name_the_same_commands_again() -> None:
    """A peer does so until it is told that we know; however many there are, it costs little."""
    connection, session = attached()
    for _ in range(5):
        session.send(DtxRecover())
    connection.receive(control(SessionCompleted(((0, 1), (3, 3)))))
    assert session.outstanding == {2, 4}
    connection.receive(control(SessionCompleted(((2**32 - 9, 2),))))
    assert session.outstanding == {4}
    connection.receive(control(SessionCompleted(((0, 2**31 - 1),))))
    assert session.outstanding == set()


def test_what_the_peer_sent_is_completed() -> None:
    connection, _ = attached()
    for _ in range(3):
        connection.receive(command(MessageTransfer("d"), (Segment.BODY, b"x")))
    assert said(connection) == [SessionCompleted(((number, number),)) for number in range(3)]
    connection.receive(control(SessionFlush(completed=True)))
    assert said(connection) == []
    connection.receive(command(ExecutionSync(), sync=True))
    assert said(connection) == [SessionCompleted(((3, 3),))]


def test_numbers_go_round() -> None:
    connection = opened()
    session = connection.attach(b"s")
    connection.receive(control(SessionAttached(b"s")) + control(SessionCommandPoint(2**32 - 1, 0)))
    connection.output()
    connection.receive(command(MessageTransfer("d")) + command(MessageTransfer("d")))
    assert [transfer.number for transfer in session.arrived] == [2**32 - 1, 0]
    assert said(connection) == [SessionCompleted(((2**32 - 1, 0),))]


def test_an_exception_ends_the_session_and_not_the_connection() -> None:
    connection, session = attached()
    session.send(DtxRecover())
    connection.receive(command(ExecutionException(404, 0, description="no")) + control(SessionDetached(b"s", 0)))
    assert session.ended
    assert session.exception is not None
    assert connection.is_open
    assert connection.attach(b"t").state is SessionState.ATTACHING


def test_the_peer_takes_no_messages_and_rejects_one() -> None:
    connection, session = attached()
    connection.receive(command(MessageStop("")) + command(MessageReject(((4, 5),), 1, "Unroutable")))
    assert session.blocked
    assert session.rejected == {4: "Unroutable", 5: "Unroutable"}


@pytest.mark.parametrize(
    "octets",
    [
        control(SessionAttached(b"other")),
        control(SessionCommandPoint(0, 3)),
        control(SessionDetach(b"s"), channel=3),
        control(SessionAttach(b"s")),
        command(ExecutionResult(7, XaResult(0))),
        command(DtxRecover()),
        write_segments(0, 4096, [(Segment.CONTROL, b"\x02\x63\0\0")]),
        write_segments(0, 4096, [(Segment.COMMAND, b"\x63\x01\x01\0\0\0")]),
    ],
)
def test_a_session_that_makes_no_sense(octets: bytes) -> None:
    connection, _ = attached()
    with pytest.raises(ConnectionLost, match=NONSENSE) as lost:
        connection.receive(octets)
    assert lost.value.cause is Cause.LOST
    assert any(isinstance(each, ConnectionClose) for each in said(connection))


def test_a_heartbeat() -> None:
    connection = opened()
    connection.receive(control(ConnectionHeartbeat()))
    connection.heartbeat()
    assert said(connection) == [ConnectionHeartbeat()]


TALK = [
    control(START) + control(TUNE) + control(OPENED),
    control(SessionAttached(b"s")) + control(SessionCommandPoint(0, 0)),
    command(MessageTransfer("d", 0, 0), (Segment.HEADER, b"\0\0\0\4\4\1\0\0"), (Segment.BODY, b"body")),
    command(ExecutionResult(0, XaResult(0))) + control(SessionCompleted(((0, 0),))),
]


@pytest.mark.slow
@given(st.data())
def test_whatever_a_peer_sends_is_refused_by_one_kind_of_error(data: st.DataObject) -> None:
    connection = new()
    connection.receive(PROTOCOL)
    for number, talk in enumerate(TALK):
        octets = bytearray(talk)
        for _ in range(data.draw(st.sampled_from([0, 0, 0, 1, 2]))):
            octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
        try:
            connection.receive(bytes(octets))
        except ConnectionLost:
            assert connection.state is ConnectionState.CLOSED
            return
        if not number:
            if not connection.is_open:
                return
            connection.attach(b"s").send(DtxRecover())


RMID = 3


@contextmanager
def says(octets: bytes | None) -> Iterator[int]:
    """A server that says this to everybody, and then waits; None: it closes at once. Where it listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        kept = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                kept.append(connection)
                if octets is None:
                    connection.close()
                elif octets:
                    connection.sendall(octets)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield int(listening.getsockname()[1])
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in kept:
                connection.close()


@pytest.mark.parametrize(
    ("octets", "code", "told"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", Code.XAER_RMFAIL, NONSENSE),
        (b"AMQP\x00\x01\x00\x00", Code.XAER_RMERR, r"offers AMQP 1\.0\.0, not 0-10"),
        (PROTOCOL + b"\x0f\x00\x00\x03" + bytes(20), Code.XAER_RMFAIL, NONSENSE),
        (PROTOCOL + b"\xff" * 4000, Code.XAER_RMFAIL, NONSENSE),
        (b"", Code.XAER_RMFAIL, "did not answer in time"),
        (None, Code.XAER_RMFAIL, "was lost"),
    ],
)
def test_a_peer_that_is_no_such_broker(octets: bytes | None, code: Code, told: str) -> None:
    with says(octets) as port:
        rm = QpidResource()
        url = f"amqp010://127.0.0.1:{port}/?connect_timeout={0.1 if octets == b'' else 20}"
        with pytest.raises(XaError, match=told) as raised:
            rm.open(url, RMID)
        assert raised.value.code is code
        (check,) = rm.diagnose(url).checks
        assert check.advice
        rm.driver.drop()


def test_a_server_without_tls() -> None:
    with says(PROTOCOL) as port:
        rm = QpidResource()
        told = "can't be used: TLS: no TLS is spoken at this port: name the port for TLS"
        with pytest.raises(XaError, match=told) as raised:
            rm.open(f"amqp010s://127.0.0.1:{port}/", RMID)
        assert raised.value.code is Code.XAER_RMERR
        rm.driver.drop()
