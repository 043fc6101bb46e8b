"""This module drives a TwoPhaseCommit by hand: its ports answer from a script, and record what the core asked."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping

from tm.log import Branch, Decision, Heuristic, LogError
from tm.outcome import Outcome
from tm.two_phase.commit import TwoPhaseCommit
from tm.two_phase.ports import Answer, AskedBranches
from tm.two_phase.return_codes import Verb
from tm.two_phase.states import GLOBAL, GlobalState
from xa import FORMAT_ID, Code, Gtrid, Handle, XaError, Xid, xa_error
from xa.coroutines import drive
from xa.errors import EXCEPTIONS
from xa.outcome_notes import BranchOutcome

GTRID = Gtrid("orders-1", b"the log.", 1, 1).encode()
DECIDER = "d"

Script = dict[tuple[Verb, str], "Code | list[Code]"]
"""(verb, resource) → the answer, or the answers of the first, second, … call; XA_OK where nothing is said."""

_EDGES = {(state, target) for state, _, _, target, _ in GLOBAL.transitions()}


def branch(name: str) -> Branch:
    return Branch(name, Xid(FORMAT_ID, GTRID, name.encode()))


def as_answer(code: Code) -> Answer:
    """The answer of a resource manager: some codes are returned, the others raised."""
    return xa_error(code) if code in EXCEPTIONS else code


class Stage:
    """One commit and its ports, with a script of their answers. `asked` has a line for each call of a port."""

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
        leaves: str = "",
        outcomes: Mapping[str, BranchOutcome | XaError] | None = None,
    ) -> None:
        names = list(names)
        branches = [branch(name) for name in names if name != DECIDER]
        decider = branch(DECIDER) if DECIDER in names else None
        associations = [branch(name) for name in (names if associated is None else associated)]
        self.completion = TwoPhaseCommit(self, GTRID, branches, associations, decider, state, late=late, leaves=leaves)
        self._script: Mapping[tuple[Verb, str], Code | list[Code]] = script or {}
        self._calls: dict[tuple[Verb, str], int] = {}
        self._force = force
        self._note = note
        self._held = held
        self._outcomes = outcomes or {}
        """What the resources that give notes tell of their branches."""
        self.asked: list[str] = []
        self.states = [state]
        self._outcome: Outcome | None = None

    @property
    def outcome(self) -> Outcome:
        """What became of it, when it is over."""
        assert self._outcome is not None
        return self._outcome

    def commit(self) -> Outcome:
        return self._run(self.completion.commit())

    def commit_and_leave(self) -> Callable[[], Outcome] | Outcome:
        """Commits as far as it leaves answers, and returns what goes on; its outcome where it leaves none."""
        steps = self.completion.commit()
        try:
            steps.send(None)
        except StopIteration as stop:
            outcome: Outcome = stop.value
            return outcome
        self._see()
        return lambda: self._run(steps)

    def rollback(self) -> Outcome:
        return self._run(self.completion.rollback())

    def _run(self, steps: Coroutine[None, None, Outcome]) -> Outcome:
        self._outcome = drive(steps)
        self._see()
        return self._outcome

    def _see(self) -> None:
        """The state moved along the table's rows. Between two port calls it may take two of them."""
        before, now = self.states[-1], self.completion.state
        if now is before:
            return
        between = {target for state, target in _EDGES if state is before}
        assert now in between or any((middle, now) in _EDGES for middle in between), (before, now)
        self.states.append(now)

    # --- the ports --------------------------------------------------------------------------------------------
    async def ask(self, verb: Verb, branches: tuple[Branch, ...], flags: int = 0) -> list[Answer]:  # noqa: ARG002
        self._asks(f"{verb.value}: {_names(branches)}")
        return [as_answer(self._code(verb, asked.resource)) for asked in branches]

    async def send(self, verb: Verb, branches: tuple[Branch, ...], leave: str) -> AskedBranches:
        self._asks(f"send {verb.value}: {_names(branches)}")
        places = dict(enumerate(branches))
        return AskedBranches(
            verb,
            branches,
            {at: as_answer(self._code(verb, one.resource)) for at, one in places.items() if one.resource != leave},
            {at: Handle(at) for at, one in places.items() if one.resource == leave},
        )

    async def collect(self, asked: AskedBranches) -> list[Answer]:
        left = {at: asked.branches[at].resource for at in asked.outstanding}
        self._asks(f"collect {asked.verb.value}: {' '.join(left.values())}".rstrip(": "))
        for at, name in left.items():
            asked.answers[at] = as_answer(self._code(asked.verb, name))
        return [asked.answers[at] for at in range(len(asked.branches))]

    async def with_notes(self, branches: tuple[Branch, ...]) -> tuple[Branch, ...]:
        return tuple(Branch(b.resource, b.xid, b"note" if b.resource in self._outcomes else b"") for b in branches)

    async def outcomes(self, branches: tuple[Branch, ...]) -> list[BranchOutcome | XaError]:
        noted = [branch for branch in branches if branch.note]
        if noted:
            self._asks(f"outcome: {_names(noted)}")
        return [self._outcomes[b.resource] if b.note else BranchOutcome.UNKNOWN for b in branches]

    async def force(self, decision: Decision) -> LogError | None:
        self._asks(f"force: {_names(decision.branches)}")
        return self._force

    async def decide(self, branch: Branch, decision: Decision) -> Answer:
        self._asks(f"decide: {_names(decision.branches)}")
        return as_answer(self._code(Verb.DECIDE, branch.resource))

    async def note(self, heuristic: Heuristic) -> LogError | None:
        self._asks(f"note: {heuristic.branch.resource} {heuristic.code.name}")
        return self._note

    async def end(self, decision: Decision, decider: str | None = None) -> None:  # noqa: ARG002
        self._asks("ended" + (f" in {decider}" if decider else ""))

    async def pause(self, seconds: float) -> None:  # noqa: ARG002
        self._asks("pause")

    async def is_held(self, gtrid: bytes, decider: str | None) -> bool:  # noqa: ARG002
        self._asks("held?")
        return self._held

    def _asks(self, what: str) -> None:
        self._see()
        self.asked.append(what)

    def _code(self, verb: Verb, name: str) -> Code:
        answers = self._script.get((verb, name), Code.XA_OK)
        if isinstance(answers, Code):
            return answers
        count = self._calls[verb, name] = self._calls.get((verb, name), 0) + 1
        return answers[min(count, len(answers)) - 1]


def _names(branches: Iterable[Branch]) -> str:
    return " ".join(branch.resource for branch in branches)
