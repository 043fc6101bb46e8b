"""Performs the effects of a completion on resource managers and the log: the blocking shell.

Overlap: of several branches, the requests to resource managers that take TMASYNC are all sent first, then the
others are asked one after another, then the replies are collected.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from tm.effects import Call, Decide, End, Force, Note, Pause
from tm.log import LogError, LogFull
from tm.record import encode_branches
from tm.verdicts import Verb
from xa import TMASYNC, TMNOFLAGS, Code, Handle, XaError, XaMisuse, xa_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tm.effects import Answer, Effect
    from tm.log import Branch, DecisionLog
    from tm.resources import Resource
    from xa import Xid

logger = logging.getLogger("xabridge.tm")

_OVERLAPPED: Final = frozenset({Verb.PREPARE, Verb.COMMIT, Verb.COMMIT_AGAIN, Verb.ROLLBACK})
"""What waits for the other side, so that asking several branches at a time pays."""


class Performer:
    """Performs effects for any thread."""

    __slots__ = ("_log", "_resources", "_sleep")

    def __init__(
        self,
        resources: Mapping[str, Resource],
        log: DecisionLog | None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._resources = resources
        self._log = log
        self._sleep = sleep

    def perform(self, effect: Effect) -> Any:
        """The answer to `effect`."""
        if type(effect) is Call:
            return self.call(effect)
        return getattr(self, _METHODS[type(effect)])(effect)

    # --- branches -------------------------------------------------------------------------------------------

    def call(self, effect: Call) -> list[Answer]:
        """Asks the verb of every branch."""
        verb, branches, flags = effect.verb, effect.branches, effect.flags
        if len(branches) > 1 and verb in _OVERLAPPED:
            return self._overlapped(verb, branches, flags)
        answers: list[Answer] = [self._ask(verb, branch, flags) for branch in branches]  # type: ignore[misc]  # no TMASYNC
        return answers

    def _overlapped(self, verb: Verb, branches: tuple[Branch, ...], flags: int) -> list[Answer]:
        """All that can be sent is sent before anything is waited for.

        One may as well be waited for at once, where nothing of its resource manager is outstanding: table 6-5 has no
        synchronous call beside an asynchronous one.
        """
        answers: list[Any] = [None] * len(branches)
        sent: set[str] = set()
        last = len(branches) - 1
        try:
            for index, branch in enumerate(branches):
                name = branch.resource
                if self._resources[name].overlaps and (index < last or name in sent):
                    sent.add(name)
                    answers[index] = self._ask(verb, branch, flags | TMASYNC)
            for index, branch in enumerate(branches):
                if answers[index] is None and branch.resource not in sent:
                    answers[index] = self._ask(verb, branch, flags)
        finally:  # an interruption of this thread leaves no operation behind that nobody waits for
            for index, branch in enumerate(branches):
                if type(answers[index]) is Handle:
                    answers[index] = self._collect(branch, answers[index])
        for index, answer in enumerate(answers):
            if type(answer) is XaMisuse and answer.code is Code.XAER_ASYNC:  # as many as it takes were outstanding
                answers[index] = self._ask(verb, branches[index], flags)
        return answers

    def _ask(self, verb: Verb, branch: Branch, flags: int) -> Answer | Handle:
        resource = self._resources.get(branch.resource)
        if resource is None:
            return xa_error(Code.XAER_RMFAIL, f"{branch.resource} is not configured", branch.xid)
        try:
            if resource.suspect:
                resource.mend()
            return resource.routines[verb](branch.xid, resource.rmid, flags)
        except XaError as error:
            resource.failed(error)
            return error
        except Exception as error:  # noqa: BLE001 — a resource manager of anybody's: the outcome is unknown
            return _broken_promise(resource, verb.value, branch.xid, error)

    def _collect(self, branch: Branch, handle: Handle) -> Answer:
        resource = self._resources[branch.resource]
        try:
            completion = resource.rm.complete(handle, resource.rmid, TMNOFLAGS)
        except XaError as error:
            resource.failed(error)
            return error
        except Exception as error:  # noqa: BLE001 — a resource manager of anybody's: the outcome is unknown
            return _broken_promise(resource, "complete", branch.xid, error)
        if completion.error is not None:
            resource.failed(completion.error)
            return completion.error
        return completion.code

    def decide(self, effect: Decide) -> Answer:
        """Lets the decider commit work and decision."""
        resource = self._resources[effect.branch.resource]
        record = encode_branches(effect.decision.branches)
        try:
            return resource.decider.decide(effect.branch.xid, resource.rmid, record)
        except XaError as error:
            resource.failed(error)
            return error
        except Exception as error:  # noqa: BLE001 — a resource manager of anybody's: the outcome is unknown
            return _broken_promise(resource, "decide", effect.branch.xid, error)

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
        logger.error("%s on %s was completed on its own: %s", branch.xid, branch.resource, effect.heuristic.code.name)
        if self._log is None:
            return LogFull("there is no log to note it in; the resource manager remembers it")
        try:
            self._log.note_heuristic(effect.heuristic)
        except LogError as error:
            return error
        return None

    def end(self, effect: End) -> None:
        """Notes that a decision has ended. Lazy: when it can't be noted now, recovery does it again."""
        try:
            if effect.decider is not None:
                resource = self._resources[effect.decider]
                resource.decider.end_decisions([effect.decision.gtrid], resource.rmid)
            elif self._log is not None:
                self._log.end(effect.decision.gtrid)
        except (LogError, XaError) as error:
            logger.warning("the end of %s could not be noted: %s", effect.decision.gtrid.hex(), error)

    def pause(self, effect: Pause) -> None:
        """Waits."""
        self._sleep(effect.seconds)


_METHODS: Final[dict[type, str]] = {
    Decide: "decide",
    Force: "force",
    Note: "note",
    End: "end",
    Pause: "pause",
}


def _broken_promise(resource: Resource, routine: str, xid: Xid, error: Exception) -> XaError:
    """What an exception that the contract does not know comes to: nothing may be assumed about the call."""
    message = "%s: %s(%s) raised what its contract does not name"
    logger.error(message, resource.name, routine, xid, exc_info=error)
    failure = xa_error(Code.XAER_RMFAIL, f"{routine} raised {type(error).__name__}: {error}", xid)
    resource.failed(failure)
    return failure
