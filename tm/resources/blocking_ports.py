"""BlockingPorts: a two-phase commit on resource managers and the decision log, for the calling thread.

Overlap: of several branches, the requests to resource managers that take TMASYNC are all sent first, then the others
are asked one after another, then the replies are collected. A resource manager that takes no more at a time
(XAER_ASYNC, which means that nothing was asked) has its outstanding replies collected first, and is then sent the next
request.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from tm.log import Branch, LogError, LogFull
from tm.log.decider_record import encode_branches
from tm.outcome import named
from tm.two_phase.ports import AskedBranches
from tm.two_phase.return_codes import Verb
from xa import TMASYNC, TMNOFLAGS, Code, Gtrid, Handle, XaError, XaMisuse, xa_error
from xa.outcome_notes import MAX_NOTE, BranchOutcome
from xa.telemetry.log_lines import about

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tm.log import Decision, DecisionLog, Heuristic
    from tm.resources import Resource
    from tm.two_phase.ports import Answer
    from xa.outcome_notes import OutcomeNotes

logger = logging.getLogger("xabridge.tm")

_OK: Final = Code.XA_OK
_OVERLAPPED: Final = frozenset({Verb.PREPARE, Verb.COMMIT, Verb.COMMIT_AGAIN, Verb.ROLLBACK})
"""The verbs that wait for the other side, so that asking several branches at a time pays."""


class BlockingPorts:
    """`tm.two_phase.ports.Ports` that block: awaiting one never suspends. For any thread."""

    __slots__ = ("_holds", "_log", "_resources", "_sleep")

    def __init__(
        self,
        resources: Mapping[str, Resource],
        log: DecisionLog | None,
        sleep: Callable[[float], None] = time.sleep,
        holds: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """`holds`: whether the lease at the decider has been held since the transaction of this number began."""
        self._resources = resources
        self._log = log
        self._sleep = sleep
        self._holds = holds

    # --- branches -------------------------------------------------------------------------------------------

    async def ask(self, verb: Verb, branches: tuple[Branch, ...], flags: int = 0) -> list[Answer]:
        if len(branches) == 1 or verb not in _OVERLAPPED:
            answered = map(partial(self._send, verb, flags=flags), branches)
            return list(cast("Iterable[Answer]", answered))  # without TMASYNC there are no handles

        answers: list[Answer | Handle | None] = [None] * len(branches)
        try:
            for index, its_flags in self._overlapped(branches, flags):
                answer = self._send(verb, branches[index], its_flags)
                refused = its_flags & TMASYNC and type(answer) is not Handle and _is_full(answer)
                if refused and self._collect_all(index, branches, answers):
                    answer = self._send(verb, branches[index], its_flags)
                answers[index] = answer
        finally:  # an interruption of this thread leaves no operation behind without a waiter
            for index, answer_or_handle in enumerate(answers):
                if type(answer_or_handle) is Handle:
                    answers[index] = self._collect(branches[index], answer_or_handle)

        collected = cast("list[Answer]", answers)
        if collected != [_OK] * len(collected):
            for index, answer in enumerate(collected):
                if _is_full(answer):
                    collected[index] = self._ask_again(verb, branches[index], flags)
        return collected

    async def send(self, verb: Verb, branches: tuple[Branch, ...], leave: str) -> AskedBranches:
        asked = AskedBranches(verb, branches, {}, {})
        sent = False
        try:
            for index, flags in self._overlapped(branches, TMNOFLAGS, leave):
                answer = self._send(verb, branches[index], flags)
                if isinstance(answer, Handle):
                    asked.outstanding[index] = answer
                else:  # one that took no more is asked again by `collect`
                    asked.answers[index] = answer
            sent = True
        finally:  # as in `ask`
            for index in tuple(asked.outstanding):
                if not sent or branches[index].resource != leave:
                    asked.answers[index] = self._collect(branches[index], asked.outstanding.pop(index))
        return asked

    async def collect(self, asked: AskedBranches) -> list[Answer]:
        branches, answers = asked.branches, asked.answers
        for index in tuple(asked.outstanding):
            answers[index] = self._collect(branches[index], asked.outstanding.pop(index))
        for index, branch in enumerate(branches):
            if _is_full(answers[index]):
                answers[index] = self._ask_again(asked.verb, branch, TMNOFLAGS)
        return [answers[index] for index in range(len(branches))]

    def _ask_again(self, verb: Verb, branch: Branch, flags: int) -> Answer:
        """Asks a branch whose resource took no more, because of other threads' operations, or takes none at all."""
        again = self._send(verb, branch, flags)
        return self._collect(branch, again) if isinstance(again, Handle) else again

    def _overlapped(self, branches: tuple[Branch, ...], flags: int, leave: str = "") -> list[tuple[int, int]]:
        """The branches in the order in which they are asked, by index, each with its flags: all that can be sent is
        sent before anything is waited for.

        The last one may as well be waited for at once, unless another one of its resource manager is outstanding: table
        6-5 has no synchronous call beside an asynchronous one. Those of the resource `leave` are not waited for.
        """
        asynchronous: list[tuple[int, int]] = []
        synchronous: list[tuple[int, int]] = []
        sent: set[str] = set()
        last = len(branches) - 1
        for index, branch in enumerate(branches):
            name = branch.resource
            if self._resources[name].overlaps and (index < last or name in sent or name == leave):
                sent.add(name)
                asynchronous.append((index, flags | TMASYNC))
            else:
                synchronous.append((index, flags))
        return asynchronous + synchronous

    def _collect_all(self, full: int, branches: tuple[Branch, ...], answers: list[Answer | Handle | None]) -> bool:
        """Collects what is outstanding at the resource of the branch `full`; whether anything was."""
        name = branches[full].resource
        collected = False
        for index, handle in enumerate(answers):
            if type(handle) is Handle and branches[index].resource == name:
                answers[index] = self._collect(branches[index], handle)
                collected = True
        return collected

    def _send(self, verb: Verb, branch: Branch, flags: int) -> Answer | Handle:
        """Asks one branch; with TMASYNC the answer may be the handle of what is outstanding then."""
        resource = self._resources.get(branch.resource)
        if resource is None:
            return xa_error(Code.XAER_RMFAIL, f"{branch.resource} is not configured", branch.xid)
        try:
            if resource.suspect:
                _open_again(resource, verb, branch)
            answer = resource.routines[verb](branch.xid, resource.rmid, flags)
        except Exception as raised:  # noqa: BLE001 — a resource manager of anybody's: the outcome is unknown
            error = resource.as_xa_error(raised, verb.value, branch.xid)
            if verb is Verb.ROLLBACK and error.code is Code.XAER_PROTO:
                return self._roll_back_again(resource, branch, flags)
            return error
        if type(answer) is Code or (flags & TMASYNC and type(answer) is Handle):
            return answer
        return resource.as_xa_error(_no_answer(answer), verb.value, branch.xid)

    def _roll_back_again(self, resource: Resource, branch: Branch, flags: int) -> Answer | Handle:
        """The application's session may have lost the connection without a word to the manager: the thread of
        control has to open again before the resource manager takes any verb."""
        resource.lost("rollback was refused")
        try:
            _open_again(resource, Verb.ROLLBACK, branch)
            return resource.routines[Verb.ROLLBACK](branch.xid, resource.rmid, flags)
        except Exception as raised:  # noqa: BLE001 — as above
            return resource.as_xa_error(raised, "rollback", branch.xid)

    def _collect(self, branch: Branch, handle: Handle) -> Answer:
        resource = self._resources[branch.resource]
        try:
            completion = resource.rm.complete(handle, resource.rmid, TMNOFLAGS)
            error, code = completion.error, completion.code
        except Exception as raised:  # noqa: BLE001 — as above
            return resource.as_xa_error(raised, "complete", branch.xid)
        if error is not None:
            resource.failed(error)
            return error
        return code

    async def decide(self, branch: Branch, decision: Decision) -> Answer:
        resource = self._resources[branch.resource]
        record = encode_branches(decision.branches)
        try:
            answer = resource.decider.decide(branch.xid, resource.rmid, record)
        except Exception as raised:  # noqa: BLE001 — as above
            return resource.as_xa_error(raised, "decide", branch.xid)
        return answer if type(answer) is Code else resource.as_xa_error(_no_answer(answer), "decide", branch.xid)

    # --- notes of outcomes ----------------------------------------------------------------------------------

    async def with_notes(self, branches: tuple[Branch, ...]) -> tuple[Branch, ...]:
        noted = list(branches)
        for index, branch in enumerate(branches):
            resource = self._resources[branch.resource]
            if resource.notes is not None:
                note = _note_of(resource, resource.notes, branch)
                noted[index] = Branch(branch.resource, branch.xid, note)
        return tuple(noted)

    async def outcomes(self, branches: tuple[Branch, ...]) -> list[BranchOutcome | XaError]:
        outcomes: list[BranchOutcome | XaError] = [BranchOutcome.UNKNOWN] * len(branches)
        by_resource: dict[str, list[int]] = {}
        for index, branch in enumerate(branches):
            if branch.note:
                by_resource.setdefault(branch.resource, []).append(index)

        for name, places in by_resource.items():
            resource = self._resources.get(name)
            if resource is None or resource.notes is None:
                continue
            answers = _outcomes(resource, resource.notes, [branches[index].note for index in places])
            for index, outcome in zip(places, answers, strict=True):
                outcomes[index] = outcome
        return outcomes

    # --- log ------------------------------------------------------------------------------------------------

    async def force(self, decision: Decision) -> LogError | None:
        if self._log is None:
            return LogFull("there is no decision log, because the decider keeps the decision")
        try:
            self._log.decide(decision)
        except LogError as error:
            return error
        return None

    async def note(self, heuristic: Heuristic) -> LogError | None:
        branch = heuristic.branch
        logger.error(
            "%s (xid %s) on %s was completed on its own: %s",
            named(branch.xid.gtrid), branch.xid, branch.resource, heuristic.code.name,
            extra=about(transaction=named(branch.xid.gtrid), branch=branch.xid, resource=branch.resource),
        )  # fmt: skip
        if self._log is None:
            return LogFull("there is no log to note it in: configure one")
        try:
            self._log.note_heuristic(heuristic)
        except LogError as error:
            return error
        return None

    async def end(self, decision: Decision, decider: str | None = None) -> None:
        """Notes the end. When it can't be noted now, recovery does it again."""
        if decider is not None:
            resource = self._resources[decider]
            try:
                resource.decider.end_decisions([decision.gtrid], resource.rmid)
            except Exception as raised:  # noqa: BLE001 — as above
                error = resource.as_xa_error(raised, "end_decisions")
                name = named(decision.gtrid)
                logger.warning("%s: its end could not be noted: %s", name, error, extra=about(transaction=name))
        elif self._log is not None:
            try:
                self._log.end(decision.gtrid)
            except LogError as error:
                name = named(decision.gtrid)
                logger.warning("%s: its end could not be noted: %s", name, error, extra=about(transaction=name))

    async def pause(self, seconds: float) -> None:
        self._sleep(seconds)

    async def is_held(self, gtrid: bytes, decider: str | None) -> bool:
        if decider is not None:
            return self._holds(Gtrid.decode(gtrid).sequence)
        return self._log is not None and self._log.held()


def _note_of(resource: Resource, rm: OutcomeNotes, branch: Branch) -> bytes:
    """The note of a branch. Its transaction is decided without one, too."""
    try:
        note = rm.outcome_note(branch.xid, resource.rmid)
        if len(note) <= MAX_NOTE:
            return note
        resource.as_xa_error(ValueError(f"a note of {len(note)} octets"), "outcome_note", branch.xid)
    except Exception as raised:  # noqa: BLE001 — a resource manager of anybody's
        resource.as_xa_error(raised, "outcome_note", branch.xid)
    return b""


def _outcomes(resource: Resource, rm: OutcomeNotes, notes: Sequence[bytes]) -> Sequence[BranchOutcome | XaError]:
    """What one resource manager tells of its notes; for each the error, where it can't be asked now."""
    try:
        if resource.suspect:
            resource.reopen()
        answers = rm.outcomes(notes, resource.rmid)
        if len(answers) == len(notes):
            return answers
        error = resource.as_xa_error(ValueError(f"{len(answers)} outcomes of {len(notes)} notes"), "outcomes")
    except Exception as raised:  # noqa: BLE001 — as above
        error = resource.as_xa_error(raised, "outcomes")
    return [error] * len(notes)


def _is_full(answer: object) -> bool:
    """Whether too many operations are outstanding for another one."""
    return type(answer) is XaMisuse and answer.code is Code.XAER_ASYNC


def _open_again(resource: Resource, verb: Verb, branch: Branch) -> None:
    """Opens the resource, where that has to be done before the verb. XAER_RMFAIL: it can't be opened, for whatever
    reason. What `open` gets says nothing of the branch: its XAER_RMERR, a password that is refused say, would mean
    of a commit that the work was rolled back."""
    try:
        resource.reopen()
    except XaError as error:
        message = f"{verb.value}: {resource.name} can't be opened: {error.message}"
        raise xa_error(Code.XAER_RMFAIL, message, branch.xid) from error


def _no_answer(answer: object) -> TypeError:
    """The error of a verb that returned what is neither a Code nor, with TMASYNC, a Handle."""
    return TypeError(f"it returned {answer!r}")
