"""These tests check that proton gets everything that proton itself sends, and nothing that has a wrong type or comes
out of order.
"""

from __future__ import annotations

import pytest

from dtx.protocol.encoding import encode
from dtx.protocol.frame_filter import FIELDS, MAX_PERFORMATIVE, FrameFilter, checked
from dtx.protocol.frames import AMQP_HEADER, IncomingFrames
from dtx.protocol.performatives import FrameError
from dtx.protocol.values import Described, Uint, Ulong
from tests.dtx.protocol.test_frames import LIMIT, conversation

NULL = b"\x40"


def test_everything_that_proton_says_is_admitted() -> None:
    for sizes, limit in (([10, 0, 3000], 512), ([100_000], LIMIT)):
        sent = conversation(sizes, limit)
        segments = IncomingFrames(limit, FrameFilter(8, 8)).feed(sent)
        assert b"".join(data for data, _ in segments) == sent


@pytest.mark.parametrize("code", FIELDS)
def test_every_constructor_in_every_field(code: int) -> None:
    """A field takes the constructors of its type, and null where it is not mandatory."""
    samples = {c: bytes((c,)) + bytes(w) for c, w in ((0x41, 0), (0x42, 0), (0x43, 0), (0x44, 0), (0x45, 0))}
    samples |= {c: bytes((c,)) + bytes(w) for c, w in ((0x50, 1), (0x52, 1), (0x53, 1), (0x56, 1), (0x60, 2))}
    samples |= {c: bytes((c,)) + bytes(w) for c, w in ((0x70, 4), (0x71, 4), (0x80, 8), (0x98, 16), (0xA0, 1))}
    samples |= {c: bytes((c,)) + bytes(w) for c, w in ((0xA1, 1), (0xA3, 1), (0xB0, 4), (0xB1, 4), (0xB3, 4))}
    samples |= {0xC0: b"\xc0\x01\x00", 0xC1: b"\xc1\x01\x00", 0xD1: b"\xd1\x00\x00\x00\x04\x00\x00\x00\x00"}
    samples |= {0xE0: b"\xe0\x02\x00\xa3", 0x00: b"\x00\x53\x24\x45", 0x40: NULL}
    usual = [samples[min(kinds)] if mandatory else NULL for _, kinds, mandatory in FIELDS[code]]
    for index, (_, kinds, mandatory) in enumerate(FIELDS[code]):
        for constructor, octets in samples.items():
            items = [*usual[:index], octets, *usual[index + 1 :]]
            body = b"".join(items)
            data = b"\xd0" + (len(body) + 4).to_bytes(4, "big") + len(items).to_bytes(4, "big") + body
            if constructor in kinds or (constructor == 0x40 and not mandatory):
                starts = checked(code, data, 0, len(data))
                assert [data[at] for at in starts] == [item[0] for item in items]
            else:
                with pytest.raises(FrameError):
                    checked(code, data, 0, len(data))


def test_a_performative_is_bounded_and_the_payload_of_a_transfer_is_not() -> None:
    transfer = b"\xc0\x02\x01\x43"
    assert checked(0x14, transfer + bytes(50_000), 0, 50_004) == [3]
    large = encode(
        [Uint(0), Uint(0), b"t", Uint(0), None, None, None, Described(Ulong(0x34), [bytes(MAX_PERFORMATIVE)])]
    )
    with pytest.raises(FrameError, match="octets; 8192 are allowed"):
        checked(0x14, large, 0, len(large))


def test_a_sign_of_life_is_nothing() -> None:
    incoming = IncomingFrames(LIMIT, FrameFilter(1, 1))
    assert incoming.feed(AMQP_HEADER + b"\x00\x00\x00\x08\x02\x00\x00\x00")
