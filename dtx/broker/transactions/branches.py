"""Branches: the registry of xids, and what happens to the branch of each.

A branch moves by the branch table of xa, and only when what justifies the move has happened: a prepare that
is being forced leaves the branch idle until the store says that it is durable. Operations on one branch
take their turn. Timers and lost connections never touch a prepared branch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from typing import TYPE_CHECKING, Final

from dtx.amqp.conditions import Condition
from dtx.broker.queues.entry import Entry
from dtx.broker.transactions.transactional_work import TransactionalWork
from dtx.protocol.conditions import Refusal, refused
from dtx.store.contract import StoreDamaged
from xa import Code, Xid
from xa.machine import Result, advance
from xa.state_tables import BRANCH, AssociationState, BranchState, BranchVerb

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Collection, Iterator, Mapping

    from dtx.broker.queues.queue import Queue
    from dtx.broker.timer_queue import Timer
    from dtx.broker.transactional_resource import TransactionalResource
    from dtx.broker.transactions.contexts import DistributedContext
    from dtx.protocol.replies import Reply
    from dtx.store.contract import Restored

    Answer = Callable[[Reply], None]

HEURISTIC: Final = {True: Code.XA_HEURCOM, False: Code.XA_HEURRB}
IN_DOUBT: Final = frozenset({BranchState.S3, BranchState.S5})
UNPREPARED: Final = frozenset({BranchState.S1, BranchState.S2, BranchState.S4})
MAX_TIMEOUT_S: Final = 7 * 24 * 3600
EXPIRING: Final = frozenset({BranchState.S1, BranchState.S2})


class Branch:
    """One branch, as long as it exists."""

    __slots__ = (
        "_cause",
        "_cause_text",
        "_registry",
        "associations",
        "deadline",
        "number",
        "outcome",
        "owner",
        "since_ms",
        "state",
        "timeout_s",
        "timer",
        "waiting",
        "work",
        "xid",
    )

    def __init__(self, registry: Registry, xid: Xid, owner: str, work: TransactionalWork) -> None:
        self.xid = xid
        self.owner = owner
        self.work = work
        self.state = BranchState.S0
        self.associations: list[DistributedContext] = []
        self.number = 0
        """Its key in the store, once it is prepared."""
        self.outcome: Code | None = None
        """How it was completed heuristically."""

        self.timeout_s = 0
        self.deadline = 0.0
        self.timer: Timer | None = None
        """The timer of what is to happen if nothing does; one at a time."""
        self.since_ms = 0
        self.waiting: deque[Callable[[], None]] | None = None
        """The operations that wait while one is being forced; None when none is."""
        self._registry = registry
        self._cause: Code | None = None
        """Why it will be, or is, rollback-only."""
        self._cause_text = ""

    # -- what moves it
    def move(self, verb: BranchVerb, result: Result = Result.OK) -> None:
        """One step in the branch table; `legal` was asked before."""
        self.state = advance(BRANCH, self.state, verb, result)

    def legal(self, verb: BranchVerb) -> None:
        """RefusedError when the table has no row for `verb` now."""
        code = BRANCH.refusal(self.state, verb)
        if code is not None:
            raise refused(code, f"{verb.value} is not possible: the branch is {self.state.value}", self.xid)

    def why(self) -> Refusal:
        """Why the branch takes no work, or can't be prepared."""
        code = self._cause or Code.XA_RBROLLBACK
        condition = Condition.TIMEOUT if code is Code.XA_RBTIMEOUT else Condition.ROLLBACK
        return Refusal(condition, self._cause_text or "the branch is rollback-only", code, self.xid)

    @property
    def cause(self) -> Code:
        """The rollback code that tells why the branch is, or will be, rollback-only."""
        return self._cause or Code.XA_RBROLLBACK

    @property
    def failed(self) -> bool:
        """Whether the next end answers with a rollback code."""
        return self._cause is not None

    def fail(self, message: str, code: Code = Code.XA_RBOTHER) -> None:
        """The branch can't succeed any more; every end of it says so."""
        if self._cause is None and self.state in UNPREPARED:
            self._cause, self._cause_text = code, f"the branch is rollback-only: {message}"

    def undo(self, verb: BranchVerb, message: str, code: Code, result: Result = Result.OK) -> None:
        """The branch becomes rollback-only, and what it holds is free."""
        self.fail(message, code)
        self.move(verb, result)
        self._registry.undo(self)

    # -- who is at work
    @property
    def active(self) -> int:
        """How many associations are at work."""
        return sum(1 for one in self.associations if one.state is AssociationState.T1)

    @property
    def suspended(self) -> int:
        """How many associations are suspended."""
        return sum(1 for one in self.associations if one.state is AssociationState.T2)


class BranchIndex:
    """An index of the prepared branches by the queues whose messages they retire or post.

    What a prepared branch holds does not change any more. So it is put into the index only with the first request after
    it was prepared: transactions cost next to nothing more, and a request costs as much as its answer is long.
    """

    def __init__(self) -> None:
        self._fresh: dict[Branch, None] = {}
        """Branches that were prepared since somebody asked."""
        self._holdings: dict[Branch, Mapping[str, tuple[int, int]]] = {}
        self._by_queue: dict[str, dict[Branch, None]] = {}
        self._posted: Counter[str] = Counter()
        """By queue: how many messages all of them post."""

    def add(self, branch: Branch) -> None:
        """A branch is prepared."""
        self._fresh[branch] = None

    def drop(self, branch: Branch) -> None:
        """A branch is decided, or never was prepared."""
        if branch in self._fresh:
            del self._fresh[branch]
        elif self._holdings:
            for queue, (_, posted) in self._holdings.pop(branch, {}).items():
                branches = self._by_queue[queue]
                del branches[branch]
                self._posted[queue] -= posted
                if not branches:
                    del self._by_queue[queue], self._posted[queue]

    def holdings(self, branch: Branch) -> Mapping[str, tuple[int, int]]:
        """By queue: how many messages the branch retires, and how many it posts."""
        known = self._holdings.get(branch)
        return branch.work.holdings() if known is None else known

    def of(self, queue: str) -> Collection[Branch]:
        """The prepared branches that hold messages of a queue."""
        while self._fresh:
            branch, _ = self._fresh.popitem()
            held = self._holdings[branch] = branch.work.holdings()
            for name, (_, posted) in held.items():
                self._by_queue.setdefault(name, {})[branch] = None
                self._posted[name] += posted
        return self._by_queue.get(queue, {})

    def posted_to(self, queue: str) -> int:
        """How many messages the branches that `of` has found post to a queue."""
        return self._posted[queue]


class Registry:
    """Every branch by its xid."""

    def __init__(self, resource: TransactionalResource) -> None:
        self._resource = resource
        self._branches: dict[Xid, Branch] = {}
        self._in_doubt: list[Xid] = []
        self._in_doubt_of: dict[str, list[Xid]] = {}
        """The same by owner: who may see the own ones only is not kept waiting by those of others."""
        self._of_gtrid: dict[tuple[int, bytes], dict[Xid, Branch]] = {}
        self._of_user: Counter[str] = Counter()
        self._dead: dict[str, dict[Xid, Branch]] = {}
        """By owner: rollback-only branches with which no session is associated, in the order in which they became
        so."""
        self.prepared_by_queue = BranchIndex()

    # -- opening
    def restore(self, restored: Restored) -> None:
        """Takes the stored branches, and puts the stored messages into the queues, locked where a
        prepared branch holds them."""
        locked = {dequeue.message for branch in restored.branches for dequeue in branch.dequeues}
        entries = self._resource.restore_messages(restored, locked)
        queues = {queue.number: queue for queue in (*self._resource.queues.values(), *self._resource.topics)}
        for stored in restored.branches:
            branch = Branch(
                self,
                stored.xid,
                stored.owner,
                TransactionalWork(self._resource.limits, self._resource.unstored, self._resource.reasons),
            )
            branch.number, branch.since_ms, branch.outcome = stored.number, stored.prepared_ms, stored.outcome
            branch.state = BranchState.S3
            if any(post.queue not in queues for post in stored.enqueues):
                raise StoreDamaged(
                    f"the branch {stored.xid} posts to a queue that the store lacks: restore the store from a copy"
                )
            posts = [
                Entry(
                    queues[post.queue],
                    post.number,
                    post.size,
                    post.expires_ms,
                    due_ms=post.due_ms,
                    group=post.group,
                )
                for post in stored.enqueues
            ]
            for post in posts:
                self._resource.restore_origin(post)
            retired = [(entries[one.message], one.outcome) for one in stored.dequeues if one.message in entries]
            branch.work.restore(posts, retired)
            if stored.outcome is not None:
                branch.move(BranchVerb.DECIDE)
                branch.since_ms = stored.completed_ms
            else:
                self.prepared_by_queue.add(branch)
            self._add(branch)

        self._resource.drop_origins()
        self._in_doubt = sorted(self._branches)
        for xid in self._in_doubt:
            self._in_doubt_of.setdefault(self._branches[xid].owner, []).append(xid)

    def _add(self, branch: Branch) -> None:
        self._branches[branch.xid] = branch
        self._of_user[branch.owner] += 1
        self._of_gtrid.setdefault((branch.xid.format_id, branch.xid.gtrid), {})[branch.xid] = branch

    # -- finding
    def of(self, format_id: int, gtrid: bytes) -> list[Branch]:
        """The branches of a global transaction."""
        return list(self._of_gtrid.get((format_id, gtrid), {}).values())

    def __len__(self) -> int:
        return len(self._branches)

    def __iter__(self) -> Iterator[Branch]:
        return iter(self._branches.values())

    def find(self, xid: Xid) -> Branch:
        """The branch; RefusedError where there is none."""
        branch = self._branches.get(xid)
        if branch is None:
            raise refused(Code.XAER_NOTA, "there is no such branch", xid)
        return branch

    def holds(self, queue: Queue) -> bool:
        """Whether a branch that is prepared, or is being prepared, has taken messages from a queue."""
        if any(self.prepared_by_queue.holdings(one)[queue.name][0] for one in self.prepared_by_queue.of(queue.name)):
            return True
        preparing = [branch for branch in self.unprepared() if branch.waiting is not None]
        return any(branch.work.holdings().get(queue.name, (0, 0))[0] for branch in preparing)

    @property
    def in_doubt_count(self) -> int:
        """How many branches are prepared or heuristically completed."""
        return len(self._in_doubt)

    def in_doubt(self, after: Xid, prefix: bytes, owner: str | None = None) -> Iterator[Branch]:
        """Prepared and heuristically completed branches behind `after`, in the order of their xids, of gtrids
        that begin with `prefix`; only those of `owner` where that is named."""
        in_doubt = self._in_doubt if owner is None else self._in_doubt_of.get(owner, [])
        at = 0 if after.is_null else bisect_right(in_doubt, after)
        for index in range(at, len(in_doubt)):
            xid = in_doubt[index]
            if xid.gtrid.startswith(prefix):
                yield self._branches[xid]

    def unprepared(self) -> list[Branch]:
        """Branches that somebody works for, or that are rollback-only."""
        if len(self._branches) == len(self._in_doubt):
            return []
        return [branch for branch in self._branches.values() if branch.state in UNPREPARED]

    # -- beginning and ending
    def make(self, xid: Xid, owner: str) -> Branch:
        """A new branch, which somebody is about to work for."""
        known = self._branches.get(xid)
        if known is not None:
            raise refused(Code.XAER_DUPID, f"the branch exists already, it is {known.state.value}", xid)
        limits = self._resource.limits
        if self._of_user[owner] >= limits.branches_per_user and not self._forget_dead(owner):
            message = f"{owner or 'anonymous'} has {self._of_user[owner]} branches, as many as a user may have"
            raise refused(Code.XA_RETRY, message, xid)
        if len(self._branches) >= limits.branches and not any(map(self._forget_dead, tuple(self._dead))):
            raise refused(Code.XA_RETRY, f"there are {len(self._branches)} branches", xid)

        branch = Branch(
            self, xid, owner, TransactionalWork(self._resource.limits, self._resource.unstored, self._resource.reasons)
        )
        branch.since_ms = self._resource.clock.wall_ms()
        branch.move(BranchVerb.START)
        self._add(branch)
        self.set_timeout(branch, 0)
        return branch

    @staticmethod
    def check_timeout(timeout_s: int, xid: Xid) -> None:
        """RefusedError: what an unprepared branch holds must not stay away from all others for so long."""
        if timeout_s > MAX_TIMEOUT_S:
            message = f"a timeout of {timeout_s} s is above the largest, {MAX_TIMEOUT_S} s"
            raise refused(Code.XAER_INVAL, message, xid)

    def set_timeout(self, branch: Branch, timeout_s: int) -> None:
        """From now on the branch may take so long; 0 is the default."""
        branch.timeout_s = timeout_s or self._resource.settings.branch_timeout_s
        branch.deadline = self._resource.clock.monotonic() + branch.timeout_s
        if branch.state in EXPIRING:
            self._after(branch.timeout_s, branch, self._expire)

    def _after(self, delay_s: float, branch: Branch, call: Callable[[Branch], None]) -> None:
        if branch.timer is not None:
            branch.timer.cancel()
        branch.timer = self._resource.after(delay_s, lambda: call(branch))

    def _expire(self, branch: Branch) -> None:
        now = self._resource.clock.monotonic()
        if branch.state not in UNPREPARED or now < branch.deadline:
            return
        if branch.waiting is not None:  # a prepare, commit or rollback is being forced: it decides
            self._after(1.0, branch, self._expire)
        elif branch.state is not BranchState.S4:
            message = f"it was not prepared within {branch.timeout_s} s"
            branch.undo(BranchVerb.EXPIRE, message, Code.XA_RBTIMEOUT)

    def undo(self, branch: Branch) -> None:
        """Undoes the work of a branch that is not prepared; it is remembered for a while."""
        self.undo_now(branch)
        self._dead.setdefault(branch.owner, {})[branch.xid] = branch
        self._after(self._resource.settings.rollback_only_s, branch, self._let_go)

    def _forget_dead(self, owner: str) -> bool:
        """Forgets the oldest rollback-only branch of `owner` that no session works for; whether there was one."""
        for branch in self._dead.get(owner, {}).values():
            if branch.state is BranchState.S4 and not branch.associations and branch.waiting is None:
                branch.move(BranchVerb.ROLLBACK)
                self.remove(branch)
                return True
        return False

    def _let_go(self, branch: Branch) -> None:
        """No one asked for the outcome of the rollback-only branch; presumed abort says the same."""
        if branch.state is BranchState.S4 and self._branches.get(branch.xid) is branch:
            if branch.associations or branch.waiting is not None:
                self._after(60.0, branch, self._let_go)
            else:
                branch.move(BranchVerb.ROLLBACK)
                self.remove(branch)

    def prepared(self, branch: Branch) -> None:
        """The branch is in doubt from now on: no timer may touch it."""
        insort(self._in_doubt, branch.xid)
        insort(self._in_doubt_of.setdefault(branch.owner, []), branch.xid)
        self.prepared_by_queue.add(branch)
        if branch.timer is not None:
            branch.timer.cancel()

    def undo_now(self, branch: Branch) -> None:
        """Undoes what is not prepared."""
        batch = self._resource.turn.batch
        branch.work.rollback(branch.work.write_rollback(batch, stored=False), batch)

    def remove(self, branch: Branch) -> None:
        """The branch is gone."""
        if self._branches.pop(branch.xid, None) is not None:
            self._of_user[branch.owner] -= 1
            if not self._of_user[branch.owner]:
                del self._of_user[branch.owner]
            related = self._of_gtrid[branch.xid.format_id, branch.xid.gtrid]
            del related[branch.xid]
            if not related:
                del self._of_gtrid[branch.xid.format_id, branch.xid.gtrid]
        dead = self._dead.get(branch.owner)
        if dead is not None:
            dead.pop(branch.xid, None)
            if not dead:
                del self._dead[branch.owner]

        self.prepared_by_queue.drop(branch)
        if branch.timer is not None:
            branch.timer.cancel()
        own = self._in_doubt_of.get(branch.owner, [])
        for in_doubt in (self._in_doubt, own):
            at = bisect_left(in_doubt, branch.xid)
            if at < len(in_doubt) and in_doubt[at] == branch.xid:
                del in_doubt[at]
        if not own:
            self._in_doubt_of.pop(branch.owner, None)
