"""A bad message, as it is sent on: the message as it came, with the reason among its application properties."""

from __future__ import annotations

from typing import Final

from dtx.amqp.composites import WireError
from dtx.amqp.decoding import DecodeError
from rm_amqp import Message
from rm_amqp.message import encoded

REASON: Final = "bad_reason"
"""The application property that has the reason."""
LONGEST: Final = 1000
"""Characters of a reason."""


def bad_message(octets: bytes, reason: str) -> bytes:
    """The octets to send. If nothing of the message can be read, its octets are the body."""
    try:
        message = Message.from_octets(octets)
    except (DecodeError, WireError, ValueError, IndexError, KeyError):
        message = Message(octets, inferred=True)
    message.properties = {**(message.properties or {}), REASON: reason[:LONGEST]}
    message.instructions = None  # they were for this receiver
    message.delivery_count = 0
    return encoded(message)
