"""DecidingBroker: an AMQP 1.0 broker with local transactions as the one that decides. Its work and the decision are
committed together, by the discharge of one local transaction, so that it needs no distributed transactions.

Branches are local transactions (`rm_amqp.local_branches`), decisions are kept in tokens (`rm_amqp.token_log`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from dtx.protocol.conditions import RefusedError
from rm_amqp.connected import GOODBYE_S, R1
from rm_amqp.founding import founded
from rm_amqp.local import ROLLED_BACK, LocalChannel
from rm_amqp.local_branches import LocalBranches
from rm_amqp.loss import AllInUse, ConnectionLost, TimedOut
from rm_amqp.pool import Pool
from rm_amqp.reporting import diagnosed_decider, seen
from rm_amqp.settings import parse
from rm_amqp.standing import Scan
from rm_amqp.token_log import Attempt, TokenLog, WornTokenError, patience
from rm_amqp.token_queues import TokenBusyError
from rm_amqp.tokens import ID_SIZE, Founding, TooManyLeasesError, WrongTokenError
from xa import (
    ROLLBACK_CODES,
    TMENDRSCAN,
    TMONEPHASE,
    TMSTARTRSCAN,
    Code,
    XaError,
    check_flags,
    xa_error,
)
from xa.machine import advance
from xa.tables import (
    RESOURCE,
    BranchVerb,
    ResourceVerb,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rm_amqp.core import Steps
    from rm_amqp.local_branches import LocalBranch
    from rm_amqp.reporting import Tokens
    from rm_amqp.settings import Settings
    from rm_amqp.standing import Standing
    from rm_amqp.tokens import Token
    from xa import Completion, DecisionRecord, Handle, Owner, Registrar, Xid
    from xa.diagnosis import Diagnosis

logger = logging.getLogger("xabridge.rm_amqp")

T = TypeVar("T")
SLOTS: Final = 8
"""Tokens that are made where nobody has made any, unless the open string says how many."""
LEASE_CHANNELS: Final = 2
"""Beside those of the work: one who renews a lease waits at the most for one who reads them."""


class DecidingBroker(LocalBranches):
    """One instance. Open string: as `rm_amqp.settings` says, with or without `decider+` before it.

    Nothing is asynchronous here, and no branch is ever prepared or in doubt.
    """

    name = "xabridge deciding broker"
    flags = 0

    def __init__(
        self,
        registrar: Registrar | None = None,  # noqa: ARG002 — static
        wall: Callable[[], float] = time.time,
        **surroundings: Any,
    ) -> None:
        super().__init__(**surroundings)
        self._wall = wall
        self._opening = threading.Lock()
        self._log: TokenLog | None = None
        self._leases: Pool | None = None

    @property
    def identity(self) -> str:
        """As `xa.ResourceManager` says: a local transaction can't be shared with another instance."""
        return f"{self.settings.identity}#{self.container}"

    @property
    def decider_id(self) -> bytes:
        """As `xa.DecidingResource` says."""
        return self._tokens("decider_id").founding.founder

    def _known(self, gtrid: bytes) -> int:
        return self._tokens("start").known(gtrid)

    def _tokens(self, verb: str) -> TokenLog:
        if self._log is None:
            raise xa_error(Code.XAER_PROTO, f"{verb}: the resource manager is not open")
        return self._log

    # --- open and close ---------------------------------------------------------------------------------------
    def open(self, open_string: str, rmid: int, flags: int = 0) -> Code | Handle:
        """As `xa.ResourceManager` says. The first time it finds, or makes, the tokens."""
        check_flags("open", flags, self.flags)
        settings = parse(open_string)
        standing = self._standing()
        self._begin_open(settings, rmid)
        with self._opening:
            self._guarded(standing, "open", None, self._reach if self._log is not None else self._found)
        self._end_open(standing, rmid)
        return Code.XA_OK

    def _reach(self) -> None:
        with contextlib.suppress(AllInUse):  # they are: the broker was reached
            self.pool.give(self.pool.take(self.deadline(), wait=False))

    def _found(self) -> None:
        settings, deadline = self.settings, self.deadline()
        own = Founding(self._nonce(ID_SIZE), settings.slots or SLOTS)
        seat = self.pool.take(deadline)
        channel = seat.channel
        assert isinstance(channel, LocalChannel)  # noqa: S101 — the pool's select makes no others
        try:
            until_s = patience(self._clock(), settings, deadline)
            founding = seat.line.run(founded(channel, own, until_s, deadline))
        except RefusedError as error:
            self.pool.discard(seat)
            raise _unusable_queues(error, settings.token_queue, own.slots) from None
        except BaseException:
            self.pool.discard(seat)
            raise
        self.pool.give(seat)
        if settings.slots not in {0, founding.slots}:
            raise xa_error(
                Code.XAER_INVAL,
                f"open: slots={settings.slots}, but {settings.token_queue} was made with {founding.slots}, for good; "
                "leave slots= away, or name another token_queue",
            )
        assert self._leases is not None  # noqa: S101 — made with the other pool
        self._log = TokenLog(self.pool, self._leases, self._clock, settings, founding)

    def _use(self, settings: Settings) -> None:
        super()._use(settings)
        assert self._dial is not None  # noqa: S101 — made above
        own = replace(settings, channels=LEASE_CHANNELS)
        self._leases = Pool(own, self._dial, self._clock, self._select)
        self._keep(self._leases)

    def _disconnect(self) -> None:
        leases, self._leases = self._leases, None
        if leases is not None:
            leases.close(self._clock() + GOODBYE_S)
        super()._disconnect()

    def drop(self) -> None:
        """As Connected says."""
        leases, self._leases = self._leases, None
        if leases is not None:
            leases.drop()
        super().drop()

    def close(self, close_string: str, rmid: int, flags: int = 0) -> Code | Handle:  # noqa: ARG002 — says nothing here
        """As `xa.ResourceManager` says. Branches that are left are rolled back."""
        check_flags("close", flags, self.flags)
        standing = self._standing()
        with self._lock:
            if self._state is R1:
                self._check_open("close", rmid)
                if standing.current is not None and not standing.lost:
                    raise xa_error(Code.XAER_PROTO, "close: this thread is at work; end that first")
            if self._log is not None and self._pool is not None:
                try:
                    self._log.flush(self.deadline())
                except (ConnectionLost, TimedOut, TokenBusyError, RefusedError, WrongTokenError) as why:
                    logger.info("ended decisions are left to the next recovery: %s", why)
            self._branches.clear()
            self._disconnect()
            self._log = None
            self._state = advance(RESOURCE, self._state, ResourceVerb.CLOSE)
            for known in self._standings.values():
                known.seat = known.current = known.scan = None
                known.suspended.clear()
                known.lost = False
        return Code.XA_OK

    # --- completion -------------------------------------------------------------------------------------------
    def decide(self, xid: Xid, rmid: int, record: bytes) -> Code:
        """As `xa.DecidingResource` says."""
        standing = self._caller("decide", rmid)
        branch = self._find("decide", BranchVerb.COMMIT_ONE_PHASE, xid)
        log, deadline = self._tokens("decide"), self.deadline()
        attempt = Attempt(xid.gtrid, record, branch.known)

        def decided() -> None:
            try:
                branch.seat.line.run(log.decide(branch.channel, branch.work, attempt, deadline))
            except WornTokenError as worn:
                log.renew(worn.slot, deadline)
                branch.seat.line.run(log.decide(branch.channel, branch.work, attempt, deadline))

        return self._complete(standing, "decide", branch, attempt, decided)

    def commit(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        """With TMONEPHASE only, as `xa.DecidingResource` says."""
        standing = self._enter("commit", rmid, flags)
        if not flags & TMONEPHASE:
            raise xa_error(Code.XAER_PROTO, "commit: the one that decides commits by decide, or with TMONEPHASE", xid)
        branch = self._find("commit", BranchVerb.COMMIT_ONE_PHASE, xid)
        attempt = Attempt(xid.gtrid, b"", branch.known, asked=True)
        steps = branch.channel.discharge(branch.work, self.deadline(), fail=False)
        return self._complete(standing, "commit", branch, attempt, lambda: branch.seat.line.run(steps))

    def rollback(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        """As `xa.ResourceManager` says."""
        self._enter("rollback", rmid, flags)
        branch = self._branches.get(xid)
        if branch is None:
            raise xa_error(Code.XAER_NOTA, "rollback: no such branch in this instance", xid)
        self._check_move("rollback", BranchVerb.ROLLBACK, branch)
        self._undo(branch)
        self._over(branch, BranchVerb.ROLLBACK, Code.XA_OK)
        return Code.XA_OK

    def prepare(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        """Refused, as `xa.DecidingResource` says."""
        self._enter("prepare", rmid, flags)
        raise xa_error(Code.XAER_PROTO, "prepare: the one that decides is not prepared", xid)

    def forget(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        """As `xa.ResourceManager` says. No branch is ever completed heuristically here."""
        self._enter("forget", rmid, flags)
        raise xa_error(Code.XAER_NOTA, "forget: no branch is ever completed heuristically here", xid)

    def recover(self, rmid: int, flags: int = 0, count: int = 1000) -> Sequence[Xid]:
        """As `xa.ResourceManager` says: nothing is ever in doubt here."""
        standing = self._enter("recover", rmid, flags)
        if count < 1:
            raise xa_error(Code.XAER_INVAL, f"recover: count {count} is below 1")
        if not flags & TMSTARTRSCAN and standing.scan is None:
            raise xa_error(Code.XAER_INVAL, "recover: no scan is open and TMSTARTRSCAN was not given")
        standing.scan = None if flags & TMENDRSCAN else Scan(over=True)
        return []

    def complete(self, handle: Handle | None, rmid: int, flags: int = 0) -> Completion:
        """As `xa.ResourceManager` says: no operation is ever outstanding here."""
        check_flags("complete", flags, self.flags)
        self._check_open("complete", rmid)
        raise xa_error(Code.XAER_INVAL, f"complete: no operation {handle} is outstanding")

    def _find(self, verb: str, move: BranchVerb, xid: Xid) -> LocalBranch:
        """The branch that is to be committed. A rollback-only one is gone with this, and its reason raised."""
        branch = self._branches.get(xid)
        if branch is None:
            raise xa_error(Code.XAER_NOTA, f"{verb}: no such branch in this instance", xid)
        self._check_move(verb, move, branch)
        if branch.reason is not None:
            self._over(branch, move, branch.reason.code)
            raise branch.reason
        return branch

    def _complete(
        self, standing: Standing, verb: str, branch: LocalBranch, attempt: Attempt, call: Callable[[], None]
    ) -> Code:
        """Carries out what commits a branch. Before the discharge was sent, nothing can have been committed."""
        xid = branch.xid
        try:
            call()
        except (TokenBusyError, WrongTokenError) as why:
            error = xa_error(Code.XA_RBTRANSIENT, f"{verb}: {why}", xid)
        except RefusedError as refusal:
            told = refusal.refusal
            if attempt.asked and told.condition not in ROLLED_BACK:
                why_not = f"{verb}: the broker did not say what became of it ({told.condition}: {told.description})"
                raise self._unknown(standing, branch, why_not) from None
            code = told.code if told.code in ROLLBACK_CODES else Code.XA_RBOTHER
            error = xa_error(code, f"{verb}: {told.description or told.condition}", xid)
        except (ConnectionLost, TimedOut) as why:
            if attempt.asked:
                raise self._unknown(standing, branch, f"{verb}: {why}; its outcome is unknown here") from None
            error = xa_error(Code.XA_RBCOMMFAIL, f"{verb}: {why}; nothing of it was committed", xid)
        except BaseException:  # an interruption: nobody knows what the broker has heard
            self._discard(branch)
            raise
        else:
            self._over(branch, BranchVerb.COMMIT_ONE_PHASE, Code.XA_OK)
            return Code.XA_OK
        self._undo(branch)
        self._over(branch, BranchVerb.COMMIT_ONE_PHASE, error.code)
        raise error

    def _unknown(self, standing: Standing, branch: LocalBranch, why: str) -> XaError:
        self._discard(branch)
        self._lose(standing)
        return xa_error(Code.XAER_RMFAIL, why, branch.xid)

    # --- leases -----------------------------------------------------------------------------------------------
    def hold(self, owner: Owner, lease_s: float, rmid: int) -> None:
        """As `xa.DecidingResource` says. XA_RETRY where somebody holds the lease token for too long."""
        standing = self._caller("hold", rmid)
        log, now_ms = self._tokens("hold"), int(self._wall() * 1000)
        until_ms = now_ms + int(lease_s * 1000)
        try:
            self._guarded(standing, "hold", None, lambda: log.hold(owner, until_ms, now_ms, self.deadline()))
        except TooManyLeasesError as error:
            raise xa_error(Code.XAER_RMERR, f"hold: {error}") from None

    def owners(self, rmid: int) -> Sequence[Owner]:
        """As `xa.DecidingResource` says. XA_RETRY where somebody holds the lease token for too long."""
        standing = self._caller("owners", rmid)
        log = self._tokens("owners")
        return self._guarded(
            standing, "owners", None, lambda: log.owners(int(self._wall() * 1000), self.deadline())
        )  # fmt: skip

    # --- decisions --------------------------------------------------------------------------------------------
    def settle(self, gtrid: bytes, rmid: int) -> bytes | None:
        """As `xa.DecidingResource` says."""
        standing = self._caller("settle", rmid)
        log = self._tokens("settle")
        return self._guarded(standing, "settle", None, lambda: log.settle(gtrid, self.deadline()))

    def decisions(self, rmid: int, after: bytes = b"", count: int = 1000) -> Sequence[DecisionRecord]:
        """As `xa.DecidingResource` says. XA_RETRY where one of the tokens is held by somebody for too long."""
        standing = self._caller("decisions", rmid)
        log = self._tokens("decisions")
        if count < 1:
            raise xa_error(Code.XAER_INVAL, f"decisions: count {count} is below 1")
        return self._guarded(standing, "decisions", None, lambda: log.page(after, count, self.deadline()))

    def end_decisions(self, gtrids: Sequence[bytes], rmid: int) -> None:
        """As `xa.DecidingResource` says. They are taken out by the next decision of their slot; what has not been taken
        out when the process dies is found, and ended again, by recovery."""
        standing = self._caller("end_decisions", rmid)
        log = self._tokens("end_decisions")
        self._guarded(standing, "end_decisions", None, lambda: log.end(gtrids, self.deadline()))

    def diagnose(self, open_string: str) -> Diagnosis:
        """As `xa.diagnosis.Diagnosing` says. The queues are only browsed, over a connection of its own; a broker that
        makes queues on demand may make them, empty."""
        return diagnosed_decider(lambda: parse(open_string), lambda: self._looked_at(open_string))

    @staticmethod
    def _looked_at(open_string: str) -> Tokens:
        """What there is: the founding, and the slots whose tokens can't be seen now."""
        other = DecidingBroker()
        other._use(parse(open_string))

        def look(channel: LocalChannel, deadline: float) -> Steps[Tokens]:
            foundings = yield from channel.tokens.foundings(deadline)
            tokens: list[Token] = []
            for slot in range(max((founding.slots for founding in foundings), default=-1) + 1):
                tokens += yield from channel.tokens.shown(slot, deadline)
            return seen(foundings, tokens)

        def looked() -> Tokens:
            seat = other.pool.take(other.deadline())
            channel = seat.channel
            assert isinstance(channel, LocalChannel)  # noqa: S101 — the pool's select makes no others
            return seat.line.run(look(channel, other.deadline()))

        try:
            return other._guarded(other._standing(), "open", None, looked)
        finally:
            other.drop()


def _unusable_queues(error: RefusedError, name: str, slots: int) -> XaError:
    """The broker does not let us use the token queues."""
    told = error.refusal
    return xa_error(
        Code.XAER_RMERR,
        f"open: the token queues can't be used: {told.description or told.condition} ({told.condition}). Let somebody "
        f"make the queues {name} and {name}.0 to {name}.{slots} who may, with neither expiry nor dead-lettering, "
        "and allow us to send to, to consume from and to browse them",
    )
