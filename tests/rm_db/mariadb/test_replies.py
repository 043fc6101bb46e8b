"""These tests cover how the end of a reply is found in what MariaDB sends, however it is cut into pieces, and what its
refusals of XA START mean."""

from __future__ import annotations

import socket
from itertools import pairwise

import pytest

from rm_db.mariadb.connection import MAX_REPLY, Result, _Reader
from rm_db.mariadb.transaction import MariaTransaction
from rm_db.mariadb.xid import encode_xid
from rm_db.server.pending import OutstandingSteps
from rm_db.server.steps import Failure
from xa import Code, XaError, Xid

OK = b"\x00\x00\x00\x02\x00\x00\x00"
ERROR = b"\xff\x51\x04#HY000no"
COUNT = b"\x01"
COLUMN = b"\x03def" + 4 * b"\x00" + b"\x01a\x00\x0c\x21\x00\x00\x04\x00\x00\xfd\x00\x00\x00\x00\x00"
END = b"\xfe\x00\x00\x02\x00"
ROW = b"\x03abc"
NULL = b"\xfb"
LONG = b"\xfe" + (1 << 24).to_bytes(8, "little")
"""What a row of 16 MB begins with: it looks like an end that is too long for one."""


def packets(*contents: bytes) -> bytes:
    """These packets, numbered."""
    octets = b""
    for number, content in enumerate(contents, 1):
        octets += len(content).to_bytes(3, "little") + bytes([number % 256]) + content
    return octets


REPLIES = {
    "success": packets(OK),
    "an error": packets(ERROR),
    "nothing": packets(b""),
    "a request for a file": packets(b"\xfb/etc/passwd"),
    "no rows": packets(COUNT, COLUMN, END, END),
    "rows": packets(COUNT, COLUMN, END, ROW, NULL, b"\x00", ROW, END),
    "an error among rows": packets(COUNT, COLUMN, END, ROW, ERROR),
    "a row that begins like an end": packets(COUNT, COLUMN, END, LONG + bytes(20), END),
}


@pytest.mark.parametrize("kind", REPLIES)
@pytest.mark.parametrize("following", ["success", "rows"])
@pytest.mark.parametrize("step", [1, 3, 4, 1000])
def test_the_end_of_a_reply(kind: str, following: str, step: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reader = _Reader(ours)
        for name in (kind, following):
            octets = REPLIES[name]
            places = [*range(0, len(octets), step), len(octets)]
            for begin, end in pairwise(places):
                assert not reader.has_reply()
                theirs.sendall(octets[begin:end])
                reader.take()
            assert reader.has_reply()
            reader.begin_reply()
            assert reader.read(len(octets)) == octets
            assert reader.read(1) == b"", "PyMySQL must not wait for what is not there"
            reader.end_reply()


def test_packets_that_go_on() -> None:
    """The rest of a packet of 16 MB is not looked at, whatever it begins with."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reader = _Reader(ours)
        whole = b"\xff\xff\xff\x04" + bytes(0xFFFFFF) + b"\x05\x00\x00\x05" + END + packets(END)
        reader._buffer += packets(COUNT, COLUMN, END) + whole[:-9]
        assert not reader.has_reply()
        reader._buffer += whole[-9:]
        assert reader.has_reply()


def test_a_reply_without_an_end_is_given_up() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reader = _Reader(ours)
        reader._buffer += bytes(MAX_REPLY)
        theirs.sendall(b"x")
        reader.take()
        assert "more than" in reader.why_lost


class Answering:
    """A connection whose server answers each statement but the last one with success, and that with this error."""

    def __init__(self, number: int) -> None:
        self._number = number

    async def exchange(self, *commands: bytes) -> list[Result]:
        refused = Result((), Failure(None, "no", number=self._number))
        return [*(Result((), None) for _ in commands[1:]), refused]


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (1440, Code.XAER_DUPID),
        (1399, Code.XA_RETRY), (1400, Code.XA_RETRY),  # the session is in the middle of something else
        (1205, Code.XA_RETRY), (1317, Code.XA_RETRY), (1969, Code.XA_RETRY),
        (1040, Code.XA_RETRY), (1041, Code.XA_RETRY), (1021, Code.XA_RETRY), (1290, Code.XA_RETRY),
        (1398, Code.XAER_RMERR), (1401, Code.XAER_RMERR), (1235, Code.XAER_RMERR), (1142, Code.XAER_RMERR),
    ],
)  # fmt: skip
def test_what_a_refusal_of_xa_start_means(number: int, code: Code) -> None:
    """What the server is short of, or in the middle of, is tried again; what it will never do is not."""
    transaction = MariaTransaction.__new__(MariaTransaction)
    transaction.xid = Xid(7, b"g", b"b")
    transaction._encoded = encode_xid(transaction.xid)
    transaction._outstanding = OutstandingSteps(1.0)
    with pytest.raises(XaError) as refused:
        transaction._begin(Answering(number))  # type: ignore[arg-type]
    assert refused.value.code is code
