"""Measures the cost of the resource manager client with the embedded broker. The benchmark of the broker calls it.

client_cpu_us, round_trips    of a branch cycle (start, one message in, one out, end, prepare, commit) with
                              `ahead=true&prefetch=100`: the client process's own CPU, and how often it waited
waiting_cpu_us, waiting_trips the same with the defaults: every verb waits, every message is requested
one_phase_trips               with `ahead` and `prefetch`, committed in one phase
plain_vs_proton               a plain receive-and-send loop outside of any transaction, each message accepted and
                              confirmed, in messages per second, over that of proton's BlockingConnection
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any, Final

from proton.utils import BlockingConnection

from rm_amqp import AmqpResource, Message
from xa import TMNOFLAGS, TMONEPHASE, TMREGISTER, TMSUCCESS, TMUSEASYNC, Xid
from xabridge.testing.no_transaction import NoTransaction

if TYPE_CHECKING:
    from xabridge.testing.broker import BrokerProcess

RMID: Final = 1
QUICK: Final = "ahead=true&prefetch=100"
ROUNDS: Final = 7
CIRCLE: Final = 200
BODY: Final = bytes(1024)


def measure_client(broker: BrokerProcess, scale: int) -> dict[str, float]:
    """The figures; a `scale` above 1 takes fewer repetitions."""
    count = 400 // scale
    cpu_us, trips = _cycles(broker, QUICK, count)
    waiting_us, waiting_trips = _cycles(broker, "", count // 2)
    _, one_phase = _cycles(broker, QUICK, count // 2, one_phase=True)
    return {
        "client_cpu_us": round(cpu_us),
        "round_trips": round(trips, 2),
        "waiting_cpu_us": round(waiting_us),
        "waiting_trips": round(waiting_trips, 2),
        "one_phase_trips": round(one_phase, 2),
        **_plain(broker, 1000 // scale),
    }


def _opened(broker: BrokerProcess, options: str, flags: int = TMUSEASYNC) -> AmqpResource:
    rm = AmqpResource(NoTransaction(), flags)
    rm.open(f"amqp://{broker.host}:{broker.port}/?{options}", RMID)
    return rm


def _cycles(broker: BrokerProcess, options: str, count: int, *, one_phase: bool = False) -> tuple[float, float]:
    """CPU in microseconds (of the best round: what else runs on the machine only adds) and round trips of one cycle:
    a message goes round in one queue."""
    rm = _opened(broker, options)
    queue = f"cycles {options}{one_phase}"

    def cycle(number: int, *, receives: bool = True) -> None:
        xid = Xid(0x62, b"client %d" % number, queue.encode())
        rm.start(xid, RMID)
        session = rm.session(RMID)
        session.send(queue, session.receive(queue, 10) if receives else Message(BODY))
        rm.end(xid, RMID, TMSUCCESS)
        if one_phase:
            rm.commit(xid, RMID, TMONEPHASE)
        else:
            rm.prepare(xid, RMID)
            rm.commit(xid, RMID)

    for number in range(CIRCLE):
        cycle(number, receives=False)
    for number in range(CIRCLE, 2 * CIRCLE):
        cycle(number)
    trips, spent, first = rm.round_trips, [], 2 * CIRCLE
    for begins in range(first, first + ROUNDS * count, count):
        began_s = time.process_time()
        for number in range(begins, begins + count):
            cycle(number)
        spent.append(time.process_time() - began_s)
    trips = rm.round_trips - trips
    rm.close("", RMID, TMNOFLAGS)
    return min(spent) / count * 1e6, trips / count / ROUNDS


def _plain(broker: BrokerProcess, count: int) -> dict[str, float]:
    """Both loops in turn, several times, with the same prefetch; the medians."""
    rm = _opened(broker, f"prefetch={CIRCLE // 4}", TMUSEASYNC | TMREGISTER)
    session = rm.session(RMID)
    for queue in ("plain", "proton"):
        for _ in range(CIRCLE):
            session.send(queue, Message(BODY))
    connection = BlockingConnection(f"{broker.host}:{broker.port}", allowed_mechs="ANONYMOUS")
    receiver = connection.create_receiver("proton", credit=CIRCLE // 4)
    sender = connection.create_sender("proton")

    def plain() -> None:
        session.send("plain", session.receive("plain", 10))

    def proton() -> None:
        message = receiver.receive(10)
        receiver.accept()
        sender.send(message)

    def rate(loop: Any) -> tuple[float, float]:
        began_s, cpu_s = time.perf_counter(), time.process_time()
        for _ in range(count):
            loop()
        return count / (time.perf_counter() - began_s), (time.process_time() - cpu_s) / count * 1e6

    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(rate(plain))
        theirs.append(rate(proton))
    connection.close()
    rm.close("", RMID, TMNOFLAGS)
    (ours_per_s, ours_us), (theirs_per_s, theirs_us) = (
        (statistics.median(figures) for figures in zip(*rounds, strict=True)) for rounds in (ours, theirs)
    )
    return {
        "plain_vs_proton": round(ours_per_s / theirs_per_s, 2),
        "plain_per_s": round(ours_per_s),
        "proton_per_s": round(theirs_per_s),
        "plain_cpu_us": round(ours_us),
        "proton_cpu_us": round(theirs_us),
    }
