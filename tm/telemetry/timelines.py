"""Timelines: what the transactions of one manager did, and when; and how fast its consumers were in the last minute.

It is there only where a manager has a page `/node` (`http_token`). It keeps the last LAST transactions, and of each
five minutes of the last hour the SLOWEST ones: so the slowest of the hour are known without keeping them all. Of each
transaction it keeps its steps: each verb that a resource manager was asked, and the force of the decision.

A transaction costs one look at the clock when it begins, one for each step and one at its end. Another recording (that
of the metrics) gets everything, too.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tm.outcome import Verdict
from tm.recovery.report import Action
from tm.telemetry.proxies import RAISED, MeasuredPorts, observed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tm.outcome import Outcome
    from tm.recording import Received, Recording
    from tm.recovery import Finding, Report
    from tm.two_phase.ports import Ports
    from xa import Code, ResourceManager, Xid

LAST: Final = 200
SLOWEST: Final = 50
SLOT_S: Final = 300.0
SLOTS: Final = 12
STEPS: Final = 64
"""Steps that are kept of a transaction; more are counted."""
REASONS: Final = 3
REASON: Final = 300
"""Characters of a reason."""
RATE_S: Final = 60.0
_RATE_SLOT_S: Final = 10.0


class Step(NamedTuple):
    """`resource` was asked `verb`, so long after the begin; "" is the log. `code` is its answer."""

    resource: str
    verb: str
    after_s: float
    took_s: float
    code: str


@dataclass(slots=True)
class Timeline:
    """One transaction. `began_at` is the time of day; `verdict` is None while it is under way."""

    gtrid: bytes
    began: float
    began_at: float
    steps: list[Step] = field(default_factory=list)
    omitted: int = 0
    took_s: float = 0.0
    verdict: Verdict | None = None
    reasons: tuple[str, ...] = ()


class Timelines:
    """The `tm.recording.Recording` of a node's page. `also` gets the same."""

    def __init__(
        self,
        also: Recording | None = None,
        clock: Callable[[], float] = time.perf_counter,
        time_of_day: Callable[[], float] = time.time,
    ) -> None:
        self._also = also
        self._clock = clock
        self._time_of_day = time_of_day
        self._live: dict[bytes, Timeline] = {}
        self._lock = threading.Lock()
        self._last: deque[Timeline] = deque(maxlen=LAST)
        self._slots: dict[int, list[tuple[float, int, Timeline]]] = {}
        """By the number of the five minutes: a heap, the fastest of the slowest first."""
        self._count = 0
        self._consumed: dict[tuple[str, int], Counter[str]] = {}
        """By queue and the number of the ten seconds: messages by outcome."""

    # --- what it tells ----------------------------------------------------------------------------------------

    @property
    def last(self) -> list[Timeline]:
        """The last transactions, the latest first."""
        with self._lock:
            return list(reversed(self._last))

    @property
    def slowest(self) -> list[Timeline]:
        """The slowest of the last hour, the slowest first."""
        with self._lock:
            self._forget_slots()
            found = [entry for heap in self._slots.values() for entry in heap]
        return [timeline for _, _, timeline in heapq.nlargest(SLOWEST, found)]

    def steps_of(self, gtrid: bytes) -> tuple[Step, ...]:
        """The steps of a transaction that is under way, until now."""
        found = self._live.get(gtrid)
        return () if found is None else tuple(found.steps)

    def rates(self, queue: str) -> Mapping[str, float]:
        """Messages of this queue per second, by what they came to, in the last minute."""
        now = int(self._clock() // _RATE_SLOT_S)
        found: Counter[str] = Counter()
        with self._lock:
            for (of, slot), counts in self._consumed.items():
                if of == queue and now - RATE_S / _RATE_SLOT_S <= slot < now:
                    found += counts
        return {outcome: count / RATE_S for outcome, count in found.items()}

    # --- the recording ----------------------------------------------------------------------------------------

    def resource(self, name: str, rm: ResourceManager, system: str) -> ResourceManager:
        return observed(name, rm, system, self)

    def session(self, session: Any, system: str) -> Any:
        return session if self._also is None else self._also.session(session, system)

    def ports(self, ports: Ports) -> Ports:
        return MeasuredPorts(ports, self)

    def close(self) -> None:
        if self._also is not None:
            self._also.close()

    def began(self, gtrid: bytes, received: Received | None = None) -> None:
        if self._also is not None:
            self._also.began(gtrid, received)
        self._live[gtrid] = Timeline(gtrid, self._clock(), self._time_of_day())

    def enter(self, gtrid: bytes) -> Any:
        return None if self._also is None else self._also.enter(gtrid)

    def leave(self, entered: Any) -> None:
        if self._also is not None:
            self._also.leave(entered)

    def completed(self, outcome: Outcome) -> None:
        if self._also is not None:
            self._also.completed(outcome)
        found = self._live.pop(outcome.gtrid, None)
        if found is None:
            return
        if not found.steps and not outcome.reasons:
            return  # it has done nothing, as that of a consumer for which no message came
        now = self._clock()
        found.took_s = now - found.began
        found.verdict = outcome.verdict
        if outcome.verdict is not Verdict.COMMITTED:  # as text: an exception would keep its frames
            found.reasons = tuple(str(reason)[:REASON] for reason in outcome.reasons[:REASONS])

        with self._lock:
            self._count += 1
            self._last.append(found)
            heap = self._slots.get(int(now // SLOT_S))
            if heap is None:
                self._forget_slots()
                heap = self._slots[int(now // SLOT_S)] = []
            if len(heap) < SLOWEST:
                heapq.heappush(heap, (found.took_s, self._count, found))
            elif found.took_s > heap[0][0]:
                heapq.heapreplace(heap, (found.took_s, self._count, found))

    def _forget_slots(self) -> None:
        oldest = int(self._clock() // SLOT_S) - SLOTS
        for slot in [slot for slot in self._slots if slot < oldest]:
            del self._slots[slot]

    def verb(self, resource: str, verb: str, began: float, code: Code | None, xid: Xid | None) -> None:
        if self._also is not None:
            self._also.verb(resource, verb, began, code, xid)
        if xid is not None:
            self._step(xid.gtrid, resource, verb, began, RAISED if code is None else code.name)

    def phase(self, phase: str, began: float) -> None:
        if self._also is not None:
            self._also.phase(phase, began)

    def forced(self, record: str, began: float, *, gtrid: bytes, failed: bool) -> None:
        if self._also is not None:
            self._also.forced(record, began, gtrid=gtrid, failed=failed)
        self._step(gtrid, "", record, began, "failed" if failed else "")

    def _step(self, gtrid: bytes, resource: str, verb: str, began: float, code: str) -> None:
        found = self._live.get(gtrid)
        if found is None:
            return  # recovery asks, or the transaction is over
        if len(found.steps) < STEPS:
            found.steps.append(Step(resource, verb, max(began - found.began, 0.0), self._clock() - began, code))
        else:
            found.omitted += 1

    def consumes(self, system: str, queue: str, outcomes: Iterable[str]) -> None:
        if self._also is not None:
            self._also.consumes(system, queue, outcomes)

    def consumed(self, system: str, queue: str, outcome: str, messages: int, took_s: float) -> None:
        if self._also is not None:
            self._also.consumed(system, queue, outcome, messages, took_s)
        slot = int(self._clock() // _RATE_SLOT_S)
        with self._lock:
            counts = self._consumed.get((queue, slot))
            if counts is None:
                oldest = slot - RATE_S / _RATE_SLOT_S
                for key in [key for key in self._consumed if key[1] < oldest]:
                    del self._consumed[key]
                counts = self._consumed[queue, slot] = Counter()
            counts[outcome] += messages

    def recovered(self, report: Report, began: float) -> None:
        if self._also is not None:
            self._also.recovered(report, began)
        found: dict[bytes, list[Finding]] = {}
        for finding in report.findings:
            found.setdefault(finding.branch.xid.gtrid, []).append(finding)
        ended = [gtrid for gtrid in report.ended[-LAST:] if any(map(_is_gone, found.get(gtrid, ())))]
        for gtrid in ended:
            self._keep_recovered(gtrid, found[gtrid])

    def _keep_recovered(self, gtrid: bytes, findings: Sequence[Finding]) -> None:
        """A transaction whose decision has ended, and of which a branch was not there any more."""
        split = any(finding.action is Action.HEURISTIC for finding in findings)
        one = Timeline(gtrid, self._clock(), self._time_of_day())
        one.verdict = Verdict.MIXED if split else Verdict.COMMITTED
        one.reasons = tuple(
            f"recovery: {finding.action.value} on {finding.branch.resource}: {finding.why}"[:REASON]
            for finding in sorted(findings, key=lambda finding: finding.action is not Action.HEURISTIC)[:REASONS]
        )
        with self._lock:
            self._last.append(one)


def _is_gone(finding: Finding) -> bool:
    return finding.action in {Action.NOT_THERE, Action.HEURISTIC}
