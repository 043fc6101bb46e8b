"""What feeds octets to the endpoint and to the codec of AMQP 1.0. Nothing but the documented errors may come out of
them. The registry is `tests.fuzz.decoders`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dtx.amqp.composites import WireError
from dtx.amqp.connection import Connection
from dtx.amqp.decoding import DecodeError, decode, skip
from dtx.amqp.encoding import encode
from dtx.amqp.frames import AMQP_HEADER, performative_frame
from dtx.amqp.messages import read_destination, read_header, read_request
from dtx.amqp.performatives import Open
from dtx.amqp.states import ConnectionState
from tests.dtx.amqp.ends import Application

CORPUS: Final = Path(__file__).parent / "corpus"
OPENED: Final = AMQP_HEADER + performative_frame(0, Open("fuzz"))
MOST: Final = 2_000_000
"""Octets that an endpoint may have to say about one input: its answers are bounded."""


def endpoint(octets: bytes) -> None:
    """An endpoint that accepts a connection, with an application that answers everything. The first octet says whether
    the connection is open already."""
    application = Application(Connection("fuzzed", window=4, handle_max=7, channel_max=7), credit=3)
    connection = application.connection
    connection.feed((OPENED if octets[:1] == b"o" else b"") + octets[1:])
    said = 0
    while (event := connection.next_event()) is not None:
        application.answer(event)
        said += len(connection.output())
    said += len(connection.output())
    assert said < MOST, f"{said} octets are said about {len(octets)}"
    assert len(connection.sessions) <= 8
    assert all(len(session.links) <= 8 for session in connection.sessions.values())


def late_endpoint(octets: bytes) -> None:
    """An endpoint whose application answers only when there is nothing more to take."""
    connection = Connection("fuzzed", window=4, handle_max=7, channel_max=7)
    application = Application(connection, credit=3)
    connection.feed(OPENED)
    application.go_on()
    connection.feed(octets[1:])
    events = []
    while (event := connection.next_event()) is not None:
        events.append(event)
    for event in events:
        if connection.state is ConnectionState.OPENED:
            application.answer(event)
    connection.output()


def values(octets: bytes) -> None:
    """A value is read to its end, or refused; what was read is written, and read again as the same."""
    try:
        value = decode(octets)
    except DecodeError:
        return
    assert skip(octets) == len(octets)
    again = encode(value)
    assert encode(decode(again)) == again


def messages(octets: bytes) -> None:
    """A message is read, or refused."""
    for read in (read_header, read_request, read_destination):
        try:
            read(octets)
        except WireError:
            continue
