"""In this test a manager over two brokers is killed behind a decision, under load, and its log is then overwritten by
an older copy, as a snapshot of the volume does. Nothing is split by recovery, and with the newest log nothing is left.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tm.recovery.test_older_log import Files
from tm import TransactionManager
from xabridge.cli import main
from xabridge.testing.broker import BrokerProcess

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CHILD = """
import os, signal, sys, threading
from rm_amqp import Message
from tm import TransactionManager
from tm.log import FileLog

decide = FileLog.decide
count = 0

def decided(log, decision):
    global count
    decide(log, decision)
    count += 1
    if count == 300:
        os.kill(os.getpid(), signal.SIGKILL)

FileLog.decide = decided
tm = TransactionManager.from_config(sys.argv[1])

def work(number):
    while True:
        with tm.begin() as tx:
            for name in ("broker", "warehouse"):
                tx[name].send("orders", Message(number))
        number += 2
        print(number, flush=True)

for number in (1, 2):
    threading.Thread(target=work, args=(number,)).start()
"""


def test_an_older_log_splits_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    brokers = {name: BrokerProcess(tmp_path / name) for name in ("broker", "warehouse")}
    for name, broker in brokers.items():
        (tmp_path / name).mkdir()
        broker.start()
    urls = {name: f"amqp://127.0.0.1:{broker.port}" for name, broker in brokers.items()}
    config = tmp_path / "xabridge.toml"
    resources = "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    config.write_text(f'node = "orders-1"\nlog = "file://{tmp_path}/log"\n[resources]\n{resources}')

    older, newest = Files(tmp_path / "log", "*"), Files(tmp_path / "log", "*")
    command = [sys.executable, "-c", CHILD, str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        assert child.stdout is not None
        for lines, _ in enumerate(child.stdout):
            if lines == 20:
                older.copy()
    assert child.returncode == -9
    newest.copy()

    def recovered() -> tuple[int, str]:
        capsys.readouterr()
        code = main(["recover", "run", "--config", str(config)])
        return code, " ".join(capsys.readouterr().out.split())

    def sent() -> list[list[int]]:
        with TransactionManager("reader", f"file://{tmp_path}/reader", urls, background=False) as tm, tm.begin() as tx:
            return [sorted(message.body for message in tx[name].browse("orders")) for name in urls]

    try:
        older.restore()
        for _ in range(2):
            code, said = recovered()
            assert code == 3, said
            assert "left in doubt on broker, warehouse" in said
            assert "began it later than this log knows of" in said
        before = sent()
        assert before[0] == before[1]

        newest.restore()
        code, said = recovered()
        assert code == 0, said
        assert "committed on broker, warehouse" in said
        after = sent()
        assert after[0] == after[1]
        assert len(after[0]) in (300, 301)
    finally:
        for broker in brokers.values():
            broker.stop()
