"""Measures what one peer costs the others: an honest client beside a greedy user, and beside a storm of wrong
passwords.

The honest client is one connection that posts a message of 1 KiB, waits until it is accepted, and posts the next one.
`alone` is its rate before, and every share is over that.

fairness.connections_N        the greedy user has N connections, each of which pipelines posts of 1 KiB as far as its
                              credit allows: the honest one's `share`, its `slowest_s` answer, and what the greedy user
                              posts per second, `greedy_per_s`
storms.share                  of the honest client, which is connected, beside 40 peers that try wrong passwords with
                              PLAIN, leave after a quarter of a second, and come again
storms.slowest_s              its slowest answer
storms.attempts_per_s         how many are tried
storms.login_s                the slowest login of a user with the right password, from another address
storms.after_s                how long the broker computes when the storm is over
"""

from __future__ import annotations

import multiprocessing
import socket
import tempfile
import time
from collections import deque
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.load import message
from dtx.broker.access.credentials import set_password
from xabridge.testing.amqp_client import Client, authenticate, drive, plain, run
from xabridge.testing.broker import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.synchronize import Event

    from xabridge.testing.amqp_client import Waits

SUMMARY: Final = "an honest client of the embedded broker, beside a greedy one and beside wrong passwords"
FOLDER: Final = Path(".bench")
CONNECTIONS: Final = (1, 20, 200)
PEERS: Final = 40
PIPELINED: Final = 400
COUNTED: Final = 50
LEAVE_S: Final = 0.25
PASSWORD: Final = "right"  # noqa: S105 — of a broker that lives for this benchmark
LOGINS: Final = tuple(f"user-{number}" for number in range(5))
AFTERMATH_S: Final = 30.0
OTHER_ADDRESS: Final = "127.0.0.2"
"""Linux has it for itself; elsewhere the logins come from the address of the storm."""


def measure(*, quick: bool) -> dict[str, Any]:
    """A `bench.command.Benchmark`."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        broker = broker_with_users(Path(folder))
        broker.start()
        try:
            return measure_fairness(broker, quick=quick)
        finally:
            broker.kill()


def broker_with_users(folder: Path) -> BrokerProcess:
    """A broker in which each of these users may do everything."""
    for user in ("honest", "greedy", *LOGINS):
        set_password(folder / "users", user, PASSWORD)
    return BrokerProcess(folder, "--users", str(folder / "users"), "--plain-without-tls", "--listen", "127.0.0.1:0")


def measure_fairness(broker: BrokerProcess, *, quick: bool) -> dict[str, Any]:
    """The figures of this page, with a broker that has the users."""
    seconds = 3.0 if quick else 10.0
    honest = Client(broker.host, broker.port, login=("honest", PASSWORD))
    sender = run(honest, honest.sender("honest"))
    run(honest, _posts(honest, sender, 0.5))

    def answers() -> list[float]:
        times: list[float] = run(honest, _posts(honest, sender, seconds))
        return times

    figures: dict[str, Any] = {"fairness": {}, "storms": {}}
    for connections in CONNECTIONS:
        alone = len(answers())
        with beside(greedy, broker, connections) as posted:
            times = answers()
        figures["fairness"][f"connections_{connections}"] = {
            **_of_the_honest(times, alone, seconds),
            "greedy_per_s": round(posted() / seconds),
        }
    alone = len(answers())
    with beside(storm, broker, PEERS) as tried:
        times, logins = answers(), [login_s(broker, user) for user in LOGINS]
    attempts = tried()
    figures["storms"] = {
        **_of_the_honest(times, alone, seconds),
        "attempts_per_s": round(attempts / (seconds + sum(logins))),
        "login_s": round(max(logins), 3),
        "after_s": round(aftermath_s(broker), 2),
    }
    honest.close()
    return figures


def _of_the_honest(times: list[float], alone: int, seconds: float) -> dict[str, float]:
    return {
        "alone_per_s": round(alone / seconds),
        "per_s": round(len(times) / seconds),
        "share": round(len(times) / alone, 2),
        "slowest_s": round(max(times), 3),
    }


def _posts(client: Client, sender: Any, seconds: float) -> Waits:
    """Posts one by one for so long; how long each answer took."""
    octets, times = message(), []
    now = time.perf_counter()
    until = now + seconds
    while now < until:
        began = now
        yield lambda: client.may_send(sender)
        yield from client.accepted(client.ask(sender, octets))
        now = time.perf_counter()
        times.append(now - began)
    return times


def login_s(broker: BrokerProcess, user: str) -> float:
    """How long the first login of a user takes at this broker."""
    began = time.perf_counter()
    with socket.socket() as peer:
        with suppress(OSError):
            peer.bind((OTHER_ADDRESS, 0))
        peer.connect((broker.host, broker.port))
        authenticate(peer, user, PASSWORD)
    return time.perf_counter() - began


def aftermath_s(broker: BrokerProcess) -> float:
    """How long it takes until the broker has nothing to do any more."""
    began = time.perf_counter()
    spent, quiet = broker.cpu_s(), 0
    while quiet < 3 and time.perf_counter() - began < AFTERMATH_S:
        time.sleep(0.1)
        before, spent = spent, broker.cpu_s()
        quiet = quiet + 1 if spent - before < 0.03 else 0
    return time.perf_counter() - began - 0.1 * quiet


# -- the other process
@contextmanager
def beside(work: Callable[..., None], broker: BrokerProcess, connections: int) -> Iterator[Callable[[], int]]:
    """Runs `work` in another process meanwhile; what is given says afterwards how much it did."""
    context = multiprocessing.get_context("spawn")
    begun, stop, done = context.Event(), context.Event(), context.Value("Q", 0)
    address = (broker.host, broker.port)
    process = context.Process(target=work, args=(address, connections, begun, stop, done), daemon=True)
    process.start()
    if not begun.wait(60.0):
        raise RuntimeError("the other process did not begin")
    before = done.value
    try:
        yield lambda: int(done.value - before)
    finally:
        stop.set()
        process.join(10.0)
        process.kill()


def greedy(address: tuple[str, int], connections: int, begun: Event, stop: Event, done: Any) -> None:
    """Connections of one user, each of which pipelines posts."""
    clients = [Client(*address, login=("greedy", PASSWORD)) for _ in range(connections)]
    octets = message()

    def pipeline(client: Client) -> Waits:
        sender = yield from client.sender("greedy")
        asked: deque[int] = deque()
        while not stop.is_set():
            yield lambda: client.may_send(sender)
            while client.may_send(sender) and len(asked) < PIPELINED:
                asked.append(client.ask(sender, octets))
            begun.set()
            counted = min(COUNTED, len(asked))
            for _ in range(counted):
                yield from client.accepted(asked.popleft())
            with done.get_lock():
                done.value += counted

    drive((client, pipeline(client)) for client in clients)


def storm(address: tuple[str, int], connections: int, begun: Event, stop: Event, done: Any) -> None:
    """Peers that connect, say a wrong password, leave soon, and begin again."""
    tried = 0
    leaves: dict[socket.socket, float] = {}
    while not stop.wait(0.02):
        while len(leaves) < connections:
            peer = socket.create_connection(address)
            peer.sendall(plain("honest" if tried % 2 else f"stranger-{tried}", "wrong"))
            leaves[peer] = time.monotonic() + LEAVE_S
            tried += 1

        begun.set()
        now = time.monotonic()
        for peer in [peer for peer, until in leaves.items() if until < now]:
            peer.close()
            del leaves[peer]
        with done.get_lock():
            done.value = tried
    for peer in leaves:
        peer.close()
