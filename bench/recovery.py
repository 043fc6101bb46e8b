"""`python -m bench recovery` measures one recovery pass over many branches in doubt, spread over two resource managers.

Each transaction has a prepared branch on both; every other one is decided to commit, the rest is presumed rolled
back. A busy manager would find this after a crash.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bench.transactions import manager_over
from bench.unforced import UnforcedFiles
from tm.log import Branch, Decision, FileLog
from xa import FORMAT_ID, TMSUCCESS, Gtrid, ResourceManager, Xid

SUMMARY: Final = "recovery of branches in doubt over two resource managers"

BRANCHES: Final = (1_000, 10_000, 100_000)


def measure(*, quick: bool) -> dict[str, Any]:
    figures = {}
    with tempfile.TemporaryDirectory(prefix="xabridge-bench-", dir=Path.cwd()) as folder:
        for branches in BRANCHES[:2] if quick else BRANCHES:
            seconds = _pass_s(Path(folder) / str(branches), branches)
            rate = round(branches / seconds, 1)
            print(f"  {branches:,} branches in {seconds:.2f} s: {rate:,.0f}/s", file=sys.stderr)
            figures[str(branches)] = {"branches": branches, "seconds": round(seconds, 3), "resolve_per_s": rate}
    return figures


def _pass_s(folder: Path, branches: int) -> float:
    log = FileLog(folder, "bench", files=UnforcedFiles(folder))
    log.note_ceiling(2**33)
    manager = manager_over(log)
    resources = list(manager.resources.values())
    for sequence in range(branches // 2):
        gtrid = Gtrid(log.node, log.log_id, log.incarnation, 2**32 + sequence).encode()
        prepared = tuple(Branch(each.name, Xid(FORMAT_ID, gtrid, each.bqual)) for each in resources)
        for each, branch in zip(resources, prepared, strict=True):
            _prepare(each.rm, each.rmid, branch.xid)
        if sequence % 2:
            log.decide(Decision(gtrid, prepared))

    began = time.perf_counter()
    report = manager.recover()
    seconds = time.perf_counter() - began
    if len(report.findings) != branches or not report.clean or log.decisions():
        raise AssertionError(f"recovery resolved {len(report.findings)} of {branches} branches")
    manager.close()
    return seconds


def _prepare(rm: ResourceManager, rmid: int, xid: Xid) -> None:
    rm.start(xid, rmid)
    rm.session(rmid).write(str(xid), True)
    rm.end(xid, rmid, TMSUCCESS)
    rm.prepare(xid, rmid)
