"""These tests check that the client's own writer and reader write and read the same as the protocol's catalogues."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtx.amqp.composites import WireError
from dtx.amqp.encoding import encode
from dtx.amqp.messages import read_request, response_message, value_message
from dtx.amqp.values import Ulong
from dtx.protocol.commands import (
    CONTROL,
    COORDINATION,
    Commit,
    Complete,
    Declare,
    Discharge,
    End,
    Forget,
    GetTimeout,
    Prepare,
    Recover,
    Rollback,
    Start,
)
from dtx.protocol.replies import Result, encode_reply
from rm_amqp.channel.encoded_commands import Requests, control_message, coordination, read_reply, read_response
from xa import NULL_XID, Code, Xid

NUMBERS = st.integers(0, 2**64 - 1)
XIDS = st.builds(Xid, st.integers(0, 2**31 - 1), st.binary(min_size=1, max_size=64), st.binary(min_size=0, max_size=64))
SECONDS = st.integers(0, 2**32 - 1)
TXN_IDS = st.binary(min_size=1, max_size=32)
STARTS = st.one_of(
    st.builds(Start, XIDS),
    st.builds(Start, XIDS, st.just(value=True), st.just(value=False), TXN_IDS),
    st.builds(
        Start, XIDS, st.just(value=False), st.booleans(), st.none() | TXN_IDS, st.none() | st.integers(0, 2**32 - 1)
    ),
)
CONTROLS = st.one_of(
    st.builds(Declare, st.none() | STARTS),
    st.builds(Discharge, TXN_IDS, st.booleans()),
    st.builds(End, TXN_IDS, st.just(value=False), st.booleans()),
    st.builds(End, TXN_IDS, prepare=st.just(value=True), keep=st.booleans()),
)
ANY_XID = XIDS | st.just(NULL_XID)
COMMANDS = st.one_of(
    st.builds(Prepare, ANY_XID, st.booleans()),
    st.builds(Commit, ANY_XID, st.booleans()),
    st.builds(Rollback, ANY_XID),
    st.builds(Forget, XIDS),
    st.builds(GetTimeout, XIDS),
    st.builds(Recover, ANY_XID),
    st.builds(Complete, XIDS, st.booleans()),
)


@given(CONTROLS)
def test_control_messages(command: Any) -> None:
    assert control_message(command) == value_message(CONTROL.encode(command))


@given(COMMANDS)
def test_commands(command: Any) -> None:
    assert coordination(command) == COORDINATION.encode(command)


@pytest.mark.slow
@given(st.text(max_size=300), NUMBERS, COMMANDS)
def test_requests(reply_to: str, number: int, command: Any) -> None:
    request = read_request(Requests(reply_to).write(number, coordination(command)))
    assert (request.reply_to, request.correlation) == (reply_to, Ulong(number))
    assert COORDINATION.decode(request.body) == command


@given(NUMBERS, st.binary(max_size=300), st.booleans())
def test_responses(number: int, told: bytes, annotated: bool) -> None:
    value = encode(told)
    octets = response_message(value, Ulong(number), {"a": 1.0} if annotated else None)
    assert read_response(octets) == (number, value)


@pytest.mark.parametrize("correlation", [None, b"17", "17"])
def test_a_response_to_nobody(correlation: Any) -> None:
    assert read_response(response_message(b"\x45", correlation)) == (None, b"\x45")


@given(st.binary(max_size=60))
def test_what_is_no_response(octets: bytes) -> None:
    """It is refused, or read as the protocol reads it."""
    try:
        number, body = read_response(octets)
    except WireError:
        return
    request = read_request(octets)
    assert body == request.body
    assert number == (request.correlation if type(request.correlation) is Ulong else None)


@pytest.mark.parametrize("code", [Code.XA_OK, Code.XA_RDONLY, Code.XA_HEURMIX])
def test_a_reply_is_the_same_each_time(code: Code) -> None:
    octets = encode_reply(Result(code))
    assert read_reply(octets) == read_reply(octets) == Result(code)
