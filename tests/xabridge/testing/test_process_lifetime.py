"""These tests end a process that has started servers, in every way that a run of tests is ended."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PATIENCE_S = 60.0
STARTS = """
import subprocess, sys, time
from pathlib import Path
from xabridge.testing.broker import BrokerProcess
from xabridge.testing.process_lifetime import marked_environment

broker = BrokerProcess(Path(sys.argv[1]))
broker.start()
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
child = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {deaf!r}], stdout=2).pid)"
words = [sys.executable, "-c", child]
orphan = subprocess.run(words, env=marked_environment(), stdout=subprocess.PIPE, text=True).stdout.strip()
print(broker.pid, orphan, flush=True)
"""
WAYS = {
    "it ends": "",
    "it raises": "raise RuntimeError",
    "SIGKILL": "time.sleep(600)",
    "SIGTERM": "time.sleep(600)",
    "SIGINT": "time.sleep(600)",
    "SIGHUP": "time.sleep(600)",
    "os._exit": "import os; os._exit(0)",
    "a fork goes on": "import os; os.fork() or time.sleep(5)",
}


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("way", WAYS)
def test_servers_end_with_the_process_that_started_them(way: str, tmp_path: Path) -> None:
    words = [sys.executable, "-c", STARTS + WAYS[way], str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        servers = [int(pid) for pid in process.stdout.readline().split()]
        assert len(servers) == 2
        if way.startswith("SIG"):
            process.send_signal(signal.Signals[way])
        process.wait(PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while any(map(runs, servers)) and time.monotonic() < deadline:
            time.sleep(0.02)
    assert not any(map(runs, servers))


def runs(pid: int) -> bool:
    """Whether it is there, and not only its exit code."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def test_what_is_started_goes_on_while_its_process_does(tmp_path: Path) -> None:
    words = [sys.executable, "-c", STARTS + "time.sleep(1.5); print(broker.running, flush=True)", str(tmp_path)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.splitlines()[1] == "True"
