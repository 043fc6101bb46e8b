"""RecoveryService: runs the recovery passes of one manager: at its start, periodically with back-off, and on demand."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from tm.errors import OutcomeUnknown, ProtocolMisuse
from tm.log import Branch, LogError
from tm.outcome import named
from tm.recovery.blocking import BlockingRecoveryPorts
from tm.recovery.former import FormerIncarnations
from tm.recovery.messages import RecoveryMessages
from tm.recovery.ownership import IN_LOG
from tm.recovery.recovery_pass import recover
from tm.recovery.report import Action
from tm.recovery.unfinished import UnfinishedTransactions
from tm.two_phase.return_codes import Verb
from xa import Code, Owner, ThreadOfControl, XaError, entered
from xa.coroutines import drive
from xa.gtrid import OVER

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from tm.log import DecisionLog
    from tm.recovery.blocking import PassProgress
    from tm.recovery.ownership import Ownership
    from tm.recovery.ports import Decisions
    from tm.recovery.recovery_pass import Gone
    from tm.recovery.report import Report
    from tm.resources import Resource
    from tm.sequences import Sequences
    from tm.two_phase.ports import Ports
    from xa import Xid

logger = logging.getLogger("xabridge.tm.recovery")

FIRST_RETRY_S: Final = 0.2
REST: Final = 20.0
LONGEST_REST_S: Final = 60.0
"""Between two passes of its own it rests so many times as long as the last one had the processor, though no
longer than this: where a hundred thousand decisions wait for a resource that is away, looking through them takes no
more than a twentieth of a processor."""
_NOTHING: Final[Gone] = MappingProxyType({})


class RecoveryService:
    """Recovers for one manager, whose transactions under way are `live`. Passes exclude each other in this process;
    `progress` gets their steps, `recovered` is called with the report of each and when it began, and `sequences`
    learns which of its transactions left nothing behind."""

    def __init__(
        self,
        resources: Mapping[str, Resource],
        log: DecisionLog | None,
        ports: Ports,
        live: Collection[bytes],
        ownership: Callable[[], Ownership],
        recovered: Callable[[Report, float], None] | None = None,
        progress: PassProgress | None = None,
        clock: Callable[[], float] = time.monotonic,
        sequences: Sequences | None = None,
    ) -> None:
        self._resources = resources
        self._log = log
        self._live = live
        self._ownership = ownership
        self._recovered = recovered
        self._clock = clock
        self._sequences = sequences

        self._messages = RecoveryMessages(clock)
        self._ports = BlockingRecoveryPorts(resources, log, ports, live, ownership, self._messages, progress)
        self._control = ThreadOfControl()
        self.unfinished = UnfinishedTransactions(resources, log, self._ports)
        self._one_at_a_time = threading.RLock()
        self._wanted = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._former = FormerIncarnations()
        self.last_report: Report | None = None

    # --- the thread -----------------------------------------------------------------------------------------

    def start(self, interval_s: float) -> None:
        """Starts the thread; `interval_s` is the longest pause between two passes."""
        self._thread = threading.Thread(target=self._run, args=(interval_s,), name="xabridge-recovery", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, after the pass that runs."""
        self._stopping = True
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def ownership(self) -> Ownership:
        """Whose branches this manager may resolve, as of now."""
        return self._ownership()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While it lasts, no pass runs but those of the calling thread: what an operator does by hand and what recovery
        does don't meet at one branch."""
        with self._one_at_a_time:
            yield

    def wake(self) -> None:
        """Asks for a pass soon: a completion left something behind."""
        self._wanted.set()

    def _run(self, interval_s: float) -> None:
        report = self.last_report
        pause_s = FIRST_RETRY_S if report is not None and report.is_worth_repeating else interval_s
        while True:
            woken = self._wanted.wait(pause_s)
            self._wanted.clear()
            if self._stopping:
                return
            began = time.thread_time()

            try:
                again = self.run_once().is_worth_repeating
            except LogError as error:
                self._messages.log_unreadable(error)
                again = True
            except Exception as error:  # noqa: BLE001 — there will be another pass
                self._messages.failed(error)
                again = True
            took_s = time.thread_time() - began
            before_s = FIRST_RETRY_S / 2 if woken else pause_s
            pause_s = pause_after(before_s, interval_s, took_s) if again else interval_s

    # --- a pass ---------------------------------------------------------------------------------------------

    def run_once(self, *, now: bool = False, gone: Gone = _NOTHING) -> Report:
        """One pass; with `now` resources are tried whether their back-off has passed or not; `gone` as in
        `tm.recovery`. LogError: the log can't be read, so that nothing may be presumed."""
        with self._one_at_a_time, entered(self._control):
            began, began_at = time.perf_counter(), self._clock()
            if now:
                self._reopen_all()
            left = drive(self.unfinished.finish())
            report = drive(recover(self._ports, self._ownership(), gone))
        done = {finding.branch for finding in left if finding.action is not Action.PENDING}
        found = [finding for finding in report.findings if finding.branch not in done]
        known = {finding.branch for finding in found}
        report.findings = [finding for finding in left if finding.branch not in known] + found
        self.last_report = report
        if self._sequences is not None:
            met = {finding.branch.xid.gtrid for finding in report.findings}
            self._sequences.passed(began_at, met, report.unreachable)
            self._raise_floors(began_at, report)

        if self._recovered is not None:
            self._recovered(report, began)
        self._messages.passed(report)
        return report

    def _raise_floors(self, began_at: float, report: Report) -> None:
        """Notes of former incarnations that nothing of them is left. What can't be noted now is noted by a later
        pass."""
        node = self._ownership().node
        over = self._former.passed(began_at, self._clock(), report.ended_incarnations, report.left_nothing)
        for place, incarnation in over:
            if place == IN_LOG:
                assert self._log is not None  # noqa: S101 — it knows the incarnation
                self._log.note_floor(OVER, incarnation)
                continue
            resource = self._resources[place]
            with entered(self._control):
                try:
                    resource.decider.hold(Owner(node, incarnation, ""), 0, resource.rmid, OVER, OVER)
                except Exception as raised:  # noqa: BLE001 — a resource manager of anybody's
                    error = resource.as_xa_error(raised, "hold")
                    logger.info("that nothing is left of %s could not be noted: %s", incarnation.hex(), error)

    def end_decision(self, gtrid: bytes, gone: frozenset[str]) -> Report:
        with self._one_at_a_time, entered(self._control):
            decisions = self._ports.decisions()
            whose = self._ownership().whose(gtrid, self._ports.at_work(), decided=True)
        decision = decisions.find(gtrid)
        what = f"transaction {named(gtrid)}"
        if not whose.is_ours and whose.why:
            raise ProtocolMisuse(f"{what} is not for this manager to end: {whose.why}")
        if decision is None:
            raise ProtocolMisuse(f"{what} has no decision that has not ended: there is nothing to end")
        if gtrid in self._live:
            raise ProtocolMisuse(f"{what} is being completed at this moment: there is nothing to do about it")
        lost = [branch for branch in decision.branches if branch.resource not in self._resources]
        names = dict.fromkeys(branch.resource for branch in lost)
        for name in gone:
            if name not in names:
                why = "is configured, recovery commits its branch" if name in self._resources else "has no branch in it"
                raise ProtocolMisuse(
                    f"{what}: {name} {why}; `gone` may only name resources of the decision that are not configured"
                )

        if not names:
            raise ProtocolMisuse(f"{what}: every resource of its decision is configured, recovery ends it")
        missing = [branch for branch in lost if branch.resource not in gone]
        if missing:
            where = ", ".join(f"{branch.xid} on {branch.resource}" for branch in missing)
            raise ProtocolMisuse(
                f"{what} is decided to commit, but the resource is not configured: {where}. Configure the "
                "resource again, under any name, and recovery commits its branch. Only if it is gone for good, "
                f"or the branch was committed by hand, end the decision with gone={sorted(names)}"
            )
        report = self.run_once(now=True, gone={gtrid: gone})
        if gtrid not in report.ended:
            left = [
                f"{finding.branch.xid} on {finding.branch.resource}: {finding.why}"
                for finding in report.findings
                if finding.branch.xid.gtrid == gtrid and finding.action is Action.PENDING
            ]
            left += [f"{name} can't be reached: {why}" for name, why in report.unreachable.items()]
            raise ProtocolMisuse(
                f"{what} can't be ended as long as a branch of it may be left elsewhere ({'; '.join(left)}): "
                "try again when that is over"
            )

        with self._one_at_a_time, entered(self._control):
            noted = _has_ended(gtrid, decisions, self._ports.decisions())
        if not noted:  # a pass leaves that to the next one, which would not know what is gone
            raise OutcomeUnknown(f"{what} is carried out, but its END record could not be written: try again")

        for branch in lost:
            logger.warning(
                "%s (xid %s) on %s: ended by hand without that resource, which the operator has declared gone",
                named(gtrid), branch.xid, branch.resource,
            )  # fmt: skip
        return report

    def forget(self, resource: Resource, xid: Xid) -> None:
        """Lets `resource` forget a branch that it completed on its own, then drops the note of it. XaError: it
        can't now. A branch that the resource does not know any more only loses its note."""
        branch = Branch(resource.name, xid)
        (answer,) = drive(self._ports.ask(Verb.FORGET, (branch,)))
        if isinstance(answer, XaError) and answer.code is not Code.XAER_NOTA:
            raise answer
        if self._log is not None:
            noted = {heuristic.branch for heuristic in self._log.heuristics() if heuristic.branch.xid == xid}
            for noted_branch in noted or {branch}:  # under the names that the resource had then
                self._log.drop_heuristic(noted_branch)
        logger.info("%s (xid %s) on %s was forgotten", named(xid.gtrid), xid, resource.name)

    def _reopen_all(self) -> None:
        for resource in self._resources.values():
            with suppress(XaError):  # the scan meets it again, and the report tells of it
                resource.reopen(now=True)


def pause_after(pause_s: float, interval_s: float, took_s: float) -> float:
    """How long to wait after a pass that was not clean, before which the pause was `pause_s` and which had the
    processor for `took_s`."""
    return max(min(pause_s * 2, interval_s), min(REST * took_s, LONGEST_REST_S))


def _has_ended(gtrid: bytes, before: Decisions, now: Decisions) -> bool:
    """Whether a decision that was there before is known to be there no more, where it was."""
    if gtrid in before.logged:
        return gtrid not in now.logged
    deciders = [name for name, decided in before.by_decider.items() if gtrid in decided]
    return all(name in now.by_decider and gtrid not in now.by_decider[name] for name in deciders)
