"""These tests feed the client's side of a connection with what a broker must not say."""

from __future__ import annotations

import random

import pytest

from rm_openwire.endpoint import Endpoint
from rm_openwire.errors import ConnectionLost, Refused, code_of, rollback_code_of
from rm_openwire.primitives import encode_map
from rm_openwire.wire import (
    BrokerId,
    BrokerInfo,
    ConnectionControl,
    ConnectionFault,
    ConsumerId,
    ConsumerInfo,
    ExceptionResponse,
    FrameReader,
    KeepAliveInfo,
    MessageDispatch,
    Response,
    ShutdownInfo,
    Throwable,
    WireFormatInfo,
    encode,
)
from tests.simulation.seeds import EVERY_POINT
from xa import Code

GREETING = encode(WireFormatInfo(properties=encode_map({"MaxInactivityDuration": 30000})))
KNOWN = GREETING + encode(BrokerInfo(broker_id=BrokerId("ID:host-1")))


def opened() -> Endpoint:
    """One that is negotiated."""
    endpoint = Endpoint(30)
    endpoint.receive(KNOWN)
    endpoint.outgoing.clear()
    return endpoint


def sent(endpoint: Endpoint) -> list[object]:
    """The commands that it sends."""
    return list(FrameReader().feed(bytes(endpoint.outgoing)))


def test_it_switches_everything_off_that_it_does_not_speak() -> None:
    (greeting,) = sent(Endpoint(30))
    assert isinstance(greeting, WireFormatInfo)
    assert greeting.version == 12
    assert greeting.properties is not None
    assert b"TightEncodingEnabled\x01\x00" in greeting.properties
    assert b"CacheEnabled\x01\x00" in greeting.properties


def test_the_lower_version_counts() -> None:
    for theirs, agreed in ((10, 10), (11, 11), (12, 12), (13, 12)):
        endpoint = Endpoint(30)
        endpoint.receive(encode(WireFormatInfo(version=theirs)))
        assert endpoint.version == agreed
    with pytest.raises(ConnectionLost, match="version 9"):
        Endpoint(30).receive(encode(WireFormatInfo(version=9)))


@pytest.mark.parametrize(
    "octets",
    [
        encode(KeepAliveInfo()),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        encode(WireFormatInfo(properties=encode_map({"SizePrefixDisabled": True}))),
        KNOWN + GREETING,
        KNOWN + encode(ShutdownInfo()),
        KNOWN + encode(ConnectionControl(close=True)),
        KNOWN + encode(ConnectionFault(exception=Throwable("java.io.IOException", "no"))),
        KNOWN + encode(Response(correlation_id=7)),
        KNOWN + encode(ExceptionResponse(correlation_id=0, exception=Throwable("E"))),
        KNOWN + encode(MessageDispatch()),
    ],
)
def test_what_breaks_the_connection(octets: bytes) -> None:
    with pytest.raises(ConnectionLost):
        Endpoint(30).receive(octets)


def test_answers() -> None:
    endpoint = opened()
    first, second = endpoint.ask(KeepAliveInfo()), endpoint.ask(KeepAliveInfo())
    assert endpoint.answer(first) is None
    endpoint.receive(encode(Response(correlation_id=second)))
    assert not endpoint.is_answered(first)
    assert endpoint.is_answered(second)
    assert endpoint.answer(second) == Response(correlation_id=second)
    endpoint.receive(encode(Response(correlation_id=second)))  # Artemis answers twice
    endpoint.receive(encode(ExceptionResponse(correlation_id=first, exception=Throwable("a.B", "xaErrorCode:-4"))))
    with pytest.raises(Refused) as refused:
        endpoint.answer(first)
    assert refused.value.code is Code.XAER_NOTA
    with pytest.raises(ConnectionLost, match="a request that was not sent"):
        endpoint.receive(encode(ExceptionResponse(correlation_id=second, exception=Throwable("E"))))


def test_a_ping_is_answered_and_what_comes_late_is_dropped() -> None:
    endpoint = opened()
    endpoint.receive(encode(KeepAliveInfo(response_required=True)))
    assert [type(command) for command in sent(endpoint)] == [KeepAliveInfo]
    consumer = ConsumerId("c", 1, 1)
    endpoint.receive(encode(MessageDispatch(consumer_id=consumer)))
    waiting = endpoint.add_consumer(ConsumerInfo(consumer_id=consumer))
    endpoint.receive(encode(MessageDispatch(consumer_id=consumer)))
    assert len(waiting) == 1


@pytest.mark.parametrize(
    ("name", "message", "code"),
    [
        ("javax.transaction.xa.XAException", "not started. xaErrorCode:-4", Code.XAER_NOTA),
        ("javax.transaction.xa.XAException", "STORE COMMIT FAILED xaErrorCode:4", Code.XA_RETRY),
        ("javax.transaction.xa.XAException", "xaErrorCode:999", None),
        ("javax.jms.IllegalStateException", "Transaction not started, XID", Code.XAER_NOTA),
        ("org.apache.activemq.artemis.core.exception.ActiveMQXAException", "there is already a xid", Code.XAER_DUPID),
        ("x.ActiveMQTransactionTimeoutException", "", Code.XA_RBTIMEOUT),
        ("java.io.IOException", "disk", None),
    ],
)
def test_what_the_exceptions_mean(name: str, message: str, code: Code | None) -> None:
    assert code_of(Throwable(name, message)) is code


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("javax.jms.ResourceAllocationException", Code.XA_RBTRANSIENT),
        ("org.apache.activemq.artemis.api.core.ActiveMQAddressFullException", Code.XA_RBTRANSIENT),
        ("java.io.IOException", Code.XA_RBOTHER),
    ],
)
def test_a_branch_for_which_there_is_no_room_may_be_tried_again(name: str, code: Code) -> None:
    assert rollback_code_of(Throwable(name, "Queue is full full")) is code


def test_hostile_brokers() -> None:
    """Whatever a broker sends is read, or breaks the connection."""
    draw = random.Random(11)
    pieces = [
        GREETING,
        encode(BrokerInfo(broker_id=BrokerId("x"))),
        encode(Response(correlation_id=1)),
        encode(ExceptionResponse(correlation_id=2, exception=Throwable("E", "m"))),
        encode(MessageDispatch(consumer_id=ConsumerId("c", 1, 1))),
        encode(KeepAliveInfo(response_required=True)),
    ]
    for _ in range(50_000 if EVERY_POINT else 1_000):
        endpoint = opened()
        endpoint.ask(KeepAliveInfo())
        octets = bytearray(b"".join(draw.choices(pieces[1:], k=4)))
        for _ in range(draw.randrange(4)):
            octets[draw.randrange(len(octets))] = draw.randrange(256)

        try:
            for at in range(0, len(octets), 7):
                endpoint.receive(bytes(octets[at : at + 7]))
        except ConnectionLost:
            continue
