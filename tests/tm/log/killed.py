"""This process works on a FileLog until the test kills it: `python -m tests.tm.log.killed FOLDER SEGMENT_SIZE SEED`.

Each line that it writes is a fact: "decided N" after `decide` returned, "ending N" before it calls `end`.
"""

from __future__ import annotations

import os
import random
import sys
import threading

from tests.tm.log.samples import decision
from tm.log import FileLog

THREADS = 4


def main() -> None:
    folder, segment_size, seed = sys.argv[1:]
    log = FileLog(folder, "orders-1", segment_size=int(segment_size))
    first = log.openings << 32

    def tell(fact: str) -> None:
        os.write(1, f"{fact}\n".encode())

    def work(thread: int) -> None:
        rng = random.Random(f"{seed} {thread}")
        sequence = first + thread
        while True:
            made = decision(sequence, 1 + sequence % 3)
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
