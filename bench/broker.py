"""Measures the embedded broker over loopback, on its durable SQLite store, with the clients in other processes.

posts_per_s, retires_per_s    transactional messages of 1 KiB in and out, 100 per local transaction, 2 clients
branches_per_s_1, _16         complete branches (start, one message in, one out, end, prepare, commit) at 1 and
                              16 channels; the client names the txn-id ahead, so start, work, end and prepare
                              are one exchange, and commit is another
steps_per_s_1                 the same with one exchange for every verb
*_cpu_us                      the broker's processor time for one of these, all of its threads
restart_s                     from the start of the process to the first page of recover, with 100,000 messages
                              and 10,000 prepared branches, after kill -9
client_cpu_us, round_trips    what a branch costs the resource manager client, and more: see bench/client.py
fairness, storms              what one peer costs the others: see bench/fairness.py
rss_mb_100k                   memory that 100,000 queued messages of 1 KiB take, beyond those of an empty broker
worst_*                       what an octet of the worst messages costs each decoder: see bench/worst_messages.py
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench import fairness
from bench.client import measure_client
from bench.load import Load, run
from bench.worst_messages import measure_worst
from dtx.protocol.commands import Recover
from xabridge.testing.amqp_client import Client, drive
from xabridge.testing.broker import BrokerProcess

if TYPE_CHECKING:
    from xabridge.testing.amqp_client import Waits

SUMMARY: Final = "the embedded broker: messages, branches, restart, memory"
FOLDER: Final = Path(".bench")


def measure(*, quick: bool) -> dict[str, Any]:
    scale = 20 if quick else 1
    messages, in_doubt = 100_000 // scale, 10_000 // scale
    FOLDER.mkdir(exist_ok=True)

    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        broker = BrokerProcess(Path(folder))
        broker.start()
        try:
            return {
                "messages": messages,
                "in_doubt": in_doubt,
                **_messages(broker, messages),
                **measure_client(broker, scale),
                **_branches(broker, messages, in_doubt, scale),
                **_restart(broker, in_doubt),
                **measure_worst(quick=quick),
                **fairness.measure(quick=quick),
            }
        finally:
            broker.kill()


def _loads(broker: BrokerProcess, channels: int, total: int, *, source: str = "", target: str = "") -> list[Load]:
    return [
        Load(broker.host, broker.port, (total + channel) // channels, source, target, f"{target}-{channel}")
        for channel in range(channels)
    ]


def _messages(broker: BrokerProcess, messages: int) -> dict[str, float]:
    empty = broker.rss_mb()
    posting = _measured(broker, "posts", "post", _loads(broker, 2, messages, target="posted"), messages)
    held = broker.rss_mb()
    retiring = _measured(broker, "retires", "retire", _loads(broker, 2, messages, source="posted"), messages)
    return {
        **posting,
        **retiring,
        "rss_mb_empty": round(empty, 1),
        "rss_mb_100k": round(held - empty, 1),
    }


def _measured(
    broker: BrokerProcess, name: str, kind: str, loads: list[Load], count: int, channels: str = ""
) -> dict[str, float]:
    """How many a second, and the broker's processor time for one."""
    before = broker.cpu_s()
    seconds = run(kind, loads)
    cpu_us = (broker.cpu_s() - before) / count * 1e6
    return {f"{name}_per_s{channels}": round(count / seconds), f"{name}_cpu_us{channels}": round(cpu_us, 1)}


def _branches(broker: BrokerProcess, messages: int, in_doubt: int, scale: int) -> dict[str, float]:
    cycles = (("branches", "branches", 1, 2000), ("branches", "branches", 16, 8000), ("steps", "step_by_step", 1, 1000))
    total = sum(count for *_, count in cycles) // scale
    run("post", _loads(broker, 2, (messages + total) // 200 * 200 + 200, target="orders"))
    figures: dict[str, float] = {}
    for name, kind, channels, most in cycles:
        count = most // scale
        loads = _loads(broker, channels, count, source="orders", target=f"{name}-{channels}")
        figures.update(_measured(broker, name, kind, loads, count, f"_{channels}"))
    run("prepared", _loads(broker, 16, in_doubt, source="orders", target="invoices"))
    return figures


def _restart(broker: BrokerProcess, in_doubt: int) -> dict[str, float]:
    broker.kill()
    started = time.perf_counter()
    broker.start()
    listening = time.perf_counter() - started
    client = Client(broker.host, broker.port)
    [(first_page, found)] = drive([(client, _in_doubt(client))])
    client.close()
    seconds = first_page - started
    if found != in_doubt:
        raise RuntimeError(f"{in_doubt} branches were prepared, and {found} were restored")
    return {"restart_s": round(seconds, 3), "listening_s": round(listening, 3)}


def _in_doubt(client: Client) -> Waits:
    """When the first page of recover was there, and how many branches are in all pages."""
    channel = yield from client.commands()
    page = yield from client.command(channel, Recover())
    first_page, found = time.perf_counter(), len(page.in_doubt)
    while page.more:
        page = yield from client.command(channel, Recover(after=page.in_doubt[-1]))
        found += len(page.in_doubt)
    return first_page, found
