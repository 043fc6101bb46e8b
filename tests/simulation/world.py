"""This module is a seeded world: resource managers, logs, manager processes that run transactions and recovery passes,
and faults.

An operator may complete any branch by hand, at any moment.

There is one node or there are two, over the same resource managers; each has a log of its own, or they share a resource
that decides. A node may have two processes: at the same time if a resource decides, one after the other if its log is
in a database. Processes are killed, or stop for a while and go on; an older copy may replace a log (it knows that it is
one, or it looks like the original), the data of a resource manager, or the resource that decides.

Everything that a process does is a sequence of steps with a crash point before each of them: one call to one resource
manager, one force of the log, one read of the live transactions. A scheduler interleaves the steps of all activities
and lets things go wrong. Afterwards every fault ends, recovery runs until nothing is left to do, and the checker
(`violations`) looks at the data, the logs and the outcomes that the applications got.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

from tests.simulation.log import Disk, SimulatedLog
from tm.log import Branch, Decision, Heuristic, LogError
from tm.log.decider_record import decode_branches, encode_branches
from tm.log.incarnations import Incarnations
from tm.outcome import Outcome, Verdict, named
from tm.recovery.former import Former, FormerIncarnations
from tm.recovery.lease import LEASE_S, Lease
from tm.recovery.ownership import FINISHED, IN_LOG, OVER_BEFORE, AtWork, Ceilings, Floors, Ownership
from tm.recovery.ports import Decisions, RecoveryPorts, Scanned
from tm.recovery.recovery_pass import recover
from tm.recovery.report import Action, Report
from tm.sequences import Sequences
from tm.two_phase.commit import TwoPhaseCommit
from tm.two_phase.ports import Answer, AskedBranches, Ports, code_of
from tm.two_phase.return_codes import Verb
from xa import (
    FORMAT_ID,
    HEURISTIC_CODES,
    TMASYNC,
    TMFAIL,
    TMONEPHASE,
    TMSTARTRSCAN,
    Code,
    Gtrid,
    Handle,
    Owner,
    ResourceUnavailable,
    ThreadOfControl,
    XaError,
    Xid,
    entered,
)
from xa.coroutines import suspension
from xa.gtrid import OVER
from xa.machine import RESULT_OF
from xa.outcome_notes import BranchOutcome
from xa.state_tables import BRANCH, BranchState, BranchVerb
from xabridge.testing.reference import (
    DecidingStore,
    KeyLocked,
    NetworkFault,
    NotingResource,
    ReferenceDecider,
    ReferenceResource,
    ReferenceStore,
)
from xabridge.testing.reference.store import BackUp

NODES = ("sim", "sim-2")
LOG_IDS = (b"the log.", b"another.")
DECIDER_ID = b"decider."
LEASE_STEPS = 40
LATE_STEPS = 80
"""A request that is in flight arrives within so many steps, or never."""

_ROUTINE = {
    Verb.END: "end",
    Verb.END_LATE: "end",
    Verb.PREPARE: "prepare",
    Verb.COMMIT: "commit",
    Verb.COMMIT_AGAIN: "commit",
    Verb.COMMIT_ONE_PHASE: "commit",
    Verb.ROLLBACK: "rollback",
    Verb.FORGET: "forget",
}
_ANSWERS: dict[str, tuple[Code, ...]] = {
    "start": (Code.XAER_RMERR,),
    "end": (Code.XA_RBROLLBACK, Code.XAER_RMERR),
    "prepare": (Code.XA_RBROLLBACK, Code.XA_RBDEADLOCK, Code.XAER_RMERR, Code.XA_RETRY, Code.XA_RDONLY),
    "commit": (Code.XA_RETRY, Code.XA_HEURRB, Code.XA_HEURCOM, Code.XA_HEURMIX, Code.XA_HEURHAZ, Code.XAER_RMERR),
    "rollback": (Code.XA_RETRY, Code.XA_RBROLLBACK, Code.XA_HEURCOM, Code.XA_HEURRB, Code.XA_HEURMIX, Code.XA_HEURHAZ),
    "decide": (Code.XA_RBINTEGRITY, Code.XAER_RMERR),
}
_VERBS = {
    ("start", False): BranchVerb.START,
    ("end", False): BranchVerb.END,
    ("end", True): BranchVerb.END_FAIL,
    ("prepare", False): BranchVerb.PREPARE,
    ("commit", False): BranchVerb.COMMIT,
    ("commit", True): BranchVerb.COMMIT_ONE_PHASE,
    ("rollback", False): BranchVerb.ROLLBACK,
    ("decide", False): BranchVerb.COMMIT_ONE_PHASE,
}
ROOMS = (4096, 2, 1, 0)
"""How many operations a client may have outstanding at a resource manager."""
_LOSSES = (NetworkFault.REQUEST_LOST, NetworkFault.REPLY_LOST, NetworkFault.IN_FLIGHT)


class Place:
    """The resource that decides, as the lease of a process sees it."""

    name = "decider"
    rmid = 1
    suspect = True

    def __init__(self, ports: WorldPorts) -> None:
        self._ports = ports
        self.decider: Any = ports.process.clients[self.name]

    def reopen(self) -> None:
        with entered(self._ports.control):
            self._ports.reopen(self.name)

    def as_xa_error(self, raised: Exception, _routine: str) -> XaError:
        assert isinstance(raised, XaError)
        return self._ports.noticed(self.name, raised)


def _noted_nowhere(_ceiling: int) -> None:
    pass


class SimulatedLease(Lease):
    """The manager's own, taken in a thread of control that the world knows."""

    def __init__(self, world: World, process: Process) -> None:
        ports = WorldPorts(world, process)
        place: Any = Place(ports)
        super().__init__(process.node, place, process.sequences, world.clock, lambda _: process.incarnation)
        self.owner = replace(self.owner, process=process.name)
        self._control = ports.control


class Process:
    """One incarnation of a node's manager: its clients, its log, its live transactions. It stands still until
    `stopped_until`."""

    def __init__(self, world: World, node: str) -> None:
        number = next(world.numbers)
        self.node = node
        self.name = f"process {number}"
        self.incarnation = (number if not world.mutant.counting else world.openings(node)).to_bytes(8, "big")
        self.log = SimulatedLog(world.disks[node], node, self.incarnation)
        self.clients: dict[str, ReferenceResource] = {}
        for name, store in world.stores.items():
            noting = NotingResource if store.tells_outcomes else ReferenceResource
            kind = ReferenceDecider if isinstance(store, DecidingStore) else noting
            self.clients[name] = kind(store)  # type: ignore[arg-type]  # a decider's store for a decider

        self.live: set[bytes] = set()
        self.lost: dict[str, set[ThreadOfControl]] = {name: set() for name in self.clients}
        self.fresh = set(self.clients)
        late_s = LATE_STEPS * LEASE_S / LEASE_STEPS
        self.sequences = world.mutant.sequences(world.clock, late_s, 1)
        self.former = FormerIncarnations(late_s)
        self.recovering = False
        self.stopped_until = 0
        self.lease = SimulatedLease(world, self) if world.decider_mode else None
        self.holds = False
        self.renew_at = 0


class WorldPorts:
    """The ports of one process in a thread of control, for commits and for recovery passes: each suspends first, so
    that every call has a crash point in front of it. Below them is what they do at resource managers."""

    def __init__(self, world: World, process: Process) -> None:
        self.world = world
        self.process = process
        self.control = ThreadOfControl()

    async def ask(self, verb: Verb, branches: tuple[Branch, ...], flags: int = 0) -> list[Any]:
        await suspension()
        answers = await self._send_all(verb, branches, flags)
        await self._collect_all(branches, answers)
        self._trace(verb, branches, answers)
        return answers

    async def send(self, verb: Verb, branches: tuple[Branch, ...], leave: str) -> AskedBranches:
        """Asks all, and does not wait for the answers of the resource `leave`."""
        await suspension()
        answers = await self._send_all(verb, branches, 0, leave)
        for name in dict.fromkeys(branch.resource for branch in branches if branch.resource != leave):
            await self._collect_all(branches, answers, name)
        there: dict[int, Answer] = {}
        outstanding: dict[int, Handle] = {}
        for index, answer in enumerate(answers):
            (outstanding if isinstance(answer, Handle) else there)[index] = answer
        return AskedBranches(verb, branches, there, outstanding)

    async def collect(self, asked: AskedBranches) -> list[Answer]:
        """The answers, with those that were left."""
        await suspension()
        answers: list[Any] = [{**asked.answers, **asked.outstanding}[index] for index in range(len(asked.branches))]
        await self._collect_all(asked.branches, answers)
        self._trace(asked.verb, asked.branches, answers)
        return answers

    async def with_notes(self, branches: tuple[Branch, ...]) -> tuple[Branch, ...]:
        return tuple(Branch(branch.resource, branch.xid, self._note(branch)) for branch in branches)

    def _note(self, branch: Branch) -> bytes:
        client = self.process.clients[branch.resource]
        return client.outcome_note(branch.xid, 1) if isinstance(client, NotingResource) else b""

    async def outcomes(self, branches: tuple[Branch, ...]) -> list[BranchOutcome | XaError]:
        await suspension()
        told: list[BranchOutcome | XaError] = []
        for branch in branches:
            self.world.mischief("outcomes", branch, 0)
            answer = self._outcome(branch) if branch.note else BranchOutcome.UNKNOWN
            self.world.stores[branch.resource].script.clear()
            told.append(answer)
        return told

    def _outcome(self, branch: Branch) -> BranchOutcome | XaError:
        answer = self.called(branch.resource, lambda client: client.outcomes([branch.note], 1))
        return answer if isinstance(answer, XaError) else answer[0]

    async def force(self, decision: Decision) -> LogError | None:
        await suspension()
        return _refusal(lambda: self.process.log.decide(decision))

    async def decide(self, branch: Branch, decision: Decision) -> Answer:
        await suspension()
        self.world.mischief("decide", branch, 0)
        record = encode_branches(decision.branches)
        answer: Answer = self.called("decider", lambda client: client.decide(branch.xid, 1, record))
        return answer

    async def note(self, heuristic: Heuristic) -> LogError | None:
        await suspension()
        refused = _refusal(lambda: self.process.log.note_heuristic(heuristic))
        if refused is None:
            self.world.reported.add(heuristic.branch.xid.gtrid)
        return refused

    async def end(self, decision: Decision, decider: str | None = None) -> None:
        await suspension()
        if decider is None:
            self.process.log.end(decision.gtrid)
        else:
            self.called(decider, lambda client: client.end_decisions([decision.gtrid], 1))

    async def pause(self, seconds: float) -> None:  # noqa: ARG002 — time passes by steps
        await suspension()

    async def is_held(self, gtrid: bytes, decider: str | None) -> bool:
        await suspension()
        lease = self.process.lease
        if decider is None:
            held = self.process.log.held()
        else:
            assert lease is not None
            held = lease.held(Gtrid.decode(gtrid).sequence)
        if not held:
            self.world.unheld.add(gtrid)
        return held

    async def read_floors(self) -> Floors:
        """Right before the decisions: a crash in between changes nothing."""
        floors: dict[str, Any] = {IN_LOG: self.process.log.incarnations.floors}
        if self.world.decider_mode:
            noted = self.called("decider", lambda client: client.incarnations(self.process.node, 1))
            floors["decider"] = noted if isinstance(noted, XaError) else {one.incarnation: one.floor for one in noted}
        return floors

    async def read_ceilings(self) -> Ceilings:
        """Right behind the scan."""
        ceilings: dict[str, Any] = {IN_LOG: self.process.log.incarnations.ceilings}
        if self.world.decider_mode:
            noted = self.called("decider", lambda client: client.incarnations(self.process.node, 1))
            answer = noted if isinstance(noted, XaError) else {one.incarnation: one.ceiling for one in noted}
            ceilings["decider"] = answer
        return ceilings

    async def read_decisions(self) -> Decisions:
        await suspension()
        by_decider: dict[str, dict[bytes, Decision]] = {}
        if self.world.decider_mode:
            records = self.called("decider", lambda client: client.decisions(1))
            if not isinstance(records, XaError):
                by_decider["decider"] = {r.gtrid: Decision(r.gtrid, decode_branches(r.record)) for r in records}
        log = self.process.log
        logged = {decision.gtrid: decision for decision in log.decisions()}
        return Decisions(logged, by_decider, {h.branch.xid: h for h in log.heuristics()})

    async def scan(self) -> Scanned:
        await suspension()
        scanned: dict[str, Any] = {}
        for name in self.process.clients:
            await suspension()
            scanned[name] = self.called(name, _nothing if name == "decider" else _prepared)
        return scanned

    async def read_live(self) -> tuple[frozenset[bytes], AtWork, Decisions]:
        await suspension()
        live = frozenset(self.process.live)
        await suspension()
        at_work = self._at_work()
        return live, at_work, await self.read_decisions()

    async def settle(self, decider: str, gtrid: bytes) -> Decision | XaError | None:
        await suspension()
        record = self.called(decider, lambda client: client.settle(gtrid, 1))
        return Decision(gtrid, decode_branches(record)) if isinstance(record, bytes) else record

    # --- at resource managers ---------------------------------------------------------------------------------
    def called(self, name: str, call: Callable[[Any], Any]) -> Any:
        """What a resource manager answers, or the error that it raises."""
        try:
            with entered(self.control):
                self.reopen(name)
                return call(self.process.clients[name])
        except XaError as error:
            return self.noticed(name, error)

    def reopen(self, name: str) -> None:
        process = self.process
        if name in process.fresh or self.control in process.lost[name]:
            process.clients[name].open(self.world.stores[name].url, 1)
            process.fresh.discard(name)
            process.lost[name].discard(self.control)

    def noticed(self, name: str, error: XaError) -> XaError:
        if isinstance(error, ResourceUnavailable):
            self.process.lost[name].add(self.control)
        return error

    def ask_one(self, routine: str, branch: Branch, flags: int) -> Any:
        self.world.mischief(routine, branch, flags)
        answer = self.called(branch.resource, lambda client: getattr(client, routine)(branch.xid, 1, flags))
        self.world.stores[branch.resource].script.clear()  # what was planned for this call, and it did not come so far
        return answer

    def write(self, branch: Branch) -> bool:
        """Whether it has written at the resource."""
        key = f"{branch.xid.gtrid.hex()}@{branch.resource}"
        try:
            with entered(self.control):
                self.process.clients[branch.resource].session(1).write(key, True)
        except (XaError, KeyLocked) as error:
            if isinstance(error, ResourceUnavailable):
                self.noticed(branch.resource, error)
            return False
        self.world.wrote.setdefault(branch.xid.gtrid, []).append(branch.resource)
        return True

    async def _send_all(self, verb: Verb, branches: tuple[Branch, ...], asked: int, leave: str = "") -> list[Any]:
        """Overlaps as `tm.resources.blocking_ports` does: whoever is told to collect first does, and then asks
        again."""
        routine = _ROUTINE[verb]
        answers: list[Any] = []
        for branch in branches:
            await suspension()
            overlaps = branch.resource == leave or (self.world.random.random() < 0.5 and len(branches) > 1)
            flags = asked | (TMASYNC if overlaps else 0)
            answer = self.ask_one(routine, branch, flags)
            if overlaps and _is_full(answer):
                await self._collect_all(branches, answers, branch.resource)
                answer = self.ask_one(routine, branch, flags)
                if _is_full(answer):  # by operations of others: there is room by now, or none becomes free in time
                    self.world.refuse_room(routine, branch, asked)
                    answer = self.ask_one(routine, branch, asked)
            answers.append(answer)
        return answers

    async def _collect_all(self, branches: tuple[Branch, ...], answers: list[Any], resource: str = "") -> None:
        """Collects what is outstanding: everywhere, or at one resource."""
        for index, answer in enumerate(answers):
            if isinstance(answer, Handle) and resource in ("", branches[index].resource):
                await suspension()
                answers[index] = self._collect(branches[index].resource, answer)

    def _collect(self, name: str, handle: Handle) -> Any:
        try:
            with entered(self.control):
                completion = self.process.clients[name].complete(handle, 1)
        except XaError as error:
            return self.noticed(name, error)
        return completion.code if completion.error is None else self.noticed(name, completion.error)

    def _trace(self, verb: Verb, branches: tuple[Branch, ...], answers: list[Any]) -> None:
        for branch, answer in zip(branches, answers, strict=True):
            shown = answer.code.name if isinstance(answer, XaError) else answer.name
            if _ROUTINE[verb] == "commit" and answer is not Code.XA_OK and code_of(answer) is not Code.XAER_NOTA:
                self.world.unanswered.add((branch.xid.gtrid, branch.resource))
            self.world.trace.append(f"{_ROUTINE[verb]} {named(branch.xid.gtrid)} {branch.resource}: {shown}")

    def _at_work(self) -> dict[str, Any]:
        world = self.world
        if not world.decider_mode:
            return {}
        if world.random.random() < world.fault_rate:
            world.disturbances += 1
            world.stores["decider"].script.plan("owners", None, NetworkFault.REQUEST_LOST)
        owners = self.called("decider", lambda client: client.owners(1))
        if isinstance(owners, XaError):
            return {"decider": owners}
        alive = {other.name for other in world.processes}
        gone = {owner for owner in owners if world.known_machine and owner.process not in alive}
        mine = [owner for owner in owners if owner.node == self.process.node and owner not in gone]
        return {"decider": frozenset(owner.incarnation for owner in mine)}


def _unchanged(what: Any) -> Any:
    return what


def _left_nothing(report: Report) -> Former:
    return report.left_nothing


@dataclass(frozen=True)
class Mutant:
    """A name, and what it puts in the place of the right thing: between a commit or recovery and its ports, or another
    idea of what is whose. Without `leasing` no process takes a lease, with `counting` incarnations are counted. With
    `leaving`, which is no mistake, every commit leaves the answers of one resource.

    With `hands`, which is none either, an operator completes branches by hand. `often` replaces what was drawn for a
    world, where the mistake shows in few of them.

    `seed` is a schedule in which it was seen, where the first of those comes late: the search begins with it.
    """

    name: str
    commit_through: Callable[[Ports], Any] = _unchanged
    recovery_through: Callable[[RecoveryPorts], Any] = _unchanged
    ownership: Callable[[Ownership], Ownership] = _unchanged
    leasing: bool = True
    counting: bool = False
    often: Mapping[str, Any] = field(default_factory=dict)
    leaving: bool = False
    sequences: type[Sequences] = Sequences
    left_nothing: Callable[[Report], Former] = _left_nothing
    hands: bool = False
    seed: int = 0

    async def recovery(self, ports: RecoveryPorts, ownership: Ownership) -> Report:
        """A recovery pass."""
        return await recover(self.recovery_through(ports), self.ownership(ownership))


RIGHT = Mutant("none")


class World:
    """One seed's world."""

    def __init__(self, seed: int, mutant: Mutant = RIGHT) -> None:
        self.random = Random(seed)
        self.mutant = mutant
        self.operator = Random(f"{seed}, by hand")
        """Draws on its own, so that the schedules without an operator stay as they are."""
        self.decider_mode = self.random.random() < 0.3
        self.fault_rate = self.random.choice((0.0, 0.02, 0.1, 0.25))
        self.crash_rate = self.random.choice((0.0, 0.01, 0.04, 0.1))
        self.recovery_rate = self.random.choice((0.05, 0.3))
        self.stickiness = self.random.choice((0.0, 0.9))
        self.running = 0
        self.mending_rate = self.random.choice((0.02, 0.2))
        self.heuristics_allowed = self.random.random() < 0.3
        self.nodes = NODES[: self.random.choice((1, 1, 2))]
        self.siblings = self.random.random() < 0.5
        """Whether a node may have a second process: beside the first where a resource decides, else in its place."""
        self.stop_rate = self.random.choice((0.0, 0.0, 0.02))
        self.copy_rate = self.random.choice((0.0, 0.0, 0.05))
        for name, value in mutant.often.items():
            setattr(self, name, value)
        self.known_machine = self.random.random() < 0.5
        """Whether processes see that another one is gone before its lease has run out."""
        self.fate = Random(f"restored {seed}")
        self.restore_rate = self.fate.choice((0.0, 0.0, 0.05))
        self.backups: dict[str, BackUp] = {}
        self.excused: set[bytes] = set()
        """Those that were there before a resource manager was restored: it may know of them what is over."""
        self.finished_before: dict[Xid, str] = {}
        """The branches in doubt in such a copy that were over, as their node has durably noted; and where they are."""
        self.false_claims: list[str] = []
        self.older = Random(f"older {seed}")
        self.older_rate = self.older.choice((0.0, 0.0, 0.05))
        self.night_rate = self.older.choice((0.0, 0.0, 0.02))
        self.old_decider: BackUp | None = None
        self.decider_replaced = False
        self.begun_later: dict[Xid, str] = {}
        """The branches in doubt that were begun later than the copy was made that took the decider's place."""
        self.seemed_over: set[bytes] = set()
        """Incarnations whose process stood still until another one had noted that nothing of them is left."""
        self.late_since: dict[str, int] = {}
        self.now = 0
        self.numbers = itertools.count(1)
        self.stores: dict[str, ReferenceStore] = {}
        for index in range(self.random.choice((2, 2, 3))):
            name = f"rm{index}"
            tells = mutant.hands and self.operator.random() < 0.5
            self.stores[name] = ReferenceStore(name, read_only_votes=True, tells_outcomes=tells)
        if self.decider_mode:
            self.stores["decider"] = DecidingStore("decider", decider_id=DECIDER_ID)
            self.stores["decider"].clock = self.clock

        for store in self.stores.values():
            store.room = self.random.choice(ROOMS)
        self.disks = {node: Disk(log_id) for node, log_id in zip(self.nodes, LOG_IDS, strict=False)}
        self.copies: dict[str, Disk] = {}
        self.replaced: set[str] = set()
        """Nodes whose log was replaced by an older copy."""
        self.told: dict[bytes, Outcome] = {}
        self.wrote: dict[bytes, list[str]] = {}
        self.reported: set[bytes] = set()
        self.interfered = False
        """Whether a resource manager did anything on its own to a branch that was prepared."""
        self.disturbances = 0
        """What may keep a transaction from being committed: faults, processes that were killed or stood still, and what
        the application wanted rolled back."""
        self.forgotten: set[bytes] = set()
        """Rolled back at commit by a resource manager that keeps no record of it (XAER_RMERR in S3): should the manager
        die before it hears the answer, or before its log takes a note of it, nobody can ever tell."""
        self.on_their_own: set[bytes] = set()
        """Of which a resource manager has completed a branch on its own, or may have said so."""
        self.trace: list[str] = []
        self.processes = [Process(self, node) for node in self.nodes]
        self.activities: list[tuple[Process, Coroutine[None, None, None]]] = []
        self.healing = False
        self.hand_rate = self.operator.choice((0.02, 0.1)) if mutant.hands else 0.0
        self.by_hand: dict[bytes, list[tuple[str, bool]]] = {}
        """By gtrid: the branches that the operator has completed, and whether he has committed them."""
        self.unanswered: set[tuple[bytes, str]] = set()
        """Commits with no answer, or one that they were not done: when the branch is not known at the next try, a
        resource that remembers nothing can't tell whether the first one has arrived."""
        self.unheld: set[bytes] = set()
        """Transactions whose branches another process of the node may have committed meanwhile: neither is it known
        then whether it has."""
        self.decided_there: set[bytes] = set()
        self.missed: set[tuple[bytes, str]] = set()
        """Branches of which a recovery pass has told that they are not there any more."""

    def clock(self) -> float:
        """The time in seconds; a lease lasts for LEASE_STEPS steps."""
        return self.now * LEASE_S / LEASE_STEPS

    def openings(self, node: str) -> int:
        """How often the log of a node was opened, as the log itself counts."""
        return len(self.disks[node].noted) + 1

    # --- the schedule -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """The faulty part, then healing."""
        transactions = self.random.choice((1, 1, 2, 3, 4)) * len(self.nodes)
        passes = 8 * len(self.nodes)
        for process in self.processes:
            self._start(process, self._recovery_pass(process))
        while transactions or self.activities:
            process = self.random.choice(self.processes)
            if transactions and (not self.activities or self.random.random() < 0.2):
                transactions -= 1
                self._start(process, self._transaction(process))
            elif passes and self.random.random() < self.recovery_rate and not process.recovering:
                passes -= 1
                self._start(process, self._recovery_pass(process))
            self._step()
            self._misfortune()
        self._heal()

    def _start(self, process: Process, activity: Coroutine[None, None, None]) -> None:
        self.activities.append((process, activity))

    def _step(self) -> None:
        self.now += 1
        self._lose_what_is_late()
        for process in self.processes:
            if process.holds and self.now >= process.renew_at and self._runs(process):
                self._take_lease(process)
        able = [index for index, (process, _) in enumerate(self.activities) if self._runs(process)]
        if not able:
            return

        if self.running not in able or self.random.random() >= self.stickiness:
            self.running = self.random.choice(able)
        index = self.running
        _, activity = self.activities[index]
        try:
            activity.send(None)
        except StopIteration:
            self.activities.pop(index)
        self._see_decisions()

    def _see_decisions(self) -> None:
        for store in self.stores.values():
            if isinstance(store, DecidingStore):
                self.decided_there.update(store.decided)

    def _runs(self, process: Process) -> bool:
        return self.now >= process.stopped_until

    def _take_lease(self, process: Process) -> None:
        """Takes or renews it; where that fails, it is tried again soon."""
        process.renew_at = self.now + LEASE_STEPS // 4
        assert process.lease is not None
        try:
            process.lease.take()
        except XaError:
            process.renew_at = self.now + 3

    def _misfortune(self) -> None:
        if self.hand_rate and self.operator.random() < self.hand_rate:
            self._complete_by_hand()
        if self.random.random() < self.crash_rate:
            self._crash(self.random.choice(self.processes))
        if self.random.random() < self.stop_rate:
            self._stop(self.random.choice(self.processes))
        if self.fate.random() < 0.2:
            process = self.fate.choice(self.processes)
            process.log.note_floor(process.sequences.floor())
        self._restore()
        if self.siblings and self.random.random() < 0.03:
            self._another(self.random.choice(self.nodes))
        if self.random.random() < self.fault_rate * 0.2:
            self._harm_store()
        if self.random.random() < self.mending_rate:
            store = self.random.choice(list(self.stores.values()))
            store.heal()
            if store.in_flight:
                self._deliver(store)

        if self.random.random() < self.fault_rate * 0.1:
            faults = ("full", "refused", "failed, durable", "failed, lost")
            self.random.choice(self.processes).log.fault = self.random.choice(faults)
            self.disturbances += 1

    def _restore(self) -> None:
        """Something is copied, or restored from a copy; or so much time passes that nothing late arrives any more."""
        if self.night_rate and self.older.random() < self.night_rate:
            self.now += LATE_STEPS
            self.disturbances += 1
            self._lose_what_is_late()
        if self.older.random() < 0.2 and not self.decider_mode:
            process = self.older.choice(self.processes)
            with suppress(LogError):
                process.sequences.adjust(process.log.note_ceiling)
        if self.older_rate and self.decider_mode:
            self._restore_decider()
        if self.restore_rate:
            self._restore_store()
        if self.random.random() < self.copy_rate and not self.decider_mode:
            self._copy(self.random.choice(self.nodes))

    def _stop(self, process: Process) -> None:
        """It stands still for a while, often for longer than its lease."""
        self.disturbances += 1
        process.stopped_until = self.now + self.random.choice((LEASE_STEPS // 2, 2 * LEASE_STEPS))
        self.trace.append(f"{process.node}, {process.name} stands still until {process.stopped_until}")

    def _another(self, node: str) -> None:
        """A second process of a node: beside the other where a resource decides. A log in a database is taken from a
        process that stands still."""
        running = [process for process in self.processes if process.node == node]
        if len(running) > 1 or (not self.decider_mode and self._runs(running[0])):
            return
        self.trace.append(f"{node}: another process")
        self.processes.append(Process(self, node))
        self._start(self.processes[-1], self._recovery_pass(self.processes[-1]))

    def _copy(self, node: str) -> None:
        """A copy of a node's log is made, or the last one takes its place: the log then is what it was at that time."""
        if node not in self.copies:
            known = self.older.random() < 0.5
            self.trace.append(f"{node}: its log is copied{'' if known else ', and the copy looks like the original'}")
            self.copies[node] = self.disks[node].copied(known=known)
        elif self.random.random() < 0.3:
            self.trace.append(f"{node}: its log is replaced by the copy")
            for process in [process for process in self.processes if process.node == node]:
                self._kill(process)
            self.disks[node] = self.copies.pop(node)
            self.replaced.add(node)
            if not self.disks[node].is_copy:
                self._excuse_what_is_below(self.disks[node].ceilings)
            for xid in list(self.finished_before):
                if Gtrid.decode(xid.gtrid).node == node:  # it may not be noted any more
                    del self.finished_before[xid]
                    self.excused.add(xid.gtrid)
            self._restart(node)

    def _excuse_what_is_below(self, ceilings: Mapping[bytes, int]) -> None:
        """What had begun when a copy was made, which then took a place and looks like the original, is not
        protected."""
        for gtrid in self.wrote:
            read = Gtrid.decode(gtrid)
            assert isinstance(read.incarnation, bytes)
            if read.sequence < ceilings.get(read.incarnation, 0):
                self.excused.add(gtrid)

    def _restore_decider(self) -> None:
        """The resource that decides is copied; later everything is stopped, and it is what it was then."""
        decider = self.stores["decider"]
        if self.old_decider is None:
            if self.older.random() < 0.1:
                self.trace.append("decider: its data is copied")
                self.old_decider = decider.backed_up()
            return
        if self.older.random() >= self.older_rate:
            return

        self.trace.append("decider: its data is replaced by the copy")
        self.disturbances += 1
        for process in tuple(self.processes):
            self._kill(process)
        decider.restore(self.old_decider)
        decider.heal()
        self.old_decider, self.decider_replaced = None, True
        self.excused.update(self.wrote)  # its own data is older, too
        self.finished_before.clear()  # it may not be noted any more
        for name, store in self.stores.items():
            self.begun_later |= {xid: name for xid in store.in_doubt if self._is_lost(xid.gtrid)}
        for node in self.nodes:
            self._restart(node)

    def _ceilings(self, node: str) -> Mapping[bytes, int]:
        decider = self.stores.get("decider")
        if not isinstance(decider, DecidingStore):
            return self.disks[node].ceilings
        return {one.incarnation: one.ceiling for one in decider.incarnations(node)}

    def _restore_store(self) -> None:
        """A copy of a resource manager is made while it has a branch in doubt. Later everything is stopped, the copy
        takes the place of the data, and everything starts again."""
        name = self.fate.choice([name for name in self.stores if name != "decider"])
        store = self.stores[name]
        if name not in self.backups:
            if any(state is BranchState.S3 for state in store.branches.values()) and self.fate.random() < 0.3:
                self.trace.append(f"{name}: its data is copied")
                self.backups[name] = store.backed_up()
            return
        if self.fate.random() >= self.restore_rate:
            return

        self.trace.append(f"{name}: its data is replaced by the copy")
        self.disturbances += 1
        for process in tuple(self.processes):
            self._kill(process)
        store.restore(self.backups.pop(name))
        store.heal()
        self.excused.update(self.wrote)
        for xid in store.in_doubt:
            if self._is_noted_as_over(xid.gtrid):
                self.finished_before[xid] = name
        for node in self.nodes:
            self._restart(node)

    def _is_noted_as_over(self, gtrid: bytes, *, for_good: bool = True) -> bool:
        """Whether the floor is above it: one that a crash can't lose (`for_good`), or one that may be lost by then."""
        read = Gtrid.decode(gtrid)
        assert isinstance(read.incarnation, bytes)
        disk = self.disks[read.node]
        floors: Mapping[bytes, int] = disk.floors if for_good else disk.floors | disk.lazy_floors
        decider = self.stores.get("decider")
        if isinstance(decider, DecidingStore):
            floors = {one.incarnation: one.floor for one in decider.incarnations(read.node)}
            decided = gtrid in decider.decided
        else:
            decided = gtrid in disk.decisions
        known = self.decider_mode or Incarnations(disk.noted).why_not(read.incarnation) is None
        return known and not decided and read.sequence < floors.get(read.incarnation, 0)

    def _lose_what_is_late(self) -> None:
        for name, store in self.stores.items():
            if not store.in_flight:
                self.late_since.pop(name, None)
            elif self.now - self.late_since.setdefault(name, self.now) >= LATE_STEPS - 1:
                self.trace.append(f"{name}: {store.drop()} late requests are lost")

    def _harm_store(self) -> None:
        store = self.random.choice(list(self.stores.values()))
        kind = self.random.random()
        self.disturbances += 1

        if kind < 0.3:
            self.trace.append(f"{store.name} partitioned")
            store.partition()
        elif kind < 0.6:
            self.trace.append(f"{store.name} crashed")
            store.crash()
        elif kind < 0.8:
            for xid, state in store.branches.items():
                if state in (BranchState.S1, BranchState.S2):
                    self.trace.append(f"{store.name} expires {named(xid.gtrid)}")
                    store.expire(xid)
                    break
        elif self.heuristics_allowed and not isinstance(store, DecidingStore):
            prepared = [xid for xid, state in store.branches.items() if state is BranchState.S3]
            if prepared:
                code = self.random.choice((Code.XA_HEURCOM, Code.XA_HEURRB, Code.XA_HEURHAZ))
                self.trace.append(f"{store.name}: operator {code.name} {named(prepared[0].gtrid)}")
                self.interfered = True
                store.complete_heuristically(prepared[0], code)
                self.on_their_own.add(prepared[0].gtrid)

    def _complete_by_hand(self) -> None:
        store = self.operator.choice(list(self.stores.values()))
        prepared = [xid for xid, state in store.branches.items() if state is BranchState.S3]
        if prepared and not isinstance(store, DecidingStore):
            xid = self.operator.choice(prepared)
            commit = self.operator.random() < 0.5
            self.trace.append(f"{store.name}: by hand {'committed' if commit else 'rolled back'} {named(xid.gtrid)}")
            self.disturbances += 1
            self.interfered = True
            store.complete_by_hand(xid, commit=commit)
            self.finished_before.pop(xid, None)
            self.begun_later.pop(xid, None)
            self.on_their_own.add(xid.gtrid)
            self.by_hand.setdefault(xid.gtrid, []).append((store.name, commit))

    def _deliver(self, store: ReferenceStore) -> None:
        if self.random.random() < 0.7:
            self.trace.append(f"{store.name}: {store.deliver()} late requests arrive")
        else:
            store.drop()

    def _crash(self, process: Process) -> None:
        node = process.node
        self._kill(process)
        if not any(other.node == node for other in self.processes):
            self._restart(node)

    def _kill(self, process: Process) -> None:
        self.trace.append(f"{process.node}, {process.name} killed")
        self.disturbances += not self.healing
        self.processes.remove(process)
        for owner, activity in self.activities:
            if owner is process:
                activity.close()
        self.activities = [(owner, activity) for owner, activity in self.activities if owner is not process]
        for name, client in process.clients.items():
            self.stores[name].disconnect(client)
        if process.log.held():
            self.disks[process.node].crash(self.random, self.fate)

    def _restart(self, node: str) -> None:
        process = Process(self, node)
        self.processes.append(process)
        self._start(process, self._recovery_pass(process))

    def _heal(self) -> None:
        """Everything comes back; a new process of each node recovers until nothing is left to do."""
        self.healing = True
        self.fault_rate = 0.0
        for store in self.stores.values():
            store.script.clear()
            store.heal()
            self._deliver(store)

        for process in tuple(self.processes):
            self._kill(process)
        self.now += LEASE_STEPS + 1
        for node in self.nodes:
            self._restart(node)
        for _, activity in self.activities:
            activity.close()
        self.activities.clear()
        for _ in range(4):
            for process in self.processes:
                _to_its_end(self._recovery_pass(process))

    # --- a transaction ----------------------------------------------------------------------------------------

    async def _transaction(self, process: Process) -> None:
        ports = WorldPorts(self, process)
        if self.decider_mode and self.mutant.leasing and not process.holds:
            self._take_lease(process)
            await suspension()
            if process.renew_at < self.now + 4:
                return  # nothing can begin now
            process.holds = True

        sequence = process.sequences.take()
        if not self._may_begin(process, sequence):
            return
        log_id = DECIDER_ID if self.decider_mode else process.log.log_id
        gtrid = Gtrid(process.node, log_id, process.incarnation, sequence).encode()
        names = self.random.sample(list(self.stores), self.random.randint(1, len(self.stores)))
        if self.decider_mode and "decider" not in names and len(names) > 1:
            names.append("decider")
        process.live.add(gtrid)
        branches: list[Branch] = []
        failed = False
        for name in names:
            await suspension()
            branch = Branch(name, Xid(FORMAT_ID, gtrid, name.encode()))
            if isinstance(ports.ask_one("start", branch, 0), XaError):
                failed = True
                break
            branches.append(branch)
            await suspension()
            if self.random.random() < 0.85 and not ports.write(branch):
                failed = True
                break

        decider = next((branch for branch in branches if branch.resource == "decider"), None)
        others = [branch for branch in branches if branch is not decider]
        late = self.random.random() < 0.5
        unwanted = failed or self.random.random() < 0.1
        self.disturbances += unwanted
        if unwanted:
            commit = TwoPhaseCommit(ports, gtrid, others, branches, decider, late=late)
            outcome = await commit.rollback()
        else:
            through = self.mutant.commit_through(ports)
            leaves = self.random.choice(names) if self.mutant.leaving else ""
            commit = TwoPhaseCommit(through, gtrid, others, branches, decider, late=late, leaves=leaves)
            outcome = await commit.commit()
        self.trace.append(f"{named(gtrid)} told {outcome.verdict.value}")
        self.told[gtrid] = outcome
        if outcome.heuristics:
            self.reported.add(gtrid)
        process.live.discard(gtrid)
        if commit.has_left_nothing(outcome):
            process.sequences.over(gtrid)
        else:
            process.sequences.doubt(gtrid, names)

    def _may_begin(self, process: Process, sequence: int) -> bool:
        """Whether the ceiling is above a transaction that is to begin, or could be raised."""
        note: Callable[[int], None] = process.log.note_ceiling if process.lease is None else process.lease.take
        if process.lease is not None and not self.mutant.leasing:
            note = _noted_nowhere
        try:
            if sequence >= process.sequences.ceiling:
                process.sequences.extend(sequence, note)
        except (LogError, XaError):
            self.disturbances += 1
            return False
        return True

    # --- what goes wrong with a call --------------------------------------------------------------------------

    def refuse_room(self, routine: str, branch: Branch, flags: int) -> None:
        """No room becomes free in time, perhaps."""
        store = self.stores[branch.resource]
        possible = routine in _ANSWERS and self._possible(store, routine, branch, flags, Code.XA_RETRY)
        if possible and not self.healing and self.random.random() < 0.5:
            self.disturbances += 1
            store.script.plan(routine, Code.XA_RETRY, xid=branch.xid)

    def mischief(self, routine: str, branch: Branch, flags: int) -> None:
        crucial = routine in ("commit", "decide")
        if self.random.random() >= self.fault_rate * (2 if crucial else 1):
            return

        store = self.stores[branch.resource]
        store.script.clear()
        if self.random.random() < 0.5:
            possible = [
                code for code in _ANSWERS.get(routine, ()) if self._possible(store, routine, branch, flags, code)
            ]
            if possible:
                answer = self.random.choice(possible)
                store.script.plan(routine, answer, xid=branch.xid)
                self.disturbances += 1
                self.interfered = self.interfered or answer in HEURISTIC_CODES or answer is Code.XAER_RMERR
                if answer in HEURISTIC_CODES or answer is Code.XAER_RMERR:
                    self.on_their_own.add(branch.xid.gtrid)
                if answer is Code.XAER_RMERR and routine == "commit":
                    self.forgotten.add(branch.xid.gtrid)
            return
        self.disturbances += 1
        store.script.plan(routine, None, self.random.choice(_LOSSES), xid=branch.xid)

    def _possible(self, store: ReferenceStore, routine: str, branch: Branch, flags: int, answer: Code) -> bool:
        """Whether a resource manager that keeps to the tables can give this answer now."""
        heuristic = answer in HEURISTIC_CODES or (answer is Code.XAER_RMERR and routine == "commit")
        if heuristic and (not self.heuristics_allowed or isinstance(store, DecidingStore)):
            return False  # the one that decides completes nothing on its own
        if answer is Code.XA_RDONLY and branch.resource in self.wrote.get(branch.xid.gtrid, ()):
            return False  # a resource manager that forgets work is not a fault that a manager can mend
        verb = _VERBS.get((routine, bool(flags & (TMFAIL | TMONEPHASE))))
        state = store.branches.get(branch.xid, BranchState.S0)
        if state is BranchState.S5:
            return False  # it answers as it was completed
        return verb is None or any(
            (at, by, result) == (state, verb, RESULT_OF[answer]) for at, by, result, _, _ in BRANCH.transitions()
        )

    # --- recovery ---------------------------------------------------------------------------------------------

    async def _recovery_pass(self, process: Process) -> None:
        process.recovering = True
        deciders = {DECIDER_ID: "decider"} if self.decider_mode else {}
        try:
            own = process.incarnation if self.decider_mode else b""
            began_at = self.clock()
            ownership = Ownership(process.node, process.log.log_id, process.log.incarnations, deciders, own)
            report = await self.mutant.recovery(WorldPorts(self, process), ownership)
        except LogError:
            return
        finally:
            process.recovering = False
        process.sequences.passed(began_at, {one.branch.xid.gtrid for one in report.findings}, report.unreachable)
        self._raise_floors(process, began_at, report)

        for finding in report.findings:
            xid = finding.branch.xid
            before = xid in self.finished_before or self._seemed_over(xid.gtrid)
            before = before or self._is_noted_as_over(xid.gtrid, for_good=False)
            if finding.why in (FINISHED, OVER_BEFORE) and not before:
                self.false_claims.append(f"{named(xid.gtrid)} is told to have been finished before")
            elif finding.action is Action.STRANDED and not before and not self._is_lost(xid.gtrid):
                self.false_claims.append(f"{named(xid.gtrid)} is left alone: {finding.why}")
            self.trace.append(f"recovery: {named(finding.branch.xid.gtrid)} {finding.branch.resource} {finding.action}")
            if finding.action is Action.HEURISTIC:
                self.reported.add(finding.branch.xid.gtrid)
            elif finding.action is Action.NOT_THERE:
                self.missed.add((finding.branch.xid.gtrid, finding.branch.resource))

    def _raise_floors(self, process: Process, began_at: float, report: Report) -> None:
        left_nothing = self.mutant.left_nothing(report)
        for place, incarnation in process.former.passed(
            began_at, self.clock(), report.ended_incarnations, left_nothing
        ):
            if any(other.incarnation == incarnation for other in self.processes):
                self.seemed_over.add(incarnation)
            if place == IN_LOG:
                process.log.note_floor(OVER, incarnation)
            else:
                owner = Owner(process.node, incarnation, "")
                ports = WorldPorts(self, process)
                ports.called(place, partial(_over, owner))
            self.trace.append(f"nothing is left of {incarnation.hex()}")

    # --- the checker ------------------------------------------------------------------------------------------

    def violations(self) -> list[str]:
        """What is wrong after quiescence."""
        found = list(self.false_claims)
        for gtrid, names in self.wrote.items():
            if gtrid not in self.excused:
                found += self._untold(gtrid) if gtrid in self.by_hand else self._violations_of(gtrid, names)
        found += [
            f"{name}: {named(xid.gtrid)} was finished before, and recovery has presumed its outcome"
            for xid, name in self.finished_before.items()
            if xid not in self.stores[name].in_doubt
        ]
        found += [
            f"{name}: {named(xid.gtrid)} was begun later, and recovery has presumed its outcome"
            for xid, name in self.begun_later.items()
            if xid not in self.stores[name].in_doubt
        ]
        noted = {h.branch.xid for disk in self.disks.values() for h in disk.heuristics.values()}
        given_up = {xid for xid in noted if xid.gtrid not in self.excused}
        for name, store in self.stores.items():
            found += [
                f"{name}: {named(xid.gtrid)} left in doubt"
                for xid in store.in_doubt
                if xid not in noted and not self._is_lost(xid.gtrid) and xid not in self.finished_before
            ]
            prepared = [xid for xid, state in store.branches.items() if state is BranchState.S3]
            found += [f"{name}: {named(xid.gtrid)} given up, and prepared still" for xid in prepared if xid in given_up]
            if isinstance(store, DecidingStore):
                found += [f"{name}: decision of {named(gtrid)} never ended" for gtrid in store.decided]

        for node, disk in self.disks.items():
            open_decisions = set(disk.decisions) - disk.lazily_ended
            found += [f"{node}: decision of {named(gtrid)} never ended" for gtrid in open_decisions]
        return found

    def _is_lost(self, gtrid: bytes) -> bool:
        """Whether its node's log, or the decider, was replaced by an older copy, which leaves alone what it may have
        known since."""
        read = Gtrid.decode(gtrid)
        if read.node not in self.replaced and not self.decider_replaced:
            return self._seemed_over(gtrid)
        assert isinstance(read.incarnation, bytes)
        if read.sequence >= self._ceilings(read.node).get(read.incarnation, 0):
            return True
        incarnations = Incarnations(dict(self.disks[read.node].noted))
        return not self.decider_mode and incarnations.why_not(read.incarnation) is not None

    def _seemed_over(self, gtrid: bytes) -> bool:
        return Gtrid.decode(gtrid).incarnation in self.seemed_over

    def _violations_of(self, gtrid: bytes, names: list[str]) -> list[str]:
        data = {name: f"{gtrid.hex()}@{name}" in self.stores[name].data for name in names}
        outcome = self.told.get(gtrid)
        who = named(gtrid)
        if outcome is not None and self._is_false_alarm(outcome):
            return [f"{who}: told {outcome.verdict.value}, though nothing was in its way"]
        noted = any(branch.xid.gtrid == gtrid for disk in self.disks.values() for branch in disk.heuristics)
        if (noted or gtrid in self.reported) and gtrid not in self.on_their_own:
            return [f"{who}: a heuristic outcome is reported, and nobody completed a branch on his own"]
        untold = outcome is None or outcome.verdict is Verdict.UNKNOWN
        if noted or gtrid in self.reported or (gtrid in self.forgotten and untold):
            return []

        if self._is_lost(gtrid):  # what is in doubt there is left alone
            for name in names:
                if any(xid.gtrid == gtrid for xid in self.stores[name].in_doubt):
                    del data[name]
        if len(set(data.values())) > 1:
            return [f"{who}: split, {data}, told {outcome and outcome.verdict.value}, and no heuristic reported"]
        committed = all(data.values())
        if outcome is not None:
            if (outcome.verdict is Verdict.COMMITTED or outcome.decided) and not committed:
                return [f"{who}: told {outcome.verdict.value}, decided {outcome.decided}, but nothing is committed"]
            if outcome.verdict is Verdict.ROLLED_BACK and data and committed:
                return [f"{who}: told rolled back, but everything is committed"]
        if any(gtrid in disk.ever_decided for disk in self.disks.values()) and not committed:
            return [f"{who}: decided in the log, but nothing is committed"]
        return []

    def _untold(self, gtrid: bytes) -> list[str]:
        """The law about what an operator has completed by hand: it agrees with the decision, or it is told, as far as
        the resource can know. Of what was not decided nothing can be told."""
        if Gtrid.decode(gtrid).node in self.replaced:
            return []  # the decision may be lost with the log
        if gtrid not in self.decided_there and not any(gtrid in disk.ever_decided for disk in self.disks.values()):
            return []
        noted = any(branch.xid.gtrid == gtrid for disk in self.disks.values() for branch in disk.heuristics)
        found = []
        for name, committed in self.by_hand[gtrid]:
            if committed or noted or gtrid in self.reported:
                continue
            if self.stores[name].tells_outcomes:
                found.append(f"{named(gtrid)}: rolled back by hand on {name}, which knows, and no heuristic reported")
            elif (gtrid, name) not in self.missed | self.unanswered and gtrid not in self.unheld:
                found.append(f"{named(gtrid)}: rolled back by hand on {name}, and nobody was told")
        return found

    def _is_false_alarm(self, outcome: Outcome) -> bool:
        """Whether it tells of damage where nobody did anything on his own, or of no commit where every transaction
        should have been committed: no faults, nobody stood still or was killed, and nobody wanted a rollback."""
        if outcome.heuristics and not self.interfered:
            return True
        return not self.disturbances and outcome.verdict is not Verdict.COMMITTED


def _prepared(client: ReferenceResource) -> Sequence[Xid]:
    return client.recover(1, TMSTARTRSCAN)


def _over(owner: Owner, decider: ReferenceDecider) -> None:
    decider.hold(owner, 0, 1, OVER, OVER)


def _nothing(_: ReferenceResource) -> Sequence[Xid]:
    return ()


def _to_its_end(activity: Coroutine[None, None, None]) -> None:
    try:
        while True:
            activity.send(None)
    except StopIteration:
        return


def _refusal(work: Callable[[], None]) -> LogError | None:
    try:
        work()
    except LogError as error:
        return error
    return None


def _is_full(answer: Any) -> bool:
    return isinstance(answer, XaError) and answer.code is Code.XAER_ASYNC
