"""Drives a Completion by hand: answers its effects from a script, and writes down what it asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tm.completion import Completion
from tm.effects import Call, Decide, End, Force, Held, Note, Pause
from tm.log import Branch
from tm.states import GLOBAL, GlobalState
from tm.verdicts import Verb
from xa import FORMAT_ID, Code, Gtrid, Xid, xa_error
from xa.errors import EXCEPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tm.effects import Answer, Effect
    from tm.log import LogError
    from tm.outcome import Outcome

GTRID = Gtrid("orders-1", b"the log.", 1, 1).encode()
DECIDER = "d"

Script = dict[tuple[Verb, str], "Code | list[Code]"]
"""(verb, resource) → the answer, or the answers of the first, second, … call; XA_OK where nothing is said."""

_EDGES = {(state, target) for state, _, _, target, _ in GLOBAL.transitions()}


def branch(name: str) -> Branch:
    return Branch(name, Xid(FORMAT_ID, GTRID, name.encode()))


def as_answer(code: Code) -> Answer:
    """As a resource manager tells it: some codes are returned, the others raised."""
    return xa_error(code) if code in EXCEPTIONS else code


class Stage:
    """One completion with its script. `asked` has a line for each effect."""

    def __init__(
        self,
        names: Iterable[str],
        script: Script | None = None,
        *,
        state: GlobalState = GlobalState.ACTIVE,
        force: LogError | None = None,
        note: LogError | None = None,
        associated: Iterable[str] | None = None,
        late: bool = False,
        held: bool = True,
    ) -> None:
        names = list(names)
        branches = [branch(name) for name in names if name != DECIDER]
        decider = branch(DECIDER) if DECIDER in names else None
        associations = [branch(name) for name in (names if associated is None else associated)]
        self.completion = Completion(GTRID, branches, associations, decider, state, late=late)
        self._script: Mapping[tuple[Verb, str], Code | list[Code]] = script or {}
        self._calls: dict[tuple[Verb, str], int] = {}
        self._force = force
        self._note = note
        self._held = held
        self.asked: list[str] = []
        self.states = [state]
        self.outcome: Outcome | None = None

    def commit(self) -> Outcome:
        return self._run(self.completion.commit())

    def rollback(self) -> Outcome:
        return self._run(self.completion.rollback())

    def _run(self, steps: object) -> Outcome:
        answer: object = None
        while True:
            try:
                effect = steps.send(answer)  # type: ignore[attr-defined]
            except StopIteration as stop:
                self.outcome = stop.value
                break
            self._see()
            answer = self._answer(effect)
        self._see()
        assert self.outcome is not None
        return self.outcome

    def _see(self) -> None:
        """The state moved along the table's rows. Between two effects it may take two of them."""
        before, now = self.states[-1], self.completion.state
        if now is before:
            return
        between = {target for state, target in _EDGES if state is before}
        assert now in between or any((middle, now) in _EDGES for middle in between), (before, now)
        self.states.append(now)

    def _answer(self, effect: Effect) -> object:
        match effect:
            case Call():
                who = " ".join(asked.resource for asked in effect.branches)
                self.asked.append(f"{effect.verb.value}: {who}")
                return [as_answer(self._code(effect.verb, asked.resource)) for asked in effect.branches]
            case Force():
                self.asked.append("force: " + " ".join(b.resource for b in effect.decision.branches))
                return self._force
            case Decide():
                self.asked.append("decide: " + " ".join(b.resource for b in effect.decision.branches))
                return as_answer(self._code(Verb.DECIDE, effect.branch.resource))
            case Note():
                self.asked.append(f"note: {effect.heuristic.branch.resource} {effect.heuristic.code.name}")
                return self._note
            case End():
                self.asked.append("ended" + (f" in {effect.decider}" if effect.decider else ""))
                return None
            case Pause():
                self.asked.append("pause")
                return None
            case Held():
                self.asked.append("held?")
                return self._held

    def _code(self, verb: Verb, name: str) -> Code:
        answers = self._script.get((verb, name), Code.XA_OK)
        if isinstance(answers, Code):
            return answers
        count = self._calls[verb, name] = self._calls.get((verb, name), 0) + 1
        return answers[min(count, len(answers)) - 1]
