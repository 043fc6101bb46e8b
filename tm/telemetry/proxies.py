"""What stands between the manager and the things that are measured: a resource manager, and the ports of a commit.

They are put there only where telemetry was asked for, so that nothing asks for it on the way of a transaction
without.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from tm.resources import is_decider
from tm.two_phase.return_codes import Verb
from xa import TMONEPHASE, Code, Handle, XaError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from tm.log import Branch, Decision, Heuristic, LogError
    from tm.recording import Recording
    from tm.two_phase.ports import Answer, AskedBranches, Ports
    from xa import Completion, DecidingResource, DecisionRecord, NotedIncarnation, Owner, ResourceManager, Xid
    from xa.outcome_notes import BranchOutcome

RAISED: Final = "RAISED"
"""The code of a call that raised an error that its contract does not name."""

_PHASES: Final = {
    Verb.PREPARE: "prepare",
    Verb.COMMIT: "commit",
    Verb.COMMIT_AGAIN: "commit",
    Verb.COMMIT_ONE_PHASE: "commit",
    Verb.ROLLBACK: "rollback",
}


def observed(name: str, rm: ResourceManager, system: str, recorder: Recording) -> ResourceManager:
    """`rm`, under the name `name`, with its verbs measured, and its messages traced; `system` is the kind of
    its server."""
    if is_decider(rm):
        return MeasuredDecider(name, rm, system, recorder)
    return MeasuredResource(name, rm, system, recorder)


class MeasuredResource:
    """An `xa.ResourceManager` that measures another one. What the other offers beyond the contract is there too."""

    def __init__(self, name: str, rm: ResourceManager, system: str, recorder: Recording) -> None:
        self._name = name
        self._rm = rm
        self._system = system
        self._recorder = recorder
        self._sent: dict[Handle, tuple[str, float, Xid | None]] = {}

    def __getattr__(self, name: str) -> Any:
        offered = getattr(self._rm, name)
        if name != "end_late":
            return offered
        return lambda xid, rmid, flags: self._asked("end", xid, offered, xid, rmid, flags)

    @property
    def name(self) -> str:
        return self._rm.name

    @property
    def flags(self) -> int:
        return self._rm.flags

    @property
    def identity(self) -> str:
        return self._rm.identity

    def open(self, open_string: str, rmid: int, flags: int = 0) -> Code | Handle:
        return self._asked("open", None, self._rm.open, open_string, rmid, flags)

    def close(self, close_string: str, rmid: int, flags: int = 0) -> Code | Handle:
        return self._asked("close", None, self._rm.close, close_string, rmid, flags)

    def start(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        return self._asked("start", xid, self._rm.start, xid, rmid, flags)

    def end(self, xid: Xid, rmid: int, flags: int) -> Code | Handle:
        return self._asked("end", xid, self._rm.end, xid, rmid, flags)

    def prepare(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        return self._asked("prepare", xid, self._rm.prepare, xid, rmid, flags)

    def commit(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        verb = "commit_one_phase" if flags & TMONEPHASE else "commit"
        return self._asked(verb, xid, self._rm.commit, xid, rmid, flags)

    def rollback(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        return self._asked("rollback", xid, self._rm.rollback, xid, rmid, flags)

    def forget(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        return self._asked("forget", xid, self._rm.forget, xid, rmid, flags)

    def recover(self, rmid: int, flags: int = 0, count: int = 1000) -> Sequence[Xid]:
        page: Sequence[Xid] = self._returned("recover", self._rm.recover, rmid, flags, count)
        return page

    def complete(self, handle: Handle | None, rmid: int, flags: int = 0) -> Completion:
        completion = self._rm.complete(handle, rmid, flags)
        sent = self._sent.pop(completion.handle, None)
        if sent is not None:
            verb, began, xid = sent
            self._recorder.verb(self._name, verb, began, completion.code, xid)
        return completion

    def session(self, rmid: int) -> Any:
        return self._recorder.session(self._rm.session(rmid), self._system)

    def _asked(self, verb: str, xid: Xid | None, call: Callable[..., Code | Handle], *arguments: Any) -> Code | Handle:
        began = perf_counter()
        try:
            answer = call(*arguments)
        except XaError as error:
            self._recorder.verb(self._name, verb, began, error.code, xid)
            raise
        except BaseException:
            self._recorder.verb(self._name, verb, began, None, xid)
            raise
        if isinstance(answer, Handle):
            self._sent[answer] = verb, began, xid
        else:
            self._recorder.verb(self._name, verb, began, answer, xid)
        return answer

    def _returned(self, verb: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Does what `_asked` does for calls that answer no code: to return is their success."""
        began = perf_counter()
        code: Code | None = None
        try:
            returned = call(*arguments)
            code = Code.XA_OK
        except XaError as error:
            code = error.code
            raise
        finally:
            self._recorder.verb(self._name, verb, began, code, None)
        return returned


class MeasuredDecider(MeasuredResource):
    """An `xa.DecidingResource` that measures another one."""

    _rm: DecidingResource

    @property
    def decider_id(self) -> bytes:
        return self._rm.decider_id

    def hold(self, owner: Owner, lease_s: float, rmid: int, floor: int = 0, ceiling: int = 0) -> None:
        self._returned("hold", self._rm.hold, owner, lease_s, rmid, floor, ceiling)

    def incarnations(self, node: str, rmid: int) -> Sequence[NotedIncarnation]:
        noted: Sequence[NotedIncarnation] = self._returned("incarnations", self._rm.incarnations, node, rmid)
        return noted

    def owners(self, rmid: int) -> Sequence[Owner]:
        owners: Sequence[Owner] = self._returned("owners", self._rm.owners, rmid)
        return owners

    def decide(self, xid: Xid, rmid: int, record: bytes) -> Code:
        return Code(self._asked("decide", xid, self._rm.decide, xid, rmid, record))

    def settle(self, gtrid: bytes, rmid: int) -> bytes | None:
        record: bytes | None = self._returned("settle", self._rm.settle, gtrid, rmid)
        return record

    def decisions(self, rmid: int, after: bytes = b"", count: int = 1000) -> Sequence[DecisionRecord]:
        page: Sequence[DecisionRecord] = self._returned("decisions", self._rm.decisions, rmid, after, count)
        return page

    def end_decisions(self, gtrids: Sequence[bytes], rmid: int) -> None:
        self._returned("end_decisions", self._rm.end_decisions, gtrids, rmid)


class MeasuredPorts:
    """`tm.two_phase.ports.Ports` that measure the phases and the forces of others."""

    __slots__ = ("_ports", "_recorder")

    def __init__(self, ports: Ports, recorder: Recording) -> None:
        self._ports = ports
        self._recorder = recorder

    async def ask(self, verb: Verb, branches: tuple[Branch, ...], flags: int = 0) -> list[Answer]:
        phase = _PHASES.get(verb)
        if phase is None:
            return await self._ports.ask(verb, branches, flags)
        began = perf_counter()
        try:
            return await self._ports.ask(verb, branches, flags)
        finally:
            self._recorder.phase(phase, began)

    async def send(self, verb: Verb, branches: tuple[Branch, ...], leave: str) -> AskedBranches:
        began = perf_counter()
        asked = await self._ports.send(verb, branches, leave)
        asked.took_s = perf_counter() - began
        return asked

    async def collect(self, asked: AskedBranches) -> list[Answer]:
        began = perf_counter()
        try:
            return await self._ports.collect(asked)
        finally:  # without the time in which no one waited
            self._recorder.phase(_PHASES[asked.verb], began - asked.took_s)

    async def force(self, decision: Decision) -> LogError | None:
        return await self._forced("decision", decision.gtrid, self._ports.force(decision))

    async def note(self, heuristic: Heuristic) -> LogError | None:
        return await self._forced("heuristic", heuristic.branch.xid.gtrid, self._ports.note(heuristic))

    async def with_notes(self, branches: tuple[Branch, ...]) -> tuple[Branch, ...]:
        return await self._ports.with_notes(branches)

    async def outcomes(self, branches: tuple[Branch, ...]) -> list[BranchOutcome | XaError]:
        return await self._ports.outcomes(branches)

    async def decide(self, branch: Branch, decision: Decision) -> Answer:
        return await self._ports.decide(branch, decision)

    async def end(self, decision: Decision, decider: str | None = None) -> None:
        await self._ports.end(decision, decider)

    async def pause(self, seconds: float) -> None:
        await self._ports.pause(seconds)

    async def is_held(self, gtrid: bytes, decider: str | None) -> bool:
        return await self._ports.is_held(gtrid, decider)

    async def _forced(
        self, record: str, gtrid: bytes, force: Coroutine[None, None, LogError | None]
    ) -> LogError | None:
        began = perf_counter()
        failed = True
        try:
            refused = await force
            failed = refused is not None
        finally:
            self._recorder.forced(record, began, gtrid=gtrid, failed=failed)
        return refused
