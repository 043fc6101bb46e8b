"""Performs the effects of a completion on resource managers and the log: the blocking shell.

Overlap: of several branches, the requests to resource managers that take TMASYNC are all sent first, then the
others are asked one after another, then the replies are collected. One that takes no more at a time (XAER_ASYNC:
nothing was asked) has its outstanding replies collected, and is then sent the next.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from tm.effects import Call, Decide, End, Force, Held, Note, Pause
from tm.log import LogError, LogFull
from tm.outcome import named
from tm.record import encode_branches
from tm.verdicts import Verb
from xa import TMASYNC, TMNOFLAGS, Code, Gtrid, Handle, XaError, XaMisuse, xa_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tm.effects import Answer, Effect
    from tm.lease import Lease
    from tm.log import Branch, DecisionLog
    from tm.resources import Resource

logger = logging.getLogger("xabridge.tm")

_OK: Final = Code.XA_OK
_OVERLAPPED: Final = frozenset({Verb.PREPARE, Verb.COMMIT, Verb.COMMIT_AGAIN, Verb.ROLLBACK})
"""What waits for the other side, so that asking several branches at a time pays."""


class Performer:
    """Performs effects for any thread."""

    __slots__ = ("_lease", "_log", "_resources", "_sleep")

    def __init__(
        self,
        resources: Mapping[str, Resource],
        log: DecisionLog | None,
        sleep: Callable[[float], None] = time.sleep,
        lease: Lease | None = None,
    ) -> None:
        self._resources = resources
        self._log = log
        self._sleep = sleep
        self._lease = lease

    def perform(self, effect: Effect) -> Any:
        """The answer to `effect`."""
        if type(effect) is Call:
            verb, branches, flags = effect.verb, effect.branches, effect.flags
            if len(branches) > 1 and verb in _OVERLAPPED:
                return self._overlapped(verb, branches, flags)
            return [self._ask(verb, branch, flags) for branch in branches]
        return getattr(self, _METHODS[type(effect)])(effect)

    # --- branches -------------------------------------------------------------------------------------------

    def call(self, effect: Call) -> list[Answer]:
        """Asks the verb of every branch."""
        answers: list[Answer] = self.perform(effect)
        return answers

    def _overlapped(self, verb: Verb, branches: tuple[Branch, ...], flags: int) -> list[Answer]:
        """All that can be sent is sent before anything is waited for.

        One may as well be waited for at once, where nothing of its resource manager is outstanding: table 6-5 has no
        synchronous call beside an asynchronous one.
        """
        answers: list[Any] = [None] * len(branches)
        sent: set[str] = set()
        left = len(branches)
        try:
            for index, branch in enumerate(branches):
                left -= 1
                name = branch.resource
                if self._resources[name].overlaps and (left or name in sent):
                    sent.add(name)
                    answer = self._ask(verb, branch, flags | TMASYNC)
                    if _is_full(answer) and self._collect_all(name, branches, answers):
                        answer = self._ask(verb, branch, flags | TMASYNC)
                    answers[index] = answer
            for index, branch in enumerate(branches):
                if answers[index] is None:
                    answers[index] = self._ask(verb, branch, flags)
        finally:  # an interruption of this thread leaves no operation behind that nobody waits for
            for index, answer in enumerate(answers):
                if type(answer) is Handle:
                    answers[index] = self._collect(branches[index], answer)
        if answers != [_OK] * len(answers):
            for index, answer in enumerate(answers):
                if _is_full(answer):  # of other threads' operations, or it takes none at all
                    answers[index] = self._ask(verb, branches[index], flags)
        return answers

    def _collect_all(self, name: str, branches: tuple[Branch, ...], answers: list[Any]) -> bool:
        """Collects what is outstanding at a resource; whether anything was."""
        collected = False
        for index, answer in enumerate(answers):
            if type(answer) is Handle and branches[index].resource == name:
                answers[index] = self._collect(branches[index], answer)
                collected = True
        return collected

    def _ask(self, verb: Verb, branch: Branch, flags: int) -> Answer | Handle:
        resource = self._resources.get(branch.resource)
        if resource is None:
            return xa_error(Code.XAER_RMFAIL, f"{branch.resource} is not configured", branch.xid)
        try:
            if resource.suspect:
                _open_again(resource, verb, branch)
            answer = resource.routines[verb](branch.xid, resource.rmid, flags)
        except Exception as raised:  # noqa: BLE001 — a resource manager of anybody's: the outcome is unknown
            error = resource.heard(raised, verb.value, branch.xid)
            if verb is Verb.ROLLBACK and error.code is Code.XAER_PROTO:
                return self._roll_back_again(resource, branch, flags)
            return error
        if type(answer) is Code or (flags & TMASYNC and type(answer) is Handle):
            return answer
        return resource.heard(_no_answer(answer), verb.value, branch.xid)

    def _roll_back_again(self, resource: Resource, branch: Branch, flags: int) -> Answer | Handle:
        """The application's session may have lost the connection without a word to the manager: the thread of
        control has to open again before the resource manager takes any verb."""
        resource.lost("rollback was refused")
        try:
            _open_again(resource, Verb.ROLLBACK, branch)
            return resource.routines[Verb.ROLLBACK](branch.xid, resource.rmid, flags)
        except Exception as raised:  # noqa: BLE001 — as above
            return resource.heard(raised, "rollback", branch.xid)

    def _collect(self, branch: Branch, handle: Handle) -> Answer:
        resource = self._resources[branch.resource]
        try:
            completion = resource.rm.complete(handle, resource.rmid, TMNOFLAGS)
            error, code = completion.error, completion.code
        except Exception as raised:  # noqa: BLE001 — as above
            return resource.heard(raised, "complete", branch.xid)
        if error is not None:
            resource.failed(error)
            return error
        return code

    def decide(self, effect: Decide) -> Answer:
        """Lets the decider commit work and decision."""
        resource = self._resources[effect.branch.resource]
        record = encode_branches(effect.decision.branches)
        try:
            answer = resource.decider.decide(effect.branch.xid, resource.rmid, record)
        except Exception as raised:  # noqa: BLE001 — as above
            return resource.heard(raised, "decide", effect.branch.xid)
        return answer if type(answer) is Code else resource.heard(_no_answer(answer), "decide", effect.branch.xid)

    # --- log ------------------------------------------------------------------------------------------------

    def force(self, effect: Force) -> LogError | None:
        """Makes the decision durable."""
        if self._log is None:
            return LogFull("there is no decision log; the decision belongs into the decider")
        try:
            self._log.decide(effect.decision)
        except LogError as error:
            return error
        return None

    def note(self, effect: Note) -> LogError | None:
        """Makes a heuristic outcome durable."""
        branch = effect.heuristic.branch
        logger.error(
            "%s (xid %s) on %s was completed on its own: %s",
            named(branch.xid.gtrid), branch.xid, branch.resource, effect.heuristic.code.name,
        )  # fmt: skip
        if self._log is None:
            return LogFull("there is no log to note it in; the resource manager remembers it")
        try:
            self._log.note_heuristic(effect.heuristic)
        except LogError as error:
            return error
        return None

    def end(self, effect: End) -> None:
        """Notes that a decision has ended. Lazy: when it can't be noted now, recovery does it again."""
        if effect.decider is not None:
            resource = self._resources[effect.decider]
            try:
                resource.decider.end_decisions([effect.decision.gtrid], resource.rmid)
            except Exception as raised:  # noqa: BLE001 — as above
                error = resource.heard(raised, "end_decisions")
                logger.warning("%s: its end could not be noted: %s", named(effect.decision.gtrid), error)
        elif self._log is not None:
            try:
                self._log.end(effect.decision.gtrid)
            except LogError as error:
                logger.warning("%s: its end could not be noted: %s", named(effect.decision.gtrid), error)

    def held(self, effect: Held) -> bool:
        """Whether nobody else can have finished the transaction."""
        if effect.decider is not None:
            return self._lease is not None and self._lease.held(Gtrid.decode(effect.gtrid).sequence)
        return self._log is not None and self._log.held()

    def pause(self, effect: Pause) -> None:
        """Waits."""
        self._sleep(effect.seconds)


_METHODS: Final[dict[type, str]] = {
    Decide: "decide",
    Force: "force",
    Note: "note",
    End: "end",
    Pause: "pause",
    Held: "held",
}


def _is_full(answer: object) -> bool:
    """Whether too many operations are outstanding for another one."""
    return type(answer) is XaMisuse and answer.code is Code.XAER_ASYNC


def _open_again(resource: Resource, verb: Verb, branch: Branch) -> None:
    """Opens the resource, where that has to be done before the verb. XAER_RMFAIL: it can't be opened, for whatever
    reason. What `open` is told says nothing of the branch: its XAER_RMERR, a password that is refused say, would mean
    of a commit that the work was rolled back."""
    try:
        resource.mend()
    except XaError as error:
        told = f"{verb.value}: {resource.name} can't be opened: {error.message}"
        raise xa_error(Code.XAER_RMFAIL, told, branch.xid) from error


def _no_answer(answer: object) -> TypeError:
    """For a verb that returned what is neither a Code nor, with TMASYNC, a Handle."""
    return TypeError(f"it returned {answer!r}")
