"""These tests interrupt the application with Ctrl-C while it sends. The interrupted transaction, and the later ones on
the same connections, must be there in full or not at all, and their callers must have got the true outcome.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.rm_amqp.embedded import EmbeddedBroker
from tests.simulation.seeds import EVERY_POINT

ATTEMPTS = 600 if EVERY_POINT else 100
PARTS = 3
APPLICATION = """
import json, random, signal, sys, time
from rm_amqp import Message
from tm import RolledBack, TransactionManager

address, log, attempts, parts = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
dice = random.Random(7)
signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
told = {"committed": [], "rolled back": [], "interrupted": []}
tm = TransactionManager("interrupted", f"file://{log}", {"broker": f"amqp://{address}"}, timeout_s=100)
span = 1.0
for attempt in range(attempts):
    committing = False
    try:
        with tm.begin() as tx:
            session = tx["broker"]
            if attempt % 2:
                signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-5, span))
            began = time.monotonic()
            for part in range(parts):
                session.send("work", Message({"attempt": attempt, "part": part}))
            if not attempt % 2:
                span = min(span, time.monotonic() - began)
            signal.setitimer(signal.ITIMER_REAL, 0)
            committing = True
        told["committed"].append(attempt)
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if not committing:
            told["interrupted"].append(attempt)
    except RolledBack:
        told["rolled back"].append(attempt)
tm.close()
with TransactionManager("reader", f"file://{log}-2", {"broker": f"amqp://{address}"}) as tm, tm.begin() as tx:
    found = [message.body for message in tx["broker"].browse("work")]
print(json.dumps({**told, "found": [(body["attempt"], body["part"]) for body in found]}))
"""


@pytest.mark.slow
def test_what_was_rolled_back_is_not_there(broker: EmbeddedBroker, tmp_path: Path) -> None:
    command = [sys.executable, "-c", APPLICATION, broker.address, f"{tmp_path}/log", str(ATTEMPTS), str(PARTS)]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=110).stdout)
    found = Counter((attempt, part) for attempt, part in told["found"])
    assert len(told["interrupted"]) > 20, "the interruptions come where they were meant to"
    nowhere = set(told["interrupted"]) | set(told["rolled back"])
    assert not {attempt for attempt, _ in found} & nowhere
    assert set(found.values()) == {1}
    assert {(attempt, part) for attempt in told["committed"] for part in range(PARTS)} <= set(found)
