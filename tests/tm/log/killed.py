"""This process works on a log until the test kills it: `python -m tests.tm.log.killed URL NODE FIRST SEED`.

Each line that it writes is a fact: "decided N" after `decide` returned, "ending N" before it calls `end`.
"""

from __future__ import annotations

import os
import random
import sys
import threading

from tests.tm.log.samples import decision
from tm.log import DecisionLog, FileLog
from tm.log.sql import SqlLog

SEGMENT_SIZE = 16384
THREADS = 4


def opened(url: str, node: str) -> DecisionLog:
    """The log, though its last process was killed."""
    if url.startswith("file:"):
        return FileLog(url.removeprefix("file://"), node, segment_size=SEGMENT_SIZE)
    return SqlLog(url, node, take_over=True)


def main() -> None:
    url, node, first, seed = sys.argv[1:]
    log = opened(url, node)

    def tell(fact: str) -> None:
        os.write(1, f"{fact}\n".encode())

    def work(thread: int) -> None:
        rng = random.Random(f"{seed} {thread}")
        sequence = int(first) + thread
        while True:
            made = decision(sequence, 1 + sequence % 3, node)
            log.decide(made)
            tell(f"decided {sequence}")
            if rng.random() < 0.98:
                tell(f"ending {sequence}")
                log.end(made.gtrid)
            sequence += THREADS

    for thread in range(THREADS):
        threading.Thread(target=work, args=(thread,)).start()


if __name__ == "__main__":
    main()
