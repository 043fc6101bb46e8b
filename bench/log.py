"""The decision log by itself: how many decisions a second, against the bare rate of fdatasync on the same disk.

Rounds alternate between the bare loops and the log with 1, 4 and 16 threads, and the figures are medians, so that
a disk that is slower for a while is so for all. Two bare loops, one thread each: `raw_fdatasync_per_s` appends
220 octets to a file that grows and forces it, `raw_overwrite_per_s` does so inside a file that is full of zeros,
which is what the log does. Ratios are over the former. `decide_us` and `end_us` are the log's own cost, with
its writes and without forces.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.disk import BenchFiles
from tm.log import Branch, Decision, FileLog
from tm.log.files import BLOCK
from xa import FORMAT_ID, Gtrid, Xid

if TYPE_CHECKING:
    from collections.abc import Iterator

SUMMARY: Final = "decisions a second in a FileLog, over the raw rate of fdatasync"

THREADS: Final = (1, 4, 16)
RECORD: Final = bytes(220)
RAW_SIZE: Final = 4 << 20


def measure(*, quick: bool) -> dict[str, Any]:
    """As `bench.command.Benchmark` says."""
    rounds, seconds = (3, 0.2) if quick else (15, 1.0)
    append, overwrite = [], []
    decides: dict[int, list[float]] = {threads: [] for threads in THREADS}
    per_force: dict[int, list[float]] = {threads: [] for threads in THREADS}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        path = Path(folder)
        for turn in range(rounds):
            append.append(raw_forces_per_s(path / "raw", seconds, grows=True))
            overwrite.append(raw_forces_per_s(path / "raw", seconds, grows=False))
            for threads in THREADS:
                rate, batch = _decide(path / f"log{turn}-{threads}", threads, seconds)
                decides[threads].append(rate)
                per_force[threads].append(batch)
    raw = statistics.median(append)
    decide_us, end_us = _own_cost(5_000 if quick else 50_000)
    return {
        "raw_fdatasync_per_s": round(raw),
        "raw_overwrite_per_s": round(statistics.median(overwrite)),
        "threads": {
            str(threads): {
                "decide_per_s": round(statistics.median(decides[threads])),
                "per_force": round(statistics.median(per_force[threads]), 1),
            }
            for threads in THREADS
        },
        "ratio_1": round(statistics.median(decides[1]) / raw, 2),
        "ratio_16": round(statistics.median(decides[16]) / raw, 2),
        "decide_us": round(decide_us, 1),
        "end_us": round(end_us, 1),
    }


def raw_forces_per_s(path: Path, seconds: float, *, grows: bool) -> float:
    """Forces in a second of a bare loop."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        if not grows:
            for offset in range(0, RAW_SIZE, BLOCK):
                os.pwrite(descriptor, bytes(BLOCK), offset)
            os.fsync(descriptor)
        count = 0
        start = time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds:
            offset = count * len(RECORD)
            os.pwrite(descriptor, RECORD, offset if grows else offset % (RAW_SIZE - len(RECORD)))
            os.fdatasync(descriptor)
            count += 1
    finally:
        os.close(descriptor)
    return count / elapsed


def _decide(folder: Path, threads: int, seconds: float) -> tuple[float, float]:
    """Decisions a second, each with its END, and how many shared a force."""
    files = BenchFiles(folder)
    log = FileLog(folder, "bench", files=files)
    forces = files.forces
    counts = [0] * threads
    barrier = threading.Barrier(threads + 1)
    stop = threading.Event()

    def work(thread: int) -> None:
        made = cycle(list(islice(_decisions(log, thread), 1000)))
        barrier.wait()
        count = 0
        while not stop.is_set():
            decision = next(made)
            log.decide(decision)
            log.end(decision.gtrid)
            count += 1
        counts[thread] = count

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    barrier.wait()
    start = time.perf_counter()
    stop.wait(seconds)
    stop.set()
    for worker in workers:
        worker.join()
    elapsed = time.perf_counter() - start
    forces = files.forces - forces
    log.close()
    return sum(counts) / elapsed, sum(counts) / max(1, forces)


def _own_cost(repetitions: int) -> tuple[float, float]:
    """Microseconds of `decide`, which writes, and of `end`, on a disk that forces nothing."""
    with tempfile.TemporaryDirectory() as folder:
        log = FileLog(folder, "bench", files=BenchFiles(folder, forced=False))
        made = list(islice(_decisions(log, 0), repetitions))
        decide = end = 0.0
        for first in range(0, repetitions, 100):
            some = made[first : first + 100]
            start = time.perf_counter()
            for decision in some:
                log.decide(decision)
            middle = time.perf_counter()
            for decision in some:
                log.end(decision.gtrid)
            end += time.perf_counter() - middle
            decide += middle - start
        log.close()
    return decide / repetitions * 1e6, end / repetitions * 1e6


def _decisions(log: FileLog, thread: int) -> Iterator[Decision]:
    sequence = thread << 32
    while True:
        gtrid = Gtrid(log.node, log.log_id, log.incarnation, sequence).encode()
        yield Decision(
            gtrid,
            (Branch("broker", Xid(FORMAT_ID, gtrid, b"broker")), Branch("shop", Xid(FORMAT_ID, gtrid, b"shop"))),
        )
        sequence += 1
