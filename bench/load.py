"""Processes that load a broker, for the benchmark of the broker: they connect, wait for each other, and work."""

from __future__ import annotations

import multiprocessing
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bench.amqp import Client, accepting, posting
from dtx.protocol.commands import Commit, Prepare
from xa import Xid

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.synchronize import Barrier

PAYLOAD: Final = 1024
PER_TRANSACTION: Final = 100
PREFETCH: Final = 400
PROCESSES: Final = 4
START_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Load:
    """What one channel does: `count` messages or branches, from `source` to `target`."""

    host: str
    port: int
    count: int
    source: str = ""
    target: str = ""
    name: str = ""


def message(size: int = PAYLOAD) -> bytes:
    """A message with a binary body."""
    return b"\x00\x53\x75\xb0" + size.to_bytes(4, "big") + bytes(size)


def post(client: Client, load: Load) -> Callable[[], None]:
    """Posts messages, 100 in a local transaction, settled; the next transaction is declared with the
    discharge of the last one."""
    control, sender, octets = client.control(), client.sender(load.target), message()

    def work() -> None:
        declared = client.declare(control)
        for _ in range(load.count // PER_TRANSACTION):
            txn_id = client.declared(declared)
            state = posting(txn_id)
            for _ in range(PER_TRANSACTION):
                client.until(lambda: client.credit(sender) > 0)
                client.post(sender, octets, state)
            discharged = client.discharge(control, txn_id)
            declared = client.declare(control)
            client.accepted(discharged)
        client.declared(declared)

    return work


def retire(client: Client, load: Load) -> Callable[[], None]:
    """Takes messages that are prefetched, and retires 100 in a local transaction."""
    control, receiver = client.control(), client.receiver(load.source, 0)

    def work() -> None:
        client.flow(receiver, min(PREFETCH, load.count))
        flown = min(PREFETCH, load.count)
        declared = client.declare(control)
        for _ in range(load.count // PER_TRANSACTION):
            txn_id = client.declared(declared)
            client.until(lambda: len(client.messages) >= PER_TRANSACTION)
            state = accepting(txn_id)
            for delivery, _ in client.messages[:PER_TRANSACTION]:
                client.retire(delivery, state)
            del client.messages[:PER_TRANSACTION]
            more = min(PER_TRANSACTION, load.count - flown)
            flown += more
            client.flow(receiver, more)
            discharged = client.discharge(control, txn_id)
            declared = client.declare(control)
            client.accepted(discharged)
        client.declared(declared)

    return work


def branches(client: Client, load: Load) -> Callable[[], None]:
    """Complete branches, one message in and one out, as a resource manager's client works that names the
    txn-id ahead: start, work, end and prepare leave in one write, and commit follows the vote."""
    prepare_one, channel = _preparing(client, load), client.commands()

    def work() -> None:
        for number in range(load.count):
            xid = prepare_one(number)
            client.command(channel, Commit(xid))

    return work


def prepared(client: Client, load: Load) -> Callable[[], None]:
    """Branches that stay prepared."""
    prepare_one = _preparing(client, load)

    def work() -> None:
        for number in range(load.count):
            prepare_one(number)

    return work


def _preparing(client: Client, load: Load) -> Callable[[int], Xid]:
    control, receiver, sender = client.control(), client.receiver(load.source, 10), client.sender(load.target)
    octets = message()

    def prepare_one(number: int) -> Xid:
        xid = Xid(1, f"bench-{load.name}-{number}".encode(), b"broker")
        txn_id = b"b%d" % number
        client.until(lambda: client.messages)
        delivery, _ = client.messages.pop(0)
        client.start(control, xid, txn_id)
        client.retire(delivery, accepting(txn_id))
        client.post(sender, octets, posting(txn_id))
        client.flow(receiver, 1)
        client.voted(client.end_and_prepare(control, txn_id))
        return xid

    return prepare_one


def step_by_step(client: Client, load: Load) -> Callable[[], None]:
    """Complete branches with an exchange for every verb: start, end, prepare, commit."""
    control, receiver, sender = client.control(), client.receiver(load.source, 10), client.sender(load.target)
    channel, octets = client.commands(), message()

    def work() -> None:
        for number in range(load.count):
            xid = Xid(1, f"bench-{load.name}-{number}".encode(), b"broker")
            txn_id = client.declared(client.start(control, xid))
            client.until(lambda: client.messages)
            delivery, _ = client.messages.pop(0)
            client.retire(delivery, accepting(txn_id))
            client.post(sender, octets, posting(txn_id))
            client.flow(receiver, 1)
            client.accepted(client.discharge(control, txn_id))
            client.command(channel, Prepare(xid))
            client.command(channel, Commit(xid))

    return work


KINDS: Final = {function.__name__: function for function in (post, retire, branches, prepared, step_by_step)}


def run(kind: str, loads: list[Load]) -> float:
    """All loads at once, each on its own connection; the seconds from the common start to the last end."""
    context = multiprocessing.get_context("spawn")
    shares = [loads[number::PROCESSES] for number in range(min(PROCESSES, len(loads)))]
    barrier = context.Barrier(len(loads) + 1)
    results: Any = context.SimpleQueue()
    processes = [
        context.Process(target=_process, args=(kind, share, barrier, results), daemon=True) for share in shares
    ]
    for process in processes:
        process.start()
    barrier.wait(START_TIMEOUT_S)
    started = time.perf_counter()
    failures = [results.get() for _ in loads]
    seconds = time.perf_counter() - started
    for process in processes:
        process.join()
    for failure in failures:
        if failure:
            raise RuntimeError(failure)
    return seconds


def _process(kind: str, loads: list[Load], barrier: Barrier, results: Any) -> None:
    threads = [threading.Thread(target=_channel, args=(kind, load, barrier, results)) for load in loads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _channel(kind: str, load: Load, barrier: Barrier, results: Any) -> None:
    failure = f"{load}: ended unexpectedly"
    try:
        work = KINDS[kind](Client(load.host, load.port), load)
        barrier.wait(START_TIMEOUT_S)
        work()
        failure = ""
    except (OSError, RuntimeError) as error:
        failure = f"{load}: {error!r}"
        barrier.abort()
    finally:
        results.put(failure)
