"""These tests run `xabridge run` in processes of its own: several of them, killed, stopped, reloaded, and without their
supervisor.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rm_amqp import Message
from tests.waiting import until
from tm import Configuration, ConfigurationError, ResourceConfig, TransactionManager
from tm.log import FileLog
from xabridge.app.supervisor import configuration_of, configuration_to_recover, left_behind
from xabridge.cli.run import advice_for
from xabridge.testing import TestBroker
from xabridge.testing.ports import free_port

pytestmark = pytest.mark.slow
PATIENCE_S = 60.0
SHOP = """
import os, time
from tm.transaction import live_of
from xabridge import App, Message, Tx

app = App()

@app.consumer("orders", idle_s=0.1, retry_first_s=0.05, max_deliveries=20)
def handle(number: int, tx: Tx) -> None:
    tx["other"].send("done", Message({"number": number, "process": os.getpid(), "node": live_of(tx).manager.node}))
    tx.send("counted", number)
    if number == 13 and not os.path.exists("hangs"):
        with open("hangs.new", "w") as file:
            file.write(str(os.getpid()))
        os.rename("hangs.new", "hangs")
        time.sleep(3600)
"""


class Shop:
    """A folder with an application, brokers, and the command that runs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broker, self.other = TestBroker(), TestBroker()
        self.broker.start()
        self.other.start()
        self.write(SHOP)
        self.log = folder / "run.log"
        self._process: subprocess.Popen[bytes] | None = None

    def write(self, program: str, settings: str = "", node: str = "run") -> None:
        (self.folder / "a_shop.py").write_text(program)
        (self.folder / "xabridge.toml").write_text(
            f'{settings}node = "{node}"\nlog = "file://{self.folder}/log"\nrecovery_interval_s = 0.5\n'
            f'[resources]\nbroker = "{self.broker.url}"\nother = "{self.other.url}"\n'
        )

    def run(self, *flags: str) -> None:
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "xabridge.cli", "run", "a_shop:app", *flags]
            self._process = subprocess.Popen(command, cwd=self.folder, stderr=log, stdin=subprocess.DEVNULL)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def stop(self) -> int:
        """SIGTERM, and its exit code."""
        self.process.terminate()
        return self.process.wait(PATIENCE_S)

    def put(self, *numbers: int) -> None:
        with self.elsewhere() as tm, tm.begin() as tx:
            for number in numbers:
                tx["broker"].send("orders", Message(number))

    def elsewhere(self) -> TransactionManager[Any]:
        resources = {"broker": self.broker.url, "other": self.other.url}
        return TransactionManager("test", f"file://{self.folder}/test-log", resources, background=False)

    def done(self) -> list[dict[str, Any]]:
        with self.elsewhere() as tm, tm.begin() as tx:
            return [message.body for message in tx["other"].browse("done")]

    def wait_for(self, what: Any) -> None:
        until(lambda: what() or self.process.poll() is not None, self.log.read_text)
        assert self.process.poll() is None, self.log.read_text()

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(PATIENCE_S)
        self.broker.stop()
        self.other.stop()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    shop.close()


def test_two_processes_work_one_is_killed_in_the_midst_and_nothing_is_lost_or_doubled(shop: Shop) -> None:
    shop.run("--workers", "2")
    shop.put(*range(40))  # 13 hangs, and those that share its transaction wait
    shop.wait_for((shop.folder / "hangs").exists)
    os.kill(int((shop.folder / "hangs").read_text()), signal.SIGKILL)
    shop.wait_for(lambda: len(shop.done()) == 40)
    assert "has ended with SIGKILL; it is started again" in shop.log.read_text()
    shop.wait_for(lambda: len(children_of(shop.process.pid)) == 2)
    numbers = [*range(40)]

    def all_done() -> bool:
        return len(shop.done()) == len(numbers)

    while len(numbers) < 80 or {one["node"] for one in shop.done()} != {"run", "run-2"}:  # one may be quicker
        more = range(100 + len(numbers), 140 + len(numbers))
        shop.put(*more)
        numbers += more
        shop.wait_for(all_done)
    assert shop.stop() == 0
    assert sorted(one["number"] for one in shop.done()) == numbers
    assert shop.broker.waiting("counted") == len(numbers)
    assert shop.broker.waiting("orders") == 0

    shop.run()  # one process from here on
    shop.put(99)
    shop.wait_for(lambda: len(shop.done()) == len(numbers) + 1)
    assert shop.stop() == 0
    assert "process 2 has a log, and is not among 1: recovering" in shop.log.read_text()


def test_each_process_serves_its_pages_and_a_second_ctrl_c_does_not_wait(shop: Shop) -> None:
    http, following = free_port(), free_port()
    while following != http + 1:
        http, following = following, free_port()
    shop.write(SHOP, f'http = "127.0.0.1:{http}"\n')
    shop.run("--workers", "2")
    shop.put(13)  # it hangs
    shop.wait_for((shop.folder / "hangs").exists)
    shop.wait_for(lambda: all(is_ready(port) for port in (http, http + 1)))
    children = children_of(shop.process.pid)
    shop.process.send_signal(signal.SIGINT)
    until(lambda: sum(map(is_alive, children)) == 1, shop.log.read_text)  # the one whose handler hangs
    assert shop.process.poll() is None
    shop.process.send_signal(signal.SIGINT)
    assert shop.process.wait(PATIENCE_S) == 0
    assert not any(map(is_alive, children))
    logged = shop.log.read_text()
    assert re.search(r"WARNING .*process \d is killed, because of the second signal", logged)
    assert "in time" not in logged

    shop.run()  # it finishes what process 2 has left, and serves its pages at the same port
    shop.wait_for(lambda: is_ready(http))
    shop.wait_for(lambda: len(shop.done()) == 1)
    assert shop.stop() == 0
    assert [one["number"] for one in shop.done()] == [13]


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_a_process_ends_with_its_supervisor(shop: Shop) -> None:
    shop.run("--workers", "2")
    shop.put(1, 2)
    shop.wait_for(lambda: len(shop.done()) == 2)
    children = children_of(shop.process.pid)
    assert len(children) == 2
    shop.process.kill()
    shop.process.wait(PATIENCE_S)
    until(lambda: not any(map(is_alive, children)))


def test_a_source_file_that_changes_is_loaded_again(shop: Shop) -> None:
    shop.run("--reload", "--log-level", "DEBUG")
    shop.put(1)
    shop.wait_for(lambda: len(shop.done()) == 1)
    shop.write("import nothing_of_that_name")  # a mistake: it waits to be mended
    shop.wait_for(lambda: "can't be loaded" in shop.log.read_text())
    shop.write(SHOP.replace('"number": number', '"number": -number'))
    shop.put(2)
    shop.wait_for(lambda: any(one["number"] == -2 for one in shop.done()))
    assert shop.stop() == 0


def test_an_application_that_can_not_run(shop: Shop) -> None:
    cases: list[tuple[str, list[str], str]] = [
        ("import nothing_of_that_name", [], "a_shop:app can't be loaded"),
        ("app = 7", ["--workers", "2"], "app is a int, and no App"),
        ("from xabridge import App; app = App('nowhere.toml')", [], "nowhere.toml: no such file"),
    ]
    for program, flags, told in cases:
        shop.write(program)
        shop.run(*flags)
        assert shop.process.wait(PATIENCE_S) == 2
        assert told in shop.log.read_text()


def test_a_log_that_can_not_be_used_ends_all_of_it_with_one_line(shop: Shop) -> None:
    """Nothing is restarted, and no process says that it works."""
    for made, node, settings, says in (
        ("", "run", "", "mkdir -p "),
        ("held", "run", "", rf"in use by process {os.getpid()} on .* or let a database decide"),
        ("closed", "renamed", 'log_format = "json"\n', "is the decision log of node 'run', not of 'renamed'"),
    ):
        folder = shop.folder / "not" / "there" if not made else shop.folder
        held = FileLog(folder / "log", "run") if made else None
        if held is not None and made == "closed":
            held.close()
        shop.write(SHOP, settings, node)
        text = (shop.folder / "xabridge.toml").read_text()
        (shop.folder / "xabridge.toml").write_text(text.replace(f"file://{shop.folder}/", f"file://{folder}/"))
        shop.log.unlink(missing_ok=True)

        shop.run("--workers", "2" if settings else "1")
        assert shop.process.wait(PATIENCE_S) == 2
        logged = shop.log.read_text()
        assert re.search(says, logged), logged
        assert f"works as node {node}," not in logged
        assert "Traceback" not in logged
        assert "started again" not in logged
        if settings:
            lines = [json.loads(one) for one in logged.splitlines()]
            assert [one["process"] for one in lines if "not of 'renamed'" in one["msg"]] == [1]
        if held is not None:
            held.close()


def test_what_a_message_has_forges_no_line_of_the_log(shop: Shop) -> None:
    forged = "2026-01-01 00:00:00,000 INFO xabridge.run: all is well"
    program = SHOP.replace("number: int, tx", "number: str, tx").replace('"number": number', '"number": int(number)')
    for log_format in ("text", "json"):
        shop.log.unlink(missing_ok=True)
        shop.write(program, f'log_format = "{log_format}"\n')
        shop.run()
        with shop.elsewhere() as tm, tm.begin() as tx:
            tx["broker"].send("orders", Message(f"\n{forged}"))
        shop.wait_for(lambda: "invalid literal for int" in shop.log.read_text())
        assert shop.stop() == 0
        logged = shop.log.read_text().splitlines()
        assert not [one for one in logged if one.startswith(forged)]
        if log_format == "json":
            assert [one for one in map(json.loads, logged) if forged in one.get("error", "")]
            assert "works as node run, for orders" in "".join(logged)


def children_of(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:  # noqa: PTH123
        return [int(one) for one in file.read().split()]


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return not re.search(r"\) [ZX] ", file.read())
    except OSError:
        return False


def test_each_process_has_a_node_and_a_log_of_its_own(tmp_path: Path) -> None:
    resources = {"broker": "amqp://broker"}
    configuration = Configuration("orders", f"file://{tmp_path}/log", resources)
    assert configuration_of(configuration, 1) == configuration
    own = configuration_of(configuration, 3)
    assert (own.node, own.log) == ("orders-3", f"file://{tmp_path}/log-3")
    in_a_database = Configuration("orders", "postgresql://log", resources)
    assert configuration_of(in_a_database, 2) == Configuration("orders-2", "postgresql://log", resources)
    deciding = Configuration("orders", None, {"shop": ResourceConfig("sqlite:///x", "decider")})
    assert configuration_of(deciding, 2) == deciding
    with_a_log = Configuration("orders", f"file://{tmp_path}/log", deciding.resources)  # which one process holds
    assert configuration_of(with_a_log, 2).log == f"file://{tmp_path}/log-2"

    for http, third in (("127.0.0.1:9464", "127.0.0.1:9466"), ("[::1]:9464", "[::1]:9466"), ("127.0.0.1:0",) * 2):
        for shared in (configuration, deciding):
            served = replace(shared, http=http)
            assert (configuration_of(served, 1).http, configuration_of(served, 3).http) == (http, third)
            assert configuration_to_recover(served, 3).http is None
    with pytest.raises(ConfigurationError, match="process 3 would need port 65536: begin lower"):
        configuration_of(replace(configuration, http="127.0.0.1:65534"), 3)

    for name in ("log", "log-2", "log-3", "log-10", "log-old", "blog-4"):
        (tmp_path / name).mkdir()
    assert list(left_behind(configuration, 2)) == [10, 3]
    assert list(left_behind(configuration, 1)) == [10, 2, 3]
    assert list(left_behind(in_a_database, 1)) == list(left_behind(deciding, 1)) == []


def test_the_first_lines_say_when_more_processes_would_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 1, 5})
    assert advice_for(3) == advice_for(4) == ""
    assert advice_for(1).startswith("1 process keeps 1 of 3 processors busy at most: ")
    assert "--workers 3 handles more" in advice_for(1)
    assert advice_for(2).startswith("2 processes keep 2 of 3 processors busy at most: ")
