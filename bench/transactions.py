"""`python -m bench tm` measures the transaction manager over two reference resource managers and a forced FileLog.

Per round, on the same disk one after the other: the raw rate of small appends with fdatasync, then
begin–enlist–enlist–commit from 1, 4 and 16 threads. Ratios are taken within a round; the figures are medians.
`transaction_us` is one whole transaction in one thread over a log that forces nothing, `resource_us` what the two
reference resource managers cost in it by themselves, `overhead_us` the difference: the manager's own cost.
"""

from __future__ import annotations

import os
import resource
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.unforced import UnforcedFiles
from tm import ResourceConfig, TransactionManager
from tm.log import FileLog
from xa import FORMAT_ID, TMASYNC, TMSUCCESS, Gtrid, Handle, Xid
from xabridge.testing.reference import ReferenceFactory, ReferenceResource, ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from tm.log import DecisionLog

SUMMARY: Final = "transactions over two reference resource managers, against the raw rate of forced appends"

THREADS: Final = (1, 4, 16)
RECORD: Final = bytes(200)


def measure(*, quick: bool) -> dict[str, Any]:
    seconds, rounds, many = (0.3, 2, 20_000) if quick else (2.0, 7, 1_000_000)
    with tempfile.TemporaryDirectory(prefix="xabridge-bench-", dir=Path.cwd()) as folder:
        figures = _forced(Path(folder), seconds, rounds)
        figures |= _overhead(Path(folder), 2_000 if quick else 30_000, rounds)
        figures["flat"] = _flat(Path(folder), many)
    return figures


def manager_over(log: DecisionLog) -> TransactionManager:
    """A manager with two reference resource managers, and no threads of its own at work."""
    stores = {name: ReferenceStore(name) for name in ("one", "two")}
    resources = {name: ResourceConfig(store.url, factory=ReferenceFactory(store)) for name, store in stores.items()}
    return TransactionManager("bench", log, resources, background=False)


def transact(manager: TransactionManager) -> None:
    """One transaction: begin, enlist, enlist, commit."""
    with manager.begin() as transaction:
        transaction.enlist("one")
        transaction.enlist("two")


# --- against the disk ---------------------------------------------------------------------------------------
def _forced(folder: Path, seconds: float, rounds: int) -> dict[str, Any]:
    manager = manager_over(FileLog(folder / "log", "bench"))
    raw: list[float] = []
    rates: dict[int, list[float]] = {threads: [] for threads in THREADS}
    for number in range(rounds):
        before = raw_forces_per_s(folder / "raw", seconds / 2)
        for threads in THREADS:
            rates[threads].append(rate(lambda: transact(manager), threads, seconds))
        raw.append((before + raw_forces_per_s(folder / "raw", seconds / 2)) / 2)
        shown = ", ".join(f"{threads}: {rates[threads][-1]:,.0f}/s" for threads in THREADS)
        print(f"  round {number + 1}: raw {raw[-1]:,.0f}/s; threads {shown}", file=sys.stderr)

    manager.close()
    return {
        "raw_fdatasync_per_s": round(statistics.median(raw), 1),
        "threads": {str(threads): {"tps": round(statistics.median(rates[threads]), 1)} for threads in THREADS},
        "ratio_1": _median_ratio(rates[1], raw),
        "ratio_4": _median_ratio(rates[4], raw),
        "ratio_16": _median_ratio(rates[16], raw),
    }


def raw_forces_per_s(path: Path, seconds: float) -> float:
    """Small appends to one file, each with its fdatasync."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        count = 0
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            os.write(descriptor, RECORD)
            os.fdatasync(descriptor)
            count += 1
        return count / (time.perf_counter() - began)
    finally:
        os.close(descriptor)
        path.unlink()


def rate(work: Callable[[], None], threads: int, seconds: float) -> float:
    """How often a second `work` is done by so many threads."""
    counts = [0] * threads
    barrier = threading.Barrier(threads + 1)
    stop = threading.Event()

    def run(index: int) -> None:
        barrier.wait()
        done = 0
        while not stop.is_set():
            work()
            done += 1
        counts[index] = done

    workers = [threading.Thread(target=run, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    barrier.wait()
    began = time.perf_counter()
    stop.wait(seconds)
    stop.set()
    for worker in workers:
        worker.join()
    return sum(counts) / (time.perf_counter() - began)


def _median_ratio(rates: list[float], raw: list[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(rates, raw, strict=True)), 3)


# --- by itself ----------------------------------------------------------------------------------------------
def _overhead(folder: Path, count: int, rounds: int) -> dict[str, Any]:
    manager = manager_over(FileLog(folder / "unforced", "bench", files=UnforcedFiles(folder / "unforced")))
    whole: list[float] = []
    resources: list[float] = []
    for _ in range(rounds):
        whole.append(_each_us(lambda: transact(manager), count))
        resources.append(_each_us(_cycles(), count))
    manager.close()
    return {
        "overhead_us": round(statistics.median(a - b for a, b in zip(whole, resources, strict=True)), 2),
        "transaction_us": round(statistics.median(whole), 2),
        "resource_us": round(statistics.median(resources), 2),
    }


def _each_us(work: Callable[[], None], count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        work()
    return (time.perf_counter() - began) / count * 1e6


def _cycles() -> Callable[[], None]:
    """The verbs that a transaction asks of the two resource managers, without a transaction manager."""
    managers = [ReferenceResource(ReferenceStore(name)) for name in ("one", "two")]
    for index, manager in enumerate(managers):
        manager.open(f"reference://{('one', 'two')[index]}", 1)
    first, last = managers
    xids = [Xid(FORMAT_ID, Gtrid("bench", bytes(8), 1, 1).encode(), name) for name in (b"one", b"two")]

    def cycle() -> None:
        for manager, xid in zip(managers, xids, strict=True):
            manager.start(xid, 1)
            manager.session(1)
        for manager, xid in zip(managers, xids, strict=True):
            manager.end(xid, 1, TMSUCCESS)
        for verb in ("prepare", "commit"):  # overlapped: all but the last one are asked first and collected then
            handle = getattr(first, verb)(xids[0], 1, TMASYNC)
            getattr(last, verb)(xids[1], 1)
            first.complete(Handle(handle), 1)

    return cycle


# --- for long -----------------------------------------------------------------------------------------------
def _flat(folder: Path, count: int) -> dict[str, Any]:
    """The size of the log and the memory after a tenth of `count` transactions, and after all of them."""
    place = folder / "flat"
    manager = manager_over(FileLog(place, "bench", files=UnforcedFiles(place)))
    sizes: list[tuple[int, int]] = []
    for part in (count // 10, count - count // 10):
        for _ in range(part):
            transact(manager)
        log_octets = sum(entry.stat().st_size for entry in place.iterdir())
        sizes.append((log_octets, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))

    manager.close()
    (log_first, memory_first), (log_last, memory_last) = sizes
    return {
        "transactions": count,
        "log_octets_at_a_tenth": log_first,
        "log_octets": log_last,
        "max_rss_kib_at_a_tenth": memory_first,
        "max_rss_kib": memory_last,
    }
