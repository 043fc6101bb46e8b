"""These tests start several processes from one configuration file, as a server with workers does. With a resource that
decides the processes share the node and finish what a dead one left; with a log in files the second process is refused.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest

from tests.rm_amqp.embedded import EmbeddedBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WORKER = """
import os, signal, sys
from sqlalchemy import text
from rm_amqp import AmqpResource, Message
from tm import TransactionManager

commit, dying = AmqpResource.commit, []

def deadly(*arguments):
    if dying:  # behind the decision, in front of the broker's commit
        os.kill(os.getpid(), signal.SIGKILL)
    return commit(*arguments)

AmqpResource.commit = deadly
tm = TransactionManager.from_config("xabridge.toml")
print("ready", flush=True)
for line in sys.stdin:
    words = line.split()
    if words[0] == "die":
        dying.append(True)
    if words[0] in {"place", "die"}:
        with tm.begin() as tx:
            tx["shop"].execute(text("INSERT INTO orders VALUES (:number)"), {"number": int(words[1])})
            tx["broker"].send("invoices", Message(int(words[1])))
    if words[0] == "recover":
        report = tm.recover()
        print(*sorted(finding.action.value for finding in report.findings), flush=True)
    else:
        print("done", flush=True)
tm.close()
"""


class Worker:
    """One process, in a folder with the file."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-c", WORKER]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=folder, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, what: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self.hear()

    def end(self) -> str:
        """Its end, and what it wrote on stderr."""
        return self.process.communicate(timeout=60)[1] if self.process.stdin and not self.process.stdin.closed else ""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    broker = EmbeddedBroker(tmp_path)
    yield broker
    broker.stop()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Worker]]:
    """Starts a worker in the test's folder."""
    with ExitStack() as stack:

        def made() -> Worker:
            worker = Worker(tmp_path)
            stack.callback(worker.end)
            stack.callback(worker.process.kill)
            return worker

        yield made


def configure(folder: Path, broker: EmbeddedBroker, *, decider: bool) -> None:
    mode = "decider" if decider else "two-phase"
    url = "sqlite:///shop.db" if decider else "postgresql://127.0.0.1:1/shop"
    log = "" if decider else f'log = "file://{folder}/log"'
    (folder / "xabridge.toml").write_text(
        f"""
        node = "orders"
        {log}
        recovery_interval_s = 600
        [resources]
        broker = "amqp://{broker.address}"
        shop = {{ url = "{url}", mode = "{mode}" }}
        """
    )


def look(broker: EmbeddedBroker, queue: str) -> int:
    return broker.inside(lambda broker: broker.container.resource.queues[queue].depth)


@pytest.mark.slow
def test_with_one_that_decides_they_share_the_node_and_finish_what_a_dead_one_left(
    tmp_path: Path, broker: EmbeddedBroker, start: Callable[[], Worker]
) -> None:
    import sqlite3  # noqa: PLC0415 — as a client that is not ours

    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        shop.execute("CREATE TABLE orders (number integer)")
    configure(tmp_path, broker, decider=True)
    workers = [start() for _ in range(3)]
    assert [worker.hear() for worker in workers] == ["ready"] * 3
    assert [worker.ask(f"place {number}") for number, worker in enumerate(workers)] == ["done"] * 3
    assert workers[0].ask("die 3") == ""
    assert workers[0].process.wait(60) == -9
    assert look(broker, "invoices") == 3
    assert broker.left(), "its branch is prepared"
    assert workers[1].ask("recover") == "committed"
    assert workers[2].ask("recover") == ""
    assert look(broker, "invoices") == 4
    assert broker.left() == []
    assert [worker.ask(f"place {number}") for number, worker in enumerate(workers[1:], 4)] == ["done"] * 2
    for worker in workers[1:]:
        assert worker.end() == ""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        assert shop.execute("SELECT count(*), count(DISTINCT number) FROM orders").fetchone() == (6, 6)
        assert shop.execute("SELECT count(*) FROM xabridge_decision").fetchone() == (0,)
    assert look(broker, "invoices") == 6


@pytest.mark.slow
def test_with_a_log_in_files_the_second_one_is_refused_and_told_what_to_do(
    tmp_path: Path, broker: EmbeddedBroker, start: Callable[[], Worker]
) -> None:
    configure(tmp_path, broker, decider=False)
    first = start()
    assert first.hear() == "ready"
    second = start()
    assert second.hear() == ""
    told = second.end()
    assert second.process.returncode == 1
    assert "is in use by" in told
    assert "give this one a log (and a node id) of its own" in told
