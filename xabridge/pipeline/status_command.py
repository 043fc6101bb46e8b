"""`xabridge pipeline status` shows a pipeline's driver, its last epochs, what the last batches did, and the branches in
doubt, in 80 columns or JSON.

It changes nothing. docs/pipeline.md is its manual.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from tm.log import LogError
from xa.printable import escaped
from xabridge.exit_codes import Exit
from xabridge.pipeline.core import PipelineError
from xabridge.pipeline.core.ledger.status import PipelineStatus, look
from xabridge.pipeline.core.process_ids import is_alive
from xabridge.pipeline.core.xids import epoch_of
from xabridge.pipeline.settings import settings_from
from xabridge.text import age, gtrid_name, listed, paragraph, several, table_row, took, unreachable_lines, whole_number

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from xa import Xid
    from xabridge.pipeline.core.ledger.rows import ResultRow
    from xabridge.pipeline.core.ledger.status import EpochStatus, LagStatus

SUMMARY: Final = "show a pipeline's driver, epochs, and branches in doubt"
LAST: Final = 10
AVERAGED: Final = 10
"""The averages are those of so many last epochs, here and in the console."""
_HEAD: Final = ("EPOCH", "GTRID", "STATE", "AGE", "PREPARED")
_WIDTHS: Final = (6, 26, 9, 5, 0)
_RIGHT: Final = (0,)
LIVES: Final = {True: "alive", False: "gone", None: "on another host"}
_DID: Final = ("EPOCH", "TAKEN", "ROWS", "SENT", "OCTETS", "PREPARE", "DECIDE", "FINISH", "LAG")
_DID_WIDTHS: Final = (6, 6, 6, 6, 6, 7, 7, 7, 0)
_PREFIXES: Final = (("G", 10**9), ("M", 10**6), ("k", 10**3))
_WAITING: Final = frozenset({"active", "committed"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `xabridge pipeline status`."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="the pipeline (default: every pipeline of the log)")
    parser.add_argument("--config", metavar="FILE", help="the configuration (default: xabridge.toml, if there is one)")
    parser.add_argument("--log", metavar="URL", help="the database that keeps the decisions, instead of the file's")
    parser.add_argument(
        "--resource", action="append", default=[], metavar="NAME=URL", help="a resource manager, instead of the file's"
    )
    parser.add_argument(
        "--last", type=whole_number, default=LAST, metavar="N", help=f"number of epochs to show (default {LAST})"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Shows it; the exit code: 0, 3 when there are orphans, 4 when something could not be reached."""
    try:
        given = dict(_split(text) for text in arguments.resource)
        settings = settings_from(arguments.name or "status", arguments.log, given, arguments.config)
        found = look(settings.log, settings.resources, arguments.name, last=max(arguments.last, AVERAGED))
    except (PipelineError, LogError) as error:
        sys.stderr.write(f"xabridge pipeline status: {escaped(str(error))}\n")
        return Exit.USAGE if isinstance(error, PipelineError) else Exit.FAILED

    if arguments.json:
        objects = [as_json(one, arguments.last) for one in found]
        print(json.dumps(objects[0] if arguments.name else objects))
    else:
        blocks = ["\n".join(lines(one, arguments.last, time.time())) for one in found]
        print("\n\n".join(blocks) or "no pipeline has its decisions in this log")
    if any(one.unreachable for one in found):
        return Exit.INCOMPLETE
    return Exit.IN_DOUBT if any(orphans(one) for one in found) else Exit.DONE


def _split(text: str) -> tuple[str, str]:
    name, equals, url = text.partition("=")
    if not name or not equals or not url:
        raise PipelineError(f"--resource {text}: write NAME=URL, like shop=postgresql://shop@db/shop")
    return name, url


# --- what it comes to -----------------------------------------------------------------------------------------------
def prepared_branches(found: PipelineStatus) -> dict[bytes, dict[str, list[Xid]]]:
    """The branches in doubt: by gtrid, and by resource."""
    by_gtrid: dict[bytes, dict[str, list[Xid]]] = {}
    for resource, xids in found.prepared.items():
        for xid in xids or ():
            by_gtrid.setdefault(xid.gtrid, {}).setdefault(resource, []).append(xid)
    return by_gtrid


def orphans(found: PipelineStatus) -> dict[bytes, dict[str, list[Xid]]]:
    """Branches of gtrids that are not under way, and not committed: the next plan or commit rolls them back."""
    waiting = {epoch.gtrid for epoch in found.epochs if epoch.state in _WAITING}
    return {gtrid: branches for gtrid, branches in prepared_branches(found).items() if gtrid not in waiting}


def as_json(found: PipelineStatus, last: int) -> dict[str, Any]:
    """One pipeline."""
    prepared, given_up = prepared_branches(found), orphans(found)

    return {
        "pipeline": found.pipeline,
        "log_id": found.log_id.hex(),
        "incarnation": found.incarnation,
        "driver": {"id": found.driver, "alive": is_alive(found.driver) if found.driver else None},
        "query": found.query,
        "sources": [{"reads": source, "process": process} for source, process in found.sources],
        "taken_at": found.taken_at,
        "epochs": [
            {
                "epoch": epoch.epoch,
                "gtrid": gtrid_name(epoch.gtrid),
                "incarnation": epoch.incarnation,
                "state": epoch.state,
                "decided_branches": epoch.branches,
                "logged": epoch.logged,
                "unfinished": epoch.unfinished,
                "changed_at": epoch.changed_at,
                "planned_at": epoch.planned_at,
                "phases": epoch.phases,
                "skipped": dict(epoch.skipped),
                "prepared": _xids(prepared.get(epoch.gtrid, {})),
            }
            for epoch in found.epochs[:last]
        ],
        "orphans": [{"gtrid": gtrid_name(gtrid), "prepared": _xids(each)} for gtrid, each in given_up.items()],
        "suspects": found.suspects,
        "batches": [_batch_json(one) for one in found.results[:last]],
        "lag": [
            {
                "epoch": lag.epoch,
                "reads": lag.source,
                "planned_at": lag.planned_at,
                "messages": lag.waiting,
                "oldest_s": lag.oldest_s,
            }
            for lag in found.lags[:last]
        ],
        "unreachable": found.unreachable,
    }


def _batch_json(result: ResultRow) -> dict[str, Any]:
    return {**asdict(result), "gtrid": gtrid_name(result.gtrid)}


def _xids(branches: dict[str, list[Xid]]) -> dict[str, list[str]]:
    return {resource: [str(xid) for xid in xids] for resource, xids in branches.items()}


# --- for people -----------------------------------------------------------------------------------------------------
def lines(found: PipelineStatus, last: int, now_s: float) -> Iterator[str]:
    """One pipeline, in lines of 80 columns."""
    yield f"pipeline {escaped(found.pipeline)}, incarnation {found.incarnation}"
    if found.driver:
        taken = datetime.fromtimestamp(found.taken_at, UTC).astimezone().isoformat(" ", "seconds")
        yield from paragraph(f"driver {escaped(found.driver)} ({LIVES[is_alive(found.driver)]}), since {taken}", "  ")
    if found.query:
        reads = listed([escaped(source) for source, _ in found.sources])
        yield from paragraph(f"query {escaped(found.query)}{f', reads {reads}' if reads else ''}", "  ")
    yield ""
    prepared, given_up = prepared_branches(found), orphans(found)
    yield table_row(_HEAD, _WIDTHS, _RIGHT)
    for epoch in found.epochs[:last]:
        yield from _epoch(epoch, prepared.get(epoch.gtrid, {}), now_s)
    shown = {epoch.gtrid for epoch in found.epochs[:last]}
    for gtrid, branches in prepared.items():
        if gtrid not in shown:
            number = str(epoch_of(gtrid))
            yield from _cells(number, gtrid, "orphan" if gtrid in given_up else "older", "", branch_counts(branches))

    yield ""
    yield from _batches(found, last)
    phases = mean_phases(found)
    if phases:
        each = [f"{phase} {took(seconds)}" for phase, seconds in phases.items()]
        yield from paragraph(f"a batch took {averaged(found)}: {', '.join(each)}")

    for sentence in (*skipped(found, last), *summary(found)):
        yield from paragraph(sentence)
    for line in unreachable_lines(found.unreachable):
        yield from paragraph(line)


def _epoch(epoch: EpochStatus, branches: dict[str, list[Xid]], now_s: float) -> Iterator[str]:
    old = age(max(now_s - epoch.changed_at, 0))
    yield from _cells(str(epoch.epoch), epoch.gtrid, epoch.state, old, branch_counts(branches))


def _batches(found: PipelineStatus, last: int) -> Iterator[str]:
    """What the last batches did."""
    if not found.results:
        return
    waited: dict[bytes, list[LagStatus]] = {}
    for lag in found.lags:
        waited.setdefault(lag.gtrid, []).append(lag)
    yield table_row(_DID, _DID_WIDTHS, range(8))

    for one in found.results[:last]:
        lags = waited.get(one.gtrid, [])
        oldest = max((lag.oldest_s for lag in lags if lag.oldest_s is not None), default=None)
        lagging = _short(sum(lag.waiting for lag in lags), 4) if lags else "?"
        counts = ["?" if count is None else _short(count, 6) for count in (one.taken, one.rows, one.messages)]
        times = [
            f"{round(seconds * 1000)} ms" if seconds < 9.9995 else took(seconds)
            for seconds in (one.prepare_s, one.decide_s, one.finish_s)
        ]
        old = "" if oldest is None else f", {age(oldest)}"
        cells = (str(one.epoch), *counts, _short(one.octets, 3, "B"), *times, f"{lagging}{old}")
        yield table_row(cells, _DID_WIDTHS, range(8))
    yield ""


def _short(number: int, digits: int, unit: str = "") -> str:
    """ "812", "12 k", "3 MB": what has more digits is abbreviated."""
    if number < 10**digits:
        return str(number)
    prefix, size = next((prefix, size) for prefix, size in _PREFIXES if number >= size)
    return f"{number // size} {prefix}{unit}"


def _cells(number: str, gtrid: bytes, state: str, old: str, branches: str) -> Iterator[str]:
    name = gtrid_name(gtrid)
    if len(name) > _WIDTHS[1]:
        yield f"{number.rjust(_WIDTHS[0])}  {name}"
        number = name = ""
    yield table_row((number, name, state, old, branches), _WIDTHS, _RIGHT)


def _names(names: Sequence[str]) -> str:
    return listed([escaped(name) for name in names])


def branch_counts(branches: dict[str, list[Xid]]) -> str:
    """ "broker 2, shop 1"."""
    return ", ".join(f"{escaped(resource)} {len(xids)}" for resource, xids in branches.items()) or "-"


def mean_phases(found: PipelineStatus) -> dict[str, float]:
    """The seconds that each phase took, on average over those of the last AVERAGED epochs of which it is known."""
    known: dict[str, list[float]] = {}
    for epoch in found.epochs[:AVERAGED]:
        for phase, seconds in epoch.phases.items():
            known.setdefault(phase, []).append(seconds)
    return {phase: sum(each) / len(each) for phase, each in known.items()}


def averaged(found: PipelineStatus) -> str:
    """ "on average of epochs 8 to 17": the epochs of `mean_phases`."""
    return f"on average of {_numbered([epoch.epoch for epoch in found.epochs[:AVERAGED] if epoch.phases])}"


def skipped(found: PipelineStatus, last: int) -> Iterator[str]:
    """Which of the last epochs did not read a broker because it was away, in sentences, the latest reason first."""
    by_reason: dict[tuple[str, str], list[int]] = {}
    for epoch in found.epochs[:last]:
        for one in epoch.skipped:
            by_reason.setdefault(one, []).append(epoch.epoch)
    for (name, why), epochs in by_reason.items():
        known = f": {escaped(why)}" if why else ", which was away"
        yield f"{_numbered(epochs)} skipped {escaped(name)}{known}"


def _numbered(epochs: Sequence[int]) -> str:
    """ "epoch 7", "epochs 3 to 5 and 7"."""
    ranges: list[list[int]] = []
    for number in sorted(set(epochs)):
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1][1:] = [number]
        else:
            ranges.append([number])
    words = [" to ".join(map(str, one)) for one in ranges]
    return f"epoch{'s' if len(set(epochs)) > 1 else ''} {listed(words)}"


def summary(found: PipelineStatus) -> Iterator[str]:
    """What is in doubt, and what fails, in sentences."""

    def count(some: dict[bytes, dict[str, list[Xid]]]) -> int:
        return sum(len(xids) for branches in some.values() for xids in branches.values())

    prepared, given_up = prepared_branches(found), orphans(found)
    asked = [name for name, xids in found.prepared.items() if xids is not None]
    if prepared:
        where = sorted({resource for branches in prepared.values() for resource in branches})
        yield f"{several(count(prepared), 'branch')} in doubt on {_names(where)}"
    elif asked:
        yield "nothing in doubt" if not found.unreachable else f"nothing in doubt on {_names(asked)}"
    if found.unreachable:
        yield f"it is not known what is in doubt on {_names(tuple(found.unreachable))}"
    elif not asked:
        yield "it is not known what is in doubt: no resource is configured for this command"
    if given_up:
        yield f"{count(given_up)} of them are orphans of abandoned attempts: the next micro-batch rolls them back"
    for epoch in found.epochs:
        if epoch.unfinished:
            yield (
                f"epoch {epoch.epoch} is decided, and not finished at {_names(epoch.unfinished)}: a later batch that "
                "has work there is decided after that"
            )
            strange = [name for name in epoch.unfinished if name not in found.prepared]
            if strange:
                yield f"{_names(strange)}: there is no such resource in the configuration of this command"
    if found.suspects:
        yield f"one of {several(found.suspects, 'message')} makes batches fail: the next batches search for it"
