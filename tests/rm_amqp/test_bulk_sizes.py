"""These tests do work in bulk with the embedded broker: any number of messages, of any size, with any credit. The
session's window is 2048 frames of 64 KiB: what does not fit into it waits for the client, and nothing else may wait for
that.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from dtx.broker.settings import Limits, Settings
from rm_amqp import AmqpResource, Message
from tests.rm_amqp.client import RMID, new_xid, transaction
from tests.rm_amqp.embedded import EmbeddedBroker
from xa import TMFAIL

FRAME: Final = 65_536
WINDOW: Final = 2048
WAITING: Final = (
    *((1, size) for size in (10, FRAME - 200, FRAME, FRAME + 1, 70_000, 1_100_000, 30_000_000)),
    (3, 70_000),
    (40, 70_000),
    (300, 66_000),
    (1_000, 5_000),
    *((messages, 10) for messages in (WINDOW - 1, WINDOW, WINDOW + 1, 2_500, 9_999)),
    (2_100, 66_000),
)
"""How many messages wait, of how many octets each."""
USUAL: Final = {(1, 10), (1, FRAME), (1, FRAME + 1), (3, 70_000), (300, 66_000), (WINDOW + 1, 10)}
"""Those on either side of what is counted, in frames and in messages; the others are long."""
MANY: Final = 20_000_000
NARROW: Final = Limits(output_octets=FRAME, unsettled=7, credit=3)
_NUMBERS: Final = count(1)


@pytest.fixture(params=[Limits(), NARROW], ids=["usual limits", "narrow limits"], scope="module")
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker with these limits."""
    folder: Path = tmp_path_factory.mktemp("broker")
    broker = EmbeddedBroker(folder, settings=Settings(limits=request.param))
    yield broker
    broker.stop()


@pytest.fixture
def rm(broker: EmbeddedBroker) -> Iterator[AmqpResource]:
    """A client."""
    rm = AmqpResource()
    rm.open(f"amqp://{broker.address}/?timeout=30", RMID)
    yield rm
    rm.close("", RMID)


def _put(rm: AmqpResource, queue: str, messages: int, octets: int) -> None:
    with transaction(rm) as session:
        session.post(queue, [Message(b"%d " % number + b"x" * octets).encode() for number in range(messages)])


def _number(octets: bytes) -> int:
    message = Message.from_octets(octets)
    assert isinstance(message.body, (bytes, memoryview))
    return int(bytes(message.body).partition(b" ")[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("messages", "octets"),
    [pytest.param(*waiting, marks=() if waiting in USUAL else pytest.mark.long) for waiting in WAITING],
)
def test_whatever_waits_is_taken_with_whatever_credit(rm: AmqpResource, messages: int, octets: int) -> None:
    queue = f"q{next(_NUMBERS)}"
    _put(rm, queue, messages, octets)
    assert rm.first(queue, RMID) is not None
    assert rm.count(queue, RMID) == messages
    credits_ = {1, messages + 1, 10_000} | (set() if messages * octets > MANY else {2, max(1, messages - 1), messages})
    for credit in sorted(credits_):
        rm.start(xid := new_xid(), RMID)
        taken = rm.session(RMID).gather(queue, credit)
        assert [_number(one) for one in taken] == list(range(min(messages, credit)))
        if credit < messages:
            rest = rm.session(RMID).gather(queue, 10_000)
            assert [_number(one) for one in rest] == list(range(credit, messages))
        rm.end(xid, RMID, TMFAIL)
        rm.rollback(xid, RMID)


def test_a_message_of_more_than_a_frame_is_waited_for(rm: AmqpResource) -> None:
    """It uses the credit with its first frame, and is there with its last one."""
    queue = f"q{next(_NUMBERS)}"
    _put(rm, queue, 2, 70_000)
    assert rm.first(queue, RMID) is not None
    with transaction(rm) as session:
        assert [_number(one) for one in session.gather(queue, 1)] == [0]
        assert len(session.receive_batch(queue, 1, 5.0)) == 1


def test_more_messages_than_the_window_and_fewer_than_the_credit(rm: AmqpResource) -> None:
    queue = f"q{next(_NUMBERS)}"
    _put(rm, queue, WINDOW + 400, 10)
    with transaction(rm) as session:
        assert len(session.gather(queue, 10_000)) == WINDOW + 400


@pytest.mark.slow
def test_a_message_as_long_as_the_broker_takes(rm: AmqpResource) -> None:
    """Proton moves what it has of a message with every frame that it writes: all of it at once took minutes, in which
    the broker heard nothing and closed the connection."""
    queue = f"q{next(_NUMBERS)}"
    _put(rm, queue, 1, 64 * 2**20 - 1000)
    with transaction(rm) as session:
        assert len(session.gather(queue, 1)) == 1
