"""Which protocol a peer speaks that was expected to speak another one: a port is easily mistaken for its neighbour, and
what answers there is the best hint.
"""

from __future__ import annotations

import re
from typing import Final

LONGEST: Final = 12
"""So many octets say as much as more would."""

_KNOWN: Final[tuple[tuple[re.Pattern[bytes], str], ...]] = tuple(
    (re.compile(pattern, re.DOTALL), name)
    for pattern, name in (
        (rb"HTTP/", "HTTP"),
        (rb"AMQP\x00\x01\x00\x00", "AMQP 1.0"),
        (rb"AMQP\x03\x01\x00\x00", "AMQP 1.0 with SASL"),
        (rb"AMQP\x02\x01\x00\x00", "AMQP 1.0 with TLS"),
        (rb"AMQP\x00\x00\x09", "AMQP 0-9-1"),
        (rb"AMQP\x01\x01\x00\x0a", "AMQP 0-10"),
        (rb"AMQP", "another version of AMQP"),
        (rb"[\x14-\x17]\x03[\x00-\x04]", "TLS"),
        (rb"....\x01ActiveMQ", "OpenWire"),
        (rb"....\x01Act", "OpenWire"),
        (rb"SSH-", "SSH"),
        (rb"\+OK|-ERR|-NOAUTH|-DENIED", "Redis"),
        (rb"220[ -]", "SMTP or FTP"),
        (rb"...\x00\x0a[0-9]|...\x00\xff", "MariaDB or MySQL"),
        (rb"E\x00\x00..?S?", "PostgreSQL"),
        (rb"CONNECTED|ERROR\n", "STOMP"),
    )
)


def protocol_of(octets: bytes) -> str:
    """What begins with these octets, in words that go behind "it begins with": the octets, and the protocol if it is a
    known one."""
    begins = repr(octets[:LONGEST])
    for pattern, name in _KNOWN:
        if pattern.match(octets):
            return f"{begins}, which is {name}"
    return begins
