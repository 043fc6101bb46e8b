"""These tests check that there are only a few copies of a large message at a time, and that the processor time grows
with its length, not with the square of it.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.rm_amqp.embedded import EmbeddedBroker

OCTETS = 24_000_000
CLIENT = """
import os, sys, time
from pathlib import Path
from rm_amqp import Message
from tm import TransactionManager

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) << 10

address, queue, kind, size = *sys.argv[1:4], int(sys.argv[4])
body = "x" * size if kind == "text" else os.urandom(size)
with TransactionManager("large", f"file://{sys.argv[5]}", {"broker": f"amqp://{address}"}, timeout_s=100) as tm:
    with tm.begin() as tx:  # what a first use loads is not counted
        tx["broker"].send(queue + "-first", Message("x"))
        tx["broker"].browse(queue)
    for what in "send", "receive":
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        held, busy = peak(), time.process_time()
        with tm.begin() as tx:
            if what == "send":
                tx["broker"].send(queue, Message(body, inferred=kind == "data"))
                body = None
            else:
                message = tx["broker"].receive(queue, timeout_s=60)
                assert len(message.body) == size
        print((peak() - held) / size, time.process_time() - busy)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the peak of a process's memory")
@pytest.mark.parametrize("kind", ["binary", "text", "data"])
def test_a_large_message_is_held_three_times_at_most(broker: EmbeddedBroker, tmp_path: str, kind: str) -> None:
    arguments = [broker.address, f"large-{kind}", kind, str(OCTETS), f"{tmp_path}/log"]
    command = [sys.executable, "-c", CLIENT, *arguments]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100).stdout
    for what, line in zip(("send", "receive"), told.splitlines(), strict=True):
        times, busy_s = map(float, line.split())
        assert times < 3, f"{what}: {times:.1f} times its size, {busy_s:.2f} s"
