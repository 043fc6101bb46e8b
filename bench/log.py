"""`python -m bench log` compares the decision log by itself with the bare rate of fdatasync on the same disk.

Per round, one after the other: two bare loops in one thread, then `decide` and `end` from 1, 4 and 16 threads.
`raw_fdatasync_per_s` appends to a file that grows and forces it; `raw_overwrite_per_s` does so inside a file that
was full of zeros, as the log does. Ratios are to the former, within a round; the figures are medians. `decide_us`
and `end_us` are the log's own cost in one thread on a disk that forces nothing.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.transactions import RECORD, THREADS, rate, raw_forces_per_s
from bench.unforced import UnforcedFiles
from tm.log import Branch, Decision, FileLog
from tm.log.log_folder import BLOCK
from xa import FORMAT_ID, Gtrid, Xid

if TYPE_CHECKING:
    from collections.abc import Iterator

SUMMARY: Final = "decisions a second in a FileLog, against the raw rate of forced appends"

OVERWRITTEN: Final = 4 << 20
MANY: Final = 16_000


def measure(*, quick: bool) -> dict[str, Any]:
    seconds, rounds = (0.3, 3) if quick else (1.0, 15)
    raw: list[float] = []
    overwrite: list[float] = []
    rates: dict[int, list[float]] = {threads: [] for threads in THREADS}
    with tempfile.TemporaryDirectory(prefix="xabridge-bench-", dir=Path.cwd()) as folder:
        log = FileLog(Path(folder) / "log", "bench")
        made = cycle(list(islice(decisions(log), MANY)))

        def work() -> None:
            decision = next(made)
            log.decide(decision)
            log.end(decision.gtrid)

        for _ in range(rounds):
            raw.append(raw_forces_per_s(Path(folder) / "raw", seconds))
            overwrite.append(_overwrites_per_s(Path(folder) / "raw", seconds))
            for threads in THREADS:
                rates[threads].append(rate(work, threads, seconds))
        log.close()
        decide_us, end_us = _own_cost(Path(folder) / "unforced", MANY // 4 if quick else 4 * MANY)
    return {
        "raw_fdatasync_per_s": round(statistics.median(raw), 1),
        "raw_overwrite_per_s": round(statistics.median(overwrite), 1),
        "threads": {str(threads): {"decide_per_s": round(statistics.median(rates[threads]), 1)} for threads in THREADS},
        **{
            f"ratio_{threads}": round(statistics.median(a / b for a, b in zip(rates[threads], raw, strict=True)), 3)
            for threads in THREADS
        },
        "decide_us": round(decide_us, 1),
        "end_us": round(end_us, 1),
    }


def decisions(log: FileLog) -> Iterator[Decision]:
    """Decisions of two branches, without end."""
    sequence = 0
    while True:
        gtrid = Gtrid(log.node, log.log_id, log.incarnation, sequence).encode()
        yield Decision(
            gtrid,
            (Branch("broker", Xid(FORMAT_ID, gtrid, b"broker")), Branch("shop", Xid(FORMAT_ID, gtrid, b"shop"))),
        )
        sequence += 1


def _overwrites_per_s(path: Path, seconds: float) -> float:
    """Small writes, one behind the other, into a file that is there already, each with its fdatasync."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        for offset in range(0, OVERWRITTEN, BLOCK):
            os.pwrite(descriptor, bytes(BLOCK), offset)
        os.fsync(descriptor)
        count = 0
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            os.pwrite(descriptor, RECORD, count * len(RECORD) % (OVERWRITTEN - len(RECORD)))
            os.fdatasync(descriptor)
            count += 1
        return count / (time.perf_counter() - began)
    finally:
        os.close(descriptor)
        path.unlink()


def _own_cost(folder: Path, repetitions: int) -> tuple[float, float]:
    """Microseconds of `decide`, which writes, and of `end`."""
    log = FileLog(folder, "bench", files=UnforcedFiles(folder))
    made = list(islice(decisions(log), 100))
    decide = end = 0.0
    for _ in range(repetitions // len(made)):
        began = time.perf_counter()
        for decision in made:
            log.decide(decision)
        decided = time.perf_counter()
        for decision in made:
            log.end(decision.gtrid)
        end += time.perf_counter() - decided
        decide += decided - began
    log.close()
    count = repetitions // len(made) * len(made)
    return decide / count * 1e6, end / count * 1e6
