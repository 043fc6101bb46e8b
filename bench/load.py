"""These processes load a broker for the broker's benchmark: they connect, wait for each other, and work."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dtx.protocol.commands import Commit, Prepare
from xa import Xid
from xabridge.testing.amqp_client import Client, accepting, drive, posting

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

    from xabridge.testing.amqp_client import Waits

PAYLOAD: Final = 1024
PER_TRANSACTION: Final = 100
PREFETCH: Final = 400
PROCESSES: Final = 2
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


def post(client: Client, load: Load) -> Waits:
    """Posts messages, 100 in a local transaction, settled; the next transaction is declared with the
    discharge of the last one."""
    control, sender = (yield from client.control()), (yield from client.sender(load.target))
    octets = message()

    def work() -> Waits:
        declared = client.declare(control)
        for _ in range(load.count // PER_TRANSACTION):
            txn_id = yield from client.declared(declared)
            state = posting(txn_id)
            for _ in range(PER_TRANSACTION):
                if not client.may_send(sender):
                    yield lambda: client.may_send(sender)
                client.post(sender, octets, state)
            discharged = client.discharge(control, txn_id)
            declared = client.declare(control)
            yield from client.accepted(discharged)
        yield from client.declared(declared)

    return work()


def retire(client: Client, load: Load) -> Waits:
    """Takes messages that are prefetched, and retires 100 in a local transaction."""
    control, receiver = (yield from client.control()), (yield from client.receiver(load.source, 0))

    def work() -> Waits:
        flown = min(PREFETCH, load.count)
        client.flow(receiver, flown)
        declared = client.declare(control)

        for _ in range(load.count // PER_TRANSACTION):
            txn_id = yield from client.declared(declared)
            yield lambda: len(client.messages) >= PER_TRANSACTION
            state = accepting(txn_id)
            for _ in range(PER_TRANSACTION):
                client.retire(client.messages.popleft(), state)
            more = min(PER_TRANSACTION, load.count - flown)
            flown += more
            client.flow(receiver, more)
            discharged = client.discharge(control, txn_id)
            declared = client.declare(control)
            yield from client.accepted(discharged)
        yield from client.declared(declared)

    return work()


def branches(client: Client, load: Load) -> Waits:
    """Complete branches, one message in and one out, as a resource manager's client works that names the
    txn-id ahead: start, work, end and prepare leave in one write, and commit follows the vote."""
    prepare_one = yield from _preparing(client, load)
    channel = yield from client.commands()

    def work() -> Waits:
        for number in range(load.count):
            xid = yield from prepare_one(number)
            yield from client.command(channel, Commit(xid))

    return work()


def prepared(client: Client, load: Load) -> Waits:
    """Branches that stay prepared."""
    prepare_one = yield from _preparing(client, load)

    def work() -> Waits:
        for number in range(load.count):
            yield from prepare_one(number)

    return work()


def _preparing(client: Client, load: Load) -> Waits:
    control = yield from client.control()
    receiver = yield from client.receiver(load.source, 10)
    sender = yield from client.sender(load.target)
    octets = message()

    def prepare_one(number: int) -> Waits:
        xid = Xid(1, f"bench-{load.name}-{number}".encode(), b"broker")
        txn_id = b"b%d" % number
        yield lambda: client.messages
        client.start(control, xid, txn_id)
        client.retire(client.messages.popleft(), accepting(txn_id))
        client.post(sender, octets, posting(txn_id))
        client.flow(receiver, 1)
        yield from client.voted(client.end_and_prepare(control, txn_id))
        return xid

    return prepare_one


def step_by_step(client: Client, load: Load) -> Waits:
    """Complete branches with an exchange for every verb: start, end, prepare, commit."""
    control = yield from client.control()
    receiver = yield from client.receiver(load.source, 10)
    sender = yield from client.sender(load.target)
    channel = yield from client.commands()
    octets = message()

    def work() -> Waits:
        for number in range(load.count):
            xid = Xid(1, f"bench-{load.name}-{number}".encode(), b"broker")
            txn_id = yield from client.declared(client.start(control, xid))
            yield lambda: client.messages
            client.retire(client.messages.popleft(), accepting(txn_id))
            client.post(sender, octets, posting(txn_id))
            client.flow(receiver, 1)
            yield from client.accepted(client.discharge(control, txn_id))
            yield from client.command(channel, Prepare(xid))
            yield from client.command(channel, Commit(xid))

    return work()


KINDS: Final = {function.__name__: function for function in (post, retire, branches, prepared, step_by_step)}
"""By name: the links are attached, and the work itself is what comes of that."""


def run(kind: str, loads: list[Load]) -> float:
    """All loads at once, each on its own connection; the seconds from the common start to the last end."""
    context = multiprocessing.get_context("spawn")
    shares = [loads[number::PROCESSES] for number in range(min(PROCESSES, len(loads)))]
    barrier = context.Barrier(len(shares) + 1)
    results: Any = context.SimpleQueue()
    processes = [
        context.Process(target=_process, args=(kind, share, barrier, results), daemon=True) for share in shares
    ]
    for process in processes:
        process.start()
    barrier.wait(START_TIMEOUT_S)
    started = time.perf_counter()
    failures = [results.get() for _ in shares]
    seconds = time.perf_counter() - started

    for process in processes:
        process.join()
    for failure in failures:
        if failure:
            raise RuntimeError(failure)
    return seconds


def _process(kind: str, loads: list[Load], barrier: Barrier, results: Any) -> None:
    failure = f"{kind}: ended unexpectedly"
    clients: list[Client] = []
    try:
        clients += [Client(load.host, load.port) for load in loads]
        work = drive((client, KINDS[kind](client, load)) for client, load in zip(clients, loads, strict=True))
        barrier.wait(START_TIMEOUT_S)
        drive(zip(clients, work, strict=True))
        failure = ""
    except (OSError, RuntimeError) as error:
        failure = f"{kind}: {error!r}"
        barrier.abort()
    finally:
        results.put(failure)
        for client in clients:
            client.close()
