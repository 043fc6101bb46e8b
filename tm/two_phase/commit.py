"""TwoPhaseCommit: the two-phase commit of one global transaction, as coroutines without I/O.

commit():
 1. End every association. The end of a branch that will be prepared may be sent with the prepare, if no other thread is
    associated with the branch. A branch that can't be ended refuses.
 2. If there is only one branch, commit it in one phase.
 3. Prepare all branches but the decider's, overlapped. After a refusal, roll back the remaining branches.
 4. If no branch has anything to commit, it is done (the decider commits in one phase). If one branch is prepared and
    there is no decider, no decision is needed, because the branch's own commit is the decision.
 5. Make the decision durable: in the log, or in the decider together with its work. THE COMMIT POINT.
 6. Commit the prepared branches, overlapped. Recovery commits the branches that can't be reached now. If a resource
    manager does not know a branch any more, its outcome is a hazard, unless another process of the node may have
    recovered the decision meanwhile and committed the branch, because the lease of this process has run out (it was
    stopped, say) or its log was taken over. A resource manager that has given a note of the branch with its vote is
    asked for the outcome first.
 7. If every branch is finished, note lazily that the decision has ended.

The answers of step 6 need not be waited for at once. If `leaves` names a resource, the coroutine suspends itself when
every commit was sent, all others have answered XA_OK, and the answers of this resource are outstanding. The caller that
resumes it waits for them, and goes on as if it had never stopped.

rollback(): end every association with failure, roll back every branch. Nothing is logged, because recovery rolls back
every branch without a decision.

`tm.two_phase.return_codes.MEANING` gives the meaning of every answer. XA_OK means DONE at every verb; so if all answers
are XA_OK, which is nearly always the case, no answer is looked up. The state moves by `tm.two_phase.states.GLOBAL`
only, and only after the port call that justifies it has returned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tm.log import Branch, Decision, Heuristic, LogStopped
from tm.outcome import Outcome, Reason, Verdict
from tm.two_phase.ports import code_of, text_of
from tm.two_phase.return_codes import HEURISTIC_CODE, MEANING, AnswerMeaning, Verb
from tm.two_phase.states import GLOBAL, GlobalState, GlobalVerb
from xa import TMFAIL, TMONEPHASE, TMSUCCESS, Code, xa_error
from xa.coroutines import suspension
from xa.machine import advance
from xa.outcome_notes import BranchOutcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tm.log import LogError
    from tm.two_phase.ports import Answer, Ports
    from xa import XaError

COMMIT_PAUSES_S: Final = (0.01, 0.1)
"""How long to wait before each further try to commit a branch that could not be reached. Then recovery takes over."""

_OK: Final = Code.XA_OK
_END, _END_LATE = Verb.END, Verb.END_LATE
_PREPARE, _COMMIT = Verb.PREPARE, Verb.COMMIT  # those of every transaction, cheap to look up
_MARKED: Final = GlobalState.MARKED
_COMMITTED: Final = Verdict.COMMITTED
_CERTAIN: Final = Verdict.COMMITTED, Verdict.ROLLED_BACK
_ASKED, _DECIDED, _FINISHED = (
    GLOBAL.column(verb) for verb in (GlobalVerb.COMMIT, GlobalVerb.DECIDE, GlobalVerb.FINISH)
)

_AGREES: Final = {
    Verb.COMMIT: AnswerMeaning.HEUR_COMMITTED,
    Verb.ROLLBACK: AnswerMeaning.HEUR_ROLLED_BACK,
}
_AGAINST: Final = {
    Verb.COMMIT: Verdict.HEUR_ROLLED_BACK,
    Verb.ROLLBACK: Verdict.HEUR_COMMITTED,
}
"""The verdict when everybody did the opposite of what was asked."""
_CAME_TO: Final = {
    AnswerMeaning.HEUR_COMMITTED: Verdict.COMMITTED,
    AnswerMeaning.HEUR_ROLLED_BACK: Verdict.ROLLED_BACK,
    AnswerMeaning.HEUR_MIXED: Verdict.MIXED,
    AnswerMeaning.HEUR_HAZARD: Verdict.HAZARD,
    AnswerMeaning.LOST_ROLLED_BACK: Verdict.ROLLED_BACK,
    AnswerMeaning.LOST_HAZARD: Verdict.HAZARD,
}
"""The outcome of a branch that its resource manager completed heuristically."""


class TwoPhaseCommit:
    """One transaction on its way to its outcome; `commit` or `rollback` is called once.

    `branches` are its branches without the decider's. `associations` are the (resource, xid) pairs that are still
    associated, in the order in which they were made; `late` says that each of them is the only one of its branch. With
    `stops_at_decision` the coroutine suspends itself once, when the decision is durable and no branch was asked to
    commit yet; with `leaves`, once when every branch was asked to commit (step 6).

    `came_to` collects what became of the branches that had work: COMMITTED, ROLLED_BACK, MIXED, HAZARD. `uncertain`: a
    branch that is not pending may be prepared, or listed, all the same: its vote or its end came as an error. `asked`:
    a branch was asked to prepare, or to commit in one phase, or may have been.
    """

    __slots__ = (
        "_ports",
        "asked",
        "associations",
        "branches",
        "came_to",
        "damage",
        "decider",
        "gtrid",
        "late",
        "leaves",
        "pending",
        "reasons",
        "state",
        "stops_at_decision",
        "uncertain",
    )

    def __init__(
        self,
        ports: Ports,
        gtrid: bytes,
        branches: Sequence[Branch],
        associations: Sequence[Branch],
        decider: Branch | None = None,
        state: GlobalState = GlobalState.ACTIVE,
        *,
        late: bool = False,
        stops_at_decision: bool = False,
        leaves: str = "",
    ) -> None:
        self._ports = ports
        self.gtrid = gtrid
        self.branches = tuple(branches)
        self.associations = tuple(associations)
        self.decider = decider
        self.state = state
        self.late = late
        self.stops_at_decision = stops_at_decision
        self.leaves = leaves
        self.reasons: list[Reason] = []
        self.damage: list[tuple[Branch, AnswerMeaning]] = []
        self.came_to: set[Verdict] = set()
        self.pending: list[Branch] = []
        self.uncertain = False
        self.asked = False

    # --- the two ways ---------------------------------------------------------------------------------------

    async def commit(self) -> Outcome:
        """Commits, unless the transaction is marked rollback-only or somebody refuses."""
        if self.state is _MARKED:
            return await self.rollback()
        self.state = _ASKED[self.state]
        associations, yes = self.associations, self.branches
        if associations:
            verb = _END_LATE if self.late and len(yes) + (self.decider is not None) > 1 else _END
            answers = await self._ports.ask(verb, associations, TMSUCCESS)
            if answers != [_OK] * len(associations) and self._refusals(verb, associations, answers):
                return await self._refuse(self.everybody())

        self.asked = True
        if self.decider is None and len(yes) == 1:
            return await self._one_phase(yes[0])
        answers = await self._ports.ask(_PREPARE, yes) if yes else []
        if answers != [_OK] * len(yes):
            yes, left = self._votes(answers)
            if self.reasons:
                return await self._refuse(left + self._decider())

        if self.decider is not None:
            return await self._decide_there(self.decider, yes)
        if not yes:
            return self._finish(GlobalVerb.NO_WORK, Verdict.COMMITTED, decided=True)
        if len(yes) == 1:
            return await self._commit_alone(yes[0])
        yes = await self._ports.with_notes(yes)
        decision = Decision(self.gtrid, yes)
        refused = await self._ports.force(decision)  # the commit point: from its return on, it is committed
        if refused is not None:
            return await self._not_decided(refused, yes)
        await self._decided()
        answers = await (self._tell(yes) if self.leaves else self._ports.ask(_COMMIT, yes))
        if answers != [_OK] * len(yes):
            return await self._commit_all(decision, None, _COMMIT, answers)
        await self._ports.end(decision)
        self.state = _FINISHED[self.state]
        return Outcome(self.gtrid, _COMMITTED, True, (), (), tuple(self.reasons))

    async def rollback(self, *reasons: Reason) -> Outcome:
        """Rolls back."""
        self.reasons += reasons
        self._move(GlobalVerb.ROLLBACK)
        if self.associations:
            await self._ports.ask(Verb.END, self.associations, TMFAIL)
        return await self._roll_back(self.everybody())

    # --- before the decision --------------------------------------------------------------------------------

    def everybody(self) -> tuple[Branch, ...]:
        """Every branch, the decider's too."""
        return self.branches + self._decider()

    def _decider(self) -> tuple[Branch, ...]:
        return (self.decider,) if self.decider is not None else ()

    def _refusals(self, verb: Verb, branches: Iterable[Branch], answers: Iterable[Answer]) -> bool:
        row = MEANING[verb]
        for branch, answer in zip(branches, answers, strict=True):
            if row[code_of(answer)] is not AnswerMeaning.DONE:
                self.reasons.append(Reason(branch, answer))
        return bool(self.reasons)

    def _votes(self, answers: Iterable[Answer]) -> tuple[tuple[Branch, ...], tuple[Branch, ...]]:
        """Who voted yes; who has a branch left, to be committed or rolled back."""
        yes: list[Branch] = []
        left: list[Branch] = []
        row = MEANING[Verb.PREPARE]

        for branch, answer in zip(self.branches, answers, strict=True):
            meaning = row[code_of(answer)]
            if meaning is AnswerMeaning.DONE:
                yes.append(branch)
                left.append(branch)
            elif meaning is not AnswerMeaning.READ_ONLY:
                self.reasons.append(Reason(branch, answer))
                if meaning is AnswerMeaning.ROLLED_BACK:
                    self.came_to.add(Verdict.ROLLED_BACK)
                else:
                    left.append(branch)
                    self.uncertain = True
        return tuple(yes), tuple(left)

    async def _refuse(self, left: tuple[Branch, ...]) -> Outcome:
        self._move(GlobalVerb.REFUSE)
        return await self._roll_back(left)

    async def _one_phase(self, branch: Branch) -> Outcome:
        (answer,) = await self._ports.ask(Verb.COMMIT_ONE_PHASE, (branch,), TMONEPHASE)
        meaning = MEANING[Verb.COMMIT_ONE_PHASE][code_of(answer)]
        if meaning is AnswerMeaning.DONE:
            return self._finish(GlobalVerb.ONE_PHASE, Verdict.COMMITTED, decided=True)
        self.reasons.append(Reason(branch, answer))
        if meaning is AnswerMeaning.ROLLED_BACK:
            return await self._refuse(())
        if meaning is AnswerMeaning.REFUSED:
            return await self._refuse((branch,))
        if meaning is AnswerMeaning.LATER:
            return self._finish(GlobalVerb.LOSE, Verdict.UNKNOWN, decided=None)
        return await self._alone_on_its_own(branch, meaning)

    async def _alone_on_its_own(self, branch: Branch, meaning: AnswerMeaning) -> Outcome:
        """The only branch that had anything to commit was completed on its own."""
        await self._hurt(Verb.COMMIT, branch, meaning)
        if not self.damage:
            return self._finish(GlobalVerb.ONE_PHASE, Verdict.COMMITTED, decided=True)
        return self._finish(GlobalVerb.DAMAGE, self._summary(Verb.COMMIT), decided=True)

    async def _commit_alone(self, branch: Branch) -> Outcome:
        """One prepared branch, everybody else read-only: its own commit decides. Only when that commit's answer is
        lost is the decision logged, so that recovery commits the branch, should it be prepared still."""
        (answer,) = await self._ports.ask(Verb.COMMIT, (branch,))
        if code_of(answer) is Code.XAER_NOTA:
            (answer,) = await self._clarified(await self._ports.with_notes((branch,)), (answer,))
        meaning = MEANING[Verb.COMMIT][code_of(answer)]
        if meaning is AnswerMeaning.DONE:
            return self._finish(GlobalVerb.ONE_PHASE, Verdict.COMMITTED, decided=True)
        self.reasons.append(Reason(branch, answer))
        if meaning is AnswerMeaning.LOST_ROLLED_BACK:
            self.uncertain = True
            return await self._refuse(())
        if code_of(answer) is Code.XAER_NOTA and not await self._ports.is_held(self.gtrid, None):
            self.pending = [branch]  # a node that took the log over meanwhile has found no decision there
            return self._finish(GlobalVerb.LOSE, Verdict.UNKNOWN, decided=None)
        if meaning is not AnswerMeaning.LATER:
            return await self._alone_on_its_own(branch, meaning)

        decision = Decision(self.gtrid, await self._ports.with_notes((branch,)))
        refused = await self._ports.force(decision)
        if refused is not None:
            self.reasons.append(Reason(None, refused))
            self.pending = [branch]
            return self._finish(GlobalVerb.LOSE, Verdict.UNKNOWN, decided=None)
        await self._decided()
        answers = await self._ports.ask(Verb.COMMIT_AGAIN, decision.branches)
        return await self._commit_all(decision, None, Verb.COMMIT_AGAIN, answers)

    # --- the decision ---------------------------------------------------------------------------------------

    async def _decided(self) -> None:
        """The decision is durable."""
        self.state = _DECIDED[self.state]
        if self.stops_at_decision:
            await suspension()

    async def _not_decided(self, refused: LogError, yes: tuple[Branch, ...]) -> Outcome:
        """The log did not take the decision, or can't tell whether it did."""
        self.reasons.append(Reason(None, refused))
        if isinstance(refused, LogStopped):
            self.pending = list(yes)
            return self._finish(GlobalVerb.LOSE, Verdict.UNKNOWN, decided=None)
        return await self._refuse(yes)

    async def _decide_there(self, decider: Branch, yes: tuple[Branch, ...]) -> Outcome:
        if not yes:
            return await self._one_phase(decider)
        yes = await self._ports.with_notes(yes)
        decision = Decision(self.gtrid, yes)
        answer = await self._ports.decide(decider, decision)  # the commit point, in the decider
        meaning = MEANING[Verb.DECIDE][code_of(answer)]
        if meaning is AnswerMeaning.DONE:
            await self._decided()
            answers = await (self._tell(yes) if self.leaves else self._ports.ask(_COMMIT, yes))
            return await self._commit_all(decision, decider.resource, _COMMIT, answers)

        self.reasons.append(Reason(decider, answer))
        if meaning is AnswerMeaning.LATER:
            self.pending = list(yes)
            return self._finish(GlobalVerb.LOSE, Verdict.UNKNOWN, decided=None)
        if meaning is AnswerMeaning.ROLLED_BACK:
            self.came_to.add(Verdict.ROLLED_BACK)
            return await self._refuse(yes)
        return await self._refuse((*yes, decider))

    # --- after the decision ---------------------------------------------------------------------------------

    async def _tell(self, yes: tuple[Branch, ...]) -> list[Answer]:
        """Step 6 where answers may be left."""
        asked = await self._ports.send(_COMMIT, yes, self.leaves)
        if asked.outstanding and list(asked.answers.values()) == [_OK] * len(asked.answers):
            await suspension()
        return await self._ports.collect(asked)

    async def _commit_all(
        self, decision: Decision, decider: str | None, verb: Verb, answers: Sequence[Answer]
    ) -> Outcome:
        """Does what is left to do after the branches were first asked `verb`, and gave these answers."""
        answered: list[tuple[Branch, AnswerMeaning, Answer]] = []
        asked = decision.branches
        answers = await self._clarified(asked, answers)
        unknown = verb is _COMMIT and Code.XAER_NOTA in map(code_of, answers)
        if unknown and not await self._ports.is_held(self.gtrid, decider):
            verb = Verb.COMMIT_AGAIN
        for pause_s in (*COMMIT_PAUSES_S, None):
            later: list[Branch] = []
            row = MEANING[verb]
            for branch, answer in zip(asked, answers, strict=True):
                meaning = row[code_of(answer)]
                if meaning is AnswerMeaning.LATER:
                    later.append(branch)
                    if pause_s is None:
                        self.reasons.append(Reason(branch, answer))
                else:
                    answered.append((branch, meaning, answer))
            if not later:
                break

            if pause_s is None:
                self.pending = later
            else:
                await self._ports.pause(pause_s)
                asked, verb = tuple(later), Verb.COMMIT_AGAIN
                answers = await self._clarified(asked, await self._ports.ask(verb, asked))
        return await self._settle_commit(decision, decider, answered)

    async def _clarified(self, branches: tuple[Branch, ...], answers: Sequence[Answer]) -> Sequence[Answer]:
        """The answers to a commit; where a resource manager does not know a branch any more, and can tell what became
        of it, as if it had answered that."""
        unknown = [index for index, answer in enumerate(answers) if code_of(answer) is Code.XAER_NOTA]
        if not unknown:
            return answers
        outcomes = await self._ports.outcomes(tuple(branches[index] for index in unknown))
        clear = list(answers)
        for index, outcome in zip(unknown, outcomes, strict=True):
            clear[index] = _answer_for(branches[index], outcome, clear[index])
        return clear

    async def _settle_commit(
        self, decision: Decision, decider: str | None, answered: Sequence[tuple[Branch, AnswerMeaning, Answer]]
    ) -> Outcome:
        noted = True
        if decider is not None or self.pending:
            self.came_to.add(Verdict.COMMITTED)
        for branch, meaning, answer in answered:
            if meaning is AnswerMeaning.DONE:
                self.came_to.add(Verdict.COMMITTED)
            else:
                noted = await self._hurt(Verb.COMMIT, branch, meaning, text_of(answer)) and noted
        if not self.pending and noted:
            await self._ports.end(decision, decider)
        if self.damage:
            return self._finish(GlobalVerb.DAMAGE, self._summary(Verb.COMMIT), decided=True)
        if self.pending:
            return self._finish(GlobalVerb.LEAVE, Verdict.UNKNOWN, decided=True)
        return self._finish(GlobalVerb.FINISH, Verdict.COMMITTED, decided=True)

    async def _roll_back(self, left: tuple[Branch, ...]) -> Outcome:
        if left:
            answers = await self._ports.ask(Verb.ROLLBACK, left)
            row = MEANING[Verb.ROLLBACK]
            for branch, answer in zip(left, answers, strict=True):
                meaning = row[code_of(answer)]
                if meaning is AnswerMeaning.DONE:
                    self.came_to.add(Verdict.ROLLED_BACK)
                    self.uncertain |= self.asked and code_of(answer) is Code.XAER_RMERR
                elif meaning is AnswerMeaning.LATER:
                    self.came_to.add(Verdict.ROLLED_BACK)  # as presumed
                    self.pending.append(branch)
                else:
                    await self._hurt(Verb.ROLLBACK, branch, meaning)

        if self.damage:
            return self._finish(GlobalVerb.DAMAGE, self._summary(Verb.ROLLBACK), decided=False)
        return self._finish(GlobalVerb.FINISH, Verdict.ROLLED_BACK, decided=False)

    # --- heuristics -----------------------------------------------------------------------------------------

    async def _hurt(self, verb: Verb, branch: Branch, meaning: AnswerMeaning, why: str = "") -> bool:
        """A branch was completed on its own. What agrees with the decision is forgotten at once. What does not
        is noted durably, and stays with the resource manager until somebody asks to forget it. Whether all that
        was to be noted is."""
        self.came_to.add(_CAME_TO[meaning])
        self.uncertain = True
        if meaning is _AGREES[verb]:
            await self._ports.ask(Verb.FORGET, (branch,))
            return True
        self.damage.append((branch, meaning))
        refused = await self._ports.note(Heuristic(branch, HEURISTIC_CODE[meaning], why))
        return refused is None

    def has_left_nothing(self, outcome: Outcome) -> bool:
        """Whether, after this outcome of it, no branch can be prepared or listed any more, or ever again. Where none
        was asked to prepare, none can be, whether its rollback was answered or not."""
        return outcome.verdict in _CERTAIN and not (self.uncertain or (self.asked and outcome.pending))

    def heuristics(self) -> tuple[Heuristic, ...]:
        """The damage so far."""
        return tuple(Heuristic(branch, HEURISTIC_CODE[meaning]) for branch, meaning in self.damage)

    def _summary(self, asked: Verb) -> Verdict:
        """The verdict over what the branches came to, where there is damage. Read-only branches don't count."""
        ends = self.came_to
        if Verdict.MIXED in ends or {Verdict.COMMITTED, Verdict.ROLLED_BACK} <= ends:
            return Verdict.MIXED
        return Verdict.HAZARD if Verdict.HAZARD in ends else _AGAINST[asked]

    # --- the end --------------------------------------------------------------------------------------------

    def _move(self, verb: GlobalVerb) -> None:
        self.state = advance(GLOBAL, self.state, verb)

    def _finish(self, verb: GlobalVerb, verdict: Verdict, *, decided: bool | None) -> Outcome:
        self._move(verb)
        return Outcome(
            self.gtrid,
            verdict,
            decided,
            tuple(self.pending),
            self.heuristics(),
            tuple(self.reasons),
        )


def _answer_for(branch: Branch, outcome: BranchOutcome | XaError, answer: Answer) -> Answer:
    """What a resource manager would have answered to a commit of a branch that somebody has completed before, had it
    remembered it."""
    if outcome is BranchOutcome.COMMITTED:
        return _OK
    if outcome is BranchOutcome.ROLLED_BACK:
        return xa_error(Code.XA_RBROLLBACK, "commit: it was prepared, and somebody else has rolled it back", branch.xid)
    if outcome is BranchOutcome.LOST:
        why = "commit: it was prepared, and the resource was restored from an older back-up since"
        return xa_error(Code.XA_RBROLLBACK, why, branch.xid)
    if outcome is BranchOutcome.UNKNOWN:
        return answer
    why = "it is prepared still" if outcome is BranchOutcome.PREPARED else f"its outcome is unknown: {outcome}"
    return xa_error(Code.XA_RETRY, f"commit: {why}", branch.xid)
