"""This process decides in a SqlLog: `python -m tests.tm.log.racing URL NODE FIRST COUNT [EPOCH]`.

With an epoch it joins; otherwise it takes the node over. It prints "ready" when it has the log and waits for a line;
then for each gtrid "commit N", "refused N" or "unknown N".
"""

from __future__ import annotations

import sys

from tests.tm.log.samples import decision
from tm.log import DecisionRefused, LogStopped
from tm.log.sql import SqlLog


def main() -> None:
    url, node, first, count, *epoch = sys.argv[1:]
    joins = int(epoch[0]) if epoch else None
    log = SqlLog(url, node, epoch=joins, take_over=joins is None)
    tell(f"ready {log.epoch}")
    sys.stdin.readline()
    for sequence in range(int(first), int(first) + int(count)):
        try:
            log.decide(decision(sequence, node=node))
        except DecisionRefused:
            tell(f"refused {sequence}")
        except LogStopped:
            tell(f"unknown {sequence}")
        else:
            tell(f"commit {sequence}")
    log.close()


def tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
